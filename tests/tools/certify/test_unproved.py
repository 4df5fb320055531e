"""Rewrites that no identity covers are unproved steps of a certificate, and nothing is given up."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import irc
import numpy as np
import onnx
import pytest
from irc.tools.certify import proving
from irc.tools.certify.checker.certificate import CheckedCertificate, check
from irc.tools.certify.checker.document import is_complete
from irc.tools.certify.checker.proof import IDENTITIES
from irc.tools.cli.main import main
from onnx import ModelProto, TensorProto, helper, numpy_helper
from random_branches import convolutions

from .forgeries import sealed
from .pairs import model, proof_of

CLIPS = """(float[1,3,6,6] x) => (float[1,4,6,6] y)
<float[4] g = {0.5, 2, 1.5, 3}, float[4] b = {1, 2, 3, 4}, float[4] m = {1, 0, 1, 0}, float[4] v = {1, 2, 3, 4},
 float[4,3,1,1] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}, float k = {-1}, float l = {2}, float n = {0}, float o = {1}> {
  c = Conv(x, w)
  d = BatchNormalization(c, g, b, m, v)
  e = Tanh(d)
  f = Clip(e, k, l)
  h = Clip(f, n, o)
  i = Identity(h)
  y = Abs(i)
}"""
"""Two Clips in a row without names, far from a fold that needs another identity."""

BODIES = """(float[2,3] x, bool c) => (float[2,3] y) <float k = {-1}, float l = {2}, float n = {0}, float o = {1}> {
  z = Identity(x)
  i = If (c) <then_branch: graph = a () => (float[2,3] p) { q = Clip(z, k, l) p = Clip(q, n, o) },
              else_branch: graph = b () => (float[2,3] r) { s = Identity(z) r = Exp(s) }>
  y = Abs(i)
}"""

FUNCTIONS = """<ir_version: 8, opset_import: ["": 18, "f": 1]>
g (float[2,3] x) => (float[2,3] y) { a = f.Twice(x) b = Identity(a) y = f.Twice(b) }
<domain: "f", opset_import: ["": 18]> Twice (x) => (y) {
  k = Constant<value = float {-1}>() l = Constant<value = float {2}>()
  n = Constant<value = float {0}>() o = Constant<value = float {1}>()
  a = Clip(x, k, l) b = Identity(a) y = Clip(b, n, o)
}"""


TWO = """(float[2,3] x, float[2,3] u) => (float[2,3] y, float[2,3] z, float[2,3] v)
<float k = {-1}, float l = {2}, float n = {0}, float o = {1}> {
  a = Clip(x, k, l) b = Clip(a, n, o) c = Exp(b) d = Clip(c, k, l) e = Clip(d, n, o) f = Tanh(e)
  y = Sin(f) z = Cos(c) w = Neg(u) v = Neg(w)
}"""
"""Two rows of Clips, one behind the other, and an output beside them."""


@pytest.fixture
def without_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows the identity of clamps."""
    monkeypatch.delitem(IDENTITIES, "same bounds")


def certified(source: ModelProto, passes: str = "default") -> tuple[irc.Result, CheckedCertificate]:
    """The result of a compile with what its certificate proves."""
    result = irc.compile(source, passes, certificate=True)
    assert result.model == irc.compile(source, passes).model
    recorded = json.loads(json.dumps(result.certificate()))
    proof = proof_of(source, result.model, recorded)
    verdict = check(source, result.model, proof)
    for document in (recorded, proof):
        assert irc.certify(source, result.model, document, allow_unproved=True) == verdict.steps
        if verdict.unproved:
            with pytest.raises(irc.Rejected, match="is unproved"):
                irc.certify(source, result.model, document)
    return result, verdict


def test_a_compile_with_a_proof_has_no_unproved_step() -> None:
    assert not certified(model(CLIPS))[1].unproved


@pytest.mark.usefixtures("without_bounds")
def test_a_rewrite_without_an_identity_is_a_step() -> None:
    verdict = certified(model(CLIPS))[1]
    (step,) = verdict.unproved
    assert (step.where, step.rules) == ("Clip 'h'", ("merge_extrema",))
    assert (step.operators, verdict.operators, step.outputs) == (1, 4, ("y",))


@pytest.mark.usefixtures("without_bounds")
def test_each_step_is_told_with_the_outputs_behind_it() -> None:
    verdict = certified(model(TWO))[1]
    assert [(each.where, each.operators, each.outputs) for each in verdict.unproved] == [
        ("Clip 'b'", 1, ("y", "z")),
        ("Clip 'e'", 1, ("y",)),
    ]


@pytest.mark.usefixtures("without_bounds")
def test_bodies() -> None:
    (step,) = certified(model(BODIES))[1].unproved
    assert step.where.startswith("Clip ") and step.where.endswith("/p'") and step.outputs == ("y",)


@pytest.mark.usefixtures("without_bounds")
def test_functions_that_are_inlined() -> None:
    verdict = certified(model(FUNCTIONS), "InlineFunctions,default")[1]
    assert verdict.unproved and all(each.outputs == ("y",) for each in verdict.unproved)


