"""`irc align` and `irc verify` of models whose inputs or results have other ranks or extents: one sentence."""

from __future__ import annotations

from pathlib import Path

import irc
import onnx
import pytest
from irc.frontends.onnx import from_model
from irc.tools.cli.main import main
from onnx import ModelProto, helper


def model(op: str, *shape: object, result: list[object] | None = None) -> ModelProto:
    """x of a shape through one operator."""
    ends = [
        helper.make_tensor_value_info("x", 1, list(shape)),
        helper.make_tensor_value_info("y", 1, result or None),
    ]
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"])], "g", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


CASES = {
    "rank of an input": (
        model("Relu", "N", 3, 4, 4), model("Relu", "N", 3, 4), 1,
        "b.onnx: the input 'x' has 3 axes, but 4 in the source",
    ),
    "extent of an input": (
        model("Relu", "N", 3, 4, 4), model("Relu", "N", 4, 4, 4), 1,
        "b.onnx: axis 1 of the input 'x' is 4, but 3 in the source",
    ),
    "an input that is fixed in one": (
        model("Relu", "N", 3, 4, 4), model("Relu", 5, 3, 4, 4), 2,
        "input 'x' has fixed extents in the second model only: give --input-shape x=5,3,4,4",
    ),
    "rank of a result": (
        model("Relu", "N", 3, 4, 4), model("Flatten", "N", 3, 4, 4), 1,
        "the first to diverge is 'y': it is float32 of shape [2, 48], and float32 of shape [2, 3, 4, 4] in the source",
    ),
}  # fmt: skip


@pytest.mark.parametrize("command", ["align", "verify"])
@pytest.mark.parametrize("case", CASES)
def test_other_shapes_are_one_sentence(
    case: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, status, sentence = CASES[case]
    onnx.save(first, tmp_path / "a.onnx")
    onnx.save(second, tmp_path / "b.onnx")
    assert main([command, str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx")]) == status
    printed = capsys.readouterr()
    lines = (printed.out + printed.err).splitlines()
    assert any(line.endswith(sentence) for line in lines)
    assert "ONNXRuntimeError" not in printed.err


def test_the_sentence_leads_to_an_answer(tmp_path: Path) -> None:
    first, second, *_ = CASES["an input that is fixed in one"]
    onnx.save(first, tmp_path / "a.onnx")
    onnx.save(second, tmp_path / "b.onnx")
    words = [str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx"), "-q"]
    assert main(["align", *words, "--input-shape", "x=5,3,4,4"]) == 0
    assert (
        main(["align", *reversed(words[:2]), "-q"]) == 0
    )  # the source decides what the inputs are


def test_a_model_without_an_opset_of_onnx_causes_a_warning() -> None:
    known = model("Relu", "N", 3)
    assert not from_model(known).warnings
    unknown = ModelProto()
    unknown.CopyFrom(known)
    del unknown.opset_import[:]
    (warning,) = irc.compile(unknown).warnings
    assert warning.startswith(
        "the model imports no opset of ONNX, so its operators are taken to be of opset 1"
    )
    unknown.graph.node[0].domain = "com.acme"
    assert not any("opset 1" in warning for warning in from_model(unknown).warnings)
