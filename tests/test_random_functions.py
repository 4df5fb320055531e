"""Random models with functions whose bodies have attributes by reference.

Same numbers, sound, a fixpoint.

A model of either grammar, `random_graphs` or `exporter_graphs`, is made from a seed, and
`with_functions` puts parts of it into functions. That the model without functions has the same
numbers is held, too: it needs no references.

`IRC_EXAMPLES=20000 pytest -n 2 tests/test_random_functions.py` makes a long run, `IRC_SEED=1000000`
begins it elsewhere; the default is 160 models.
"""

from __future__ import annotations

import copy
import os
from collections import Counter

import pytest
from exporter_graphs import export
from graphs import all_graphs, all_nodes, is_valid
from irc.compiler import compile as compile_model
from irc.passes import PassContext, Verify
from irc.passes.pipelines import DEFAULT
from onnx import ModelProto, printer
from oracle import EXACT, assert_sound, difference
from random_graphs import grow, shrink, with_functions, without_overloads
from verification import deviation, is_loaded

EXAMPLES = int(os.environ.get("IRC_EXAMPLES", "160"))
FIRST = int(os.environ.get("IRC_SEED", "0"))
BLOCKS = 16
KINDS = ("random", "negative")
PASSES = (None, None, f"InlineFunctions,{DEFAULT}")
"""Pipelines, by seed: the default one inlines only calls that hold back a fold."""
COMPARED = 4
"""One exported model in so many is compared in numbers."""


def made(seed: int) -> tuple[ModelProto, ModelProto, bool]:
    """The model of that seed without functions and with, and whether float64 is exact."""
    exact = seed // BLOCKS % 2 == 0
    plain = grow(seed) if exact else export(seed)
    return plain, with_functions(plain, seed), exact


def hold(
    plain: ModelProto, model: ModelProto, passes: str | None, *, exact: bool, numbers: bool
) -> None:
    """Compile a model, and hold the result against everything that has to be true of it."""
    given = copy.deepcopy(model)
    result = compile_model(
        given, passes, context=PassContext([Verify()] if exact or numbers else [])
    )
    assert given == model, "the compiler changed its input"
    assert_sound(model, result, passes, inlined=True)
    references = [
        a.ref_attr_name for g in all_graphs(result.model) for n in g.node for a in n.attribute
    ]
    assert not any(references), "a reference stands outside of functions"
    if exact:
        share = difference(plain, result.model, KINDS)
        assert share <= EXACT, f"off by {share:.3g} of the greatest magnitude"
    elif numbers and is_loaded(model):
        found = deviation(plain, without_overloads(result.model))
        assert found is None, found


def failure(
    plain: ModelProto, model: ModelProto, passes: str | None, *, exact: bool, numbers: bool
) -> str | None:
    """What is wrong with the result, None where nothing is."""
    try:
        hold(plain, model, passes, exact=exact, numbers=numbers)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.slow
@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_functions(block: int) -> None:
    for seed in range(FIRST + block, FIRST + EXAMPLES, BLOCKS):
        plain, model, exact = made(seed)
        if is_valid(model) is not None:
            continue
        passes = PASSES[seed // 7 % len(PASSES)]
        how = {"exact": exact, "numbers": seed // BLOCKS % (2 * COMPARED) == 1}
        wrong = failure(plain, model, passes, **how)
        if wrong is not None:
            smallest = shrink(
                model, lambda c, p=passes, h=how: failure(c, c, p, **h) is not None, limit=100
            )
            pytest.fail(
                f"seed {seed}, {passes or 'the default pipeline'}:"
                f" {wrong}\n{printer.to_text(smallest)}"
            )


def test_functions_leave_the_numbers_as_they_are() -> None:
    for seed in range(80):
        model = grow(seed)
        assert difference(model, with_functions(model, seed), KINDS) == 0


def test_a_seed_makes_one_model() -> None:
    assert [made(seed)[1] for seed in range(0, 320, 8)] == [
        made(seed)[1] for seed in range(0, 320, 8)
    ]


@pytest.mark.slow
def test_the_functions_reach_what_they_are_for() -> None:
    models = [made(seed)[1] for seed in range(0, 3200, 5)]
    valid = [model for model in models if is_valid(model) is None]
    assert len(valid) >= 0.98 * len(models)
    seen: Counter[str] = Counter()
    for model in valid:
        functions = {(f.name, f.overload): f for f in model.functions}
        calls = [node for node in all_nodes(model) if (node.op_type, node.overload) in functions]
        inside = [node for f in model.functions for node in all_nodes(ModelProto(functions=[f]))]
        for node in inside:
            references = [a for a in node.attribute if a.ref_attr_name]
            seen.update(f"{node.op_type}.{a.name}" for a in references)
            seen["nested"] += node in calls and bool(references)
            seen["renamed"] += any(a.name != a.ref_attr_name for a in references)
        for function in model.functions:
            _, *branches = all_graphs(ModelProto(graph={"node": function.node}))
            seen["in a branch"] += any(
                a.ref_attr_name for g in branches for n in g.node for a in n.attribute
            )
            seen["overload"] += bool(function.overload)
            its = [
                c for c in calls if (c.op_type, c.overload) == (function.name, function.overload)
            ]
            defaults = {a.name: a for a in function.attribute_proto}
            given = [{a.name: a for a in c.attribute} for c in its]
            seen["called with several values"] += (
                len({str(sorted(map(str, g.values()))) for g in given}) > 1
            )
            seen["takes a default"] += any(set(defaults) - set(g) for g in given)
            seen["overrides a default"] += any(
                g.get(n) not in (None, d) for g in given for n, d in defaults.items()
            )
            seen["absent"] += any(set(function.attribute) - set(g) for g in given)
            seen["absent operand"] += any(
                not all(c.input) or len(c.input) < len(function.input) for c in its
            )
    wanted = (
        "Conv.pads Conv.strides Conv.group Conv.auto_pad ConvTranspose.strides"
        " BatchNormalization.epsilon "
    )
    wanted += (
        "Clip.min BatchNormalization.training_mode LeakyRelu.alpha Transpose.perm Gemm.alpha"
        " Gemm.transA "
    )
    wanted += (
        "Concat.axis Softmax.axis Constant.value ReduceMean.keepdims ReduceMean.axes Pad.mode"
        " Cast.to "
    )
    wanted += "Flatten.axis Split.axis"
    whole = (
        "nested",
        "renamed",
        "in a branch",
        "overload",
        "called with several values",
        "takes a default",
    )
    whole += ("overrides a default", "absent", "absent operand")
    assert not [what for what in (*wanted.split(), *whole) if not seen[what]]
