"""Every row of the tables of FoldScaleAxis.

The legal fold, its illegal neighbour, and what is degenerate.

The cases stand as data in `tests/support/scale_axis`, written from the rules and not from the code.
Each is compiled with the default pipeline; its affine operators are counted, and its numbers
compared three times:

- in float64, where constants are not rounded, so that what remains is the arithmetic of the
  evaluation: 1e-12 of the greatest magnitude that any value of either model has;
- the same with a symbolic batch;
- in float32 by onnxruntime without optimisations, within the bound on what rounding can do
  (`oracle.rounding_bound`).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
from graphs import F32, F64, all_nodes, compiled, reasons
from onnx import ModelProto, helper
from oracle import assert_same_function, assert_same_in_runtime, assert_sound
from scale_axis import CASES
from scale_axis.build import AFFINES, PLANE, Case


def left(model: ModelProto) -> list[str]:
    """The operators that are or may be affines, in all graphs."""
    return sorted(node.op_type for node in all_nodes(model) if node.op_type in AFFINES)


def fed(model: ModelProto, shape: Sequence[int]) -> ModelProto:
    """The model with a shape for inputs of unknown rank, so that it can be evaluated."""
    made = copy.deepcopy(model)
    for info in made.graph.input:
        tensor = info.type.tensor_type
        if not tensor.HasField("shape"):
            info.CopyFrom(helper.make_tensor_value_info(info.name, tensor.elem_type, shape))
    return made


def prove(case: Case, *, symbolic: bool) -> None:
    model = case.model(symbolic=symbolic)
    result = compiled(model, case.passes)
    after = result.model
    assert_sound(model, result, case.passes)
    assert_same_function(fed(model, PLANE), fed(after, PLANE))
    kinds = {node.op_type for node in all_nodes(after)}
    if case.left is not None:
        assert left(after) == sorted(case.left.split()), reasons(result)
    assert set(case.has.split()) <= kinds


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_rule(case: Case) -> None:
    prove(case, symbolic=False)


@pytest.mark.parametrize(
    "case", [c for c in CASES if not c.static and c.x], ids=lambda case: case.id
)
def test_rule_with_a_symbolic_batch(case: Case) -> None:
    prove(case, symbolic=True)


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.dtype == F64 and c.x], ids=lambda case: case.id
)
def test_rule_in_onnxruntime(case: Case) -> None:
    model = case.model(F32)
    after = compiled(model, case.passes).model
    if after == model:  # nothing to run: the rule refuses in float64, too
        assert compiled(case.model(), case.passes).model == case.model()
        return
    assert_same_in_runtime(model, after)


def test_cases_have_names_of_their_own() -> None:
    names = [case.id for case in CASES]
    assert sorted(set(names)) == sorted(names)
