"""EliminateCommonSubexpr: expressions that occur twice are computed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from ..ir.attributes import Attribute, SparseTensor
from ..ir.graph import Graph, Node, Value, payload_of
from ..ir.module import Module
from ..ir.ops import has_trait
from ..ir.ops.row import Trait
from ..ir.rewriter import Rewriter
from ..ir.rule_driver import ANY, RuleDriver, Rules, rule
from ..ir.shape_evaluator import ShapeEvaluator
from ..ir.tensor import Tensor
from ..ir.types import dtype_of
from ..support.errors import ModelError, UsageError
from .foreign import is_deterministic
from .infra import Pass, PassContext
from .readable_extents import ReadableExtents, read_extents
from .scalar_extents import ScalarExtents, compute_vectors

Key = Hashable

_READ_EXTENTS = ("shape_of", "ndarray_size")
"""Operators without which nothing is computed from extents."""

COMPARED_BYTES = 1024
"""Size of the largest constants that are compared because operators read them."""


@dataclass(frozen=True)
class EliminateCommonSubexpr(Pass):
    """Merge equal expressions in one graph.

    1. Of two operators of one type with equal attributes and the same operands the second is
       removed, unless both have a result that is a result of the graph. Never merged are operators
       that draw random numbers, operators outside ONNX's own domains, function calls and control
       flow.
    2. Constants of equal type and elements become one. The elements of a constant are read only if
       another constant has its type. With `constants=keep` constants stay.
    3. Constants of at most 1 KiB that operators read are the same operand if they are equal.
    4. Integers that are computed from extents in two ways are computed once. They are read from a
       value before that has these extents, and scalars among them are vectors of one element, if
       that takes fewer operators.
    """

    name: ClassVar[str] = "EliminateCommonSubexpr"
    constants: str = "merge"

    def __post_init__(self) -> None:
        """Check the option. Raises UsageError for a value that it does not take."""
        if self.constants not in ("merge", "keep"):
            raise UsageError(f"{self.name}: option constants is one of merge, keep")

    def run(self, module: Module, ctx: PassContext) -> bool:
        rewriter, graphs = Rewriter(module), list(module.graphs())
        have_extents = any(graph.operators_of(_READ_EXTENTS) for graph in graphs)
        for graph in graphs:
            # Constants and extents first: operators are equal only if they read the same values.
            if self.constants == "merge":
                RuleDriver(rewriter, CONSTANTS, _EqualConstants(graph)).run(graph)
            if have_extents:
                _merge_extents(graph, rewriter)
            seen, is_watched = _EqualOperators(), rewriter.debug_counter.is_watched
            # Most operators are the first of their kind: the driver is not asked about these unless
            # somebody listens.
            again = (
                node
                for node in graph.operators()
                if is_watched or seen.first_equal(node) is not None
            )
            RuleDriver(rewriter, OPERATORS, seen).run(again)
        return rewriter.changed


def _merge_extents(graph: Graph, rewriter: Rewriter) -> None:
    extents = _EqualExtents(rewriter.module)
    known = list(filter(extents.are_known, graph.operators()))
    if not known:
        return
    RuleDriver(rewriter, EXTENTS, extents).run(known)
    readable = ReadableExtents(graph, known, extents.evaluator)
    RuleDriver(rewriter, READ, readable).run(known)
    RuleDriver(rewriter, VECTORS, ScalarExtents(known)).run(known)


class _EqualConstants:
    """The number of constants of each type, and the first constant of each type and digest."""

    def __init__(self, graph: Graph) -> None:
        payloads = [node.attrs.get("value") for node in graph if node.op == "constant"]
        self.count = Counter(
            (item.dtype, item.shape) for item in payloads if isinstance(item, Tensor)
        )
        self.first: dict[Key, Node] = {}


@rule(affine="untouched")
def merge_constants(node: Node, rewriter: Rewriter, seen: _EqualConstants) -> bool:
    """c, c -> c"""
    payload = node.attrs.get("value")
    if not isinstance(payload, Tensor) or seen.count[payload.dtype, payload.shape] < 2:
        return rewriter.decline("no other constant has the same type")
    try:
        digest = payload.digest()
    except (ValueError, OSError, ModelError):
        return rewriter.decline("its elements cannot be read")
    known = seen.first.setdefault((payload.dtype, payload.shape, digest), node)
    if known is node or node.output.is_returned:
        return rewriter.decline("no equal constant comes before it, or it is a result of the graph")
    rewriter.replace(node.output, known.output, take_name=not known.output.name)
    return True


class _EqualOperators:
    """The operators seen so far, by operator and first computed operand.

    A key is made when a second operator comes.
    """

    def __init__(self) -> None:
        self.alike: dict[Key, Node | dict[Key, Node]] = {}

    def first_equal(self, node: Node) -> Node | None:
        """Return the first operator seen that is equal to `node`, or record `node` as it."""
        first: Value | None = None
        for value in node.inputs:
            if value is not None and (value.node is None or value.node.op != "constant"):
                first = value
                break
        rough = (node.op, first)
        known = self.alike.setdefault(rough, node)
        if known is node:
            return None
        if isinstance(known, Node):
            known = self.alike[rough] = {_key(known): known}
        equal = known.setdefault(_key(node), node)
        return None if equal is node else equal


@rule(affine="merges")
def merge_operators(node: Node, rewriter: Rewriter, seen: _EqualOperators) -> bool:
    """f(x), f(x) -> f(x)"""
    known = seen.first_equal(node)
    if known is None:
        return rewriter.decline("no equal operator comes before it")
    if has_trait(node, Trait.ATOMIC) or not is_deterministic(node, rewriter.module):
        return rewriter.decline("two runs on equal operands may give different results")
    pairs = list(zip(node.outputs, known.outputs, strict=False))
    are_both = any(a.is_returned and b.is_returned for a, b in pairs)
    if are_both or any(a.is_returned for a, _ in pairs[1:]):
        return rewriter.decline("one of its results is a result of the graph")
    if any(a.users and not b.name for a, b in pairs):
        return rewriter.decline("the equal operator omits an optional result that is read here")
    merged = [rewriter.forward(old, new) for old, new in pairs if old.users]
    if any(merged):
        return True
    return rewriter.decline("its result cannot be replaced in the interface of the graph")


class _EqualExtents:
    """The first value with each list of numbers that are computed from extents."""

    def __init__(self, module: Module) -> None:
        self.evaluator = ShapeEvaluator(beside=module.constants)
        self.first: dict[Key, Value] = {}

    def are_known(self, node: Node) -> bool:
        """Return whether all elements of the result are known, and depend on extents."""
        if len(node.outputs) != 1 or (node.regions and node.op != "::If"):
            return False
        pieces = self.evaluator.pieces(node.output)
        if pieces is None or not pieces.size:
            return False
        elements = pieces.ravel().tolist()
        return None not in elements and not all(isinstance(piece, int) for piece in elements)

    def first_equal(self, value: Value) -> Value:
        """Return the first value with the elements of `value`, which are known."""
        pieces = self.evaluator.pieces(value)
        assert pieces is not None
        key = (dtype_of(value.type), pieces.shape, tuple(pieces.ravel().tolist()))
        known = self.first.setdefault(key, value)
        if known.node is None or known.node.graph is not None:
            return known
        self.first[key] = value  # the one before went with its last reader
        return value


@rule(affine="untouched")
def merge_extents(node: Node, rewriter: Rewriter, seen: _EqualExtents) -> bool:
    """[N, 4], shape(x) -> shape(x), where the shape of x is [N, 4]"""
    known = seen.first_equal(node.output)
    if known is node.output:
        return rewriter.decline("no value before has the same elements")
    return rewriter.forward(node.output, known)


CONSTANTS: Rules[_EqualConstants] = {"constant": (merge_constants,)}
OPERATORS: Rules[_EqualOperators] = {ANY: (merge_operators,)}
EXTENTS: Rules[_EqualExtents] = {ANY: (merge_extents,)}
READ: Rules[ReadableExtents] = {ANY: (read_extents,)}
VECTORS: Rules[ScalarExtents] = {ANY: (compute_vectors,)}
"""The rules for each operator, in the rounds over a graph."""


def _key(node: Node) -> Key:
    attrs = tuple(sorted((name, _content(value)) for name, value in node.attrs.items()))
    return (node.overload, attrs, len(node.outputs), *map(_operand_key, node.inputs))


def _operand_key(value: Value | None) -> Key:
    """Return a key equal only for equal values: the value, or a small constant's content."""
    payload = payload_of(value)
    if not (isinstance(payload, Tensor) and payload.nbytes <= COMPARED_BYTES):
        return value
    try:
        array = payload.numpy()
    except (ValueError, OSError, ModelError):
        return value
    elements = tuple(array.ravel().tolist()) if array.dtype == object else array.tobytes()
    return (payload.dtype, payload.shape, elements)


def _content(value: Attribute) -> str:
    """Return a text equal only for attributes that compute the same; 0.0 and -0.0 differ."""
    if isinstance(value, tuple):
        return "(" + ",".join(map(_content, value)) + ")"
    if isinstance(value, SparseTensor):
        return f"sparse {value.shape} {value.values.digest()} {value.indices.digest()}"
    if isinstance(value, Tensor):
        return f"tensor {value.digest()}"
    return f"{type(value).__name__} {value!r}"
