"""Make a model smaller as long as a predicate holds of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import onnx
from graphs import is_valid, unread
from onnx import ModelProto


def shrink(model: ModelProto, fails: Callable[[ModelProto], bool], limit: int = 400) -> ModelProto:
    """The smallest model found, in at most `limit` trials, of which `fails` still holds."""
    trials = 0
    progress = True
    while progress and trials < limit:
        progress = False
        for candidate in _smaller(model):
            trials += 1
            if is_valid(candidate) is None and fails(candidate):
                model, progress = candidate, True
                break
            if trials >= limit:
                break
    return model


def _smaller(model: ModelProto) -> Iterator[ModelProto]:
    """Models with one output or node less, or an interior value as the only output."""
    for i in range(len(model.graph.output)):
        if len(model.graph.output) > 1:
            yield _pruned(model, lambda graph, i=i: graph.output.pop(i))  # type: ignore[misc]
    typed = {info.name: info for info in onnx.shape_inference.infer_shapes(model).graph.value_info}
    if len(model.graph.output) == 1:
        for name, info in typed.items():

            def only(graph: onnx.GraphProto, info: onnx.ValueInfoProto = info) -> None:
                del graph.output[:]
                graph.output.append(info)

            yield _pruned(model, only, value=name)
    for i, node in enumerate(model.graph.node):
        for name in filter(None, node.input):

            def bypass(graph: onnx.GraphProto, i: int = i, name: str = name) -> None:
                gone = graph.node[i].output[0]
                if gone in [info.name for info in graph.output]:
                    graph.node[i].CopyFrom(onnx.helper.make_node("Identity", [name], [gone]))
                    return
                del graph.node[i]
                for reader in graph.node:
                    reader.input[:] = [
                        name if operand == gone else operand for operand in reader.input
                    ]

            if node.op_type != "Identity":
                yield _pruned(model, bypass)


def _pruned(
    model: ModelProto, edit: Callable[[onnx.GraphProto], object], value: str = ""
) -> ModelProto:
    """A copy after `edit`, without the nodes and initializers that nobody reads."""
    made = copy.deepcopy(model)
    graph = made.graph
    edit(graph)
    wanted = {info.name for info in graph.output}
    for i in reversed(range(len(graph.node))):
        node = graph.node[i]
        if wanted.isdisjoint(node.output):
            del graph.node[i]
            continue
        wanted.update(node.input)
        for attribute in node.attribute:
            wanted.update(name for inner in attribute.g.node for name in inner.input)
            wanted.update(info.name for info in attribute.g.output)
    dead = unread(made)
    kept = [tensor for tensor in graph.initializer if tensor.name not in dead]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    return made
