"""`--input-shape` and `input_shapes`: fixed extents of inputs, before anything else is done."""

from __future__ import annotations

import copy
from pathlib import Path

import harness
import irc
import numpy as np
import onnx
import pytest
from harness import EXAMPLE
from irc.frontends.onnx.input_shapes import InputShapes
from irc.support.errors import UsageError
from irc.tools.cli.main import main
from onnx import ModelProto, TensorProto, helper, numpy_helper


def declared(name: str, *shape: object, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, list(shape))


def padding() -> ModelProto:
    """The sum of x and z, [N,3,H,W], and three channels of ones in the shape of the sum."""
    nodes = [
        helper.make_node("Add", ["x", "z"], ["a"]),
        helper.make_node("Shape", ["a"], ["s"]),
        helper.make_node(
            "ConstantOfShape", ["s"], ["o"], value=numpy_helper.from_array(np.ones(1, np.float32))
        ),
        helper.make_node("Concat", ["a", "o"], ["y"], axis=1),
    ]
    inputs = [declared("x", "N", 3, "H", "W"), declared("z", "N", 3, "H", "W")]
    graph = helper.make_graph(nodes, "g", inputs, [declared("y", "N", "M", "H", "W")])
    graph.value_info.append(declared("a", "N", 3, "H", "W"))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def shape(info: onnx.ValueInfoProto) -> list[int | str]:
    return [dim.dim_param or dim.dim_value for dim in info.type.tensor_type.shape.dim]


def test_extents_go_everywhere_and_shapes_become_constants() -> None:
    model = padding()
    given = copy.deepcopy(model)
    dynamic = irc.compile(copy.deepcopy(model)).model
    assert harness.operators(dynamic) == ["Add", "Shape", "ConstantOfShape", "Concat"]
    fixed = irc.compile(model, input_shapes={"x": (2, 3, 4, 5)}).model
    assert model == given
    assert harness.operators(fixed) == ["Add", "Concat"]
    assert [shape(info) for info in fixed.graph.input] == [[2, 3, 4, 5], [2, 3, 4, 5]]
    assert shape(fixed.graph.output[0]) == [2, 6, 4, 5]
    inputs = harness.random_inputs(fixed)
    assert all(
        map(
            np.array_equal,
            harness.run(fixed, inputs).values(),
            harness.run(dynamic, inputs).values(),
        )
    )


def test_extents_may_stay_open() -> None:
    fixed = irc.compile(padding(), input_shapes={"x": (2, None, None, None)}).model
    assert [shape(info) for info in fixed.graph.input] == [[2, 3, "H", "W"], [2, 3, "H", "W"]]
    assert shape(fixed.graph.output[0])[0] == 2


def test_symbols_of_bodies_follow() -> None:
    branch = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["i"])], "a", [], [declared("i", "N", 3)]
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["j"])], "b", [], [declared("j", "N", 3)]
    )
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=other)
    inputs = [declared("x", "N", 3), declared("c", kind=TensorProto.BOOL)]
    model = helper.make_model(
        helper.make_graph([node], "g", inputs, [declared("y", "N", 3)]),
        opset_imports=[helper.make_opsetid("", 17)],
    )
    fixed = irc.compile(model, "none", input_shapes={"x": (7, 3)}).model
    bodies = [attribute.g for attribute in fixed.graph.node[0].attribute]
    assert [
        shape(info) for info in (*fixed.graph.output, *(body.output[0] for body in bodies))
    ] == [[7, 3]] * 3
    onnx.checker.check_model(fixed, full_check=True)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"x": (1, 4, 2, 2)}, "axis 1 of input 'x' is 3 in the model, and 4 is given"),
        ({"x": (1, 3, 2)}, "input 'x' has 4 axes, and 3 extents are given"),
        ({"q": (1,)}, "the model has no input 'q' (inputs: x, z; symbols: N"),
        ({"N": (1, 2)}, "'N' is one extent, and 2 are given"),
        ({"N": 2, "x": (1, 3, 2, 2)}, "'N' is 2, and 1 by input 'x'"),
        ({"x": (1, 3, 2, 2), "z": (2, 3, 2, 2)}, "'N' is 1 by input 'x', and 2 by input 'z'"),
        ({"x": (0, 3, 2, 2)}, "an extent of input 'x' is less than 1"),
    ],
)
def test_contradictions_are_one_sentence(
    shapes: dict[str, tuple[int, ...]], message: str, tmp_path: Path
) -> None:
    onnx.save(padding(), tmp_path / "m.onnx")
    irc.compile(tmp_path / "m.onnx", "none").save(tmp_path / "m.irc")
    for model in (padding(), tmp_path / "m.onnx", tmp_path / "m.irc"):
        with pytest.raises(UsageError) as error:
            irc.compile(model, input_shapes=shapes)
        assert message in str(error.value)


