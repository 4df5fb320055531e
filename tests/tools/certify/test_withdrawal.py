"""Rewrites without a proof are taken back: each certificate that a compile makes is accepted."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import irc
import numpy as np
import onnx
import pytest
from irc.tools.certify import withdrawal, writing
from irc.tools.certify.checker.certificate import is_complete
from irc.tools.certify.checker.proof import IDENTITIES
from irc.tools.cli.main import main
from onnx import ModelProto, TensorProto

from .forgeries import sealed
from .pairs import model

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


@pytest.fixture
def without_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows the identity of clamps."""
    monkeypatch.delitem(IDENTITIES, "same bounds")


def operators(made: ModelProto) -> Counter[str]:
    graphs = [
        made.graph,
        *(item.g for node in made.graph.node for item in node.attribute if item.HasField("g")),
    ]
    nodes = [node for each in (*graphs, *made.functions) for node in each.node]
    return Counter(node.op_type for node in nodes if node.op_type != "Constant")


def withdrawn(source: ModelProto, passes: str = "default") -> irc.Result:
    """The result of a compile, whose certificate holds."""
    result = irc.compile(source, passes, certificate=True)
    document = json.loads(json.dumps(result.certificate()))
    assert irc.certify(source, result.model, document) == len(document["steps"])
    return result


@pytest.mark.usefixtures("without_bounds")
def test_the_rewrite_without_a_proof_is_taken_back_and_no_other() -> None:
    result = withdrawn(model(CLIPS))
    assert operators(result.model) == Counter(["Conv", "Tanh", "Clip", "Clip", "Abs"])
    (warning,) = result.warnings
    assert "merge_bounds at Clip 'f' and Clip 'h', which are left alone" in warning
    assert warning.endswith("compile without a certificate to rewrite them all the same")
    assert result.fold_map.sources[0]["status"] == "folded"


def test_a_branch_that_fails_is_not_cut() -> None:
    """No identity says that a recurrent operator refuses other ranks."""
    source = model(
        """(bool c, float[8,1,2] x) => (float[T,1,1,2] y) <float[1,2,2] w = {1, 2, 3, 4}, float[2,2] v = {1, 2, 3, 4},
        float[2] s = {2, 3}, int64[2] flat = {8, 2}> {
          d = If (c) <then_branch: graph = a () => (float[8,1,2] p) { p = Abs(x) },
                      else_branch: graph = b () => (float[8,2] q) { q = Reshape(x, flat) }>
          r = RNN <hidden_size: int = 2> (d, w, w) m = MatMul(r, v) y = Mul(m, s)
        }"""
    )
    assert operators(irc.compile(source).model) == Counter(["Abs", "RNN", "MatMul"])
    result = withdrawn(source)
    assert operators(result.model) == Counter(["Abs", "Reshape", "If", "RNN", "MatMul"])
    assert "RNN 'r', which is left alone" in result.warnings[0]


def test_nothing_is_taken_back_where_a_proof_is_found() -> None:
    result = withdrawn(model(CLIPS))
    assert operators(result.model) == Counter(["Conv", "Tanh", "Clip", "Abs"])
    assert not result.warnings


@pytest.mark.usefixtures("without_bounds")
def test_bodies() -> None:
    result = withdrawn(model(BODIES))
    assert operators(result.model) == Counter(["If", "Clip", "Clip", "Exp", "Abs"])
    assert "merge_bounds at Clip 'q' and Clip 'p', which are left alone" in result.warnings[0]


@pytest.mark.usefixtures("without_bounds")
def test_functions_that_are_inlined() -> None:
    """One of which a node is to be left alone is not."""
    assert operators(irc.compile(model(FUNCTIONS), "InlineFunctions,default").model) == Counter(
        ["Clip"]
    )
    result = withdrawn(model(FUNCTIONS), "InlineFunctions,default")
    assert operators(result.model) == Counter(["Twice", "Twice", "Clip", "Clip"])
    assert "which are left alone" in result.warnings[-1]


@pytest.mark.usefixtures("without_bounds")
def test_a_module_is_changed_in_place_and_compiled_once() -> None:
    module = irc.load(model(CLIPS))
    result = irc.compile(module, certificate=True)
    document = result.certificate()
    assert result.module is module and "no identity covers" in result.warnings[0]
    with pytest.raises(irc.Rejected, match="no identity covers"):
        irc.certify(model(CLIPS), result.model, document)


