"""Sparse initializers and Constants.

What folds into them, how the result is stored, and what is refused.
"""

from __future__ import annotations

import contextlib
import tracemalloc
from typing import Any

import irc
import numpy as np
import onnx
import pytest
from graphs import (
    F32,
    F64,
    Array,
    Graph,
    batch_norm,
    check,
    check_unchanged,
    compiled,
    operators,
    reasons,
    the,
)
from harness import random_inputs, run, worst
from irc.backends.foldmap.inverse import unfold
from irc.support.limits import Limits
from onnx import ModelProto, SparseTensorProto, TensorProto, helper, numpy_helper

FORMS = ("linear", "coordinates")
PLACES = ("initializer", "constant")


def thinned(shape: tuple[int, ...], share: float, dtype: np.dtype[Any] = F32) -> Array:
    """Random numbers of which about a `share` are not zero."""
    rng = np.random.default_rng(5)
    array = rng.standard_normal(shape) * (rng.random(shape) < share)
    return np.asarray(array.astype(dtype))


def sparse(name: str, array: Array, form: str = "linear") -> SparseTensorProto:
    """The numbers of an array that are not zero."""
    places = np.flatnonzero(array)
    values = numpy_helper.from_array(array.reshape(-1)[places], name)
    at = places if form == "linear" else np.stack(np.unravel_index(places, array.shape), 1)
    indices = numpy_helper.from_array(np.ascontiguousarray(at, np.int64), f"{name}_at")
    return SparseTensorProto(values=values, indices=indices, dims=array.shape)


def give(
    graph: Graph, tensors: dict[str, SparseTensorProto], place: str = "initializer"
) -> ModelProto:
    """The model of a graph with sparse tensors."""
    model = graph.model()
    for name, tensor in reversed(tensors.items()):
        if place == "initializer":
            model.graph.sparse_initializer.append(tensor)
        else:
            tensor.values.name = ""
            model.graph.node.insert(
                0, helper.make_node("Constant", [], [name], sparse_value=tensor)
            )
    return model


def layer(
    op: str,
    share: float,
    form: str = "linear",
    place: str = "initializer",
    dtype: np.dtype[Any] = F32,
) -> Any:
    """A layer with a sparse weight and a BatchNormalization or Mul after it.

    The model and the weight.
    """
    graph = Graph(dtype=dtype)
    shape = {
        "Conv": (8, 4, 3, 3),
        "ConvTranspose": (4, 8, 3, 3),
        "Gemm": (16, 8),
        "MatMul": (16, 8),
    }[op]
    weight = thinned(shape, share, dtype)
    if "Conv" in op:
        graph.input("x", [2, 4, 6, 6])
        graph.node(op, ["x", "w"], "h", "layer")
        graph.batch_norm("h", batch_norm(8, dtype=dtype), "y")
        graph.output("y", [2, 8, 4, 4] if op == "Conv" else [2, 8, 8, 8])
    else:
        graph.input("x", [2, 16])
        graph.node(op, ["x", "w"], "h", "layer")
        graph.node("Mul", ["h", graph.initializer(graph.positive(8))], "y", "scale")
        graph.output("y", [2, 8])
    return give(graph, {"w": sparse("w", weight, form)}, place), weight


def assert_same_in_onnxruntime(model: ModelProto, result: ModelProto) -> None:
    inputs = random_inputs(model)
    assert worst(run(result, inputs), run(model, inputs)) < 1e-5


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "Gemm", "MatMul"])
def test_an_affine_folds_into_a_sparse_weight(op: str, form: str, place: str) -> None:
    model, weight = layer(op, 0.1, form, place)
    result = check(model, [op])
    if place == "initializer":
        (found,) = result.model.graph.sparse_initializer
        assert found.values.name == "w"
    else:
        found = the(result.model, "Constant").attribute[0].sparse_tensor
    assert found.values.dims == [np.count_nonzero(weight)]
    assert result.model.ByteSize() < model.ByteSize()
    assert_same_in_onnxruntime(model, result.model)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("op", ["Conv", "Gemm"])
def test_a_folded_weight_that_is_shorter_with_its_zeros_is_written_with_them(
    op: str, place: str
) -> None:
    model, weight = layer(op, 0.9, place=place)
    result = check(model, [op])
    assert not result.model.graph.sparse_initializer
    dense = next(tensor for tensor in result.model.graph.initializer if tensor.name == "w")
    assert tuple(dense.dims) == weight.shape
    assert_same_in_onnxruntime(model, result.model)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.6, 0.7, 0.9])
