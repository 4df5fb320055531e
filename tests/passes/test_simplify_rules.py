"""The rewrites of SimplifyExpr beyond affines: each fires, and refuses where a condition of its row fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from float64 import evaluate
from graphs import F16, F32, F64, Array, Graph, all_nodes, attribute, batch_norm, check, compiled, operators, the
from onnx import TensorProto, helper

PASS = "SimplifyExpr,FoldConstant"
I32, I64, BOOL = np.dtype(np.int32), np.dtype(np.int64), np.dtype(np.bool_)
Build = Callable[[Graph, str], str]
T = TensorProto


def ints(graph: Graph, *items: int) -> str:
    """An int64 vector."""
    return graph.initializer(np.asarray(items, I64))


def between(
    build: Build, shape: Sequence[Any] | None = (2, 3, 4), dtype: Any = F32, out: Any = None, **options: Any
) -> Any:
    """What `build` makes of x, between two operators that nothing is merged with: the interface is not involved.

    The type of the result is left open but for its element type.
    """
    graph = Graph(dtype=np.dtype(dtype), **options)
    graph.input("x", shape)
    ends = [end_of(kind) for kind in (dtype, out or dtype)]
    graph.node(ends[1], [build(graph, graph.node(ends[0], ["x"]))], "y")
    graph.output("y", None, np.dtype(out or dtype))
    return graph.model()


def end_of(dtype: Any) -> str:
    """An operator that tells numbers of both signs apart."""
    return "LeakyRelu" if np.dtype(dtype).kind == "f" else "Neg"


def left(model: Any) -> list[str]:
    """The operators that stand between the ends after the pass; the numbers are the same for every size that fits."""
    result = compiled(model, PASS).model
    again = compiled(result, PASS).model
    assert again == result, "a second run finds something"
    fitting = 0
    for size in (1, 2, 3, 5):
        for seed in (0, 1):
            arrays = {info.name: sample(info, size, seed) for info in model.graph.input}
            try:
                expected = evaluate(model, arrays)
            except ValueError:
                continue
            found = evaluate(result, arrays)
            fitting += 1
            for name, want in expected.items():
                assert found[name].shape == want.shape, name
                assert found[name].dtype == want.dtype, name
                assert np.allclose(found[name], want, rtol=1e-6, atol=1e-7, equal_nan=True), name
    assert fitting
    inner = operators(result)
    for end in (operators(model)[0], operators(model)[-1]):
        if end in inner:  # what a constant is left of is no end
            inner.remove(end)
    return inner


def sample(info: Any, size: int, seed: int) -> Array:
    """Numbers for an input whose open extents are `size`."""
    tensor = info.type.tensor_type
    dims = (
        [dim.dim_value if dim.HasField("dim_value") else size for dim in tensor.shape.dim]
        if tensor.HasField("shape")
        else [size, 3]
    )
    numbers = np.random.default_rng(seed).standard_normal(dims) * 3
    return np.asarray(numbers).astype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))


Cases = dict[str, tuple[Any, list[str]]]


def table(cases: Cases) -> Any:
    """A test over the rows of a table: a model, and what is left of it."""
    return pytest.mark.parametrize("case", [pytest.param(row, id=name) for name, row in cases.items()])


# neutral elements and constants in a row


def op(name: str, *operands: Any, left_: bool = False, **attrs: Any) -> Build:
    """An operator on x and constants of the graph's dtype; arrays keep theirs."""

    def build(graph: Graph, x: str) -> str:
        names = [
            graph.initializer(c if isinstance(c, np.ndarray) else np.asarray(c).astype(graph.dtype)) for c in operands
        ]
        return graph.node(name, [*names, x] if left_ else [x, *names], **attrs)

    return build


def chain(*builds: Build) -> Build:
    """One after the other."""

    def build(graph: Graph, x: str) -> str:
        for step in builds:
            x = step(graph, x)
        return x

    return build


full = np.arange(24, dtype=np.float32).reshape(2, 3, 4) + 1

