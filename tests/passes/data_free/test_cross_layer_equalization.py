"""CrossLayerEqualization: the paper's formulas, obstacles of a scale, and the same function."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from equalize import (
    accuracy,
    activated,
    assert_statistics_are_true,
    calibrated,
    digits,
    imbalanced,
    logits,
    quantize_weights,
    values,
    weights,
)
from fold_maps import assert_map
from graphs import (
    F16,
    F32,
    F64,
    Array,
    Graph,
    assert_equivalent,
    assert_interface,
    assert_named,
    assert_nothing_stale,
    batch_norm,
    compiled,
    operand,
)
from harness import run
from irc.compiler import compile as compile_model
from irc.passes import CrossLayerEqualization, PassContext, Verify
from irc.passes.affine.records.fold_records import fold_records
from irc.passes.affine.records.source_affines import known_statistics
from irc.result import Result
from irc.support.errors import UsageError
from irc.tools.cli.main import main
from onnx import ModelProto, numpy_helper
from oracle import EXACT, difference
from random_graphs import grow

PASS = "CrossLayerEqualization"
Build = Callable[[Graph, str], str]


def pair(between: str = "", *, second: str = "Conv", **attrs: object) -> ModelProto:
    """Two layers of float64, `first` [4, 3, 1, 1] and `second`, with an activation between."""
    graph = Graph(dtype=F64)
    graph.input("x", [2, 3, 5, 5])
    first = graph.initializer(imbalanced(graph, 4, 3, 1, 1), "first")
    h = graph.node("Conv", ["x", first, graph.initializer(graph.random(4), "b1")])
    h = activated(graph, h, between)
    shape, axis = ((4, 6, 3, 3), 0) if second == "ConvTranspose" else ((6, 4, 3, 3), 1)
    weight = graph.initializer(imbalanced(graph, *shape, axis=axis), "second")
    graph.node(second, [h, weight, graph.initializer(graph.random(6), "b2")], "y", **attrs)
    graph.output("y")
    return graph.model()


def equalized(model: ModelProto, options: str = "") -> Result:
    """The result of the pass, which keeps the function and is a fixpoint."""
    result = compiled(model, f"{PASS}{{{options}}},FoldConstant", context=PassContext([Verify()]))
    assert_interface(model, result.model)
    assert_nothing_stale(model, result.model)
    assert_named(model, result.model)
    assert_equivalent(model, result.model)
    return result


def largest(weight: Array, axis: int) -> Array:
    """max |W| of each channel on `axis`."""
    return np.asarray(np.abs(weight).max(axis=tuple(i for i in range(weight.ndim) if i != axis)))


# formulas


@pytest.mark.parametrize("between", ["", "Relu", "LeakyRelu", "PRelu"])
@pytest.mark.parametrize("second", ["Conv", "ConvTranspose"])
def test_a_pair_gets_the_scales_of_the_paper(between: str, second: str) -> None:
    model = pair(between, second=second)
    before, after = weights(model), weights(equalized(model).model)
    data_axis = 0 if second == "ConvTranspose" else 1
    r1, r2 = largest(before["first"], 0), largest(before["second"], data_axis)
    s = r1 / np.sqrt(r1 * r2)
    view = (-1, 1, 1, 1) if data_axis == 0 else (1, -1, 1, 1)
    np.testing.assert_allclose(after["first"], before["first"] / s.reshape(-1, 1, 1, 1), rtol=1e-14)
    np.testing.assert_allclose(after["b1"], before["b1"] / s, rtol=1e-14)
    np.testing.assert_allclose(after["second"], before["second"] * s.reshape(view), rtol=1e-14)
    np.testing.assert_array_equal(after["b2"], before["b2"])
    np.testing.assert_allclose(
        largest(after["first"], 0), largest(after["second"], data_axis), rtol=1e-14
    )


@pytest.mark.parametrize("order", [None, [2, 0, 3, 1]], ids=["straight", "shuffled"])
def test_a_depthwise_convolution_is_equalized_with_both_neighbours(order: list[int] | None) -> None:
    graph = Graph(dtype=F64)
    graph.input("x", [2, 3, 6, 6])
    names = ["first", "middle", "last"]
    shapes: list[tuple[tuple[int, ...], int]] = [
        ((4, 3, 1, 1), 0),
        ((4, 1, 3, 3), 0),
        ((5, 4, 1, 1), 1),
    ]
    arrays = [imbalanced(graph, *shape, axis=axis) for shape, axis in shapes]
    arrays[0] = arrays[0][::-1].copy()
    h = "x"
    for name, array in zip(names, arrays, strict=True):
        group = 4 if name == "middle" else 1
        if name == "middle" and order is not None:
            h = graph.node("Gather", [h, graph.initializer(np.array(order))], axis=1)
        h = graph.node(
            "Conv",
            [h, graph.initializer(array, name), graph.initializer(graph.random(len(array)))],
            group=group,
        )
        h = h if name == "last" else graph.node("Relu", [h])
    graph.node("Identity", [h], "y")
    graph.output("y")
    model = graph.model()
    after = weights(equalized(model).model)
    places = np.array(order or range(4))
    r0, r1, r2 = largest(arrays[0], 0)[places], largest(arrays[1], 0), largest(arrays[2], 1)
    root = np.cbrt(r0 * r1 * r2)
    s12, s23 = r0 / root, root / r2
    np.testing.assert_allclose(
        after["first"][places], arrays[0][places] / s12.reshape(-1, 1, 1, 1), rtol=1e-13
    )
    np.testing.assert_allclose(
        after["middle"], arrays[1] * (s12 / s23).reshape(-1, 1, 1, 1), rtol=1e-13
    )
    np.testing.assert_allclose(after["last"], arrays[2] * s23.reshape(1, -1, 1, 1), rtol=1e-13)


def test_links_follow_each_other_in_the_order_of_the_graph() -> None:
    graph = Graph(dtype=F64)
    graph.input("x", [2, 3])
    arrays = [
        imbalanced(graph, 3, 4, axis=1),
        imbalanced(graph, 4, 5, axis=0),
        imbalanced(graph, 5, 2, axis=0),
    ]
    h = "x"
    for i, array in enumerate(arrays):
        h = graph.node("MatMul", [h, graph.initializer(array, f"w{i}")], "y" if i == 2 else "")
    graph.output("y")
    found = weights(equalized(graph.model()).model)
    for i in range(2):
        s = np.sqrt(largest(arrays[i], 1) / largest(arrays[i + 1], 0))
        arrays[i], arrays[i + 1] = arrays[i] / s, arrays[i + 1] * s[:, None]
    for i, array in enumerate(arrays):
        np.testing.assert_allclose(found[f"w{i}"], array, rtol=1e-13)


def test_iterations_bring_the_ranges_of_a_chain_together() -> None:
    graph = Graph(dtype=F64)
    graph.input("x", [2, 3])
    h = "x"
    for i, shape in enumerate([(3, 4), (4, 5), (5, 2)]):
        h = graph.node(
            "MatMul",
            [h, graph.initializer(imbalanced(graph, *shape, axis=1), f"w{i}")],
            "y" if i == 2 else "",
        )
    graph.output("y")

    def gap(options: str) -> float:
        found = weights(equalized(graph.model(), options).model)
        return float(np.abs(np.log(largest(found["w0"], 1) / largest(found["w1"], 0))).max())

    assert gap("iterations=30") < 1e-5 < gap("iterations=2") < gap("")


def test_channels_without_a_range_stay() -> None:
    graph = Graph(dtype=F64)
    graph.input("x", [2, 3])
    first, second = imbalanced(graph, 3, 4, axis=1), imbalanced(graph, 4, 5, axis=0)
    first[:, 1] = 0
    second[2] = 0
    h = graph.node("MatMul", ["x", graph.initializer(first, "w0")])
    graph.node("MatMul", [h, graph.initializer(second, "w1")], "y")
    graph.output("y")
    after = weights(equalized(graph.model()).model)
    np.testing.assert_array_equal(after["w0"][:, [1, 2]], first[:, [1, 2]])
    np.testing.assert_array_equal(after["w1"][[1, 2]], second[[1, 2]])
    np.testing.assert_allclose(
        largest(after["w0"], 1)[[0, 3]], largest(after["w1"], 0)[[0, 3]], rtol=1e-14
    )


def test_powers_of_two_round_nothing() -> None:
    graph = Graph()
    graph.input("x", [2, 3, 5, 5])
    h = graph.node(
        "Conv",
        ["x", graph.initializer(imbalanced(graph, 4, 3, 3, 3)), graph.initializer(graph.random(4))],
    )
    h = graph.node("Relu", [h])
    second = imbalanced(graph, 6, 4, 1, 1, axis=1)[:, ::-1]
    graph.node("Conv", [h, graph.initializer(second, "w")], "y")
    graph.output("y")
    model = graph.model()
    result = compiled(model, f"{PASS}{{power_of_two=true}},FoldConstant")
    ratio = weights(result.model)["w"] / weights(model)["w"]
    assert (np.frexp(ratio)[0] == 0.5).all()
    assert (ratio != 1).any()
    inputs = {"x": graph.random(2, 3, 5, 5)}
    np.testing.assert_array_equal(run(result.model, inputs)["y"], run(model, inputs)["y"])


# a Clip in between


def clipped_pair(
    low: object = 0.0, high: object = 6.0, *, opset: int = 21, dtype: np.dtype[Any] = F64
) -> Graph:
    """Two layers around a Clip, whose bounds are initializers, or attributes in old opsets.

    The weights are such that the Clip acts in most channels.
    """
    graph = Graph(dtype=dtype, opset=opset)
    graph.input("x", [2, 3, 5, 5])
    h = graph.node("Conv", ["x", graph.initializer(imbalanced(graph, 4, 3, 1, 1), "first")])
    if opset < 11:
        bounds = {"min": low, "max": high}
        h = graph.node(
            "Clip", [h], **{key: float(end) for key, end in bounds.items() if end is not None}
        )  # type: ignore[arg-type]
    else:
        ends = [
            "" if end is None else graph.initializer(np.asarray(end, dtype)) for end in (low, high)
        ]
        h = graph.node("Clip", [h, *ends])
    second = imbalanced(graph, 6, 4, 1, 1, axis=1)[:, ::-1]
    graph.output(graph.node("Conv", [h, graph.initializer(second, "second")], "y"))
    return graph


def operators(model: ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def test_a_clip_gets_bounds_per_channel() -> None:
    model = clipped_pair().model()
    before, after = weights(model), equalized(model).model
    s = np.sqrt(largest(before["first"], 0) / largest(before["second"], 1))
    np.testing.assert_allclose(
        weights(after)["first"], before["first"] / s.reshape(-1, 1, 1, 1), rtol=1e-14
    )
    np.testing.assert_allclose(
        weights(after)["second"], before["second"] * s.reshape(1, -1, 1, 1), rtol=1e-14
    )
    assert operators(after) == ["Conv", "Clip", "Min", "Conv"]
    names = [node.name for node in after.graph.node]
    assert all(names)  # quantizers find operators by name
    assert len(set(names)) == len(names)
    clip, limit = after.graph.node[1:3]
    np.testing.assert_allclose(operand(after, limit, 1), (6 / s).reshape(1, 4, 1, 1), rtol=1e-14)
    assert [float(operand(after, clip, i)) for i in (1, 2)] == [0, operand(after, limit, 1).max()]


BOUNDS: dict[str, tuple[float | None, float | None, list[str]]] = {
    "a lower bound below zero": (-0.5, 0.25, ["Clip", "Max", "Min"]),
    "a lower bound above zero": (0.5, 2.0, ["Clip", "Max", "Min"]),
    "an upper bound of zero": (-2.0, 0.0, ["Clip", "Max"]),
    "a lower bound alone": (-0.25, None, ["Clip", "Max"]),
    "an upper bound alone": (None, 0.25, ["Clip", "Min"]),
    "a Relu": (0.0, None, ["Clip"]),
    "bounds of zero": (0.0, 0.0, ["Clip"]),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_a_bound_other_than_zero_is_limited_per_channel(name: str) -> None:
    low, high, between = BOUNDS[name]
    assert operators(equalized(clipped_pair(low, high).model()).model) == ["Conv", *between, "Conv"]


@pytest.mark.parametrize("opset", [6, 7, 8, 10, 11, 13])
def test_a_clip_of_an_old_opset_is_limited_where_a_min_broadcasts(opset: int) -> None:
    model = clipped_pair(opset=opset, dtype=F32).model()
    assert operators(equalized(model).model) == ["Conv", "Clip", *["Min"] * (opset >= 8), "Conv"]
    assert (equalized(model).model == model) == (opset < 8)


def test_bounds_that_are_attributes_hold_no_float64() -> None:
    model = clipped_pair(opset=10).model()
    assert equalized(model).model == model


@pytest.mark.parametrize("dtype", [F16, F32, F64], ids=str)
def test_bounds_of_every_dtype(dtype: np.dtype[Any]) -> None:
    assert "Min" in operators(equalized(clipped_pair(-0.75, dtype=dtype).model()).model)


def test_a_bound_that_would_become_subnormal_stays() -> None:
    """float16: 7e-5 divided by a scale above 1 is below the least normal number; 7e-3 is not."""
    assert "Min" in operators(compiled(clipped_pair(0.0, 7e-3, dtype=F16).model(), PASS).model)
    model = clipped_pair(0.0, 7e-5, dtype=F16).model()
    assert compiled(model, PASS).model == model


def test_equalizing_again_adds_no_operator() -> None:
    model = clipped_pair(-1.0, 6.0).model()
    once, twice = equalized(model).model, equalized(model, "iterations=3").model
    assert operators(once) == operators(twice) == ["Conv", "Clip", "Max", "Min", "Conv"]
    other = weights(once)["first"] * 2.0 ** np.array([3, -2, 0, 1]).reshape(-1, 1, 1, 1)
    changed = copy.deepcopy(once)
    for tensor in changed.graph.initializer:
        if tensor.name == "first":
            tensor.CopyFrom(numpy_helper.from_array(other, "first"))
    assert operators(equalized(changed).model) == operators(once)
    assert weights(equalized(changed).model)["first"].tolist() != other.tolist()


def test_a_clip_stays_where_equalizing_gains_nothing() -> None:
    """The greatest weights' product falls by 4 % with the first spread, 7 % with the second."""
    for spread, limited in ((0.06, False), (0.11, True)):
        graph = Graph(dtype=F64)
        graph.input("x", [2, 1, 3, 3])
        first = 2.0 ** np.array([0.0, spread, 0.0, spread]).reshape(4, 1, 1, 1)
        second = 2.0 ** np.array([spread, 0.0, spread, 0.0]).reshape(1, 4, 1, 1)
        h = activated(graph, graph.node("Conv", ["x", graph.initializer(first)]), "Relu6")
        graph.output(graph.node("Conv", [h, graph.initializer(second)], "y"))
        model = graph.model()
        assert (equalized(model).model != model) == limited