def test_the_shorter_form_is_the_one_of_fewer_serialized_bytes(share: float) -> None:
    """Indices in `int64_data` take one to three bytes: the number of values does not decide."""
    model, _ = layer("Conv", share)
    indices = model.graph.sparse_initializer[0].indices
    numbers = numpy_helper.to_array(indices).tolist()
    indices.ClearField("raw_data")
    indices.int64_data.extend(numbers)
    result = check(model, ["Conv"]).model
    weights = {tensor.values.name: tensor for tensor in result.graph.sparse_initializer}
    whole = numpy_helper.from_array(np.zeros((8, 4, 3, 3), np.float32), "w").ByteSize()
    assert ("w" in weights) == (model.graph.sparse_initializer[0].ByteSize() < whole)


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), F64])
def test_sparse_weights_of_other_element_types(dtype: np.dtype[Any]) -> None:
    result = check(layer("Conv", 0.1, dtype=dtype)[0], ["Conv"])
    assert len(result.model.graph.sparse_initializer) == 1


@pytest.mark.parametrize("form", FORMS)
def test_the_folded_values_are_rounded_once(form: str) -> None:
    graph = Graph()
    graph.input("x", [2, 16])
    weight, scale = thinned((16, 8), 0.2), graph.positive(8)
    graph.node("MatMul", ["x", "w"], "h")
    graph.node("Mul", ["h", graph.initializer(scale)], "y")
    graph.output("y", [2, 8])
    result = check(give(graph, {"w": sparse("w", weight, form)}), ["MatMul"])
    (found,) = result.model.graph.sparse_initializer
    exact = (weight.astype(np.float64) * scale).astype(np.float32)
    assert np.array_equal(numpy_helper.to_array(found.values), exact[weight != 0])


@pytest.mark.parametrize("place", PLACES)
def test_a_sparse_weight_that_nothing_touches_is_written_as_it_was(place: str) -> None:
    """An operator that folds elsewhere in the model does not touch it."""
    graph = Graph()
    graph.input("x", [2, 16])
    graph.node("MatMul", ["x", "w"], "h")
    graph.node("Relu", ["h"], "r")
    graph.node("Gemm", ["r", graph.initializer(graph.random(8, 8))], "g")
    graph.node("Mul", ["g", graph.initializer(graph.positive(8))], "y")
    graph.output("y", [2, 8])
    weight = sparse("w", thinned((16, 8), 0.8))
    weight.values.doc_string = "kept"
    model = give(graph, {"w": weight}, place)
    result = check(model).model
    assert [n for n in operators(result) if n != "Constant"] == ["MatMul", "Relu", "Gemm"]
    if place == "initializer":
        assert list(result.graph.sparse_initializer) == [weight]
    else:
        assert the(result, "Constant") == the(model, "Constant")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("share", [0.1, 0.9])
def test_unfold_brings_the_sparse_source_back(share: float, form: str, place: str) -> None:
    model, _ = layer("Conv", share, form, place)
    result = compiled(model)
    assert operators(result.model) == ["Conv"]
    back = unfold(result.model, result.fold_map)
    assert back.SerializeToString(deterministic=True) == model.SerializeToString(deterministic=True)


def test_the_fold_map_names_the_layer_of_a_sparse_weight() -> None:
    result = check(layer("Conv", 0.1)[0], ["Conv"])
    (source,), (made,) = result.fold_map.sources, result.fold_map.layers
    assert (source["status"], source["layers"]) == ("folded", [made["id"]])
    assert made["node"]["name"] == "layer"
    assert made["weight"]["name"] == "w"


def test_sparse_parameters_of_an_affine() -> None:
    graph = Graph()
    graph.input("x", [2, 3, 4, 4])
    graph.node("Conv", ["x", graph.initializer(graph.random(4, 3, 1, 1))], "h")
    graph.node("BatchNormalization", ["h", "g", "b", "m", "v"], "y")
    graph.output("y", [2, 4, 4, 4])
    gamma, beta = np.array([1.5, 0, 2, 0.5], np.float32), np.array([0, 0, -1, 0], np.float32)
    mean, var = np.array([0, 1, 0, 0], np.float32), np.array([1, 2, 3, 4], np.float32)
    arrays = {"g": gamma, "b": beta, "m": mean, "v": var}
    model = give(graph, {name: sparse(name, array) for name, array in arrays.items()})
    result = check(model, ["Conv"])
    assert not result.model.graph.sparse_initializer
    assert_same_in_onnxruntime(model, result.model)


def test_a_sparse_bias() -> None:
    graph = Graph()
    graph.input("x", [2, 3, 4, 4])
    graph.node("Conv", ["x", graph.initializer(graph.random(4, 3, 1, 1)), "b"], "h")
    graph.batch_norm("h", batch_norm(4), "y")
    graph.output("y", [2, 4, 4, 4])
    model = give(graph, {"b": sparse("b", np.array([0, 0, 3, 0], np.float32))})
    assert_same_in_onnxruntime(model, check(model, ["Conv"]).model)


