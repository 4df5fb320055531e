"""The rules of SimplifyExpr, each with cases in which it fires and neighbours in which it must not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from graphs import (
    BF16,
    F16,
    F32,
    F64,
    Graph,
    batch_norm,
    check,
    check_unchanged,
    compiled,
    operand,
    operators,
    rounded,
    the,
    wide,
)
from onnx import helper

Build = Callable[[Graph], None]
PASS = "SimplifyExpr,FoldConstant"


def on(shape: list[Any] | None, build: Callable[[Graph, str], str], **options: Any) -> Callable[[], Any]:
    """A model: Relu of x, what `build` makes of it, Sigmoid of that, so that neither interface is involved."""

    def make() -> Any:
        graph = Graph(**options)
        graph.input("x", shape)
        graph.node("Sigmoid", [build(graph, graph.node("Abs", ["x"]))], "y")
        graph.output("y", None if shape is None else ["a", "b", "c", "d", "e"][: len(shape)])
        model = graph.model()
        if shape is not None:
            graph.outputs.clear()
            graph.output("y")
            model = graph.model()
        return model

    return make


def const(graph: Graph, items: Any, *shape: int) -> str:
    """A constant of the graph's dtype."""
    array = np.asarray(items).astype(graph.dtype)
    return graph.initializer(array.reshape(shape) if shape or array.ndim == 0 else array)


# neutral elements

NEUTRAL: dict[str, tuple[Callable[[], Any], bool]] = {
    "x * 1": (on([2, 3], lambda g, x: g.node("Mul", [x, const(g, 1)])), True),
    "1 * x": (on([2, 3], lambda g, x: g.node("Mul", [const(g, 1), x])), True),
    "x * ones[C]": (on([2, 3], lambda g, x: g.node("Mul", [x, const(g, [1, 1, 1])])), True),
    "x * ones[1,1]": (on([2, 3], lambda g, x: g.node("Mul", [x, const(g, 1, 1, 1)])), True),
    "x / 1": (on([2, 3], lambda g, x: g.node("Div", [x, const(g, 1)])), True),
    "x + 0": (on([2, 3], lambda g, x: g.node("Add", [x, const(g, 0)])), True),
    "x + -0.0": (on([2, 3], lambda g, x: g.node("Add", [x, const(g, -0.0)])), True),
    "0 + x": (on([2, 3], lambda g, x: g.node("Add", [const(g, 0), x])), True),
    "x - 0": (on([2, 3], lambda g, x: g.node("Sub", [x, const(g, 0)])), True),
    "x * 1, f16": (on([2, 3], lambda g, x: g.node("Mul", [x, const(g, 1)]), dtype=F16), True),
    "x * 1, bf16": (on([2, 3], lambda g, x: g.node("Mul", [x, const(g, 1)]), dtype=BF16, opset=22), True),
    "x * 1, f64": (on([2, 3], lambda g, x: g.node("Mul", [x, const(g, 1)]), dtype=F64), True),
    "x * 1, symbolic": (on(["N", 3], lambda g, x: g.node("Mul", [x, const(g, 1)])), True),
    "1 / x": (on([2, 3], lambda g, x: g.node("Div", [const(g, 1), x])), False),
    "0 - x": (on([2, 3], lambda g, x: g.node("Sub", [const(g, 0), x])), False),
    "x * 0": (on([2, 3], lambda g, x: g.node("Mul", [x, const(g, 0)])), False),
    "x * nearly 1": (on([2, 3], lambda g, x: g.node("Mul", [x, const(g, 1 + 2**-23)])), False),
    "x + smallest": (on([2, 3], lambda g, x: g.node("Add", [x, const(g, 1e-45)])), False),
    "x * ones that raise the rank": (on([2, 3], lambda g, x: g.node("Mul", [x, const(g, 1, 1, 1, 1)])), False),
    "x + zeros that stretch": (on([2, 1], lambda g, x: g.node("Add", [x, const(g, [0, 0, 0])])), False),
    "x + zeros that may stretch": (on([2, "M"], lambda g, x: g.node("Add", [x, const(g, [0, 0, 0])])), False),
    "x + zeros of unknown rank": (on(None, lambda g, x: g.node("Add", [x, const(g, [0, 0, 0])])), False),
    "x - x": (on([2, 3], lambda g, x: g.node("Sub", [x, x])), False),
    "x / x": (on([2, 3], lambda g, x: g.node("Div", [x, x])), False),
}


