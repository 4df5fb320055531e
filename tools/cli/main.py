"""The `irc` command. Exit status: 0 done, 1 failed, 2 usage, 3 unproved steps, 130 interrupted."""

from __future__ import annotations

import argparse
import atexit
import gc
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from ...support.streams import install_streams
from . import COMMANDS, command
from .options import GC_THRESHOLDS, session_options_of

TYPE_CHECKING = False  # of typing, which takes longer to import than the rest
if TYPE_CHECKING:
    from typing import Any, NoReturn


CLASH = (
    "another package with the folder irc, such as the library for Internet Relay Chat, has replaced"
    " files of irc-compiler: pip uninstall irc irc-compiler, then install irc-compiler in an"
    " environment of its own"
)


WAYS_ON = {
    "--opset": ": irc keeps the opset; onnx.version_converter converts it",
    "-v": ": --explain says where each scale and shift went, --debug-rules each rewrite",
    "--verbose": ": --explain says where each scale and shift went, --debug-rules each rewrite",
}
"""What replaces options that other tools have."""


class Formatter(argparse.HelpFormatter):
    """Help as wide as the terminal; argparse would import `shutil` to ask for it."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_columns() - 2)


class Parser(argparse.ArgumentParser):
    """A parser whose subparsers use `Formatter` too."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**{"formatter_class": Formatter, **keywords})

    def format_help(self) -> str:
        """Return the help with examples, which are not filled, at its foot."""
        from .examples import example_lines

        return super().format_help() + example_lines(self.prog)

    def error(self, message: str) -> NoReturn:
        """End with a sentence, and the command that shows the usage."""
        self.exit(2, f"{self.prog}: error: {message}\ntry {self.prog} --help\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            from ...support.errors import did_you_mean

            hint = did_you_mean(str(value), map(str, action.choices or ()))
            raise argparse.ArgumentError(action, f"{error.message}{hint}") from None


def _columns() -> int:
    """Return the columns of the terminal: COLUMNS, else those of standard output, else 80."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given):
        return int(given)
    try:
        return os.get_terminal_size(1).columns or 80
    except OSError:
        return 80


def parser(only: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of all commands, or of one."""
    root: argparse.ArgumentParser = Parser(
        prog="irc", description="A small, exact compiler middle end for ONNX inference graphs."
    )
    root.add_argument("--version", action="store_true", help="print the version and exit")
    commands = root.add_subparsers(dest="command", metavar="COMMAND", prog=root.prog)
    for name in COMMANDS if only is None else [only]:
        command(name).add(commands)
    return root


def refuse_unknown(
    parser: argparse.ArgumentParser, options: argparse.Namespace, rest: Sequence[str]
) -> NoReturn:
    """End with the command given, and its option that is nearest to the first unknown one."""
    for action in parser._actions:
        chosen = getattr(options, action.dest, None)
        if isinstance(action, argparse._SubParsersAction) and chosen in action.choices:
            refuse_unknown(action.choices[chosen], options, rest)
    from ...support.errors import nearest

    option = next((text for text in rest if text.startswith("-")), rest[0])
    known = {name.lstrip("-"): name for name in parser._option_string_actions}
    near = nearest(option.split("=")[0].lstrip("-"), known, cutoff=0.6)
    hint = "" if near is None else f" (did you mean {known[near]}?)"
    hint = WAYS_ON.get(option.split("=")[0], hint)
    parser.error(f"unknown {'option' if option.startswith('-') else 'argument'} {option}{hint}")


def start_no_threads() -> None:
    """Keep numpy, imported later, from starting threads: sums depend on their number."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def program() -> int:
    """Run `main` as the process `irc`, which ends without freeing its memory object by object."""
    if "lazy_exports" not in vars(sys.modules[__name__.partition(".")[0]]):
        sys.stderr.write(f"irc: {CLASH}\n")
        return 1
    start_no_threads()
    install_streams()
    try:
        status = main(alone=True)
    finally:
        give_up_output()
    if not _is_watched():
        # Freeing the IR object by object would take a tenth of a compile: 10.3 % of the smallest
        # model, 10.9 % of 736 operators (processor time, medians of 25).
        atexit._run_exitfuncs()
        sys.stderr.flush()
        os._exit(status)
    return status


def _is_watched() -> bool:
    """Return whether the end is awaited: by a debugger, profiler, thread, prompt or process."""
    if sys.gettrace() is not None or sys.getprofile() is not None:
        return True
    monitoring = getattr(sys, "monitoring", None)  # from Python 3.12 on
    if monitoring is not None and any(map(monitoring.get_tool, range(6))):
        return True
    if sys.flags.interactive or "multiprocessing" in sys.modules:
        return True
    return len(sys._current_frames()) > 1  # threads


def give_up_output() -> None:
    """Flush standard output, or discard the rest: Python would complain about it at exit."""
    from ...support.errors import EmitError

    try:
        sys.stdout.flush()
    except (OSError, EmitError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(argv: Sequence[str] | None = None, *, alone: bool = False) -> int:
    """Run the command of `argv` and return the exit status.

    If `alone`, it is the only one of its process.
    """
    for name in ("stdin", "stdout", "stderr"):  # closed streams, as in some build farms
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115
    from ...support.errors import EXPECTED, EmitError, IRError, UsageError, describe_error

    try:
        try:
            status = _run(argv, alone=alone)
        except IRError:
            with suppress(OSError, EmitError):  # the error says more
                sys.stdout.flush()
            raise
        except BaseException:
            sys.stdout.flush()
            raise
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        return 1
    except EXPECTED as error:
        sys.stderr.write(f"irc: {describe_error(error)}\n")
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        sys.stderr.write("irc: interrupted\n")
        return 130


def _run(argv: Sequence[str] | None, *, alone: bool) -> int:
    argv = sys.argv[1:] if argv is None else argv
    grammar = parser(argv[0] if argv and argv[0] in COMMANDS else None)
    options, rest = grammar.parse_known_args(argv)
    if hasattr(options, "models") and not any(text.startswith("-") for text in rest):
        options.models += rest  # argparse takes no models after an option
    elif rest:
        refuse_unknown(grammar, options, rest)
    if options.version:
        from ...support.version import __version__

        sys.stdout.write(f"irc {__version__}\n")
        return 0
    if isinstance(sys.stdout, io.TextIOWrapper) and not sys.stdout.isatty():
        # Files hold the same in every locale.
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    if options.command is None:
        grammar.print_help(sys.stderr)
        return 2
    gc.set_threshold(*GC_THRESHOLDS)
    # One module is made, and lives to the end: 3 % of 3,000 operators.
    if alone and options.command == "compile" and not options.verify:
        gc.disable()
        # Imported later, from a deeper stack, numpy takes longer: CPython 3.11 then allocates and
        # frees a part of its stack in each call of some of its modules: 2 % of a compile.
        import numpy  # noqa: F401
    try:
        with session_options_of(options):
            return command(options.command).run(options)
    finally:
        made = getattr(options, "made_folders", ())
        if made:
            from ...support.files import remove_empty

            remove_empty(made)
