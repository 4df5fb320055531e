"""FoldScaleAxis: one model for each condition that must refuse, and the words in which it does.

What the other tables reach is not repeated. A row names what is in the way; the fold map has to say
just that, and what comes out has to be the same function.
"""

from __future__ import annotations

import copy

import ml_dtypes
import numpy as np
import pytest
from graphs import F16, F32, Graph, compiled, onnx_dtype
from onnx import ModelProto, helper
from oracle import assert_same_function, assert_sound
from scale_axis.build import (
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
    gemm,
    ints,
    matmul,
    mul,
    mul_add,
    norm,
    op,
    other,
    same,
    split,
)
from scale_axis.quantized import dequantize, layer

I64 = np.dtype(np.int64)
C = (4, 1, 1)
SCALE, SHIFTED, ROWS = mul(*C), mul_add(*C, sign="+"), mul(6, 1)
RANK, EXTENT, MISFIT = "the rank of", "the extent of axis", "do not fit its sizes"
Row = tuple[str, Case]
X4 = (2, 4, 6, 5)


def back(name: str, words: str, *steps: Step, first: Step | None = None, **options: object) -> Row:
    """A convolution with four channels, and what stands between it and an affine."""
    return words, case("back", name, first or conv(4, 3), *steps, left=None, **options)


def ahead(name: str, words: str, *steps: Step, **options: object) -> Row:
    """An affine of a graph input with four channels, and what stands behind it."""
    return words, case("ahead", name, *steps, left=None, **{"x": X4, **options})


def fed_by(kind: str, *inputs: object, out: str = "", **attrs: object) -> Step:
    """An operator with further graph inputs of int64, given by their shapes as tuples.

    Others as `op` takes them.
    """

    def build(graph: Graph, x: str) -> str:
        names = [
            graph.input(graph.fresh("i"), list(i), I64) if isinstance(i, tuple) else i
            for i in inputs
        ]
        return op(kind, *names, out=out, **attrs)(graph, x)

    return build


def weighted(kind: str, *arrays: object, **attrs: object) -> Step:
    """An operator with exactly these constants."""
    return lambda graph, x: op(kind, *[np.asarray(a, graph.dtype) for a in arrays], **attrs)(
        graph, x
    )


def dequantized(*, axis: int = 1, scale: object = 0.5, shape: tuple[int, ...] = (4, 3, 1, 1), reader: str = "Conv",
                twice: bool = False, dynamic: bool = False, **attrs: object) -> Step:  # fmt: skip
    """A layer whose weight is dequantized."""

    def build(graph: Graph, x: str) -> str:
        q = graph.initializer(np.arange(1, 1 + int(np.prod(shape)), dtype=np.int8).reshape(shape))
        s = graph.input("s", []) if dynamic else graph.initializer(np.asarray(scale, graph.dtype))
        w = graph.node("DequantizeLinear", [q, s], axis=axis)
        if twice:
            graph.output(graph.node("Neg", [w]))
        return graph.node(reader, [x, w], **attrs)

    return build


def with_result_type(graph: Graph, x: str) -> str:
    """A Conv whose weight says which type it is dequantized to."""
    names = map(graph.initializer, [np.ones((4, 3, 1, 1), np.int8), np.asarray(0.5, graph.dtype)])
    weight = graph.node("DequantizeLinear", list(names), output_dtype=onnx_dtype(graph.dtype))
    return graph.node("Conv", [x, weight])


def with_zero_point(point: np.ndarray | np.generic) -> Step:
    """A Conv whose weight has the scale 0.5 and this zero point."""

    def build(graph: Graph, x: str) -> str:
        names = [np.ones((4, 3, 1, 1), np.int8), np.asarray(0.5, graph.dtype), np.asarray(point)]
        return graph.node(
            "Conv", [x, graph.node("DequantizeLinear", list(map(graph.initializer, names)))]
        )

    return build


def shared_bias(graph: Graph, x: str) -> str:
    """A Conv whose dequantized bias others read, too."""
    bias = dequantize(
        graph, graph.initializer(np.ones(4, np.int32)), np.asarray(0.5, graph.dtype), None
    )
    graph.output(graph.node("Neg", [bias]))
    return graph.node("Conv", [x, graph.initializer(draw(graph, (4, 3, 1, 1))), bias])


FAKE = chain(op("QuantizeLinear", 0.5, np.uint8(8)), op("DequantizeLinear", 0.5, np.uint8(8)))


def integer_product(graph: Graph, x: str) -> str:
    """A MatMulInteger of quantized data, as float numbers."""
    data = graph.node("QuantizeLinear", [x, graph.initializer(0.5), graph.initializer(np.uint8(8))])
    weight, zero = (
        graph.initializer(np.arange(12, dtype=np.int8).reshape(3, 4)),
        graph.initializer(np.uint8(8)),
    )
    return graph.node(
        "Cast", [graph.node("MatMulInteger", [data, weight, zero])], to=onnx_dtype(graph.dtype)
    )


def transposed_bias(graph: Graph, x: str) -> str:
    """A Gemm whose dequantized bias is the transpose of its integers."""
    whole = np.arange(16, dtype=np.int32).reshape(4, 4)
    bias = dequantize(graph, graph.initializer(whole), np.asarray(0.5, graph.dtype), None)
    names = [
        x,
        graph.initializer(draw(graph, (3, 4))),
        graph.node("Transpose", [bias], perm=[1, 0]),
    ]
    return graph.node("Gemm", names)