NEUTRAL: Cases = {
    "x ** 1": (between(op("Pow", 1)), []),
    "x ** ones": (between(op("Pow", [1, 1, 1, 1])), []),
    "x ** 1, integer exponent": (between(op("Pow", np.asarray(1, I64))), []),
    "x ** 2": (between(op("Pow", 2)), ["Pow"]),
    "1 ** x": (between(op("Pow", 1, left_=True)), ["Pow"]),
    "x ** 1 that raises the rank": (between(op("Pow", np.ones((1, 1, 1, 1), F32))), ["Pow"]),
    "int x * 1": (between(op("Mul", 1), dtype=I32), []),
    "int x + 0": (between(op("Add", 0), dtype=I64), []),
    "int 0 + x": (between(op("Add", 0, left_=True), dtype=I64), []),
    "int x - 0": (between(op("Sub", [0, 0, 0, 0]), dtype=I32), []),
    "int x / 1": (between(op("Div", 1), dtype=I32), []),
    "int 0 - x": (between(op("Sub", 0, left_=True), dtype=I32), ["Sub"]),
    "int 1 / x": (between(op("Sub", 1, left_=True), dtype=I32), ["Sub"]),
    "int x + zeros that stretch": (between(op("Add", [0, 0]), (2, 1), dtype=I32), ["Add"]),
    "int x * 0": (between(op("Mul", 0), dtype=I32), []),
    "int x - x": (between(lambda g, x: g.node("Sub", [x, x]), dtype=I64), []),
    "int x * 0, symbolic": (between(op("Mul", 0), ("N", 3), dtype=I32), ["Mul"]),
    "x * 0": (between(op("Mul", 0)), ["Mul"]),
    "x - x": (between(lambda g, x: g.node("Sub", [x, x])), ["Sub"]),
    "x + zeros along two axes": (between(op("Add", np.zeros((3, 4), F32))), []),
    "(x + A) + B": (between(chain(op("Add", full), op("Add", full[0]))), ["Add"]),
    "(x * A) / B": (between(chain(op("Mul", full), op("Div", full[0]))), ["Mul"]),
    "(x - A) + b": (between(chain(op("Sub", full), op("Add", 50))), ["Add"]),
    "int (x + a) - b": (between(chain(op("Add", [1, 2, 3, 4]), op("Sub", 7)), dtype=I32), ["Add"]),
    "int (x * a) * b wraps": (between(chain(op("Mul", 65537), op("Mul", 65537)), dtype=I32), ["Mul"]),
    "int (x / a) / b": (between(chain(op("Div", 2), op("Div", 3)), dtype=I32), ["Div", "Div"]),
    "int (x * a) / b": (between(chain(op("Mul", 4), op("Div", 2)), dtype=I32), ["Mul", "Div"]),
    "int a - (x + b)": (between(chain(op("Add", 4), op("Sub", 2, left_=True)), dtype=I32), ["Add", "Sub"]),
    "int (x + a) * b": (between(chain(op("Add", 4), op("Mul", 2)), dtype=I32), ["Add", "Mul"]),
    "(x + A) + B that cancel": (between(chain(op("Add", full * 1e4), op("Sub", full * 1e4 + 0.01))), ["Add", "Sub"]),
    "(x * A) * B that overflow": (between(chain(op("Mul", full * 1e30), op("Mul", full * 1e30))), ["Mul", "Mul"]),
}  # fmt: skip


@table(NEUTRAL)
def test_neutral_elements_and_constants_in_a_row(case: Any) -> None:
    model, expected = case
    assert left(model) == expected


# casts


def casts(*targets: int) -> Build:
    """Casts in a row."""
    return chain(*[op("Cast", to=to) for to in targets])


CASTS: Cases = {
    "f32, f64, f32": (between(casts(T.DOUBLE, T.FLOAT)), []),
    "f16, f32, f64": (between(casts(T.FLOAT, T.DOUBLE), dtype=F16, out=F64), ["Cast"]),
    "i32, i64, f64": (between(casts(T.INT64, T.DOUBLE), dtype=I32, out=F64), ["Cast"]),
    "i8, f16, f32": (between(casts(T.FLOAT16, T.FLOAT), dtype=np.int8, out=F32), ["Cast"]),
    "i32, f64, i32": (between(casts(T.DOUBLE, T.INT32), dtype=I32), []),
    "like": (
        between(lambda g, x: g.node("CastLike", [g.node("Cast", [x], to=T.DOUBLE), g.initializer(np.float32(1))])), [],
    ),
    "f32, f16, f32": (between(casts(T.FLOAT16, T.FLOAT)), ["Cast", "Cast"]),
    "i32, f32, i32": (between(casts(T.FLOAT, T.INT32), dtype=I32), ["Cast", "Cast"]),
    "i64, f64, i64": (between(casts(T.DOUBLE, T.INT64), dtype=I64), ["Cast", "Cast"]),
    "i32, u32, i64": (between(casts(T.UINT32, T.INT64), dtype=I32, out=I64), ["Cast", "Cast"]),
    "f32, i32, f32": (between(casts(T.INT32, T.FLOAT)), ["Cast", "Cast"]),
    "f32, bool, f32": (between(casts(T.BOOL, T.FLOAT)), ["Cast", "Cast"]),
}  # fmt: skip


@table(CASTS)
def test_casts_in_a_row(case: Any) -> None:
    model, expected = case
    assert left(model) == expected


# bounds


def clip(low: float | None, high: float | None) -> Build:
    """Clip with bounds as inputs."""

    def build(graph: Graph, x: str) -> str:
        names = ["" if bound is None else graph.initializer(np.asarray(bound, graph.dtype)) for bound in (low, high)]
        return graph.node("Clip", [x, *names] if names[1] else [x, names[0]] if names[0] else [x])

    return build


relu = op("Relu")
BOUNDS: Cases = {
    "relu, relu": (between(chain(relu, relu)), ["Relu"]),
    "clip, clip": (between(chain(clip(-2, 5), clip(-1, 6))), ["Clip"]),
    "clip, clip below": (between(chain(clip(1, 2), clip(-6, -5))), ["Clip"]),
    "clip, clip, one bound each": (between(chain(clip(-1, None), clip(None, 2))), ["Clip"]),
    "relu, clip": (between(chain(relu, clip(-3, 6))), ["Clip"]),
    "relu, clip from above": (between(chain(relu, clip(None, 2))), ["Clip"]),
    "clip, relu": (between(chain(clip(-1, 2), relu)), ["Clip"]),
    "relu6, relu": (between(chain(clip(0, 6), relu)), ["Clip"]),
    "clip without bounds, relu": (between(chain(clip(None, None), relu)), ["Clip"]),
    "integers": (between(chain(clip(-2, 5), clip(-1, 6)), dtype=I32), ["Clip"]),
    "opset 6": (between(chain(op("Clip", min=-1.0, max=4.0), op("Relu")), opset=6), ["Clip"]),
    "the wrong way round": (between(chain(clip(3, 1), clip(-6, 6))), ["Clip", "Clip"]),
    "nan": (between(chain(clip(float("nan"), 1), clip(-6, 6))), ["Clip", "Clip"]),
    "computed bound": (
        between(chain(lambda g, x: g.node("Clip", [x, g.node("ReduceMin", [x], keepdims=0)]), clip(1, None))),
        ["ReduceMin", "Clip", "Clip"],
    ),
}  # fmt: skip


