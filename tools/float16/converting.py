"""float16 models: `irc.to_float16`, and `irc compile --float16`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf, isnan
from pathlib import Path

import numpy as np
from onnx import ModelProto

from ...backends.quantizers.ranges import SIGMAS, Range
from ...compiler import compile as compile_model
from ...compiler import read_onnx
from ...frontends.onnx.codec.external_data import embed_external_data
from ...ir.graph import ONNX_NAMES, Node
from ...ir.module import Module
from ...ir.tensor import Array, largest_finite, round_to
from ...ir.types import F16, DType
from ...passes.affine.records.fold_records import fold_records
from ...passes.float16.conversion import conversion
from ...passes.float16.convert_to_float16 import ConvertToFloat16
from ...passes.float16.convertible_models import check_model
from ...passes.float16.known_ranges import give_ranges
from ...passes.float16.narrow_types import NAMES, check_opset, narrow_type_of, opset_of
from ...passes.float16.selection import Selection
from ...passes.fuse_normalizations import FuseNormalizations
from ...passes.infra import PassContext, Sequential
from ...passes.scaling.scale_by_powers_of_two import ScaleByPowersOfTwo
from ...passes.scaling.scaled_components import scaling
from ...result import Result, copied
from ...support.errors import SourceError, UsageError, VerifyError, did_you_mean
from ...support.limits import DEFAULT_LIMITS, Limits
from ..int8.fidelity import Fidelity, measure
from ..int8.samples import count_samples, generate_samples, hold_out, read_samples
from ..verify.inputs import Feeds
from ..verify.runner import Runner
from .emulation import emulated, narrow_values
from .half_model import HalfModel
from .half_sums import with_half_sums
from .noise_budget import (
    BUDGET_BATCHES,
    BUDGET_BYTES,
    FIRST_SWITCH,
    MOST_WORK,
    NoiseBudget,
)
from .predicted_ranges import measured_ranges, predicted_ranges

MARGIN = 1.0
"""Bits between the greatest magnitude that is known of a value and 65504."""

LEAST = 20.0
"""Ratio in dB below which a result is in doubt."""

KEPT = "kept by the user"
"""The reason of an operator that is named by --keep-float32."""

TARGET = 60.0
"""Ratio in dB for which a few operators stay float32."""

WITHIN = 3.0
"""Distance in dB from the target beyond which a few operators are not searched for."""

RESERVE = 0.3
"""What operators that stay float32 are to gain beyond the target, in dB, if they can.

