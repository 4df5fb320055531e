"""What the rules of `backward` and `forward` return, and the conditions that they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ...ir.attributes import Attribute
from ...ir.graph import Node
from ...ir.provenance import Refusal
from ...ir.tensor import Array
from ...ir.types import Shape
from ...support.record import record
from .algebra import Affine
from .operands import Parameters, integers, shapes


@record
class Transfer:
    """An affine passes a node: one of its result does if every one of `operands` becomes that affine of itself, one
    of its operands if every one of its `results` is taken on.

    `constants` (float64, by input) and `attrs` are what the node gets instead of its own.
    """

    operands: tuple[tuple[int, Affine], ...] = ()
    results: tuple[tuple[int, Affine], ...] = ()
    constants: tuple[tuple[int, Array], ...] = ()
    attrs: tuple[tuple[str, Attribute], ...] = ()


Backward = Callable[[Node, int, Affine, Parameters], "Sequence[Transfer] | Refusal"]
"""The ways in which an affine of a result (by number) passes the node, the preferred one first."""

Forward = Callable[[Node, Mapping[int, Affine], Parameters], "Transfer | Refusal"]
"""How affines of some operands (by number) pass the node."""


def below_zero(node: Node, affine: Affine) -> Refusal | None:
    """Why an operator that commutes with scales of at least zero does not with this one."""
    if (affine.scale >= 0).all():
        return None
    channel = int(np.argmax(np.atleast_1d(affine.scale) < 0))
    where = "" if affine.axis is None else f" in channel {channel}"
    return Refusal("negative_scale", f"{node.label}: the scale{where} is {np.atleast_1d(affine.scale)[channel]:.6g}")


def shifted(node: Node, affine: Affine) -> Refusal | None:
    """Why an operator that no shift passes does not take this affine."""
    if not affine.has_shift:
        return None
    return Refusal("activation_between", f"{node.label}: a shift does not pass")


def reduced_axes(node: Node, params: Parameters) -> tuple[tuple[int, ...], int] | Refusal:
    """The axes, counted from the left, that a Reduce operator reduces, and the rank of its data."""
    before, _ = shapes(node)
    axes = integers(node, params, "axes", 1)
    if before is None:
        return Refusal("unknown_rank", f"{node.label}: the rank of its data is unknown")
    if axes is None:
        return Refusal("non_constant_params", f"{node.label}: its axes are not constant")
    rank = len(before)
    if not axes and not node.attrs.get("noop_with_empty_axes", 0):
        axes = tuple(range(rank))
    if not all(-rank <= axis < rank for axis in axes):
        return Refusal("non_constant_params", f"{node.label}: its data has no such axes")
    return tuple(sorted(axis % rank for axis in axes)), rank


def unknown_shape(node: Node) -> Refusal:
    """A shape that a rule needs is not known."""
    return Refusal("unknown_rank", f"{node.label}: a shape that decides where the channels go is unknown")


def is_extent(shape: Shape, axis: int, extent: int | None) -> bool:
    """Whether `shape` is known to have `extent` on `axis`."""
    return shape is not None and 0 <= axis < len(shape) and shape[axis] == extent