@table(BOUNDS)
def test_bounds_in_a_row(case: Any) -> None:
    model, expected = case
    assert left(model) == expected


def test_a_clip_that_is_read_elsewhere_stays() -> None:
    graph = Graph()
    graph.input("x", [2, 3])
    first = clip(-1, 2)(graph, "x")
    graph.node("Neg", [clip(-3, 1)(graph, first)], "y")
    graph.node("Exp", [first], "z")
    graph.output("y", [2, 3])
    graph.output("z", [2, 3])
    model = graph.model()
    assert compiled(model, PASS).model == model


# operators that do nothing


def with_ints(name: str, *operands: Sequence[int], **attrs: Any) -> Build:
    """An operator on x and int64 vectors."""
    return lambda g, x: g.node(name, [x, *[ints(g, *items) for items in operands]], **attrs)


def resize(scales: Sequence[float] = (), sizes: Sequence[int] = (), **attrs: Any) -> Build:
    """Resize by scales or to sizes."""

    def build(graph: Graph, x: str) -> str:
        by = graph.initializer(np.asarray(scales, F32)) if scales else ""
        return graph.node("Resize", [x, "", by, *([ints(graph, *sizes)] if sizes else [])], **attrs)

    return build


END = 2**63 - 1
NOTHING: Cases = {
    "slice": (between(with_ints("Slice", [0], [END])), []),
    "slice, end of the extent": (between(with_ints("Slice", [0, 0], [3, 9], [1, 2])), []),
    "slice, negative start": (between(with_ints("Slice", [-3], [3], [1])), []),
    "slice, symbolic": (between(with_ints("Slice", [0], [END], [0], [1]), ("N", 3)), []),
    "slice, step": (between(with_ints("Slice", [0], [END], [1], [2])), ["Slice"]),
    "slice, one less": (between(with_ints("Slice", [0], [2], [1])), ["Slice"]),
    "slice, one off": (between(with_ints("Slice", [1], [END], [1])), ["Slice"]),
    "slice, start inside": (between(with_ints("Slice", [-2], [END], [1])), ["Slice"]),
    "slice, symbolic to a number": (between(with_ints("Slice", [0], [5], [0]), ("N", 3)), ["Slice"]),
    "pad": (between(with_ints("Pad", [0] * 6)), []),
    "pad by one": (between(with_ints("Pad", [0, 0, 1, 0, 0, 0])), ["Pad"]),
    "tile": (between(with_ints("Tile", [1, 1, 1])), []),
    "tile twice": (between(with_ints("Tile", [1, 2, 1])), ["Tile"]),
    "expand": (between(with_ints("Expand", [3, 1])), []),
    "expand to its shape": (between(with_ints("Expand", [2, 3, 4])), []),
    "expand to its own shape": (between(lambda g, x: g.node("Expand", [x, g.node("Shape", [x])]), ("N", 3)), []),
    "expand, stretches": (between(with_ints("Expand", [3, 1]), (2, 1, 4)), ["Expand"]),
    "expand, may stretch": (between(with_ints("Expand", [5, 1]), ("N", 3)), ["Expand"]),
    "expand, raises the rank": (between(with_ints("Expand", [1, 2, 3, 4])), ["Expand"]),
    "concat": (between(op("Concat", axis=0)), []),
    "concat of two": (between(lambda g, x: g.node("Concat", [x, x], axis=0)), ["Concat"]),
    "split": (between(op("Split", axis=0, num_outputs=1)), []),
    "sum": (between(op("Sum")), []),
    "max": (between(op("Max")), []),
    "mean of two": (between(lambda g, x: g.node("Mean", [x, x])), ["Mean"]),
    "reshape": (between(with_ints("Reshape", [2, 3, 4])), []),
    "reshape, 0 and -1": (between(with_ints("Reshape", [0, -1, 4])), []),
    "reshape, symbolic": (between(with_ints("Reshape", [-1, 3]), ("N", 3)), []),
    "reshape of two symbols": (between(with_ints("Reshape", [-1, 3]), ("N", "M")), ["Reshape"]),
    "reshape, another": (between(with_ints("Reshape", [3, 2, 4])), ["Reshape"]),
    "flatten": (between(op("Flatten"), (2, 3)), []),
    "flatten, symbolic": (between(op("Flatten"), ("N", "M")), []),
    "flatten of three": (between(op("Flatten")), ["Flatten"]),
    "transpose of ones": (between(op("Transpose", perm=[1, 0, 2]), (1, 1, 4)), []),
    "transpose of one": (between(op("Transpose", perm=[1, 0, 2]), (1, 3, 4)), ["Transpose"]),
    "resize by 1": (between(resize([1, 1, 1, 1], mode="linear"), (1, 2, 3, 4)), []),
    "resize to its size": (between(resize(sizes=[1, 2, 3, 4], mode="nearest"), (1, 2, 3, 4)), []),
    "resize by 2": (between(resize([1, 1, 2, 2], mode="nearest"), (1, 2, 3, 4)), ["Resize"]),
    "resize to another": (between(resize(sizes=[1, 2, 6, 8]), (1, 2, 3, 4)), ["Resize"]),
    "upsample by 1": (between(op("Upsample", scales=[1.0, 1, 1, 1]), (1, 2, 3, 4), opset=7), []),
}  # fmt: skip


