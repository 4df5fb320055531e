"""The check that a tensor has as many elements as its shape says.

Nothing is decoded: O(1) for each tensor.
"""

from __future__ import annotations

from ....ir.types import ELEMENT_COUNT_LIMIT, element_count
from .protos import TensorProto
from .tensors import OnnxTensor

_FIELD_OF: dict[int, str] = {
    TensorProto.FLOAT: "float_data",
    TensorProto.COMPLEX64: "float_data",
    TensorProto.INT64: "int64_data",
    TensorProto.DOUBLE: "double_data",
    TensorProto.COMPLEX128: "double_data",
    TensorProto.UINT32: "uint64_data",
    TensorProto.UINT64: "uint64_data",
}
"""The typed field of an element type; other types use `int32_data`."""


def size_mismatch(tensor: OnnxTensor) -> str | None:
    """Return how the elements of a tensor disagree with its shape.

    The text ends a sentence that begins with "the tensor". The result is None if they agree, or
    cannot be reached.
    """
    proto, dtype, shape = tensor.proto, tensor.dtype, tensor.shape
    count = element_count(shape)
    if shape and (min(shape) < 0 or count == ELEMENT_COUNT_LIMIT):
        return f"has the shape {list(shape[:8])}, which no tensor can have"
    if dtype.kind == "string":
        found = len(proto.string_data)
        return None if found == count else f"has {found} strings, and its shape asks for {count}"
    if dtype.kind == "unknown":
        return f"has the unknown element type {proto.data_type}"
    wanted = (count * dtype.bits + 7) // 8
    if tensor.payload is not None:
        found = tensor.payload.nbytes
    elif proto.HasField("raw_data"):
        found = len(proto.raw_data)
    elif proto.data_location == TensorProto.EXTERNAL:
        return None
    else:
        return _count_mismatch(
            proto, 2 * count if dtype.kind == "complex" else count, wanted, dtype.bits
        )
    return (
        None if found == wanted else f"has {found} bytes, and its shape and type ask for {wanted}"
    )


def _count_mismatch(proto: TensorProto, count: int, packed: int, bits: int) -> str | None:
    """Return how a typed field disagrees with `count`.

    Elements of fewer than 8 bits may be packed into bytes.
    """
    found = len(getattr(proto, _FIELD_OF.get(proto.data_type, "int32_data")))
    fits = found == count or (bits < 8 and found == packed)
    return None if fits else f"has {found} numbers, and its shape asks for {count}"
