"""Whether a tensor holds what its shape says. Nothing is decoded: O(1) for each tensor."""

from __future__ import annotations

from math import prod

from onnx import TensorProto

from .dtypes import import_dtype

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


def misfit(proto: TensorProto) -> str | None:
    """How the elements of a tensor disagree with its shape, None where they do not or stand in another file.

    What is said completes "the tensor ...".
    """
    if any(dim < 0 for dim in proto.dims):
        return f"has the shape {list(proto.dims)}"
    count, dtype = prod(proto.dims), import_dtype(proto.data_type)
    if proto.data_type == TensorProto.STRING:
        held = len(proto.string_data)
        return None if held == count else f"holds {held} strings for {count} elements"
    if dtype.kind == "unknown":
        return f"has the unknown element type {proto.data_type}"
    if proto.data_location == TensorProto.EXTERNAL:
        return None
    if proto.HasField("raw_data"):
        held, wanted = len(proto.raw_data), (count * dtype.bits + 7) // 8
        return None if held == wanted else f"holds {held} bytes for {wanted}"
    held = len(getattr(proto, _FIELD_OF.get(proto.data_type, "int32_data")))
    fitting = {2 * count if dtype.kind == "complex" else count}
    if dtype.bits < 8:
        fitting.add((count * dtype.bits + 7) // 8)
    return None if held in fitting else f"holds {held} numbers for {max(fitting)}"
