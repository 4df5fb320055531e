"""`irc align` compares what is inside the branches of an If."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from irc.tools.cli.main import main
from irc.tools.verify.branch_outputs import expose_branch_tensors
from irc.tools.verify.onnx_graph import tensor_names
from onnx import ModelProto
from verification import text

BODY = """g (float[2,4] x, bool k) => (float[A,B] y) {{ y = If(k) <
    then_branch = a () => (float[2,4] t) {{ p = Mul(x, x) q = {}(p) t = Relu(q) }},
    else_branch = b () => (float[2,4] u) {{ p = Neg(x) i = Cast<to = 7>(p) v = Cast<to = 1>(i) u = {}(v) }}> }}"""


def branching(first: str = "Exp", second: str = "Neg") -> ModelProto:
    return text(BODY.format(first, second))


def aligned(first: ModelProto, second: ModelProto, folder: Path) -> dict[str, Any]:
    onnx.save(first, folder / "a.onnx")
    onnx.save(second, folder / "b.onnx")
    arguments = (
        f"align {folder / 'a.onnx'} {folder / 'b.onnx'} -q --json {folder / 'rows.json'}".split()
    )
    main([*arguments, "--html", str(folder / "page.html")])
    found: dict[str, Any] = json.loads((folder / "rows.json").read_text())
    return found


def test_the_first_divergence_is_found_inside_a_branch(tmp_path: Path) -> None:
    found = aligned(branching(), branching("Sqrt"), tmp_path)
    assert found["first_divergence"] == "y/then_branch/q"
    names = {
        "y/then_branch/p",
        "y/then_branch/q",
        "y/else_branch/p",
        "y/else_branch/i",
        "y/else_branch/v",
        "y",
    }
    assert {row["tensor"] for row in found["rows"]} == names
    assert found["alone"] == []


@pytest.mark.parametrize("changed", [("Exp", "Neg"), ("Exp", "Abs")])
def test_both_branches_are_compared(changed: tuple[str, str], tmp_path: Path) -> None:
    """A difference in a branch is seen in the result of the If, if the branch is taken."""
    found = aligned(branching(), branching(*changed), tmp_path)
    assert found["first_divergence"] in (None, "y")
    assert (found["first_divergence"] is None) == (changed == ("Exp", "Neg"))


def test_a_model_without_branches_stays_what_it_is(tmp_path: Path) -> None:
    model = text("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    assert expose_branch_tensors(model, tmp_path) is model


def test_names_that_are_taken_are_left_alone(tmp_path: Path) -> None:
    model = branching()
    model.graph.node.append(onnx.helper.make_node("Neg", ["x"], ["y/then_branch/p"]))
    assert expose_branch_tensors(model, tmp_path) is model
    assert "y/then_branch/p" in tensor_names(expose_branch_tensors(branching(), tmp_path))


def test_branches_without_tensors_of_their_own_stay_what_they_are(tmp_path: Path) -> None:
    model = text(
        "g (float[2] x, bool k) => (float[2] y) { y = If(k) <then_branch = a () => (float[2] t) { t"
        " = Neg(x) }, else_branch = b () => (float[2] u) { u = Abs(x) }> }"
    )
    assert expose_branch_tensors(model, tmp_path) is model


RARE = """g (float[N,4] x) => (float[A,B] y) <float k = {{{}}}, float most = {{1e5}}> {{
    m = ReduceMax<keepdims = 0>(x) c = Greater(m, most) y = If(c) <
    then_branch = a () => (float[A,B] o) {{ p = Neg(x) o = Mul(p, k) }},
    else_branch = b () => (float[A,B] u) {{ v = Abs(x) u = Relu(v) }}> }}"""
UNTAKEN = "no inputs take the then_branch of the If 'y': it was not compared"


def test_a_branch_that_no_inputs_take_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = text(RARE.format(1)), text(RARE.format(-1))
    found = aligned(first, second, tmp_path)
    assert (found["first_divergence"], found["warnings"]) == (None, [UNTAKEN])
    assert capsys.readouterr().err == f"warning: {UNTAKEN}\n"
    command = (
        f"compile {tmp_path / 'a.onnx'} -o {tmp_path / 'c.onnx'} --verify -q --json -"
    ).split()
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["warnings"] == [UNTAKEN]
    assert err == f"warning: {UNTAKEN}\n"
    np.savez(tmp_path / "x.npz", x=np.full((1, 4), 1e6, np.float32))
    inputs = ["--inputs", str(tmp_path / "x.npz")]
    assert main(["align", str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx"), "-q", *inputs]) == 1
    assert "no inputs take the else_branch" in capsys.readouterr().err


def test_branches_that_are_taken_and_constant_conditions_are_not_named(tmp_path: Path) -> None:
    constant = branching()
    del constant.graph.input[1]
    constant.graph.initializer.append(
        onnx.helper.make_tensor("k", onnx.TensorProto.BOOL, [], [True])
    )
    for model in (branching(), constant):
        assert aligned(model, model, tmp_path)["warnings"] == []


def test_inputs_that_say_nothing_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = text("g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }")
    onnx.save(model, tmp_path / "a.onnx")
    np.savez(tmp_path / "x.npz", x=np.full((2, 4), np.nan, np.float32))
    rest = ["--inputs", str(tmp_path / "x.npz"), "-q", "--json", "-"]
    assert main(["align", str(tmp_path / "a.onnx"), str(tmp_path / "a.onnx"), *rest]) == 0
    out, err = capsys.readouterr()
    warning = "verification is inconclusive: no result of the model can be compared on these inputs"
    assert json.loads(out)["warnings"] == [warning]
    assert err == f"warning: {warning}\n"
