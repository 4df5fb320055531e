"""int8 models by onnxruntime's `quantize_static`: `irc.quantize`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from onnx import ModelProto

from ...backends.onnx.kept_files import external_files
from ...backends.quantizers.onnxruntime import quantizable_types
from ...backends.quantizers.ranges import SIGMAS, Activations, Range, activations
from ...compiler import compile as compile_model
from ...compiler import read_onnx
from ...frontends.onnx import from_model
from ...frontends.onnx.codec.domains import with_canonical_domains
from ...frontends.onnx.codec.external_data import embed_external_data
from ...ir.tensor import Array
from ...ir.types import F16, F32
from ...passes.infra import PassContext
from ...passes.watching import counting_passes
from ...result import copied
from ...support.errors import EmitError, SourceError, UsageError, listed, nearest
from ...support.limits import DEFAULT_LIMITS, Limits
from ...support.progress import shown_progress
from ..verify.inputs import Feeds, overridable_inputs
from ..verify.onnx_graph import body_reads, constant_tensors
from ..verify.runner import Runner
from .coverage import NO_RANGE, Reason, coverage
from .engine import Engine, check_engine, constants_to_initializers
from .fidelity import Fidelity, measure
from .float_results import keep_results_float
from .integer_limits import limit_integers
from .quantized_layers import FUSED
from .quantized_model import LISTED, Quantized
from .removed_activations import activations_undone, limits_of
from .samples import count_samples, generate_samples, read_samples

PASSES = (
    "default,CrossLayerEqualization{{objective=noise}},HighBiasAbsorption{{sigmas=6}},BiasCorrection{{per_channel={}}},"
    "FoldConstant{{widen=true}}"
)
"""Passes that prepare a model, with the granularity of its weights' scales.

