"""int8 of layers that MergeBranches made: ranges by statistics of their branches."""

from __future__ import annotations

import harness
import irc
import numpy as np
import onnx
import pytest
from fold_maps import assert_map
from graphs import Array, BatchNorm, Graph
from int8_models import NEEDS_RANGES, optimized, sqnr
from irc.tools.int8.coverage import Method
from onnx import ModelProto, helper

CHANNELS = 8


def blocks(count: int, *, skip: bool, after: bool = False) -> tuple[ModelProto, Array]:
    """Blocks of RepVGG with the statistics of the data that are returned with them.

    With `skip` the data of all blocks but the first are a branch, with `after` the sum has a norm.
    """
    g, rng = Graph(), np.random.default_rng(5)
    value = g.input("x", ["N", CHANNELS, 12, 12])
    inputs = rng.normal(size=(64, CHANNELS, 12, 12)).astype(np.float32)

    def normed(data: str, name: str) -> str:
        so_far = g.model()
        so_far.graph.output.append(helper.make_tensor_value_info(data, 1, None))
        found = harness.run(so_far, {"x": inputs})[data]
        moments = (
            each.astype(np.float32) for each in (found.mean((0, 2, 3)), found.var((0, 2, 3)))
        )
        gamma, beta = rng.uniform(0.5, 1.5, CHANNELS), rng.normal(scale=0.3, size=CHANNELS)
        own = (each.astype(np.float32) for each in (gamma, beta))
        return g.batch_norm(data, BatchNorm(*own, *moments), name)

    for i in range(count):
        branches = [
            g.node(
                "Conv",
                [value, g.initializer(g.random(CHANNELS, CHANNELS, k, k))],
                pads=[k // 2] * 4,
            )
            for k in (3, 1)
        ] + ([value] if skip and i else [])
        norms = [normed(each, f"norm{i}.{j}") for j, each in enumerate(branches)]
        total = g.node("Sum", norms, f"sum{i}")
        value = g.node("Relu", [normed(total, f"after{i}") if after else total], f"y{i}")
    g.output(value, ["N", CHANNELS, 12, 12])
    return g.model(), inputs


@NEEDS_RANGES
@pytest.mark.parametrize("skip", [True, False])
def test_layers_are_static_without_data(skip: bool) -> None:
    model, inputs = blocks(3, skip=skip)
    found = irc.quantize(model, input_ranges=(-4.8, 4.8))
    assert [each.op_type for each in found.coverage] == ["Conv", "Relu"] * 3
    assert {each.method for each in found.coverage if each.op_type == "Conv"} == {Method.STATIC}
    sums = {name: origin for name, origin in found.ranges.items() if name.startswith("sum")}
    assert len(sums) == 3 and "statistic" not in sums.values()
    assert "guess" not in found.ranges.values()
    expected = next(iter(harness.run(model, {"x": inputs[:8]}).values()))
    assert sqnr(expected, optimized(found.model, {"x": inputs[:8]})) > 24


@pytest.mark.parametrize("passes", ["default", "default,CrossLayerEqualization,FoldConstant"])
def test_a_bound_is_that_of_the_result_of_the_layer(passes: str) -> None:
    model, inputs = blocks(3, skip=False)
    result = irc.compile(model, passes)
    assert_map(model, result)
    bounds = result.fold_map.bounds()
    assert len(bounds) == 3
    folded = onnx.ModelProto()
    folded.CopyFrom(result.model)
    folded.graph.output.extend(helper.make_tensor_value_info(name, 1, None) for name in bounds)
    values = harness.run(folded, {"x": inputs})
    for name, known in bounds.items():
        mean, std = values[name].mean((0, 2, 3)), values[name].std((0, 2, 3))
        np.testing.assert_allclose(known.mean, mean, atol=1e-4 * np.abs(known.std).max())
        assert (std <= known.std * (1 + 1e-4)).all()
        assert (std > known.std / 4).all(), "two branches are not that far from it"


def test_a_norm_after_the_sum_has_a_statistic_and_no_bound() -> None:
    model, _ = blocks(1, skip=False, after=True)
    fold_map = irc.compile(model).fold_map
    assert fold_map.bounds() == {}
    (layer,) = fold_map.layers
    assert fold_map.output_stats(layer["id"]) is not None
