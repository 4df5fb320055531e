"""Units: operators that together write out Gelu, LayerNormalization or attention.

A runtime fuses a unit that it finds as exporters write it. A scale that leaves the unit, or enters
it, costs more at run time than it saves, so no affine goes out of a unit or into the middle of one.
The product by gamma and the sum of beta that end a normalization stay too, but take the affines
after them into their constants.
"""

from __future__ import annotations

from collections.abc import Iterator

from ....ir.evaluate import ConstantEvaluator
from ....ir.graph import Graph, Node
from ....ir.provenance import Declined
from .activation_units import activation_at
from .attention import scores_at
from .normalization_units import normalization_at
from .rotary import rotary_at
from .unit import Unit

SEARCHED = 48
"""Operators around one that are searched for the unit it belongs to."""

_GATES = ("erf", "tanh", "sigmoid", "clip", "hard_sigmoid")
_TURNS = ("negative", "subtract")
_ANCHORS = frozenset((*_GATES, *_TURNS, "sqrt", "matmul"))
"""The operators that are typical of units: one is in the middle of each."""

_ARITHMETIC = ("add", "subtract", "multiply", "divide", "power", "exp", "log", "nn.softplus")
_INNER = frozenset((*_ARITHMETIC, *_GATES, "sqrt", "cast", "mean", "reciprocal"))
_OF_SCORES = frozenset(("multiply", "divide", "transpose", "matmul"))
_OF_ROTARY = frozenset((*_TURNS, "multiply", "add", "concatenate"))
_SEARCHES = (_INNER, _OF_SCORES, _OF_ROTARY)
"""Operators along which units are searched: each kind apart, so that none leads astray."""


def units_of(graph: Graph, constants: ConstantEvaluator) -> dict[Node, Unit]:
    """Return the unit of every node of `graph` that is part of one. O(nodes)."""
    found: dict[Node, Unit] = {}
    for node in graph.operators_of(_ANCHORS):
        unit = _anchored(node, constants)
        if unit is not None:
            found.update(dict.fromkeys(unit.nodes, unit))
    return found


def unit_of(node: Node, constants: ConstantEvaluator) -> Unit | None:
    """Return the unit that `node` is part of, or None. O(1)."""
    for inner in _SEARCHES:
        for near in _around(node, inner) if node.op in inner else ():
            if near.op in _ANCHORS:
                unit = _anchored(near, constants)
                if unit is not None and node in unit.nodes:
                    return unit
    return None


def _around(node: Node, inner: frozenset[str]) -> Iterator[Node]:
    """Yield the operators around `node` that a unit may have, the nearest first."""
    queue, seen = [node], {node}
    for each in queue:
        yield each
        near = [value.node for value in each.inputs if value is not None and value.node is not None]
        for value in (*each.inputs, *each.outputs):
            if value is not None and len(value.users) <= 4:
                near += value.users
        for other in near:
            if other in seen or other.graph is not node.graph or other.op not in inner:
                continue
            if len(seen) < SEARCHED:
                seen.add(other)
                queue.append(other)


def _anchored(anchor: Node, constants: ConstantEvaluator) -> Unit | None:
    """Return the unit around the operator that is typical of it, or None."""
    # Most models have none of these operators, and do without the modules that look around them.
    try:
        if anchor.op in _GATES:
            return activation_at(anchor, constants)
        if anchor.op == "sqrt":
            return normalization_at(anchor, constants)
        if anchor.op == "matmul":
            return scores_at(anchor, constants)
        return rotary_at(anchor, constants)
    except Declined:
        return None
