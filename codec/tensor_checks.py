"""Whether a tensor holds what its shape says. Nothing is decoded: O(1) for each tensor."""

from __future__ import annotations

from ..ir.types import ELEMENT_COUNT_LIMIT, element_count
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
"""The typed field of an element type; all others use `int32_data`."""


def misfit(tensor: OnnxTensor) -> str | None:
    """How the elements of a tensor disagree with its shape, None where they do not or cannot be reached.

    What is said completes "the tensor ...".
    """
    proto, dtype, shape = tensor.proto, tensor.dtype, tensor.shape
    count = element_count(shape)
    if shape and (min(shape) < 0 or count == ELEMENT_COUNT_LIMIT):
        return f"has the shape {list(shape[:8])}"
    if dtype.kind == "string":
        held = len(proto.string_data)
        return None if held == count else f"holds {held} strings for {count} elements"
    if dtype.kind == "unknown":
        return f"has the unknown element type {proto.data_type}"
    wanted = (count * dtype.bits + 7) // 8
    if tensor.part is not None:
        held = tensor.part.nbytes
    elif proto.HasField("raw_data"):
        held = len(proto.raw_data)
    elif proto.data_location == TensorProto.EXTERNAL:
        return None
    else:
        return _misfit_numbers(proto, 2 * count if dtype.kind == "complex" else count, wanted, dtype.bits)
    return None if held == wanted else f"holds {held} bytes for {wanted}"


def _misfit_numbers(proto: TensorProto, count: int, packed: int, bits: int) -> str | None:
    """As `misfit`, of elements in a typed field: one by one, or those of fewer than 8 bits packed."""
    held = len(getattr(proto, _FIELD_OF.get(proto.data_type, "int32_data")))
    fits = held == count or (bits < 8 and held == packed)
    return None if fits else f"holds {held} numbers for {count}"