def test_an_expression_of_a_sparse_weight_is_computed_and_stays_sparse() -> None:
    graph = Graph()
    graph.input("x", [2, 16])
    graph.node("Transpose", ["w"], "t", perm=[1, 0])
    graph.node("MatMul", ["x", "t"], "h")
    graph.node("Mul", ["h", graph.initializer(graph.positive(8))], "y")
    graph.output("y", [2, 8])
    model = give(graph, {"w": sparse("w", thinned((8, 16), 0.1))})
    result = check(model, ["MatMul"])
    assert len(result.model.graph.sparse_initializer) == 1
    assert_same_in_onnxruntime(model, result.model)


def test_two_readers_of_a_sparse_weight_get_their_own() -> None:
    graph = Graph()
    graph.input("x", [2, 16])
    for name in "ab":
        graph.node("MatMul", ["x", "w"], f"h{name}")
        graph.node("Mul", [f"h{name}", graph.initializer(graph.positive(8))], f"y{name}")
        graph.output(f"y{name}", [2, 8])
    model = give(graph, {"w": sparse("w", thinned((16, 8), 0.05))})
    result = check(model, ["MatMul", "MatMul"])
    assert len(result.model.graph.sparse_initializer) == 2
    assert_same_in_onnxruntime(model, result.model)


def test_a_sparse_weight_in_a_branch() -> None:
    then, other = Graph(), Graph()
    then.node("MatMul", ["x", "w"], "h")
    then.node("Mul", ["h", then.initializer(then.positive(8), "s")], "y")
    other.node("MatMul", ["x", other.initializer(other.random(16, 8), "v")], "z")
    graph = Graph()
    graph.input("x", [2, 16])
    graph.input("c", [], np.dtype(np.bool_))
    bodies = []
    for body, name in ((then, "y"), (other, "z")):
        body.output(name, [2, 8])
        bodies.append(body.model().graph)
    bodies[0].sparse_initializer.append(sparse("w", thinned((16, 8), 0.1)))
    graph.node("If", ["c"], "out", then_branch=bodies[0], else_branch=bodies[1])
    graph.output("out", [2, 8])
    result = check(graph.model(), ["If"])
    assert sorted(node.op_type for node in the(result.model, "If").attribute[0].g.node) == [
        "MatMul"
    ]
    assert_same_in_onnxruntime(graph.model(), result.model)


def test_a_sparse_weight_in_a_function() -> None:
    """`check` compares in float64.

    onnxruntime 1.32 sometimes crashes when it loads a sparse Constant in a function.
    """
    body = [
        helper.make_node("Constant", [], ["w"], sparse_value=sparse("", thinned((16, 8), 0.1))),
        helper.make_node(
            "Constant", [], ["s"], value=numpy_helper.from_array(np.arange(1, 9, dtype=np.float32))
        ),
        helper.make_node("Gemm", ["x", "w"], ["h"]),
        helper.make_node("Mul", ["h", "s"], ["y"]),
    ]
    opsets = [helper.make_opsetid("", 21)]
    function = helper.make_function("own", "F", ["x"], ["y"], body, opsets)
    graph = Graph(functions=[function], domains={"own": 1})
    graph.input("x", [2, 16])
    graph.node("F", ["x"], "y", domain="own")
    graph.output("y", [2, 8])
    for passes in (None, "SimplifyInference,FoldScaleAxis,FoldConstant"):
        result = check(graph.model(), passes=passes).model
        assert "Mul" not in [
            node.op_type for f in (result.graph, *result.functions) for node in f.node
        ]


# neighbours that refuse


def broken(indices: Any, shape: tuple[int, ...] = (16, 8), count: int | None = None) -> ModelProto:
    """A Gemm with a sparse weight whose indices are given."""
    graph = Graph()
    graph.input("x", [2, None] if shape[0] > 1 << 20 else [2, shape[0]])
    graph.node("Gemm", ["x", "w"], "h")
    graph.node("Mul", ["h", graph.initializer(np.float32(3))], "y", "scale")
    graph.output("y", None)
    at = np.array(indices, np.int64)
    values = numpy_helper.from_array(np.ones(len(at) if count is None else count, np.float32), "w")
    indices = TensorProto(
        name="at", data_type=TensorProto.INT64, dims=at.shape, int64_data=at.ravel()
    )
    return give(graph, {"w": SparseTensorProto(values=values, indices=indices, dims=shape)})


