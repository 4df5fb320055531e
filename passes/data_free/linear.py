"""Layers as linear maps of vectors with one number a channel, for data constant in each."""

from __future__ import annotations

from math import prod

import numpy as np
from msgspec.structs import replace

from ...ir.graph import Node, Value
from ...ir.ops import OPS, has_trait
from ...ir.ops.inference import input_shapes, integer_of
from ...ir.ops.row import Trait
from ...ir.ops.views import may_read_padding, window_of
from ...ir.provenance import Refused
from ...ir.record import Record
from ...ir.tensor import Array, to_float64
from ..affine.algebra.affine import Affine
from ..affine.algebra.layers import Fold, read_bias
from ..affine.algebra.operands import Parameters
from ..affine.rules.table import affine_rule
from ..affine.rules.zero_padding import shares


class Linear(Record):
    """A layer with a constant `weight`, here in float64.

    `data_axis` and `axis` are the axes of the channels in the data and in the result. `weight_axis`
    is the axis of the result's channels in the weight.
    """

    node: Node
    weight: Array
    data: Value
    data_axis: int
    weight_axis: int
    axis: int
    fold: Fold

    @property
    def channels(self) -> int:
        """Number of channels of the data, from the shape of the weight."""
        groups, _, columns, _ = self.grouped(self.weight).shape
        return int(groups * columns)

    @property
    def alpha(self) -> float:
        """The factor of the product, which only a Gemm has."""
        alpha = self.node.attrs.get("alpha", 1.0)
        assert isinstance(alpha, float | int)
        return float(alpha)

    def grouped(self, weight: Array) -> Array:
        """View `weight` as [groups, channels of the result, channels of the data, taps]."""
        grouped = OPS[self.node.op].grouped
        assert grouped is not None
        return grouped(self.node, weight, self.fold.index)

    def accepts(self, axis: int | None, vector: Array) -> bool:
        """Return whether `vector` [C] has one number for each channel of the data, on `axis`."""
        return axis == self.data_axis and vector.size == self.channels

    def apply(self, weight: Array, vector: Array, *, padding: str = "exact") -> Array:
        """Return the mean response [M] of `weight`, without the bias, to data `vector` [C].

        A tap of a convolution counts by the share of windows in which it is inside the data. The
        share is 1 if extents are unknown, or `padding` is not exact. A tap of a transposed
        convolution reaches a position in one of its strides.
        """
        if self.node.op == "nn.conv" and padding == "exact":
            inside = shares(self.node, weight.shape[2:])
            weight = weight if inside is None else weight * inside
        taps = self.grouped(weight).sum(axis=3)
        spread = vector.reshape(len(taps), -1)
        # Matrices of language models are large: BLAS.
        if weight.ndim == 2:
            response = np.matmul(taps, spread[..., None])
        else:
            response = np.einsum("gmc,gc->gm", taps, spread)
        return np.asarray(self.alpha * response.reshape(-1) / self.phase_count)

    def over_results(self, weight: Array) -> Array:
        """Return the sums [C] of `weight` over the results and taps that read a channel.

        Of the taps of a transposed convolution it is the share that reaches one position.
        """
        taps = self.grouped(weight).sum(axis=3)
        return np.asarray(taps.sum(axis=1).reshape(-1) / self.phase_count)

    @property
    def fan_in(self) -> float:
        """Number of products that an element of the result sums up."""
        _, _, columns, taps = self.grouped(self.weight).shape
        return float(columns * taps / self.phase_count)

    def bounds(self, low: Array, high: Array) -> tuple[Array, Array]:
        """Return the least and greatest result [M] without the bias, for data in [low, high].

        Taps may lie outside the data, where it is 0.
        """
        if self.is_transposed or may_read_padding(self.node, self.weight.shape[2:]):
            low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
        positive, negative = (
            replace(self, weight=part(self.weight, 0.0)) for part in (np.maximum, np.minimum)
        )
        ends = []
        for with_positive, with_negative in ((low, high), (high, low)):
            parts = (
                positive.phases(with_positive, np.zeros_like(low), padding="ignore"),
                negative.phases(with_negative, np.zeros_like(low), padding="ignore"),
            )
            ends.append([a[0] + b[0] for a, b in zip(*parts, strict=True)])
        every = np.array(ends)
        return every.min(axis=(0, 1)), every.max(axis=(0, 1))

    @property
    def is_transposed(self) -> bool:
        """Whether the layer is a transposed convolution."""
        return self.node.op == "nn.conv_transpose"

    @property
    def strides(self) -> tuple[int, ...]:
        """The strides of a transposed convolution, none of another layer."""
        if not self.is_transposed:
            return ()
        window = window_of(self.node, self.weight.ndim - 2)
        return () if window is None else window.strides

    @property
    def phase_count(self) -> int:
        """Number of kinds of positions of the result, each reached by other taps."""
        return prod(self.strides)

    def phases(
        self, vector: Array, variance: Array, *, padding: str = "exact"
    ) -> list[tuple[Array, Array]]:
        """Return mean and variance [M] of the result without its bias, for independent data [C].

        There is one pair for each kind of position. A transposed convolution has prod(strides)
        kinds, each reached by other taps; any other layer has one kind.
        """
        strides, kinds = self.strides, self.phase_count
        found = []
        for phase in np.ndindex(*strides):
            mask = np.zeros(self.weight.shape[2:] if phase else (), bool)
            mask[
                tuple(slice(first, None, step) for first, step in zip(phase, strides, strict=True))
            ] = True
            weight = self.weight * mask
            # apply() takes the mean over all kinds, to which the taps of the others add 0 here. The
            # variance of alpha * x takes alpha^2, of which apply() has one factor.
            mean, square = (
                self.apply(weight, vector, padding=padding),
                self.apply(weight**2, variance, padding=padding),
            )
            found.append((mean * kinds, square * kinds * self.alpha))
        return found

    def bias(self, params: Parameters) -> Array | None:
        """Return the bias, [M] or [], None unless it is constant with one number a channel."""
        if not has_trait(self.node, Trait.BIASED):
            return np.zeros(())
        try:
            bias = read_bias(self.node, params)
        except Refused:
            return None
        if bias is None:
            return np.zeros(())
        beta = self.node.attrs.get("beta", 1.0)
        assert isinstance(beta, float | int)
        columns = bias.shape[-1] if bias.ndim else 1
        if bias.size != columns:
            return None
        return float(beta) * bias.reshape(bias.shape[-1:])


def read_linear(node: Node, params: Parameters) -> Linear | None:
    """Return `node` as a linear map, None if it is not a layer or its weight is not constant."""
    absorb = affine_rule(node.op).absorb_result
    if not has_trait(node, Trait.LINEAR) or absorb is None:
        return None
    try:
        fold = absorb(node, Affine(None, ()), params)
    except Refused:
        return None
    weight = params.evaluator.array(fold.weight)
    if weight is None or (node.op == "matmul" and weight.ndim != 2):
        return None
    shape = input_shapes(node)[1 - fold.index]
    if node.op == "matmul" and shape is None:
        return None
    group = integer_of(node, "group", 1)
    if group < 1 or weight.shape[0] % group:
        return None
    axis = 1
    if node.op == "nn.dense" and node.attrs.get("transA", 0):
        axis = 0
    elif node.op == "matmul" and shape is not None:
        axis = len(shape) - 1 if fold.index == 1 else len(shape) - 2
    return Linear(
        node,
        to_float64(weight),
        node.operand(1 - fold.index),
        axis,
        fold.weight_axis,
        fold.axis,
        fold,
    )
