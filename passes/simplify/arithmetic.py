"""Neutral elements, constants in a row, and sums of products."""

from __future__ import annotations

import numpy as np

from ...ir.evaluate import ConstantEvaluator
from ...ir.graph import Node, Value
from ...ir.ops import has_trait
from ...ir.ops.evaluation import align
from ...ir.ops.row import Trait
from ...ir.rewriter import Rewriter
from ...ir.rule_driver import Rules, rule
from ...ir.tensor import Array, ArrayTensor, numpy_dtype, round_to, smallest_normal, to_float64
from ...ir.types import DType, dtype_of, element_count, shape_of
from ...support.record import record
from ..affine.algebra import CANCELLATION
from ..affine.recognise import AffineOp, find_affine, made_of_little
from .extents import ShapeEvaluator
from .rules import (
    MAX_BYTES,
    become_constant,
    broadcasts_into,
    data_of,
    keeps_shape,
    only_reader,
)


@rule(affine="merges")
def drop_neutral(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """`x * 1`, `x / 1`, `x + 0`, `x - 0` -> x"""
    step = find_affine(node, evaluator)
    if step is None or len(step.nodes) > 1 or not (step.scale == 1).all() or step.shift.any():
        return rewriter.decline("it is no product with ones and no sum with zeros")
    if step.data.type != step.result.type:
        return rewriter.decline("its result has another type than its data")
    return rewriter.forward(step.result, step.data)


@rule(affine="merges")
def drop_neutral_constant(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """`x * 1`, `x / 1`, `x + 0`, `x - 0` -> x, where x is no float or the constant varies along several axes"""
    link = _link(node, evaluator)
    if link is None or (link.left and node.op not in ("add", "multiply")):
        return rewriter.decline("no operand, or the one on the wrong side, is a constant")
    neutral = 1 if node.op in ("multiply", "divide") else 0
    if (link.constant != neutral).any() or not keeps_shape(link.data, link.constant):
        return rewriter.decline("its constant is not neutral, or changes the shape")
    return rewriter.forward(node.output, link.data)


@rule(affine="merges")
def drop_power_of_one(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """power(x, 1) -> x"""
    data, exponent = data_of(node), evaluator.array(node.inputs[1])
    if exponent is None or exponent.dtype.kind == "O" or (exponent != 1).any() or not keeps_shape(data, exponent):
        return rewriter.decline("its exponent is no constant of ones, or changes the shape")
    return rewriter.forward(node.output, data)


@rule(affine="merges")
def integer_zero(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """multiply(x, 0) -> 0, subtract(x, x) -> 0, for integers of static shape"""
    dtype, shape = dtype_of(node.output.type), shape_of(node.output.type)
    if dtype is None or dtype.kind not in ("int", "uint") or dtype.bits < 8 or shape is None:
        return rewriter.decline("its result is no integer of known rank")
    dims = [dim for dim in shape if isinstance(dim, int)]
    if len(dims) != len(shape) or element_count(dims) * dtype.bits > 8 * MAX_BYTES:
        return rewriter.decline("its shape is not static, or too large")
    if node.op == "subtract":
        zero = node.inputs[0] is node.inputs[1]
    else:
        constants = [array for value in node.inputs if (array := evaluator.array(value)) is not None]
        zero = len(constants) == 1 and not constants[0].any()
    return zero and become_constant(node, rewriter, np.zeros(dims, numpy_dtype(dtype)))


@rule(affine="merges")
def merge_affines(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """(x + a) + b -> x + (a + b); (x * a) * b -> x * (a * b)"""
    outer = find_affine(node, evaluator)
    if outer is None or len(outer.nodes) > 1:
        return rewriter.decline("it is no affine of one operator")
    producer = outer.data.node
    if producer is None or not only_reader(outer.data, node):
        return rewriter.decline("its data is read elsewhere or is an input")
    if {_GROUP.get(producer.op), _GROUP.get(node.op)} == {"add", "multiply"}:
        return rewriter.decline("one of the two adds and the other multiplies")
    inner = find_affine(producer, evaluator)
    dtype = dtype_of(outer.result.type)
    if inner is None or len(inner.nodes) > 1 or inner.result is not outer.data or dtype is None:
        return rewriter.decline("the operator before it is no affine of one operator")
    axis = inner.axis if outer.axis is None else outer.axis
    if (inner.axis is not None and inner.axis != axis) or inner.data.type != outer.result.type:
        return rewriter.decline("the two vary along different axes, or change the type")
    merged = _merged(inner, outer, dtype)
    if merged is None:
        return rewriter.decline("the constants cancel, are not finite or leave the normal range")
    op, constant = merged
    attrs = {} if axis is None else {"axis": axis}
    payload = ArrayTensor(constant)
    parameter = rewriter.constant(
        payload, before=node, hint=f"{node.output.name}.{'shift' if op == 'add' else 'scale'}"
    )
    result = rewriter.make(op, [inner.data, parameter], attrs, before=node, hint=node.output.name, name=node.name)
    result.output.type = node.output.type
    rewriter.replace(node.output, result.output, take_name=True)
    return True


def _merged(inner: AffineOp, outer: AffineOp, dtype: DType) -> tuple[str, Array] | None:
    """The operator and constant that stand for two shifts or two scales in a row, None where they may not merge."""
    if (inner.scale == 1).all() and (outer.scale == 1).all():
        total = _total("add", inner.shift, outer.shift, dtype)
        return None if total is None else ("add", total)
    if inner.shift.any() or outer.shift.any():
        return None
    total = _total("multiply", inner.scale, outer.scale, dtype)
    return None if total is None else ("multiply", total)


def _total(op: str, a: Array, b: Array, dtype: DType) -> Array | None:
    """The sum or product of two float64 constants, None where it cancels, is not finite, or leaves the normal range."""
    with np.errstate(all="ignore"):
        if op == "add":
            total = np.asarray(a + b)
            lost = np.abs(total) < CANCELLATION * np.maximum(np.abs(a), np.abs(b))
        else:
            total = np.asarray(a * b)
            lost = (np.abs(total) < smallest_normal(dtype)) & (a != 0) & (b != 0)
        return total if _finite(total, dtype) and not lost.any() else None


def _finite(array: Array, dtype: DType) -> bool:
    return bool(np.isfinite(to_float64(round_to(array, dtype))).all())


@record
class _Link:
    """An arithmetic operator on `data` and a `constant`, which stands on the `left` or not."""

    data: Value
    constant: Array
    left: bool


def _link(node: Node, evaluator: ConstantEvaluator) -> _Link | None:
    """The operands of `node` where exactly one is a constant, in the form in which numpy broadcasts it.

    Halves of a BatchNormalization are none, nor is the bias of a layer, which may become part of it.
    """
    sides = [side for side, value in enumerate(node.inputs) if evaluator.is_constant(value)]
    if len(sides) != 1 or node.opset < 7:
        return None
    parameter, data = node.inputs[sides[0]], node.inputs[1 - sides[0]]
    constant = None if made_of_little(parameter) else evaluator.array(parameter)
    if constant is None or not evaluator.affords(constant.size):
        return None
    assert parameter is not None and data is not None
    if parameter.node is not None and parameter.node.op == "nn.batch_norm_to_affine":
        return None
    dtype = dtype_of(data.type)
    if constant.dtype.kind == "O" or dtype is None or dtype is not dtype_of(node.output.type):
        return None
    axis = node.attrs.get("axis")
    if isinstance(axis, int):
        shape = shape_of(data.type)
        if (
            shape is None
            or not 0 <= axis <= len(shape) - constant.ndim
            or (data.node is not None and has_trait(data.node, Trait.BIASED))
        ):
            return None
        constant = align(constant, axis, len(shape))
    return _Link(data, constant, sides[0] == 0)


@rule(affine="merges")
def merge_constants(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """(x + a) + b -> x + (a + b); (x * a) * b -> x * (a * b), of integers and of constants of any shape"""
    outer = _link(node, evaluator)
    producer = None if outer is None else outer.data.node
    dtype = dtype_of(node.output.type)
    if outer is None or producer is None or dtype is None or not only_reader(outer.data, node):
        return rewriter.decline("it has no constant operand, or its data is read elsewhere")
    inner = _link(producer, evaluator) if producer.op in _GROUP else None
    if inner is None or _GROUP[producer.op] != _GROUP[node.op] or not keeps_shape(inner.data, inner.constant):
        return rewriter.decline("the operator before it does not regroup with it")
    if not keeps_shape(inner.data, outer.constant) or (inner.left and producer.op in ("subtract", "divide")):
        return rewriter.decline("a constant changes the shape, or is divided or subtracted from")
    if outer.left and node.op in ("subtract", "divide"):
        return rewriter.decline("it is a constant that is divided or subtracted from")
    op = _GROUP[node.op]
    total = (
        _integers(producer, inner, node, outer) if not dtype.is_float else _floats(producer, inner, node, outer, dtype)
    )
    if total is None or total.nbytes > max(MAX_BYTES, inner.constant.nbytes + outer.constant.nbytes):
        return rewriter.decline("the constants cancel, are not finite or would grow")
    hint = f"{node.output.name}.{'shift' if op == 'add' else 'scale'}"
    parameter = rewriter.constant(ArrayTensor(total), before=node, hint=hint)
    result = rewriter.make(
        op, [inner.data, parameter], before=node, hint=node.output.name, name=node.name, type_=node.output.type
    )
    rewriter.replace(node.output, result.output, take_name=True)
    return True


_GROUP = {"add": "add", "subtract": "add", "multiply": "multiply", "divide": "multiply"}


def _integers(first: Node, inner: _Link, second: Node, outer: _Link) -> Array | None:
    """The sum or product, which wraps as the operators do; a quotient of integers is not regrouped."""
    if "divide" in (first.op, second.op) or inner.constant.dtype.kind not in "iu":
        return None
    with np.errstate(all="ignore"):
        a, b = (
            np.negative(link.constant) if node.op == "subtract" else link.constant
            for node, link in ((first, inner), (second, outer))
        )
        return np.asarray(a * b if _GROUP[first.op] == "multiply" else a + b, inner.constant.dtype)


def _floats(first: Node, inner: _Link, second: Node, outer: _Link, dtype: DType) -> Array | None:
    """The sum or product in float64, None where it may not be merged."""
    wide = []
    for node, link in ((first, inner), (second, outer)):
        constant = to_float64(link.constant)
        if node.op == "divide":
            if not constant.all():
                return None
            constant = 1 / constant
        wide.append(-constant if node.op == "subtract" else constant)
    return _total(_GROUP[first.op], wide[0], wide[1], dtype)


@rule(affine="merges")
def matmul_to_dense(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """matmul(x, w) + b -> dense(x, w, b)"""
    step = find_affine(node, evaluator)
    if step is None or len(step.nodes) > 1 or step.axis != 1 or not (step.scale == 1).all():
        return rewriter.decline("it adds no constant per column")
    matmul = step.data.node
    if matmul is None or matmul.op != "matmul" or not only_reader(step.data, node):
        return rewriter.decline("its data is no MatMul that it alone reads")
    ranks = [None if value is None else shape_of(value.type) for value in matmul.inputs]
    dtype = dtype_of(node.output.type)
    if any(shape is None or len(shape) != 2 for shape in ranks) or node.opset < (13 if str(dtype) == "bf16" else 7):
        return rewriter.decline("an operand is no matrix, or the opset is too old")
    if dtype is None or not dtype.is_float:
        return rewriter.decline("its elements are no floats")
    bias = step.parameter
    assert bias is not None
    if (shape := shape_of(bias.type)) is None or len(shape) != 1 or (step.shift != evaluator.array(bias)).any():
        bias = rewriter.constant(ArrayTensor(step.shift), before=node, hint=f"{node.output.name}.bias")
    dense = rewriter.make(
        "nn.dense", [*matmul.inputs, bias], before=node, hint=node.output.name, name=matmul.name or node.name
    )
    dense.output.type = node.output.type
    rewriter.replace(node.output, dense.output, take_name=True)
    return True


@rule(affine="obstructs")
def drop_computed_zero_bias(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """conv(x, w, 0) -> conv(x, w), where the zeros are computed: exporters make them of the weight's shape"""
    bias = node.input(2)
    array = evaluator.array(bias)
    if bias is None or array is None or bias.node is None or bias.node.op == "constant" or array.any():
        return rewriter.decline("its bias is not computed, or not zero")
    rewriter.set_inputs(node, node.inputs[:2])
    return True


@rule(affine="untouched")
def single_operand(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """sum(x), max(x), min(x), mean(x), concat(x) -> x, of one operand"""
    return len(node.inputs) == 1 and rewriter.forward(node.output, data_of(node))


@rule(affine="untouched")
def where_constant(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """where(true, x, y) -> x, where(false, x, y) -> y, of unchanged shape"""
    condition = evaluator.array(node.inputs[0])
    if condition is None or condition.size == 0 or (condition != condition.ravel()[0]).any():
        return rewriter.decline("its condition is no constant, or not the same everywhere")
    taken, other = node.inputs[1:] if condition.ravel()[0] else reversed(node.inputs[1:])
    assert taken is not None and other is not None
    shape = shape_of(taken.type)
    if not broadcasts_into(shape_of(other.type), shape) or not broadcasts_into(condition.shape, shape):
        return rewriter.decline("the other operands stretch the shape")
    return rewriter.forward(node.output, taken)


RULES: Rules[ShapeEvaluator] = {
    "add": (drop_neutral, drop_neutral_constant, merge_affines, merge_constants, matmul_to_dense),
    "add_n": (single_operand,),
    "concatenate": (single_operand,),
    "divide": (drop_neutral, drop_neutral_constant, merge_affines, merge_constants),
    "maximum": (single_operand,),
    "mean_n": (single_operand,),
    "minimum": (single_operand,),
    "multiply": (drop_neutral, drop_neutral_constant, integer_zero, merge_affines, merge_constants),
    "nn.conv": (drop_computed_zero_bias,),
    "nn.conv_transpose": (drop_computed_zero_bias,),
    "power": (drop_power_of_one,),
    "subtract": (drop_neutral, drop_neutral_constant, integer_zero, merge_affines, merge_constants),
    "where": (where_constant,),
}
"""The rules for each operator, in the order in which they are tried."""
