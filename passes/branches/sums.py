"""Sums of branches: the terms of a sum, each a layer or a value with the affines after it."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from ...ir.evaluate import ConstantEvaluator
from ...ir.graph import Node, Value
from ...ir.matching import is_only_reader
from ...ir.ops import AFFINE_KINDS
from ...ir.record import Record
from ...ir.tensor import Array
from ..affine.algebra.recognise import AffineOp, find_affine
from .linear_kernels import DENSE, LAYERS

SUMS = ("add", "subtract", "add_n")
"""Operators that add computed values."""

NO_SHIFT = np.zeros(())


class Term(Record):
    """A branch of a sum: `scale` * y + `shift`, y the result of `layer`, or `data` without one.

    `affines` are the affines between y and the sum, the nearest to the sum first, and `after` has
    the scale and shift from each of them on. `inner` are the sums between, which are scaled.
    `operand` is the operand of the whole sum that the term is in.
    """

    layer: Node | None
    data: Value
    scale: Array
    shift: Array
    operand: int
    affines: tuple[AffineOp, ...] = ()
    after: tuple[tuple[Array, Array], ...] = ()
    inner: tuple[Node, ...] = ()

    @property
    def value(self) -> Value:
        """What is scaled and added."""
        return self.data if self.layer is None else self.layer.output


class Sum(Struct, eq=False):
    """A sum of values `operands` with their signs, by the operators `nodes`, and its `terms`."""

    nodes: list[Node] = field(default_factory=list)
    operands: list[tuple[float, Value]] = field(default_factory=list)
    terms: list[Term] = field(default_factory=list)


def is_sum(node: Node, evaluator: ConstantEvaluator) -> bool:
    """Return whether a node adds computed values of which none is constant."""
    return node.op in SUMS and not any(evaluator.is_constant(value) for value in node.inputs)


def may_merge(root: Node, evaluator: ConstantEvaluator) -> bool:
    """Return whether two terms of a sum may read one value; no constant is read for that."""
    seen: set[Value] = set()
    stack = [(value, root) for value in root.inputs]
    while stack:
        value, reader = stack.pop()
        node = None if value is None else value.node
        if value is None or value in seen:
            return value is not None
        own = node is not None and is_only_reader(value, reader)
        if node is None or not own:
            seen.add(value)
        elif node.op in LAYERS:
            for data in data_of(node):
                if data in seen:
                    return True
                seen.add(data)
        elif node.op in AFFINE_KINDS or node.op in SUMS:
            stack += [(each, node) for each in node.inputs if not evaluator.is_constant(each)]
        else:
            seen.add(value)
    return False


def data_of(layer: Node) -> Iterator[Value]:
    """Yield the data of a layer, and of each product before it that nothing else reads."""
    data = layer.operand()
    yield data
    while layer.op in DENSE and data.node is not None and data.node.op in DENSE:
        if not is_only_reader(data, layer):
            return
        layer = data.node
        data = layer.operand()
        yield data


def sum_of(root: Node, evaluator: ConstantEvaluator, opaque: Collection[Value] = ()) -> Sum:
    """Return the sum that `root` completes. Values that are `opaque` are terms as they are."""
    found = Sum()
    stack: list[tuple[Value, Node, float]] = [(root.output, root, 1.0)]
    while stack:
        value, reader, sign = stack.pop()
        node = value.node
        is_part = node is root or is_only_reader(value, reader)
        if node is not None and is_part and is_sum(node, evaluator):
            found.nodes.append(node)
            signs = _signs(node, sign)
            stack += [(each, node, s) for each, s in zip(_operands(node), signs, strict=True)][::-1]
        else:
            index = len(found.operands)
            found.operands.append((sign, value))
            found.terms += _terms(value, reader, np.array(sign), index, evaluator, opaque)
    return found


def _operands(node: Node) -> list[Value]:
    return [value for value in node.inputs if value is not None]


def _signs(node: Node, sign: float) -> list[float]:
    count = len(_operands(node))
    return [sign, -sign] if node.op == "subtract" else [sign] * count


def _terms(
    value: Value,
    reader: Node,
    sign: Array,
    index: int,
    evaluator: ConstantEvaluator,
    opaque: Collection[Value],
) -> Iterator[Term]:
    """Yield the terms of one operand of a sum."""
    start = Term(None, value, sign, NO_SHIFT, index)
    stack = [(start, reader)]
    while stack:
        term, reader = stack.pop()
        node = term.data.node
        if node is None or not is_only_reader(term.data, reader) or term.data in opaque:
            yield term
        elif node.op in LAYERS:
            yield replace(term, layer=node, data=node.operand())
        elif is_sum(node, evaluator):
            shift, inner = term.shift, (*term.inner, node)
            for each, own in zip(_operands(node), _signs(node, 1.0), strict=True):
                scale = term.scale * own
                part = replace(term, data=each, scale=scale, shift=shift, inner=inner)
                stack.append((part, node))
                shift = NO_SHIFT  # the first term takes it
        else:
            affine = _affine_before(term.data, evaluator)
            if affine is None or not _fits(affine, term.affines):
                yield term
            else:
                stack.append((_behind(term, affine), affine.nodes[0]))


def _behind(term: Term, affine: AffineOp) -> Term:
    """Return the term of the data of an affine whose result is that of `term`."""
    return replace(
        term,
        data=affine.data,
        scale=term.scale * affine.scale,
        shift=term.scale * affine.shift + term.shift,
        affines=(*term.affines, affine),
        after=(*term.after, (term.scale, term.shift)),
    )


def _affine_before(value: Value, evaluator: ConstantEvaluator) -> AffineOp | None:
    """Return the affine whose result is `value`."""
    last = value.node
    if last is None or last.op not in AFFINE_KINDS:
        return None
    affine = find_affine(last, evaluator)
    if affine is not None and affine.result is value:
        return affine
    for operand in last.inputs:
        before = None if operand is None else operand.node
        if before is not None and before.op == "multiply" and is_only_reader(operand, last):
            affine = find_affine(before, evaluator)
            if affine is not None and affine.result is value:
                return affine
    return None


def _fits(affine: AffineOp, others: tuple[AffineOp, ...]) -> bool:
    """Return whether an affine has the axis of the others."""
    axes = {each.axis for each in (affine, *others)} - {None}
    return len(axes) < 2


def axis_of(term: Term) -> int | None:
    """Return the axis of the channels that the affines of a term act on, None for any."""
    return next((each.axis for each in term.affines if each.axis is not None), None)
