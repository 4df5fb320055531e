"""What the rewrites have in common: their form, how they are applied, and what they ask of values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...ir.attributes import Attribute
from ...ir.graph import Node, Value
from ...ir.rewriter import Rewriter
from ...ir.tensor import Array, ArrayTensor
from ...ir.types import Shape, dtype_of, shape_of

MAX_BYTES = 64 << 10
"""Bound on a constant that a rewrite makes where it replaces none of that size."""


def data_of(node: Node) -> Value:
    """The first operand, which the op table requires."""
    data = node.inputs[0]
    assert data is not None
    return data


def substitute(
    node: Node,
    rewriter: Rewriter,
    op: str,
    inputs: Sequence[Value | None],
    attrs: Mapping[str, Attribute] | None = None,
) -> bool:
    """Put a new node, of the name and result of `node`, in its place. Always True, as the result of a rule."""
    made = rewriter.make(op, inputs, attrs, before=node, hint=node.output.name, name=node.name, type_=node.output.type)
    rewriter.replace(node.output, made.output, take_name=True)
    return True


def become_constant(node: Node, rewriter: Rewriter, array: Array) -> bool:
    """Let `array` stand for the result of `node`; False, and nothing done, for a result of the graph."""
    dtype = dtype_of(node.output.type)
    if node.output.is_returned:
        return False
    tensor = ArrayTensor(array, dtype)
    constant = rewriter.constant(tensor, before=node, hint=node.output.name)
    rewriter.replace(node.output, constant, take_name=True)
    return True


def int_vector(items: Sequence[int], node: Node, rewriter: Rewriter, hint: str) -> Value:
    """A constant i64[n] in front of `node`."""
    return rewriter.constant(ArrayTensor(np.asarray(items, np.int64)), before=node, hint=f"{node.output.name}.{hint}")


def only_reader(value: Value, node: Node) -> bool:
    """Whether `node` reads `value` once, nobody else does, and both stand in one graph."""
    return value.node is not None and value.node.graph is node.graph and value.sole_user() is node


def broadcasts_into(small: Shape, shape: Shape) -> bool:
    """Whether broadcasting a tensor of shape `small` against one of `shape` certainly yields `shape`."""
    if small is not None and all(dim == 1 for dim in small) and shape is None:
        return not small
    if small is None or shape is None or len(small) > len(shape):
        return False
    behind = shape[len(shape) - len(small) :]
    return all(a == 1 or (a is not None and a == b) for a, b in zip(small, behind, strict=True))


def keeps_shape(data: Value, constant: Array) -> bool:
    """Whether an elementwise operator on `data` and `constant` certainly has the shape of `data`."""
    return broadcasts_into(constant.shape, shape_of(data.type))
