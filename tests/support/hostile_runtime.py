"""The server of constant expressions, with operators that crash, hang or take all memory."""

from __future__ import annotations

import os
import signal

import onnx
from irc.backends.runtime import server
from irc.backends.runtime.messages import unpack
from irc.support.isolation import serve


def main() -> None:
    serve(answer)


def answer(request: bytes) -> bytes:
    print("noise that is no answer", flush=True)
    model = onnx.load_model_from_string(unpack(request)[0])
    for node in model.graph.node:
        match node.op_type:
            case "Erf":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "Softsign":
                while True:
                    pass
            case "Softplus":
                bytearray(1 << 36)
            case "Sinh":
                os._exit(3)
    return server.answer(request)
