"""Rules for arithmetic: neutral constants, successive constants, and MatMul followed by Add."""

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
    affine = find_affine(node, evaluator)
    if affine is None or len(affine.nodes) > 1 or not (affine.scale == 1).all() or affine.shift.any():
        return rewriter.decline("it neither multiplies by ones nor adds zeros")
    if affine.data.type != affine.result.type:
        return rewriter.decline("its result differs from its data in shape or type")
    # Equal for every x, NaN and the infinities included: only the sign of a zero differs, as -0.0 + 0.0 is 0.0.
    return rewriter.forward(affine.result, affine.data)


@rule(affine="merges")
def drop_neutral_constant(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """`x * 1`, `x / 1`, `x + 0`, `x - 0` -> x, where x is an integer or the constant varies along several axes"""
    operands = _operands(node, evaluator)
    # 0 - x and 1 / x are not x.
    if operands is None or (operands.constant_first and node.op not in ("add", "multiply")):
        return rewriter.decline("no operand is a constant, or the constant is the first operand of Sub or Div")
    neutral = 1 if node.op in ("multiply", "divide") else 0
    if (operands.constant != neutral).any() or not keeps_shape(operands.data, operands.constant):
        return rewriter.decline("its constant is not neutral, or broadcasting changes the shape")
    return rewriter.forward(node.output, operands.data)


@rule(affine="merges")
def drop_power_of_one(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """power(x, 1) -> x"""
    data, exponent = data_of(node), evaluator.array(node.inputs[1])
    if exponent is None or exponent.dtype.kind == "O" or (exponent != 1).any() or not keeps_shape(data, exponent):
        return rewriter.decline("its exponent is not a constant of ones, or broadcasting changes the shape")
    # The result of Pow has the type of the base, and pow(x, 1) is x for NaN and the infinities too.
    return rewriter.forward(node.output, data)


@rule(affine="merges")
def integer_zero(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """multiply(x, 0) -> 0, subtract(x, x) -> 0, for integers of static shape"""
    dtype, shape = dtype_of(node.output.type), shape_of(node.output.type)
    # Not for floats: NaN * 0 and inf - inf are NaN.
    if dtype is None or dtype.kind not in ("int", "uint") or dtype.bits < 8 or shape is None:
        return rewriter.decline("its result is not an integer tensor of known rank")
    dims = [dim for dim in shape if isinstance(dim, int)]
    if len(dims) != len(shape) or element_count(dims) * dtype.bits > 8 * MAX_BYTES:
        return rewriter.decline("its shape is not static, or the result is too large")
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
        return rewriter.decline("it is not one Add, Sub, Mul or Div of a constant per channel")
    producer = outer.data.node
    if producer is None or not only_reader(outer.data, node):
        return rewriter.decline("its data has other readers, or is an input or a constant")
    if {_GROUP.get(producer.op), _GROUP.get(node.op)} == {"add", "multiply"}:
        return rewriter.decline("one of the two operators adds and the other multiplies")
    inner = find_affine(producer, evaluator)
    dtype = dtype_of(outer.result.type)
    if inner is None or len(inner.nodes) > 1 or inner.result is not outer.data or dtype is None:
        return rewriter.decline("the operator before it is not one Add, Sub, Mul or Div of a constant per channel")
    axis = inner.axis if outer.axis is None else outer.axis
    if (inner.axis is not None and inner.axis != axis) or inner.data.type != outer.result.type:
        return rewriter.decline("the two constants vary along different axes, or an operator changes the type")
    merged = _merged(inner, outer, dtype)
    if merged is None:
        return rewriter.decline("the merged constant cancels, is not finite or leaves the normal range")
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
    """Return one operator and its constant for two successive shifts or scales, None where they may not merge."""
    if (inner.scale == 1).all() and (outer.scale == 1).all():
        total = _total("add", inner.shift, outer.shift, dtype)
        return None if total is None else ("add", total)
    if inner.shift.any() or outer.shift.any():
        return None
    total = _total("multiply", inner.scale, outer.scale, dtype)
    return None if total is None else ("multiply", total)


def _total(op: str, a: Array, b: Array, dtype: DType) -> Array | None:
    """Return the sum or product of two float64 constants.

    Return None where a sum cancels, a product leaves the normal range of `dtype`, or the result is not finite.
    """
    # The total is computed in float64 and rounded to `dtype` once, where the model rounds after each operator. So the
    # result is as precise, but for three cases, which stay: (x + a) + b with b near -a rounds x on purpose; a product
    # below the normal range has lost bits; and an infinite total is wrong where x * a * b is finite.
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
class _Operands:
    """The two operands of an arithmetic operator, one of which is a constant."""

    data: Value
    constant: Array
    constant_first: bool


def _operands(node: Node, evaluator: ConstantEvaluator) -> _Operands | None:
    """Return the operands of `node`, the constant in the shape in which numpy broadcasts it.

    Return None unless exactly one operand is a constant. Return None too for a lowered BatchNormalization, which is
    written as one operator while both of its halves stay, and for the bias of a layer, which may become its operand.
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
    return _Operands(data, constant, constant_first=sides[0] == 0)


@rule(affine="merges")
def merge_constants(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """(x + a) + b -> x + (a + b); (x * a) * b -> x * (a * b), of integers and of constants of any shape"""
    outer = _operands(node, evaluator)
    producer = None if outer is None else outer.data.node
    dtype = dtype_of(node.output.type)
    if outer is None or producer is None or dtype is None or not only_reader(outer.data, node):
        return rewriter.decline("it has no constant operand, or its data has other readers")
    inner = _operands(producer, evaluator) if producer.op in _GROUP else None
    if inner is None or _GROUP[producer.op] != _GROUP[node.op] or not keeps_shape(inner.data, inner.constant):
        return rewriter.decline(
            "the operator before it is not of the same group: Add and Sub, or Mul and Div, of a constant"
        )
    if not keeps_shape(inner.data, outer.constant) or (inner.constant_first and producer.op in ("subtract", "divide")):
        return rewriter.decline("a constant changes the shape, or is the first operand of Sub or Div")
    if outer.constant_first and node.op in ("subtract", "divide"):
        return rewriter.decline("its constant is the first operand of Sub or Div")
    op = _GROUP[node.op]
    total = (
        _integers(producer, inner, node, outer) if not dtype.is_float else _floats(producer, inner, node, outer, dtype)
    )
    if total is None or total.nbytes > max(MAX_BYTES, inner.constant.nbytes + outer.constant.nbytes):
        return rewriter.decline("the merged constant cancels, is not finite, leaves the normal range or is too large")
    hint = f"{node.output.name}.{'shift' if op == 'add' else 'scale'}"
    parameter = rewriter.constant(ArrayTensor(total), before=node, hint=hint)
    result = rewriter.make(
        op, [inner.data, parameter], before=node, hint=node.output.name, name=node.name, type_=node.output.type
    )
    rewriter.replace(node.output, result.output, take_name=True)
    return True


_GROUP = {"add": "add", "subtract": "add", "multiply": "multiply", "divide": "multiply"}
"""The operator that computes each of these, once its constant is negated or inverted."""


def _integers(first: Node, inner: _Operands, second: Node, outer: _Operands) -> Array | None:
    """Return the sum or product of two integer constants, None where they may not merge."""
    # Sums and products are exact modulo 2**n, in numpy as in the operators. Div rounds: (x * 3) / 3 is not x * (3 / 3).
    if "divide" in (first.op, second.op) or inner.constant.dtype.kind not in "iu":
        return None
    with np.errstate(all="ignore"):
        a, b = (
            np.negative(operands.constant) if node.op == "subtract" else operands.constant
            for node, operands in ((first, inner), (second, outer))
        )
        return np.asarray(a * b if _GROUP[first.op] == "multiply" else a + b, inner.constant.dtype)


def _floats(first: Node, inner: _Operands, second: Node, outer: _Operands, dtype: DType) -> Array | None:
    """Return the sum or product of two floating constants in float64, None where they may not merge."""
    constants = []
    for node, operands in ((first, inner), (second, outer)):
        constant = to_float64(operands.constant)
        if node.op == "divide":
            if not constant.all():
                return None
            constant = 1 / constant
        constants.append(-constant if node.op == "subtract" else constant)
    return _total(_GROUP[first.op], constants[0], constants[1], dtype)


@rule(affine="merges")
def matmul_to_dense(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """matmul(x, w) + b -> dense(x, w, b)"""
    affine = find_affine(node, evaluator)
    if affine is None or len(affine.nodes) > 1 or affine.axis != 1 or not (affine.scale == 1).all():
        return rewriter.decline("it does not add one constant per column")
    matmul = affine.data.node
    if matmul is None or matmul.op != "matmul" or not only_reader(affine.data, node):
        return rewriter.decline("its data is not the result of a MatMul without other readers")
    ranks = [None if value is None else shape_of(value.type) for value in matmul.inputs]
    dtype = dtype_of(node.output.type)
    # Gemm broadcasts its bias from opset 7 on, and takes bfloat16 from opset 13 on.
    if any(shape is None or len(shape) != 2 for shape in ranks) or node.opset < (13 if str(dtype) == "bf16" else 7):
        return rewriter.decline("an operand of the MatMul is not a matrix, or Gemm of this opset cannot add the bias")
    if dtype is None or not dtype.is_float:
        return rewriter.decline("its elements are not floats")
    bias = affine.parameter
    assert bias is not None
    if (shape := shape_of(bias.type)) is None or len(shape) != 1 or (affine.shift != evaluator.array(bias)).any():
        bias = rewriter.constant(ArrayTensor(affine.shift), before=node, hint=f"{node.output.name}.bias")
    dense = rewriter.make(
        "nn.dense", [*matmul.inputs, bias], before=node, hint=node.output.name, name=matmul.name or node.name
    )
    dense.output.type = node.output.type
    rewriter.replace(node.output, dense.output, take_name=True)
    return True


@rule(affine="obstructs")
def drop_computed_zero_bias(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """conv(x, w, 0) -> conv(x, w), where the zeros are a constant expression, as exporters write it"""
    bias = node.input(2)
    array = evaluator.array(bias)
    if bias is None or array is None or bias.node is None or bias.node.op == "constant" or array.any():
        return rewriter.decline("it has no bias of zeros that a constant expression computes")
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
        return rewriter.decline("its condition is not a constant, or has both true and false elements")
    chosen, other = node.inputs[1:] if condition.ravel()[0] else reversed(node.inputs[1:])
    assert chosen is not None and other is not None
    shape = shape_of(chosen.type)
    # The shape of the result is broadcast from all three operands.
    if not broadcasts_into(shape_of(other.type), shape) or not broadcasts_into(condition.shape, shape):
        return rewriter.decline("broadcasting the other operands may change the shape")
    return rewriter.forward(node.output, chosen)


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
