"""The lines beside the rules.

Every rule has one, what was proved is what stands there, and irc keeps to it.

`make proofs` proves the lines with z3. Here the same lines are evaluated on numbers, and their left
sides are given to irc as models: where the conditions hold the rule fires and keeps the numbers,
and where one of them does not it leaves the operators alone.
"""

from __future__ import annotations

import copy
import zlib
from typing import Any

import numpy as np
import pytest
from graphs import all_nodes, compiled, size
from irc.frontends.onnx import from_model
from irc.ir.debug_counter import APPLIED
from irc.ir.rewriter import Rewriter
from irc.ir.shape_evaluator import ShapeEvaluator
from irc.passes.simplify.rule_set import RULES
from irc.passes.simplify_expr import simplifier
from irc.result import emit
from onnx import ModelProto, TensorProto, numpy_helper
from oracle import assert_same_function

from proofs.domains import FUNCTIONS, Instance, frees
from proofs.inventory import AFFINES, NOT_PROVED, Entry, entries
from proofs.models import agree, built, decoded, drawn, holds, node_of, result, tensors
from proofs.operators import Op
from proofs.report import REPORT, read, render
from proofs.statement import Statement, statements
from proofs.tensors import Undefined

ENTRIES = entries()
BY_NAME = {entry.name: entry for entry in ENTRIES}
RESULTS = read()
NOT_MOVED = {
    "addend",
    "_subtrahend",
    "_minuend",
    "_factor",
    "_divisor",
    "_averaged",
    "affine_of",
    "lower_batch_norm",
    "clip_shifted",
}
"""Lines about one affine: nothing passes another operator."""
OPTIONS = {
    ("conv_data", 1): "border=pad",
    ("conv_data", 2): "border=map",
    ("conv_data", 3): "border=ones",
}
"""Lines that need an option of FoldScaleAxis."""
MERGES = {"added": "MergeBranches,", "composed": "MergeLayers,"}
"""Passes after FoldScaleAxis, by rule."""

OPSETS = {
    ("rms_norm_result", 0): 23,
    ("rms_norm_data", 0): 23,
    ("rms_norm_data", 1): 23,
    ("group_norm_result", 1): 18,
}
UNSEEN = {
    ("backward_quotient", 1): "the numerator takes the scale before the denominator is asked",
    ("clip_backward", 1): "the bounds of the Clip are chosen by the rule, not by the model",
    ("max_pool_channels", 1): "indices are no data",
    ("concatenate_forward", 1): "fires where one affine reaches both operands",
    ("drop_zero_state", 0): "the state has to be computed",
    ("constant_target", 0): "the target has to be computed",
    ("constant_repeats", 0): "the target has to be computed",
    ("cast_of_full", 0): "the shape has to be computed",
    ("constant_mask", 0): "it is the second result",
    ("inline_branch", 0): "the branches are graphs",
    ("inline_branch", 1): "the branches are graphs",
}
"""Lines of which a model does not show whether the rule fires."""

OTHER_WAYS = {
    ("padded_channels", 1, "s != 0"): "the shift passes first, and leaves a padding of 0",
}
"""Conditions without which another rule may move the affine: the numbers are compared alone."""


def is_seen(rule: str, number: int) -> bool:
    """Return whether a model shows that the rule fires."""
    return rule not in NOT_MOVED and (rule, number) not in UNSEEN


CASES = [
    pytest.param(case, id=f"{case['rule']} {case['line']} without {case['dropped']}")
    for found in RESULTS.values()
    for case in found["counterexamples"]
]
LINES = [
    pytest.param(entry, number, id=f"{entry.name} {number}")
    for entry in ENTRIES
    if entry.domain is not None
    for number, _ in enumerate(statements(entry.line))
]
SEEN_CASES = [case for case in CASES if is_seen(case.values[0]["rule"], case.values[0]["line"])]
SEEN_LINES = [line for line in LINES if is_seen(line.values[0].name, line.values[1])]


def has_conditions(entry: Entry, number: int) -> bool:
    return bool(statements(entry.line)[number].conditions)


def test_every_rule_has_a_line_or_is_named() -> None:
    assert {entry.name for entry in ENTRIES if not entry.line} <= set(NOT_PROVED)
    assert set(NOT_PROVED) <= {entry.name for entry in ENTRIES}
    assert len({entry.name for entry in ENTRIES}) == len(ENTRIES)


def test_what_was_proved_are_the_lines_beside_the_rules() -> None:
    lines = {entry.name: entry.line for entry in ENTRIES if entry.name not in NOT_PROVED}
    assert {name: found["line"] for name, found in RESULTS.items()} == lines, "run `make proofs`"
    assert REPORT.read_text(encoding="utf-8") == render(RESULTS), (
        "docs/proofs.md is stale: run `make proofs`"
    )


def test_every_condition_of_a_line_has_a_counterexample() -> None:
    wanted = {
        (entry.name, number, condition)
        for entry in ENTRIES
        if entry.name not in NOT_PROVED
        for number, statement in enumerate(statements(entry.line))
        for condition in statement.conditions
    }
    assert wanted == {
        (c["rule"], c["line"], c["dropped"]) for f in RESULTS.values() for c in f["counterexamples"]
    }


