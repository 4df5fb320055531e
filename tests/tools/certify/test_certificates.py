"""`irc compile --certificate` and `irc certify`: compiles that are proved, and forgeries that are
refused.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import harness
import numpy as np
import onnx
import pytest
from graphs import F32, Graph, batch_norm
from harness import EXAMPLE
from irc import Rejected, certify
from irc.compiler import compile as compile_model
from irc.tools.certify.checker.certificate import check
from irc.tools.certify.checker.document import digest_of_model
from irc.tools.cli.main import main
from onnx import ModelProto, numpy_helper
from random_graphs import grow

from .forgeries import Document, forged_models, forgeries, sealed
from .pairs import model as parsed
from .pairs import proof_of

Built = tuple[ModelProto, ModelProto, Document]


def conv_bn_relu(graph: Graph) -> str:
    x = graph.node(
        "Conv",
        [graph.input("x", [1, 3, 6, 6]), graph.initializer(graph.random(4, 3, 3, 3))],
        pads=[1] * 4,
    )
    return graph.node("Relu", [graph.batch_norm(x, batch_norm(4))])


def conv_relu_mul(graph: Graph) -> str:
    weight = graph.initializer(graph.random(4, 3, 3, 3))
    x = graph.node(
        "Conv", [graph.input("x", [1, 3, 6, 6]), weight, graph.initializer(graph.random(4))]
    )
    scale = graph.node("Abs", [graph.initializer(graph.random(4, 1, 1) - np.float32(3))])
    return graph.node("Mul", [graph.node("Relu", [x]), scale])


def residual(graph: Graph) -> str:
    x = graph.input("x", [1, 3, 6, 6])
    sides = [graph.node("Conv", [x, graph.initializer(graph.random(4, 3, 1, 1))]) for _ in range(2)]
    return graph.node("Relu", [graph.batch_norm(graph.node("Add", sides), batch_norm(4))])


def joined(graph: Graph) -> str:
    x = graph.input("x", [1, 3, 6, 6])
    sides = [graph.node("Conv", [x, graph.initializer(graph.random(n, 3, 1, 1))]) for n in (2, 3)]
    return graph.node(
        "Sigmoid", [graph.batch_norm(graph.node("Concat", sides, axis=1), batch_norm(5))]
    )


def forward(graph: Graph) -> str:
    x = graph.batch_norm(graph.node("Sigmoid", [graph.input("x", [1, 4, 6, 6])]), batch_norm(4))
    x = graph.node("AveragePool", [x], kernel_shape=[2, 2])
    return graph.node("Conv", [x, graph.initializer(graph.random(8, 2, 3, 3))], group=2)


def dense(graph: Graph) -> str:
    x = graph.node("MatMul", [graph.input("x", [2, 8]), graph.initializer(graph.random(8, 4))])
    x = graph.node("Add", [x, graph.initializer(graph.random(4))])
    return graph.node("Relu", [graph.batch_norm(x, batch_norm(4))])


def sequence(graph: Graph) -> str:
    x = graph.node("MatMul", [graph.input("x", [2, 5, 8]), graph.initializer(graph.random(8, 4))])
    x = graph.node(
        "Transpose", [graph.node("Add", [x, graph.initializer(graph.random(4))])], perm=[0, 2, 1]
    )
    return graph.node("Transpose", [graph.batch_norm(x, batch_norm(4))], perm=[0, 2, 1])


def transposed(graph: Graph) -> str:
    weight = graph.initializer(graph.random(4, 3, 2, 2))
    x = graph.node(
        "ConvTranspose", [graph.input("x", [1, 4, 6, 6]), weight], strides=[2, 2], group=2
    )
    return graph.node("Relu", [graph.batch_norm(x, batch_norm(6))])


def head(graph: Graph) -> str:
    x = graph.node(
        "Conv", [graph.input("x", [1, 3, 6, 6]), graph.initializer(graph.random(4, 3, 3, 3))]
    )
    x = graph.node(
        "Flatten", [graph.node("GlobalAveragePool", [graph.batch_norm(x, batch_norm(4))])]
    )
    return graph.node(
        "Gemm",
        [x, graph.initializer(graph.random(5, 4)), graph.initializer(graph.random(5))],
        transB=1,
    )


def shapes(graph: Graph) -> str:
    x = graph.node("Relu", [graph.input("x", [2, 3, 4])])
    shape = graph.node("Shape", [x])
    first = graph.node("Gather", [shape, graph.initializer(np.array([0]))], axis=0)
    target = graph.node("Concat", [first, graph.initializer(np.array([-1]))], axis=0)
    x = graph.node("Reshape", [graph.node("Identity", [x]), target])
    return graph.node("Mul", [x, graph.initializer(np.ones(1, np.float32))])


def moves(graph: Graph) -> str:
    x = graph.node("Relu", [graph.input("x", [2, 3, 4])])
    x = graph.node("Transpose", [graph.node("Transpose", [x], perm=[1, 0, 2])], perm=[2, 0, 1])
    x = graph.node("Reshape", [x, graph.initializer(np.array([4, 6]))])
    return graph.node("Relu", [graph.node("Reshape", [x, graph.initializer(np.array([3, 8]))])])


def clipped(graph: Graph) -> str:
    x = graph.node(
        "Conv", [graph.input("x", [1, 3, 6, 6]), graph.initializer(graph.random(4, 3, 3, 3))]
    )
    bounds = [graph.initializer(np.array(number, np.float32)) for number in (-0.3, 0.7)]
    return graph.node(
        "Div", [graph.node("Clip", [x, *bounds]), graph.initializer(np.array(-1.7, np.float32))]
    )


def padded(graph: Graph) -> str:
    pads = graph.initializer(np.array([0, 0, 1, 1, 0, 0, 1, 1]))
    x = graph.node("Pad", [graph.input("x", [1, 3, 5, 5]), pads])
    x = graph.batch_norm(
        graph.node("Conv", [x, graph.initializer(graph.random(4, 3, 3, 3))]), batch_norm(4)
    )
    return graph.node(
        "MaxPool", [graph.node("Relu", [x])], kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1
    )


def padded_by_extents(graph: Graph) -> str:
    x = graph.input("x", ["N", 3, "H", "W"])
    weight = graph.initializer(graph.random(4, 3, 1, 1))
    data = graph.node("Conv", [x, weight])
    none, two = (graph.initializer(np.array(item)) for item in ([0], [2]))
    rows = graph.node("Mod", [graph.node("Shape", [x], start=2, end=3), two])
    pads = graph.node("Concat", [none, none, rows, *[none] * 5], axis=0)
    return graph.batch_norm(graph.node("Pad", [data, pads], mode="reflect"), batch_norm(4))


def nested(graph: Graph) -> str:
    x = graph.node("Relu", [graph.input("x", [1, 3, 5, 5])])
    inner = graph.node("Concat", [x, graph.node("Sigmoid", [x])], axis=1)
    return graph.node("Relu", [graph.node("Concat", [inner, graph.node("Tanh", [x])], axis=1)])


def moved(graph: Graph) -> str:
    x = graph.node("MatMul", [graph.input("x", [2, 6]), graph.initializer(graph.random(6, 6))])
    x = graph.node("Reshape", [x, graph.initializer(np.array([2, 1, 1, 6]))])
    return graph.batch_norm(graph.node("Transpose", [x], perm=[0, 3, 1, 2]), batch_norm(6))


def symbols(graph: Graph) -> str:
    x = graph.node("Relu", [graph.input("x", ["N", "M", 4])])
    shape = graph.node("Shape", [x])
    first = graph.node("Gather", [shape, graph.initializer(np.array([0]))], axis=0)
    target = graph.node("Concat", [first, graph.initializer(np.array([-1]))], axis=0)
    return graph.node("Relu", [graph.node("Reshape", [x, target])])


def summed(graph: Graph) -> str:
    x = graph.input("x", [2, 6])
    product = graph.node("MatMul", [x, graph.initializer(graph.random(6, 4))])
    other = graph.node(
        "Sigmoid", [graph.node("MatMul", [x, graph.initializer(graph.random(6, 4))])]
    )
    return graph.node("Relu", [graph.node("Add", [product, other])])


def reordered(graph: Graph) -> str:
    x = graph.node("Relu", [graph.input("x", ["N", "T", 8])])
    x = graph.node("Reshape", [x, graph.initializer(np.array([0, 0, 2, 4]))])
    x = graph.node(
        "Transpose", [graph.node("Transpose", [x], perm=[0, 2, 1, 3])], perm=[0, 2, 1, 3]
    )
    shape = graph.node(
        "Slice", [graph.node("Shape", [x]), *(graph.initializer(np.array([i])) for i in (0, 2))]
    )
    target = graph.node("Concat", [shape, graph.initializer(np.array([-1]))], axis=0)
    x = graph.node("Sigmoid", [graph.node("Reshape", [x, target])])
    size = graph.node(
        "Mul",
        [
            graph.node("Gather", [shape, graph.initializer(np.array([1]))]),
            graph.initializer(np.array([2])),
        ],
    )
    x = graph.node(
        "Reshape",
        [
            x,
            graph.node(
                "Concat",
                [graph.initializer(np.array([0])), size, graph.initializer(np.array([4]))],
                axis=0,
            ),
        ],
    )
    return graph.node("Tanh", [x])


def turned(graph: Graph) -> str:
    x = graph.node(
        "Conv", [graph.input("x", [2, 3, 6, 6]), graph.initializer(graph.random(4, 3, 3, 3))]
    )
    x = graph.node(
        "Reshape",
        [graph.node("Transpose", [x], perm=[0, 2, 3, 1]), graph.initializer(np.array([2, 16, 4]))],
    )
    x = graph.node("Mul", [x, graph.initializer(graph.random(4))])
    return graph.node(
        "Transpose", [graph.node("Add", [x, graph.initializer(graph.random(4))])], perm=[0, 2, 1]
    )


def channels_last(graph: Graph) -> str:
    x = graph.node(
        "Conv", [graph.input("x", ["N", 3, "H", 6]), graph.initializer(graph.random(4, 3, 3, 3))]
    )
    x = graph.node(
        "Add", [graph.node("Transpose", [x], perm=[0, 2, 3, 1]), graph.initializer(graph.random(4))]
    )
    x = graph.node("Mul", [graph.node("Relu", [x]), graph.node("Sigmoid", [x])])
    x = graph.node("Concat", [x, graph.node("Tanh", [x])], axis=3)
    x = graph.node("ReduceMax", [x, graph.initializer(np.array([1]))], keepdims=1)
    return graph.node("Transpose", [x], perm=[0, 3, 1, 2])


def expanded(graph: Graph) -> str:
    x = graph.node("Tanh", [graph.input("x", ["N", 3, "T"])])
    y = graph.node("Sigmoid", [graph.input("y", [3, 1])])
    return graph.node("Mul", [x, graph.node("Expand", [y, graph.node("Shape", [x])])])


def limited(graph: Graph) -> str:
    x = graph.node(
        "Conv", [graph.input("x", [1, 3, 6, 6]), graph.initializer(graph.random(4, 3, 1, 1))]
    )
    inner = [graph.initializer(np.array(number, np.float32)) for number in (-1, 2)]
    outer = [graph.initializer(np.array(number, np.float32)) for number in (0.25, 3)]
    x = graph.node("Relu", [graph.node("Clip", [x, *inner])])
    return graph.node(
        "Clip", [graph.node("Clip", [x, *outer]), "", graph.initializer(np.array(1.5, np.float32))]
    )


def mirrored(graph: Graph) -> str:
    x = graph.node(
        "Conv", [graph.input("x", [1, 3, 6, 6]), graph.initializer(graph.random(4, 3, 1, 1))]
    )
    x = graph.node("Gather", [x, graph.initializer(np.array([0, -3, 2, -1]))], axis=1)
    x = graph.node("Clip", [x, "", graph.initializer(np.array(0.5, np.float32))])
    return graph.node("Neg", [x])


def columns(graph: Graph) -> str:
    x = graph.node("Add", [graph.input("x", [4, 3]), graph.initializer(graph.random(4, 1))])
    x = graph.node("MatMul", [graph.initializer(graph.random(2, 4)), x])
    return graph.node("Add", [x, graph.initializer(graph.random(2, 1))])


def quantized(graph: Graph) -> str:
    scales, steps = (
        graph.initializer(np.abs(graph.random(4)) + np.float32(0.01)) for _ in range(2)
    )
    whole = np.arange(-54, 54).astype(np.int8).reshape(4, 3, 3, 3)
    weight = graph.node("DequantizeLinear", [graph.initializer(whole), scales], axis=0)
    addends = graph.initializer(np.array([7, -60, 55, 1000], np.int32))
    bias = graph.node("DequantizeLinear", [addends, steps], axis=0)
    x = graph.node("Conv", [graph.input("x", [1, 3, 6, 6]), weight, bias])
    return graph.node("Relu", [graph.batch_norm(x, batch_norm(4))])


def dequantized(graph: Graph) -> str:
    numbers = [graph.initializer(np.array(number, np.float32)) for number in (0.05, 0.02, 2.5, 0.3)]
    x = graph.node(
        "QuantizeLinear",
        [graph.input("x", [2, 4]), numbers[0], graph.initializer(np.array(3, np.uint8))],
    )
    x = graph.node("DequantizeLinear", [x, numbers[1], graph.initializer(np.array(3, np.uint8))])
    return graph.node("Mul", [graph.node("Relu", [graph.node("Mul", [x, numbers[2]])]), numbers[3]])


def sloped(graph: Graph) -> str:
    numbers = [graph.initializer(np.array(number, np.float32)) for number in (0.7, -0.2)]
    x = graph.node("Add", [graph.node("Mul", [graph.input("x", [2, 4]), numbers[0]]), numbers[1]])
    return graph.node("HardSigmoid", [x])


def bordered(graph: Graph) -> str:
    pads = graph.initializer(np.array([0, 0, 1, 1, 0, 0, 1, 1]))
    x = graph.node(
        "Conv", [graph.input("x", [1, 3, 5, 5]), graph.initializer(graph.random(4, 3, 3, 3))]
    )
    x = graph.node("Pad", [x, pads, graph.initializer(np.array(0.5, np.float32))])
    x = graph.node("Mul", [x, graph.initializer(np.array(1.7, np.float32))])
    return graph.node("Add", [x, graph.initializer(np.array(-0.3, np.float32))])


def batched(graph: Graph) -> str:
    x = graph.node(
        "MatMul", [graph.input("x", [2, 5, 3]), graph.initializer(graph.random(2, 3, 4))]
    )
    return graph.node("Mul", [x, graph.initializer(graph.random(4))])


def addend(graph: Graph) -> str:
    x = graph.node(
        "Mul", [graph.input("x", [1, 3, 4, 4]), graph.initializer(np.abs(graph.random(3, 1, 1)))]
    )
    bias = graph.node("Exp", [graph.input("b", [4])])
    return graph.node("Conv", [x, graph.initializer(graph.random(4, 3, 3, 3)), bias])


def single(graph: Graph) -> str:
    x = graph.node(
        "Add", [graph.input("x", [1, 3, 4, 4]), graph.initializer(graph.random(3, 1, 1))]
    )
    return graph.node("ConvTranspose", [x, graph.initializer(graph.random(3, 4, 1, 1))])


def divided(graph: Graph) -> str:
    x = graph.node(
        "Conv", [graph.input("x", [1, 3, 5, 5]), graph.initializer(graph.random(4, 3, 3, 3))]
    )
    names = [graph.fresh("part") for _ in range(2)]
    graph.node("Split", [x], names, axis=1, num_outputs=2)
    parts = [graph.batch_norm(names[0], batch_norm(2)), names[1]]
    return graph.node("Relu", [graph.node("Concat", parts, axis=1)])


def last_step(graph: Graph) -> str:
    x = graph.node(
        "MatMul", [graph.input("x", ["N", "T", 8]), graph.initializer(graph.random(8, 4))]
    )
    x = graph.node("Mul", [x, graph.initializer(graph.random(4))])
    bounds = [graph.initializer(np.array([number])) for number in (-1, 1 << 40, 1)]
    x = graph.node("Squeeze", [graph.node("Slice", [x, *bounds]), graph.initializer(np.array([1]))])
    return graph.node(
        "Gemm",
        [x, graph.initializer(graph.random(5, 4)), graph.initializer(graph.random(5))],
        transB=1,
    )


def gated(graph: Graph) -> str:
    x = graph.node(
        "Conv", [graph.input("x", ["N", 3, 4, 5]), graph.initializer(graph.random(6, 3, 3, 3))]
    )
    x = graph.node(
        "Add", [graph.node("Transpose", [x], perm=[0, 2, 3, 1]), graph.initializer(graph.random(6))]
    )
    gate = graph.node("Erf", [graph.node("Mul", [x, graph.initializer(np.array(0.7, np.float32))])])
    gate = graph.node("Add", [gate, graph.initializer(np.array(1, np.float32))])
    x = graph.node(
        "Mul", [graph.node("Mul", [x, graph.initializer(np.array(0.5, np.float32))]), gate]
    )
    return graph.node("Identity", [graph.node("Transpose", [x], perm=[0, 3, 1, 2])])


def carried(graph: Graph) -> str:
    x = graph.input("x", [2, 4, 6])
    inner = graph.node("MatMul", [graph.node("Tanh", [x]), graph.initializer(graph.random(6, 16))])
    inner = graph.node("Add", [inner, graph.initializer(graph.random(16))])
    inner = graph.node("MatMul", [inner, graph.initializer(graph.random(16, 6))])
    x = graph.node("Add", [x, graph.node("Add", [inner, graph.initializer(graph.random(6))])])
    x = graph.node("ReduceMean", [x, graph.initializer(np.array([1]))], keepdims=0)
    return graph.node(
        "Gemm", [x, graph.initializer(graph.random(6, 32)), graph.initializer(graph.random(32))]
    )


def clipped_between(graph: Graph) -> str:
    x = graph.node(
        "Mul",
        [graph.node("Sin", [graph.input("x", ["N", 3, "H", 6])]), graph.input("y", [1, 1, 1, 6])],
    )
    bounds = [graph.initializer(np.array(number, np.float32)) for number in (0, 6)]
    x = graph.node("Mul", [x, graph.initializer(np.array(0.2, np.float32))])
    x = graph.node("Clip", [graph.node("Transpose", [x], perm=[0, 2, 3, 1]), *bounds])
    x = graph.node("Transpose", [x], perm=[0, 3, 1, 2])
    return graph.node("Conv", [x, graph.initializer(graph.random(4, 3, 3, 3))])


def masked(graph: Graph) -> str:
    x = graph.input("x", ["N", 5, 5])
    size = graph.node("Gather", [graph.node("Shape", [x]), graph.initializer(np.array(-1))])
    places = graph.node(
        "Range", [graph.initializer(np.array(0)), size, graph.initializer(np.array(1))]
    )
    sides = [
        graph.node("Unsqueeze", [places, graph.initializer(np.array([axis]))]) for axis in (1, 0)
    ]
    graph.output(graph.node("Identity", [places]))
    low = graph.initializer(np.array(-1e4, np.float32))
    return graph.node("Where", [graph.node("Less", sides), low, graph.node("Tanh", [x])])


def reduced(graph: Graph) -> str:
    """Means over one axis and another, between activations that are computed in another shape."""
    x = graph.input("x", (6, 4))
    rows = graph.node("Reshape", [x, graph.initializer(np.array([2, 3, 4]))])
    flat = graph.node("Reshape", [graph.node("Tanh", [rows]), graph.initializer(np.array([6, 4]))])
    first = graph.node("ReduceMean", [graph.node("Sin", [flat]), graph.initializer(np.array([0]))])
    return graph.node("ReduceMean", [first, graph.initializer(np.array([1]))])


MODELS: dict[str, Callable[[Graph], str]] = {
    build.__name__: build
    for build in (
        conv_bn_relu,
        conv_relu_mul,
        residual,
        joined,
        forward,
        dense,
        sequence,
        transposed,
        head,
        shapes,
        moves,
        clipped,
        padded,
        nested,
        moved,
        symbols,
        summed,
        reordered,
        turned,
        channels_last,
        expanded,
        limited,
        mirrored,
        columns,
        quantized,
        dequantized,
        sloped,
        bordered,
        batched,
        addend,
        single,
        divided,
        last_step,
        gated,
        masked,
        clipped_between,
        carried,
        reduced,
        padded_by_extents,
    )
}


def certified(model: ModelProto) -> Built:
    """A model, its compiled form, and the certificate."""
    result = compile_model(model, certificate=True)
    recorded = json.loads(json.dumps(result.certificate()))
    document = proof_of(model, result.model, recorded)
    assert certify(model, result.model, recorded) == len(document["steps"])
    return model, result.model, document


@pytest.fixture(scope="module")
def built() -> dict[str, Built]:
    found = {}
    for i, (name, build) in enumerate(MODELS.items()):
        graph = Graph(count=100 * i)
        graph.output(build(graph))
        found[name] = certified(graph.model())
    return found


@pytest.mark.parametrize("name", MODELS)
def test_a_compile_is_proved(built: dict[str, Built], name: str) -> None:
    source, result, document = built[name]
    assert source.graph.node != result.graph.node
    assert certify(source, result, document) == len(document["steps"])


def test_the_models_need_every_identity(built: dict[str, Built]) -> None:
    from irc.tools.certify.checker.proof import IDENTITIES

    used = {step["identity"] for _, _, document in built.values() for step in document["steps"]}
    assert used >= set(IDENTITIES) - {"same constant"}


def test_every_forgery_is_refused(built: dict[str, Built]) -> None:
    counted: Counter[str] = Counter()
    accepted = []
    names = list(built)
    for i, name in enumerate(names):
        for forgery in forgeries(*built[name], built[names[i - 1]][2]):
            counted[forgery.kind] += 1
            try:
                certify(forgery.source, forgery.result, forgery.document)
            except Rejected:
                continue
            accepted.append((name, forgery.kind, forgery.where))
    # The search writes a step again where congruence knows of an affine without it.
    assert {kind for _, kind, _ in accepted} <= {"a step left out"}, accepted
    assert len(accepted) < counted["a step left out"] / 20, accepted
    assert counted.total() >= 200 and len(counted) >= 10, counted


def test_no_record_proves_a_forged_model() -> None:
    """With the records of the compile, and with those of another one.

    A shift of the data of a layer is seen as part of its bias, and may be lost in that.
    """
    count, records, accepted = 0, [], []
    for i, (name, build) in enumerate(MODELS.items()):
        graph = Graph(count=100 * i)
        graph.output(build(graph))
        source = graph.model()
        result = compile_model(source, certificate=True)
        document = json.loads(json.dumps(result.certificate()))
        records.append(document["records"])
        for kind, where, forged in list(forged_models(result.model))[::4]:
            for given in (records[-1], records[0]):
                count += 1
                made = sealed({**document, "records": given}, source, forged)
                with suppress(Rejected):
                    certify(source, forged, made)
                    accepted.append((name, kind, where))
    assert set(accepted) <= {("columns", "a constant off by one ulp", "c_2301[3]")}, accepted
    assert count > 200, count


DAMAGED: dict[str, object] = {
    "no layers": {"layers": []},
    "a layer of nothing": {"layers": {"stem/bn:0": 5}},
    "affines of nothing": {"layers": {"stem/bn:0": [{}]}},
    "an affine without a shift": {"layers": {"stem/bn:0": [{"of": "a", "scale": 1.0}]}},
    "damaged numbers": {"layers": {"stem/bn:0": [{"of": None, "scale": "!", "shift": 1.0}]}},
    "numbers of nothing": {"unrounded": {"stem/conv.bias": []}},
    "no names": {"computed": 3},
    "no records": None,
    "a number": 5,
}


@pytest.mark.parametrize("records", DAMAGED.values(), ids=DAMAGED)
def test_damaged_records_are_refused_or_not_needed(records: object) -> None:
    source = onnx.load(EXAMPLE)
    result = compile_model(str(EXAMPLE), certificate=True)
    document = json.loads(json.dumps(result.certificate()))
    made = sealed({**document, "records": records}, source, result.model)
    with suppress(Rejected):
        assert certify(source, result.model, made)


def test_a_certificate_that_was_edited_is_refused(built: dict[str, Built]) -> None:
    source, result, document = built["conv_bn_relu"]
    edited = json.loads(json.dumps(document))
    edited["rewrites"] = []
    with pytest.raises(Rejected, match="were changed"):
        certify(source, result, edited)
    with pytest.raises(Rejected, match="another result"):
        certify(source, source, document)


def test_huge_shifts_that_cancel_widen_no_bound(built: dict[str, Built]) -> None:
    source, result, document = built["conv_bn_relu"]
    forged = onnx.ModelProto()
    forged.CopyFrom(result)
    bias = next(t for t in forged.graph.initializer if len(t.dims) == 1)
    array = onnx.numpy_helper.to_array(bias) + np.float32(1)
    bias.CopyFrom(onnx.numpy_helper.from_array(array, bias.name))
    step = next(step for step in document["steps"] if step["identity"] == "layer")
    wide = {**step, "applies": [*step["applies"], {"shift": 1e30}, {"shift": -1e30}]}
    steps = [wide if each is step else each for each in document["steps"]]
    with pytest.raises(Rejected, match="bias"):
        certify(source, forged, sealed({**document, "steps": steps}, source, forged))


LOOPED = """
<ir_version: 9, opset_import: ["" : 21]>
agraph (float[2,4,4,4] x) => (float[2,4,4,4] y) <int64 n = {3}, bool go = {1}> {
  y = Loop (n, go, x) <body: graph = body (int64 i, bool on, float[2,4,4,4] state) => (bool next, float[2,4,4,4] z)
    <float[4] g = {0.5, 2, 1.5, 3}, float[4] b = {1, 2, 3, 4}, float[4] m = {1, 0, 1, 0}, float[4] v = {1, 2, 3, 4}> {
      w = Constant <value: tensor = float[4,4,1,1] {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7}> ()
      h = Conv (state, w)
      z = BatchNormalization (h, g, b, m, v)
      next = Identity (on)
  }>
}"""


def test_a_fold_inside_a_body_is_proved_and_forged_ones_are_refused() -> None:
    source, result, document = certified(onnx.parser.parse_model(LOOPED))
    assert certify(source, result, document)
    body = next(node for node in result.graph.node if node.op_type == "Loop").attribute[0].g
    assert [node.op_type for node in body.node if node.op_type != "Constant"] == [
        "Conv",
        "Identity",
    ]
    for name in ("a weight", "another count of iterations"):
        forged = onnx.ModelProto()
        forged.CopyFrom(result)
        body = next(node for node in forged.graph.node if node.op_type == "Loop").attribute[0].g
        tensor = body.initializer[0] if name == "a weight" else forged.graph.initializer[0]
        array = onnx.numpy_helper.to_array(tensor).copy()
        array.reshape(-1)[0] += 1
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
        with pytest.raises(Rejected):
            certify(source, forged, sealed(document, source, forged))


HEAD = '<ir_version: 9, opset_import: ["" : 21]> agraph '
TEXTS = {
    "constant condition": (
        """(float[2,3] x) => (float[2,3] y) <bool c = {1}> {
      y = If (c) <then_branch: graph = a () => (float[2,3] p) { q = Abs (x) p = Exp (q) },
                  else_branch: graph = b () => (float[2,3] r) { r = Exp (x) }>
    }"""
    ),
    "parts of a sequence": (
        """(float[2,7] x) => (float[2,3] y, float[2,1] z)
    <int64 k = {3}, int64 i = {1}, int64 j = {-1}> {
      s = SplitToSequence <axis: int = 1> (x, k)
      u = SequenceAt (s, i)
      y = Abs (u)
      v = SequenceAt (s, j)
      z = Exp (v)
    }"""
    ),
    "rejoined": (
        """(float[2,6] x) => (float[2,6] y) {
      a, b = Split <axis: int = 1, num_outputs: int = 2> (x)
      c = Concat <axis: int = 1> (a, b)
      y = Exp (c)
    }"""
    ),
    "zero state": (
        """(float[L,N,3] x, float[1,8,3] w, float[1,8,2] r, float[1,N,2] s) => (float[L,1,N,2] y) {
      n = Shape (s)
      h = ConstantOfShape (n)
      y = LSTM <hidden_size: int = 2> (x, w, r, , , s, h)
    }"""
    ),
    "casts": (
        """(float16[2] x) => (double[2] y) {
      a = Cast <to: int = 1> (x)
      b = Cast <to: int = 11> (a)
      y = Exp (b)
    }"""
    ),
    "constant choice": (
        """(float[2,3] x, float[2,3] z) => (float[2,3] y) <bool[3] c = {1, 1, 1}> {
      w = Where (c, x, z)
      y = Exp (w)
    }"""
    ),
}


def edited(name: str, model: ModelProto) -> ModelProto:
    """The model of a text with its condition violated."""
    forged = onnx.ModelProto()
    forged.CopyFrom(model)
    node, constants = forged.graph.node[-2 % len(forged.graph.node)], forged.graph.initializer
    if name == "casts":
        forged.graph.node[0].attribute[0].i = onnx.TensorProto.FLOAT8E5M2
    elif name == "zero state":
        half = onnx.numpy_helper.from_array(np.array([0.5], np.float32))
        node.attribute.append(onnx.helper.make_attribute("value", half))
    elif name == "rejoined":
        node.input[:] = reversed(node.input)
    else:
        changed = {"parts of a sequence": 2}.get(name, 0)
        array = onnx.numpy_helper.to_array(constants[0]).copy()
        array.reshape(-1)[0] = changed
        constants[0].CopyFrom(onnx.numpy_helper.from_array(array, constants[0].name))
    return forged


@pytest.mark.parametrize("name", TEXTS)
def test_a_structure_is_proved_and_refused_where_its_condition_is_violated(name: str) -> None:
    source, result, document = certified(onnx.parser.parse_model(HEAD + TEXTS[name]))
    assert result.graph.node != source.graph.node
    certify(source, result, document)
    forged = edited(name, source)
    with pytest.raises(Rejected):
        certify(forged, result, sealed(document, forged, result))


def test_a_result_that_is_no_valid_model_is_refused() -> None:
    """The sum of a product and a constant that is larger is no Gemm, whose third
    operand must fit.
    """
    graph = Graph()
    product = graph.node(
        "MatMul", [graph.input("x", [2, 3]), graph.initializer(graph.random(3, 1))]
    )
    graph.output(graph.node("Add", [product, graph.initializer(graph.random(4))]))
    source = graph.model()
    forged = onnx.ModelProto()
    forged.CopyFrom(source)
    product_, sum_ = forged.graph.node
    made = onnx.helper.make_node("Gemm", [*product_.input, sum_.input[1]], list(sum_.output))
    del forged.graph.node[:]
    forged.graph.node.append(made)
    step = {
        "at": "result",
        "operation": made.output[0],
        "identity": "product and sum",
        "source": made.output[0],
    }
    document = {"format": "irc-certificate", "version": 1, "rewrites": [], "steps": [step]}
    with pytest.raises(Rejected, match="no valid model"):
        certify(source, forged, sealed(document, source, forged))


@pytest.mark.parametrize("scale", [1e-200, 0.5])
def test_a_bound_that_overflows_is_refused(scale: float) -> None:
    """max(c * x, k) = c * max(x, k / c), unless k / c is infinite."""
    head = (
        f"{HEAD}(double[2,3] x) => (double[2,3] z) <double[3] c = {{{scale}, 2, 4}}, double[3] k ="
        " {1e200, 1, 1}"
    )
    source = onnx.parser.parse_model(f"{head}> {{ a = Mul (x, c) y = Max (a, k) z = Exp (y) }}")
    result = onnx.parser.parse_model(
        f"{head}, double[3] b = {{1, 0.5, 0.25}}> {{ m = Max (x, b) y = Mul (m, c) z = Exp (y) }}"
    )
    bound = result.graph.initializer[2]
    bound.CopyFrom(
        onnx.numpy_helper.from_array(
            np.array([np.inf if scale < 1e-100 else 2e200, 0.5, 0.25]), "b"
        )
    )
    steps = [{"at": "result", "operation": "m", "identity": "same bounds", "source": "y"}]
    document = {"format": "irc-certificate", "version": 1, "rewrites": [], "steps": steps}
    if scale == 0.5:
        assert certify(source, result, sealed(document, source, result)) == 1
        return
    with pytest.raises(Rejected, match="a bound overflows"):
        certify(source, result, sealed(document, source, result))


def test_weights_that_vanish_are_refused() -> None:
    graph = Graph()
    x = graph.node(
        "Conv", [graph.input("x", [1, 3, 5, 5]), graph.initializer(graph.random(4, 3, 3, 3))]
    )
    graph.output(graph.node("Mul", [x, graph.initializer(np.array(1e-30, np.float32))]))
    source, result, document = certified(graph.model())
    assert certify(source, result, document)
    forged = [onnx.ModelProto(), onnx.ModelProto()]
    for model, given in zip(forged, (source, result), strict=True):
        model.CopyFrom(given)
        for tensor in model.graph.initializer:
            factor = np.float32(1e-12) if given is result or not tensor.dims else np.float32(1)
            array = onnx.numpy_helper.to_array(tensor) * factor
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    with pytest.raises(Rejected, match="below the normal numbers"):
        certify(*forged, sealed(document, *forged))


def test_a_rewrite_without_an_identity_is_unproved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from irc.tools.certify.checker.proof import IDENTITIES

    monkeypatch.delitem(IDENTITIES, "same bounds")
    graph = Graph()
    bounds = [graph.initializer(np.array(number, np.float32)) for number in (-1, 2, 0, 1)]
    x = graph.node("Clip", [graph.input("x", [1, 4]), *bounds[:2]])
    graph.output(graph.node("Clip", [x, *bounds[2:]]))
    model = graph.model()
    result = compile_model(model, certificate=True)
    document = result.certificate()
    with pytest.raises(Rejected, match="is unproved"):
        certify(model, result.model, document)
    assert certify(model, result.model, document, allow_unproved=True) == 1


def test_the_commands_write_and_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, certificate, plain = (tmp_path / name for name in ("o.onnx", "c.json", "p.onnx"))
    assert (
        main(["compile", str(EXAMPLE), "-o", str(output), "--certificate", str(certificate), "-q"])
        == 0
    )
    assert main(["compile", str(EXAMPLE), "-o", str(plain), "-q"]) == 0
    assert output.read_bytes() == plain.read_bytes()
    document = json.loads(certificate.read_text())
    assert document["rewrites"] and all(len(entry) == 2 for entry in document["rewrites"])
    proof = tmp_path / "proof.json"
    words = ["certify", str(EXAMPLE), str(output)]
    assert main([*words, str(certificate), "--proof", str(proof)]) == 0
    assert "proved in 8 steps" in capsys.readouterr().out
    assert len(json.loads(proof.read_text())["steps"]) == 8
    assert main([*words, str(proof), "--proof", str(certificate)]) == 0
    assert certificate.read_bytes() == proof.read_bytes()
    assert main([*words, str(proof), "--proof", str(output)]) == 2
    assert "would replace a file that is read" in capsys.readouterr().err
    certificate.write_text(json.dumps(document))
    model = onnx.load(output)
    tensor = next(t for t in model.graph.initializer if t.data_type == 1)
    array = onnx.numpy_helper.to_array(tensor).copy()
    array.reshape(-1)[0] = np.nextafter(array.reshape(-1)[0], np.float32(9))
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    onnx.save(model, output)
    assert main(["certify", str(EXAMPLE), str(output), str(certificate)]) == 1
    assert "another result" in capsys.readouterr().err
    certificate.write_text(json.dumps(sealed(document, onnx.load(EXAMPLE), model)))
    assert main(["certify", str(EXAMPLE), str(output), str(certificate)]) == 1
    error = capsys.readouterr().err
    assert "has other numbers than those that follow" in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "-", "--certificate", "c.json"], "--certificate needs files"),
        (["-o", "o.onnx", "--certificate", "-"], "--certificate needs files"),
        (
            ["-o", "o.onnx", "--certificate", "c.json", "--freeze-initializers"],
            "--freeze-initializers changes",
        ),
    ],
)
def test_contradicting_options(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["compile", str(EXAMPLE), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_external_data_are_part_of_the_proof(tmp_path: Path) -> None:
    output, certificate = tmp_path / "o.onnx", tmp_path / "c.json"
    arguments = ["-o", str(output), "--certificate", str(certificate), "--external-data", "-q"]
    assert main(["compile", str(EXAMPLE), *arguments]) == 0
    assert main(["certify", str(EXAMPLE), str(output), str(certificate), "-q"]) == 0
    (data,) = tmp_path.glob("*.data")
    content = bytearray(data.read_bytes())
    content[0] ^= 1
    data.write_bytes(bytes(content))
    assert main(["certify", str(EXAMPLE), str(output), str(certificate), "-q"]) == 1


@pytest.mark.shared
@pytest.mark.parametrize("folder", ["imagenet", "digits"])
def test_real_models_are_proved(folder: str) -> None:
    for path in harness.shared_models(folder):
        source = onnx.load(path)
        result = compile_model(str(path), certificate=True)
        document = result.certificate()
        steps = proof_of(source, result.model, document)["steps"]
        assert certify(source, result.model, document) == len(steps), path
        size = len(json.dumps(document))
        assert path.stat().st_size < 1 << 20 or size < 0.05 * path.stat().st_size, path


def test_random_graphs_are_proved_or_unproved() -> None:
    proved = 0
    for seed in range(24):
        model = grow(seed, F32)
        result = compile_model(model, certificate=True)
        document = result.certificate()
        if check(model, result.model, proof_of(model, result.model, document)).unproved:
            with pytest.raises(Rejected, match="is unproved"):
                certify(model, result.model, document)
            certify(model, result.model, document, allow_unproved=True)
            continue
        certify(model, result.model, document)
        proved += 1
    assert proved >= 16


def test_the_checker_imports_nothing_else_of_the_package() -> None:
    allowed = {
        *sys.stdlib_module_names,
        "numpy",
        "onnx",
        "google",
        "__future__",
    }  # google: protobuf
    for path in (harness.ROOT / "tools" / "certify" / "checker").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert node.level <= 1, f"{path.name} imports from another folder"
                assert node.level or (node.module or "").split(".")[0] in allowed, path.name
            elif isinstance(node, ast.Import):
                assert {alias.name.split(".")[0] for alias in node.names} <= allowed, path.name


def test_a_digest_is_that_of_what_protobuf_writes() -> None:
    """Without irc's mark, with large elements, and with fields that this onnx does not know."""
    source = parsed("(float[1, 200, 200] x) => (float[1, 200, 200] y) { y = Add(x, w) }")
    weight = np.ones((200, 200), np.float32)
    source.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    source.graph.doc_string, source.doc_string = "graph", "model"
    source.graph.MergeFromString(b"\xfa\x07\x02ab")  # field 127
    source.MergeFromString(b"\xfa\x07\x03abc")
    written = hashlib.sha256(source.SerializeToString(deterministic=True)).hexdigest()
    assert digest_of_model(source) == written
    source.metadata_props.add(key="irc.compiled", value="1")
    assert digest_of_model(source) == written
    source.metadata_props.add(key="author", value="1")
    assert digest_of_model(source) != written
