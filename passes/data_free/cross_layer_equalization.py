"""CrossLayerEqualization: two neighbouring layers get equal ranges in every channel.

After Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction" (2019),
section 4.1. With f(s x) = s f(x) for s > 0, W2 f(W1 x + b1) = (W2 S) f(S^-1 W1 x + S^-1 b1) for any
diagonal S > 0. The S that gives both weights the same range in every channel i is s_i = r1_i /
sqrt(r1_i r2_i), where r is max |W| over a channel.

The paper has a Relu between two convolutions. Here any operator is allowed that a scale passes by
the rules in `passes.affine.rules.table`. A probe tells which layers are reached and where each
channel goes: it is a plan for a scale that differs in every channel and so names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...ir.evaluate import ConstantEvaluator
from ...ir.graph import Graph, Node, Value
from ...ir.module import Module
from ...ir.ops import has_trait
from ...ir.ops.inference import input_shape, integer_of
from ...ir.ops.row import Trait
from ...ir.rewriter import Rewriter
from ...ir.rule_driver import ANY, RuleDriver, Rules, rule
from ...ir.tensor import Array, smallest_normal, to_float64
from ...ir.types import dtype_of, shape_of
from ...support.errors import UsageError
from ..affine.algebra.affine import Affine
from ..affine.algebra.layers import Fold
from ..affine.records.fold_records import LayerEdits, fold_records
from ..affine.search.plan import Plan
from ..infra import Pass, PassContext
from .idle_bounds import idle_clips
from .layer_noise import quantized_tensors
from .layer_pair import LayerPair, LayerPairs
from .linear import Linear, read_linear
from .noise import REDUCED_LEVELS, WEIGHT_LEVELS, QuantizedTensor, least_noise, noise_gain
from .statistic_ranges import propagate

THROUGH = ("any", "activation")
CLIPS = ("exact", "keep", "relu")
OBJECTIVES = ("range", "noise")
BETWEEN = ("nn.relu", "nn.prelu")
NEGLIGIBLE = 1e-6
"""Largest |log s| of a rescaling that is left out, because the ranges are nearly equal already."""

LEAST_GAIN = 0.05
"""Least gain in precision for which a Max or Min is added after a Clip."""

TAILS = 16.0
"""Deviations that `objective=noise` leaves room for in every channel.

Trained networks have longer tails than a normal variable: 10 to 25 deviations behind depthwise
convolutions. Channels that were scaled up until 6 deviations fill the range of their tensor are cut
off there.
"""

STEP = 2.0**-20
"""The scale of channel i in a probe is 1 + (i + 1) STEP.

