"""Folding into layers.

Which affine goes where, bit for bit, and the neighbour of each case that must stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from graphs import (
    BF16,
    F16,
    F32,
    F64,
    Array,
    BatchNorm,
    Graph,
    attribute,
    batch_norm,
    check,
    check_unchanged,
    compiled,
    constants,
    operand,
    operators,
    reasons,
    rounded,
    same_bits,
    the,
    wide,
)
from irc.passes.affine.algebra import layers

# layers


@dataclass(frozen=True)
class Layer:
    """One layer: shapes, attributes, and its result's channels and rank."""

    op: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    channels: int
    rank: int
    attrs: dict[str, Any]

    def build(
        self, graph: Graph, bias: Array | str | None = None, name: str = "layer"
    ) -> tuple[str, Array]:
        """The layer over a new input `x`, with its weight."""
        graph.input("x", self.x)
        weight = graph.random(*self.w)
        inputs = ["x", graph.initializer(weight, "w")]
        if bias is not None:
            inputs.append(bias if isinstance(bias, str) else graph.initializer(bias, "b"))
        return graph.node(self.op, inputs, "h", name, **self.attrs), weight

    def scaled(self, weight: Array, scale: Array) -> Array:
        """The weight times the scale of each element's output channel, in float64."""
        result = wide(weight).copy()
        group = self.attrs.get("group", 1)
        for index in np.ndindex(*self.w[:2]):
            if self.op == "Conv":
                channel = index[0]
            elif self.op == "ConvTranspose":
                channel = index[0] // (self.w[0] // group) * self.w[1] + index[1]
            else:
                channel = index[0] if self.attrs.get("transB") else index[1]
            result[index] = result[index] * scale[channel]
        return result


def layer(op: str, x: Sequence[int], w: Sequence[int], **attrs: Any) -> Layer:
    """A row of the table."""
    group = attrs.get("group", 1)
    channels = {"Conv": w[0], "ConvTranspose": w[1] * group}.get(
        op, w[0] if attrs.get("transB") else w[-1]
    )
    return Layer(op, tuple(x), tuple(w), channels, len(x), attrs)