@table(NOTHING)
def test_what_does_nothing(case: Any) -> None:
    model, expected = case
    assert left(model) == expected


def test_a_resize_of_a_crop_is_no_identity() -> None:
    build = resize([1, 1, 1, 1], coordinate_transformation_mode="tf_crop_and_resize")
    assert operators(compiled(between(build, (1, 2, 3, 4)), PASS).model) == ["LeakyRelu", "Resize", "LeakyRelu"]


@pytest.mark.parametrize("name", ["Slice", "Reshape", "Concat", "Pow"])
def test_what_links_an_input_to_an_output_stays(name: str) -> None:
    graph = Graph()
    graph.input("x", [2, 3])
    extra = {"Slice": [[0], [END]], "Reshape": [[2, 3]], "Concat": [], "Pow": []}[name]
    constants = [ints(graph, *items) for items in extra] + ([graph.initializer(1.0)] if name == "Pow" else [])
    graph.node(name, ["x", *constants], "y", **({"axis": 0} if name == "Concat" else {}))
    graph.output("y", [2, 3])
    model = graph.model()
    assert compiled(model, PASS).model == model


# reshapes in a row

RESHAPES: Cases = {
    "reshape, reshape": (between(chain(with_ints("Reshape", [6, 4]), with_ints("Reshape", [4, 6]))), ["Reshape"]),
    "there and back": (between(chain(with_ints("Reshape", [6, 4]), with_ints("Reshape", [2, 3, 4]))), []),
    "0 is that of the middle": (
        between(chain(with_ints("Reshape", [6, 4]), with_ints("Reshape", [0, 2, 2]))), ["Reshape"],
    ),
    "flatten, reshape": (between(chain(op("Flatten"), with_ints("Reshape", [0, 4, 3]))), ["Reshape"]),
    "flatten, reshape, symbolic": (
        between(chain(op("Flatten"), with_ints("Reshape", [0, 4, 3])), ("N", 3, 4)), ["Reshape"],
    ),
    "unsqueeze, squeeze": (between(chain(with_ints("Unsqueeze", [1]), with_ints("Squeeze", [1])), ("N", 3)), []),
    "unsqueeze, squeeze elsewhere": (
        between(chain(with_ints("Unsqueeze", [0]), with_ints("Squeeze", [2])), ("N", 1, 3)), ["Reshape"],
    ),
    "reshape, flatten, symbolic": (
        between(chain(with_ints("Reshape", [0, 4, 3]), op("Flatten")), ("N", 12)), [],
    ),
    "two open extents": (
        between(chain(with_ints("Unsqueeze", [0]), with_ints("Squeeze", [3])), ("N", "M", 1)), ["Unsqueeze", "Squeeze"],
    ),
    "zero elements": (
        between(chain(with_ints("Reshape", [0, 4]), with_ints("Reshape", [4, 0], allowzero=1)), (0, 4), opset=14),
        ["Reshape"],
    ),
    "computed target": (
        between(lambda g, x: g.node("Reshape", [g.node("Reshape", [x, ints(g, 6, 4)]), g.input("s", [2], I64)])),
        ["Reshape", "Reshape"],
    ),
}  # fmt: skip


@table(RESHAPES)
def test_reshapes_in_a_row(case: Any) -> None:
    model, expected = case
    if any(info.name == "s" for info in model.graph.input):
        assert operators(compiled(model, PASS).model)[1:-1] == expected
    else:
        assert left(model) == expected


# shapes


def extent(graph: Graph, x: str, axis: int) -> str:
    """Shape, Gather, Unsqueeze: one extent as a vector."""
    picked = graph.node("Gather", [graph.node("Shape", [x]), graph.initializer(np.asarray(axis, I64))], axis=0)
    return graph.node("Unsqueeze", [picked, ints(graph, 0)])


def reshape_to(*parts: Any, **attrs: Any) -> Build:
    """A reshape to numbers and extents, those written as "0", "1", ... or computed from them."""

    def build(graph: Graph, x: str) -> str:
        names = [
            part(graph, x)
            if callable(part)
            else extent(graph, x, int(part))
            if isinstance(part, str)
            else ints(graph, part)
            for part in parts
        ]
        return graph.node("Reshape", [x, graph.node("Concat", names, axis=0)], **attrs)

    return build


def times(*axes: int) -> Build:
    """The product of extents."""

    def build(graph: Graph, x: str) -> str:
        first, *others = [extent(graph, x, axis) for axis in axes]
        for other in others:
            first = graph.node("Mul", [first, other])
        return first

    return build


