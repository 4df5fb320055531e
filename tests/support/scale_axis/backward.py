"""Section 3.2: an affine on its way back to a layer, through the operators in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from graphs import Graph, onnx_dtype

from .build import (
    BN,
    Case,
    Step,
    add,
    binary,
    bn,
    branches,
    case,
    chain,
    constant,
    conv,
    deconv,
    draw,
    expose,
    ints,
    matmul,
    mul,
    mul_add,
    op,
    other,
    same,
    split,
)

ALWAYS = "partial=always"
APART = "partial=pays"
"""The default, in a pipeline without MergeBranches."""
NEVER = "partial=never"
C = (4, 1, 1)
SCALE = mul(*C)
POSITIVE = mul(*C, sign="+")
NEGATIVE = mul(*C, sign="-")
ZERO = mul(*C, c=[0, 1, 2, 0])
SHIFTED = mul_add(*C, sign="+")
UNIFORM = chain(mul(c=2.0), add(c=1.0))
UNIFORM_NEGATIVE = chain(mul(c=-2.0), add(c=1.0))
UNSHIFTED_BN = bn(4, "+", t=0)


def behind(*steps: Step) -> tuple[Step, ...]:
    """A Conv with four channels, then the steps."""
    return (conv(4, 3), *steps)


# scale passes where it is positive, the shift never


def prelu(*shape: int) -> Step:
    return lambda graph, x: graph.node("PRelu", [x, graph.initializer(draw(graph, shape))])


def dynamic_prelu(graph: Graph, x: str) -> str:
    return graph.node("PRelu", [x, graph.input("slope", [4, 1, 1])])


GATES: dict[str, Step] = {
    "Relu": op("Relu"),
    "LeakyRelu": op("LeakyRelu", alpha=0.1),
    "LeakyRelu, default alpha": op("LeakyRelu"),
    "LeakyRelu, negative alpha": op("LeakyRelu", alpha=-0.5),
    "PRelu, one slope": prelu(1),
    "PRelu, slope per channel": prelu(4, 1, 1),
    "PRelu, slope per element": prelu(4, 6, 5),
    "PRelu, dynamic slope": dynamic_prelu,
    "Abs": op("Abs"),
}
KINDS: list[Case] = [
    row
    for name, gate in GATES.items()
    for row in (
        case(f"3.2 {name}", "positive scale", *behind(gate, POSITIVE)),
        case(f"3.2 {name}", "positive BatchNormalization without shift", *behind(gate, UNSHIFTED_BN)),
        case(f"3.2 {name}", "zero scale", *behind(gate, ZERO)),
        case(f"3.2 {name}", "positive scale and shift", *behind(gate, SHIFTED), left="Add"),
        case(f"3.2 {name}", "two operators are two affines", *behind(gate, SHIFTED), left="Add", options=NEVER),
        case(f"3.2 {name}", "a BatchNormalization is never cut", *behind(gate, bn(4, "+")), left=BN, options=NEVER),
        case(f"3.2 {name}", "positive BatchNormalization", *behind(gate, bn(4, "+")), left=BN),
        case(f"3.2 {name}", "positive BatchNormalization, always", *behind(gate, bn(4, "+")), left="Add",
             options=ALWAYS),
        case(f"3.2 {name}", "mixed scale", *behind(gate, SCALE), left="Mul"),
        case(f"3.2 {name}", "negative scale", *behind(gate, NEGATIVE), left="Mul"),
        case(f"3.2 {name}", "mixed BatchNormalization, always", *behind(gate, bn(4)), left=BN, options=ALWAYS),
        case(f"3.2 {name}", "uniform", *behind(gate, UNIFORM), left="Add"),
    )
]  # fmt: skip
TWO_GATES = [
    case("3.2 Relu", "twice", *behind(op("Relu"), POSITIVE, op("Relu"), POSITIVE)),
    case("3.2 Relu", "one channel with a shift", conv(1, 3), op("Relu"), bn(1, "+"), left=BN),
    case("3.2 Relu", "behind a ConvTranspose of 2 groups", deconv(4, 4, 2, 2, group=2), op("Relu"), POSITIVE,
         x=[2, 4, 4, 3]),
]  # fmt: skip

# Clip


def clip(low: float | None, high: float | None, *, attributes: bool = False) -> Step:
    def build(graph: Graph, x: str) -> str:
        if attributes:
            bounds: dict[str, Any] = {"min": low, "max": high}
            return graph.node(
                "Clip", [x], **{k: float(v) for k, v in bounds.items() if v is not None}
            )
        names = ["" if bound is None else graph.initializer(bound) for bound in (low, high)]
        return graph.node("Clip", [x, *names])

    return build


def dynamic_clip(graph: Graph, x: str) -> str:
    return graph.node("Clip", [x, graph.initializer(0.0), graph.input("high", [])])


CLIP = [
    case("3.2 Clip", "uniform", *behind(clip(-1, 2), UNIFORM), has="Clip"),
    case("3.2 Clip", "uniform negative", *behind(clip(-1, 2), UNIFORM_NEGATIVE), has="Clip"),
    case("3.2 Clip", "uniform, only a lower bound", *behind(clip(-1, None), UNIFORM), has="Clip"),
    case("3.2 Clip", "uniform negative, only a lower bound", *behind(clip(-1, None), UNIFORM_NEGATIVE), has="Clip"),
    case("3.2 Clip", "uniform negative, only an upper bound", *behind(clip(None, 1), UNIFORM_NEGATIVE), has="Clip"),
    case("3.2 Clip", "Relu6 of opset 6", *behind(clip(0, 6, attributes=True), UNIFORM), opset=9, has="Clip"),
    case("3.2 Clip", "opset 6, uniform negative", *behind(clip(0, 6, attributes=True), UNIFORM_NEGATIVE), opset=9,
         has="Clip"),
    case("3.2 Clip", "opset 6, one bound, negative", *behind(clip(0, None, attributes=True), UNIFORM_NEGATIVE), opset=9,
         has="Clip"),
    case("3.2 Clip", "uniform BatchNormalization", *behind(clip(0, 6), bn(4, s=2, t=1)), has="Clip"),
    case("3.2 Clip", "positive scale", *behind(clip(0, 6), POSITIVE), left="Mul"),
    case("3.2 Clip", "BatchNormalization", *behind(clip(0, 6), bn(4, "+")), left=BN),
    case("3.2 Clip", "BatchNormalization, always", *behind(clip(0, 6), bn(4, "+")), left=BN, options=ALWAYS),
    case("3.2 Clip, Min", "the Min is further", *behind(clip(0, 6), binary("Min", *C), POSITIVE), has="Clip Min"),
    case("3.2 Clip, Min", "a Max, too, and a shift", *behind(
        clip(-1, 6), binary("Max", *C, c=[-0.5, 0.25, -1, 0.75]), binary("Min", *C, c=[1, 2, 0.25, 3]), SHIFTED)),
    case("3.2 Clip, Min", "the Max is not further", *behind(
        clip(-1, 6), binary("Max", *C, c=[-0.5, 0.25, -2, 0.75]), binary("Min", *C), POSITIVE), left="Mul"),
    case("3.2 Clip, Min", "the Min is not further", *behind(clip(0, 1), binary("Min", *C), POSITIVE), left="Mul"),
    case("3.2 Clip, Min", "a lower bound", *behind(clip(-1, 6), binary("Min", *C), POSITIVE), left="Mul"),
    case("3.2 Clip, Min", "per element", *behind(clip(0, 6), binary("Min", 4, 6, 5), POSITIVE), left="Mul"),
    case("3.2 Clip, Min", "NaN", *behind(clip(0, 6), binary("Min", *C, c=[1, 2, np.nan, 1]), POSITIVE), left="Mul"),
    case("3.2 Clip", "dynamic bound", *behind(dynamic_clip, mul(c=2.0)), left="Mul"),
]  # fmt: skip

# nothing passes

WALLS = ("Sigmoid", "Tanh", "Elu", "Selu", "Celu", "Gelu", "HardSwish", "Softplus", "Exp", "Softsign", "Mish", "Sqrt",
         "Softmax", "LogSoftmax", "HardSigmoid", "Sign", "Floor", "ThresholdedRelu", "Erf", "Sin",
         "Reciprocal")  # fmt: skip
NOTHING = [
    *(
        case(f"3.2 {kind}", "positive scale", *behind(op(kind), POSITIVE), left="Mul")
        for kind in WALLS
    ),
    *(
        case(f"3.2 {kind}", "uniform shift", *behind(op(kind), add(c=1.0)), left="Add")
        for kind in WALLS
    ),
    case("3.2 LRN", "positive scale", *behind(op("LRN", size=3), POSITIVE), left="Mul"),
    case(
        "3.2 ReduceSumSquare",
        "positive scale",
        *behind(op("ReduceSumSquare", ints(2, 3)), POSITIVE),
        left="Mul",
    ),
    case(
        "3.2 ReduceProd",
        "positive scale",
        *behind(op("ReduceProd", ints(2, 3)), POSITIVE),
        left="Mul",
    ),
    case(
        "3.2 ReduceLogSumExp", "shift", *behind(op("ReduceLogSumExp", ints(2, 3)), bn(4)), left=BN
    ),
    case("3.2 CumSum", "scale and shift", *behind(op("CumSum", np.asarray(2)), bn(4)), left=BN),
]

# pools


def pool(kind: str, *kernel: int, **attrs: Any) -> Step:
    return op(kind, kernel_shape=list(kernel or (2, 2)), **attrs)


def max_pool_with_indices(graph: Graph, x: str) -> str:
    names = [graph.fresh("pooled"), graph.fresh("indices")]
    graph.node("MaxPool", [x], names, kernel_shape=[2, 2], strides=[2, 2])
    graph.output(names[1], dtype=np.dtype(np.int64))
    return names[0]


MAXIMA: dict[str, Step] = {
    "MaxPool": pool("MaxPool"),
    "MaxPool, pads": pool("MaxPool", 3, 3, pads=[1, 1, 1, 1]),
    "MaxPool, asymmetric pads, ceil_mode": pool(
        "MaxPool", 3, 3, pads=[1, 0, 1, 0], ceil_mode=1, strides=[2, 2]
    ),
    "MaxPool, SAME": pool("MaxPool", 3, 3, auto_pad="SAME_UPPER", strides=[2, 2]),
    "MaxPool, dilations": pool("MaxPool", 2, 2, dilations=[2, 2]),
    "MaxPool, kernel 1": pool("MaxPool", 1, 1),
    "GlobalMaxPool": op("GlobalMaxPool"),
    "ReduceMax": op("ReduceMax", ints(2, 3)),
    "ReduceMax, last axis": op("ReduceMax", ints(-1)),
    "ReduceMin": op("ReduceMin", ints(2, 3)),
}
MAX = [
    *(
        row
        for name, step in MAXIMA.items()
        for row in (
            case(f"3.2 {name}", "positive", *behind(step, bn(4, "+"))),
            case(f"3.2 {name}", "zero", *behind(step, bn(4, s=[0, 1, 0, 2]))),
            case(f"3.2 {name}", "mixed", *behind(step, bn(4)), left=BN),
            case(f"3.2 {name}", "negative", *behind(step, NEGATIVE), left="Mul"),
            case(f"3.2 {name}", "shift alone", *behind(step, add(*C))),
        )
    ),
    case("3.2 MaxPool with indices", "positive", *behind(max_pool_with_indices, bn(4, "+"))),
    case("3.2 MaxPool with indices", "zero", *behind(max_pool_with_indices, bn(4, s=[0, 1, 0, 2])), left=BN),
    case("3.2 MaxPool with indices", "mixed", *behind(max_pool_with_indices, bn(4)), left=BN),
    case("3.2 ReduceMax", "keepdims 0", *behind(op("ReduceMax", ints(2, 3), keepdims=0), bn(4, "+"))),
    case("3.2 ReduceMax", "the batch, keepdims 0", *behind(
        op("ReduceMax", ints(0), keepdims=0), mul(4, 1, 1, sign="+"), add(4, 1, 1))),
    case("3.2 ReduceMax", "the channels, uniform", *behind(op("ReduceMax", ints(1)), UNIFORM)),
    case("3.2 ReduceMax", "the channels, uniform negative", *behind(op("ReduceMax", ints(1)), UNIFORM_NEGATIVE),
         left="Mul"),
    case("3.2 ReduceMax", "the channels, all extents equal", conv(4, 4), op("ReduceMax", ints(1), keepdims=0),
         mul(4, 1, sign="+"), x=[4, 4, 4, 4], left="Mul"),
]  # fmt: skip
MEANS: dict[str, Step] = {
    "AveragePool": pool("AveragePool"),
    "AveragePool, count_include_pad without pads": pool("AveragePool", count_include_pad=1),
    "AveragePool, pads": pool("AveragePool", 3, 3, pads=[1, 1, 1, 1]),
    "AveragePool, asymmetric pads": pool("AveragePool", 3, 3, pads=[2, 0, 1, 0]),
    "AveragePool, ceil_mode": pool("AveragePool", 3, 3, ceil_mode=1, strides=[2, 2]),
    "AveragePool, pads, ceil_mode": pool(
        "AveragePool", 3, 3, pads=[1, 0, 1, 0], ceil_mode=1, strides=[2, 2]
    ),
    "AveragePool, SAME": pool("AveragePool", 3, 3, auto_pad="SAME_LOWER"),
    "GlobalAveragePool": op("GlobalAveragePool"),
    "ReduceMean": op("ReduceMean", ints(2, 3)),
    "ReduceMean, keepdims 0": op("ReduceMean", ints(2, 3), keepdims=0),
    "Resize, nearest": op(
        "Resize", np.asarray([], np.float32), np.asarray([1, 1, 2, 2], np.float32)
    ),
    "Resize, linear": op("Resize", "", np.asarray([1, 1, 1.5, 2], np.float32), mode="linear"),
    "Resize, cubic": op("Resize", "", np.asarray([1, 1, 2, 0.5], np.float32), mode="cubic"),
    "Resize, cubic, exclude_outside": op(
        "Resize", "", "", ints(2, 4, 9, 3), mode="cubic", exclude_outside=1
    ),
    "Resize, linear, align_corners": op(
        "Resize",
        "",
        "",
        ints(2, 4, 9, 3),
        mode="linear",
        coordinate_transformation_mode="align_corners",
    ),
    "Resize, antialias": op(
        "Resize", "", np.asarray([1, 1, 0.5, 0.5], np.float32), mode="linear", antialias=1
    ),
    "Pad, reflect": op("Pad", ints(0, 0, 1, 2, 0, 0, 2, 1), mode="reflect"),
    "Pad, edge": op("Pad", ints(0, 0, 1, 0, 0, 0, 2, 1), mode="edge"),
    "Pad, wrap": op("Pad", ints(0, 0, 1, 2, 0, 0, 2, 1), mode="wrap"),
    "Slice, a plane": op("Slice", ints(1, 0), ints(5, 9), ints(2, 3)),
    "Gather, a row": op("Gather", ints(2, 0, 0), axis=2),
    "Tile, planes": op("Tile", ints(1, 1, 2, 3)),
    "Identity": op("Identity"),
    "Dropout": op("Dropout"),
}
STATIC = ("Resize, cubic, exclude_outside", "Resize, linear, align_corners")
MEAN = [
    *(
        row
        for name, step in MEANS.items()
        for row in (
            case(f"3.2 {name}", "mixed", *behind(step, bn(4)), static=name in STATIC),
            case(f"3.2 {name}", "zero", *behind(step, bn(4, s=[0, 1, -1, 2])), static=name in STATIC),
        )
    ),
    case("3.2 AveragePool, count_include_pad, pads", "scale", *behind(
        pool("AveragePool", 3, 3, pads=[1, 1, 1, 1], count_include_pad=1), SCALE)),
    case("3.2 AveragePool, count_include_pad, pads", "scale and shift", *behind(
        pool("AveragePool", 3, 3, pads=[1, 1, 1, 1], count_include_pad=1), mul_add(*C)), left="Add"),
    case("3.2 AveragePool, count_include_pad, pads", "BatchNormalization", *behind(
        pool("AveragePool", 3, 3, pads=[0, 0, 0, 1], count_include_pad=1), bn(4)), left=BN),
    case("3.2 AveragePool, count_include_pad, SAME", "BatchNormalization", *behind(
        pool("AveragePool", 3, 3, auto_pad="SAME_UPPER", count_include_pad=1), bn(4)), left=BN),
    case("3.2 AveragePool, count_include_pad, ceil_mode", "BatchNormalization", *behind(
        pool("AveragePool", 3, 3, ceil_mode=1, strides=[2, 2], count_include_pad=1), bn(4)), left=BN),
    case("3.2 ReduceMean", "the channels, uniform", *behind(op("ReduceMean", ints(1)), UNIFORM_NEGATIVE)),
    case("3.2 ReduceMean", "all axes, uniform", *behind(op("ReduceMean"), UNIFORM)),
    case("3.2 ReduceMean", "the channels, all extents equal", conv(4, 4), op("ReduceMean", ints(1), keepdims=0),
         mul(4, 1), x=[4, 4, 4, 4], left="Mul"),
    case("3.2 ReduceMean", "the batch, keepdims 0", *behind(op("ReduceMean", ints(0), keepdims=0), mul_add(4, 1, 1))),
    case("3.2 ReduceMean", "axes as an attribute", *behind(op("ReduceMean", axes=[2, 3], keepdims=0), bn(4)), opset=13),
]  # fmt: skip
DEGENERATE = [
    row
    for name, step in {**GATES, **MAXIMA, **MEANS}.items()
    if not name.startswith("PRelu") and name not in (*STATIC, "ReduceMean, keepdims 0")
    for row in (
        case(f"3.2 {name}", "one channel", conv(1, 3), step, mul(1, 1, 1, sign="+")),
        case(f"3.2 {name}", "all extents equal", conv(4, 4), step, mul(*C, sign="+"), x=[4, 4, 4, 4])
        if "keepdims 0" not in name
        else case(f"3.2 {name}", "all extents equal", conv(4, 4), step, mul(4, sign="+"), x=[4, 4, 4, 4]),
        case(f"3.2 {name}", "unknown rank in front", *behind(step, bn(4, "+", t=0)), x=None, y=None),
        case(f"3.2 {name}", "columns, all extents equal", conv(4, 4), step, mul(4, sign="+"), x=[4, 4, 4, 4],
             left="Mul")
        if name in ("Relu", "Abs", "Identity", "MaxPool, kernel 1", "AveragePool, SAME")
        else case(f"3.2 {name}", "scale one", *behind(step, mul(*C, c=[1, 1, 1, 1]))),
    )
]  # fmt: skip

# sums

SUM = [
    case("3.2 ReduceSum", "scale", *behind(op("ReduceSum", ints(2, 3)), SCALE)),
    case("3.2 ReduceSum", "BatchNormalization", *behind(op("ReduceSum", ints(2, 3)), bn(4))),
    case("3.2 ReduceSum", "keepdims 0", *behind(op("ReduceSum", ints(2, 3), keepdims=0), bn(4))),
    case("3.2 ReduceSum", "axes as an attribute", *behind(op("ReduceSum", axes=[2, 3]), bn(4)), opset=11),
    case("3.2 ReduceSum", "of an unknown extent, scale", *behind(op("ReduceSum", ints(2, 3)), SCALE), x=[2, 3, "h", 5]),
    case("3.2 ReduceSum", "of an unknown extent", *behind(op("ReduceSum", ints(2, 3)), bn(4)), x=[2, 3, "h", 5],
         left=BN),
    case("3.2 ReduceSum", "of an unknown extent, scale and shift", *behind(op("ReduceSum", ints(2, 3)), mul_add(*C)),
         x=[2, 3, "h", 5], left="Add"),
    case("3.2 ReduceSum", "the channels, uniform", *behind(op("ReduceSum", ints(1)), UNIFORM)),
    case("3.2 ReduceSum", "the channels, all extents equal", conv(4, 4), op("ReduceSum", ints(1), keepdims=0),
         mul(4, 1), x=[4, 4, 4, 4], left="Mul"),
    case("3.2 ReduceSum", "no axes, noop", *behind(op("ReduceSum", noop_with_empty_axes=1), bn(4))),
    case("3.2 ReduceSum", "no axes", *behind(op("ReduceSum"), mul(c=-2.0))),
]  # fmt: skip
LENGTHS: dict[str, Step] = {
    "ReduceL1": op("ReduceL1", ints(2, 3)),
    "ReduceL2": op("ReduceL2", ints(2, 3)),
    "LpPool": pool("LpPool"),
    "LpPool, pads, p 1": pool("LpPool", 3, 3, pads=[1, 1, 1, 1], p=1),
    "GlobalLpPool": op("GlobalLpPool"),
}
LENGTH = [
    row
    for name, step in LENGTHS.items()
    for row in (
        case(f"3.2 {name}", "positive", *behind(step, POSITIVE)),
        case(f"3.2 {name}", "zero", *behind(step, ZERO)),
        case(f"3.2 {name}", "positive and shift", *behind(step, SHIFTED), left="Add"),
        case(f"3.2 {name}", "BatchNormalization", *behind(step, bn(4, "+")), left=BN),
        case(f"3.2 {name}", "mixed", *behind(step, SCALE), left="Mul"),
    )
]

# padding by a constant


def padded(value: float | None, *pads: int) -> Step:
    """Pad with a value of the graph's own type."""

    def build(graph: Graph, x: str) -> str:
        names = [graph.initializer(ints(*(pads or (0, 0, 1, 1, 0, 0, 2, 0))))]
        names += [] if value is None else [graph.initializer(value)]
        return graph.node("Pad", [x, *names])

    return build