@pytest.mark.parametrize("shapes", [{"N": 5}, {"N": (5,)}, {"N": 5, "z": (None, 3, None, None)}])
def test_a_symbol_is_fixed_in_all_inputs(shapes: InputShapes, tmp_path: Path) -> None:
    onnx.save(padding(), tmp_path / "m.onnx")
    irc.compile(tmp_path / "m.onnx", "none").save(tmp_path / "m.irc")
    for model in (tmp_path / "m.onnx", tmp_path / "m.irc"):
        fixed = irc.compile(model, "none", input_shapes=shapes).model
        assert [shape(info)[0] for info in fixed.graph.input] == [5, 5]


def test_inputs_of_unknown_rank_and_of_other_types() -> None:
    model = padding()
    for info in model.graph.input:
        info.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    fixed = irc.compile(model, input_shapes={"x": (2, 3, 4, 5), "z": (2, 3, 4, 5)}).model
    assert [shape(info) for info in fixed.graph.input] == [[2, 3, 4, 5], [2, 3, 4, 5]]
    assert harness.operators(fixed) == ["Add", "Concat"]
    model.graph.input[0].type.CopyFrom(helper.make_sequence_type_proto(model.graph.input[0].type))
    with pytest.raises(UsageError, match="input 'x' is not a tensor"):
        irc.compile(model, input_shapes={"x": (1,)})


def test_the_default_value_of_an_input_has_its_shape() -> None:
    model = padding()
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((1, 3, 2, 2), np.float32), "z"))
    with pytest.raises(UsageError, match="axis 0 of input 'z' is 1 in the model, and 2 is given"):
        irc.compile(model, input_shapes={"z": (2, 3, 2, 2)})


def test_text_is_fixed_as_the_model_is(tmp_path: Path) -> None:
    onnx.save(padding(), tmp_path / "m.onnx")
    assert main(["dump", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "m.irc")]) == 0
    found = irc.compile(tmp_path / "m.irc", input_shapes={"x": (2, 3, 4, 5)}).model
    assert harness.operators(found) == ["Add", "Concat"]
    assert [shape(info) for info in (*found.graph.input, *found.graph.output)] == [
        [2, 3, 4, 5],
        [2, 3, 4, 5],
        [2, 6, 4, 5],
    ]


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out.onnx")
    fix = ["--input-shape", "image=4,?,8,8"]
    assert (
        main(
            ["compile", str(EXAMPLE), "-o", out, *fix, "--verify=end", "--fold-map", f"{out}.json"]
        )
        == 0
    )
    fixed = onnx.load(out)
    assert shape(fixed.graph.input[0]) == [4, 1, 8, 8]
    assert shape(fixed.graph.output[0]) == [4, 10]
    assert harness.batch_norms(fixed) == 0
    assert main(["align", str(EXAMPLE), out, *fix, "-q"]) == 0
    assert main(["foldmap", "check", out, f"{out}.json"]) == 0
    for command in ("inspect", "check", "bisect", "dump"):
        assert main([command, str(EXAMPLE), *fix]) == 0
    assert "image: f32[4,1,8,8]" in capsys.readouterr().out
    assert main(["compile", str(EXAMPLE), "-o", out, *fix, "--certificate", f"{out}.cert"]) == 2
    for wrong in ("image=4,1,8", "imago=1", "image=1,1,9,9"):
        assert main(["check", str(EXAMPLE), "--input-shape", wrong]) == 2
    assert main(["check", str(EXAMPLE), *fix, *fix]) == 2
    for word in ("image", "image=a,b", "image=-1,1,8,8", "image=0,1,8,8"):
        with pytest.raises(SystemExit):
            main(["check", str(EXAMPLE), "--input-shape", word])
    assert "is not a shape: write NAME=1,3,224,224" in capsys.readouterr().err


@pytest.mark.shared
@pytest.mark.parametrize(
    "path", [path for path in harness.shared_models("exported") if "dynamo" in path.name], ids=str
)
def test_exported_models_compute_the_same(path: Path) -> None:
    model = harness.load(path)
    inputs = harness.random_inputs(model, batch=3)
    expected = harness.results(model, inputs)
    fixed = irc.compile(
        path, input_shapes={name: array.shape for name, array in inputs.items()}
    ).model
    assert [shape(info) for info in harness.required_inputs(fixed)] == [
        list(array.shape) for array in inputs.values()
    ]
    assert all(isinstance(dim, int) for info in fixed.graph.output for dim in shape(info))
    assert expected is not None
    harness.assert_computes_the_same(model, fixed, inputs)
