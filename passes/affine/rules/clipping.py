"""How an affine passes Clip and HardSigmoid, whose bounds and slope are scalars.

A uniform affine changes them. An affine per channel passes a Clip of which the bounds per channel
become a Max and a Min after it, and the Clip keeps the widest of them. Kernels that compute a layer
and a Clip as one still find it, and the Max and Min never see a number far beyond their bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from ....ir.graph import Node, Value
from ....ir.ops import is_legal, sole_reader
from ....ir.ops.channel_map import unknown_shape
from ....ir.ops.row import NUMPY_BROADCAST
from ....ir.ops.views import clip_bounds
from ....ir.provenance import Refused
from ....ir.tensor import Array
from ....ir.types import shape_of
from ....support.statement import states
from ..algebra.affine import Affine
from ..algebra.operands import Parameters, fits_attribute, fits_operand
from ..algebra.transfer import Transfer, check_scale_sign, only_data
from .affine_rule import AffineRule

GREATEST = float(np.finfo(np.float32).max)

LIMITS = ("maximum", "minimum")
"""The operators of a lower and an upper bound."""


Move = Callable[[Array], Array]
"""The new value of a bound, [] or [C] in float64."""


@states(
    "s * clip(x, a, b) + t == clip(s * x + t, least(s * a + t, s * b + t), greatest(s * a + t, s *"
    " b + t)) if a <= b; s * clip(x, a, b) + t == minimum(maximum(clip(s * x + t, low, high), s * a"
    " + t), s * b + t) if s >= 0 and low <= s * a + t and high >= s * b + t"
)
def clip_backward(node: Node, index: int, affine: Affine, params: Parameters) -> Sequence[Transfer]:
    """Clip: s clip(x, a, b) + t = clip(s x + t, s a + t, s b + t), swapped for s < 0."""
    return [replace(_passed(node, affine, affine.apply, params), operands=((0, affine),))]


@states(
    "clip(s * x + t, a, b) == s * clip(x, least((a - t) / s, (b - t) / s), greatest((a - t) / s, (b"
    " - t) / s)) + t if s != 0 and a <= b"
)
def clip_forward(node: Node, given: Mapping[int, Affine], params: Parameters) -> Transfer:
    """Clip: clip(s x + t, a, b) = s clip(x, (a - t) / s, (b - t) / s) + t; s < 0 swaps."""
    affine = only_data(node, given)
    moved = _passed(node, affine, lambda bound: (bound - affine.shift) / affine.scale, params)
    return replace(moved, results=((0, affine),))


@states("clip(x, a, b) == clip(x - t, least(a, b - t), b - t) + t if t >= 0 and a <= 0 and x >= t")
def clip_shifted(node: Node, affine: Affine, params: Parameters) -> Transfer:
    """Clip: clip(x, a, b) = clip(x - t, a, b - t) + t for t >= 0, a <= 0 and x >= t.

    The transfer has neither operands nor results. Raises Refused if the lower bound is positive,
    or absent.
    """
    low, high = _bounds(node, params)
    if not -np.inf < low <= 0:
        detail = f"{node.description}: its lower bound is not between -inf and 0"
        raise Refused("activation_between", detail)
    if affine.axis is None:
        # x - t is above any lower bound up to 0, so it may fall with the upper one.
        shifted = float(high - affine.shift)
        return _rebounded(node, (min(low, shifted), shifted), _given(node))
    moves = ((low, np.array), (high, lambda bound: bound - affine.shift))
    return _limited(node, affine, moves, params)


def _bounds(node: Node, params: Parameters) -> tuple[float, float]:
    """Return the ordered bounds of a Clip, infinite for an absent one."""
    bounds = clip_bounds(node, params.evaluator)
    if bounds is None:
        raise Refused("non_constant_params", f"{node.description}: its bounds are not constant")
    low, high = (_unrounded(node.input(i), end, params) for i, end in enumerate(bounds.ends, 1))
    if not low <= high:
        detail = f"{node.description}: bounds {low:.6g} and {high:.6g} cannot be scaled"
        raise Refused("activation_between", detail)
    return low, high


def _unrounded(bound: Value | None, rounded: float, params: Parameters) -> float:
    """Return a bound as an earlier fold computed it, before its rounding."""
    array = params.evaluator.exact(bound)
    return rounded if array is None or array.dtype != np.float64 else float(array.ravel()[0])


def _passed(node: Node, affine: Affine, move: Move, params: Parameters) -> Transfer:
    """Return the transfer that moves the bounds of a Clip that `affine` passes."""
    low, high = _bounds(node, params)
    if not affine.scale.all():
        detail = f"{node.description}: its bounds cannot be scaled by zero"
        raise Refused("activation_between", detail)
    if affine.axis is None:
        (new_low, had_low), (new_high, had_high) = sorted(
            (float(_moved(node, move, bound)), given)
            for bound, given in zip((low, high), _given(node), strict=True)
        )
        return _rebounded(node, (new_low, new_high), (had_low, had_high))
    return _limited(node, affine, ((low, move), (high, move)), params)


def _moved(node: Node, move: Move, bound: float | Array) -> Array:
    """Return the moved bound. Raises Refused if only one of both is finite."""
    with np.errstate(all="ignore"):
        found = move(np.array(bound))
    if (np.isfinite(found) != np.isfinite(bound)).any():
        raise Refused("nonfinite", f"{node.description}: a new bound is not finite")
    return found


def _limited(
    node: Node, affine: Affine, bounds: Sequence[tuple[float, Move]], params: Parameters
) -> Transfer:
    """Return the transfer of a Clip whose new bounds differ between the channels.

    A bound that a Max or Min, the only reader, limits further is moved with that, and needs no
    other.
    """
    shape, axis = shape_of(node.output.type), affine.axis
    if shape is None:
        raise unknown_shape(node)
    assert axis is not None
    further = dict(_limits_after(node, axis, params))
    ends: list[float] = []
    limits: list[Array | None] = [None, None]
    for side, (bound, move) in enumerate(bounds):
        limit = further.get(LIMITS[side])
        is_further = limit is not None and bool((limit <= bound if side else limit >= bound).all())
        if limit is not None and is_further and np.isfinite(bound):
            moved = _moved(node, move, np.broadcast_to(limit, affine.scale.shape))
        else:
            moved = _moved(node, move, np.full(affine.scale.shape, bound))
            if (moved != moved[0]).any():
                limits[side] = moved.reshape([-1 if i == axis else 1 for i in range(len(shape))])
        ends.append(float(moved.max() if side else moved.min()))
    if any(limit is not None for limit in limits):
        if not params.limits:
            detail = f"{node.description}: its bounds are not per channel"
            raise Refused("activation_between", detail)
        if not all(is_legal(op, NUMPY_BROADCAST, node) for op in LIMITS):
            detail = f"{node.description}: a Max or Min does not broadcast before opset 8"
            raise Refused("unsupported_op", detail)
    check_scale_sign(node, affine)
    transfer = _rebounded(node, (ends[0], max(ends)), _given(node))
    return replace(transfer, limits=(limits[0], limits[1]))


def _limits_after(node: Node, axis: int, params: Parameters) -> Iterator[tuple[str, Array]]:
    """Yield the Max and Min after a Clip, each with its constant, [] or [C] along `axis`."""
    seen: set[str] = set()
    reader = sole_reader(node.output)
    while reader is not None and reader.op not in seen:
        limit = limit_of(reader, axis, params)
        if limit is None:
            return
        yield reader.op, limit
        seen.add(reader.op)
        reader = sole_reader(reader.output)


def limit_of(node: Node, axis: int, params: Parameters) -> Array | None:
    """Return the constant of a Max or Min, [] or [C] along `axis`.

    None if the node is something else, or the constant varies along another axis or is not a
    number.
    """
    if node.op not in LIMITS or len(node.inputs) != 2:
        return None
    first, second = (node.operand(i) for i in range(2))
    data, array = first, params.evaluator.exact(second)
    if array is None:
        data, array = second, params.evaluator.exact(first)
    shape, extents = shape_of(node.output.type), shape_of(data.type)
    if array is None or shape is None or extents is None:
        return None
    if not array.ndim <= len(shape) == len(extents):
        return None
    limit = array.astype(np.float64)
    if np.isnan(limit).any():
        return None
    if limit.size == 1:
        return limit.reshape(())
    padded = (1,) * (len(shape) - limit.ndim) + limit.shape
    return limit.reshape(-1) if limit.size == padded[axis] == extents[axis] else None


def _given(node: Node) -> tuple[bool, bool]:
    """Return which bounds of a Clip are operands, the lower one first. The others are absent."""
    return node["min"] is not None, node["max"] is not None


def _rebounded(node: Node, bounds: tuple[float, float], given: tuple[bool, bool]) -> Transfer:
    """Return the transfer that gives a Clip new bounds, of which those not `given` stay absent.

    An absent bound is the greatest number of the dtype, to which onnxruntime limits an infinity,
    and an infinite bound keeps it. So an absent bound stays absent.
    """
    named = zip(("min", "max"), bounds, strict=True)
    if not all(fits_operand("clip", name, node, bound) for name, bound in named):
        detail = f"{node.description}: its bounds are attributes, which are float32"
        raise Refused("dtype_mismatch", detail)
    return Transfer(
        constants=tuple((i, np.array(bounds[i - 1])) for i in (1, 2) if given[i - 1]),
        dropped=tuple(i for i in (1, 2) if _given(node)[i - 1] and not given[i - 1]),
    )


@states("hard_sigmoid(s * x + t, alpha, beta) == hard_sigmoid(x, alpha * s, alpha * t + beta)")
def hard_sigmoid_forward(node: Node, given: Mapping[int, Affine], params: Parameters) -> Transfer:
    """HardSigmoid: clip(alpha x + beta, 0, 1) of s x + t has alpha s and alpha t + beta."""
    affine = only_data(node, given)
    if affine.axis is not None:
        raise Refused("activation_between", f"{node.description}: its slope is not per channel")
    alpha, beta = node.attrs.get("alpha", float(np.float32(0.2))), node.attrs.get("beta", 0.5)
    assert isinstance(alpha, float | int) and isinstance(beta, float | int)
    slope, offset = float(alpha * affine.scale), float(alpha * affine.shift + beta)
    if max(abs(slope), abs(offset)) > GREATEST:
        raise Refused("overflow", f"{node.description}: the new slope is not finite")
    if not (fits_attribute(node, slope) and fits_attribute(node, offset)):
        detail = f"{node.description}: its slope is an attribute, which is a float32"
        raise Refused("dtype_mismatch", detail)
    return Transfer(attrs=(("alpha", slope), ("beta", offset)))


RULES = {
    "clip": AffineRule(clip_backward, clip_forward),
    "hard_sigmoid": AffineRule(forward=hard_sigmoid_forward),
}
"""The rules by operator."""