LAYERS: dict[str, Layer] = {
    "conv1d": layer("Conv", [2, 3, 5], [4, 3, 3]),
    "conv1d, dilated": layer("Conv", [2, 2, 7], [3, 2, 2], dilations=[3]),
    "conv2d": layer("Conv", [2, 3, 4, 4], [4, 3, 3, 3]),
    "conv2d, asymmetric pads": layer("Conv", [1, 2, 4, 4], [3, 2, 3, 3], pads=[1, 0, 2, 1]),
    "conv2d, strides": layer("Conv", [1, 2, 5, 5], [4, 2, 2, 2], strides=[2, 1], pads=[1, 1, 0, 0]),
    "conv2d, same upper": layer(
        "Conv", [1, 2, 5, 5], [4, 2, 2, 2], strides=[2, 2], auto_pad="SAME_UPPER"
    ),
    "conv2d, same lower": layer(
        "Conv", [1, 2, 5, 5], [4, 2, 2, 2], strides=[2, 2], auto_pad="SAME_LOWER"
    ),
    "conv2d, valid": layer("Conv", [1, 2, 5, 5], [4, 2, 2, 2], auto_pad="VALID"),
    "conv2d, 2 groups": layer("Conv", [1, 4, 4, 4], [6, 2, 3, 3], group=2, pads=[1, 1, 1, 1]),
    "conv2d, depthwise": layer("Conv", [1, 4, 4, 4], [4, 1, 3, 3], group=4),
    "conv2d, depthwise multiplier": layer("Conv", [1, 3, 4, 4], [6, 1, 2, 2], group=3),
    "conv2d, all extents equal": layer("Conv", [4, 4, 4, 4], [4, 4, 1, 1]),
    "conv2d, one channel": layer("Conv", [2, 1, 3, 3], [1, 1, 3, 3], pads=[1, 1, 1, 1]),
    "conv2d, kernel 1": layer("Conv", [2, 3, 4, 4], [5, 3, 1, 1]),
    "conv3d": layer("Conv", [1, 2, 3, 3, 3], [3, 2, 2, 2, 2], pads=[1, 0, 0, 0, 1, 0]),
    "conv3d, 2 groups": layer("Conv", [1, 4, 3, 3, 3], [4, 2, 2, 2, 2], group=2),
    "transposed 1d": layer("ConvTranspose", [2, 3, 4], [3, 4, 3], strides=[2]),
    "transposed 2d": layer("ConvTranspose", [1, 3, 3, 3], [3, 4, 3, 3]),
    "transposed 2d, square": layer("ConvTranspose", [1, 4, 3, 3], [4, 4, 2, 2], strides=[2, 2]),
    "transposed 2d, output padding": layer(
        "ConvTranspose",
        [1, 2, 3, 3],
        [2, 3, 3, 3],
        strides=[2, 2],
        pads=[1, 1, 1, 1],
        output_padding=[1, 1],
    ),
    "transposed 2d, stride beyond kernel": layer(
        "ConvTranspose", [1, 2, 3, 3], [2, 3, 2, 2], strides=[3, 3]
    ),
    "transposed 2d, output shape": layer(
        "ConvTranspose", [1, 2, 3, 3], [2, 3, 3, 3], strides=[2, 2], output_shape=[6, 6]
    ),
    "transposed 2d, 2 groups": layer("ConvTranspose", [1, 4, 3, 3], [4, 3, 2, 2], group=2),
    "transposed 2d, 2 groups, square": layer("ConvTranspose", [1, 4, 3, 3], [4, 2, 2, 2], group=2),
    "transposed 2d, depthwise": layer(
        "ConvTranspose", [1, 4, 3, 3], [4, 1, 2, 2], group=4, strides=[2, 2]
    ),
    "transposed 2d, depthwise multiplier": layer(
        "ConvTranspose", [1, 3, 3, 3], [3, 2, 2, 2], group=3
    ),
    "transposed 3d, 2 groups": layer("ConvTranspose", [1, 4, 2, 2, 2], [4, 2, 2, 2, 2], group=2),
    "gemm": layer("Gemm", [2, 3], [3, 4]),
    "gemm, square": layer("Gemm", [4, 4], [4, 4]),
    "gemm, transB": layer("Gemm", [2, 3], [4, 3], transB=1),
    "gemm, transB, square": layer("Gemm", [4, 4], [4, 4], transB=1),
    "gemm, transA": layer("Gemm", [3, 2], [3, 4], transA=1),
    "gemm, both, alpha": layer("Gemm", [3, 2], [4, 3], transA=1, transB=1, alpha=0.5),
}

# affines


@dataclass(frozen=True)
class Affine:
    """One operator or more.

    How to append it, and what it does to numbers whose last axis has the channels.
    """

    build: Callable[[Graph, str, int, int, str], str]
    apply: Callable[[Array, int], tuple[Array, Callable[[Array], Array]]]


def numbers(seed: int, channels: int) -> Array:
    """Constants of both signs, none close to zero."""
    rng = np.random.default_rng(seed)
    return np.asarray(rng.uniform(0.5, 2, channels) * rng.choice([-1, 1], channels)).astype(
        np.float32
    )


def binary(
    op: str, *, left: bool = False, uniform: bool = False, seed: int = 11, full: bool = False
) -> Affine:
    """Mul, Add, Sub or Div with a constant on one side."""

    def constant(channels: int) -> Array:
        return numbers(seed, 1 if uniform else channels)

    def build(graph: Graph, data: str, channels: int, rank: int, out: str) -> str:
        array = constant(channels).astype(graph.dtype)
        shape = () if uniform else (channels, *[1] * (rank - 2))
        if full and not uniform:
            shape = (1, *shape)
        name = graph.initializer(array.reshape(shape))
        return graph.node(op, [name, data] if left else [data, name], out)

    def apply(array: Array, channels: int) -> tuple[Array, Callable[[Array], Array]]:
        c = wide(constant(channels).astype(array.dtype)) * np.ones(channels)
        zero, one = np.zeros(channels), np.ones(channels)
        scale, shift = {
            "Mul": (c, zero),
            "Div": (one / c, zero),
            "Add": (one, c),
            "Sub": (-one, c) if left else (one, -c),
        }[op]
        return scale, lambda x: x * scale + shift

    return Affine(build, apply)


def negation() -> Affine:
    """Neg."""
    return Affine(
        lambda graph, data, channels, rank, out: graph.node("Neg", [data], out),
        lambda array, channels: (-np.ones(channels), lambda x: -x),
    )