SHAPES: Cases = {
    "[N, 12]": (between(reshape_to("0", 12), ("N", 3, 4)), ["Reshape"]),
    "[N, -1]": (between(reshape_to("0", -1), ("N", 3, 4)), ["Reshape"]),
    "[N, 4, 3]": (between(reshape_to("0", "2", "1"), ("N", 3, 4)), ["Reshape"]),
    "[N, 3 * 4]": (between(reshape_to("0", times(1, 2)), ("N", 3, 4)), ["Reshape"]),
    "[12, N]": (between(reshape_to(12, "0"), ("N", 3, 4)), ["Reshape"]),
    "[N, M, 4, 1]": (between(reshape_to("0", "1", 4, 1), ("N", "M", 4)), ["Reshape"]),
    "its own shape": (between(lambda g, x: g.node("Reshape", [x, g.node("Shape", [x])]), ("N", 3)), []),
    "allowzero": (between(reshape_to("0", 12, allowzero=1), ("N", 3, 4)), ["Reshape"]),
    "slice of a shape": (
        between(
            reshape_to(lambda g, x: g.node("Slice", [g.node("Shape", [x]), ints(g, 0), ints(g, 1)]), 12), ("N", 3, 4)
        ),
        ["Reshape"],
    ),
    "a static extent beside others": (
        between(lambda g, x: g.node("Mul", [x, g.node("Cast", [extent(g, x, 1)], to=T.FLOAT)]), ("N", 3)), ["Mul"],
    ),
    "a symbolic extent": (
        between(lambda g, x: g.node("Mul", [x, g.node("Cast", [extent(g, x, 0)], to=T.FLOAT)]), ("N", 3)),
        ["Shape", "Gather", "Unsqueeze", "Cast", "Mul"],
    ),
    "size of a static tensor": (
        between(lambda g, x: g.node("Mul", [x, g.node("Cast", [g.node("Size", [x])], to=T.FLOAT)])), ["Mul"],
    ),
    "size of a symbolic tensor": (
        between(lambda g, x: g.node("Mul", [x, g.node("Cast", [g.node("Size", [x])], to=T.FLOAT)]), ("N", 3)),
        ["Size", "Cast", "Mul"],
    ),
}  # fmt: skip


@table(SHAPES)
def test_shapes_that_need_not_be_computed(case: Any) -> None:
    model, expected = case
    assert left(model) == expected


@pytest.mark.parametrize(
    "build",
    [reshape_to(times(0, 1), 4), reshape_to("1", "0", 4), reshape_to("0", times(1, 1), 1)],
    ids=["N * M", "M, N", "N, M * M"],
)
def test_two_extents_that_cannot_be_told_stay_computed(build: Build) -> None:
    """One open extent is -1, a second one nobody can infer; nor is -1 safe beside a copied extent that may be 0."""
    model = between(build, ("N", "M", 4))
    result = compiled(model, PASS).model
    one_open = len(the(model, "Concat").input) == 2
    assert ("Concat" in operators(result)) is not one_open


def test_the_target_keeps_the_batch() -> None:
    result = compiled(between(reshape_to("0", 12), ("N", 3, 4)), PASS).model
    targets = [t for t in result.graph.initializer if t.name in the(result, "Reshape").input]
    assert [np.frombuffer(t.raw_data, I64).tolist() for t in targets] == [[0, 12]]


def test_the_expand_chain_of_torch() -> None:
    """Where(Equal(shape, -1), ones, shape), as torch writes it for expand."""

    def build(g: Graph, x: str) -> str:
        wanted = ints(g, 2, 3, 4)
        ones = g.node("ConstantOfShape", [g.node("Shape", [wanted])], value=helper.make_tensor("", T.INT64, [1], [1]))
        minus = g.node("Mul", [ones, ints(g, -1)])
        return g.node("Expand", [x, g.node("Where", [g.node("Equal", [wanted, minus]), ones, wanted])])

    assert left(between(build, (1, 3, 4))) == ["Expand"]
    assert left(between(build, (2, 3, 4))) == []


def test_the_pad_chain_of_torch() -> None:
    """F.pad: ConstantOfShape, Concat, Reshape, Slice by -1, Transpose, Reshape, Cast; a negative step is left alone."""

    def build(g: Graph, x: str) -> str:
        zeros = g.node("ConstantOfShape", [ints(g, 4)], value=helper.make_tensor("", T.INT64, [1], [0]))
        pairs = g.node("Reshape", [g.node("Concat", [ints(g, 1, 1, 2, 2), zeros], axis=0), ints(g, -1, 2)])
        turned = g.node("Slice", [pairs, ints(g, -1), ints(g, -(2**63) + 1), ints(g, 0), ints(g, -1)])
        flat = g.node("Reshape", [g.node("Transpose", [turned], perm=[1, 0]), ints(g, -1)])
        return g.node("Pad", [x, g.node("Cast", [flat], to=T.INT64)])

    assert left(between(build, (1, 2, 3, 4)))[-1] == "Pad"


# the bias that torch's dynamo exporter computes, and parameters by ConstantOfShape


def dynamo_conv(value: float) -> Any:
    """Conv whose bias is Expand(CastLike(value, x), Expand(Shape(w)[0:1], [1]))."""
    graph = Graph(opset=18)
    graph.input("x", ["N", 3, 5, 5])
    weight = graph.initializer(graph.random(4, 3, 3, 3))
    shape = graph.node("Expand", [graph.node("Shape", [weight], start=0, end=1), ints(graph, 1)])
    number = graph.node("CastLike", [graph.initializer(np.float64(value)), "x"])
    graph.node("Conv", ["x", weight, graph.node("Expand", [number, shape])], "y")
    graph.output("y")
    return graph.model()


