"""Section 3.0: what is an affine, chains of them, and values that may not change."""

from __future__ import annotations

import numpy as np
from graphs import DISGUISES, F32, F64, Graph

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
    conv,
    draw,
    expose,
    gemm,
    in_branch,
    ints,
    mul,
    mul_add,
    op,
    same,
)

SQUARE = [4, 4, 4, 4]
OUT = [2, 4, 6, 5]


def hidden(how: str) -> Step:
    """Mul by a constant of shape [4, 1, 1] in one of the disguises that exporters use."""
    return lambda graph, x: graph.node("Mul", [x, graph.constant(draw(graph, (4, 1, 1)), how)])


def fake_quantization(graph: Graph, x: str) -> str:
    """QuantizeLinear and DequantizeLinear."""
    params = [
        graph.initializer(np.asarray(0.25, np.float32)),
        graph.initializer(np.zeros((), np.int8)),
    ]
    return graph.node("DequantizeLinear", [graph.node("QuantizeLinear", [x, *params]), *params])


def foreign_conv(graph: Graph, x: str) -> str:
    """A Conv of a domain that is not ONNX's."""
    return op("Conv", draw(graph, (4, 3, 1, 1)), domain="com.acme")(graph, x)


def dynamic_bias(graph: Graph, x: str) -> str:
    """A Conv whose bias is a graph input."""
    return graph.node(
        "Conv", [x, graph.initializer(draw(graph, (4, 3, 1, 1))), graph.input("bias", [4])]
    )


def by_input(kind: str, *shape: int) -> Step:
    """An operator whose other operand is a graph input."""
    return lambda graph, x: graph.node(kind, [x, graph.input(graph.fresh("p"), list(shape))])


def full(kind: str, *, constant: bool) -> Step:
    """An operator with a constant of shape [1, 4, 6, 5], the same all over each plane or not."""

    def build(graph: Graph, x: str) -> str:
        array = np.array(np.broadcast_to(draw(graph, (4, 1, 1)), (1, 4, 6, 5)))
        if not constant:
            array[0, 1, 2, 3] += 1
        return graph.node(kind, [x, graph.initializer(array)])

    return build


SOURCES = [
    case("3.0 source", "Mul", conv(4, 3), mul(4, 1, 1)),
    case("3.0 source", "Mul, constant on the left", conv(4, 3), mul(4, 1, 1, left=True)),
    case("3.0 source", "Add", conv(4, 3), add(4, 1, 1)),
    case("3.0 source", "Add, constant on the left", conv(4, 3), add(4, 1, 1, left=True)),
    case("3.0 source", "Sub", conv(4, 3), binary("Sub", 4, 1, 1)),
    case("3.0 source", "c - x", conv(4, 3), binary("Sub", 4, 1, 1, left=True)),
    case("3.0 source", "Div", conv(4, 3), binary("Div", 4, 1, 1)),
    case("3.0 source", "Div by a constant with a zero", conv(4, 3), binary("Div", 4, 1, 1, c=[1, 0, 2, 3]), left="Div"),
    case("3.0 source", "c / x", conv(4, 3), binary("Div", 4, 1, 1, left=True), left="Div"),
    case("3.0 source", "Neg", conv(4, 3), op("Neg")),
    case("3.0 source", "Sum with a constant", conv(4, 3), binary("Sum", 4, 1, 1)),
    case("3.0 source", "Mean with a constant", conv(4, 3), binary("Mean", 4, 1, 1)),
    case("3.0 source", "rank 4", conv(4, 3), mul(1, 4, 1, 1)),
    case("3.0 source", "leading extents of one", conv(4, 3), mul_add(1, 4, 1, 1), x=[1, 3, 6, 5]),
    case("3.0 source", "uniform, rank 0", conv(4, 3), mul(c=2.0), add(c=1.0)),
    case("3.0 source", "uniform, rank 1", conv(4, 3), mul(1), add(1)),
    case("3.0 source", "uniform, rank 4", conv(4, 3), mul(1, 1, 1, 1), add(1, 1, 1, 1)),
    case("3.0 source", "scale one and shift zero", conv(4, 3), mul(4, 1, 1, c=[1] * 4), add(4, 1, 1, c=[0] * 4)),
    case("3.0 source", "scale zero", conv(4, 3), mul(4, 1, 1, c=[0, 1, 2, 3])),
    case("3.0 source", "gamma zero", conv(4, 3), bn(4, s=[0, 1, -2, 3])),
    case("3.0 source", "one channel", conv(1, 3), mul_add(1, 1, 1)),
    case("3.0 source", "dynamic Mul", conv(4, 3), by_input("Mul", 4, 1, 1), left="Mul"),
    case("3.0 source", "dynamic Add", conv(4, 3), by_input("Add", 4, 1, 1), left="Add"),
    case("3.0 source", "per row, all extents equal", conv(4, 4), mul(4, 1), x=SQUARE, left="Mul"),
    case("3.0 source", "per column, all extents equal", conv(4, 4), mul(4), x=SQUARE, left="Mul"),
    case("3.0 source", "per sample, all extents equal", conv(4, 4), mul(4, 1, 1, 1), x=SQUARE, left="Mul", static=True),
    case("3.0 source", "per channel, all extents equal", conv(4, 4), mul_add(4, 1, 1), x=SQUARE),
    case("3.0 source", "BatchNormalization, all extents equal", conv(4, 4), bn(4), x=SQUARE),
    case("3.0 source", "[C, 1] at rank 3", conv(4, 3, 1), mul_add(4, 1), x=[2, 3, 5]),
    case("3.0 source", "[C, 1, 1] at rank 3 is the batch", conv(4, 3, 1), mul(4, 1, 1), x=[4, 3, 5], left="Mul",
         static=True),
    case("3.0 source", "two varying extents", conv(4, 3), mul(4, 6, 1), left="Mul"),
    case("3.0 source", "stretches a plane", conv(4, 3), mul(4, 6, 1), x=[2, 3, 1, 5], left="Mul"),
    case("3.0 source", "stretches the channels", conv(1, 3), mul(4, 1, 1), left="Mul"),
    case("3.0 source", "raises the rank", conv(4, 3), mul(1, 1, 4, 1, 1), left="Mul"),
    case("3.0 source", "batch of a known extent of one", conv(4, 3), mul(1, 4, 1, 1), x=[1, 3, 6, 5]),
    case("3.0 source", "full shape, constant by value: Mul", conv(4, 3), full("Mul", constant=True)),
    case("3.0 source", "full shape, constant by value: Add", conv(4, 3), full("Add", constant=True)),
    case("3.0 source", "full shape, varying: Mul", conv(4, 3), full("Mul", constant=False), left="Mul"),
    case("3.0 source", "full shape, varying: Add", conv(4, 3), full("Add", constant=False), left="Add"),
    case("3.0 source", "integers", op("Cast", to=7), op("Mul", ints(2)), op("Cast", to=11), left="Mul"),
    case("3.0 source", "unknown rank, BatchNormalization", conv(4, 3), bn(4), x=None, y=None),
    case("3.0 source", "unknown rank before a layer that says it", conv(4, 3), mul(4, 1, 1), x=None, y=None),
    case("3.0 source", "unknown rank behind a foreign operator", op("Foreign", domain="com.acme"), mul(4, 1, 1),
         x=None, y=None, left="Mul"),
    *(
        case("3.0 disguise", how, conv(4, 3), hidden(how), dtype=F32 if how == "value_floats" else F64)
        for how in DISGUISES
    ),
]  # fmt: skip