def test_clips_are_kept_on_demand() -> None:
    model = clipped_pair().model()
    assert equalized(model, "clip=keep").model == model
    one_sided = clipped_pair(0.0, None).model()
    assert equalized(one_sided, "clip=keep").model != one_sided


def with_idle_bound(
    *,
    first: float | None = 6.0,
    low: float = 0.0,
    high: float = 6.0,
    mean: float = 0.5,
    std: float = 0.2,
    weight: float = 0.02,
    known: bool = True,
) -> tuple[ModelProto, dict[str, Array]]:
    """Conv, BN, Clip, Conv, BN, Clip, Conv.

    The first Clip to `first`, the second from `low` to `high`.

    `mean` and `std` are those of the data of the second Clip, and the weights before it reach
    `weight`.
    """
    graph = Graph(dtype=F64)
    graph.input("x", [8, 3, 6, 6])
    data = {"x": graph.random(8, 3, 6, 6)}
    h = graph.node("Conv", ["x", graph.initializer(imbalanced(graph, 4, 3, 1, 1))])
    h = calibrated(graph, h, data, np.ones(4), np.ones(4))
    h = graph.node(
        "Clip", [h, graph.initializer(0.0), "" if first is None else graph.initializer(first)]
    )
    kernel = imbalanced(graph, 4, 4, 3, 3)
    kernel *= weight / np.abs(kernel).max()
    h = graph.node("Conv", [h, graph.initializer(kernel)], pads=[1, 1, 1, 1])
    if known:
        parameters = (np.full(4, std), np.full(4, mean), np.full(4, mean), np.full(4, std**2))
        h = graph.node("BatchNormalization", [h, *map(graph.initializer, parameters)], epsilon=0.0)
    h = graph.node("Clip", [h, graph.initializer(low), graph.initializer(high)])
    second = imbalanced(graph, 5, 4, 1, 1, axis=1)[:, ::-1]
    graph.output(graph.node("Conv", [h, graph.initializer(second)], "y"))
    return graph.model(), data


