"""What once went wrong, each under the name of what broke."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import harness
import irc
import numpy as np
import onnx
import pytest
from float64 import evaluate
from harness import EXAMPLE, calls_of
from irc.backends.foldmap.inverse import unfold
from irc.frontends.onnx import from_model
from irc.ir import Graph, Module, Node, TensorType
from irc.ir.tensor import ArrayTensor
from irc.ir.types import DTYPES
from irc.tools.cli.main import main
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

RNG = np.random.default_rng(7)
make = helper.make_node


def info(
    name: str, shape: Sequence[int | str] | None, dtype: int = TensorProto.FLOAT
) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def array(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


def batch_norm(
    x: str, y: str, channels: int, dtype: Any = np.float32
) -> tuple[NodeProto, dict[str, Any]]:
    params = {f"{y}.{key}": array(channels, dtype=dtype) for key in ("gamma", "beta", "mean")}
    params[f"{y}.var"] = np.abs(array(channels, dtype=dtype)) + dtype(0.5)
    return make("BatchNormalization", [x, *params], [y], epsilon=1e-3), params


def model(
    nodes: Sequence[NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    constants: dict[str, Any],
    opset: int = 17,
) -> ModelProto:
    tensors = [
        numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()
    ]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def compiled(
    source: ModelProto, inputs: dict[str, Any], passes: str = "default", bound: float = 1e-5
) -> ModelProto:
    """The compiled model, which onnx accepts and which computes what the source does."""
    result = irc.compile(source, passes).model
    onnx.checker.check_model(result, full_check=True)
    assert harness.worst(harness.run(result, inputs), harness.run(source, inputs)) <= bound
    assert harness.worst(evaluate(result, inputs), evaluate(source, inputs)) <= bound
    return result


@pytest.mark.parametrize("op", ["MatMul", "Conv", "Gemm"])
def test_a_weight_that_is_also_the_data_is_scaled_once(op: str) -> None:
    weight = array(3, 3, 3, 3) if op == "Conv" else array(3, 3)
    inputs = ["W", "W", "W"] if op == "Gemm" else ["W", "W"]
    node, params = batch_norm("m", "y", 3)
    source = model([make(op, inputs, ["m"]), node], [], [info("y", None)], {"W": weight, **params})
    source.graph.output[0].CopyFrom(info("y", [3, 3] if op != "Conv" else [3, 3, 1, 1]))
    compiled(source, {})


def test_a_loop_input_does_not_capture_what_a_pass_made_the_body_read() -> None:
    body = helper.make_graph(
        [make("Identity", ["c"], ["c2"]), make("Add", ["z", "x"], ["s"])],
        "body",
        [info("i", [], TensorProto.INT64), info("c", [], TensorProto.BOOL), info("x", [2])],
        [info("c2", [], TensorProto.BOOL), info("s", [2])],
    )
    nodes = [
        make("Identity", ["x"], ["z"]),
        make("Neg", ["x"], ["w"]),
        make("Loop", ["n", "", "w"], ["y"], body=body),
    ]
    source = model(nodes, [info("x", [2])], [info("y", [2])], {"n": np.int64(3)})
    assert "Identity" not in harness.operators(compiled(source, {"x": array(2)}))


def test_a_name_that_moves_up_is_not_defined_again_in_a_branch() -> None:
    then = helper.make_graph(
        [make("Neg", ["x"], ["y"]), make("Relu", ["y"], ["q"])], "t", [], [info("q", [1, 3, 2, 2])]
    )
    other = helper.make_graph([make("Neg", ["x"], ["r"])], "e", [], [info("r", [1, 3, 2, 2])])
    node, params = batch_norm("c", "y", 4)
    nodes = [
        make("Conv", ["x", "W"], ["c"]),
        make("If", ["on"], ["o"], then_branch=then, else_branch=other),
        node,
    ]
    inputs, outputs = (
        [info("x", [1, 3, 2, 2]), info("on", [], 9)],
        [info("y", [1, 4, 2, 2]), info("o", [1, 3, 2, 2])],
    )
    source = model(nodes, inputs, outputs, {"W": array(4, 3, 1, 1), **params})
    result = compiled(source, {"x": array(1, 3, 2, 2), "on": np.array(True)})
    assert harness.batch_norms(result) == 0


def test_integer_division_by_the_least_integer_is_left_to_the_runtime() -> None:
    least = np.iinfo(np.int64).min
    constants = {"a": np.array([5, -7, 9]), "b": np.array([least, 2, -2])}
    nodes = [make("Div", ["a", "b"], ["c"]), make("Add", ["x", "c"], ["y"])]
    source = model(nodes, [info("x", [3], 7)], [info("y", [3], 7)], constants)
    assert irc.compile(source).model == source


def test_training_info_that_reads_an_intermediate_value_keeps_it() -> None:
    node, params = batch_norm("c", "y", 4)
    nodes = [make("Conv", ["x", "W"], ["c"]), node]
    inputs, outputs = [info("x", [1, 3, 2, 2])], [info("y", [1, 4, 2, 2])]
    source = model(nodes, inputs, outputs, {"W": array(4, 3, 1, 1), **params})
    algorithm = helper.make_graph(
        [make("ReduceSum", ["c"], ["loss"])], "algorithm", [], [info("loss", None)]
    )
    source.training_info.add().algorithm.CopyFrom(algorithm)
    result = irc.compile(source)
    assert result.model == source
    why = "training_info of the model refers to its intermediate value 'c'"
    assert result.warnings == [f"{why}; passes leave the model unchanged"]


@pytest.mark.parametrize("passes", ["default", "SimplifyInference,FoldScaleAxis"])
def test_operators_do_not_rise_for_float64_weights(passes: str) -> None:
    first, params = batch_norm("m1", "b1", 8, np.float64)
    second, more = batch_norm("m2", "b2", 8, np.float64)
    nodes = [make("MatMul", ["x", "W"], ["m1"]), first, make("MatMul", ["b1", "W"], ["m2"]), second]
    constants = {"W": array(8, 8, dtype=np.float64), **params, **more}
    source = model(nodes, [info("x", ["N", 8], 11)], [info("b2", ["N", 8], 11)], constants)
    result = compiled(source, {"x": array(3, 8, dtype=np.float64)}, passes, bound=1e-12)
    assert len(harness.operators(result)) <= 4


def test_unfused_biases_are_written_whatever_the_declared_shape() -> None:
    import zoo

    models = dict(zoo.models())
    for name in ("typical/Conv_11_bias", "typical/Conv_22_newest", "schema/onnx_22_full"):
        if name in models:
            assert irc.compile(models[name], "UnfuseBias").model == models[name], name


def test_the_fold_map_keeps_the_axis_of_a_matmul_that_became_a_gemm() -> None:
    nodes = [
        make("MatMul", ["W", "x"], ["a"]),
        make("Mul", ["a", "s"], ["b"]),
        make("Add", ["b", "c"], ["y"]),
    ]
    constants = {"W": array(4, 3), "s": array(4, 1), "c": array(5)}
    source = model(nodes, [info("x", [3, 5])], [info("y", [4, 5])], constants)
    assert harness.operators(compiled(source, {"x": array(3, 5)})) == ["Gemm"]
    (layer,) = irc.compile(source).fold_map.layers
    assert layer["weight"]["out_axis"] == 0
    assert layer["weight"]["name"] == "W"
    assert layer["folds"][0]["axis"] == 0


def test_nodes_without_results_are_carried_along() -> None:
    body = helper.make_graph([make("Relu", ["x"], ["q"])], "b", [], [info("q", None)])
    nodes = [make("Op", ["x"], [], domain="my", body=body), make("Relu", ["x"], ["y"])]
    source = model(nodes, [info("x", [3])], [info("y", [3])], {})
    source.opset_import.add(domain="my", version=1)
    result = irc.compile(source)
    assert result.model == source
    assert result.fold_map.sources == []


def test_a_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    import os
    import stat
    import threading

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()))
    reader.start()
    assert main(["compile", str(EXAMPLE), "-o", str(pipe), "-q"]) == 0
    reader.join(10)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert harness.batch_norms(onnx.load_model_from_string(received[0])) == 0


@pytest.mark.parametrize("fold_map", ["-", "out.onnx"])
def test_model_and_map_cannot_go_to_one_place(
    fold_map: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["compile", str(EXAMPLE), "-o", "out.onnx", "--fold-map", fold_map]) == 2
    assert not list(tmp_path.iterdir())


def test_closed_streams_are_no_traceback(tmp_path: Path) -> None:
    for streams in (">&-", "2>&-", "<&-"):
        command = f'"{sys.executable}" -m irc compile "{EXAMPLE}" -o "{tmp_path}/o.onnx" {streams}'
        done = subprocess.run(["bash", "-c", command], capture_output=True, check=False)
        assert done.returncode == 0, streams
        assert b"Traceback" not in done.stderr


def test_names_that_are_not_text_are_refused(tmp_path: Path) -> None:
    data = EXAMPLE.read_bytes()
    (tmp_path / "bad.onnx").write_bytes(data.replace(b"stem/conv:0", b"stem\xff\xfeonv:0"))
    with pytest.raises(irc.ModelError, match="not UTF-8 text"):
        irc.load(tmp_path / "bad.onnx")


def test_constant_expressions_cannot_exhaust_the_memory() -> None:
    nodes = [
        make("ConstantOfShape", ["rows"], ["a"]),
        make("ConstantOfShape", ["columns"], ["b"]),
        make("Add", ["a", "b"], ["c"]),
        make("Add", ["x", "c"], ["y"]),
    ]
    constants = {"rows": np.array([1 << 20, 1]), "columns": np.array([1, 1 << 20])}
    source = model(nodes, [info("x", [1])], [info("y", None)], constants)
    assert irc.compile(source).model == source


F32 = TensorType(DTYPES["f32"], (2, 3))


def steps(graph: Graph, count: int, shape: str) -> None:
    """Constant adds: in a chain, or all on one value with every result returned."""
    value = graph.add_input("x", F32)
    value = graph.append(Node("nn.relu", [value], outputs=[("r", F32)])).output
    results = []
    for i in range(count):
        payload = ArrayTensor(np.full(3, np.nan if shape == "refused" else 1.5 + i, np.float32))
        constant = graph.append(
            Node("constant", attrs={"value": payload}, outputs=[(f"c{i}", payload.type)])
        ).output
        made = graph.append(
            Node("add", [value, constant], outputs=[(f"v{i}", F32)], origins=(i,))
        ).output
        results.append(made)
        value = made if shape != "fan" else value
    graph.set_outputs(results if shape == "fan" else [value])


@pytest.mark.parametrize("shape", ["chain", "fan", "refused"])
def test_the_pipeline_visits_a_bounded_number_of_things_per_node(shape: str) -> None:
    """Calls in the default pipeline grow no faster than the graph."""
    counts = []
    for size in (150, 300):
        module = Module(Graph("g", {"": 17}))
        steps(module.graph, size, shape)
        module.next_origin = size
        counts.append(calls_of(partial(irc.passes.default_pipeline(), module)))
    assert counts[1] <= 2.3 * counts[0]


def test_a_model_is_not_changed_by_compiling_it() -> None:
    source = onnx.load(EXAMPLE)
    before = source.SerializeToString(deterministic=True)
    module = from_model(source)
    irc.compile(module)
    text = str(module)
    first, second = irc.emit(module).model, irc.emit(module).model
    assert first == second
    assert str(module) == text
    assert source.SerializeToString(deterministic=True) == before


# declarations that lie


def declared(source: ModelProto, **shapes: Sequence[int | str] | None) -> ModelProto:
    source.graph.value_info.extend(info(name, shape) for name, shape in shapes.items())
    return source


def flattened(*batch: int | str) -> ModelProto:
    """Relu, then a reshape to [extent 0 of the result of Relu, 36]."""
    nodes = [
        make("Relu", ["x"], ["a"]),
        make("Shape", ["a"], ["s"]),
        make("Gather", ["s", "i"], ["d"]),
        make("Concat", ["d", "r"], ["t"], axis=0),
        make("Reshape", ["a", "t"], ["y"]),
    ]
    constants = {"i": np.array([0]), "r": np.array([36])}
    return model(nodes, [info("x", [*batch, 4, 3, 3])], [info("y", ["M", "K"])], constants)


def declares(source: ModelProto) -> list[str]:
    return [item.name for item in source.graph.value_info]


@pytest.mark.parametrize(
    "shape", [[1, 4, 3, 3], [0, 4, 3, 3], ["N", 4, 3], ["N", 4, 3, 0], ["N", 4, 5, 3]]
)
def test_a_value_info_that_lies_is_not_computed_with(shape: list[int | str]) -> None:
    source = declared(flattened("N"), a=shape)
    before = source.SerializeToString(deterministic=True)
    result = irc.compile(source)
    (warning,) = result.warnings
    assert "'a'" in warning
    assert declares(result.model) == []
    for batch in (1, 2, 3):
        inputs = {"x": array(batch, 4, 3, 3)}
        assert harness.worst(harness.run(result.model, inputs), harness.run(source, inputs)) == 0
    assert [node.op_type for node in result.model.graph.node] == ["Relu", "Reshape"]
    assert irc.emit(from_model(source)).model.SerializeToString(deterministic=True) == before
    onnx.checker.check_model(result.model, full_check=True)


@pytest.mark.parametrize("shape", [None, ["N", 4, 3, 3], ["M", 4, 3, "W"], [-1, 4, 3, 3]])
def test_a_value_info_that_may_be_true_stays_without_a_warning(
    shape: list[int | str] | None,
) -> None:
    source = declared(flattened("N"), a=shape)
    result = irc.compile(source)
    assert not result.warnings
    assert declares(result.model) == ["a"]


def test_shapes_of_intermediate_values_of_a_static_model_are_known_without_declarations() -> None:
    result = irc.compile(declared(flattened(2), a=[2, 4, 3, 3])).model
    assert [node.op_type for node in result.graph.node] == ["Relu", "Reshape"]
    (target,) = (numpy_helper.to_array(t).tolist() for t in result.graph.initializer)
    assert target == [2, 36]


def test_a_symbol_that_only_a_declaration_gives_is_no_equation() -> None:
    """Both results of NonZero are declared as long as the batch."""
    nodes = [
        make("NonZero", ["x"], ["i"]),
        make("Transpose", ["i"], ["t"]),
        make("Shape", ["t"], ["s"]),
    ]
    nodes += [make("Expand", ["z", "s"], ["y"])]
    source = model(
        nodes,
        [info("x", ["N"])],
        [info("y", ["N", 1], TensorProto.INT64)],
        {"z": np.zeros((1, 1), np.int64)},
    )
    source.graph.value_info.extend(
        [info("i", [1, "N"], TensorProto.INT64), info("t", ["N", 1], TensorProto.INT64)]
    )
    inputs = {"x": np.float32([0, 1, 0, 2])}
    result = irc.compile(source).model
    assert (
        harness.run(result, inputs)["y"].shape == harness.run(source, inputs)["y"].shape == (2, 1)
    )


@pytest.mark.parametrize("rank", [2, 3])
def test_a_shape_that_only_a_declaration_gives_is_not_computed_with(rank: int) -> None:
    """A declared result of another domain's operator is read by MatMul and Reshape."""
    gamma, params = batch_norm("m", "y", 3)
    nodes = [
        make("Fancy", ["x"], ["f"], domain="com.acme"),
        make("MatMul", ["f", "w"], ["m"]),
        gamma,
        make("Shape", ["f"], ["s"]),
        make("Reshape", ["f", "s"], ["z"]),
    ]
    source = model(
        nodes, [info("x", [2, 3])], [info("y", None), info("z", None)], {"w": array(3, 3), **params}
    )
    source.opset_import.append(helper.make_opsetid("com.acme", 1))
    declared(source, f=[2, 3, 3][:rank])
    result = irc.compile(source)
    left = [node.op_type for node in result.model.graph.node]
    assert left[:3] == ["Fancy", "MatMul", "BatchNormalization"]
    assert declares(result.model) == ["f"]
    assert not result.warnings


