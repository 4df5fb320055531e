"""Scalars that are computed from extents, between vectors of one element."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable

import numpy as np

from ..ir.graph import Node, Value, payload_of
from ..ir.ops import has_trait, is_legal
from ..ir.ops.inference import integer_of
from ..ir.ops.row import NUMPY_BROADCAST, Trait
from ..ir.rewriter import Rewriter
from ..ir.rule_driver import rule
from ..ir.tensor import ArrayTensor, Tensor
from ..ir.types import I64, dtype_of, shape_of

_FROM_VECTOR = ("reshape", "squeeze")
_TO_VECTOR = ("expand_dims", "reshape")


class ScalarExtents:
    """The scalars that may be vectors of one element, if fewer operators are left.

        h = squeeze(shape(x)[2:3]), k = h * 2, s = concat(reshape(k, [1]), ...)

    is `k = shape(x)[2:3] * 2, s = concat(k, ...)`: elementwise operators do not need the scalars.
    """

    def __init__(self, computed: Iterable[Node]) -> None:
        """Plan for the operators `computed`, in order. O(computed)."""
        self.vectors: dict[Value, Value] = {}
        """The vectors of scalars."""

        self.nodes: dict[Node, None] = {}
        """The operators that are to compute vectors."""

        sources, able = [], dict[Node, None]()
        for node in computed:
            if node.graph is None or not is_scalar(node) or dtype_of(node.output.type) is not I64:
                continue
            if node.op in _FROM_VECTOR and shape_of(node.operand().type) == (1,):
                self.vectors[node.output] = node.operand()
                sources.append(node)
            elif not node.output.is_returned and self._may_be_vector(node, able):
                able[node] = None
        most = 0
        for nodes in (_serving(able), able):
            saved = _saved(nodes, sources)
            if saved > most:
                most, self.nodes = saved, nodes

    def _may_be_vector(self, node: Node, able: Container[Node | None]) -> bool:
        if _taken(node) is not None:
            return True
        if not has_trait(node, Trait.BROADCASTS) and node.op not in ("negative", "abs"):
            return False
        operands = [value for value in node.inputs if value is not None]
        is_given = any(value in self.vectors or value.node in able for value in operands)
        return is_given and "axis" not in node.attrs and is_legal(node.op, NUMPY_BROADCAST, node)

    def inputs(self, node: Node, rewriter: Rewriter) -> list[Value | None]:
        """Return the operands with which `node` computes a vector."""
        index = _taken(node)
        if index is not None:
            vector = ArrayTensor(np.array([index]))
            return [node.operand(), rewriter.constant(vector, before=node, hint="indices")]
        return [value and self.vectors.get(value, value) for value in node.inputs]


def _serving(able: Iterable[Node]) -> dict[Node, None]:
    """Return the operators of a list, in order, of which vectors are made in the end."""
    found: dict[Node, None] = {}
    for node in reversed(list(able)):
        if _reshapes(node) or not found.keys().isdisjoint(node.output.users):
            found[node] = None
    return dict.fromkeys(reversed(found))


def _saved(nodes: Collection[Node], sources: Iterable[Node]) -> int:
    """Return how many operators fewer are left if `nodes` compute vectors."""
    saved = 0
    for node in sources:
        is_read = any(user in nodes for user in node.output.users)
        saved += is_read and not _others(node, nodes)
    for node in nodes:
        saved += len(_reshapes(node)) - bool(_others(node, nodes))
    return saved


def _reshapes(node: Node) -> list[Node]:
    """Return the readers of a scalar that only make a vector of one element of it."""
    return [user for user in dict.fromkeys(node.output.users) if _makes_vector(user)]


def _others(node: Node, nodes: Container[Node]) -> list[Node]:
    """Return the readers that need the scalar if `nodes` compute vectors."""
    users = dict.fromkeys(node.output.users)
    return [user for user in users if user not in nodes and not _makes_vector(user)]


def is_scalar(node: Node) -> bool:
    """Return whether the only result of `node` has no axis."""
    return shape_of(node.output.type) == ()


def squeezed(vector: Value, node: Node, rewriter: Rewriter) -> Value:
    """Return the element of a vector of one element, by a Squeeze before `node`."""
    axes = rewriter.constant(ArrayTensor(np.zeros(1, np.int64)), before=node, hint="axes")
    hint = f"{node.output.name}.element"
    return rewriter.make("squeeze", [vector, axes], before=node, hint=hint).output


def _taken(node: Node) -> int | None:
    """Return the constant index of the element that a Gather takes of a vector, None for others."""
    if node.op != "take" or integer_of(node, "axis", 0) not in (0, -1):
        return None
    shape, index = shape_of(node.operand().type), payload_of(node["indices"])
    if shape is None or len(shape) != 1 or not isinstance(index, Tensor) or index.shape != ():
        return None
    return int(index.numpy())


def _makes_vector(node: Node) -> bool:
    if node.op not in _TO_VECTOR or node.output.is_returned:
        return False
    return shape_of(node.output.type) == (1,)


@rule(affine="untouched")
def compute_vectors(node: Node, rewriter: Rewriter, scalars: ScalarExtents) -> bool:
    """reshape(squeeze(n) * 2, [1]) -> n * 2, of a vector n of one element"""
    if node not in scalars.nodes:
        return rewriter.decline("no vector of one element, or no fewer operators")
    others = _others(node, scalars.nodes)
    inputs = scalars.inputs(node, rewriter)
    made = rewriter.make(node.op, inputs, node.attrs, before=node, hint=node.output.name).output
    scalars.vectors[node.output] = made
    for user in _reshapes(node):
        rewriter.replace(user.output, made)
    element = squeezed(made, node, rewriter) if others else None
    for user in others:
        inputs = [element if value is node.output else value for value in user.inputs]
        rewriter.set_inputs(user, inputs)
    return True
