"""Activations and clipping."""

from __future__ import annotations

import numpy as np

from ..graph import Node
from ..tensor import Array
from .evaluation import NotEvaluable, operand
from .inference import same
from .row import Inputs, OpInfo, number


def evaluate_abs(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Compute Abs; the least signed integer has none."""
    data = operand(inputs)
    if data.dtype.kind == "i" and (data == np.iinfo(data.dtype).min).any():
        raise NotEvaluable("the absolute value of the least integer")
    return (np.abs(data),)


ROWS = (
    OpInfo("nn.relu", (1, 1), same, onnx="Relu"),
    OpInfo("nn.leaky_relu", (1, 1), same, onnx="LeakyRelu", attrs={"alpha": number}),
    OpInfo("nn.prelu", (2, 2), same, onnx="PRelu"),
    OpInfo("abs", (1, 1), same, evaluate_abs, onnx="Abs"),
    OpInfo("clip", (1, 3), same, onnx="Clip"),
    OpInfo("hard_sigmoid", (1, 1), same, onnx="HardSigmoid", attrs={"alpha": number, "beta": number}),
)