@pytest.mark.parametrize("case", NEUTRAL)
def test_neutral_elements(case: str) -> None:
    make, fires = NEUTRAL[case]
    model = make()
    result = compiled(model, PASS)
    if fires:
        assert operators(check(model, passes=PASS).model) == ["Abs", "Sigmoid"]
    else:
        assert result.model == model


def test_a_neutral_affine_of_an_input_that_is_returned_stays() -> None:
    graph = Graph()
    graph.input("x", [2, 3])
    graph.node("Mul", ["x", graph.initializer(1.0)], "y")
    graph.output("y", [2, 3])
    check_unchanged(graph.model())


def test_integers() -> None:
    """x + 0 on integers is not a floating affine; whatever is done, the numbers stay."""
    graph = Graph(dtype=np.dtype(np.int32))
    graph.input("x", [2, 3])
    one, zero = (graph.initializer(np.int32(i)) for i in (1, 0))
    graph.node("Add", [graph.node("Mul", [graph.node("Abs", ["x"]), one]), zero], "t")
    graph.node("Abs", ["t"], "y")
    graph.output("y", [2, 3])
    check(graph.model())


# Identity and Cast

PLAIN: dict[str, tuple[Callable[[], Any], int]] = {
    "identity": (on([2, 3], lambda g, x: g.node("Identity", [x])), 2),
    "identity of identity": (on([2, 3], lambda g, x: g.node("Identity", [g.node("Identity", [x])])), 2),
    "cast to the same": (on([2, 3], lambda g, x: g.node("Cast", [x], to=1)), 2),
    "cast to the same, unknown rank": (on(None, lambda g, x: g.node("Cast", [x], to=1)), 2),
    "cast to another": (on([2, 3], lambda g, x: g.node("Cast", [x], to=11)), 3),
    "cast there and back": (on([2, 3], lambda g, x: g.node("Cast", [g.node("Cast", [x], to=10)], to=1)), 4),
}


@pytest.mark.parametrize("case", PLAIN)
def test_identity_and_cast(case: str) -> None:
    make, left = PLAIN[case]
    model = make()
    result = compiled(model, PASS)
    assert len(operators(result.model)) == left
    if left > 2:
        assert result.model == model


@pytest.mark.parametrize("op", ["Identity", "Cast", "Mul", "Transpose"])
def test_what_links_an_input_to_an_output_stays(op: str) -> None:
    graph = Graph()
    graph.input("x", [2, 3])
    extra = [graph.initializer(1.0)] if op == "Mul" else []
    attrs: dict[str, Any] = {"Cast": {"to": 1}, "Transpose": {"perm": [0, 1]}}.get(op, {})
    graph.node(op, ["x", *extra], "y", **attrs)
    graph.output("y", [2, 3])
    check_unchanged(graph.model())


def test_a_cast_behind_a_reshape_whose_target_is_computed() -> None:
    """The type of the cast's result is known from its attribute, whatever is known of the shape."""
    graph = Graph(opset=13)
    graph.input("x", [2, 3])
    reshaped = graph.node("Reshape", ["x", graph.node("Shape", ["x"])])
    graph.node("Relu", [graph.node("Cast", [reshaped], to=1)], "y")
    graph.output("y", [2, 3])
    check(graph.model(), ["Relu"])


def test_two_outputs_of_one_value() -> None:
    graph = Graph()
    graph.input("x", [2, 3])
    graph.node("Relu", ["x"], "r")
    for name in ("y", "z"):
        graph.node("Identity", ["r"], name)
        graph.output(name, [2, 3])
    result = check(graph.model())
    assert sorted(operators(result.model)) == ["Identity", "Relu"]


def test_a_value_and_its_identity_returned() -> None:
    graph = Graph()
    graph.input("x", [2, 3])
    graph.node("Relu", ["x"], "r")
    graph.node("Identity", ["r"], "y")
    graph.output("r", [2, 3])
    graph.output("y", [2, 3])
    check_unchanged(graph.model())


def test_identity_in_front_of_an_output_gives_its_name_away() -> None:
    graph = Graph()
    graph.input("x", [2, 3])
    graph.node("Relu", ["x"], "r", "relu")
    graph.node("Identity", ["r"], "y")
    graph.node("Sigmoid", ["r"], "z")
    graph.output("y", [2, 3])
    graph.output("z", [2, 3])
    result = check(graph.model(), ["Relu", "Sigmoid"])
    assert the(result.model, "Relu").output == ["y"]
    assert the(result.model, "Sigmoid").input == ["y"]


