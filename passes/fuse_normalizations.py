"""FuseNormalizations: a normalization that is written out becomes one operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..ir.evaluate import ConstantEvaluator
from ..ir.graph import Node, Value
from ..ir.module import Module
from ..ir.ops import is_in_opset
from ..ir.rewriter import Rewriter
from ..ir.rule_driver import RuleDriver, Rules, rule
from ..ir.types import F32, dtype_of, shape_of, static_shape_of
from .affine.units.normalization_units import normalization_at
from .infra import Pass, PassContext


@dataclass(frozen=True)
class FuseNormalizations(Pass):
    """Compute a normalization that is written out, with scale and bias, by one operator.

    1. LayerNormalization from opset 17 on, RMSNormalization from opset 23 on: ReduceMean, Sub, the
       square, ReduceMean, Add of epsilon, Sqrt and Div, or Reciprocal and Mul, then Mul of gamma,
       and Add of beta.
    2. All values are float32, and nothing else reads those inside.
    3. Mean and variance are along the last axis, which has as many elements as gamma and beta.
    4. Epsilon is at least 0. Neither it nor gamma nor beta adds an axis to the data.

    The function is the same over real numbers. A runtime adds up squares as it likes.
    """

    name: ClassVar[str] = "FuseNormalizations"
    after: ClassVar[tuple[str, ...]] = ("FoldScaleAxis", "FoldConstant")

    def run(self, module: Module, ctx: PassContext) -> bool:
        rewriter = Rewriter(module)
        driver = RuleDriver(rewriter, RULES, module.constants)
        for graph in module.graphs():
            driver.to_fixpoint(graph)
        return rewriter.changed


@rule(affine="merges")
def fuse_normalization(node: Node, rewriter: Rewriter, constants: ConstantEvaluator) -> bool:
    """(x - mean(x)) / sqrt(mean((x - mean(x))^2) + c) * g + b -> layer_norm(x, g, b)"""
    unit = normalization_at(node, constants)
    parts = unit.parts
    assert parts is not None
    op = "nn.rms_norm" if unit.kind == "RMSNormalization" else "nn.layer_norm"
    if not is_in_opset(op, node):
        return rewriter.decline(f"the model's opset has no {unit.kind}")
    if not all(
        _is_single(value, constants)
        for each in unit.nodes
        for value in (*each.inputs, *each.outputs)
        if value is not None
    ):
        return rewriter.decline("a value inside is not float32")
    width = (shape_of(parts.data.type) or (None,))[-1]
    scale = parts.gamma.operand(parts.gamma_index)
    ends = [(parts.gamma, scale)]
    ends += [
        (each, value)
        for each in unit.ends - {parts.gamma}
        for value in each.inputs
        if value is not None and constants.is_constant(value)
    ]
    rank = len(shape_of(parts.data.type) or ())
    epsilon = parts.epsilon.operand(parts.epsilon_index)
    if any(len(shape_of(each.type) or ()) > rank for each in (epsilon, *(v for _, v in ends))):
        return rewriter.decline("a constant has more axes than the data")
    if not isinstance(width, int) or any(
        (static_shape_of(value.type) or (1,))[-1] != width for _, value in ends
    ):
        return rewriter.decline("gamma or beta has not an element for each of the last axis")
    number = constants.array(epsilon)
    assert number is not None
    if not 0 <= float(number.reshape(())) < np.inf:
        return rewriter.decline("epsilon is not a number from 0 on")
    last = ends[-1][0]
    parameters = [_row(value, last, rewriter, constants) for _, value in ends]
    made = rewriter.make(
        op,
        [parts.data, *parameters],
        {"axis": -1, "epsilon": float(number.reshape(()))},
        before=last,
        hint=last.output.name,
        name=last.name,
        type_=last.output.type,
    )
    rewriter.replace(last.output, made.output, take_name=True)
    return True


def _is_single(value: Value, constants: ConstantEvaluator) -> bool:
    """Return whether a value is float32, or a constant of integers: axes, and an exponent."""
    dtype = dtype_of(value.type)
    if constants.is_constant(value) and dtype is not None and not dtype.is_float:
        return True
    return dtype is F32


def _row(value: Value, last: Node, rewriter: Rewriter, constants: ConstantEvaluator) -> Value:
    """Return gamma or beta as a vector."""
    if len(shape_of(value.type) or ()) == 1:
        return value
    exact = constants.exact(value)
    assert exact is not None
    return rewriter.rounded(exact.reshape(-1), F32, before=last, hint=value.name)


RULES: Rules[ConstantEvaluator] = {"sqrt": (fuse_normalization,)}
"""The rules by operator."""
