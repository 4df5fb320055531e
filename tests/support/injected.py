"""Ten faults that are injected into passes, with models that show them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from graphs import F32, Graph, batch_norm
from msgspec.structs import replace
from onnx import ModelProto

Patch = Callable[[pytest.MonkeyPatch], None]
C = 4


def network() -> ModelProto:
    """Two convolutions with BatchNormalizations and a Relu between them, and a pool."""
    graph = Graph(dtype=F32)
    x = graph.input("x", ["N", C, 9, 9])
    hidden = graph.node(
        "Conv", [x, graph.initializer(graph.random(C, C, 3, 3), "w0")], "c0", "conv0"
    )
    hidden = graph.batch_norm(hidden, batch_norm(C, 1), "b0", "bn0")
    hidden = graph.node("Relu", [hidden], "r0", "relu")
    weight, bias = (
        graph.initializer(graph.random(C, C, 3, 3), "w1"),
        graph.initializer(graph.random(C), "bias1"),
    )
    hidden = graph.node("Conv", [hidden, weight, bias], "c1", "conv1")
    hidden = graph.batch_norm(hidden, batch_norm(C, 2), "b1", "bn1")
    graph.output(graph.node("MaxPool", [hidden], "y", "pool", kernel_shape=[2, 2]))
    return graph.model()


def forward_network(pads: int) -> ModelProto:
    """A BatchNormalization that only the convolution behind it could take."""
    graph = Graph(dtype=F32)
    x = graph.input("x", ["N", C, 9, 9])
    hidden = graph.batch_norm(x, batch_norm(C, 1), "b", "bn")
    weight = graph.initializer(graph.random(C, C, 3, 3), "w")
    graph.output(graph.node("Conv", [hidden, weight], "y", "conv", pads=[pads] * 4))
    return graph.model()


def negative_network() -> ModelProto:
    """A scale with a negative channel behind a Relu."""
    graph = Graph(dtype=F32)
    x = graph.input("x", ["N", 3, 9, 9])
    hidden = graph.node("Conv", [x, graph.initializer(graph.random(C, 3, 3, 3), "w")], "c", "conv")
    hidden = graph.node("Relu", [hidden], "r", "relu")
    scale = graph.initializer(np.array([1.5, -2.0, 0.5, 3.0], np.float32).reshape(C, 1, 1))
    graph.output(graph.node("Mul", [hidden, scale], "y", "mul"))
    return graph.model()


@dataclass(frozen=True)
class Fault:
    """What is broken, in which pass it shows, and in which tensor first."""

    name: str
    patch: Patch
    pass_: str
    tensor: str
    model: ModelProto

    @property
    def how(self) -> str:
        """How the message says that the tensor is wrong."""
        return "is float32 of shape" if self.name == "stride changed" else "is off by"


def wrong_sign(patch: pytest.MonkeyPatch) -> None:
    from irc.passes.affine.search.commit import Committer

    fold = Committer._fold
    patch.setattr(
        Committer,
        "_fold",
        lambda self, change, f, *rest: fold(
            self, change, replace(f, bias=None if f.bias is None else -f.bias), *rest
        ),
    )


def wrong_axis(patch: pytest.MonkeyPatch) -> None:
    from irc.passes.affine.search.commit import Committer

    weight = Committer._weight
    patch.setattr(
        Committer,
        "_weight",
        lambda self, fold, factor: weight(self, fold, np.moveaxis(factor, 0, 1)),
    )


def dropped_bias(patch: pytest.MonkeyPatch) -> None:
    from irc.passes.affine.search.commit import Committer

    patch.setattr(Committer, "_bias", lambda self, fold, bias, first: None)


def reversed_channels(patch: pytest.MonkeyPatch) -> None:
    from irc.passes.affine.search.commit import Committer

    weight = Committer._weight
    patch.setattr(Committer, "_weight", lambda self, fold, factor: weight(self, fold, factor[::-1]))


def shift_across_padding(patch: pytest.MonkeyPatch) -> None:
    from irc.passes import fold_scale_axis

    known = fold_scale_axis.Parameters
    patch.setattr(
        fold_scale_axis,
        "Parameters",
        lambda *args, **options: known(*args, **{**options, "border": "ignore"}),
    )


def sign_untested(patch: pytest.MonkeyPatch) -> None:
    from irc.passes.affine.algebra.transfer import Transfer
    from irc.passes.affine.rules.table import AFFINE_RULES

    def unchanged(node: Any, index: int, affine: Any, params: Any) -> Any:
        return [Transfer(operands=((0, affine),))]

    patch.setitem(AFFINE_RULES, "nn.relu", replace(AFFINE_RULES["nn.relu"], backward=unchanged))


def lost_epsilon(patch: pytest.MonkeyPatch) -> None:
    from irc.passes import simplify_inference

    right = simplify_inference.scales_and_shifts

    def wrong(nodes: Any, evaluator: Any) -> Any:
        for node in nodes:
            node.attrs = {**node.attrs, "epsilon": 0.125}
        return right(nodes, evaluator)

    patch.setattr(simplify_inference, "scales_and_shifts", wrong)


def rounded_to_half(patch: pytest.MonkeyPatch) -> None:
    products(patch, lambda weight, product: product.astype(np.float16).astype(np.float32))


def products(patch: pytest.MonkeyPatch, change: Callable[[Any, Any], Any]) -> None:
    """Let FoldConstant write `change(weight, product)` for the product of a weight and a factor."""
    from irc.ir import tensor
    from irc.passes import fold_constant

    scaled, product = tensor.scaled, fold_constant.product
    patch.setattr(
        tensor,
        "scaled",
        lambda weight, factor, dtype: change(weight, scaled(weight, factor, dtype)),
    )
    patch.setattr(
        fold_constant, "product", lambda weight, factor: change(weight, product(weight, factor))
    )


def relu_forgotten(patch: pytest.MonkeyPatch) -> None:
    from irc.ir.rule_driver import rule
    from irc.passes.simplify.rule_set import RULES

    @rule(affine="untouched")
    def forget(node: Any, rewriter: Any, evaluator: Any) -> bool:
        return bool(rewriter.forward(node.output, node.inputs[0]))

    patch.setitem(RULES, "nn.relu", (forget,))


def stride_changed(patch: pytest.MonkeyPatch) -> None:
    from irc.ir.rule_driver import rule
    from irc.passes.simplify.rule_set import RULES

    @rule(affine="untouched")
    def change(node: Any, rewriter: Any, evaluator: Any) -> bool:
        if node.attrs.get("strides") == (2, 2):
            return False
        rewriter.set_attr(node, "strides", (2, 2))
        return True

    patch.setitem(RULES, "nn.max_pool", (change,))


FAULTS = [
    Fault("wrong sign", wrong_sign, "FoldScaleAxis", "b0", network()),
    Fault("wrong axis", wrong_axis, "FoldScaleAxis", "b0", network()),
    Fault("dropped bias", dropped_bias, "FoldScaleAxis", "b0", network()),
    Fault("channels reversed", reversed_channels, "FoldScaleAxis", "b0", network()),
    Fault("shift across padding", shift_across_padding, "FoldScaleAxis", "y", forward_network(1)),
    Fault("sign not tested", sign_untested, "FoldScaleAxis", "y", negative_network()),
    Fault("wrong epsilon", lost_epsilon, "SimplifyInference", "b0", network()),
    Fault("weights rounded to float16", rounded_to_half, "FoldConstant", "b0", network()),
    Fault("activation forgotten", relu_forgotten, "SimplifyExpr", "b1", network()),
    Fault("stride changed", stride_changed, "SimplifyExpr", "y", network()),
]