@pytest.mark.usefixtures("without_bounds")
def test_an_output_that_the_source_has_under_no_other_name() -> None:
    """The Clip of the result has another reader than that of the source."""
    source = model(CLIPS.replace("i = Identity(h)\n  y = Abs(i)", "i = Neg(h)\n  y = Neg(i)"))
    verdict = certified(source)[1]
    assert [(each.where, each.outputs) for each in verdict.unproved] == [("Clip 'y'", ("y",))]


BRANCHES = """(bool c, float[8,1,2] x) => (float[T,1,1,2] y) <float[2] s = {2, 3},
    float[1,2,2] w = {1, 2, 3, 4}, float[2,2] v = {1, 2, 3, 4}, int64[2] flat = {8, 2},
    int64[1] at = {0}> {
      d = If (c) <then_branch: graph = a () => (float[8,1,2] p) { p = Abs(x) },
                  else_branch: graph = b () => (float[8,2] q) { q = Reshape(x, flat) }>
      e = Neg(d) r = RNN <hidden_size: int = 2> (e, w, w) m = MatMul(r, v) y = Mul(m, s)
    }"""


def test_a_branch_that_fails_is_cut() -> None:
    """A recurrent operator refuses other ranks, which the checker follows through a Neg."""
    result, verdict = certified(model(BRANCHES))
    assert [node.op_type for node in result.model.graph.node] == ["Abs", "Neg", "RNN", "MatMul"]
    assert not verdict.unproved


def test_ranks_are_followed_through_known_operators_alone() -> None:
    verdict = certified(model(BRANCHES.replace("Neg", "Cosh")))[1]
    assert [(each.operators, each.outputs) for each in verdict.unproved] == [(3, ("y",))]


def test_a_branch_is_not_cut_by_an_operator_that_no_output_needs() -> None:
    unread = BRANCHES.replace("y = Mul(m, s)", "z = Mul(m, s) y = Unsqueeze(d, at)")
    source = model(unread.replace("[T,1,1,2]", "[1,8,1,2]"))
    result = copy.deepcopy(source)
    del result.graph.node[0]
    result.graph.node.insert(0, helper.make_node("Abs", ["x"], ["d"]))
    document = irc.compile(source, certificate=True).certificate()
    forged = sealed({**document, "rewrites": []}, source, result)
    with pytest.raises(irc.Rejected, match="follows from no step"):
        irc.certify(source, result, forged)


def test_without_any_identity_each_output_is_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(IDENTITIES):
        monkeypatch.delitem(IDENTITIES, name)
    verdict = certified(model(TWO))[1]  # two Neg are one affine, which needs no step
    assert {each for step in verdict.unproved for each in step.outputs} == {"y", "z"}
    monkeypatch.setattr(proving, "MAX_ROUNDS", 1)
    verdict = certified(model(TWO))[1]
    assert {each for step in verdict.unproved for each in step.outputs} == {"y", "z"}