@pytest.mark.parametrize("case", CASES)
def test_a_counterexample_refutes(case: dict[str, Any]) -> None:
    statement = statements(BY_NAME[case["rule"]].line)[case["line"]]
    variables = tensors(*decoded(case), case["kind"])
    left = result(statement.left, variables)
    assert left is not None
    assert not agree(left, result(statement.right, variables))
    assert [each for each in statement.conditions if not holds(each, variables)] == [
        case["dropped"]
    ]


@pytest.mark.parametrize("case", SEEN_CASES)
def test_irc_leaves_a_counterexample_alone(case: dict[str, Any]) -> None:
    entry = BY_NAME[case["rule"]]
    statement = statements(entry.line)[case["line"]]
    model = model_of(entry, case["line"], *decoded(case), case["kind"])
    fired, after = applied(entry, case["line"], model)
    if (entry.name, case["line"], case["dropped"]) not in OTHER_WAYS:
        assert stays(entry, fired, after), statement


@pytest.mark.slow
@pytest.mark.parametrize(("entry", "number"), SEEN_LINES)
def test_irc_applies_a_line(entry: Entry, number: int) -> None:
    """Where the conditions hold the rule fires, in one instance at least, and the numbers stay."""
    statement = statements(entry.line)[number]
    fired = tried = 0
    for kind, instance, numbers in instances(entry, statement):
        try:
            model = model_of(entry, number, instance, numbers, kind)
        except Undefined:  # no layer takes a vector
            continue
        tried += 1
        fired += applied(entry, number, model)[0]
        if fired and tried >= 4:
            break
    assert fired, f"none of {tried} instances"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("entry", "number"), [line for line in SEEN_LINES if has_conditions(*line.values)]
)
def test_irc_refuses_where_a_condition_fails(entry: Entry, number: int) -> None:
    """Of numbers for which the sides differ, a rule that fires would make a wrong model."""
    statement = statements(entry.line)[number]
    for kind, instance, numbers in instances(entry, statement, 4, holding=False):
        try:
            model = model_of(entry, number, instance, numbers, kind)
        except Undefined:  # no layer takes a vector
            continue
        fired, after = applied(entry, number, model)
        assert stays(entry, fired, after), (instance, numbers)


@pytest.mark.slow
@pytest.mark.parametrize(("entry", "number"), LINES)
def test_a_line_holds_of_numbers(entry: Entry, number: int) -> None:
    statement = statements(entry.line)[number]
    for kind, instance, numbers in instances(entry, statement, 20):
        variables = tensors(instance, numbers, kind)
        assert agree(result(statement.left, variables), result(statement.right, variables)), (
            instance,
            numbers,
        )


@pytest.mark.parametrize(
    "entry",
    [e for e in ENTRIES if e.group == AFFINES and e.name.endswith("_channels")],
    ids=lambda entry: entry.name,
)
def test_limits_are_the_conditions(entry: Entry) -> None:
    """The conditions that the code checks are those of the line."""
    from irc.ir.evaluate import ConstantEvaluator
    from irc.ir.ops import OPS
    from irc.ir.ops.channel_map import ChannelAxis, Limit

    words = {
        Limit.NO_SHIFT: "t == 0",
        Limit.NO_NEGATIVE_SCALE: "s >= 0",
        Limit.NO_ZERO_SCALE: "s != 0",
    }
    (statement, *_) = statements(entry.line)
    assert entry.domain is not None
    for instance in entry.domain.instances:
        op = instance.get("op")
        if not isinstance(op, Op) or any(
            not isinstance(each, int | float) for each in op.constants
        ):
            continue
        node = node_of(op, instance["x"].shape or (1, 2, 3))
        channels = OPS[node.op].channels
        assert channels is not None
        found = {
            words[limit]
            for limit, _ in channels(node, ChannelAxis(None, None), ConstantEvaluator()).limits
        }
        variables = tensors(
            instance, {"x": np.zeros(instance["x"].shape), "s": 2.0, "t": 3.0}, "reals"
        )
        always = {each for each in statement.conditions if "|" in each and holds(each, variables)}
        stated = {
            each.replace("(t == 0) | averages_data_only(op)", "t == 0")
            for each in {*statement.conditions} - always
        }
        assert found == stated, op


def test_all_lines_are_proved() -> None:
    """The proof itself, where z3 is installed."""
    pytest.importorskip(
        "z3", reason="z3-solver is not installed: `make proofs` has an environment with it"
    )
    from proofs.prover import prove

    for entry in ENTRIES:
        if entry.name not in NOT_PROVED:
            assert entry.domain is not None
            proof = prove(entry.name, entry.line, entry.domain)
            assert proof.holds, (entry.name, proof.failed, proof.needless)
            assert proof.proved == RESULTS[entry.name]["proved"]