def dynamic_pad(graph: Graph, x: str) -> str:
    return graph.node(
        "Pad", [x, graph.initializer(ints(0, 0, 1, 1, 0, 0, 1, 1)), graph.input("value", [])]
    )


PAD = [
    case("3.2 Pad", "zero, scale", *behind(padded(None), SCALE)),
    case("3.2 Pad", "zero as an input, scale", *behind(padded(0), SCALE)),
    case("3.2 Pad", "zero, scale and shift", *behind(padded(None), mul_add(*C)), left="Add"),
    case("3.2 Pad", "zero, BatchNormalization", *behind(padded(0), bn(4)), left=BN),
    case("3.2 Pad", "zero, scale and uniform shift", *behind(padded(0), SCALE, add(c=3.0))),
    case("3.2 Pad", "zero, uniform", *behind(padded(None), UNIFORM)),
    case("3.2 Pad", "three, uniform", *behind(padded(3), UNIFORM_NEGATIVE)),
    case("3.2 Pad", "three, scale", *behind(padded(3), SCALE), left="Mul"),
    case("3.2 Pad", "three, uniform by s v + t", *behind(
        padded(3), mul(*C, c=[1, 2, 4, -0.5]), add(*C, c=[2, -1, -7, 6.5]))),
    case("3.2 Pad", "value as an attribute", *behind(op("Pad", pads=[0, 0, 1, 1, 0, 0, 2, 0], value=3.0), UNIFORM),
         opset=10),
    case("3.2 Pad", "no value as an attribute", *behind(op("Pad", pads=[0, 0, 1, 1, 0, 0, 2, 0]), UNIFORM), opset=10),
    case("3.2 Pad", "axes", *behind(op("Pad", ints(1, 1, 1, 0), "", ints(-1, 2)), SCALE)),
    case("3.2 Pad", "dynamic value", *behind(dynamic_pad, SCALE), left="Mul"),
    case("3.2 Pad", "the channels, scale", *behind(padded(0, 0, 1, 0, 0, 0, 1, 0, 0), mul(6, 1, 1))),
    case("3.2 Pad", "the channels, uniform", *behind(padded(3, 0, 1, 0, 0, 0, 1, 0, 0), UNIFORM)),
    case("3.2 Pad", "the channels, shift", *behind(padded(0, 0, 1, 0, 0, 0, 1, 0, 0), bn(6)), left=BN),
    case("3.2 Pad", "reflect, the channels", *behind(op("Pad", ints(0, 1, 0, 0, 0, 1, 0, 0), mode="reflect"),
         mul(6, 1, 1)), left="Mul"),
    case("3.2 Pad", "reflect, the channels, uniform", *behind(
        op("Pad", ints(0, 1, 0, 0, 0, 1, 0, 0), mode="reflect"), UNIFORM)),
]  # fmt: skip
CROP = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"}
REGION = np.asarray([0, 0, 0.1, -0.2, 1, 1, 1.3, 0.8], np.float32)


