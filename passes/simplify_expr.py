"""SimplifyExpr: algebraic clean-up, to a fixpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..ir.affine.layers import smallest_normal, to_float64
from ..ir.affine.recognise import Step, recognise
from ..ir.errors import PassError
from ..ir.evaluate import ConstantEvaluator
from ..ir.graph import Graph, Module, Node
from ..ir.ops import op_info
from ..ir.rewrite import Rewriter
from ..ir.tensor import Array, ArrayTensor, round_to
from ..ir.types import DType, dtype_of, shape_of
from .infra import Pass, PassContext

Rule = Callable[[Node, Rewriter, ConstantEvaluator], bool]
Rules = dict[str, tuple[Rule, ...]]

ROUNDS = 64
"""Sweeps over a graph before the rules are taken to run in circles; chains collapse in one."""

CANCELLATION = 2.0**-10
"""Two shifts are not merged where their sum is smaller than this share of the larger: the original's rounding, which
somebody may compare with, is lost then."""


@dataclass(frozen=True)
class SimplifyExpr(Pass):
    """Rewrite expressions into fewer operators that compute the same.

    1. `identity(x)` and a `cast` to the type x has become x, where x may stand in the interface in their place.
    2. A floating `multiply` by ones, `add` of zeros and the like become x, where they leave x's shape alone.
    3. `transpose(transpose(x))` becomes one transpose, or x where the two cancel; the inner one must have no other
       reader.
    4. Two shifts by constants in a row, and two scales, become one: the first must have no other reader, the result
       must be finite in the data's dtype, and the constants must not cancel (shifts) or leave the normal range
       (scales).
    5. `add(matmul(x, w), b)` becomes `nn.dense(x, w, b)` where both operands have rank 2 and b is a constant per
       column.
    6. An operator of the op table whose results nobody reads goes.
    """

    name: ClassVar[str] = "SimplifyExpr"

    def run(self, module: Module, ctx: PassContext) -> bool:
        rewriter = Rewriter(module)
        evaluator = ConstantEvaluator()
        for graph in module.graphs():
            for _ in range(ROUNDS):
                if not any([apply_rules(node, rewriter, evaluator, RULES) for node in graph]):
                    break
            else:
                raise PassError(f"{self.name} does not come to an end in graph {graph.name!r}")
        return rewriter.changed


def apply_rules(node: Node, rewriter: Rewriter, evaluator: ConstantEvaluator, rules: Rules) -> bool:
    """Apply the first of the `rules` for the node's operator that matches; operators that nobody reads go first."""
    if drop_unread(node, rewriter):
        return True
    for rule in rules.get(node.op, ()):
        with rewriter.rewriting(node):
            if rule(node, rewriter, evaluator):
                return True
    return False


def clean_up(graph: Graph, rewriter: Rewriter, evaluator: ConstantEvaluator) -> None:
    """One sweep of rules 1, 3 and 6, which remove operators and make none but a merged Transpose."""
    for node in graph:
        apply_rules(node, rewriter, evaluator, CLEAN_UP)


def drop_unread(node: Node, rewriter: Rewriter) -> bool:
    """op(x) -> nothing, where nobody reads a result"""
    info = op_info(node.op)
    if info is None or not info.pure or node.op == "constant" or any(value.users for value in node.outputs):
        return False
    rewriter.erase(node)
    return True


def drop_identity(node: Node, rewriter: Rewriter, evaluator: ConstantEvaluator) -> bool:
    """identity(x) -> x"""
    data = node.inputs[0]
    return data is not None and rewriter.forward(node.output, data)


def drop_cast(node: Node, rewriter: Rewriter, evaluator: ConstantEvaluator) -> bool:
    """cast(x: T) to T -> x"""
    data = node.inputs[0]
    assert data is not None
    dtype = dtype_of(data.type)
    return dtype is not None and dtype is dtype_of(node.output.type) and rewriter.forward(node.output, data)


def drop_neutral(node: Node, rewriter: Rewriter, evaluator: ConstantEvaluator) -> bool:
    """`x * 1`, `x / 1`, `x + 0`, `x - 0` -> x"""
    step = recognise(node, evaluator)
    if not isinstance(step, Step) or len(step.nodes) > 1 or not (step.scale == 1).all() or step.shift.any():
        return False
    if step.data.type != step.result.type:
        return False
    note_merged(rewriter, step, "SimplifyExpr.drop_neutral")
    return rewriter.forward(step.result, step.data)


def merge_transposes(node: Node, rewriter: Rewriter, evaluator: ConstantEvaluator) -> bool:
    """transpose(transpose(x, p), q) -> transpose(x, p[q])"""
    outer = permutation(node)
    middle = node.inputs[0]
    assert middle is not None
    if outer is None:
        return False
    if list(outer) == list(range(len(outer))):
        return rewriter.forward(node.output, middle)
    producer = middle.node
    if producer is None or producer.op != "transpose" or middle.sole_user() is not node:
        return False
    inner, data = permutation(producer), producer.inputs[0]
    if inner is None or data is None or len(outer) != len(inner):
        return False
    perm = tuple(inner[i] for i in outer)
    if perm == tuple(range(len(perm))):
        return rewriter.forward(node.output, data)
    result = rewriter.make("transpose", [data], {"perm": perm}, before=node, hint=node.output.name, name=node.name)
    rewriter.replace(node.output, result.output, take_name=True)
    return True