CHAINS = [
    case("3.0 chain", "Mul, Add, Mul, Add", conv(4, 3), mul_add(4, 1, 1), mul_add(4, 1, 1)),
    case(
        "3.0 chain",
        "BatchNormalization, Sub, Div",
        conv(4, 3),
        bn(4),
        binary("Sub", 4, 1, 1),
        binary("Div", 1),
    ),
    case("3.0 chain", "uniform in the middle", conv(4, 3), bn(4), mul(c=-3.0), bn(4)),
    case("3.0 chain", "two axes", conv(4, 4), mul(4, 1, 1), mul(4), x=SQUARE, left="Mul"),
    case(
        "3.0 chain",
        "a link that is read twice",
        conv(4, 3),
        mul(4, 1, 1),
        also(op("Relu")),
        add(4, 1, 1),
        left="Add",
    ),
    case(
        "3.0 chain",
        "a link that is a graph output",
        conv(4, 3),
        mul(4, 1, 1),
        expose,
        add(4, 1, 1),
        left="Add",
    ),
]

BARRIERS = [
    case("3.0 barrier", "graph output", conv(4, 3), expose, bn(4), left=BN),
    case("3.0 barrier", "two readers", conv(4, 3), also(op("Relu")), bn(4), left=BN),
    case("3.0 barrier", "read twice by one node", conv(4, 3), branches("Add", same, same), bn(4), left=f"Add {BN}"),
    case("3.0 barrier", "captured by a body", conv(4, 3), also(in_branch([op("Relu")], [op("Tanh")], shape=OUT)), bn(4),
         left=BN, static=True),
    case("3.0 barrier", "in both bodies, over a value outside", conv(4, 3), in_branch([bn(4)], [bn(4)], shape=OUT),
         left=f"{BN} {BN}", static=True),
    case("3.0 barrier", "wholly in a body", in_branch([conv(4, 3), bn(4)], [conv(4, 3), op("Relu")], shape=OUT),
         static=True),
    case("3.0 barrier", "fake quantization", conv(4, 3), fake_quantization, bn(4), left=BN, dtype=F32),
    case("3.0 barrier", "foreign operator", conv(4, 3), op("Foreign", domain="com.acme"), bn(4), left=BN),
    case("3.0 barrier", "a Conv of another domain", foreign_conv, bn(4), left=BN),
    case("3.0 barrier", "an interior carrier read twice", conv(4, 3), op("Relu"), also(op("Neg")), mul(4, 1, 1,
         sign="+"),
         left="Mul Neg"),
    case("3.0 barrier", "an interior carrier that is a graph output", conv(4, 3), op("Relu"), expose,
         mul(4, 1, 1, sign="+"), left="Mul"),
    case("3.0 barrier", "the producer of a carrier read twice", conv(4, 3), also(op("Neg")), op("Relu"),
         mul(4, 1, 1, sign="+"), left="Mul Neg"),
    case("3.0 barrier", "a graph input", bn(4), op("Relu"), x=[2, 4, 6, 5], left=BN),
    case("3.0 barrier", "a Gemm whose result is returned", gemm(4, 3), expose, bn(4), x=[2, 3], left=BN),
    case("3.0 barrier", "a dynamic weight", by_input("Conv", 4, 3, 1, 1), bn(4), left=BN),
    case("3.0 barrier", "a dynamic bias", dynamic_bias, bn(4), left=BN),
]  # fmt: skip

CASES: list[Case] = [*SOURCES, *CHAINS, *BARRIERS]
