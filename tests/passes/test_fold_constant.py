"""What is computed at compile time, exactly what, and what is left to the runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from float64 import evaluate
from graphs import (
    F32,
    F64,
    NEWEST,
    Array,
    Graph,
    batch_norm,
    check,
    check_unchanged,
    compiled,
    constants,
    operand,
    operators,
    rounded,
    same_bits,
    the,
    wide,
)
from onnx import TensorProto, helper

I64 = np.int64
Build = Callable[[Graph], str]


def ints(graph: Graph, *items: int) -> str:
    """An int64 vector."""
    return graph.initializer(np.asarray(items, I64))


def of(dtype: Any, *items: float) -> Callable[[Graph], str]:
    """A vector constant."""
    return lambda graph: graph.initializer(np.asarray(items, dtype))


def binary(op: str, dtype: Any, a: Sequence[float], b: Sequence[float]) -> Build:
    """An operator on two constant vectors."""
    return lambda g: g.node(op, [of(dtype, *a)(g), of(dtype, *b)(g)])


def unary(op: str, array: Any, **attrs: Any) -> Build:
    """An operator on one constant."""
    return lambda g: g.node(op, [g.initializer(np.asarray(array))], **attrs)


def data(*shape: int) -> Array:
    """Distinct numbers that every type holds."""
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape) - 3


def with_ints(op: str, array: Array, *operands: Sequence[int], **attrs: Any) -> Build:
    """An operator on a constant and int64 vectors."""
    return lambda g: g.node(op, [g.initializer(array), *[ints(g, *items) for items in operands]], **attrs)


def region(graph: Graph) -> str:
    """sqrt(2 * 2 + 1 / inf)"""
    product = binary("Mul", np.float32, [2, 8], [2, 2])(graph)
    nothing = graph.node("Reciprocal", [of(np.float32, np.inf, np.inf)(graph)])
    return graph.node("Sqrt", [graph.node("Add", [product, nothing])])


def arange(dtype: Any, *items: int) -> Build:
    """Range of three scalars."""
    return lambda g: g.node("Range", [g.initializer(dtype(item)) for item in items])


SEVEN = helper.make_tensor("", TensorProto.INT64, [1], [7])
FOLDS: dict[str, tuple[int, Build]] = {
    "int8 add wraps": (14, binary("Add", np.int8, [127, -128, 1], [1, -1, 1])),
    "uint8 sub wraps": (14, binary("Sub", np.uint8, [0, 5], [1, 7])),
    "int32 mul wraps": (14, binary("Mul", np.int32, [2**30, -(2**31)], [4, 3])),
    "int64 div truncates": (14, binary("Div", I64, [7, -7, 7, -7, 6], [2, 2, -2, -2, 3])),
    "uint8 div": (14, binary("Div", np.uint8, [255, 7], [2, 7])),
    "int8 div": (14, binary("Div", np.int8, [-128 + 1, 127], [2, -1])),
    "f32 div by zero": (14, binary("Div", np.float32, [1, -1, 2], [0, 0, 4])),
    "f32 add": (14, binary("Add", np.float32, [1, 2], [0.5, 0.25])),
    "f16 mul overflows": (14, binary("Mul", np.float16, [60000, 1], [2, 2])),
    "f64 sub": (14, binary("Sub", np.float64, [1e300, 1], [1, 1e-300])),
    "int8 neg": (13, unary("Neg", np.asarray([-127, 0, 5], np.int8))),
    "sqrt": (13, unary("Sqrt", np.asarray([4, 0.25, 0], np.float32))),
    "sqrt of a negative": (13, unary("Sqrt", np.asarray([-1, 4], np.float32))),
    "reciprocal": (13, unary("Reciprocal", np.asarray([4, -0.5, 0], np.float32))),
    "identity": (13, unary("Identity", data(2, 3))),
    "transpose": (13, unary("Transpose", data(2, 3, 4), perm=[2, 0, 1])),
    "transpose, reversed": (13, unary("Transpose", data(2, 3, 4))),
    "transpose of a scalar": (13, unary("Transpose", np.float32(2))),
    "flatten": (13, unary("Flatten", data(2, 3, 4))),
    "flatten, axis 0": (13, unary("Flatten", data(2, 3, 4), axis=0)),
    "flatten, axis -1": (13, unary("Flatten", data(2, 3, 4), axis=-1)),
    "flatten, axis rank": (13, unary("Flatten", data(2, 3), axis=2)),
    "reshape, 0 and -1": (13, with_ints("Reshape", data(2, 3, 4), [0, -1])),
    "reshape, allowzero": (14, with_ints("Reshape", data(0, 3), [3, 0], allowzero=1)),
    "reshape to a scalar": (13, with_ints("Reshape", data(1, 1), [])),
    "reshape, attribute": (4, unary("Reshape", data(2, 6), shape=[3, -1])),
    "unsqueeze, negative axes": (13, with_ints("Unsqueeze", data(2, 3), [-1, 0])),
    "unsqueeze, attribute": (11, unary("Unsqueeze", data(2, 3), axes=[0, 3])),
    "squeeze": (13, unary("Squeeze", data(1, 3, 1))),
    "squeeze, one axis": (13, with_ints("Squeeze", data(1, 3, 1), [-1])),
    "squeeze, attribute": (11, unary("Squeeze", data(1, 3, 1), axes=[0])),
    "expand": (13, with_ints("Expand", data(2, 1), [3, 1, 4])),
    "expand to less": (13, with_ints("Expand", data(2, 3), [1])),
    "shape": (13, unary("Shape", data(2, 3, 4))),
    "shape, start and end": (15, unary("Shape", data(2, 3, 4), start=-2, end=-1)),
    "shape of a scalar": (13, unary("Shape", np.float32(2))),
    "gather": (13, with_ints("Gather", data(3, 4), [-1, 0, 0], axis=0)),
    "gather, axis -1": (13, with_ints("Gather", data(3, 4), [2], axis=-1)),
    "gather a scalar": (13, lambda g: g.node("Gather", [g.initializer(data(3, 4)), g.initializer(I64(1))])),
    "concat": (13, lambda g: g.node("Concat", [g.initializer(data(2, 3)), g.initializer(data(2, 1))], axis=-1)),
    "concat, default axis": (3, lambda g: g.node("Concat", [g.initializer(data(2, 3)), g.initializer(data(2, 1))])),
    "slice": (13, with_ints("Slice", data(4, 5), [1], [-1], [1], [2])),
    "slice to the end": (13, with_ints("Slice", data(4, 5), [-3], [2**63 - 1])),
    "slice beyond": (13, with_ints("Slice", data(4, 5), [0], [99], [-1])),
    "slice to nothing": (13, with_ints("Slice", data(4, 5), [3], [1])),
    "slice, attributes": (9, unary("Slice", data(4, 5), starts=[1], ends=[3], axes=[1])),
    "constant of shape": (13, lambda g: g.node("ConstantOfShape", [ints(g, 2, 3)])),
    "constant of shape, int": (13, with_ints("ConstantOfShape", np.asarray([2], I64), value=SEVEN)),
    "constant of shape, scalar": (13, lambda g: g.node("ConstantOfShape", [ints(g)])),
    "cast f32 to f16": (13, unary("Cast", np.asarray([1.0009765, 65520, 1e-9], np.float32), to=10)),
    "cast f32 to i32 truncates": (13, unary("Cast", np.asarray([1.9, -1.9, 0.5], np.float32), to=6)),
    "cast f32 to bool": (13, unary("Cast", np.asarray([0.5, 0, -0.0, np.nan], np.float32), to=9)),
    "cast bool to f32": (13, unary("Cast", np.asarray([True, False]), to=1)),
    "cast i64 to f32": (13, unary("Cast", np.asarray([2**24 + 1, -5], I64), to=1)),
    "cast i64 to i32": (13, unary("Cast", np.asarray([2**30, -5], I64), to=6)),
    "cast like": (15, lambda g: g.node("CastLike", [of(np.float32, 1, 2)(g), of(np.float64, 0)(g)])),
    "region": (13, region),
    "equal": (13, binary("Equal", I64, [1, 2], [1, 3])),
    "less, f32": (13, binary("Less", np.float32, [1, np.nan], [2, 2])),
    "greater or equal": (16, binary("GreaterOrEqual", np.int32, [1, 2], [2, 2])),
    "and": (13, binary("And", np.bool_, [1, 0], [1, 1])),
    "xor": (13, binary("Xor", np.bool_, [1, 0], [1, 1])),
    "not": (13, unary("Not", np.asarray([True, False]))),
    "floor": (13, unary("Floor", np.asarray([1.5, -1.5], np.float32))),
    "ceil": (13, unary("Ceil", np.asarray([1.5, -1.5], np.float32))),
    "int32 abs": (13, unary("Abs", np.asarray([-3, 4], np.int32))),
    "int32 pow": (13, binary("Pow", np.int32, [2, -3, 7], [10, 3, 0])),
    "int32 mod takes the sign of the divisor": (13, binary("Mod", np.int32, [7, -7, 7, -7], [3, 3, -3, -3])),
    "int32 fmod takes the sign of the dividend": (
        13, lambda g: g.node("Mod", [of(np.int32, 7, -7, 7)(g), of(np.int32, 3, 3, -3)(g)], fmod=1),
    ),
    "max": (13, binary("Max", np.float32, [1, 5], [2, 4])),
    "min of three": (13, lambda g: g.node("Min", [of(I64, i, 3 - i)(g) for i in range(3)])),
    "where": (13, lambda g: g.node("Where", [of(np.bool_, 1, 0)(g), of(I64, 1, 2)(g), of(I64, 3, 4)(g)])),
    "range": (13, arange(np.int64, 2, 11, 3)),
    "range downwards": (13, arange(np.int32, 5, -2, -2)),
    "size": (13, unary("Size", data(2, 3))),
    "size of a scalar": (13, unary("Size", np.float32(2))),
}  # fmt: skip


def sink(build: Build, opset: int, *, returned: bool = False) -> tuple[Any, Array | None]:
    """A model in which an operator of its own reads the expression, and what the expression is worth."""
    graph = Graph(opset=opset, domains={"com.acme": 1})
    graph.input("x", [1])
    name = build(graph)
    graph.node("Sink", ["x", name], "y", domain="com.acme")
    graph.output("y", None)
    reference = Graph(opset=opset)
    reference.output(build(reference), None)
    return graph.model(), evaluate(reference.model(), {})[reference.outputs[0].name]


@pytest.mark.parametrize("case", FOLDS)
def test_constant_expressions(case: str) -> None:
    opset, build = FOLDS[case]
    model, expected = sink(build, opset)
    result = compiled(model)
    assert operators(result.model) == ["Sink"]
    found = operand(result.model, the(result.model, "Sink"), 1)
    assert expected is not None
    assert found.shape == expected.shape
    if expected.dtype == np.float64:
        with np.errstate(over="ignore", invalid="ignore"):
            assert np.array_equal(wide(found), wide(expected.astype(found.dtype)), equal_nan=True)
    else:
        assert same_bits(found, expected)
    assert compiled(result.model).model == result.model


STAYS: dict[str, tuple[int, Build]] = {
    "int division by zero": (14, binary("Div", np.int32, [1, 2], [0, 1])),
    "int division overflows": (14, binary("Div", np.int32, [-(2**31)], [-1])),
    "cast of nan to int": (13, unary("Cast", np.asarray([np.nan], np.float32), to=6)),
    "cast out of range": (13, unary("Cast", np.asarray([3e9], np.float32), to=6)),
    "cast at the edge of the range": (13, unary("Cast", np.asarray([2.0**31], np.float32), to=6)),
    "cast of a negative to unsigned": (13, unary("Cast", np.asarray([-1.0], np.float32), to=2)),
    "cast to a narrower int": (13, unary("Cast", np.asarray([300], I64), to=2)),
    "cast to text": (13, unary("Cast", np.asarray([1.5], np.float32), to=8)),
    "cast to float8": (19, unary("Cast", np.asarray([1.5], np.float32), to=17)),
    "gather out of range": (13, with_ints("Gather", data(3), [3])),
    "reshape that does not fit": (13, with_ints("Reshape", data(2, 3), [4])),
    "random": (13, lambda g: g.node("RandomNormal", [], shape=[2])),
    "bernoulli": (15, unary("Bernoulli", np.asarray([0.5], np.float32))),
    "foreign operator": (13, unary("Fancy", data(3), domain="com.acme")),
    "power of a negative exponent": (13, binary("Pow", np.int32, [2, 3], [-1, 2])),
    "mod by zero": (13, binary("Mod", np.int32, [2, 3], [0, 2])),
    "abs of the least": (13, unary("Abs", np.asarray([-128], np.int8))),
    "max of nan": (13, binary("Max", np.float32, [np.nan, 1], [0, 2])),
    "range without end": (13, arange(np.int64, 0, 3, 0)),
    "limited broadcast": (6, lambda g: g.node("Pow", [of(F32, 2, 3)(g), of(F32, 2)(g)], broadcast=1, axis=0)),
    "dropout in training": (
        13, lambda g: g.node("Dropout", [g.initializer(data(3)), g.initializer(0.5), g.initializer(np.bool_(True))]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", STAYS)
def test_what_the_standard_leaves_to_the_runtime_stays(case: str) -> None:
    opset, build = STAYS[case]
    graph = Graph(opset=opset, domains={"com.acme": 1})
    graph.input("x", [1])
    graph.node("Sink", ["x", build(graph)], "y", domain="com.acme")
    graph.output("y", None)
    model = graph.model()
    assert compiled(model).model == model


def test_a_result_of_the_graph_is_left_alone() -> None:
    graph = Graph()
    graph.input("x", [2])
    graph.node("Add", [graph.initializer(graph.random(2)), graph.initializer(graph.random(2))], "y")
    graph.node("Relu", ["x"], "z")
    graph.output("y", [2])
    graph.output("z", [2])
    check_unchanged(graph.model())


def test_a_region_stops_at_a_result_of_the_graph() -> None:
    graph = Graph()
    graph.input("x", [2])
    graph.node("Add", [graph.initializer([1, 2]), graph.initializer([3, 4])], "c")
    graph.node("Max", ["x", graph.node("Sqrt", ["c"])], "y")
    graph.output("y", [2])
    graph.output("c", [2])
    result = check(graph.model())
    assert sorted(operators(result.model)) == ["Add", "Max"]


@pytest.mark.parametrize("known", ["static", "symbolic batch", "unknown"])
def test_the_shape_of_data(known: str) -> None:
    graph = Graph(opset=15)
    graph.input("x", {"static": [2, 3], "symbolic batch": ["N", 3], "unknown": None}[known])
    whole = graph.node("Shape", ["x"])
    part = graph.node("Shape", ["x"], start=1)
    graph.node("Sink", [whole, part], "y", domain="com.acme")
    graph.domains["com.acme"] = 1
    graph.output("y", None)
    left = {"static": 0, "symbolic batch": 1, "unknown": 2}[known]
    result = compiled(graph.model())
    assert operators(result.model) == ["Shape"] * left + ["Sink"]


# the size rule


def expand(elements: int) -> Any:
    """Expand of one number to that many."""
    graph = Graph()
    graph.input("x", [1])
    graph.node("Max", ["x", graph.node("Expand", [graph.initializer([1.5]), ints(graph, elements)])], "y")
    graph.output("y", [elements])
    return graph.model()


def test_a_result_of_64_kib_folds_and_one_above_stays() -> None:
    check(expand(1 << 14), ["Max"])
    check_unchanged(expand((1 << 14) + 1))


@pytest.mark.parametrize(("limit", "folds"), [(39, False), (40, True), (0, False)])
def test_the_limit_is_an_option(limit: int, folds: bool) -> None:
    result = compiled(expand(10), f"FoldConstant{{max_bytes={limit}}}")
    assert operators(result.model) == (["Max"] if folds else ["Expand", "Max"])


def test_growth_far_beyond_the_limit_is_not_even_computed() -> None:
    check_unchanged_fast = compiled(expand(1 << 40)).model
    assert operators(check_unchanged_fast) == ["Expand", "Max"]


def large(shared: bool, op: str = "Transpose") -> Any:
    """An operator on a constant of 160 kB, which something else reads too or not."""
    graph = Graph()
    graph.input("x", [200, 200])
    graph.initializer(graph.random(200, 200), "w")
    graph.node("Max", ["x", graph.node(op, ["w"])], "t" if shared else "y")
    if shared:
        graph.node("Min", ["t", "w"], "y")
    graph.output("y", [200, 200])
    return graph.model()


def test_a_large_result_folds_where_as_much_dies() -> None:
    check(large(shared=False), ["Max"])
    check_unchanged(large(shared=True))


def test_a_cast_that_doubles_a_large_constant_stays() -> None:
    graph = Graph()
    graph.input("x", [200, 200])
    graph.initializer(graph.random(200, 200).astype(np.float16), "w")
    graph.node("Max", ["x", graph.node("Cast", ["w"], to=1)], "y")
    graph.output("y", [200, 200])
    check_unchanged(graph.model())


def test_a_folded_weight_of_any_size_is_computed() -> None:
    graph = Graph()
    graph.input("x", [1, 300])
    weight, params = graph.random(300, 100), batch_norm(100)
    graph.node("Gemm", ["x", graph.initializer(weight, "w")], "h", "fc")
    graph.batch_norm("h", params, "y")
    graph.output("y", [1, 100])
    result = check(graph.model(), ["Gemm"])
    assert same_bits(operand(result.model, the(result.model, "Gemm"), 1), rounded(wide(weight) * params.scale, F32))
    assert the(result.model, "Gemm").input[1] == "w"


def test_dequantize_of_a_weight_stays() -> None:
    graph = Graph(opset=13)
    graph.input("x", [2, 3])
    graph.node("DequantizeLinear", [graph.initializer(np.ones((3, 4), np.int8)), graph.initializer(0.5)], "w")
    graph.node("MatMul", ["x", "w"], "y")
    graph.output("y", [2, 4])
    check_unchanged(graph.model())


def test_constants_of_a_body_fold_in_the_body() -> None:
    graph = Graph()
    graph.input("x", [2])
    graph.input("c", [], np.dtype(np.bool_))
    branches = []
    for i in range(2):
        nodes = [
            helper.make_node("Constant", [], [f"k{i}"], value_floats=[1.0, 2.0]),
            helper.make_node("Add", [f"k{i}", "outer"], [f"s{i}"]),
            helper.make_node("Max", ["x", f"s{i}"], [f"m{i}"]),
        ]
        info = helper.make_tensor_value_info(f"m{i}", 1, [2])
        branches.append(helper.make_graph(nodes, f"b{i}", [], [info]))
    graph.initializer([3, 4], "outer")
    graph.node("If", ["c"], "y", then_branch=branches[0], else_branch=branches[1])
    graph.output("y", [2])
    result = check(graph.model(), ["If"])
    for attribute in the(result.model, "If").attribute:
        assert [node.op_type for node in attribute.g.node if node.op_type != "Constant"] == ["Max"]
    assert not constants(result.model)


@pytest.mark.parametrize("opset", [13, NEWEST])
def test_small_integer_types_pass_through(opset: int) -> None:
    graph = Graph(opset=opset, domains={"com.acme": 1})
    graph.input("x", [1])
    array = np.asarray([1, 2, 3], ml_dtypes.int4 if opset > 20 else np.int8)
    graph.node("Sink", ["x", graph.node("Identity", [graph.initializer(array)])], "y", domain="com.acme")
    graph.output("y", None)
    result = compiled(graph.model())
    assert operators(result.model) == ["Sink"]


def test_text_passes_through() -> None:
    graph = Graph(domains={"com.acme": 1})
    graph.input("x", [1])
    graph.node("Constant", [], "s", value_strings=[b"a", b"b"])
    graph.node("Sink", ["x", graph.node("Identity", ["s"])], "y", domain="com.acme")
    graph.output("y", None)
    result = compiled(graph.model())
    assert "Sink" in operators(result.model)


def test_float64_constants_beside_narrower_data_are_rounded_once() -> None:
    """A shift that no layer takes: (x + a) + b is one Add of the rounded sum, beside narrower data."""
    graph = Graph()
    graph.input("x", [2, 3])
    a, b = np.float32(0.1), np.float32(0.7)
    graph.node("Add", [graph.node("Add", ["x", graph.initializer(a)]), graph.initializer(b)], "y")
    graph.output("y", [2, 3])
    result = check(graph.model(), ["Add"])
    assert operand(result.model, the(result.model, "Add"), 1) == np.float32(float(a) + float(b))
    assert operand(result.model, the(result.model, "Add"), 1).dtype == F32
    assert F64 != F32


# what a runtime computes


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of results of each session that FoldConstant asks for."""
    from irc.backends import runtime

    sessions: list[int] = []
    original = runtime.evaluate

    def spy(values: Any, feeds: Any, opset: int) -> Any:
        sessions.append(len(values))
        return original(values, feeds, opset)

    monkeypatch.setattr(runtime, "evaluate", spy)
    return sessions