def test_a_zero_bias_that_is_computed_goes() -> None:
    result = check(dynamo_conv(0), ["Conv"], passes=PASS)
    assert len(the(result.model, "Conv").input) == 2


def test_another_bias_is_folded() -> None:
    result = check(dynamo_conv(1.5), ["Conv"], passes=PASS)
    assert len(the(result.model, "Conv").input) == 3


def test_batch_normalization_by_constant_of_shape_folds() -> None:
    graph = Graph(opset=13)
    graph.input("x", [2, 3, 4, 4])
    graph.node("Conv", ["x", graph.initializer(graph.random(4, 3, 1, 1))], "h", "conv")
    one, zero = ([helper.make_tensor("", T.FLOAT, [1], [value])] for value in (1.0, 0.0))
    names = [graph.node("ConstantOfShape", [ints(graph, 4)], value=value[0]) for value in (one, zero, zero, one)]
    graph.batch_norm("h", batch_norm(4), "y", names=names)
    graph.output("y", [2, 4, 4, 4])
    check(graph.model(), ["Conv"])


# transposes

NHWC, NCHW = [0, 2, 3, 1], [0, 3, 1, 2]


def around(build: Build, inner: Sequence[int] = NHWC, outer: Sequence[int] = NCHW, **options: Any) -> Any:
    """What `build` makes of x in channels-last order, turned back."""
    return between(
        chain(op("Transpose", perm=list(inner)), build, op("Transpose", perm=list(outer))), (2, 3, 4, 5), **options
    )


def residual(graph: Graph, x: str) -> str:
    """Two paths that meet."""
    return graph.node("Add", [graph.node("Relu", [x]), graph.node("Sigmoid", [x])])


def other_input(graph: Graph, x: str) -> str:
    """An operand that comes in channels-last order."""
    return graph.node("Add", [x, graph.input("z", [2, 4, 5, 3])])


LAYOUT: Cases = {
    "relu": (around(op("Relu")), ["Relu"]),
    "sigmoid, tanh": (around(chain(op("Sigmoid"), op("Tanh"))), ["Sigmoid", "Tanh"]),
    "per channel": (around(op("Mul", [1, 2, 3])), ["Mul"]),
    "scalar": (around(op("Add", 2)), ["Add"]),
    "full constant": (around(op("Add", np.ones((4, 5, 3), F32))), ["Add"]),
    "prelu": (around(op("PRelu", [0.1, 0.2, 0.3])), ["PRelu"]),
    "residual": (around(residual), ["Relu", "Sigmoid", "Add"]),
    "concat": (
        around(lambda g, x: g.node("Concat", [x, g.node("Relu", [x])], axis=3)), ["Relu", "Concat"],
    ),
    "concat, negative axis": (
        around(lambda g, x: g.node("Concat", [x, g.node("Relu", [x])], axis=-1)), ["Relu", "Concat"],
    ),
    "pad": (around(with_ints("Pad", [0, 1, 2, 0, 0, 3, 4, 0])), ["Pad"]),
    "reduce": (around(with_ints("ReduceMean", [1, 2]), opset=18), ["ReduceMean"]),
    "reduce, attribute": (around(op("ReduceMean", axes=[1, 2]), opset=13), ["ReduceMean"]),
    "where": (
        around(lambda g, x: g.node("Where", [g.node("Greater", [x, g.initializer(0.0)]), x, g.node("Neg", [x])])),
        ["Greater", "Neg", "Where"],
    ),
    "softmax": (around(op("Softmax", axis=-1)), ["Transpose", "Softmax", "Transpose"]),
    "no pair": (around(op("Relu"), outer=[0, 2, 3, 1]), ["Transpose", "Relu", "Transpose"]),
    "one transpose": (
        between(chain(op("Relu"), op("Transpose", perm=NHWC), op("Abs")), (2, 3, 4, 5)), ["Relu", "Transpose", "Abs"],
    ),
    "an operand in the other order": (around(other_input), ["Transpose", "Add"]),
    "two operands in the other order": (
        around(chain(other_input, lambda g, x: g.node("Mul", [x, g.input("u", [2, 4, 5, 3])]))),
        ["Transpose", "Add", "Mul", "Transpose"],
    ),
    "reduce without keepdims": (
        between(chain(op("Transpose", perm=NHWC), with_ints("ReduceMean", [1, 2], keepdims=0)), (2, 3, 4, 5), opset=18),
        ["ReduceMean"],
    ),
    "reduce without keepdims, rest out of order": (
        between(chain(op("Transpose", perm=NHWC), with_ints("ReduceMean", [0], keepdims=0)), (2, 3, 4, 5), opset=18),
        ["Transpose", "ReduceMean"],
    ),
}  # fmt: skip


@table(LAYOUT)
def test_transposes_move_until_a_pair_cancels(case: Any) -> None:
    model, expected = case
    assert sorted(left(model)) == sorted(expected)


