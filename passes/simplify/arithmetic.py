"""Rules for arithmetic: neutral constants, and successive constants."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...ir.attributes import Attribute
from ...ir.evaluate import ConstantEvaluator
from ...ir.graph import Node, Value, producer_of
from ...ir.matching import (
    check_only_reader,
    elements,
    known_dtype,
    known_shape,
    result_of,
    static_shape,
)
from ...ir.ops import AFFINE_KINDS, has_trait, is_legal
from ...ir.ops.evaluation import align
from ...ir.ops.row import NUMPY_BROADCAST, Trait
from ...ir.provenance import Declined
from ...ir.record import Record
from ...ir.rewriter import Rewriter
from ...ir.rule_driver import Rules, rule
from ...ir.shape_evaluator import ShapeEvaluator
from ...ir.tensor import Array, ArrayTensor, numpy_dtype, round_to, smallest_normal, to_float64
from ...ir.types import DType, dtype_of, element_count, shape_of
from ..affine.algebra.affine import CANCELLATION
from ..affine.algebra.recognise import AffineOp, made_of_little, recognise
from ..affine.units.units import unit_of
from ..affine.units.written_quotients import check_not_quotient
from .rules import (
    MAX_BYTES,
    become_constant,
    broadcasts_into,
    check_keeps_shape,
    substitute,
)

_GROUP = {"add": "add", "subtract": "add", "multiply": "multiply", "divide": "multiply"}
"""The operator that computes each of these, once its constant is negated or inverted."""


def _check_no_unit(node: Node, evaluator: ShapeEvaluator, producer: Node | None = None) -> None:
    """Decline to take apart fused operators: `node`, or `producer`, which becomes part of it.

    The constant at the end of a unit may take the next one.
    """
    unit = unit_of(node, evaluator)
    inner = None if producer is None else unit_of(producer, evaluator)
    if inner is not None and producer in inner.ends and unit is None:
        return
    for found, part in ((unit, node), (inner, producer)):
        if found is not None and part is not None:
            raise Declined(found.obstacle(part))


def _one_affine(node: Node, evaluator: ShapeEvaluator) -> AffineOp:
    """Return the affine that `node` is by itself."""
    affine = recognise(node, evaluator)
    if affine is None or len(affine.nodes) > 1:
        raise Declined("it is not one Add, Sub, Mul or Div of a constant per channel")
    return affine


@rule(
    affine="merges",
    identity=(
        "x * c == x if c == 1 and keeps_shape(x, c); "
        "x / c == x if c == 1 and keeps_shape(x, c); "
        "x + c == x if c == 0 and keeps_shape(x, c); "
        "x - c == x if c == 0 and keeps_shape(x, c)"
    ),
)
def drop_neutral(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """`x * 1`, `x / 1`, `x + 0`, `x - 0` -> x"""
    operands = _operands(node, evaluator)
    if (operands.rounded != (1 if _GROUP[node.op] == "multiply" else 0)).any():
        return rewriter.decline("its constant is not neutral")
    check_keeps_shape(operands.data, operands.constant)
    _check_no_unit(node, evaluator)
    # Equal for every x, NaN and the infinities included: only the sign of a zero differs, as -0.0 +
    # 0.0 is 0.0.
    return rewriter.forward(node.output, operands.data)


@rule(affine="merges", identity="power(x, c) == x if c == 1 and keeps_shape(x, c)")
def drop_power_of_one(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """power(x, 1) -> x"""
    data, exponent = node["base"], elements(node["exponent"], evaluator)
    if exponent.dtype.kind == "O" or (exponent != 1).any():
        return rewriter.decline("its exponent is not one")
    check_keeps_shape(data, exponent)
    # The result of Pow has the type of the base, and pow(x, 1) is x for NaN and the infinities too.
    return rewriter.forward(node.output, data)


@rule(
    affine="merges",
    identity="x * c == zero(x) if c == 0 and is_integer(x); x - x == zero(x) if is_integer(x)",
)
def integer_zero(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """multiply(x, 0) -> 0, subtract(x, x) -> 0, for integers of static shape"""
    # Not for floats: NaN * 0 and inf - inf are NaN.
    dtype = known_dtype(node.output)
    if dtype.kind not in ("int", "uint") or dtype.bits < 8:
        return rewriter.decline("its result is not an integer tensor")
    if node.op == "subtract":
        is_zero = node["lhs"] is node["rhs"]
    else:
        is_zero = _has_zero_factor(node, evaluator)
    if not is_zero:
        return rewriter.decline("it multiplies by no zero, and subtracts no value from itself")
    dims = static_shape(node.output)
    if element_count(dims) * dtype.bits > 8 * MAX_BYTES:
        return rewriter.decline("the result is too large")
    return become_constant(node, rewriter, np.zeros(dims, numpy_dtype(dtype)))


def _has_zero_factor(node: Node, evaluator: ShapeEvaluator) -> bool:
    constants = [array for value in node.inputs if (array := evaluator.array(value)) is not None]
    return len(constants) == 1 and not constants[0].any()


@rule(
    affine="merges",
    reads=AFFINE_KINDS,
    identity=(
        "x + a + b == x + (a + b); "
        "b - (x + a) == b - a - x; "
        "a - x + b == a + b - x; "
        "b - (a - x) == x + (b - a); "
        "x * a * b == x * (a * b)"
    ),
)
def merge_affines(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """(x + a) + b -> x + (a + b), with - too; (x * a) * b -> x * (a * b)"""
    outer = _one_affine(node, evaluator)
    check_only_reader(outer.data, node)
    producer = result_of(outer.data, *AFFINE_KINDS)
    if {_GROUP.get(producer.op), _GROUP.get(node.op)} == {"add", "multiply"}:
        return rewriter.decline("one of the two operators adds and the other multiplies")
    inner, dtype = _one_affine(producer, evaluator), known_dtype(outer.result)
    axis = inner.axis if outer.axis is None else outer.axis
    if inner.axis not in (None, axis) or inner.data.type != outer.result.type:
        return rewriter.decline(
            "the two constants vary along different axes, or an operator changes the type"
        )
    signs = _sign(inner), _sign(outer)
    if None not in signs:
        op, constant = (
            "add",
            _total("add", inner.shift if signs[1] == 1 else -inner.shift, outer.shift, dtype),
        )
        if signs[0] != signs[1]:
            _check_no_unit(node, evaluator, producer)
            return _become_difference(node, rewriter, constant, axis, inner.data)
    elif not inner.has_shift and not outer.has_shift:
        op, constant = "multiply", _total("multiply", inner.scale, outer.scale, dtype)
    else:
        return rewriter.decline("one of the two operators adds and the other multiplies")
    _check_no_unit(node, evaluator, producer)
    return _become(node, rewriter, op, inner.data, constant, {} if axis is None else {"axis": axis})


def _sign(affine: AffineOp) -> int | None:
    """Return 1 for x + c, -1 for c - x, None for other scales."""
    node = affine.nodes[0]
    if not affine.has_scale:
        return 1
    return -1 if node.op == "subtract" and (affine.scale == -1).all() else None


def _become_difference(
    node: Node, rewriter: Rewriter, constant: Array, axis: int | None, data: Value
) -> bool:
    """Replace `node` by constant - data; the constant is broadcast as numpy does."""
    shape = shape_of(data.type)
    if constant.ndim and axis is not None:
        if shape is None:
            return rewriter.decline("the rank of its data is unknown")
        constant = align(constant, axis, len(shape))
    if not is_legal("subtract", NUMPY_BROADCAST, node):
        return rewriter.decline("the opset does not broadcast a first operand")
    minuend = rewriter.rounded(
        constant, known_dtype(data), before=node, hint=f"{node.output.name}.shift"
    )
    return substitute(node, rewriter, "subtract", [minuend, data])


def _become(
    node: Node,
    rewriter: Rewriter,
    op: str,
    data: Value,
    constant: Array,
    attrs: Mapping[str, Attribute] | None = None,
) -> bool:
    """Replace `node` by the operator `op` on data and constant."""
    hint = f"{node.output.name}.{'shift' if op == 'add' else 'scale'}"
    return substitute(
        node,
        rewriter,
        op,
        [data, rewriter.constant(ArrayTensor(constant), before=node, hint=hint)],
        attrs,
    )


def _total(op: str, a: Array, b: Array, dtype: DType) -> Array:
    """Return the sum or product of two float64 constants."""
    # The total is computed in float64 and rounded to `dtype` once, while the model rounds after
    # each operator. So the result is as precise, but for three cases, which stay: (x + a) + b with
    # b near -a rounds x on purpose; a product below the normal range has lost bits; and an infinite
    # total is wrong where x * a * b is finite.
    with np.errstate(all="ignore"):
        if op == "add":
            total = np.asarray(a + b)
            lost = np.abs(total) < CANCELLATION * np.maximum(np.abs(a), np.abs(b))
        else:
            total = np.asarray(a * b)
            lost = (np.abs(total) < smallest_normal(dtype)) & (a != 0) & (b != 0)
        if lost.any() or not np.isfinite(to_float64(round_to(total, dtype))).all():
            raise Declined("the merged constant cancels, is not finite or leaves the normal range")
        return total


class _Operands(Record):
    """The operands of an operator `data` op `constant`, of element type `dtype`.

    The constant is float64 if an earlier rewrite computed it, and `rounded` as the operator reads
    it.
    """

    op: str
    data: Value
    constant: Array
    dtype: DType

    @property
    def rounded(self) -> Array:
        """The constant in the element type of the data."""
        if self.constant.dtype == np.float64:
            return round_to(self.constant, self.dtype)
        return self.constant

    @property
    def integers(self) -> Array:
        """The constant to add or multiply by, of integers."""
        # Sums and products are exact modulo 2**n, in numpy as in the operators. Div rounds: (x * 3)
        # / 3 is not x * (3 / 3).
        if self.op == "divide" or self.constant.dtype.kind not in "iu":
            raise Declined("it divides integers")
        return np.negative(self.constant) if self.op == "subtract" else self.constant

    @property
    def floats(self) -> Array:
        """The constant to add or multiply by, in float64."""
        constant = to_float64(self.constant)
        if self.op != "divide":
            return -constant if self.op == "subtract" else constant
        if not constant.all():
            raise Declined("it divides by zero")
        return 1 / constant


def _operands(node: Node, evaluator: ConstantEvaluator) -> _Operands:
    """Return the operands of `node`, the constant in the shape in which numpy broadcasts it.

    Declines unless exactly one operand is a constant, the second of Sub and Div. Declines too for a
    lowered BatchNormalization, which is written as one operator while both of its halves stay.
    """
    sides = [side for side, value in enumerate(node.inputs) if evaluator.is_constant(value)]
    if len(sides) != 1:
        raise Declined("it has no constant operand, or no other")
    parameter, data = node.operand(sides[0]), node.operand(1 - sides[0])
    constant = None if made_of_little(parameter) else evaluator.exact(parameter)
    if constant is None or not evaluator.affords(constant.size):
        raise Declined("its constant takes too much memory to compute with")
    if producer_of(parameter, "nn.batch_norm_to_affine") is not None:
        raise Declined("it is a part of a BatchNormalization")
    dtype = known_dtype(data)
    if constant.dtype.kind == "O" or dtype is not dtype_of(node.output.type):
        raise Declined("its operands are not numbers of one type")
    if sides[0] == 0 and node.op in ("subtract", "divide"):
        raise Declined("its constant is the first operand of Sub or Div")
    return _Operands(node.op, data, _aligned(node, data, constant), dtype)


def _aligned(node: Node, data: Value, constant: Array) -> Array:
    """Return the constant operand in the shape in which numpy broadcasts it against the data."""
    axis = node.attrs.get("axis")
    if not isinstance(axis, int):
        return constant
    rank = len(known_shape(data))
    if not 0 <= axis <= rank - constant.ndim:
        raise Declined("its constant does not fit its axis")
    return align(constant, axis, rank)


@rule(
    affine="merges",
    reads=_GROUP,
    identity=(
        "x + a + b == x + (a + b); "
        "x - a + b == x + (b - a); "
        "x * a * b == x * (a * b); "
        "x * a / b == x * (a / b) if not is_integer(x)"
    ),
)
def merge_constants(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """(x + a) + b -> x + (a + b); (x * a) * b -> x * (a * b), of integers or any shape"""
    outer, op = _operands(node, evaluator), _GROUP[node.op]
    check_only_reader(outer.data, node)
    producer = result_of(outer.data, *(each for each in _GROUP if _GROUP[each] == op))
    inner = _operands(producer, evaluator)
    if not is_legal(op, NUMPY_BROADCAST, node) or _is_bias_of_layer(producer, inner.data):
        return rewriter.decline("its opset does not broadcast, or it adds to the bias of a layer")
    check_keeps_shape(inner.data, inner.constant)
    check_keeps_shape(inner.data, outer.constant)
    dtype = known_dtype(node.output)
    if dtype.is_float:
        for each in (inner.floats, outer.floats):
            check_not_quotient(node, evaluator, **{"scale" if op == "multiply" else "shift": each})
        total = _total(op, inner.floats, outer.floats, dtype)
    else:
        with np.errstate(all="ignore"):
            a, b = inner.integers, outer.integers
            total = np.asarray(a * b if op == "multiply" else a + b, inner.constant.dtype)
    if total.nbytes > max(MAX_BYTES, inner.constant.nbytes + outer.constant.nbytes):
        return rewriter.decline("the merged constant is too large")
    _check_no_unit(node, evaluator, producer)
    return _become(node, rewriter, op, inner.data, total)


def _is_bias_of_layer(node: Node, data: Value) -> bool:
    """Return whether `node` adds a bias per channel to a layer, which may take it as an operand."""
    return "axis" in node.attrs and data.node is not None and has_trait(data.node, Trait.BIASED)


@rule(affine="untouched", identity="op(x) == x; concat([x], a) == x")
def single_operand(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """sum(x), max(x), min(x), mean(x), concat(x) -> x, of one operand"""
    if len(node.inputs) != 1:
        return rewriter.decline("it has several operands")
    return rewriter.forward(node.output, node.operand())


@rule(
    affine="untouched",
    identity="where(c, x, y) == x if all(c) and keeps_shape(x, c) and keeps_shape(x, y); "
    "where(c, x, y) == y if none(c) and keeps_shape(y, c) and keeps_shape(y, x)",
)
def where_constant(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """where(true, x, y) -> x, where(false, x, y) -> y, of unchanged shape"""
    condition = elements(node["condition"], evaluator)
    if condition.size == 0 or (condition != condition.ravel()[0]).any():
        return rewriter.decline("its condition has both true and false elements")
    chosen, other = (node.operand(i) for i in ((1, 2) if condition.ravel()[0] else (2, 1)))
    # The shape of the result is broadcast from all three operands.
    check_keeps_shape(chosen, condition)
    if not broadcasts_into(shape_of(other.type), shape_of(chosen.type)):
        return rewriter.decline("broadcasting the other operand may change the shape")
    return rewriter.forward(node.output, chosen)


RULES: Rules[ShapeEvaluator] = {
    "add": (drop_neutral, merge_affines, merge_constants),
    "add_n": (single_operand,),
    "concatenate": (single_operand,),
    "divide": (drop_neutral, merge_affines, merge_constants),
    "maximum": (single_operand,),
    "mean_n": (single_operand,),
    "minimum": (single_operand,),
    "multiply": (drop_neutral, integer_zero, merge_affines, merge_constants),
    "power": (drop_power_of_one,),
    "subtract": (drop_neutral, integer_zero, merge_affines, merge_constants),
    "where": (where_constant,),
}
"""The rules for each operator, in the order in which they are tried."""