The noise of a few samples differs from that of others by about as much.
"""

PRECISE = "it costs most precision"
"""The reason of an operator that stays float32 for the sake of the target."""

REGION = ".."
"""Between the names of two operators, it names all on the ways from one to the other."""

PASSES = "default"
INLINED = "InlineFunctions,default"
"""The passes before the conversion, and those for models with functions."""

Samples = str | Path | Mapping[str, Array] | Array


class Wishes:
    """What a user asks of a conversion."""

    def __init__(
        self,
        *,
        inputs: Sequence[Samples],
        input_ranges: Mapping[str, Range] | Range | None,
        ranges: Mapping[str, Range] | None,
        sigmas: float,
        io: str,
        keep_float32: Iterable[str],
        force: Iterable[str],
        target: float,
        margin: float,
        accumulate: str,
        dtype: str,
        keep_bits: bool,
    ) -> None:
        """Take the arguments of `to_float16`. Raises UsageError for a negative margin."""
        if not 0 <= margin < 16:
            raise UsageError(f"the margin is a number of bits from 0 on, not {margin}")
        self.inputs, self.input_ranges, self.ranges = inputs, input_ranges, ranges
        self.sigmas, self.margin, self.accumulate = sigmas, margin, accumulate
        self.keep_float32, self.force = list(keep_float32), list(force)
        self.target, self.keep_bits = target, keep_bits
        self.dtype = narrow_type_of("to_float16", dtype)
        self.preparation = Sequential(
            [FuseNormalizations()]
            if self.dtype is not F16
            else [FuseNormalizations(), ScaleByPowersOfTwo(margin=margin, accumulate=accumulate)]
        )
        """The passes between the ranges and the conversion."""
        self.converter = ConvertToFloat16(io=io, margin=margin, accumulate=accumulate, dtype=dtype)

    @property
    def most(self) -> float:
        """The greatest magnitude that a value may have."""
        return largest_finite(self.dtype) / 2**self.margin

    def selection(self, module: Module) -> Selection:
        """Return which operators of a module become narrow."""
        in_half = self.accumulate == "float16"
        return Selection(module, self.margin, sums_in_half=in_half, dtype=self.dtype)


def to_float16(
    model: str | Path | ModelProto,
    *,
    inputs: Samples | None = None,
    input_ranges: Mapping[str, Range] | Range | None = None,
    ranges: Mapping[str, Range] | None = None,
    sigmas: float = SIGMAS,
    io: str = "float32",
    keep_float32: Iterable[str] = (),
    force: Iterable[str] = (),
    target: float = TARGET,
    margin: float = MARGIN,
    accumulate: str = "float32",
    dtype: str = "float16",
    keep_bits: bool = False,
    passes: str = PASSES,
    base_dir: str | Path = ".",
    limits: Limits = DEFAULT_LIMITS,
) -> HalfModel:
    """Fold a model, scale it by powers of two and convert it to float16, so that nothing overflows.

    Args:
        model: A path or a ModelProto.
        inputs: Samples on which the ranges of all values are measured: a folder, an `.npz` file or
            arrays by the names of the inputs, samples along the first axis. Without them the ranges
            follow from the statistics of BatchNormalization and from `input_ranges`.
        input_ranges: (low, high) of the inputs, as for `irc.quantize`.
        ranges: (low, high) of any tensor, in place of its own.
        sigmas: Without samples, a range is as many standard deviations about the mean.
        io: `float16` converts inputs and outputs, too.
        keep_float32: Names of operators or of their results, operator types, and regions `A..B`:
            all operators on the ways from A to B.
        force: The same of operators that become float16 whatever their ranges, and whatever would
            be cheaper or more precise.
        target: dB for which up to 5 % of the operators stay float32, those that cost most; 0 for
            none.
        margin: Bits between the greatest magnitude that is known and 65504.
        accumulate: The type that the device adds up in; with `float16`, sums of layers and squares
            of norms do not overflow either.
        dtype: `bfloat16` in place of `float16`; nothing is scaled, since it has float32's range.
        keep_bits: Let the fold map hold the bits that are lost, so that it gives the source back.
        passes: The passes before.
        base_dir: The folder of the external data of a ModelProto.
        limits: The limits for reading a model.

    Raises:
        UsageError: Arguments are invalid, or the range of an input is missing.
        ModelError: The model is of float16 already, quantized, or a training model.
        VerifyError: The samples do not fit.
    """
    source, folder = (
        (model, Path(base_dir)) if isinstance(model, ModelProto) else read_onnx(model, limits)
    )
    wishes = Wishes(
        inputs=() if inputs is None else (inputs,),
        input_ranges=input_ranges,
        ranges=ranges,
        sigmas=sigmas,
        io=io,
        keep_float32=keep_float32,
        force=force,
        target=target,
        margin=margin,
        accumulate=accumulate,
        dtype=dtype,
        keep_bits=keep_bits,
    )
    result = compile_model(copied(source), passes, limits=limits)
    return convert(result, source, folder, wishes)


class Calibration:
    """The ranges of all values of a compiled module, and the samples that judge a conversion."""

    def __init__(self, result: Result, folder: Path, wishes: Wishes) -> None:
        """Measure or predict the ranges, and give them to the module. Raises as `to_float16`."""
        check_model(result.module)
        if result.module.functions:
            result = compile_model(result.module, INLINED)
        self.result = result
        self.single = copied(result.model)
        """The float32 model."""
        embed_external_data(self.single, folder)
        runner = Runner(self.single, folder)
        samples = [batch for each in wishes.inputs for batch in read_samples(each, self.single)]
        self.is_predicted = not samples
        if samples:
            self.calibration, self.tests, noun = hold_out(samples, self.single)
            self.ranges = measured_ranges(result, runner, self.calibration)
            self.measured_on = f"{count_samples(self.tests)}{noun}"
        else:
            self.calibration = []
            self.ranges, limits = predicted_ranges(
                result, wishes.input_ranges, wishes.ranges, wishes.sigmas
            )
            self.tests, self.measured_on = _generated(runner, limits)
        give_ranges(result.module, self.ranges)


def convert(
    result: Result,
    source: ModelProto,
    folder: Path,
    wishes: Wishes,
    read_form: Callable[[Result], None] | None = None,
) -> HalfModel:
    """Convert a compiled module in place. `source` is the model that it was made of.

    `read_form` gets the float32 form, in which nothing is rounded yet, while it is one.
    """
    module = result.module
    known = Calibration(result, folder, wishes)
    result, single = known.result, known.single
    beyond = sum(each.most > wishes.most for each in known.ranges.values())
    _take_names(module, wishes)
    fold_records(module).keeps_source = wishes.keep_bits
    size = single.ByteSize()
    ctx = PassContext(warnings=list(result.warnings))
    check_opset(module, wishes.dtype)
    wishes.preparation(module, ctx)
    if read_form is not None:
        read_form(Result(module, ctx.warnings, result.held_back))
    predicted: Mapping[str, float] = {}
    try:
        predicted = _predicted(module, known, wishes, size)
    except VerifyError as error:
        ctx.warnings.append(f"nothing is predicted from the calibration: {error}")
    Sequential([wishes.converter])(module, ctx)
    half = Result(module, ctx.warnings, result.held_back)
    reference = source if _inputs_of(source) == _inputs_of(single) else single
    narrow = emulated(half)
    if wishes.accumulate == "float16":
        narrow = with_half_sums(narrow)
    fidelity = _measured(reference, folder, half, narrow, known.tests) if known.tests else ()
    records = conversion(module)
    ctx.warnings.extend(_doubts(fidelity, known.measured_on))
    return HalfModel(
        half,
        NAMES[wishes.dtype],
        records.converted,
        records.casts,
        tuple(records.stayed),
        tuple(records.constants),
        tuple(scaling(module)),
        beyond,
        fidelity,
        predicted,
        known.measured_on,
        known.is_predicted,
        (sum(node.op_type != "Constant" for node in source.graph.node), half.operators),
        (size, half.model.ByteSize()),
        tuple(ctx.warnings),
    )


def _doubts(fidelity: Sequence[Fidelity], measured_on: str) -> Iterator[str]:
    """Yield why the results may be of no use."""
    if not fidelity:
        yield f"not compared with the float32 model: {measured_on}"
    for one in fidelity:
        if isnan(one.sqnr):
            yield (
                f"the result {one.name!r} is not finite, or has another shape, on {measured_on}:"
                " give more --inputs, or a larger --margin, if the float32 model is finite there"
            )
        elif one.sqnr < LEAST:
            yield (
                f"the result {one.name!r} has {one.sqnr:.1f} dB on {measured_on}: --keep-float32"
                " leaves operators float32"
            )


def _inputs_of(model: ModelProto) -> list[bytes]:
    """Return the inputs as they are declared: preprocessing changes them."""
    return [info.SerializeToString(deterministic=True) for info in model.graph.input]


def _generated(runner: Runner, limits: Mapping[str, Range]) -> tuple[list[Feeds], str]:
    """Return samples within the ranges of the inputs, and what they are in words."""
    try:
        found = generate_samples(runner, limits)
    except SourceError as error:
        return [], str(error)
    return found, f"{count_samples(found)} generated within the ranges, not your data"


def _measured(
    source: ModelProto,
    folder: Path,
    half: Result,
    narrow: ModelProto,
    batches: Sequence[Feeds],
) -> tuple[Fidelity, ...]:
    """Compare the `narrow` model of a conversion, with all its roundings, with the source."""
    inputs = narrow_values(half)
    rounded = [
        {
            name: _rounded(array, inputs[name]) if name in inputs else array
            for name, array in feeds.items()
        }
        for feeds in batches
    ]
    runners = Runner(source, folder), Runner(narrow, folder)
    return tuple(measure(*runners, [info.name for info in source.graph.output], rounded))


def _rounded(array: Array, dtype: DType) -> Array:
    """Return float32 numbers as a narrow input has them."""
    return round_to(array.astype(np.float64), dtype).astype(np.float32)


def _predicted(
    module: Module, known: Calibration, wishes: Wishes, size: int
) -> Mapping[str, float]:
    """Return the dB of each result that the calibration predicts, empty without one.

    If the target is near, operators that cost most are to stay float32. They are chosen on one half
    of the batches and judged on the other. Sums in float16 have a noise of their own, so nothing is
    predicted with them.
    """
    batches = known.calibration[: 2 * BUDGET_BATCHES]
    if wishes.accumulate == "float16" or opset_of(module) < FIRST_SWITCH:
        return {}
    if not batches or size > BUDGET_BYTES:
        return {}
    chosen_on, judged_on = batches[::2], batches[1::2] or batches
    budget = NoiseBudget(module, wishes.selection(module))
    predicted = budget.together(judged_on)
    lacking = wishes.target - min(predicted.values(), default=inf)
    if not 0 < lacking <= WITHIN or budget.work > MOST_WORK:
        return predicted
    budget.measure(chosen_on)
    records = conversion(module)
    given = records.keep
    for reserve in (RESERVE, 0.0):
        kept = [n for n in budget.choose(lacking + reserve) if n not in records.forced]
        if not kept:
            continue
        records.keep = {**given, **dict.fromkeys(kept, PRECISE)}
        found = NoiseBudget(module, wishes.selection(module)).together(judged_on)
        if min(found.values(), default=inf) >= wishes.target:
            return found
    records.keep = given  # roundings that are not independent
    return predicted


def _take_names(module: Module, wishes: Wishes) -> None:
    """Let operators that the user names stay float32, or become float16.

    Raises UsageError for a name that the model does not have, or in both lists.
    """
    records = conversion(module)
    records.forced.update(_named(module, wishes.force, "force"))
    kept = _named(module, wishes.keep_float32, "keep float32")
    both = next((node for node in kept if node in records.forced), None)
    if both is not None:
        raise UsageError(f"{both.description} is both to be forced and to be kept float32")
    records.keep.update(dict.fromkeys(kept, KEPT))


def _named(module: Module, names: Sequence[str], purpose: str) -> dict[Node, None]:
    """Return the operators of a name, that compute a value, of a type, or of a region.

    Raises UsageError for a name that the model does not have.
    """
    by_name: dict[str, list[Node]] = {}
    for node in module.graph.operators():
        op_type = ONNX_NAMES.get(node.op) or node.op.rpartition("::")[2]
        for name in {node.name, op_type, *(value.source_name for value in node.outputs)}:
            by_name.setdefault(name, []).append(node)
    by_name.pop("", None)

    def found(name: str) -> list[Node]:
        if name not in by_name:
            raise UsageError(
                f"the model has no operator, result or operator type {name!r} to"
                f" {purpose}{did_you_mean(name, by_name)}"
            )
        return by_name[name]

    nodes: dict[Node, None] = {}
    for name in names:
        first, separator, last = name.partition(REGION)
        if name in by_name or not separator:
            nodes.update(dict.fromkeys(found(name)))
            continue
        region = _region(module, found(first), found(last))
        if not region:
            raise UsageError(f"no way leads from {first!r} to {last!r} to {purpose}")
        nodes.update(region)
    return nodes


def _region(module: Module, first: Sequence[Node], last: Sequence[Node]) -> dict[Node, None]:
    """Return the operators on the ways from some to others, ends included. O(operators)."""
    behind, before = set(first), set(last)
    operators = list(module.graph.operators())
    for node in operators:
        makers = (value.node for value in node.inputs if value is not None)
        if any(maker in behind for maker in makers):
            behind.add(node)
    for node in reversed(operators):
        if any(user in before for value in node.outputs for user in value.users):
            before.add(node)
    return {node: None for node in operators if node in behind and node in before}
