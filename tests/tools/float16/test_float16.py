"""`irc compile --float16` and `irc.to_float16`, from outside: what stays float32 and why, what is
refused, and the judgement of the results.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import irc
import numpy as np
import onnx
import pytest
from graphs import Array, Graph, is_valid
from irc.frontends.onnx import from_model
from irc.passes.float16.conversion import conversion
from irc.result import Result
from irc.tools.cli.main import main
from irc.tools.float16.emulation import emulated
from irc.tools.verify.runner import Runner
from onnx import ModelProto, TensorProto, numpy_helper

RNG = np.random.default_rng(7)
DATA = RNG.standard_normal((10, 8)).astype(np.float32)


def grown(by: float) -> ModelProto:
    """Return two dense layers, between which values are about as large as `by`, and a third."""
    graph = Graph()
    x = graph.input("x", ["N", 8])
    weights = [
        graph.initializer(array.astype(np.float32), name)
        for array, name in (
            (np.eye(8) * by, "w1"),
            (np.eye(8) / by, "w2"),
            (np.ones((8, 32)), "w3"),
        )
    ]
    graph.node("MatMul", [x, weights[0]], "a", "first")
    graph.node("Tanh", ["a"], "t", "tanh")
    graph.node("Mul", ["a", "t"], "p", "product")
    graph.node("MatMul", ["p", weights[1]], "b", "second")
    graph.node("MatMul", ["b", weights[2]], "y", "third")
    graph.output("y", ["N", 32])
    return graph.model()


def reasons(found: irc.HalfModel) -> dict[str, str]:
    return {each.name: each.reason for each in found.stayed}


def test_values_that_overflow_stay_float32() -> None:
    found = irc.to_float16(grown(1e5), inputs={"x": DATA}, keep_float32=[])
    assert found.beyond
    assert {"first", "tanh", "product", "second"} == set(reasons(found))
    assert all(why.startswith("range exceeds float16 by 2^") for why in reasons(found).values())
    assert found.is_finite
    assert found.fidelity[0].sqnr > 60
    assert is_valid(found.model) is None


def test_values_within_the_margin_do_not() -> None:
    found = irc.to_float16(grown(100.0), inputs={"x": DATA})
    assert not found.beyond
    assert not found.stayed
    assert found.converted == 5
    assert found.fidelity[0].sqnr > 60
    (entry, exit_) = [node for node in found.model.graph.node if node.op_type == "Cast"]
    assert (list(entry.input), list(exit_.output)) == (["x"], ["y"])


def test_the_margin_decides() -> None:
    most = float(np.abs(DATA).max())
    model = grown(60000 / most)
    assert not irc.to_float16(model, inputs={"x": DATA}, margin=0).beyond
    assert irc.to_float16(model, inputs={"x": DATA}).beyond
    with pytest.raises(irc.UsageError, match="the margin is a number of bits from 0 on, not -1"):
        irc.to_float16(model, inputs={"x": DATA}, margin=-1)


def test_operators_are_kept_by_name_result_and_type() -> None:
    for name, kept in (
        ("tanh", {"tanh"}),
        ("t", {"tanh"}),
        ("MatMul", {"first", "second", "third"}),
    ):
        found = irc.to_float16(grown(1.0), inputs={"x": DATA}, keep_float32=[name])
        given = {name for name, why in reasons(found).items() if why == "kept by the user"}
        assert given == kept
    with pytest.raises(irc.UsageError, match="no operator, result or operator type 'tanj'"):
        irc.to_float16(grown(1.0), inputs={"x": DATA}, keep_float32=["tanj"])


def test_ranges_are_predicted_without_samples() -> None:
    found = irc.to_float16(grown(1.0), input_ranges=(-3.0, 3.0))
    assert found.is_predicted
    assert not found.stayed
    assert "generated within the ranges" in found.measured_on
    assert irc.to_float16(grown(1.0), input_ranges=(-1e6, 1e6)).stayed


def test_an_input_of_unknown_range_is_refused() -> None:
    with pytest.raises(
        irc.UsageError, match=r"nothing is known of the range of 'x': give --inputs"
    ):
        irc.to_float16(grown(1.0))


def test_a_row_that_is_masked_throughout_is_finite() -> None:
    graph = Graph()
    x = graph.input("x", ["N", 4])
    m = graph.input("m", ["N", 4])
    low = graph.initializer(np.array(np.finfo(np.float32).min), "low")
    one = graph.initializer(np.array(1.0, np.float32), "one")
    graph.node("Sub", [one, m], "absent")
    graph.node("Mul", ["absent", low], "mask")
    graph.node("Add", [x, "mask"], "scores")
    graph.node("Softmax", ["scores"], "y", axis=-1)
    graph.output("y", ["N", 4])
    scores = np.array([[-100.0, -90, -95, -99]] * 5, np.float32)
    mask = np.array([[0, 0, 0, 0], [1, 0, 1, 0], [0, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 1]])
    samples = {"x": scores, "m": mask.astype(np.float32)}
    found = irc.to_float16(graph.model(), inputs=samples)
    assert not found.stayed
    assert found.is_finite
    assert [each.note for each in found.constants] == ["a mask"]


def test_results_are_rounded_one_by_one() -> None:
    """The emulated model has the bits of numpy's float16, whatever the runtime fuses."""
    graph = Graph()
    x = graph.input("x", [64])
    for i, (op, source) in enumerate((("Mul", x), ("Add", "r0"), ("Mul", "r1"))):
        constant = graph.initializer(np.array(1.1 + i, np.float32), f"c{i}")
        graph.node(op, [source, constant], f"r{i}")
    graph.output("r2", [64])
    module = from_model(graph.model())
    irc.compile(module, "ConvertToFloat16")
    data = RNG.standard_normal(64).astype(np.float32)
    (found,) = Runner(emulated(Result(module)), Path()).run(["r2"], {"x": data})
    half = data.astype(np.float16)
    expected = (half * np.float16(1.1) + np.float16(2.1)) * np.float16(3.1)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected.astype(np.float32))