def crop(value: float) -> Step:
    return op("Resize", REGION, "", ints(2, 4, 7, 4), **CROP, extrapolation_value=float(value))


RESIZE = [
    case("3.2 Resize, tf_crop_and_resize", "scale", *behind(crop(0), SCALE), static=True),
    case("3.2 Resize, tf_crop_and_resize", "BatchNormalization", *behind(crop(0), bn(4)), static=True, left=BN),
    case("3.2 Resize, tf_crop_and_resize", "value, scale", *behind(crop(3), SCALE), static=True, left="Mul"),
    case("3.2 Resize", "the channels", *behind(
        op("Resize", "", np.asarray([1, 2, 1, 1], np.float32)), mul(8, 1, 1)), left="Mul"),
    case("3.2 Resize", "the channels, all extents equal", conv(4, 4), op(
        "Resize", "", "", ints(4, 4, 4, 4), mode="linear"), bn(4), x=[4, 4, 4, 4], static=True),
    case("3.2 Resize", "axes", *behind(op("Resize", "", np.asarray([2, 2], np.float32), axes=[2, 3]), bn(4))),
    case("3.2 Resize", "opset 10", *behind(op("Resize", np.asarray([1, 1, 2, 2], np.float32)), bn(4)), opset=10),
    case("3.2 Upsample", "opset 9", *behind(op("Upsample", np.asarray([1, 1, 2, 2], np.float32)), bn(4)), opset=9),
    case("3.2 Upsample", "opset 7", *behind(op("Upsample", scales=[1.0, 1.0, 2.0, 2.0]), bn(4)), opset=7),
]  # fmt: skip

