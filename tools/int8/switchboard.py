"""A float model in which each rounding of a quantized model can be switched on.

A rounding becomes an If, whose one branch has the operators of the quantized model, and the other
one the float value. Hence a single session measures each rounding alone, and any of them together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from ...result import copied
from ..verify.onnx_graph import constant_tensors, makers_of, reads
from ..verify.runner import Runner
from .coverage import LAYERS
from .dynamic import PRODUCTS, make_dynamic
from .engine import ELEMENTS
from .integer_limits import LIMITS
from .lone_roundings import SWITCH, Switched, add_switches
from .quantized_layers import FUSED

INPUT_SUFFIX = "_QuantizeLinear_Input"
"""What onnxruntime appends to the name of a result before its rounding."""


@dataclass(slots=True)
class Rounding:
    """One source of noise: a weight with its bias (of `owner`), or a tensor with one scale.

    `tensors` are the float tensors that are rounded; several have one scale if an operator moves
    elements from one to the next. `touching` are the nodes that read or write these, by which they
    are rounded.
    """

    owner: str = ""
    tensors: list[str] = field(default_factory=list)
    touching: set[str] = field(default_factory=set)

    @property
    def name(self) -> str:
        """The layer of a weight, or the tensor."""
        return self.owner or self.tensors[0]

    def is_on(self, left: Collection[str]) -> bool:
        """Return whether it stays if the nodes `left` are float."""
        return self.owner not in left if self.owner else not self.touching.issubset(left)


class Switchboard:
    """The switches of a quantized model, whose float model is `base`.

    All nodes of `base` have names, and those of `quantized` have the same. `free` are the nodes
    that the quantizer has taken, and `dynamic` the layers with scales that are found at run time.
    """

    def __init__(
        self,
        base: ModelProto,
        quantized: ModelProto,
        base_dir: Path,
        free: Set[str],
        dynamic: Collection[str],
        *,
        per_channel: bool,
    ) -> None:
        self.base, self.quantized = base, quantized
        self.free = free
        self.roundings: list[Rounding] = []
        builder = _Builder(self, dynamic)
        builder.add_tensors()
        builder.add_constants()
        builder.add_dynamic(per_channel=per_channel)
        self.runner = Runner(builder.finished(), base_dir)

    def running(self, on: Collection[int]) -> Switched:
        """Return the model with the roundings of these indices."""
        return Switched(self.runner, on, len(self.roundings))


class _Builder:
    """Puts the Ifs into a copy of the base."""

    def __init__(self, board: Switchboard, dynamic: Collection[str]) -> None:
        self.board, self.dynamic = board, dynamic
        self.base = board.base
        self.names = count()
        self.graph = copied(board.base).graph
        self.other = board.quantized.graph
        self.theirs = {node.name: node for node in self.other.node}
        self.makers, self.base_makers = makers_of(self.other), makers_of(self.base.graph)
        self.tensors = constant_tensors(self.other)
        self.constants = {tensor.name: tensor for tensor in self.base.graph.initializer}
        self.readers: dict[str, list[NodeProto]] = {}
        for node in self.other.node:
            for name in reads(node):
                self.readers.setdefault(name, []).append(node)
        self.by_scale: dict[str, int] = {}
        self.after: dict[str, list[NodeProto]] = {"": []}
        """The Ifs behind each tensor of the base: behind the constants under the empty name."""
        self.added: dict[str, TensorProto] = {}

    def index(self, key: str, owner: str = "") -> int:
        """Return the number of the rounding of a scale, or of a layer's weight."""
        if key not in self.by_scale:
            self.by_scale[key] = len(self.board.roundings)
            self.board.roundings.append(Rounding(owner))
        return self.by_scale[key]

    def add_tensors(self) -> None:
        """Add the roundings of activations."""
        values = {info.name for info in self.base.graph.input}
        values |= {name for node in self.base.graph.node for name in node.output}
        ours = {node.name: node for node in self.graph.node}
        for rounding in self.other.node:
            if rounding.op_type != "QuantizeLinear" or rounding.input[0] in self.tensors:
                continue
            name = rounding.input[0].removesuffix(INPUT_SUFFIX)
            back, integers = self._back(rounding.output[0])
            limit = next((n for n in self._between(rounding, integers) if n.name in ours), None)
            if limit is not None:
                # Of a Min on integers the result is rounded, which is the same.
                name = ours[limit.name].output[0]
            if name not in values or back is None:
                continue
            place = self.index(rounding.input[1])
            entry = self.board.roundings[place]
            entry.tensors.append(name)
            entry.touching |= self._touching(name)
            self._switch(place, name, [(rounding, name), (back, "")], back.output[0])

    def _touching(self, name: str) -> set[str]:
        """Return the nodes by which a tensor is rounded.

        An activation or a limit is no reason, but the layer before it.
        """
        found = {
            node.name
            for node in self.base.graph.node
            if name in reads(node) and node.op_type not in FUSED
        }
        maker = self.base_makers.get(name)
        while maker is not None and maker.op_type in (*FUSED, *LIMITS):
            data = [each for each in maker.input if each in self.base_makers]
            maker = self.base_makers[data[0]] if data else None
        if maker is not None:
            found.add(maker.name)
        return found & self.board.free

    def _back(self, integers: str) -> tuple[NodeProto | None, str]:
        """Return the DequantizeLinear of integers, perhaps behind a Min or Max of them."""
        for node in self.readers.get(integers, ()):
            if node.op_type == "DequantizeLinear":
                return node, integers
            if node.op_type in LIMITS:
                return self._back(node.output[0])
        return None, integers

    def _between(self, rounding: NodeProto, integers: str) -> Iterator[NodeProto]:
        """Yield the Min or Max between a QuantizeLinear and the integers that are read back."""
        if rounding.output[0] != integers:
            yield self.makers[integers]

    def add_constants(self) -> None:
        """Add the roundings of constants, those of a layer and of the Add behind it together."""
        layers = {n.output[0]: n.name for n in self.base.graph.node if n.op_type in LAYERS}
        for node in list(self.graph.node):
            other = self.theirs.get(node.name)
            is_same = other is not None and other.op_type == node.op_type
            if other is None or not is_same or len(other.input) != len(node.input):
                continue
            owner = next((layers[name] for name in node.input if name in layers), node.name)
            owner = node.name if node.op_type in LAYERS else owner
            for place, (name, found) in enumerate(zip(node.input, other.input, strict=True)):
                nodes = self._rounded_constant(name, found)
                if nodes is None:
                    continue
                index = self.index(f"{SWITCH}weight.{owner}", owner)
                result = f"{SWITCH}{index}.{node.name}.{place}"
                self._add_if(index, name, nodes, found, result, "")
                node.input[place] = result

    def _rounded_constant(self, name: str, found: str) -> list[tuple[NodeProto, str]] | None:
        """Return the nodes that round a constant of the base; None if it is as in the base."""
        if name not in self.constants or self.constants[name].data_type not in ELEMENTS.values():
            return None
        made = self.makers.get(found)
        if made is not None:
            return [(made, "")] if made.op_type == "DequantizeLinear" else None
        if found not in self.tensors:
            return None
        before, after = self.constants[name], self.tensors[found]
        if before.data_type != after.data_type:  # the limit of a Min on integers
            return None
        first, second = map(numpy_helper.to_array, (before, after))
        return None if np.array_equal(first, second, equal_nan=True) else []

    def add_dynamic(self, *, per_channel: bool) -> None:
        """Add the layers with scales that are found at run time."""
        for node in list(self.graph.node):
            if node.name not in self.dynamic or node.op_type not in PRODUCTS:
                continue
            index = self.index(f"{SWITCH}dynamic.{node.name}", node.name)
            small = ModelProto()
            small.graph.node.append(node)
            for name in node.input:
                if name in self.constants:
                    small.graph.initializer.append(self.constants[name])
            make_dynamic(small, [node.name], per_channel=per_channel)
            result = node.output[0]
            pairs = [(each, "") for each in small.graph.node]
            self.tensors |= {tensor.name: tensor for tensor in small.graph.initializer}
            then = self._branch(index, pairs, result)
            kept = NodeProto()
            kept.CopyFrom(node)
            kept.output[0] = f"{SWITCH}{index}.float"
            other = helper.make_graph(
                [kept], f"{SWITCH}{index}.else", [], [ValueInfoProto(name=kept.output[0])]
            )
            node.CopyFrom(self._if(index, then, other, result, node.name))

    def _switch(
        self, index: int, name: str, nodes: Sequence[tuple[NodeProto, str]], found: str
    ) -> None:
        """Let what reads a rounded tensor read an If behind it."""
        result = f"{SWITCH}{index}.{name}"
        direct = {
            node.name
            for node in self.other.node
            if found not in reads(node) and name in reads(node)
        }
        outputs = {info.name for info in self.graph.output}
        exact = name
        if name in outputs and self.makers.get(name) is not None:
            if self.makers[name].op_type == "DequantizeLinear":  # the result itself is rounded
                exact, result = f"{SWITCH}{index}.exact", name
                for node in self.graph.node:
                    for place, each in enumerate(node.output):
                        if each == name:
                            node.output[place] = exact
        for node in self.graph.node:
            if node.name in direct:
                continue
            for place, each in enumerate(node.input):
                if each == name:
                    node.input[place] = result
        nodes = [(node, exact if given else "") for node, given in nodes]
        self._add_if(index, exact, nodes, found, result, exact)

    def _add_if(
        self,
        index: int,
        value: str,
        nodes: Sequence[tuple[NodeProto, str]],
        found: str,
        result: str,
        behind: str,
    ) -> None:
        """Note an If behind a tensor, of its value and of what `nodes` make of it."""
        then = self._branch(index, nodes, found)
        kept = f"{SWITCH}{index}.{next(self.names)}.float"
        same = helper.make_node("Identity", [value], [kept])
        other = helper.make_graph([same], f"{SWITCH}{index}.else", [], [ValueInfoProto(name=kept)])
        node = self._if(index, then, other, result, f"{result}.if")
        self.after.setdefault(behind, []).append(node)

    def _branch(self, index: int, nodes: Sequence[tuple[NodeProto, str]], found: str) -> GraphProto:
        """Return the branch of some nodes of the quantized model; the first may read a value."""
        names: dict[str, str] = {}
        inner: list[NodeProto] = []
        mark = f"{SWITCH}{index}.{next(self.names)}"
        for node, given in nodes:
            copy = NodeProto()
            copy.CopyFrom(node)
            copy.name = ""
            for place, name in enumerate(node.input):
                if place == 0 and given:
                    copy.input[place] = given
                elif name in self.tensors:
                    copy.input[place] = self._constant(name)
                else:
                    copy.input[place] = names.get(name, name)
            for place, name in enumerate(node.output):
                names[name] = copy.output[place] = f"{mark}.{name}" if name else ""
            inner.append(copy)
        if len(inner) > 1 and inner[0].op_type == "QuantizeLinear":
            inner[1].input[0] = inner[0].output[0]  # also where integers have a limit between
        last = names.get(found)
        if last is None:
            last = f"{mark}.{found}"
            inner.append(helper.make_node("Identity", [self._constant(found)], [last]))
        return helper.make_graph(inner, f"{mark}.then", [], [ValueInfoProto(name=last)])

    def _constant(self, name: str) -> str:
        """Return the name of a tensor of the quantized model in the switchboard."""
        ours = f"{SWITCH}{name}"
        if ours not in self.added:
            tensor = TensorProto()
            tensor.CopyFrom(self.tensors[name])
            tensor.name = ours
            self.added[ours] = tensor
        return ours

    def _if(
        self, index: int, then: GraphProto, other: GraphProto, result: str, name: str
    ) -> NodeProto:
        return helper.make_node(
            "If", [f"{SWITCH}{index}"], [result], name, then_branch=then, else_branch=other
        )

    def finished(self) -> ModelProto:
        """Return the model with its switches as inputs."""
        model = ModelProto()
        model.CopyFrom(self.board.quantized)
        model.graph.CopyFrom(self.graph)
        graph = model.graph
        nodes = list(graph.node)
        del graph.node[:]
        graph.node.extend(self.after[""])
        for info in self.graph.input:
            graph.node.extend(self.after.get(info.name, ()))
        for node in nodes:
            graph.node.append(node)
            for name in node.output:
                graph.node.extend(self.after.get(name, ()))
        graph.initializer.extend(self.added.values())
        add_switches(graph, len(self.board.roundings))
        del graph.value_info[:]
        return model