def test_the_declared_shape_of_a_result_is_kept_and_not_computed_with() -> None:
    source = flattened("N")
    source.graph.output.append(info("a", [1, 4, 3, 3]))
    result = irc.compile(source).model
    assert result.graph.output == source.graph.output
    (target,) = (
        numpy_helper.to_array(t).tolist() for t in result.graph.initializer if t.dims == [2]
    )
    assert target[0] in (0, -1)


@pytest.mark.parametrize("where", ["body", "function"])
def test_declared_shapes_inside_bodies_and_functions_are_not_computed_with(where: str) -> None:
    inner = flattened("N")
    inner.graph.value_info.append(info("a", [1, 4, 3, 3]))
    if where == "body":
        del inner.graph.node[0]
        loop_inputs = [
            info("iteration", [], TensorProto.INT64),
            info("c", [], TensorProto.BOOL),
            info("a", [1, 4, 3, 3]),
        ]
        nodes = [
            *inner.graph.node,
            make("Identity", ["c"], ["c2"]),
            make("Concat", ["a", "a"], ["a2"], axis=0),
        ]
        nodes.append(make("ReduceSum", ["y"], ["total"], keepdims=0))
        results = [info("c2", [], TensorProto.BOOL), info("a2", [1, 4, 3, 3]), info("total", None)]
        body = helper.make_graph(nodes, "body", loop_inputs, results, inner.graph.initializer)
        outer = [make("Loop", ["n", "", "x"], ["last", "totals"], body=body)]
        source = model(
            outer,
            [info("x", [1, 4, 3, 3])],
            [info("last", None), info("totals", None)],
            {"n": np.int64(3)},
        )
        inputs = {"x": array(1, 4, 3, 3)}
    else:
        consts = [make("Constant", [], [t.name], value=t) for t in inner.graph.initializer]
        opsets = [helper.make_opsetid("", 17)]
        function = helper.make_function(
            "f", "Flat", ["x"], ["y"], [*consts, *inner.graph.node], opsets
        )
        function.value_info.append(info("a", [1, 4, 3, 3]))
        source = model(
            [make("Flat", ["x"], ["y"], domain="f")],
            [info("x", ["N", 4, 3, 3])],
            [info("y", None)],
            {},
        )
        source.opset_import.append(helper.make_opsetid("f", 1))
        source.functions.append(function)
        source.ir_version = 10
        inputs = {"x": array(3, 4, 3, 3)}
    for passes in ("default", "InlineFunctions,default"):
        result = irc.compile(source, passes).model
        assert harness.worst(harness.run(result, inputs), harness.run(source, inputs)) == 0