# arithmetic with constants

CONSTANTS = [
    case("3.2 Add constant", "per element", *behind(add(4, 6, 5), bn(4)), left="Add"),
    case("3.2 Add constant", "per plane, which grows", *behind(add(1, 1, 6, 5), bn(4)), left="Add"),
    case("3.2 Add constant", "per column", *behind(add(5), bn(4)), left="Add"),
    case("3.2 Add constant", "per channel", *behind(add(4, 1, 1), op("Relu"), POSITIVE)),
    case("3.2 Add constant", "growth beyond max_growth", *behind(add(1, 1, 6, 5), bn(4)), left=f"Add {BN}",
         options="max_growth=8"),
    case("3.2 Sub constant", "per element", *behind(binary("Sub", 4, 6, 5), bn(4)), left="Sub"),
    case("3.2 constant Sub", "per element", *behind(binary("Sub", 4, 6, 5, left=True), bn(4)), left="Sub"),
    case("3.2 constant Sub", "per plane", *behind(binary("Sub", 6, 5, left=True), bn(4)), left="Sub"),
    case("3.2 Mul constant", "per element, scale", *behind(mul(4, 6, 5), SCALE), left="Mul"),
    case("3.2 Mul constant", "per plane, scale", *behind(mul(6, 5), SCALE), left="Mul"),
    case("3.2 Mul constant", "per plane, scale and shift", *behind(mul(6, 5), mul_add(*C)), left="Mul Add"),
    case("3.2 Mul constant", "per plane, BatchNormalization", *behind(mul(6, 5), bn(4)), left=f"Mul {BN}"),
    case("3.2 Div constant", "per plane, scale", *behind(binary("Div", 6, 5), SCALE), left="Div"),
    case("3.2 Div constant", "per plane, BatchNormalization", *behind(binary("Div", 6, 5), bn(4)), left=f"Div {BN}"),
]  # fmt: skip

