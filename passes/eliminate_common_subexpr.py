"""EliminateCommonSubexpr: expressions that occur twice are computed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from ..ir.attributes import Attribute, SparseTensor
from ..ir.graph import Graph, Node
from ..ir.module import Module
from ..ir.ops import has_trait
from ..ir.ops.row import Trait
from ..ir.rewriter import Rewriter
from ..ir.rule_driver import ANY, RuleDriver, Rules, rule
from ..ir.tensor import Tensor
from ..support.errors import ModelError
from .affine.fold_records import fold_records
from .foreign import is_deterministic
from .infra import Pass, PassContext

Key = Hashable


@dataclass(frozen=True)
class EliminateCommonSubexpr(Pass):
    """Merge equal expressions in one graph.

    1. Of two operators of one type with equal attributes and the same operands the second is removed, unless both have
       a result that is a result of the graph. Never merged are operators that draw random numbers, operators outside
       ONNX's own domains, function calls, control flow, and layers that have folds of their own.
    2. Constants of equal type and elements become one. The elements of a constant are read only if another constant
       has its type.
    """

    name: ClassVar[str] = "EliminateCommonSubexpr"

    def run(self, module: Module, ctx: PassContext) -> bool:
        rewriter = Rewriter(module)
        for graph in module.graphs():
            # Constants first: operators are equal only if they read the same values.
            RuleDriver(rewriter, CONSTANTS, _EqualConstants(graph)).run(graph)
            RuleDriver(rewriter, OPERATORS, _EqualOperators()).run(graph)
        return rewriter.changed


class _EqualConstants:
    """The number of constants of each type, and the first constant of each type and digest."""

    def __init__(self, graph: Graph) -> None:
        payloads = [node.attrs.get("value") for node in graph if node.op == "constant"]
        self.count = Counter((item.dtype, item.shape) for item in payloads if isinstance(item, Tensor))
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
    """The first operator with each key: its type, attributes and operands."""

    def __init__(self) -> None:
        self.first: dict[Key, Node] = {}


@rule(affine="merges")
def merge_operators(node: Node, rewriter: Rewriter, seen: _EqualOperators) -> bool:
    """f(x), f(x) -> f(x)"""
    if has_trait(node, Trait.ATOMIC) or not is_deterministic(node, rewriter.module):
        return rewriter.decline("two runs on equal operands may give different results")
    known = seen.first.setdefault(_key(node), node)
    if known is node:
        return rewriter.decline("no equal operator comes before it")
    if node in fold_records(rewriter.module).layers:
        return rewriter.decline("it is a layer with folded affines of its own")
    pairs = list(zip(node.outputs, known.outputs, strict=False))
    if any(a.is_returned and b.is_returned for a, b in pairs) or any(a.is_returned for a, _ in pairs[1:]):
        return rewriter.decline("one of its results is a result of the graph")
    if any(a.users and not b.name for a, b in pairs):
        return rewriter.decline("the equal operator omits an optional result that is read here")
    merged = [rewriter.forward(old, new) for old, new in pairs if old.users]
    return any(merged) or rewriter.decline("its result cannot be replaced in the interface of the graph")


CONSTANTS: Rules[_EqualConstants] = {"constant": (merge_constants,)}
OPERATORS: Rules[_EqualOperators] = {ANY: (merge_operators,)}
"""The rules for each operator, in the two rounds over a graph."""


def _key(node: Node) -> Key:
    attrs = tuple(sorted((name, _content(value)) for name, value in node.attrs.items()))
    return (node.op, node.overload, attrs, tuple(map(id, node.inputs)), len(node.outputs))


def _content(value: Attribute) -> str:
    """Return a text that is equal only for attribute values that compute the same; 0.0 and -0.0 differ."""
    if isinstance(value, tuple):
        return "(" + ",".join(map(_content, value)) + ")"
    if isinstance(value, SparseTensor):
        return f"sparse {value.shape} {value.values.digest()} {value.indices.digest()}"
    if isinstance(value, Tensor):
        return f"tensor {value.digest()}"
    return f"{type(value).__name__} {value!r}"
