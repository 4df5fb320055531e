"""HighBiasAbsorption: bias that an activation hardly ever cuts off moves to the next layer.

After Nagel et al. (2019), section 4.1.3. Where x >= c >= 0 for nearly all x, relu(x) = relu(x - c)
+ c. The layer before gets the bias b1 - c and the layer after b2 + W2 c, so that the activations
between them need a smaller range.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...ir.graph import Node, Value
from ...ir.module import Module
from ...ir.ops import has_trait, sole_reader
from ...ir.ops.row import Trait
from ...ir.ops.views import may_read_padding
from ...ir.rewriter import Rewriter
from ...ir.rule_driver import ANY, RuleDriver, Rules, rule
from ...ir.tensor import Array
from ...ir.types import shape_of
from ...support.errors import UsageError
from ..affine.algebra.affine import Affine
from ..affine.records.fold_records import LayerEdits, fold_records
from ..affine.records.statistics import Statistic
from ..infra import Pass, PassContext
from .layer_pair import LayerPair, LayerPairs

PADDING = {"exact": "keep", "ignore": "ignore"}
SPREADS = ("std", "gamma")


@dataclass(frozen=True)
class HighBiasAbsorption(Pass):
    """Absorb high biases of layers into the layers after them.

    1. Let x be the result of a layer, with known mean and deviation [C] (from its
       BatchNormalization). If the only reader of x is a Relu, LeakyRelu or PRelu, the bias becomes
       b1 - c with c = max(0, mean - sigmas * std), and the layers that read the activation get the
       bias b2 + W2 c. Without an activation c is the mean, and the function stays the same. A Clip
       is an activation, too, if a Min after it limits each channel, as CrossLayerEqualization
       leaves it: min(clip(x - c, 0, B), b - c) + c = clip(x, 0, b) for x >= c.
    2. The rules of FoldScaleAxis decide which operators a shift passes, and which layers take it.
       With `padding=exact` no convolution that pads with zeros takes it, because zeros are not
       shifted by c. With `padding=ignore` it is treated like any other, as published; this changes
       the results at the border, and there is a warning.
    3. With `spread=gamma` the deviation is |gamma|, which differs if the variance is not much
       larger than epsilon.
    4. Layers without a bias get one. No operator is added.

    With an activation f the function is the same where x >= c in all channels. Elsewhere the
    activation's result is off by f(x - c) + c - f(x), for Relu at most c. P(x < c) is 0.00135 per
    channel for sigmas=3 and normal x. The known mean of x becomes mean - c.
    """

    name: ClassVar[str] = "HighBiasAbsorption"
    sigmas: float = 3.0
    padding: str = "exact"
    spread: str = "std"

    def __post_init__(self) -> None:
        """Check the options. Raises UsageError for a value that an option does not take."""
        for option, known in (("padding", tuple(PADDING)), ("spread", SPREADS)):
            if getattr(self, option) not in known:
                detail = f"{self.name}: option {option} has to be one of {', '.join(known)}"
                raise UsageError(detail)

    @property
    def preserves(self) -> bool:
        return False

    def run(self, module: Module, ctx: PassContext) -> bool:
        absorber = _Absorber(self, LayerPairs(module, border=PADDING[self.padding]))
        pairs = absorber.pairs
        driver = RuleDriver(pairs.rewriter, RULES, absorber)
        for graph in module.graphs():
            pairs.planner.number(graph)
            known = (
                node
                for node in graph.nodes()
                if any(value in pairs.statistics for value in node.outputs)
            )
            driver.run(known)
        if absorber.applied.layers:
            fold_records(module).history.append(absorber.applied)
        padded = absorber.padded
        if padded:
            count = "1 layer pads" if len(padded) == 1 else f"{len(padded)} layers pad"
            ctx.warnings.append(
                f"{self.name}: {count} shifted data with zeros, so results change at the border: "
                f"{', '.join(padded[:3])}{', ...' if len(padded) > 3 else ''}; "
                "use padding=exact to leave these layers unchanged"
            )
        return pairs.rewriter.changed

    def pair(self, pairs: LayerPairs, value: Value, statistic: Statistic) -> LayerPair | None:
        """Return the layer pair that absorbs the bias at `value`, if c is not zero."""
        reader = sole_reader(value)
        if reader is None or reader.inputs[0] is not value:
            return self.pair_at(pairs, value, statistic, None)
        if reader.op == "clip":
            pair = self.pair_at(pairs, value, statistic, reader.output)
            return pair or self.pair_at(pairs, value, statistic, None)
        is_rectifier = has_trait(reader, Trait.RECTIFIER)
        return self.pair_at(pairs, value, statistic, reader.output if is_rectifier else None)

    def pair_at(
        self, pairs: LayerPairs, value: Value, statistic: Statistic, activated: Value | None
    ) -> LayerPair | None:
        """Return the pair at `value` behind the activation with the result `activated`."""
        active = activated is not None
        amount = self.amount(statistic, active=active)
        if not amount.any() or value.node is None:
            pairs.rewriter.decline("there is nothing to absorb")
            return None
        ones = np.ones_like(amount)
        backward, forward = (
            Affine.joined(statistic.axis, ones, shift) for shift in (-amount, amount)
        )
        return pairs.find(value, backward, forward, activated)

    def amount(self, statistic: Statistic, *, active: bool) -> Array:
        """Return c [C], the amount to absorb; an activation reads an `active` value."""
        spread = statistic.std if self.spread == "std" else np.abs(statistic.gamma)
        amount = (
            np.maximum(0.0, statistic.mean - self.sigmas * spread) if active else statistic.mean
        )
        return np.where(np.isfinite(amount), amount, 0.0)


def zero_padded(pair: LayerPair) -> list[str]:
    """Return the descriptions of the convolutions of a pair that pad shifted data with zeros."""
    names = []
    for side, fold in pair.folds():
        kernel = shape_of(fold.weight.type)
        shifts = side == "in" and fold.affine.has_shift and fold.node.op == "nn.conv"
        if shifts and may_read_padding(fold.node, None if kernel is None else kernel[2:]):
            names.append(fold.node.description)
    return names


def record(applied: LayerEdits, pair: LayerPair) -> None:
    """Record the amounts that the biases of a pair lose and get."""
    for side, fold in pair.folds():
        key, amount = (
            ("absorbed", -fold.affine.shift) if side == "out" else ("received", fold.affine.shift)
        )
        entry = applied.layers.setdefault(fold.node, {})
        entry[key] = entry.get(key, np.zeros(())) + amount


class _Absorber:
    """The state of one run: the amounts `applied`, and convolutions that pad shifted data."""

    def __init__(self, options: HighBiasAbsorption, pairs: LayerPairs) -> None:
        self.options = options
        self.pairs = pairs
        self.applied = LayerEdits(str(options))
        self.padded: list[str] = []

    def absorb(self, value: Value) -> bool:
        """Absorb the bias at `value`, and return whether there was one."""
        reference = self.pairs.statistics.get(value)
        statistic = None if reference is None else reference.statistic()
        pair = None if statistic is None else self.options.pair(self.pairs, value, statistic)
        if pair is None:
            return False
        self.padded.extend(zero_padded(pair))
        record(self.applied, pair)
        self.pairs.commit(pair)
        return True


@rule(affine="merges")
def absorb_bias(node: Node, rewriter: Rewriter, absorber: _Absorber) -> bool:
    """layer2(f(layer1(x) + b1)) + b2 -> layer2(f(layer1(x) + b1 - c)) + b2 + W2 c"""
    return any([absorber.absorb(value) for value in node.outputs])


RULES: Rules[_Absorber] = {ANY: (absorb_bias,)}
