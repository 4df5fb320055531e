"""Ranges of values with a statistic.

The part of mean +- 6 deviations that their operator can make.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from graphs import BatchNorm, Graph, compiled
from irc.backends.quantizers.aimet import to_aimet_encodings
from irc.backends.quantizers.onnxruntime import to_calibration_cache, to_tensor_quant_overrides
from irc.backends.quantizers.ranges import activations
from irc.backends.quantizers.tensorrt import to_tensorrt_cache
from irc.tools.cli.main import main
from onnx import ModelProto

Build = Callable[[Graph, str, str], str]
Range = tuple[float, float]

C = 4
MEAN, STD = 0.25, 2.0
STATISTIC = (MEAN - 6 * STD, MEAN + 6 * STD)
LOW, HIGH = STATISTIC
INF = math.inf


def one(op: str, **attrs: object) -> Build:
    return lambda g, x, y: g.node(op, [x], **attrs)


def number(g: Graph, value: float) -> str:
    return g.initializer(np.float32(value))


def ints(g: Graph, *items: int) -> str:
    return g.initializer(np.array(items, np.int64))


def doubled(g: Graph, x: str, mode: str) -> str:
    return g.node("Resize", [x, "", g.initializer(np.float32([1, 1, 2, 2]))], mode=mode)


def per_channel(g: Graph, *numbers: float) -> str:
    return g.initializer(np.float32(numbers).reshape(1, C, 1, 1))


def behind(build: Build, mean: float = MEAN, std: float = STD) -> ModelProto:
    """A BatchNormalization of `r`, the result of `build` on two layers without statistics."""
    g = Graph()
    g.input("x", ["n", C, 6, 6])
    x, y = (g.node("Conv", ["x", g.initializer(g.random(C, C, 1, 1))]) for _ in range(2))
    g.node("Identity", [build(g, x, y)], "r")
    ones = np.ones(C, np.float32)
    parameters = BatchNorm(ones * 3, ones * 2, ones * mean, ones * std**2, 0.0)
    g.output(
        g.node(
            "BatchNormalization", ["r", *map(g.initializer, parameters.arrays)], "b", epsilon=0.0
        ),
        None,
    )
    return g.model()


def chained(first: Build, op: str, **attrs: object) -> Build:
    return lambda g, x, y: g.node(op, [first(g, x, y)], **attrs)


def sigmoid(g: Graph, x: str) -> str:
    return g.node("Sigmoid", [x])


def constant(op: str, *numbers: float) -> Build:
    return lambda g, x, y: g.node(op, [per_channel(g, *numbers), x])


def branches(g: Graph, x: str, y: str) -> str:
    """An If, of which a branch may make any number."""
    inner = [
        onnx.helper.make_graph(
            [onnx.helper.make_node(op, [x], [f"in_{op}"])], op, [], [_float(f"in_{op}")]
        )
        for op in ("Relu", "Identity")
    ]
    condition = g.node("Equal", [g.node("ReduceMax", [y], keepdims=0), number(g, 1)])
    return g.node("If", [condition], then_branch=inner[0], else_branch=inner[1])


def _float(name: str) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)


CUT: dict[str, tuple[Build, Range]] = {
    "Relu": (one("Relu"), (0, HIGH)),
    "Abs": (one("Abs"), (0, HIGH)),
    "Relu6": (lambda g, x, y: g.node("Clip", [x, number(g, 0), number(g, 6)]), (0, 6)),
    "Clip": (lambda g, x, y: g.node("Clip", [x, number(g, -1), number(g, 2)]), (-1, 2)),
    "a Clip from below": (lambda g, x, y: g.node("Clip", [x, number(g, -1)]), (-1, HIGH)),
    "a Clip from above": (lambda g, x, y: g.node("Clip", [x, "", number(g, 2)]), (LOW, 2)),
    "Sigmoid": (one("Sigmoid"), (0, 1)),
    "HardSigmoid": (one("HardSigmoid"), (0, 1)),
    "Tanh": (one("Tanh"), (-1, 1)),
    "Erf": (one("Erf"), (-1, 1)),
    "Sin": (one("Sin"), (-1, 1)),
    "Atan": (one("Atan"), (-math.pi / 2, math.pi / 2)),
    "Sign": (one("Sign"), (-1, 1)),
    "Softsign": (one("Softsign"), (-1, 1)),
    "Exp": (one("Exp"), (0, HIGH)),
    "Sqrt": (one("Sqrt"), (0, HIGH)),
    "Cosh": (one("Cosh"), (1, HIGH)),
    "Softplus": (one("Softplus"), (0, HIGH)),
    "Elu": (one("Elu"), (-1, HIGH)),
    "Celu": (one("Celu", alpha=2.0), (-2, HIGH)),
    "HardSwish": (one("HardSwish"), (-0.375, HIGH)),
    "Mish": (one("Mish"), (-0.3088434, HIGH)),
    "Gelu": (one("Gelu"), (-0.16997, HIGH)),
    "Softmax": (one("Softmax", axis=1), (0, 1)),
    "Hardmax": (one("Hardmax", axis=1), (0, 1)),
    "LogSoftmax": (one("LogSoftmax", axis=1), (LOW, 0)),
    "a square": (lambda g, x, y: g.node("Mul", [x, x]), (0, HIGH)),
    "an even power": (lambda g, x, y: g.node("Pow", [x, number(g, 2)]), (0, HIGH)),
    "a distance": (one("ReduceL2", axes=None, keepdims=1), (0, HIGH)),
    "Max": (constant("Max", -1, -2, 0.5, -3), (-3, HIGH)),
    "Min": (constant("Min", 1, 2, 0.5, 3), (LOW, 3)),
    "Max of two activations": (lambda g, x, y: g.node("Max", [x, g.node("Relu", [y])]), (0, HIGH)),
    "a sum": (lambda g, x, y: g.node("Add", [sigmoid(g, x), sigmoid(g, y)]), (0, 2)),
    "a product": (lambda g, x, y: g.node("Mul", [g.node("Tanh", [x]), sigmoid(g, y)]), (-1, 1)),
    "an affine": (lambda g, x, y: g.node("Sub", [number(g, 1), sigmoid(g, x)]), (0, 1)),
    "Concat": (
        lambda g, x, y: g.node("Concat", [sigmoid(g, y), g.node("Relu", [x])], axis=3),
        (0, HIGH),
    ),
    "Where": (
        lambda g, x, y: g.node("Where", [g.node("Less", [x, y]), sigmoid(g, x), number(g, 3)]),
        (0, 3),
    ),
    "a truth value": (lambda g, x, y: g.node("Cast", [g.node("Less", [x, y])], to=1), (0, 1)),
    "MaxPool": (chained(one("Relu"), "MaxPool", kernel_shape=[2, 2]), (0, HIGH)),
    "AveragePool": (chained(one("Sigmoid"), "AveragePool", kernel_shape=[2, 2]), (0, 1)),
    "an AveragePool that counts zeros": (
        lambda g, x, y: g.node(
            "AveragePool",
            [g.node("Clip", [x, number(g, 1), number(g, 2)])],
            kernel_shape=[3, 3],
            pads=[1, 1, 1, 1],
            count_include_pad=1,
        ),
        (0, 2),
    ),
    "an AveragePool that counts zeros in each channel": (
        chained(
            constant("Max", 1, 2, 3, 4),
            "AveragePool",
            kernel_shape=[3, 3],
            pads=[1, 1, 1, 1],
            count_include_pad=1,
        ),
        (0, HIGH),
    ),
    "ReduceMean": (lambda g, x, y: g.node("ReduceMean", [sigmoid(g, x), ints(g, 2, 3)]), (0, 1)),
    "Reshape": (lambda g, x, y: g.node("Reshape", [sigmoid(g, x), ints(g, 0, C, 9, 4)]), (0, 1)),
    "Transpose": (chained(one("Sigmoid"), "Transpose", perm=[0, 1, 3, 2]), (0, 1)),
    "Pad": (
        lambda g, x, y: g.node(
            "Pad", [sigmoid(g, x), ints(g, 0, 0, 1, 1, 0, 0, 1, 1), number(g, -1)]
        ),
        (-1, 1),
    ),
    "a linear Resize": (lambda g, x, y: doubled(g, g.node("Relu", [x]), "linear"), (0, HIGH)),
    "Dropout": (chained(one("Relu"), "Dropout"), (0, HIGH)),
}

WHOLE: dict[str, Build] = {
    "Conv": one("Identity"),
    "LeakyRelu": one("LeakyRelu"),
    "Add": lambda g, x, y: g.node("Add", [x, g.node("Relu", [y])]),
    "Neg": one("Neg"),
    "Sub": lambda g, x, y: g.node("Sub", [g.node("Relu", [x]), g.node("Relu", [y])]),
    "a cubic Resize": lambda g, x, y: doubled(g, g.node("Relu", [x]), "cubic"),
    "If": branches,
}


def known(model: ModelProto, **options: object) -> tuple[Range, str]:
    result = compiled(model, "SimplifyInference")
    found = activations(result.model, result.fold_map, **options).known["r"]  # type: ignore[arg-type]
    return found.range, found.origin


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("name", CUT)
def test_a_range_is_what_its_operator_can_make(name: str, given: bool) -> None:
    build, expected = CUT[name]
    found, origin = known(behind(build), **({"input_ranges": {"x": (-1, 1)}} if given else {}))
    assert origin == "statistic"
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", WHOLE)
def test_a_range_is_whole_where_its_operator_can_make_any_number(name: str) -> None:
    assert known(behind(WHOLE[name]), input_ranges={"x": (-1, 1)}) == (STATISTIC, "statistic")


def test_a_given_range_holds_as_it_is() -> None:
    assert known(behind(one("Relu")), ranges={"r": (-3, 5)}) == ((-3, 5), "given")


def test_what_an_operand_is_likely_to_be_does_not_cut() -> None:
    assert known(behind(one("Relu"), std=100.0), input_ranges={"x": (-0.01, 0.01)})[0] == (
        0,
        MEAN + 600,
    )


def test_the_part_is_that_of_each_channel() -> None:
    result = compiled(behind(constant("Max", -1, -20, 1, 40)), "SimplifyInference")
    found = activations(result.model, result.fold_map).known["r"]
    assert found.axis == 1
    np.testing.assert_allclose(found.low, [-1, LOW, 1, 40])
    np.testing.assert_allclose(found.high, [HIGH, HIGH, HIGH, 40])


@pytest.mark.parametrize(("spans", "expected"), [({}, None), ({"x": (-1, 1)}, "bound")])
def test_a_statistic_that_its_operator_contradicts_does_not_count(
    spans: dict[str, Range], expected: str | None
) -> None:
    result = compiled(behind(one("Relu"), mean=-5.0, std=0.5), "SimplifyInference")
    found = activations(result.model, result.fold_map, input_ranges=spans)
    assert ("r" in found.missing) is (expected is None)
    if expected is not None:
        low, high = found.known["r"].range
        assert low == 0 < high
        assert found.known["r"].origin != "statistic"


def test_every_form_has_the_part(tmp_path: Path) -> None:
    result = compiled(behind(one("Relu")), "SimplifyInference")
    model, fold_map = result.model, result.fold_map
    result.save(tmp_path / "m.onnx", fold_map=tmp_path / "map.json")
    options = {"input_ranges": {"x": (-1, 1)}}

    def exported(form: str) -> str:
        command = (
            f"foldmap export {tmp_path / 'm.onnx'} {tmp_path / 'map.json'} --to {form}".split()
        )
        assert main([*command, "-o", str(tmp_path / form), "--input-range", "x=-1:1"]) == 0
        return (tmp_path / form).read_text()

    cache = json.loads(exported("ort-calibration"))
    assert cache == to_calibration_cache(model, fold_map, **options).document  # type: ignore[arg-type]
    assert cache["data"]["r"]["lowest"]["data"] == 0
    overrides = json.loads(exported("ort-overrides"))
    assert overrides["r"] == [{"rmin": 0.0, "rmax": HIGH}]
    assert to_tensor_quant_overrides(model, fold_map, **options).tensors["r"] == overrides["r"]  # type: ignore[arg-type]
    assert json.loads(exported("ranges"))["r"] == {"low": 0.0, "high": HIGH, "origin": "statistic"}
    assert json.loads(exported("nncf"))["r"]["min_values"] == [0.0] * C
    encodings = json.loads(exported("aimet-encodings"))
    assert encodings == to_aimet_encodings(model, fold_map, **options).document  # type: ignore[arg-type]
    (encoding,) = [one for one in encodings["activation_encodings"] if one["name"] == "r"]
    assert encoding["offset"] == [0]
    assert exported("tensorrt") == to_tensorrt_cache(model, fold_map, **options).text  # type: ignore[arg-type]
