"""Constants that onnxruntime computed: accepted within the bound of their operator, and
only there.
"""

from __future__ import annotations

import base64
import copy
import json
import re
import zlib

import numpy as np
import onnx
import pytest
from graphs import Graph, batch_norm
from irc import Rejected, certify
from irc.compiler import compile as compile_model
from irc.tools.certify.checker.certificate import check
from irc.tools.certify.checker.kernels import BOUNDS
from onnx import ModelProto, helper

from .forgeries import Document, sealed
from .pairs import proof_of

Built = tuple[ModelProto, ModelProto, Document]

GAMMA = {
    "Exp": ("Exp",),
    "Sigmoid": ("Sigmoid",),
    "Softplus": ("Softplus",),
    "chain": ("Tanh", "Neg", "Sigmoid"),
}


def normalized(operators: tuple[str, ...]) -> Built:
    """A Conv and a BatchNormalization whose scales are computed from constants, and the
    certificate.
    """
    graph = Graph(count=7)
    x = graph.node(
        "Conv", [graph.input("x", [1, 3, 5, 5]), graph.initializer(graph.random(64, 3, 1, 1))]
    )
    parameters = batch_norm(64)
    computed = graph.initializer(graph.random(64) * np.float32(1.5))
    for operator in operators:
        computed = graph.node(operator, [computed])
    names = [graph.initializer(each) for each in (parameters.beta, parameters.mean, parameters.var)]
    graph.output(graph.node("BatchNormalization", [x, computed, *names]))
    source = graph.model()
    result = compile_model(source, certificate=True)
    document = proof_of(source, result.model, result.certificate())
    assert not check(source, result.model, document).unproved
    return source, result.model, json.loads(json.dumps(document))


def distances(step: Document) -> np.ndarray:
    return np.frombuffer(zlib.decompress(base64.b64decode(step["ulps"])), "<i2").copy()


def with_distances(document: Document, changed: np.ndarray, place: int = 0) -> Document:
    forged = copy.deepcopy(document)
    step = [each for each in forged["steps"] if "ulps" in each][place]
    step["ulps"] = base64.b64encode(zlib.compress(changed.astype("<i2").tobytes())).decode()
    return forged


@pytest.mark.parametrize("name", GAMMA)
def test_constants_of_kernels_are_proved_within_their_bound(name: str) -> None:
    source, result, document = normalized(GAMMA[name])
    assert [node.op_type for node in result.graph.node] == ["Conv"]
    certify(source, result, document)
    stated = [step for step in document["steps"] if "ulps" in step]
    assert len(stated) == sum(operator in BOUNDS for operator in GAMMA[name])
    found = distances(stated[-1])
    assert found.any() and np.abs(found).max() < 128
    for changed in (
        found + np.eye(64, dtype=int)[3] * 200,
        -300 + 0 * found,
        found[:-1],
        np.zeros(64),
    ):
        with pytest.raises(
            Rejected
        ):  # another number is not the one that the weights were made of, or too far
            certify(source, result, sealed(with_distances(document, changed, -1), source, result))
    forged = copy.deepcopy(document)
    next(step for step in forged["steps"] if "ulps" in step)["ulps"] = "AAAA"
    with pytest.raises(Rejected, match="damaged"):
        certify(source, result, sealed(forged, source, result))


def constant_model(text: str) -> ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 20]> g (float[3] x) => (float[3] y) {text}'
    )


EXACT = {
    "Exp": np.exp(0.75),
    "Sigmoid": 1 / (1 + np.exp(-0.75)),
    "Sqrt": np.sqrt(0.75),
    "Add": 2.0,
    "Reciprocal": 4 / 3,
}


