"""The oracle that the rule tests lean on: it accepts what is right, and it can fail."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
from float64 import evaluate
from graphs import F32, F64, Array, absolute, all_nodes, compiled, is_valid, stimuli, wide
from harness import run
from onnx import ModelProto, numpy_helper
from oracle import (
    ALL_KINDS,
    EXACT,
    assert_same_in_runtime,
    difference,
    has_rounding_bound,
    rounding_bound,
)
from random_graphs import grow, shrink
from scale_axis import CASES
from scale_axis.build import add, bn, chain, conv, mul, op
from scale_axis.build import case as row


def with_constant(model: ModelProto, index: int, change: Callable[[Array], Array]) -> ModelProto:
    """The model with another initializer."""
    made = copy.deepcopy(model)
    tensor = made.graph.initializer[index]
    tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor)), tensor.name))
    return made


def bordered(naive: bool) -> tuple[ModelProto, ModelProto]:
    """A shift before a padded Conv, folded into the bias as if there were no padding."""
    source = row("", "", add(3, 1, 1), conv(4, 3, 3, 3, pads=[1, 1, 1, 1]))
    target = row("", "", op("Identity"), conv(4, 3, 3, 3, pads=[1, 1, 1, 1]))
    before, after = source.model(), target.model()
    shift, weight, bias = (numpy_helper.to_array(tensor) for tensor in before.graph.initializer)
    total = bias + (np.einsum("mikl,i->m", weight, shift.ravel()) if naive else 0)
    del after.graph.initializer[:]
    after.graph.node[-1].output[0] = before.graph.output[0].name
    after.graph.output[0].name = before.graph.output[0].name
    after.graph.initializer.extend(
        [
            numpy_helper.from_array(weight, after.graph.node[1].input[1]),
            numpy_helper.from_array(total, after.graph.node[1].input[2]),
        ]
    )
    return before, after


@pytest.mark.parametrize("naive", [False, True])
def test_a_shift_folded_over_a_border_is_seen(naive: bool) -> None:
    before, after = bordered(naive)
    assert difference(before, after) > 1e-3


def test_a_last_digit_too_few_is_seen_in_float64() -> None:
    model = row("", "", conv(4, 3), bn(4)).model()
    rounded = with_constant(model, 0, lambda array: wide(array.astype(np.float32)))
    assert EXACT < difference(model, rounded) < 1e-6


@pytest.mark.parametrize("share", [1e-2, 1e-3])
def test_a_wrong_weight_is_seen_in_onnxruntime(share: float) -> None:
    model = row("", "", conv(4, 3, 2, 2), chain(mul(4, 1, 1), op("Relu"))).model(F32)
    wrong = with_constant(model, 0, lambda array: (array * (1 + share)).astype(np.float32))
    assert_same_in_runtime(model, copy.deepcopy(model))
    with pytest.raises(AssertionError, match="more than the bound"):
        assert_same_in_runtime(model, wrong)


def test_the_bound_holds_of_onnxruntime_on_every_case() -> None:
    """The float32 results of the runtime are within the bound of the exact ones."""
    compared = 0
    for case in CASES:
        if case.dtype != F64 or case.x is None:
            continue
        model = case.model(F32)
        if not has_rounding_bound(model) or any(node.domain for node in all_nodes(model)):
            continue
        for inputs in stimuli(model, kinds=ALL_KINDS[:1]):
            try:
                found = run(model, inputs)
            except Exception:  # onnxruntime lacks the kernel, which the rule tests report
                continue
            exact, bound = evaluate(model, inputs), rounding_bound(model, inputs)
            for name, array in found.items():
                if array.dtype == np.float32 and np.isfinite(exact[name]).all():
                    assert (np.abs(array - exact[name]) <= bound[name] + 1e-30).all(), case.id
            compared += 1
    assert compared > 600


def test_magnitudes_are_never_below_the_values() -> None:
    for seed in range(60):
        model = grow(seed, F32)
        bound = absolute(model)
        for inputs in stimuli(model):
            positive = {
                name: np.abs(array) if array.dtype.kind == "f" else array
                for name, array in inputs.items()
            }
            limits = evaluate(bound, positive) if has_rounding_bound(model) else {}
            for name, limit in limits.items():
                assert (
                    np.abs(evaluate(model, inputs)[name]) <= np.abs(limit) * (1 + 1e-9) + 1e-30
                ).all(), seed


def test_models_of_the_cases_are_valid() -> None:
    """All but those without shape inference, or with types that only the evaluator takes."""
    invalid = [
        case.id for case in CASES if case.x is not None and (is_valid(case.model()) or "") != ""
    ]
    kinds = (
        "foreign",
        "another domain",
        "opset 18",
        "Celu",
        "3.7 opset 1",
        "op_type",
        "3.8 quantized",
    )
    assert [name for name in invalid if not any(kind in name for kind in kinds)] == []


def test_shrinking_keeps_the_fault() -> None:
    def has_pool(model: ModelProto) -> bool:
        return any("Pool" in node.op_type for node in model.graph.node)

    seed = next(
        seed for seed in range(1000) if has_pool(grow(seed)) and len(grow(seed).graph.node) > 7
    )
    smallest = shrink(grow(seed), has_pool)
    assert has_pool(smallest)
    assert len(smallest.graph.node) <= 3
    assert compiled(smallest)