# several dynamic operands

A, B = conv(4, 3), conv(4, 3, 3, 3, pads=[1, 1, 1, 1])
RELU, SIGMOID = op("Relu"), op("Sigmoid")
INPUT = other("other", [2, 4, 6, 5])
JOINS = [
    case("3.2 Add dynamic", "two layers", branches("Add", A, B), bn(4), left="Add", options=APART),
    case("3.2 Add dynamic", "two layers, zero scale", branches("Add", A, B), bn(4, s=[0, 1, -1, 2]), left="Add", options=APART),
    case("3.2 Add dynamic", "the second lets the shift through", branches("Add", [A, RELU], B), bn(4, "+"), left="Add"),
    case("3.2 Add dynamic", "the first lets the shift through", branches("Add", A, [B, RELU]), bn(4, "+"), left="Add"),
    case("3.2 Add dynamic", "one branch needs a positive scale", branches("Add", A, [B, RELU]), bn(4),
         left=f"Add {BN}"),
    case("3.2 Add dynamic", "no branch lets the shift through", branches("Add", [A, RELU], [B, RELU]), bn(4, "+"),
         left=f"Add {BN}"),
    case("3.2 Add dynamic", "no branch lets the shift through, Mul and Add", branches("Add", [A, RELU], [B, RELU]),
         SHIFTED, left="Add Add"),
    case("3.2 Add dynamic", "no branch lets the shift through, scale", branches("Add", [A, RELU], [B, RELU]), POSITIVE,
         left="Add"),
    case("3.2 Add dynamic", "one branch absorbs nothing", branches("Add", A, [B, SIGMOID]), bn(4), left=f"Add {BN}"),
    case("3.2 Add dynamic", "a graph input", branches("Add", A, INPUT), SCALE, left="Add Mul", static=True),
    case("3.2 Add dynamic", "a graph input, shift alone", branches("Add", A, INPUT), add(*C), left="Add", static=True),
    case("3.2 Add dynamic", "shift alone, one branch a wall", branches("Add", [A, SIGMOID], B), add(*C), left="Add"),
    case("3.2 Add dynamic", "one branch is a graph output", branches("Add", A, [B, expose]), SCALE, left="Add Mul"),
    case("3.2 Add dynamic", "one branch with two readers", chain(A, branches("Add", [RELU], same)), POSITIVE,
         left="Add Mul"),
    case("3.2 Add dynamic", "one per plane", branches("Add", A, [B, op("GlobalAveragePool")]), bn(4), left="Add"),
    case("3.2 Add dynamic", "one per plane, both orders", branches("Add", [A, op("GlobalAveragePool")], [B, RELU]),
         bn(4, "+"), left="Add"),
    case("3.2 Add dynamic", "one stretched along the channels", branches("Add", A, conv(1, 3)), bn(4),
         left=f"Add {BN}"),
    case("3.2 Add dynamic", "one stretched along the channels, uniform", branches("Add", conv(1, 3), A), UNIFORM,
         left="Add"),
    case("3.2 Add dynamic", "a residual of three", branches("Add", [branches("Add", A, B)], conv(4, 3)), bn(4),
         left="Add Add", options=APART),
    case("3.2 Sub dynamic", "two layers", branches("Sub", A, B), bn(4), left="Sub", options=APART),
    case("3.2 Sub dynamic", "the second lets the shift through", branches("Sub", [A, RELU], B), bn(4, "+"), left="Sub"),
    case("3.2 Sub dynamic", "one branch needs a positive scale", branches("Sub", A, [B, RELU]), bn(4),
         left=f"Sub {BN}"),
    case("3.2 Sum dynamic", "three layers", branches("Sum", A, B, conv(4, 3)), bn(4), left="Sum", options=APART),
    case("3.2 Sum dynamic", "one branch needs a positive scale", branches("Sum", A, [B, op("Abs")], conv(4, 3)), bn(4),
         left=f"Sum {BN}", options=APART),
    case("3.2 Mul dynamic", "a gate on the right", branches("Mul", A, [B, SIGMOID]), SCALE, left="Mul"),
    case("3.2 Mul dynamic", "a gate on the left", branches("Mul", [A, SIGMOID], B), SCALE, left="Mul"),
    case("3.2 Mul dynamic", "both could", branches("Mul", A, B), SCALE, left="Mul"),
    case("3.2 Mul dynamic", "positive through one branch, mixed through the other", branches("Mul", [A, RELU], B),
         SCALE,
         left="Mul"),
    case("3.2 Mul dynamic", "BatchNormalization", branches("Mul", A, [B, SIGMOID]), bn(4), left=f"Mul {BN}"),
    case("3.2 Mul dynamic", "scale and shift", branches("Mul", A, [B, SIGMOID]), mul_add(*C), left="Mul Add"),
    case("3.2 Mul dynamic", "one stretched along the channels", branches("Mul", conv(1, 3), A), SCALE, left="Mul"),
    case("3.2 Mul dynamic", "only the stretched one could", branches("Mul", conv(1, 3), [A, SIGMOID]), SCALE,
         left="Mul Mul"),
    case("3.2 Mul dynamic", "neither", branches("Mul", [A, SIGMOID], [B, SIGMOID]), SCALE, left="Mul Mul"),
    case("3.2 Mul dynamic", "a square", chain(A, branches("Mul", same, same)), SCALE, left="Mul Mul"),
    case("3.2 Div dynamic", "numerator", branches("Div", A, [B, clip(0.5, 2)]), SCALE, left="Div"),
    case("3.2 Div dynamic", "denominator", branches("Div", [A, SIGMOID], [B, clip(0.5, 2)]), SCALE, left="Div Mul"),
    case("3.2 Div dynamic", "a layer below", branches("Div", [A, SIGMOID], B), SCALE, left="Div Mul"),
    case("3.2 Div dynamic", "shift", branches("Div", A, [B, clip(0.5, 2)]), bn(4), left=f"Div {BN}"),
]  # fmt: skip


