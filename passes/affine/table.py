"""How a channel affine passes each operator: the table that FoldScaleAxis reads.

The row of an operator in `ir.ops` says how its channels move, and both directions are derived from that. Here stand the
layers, which take an affine into their weights, and operators that need a rule of their own. An operator that is in
neither stops every affine.
"""

from __future__ import annotations

from collections.abc import Callable

from ...ir.graph import Node
from ...ir.ops import OPS
from ...support.record import record
from . import broadcast, clipping, concatenation, conv, dense, dequantized_data, norm
from .algebra import Affine
from .derived_rules import derived_backward, derived_forward, takes_several_axes
from .layers import Fold
from .operands import Parameters
from .quantized_constant import is_stored
from .transfer import Backward, Forward

Absorb = Callable[[Node, Affine, Parameters], Fold]
"""Return the fold of an affine into a layer, or raise Refused."""


@record
class AffineRule:
    """The ways of an affine at an operator.

    - An affine of a result passes `backward` to the operands or, at a layer, goes into its weights (`absorb_result`).
    - An affine of the data passes `forward` to the results or, at a layer, goes into its weights (`absorb_data`).
    - An operator with both is a layer where an operand is constant.
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


NO_RULE = AffineRule()
"""The rule of an operator that stops every affine."""


def _layer(result: Absorb, data: Absorb | None = None) -> AffineRule:
    return AffineRule(absorb_result=result, absorb_data=data)


def _derived(op: str) -> AffineRule:
    return AffineRule(derived_backward, derived_forward, several_axes=takes_several_axes(op))


_SUM = AffineRule(broadcast.backward_sum, broadcast.forward_sum)

AFFINE_RULES: dict[str, AffineRule] = {
    **{op: _derived(op) for op, info in OPS.items() if info.channels is not None},
    # layers
    "nn.conv": _layer(conv.conv_result, conv.conv_data),
    "nn.conv_transpose": _layer(conv.conv_transpose_result, conv.conv_transpose_data),
    "nn.dense": _layer(dense.dense_result, dense.dense_data),
    "matmul": AffineRule(dense.matmul_backward, dense.matmul_forward, dense.matmul_result, dense.matmul_data),
    "nn.batch_norm_to_affine": _layer(norm.batch_norm_result),
    "nn.instance_norm": _layer(norm.instance_norm_result, norm.norm_data),
    "nn.group_norm": _layer(norm.group_norm_result, norm.norm_data),
    "nn.layer_norm": _layer(norm.layer_norm_result, norm.norm_data),
    "nn.rms_norm": _layer(norm.rms_norm_result),
    # bounds and slopes
    "clip": AffineRule(clipping.clip_backward, clipping.clip_forward),
    "hard_sigmoid": AffineRule(forward=clipping.hard_sigmoid_forward),
    # scales of computed integers
    "dequantize": AffineRule(dequantized_data.dequantize_backward),
    # several operands
    "add": _SUM,
    "add_n": _SUM,
    "nn.bias_add": _SUM,
    "subtract": _SUM,
    "multiply": AffineRule(broadcast.backward_product, broadcast.forward_product),
    "divide": AffineRule(broadcast.backward_quotient, broadcast.forward_quotient),
    "mean_n": AffineRule(broadcast.backward_mean),
    "maximum": AffineRule(broadcast.backward_extremum, broadcast.forward_extremum),
    "minimum": AffineRule(broadcast.backward_extremum, broadcast.forward_extremum),
    "where": AffineRule(broadcast.backward_where),
    "concatenate": AffineRule(concatenation.concatenate_backward, concatenation.concatenate_forward),
}
"""The rules by operator."""


def affine_rule(op: str) -> AffineRule:
    """Return the rule of an operator; an operator without one stops every affine."""
    return AFFINE_RULES.get(op, NO_RULE)