IDLE: dict[str, tuple[dict[str, Any], str, bool]] = {
    "far below its bound": ({}, "", True),
    "exact by default": ({}, "clip=exact", False),
    "the statistic passes the bound": ({"mean": 5.0}, "", False),
    "not with fewer deviations": ({"mean": 5.0}, "sigmas=4", True),
    "the weights pass the bound": ({"weight": 3.0}, "", False),
    "a lower bound below zero": ({"low": -0.01}, "", False),
    "without a statistic": ({"known": False}, "", False),
}


@pytest.mark.parametrize("name", IDLE)
def test_a_bound_that_is_not_reached_goes_on_demand(name: str) -> None:
    change, options, goes = IDLE[name]
    model, data = with_idle_bound(**change)
    options = options if options.startswith("clip") else f"clip=relu,{options}"
    result = compile_model(
        model, f"default,{PASS}{{{options}}},FoldConstant", context=PassContext([Verify()])
    )
    found = operators(result.model)
    assert found[:4] == ["Conv", "Clip", "Min", "Conv"]
    assert (found[4:] == ["Relu", "Conv"]) == goes
    assert ("Min" in found[4:]) != goes
    warnings = [text for text in result.warnings if "Relu" in text]
    assert bool(warnings) == goes
    for text in warnings:
        assert f"mean +- {4 if 'sigmas' in options else 6} deviations" in text
    np.testing.assert_allclose(
        values(result.model, data)["y"], values(model, data)["y"], rtol=1e-11, atol=1e-11
    )
    assert_nothing_stale(model, result.model)
    assert_named(model, result.model)
    assert_map(model, result)


