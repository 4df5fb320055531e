"""The `irc` command. Exit status: 0 done, 1 the model or a check failed, 2 usage."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Sequence

from .commands import COMMANDS


def parser() -> argparse.ArgumentParser:
    """The command-line grammar."""
    root = argparse.ArgumentParser(
        prog="irc", description="A small, exact compiler middle end for ONNX inference graphs."
    )
    root.add_argument("--version", action="store_true", help="print the version and exit")
    commands = root.add_subparsers(dest="command", metavar="COMMAND")
    for command in COMMANDS.values():
        command.add(commands)
    return root


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    grammar = parser()
    options = grammar.parse_args(argv)
    if options.version:
        from . import __version__

        sys.stdout.write(f"irc {__version__}\n")
        return 0
    for name in ("stdin", "stdout", "stderr"):  # closed streams, as in some build farms
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115
    command = COMMANDS.get(options.command)
    if command is None:
        grammar.print_help(sys.stderr)
        return 2
    from .ir.errors import IRError, UsageError

    gc.set_threshold(100_000, 50, 50)  # the IR is one large live structure: collecting often is most of the cost
    try:
        return command.run(options)
    except IRError as error:
        sys.stderr.write(f"irc: {error}\n")
        return 2 if isinstance(error, UsageError) else 1
    except RecursionError:
        sys.stderr.write("irc: something stands in itself deeper than can be followed (--max-nesting)\n")
        return 1
    except MemoryError:
        sys.stderr.write("irc: there is not enough memory\n")
        return 1
    except BrokenPipeError:
        sys.stderr.close()
        return 1
