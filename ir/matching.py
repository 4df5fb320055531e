"""Readers for rules: each returns one part of a match, or raises Declined with the reason."""

from __future__ import annotations

from functools import cache

from .graph import ONNX_NAMES, Node, Value
from .ops.inference import integers_of
from .ops.row import Constants
from .provenance import Declined
from .tensor import Array
from .types import Dim, DType, dtype_of, shape_of, static_shape_of


def result_of(value: Value, *ops: str, only_for: Node | None = None) -> Node:
    """Return the node that computes `value`, which must be one of `ops`.

    With `only_for`, that node alone must read `value`.
    """
    node = value.node
    if node is None or node.op not in ops:
        raise Declined(_is_no_result(ops))
    if only_for is not None:
        check_only_reader(value, only_for)
    return node


@cache
def _is_no_result(ops: tuple[str, ...]) -> str:
    return f"its data is not the result of {' or '.join([ONNX_NAMES.get(op, op) for op in ops])}"


def reader_of(node: Node, *ops: str) -> Node:
    """Return the only reader of the first result of `node`.

    It must be one of `ops`, in the same graph.
    """
    reader = node.output.sole_user()
    if reader is None or reader.op not in ops or reader.graph is not node.graph:
        raise Declined(_is_not_read_by(ops))
    return reader


@cache
def _is_not_read_by(ops: tuple[str, ...]) -> str:
    return f"its result is not read by {' or '.join([ONNX_NAMES.get(op, op) for op in ops])} alone"


def other_operand(node: Node, value: Value) -> Value:
    """Return the operand beside `value` of a node that must have two."""
    if len(node.inputs) != 2:
        raise Declined("it has more or fewer than two operands")
    return node.operand(1 if node.operand() is value else 0)


def is_only_reader(value: Value | None, node: Node) -> bool:
    """Return whether `node` alone reads `value`, once, in the graph that computes it."""
    if value is None or value.node is None or value.node.graph is not node.graph:
        return False
    return value.sole_user() is node


def check_only_reader(value: Value, node: Node) -> None:
    """Decline unless `is_only_reader`."""
    if not is_only_reader(value, node):
        raise Declined("its data has other readers, or is computed in an outer graph")


def check_unread(node: Node) -> None:
    """Decline if anything but the first result of `node` is read."""
    if any(value.users for value in node.outputs[1:]):
        raise Declined("another result than its first is read")


def elements(value: Value | None, constants: Constants) -> Array:
    """Return the elements of a constant operand."""
    array = constants.array(value)
    if array is None:
        raise Declined("an operand is absent, or not constant")
    return array


def integers(node: Node, name: str, constants: Constants) -> tuple[int, ...]:
    """Return the integers of the constant input `index`, called `name`; none if it is absent."""
    found = integers_of(node, name, constants)
    if found is None:
        raise Declined(f"its {name} are not constant")
    return found


def known_dtype(value: Value) -> DType:
    """Return the element type of a value."""
    dtype = dtype_of(value.type)
    if dtype is None:
        raise Declined("an element type is unknown")
    return dtype


def known_shape(value: Value) -> tuple[Dim, ...]:
    """Return the shape of a value; single extents may be unknown."""
    shape = shape_of(value.type)
    if shape is None:
        raise Declined("the rank of its data is unknown")
    return shape


def static_shape(value: Value) -> tuple[int, ...]:
    """Return the shape of a value, all extents of which are numbers."""
    shape = static_shape_of(value.type)
    if shape is None:
        raise Declined("a shape is not static")
    return shape