def test_steps_that_the_checker_refuses_are_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search may know more than the steps that it keeps say."""

    def forget(search: proving.Search) -> None:
        attempt(search)
        search.found, search.is_tainted = [], True

    attempt = proving.Search.attempt
    monkeypatch.setattr(proving.Search, "attempt", forget)
    verdict = certified(model(CLIPS))[1]
    assert [each.where for each in verdict.unproved] == ["the output 'y'"]


@pytest.mark.usefixtures("without_bounds")
def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["m.onnx", "o.onnx", "c.json", "f.json", "s.json"]
    path, out, cert, fold_map, summary = map(tmp_path.joinpath, names)
    onnx.save(model(CLIPS), path)
    files = ["--certificate", str(cert), "--fold-map", str(fold_map), "--json", str(summary)]
    report = ["--report", str(tmp_path / "r.svg")]
    assert main(["compile", str(path), "-o", str(out), *files, *report]) == 0
    assert "warning" not in capsys.readouterr().err
    assert json.loads(summary.read_text())["operators"] == [7, 4]
    assert {each.name for each in tmp_path.iterdir()} == {*names, "f.npz", "r.svg"}
    assert onnx.load(out) == irc.compile(path).model
    assert main(["certify", str(path), str(out), str(cert)]) == 3
    said = capsys.readouterr()
    assert "steps, 1 of them unproved" in said.out
    assert said.err.endswith(
        "at Clip 'h' is unproved (merge_extrema): 1 of 4 operators rest on it, and the outputs 'y'\n"
    )
    arguments = ["certify", str(path), str(out), str(cert), "-q"]
    assert main([*arguments, "--allow-unproved"]) == 0 and main(arguments) == 3
    assert not capsys.readouterr().out

    forged = onnx.load(out)
    bias = next(each for each in forged.graph.initializer if list(each.dims) == [4])
    moved = np.nextafter(numpy_helper.to_array(bias), np.float32(9))
    bias.CopyFrom(numpy_helper.from_array(moved, bias.name))
    onnx.save(forged, out)
    cert.write_text(json.dumps(sealed(json.loads(cert.read_text()), onnx.load(path), forged)))
    assert main([*arguments, "--allow-unproved"]) == 1


FORGED = {
    "a value of another type": {"values": ["q"]},
    "a value of other extents": {"values": ["s"]},
    "no value": {"values": [None]},
    "no values": {},
    "a value that is not there": {"values": ["nothing"]},
    "too many values": {"values": ["b", "b"]},
    "a step about the source": {"at": "source", "values": ["b"]},
}


@pytest.mark.parametrize("change", FORGED.values(), ids=FORGED)
def test_an_unproved_step_relates_values_of_one_type(change: dict[str, Any]) -> None:
    source = model(
        "(float[2,3] x) => (float[2,3] y, int64[2] q, float[3,2] s) {"
        " a = Exp(x) b = Neg(a) y = Sin(b) q = Shape(x) s = Transpose(x) }"
    )
    result = ModelProto()
    result.CopyFrom(source)
    result.graph.node[1].op_type = "Abs"
    step = {"at": "result", "operation": "b", "identity": "unproved", "values": ["b"]}
    document: dict[str, Any] = {"format": "irc-certificate", "version": 1, "rewrites": []}
    (found,) = check(source, result, sealed({**document, "steps": [step]}, source, result)).unproved
    assert (found.operators, found.outputs) == (1, ("y",))
    forged = {key: value for key, value in step.items() if key != "values"} | change
    with pytest.raises(irc.Rejected):
        check(source, result, sealed({**document, "steps": [forged]}, source, result))
    unneeded = {"at": "output", "operation": "s", "identity": "unproved"}
    for steps in ([step, unneeded], [unneeded, step], [{**unneeded, "operation": "none"}]):
        with pytest.raises(irc.Rejected):
            check(source, result, sealed({**document, "steps": steps}, source, result))


MALFORMED = (
    "(float[1, 2, 3] x) => (float[K] y, float[1, 2, 3] z) { y = Conv(x)  i = Identity(x)  z ="
    " Abs(i) }"
)


def test_a_model_that_the_checker_cannot_read_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out, cert = (tmp_path / n for n in ("m.onnx", "o.onnx", "c.json"))
    onnx.save(model(MALFORMED), path)
    arguments = ["compile", str(path), "-o", str(out), "--certificate", str(cert), "-q"]
    assert main(arguments) == 0
    assert onnx.load(out) == irc.compile(path).model
    assert main(["certify", str(path), str(out), str(cert), "--allow-unproved"]) == 1
    error = capsys.readouterr().err
    assert "c.json: a model is malformed: IndexError" in error and error.count("\n") == 1


def test_a_model_that_stays_needs_no_checker(tmp_path: Path) -> None:
    source = model("(float[1, 2, 3] x) => (float[K] y) { y = Conv(x) }")
    result = irc.compile(source, certificate=True)
    assert result.model == source
    assert irc.certify(source, result.model, result.certificate()) == 0


def empty(source: ModelProto, result: ModelProto) -> dict[str, object]:
    return sealed(
        {"format": "irc-certificate", "version": 1, "rewrites": [], "steps": []}, source, result
    )


def test_equal_models_need_no_step() -> None:
    source = model(MALFORMED)
    assert irc.certify(source, source, empty(source, source)) == 0
    other = ModelProto()
    other.CopyFrom(source)
    other.graph.node[2].op_type = "Neg"
    with pytest.raises(irc.Rejected):
        irc.certify(source, other, empty(source, other))
    with pytest.raises(irc.Rejected, match="another result"):
        irc.certify(source, other, empty(source, source))


def test_elements_in_other_files_may_differ() -> None:
    """Equal messages are no equal models then."""
    source = model(
        "(float[2] x) => (float[2] y) { w = Constant<value = float[2] {1, 2}>()  y = Add(x, w) }"
    )
    assert is_complete(source) and irc.certify(source, source, empty(source, source)) == 0
    tensor = source.graph.node[0].attribute[0].t
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w.bin")
    assert not is_complete(source)
    with pytest.raises(irc.Rejected, match="in another file"):
        irc.certify(source, source, empty(source, source))


def test_a_layer_that_was_merged_and_scaled_is_unproved_not_refused() -> None:
    """Its record has the scale alone, and the numbers of the branches are in its weights."""
    verdict = certified(convolutions(58))[1]
    assert [each.where for each in verdict.unproved] == ["ConvTranspose 'neg9'"]


def test_a_layer_with_other_numbers_than_its_record_gives_is_refused() -> None:
    source = model(CLIPS)
    result = irc.compile(source, certificate=True)
    forged = ModelProto()
    forged.CopyFrom(result.model)
    weight = next(each for each in forged.graph.initializer if len(each.dims) == 4)
    array = numpy_helper.to_array(weight).copy()
    array.flat[5] = np.nextafter(array.flat[5], np.float32(9))
    weight.CopyFrom(numpy_helper.from_array(array, weight.name))
    document = sealed(result.certificate(), source, forged)
    with pytest.raises(irc.Rejected, match="other numbers than those that follow"):
        irc.certify(source, forged, document, allow_unproved=True)
