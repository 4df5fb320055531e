"""Section 3.1: what an affine behind a layer does to its weight and bias."""

from __future__ import annotations

from graphs import Graph

from .build import (
    BN,
    Case,
    add,
    bn,
    case,
    constant,
    conv,
    deconv,
    draw,
    gemm,
    matmul,
    mul,
    mul_add,
    norm,
    op,
)

VOLUME = [2, 2, 3, 4, 3]
CUBE = [4, 4, 4]

CONV = [
    case("3.1 Conv", "1d", conv(4, 3, 3), bn(4), x=[2, 3, 7]),
    case("3.1 Conv", "2d", conv(4, 3, 3, 2), bn(4)),
    case("3.1 Conv", "3d", conv(4, 2, 2, 2, 2), bn(4), x=VOLUME),
    case("3.1 Conv", "no bias", conv(4, 3, bias=False), bn(4)),
    case("3.1 Conv", "no bias, no shift", conv(4, 3, bias=False), mul(4, 1, 1)),
    case("3.1 Conv", "no bias, scale one", conv(4, 3, bias=False), add(4, 1, 1)),
    case("3.1 Conv", "2 groups", conv(4, 6, 3, 3, group=2), bn(4), x=[2, 6, 6, 5]),
    case("3.1 Conv", "depthwise", conv(3, 3, 3, 3, group=3), bn(3)),
    case("3.1 Conv", "depthwise multiplier", conv(6, 3, 3, 3, group=3), bn(6)),
    case("3.1 Conv", "pads", conv(4, 3, 3, 3, pads=[1, 1, 1, 1]), bn(4)),
    case("3.1 Conv", "asymmetric pads", conv(4, 3, 3, 3, pads=[2, 0, 1, 1]), bn(4)),
    case(
        "3.1 Conv", "strides, dilations", conv(4, 3, 2, 2, strides=[2, 1], dilations=[2, 3]), bn(4)
    ),
    case(
        "3.1 Conv",
        "auto_pad SAME_UPPER",
        conv(4, 3, 3, 3, auto_pad="SAME_UPPER", strides=[2, 2]),
        bn(4),
    ),
    case("3.1 Conv", "auto_pad SAME_LOWER", conv(4, 3, 2, 2, auto_pad="SAME_LOWER"), bn(4)),
    case("3.1 Conv", "auto_pad VALID", conv(4, 3, 3, 3, auto_pad="VALID"), bn(4)),
    case("3.1 Conv", "one channel", conv(1, 1, 3, 3), bn(1), x=[2, 1, 6, 5]),
    case("3.1 Conv", "all extents equal", conv(4, 4, 1, 1), bn(4), x=[4, 4, 4, 4]),
    case("3.1 Conv", "on another axis", conv(4, 4, 1), mul(4), x=CUBE, left="Mul"),
]
DECONV = [
    case("3.1 ConvTranspose", "1d", deconv(4, 3, 3, strides=[2]), bn(4), x=[2, 3, 4]),
    case("3.1 ConvTranspose", "2d", deconv(4, 3, 2, 3), bn(4)),
    case("3.1 ConvTranspose", "3d, 2 groups", deconv(4, 2, 2, 2, 2, group=2), bn(4), x=VOLUME),
    case("3.1 ConvTranspose", "no bias", deconv(4, 3, 2, 2, bias=False), bn(4)),
    case("3.1 ConvTranspose", "2 groups", deconv(6, 4, 2, 2, group=2), bn(6), x=[2, 4, 4, 3]),
    case("3.1 ConvTranspose", "2 groups, square", deconv(4, 4, 2, 2, group=2), bn(4), x=[2, 4, 4, 3]),
    case("3.1 ConvTranspose", "3 groups, multiplier", deconv(6, 3, 2, 2, group=3), bn(6)),
    case("3.1 ConvTranspose", "depthwise", deconv(4, 4, 2, 2, group=4), bn(4), x=[2, 4, 4, 3]),
    case("3.1 ConvTranspose", "all extents equal", deconv(4, 4, 4, 4, pads=[2, 2, 1, 1]), bn(4), x=[4, 4, 4, 4]),
    case("3.1 ConvTranspose", "output padding", deconv(
        4, 3, 3, 3, strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1]), bn(4)),
    case("3.1 ConvTranspose", "stride beyond the kernel", deconv(4, 3, 2, 2, strides=[3, 3]), bn(4)),
    case("3.1 ConvTranspose", "output shape", deconv(4, 3, 3, 3, strides=[2, 2], output_shape=[12, 10]), bn(4)),
    case("3.1 ConvTranspose", "on another axis", deconv(4, 4, 1), mul(4), x=CUBE, left="Mul"),
]  # fmt: skip

