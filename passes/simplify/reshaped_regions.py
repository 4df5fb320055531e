"""A rule for elementwise operators between a Reshape and its inverse.

Exporters write a layer of matrices for data of a higher rank: they flatten the data before a Gemm,
and restore the shape after it. Activations between two such layers are computed in the shape of the
matrices instead.

Let T be the shape that the last Reshape gives, and h = reshape(x, ...) with x of shape T. All
operands of the operators between are such an h, or computed by other operators of the region, or
broadcast into h without changing its shape. So the elements of every value of the region correspond
to those of x in their order.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from ...ir.extents import Piece
from ...ir.graph import Graph, Node, Value, producer_of
from ...ir.matching import elements
from ...ir.ops import has_trait, is_legal, ops_with
from ...ir.ops.row import NUMPY_BROADCAST, Trait
from ...ir.provenance import Declined
from ...ir.rewriter import Rewriter
from ...ir.rule_driver import Rules, rule
from ...ir.shape_evaluator import ShapeEvaluator, extents_of
from ...ir.tensor import Array, ArrayTensor
from ...ir.types import (
    Dim,
    Shape,
    TensorType,
    dtype_of,
    element_count,
    shape_of,
    static_dims,
    static_shape_of,
)
from .rules import MAX_BYTES
from .shape_arithmetic import keeps_extents, wanted_extents

MAX_REGION = 256
"""Operators in the largest region that is considered."""

_RESHAPES = ops_with(Trait.RESHAPES)


@rule(
    affine="untouched",
    reads=(*ops_with(Trait.ELEMENTWISE), *ops_with(Trait.BROADCASTS)),
    identity=(
        "reshape(relu(reshape(x, m)), n) == relu(x) if target(x.shape, n) == x.shape;"
        " reshape(reshape(x, m) + reshape(y, m), n) == x + y if target(x.shape, n) == x.shape and"
        " x.shape == y.shape; reshape(reshape(x, m) + c, n) == x + c if target(x.shape, n) =="
        " x.shape and ends_alike(c, m, x); reshape(reshape(x, m) + k, n) == x + reshape(k, n) if"
        " target(x.shape, n) == x.shape and target(x.shape, m) == k.shape"
    ),
)
def compute_unshaped(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """reshape(op(reshape(x, s)), shape of x) -> op(x), of elementwise operators"""
    seed = node.operand().node
    if seed is None or node.graph is None:
        return rewriter.decline("its data is an input")
    region = _Unshaped(node.graph, wanted_extents(node, evaluator), evaluator)
    region.grow(seed)
    ends = region.ends()
    region.move(rewriter, ends)
    return True


class _Unshaped(Struct, eq=False):
    """Operators of `graph` that can be computed in the shape `wanted` of a later Reshape.

    `sources` maps the results of Reshapes that they read to the data of these, `constants` the
    operands that need another shape to the elements in it.
    """

    graph: Graph
    wanted: list[Piece]
    evaluator: ShapeEvaluator
    nodes: dict[Node, None] = field(default_factory=dict)
    sources: dict[Value, Value] = field(default_factory=dict)
    constants: dict[Value, Array] = field(default_factory=dict)
    _others: dict[Value, None] = field(default_factory=dict)

    def grow(self, seed: Node) -> None:
        """Collect the operators.

        Raises Declined if one of them, or an operand, cannot be in another shape.
        """
        stack = [seed]
        while stack:
            node = stack.pop()
            if node in self.nodes:
                continue
            is_inside = node.graph is self.graph and len(self.nodes) < MAX_REGION
            if not is_inside or not _is_elementwise(node):
                raise Declined("an operator between the two is not elementwise")
            self.nodes[node] = None
            operands = node.inputs[:1] if has_trait(node, Trait.ELEMENTWISE) else node.inputs
            for value in operands:
                if value is None:
                    raise Declined("an operand is absent")
                source = producer_of(value, *_RESHAPES)
                if source is not None and keeps_extents(self.wanted, source.operand()):
                    self.sources[value] = source.operand()
                elif _is_one(value) or self.evaluator.is_constant(value):
                    self._others[value] = None
                elif value.node is not None:
                    stack.append(value.node)
                else:
                    raise Declined("an operand has no Reshape before it")
        self._check_shapes()

    def _check_shapes(self) -> None:
        """Decline unless all values of the region have one shape, or broadcast to it."""
        if not self.sources:
            raise Declined("no operand has the inverse Reshape before it")
        has_rest = any(extents_of(data) != self.wanted for data in self.sources.values())
        first, *others = [self._shape(each) for each in self.sources]
        if has_rest and any(each != first for each in others):
            raise Declined("the operands of the operators between may have several shapes")
        shape, target = self.shapes
        for value in self._others:
            given = shape_of(value.type)
            varying = _varying(given, shape, target)
            if given is None or varying is None or len(given) > len(target):
                self.constants[value] = self._unshaped(value, varying)

    @property
    def shapes(self) -> tuple[Shape, tuple[Dim, ...]]:
        """The shape of the values of the region, as far as it is known, and the data's shape."""
        reshaped, data = next(iter(self.sources.items()))
        return shape_of(reshaped.type), shape_of(data.type) or ()

    def _shape(self, value: Value) -> list[Piece]:
        """Return the values that the shape of a Reshape's result depends on."""
        pieces = None
        if value.node and value.node.op == "reshape":
            pieces = self.evaluator.pieces(value.node["shape"])
        target = [None] if pieces is None else pieces.ravel().tolist()
        if None in target or (value.node is not None and value.node.attrs.get("allowzero")):
            return extents_of(value)
        return [*target, *(extents_of(self.sources[value]) if {0, -1}.intersection(target) else ())]

    def _unshaped(self, value: Value, varying: int | None) -> Array:
        """Return a constant with only its last axes, or with the shape of the data.

        Raises Declined for any other operand.
        """
        shape, target = self.shapes
        given, dims = static_shape_of(value.type), static_dims(target)
        is_small = given is not None and element_count(given) <= MAX_BYTES
        if given is None or not is_small or not self.evaluator.is_constant(value):
            raise Declined("an operand is not constant, or too large")
        array = elements(value, self.evaluator)
        if varying is not None:
            return array.reshape(given[len(given) - varying :])
        has_all = dims is not None and given == shape and array.size == element_count(dims)
        if dims is None or not has_all or array.nbytes > MAX_BYTES:
            raise Declined("a constant is not broadcast the same in the other shape")
        return array.reshape(dims)

    def ends(self) -> list[Node]:
        """Return the Reshapes to the other shape that read the region.

        Raises Declined if something else does.
        """
        found: list[Node] = []
        for node in self.nodes:
            for user in node.output.users:
                if user in self.nodes:
                    continue
                is_end = user.op in _RESHAPES and user.graph is self.graph
                if not is_end or wanted_extents(user, self.evaluator) != self.wanted:
                    raise Declined("an operator between the two has other readers")
                found.append(user)
        if sum(each.output.is_returned for each in found) > 1:
            raise Declined("one value cannot be two results of the graph")
        return found

    def move(self, rewriter: Rewriter, ends: Sequence[Node]) -> None:
        """Compute the region in the other shape."""
        first, (_, dims) = next(iter(self.graph)), self.shapes
        made: dict[Value, Value] = {}
        for value, array in self.constants.items():
            with rewriter.rewriting(value.node):
                tensor = ArrayTensor(array, dtype_of(value.type))
                made[value] = rewriter.constant(tensor, before=first, hint=f"{value.name}.reshaped")
        other = {**self.sources, **made}
        for node in self.nodes:
            rewriter.set_inputs(
                node, [None if value is None else other.get(value, value) for value in node.inputs]
            )
            node.output.type = TensorType(dtype_of(node.output.type), dims)
            self.evaluator.forget_pieces(node.output)
            node.output.rename(rewriter.module.fresh_name(f"{node.output.name}.reshaped"))
        for end in ends:
            rewriter.forward(end.output, end.operand())


