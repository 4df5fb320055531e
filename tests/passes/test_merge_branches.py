"""Branches of one value that become one layer: random sums against float64, and the fold map."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import irc
import numpy as np
import pytest
from graphs import BatchNorm, Graph, batch_norm, constants, operand, the, wide
from harness import operators
from irc.backends.foldmap.inverse import unfold
from irc.passes import merge_branches
from onnx import ModelProto
from oracle import assert_same_function, assert_sound
from random_branches import convolutions, products

LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


def layers(model: ModelProto) -> int:
    return sum(op in LAYERS for op in operators(model))


@pytest.mark.parametrize("grow", [convolutions, products])
@pytest.mark.parametrize("first", range(0, 60, 10))
def test_random_sums_keep_their_function(grow: object, first: int) -> None:
    merged = 0
    for seed in range(first, first + 10):
        model = grow(seed)  # type: ignore[operator]
        result = irc.compile(model)
        assert_sound(model, result)
        assert_same_function(model, result.model)
        merged += layers(result.model) < layers(model)
    assert merged > 1, "many sums have branches that are one layer"


def repvgg_block(*, residual: bool = False) -> tuple[ModelProto, dict[str, BatchNorm]]:
    """Relu(norm(Conv3x3(x)) + norm(Conv1x1(x)) + norm(x)), with `residual` + Sin(z)."""
    g = Graph()
    x = g.node("Relu", [g.input("x", ["N", 4, "H", "W"])])
    norms = {name: batch_norm(4, seed) for seed, name in enumerate(("wide", "narrow", "skip"))}
    wide = g.node(
        "Conv", [x, g.initializer(g.random(4, 4, 3, 3), "w3")], name="conv3", pads=[1, 1, 1, 1]
    )
    narrow = g.node("Conv", [x, g.initializer(g.random(4, 4, 1, 1), "w1")], name="conv1")
    branches = [
        g.batch_norm(data, norms[name], name, name)
        for data, name in ((wide, "wide"), (narrow, "narrow"), (x, "skip"))
    ]
    if residual:
        branches.append(g.node("Sin", [x]))
    total = g.node("Sum", branches, "total")
    g.node("Relu", [total], "y")
    g.output("y", ["N", 4, "H", "W"])
    return g.model(), norms


def test_a_block_is_one_layer_and_unfolds() -> None:
    model, _ = repvgg_block()
    result = irc.compile(model)
    assert operators(result.model) == ["Relu", "Conv", "Relu"]
    assert_sound(model, result)
    assert_same_function(model, result.model)
    assert unfold(result.model, result.fold_map) == model


def test_the_fold_map_has_each_branch_and_a_bound_of_the_sum() -> None:
    model, norms = repvgg_block()
    fold_map = irc.compile(model).fold_map
    assert fold_map.data["version"] == "2.0", "older readers would take the layer for conv3"
    (layer,) = fold_map.layers
    branches = {branch["output"]: branch for branch in layer["branches"]}
    assert [branches[name]["weight"] for name in norms] == ["w3", "w1", None]
    assert [branches[name]["node"]["op_type"] for name in norms] == ["Conv", "Conv", ""]
    stds = []
    for name, params in norms.items():
        (fold,) = branches[name]["folds"]
        np.testing.assert_allclose(fold_map.arrays.get(fold["scale"]), params.scale, rtol=1e-12)
        assert fold_map.arrays.get(branches[name]["mean"]).tolist() == wide(params.beta).tolist()
        stds.append(np.abs(params.scale) * np.sqrt(wide(params.var)))
        np.testing.assert_allclose(fold_map.arrays.get(branches[name]["std"]), stds[-1], rtol=1e-12)
    known = layer["sum"]
    assert known is not None and (known["output"], known["origin"]) == ("total", "bound")
    betas = [wide(params.beta) for params in norms.values()]
    np.testing.assert_allclose(fold_map.arrays.get(known["mean"]), np.sum(betas, axis=0))
    np.testing.assert_allclose(fold_map.arrays.get(known["bound"]), np.sum(stds, axis=0))
    assert fold_map.output_stats("L0") is None, "no BatchNormalization kept those of the sum"
    assert {source["status"] for source in fold_map.sources} == {"folded"}


def test_a_part_of_a_sum_has_no_bound() -> None:
    model, _ = repvgg_block(residual=True)
    result = irc.compile(model)
    assert operators(result.model) == ["Relu", "Sin", "Conv", "Add", "Relu"]
    (layer,) = result.fold_map.layers
    assert len(layer["branches"]) == 3 and layer["sum"] is None
    assert unfold(result.model, result.fold_map) == model


def test_a_map_without_branches_is_of_the_version_that_all_readers_know() -> None:
    g = Graph()
    x = g.node("Conv", [g.input("x", ["N", 2, "L"]), g.initializer(g.random(2, 2, 1))])
    g.batch_norm(x, batch_norm(2), "y")
    g.output("y", ["N", 2, "L"])
    data = irc.compile(g.model()).fold_map.data
    assert data["version"] == "1.2" and "branches" not in data["layers"][0]


def test_a_map_with_branches_is_written_and_read(tmp_path: Path) -> None:
    model, _ = repvgg_block()
    fold_map = irc.compile(model).fold_map
    fold_map.save(tmp_path / "map.json")
    assert irc.FoldMap.load(tmp_path / "map.json").to_json() == fold_map.to_json()


def test_weights_are_the_sum_in_float64_rounded_once() -> None:
    model, norms = repvgg_block()
    result = irc.compile(model)
    arrays = constants(model)
    exact = wide(arrays["w3"]) * norms["wide"].scale.reshape(-1, 1, 1, 1)
    exact[:, :, 1, 1] += wide(arrays["w1"])[:, :, 0, 0] * norms["narrow"].scale.reshape(-1, 1)
    exact[range(4), range(4), 1, 1] += norms["skip"].scale
    conv = the(result.model, "Conv")
    assert (operand(result.model, conv, 1) == exact.astype(np.float32)).all()
    bias = sum(params.bias() for params in norms.values())
    assert (operand(result.model, conv, 2) == np.asarray(bias).astype(np.float32)).all()


@pytest.mark.parametrize("seed", range(8))
def test_layers_in_a_row_keep_their_function(seed: int) -> None:
    rng = np.random.default_rng(seed)
    widths = [int(width) for width in (rng.integers(1, 4), 5, rng.integers(1, 4))]
    g = Graph(dtype=np.dtype(np.float64), seed=seed)
    value, shape = g.input("x", ["N", widths[0], "H", "W"]), ["N", widths[-1], None, None]
    wide_first, padded, biased = (bool(rng.integers(2)) for _ in range(3))
    for i, (inputs, outputs) in enumerate(pairwise(widths)):
        kernel = 3 if i != wide_first else 1
        operands = [value, g.initializer(g.random(outputs, inputs, kernel, kernel))]
        if biased:
            operands.append(g.initializer(g.random(outputs)))
        value = g.node("Conv", operands, pads=[int(padded and kernel == 3)] * 4)
    g.node("Relu", [value], "y")
    g.output("y", shape)
    model = g.model()
    result = irc.compile(model, "default,MergeLayers")
    assert_sound(model, result, "default,MergeLayers")
    assert_same_function(model, result.model)
    stays = biased and padded and not wide_first
    assert operators(result.model) == ["Conv"] * (1 + stays) + ["Relu"]
    assert unfold(result.model, result.fold_map) == model


@pytest.mark.parametrize("op", ["Add", "Sum"])
def test_pairs_of_one_sum_become_layers_together(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sums = []
    known = merge_branches.sum_of
    monkeypatch.setattr(
        merge_branches, "sum_of", lambda *args: (sums.append(args[0]), known(*args))[1]
    )
    g = Graph()
    values = []
    for i in range(12):
        x = g.input(f"x{i}", [1, 3, 4, 4])
        values += [
            g.node("Conv", [x, g.initializer(g.random(3, 3, k, k))], pads=[k // 2] * 4)
            for k in (1, 3)
        ]
    values.append(g.node("Sin", ["x0"]))
    total = values[0]
    if op == "Sum":
        total = g.node("Sum", values)
    for value in values[1:] if op == "Add" else []:
        total = g.node("Add", [total, value])
    g.node("Relu", [total], "y")
    g.output("y", None)
    model = g.model()
    result = irc.compile(model)
    found = operators(result.model)
    assert (found.count("Conv"), found.count(op)) == (12, 1 if op == "Sum" else 12)
    assert len(sums) < 5, "the sum is read again for each pair"
    assert_sound(model, result)
    assert_same_function(model, result.model)