def norm(seed: int = 1, epsilon: float | None = None) -> Affine:
    """BatchNormalization."""

    def params(channels: int, dtype: Any) -> BatchNorm:
        return batch_norm(channels, seed, F32, epsilon).astype(dtype, dtype)

    def build(graph: Graph, data: str, channels: int, rank: int, out: str) -> str:
        return graph.batch_norm(data, params(channels, graph.dtype), out)

    def apply(array: Array, channels: int) -> tuple[Array, Callable[[Array], Array]]:
        found = params(channels, array.dtype)
        return found.scale, found.bias

    return Affine(build, apply)


CHAINS: dict[str, list[Affine]] = {
    "bn": [norm()],
    "mul": [binary("Mul")],
    "mul, left": [binary("Mul", left=True)],
    "mul, full rank": [binary("Mul", full=True)],
    "mul, scalar": [binary("Mul", uniform=True)],
    "add": [binary("Add")],
    "add, left": [binary("Add", left=True)],
    "add, scalar": [binary("Add", uniform=True)],
    "sub": [binary("Sub")],
    "sub, left": [binary("Sub", left=True)],
    "sub, scalar, left": [binary("Sub", left=True, uniform=True)],
    "div": [binary("Div")],
    "div, scalar": [binary("Div", uniform=True)],
    "neg": [negation()],
    "bn, bn, mul, add": [norm(1), norm(2, 0.25), binary("Mul"), binary("Add", seed=12)],
    "mul, add": [binary("Mul"), binary("Add", seed=13)],
    "add, mul": [binary("Add"), binary("Mul", seed=13)],
    "sub, div (standardisation)": [binary("Sub"), binary("Div", seed=14)],
    "neg, sub, neg": [negation(), binary("Sub", left=True), negation()],
    "scalar, bn, scalar": [binary("Mul", uniform=True), norm(3), binary("Add", uniform=True)],
    "six in a row": [
        binary(op, seed=i) for i, op in enumerate(("Mul", "Add", "Sub", "Div", "Mul", "Add"))
    ],
}


def expected_fold(chain: Sequence[Affine], bias: Array, like: Array) -> tuple[Array, Array]:
    """Scale and bias of a chain in float64, the affines applied one after the other."""
    scale, moved = np.ones(len(bias)), wide(bias)
    for affine in chain:
        factor, function = affine.apply(like, len(bias))
        scale, moved = scale * factor, function(moved)
    return scale, moved


def fold_case(which: Layer, chain: Sequence[Affine], bias: str, dtype: np.dtype[Any]) -> None:
    """Build, compile and compare the constants bit for bit."""
    graph = Graph(dtype=dtype, opset=22)
    given = np.random.default_rng(7).standard_normal(which.channels).astype(dtype)
    hidden, weight = which.build(graph, {"present": given, "absent": None, "empty": ""}[bias])
    for i, affine in enumerate(chain):
        last = i == len(chain) - 1
        hidden = affine.build(
            graph, hidden, which.channels, which.rank, "y" if last else graph.fresh("t")
        )
    graph.output("y")
    result = check(graph.model(), [which.op])
    node = the(result.model, which.op)
    assert node.name == "layer"
    assert list(node.output) == ["y"]
    start = given if bias == "present" else np.zeros(which.channels, dtype)
    scale, moved = expected_fold(chain, start, weight)
    assert same_bits(operand(result.model, node, 1), rounded(which.scaled(weight, scale), dtype))
    if bias == "present" or moved.any():
        assert same_bits(operand(result.model, node, 2), rounded(moved + 0.0, dtype))
    else:
        assert not any(node.input[2:]), "a bias of zeros was made"
    assert set(reasons(result).values()) == {"folded"}


@pytest.mark.parametrize("bias", ["absent", "empty", "present"])
@pytest.mark.parametrize("case", LAYERS)
def test_every_layer_takes_batch_normalization(case: str, bias: str) -> None:
    fold_case(LAYERS[case], [norm()], bias, F32)


@pytest.mark.parametrize("bias", ["absent", "present"])
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize(
    "case", ["conv2d, all extents equal", "transposed 2d, 2 groups, square", "gemm, transB, square"]
)
def test_every_chain(case: str, chain: str, bias: str) -> None:
    fold_case(LAYERS[case], CHAINS[chain], bias, F32)


