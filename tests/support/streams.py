"""Pre-norm layers on a residual stream that is too large for float16, and data for them."""

from __future__ import annotations

import numpy as np
from graphs import Graph
from onnx import ModelProto

DATA = {"x": np.random.default_rng(3).standard_normal((10, 6, 16)).astype(np.float32)}


def stream(
    size: float, *, epsilon: float = 1e-5, norm: str = "LayerNormalization", layers: int = 2
) -> ModelProto:
    """Return pre-norm layers on a residual stream of about `size`.

    The norm `RMS` is written out.
    """
    graph, d = Graph(opset=17), 16
    rng = np.random.default_rng(4)

    def weight(*shape: int, factor: float = 1.0) -> str:
        array = rng.standard_normal(shape) * factor / np.sqrt(shape[0])
        return graph.initializer(array.astype(np.float32))

    def normed(x: str) -> str:
        if norm == "RMS":
            two, small = (
                graph.initializer(np.array(number, np.float32)) for number in (2, epsilon)
            )
            square = graph.node("ReduceMean", [graph.node("Pow", [x, two])], axes=[-1])
            root = graph.node("Sqrt", [graph.node("Add", [square, small])])
            return graph.node("Div", [x, root])
        ones = graph.initializer(np.ones(d, np.float32))
        return graph.node(norm, [x, ones], axis=-1, epsilon=epsilon)

    x = graph.node("MatMul", [graph.input("x", ["N", 6, d]), weight(d, d, factor=size)], "first")
    for _ in range(layers):
        y = graph.node("Tanh", [graph.node("MatMul", [normed(x), weight(d, d)])])
        x = graph.node("Add", [x, graph.node("MatMul", [y, weight(d, d, factor=size)])])
    graph.node("MatMul", [normed(x), weight(d, 4)], "y")
    graph.output("y", ["N", 6, 4])
    return graph.model()


def written_norm(size: float = 1.0, opset: int = 17) -> ModelProto:
    """Return a MatMul, a LayerNormalization of nine operators, and a MatMul.

    The data of the norm are about `size`.
    """
    graph, width = Graph(opset=opset), 16
    rng = np.random.default_rng(5)
    first, second = (
        (rng.standard_normal((width, width)) * factor).astype(np.float32) for factor in (size, 1)
    )
    gamma, beta = (rng.standard_normal(width).astype(np.float32) for _ in range(2))
    x = graph.node("MatMul", [graph.input("x", ["N", 6, width]), graph.initializer(first)])
    centered = graph.node("Sub", [x, graph.node("ReduceMean", [x], axes=[-1])])
    square = graph.node("Pow", [centered, graph.initializer(np.array(2, np.float32))])
    variance = graph.node("ReduceMean", [square], axes=[-1])
    epsilon = graph.initializer(np.array(1e-5, np.float32))
    root = graph.node("Sqrt", [graph.node("Add", [variance, epsilon])])
    scaled = graph.node("Mul", [graph.node("Div", [centered, root]), graph.initializer(gamma)])
    normal = graph.node("Add", [scaled, graph.initializer(beta)], "normal")
    graph.node("MatMul", [normal, graph.initializer(second)], "y")
    graph.output("y", ["N", 6, width])
    return graph.model()


def feed_forward(size: float, first: float = 1.0) -> ModelProto:
    """Return a block like T5's: a stream of about `first`, to which a layer adds `size`."""
    graph, rng, d = Graph(opset=17), np.random.default_rng(5), 16

    def weight(rows: int, columns: int, scale: float) -> str:
        array = rng.standard_normal((rows, columns)) * scale / rows**0.5
        return graph.initializer(array.astype(np.float32))

    def norm(x: str) -> str:
        square = graph.node("Pow", [x, graph.initializer(np.array(2, np.float32))])
        mean = graph.node("ReduceMean", [square], axes=[-1])
        total = graph.node("Add", [mean, graph.initializer(np.array(1e-6, np.float32))])
        normal = graph.node("Div", [x, graph.node("Sqrt", [total])])
        return graph.node("Mul", [normal, graph.initializer(np.ones(d, np.float32))])

    x = graph.node("MatMul", [graph.input("x", ["N", 6, d]), weight(d, d, first)])
    y = graph.node("Relu", [graph.node("MatMul", [norm(x), weight(d, 64, size**0.5)])])
    x = graph.node("Add", [x, graph.node("MatMul", [y, weight(64, d, size**0.5)])])
    graph.node("MatMul", [norm(x), weight(d, 4, 1.0)], "y")
    graph.output("y", ["N", 6, 4])
    return graph.model()
