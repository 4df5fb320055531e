"""Sections 3.3 and 3.4: an affine on its way forward into layers, and through padding."""

from __future__ import annotations

from typing import Any

import numpy as np
from graphs import F32, Graph

from .build import (
    BN,
    Case,
    Step,
    add,
    also,
    binary,
    bn,
    branches,
    case,
    chain,
    conv,
    deconv,
    draw,
    expose,
    gemm,
    in_branch,
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

ALWAYS = "partial=always"
C = (3, 1, 1)
SCALE = mul(*C)
SHIFTED = mul_add(*C)
UNIFORM = chain(mul(c=2.0), add(c=-1.0))
PADDED = conv(4, 3, 3, 3, pads=[1, 1, 1, 1])
PLAIN = conv(4, 3, 3, 3)
FOUR = [2, 4, 6, 5]


def by_input(kind: str, *shape: int) -> Step:
    """A layer with a weight that is a graph input."""
    return lambda graph, x: graph.node(kind, [x, graph.input("w", list(shape))])


def dynamic_bias(graph: Graph, x: str) -> str:
    return graph.node(
        "Conv", [x, graph.initializer(draw(graph, (4, 3, 1, 1))), graph.input("bias", [4])]
    )


def siamese(graph: Graph, x: str) -> str:
    """Two Convs with one weight and one bias; an affine in front of one of them."""
    weight, bias = (
        graph.initializer(draw(graph, (4, 3, 2, 2))),
        graph.initializer(draw(graph, (4,))),
    )
    first = graph.node("Conv", [bn(3)(graph, x), weight, bias])
    return graph.node("Max", [first, graph.node("Conv", [x, weight, bias])])


def shared_in_a_row(graph: Graph, x: str) -> str:
    """Two ConvTransposes with one weight, an affine behind each."""
    weight = graph.initializer(draw(graph, (3, 3, 2, 2)))
    for _ in range(2):
        x = mul(3, 1, 1)(graph, graph.node("ConvTranspose", [x, weight]))
    return x


def shared_by_groups(graph: Graph, x: str) -> str:
    """Two ConvTransposes of different groups with one weight, an affine behind each."""
    weight = graph.initializer(draw(graph, (4, 2, 2, 2)))
    x = mul(4, 1, 1)(graph, graph.node("ConvTranspose", [x, weight], group=2))
    return mul(2, 1, 1)(graph, graph.node("ConvTranspose", [x, weight]))


CONV = [
    case("3.3 Conv", "BatchNormalization", bn(3), PLAIN),
    case("3.3 Conv", "no bias", bn(3), conv(4, 3, 3, 3, bias=False)),
    case("3.3 Conv", "no bias, scale", SCALE, conv(4, 3, 3, 3, bias=False)),
    case("3.3 Conv", "1d", bn(3), conv(4, 3, 3), x=[2, 3, 7]),
    case("3.3 Conv", "3d", bn(2), conv(4, 2, 2, 2, 2), x=[2, 2, 3, 4, 3]),
    case("3.3 Conv", "kernel 1", bn(3), conv(4, 3)),
    case("3.3 Conv", "one channel", bn(1), conv(1, 1, 3, 3), x=[2, 1, 6, 5]),
    case("3.3 Conv", "all extents equal", bn(4), conv(4, 4, 2, 2), x=[4, 4, 4, 4]),
    case("3.3 Conv", "on another axis", mul(4), conv(4, 4, 2, 2), x=[4, 4, 4, 4], left="Mul"),
    case("3.3 Conv", "2 groups", bn(4), conv(6, 4, 3, 3, group=2), x=FOUR),
    case("3.3 Conv", "2 groups, square", bn(4), conv(4, 4, 3, 3, group=2), x=FOUR),
    case("3.3 Conv", "depthwise", bn(4), conv(4, 4, 3, 3, group=4), x=FOUR),
    case("3.3 Conv", "depthwise multiplier", bn(3), conv(6, 3, 3, 3, group=3)),
    case("3.3 Conv", "strides, dilations", bn(3), conv(4, 3, 2, 2, strides=[2, 1], dilations=[2, 3])),
    case("3.3 Conv", "zero gamma", bn(3, s=[0, 1, -2]), PLAIN),
    case("3.3 Conv", "scale one and shift zero", mul(*C, c=[1, 1, 1]), PLAIN),
    case("3.3 Conv", "auto_pad VALID", bn(3), conv(4, 3, 3, 3, auto_pad="VALID")),
    case("3.3 Conv", "SAME, kernel 1", bn(3), conv(4, 3, 1, 1, auto_pad="SAME_UPPER")),
    case("3.3 Conv", "SAME, kernel 1, strides", bn(3), conv(4, 3, 1, 1, auto_pad="SAME_UPPER", strides=[2, 2])),
    case("3.3 Conv", "SAME that pads nothing", bn(3), conv(4, 3, 2, 2, auto_pad="SAME_UPPER", strides=[2, 2]),
         x=[2, 3, 6, 4]),
    case("3.3 Conv", "SAME that may pad", bn(3), conv(4, 3, 2, 2, auto_pad="SAME_UPPER", strides=[2, 2]),
         x=[2, 3, "h", 4], left=BN),
    case("3.3 Conv", "SAME that pads one side", bn(3), conv(4, 3, 2, 2, auto_pad="SAME_LOWER", strides=[2, 2]),
         left=BN),
    case("3.3 Conv", "SAME that pads by dilation", bn(3), conv(
        4, 3, 2, 2, auto_pad="SAME_UPPER", strides=[2, 2], dilations=[2, 2]), x=[2, 3, 6, 4], left=BN),
    case("3.3 Conv", "SAME, scale", SCALE, conv(4, 3, 3, 3, auto_pad="SAME_UPPER")),
    case("3.3 Conv", "dynamic weight", bn(3), by_input("Conv", 4, 3, 1, 1), left=BN),
    case("3.3 Conv", "dynamic bias", bn(3), dynamic_bias, left=BN),
    case("3.3 Conv", "dynamic bias, scale", SCALE, dynamic_bias),
    case("3.3 Conv", "forward=false", bn(3), PLAIN, left=BN, options="forward=false"),
    case("3.3 Conv", "two readers, both absorb", bn(3), branches("Max", PLAIN, conv(4, 3, 3, 3))),
    case("3.3 Conv", "two readers, one absorbs", bn(3), also(op("Relu")), PLAIN, left=BN),
    case("3.3 Conv", "two readers, one pads", bn(3), also(PADDED), PLAIN, left=BN),
    case("3.3 Conv", "a graph output", bn(3), expose, PLAIN, left=BN),
    case("3.3 Conv", "captured by a body", bn(3), also(in_branch([op("Relu")], [op("Tanh")], shape=[2, 3, 6, 5])),
         PLAIN, left=BN, static=True),
    case("3.3 Conv", "one weight for two layers", siamese),
    case("3.3 Conv", "both operands", lambda g, x: g.node("Conv", [x, mul(3, 1, 1)(g, g.input("w", [4, 3, 1, 1]))]),
         left="Mul"),
]  # fmt: skip

PADDING = [
    case("3.4 padding", "scale", SCALE, PADDED),
    case("3.4 padding", "BatchNormalization without shift", bn(3, t=0), PADDED),
    case("3.4 padding", "BatchNormalization", bn(3), PADDED, left=BN),
    case("3.4 padding", "one asymmetric pad", bn(3), conv(4, 3, 3, 3, pads=[0, 0, 0, 1]), left=BN),
    case("3.4 padding", "kernel 1 with pads", bn(3), conv(4, 3, 1, 1, pads=[1, 0, 0, 0]), left=BN),
    case("3.4 padding", "2 groups", bn(4), conv(4, 4, 3, 3, group=2, pads=[1, 1, 1, 1]), x=FOUR, left=BN),
    case("3.4 padding", "depthwise", bn(4), conv(4, 4, 3, 3, group=4, pads=[1, 1, 1, 1]), x=FOUR, left=BN),
    case("3.4 padding", "SAME", bn(3), conv(4, 3, 3, 3, auto_pad="SAME_LOWER"), left=BN),
    case("3.4 scale only", "Mul and Add", SHIFTED, PADDED, left="Add"),
    case("3.4 scale only", "never", SHIFTED, PADDED, left="Mul Add", options="partial=never"),
    case("3.4 scale only", "BatchNormalization, always", bn(3), PADDED, left="Add", options=ALWAYS),
    case("3.4 scale only", "a zero scale under a shift", mul(*C, c=[0, 1, 2]), add(*C), PADDED, left="Mul Add"),
    case("3.4 scale only", "a zero scale without a shift", mul(*C, c=[0, 1, 2]), add(*C, c=[0, 1, 2]), PADDED,
         left="Add"),
    case("3.4 pad", "uniform t/s", mul(c=2.0), add(c=-1.0), PADDED, options="border=pad", has="Pad"),
    case("3.4 pad", "uniform t/s of varying channels", mul(*C, c=[2, -4, 6]), add(*C, c=[1, -2, 3]), PADDED,
         options="border=pad", has="Pad"),
    case("3.4 pad", "uniform t/s, SAME", UNIFORM, conv(4, 3, 3, 3, auto_pad="SAME_UPPER", strides=[2, 2]),
         options="border=pad", has="Pad"),
    case("3.4 pad", "uniform BatchNormalization", bn(3, s=2, t=-1), PADDED, options="border=pad", has="Pad"),
    case("3.4 pad", "varying t/s", bn(3), PADDED, left=BN, options="border=pad"),
    case("3.4 pad", "zero scale", mul(c=0.0), add(c=1.0), PADDED, left="Mul Add", options="border=pad"),
    case("3.4 map", "BatchNormalization", bn(3), PADDED, left="Add", options="border=map", static=False),
    case("3.4 map", "BatchNormalization, strides, groups", bn(4), conv(
        6, 4, 3, 3, group=2, strides=[2, 1], pads=[1, 0, 2, 1]), x=FOUR, left="Add", options="border=map"),
    case("3.4 map", "Mul and Add", SHIFTED, PADDED, left="Add", options="border=map"),
    case("3.4 map", "unknown extent", bn(3), PADDED, x=[2, 3, "h", 5], left=BN, options="border=map"),
    case("3.4 map", "growth beyond max_growth", bn(3), PADDED, left=BN, options="border=map,max_growth=64"),
    case("3.4 ones", "BatchNormalization", bn(3), PADDED, has="Pad", options="border=ones"),
    case("3.4 ones", "Mul and Add", SHIFTED, PADDED, has="Pad", options="border=ones"),
    case("3.4 ones", "unknown extent, SAME", bn(3), conv(4, 3, 3, 3, auto_pad="SAME_UPPER", strides=[2, 2]),
         x=[2, 3, "h", 5], has="Pad", options="border=ones"),
    case("3.4 ones", "zero scale", mul(*C, c=[0, 1, 2]), add(*C), PADDED, has="Pad", options="border=ones"),
    case("3.4 ones", "2 groups", bn(4), conv(4, 4, 3, 3, group=2, pads=[1, 1, 1, 1]), x=FOUR, left=BN,
         options="border=ones"),
    case("3.4 cheapest", "uniform", UNIFORM, PADDED, has="Pad", options="border=cheapest"),
    case("3.4 cheapest", "BatchNormalization", bn(3), PADDED, has="Pad", options="border=cheapest"),
    case("3.4 cheapest", "2 groups", bn(4), conv(4, 4, 3, 3, group=2, pads=[1, 1, 1, 1]), x=FOUR, left="Add",
         options="border=cheapest"),
    case("3.4 keep", "uniform", UNIFORM, PADDED, left="Add"),
]  # fmt: skip

DECONV = [
    case("3.3 ConvTranspose", "scale", SCALE, deconv(4, 3, 3, 3, strides=[2, 2])),
    case("3.3 ConvTranspose", "scale, 2 groups", mul(4, 1, 1), deconv(6, 4, 2, 2, group=2), x=FOUR),
    case("3.3 ConvTranspose", "scale, pads", SCALE, deconv(4, 3, 3, 3, pads=[1, 1, 1, 1])),
    case("3.3 ConvTranspose", "kernel 1", bn(3), deconv(4, 3, 1, 1)),
    case("3.3 ConvTranspose", "kernel 1, 2 groups", bn(4), deconv(6, 4, 1, 1, group=2), x=FOUR),
    case("3.3 ConvTranspose", "kernel 1, stride", bn(3), deconv(4, 3, 1, 1, strides=[2, 2]), left=BN),
    case("3.3 ConvTranspose", "kernel equal to stride", bn(3), deconv(4, 3, 2, 2, strides=[2, 2]), left=BN),
    case("3.3 ConvTranspose", "kernel 3", bn(3), deconv(4, 3, 3, 3), left=BN),
    case("3.3 ConvTranspose", "kernel 3, scale and shift", SHIFTED, deconv(4, 3, 3, 3), left="Add"),
    case("3.3 ConvTranspose", "kernel 1, output padding", bn(3), deconv(
        4, 3, 1, 1, strides=[2, 2], output_padding=[1, 1]), left=BN),
]  # fmt: skip


def second_operand(graph: Graph, x: str) -> str:
    """A Gemm whose second operand is the value."""
    return graph.node("Gemm", [graph.initializer(draw(graph, (4, 3))), x], transB=1)


def dynamic_c(graph: Graph, x: str) -> str:
    return graph.node("Gemm", [x, graph.initializer(draw(graph, (3, 4))), graph.input("c", [4])])


def symmetric(graph: Graph, x: str) -> str:
    """MatMul of a value with itself."""
    return graph.node("MatMul", [x, x])


DENSE = [
    *(
        case("3.3 Gemm", f"C {c}, beta {beta}", bn(3), gemm(4, 3, c, **({} if beta is None else {"beta": beta})),
             x=[2, 3], static=c is not None and c[:1] == (2,))
        for c in (None, (), (1,), (4,), (1, 4), (2, 1), (2, 4)) for beta in (None, 0.0, -2.0)
    ),
    case("3.3 Gemm", "shift alone", add(3), gemm(4, 3, (4,)), x=[2, 3]),
    case("3.3 Gemm", "shift alone, transB", add(3), gemm(4, 3, (4,), transB=1), x=[2, 3]),
    case("3.3 Gemm", "shift alone, transB, one column", add(3), gemm(1, 3, (1,), transB=1), mul(1), x=[2, 3]),
    case("3.3 Gemm", "uniform shift, transB, square", add(1), gemm(3, 3, (3,), transB=1), bn(3), x=[2, 3]),
    case("3.3 Gemm", "uniform scale, transB, one column", mul(c=2.0), gemm(1, 3, (1,), transB=1), bn(1), x=[2, 3]),
    case("3.3 Gemm", "transB, alpha, beta", bn(3), gemm(4, 3, (4,), transB=1, alpha=0.5, beta=-2.0), x=[2, 3]),
    case("3.3 Gemm", "square", bn(4), gemm(4, 4, (4,)), x=[4, 4]),
    case("3.3 Gemm", "square, transB", bn(4), gemm(4, 4, (4,), transB=1), x=[4, 4]),
    case("3.3 Gemm", "transA, on the rows of the data", mul_add(3, 1), gemm(4, 3, (4,), transA=1), x=[3, 2],
         static=True),
    case("3.3 Gemm", "transA, on its columns", bn(4), gemm(4, 4, (4,), transA=1), x=[4, 4], left=BN, static=True),
    case("3.3 Gemm", "on the rows", mul(4, 1), gemm(4, 4, (4,)), x=[4, 4], left="Mul", static=True),
    case("3.3 Gemm", "dynamic C", bn(3), dynamic_c, x=[2, 3], left=BN),
    case("3.3 Gemm", "dynamic C, scale", mul(3), dynamic_c, x=[2, 3]),
    case("3.3 Gemm", "the second operand", bn(3), second_operand, x=[2, 3], left=None, static=True),
    case("3.3 MatMul", "rank 2, scale", mul(3), matmul(3, 4), x=[2, 3]),
    case("3.3 MatMul", "rank 2", mul_add(3), matmul(3, 4), x=[2, 3]),
    case("3.3 MatMul", "rank 3, scale", mul(3), matmul(3, 4), x=[2, 5, 3]),
    case("3.3 MatMul", "rank 3, scale and shift", mul_add(3), matmul(3, 4), x=[2, 5, 3], left="Add"),
    case("3.3 MatMul", "rank 3, a following Add", mul_add(3), matmul(3, 4), add(4), x=[2, 5, 3], left="Add"),
    case("3.3 MatMul", "rank 3, the axis is not the last", bn(4), matmul(4, 4), x=[2, 4, 4], left=BN),
    case("3.3 MatMul", "constant on the left, no shift", bn(5, t=0), matmul(4, 5, left=True), x=[2, 5, 3]),
    case("3.3 MatMul", "constant on the left", mul_add(5, 1), matmul(4, 5, left=True), x=[2, 5, 3], left="Add"),
    case("3.3 MatMul", "constant on the left, the axis is the last", mul(4), matmul(4, 4, left=True), x=[2, 4, 4],
         left="Mul"),
    case("3.3 MatMul", "with itself", mul(4), symmetric, x=[4, 4], left="Mul", static=True),
]  # fmt: skip

POSITIVE = mul(*C, sign="+")
GATES: dict[str, Step] = {
    "Relu": op("Relu"),
    "LeakyRelu": op("LeakyRelu"),
    "PRelu": lambda g, x: g.node("PRelu", [x, g.initializer(draw(g, (3, 1, 1)))]),
}
GATED = [
    row
    for name, gate in GATES.items()
    for row in (
        case(f"3.3 {name}", "positive", POSITIVE, gate, PADDED),
        case(f"3.3 {name}", "mixed", SCALE, gate, PADDED, left="Mul"),
        case(f"3.3 {name}", "zero", mul(*C, c=[0, 1, 2]), gate, PADDED),
        case(f"3.3 {name}", "positive and shift", mul_add(*C, sign="+"), gate, PADDED, left="Add"),
        case(
            f"3.3 {name}",
            "zero under a shift",
            mul(*C, c=[0, 1, 2]),
            add(*C),
            gate,
            PADDED,
            left="Mul Add",
        ),
        case(f"3.3 {name}", "BatchNormalization", bn(3, "+"), gate, PLAIN, left=BN),
        case(
            f"3.3 {name}",
            "BatchNormalization, always",
            bn(3, "+"),
            gate,
            PLAIN,
            left="Add",
            options=ALWAYS,
        ),
        case(
            f"3.3 {name}",
            "BatchNormalization, never",
            bn(3, "+"),
            gate,
            PLAIN,
            left=BN,
            options="partial=never",
        ),
        case(f"3.3 {name}", "shift", add(*C), gate, PLAIN, left="Add"),
    )
] + [
    case(f"3.3 {kind}", "positive", POSITIVE, op(kind), PLAIN, left="Mul")
    for kind in ("Sigmoid", "Tanh", "Elu", "Exp", "Softplus", "Softmax", "HardSwish")
]


def pool(kind: str, *kernel: int, **attrs: Any) -> Step:
    return op(kind, kernel_shape=list(kernel or (2, 2)), **attrs)


def padded(value: float | None) -> Step:
    def build(graph: Graph, x: str) -> str:
        names = [graph.initializer(ints(0, 0, 1, 0, 0, 0, 2, 1))]
        names += [] if value is None else [graph.initializer(value)]
        return graph.node("Pad", [x, *names])

    return build


CARRIED = [
    case("3.3 MaxPool", "positive", bn(3, "+"), pool("MaxPool", 3, 3, pads=[1, 1, 1, 1]), PLAIN),
    case("3.3 MaxPool", "mixed", bn(3), pool("MaxPool"), PLAIN, left=BN),
    case("3.3 MaxPool", "zero", bn(3, s=[0, 1, 2]), pool("MaxPool"), PLAIN),
    case("3.3 AveragePool", "mixed", bn(3), pool("AveragePool"), PLAIN),
    case("3.3 AveragePool", "pads", bn(3), pool("AveragePool", 3, 3, pads=[1, 1, 1, 1]), PLAIN),
    case("3.3 AveragePool", "count_include_pad, pads", bn(3), pool(
        "AveragePool", 3, 3, pads=[1, 1, 1, 1], count_include_pad=1), PLAIN, left=BN),
    case("3.3 AveragePool", "count_include_pad, pads, scale", SCALE, pool(
        "AveragePool", 3, 3, pads=[1, 1, 1, 1], count_include_pad=1), PLAIN),
    case("3.3 GlobalAveragePool", "mixed", bn(3), op("GlobalAveragePool"), conv(4, 3)),
    case("3.3 GlobalMaxPool", "positive", bn(3, "+"), op("GlobalMaxPool"), conv(4, 3)),
    case("3.3 GlobalMaxPool", "mixed", bn(3), op("GlobalMaxPool"), conv(4, 3), left=BN),
    case("3.3 Resize", "nearest", bn(3), op("Resize", "", np.asarray([1, 1, 2, 2], np.float32)), PLAIN),
    case("3.3 Resize", "linear", bn(3), op("Resize", "", np.asarray([1, 1, 2, 2], np.float32), mode="linear"), PLAIN),
    case("3.3 Pad", "reflect", bn(3), op("Pad", ints(0, 0, 1, 1, 0, 0, 1, 1), mode="reflect"), PLAIN),
    case("3.3 Pad", "edge", bn(3), op("Pad", ints(0, 0, 1, 1, 0, 0, 1, 1), mode="edge"), PLAIN),
    case("3.3 Pad", "zero, scale", SCALE, padded(None), PLAIN),
    case("3.3 Pad", "zero, BatchNormalization", bn(3), padded(0), PLAIN, left=BN),
    case("3.3 Pad", "zero, scale and shift", SHIFTED, padded(0), PLAIN, left="Add"),
    case("3.3 Pad", "zero, uniform", UNIFORM, padded(None), PLAIN),
    case("3.3 Pad", "three, uniform", UNIFORM, padded(3), PLAIN),
    case("3.3 Pad", "three, scale", SCALE, padded(3), PLAIN, left="Mul"),
    case("3.3 Pad", "a new value uniform over channels", mul(*C, c=[1, 2, 4]), add(*C, c=[2, 1, -1]), padded(3), PLAIN),
    case("3.3 Concat", "channels, another input", branches("Concat", bn(3), other("z", [2, 3, 6, 5]), axis=1),
         conv(4, 6, 3, 3), static=True),
    case("3.3 Concat", "channels, the second", branches("Concat", other("z", [2, 3, 6, 5]), bn(3), axis=1),
         conv(4, 6, 3, 3), static=True),
    case("3.3 Concat", "channels, both", branches("Concat", bn(3), [op("Relu"), bn(3)], axis=1), conv(4, 6, 2, 2)),
    case("3.3 Concat", "channels, pads", branches("Concat", bn(3), same, axis=1),
         conv(4, 6, 3, 3, pads=[1, 1, 1, 1]), left=BN),
    case("3.3 Concat", "rows", branches("Concat", bn(3), op("Relu"), axis=2), PLAIN, left=BN),
    case("3.3 Transpose", "from channels last", mul_add(3), op("Transpose", perm=[0, 3, 1, 2]), PLAIN, x=[2, 6, 5, 3]),
    case("3.3 Transpose", "all extents equal", mul_add(4), op("Transpose", perm=[0, 3, 1, 2]), conv(4, 4, 2, 2),
         x=[4, 4, 4, 4]),
    case("3.3 Transpose", "all extents equal, not the channels", mul(4, 1), op("Transpose", perm=[0, 3, 1, 2]),
         conv(4, 4, 2, 2), x=[4, 4, 4, 4], left="Mul"),
    case("3.3 Flatten", "of planes", bn(3), op("Flatten"), gemm(4, 90, (4,))),
    case("3.3 Flatten", "of planes, transB", bn(3), op("Flatten"), gemm(4, 90, (4,), transB=1)),
    case("3.3 Flatten", "of planes of unknown extent", bn(3), op("Flatten"), op("Relu"), x=[2, 3, "h", 5], left=BN),
    case("3.3 Reshape", "planes", bn(3), op("Reshape", ints(0, 3, 30)), conv(4, 3, 3)),
    case("3.3 Reshape", "planes flattened", bn(3), op("Reshape", ints(0, -1)), gemm(4, 90, (4,))),
    case("3.3 Reshape", "channels split", bn(4), op("Reshape", ints(0, 2, 2, 6, 5)), op(
        "Transpose", perm=[0, 2, 1, 3, 4]), op("Reshape", ints(0, 4, 6, 5)), conv(4, 4, 2, 2), x=FOUR),
    case("3.3 DepthToSpace", "DCR, constant over blocks", bn(8, s=[2, -3] * 4, t=[1, 5] * 4), op(
        "DepthToSpace", blocksize=2), conv(4, 2, 3, 3), x=[2, 8, 3, 4]),
    case("3.3 DepthToSpace", "DCR, varying", bn(8), op("DepthToSpace", blocksize=2), conv(4, 2, 3, 3), x=[2, 8, 3, 4],
         left=BN),
    case("3.3 DepthToSpace", "CRD, constant over blocks", bn(8, s=[2] * 4 + [-3] * 4, t=[1] * 4 + [5] * 4), op(
        "DepthToSpace", blocksize=2, mode="CRD"), conv(4, 2, 3, 3), x=[2, 8, 3, 4]),
    case("3.3 SpaceToDepth", "varying", bn(3), op("SpaceToDepth", blocksize=2), conv(4, 12), x=[2, 3, 6, 4]),
    case("3.3 Split", "parts into layers", bn(4), split(1, [2, 2], conv(2, 2), conv(2, 2)), x=FOUR, left=None),
    case("3.3 ReduceMean", "planes", bn(3), op("ReduceMean", ints(2, 3), keepdims=0), gemm(4, 3, (4,))),
    case("3.3 Identity", "in between", bn(3), op("Identity"), op("Dropout"), PLAIN),
]  # fmt: skip

INPUT = other("z", [2, 3, 6, 5])
JOINS = [
    case("3.3 Add dynamic", "shift", branches("Add", add(*C), INPUT), PLAIN, left="Add", static=True),
    case("3.3 Add dynamic", "shift, the other operand", branches("Add", INPUT, add(*C)), PLAIN, left="Add",
         static=True),
    case("3.3 Add dynamic", "scale", branches("Add", SCALE, INPUT), PLAIN, left="Add Mul", static=True),
    case("3.3 Add dynamic", "shift, pads", branches("Add", add(*C), INPUT), PADDED, left="Add Add", static=True),
    case("3.3 Mul dynamic", "scale", branches("Mul", SCALE, INPUT), PADDED, left="Mul", static=True),
    case("3.3 Mul dynamic", "scale, the other operand", branches("Mul", INPUT, SCALE), PADDED, left="Mul", static=True),
    case("3.3 Mul dynamic", "scales on both", branches("Mul", SCALE, [INPUT, SCALE]), PADDED, left="Mul", static=True),
    case("3.3 Mul dynamic", "shift", branches("Mul", add(*C), INPUT), PLAIN, left="Mul Add", static=True),
    case("3.3 Mul dynamic", "BatchNormalization", branches("Mul", bn(3), INPUT), PLAIN, left=f"Mul {BN}", static=True),
    case("3.3 Mul dynamic", "squared", SCALE, branches("Mul", same, same), PLAIN, left="Mul Mul"),
    case("3.3 Add constant", "after the scale", SCALE, add(3, 6, 5), PLAIN, left="Add"),
    *(
        row
        for kind in ("Max", "Min")
        for row in (
            case(f"3.3 {kind} constant", "positive", bn(3, "+"), binary(kind, *C), PLAIN),
            case(f"3.3 {kind} constant", "on the left", mul_add(*C, sign="+"), binary(kind, *C, left=True), PLAIN),
            case(f"3.3 {kind} constant", "per element", bn(3, "+"), binary(kind, 3, 6, 5), PLAIN),
            case(f"3.3 {kind} constant", "infinite", bn(3, "+"), binary(kind, *C, c=[0.5, np.inf, -np.inf]), PLAIN),
            case(f"3.3 {kind} constant", "mixed", bn(3), binary(kind, *C), PLAIN, left=BN),
            case(f"3.3 {kind} constant", "zero", mul(*C, c=[0, 1, 2]), binary(kind, *C), PLAIN, left="Mul"),
            case(f"3.3 {kind} constant", "opset 7", mul(*C, sign="+"), binary(kind, 2, 3, 6, 5), PLAIN, opset=7),
            case(f"3.3 {kind} dynamic", "positive", branches(kind, bn(3, "+"), INPUT), PLAIN, left=BN, static=True),
            case(f"3.3 {kind} dynamic", "on both", bn(3, "+"), branches(kind, same, op("Relu")), PLAIN, left=BN),
        )
    ),
    case("3.3 Clip, Min", "the Min is further", mul(*C, sign="+"), op("Clip", 0.0, 6.0), binary("Min", *C), PLAIN),
    case("3.3 Clip, Min", "the Clip is further", mul(*C, sign="+"), op("Clip", 0.0, 1.0), binary("Min", *C), PLAIN,
         left="Mul"),
    case("3.3 Clip, Min", "the Min is read elsewhere, too", mul(*C, sign="+"), op("Clip", 0.0, 6.0), also(op("Tanh")),
         binary("Min", *C), PLAIN, left="Mul"),
    case("3.3 Mul constant", "per plane", bn(3, t=0), mul(6, 5), PLAIN, left="Mul"),
]  # fmt: skip

NORMS = [
    case("3.3 InstanceNormalization", "shift is dead", add(*C), norm("InstanceNormalization", 3)),
    case("3.3 InstanceNormalization", "scale is not", SCALE, norm("InstanceNormalization", 3), left="Mul"),
    case("3.3 InstanceNormalization", "uniform scale goes into epsilon", mul(c=2.0), norm("InstanceNormalization", 3)),
    case("3.3 InstanceNormalization", "BatchNormalization", bn(3), norm("InstanceNormalization", 3), left=BN),
    case("3.3 InstanceNormalization", "shift per row", add(6, 1), norm("InstanceNormalization", 3), left="Add"),
    case("3.3 InstanceNormalization", "shift that is returned", add(*C), expose, norm("InstanceNormalization", 3),
         left="Add"),
    case("3.3 GroupNormalization", "shift constant in groups", add(4, 1, 1, c=[1, 1, -2, -2]),
         norm("GroupNormalization", 4, num_groups=2), x=FOUR, y=FOUR),
    case("3.3 GroupNormalization", "shift varying in groups", add(4, 1, 1), norm("GroupNormalization", 4, num_groups=2),
         x=FOUR, y=FOUR, left="Add"),
    case("3.3 LayerNormalization", "uniform shift", add(c=2.0), norm("LayerNormalization", 5)),
    case("3.3 LayerNormalization", "shift along its axis", add(5), norm("LayerNormalization", 5), left="Add"),
    case("3.3 LayerNormalization", "all axes, shift per channel", add(*C), norm("LayerNormalization", 3, 6, 5, axis=1),
         left="Add"),
    case("3.3 RMSNormalization", "uniform shift", add(c=2.0), norm("RMSNormalization", 5, bias=False), opset=23,
         left="Add"),
    case("3.3 HardSigmoid", "uniform", UNIFORM, op("HardSigmoid", alpha=0.25)),
    case("3.3 HardSigmoid", "uniform negative", mul(c=-2.0), add(c=0.5), op("HardSigmoid", alpha=0.375, beta=0.25)),
    case("3.3 HardSigmoid", "defaults", UNIFORM, op("HardSigmoid"), dtype=F32),
    case("3.3 HardSigmoid", "defaults, whose product is no float32", mul(c=0.3), op("HardSigmoid"), left="Mul"),
    case("3.3 HardSigmoid", "per channel", SCALE, op("HardSigmoid"), left="Mul"),
    case("3.3 HardSigmoid", "BatchNormalization", bn(3), op("HardSigmoid"), left=BN),
]  # fmt: skip

BOTH_WAYS = [
    case("3.5 split fold", "Conv, Relu, BatchNormalization, Conv", conv(3, 3), op("Relu"), bn(3), PLAIN),
    case("3.5 split fold", "positive, pads", conv(3, 3), op("Relu"), bn(3, "+"), PADDED, left=BN),
    case("3.5 split fold", "positive, Mul and Add, pads", conv(3, 3), op("Relu"), mul_add(*C, sign="+"), PADDED,
         left="Add"),
    case("3.5 split fold", "negative, Mul and Add, pads", conv(3, 3), op("Relu"), mul_add(*C), PADDED, left="Add"),
    case("3.5 split fold", "negative scale goes forward", conv(3, 3), op("Relu"), mul(*C, sign="-"), PADDED),
    case("3.5 split fold", "a preactivation block", bn(3), op("Relu"), conv(3, 3, 3, 3), bn(3), op("Relu"), PLAIN,
         left=BN),
    case("3.5 both sides", "Conv", bn(3), PLAIN, bn(4)),
    case("3.5 both sides", "Conv, scales", SCALE, PADDED, bn(4)),
    case("3.5 both sides", "Gemm", binary("Sub", 1), gemm(4, 3, (4,), transB=1), bn(4), x=[2, 3]),
    case("3.5 both sides", "ConvTranspose", SCALE, deconv(4, 3, 2, 2), bn(4)),
    case("3.5 both sides", "two layers in a row", bn(3), PLAIN, bn(4), conv(2, 4, 2, 2), bn(2)),
    case("3.5 both sides", "one weight for two layers in a row", shared_in_a_row),
    case("3.5 both sides", "one weight for two layers of other groups", shared_by_groups, x=[2, 4, 6, 5]),
    case("3.5 affine", "two BatchNormalizations in front of a pool and a scale", bn(3), bn(3), op("Relu"),
         op("Pad", ints(0, 0, 1, 1, 0, 0, 1, 1), mode="reflect"), mul(*C, sign="+"), left=None),
    case("3.5 affine", "two BatchNormalizations, Pad, Neg", op("Relu"), bn(3), bn(3),
         op("Pad", ints(0, 0, 1, 1, 0, 0, 1, 1), mode="reflect"), op("Neg"), left=None),
    case("3.5 affine", "two BatchNormalizations, ReduceL1, Mul", op("Relu"), bn(3), bn(3), op("ReduceL1", ints(2, 3)),
         mul(c=2.0), left=None),
    case("3.5 affine", "Add, BatchNormalization, Sub per row, BatchNormalization", op("Tanh"), add(*C), bn(3),
         binary("Sub", 1, 6, 1), bn(3), left=None),
    case("3.5 affine", "BatchNormalization, Reshape, Mul, Conv", bn(3), op("Reshape", ints(0, 3, 5, 6)), mul(c=2.0),
         PLAIN),
    case("3.5 affine", "zero gamma behind a pool", bn(3, t=0), op("LpPool", kernel_shape=[2, 2]), bn(3, s=0, t=0),
         PADDED,
         left=None),
    case("3.5 affine", "BatchNormalization, Relu, BatchNormalization, c - x, always", op("Tanh"), bn(3), op("Relu"),
         bn(3, "+"), binary("Sub", *C, left=True), left=None, options=ALWAYS),
    case("3.5 affine", "Mul, BatchNormalization, Split, BatchNormalization, always", op("Tanh"), mul(3, 1, 5), bn(3),
         split(1, [1, 2], same, bn(2)), left=None, options=ALWAYS),
    case("3.5 split fold", "Sub in front of a layer", binary("Sub", *C), PLAIN),
    case("3.5 split fold", "Div in front of a layer", binary("Div", *C), PADDED),
    case("3.5 split fold", "c - x in front of a layer", binary("Sub", *C, left=True), PLAIN),
    case("3.5 split fold", "Neg in front of a layer", op("Neg"), PADDED),
]  # fmt: skip

CASES: list[Case] = [*CONV, *PADDING, *DECONV, *DENSE, *GATED, *CARRIED, *JOINS, *NORMS, *BOTH_WAYS]