# other finds in strangers' models


@pytest.mark.parametrize("rank", [63, 64, 65, 70])
@pytest.mark.parametrize("passes", ["none", "default"])
def test_an_initializer_of_more_axes_than_numpy_has(rank: int, passes: str) -> None:
    weight = helper.make_tensor(
        "w", TensorProto.FLOAT, [1] * rank, np.float32([2]).tobytes(), raw=True
    )
    nodes = [make("Reshape", ["w", "s"], ["a"]), make("Add", ["x", "a"], ["y"])]
    source = model(nodes, [info("x", [3])], [info("y", [3])], {"s": np.array([1])})
    source.graph.initializer.append(weight)
    result = irc.compile(source, passes)
    assert harness.run(result.model, {"x": np.zeros(3, np.float32)})["y"].tolist() == [2, 2, 2]
    assert result.fold_map is not None
    assert irc.parse(str(result.module))


def test_a_pad_of_zeros_stays_where_a_window_has_nothing_but_nan() -> None:
    """A MaxPool returns the 0 of a Pad beside NaN, but no number of its own pads."""
    pads = np.array([0, 0, 1, 1, 0, 0, 0, 1])
    nodes = [
        make("Relu", ["x"], ["a"]),
        make("Pad", ["a", "p"], ["b"]),
        make("MaxPool", ["b"], ["y"], kernel_shape=[2, 3]),
    ]
    source = model(nodes, [info("x", [1, 1, 3, 3])], [info("y", [1, 1, 3, 3])], {"p": pads})
    result = irc.compile(source).model
    assert [node.op_type for node in result.graph.node] == ["Relu", "Pad", "MaxPool"]
    inputs = {"x": np.full((1, 1, 3, 3), np.nan, np.float32)}
    assert np.array_equal(
        harness.run(result, inputs)["y"], harness.run(source, inputs)["y"], equal_nan=True
    )


