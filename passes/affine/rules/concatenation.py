"""How an affine passes Concat: each operand has its part of the channels, or all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter

import numpy as np

from ....ir.graph import Node, Value
from ....ir.ops.channel_map import is_extent, unknown_shape
from ....ir.ops.inference import integer_of
from ....ir.provenance import Refused
from ....ir.types import shape_of
from ....support.statement import states
from ..algebra.affine import Affine
from ..algebra.operands import Parameters
from ..algebra.transfer import Transfer
from .affine_rule import AffineRule


@states(
    "affine(concat([x, y], 1), s, t, 1, 3) == concat([affine(x, s[:n], t[:n], 1), affine(y, s[n:],"
    " t[n:], 1)], 1); affine(concat([x, y], 2), u, v, 1, 3) == concat([affine(x, u, v, 1),"
    " affine(y, u, v, 1)], 2)"
)
def concatenate_backward(
    node: Node, index: int, affine: Affine, params: Parameters
) -> Sequence[Transfer]:
    """Concat: each operand takes its channels of the affine, or all along another axis."""
    axis = _axis(node)
    parts = [affine] * len(node.inputs) if affine.axis != axis else _parts(node, affine, axis)
    operands, constants = [], []
    for i, (value, part) in enumerate(zip(node.inputs, parts, strict=True)):
        assert value is not None
        array = params.evaluator.exact(value)
        if array is None:
            operands.append((i, part))
        elif part.axis is not None and not is_extent(array.shape, part.axis, part.channels):
            raise unknown_shape(node)
        elif array.size:
            constants.append((i, part.apply_along(array)))
    return [Transfer(operands=tuple(operands), constants=tuple(constants))]


def _parts(node: Node, affine: Affine, axis: int) -> list[Affine]:
    parts = []
    start = 0
    for value in node.inputs:
        end = start + _extent(node, value, axis)
        parts.append(affine.map(axis, itemgetter(slice(start, end))))
        start = end
    if start != affine.channels:
        raise unknown_shape(node)
    return parts


@states(
    "concat([affine(x, s, t, 1, 3), y], 1) == affine(concat([x, y], 1), joined(s, 1, y), joined(t,"
    " 0, y), 1); concat([affine(x, u, v, 1, 3), affine(y, p, q, 1, 3)], 2) == affine(concat([x, y],"
    " 2), u, v, 1) if u == p and v == q"
)
def concatenate_forward(node: Node, given: Mapping[int, Affine], params: Parameters) -> Transfer:
    """Concat: operands beside it have the identity, or all agree along another axis."""
    axis = _axis(node)
    first = next(iter(given.values()))
    all_agree = all(first.equals(other) for other in given.values())
    if len(given) == len(node.inputs) and first.axis != axis and all_agree:
        return Transfer(results=((0, first),))
    if any(affine.axis not in (axis, None) for affine in given.values()):
        detail = f"{node.description}: not all operands have the same affine"
        raise Refused("multi_consumer", detail)
    ranges, end = {}, 0
    for i, value in enumerate(node.inputs):
        start, end = end, end + _extent(node, value, axis)
        if i in given:
            ranges[i] = slice(start, end)
    scale, shift = np.ones(end), np.zeros(end)
    for i, affine in given.items():
        if affine.channels not in (None, ranges[i].stop - ranges[i].start):
            raise unknown_shape(node)
        scale[ranges[i]], shift[ranges[i]] = affine.scale, affine.shift
    origins = tuple(dict.fromkeys(origin for affine in given.values() for origin in affine.origins))
    return Transfer(results=((0, Affine.joined(axis, scale, shift, origins)),))


def _axis(node: Node) -> int:
    shape = shape_of(node.output.type)
    axis = integer_of(node, "axis", 1)
    if axis < 0 and shape is None:
        raise unknown_shape(node)
    return axis + (len(shape) if axis < 0 and shape is not None else 0)


def _extent(node: Node, value: Value | None, axis: int) -> int:
    shape = None if value is None else shape_of(value.type)
    extent = shape[axis] if shape is not None and axis < len(shape) else None
    if not isinstance(extent, int):
        raise unknown_shape(node, value, axis)
    return extent


RULES = {"concatenate": AffineRule(concatenate_backward, concatenate_forward)}
"""The rules by operator."""
