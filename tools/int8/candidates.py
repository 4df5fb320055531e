"""Quantized models of one float model, of which the nearest to it is chosen."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from onnx import ModelProto

from ...backends.quantizers.onnxruntime import quantizable_types
from ...backends.quantizers.ranges import Activations, Range
from ...support.errors import SourceError
from ..verify.inputs import Feeds
from ..verify.runner import Runner
from .coverage import GUESS, NO_RANGE, Coverage, Method, Reason, coverage
from .dynamic import PRODUCTS, RECURRENT, can_be_dynamic, has_dynamic, make_dynamic
from .engine import Engine
from .fidelity import Fidelity, Remembered, Runs, least, measure
from .float_results import keep_data_float, keep_results_float
from .integer_limits import limit_integers
from .operator_choice import (
    CONVOLUTIONS,
    Reasons,
    deciding_heads,
    islands,
    map_tails,
    mixed_heads,
    not_removable,
    other_types,
    unknown,
)
from .preparation import Preparation, Prepared
from .removed_activations import activations_undone
from .sample_ranges import in_samples
from .samples import count_samples, generate_samples

UNDONE = "no range does its work"
"""Why a Relu or Clip stays float that onnxruntime would remove."""
COARSE = "a fixed scale is too coarse"
"""Why a product has scales that are found at run time though ranges are known."""
NO_NUMBER = "no sample has a number"
"""Why an operator stays float whose data are empty, or NaN."""
GOOD = 20.0
"""Ratio in dB from which no other candidate is made."""
OTHERS = "--data or --test-data has other samples"
"""The remedy if generated samples do not tell."""
LEAST = 10.0
"""Ratio in dB below which a result is in doubt."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A quantized model, its coverage, and how near its results are to the float model's."""

    model: ModelProto
    prepared: Prepared
    coverage: tuple[Coverage, ...]
    fidelity: tuple[Fidelity, ...]
    warnings: tuple[str, ...]
    reasons: Reasons
    """Why operators are float, or dynamic."""

    @property
    def quality(self) -> float:
        """The least ratio of a result in dB, -inf for one that cannot be compared."""
        return least(self.fidelity)


class Judge:
    """Compares quantized models with their source: on test data, held-out or generated samples."""

    def __init__(
        self,
        source: ModelProto,
        base_dir: Path,
        known: Activations,
        batches: Sequence[Feeds] | None,
        noun: str,
    ) -> None:
        runner = Runner(source, base_dir)
        self.source = Remembered(runner, [info.name for info in source.graph.output])
        self.base_dir = base_dir
        self.batches: Sequence[Feeds] = batches or []
        self.is_predicted = batches is None
        """Whether the samples are generated, so that other ratios are to be expected."""
        self.measured_on = f"{count_samples(self.batches)}{noun}"
        if batches is not None:
            return
        limits = {
            info.name: known.known[info.name].range
            for info in source.graph.input
            if info.name in known.known
        }
        try:
            self.batches = generate_samples(runner, limits)
        except SourceError as error:
            self.measured_on = str(error)
        else:
            found = count_samples(self.batches)
            self.measured_on = f"{found}, generated within the ranges, not your data"

    def compare(self, quantized: ModelProto) -> list[Fidelity]:
        """Return the fidelity of all results, none without samples.

        Raises VerifyError if a model does not run.
        """
        runner = Runner(quantized, self.base_dir)
        if not self.batches:
            runner.check_loads()
            return []
        return measure(self.source, runner, self.source.results, self.batches)

    def in_float(self, model: Runs, limit: float) -> dict[str, str]:
        """Return a sentence on each result for which a float model has less than `limit` dB.

        They are too small on these samples: what is compared are errors of float arithmetic.
        """
        found = {}
        for one in measure(self.source, model, self.source.results, self.batches):
            if one.sqnr >= limit:
                continue
            arrays = (self.source.run([one.name], feeds)[0] for feeds in self.batches)
            largest = max(float(np.abs(array).max(initial=0)) for array in arrays)
            found[one.name] = (
                f"in float {one.name!r} has {one.sqnr:.1f} dB there, as it is at most {largest:.2g}"
            )
        return found

    def optimized(self, found: Candidate) -> tuple[Fidelity, ...]:
        """Return the fidelity of a candidate as users run it, beside that without optimizations.

        It depends on the processor, and no choice rests on it. Raises VerifyError if the model does
        not run.
        """
        if not self.batches:
            return found.fidelity
        runner = Runner(found.model, self.base_dir, optimize=True)
        measured = measure(self.source, runner, self.source.results, self.batches)
        pairs = zip(measured, found.fidelity, strict=True)
        return tuple(replace(one, unoptimized=other.sqnr) for one, other in pairs)