def where(*parts: Step | Sequence[Step]) -> Step:
    """Where with a condition that is computed from the value."""

    def build(graph: Graph, x: str) -> str:
        made = [(part if callable(part) else chain(*part))(graph, x) for part in parts]
        test = graph.node(
            "Greater",
            [graph.node("ReduceMax", [x, graph.initializer(ints(1))]), graph.initializer(0.5)],
        )
        return graph.node("Where", [test, *made])

    return build


EXTREMES = [
    row
    for kind in ("Max", "Min")
    for row in (
        case(f"3.2 {kind}", "positive", branches(kind, A, B), bn(4, "+")),
        case(f"3.2 {kind}", "three", branches(kind, A, B, conv(4, 3)), bn(4, "+")),
        case(f"3.2 {kind}", "zero", branches(kind, A, B), bn(4, s=[0, 1, 2, 0])),
        case(f"3.2 {kind}", "mixed", branches(kind, A, B), bn(4), left=BN),
        case(f"3.2 {kind}", "a constant", branches(kind, A, constant(4, 1, 1)), bn(4, "+")),
        case(f"3.2 {kind}", "a constant that grows", branches(kind, A, constant(1)), bn(4, "+")),
        case(
            f"3.2 {kind}",
            "one absorbs nothing",
            branches(kind, A, [B, SIGMOID]),
            bn(4, "+"),
            left=BN,
        ),
        case(
            f"3.2 {kind}", "one needs no shift", branches(kind, A, [B, RELU]), bn(4, "+"), left=BN
        ),
        case(
            f"3.2 {kind}",
            "one stretched along the channels",
            branches(kind, A, conv(1, 3)),
            bn(4, "+"),
            left=BN,
        ),
        case(
            f"3.2 {kind}",
            "one stretched along the channels, uniform",
            branches(kind, A, conv(1, 3)),
            UNIFORM,
        ),
    )
]
WHERE = [
    case("3.2 Where", "mixed", where(A, B), bn(4)),
    case("3.2 Where", "a constant", where(A, constant()), bn(4)),
    case("3.2 Where", "one absorbs nothing", where(A, [B, SIGMOID]), bn(4), left=BN),
    case("3.2 Where", "one needs a positive scale", where(A, [B, RELU]), SCALE, left="Mul"),
    case("3.2 Where", "one stretched along the channels", where(A, conv(1, 3)), bn(4), left=BN),
]

