"""Propagation of mean, deviation and range, held against samples."""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import pytest
from equalize import calibrated, per_channel, values
from graphs import F64, Array, Graph, batch_norm
from irc.frontends.onnx import from_model
from irc.passes import Moments, propagate
from oracle import Interpreter

Build = Callable[[Graph, str], str]

GAMMA = np.array([0.5, 1.0, 0.25, 2.0])
BETA = np.array([1.0, 0.2, -0.5, -1.0])


def normal_samples() -> Array:
    """Normal in each of four channels: the quantiles of 20000 equal parts, [20000, 4, 1, 1]."""
    count = 20000
    quantiles = np.array([NormalDist().inv_cdf((i + 0.5) / count) for i in range(count)])
    return np.asarray(
        np.stack([np.roll(quantiles, 37 * c) for c in range(4)], axis=1).reshape(count, 4, 1, 1)
    )


def image_samples() -> Array:
    return np.asarray(np.random.default_rng(0).standard_normal((64, 4, 6, 6)))


def measured(build: Build, data: Array, sigmas: float = 6.0) -> tuple[Moments | None, Array]:
    """Moments of the result of `build` behind a BatchNormalization: inferred, and of the data."""
    graph = Graph(dtype=F64)
    graph.input("x", list(data.shape))
    inputs = {"x": data}
    build_result = build(graph, calibrated(graph, "x", inputs, GAMMA, BETA))
    graph.node("Identity", [build_result], "y")
    graph.output("y", None)
    module = from_model(graph.model())
    found = propagate(module, sigmas=sigmas)
    assert all(
        np.isfinite(moments.low).all() and (moments.low <= moments.high).all()
        for moments in found.values()
    )
    by_name = {value.name: moments for value, moments in found.items()}
    return by_name.get("y"), values(graph.model(), inputs)["y"]


def one(op: str, **attrs: object) -> Build:
    return lambda graph, h: graph.node(op, [h], **attrs)


def prelu(graph: Graph, h: str) -> str:
    return graph.node(
        "PRelu", [h, graph.initializer(np.array([0.1, 0.2, -0.3, 1.5]).reshape(4, 1, 1))]
    )


def clip(low: float | None, high: float | None) -> Build:
    def build(graph: Graph, h: str) -> str:
        ends = ["" if end is None else graph.initializer(np.array(end)) for end in (low, high)]
        return graph.node("Clip", [h, *ends])

    return build


def gated(op: str) -> Build:
    return lambda graph, h: graph.node("Mul", [graph.node(op, [h]), h])


def limited(*steps: tuple[str, object], first: str = "") -> Build:
    """Max and Min with constants, after an activation if there is one."""

    def build(graph: Graph, h: str) -> str:
        h = graph.node(first, [h]) if first else h
        for op, bound in steps:
            h = graph.node(op, [h, graph.initializer(np.array(bound, F64))])
        return h

    return build


def columns(*numbers: float) -> list[list[list[float]]]:
    """One number for each channel."""
    return [[[number]] for number in numbers]