def saved(tmp_path: Path, model: ModelProto, data: Array = DATA) -> list[str]:
    onnx.save(model, tmp_path / "model.onnx")
    np.savez(tmp_path / "samples.npz", x=data)
    return [
        "compile",
        str(tmp_path / "model.onnx"),
        "-o",
        str(tmp_path / "half.onnx"),
        "--float16",
        "--inputs",
        str(tmp_path / "samples.npz"),
    ]


def test_the_command_writes_model_and_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = saved(tmp_path, grown(1e5))
    assert main([*command, "--json", str(tmp_path / "report.json")]) == 0
    model = onnx.load(tmp_path / "half.onnx")
    kinds = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    assert kinds == {"w1": TensorProto.FLOAT, "w2": TensorProto.FLOAT, "w3": TensorProto.FLOAT16}
    text = capsys.readouterr().err
    assert "1 of 5 operators float16, 80.0 % float32" in text
    assert "stays float32   MatMul 'first', Tanh 'tanh', Mul 'product' and 1 more: range" in text
    document: dict[str, Any] = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert document["float16"]["converted"] == 1
    assert {each["op_type"] for each in document["float16"]["stayed"]} == {"MatMul", "Tanh", "Mul"}


def test_the_command_converts_the_interface(tmp_path: Path) -> None:
    assert main([*saved(tmp_path, grown(1.0)), "--io", "float16", "-q"]) == 0
    model = onnx.load(tmp_path / "half.onnx")
    ends = [*model.graph.input, *model.graph.output]
    assert {info.type.tensor_type.elem_type for info in ends} == {TensorProto.FLOAT16}
    assert is_valid(model) is None


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--verify"], "--float16 compares the result itself"),
        (["--keep-float32", "nothing"], "no operator, result or operator type 'nothing'"),
    ],
)
def test_options_that_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], extra: list[str], message: str
) -> None:
    assert main([*saved(tmp_path, grown(1.0)), *extra]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "half.onnx").exists()


def test_options_of_float16_need_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(grown(1.0), tmp_path / "model.onnx")
    for option in (["--io", "float16"], ["--keep-float32", "tanh"], ["--range", "a=0:1"]):
        assert main(["compile", str(tmp_path / "model.onnx"), *option]) == 2
        assert f"{option[0]} needs --float16" in capsys.readouterr().err


def test_a_float16_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = grown(1.0)
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor).astype(np.float16)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.elem_type = TensorProto.FLOAT16
    assert main(saved(tmp_path, model, DATA.astype(np.float16))) == 1
    assert "the model has 16-bit floats already" in capsys.readouterr().err


def test_inputs_with_a_default_need_no_range() -> None:
    model = grown(1.0)
    model.graph.input.append(onnx.helper.make_tensor_value_info("w1", TensorProto.FLOAT, [8, 8]))
    found = irc.to_float16(model, input_ranges={"x": (-3.0, 3.0)})
    assert not found.stayed
    (given,) = [info for info in found.model.graph.input if info.name == "w1"]
    assert given.type.tensor_type.elem_type == TensorProto.FLOAT


