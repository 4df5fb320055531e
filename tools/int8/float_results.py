"""Tensors of a quantized model that stay float: rounding them costs precision for no gain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from onnx import ModelProto

from ..verify.onnx_graph import makers_of, reads
from .integer_limits import remove_unread


def keep_results_float(quantized: ModelProto, model: ModelProto, rounded: Collection[str]) -> None:
    """Take QuantizeLinear and DequantizeLinear off the main graph's results, in place. O(nodes).

    `model` is the float model, with the names of the nodes. A result stays rounded if it is in
    `rounded`, if an operator reads it, or if the operator of the float model that computes it is
    gone: the ends of the grid are then the bounds of an activation.
    """
    graph = quantized.graph
    makers = makers_of(graph)
    before = {name: node.name for node in model.graph.node for name in node.output}
    readers = Counter(name for node in graph.node for name in reads(node))
    results = Counter(info.name for info in graph.output)
    integers: set[str] = set()
    for result in results:
        back = makers.get(result)
        if back is None or back.op_type != "DequantizeLinear" or result in rounded:
            continue
        rounding = makers.get(back.input[0])
        if rounding is None or rounding.op_type != "QuantizeLinear":
            continue
        exact = rounding.input[0]
        # Nobody else may read the rounded value, or the exact one, which gets another name.
        alone = readers[result] == 0 and readers[back.input[0]] == readers[exact] == 1
        if not alone or exact in results:
            continue
        maker = makers.get(exact)
        if maker is None or maker.name != before.get(result):
            continue
        maker.output[list(maker.output).index(exact)] = result
        integers.add(back.input[0])
    ends = [(*node.input[:1], *node.output) for node in graph.node]
    gone = [i for i, names in enumerate(ends) if not integers.isdisjoint(names)]
    grids = {name for i in gone for name in graph.node[i].input[1:]}
    for i in reversed(gone):
        del graph.node[i]
    remove_unread(quantized, grids)


def keep_data_float(quantized: ModelProto, model: ModelProto, names: Collection[str]) -> None:
    """Let nodes that are not quantized read their data before any rounding, in place. O(nodes).

    `model` is the float model, with the names of the nodes. Data whose rounding does the work of an
    activation stay rounded: what is rounded is another tensor then.
    """
    graph = quantized.graph
    makers = makers_of(graph)
    data = {node.name: node.input[0] for node in model.graph.node if node.name in names}
    found: set[str] = set()
    for node in graph.node:
        back = makers.get(node.input[0]) if node.name in data else None
        if back is None or back.op_type != "DequantizeLinear":
            continue
        rounding = makers.get(back.input[0])
        if rounding is not None and rounding.input[0] == data[node.name]:
            node.input[0] = data[node.name]
            found |= {*back.output, *rounding.output}
    readers = Counter(name for node in graph.node for name in reads(node))
    readers.update(info.name for info in graph.output)
    for i in reversed(range(len(graph.node))):  # a DequantizeLinear goes before what it reads
        node = graph.node[i]
        if found.issuperset(node.output) and not any(readers[name] for name in node.output):
            readers.subtract(reads(node))
            del graph.node[i]
    remove_unread(quantized, {tensor.name for tensor in graph.initializer})
