"""From the folded model and its map back to the source, bit for bit.

`IRC_EXAMPLES=2000 pytest -n 2 tests/backends/test_unfold.py` takes 2,000 random models; the default
is 320.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import harness
import irc
import numpy as np
import onnx
import pytest
import zoo
from graphs import BF16, F16, F32, F64, Graph, conv_bn
from harness import EXAMPLE
from irc.backends.foldmap.digests import graph_digest
from irc.backends.foldmap.fold_map import FoldMap
from irc.backends.foldmap.inverse import check, unfold
from irc.support.errors import FoldMapError
from onnx import ModelProto, TensorProto, numpy_helper
from random_graphs import grow

EXAMPLES = int(os.environ.get("IRC_EXAMPLES", "320"))
FIRST = int(os.environ.get("IRC_SEED", "0"))
BLOCKS = 8
DTYPES = (F32, F16, BF16, F64)
PIPELINES = (
    None,
    "default,EliminateCommonSubexpr,DeadCodeElimination",
    "SimplifyInference,FoldScaleAxis{partial=always,border=map},CanonicalizeOps,SimplifyExpr,FoldConstant",
    "InlineFunctions,default,default",
    "default,CrossLayerEqualization,HighBiasAbsorption,BiasCorrection,FoldConstant",
)
LIGHT = sorted((Path(onnx.__file__).parent / "backend" / "test" / "data" / "light").glob("*.onnx"))


def through_files(path: Path, folder: Path, store: str = "npz") -> ModelProto:
    """Compile into the folder, and come back from what was written there."""
    irc.compile(path).save(folder / "o.onnx", fold_map=folder / "o.json", fold_map_store=store)
    folded = onnx.load(folder / "o.onnx", load_external_data=False)
    return unfold(folded, FoldMap.load(folder / "o.json"), folder)


UNFOLD = """
import os, sys
from pathlib import Path
import irc.backends.onnx.emitter, irc.frontends.onnx, irc.tools.cli.unfold, irc.tools.recovery.unfolded
from irc.tools.cli.main import main
differ = []
for folder in map(Path, sys.argv[1:]):
    child = os.fork()  # unfolding one model must not prepare the process for the next
    if not child:
        status = main(["unfold", *[str(folder / name) for name in ("o.onnx", "o.json")], "-o", str(folder / "u.onnx")])
        os._exit(status or (folder / "u.onnx").read_bytes() != (folder / "source.onnx").read_bytes())
    if os.waitpid(child, 0)[1]:
        differ.append(folder.name)