def ceil_pool(op: str, size: int, behind: bool, **attrs: Any) -> ModelProto:
    """A pool that rounds up; onnx compares its reader's shape with its inference."""
    nodes = [make(op, ["x"], ["p"], ceil_mode=1, **attrs)]
    constants: dict[str, Any] = {}
    if behind:
        nodes += [make("Identity", ["k0"], ["k"]), make("Split", ["p", "k"], ["b", "z"], axis=1)]
        nodes += [make("MatMul", ["b", "w"], ["y"])]
        constants = {"k0": np.array([1, 2]), "w": array(1, 2)}
    outputs = [info(name, list("ABCD")) for name in (("y", "z") if behind else ("p",))]
    return model(nodes, [info("x", ["N", 3, 4, size])], outputs, constants, 13)


@pytest.mark.parametrize("op", ["AveragePool", "MaxPool"])
def test_windows_that_start_in_the_padding_are_none(op: str) -> None:
    """onnx infers two columns, the runtime computes one.

    With constant sizes of a Split it refuses the MatMul.
    """
    source = ceil_pool(op, 2, True, kernel_shape=[1, 1], strides=[1, 2])
    result = compiled(source, {"x": array(2, 3, 4, 2)})
    (pool,) = (node for node in result.graph.node if node.op_type == op)
    assert all(attribute.name != "ceil_mode" for attribute in pool.attribute)


