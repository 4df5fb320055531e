"""CanonicalizeOps and UnfuseBias: one form inwards, another outwards, the same model in ONNX."""

from __future__ import annotations

import pytest
from graphs import Graph, check, compiled, conv_bn, operators
from irc.frontends.onnx import from_model
from irc.ir.verifier import verify
from irc.passes import Sequential, UnfuseBias, default_pipeline
from irc.result import emit
from onnx import ModelProto


def ops(model_or_module: object) -> list[str]:
    """The in-house operators of a module, constants left out."""
    return [node.op for node in model_or_module.walk() if node.op not in ("constant", "return")]  # type: ignore[attr-defined]


def layer(op: str, *, bias: bool = True, **attrs: object) -> ModelProto:
    """One layer with or without bias, and Relu."""
    graph = Graph()
    graph.input("x", [2, 4] if op == "Gemm" else [2, 4, 4, 4])
    weight = graph.random(4, 4) if op == "Gemm" else graph.random(4, 4, 1, 1)
    extra = [graph.initializer(graph.random(4), "b")] if bias else []
    graph.node(
        "Relu",
        [graph.node(op, ["x", graph.initializer(weight, "w"), *extra], "h", "layer", **attrs)],
        "y",
    )
    graph.output("y")
    return graph.model()


IN_HOUSE = {"Conv": "nn.conv", "ConvTranspose": "nn.conv_transpose", "Gemm": "nn.dense"}


def test_unfuse_bias_behind_the_default_pipeline() -> None:
    graph, _, _ = conv_bn()
    flat, weight, bias = graph.node("Flatten", ["y"]), graph.random(64, 5), graph.random(5)
    graph.node("Gemm", [flat, graph.initializer(weight), graph.initializer(bias)], "z", "fc")
    graph.output("z", [2, 5])
    model = graph.model()
    plain = compiled(model)
    module = Sequential([*default_pipeline().passes, UnfuseBias()])(from_model(model))
    verify(module)
    assert [op for op in ops(module) if op.startswith("nn.")] == [
        "nn.conv", "nn.bias_add", "nn.batch_flatten", "nn.dense", "nn.bias_add",
    ]  # fmt: skip
    assert emit(module).model == plain.model


def test_unfused_layers_still_fold() -> None:
    """UnfuseBias first: the pair is an affine behind the layer like any other."""
    graph, _, _ = conv_bn(bias="b")
    graph.initializer(graph.random(4), "b")
    graph.output("y", [2, 4, 4, 4])
    result = check(graph.model(), ["Conv"], passes="UnfuseBias,default")
    assert result.model == compiled(graph.model()).model


@pytest.mark.parametrize("op", IN_HOUSE)
def test_a_bias_set_apart_goes_out_as_a_bias(op: str) -> None:
    """UnfuseBias, then CanonicalizeOps.

    The bare `add` that is left must not become one operator more.
    """
    result = check(layer(op), [op, "Relu"], passes="UnfuseBias,CanonicalizeOps")
    assert operators(compiled(result.model).model) == [op, "Relu"]
