"""What the command line says of a model: counts, what is absent, and what is odd, from outside."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from irc.cli import main
from onnx import ModelProto, helper, parser

IMPORTS = '<ir_version: 8, opset_import: ["" : 17, "acme" : 1]>'


def model_of(body: str, imports: str = IMPORTS) -> ModelProto:
    return parser.parse_model(f"{imports} g {body}")


def with_training_graph() -> ModelProto:
    """Two operators, and three of a training graph."""
    model = model_of("(float[2] x) => (float[2] y) <float[2] w = {1, 2}> { a = Mul(x, w) y = Relu(a) }")
    nodes = [helper.make_node("Neg", [before], [after]) for before, after in ("wa", "ab", "bc")]
    training = model.training_info.add()
    training.algorithm.CopyFrom(helper.make_graph(nodes, "step", [], []))
    training.update_binding.add(key="w", value="c")
    return model


def with_malformed_constant() -> ModelProto:
    model = model_of("(float[2] x) => (float[2] y) { a = Constant <value = float[2] {1, 2}> () y = Add(x, a) }")
    model.graph.node[0].attribute[0].t.dims[:] = [3]
    return model


OF_ANOTHER_DOMAIN = model_of("(float[2] x) => (float[2] y) { a = acme.Constant () y = Add(x, a) }")


@pytest.mark.parametrize(
    ("model", "count"), [(with_training_graph(), 2), (with_malformed_constant(), 1), (OF_ANOTHER_DOMAIN, 2)]
)
def test_both_sides_are_counted_the_same_way(
    model: ModelProto, count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What no pass changes has as many operators as before, in the summary, the document and `irc inspect`."""
    path, out = str(tmp_path / "m.onnx"), str(tmp_path / "o.onnx")
    onnx.save(model, path)
    for passes in ("default", "none"):
        assert main(["compile", path, "-o", out, "--passes", passes, "--json", str(tmp_path / "j.json")]) == 0
        assert f"{count} -> {count} operators; " in capsys.readouterr().err
        assert json.loads((tmp_path / "j.json").read_text())["operators"] == [count, count]
    assert main(["inspect", path]) == 0
    assert f"\noperators: {count} (" in capsys.readouterr().out
