"""The result of rules that let an affine pass, and the conditions that they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ....ir.attributes import Attribute
from ....ir.graph import Node
from ....ir.provenance import Refused
from ....ir.record import Record
from ....ir.tensor import Array
from .affine import Affine
from .operands import Parameters


class Transfer(Record):
    """An affine that passes a node, and the new operands of the node and its neighbours.

    Backward, a result becomes its affine if each of `operands` does. Forward, an operand loses
    its affine if each of `results` takes one.

    `constants` (float64, by input) and `attrs` replace operands and attributes of the node, which
    loses the `dropped` inputs. `limits` are a lower and an upper bound per channel, of the rank of
    the result, to which a Max and a Min after the node limit it.
    """

    operands: tuple[tuple[int, Affine], ...] = ()
    results: tuple[tuple[int, Affine], ...] = ()
    constants: tuple[tuple[int, Array], ...] = ()
    dropped: tuple[int, ...] = ()
    attrs: tuple[tuple[str, Attribute], ...] = ()
    limits: tuple[Array | None, Array | None] = (None, None)


Backward = Callable[[Node, int, Affine, Parameters], "Sequence[Transfer]"]
"""The ways in which an affine of a result (by number) passes the node, the preferred one first."""

Forward = Callable[[Node, Mapping[int, Affine], Parameters], "Transfer"]
"""How affines of some operands (by number) pass the node."""


def sole_affine(node: Node, given: Mapping[int, Affine]) -> tuple[int, Affine]:
    """Return the one operand that has an affine, and the affine; refuse several."""
    if len(given) > 1:
        detail = f"{node.description} reads the affine on more than one path"
        raise Refused("multi_consumer", detail)
    return next(iter(given.items()))


def check_scale_sign(node: Node, affine: Affine) -> None:
    """Refuse a negative scale: the operator commutes with scales of at least zero only."""
    if not (affine.scale >= 0).all():
        channel = int(np.argmax(np.atleast_1d(affine.scale) < 0))
        where = "" if affine.axis is None else f" in channel {channel}"
        number = np.atleast_1d(affine.scale)[channel]
        raise Refused("negative_scale", f"{node.description}: the scale{where} is {number:.6g}")


def check_no_zero_scale(node: Node, affine: Affine) -> None:
    """Refuse a scale of zero: the node would have to divide by it."""
    if not affine.scale.all():
        raise Refused("zero_scale", f"{node.description}: a scale is zero")


def check_no_shift(node: Node, affine: Affine) -> None:
    """Refuse a shift."""
    if affine.has_shift:
        raise Refused("activation_between", f"{node.description}: a shift does not pass")


def only_data(node: Node, given: Mapping[int, Affine]) -> Affine:
    """Return the affine of the data, the first operand.

    Raises Refused if another operand has one.
    """
    if list(given) != [0]:
        raise Refused("unsupported_op", f"{node.description} reads the affine as a parameter")
    return given[0]