@pytest.mark.parametrize("dtype", [F16, BF16, F64], ids=str)
@pytest.mark.parametrize("chain", ["bn", "mul", "add", "sub, left", "bn, bn, mul, add"])
@pytest.mark.parametrize("case", ["conv1d", "transposed 2d, 2 groups", "gemm"])
def test_every_dtype(case: str, chain: str, dtype: np.dtype[Any]) -> None:
    fold_case(LAYERS[case], CHAINS[chain], "present", dtype)


# Gemm: every C, alpha, beta

GEMM_C: dict[str, Callable[[Graph], Array] | None] = {
    "absent": None,
    "empty": None,
    "()": lambda graph: graph.random(),
    "(1,)": lambda graph: graph.random(1),
    "(N,)": lambda graph: graph.random(3),
    "(1,N)": lambda graph: graph.random(1, 3),
    "(1,1)": lambda graph: graph.random(1, 1),
    "(M,1)": lambda graph: graph.random(3, 1),
    "(M,N)": lambda graph: graph.random(3, 3),
}
GEMM_ATTRS: dict[str, dict[str, Any]] = {
    "plain": {},
    "transA": {"transA": 1},
    "transB": {"transB": 1},
    "both": {"transA": 1, "transB": 1},
    "alpha": {"alpha": -0.5},
    "beta": {"beta": 0.25},
    "beta zero": {"beta": 0.0},
    "beta negative": {"beta": -2.0, "alpha": 3.0, "transB": 1},
    "beta inexact": {"beta": 0.3},
    "alpha zero": {"alpha": 0.0},
}


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("attrs", GEMM_ATTRS)
@pytest.mark.parametrize("c", GEMM_C)
def test_gemm(c: str, attrs: str, dtype: np.dtype[Any]) -> None:
    graph = Graph(dtype=dtype, opset=13)
    graph.input("x", [3, 3])
    make = GEMM_C[c]
    params = batch_norm(3, dtype=dtype)
    extra = [""] if c == "empty" else []
    if make is not None and not extra:
        extra = [graph.initializer(make(graph), "c")]
    weight = graph.random(3, 3)
    graph.node(
        "Gemm", ["x", graph.initializer(weight, "w"), *extra], "h", "gemm", **GEMM_ATTRS[attrs]
    )
    graph.batch_norm("h", params, "y")
    graph.output("y", [3, 3])
    result = check(graph.model(), ["Gemm"])
    node = the(result.model, "Gemm")
    scale = params.scale[:, None] if GEMM_ATTRS[attrs].get("transB") else params.scale[None, :]
    assert same_bits(operand(result.model, node, 1), rounded(wide(weight) * scale, dtype))
    given = 1.0 if make is None else float(np.float32(GEMM_ATTRS[attrs].get("beta", 1.0)))
    beta = float(attribute(node, "beta", 1.0))
    assert beta == (given or 1.0) or make is None
    start = (
        np.zeros(3) if make is None or given == 0 else wide(constants(graph.model())["c"]) * given
    )
    expected = params.bias(np.broadcast_to(start, np.broadcast_shapes(start.shape, (3,))))
    assert same_bits(operand(result.model, node, 2), rounded(expected / beta, dtype))


@pytest.mark.parametrize("opset", [6, 7, 9, 10])
def test_gemm_with_a_bias_that_old_opsets_require(opset: int) -> None:
    graph = Graph(opset=opset)
    graph.input("x", [2, 3])
    inputs = ["x", graph.initializer(graph.random(3, 4)), graph.initializer(graph.random(4))]
    graph.node("Gemm", inputs, "h", **({"broadcast": 1} if opset < 7 else {}))
    graph.batch_norm("h", batch_norm(4), "y")
    graph.output("y", [2, 4])
    check(graph.model(), ["Gemm"])


def test_gemm_with_a_full_bias_below_opset_7_needs_broadcast() -> None:
    graph = Graph(opset=6)
    graph.input("x", [2, 3])
    graph.node(
        "Gemm",
        ["x", graph.initializer(graph.random(3, 4)), graph.initializer(graph.random(2, 4))],
        "h",
    )
    graph.batch_norm("h", batch_norm(4), "y")
    graph.output("y", [2, 4])
    check(graph.model(), ["Gemm"])


