"""Extents that are computed by arithmetic, though a value before has them: its Shape is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..ir.extents import Extent, Formula, Piece
from ..ir.graph import Graph, Node, Value
from ..ir.ops import has_trait
from ..ir.ops.row import Trait
from ..ir.rewriter import Rewriter
from ..ir.rule_driver import rule
from ..ir.shape_evaluator import ShapeEvaluator
from ..ir.types import I64, dtype_of, shape_of
from .scalar_extents import is_scalar, squeezed

Part = tuple[Value, int, int]
"""A value, and the axes from a first to before a last whose extents are read."""


class ReadableExtents:
    """The operators that compute extents of values before them, where reading these is shorter.

        h = (shape(x)[2] + 1) / 2, w = (shape(x)[3] + 1) / 2, y = conv(x) {strides=[2, 2]}

    are `shape(y)[2]` and `shape(y)[3]`. Two Shapes take the place of the whole chain.
    """

    def __init__(self, graph: Graph, computed: Iterable[Node], evaluator: ShapeEvaluator) -> None:
        """Plan for the operators `computed`, all of whose elements are known. O(graph)."""
        self.parts: dict[Node, Part] = {}
        self._made: dict[Part, Value] = {}
        known = {node for node in computed if node.graph is graph}
        found = _parts(graph, known, evaluator) if known else {}
        vectors = {node: part for node, part in found.items() if not is_scalar(node)}
        least = _operators_left(known, {})
        for parts in (found, vectors):
            left = _operators_left(known, parts)
            if left < least:
                least, self.parts = left, parts

    def shape(self, node: Node, rewriter: Rewriter) -> Value:
        """Return the extents that `node` computes, as the result of a Shape."""
        part = data, start, end = self.parts[node]
        made = self._made.get(part)
        if made is None or made.node is None or made.node.graph is None:
            is_whole = start == 0 and end == len(shape_of(data.type) or ())
            attrs = {} if is_whole else {"end": end, "start": start}
            hint = f"{node.output.name}.shape"
            made = rewriter.make("shape_of", [data], attrs, before=node, hint=hint).output
            self._made[part] = made
        return made


@rule(affine="merges")
def read_extents(node: Node, rewriter: Rewriter, readable: ReadableExtents) -> bool:
    """(shape(x)[2] + 1) / 2 -> shape(y)[2], if y before has that extent"""
    if node not in readable.parts:
        return rewriter.decline("no value before has these extents, or reading them is no shorter")
    if readable.parts[node][0].graph is not node.graph:
        return rewriter.decline("the value that has these extents is gone")
    found = readable.shape(node, rewriter)
    if is_scalar(node):
        found = squeezed(found, node, rewriter)
    rewriter.replace(node.output, found, take_name=True)
    return True


def _parts(graph: Graph, known: set[Node], evaluator: ShapeEvaluator) -> dict[Node, Part]:
    """Return the operators that compute extents of a value before them, with the last such one."""
    last: dict[Piece, tuple[Value, int]] = {}
    found: dict[Node, Part] = {}
    for node in graph.operators():
        if node in known:
            part = _part(node, last, evaluator)
            if part is not None:
                found[node] = part
            continue
        for value in node.outputs:
            for axis, dim in enumerate(shape_of(value.type) or ()):
                if isinstance(dim, Formula) and _ends_unit(value):
                    last[dim] = (value, axis)
    return found


def _part(
    node: Node, last: Mapping[Piece, tuple[Value, int]], evaluator: ShapeEvaluator
) -> Part | None:
    """Return the extents that `node` computes by arithmetic, None for others."""
    pieces = evaluator.pieces(node.output)
    if pieces is None or pieces.ndim > 1 or node.op == "shape_of" or node.output.is_returned:
        return None
    items = pieces.ravel().tolist()
    if dtype_of(node.output.type) is not I64 or not any(map(_is_computed, items)):
        return None
    data, start = last.get(items[0], (None, 0))
    if data is None:
        return None
    dims, end = shape_of(data.type) or (), start + len(items)
    is_whole = start == 0 and end == len(dims)
    if list(dims[start:end]) != items or not (is_whole or evaluator.may_read_parts(node)):
        return None
    return data, start, end


def _is_computed(piece: Piece) -> bool:
    return isinstance(piece, Formula) and not isinstance(piece, Extent)


def _ends_unit(value: Value) -> bool:
    """Return whether an operator that does not work element by element reads `value`.

    Runtimes compute a layer and the elementwise operators behind it as one if nothing else reads
    what is in between.
    """
    traits = (Trait.ELEMENTWISE, Trait.BROADCASTS)
    return any(
        user.op != "shape_of" and not any(has_trait(user, trait) for trait in traits)
        for user in value.users
    )


def _operators_left(known: set[Node], parts: Mapping[Node, Part]) -> int:
    """Return how many operators compute extents if `parts` are read from values."""
    left, read, waiting = 0, set[Part](), list(known)
    needed = dict.fromkeys(known, False)
    readers = {node: len(known.intersection(node.output.users)) for node in known}
    for node in known:
        needed[node] = len(set(node.output.users)) > readers[node]
    waiting = [node for node, count in readers.items() if count == 0]
    while waiting:  # readers before what they read
        node = waiting.pop()
        is_read = node in parts
        if needed[node]:
            left += is_scalar(node) if is_read else 1
            read |= {parts[node]} if is_read else set()
        for value in set(node.inputs):
            if value is None or value.node not in readers:
                continue
            if needed[node] and not is_read:
                needed[value.node] = True
            readers[value.node] -= 1
            if readers[value.node] == 0:
                waiting.append(value.node)
    return left + len(read)
