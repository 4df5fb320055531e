"""Slices that go backward to the greatest integer: onnx's shape inference and onnxruntime select different elements.

The specification asks for the least integer there. onnxruntime reads the greatest as the end of the axis in either
direction, so that it selects elements where onnx counts none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from pathlib import Path

from ...codec.protos import AttributeProto, GraphProto, NodeProto, TensorProto
from ...codec.tensors import OnnxTensor
from ...ir.ops.indexing import GREATEST

Integers = Mapping[str, Set[int]]
"""The integers in constants, by name."""


def hide_backward(graph: GraphProto, domain: str, outer: Integers | None = None) -> None:
    """Move each Slice that may go backward to the greatest integer to `domain`; `outer` are constants outside."""
    constants = {**(outer or {}), **dict(_integers(graph, set(_bounds(graph))))}
    for node in graph.node:
        if _may_go_backward(node, constants):
            node.domain = domain
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                hide_backward(attribute.g, domain, constants)


def _may_go_backward(node: NodeProto, constants: Integers) -> bool:
    if node.op_type != "Slice" or node.domain or len(node.input) < 5:
        return False
    ends, steps = constants.get(node.input[2], frozenset()), constants.get(node.input[4], frozenset())
    return not ends.isdisjoint(GREATEST) and min(steps, default=1) < 0


def _bounds(graph: GraphProto) -> Iterator[str]:
    """Yield the names of ends and steps of all Slices, also of those in bodies."""
    for node in graph.node:
        if node.op_type == "Slice":
            yield from node.input[2:5:2]
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from _bounds(attribute.g)


def _integers(graph: GraphProto, names: Set[str]) -> Iterator[tuple[str, Set[int]]]:
    for tensor in graph.initializer:
        if tensor.name in names:
            yield tensor.name, _elements(tensor)
    for node in graph.node:
        if node.op_type == "Constant" and not node.domain and node.output and node.output[0] in names:
            for attribute in node.attribute:
                yield node.output[0], {*attribute.ints, attribute.i, *_elements(attribute.t)}


def _elements(tensor: TensorProto) -> Set[int]:
    """Return the elements of a tensor of integers, none where they cannot be read."""
    if tensor.data_type not in (TensorProto.INT32, TensorProto.INT64):
        return frozenset()
    try:
        return set(OnnxTensor(tensor, Path()).numpy().ravel().tolist())
    except ValueError:  # they do not fit the shape
        return frozenset()