def exotic(graph: Graph, count: int) -> list[str]:
    """Constant expressions of operators that the op table does not know, or only for other types."""
    made = []
    for i in range(count):
        number = graph.initializer(graph.positive(3))
        chain = [("Sigmoid", "Log"), ("Softplus", "Tanh"), ("Relu", "Erf")][i % 3]
        for op in chain:
            number = graph.node(op, [number])
        made.append(number)
    return made


def reads_all(graph: Graph, names: Sequence[str]) -> Any:
    """A model that adds up all of `names` and x."""
    graph.input("x", [3])
    graph.node("Max", ["x", *names], "y")
    graph.output("y", [3])
    return graph.model()


def test_foreign_operators_are_computed_in_one_session(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = counted(monkeypatch)
    graph = Graph()
    model = reads_all(graph, exotic(graph, 12))
    result = compiled(model)
    assert operators(result.model) == ["Max"]
    assert sessions == [12]
    inputs = {"x": np.full(3, -9, np.float32)}
    assert np.allclose(evaluate(model, inputs)["y"], evaluate(result.model, inputs)["y"], rtol=1e-6)


def test_no_session_where_nothing_is_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = counted(monkeypatch)
    graph = Graph()
    model = reads_all(graph, [graph.node("Sigmoid", ["x"])])
    assert compiled(model).model == model
    assert not sessions


def test_what_fails_does_not_take_the_others_along(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = counted(monkeypatch)
    graph = Graph()
    names = exotic(graph, 7)
    bad = graph.node("Gather", [graph.node("Sigmoid", [graph.initializer(graph.random(3))]), ints(graph, 5, 5, 5)])
    names.insert(3, graph.node("Exp", [graph.node("Einsum", [bad], equation="i->i")]))
    result = compiled(reads_all(graph, names))
    assert operators(result.model) == ["Gather", "Einsum", "Exp", "Max"]
    assert len(sessions) < 12


def test_the_table_and_the_runtime_take_turns() -> None:
    """int(sigmoid(c) * 4) is the table's, tanh of it the runtime's again."""
    graph = Graph()
    hidden = graph.node("Sigmoid", [graph.initializer([-9, 0, 9])])
    whole = graph.node("Cast", [graph.node("Mul", [hidden, graph.initializer(4.0)])], to=TensorProto.INT32)
    model = reads_all(graph, [graph.node("Tanh", [graph.node("Cast", [whole], to=TensorProto.FLOAT)])])
    result = compiled(model)
    assert operators(result.model) == ["Max"]
    expected = np.tanh(np.asarray([0, 2, 3], np.float32))
    assert np.allclose(operand(result.model, the(result.model, "Max"), 1), expected, rtol=1e-6)


def test_several_results_of_one_operator() -> None:
    graph = Graph()
    values, places = "v", "i"
    graph.node("TopK", [graph.initializer([3, 1, 2]), ints(graph, 2)], [values, places])
    graph.input("x", [2])
    graph.node("Max", ["x", values], "y")
    graph.node("Identity", [graph.node("Add", [places, graph.node("Cast", ["x"], to=7)])], "z")
    graph.output("y", [2])
    graph.output("z", [2], np.dtype(I64))
    result = check(graph.model())
    assert "TopK" not in operators(result.model)
    assert operand(result.model, the(result.model, "Max"), 1).tolist() == [3, 2]


def test_results_of_the_graph_and_of_unknown_type_are_left_to_the_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = counted(monkeypatch)
    graph = Graph()
    graph.input("x", [3])
    graph.node("Sigmoid", [graph.initializer([1, 2, 3])], "c")
    nonzero = graph.node("NonZero", [graph.initializer([1, 0, 3])])
    graph.node("Add", ["x", graph.node("Cast", [graph.node("ReduceMax", [nonzero], keepdims=0)], to=1)], "y")
    graph.output("y", [3])
    graph.output("c", [3])
    model = graph.model()
    result = compiled(model)
    assert sorted(operators(result.model)) == sorted(operators(model))
    assert not sessions or max(sessions) <= 1


def test_the_size_rule_holds_before_anything_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = counted(monkeypatch)
    graph = Graph()
    graph.input("x", [300, 300])
    wide = graph.node("EyeLike", [graph.node("Expand", [graph.initializer([1.0]), ints(graph, 300, 300)])])
    graph.node("Max", ["x", wide], "y")
    graph.output("y", [300, 300])
    model = graph.model()
    assert compiled(model).model == model
    assert not sessions


def test_an_operator_of_a_model_function_is_no_standard_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = counted(monkeypatch)
    graph = Graph(domains={"com.acme": 1})
    body = [helper.make_node("RandomUniformLike", ["a"], ["b"])]
    imports = [helper.make_opsetid("", 21)]
    graph.functions.append(helper.make_function("com.acme", "Sigmoid", ["a"], ["b"], body, imports))
    model = reads_all(graph, [graph.node("Sigmoid", [graph.initializer([1, 2, 3])], domain="com.acme")])
    assert compiled(model).model == model
    assert not sessions


def test_grouped_transposed_convolutions_and_batch_normalization_are_right() -> None:
    """onnx.reference is wrong on both, which is why it is not used."""
    graph = Graph()
    weight = graph.initializer(graph.random(4, 1, 2, 2))
    hidden = graph.node("ConvTranspose", [graph.initializer(graph.random(1, 4, 2, 2)), weight], group=2)
    params = batch_norm(2)
    graph.batch_norm(hidden, params, "c")
    graph.input("x", [1, 2, 3, 3])
    graph.node("Max", ["x", "c"], "y")
    graph.output("y", [1, 2, 3, 3])
    model = graph.model()
    result = compiled(model)
    assert operators(result.model) == ["Max"]
    inputs = {"x": np.full((1, 2, 3, 3), -99, np.float32)}
    assert np.allclose(evaluate(model, inputs)["y"], evaluate(result.model, inputs)["y"], rtol=1e-5, atol=1e-6)


def test_an_affine_whose_shape_alone_is_read_by_a_constant_expression_is_kept() -> None:
    graph = Graph()
    graph.input("x", [2, 3, 4, 4])
    graph.batch_norm(graph.node("Sigmoid", ["x"]), batch_norm(3), "t", "bn")
    length = graph.node("Gather", [graph.node("Shape", ["t"]), graph.initializer(np.array(1, np.int64))])
    graph.node("Add", [length, graph.initializer(np.array(1, np.int64))], "n")
    graph.node("Sigmoid", ["t"], "y")
    graph.node("Unsqueeze", ["n", graph.initializer(np.array([0], np.int64))], "s")
    graph.node("Expand", [graph.initializer(np.float32([1])), "s"], "z")
    graph.output("y")
    graph.output("z")
    result = compiled(graph.model())
    (source,) = [source for source in result.fold_map.sources if source["kind"] == "batch_norm"]
    assert source["status"] == "kept"
