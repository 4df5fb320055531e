"""How a scale goes into the scale of a DequantizeLinear of computed data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....ir.graph import Node
from ....ir.ops.inference import integer_of
from ....ir.provenance import Refused
from ....ir.tensor import Array, fits, smallest_normal
from ....ir.types import dtype_of, shape_of
from ....support.statement import states
from ..algebra.affine import Affine
from ..algebra.operands import Parameters, common_value
from ..algebra.transfer import Transfer, check_no_zero_scale, check_scale_sign
from .affine_rule import AffineRule

CODE = "quantized_between"


@states("s * dequantize(q, d, z) + t == dequantize(q, s * d, z) if t == 0 and s >= 0 and s != 0")
def dequantize_backward(
    node: Node, index: int, affine: Affine, params: Parameters
) -> Sequence[Transfer]:
    """DequantizeLinear: s ((q - zero_point) scale) = (q - zero_point) (s scale) for s > 0.

    The integers were rounded before, so they take no shift. A scale per channel needs a
    DequantizeLinear with one: with more scales than before, integer layers after it would become
    float layers.
    """
    if affine.has_shift or not params.quantized:
        source = node.operand().node
        by = "" if source is None or source.op == "constant" else f" by {source.description}"
        raise Refused(CODE, f"{node.description}: its data are rounded to integers{by}")
    check_scale_sign(node, affine)
    check_no_zero_scale(node, affine)
    dtype = dtype_of(node["scale"].type)
    scale = params.evaluator.exact(node["scale"])
    if scale is None or dtype is None or not dtype.is_float:
        raise Refused(CODE, f"{node.description}: its scale is not constant")
    if dtype_of(node.output.type) is not dtype or integer_of(node, "output_dtype", 0):
        detail = f"{node.description}: its scale is {dtype}, and its result has another type"
        raise Refused("dtype_mismatch", detail)
    product: Array = scale.astype(np.float64) * _factor(node, affine, scale)
    if (np.abs(product) < smallest_normal(dtype)).any():
        detail = f"{node.description}: a scale is below the normal numbers of {dtype}"
        raise Refused("underflow", detail)
    stored = dtype_of(node.operand().type)
    # No difference of integers is greater, and no number of float8.
    if stored is None or not fits(product * 2.0 ** max(stored.bits, 16), dtype):
        raise Refused("overflow", f"{node.description}: its result may exceed {dtype}")
    return [Transfer(constants=((1, product),))]


def _factor(node: Node, affine: Affine, scale: Array) -> Array:
    """Return the scale of `affine` as it broadcasts against the scales of a DequantizeLinear."""
    number = common_value(affine.scale)
    if number is not None:
        return np.array(number)
    shape = shape_of(node.output.type)
    axis = integer_of(node, "axis", 1)
    if axis < 0 and shape is not None:
        axis += len(shape)
    is_blocked = integer_of(node, "block_size", 0)
    if scale.shape != affine.scale.shape or axis != affine.axis or is_blocked:
        detail = "its scales are not per channel, and the factors of the channels differ"
        raise Refused(CODE, f"{node.description}: {detail}")
    return affine.scale


RULES = {"dequantize": AffineRule(dequantize_backward)}
"""The rules by operator."""
