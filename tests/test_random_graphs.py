"""Random graphs through the default pipeline.

Same numbers, same interface, sound IR after every pass.

A model of `random_graphs.grammar` is made from a seed. Most are in float64, where no constant is
rounded, and are compared at 1e-12 of the running magnitude (`oracle.difference`), which separates
wrong algebra from rounding; one in eight is in float32 and run by onnxruntime, within the bound on
what rounding can do (`oracle.rounding_bound`).

`IRC_EXAMPLES=20000 pytest -n 2 tests/test_random_graphs.py` makes a long run, `IRC_SEED=1000000`
begins it elsewhere; the default is 320 models. A failure is shrunk first, and shows the seed and
the smallest model that still fails.
"""

from __future__ import annotations

import copy
import os

import pytest
from graphs import F32, F64, compiled
from irc.compiler import compile as compile_model
from irc.passes import PassContext, Verify
from irc.passes.pipelines import DEFAULT
from onnx import ModelProto, printer
from oracle import (
    EXACT,
    assert_same_in_runtime,
    assert_sound,
    difference,
    has_rounding_bound,
)
from random_graphs import grow, shrink

EXAMPLES = int(os.environ.get("IRC_EXAMPLES", "320"))
FIRST = int(os.environ.get("IRC_SEED", "0"))
BLOCKS = 16
KINDS = ("random", "zeros", "ones", "negative")
OPTIONS = (
    "",
    "",
    "",
    "partial=always",
    "partial=never",
    "partial=always,border=map",
    "border=pad",
    "border=ones",
    "border=cheapest",
    "forward=false",
)
"""Options of FoldScaleAxis, by seed."""


def pipeline(options: str) -> str:
    """The default pipeline with options of FoldScaleAxis."""
    return DEFAULT.replace("FoldScaleAxis", f"FoldScaleAxis{{{options}}}")


def hold(model: ModelProto, options: str) -> None:
    """Compile a model of float64, and hold the result against every invariant."""
    given = copy.deepcopy(model)
    result = compile_model(given, pipeline(options), context=PassContext([Verify()]))
    assert given == model, "the compiler changed its input"
    assert_sound(model, result, pipeline(options))
    share = difference(model, result.model, KINDS)
    assert share <= EXACT, f"off by {share:.3g} of the greatest magnitude"


def hold_in_runtime(model: ModelProto, options: str) -> None:
    """Compile a model of float32, and compare with onnxruntime."""
    if not has_rounding_bound(model):
        return
    assert_same_in_runtime(model, compiled(model, pipeline(options)).model)


def failure(model: ModelProto, options: str) -> str | None:
    """What is wrong with the result, None where nothing is."""
    narrow = model.graph.input[0].type.tensor_type.elem_type == 1
    try:
        (hold_in_runtime if narrow else hold)(model, options)
    except pytest.skip.Exception:
        return None
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.slow
@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_graphs(block: int) -> None:
    for seed in range(FIRST + block, FIRST + EXAMPLES, BLOCKS):
        options = OPTIONS[seed % len(OPTIONS)]
        model = grow(seed, F32 if seed // BLOCKS % 8 == 7 else F64)
        wrong = failure(model, options)
        if wrong is not None:
            smallest = shrink(
                model, lambda candidate, options=options: failure(candidate, options) is not None
            )
            pytest.fail(
                f"seed {seed}, {options or 'no options'}: {wrong}\n{printer.to_text(smallest)}"
            )