def test_a_wrong_line_is_not_proved() -> None:
    pytest.importorskip(
        "z3", reason="z3-solver is not installed: `make proofs` has an environment with it"
    )
    from proofs.prover import prove

    domain = BY_NAME["rectified_channels"].domain
    assert domain is not None
    assert prove("rectified_channels", "s * op(x) + t == op(s * x + t) if t == 0", domain).failed
    assert prove(
        "rectified_channels", "s * op(x) == op(s * x) if s >= 0 and s < 9", domain
    ).needless


def fits(instance: Instance, statement: Statement) -> bool:
    return statement.variables <= {*instance, *FUNCTIONS}


def instances(
    entry: Entry, statement: Statement, most: int = 12, *, holding: bool = True
) -> list[tuple[str, Instance, dict[str, Any]]]:
    """Return instances of a line with numbers for which its conditions hold, drawn by its name.

    With `holding` unset, a condition fails and the sides differ, and so for each line with the same
    left side.
    """
    assert entry.domain is not None
    rng = np.random.default_rng(zlib.crc32(str(statement).encode()))
    alike = (
        [statement]
        if holding
        else [each for each in statements(entry.line) if each.left == statement.left]
    )
    fitting = [each for each in entry.domain.instances if fits(each, statement)]
    found = []
    for i in rng.permutation(len(fitting))[:60].tolist() * (1 + most // len(fitting)):
        kind = entry.domain.fields[len(found) % len(entry.domain.fields)]
        for _ in range(60 if any(free.constant for _, free in frees(fitting[i])) else 5):
            numbers = drawn(fitting[i], rng, kind, uniform=holding)
            variables = tensors(fitting[i], numbers, kind)
            try:
                true = any(
                    all(holds(each, variables) for each in line.conditions)
                    for line in alike
                    if fits(fitting[i], line)
                )
            except Undefined:
                break
            left = result(statement.left, variables)
            if left is None or true is not holding:
                continue
            if holding or not any(
                agree(left, result(line.right, variables))
                for line in alike
                if fits(fitting[i], line)
            ):
                found.append((kind, fitting[i], numbers))
                break
        if len(found) >= most:
            break
    return found


def model_of(
    entry: Entry, number: int, instance: Instance, numbers: dict[str, Any], kind: str
) -> ModelProto:
    assert entry.domain is not None
    statement = statements(entry.line)[number]
    if (entry.name, number) in UNSEEN:
        pytest.skip(UNSEEN[entry.name, number])
    around = entry.domain.place(number) if entry.group == AFFINES else "reader"
    return built(statement, instance, numbers, kind, around, OPSETS.get((entry.name, number), 21))


def applied(entry: Entry, number: int, model: ModelProto) -> tuple[bool, ModelProto]:
    """Return whether the rule fired, and the model after it, with the same numbers."""
    if entry.group == AFFINES:
        option = OPTIONS.get((entry.name, number))
        fold = f"FoldScaleAxis{{{option}}}" if option else "FoldScaleAxis"
        after = compiled(
            model,
            f"SimplifyInference,{fold},{MERGES.get(entry.name, '')}CanonicalizeOps,SimplifyExpr,FoldConstant",
        ).model
        fired = affines(after) < affines(model)
        if entry.name in MERGES:
            fired = size(after) < size(model)
    else:
        module = from_model(copy.deepcopy(model))
        rewriter = Rewriter(module)
        names: list[str] = []
        rewriter.debug_counter.trace = lambda _, rule, outcome: (
            names.append(rule) if outcome == APPLIED else None
        )
        only = {
            op: [rule for rule in rules if rule.name == entry.name] for op, rules in RULES.items()
        }
        for graph in module.graphs():
            simplifier(rewriter, ShapeEvaluator(), only).to_fixpoint(graph)
        fired, after = entry.name in names, emit(module).model
    if is_comparable(model):
        with np.errstate(all="ignore"):
            assert_same_function(model, after)
    return fired, after


def stays(entry: Entry, fired: bool, after: ModelProto) -> bool:
    """Return whether the operators of a line are left alone."""
    if entry.group == AFFINES and entry.name not in MERGES:
        return affines(after) > 0
    return not fired


def is_comparable(model: ModelProto) -> bool:
    """Return whether the model computes with floats, and finite constants."""
    floats = {TensorProto.FLOAT, TensorProto.DOUBLE}
    arrays = [numpy_helper.to_array(each) for each in model.graph.initializer]
    return all(
        each.type.tensor_type.elem_type in (*floats, TensorProto.BOOL) for each in model.graph.input
    ) and all(np.isfinite(array).all() for array in arrays if array.dtype.kind == "f")


AFFINE_NODES = ("Mul", "Add", "Sub", "Div", "BatchNormalization")


def affines(model: ModelProto) -> int:
    """Return how many operators with a constant operand are an affine."""
    constants = {each.name for each in model.graph.initializer}
    return sum(
        node.op_type in AFFINE_NODES and not constants.isdisjoint(node.input)
        for node in all_nodes(model)
    )
