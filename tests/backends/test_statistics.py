"""What the fold map knows of tensors.

True of the folded model, whatever way the BatchNormalizations went.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import irc
import numpy as np
import pytest
from fold_maps import assert_true, values
from graphs import F64, Graph, batch_norm, compiled, stimuli
from irc.backends.foldmap.fold_map import FoldMap
from irc.support.errors import FoldMapError
from onnx import ModelProto
from oracle import EXACT, magnitude
from random_graphs import grow

C = 4
OPTIONS = ("", "partial=always", "partial=always,border=map", "forward=false")


@pytest.mark.parametrize("block", range(4))
def test_what_keeps_its_name_keeps_its_values(block: int) -> None:
    """Statistics, alignment and every reader of a folded model rely on it."""
    compared = 0
    for seed in range(block, 200, 4):
        model = grow(seed, F64)
        passes = f"SimplifyInference,FoldScaleAxis{{{OPTIONS[seed % 4]}}},CanonicalizeOps,SimplifyExpr,FoldConstant"
        after = compiled(model, passes).model
        for inputs in stimuli(model, kinds=("random", "negative")):
            first, second = values(model, inputs), values(after, inputs)
            unit = max(magnitude(first), magnitude(second), 1e-30)
            for name in first.keys() & second.keys():
                compared += 1
                want, found = first[name], second[name]
                assert found.shape == want.shape, (seed, name)
                if want.dtype.kind == "f":
                    finite = np.isfinite(want)
                    assert np.abs(found - want)[finite].max(initial=0) <= EXACT * unit, (seed, name)
    assert compared > 200


def layered(*ops: str, pads: int = 0, forward: bool = False) -> tuple[Graph, Any]:
    """A convolution, operators with the BatchNormalization `bn`, and maybe a second convolution."""
    graph = Graph(dtype=F64)
    x, params = graph.input("x", [1, 3, 9, 9]), batch_norm(C, dtype=F64)
    params = replace(params, gamma=np.abs(params.gamma)) if "Relu" in ops else params
    if not forward:
        x = graph.node("Conv", [x, graph.initializer(graph.random(C, 3, 3, 3))], "conv", "conv")
    else:
        x = graph.node(
            "Gelu",
            [graph.node("Conv", [x, graph.initializer(graph.random(C, 3, 3, 3))], "conv", "conv")],
            "gelu",
        )
    constant = np.linspace(0.5, 2, C).reshape(C, 1, 1)
    for i, op in enumerate(ops):
        if op == "bn":
            graph.batch_norm(x, params, f"v{i}", f"n{i}")
            x = f"v{i}"
        elif op in ("Mul", "Add"):
            x = graph.node(op, [x, graph.initializer(constant)], f"v{i}")
        else:
            x = graph.node(op, [x], f"v{i}")
    if forward:
        x = graph.node(
            "Conv",
            [x, graph.initializer(graph.random(C, C, 3, 3))],
            "last",
            "last",
            pads=[pads] * 4,
        )
    graph.output(x)
    return graph, params


def moments(params: Any) -> tuple[Any, Any, Any, Any]:
    """mean and deviation of the data, and of the result, of a BatchNormalization."""
    spread = np.sqrt(params.var + np.float64(np.float32(1e-5)))
    return (
        params.mean,
        np.sqrt(params.var),
        params.beta,
        np.abs(params.gamma) * np.sqrt(params.var) / spread,
    )


def test_the_result_of_a_layer_is_known_by_the_batch_norm_folded_into_it() -> None:
    graph, params = layered("bn", "Relu")
    fold_map = irc.compile(graph.model()).fold_map
    known = fold_map.output_stats("conv")
    assert known is not None
    assert fold_map.layer("conv")["output"]["name"] == "v0"
    _, _, mean, std = moments(params)
    np.testing.assert_allclose(known.mean, mean, rtol=1e-15)
    np.testing.assert_allclose(known.std, std, rtol=1e-15)
    np.testing.assert_array_equal(known.gamma, params.gamma)
    assert fold_map.output_stats("L0") is not None
    with pytest.raises(FoldMapError, match="the fold map has no layer 'nowhere'"):
        fold_map.output_stats("nowhere")


def test_constants_behind_a_batch_norm_go_into_what_is_known() -> None:
    graph, params = layered("bn", "Mul", "Add", "Relu")
    known = irc.compile(graph.model()).fold_map.output_stats("conv")
    assert known is not None
    _, _, mean, std = moments(params)
    factor = np.linspace(0.5, 2, C)
    np.testing.assert_allclose(known.mean, mean * factor + factor, rtol=1e-13)
    np.testing.assert_allclose(known.std, std * factor, rtol=1e-13)
    np.testing.assert_allclose(known.gamma, params.gamma * factor, rtol=1e-13)


def test_the_last_batch_norm_of_a_chain_is_the_one_that_counts() -> None:
    graph, params = layered("bn", "Mul", "bn")
    known = irc.compile(graph.model()).fold_map.output_stats("conv")
    assert known is not None
    np.testing.assert_allclose(known.mean, params.beta, rtol=1e-15)
    np.testing.assert_array_equal(known.gamma, params.gamma)


def test_a_forward_fold_says_what_the_data_are_and_nothing_of_results() -> None:
    graph, params = layered("bn", forward=True)
    fold_map = irc.compile(graph.model()).fold_map
    mean, std, *_ = moments(params)
    data = fold_map.input_stats("last")
    assert fold_map.output_stats("last") is None
    assert data is not None
    assert fold_map.layer("last")["input"] == "gelu"
    np.testing.assert_array_equal(data.mean, mean)
    np.testing.assert_array_equal(data.std, std)


def test_a_batch_norm_that_stays_says_what_stands_on_both_sides() -> None:
    graph, params = layered("bn", forward=True, pads=1)
    result = irc.compile(
        graph.model(), "SimplifyInference,FoldScaleAxis{partial=never},FoldConstant"
    )
    mean, std, shifted, scaled = moments(params)
    for name, wanted in (("gelu", (mean, std)), ("v0", (shifted, scaled))):
        known = result.fold_map.statistic(name)
        assert known is not None
        np.testing.assert_allclose((known.mean, known.std), wanted, rtol=1e-15)


def test_what_a_scale_went_through_is_known_behind_it_only() -> None:
    """Only the result of the BatchNormalization is what it was.

    The layer's is not the one of which it knew.
    """
    graph, _ = layered("Relu", "bn")
    fold_map = irc.compile(
        graph.model(), "SimplifyInference,FoldScaleAxis{partial=always},FoldConstant"
    ).fold_map
    assert {source["status"] for source in fold_map.sources} == {"partial"}
    assert {item["tensor"] for item in fold_map.statistics} == {"v1"}
    assert fold_map.output_stats(fold_map.layers[0]["id"]) is None


def test_training_knows_nothing() -> None:
    graph = Graph(dtype=F64)
    x = graph.input("x", [1, C, 5, 5])
    params = batch_norm(C, dtype=F64)
    arrays = [
        graph.initializer(array) for array in (params.gamma, params.beta, params.mean, params.var)
    ]
    graph.output(graph.node("BatchNormalization", [x, *arrays], training_mode=1))
    assert not irc.compile(graph.model()).fold_map.statistics


def test_rescaling_keeps_the_map_true_and_the_originals_as_they_were() -> None:
    graph, params = layered("bn", "Relu")
    fold_map = irc.compile(graph.model()).fold_map
    before = [
        fold_map.arrays.get(item["value"]).copy() for item in fold_map.sources[0]["params"].values()
    ]
    scale = np.linspace(1, 3, C)
    fold_map.rescale("conv", 1 / scale)
    copy = FoldMap(fold_map.data, fold_map.arrays)
    known = copy.output_stats("conv")
    assert known is not None
    np.testing.assert_allclose(known.mean, params.beta / scale, rtol=1e-15)
    np.testing.assert_allclose(known.gamma, params.gamma / scale, rtol=1e-15)
    after = [fold_map.arrays.get(item["value"]) for item in fold_map.sources[0]["params"].values()]
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    graph, _ = layered("Mul")
    with pytest.raises(FoldMapError, match="knows nothing of the result of conv"):
        irc.compile(graph.model()).fold_map.rescale("conv", 2.0)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(4))
def test_statistics_of_random_graphs_are_true(block: int) -> None:
    checked = 0
    for seed in range(block, 400, 4):
        model = grow(seed, F64)
        passes = f"SimplifyInference,FoldScaleAxis{{{OPTIONS[seed % 4]}}},CanonicalizeOps,SimplifyExpr,FoldConstant"
        passes += ",CrossLayerEqualization,FoldConstant" * (seed // 4 % 2)
        checked += assert_true(model, compiled(model, passes), seed)
    assert checked > 20


def matmul_chain(*, direct: bool) -> ModelProto:
    """A shift that two MatMuls in a row pass on.

    With `direct` a Gemm reads what is in front of the norm, too.
    """
    graph = Graph(dtype=F64)
    x = graph.input("x", [8, 4])
    h = graph.node(
        "Add",
        [graph.node("MatMul", [x, weight(graph)], "m"), graph.initializer(graph.random(4))],
        "h",
    )
    t = graph.node("MatMul", [h, weight(graph)], "t")
    n = graph.batch_norm(t, batch_norm(4, dtype=F64), "n")
    graph.output(graph.node("Relu", [graph.node("MatMul", [n, weight(graph)])], "y"))
    if direct:
        graph.output(
            graph.node(
                "Relu",
                [graph.node("Gemm", [t, weight(graph), graph.initializer(graph.random(4))])],
                "z",
            )
        )
    return graph.model()


def weight(graph: Graph) -> str:
    return graph.initializer(graph.random(4, 4))


@pytest.mark.parametrize("direct", [False, True])
def test_a_shift_that_a_matmul_passes_on_changes_its_result(direct: bool) -> None:
    model = matmul_chain(direct=direct)
    assert_names(model, compiled(model).model)
    assert_true(model, compiled(model))


def test_a_part_of_an_affine_in_front_of_a_batch_norm_stays() -> None:
    """The sum of a bias goes forward alone.

    What the layer makes is not the data of the BatchNormalization.
    """
    graph = Graph(dtype=F64)
    x = graph.input("x", [8, 4])
    h = graph.node(
        "Add",
        [graph.node("MatMul", [x, weight(graph)], "m"), graph.initializer(np.full(4, 10.0))],
        "h",
    )
    n = graph.batch_norm(h, batch_norm(4, dtype=F64), "n")
    total = graph.node("Add", [n, x], "s")
    graph.output(
        graph.node("Gemm", [total, weight(graph), graph.initializer(graph.random(4))], "y")
    )
    model = graph.model()
    assert_names(model, compiled(model).model)
    assert_true(model, compiled(model))


def test_all_parts_of_a_split_change_with_it() -> None:
    graph = Graph(dtype=F64)
    x = graph.input("x", [1, 3, 5, 5])
    h = graph.node("Conv", [x, graph.initializer(graph.random(8, 3, 1, 1))], "h")
    graph.node("Split", [h], ["a", "b"], axis=1, num_outputs=2)
    graph.batch_norm("a", batch_norm(4, dtype=F64), "unread")
    graph.output(graph.node("Mul", ["b", graph.initializer(np.float64(2.0))], "y"))
    model = graph.model()
    result = compiled(model)
    assert_names(model, result.model)
    assert_true(model, result)


def assert_names(model: ModelProto, after: ModelProto) -> None:
    """What has a name of the source holds what it held there."""
    for inputs in stimuli(model, kinds=("random",)):
        first, second = values(model, inputs), values(after, inputs)
        for name in first.keys() & second.keys():
            np.testing.assert_allclose(
                second[name], first[name], rtol=1e-9, atol=1e-9, err_msg=name
            )


def test_two_nodes_of_one_name_do_not_share_what_is_known() -> None:
    """Two If nodes with one name, of which the second alone has a BatchNormalization."""
    graph = Graph(dtype=F64)
    graph.input("x", [2, 3, 5, 5])
    condition = graph.input("c", [], np.dtype(bool))
    for i in range(2):
        branches = {}
        for branch in ("then_branch", "else_branch"):
            inner = Graph(dtype=F64)
            hidden = inner.node(
                "Conv", ["x", inner.initializer(inner.random(4, 3, 1, 1))], "" if i else "n"
            )
            if i:
                inner.batch_norm(hidden, batch_norm(4, dtype=F64), "n")
            inner.output(inner.node("Sigmoid", ["n"], f"{branch}{i}"), [2, 4, 5, 5])
            branches[branch] = inner.model().graph
        graph.output(graph.node("If", [condition], f"y{i}", "same", **branches), [2, 4, 5, 5])
    statistics = compiled(graph.model()).fold_map.statistics
    assert [item["tensor"] for item in statistics] == ["n", "n"]
