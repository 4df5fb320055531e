"""By default a comparison costs a bounded number of runs, and still finds the faults."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from harness import EXAMPLE
from injected import FAULTS, Fault, network
from irc.frontends.onnx import from_model
from irc.support.errors import VerifyError
from irc.tools.cli.main import main
from irc.tools.verify import reference_model, run_budget
from irc.tools.verify.comparison import Comparison
from irc.tools.verify.run_budget import (
    COST_OF_NOISE,
    DEFAULT,
    INFERENCES,
    Work,
    affordable_runs,
    choose,
    work_of,
)
from verification import text, verified


def test_what_is_fast_runs_on_everything_and_what_is_slow_within_the_budget() -> None:
    fast, slow = Work(1e4, 1e4), Work(1e9, 1e6)
    assert choose(fast, is_open=True, overrides=True) == DEFAULT[0]
    assert choose(slow, is_open=True) == DEFAULT[-1]
    assert choose(slow, is_open=True, has_booleans=True).kinds == ("normal", "equal")
    assert choose(slow, is_open=True, overrides=True).kinds == ("normal",)
    assert Work(1e9, 0).cost(1, DEFAULT[-1].noisy_runs) <= INFERENCES * 1e9
    assert (affordable_runs(fast, 3), affordable_runs(slow, 3)) == (4, 2)
    found = [choose(Work(10 ** (n / 4), 0), is_open=True) for n in range(40)]
    assert [DEFAULT.index(one) for one in found] == sorted(DEFAULT.index(one) for one in found)
    assert set(found) == set(DEFAULT)


def test_what_is_left_out_is_said() -> None:
    assert DEFAULT[0].left_out(is_open=True) == ()
    assert DEFAULT[1].left_out(is_open=True) == ("a second size",)
    assert DEFAULT[1].left_out(is_open=False) == ()
    assert DEFAULT[2].left_out(is_open=True) == (
        "zero",
        "negative",
        "positive",
        "border",
        "a second size",
    )


@pytest.mark.parametrize(
    ("body", "weight", "products"),
    [
        ("float[2,3,9,9] x) => (float[2,8,7,7] y) { y = Conv(x, w)", (8, 3, 3, 3), 2 * 8 * 49 * 27),
        (
            "float[2,3,9,9] x) => (float[2,8,11,11] y) { y = ConvTranspose(x, w)",
            (3, 8, 3, 3),
            2 * 3 * 81 * 72,
        ),
        ("float[5,3,4] x) => (float[5,3,6] y) { y = MatMul(x, w)", (4, 6), 15 * 4 * 6),
        ("uint8[5,3,4] x) => (int32[5,3,6] y) { y = MatMulInteger(x, w)", (4, 6), 15 * 4 * 6),
        ("float[5,4] x) => (float[5,6] y) { y = Gemm<transB = 1>(x, w)", (6, 4), 5 * 4 * 6),
    ],
)
def test_products_are_counted(body: str, weight: tuple[int, ...], products: int) -> None:
    model = text(f"g ({body} }}")
    dtype = np.uint8 if "uint8" in body else np.float32
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(weight, dtype), "w"))
    source = Comparison(model).source
    moved = sum(np.prod(shape) for shape in source.shapes.values())
    assert work_of(model, source.shapes) == Work(
        moved + products / run_budget.PRODUCTS, run_budget.COST_OF_NODE
    )


def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every model count as large."""
    monkeypatch.setattr(run_budget, "SLACK", 0)


def runs(comparison: Comparison) -> float:
    """The cost in runs of the source."""
    plain, noisy = comparison.source.runs
    return plain + comparison.runs_of_others + COST_OF_NOISE * noisy


@pytest.mark.parametrize("chunk", [1 << 28, 1 << 12], ids=["at once", "chunks"])
def test_a_large_model_takes_few_runs(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    large(monkeypatch)
    monkeypatch.setattr(reference_model, "CHUNK_BYTES", chunk)
    verify = verified(network(), when="end")
    comparison = verify.comparison(from_model(network()))
    assert comparison.source.runs[1] == pytest.approx(2)
    assert comparison.runs_of_others <= 1
    assert runs(comparison) <= INFERENCES
    assert "(--verify=thorough does)" in verify.lines()[-1]


def test_an_overridable_initializer_takes_the_place_of_a_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large(monkeypatch)
    model = text(
        "g (float[4] x, float[4] k) => (float[4] y) <float[4] k = {1, 2, 3, 4}> { y = Mul(x, k) }"
    )
    assert [stimulus.name for stimulus in Comparison(model).inputs] == [
        "normal 4",
        "normal 4, other initializers",
    ]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_faults_in_large_models_are_caught(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    large(monkeypatch)
    fault.patch(monkeypatch)
    with pytest.raises(VerifyError, match=f"^{fault.pass_}: tensor '{fault.tensor}' {fault.how} "):
        verified(fault.model)
    with pytest.raises(VerifyError, match=f"tensor '{fault.tensor}' {fault.how} "):
        verified(fault.model, when="end")


def test_thorough_is_what_it_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    large(monkeypatch)
    output = str(tmp_path / "out.onnx")
    left_out = ["wide", "equal", "zero", "negative", "positive", "border"]
    for option, count in (("end", 1), ("thorough", 14)):
        command = ["compile", str(EXAMPLE), "-o", output, f"--verify={option}", "--json", "-"]
        assert main(command) == 0
        out, err = capsys.readouterr()
        document = json.loads(out)
        thorough = option == "thorough"
        assert document["budget"]["thorough"] == thorough
        assert (len(document["budget"]["inputs"]), document["verified"][-1]["inputs"]) == (
            count,
            count,
        )
        assert document["budget"]["left_out"] == ([] if thorough else [*left_out, "a second size"])
        assert (
            f"not run on: {', '.join(left_out)}, a second size (--verify=thorough does)" in err
        ) != thorough
        assert (len(document["verified"]) > 1) == thorough
    for options, count in (([], 1), (["--thorough"], 14)):
        table = tmp_path / "rows.json"
        assert main(["align", str(EXAMPLE), output, *options, "--json", str(table)]) == 0
        assert len(json.loads(table.read_text())["budget"]["inputs"]) == count
        assert ("(--thorough does)" in capsys.readouterr().out) == (not options)


def test_a_fault_that_only_other_inputs_show_takes_a_thorough_comparison(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Below 20 both are the same: only the wide kind has greater numbers."""
    large(monkeypatch)
    right = text("g (float[4,64] x) => (float[4,64] y) { y = Abs(x) }")
    wrong = text(
        """g (float[4,64] x) => (float[4,64] y) <float most = {20}, float least = {-1000}> {
        a = Abs(x) y = Clip(a, least, most) }"""
    )
    onnx.save(right, tmp_path / "a.onnx")
    onnx.save(wrong, tmp_path / "b.onnx")
    command = ["align", str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx")]
    assert main(command) == 0
    assert "not run on: wide, equal, zero" in capsys.readouterr().out
    assert main([*command, "--thorough"]) == 1