def test_gemm_below_opset_7_whose_bias_becomes_a_vector_broadcasts() -> None:
    """beta is 0, so C does not count; the new C has one value per column."""
    graph = Graph(opset=6)
    graph.input("x", [2, 3])
    inputs = ["x", graph.initializer(graph.random(3, 4)), graph.initializer(graph.random(2, 4))]
    graph.node("Gemm", inputs, "h", beta=0.0)
    graph.batch_norm("h", batch_norm(4), "y")
    graph.output("y", [2, 4])
    result = check(graph.model(), ["Gemm"])
    node = the(result.model, "Gemm")
    assert operand(result.model, node, 2).shape == (2, 4) or attribute(node, "broadcast", 0) == 1


# MatMul


@pytest.mark.parametrize(
    ("x", "w", "side", "shape", "left"),
    [
        ([2, 3], [3, 4], "right", [4], ["Gemm"]),
        ([2, 5, 3], [3, 4], "right", [4], ["MatMul", "Add"]),
        ([2, 4, 4], [4, 4], "right", [4], ["MatMul", "Add"]),
        ([2, 5, 3], [2, 3, 4], "right", [4], ["MatMul", "Add"]),
        ([2, 5, 3], [2, 3, 4], "right", [1, 1, 4], ["MatMul", "Add"]),
        ([2, 5, 4], [3, 5], "left", [3, 1], ["MatMul", "Add"]),
        ([5, 4], [3, 5], "left", [3, 1], ["Gemm"]),
    ],
)
def test_matmul_takes_scale_and_leaves_one_add(
    x: list[int], w: list[int], side: str, shape: list[int], left: list[str]
) -> None:
    graph = Graph()
    graph.input("x", x)
    weight = graph.random(*w)
    name = graph.initializer(weight, "w")
    graph.node("MatMul", ["x", name] if side == "right" else [name, "x"], "h", "mm")
    scale, shift = graph.positive(*shape), graph.random(*shape)
    graph.node("Mul", ["h", graph.initializer(scale)], "t")
    graph.node("Add", ["t", graph.initializer(shift)], "y", "last")
    graph.output("y")
    result = check(graph.model(), left)
    node = the(result.model, left[0])
    found = operand(result.model, node, 0 if side == "left" else 1)
    assert same_bits(found, rounded(wide(weight) * wide(scale).reshape(shape[-len(w) :]), F32))
    assert result.model.graph.node[-1].output == ["y"]


@pytest.mark.parametrize(
    ("x", "w", "channels", "left"),
    [
        ([2, 3], [3, 4], 4, ["Gemm"]),  # rank 2: axis 1 is the last
        ([2, 5, 3], [3, 4], 5, ["MatMul", "BatchNormalization"]),  # rank 3: axis 1 is the row
        ([4, 4, 4], [4, 4], 4, ["MatMul", "BatchNormalization"]),
        ([1, 4, 4, 4], [4, 4], 4, ["MatMul", "BatchNormalization"]),
    ],
)
def test_batch_normalization_behind_matmul(
    x: list[int], w: list[int], channels: int, left: list[str]
) -> None:
    graph = Graph()
    graph.input("x", x)
    graph.node("MatMul", ["x", graph.initializer(graph.random(*w))], "h", "mm")
    graph.batch_norm("h", batch_norm(channels), "y", "bn")
    graph.output("y")
    result = check(graph.model(), left)
    if len(left) == 2:
        assert result.model == graph.model()
        assert set(reasons(result).values()) == {"kept: axis_mismatch"}


UNIFORM_FIRST: dict[str, tuple[str, list[int]]] = {
    "add, bn": ("Add", []),
    "mul, bn": ("Mul", []),
    "neg, bn": ("Neg", []),
    "add, mul on the rows": ("Add", [4, 1]),
    "mul, add on the batch": ("Mul", [4, 1, 1]),
}


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("case", UNIFORM_FIRST)
def test_a_uniform_affine_first_does_not_hide_the_axis_of_the_next(case: str, side: str) -> None:
    """Every extent is 4: nothing but the axis tells the channels of the MatMul."""
    op, shape = UNIFORM_FIRST[case]
    graph = Graph()
    graph.input("x", [4, 4, 4])
    weight = graph.initializer(graph.random(4, 4))
    graph.node("MatMul", ["x", weight] if side == "right" else [weight, "x"], "h", "mm")
    graph.node(op, ["h", *([] if op == "Neg" else [graph.initializer(3.0)])], "t")
    if shape:
        graph.node("Mul", ["t", graph.initializer(graph.positive(*shape))], "y")
    else:
        graph.batch_norm("t", batch_norm(4), "y")
    graph.output("y", [4, 4, 4])
    check(graph.model())


