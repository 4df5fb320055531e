"""Are two models the same function? In float64 by the evaluator, in their own dtype by onnxruntime.

Float64. Where no constant is rounded, the two models differ by the rounding of float64 arithmetic
alone: 1e-16 of the magnitudes that meet, a few hundred times over. `EXACT` leaves four orders of
magnitude above that, and a wrong rule is off by a share of 1e-3 or more of the numbers that these
tests use. The magnitude is the greatest of any value of either model, constants included.

onnxruntime. `rounding_bound` evaluates the model once with the absolute value of everything
(`graphs.absolute`), which gives sum |W||x||s| + ... at every output; a dot product of n terms is
off by n u of that, and so is whatever is made of it. n is below `TERMS` in every model of these
tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from float64 import evaluate
from float64.interpreter import Interpreter, tensors_only
from graphs import (
    F32,
    KINDS,
    ROUNDOFF,
    Array,
    absolute,
    all_nodes,
    assert_accounted,
    assert_equivalent,
    assert_interface,
    assert_named,
    assert_nothing_stale,
    attribute,
    compiled,
    constants,
    is_valid,
    size,
    stimuli,
)
from harness import run
from irc.result import Result
from onnx import ModelProto, TensorProto
from onnxruntime.capi import onnxruntime_pybind11_state as refusals

EXACT = 1e-12
TERMS = 256
ALL_KINDS = tuple(KINDS)
NO_KERNEL = (
    refusals.NotImplemented,
    refusals.Fail,
    refusals.InvalidGraph,
    refusals.InvalidArgument,
)


def assert_sound(
    before: ModelProto, result: Result, passes: str | None = None, *, inlined: bool = False
) -> None:
    """Everything but numbers: interface, size, names, reasons, validity, and a second compile.

    Operators may become more where calls are `inlined`.
    """
    after = result.model
    assert_interface(before, after)
    assert inlined or size(after) <= size(before)
    assert_nothing_stale(before, after)
    assert_named(before, after)
    assert_accounted(result)
    if is_valid(before) is None:
        assert is_valid(after) is None
    if after != before:
        assert compiled(after, passes).model == after, "compiling the compiled model changes it"


def magnitude(values: Mapping[str, Array]) -> float:
    """The greatest finite magnitude of any float."""
    floats = [
        np.abs(array[np.isfinite(array)]) for array in values.values() if array.dtype.kind == "f"
    ]
    return max((float(array.max()) for array in floats if array.size), default=0.0)


def difference(before: ModelProto, after: ModelProto, kinds: Sequence[str] = ALL_KINDS) -> float:
    """The greatest difference in float64, as a share of the greatest magnitude in between."""
    worst = 0.0
    names = [info.name for info in before.graph.output]
    programs = [Interpreter(model, None) for model in (before, after)]
    for inputs in stimuli(before, kinds=kinds):
        first, second = (tensors_only(program.evaluate(inputs, keep=True)) for program in programs)
        unit = max(magnitude(first), magnitude(second), 1e-30)
        for name in names:
            want, found = first[name], second[name]
            assert found.shape == want.shape, name
            assert found.dtype == want.dtype, name
            assert (np.isfinite(found) == np.isfinite(want)).all(), name
            if want.dtype.kind != "f":
                assert (found == want).all(), name
                continue
            finite = np.isfinite(want)
            assert np.array_equal(found[~finite], want[~finite], equal_nan=True), name
            worst = max(worst, float(np.abs(found - want)[finite].max(initial=0)) / unit)
    return worst


def runs_exactly(model: ModelProto) -> bool:
    """Whether no constant of the model is narrower than float64."""
    return all(
        array.dtype not in ROUNDOFF or not ROUNDOFF[array.dtype]
        for array in constants(model).values()
    )


def assert_same_function(before: ModelProto, after: ModelProto) -> None:
    """Equal in float64, full tensors with their borders, for inputs of every kind."""
    if after == before:
        return
    if runs_exactly(before):
        share = difference(before, after)
        assert share <= EXACT, f"off by {share:.3g} of the greatest magnitude"
    else:
        assert_equivalent(before, after)


UNBOUNDED = (
    "Exp",
    "Pow",
    "Reciprocal",
    "Sqrt",
    "ReduceProd",
    "ReduceSumSquare",
    "QuantizeLinear",
    "LRN",
)
"""Operators for which `graphs.absolute` gives no bound."""


def has_computed_divisor(model: ModelProto) -> bool:
    """Whether a Div has a computed divisor: a greater one makes a smaller quotient, no bound."""
    fixed = constants(model)
    return any(node.op_type == "Div" and node.input[1] not in fixed for node in all_nodes(model))


def has_rounding_bound(model: ModelProto) -> bool:
    """Whether `rounding_bound` holds: every operator is as steep as for magnitudes."""
    if has_computed_divisor(model):
        return False
    for node in all_nodes(model):
        narrows = node.op_type == "Cast" and attribute(node, "to") in (
            TensorProto.FLOAT16,
            TensorProto.BFLOAT16,
        )
        learns = node.op_type == "BatchNormalization" and len(node.output) > 1
        drops = node.op_type == "Dropout" and len(node.input) > 2
        if node.op_type in UNBOUNDED or narrows or learns or drops:
            return False
    return True


def rounding_bound(model: ModelProto, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """How far rounding to float32 may move each element of the results."""
    positive = {
        name: np.abs(array) if array.dtype.kind == "f" else array for name, array in inputs.items()
    }
    share = ROUNDOFF[F32] * TERMS * max(size(model), 1)
    return {
        name: share * np.abs(array) for name, array in evaluate(absolute(model), positive).items()
    }


def assert_same_in_runtime(before: ModelProto, after: ModelProto) -> None:
    """Equal in onnxruntime up to rounding; skips where it does not run the source."""
    if not has_rounding_bound(before):
        pytest.skip("there is no bound on the rounding of one of the operators")
    for inputs in stimuli(before, kinds=ALL_KINDS):
        try:
            expected = run(before, inputs)
        except NO_KERNEL as error:
            pytest.skip(f"onnxruntime: {str(error).splitlines()[0][:100]}")
        found = run(after, inputs)
        bounds = [rounding_bound(model, inputs) for model in (before, after)]
        for name, want in expected.items():
            assert found[name].shape == want.shape, name
            if want.dtype.kind != "f":
                assert (found[name] == want).all(), name
                continue
            limit = bounds[0][name] + bounds[1][name] + 1e-30
            same = (found[name] == want) | (np.isnan(found[name]) & np.isnan(want))
            with np.errstate(invalid="ignore"):  # both may overflow to the same infinity
                distance = np.abs(found[name].astype(np.float64) - want.astype(np.float64))
                excess = np.where(same, 0.0, distance - limit)
            assert excess.max(initial=0) <= 0, (
                f"{name} is off by {excess.max()} more than the bound"
            )