SHAPES_OF_C: list[tuple[int, ...] | None] = [None, (), (1,), (4,), (1, 4), (2, 1), (2, 4)]


def dynamic_c(graph: Graph, x: str) -> str:
    """A Gemm whose C is a graph input."""
    return graph.node("Gemm", [x, graph.initializer(draw(graph, (3, 4))), graph.input("c", [4])])


def rows_of_weight(graph: Graph, x: str) -> str:
    """A Gemm whose data is its second operand."""
    return graph.node("Gemm", [graph.initializer(draw(graph, (4, 3))), x], transB=1)


GEMM = [
    *(
        case("3.1 Gemm", f"C {c}, beta {beta}", gemm(4, 3, c, **({} if beta is None else {"beta": beta})), bn(4),
             x=[2, 3], static=c is not None and c[:1] == (2,))
        for c in SHAPES_OF_C for beta in (None, 0.0, -2.0, 0.5)
    ),
    case("3.1 Gemm", "transB", gemm(4, 3, (4,), transB=1), bn(4), x=[2, 3]),
    case("3.1 Gemm", "transB, square", gemm(4, 4, (4,), transB=1), bn(4), x=[4, 4]),
    case("3.1 Gemm", "square", gemm(4, 4, (4,)), bn(4), x=[4, 4]),
    case("3.1 Gemm", "transA, alpha, beta", gemm(4, 3, (4,), transA=1, alpha=0.5, beta=-2.0), bn(4), x=[3, 2],
         static=True),
    case("3.1 Gemm", "vector", gemm(4, 3, (4,)), mul_add(4), x=[2, 3]),
    case("3.1 Gemm", "on the rows", gemm(4, 4, (4,)), mul(4, 1), x=[4, 4], left="Mul", static=True),
    case("3.1 Gemm", "dynamic C", dynamic_c, bn(4), x=[2, 3], left=BN),
    case("3.1 Gemm", "the constant is the other operand", rows_of_weight, bn(2), x=[2, 3], left=BN, static=True),
    case("3.1 Gemm", "opset 10, no C", gemm(4, 3, (4,), beta=0.0), bn(4), x=[2, 3], opset=10),
]  # fmt: skip
MATMUL = [
    case("3.1 MatMul", "rank 2", matmul(3, 4), bn(4), x=[2, 3]),
    case("3.1 MatMul", "rank 3, scale", matmul(3, 4), mul(4), x=[2, 5, 3]),
    case("3.1 MatMul", "rank 3, scale and shift", matmul(3, 4), mul_add(4), x=[2, 5, 3], left="Add"),
    case("3.1 MatMul", "rank 3, scale, shift and Add", matmul(3, 4), mul_add(4), add(4), x=[2, 5, 3], left="Add"),
    case("3.1 MatMul", "rank 3, the axis is not the last", matmul(4, 4), bn(4), x=[2, 4, 4], left=BN),
    case("3.1 MatMul", "batched weight", matmul(2, 3, 4), mul(4), x=[2, 5, 3], static=True),
    case("3.1 MatMul", "constant on the left", matmul(4, 5, left=True), mul(4, 1), x=[2, 5, 3]),
    case("3.1 MatMul", "constant on the left, shift", matmul(4, 5, left=True), bn(4), x=[2, 5, 3], left="Add"),
    case("3.1 MatMul", "constant on the left, shift as Add", matmul(4, 5, left=True), mul_add(4, 1), x=[2, 5, 3],
         left="Add"),
    case("3.1 MatMul", "constant on the left, no shift", matmul(4, 5, left=True), bn(4, t=0), x=[2, 5, 3]),
    case("3.1 MatMul", "constant on the left, on the columns", matmul(4, 4, left=True), mul(4), x=[2, 4, 4],
         left="Mul"),
]  # fmt: skip