# parts

JOINED = [
    case("3.2 Concat", "channels", branches("Concat", A, B, axis=1), bn(8)),
    case("3.2 Concat", "channels, negative axis", branches("Concat", A, conv(2, 3), axis=-3), bn(6)),
    case("3.2 Concat", "rows", branches("Concat", A, B, axis=2), bn(4)),
    case("3.2 Concat", "rows, all extents equal", branches("Concat", conv(4, 4), conv(4, 4), axis=2), bn(4),
         x=[4, 4, 4, 4]),
    case("3.2 Concat", "a graph input", branches("Concat", A, INPUT, axis=1), bn(8), left=BN, static=True),
    case("3.2 Concat", "a graph input with the identity", branches("Concat", A, INPUT, axis=1),
         mul(8, 1, 1, c=[2, 3, -1, 0.5, 1, 1, 1, 1]), static=True),
    case("3.2 Concat", "a constant", branches("Concat", A, constant(2, 1, 6, 5), axis=1), bn(5), static=True),
    case("3.2 Concat", "the same value twice", chain(A, branches("Concat", same, same, axis=1)), bn(8), left=BN),
    case("3.2 Concat", "one behind Relu, whose slice is positive", branches("Concat", A, [B, RELU], axis=1),
         mul(8, 1, 1, c=[-2, 3, -1, 0.5, 1, 2, 3, 4])),
    case("3.2 Concat", "one behind Relu, whose slice is not", branches("Concat", A, [B, RELU], axis=1), mul(8, 1, 1),
         left="Mul"),
    case("3.2 Split", "one part", A, split(1, [2, 2], bn(2), same)),
    case("3.2 Split", "both parts", A, split(1, [1, 3], bn(1), bn(3))),
    case("3.2 Split", "behind Relu", A, RELU, split(1, [2, 2], mul(2, 1, 1, sign="+"), same)),
    case("3.2 Split", "behind Relu, negative", A, RELU, split(1, [2, 2], mul(2, 1, 1), same), left="Mul"),
    case("3.2 Split", "source with another reader", A, expose, split(1, [2, 2], bn(2), same), left=BN),
    case("3.2 Split", "sizes as an attribute", A, split(1, [2, 2], bn(2), bn(2)), opset=11),
    case("3.2 Split", "rows, the same on all parts", A, split(2, [2, 4], bn(4, s=2, t=1), bn(4, s=2, t=1)), left=None),
    case("3.2 Split", "rows, one part", A, split(2, [2, 4], bn(4), same), left=BN),
    case("3.2 Slice", "channels", A, op("Slice", ints(1), ints(3), ints(1)), bn(2)),
    case("3.2 Slice", "channels, backward", A, op("Slice", ints(-1), ints(-9), ints(1), ints(-1)), bn(4)),
    case("3.2 Slice", "channels, a step", A, op("Slice", ints(0), ints(9), ints(-3), ints(2)), bn(2)),
    case("3.2 Slice", "source with another reader", A, expose, op("Slice", ints(1), ints(3), ints(1)), bn(2), left=BN),
    case("3.2 Slice", "attributes", A, op("Slice", starts=[1], ends=[3], axes=[1]), bn(2), opset=9),
    case("3.2 Gather", "channels", A, op("Gather", ints(2, 0, 3), axis=1), bn(3)),
    case("3.2 Gather", "channels, negative indices", A, op("Gather", ints(-1, 0), axis=1), bn(2)),
    case("3.2 Gather", "a channel twice, equal", A, op("Gather", ints(2, 0, 2), axis=1),
         bn(3, s=[2, -1, 2], t=[1, 3, 1])),
    case("3.2 Gather", "a channel twice, different", A, op("Gather", ints(2, 0, 2), axis=1), bn(3), left=BN),
    case("3.2 Gather", "source with another reader", A, expose, op("Gather", ints(2, 0), axis=1), bn(2), left=BN),
    case("3.2 Gather", "one row, whose axis goes", A, op("Gather", np.asarray(1), axis=2), bn(4)),
    case("3.2 Gather", "one sample, whose axis goes", A, op("Gather", np.asarray(1), axis=0), mul_add(4, 1, 1),
         static=True),
    case("3.2 Expand", "planes", A, op("GlobalAveragePool"), op("Expand", ints(1, 1, 3, 2)), bn(4)),
    case("3.2 Expand", "channels", conv(1, 3), op("Expand", ints(1, 4, 1, 1)), bn(4), left=BN),
    case("3.2 Expand", "channels, uniform", conv(1, 3), op("Expand", ints(1, 4, 1, 1)), UNIFORM),
    case("3.2 Expand", "a new leading axis", A, op("Expand", ints(2, 1, 1, 1, 1)), mul_add(4, 1, 1)),
]  # fmt: skip

# shapes


