"""Ties: numbers equal, or zero, as far as rounding lets one tell. Noisy runs decide at random.

Rounding can make two numbers equal, or one zero; continuous noise almost never does. So the noisy
graph computes the operands of comparisons, and of operators with a pole at zero, without noise too.
Where noise moves a difference by more than it is, the comparison, or whether the divisor is zero,
is drawn at random.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx import NodeProto, TensorProto

from ...ir.ops import DEFAULT_DOMAINS
from .graph_builder import PREFIX, GraphBuilder, noise_type
from .numeric_traits import COMPARISONS, POLES
from .onnx_graph import bodies, reads


class NoiseFreeCopies:
    """Copies of the nodes without noise, which compute values of a graph on demand.

    `record` has to be given the nodes in order. Copies are appended to `nodes`. `outer` belongs to
    the graph around a body. What a body is given by its node, such as the state of a Loop, keeps
    its noise.
    """

    def __init__(self, nodes: list[NodeProto], outer: NoiseFreeCopies | None) -> None:
        self.nodes = nodes
        self.outer = outer
        self.recorded: list[NodeProto] = []
        self.producers: dict[str, int] = {}
        self.computed: set[str] = set()

    def record(self, node: NodeProto) -> None:
        """Remember the next node of the graph as it is now."""
        copy = NodeProto()
        copy.CopyFrom(node)
        self.producers.update((name, len(self.recorded)) for name in node.output if name)
        self.recorded.append(copy)

    def value(self, name: str) -> str:
        """Return the name of a value without noise, and add the nodes that compute it.

        O(nodes that are added).
        """
        if name not in self.producers:
            return name if self.outer is None else self.outer.value(name)
        for place in sorted(self._missing(name)):
            self._add(self.recorded[place])
        return noise_free_name(name)

    def _missing(self, name: str) -> set[int]:
        """Return the places of the nodes that compute a value and have no copy yet."""
        found: set[int] = set()
        pending = [name]
        while pending:
            name = pending.pop()
            place = self.producers.get(name)
            # Each node is copied once; inputs and initializers have none.
            if place is not None and place not in found and name not in self.computed:
                found.add(place)
                pending += reads(self.recorded[place])
        return found

    def _add(self, node: NodeProto) -> None:
        names = {name: self.value(name) for name in reads(node)}
        copy = NodeProto()
        copy.CopyFrom(node)
        copy.name = ""
        _rename_reads(copy, names)
        for i, name in enumerate(node.output):
            if name:
                copy.output[i] = noise_free_name(name)
                self.computed.add(name)
        self.nodes.append(copy)


def noise_free_name(name: str) -> str:
    """Return the name that a value without noise has in the noisy model."""
    return f"{PREFIX}.plain.{name}"


def _rename_reads(node: NodeProto, names: Mapping[str, str]) -> None:
    node.input[:] = [names.get(name, name) for name in node.input]
    for body in bodies(node):
        for inner in body.node:
            _rename_reads(inner, names)
        for info in body.output:
            info.name = names.get(info.name, info.name)


def is_comparison(node: NodeProto) -> bool:
    """Return whether a node computes booleans from numbers."""
    if node.domain not in DEFAULT_DOMAINS:
        return False
    to_boolean = node.op_type == "Cast" and any(
        a.name == "to" and a.i == TensorProto.BOOL for a in node.attribute
    )
    return to_boolean or node.op_type in COMPARISONS


def may_tie(node: NodeProto) -> bool:
    """Return whether a node, or one in its bodies, is a comparison or has a pole at zero."""
    if is_comparison(node) or node.op_type in POLES:
        return True
    return any(may_tie(inner) for body in bodies(node) for inner in body.node)


def draw_comparison(
    builder: GraphBuilder, node: NodeProto, noise_free: Sequence[str], elem_type: int
) -> None:
    """Let a random draw decide where a comparison, the builder's last node, is a tie.

    `noise_free` are its operands without noise, and `elem_type` the element type of all.
    """
    if [*noise_free] == [*node.input]:
        return
    out = node.output[0]
    compared = node.output[0] = builder.fresh("raw")
    noisy, exact = (_difference(builder, names, elem_type) for names in (node.input, noise_free))
    tie, drawn = _tie_and_draw(builder, noisy, exact)
    kept = builder.op("And", [compared, builder.op("Not", [tie])])
    builder.op("Or", [builder.op("And", [tie, drawn]), kept])
    builder.nodes[-1].output[0] = out


def draw_zero(builder: GraphBuilder, name: str, noise_free: str, elem_type: int) -> str:
    """Return the noisy value `name`, with possible zeros made +0 or -0 at random.

    The sign of a zero is drawn too: rounding does not keep it, since x + 0 is x except for x = -0.
    """
    wide = noise_type(elem_type)
    value = builder.widen(name, elem_type)
    tie, drawn = _tie_and_draw(builder, value, builder.widen(noise_free, elem_type))
    zero = builder.scalar(0.0, wide)
    value = builder.op("Where", [builder.op("And", [tie, drawn]), zero, value])
    # Equal takes no floating-point numbers before opset 11, without which the noisy model would not
    # run.
    nonzero = builder.op("Less", [zero, builder.op("Abs", [value])])
    flipped = builder.op("And", [builder.op("Not", [nonzero]), drawn])
    sign = builder.op("Where", [flipped, builder.scalar(-1.0, wide), builder.scalar(1.0, wide)])
    # A product, since onnxruntime's Where drops the sign of -0.
    return builder.cast(builder.op("Mul", [value, sign]), wide, elem_type)


def _tie_and_draw(builder: GraphBuilder, noisy: str, exact: str) -> tuple[str, str]:
    """Return where noise exceeds a value's magnitude, and a random boolean for each element.

    The probability of true is drawn once for the tensor, so that in some runs nearly all ties go
    the same way.
    """
    noise = builder.op("Sub", [noisy, exact])
    tie = builder.op("Less", [builder.op("Abs", [exact]), builder.op("Abs", [noise])])
    threshold = builder.random_uniform(
        builder.scalar(0.0, TensorProto.FLOAT), TensorProto.FLOAT, -2.0, 2.0
    )
    return tie, builder.op(
        "Less", [builder.random_uniform(exact, TensorProto.FLOAT, -1.0, 1.0), threshold]
    )


def _difference(builder: GraphBuilder, names: Sequence[str], elem_type: int) -> str:
    """Return the difference of two values, or a single value itself: Cast compares it with zero."""
    values = [builder.widen(name, elem_type) for name in names]
    return builder.op("Sub", values) if len(values) > 1 else values[0]
