"""Resize and Upsample whose extents runtimes and onnx's shape inference may round differently.

An extent is floor(extent of the data * scale). Runtimes multiply in float32, onnx without rounding: three times the
float32 next to 5/3 is 5 for the one, and 4 for the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from ...codec.protos import AttributeProto, GraphProto, NodeProto, TensorProto
from ...codec.tensors import OnnxTensor

RESIZERS = ("Resize", "Upsample")
MAX_FACTOR = 16
"""A product of a smaller odd number, a power of two and an extent of up to 2**20 is exact in float32."""


def hide_rounding(graph: GraphProto, domain: str, outer: Mapping[str, bool] | None = None) -> None:
    """Move each Resize and Upsample whose constant scales may be rounded differently to `domain`.

    `outer` says of constants outside whether they have such a scale.
    """
    rounds = {**(outer or {}), **dict(_constants(graph))}
    for node in graph.node:
        if node.op_type in RESIZERS and not node.domain and _may_round(node, rounds):
            node.domain = domain
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                hide_rounding(attribute.g, domain, rounds)


def _may_round(node: NodeProto, rounds: Mapping[str, bool]) -> bool:
    given = (number for item in node.attribute if "scale" in item.name for number in (*item.floats, item.f))
    return any(rounds.get(name, False) for name in node.input[1:3]) or any(map(_is_rounded, given))


def _constants(graph: GraphProto) -> Iterator[tuple[str, bool]]:
    """Yield what is asked of the constants that the graph gives a Resize or Upsample for scales."""
    read = {name for node in graph.node if node.op_type in RESIZERS for name in node.input[1:3]}
    if not read and not any(item.type == AttributeProto.GRAPH for node in graph.node for item in node.attribute):
        return
    for tensor in graph.initializer:
        yield tensor.name, _has_rounded(tensor)
    for node in graph.node:
        if node.op_type == "Constant" and not node.domain and node.output:
            yield (
                node.output[0],
                any(_has_rounded(item.t) or any(map(_is_rounded, item.floats)) for item in node.attribute),
            )


def _has_rounded(tensor: TensorProto) -> bool:
    """Return whether a tensor of scales has one that may be rounded; there is one for each axis."""
    if tensor.data_type != TensorProto.FLOAT or len(tensor.dims) != 1 or not 0 < tensor.dims[0] <= 64:
        return False
    if not tensor.raw_data and not tensor.float_data:  # left in a file, where inference does not see it
        return False
    try:
        scales = OnnxTensor(tensor, Path()).numpy()
    except ValueError:  # the elements do not fit the shape
        return True
    return any(map(_is_rounded, scales.tolist()))


def _is_rounded(scale: float) -> bool:
    """Return whether the product of an extent and `scale` may be inexact in float32."""
    if scale != scale or scale in (float("inf"), float("-inf")):
        return True
    numerator = abs(scale.as_integer_ratio()[0])
    return numerator // (numerator & -numerator or 1) >= MAX_FACTOR
