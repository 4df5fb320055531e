"""Layers with quantized weights: integers and scales bit by bit, biases step by step.

The rules stand in `tests/support/scale_axis/quantized.py`. Here random layers are compiled, and the
parts of DequantizeLinear before and after are compared in exact arithmetic: integers as Python
integers, scales and products as fractions.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from graphs import F32, Array, Graph, compiled, operators
from harness import run
from irc.tools.cli.main import main
from onnx import ModelProto, TensorProto, numpy_helper
from scale_axis.build import Step, bn, chain, mul, op
from scale_axis.quantized import layer

EXAMPLES = int(os.environ.get("IRC_EXAMPLES", "72"))
ALLOWED = "(SimplifyInference,FoldScaleAxis{per_channel=allow},CanonicalizeOps,SimplifyExpr,FoldConstant)*"


@dataclass(frozen=True)
class Parts:
    """The operands of a DequantizeLinear, parameters broadcast against the integers."""

    integers: Array
    scale: Array
    zero_point: Array

    @property
    def centred(self) -> Array:
        return np.asarray(self.integers.astype(np.int64) - self.zero_point.astype(np.int64))


def parts_of(model: ModelProto, operand: int) -> Parts | None:
    """What an operand of the layer is dequantized from, None where it is not dequantized."""
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    reader = next(
        node
        for node in model.graph.node
        if node.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul")
    )
    name = reader.input[operand] if operand < len(reader.input) else ""
    node = next((node for node in model.graph.node if name in node.output), None)
    if node is None or node.op_type != "DequantizeLinear":
        return None
    arrays = [constants[name] for name in node.input]
    axis = next((item.i for item in node.attribute if item.name == "axis"), 1)
    view = [-1 if i == axis else 1 for i in range(arrays[0].ndim)]
    scale, *rest = (array if array.size == 1 else array.reshape(view) for array in arrays[1:])
    point = rest[0] if rest else np.zeros((), np.int64)
    return Parts(arrays[0], *(np.broadcast_to(array, arrays[0].shape) for array in (scale, point)))


def factors(model: ModelProto) -> tuple[Array, Array]:
    """Scale and shift of the BatchNormalization, in float64 as irc computes them."""
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    node = next(node for node in model.graph.node if node.op_type == "BatchNormalization")
    gamma, beta, mean, variance = (constants[name].astype(np.float64) for name in node.input[1:])
    scale = gamma / np.sqrt(variance + np.float64(np.float32(1e-5)))
    return scale, beta - mean * scale


def ulps(a: Array, b: Array) -> Array:
    """How many float32 numbers lie between two of the same sign."""
    bits = (np.asarray(each, np.float32).view(np.int32).astype(np.int64) for each in (a, b))
    first, second = bits
    return np.abs(first - second)


FORMS: list[dict[str, Any]] = [
    {"kind": "Conv"},
    {"kind": "Conv", "dtype": np.dtype(np.uint8), "zero_point": 128},
    {"kind": "Conv", "by": "Q"},
    {"kind": "Conv", "by": "QClip"},
    {"kind": "ConvTranspose"},
    {"kind": "Gemm"},
    {"kind": "Gemm", "transB": 1},
    {"kind": "Conv", "axis": None, "allowed": True},
    {"kind": "Conv", "dtype": np.dtype(np.int16)},
]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_weights_keep_their_integers_and_biases_are_off_by_half_a_step(seed: int) -> None:
    rng = np.random.default_rng(seed)
    form = dict(FORMS[seed % len(FORMS)])
    kind, allowed = form["kind"], form.pop("allowed", False)
    bias = ("", "float", "int32", "int32")[rng.integers(4)]
    scale = (10 ** rng.uniform(-4, -1, 4)).astype(np.float32)
    if form.get("axis", -1) is not None:
        form["scale"] = scale
    step = float(10 ** rng.uniform(-6, -2))
    graph = Graph(dtype=F32, seed=seed, opset=21)
    build = chain(
        layer(**form, bias=bias, step=step, steps=4), bn(4, "+" if seed % 3 == 0 else "±")
    )
    graph.output(build(graph, graph.input("x", [2, 3] if kind == "Gemm" else [2, 3, 5, 5])))
    before = graph.model()
    result = compiled(before, ALLOWED if allowed else None)
    after = result.model
    assert "BatchNormalization" not in operators(after), result.fold_map.sources
    old, new = known(before), parts_of(after, 1)
    assert new is not None
    s, t = factors(before)
    axis = {"Conv": 0, "ConvTranspose": 1, "Gemm": 0 if form.get("transB") else 1}[kind]
    along = s.reshape([-1 if i == axis else 1 for i in range(old.integers.ndim)])
    # Integers: reflected about the zero point where the scale is negative, and the same elsewhere.
    assert np.array_equal(new.zero_point, old.zero_point)
    assert np.array_equal(new.centred, np.where(along < 0, -old.centred, old.centred))
    # Scales: the product, rounded once.
    product = old.scale.astype(np.float64) * np.abs(along)
    assert np.array_equal(new.scale, np.broadcast_to(product.astype(np.float32), new.scale.shape))
    # Weights: the correctly rounded product, or its neighbour, as the scale is rounded, too.
    rounded = (new.centred.astype(np.float32) * new.scale).astype(np.float32)
    exact = [
        float(np.float32(float(int(q) * Fraction(float(e)) * Fraction(float(f)))))
        for q, e, f in zip(
            old.centred.ravel(),
            old.scale.ravel(),
            np.broadcast_to(along, old.scale.shape).ravel(),
            strict=True,
        )
    ]
    assert ulps(rounded.ravel(), np.array(exact, np.float32)).max() <= 1
    if bias == "int32":
        was, now = parts_of(before, 2), parts_of(after, 2)
        assert was is not None
        assert now is not None
        assert now.integers.dtype == np.int32
        assert np.array_equal(
            now.scale, (was.scale.astype(np.float64) * np.abs(s)).astype(np.float32)
        )
        for q, width, b, e, f, shift in zip(
            now.integers, now.scale, was.integers, was.scale, s, t, strict=True
        ):
            wanted = int(b) * Fraction(float(e)) * Fraction(float(f)) + Fraction(float(shift))
            assert abs(int(q) * Fraction(float(width)) - wanted) <= Fraction(
                float(width)
            ) * Fraction(501, 1000)


def known(model: ModelProto) -> Parts:
    """What the weight is dequantized from.

    Its integers computed by onnxruntime where the model quantizes it.
    """
    stored = [node for node in model.graph.node if node.op_type in ("QuantizeLinear", "Clip")]
    if not stored:
        found = parts_of(model, 1)
        assert found is not None
        return found
    name = stored[-1].output[0]
    cut = ModelProto()
    cut.CopyFrom(model)
    info = cut.graph.output.add(name=name)
    info.type.tensor_type.elem_type = 3
    integers = run(cut, {"x": np.zeros([2, 3, 5, 5], np.float32)})[name]
    for node in stored:
        cut.graph.node.remove(node)
    cut.graph.initializer.append(numpy_helper.from_array(integers, name))
    found = parts_of(cut, 1)
    assert found is not None
    return found


def between_integers(
    kind: str, bias: str, *, relu: bool, quantized: bool, axis: int | None = -1
) -> ModelProto:
    """QuantizeLinear, DequantizeLinear, a layer, BatchNormalization, and again if `quantized`."""
    graph = Graph(dtype=F32, opset=17, ir=8)
    dense = kind in ("Gemm", "MatMul")
    pair = chain(
        op("QuantizeLinear", np.float32(0.02), np.uint8(128)),
        op("DequantizeLinear", np.float32(0.02), np.uint8(128)),
    )
    scale = np.float32(0.01) if axis is None else np.linspace(0.01, 0.02, 4, dtype=np.float32)
    weighted = layer(
        kind, bias=bias, steps=4, step=np.float32(0.02) * scale, scale=scale, axis=axis
    )
    steps = [pair, weighted, bn(4), *([op("Relu")] if relu else [])]
    if quantized:
        point = np.uint8(0 if relu else 128)
        steps += [
            op("QuantizeLinear", np.float32(0.05), point),
            op("DequantizeLinear", np.float32(0.05), point),
        ]
    graph.output(chain(*steps)(graph, graph.input("x", [2, 3] if dense else [2, 3, 5, 5])))
    return graph.model()


INTEGER_OPERATORS = ("QLinearConv", "QGemm", "QLinearMatMul", "MatMulIntegerToFloat")


def fused(model: ModelProto, folder: Path) -> Counter[str]:
    """The integer operators that onnxruntime makes of a model with all its optimisations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.log_severity_level = 4
    onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    made = onnx.load(folder / "optimized.onnx")
    return Counter(node.op_type for node in made.graph.node if node.op_type in INTEGER_OPERATORS)


