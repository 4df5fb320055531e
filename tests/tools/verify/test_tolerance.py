"""`--rtol` and `--atol`.

A tolerance in the place of the bound on rounding, as numpy.allclose has it.
"""

from __future__ import annotations

import json
from pathlib import Path

import harness
import numpy as np
import onnx
import pytest
from harness import EXAMPLE
from irc.tools.cli.main import main
from irc.tools.verify import VerifyNumerics
from irc.tools.verify.comparison import Comparison
from irc.tools.verify.tolerance import Tolerance
from onnx import ModelProto, numpy_helper


def scaled(model: ModelProto, name: str, factor: float) -> ModelProto:
    """The model with one initializer multiplied."""
    copy = ModelProto()
    copy.CopyFrom(model)
    tensor = next(each for each in copy.graph.initializer if each.name == name)
    array = numpy_helper.to_array(tensor)
    tensor.CopyFrom(numpy_helper.from_array((array * factor).astype(array.dtype), name))
    return copy


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rtol", "atol"), [(0.0, 0.0), (1e-3, 0.0), (0.0, 1e-3), (1e-2, 1e-5), (0.5, 0.5)]
)
@pytest.mark.parametrize("factor", [1.0, 1.0005, 1.02])
def test_the_judgement_is_that_of_allclose(rtol: float, atol: float, factor: float) -> None:
    model = onnx.load(EXAMPLE)
    other = scaled(model, "head/fc2.weight", factor)
    comparison = Comparison(model, tolerance=Tolerance(rtol, atol))
    _, differences = comparison.deviation(other)
    for stimulus in comparison.inputs:
        (found,) = [
            one for one in differences if one.value == "logits" and one.inputs == stimulus.name
        ]
        want, got = (harness.run(each, stimulus.feeds)["logits"] for each in (model, other))
        is_close = np.abs(want.astype(np.float64) - got) <= atol + rtol * np.abs(
            want.astype(np.float64)
        )
        assert found.elements == np.count_nonzero(~is_close)
        assert found.deviates == (not is_close.all())
        assert not found.undecided


def test_numbers_that_are_not_finite_and_other_types() -> None:
    tolerance = Tolerance(atol=1.0)
    with np.errstate(all="ignore"):
        bound = tolerance.reference(np.array([1.0, np.inf, np.nan], np.float32)).bound
    assert bound[0] == 1.0
    assert bound[1] == bound[2] == 2.0**-1074
    assert tolerance.reference(np.array(["a"], object)).bound.shape == ()
    assert str(Tolerance(1e-3, 1e-5)) == "|a - b| <= 1e-05 + 0.001 |a|"


def test_no_noise_is_made_of_a_tolerance() -> None:
    comparison = Comparison(onnx.load(EXAMPLE), tolerance=Tolerance(1e-3, 1e-3))
    assert comparison.deviation(onnx.load(EXAMPLE))[0] is None
    assert comparison.budget["noisy_runs"] == 0
    assert comparison.source.runs[1] == 0


def test_align(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other, out = str(tmp_path / "b.onnx"), str(tmp_path / "out.json")
    onnx.save(scaled(onnx.load(EXAMPLE), "head/fc2.weight", 1.001), other)
    assert main(["align", str(EXAMPLE), other, "-q"]) == 1
    assert (
        main(["align", str(EXAMPLE), other, "--rtol", "0.01", "--atol", "0.01", "--json", out]) == 0
    )
    printed = capsys.readouterr().out
    assert "27 tensors agree within the tolerance" in printed
    assert (
        "judged by |a - b| <= 0.01 + 0.01 |a|: whether rounding explains a difference is not asked"
        in printed
    )
    document = json.loads(Path(out).read_text())
    assert (document["agrees"], document["tolerance"]) == (True, {"rtol": 0.01, "atol": 0.01})
    assert main(["align", str(EXAMPLE), other, "--atol", "1e-6"]) == 1
    assert "times the tolerance" in capsys.readouterr().out
    assert main(["align", str(EXAMPLE), other, "-q", "--json", out]) == 1
    assert json.loads(Path(out).read_text())["tolerance"] is None
    assert main(["align", str(EXAMPLE), other, "--rtol", "1", "--by", "sqnr"]) == 2


def test_verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out.onnx")
    assert main(["compile", str(EXAMPLE), "-o", out, "--verify", "--atol", "0.01"]) == 0
    assert "of the tolerance" in capsys.readouterr().err
    assert main(["compile", str(EXAMPLE), "-o", out, "--verify", "--atol", "1e-12"]) == 1
    error = capsys.readouterr().err
    assert "times its tolerance" in error
    assert "operators that show it" in error
    assert main(["compile", str(EXAMPLE), "-o", out, "--atol", "0.01"]) == 2
    for word in ("x", "-1", "inf", "nan"):
        with pytest.raises(SystemExit):
            main(["align", str(EXAMPLE), out, f"--rtol={word}"])
    assert "is not a tolerance" in capsys.readouterr().err
    assert VerifyNumerics(tolerance=Tolerance(1.0)).tolerance == Tolerance(1.0)
