"""The process in which onnxruntime computes constant expressions.

It imports neither onnx nor the rest of irc.
"""

from __future__ import annotations

from ...support.isolation import serve
from .messages import pack, unpack
from .sessions import new_session


def main() -> None:
    """Answer requests until the compile ends."""
    serve(answer)


def answer(request: bytes) -> bytes:
    """Return the results of a model for its inputs, in order; nothing if onnxruntime fails."""
    model, arrays = unpack(request)
    try:
        session = new_session(model, threads=1)
        inputs = {
            entry.name: array for entry, array in zip(session.get_inputs(), arrays, strict=True)
        }
        return pack(b"", session.run(None, inputs))
    except Exception:  # onnxruntime raises types of its own; the expression stays in the model
        return b""
