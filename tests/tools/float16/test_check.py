"""`irc check --float16`: what a plain conversion would lose, without writing a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import Graph
from irc.tools.cli.main import main
from onnx import ModelProto
from streams import DATA, stream, written_norm


def check(model: ModelProto, *more: str) -> int:
    onnx.save(model, "model.onnx")
    return main(["check", "model.onnx", "--float16", "--inputs", "samples.npz", *more])


def found(capsys: pytest.CaptureFixture[str], model: ModelProto, *more: str) -> Any:
    assert check(model, "--format", "json", *more) == 1
    (entry,) = json.loads(capsys.readouterr().out)["models"]
    return entry["float16"]


def large_layer(size: float) -> ModelProto:
    """Return a layer whose results are `size` times its data, and Tanh."""
    graph = Graph()
    weight = graph.initializer((np.eye(16) * size).astype(np.float32))
    graph.node("MatMul", [graph.input("x", ["N", 6, 16]), weight], "a", "layer")
    graph.node("Tanh", ["a"], "y")
    graph.output("y", ["N", 6, 16])
    return graph.model()


def test_a_small_stream_is_safe(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(stream(1.0)) == 0
    assert capsys.readouterr().out == "model.onnx: nothing would be lost in float16\n"
    assert sorted(path.name for path in folder.iterdir()) == ["model.onnx", "samples.npz"]


def test_a_large_one_is_not(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(stream(4e4)) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "model.onnx: not safe in float16"
    assert lines[1].split("  ")[0] == "tensor"
    first = next(line for line in lines if line.startswith("first"))
    assert "range exceeds float16 by 2^" in first
    assert "scaled by 2^-" in first


def test_bfloat16_alone_and_beside_float16(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """bfloat16 has the range of float32, and ONNX has it from opset 13 on."""
    assert check(stream(4e4), "--bfloat16") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "model.onnx: not safe in float16"
    assert lines[-1] == "model.onnx: nothing would be lost in bfloat16"
    arguments = ["check", "model.onnx", "--bfloat16", "--inputs", "samples.npz"]
    assert main(arguments) == 0
    assert capsys.readouterr().out == "model.onnx: nothing would be lost in bfloat16\n"
    onnx.save(large_layer(8e37), "model.onnx")
    assert main([*arguments, "--format", "json"]) == 1
    (entry,) = json.loads(capsys.readouterr().out)["models"]
    assert "float16" not in entry
    assert any(each["reason"].startswith("range exceeds bfloat16") for each in entry["bfloat16"])


def test_a_model_that_bfloat16_is_refused_for(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = Graph(opset=12)
    graph.node("Relu", [graph.input("x", ["N", 6, 16])], "y")
    graph.output("y", ["N", 6, 16])
    onnx.save(graph.model(), "model.onnx")
    assert main(["check", "model.onnx", "--bfloat16", "--inputs", "samples.npz"]) == 1
    assert "model.onnx: opset 12 has no bfloat16" in capsys.readouterr().out


def test_values_inside_a_norm_that_becomes_one_operator(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plain conversion computes squares in float16, irc one LayerNormalization."""
    remedies = {each["remedy"] for each in found(capsys, written_norm(size=1e3))}
    assert "computed inside one operator" in remedies


def test_what_cannot_be_scaled_stays_float32(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (each,) = found(capsys, large_layer(4e4))
    assert (each["op_type"], each["node"], each["tensor"]) == ("MatMul", "layer", "a")
    assert each["most"] == pytest.approx(4e4 * np.abs(DATA["x"][:8]).max(), rel=1e-3)
    assert each["remedy"].startswith("stays float32: range exceeds float16 by 2^")


def test_constants_that_would_be_infinite_or_zero_are_listed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = Graph()
    x = graph.node("Relu", [graph.input("x", ["N", 6, 16])])
    for op, number in (("Add", 1e-12), ("Div", 1e5)):
        x = graph.node(op, [x, graph.initializer(np.array(number, np.float32))])
        x = graph.node("Tanh", [x])
    graph.output(x, ["N", 6, 16])
    reasons = [each["reason"] for each in found(capsys, graph.model())]
    assert "the constant 1e-12 is 0 in float16" in reasons
    assert "the constant 100000 exceeds float16" in reasons


def test_sums_count_on_demand(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(stream(100.0)) == 0
    capsys.readouterr()
    reasons = {each["reason"] for each in found(capsys, stream(100.0), "--accumulate", "float16")}
    assert any(reason.startswith("a sum of squares exceeds float16") for reason in reasons)


def test_ranges_take_the_place_of_samples(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(stream(1.0), "model.onnx")
    assert main(["check", "model.onnx", "--float16"]) == 2
    assert "nothing is known of the range of 'x'" in capsys.readouterr().err
    assert main(["check", "model.onnx", "--float16", "--input-range=-1e6:1e6"]) == 1
    assert "first" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--inputs", "samples.npz"], "--inputs needs --float16"),
        (["--accumulate", "float16"], "--accumulate needs --float16"),
        (["--float16", "--all"], "--all is about scales and shifts that stay"),
    ],
)
def test_options_that_do_not_go_together(
    folder: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    onnx.save(stream(1.0), "model.onnx")
    assert main(["check", "model.onnx", *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("form", "word"), [("github", "::warning file=model.onnx"), ("sarif", "float16")]
)
def test_findings_have_the_forms_of_others(
    folder: Path, capsys: pytest.CaptureFixture[str], form: str, word: str
) -> None:
    assert check(stream(4e4), "--format", form) == 1
    assert word in capsys.readouterr().out
