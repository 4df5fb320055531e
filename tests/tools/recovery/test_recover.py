"""`irc foldmap recover`.

Fold maps of models that another tool folded, from a checkpoint of before.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import harness
import irc
import numpy as np
import onnx
import onnxruntime
import pytest
from graphs import BatchNorm, Graph, batch_norm
from irc.backends.foldmap.inverse import check, unfold
from irc.backends.quantizers.ranges import activations
from irc.tools.cli.main import main
from irc.tools.recovery import Checkpoint, recover
from irc.tools.recovery.checkpoint import from_state, from_unfolded, read_checkpoint
from onnx import ModelProto, numpy_helper

Array = np.ndarray[Any, np.dtype[Any]]
PARAMETERS = ("weight", "bias", "running_mean", "running_var")
PAIRS = [("a.conv", "a.bn"), ("b.conv", "b.bn"), ("c.conv", "c.bn")]


def unfolded(
    *, bias: bool = False, same: bool = False, epsilon: float | None = None, pairs: Any = PAIRS
) -> ModelProto:
    """Three times Conv, BatchNormalization, Relu.

    Of one shape, with `same` of one BatchNormalization.
    """
    graph = Graph(opset=17)
    value = graph.input("x", [1, 4, 6, 6])
    for i, (conv, norm) in enumerate(pairs):
        inputs = [value, graph.initializer(graph.random(4, 4, 3, 3), f"{conv}.weight")]
        if bias:
            inputs.append(graph.initializer(graph.random(4), f"{conv}.bias"))
        made = graph.node("Conv", inputs, f"h{i}", conv, pads=[1, 1, 1, 1])
        params = batch_norm(4, seed=1 if same else i, epsilon=epsilon)
        names = [
            graph.initializer(array, f"{norm}.{each}")
            for array, each in zip(params.arrays, PARAMETERS, strict=True)
        ]
        value = graph.node(
            "Relu", [graph.batch_norm(made, params, f"n{i}", norm, names=names)], f"y{i}"
        )
    graph.output(value)
    return graph.model()


def by_onnxruntime(model: ModelProto | Path, folder: Path) -> ModelProto:
    """The model after onnxruntime's basic optimizations, which fold in float32."""
    path = folder / "folded.onnx"
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 3
    given = str(model) if isinstance(model, Path) else model.SerializeToString()
    onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])
    folded = onnx.load(path)
    assert harness.batch_norms(folded) == 0
    return folded


def state_of(model: ModelProto) -> dict[str, Array]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def without_names(model: ModelProto) -> ModelProto:
    """The model with other names for everything but its inputs and outputs."""
    outside = {info.name for info in (*model.graph.input, *model.graph.output)}
    names: dict[str, str] = {}
    for i, node in enumerate(model.graph.node):
        node.name = f"node{i}"
        for values in (node.input, node.output):
            values[:] = [
                v if v in outside or not v else names.setdefault(v, f"v{len(names)}")
                for v in values
            ]
    for tensor in model.graph.initializer:
        tensor.name = names[tensor.name]
    del model.graph.value_info[:]
    return model


def checkpoints(model: ModelProto) -> list[Checkpoint]:
    return [from_state(state_of(model)), from_unfolded(model)]


@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("named", [True, False], ids=["named", "nameless"])
def test_statistics_are_those_of_before(bias: bool, named: bool, tmp_path: Path) -> None:
    source = unfolded(bias=bias)
    folded = by_onnxruntime(source, tmp_path)
    folded = folded if named else without_names(folded)
    for checkpoint in checkpoints(source):
        found = recover(folded, checkpoint)
        assert [hit.norm.path for hit in found.explanations] == ["a.bn", "b.bn", "c.bn"]
        assert not (found.refused or found.missing or found.kept)
        assert found.fold_map.count() == {"folded": 3}
        for i, hit in enumerate(found.explanations):
            known, params = found.fold_map.output_stats(hit.layer.node.name), batch_norm(4, seed=i)
            assert known is not None
            var = params.var.astype(np.float64)
            assert np.array_equal(known.mean, params.beta)
            assert np.allclose(
                known.std, np.abs(params.gamma) * np.sqrt(var / (var + 1e-5)), rtol=1e-7
            )
        assert check(folded, found.fold_map).same


