"""The small models that showed faults of irc.

Each compiles, is a fixpoint, and has the right numbers.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import harness
import irc
import numpy as np
import pytest
from float64 import UnsupportedOp, evaluate
from harness import Arrays
from irc.tools.cli.main import main

pytestmark = pytest.mark.shared

MODELS = [pytest.param(path, id=path.stem) for path in harness.reproducers()] or [None]
"""A test without a model says why it is skipped."""

WARNINGS = {
    "D2_stale_value_info_batch": (
        "the model declares types that its operators contradict, which are ignored: "
    )
}
"""What is said of a model. Of all others nothing is."""

NOT_RUN = {
    "F1_body_inputs_renamed_in_foreign_operator": (
        "com.microsoft::GreedySearch, which takes no such input"
    ),
    "custom": "an operator of com.acme, which is nobody's",
    "verify_all_random": "every number is random",
}
"""Models whose numbers nothing can judge, with the reason."""

CRASHES = {
    "verify_dies_by_sigfpe_in_source": "onnxruntime divides an integer by zero",
    "verify_segfault_bn_empty_outputs": (
        "onnxruntime's BatchNormalization fails with absent results"
    ),
}
"""Models of which onnxruntime's kernels kill the process, so that the evaluator alone
judges them.
"""

LARGEST_ROUNDING = 2.0**-17
"""Of folded weights of float32, as in `harness.assert_computes_the_same`."""


OPERATORS = {
    "missed_consecutive_reduce_mean": 2,
    "missed_constantofshape_cast": 2,
    "missed_idempotent_pairs": 4,
    "missed_min_max_to_clip": 2,
    "M1_shape_of_transpose": 1,
    "M4_reshape_elementwise_reshape": 6,
    "M5_constant_cone_with_large_intermediate": 1,
    "M7_dropout_ratio_0_in_training_mode": 1,
    "fn_g3_plain_conv_poolfn_bn": 2,
}
"""The operators of models that showed a missed rewrite."""


@pytest.fixture
def path(request: pytest.FixtureRequest) -> Path:
    if request.param is None:
        pytest.skip("the folder ../shared/repro is not beside the checkout")
    found: Path = request.param
    return found


def inputs_of(path: Path) -> Arrays:
    """Seeded inputs of extents that the operators take.

    Those of a size that others say, and of a kernel's length.
    """
    if path.stem == "M1_shape_of_transpose":
        rng = np.random.default_rng(0)
        return {
            "x": rng.standard_normal((2, 3, 8)).astype("f"),
            "y": rng.standard_normal((3, 8)).astype("f"),
        }
    batch = 16 if path.stem == "verify_time_on_first_axis" else 2
    return harness.random_inputs(harness.load(path), batch=batch)


@pytest.mark.parametrize("path", MODELS, indirect=True)
def test_a_model_compiles_from_the_command_line_to_a_fixpoint(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "1.onnx", tmp_path / "2.onnx"
    done = subprocess.run(
        [sys.executable, "-m", "irc", "compile", path, "-o", first],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")
    *warnings, summary = done.stderr.splitlines()
    expected = [WARNINGS[path.stem]] if path.stem in WARNINGS else []
    assert [
        line[: len(f"warning: {text}")] for line, text in zip(warnings, expected, strict=True)
    ] == [f"warning: {text}" for text in expected]
    assert f"; wrote {first} (" in summary
    assert main(["compile", str(first), "-o", str(second)]) == 0
    assert "Traceback" not in capsys.readouterr().err
    assert second.read_bytes() == first.read_bytes()


@pytest.mark.parametrize("path", MODELS, indirect=True)
def test_a_compiled_model_has_the_numbers_of_its_source(path: Path) -> None:
    model, compiled = harness.load(path), irc.compile(path).model
    inputs = inputs_of(path)
    if path.stem in NOT_RUN:
        with pytest.raises(UnsupportedOp):
            evaluate(model, inputs)
        pytest.skip(NOT_RUN[path.stem])
    if path.stem in CRASHES:
        assert harness.worst(evaluate(compiled, inputs), evaluate(model, inputs)) < LARGEST_ROUNDING
        return
    assert harness.results(model, inputs) is not None, "onnxruntime does not run the source"
    harness.assert_computes_the_same(model, compiled, inputs)


def test_the_models_that_are_named_are_there() -> None:
    if MODELS == [None]:
        pytest.skip("the folder ../shared/repro is not beside the checkout")
    names = {path.stem for path in harness.reproducers()}
    assert not {*WARNINGS, *NOT_RUN, *CRASHES, *OPERATORS} - names


@pytest.mark.parametrize(
    "path", [each for each in MODELS if each is None or each.id in OPERATORS], indirect=True
)
def test_no_rewrite_is_missed(path: Path) -> None:
    assert irc.compile(path).operators == OPERATORS[path.stem]
