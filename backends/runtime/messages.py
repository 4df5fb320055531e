"""Arrays as bytes, between a compile and the process in which onnxruntime runs.

Nothing is pickled.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def pack(model: bytes, arrays: Sequence[Array]) -> bytes:
    """Return a model, which may be empty, and arrays of numpy's own types as one text."""
    head = json.dumps([len(model), [(array.dtype.str, array.shape) for array in arrays]]).encode()
    return b"".join(
        (len(head).to_bytes(8, "little"), head, model, *(array.tobytes() for array in arrays))
    )


def unpack(content: bytes) -> tuple[bytes, list[Array]]:
    """Return the model and the arrays that `pack` was given. The arrays are read-only."""
    start = 8 + int.from_bytes(content[:8], "little")
    size, entries = json.loads(content[8:start])
    model, place, arrays = content[start : start + size], start + size, []
    for name, shape in entries:
        dtype = np.dtype(name)
        count = int(np.prod(shape, dtype=np.int64))
        arrays.append(np.frombuffer(content, dtype, count, place).reshape(shape))
        place += count * dtype.itemsize
    return model, arrays