@pytest.mark.parametrize(
    ("indices", "why"),
    [
        ([1, 128], "has an index that is out of range"),
        ([-1, 5], "has an index that is out of range"),
        ([5, 1], "has indices that do not increase"),
        ([5, 5], "has indices that do not increase"),
        ([[0, 8]], "has an index that is out of range"),
        ([[-1, 8]], "has an index that is out of range"),
        ([[1, 0], [0, 1]], "has indices that do not increase"),
        ([[1, 0], [1, 0]], "has indices that do not increase"),
        ([[1, 0, 0]], "has 1 values, and indices of the shape [1, 3]"),
    ],
)
def test_indices_that_onnx_does_not_allow(indices: Any, why: str) -> None:
    model = broken(indices)
    result = compiled(model)
    assert result.model == model
    (source,) = result.fold_map.sources
    assert source["reason"] == "dynamic_weight"
    assert any(
        f"'w' is a sparse tensor that {why}" in note
        for note in (source["detail"], *source["notes"])
    ), source


def test_more_values_than_indices() -> None:
    model = broken([1, 2], count=3)
    result = compiled(model)
    assert result.model == model
    (source,) = result.fold_map.sources
    assert "has 3 values, and indices of the shape [2]" in " ".join(
        (source["detail"], *source["notes"])
    )


@pytest.mark.parametrize("indices", [[1, 1 << 39], [[0, 1], [1 << 10, 3]]])
@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ((1 << 20, 1 << 20), "dynamic_weight"),
        ((1 << 40, 4), "no_foldable_neighbour"),
        ((1 << 40, 1 << 40), "no_foldable_neighbour"),
    ],
)
def test_a_few_values_in_more_elements_than_memory_holds(
    shape: tuple[int, ...], reason: str, indices: Any
) -> None:
    model = broken(indices, shape)
    tracemalloc.start()
    result = compiled(model)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result.model == model
    assert set(reasons(result).values()) == {f"kept: {reason}"}
    assert peak < 64 << 20


def test_many_sparse_tensors_that_each_are_within_the_limit() -> None:
    """All elements of a constant count against what the constants of a model may take together."""
    graph = Graph()
    graph.input("x", [1, 1000])
    tensors = {}
    for i in range(100):
        graph.node("MatMul", ["x", f"w{i}"], f"h{i}")
        graph.node("Mul", [f"h{i}", graph.initializer(np.float32(3))], f"y{i}")
        graph.output(f"y{i}", None)
        w = SparseTensorProto(values=helper.make_tensor(f"w{i}", 1, [1], [1.0]), dims=[1000, 250])
        w.indices.CopyFrom(helper.make_tensor("", TensorProto.INT64, [1], [5]))
        tensors[f"w{i}"] = w
    model = give(graph, tensors)
    tracemalloc.start()
    compiled(model, limits=Limits(max_constant_bytes=1 << 20))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 48 << 20


def test_a_weight_above_the_limit_on_constants_stays() -> None:
    model, _ = layer("Gemm", 0.1)
    result = compiled(model, limits=Limits(max_constant_bytes=256))
    assert result.model == model
    (source,) = result.fold_map.sources
    assert "--max-constant-bytes" in " ".join((source["detail"], *source["notes"]))


@pytest.mark.parametrize(
    "kind", [TensorProto.STRING, TensorProto.INT4, TensorProto.BOOL, TensorProto.COMPLEX64]
)
def test_sparse_weights_of_elements_that_do_not_scale(kind: int) -> None:
    values = helper.make_tensor("w", kind, [1], [b"a"] if kind == TensorProto.STRING else [1])
    model = broken([0])
    model.graph.sparse_initializer[0].values.CopyFrom(values)
    with contextlib.suppress(irc.EmitError):
        assert "Mul" in operators(compiled(model).model)


def test_an_overridable_sparse_weight_stays() -> None:
    model, _ = layer("Gemm", 0.1)
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [16, 8]))
    check_unchanged(model, "overridable_initializer")


def test_versions_of_the_ir_without_sparse_constants_get_dense_ones() -> None:
    model, _ = layer("MatMul", 0.1)
    model.ir_version, model.opset_import[0].version = 5, 10
    result = check(model, ["MatMul"]).model
    assert not result.graph.sparse_initializer
    onnx.checker.check_model(result)


@pytest.mark.parametrize("place", PLACES)
def test_a_result_of_the_graph_that_is_made_of_a_sparse_constant_is_dense(place: str) -> None:
    graph = Graph()
    graph.input("x", [2])
    graph.node("Relu", ["x"], "z")
    graph.node("Neg", ["w"], "y")
    graph.output("z", [2])
    graph.output("y", [100])
    weight = thinned((100,), 0.1)
    result = check(give(graph, {"w": sparse("w", weight)}, place), ["Relu"])
    (constant,) = (node for node in result.model.graph.node if node.op_type == "Constant")
    assert list(constant.output) == ["y"]
    assert (numpy_helper.to_array(constant.attribute[0].t) == -weight).all()
