"""What the rules of `backward` and `forward` return, and the conditions that they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ...ir.attributes import Attribute
from ...ir.graph import Node
from ...ir.provenance import Refused
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


Backward = Callable[[Node, int, Affine, Parameters], "Sequence[Transfer]"]
"""The ways in which an affine of a result (by number) passes the node, the preferred one first."""

Forward = Callable[[Node, Mapping[int, Affine], Parameters], "Transfer"]
"""How affines of some operands (by number) pass the node."""


def check_scale_sign(node: Node, affine: Affine) -> None:
    """Refuse a negative scale: the operator commutes with scales of at least zero only."""
    if not (affine.scale >= 0).all():
        channel = int(np.argmax(np.atleast_1d(affine.scale) < 0))
        where = "" if affine.axis is None else f" in channel {channel}"
        number = np.atleast_1d(affine.scale)[channel]
        raise Refused("negative_scale", f"{node.label}: the scale{where} is {number:.6g}")


def check_no_shift(node: Node, affine: Affine) -> None:
    """Refuse a shift."""
    if affine.has_shift:
        raise Refused("activation_between", f"{node.label}: a shift does not pass")


def reduced_axes(node: Node, params: Parameters) -> tuple[tuple[int, ...], int]:
    """The axes, counted from the left, that a Reduce operator reduces, and the rank of its data."""
    before, _ = shapes(node)
    axes = integers(node, params, "axes", 1)
    if before is None:
        raise Refused("unknown_rank", f"{node.label}: the rank of its data is unknown")
    if axes is None:
        raise Refused("non_constant_params", f"{node.label}: its axes are not constant")
    rank = len(before)
    if not axes and not node.attrs.get("noop_with_empty_axes", 0):
        axes = tuple(range(rank))
    if not all(-rank <= axis < rank for axis in axes):
        raise Refused("non_constant_params", f"{node.label}: its data has no such axes")
    return tuple(sorted(axis % rank for axis in axes)), rank


def unknown_shape(node: Node) -> Refused:
    """Return the refusal of a rule that needs a shape which is not known."""
    return Refused("unknown_rank", f"{node.label}: a shape that decides where the channels go is unknown")


def is_extent(shape: Shape, axis: int, extent: int | None) -> bool:
    """Whether `shape` is known to have `extent` on `axis`."""
    return shape is not None and 0 <= axis < len(shape) and shape[axis] == extent
