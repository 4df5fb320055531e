"""Element types and value types, from ONNX to the IR and back."""

from __future__ import annotations

from collections.abc import Iterable

from ....ir.types import (
    DTYPES,
    UNKNOWN,
    Dim,
    DType,
    MapType,
    OpaqueType,
    OptionalType,
    SequenceType,
    Shape,
    SparseTensorType,
    TensorType,
    Type,
)
from .protos import GraphProto, TensorProto, TypeProto, ValueInfoProto

_ONNX_NAMES = {
    "f32": "FLOAT",
    "u8": "UINT8",
    "i8": "INT8",
    "u16": "UINT16",
    "i16": "INT16",
    "i32": "INT32",
    "i64": "INT64",
    "str": "STRING",
    "bool": "BOOL",
    "f16": "FLOAT16",
    "f64": "DOUBLE",
    "u32": "UINT32",
    "u64": "UINT64",
    "c64": "COMPLEX64",
    "c128": "COMPLEX128",
    "bf16": "BFLOAT16",
    "f8e4m3fn": "FLOAT8E4M3FN",
    "f8e4m3fnuz": "FLOAT8E4M3FNUZ",
    "f8e5m2": "FLOAT8E5M2",
    "f8e5m2fnuz": "FLOAT8E5M2FNUZ",
    "u4": "UINT4",
    "i4": "INT4",
    "f4e2m1": "FLOAT4E2M1",
    "f8e8m0": "FLOAT8E8M0",
    "u2": "UINT2",
    "i2": "INT2",
    "f6e2m3": "FLOAT6E2M3",
    "f6e3m2": "FLOAT6E3M2",
}

_KNOWN = dict(TensorProto.DataType.items())
TO_ONNX: dict[DType, int] = {
    DTYPES[name]: _KNOWN[onnx] for name, onnx in _ONNX_NAMES.items() if onnx in _KNOWN
}
FROM_ONNX: dict[int, DType] = {number: dtype for dtype, number in TO_ONNX.items()}

GENERATED_SYMBOL = "unk__"
"""The prefix of the symbols that onnx's shape inference generates for unknown extents."""

UNNAMED = ("", "?", "*")
"""What exporters write for any extent that they do not know: it is the same in no two places."""


def import_dtype(number: int) -> DType:
    """Return the element type of an ONNX number; an unknown one is named `onnx` and the number."""
    return FROM_ONNX.get(number) or DType(f"onnx{number}", 0, "unknown")


def export_dtype(dtype: DType) -> int:
    """Return the ONNX number of an element type."""
    number = TO_ONNX.get(dtype)
    return int(dtype.name.removeprefix("onnx")) if number is None else number


def import_type(proto: TypeProto, *, is_given: bool = False) -> Type:
    """Return the IR type of an ONNX type.

    Parts that are missing, or that irc does not know, are unknown. So are symbols that onnx's shape
    inference generates, but in a tensor that `is_given` to the model: tf2onnx names its extents so.
    """
    kind = proto.WhichOneof("value")
    if kind == "tensor_type":
        tensor = proto.tensor_type
        return TensorType(_element(tensor.elem_type), _import_shape(tensor, is_given=is_given))
    if kind == "sequence_type":
        return SequenceType(import_type(proto.sequence_type.elem_type))
    if kind == "optional_type":
        return OptionalType(import_type(proto.optional_type.elem_type))
    if kind == "map_type":
        return MapType(_element(proto.map_type.key_type), import_type(proto.map_type.value_type))
    if kind == "sparse_tensor_type":
        sparse = proto.sparse_tensor_type
        return SparseTensorType(_element(sparse.elem_type), _import_shape(sparse))
    if kind == "opaque_type":
        return OpaqueType(proto.opaque_type.domain, proto.opaque_type.name)
    return UNKNOWN


def _element(number: int) -> DType | None:
    return import_dtype(number) if number else None


def _import_shape(
    proto: TypeProto.Tensor | TypeProto.SparseTensor, *, is_given: bool = False
) -> Shape:
    if not proto.HasField("shape"):
        return None
    return tuple([_import_dim(dim, is_given=is_given) for dim in proto.shape.dim[:]])


def _import_dim(dim: object, *, is_given: bool) -> Dim:
    kind = dim.WhichOneof("value")  # type: ignore[attr-defined]
    if kind == "dim_value":
        value: int = dim.dim_value  # type: ignore[attr-defined]
        return value if value >= 0 else None
    if kind == "dim_param":
        symbol: str = dim.dim_param  # type: ignore[attr-defined]
        if not isinstance(symbol, str):  # protobuf gives bytes if a string is not UTF-8
            return None
        is_generated = symbol.startswith(GENERATED_SYMBOL) and not is_given
        return None if symbol in UNNAMED or is_generated else symbol
    return None


def export_type(type_: Type) -> TypeProto:
    """Return the ONNX type of an IR type."""
    proto = TypeProto()
    match type_:
        case TensorType(dtype, shape):
            _export_tensor(proto.tensor_type, dtype, shape)
        case SparseTensorType(dtype, shape):
            _export_tensor(proto.sparse_tensor_type, dtype, shape)
        case SequenceType(element):
            proto.sequence_type.elem_type.CopyFrom(export_type(element))
        case OptionalType(element):
            proto.optional_type.elem_type.CopyFrom(export_type(element))
        case MapType(key, value):
            proto.map_type.key_type = 0 if key is None else export_dtype(key)
            proto.map_type.value_type.CopyFrom(export_type(value))
        case OpaqueType(domain, name):
            proto.opaque_type.domain, proto.opaque_type.name = domain, name
    return proto


def _export_tensor(
    proto: TypeProto.Tensor | TypeProto.SparseTensor, dtype: DType | None, shape: Shape
) -> None:
    proto.elem_type = 0 if dtype is None else export_dtype(dtype)
    if shape is None:
        return
    proto.shape.SetInParent()
    for extent in shape:
        dim = proto.shape.dim.add()
        if isinstance(extent, int):
            dim.dim_value = extent
        elif isinstance(extent, str):
            dim.dim_param = extent


def value_info(name: str, type_: Type) -> ValueInfoProto:
    """Return a ValueInfoProto of `name` and `type_`."""
    proto = ValueInfoProto(name=name)
    if type_ != UNKNOWN:
        proto.type.CopyFrom(export_type(type_))
    return proto


def declare(graph: GraphProto, infos: Iterable[ValueInfoProto]) -> None:
    """Declare the types of values of `graph`, also in place of those that it declares."""
    declared = {info.name: info for info in (*graph.value_info, *graph.output)}
    for info in infos:
        target = declared.get(info.name)
        (graph.value_info.add() if target is None else target).CopyFrom(info)