def shuffle(groups: int, channels: int) -> Step:
    return chain(
        op("Reshape", ints(0, groups, channels // groups, 6, 5)),
        op("Transpose", perm=[0, 2, 1, 3, 4]),
        op("Reshape", ints(0, channels, 6, 5)),
    )


def repeated(n: int, times: int) -> list[float]:
    """Channel values, each as often as a merged axis needs."""
    return [float(value) for value in np.repeat(np.arange(1, n + 1) * np.resize([1, -1], n), times)]


SHAPES = [
    case("3.2 Transpose", "to the last axis", A, op("Transpose", perm=[0, 2, 3, 1]), mul_add(4)),
    case("3.2 Transpose", "all extents equal", conv(4, 4), op("Transpose", perm=[0, 2, 3, 1]), mul_add(4),
         x=[4, 4, 4, 4]),
    case("3.2 Transpose", "all extents equal, not the channels", conv(4, 4), op("Transpose", perm=[0, 2, 3, 1]), bn(4),
         x=[4, 4, 4, 4], left=BN),
    case("3.2 Transpose", "default", A, op("Transpose"), mul_add(4, 1)),
    case("3.2 Reshape", "planes merged", A, op("Reshape", ints(0, 4, -1)), bn(4)),
    case("3.2 Reshape", "planes of unknown extent merged", A, op("Reshape", ints(0, 4, -1)), bn(4),
         x=[2, 3, "h", "w"]),
    case("3.2 Reshape", "planes split", A, op("Reshape", ints(0, 4, 2, 3, 5)), bn(4)),
    case("3.2 Reshape", "channels split, the outer part", A, op("Reshape", ints(0, 2, 2, 6, 5)), bn(2)),
    case("3.2 Reshape", "channels split, the inner part", A, op("Reshape", ints(0, 2, 2, 6, 5)), mul_add(2, 1, 1)),
    case("3.2 Reshape", "channels merged with rows", A, op("Reshape", ints(0, -1, 5)), bn(24), left=BN),
    case("3.2 Reshape", "channels merged with rows, constant on them", A, op("Reshape", ints(0, -1, 5)),
         bn(24, s=repeated(4, 6), t=repeated(4, 6))),
    case("3.2 Reshape", "batch and channels merged", A, op("Reshape", ints(-1, 6, 5)), mul(8, 1, 1), left="Mul",
         static=True),
    case("3.2 Reshape", "channels and batch swap places", conv(4, 4), op("Reshape", ints(4, 4, 16)), bn(4),
         x=[4, 4, 4, 4], static=True),
    case("3.2 Reshape", "another order of the same extents", conv(4, 3), op("Reshape", ints(0, 5, 6, 4)), mul(4),
         left="Mul"),
    case("3.2 Reshape", "channels where rows were", conv(4, 3), op("Reshape", ints(0, 6, 4, 5)), mul(4, 1),
         left="Mul"),
    case("3.2 Flatten", "of planes", A, op("Flatten"), mul(120), left="Mul"),
    case("3.2 Flatten", "of planes, constant on them", A, op("Flatten"),
         bn(120, s=repeated(4, 30), t=repeated(4, 30))),
    case("3.2 Flatten", "of planes, tiled instead of repeated", A, op("Flatten"), bn(120, s=[1, 2, 3, 4] * 30),
         left=BN),
    case("3.2 Flatten", "of pooled planes", A, op("GlobalAveragePool"), op("Flatten"), bn(4)),
    case("3.2 Flatten", "uniform", A, op("Flatten"), UNIFORM),
    case("3.2 Squeeze", "pooled planes", A, op("GlobalAveragePool"), op("Squeeze", ints(2, 3)), bn(4)),
    case("3.2 Squeeze", "axes as an attribute", A, op("GlobalAveragePool"), op("Squeeze", axes=[2, 3]), bn(4),
         opset=11),
    case("3.2 Unsqueeze", "a vector", matmul(3, 4), op("Unsqueeze", ints(2, 3)), bn(4), x=[2, 3], left=None),
    case("3.2 Unsqueeze", "1d to 2d", conv(4, 3, 1), op("Unsqueeze", ints(-1)), bn(4), x=[2, 3, 5]),
    case("3.2 Unsqueeze", "a leading axis", A, op("Unsqueeze", ints(0)), mul_add(4, 1, 1)),
    case("3.2 channel shuffle", "two groups", conv(6, 3), shuffle(2, 6), bn(6)),
    case("3.2 channel shuffle", "three groups, behind Relu", conv(6, 3), op("Relu"), shuffle(3, 6),
         mul(6, 1, 1, sign="+")),
    case("3.2 DepthToSpace", "DCR", conv(8, 3), op("DepthToSpace", blocksize=2), bn(2)),
    case("3.2 DepthToSpace", "CRD", conv(8, 3), op("DepthToSpace", blocksize=2, mode="CRD"), bn(2)),
    case("3.2 SpaceToDepth", "constant over blocks", conv(2, 3), op("SpaceToDepth", blocksize=2),
         bn(8, s=[2, -3] * 4, t=[1, 5] * 4), x=[2, 3, 6, 4]),
    case("3.2 SpaceToDepth", "varying", conv(2, 3), op("SpaceToDepth", blocksize=2), bn(8), x=[2, 3, 6, 4], left=BN),
    case("3.2 SpaceToDepth", "repeated instead of tiled", conv(2, 3), op("SpaceToDepth", blocksize=2),
         bn(8, s=[2] * 4 + [-3] * 4, t=[1] * 4 + [5] * 4), x=[2, 3, 6, 4], left=BN),
]  # fmt: skip


def narrowed(graph: Graph, x: str) -> str:
    """Cast to float16 and back."""
    return graph.node("Cast", [graph.node("Cast", [x], to=10)], to=onnx_dtype(graph.dtype))


WALL = [
    case("3.2 Cast", "to a narrower type and back", *behind(narrowed, SCALE), left="Mul"),
    case("3.2 foreign operator", "scale", *behind(op("Foreign", domain="com.acme"), SCALE), left="Mul"),
    case("3.2 MatMul dynamic", "scale", branches("MatMul", conv(4, 3), conv(4, 3)), mul(4, 1, 1), x=[2, 3, 5, 5],
         left="Mul"),
    case("3.2 Pow", "scale", *behind(binary("Pow", c=2.0), POSITIVE), left="Mul"),
]  # fmt: skip

CASES: list[Case] = [
    *KINDS, *TWO_GATES, *CLIP, *NOTHING, *MAX, *MEAN, *DEGENERATE, *SUM, *LENGTH, *PAD, *RESIZE, *CONSTANTS,
             *JOINS, *EXTREMES,
    *WHERE, *JOINED, *SHAPES, *WALL,
]  # fmt: skip