def dynamic_norm(graph: Graph, x: str) -> str:
    """An InstanceNormalization whose parameters are graph inputs."""
    return graph.node(
        "InstanceNormalization", [x, graph.input("scale", [3]), graph.input("bias", [3])]
    )


NORMS = [
    case("3.1 InstanceNormalization", "BatchNormalization", norm("InstanceNormalization", 3), bn(3)),
    case("3.1 InstanceNormalization", "on another axis", norm("InstanceNormalization", 4), mul(4), x=[2, 4, 4, 4],
         left="Mul"),
    case("3.1 InstanceNormalization", "dynamic parameters", dynamic_norm, bn(3), left=BN),
    case("3.1 GroupNormalization", "opset 21", norm("GroupNormalization", 4, num_groups=2), bn(4), x=[2, 4, 6, 5],
         y=[2, 4, 6, 5]),
    case("3.1 GroupNormalization", "opset 18, per channel", norm("GroupNormalization", 2, num_groups=2), bn(4),
         x=[2, 4, 6, 5], y=[2, 4, 6, 5], opset=18, left=BN),
    case("3.1 GroupNormalization", "opset 18, constant in groups", norm("GroupNormalization", 2, num_groups=2),
         bn(4, s=[2, 2, -3, -3], t=[1, 1, 5, 5]), x=[2, 4, 6, 5], y=[2, 4, 6, 5], opset=18),
    case("3.1 GroupNormalization", "opset 18, only the scale constant in groups",
         norm("GroupNormalization", 2, num_groups=2), bn(4, s=[2, 2, -3, -3], t=[1, 2, 5, 5]), x=[2, 4, 6, 5],
         y=[2, 4, 6, 5],
         opset=18, left=BN),
    case("3.1 LayerNormalization", "last axis", norm("LayerNormalization", 5), mul_add(5)),
    case("3.1 LayerNormalization", "no bias", norm("LayerNormalization", 5, bias=False), mul_add(5)),
    case("3.1 LayerNormalization", "all axes from 1", norm("LayerNormalization", 3, 6, 5, axis=1), bn(3)),
    case("3.1 LayerNormalization", "all axes from -2, last", norm("LayerNormalization", 6, 5, axis=-2), mul_add(5)),
    case("3.1 LayerNormalization", "an axis before its own", norm("LayerNormalization", 4), bn(4), x=[2, 4, 4, 4],
         left=BN),
    case("3.1 RMSNormalization", "scale", norm("RMSNormalization", 5, bias=False), mul(5), opset=23),
    case("3.1 RMSNormalization", "scale and shift", norm("RMSNormalization", 5, bias=False), mul_add(5), opset=23,
         left="Add"),
    case("3.1 RMSNormalization", "an axis before its own", norm("RMSNormalization", 4, bias=False), mul(4, 1, 1),
         x=[2, 4, 4, 4], opset=23, left="Mul"),
]  # fmt: skip
REST = [
    case("3.1 affine", "two BatchNormalizations", conv(4, 3), bn(4), bn(4)),
    case(
        "3.1 constant",
        "BatchNormalization of a constant",
        constant(1, 3, 6, 5),
        bn(3),
        op("Relu"),
        y=[1, 3, 6, 5],
    ),
]
CASES: list[Case] = [*CONV, *DECONV, *GEMM, *MATMUL, *NORMS, *REST]