def test_a_value_that_is_read_in_the_old_order() -> None:
    """One transpose more for the other reader, two less for the pair."""
    graph = Graph()
    graph.input("x", [2, 3, 4, 5])
    hidden = graph.node("Relu", [graph.node("Transpose", ["x"], perm=NHWC)], "r")
    graph.node("Transpose", [hidden], "y", perm=NCHW)
    graph.output("y", [2, 3, 4, 5])
    graph.output("r", [2, 4, 5, 3])
    result = check(graph.model(), passes=PASS)
    assert operators(result.model).count("Transpose") == 1


def test_three_shared_readers() -> None:
    """What cancels for one reader may not cost the others."""
    graph = Graph()
    graph.input("x", [2, 3, 4, 5])
    turned = graph.node("Transpose", ["x"], "t", perm=NHWC)
    graph.node("Transpose", [graph.node("Relu", [turned])], "y", perm=NCHW)
    graph.node("Softmax", [turned], "z")
    graph.output("y", [2, 3, 4, 5])
    graph.output("z", [2, 4, 5, 3])
    result = check(graph.model(), passes=PASS)
    assert sorted(operators(result.model)) == ["Relu", "Softmax", "Transpose"]


# pads


def padded(
    target: Build,
    pads: Sequence[int] = (0, 0, 1, 2, 0, 0, 1, 0),
    value: float | None = None,
    before: Build | None = None,
    **attrs: Any,
) -> Any:
    """Pad in front of a window."""

    def build(graph: Graph, x: str) -> str:
        x = before(graph, x) if before else x
        extra = [] if value is None else [graph.initializer(np.asarray(value, F32))]
        return target(graph, graph.node("Pad", [x, ints(graph, *pads), *extra], **attrs))

    return between(build, (2, 3, 5, 5))


def conv(channels: int = 3, **attrs: Any) -> Build:
    """A convolution by 3 x 3."""
    return lambda g, x: g.node("Conv", [x, g.initializer(g.random(4, channels, 3, 3))], **attrs)


def pool(name: str, **attrs: Any) -> Build:
    """A pool of 3 x 3."""
    return op(f"{name}Pool", kernel_shape=[3, 3], **attrs)


INF = float("inf")
PADS: Cases = {
    "conv": (padded(conv()), ["Conv"]),
    "conv with pads": (padded(conv(pads=[1, 0, 0, 1])), ["Conv"]),
    "conv, valid": (padded(conv(auto_pad="VALID")), ["Conv"]),
    "conv, same": (padded(conv(auto_pad="SAME_UPPER")), ["Pad", "Conv"]),
    "conv, pad of 1": (padded(conv(), value=1), ["Pad", "Conv"]),
    "conv, negative": (padded(conv(), [0, 0, 1, -1, 0, 0, 1, 1]), ["Pad", "Conv"]),
    "conv, channels": (padded(conv(4), [0, 1, 1, 1, 0, 0, 1, 1]), ["Pad", "Conv"]),
    "conv, batch": (padded(conv(), [1, 0, 1, 1, 0, 0, 1, 1]), ["Pad", "Conv"]),
    "conv, reflect": (padded(conv(), mode="reflect"), ["Pad", "Conv"]),
    "average": (padded(pool("Average")), ["AveragePool"]),
    "average that counts": (padded(pool("Average", count_include_pad=1, pads=[1, 0, 0, 1])), ["AveragePool"]),
    "average with pads": (padded(pool("Average", pads=[1, 0, 0, 1])), ["Pad", "AveragePool"]),
    "average, ceil": (padded(pool("Average", ceil_mode=1, strides=[2, 2])), ["Pad", "AveragePool"]),
    "average, wide pads": (padded(pool("Average"), [0, 0, 3, 0, 0, 0, 0, 0]), ["Pad", "AveragePool"]),
    "max, -inf": (padded(pool("Max"), value=-INF), ["MaxPool"]),
    "max, -inf, with pads": (padded(pool("Max", pads=[1, 0, 0, 1]), value=-INF), ["MaxPool"]),
    "max, 0": (padded(pool("Max"), value=0), ["Pad", "MaxPool"]),
    "max, 0, relu": (padded(pool("Max"), value=0, before=op("Relu")), ["Relu", "MaxPool"]),
    "max, 0, sigmoid": (padded(pool("Max"), before=op("Sigmoid")), ["Sigmoid", "MaxPool"]),
    "max, 0, clip": (padded(pool("Max"), value=0, before=clip(0, 6)), ["Clip", "MaxPool"]),
    "max, 0, clip below": (padded(pool("Max"), value=0, before=clip(-1, 6)), ["Clip", "Pad", "MaxPool"]),
    "max, wide pads": (padded(pool("Max"), [0, 0, 3, 0, 0, 0, 0, 0], value=-INF), ["Pad", "MaxPool"]),
    "max, dilations": (padded(pool("Max", dilations=[2, 2]), value=-INF), ["Pad", "MaxPool"]),
}  # fmt: skip


@table(PADS)
def test_pads_that_a_window_takes_over(case: Any) -> None:
    model, expected = case
    assert left(model) == expected


def test_pads_by_axes() -> None:
    model = between(
        lambda g, x: conv()(g, g.node("Pad", [x, ints(g, 1, 2, 3, 4), "", ints(g, -1, 2)])), (2, 3, 5, 5), opset=18
    )
    assert left(model) == ["Conv"]
    assert attribute(the(compiled(model, PASS).model, "Conv"), "pads") == [2, 1, 4, 3]


