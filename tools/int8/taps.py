"""Spatial kernels of a float model moved onto the grid, so that errors cancel over neighbours."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, numpy_helper

from ...ir.module import Module
from ...ir.tensor import Array
from ...passes.affine.algebra.operands import Parameters
from ...passes.data_free.bias_correction import quantized, scales
from ...passes.data_free.linear import read_linear
from ...passes.data_free.statistic_ranges import propagate
from ...passes.data_free.tap_rounding import correlation_of, distances, rounded_taps
from .free_names import underscored
from .integer_limits import remove_unread


@dataclass(frozen=True, slots=True, eq=False)
class Taps:
    """A weight on the grid of int8, and what it adds to the mean of the result, [M] or zero.

    The mean is counted from nearest rounding, which the bias is corrected for.
    """

    weight: Array
    shift: Array


def find_taps(module: Module, *, per_channel: bool, top: int) -> dict[str, Taps]:
    """Return better roundings of the spatial kernels of a corrected module, by their result.

    `top` is the greatest integer of a weight. O(weights).
    """
    params, moments = Parameters(module.constants), propagate(module)
    found: dict[str, Taps] = {}
    for node in module.graph.operators():
        linear = read_linear(node, params)
        apart = None if linear is None else distances(linear)
        if linear is None or apart is None or not np.isfinite(linear.weight).all():
            continue
        axis, dtype = linear.weight_axis if per_channel else None, linear.fold.dtype
        steps = scales(linear.weight, top, axis, dtype)
        integers = rounded_taps(linear, steps, top, correlation_of(linear, apart, moments))
        weight, shift = integers * steps, np.zeros(())
        data = moments.get(linear.data)
        if data is not None and data.has_mean and linear.accepts(data.axis, data.mean):
            nearest = quantized(linear.weight, top, axis, dtype, symmetric=True)
            shift = linear.apply(weight - nearest, data.mean, padding="ignore")
        found[node.output.name] = Taps(weight, shift)
    return found


def apply_taps(model: ModelProto, taps: dict[str, Taps], left: Collection[str]) -> None:
    """Give Convs of a corrected model their weights on the grid, and biases to match, in place.

    A Conv in `left` keeps its weight, as does one whose bias cannot take the shift. O(nodes).
    """
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        found = taps.get(node.output[0]) if node.op_type == "Conv" else None
        if found is None or node.name in left or node.input[1] not in tensors:
            continue
        bias = tensors.get(node.input[2]) if len(node.input) > 2 else None
        if found.shift.any() and (bias is None or list(bias.dims) != list(found.shift.shape)):
            continue
        arrays = {1: found.weight}
        if bias is not None and found.shift.any():
            arrays[2] = numpy_helper.to_array(bias).astype(np.float64) - found.shift
        for index, array in arrays.items():
            old = numpy_helper.to_array(tensors[node.input[index]])
            name = node.input[index] = underscored(node.input[index], tensors)
            tensors[name] = numpy_helper.from_array(array.astype(old.dtype), name)
            model.graph.initializer.append(tensors[name])
    remove_unread(model, set(tensors))
