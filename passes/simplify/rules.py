"""Helpers of the rules of SimplifyExpr: new nodes, constants, and comparison of shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...ir.attributes import Attribute
from ...ir.graph import Node, Value
from ...ir.matching import known_dtype
from ...ir.ops import has_trait, is_legal
from ...ir.ops.row import NUMPY_BROADCAST, Trait
from ...ir.provenance import Declined
from ...ir.rewriter import Rewriter
from ...ir.tensor import Array, ArrayTensor
from ...ir.types import Dim, Shape, dtype_of, shape_of

MAX_CHAIN = 32
"""Operators in a row through which an extent is followed."""

MAX_BYTES = 64 << 10
"""Largest constant that a rule may create, unless it replaces one of that size."""


def substitute(
    node: Node,
    rewriter: Rewriter,
    op: str,
    inputs: Sequence[Value | None],
    attrs: Mapping[str, Attribute] | None = None,
    *,
    name: str | None = None,
) -> bool:
    """Replace `node` by a new node with the same name and result; return True."""
    name = node.name if name is None else name
    made = rewriter.make(
        op, inputs, attrs, before=node, hint=node.output.name, name=name, type_=node.output.type
    )
    rewriter.replace(node.output, made.output, take_name=True)
    return True


def become_constant(node: Node, rewriter: Rewriter, array: Array) -> bool:
    """Replace the result of `node` by a constant. Decline for an output of the graph."""
    if node.output.is_returned:
        return rewriter.decline("a result of the graph may not be a constant")
    tensor = ArrayTensor(array, dtype_of(node.output.type))
    constant = rewriter.constant(tensor, before=node, hint=node.output.name)
    rewriter.replace(node.output, constant, take_name=True)
    return True


def check_dense_takes_bias(node: Node) -> None:
    """Decline unless a Gemm of the types and the opset of `node` adds a bias that is broadcast."""
    dtype = known_dtype(node.output)
    form = "bf16" if str(dtype) == "bf16" else NUMPY_BROADCAST
    if not dtype.is_float or not is_legal("nn.dense", form, node):
        raise Declined("its elements are not floats, or Gemm of this opset cannot add the bias")


def int_vector(items: Sequence[int], node: Node, rewriter: Rewriter, hint: str) -> Value:
    """Return a new constant i64[n] before `node`."""
    return rewriter.constant(
        ArrayTensor(np.asarray(items, np.int64)), before=node, hint=f"{node.output.name}.{hint}"
    )


def broadcasts_into(small: Shape, shape: Shape) -> bool:
    """Return whether `small` broadcast against `shape` certainly yields `shape`."""
    if small is not None and all(dim == 1 for dim in small) and shape is None:
        return not small
    if small is None or shape is None or len(small) > len(shape):
        return False
    trailing = shape[len(shape) - len(small) :]
    return all(a == 1 or (a is not None and a == b) for a, b in zip(small, trailing, strict=True))


def check_keeps_shape(data: Value, constant: Array) -> None:
    """Decline unless `data` and `constant` certainly broadcast to the shape of `data`."""
    is_row = constant.shape == (_columns(data),)
    if not is_row and not broadcasts_into(constant.shape, shape_of(data.type)):
        raise Declined("broadcasting its constant may change the shape")


def _columns(data: Value) -> Dim:
    """Return the last extent of a MatMul of unknown rank, looking through elementwise operators."""
    for _ in range(MAX_CHAIN):
        node = data.node
        if node is None or shape_of(data.type) is not None:
            return None
        if node.op == "matmul":
            weight = shape_of(node["rhs"].type)
            return weight[1] if weight is not None and len(weight) == 2 else None
        if not has_trait(node, Trait.ELEMENTWISE) or not node.inputs:
            return None
        data = node.operand()
    return None
