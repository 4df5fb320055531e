"""int8 models by onnxruntime's `quantize_static`: `irc.quantize`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from platform import machine

import numpy as np
from onnx import ModelProto

from ...backends.onnx.kept_files import external_files
from ...backends.quantizers.ranges import SIGMAS, Activations, Range
from ...compiler import read_onnx
from ...frontends.onnx.codec.domains import with_canonical_domains
from ...frontends.onnx.opsets import opset_versions
from ...ir.tensor import Array
from ...passes.data_free.value_ranges import Origin
from ...passes.infra import PassContext
from ...passes.watching import counting_passes
from ...support.errors import UsageError, VerifyError, listed
from ...support.limits import DEFAULT_LIMITS, Limits
from ...support.progress import shown_progress
from ..verify.inputs import Feeds, overridable_inputs
from ..verify.runner import Runner
from .candidates import GOOD, LEAST, OTHERS, Candidate, Candidates, Judge
from .coverage import Method
from .engine import AXIS_SINCE, WIDE_SINCE, check_engine
from .fidelity import Fidelity
from .goal import read_goal
from .operator_choice import check_inputs, excluded, maps
from .preparation import WIDER, Preparation
from .quantized_model import LISTED, Quantized
from .samples import hold_out, read_samples
from .speed import measure_speed
from .target import int8_share, reach

ACTIVATIONS = ("int8", "int16")
X86 = ("amd64", "i386", "i686", "x86", "x86_64")
"""Names of processors whose kernels may overflow."""


def quantize(
    model: str | Path | ModelProto,
    *,
    data: str | Path | Mapping[str, Array] | Array | None = None,
    test_data: str | Path | Mapping[str, Array] | Array | None = None,
    preprocess: str | Sequence[str] = (),
    input_ranges: Mapping[str, Range] | Range | None = None,
    ranges: Mapping[str, Range] | None = None,
    sigmas: float = SIGMAS,
    per_channel: bool | None = None,
    reduce_range: bool = False,
    activations: str = "int8",
    exclude: Collection[str] = (),
    keep: Iterable[str] = (),
    passes: str | None = None,
    target: str | None = None,
    float_budget: str | None = None,
    int16_budget: str | None = None,
    time: bool = False,
    progress: bool = False,
    base_dir: str | Path = ".",
    limits: Limits = DEFAULT_LIMITS,
) -> Quantized:
    """Fold, equalize and quantize a model by onnxruntime: weights int8, activations uint8.

    The ranges of activations come from `data`, or without it from the statistics of
    BatchNormalization, as in `irc.backends.quantizers.ranges.activations`. Without data, operators
    that rest on a guessed range have no fixed scales: a Gemm, MatMul or LSTM finds them at run
    time. Other operators stay float, and so do results of the model that no operator reads, unless
    `ranges` names them. `Quantized.doubts` says which results may be of no use. Initializers that
    are graph inputs become constants.

    Args:
        model: A path or a ModelProto.
        data: A folder, an `.npz` file or arrays by the names of the inputs, with samples along the
            first axis; a model with one input takes the array alone.
        test_data: Samples, as in `data`, on which both models are compared; by default a fifth of
            `data`, which is held out of the calibration, or else generated inputs.
        preprocess: How inputs are made of the data, in the words of `irc.compile`, with `resize`
            and `crop` beside for pictures. It changes the data, and not the model.
        input_ranges: (low, high) of floating-point graph inputs, which are needed without data.
        ranges: (low, high) of any tensor of the folded model, in place of its own.
        sigmas: Without data, a range is as many standard deviations about the mean.
        per_channel: One scale for each output channel of a weight, by default from opset 13 on.
        reduce_range: Weights of 7 bits, with which no processor's kernel overflows.
        activations: `int16` gives activations 16 bits, as few runtimes compute them, and ranges
            without data WIDER times as many deviations. The model gets opset 21 if its operators
            mean the same there.
        exclude: Names of operators, or of their results, that stay float.
        keep: Names of nodes and values that the passes leave alone, as for `irc.compile`.
        passes: The passes that prepare the model, by default PASSES and CORRECTION.
        target: The least quality of every result: a ratio in dB (`22dB`) without graph
            optimizations, or with data an agreement (`99%`). As many tensors have 16 bits, and
            then as many layers are float, as it takes.
        float_budget: The greatest share of the layers' multiplications that may be float (`5%`);
            without a target, layers are float as far as it goes.
        int16_budget: The greatest share of the rounded activations that may have 16 bits (`30%`),
            by default none; without a target, as many have them. The model gets opset 21, as for
            `activations`.
        time: Measure how long a run of both models takes.
        progress: Show the steps that are done on standard error, if that is a terminal or a
            notebook.
        base_dir: The folder of the external data of a ModelProto.
        limits: The limits for reading a model.

    Raises:
        EmitError: No choice of layers meets the target, or as `irc.compile`.
        UsageError: Arguments are invalid, the range of an input is missing, or onnxruntime has no
            quantizer.
        ModelError: As `irc.compile`.
        PassError: As `irc.compile`.
        VerifyError: The data do not fit, or the model does not run.
    """
    check_engine()
    if activations not in ACTIVATIONS:
        raise UsageError(f"activations are {' or '.join(ACTIVATIONS)}, not {activations!r}")
    is_wide = activations == "int16"
    sigmas = sigmas * WIDER if is_wide else sigmas
    goal = read_goal(target, float_budget, int16_budget)
    if is_wide and int16_budget is not None:
        raise UsageError("activations of 16 bits leave none for a budget of 16 bits")
    needs_wide = is_wide or (goal is not None and bool(goal.int16_budget))
    if goal is not None and goal.agreement is not None and data is None and test_data is None:
        raise UsageError("an agreement is measured on data: give --data or --test-data")
    source, folder = (
        (model, Path(base_dir)) if isinstance(model, ModelProto) else read_onnx(model, limits)
    )
    opset = opset_versions(with_canonical_domains(source).opset_import).get("", 0)
    opset = max(opset, WIDE_SINCE) if needs_wide else opset
    by_channel = opset >= AXIS_SINCE if per_channel is None else per_channel
    ctx = PassContext()
    with shown_progress("quantizing", wanted=progress) as advance:
        with counting_passes(ctx, advance):
            preparation = Preparation(
                source,
                folder,
                passes=passes,
                per_channel=by_channel,
                reduce_range=reduce_range,
                keep=keep,
                limits=limits,
                ctx=ctx,
                opset=WIDE_SINCE if needs_wide else 0,
            )
        samples = None if data is None else read_samples(data, preparation.first, preprocess)
        tests = None
        if test_data is not None:
            tests = read_samples(test_data, preparation.first, preprocess)
        calibration, noun = samples, " of the test data"
        if tests is None and samples is not None:
            calibration, tests, noun = hold_out(samples, preparation.first)
        if isinstance(input_ranges, tuple):  # of the one input that takes a range
            shapes = preparation.with_ranges(input_ranges, ranges or {}, sigmas).known.shapes
            inputs = (info.name for info in preparation.first.graph.input)
            input_ranges = {name: input_ranges for name in inputs if name in shapes}
        spans = _spans(calibration, ranges or {}) | dict(input_ranges or {})
        first = preparation.with_ranges(spans, ranges or {}, sigmas)
        left = excluded(first.model, exclude)
        if calibration is None:
            check_inputs(first.model, first.known)
        advance("ranges")
        judge = Judge(source, folder, first.known, tests, noun)
        given = {**(input_ranges or {}), **(ranges or {})}
        candidates = Candidates(preparation, first, judge, calibration, given, left)
        candidates.per_channel, candidates.reduce_range = by_channel, reduce_range
        candidates.wide = is_wide
        candidates.rounded = frozenset(ranges or {})
        best, reached = candidates.best(), None
        if goal is not None:
            best, reached = reach(candidates, best, goal, calibration or judge.batches, advance)
        found, failures = _as_run(best, judge)
        advance("comparison")
        speed = None
        if time and judge.batches:
            speed = measure_speed(source, found.model, folder, judge.batches[0])
    warnings = [*ctx.warnings, *found.warnings]
    if test_data is not None:
        warnings += _beyond(tests, found.prepared.known)
    names = [info.name for info in overridable_inputs(source)]
    if names:
        warnings.append(
            f"callers can no longer override the initializers {listed(map(repr, names), LISTED)}"
        )
    overflow = _overflow(found, reduce_range=reduce_range)
    warnings += _losses(found, judge, overflow)
    doubts = [
        *failures,
        *_doubts(found, first.model, judge, overflow, has_data=calibration is not None),
    ]
    known = found.prepared.known.known if calibration is None else {}
    return Quantized(
        found.model,
        found.prepared.model,
        found.coverage,
        {name: each.origin for name, each in known.items()},
        found.fidelity,
        judge.measured_on,
        (*warnings, *doubts),
        tuple(doubts),
        is_predicted=judge.is_predicted,
        int8_share=int8_share(found.prepared.model, found.coverage),
        reached=reached,
        speed=speed,
        scales=("activations of 16 bits, " if is_wide else "")
        + ("7 bits, " if reduce_range else "")
        + _scales(opset, per_channel=by_channel, is_default=per_channel is None),
        files=() if isinstance(model, ModelProto) else _files_of(model, source, folder),
    )


def _files_of(path: str | Path, model: ModelProto, folder: Path) -> tuple[Path, ...]:
    """Return the file of a model and its files of external data; none for standard input."""
    return () if str(path) == "-" else (Path(path), *sorted(external_files(model, folder)))


def _scales(opset: int, *, per_channel: bool, is_default: bool) -> str:
    """Return how many scales a weight has, and why."""
    if per_channel:
        return "a scale for each channel"
    if is_default:
        return (
            f"one scale for each, as opset {opset} has none for each channel: opset {AXIS_SINCE}"
            " has, or --per-channel by operators of com.microsoft"
        )
    return "one scale for each"


def _spans(calibration: Sequence[Feeds] | None, ranges: Mapping[str, Range]) -> dict[str, Range]:
    """Return the ranges of floating-point inputs in the samples."""
    found: dict[str, Range] = {}
    for feeds in calibration or ():
        for name, array in feeds.items():
            # The user's range holds, whatever the samples are.
            if name in ranges or array.dtype.kind != "f" or not array.size:
                continue
            low, high = found.get(name, (np.inf, -np.inf))
            found[name] = min(low, float(array.min())), max(high, float(array.max()))
    return found


def _beyond(tests: Sequence[Feeds] | None, known: Activations) -> Iterator[str]:
    """Yield a warning for each input whose test data leave its quantized range."""
    for name in (tests or [{}])[0]:
        if name in known.known:
            low, high = known.known[name].range
            least, most = (
                float(end([end(feeds[name]) for feeds in tests or ()])) for end in (np.min, np.max)
            )
            if least < low or most > high:
                yield (
                    f"the test data of {name!r} range from {least:.4g} to {most:.4g}, beyond"
                    f" {low:.4g} to {high:.4g}"
                )


def _as_run(found: Candidate, judge: Judge) -> tuple[Candidate, list[str]]:
    """Return a candidate with the fidelity that users see, and why it does not run for them."""
    try:
        return replace(found, fidelity=judge.optimized(found)), []
    except VerifyError as error:
        return found, [f"the model runs without onnxruntime's graph optimizations only: {error}"]


def _overflow(found: Candidate, *, reduce_range: bool) -> str:
    """Return why graph optimizations cost precision, and the remedy."""
    is_static = any(one.is_layer and one.method is Method.STATIC for one in found.coverage)
    takes_8_bits = is_static and not reduce_range
    if takes_8_bits and machine().lower() in X86:
        return (
            "on x86 processors without VNNI its kernels overflow with weights of 8 bits,"
            " --reduce-range (in Python reduce_range=True) takes 7"
        )
    return "graph_optimization_level of its session options turns them off"


def _poor(one: Fidelity, judge: Judge) -> str:
    """Return the beginning of a sentence on a result."""
    verb = "is predicted to have" if judge.is_predicted else "has"
    return f"the result {one.name!r} {verb} SQNR {one.ratio_text('dB')}"


def _losses(found: Candidate, judge: Judge, overflow: str) -> Iterator[str]:
    """Yield the results of use that graph optimizations make worse."""
    for one in found.fidelity:
        if one.lost > 0 and one.sqnr >= LEAST:
            yield f"{_poor(one, judge)}: {overflow}"


def _doubts(
    found: Candidate, before: ModelProto, judge: Judge, overflow: str, *, has_data: bool
) -> Iterator[str]:
    """Yield why the results may be of no use, and the remedy.

    `before` is the float model before corrections of biases.
    """
    data = "" if has_data else "--data gives better ranges, "
    remedy = f"{data}--exclude leaves operators float, irc align shows which"
    small: Mapping[str, str] = {}
    if judge.is_predicted and any(not each.sqnr >= LEAST for each in found.fidelity):
        small = judge.in_float(Runner(before, judge.base_dir), GOOD)
    for each in found.fidelity:
        if not each.sqnr >= LEAST:
            ways = small.get(each.name) and f"{small[each.name]}: {OTHERS}"
            yield f"{_poor(each, judge)}: {ways or (overflow if each.lost > 0 else remedy)}"
    if not found.fidelity:
        yield f"not compared with the float model: {judge.measured_on}"
    layers = [one for one in found.coverage if one.is_layer]
    if layers and not any(one.quantized for one in layers):
        yield "no layer is int8: --data or --range gives the ranges"
    model, known = found.prepared.model, found.prepared.known
    origins = {each.origin for each in known.known.values()}
    rests = not origins.isdisjoint((Origin.STATISTIC.value, Origin.PROPAGATED.value))
    if not judge.is_predicted or not rests:
        return
    if any(one.quantized for one in layers):
        for name in maps(model, known):
            yield (
                f"the result {name!r} is a map, and rare text or objects in it exceed the"
                " statistics: --data gives ranges, --test-data measures"
            )
