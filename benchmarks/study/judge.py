"""Judge a tool's result against the source, by onnx, onnxruntime and float64; not by irc.

The reference is the source in float64 (`tests/support/float64`). A bound on the rounding of each
element is measured there: the source is evaluated again with every float input, constant and
intermediate result moved by a random part of its unit roundoff, and an element may be off by
`MARGIN` times the largest move. Tensors of whole numbers are not moved. onnxruntime without
optimizations runs the source, too: where it is not within the bound, the two references disagree,
and nothing is judged.

A result is *wrong* where onnxruntime without optimizations computes it beyond the bound, and the
float64 evaluation of the result is beyond the bound as well. Where only one of both can run the
result, it is the only witness, which the verdict says. Where they contradict each other, the
verdict is *undecided*. A source that onnxruntime refuses is judged by the evaluator alone, if all
that is missing is a kernel; it may be no legal model otherwise.
"""

from __future__ import annotations

import pickle
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

import ml_dtypes
import numpy as np
import onnx
from float64 import UnsupportedOp, evaluate
from float64.interpreter import Interpreter, tensors_only
from onnx import ModelProto, NodeProto, TensorProto, helper

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = dict[str, Array]

MARGIN = 64.0
"""Multiple of the measured rounding by which an element may be off."""

SAMPLES = 3
STEP_MARGIN, STEP_NOISE = 4.0, 64.0
"""For models with step functions: the margin, and the multiple of the unit roundoff by which values
are moved.
"""

IMPRECISE = 1e-4
"""A result off by less than this share of the largest element is called imprecise, not wrong."""

UNITS = {
    TensorProto.FLOAT16: 2.0**-11,
    TensorProto.BFLOAT16: 2.0**-8,
    TensorProto.FLOAT: 2.0**-24,
    TensorProto.DOUBLE: 2.0**-53,
}
TINY = {2.0**-11: 2.0**-24, 2.0**-8: 2.0**-126, 2.0**-24: 2.0**-126, 2.0**-53: 2.0**-1022}
"""The smallest number that has full precision, or nearly, by unit roundoff."""

LARGEST = {2.0**-11: 65504.0, 2.0**-8: 3.38e38, 2.0**-24: 3.4e38, 2.0**-53: 1.7e308}

RANDOM = frozenset(
    (
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Multinomial",
        "Bernoulli",
    )
)
STEPS = frozenset(
    (
        *(
            "QuantizeLinear",
            "DynamicQuantizeLinear",
            "QLinearConv",
            "QLinearMatMul",
            "Round",
            "Floor",
            "Ceil",
            "Mod",
        ),
        *(
            "Sign",
            "Hardmax",
            "Shrink",
            "ThresholdedRelu",
            "ArgMax",
            "ArgMin",
            "TopK",
            "NonMaxSuppression",
            "Unique",
        ),
        *(
            "NonZero",
            "Greater",
            "Less",
            "GreaterOrEqual",
            "LessOrEqual",
            "Equal",
            "Not",
            "And",
            "Or",
            "Xor",
            "IsInf",
        ),
        *("IsNaN", "Where", "If", "Loop", "Cast", "CastLike", "BitShift", "RoiAlign", "MaxRoiPool"),
    )
)
"""Operators whose results may jump where operands move by a rounding error."""

NO_KERNEL = "NOT_IMPLEMENTED"
"""Stands in the refusals of onnxruntime that say nothing about the model."""

SOURCE_DIFFERS = "two runs of the source with the same inputs differ"

REDUCED = ("MatMulNBits",)
"""Operators that compute with int8 where their attribute accuracy_level is 4."""

RESIZING = ("Resize", "Upsample")
AFFINES = frozenset(("BatchNormalization", "Mul", "Add", "Sub", "Div", "Neg", "Sum", "Mean"))
SIZES = ((2, 4), (3, 3), (1, 1), (5, 5), (2, 32), (2, 4, 4), (1, 48))
"""The leading extent, the other extents and the rank of inputs, where the model leaves
them open.
"""


# the models


def all_nodes(model: ModelProto) -> Iterator[NodeProto]:
    """Yield every node of every graph and function."""
    stack: list[Any] = [model.graph, *model.functions]
    while stack:
        for node in stack.pop().node:
            yield node
            for attribute in node.attribute:
                stack.extend([attribute.g] if attribute.HasField("g") else attribute.graphs)