Absorption keeps 6 deviations, as the ranges do: with 3, as published, results change more than they
gain.
"""
MAX_BYTES = 2**31 - 1
"""Bytes of a protobuf message."""
UNDONE = "no range does its work"
"""Why a Relu or Clip stays float that onnxruntime would remove."""


def quantize(
    model: str | Path | ModelProto,
    *,
    data: str | Path | Mapping[str, Array] | Array | None = None,
    test_data: str | Path | Mapping[str, Array] | Array | None = None,
    input_ranges: Mapping[str, Range] | Range | None = None,
    ranges: Mapping[str, Range] | None = None,
    sigmas: float = SIGMAS,
    per_channel: bool = False,
    exclude: Collection[str] = (),
    keep: Iterable[str] = (),
    passes: str | None = None,
    progress: bool = False,
    base_dir: str | Path = ".",
    limits: Limits = DEFAULT_LIMITS,
) -> Quantized:
    """Fold, equalize and quantize a model by onnxruntime: weights int8, activations uint8.

    The ranges of activations come from `data`, or without it from the statistics of
    BatchNormalization, as in `irc.backends.quantizers.ranges.activations`; `input_ranges` are then
    needed for floating-point graph inputs. `ranges` override the range of any tensor of the folded
    model.

    - `data`, `test_data`: a folder, an `.npz` file or arrays by the names of the inputs, with
      samples along the first axis. Both models are compared on `test_data`, else on `data`, else on
      generated inputs.
    - `per_channel`: one scale for each output channel of a weight.
    - `exclude`: names of operators, or of their results, that stay float.
    - `keep`: names of nodes and values that the passes leave alone, as for `irc.compile`.
    - `passes`: the passes that prepare the model, by default PASSES.
    - `progress`: show the steps that are done on standard error, if that is a terminal or a
      notebook.
    - `base_dir`: the folder of the external data of a ModelProto.

    An operator for which a range is missing stays float, and so do the results of the model, where
    no operator reads them and `ranges` names none. Initializers that are graph inputs become
    constants.

    Raises UsageError for invalid arguments, if the range of an input is missing, and if onnxruntime
    has no quantizer; ModelError, PassError and EmitError as `irc.compile`, VerifyError if the data
    do not fit or the model does not run.
    """
    check_engine()
    source, folder = (
        (model, Path(base_dir)) if isinstance(model, ModelProto) else read_onnx(model, limits)
    )
    ctx = PassContext()
    text = PASSES.format(str(per_channel).lower()) if passes is None else passes
    with shown_progress("quantizing", wanted=progress) as advance:
        with counting_passes(ctx, advance):
            module = from_model(source, folder, limits)
            result = compile_model(module, text, freeze_initializers=True, keep=keep, context=ctx)
        folded = copied(result.model)
        embed_external_data(folded, folder)
        prepared = _named(folded)
        if prepared.ByteSize() > MAX_BYTES:
            raise EmitError(
                "the model is too large to be quantized: onnxruntime's"
                " quantizer takes less than 2 GiB"
            )
        _check_names(source, folded, ranges or {})
        known = activations(
            folded, result.fold_map, input_ranges=input_ranges, ranges=ranges, sigmas=sigmas
        )
        if isinstance(input_ranges, tuple):  # of the one input that takes a range
            (name,) = [info.name for info in folded.graph.input if info.name in known.shapes]
            input_ranges = {name: input_ranges}
        advance("ranges")
        calibration = None if data is None else read_samples(data, prepared)
        tests = None if test_data is None else read_samples(test_data, prepared)
        reasons = {
            **_not_removable(prepared),
            **_other_types(prepared, known),
            **_excluded(prepared, exclude),
        }
        if calibration is None:
            _check_inputs(prepared, known)
            reasons = {**_without_range(prepared, known), **reasons}
        given = {**(input_ranges or {}), **(ranges or {})}
        engine = Engine(prepared, known, calibration, given, per_channel=per_channel)
        while True:
            quantized, warnings = engine.run(reasons)
            undone = {
                node.name: Reason(UNDONE, node.output[0])
                for node in activations_undone(quantized, prepared)
            }
            if not undone:
                break
            reasons |= undone  # they are left alone, so that the next round has fewer
        advance("weights and scales")
        keep_results_float(quantized, prepared, ranges or {})
        limited = limit_integers(quantized)
        found = coverage(prepared, quantized, frozenset(known.shapes), quantizable_types(), reasons)
        covered = [replace(one, reason=None) if one.node in limited else one for one in found]
        fidelity, measured_on = _compare(source, folder, quantized, tests, calibration, known)
        advance("comparison")
    warnings = [*ctx.warnings, *_beyond(tests, known), *warnings, *_lost(fidelity)]
    names = [info.name for info in overridable_inputs(source)]
    if names:
        warnings.append(
            f"callers can no longer override the initializers {listed(map(repr, names), LISTED)}"
        )
    origins = {name: found.origin for name, found in known.known.items() if calibration is None}
    return Quantized(
        quantized,
        prepared,
        tuple(covered),
        origins,
        tuple(fidelity),
        measured_on,
        tuple(warnings),
        () if isinstance(model, ModelProto) else _files_of(model, source, folder),
    )


def _files_of(path: str | Path, model: ModelProto, folder: Path) -> tuple[Path, ...]:
    """Return the file of a model, and those of its external data; none for standard input."""
    return () if str(path) == "-" else (Path(path), *sorted(external_files(model, folder)))


def _check_names(source: ModelProto, folded: ModelProto, ranges: Mapping[str, Range]) -> None:
    """Raise UsageError if a value of the source has a range, but is not in the folded model."""
    before, after = (
        {name for node in model.graph.node for name in node.output} for model in (source, folded)
    )
    gone = next((name for name in ranges if name in before - after), None)
    if gone is not None:
        raise UsageError(
            f"the passes replaced {gone!r} by a value of another range: name a value of the model"
            " that --float writes, or equalize nothing (--passes default)"
        )


def _named(model: ModelProto) -> ModelProto:
    """Return a copy whose main graph's nodes have names, by default their results'.

    Constants are initializers, which need no input since IR version 4, and ONNX's own domain is
    imported once, as the engine asks.
    """
    model = copied(with_canonical_domains(model))
    model.ir_version = max(model.ir_version, 4)
    constants_to_initializers(model)
    taken = {node.name for node in model.graph.node}
    seen: set[str] = set()
    for node in model.graph.node:
        if not node.name or node.name in seen:
            name = stem = next(filter(None, node.output), node.op_type)
            number = 1
            while name in taken:
                number += 1
                name = f"{stem}_{number}"
            taken.add(name)
            node.name = name
        seen.add(node.name)
    return model


def _excluded(model: ModelProto, exclude: Collection[str]) -> dict[str, Reason]:
    """Return the reason of the nodes that the user excludes.

    Raises UsageError for a name that no node has.
    """
    owners = {
        name: node.name for node in model.graph.node for name in (*node.output, node.name) if name
    }
    names = (exclude,) if isinstance(exclude, str) else exclude
    for name in names:
        if name not in owners:
            near = nearest(name, owners, cutoff=0.6)
            hint = "" if near is None else f"; the nearest is {near!r}"
            raise UsageError(
                "the main graph of the folded model has no operator of the"
                f" name or result {name!r}{hint}"
            )
    return {owners[name]: Reason("--exclude") for name in names}


def _not_removable(model: ModelProto) -> dict[str, Reason]:
    """Return the reason of Relus and Clips that would be removed though no range does their work.

    It gives their data their own range where no other node of the main graph reads these.
    """
    results, constants = {info.name for info in model.graph.output}, constant_tensors(model.graph)
    alone = Counter(name for node in model.graph.node for name in node.input)
    inner = {name for node in model.graph.node for name in body_reads(node)}
    found = {}
    for node in model.graph.node:
        if node.op_type not in FUSED or alone[node.input[0]] > 1:
            continue
        if node.input[0] in results | inner:
            noun = "the result" if node.input[0] in results else "the value"
            found[node.name] = Reason(
                f"onnxruntime would clip {noun} {node.input[0]!r} to its range"
            )
        elif limits_of(node, constants) is None:
            found[node.name] = Reason("its bounds are computed")
    return found


def _other_types(model: ModelProto, known: Activations) -> dict[str, Reason]:
    """Return the reason of the operators on numbers of types that onnxruntime does not quantize."""
    return {
        node.name: Reason(f"onnxruntime does not quantize {known.dtypes[name]}")
        for node in model.graph.node
        for name in (*node.input, *node.output)
        if known.dtypes.get(name, F32) not in (F16, F32)
    }


def _check_inputs(model: ModelProto, known: Activations) -> None:
    """Raise UsageError if an input, on which a quantized tensor depends, has no range."""
    missing, types = set(known.missing), quantizable_types()
    inputs = [info.name for info in model.graph.input if info.name in missing]
    behind: dict[str, set[str]] = {name: {name} for name in inputs}
    needed: set[str] = set()
    for node in model.graph.node:
        names = {origin for name in node.input for origin in behind.get(name, ())}
        behind.update((name, names) for name in node.output if name in missing)
        if node.op_type in types and not missing.isdisjoint([*node.input, *node.output]):
            needed |= names
    if needed:
        lacking = listed((repr(name) for name in inputs if name in needed), LISTED)
        raise UsageError(
            f"nothing is known of the range of {lacking}: give --input-range NAME=LOW:HIGH"
            " (input_ranges= in Python), or --data with samples"
        )


def _without_range(model: ModelProto, known: Activations) -> dict[str, Reason]:
    """Return the reason of the nodes that read or write a tensor without a range."""
    missing, types = set(known.missing), quantizable_types()
    found: dict[str, Reason] = {}
    for node in model.graph.node:
        name = next((name for name in (*node.output, *node.input) if name in missing), None)
        if node.op_type in types and name is not None:
            found[node.name] = Reason(NO_RANGE, name)
    return found


def _compare(
    source: ModelProto,
    base_dir: Path,
    quantized: ModelProto,
    tests: Sequence[Feeds] | None,
    calibration: Sequence[Feeds] | None,
    known: Activations,
) -> tuple[list[Fidelity], str]:
    """Return the fidelity of all results, and the samples that it was measured on, in words."""
    runners = Runner(source, base_dir), Runner(quantized, base_dir)
    if tests is not None:
        return measure(*runners, tests), f"{count_samples(tests)} of the test data"
    if calibration is not None:
        return measure(
            *runners, calibration
        ), f"{count_samples(calibration)}, those of the calibration"
    limits = {
        info.name: known.known[info.name].range
        for info in source.graph.input
        if info.name in known.known
    }
    try:
        batches = generate_samples(runners[0], limits)
    except SourceError as error:
        runners[1].check_loads()
        return [], str(error)
    return measure(*runners, batches), f"{count_samples(batches)}, generated within the ranges"


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


def _lost(fidelity: Sequence[Fidelity]) -> Iterator[str]:
    """Yield a warning for each result whose error is greater than the result itself."""
    for each in fidelity:
        if each.sqnr < 0:
            yield (
                f"the error of the result {each.name!r} is greater than the result (SQNR"
                f" {each.sqnr:.1f} dB): irc align shows where, --data and --range give better"
                " ranges, --exclude leaves operators float"
            )
