"""Ranges through the bodies of If, Loop and Scan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ...ir.graph import Graph, Node, Value
from ...ir.loops import LOOPS, carried_values
from ...ir.ops.interval import UNBOUNDED, Interval
from ...ir.types import shape_of
from .intervals import Ends, ends_of

ROUNDS = 4
"""Most visits of a loop's body until the ranges of its states stand still.

Then it is visited as often again, and a state that still grows is unbounded.
"""


class Walk(Protocol):
    """The walk over a graph that bodies are visited by."""

    def enter(self, value: Value, ends: Ends | None) -> None:
        """Record the range of an input of a body, none if it is unbounded."""

    def visit_graph(self, graph: Graph) -> None:
        """Record the ranges of all values of a body."""

    def interval(self, value: Value | None) -> Interval:
        """Return the range of a value, unbounded if it has none."""


def ranges_of_bodies(walk: Walk, node: Node) -> list[Interval] | None:
    """Return the intervals of the results of a node with bodies, None if it has none.

    - If: the hull of both branches.
    - Loop, Scan: the states start with their first range, which is widened by the body's result of
      it until it stands still; a state that does not is unbounded.
    """
    if not node.regions:
        return None
    if node.op == "::If":
        for region in node.regions:
            walk.visit_graph(region)
        branches = [
            [walk.interval(value).whole for value in region.outputs] for region in node.regions
        ]
        return [ends[0].hull(*ends[1:]) for ends in zip(*branches, strict=True)]
    if node.op not in LOOPS or len(node.regions) != 1:
        return [UNBOUNDED] * len(node.outputs)
    return _looped(walk, node, node.regions[0])


def _looped(walk: Walk, node: Node, body: Graph) -> list[Interval]:
    carried = carried_values(node)
    states, inside = len(carried), [each.inside for each in carried]
    ranges = [walk.interval(each.start).whole for each in carried]
    if node.op == "::Scan":
        scanned = [walk.interval(value).whole for value in node.inputs[states:]]
        _enter(walk, body.inputs[states:], scanned)
    for grows in (*(False,) * ROUNDS, *(True,) * ROUNDS):
        _enter(walk, inside, ranges)
        walk.visit_graph(body)
        results = [walk.interval(each.end).whole for each in carried]
        wider = [known.hull(result) for known, result in zip(ranges, results, strict=True)]
        still = [_equal(known, wide) for known, wide in zip(ranges, wider, strict=True)]
        if all(still):
            break
        ranges = [
            wide if same or not grows else UNBOUNDED
            for wide, same in zip(wider, still, strict=True)
        ]
    else:
        ranges = [UNBOUNDED] * states
        _enter(walk, inside, ranges)
        walk.visit_graph(body)
    listed = body.outputs[states + (node.op == "::Loop") :]
    return [*ranges, *[walk.interval(value).whole for value in listed]]


def _enter(walk: Walk, inputs: Sequence[Value], ranges: list[Interval]) -> None:
    for value, known in zip(inputs, ranges, strict=False):
        walk.enter(value, ends_of(known, shape_of(value.type), None))


def _equal(a: Interval, b: Interval) -> bool:
    return bool(a.low == b.low and a.high == b.high)
