"""Types of the values of a graph: declared, inferred by onnx, or the only ones of a schema."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...ir.types import DTYPES, UNKNOWN, Shape, TensorType, Type, without_shapes
from .codec import onnx_parts
from .codec.onnx_types import import_type
from .codec.protos import GraphProto, ValueInfoProto

ML_DOMAIN = "ai.onnx.ml"
"""The domain with operators whose results have one type, which onnx's inference does not tell."""

ELEMENTWISE = ("Binarizer", "Normalizer", "Scaler")
"""Operators of ML_DOMAIN whose result has the shape of their data."""


def value_types(
    proto: GraphProto, inferred: GraphProto | None, *, is_main: bool
) -> dict[str, Type]:
    """Return types by value name: inferred ones, or else declared element types.

    The declarations of the inputs of the main graph hold as they are.
    """
    facts: list[ValueInfoProto] = []
    if inferred is not None:
        facts += (*inferred.value_info, *inferred.output, *inferred.input)
    types = {info.name: import_type(info.type) for info in facts if info.HasField("type")}
    if is_main:
        given = (info for info in proto.input if info.HasField("type"))
        types |= {info.name: import_type(info.type, is_given=True) for info in given}
    for info in (*proto.value_info, *proto.output, *proto.input):
        if info.name not in types and info.HasField("type"):
            types[info.name] = without_shapes(import_type(info.type))
    return types


def with_schema_types(
    outputs: Sequence[tuple[str, Type]], op_type: str, domain: str, opset: int, data: Type
) -> list[tuple[str, Type]]:
    """Return the outputs of a node by name, with types that the operator's schema determines.

    A type is determined if it is unknown, and the schema admits one only. `data` is the type of the
    first operand, of which ELEMENTWISE operators keep the shape: onnx infers none for them.
    """
    found = list(outputs)
    if all(type_ is not UNKNOWN for _, type_ in outputs):
        return found
    if opset <= 0 or not onnx_parts.has_schema(op_type, opset, domain):
        return found
    shape = data.shape if op_type in ELEMENTWISE and isinstance(data, TensorType) else None
    formal = onnx_parts.get_schema(op_type, opset, domain).outputs
    for i, ((name, type_), parameter) in enumerate(zip(outputs, formal, strict=False)):
        if type_ is UNKNOWN:
            found[i] = (name, _only_type(parameter.types, shape))
    return found


def _only_type(names: Collection[str], shape: Shape) -> Type:
    return TensorType(DTYPES["f32"], shape) if set(names) == {"tensor(float)"} else UNKNOWN
