"""Graphs as tf2onnx and Paddle2ONNX write them, built by hand.

Every affine folds, and verification accuses nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import irc
import numpy as np
import pytest
from graphs import Array, Graph, batch_norm, check, operators, reasons
from irc.passes import PassContext
from irc.tools.verify import VerifyNumerics
from onnx import ModelProto, TensorProto

NCHW, NHWC = [0, 3, 1, 2], [0, 2, 3, 1]


def ints(graph: Graph, *items: int) -> str:
    return graph.initializer(np.array(items, np.int64))


class Keras(Graph):
    """Nodes under the names and in the forms of tf2onnx."""

    scope = "StatefulPartitionedCall/model"

    def op(self, op: str, inputs: Sequence[str], layer: str, **attrs: Any) -> str:
        name = self.fresh(f"{self.scope}/{layer}_")
        return self.node(op, inputs, f"{name}:0", name, **attrs)

    def conv(self, x: str, weight: Array, layer: str, *, bias: bool = False, **attrs: Any) -> str:
        inputs = [x, self.initializer(weight, f"{self.scope}/{layer}/ReadVariableOp:0")]
        if bias:
            inputs.append(
                self.initializer(
                    self.random(len(weight)), f"{self.scope}/{layer}/BiasAdd/ReadVariableOp:0"
                )
            )
        return self.op("Conv", inputs, f"{layer}/Conv2D", kernel_shape=weight.shape[2:], **attrs)

    def norm(self, x: str, channels: int, layer: str) -> str:
        seed = sum(map(ord, layer))
        name = f"{self.scope}/{layer}/FusedBatchNormV3"
        return self.batch_norm(x, batch_norm(channels, seed, epsilon=1e-3), f"{name}:0", name)

    def turned(self, x: str, perm: Sequence[int]) -> str:
        return self.op("Transpose", [x], "Conv2D_", perm=perm)

    def head(self, x: str, channels: int) -> None:
        """Global average, Squeeze, and a dense layer with softmax, as MatMul and Add."""
        pooled = self.op("GlobalAveragePool", [x], "pool/Mean")
        flat = self.op("Squeeze", [pooled, ints(self, 2, 3)], "pool/Mean_Squeeze")
        product = self.op(
            "MatMul", [flat, self.initializer(self.random(channels, 5))], "predictions/MatMul"
        )
        logits = self.op("Add", [product, self.initializer(self.random(5))], "predictions/BiasAdd")
        self.output(
            self.node("Softmax", [logits], "predictions", "predictions", axis=1), ["unk__9", 5]
        )


def keras(shape: Sequence[int | str] = ("unk__6", 12, 12, 3)) -> tuple[Keras, str]:
    graph = Keras(opset=13, ir=7)
    return graph, graph.input("input_1", shape)


def mobile_net() -> ModelProto:
    """Channels last outside.

    Padding of its own, depthwise convolutions as groups, ReLU6 as Clip of constants.
    """
    graph, x = keras()
    x = graph.turned(x, NCHW)
    x = graph.op("Pad", [x, ints(graph, 0, 0, 0, 0, 0, 0, 1, 1)], "Conv1_pad/Pad", mode="constant")
    x = graph.conv(x, graph.random(8, 3, 3, 3), "Conv1", strides=[2, 2], auto_pad="VALID")
    for i in range(2):
        x = graph.norm(x, 8, f"bn_{i}")
        x = graph.op(
            "Clip", [x, *(graph.initializer(np.float32(end)) for end in (0, 6))], f"relu_{i}/Relu6"
        )
        x = graph.conv(
            x, graph.random(8, 1, 3, 3), f"depthwise_{i}", group=8, auto_pad="SAME_UPPER"
        )
        x = graph.norm(x, 8, f"depthwise_bn_{i}")
        x = graph.conv(
            graph.op("Relu", [x], f"depthwise_relu_{i}"), graph.random(8, 8, 1, 1), f"project_{i}"
        )
    graph.head(graph.norm(x, 8, "project_bn"), 8)
    return graph.model()


def channels_last() -> ModelProto:
    """A Transpose around every convolution, a decomposed normalization over the last axis."""
    graph, x = keras()
    for i, into in enumerate((3, 6)):
        x = graph.conv(
            graph.turned(x, NCHW),
            graph.random(6, into, 3, 3),
            f"conv_{i}",
            bias=bool(i),
            pads=[1] * 4,
        )
        x = graph.turned(x, NHWC)
        x = graph.op("Mul", [x, graph.initializer(graph.random(6))], f"bn_{i}/mul_1")
        x = graph.op("Add", [x, graph.initializer(graph.random(6))], f"bn_{i}/add_1")
        x = graph.op("Relu", [x], f"relu_{i}")
    graph.output(graph.op("Identity", [x], "out"), ["unk__6", 12, 12, 6])
    return graph.model()


def normalized_between_transposes() -> ModelProto:
    """The convolution is turned to channels last, and back for its BatchNormalization."""
    graph, x = keras()
    x = graph.conv(graph.turned(x, NCHW), graph.random(6, 3, 3, 3), "conv")
    x = graph.norm(graph.turned(graph.turned(x, NHWC), NCHW), 6, "bn")
    graph.output(graph.op("Relu", [graph.turned(x, NHWC)], "relu"), ["unk__6", 10, 10, 6])
    return graph.model()


def one_dimensional() -> ModelProto:
    """Conv1D is Conv2D between Unsqueeze and Squeeze."""
    graph, x = keras(["unk__6", 20, 3])
    x = graph.op("Unsqueeze", [graph.turned(x, [0, 2, 1]), ints(graph, 2)], "conv1d/ExpandDims")
    x = graph.conv(x, graph.random(6, 3, 1, 5), "conv1d")
    x = graph.op("Squeeze", [x, ints(graph, 2)], "conv1d/Squeeze")
    graph.output(graph.op("Relu", [graph.norm(x, 6, "bn")], "relu"), ["unk__6", 6, 16])
    return graph.model()


def computed_shape() -> ModelProto:
    """A Reshape to [batch, -1, 4] whose batch comes through Shape, Cast, Slice and Concat."""
    graph, x = keras()
    x = graph.conv(graph.turned(x, NCHW), graph.random(8, 3, 3, 3), "conv", bias=True)
    x = graph.turned(graph.op("Relu", [graph.norm(x, 8, "bn")], "relu"), NHWC)
    shape = graph.op("Cast", [graph.op("Shape", [x], "Shape")], "Shape_cast", to=TensorProto.INT32)
    batch = graph.op("Slice", [shape, *(ints(graph, n) for n in (0, 1, 0))], "strided_slice")
    batch = graph.op(
        "Unsqueeze",
        [graph.op("Squeeze", [batch, ints(graph, 0)], "strided"), ints(graph, 0)],
        "packed",
    )
    rest = graph.initializer(np.array([-1, 4], np.int32))
    target = graph.op("Concat", [batch, rest], "Reshape/shape", axis=0)
    target = graph.op("Cast", [target], "Reshape_cast", to=TensorProto.INT64)
    graph.output(graph.op("Reshape", [x, target], "Reshape"), ["unk__6", "unk__7", 4])
    return graph.model()


def dense() -> ModelProto:
    """MatMul and Add, with BatchNormalization decomposed into Mul and Add behind."""
    graph, x = keras(["unk__6", 12])
    for i, (into, out) in enumerate(((12, 8), (8, 5))):
        x = graph.op("MatMul", [x, graph.initializer(graph.random(into, out))], f"dense_{i}/MatMul")
        x = graph.op("Add", [x, graph.initializer(graph.random(out))], f"dense_{i}/BiasAdd")
        x = graph.op("Mul", [x, graph.initializer(graph.random(out))], f"bn_{i}/batchnorm/mul_1")
        x = graph.op("Add", [x, graph.initializer(graph.random(out))], f"bn_{i}/batchnorm/add_1")
        x = graph.op("Relu", [x], f"relu_{i}")
    graph.output(x, ["unk__6", 5])
    return graph.model()


def decoder() -> ModelProto:
    """A Conv2DTranspose, cropped and padded to twice the extents of its data, which are open.

    The sizes are computed in int32, and the pads turned around by Split and Concat.
    """
    graph, x = keras(["unk__6", "unk__7", "unk__8", 3])
    x = graph.conv(graph.turned(x, NCHW), graph.random(6, 3, 3, 3), "conv", auto_pad="SAME_UPPER")
    window = {"kernel_shape": [2, 2], "strides": [2, 2], "auto_pad": "VALID"}
    x = graph.op("MaxPool", [graph.op("Relu", [x], "relu")], "max_pool", **window)
    zero, two = ints(graph, 0), ints(graph, 2)
    shape = graph.op("Cast", [graph.op("Shape", [x], "Shape")], "Shape_cast", to=TensorProto.INT32)
    twice = graph.initializer(np.array([2], np.int32))
    weight = graph.initializer(graph.random(6, 4, 3, 3))
    wide = graph.op("ConvTranspose", [x, weight], "conv_transpose", strides=[2, 2])
    starts, ends, pads = [], [], [zero] * 6
    for axis in (2, 3):
        part = graph.op("Slice", [shape, *(ints(graph, n) for n in (axis, axis + 1))], "size")
        size = graph.op("Mul", [part, twice], "mul")
        size = graph.op("Cast", [size], "size_cast", to=TensorProto.INT64)
        parts = [graph.op("Shape", [wide], "Shape"), ints(graph, axis), ints(graph, axis + 1)]
        rest = graph.op("Sub", [graph.op("Slice", parts, "extent"), size], "Sub")
        lost = graph.op("Div", [graph.op("Max", [rest, zero], "Max"), two], "Div")
        starts.append(lost)
        ends.append(graph.op("Add", [lost, size], "Add"))
        pads.append(graph.op("Max", [graph.op("Neg", [rest], "Neg"), zero], "Max"))
    bounds = [graph.op("Concat", each, "Concat", axis=0) for each in (starts, ends)]
    x = graph.op("Slice", [wide, *bounds, ints(graph, 2, 3)], "crop")
    x = graph.op("Pad", [x, graph.op("Concat", pads, "Concat", axis=0)], "pad")
    x = graph.op("Mul", [x, graph.initializer(graph.random(1, 4, 1, 1))], "bn/batchnorm/mul_1")
    x = graph.op("Add", [x, graph.initializer(graph.random(1, 4, 1, 1))], "bn/batchnorm/add_1")
    graph.output(graph.op("Relu", [x], "relu"), ["unk__9", 4, "unk__10", "unk__11"])
    return graph.model()


class Paddle(Graph):
    """Nodes under the names and in the forms of Paddle2ONNX, up to opset 11."""

    norms = 0

    def conv(self, x: str, weight: Array, op: str = "Conv", **attrs: Any) -> str:
        names = [x, self.initializer(weight, self.fresh("conv2d") + ".w_0")]
        return self.node(op, names, self.fresh("conv2d") + ".tmp_0", dilations=[1, 1], **attrs)

    def norm(self, x: str, channels: int, *, how: str = "initializer") -> str:
        stem = f"batch_norm2d_{self.norms}"
        params = batch_norm(channels, self.norms + 1)
        names = [
            self.constant(array, how, f"{stem}.{end}")
            for array, end in zip(params.arrays, ENDS, strict=True)
        ]
        self.norms += 1
        return self.batch_norm(x, params, f"{stem}.tmp_2", names=names, epsilon=1e-5, momentum=0.9)

    def number(self, value: float) -> str:
        return self.constant(np.array([value], np.float32), "value")

    def hard_swish(self, x: str) -> str:
        """X * clip(x + 3, 0, 6) / 6"""
        gate = self.node("Add", [x, self.number(3)])
        if self.opset < 11:
            gate = self.node("Clip", [gate], min=0.0, max=6.0)
        else:
            ends = (
                [self.node("Constant", [], value_float=end) for end in (0.0, 6.0)]
                if self.opset > 11
                else []
            )
            gate = self.node(
                "Clip", [gate, *(ends or [self.initializer(np.float32(end)) for end in (0, 6)])]
            )
        return self.node("Div", [self.node("Mul", [x, gate]), self.number(6)])

    def biased(self, x: str, bias: Array) -> str:
        """Elementwise_add with axis 1: the vector gets the rank of the data by a Reshape."""
        shape = self.constant(np.array([1, -1, 1, 1], np.int64), "value")
        return self.node("Add", [x, self.node("Reshape", [self.initializer(bias), shape])])

    def result(self, x: str, shape: Sequence[int | str]) -> None:
        """A result under a name that an Identity gives."""
        self.output(
            self.node("Identity", [x], f"save_infer_model/scale_{len(self.outputs)}.tmp_1"), shape
        )


ENDS = ("w_0", "b_0", "w_1", "w_2")


def paddle(opset: int, shape: Sequence[int | str] = (-1, 3, 16, 16)) -> tuple[Paddle, str]:
    graph = Paddle(opset=opset, ir=7)
    return graph, graph.input("x", shape)


def text_detector(opset: int) -> ModelProto:
    """The head of a text detector.

    Squeeze and excite, nearest Resize, two ConvTranspose, a probability map.
    """
    graph, x = paddle(opset, ["batch", 3, 16, 16])
    how = "value" if opset < 11 else "initializer"
    x = graph.hard_swish(
        graph.norm(
            graph.conv(x, graph.random(8, 3, 3, 3), pads=[1] * 4, strides=[2, 2]), 8, how=how
        )
    )
    deep = graph.norm(
        graph.conv(x, graph.random(8, 1, 5, 5), group=8, pads=[2] * 4, strides=[2, 2]), 8, how=how
    )
    pooled = graph.node("GlobalAveragePool", [graph.hard_swish(deep)])
    pooled = graph.node(
        "Relu", [graph.biased(graph.conv(pooled, graph.random(4, 8, 1, 1)), graph.random(4))]
    )
    gate = graph.biased(graph.conv(pooled, graph.random(8, 4, 1, 1)), graph.random(8))
    deep = graph.node("Mul", [deep, graph.node("HardSigmoid", [gate], alpha=0.2, beta=0.5)])
    scales = graph.constant(np.array([1, 1, 2, 2], np.float32), "value")
    if opset < 11:
        deep = graph.node("Resize", [deep, scales], mode="nearest")
    else:
        modes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        none = graph.constant(np.zeros(0, np.float32), "value")
        deep = graph.node("Resize", [deep, none, scales], mode="nearest", **modes)
    x = graph.node("Concat", [x, deep], axis=1)
    x = graph.node(
        "Relu", [graph.norm(graph.conv(x, graph.random(6, 16, 3, 3), pads=[1] * 4), 6, how=how)]
    )
    x = graph.biased(
        graph.conv(x, graph.random(6, 6, 2, 2), "ConvTranspose", strides=[2, 2]), graph.random(6)
    )
    x = graph.node("Relu", [graph.norm(x, 6, how=how)])
    x = graph.biased(
        graph.conv(x, graph.random(6, 1, 2, 2), "ConvTranspose", strides=[2, 2]), graph.random(1)
    )
    graph.result(graph.node("Sigmoid", [x]), ["batch", 1, 32, 32])
    return graph.model()


def text_classifier() -> ModelProto:
    """A scale of the image, sizes through Shape, Cast and Slice, a dense head."""
    graph, x = paddle(11, ["batch", 3, 16, 16])
    x = graph.conv(x, graph.random(8, 3, 3, 3), strides=[2, 2])
    x = graph.node("Mul", [x, graph.number(0.5)])
    x = graph.node("Add", [x, graph.number(-0.25)])
    x = graph.norm(x, 8)
    shape = graph.node("Cast", [graph.node("Shape", [x])], to=TensorProto.INT32)
    batch = graph.node("Slice", [shape, *(ints(graph, n) for n in (0, 1, 0))])
    target = graph.node(
        "Concat", [graph.node("Cast", [batch], to=TensorProto.INT64), ints(graph, 8, -1)], axis=0
    )
    x = graph.node(
        "ReduceMean", [graph.node("Reshape", [graph.hard_swish(x), target])], axes=[2], keepdims=0
    )
    x = graph.node(
        "MatMul", [x, graph.initializer(graph.random(8, 2), "linear_0.w_0")], "linear_0.tmp_0"
    )
    x = graph.node("Add", [x, graph.initializer(graph.random(2), "linear_0.b_0")], "linear_0.tmp_1")
    graph.result(graph.node("Softmax", [x], axis=1), ["batch", 2])
    return graph.model()


def pyramid() -> ModelProto:
    """Nearest Resize to the size of another map, from Shape, Slice and Concat.

    Two results of one map.
    """
    graph, x = paddle(11, ["batch", 3, "height", "width"])
    first = graph.norm(graph.conv(x, graph.random(6, 3, 3, 3), pads=[1] * 4), 6)
    second = graph.conv(
        graph.node("Relu", [first]), graph.random(6, 6, 3, 3), pads=[1] * 4, strides=[2, 2]
    )
    second = graph.node("LeakyRelu", [graph.norm(second, 6)], alpha=0.1)
    extent = [graph.node("Slice", [graph.node("Shape", [v]), *(ints(graph, n) for n in ends)]) for v, ends in
              ((second, (0, 2)), (first, (2, 4)))]  # fmt: skip
    none = [graph.constant(np.zeros(0, np.float32), "value") for _ in range(2)]
    sizes = graph.node("Concat", extent, axis=0)
    modes = {
        "mode": "nearest",
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    }
    wide = graph.node("Resize", [second, *none, sizes], **modes)
    x = graph.norm(graph.conv(wide, graph.random(4, 6, 1, 1)), 4)
    for shape in (["batch", 4, "height", "width"], ["batch", 4, "rows", "columns"]):
        graph.result(x, shape)
    return graph.model()


STYLES: dict[str, Callable[[], ModelProto]] = {
    "tf2onnx, depthwise": mobile_net,
    "tf2onnx, channels last": channels_last,
    "tf2onnx, between transposes": normalized_between_transposes,
    "tf2onnx, one dimension": one_dimensional,
    "tf2onnx, computed shape": computed_shape,
    "tf2onnx, dense": dense,
    "tf2onnx, decoder": decoder,
    "paddle, detector, opset 10": lambda: text_detector(10),
    "paddle, detector, opset 11": lambda: text_detector(11),
    "paddle, classifier": text_classifier,
    "paddle, pyramid": pyramid,
}


@pytest.mark.parametrize("style", STYLES)
def test_every_affine_folds(style: str) -> None:
    """But for the Add and Div of a HardSwish written out, which a runtime may fuse."""
    result = check(STYLES[style]())
    kept = [source for source in result.fold_map.sources if source["status"] == "kept"]
    assert all(source["reason"] == "fused_unit" for source in kept), reasons(result)
    is_swish = style.startswith("paddle")
    swishes = sum(is_swish and node.op_type == "Div" for node in STYLES[style]().graph.node)
    assert [source["kind"] for source in kept] == ["add", "div"] * swishes
    assert "BatchNormalization" not in operators(result.model)


def test_extents_that_tf2onnx_computes_in_int32_are_known() -> None:
    layers = ["Transpose", "Conv", "Relu", "MaxPool", "ConvTranspose"]
    assert operators(check(decoder()).model) == [*layers, "Slice", "Relu"]


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
def test_verification_accuses_nobody(
    style: str, record_property: Callable[[str, object], None]
) -> None:
    verify = VerifyNumerics()
    result = irc.compile(STYLES[style](), context=PassContext([verify]))
    verify.finish(result.module, result.model)
    greatest = max(verdict.greatest for verdict in verify.verdicts)
    assert greatest <= 1
    record_property("compared", f"{style}: {greatest:.3f} of the bound")
