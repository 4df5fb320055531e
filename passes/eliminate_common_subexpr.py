"""EliminateCommonSubexpr: what is computed twice is computed once."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from ..ir.attributes import Attribute, SparseTensor
from ..ir.graph import Graph, Node
from ..ir.module import Module
from ..ir.rewriter import Rewriter
from ..ir.tensor import Tensor
from ..support.errors import ModelError
from .affine.fold_records import fold_records
from .foreign import is_deterministic
from .infra import Pass, PassContext

Key = Hashable

KEPT = ("constant", "nn.batch_norm_to_affine")
"""Operators that are not merged as such: each of the second is written as the BatchNormalization that it came from."""


@dataclass(frozen=True)
class EliminateCommonSubexpr(Pass):
    """Merge equal expressions of one graph.

    1. Of two operators of one name with the same attributes and the same operands the second goes, unless a result of
       both is a result of the graph. Operators that draw random numbers, those of other domains than ONNX's own, calls
       of functions, control flow, and layers with folds of their own are never merged.
    2. Constants of equal type and elements become one; only those are read that have a namesake in type.
    """

    name: ClassVar[str] = "EliminateCommonSubexpr"

    def run(self, module: Module, ctx: PassContext) -> bool:
        rewriter = Rewriter(module)
        for graph in module.graphs():
            merge_constants(graph, rewriter)
            merge_operators(graph, rewriter)
        return rewriter.changed


def merge_constants(graph: Graph, rewriter: Rewriter) -> None:
    """c, c -> c"""
    alike: dict[Key, list[Node]] = {}
    for node in graph:
        payload = node.attrs.get("value") if node.op == "constant" else None
        if isinstance(payload, Tensor):
            alike.setdefault((payload.dtype, payload.shape), []).append(node)
    for nodes in alike.values():
        first: dict[str, Node] = {}
        for node in nodes if len(nodes) > 1 else ():
            payload = node.attrs["value"]
            assert isinstance(payload, Tensor)
            try:
                digest = payload.digest()
            except (ValueError, OSError, ModelError):  # elements that cannot be read
                continue
            known = first.setdefault(digest, node)
            if known is not node and not node.output.is_returned:
                rewriter.replace(node.output, known.output)


def merge_operators(graph: Graph, rewriter: Rewriter) -> None:
    """f(x), f(x) -> f(x)"""
    first: dict[Key, Node] = {}
    for node in graph:
        if node.op in KEPT or not is_deterministic(node, rewriter.module):
            continue
        known = first.setdefault(_key(node), node)
        pairs = list(zip(node.outputs, known.outputs, strict=False))
        if (
            known is node
            or node in fold_records(rewriter.module).layers
            or any(a.is_returned and b.is_returned for a, b in pairs)
        ):
            continue
        if any(a.users and not b.name for a, b in pairs) or any(a.is_returned for a, _ in pairs[1:]):
            continue
        for old, new in pairs:
            if old.users:
                rewriter.forward(old, new)


def _key(node: Node) -> Key:
    attrs = tuple(sorted((name, _content(value)) for name, value in node.attrs.items()))
    return (node.op, node.overload, attrs, tuple(map(id, node.inputs)), len(node.outputs))


def _content(value: Attribute) -> str:
    """The attribute's value as text that tells apart what may compute differently, 0.0 and -0.0 for one."""
    if isinstance(value, tuple):
        return "(" + ",".join(map(_content, value)) + ")"
    if isinstance(value, SparseTensor):
        return f"sparse {value.shape} {value.values.digest()} {value.indices.digest()}"
    if isinstance(value, Tensor):
        return f"tensor {value.digest()}"
    return f"{type(value).__name__} {value!r}"
