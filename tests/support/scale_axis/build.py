"""A small language for the models of rule tests: steps, each of which appends nodes behind a value.

A step is a function from a graph and the name of a value to the name of the next value. Constants
are drawn from the graph's own generator, between 0.5 and 2 in magnitude, so that a fold in the
wrong place is off by far more than any tolerance; `sign` is "+", "-" or "±", the last of which
alternates, so that no vector is all of one sign by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from graphs import F64, Array, BatchNorm, Graph, Shape, onnx_dtype
from onnx import ModelProto, helper

Step = Callable[[Graph, str], str]
Numbers = Array | Sequence[float] | float | None
AFFINES = ("BatchNormalization", "Mul", "Add", "Sub", "Div", "Neg", "Sum", "Mean")
"""Operators that are, or may be, an affine; `Case.left` counts them."""


@dataclass(frozen=True)
class Case:
    """One model and what compiling it has to leave of its affine operators.

    `left` are the operator types of `AFFINES` in the result, dynamic ones included, None where the
    rule book leaves it open; `options` are those of FoldScaleAxis. `static` says that the rule
    needs a known batch extent. `has` are operators that the result must have among others.
    """

    rule: str
    name: str
    steps: tuple[Step, ...]
    left: str | None
    x: Shape = (2, 3, 6, 5)
    opset: int = 21
    ir: int = 10
    options: str = ""
    static: bool = False
    has: str = ""
    dtype: np.dtype[Any] = F64
    y: Shape = field(default=("as inferred",))

    @property
    def id(self) -> str:
        return f"{self.rule} {self.name}"

    @property
    def passes(self) -> str | None:
        """The default pipeline with the options in it."""
        if not self.options:
            return None
        return f"SimplifyInference,FoldScaleAxis{{{self.options}}},CanonicalizeOps,SimplifyExpr,FoldConstant"

    def model(self, dtype: np.dtype[Any] | None = None, *, symbolic: bool = False) -> ModelProto:
        """The model; with `symbolic` the leading extent of every input is a name."""
        graph = Graph(opset=self.opset, ir=self.ir, dtype=dtype or self.dtype)
        graph.output(chain(*self.steps)(graph, graph.input("x", self.x)), self.y)
        made = graph.model()
        if symbolic:
            for info in [*made.graph.input, *made.graph.output]:
                dims = info.type.tensor_type.shape.dim
                if dims and dims[0].dim_value == (self.x or [0])[0]:
                    dims[0].dim_param = "N"
        return made


def chain(*steps: Step) -> Step:
    """One step after the other."""

    def build(graph: Graph, x: str) -> str:
        for step in steps:
            x = step(graph, x)
        return x

    return build


def draw(graph: Graph, shape: Sequence[int], sign: str = "±") -> Array:
    """Numbers between 0.5 and 2 of the given sign, in the dtype of the graph."""
    signs: dict[str, Any] = {
        "+": 1,
        "-": -1,
        "±": np.where(np.arange(prod(shape)) % 2, 1, -1).reshape(shape),
    }
    return np.asarray(graph.rng.uniform(0.5, 2, shape) * signs[sign]).astype(graph.dtype)


def ints(*items: int) -> Array:
    """A constant vector of int64."""
    return np.asarray(items, np.int64)


def op(
    kind: str,
    *constants: Any,
    out: str = "",
    outputs: Sequence[str] = (),
    domain: str = "",
    **attrs: Any,
) -> Step:
    """An operator; strings among its constants are values, numbers become initializers."""

    def build(graph: Graph, x: str) -> str:
        names = [item if isinstance(item, str) else graph.initializer(item) for item in constants]
        if domain:
            graph.domains[domain] = 1
        return graph.node(kind, [x, *names], list(outputs) or out, domain=domain, **attrs)

    return build


def conv(m: int, c: int, *kernel: int, group: int = 1, bias: bool = True, **attrs: Any) -> Step:
    """A Conv from c to m channels; one by one if no kernel is given."""

    def build(graph: Graph, x: str) -> str:
        names = [x, graph.initializer(draw(graph, (m, c // group, *(kernel or (1, 1)))))]
        names += [graph.initializer(draw(graph, (m,)))] if bias else []
        return graph.node("Conv", names, **({"group": group} if group > 1 else {}), **attrs)

    return build


def deconv(m: int, c: int, *kernel: int, group: int = 1, bias: bool = True, **attrs: Any) -> Step:
    """A ConvTranspose from c to m channels."""

    def build(graph: Graph, x: str) -> str:
        names = [x, graph.initializer(draw(graph, (c, m // group, *kernel)))]
        names += [graph.initializer(draw(graph, (m,)))] if bias else []
        return graph.node(
            "ConvTranspose", names, **({"group": group} if group > 1 else {}), **attrs
        )

    return build


def gemm(n: int, k: int, c: Sequence[int] | None = None, **attrs: Any) -> Step:
    """A Gemm from k to n columns, with a C of shape `c` or none."""

    def build(graph: Graph, x: str) -> str:
        names = [x, graph.initializer(draw(graph, (n, k) if attrs.get("transB") else (k, n)))]
        names += [] if c is None else [graph.initializer(draw(graph, c))]
        return graph.node("Gemm", names, **attrs)

    return build


def matmul(*shape: int, left: bool = False) -> Step:
    """A MatMul with a constant of that shape, on the left if so."""

    def build(graph: Graph, x: str) -> str:
        weight = graph.initializer(draw(graph, shape))
        return graph.node("MatMul", [weight, x] if left else [x, weight])

    return build


def norm(kind: str, *shape: int, bias: bool = True, **attrs: Any) -> Step:
    """A normalization with a scale of that shape, and a bias."""

    def build(graph: Graph, x: str) -> str:
        names = [graph.initializer(draw(graph, shape)) for _ in range(1 + bias)]
        return graph.node(kind, [x, *names], **attrs)

    return build


def bn(
    n: int, sign: str = "±", s: Numbers = None, t: Numbers = None, *, var: bool = True, **attrs: Any
) -> Step:
    """A BatchNormalization of n channels.

    With `s` or `t` given, the variance is 1 and the mean 0 in all channels: the scale is s / sqrt(1
    + epsilon) and the shift t, so that equal numbers give equal channels, and t = 0 no shift.
    """

    def build(graph: Graph, x: str) -> str:
        gamma, beta, mean, variance = (draw(graph, (n,), each) for each in (sign, "±", "±", "+"))
        if s is not None or t is not None:
            gamma = gamma if s is None else np.full(n, s, graph.dtype)
            beta = beta if t is None else np.full(n, t, graph.dtype)
            mean, variance = np.zeros_like(mean), np.ones_like(variance)
        return graph.batch_norm(x, BatchNorm(gamma, beta, mean, variance), **attrs)

    return build


def binary(
    kind: str, *shape: int, sign: str = "±", c: Numbers = None, left: bool = False, **attrs: Any
) -> Step:
    """An operator with a constant of that shape, or the constant `c`, on one side."""

    def build(graph: Graph, x: str) -> str:
        array = draw(graph, shape, sign) if c is None else np.asarray(c, graph.dtype)
        if c is not None and shape:
            array = np.broadcast_to(
                array.reshape(-1, *[1] * (len(shape) - 1)) if array.ndim == 1 else array, shape
            )
        constant = graph.initializer(np.ascontiguousarray(array).reshape(array.shape))
        return graph.node(kind, [constant, x] if left else [x, constant], **attrs)

    return build


def mul(*shape: int, sign: str = "±", c: Numbers = None, **attrs: Any) -> Step:
    """Mul by a constant."""
    return binary("Mul", *shape, sign=sign, c=c, **attrs)


def add(*shape: int, c: Numbers = None, **attrs: Any) -> Step:
    """Add a constant."""
    return binary("Add", *shape, c=c, **attrs)


def mul_add(*shape: int, sign: str = "±") -> Step:
    """Mul, then Add, both with a constant of that shape."""
    return chain(mul(*shape, sign=sign), add(*shape))


def branches(kind: str, *parts: Step | Sequence[Step], **attrs: Any) -> Step:
    """An operator over what several chains make of one value."""

    def build(graph: Graph, x: str) -> str:
        made = [(part if callable(part) else chain(*part))(graph, x) for part in parts]
        return graph.node(kind, made, **attrs)

    return build


def other(name: str, shape: Shape, dtype: np.dtype[Any] | None = None) -> Step:
    """Another graph input, in place of the value."""

    def build(graph: Graph, x: str) -> str:
        if name not in [info.name for info in graph.inputs]:
            graph.input(name, shape, dtype)
        return name

    return build


def same(graph: Graph, x: str) -> str:
    """The value itself."""
    return x


def constant(*shape: int, sign: str = "±") -> Step:
    """A constant in place of the value."""
    return lambda graph, x: graph.initializer(draw(graph, shape, sign))


def expose(graph: Graph, x: str) -> str:
    """Make the value a graph output too."""
    return graph.output(x)


def also(*steps: Step) -> Step:
    """Let other nodes, whose result is a graph output, read the value too."""

    def build(graph: Graph, x: str) -> str:
        graph.output(chain(*steps)(graph, x))
        return x

    return build


def split(axis: int, sizes: Sequence[int], *parts: Step, join: str = "Concat") -> Step:
    """Split into as many parts as there are steps, and a Concat of what the steps make of them."""

    def build(graph: Graph, x: str) -> str:
        names = [graph.fresh("part") for _ in parts]
        if graph.opset >= 13:
            graph.node("Split", [x, graph.initializer(ints(*sizes))], names, axis=axis)
        else:
            graph.node("Split", [x], names, axis=axis, split=list(sizes))
        made = [part(graph, name) for part, name in zip(parts, names, strict=True)]
        return graph.node(join, made, axis=axis)

    return build


def in_branch(then: Sequence[Step], otherwise: Sequence[Step], *, shape: Sequence[int]) -> Step:
    """An If, both of whose branches read the value."""

    def build(graph: Graph, x: str) -> str:
        condition = other("condition", [], np.dtype(np.bool_))(graph, x)
        outer, bodies = graph.nodes, []
        for name, steps in (("then", then), ("else", otherwise)):
            graph.nodes = []
            out = chain(*steps)(graph, x)
            info = helper.make_tensor_value_info(out, onnx_dtype(graph.dtype), shape)
            bodies.append(helper.make_graph(graph.nodes, name, [], [info]))
        graph.nodes = outer
        return graph.node("If", [condition], then_branch=bodies[0], else_branch=bodies[1])

    return build


def case(rule: str, name: str, *steps: Step, left: str | None = "", **options: Any) -> Case:
    """A row of a table."""
    return Case(rule, name, steps, left, **options)


BN = "BatchNormalization"
PLANE = [2, 3, 6, 5]
