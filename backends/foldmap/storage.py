"""The field in which a TensorProto keeps its elements, and elements put back into it."""

from __future__ import annotations

import numpy as np

from ...frontends.onnx.codec.protos import TensorProto
from ...frontends.onnx.codec.wire_format import field_header

TYPED_FIELDS = ("float_data", "double_data", "int32_data", "int64_data", "uint64_data")
"""The fields of numbers. Strings have no raw bytes, so that they never leave their message."""

_FLOAT_FIELDS = {"float_data": 4, "double_data": 10}
"""Numbers of the fields whose packed form is the raw data."""

_WIDTHS: dict[int, str] = {
    TensorProto.INT32: "<i4",
    TensorProto.INT16: "<i2",
    TensorProto.INT8: "<i1",
    TensorProto.INT64: "<i8",
}
_WIDTHS |= {TensorProto.UINT64: "<u8", TensorProto.UINT32: "<u4"}
_WIDTHS |= dict.fromkeys((TensorProto.UINT16, TensorProto.FLOAT16, TensorProto.BFLOAT16), "<u2")
"""Integers in the raw data, by element type; bytes for all other types."""


def typed_field(tensor: TensorProto) -> str | None:
    """Return the field of numbers that has elements, None if all are empty."""
    return next((name for name in TYPED_FIELDS if len(getattr(tensor, name))), None)


def put_elements(tensor: TensorProto, field: str, raw: bytes) -> None:
    """Write raw data into a field of a tensor without elements.

    Raises ValueError if it does not fit.
    """
    if field == "raw_data":
        tensor.raw_data = raw
    elif field in _FLOAT_FIELDS:  # as bytes: a float of Python would not keep all bits of a NaN
        tensor.MergeFromString(field_header(_FLOAT_FIELDS[field], len(raw)) + raw)
    elif field in TYPED_FIELDS:
        getattr(tensor, field).extend(
            np.frombuffer(raw, _WIDTHS.get(tensor.data_type, "<u1")).tolist()
        )
    else:
        raise ValueError(f"{field!r} is not a field of a tensor")


def is_restored(tensor: TensorProto, field: str, raw: bytes) -> bool:
    """Return whether `put_elements` gives a tensor back, bit for bit."""
    copy = TensorProto()
    copy.CopyFrom(tensor)
    copy.ClearField(field)
    put_elements(copy, field, raw)
    return copy.SerializeToString(deterministic=True) == tensor.SerializeToString(
        deterministic=True
    )