ACTIVATIONS: dict[str, Build] = {
    "Clip: Relu, Min": limited(("Min", columns(0.5, 1, 2, 0.1)), first="Relu"),
    "Clip: Relu, Max, Min": limited(
        ("Max", columns(0, 0.5, 0, 1)), ("Min", columns(1, 0.25, 2, 3)), first="Relu"
    ),
    "Clip: Max": limited(("Max", columns(-0.5, 0.5, 0, 1))),
    "Clip: Min": limited(("Min", 0.25)),
    "Clip: Min on the left": lambda g, h: g.node(
        "Min", [g.initializer(np.array(columns(0, 1, -1, 0.5))), h]
    ),
    "Relu": one("Relu"),
    "Relu6": clip(0.0, 6.0),
    "a narrow Clip": clip(-0.3, 0.4),
    "Clip from below": clip(0.5, None),
    "Clip from above": clip(None, 0.25),
    "LeakyRelu": one("LeakyRelu", alpha=0.125),
    "PRelu": prelu,
    "Abs": one("Abs"),
    "Sigmoid": one("Sigmoid"),
    "Tanh": one("Tanh"),
    "HardSigmoid": one("HardSigmoid", alpha=0.25, beta=0.5),
    "HardSwish": one("HardSwish"),
    "Elu": one("Elu", alpha=0.5),
    "Selu": one("Selu"),
    "Celu": one("Celu", alpha=2.0),
    "Gelu": one("Gelu"),
    "Gelu by tanh": one("Gelu", approximate="tanh"),
    "Softplus": one("Softplus"),
    "Softsign": one("Softsign"),
    "Mish": one("Mish"),
    "Erf": one("Erf"),
    "Silu": gated("Sigmoid"),
    "x HardSigmoid(x)": gated("HardSigmoid"),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_of_a_normal_variable(name: str) -> None:
    found, y = measured(ACTIVATIONS[name], normal_samples())
    assert found is not None
    mean, std = per_channel(y, 1)
    exact = name in ("Relu", "Relu6", "LeakyRelu", "PRelu", "Abs") or "Clip" in name
    tolerance = 5e-4 if exact else 1e-2
    np.testing.assert_allclose(found.mean, mean, atol=tolerance)
    np.testing.assert_allclose(found.std, std, atol=2 * tolerance)
    # The range of a product of two functions is sampled. Any other contains the least result.
    slack = 1e-3 if name in ("Silu", "x HardSigmoid(x)") else 1e-12
    assert (found.low <= y.min(axis=(0, 2, 3)) + slack).all()
    assert (found.high >= y.max(axis=(0, 2, 3)) - slack).all()


LIMITS: dict[str, Build] = {
    "per element": limited(("Min", np.ones((4, 1, 2)))),
    "a NaN": limited(("Min", columns(1, 2, np.nan, 1))),
    "a value": lambda g, h: g.node("Min", [h, g.input("z", [20000, 4, 1, 1])]),
    "three operands": lambda g, h: g.node("Min", [h, g.initializer(1.0), g.initializer(2.0)]),
    "one channel made many": lambda g, h: g.node(
        "Min", [g.node("ReduceMean", [h, ints(g, 1)]), g.initializer(C4)]
    ),
}
C4 = np.array(columns(0, 1, -1, 0.5))


@pytest.mark.parametrize("name", LIMITS)
def test_nothing_is_known_after_other_limits(name: str) -> None:
    graph = Graph(dtype=F64)
    h = graph.batch_norm(graph.input("x", [2, 4, 3, 2]), batch_norm(4, dtype=F64))
    graph.output(LIMITS[name](graph, h), None)
    found = {value.name for value in propagate(from_model(graph.model()))}
    assert graph.outputs[0].name not in found


def test_ranges_are_sigmas_wide_and_clipped_by_the_activation() -> None:
    plain, _ = measured(one("Identity"), normal_samples(), sigmas=4.0)
    relu, _ = measured(one("Relu"), normal_samples(), sigmas=4.0)
    assert plain is not None
    assert relu is not None
    np.testing.assert_allclose(plain.low, BETA - 4 * GAMMA, rtol=1e-9)
    np.testing.assert_allclose(plain.high, BETA + 4 * GAMMA, rtol=1e-9)
    np.testing.assert_allclose(relu.low, 0, atol=1e-12)
    np.testing.assert_allclose(relu.high, np.maximum(plain.high, 0), rtol=1e-9)
    assert plain.range == pytest.approx((-9, 7))


def test_a_constant_channel_is_its_own_mean() -> None:
    graph = Graph(dtype=F64)
    graph.input("x", [2, 4, 3, 3])
    h = calibrated(
        graph, "x", {"x": image_samples()[:2, :, :3, :3]}, np.array([0.0, 0, 1, 1]), BETA
    )
    graph.node("Relu", [h], "y")
    graph.output("y")
    moments = {value.name: found for value, found in propagate(from_model(graph.model())).items()}[
        "y"
    ]
    np.testing.assert_allclose(moments.mean[:2], np.maximum(BETA[:2], 0))
    np.testing.assert_array_equal(moments.std[:2], 0)


# linear operators and movers, whose means hold whatever depends on what


def ints(graph: Graph, *items: int) -> str:
    return graph.initializer(np.array(items))


def conv(graph: Graph, h: str) -> str:
    return graph.node(
        "Conv", [h, graph.initializer(graph.random(6, 4, 1, 1)), graph.initializer(graph.random(6))]
    )


def padded(graph: Graph, h: str) -> str:
    constant = graph.node(
        "Expand", [graph.node("GlobalAveragePool", [h]), ints(graph, 64, 4, 6, 6)]
    )
    weight = graph.initializer(graph.random(6, 4, 3, 3))
    return graph.node("Conv", [constant, weight], pads=[1, 0, 2, 1], strides=[2, 1])


def gemm(graph: Graph, h: str) -> str:
    flat = graph.node("Flatten", [graph.node("GlobalAveragePool", [h])])
    weight, bias = graph.random(5, 4), graph.random(5)
    operands = [flat, graph.initializer(weight), graph.initializer(bias)]
    return graph.node("Gemm", operands, transB=1, alpha=0.5, beta=2.0)


def matmul(graph: Graph, h: str) -> str:
    last = graph.node("Transpose", [h], perm=[0, 2, 3, 1])
    return graph.node(
        "Add",
        [
            graph.node("MatMul", [last, graph.initializer(graph.random(4, 5))]),
            graph.initializer(graph.random(5)),
        ],
    )


LINEAR: dict[str, tuple[Build, int]] = {
    "Conv": (conv, 1),
    "Conv of constants, padded": (padded, 1),
    "Conv in groups": (
        lambda g, h: g.node("Conv", [h, g.initializer(g.random(6, 2, 1, 1))], group=2),
        1,
    ),
    "ConvTranspose with strides": (
        lambda g, h: g.node(
            "ConvTranspose", [h, g.initializer(g.random(4, 3, 2, 2))], strides=[2, 2], group=2
        ),
        1,
    ),
    "Gemm": (gemm, 1),
    "MatMul, Add": (matmul, 3),
    "Mul, Neg, Sub": (
        lambda g, h: g.node(
            "Sub",
            [
                g.node("Neg", [g.node("Mul", [h, g.initializer(g.random(4, 1, 1))])]),
                g.initializer(np.array(0.5)),
            ],
        ),
        1,
    ),
    "Concat": (lambda g, h: g.node("Concat", [g.node("Neg", [h]), h], axis=1), 1),
    "Add": (lambda g, h: g.node("Add", [h, conv_back(g, h)]), 1),
    "Sub": (lambda g, h: g.node("Sub", [conv_back(g, h), h]), 1),
    "AveragePool": (
        lambda g, h: g.node("AveragePool", [h], kernel_shape=[2, 2], strides=[2, 2]),
        1,
    ),
    "ReduceMean": (lambda g, h: g.node("ReduceMean", [h, ints(g, 2, 3)], keepdims=0), 1),
}


def conv_back(graph: Graph, h: str) -> str:
    return graph.node("Conv", [h, graph.initializer(graph.random(4, 4, 1, 1))])


@pytest.mark.parametrize("name", LINEAR)
def test_the_mean_of_a_linear_operator_is_exact(name: str) -> None:
    build, axis = LINEAR[name]
    found, y = measured(build, image_samples())
    assert found is not None
    assert found.axis == axis
    np.testing.assert_allclose(found.mean, per_channel(y, axis)[0], atol=1e-9)
    assert (found.low < y.min(axis=tuple(i for i in range(y.ndim) if i != axis))).all()
    assert (found.high > y.max(axis=tuple(i for i in range(y.ndim) if i != axis))).all()


def test_variances_of_independent_channels_add_up() -> None:
    data = np.random.default_rng(3).standard_normal((4000, 4, 5, 5))
    for build in (conv, conv_back, LINEAR["ConvTranspose with strides"][0]):
        found, y = measured(build, data)
        assert found is not None
        np.testing.assert_allclose(found.std, per_channel(y, 1)[1], rtol=0.03)


MOVERS: dict[str, tuple[Build, int]] = {
    "Transpose": (one("Transpose", perm=[0, 2, 1, 3]), 2),
    "Reshape": (lambda g, h: g.node("Reshape", [h, ints(g, 64, 4, 36)]), 1),
    "Slice": (lambda g, h: g.node("Slice", [h, ints(g, 1), ints(g, 4), ints(g, 1), ints(g, 2)]), 1),
    "one channel": (lambda g, h: g.node("Slice", [h, ints(g, 2), ints(g, 3), ints(g, 1)]), 1),
    "Gather": (lambda g, h: g.node("Gather", [h, ints(g, 3, 0, 0)], axis=1), 1),
    "Split": (lambda g, h: g.node("Split", [h], ["a", "b"], axis=1, num_outputs=2), 1),
    "SpaceToDepth": (one("SpaceToDepth", blocksize=2), 1),
    "Unsqueeze": (lambda g, h: g.node("Unsqueeze", [h, ints(g, 1)]), 2),
    "Resize": (
        lambda g, h: g.node(
            "Resize", [h, "", g.initializer(np.array([1, 1, 2, 2], np.float32))], mode="nearest"
        ),
        1,
    ),
}


@pytest.mark.parametrize("name", MOVERS)
def test_a_mover_takes_everything_along(name: str) -> None:
    build, axis = MOVERS[name]
    found, y = measured(build, image_samples())
    assert found is not None
    assert found.axis == axis
    mean, std = per_channel(y, axis)
    if name == "SpaceToDepth":  # a block is a fourth of the channel
        mean, std = (np.tile(array.reshape(4, 4).mean(axis=0), 4) for array in (mean, std))
        np.testing.assert_allclose(found.mean, mean, atol=1e-9)
        return
    np.testing.assert_allclose(found.mean, mean, atol=1e-9)
    np.testing.assert_allclose(found.std, std, atol=1e-9)


def test_of_a_maximum_only_the_range_is_known() -> None:
    found, y = measured(
        lambda g, h: g.node("Relu", [g.node("MaxPool", [h], kernel_shape=[2, 2])]), image_samples()
    )
    assert found is not None
    assert not found.has_mean
    assert np.isnan(found.mean).all()
    assert (found.low <= y.min(axis=(0, 2, 3))).all()
    assert (found.high >= y.max(axis=(0, 2, 3))).all()


NOTHING: dict[str, Build] = {
    "LayerNormalization": lambda g, h: g.node("LayerNormalization", [h, g.initializer(np.ones(6))]),
    "a pad": lambda g, h: g.node("Pad", [h, ints(g, 0, 0, 1, 1, 0, 0, 1, 1)]),
    "padding that counts": lambda g, h: g.node(
        "AveragePool", [h], kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1
    ),
    "a dynamic weight": lambda g, h: g.node("Conv", [h, g.input("w", [6, 4, 1, 1])]),
    "the channels' mean": lambda g, h: g.node("ReduceMean", [h, ints(g, 1)]),
    "a cubic Resize": lambda g, h: g.node(
        "Resize", [h, "", g.initializer(np.array([1, 1, 2, 2], np.float32))], mode="cubic"
    ),
    "an unknown operand": lambda g, h: g.node("Add", [h, g.input("w", [64, 4, 6, 6])]),
    "a layer behind a maximum": lambda g, h: conv(g, g.node("MaxPool", [h], kernel_shape=[2, 2])),
}


@pytest.mark.parametrize("name", NOTHING)
def test_what_does_not_follow_is_absent(name: str) -> None:
    graph = Graph(dtype=F64)
    graph.input("x", [64, 4, 6, 6])
    h = calibrated(graph, "x", {"x": image_samples()}, GAMMA, BETA)
    graph.node("Identity", [NOTHING[name](graph, h)], "y")
    graph.output("y", None)
    assert "y" not in {value.name for value in propagate(from_model(graph.model()))}


C = 4


@pytest.mark.parametrize("form", ["hard swish", "erf gelu", "square", "swish"])
def test_products_of_functions_of_one_value(form: str) -> None:
    """As exporters write activations.

    The mean is that of the function, not of independent operands.
    """
    graph = Graph(dtype=F64)
    x = graph.input("x", [4000, C, 4])
    params = batch_norm(C, dtype=F64)
    x = graph.batch_norm(x, params, "b", "bn")
    number = lambda value: graph.initializer(np.float64(value))  # noqa: E731
    if form == "hard swish":
        gate = graph.node("Clip", [graph.node("Add", [x, number(3.0)]), number(0.0), number(6.0)])
        y = graph.node("Mul", [graph.node("Mul", [x, gate]), number(1 / 6)])
    elif form == "erf gelu":
        erf = graph.node("Erf", [graph.node("Div", [x, number(np.sqrt(2))])])
        y = graph.node(
            "Mul", [graph.node("Mul", [x, graph.node("Add", [erf, number(1.0)])]), number(0.5)]
        )
    elif form == "square":
        y = graph.node("Mul", [x, x])
    else:
        y = graph.node("Mul", [graph.node("Sigmoid", [x]), x])
    graph.output(graph.node("Identity", [y], "y"), [4000, C, 4])
    model = graph.model()
    rng = np.random.default_rng(0)
    shape = (1, C, 1)
    data = rng.standard_normal((4000, C, 4)) * np.sqrt(params.var).reshape(
        shape
    ) + params.mean.reshape(shape)
    module = from_model(model)
    found = next(m for value, m in propagate(module).items() if value.name == y)
    wanted = Interpreter(model, None).evaluate({"x": data}, keep=True)[y]
    error = 6 * found.std / np.sqrt(4000 * 4)
    np.testing.assert_array_less(np.abs(found.mean - wanted.mean(axis=(0, 2))), error + 1e-3)
    assert (found.low <= np.quantile(wanted, 0.001, axis=(0, 2)) + 1e-3).all()
    assert (found.high >= np.quantile(wanted, 0.999, axis=(0, 2)) - 1e-3).all()


def test_of_other_products_with_something_in_common_only_the_range_is_known() -> None:
    graph = Graph(dtype=F64)
    x = graph.input("x", [2, C, 6, 6])
    x = graph.batch_norm(x, batch_norm(C, dtype=F64), "b", "bn")
    shifted = graph.node("Add", [x, graph.node("Transpose", [x], perm=[0, 1, 3, 2])])
    graph.output(graph.node("Mul", [x, shifted], "y"), [2, C, 6, 6])
    found = {value.name: moments for value, moments in propagate(from_model(graph.model())).items()}
    assert not found["y"].has_mean
    assert np.isfinite(found["y"].range).all()