@pytest.mark.parametrize("quantized", [True, False])
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize(
    ("kind", "bias"),
    [
        ("Conv", ""),
        ("Conv", "float"),
        ("Conv", "int32"),
        ("Gemm", ""),
        ("Gemm", "float"),
        ("Gemm", "int32"),
        ("MatMul", ""),
    ],
)
def test_onnxruntime_computes_no_fewer_layers_in_integers(
    kind: str, bias: str, relu: bool, quantized: bool, tmp_path: Path
) -> None:
    before = between_integers(kind, bias, relu=relu, quantized=quantized)
    result = compiled(before)
    old, new = fused(before, tmp_path), fused(result.model, tmp_path)
    assert sum(new.values()) >= sum(old.values())
    is_folded = "BatchNormalization" not in operators(result.model)
    assert is_folded == (quantized or kind == "Conv" or bool(bias)), result.fold_map.sources
    if quantized:
        assert sum(new.values()) == 1, new
    if not is_folded:
        assert (
            "a float bias would make a float product of it" in result.fold_map.sources[0]["detail"]
        )


PAIR = chain(
    op("QuantizeLinear", np.float32(0.02), np.uint8(128)),
    op("DequantizeLinear", np.float32(0.02), np.uint8(128)),
)
HALF = mul(c=0.5)


