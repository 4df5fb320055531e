"""BiasCorrection: subtract in the bias the mean error that quantized weights will make.

After Nagel et al. (2019), section 4.2 and appendix C: with W~ = Q(W) = W + eps, E[W~ x] = E[W x] +
eps E[x], and E[x] follows from the statistics of BatchNormalization without data.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...ir.graph import Node, Value
from ...ir.module import Module
from ...ir.ops import ops_with, sole_reader
from ...ir.ops.row import Trait
from ...ir.provenance import Refused
from ...ir.rewriter import Rewriter
from ...ir.rule_driver import RuleDriver, Rules, rule
from ...ir.tensor import Array, round_to, to_float64
from ...ir.types import DType
from ...support.errors import UsageError
from ..affine.algebra.affine import Affine
from ..affine.algebra.operands import Parameters
from ..affine.records.fold_records import LayerEdits, fold_records
from ..affine.records.statistics import statistic_refs
from ..affine.rules.table import affine_rule
from ..affine.search.commit import Committer
from ..affine.search.plan import Change, Plan
from ..affine.search.planner import Planner
from ..infra import Pass, PassContext
from .linear import Linear, read_linear
from .moments import Moments
from .statistic_ranges import propagate


@dataclass(frozen=True)
class BiasCorrection(Pass):
    """Correct biases in advance for the mean error of the weight quantization to come.

    1. A layer with a constant weight W and data x of known mean E[x] [C] gets the bias b - eps
       E[x], with eps = Q(W) - W; the taps of a convolution are summed. `propagate` gives E[x]. As
       published, E[x] is also the mean of zero padding; with `padding=exact` a tap counts by the
       share of windows in which it lies inside the data.
    2. Q rounds to integers, ties to even, as onnxruntime does. If `symmetric`, the scale is max |W|
       / (2^(bits - 1) - 1) and the zero point 0. Else the scale is (max(W, 0) - min(W, 0)) /
       (2^bits - 1), with an integer zero point. The scale has the dtype of W. There is one for W,
       or with `per_channel` one for each channel of the result. `reduce_range` leaves one bit
       free, as onnxruntime's option does: 2^(bits - 2), or 2^(bits - 1) - 1.
    3. A layer stays if the mean of its data is not known, or it has no place for a bias. A warning
       counts these layers.

    The pass changes the function: before the weights are quantized, the result of each layer is off
    by |eps E[x]|. With quantized weights its mean is correct, as far as E[x] is. The statistics of
    the values describe the quantized model.
    """

    name: ClassVar[str] = "BiasCorrection"
    bits: int = 8
    per_channel: bool = False
    symmetric: bool = True
    reduce_range: bool = False
    padding: str = "ignore"

    def __post_init__(self) -> None:
        """Check the options. Raises UsageError for a value that an option does not take."""
        if not 2 <= self.bits <= 16:
            raise UsageError(f"{self.name}: option bits has to be between 2 and 16")
        if self.padding not in ("exact", "ignore"):
            raise UsageError(f"{self.name}: option padding has to be one of exact, ignore")

    @property
    def preserves(self) -> bool:
        return False

    def run(self, module: Module, ctx: PassContext) -> bool:
        rewriter = Rewriter(module)
        # Once, before any bias changes: the corrections restore these means in the quantized model,
        # layer by layer, so that the E[x] of a later layer is the same with and without the
        # corrections before it.
        corrector = _Corrector(self, rewriter, propagate(module))
        driver = RuleDriver(rewriter, RULES, corrector)
        for graph in module.graphs():
            driver.run(graph.operators())
        if corrector.applied.layers:
            fold_records(module).history.append(corrector.applied)
        if corrector.left:
            ctx.warnings.append(
                f"{self.name}: {corrector.left} of {corrector.total} layers keep their bias,"
                " because the mean of their data is not known, or they have no bias that could"
                " take the correction"
            )
        return rewriter.changed

    @property
    def top(self) -> int:
        """The greatest integer of a quantized weight."""
        if self.reduce_range:
            return int(2 ** (self.bits - 2) if self.symmetric else 2 ** (self.bits - 1) - 1)
        return int(2 ** (self.bits - 1) - 1 if self.symmetric else 2**self.bits - 1)

    def correction(self, linear: Linear, data: Moments | None) -> Array | None:
        """Return eps E[x], [M], None if E[x] is unknown."""
        if data is None or not data.has_mean or not linear.accepts(data.axis, data.mean):
            return None
        axis = linear.weight_axis if self.per_channel else None
        error = (
            quantized(linear.weight, self.top, axis, linear.fold.dtype, symmetric=self.symmetric)
            - linear.weight
        )
        return linear.apply(error, data.mean, padding=self.padding)


def quantized(weight: Array, top: int, axis: int | None, dtype: DType, *, symmetric: bool) -> Array:
    """Return Q(W), the numbers that quantized weights stand for, in float64 and of W's shape.

    The greatest integer is `top`, and the least -`top`, or 0 unless `symmetric`. There is one
    scale, of `dtype`, for each index on `axis`, or one for all of W.
    """
    scale = scales(weight, top, axis, dtype, symmetric=symmetric)
    low = np.minimum(weight.min(axis=_others(weight, axis), keepdims=True), 0.0)
    zero = np.zeros_like(scale) if symmetric else np.rint(-low / scale)
    least = -top if symmetric else 0
    return np.asarray((np.clip(np.rint(weight / scale) + zero, least, top) - zero) * scale)


def scales(
    weight: Array, top: int, axis: int | None, dtype: DType, *, symmetric: bool = True
) -> Array:
    """Return the scales of quantized weights, which broadcast to W; 1 for a channel of zeros."""
    over = _others(weight, axis)
    high = np.maximum(weight.max(axis=over, keepdims=True), 0.0)
    low = np.minimum(weight.min(axis=over, keepdims=True), 0.0)
    span = np.maximum(high, -low) if symmetric else high - low
    found = to_float64(round_to(span / top, dtype))
    return np.where(found > 0, found, 1.0)


def _others(weight: Array, axis: int | None) -> tuple[int, ...] | None:
    return None if axis is None else tuple(i for i in range(weight.ndim) if i != axis)


class _Corrector:
    """The state of one run: `left` of `total` layers keep their bias; `applied` has the rest."""

    def __init__(
        self, options: BiasCorrection, rewriter: Rewriter, moments: Mapping[Value, Moments]
    ) -> None:
        self.options = options
        self.rewriter = rewriter
        self.moments = moments
        self.params = Parameters(rewriter.module.constants)
        self.planner = Planner(self.params)
        self.committer = Committer(rewriter)
        self.applied = LayerEdits(str(options))
        self.left = self.total = 0

    def correct(self, node: Node) -> bool:
        """Subtract the mean error of the quantized weight from the bias of a layer, or decline."""
        linear = read_linear(node, self.params)
        if linear is None:
            return self.rewriter.decline("its weight is not constant")
        self.total += 1
        correction = self.options.correction(linear, self.moments.get(linear.data))
        if correction is None:
            self.left += 1
            return self.rewriter.decline("the mean of its data is not known")
        if not correction.any():
            self.applied.layers[node] = {"correction": correction}
            return self.rewriter.decline("the mean error is zero")
        if not self.subtract(linear, correction):
            self.left += 1
            return self.rewriter.decline("it has no bias that could take the correction")
        self.applied.layers[node] = {"correction": correction}
        return True

    def subtract(self, linear: Linear, correction: Array) -> bool:
        """Subtract `correction` [M] from the bias, and return whether there is a place for it."""
        affine = Affine.joined(linear.axis, np.ones_like(correction), -correction)
        change = self.change(linear.node, affine)
        if change is None:
            return False
        statistics = statistic_refs(self.rewriter.module)
        known = statistics.get(change.value)
        self.committer.commit(Plan([change]), change.node, change.node)
        if (
            known is not None
        ):  # whatever the commit made of it: with quantized weights the mean is the old one
            statistics[change.value] = known
        return True

    def change(self, node: Node, affine: Affine) -> Change | None:
        """Return the change of the bias, or of the constant of an Add, the only reader."""
        absorb = affine_rule(node.op).absorb_result
        assert absorb is not None
        with suppress(Refused):
            fold = absorb(node, affine, self.params)
            if fold.shift is None:
                return Change(node, node.output, "forward", fold=fold)
        reader = sole_reader(node.output)
        if reader is None or reader.op != "add":
            return None
        with suppress(Refused):
            changes = self.planner.forward(node.output, affine).changes
            if len(changes) == 1 and changes[0].transfer is not None:
                return changes[0]
        return None


@rule(affine="merges")
def correct_bias(node: Node, rewriter: Rewriter, corrector: _Corrector) -> bool:
    """layer(x, W, b) -> layer(x, W, b - (Q(W) - W) E[x])"""
    return corrector.correct(node)


RULES: Rules[_Corrector] = dict.fromkeys(ops_with(Trait.LINEAR), (correct_bias,))