def test_a_bound_that_is_not_reached_stays_where_nothing_is_equalized() -> None:
    model, _ = with_idle_bound()
    once = compile_model(model, f"default,{PASS},FoldConstant").model
    kept = compile_model(once, f"{PASS}{{clip=relu}}").model
    assert operators(kept) == operators(once)


def test_data_that_leave_the_statistics_pass_a_bound_that_went() -> None:
    """As the warning says.

    The pass with clip=relu therefore does not claim to keep the function.
    """
    model, data = with_idle_bound(first=None)
    result = compile_model(model, f"default,{PASS}{{clip=relu}}")
    assert operators(result.model) == ["Conv", "Clip", "Conv", "Relu", "Conv"]
    for factor, holds in ((1.0, True), (1000.0, False)):
        inputs = {"x": data["x"] * factor}
        found, expected = (values(each, inputs)["y"] for each in (result.model, model))
        assert np.allclose(found, expected, rtol=1e-11, atol=1e-11) == holds
    assert not CrossLayerEqualization(clip="relu").preserves
    assert CrossLayerEqualization().preserves


def _dynamic_bound(graph: Graph, h: str) -> str:
    return graph.node("Clip", [h, graph.initializer(0.0), graph.input("high", [])])


def _overridable_bound(graph: Graph, h: str) -> str:
    graph.input("high", [])
    return graph.node("Clip", [h, graph.initializer(0.0), graph.initializer(6.0, "high")])


def _clip(low: float, high: float) -> Build:
    return lambda graph, h: graph.node("Clip", [h, graph.initializer(low), graph.initializer(high)])


def _read_again(graph: Graph, h: str) -> str:
    h = activated(graph, h, "Relu6")
    graph.output(graph.node("Sigmoid", [h], "z"))
    return h


def _returned_clip(graph: Graph, h: str) -> str:
    h = activated(graph, h, "Relu6")
    graph.output(h)
    return h


def _hard_swish(graph: Graph, h: str) -> str:
    gate = activated(graph, graph.node("Add", [h, graph.initializer(3.0)]), "Relu6")
    return graph.node("Div", [graph.node("Mul", [h, gate]), graph.initializer(6.0)])


def _squeezed(graph: Graph, h: str) -> str:
    """A gate of SE networks: the data times a Sigmoid of their means."""
    squeeze = graph.initializer(imbalanced(graph, 4, 4, 1, 1, axis=1))
    gate = graph.node("Conv", [graph.node("GlobalAveragePool", [h]), squeeze])
    return graph.node("Mul", [h, graph.node("Sigmoid", [gate])])


def _gated(graph: Graph, h: str) -> str:
    return graph.node("Mul", [h, activated(graph, h, "Relu6")])


STOPPED: dict[str, tuple[Build, Build]] = {
    "a dynamic bound": (lambda g, h: activated(g, h, "Relu6"), _dynamic_bound),
    "an overridable bound": (_clip(-1.0, 6.0), _overridable_bound),
    "a NaN": (_clip(-1.0, 6.0), _clip(0.0, np.nan)),
    "a minimum above the maximum": (_clip(1.0, 6.0), _clip(6.0, 1.0)),
    "another reader": (lambda g, h: activated(g, h, "Relu6"), _read_again),
    "a result of the graph": (lambda g, h: activated(g, h, "Relu6"), _returned_clip),
    "a written-out HardSwish": (_squeezed, _hard_swish),
    "a product of two functions": (
        lambda g, h: activated(g, activated(g, h, "Relu6"), "Abs"),
        _gated,
    ),
}


@pytest.mark.parametrize("stopped", [False, True], ids=["goes", "stays"])
@pytest.mark.parametrize("name", STOPPED)
def test_what_stops_bounds_per_channel(name: str, stopped: bool) -> None:
    graph = Graph(dtype=F64)
    graph.input("x", [2, 3, 5, 5])
    h = graph.node("Conv", ["x", graph.initializer(imbalanced(graph, 4, 3, 1, 1))])
    h = STOPPED[name][stopped](graph, h)
    second = imbalanced(graph, 6, 4, 1, 1, axis=1)[:, ::-1]
    graph.output(graph.node("Conv", [h, graph.initializer(second)], "y"))
    model = graph.model()
    if "NaN" in name or "above" in name:
        result = compiled(model, f"{PASS},FoldConstant")  # no two runtimes agree on such a Clip
    else:
        result = equalized(model)
    assert (result.model == model) == stopped


