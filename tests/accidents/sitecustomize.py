"""Accidents for processes that have this folder on PYTHONPATH: by its name, what an output meets before it is in place.

`segv.*` and `kill.*` end the process by that signal, `stall.*` takes a minute, `deaf.*` does and ignores interrupts.
"""

import os
import signal
import sys
import time


def accident(event: str, arguments: tuple[object, ...]) -> None:
    if event != "os.rename":
        return
    name = os.path.basename(os.fsdecode(arguments[1]))  # type: ignore[arg-type]
    kind, _, rest = name.partition(".")
    if rest != "irc.onnx":
        return
    if kind in ("segv", "kill"):
        os.kill(os.getpid(), signal.SIGSEGV if kind == "segv" else signal.SIGKILL)
    if kind == "deaf":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if kind in ("stall", "deaf"):
        time.sleep(60)


sys.addaudithook(accident)
