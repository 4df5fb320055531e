"""The types that a model declares, and those that onnx or its schemas know, of the values of a
graph.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...ir.types import DTYPES, UNKNOWN, Shape, TensorType, Type, without_shapes
from .codec import onnx_parts
from .codec.onnx_types import import_type
from .codec.protos import GraphProto, ValueInfoProto

ML_DOMAIN = "ai.onnx.ml"
"""The domain whose operators often have results of one type, which onnx's inference
does not tell.
"""

ELEMENTWISE = ("Binarizer", "Normalizer", "Scaler")
"""Operators of ML_DOMAIN whose result has the shape of their data."""


def value_types(
    proto: GraphProto, inferred: GraphProto | None, *, is_main: bool
) -> dict[str, Type]:
    """Return types by value name: inferred ones, and of the others the element types that are
    declared.

    The declarations of the inputs of the main graph hold as they are.
    """
    facts: list[ValueInfoProto] = []
    if inferred is not None:
        facts += (*inferred.value_info, *inferred.output, *inferred.input)
    if is_main:
        facts += proto.input
    types = {info.name: import_type(info.type) for info in facts if info.HasField("type")}
    for info in (*proto.value_info, *proto.output, *proto.input):
        if info.name not in types and info.HasField("type"):
            types[info.name] = without_shapes(import_type(info.type))
    return types


def with_schema_types(
    outputs: Sequence[tuple[str, Type]], op_type: str, domain: str, opset: int, data: Type
) -> list[tuple[str, Type]]:
    """Return the outputs of a node by name, unknown types replaced where the operator's schema
    admits one only.

    `data` is the type of the first operand, of which ELEMENTWISE operators keep the shape: onnx
    infers none for them.
    """
    shape = data.shape if op_type in ELEMENTWISE and isinstance(data, TensorType) else None
    if (
        any(type_ is UNKNOWN for _, type_ in outputs)
        and opset > 0
        and onnx_parts.has_schema(op_type, opset, domain)
    ):
        formal = onnx_parts.get_schema(op_type, opset, domain).outputs
        return [
            (
                name,
                _only_type(formal[i].types, shape)
                if type_ is UNKNOWN and i < len(formal)
                else type_,
            )
            for i, (name, type_) in enumerate(outputs)
        ]
    return list(outputs)


def _only_type(names: Collection[str], shape: Shape) -> Type:
    return TensorType(DTYPES["f32"], shape) if set(names) == {"tensor(float)"} else UNKNOWN
