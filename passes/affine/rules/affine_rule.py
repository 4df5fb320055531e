"""The rule of an operator: how a channel affine passes it, or goes into its weights."""

from __future__ import annotations

from collections.abc import Callable

from ....ir.graph import Node
from ....ir.record import Record
from ..algebra.affine import Affine
from ..algebra.layers import Fold
from ..algebra.operands import Parameters
from ..algebra.stored import is_stored
from ..algebra.transfer import Backward, Forward

Absorb = Callable[[Node, Affine, Parameters], Fold]
"""Return the fold of an affine into a layer, or raise Refused."""


class AffineRule(Record):
    """The ways of an affine at an operator.

    - An affine of a result passes `backward` to the operands or, at a layer, goes into its weights
      (`absorb_result`).
    - An affine of the data passes `forward` to the results or, at a layer, goes into its weights
      (`absorb_data`).
    - An operator with both is a layer if an operand is constant.
    - With `several_axes` the channels may lie on more than one axis.
    """

    backward: Backward | None = None
    forward: Forward | None = None
    absorb_result: Absorb | None = None
    absorb_data: Absorb | None = None
    several_axes: bool = False

    def is_layer(self, node: Node, params: Parameters) -> bool:
        """Return whether `node` has weights to take an affine."""
        if self.absorb_result is None or self.backward is None:
            return self.absorb_result is not None
        return any(is_stored(value, params) for value in node.inputs)


def layer(result: Absorb, data: Absorb | None = None) -> AffineRule:
    """Return the rule of a layer."""
    return AffineRule(absorb_result=result, absorb_data=data)