def test_functions_are_inlined_and_bodies_are_walls() -> None:
    model = grown(1.0)
    body = onnx.helper.make_graph(
        [onnx.helper.make_node("Add", ["b", "b"], ["inner"])],
        "branch",
        [],
        [onnx.helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)],
    )
    low = numpy_helper.from_array(np.array(-1e9, np.float32), "low")
    model.graph.initializer.append(low)
    branches = {"then_branch": body, "else_branch": body}
    model.graph.node[3].output[0] = "b"
    asked = [
        onnx.helper.make_node("ReduceMax", ["x"], ["top"], "top", keepdims=0),
        onnx.helper.make_node("Greater", ["top", "low"], ["yes"], "asks"),
        onnx.helper.make_node("If", ["yes"], ["c"], "choice", **branches),
    ]
    for node in reversed(asked):
        model.graph.node.insert(4, node)
    imports = [onnx.helper.make_opsetid("", model.opset_import[0].version)]
    double = onnx.helper.make_node("Add", ["u", "u"], ["v"], "sum")
    function = onnx.helper.make_function("local", "Double", ["u"], ["v"], [double], imports)
    model.functions.append(function)
    model.opset_import.append(onnx.helper.make_opsetid("local", 1))
    call = onnx.helper.make_node("Double", ["c"], ["d"], "call", domain="local")
    model.graph.node.insert(7, call)
    model.graph.node[8].input[0] = "d"
    model.ir_version = 10
    found = irc.to_float16(model, inputs={"x": DATA}, passes="none")
    assert ("choice", "an operator with a body") in [
        (each.name, each.reason) for each in found.stayed
    ]
    assert not found.model.functions
    assert found.is_finite
    assert is_valid(found.model) is None


def test_passes_alone_know_statistics() -> None:
    graph = Graph()
    x = graph.input("x", [2, 3, 4, 4])
    weight = graph.initializer(graph.random(4, 3, 1, 1), "w")
    graph.node("Conv", [x, weight], "c", "conv")
    gamma, beta = np.full(4, 3e4, np.float32), np.zeros(4, np.float32)
    mean, var = np.zeros(4, np.float32), np.ones(4, np.float32)
    numbers = [graph.initializer(array) for array in (gamma, beta, mean, var)]
    graph.node("BatchNormalization", ["c", *numbers], "n", "norm")
    graph.node("Relu", ["n"], "r", "relu")
    graph.node("Tanh", ["n"], "t", "tanh")
    graph.node("Conv", ["r", graph.initializer(graph.random(2, 4, 1, 1), "v")], "y", "last")
    graph.output("y", [2, 2, 4, 4])
    graph.output("t", [2, 4, 4, 4])
    module = from_model(graph.model())
    irc.compile(module, "default,ScaleByPowersOfTwo,ConvertToFloat16")
    stayed = {each.name: each.reason for each in conversion(module).stayed}
    assert stayed["conv"] == "range exceeds float16 by 2^2"
    assert stayed["tanh"] == "range exceeds float16 by 2^2"


def test_a_result_in_doubt_is_warned_of() -> None:
    """Samples that say nothing of the data: one channel is never there."""
    model, quiet = grown(100.0), DATA.copy()
    quiet[:8] = 1e-3
    quiet[4] = quiet[9] = 1e6
    found = irc.to_float16(model, inputs={"x": quiet[[0, 1, 2, 3, 9]]}, keep_float32=[])
    assert not found.is_finite
    (warning,) = found.warnings
    assert "the result 'y' is not finite" in warning


def test_the_source_comes_back_from_the_fold_map(tmp_path: Path) -> None:
    command = saved(tmp_path, grown(1e5))
    fold_map = ["--fold-map", str(tmp_path / "map.json"), "--keep-bits", "-q"]
    assert main([*command, *fold_map]) == 0
    back = [str(tmp_path / name) for name in ("half.onnx", "map.json", "back.onnx")]
    assert main(["unfold", *back[:2], "-o", back[2]]) == 0
    assert Path(back[2]).read_bytes() == (tmp_path / "model.onnx").read_bytes()


def test_operators_that_passes_leave_alone_stay_float32(tmp_path: Path) -> None:
    command = [*saved(tmp_path, grown(1.0)), "--keep", "tanh", "--passes", "none"]
    report = tmp_path / "report.json"
    assert main([*command, "--json", str(report), "-q"]) == 0
    (stayed,) = json.loads(report.read_text("utf-8"))["float16"]["stayed"]
    assert (stayed["node"], stayed["reason"]) == ("tanh", "it is to be kept")
    assert is_valid(onnx.load(tmp_path / "half.onnx")) is None
