"""Operators that make tensors from attributes or from a shape."""

from __future__ import annotations

import math

import numpy as np

from .call import Call, Op
from .values import Tensor, carrier


def _constant(call: Call) -> Tensor:
    for name in ("value", "sparse_value"):
        tensor = call.attributes.get(name)
        if isinstance(tensor, np.ndarray):
            return tensor
    for name, dtype in (
        ("value_float", np.float64),
        ("value_int", np.int64),
        ("value_string", object),
    ):
        if call.has(name):
            return np.array(call.attributes[name], dtype=dtype)
        if call.has(f"{name}s"):
            return np.array(call.attributes[f"{name}s"], dtype=dtype)
    raise ValueError("Constant: no value")


def _constant_of_shape(call: Call) -> Tensor:
    value = call.attributes.get("value")
    fill = value if isinstance(value, np.ndarray) else np.zeros(1)
    return np.full(call.integers(0) or (), fill.reshape(()), dtype=fill.dtype)


def _range(call: Call) -> Tensor:
    start, limit, delta = (call.tensor(index).reshape(()) for index in range(3))
    count = max(math.ceil((limit - start) / delta), 0)
    return np.asarray(start + np.arange(count).astype(start.dtype) * delta)


def _eye_like(call: Call) -> Tensor:
    x = call.tensor(0)
    element_type = call.integer("dtype", 0)
    dtype = carrier(element_type) if element_type else x.dtype
    if dtype is None:
        raise call.unsupported(f"element type {element_type}")
    return np.asarray(np.eye(x.shape[0], x.shape[1], k=call.integer("k", 0), dtype=dtype))


OPS: dict[str, Op] = {
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "EyeLike": _eye_like,
    "Range": _range,
}
