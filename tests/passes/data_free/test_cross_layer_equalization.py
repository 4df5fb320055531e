"""CrossLayerEqualization: the formulas of the paper, what stops a scale, and a function that stays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
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
    weights,
)
from graphs import (
    F16,
    F64,
    Array,
    Graph,
    assert_equivalent,
    assert_interface,
    assert_nothing_stale,
    batch_norm,
    compiled,
)
from harness import run
from irc.backends.compiler import compile as compile_model
from irc.backends.result import Result
from irc.frontends.onnx import from_model
from irc.passes import CrossLayerEqualization, PassContext, Verify
from irc.passes.affine.fold_records import fold_records
from irc.support.errors import UsageError
from onnx import ModelProto
from oracle import EXACT, difference
from random_graphs import grow

PASS = "CrossLayerEqualization"


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
    """The result of the pass, which keeps the function and everything else that can be asked of a pass."""
    result = compiled(model, f"{PASS}{{{options}}},FoldConstant", context=PassContext([Verify()]))
    assert_interface(model, result.model)
    assert_nothing_stale(model, result.model)
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
    np.testing.assert_allclose(largest(after["first"], 0), largest(after["second"], data_axis), rtol=1e-14)


@pytest.mark.parametrize("order", [None, [2, 0, 3, 1]], ids=["straight", "shuffled"])
def test_a_depthwise_convolution_is_equalized_with_both_neighbours(order: list[int] | None) -> None:
    graph = Graph(dtype=F64)
    graph.input("x", [2, 3, 6, 6])
    names = ["first", "middle", "last"]
    shapes: list[tuple[tuple[int, ...], int]] = [((4, 3, 1, 1), 0), ((4, 1, 3, 3), 0), ((5, 4, 1, 1), 1)]
    arrays = [imbalanced(graph, *shape, axis=axis) for shape, axis in shapes]
    arrays[0] = arrays[0][::-1].copy()
    h = "x"
    for name, array in zip(names, arrays, strict=True):
        group = 4 if name == "middle" else 1
        if name == "middle" and order is not None:
            h = graph.node("Gather", [h, graph.initializer(np.array(order))], axis=1)
        h = graph.node(
            "Conv", [h, graph.initializer(array, name), graph.initializer(graph.random(len(array)))], group=group
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
    np.testing.assert_allclose(after["first"][places], arrays[0][places] / s12.reshape(-1, 1, 1, 1), rtol=1e-13)
    np.testing.assert_allclose(after["middle"], arrays[1] * (s12 / s23).reshape(-1, 1, 1, 1), rtol=1e-13)
    np.testing.assert_allclose(after["last"], arrays[2] * s23.reshape(1, -1, 1, 1), rtol=1e-13)


def test_links_follow_each_other_in_the_order_of_the_graph() -> None:
    graph = Graph(dtype=F64)
    graph.input("x", [2, 3])
    arrays = [imbalanced(graph, 3, 4, axis=1), imbalanced(graph, 4, 5, axis=0), imbalanced(graph, 5, 2, axis=0)]
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
            "MatMul", [h, graph.initializer(imbalanced(graph, *shape, axis=1), f"w{i}")], "y" if i == 2 else ""
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
    np.testing.assert_allclose(largest(after["w0"], 1)[[0, 3]], largest(after["w1"], 0)[[0, 3]], rtol=1e-14)


def test_powers_of_two_round_nothing() -> None:
    graph = Graph()
    graph.input("x", [2, 3, 5, 5])
    h = graph.node("Conv", ["x", graph.initializer(imbalanced(graph, 4, 3, 3, 3)), graph.initializer(graph.random(4))])
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


# several layers on a side


def test_all_readers_of_a_channel_count() -> None:
    graph = Graph(dtype=F64)
    graph.input("x", [2, 3, 5, 5])
    first = imbalanced(graph, 4, 3, 1, 1)
    h = graph.node("Conv", ["x", graph.initializer(first, "first")])
    seconds = [imbalanced(graph, 6, 4, 1, 1, axis=1), imbalanced(graph, 2, 4, 3, 3, axis=1)[:, ::-1].copy()]
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
    parts = [graph.node("Conv", ["x", graph.initializer(array, f"first{i}")]) for i, array in enumerate(firsts)]
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
    h = graph.node("Concat", [graph.node("Conv", ["x", graph.initializer(first, "first")]), "x"], axis=1)
    second = imbalanced(graph, 6, 7, 1, 1, axis=1)
    graph.node("Conv", [h, graph.initializer(second, "second")], "y")
    graph.output("y")
    after = weights(equalized(graph.model()).model)
    s = np.sqrt(largest(first, 0) / largest(second, 1)[:4])
    np.testing.assert_allclose(after["second"][:, :4], second[:, :4] * s.reshape(1, -1, 1, 1), rtol=1e-13)
    np.testing.assert_array_equal(after["second"][:, 4:], second[:, 4:])


# what stops it

Build = Callable[[Graph, str], str]


def _conv(graph: Graph, x: str, channels: int = 4, **attrs: object) -> str:
    rows = 6 if attrs.get("group", 1) == 1 else 4
    shape = (rows, channels // int(attrs.get("group", 1)), 1, 1)  # type: ignore[call-overload]
    return graph.node("Conv", [x, graph.initializer(imbalanced(graph, *shape, axis=0))], **attrs)


def _relu6(graph: Graph, h: str) -> str:
    return _conv(graph, activated(graph, h, "Relu6"))


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
    "Relu6": (lambda g, h: _conv(g, activated(g, h, "Relu")), _relu6),
    "Sigmoid": (lambda g, h: _conv(g, g.node("Abs", [h])), lambda g, h: _conv(g, g.node("Sigmoid", [h]))),
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


def test_only_activations_between_convolutions() -> None:
    for between, links in {"Relu": True, "": True, "PRelu": True, "LeakyRelu": False, "Abs": False}.items():
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


# what is known of the values, and the record


def statistical() -> tuple[ModelProto, dict[str, Array]]:
    """Conv, BN, Relu, depthwise Conv, BN, Relu, Conv, BN, the statistics being those of the data."""
    graph = Graph(dtype=F64)
    graph.input("x", [8, 3, 6, 6])
    data = {"x": graph.random(8, 3, 6, 6)}
    h = "x"
    for shape, group in [((4, 3, 1, 1), 1), ((4, 1, 3, 3), 4), ((5, 4, 1, 1), 1)]:
        h = graph.node("Conv", [h, graph.initializer(imbalanced(graph, *shape))], group=group)
        h = calibrated(graph, h, data, graph.positive(shape[0]), graph.random(shape[0]))
        h = graph.node("Relu", [h])
    graph.node("Identity", [h], "y")
    graph.output("y")
    return graph.model(), data


def test_statistics_stay_true() -> None:
    model, data = statistical()
    before = compile_model(model)
    assert assert_statistics_are_true(before, data) == 3
    result = compile_model(model, f"default,{PASS}")
    assert assert_statistics_are_true(result, data) == 3
    (applied,) = fold_records(result.module).history
    assert applied.name == PASS
    keys = [set(record) for record in applied.layers.values()]
    assert keys == [{"rescale_out"}, {"rescale_in", "rescale_out"}, {"rescale_in"}]
    first, middle, last = applied.layers.values()
    np.testing.assert_allclose(first["rescale_out"], middle["rescale_in"], rtol=1e-14)
    np.testing.assert_allclose(middle["rescale_out"], last["rescale_in"], rtol=1e-14)


def test_it_may_stand_anywhere_behind_the_fold() -> None:
    """Before FoldConstant the weights are products, which are rounded once with both factors."""
    model, data = statistical()
    early = compile_model(model, f"SimplifyInference,FoldScaleAxis,{PASS},CanonicalizeOps,SimplifyExpr,FoldConstant")
    late = compile_model(model, f"default,{PASS},FoldConstant")
    assert_statistics_are_true(early, data)
    found = weights(late.model)
    for name, array in weights(early.model).items():
        np.testing.assert_allclose(array, found[name], rtol=1e-13)


@pytest.mark.parametrize("block", range(4))
def test_random_graphs_compute_the_same(block: int) -> None:
    links = 0
    for seed in range(block, 160, 4):
        model = grow(seed, F64)
        passes = (PASS, f"default,{PASS}{{iterations=2}}")[seed // 4 % 2]
        result = compile_model(model, passes, context=PassContext([Verify()]))
        links += len(fold_records(result.module).history)
        assert difference(model, result.model) <= EXACT, seed
        assert_nothing_stale(model, result.model)
    assert links > 5


# a trained model


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
        arrays = [array for array in arrays if array.shape[1:] == (1, 3, 3) and len(array) > 16]  # depthwise
        ratios.append(max(float(largest(array, 0).max() / largest(array, 0).min()) for array in arrays))
    assert ratios[1] < 1e-2 * ratios[0]


def test_clips_with_two_bounds_stay_in_a_trained_model() -> None:
    path, _, _ = digits("relu6")
    module = from_model(compile_model(path).model)
    CrossLayerEqualization()(module)
    (applied,) = fold_records(module).history
    assert len(applied.layers) == 4


def test_weights_that_would_leave_the_normal_numbers_stay() -> None:
    """float16: 6.2e-5 is the least normal number; divided by more it loses its digits, and then itself."""
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
    h = graph.node("Conv", [graph.input("x", [2, 3, 5, 5]), graph.initializer(graph.random(8, 3, 1, 1))])
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
    unchanged(graph)


def test_what_reads_the_shape_alone_is_no_layer() -> None:
    graph = Graph(dtype=F64)
    h = graph.node("Conv", [graph.input("x", [2, 3, 5, 5]), graph.initializer(graph.random(4, 3, 1, 1), "w")])
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