def test_clips_within_a_triple_a_sum_and_a_concatenation() -> None:
    graph = Graph(dtype=F64)
    graph.input("x", [2, 3, 6, 6])
    parts = []
    for _ in range(2):
        h = activated(
            graph,
            graph.node("Conv", ["x", graph.initializer(imbalanced(graph, 4, 3, 1, 1)[::-1])]),
            "Relu6",
        )
        h = graph.node("Conv", [h, graph.initializer(imbalanced(graph, 4, 1, 3, 3) ** 2)], group=4)
        parts.append(activated(graph, h, "Relu6"))
    joined = activated(graph, graph.node("Add", parts), "Relu6")
    skipped = graph.node("Conv", ["x", graph.initializer(imbalanced(graph, 4, 3, 3, 3))])
    both = graph.node("Concat", [joined, activated(graph, skipped, "Relu6")], axis=1)
    last = np.tile(imbalanced(graph, 5, 4, 1, 1, axis=1)[:, ::-1], (1, 2, 1, 1))
    graph.output(graph.node("Conv", [both, graph.initializer(last)], "y"))
    model = graph.model()
    result = equalized(model)
    assert operators(result.model).count("Clip") == operators(result.model).count("Min") == 6
    keys = [set(record) for record in fold_records(result.module).history[0].layers.values()]
    assert sorted(map(sorted, keys)) == sorted(
        map(sorted, [{"rescale_out"}] * 3 + [{"rescale_in", "rescale_out"}] * 2 + [{"rescale_in"}])
    )


# several layers on a side


def test_all_readers_of_a_channel_count() -> None:
    graph = Graph(dtype=F64)
    graph.input("x", [2, 3, 5, 5])
    first = imbalanced(graph, 4, 3, 1, 1)
    h = graph.node("Conv", ["x", graph.initializer(first, "first")])
    seconds = [
        imbalanced(graph, 6, 4, 1, 1, axis=1),
        imbalanced(graph, 2, 4, 3, 3, axis=1)[:, ::-1].copy(),
    ]
    for i, array in enumerate(seconds):
        graph.node("Conv", [h, graph.initializer(array, f"second{i}")], f"y{i}")
        graph.output(f"y{i}")
    after = weights(equalized(graph.model()).model)
    r2 = np.maximum(*(largest(array, 1) for array in seconds))
    s = np.sqrt(largest(first, 0) / r2)
    np.testing.assert_allclose(after["second0"], seconds[0] * s.reshape(1, -1, 1, 1), rtol=1e-13)
    np.testing.assert_allclose(after["second1"], seconds[1] * s.reshape(1, -1, 1, 1), rtol=1e-13)


def test_layers_that_are_added_are_scaled_together() -> None:
    graph = Graph(dtype=F64)
    graph.input("x", [2, 3, 5, 5])
    firsts = [imbalanced(graph, 4, 3, 1, 1), imbalanced(graph, 4, 3, 1, 1)[::-1].copy()]
    parts = [
        graph.node("Conv", ["x", graph.initializer(array, f"first{i}")])
        for i, array in enumerate(firsts)
    ]
    h = graph.node("Relu", [graph.node("Add", parts)])
    second = imbalanced(graph, 6, 4, 1, 1, axis=1)
    graph.node("Conv", [h, graph.initializer(second, "second")], "y")
    graph.output("y")
    after = weights(equalized(graph.model()).model)
    r1 = np.maximum(*(largest(array, 0) for array in firsts))
    s = np.sqrt(r1 / largest(second, 1))
    np.testing.assert_allclose(after["second"], second * s.reshape(1, -1, 1, 1), rtol=1e-13)


def test_each_operand_of_a_concatenation_is_equalized_with_its_part() -> None:
    graph = Graph(dtype=F64)
    graph.input("x", [2, 3, 5, 5])
    first = imbalanced(graph, 4, 3, 1, 1)
    h = graph.node(
        "Concat", [graph.node("Conv", ["x", graph.initializer(first, "first")]), "x"], axis=1
    )
    second = imbalanced(graph, 6, 7, 1, 1, axis=1)
    graph.node("Conv", [h, graph.initializer(second, "second")], "y")
    graph.output("y")
    after = weights(equalized(graph.model()).model)
    s = np.sqrt(largest(first, 0) / largest(second, 1)[:4])
    np.testing.assert_allclose(
        after["second"][:, :4], second[:, :4] * s.reshape(1, -1, 1, 1), rtol=1e-13
    )
    np.testing.assert_array_equal(after["second"][:, 4:], second[:, 4:])


# what stops it


