"""Two models that say the same must come out the same.

Random models (`random_graphs.grow`) are changed in a way that does not change what they compute, or
only by how much of it they return; how many affines are left, and the results, are compared.
Numbers are in float64, so that agreement at 1e-12 of the running magnitude is agreement of the
algebra (`oracle`).

`IRC_EXAMPLES` sets the number of examples here too.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from random import Random

import numpy as np
import onnx
import pytest
from graphs import (
    F64,
    BatchNorm,
    Graph,
    all_nodes,
    batch_norm,
    compiled,
    constants,
    is_valid,
    onnx_dtype,
)
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, helper, numpy_helper, printer
from oracle import EXACT, difference
from random_graphs import grow
from scale_axis.build import AFFINES

EXAMPLES = int(os.environ.get("IRC_EXAMPLES", "100"))
KINDS = ("random", "ones", "negative")
SEED = st.integers(0, 1 << 24)
METAMORPHIC = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=EXAMPLES <= 100,
    database=None,
    print_blob=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def affines(model: ModelProto) -> int:
    """How many operators are or may be affines."""
    return sum(node.op_type in AFFINES for node in all_nodes(model))


def batch_norms(model: ModelProto) -> int:
    return sum(node.op_type == "BatchNormalization" for node in all_nodes(model))


def typed(model: ModelProto) -> dict[str, list[int]]:
    """The shapes of interior values of the main graph that are float64."""
    inferred = onnx.shape_inference.infer_shapes(model).graph
    made = {name for node in model.graph.node for name in node.output}
    return {
        info.name: [dim.dim_value for dim in info.type.tensor_type.shape.dim]
        for info in inferred.value_info
        if info.name in made and info.type.tensor_type.elem_type == onnx_dtype(F64)
    }


def append(model: ModelProto, array: object, name: str) -> str:
    """A new initializer."""
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(array, F64), name))
    return name


def insert(model: ModelProto, value: str, nodes: list[NodeProto], result: str) -> None:
    """Put `nodes`, which make `result` of `value`, between it and its readers in the main graph."""
    graph = model.graph
    at = next((i for i, node in enumerate(graph.node) if value in node.output), -1) + 1
    for node in graph.node[at:]:
        node.input[:] = [result if name == value else name for name in node.input]
    kept = [*graph.node[:at], *nodes, *graph.node[at:]]
    del graph.node[:]
    graph.node.extend(kept)


# a pair of affines that cancel


def power_of_two_pair(
    model: ModelProto, value: str, shape: list[int], random: Random
) -> ModelProto:
    """The model with x * s and then x / s behind a value, s being powers of two of either sign."""
    made = copy.deepcopy(model)
    channels = shape[1] if len(shape) > 1 else 1
    scale = np.asarray(
        [random.choice([-1, 1]) * 2.0 ** random.randint(-3, 3) for _ in range(channels)]
    )
    form = random.choice(
        ["uniform", "Mul", "BatchNormalization"] if len(shape) > 1 else ["uniform"]
    )
    nodes, name = [], value
    for i, factor in enumerate((scale, 1 / scale)):
        out = f"pair/{i}"
        if form == "BatchNormalization":
            arrays = (factor, np.zeros(channels), np.zeros(channels), np.ones(channels))
            params = [append(made, array, f"{out}/{j}") for j, array in enumerate(arrays)]
            nodes.append(
                helper.make_node("BatchNormalization", [name, *params], [out], epsilon=0.0)
            )
        else:
            array = factor[0] if form == "uniform" else factor.reshape(-1, *[1] * (len(shape) - 2))
            nodes.append(helper.make_node("Mul", [name, append(made, array, f"{out}/c")], [out]))
        name = out
    insert(made, value, nodes, name)
    return made


@pytest.mark.slow
@METAMORPHIC
@given(SEED)
def test_a_pair_of_affines_that_cancel_vanishes(seed: int) -> None:
    model, random = grow(seed), Random(seed)
    values = {name: shape for name, shape in typed(model).items() if all(shape)}
    assume(values)
    value = random.choice(sorted(values))
    changed = power_of_two_pair(model, value, values[value], random)
    note(printer.to_text(changed))
    assert is_valid(changed) is None
    plain, result = compiled(model).model, compiled(changed).model
    assert difference(model, result, KINDS) <= EXACT
    assert affines(result) <= affines(plain)


# BatchNormalization and the arithmetic that it is


def unfused(model: ModelProto) -> ModelProto:
    """Every BatchNormalization of known rank as Mul and Add with the same numbers."""
    made = copy.deepcopy(model)
    arrays = constants(_without_identities(made))
    shapes = {info.name: len(info.type.tensor_type.shape.dim) for info in onnx.shape_inference.infer_shapes(
        made).graph.value_info}  # fmt: skip
    shapes |= {
        info.name: len(info.type.tensor_type.shape.dim)
        for info in [*made.graph.input, *made.graph.output]
    }
    nodes = []
    for i, node in enumerate(made.graph.node):
        known = node.op_type == "BatchNormalization" and node.input[0] in shapes
        if not known or any(name not in arrays for name in node.input[1:]):
            nodes.append(node)
            continue
        params = BatchNorm(*[arrays[name] for name in node.input[1:]], _epsilon(node))
        shape = (-1, *[1] * (shapes[node.input[0]] - 2))
        scale = append(made, params.scale.reshape(shape), f"unfused/{i}/scale")
        shift = append(made, params.bias().reshape(shape), f"unfused/{i}/shift")
        nodes.append(helper.make_node("Mul", [node.input[0], scale], [f"{node.output[0]}/scaled"]))
        nodes.append(helper.make_node("Add", [f"{node.output[0]}/scaled", shift], [node.output[0]]))
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


def _without_identities(model: ModelProto) -> ModelProto:
    """The model with the operands of Identity in place of its results."""
    made = copy.deepcopy(model)
    found = {tensor.name: tensor for tensor in made.graph.initializer}
    for node in made.graph.node:
        if node.op_type == "Identity" and node.input[0] in found:
            tensor = copy.deepcopy(found[node.input[0]])
            tensor.name = node.output[0]
            found[tensor.name] = tensor
            made.graph.initializer.append(tensor)
    return made


def _epsilon(node: NodeProto) -> float:
    return float(
        next((item.f for item in node.attribute if item.name == "epsilon"), np.float32(1e-5))
    )


def folded(model: ModelProto, passes: str | None = None) -> dict[str, str]:
    """The status of every affine of the main graph, by the name of its result."""
    return {
        source["output"]: source["status"] for source in compiled(model, passes).fold_map.sources
    }


@pytest.mark.slow
@METAMORPHIC
@given(SEED)
def test_a_batch_normalization_folds_as_the_mul_and_add_that_it_is(seed: int) -> None:
    model = grow(seed)
    assume(batch_norms(model))
    changed = unfused(model)
    assume(batch_norms(changed) < batch_norms(model))
    note(printer.to_text(model))
    one, two = compiled(model), compiled(changed)
    assert difference(model, two.model, KINDS) <= EXACT
    if not affines(one.model):
        assert not affines(two.model)


# layouts

TO_LAST, TO_FIRST = [0, 2, 3, 1], [0, 3, 1, 2]
LAID_OUT = ("Conv", "BatchNormalization", "MaxPool", "AveragePool", "GlobalAveragePool")


def network(seed: int) -> ModelProto:
    """A random convolutional network.

    Layers, BatchNormalizations, gates, pools and residual additions.
    """
    random, graph = Random(seed), Graph(dtype=F64, seed=seed)
    value = graph.input("x", [2, 3, 4, 4])
    channels, size, skip = 3, 4, None
    for _ in range(random.randint(2, 7)):
        kind = random.choice(
            [
                "Conv",
                "Conv",
                "BN",
                "BN",
                "Relu",
                "LeakyRelu",
                "MaxPool",
                "AveragePool",
                "Add",
                "fork",
            ]
        )
        if kind == "Conv":
            out, pad = random.randint(1, 4), random.randint(0, 1)
            weight = graph.initializer(
                graph.random(out, channels, 3, 3) if pad else graph.random(out, channels, 1, 1)
            )
            value = graph.node("Conv", [value, weight], pads=[pad] * 4)
            channels, skip = out, None
        elif kind == "BN":
            params = batch_norm(channels, random.randint(0, 99), F64)
            if random.random() < 0.5:
                np.abs(params.gamma, out=params.gamma)
            value = graph.batch_norm(value, params)
        elif kind.endswith("Pool") and size > 2:
            value, size, skip = graph.node(kind, [value], kernel_shape=[2, 2]), size - 1, None
        elif kind == "Add" and skip is not None:
            value = graph.node("Add", [value, skip])
        elif kind == "fork":
            skip = value
        elif kind.endswith("Relu"):
            value = graph.node(kind, [value])
    graph.output(graph.node("Identity", [value]), [2, channels, size, size])
    return graph.model()


def channels_last(model: ModelProto) -> ModelProto:
    """The network as tf2onnx writes it.

    Values with channels last, a Transpose before and behind every layer.
    """
    made = copy.deepcopy(model)
    graph = made.graph
    source, result = graph.input[0].name, graph.output[0].name
    nodes = [helper.make_node("Transpose", [source], [f"{source}/last"], perm=TO_LAST)]
    data = {name for node in graph.node for name in node.output} | {source}
    for node in graph.node:
        node.input[:] = [f"{name}/last" if name in data else name for name in node.input]
        out = node.output[0]
        if node.op_type in LAID_OUT:
            nodes.append(
                helper.make_node("Transpose", [node.input[0]], [f"{out}/in"], perm=TO_FIRST)
            )
            node.input[0], node.output[0] = f"{out}/in", f"{out}/out"
            nodes += [
                node,
                helper.make_node("Transpose", [f"{out}/out"], [f"{out}/last"], perm=TO_LAST),
            ]
        else:
            node.output[0] = f"{out}/last"
            nodes.append(node)
    nodes.append(helper.make_node("Transpose", [f"{result}/last"], [result], perm=TO_FIRST))
    kept = [copy.deepcopy(node) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)
    return made


@METAMORPHIC
@given(SEED)
def test_channels_last_folds_as_many_as_channels_first(seed: int) -> None:
    model = network(seed)
    changed = channels_last(model)
    note(printer.to_text(model))
    assert is_valid(changed) is None
    first, last = compiled(model).model, compiled(changed).model
    assert difference(model, last, KINDS) <= EXACT
    assert batch_norms(last) == batch_norms(first)


# more outputs


@METAMORPHIC
@given(SEED)
def test_a_further_output_only_means_fewer_folds(seed: int) -> None:
    model, random = grow(seed), Random(seed)
    returned = {info.name for info in model.graph.output}
    values = {name: shape for name, shape in typed(model).items() if name not in returned}
    assume(values)
    name = random.choice(sorted(values))
    changed = copy.deepcopy(model)
    changed.graph.output.append(helper.make_tensor_value_info(name, onnx_dtype(F64), values[name]))
    note(f"{name} of\n{printer.to_text(model)}")
    fewer, more = compiled(changed), compiled(model)
    assert difference(changed, fewer.model, KINDS) <= EXACT
    assert affines(fewer.model) >= affines(more.model)


@pytest.mark.parametrize("make", [lambda: network(1), lambda: grow(7)], ids=["network", "grown"])
def test_a_seed_makes_one_model(make: Callable[[], ModelProto]) -> None:
    assert make() == make()
