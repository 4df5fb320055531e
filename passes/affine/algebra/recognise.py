"""Recognition of affines: operations y = scale * x + shift with constants per channel.

A constant that is aligned by broadcasting is per channel only if that is certain for every shape
the data may have: `[C]` against NCHW is the W axis, `[C,1,1]` against rank 3 the batch, and an
extent of 1 that the constant broadcasts makes the result larger than the data.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from ....ir.attributes import SparseTensor
from ....ir.evaluate import ConstantEvaluator
from ....ir.graph import Node, Value, flatten_origins, payload_of, producer_of
from ....ir.ops import AFFINE_KINDS, OPS, parameter_axis
from ....ir.ops.normalization import batch_norm_of, first_of_channel
from ....ir.provenance import Refused
from ....ir.record import Record
from ....ir.sparse import linear_indices
from ....ir.tensor import Array, Tensor, numpy_dtype
from ....ir.types import F16, F32, F64, Dim, Shape, dtype_of, element_count, shape_of
from ..units.magic_rounding import SUMS, check_not_rounding
from ..units.written_quotients import check_not_quotient
from .affine import Affine, Stage

_FLOATS = {numpy_dtype(dtype) for dtype in (F16, F32, F64)}

MOST_MADE = 1 << 16
"""Elements of a parameter that an expression may make of fewer: few layers have more channels."""

MOST_SEARCHED = 64
"""Operators of such an expression that are searched for the payloads that it is made of."""

_MOVES = ("identity", "reshape", "expand_dims", "squeeze", "cast", "transpose", "broadcast_to")
"""Operators that exporters put between an initializer and the operator it is a parameter of."""


class AffineOp(Record, dict=True):
    """One affine as it stands in the graph: nodes that turn `data` into `result`.

    `scale` and `shift` are float64 of shape [C] along `axis` (counted from the left), or [] if
    `axis` is None and they are the same for every channel. A BatchNormalization is two nodes, and
    keeps its `mean` and `beta` because (x - mean) * scale + beta does not cancel if scale * x +
    shift does.
    """

    nodes: tuple[Node, ...]
    data: Value
    result: Value
    axis: int | None
    scale: Array
    shift: Array
    parameter: Value | None = None
    mean: Array | None = None
    beta: Array | None = None

    @property
    def has_scale(self) -> bool:
        """Whether it scales any channel by another number than one."""
        return not (self.scale == 1).all()

    @property
    def has_shift(self) -> bool:
        """Whether it shifts any channel."""
        return bool(self.shift.any())

    @cached_property
    def stage(self) -> Stage:
        """Return the affine as a stage of a chain."""
        return Stage(self.scale, self.shift, self.mean, self.beta, tuple(self.origins))

    @cached_property
    def affine(self) -> Affine:
        """Return the affine as a chain of its own."""
        return Affine.of(self.axis, [self.stage])

    @cached_property
    def origins(self) -> list[int]:
        """Return the imported nodes that the affine comes from."""
        first = self.nodes[0].origins
        if all(node.origins is first for node in self.nodes):
            return flatten_origins(first)
        return flatten_origins(tuple(node.origins for node in self.nodes))


def find_affine(node: Node, evaluator: ConstantEvaluator) -> AffineOp | None:
    """Return the affine that begins at `node`, or None."""
    try:
        return recognise(node, evaluator)
    except Refused:
        return None


def recognise(node: Node, evaluator: ConstantEvaluator) -> AffineOp | None:
    """Return the affine that begins at `node`, or None.

    Raises Refused if one condition of an affine fails.

    The `multiply` by the scale and the `add` of the shift of one BatchNormalization are recognised
    together.
    """
    if node.op not in AFFINE_KINDS or len(node.outputs) != 1 or "folded" in node.attrs:
        return None  # a folded weight is constant
    dtype = dtype_of(node.output.type)
    if dtype is not None and not dtype.is_float:
        return None
    if node.op == "negative":
        data = node.operand()
        if evaluator.array(data) is not None:
            return None
        return AffineOp((node,), data, node.output, None, np.array(-1.0), np.zeros(()))
    return _batch_norm(node, evaluator) or _binary(node, evaluator)


def _batch_norm(node: Node, evaluator: ConstantEvaluator) -> AffineOp | None:
    add = node.output.sole_user() if node.op == "multiply" else None
    found = None if add is None or add.graph is not node.graph else batch_norm_of(add)
    if add is None or found is None or found[1] is not node:
        return None
    data, _, affine = found
    s, t, beta, mean = (
        evaluator.exact(v) for v in (*affine.outputs, affine["beta"], affine["mean"])
    )
    if s is None or t is None or beta is None or mean is None:
        return None
    mean, beta = first_of_channel(mean), first_of_channel(beta)
    assert mean is not None and beta is not None
    mean, beta = mean.astype(np.float64), beta.astype(np.float64)
    return AffineOp((node, add), data, add.output, 1, s, t, mean=mean, beta=beta)


def made_of_little(value: Value | None) -> bool:
    """Return whether a constant is large, and computed from much smaller ones. O(1).

    An affine is computed with many times, in float64, and kept in the fold map. A model of a few
    bytes may not ask for that; a model that holds the numbers may.
    """
    if value is None or value.node is None or value.node.op == "constant":
        return False
    count = element_count(dim for dim in shape_of(value.type) or () if isinstance(dim, int))
    return count > MOST_MADE and not _holds(value, count / 2)


def _holds(value: Value, enough: float) -> bool:
    """Return whether the payloads that a constant is computed from hold `enough` elements."""
    held, stack, seen = 0, [value], {value}
    while stack and len(seen) <= MOST_SEARCHED and held < enough:
        node = stack.pop().node
        if node is None:
            return True
        payload = node.attrs.get("value") if node.op == "constant" else None
        held += payload.size if isinstance(payload, Tensor) else 0
        new = [operand for operand in node.inputs if operand is not None and operand not in seen]
        stack += new
        seen.update(new)
    return held >= enough


def too_much_made(value: Value) -> Refused:
    """Return the refusal of a parameter that is `made_of_little`."""
    detail = f"has more than {MOST_MADE} elements and is computed from few: it stays an expression"
    return Refused("constant_growth", f"{value.source_name!r} {detail}")


def too_much_shared(value: Value) -> Refused:
    """Return the refusal of a parameter beyond `ConstantEvaluator.affords`."""
    detail = "its affines would take too much memory; raise --max-constant-bytes"
    return Refused("constant_growth", f"{value.source_name!r}: {detail}")


def _binary(node: Node, evaluator: ConstantEvaluator) -> AffineOp | None:
    if len(node.inputs) != 2:
        return None
    constants = [i for i, value in enumerate(node.inputs) if evaluator.is_constant(value)]
    if len(constants) != 1:
        if not constants:
            _check_not_overridable(node)
        return None
    side = constants[0]
    parameter, data = node.operand(side), node.operand(1 - side)
    array = _parameter_array(parameter, evaluator)
    form = OPS[node.op].affine
    # An axis places the second operand: c - x has x in its place.
    if array is None or form is None or (side == 0 and "axis" in node.attrs):
        return None
    make = form.second if side else form.first
    if make is None:
        return None
    axis, constant = _channel_axis(node, data, array)
    with np.errstate(all="ignore"):
        scale, shift = make(constant)
    if AFFINE_KINDS.get(node.op) in SUMS:
        check_not_rounding(node, constant, evaluator)
    check_not_quotient(node, evaluator, scale=scale, shift=shift)
    return AffineOp((node,), data, node.output, axis, scale, shift, parameter)


def _parameter_array(parameter: Value, evaluator: ConstantEvaluator) -> Array | None:
    """Return a constant float operand, unless it belongs to a BatchNormalization."""
    if made_of_little(parameter):
        raise too_much_made(parameter)
    array = evaluator.exact(parameter)
    if array is None or not (array.dtype in _FLOATS or array.dtype.name == "bfloat16"):
        return None
    if producer_of(parameter, "nn.batch_norm_to_affine") is not None:
        return None
    if not evaluator.affords(array.size):
        raise too_much_shared(parameter)
    return array


def _channel_axis(node: Node, data: Value, array: Array) -> tuple[int | None, Array]:
    """Return the axis of `data` along which `array` varies, and its values there in float64."""
    wide = array.astype(np.float64)
    shape = shape_of(data.type)
    axis = parameter_axis(node)
    if axis is not None:
        return _given_axis(node, axis, shape, array), wide
    if array.ndim == 0:
        return None, wide
    if shape is None:
        raise Refused("unknown_rank", f"{node.description}: the rank of its data is unknown")
    if array.ndim > len(shape):
        detail = f"{node.description}: the constant has a higher rank than the data"
        raise Refused("axis_mismatch", detail)
    if array.size == 1:
        return None, wide.reshape(())
    if array.size == 0:
        raise Refused("axis_mismatch", f"{node.description}: the constant is empty")
    first = len(shape) - array.ndim
    axis = first + _varying_axis(node, shape[first:], array)
    keep = tuple(slice(None) if i == axis - first else slice(0, 1) for i in range(array.ndim))
    return axis, wide[keep].reshape(-1)


def _given_axis(node: Node, axis: int, shape: Shape, array: Array) -> int:
    if array.ndim != 1:
        detail = f"{node.description}: a parameter of rank {array.ndim} at an axis"
        raise Refused("axis_mismatch", detail)
    if axis < 0 and shape is None:
        raise Refused("unknown_rank", f"{node.description}: axis {axis} of data of unknown rank")
    return axis + (len(shape or ()) if axis < 0 else 0)


def _varying_axis(node: Node, shape: tuple[Dim, ...], array: Array) -> int:
    """Return the only axis along which a constant, broadcast against `shape`, varies."""
    axes = [axis for axis, extent in enumerate(array.shape) if extent != 1]
    if any(shape[axis] != array.shape[axis] for axis in axes):
        raise Refused("axis_mismatch", f"{node.description}: the constant may broadcast the data")
    varying = [axis for axis in axes if (array != np.take(array, [0], axis=axis)).any()]
    if len(varying) > 1:
        detail = f"{node.description}: the constant varies along more than one axis"
        raise Refused("axis_mismatch", detail)
    return varying[0] if varying else axes[0]


def _check_not_overridable(node: Node) -> None:
    for value in node.inputs:
        if _overridable_initializer(value) is not None:
            raise not_constant(value)


def _overridable_initializer(value: Value | None) -> Value | None:
    """Return the overridable initializer that `value` is made of, if there is one."""
    leaf = value
    while (node := producer_of(leaf, *_MOVES)) is not None:
        leaf = node.operand()
    if leaf is None or leaf.node is not None or leaf.owner is None:
        return None
    return leaf if leaf in leaf.owner.defaults else None


def not_constant(value: Value | None) -> Refused:
    """Return the refusal of a value that is not constant, with a code for its origin."""
    initializer, name = _overridable_initializer(value), "" if value is None else value.source_name
    if initializer is not None:
        detail = f"{initializer.source_name!r} is an initializer that callers may override"
        return Refused("overridable_initializer", detail)
    producer = None if value is None else value.node
    op = "" if producer is None else producer.op
    if op == "dequantize" or op.endswith("::DequantizeLinear"):
        return Refused("quantized_weight", f"{name!r} is dequantized at run time")
    if producer is not None and producer.is_hidden:
        return Refused("kept_by_user", f"{name!r} is to be kept")
    payload = payload_of(value)
    if isinstance(payload, SparseTensor):
        detail = f"{name!r} is a sparse tensor that {_sparse_problem(payload)}"
        return Refused("non_constant_params", detail)
    return Refused("non_constant_params", f"{name!r} is not constant")


def _sparse_problem(payload: SparseTensor) -> str:
    """Return why a sparse constant has no elements, as the end of a sentence "the tensor ..."."""
    try:
        linear_indices(payload)
    except ValueError as error:
        return str(error)
    return "has more elements than constants may have (--max-constant-bytes), or no numbers"
