"""Shape inference in a child process: some models crash onnx's C++ code, or make it run forever."""

from __future__ import annotations

import faulthandler
import os
import resource
import warnings

from onnx import ModelProto, shape_inference

SECONDS, SECONDS_PER_BYTE = 3, 1e-5
"""Processor time that inference may take, and more per byte of the model: it usually takes 1e-7 s per byte."""

MEMORY, MEMORY_TIMES = 2 << 30, 64
"""Bytes of memory that inference may take, and more as a multiple of the model."""


def infer_shapes_in_child(model: ModelProto) -> ModelProto | None:
    """Return `model` with inferred shapes, None if inference fails, crashes, or takes too much time or memory."""
    content = model.SerializeToString()
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about threads: the child needs none
        child = os.fork()
    if not child:
        _infer(content, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        result = stream.read()
    _, status = os.waitpid(child, 0)
    return None if status else ModelProto.FromString(result)


def _infer(content: bytes, writing: int) -> None:
    """Write the inferred model to the pipe, and end the process. Runs in the child."""
    faulthandler.disable()
    try:
        seconds = SECONDS + int(len(content) * SECONDS_PER_BYTE)
        _limit(resource.RLIMIT_CPU, seconds)
        _limit(resource.RLIMIT_CORE, 0)
        with open("/proc/self/statm") as sizes:  # Linux only
            _limit(resource.RLIMIT_AS, int(sizes.read().split()[0]) * 4096 + MEMORY + MEMORY_TIMES * len(content))
    except (OSError, ValueError):
        pass
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        result = shape_inference.infer_shapes(content).SerializeToString()
        with os.fdopen(writing, "wb") as stream:
            stream.write(result)
        os._exit(0)
    finally:
        os._exit(1)


def _limit(resource_id: int, bound: int) -> None:
    soft, hard = resource.getrlimit(resource_id)
    bound = bound if soft == resource.RLIM_INFINITY else min(bound, soft)
    resource.setrlimit(resource_id, (bound, hard))