@pytest.mark.parametrize(
    ("steps", "gained"),
    [
        ((HALF, layer(axis=None)), 1),
        ((HALF, op("Relu"), layer(axis=None, bias="int32")), 0),
        ((op("MaxPool", kernel_shape=[2, 2]), HALF, layer(axis=None)), 1),
        ((op("Transpose", perm=[0, 2, 3, 1]), HALF, layer("MatMul", axis=None)), 1),
        ((HALF, op("Softmax")), 0),
        ((HALF,), 0),
    ],
    ids=["Conv", "Relu", "MaxPool", "MatMul", "Softmax", "nothing"],
)
def test_onnxruntime_computes_more_layers_in_integers_after_a_scale_of_computed_data(
    steps: Sequence[Step], gained: int, tmp_path: Path
) -> None:
    graph = Graph(dtype=F32, opset=17, ir=8)
    graph.output(chain(PAIR, *steps, PAIR)(graph, graph.input("x", [2, 3, 5, 5])))
    result = compiled(graph.model())
    assert "Mul" not in operators(result.model), result.fold_map.sources
    old, new = fused(graph.model(), tmp_path), fused(result.model, tmp_path)
    assert sum(new.values()) == sum(old.values()) + gained, (old, new)


@pytest.mark.parametrize("bias", ["", "float", "int32"])
@pytest.mark.parametrize("kind", ["Conv", "Gemm"])
def test_verification_accepts_the_fold_and_unfolding_undoes_it(
    kind: str, bias: str, tmp_path: Path
) -> None:
    source, made, fold_map, back = (
        tmp_path / name for name in ("in.onnx", "out.onnx", "map.json", "back.onnx")
    )
    onnx.save(between_integers(kind, bias, relu=True, quantized=True), source)
    assert (
        main(["compile", str(source), "-o", str(made), "--fold-map", str(fold_map), "--verify"])
        == 0
    )
    assert "BatchNormalization" not in operators(onnx.load(made))
    assert main(["unfold", str(made), str(fold_map), "-o", str(back)]) == 0
    assert back.read_bytes() == source.read_bytes()


