"""Payloads of constants: references to tensors, read on demand and never changed in place."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from .payload import BLOCK, byte_view, scratch
from .types import BF16, DTYPES, F32, F64, DType, TensorType, element_count

Array = np.ndarray[Any, np.dtype[Any]]

_NUMPY: dict[str, np.dtype[Any]] = {
    "f16": np.dtype(np.float16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "i8": np.dtype(np.int8),
    "i16": np.dtype(np.int16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "u8": np.dtype(np.uint8),
    "u16": np.dtype(np.uint16),
    "u32": np.dtype(np.uint32),
    "u64": np.dtype(np.uint64),
    "c64": np.dtype(np.complex64),
    "c128": np.dtype(np.complex128),
    "bool": np.dtype(np.bool_),
    "str": np.dtype(object),
}
_BY_NUMPY = {numpy_dtype: DTYPES[name] for name, numpy_dtype in _NUMPY.items()}


@cache
def _ml_dtypes() -> dict[str, np.dtype[Any]]:
    """Return the storage dtypes that only ml_dtypes has."""
    # ml_dtypes takes 5 ms to import, 3 % of a small compile. Most models have none of its types.
    import ml_dtypes

    return {
        "bf16": np.dtype(ml_dtypes.bfloat16),
        "f8e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
        "f8e4m3fnuz": np.dtype(ml_dtypes.float8_e4m3fnuz),
        "f8e5m2": np.dtype(ml_dtypes.float8_e5m2),
        "f8e5m2fnuz": np.dtype(ml_dtypes.float8_e5m2fnuz),
        "f8e8m0": np.dtype(ml_dtypes.float8_e8m0fnu),
        "f4e2m1": np.dtype(ml_dtypes.float4_e2m1fn),
        "f6e2m3": np.dtype(ml_dtypes.float6_e2m3fn),
        "f6e3m2": np.dtype(ml_dtypes.float6_e3m2fn),
        "i2": np.dtype(ml_dtypes.int2),
        "i4": np.dtype(ml_dtypes.int4),
        "u2": np.dtype(ml_dtypes.uint2),
        "u4": np.dtype(ml_dtypes.uint4),
    }


@cache
def _from_ml_dtypes() -> dict[np.dtype[Any], DType]:
    """Return the element type of each storage dtype of ml_dtypes."""
    return {storage: DTYPES[name] for name, storage in _ml_dtypes().items()}


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """Return the numpy or ml_dtypes dtype that stores `dtype`; strings are stored as objects."""
    found = _NUMPY.get(dtype.name)
    return found if found is not None else _ml_dtypes()[dtype.name]


def dtype_from_numpy(storage: np.dtype[Any]) -> DType:
    """Return the element type that a numpy or ml_dtypes dtype stores.

    Raises KeyError if there is none.
    """
    found = _BY_NUMPY.get(storage)
    return found if found is not None else _from_ml_dtypes()[storage]


@cache
def finfo(dtype: DType) -> Any:
    """Return the `finfo` of numpy or ml_dtypes for a floating type."""
    if dtype.name in _NUMPY:
        return np.finfo(numpy_dtype(dtype))
    import ml_dtypes  # 5 ms, as above

    return ml_dtypes.finfo(numpy_dtype(dtype))  # type: ignore[no-untyped-call]


class Tensor:
    """The payload of a constant.

    Its shape is concrete; subclasses implement `numpy`, which reads the elements.

    + This is not an ABC: `isinstance` on one runs in Python, and passes call it very often.
    """

    __slots__ = ()
    dtype: DType
    shape: tuple[int, ...]
    size: int
    """Number of elements."""

    def numpy(self) -> Array:
        """Return the elements as a read-only array of `shape`."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.type}>"

    @property
    def in_memory(self) -> bool:
        """Whether `numpy` neither reads a file nor computes."""
        return True

    @property
    def nbytes(self) -> int:
        """Bytes of the packed elements; strings count as zero."""
        return (self.size * self.dtype.bits + 7) // 8

    @property
    def rows_per_block(self) -> int:
        """Extent of a block of `blocks` along the first axis.

        Rows without elements are one block.
        """
        bits = element_count(self.shape[1:]) * self.dtype.bits
        return max(1, 8 * BLOCK // bits if bits else self.shape[0])

    def blocks(self) -> Iterator[Array]:
        """Yield the elements in order, `rows_per_block` along the first axis at a time.

        A scalar is one block.
        """
        array = self.numpy()
        if not array.ndim:
            yield array
            return
        for start in range(0, self.shape[0], self.rows_per_block):
            yield array[start : start + self.rows_per_block]

    @property
    def type(self) -> TensorType:
        """The tensor type of the payload."""
        return TensorType(self.dtype, self.shape)

    def digest(self) -> str:
        """Return a hexadecimal digest of dtype, shape and elements, however they are stored."""
        # hashlib loads OpenSSL in 3 ms. IR text needs digests by sha256, a compile of ONNX to ONNX
        # does not.
        from hashlib import sha256

        hasher = sha256(f"{self.dtype}{self.shape}".encode())
        for block in self.blocks():
            if block.dtype == object:
                for item in block.ravel():
                    data = (
                        item
                        if isinstance(item, bytes)
                        else str(item).encode("utf-8", "surrogatepass")
                    )
                    hasher.update(len(data).to_bytes(8, "little") + data)
            else:
                hasher.update(byte_view(block))
        return hasher.hexdigest()[:16]


class ArrayTensor(Tensor):
    """A payload in a numpy array."""

    __slots__ = ("_array", "dtype", "shape", "size")

    def __init__(self, array: Array, dtype: DType | None = None) -> None:
        """Refer to `array`, or a numpy scalar, through a read-only view.

        `dtype` is derived from it by default. Raises KeyError if the dtype of the array has no
        element type.
        """
        array = np.asarray(array)
        self.dtype = dtype if dtype is not None else dtype_from_numpy(array.dtype)
        self.shape, self.size = array.shape, array.size
        self._array = array.view()
        self._array.setflags(write=False)

    def numpy(self) -> Array:
        # not before somebody asks: a broadcast view may stand for much
        if not self._array.flags.c_contiguous:
            self._array = np.ascontiguousarray(self._array)
            self._array.flags.writeable = False
        return self._array


class ScaledTensor(Tensor):
    """The product of `base` and a float64 `factor`, which is broadcast.

    It is computed in float64 on demand, rounded once to the dtype of `base`, and not cached.
    """

    __slots__ = ("__weakref__", "base", "dtype", "factor", "shape", "size")

    def __init__(self, base: Tensor, factor: Array) -> None:
        self.base, self.dtype, self.shape, self.size = base, base.dtype, base.shape, base.size
        self.factor = expand_rank(factor, len(base.shape))

    @property
    def in_memory(self) -> bool:
        return False

    def numpy(self) -> Array:
        if self.nbytes <= BLOCK and self.base.in_memory:
            array = scaled(self.base.numpy(), self.factor, self.dtype)
            array.flags.writeable = False
            return array
        result = np.empty(self.shape, numpy_dtype(self.dtype))
        start = 0
        for block in self.blocks():
            if not block.ndim:
                result[...] = block
            else:
                result[start : start + len(block)] = block
                start += len(block)
        result.flags.writeable = False
        return result

    def scaled(self, factor: Array) -> ScaledTensor:
        """Return this product times another factor, which is rounded once, too."""
        with np.errstate(all="ignore"):
            return ScaledTensor(self.base, self.factor * factor)

    def exact(self) -> Array:
        """Return the product in float64, before its rounding."""
        with np.errstate(all="ignore"):
            return np.asarray(float64(self.base) * self.factor)

    def blocks(self) -> Iterator[Array]:
        for _, block in self.pairs():
            yield block

    def pairs(self) -> Iterator[tuple[Array, Array]]:
        """Yield each block of `base` with its product."""
        start = 0
        varies = self.factor.ndim > 0 and self.factor.shape[0] > 1
        for block in self.base.blocks():
            factor = self.factor[start : start + len(block)] if varies else self.factor
            yield block, scaled(block, factor, self.dtype)
            start += len(block) if block.ndim else 0


class OpaqueTensor(Tensor):
    """A payload of which only type and digest are known: IR text was read without its payloads."""

    __slots__ = ("_digest", "dtype", "shape", "size")

    def __init__(self, dtype: DType, shape: tuple[int, ...], digest: str) -> None:
        self.dtype, self.shape, self._digest = dtype, shape, digest
        self.size = element_count(shape)

    def numpy(self) -> Array:
        """Raise ValueError: the elements were not given."""
        raise ValueError(
            f"the elements of {self.type} #{self._digest} were not given: `irc dump MODEL -o"
            " FILE.irc` writes them to FILE.npz, --data names another file"
        )

    def digest(self) -> str:
        return self._digest


def round_to(array: Array, dtype: DType) -> Array:
    """Round a float64 array once, to nearest even, to the floating type `dtype`.

    ml_dtypes converts float64 to bfloat16 through float32, which rounds twice. Rounding the first
    step to odd makes the second step exact (Boldo and Melquiond, "When double rounding is odd",
    2005).
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return rounded_in_pass(array, dtype)


def rounded_in_pass(array: Array, dtype: DType) -> Array:
    """Round as `round_to`, with numpy's warnings off as in a pass.

    To turn them off takes as long again.
    """
    if dtype is not BF16:
        rounded: Array = array.astype(numpy_dtype(dtype))
        return rounded
    narrow = np.atleast_1d(array.astype(np.float32))
    wide = narrow.astype(np.float64)
    exact = np.atleast_1d(array)
    narrow = np.where(np.abs(wide) > np.abs(exact), np.nextafter(narrow, np.float32(0)), narrow)
    bits = narrow.view(np.uint32) | ((wide != exact) & np.isfinite(exact)).astype(np.uint32)
    odd: Array = bits.view(np.float32).reshape(array.shape)
    return odd.astype(numpy_dtype(dtype))


def expand_rank(factor: Array, rank: int) -> Array:
    """Return a view of `factor` with leading axes of extent 1 up to `rank`."""
    return factor.reshape((1,) * (rank - factor.ndim) + factor.shape)


def scaled(array: Array, factor: Array, dtype: DType) -> Array:
    """Return `array` times the float64 `factor`, computed in float64 and rounded once.

    The result has the type `dtype`.
    """
    if dtype is not F32 or array.dtype != np.float32:
        with np.errstate(all="ignore"):
            return round_to(array.astype(np.float64) * factor, dtype)
    # numpy casts in chunks: no float64 copy of the array is made
    result = scratch(array.shape, array.dtype)
    with np.errstate(all="ignore"):
        np.multiply(array, factor, out=result, dtype=np.float64, casting="same_kind")
    return result


def float64(tensor: Tensor) -> Array:
    """Return the elements of a floating or integer tensor as float64.

    They are exact except 64-bit integers above 2**53.
    """
    array = tensor.numpy()
    return array if tensor.dtype is F64 else array.astype(np.float64)


def to_float64(array: Array) -> Array:
    """Return `array` in float64."""
    wide: Array = array.astype(np.float64, copy=False)
    return wide


def all_finite(array: Array) -> bool:
    """Return whether every number of a floating array is finite."""
    # faster than `all` on small arrays
    return bool(np.count_nonzero(np.isfinite(array)) == array.size)


def fits(array: Array, dtype: DType) -> bool:
    """Return whether every number of a float64 array stays finite when it is rounded to `dtype`."""
    if np.count_nonzero(np.abs(array) <= largest_finite(dtype)) == array.size:
        return True
    # numbers just above the greatest are rounded down to it
    return all_finite(to_float64(round_to(array, dtype)))


@cache
def largest_finite(dtype: DType) -> float:
    """Return the largest finite number of a floating type."""
    return float(finfo(dtype).max)


def half_ulp(magnitudes: Array | float, dtype: DType) -> Array:
    """Return half of the distance from each magnitude to the next of a floating type.

    It is 0 below the normal numbers.
    """
    mantissa, exponent = np.frexp(magnitudes)
    distance = np.ldexp(1.0, exponent - 2 - int(finfo(dtype).nmant))
    return np.where(
        (mantissa > 0) & (np.asarray(magnitudes) >= smallest_normal(dtype)), distance, 0.0
    )


@cache
def smallest_normal(dtype: DType) -> float:
    """Return the smallest positive normal number of a floating type."""
    if dtype.name == "bf16":
        return float(np.finfo(np.float32).tiny)
    return float(np.finfo(numpy_dtype(dtype)).tiny)
