"""A server that does what it is told: crash, run forever, take all memory, or answer in reverse."""

from __future__ import annotations

import os
import signal

from irc.support.isolation import serve


def main() -> None:
    serve(obey)


def obey(order: bytes) -> bytes:
    print("not the answer", flush=True)
    match order:
        case b"crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case b"loop":
            while True:
                pass
        case b"memory":
            bytearray(1 << 36)
        case b"exit":
            os._exit(3)
        case b"interrupt":
            os.kill(os.getpid(), signal.SIGINT)
        case b"who":
            return str(os.getpid()).encode()
    return order[::-1]
