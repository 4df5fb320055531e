"""Random operators: nothing is said of their draws, everything of values before and beside."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from irc.tools.cli.main import main
from irc.tools.verify.comparison import Comparison
from verification import text, verdict, verified

HEAD = (
    "g (float[64,16] x) => (float[A,B] y, float[A,B] z) <bool off = {{0}}, bool on = {{1}}, float p"
    " = {{0.3}}>"
)
DRAWN = {
    "uniform": "n = RandomUniformLike(h) d = Less(n, p)",
    "normal": "n = RandomNormalLike(h) d = Add(h, n)",
    "Bernoulli": "n = Sigmoid(h) d = Bernoulli(n)",
    "Dropout": "d = Dropout(h, p, on)",
    "in a body": "d = If(on) <then_branch = a () => (float[A,B] t) { t = RandomNormalLike(h) },"
    " else_branch = b () => (float[A,B] u) { u = Identity(h) }>",
}


def body(draw: str, factor: str = "2.0") -> str:
    head = HEAD.format()
    return (
        f"{head} {{ k = Constant<value_float = {factor}>() h = Mul(x, k) {draw} y = Cast<to = 1>(d)"
        " z = Neg(h) }"
    )


@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)
def test_what_is_drawn_is_not_compared(draw: str) -> None:
    right, wrong = text(body(draw)), text(body(draw, "2.01"))
    assert not verdict(right, right)
    assert verdict(right, wrong) == {"h", "z"} | ({"n"} if "Sigmoid" in draw else set())
    silent = {row.tensor for row, _ in Comparison(right).differences(right) if row.is_undecided}
    assert {"d", "y"} <= silent
    assert "z" not in silent
    assert all(verdict.undecided > 0 for verdict in verified(right).verdicts)


def test_a_dropout_that_is_off_is_compared() -> None:
    right, wrong = (
        text(body("d = Dropout(h, p, off)")),
        text(body("d = Dropout(h, p, off)", "2.01")),
    )
    assert {"d", "y"} <= verdict(right, wrong)


def test_what_a_dropout_reads_may_be_external_data(tmp_path: Path) -> None:
    onnx.save(
        text(body("d = Dropout(h, p, off)")),
        tmp_path / "m.onnx",
        save_as_external_data=True,
        size_threshold=0,
    )
    right = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    assert not [
        row.tensor
        for row, _ in Comparison(right, tmp_path).differences(right, tmp_path)
        if row.is_undecided
    ]


def test_a_model_of_random_tensors_alone_has_nothing_to_compare(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(
        text("g (float[2,3] x) => (float[2,3] y) { n = RandomNormalLike(x) y = Add(x, n) }"), path
    )
    file, out = str(path), str(tmp_path / "o.onnx")
    for command in (["compile", file, "-o", out, "--verify"], ["align", file, file]):
        assert main(command) == 0
        assert "there is nothing to compare" in capsys.readouterr().err
