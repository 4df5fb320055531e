"""Doubts about a model: forms that ONNX forbids but irc compiles, and wrong declarations."""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.graph import Graph, Node
from ...ir.module import Module
from ...ir.ops import canonical_domain
from ...support.errors import clipped
from .codec.protos import FunctionProto, ModelProto

MAX_NAMED = 3
"""Most values or operators that warnings name."""


ADVICE = "; import an opset that has it, or name the domain that the operator belongs to"


class Doubts:
    """The doubts about one model, collected while it is read."""

    def __init__(self) -> None:
        self.contradictions: list[str] = []
        """A phrase with both types for each value whose declared type is wrong."""
        self.shadowing: list[str] = []
        """A phrase for each value of a body that has the name of a value around it."""
        self.foreign: dict[
            tuple[str, str, int], tuple[Node, Graph, ModelProto | FunctionProto]
        ] = {}
        """The first node of each operator that the table does not have, in each table of opsets."""

    def sentences(self, module: Module) -> Iterator[str]:
        """Yield a warning for each doubt."""
        if not module.graph.output_names:
            yield (
                "the model has no outputs, so it computes nothing and no operator is kept: "
                "list the values that are wanted in graph.output"
            )
        if self.shadowing:
            yield (
                f"bodies define names that a graph around them has, which runtimes may refuse: "
                f"rename the values inside: {_some(self.shadowing)}"
            )
        yield from self._absent_operators(module)
        if self.contradictions:
            yield (
                f"the model declares types that its operators contradict, which are ignored: "
                f"{_some(self.contradictions)}"
            )

    def _absent_operators(self, module: Module) -> Iterator[str]:
        """Yield warnings for operators that neither their opset nor the model has.

        The first ones name a node.
        """
        functions = {(domain, name) for domain, name, _ in module.functions}
        found = []
        for (domain, op_type, _), (node, graph, owner) in self.foreign.items():
            if (domain, op_type) in functions:
                continue
            name = (
                "the model" if isinstance(owner, ModelProto) else f"function {clipped(owner.name)}"
            )
            domain_is_imported = any(
                canonical_domain(entry.domain) == domain for entry in owner.opset_import
            )
            if domain_is_imported:
                why = module.foreign.why_absent(domain, op_type, graph.opsets[domain], name)
            else:  # `version_warnings` warns of ONNX's own domain
                why = (
                    f"{name} does not import its domain {clipped(domain)}: add it to opset_import"
                    if domain
                    else None
                )
            if why is not None:
                advice = "" if why.endswith("?") or not domain_is_imported else ADVICE
                found.append(f"{node.description} is left as it is: {why}{advice}")
        yield from found[:MAX_NAMED]
        if len(found) > MAX_NAMED:
            yield f"and {len(found) - MAX_NAMED} more operators that their opsets do not have"


def _some(texts: list[str]) -> str:
    more = len(texts) - MAX_NAMED
    return "; ".join(texts[:MAX_NAMED]) + (f"; and {more} more" if more > 0 else "")