def one_bias(graph: Graph, x: str) -> str:
    """A Gemm whose dequantized bias is one number."""
    bias = dequantize(
        graph, graph.initializer(np.asarray(3, np.int32)), np.asarray(0.5, graph.dtype), None
    )
    return graph.node("Gemm", [x, graph.initializer(draw(graph, (3, 4))), bias])


def dynamic_split(axis: int, *parts: Step) -> Step:
    """A Split into parts of extents of run time, and a Concat of the results of the steps."""

    def build(graph: Graph, x: str) -> str:
        names = [graph.fresh("part") for _ in parts]
        graph.node("Split", [x, graph.input("sizes", [len(parts)], I64)], names, axis=axis)
        return graph.node(
            "Concat",
            [part(graph, name) for part, name in zip(parts, names, strict=True)],
            axis=axis,
        )

    return build


HIDE = op("Hide", domain="opaque")
"""An operator that nothing is known of, so that the rank of its result is unknown."""
ROWS_BACK: list[Row] = [
    back("Clip reversed", "cannot be scaled", op("Clip", 1.0, -1.0), mul(c=2.0)),
    back("Clip zero", "cannot be scaled by zero", op("Clip", -1.0, 1.0), mul(c=0.0)),
    back(
        "Clip attributes",
        "bounds are attributes",
        op("Clip", min=-0.25, max=0.75),
        mul(c=1 / 3, broadcast=1),
        first=conv(4, 3, bias=False),
        opset=6,
    ),
    back(
        "pool along a row",
        "pools along axis 2",
        op("MaxPool", kernel_shape=[2, 2]),
        mul(5, 1, sign="+"),
    ),
    back(
        "average along a row",
        "pools along axis 2",
        op("AveragePool", kernel_shape=[2, 2]),
        mul(5, 1),
    ),
    back("Reduce dynamic axes", "its axes are not constant", fed_by("ReduceMean", (1,)), bn(4)),
    back(
        "Reduce unknown rank", "rank of its data is unknown", HIDE, op("ReduceMean", ints(2)), bn(4)
    ),
    back(
        "Pad attribute",
        "its value is an attribute",
        op("Pad", pads=[0, 0, 1, 1, 0, 0, 1, 1], value=0.1),
        mul(c=1 / 3, broadcast=1),
        opset=2,
    ),
    back("Pad dynamic pads", "its pads are not constant", fed_by("Pad", (8,)), bn(4)),
    back(
        "Pad dynamic axes", "its pads are not constant", fed_by("Pad", ints(1, 1), "", (1,)), bn(4)
    ),
    back("Pad axes, unknown rank", RANK, HIDE, op("Pad", ints(1, 1), "", ints(2)), bn(4)),
    back(
        "Resize dynamic",
        "resizes axis 1, or may",
        lambda g, x: g.node("Resize", [x, "", g.input("s", [4], F32)]),
        bn(4),
    ),
    back(
        "Resize unknown rank",
        "resizes axis 1, or may",
        HIDE,
        lambda g, x: g.node("Resize", [x, "", g.initializer(np.array([1, 1, 2, 2], np.float32))]),
        bn(4),
    ),
    back("Transpose unknown rank", RANK, HIDE, op("Transpose"), bn(6)),
    back("Reshape unknown rank", RANK, fed_by("Reshape", ("K",)), bn(4)),
    back(
        "DepthToSpace rows",
        "moves channels into axis 2",
        op("DepthToSpace", blocksize=2),
        mul(12, 1),
    ),
    back(
        "SpaceToDepth rows",
        "moves axis 2 into the channels",
        op("SpaceToDepth", blocksize=2),
        mul(3, 1),
        x=(2, 3, 6, 4),
    ),
    back(
        "SpaceToDepth differ",
        "repeats or joins channels that have different",
        op("SpaceToDepth", blocksize=2),
        mul(16, 1, 1),
        x=(2, 3, 6, 4),
    ),
    back("Concat last, unknown rank", RANK, branches("Concat", HIDE, HIDE, axis=-1), bn(4)),
    back("Concat unknown", RANK, branches("Concat", HIDE, HIDE, axis=1), bn(8)),
    back("Split unknown rank", RANK, HIDE, split(1, [2, 2], bn(2), same)),
    back(
        "Slice unknown rank",
        "its bounds are not constant",
        HIDE,
        op("Slice", ints(0), ints(4), ints(1)),
        bn(4),
    ),
    back(
        "Slice dynamic",
        "its bounds are not constant",
        fed_by("Slice", (1,), ints(4), ints(1)),
        bn(4),
    ),
    back(
        "Slice dynamic axes",
        "its bounds are not constant",
        fed_by("Slice", ints(0), ints(4), (1,)),
        bn(4),
    ),
    back(
        "Slice dynamic steps",
        "its bounds are not constant",
        fed_by("Slice", ints(0), ints(4), ints(1), (1,)),
        bn(4),
    ),
    back("Gather unknown rank", RANK, HIDE, op("Gather", ints(0, 1, 2, 3), axis=1), bn(4)),
    back("Gather dynamic", "not a list of constant indices", fed_by("Gather", (4,), axis=1), SCALE),
    back(
        "Gather table",
        "not a list of constant indices",
        op("Gather", ints(0, 1, 2, 3).reshape(2, 2), axis=1),
        mul(2, 1, 1, 1),
    ),
    back("Expand unknown rank", RANK, HIDE, op("Expand", ints(2, 4, 6, 5)), bn(4)),
    back(
        "Expand channels",
        "the channels are copies",
        op("Expand", ints(1, 4, 1, 1)),
        SCALE,
        first=conv(1, 3),
    ),
    back(
        "Expand in front",
        "the channels are copies",
        op("Expand", ints(7, 1, 1, 1, 1)),
        op("Relu"),
        mul(7, 1, 1, 1, 1, sign="+"),
    ),
    back("Tile dynamic", "its repeats are not constant", fed_by("Tile", (4,)), bn(4)),
    back(
        "Tile differs",
        "repeats or joins channels that have different",
        op("Tile", ints(1, 2, 1, 1)),
        mul(8, 1, 1),
    ),
    back(
        "Add broadcast",
        "broadcast along the channels",
        branches("Add", conv(4, 4), conv(1, 4)),
        SCALE,
    ),
    back(
        "Mean broadcast",
        "broadcast along the channels",
        branches("Mean", conv(4, 4), conv(1, 4)),
        SCALE,
    ),
    back(
        "Max broadcast",
        "broadcast along the channels",
        branches("Max", conv(4, 4), conv(1, 4)),
        mul(*C, sign="+"),
    ),
    back("Add unknown rank", RANK, branches("Add", HIDE, HIDE), bn(4)),
    back("Mean unknown rank", RANK, branches("Mean", HIDE, HIDE), bn(4)),
    back("Add one unknown", RANK, branches("Add", conv(4, 4), other("z", None)), bn(4)),
    back(
        "Conv empty",
        "the weight is empty",
        SCALE,
        first=weighted("Conv", np.zeros((4, 0, 1, 1))),
        x=(2, 0, 6, 5),
    ),
    back(
        "Conv infinite",
        "infinite or not a number",
        SCALE,
        first=weighted("Conv", np.full((4, 3, 1, 1), np.inf)),
    ),
    back(
        "Conv NaN",
        "infinite or not a number",
        SCALE,
        first=weighted("Conv", np.full((4, 3, 1, 1), np.nan)),
    ),
    back(
        "Conv overflows",
        "a folded weight exceeds",
        mul(*C, c=[1, 2, 3e4, 1]),
        first=weighted("Conv", np.full((4, 3, 1, 1), 4.0)),
        dtype=F16,
    ),
    back(
        "Conv vanishes",
        "the weights of channel 2, 0.001 * 0.0001, vanish in f16",
        mul(*C, c=[1, 2, 1e-4, 1]),
        first=weighted("Conv", np.full((4, 3, 1, 1), 1e-3)),
        dtype=F16,
    ),
    back(
        "bias overflows",
        "the folded bias exceeds",
        mul(*C, c=[1, 2, 3e4, 1]),
        first=weighted("Conv", np.full((4, 3, 1, 1), 1e-2), np.full(4, 100.0)),
        dtype=F16,
    ),
    back(
        "ConvTranspose infinite",
        "infinite or not a number",
        SCALE,
        first=weighted("ConvTranspose", np.full((3, 4, 1, 1), np.inf)),
    ),
    back(
        "MatMul vector",
        "an operand is a vector",
        op("Unsqueeze", ints(1)),
        mul(2, 1),
        first=matmul(4),
        x=(2, 4),
    ),
    back("MatMul more axes", "an operand is a vector or", mul(5), first=matmul(2, 4, 5), x=(4,)),
    back(
        "MatMul unknown rank",
        "the rank of its data or result is unknown",
        bn(5),
        first=matmul(4, 5),
        x=None,
    ),
    back(
        "quantized off",
        "is dequantized at run time",
        SCALE,
        first=dequantized(),
        options="quantized_weights=false",
    ),
    back(
        "quantized reflection",
        "-128 reflected about the zero point leaves i8",
        mul(c=-1.0),
        first=layer(low=-128, high=-128),
    ),
    back(
        "quantized wrong axis",
        "has scales for the channels of axis 1",
        SCALE,
        first=dequantized(scale=[1, 2, 3]),
    ),
    back(
        "quantized blocks that differ",
        "has scales for blocks of 2 along axis 0",
        SCALE,
        first=layer(axis=0, block=2),
    ),
    back(
        "quantized per tensor",
        "FoldScaleAxis{per_channel=allow} makes one for each channel",
        SCALE,
        first=dequantized(),
    ),
    back(
        "quantized opset 10",
        "need opset 13",
        mul(1, 4, 1, 1),
        opset=10,
        options="per_channel=allow",
        first=layer(axis=None),
    ),
    back("quantized twice", "others read it, too", SCALE, first=dequantized(twice=True)),
    back(
        "quantized dynamic", "its operands are not constant", SCALE, first=dequantized(dynamic=True)
    ),
    back(
        "quantized shapes",
        "neither per tensor, per channel, nor per block",
        SCALE,
        first=dequantized(scale=[1, 2]),
    ),
    back(
        "quantized block shapes",
        "neither per tensor, per channel, nor per block",
        SCALE,
        first=layer(axis=0, block=2, scale=np.ones((2, 1, 1, 1))),
    ),
    back(
        "quantized scale overflows",
        "exceeds",
        mul(*C, c=[1, 2, 3, 1e38]),
        dtype=F32,
        first=layer(scale=[1e3] * 4),
    ),
    back(
        "quantized scale of zeros overflows",
        "a scale exceeds f32",
        mul(*C, c=[1, 2, 3, 1e38]),
        dtype=F32,
        first=layer(low=0, high=0, scale=[1e3] * 4),
    ),
    back(
        "quantized scale vanishes",
        "is below the normal numbers of f32",
        mul(*C, c=[1, 2, 3, 1e-35]),
        dtype=F32,
        first=layer(scale=[1e-4] * 4),
    ),
    back(
        "quantized scale infinite",
        "infinite or not a number",
        mul(*C, c=[1, 2, 3, np.inf]),
        first=layer(),
    ),
    back(
        "quantized result type",
        "or its result has another type",
        SCALE,
        opset=23,
        first=with_result_type,
    ),
    back(
        "quantized zero point",
        "its zero point does not fit",
        SCALE,
        first=with_zero_point(np.zeros(3, np.int8)),
    ),
    back(
        "quantized zero point type",
        "its zero point does not fit",
        SCALE,
        first=with_zero_point(np.uint8(0)),
    ),
    back(
        "quantized float8 zero point",
        "its zero point is not zero",
        SCALE,
        first=layer(dtype=ml_dtypes.float8_e5m2, low=-8, high=8, zero_point=1),
    ),
    back(
        "quantized float8 without sign",
        "f8e8m0 has no sign",
        mul(c=-2.0),
        first=layer(dtype=ml_dtypes.float8_e8m0fnu, low=1, high=1, axis=None, zero_point=None),
        opset=24,
        ir=12,
    ),
    back(
        "quantized empty",
        "it reads i8[0, 3, 1, 1]",
        mul(c=2.0),
        first=dequantized(shape=(0, 3, 1, 1)),
    ),
    back("quantized bias of two readers", "others read it, too", SCALE, first=shared_bias),
    back(
        "quantized bias of another shape",
        "cannot hold the folded bias",
        mul(4),
        x=(2, 3),
        first=one_bias,
    ),
    back(
        "quantized bias, transposed",
        "cannot hold the folded bias",
        mul(4),
        x=(4, 3),
        first=transposed_bias,
    ),
    back(
        "quantized between",
        "its data are rounded to integers by QuantizeLinear",
        bn(4),
        first=chain(conv(4, 3), FAKE),
    ),
    back("QLinear operators", "computes with integers", bn(4), first=integer_product, x=(2, 3)),
    back(
        "quantized bias overflows",
        "quantized_bias=float",
        add(*C, c=2.0**30),
        first=layer(bias="int32"),
    ),
    back(
        "quantized bias of scale zero",
        "its scale is zero",
        add(*C, c=1.0),
        first=layer(bias="int32", step=0.0),
    ),
    back(
        "GroupNorm rows",
        "is not the channel axis 1",
        mul(6, 1),
        first=norm("GroupNormalization", 2, num_groups=2),
        x=X4,
        opset=18,
    ),
    back(
        "GroupNorm unknown",
        "4 channels in 2 groups",
        bn(4),
        first=norm("GroupNormalization", 2, num_groups=2),
        x=None,
        opset=18,
    ),
    back(
        "LayerNorm dynamic scale",
        "weight",
        mul(5),
        first=lambda g, x: g.node("LayerNormalization", [x, g.input("s", [5])]),
    ),
    back(
        "LayerNorm dynamic bias",
        "bias",
        mul(5),
        first=lambda g, x: g.node(
            "LayerNormalization", [x, g.initializer(draw(g, (5,))), g.input("s", [5])]
        ),
    ),
    back(
        "RMSNorm shift",
        "has no bias",
        mul_add(5),
        first=norm("RMSNormalization", 5, bias=False),
        opset=23,
    ),
    back(
        "too many",
        "more than 256 operators",
        *[op("LeakyRelu", alpha=0.5)] * 257,
        mul(*C, sign="+"),
    ),
    back(
        "InstanceNorm infinite",
        "infinite or not a number",
        SCALE,
        first=weighted("InstanceNormalization", [1, 2, np.inf, 3], [1, 2, 3, 4]),
        x=X4,
    ),
    back(
        "InstanceNorm misfit",
        "its parameters are not vectors",
        bn(4),
        x=None,
        first=weighted("InstanceNormalization", [[1, 2, 3, 4]], [1, 2, 3, 4]),
    ),
    back("BatchNormalization trains", "training_mode is 1", bn(4, training_mode=1)),
    back(
        "BatchNormalization trains, results",
        "3 outputs are declared",
        lambda g, x: (
            (bn(4)(g, x) and g.nodes[-1].output.extend(["m", "v"])) or g.nodes[-1].output[0]
        ),
    ),
    back(
        "Dropout's mask",
        "only its first result holds channels, and 'm' is another",
        lambda g, x: (g.node("Dropout", [x], [g.output("d", [2, 4, 6, 5]), "m"]), "m")[1],
        bn(4),
        opset=7,
    ),
    back("ReduceMax", "the scale in channel", op("ReduceMax", ints(2)), SCALE),
    back("ReduceL1", "the scale in channel", op("ReduceL1", ints(2)), SCALE),
    back(
        "ReduceSum terms",
        "an unknown number of terms",
        op("ReduceSum", ints(2)),
        SHIFTED,
        x=(2, 3, "H", 5),
        options="partial=never",
    ),
    back(
        "legacy constant",
        "constants do not broadcast before opset 7",
        add(4, 6, 5, broadcast=1),
        mul(*C, broadcast=1),
        opset=6,
    ),
    back(
        "legacy operand",
        "an operand at an axis is not constant",
        lambda g, x: g.node("Mul", [x, g.input("z", [4])], axis=1, broadcast=1),
        mul(4, axis=1, broadcast=1),
        opset=6,
    ),
    back(
        "quotient vanishes",
        "a constant would vanish",
        binary("Div", 4, 6, 5, left=True, c=[2, 1, 2, 1]),
        mul(*C, c=[1, 2**-13, 2, 4]),
        mul(*C, c=[1, 2**-13, 2, 4]),
        dtype=F16,
    ),
    back(
        "BatchNormalization misfit",
        "parameters of shapes",
        lambda g, x: g.node(
            "BatchNormalization", [x, *[g.initializer(draw(g, (n,), "+")) for n in (4, 4, 3, 4)]]
        ),
    ),
    back(
        "Reshape symbols",
        "its result has other channels",
        op("Reshape", ints(2, 5, -1)),
        bn(5),
        x=(2, 3, "H", 5),
    ),
    back(
        "growth", "max_growth=0", mul_add(*C), first=conv(4, 3, bias=False), options="max_growth=0"
    ),
    back(
        "Transpose parts",
        "parts the axes",
        op("Transpose", perm=[0, 1, 3, 2]),
        op("Reshape", ints(2, 4, 6)),
        mul(4, 1),
        first=conv(2, 3),
        x=(2, 3, 6, 2),
    ),
    back(
        "MaxPool indices",
        "has the indices of its maxima, not data",
        lambda g, x: (g.node("MaxPool", [x], ["d", "i"], kernel_shape=[1, 1]), "i")[1],
        bn(4),
    ),
    back("Reduce channels", "reduces the channels", op("ReduceMean", ints(1)), bn(4)),
    back("Concat misfit", MISFIT, branches("Concat", same, same, axis=1), bn(9)),
    back("Add misfit", EXTENT, add(3, 1, 1), bn(4)),
    back("Max misfit", EXTENT, op("Max", np.ones((3, 1, 1))), bn(4, "+")),
    back(
        "Concat rows misfit", MISFIT, branches("Concat", same, constant(2, 3, 6, 5), axis=2), bn(4)
    ),
    back("Split dynamic", EXTENT, dynamic_split(1, bn(2), same)),
    back("Slice misfit", MISFIT, op("Slice", ints(0), ints(3), ints(1)), bn(4)),
    back("Tile misfit", MISFIT, op("Tile", ints(1, 2, 1, 1)), bn(7)),
    back("Conv flat", "do not fit", mul(c=2.0), first=weighted("Conv", np.ones((4, 3)))),
    back(
        "Conv bias", "do not fit", SCALE, first=weighted("Conv", np.ones((4, 3, 1, 1)), np.ones(3))
    ),
    back(
        "ConvTranspose bias",
        "do not fit",
        SCALE,
        first=weighted("ConvTranspose", np.ones((3, 4, 1, 1)), np.ones(3)),
    ),
    back(
        "ConvTranspose groups",
        "does not fit its groups",
        SCALE,
        first=weighted("ConvTranspose", np.ones((3, 2, 1, 1)), group=2),
    ),
    back(
        "Gemm cube", "has rank 3", mul(c=2.0), first=weighted("Gemm", np.ones((4, 5, 1))), x=(2, 4)
    ),
    back(
        "Gemm C",
        "C has shape [3]",
        mul(c=2.0),
        first=weighted("Gemm", np.ones((4, 5)), np.ones(3)),
        x=(2, 4),
    ),
    back(
        "integer weight",
        "the weight is i64",
        mul(c=2.0),
        first=op("MatMul", np.ones((4, 5), np.int64)),
        x=(2, 4),
    ),
    back("legacy misfit", MISFIT, add(5, 1, axis=3, broadcast=1), mul(c=2.0, broadcast=1), opset=6),
    back(
        "LayerNorm unknown rank",
        "rank of the result is unknown",
        mul(c=2.0),
        first=norm("LayerNormalization", 5),
        x=None,
    ),
    back("LayerNorm misfit", "has 7 channels, not 5", mul(5), first=norm("LayerNormalization", 7)),
    back(
        "Pad infinite",
        "would differ between channels",
        op("Pad", ints(0, 0, 1, 1, 0, 0, 1, 1), np.inf),
        SCALE,
    ),
    back(
        "legacy last axis",
        "axis -1 of data of unknown rank",
        HIDE,
        add(5, axis=-1, broadcast=1),
        opset=6,
    ),
    back(
        "Gather from a constant",
        "is a constant",
        SCALE,
        first=lambda g, x: g.node("Gather", [g.initializer(draw(g, X4)), g.input("i", [2], I64)]),
    ),
    back("Max overflows", "a constant would exceed f16", op("Max", 6e4), mul(c=4.0), dtype=F16),
]
END = conv(3, 4)
LAST = chain(op("Reshape", ints(2, 4, -1)), conv(3, 4, 1))
ROWS_AHEAD: list[Row] = [
    ahead(
        "Dropout mask",
        "its mask is read",
        SCALE,
        lambda g, x: g.node("Dropout", [x], ["d", g.output("m", list(X4), np.dtype(np.bool_))]),
        END,
    ),
    ahead(
        "slope", "reads the affine as a parameter", branches("PRelu", other("z", X4), mul(*C)), END
    ),
    ahead(
        "weight",
        "reads the affine as a parameter",
        SCALE,
        lambda g, x: g.node("Conv", [g.input("d", [2, 4, 6, 6]), x]),
        x=(3, 4, 2, 2),
    ),
    ahead(
        "bias",
        "the affine as",
        lambda g, x: g.node(
            "Conv", [g.input("d", [2, 4, 6, 6]), g.initializer(draw(g, (4, 4, 1, 1))), mul(4)(g, x)]
        ),
        x=(4,),
    ),
    ahead("Clip per channel", "bounds are not per channel", SCALE, op("Clip", -1.0, 1.0), END),
    ahead("Clip reversed", "cannot be scaled", mul(c=2.0), op("Clip", 1.0, -1.0), END),
    ahead(
        "Clip attributes",
        "bounds are attributes",
        mul(c=3.0, broadcast=1),
        op("Clip", min=-0.25, max=0.75),
        END,
        opset=6,
    ),
    ahead("HardSigmoid channels", "its slope is not per channel", SCALE, op("HardSigmoid"), END),
    ahead("HardSigmoid float64", "its slope is an attribute", mul(c=1 / 3), op("HardSigmoid"), END),
    ahead("pool rows", "pools along axis 2", ROWS, op("AveragePool", kernel_shape=[2, 2]), END),
    ahead("Reduce channels", "reduces the channels", SCALE, op("ReduceMean", ints(1)), conv(3, 1)),
    ahead("ReduceMax", "the scale in channel", SCALE, op("ReduceMax", ints(2)), END),
    ahead("ReduceL1", "a shift does not pass", add(*C), op("ReduceL1", ints(2)), END),
    ahead("Reduce dynamic", "its axes are not constant", SCALE, fed_by("ReduceMean", (1,)), END),
    ahead(
        "Reduce unknown rank",
        "rank of its data is unknown",
        bn(4),
        op("ReduceMean", ints(2)),
        END,
        x=None,
    ),
    ahead(
        "ReduceSum terms",
        "an unknown number of terms",
        SHIFTED,
        op("ReduceSum", ints(2)),
        END,
        x=(2, 4, "H", 5),
        options="partial=never",
    ),
    ahead(
        "Pad channels",
        "pads or crops the channels",
        SCALE,
        op("Pad", ints(0, 1, 0, 0, 0, 0, 0, 0)),
        conv(3, 5),
    ),
    ahead("Pad dynamic", "its pads are not constant", SCALE, fed_by("Pad", (8,)), END),
    ahead(
        "Pad zero scale",
        "a scale is zero",
        mul(*C, c=[1, 0, 2, 3]),
        add(*C),
        op("Pad", ints(0, 0, 1, 1, 0, 0, 1, 1)),
        END,
        options="partial=pays",
    ),
    ahead(
        "Pad differs",
        "would differ between channels",
        SHIFTED,
        op("Pad", ints(0, 0, 1, 1, 0, 0, 1, 1)),
        END,
        options="partial=never",
    ),
    ahead(
        "Pad attribute",
        "its value is an attribute",
        mul(c=3.0, broadcast=1),
        op("Pad", pads=[0, 0, 1, 1, 0, 0, 1, 1], value=0.25),
        END,
        opset=2,
    ),
    ahead(
        "Resize channels",
        "resizes axis 1, or may",
        SCALE,
        lambda g, x: g.node("Resize", [x, "", g.initializer(np.array([1, 2, 1, 1], np.float32))]),
        conv(3, 8),
    ),
    ahead(
        "Resize crop",
        "extrapolates a constant",
        SCALE,
        lambda g, x: g.node(
            "Resize",
            [
                x,
                g.initializer(np.array([0, 0, 0, 0, 1, 1, 1, 2], np.float32)),
                g.initializer(np.array([1, 1, 2, 2], np.float32)),
            ],
            coordinate_transformation_mode="tf_crop_and_resize",
            extrapolation_value=3.0,
            mode="linear",
        ),
        END,
    ),
    ahead("Transpose unknown rank", RANK, bn(4), op("Transpose"), conv(3, 6), x=None),
    ahead(
        "Reshape unknown rank", RANK, bn(4), op("Reshape", ints(0, 4, -1)), conv(3, 4, 1), x=None
    ),
    ahead(
        "DepthToSpace rows",
        "moves channels into axis 2",
        ROWS,
        op("DepthToSpace", blocksize=2),
        conv(3, 1),
    ),
    ahead(
        "SpaceToDepth rows",
        "moves axis 2 into the channels",
        ROWS,
        op("SpaceToDepth", blocksize=2),
        conv(3, 16),
        x=(2, 4, 6, 4),
    ),
    ahead("Concat last", RANK, branches("Concat", bn(4), other("z", None), axis=-1), END, x=None),
    ahead(
        "Concat unknown",
        RANK,
        branches("Concat", bn(4), other("z", None), axis=1),
        conv(3, 8),
        x=None,
    ),
    ahead("Split unknown", RANK, bn(4), split(1, [2, 2], conv(3, 2), conv(3, 2)), x=None),
    ahead(
        "Slice dynamic",
        "its bounds are not constant",
        SCALE,
        fed_by("Slice", (1,), ints(4), ints(1)),
        END,
    ),
    ahead("Gather unknown", RANK, bn(4), op("Gather", ints(0, 1, 2, 3), axis=1), END, x=None),
    ahead(
        "Gather dynamic",
        "not a list of constant indices",
        SCALE,
        fed_by("Gather", (4,), axis=1),
        END,
    ),
    ahead("Expand unknown rank", RANK, bn(4), op("Expand", ints(2, 4, 6, 5)), END, x=None),
    ahead("Tile dynamic", "its repeats are not constant", SCALE, fed_by("Tile", (4,)), END),
    ahead(
        "Add unknown rank",
        RANK,
        branches("Add", chain(bn(4, t=1.0)), other("z", None)),
        END,
        x=None,
    ),
    ahead(
        "Mul unknown rank", RANK, branches("Mul", bn(4, "+", t=0.0), other("z", None)), END, x=None
    ),
    ahead("Add twice", "on more than one path", add(*C), branches("Add", same, same), END),
    ahead(
        "Mul twice",
        "on more than one path",
        mul(*C, sign="+"),
        branches("Mul", same, op("Relu")),
        END,
    ),
    ahead(
        "denominator",
        "nothing passes a denominator",
        SCALE,
        branches("Div", other("z", X4), same),
        END,
    ),
    ahead("Add zero scale", "a scale is zero", mul(*C, c=[1, 0, 2, 3]), add(4, 6, 5), END),
    ahead(
        "Add infinite",
        "divided by the scale is not finite",
        mul(*C, c=[1, 1e-309, 2, 3]),
        add(4, 6, 5),
        END,
    ),
    ahead(
        "quantized Conv",
        "but not by output channel",
        SCALE,
        dequantized(shape=(3, 4, 1, 1)),
        options="per_channel=allow",
    ),
    ahead(
        "quantized ConvTranspose",
        "but not by output channel",
        SCALE,
        dequantized(shape=(4, 3, 1, 1), reader="ConvTranspose"),
        options="per_channel=allow",
    ),
    ahead(
        "quantized Gemm",
        "but not by output channel",
        mul(4),
        dequantized(shape=(4, 3), reader="Gemm"),
        options="per_channel=allow",
        x=(2, 4),
    ),
    ahead(
        "ConvTranspose stride",
        "not every position is reached",
        add(*C),
        deconv(3, 4, 1, 1, strides=[2, 2]),
    ),
    ahead(
        "ConvTranspose dynamic",
        "weight",
        SCALE,
        lambda g, x: g.node("ConvTranspose", [x, g.input("w", [4, 3, 1, 1])]),
    ),
    ahead(
        "MatMul dynamic", "weight", mul(5), lambda g, x: g.node("MatMul", [x, g.input("w", [5, 3])])
    ),
    ahead(
        "border pad, zero scale",
        "a scale is zero",
        mul(*C, c=[1, 0, 2, 3]),
        add(*C),
        conv(3, 4, 3, 3, pads=[1, 1, 1, 1]),
        options="border=pad",
    ),
    ahead(
        "border pad, differs",
        "the padding would differ",
        SHIFTED,
        conv(3, 4, 3, 3, pads=[1, 1, 1, 1]),
        options="border=pad,partial=never",
    ),
    ahead(
        "border map, many positions",
        "a bias for each position is too large",
        add(4, 1),
        conv(1, 4, 4096, pads=[2100, 2100]),
        options="border=map",
        x=(1, 4, 4200),
    ),
    ahead(
        "border map, unknown",
        "the extents of its data are unknown",
        add(*C),
        conv(3, 4, 3, 3, pads=[1, 1, 1, 1]),
        options="border=map",
        x=(2, 4, "H", 5),
    ),
    ahead(
        "border map, overflow",
        "the bias map exceeds",
        add(*C, c=[6e4, 6e4, 6e4, 5e4]),
        weighted("Conv", np.full((3, 4, 3, 3), 2.0), pads=[1, 1, 1, 1]),
        options="border=map",
        dtype=F16,
    ),
    ahead(
        "GroupNorm rows",
        "the mean is taken over axis 2",
        add(6, 1),
        norm("GroupNormalization", 4, num_groups=2),
    ),
    ahead(
        "LayerNorm row",
        "the mean is taken over axis 2",
        add(6, 1),
        norm("LayerNormalization", 6, 5, axis=-2),
    ),
    ahead("border keep", "pads with zeros", add(*C), conv(3, 4, 3, 3, pads=[1, 1, 1, 1])),
    ahead(
        "Gather table",
        "not a list of constant indices",
        SCALE,
        op("Gather", ints(0, 1, 2, 3).reshape(2, 2), axis=1),
        op("Reshape", ints(2, 4, 6, 5)),
        END,
    ),
    ahead(
        "DepthToSpace differ",
        "repeats or joins channels that have different",
        SCALE,
        op("DepthToSpace", blocksize=2),
        conv(3, 1),
    ),
    ahead("ReduceMin", "the scale in channel", SCALE, op("ReduceMin", ints(3)), END),
    ahead("ReduceL2 rows", "the scale in channel", SCALE, op("ReduceL2", ints(3)), END),
    ahead("Relu", "the scale in channel", SCALE, op("Relu"), END),
    ahead(
        "MatMul vector",
        "an operand is a vector",
        mul(4),
        lambda g, x: g.node("MatMul", [x, g.initializer(draw(g, (4,)))]),
        x=(2, 4),
    ),
    ahead(
        "Clip bound",
        "reads the affine as a parameter",
        mul(c=2.0),
        lambda g, x: g.node("Clip", [g.input("z", list(X4)), x]),
        END,
        x=(),
    ),
    ahead(
        "Pad value",
        "reads the affine as a parameter",
        mul(c=2.0),
        lambda g, x: g.node(
            "Pad", [g.input("z", list(X4)), g.initializer(ints(0, 0, 1, 1, 0, 0, 1, 1)), x]
        ),
        END,
        x=(),
    ),
    ahead(
        "Resize scales",
        "reads the affine as a parameter",
        mul(c=2.0),
        lambda g, x: g.node("Resize", [g.input("z", list(X4)), "", x]),
        END,
        x=(4,),
        dtype=F32,
    ),
    ahead(
        "legacy operand",
        "an operand at an axis is not constant",
        mul(4, axis=0, broadcast=1),
        lambda g, x: g.node("Mul", [g.input("z", list(X4)), x], axis=1, broadcast=1),
        END,
        x=(4,),
        opset=6,
    ),
    ahead(
        "BatchNormalization stays",
        "is a BatchNormalization that stays",
        mul(*C, sign="+"),
        op("Relu"),
        bn(4),
    ),
    ahead("norm scale", "epsilon does not scale", SCALE, norm("InstanceNormalization", 4)),
    ahead(
        "LayerNorm shift", "the mean is taken over axis 3", add(5), norm("LayerNormalization", 5)
    ),
    ahead(
        "LayerNorm channels",
        "the mean is taken over axis 1",
        add(*C),
        norm("LayerNormalization", 4, 6, 5, axis=1),
    ),
    ahead(
        "InstanceNorm rows",
        "the mean is taken over axis 2",
        add(6, 1),
        norm("InstanceNormalization", 4),
    ),
    ahead(
        "GroupNorm differs",
        "not constant in every group",
        add(*C),
        norm("GroupNormalization", 4, num_groups=2),
    ),
    ahead(
        "LayerNorm mean read",
        "its mean is read, too",
        add(6, 1),
        lambda g, x: g.node(
            "LayerNormalization",
            [x, g.initializer(draw(g, (5,)))],
            ["n", g.output("mean", [2, 4, 6, 1])],
        ),
    ),
    ahead(
        "too many",
        "more than 256 operators",
        mul(*C, sign="+"),
        *[op("LeakyRelu", alpha=0.5)] * 257,
        END,
    ),
    ahead("result", "is an output of the graph", SCALE),
    ahead(
        "Transpose parts",
        "parts the axes",
        SCALE,
        op("Reshape", ints(2, 2, 2, 30)),
        op("Transpose", perm=[0, 1, 3, 2]),
        conv(3, 2),
    ),
    ahead(
        "Conv groups",
        "does not fit its groups",
        SCALE,
        weighted("Conv", np.ones((3, 2, 1, 1)), group=2),
    ),
    ahead(
        "HardSigmoid overflows",
        "the new slope is not finite",
        mul(c=3e38),
        op("HardSigmoid", alpha=10.0),
        END,
        dtype=F32,
    ),
    ahead("Split dynamic", EXTENT, SCALE, dynamic_split(1, conv(3, 2), conv(3, 2))),
    ahead(
        "Add unknown extent",
        EXTENT,
        bn(4, s=1.0),
        branches("Add", same, other("z", (2, None, 6, 5))),
        END,
        x=(2, None, 6, 5),
    ),
    ahead(
        "Mul unknown extent",
        EXTENT,
        bn(4, t=0.0),
        branches("Mul", same, other("z", (2, None, 6, 5))),
        END,
        x=(2, None, 6, 5),
    ),
    ahead(
        "Expand unknown extent",
        EXTENT,
        bn(4),
        op("Expand", ints(2, 1, 6, 5)),
        END,
        x=(1, "K", 6, 5),
    ),
    ahead(
        "norm type",
        "type of its parameters is unknown",
        add(*C),
        lambda g, x: g.node(
            "InstanceNormalization", [x, HIDE(g, g.input("s", [4])), g.input("b", [4])]
        ),
    ),
    ahead(
        "GroupNorm misfit",
        "4 channels in 3 groups",
        add(*C),
        norm("GroupNormalization", 4, num_groups=3),
    ),
    ahead(
        "Reshape misfit",
        "its data have other channels",
        bn(4),
        op("Reshape", ints(2, 16, 15)),
        conv(3, 16, 1),
        x=(2, 8, 6, 5),
    ),
    ahead(
        "Reshape nothing",
        "its data have other channels",
        SCALE,
        op("Reshape", ints(2, 4, 0), allowzero=1),
        conv(3, 4, 1),
        x=(2, 4, 0, 5),
    ),
    ahead(
        "Reshape symbols",
        "its data have other channels",
        mul(4),
        op("Reshape", ints(4, -1)),
        op("Transpose", perm=[1, 0]),
        gemm(3, 4),
        x=("H", 4),
    ),
]


def known(model: ModelProto, row: Case) -> ModelProto:
    """The model with shapes for inputs of unknown ones, so that it can be evaluated."""
    made, shape = copy.deepcopy(model), X4 if row.rule == "ahead" else (2, 3, 6, 5)
    for info in made.graph.input:
        tensor = info.type.tensor_type
        if not tensor.HasField("shape"):
            info.CopyFrom(helper.make_tensor_value_info(info.name, tensor.elem_type, shape))
    return made


@pytest.mark.parametrize(
    ("words", "row"), ROWS_BACK + ROWS_AHEAD, ids=lambda item: getattr(item, "id", "")
)
def test_a_condition_refuses(words: str, row: Case) -> None:
    model = row.model()
    result = compiled(model, row.passes)
    assert words in str(
        [source for source in result.fold_map.sources if source["status"] != "folded"]
    )
    if result.model != model:
        assert_sound(model, result, row.passes)
        assert_same_function(known(model, row), known(result.model, row))