@pytest.mark.parametrize("size", range(2, 9))
@pytest.mark.parametrize(
    "attrs",
    [
        {"kernel_shape": [1, 1], "strides": [1, 2]},
        {"kernel_shape": [1, 2], "strides": [2, 3]},
        {"kernel_shape": [2, 2], "strides": [1, 2], "pads": [0, 0, 0, 1]},
        {"kernel_shape": [2, 2], "strides": [1, 2], "pads": [0, 1, 1, 1]},
        {"kernel_shape": [3, 3], "strides": [2, 2]},
    ],
    ids=str,
)
def test_the_extents_of_pools_that_round_up_are_those_of_the_runtime(
    attrs: dict[str, Any], size: int
) -> None:
    source = ceil_pool("MaxPool", size, False, **attrs)
    shape = from_model(source).graph.outputs[0].type.shape  # type: ignore[attr-defined]
    inputs = {"x": array(2, 3, 4, size)}
    found = harness.run(source, inputs)["p"]
    assert tuple(shape[1:]) == found.shape[1:]
    result = irc.compile(source).model
    assert np.array_equal(harness.run(result, inputs)["p"], found)
    rounded = any(attribute.name == "ceil_mode" for attribute in result.graph.node[0].attribute)
    floor = ceil_pool("MaxPool", size, False, **attrs)
    floor.graph.node[0].attribute.pop(
        [a.name for a in floor.graph.node[0].attribute].index("ceil_mode")
    )
    assert rounded == (harness.run(floor, inputs)["p"].shape != found.shape)


@pytest.mark.parametrize("shape", [(1, 5, 2), (3, 5, 2), (2, 3, 5, 2)])
def test_equalization_of_a_matmul_with_a_weight_of_more_than_two_axes(
    shape: tuple[int, ...],
) -> None:
    nodes = [
        make("MatMul", ["x", "w"], ["a"]),
        make("Relu", ["a"], ["r"]),
        make("MatMul", ["r", "v"], ["y"]),
    ]
    first, second = array(4, 5) * np.float32([1, 10, 100, 1000, 0.1]), array(*shape)
    source = model(nodes, [info("x", [3, 4])], [info("y", None)], {"w": first, "v": second})
    passes = "CrossLayerEqualization,HighBiasAbsorption,BiasCorrection,FoldConstant"
    result = irc.compile(source, passes).model
    inputs = {"x": array(3, 4)}
    want = harness.run(source, inputs)["y"]
    assert np.abs(harness.run(result, inputs)["y"] - want).max() <= 1e-5 * np.abs(want).max()
    weights = {
        t.name: numpy_helper.to_array(t).astype(np.float64) for t in result.graph.initializer
    }
    after = np.abs(weights["w"]).max(axis=0)
    beyond = np.abs(weights["v"]).max(
        axis=tuple(axis for axis in range(len(shape)) if axis != len(shape) - 2)
    )
    assert np.allclose(after, beyond, rtol=1e-5)


def test_an_initializer_that_is_declared_again_keeps_its_shape() -> None:
    """As torch's exporter writes it.

    Inference took the declared type, from which the shape was removed.
    """
    nodes = [
        make("Exp", ["x"], ["a"]),
        make("Pow", ["a", "c"], ["b"]),
        make("Einsum", ["b"], ["d"], equation="nij->nji"),
    ]
    nodes += [make("Shape", ["d"], ["s"]), make("Gather", ["s", "i"], ["g"])]
    nodes += [make("Concat", ["g", "k"], ["t"], axis=0), make("Reshape", ["d", "t"], ["y"])]
    constants = {"c": np.float32(2), "i": np.array([1]), "k": np.array([-1])}
    source = declared(
        model(nodes, [info("x", ["N", 3, 4])], [info("y", ["M", "K"])], constants), c=[]
    )
    result = irc.compile(source).model
    assert [node.op_type for node in result.graph.node] == ["Exp", "Pow", "Einsum", "Reshape"]
    inputs = {"x": array(2, 3, 4)}
    assert harness.worst(harness.run(result, inputs), harness.run(source, inputs)) == 0


def test_symbols_pass_quantization_behind_a_reshape() -> None:
    """The batch of the second Reshape is that of the first, of which inference sees a -1 only."""
    nodes = [make("Shape", ["x"], ["s"], start=0, end=1), make("Concat", ["s", "k"], ["t"], axis=0)]
    nodes += [
        make("Reshape", ["x", "t"], ["a"], allowzero=1),
        make("QuantizeLinear", ["a", "scale", "zero"], ["q"]),
    ]
    nodes += [make("DequantizeLinear", ["q", "scale", "zero"], ["d"])]
    nodes += [
        make("Concat", ["s", "l"], ["u"], axis=0),
        make("Reshape", ["d", "u"], ["y"], allowzero=1),
    ]
    constants = {
        "k": np.array([-1, 2]),
        "l": np.array([3, -1]),
        "scale": np.float32(0.5),
        "zero": np.uint8(128),
    }
    source = model(
        nodes, [info("x", ["N", 3, 4])], [info("y", ["N", "A", "B"])], constants, opset=17
    )
    result = irc.compile(source).model
    assert [node.op_type for node in result.graph.node] == [
        "Reshape",
        "QuantizeLinear",
        "DequantizeLinear",
        "Reshape",
    ]
    for batch in (1, 5):
        inputs = {"x": array(batch, 3, 4)}
        assert harness.worst(harness.run(result, inputs), harness.run(source, inputs)) == 0