def test_a_bias_that_is_off_by_several_steps_is_a_deviation(tmp_path: Path) -> None:
    before = between_integers("Conv", "int32", relu=False, quantized=False)
    after = compiled(before).model
    bias = next(
        tensor for tensor in after.graph.initializer if tensor.data_type == TensorProto.INT32
    )
    bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias) + np.int32(8), bias.name))
    onnx.save(before, tmp_path / "a.onnx")
    onnx.save(after, tmp_path / "b.onnx")
    assert (
        main(["align", str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx"), "--by", "rounding"]) == 1
    )


@pytest.mark.parametrize("kind", ["Conv", "Gemm"])
def test_the_fold_map_says_what_went_into_integers_scales_and_bias(kind: str) -> None:
    before = between_integers(kind, "int32", relu=False, quantized=True)
    result = compiled(before)
    (entry,) = result.fold_map.layers
    scale, shift = factors(before)
    found = entry["quantized"]
    assert found is not None
    assert found["reflected"] == int((scale < 0).sum()) > 0
    assert found["zeroed"] == 0
    constants = {tensor.name for tensor in result.model.graph.initializer}
    for stored in (found["weight"], found["bias"]):
        assert stored is not None
        assert {stored["integers"], stored["scale"]} <= constants
    old, new = parts_of(before, 2), parts_of(result.model, 2)
    assert old is not None
    assert new is not None
    wanted = scale * old.integers * old.scale.astype(np.float64) + shift
    error = float(np.abs(new.integers * new.scale.astype(np.float64) - wanted).max())
    assert np.isclose(found["bias_error"], error, rtol=1e-6)
    assert 0 < error <= new.scale.max() / 2
    known = result.fold_map.output_stats(entry["id"])
    assert known is not None
    beta = next(source["params"]["beta"]["value"] for source in result.fold_map.sources)
    assert beta is not None
    assert np.array_equal(known.mean, result.fold_map.arrays.get(beta))


@pytest.mark.parametrize(
    ("data", "result", "reflected"),
    [
        ([2, -2, 2], [1, 2, 0, 3], 3),
        ([2, 2, 2], [1, -2, 0, -3], 2),
        ([-2] * 3, [3] * 4, 4),
        ([-2, 2, 2], [-1, 1, 1, 1], 4),
    ],
)
def test_channels_are_counted_where_affines_before_and_after_fold(
    data: list[float], result: list[float], reflected: int
) -> None:
    graph = Graph(dtype=F32, opset=21)
    build = chain(mul(3, c=data), layer("Gemm"), mul(4, c=result))
    graph.output(build(graph, graph.input("x", [2, 3])))
    (entry,) = compiled(graph.model()).fold_map.layers
    found = entry["quantized"]
    assert found is not None
    assert (found["reflected"], found["zeroed"]) == (reflected, result.count(0))


@pytest.mark.parametrize(("integer", "left"), [(104, 1), (103, 0)])
def test_a_scale_that_is_rounded_up_does_not_overflow(integer: int, left: int) -> None:
    """65508 fits float16, but 104 times the rounding of 65508 / 104 does not.

    103 times that of 65495 / 103 does.
    """
    half = np.dtype(np.float16)
    graph = Graph(dtype=half, opset=21)
    weighted = layer(shape=(1, 3, 1, 1), low=integer, high=integer, scale=[1.0], zero_point=None)
    factor = np.float16(65504 / integer / 0.999)
    build = chain(weighted, mul(1, c=factor), mul(1, c=np.float16(0.999)))
    x = graph.input("x", [1, 3, 2, 2])
    y = build(graph, x)
    graph.output(y)
    after = compiled(graph.model()).model
    assert operators(after).count("Mul") == left
    parts = parts_of(after, 1)
    assert parts is not None
    assert np.isfinite(parts.centred.astype(half) * parts.scale).all()


def test_a_zero_scale_is_counted() -> None:
    graph = Graph(dtype=F32)
    graph.output(
        chain(layer(), mul(4, 1, 1, c=[0, -1, 2, 0]))(graph, graph.input("x", [2, 3, 5, 5]))
    )
    (entry,) = compiled(graph.model()).fold_map.layers
    found = entry["quantized"]
    assert found is not None
    assert (found["reflected"], found["zeroed"], found["bias"], found["bias_error"]) == (
        1,
        2,
        None,
        0.0,
    )


def test_integers_that_a_text_leaves_out_are_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = Graph(dtype=F32)
    graph.output(
        chain(layer(shape=(16, 8, 3, 3)), mul(16, 1, 1))(graph, graph.input("x", [2, 8, 5, 5]))
    )
    onnx.save(graph.model(), tmp_path / "model.onnx")
    assert main(["dump", str(tmp_path / "model.onnx")]) == 0
    (tmp_path / "text.irc").write_text(capsys.readouterr().out)
    assert main(["dump", str(tmp_path / "text.irc"), "--passes", "FoldScaleAxis"]) == 0
    assert "multiply(" in capsys.readouterr().out