def claimed(operator: str, ulps: list[list[int]], *, at: str = "source") -> str:
    """Return why the checker refuses a result with constants of 0.75 that are this far off, or
    nothing.
    """
    operands = "c, k" if operator == "Add" else "c"
    lines = "".join(f"k{i} = {operator}({operands}) " for i in range(len(ulps)))
    last = len(ulps) - 1
    source = constant_model(
        f"<float[1] c = {{0.75}}, float[1] k = {{1.25}}> {{ {lines} a = Mul(x, k0) y = Mul(a,"
        f" k{last}) }}"
    )
    exact = np.float32(EXACT[operator])
    result = constant_model(
        f"<float[1] k0 = {{1}}, float[1] k1 = {{1}}> {{ a = Mul(x, k0) y = Mul(a, k{last}) }}"
    )
    for i, tensor in enumerate(result.graph.initializer):
        value = exact.view(np.int32) + ulps[min(i, last)][0]
        tensor.CopyFrom(
            onnx.numpy_helper.from_array(
                value.astype(np.int32).reshape(1).view(np.float32), tensor.name
            )
        )
    steps = [
        {
            "at": at,
            "operation": f"k{i}",
            "identity": "constant",
            "ulps": base64.b64encode(zlib.compress(np.array(each, "<i2").tobytes())).decode(),
        }
        for i, each in enumerate(ulps)
    ]
    document = {"format": "irc-certificate", "version": 1, "rewrites": [], "steps": steps}
    try:
        certify(source, result, sealed(document, source, result))
    except Rejected as refusal:
        return str(refusal)
    return ""


@pytest.mark.parametrize(
    ("operator", "ulps", "reason"),
    [
        ("Exp", [[1]], ""),
        ("Exp", [[-1]], ""),
        ("Exp", [[1], [1]], ""),
        ("Exp", [[3]], "farther from the exact one than kernels of Exp"),
        ("Exp", [[1], [0]], "has another result"),
        ("Exp", [[1, 1]], "fit together|damaged"),
        ("Sigmoid", [[3]], ""),
        ("Sigmoid", [[6]], "farther"),
        ("Sqrt", [[1]], "rounded to the nearest"),
        ("Add", [[1]], "rounded to the nearest"),
        ("Reciprocal", [[0]], "rounded to the nearest"),
    ],
)
def test_only_kernels_may_be_off_and_only_by_their_bound(
    operator: str, ulps: list[list[int]], reason: str
) -> None:
    found = claimed(operator, ulps)
    assert bool(found) is bool(reason) and re.search(reason, found)


def test_the_result_has_no_constants_of_kernels() -> None:
    assert "no operation" in claimed("Exp", [[1]], at="result")


@pytest.mark.parametrize("operator", BOUNDS)
def test_kernels_of_onnxruntime_keep_the_bounds(operator: str) -> None:
    from irc.tools.certify.checker.kernels import stated, ulps_between
    from irc.tools.certify.checker.program import Operation, Stored
    from irc.tools.certify.checker.recomputation import EVALUATORS

    ort = pytest.importorskip("onnxruntime")
    generator = np.random.default_rng(5)
    x = np.concatenate(
        [generator.standard_normal(9000) * scale for scale in (0.01, 0.5, 1)]
    ).astype(np.float32)
    x = np.abs(x) if operator in ("Log", "Pow") else np.clip(x, -3.5, 8)
    given = {"x": x, **({"e": generator.permutation(x) - 1} if operator == "Pow" else {})}
    info = [helper.make_tensor_value_info(name, 1, [None]) for name in (*given, "y")]
    node = helper.make_node(operator, list(given), ["y"])
    graph = helper.make_graph([node], "g", info[:-1], info[-1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, given)
    operation = Operation("y", "", operator, 20, {}, {}, [], [])
    exact = EVALUATORS[operator](operation, [each.astype(np.float64) for each in given.values()])
    rounded = Stored(None, exact.astype(np.float32), exact)
    ulps = ulps_between(y, rounded)
    assert ulps is not None and (stated(operation, rounded, ulps).array == y).all()


def test_constants_are_rounded_where_a_step_says_so() -> None:
    """The product of two constants is rounded before a weight takes it; unrounded it makes other
    weights.
    """
    graph = Graph(count=3)
    product = graph.node(
        "Mul", [graph.initializer(graph.random(1, 64)), graph.initializer(graph.random(1, 64))]
    )
    x = graph.node("Mul", [graph.node("Tanh", [graph.input("x", [2, 64])]), product])
    graph.output(
        graph.node(
            "Gemm",
            [x, graph.initializer(graph.random(64, 32)), graph.initializer(graph.random(32))],
        )
    )
    source = graph.model()
    result = compile_model(source, certificate=True)
    document = proof_of(source, result.model, result.certificate())
    assert [node.op_type for node in result.model.graph.node] == ["Tanh", "Gemm"]
    certify(source, result.model, document)
    forged = json.loads(json.dumps(document))
    (step,) = [each for each in forged["steps"] if "rounded" in each]
    del step["rounded"]
    with pytest.raises(Rejected, match="weight is not the rounded product"):
        certify(source, result.model, sealed(forged, source, result.model))