def test_identity_that_bodies_read() -> None:
    graph = Graph()
    graph.input("x", [2, 3])
    graph.input("c", [], np.dtype(np.bool_))
    graph.node("Relu", ["x"], "r")
    graph.node("Identity", ["r"], "i")
    branches = []
    for i, op in enumerate(("Neg", "Identity")):
        node = helper.make_node(op, ["i"], [f"b{i}"])
        branches.append(helper.make_graph([node], f"g{i}", [], [helper.make_tensor_value_info(f"b{i}", 1, [2, 3])]))
    graph.node("If", ["c"], "y", then_branch=branches[0], else_branch=branches[1])
    graph.output("y", [2, 3])
    check(graph.model(), ["Relu", "If"])


# Transpose

TRANSPOSES: dict[str, tuple[Callable[[], Any], int]] = {
    "cancels": (
        on([2, 3, 4], lambda g, x: g.node("Transpose", [g.node("Transpose", [x], perm=[2, 0, 1])], perm=[1, 2, 0])), 2,
    ),
    "composes": (
        on([2, 3, 4], lambda g, x: g.node("Transpose", [g.node("Transpose", [x], perm=[2, 0, 1])], perm=[0, 2, 1])), 3,
    ),
    "identity": (on([2, 3, 4], lambda g, x: g.node("Transpose", [x], perm=[0, 1, 2])), 2),
    "square does not matter": (on([2, 2], lambda g, x: g.node("Transpose", [x], perm=[1, 0])), 3),
    "three": (
        on([2, 3, 4], lambda g, x: g.node("Transpose", [g.node("Transpose", [g.node("Transpose", [x], perm=[1, 2, 0])],
                                                               perm=[1, 2, 0])], perm=[1, 2, 0])), 2,
    ),
    "cancels, unknown rank": (
        on(None, lambda g, x: g.node("Transpose", [g.node("Transpose", [x], perm=[1, 0])], perm=[1, 0])), 2,
    ),
    "cancels, reversal by default": (on([2, 3], lambda g, x: g.node("Transpose", [g.node("Transpose", [x])])), 2),
}  # fmt: skip


@pytest.mark.parametrize("case", TRANSPOSES)
def test_transposes(case: str) -> None:
    make, left = TRANSPOSES[case]
    model = make()
    result = compiled(model, PASS)
    assert len(operators(result.model)) == left
    if "unknown" not in case:
        check(model, passes=PASS)


def test_an_inner_transpose_with_another_reader_stays() -> None:
    graph = Graph()
    graph.input("x", [2, 3, 4])
    graph.node("Transpose", ["x"], "t", perm=[2, 0, 1])
    graph.node("Transpose", ["t"], "y", perm=[0, 2, 1])
    graph.node("Relu", ["t"], "z")
    graph.output("y", [4, 3, 2])
    graph.output("z", [4, 2, 3])
    check_unchanged(graph.model())


def test_transposes_around_a_layer_do_not_confuse_channels() -> None:
    """NHWC around an NCHW Conv: the affine on the last axis is not behind the Conv, and stays right."""
    graph = Graph()
    graph.input("x", [2, 4, 4, 4])
    inner = graph.node("Transpose", ["x"], perm=[0, 3, 1, 2])
    hidden = graph.node("Conv", [inner, graph.initializer(graph.random(4, 4, 1, 1))], name="conv")
    outer = graph.node("Transpose", [hidden], perm=[0, 2, 3, 1])
    graph.node("Mul", [outer, graph.initializer(graph.random(4))], "y")
    graph.output("y", [2, 4, 4, 4])
    check(graph.model())


# affines in a row


def pair(first: tuple[str, Any], second: tuple[str, Any], **options: Any) -> Callable[[], Any]:
    """Two affines in a row, behind something that absorbs nothing."""

    def build(graph: Graph, x: str) -> str:
        for op, items in (first, second):
            constant = const(graph, items)
            x = graph.node(op.removeprefix("r"), [constant, x] if op.startswith("r") else [x, constant])
        return x

    return on([2, 3], build, **options)


