"""How an affine passes Clip and HardSigmoid, whose bounds and slope are scalars: only a uniform one does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...ir.graph import Node
from ...ir.ops.views import clip_bounds
from ...ir.provenance import Refused
from .algebra import Affine
from .operands import Parameters, fits_attribute, fits_operand
from .transfer import Transfer, only_data

GREATEST = float(np.finfo(np.float32).max)


def clip_backward(node: Node, index: int, affine: Affine, params: Parameters) -> Sequence[Transfer]:
    """Clip: s clip(x, a, b) + t = clip(s x + t, s a + t, s b + t), the bounds swapped where s < 0."""
    ends = [
        float(affine.apply(np.array(bound))) if np.isfinite(bound) else bound for bound in _bounds(node, affine, params)
    ]
    return [replace(_rebounded(node, ends, swapped=bool(affine.scale < 0)), operands=((0, affine),))]


def clip_forward(node: Node, given: Mapping[int, Affine], params: Parameters) -> Transfer:
    """Clip: clip(s x + t, a, b) = s clip(x, (a - t) / s, (b - t) / s) + t, the bounds swapped where s < 0."""
    affine = only_data(node, given)
    bounds = _bounds(node, affine, params)
    with np.errstate(all="ignore"):
        ends = [float((b - affine.shift) / affine.scale) if np.isfinite(b) else b for b in bounds]
    if not all(np.isfinite(end) == np.isfinite(b) for end, b in zip(ends, bounds, strict=True)):
        raise Refused("nonfinite", f"{node.description}: a new bound is not finite")
    return replace(_rebounded(node, ends, swapped=bool(affine.scale < 0)), results=((0, affine),))


def _bounds(node: Node, affine: Affine, params: Parameters) -> tuple[float, float]:
    """Return the bounds of a Clip that `affine` may pass; infinite where there is none."""
    if affine.axis is not None:
        raise Refused("activation_between", f"{node.description}: its bounds are not per channel")
    bounds = clip_bounds(node, params.evaluator)
    if bounds is None:
        raise Refused("non_constant_params", f"{node.description}: its bounds are not constant")
    low, high = bounds.ends
    if not low <= high or not affine.scale:
        raise Refused("activation_between", f"{node.description}: bounds {low:.6g} and {high:.6g} cannot be scaled")
    return low, high


def _rebounded(node: Node, bounds: Sequence[float], *, swapped: bool) -> Transfer:
    """Return the transfer that gives a Clip other bounds."""
    if swapped:
        bounds = [-bound if np.isinf(bound) else bound for bound in reversed(bounds)]
    if not all(fits_operand("clip", name, node, bound) for name, bound in zip(("min", "max"), bounds, strict=True)):
        raise Refused("dtype_mismatch", f"{node.description}: its bounds are attributes, which are float32")
    inputs = [i for i, bound in enumerate(bounds) if np.isfinite(bound) or node.input(i + 1) is not None]
    return Transfer(constants=tuple((i + 1, np.array(bounds[i])) for i in inputs))


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
        raise Refused("dtype_mismatch", f"{node.description}: its slope is an attribute, which is a float32")
    return Transfer(attrs=(("alpha", slope), ("beta", offset)))
