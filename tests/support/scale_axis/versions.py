"""Sections 3.6 to 3.8: other norms, BatchNormalization by opset, attribute defaults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from graphs import F32, BatchNorm, Graph, batch_norm

from .build import BN, Case, Step, bn, case, conv, draw, gemm, mul, norm, op, split

PLAIN = conv(4, 3, 3, 3)

KEPT = [
    case("3.6 InstanceNormalization", "in front of a layer", norm("InstanceNormalization", 3), PLAIN,
         has="InstanceNormalization"),
    case("3.6 LayerNormalization", "in front of a layer", norm("LayerNormalization", 3), gemm(4, 3, (4,)), x=[2, 3],
         has="LayerNormalization"),
    case("3.6 GroupNormalization", "behind a layer", conv(4, 3), norm("GroupNormalization", 4, num_groups=2),
         y=[2, 4, 6, 5], has="GroupNormalization"),
]  # fmt: skip


def training(outputs: int, **attrs: Any) -> Step:
    """A BatchNormalization that declares further outputs."""

    def build(graph: Graph, x: str) -> str:
        names = [graph.fresh("bn") for _ in range(outputs)]
        return graph.batch_norm(x, batch_norm(4, dtype=graph.dtype), names, **attrs)

    return build


def per_element(*, constant: bool) -> Step:
    """spatial=0 with parameters of shape [4, 6, 5]."""

    def build(graph: Graph, x: str) -> str:
        params = batch_norm(4, dtype=graph.dtype)
        grown = [np.array(np.broadcast_to(p.reshape(4, 1, 1), (4, 6, 5))) for p in params.arrays]
        if not constant:
            grown[1][0, 2, 3] += 1
        return graph.batch_norm(x, BatchNorm(*grown), spatial=0)

    return build


def with_inputs(graph: Graph, x: str) -> str:
    """Parameters that are graph inputs."""
    names = [graph.input(name, [4]) for name in ("gamma", "beta", "mean")]
    return graph.node("BatchNormalization", [x, *names, graph.initializer(draw(graph, (4,), "+"))])


def overridable(graph: Graph, x: str) -> str:
    """Initializers that are graph inputs too."""
    names = [
        graph.initializer(draw(graph, (4,), "+"), name) for name in ("gamma", "beta", "mean", "var")
    ]
    for name in names:
        graph.input(name, [4])
    return graph.node("BatchNormalization", [x, *names])


def mixed(first: type, second: type) -> Step:
    """Parameters of two types."""
    return lambda graph, x: graph.batch_norm(
        x, batch_norm(4).astype(np.dtype(first), np.dtype(second))
    )


def explicit(**attrs: Any) -> Step:
    return lambda graph, x: graph.batch_norm(x, batch_norm(4, dtype=graph.dtype), **attrs)


def shape_of(rank: int) -> tuple[Sequence[Step], list[int]]:
    """A layer whose result has that rank, and the shape of its data."""
    if rank == 2:
        return [gemm(4, 3)], [2, 3]
    return [conv(4, 3, *[2] * (rank - 2))], [2, 3, 4, 3, 3][:rank]


OPSETS = [
    *(
        case("3.7 opset", f"{opset}", conv(4, 3), explicit(), opset=opset, ir=ir)
        for opset, ir in ((6, 3), (7, 3), (8, 3), (9, 4), (13, 7), (14, 7), (15, 8), (21, 10), (22, 10))
    ),
    case("3.7 opset", "1", conv(4, 3), explicit(), opset=1, ir=3),
    # section 3.7 takes one output for inference, section 4 of the peers does not:
    # test_simplify_inference.py decides
    case("3.7 opset", "6, is_test absent, one output", conv(4, 3), explicit(is_test=None), opset=6, ir=3, left=None),
    case("3.7 opset", "6, is_test 0, one output", conv(4, 3), explicit(is_test=0), opset=6, ir=3, left=None),
    case("3.7 opset", "6, is_test 0, five outputs", conv(4, 3), training(5, is_test=0), opset=6, ir=3, left=BN),
    case("3.7 opset", "7, five outputs", conv(4, 3), training(5), opset=7, ir=3, left=BN),
    case("3.7 opset", "9, five outputs", conv(4, 3), training(5), opset=9, left=BN),
    case("3.7 opset", "14, training_mode, three outputs", conv(4, 3), training(3, training_mode=1), opset=14, left=BN),
    case("3.7 opset", "15, training_mode 0", conv(4, 3), explicit(training_mode=0), opset=15),
    case("3.7 spatial", "7, spatial 1", conv(4, 3), explicit(spatial=1), opset=7, ir=3),
    case("3.7 spatial", "7, spatial 0, per element", conv(4, 3), per_element(constant=False), opset=7, ir=3, left=BN),
    case("3.7 spatial", "7, spatial 0, constant on planes", conv(4, 3), per_element(constant=True), opset=7, ir=3),
    case("3.7 spatial", "7, spatial 0, parameters per channel", conv(4, 3), explicit(spatial=0), opset=7, ir=3),
    case("3.7 types", "float gamma, double mean", conv(4, 3), mixed(np.float32, np.float64), dtype=F32, opset=15),
    case("3.7 types", "double gamma, float mean", conv(4, 3), mixed(np.float64, np.float32), opset=15),
    case("3.7 epsilon", "zero", conv(4, 3), explicit(epsilon=0.0)),
    case("3.7 epsilon", "a half", conv(4, 3), explicit(epsilon=0.5)),
    case("3.7 epsilon", "variance not positive", conv(4, 3), lambda g, x: g.batch_norm(
        x, BatchNorm(*[draw(g, (4,), "+") for _ in range(3)], np.asarray([1, 0, 1, 1], g.dtype), 0.0)), left=BN),
    case("3.7 parameters", "graph inputs", conv(4, 3), with_inputs, left=BN),
    case("3.7 parameters", "overridable initializers", conv(4, 3), overridable, left=BN),
    case("3.7 parameters", "initializers among the inputs below IR 4", conv(4, 3), explicit(), ir=3, opset=9),
    *(case("3.7 rank", f"{rank}", *shape_of(rank)[0], bn(4), x=shape_of(rank)[1]) for rank in (2, 3, 4, 5)),
    case("3.7 rank", "4, channel extent one", conv(1, 3), bn(1)),
]  # fmt: skip

POSITIVE = mul(4, 1, 1, sign="+")


def mask_used(graph: Graph, x: str) -> str:
    """A Dropout whose mask is a graph output."""
    names = [graph.fresh("kept"), graph.fresh("mask")]
    graph.node("Dropout", [x], names)
    graph.output(names[1], dtype=np.dtype(np.bool_))
    return names[0]


def legacy(kind: str, axis: int, *shape: int) -> Step:
    """An operator with the broadcast attributes of opset 6."""
    return lambda graph, x: graph.node(
        kind, [x, graph.initializer(draw(graph, shape))], broadcast=1, axis=axis
    )


def suffix(kind: str, *shape: int) -> Step:
    """The same without an axis: aligned with the last ones."""
    return lambda graph, x: graph.node(
        kind, [x, graph.initializer(draw(graph, shape))], broadcast=1
    )


DEFAULTS = [
    case("3.8 Conv", "no attributes", conv(4, 3, 3, 2), bn(4)),
    case("3.8 Conv", "no attributes, forward", bn(3), conv(4, 3, 3, 2)),
    case("3.8 Conv", "auto_pad NOTSET with pads, forward", bn(3), conv(
        4, 3, 3, 3, auto_pad="NOTSET", pads=[1, 1, 1, 1]), left=BN),
    case("3.8 Conv", "pads of zero, forward", bn(3), conv(4, 3, 3, 3, pads=[0, 0, 0, 0])),
    case("3.8 AveragePool", "count_include_pad is 0", conv(4, 3), op(
        "AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1]), bn(4), opset=10),
    case("3.8 PRelu", "opset 7: a slope per column", conv(4, 3), lambda g, x: g.node(
        "PRelu", [x, g.initializer(draw(g, (4,)))]), POSITIVE, opset=7, x=[2, 3, 6, 4], ir=3),
    case("3.8 legacy Mul", "axis 1", conv(4, 3), legacy("Mul", 1, 4), opset=6, ir=3),
    case("3.8 legacy Add", "axis 1", conv(4, 3), legacy("Add", 1, 4), opset=6, ir=3),
    case("3.8 legacy Sub", "axis 1, all extents equal", conv(4, 4), legacy("Sub", 1, 4), opset=6, ir=3,
         x=[4, 4, 4, 4]),
    case("3.8 legacy Div", "axis -3", conv(4, 3), legacy("Div", -3, 4), opset=6, ir=3, left=None),
    case("3.8 legacy Mul", "axis 3, all extents equal", conv(4, 4), legacy("Mul", 3, 4), opset=6, ir=3,
         x=[4, 4, 4, 4], left="Mul"),
    case("3.8 legacy Mul", "no axis, all extents equal", conv(4, 4), suffix("Mul", 4), opset=6, ir=3,
         x=[4, 4, 4, 4], left="Mul"),
    case("3.8 legacy Mul", "axis 0, all extents equal", conv(4, 4), legacy("Mul", 0, 4), opset=6, ir=3,
         x=[4, 4, 4, 4], left="Mul", static=True),
    case("3.8 Dropout", "mask used", conv(4, 3), mask_used, bn(4), left=None),
    case("3.8 Dropout", "training_mode, ratio 0", conv(4, 3), lambda g, x: g.node(
        "Dropout", [x, g.initializer(np.asarray(0.0, np.float32)), g.initializer(np.asarray(True))]), bn(4)),
    case("3.8 Dropout", "training_mode, ratio 0 at run time", conv(4, 3), lambda g, x: g.node(
        "Dropout", [x, g.node("ReduceMax", [g.node("Sub", [x, x])], keepdims=0), g.initializer(np.asarray(True))]),
        bn(4), left=f"{BN} Sub"),
    case("3.8 Dropout", "opset 6, is_test", conv(4, 3), op("Dropout", is_test=1), legacy("Mul", 1, 4), opset=6, ir=3),
    case("3.8 Split", "opset 11", conv(4, 3), split(1, [1, 3], bn(1), bn(3)), opset=11),
    case("3.8 Squeeze", "opset 11", conv(4, 3), op("ReduceMax", axes=[2, 3]), op("Squeeze", axes=[2, 3]), bn(4, "+"),
         opset=11),
    case("3.8 Unsqueeze", "opset 11", conv(4, 3, 3), op("Unsqueeze", axes=[3]), bn(4), x=[2, 3, 7], opset=11),
    case("3.8 ReduceMean", "opset 17", conv(4, 3), op("ReduceMean", axes=[-1], keepdims=0), bn(4), opset=17),
    case("3.8 Pad", "opset 10, value", conv(4, 3), op("Pad", pads=[0, 0, 1, 1, 0, 0, 1, 1], value=2.0), POSITIVE,
         opset=10, left="Mul"),
    case("3.8 Slice", "opset 9", conv(4, 3), op("Slice", starts=[1], ends=[3], axes=[1]), bn(2), opset=9),
    case("3.8 Selu", "opset 6", conv(4, 3), op("Selu"), legacy("Mul", 1, 4), opset=6, ir=3, left="Mul"),
]  # fmt: skip


CASES: list[Case] = [*KEPT, *OPSETS, *DEFAULTS]