MERGES: dict[str, tuple[Callable[[], Any], bool]] = {
    "add, add": (pair(("Add", [1, 2, 3]), ("Add", [0.5, 1, 7])), True),
    "add, sub": (pair(("Add", [1, 2, 3]), ("Sub", [0.5, 1, 7])), True),
    "left add, add": (pair(("rAdd", [1, 2, 3]), ("Add", 4)), True),
    "sub, sub": (pair(("Sub", 3), ("Sub", [1, 2, 3])), True),
    "mul, mul": (pair(("Mul", [1, 2, 3]), ("Mul", [2, 0.5, 4])), True),
    "mul, div": (pair(("Mul", [1, 2, 3]), ("Div", [2, 0.5, 4])), True),
    "div, mul, scalars": (pair(("Div", 3), ("Mul", 7)), True),
    "mul by zero, mul": (pair(("Mul", [0, 2, 3]), ("Mul", [2, 0.5, 4])), True),
    "f16": (pair(("Mul", [1, 2, 3]), ("Mul", [2, 0.5, 4]), dtype=F16), True),
    "f64": (pair(("Add", [1, 2, 3]), ("Add", [2, 0.5, 4]), dtype=F64), True),
    "add, mul": (pair(("Add", [1, 2, 3]), ("Mul", [2, 0.5, 4])), False),
    "mul, add": (pair(("Mul", [1, 2, 3]), ("Add", [2, 0.5, 4])), False),
    "shifts that cancel": (pair(("Add", 1000), ("Add", -1000.01)), False),
    "one channel cancels": (pair(("Add", [1, 1000, 3]), ("Sub", [0.5, 1000.01, 7])), False),
    "scales overflow": (pair(("Mul", 1e30), ("Mul", 1e30)), False),
    "scales overflow f16": (pair(("Mul", 1000), ("Mul", 1000), dtype=F16), False),
    "scales underflow": (pair(("Mul", 1e-30), ("Mul", 1e-30)), False),
    "shifts overflow": (pair(("Add", 3e38), ("Add", 3e38)), False),
    "shift is nan": (pair(("Add", np.nan), ("Add", 1)), False),
    "div by zero": (pair(("Mul", 2), ("Div", [1, 0, 2])), False),
    "c - (x + a)": (pair(("Add", [1, 2, 3]), ("rSub", [1, 2, 3])), False),
    "c / (x * a)": (pair(("Mul", [1, 2, 3]), ("rDiv", [1, 2, 3])), False),
    "integers divide": (pair(("Div", 3), ("Mul", 3), dtype=np.dtype(np.int32)), False),
}


@pytest.mark.parametrize("case", MERGES)
def test_affines_in_a_row(case: str) -> None:
    make, merges = MERGES[case]
    model = make()
    result = compiled(model, PASS)
    if merges:
        assert len(operators(result.model)) == 3
        check(model, passes=PASS)
    else:
        assert result.model == model


def test_a_pair_on_different_axes_becomes_one_constant_as_long_as_it_is_small() -> None:
    for extent, left in ((3, 3), (200, 4)):
        model = on(
            [2, extent, extent],
            lambda g, x, n=extent: g.node("Mul", [g.node("Mul", [x, const(g, g.random(n))]), const(g, g.random(n, 1))]),  # type: ignore[misc]
        )()
        assert len(operators(check(model, passes=PASS).model)) == left


def test_a_pair_whose_first_is_read_elsewhere_stays() -> None:
    graph = Graph()
    graph.input("x", [2, 3])
    graph.node("Add", ["x", graph.initializer([1, 2, 3])], "t")
    graph.node("Add", ["t", graph.initializer([1, 2, 3])], "y")
    graph.output("y", [2, 3])
    graph.output("t", [2, 3])
    check_unchanged(graph.model())


def test_many_shifts_become_one() -> None:
    """In float64, rounded once."""
    graph = Graph()
    graph.input("x", [2, 3])
    total, hidden = 0.0, "x"
    for i in range(20):
        number = np.float32(0.1 * (i + 1))
        hidden = graph.node("Add", [hidden, graph.initializer(number)], "y" if i == 19 else "")
        total += float(number)
    graph.output("y", [2, 3])
    result = check(graph.model(), ["Add"])
    assert operand(result.model, the(result.model, "Add"), 1) == rounded(np.asarray(total), F32)


def test_scalars_beside_data_of_unknown_shape_are_one() -> None:
    graph = Graph(domains={"opaque": 1})
    value = graph.node("Hide", [graph.input("x", [2, 3])], domain="opaque")
    value = graph.node("Mul", [value, graph.initializer(2.0)])
    value = graph.node("Mul", [value, graph.initializer(4.0)])
    graph.node("Mul", [value, graph.initializer(8.0)], "y")
    graph.output("y", [2, 3])
    assert operators(compiled(graph.model(), PASS).model) == ["Hide", "Mul", "Mul"]


def test_a_pair_across_a_body_stays() -> None:
    graph = Graph()
    graph.input("x", [2, 3])
    graph.input("c", [], np.dtype(np.bool_))
    graph.node("Add", ["x", graph.initializer([1, 2, 3], "k")], "t")
    branches = []
    for i, op in enumerate(("Add", "Sub")):
        node = helper.make_node(op, ["t", "k"], [f"b{i}"])
        branches.append(helper.make_graph([node], f"g{i}", [], [helper.make_tensor_value_info(f"b{i}", 1, [2, 3])]))
    graph.node("If", ["c"], "y", then_branch=branches[0], else_branch=branches[1])
    graph.output("y", [2, 3])
    check_unchanged(graph.model())