def test_without_any_identity_the_compile_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(IDENTITIES):
        monkeypatch.delitem(IDENTITIES, name)
    source = model(CLIPS)
    assert operators(withdrawn(source).model) == operators(source) - Counter(["Identity"])
    monkeypatch.setattr(withdrawal, "MAX_ROUNDS", 1)
    result = withdrawn(source)
    assert result.model == source and not result.certificate()["steps"]
    assert "so the model is left as it is" in result.warnings[0]


def test_steps_that_the_checker_refuses_are_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search may know more than the steps that it keeps say."""
    needed = writing.needed
    monkeypatch.setattr(
        writing,
        "needed",
        lambda search: [step for step in needed(search) if step["identity"] != "same bounds"],
    )
    result = withdrawn(model(CLIPS))
    assert operators(result.model) == Counter(["Conv", "Tanh", "Clip", "Clip", "Abs"])
    assert "Clip 'f' and Clip 'h', which are left alone" in result.warnings[0]
    once = irc.compile(irc.load(model(CLIPS)), certificate=True)
    with pytest.raises(irc.Rejected):
        irc.certify(model(CLIPS), once.model, once.certificate())
    assert "the certificate is incomplete" in once.warnings[0]


@pytest.mark.usefixtures("without_bounds")
def test_nodes_that_are_kept_stay_so(tmp_path: Path) -> None:
    source = model(CLIPS)
    result = irc.compile(source, keep=["d"], certificate=True)
    assert operators(result.model) == Counter(
        ["Conv", "BatchNormalization", "Tanh", "Clip", "Clip", "Abs"]
    )
    irc.certify(source, result.model, result.certificate())
    onnx.save(source, tmp_path / "m.onnx")
    assert irc.compile(tmp_path / "m.onnx", keep=["d"], certificate=True).model == result.model


@pytest.mark.usefixtures("without_bounds")
def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["m.onnx", "o.onnx", "c.json", "f.json", "s.json"]
    path, out, cert, fold_map, summary = map(tmp_path.joinpath, names)
    onnx.save(model(CLIPS), path)
    files = ["--certificate", str(cert), "--fold-map", str(fold_map), "--json", str(summary)]
    assert (
        main(["compile", str(path), "-o", str(out), *files, "--report", str(tmp_path / "r.svg")])
        == 0
    )
    assert capsys.readouterr().err.count("warning: ") == 1
    assert json.loads(summary.read_text())["operators"] == [7, 5]
    assert "left alone" in json.loads(summary.read_text())["warnings"][0]
    assert {each.name for each in tmp_path.iterdir()} == {*names, "f.npz", "r.svg"}
    assert main(["certify", str(path), str(out), str(cert)]) == 0
    assert onnx.load(out) == irc.compile(path, certificate=True).model
    assert main(["unfold", str(out), str(fold_map), "-o", str(tmp_path / "back.onnx")]) == 0
    assert onnx.load(tmp_path / "back.onnx") == onnx.load(path)

    forged = onnx.load(out)
    bias = next(each for each in forged.graph.initializer if list(each.dims) == [4])
    bias.CopyFrom(
        onnx.numpy_helper.from_array(
            np.nextafter(onnx.numpy_helper.to_array(bias), np.float32(9)), bias.name
        )
    )
    onnx.save(forged, out)
    cert.write_text(json.dumps(sealed(json.loads(cert.read_text()), onnx.load(path), forged)))
    assert main(["certify", str(path), str(out), str(cert)]) == 1


MALFORMED = (
    "(float[1, 2, 3] x) => (float[K] y, float[1, 2, 3] z) { y = Conv(x)  i = Identity(x)  z ="
    " Abs(i) }"
)


def test_a_model_that_the_checker_cannot_read_is_left_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out, cert = (tmp_path / name for name in ("m.onnx", "o.onnx", "c.json"))
    onnx.save(model(MALFORMED), path)
    arguments = ["compile", str(path), "-o", str(out), "--certificate", str(cert), "-q"]
    assert main(arguments) == 0
    assert "so the model is left as it is" in capsys.readouterr().err
    assert onnx.load(out) == onnx.load(path)
    assert main(["certify", str(path), str(out), str(cert)]) == 0
    assert "proved in 0 steps" in capsys.readouterr().out
    out.unlink()
    cert.unlink()
    assert main([*arguments, "--embed-fold-map"]) == 1
    assert "c.json: the certificate proves nothing" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["m.onnx"]


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
