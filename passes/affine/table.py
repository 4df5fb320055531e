"""How a channel affine passes each operator: the part of the op table that FoldScaleAxis reads.

An operator without a row stops every affine. To let one pass, write its rule and add a row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ...ir.graph import Node
from ...support.record import record
from . import backward, broadcast, conv, dense, forward, norm
from .algebra import Affine
from .layers import Fold
from .operands import Parameters
from .transfer import Backward, Forward

Absorb = Callable[[Node, Affine, Parameters], "Fold"]


@record
class AffineRule:
    """What an operator does with an affine: of a result it lets it pass `backward` to the operands or, as a layer,
    takes it into its weights (`absorb_result`); of its data, `forward` to the results, or `absorb_data`. With
    `several_axes` the channels may lie on more than one.
    """

    backward: Backward | None = None
    forward: Forward | None = None
    absorb_result: Absorb | None = None
    absorb_data: Absorb | None = None
    several_axes: bool = False


NO_RULE = AffineRule()
"""That of an operator that stops every affine."""


def _carrier(back: Backward, forth: Forward | None = None) -> AffineRule:
    return AffineRule(backward=back, forward=forth)


def _layer(result: Absorb, data: Absorb | None = None) -> AffineRule:
    return AffineRule(absorb_result=result, absorb_data=data)


_RECTIFIER = AffineRule(backward.rectifier, forward.rectifier, several_axes=True)
_RESHAPE = AffineRule(backward.reshape, forward.reshape, several_axes=True)
_RESIZE = _carrier(backward.resize, forward.resize)
_SUM = _carrier(broadcast.backward_sum, broadcast.forward_sum)
_UNCHANGED = AffineRule(backward.unchanged, forward.unchanged, several_axes=True)


def _pool(kind: str) -> AffineRule:
    return _carrier(partial(backward.pool, kind=kind), partial(forward.pool, kind=kind))


def _reduction(kind: str) -> AffineRule:
    return _carrier(partial(backward.reduce, kind=kind), partial(forward.reduce, kind=kind))


AFFINE_RULES: dict[str, AffineRule] = {
    # layers
    "nn.conv": _layer(conv.conv_result, conv.conv_data),
    "nn.conv_transpose": _layer(conv.conv_transpose_result, conv.conv_transpose_data),
    "nn.dense": _layer(dense.dense_result, dense.dense_data),
    "matmul": _layer(dense.matmul_result, dense.matmul_data),
    "nn.batch_norm_to_affine": _layer(norm.batch_norm_result),
    "nn.instance_norm": _layer(norm.instance_norm_result, norm.norm_data),
    "nn.group_norm": _layer(norm.group_norm_result, norm.norm_data),
    "nn.layer_norm": _layer(norm.layer_norm_result, norm.norm_data),
    "nn.rms_norm": _layer(norm.rms_norm_result),
    # activations
    "nn.relu": _RECTIFIER,
    "nn.leaky_relu": _RECTIFIER,
    "nn.prelu": _RECTIFIER,
    "abs": _RECTIFIER,
    "clip": _carrier(backward.clip, forward.clip),
    "hard_sigmoid": AffineRule(forward=forward.hard_sigmoid),
    # windows and reductions
    "nn.max_pool": _pool("max"),
    "nn.global_max_pool": _pool("max"),
    "nn.avg_pool": _pool("mean"),
    "nn.global_avg_pool": _pool("mean"),
    "nn.lp_pool": _pool("lp"),
    "nn.global_lp_pool": _pool("lp"),
    "max": _reduction("max"),
    "min": _reduction("max"),
    "mean": _reduction("mean"),
    "sum": _reduction("sum"),
    "reduce_l1": _reduction("norm"),
    "reduce_l2": _reduction("norm"),
    "nn.pad": _carrier(backward.pad, forward.pad),
    "image.resize": _RESIZE,
    "nn.upsampling": _RESIZE,
    # several operands
    "add": _SUM,
    "add_n": _SUM,
    "nn.bias_add": _SUM,
    "subtract": _SUM,
    "multiply": _carrier(broadcast.backward_product, broadcast.forward_product),
    "divide": _carrier(broadcast.backward_quotient, broadcast.forward_quotient),
    "mean_n": _carrier(broadcast.backward_mean),
    "maximum": _carrier(broadcast.backward_extremum),
    "minimum": _carrier(broadcast.backward_extremum),
    "where": _carrier(broadcast.backward_where),
    # movement
    "negative": _carrier(backward.negative, forward.negative),
    "identity": _UNCHANGED,
    "nn.dropout": _UNCHANGED,
    "concatenate": _carrier(backward.concatenate, forward.concatenate),
    "split": _carrier(backward.split, forward.split),
    "strided_slice": _carrier(backward.strided_slice, forward.strided_slice),
    "take": _carrier(backward.take, forward.take),
    "transpose": AffineRule(backward.transpose, forward.transpose, several_axes=True),
    "reshape": _RESHAPE,
    "expand_dims": _RESHAPE,
    "squeeze": _RESHAPE,
    "nn.batch_flatten": _RESHAPE,
    "broadcast_to": _carrier(backward.broadcast_to, forward.broadcast_to),
    "tile": _carrier(backward.tile, forward.tile),
    "nn.depth_to_space": _carrier(backward.depth_to_space, forward.depth_to_space),
    "nn.space_to_depth": _carrier(backward.space_to_depth, forward.space_to_depth),
}
"""The rules by operator."""


def affine_rule(op: str) -> AffineRule:
    """Return the rule of an operator; an operator without one stops every affine."""
    return AFFINE_RULES.get(op, NO_RULE)