def test_the_source_comes_back(tmp_path: Path) -> None:
    source = unfolded(bias=True)
    folded = by_onnxruntime(source, tmp_path)
    original, rebuilt = (
        unfold(folded, recover(folded, checkpoint).fold_map)
        for checkpoint in reversed(checkpoints(source))
    )
    assert original == source
    assert harness.batch_norms(rebuilt) == 3
    state = state_of(source)
    assert state_of(rebuilt).keys() == state.keys()
    assert all(np.array_equal(state[name], array) for name, array in state_of(rebuilt).items())
    inputs = harness.random_inputs(source)
    assert harness.worst(harness.run(rebuilt, inputs), harness.run(source, inputs)) == 0


def test_quantizers_use_it(tmp_path: Path) -> None:
    source = unfolded()
    folded = by_onnxruntime(source, tmp_path)
    fold_map = recover(folded, from_state(state_of(source))).fold_map
    own = irc.compile(source)
    expected = activations(own.model, own.fold_map, input_ranges={"x": (-1.0, 1.0)})
    found = activations(folded, fold_map, input_ranges={"x": (-1.0, 1.0)})
    for layer, other in zip(fold_map.layers, own.fold_map.layers, strict=True):
        here, there = found.known[layer["output"]["name"]], expected.known[other["output"]["name"]]
        assert here.range == there.range
        assert here.origin == there.origin
    fold_map.save(tmp_path / "map.json")
    assert irc.FoldMap.load(tmp_path / "map.json").to_json() == fold_map.to_json()


