"""A compiler that stands ready: `python -m irc.parallel.fork_server`.

It imports once what every compile needs. For each request, a line of JSON on standard input, it forks, and the copy
compiles one model; its status and what it printed are the answer, a line on standard output. So a compile costs no
start of Python, and has nothing in common with another but what was imported. An interrupt of the process group ends
the copy alone.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import IO

from .. import cli

NEEDED = ("irc.backends.compiler", "irc.backends.foldmap", "irc.support.output_paths", "irc.passes")
"""What every compile imports, as late as it can."""

CAN_FORK = sys.platform == "linux"
"""Elsewhere libraries of the system may not be forked, or nothing may; there a compile is a Python of its own."""


def serve() -> None:
    """Answer requests until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    cli.start_no_threads()
    for name in NEEDED:
        import_module(name)
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            status, out, err = answer(request["arguments"], request["folder"])
        except OSError as error:  # there is no place for temporary files, or no process more
            status, out, err = 1, "", f"irc: a compile cannot be started: {error.strerror}\n"
        sys.stdout.write(json.dumps({"status": status, "out": out, "err": err}) + "\n")
        sys.stdout.flush()


def answer(arguments: Sequence[str], folder: str) -> tuple[int, str, str]:
    """Run `irc` in `folder`; its exit status, which is negative for a signal, and what it printed."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        if CAN_FORK:
            child = os.fork()
            if not child:
                _become(arguments, folder, out, err)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        else:
            command = [sys.executable, "-P", "-m", "irc", *arguments]
            status = subprocess.run(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err, check=False
            ).returncode
        return status, _text(out), _text(err)


def _become(arguments: Sequence[str], folder: str, out: IO[bytes], err: IO[bytes]) -> None:
    """Be `irc`, and end."""
    status: object = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        cli.Messages.install()
        cli.Output.install()
        os.chdir(folder)
        status = cli.main(arguments)
    except SystemExit as leaving:
        status = leaving.code
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            cli.give_up_output()
            sys.stderr.flush()
        finally:  # whatever happens, there is no second compiler
            os._exit(status if isinstance(status, int) else 1)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="surrogateescape")


if __name__ == "__main__":
    serve()
