"""The default pipeline on real models: what is left, and whether it computes the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import irc
import numpy as np
import onnx
import pytest
from irc.passes import default_pipeline
from onnx import ModelProto

LEFT = {
    "Marabou__batchnorm.onnx": (1, "on the graph's input, and in front of a result"),
    "RITnet__RITnet_best_model.onnx": (4, "behind LeakyRelu, and in front of padded Convs"),
    "burn__batch_norm.onnx": (1, "on the graph's input, and in front of a result"),
    "qonnx__quant_model.onnx": (3, "behind a Conv whose weight a custom operator computes"),
    "finn__test_brevitas_debug.onnx": (
        3,
        "behind custom operators, whose results only the model declares",
    ),
    "onnxruntime__fuse-matmul-bn-directly-dont-fuse.onnx": (
        1,
        "its channels are not the MatMul's columns",
    ),
    "onnxruntime__fuse-matmul-bn-only-reshape.onnx": (
        1,
        "its channels are parts of the MatMul's columns and rows",
    ),
    "onnxruntime__fuse-matmul-bn-only-transpose.onnx": (1, "its channels are the MatMul's rows"),
}
"""BatchNormalization nodes that stay in the real models with initializers frozen, and where they
stand.
"""

KNOWN_BETTER = {
    "Peppa-Facial-Landmark-Py__faceboxes.onnx",
    "Peppa-Facial-Landmark-Py__slim_160.onnx",
    "gtcrn__gtcrn.onnx",
}
"""Models in which onnx infers static shapes only once the shape arithmetic of the first compile is
gone.
"""


def path_id(path: Path) -> str:
    return f"{path.parent.name}-{path.name}"


SHARED = [
    pytest.param(path, id=path_id(path), marks=pytest.mark.shared)
    for path in harness.shared_models()
]
FILES_OF_ONNX = [pytest.param(path, id=path_id(path)) for path in harness.onnx_files()]


SMALLER = {"RITnet__RITnet_best_model.onnx": (1, 1, 80, 128)}
"""The shape of the input of models that compute the same layers at any extent, and for long."""


def with_input(model: ModelProto, shape: tuple[int, ...]) -> ModelProto:
    """A copy of a model of one input, with this shape, and without the types that follow from it."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.value_info[:]
    for info in made.graph.output:
        info.type.tensor_type.ClearField("shape")
    (info,) = made.graph.input
    for dim, extent in zip(info.type.tensor_type.shape.dim, shape, strict=True):
        dim.dim_value = extent
    return made


def inputs_of(model: ModelProto) -> dict[str, Any]:
    try:
        return harness.random_inputs(model, other=32)
    except ValueError as error:
        pytest.skip(str(error))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("path", SHARED + FILES_OF_ONNX)
def test_compiled_model_computes_the_same(path: Path) -> None:
    source: Path | ModelProto = path
    model = harness.load(path)
    if path.name in SMALLER:
        source = model = with_input(model, SMALLER[path.name])
    compiled = irc.compile(source, freeze_initializers=True).model
    assert len(compiled.graph.node) <= len(model.graph.node)
    assert interface(compiled) == interface(model)
    check_well_formed(model, compiled)
    harness.assert_computes_the_same(model, compiled, inputs_of(model))


def interface(model: ModelProto) -> list[bytes]:
    """The outputs as they are declared, extents of -1 (which ONNX does not know) read as open."""
    outputs = []
    for info in model.graph.output:
        copy = onnx.ValueInfoProto()
        copy.CopyFrom(info)
        for dim in copy.type.tensor_type.shape.dim if copy.type.HasField("tensor_type") else ():
            if dim.dim_value < 0:
                dim.ClearField("dim_value")
        outputs.append(copy.SerializeToString())
    return outputs


def check_well_formed(model: ModelProto, compiled: ModelProto) -> None:
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception:  # onnx raises types of its own; such a source promises nothing
        return
    onnx.checker.check_model(compiled, full_check=True)


