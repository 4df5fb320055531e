"""Attributes, from ONNX to the IR and back.

The callers import and export the graphs in them, which are regions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ....ir.attributes import Attribute, AttributeRef, EmptyList, RegionRef, Scalar, SparseTensor
from ....ir.tensor import Tensor
from ....ir.types import Type
from .onnx_types import export_type, import_type
from .protos import AttributeProto, GraphProto, SparseTensorProto
from .tensors import OnnxTensor, tensor_proto

_KINDS = AttributeProto.AttributeType
_FIELDS = {
    _KINDS.FLOAT: "f",
    _KINDS.INT: "i",
    _KINDS.STRING: "s",
    _KINDS.TENSOR: "t",
    _KINDS.GRAPH: "g",
    _KINDS.SPARSE_TENSOR: "sparse_tensor",
    _KINDS.TYPE_PROTO: "tp",
    _KINDS.FLOATS: "floats",
    _KINDS.INTS: "ints",
    _KINDS.STRINGS: "strings",
    _KINDS.TENSORS: "tensors",
    _KINDS.GRAPHS: "graphs",
    _KINDS.SPARSE_TENSORS: "sparse_tensors",
    _KINDS.TYPE_PROTOS: "type_protos",
}
_KIND_OF_FIELD = {field: kind for kind, field in _FIELDS.items()}
_PLURAL = {
    "f": "floats",
    "i": "ints",
    "s": "strings",
    "t": "tensors",
    "g": "graphs",
    "sparse_tensor": "sparse_tensors",
    "tp": "type_protos",
}
_SINGULAR = {plural: single for single, plural in _PLURAL.items()}

NUMERIC_KINDS: frozenset[int] = frozenset((_KINDS.FLOAT, _KINDS.INT, _KINDS.FLOATS, _KINDS.INTS))
"""Kinds of attributes whose field is their value in the IR, too."""

ImportRegion = Callable[[GraphProto], RegionRef]


class UnknownAttribute(Exception):
    """An attribute of a kind that the installed onnx package does not know."""


def import_attribute(proto: AttributeProto, base_dir: Path, region: ImportRegion) -> Attribute:
    """Return the value of an attribute; `region` imports a graph and returns a reference to it.

    Raises UnknownAttribute if the attribute has no representation in the IR.
    """
    if proto.ref_attr_name:
        return AttributeRef(proto.ref_attr_name, _KINDS.Name(proto.type))
    field = value_field(proto)
    if field is None:
        raise UnknownAttribute(proto.name)
    if proto.type in NUMERIC_KINDS:
        found = getattr(proto, field)
        return found if field in ("f", "i") else tuple(found) or EmptyList(field)
    if field not in _SINGULAR:
        return _import_scalar(field, getattr(proto, field), base_dir, region)
    items = tuple(
        [_import_scalar(_SINGULAR[field], item, base_dir, region) for item in getattr(proto, field)]
    )
    return items if items else EmptyList(field)


def value_field(proto: AttributeProto) -> str | None:
    """Return the field with the value of an attribute, None if there is not exactly one."""
    return _FIELDS.get(proto.type) or _set_field(proto)


def _set_field(proto: AttributeProto) -> str | None:
    """Return the one value field that is set: files of IR version 1 and 2 do not state the kind."""
    present = [field.name for field, _ in proto.ListFields() if field.name in _KIND_OF_FIELD]
    return present[0] if len(present) == 1 else None


def _import_scalar(field: str, value: object, base_dir: Path, region: ImportRegion) -> Scalar:
    match field:
        case "f" | "i":
            return value  # type: ignore[return-value]
        case "s":
            assert isinstance(value, bytes)
            return decode_text(value)
        case "t":
            return OnnxTensor(value, base_dir)  # type: ignore[arg-type]
        case "g":
            return region(value)  # type: ignore[arg-type]
        case "sparse_tensor":
            return import_sparse(value, base_dir)  # type: ignore[arg-type]
        case _:
            return import_type(value)  # type: ignore[arg-type]


def import_sparse(proto: SparseTensorProto, base_dir: Path) -> SparseTensor:
    """Return a sparse tensor that refers to the message."""
    values, indices = OnnxTensor(proto.values, base_dir), OnnxTensor(proto.indices, base_dir)
    return SparseTensor(values, indices, tuple(proto.dims))


def decode_text(data: bytes) -> str | bytes:
    """Return `data` as text if it is UTF-8, else as it is."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def export_sparse(sparse: SparseTensor, name: str = "") -> SparseTensorProto:
    """Return a SparseTensorProto of `sparse`; its values are named `name`."""
    proto = SparseTensorProto(dims=sparse.shape)
    proto.values.CopyFrom(tensor_proto(sparse.values, name))
    proto.indices.CopyFrom(tensor_proto(sparse.indices, _own_name(sparse.indices)))
    return proto


def export_attribute(name: str, value: Attribute, regions: Sequence[GraphProto]) -> AttributeProto:
    """Return the ONNX attribute of a value; `regions` are the exported regions of the node.

    Raises ValueError if ONNX cannot represent the value.
    """
    proto = AttributeProto(name=name)
    if isinstance(value, AttributeRef):
        proto.ref_attr_name = value.name
        proto.type = AttributeProto.AttributeType.Value(value.kind)  # type: ignore[assignment]
        return proto
    if isinstance(value, EmptyList):
        if value.kind not in _KIND_OF_FIELD:
            raise ValueError(f"{value.kind} is not a kind of list")
        proto.type = _KIND_OF_FIELD[value.kind]
        return proto
    if not isinstance(value, tuple):
        field, item = _export_scalar(value, regions)
        proto.type = _KIND_OF_FIELD[field]
        if isinstance(item, int | float | bytes):
            setattr(proto, field, item)
        else:
            getattr(proto, field).CopyFrom(item)
        return proto
    exported = [_export_scalar(item, regions) for item in value]
    if not exported:
        raise ValueError(f"the attribute {name} is an empty list of unknown kind")
    field = _PLURAL[exported[0][0]]
    proto.type = _KIND_OF_FIELD[field]
    getattr(proto, field).extend(item for _, item in exported)
    return proto


def _export_scalar(value: Scalar, regions: Sequence[GraphProto]) -> tuple[str, object]:
    match value:
        case int():
            return "i", int(value)
        case float():
            return "f", value
        case str():
            return "s", value.encode()
        case bytes():
            return "s", value
        case Tensor():
            return "t", tensor_proto(value, _own_name(value))
        case SparseTensor():
            return "sparse_tensor", export_sparse(value)
        case Type():
            return "tp", export_type(value)
        case RegionRef():
            return "g", regions[value.index]
    raise ValueError(f"{type(value).__name__} is not an attribute value of ONNX")


def _own_name(tensor: Tensor) -> str:
    return tensor.proto.name if isinstance(tensor, OnnxTensor) else ""
