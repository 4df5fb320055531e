"""Shape inference in a process of its own: onnx's is C++, which there are models to crash, or to keep busy for ever."""

from __future__ import annotations

import faulthandler
import os
import resource
import warnings

from onnx import ModelProto, shape_inference

SECONDS, SECONDS_PER_BYTE = 3, 1e-5
"""Of a processor that inference may take, more for larger models: it takes 1e-7 of them for each byte as a rule."""

MEMORY, MEMORY_TIMES = 2 << 30, 64
"""Bytes that it may take, and as many times the model."""


def isolated(model: ModelProto) -> ModelProto | None:
    """What shape inference makes of `model`, None where it fails, crashes, or takes too much time or memory."""
    content = model.SerializeToString()
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, none of which the child needs
        child = os.fork()
    if not child:
        _infer(content, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        result = stream.read()
    _, status = os.waitpid(child, 0)
    return None if status else ModelProto.FromString(result)


def _infer(content: bytes, writing: int) -> None:
    """The child: write the inferred model, and end."""
    faulthandler.disable()
    try:
        seconds = SECONDS + int(len(content) * SECONDS_PER_BYTE)
        _lower(resource.RLIMIT_CPU, seconds)
        _lower(resource.RLIMIT_CORE, 0)
        with open("/proc/self/statm") as sizes:  # not everywhere
            _lower(resource.RLIMIT_AS, int(sizes.read().split()[0]) * 4096 + MEMORY + MEMORY_TIMES * len(content))
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


def _lower(what: int, bound: int) -> None:
    soft, hard = resource.getrlimit(what)
    bound = bound if soft == resource.RLIM_INFINITY else min(bound, soft)
    resource.setrlimit(what, (bound, hard))