def test_a_pad_with_another_reader_stays() -> None:
    graph = Graph()
    graph.input("x", [2, 3, 5, 5])
    graph.node("Pad", ["x", ints(graph, 0, 0, 1, 1, 0, 0, 1, 1)], "p")
    graph.node("Conv", ["p", graph.initializer(graph.random(4, 3, 3, 3))], "y")
    graph.node("Exp", ["p"], "z")
    graph.output("y")
    graph.output("z")
    model = graph.model()
    assert compiled(model, PASS).model == model


def test_a_max_pool_whose_indices_are_read_keeps_its_pad() -> None:
    graph = Graph()
    graph.input("x", [2, 3, 5, 5])
    pad = graph.node("Pad", ["x", ints(graph, 0, 0, 1, 1, 0, 0, 1, 1), graph.initializer(-INF)])
    graph.node("MaxPool", [pad], ["y", "i"], kernel_shape=[3, 3])
    graph.output("y")
    graph.output("i", dtype=I64)
    model = graph.model()
    assert compiled(model, PASS).model == model


# where and if


def where(condition: Any, *, x: Sequence[int] = (2, 3, 4)) -> Any:
    """Where of a constant condition."""

    def build(graph: Graph, name: str) -> str:
        return graph.node("Where", [graph.initializer(np.asarray(condition)), name, graph.input("z", [3, 1])])

    return between(build, x)


WHERE: Cases = {
    "true": (where(True), []),
    "all true": (where([True, True, True, True]), []),
    "false": (where(False), ["Where"]),
    "mixed": (where([True, False, True, True]), ["Where"]),
    "the condition stretches": (where([[[True]], [[True]]], x=(1, 3, 4)), ["Where"]),
    "the other branch stretches": (where(True, x=(2, 1, 4)), ["Where"]),
}


@table(WHERE)
def test_where_of_a_constant(case: Any) -> None:
    model, expected = case
    assert left(model) == expected


def branches(condition: Any, *, returned: bool = False, outer: bool = False) -> Any:
    """If of a constant: both branches compute t from x, with a constant and names of their own."""
    graph = Graph()
    graph.input("x", [2, 3])
    graph.initializer(np.asarray(condition), "c")
    bodies = []
    for i, name in enumerate(("Add", "Mul")):
        nodes = [
            helper.make_node("Constant", [], ["k"], value_floats=[1.0 + i, 2.0, 3.0]),
            helper.make_node(name, ["x", "k"], ["t"]),
        ]
        result = helper.make_tensor_value_info("x" if outer else "t", T.FLOAT, [2, 3])
        bodies.append(helper.make_graph([] if outer else nodes, f"g{i}", [], [result]))
    graph.node("If", ["c"], "y" if returned else "h", then_branch=bodies[0], else_branch=bodies[1])
    if not returned:
        graph.node("Add", [graph.node("Neg", ["h"]), graph.node("Exp", ["x"], "t")], "y")
    graph.output("y", [2, 3])
    return graph.model()


@pytest.mark.parametrize("returned", [False, True])
@pytest.mark.parametrize("condition", [True, False])
def test_if_of_a_constant(condition: bool, returned: bool) -> None:
    result = check(branches(condition, returned=returned), passes=PASS)
    assert operators(result.model)[0] == ("Add" if condition else "Mul")
    assert not any(node.op_type == "If" for node in all_nodes(result.model))


def test_a_branch_that_returns_an_input_of_the_graph() -> None:
    check(branches(True, returned=True, outer=True), ["Identity"], passes=PASS)
    check(branches(True, outer=True), ["Neg", "Exp", "Add"], passes=PASS)


def test_if_at_run_time_stays() -> None:
    model = branches(True)
    del model.graph.initializer[:]
    model.graph.input.append(helper.make_tensor_value_info("c", T.BOOL, []))
    assert compiled(model, PASS).model == model


def test_layers_keep_their_folds_when_their_branch_moves() -> None:
    graph = Graph()
    graph.input("x", [2, 3, 4, 4])
    graph.initializer(np.asarray(True), "c")
    weight = helper.make_tensor("w", T.FLOAT, [4, 3, 1, 1], graph.random(12).tolist())
    params = batch_norm(4)
    for name, array in zip(("s", "b", "m", "v"), params.arrays, strict=True):
        graph.initializer(array, name)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], name="conv"),
        helper.make_node("BatchNormalization", ["h", "s", "b", "m", "v"], ["t"]),
    ]
    info = helper.make_tensor_value_info("t", T.FLOAT, [2, 4, 4, 4])
    body = helper.make_graph(nodes, "g", [], [info], [weight])
    zero = helper.make_graph(
        [helper.make_node("Expand", ["z", "n"], ["t2"])],
        "e",
        [],
        [helper.make_tensor_value_info("t2", T.FLOAT, [2, 4, 4, 4])],
    )
    graph.initializer(0.0, "z")
    graph.initializer(np.asarray([2, 4, 4, 4], I64), "n")
    graph.node("If", ["c"], "y", then_branch=body, else_branch=zero)
    graph.output("y", [2, 4, 4, 4])
    for passes in (None, "SimplifyInference,FoldScaleAxis,SimplifyExpr,FoldConstant"):
        result = check(graph.model(), ["Conv"], passes=passes)
        assert len(result.fold_map.layers) == 1
