"""`irc align` finds what stands for a tensor: by name, by the fold map, by structure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import irc
import numpy as np
import onnx
import pytest
from graphs import F32, Graph, batch_norm
from irc.tools.cli.main import main
from irc.tools.verify.alignment import Alignment, align
from irc.tools.verify.comparison import Comparison
from irc.tools.verify.correspondence import find_counterparts
from onnx import ModelProto, numpy_helper
from verification import text

TWINS = """g (float[2,4] x) => (float[2,4] y) <float[4,4] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}> {
    a = MatMul(x, w) r1 = Relu(a) r2 = Relu(a) s = Sigmoid(r2) i = Identity(s) y = Add(r1, i) }"""


def renamed(model: ModelProto, *, prefix: str = "other.") -> ModelProto:
    """The model with other names for all that is neither input nor result nor constant."""
    other = ModelProto()
    other.CopyFrom(model)
    kept = {info.name for info in (*model.graph.input, *model.graph.output)}
    made = {name for node in model.graph.node for name in node.output} - kept
    for node in other.graph.node:
        for names in (node.input, node.output):
            names[:] = [prefix + name if name in made else name for name in names]
    return other


def found(
    first: ModelProto, second: ModelProto, fold_map: Any = None
) -> dict[str, tuple[str, str]]:
    made = find_counterparts(first, Path(), second, Path(), fold_map)
    return {name: (other.name, other.by) for name, other in made.items()}


def aligned(first: ModelProto, second: ModelProto, fold_map: Any = None) -> Alignment:
    return align(Comparison(first), second, Path(), fold_map)


def test_a_renamed_model_is_compared_tensor_by_tensor() -> None:
    model = text(TWINS)
    names = {name: (f"other.{name}", "structure") for name in ("a", "r1", "r2", "s", "i")}
    assert found(model, renamed(model)) == {**names, "y": ("y", "name")}
    alignment = aligned(model, renamed(model))
    assert {row.tensor for row in alignment.differences} == {*names, "y"}
    assert alignment.alone == ()
    assert alignment.first_divergence is None


def test_merged_tensors_share_a_counterpart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(text(TWINS), tmp_path / "a.onnx")
    merged = text(
        TWINS.replace("r2 = Relu(a) ", "").replace("Sigmoid(r2)", "Sigmoid(r1)").replace("i = Identity(s) ", "")
        .replace("r1, i", "r1, s")
    )  # fmt: skip
    onnx.save(merged, tmp_path / "b.onnx")
    rows = tmp_path / "rows.json"
    assert (
        main(["align", str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx"), "--json", str(rows)])
        == 0
    )
    made = {
        row["tensor"]: (row["counterpart"], row["by"])
        for row in json.loads(rows.read_text())["rows"]
    }
    assert made["r1"] == ("r1", "name")
    assert made["r2"] == ("r1", "structure")
    assert made["i"] == ("s", "structure")
    out = capsys.readouterr().out
    assert "r1 (structure)" in out
    assert "only in the first" not in out


@pytest.mark.parametrize(
    ("old", "new", "lost"),
    [
        ("15,16", "15,17", {"a", "r1", "r2", "s", "i"}),
        ("Sigmoid(r2)", "Elu<alpha = 0.5>(r2)", {"s", "i"}),
    ],
)
def test_what_computes_something_else_is_no_counterpart(old: str, new: str, lost: set[str]) -> None:
    other = renamed(text(TWINS.replace(old, new)))
    assert {"a", "r1", "r2", "s", "i", "y"} - found(text(TWINS), other).keys() == lost


def test_random_operators_are_no_counterparts() -> None:
    body = "g (float[2] x) => (float[2] y) { r = RandomUniformLike(x) s = Sin(x) y = Add(s, s) }"
    assert "r" not in found(text(body), renamed(text(body)))
    assert "s" in found(text(body), renamed(text(body)))


def test_another_opset_computes_something_else() -> None:
    body = "g (float[2,3,4] x) => (float[2,3,4] y) { s = Softmax<axis = 1>(x) y = Neg(s) }"
    assert "s" not in found(text(body, 12), renamed(text(body, 13)))
    assert found(text(body, 13), renamed(text(body, 13)))["s"] == ("other.s", "structure")


def folded_model() -> ModelProto:
    graph = Graph(dtype=F32)
    x = graph.input("x", ["N", 3, 5, 5])
    hidden = graph.node("Conv", [x, graph.initializer(graph.random(4, 3, 3, 3), "w")], "c")
    hidden = graph.batch_norm(hidden, batch_norm(4, 1), "b")
    graph.output(graph.node("Identity", [hidden], "y"))
    return graph.model()


def test_the_fold_map_says_what_a_layer_stands_for() -> None:
    model = folded_model()
    result = irc.compile(model)
    assert [list(node.output) for node in result.model.graph.node] == [["y"]]
    assert found(model, result.model, result.fold_map) == {"b": ("y", "map"), "y": ("y", "name")}
    alignment = aligned(model, result.model, result.fold_map)
    assert {row.tensor for row in alignment.differences} == {"b", "y"}
    assert [name for name, _ in alignment.alone] == ["c"]
    other = ModelProto()
    other.CopyFrom(result.model)
    bias = other.graph.initializer[-1]
    bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias) + np.float32(0.1), bias.name))
    first = aligned(model, other, result.fold_map).first_divergence
    assert first is not None
    assert first.tensor == "b"


def test_a_layer_whose_numbers_were_changed_later_stands_for_nothing() -> None:
    """An equalized convolution holds what no tensor of the source does."""
    graph = Graph(dtype=F32)
    hidden = graph.input("x", ["N", 3, 9, 9])
    for i in range(2):
        weight = graph.initializer(graph.random(3, 3, 3, 3), f"w{i}")
        hidden = graph.batch_norm(
            graph.node("Conv", [hidden, weight], f"c{i}"), batch_norm(3, i), f"b{i}"
        )
        hidden = graph.node("Relu", [hidden], f"r{i}")
    graph.output(hidden)
    model = graph.model()
    result = irc.compile(model, "default,CrossLayerEqualization,FoldConstant")
    assert "map" not in {by for _, by in found(model, result.model, result.fold_map).values()}
    assert aligned(model, result.model, result.fold_map).first_divergence is None


NUMBERED = """g (float[2,3,5,5] x) => (float[2,4,1,1] y) {{
    {} t2 = Relu({}) t3 = Conv(t2, v) t4 = Relu(t3) y = GlobalAveragePool(t4) }}"""


def numbered() -> tuple[ModelProto, ModelProto]:
    """A model, and the right result of a tool that folds and keeps the name before."""
    rng = np.random.default_rng(0)
    w, v = rng.standard_normal((4, 3, 3, 3)), rng.standard_normal((4, 4, 3, 3))
    scale, shift = 0.5 + rng.random(4), rng.standard_normal(4)
    first = text(
        NUMBERED.format(
            "t0 = Conv(x, w) t1 = BatchNormalization<epsilon = 0.0>(t0, s, b, zero, one)", "t1"
        )
    )
    second = text(NUMBERED.format("t0 = Conv(x, w, b)", "t0"))
    arrays = {"w": w, "v": v, "s": scale, "b": shift, "zero": np.zeros(4), "one": np.ones(4)}
    for model, own in (
        (first, arrays),
        (second, {"w": w * scale.reshape(4, 1, 1, 1), "v": v, "b": shift}),
    ):
        tensors = [
            numpy_helper.from_array(array.astype(np.float32), name) for name, array in own.items()
        ]
        model.graph.initializer.extend(tensors)
    return first, second


def test_a_name_that_another_tool_uses_again_accuses_nothing() -> None:
    first, second = numbered()
    alignment = aligned(first, second)
    assert alignment.first_divergence is None
    assert {row.tensor for row in alignment.differences} == {"t2", "t3", "t4", "y"}
    assert dict(alignment.alone) == {"t0": "t0 is another tensor there", "t1": ""}


@pytest.mark.parametrize(
    ("place", "blamed"), [("w", {"t0", "t2"}), ("b", {"t0", "t2"}), ("v", {"t3"})]
)
def test_faults_of_such_a_model_are_found_all_the_same(place: str, blamed: set[str]) -> None:
    first, second = numbered()
    tensor = next(tensor for tensor in second.graph.initializer if tensor.name == place)
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) + np.float32(0.1), place))
    found = aligned(first, second).first_divergence
    assert found is not None
    assert found.tensor in blamed


def test_with_a_fold_map_a_name_is_a_promise() -> None:
    """irc keeps a name for the same value alone."""
    first, second = numbered()
    found = aligned(first, second, irc.compile(first).fold_map).first_divergence
    assert found is not None
    assert found.tensor == "t0"


def test_exchanged_names_are_told_by_structure() -> None:
    body = (
        "g (float[2,4] x) => (float[2,4] y) {{ {0} = Relu(x) {1} = Sigmoid(x) y = Sub({0}, {1}) }}"
    )
    first, second = text(body.format("a", "b")), text(body.format("b", "a"))
    assert found(first, second) == {
        "a": ("b", "structure"),
        "b": ("a", "structure"),
        "y": ("y", "name"),
    }
    assert aligned(first, second).first_divergence is None


def test_a_small_fault_is_no_other_tensor() -> None:
    """It fades on its way to the next tensor that can be compared, but not at once."""
    body = (
        "g (float[2,4] x) => (float[2,4] y) <float k = {{{}}}> {{ a = Mul(x, k) {} = Neg(a) y ="
        " Mul(c, c) }}"
    )
    first = text(body.format("1.0", "c"))
    second = text(body.format("1.00002", "c"))
    found = aligned(first, second).first_divergence
    assert found is not None
    assert found.tensor == "a"


@pytest.mark.parametrize("ir_version", [3, 8])
def test_initializers_that_are_inputs_are_equal_if_their_values_are(ir_version: int) -> None:
    """Below IR version 4 every initializer is an input, and a folded weight keeps its name."""
    body = (
        "g (float[2,4] x, float[4] k) => (float[2,4] y) <float[4] k = {{{}}}> {{ {} y = Relu({}) }}"
    )
    first = text(body.format("1, 2, 3, 4", "a = Mul(x, k) b = Neg(a)", "b"))
    second = text(body.format("-1, -2, -3, -4", "b = Mul(x, k)", "b"))
    same = text(body.format("1, 2, 3, 4", "c = Mul(x, k) b = Neg(c)", "b"))
    for model in (first, second, same):
        model.ir_version = ir_version
    assert "a" not in found(first, second)
    assert found(first, same)["a"] == ("c", "structure")