def _is_elementwise(node: Node) -> bool:
    """Return whether every element of the only result depends on its place alone."""
    if len(node.outputs) != 1 or "axis" in node.attrs or "folded" in node.attrs:
        return False
    if has_trait(node, Trait.ELEMENTWISE):
        return True
    return has_trait(node, Trait.BROADCASTS) and is_legal(node.op, NUMPY_BROADCAST, node)


def _is_one(value: Value) -> bool:
    shape = shape_of(value.type)
    return shape is not None and all(dim == 1 for dim in shape)


def _varying(given: Shape, shape: Shape, target: tuple[Dim, ...]) -> int | None:
    """Return how many last axes an operand varies along, if both shapes end with them."""
    if given is None:
        return None
    count = next((len(given) - axis for axis, dim in enumerate(given) if dim != 1), 0)
    if count and (shape is None or count > min(len(shape), len(target))):
        return None
    last = [each[len(each) - count :] for each in (given, shape or (), target)]
    fits = all(
        isinstance(own, int) and own == other and dim in (1, own)
        for dim, own, other in zip(*last, strict=True)
    )
    return count if fits else None


RULES: Rules[ShapeEvaluator] = dict.fromkeys(_RESHAPES, (compute_unshaped,))
"""The rule for every operator that reshapes."""
