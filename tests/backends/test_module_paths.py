"""Torch's module paths in fold maps: from scopes, names of parameters and names of nodes."""

from __future__ import annotations

import json
from pathlib import Path

import harness
import irc
import onnx
import pytest
from graphs import Graph, batch_norm
from irc.tools.cli.main import main
from onnx import ModelProto, NodeProto
from reports import report_data

PARAMETERS = ("weight", "bias", "running_mean", "running_var")


def note(node: NodeProto, key: str, value: str) -> None:
    entry = node.metadata_props.add()
    entry.key, entry.value = key, value


def net(conv: str = "", norm: str = "", conv_path: str = "", norm_path: str = "") -> Graph:
    """Conv and BatchNormalization with these node names, and parameters named after these paths."""
    graph = Graph()
    x = graph.input("x", [1, 3, 8, 8])
    weight = graph.initializer(
        graph.random(4, 3, 1, 1), f"{conv_path}.weight" if conv_path else "w"
    )
    made = graph.node("Conv", [x, weight], "h", conv)
    params = batch_norm(4)
    names = [f"{norm_path}.{each}" if norm_path else each[-3:] for each in PARAMETERS]
    for array, name in zip(params.arrays, names, strict=True):
        graph.initializer(array, name)
    graph.node("Relu", [graph.batch_norm(made, params, "n", norm, names=names)], "y")
    graph.output("y")
    return graph


def modules(model: ModelProto) -> tuple[str | None, str | None, str | None]:
    """The modules of the layer, of the BatchNormalization and of its statistic."""
    data = irc.compile(model).fold_map.data
    (source,), (layer,), (known,) = data["sources"], data["layers"], data["statistics"]
    return layer["module"], source["module"], known["module"]


def test_scopes_come_before_names() -> None:
    graph = net(conv_path="tied.conv", norm_path="tied.bn")
    for node, scope in zip(graph.nodes, ("a.conv", "a.bn"), strict=False):
        note(node, "pkg.torch.onnx.name_scopes", f"['', 'a', '{scope}', 'op_1']")
    assert modules(graph.model()) == ("a.conv", "a.bn", "a.bn")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "['only']",
        "layer1",
        "['', 'a\\'b', 'op']",
        "[" * 5000,
        "['', __import__('os'), 'op']",
        "('', 'a', 'op')",
    ],
)
def test_scopes_in_another_form_are_left_aside(text: str) -> None:
    graph = net(conv_path="layer1.conv", norm_path="layer1.bn")
    for node in graph.nodes:
        note(node, "pkg.torch.onnx.name_scopes", text)
    assert modules(graph.model()) == ("layer1.conv", "layer1.bn", "layer1.bn")


def test_a_layer_that_took_a_batch_normalization_before_has_its_own_module() -> None:
    """onnxscript gives the layer the scopes of the BatchNormalization.

    Its weight keeps its name.
    """
    graph = net(conv_path="layer1.conv", norm_path="layer1.later")
    note(graph.nodes[0], "pkg.torch.onnx.name_scopes", "['', 'layer1', 'layer1.bn', 'norm']")
    assert modules(graph.model())[0] == "layer1.bn"
    note(graph.nodes[0], "pkg.onnxscript.rewriter.rule_name", "Other, FuseBatchNormIntoConv")
    assert modules(graph.model())[0] == "layer1.conv"


def test_parameters_of_the_model_itself() -> None:
    graph = net()
    names = dict(zip(("ght", "ias", "ean", "var"), PARAMETERS, strict=True))
    for tensor in graph.initializers:
        tensor.name = names.get(tensor.name, tensor.name)
    graph.nodes[1].input[1:] = PARAMETERS
    assert modules(graph.model()) == (None, "", "")


@pytest.mark.parametrize(
    ("node", "path"),
    [
        ("/bn1/BatchNormalization", "bn1"),
        ("/BatchNormalization", ""),
        ("/BatchNormalization_12", ""),
        ("/layer1/layer1.0/bn1/BatchNormalization", "layer1.0.bn1"),
        ("/features/features.0/features.0.1/BatchNormalization", "features.0.1"),
        ("/blocks.1.0/blocks.1.0.1/BatchNormalization", "blocks.1.0.1"),
        ("/sh/sh.1_1/BatchNormalization_1", "sh.1"),
        ("/conv_1/BatchNormalization", "conv_1"),
        ("/a/a/BatchNormalization", "a.a"),
        ("bn1/BatchNormalization", None),
        ("/bn1/Conv", None),
        ("/bn1/BatchNormalizationGrad", None),
        ("model/bn/FusedBatchNormV3", None),
        ("BatchNormalization_7", None),
        ("", None),
    ],
)
def test_names_of_nodes(node: str, path: str | None) -> None:
    assert modules(net(norm=node).model())[1:] == (path, path)