@pytest.mark.parametrize(
    ("domain", "left"), [("ai.onnx.ml", ["Scaler"]), ("com.acme", ["Scaler", "Cast"])]
)
def test_a_result_that_has_one_type_by_its_schema_needs_no_cast(
    domain: str, left: list[str]
) -> None:
    nodes = [helper.make_node("Scaler", ["x"], ["a"], domain=domain, offset=[1.0], scale=[2.0])]
    nodes += [make("Cast", ["a"], ["b"], to=TensorProto.FLOAT), make("Relu", ["b"], ["y"])]
    source = model(nodes, [info("x", ["N", 4])], [info("y", ["N", 4])], {})
    source.opset_import.append(helper.make_opsetid(domain, 1))
    assert [node.op_type for node in irc.compile(source).model.graph.node] == [*left, "Relu"]


@pytest.mark.parametrize("op", ["Scaler", "Normalizer", "Binarizer"])
@pytest.mark.parametrize(
    ("domain", "left"), [("ai.onnx.ml", ["Gemm"]), ("com.acme", ["MatMul", "Add"])]
)
def test_an_elementwise_operator_of_scikit_learn_keeps_the_shape(
    op: str, domain: str, left: list[str]
) -> None:
    """onnx infers none for it, and a MatMul of unknown rank is no Gemm."""
    attrs: dict[str, Any] = {"offset": [1.0], "scale": [2.0]} if op == "Scaler" else {}
    nodes = [
        helper.make_node(op, ["x"], ["a"], domain=domain, **attrs),
        make("MatMul", ["a", "w"], ["b"]),
    ]
    nodes += [make("Add", ["b", "c"], ["y"])]
    source = model(
        nodes, [info("x", ["N", 4])], [info("y", ["N", 3])], {"w": array(4, 3), "c": array(3)}
    )
    source.opset_import.append(helper.make_opsetid(domain, 1))
    result = irc.compile(source).model
    assert [node.op_type for node in result.graph.node] == [op, *left]
    if domain == "ai.onnx.ml":
        inputs = {"x": array(5, 4)}
        assert harness.worst(harness.run(result, inputs), harness.run(source, inputs)) <= 1e-6


@pytest.mark.parametrize("layout", [0, 1])
def test_symbols_pass_recurrent_layers_and_scatters_behind_a_reshape(layout: int) -> None:
    """The first extent of the last Reshape is the input's; inference sees a -1."""
    nodes = [make("Shape", ["x"], ["s"], start=0, end=1), make("Concat", ["s", "k"], ["t"], axis=0)]
    nodes += [make("Reshape", ["x", "t"], ["a"], allowzero=1)]
    nodes += [make("LSTM", ["a", "w", "r"], ["b"], hidden_size=2, layout=layout)]
    nodes += [make("ScatterND", ["b", "i", "p"], ["c"]), make("Concat", ["s", "l"], ["u"], axis=0)]
    nodes += [make("Reshape", ["c", "u"], ["y"], allowzero=1)]
    constants = {
        "k": np.array([1, -1]),
        "l": np.array([2, -1]),
        "w": array(1, 8, 3),
        "r": array(1, 8, 2),
    }
    constants |= {"i": np.zeros((1, 1), np.int64), "p": array(1, 1, 1, 2)}
    source = model(nodes, [info("x", ["N", 3])], [info("y", ["N", 2, 1])], constants)
    result = irc.compile(source).model
    assert [node.op_type for node in result.graph.node] == [
        "Reshape",
        "LSTM",
        "ScatterND",
        "Reshape",
    ]
    if layout == 0:  # onnxruntime has no other
        inputs = {"x": array(4, 3)}
        assert harness.worst(harness.run(result, inputs), harness.run(source, inputs)) == 0


def test_a_parameter_that_gives_the_result_its_rank_keeps_it() -> None:
    """The scale of a written-out RMSNorm had one axis more, and lost it to a Mul."""
    text = """
        <ir_version: 8, opset_import: ["": 17]>
        g (float[4, 8] x) => (float[1, 4, 8] y) <float eps = {1e-5}> {
            p = Mul(x, x)
            v = ReduceMean <axes = [-1]> (p)
            e = Add(v, eps)
            d = Sqrt(e)
            q = Div(x, d)
            n = Mul(q, gamma)
            y = Mul(n, scale)
        }"""
    source = onnx.parser.parse_model(text)
    tensors = {"gamma": array(1, 1, 8), "scale": array(8) + np.float32(3)}
    source.graph.initializer.extend(
        [numpy_helper.from_array(value, name) for name, value in tensors.items()]
    )
    result = compiled(source, {"x": array(4, 8)})
    assert [node.op_type for node in result.graph.node] == [
        "Mul",
        "ReduceMean",
        "Add",
        "Sqrt",
        "Div",
        "Mul",
    ]


