"""Which operators the quantizer may have: those of which enough is known, and why not the others.

Without data a range may be a guess. What rests on one is not given to the quantizer, whose scales
are fixed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from math import isfinite

import numpy as np
from onnx import ModelProto, NodeProto, numpy_helper

from ...backends.quantizers.onnxruntime import quantizable_types
from ...backends.quantizers.ranges import Activations, Range
from ...ir.types import F16, F32
from ...passes.data_free.value_ranges import Origin
from ...support.errors import UsageError, listed, nearest
from ..verify.onnx_graph import body_reads, constant_tensors, makers_of
from .coverage import GUESS, LAYERS, NO_RANGE, Reason
from .quantized_layers import FUSED
from .quantized_model import LISTED
from .removed_activations import limits_of

APART = 16.0
"""Ratio of the ranges of operands from which one scale is too coarse for the least."""
JOINING = ("Add", "Concat", "Max", "Min", "Sub", "Where")
"""Operators whose result has the numbers of several operands, or their sum."""
DECIDING = ("ArgMax", "LogSoftmax", "Sigmoid", "Softmax", "TopK")
"""Operators whose data are scores: a step of these is a factor or an order of the results."""
MOVING = ("Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose")
"""Operators that move elements of one tensor."""
CONVOLUTIONS = ("Conv", "ConvTranspose")
UPSAMPLING = ("ConvTranspose", "DepthToSpace", "Resize", "Upsample")

Reasons = dict[str, Reason]
"""Why operators stay float, by their names."""


def excluded(model: ModelProto, exclude: Collection[str]) -> Reasons:
    """Return the reason of the nodes that the user excludes.

    Raises UsageError for a name that no node has.
    """
    owners = {
        name: node.name for node in model.graph.node for name in (*node.output, node.name) if name
    }
    names = (exclude,) if isinstance(exclude, str) else exclude
    for name in names:
        if name not in owners:
            near = nearest(name, owners, cutoff=0.6)
            hint = "" if near is None else f"; the nearest is {near!r}"
            raise UsageError(
                "the main graph of the folded model has no operator of the"
                f" name or result {name!r}{hint}"
            )
    return {owners[name]: Reason("--exclude") for name in names}


def not_removable(model: ModelProto) -> Reasons:
    """Return the reason of Relus and Clips that would be removed though no range does their work.

    It gives their data their own range if no other node of the main graph reads these.
    """
    results, constants = {info.name for info in model.graph.output}, constant_tensors(model.graph)
    alone = Counter(name for node in model.graph.node for name in node.input)
    inner = {name for node in model.graph.node for name in body_reads(node)}
    found = {}
    for node in model.graph.node:
        if node.op_type not in FUSED or alone[node.input[0]] > 1:
            continue
        if node.input[0] in results | inner:
            noun = "the result" if node.input[0] in results else "the value"
            found[node.name] = Reason(
                f"onnxruntime would clip {noun} {node.input[0]!r} to its range"
            )
        elif limits_of(node, constants) is None:
            found[node.name] = Reason("its bounds are computed")
    return found


def other_types(model: ModelProto, known: Activations) -> Reasons:
    """Return the reason of the operators on numbers of types that onnxruntime does not quantize."""
    return {
        node.name: Reason(f"onnxruntime does not quantize {known.dtypes[name]}")
        for node in model.graph.node
        for name in (*node.input, *node.output)
        if known.dtypes.get(name, F32) not in (F16, F32)
    }


def check_inputs(model: ModelProto, known: Activations) -> None:
    """Raise UsageError if an input, on which a quantized tensor depends, has no range."""
    missing, types = set(known.missing), quantizable_types()
    inputs = [info.name for info in model.graph.input if info.name in missing]
    behind: dict[str, set[str]] = {name: {name} for name in inputs}
    needed: set[str] = set()
    for node in model.graph.node:
        names = {origin for name in node.input for origin in behind.get(name, ())}
        behind.update((name, names) for name in node.output if name in missing)
        if node.op_type in types and not missing.isdisjoint([*node.input, *node.output]):
            needed |= names
    if needed:
        lacking = listed((repr(name) for name in inputs if name in needed), LISTED)
        raise UsageError(
            f"nothing is known of the range of {lacking}: give --input-range NAME=LOW:HIGH"
            " (input_ranges= in Python), or --data with samples"
        )


def unknown(model: ModelProto, known: Activations) -> Reasons:
    """Return the reason of the nodes that would round a tensor of no range, or of a guessed one.

    A result that nothing reads is not rounded, nor are the data of a Relu or Clip of a known range.
    """
    missing, types = set(known.missing), quantizable_types()
    guesses = {name for name, each in known.known.items() if each.origin == Origin.GUESS.value}
    readers = Counter(
        name for node in model.graph.node for name in (*node.input, *body_reads(node))
    )
    results = {info.name for info in model.graph.output}
    guesses -= {name for name in results if not readers[name]}
    for node in reversed(model.graph.node):
        if node.op_type in FUSED and node.output[0] not in guesses | missing:
            cut = node.input[0]
            if readers[cut] == 1 and cut not in results:
                guesses.discard(cut)
    found: Reasons = {}
    for node in model.graph.node:
        if node.op_type not in types:
            continue
        names = (*node.output, *node.input)
        lacking = next((name for name in names if name in missing), None)
        guessed = next((name for name in names if name in guesses), None)
        if lacking is not None:
            found[node.name] = Reason(NO_RANGE, lacking)
        elif guessed is not None:
            found[node.name] = Reason(GUESS, guessed)
    return found


def islands(model: ModelProto, reasons: Reasons) -> Reasons:
    """Return the reason of operators that would be rounded though no layer near them is.

    They would only lose precision. Operators are near each other if they share a tensor and are
    all given to the quantizer.
    """
    types = quantizable_types()
    constants = set(constant_tensors(model.graph))
    free = [n for n in model.graph.node if n.op_type in types and n.name not in reasons]
    sharing: dict[str, list[NodeProto]] = {}
    for node in free:
        for name in {*node.input, *node.output} - constants - {""}:
            sharing.setdefault(name, []).append(node)
    near = [node for node in free if node.op_type in LAYERS and node.input[1] in constants]
    seen = {node.name for node in near}
    while near:
        node = near.pop()
        for name in (*node.input, *node.output):
            others = [each for each in sharing.pop(name, ()) if each.name not in seen]
            seen.update(each.name for each in others)
            near += others
    alone = Reason("no layer next to it is int8")
    return {node.name: alone for node in free if node.name not in seen}


def mixed_heads(model: ModelProto, ranges: Mapping[str, Range]) -> Reasons:
    """Return the reason of operators before results that join ranges far apart, and of later nodes.

    The operands would have one scale: next to boxes from 0 to 320, scores from 0 to 1 are 0, and so
    are the parts of a place that are added to places from 0 to 320.
    """
    found: Reasons = {}
    behind: set[str] = set()
    after = _after_layers(model)
    tensors = constant_tensors(model.graph)
    for node in model.graph.node:
        if node.name not in after:
            continue
        spans = [max(map(abs, ranges[name])) for name in node.input if name in ranges]
        if spans and node.op_type != "Concat":
            given = [tensors[name] for name in node.input if name in tensors]
            spans += [float(np.abs(numpy_helper.to_array(each)).max(initial=0)) for each in given]
        # A span of 0 is a constant zero, which every scale represents.
        spans = [span for span in spans if span > 0 and isfinite(span)]
        ratio = max(spans) / min(spans) if spans else 1.0
        if node.op_type in JOINING and ratio > APART:
            found[node.name] = Reason(
                f"the ranges of its operands are {min(spans):.3g} to {max(spans):.3g}, {ratio:.0f}"
                " times apart"
            )
        elif not behind.isdisjoint(node.input):
            found[node.name] = Reason("its data are joined from ranges far apart")
        if node.name in found:
            behind.update(node.output)
    return found


def deciding_heads(model: ModelProto) -> Reasons:
    """Return the reason of the Softmaxes and the like before results, and of what leads to them.

    No layer follows them, so that rounding their data gains nothing. What leads to them only moves
    elements: a pool averages the noise of its data.
    """
    after = _after_layers(model)
    found: Reasons = {}
    scores: set[str] = set()
    for node in reversed(model.graph.node):
        if node.name not in after:
            continue
        leads = node.op_type in MOVING and not scores.isdisjoint(node.output)
        if node.op_type in DECIDING or leads:
            found[node.name] = Reason("it decides a result, or what leads to it")
            scores.add(node.input[0])
    return found


def _after_layers(model: ModelProto) -> set[str]:
    """Return the names of the nodes that only lead to results, and to no layer."""
    leads: set[str] = set()
    found: set[str] = set()
    for node in reversed(model.graph.node):
        if node.op_type in LAYERS or not leads.isdisjoint(node.output):
            leads.update([*node.input, *body_reads(node)])
        else:
            found.add(node.name)
    return found


def maps(model: ModelProto, known: Activations) -> Iterator[str]:
    """Yield the results that have numbers for places: of a convolution, over more than one place.

    Rare objects or text in them are far beyond the statistics of all places.
    """
    makers = makers_of(model.graph)
    for info in model.graph.output:
        if any(_is_map(layer, known) for layer in _last_layers(info.name, makers)):
            yield info.name


def _is_map(layer: NodeProto, known: Activations) -> bool:
    """Return whether a layer is a convolution over more than one place."""
    if layer.op_type not in CONVOLUTIONS:
        return False
    shape = known.shapes.get(layer.output[0])
    return shape is None or any(extent != 1 for extent in shape[2:])


def _last_layers(name: str, makers: Mapping[str, NodeProto]) -> Iterator[NodeProto]:
    """Yield the layers that a value is made of, without another layer between."""
    stack, seen = [name], {name}
    while stack:
        node = makers.get(stack.pop())
        if node is not None and node.op_type in LAYERS:
            yield node
        elif node is not None:
            stack += [each for each in node.input if each not in seen]
            seen.update(node.input)


def map_tails(model: ModelProto, known: Activations) -> Reasons:
    """Return the reason of operators that make maps, if a layer there has no statistic.

    They are those behind the last statistics, and those that make them of smaller maps. The last
    layers are not asked for a statistic.
    """
    makers = makers_of(model.graph)
    larger: set[str] = set()
    for node in model.graph.node:
        if node.op_type in UPSAMPLING or not larger.isdisjoint(node.input):
            larger.update(node.output)
    found: Reasons = {}
    statistics = _with_statistic(model, known)
    for result in maps(model, known):
        last = {node.name for node in _last_layers(result, makers)}
        stack = [result]
        tail: dict[str, NodeProto] = {}
        while stack:
            maker = makers.get(stack.pop())
            if maker is None or maker.name in tail:
                continue
            # Before the upsampling, maps are as small as others, and statistics say enough.
            if maker.output[0] in larger or maker.output[0] not in statistics:
                tail[maker.name] = maker
                stack += maker.input
        layers = [node for node in tail.values() if node.op_type in LAYERS]
        if any(node.name not in last and node.output[0] not in statistics for node in layers):
            text = f"rare elements of the map {result!r} exceed likely ranges"
            found |= dict.fromkeys(tail, Reason(text))
    return found


def _with_statistic(model: ModelProto, known: Activations) -> set[str]:
    """Return the values of a statistic or a given range, and of those made by activations.

    Bounds of a layer's results are as sure.
    """
    sure = (Origin.STATISTIC.value, Origin.GIVEN.value)
    found = {name for name, each in known.known.items() if each.origin in sure}
    found |= {
        name
        for node in model.graph.node
        for name in node.output
        if node.op_type in LAYERS
        and name in known.known
        and known.known[name].origin == Origin.BOUND.value
    }
    for node in reversed(model.graph.node):
        if node.op_type in (*FUSED, "Add", "Mul") and not found.isdisjoint(node.output):
            found.update(node.input)
    return found
