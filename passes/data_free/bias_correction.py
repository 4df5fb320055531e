"""BiasCorrection: the mean error of the results with quantized weights is subtracted from the biases in advance.

After Nagel et al. (2019), section 4.2 and appendix C: with W~ = Q(W) = W + eps, E[W~ x] = E[W x] + eps E[x], and E[x]
follows from the statistics of BatchNormalization without data.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...ir.graph import Node
from ...ir.module import Module
from ...ir.ops import has_trait, sole_reader
from ...ir.ops.row import Trait
from ...ir.provenance import Refused
from ...ir.rewriter import Rewriter
from ...ir.tensor import Array, round_to, to_float64
from ...ir.types import DType
from ...support.errors import UsageError
from ..affine.algebra import Affine
from ..affine.commit import Committer
from ..affine.fold_records import LayerEdits, fold_records
from ..affine.operands import Parameters
from ..affine.plan import Change, Plan
from ..affine.planner import Planner
from ..affine.statistics import statistic_refs
from ..affine.table import affine_rule
from ..infra import Pass, PassContext
from .linear import Linear, read_linear
from .moments import Moments, propagate


@dataclass(frozen=True)
class BiasCorrection(Pass):
    """Correct biases in advance for the mean error of the weight quantization to come.

    1. A layer with a constant weight W and data x of known mean E[x] [C] gets the bias b - eps E[x], with eps = Q(W) -
       W; the taps of a convolution are summed. `moments.propagate` gives E[x]. As published, E[x] is also the mean of
       zero padding; with `padding=exact` a tap counts by the share of windows in which it lies inside the data.
    2. Q rounds to integers, ties to even, as onnxruntime does. If `symmetric`, the scale is max |W| / (2^(bits - 1) -
       1) and the zero point 0. Else the scale is (max(W, 0) - min(W, 0)) / (2^bits - 1), with an integer zero point.
       The scale has the dtype of W. There is one for W, or with `per_channel` one for each channel of the result.
    3. A layer stays if the mean of its data is not known, or it has no place for a bias. A warning counts these layers.

    The pass changes the function: before the weights are quantized, the result of each layer is off by |eps E[x]|. With
    quantized weights its mean is correct, as far as E[x] is. The statistics of the values describe the quantized model.
    """

    name: ClassVar[str] = "BiasCorrection"
    preserves: ClassVar[bool] = False
    bits: int = 8
    per_channel: bool = False
    symmetric: bool = True
    padding: str = "ignore"

    def __post_init__(self) -> None:
        """Check the options. Raises UsageError for a value that an option does not take."""
        if not 2 <= self.bits <= 16:
            raise UsageError(f"{self.name}: option bits has to be between 2 and 16")
        if self.padding not in ("exact", "ignore"):
            raise UsageError(f"{self.name}: option padding has to be one of exact, ignore")

    def run(self, module: Module, ctx: PassContext) -> bool:
        params = Parameters(module.constants)
        # Once, before any bias changes: the corrections restore these means in the quantized model, layer by layer, so
        # that the E[x] of a later layer is the same with and without the corrections before it.
        moments = propagate(module)
        corrector = _Corrector(Rewriter(module), params)
        applied = LayerEdits(str(self))
        left = total = 0
        for graph in module.graphs():
            for node in list(graph):
                linear = read_linear(node, params) if has_trait(node, Trait.LINEAR) else None
                if linear is None:
                    continue
                total += 1
                correction = self.correction(linear, moments.get(linear.data))
                if correction is None or not corrector.subtract(linear, correction):
                    left += 1
                else:
                    applied.layers[node] = {"correction": correction}
        if applied.layers:
            fold_records(module).history.append(applied)
        if left:
            ctx.warnings.append(
                f"{self.name}: {left} of {total} layers keep their bias, because the mean of their data is not known, "
                "or they have no bias that could take the correction"
            )
        return corrector.rewriter.changed

    def correction(self, linear: Linear, data: Moments | None) -> Array | None:
        """Return eps E[x], [M], None where E[x] is unknown."""
        if data is None or not data.has_mean or not linear.accepts(data.axis, data.mean):
            return None
        axis = linear.weight_axis if self.per_channel else None
        error = quantized(linear.weight, self.bits, axis, linear.fold.dtype, symmetric=self.symmetric) - linear.weight
        return linear.apply(error, data.mean, padding=self.padding)


def quantized(weight: Array, bits: int, axis: int | None, dtype: DType, *, symmetric: bool) -> Array:
    """Return Q(W), the numbers that the integers of a quantized weight stand for, in float64 and of W's shape.

    There is one scale, of `dtype`, for each index on `axis`, or one for all of W.
    """
    over = None if axis is None else tuple(i for i in range(weight.ndim) if i != axis)
    high = np.maximum(weight.max(axis=over, keepdims=True), 0.0)
    low = np.minimum(weight.min(axis=over, keepdims=True), 0.0)
    top = 2 ** (bits - 1) - 1 if symmetric else 2**bits - 1
    span = np.maximum(high, -low) if symmetric else high - low
    scale = to_float64(round_to(span / top, dtype))
    scale = np.where(scale > 0, scale, 1.0)
    zero = np.zeros_like(scale) if symmetric else np.rint(-low / scale)
    least = -top if symmetric else 0
    return np.asarray((np.clip(np.rint(weight / scale) + zero, least, top) - zero) * scale)


class _Corrector:
    def __init__(self, rewriter: Rewriter, params: Parameters) -> None:
        self.rewriter = rewriter
        self.params = params
        self.planner = Planner(params)
        self.committer = Committer(rewriter)

    def subtract(self, linear: Linear, correction: Array) -> bool:
        """Subtract `correction` [M] from the bias, and return whether there is a place for it."""
        if not correction.any():
            return True
        affine = Affine.joined(linear.axis, np.ones_like(correction), -correction)
        change = self.change(linear.node, affine)
        if change is None:
            return False
        statistics = statistic_refs(self.rewriter.module)
        known = statistics.get(change.value)
        self.committer.commit(Plan([change]), change.node, change.node)
        if known is not None:  # whatever the commit made of it: with quantized weights the mean is the old one
            statistics[change.value] = known
        return True

    def change(self, node: Node, affine: Affine) -> Change | None:
        """Return the change of the bias, or of the constant that an Add, the only reader, adds to the result."""
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