@pytest.mark.shared
@pytest.mark.slow
def test_batch_norms_left_in_the_real_models(
    record_property: Callable[[str, object], None],
) -> None:
    paths = harness.shared_models("real")
    before = sum(harness.batch_norms(harness.load(path)) for path in paths)
    left: dict[str, int] = {}
    for path in paths:
        result = irc.compile(path, freeze_initializers=True)
        count = harness.batch_norms(result.model)
        if count:
            left[path.name] = count
        kept = [
            s
            for s in result.fold_map.sources
            if s["kind"] == "batch_norm" and s["status"] == "kept"
        ]
        assert len(kept) == count
        assert all(source["reason"] and source["detail"] for source in kept)
    record_property(
        "compared", f"{len(paths)} real models: {before} BatchNormalization -> {sum(left.values())}"
    )
    assert before == 460
    assert left == {name: count for name, (count, _) in LEFT.items()}


@pytest.mark.shared
def test_the_folds_held_back_in_the_real_models_are_those_that_freezing_adds() -> None:
    held: dict[str, int] = {}
    for path in harness.shared_models("real"):
        result = irc.compile(path)
        if result.held_back or result.count()["kept: overridable_initializer"]:
            held[path.name] = result.held_back
            frozen = irc.compile(path, freeze_initializers=True)
            assert frozen.held_back == 0
            assert result.held_back == folded(frozen) - folded(result)
            assert operators(result.model, without=AFFINES) == operators(
                frozen.model, without=AFFINES
            )
    assert held == {
        "Peppa-Facial-Landmark-Py__faceboxes.onnx": 27,
        "Peppa-Facial-Landmark-Py__slim_160.onnx": 25,
        "Peppa-Facial-Landmark-Py__slim_160_latest.onnx": 25,
        "onnxruntime__fuse-conv-bn-add-mul-float16_b4ab82.onnx": 3,
        "qonnx__quant_model.onnx": 0,
    }


AFFINES = {"BatchNormalization", "Mul", "Add"}


def folded(result: irc.Result) -> int:
    return result.count()["folded"] + result.count()["partial"]


def operators(model: ModelProto, without: set[str]) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node if node.op_type not in without)


@pytest.mark.shared
@pytest.mark.slow
def test_what_stays_comes_back_bit_for_bit() -> None:
    for path in harness.shared_models("real"):
        model, result = harness.load(path), irc.compile(path)
        compiled = result.model
        if any(
            entry["kind"] == "batch_norm" and entry["status"] == "merged"
            for entry in result.fold_map.sources
        ):
            continue  # one BatchNormalization went into another
        source = {
            node.input[3]: node for node in model.graph.node if node.op_type == "BatchNormalization"
        }
        weights = {tensor.name: tensor for tensor in model.graph.initializer}
        for operator in model.graph.node:
            if operator.op_type == "Constant":
                weights[operator.output[0]] = onnx.TensorProto()
                weights[operator.output[0]].CopyFrom(operator.attribute[0].t)
                weights[operator.output[0]].name = operator.output[0]
        emitted = {tensor.name: tensor for tensor in compiled.graph.initializer}
        for node in compiled.graph.node:
            if node.op_type == "BatchNormalization":
                assert node.attribute == source[node.input[3]].attribute
                assert [weights.get(name) for name in node.input[1:]] == [
                    emitted.get(name) for name in node.input[1:]
                ]


@pytest.mark.shared
@pytest.mark.slow
def test_compiling_twice_changes_nothing() -> None:
    """Neither the IR, when the pipeline runs again, nor the model, when it is compiled again."""
    for path in harness.shared_models():
        result = irc.compile(path)
        once, text = result.model, str(result.module)
        assert str(default_pipeline()(result.module)) == text, path.name
        if path.name not in KNOWN_BETTER:
            assert irc.compile(once).model == once, path.name


def test_a_result_is_the_last_folded_one_by_name() -> None:
    result = irc.compile(harness.ROOT / "examples" / "digits_cnn.onnx")
    conv = next(node for node in result.model.graph.node if node.name == "stem/conv")
    assert list(conv.output) == ["stem/bn:0"]
    assert np.asarray(conv.input[1:]).tolist() == ["stem/conv.weight", "stem/conv.bias"]
