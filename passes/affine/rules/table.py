"""How a channel affine passes each operator: the table that FoldScaleAxis reads.

The row of an operator in `ir.ops` says how its channels move, and both directions are derived from
that. Layers, which take an affine into their weights, and operators that need a rule of their own
have one in a module of this folder. An operator with neither stops every affine.
"""

from __future__ import annotations

from ....ir.ops import OPS
from . import broadcast, clipping, concatenation, conv, dense, dequantized_data, norm
from .affine_rule import AffineRule
from .derived_rules import derived_backward, derived_forward, takes_several_axes

NO_RULE = AffineRule()
"""The rule of an operator that stops every affine."""

AFFINE_RULES = {
    op: AffineRule(derived_backward, derived_forward, several_axes=takes_several_axes(op))
    for op, info in OPS.items()
    if info.channels is not None
}
"""The rules by operator. A rule in a module takes the place of a derived one."""

for _module in (conv, dense, norm, clipping, dequantized_data, broadcast, concatenation):
    AFFINE_RULES |= _module.RULES


def affine_rule(op: str) -> AffineRule:
    """Return the rule of an operator; an operator without one stops every affine."""
    return AFFINE_RULES.get(op, NO_RULE)