print(*differ)
"""


def differing_elsewhere(models: Iterable[tuple[str, ModelProto]], folder: Path) -> list[str]:
    """Compile the models here, unfold each in a fresh process, and name those that differ."""
    places = []
    for name, model in models:
        place = folder / name.replace("/", "-")
        place.mkdir()
        (place / "source.onnx").write_bytes(model.SerializeToString())
        try:
            irc.compile(place / "source.onnx").save(place / "o.onnx", fold_map=place / "o.json")
        except irc.ModelError:
            continue
        places.append(place)
    command = [sys.executable, "-c", UNFOLD, *map(str, places)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    assert places
    return done.stdout.split()


def with_constant_nodes() -> ModelProto:
    """Conv and BatchNormalization before a Reshape, and Constants of numbers and of text."""
    graph, *_ = conv_bn(channels=256)  # a weight that is written piece by piece
    tensors = {
        "raw": numpy_helper.from_array(np.array([0, -1], np.int64)),
        "listed": onnx.helper.make_tensor("", TensorProto.FLOAT, [2], [0.5, 2.0]),
        "text": onnx.helper.make_tensor("", TensorProto.STRING, [1], [b"text"]),
    }
    for name, tensor in tensors.items():
        graph.nodes.append(onnx.helper.make_node("Constant", [], [name], value=tensor))
    graph.output(graph.node("Reshape", ["y", "raw"], "z"), [None, None])
    graph.output("listed", [2])
    graph.outputs.append(onnx.helper.make_tensor_value_info("text", TensorProto.STRING, [1]))
    return graph.model()


def test_models_with_constant_nodes_come_back_in_another_process(tmp_path: Path) -> None:
    assert differing_elsewhere([("constants", with_constant_nodes())], tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("corpus", ["zoo", harness.SHARED_MODELS])
def test_models_come_back_in_another_process(corpus: str, tmp_path: Path) -> None:
    shared = [path for path in harness.shared_models() if path.stat().st_size < 4 << 20]
    corpora = {
        "zoo": islice(zoo.models(), 0, None, 8),
        "shared models": ((path.stem, onnx.load(path)) for path in shared),
    }
    assert differing_elsewhere(list(corpora[corpus]), tmp_path) == []


def narrowed(model: ModelProto, dtype: np.dtype) -> ModelProto:
    """A copy in which every tensor of float32 has another element type."""
    narrow = copy.deepcopy(model)
    kind = onnx.helper.np_dtype_to_tensor_dtype(dtype)
    for tensor in narrow.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(
                numpy_helper.from_array(numpy_helper.to_array(tensor).astype(dtype), tensor.name)
            )
    for info in (*narrow.graph.input, *narrow.graph.output, *narrow.graph.value_info):
        if info.type.tensor_type.elem_type == TensorProto.FLOAT:
            info.type.tensor_type.elem_type = kind
    return narrow


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.parametrize("folder", ["digits", "exported", "legacy_bn", "real"])
def test_shared_models_come_back(folder: str, tmp_path: Path) -> None:
    for path in harness.shared_models(folder):
        place = tmp_path / path.name
        place.mkdir()
        back = through_files(path, place)
        assert graph_digest(back, place) == graph_digest(harness.load(path), path.parent), path.name


@pytest.mark.parametrize("path", LIGHT, ids=lambda path: path.name)
def test_light_models_come_back(path: Path, tmp_path: Path) -> None:
    assert through_files(path, tmp_path).SerializeToString() == path.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_graphs_come_back(block: int) -> None:
    for seed in range(FIRST + block, FIRST + EXAMPLES, BLOCKS):
        dtype = DTYPES[seed // BLOCKS % len(DTYPES)]
        model = grow(seed, F64) if dtype is F64 else narrowed(grow(seed, F32), dtype)
        result = irc.compile(model, PIPELINES[seed % len(PIPELINES)])
        back = unfold(
            result.model,
            FoldMap(json.loads(json.dumps(result.fold_map.data)), result.fold_map.arrays),
        )
        assert back.SerializeToString(deterministic=True) == model.SerializeToString(
            deterministic=True
        ), seed


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_folded_weight_comes_back_by_its_factor(dtype: np.dtype) -> None:
    graph, *_ = conv_bn(dtype=dtype)
    graph.output("y")
    model = graph.model()
    result = irc.compile(model)
    recipes = result.fold_map.data["restore"]["tensors"].values()
    assert sum("base" in recipe for recipe in recipes) == 1
    assert unfold(result.model, result.fold_map) == model


def test_what_a_factor_does_not_give_back_is_kept() -> None:
    """Channels with a scale of zero, and numbers that underflow."""
    graph = Graph()
    x = graph.input("x", (2, 3, 8, 8))
    weight = np.random.default_rng(0).normal(size=(64, 3, 3, 3)).astype(np.float32)
    weight[5, 0, 0, 0] = np.float32(1e-44)
    weight[6, 0, 0, 0] = -0.0
    scale = np.linspace(0.001, 2, 64)
    scale[3] = 0
    y = graph.node("Conv", [x, graph.initializer(weight, "w")])
    graph.output(
        graph.node("Mul", [y, graph.initializer(scale.reshape(-1, 1, 1).astype(np.float32))])
    )
    model = graph.model()
    result = irc.compile(model)
    (recipe,) = (r for r in result.fold_map.data["restore"]["tensors"].values() if "base" in r)
    assert result.fold_map.arrays.get(recipe["exceptions"]).size >= 27
    assert unfold(result.model, result.fold_map) == model


def test_tensors_in_any_field_come_back(tmp_path: Path) -> None:
    model = onnx.load(EXAMPLE)
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        tensor.ClearField("raw_data")
        tensor.float_data.extend(array.ravel().tolist())
    onnx.save(model, tmp_path / "typed.onnx")
    assert graph_digest(through_files(tmp_path / "typed.onnx", tmp_path)) == graph_digest(model)


@pytest.mark.parametrize("there", ["same", "other"])
def test_external_data_stay_outside_unless_they_were_folded(there: str, tmp_path: Path) -> None:
    source = tmp_path / "in.onnx"
    harness.save_external(onnx.load(EXAMPLE), source, "in.bin")
    target = tmp_path if there == "same" else tmp_path / "out"
    target.mkdir(exist_ok=True)
    (target / "in.bin").exists() or (target / "in.bin").write_bytes(b"something else")
    back = through_files(source, target)
    outside = {
        tensor.name
        for tensor in back.graph.initializer
        if tensor.data_location == TensorProto.EXTERNAL
    }
    assert "head/fc2.weight" in outside
    assert "stem/conv.weight" not in outside
    assert graph_digest(back, target) == graph_digest(onnx.load(EXAMPLE))


def test_a_map_of_another_model_is_refused() -> None:
    first, second = irc.compile(EXAMPLE), irc.compile(conv_bn()[0].model())
    with pytest.raises(
        FoldMapError, match="the fold map belongs to another model, or the model was changed since"
    ):
        unfold(second.model, first.fold_map)


def test_a_changed_map_is_refused() -> None:
    result = irc.compile(EXAMPLE)
    fold_map = FoldMap(copy.deepcopy(result.fold_map.data), result.fold_map.arrays)
    tensors = fold_map.data["restore"]["tensors"]
    first, second = [digest for digest, recipe in tensors.items() if "data" in recipe][:2]
    tensors[first] = tensors[second]
    with pytest.raises(FoldMapError, match="the restored model is not the source model"):
        unfold(result.model, fold_map)
    del tensors[second]
    with pytest.raises(
        FoldMapError,
        match="the source model in the fold map cannot be restored: there is no recipe for",
    ):
        unfold(result.model, fold_map)


def test_a_module_from_text_has_no_source() -> None:
    from irc.ir.text.printer import side_data

    source = irc.load(EXAMPLE)
    result = irc.compile(irc.parse(str(source), data=side_data(source)))
    with pytest.raises(FoldMapError, match="holds no source model"):
        unfold(result.model, result.fold_map)


def test_staleness_is_told_layer_by_layer() -> None:
    result = irc.compile(EXAMPLE)
    fresh = check(result.model, result.fold_map)
    assert (fresh.same, fresh.layers, fresh.tensors) == (True, (), ())
    changed = copy.deepcopy(result.model)
    layer = result.fold_map.layers[2]
    weight = next(
        tensor for tensor in changed.graph.initializer if tensor.name == layer["weight"]["name"]
    )
    weight.CopyFrom(
        numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(2), weight.name)
    )
    stale = check(changed, result.fold_map)
    assert (stale.same, stale.layers, stale.tensors) == (False, (layer["node"]["name"],), ())
