"""`--preprocess` and `preprocess`: operators before an input, which the first layer takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness
import irc
import numpy as np
import onnx
import pytest
from float64 import evaluate
from graphs import Graph, constants
from harness import operators
from hypothesis import given, settings
from hypothesis import strategies as st
from irc.backends.foldmap.inverse import unfold
from irc.support.errors import UsageError
from irc.tools.cli.main import main
from onnx import ModelProto, TensorProto, helper
from oracle import assert_same_function, assert_sound

Array = np.ndarray[Any, Any]

TORCHVISION = "mean=.485:.456:.406,std=.229:.224:.225,scale=1/255"
MEAN, STD = (
    np.array(each).reshape(3, 1, 1) for each in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
)


def net(
    *,
    shape: Sequence[int | str] = ("N", 3, "H", "W"),
    first: str = "Conv",
    kind: type = np.float32,
    **attrs: Any,
) -> ModelProto:
    """Relu of a layer of x."""
    g = Graph(dtype=np.dtype(kind), opset=17, ir=8)
    x = g.input("x", shape)
    if "auto_pad" not in attrs:
        attrs.setdefault("pads", [1, 1, 1, 1])
    if first == "Conv":
        group = attrs.get("group", 1)
        weight, bias = g.random(6, 3 // group, 3, 3), g.random(6)
        y = g.node(
            "Conv", [x, g.initializer(weight, "w"), g.initializer(bias, "b")], name="c", **attrs
        )
    else:
        y = g.node(first, [x])
    g.node("Relu", [y], "y")
    g.output("y", None)
    return g.model()


def pictures(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


def test_torchvision_leaves_a_transpose_a_cast_and_a_pad() -> None:
    model = net()
    result = irc.compile(model, preprocess=f"x:uint8,nhwc,bgr,{TORCHVISION}", verify=True)
    assert operators(result.model) == ["Transpose", "Cast", "Pad", "Conv", "Relu"]
    assert result.preprocessing == [
        "Sub 'x.sub' and Mul 'x.mul' of the preprocessing went into Conv 'c', behind a Pad by one more"
        " channel of ones"
    ]
    (info,) = result.model.graph.input
    extents = [each.dim_param or each.dim_value for each in info.type.tensor_type.shape.dim]
    assert (info.name, info.type.tensor_type.elem_type) == ("x", TensorProto.UINT8)
    assert extents == ["N", "H", "W", 3]
    x = pictures(0, 2, 7, 6, 3)
    exact = (x[..., ::-1].transpose(0, 3, 1, 2) / 255 - MEAN) / STD
    expected = evaluate(model, {"x": exact})["y"]
    found = harness.run(result.model, {"x": x})["y"]
    assert np.abs(found - expected).max() <= 1e-6 * np.abs(expected).max()


def test_the_source_of_the_fold_map_has_the_operators() -> None:
    model = net()
    result = irc.compile(model, preprocess=f"x:uint8,nhwc,bgr,{TORCHVISION}")
    source = irc.compile(model, "none", preprocess=f"x:uint8,nhwc,bgr,{TORCHVISION}").model
    assert operators(source) == ["Transpose", "Cast", "Sub", "Mul", "Gather", "Conv", "Relu"]
    assert unfold(result.model, result.fold_map) == source
    assert_sound(source, result)
    assert_same_function(source, result.model)
    again = irc.compile(result.model)
    assert again.model == result.model


@pytest.mark.parametrize(
    ("words", "attrs", "expected", "said"),
    [
        ("uint8,torchvision", {"pads": [0, 0, 0, 0]}, "Cast Conv Relu", ""),
        ("uint8,tf", {}, "Cast Pad Conv Relu", "the number that stands for zero"),
        ("uint8,torchvision", {}, "Cast Pad Conv Relu", "one more channel of ones"),
        ("uint8,torchvision", {"auto_pad": "SAME_UPPER"}, "Cast Pad Conv Relu", "of ones"),
        ("uint8,caffe", {}, "Cast Pad Conv Relu", "of ones"),
        (
            "uint8,torchvision",
            {"group": 3, "shape": (1, 3, 5, 4)},
            "Cast Conv Add Relu",
            "a number for each position",
        ),
        ("scale=1/255", {}, "Conv Relu", ""),
        ("bgr", {}, "Conv Relu", ""),
        ("nhwc,uint8", {}, "Transpose Cast Conv Relu", ""),
    ],
)
def test_the_way_over_a_border(words: str, attrs: dict[str, Any], expected: str, said: str) -> None:
    model = net(**attrs)
    source = irc.compile(model, "none", preprocess=words).model
    result = irc.compile(model, preprocess=words)
    assert operators(result.model) == expected.split()
    assert not result.warnings
    assert all(said in line for line in result.preprocessing)
    assert_sound(source, result)
    assert_same_function(source, result.model)


@pytest.mark.parametrize(
    ("words", "attrs", "left", "reason"),
    [
        ("uint8,torchvision", {"first": "Sigmoid"}, "Cast Sub Mul Sigmoid Relu", "Sigmoid"),
        (
            "uint8,torchvision",
            {"group": 3},
            "Cast Sub Conv Relu",
            "the extents of its data are unknown",
        ),
        ("bgr", {"group": 3}, "Gather Conv Relu", "Conv without groups"),
        ("bgr", {"first": "Sigmoid"}, "Gather Sigmoid Relu", "Conv without groups"),
    ],
)
def test_what_stays_is_said(words: str, attrs: dict[str, Any], left: str, reason: str) -> None:
    model = net(**attrs)
    result = irc.compile(model, preprocess=words)
    assert operators(result.model) == left.split()
    assert reason in " ".join(result.warnings)
    assert_same_function(irc.compile(model, "none", preprocess=words).model, result.model)


def test_a_shift_of_the_model_itself_stays_before_padding() -> None:
    g = Graph()
    x = g.node("Add", [g.input("x", ["N", 3, "H", "W"]), g.initializer(g.random(3, 1, 1))])
    x = g.node("Mul", [x, g.initializer(g.random(3, 1, 1))])
    g.node("Conv", [x, g.initializer(g.random(4, 3, 3, 3))], "y", pads=[1, 1, 1, 1])
    g.output("y", None)
    assert operators(irc.compile(g.model()).model) == ["Add", "Conv"]


WORDS = ("uint8", "int8", "uint16", "float32", "float64")


@settings(max_examples=25, deadline=None)
@given(
    dtype=st.sampled_from(WORDS),
    last=st.booleans(),
    reverses=st.booleans(),
    numbers=st.lists(st.floats(-3, 3, width=16), min_size=3, max_size=3),
    scale=st.sampled_from(["1", "1/255", "-0.5", "2"]),
    stds=st.lists(st.floats(0.25, 4, width=16), min_size=3, max_size=3),
    pads=st.sampled_from([(0, 0, 0, 0), (1, 1, 1, 1), (0, 2, 1, 0)]),
    strides=st.sampled_from([(1, 1), (2, 3)]),
    kind=st.sampled_from([np.float32, np.float64]),
)
def test_any_preprocessing_computes_what_it_means(
    dtype: str,
    last: bool,
    reverses: bool,
    numbers: list[float],
    scale: str,
    stds: list[float],
    pads: tuple[int, ...],
    strides: tuple[int, ...],
    kind: type,
) -> None:
    model = net(pads=list(pads), strides=list(strides), kind=kind)
    mean, std = (":".join(map(str, each)) for each in (numbers, stds))
    words = [dtype, "nhwc" if last else "nchw", *["bgr"] * reverses]
    result = irc.compile(model, preprocess=f"{','.join(words)},mean={mean},std={std},scale={scale}")
    assert not {"Sub", "Mul", "Div", "Gather"} & set(operators(result.model))
    x = (np.random.default_rng(0).normal(size=(1, 6, 7, 3)) * 40 + 60).clip(0, 120).astype(dtype)
    data = (x[..., ::-1] if reverses else x).transpose(0, 3, 1, 2).astype(np.float64)
    factor = eval(scale)
    exact = (data * factor - np.reshape(numbers, (3, 1, 1))) / np.reshape(stds, (3, 1, 1))
    expected = evaluate(model, {"x": exact})["y"]
    given_x = x if last else np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    found = evaluate(result.model, {"x": given_x})["y"]
    # rounded once to float32: the zero, the factor, a weight and the sum of responses
    unit = 2.0**-24 if kind is np.float32 else 2.0**-53
    weight = np.abs(constants(model)["w"].astype(np.float64))
    reach = (np.abs(data).max() * abs(factor) + np.abs(numbers).max()) / min(stds)
    assert np.abs(found - expected).max() <= 8 * unit * (weight.sum() / 6 * 2 * reach + 8)


REFUSED = {
    "q:uint8": "the model has no input 'q'",
    "x:uint8,mean=1:2": "has 3 channels, and there are numbers for 2",
    "x:uint8,ncdhw": "has 4 axes, and ncdhw has 5",
    "x:int32,scale=1/255": "cannot hold all numbers of int32",
    "uint7": "did you mean uint8?",
    "mean=1:2:3,std=1:2": "mean has 3 numbers and std 2",
    "uint8,int8": "are two of a kind",
    "scale=0": "that is not zero",
    "std=1:0:1": "a number is zero",
    "mean": "write its numbers",
    "mean=1e40": "exceeds float32",
    "": "is not a preprocessing",
    ":uint8": "is not a preprocessing",
    "resize=3": "changes pictures",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_no_preprocessing_is_said_in_a_sentence(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "m.onnx", tmp_path / "o.onnx"
    onnx.save(net(), path)
    assert main(["compile", str(path), "-o", str(out), "--preprocess", words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert REFUSED[words] in line
    assert not out.exists()


def test_integers_and_two_inputs() -> None:
    g = Graph()
    a, b = (g.input(name, [1, 3], np.dtype(np.int32)) for name in "ab")
    g.node("Add", [a, b], "y")
    g.output("y", [1, 3], np.dtype(np.int32))
    model = g.model()
    with pytest.raises(UsageError, match=r"int32 in the model, which cannot hold \(x"):
        irc.compile(model, preprocess="a:uint8,scale=1/255")
    with pytest.raises(UsageError, match="write NAME: before it"):
        irc.compile(model, preprocess="uint8")
    with pytest.raises(UsageError, match="two preprocessings"):
        irc.compile(model, preprocess=["a:uint8", "a:int8"])
    made = irc.compile(model, preprocess=["a:uint8", "b:int8"]).model
    assert [each.type.tensor_type.elem_type for each in made.graph.input] == [
        TensorProto.UINT8,
        TensorProto.INT8,
    ]
    assert operators(made) == ["Cast", "Cast", "Add"]


def test_a_body_reads_the_preprocessed_input() -> None:
    then, other = (
        helper.make_graph(
            [helper.make_node(op, ["x"], [op])],
            op,
            [],
            [helper.make_tensor_value_info(op, TensorProto.FLOAT, None)],
        )
        for op in ("Relu", "Neg")
    )
    g = Graph()
    g.input("x", [2, 3])
    g.node(
        "If",
        [g.input("c", [], np.dtype(np.bool_))],
        "y",
        then_branch=then,
        else_branch=other,
    )
    g.output("y", None)
    made = irc.compile(g.model(), preprocess="x:scale=2,mean=1").model
    x = np.array([[1, 2, 3], [0, -1, 4]], np.float32)
    found = harness.run(made, {"x": x, "c": np.array(True)})["y"]
    assert found.tolist() == np.maximum(x * 2 - 1, 0).tolist()


def test_models_that_a_preprocessing_does_not_fit() -> None:
    g = Graph()
    g.input("x", [2, 3])
    g.node("Relu", ["x"], "y")
    g.output("x", [2, 3])
    g.output("y", None)
    with pytest.raises(UsageError, match="is a result of the model, too"):
        irc.compile(g.model(), preprocess="scale=2")
    old = net()
    old.opset_import[0].version = 6
    with pytest.raises(UsageError, match="needs opset 7"):
        irc.compile(old, preprocess="scale=2")
    with pytest.raises(UsageError, match="this is a Module"):
        irc.compile(irc.load(net()), preprocess="scale=2")


def test_a_layout_of_the_model_is_known_by_its_channels() -> None:
    g = Graph()
    x = g.node("Transpose", [g.input("x", ["N", 8, 8, 3])], perm=[0, 3, 1, 2])
    g.node("Conv", [x, g.initializer(g.random(4, 3, 3, 3))], "y")
    g.output("y", None)
    made = irc.compile(g.model(), preprocess="uint8,nhwc,torchvision").model
    assert operators(made) == ["Cast", "Transpose", "Conv"]
    made = irc.compile(g.model(), preprocess="uint8,nhwc,bgr,torchvision", verify=True).model
    assert operators(made) == ["Cast", "Transpose", "Conv"]
    made = irc.compile(g.model(), preprocess="uint8,nchw,torchvision").model
    assert operators(made) == ["Cast", "Conv"], "two Transposes undo each other"


def test_cli_says_where_it_went_and_refuses_a_certificate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "m.onnx", tmp_path / "o.onnx"
    onnx.save(net(), path)
    words = ["--preprocess", "x:uint8,nhwc,torchvision"]
    assert main(["compile", str(path), str(out), *words, "--verify=end"]) == 0
    assert "went into Conv 'c', behind a Pad" in capsys.readouterr().err
    assert main(["compile", str(path), str(out), *words, "--certificate", str(out) + ".json"]) == 2
    assert "--passes none" in capsys.readouterr().err
    assert main(["verify", str(path), str(out), *words]) == 0
    assert main(["verify", str(path), str(out), *words[:1], "x:uint8,nhwc,tf", "-q"]) == 1
    capsys.readouterr()
    assert main(["dump", str(path), *words]) == 0
    assert "subtract(" in capsys.readouterr().out