class Candidates:
    """Makes quantized models of a source, with operators left float for reasons."""

    def __init__(
        self,
        preparation: Preparation,
        first: Prepared,
        judge: Judge,
        calibration: Sequence[Feeds] | None,
        given: Mapping[str, Range],
        exclude: Reasons,
    ) -> None:
        self.preparation, self.first, self.judge = preparation, first, judge
        self.calibration, self.given = calibration, given
        self.per_channel = self.reduce_range = self.wide = False
        self.rounded: Collection[str] = ()
        """Results that are rounded, as the user gives their ranges."""
        self.fixed = {**not_removable(first.model), **other_types(first.model, first.known)}
        self.heads = deciding_heads(first.model)
        self.fixed = {**self.heads, **self.fixed, **exclude}

    def best(self) -> Candidate:
        """Return the candidate with the nearest results.

        Without data there is one: operators that rest on a guess are dynamic or float. With data
        all operators have ranges. If the results are poor, another one uses them for convolutions
        and what follows from statistics, as without data, and lets all products be dynamic. If they
        are of no use, a third one also leaves convolutions float that rest on a guess.
        """
        model, known = self.first.model, self.first.known
        rests = unknown(model, known)
        if self.calibration is None:
            return self.make(self.with_islands({**map_tails(model, known), **rests}))
        found = self.make(self.fixed)
        types = {node.name: node.op_type for node in model.graph.node}
        products = (name for name, op_type in types.items() if op_type in PRODUCTS)
        coarse = dict.fromkeys(products, Reason(COARSE))
        others = {name: why for name, why in rests.items() if types[name] not in CONVOLUTIONS}
        for limit, reasons in (
            (GOOD, {**coarse, **others}),
            (LEAST, {**coarse, **map_tails(model, known), **rests}),
        ):
            if found.quality < limit and not reasons.keys() <= self.fixed.keys():
                other = self.make(self.with_islands(reasons))
                found = max(found, other, key=lambda each: each.quality)
        return found

    def with_islands(self, reasons: Reasons) -> Reasons:
        """Return reasons: the fixed ones, and of operators with no layer next to them."""
        reasons = {**reasons, **self.fixed}
        return {**islands(self.first.model, reasons), **reasons}

    def make(self, reasons: Reasons, wide: Collection[str] = ()) -> Candidate:
        """Return the quantized model in which operators stay float for these reasons, or others.

        The tensors `wide` have 16 bits, if they are rounded.
        """
        fluid = set(self.dynamic(self.first.model, reasons))
        prepared = self.preparation.corrected(reasons.keys() - fluid)
        known = prepared.known
        if self.calibration is not None:
            known = in_samples(prepared.model, known, self.calibration, self.given)
            lacking = unknown(prepared.model, known)
            lacking = {name: Reason(NO_NUMBER, why.tensor) for name, why in lacking.items()}
            reasons = {**lacking, **reasons}
        elif wide:
            known = self.preparation.widened(known, wide)
        ranges = {name: each.range for name, each in known.known.items()}
        engine = Engine(
            prepared.model,
            known,
            per_channel=self.per_channel,
            reduce_range=self.reduce_range,
            wide=self.wide,
            wide_tensors=wide,
        )
        while True:
            quantized, warnings = engine.run(reasons)
            more = {
                node.name: Reason(UNDONE, node.output[0])
                for node in activations_undone(quantized, prepared.model)
            }
            more |= mixed_heads(prepared.model, ranges)
            if more.keys() <= reasons.keys():
                break
            reasons = {**more, **reasons}  # they are left alone: the next round has fewer
        keep_results_float(quantized, prepared.model, self.rounded)
        keep_data_float(quantized, prepared.model, self.heads.keys())
        integers = dict.fromkeys(limit_integers(quantized), Method.STATIC)
        integers |= dict.fromkeys(self.dynamic(quantized, reasons), Method.DYNAMIC)
        fluid = {name for name, method in integers.items() if method is Method.DYNAMIC}
        make_dynamic(quantized, fluid, per_channel=self.per_channel)
        activations = frozenset(prepared.known.shapes)
        covered = (
            replace(one, reason=None, method=integers[one.node]) if one.node in integers else one
            for one in coverage(
                prepared.model, quantized, activations, quantizable_types(), reasons
            )
        )
        fidelity = self.judge.compare(quantized)
        return Candidate(
            quantized, prepared, tuple(covered), tuple(fidelity), tuple(warnings), reasons
        )

    def dynamic(self, model: ModelProto, reasons: Reasons) -> Collection[str]:
        """Return the layers of a model that compute with scales found at run time.

        Of those of the quantizer no range is known; it takes no LSTM.
        """
        if not has_dynamic(model):
            return ()
        tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        found = set()
        for node in model.graph.node:
            reason = reasons.get(node.name)
            is_free = reason is None if node.op_type == RECURRENT else _is_unknown(reason)
            if is_free and can_be_dynamic(node, tensors):
                found.add(node.name)
        return found


def _is_unknown(reason: Reason | None) -> bool:
    return reason is not None and reason.text in (COARSE, GUESS, NO_RANGE)