@pytest.mark.parametrize(
    ("data", "left"), [("x", ["Shape", "Expand", "PRelu"]), ("slope", ["PRelu"])]
)
def test_the_data_of_a_prelu_stay_expanded(data: str, left: list[str]) -> None:
    """The slope broadcasts to the data, but not the data to the slope."""
    other = "slope" if data == "x" else "x"
    source = onnx.parser.parse_model(
        f"""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[1, n] {data}, float[m, n] {other}) => (float[m, n] y) {{
            s = Shape({other})
            e = Expand({data}, s)
            y = PRelu({"e, slope" if data == "x" else "x, e"})
        }}"""
    )
    result = compiled(source, {data: array(1, 4), other: array(3, 4)})
    assert [node.op_type for node in result.graph.node] == left


@pytest.mark.parametrize(
    ("end", "count"), [(2**31 - 1, 4), (2**63 - 1, 4), (2**31 - 2, 0), (-(2**63), 4)]
)
def test_a_constant_slice_backward_to_the_greatest_integer_is_that_of_the_runtime(
    end: int, count: int
) -> None:
    bounds = {
        name: np.array([value]) for name, value in {"s": -1, "e": end, "a": 0, "t": -1}.items()
    }
    nodes = [
        make("Slice", ["k", "s", "e", "a", "t"], ["c"]),
        make("Concat", ["c", "x"], ["y"], axis=0),
    ]
    source = model(nodes, [info("x", [4])], [info("y", None)], {"k": array(4), **bounds})
    inputs = {"x": array(4)}
    want = harness.run(source, inputs)["y"]
    assert want.size == 4 + count
    assert np.array_equal(harness.run(irc.compile(source).model, inputs)["y"], want)


@pytest.mark.parametrize(("end", "count"), [(2**31 - 1, 2), (2**63 - 1, 2), (2**31 - 2, 0)])
@pytest.mark.parametrize("as_nodes", [False, True])
def test_a_slice_of_one_backward_to_the_greatest_integer_stays(
    end: int, count: int, as_nodes: bool
) -> None:
    """onnx infers no elements for the first Slice; the second one seemed to take all."""
    bounds = {
        name: np.array([value])
        for name, value in {"s": -1, "e": end, "a": 0, "t": -1, "f": 1, "l": 3}.items()
    }
    nodes = [make("Slice", ["x", "s", "e", "a", "t"], ["c"]), make("Slice", ["c", "f", "l"], ["d"])]
    nodes.append(make("Neg", ["d"], ["y"]))
    if as_nodes:
        nodes = [
            *(make("Constant", [], [name], value_ints=bound) for name, bound in bounds.items()),
            *nodes,
        ]
    source = model(nodes, [info("x", [4])], [info("y", None)], {} if as_nodes else bounds)
    inputs = {"x": array(4)}
    want = harness.run(source, inputs)["y"]
    assert want.size == count
    assert np.array_equal(harness.run(irc.compile(source).model, inputs)["y"], want)


@pytest.mark.parametrize("others", range(3))
def test_folds_of_computed_scales_do_not_count_against_those_held_back(others: int) -> None:
    nodes, last = [make("Conv", ["x", "w"], ["c0"])], "c0"
    for i in range(others):
        nodes += [make("Exp", ["log"], [f"e{i}"]), make("Mul", [last, f"e{i}"], [f"m{i}"])]
        nodes += [make("Conv", [f"m{i}", "w"], [last := f"c{i + 1}"])]
    norm, params = batch_norm(last, "y", 2)
    constants = {"w": array(2, 2, 1, 1), "log": array(2, 1, 1), **params}
    source = model([*nodes, norm], [info("x", [1, 2, 4, 4])], [info("y", [1, 2, 4, 4])], constants)
    source.graph.input.append(info("y.gamma", [2]))
    result = irc.compile(source)
    assert result.held_back == 1
    assert result.count()["folded"] == others


def test_a_call_is_inlined_whose_body_inlines_only_when_it_is_clean() -> None:
    """An Identity beside BatchNormalization kept a function of another opset from inlining."""
    text = """
        <ir_version: 10, opset_import: ["": 15, "d": 1]>
        g (float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] y)
        <float[2, 2, 1, 1] w = {1.0, 2.0, 3.0, 4.0}, float[2] s = {1.0, 2.0}, float[2] b = {0.5, 1.0},
         float[2] m = {0.1, 0.2}, float[2] v = {1.0, 2.0}> {
            c = Conv(x, w)
            y = d.f(c, s, b, m, v)
        }
        <domain: "d", opset_import: ["": 17]>
        f (x, s, b, m, v) => (y) {
            t = BatchNormalization(x, s, b, m, v)
            y = Identity(t)
        }"""
    source = onnx.parser.parse_model(text)
    result = irc.compile(source).model
    assert [node.op_type for node in result.graph.node] == ["Conv"]
    inputs = {"x": array(1, 2, 4, 4)}
    assert harness.worst(harness.run(result, inputs), harness.run(source, inputs)) <= 1e-5


def test_an_input_channel_does_not_vanish_beside_a_bias_that_another_cancels() -> None:
    """Its weight is far below half an ulp of the bias, which the other channel cancels."""
    norm = make("BatchNormalization", ["x", "gamma", "beta", "zero", "one"], ["n"], epsilon=0.0)
    constants = {
        "gamma": np.float32([2e-23, 1]),
        "beta": np.float32([0, 1e-15]),
        "zero": np.zeros(2, np.float32),
        "one": np.ones(2, np.float32),
        "w": np.float32([2e-23, 1]).reshape(1, 2, 1, 1),
    }
    nodes = [norm, make("Conv", ["n", "w"], ["y"])]
    source = model(nodes, [info("x", [1, 2, 1, 1])], [info("y", [1, 1, 1, 1])], constants)
    result = irc.compile(source)
    assert result.count() == {"kept: underflow": 1}