It is exact in float64, and so close to 1 that no product with it overflows.
"""


@dataclass(frozen=True)
class CrossLayerEqualization(Pass):
    """Equalize the ranges of weights between layers without changing the function.

    1. Two layers (`nn.conv`, `nn.conv_transpose`, `nn.dense`, `matmul` with constant weights) with
       channels between them are rescaled by s = r1 / sqrt(r1 r2). The first gets W1 / s and b1 / s,
       and the weight of the second is multiplied by s on the channels of its data. r [C] is the
       greatest |W| of each channel. Where s is zero, infinite or not a number, it is 1.
    2. The operators between the layers have to let positive scales pass by the rules of
       FoldScaleAxis. So a reader that is not a layer, a result of the graph and a normalization
       stop the rescaling. Several layers may read the channels, or be added up to them; then r is
       the greatest over all of them.
    3. A depthwise convolution between two layers is equalized with both at once: with r = (r0 r1
       r2)^(1/3), s is r0 / r before it and r / r2 after it.
    4. Pairs are taken in the order of the graph, each with the weights left by the previous pair,
       `iterations` times.
    5. With `through=activation` only pairs and triples of convolutions with nothing but Relu or
       PRelu between them are equalized, as in the paper.
    6. With `power_of_two` every s is the nearest power of two, so that nothing is rounded.
    7. A pair stays if a weight would have to be copied, or would leave the range of its dtype.
    8. A Clip between the layers with bounds a <= b other than zero gets one for each channel: s
       clip(x, a, b) = min(max(clip(s x, min s a, max s b), s a), s b); the Max or Min is left out
       if all its elements are equal. The precision of the weights (see `gain`) has to grow by
       LEAST_GAIN for that. With `clip=keep` only a Clip with bounds of zero and infinity passes a
       scale. With `clip=relu` such a Clip to [0, b] becomes a Relu if the statistics and the
       weights of the layer before it both keep it below b, for values within `sigmas` deviations of
       their mean (`idle_clips`). This changes the function for other values, and there is a
       warning.
    9. With `objective=noise` the scales of a pair or triple minimize the noise of int8 weights and
       activations together, as `layer_noise` estimates it from the statistics of
       BatchNormalization, with ranges of TAILS deviations. With `reduce_range` weights have 7 bits
       in place of 8, and their noise weighs more. Where these do not tell the moments of
       the data between the layers, or several layers share the channels, r decides.

    Every weight, bias and bound is rounded to its dtype once, so the result is off by no more than
    one rounding of each constant: |fl(w) - w| <= u |w| with the unit roundoff u (2^-24 in float32).
    The statistics of values between the layers (mean and deviation) are divided by s, too.
    """

    name: ClassVar[str] = "CrossLayerEqualization"
    iterations: int = 1
    through: str = "any"
    power_of_two: bool = False
    clip: str = "exact"
    sigmas: float = 6.0
    objective: str = "range"
    reduce_range: bool = False

    @property
    def levels(self) -> int:
        """The greatest integer of a quantized weight."""
        return REDUCED_LEVELS if self.reduce_range else WEIGHT_LEVELS

    def __post_init__(self) -> None:
        """Check the options. Raises UsageError for a value that an option does not take."""
        for option, known in (("through", THROUGH), ("clip", CLIPS), ("objective", OBJECTIVES)):
            if getattr(self, option) not in known:
                detail = f"{self.name}: option {option} has to be one of {', '.join(known)}"
                raise UsageError(detail)
        if not (np.isfinite(self.sigmas) and self.sigmas > 0):
            raise UsageError(f"{self.name}: option sigmas has to be positive")

    @property
    def preserves(self) -> bool:
        return self.clip != "relu"

    def run(self, module: Module, ctx: PassContext) -> bool:
        equalizer = _Equalizer(self, module)
        driver = RuleDriver(equalizer.pairs.rewriter, RULES, equalizer)
        for _ in range(self.iterations):
            moved = [driver.run(equalizer.candidates(graph)) for graph in module.graphs()]
            if not any(moved):
                break
        if equalizer.applied.layers:
            fold_records(module).history.append(equalizer.applied)
        ctx.warnings.extend(equalizer.assumptions())
        return equalizer.pairs.rewriter.changed


@dataclass(frozen=True, slots=True, eq=False)
class _Probed:
    """A pair found by a probe; `first` and `second` are r [C] of both sides, 0 without a layer."""

    pair: LayerPair
    axis: int
    first: Array
    second: Array

    @property
    def consumers(self) -> list[Fold]:
        return [fold for side, fold in self.pair.folds() if side == "in"]


class _Equalizer:
    """The state of one run: `done` has depthwise convolutions equalized with the layer before."""

    def __init__(self, options: CrossLayerEqualization, module: Module) -> None:
        self.options = options
        self.pairs = LayerPairs(module, limits=options.clip != "keep")
        self.applied = LayerEdits(str(options))
        self.done: set[Node] = set()
        self.moments = propagate(module, sigmas=TAILS) if options.objective == "noise" else {}
        if options.clip == "relu":
            self.idle = idle_clips(module, self.pairs.params, options.sigmas)
        else:
            self.idle = set()
        self.replaced: list[str] = []

    def candidates(self, graph: Graph) -> Iterator[Node]:
        """Yield the nodes at whose results there may be a pair, in the order of the graph."""
        self.pairs.planner.number(graph)
        self.done.clear()
        for node in graph.nodes():
            if node in self.done:
                continue
            combines = has_trait(node, Trait.COMBINES) and self.options.through == "any"
            if combines or has_trait(node, Trait.LINEAR):
                yield node

    def equalize(self, value: Value) -> bool:
        """Equalize the pair at `value`, and return whether anything changed.

        If the only layer after `value` is a depthwise convolution, the pair at its result is
        equalized at once, and the convolution is added to `done`.
        """
        probed = self.probe(value)
        if probed is None:
            return False
        middle = probed.consumers[0].node
        order = None
        if len(probed.consumers) == 1 and is_depthwise(middle):
            order = channel_order(probed.consumers[0])
        second = None if order is None else self.probe(middle.output)
        is_triple = False
        if order is not None and second is not None:
            is_triple = len(order) == len(probed.first) == len(second.second)
        if order is None or second is None or not is_triple:
            scale, gained = self.pair_scale(probed)
            return self.write(probed, scale, gained)
        scale, second_scale, gained = self.triple_scales(probed, order, second)
        self.done.add(middle)
        first_scale = np.ones(len(order))
        first_scale[order] = scale
        # Each write plans anew, so the second reads the weights as the first leaves them.
        moved = self.write(probed, first_scale, gained)
        return self.write(second, second_scale, gained) or moved

    def pair_scale(self, probed: _Probed) -> tuple[Array, float]:
        """Return s [C] of a pair, and the relative gain in precision."""
        first, second = probed.first, probed.second
        scale = pair_scale(first, second)
        layers = self.chain(probed)
        tensors = None if layers is None else self.quantized(layers, (first, second))
        if tensors is None:
            return scale, gain((first, second), (first / scale, second * scale))
        scales = least_noise(tensors, scale[None])
        return scales[0], noise_gain(tensors, scales)

    def triple_scales(
        self, probed: _Probed, order: Array, second: _Probed
    ) -> tuple[Array, Array, float]:
        """Return s12 and s23 [C] of a triple, and the relative gain in precision."""
        before = (probed.first[order], probed.second[order], second.second)
        s12, s23 = triple_scales(*before)
        layers, rest = self.chain(probed), self.chain(second)
        tensors = None
        if layers is not None and rest is not None:
            tensors = self.quantized((*layers, rest[1]), before)
        if tensors is None:
            return s12, s23, gain(before, (before[0] / s12, before[1] * s12 / s23, before[2] * s23))
        scales = least_noise(tensors, np.stack((s12, s23)))
        return scales[0], scales[1], noise_gain(tensors, scales)

    def quantized(
        self, layers: Sequence[Linear], ranges: Sequence[Array]
    ) -> list[QuantizedTensor] | None:
        """Return the tensors of layers in a row, with the levels of the options."""
        return quantized_tensors(layers, ranges, self.moments, self.options.levels)

    def chain(self, probed: _Probed) -> tuple[Linear, Linear] | None:
        """Return the layers before and after the channels of a pair, for `objective=noise`.

        None unless there is one of each, and both have the channels in the same order.
        """
        folds = [fold for _, fold in probed.pair.folds()]
        if self.options.objective == "range" or len(folds) != 2:
            return None
        straight = list(range(len(probed.first)))
        orders = [channel_order(fold) for fold in folds]
        if any(order is None or order.tolist() != straight for order in orders):
            return None
        first, second = (read_linear(fold.node, self.pairs.params) for fold in folds)
        return None if first is None or second is None else (first, second)

    def probe(self, value: Value) -> _Probed | None:
        """Return the pair at `value` along the axis of its channels, None if there is none."""
        shape, dtype = shape_of(value.type), dtype_of(value.type)
        if shape is None or dtype is None or not dtype.is_float:
            return None
        reason = ""
        for axis in dict.fromkeys((1, len(shape) - 1)):
            channels = shape[axis] if 0 <= axis < len(shape) else None
            if not isinstance(channels, int) or not 0 < channels < 1 / STEP:
                continue
            affine = Affine.joined(axis, 1 + STEP * np.arange(1, channels + 1), np.zeros(channels))
            pair = self.pairs.find(value, affine, affine)
            if pair is not None and self.is_wanted(pair):
                evaluator = self.pairs.params.evaluator
                first, second = (
                    ranges(plan, channels, evaluator) for plan in (pair.backward, pair.forward)
                )
                return _Probed(pair, axis, first, second)
            reason = reason or self.pairs.rewriter.take_reason()
        self.pairs.rewriter.decline(reason)
        return None

    def is_wanted(self, pair: LayerPair) -> bool:
        """Return whether option `through` admits the pair."""
        if self.options.through == "any":
            return True
        ends = list(pair.folds())
        between = [
            change.node
            for change in (*pair.backward.changes, *pair.forward.changes)
            if change.fold is None
        ]
        plain = all(node.op in BETWEEN for node in between) and len(ends) == 2
        return plain and all(is_whole(fold.node) for _, fold in ends)

    def write(self, probed: _Probed, scale: Array, gained: float) -> bool:
        """Divide the channels by `scale` [C], unless it is nearly 1 or weights overflow.

        Where that adds operators, it has to pay: `gained` is the relative gain in precision.
        """
        if self.options.power_of_two:
            scale = 2.0 ** np.rint(np.log2(scale))
        if (np.abs(np.log(scale)) < NEGLIGIBLE).all():
            return self.pairs.rewriter.decline("the ranges are equal already")
        zeros = np.zeros_like(scale)
        backward, forward = (
            Affine.joined(probed.axis, factor, zeros) for factor in (1 / scale, scale)
        )
        pair = self.pairs.find(probed.pair.value, backward, forward)
        if pair is None:
            return False
        if any(self.loses_digits(fold) for _, fold in pair.folds()) or has_subnormal_limit(pair):
            return self.pairs.rewriter.decline("a weight or bound would become subnormal")
        if pair.limits and not gained >= LEAST_GAIN:
            return self.pairs.rewriter.decline(
                f"the precision of the weights would rise by {gained:.2g} only, and {pair.limits}"
                " operators be added"
            )
        if pair.limits:
            pair = self.without_idle_bounds(pair)
        for side, fold in pair.folds():
            record = self.applied.layers.setdefault(fold.node, {})
            factor = fold.affine.scale if side == "out" else 1 / fold.affine.scale
            record[f"rescale_{side}"] = record.get(f"rescale_{side}", np.ones(())) * factor
        changed = pair.changed() if self.moments else {}
        self.pairs.commit(pair)
        for value, affine in changed.items():
            self.rescale_moments(value, affine)
        return True

    def without_idle_bounds(self, pair: LayerPair) -> LayerPair:
        """Return the pair after each of its Clips that need no upper bound has become a Relu."""
        changes = (*pair.backward.changes, *pair.forward.changes)
        clips = [change.node for change in changes if change.node in self.idle]
        rewriter = self.pairs.rewriter
        for node in clips:
            self.replaced.append(node.description)
            self.idle.discard(node)
            with rewriter.rewriting(node):
                old, hint = node.output, node.output.name
                data, name = [node.operand()], node.name
                new = rewriter.make(
                    "nn.relu", data, before=node, hint=hint, name=name, type_=old.type
                )
            if old in self.moments:
                self.moments[new.output] = self.moments.pop(old)
            rewriter.replace(old, new.output, take_name=True)
        if not clips:
            return pair
        found = self.pairs.find(pair.value, pair.backward_affine, pair.forward_affine)
        assert found is not None  # a Relu lets every scale pass that a Clip does
        return found

    def assumptions(self) -> Iterator[str]:
        """Yield the warning of the Clips that became Relus."""
        if self.replaced:
            count = "1 Clip" if len(self.replaced) == 1 else f"{len(self.replaced)} Clips"
            yield (
                f"{CrossLayerEqualization.name}: Relu replaced {count}"
                f" ({', '.join(self.replaced[:3])}{', ...' if len(self.replaced) > 3 else ''}),"
                f" assuming that no value leaves mean +- {self.options.sigmas:g} deviations of its"
                " BatchNormalization; use clip=exact to keep every bound"
            )

    def rescale_moments(self, value: Value, affine: Affine) -> None:
        """Keep the moments of a value that has become its `affine` true."""
        known = self.moments.pop(value, None)
        if known is None or affine.extents or affine.axis not in (None, known.axis):
            return
        moved = known.affine(affine.scale, affine.shift)
        limited = self.pairs.committer.limited.get(value, value)
        self.moments[value] = self.moments[limited] = moved

    def loses_digits(self, fold: Fold) -> bool:
        """Return whether some weight would become subnormal, and lose digits."""
        weight = self.pairs.params.evaluator.exact(fold.weight)
        if weight is None or fold.factor is None:
            return False
        least = smallest_normal(fold.dtype)
        return bool(((np.abs(weight) >= least) & (np.abs(weight * fold.factor) < least)).any())


def has_subnormal_limit(pair: LayerPair) -> bool:
    """Return whether a bound per channel would become subnormal, and lose digits."""
    for change in (*pair.backward.changes, *pair.forward.changes):
        dtype = dtype_of(change.node.output.type)
        for limit in () if change.transfer is None or dtype is None else change.transfer.limits:
            if limit is None:
                continue
            if ((limit != 0) & (np.abs(limit) < smallest_normal(dtype))).any():
                return True
    return False


def gain(before: Sequence[Array], after: Sequence[Array]) -> float:
    """Return the relative gain in precision of weights with the ranges r [C].

    The precision of channel i of a tensor with one scale is r_i / max r. Layers that share the
    channel have the product of theirs (Nagel et al. 2019, equation 9). Equalization keeps
    the product of all r_i.
    """
    first, second = (float(np.prod([ranges.max() for ranges in each])) for each in (before, after))
    return first / second - 1 if second > 0 else 0.0


def pair_scale(first: Array, second: Array) -> Array:
    """Return s [C] = r1 / sqrt(r1 r2), for results of one layer with r1 and data of r2."""
    with np.errstate(all="ignore"):
        return _safe(first / np.sqrt(first * second))


def triple_scales(first: Array, middle: Array, last: Array) -> tuple[Array, Array]:
    """Return s12 = r0 / r and s23 = r / r2, both [C], with r = (r0 r1 r2)^(1/3)."""
    with np.errstate(all="ignore"):
        root = np.cbrt(first * middle * last)
        return _safe(first / root), _safe(root / last)


def _safe(scale: Array) -> Array:
    # Any positive scale keeps the function; 1 leaves a channel of zeros or infinities as it is.
    return np.where(np.isfinite(scale) & (scale > 0), scale, 1.0)


def ranges(plan: Plan, channels: int, evaluator: ConstantEvaluator) -> Array:
    """Return r [C] = max |W| over the layers of a probe's plan, 0 in channels without one."""
    found = np.zeros(channels)
    for change in plan.changes:
        fold = change.fold
        if fold is None or fold.factor is None:
            continue
        weight = evaluator.exact(fold.weight)
        assert weight is not None
        # numpy aligns the factor [K, 1] of a MatMul with the last axes of its weight [..., K, N]
        factor = fold.factor.reshape((1,) * (weight.ndim - fold.factor.ndim) + fold.factor.shape)
        over = tuple(axis for axis, extent in enumerate(factor.shape) if extent == 1)
        largest = np.maximum(
            to_float64(weight.max(axis=over, keepdims=True)),
            -to_float64(weight.min(axis=over, keepdims=True)),
        )
        channel = np.broadcast_to(named(factor), largest.shape)
        np.maximum.at(found, channel[channel >= 0], largest[channel >= 0])
    return found