def test_an_add_behind_a_batch_normalization_that_stays_goes_into_it() -> None:
    graph = Graph()
    graph.input("x", [2, 3])
    graph.batch_norm(graph.node("Relu", ["x"]), batch_norm(3), "t", "bn")
    graph.node("Add", ["t", graph.initializer([1, 2, 3])], "y")
    graph.output("y", [2, 3])
    result = check(graph.model())
    assert operators(result.model) == ["Relu", "BatchNormalization"]


# MatMul and Add


def dense(
    x: list[Any] | None, w: list[int], b: Any, *, left: bool = False, dtype: np.dtype[Any] = F32, opset: int = 21
) -> Callable[[], Any]:
    """MatMul and Add; `b` is a shape, or the name of an input of shape [4]."""

    def build(graph: Graph, data: str) -> str:
        hidden = graph.node("MatMul", [data, graph.initializer(graph.random(*w))], name="mm")
        bias = graph.input(b, [4]) if isinstance(b, str) else graph.initializer(graph.random(*b))
        return graph.node("Add", [bias, hidden] if left else [hidden, bias], name="add")

    return on(x, build, dtype=dtype, opset=opset)


DENSE: dict[str, tuple[Callable[[], Any], bool]] = {
    "[N]": (dense([2, 3], [3, 4], [4]), True),
    "[N], left": (dense([2, 3], [3, 4], [4], left=True), True),
    "[1,N]": (dense([2, 3], [3, 4], [1, 4]), True),
    "symbolic batch": (dense(["M", 3], [3, 4], [4]), True),
    "f64": (dense([2, 3], [3, 4], [4], dtype=F64), True),
    "f16": (dense([2, 3], [3, 4], [4], dtype=F16), True),
    "square": (dense([4, 4], [4, 4], [4]), True),
    "opset 7": (dense([2, 3], [3, 4], [4], opset=7), True),
    "rank 3": (dense([2, 5, 3], [3, 4], [4]), False),
    "rank 3 weight": (dense([2, 3], [5, 3, 4], [4]), False),
    "unknown rank": (dense(None, [3, 4], [4]), False),
    "[M,1]": (dense([4, 3], [3, 4], [4, 1]), False),
    "[M,N]": (dense([2, 3], [3, 4], [2, 4]), False),
    "raises the rank": (dense([2, 3], [3, 4], [1, 1, 4]), False),
    "stretches": (dense([2, 3], [3, 1], [4]), False),
    "vector": (dense([2, 3], [3], [2]), False),
    "integers": (dense([2, 3], [3, 4], [4], dtype=np.dtype(np.int32)), False),
}


@pytest.mark.parametrize("case", DENSE)
def test_matmul_and_add(case: str) -> None:
    make, fires = DENSE[case]
    model = make()
    result = compiled(model, PASS)
    if fires:
        check(model, ["Abs", "Gemm", "Sigmoid"], passes=PASS)
        assert the(result.model, "Gemm").name == "mm"
    else:
        assert result.model == model


def test_a_bias_computed_at_run_time() -> None:
    model = dense([2, 3], [3, 4], "b")()
    assert compiled(model, PASS).model == model


def test_a_matmul_with_another_reader() -> None:
    graph = Graph()
    graph.input("x", [2, 3])
    graph.node("MatMul", ["x", graph.initializer(graph.random(3, 4))], "h")
    graph.node("Add", ["h", graph.initializer(graph.random(4))], "y")
    graph.node("Relu", ["h"], "z")
    graph.output("y", [2, 4])
    graph.output("z", [2, 4])
    check_unchanged(graph.model())


def test_the_bias_of_the_conv_and_the_shift_are_one_add() -> None:
    """Conv(b) + shift: the sum goes into the bias in float64."""
    graph = Graph()
    graph.input("x", [2, 3, 4, 4])
    bias, shift = graph.random(4), graph.random(4, 1, 1)
    graph.node("Conv", ["x", graph.initializer(graph.random(4, 3, 1, 1)), graph.initializer(bias)], "h", "conv")
    graph.node("Add", ["h", graph.initializer(shift)], "y")
    graph.output("y", [2, 4, 4, 4])
    result = check(graph.model(), ["Conv"])
    expected = rounded(wide(bias) + wide(shift).ravel(), F32)
    assert (operand(result.model, the(result.model, "Conv"), 2) == expected).all()
