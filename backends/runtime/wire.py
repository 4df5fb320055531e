"""Messages between irc and the process that runs models: JSON, and arrays that it refers to.

Nothing is pickled. Arrays are written from their memory and read into it. The process imports
neither onnx nor the rest of irc.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from typing import IO, Any

import numpy as np

from .messages import Array

PIPE_BYTES = 1 << 20
"""Size of the pipes, as far as the system allows it."""


def enlarge_pipe(stream: IO[bytes]) -> None:
    """Let a pipe hold PIPE_BYTES, so that the processes wait less for each other."""
    with suppress(ImportError, OSError, AttributeError):  # Linux only, and within its limits
        import fcntl

        fcntl.fcntl(stream.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)


def write_message(
    stream: IO[bytes], head: object, arrays: Sequence[Array], model: bytes = b""
) -> None:
    """Write a text, arrays of numpy's own types, and a model, which may be empty."""
    entries = [(array.dtype.str, array.shape) for array in arrays]
    text = json.dumps([head, entries, len(model)]).encode()
    stream.write(len(text).to_bytes(8, "little") + text)
    stream.flush()
    contents = (np.asarray(array, order="C").reshape(-1).view(np.uint8).data for array in arrays)
    for view in chain(contents, [memoryview(model)]):
        while view:
            view = view[os.write(stream.fileno(), view) :]


def read_message(stream: IO[bytes]) -> tuple[Any, list[Array], bytes] | None:
    """Return the text, the arrays and the model of the next message, None at the end.

    A model is read as the bytes that onnxruntime takes, so that it is not copied.
    """
    length = stream.read(8)
    text = stream.read(int.from_bytes(length, "little"))
    if len(length) < 8 or len(text) < int.from_bytes(length, "little"):
        return None
    head, entries, size = json.loads(text)
    arrays = [np.empty(shape, np.dtype(name)) for name, shape in entries]
    for array in arrays:
        view = array.reshape(-1).view(np.uint8).data
        while view:
            count = stream.readinto(view)  # type: ignore[attr-defined]
            if not count:
                return None
            view = view[count:]
    model = stream.read(size)
    return None if len(model) < size else (head, arrays, model)


def encode(value: Any, arrays: list[Array]) -> Any:
    """Return a value of onnxruntime as JSON: arrays, texts, lists, maps and None.

    Its arrays are appended to `arrays`.
    """
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "OSU":
        return {"texts": value.reshape(-1).tolist(), "shape": value.shape}
    if isinstance(value, np.ndarray):
        arrays.append(value)
        return {"array": len(arrays) - 1}
    if isinstance(value, list | tuple):
        return {"list": [encode(item, arrays) for item in value]}
    if isinstance(value, dict):
        return {"keys": list(value), "values": list(value.values())}
    if value is None or isinstance(value, str | int | float | bool):
        return {"plain": value}
    raise TypeError(f"a {type(value).__name__} is not a value that irc reads")


def decode(text: Any, arrays: Sequence[Array]) -> Any:
    """Return the value that `encode` was given."""
    if "texts" in text:
        found = np.empty(len(text["texts"]), object)
        found[:] = text["texts"]
        return found.reshape(text["shape"])
    if "array" in text:
        return arrays[text["array"]]
    if "list" in text:
        return [decode(item, arrays) for item in text["list"]]
    if "keys" in text:
        return dict(zip(text["keys"], text["values"], strict=True))
    return text["plain"]