def _conv(graph: Graph, x: str, channels: int = 4, **attrs: object) -> str:
    rows = 6 if attrs.get("group", 1) == 1 else 4
    shape = (rows, channels // int(attrs.get("group", 1)), 1, 1)  # type: ignore[call-overload]
    return graph.node("Conv", [x, graph.initializer(imbalanced(graph, *shape, axis=0))], **attrs)


def _second_reader(graph: Graph, h: str) -> str:
    graph.node("Sigmoid", [h], "z")
    graph.output("z")
    return _conv(graph, h)


def _returned(graph: Graph, h: str) -> str:
    graph.output(h)
    return _conv(graph, h)


def _shared(graph: Graph, h: str) -> str:
    weight = graph.initializer(imbalanced(graph, 4, 4, 1, 1, axis=1))
    return graph.node("Conv", [graph.node("Sigmoid", [graph.node("Conv", [h, weight])]), weight])


def _normalized(graph: Graph, h: str) -> str:
    ones = graph.initializer(np.ones(4, graph.dtype))
    return graph.node("InstanceNormalization", [h, ones, ones])


def _dynamic(graph: Graph, h: str) -> str:
    return graph.node("Conv", [h, graph.input("w", [6, 4, 1, 1])])


def _residual(graph: Graph, h: str) -> str:
    return _conv(graph, graph.node("Add", [h, graph.input("r", [2, 4, 5, 5])]))


REFUSALS: dict[str, tuple[Build, Build]] = {
    "Sigmoid": (
        lambda g, h: _conv(g, g.node("Abs", [h])),
        lambda g, h: _conv(g, g.node("Sigmoid", [h])),
    ),
    "a second reader": (_conv, _second_reader),
    "a result": (_conv, _returned),
    "a shared weight": (_conv, _shared),
    "a normalization": (_conv, _normalized),
    "a dynamic weight": (_conv, _dynamic),
    "a sum with the input": (_conv, _residual),
    "groups that mix": (
        lambda g, h: _conv(g, h, group=2),
        lambda g, h: _conv(g, g.node("DepthToSpace", [h], blocksize=2), 1),
    ),
    "a pool in another direction": (
        lambda g, h: _conv(g, g.node("GlobalAveragePool", [h])),
        lambda g, h: _conv(g, g.node("LpNormalization", [h], axis=1, p=2)),
    ),
}


@pytest.mark.parametrize("stopped", [False, True], ids=["goes", "stays"])
@pytest.mark.parametrize("name", REFUSALS)
def test_what_stops_a_scale(name: str, stopped: bool) -> None:
    graph = Graph(dtype=F64)
    graph.input("x", [2, 3, 5, 5] if name != "groups that mix" else [2, 3, 4, 4])
    h = graph.node("Conv", ["x", graph.initializer(imbalanced(graph, 4, 3, 1, 1))])
    graph.node("Tanh", [REFUSALS[name][stopped](graph, h)], "y")
    graph.output("y", None)
    model = graph.model()
    result = equalized(model)
    assert (result.model == model) == stopped
    assert bool(fold_records(result.module).history) != stopped


def _squeezed(graph: Graph, h: str, gate: str) -> str:
    """h times a gate for each channel, as squeeze and excitation has it."""
    g = graph.node(
        "Conv", [graph.node("GlobalAveragePool", [h]), graph.initializer(graph.random(2, 4, 1, 1))]
    )
    g = graph.node("Conv", [graph.node("Relu", [g]), graph.initializer(graph.random(4, 2, 1, 1))])
    return graph.node("Mul", [h, graph.node(gate, [g])])


def _hard_swish_in_parts(graph: Graph, h: str) -> str:
    bounds = graph.initializer(0.0), graph.initializer(6.0)
    gate = graph.node("Clip", [graph.node("Add", [h, graph.initializer(3.0)]), *bounds])
    return graph.node("Div", [graph.node("Mul", [h, gate]), graph.initializer(6.0)])


GATES: dict[str, tuple[Build, int | str]] = {
    "squeeze and excitation": (lambda g, h: _squeezed(g, h, "Sigmoid"), 4),
    "squeeze and excitation with HardSigmoid": (lambda g, h: _squeezed(g, h, "HardSigmoid"), 4),
    "a product of layers": (
        lambda g, h: g.node("Mul", [h, g.node("Conv", ["x", g.initializer(g.random(4, 3, 1, 1))])]),
        3,
    ),
    "Swish": (
        lambda g, h: g.node("Mul", [h, g.node("Sigmoid", [h])]),
        "Sigmoid 't_3' after it cannot absorb",
    ),
    "HardSwish": (lambda g, h: g.node("HardSwish", [h]), "HardSwish 't_3' after it cannot absorb"),
    "HardSwish in parts": (
        _hard_swish_in_parts,
        "is part of a HardSwish: folding it would keep runtimes from",
    ),
    "a product with HardSigmoid": (
        lambda g, h: g.node("Mul", [h, g.node("HardSigmoid", [h])]),
        "HardSigmoid 't_3': its slope is not per channel",
    ),
    "a square": (lambda g, h: g.node("Mul", [h, h]), "reads the affine on more than one path"),
}


@pytest.mark.parametrize("name", GATES)
def test_gates_pass_a_scale_or_say_why_not(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build, expected = GATES[name]
    graph = Graph(dtype=F64)
    graph.input("x", [2, 3, 5, 5])
    h = graph.node("Conv", ["x", graph.initializer(imbalanced(graph, 4, 3, 1, 1))])
    graph.output(graph.node("Identity", [_conv(graph, build(graph, h))], "y"))
    model = graph.model()
    result = equalized(model)
    changed = [len(applied.layers) for applied in fold_records(result.module).history]
    assert changed == ([expected] if isinstance(expected, int) else [])
    if isinstance(expected, str):
        assert result.model == model
        onnx.save(model, tmp_path / "model.onnx")
        command = (
            f"compile {tmp_path / 'model.onnx'} -o {tmp_path / 'out.onnx'} --passes {PASS}"
        ).split()
        assert main([*command, "--debug-rules"]) == 0
        assert expected in capsys.readouterr().err


def test_only_activations_between_convolutions() -> None:
    for between, links in {
        "Relu": True,
        "": True,
        "PRelu": True,
        "LeakyRelu": False,
        "Abs": False,
    }.items():
        model = pair(between)
        assert (equalized(model, "through=activation").model != model) == links, between
    graph = Graph(dtype=F64)
    graph.input("x", [2, 3])
    h = graph.node("MatMul", ["x", graph.initializer(graph.random(3, 4))])
    graph.node("MatMul", [h, graph.initializer(graph.random(4, 5))], "y")
    graph.output("y")
    assert equalized(graph.model(), "through=activation").model == graph.model()


def test_what_exceeds_the_dtype_is_left_out() -> None:
    graph = Graph(dtype=F16)
    graph.input("x", [2, 3])
    first = np.full((3, 4), 1e-6, F16)
    h = graph.node("Gemm", ["x", graph.initializer(first), graph.initializer(np.full(4, 6e4, F16))])
    graph.node("Gemm", [h, graph.initializer(np.full((4, 2), 6e4, F16))], "y")
    graph.output("y")
    model = graph.model()
    assert compiled(model, PASS).model == model


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(UsageError, match="any, activation"):
        CrossLayerEqualization(through="everything")
    with pytest.raises(UsageError, match="exact, keep, relu"):
        CrossLayerEqualization(clip="none")
    with pytest.raises(UsageError, match="sigmas has to be positive"):
        CrossLayerEqualization(sigmas=0)


# what is known of the values, and the record


def statistical(activation: str = "Relu") -> tuple[ModelProto, dict[str, Array]]:
    """Conv, BN, Relu, depthwise Conv, BN, Relu, Conv, BN with statistics of the data."""
    graph = Graph(dtype=F64)
    graph.input("x", [8, 3, 6, 6])
    data = {"x": graph.random(8, 3, 6, 6)}
    h = "x"
    for shape, group in [((4, 3, 1, 1), 1), ((4, 1, 3, 3), 4), ((5, 4, 1, 1), 1)]:
        h = graph.node("Conv", [h, graph.initializer(imbalanced(graph, *shape))], group=group)
        h = calibrated(graph, h, data, graph.positive(shape[0]), graph.random(shape[0]))
        h = activated(graph, h, activation)
    graph.node("Identity", [h], "y")
    graph.output("y")
    return graph.model(), data


@pytest.mark.parametrize("options", ["", "{objective=noise}"])
@pytest.mark.parametrize("activation", ["Relu", "Relu6"])
def test_statistics_stay_true(activation: str, options: str) -> None:
    model, data = statistical(activation)
    before = compile_model(model)
    assert assert_statistics_are_true(before, data) == 3
    result = compile_model(model, f"default,{PASS}{options}")
    assert assert_statistics_are_true(result, data) == 3
    (applied,) = fold_records(result.module).history
    assert applied.name == f"{PASS}{options}"
    keys = [set(record) for record in applied.layers.values()]
    assert keys == [{"rescale_out"}, {"rescale_in", "rescale_out"}, {"rescale_in"}]
    first, middle, last = applied.layers.values()
    np.testing.assert_allclose(first["rescale_out"], middle["rescale_in"], rtol=1e-14)
    np.testing.assert_allclose(middle["rescale_out"], last["rescale_in"], rtol=1e-14)


def test_statistics_of_a_clip_go_to_the_result_that_is_limited() -> None:
    """A BatchNormalization that knows the result of the Clip before it, and is folded forward."""
    graph = Graph(dtype=F64)
    graph.input("x", [8, 3, 6, 6])
    data = {"x": graph.random(8, 3, 6, 6)}
    h = graph.node("Conv", ["x", graph.initializer(imbalanced(graph, 4, 3, 1, 1))])
    h = graph.node("Clip", [h, graph.initializer(0.0), graph.initializer(0.5)])
    h = calibrated(graph, h, data, np.ones(4), np.zeros(4))
    second = imbalanced(graph, 5, 4, 1, 1, axis=1)[:, ::-1]
    graph.output(graph.node("Conv", [h, graph.initializer(second)], "y"))
    result = compile_model(graph.model(), f"default,{PASS}")
    assert operators(result.model) == ["Conv", "Clip", "Min", "Conv"]
    assert_statistics_are_true(result, data)
    (known,) = known_statistics(result.module)
    assert known.node is not None
    assert known.node.op == "minimum"


def test_the_source_comes_back_from_a_model_with_limits() -> None:
    model, _ = statistical("Relu6")
    result = compile_model(model, f"default,{PASS},FoldConstant")
    assert "Min" in operators(result.model)
    assert_map(model, result)


def test_it_may_stand_anywhere_behind_the_fold() -> None:
    """Before FoldConstant the weights are products, which are rounded once with both factors."""
    model, data = statistical()
    early = compile_model(
        model, f"SimplifyInference,FoldScaleAxis,{PASS},CanonicalizeOps,SimplifyExpr,FoldConstant"
    )
    late = compile_model(model, f"default,{PASS},FoldConstant")
    assert_statistics_are_true(early, data)
    found = weights(late.model)
    for name, array in weights(early.model).items():
        np.testing.assert_allclose(array, found[name], rtol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(4))
def test_random_graphs_compute_the_same(block: int) -> None:
    links = 0
    for seed in range(block, 160, 4):
        model = grow(seed, F64)
        options = ("", "objective=noise", "iterations=2", "iterations=2,objective=noise")[
            seed // 4 % 4
        ]
        passes = f"{'default,' * (seed // 4 % 2)}{PASS}{{{options}}}"
        result = compile_model(model, passes, context=PassContext([Verify()]))
        links += len(fold_records(result.module).history)
        assert difference(model, result.model) <= EXACT, seed
        assert_nothing_stale(model, result.model)
        assert_named(model, result.model)
    assert links > 5


# a trained model


@pytest.mark.shared
def test_a_trained_model_of_channels_of_2_to_the_14_is_equalized() -> None:
    path, images, labels = digits("relu_imbalanced")
    plain, even = (compile_model(path, passes).model for passes in ("default", f"default,{PASS}"))
    scale = np.abs(logits(plain, images)).max()
    assert np.abs(logits(even, images) - logits(plain, images)).max() < 1e-4 * scale
    assert (logits(even, images).argmax(axis=1) == logits(plain, images).argmax(axis=1)).all()
    assert accuracy(quantize_weights(plain), images, labels) < 0.5
    assert accuracy(quantize_weights(even), images, labels) > accuracy(even, images, labels) - 0.02
    ratios = []
    for model in (plain, even):
        found = weights(model)
        arrays = [found[node.input[1]] for node in model.graph.node if node.op_type == "Conv"]
        arrays = [
            array for array in arrays if array.shape[1:] == (1, 3, 3) and len(array) > 16
        ]  # depthwise
        ratios.append(
            max(float(largest(array, 0).max() / largest(array, 0).min()) for array in arrays)
        )
    assert ratios[1] < 1e-2 * ratios[0]


@pytest.mark.shared
def test_clips_of_a_trained_model() -> None:
    path, images, _ = digits("relu6")
    for clip, layers, limits in (("keep", 4, 0), ("exact", 20, 13)):
        result = compile_model(path, f"default,{PASS}{{clip={clip}}},FoldConstant")
        (applied,) = fold_records(result.module).history
        assert len(applied.layers) == layers
        assert operators(result.model).count("Min") == limits
        plain, even = (logits(model, images) for model in (compile_model(path).model, result.model))
        assert np.abs(even - plain).max() < 1e-4 * np.abs(plain).max()


def test_weights_that_would_leave_the_normal_numbers_stay() -> None:
    """float16: 6.2e-5 is the least normal number.

    Divided by more it loses its digits, and then itself.
    """
    graph = Graph(dtype=F16)
    x = graph.input("x", [1, 1, 3, 3])
    first = graph.initializer(np.full((1, 1, 1, 1), 6.2e-5, np.float16))
    hidden = graph.node("Relu", [graph.node("Conv", [x, first], "c1", "conv1")])
    second = graph.initializer(np.array([60000, 6.2e-5], np.float16).reshape(2, 1, 1, 1))
    graph.output(graph.node("Conv", [hidden, second], "y", "conv2"))
    model = graph.model()
    assert compile_model(model, f"default,{PASS},FoldConstant").model == model


def unchanged(graph: Graph, before: str = "default") -> None:
    """Equalization does nothing to what other passes leave."""
    model = graph.model()
    assert compile_model(model, f"{before},{PASS}").model == compile_model(model, before).model


def test_an_operator_that_would_change_twice_stays() -> None:
    """Both halves of a Split, put together again."""
    graph = Graph(dtype=F64)
    h = graph.node(
        "Conv", [graph.input("x", [2, 3, 5, 5]), graph.initializer(graph.random(8, 3, 1, 1))]
    )
    graph.node("Split", [h], ["a", "b"], axis=1, num_outputs=2)
    h = graph.node("Relu", [graph.node("Add", ["a", "b"])])
    graph.output(graph.node("Conv", [h, graph.initializer(graph.random(2, 4, 1, 1))], "y"))
    unchanged(graph)


def test_a_batch_norm_that_stays_is_no_layer() -> None:
    graph = Graph(dtype=F64)
    x = graph.input("x", [2, 4, 5, 5])
    norm = graph.batch_norm(x, batch_norm(4, dtype=F64), "n")
    h = graph.node("Conv", [x, graph.initializer(graph.random(4, 4, 1, 1))])
    h = graph.node("Relu", [graph.node("Add", [norm, h])])
    graph.output(graph.node("Conv", [h, graph.initializer(graph.random(2, 4, 1, 1))], "y"))
    unchanged(graph, "SimplifyInference,FoldScaleAxis,FoldConstant")


def test_what_reads_the_shape_alone_is_no_layer() -> None:
    graph = Graph(dtype=F64)
    h = graph.node(
        "Conv", [graph.input("x", [2, 3, 5, 5]), graph.initializer(graph.random(4, 3, 1, 1), "w")]
    )
    graph.output(graph.node("Shape", [graph.node("Relu", [h])], "y"), [4], np.dtype(np.int64))
    unchanged(graph, "none")


def test_constants_in_between_do_not_grow_much() -> None:
    """A scalar that would become a constant for each of 20,000 channels."""
    graph, channels = Graph(dtype=F64), 20_000
    spread = (2.0 ** graph.rng.uniform(-3, 3, channels)).reshape(-1, 1, 1, 1)
    weight = graph.initializer(graph.random(channels, 1, 1, 1) * spread)
    h = graph.node("Conv", [graph.input("x", [1, 1, 2, 2]), weight])
    h = graph.node("Relu", [graph.node("Add", [h, graph.initializer(np.float64(0.5))])])
    graph.output(graph.node("Conv", [h, graph.initializer(graph.random(1, channels, 1, 1))], "y"))
    unchanged(graph, "none")


def test_the_scores_of_an_attention_are_no_layer() -> None:
    """A MatMul of two computed values has no weight to equalize; the layers around it have."""
    graph = Graph()
    x = graph.input("x", [2, 4, 6])
    queries, keys = (
        graph.node("MatMul", [x, graph.initializer(graph.random(6, 6))]) for _ in range(2)
    )
    scores = graph.node("MatMul", [queries, graph.node("Transpose", [keys], perm=[0, 2, 1])])
    graph.node("MatMul", [graph.node("Relu", [scores]), graph.initializer(graph.random(4, 3))], "y")
    graph.output("y")
    model = graph.model()
    assert_equivalent(model, compile_model(model, f"default,{PASS}").model)
