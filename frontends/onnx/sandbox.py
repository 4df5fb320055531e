"""Shape inference in a child process: some models crash onnx's C++ code, or make it run forever."""

from __future__ import annotations

from ...support.isolation import run_in_fork
from .codec.onnx_parts import infer_shapes, load_schemas
from .codec.protos import ModelProto

SECONDS, SECONDS_PER_BYTE = 3, 1e-5
"""Processor time that inference may take, and more per byte of the model: 100 times the usual."""


def infer_shapes_in_child(model: ModelProto) -> ModelProto | None:
    """Return `model` with inferred shapes, None if inference fails or crashes.

    It also fails if it takes too much time or memory.
    """
    content = model.SerializeToString()
    load_schemas()  # once, and not in each of the children
    result = run_in_fork(infer_shapes, content, SECONDS + int(len(content) * SECONDS_PER_BYTE))
    return None if result is None else ModelProto.FromString(result)
