"""Models whose BatchNormalizations a tool folded: one line, with the remedy."""

from __future__ import annotations

import re
from pathlib import Path

import harness
import irc
import onnx
import pytest
from graphs import Graph, batch_norm
from irc.tools.cli.main import main
from onnx import ModelProto


def net(weight: str = "w", bias: str = "b", *, rule: str = "", norm: bool = False) -> ModelProto:
    """Two convolutions with parameters of these names, and BatchNormalization behind a Clip."""
    graph = Graph()
    value = graph.input("x", [1, 4, 5, 5])
    for i in range(2):
        names = [graph.initializer(graph.random(4, 4, 1, 1), f"{weight}{i}")]
        names += [graph.initializer(graph.random(4), f"{bias}{i}")] if bias else []
        value = graph.node("Relu", [graph.node("Conv", [value, *names], name=f"c{i}")])
        if rule:
            entry = graph.nodes[-2].metadata_props.add()
            entry.key, entry.value = "pkg.onnxscript.rewriter.rule_name", rule
    if norm:
        value = graph.batch_norm(graph.node("Relu", [graph.node("Tanh", [value])]), batch_norm(4))
    graph.node("Tanh", [value], "y")
    graph.output("y")
    return graph.model()


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (
            net(rule="Other, FuseBatchNormIntoConv"),
            "by torch's exporter, .*: export with optimize=False, or regain",
        ),
        (
            net("onnx::Conv_1", "onnx::Conv_2"),
            "by TorchScript, .*: export with do_constant_folding=False and ",
        ),
        (
            net("ConvBnFusion_W_a", "ConvBnFusion_BN_B_b"),
            "by onnxruntime, .*: compile the model from before, or",
        ),
        (net(rule="FuseBatchNormIntoConv", norm=True), "by torch's exporter"),
    ],
)
def test_marks_of_tools(model: ModelProto, line: str) -> None:
    (warning,) = irc.compile(model).warnings
    assert warning.startswith("2 BatchNormalizations were folded before, ")
    assert warning.endswith("regain them from a checkpoint: irc foldmap recover")
    assert re.search(line, warning)


@pytest.mark.parametrize(
    "model", [net(), net(norm=True), net("onnx::Conv_1", ""), net(rule="RemoveOptionalBias")]
)
def test_models_without_marks(model: ModelProto) -> None:
    assert not irc.compile(model).warnings


def test_a_fold_map_without_statistics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Biased convolutions and no BatchNormalization may be all of the model.

    A line only where a map is wanted.
    """
    wanted = {"biased": True, "bare": False, "kept": False, "marked": True}
    models = {
        "biased": net(),
        "bare": net(bias=""),
        "kept": net(norm=True),
        "marked": net(rule="FuseBatchNormIntoConv"),
    }
    for name, model in models.items():
        onnx.save(model, tmp_path / f"{name}.onnx")
        assert (
            main(f"compile {tmp_path / f'{name}.onnx'} --fold-map {tmp_path / 'm.json'} -q".split())
            == 0
        )
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == wanted[name], lines
        assert main(["compile", str(tmp_path / f"{name}.onnx"), "-q"]) == 0
        assert len(capsys.readouterr().err.splitlines()) == (name == "marked")


@pytest.mark.shared
def test_the_unfolded_models_are_not_accused() -> None:
    for path in harness.shared_models("exported"):
        assert not any("folded before" in warning for warning in irc.compile(path).warnings), path