def test_matmul_with_add_and_batch_normalization_is_one_gemm() -> None:
    graph = Graph()
    graph.input("x", [2, 3])
    weight, bias, params = graph.random(3, 4), graph.random(4), batch_norm(4)
    graph.node("MatMul", ["x", graph.initializer(weight, "w")], "h", "mm")
    graph.node("Add", ["h", graph.initializer(bias, "b")], "t")
    graph.batch_norm("t", params, "y")
    graph.output("y", [2, 4])
    result = check(graph.model(), ["Gemm"])
    node = the(result.model, "Gemm")
    assert same_bits(operand(result.model, node, 1), rounded(wide(weight) * params.scale, F32))
    assert same_bits(operand(result.model, node, 2), rounded(params.bias(bias), F32))


# the axis of a constant


def test_a_full_constant_that_varies_along_channels_only_is_per_channel() -> None:
    graph = Graph()
    graph.input("x", [2, 4, 4, 4])
    graph.node("Conv", ["x", graph.initializer(graph.random(4, 4, 1, 1))], "h", "conv")
    full = np.ascontiguousarray(np.broadcast_to(graph.random(4, 1, 1), (4, 4, 4)))
    graph.node("Mul", ["h", graph.initializer(full)], "y")
    graph.output("y", [2, 4, 4, 4])
    check(graph.model(), ["Conv"])


LEGACY: dict[str, tuple[list[int], dict[str, int], bool]] = {
    "axis 1": ([4], {"broadcast": 1, "axis": 1}, True),
    "axis -3": ([4], {"broadcast": 1, "axis": -3}, True),
    "axis 1, rank 3": ([4, 1, 1], {"broadcast": 1}, True),
    "axis 3 is W": ([4], {"broadcast": 1, "axis": 3}, False),
    "no axis is W": ([4], {"broadcast": 1}, False),
    "axis 0 is the batch": ([4], {"broadcast": 1, "axis": 0}, False),
    "scalar": ([], {"broadcast": 1}, True),
}


@pytest.mark.parametrize("op", ["Mul", "Add", "Sub", "Div"])
@pytest.mark.parametrize("case", LEGACY)
def test_limited_broadcast_below_opset_7(case: str, op: str) -> None:
    shape, attrs, folds = LEGACY[case]
    graph = Graph(opset=6)
    graph.input("x", [4, 4, 4, 4])
    graph.node(
        "Conv", ["x", graph.initializer(graph.random(4, 4, 1, 1))], "h", "conv", kernel_shape=[1, 1]
    )
    graph.node(op, ["h", graph.initializer(graph.positive(*shape))], "y", **attrs)
    graph.output("y", [4, 4, 4, 4])
    if folds:
        check(graph.model(), ["Conv"])
    else:
        check_unchanged(graph.model(), "axis_mismatch")


# numbers

ARITHMETIC: dict[str, tuple[str, Any, str | None]] = {
    "div by a zero": ("Div", [1, 0, 2, 3], "nonfinite"),
    "div by -0.0": ("Div", [1, -0.0, 2, 3], "nonfinite"),
    "mul by a zero": ("Mul", [1, 0, 2, 3], None),
    "mul by zeros": ("Mul", [0, 0, 0, 0], None),
    "mul by nan": ("Mul", [1, np.nan, 2, 3], "nonfinite"),
    "mul by inf": ("Mul", [1, np.inf, 2, 3], "nonfinite"),
    "add nan": ("Add", [1, np.nan, 2, 3], "overflow"),
    "add inf": ("Add", [1, -np.inf, 2, 3], "overflow"),
    "div by inf": ("Div", [1, np.inf, 2, 3], None),
    "mul overflows": ("Mul", [1, 3e38, 2, 3], "overflow"),
    "mul underflows": ("Mul", [1, 1e-42, 2, 3], "underflow"),
    "div overflows": ("Div", [1, 1e-42, 2, 3], "overflow"),
}


@pytest.mark.parametrize("case", ARITHMETIC)
def test_numbers_of_a_constant(case: str) -> None:
    op, content, reason = ARITHMETIC[case]
    graph = Graph()
    graph.input("x", [2, 3, 4, 4])
    weight = np.full((4, 3, 1, 1), 2.5, np.float32)
    graph.node("Conv", ["x", graph.initializer(weight)], "h", "conv")
    graph.node(op, ["h", graph.initializer(np.asarray(content, np.float32).reshape(4, 1, 1))], "y")
    graph.output("y", [2, 4, 4, 4])
    if reason is None:
        check(graph.model(), ["Conv"])
    else:
        result = check_unchanged(graph.model())
        assert set(reasons(result).values()) <= {
            f"kept: {reason}",
            "kept: nonfinite",
        }  # division by zero is no affine