def named(scale: Array) -> Array:
    """Return the channel index that each scale of a probe encodes, -1 for a scale of one."""
    return np.rint((scale - 1) / STEP).astype(np.int64) - 1


def channel_order(fold: Fold) -> Array | None:
    """Return the channels of a probe in the order of a layer, if it has each once."""
    order = np.atleast_1d(named(fold.affine.scale))
    return order if np.array_equal(np.sort(order), np.arange(len(order))) else None


def is_depthwise(node: Node) -> bool:
    """Return whether each channel of a convolution depends on the same channel alone."""
    shape = input_shape(node, "weight") if node.op == "nn.conv" else None
    group = integer_of(node, "group", 1)
    return shape is not None and group > 1 and shape[:2] == (group, 1)


def is_whole(node: Node) -> bool:
    """Return whether a layer is a convolution without groups or depthwise, as in the paper."""
    if node.op not in ("nn.conv", "nn.conv_transpose"):
        return False
    return integer_of(node, "group", 1) == 1 or is_depthwise(node)


@rule(affine="merges")
def equalize_pair(node: Node, rewriter: Rewriter, equalizer: _Equalizer) -> bool:
    """W2 f(W1 x + b1) -> (W2 S) f((W1 x + b1) / S)"""
    return equalizer.equalize(node.output)


RULES: Rules[_Equalizer] = {ANY: (equalize_pair,)}
