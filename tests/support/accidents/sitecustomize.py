"""Accidents of processes with this folder on PYTHONPATH, before an output is in place, by its name.

`segv.*`, `kill.*` and `odd.*` end the process by a signal, the last by one without a name,
`stall.*` takes a minute, `deaf.*` does and ignores interrupts.
"""

import os
import signal
import sys
import time

ENDED_BY = {"segv": signal.SIGSEGV, "kill": signal.SIGKILL, "odd": signal.SIGRTMIN + 1}


def accident(event: str, arguments: tuple[object, ...]) -> None:
    if event != "os.rename":
        return
    name = os.path.basename(os.fsdecode(arguments[1]))  # type: ignore[arg-type]
    kind, _, rest = name.partition(".")
    if rest != "irc.onnx":
        return
    if kind in ENDED_BY:
        os.kill(os.getpid(), ENDED_BY[kind])
    if kind == "deaf":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if kind in ("stall", "deaf"):
        time.sleep(60)


sys.addaudithook(accident)