@pytest.mark.parametrize("where", ["weight", "bias"])
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_layer_that_is_not_finite_is_left_alone(where: str, number: float) -> None:
    graph = Graph()
    graph.input("x", [2, 3, 4, 4])
    weight, bias = graph.random(4, 3, 1, 1), graph.random(4)
    (weight if where == "weight" else bias)[1] = number
    graph.node("Conv", ["x", graph.initializer(weight), graph.initializer(bias)], "h", "conv")
    graph.batch_norm("h", batch_norm(4), "y")
    graph.output("y", [2, 4, 4, 4])
    result = check_unchanged(graph.model())
    assert set(reasons(result).values()) <= {"kept: nonfinite", "kept: overflow"}


# constants that are shared


def two_convs(*, both: bool, share_params: bool = False) -> Graph:
    """Two Convs over one weight, one or both of them with a BatchNormalization."""
    graph = Graph()
    graph.input("x", [2, 3, 4, 4])
    graph.input("z", [2, 3, 4, 4])
    graph.initializer(graph.random(4, 3, 1, 1), "w")
    graph.initializer(graph.random(4), "b")
    names = [
        graph.initializer(graph.positive(4), name) for name in ("gamma", "beta", "mean", "var")
    ]
    graph.node("Conv", ["x", "w", "b"], "h1", "conv1")
    graph.node("Conv", ["z", "w", "b"], "h2" if both else "y2", "conv2")
    graph.batch_norm("h1", batch_norm(4), "y1", "bn1", names=names)
    if both:
        graph.batch_norm("h2", batch_norm(4, 9), "y2", "bn2", names=names if share_params else ())
    graph.output("y1", [2, 4, 4, 4])
    graph.output("y2", [2, 4, 4, 4])
    return graph


def test_a_shared_weight_is_cloned() -> None:
    graph = two_convs(both=False)
    model = graph.model()
    result = check(model, ["Conv", "Conv"])
    before, after = constants(model), constants(result.model)
    assert same_bits(after["w"], before["w"])
    assert same_bits(after["b"], before["b"])
    assert the(result.model, "Conv", 1) == the(model, "Conv", 1)
    assert set(after) & {"gamma", "beta", "mean", "var"} == set()
    assert len(after) == 4


def test_one_initializer_as_weight_and_data() -> None:
    graph = Graph()
    graph.input("x", [1, 4, 4, 4])
    graph.initializer(graph.random(4, 4, 1, 1), "w")
    graph.node("Conv", ["x", "w"], "h", "conv")
    graph.batch_norm("h", batch_norm(4), "t")
    graph.node("Add", ["t", "w"], "y")
    graph.output("y")
    graph.output("w", [4, 4, 1, 1])
    model = graph.model()
    result = check(model)
    assert same_bits(constants(result.model)["w"], constants(model)["w"])


# layers that cannot


@pytest.mark.parametrize(
    "op", ["Conv", "ConvTranspose", "Gemm", "MatMul", "BatchNormalization", "Mul"]
)
@pytest.mark.parametrize("domain", ["com.acme", "ai.onnx.ml"])
def test_operators_of_another_domain_only_share_their_name(op: str, domain: str) -> None:
    graph = Graph(domains={domain: 1})
    linear = op in ("Gemm", "MatMul")
    graph.input("x", [2, 4] if linear else [2, 4, 4, 4])
    weight = graph.initializer(graph.random(4, 4) if linear else graph.random(4, 4, 1, 1))
    layer_op = op if op not in ("BatchNormalization", "Mul") else "Conv"
    graph.node(layer_op, ["x", weight], "h", "layer", domain=domain if layer_op == op else "")
    if op == "Mul":
        graph.node("Mul", ["h", graph.initializer(2.0)], "y", domain=domain)
    else:
        extra = domain if op == "BatchNormalization" else ""
        graph.batch_norm("h", batch_norm(4), "y", "bn")
        graph.nodes[-1].domain = extra
    graph.output("y")
    check_unchanged(graph.model())


