"""Reduce a model for which a tool is wrong: drop nodes and simplify constants.

A candidate is a model that onnx.checker and onnxruntime accept, and for which the judge says
*wrong* of the same tool.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, helper, numpy_helper

Fails = Callable[[ModelProto], bool]


def reduce_model(model: ModelProto, fails: Fails, *, seconds: float = 120.0) -> ModelProto:
    """Return the smallest model found within `seconds` of which `fails` still holds."""
    end = time.monotonic() + seconds
    for smaller in (halves, structures, simpler_constants):
        progress = True
        while progress:
            progress = False
            for candidate in smaller(model):
                if time.monotonic() > end:
                    return model
                if is_sound(candidate) and fails(candidate):
                    model, progress = candidate, True
                    break
    return model


def is_sound(model: ModelProto) -> bool:
    """Return whether onnx.checker accepts a model with strict shape inference."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception:  # the checker and shape inference raise types of their own
        return False
    return True


def halves(model: ModelProto) -> Iterator[ModelProto]:
    """Yield models that end early, or begin late, by bisection: for large models."""
    count = len(model.graph.node)
    if count < 12:
        return
    types = value_types(model)
    for index in {count * i // 8 for i in range(1, 8)}:
        for name in model.graph.node[index].output:
            if name in types:
                yield with_output(model, types[name])
    for index in sorted({count * i // 8 for i in range(1, 8)}, reverse=True):
        for name in model.graph.node[index].output:
            if name in types:
                yield with_input(model, types[name])


def structures(model: ModelProto) -> Iterator[ModelProto]:
    """Yield models with an output, node or input less, or an interior value as output or input."""
    graph = model.graph
    types = value_types(model)
    for i in range(len(graph.output)):
        if len(graph.output) > 1:
            made = copy.deepcopy(model)
            del made.graph.output[i]
            yield pruned(made)
    outputs = {info.name for info in graph.output}
    for name, info in types.items():
        if name not in outputs:
            yield with_output(model, info)
    for name, info in reversed(types.items()):
        if name not in outputs:
            yield with_input(model, info)
    kinds = {**types, **{info.name: info for info in (*graph.input, *graph.output)}}
    for i, node in enumerate(graph.node):
        for name in filter(None, node.input):
            if (
                node.op_type != "Identity"
                and node.output
                and same_type(kinds.get(name), kinds.get(node.output[0]))
            ):
                yield bypassed(model, i, name)
    for i, node in enumerate(graph.node):
        for j, name in enumerate(node.input):
            if j >= 2 and name and j == len(node.input) - 1:
                made = copy.deepcopy(model)
                del made.graph.node[i].input[j]
                yield pruned(made)
        for j in range(len(node.attribute)):
            if not node.attribute[j].HasField("g"):
                made = copy.deepcopy(model)
                del made.graph.node[i].attribute[j]
                yield made


def simpler_constants(model: ModelProto) -> Iterator[ModelProto]:
    """Yield models with one more float initializer rounded, which is shorter to print."""
    for i, tensor in enumerate(model.graph.initializer):
        if tensor.data_type not in (
            onnx.TensorProto.FLOAT,
            onnx.TensorProto.FLOAT16,
            onnx.TensorProto.DOUBLE,
        ):
            continue
        array = numpy_helper.to_array(tensor)
        for digits in (0, 1):
            rounded = np.round(array, digits).astype(array.dtype)
            if digits == 0 and (rounded == 0).any() and (array != 0).all():
                continue
            if array.size and not np.array_equal(rounded, array):
                made = copy.deepcopy(model)
                made.graph.initializer[i].CopyFrom(numpy_helper.from_array(rounded, tensor.name))
                yield made
                break


def value_types(model: ModelProto) -> dict[str, onnx.ValueInfoProto]:
    """Return the types of the interior values of the main graph that onnx infers."""
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception:  # shape inference raises types of its own
        return {}
    made = {name for node in model.graph.node for name in node.output}
    infos = {info.name: info for info in inferred.graph.value_info if info.name in made}
    return {name: info for name, info in infos.items() if info.type.tensor_type.elem_type}


def same_type(first: onnx.ValueInfoProto | None, second: onnx.ValueInfoProto | None) -> bool:
    """Return whether two values have one element type, and shapes of one rank."""
    if first is None or second is None:
        return False
    a, b = first.type.tensor_type, second.type.tensor_type
    return a.elem_type == b.elem_type and len(a.shape.dim) == len(b.shape.dim)


def with_output(model: ModelProto, info: onnx.ValueInfoProto) -> ModelProto:
    """Return the model with an interior value as its only output."""
    made = copy.deepcopy(model)
    del made.graph.output[:]
    made.graph.output.append(info)
    return pruned(made)


def with_input(model: ModelProto, info: onnx.ValueInfoProto) -> ModelProto:
    """Return the model with an interior value as an input."""
    made = copy.deepcopy(model)
    for node in made.graph.node:
        node.output[:] = ["" if name == info.name else name for name in node.output]
    made.graph.input.append(info)
    return pruned(made)


def bypassed(model: ModelProto, index: int, name: str) -> ModelProto:
    """Return the model without a node, whose readers read `name` instead."""
    made = copy.deepcopy(model)
    gone = made.graph.node[index].output[0]
    if gone in {info.name for info in made.graph.output}:
        made.graph.node[index].CopyFrom(helper.make_node("Identity", [name], [gone]))
    else:
        del made.graph.node[index]
        for node in made.graph.node:
            node.input[:] = [name if operand == gone else operand for operand in node.input]
    return pruned(made)


def reads(graph: GraphProto) -> set[str]:
    """Return every name that the nodes of a graph read, bodies included, and its outputs."""
    found = {info.name for info in graph.output}
    for node in graph.node:
        found.update(node.input)
        for attribute in node.attribute:
            for body in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                found |= reads(body)
    return found


def pruned(model: ModelProto) -> ModelProto:
    """Drop the nodes, initializers, inputs and types of the main graph that nothing reads."""
    graph = model.graph
    while True:
        wanted = reads(graph)
        kept = [node for node in graph.node if not wanted.isdisjoint(filter(None, node.output))]
        if len(kept) == len(graph.node):
            break
        del graph.node[:]
        graph.node.extend(kept)
    del graph.value_info[:]
    for repeated in (graph.initializer, graph.input):
        kept_items = [item for item in repeated if item.name in wanted]
        del repeated[:]  # type: ignore[attr-defined]
        repeated.extend(kept_items)  # type: ignore[attr-defined]
    return model