def permutation(node: Node) -> tuple[int, ...] | None:
    """The axes of a `transpose`; without `perm` they are reversed, which takes a known rank."""
    perm = node.attrs.get("perm")
    if isinstance(perm, tuple):
        return tuple(axis for axis in perm if isinstance(axis, int))
    shape = shape_of(node.output.type)
    return None if shape is None else tuple(reversed(range(len(shape))))


def merge_affines(node: Node, rewriter: Rewriter, evaluator: ConstantEvaluator) -> bool:
    """(x + a) + b -> x + (a + b); (x * a) * b -> x * (a * b)"""
    outer = recognise(node, evaluator)
    if not isinstance(outer, Step) or len(outer.nodes) > 1:
        return False
    producer = outer.data.node
    if producer is None or outer.data.sole_user() is not node or producer.graph is not node.graph:
        return False
    inner = recognise(producer, evaluator)
    dtype = dtype_of(outer.result.type)
    if not isinstance(inner, Step) or len(inner.nodes) > 1 or inner.result is not outer.data or dtype is None:
        return False
    axis = inner.axis if outer.axis is None else outer.axis
    if (inner.axis is not None and inner.axis != axis) or inner.data.type != outer.result.type:
        return False
    merged = _merged(inner, outer, dtype)
    if merged is None:
        return False
    op, constant = merged
    attrs = {} if axis is None else {"axis": axis}
    payload = ArrayTensor(constant if axis is not None else np.asarray(constant))
    parameter = rewriter.constant(
        payload, before=node, hint=f"{node.output.name}.{'shift' if op == 'add' else 'scale'}"
    )
    result = rewriter.make(op, [inner.data, parameter], attrs, before=node, hint=node.output.name, name=node.name)
    result.output.type = node.output.type
    note_merged(rewriter, inner, "SimplifyExpr.merge_affines")
    rewriter.replace(node.output, result.output, take_name=True)
    return True


def _merged(inner: Step, outer: Step, dtype: DType) -> tuple[str, Array] | None:
    """The operator and constant that stand for two shifts or two scales in a row, None where they may not merge."""
    with np.errstate(all="ignore"):
        if (inner.scale == 1).all() and (outer.scale == 1).all():
            total = inner.shift + outer.shift
            larger = np.maximum(np.abs(inner.shift), np.abs(outer.shift))
            if (np.abs(total) < CANCELLATION * larger).any():
                return None
            return ("add", total) if _finite(total, dtype) else None
        if inner.shift.any() or outer.shift.any():
            return None
        total = inner.scale * outer.scale
        lost = (np.abs(total) < smallest_normal(dtype)) & (inner.scale != 0) & (outer.scale != 0)
        return ("multiply", total) if _finite(total, dtype) and not lost.any() else None


def _finite(array: Array, dtype: DType) -> bool:
    return bool(np.isfinite(to_float64(round_to(array, dtype))).all())


def note_merged(rewriter: Rewriter, step: Step, rule: str) -> None:
    """Record for the fold map that the affine of `step` went into another operator by `rule`."""
    rewriter.module.ledger.merged.extend((node.origins, rule) for node in step.nodes)


def matmul_to_dense(node: Node, rewriter: Rewriter, evaluator: ConstantEvaluator) -> bool:
    """matmul(x, w) + b -> dense(x, w, b)"""
    step = recognise(node, evaluator)
    if not isinstance(step, Step) or len(step.nodes) > 1 or step.axis != 1 or not (step.scale == 1).all():
        return False
    matmul = step.data.node
    if matmul is None or matmul.op != "matmul" or step.data.sole_user() is not node or matmul.graph is not node.graph:
        return False
    ranks = [None if value is None else shape_of(value.type) for value in matmul.inputs]
    dtype = dtype_of(node.output.type)
    opset = 1 if node.graph is None else node.graph.opsets.get("", 1)
    if any(shape is None or len(shape) != 2 for shape in ranks) or opset < (13 if str(dtype) == "bf16" else 7):
        return False
    if dtype is None or not dtype.is_float:
        return False
    bias = step.parameter
    assert bias is not None
    if (shape := shape_of(bias.type)) is None or len(shape) != 1 or (step.shift != evaluator.array(bias)).any():
        bias = rewriter.constant(ArrayTensor(step.shift), before=node, hint=f"{node.output.name}.bias")
    dense = rewriter.make(
        "nn.dense", [*matmul.inputs, bias], before=node, hint=node.output.name, name=matmul.name or node.name
    )
    dense.output.type = node.output.type
    note_merged(rewriter, step, "SimplifyExpr.matmul_to_dense")
    rewriter.replace(node.output, dense.output, take_name=True)
    return True


RULES: Rules = {
    "add": (drop_neutral, merge_affines, matmul_to_dense),
    "cast": (drop_cast,),
    "divide": (drop_neutral, merge_affines),
    "identity": (drop_identity,),
    "multiply": (drop_neutral, merge_affines),
    "subtract": (drop_neutral, merge_affines),
    "transpose": (merge_transposes,),
}
"""The rules for each operator, in the order in which they are tried."""

CLEAN_UP: Rules = {
    "cast": (drop_cast,),
    "identity": (drop_identity,),
    "transpose": (merge_transposes,),
}
"""The rules that remove what may stand in the way of a fold."""