def test_the_long_name_of_the_default_domain() -> None:
    graph = Graph()
    graph.input("x", [2, 3, 4, 4])
    graph.node(
        "Conv", ["x", graph.initializer(graph.random(4, 3, 1, 1))], "h", "conv", domain="ai.onnx"
    )
    graph.batch_norm("h", batch_norm(4), "y", "bn")
    graph.nodes[-1].domain = "ai.onnx"
    graph.output("y", [2, 4, 4, 4])
    check(graph.model(), ["Conv"])


def test_metamorphic_an_exact_pair_vanishes() -> None:
    """Mul by 2**k and by 2**-k anywhere leaves the same model as without."""
    for dtype in (F32, F64):
        graph = Graph(dtype=dtype)
        graph.input("x", [1, 3, 4, 4])
        weight = graph.random(3, 3, 3, 3)
        graph.node("Conv", ["x", graph.initializer(weight)], "h", "conv")
        graph.node(
            "Mul", ["h", graph.initializer(np.asarray([2, 4, 0.5], dtype).reshape(3, 1, 1))], "t"
        )
        graph.node(
            "Mul", ["t", graph.initializer(np.asarray([0.5, 0.25, 2], dtype).reshape(3, 1, 1))], "y"
        )
        graph.output("y", [1, 3, 2, 2])
        result = check(graph.model(), ["Conv"])
        assert same_bits(operand(result.model, the(result.model, "Conv"), 1), weight)


def test_metamorphic_interior_outputs_only_reduce_folds() -> None:
    def model(extra: Sequence[str]) -> Any:
        graph = Graph(dtype=F64)
        graph.input("x", [1, 3, 4, 4])
        graph.node("Conv", ["x", graph.initializer(graph.random(3, 3, 1, 1))], "a", "conv1")
        graph.batch_norm("a", batch_norm(3, dtype=F64), "b")
        graph.node("Relu", ["b"], "c")
        graph.node("Conv", ["c", graph.initializer(graph.random(3, 3, 1, 1))], "d", "conv2")
        graph.node("Mul", ["d", graph.initializer(graph.random(3, 1, 1))], "e")
        graph.node("Add", ["e", graph.initializer(graph.random(3, 1, 1))], "y")
        for name in ("y", *extra):
            graph.output(name, [1, 3, 4, 4])
        return graph.model()

    plain = len(operators(check(model([])).model))
    for name in "abcde":
        assert len(operators(check(model([name])).model)) >= plain


@pytest.mark.parametrize("samples", [1, 3])
def test_a_training_batch_normalization_of_one_constant_sample_is_computed(samples: int) -> None:
    graph = Graph(opset=15)
    graph.input("x", [2, 3, 4, 4])
    names = [graph.initializer(graph.positive(3)) for _ in range(4)]
    weight = graph.initializer(graph.random(samples, 3, 9 // samples))
    outputs = [graph.fresh("w"), graph.fresh("mean"), graph.fresh("var")]
    graph.node("BatchNormalization", [weight, *names], outputs, training_mode=1)
    shape = graph.initializer(np.array([3, 3, 3, 1], np.int64))
    graph.node("Conv", ["x", graph.node("Reshape", [outputs[0], shape])], "y")
    graph.output("y", [2, 3, 2, 4])
    result = check(graph.model())
    assert ("BatchNormalization" in operators(result.model)) is (samples > 1)


def test_what_was_crossed_is_named_as_it_was() -> None:
    graph = Graph()
    graph.input("x", [2, 3, 8, 8])
    graph.node("Conv", ["x", graph.initializer(graph.random(3, 3, 1, 1))], "features")
    graph.node("MaxPool", ["features"], "pooled", kernel_shape=[2, 2])
    value = graph.node("Mul", ["pooled", graph.initializer(graph.positive(3, 1, 1))])
    graph.node("Sigmoid", [value], "y")
    graph.output("y")
    (layer,) = compiled(graph.model()).fold_map.layers
    assert layer["folds"][0]["crossed"] == ["nn.max_pool %pooled"]


def test_the_fold_in_numpy_at_the_head_of_the_layers_is_right() -> None:
    code = "\n".join(
        line[4:]
        for line in (layers.__doc__ or "").splitlines()
        if line.startswith("    ") or not line
    )
    assert code.count("assert") == 3
    exec(code, {"np": np, "rng": np.random.default_rng(7), "close": np.allclose})
