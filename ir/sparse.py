"""Sparse payloads as arrays.

A payload from an untrusted model is checked before anything is allocated for it.
"""

from __future__ import annotations

import numpy as np

from .attributes import SparseTensor
from .tensor import Array, ArrayTensor, Tensor, numpy_dtype, scaled
from .types import ELEMENT_COUNT_LIMIT, element_count

_INDEX_BYTES = 8
"""Bytes of an index into the elements in order."""


def linear_indices(sparse: SparseTensor) -> Array:
    """Return the place of each value in the order of the elements.

    Raises ValueError with the end of a sentence "the tensor ..." if ONNX does not allow the places.
    """
    shape, values, indices = sparse.shape, sparse.values, sparse.indices
    size = element_count(shape)
    if min(shape, default=0) < 0 or size >= ELEMENT_COUNT_LIMIT:
        raise ValueError(f"has the shape {list(shape[:8])}, which no tensor can have")
    if indices.dtype.name != "i64" or len(values.shape) != 1:
        raise ValueError("has indices that are not i64, or values that are not a list")
    if indices.shape not in (values.shape, (*values.shape, len(shape))):
        raise ValueError(
            f"has {values.size} values, and indices of the shape {list(indices.shape[:8])}"
        )
    places: Array = indices.numpy()
    if places.ndim == 2:
        if ((places < 0) | (places >= np.array(shape, np.int64))).any():
            raise ValueError("has an index that is out of range")
        steps = [element_count(shape[axis + 1 :]) for axis in range(len(shape))]
        places = places @ np.array(steps, np.int64)
    elif places.size and (int(places.min()) < 0 or int(places.max()) >= size):
        raise ValueError("has an index that is out of range")
    if (places[1:] <= places[:-1]).any():
        raise ValueError("has indices that do not increase")
    return places


def dense(sparse: SparseTensor) -> Array:
    """Return all elements.

    Raises ValueError if the payload is malformed, or has elements other than numbers.
    """
    places = linear_indices(sparse)
    if sparse.dtype.kind in ("string", "unknown"):
        raise ValueError("has no numbers")
    array = np.zeros(sparse.shape, numpy_dtype(sparse.dtype))
    array.reshape(-1)[places] = sparse.values.numpy()
    array.flags.writeable = False
    return array


def scaled_values(sparse: SparseTensor, factor: Array) -> SparseTensor:
    """Return the product with a float64 factor, which is broadcast: each value is rounded once.

    The indices become linear, which takes fewest bytes.
    """
    places = linear_indices(sparse)
    factors = np.broadcast_to(factor, sparse.shape)[np.unravel_index(places, sparse.shape)]
    values = scaled(sparse.values.numpy(), factors, sparse.dtype)
    is_linear = len(sparse.indices.shape) == 1
    indices = sparse.indices if is_linear else ArrayTensor(np.ascontiguousarray(places, np.int64))
    return SparseTensor(ArrayTensor(values, sparse.dtype), indices, sparse.shape)


def stored_shorter(tensor: Tensor) -> Tensor | SparseTensor:
    """Return a tensor of numbers without its zeros, if that takes fewer bytes.

    A negative zero stays.
    """
    array = tensor.numpy()
    if tensor.dtype.bits < 8 or array.dtype == object or not array.ndim:
        return tensor
    elements = np.ascontiguousarray(array).reshape(-1)
    bits = elements.view(np.uint8).reshape(elements.size, elements.itemsize)
    places = np.flatnonzero(bits.any(axis=1))
    if places.size * (tensor.dtype.bits // 8 + _INDEX_BYTES) >= tensor.nbytes:
        return tensor
    values = ArrayTensor(elements[places], tensor.dtype)
    return SparseTensor(values, ArrayTensor(places.astype(np.int64)), tensor.shape)
