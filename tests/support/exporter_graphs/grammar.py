"""Whole models: an interface, a stem, blocks, and heads."""

from __future__ import annotations

from random import Random

import onnx
from onnx import ModelProto, TensorProto, helper

from . import quantized, sequence, vision
from .activations import activate
from .control import WRAPPERS, Block, functions_of
from .writer import OPSETS, STYLES, Dims, Shared, Value, Writer

NEWEST_IR = {
    9: 4,
    10: 5,
    11: 6,
    12: 7,
    13: 7,
    14: 7,
    15: 8,
    16: 8,
    17: 8,
    18: 8,
    19: 9,
    20: 9,
    21: 10,
}
"""The IR version that belongs to an opset."""

BATCHES: tuple[int | str, ...] = (1, 2, "N", "N")
SIZES: tuple[Dims, ...] = ((8, 8), (8, 8), (7, 9), ("H", "W"), ("H", 8))
TIMES: tuple[int | str, ...] = (4, 5, "T", "T")


def export(seed: int) -> ModelProto:
    """The random model of that seed, in float32."""
    random = Random(seed)
    w = Writer(Shared(random, random.choice(OPSETS), random.choice(STYLES)))
    is_quantized = w.opset >= 10 and w.one_in(5)
    heads = (
        images(w, is_quantized=is_quantized)
        if w.one_in(3) or w.one_in(2)
        else texts(w, is_quantized=is_quantized)
    )
    return finished(w, heads)


def images(w: Writer, *, is_quantized: bool) -> list[Value]:
    """A network on images; its results are classes, boxes, maps, or tokens."""
    dims: Dims = (w.pick(BATCHES), 3, *w.pick(SIZES))
    x = w.input("images", dims)
    if w.style == "tf" and w.one_in(2):
        w.inputs.pop()
        x = w.input("images:0", (dims[0], *dims[2:], 3))
        x = w.transpose(x, 0, 3, 1, 2)
    if w.one_in(3):
        x = vision.preprocessed(w, x)
    x = vision.conv_block(w, x, 4, w.upto(1, 2))
    blocks: tuple[Block, ...] = vision.BLOCKS
    kept = [x]
    for _ in range(w.upto(1, 5)):
        x = step(w, x, blocks, quantized.IMAGE_BLOCKS if is_quantized else ())
        if vision.channels(x) > 16:
            x = vision.conv_block(w, x, 4)
        kept.append(x)
    heads: list[Block] = [
        vision.classifier,
        vision.classifier,
        vision.detection,
        vision.conv_block,
        activate,
    ]
    results = [w.pick(heads)(w, x)]
    if w.one_in(3):
        results.append(w.pick(heads)(w, w.pick(kept)))
    if w.one_in(4):
        results[0] = token_head(w, x)
    return results


def token_head(w: Writer, x: Value) -> Value:
    """A transformer block on the cells of a map."""
    x = vision.tokens(w, x)
    for _ in range(w.upto(1, 2)):
        x = sequence.residual_norm(w, x)
    return vision.linear(w, sequence.last_step(w, x), 3)


def texts(w: Writer, *, is_quantized: bool) -> list[Value]:
    """A network on sequences of ids or of features."""
    batch, time = w.pick(BATCHES), w.pick(TIMES)
    if w.one_in(2):
        x = sequence.embedded(w, w.input("input_ids", (batch, time), TensorProto.INT64))
    else:
        x = w.input("features", (batch, time, w.pick([4, 8])))
    for _ in range(w.upto(1, 4)):
        x = step(w, x, sequence.BLOCKS, quantized.SEQUENCE_BLOCKS if is_quantized else ())
    if w.one_in(3):
        return [x]
    made = vision.linear(w, sequence.last_step(w, x), w.pick([2, 3]))
    return [w.softmax(made) if w.one_in(3) else made]


def step(w: Writer, x: Value, blocks: tuple[Block, ...], on_integers: tuple[Block, ...]) -> Value:
    """One more block: plain, quantized, or in control flow."""
    if on_integers and not w.one_in(3):
        return w.pick(on_integers)(w, x)
    block = w.pick(blocks)
    if w.one_in(8):
        return w.pick(WRAPPERS)(w, x, block)
    return block(w, x)


def finished(w: Writer, heads: list[Value]) -> ModelProto:
    """The model with these results, each named by the last operator or an Identity."""
    results = []
    for i, head in enumerate(heads):
        name = f"output{i or ''}"
        w.nodes.append(helper.make_node("Identity", [head.name], [name]))
        is_result = any(head.name in node.output for node in w.nodes)
        is_read = any(head.name in node.input for node in w.nodes[:-1])
        if is_result and not is_read and not w.one_in(4):
            w.nodes.pop()
            rename(w, head.name, name)
        results.append(Value(name, head.dims, head.dtype))
    if w.one_in(6):
        w.nodes.append(helper.make_node("Relu", [results[-1].name], ["dead"]))
    graph = w.graph("main_graph", results, declare=lambda value: not w.one_in(5))
    functions = functions_of(w)
    ir = max(NEWEST_IR[w.opset], 8 if functions else 4)
    if w.style == "listed":
        ir = 3 if w.one_in(2) and not functions else ir
        w.inputs = list(graph.input)
        some = [
            tensor
            for tensor in graph.initializer
            if ir == 3 or (may_be_listed(tensor, w) and not w.one_in(3))
        ]
        graph.input.extend(
            helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in some
        )
    elif w.one_in(8):
        ir = max(ir, 8)
    imports = [
        helper.make_opsetid("", w.opset),
        *([helper.make_opsetid("local", 1)] if functions else []),
    ]
    model = helper.make_model(graph, opset_imports=imports, ir_version=ir, functions=functions)
    model.producer_name = {"torch": "pytorch", "tf": "tf2onnx", "paddle": "PaddlePaddle"}.get(
        w.style, ""
    )
    if w.one_in(3):
        model.graph.value_info.extend(onnx.shape_inference.infer_shapes(model).graph.value_info)
    return model


def may_be_listed(tensor: TensorProto, w: Writer) -> bool:
    """Whether an initializer can be overridable: not the bounds of a Slice before a Resize."""
    return tensor.data_type != TensorProto.INT64 or "Resize" not in w.shared.operators


def rename(w: Writer, old: str, new: str) -> None:
    """Give the result of a node another name."""
    for node in w.nodes:
        node.output[:] = [new if name == old else name for name in node.output]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                rename_in(attribute.g, old, new)


def rename_in(graph: onnx.GraphProto, old: str, new: str) -> None:
    for node in graph.node:
        node.input[:] = [new if name == old else name for name in node.input]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                rename_in(attribute.g, old, new)
