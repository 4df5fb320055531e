"""Limits per channel in int8 models: which are computed on integers, and the integers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import harness
import irc
import numpy as np
import onnx
import pytest
from graphs import Array, Graph, is_valid
from int8_models import NEEDS_RANGES
from irc.tools.cli.main import main
from onnx import ModelProto, TensorProto, helper, numpy_helper

pytestmark = NEEDS_RANGES

LIMIT = np.float32([[0.3, 6.0, 1.7, 2.4, 0.9]])


def limited(
    *ops: str,
    opset: int = 21,
    low: float = 0.0,
    read_again: str = "",
    swapped: bool = False,
    limit: Array = LIMIT,
) -> ModelProto:
    """A product, a Clip, the Min and Max `ops` with constants by channel, and a product."""
    graph = Graph(opset=opset)
    graph.input("x", ["n", 6])
    h = graph.node("MatMul", ["x", graph.initializer(graph.random(6, 5))], "h", "first")
    h = graph.node(
        "Clip",
        [h, graph.initializer(np.float32(low)), graph.initializer(np.float32(6))],
        "c",
        "clip",
    )
    for i, op in enumerate(ops):
        operands = [h, graph.initializer(limit if op == "Min" else limit / 9 + low)]
        h = graph.node(op, operands[::-1] if swapped else operands, f"m{i}", f"{op}_{i}")
    if read_again:
        graph.output(graph.node("Tanh", [read_again], "z"))
    graph.output(graph.node("MatMul", [h, graph.initializer(graph.random(5, 3))], "y", "second"))
    return graph.model()


def inputs() -> dict[str, Array]:
    return {"x": np.random.default_rng(3).uniform(-2, 2, (64, 6)).astype(np.float32)}


def quantized(model: ModelProto, **options: Any) -> irc.Quantized:
    found = irc.quantize(model, input_ranges={"x": (-2, 2)}, passes="default", **options)
    assert is_valid(found.model) is None
    read = {name for node in found.model.graph.node for name in node.input} | {"y", "z"}
    assert {tensor.name for tensor in found.model.graph.initializer} <= read
    return found


def on_integers(model: ModelProto) -> list[str]:
    """The names of the Min and Max that read integers."""
    made = {node.output[0]: node.op_type for node in model.graph.node}
    return [
        node.name
        for node in model.graph.node
        if node.op_type in ("Min", "Max")
        and "QuantizeLinear" in [made.get(name) for name in node.input]
    ]


def signal_to_noise(model: ModelProto, found: ModelProto) -> float:
    expected, result = (
        harness.run(each, inputs())["y"].astype(np.float64) for each in (model, found)
    )
    return float(10 * np.log10(np.square(expected).sum() / np.square(result - expected).sum()))


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(("op", "low"), [("Min", 0.0), ("Max", 0.0), ("Min", -1.0)])
def test_a_limit_is_computed_on_integers(op: str, low: float, swapped: bool) -> None:
    """The integers are those of the limited float numbers on the grid of the result."""
    model = limited(op, low=low, swapped=swapped)
    found = quantized(model)
    assert on_integers(found.model) == [f"{op}_0"]
    assert all(one.quantized for one in found.coverage)
    assert signal_to_noise(model, found.model) > 25
    (node,) = (node for node in found.model.graph.node if node.op_type == op)
    made = {node.output[0]: node for node in found.model.graph.node}
    rounding = next(made[name] for name in node.input if name in made)
    shown = onnx.ModelProto()
    shown.CopyFrom(found.model)
    for name, kind in ((node.output[0], TensorProto.UINT8), (rounding.input[0], TensorProto.FLOAT)):
        shown.graph.output.append(helper.make_tensor_value_info(name, kind, None))
    results = harness.run(shown, inputs())
    constants = {
        tensor.name: numpy_helper.to_array(tensor) for tensor in found.model.graph.initializer
    }
    scale, zero = (constants[name] for name in rounding.input[1:])
    exact = np.clip(results[rounding.input[0]], np.float32(low), np.float32(6))
    exact = (
        np.minimum(exact, LIMIT) if op == "Min" else np.maximum(exact, LIMIT / 9 + np.float32(low))
    )
    expected = np.clip(np.rint(exact / scale) + zero, 0, 255)
    np.testing.assert_array_equal(results[node.output[0]], expected)


REFUSALS: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "an opset whose Min takes floats alone": ({"opset": 11}, {}, []),
    "the opset after it": ({"opset": 12}, {}, ["Min_0"]),
    "unlimited data that are read again": ({"read_again": "c"}, {}, []),
    "limited data that are read again": ({"read_again": "m0"}, {}, ["Min_0"]),
    "a grid that reaches below the Clip": ({}, {"ranges": {"m0": (-3.0, 6.0)}}, []),
    "a grid that reaches above the Clip": ({}, {"ranges": {"m0": (0.0, 9.0)}}, []),
    "a limit of infinity": ({"limit": np.float32([[0.3, np.inf, 1.7, 2.4, 0.9]])}, {}, ["Min_0"]),
    "a grid within that of the Clip": ({}, {"ranges": {"m0": (0.0, 5.0)}}, ["Min_0"]),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_keeps_a_limit_float(name: str) -> None:
    shape, options, expected = REFUSALS[name]
    model = limited("Min", **shape)
    found = quantized(model, **options)
    assert on_integers(found.model) == expected
    left = [one.node for one in found.coverage if one.op_type == "Min" and not one.quantized]
    assert left == ([] if expected else ["Min_0"])
    assert signal_to_noise(model, found.model) > 25


def test_two_limits_in_a_row_stay_float() -> None:
    model = limited("Max", "Min", low=-1.0)
    found = quantized(model)
    assert on_integers(found.model) == []
    assert signal_to_noise(model, found.model) > 25


def test_layers_before_a_limit_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`irc align` reads the integers that the layer gives."""
    model = limited("Min")
    found = quantized(model)
    found.save(tmp_path / "int8.onnx", prepared=tmp_path / "float.onnx")
    np.savez(tmp_path / "data.npz", **inputs())
    command = f"align {tmp_path / 'float.onnx'} {tmp_path / 'int8.onnx'} --data {tmp_path / 'data.npz'}".split()
    assert main([*command, "--json", "-", "-q"]) == 0
    layers = {layer["layer"]: layer for layer in json.loads(capsys.readouterr().out)["layers"]}
    assert layers.keys() == {"first", "second"}
    for layer in layers.values():
        assert layer["alone"] > 25
        assert layer["accumulated"] > 25