def overridable(model: ModelProto) -> list[str]:
    """Return the inputs with a default, which a caller may override since IR version 4."""
    initialized = {tensor.name for tensor in model.graph.initializer}
    return (
        [info.name for info in model.graph.input if info.name in initialized]
        if model.ir_version > 3
        else []
    )


def required(model: ModelProto) -> list[onnx.ValueInfoProto]:
    """Return the inputs that a caller has to give."""
    initialized = {tensor.name for tensor in model.graph.initializer}
    return [info for info in model.graph.input if info.name not in initialized]


def unit_of(model: ModelProto) -> float:
    """Return the unit roundoff of the narrowest float type of 16 bits and more in a model."""
    kinds = {tensor.data_type for tensor in model.graph.initializer}
    kinds |= {info.type.tensor_type.elem_type for info in (*model.graph.input, *model.graph.output)}
    for node in all_nodes(model):
        for attribute in node.attribute:
            kinds |= {attribute.t.data_type} | (
                {attribute.i} if attribute.name in ("to", "dtype") else set()
            )
    return max((UNITS[kind] for kind in kinds if kind in UNITS), default=2.0**-24)


def random_operator(model: ModelProto) -> str:
    """Return an operator of the model that draws random numbers, or an empty string."""
    opset = next(
        (entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 1
    )
    for node in all_nodes(model):
        old = opset < 7 and not any(item.name == "is_test" and item.i for item in node.attribute)
        if node.op_type in RANDOM or (node.op_type == "Dropout" and (len(node.input) > 2 or old)):
            return node.op_type
    return ""


def check(model: ModelProto) -> str:
    """Return the reason why onnx.checker with full_check refuses a model, or an empty string."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:  # the checker and shape inference raise types of their own
        return " ".join(str(error).split())[:300] or type(error).__name__
    return ""


class Runtime:
    """A model in onnxruntime without graph optimizations, on one thread.

    Raises what onnxruntime raises.
    """

    def __init__(self, model: ModelProto) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        self.known = {value.name for value in self.session.get_inputs()}
        self.known |= {value.name for value in self.session.get_overridable_initializers()}
        self.outputs = [value.name for value in self.session.get_outputs()]

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs by name."""
        values = self.session.run(
            self.outputs, {name: feeds[name] for name in feeds if name in self.known}
        )
        return dict(zip(self.outputs, values, strict=True))


def alike(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Return whether two runs gave the same bits."""
    return all(
        np.shape(value) == np.shape(second[name])
        and np.asarray(value).tobytes() == np.asarray(second[name]).tobytes()
        if isinstance(value, np.ndarray) and value.dtype.kind != "O"
        else str(value) == str(second[name])
        for name, value in first.items()
    )


def attempt(model: ModelProto) -> tuple[Runtime | None, str]:
    """Return the model in onnxruntime, or the reason why it refuses it."""
    try:
        return Runtime(model), ""
    except Exception as error:  # onnxruntime raises types of its own
        return None, " ".join(str(error).split())[:300]


# inputs


def draw(kind: str, shape: Sequence[int], dtype: np.dtype[Any], rng: np.random.Generator) -> Array:
    """Return one input of a kind."""
    if dtype.kind in "iub":
        numbers = {"zeros": np.zeros(shape), "ones": np.ones(shape)}.get(
            kind, rng.integers(0, 2, shape)
        )
        return np.asarray(numbers).astype(dtype)
    if kind == "zeros":
        return np.zeros(shape, dtype)
    if kind == "ones":
        return np.ones(shape, dtype)
    if kind == "negative":
        return np.asarray(-rng.uniform(0.5, 2, shape)).astype(dtype)
    return np.asarray(rng.standard_normal(shape) * (1000 if kind == "large" else 1)).astype(dtype)


KINDS = ("random", "zeros", "ones", "negative", "large")


def feeds_of(model: ModelProto, kind: str, size: Sequence[int]) -> Arrays:
    """Return inputs of a kind. Raises ValueError for an input that is no tensor of numbers.

    An extent with a name is the same in all inputs. `overrides` gives the inputs with a default,
    too: 1.25 times it.
    """
    rng = np.random.default_rng(7)
    first, other, *rank = size
    extents: dict[str, int] = {}
    feeds: Arrays = {}
    for info in required(model):
        tensor = info.type.tensor_type
        if info.type.WhichOneof("value") != "tensor_type" or tensor.elem_type in (
            0,
            TensorProto.STRING,
        ):
            raise ValueError(f"input {info.name!r} is no tensor of numbers")
        shape = []
        for i, dim in enumerate(tensor.shape.dim):
            extent = dim.dim_value
            if extent <= 0:
                extent = other if i else first
            shape.append(extents.setdefault(dim.dim_param, extent) if dim.dim_param else extent)
        if not tensor.HasField("shape"):
            shape = [first, *[other] * ((rank[0] if rank else 2) - 1)]
        feeds[info.name] = draw(kind, shape, helper.tensor_dtype_to_np_dtype(tensor.elem_type), rng)
    if kind == "overrides":
        wanted = set(overridable(model))
        for initializer in model.graph.initializer:
            if initializer.name in wanted and initializer.data_type in UNITS:
                default = onnx.numpy_helper.to_array(initializer)
                feeds[initializer.name] = np.asarray(default * default.dtype.type(1.25)).astype(
                    default.dtype
                )
    return feeds


def is_open(model: ModelProto) -> bool:
    """Return whether the extent or the rank of an input is open."""
    kinds = [info.type.tensor_type for info in required(model)]
    return any(
        not kind.HasField("shape") or any(dim.dim_value <= 0 for dim in kind.shape.dim)
        for kind in kinds
    )


# the reference


class Noisy(Interpreter):
    """The float64 evaluator with a random part of `unit` on every float, but whole numbers.

    The scales of a Resize stay, too: they decide on its shape.
    """

    def __init__(self, model: ModelProto, unit: float, seed: int) -> None:
        super().__init__(model, None)
        self.unit, self.rng = unit, np.random.default_rng(seed)
        extents = {
            name for node in all_nodes(model) if node.op_type in RESIZING for name in node.input[1:]
        }
        for name, value in self._graph.constants.items():
            if name not in extents:
                self._graph.constants[name] = self.move(value)

    def move(self, value: Any) -> Any:
        """Return the value, moved."""
        if isinstance(value, list):
            return [self.move(item) for item in value]
        if (
            value is None
            or value.dtype != np.float64
            or not value.size
            or (np.rint(value) == value).all()
        ):
            return value
        return np.asarray(value * (1 + self.unit * self.rng.uniform(-1, 1, value.shape)))

    def _apply(self, step: Any, scope: Any) -> Sequence[Any]:
        return [self.move(value) for value in super()._apply(step, scope)]


def noisy(model: ModelProto, feeds: Arrays, unit: float, seed: int) -> Arrays:
    """Return the outputs of a model whose values are moved."""
    program = Noisy(model, unit, seed)
    moved = {
        name: program.move(array.astype(np.float64)) if is_float(array) else array
        for name, array in feeds.items()
    }
    return tensors_only(program.evaluate(moved, keep=False))


def is_float(array: Array) -> bool:
    """Return whether an array has elements of a float type of 16 bits or more."""
    return array.dtype.kind == "f" or array.dtype == ml_dtypes.bfloat16


@dataclass
class Stimulus:
    """Inputs, the outputs that they have, and how far each element may be off."""

    name: str
    feeds: Arrays
    expected: dict[str, Any]
    """The float64 outputs, or those of onnxruntime where the evaluator does not know an
    operator.
    """

    bounds: dict[str, Array] = field(default_factory=dict)
    """By float output; infinite where an element is not compared.

    Empty where there is no float64 evaluation.
    """

    in_runtime: bool = True
    """Whether onnxruntime runs the source on these inputs."""


@dataclass
class Reference:
    """What the judge knows of a source model."""

    model: ModelProto
    valid: bool
    """Whether onnx.checker accepts the source."""

    loads: bool
    """Whether onnxruntime loads the source."""

    unit: float
    stimuli: list[Stimulus] = field(default_factory=list)
    excluded: str = ""
    """The reason why no numbers are compared."""


def make_reference(source: Path, seconds: float) -> Reference:
    """Evaluate a source on inputs of all kinds, as long as `seconds` are left."""
    begin = time.monotonic()
    model = onnx.load(source)
    runtime, refusal = attempt(model)
    found = Reference(model, not check(model), runtime is not None, unit_of(model))
    if operator := random_operator(model):
        found.excluded = f"{operator} draws random numbers"
        return found
    if (
        not model.graph.output
    ):  # onnxruntime loads it, but runs it no more than the same without its operators
        found.loads, found.excluded = False, "the source has no outputs"
        return found
    if runtime is None and NO_KERNEL not in refusal:
        found.excluded = f"onnxruntime refuses the source: {refusal}"
        return found
    reasons = Counter[str]()
    sizes = SIZES if is_open(model) else SIZES[:1]
    kinds = [*KINDS, *(["overrides"] if overridable(model) else [])]
    plan = [(kind, sizes[0]) for kind in kinds] + [("random", size) for size in sizes[1:]]
    for kind, size in plan:
        if found.stimuli and time.monotonic() - begin > seconds:
            break
        try:
            stimulus = make_stimulus(model, runtime, kind, size, found.unit)
            found.stimuli.append(stimulus)
        except Undecidable as reason:
            reasons[str(reason)] += 1
    if not found.stimuli:
        found.excluded = reasons.most_common(1)[0][0] if reasons else refusal
    return found


class Undecidable(Exception):
    """Results on some inputs cannot be judged."""


def make_stimulus(
    model: ModelProto, runtime: Runtime | None, kind: str, size: Sequence[int], unit: float
) -> Stimulus:
    """Return inputs and the outputs that they have. Raises Undecidable."""
    try:
        feeds = feeds_of(model, kind, size)
    except ValueError as error:
        raise Undecidable(str(error)) from None
    name = kind if not is_open(model) else f"{kind}, open extents {size[0]} and {size[1]}"
    before: dict[str, Any] | None = None
    refusal = "onnxruntime does not run the source"
    if runtime is not None:
        try:
            before = runtime.run(feeds)
            again = runtime.run(feeds)
        except Exception as error:  # onnxruntime raises types of its own
            text = " ".join(str(error).split())[:200]
            if NO_KERNEL not in text:
                raise Undecidable(f"onnxruntime does not run the source: {text}") from None
        if before is not None and not alike(before, again):
            raise Undecidable(SOURCE_DIFFERS)
    try:
        exact = evaluate(model, feeds)
    except UnsupportedOp as error:
        exact = None
        refusal += f"; {error}"
    except Exception as error:  # inputs that do not fit
        exact = None
        refusal += f"; the evaluator: {' '.join(str(error).split())[:120]}"
    if exact is None and before is None:
        raise Undecidable(refusal)
    if exact is None:
        raise Undecidable(refusal.split("; ", 1)[-1])
    bounds = rounding_bounds(model, feeds, exact, unit)
    if before is not None:
        for output, want in exact.items():
            found = before.get(output)
            if not isinstance(found, np.ndarray) or found.shape != want.shape:
                raise Undecidable("the references disagree: shapes")
            if output in bounds:
                wide = found.astype(np.float64)
                bounds[output][~np.isfinite(wide)] = np.inf
                with np.errstate(invalid="ignore"):
                    distance = np.abs(wide - want)
                if (distance > bounds[output]).any():
                    raise Undecidable("the references disagree: numbers")
                finite = np.isfinite(bounds[output])
                bounds[output] += 2 * distance[finite].max(initial=0)
            elif want.dtype.kind != "O" and (found != want).any():
                raise Undecidable("the references disagree: numbers")
    return Stimulus(name, feeds, dict(exact), bounds, before is not None)


def rounding_bounds(model: ModelProto, feeds: Arrays, exact: Arrays, unit: float) -> Arrays:
    """Return how far rounding may move each element of the float outputs; infinite if unknown.

    Raises Undecidable where an output that is no float moves with the noise.
    """
    plans = [(unit, MARGIN)]
    if any(node.op_type in STEPS for node in all_nodes(model)):
        plans.append((unit * STEP_NOISE, STEP_MARGIN))
    moves: Arrays = {}
    for amplitude, margin in plans:
        for seed in range(SAMPLES):
            try:
                moved = noisy(model, feeds, amplitude, seed)
            except Exception:  # a shape that depends on rounding
                raise Undecidable(
                    "the source does not run if its numbers move by rounding errors"
                ) from None
            for name, want in exact.items():
                found = moved[name]
                if found.shape != want.shape:
                    raise Undecidable("a shape depends on rounding")
                if want.dtype != np.float64:
                    if want.dtype.kind != "O" and (found != want).any():
                        raise Undecidable("an integer or Boolean output depends on rounding")
                    continue
                with np.errstate(invalid="ignore"):
                    move = margin * np.abs(found - want)
                moves[name] = np.fmax(moves.get(name, np.zeros(want.shape)), move)
    for name, move in moves.items():
        want = exact[name]
        finite = np.isfinite(move) & np.isfinite(want)
        scale = move[finite].max(initial=0.0) or 1.0  # the squares of large numbers overflow
        typical = (
            float(scale * np.sqrt(np.mean((move[finite] / scale) ** 2))) if finite.any() else 0.0
        )
        bound = np.maximum(move, typical) + MARGIN * (unit * np.abs(want) + TINY[unit])
        bound = np.asarray(bound)
        bound[~finite | (np.abs(want) > LARGEST[unit] / 4)] = np.inf
        moves[name] = bound
    return moves


# the verdict


@dataclass
class Verdict:
    """What is wrong with the result of a tool. Empty strings and lists mean: nothing found."""

    invalid: str = ""
    numbers: str = "same"
    """same, wrong, imprecise, undecided, or not compared."""

    detail: str = ""
    """How the numbers differ, or why they were not compared."""

    stimulus: str = ""
    """The name of the inputs that show it."""

    interface: list[str] = field(default_factory=list)
    operators: dict[str, int] = field(default_factory=dict)

    @property
    def affines(self) -> int:
        """The operators that may be an affine."""
        return sum(count for kind, count in self.operators.items() if kind in AFFINES)

    @property
    def size(self) -> int:
        """The operators but Constant."""
        return sum(count for kind, count in self.operators.items() if kind != "Constant")


def judge(reference: Reference, out: Path) -> Verdict:
    """Judge the result of a tool."""
    source = reference.model
    data = out.read_bytes()
    try:
        model = onnx.load(out)
    except Exception as error:  # protobuf and onnx raise types of their own
        return Verdict(
            invalid=f"onnx.load: {' '.join(str(error).split())[:200]}", numbers="not compared"
        )
    operators = dict(sorted(Counter(node.op_type for node in all_nodes(model)).items()))
    verdict = Verdict(interface=interface(source, model), operators=operators)
    if data == source.SerializeToString():
        return verdict
    if reference.valid and (refusal := check(model)):
        verdict.invalid = f"onnx.checker: {refusal}"
    runtime, refusal = attempt(model) if reference.loads else (None, "")
    if refusal:
        verdict.invalid = verdict.invalid or f"onnxruntime: {refusal}"
    verdict.numbers, verdict.detail, verdict.stimulus = compare(reference, model, runtime, verdict)
    return verdict


def compare(
    reference: Reference, model: ModelProto, runtime: Runtime | None, verdict: Verdict
) -> tuple[str, str, str]:
    """Return how numbers of a result compare with the reference, the detail, and the inputs."""
    if reference.excluded:
        return "not compared", reference.excluded, ""
    if reference.loads and runtime is None:
        return "not compared", "onnxruntime refuses the result", ""
    worst = ("same", "", "")
    ranks = ("same", "not compared", "undecided", "imprecise", "wrong")
    given = {info.name for info in model.graph.input}
    compared = 0
    for stimulus in reference.stimuli:
        if missing := stimulus.feeds.keys() - given:
            found = ("not compared", f"the result has no input {min(missing)!r}", stimulus.name)
        else:
            found = (*compare_on(stimulus, model, runtime, verdict, reference.unit), stimulus.name)
        compared += found[0] != "not compared"
        if ranks.index(found[0]) > ranks.index(worst[0]):
            worst = found
    return ("same", "", "") if worst[0] == "not compared" and compared else worst


def compare_on(
    stimulus: Stimulus, model: ModelProto, runtime: Runtime | None, verdict: Verdict, unit: float
) -> tuple[str, str]:
    """Return how the numbers of a result compare with the reference on one input."""
    witnesses: dict[str, tuple[float, str]] = {}
    if stimulus.in_runtime and runtime is not None:
        try:
            found = runtime.run(stimulus.feeds)
            if not alike(found, runtime.run(stimulus.feeds)):
                return "undecided", "two runs of the result with the same inputs differ"
            witnesses["onnxruntime"] = difference(stimulus, found, unit)
        except Exception as error:  # onnxruntime raises types of its own
            text = " ".join(str(error).split())[:200]
            verdict.invalid = verdict.invalid or f"onnxruntime, inputs {stimulus.name}: {text}"
            return "not compared", "onnxruntime does not run the result"
        if not witnesses["onnxruntime"][1]:
            return "same", ""
    try:
        witnesses["float64"] = difference(stimulus, evaluate(model, stimulus.feeds), unit)
    except UnsupportedOp:
        pass
    except Exception as error:  # the result cannot be evaluated
        witnesses["float64"] = (
            np.inf,
            f"cannot be evaluated: {' '.join(str(error).split())[:120]}",
        )
    faults = {name: text for name, (_, text) in witnesses.items() if text}
    if not witnesses:
        return "not compared", "neither onnxruntime nor the evaluator runs the result"
    if not faults:
        return "same", ""
    if len(faults) < len(witnesses):
        return "undecided", f"only {', '.join(faults)} differs: {next(iter(faults.values()))}"
    if any(node.op_type in REDUCED and has_reduced_accuracy(node) for node in all_nodes(model)):
        return (
            "imprecise",
            f"the result states accuracy_level 4 (int8): {next(iter(faults.values()))}",
        )
    share = min(share for share, _ in witnesses.values())
    only = f" (only {next(iter(faults))} runs it)" if len(witnesses) == 1 else ""
    return ("wrong" if share >= IMPRECISE else "imprecise"), f"{next(iter(faults.values()))}{only}"


def has_reduced_accuracy(node: NodeProto) -> bool:
    """Return whether a node states that it computes with int8."""
    return any(
        attribute.name == "accuracy_level" and attribute.i == 4 for attribute in node.attribute
    )


def difference(stimulus: Stimulus, found: Mapping[str, Any], unit: float) -> tuple[float, str]:
    """Return the largest difference beyond the bounds as a share of the largest element."""
    worst, text = 0.0, ""
    for name, want in stimulus.expected.items():
        array = found.get(name)
        if array is None:
            return np.inf, f"there is no output {name!r}"
        array = np.asarray(array)
        if array.shape != want.shape:
            return (
                np.inf,
                f"output {name!r} has the shape {list(array.shape)}, not {list(want.shape)}",
            )
        if name not in stimulus.bounds:
            if want.dtype.kind != "O" and (array != want).any():
                return (
                    np.inf,
                    f"{int((array != want).sum())} of {want.size} elements of {name!r} differ",
                )
            continue
        wide, bound = array.astype(np.float64), stimulus.bounds[name]
        with np.errstate(invalid="ignore"):
            distance = np.where(np.isfinite(wide), np.abs(wide - want), np.inf)
            excess = np.where(np.isfinite(bound), distance - bound, -np.inf)
        if excess.size and excess.max() > 0:
            at = np.unravel_index(int(excess.argmax()), excess.shape)
            scale = float(np.abs(want[np.isfinite(bound)]).max()) or 1.0
            share = float(distance[at]) / scale
            if share >= worst:
                index = ", ".join(map(str, at))
                text = (
                    f"{name}[{index}] is {wide[at]:.6g}, expected {want[at]:.6g} ± {bound[at]:.1g}"
                    f"; {int((excess > 0).sum())} of {want.size} elements differ"
                )
                worst = share
    return worst, text


# the interface


def interface(before: ModelProto, after: ModelProto) -> list[str]:
    """Return what differs in what a caller sees, each with a kind in front of the colon."""
    found: list[str] = []
    for kind, old, new in (
        ("input", required(before), required(after)),
        ("output", *outputs(before, after)),
    ):
        was, names = [info.name for info in old], [info.name for info in new]
        lost = [name for name in was if name not in names]
        more = [name for name in names if name not in was]
        if (
            kind == "input"
        ):  # an input with a default that must be given now, and the other way round
            lost = [name for name in lost if name not in overridable(after)]
            more = [name for name in more if name not in overridable(before)]
        found += [f"{kind} lost: {', '.join(lost)}"] if lost else []
        found += [f"{kind} added: {', '.join(more)}"] if more else []
        if not lost and not more and was != names and set(was) == set(names):
            found.append(f"order of {kind}s: {', '.join(names)}")
        by_name = {
            info.name: info for info in new
        }  # by position where no name changed: one may be listed twice
        pairs = zip(old, new if was == names else (by_name.get(name) for name in was), strict=True)
        for info, other in pairs:
            if other is not None and (
                text := retyped(info.type, other.type, refine=kind == "output")
            ):
                found.append(f"{kind} {text}: {info.name}")
    if gone := [
        name
        for name in overridable(before)
        if name not in {info.name for info in after.graph.input}
    ]:
        found.append(f"overridable initializer lost: {', '.join(gone)}")
    imports = [
        {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}
        for model in (before, after)
    ]
    changed = {domain: (imports[0][domain], imports[1].get(domain)) for domain in imports[0]}
    used = {node.domain or "ai.onnx" for node in all_nodes(after)}
    for domain, (old_version, new_version) in changed.items():
        if new_version is not None and new_version != old_version:
            found.append(f"opset changed: {domain} {old_version} to {new_version}")
        elif new_version is None and domain in used:  # another model than its nodes ask for
            found.append(f"opset import lost: {domain}")
    if added := sorted(imports[1].keys() - imports[0].keys()):
        found.append(f"opset imports added: {', '.join(added)}")
    kept = {entry.key: entry.value for entry in after.metadata_props}
    if lost_keys := [
        entry.key for entry in before.metadata_props if kept.get(entry.key) != entry.value
    ]:
        found.append(f"metadata_props lost: {', '.join(lost_keys)}")
    if before.graph.metadata_props and not after.graph.metadata_props:
        found.append("metadata_props of the graph lost: all")
    for name in ("doc_string", "domain", "model_version"):
        if getattr(before, name) and getattr(before, name) != getattr(after, name):
            found.append(f"{name} lost: of the model")
    if before.graph.doc_string and before.graph.doc_string != after.graph.doc_string:
        found.append("doc_string lost: of the graph")
    return found


def outputs(before: ModelProto, after: ModelProto) -> tuple[Sequence[Any], Sequence[Any]]:
    """Return the outputs of both models."""
    return before.graph.output, after.graph.output


def retyped(old: onnx.TypeProto, new: onnx.TypeProto, *, refine: bool) -> str:
    """Return how the type of a value changed; with `refine` a more precise shape is the same."""
    kind = old.WhichOneof("value")
    if kind != new.WhichOneof("value"):
        return "type changed"
    if kind != "tensor_type":
        return "" if old == new else "type changed"
    was, now = old.tensor_type, new.tensor_type
    if was.elem_type != now.elem_type:
        return "type changed"
    if not was.HasField("shape"):
        return "" if refine or not now.HasField("shape") else "rank made fixed"
    if not now.HasField("shape"):
        return "shape lost"
    if len(was.shape.dim) != len(now.shape.dim):
        return "rank changed"
    for a, b in zip(was.shape.dim, now.shape.dim, strict=True):
        if a.dim_value > 0 and a.dim_value != b.dim_value:
            return "extent changed" if b.dim_value > 0 else "extent lost"
        if a.dim_value <= 0 < b.dim_value and not refine:
            return "open extent made fixed"
        if a.dim_param and a.dim_param != b.dim_param and not b.dim_value:
            return "name of an open extent changed"
    return ""


# calls for other processes


def write_reference(source: Path, to: Path, seconds: float) -> dict[str, Any]:
    """Make the reference of a source, write it to a file, and return what the report says of it."""
    found = make_reference(source, seconds)
    to.write_bytes(pickle.dumps(found))
    return {
        "valid": found.valid,
        "loads": found.loads,
        "excluded": found.excluded,
        "stimuli": [stimulus.name for stimulus in found.stimuli],
        "witness": all(stimulus.in_runtime for stimulus in found.stimuli),
        "operators": dict(Counter(node.op_type for node in all_nodes(found.model))),
    }


def judge_file(reference: Path, tool: str, out: Path) -> dict[str, Any]:
    """Judge the result of a tool by a reference that was written before."""
    return asdict(judge(pickle.loads(reference.read_bytes()), out))