@pytest.mark.parametrize(
    ("bounds", "left"),
    [
        ("lo", ["x", "", "clamped"]),
        ('"", lo', ["x", "clamped"]),
        ("lo, inf", ["x", "infinite", "clamped"]),
        ("ninf, lo", ["x", "clamped", "infinite"]),
        ('"", inf', ["x", "infinite"]),
        ("ninf", ["x", "", "infinite"]),
    ],
)
def test_an_absent_bound_that_changes_sides_stays_absent(bounds: str, left: list[str]) -> None:
    """onnxruntime limits infinities if a bound is absent, not if it is infinite."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 17]> g (float[1,3,4,4] x) => (float[1,2,4,4] y)
        <float lo = {{-1.5}}, float inf = {{inf}}, float ninf = {{-inf}}, float[2,3,1,1] w = {{1, 2, 3, 4, 5, 6}}>
        {{ n = Neg(x)  c = Clip(n, {bounds})  y = Conv(c, w) }}"""
    )
    result = irc.compile(model).model
    assert [node.op_type for node in result.graph.node] == ["Clip", "Conv"]
    values = {
        tensor.name: float(numpy_helper.to_array(tensor).ravel()[0])
        for tensor in result.graph.initializer
    }
    kinds = {name: "clamped" if abs(value) == 1.5 else "infinite" for name, value in values.items()}
    assert [kinds.get(name, name) for name in result.graph.node[0].input] == left


@pytest.mark.parametrize("op", ["subtract", "divide"])
def test_a_parameter_that_is_aligned_at_an_axis_is_written_as_numpy_broadcasts_it(op: str) -> None:
    """Only products and sums were.

    Of text, and of a user's pass, the others came out along the last axis.
    """
    text = f"""module {{ir_version=8, opsets={{"": 15}}}}

graph @main(%x: f32[1,3,3,3]) {{
  %c = constant {{value=f32[3] [2.0, 3.0, 4.0]}}
  %y = {op}(%x, %c) {{axis=1}} : f32[1,3,3,3]
  return(%y)
}}
"""
    (tensor,) = irc.emit(irc.parse(text)).model.graph.initializer
    assert list(tensor.dims) == [3, 1, 1]


@pytest.mark.parametrize("kind", ["complex64", "int32", "string"])
def test_a_bias_of_another_kind_than_floats_is_refused(kind: str) -> None:
    """No runtime takes such a layer.

    Equalization ended with a warning of numpy about the complex numbers.
    """
    graph = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 17]> g (float[1,2,4,4] x) => (float[1,2,4,4] y)
        <float[2,2,1,1] w = {1, 2, 3, 4}, float[2] s = {2, 3}, float[2] b = {1, 2}, float[2] v = {1, 1}>
        { h = Conv(x, w, c)  n = BatchNormalization(h, s, b, b, v)  r = Relu(n)  y = Conv(r, w) }"""
    )
    numbers = {"complex64": [1, 2], "int32": [1, 2], "string": ["a", "b"]}[kind]
    graph.graph.initializer.append(
        helper.make_tensor("c", getattr(TensorProto, kind.upper()), [2], numbers)
    )
    result = irc.compile(graph, "default,CrossLayerEqualization,HighBiasAbsorption")
    assert [node.op_type for node in result.model.graph.node] == [
        "Conv",
        "BatchNormalization",
        "Relu",
        "Conv",
    ]


def test_a_constant_that_is_declared_without_a_shape_is_no_empty_initializer() -> None:
    """dynamo declares Constants so; onnx's checker counted no sizes of a Resize that reads one."""
    text = """<ir_version: 8, opset_import: ["": 18]>
        net (float[N, 2, H, W] x) => (float[N, 2, H, W] y, float[A, B, C, D] z) {
            c = Constant<value_ints = [2]>()
            n = Shape<start = 0, end = 1>(x)
            s = Shape<start = 2>(x)
            t = Add(s, s)
            sizes = Concat<axis = 0>(n, c, t)
            y = Relu(x)
            z = Resize<mode = "nearest">(x, , , sizes)
        }"""
    model = onnx.parser.parse_model(text)
    model.graph.value_info.add(name="c").type.tensor_type.elem_type = TensorProto.INT64
    onnx.checker.check_model(model, full_check=True)
    result = irc.compile(model)
    onnx.checker.check_model(result.model, full_check=True)
    assert not result.model.graph.value_info
    assert unfold(result.model, result.fold_map) == model


@pytest.mark.parametrize("is_function", [True, False])
def test_a_function_with_the_name_of_a_normalization_is_no_normalization(is_function: bool) -> None:
    """A call with training_mode=1 became an InstanceNormalization; the operator does."""
    names = ["x", *"sbmv"]
    body = helper.make_function(
        "",
        "BatchNormalization",
        names,
        ["y"],
        [make("Exp", ["x"], ["y"])],
        [helper.make_opsetid("", 18)],
        ["training_mode"],
    )
    inputs = [info("x", (1, 2, 4)), *(info(name, (2,)) for name in "sbmv")]
    call = make("BatchNormalization", names, ["y"], training_mode=1)
    graph = helper.make_graph([call], "g", inputs, [info("y", (1, 2, 4))])
    model = helper.make_model(
        graph,
        functions=[body] if is_function else [],
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=9,
    )
    kinds = [node.op_type for node in irc.compile(model).model.graph.node]
    assert kinds == ["BatchNormalization" if is_function else "InstanceNormalization"]