@pytest.mark.parametrize(
    "op", ["ConvTranspose", "Gemm", "Gemm transposed", "grouped ConvTranspose"]
)
def test_other_layers(op: str) -> None:
    """Layers that onnxruntime does not fold: folded here, in float32."""
    graph, params = Graph(opset=17), batch_norm(4)
    group = 2 if op.startswith("grouped") else 1
    if op.startswith("Gemm"):
        x, weight = graph.input("x", [2, 6]), graph.random(4, 6)
        transposed = op == "Gemm"
        stored = weight if transposed else weight.T
        scale = params.gamma / np.sqrt(params.var + np.float32(1e-5))
        folded = (weight * scale[:, None]).astype(np.float32)
        folded, attrs = (folded if transposed else folded.T), {"transB": int(transposed)}
    else:
        x, weight = graph.input("x", [1, 6, 5, 5]), graph.random(6, 4 // group, 3, 3)
        scale = params.gamma / np.sqrt(params.var + np.float32(1e-5))
        factor = np.repeat(scale.reshape(group, 1, -1), 6 // group, axis=1).reshape(
            6, 4 // group, 1, 1
        )
        stored, folded, attrs = weight, (weight * factor).astype(np.float32), {"group": group}
    bias = (params.beta - params.mean * scale).astype(np.float32)
    inputs = [x, graph.initializer(folded, "w"), graph.initializer(bias, "b")]
    graph.node("Gemm" if op.startswith("Gemm") else "ConvTranspose", inputs, "y", "layer", **attrs)
    graph.output("y")
    model = graph.model()
    state = {
        "layer.weight": weight,
        **dict(zip([f"bn.{each}" for each in PARAMETERS], params.arrays, strict=True)),
    }
    found = recover(model, from_state(state))
    rebuilt = unfold(model, found.fold_map)
    assert np.array_equal(state_of(rebuilt)["layer.weight"], stored)
    inputs = harness.random_inputs(model)
    assert harness.worst(harness.run(model, inputs), harness.run(rebuilt, inputs)) < 1e-5
    assert harness.batch_norms(rebuilt) == 1


@pytest.mark.parametrize("epsilon", [1e-3, 1e-5])
def test_epsilon_is_found_by_its_effect(epsilon: float, tmp_path: Path) -> None:
    source = unfolded(epsilon=epsilon)
    folded = by_onnxruntime(source, tmp_path)
    checkpoint = from_state(state_of(source))
    assert {hit.epsilon for hit in recover(folded, checkpoint).explanations} == {epsilon}
    with pytest.raises(
        irc.FoldMapError, match="a factor a channel that no BatchNormalization explains"
    ):
        recover(folded, checkpoint, epsilons=(2e-3,))


def test_what_names_cannot_decide_is_refused(tmp_path: Path) -> None:
    """Two BatchNormalizations with the same numbers.

    A weight is followed by its own, unless the order says nothing.
    """
    source = unfolded(same=True)
    folded = without_names(by_onnxruntime(source, tmp_path))
    state = state_of(source)
    found = recover(folded, from_state(state))
    assert [hit.norm.path for hit in found.explanations] == ["a.bn", "b.bn", "c.bn"]
    norms_first = dict(sorted(state.items(), key=lambda item: ".bn." not in item[0]))
    with pytest.raises(
        irc.FoldMapError, match=r"several BatchNormalizations explain it: a\.bn, b\.bn, c\.bn"
    ):
        recover(folded, from_state(norms_first))


def test_other_numbers_are_refused(tmp_path: Path) -> None:
    source = unfolded()
    folded = by_onnxruntime(source, tmp_path)
    other = state_of(unfolded(same=True))
    with pytest.raises(irc.FoldMapError, match="took a BatchNormalization of the checkpoint"):
        recover(
            folded,
            from_state(
                {**other, **{f"{each}.conv.weight": -other["a.conv.weight"] for each in "bc"}}
            ),
        )
    state = state_of(source)
    for name in ("a.bn.bias", "b.bn.running_mean", "c.conv.weight"):
        array = state[name].copy()
        array.reshape(-1)[-1] *= np.float32(1 + 2**-18)  # more than a fold rounds
        found = recover(folded, from_state({**state, name: array}))
        assert len(found.explanations) == 2
        assert found.missing == [f"{name[0]}.bn"]
        assert len(found.refused) == 1


def test_a_layer_that_nobody_folded_has_no_statistic() -> None:
    """Also if a BatchNormalization of the checkpoint would leave it as it is."""
    graph = Graph()
    weight = graph.random(4, 4, 1, 1)
    graph.node(
        "Conv", [graph.input("x", [1, 4, 2, 2]), graph.initializer(weight, "w")], "y", "conv"
    )
    graph.output("y")
    ones, zeros = np.ones(4, np.float32), np.zeros(4, np.float32)
    state = {
        "conv.weight": weight,
        **dict(zip([f"bn.{e}" for e in PARAMETERS], (ones, zeros, zeros, ones), strict=True)),
    }
    with pytest.raises(irc.FoldMapError, match="no layer of the main graph took"):
        recover(graph.model(), from_state(state), epsilons=(0.0,))


def test_what_stays_is_told_from_what_is_gone(tmp_path: Path) -> None:
    source = unfolded()
    folded = by_onnxruntime(source, tmp_path)
    with pytest.raises(irc.FoldMapError, match="3 are still in the model, which irc compile folds"):
        recover(source, from_state(state_of(source)))
    state = {**state_of(source), **{f"d.bn.{each}": np.ones(4, np.float32) for each in PARAMETERS}}
    assert recover(folded, from_state(state)).missing == ["d.bn"]
    mixed = unfolded()
    params: BatchNorm = batch_norm(4, seed=7)
    for each, array in zip(PARAMETERS, params.arrays, strict=True):
        mixed.graph.initializer.append(numpy_helper.from_array(array, f"late.{each}"))
    node = onnx.helper.make_node(
        "BatchNormalization", ["y2", *[f"late.{e}" for e in PARAMETERS]], ["z"], "late"
    )
    mixed.graph.node.append(node)
    mixed.graph.output[0].name = "z"
    names = {"folded": 3, "merged": 1}
    assert recover(folded, from_unfolded(mixed)).fold_map.count() == names


def test_a_layer_without_a_name_is_refused(tmp_path: Path) -> None:
    source = unfolded()
    folded = by_onnxruntime(source, tmp_path)
    next(node for node in folded.graph.node if node.op_type == "Conv").name = ""
    found = recover(folded, from_state(state_of(source)))
    assert len(found.explanations) == 2
    assert list(found.refused.values()) == [
        "it has no name of its own, by which a fold map could refer to it"
    ]


def write_safetensors(
    path: Path, state: dict[str, Array], header: dict[str, Any] | None = None
) -> Path:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, array in state.items():
        span = [len(data), len(data) + array.nbytes]
        entries[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": span}
        data += array.tobytes()
    text = json.dumps({**entries, **(header or {})}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@pytest.mark.parametrize("form", ["npz", "safetensors", "onnx"])
def test_files(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = unfolded()
    by_onnxruntime(source, tmp_path)
    checkpoint = tmp_path / f"before.{form}"
    if form == "npz":
        np.savez(
            checkpoint, **{f"module.{name}": array for name, array in state_of(source).items()}
        )
    elif form == "safetensors":
        write_safetensors(checkpoint, state_of(source))
    else:
        onnx.save(source, checkpoint)
    folded, fold_map = str(tmp_path / "folded.onnx"), str(tmp_path / "map.json")
    assert main(["foldmap", "recover", folded, "--from", str(checkpoint), "-o", fold_map]) == 0
    out, err = capsys.readouterr()
    assert "Conv 'b.conv': b.bn, epsilon 1e-05" in out
    assert err == "3 BatchNormalizations recovered; layers: 0 not recovered, 0 unchanged\n"
    assert main(["foldmap", "check", folded, fold_map]) == 0
    assert main(["unfold", folded, fold_map, "-o", str(tmp_path / "back.onnx")]) == 0
    assert (onnx.load(tmp_path / "back.onnx") == source) == (form == "onnx")
    modules = irc.FoldMap.load(fold_map)
    assert modules.output_stats(module="c.conv") is not None


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.safetensors", b"", "its header is truncated"),
        ("a.safetensors", b"\xff" * 20, "its header is truncated"),
        (
            "a.safetensors",
            (2).to_bytes(8, "little") + b"{}",
            "the checkpoint has no BatchNormalization",
        ),
        ("a.npz", b"no zip", "cannot be read as a checkpoint"),
        ("a.txt", b"", "a checkpoint is .pt"),
        ("a.onnx", b"no model", "this is not an ONNX model"),
        ("missing.npz", None, "No such file"),
    ],
)
def test_broken_checkpoints(name: str, content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(irc.IRError, match=message) as caught:
        read_checkpoint(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "entry", [{"dtype": "F32", "shape": [9], "data_offsets": [0, 99999]}, {"dtype": "F32"}, 3]
)
def test_broken_safetensors(entry: Any, tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "a.safetensors", {}, {"x": entry})
    with pytest.raises(irc.FoldMapError, match="cannot be read as a checkpoint"):
        read_checkpoint(path)


def test_no_output_takes_an_inputs_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = unfolded()
    by_onnxruntime(source, tmp_path)
    np.savez(tmp_path / "map.npz", **state_of(source))
    before = (tmp_path / "map.npz").read_bytes()
    arguments = f"foldmap recover {tmp_path / 'folded.onnx'} --from {tmp_path / 'map.npz'}".split()
    assert main([*arguments, "-o", str(tmp_path / "map.json")]) == 2
    assert "would replace a file that is read" in capsys.readouterr().err
    assert (tmp_path / "map.npz").read_bytes() == before


IMAGENET = harness.SHARED / "imagenet" / "mobilenet_v2.onnx"


@pytest.mark.shared
def test_mobilenet_v2_folded_by_onnxruntime(tmp_path: Path) -> None:
    folded = by_onnxruntime(IMAGENET, tmp_path)
    source = onnx.load(IMAGENET)
    found = recover(folded, from_unfolded(source))
    assert found.fold_map.count() == {"folded": 52}
    assert unfold(folded, found.fold_map) == source
    own = irc.compile(source).fold_map
    for layer in found.fold_map.layers:
        recovered, expected = (
            each.output_stats(module=layer["module"]) for each in (found.fold_map, own)
        )
        assert recovered is not None
        assert expected is not None
        assert np.array_equal(recovered.mean, expected.mean)
        assert np.array_equal(recovered.std, expected.std)
