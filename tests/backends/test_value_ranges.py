"""Ranges without statistics.

Intervals of operators, held against what onnxruntime computes; guesses; what decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from graphs import BatchNorm, Graph, compiled
from harness import run
from irc.backends.quantizers.aimet import to_aimet_encodings
from irc.backends.quantizers.onnxruntime import to_calibration_cache, to_tensor_quant_overrides
from irc.backends.quantizers.ranges import Activations, activations
from irc.passes.data_free.value_ranges import GROWTH
from onnx import ModelProto, TensorProto, helper

Build = Callable[[Graph, str, str], str]
Range = tuple[float, float]

SHAPE = (2, 4, 6, 6)
X, Y = (-2.0, 3.0), (0.5, 2.0)


def ranges(model: ModelProto, passes: str = "default", **options: object) -> Activations:
    result = compiled(model, passes)
    return activations(result.model, result.fold_map, **options)  # type: ignore[arg-type]


def samples(*spans: Range, shape: tuple[int, ...] = SHAPE) -> Iterator[list[np.ndarray]]:
    """Values at random between the ends, at random among the ends, at one end, and around zero."""
    rng = np.random.default_rng(0)
    for kind in range(6):
        found = []
        for low, high in spans:
            if kind < 2:
                array = rng.uniform(low, high, shape)
            elif kind < 4:
                array = rng.choice([low, high], shape)
            else:
                array = np.full(shape, (low, high)[kind - 4])
            found.append(array.astype(np.float32))
        yield found


def one(op: str, **attrs: object) -> Build:
    return lambda g, x, y: g.node(op, [x], **attrs)


def both(op: str, **attrs: object) -> Build:
    return lambda g, x, y: g.node(op, [x, y], **attrs)


def number(g: Graph, value: float) -> str:
    return g.initializer(np.float32(value))


def ints(g: Graph, *items: int) -> str:
    return g.initializer(np.array(items, np.int64))


def sigmoid(v: float) -> float:
    return 1 / (1 + math.exp(-v))


OPERATORS: dict[str, tuple[Build, Range]] = {
    "Relu": (one("Relu"), (0, 3)),
    "LeakyRelu": (one("LeakyRelu", alpha=0.25), (-0.5, 3)),
    "LeakyRelu that turns": (one("LeakyRelu", alpha=-2.0), (0, 4)),
    "PRelu": (
        lambda g, x, y: g.node(
            "PRelu", [x, g.initializer(np.float32([[[0.5]], [[-1]], [[2]], [[0]]]))]
        ),
        (-4, 3),
    ),
    "Abs": (one("Abs"), (0, 3)),
    "Clip": (lambda g, x, y: g.node("Clip", [x, number(g, -1), number(g, 2)]), (-1, 2)),
    "Clip to a computed bound": (
        lambda g, x, y: g.node("Clip", [x, g.node("ReduceMax", [y], keepdims=0)]),
        (0.5, 3),
    ),
    "Sigmoid": (one("Sigmoid"), (sigmoid(-2), sigmoid(3))),
    "Tanh": (one("Tanh"), (math.tanh(-2), math.tanh(3))),
    "HardSigmoid": (one("HardSigmoid"), (0.1, 1)),
    "Erf": (one("Erf"), (math.erf(-2), math.erf(3))),
    "Exp": (one("Exp"), (math.exp(-2), math.exp(3))),
    "Log": (lambda g, x, y: g.node("Log", [y]), (math.log(0.5), math.log(2))),
    "Sqrt": (lambda g, x, y: g.node("Sqrt", [y]), (math.sqrt(0.5), math.sqrt(2))),
    "Reciprocal": (lambda g, x, y: g.node("Reciprocal", [y]), (0.5, 2)),
    "Sin": (one("Sin"), (-1, 1)),
    "Cos": (one("Cos"), (-1, 1)),
    "Atan": (one("Atan"), (math.atan(-2), math.atan(3))),
    "Asin": (
        lambda g, x, y: g.node("Asin", [g.node("Tanh", [x])]),
        (math.asin(math.tanh(-2)), math.asin(math.tanh(3))),
    ),
    "Acos": (
        lambda g, x, y: g.node("Acos", [g.node("Tanh", [x])]),
        (math.acos(math.tanh(3)), math.acos(math.tanh(-2))),
    ),
    "Cosh": (one("Cosh"), (1, math.cosh(3))),
    "Floor": (one("Floor"), (-2, 3)),
    "Sign": (one("Sign"), (-1, 1)),
    "Neg": (one("Neg"), (-3, 2)),
    "Softplus": (one("Softplus"), (math.log1p(math.exp(-2)), math.log1p(math.exp(3)))),
    "Elu": (one("Elu"), (math.expm1(-2), 3)),
    "HardSwish": (one("HardSwish"), (-0.375, 3)),
    "Mish": (one("Mish"), (-0.3088434, 2.9865350)),
    "Gelu": (one("Gelu"), (-0.16997, 2.99595)),
    "ThresholdedRelu": (one("ThresholdedRelu", alpha=1.0), (-2, 3)),
    "Softmax": (one("Softmax", axis=1), (0, 1)),
    "LogSoftmax": (one("LogSoftmax", axis=3), (-5 - math.log(6), 0)),
    "LpNormalization": (one("LpNormalization", axis=1), (-1, 1)),
    "LRN": (one("LRN", size=3, bias=2.0, beta=1.0), (-1, 1.5)),
    "CumSum": (lambda g, x, y: g.node("CumSum", [x, g.initializer(np.int64(2))]), (-12, 18)),
    "Trilu": (lambda g, x, y: g.node("Trilu", [y]), (0, 2)),
    "Add": (both("Add"), (-1.5, 5)),
    "Sub": (both("Sub"), (-4, 2.5)),
    "Mul": (both("Mul"), (-4, 6)),
    "a square": (lambda g, x, y: g.node("Mul", [x, x]), (0, 9)),
    "Div": (both("Div"), (-4, 6)),
    "Pow": (lambda g, x, y: g.node("Pow", [x, number(g, 2)]), (0, 9)),
    "an odd Pow": (lambda g, x, y: g.node("Pow", [x, number(g, 3)]), (-8, 27)),
    "Pow of operands": (lambda g, x, y: g.node("Pow", [y, x]), (0.125, 8)),
    "Max": (both("Max"), (0.5, 3)),
    "Min": (both("Min"), (-2, 2)),
    "Sum": (lambda g, x, y: g.node("Sum", [x, y, y]), (-1, 7)),
    "Mean": (both("Mean"), (-0.75, 2.5)),
    "Where": (lambda g, x, y: g.node("Where", [g.node("Less", [x, y]), x, y]), (-2, 3)),
    "preprocessing": (
        lambda g, x, y: g.node("Div", [g.node("Sub", [x, number(g, 1)]), number(g, 0.5)]),
        (-6, 4),
    ),
    "ReduceSum": (lambda g, x, y: g.node("ReduceSum", [x, ints(g, 2, 3)]), (-72, 108)),
    "ReduceMean over channels": (lambda g, x, y: g.node("ReduceMean", [x, ints(g, 1)]), X),
    "ReduceL1": (lambda g, x, y: g.node("ReduceL1", [x, ints(g, 3)]), (0, 18)),
    "ReduceL2": (lambda g, x, y: g.node("ReduceL2", [x, ints(g, 1)], keepdims=0), (0, 6)),
    "MaxPool": (one("MaxPool", kernel_shape=[2, 2]), X),
    "AveragePool": (one("AveragePool", kernel_shape=[2, 2]), X),
    "AveragePool that counts zeros": (
        lambda g, x, y: g.node(
            "AveragePool", [y], kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1
        ),
        (0, 2),
    ),
    "LpPool": (one("LpPool", kernel_shape=[2, 2]), (0, 6)),
    "GlobalLpPool": (one("GlobalLpPool"), (0, 18)),
    "Pad": (lambda g, x, y: g.node("Pad", [y, ints(g, 0, 0, 1, 1, 0, 0, 1, 1)]), (0, 2)),
    "Pad by a number": (
        lambda g, x, y: g.node("Pad", [y, ints(g, 0, 0, 1, 1, 0, 0, 1, 1), number(g, 7)]),
        (0.5, 7),
    ),
    "Pad by reflection": (
        lambda g, x, y: g.node("Pad", [y, ints(g, 0, 0, 1, 1, 0, 0, 1, 1)], mode="reflect"),
        Y,
    ),
    "Concat": (both("Concat", axis=1), X),
    "Reshape": (lambda g, x, y: g.node("Reshape", [x, ints(g, 2, -1)]), X),
    "Transpose": (one("Transpose", perm=[3, 2, 1, 0]), X),
    "Gather": (
        lambda g, x, y: g.node("Gather", [x, g.node("ArgMax", [y], axis=3, keepdims=0)], axis=3),
        X,
    ),
    "TopK": (lambda g, x, y: g.node("TopK", [x, ints(g, 2)], ["", "places"]), X),
    "ScatterElements": (
        lambda g, x, y: g.node(
            "ScatterElements",
            [x, g.node("ArgMax", [y], axis=3), g.node("ReduceMax", [y, ints(g, 3)])],
            axis=3,
        ),
        X,
    ),
    "Cast": (
        lambda g, x, y: g.node(
            "Cast", [g.node("Cast", [x], to=TensorProto.INT64)], to=TensorProto.FLOAT
        ),
        X,
    ),
    "a division of integers": (
        lambda g, x, y: g.node(
            "Cast",
            [g.node("Div", [g.node("Cast", [x], to=TensorProto.INT64), ints(g, 2)])],
            to=TensorProto.FLOAT,
        ),
        (-1, 1),
    ),
    "a small integer that wraps": (
        lambda g, x, y: g.node(
            "Cast",
            [g.node("Cast", [g.node("Mul", [y, number(g, 200)])], to=TensorProto.UINT8)],
            to=TensorProto.FLOAT,
        ),
        (0, 255),
    ),
    "a small integer": (
        lambda g, x, y: g.node(
            "Cast",
            [g.node("Cast", [g.node("Mul", [y, number(g, 100)])], to=TensorProto.UINT8)],
            to=TensorProto.FLOAT,
        ),
        (50, 200),
    ),
    "a truth value": (
        lambda g, x, y: g.node("Cast", [g.node("Less", [x, y])], to=TensorProto.FLOAT),
        (0, 1),
    ),
    "a place": (
        lambda g, x, y: g.node("Cast", [g.node("ArgMax", [x], axis=3)], to=TensorProto.FLOAT),
        (0, 5),
    ),
    "Resize": (
        lambda g, x, y: g.node(
            "Resize", [x, "", g.initializer(np.float32([1, 1, 2, 2]))], mode="linear"
        ),
        X,
    ),
    "a cubic Resize": (
        lambda g, x, y: g.node(
            "Resize", [y, "", g.initializer(np.float32([1, 1, 2, 2]))], mode="cubic"
        ),
        (1.25 - 0.75 * 1.375**2, 1.25 + 0.75 * 1.375**2),
    ),
    "MatMul of operands": (both("MatMul"), (-24, 36)),
    "attention": (
        lambda g, x, y: g.node(
            "MatMul", [g.node("Softmax", [g.node("MatMul", [x, x])], axis=-1), y]
        ),
        Y,
    ),
    "LayerNormalization": (
        lambda g, x, y: g.node(
            "LayerNormalization", [x, g.initializer(np.float32([1, 2, 3, -4, 0, 1]))], axis=-1
        ),
        (-4 * math.sqrt(5), 4 * math.sqrt(5)),
    ),
    "InstanceNormalization": (
        lambda g, x, y: g.node(
            "InstanceNormalization",
            [
                x,
                g.initializer(np.float32([1, 2, 0, -1])),
                g.initializer(np.float32([0, 1, 100, 0])),
            ],
        ),
        (1 - 2 * math.sqrt(35), 100),
    ),
    "a fake quantization": (
        lambda g, x, y: g.node(
            "DequantizeLinear",
            [
                g.node("QuantizeLinear", [x, number(g, 0.5), g.initializer(np.int8(3))]),
                number(g, 0.5),
                g.initializer(np.int8(3)),
            ],
        ),
        (-65.5, 62),
    ),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_bounds_its_result(name: str) -> None:
    build, expected = OPERATORS[name]
    graph = Graph()
    graph.input("x", SHAPE)
    graph.input("y", SHAPE)
    graph.output(graph.node("Identity", [build(graph, "x", "y")], "z"), None)
    model = graph.model()
    found = ranges(model, "none", input_ranges={"x": X, "y": Y})
    assert found.missing == ()
    known = found.known["z"]
    np.testing.assert_allclose(known.range, expected, rtol=1e-5, atol=1e-7)
    of_layer = name in ("MatMul of operands", "attention")
    assert known.origin == ("guess" if of_layer else "bound")
    low, high = known.range
    for x, y in samples(X, Y):
        z = run(model, {"x": x, "y": y})["z"]
        assert z.min() >= low - 1e-5 * max(1, abs(low))
        assert z.max() <= high + 1e-5 * max(1, abs(high))


def recurrent(op: str, activations: list[str]) -> Build:
    count = {"RNN": 1, "GRU": 3, "LSTM": 4}[op]

    def build(g: Graph, x: str, y: str) -> str:
        data = g.node("Reshape", [x, ints(g, 8, 6, 6)])
        weights = [
            g.initializer(np.full((1, 4 * count, extent), 10, np.float32)) for extent in (6, 4)
        ]
        results = ["", "", "cell"] if op == "LSTM" else [""]
        g.node(op, [data, *weights], results, hidden_size=4, activations=activations)
        return results[-1] or g.nodes[-1].output[0]

    return build


RECURRENT: dict[str, tuple[Build, Range | None]] = {
    "GRU": (recurrent("GRU", ["Sigmoid", "Tanh"]), (-1, 1)),
    "a GRU whose gates are results of Tanh": (recurrent("GRU", ["Tanh", "Tanh"]), None),
    "LSTM": (recurrent("LSTM", ["Sigmoid", "Tanh", "Tanh"]), (-8, 8)),
    "an LSTM whose gates are results of Tanh": (recurrent("LSTM", ["Tanh", "Tanh", "Tanh"]), None),
    "RNN": (recurrent("RNN", ["Tanh"]), (-1, 1)),
    "an RNN of Relu": (recurrent("RNN", ["Relu"]), None),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_a_recurrent_operator_has_bounds_if_its_gates_have(name: str) -> None:
    build, expected = RECURRENT[name]
    graph = Graph()
    for given in ("x", "y"):
        graph.input(given, SHAPE)
    graph.output(graph.node("Identity", [build(graph, "x", "y")], "z"), None)
    model = graph.model()
    found = ranges(model, "none", input_ranges={"x": X, "y": Y})
    assert ("z" in found.missing) == (expected is None)
    for x, y in samples(X, Y):
        z = run(model, {"x": x, "y": y})["z"]
        assert expected is None or (z.min() >= expected[0] - 1e-5 and z.max() <= expected[1] + 1e-5)
    if expected is not None:
        assert found.known["z"].range == expected


UNBOUNDED: dict[str, Build] = {
    "a divisor that may be zero": lambda g, x, y: g.node("Reciprocal", [x]),
    "a power of infinity": lambda g, x, y: g.node("Pow", [y, number(g, math.inf)]),
    "a power of nothing": lambda g, x, y: g.node("Pow", [y, number(g, math.nan)]),
}


@pytest.mark.parametrize("name", UNBOUNDED)
def test_a_result_that_may_be_infinite_has_no_bound(name: str) -> None:
    """The range of a reciprocal is that of usual divisors: a guess."""
    graph = Graph()
    for given in ("x", "y"):
        graph.input(given, SHAPE)
    result = graph.output(UNBOUNDED[name](graph, "x", "y"), None)
    found = ranges(graph.model(), "none", input_ranges={"x": X, "y": Y})
    assert result in found.missing or found.known[result].origin == "guess"


def test_the_log_of_a_softmax_of_no_elements_has_a_range() -> None:
    graph = Graph()
    graph.input("x", (2, 0))
    graph.output(graph.node("LogSoftmax", ["x"], "y", axis=1), None)
    assert ranges(graph.model(), "none", input_ranges={"x": (-1, 1)}).known["y"].range[1] == 0


def test_an_operand_at_an_axis_is_not_aligned_with_the_last_one() -> None:
    """Channels lie on axis 1 if an older opset says so, whatever the last axis is."""
    graph = Graph(opset=6)
    graph.input("x", (2, 4, 6, 4))
    graph.node(
        "Add", ["x", graph.initializer(np.float32([0, 10, 20, 30]))], "y", axis=1, broadcast=1
    )
    graph.output("y", (2, 4, 6, 4))
    known = ranges(graph.model(), "none", input_ranges={"x": X}).known["y"]
    assert known.axis in (None, 1)
    assert known.range == (-2, 33)


C = 64


def behind_a_norm(build: Callable[[Graph, str], str], channels: int = C) -> Graph:
    """A BatchNormalization of results of mean 0 and deviation 1, and y, which `build` makes."""
    graph = Graph()
    graph.input("x", (1, channels, 6, 6))
    ones, zeros = np.ones(channels, np.float32), np.zeros(channels, np.float32)
    h = graph.batch_norm("x", BatchNorm(ones, zeros, zeros, ones, 0.0), "h", "bn")
    graph.output(graph.node("Identity", [build(graph, h)], "y"), None)
    return graph


def averaging(g: Graph, h: str, rows: int = 1) -> str:
    """A layer all of whose weights are 1/8.

    Of 64 independent inputs with deviation 1 the deviation is 1.
    """
    return g.node("Conv", [h, g.initializer(np.full((rows, C, 1, 1), 1 / 8, np.float32))])


def head(g: Graph, h: str) -> str:
    return g.node("Flatten", [averaging(g, h)])


DECISIVE: dict[str, tuple[Callable[[Graph, str], str], float]] = {
    "a result": (averaging, 8),
    "behind a Softmax": (
        lambda g, h: g.node("Softmax", [g.node("Identity", [averaging(g, h)], "v")]),
        8,
    ),
    "behind an ArgMax": (
        lambda g, h: g.node("ArgMax", [g.node("Identity", [averaging(g, h)], "v")]),
        8,
    ),
    "behind a comparison": (
        lambda g, h: g.node("Greater", [g.node("Identity", [averaging(g, h)], "v"), number(g, 0)]),
        8,
    ),
    "behind a sum": (lambda g, h: g.node("Add", [averaging(g, h), averaging(g, h)]), 16),
    "behind a concatenation": (
        lambda g, h: g.node("Concat", [averaging(g, h), averaging(g, h)], axis=1),
        8,
    ),
    "behind a pool": (lambda g, h: g.node("GlobalAveragePool", [averaging(g, h)]), 8),
    "behind a gate": (
        lambda g, h: g.node("Mul", [averaging(g, h), g.node("Sigmoid", [averaging(g, h)])]),
        8,
    ),
    "behind a layer": (
        lambda g, h: g.node("Conv", [g.node("Identity", [averaging(g, h)], "v"), one_by_one(g)]),
        6,
    ),
    "behind a normalization": (
        lambda g, h: g.node(
            "LayerNormalization", [g.node("Identity", [averaging(g, h)], "v"), ones(g)]
        ),
        6,
    ),
}


def one_by_one(g: Graph) -> str:
    return g.initializer(np.ones((1, 1, 1, 1), np.float32))


def ones(g: Graph) -> str:
    return g.initializer(np.ones(6, np.float32))


@pytest.mark.parametrize("name", DECISIVE)
def test_what_decides_has_room_for_every_direction(name: str) -> None:
    """Data of the usual norm along the weights have 8 deviations, not the 6 of `sigmas`."""
    build, radius = DECISIVE[name]
    graph = behind_a_norm(build)
    if name in ("behind an ArgMax", "behind a comparison"):
        graph.outputs.clear()
        dtype = np.dtype(np.int64) if "ArgMax" in name else np.dtype(bool)
        graph.output("y", None, dtype)
    found = ranges(graph.model(), "none", input_ranges={"x": (-1, 1)})
    known = found.known["v" if "v" in found.known else "y"]
    np.testing.assert_allclose(known.range[1], radius, rtol=2e-3)


def test_a_sum_in_the_middle_is_cut_and_a_sum_that_decides_is_not() -> None:
    def build(g: Graph, h: str) -> str:
        total = g.node("Add", [averaging(g, h, C), h], "middle")
        return g.node("Add", [averaging(g, total), averaging(g, total)], "last")

    found = ranges(behind_a_norm(build).model(), "none", input_ranges={"x": (-1, 1)})
    np.testing.assert_allclose(found.known["middle"].range[1], 6 * math.sqrt(2), rtol=1e-3)
    assert found.known["middle"].origin == "propagated"
    np.testing.assert_allclose(found.known["last"].range[1], 16 * math.sqrt(2) * GROWTH, rtol=1e-3)


def test_a_model_without_batch_normalization_has_ranges() -> None:
    graph = Graph()
    x = graph.input("x", ("n", 3, 8, 8))
    for i in range(4):
        weight = graph.random(16, 16 if i else 3, 3, 3) / np.float32(math.sqrt(72 if i else 13))
        x = graph.node(
            "Relu", [graph.node("Conv", [x, graph.initializer(weight)], pads=[1, 1, 1, 1])]
        )
    x = graph.node(
        "Gemm",
        [
            graph.node("Flatten", [graph.node("GlobalAveragePool", [x])]),
            graph.initializer(graph.random(16, 10)),
        ],
    )
    graph.output(graph.node("Softmax", [x], "p"))
    model = graph.model()
    found = ranges(model, input_ranges={"x": (-1, 1)})
    assert found.missing == ()
    assert {known.origin for known in found.known.values()} == {
        "given",
        "guess",
    }
    result = compiled(model)
    assert (
        to_calibration_cache(result.model, result.fold_map, input_ranges={"x": (-1, 1)}).missing
        == ()
    )
    rng = np.random.default_rng(1)
    for node in model.graph.node:
        model.graph.output.append(
            helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None)
        )
    del model.graph.output[0]
    observed = run(model, {"x": rng.uniform(-1, 1, (20, 3, 8, 8)).astype(np.float32)})
    for name, array in observed.items():
        low, high = found.known[name].range
        assert ((array < low - 1e-4) | (array > high + 1e-4)).mean() < 1e-4, name
        assert high - low < 30 * max(array.max() - array.min(), 0.1), name


def test_a_given_range_goes_on() -> None:
    graph = behind_a_norm(lambda g, h: g.node("Relu", [g.node("Identity", [h], "v")]))
    model = graph.model()
    found = ranges(model, "none", input_ranges={"x": (-1, 1)}, ranges={"v": (-9, 11)})
    assert found.known["v"].range == (-9, 11)
    assert found.known["v"].origin == "given"
    assert found.known["y"].range == (0, 11)
    assert found.known["h"].origin == "statistic"


BODIES = {
    "If": (0.5, 3.0),
    "Loop": (0.0, 3.0),
    "a Loop that grows": None,
    "Scan": (-1.0, 2.0),
}


def body(
    name: str, nodes: list[object], inputs: list[str], outputs: list[str], kinds: dict[str, int]
) -> object:
    infos = [
        [helper.make_tensor_value_info(n, kinds.get(n, TensorProto.FLOAT), None) for n in names]
        for names in (inputs, outputs)
    ]
    return helper.make_graph(nodes, name, *infos)


@pytest.mark.parametrize("name", BODIES)
def test_bodies(name: str) -> None:
    graph = Graph()
    x = graph.input("x", (4, 3))
    node = helper.make_node
    if name == "If":
        condition = graph.node(
            "Greater", [graph.node("ReduceMax", [x], keepdims=0), number(graph, 0)]
        )
        branches = {
            "then_branch": body(
                "t", [node("Relu", ["x"], ["t"]), node("Max", ["t", "half"], ["u"])], [], ["u"], {}
            ),
            "else_branch": body("e", [node("Identity", ["half"], ["e"])], [], ["e"], {}),
        }
        graph.initializer(np.float32(0.5), "half")
        y = graph.node("If", [condition], **branches)
    elif name == "Scan":
        scan = body(
            "s",
            [node("Tanh", ["a"], ["b"]), node("Sub", ["row", "one"], ["z"])],
            ["a", "row"],
            ["b", "z"],
            {},
        )
        graph.initializer(np.float32(1), "one")
        start = graph.initializer(np.zeros(3, np.float32))
        y = graph.node("Scan", [start, x], ["last", "rows"], body=scan, num_scan_inputs=1)
        y = "rows"
    else:
        step = node("Relu", ["a"], ["b"]) if name == "Loop" else node("Add", ["a", "a"], ["b"])
        kinds = {"i": TensorProto.INT64, "c": TensorProto.BOOL, "d": TensorProto.BOOL}
        loop = body("l", [node("Identity", ["c"], ["d"]), step], ["i", "c", "a"], ["d", "b"], kinds)
        y = graph.node(
            "Loop",
            [ints(graph, 3), graph.initializer(np.array(True)), graph.node("Abs", [x])],
            body=loop,
        )
    graph.output(graph.node("Identity", [y], "y"), None)
    found = ranges(graph.model(), "none", input_ranges={"x": (-2.0, 3.0)})
    expected = BODIES[name]
    if expected is None:
        assert "y" in found.missing
        return
    expected = (-3.0, 2.0) if name == "Scan" else expected
    np.testing.assert_allclose(found.known["y"].range, expected, atol=1e-9)


def test_a_state_that_grows_leaves_the_others_their_range() -> None:
    """c = c + c, h = h * sigmoid(c): as a cell has it."""
    graph = Graph()
    x = graph.input("x", (4, 3))
    node = helper.make_node
    steps = [
        node("Identity", ["go"], ["d"]),
        node("Add", ["c", "c"], ["c1"]),
        node("Sigmoid", ["c1"], ["s"]),
    ]
    steps.append(node("Mul", ["h", "s"], ["h1"]))
    kinds = {"i": TensorProto.INT64, "go": TensorProto.BOOL, "d": TensorProto.BOOL}
    loop = body("l", steps, ["i", "go", "c", "h"], ["d", "c1", "h1"], kinds)
    start = [ints(graph, 3), graph.initializer(np.array(True)), graph.node("Exp", [x]), x]
    graph.node("Loop", start, ["last", "state"], body=loop)
    graph.output(graph.node("Identity", ["last"], "y"), None)
    graph.output(graph.node("Identity", ["state"], "z"), None)
    found = ranges(graph.model(), "none", input_ranges={"x": (-2.0, 3.0)})
    assert "y" in found.missing
    assert found.known["z"].range == (-2, 3)


@pytest.mark.parametrize(
    ("opset", "axis", "expected"),
    [
        (11, None, (0, 12)),
        (11, 1, (0, 12)),
        (11, 2, (2, 3)),
        (11, -1, (2, 3)),
        (13, None, (2, 3)),
        (13, 1, (0, 12)),
    ],
)
def test_only_rows_that_add_up_to_one_average(
    opset: int, axis: int | None, expected: Range
) -> None:
    """Before opset 13 a Softmax adds up over all axes from `axis`, by default 1, on."""
    graph = Graph(opset=opset)
    x, z = graph.input("x", (2, 3, 4)), graph.input("z", (2, 4, 5))
    weights = graph.node("Softmax", [x], **({} if axis is None else {"axis": axis}))
    graph.output(graph.node("MatMul", [weights, z], "y"))
    model = graph.model()
    low, high = (
        ranges(model, "none", input_ranges={"x": (-1.0, 1.0), "z": (2.0, 3.0)}).known["y"].range
    )
    assert (low, high) == expected
    rng = np.random.default_rng(0)
    inputs = {"x": rng.uniform(-1, 1, (2, 3, 4)), "z": rng.uniform(2, 3, (2, 4, 5))}
    found = run(model, {name: array.astype(np.float32) for name, array in inputs.items()})["y"]
    assert low <= found.min() <= found.max() <= high
    assert (found.min() < 2) == (expected == (0, 12))


@pytest.mark.parametrize("rank", [2, None])
def test_the_weight_says_how_many_terms_a_product_has(rank: int | None) -> None:
    graph = Graph()
    x = graph.input("x", None if rank is None else ["n", 4])
    graph.output(
        graph.node("MatMul", [x, graph.initializer(np.full((4, 3), 0.5, np.float32))], "y"), None
    )
    assert ranges(graph.model(), "none", input_ranges={"x": (-1.0, 3.0)}).known["y"].range == (
        -2,
        6,
    )


def test_a_product_of_an_unknown_number_of_terms_has_no_range() -> None:
    graph = Graph()
    x, z = graph.input("x", None), graph.input("z", ["k", 3])
    graph.output(graph.node("MatMul", [x, z], "y"), None)
    assert ranges(
        graph.model(), "none", input_ranges={"x": (-1.0, 3.0), "z": (-1.0, 1.0)}
    ).missing == ("y",)


def test_calls_of_functions_are_looked_into() -> None:
    graph = Graph(domains={"own": 1})
    x = graph.input("x", (2, 3))
    nodes = [helper.make_node("Relu", ["a"], ["t"]), helper.make_node("Add", ["t", "t"], ["b"])]
    graph.functions.append(
        helper.make_function("own", "Twice", ["a"], ["b"], nodes, [helper.make_opsetid("", 21)])
    )
    graph.output(graph.node("Twice", [x], "y", domain="own"), None)
    found = ranges(graph.model(), "none", input_ranges={"x": (-2.0, 3.0)})
    assert found.known["y"].range == (0, 6)


def test_what_irc_does_not_know_has_no_range_and_what_is_behind_it_may_have_one() -> None:
    graph = Graph(domains={"own": 1})
    x = graph.input("x", (2, 3))
    unknown = graph.node("Odd", [x], "u", domain="own")
    graph.node("Exp", [unknown], "e")
    graph.node("Relu", [unknown], "r")
    graph.output(graph.node("Sigmoid", ["e"], "s"), (2, 3))
    graph.output("r", (2, 3))
    found = ranges(graph.model(), "none", input_ranges={"x": (-2.0, 3.0)})
    assert "r" in found.missing
    assert found.known["s"].range == (0.5, 1)


def layers_behind_a_norm(build: Callable[[Graph, str], str]) -> str:
    """The origin of a value that is made of the result of a BatchNormalization."""
    graph = Graph()
    x = graph.node("Conv", ["x", graph.initializer(graph.random(8, 3, 1, 1))])
    graph.input("x", ("n", 3, 4, 4))
    graph.batch_norm(x, BatchNorm(*np.float32([[1.5] * 8, [0.5] * 8, [0] * 8, [1] * 8])), "h")
    end = build(graph, "h")
    graph.output(graph.node("Identity", [end]), None)
    return ranges(graph.model(), "none", input_ranges={"x": (-1.0, 1.0)}).known[end].origin


def layer(g: Graph, x: str) -> str:
    return g.node("Conv", [x, g.initializer(g.random(8, 8, 1, 1))])


def normalized(g: Graph, x: str) -> str:
    return g.node("LayerNormalization", [x, g.initializer(np.ones(4, np.float32))])


@pytest.mark.parametrize(
    ("build", "origin"),
    [
        (lambda g, x: g.node("Relu", [x]), "bound"),
        (layer, "propagated"),
        (lambda g, x: g.node("Relu", [layer(g, x)]), "bound"),
        (lambda g, x: g.node("Relu", [layer(g, layer(g, x))]), "guess"),
        (lambda g, x: g.node("Add", [layer(g, x), x]), "bound"),
        (lambda g, x: layer(g, layer(g, x)), "guess"),
        (lambda g, x: g.node("Add", [layer(g, layer(g, x)), x]), "guess"),
        (lambda g, x: g.node("Sigmoid", [layer(g, layer(g, x))]), "bound"),
        (lambda g, x: layer(g, g.node("Sigmoid", [layer(g, layer(g, x))])), "guess"),
        (lambda g, x: g.node("Mul", [x, g.node("Sigmoid", [x])]), "bound"),
        (lambda g, x: g.node("Mul", [layer(g, x), layer(g, x)]), "guess"),
        (lambda g, x: g.node("MatMul", [x, x]), "guess"),
        (lambda g, x: g.node("Softmax", [x]), "guess"),
        (lambda g, x: g.node("Exp", [x]), "guess"),
        (normalized, "guess"),
        (lambda g, x: g.node("Div", [x, g.initializer(np.float32(3))]), "bound"),
        (lambda g, x: g.node("Div", [x, x]), "guess"),
    ],
)
def test_a_guess_is_behind_more_than_one_layer(
    build: Callable[[Graph, str], str], origin: str
) -> None:
    assert layers_behind_a_norm(build) == origin


def test_bounds_replace_what_follows_from_a_guess() -> None:
    """A Sigmoid of a guess may be anywhere between 0 and 1, one of a propagated value may not."""

    def high(build: Callable[[Graph, str], str]) -> float:
        graph = behind_a_norm(lambda g, h: g.node("Relu", [g.node("Sigmoid", [build(g, h)], "v")]))
        found = ranges(graph.model(), "none", input_ranges={"x": (-1, 1)})
        return found.known["v"].range[1]

    assert high(lambda g, h: averaging(g, h, C)) < 1
    assert high(lambda g, h: averaging(g, averaging(g, h, C))) == 1


def test_indices_are_not_data() -> None:
    graph = Graph()
    graph.input("x", (1, 1, 4, 4))
    graph.node("MaxPool", ["x"], ["m", "places"], kernel_shape=[2, 2])
    graph.output(graph.node("Cast", ["places"], "f", to=TensorProto.FLOAT), None)
    assert "f" in ranges(graph.model(), "none", input_ranges={"x": (0.0, 1.0)}).missing


def test_a_square_root_of_a_sum_of_squares_divides() -> None:
    """A vector divided by its norm: the interval is boundless, so the range is a guess."""
    graph = Graph()
    graph.input("x", (4, 16))
    x = graph.node(
        "BatchNormalization",
        ["x", *[graph.initializer(np.float32([n] * 16)) for n in (1, 0, 0, 1)]],
        "h",
    )
    norm = graph.node("ReduceL2", [x, ints(graph, 1)])
    graph.output(graph.node("Div", [x, norm], "y"), (4, 16))
    known = ranges(graph.model(), "none", input_ranges={"x": (-3.0, 3.0)}).known["y"]
    assert 1 <= known.range[1] < 32


def test_adapters_name_the_guesses() -> None:
    graph = behind_a_norm(lambda g, h: g.node("Relu", [g.node("Identity", [averaging(g, h)], "v")]))
    result = compiled(graph.model(), "none")
    given = {"input_ranges": {"x": (-1.0, 1.0)}}
    known = activations(result.model, result.fold_map, **given)  # type: ignore[arg-type]
    guessed = [name for name, found in known.known.items() if found.origin == "propagated"]
    assert guessed
    for adapter in (to_calibration_cache, to_tensor_quant_overrides, to_aimet_encodings):
        assert adapter(result.model, result.fold_map, **given).guessed == tuple(guessed)  # type: ignore[operator]
    sure = dict.fromkeys(guessed, (-9.0, 9.0))
    assert to_calibration_cache(result.model, result.fold_map, ranges=sure, **given).guessed == ()  # type: ignore[arg-type]