def test_a_layer_is_found_by_its_module() -> None:
    fold_map = irc.compile(
        net(conv_path="layer1.0.conv1", norm_path="layer1.0.bn1").model()
    ).fold_map
    known = fold_map.output_stats(module="layer1.0.conv1")
    assert known is not None
    assert list(known.mean) == list(batch_norm(4).beta)
    assert fold_map.input_stats(module="layer1.0.conv1") is None
    with pytest.raises(irc.FoldMapError, match=r"no layer of a module 'layer1.0.conv2'$"):
        fold_map.output_stats(module="layer1.0.conv2")
    for arguments in ({}, {"layer": "L0", "module": "layer1.0.conv1"}):
        with pytest.raises(irc.FoldMapError, match="either"):
            fold_map.output_stats(**arguments)
    with pytest.raises(irc.FoldMapError, match="it names no modules"):
        irc.compile(net().model()).fold_map.output_stats(module="conv")


def test_a_module_that_is_called_twice_has_two_layers() -> None:
    graph = net(conv_path="block.conv", norm_path="block.bn")
    graph.initializer(graph.random(4, 3, 1, 1), "again.conv.weight")
    made = graph.node("Conv", ["x", "again.conv.weight"], "h2")
    graph.batch_norm(
        made, batch_norm(4, seed=2), "z", names=[f"block.bn.{each}" for each in PARAMETERS]
    )
    graph.output("z")
    for node in graph.nodes[::3]:
        note(node, "pkg.torch.onnx.name_scopes", "['', 'block', 'block.conv', 'conv2d']")
    fold_map = irc.compile(graph.model()).fold_map
    with pytest.raises(irc.FoldMapError, match="more than once: name one of its layers L0, L1"):
        fold_map.output_stats(module="block.conv")
    assert fold_map.output_stats("L1") is not None


def test_show_by_module(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = net("c", "b", "layer1.0.conv1", "layer1.0.bn1")
    graph.node("Mul", ["y", graph.initializer([2.0])], "doubled", "/head/Mul")
    graph.output("doubled")
    onnx.save(graph.model(), tmp_path / "net.onnx")
    fold_map = str(tmp_path / "map.json")
    assert main(["compile", str(tmp_path / "net.onnx"), "--fold-map", fold_map, "-q"]) == 0
    assert main(["foldmap", "show", fold_map, "--by", "module"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert [line[1] for line in lines] == ["layer1.0.conv1", "layer1.0.bn1", "head"]
    assert lines[0][3:9] == ["L0", "│", "Conv", "│", "takes", lines[1][3]]


def test_a_map_of_version_1_1_is_read_and_has_no_modules(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fold_map = irc.compile(net(conv_path="conv", norm_path="bn").model()).fold_map
    data = json.loads(fold_map.to_json())
    assert data["version"] == "1.2"
    data["version"] = "1.1"
    for entry in (*data["sources"], *data["layers"], *data["statistics"]):
        del entry["module"]
    path = tmp_path / "old.json"
    path.write_text(json.dumps(data))
    old = irc.FoldMap.load(path)
    assert old.output_stats("L0") is not None
    assert main(["foldmap", "show", str(path)]) == 0
    assert main(["foldmap", "show", str(path), "--by", "module"]) == 1
    assert capsys.readouterr().err.startswith(f"irc: {path}: the fold map names no modules: ")


def test_the_report_has_the_modules() -> None:
    data = report_data(net(conv_path="layer1.conv", norm_path="layer1.bn").model())
    assert [row["module"] for row in data["affines"]] == ["layer1.bn"]
    assert [row["module"] for row in data["layers"]] == ["layer1.conv"]


@pytest.mark.shared
@pytest.mark.parametrize("path", harness.shared_models("exported"), ids=lambda path: path.stem)
def test_torch_models_name_every_module(path: Path) -> None:
    """The names of BatchNormalization's parameters say what scopes and node names must give."""
    model = harness.load(path)
    expected = {
        node.name: node.input[3].removesuffix(".running_mean") for node in batch_norms(model)
    }
    parameters = {name for node in batch_norms(model) for name in node.input[1:]}
    for tensor in model.graph.initializer:  # other names: names of nodes and scopes are left
        tensor.name += "::renamed" * (tensor.name in parameters)
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [name + "::renamed" * (name in parameters) for name in names]
    result = irc.compile(model)
    found = {
        s["node"]["name"]: s["module"] for s in result.fold_map.sources if s["kind"] == "batch_norm"
    }
    assert found == expected
    assert all(layer["module"] is not None for layer in result.fold_map.layers)


def batch_norms(model: ModelProto) -> list[NodeProto]:
    return [node for node in model.graph.node if node.op_type == "BatchNormalization"]
