"""Helpers of the rules of SimplifyExpr: replacing a node, making constants, and comparing shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...ir.attributes import Attribute
from ...ir.graph import Node, Value
from ...ir.rewriter import Rewriter
from ...ir.tensor import Array, ArrayTensor
from ...ir.types import Shape, dtype_of, shape_of

MAX_BYTES = 64 << 10
"""Largest constant that a rule may create, unless it replaces one of that size."""


def data_of(node: Node) -> Value:
    """Return the first operand, which the op table requires."""
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
    """Replace `node` by a new node with the same name and result, and return True, as a rule does."""
    made = rewriter.make(op, inputs, attrs, before=node, hint=node.output.name, name=node.name, type_=node.output.type)
    rewriter.replace(node.output, made.output, take_name=True)
    return True


def become_constant(node: Node, rewriter: Rewriter, array: Array) -> bool:
    """Replace the result of `node` by a constant. Return False, and do nothing, for an output of the graph."""
    dtype = dtype_of(node.output.type)
    if node.output.is_returned:
        return False
    tensor = ArrayTensor(array, dtype)
    constant = rewriter.constant(tensor, before=node, hint=node.output.name)
    rewriter.replace(node.output, constant, take_name=True)
    return True


def int_vector(items: Sequence[int], node: Node, rewriter: Rewriter, hint: str) -> Value:
    """Return a new constant i64[n] before `node`."""
    return rewriter.constant(ArrayTensor(np.asarray(items, np.int64)), before=node, hint=f"{node.output.name}.{hint}")


def only_reader(value: Value, node: Node) -> bool:
    """Whether `node` is the only reader of `value`, reads it once, and is in the graph that computes it."""
    return value.node is not None and value.node.graph is node.graph and value.sole_user() is node


def broadcasts_into(small: Shape, shape: Shape) -> bool:
    """Whether broadcasting a tensor of shape `small` against one of `shape` certainly yields `shape`."""
    if small is not None and all(dim == 1 for dim in small) and shape is None:
        return not small
    if small is None or shape is None or len(small) > len(shape):
        return False
    trailing = shape[len(shape) - len(small) :]
    return all(a == 1 or (a is not None and a == b) for a, b in zip(small, trailing, strict=True))


def keeps_shape(data: Value, constant: Array) -> bool:
    """Whether an elementwise operator on `data` and `constant` certainly has the shape of `data`."""
    return broadcasts_into(constant.shape, shape_of(data.type))
