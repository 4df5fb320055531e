"""The mean error of rounded weights, which a bias takes back.

A layer W x + b with rounded weights W + D is off by D E[x] on average, the same for every input. So
the bias becomes b - D E[x]: what is left varies from input to input around 0. E[x], a number for
each channel, is measured on samples, or follows from the statistics of BatchNormalization. This is
the bias correction of Nagel et al. (2019) for another rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ...ir.graph import Node, Value, is_constant
from ...ir.matching import is_only_reader
from ...ir.module import Module
from ...ir.provenance import SideTable
from ...ir.record import Record
from ...ir.tensor import Array, to_float64
from ...ir.types import shape_of
from .half_constants import RoundedConstant, exact_elements

LAYERS = ("nn.conv", "nn.dense", "matmul")
"""Layers whose errors are corrected."""


class ChannelMeans(Record):
    """The mean of each channel of a value, float64 [C] along `axis`."""

    axis: int
    mean: Array


class KnownMeans(SideTable):
    """The means of the values of a module."""

    def __init__(self) -> None:
        self.means: dict[Value, ChannelMeans] = {}

    def value_replaced(self, old: Value, new: Value) -> None:
        if old in self.means:
            self.means[new] = self.means[old]


def known_means(module: Module) -> dict[Value, ChannelMeans]:
    """Return the means that are known of a module's values; empty if nobody gave any."""
    return module.provenance.table(KnownMeans).means


def data_axes(module: Module) -> Iterator[tuple[Value, int]]:
    """Yield the data of layers whose errors can be corrected, each with the axis of its channels.

    The axis counts from the left.
    """
    for node in module.graph.operators_of(LAYERS):
        data, weight = node.operand(0), node.operand(1)
        shape = shape_of(data.type)
        if shape is None or len(shape) < 2 or not is_constant(weight) or is_constant(data):
            continue
        if _bias_of(node) is not None:
            yield data, 1 if node.op == "nn.conv" else len(shape) - 1


def corrected_biases(
    module: Module, constants: Mapping[tuple[Value, Node], RoundedConstant]
) -> Iterator[tuple[Value, Node, Array]]:
    """Yield the biases of layers with rounded weights, each with its reader and its new elements.

    `constants` are the rounded constants by value and reader.
    """
    means = known_means(module)
    for node in module.graph.operators_of(LAYERS):
        data, weight = node.operand(0), node.operand(1)
        rounded, place = constants.get((weight, node)), _bias_of(node)
        if data not in means or rounded is None or place is None:
            continue
        reader, bias = place
        if (bias, reader) not in constants:
            continue
        exact, numbers = exact_elements(module, weight), exact_elements(module, bias)
        if exact is None or numbers is None:
            continue
        shift = mean_error(node, to_float64(rounded.array) - exact, means[data])
        if shift is not None and shift.size == numbers.size and np.isfinite(shift).all():
            yield bias, reader, numbers - shift.reshape(numbers.shape)


def mean_error(node: Node, errors: Array, means: ChannelMeans) -> Array | None:
    """Return the mean error [C] of the result for `errors` of the weight, None if unknown."""
    mean = means.mean
    if node.op == "nn.conv":
        if means.axis != 1 or errors.ndim < 3 or mean.size % errors.shape[1]:
            return None
        groups = mean.size // errors.shape[1]
        if not groups or len(errors) % groups:
            return None
        sums = errors.reshape(*errors.shape[:2], -1).sum(axis=2)
        each = mean.reshape(groups, -1).repeat(len(errors) // groups, axis=0)
        return np.asarray((sums * each).sum(axis=1))
    if errors.ndim != 2:
        return None
    by_row = errors.T if node.op == "nn.dense" and node.attrs.get("transB", 0) else errors
    return np.asarray(mean @ by_row) if mean.size == len(by_row) else None


def _bias_of(node: Node) -> tuple[Node, Value] | None:
    """Return the constant bias of a layer and its reader: the layer, or an Add that alone reads it.

    It has one element for each channel.
    """
    if node.op == "matmul":
        result = node.output
        for reader in result.users:
            if reader.op not in ("add", "nn.bias_add") or not is_only_reader(result, reader):
                return None
            others = [value for value in reader.inputs if value is not result]
            bias = others[0] if len(others) == 1 else None
            channels = shape_of(node.operand(1).type)
            if bias is None or not is_constant(bias) or channels is None or len(channels) != 2:
                return None
            shape = shape_of(bias.type)
            is_last = bool(shape) and shape is not None and shape[-1] == channels[-1]
            return (reader, bias) if is_last and reader.attrs.get("axis") is None else None
        return None
    bias = node["bias"]
    factors = node.attrs.get("alpha", 1.0), node.attrs.get("beta", 1.0)
    is_plain = factors == (1.0, 1.0) and not node.attrs.get("transA", 0)
    return (node, bias) if bias is not None and is_constant(bias) and is_plain else None
