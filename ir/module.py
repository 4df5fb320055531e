"""The module: a model and its records, from import to export."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from ..support.errors import UsageError
from ..support.hooks import provided
from ..support.limits import DEFAULT_LIMITS, Limits
from .debug_counter import DebugCounter
from .foreign_operators import ForeignOperators
from .graph import Function, FunctionKey, Graph, Node, Origins
from .name_pool import NamePool, NodeNames
from .payload import Payload
from .provenance import Provenance
from .shape_evaluator import ShapeEvaluator
from .source_notes import SourceNotes
from .text.printer import to_text

CONSTANTS = ("constant", "variable", "return", "::Constant")
"""The operators of nodes that do not count as operators."""


class Module:
    """A model: the main graph, its functions, and the records that passes keep for the fold map.

        module = irc.load("model.onnx")
        for node in module.walk(): ...    # every node of every graph
        print(module)                     # its IR text

    A frontend makes it, passes edit it by a `Rewriter`, a backend writes it. Records of one pass or
    analysis stand in side tables: `module.provenance.table(Kind)`.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        ir_version: int = 10,
        source: Any = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.graph = graph
        self.functions: dict[FunctionKey, Function] = {}
        self.ir_version = ir_version
        self.limits = limits
        """Limits of import, passes and export."""

        # from the frontend
        self.source = source
        """The object that the frontend imported, for ONNX a ModelProto."""
        self.base_dir = Path()
        """The folder of the external data of `source`."""
        self.files: list[Path] = []
        """The files that the module was read from: the model, then the constants of IR text."""
        self.payloads: list[Payload] = []
        """The tensors for which `source` holds placeholders."""
        self.notes = SourceNotes()
        self.warnings: list[str] = []
        """Warnings of the frontend."""
        self.inserted: frozenset[str] = frozenset()
        """The names of nodes of the main graph that the frontend inserted to preprocess inputs."""
        self.untouchable = ""
        """The reason why the module is written back unchanged; empty if passes may edit it."""

        # of the passes
        self.constants = ShapeEvaluator(limits.max_constant_bytes)
        """The evaluator of constant expressions."""
        self.provenance = Provenance()
        """The fate of every imported node."""
        self.debug_counter = DebugCounter()
        """The applications of rules."""
        self.changed = False
        """Whether a pass changed anything."""
        self.opened = False
        """Whether the last pass changed anything from which another rewrite may follow."""

        self.next_origin = 0
        """The id of the next imported node."""
        self._foreign: ForeignOperators | None = None
        self._value_names: NamePool | None = None
        self._node_names: NodeNames | None = None

    def __repr__(self) -> str:
        opsets = ", ".join(
            f"{domain or 'ai.onnx'} {version}" for domain, version in self.graph.opsets.items()
        )
        return (
            f"<Module {self.graph.name!r}: {self.operators().total()} operators, opsets:"
            f" {opsets or 'none'}>"
        )

    def _repr_html_(self) -> str:
        """Return the inputs, outputs, operators, IR text and graph for a notebook."""
        return str(provided("module_html")(self))

    def __str__(self) -> str:
        return to_text(self)

    # its graphs and nodes

    def top_graphs(self) -> Iterator[Graph]:
        """Yield the main graph, then the function bodies."""
        yield self.graph
        for function in self.functions.values():
            yield function.graph

    def graphs(self) -> Iterator[Graph]:
        """Yield every graph: the main graph, the function bodies, and all regions inside them."""
        for graph in self.top_graphs():
            yield from graph.graphs()

    def walk(self) -> Iterator[Node]:
        """Iterate over every node of every graph, including each `return`."""
        return chain.from_iterable(graph.walk() for graph in self.top_graphs())

    def walked(self) -> list[Node]:
        """Return a list of the nodes that `walk` yields."""
        return [node for graph in self.top_graphs() for node in graph.walked()]

    def operators(self) -> Counter[str]:
        """Count the operators of all graphs by name, foreign ones too, but no constants."""
        return Counter(node.op for node in self.walk() if node.op not in CONSTANTS)

    @property
    def foreign(self) -> ForeignOperators:
        """The operators of the source format, by default ONNX; the frontend sets them."""
        if self._foreign is None:
            self._foreign = provided("foreign operators")
        return self._foreign

    @foreign.setter
    def foreign(self, operators: ForeignOperators) -> None:
        self._foreign = operators

    # ids and names for new nodes

    def new_origin(self) -> Origins:
        """Return a fresh id for an imported node, as its origins."""
        self.next_origin += 1
        return (self.next_origin - 1,)

    def all_names(self) -> set[str]:
        """Return the names of all values and graph outputs, in any graph, and the empty name.

        O(nodes).
        """
        names = {""}
        for graph in self.graphs():
            names.update([value.name for value in graph.inputs])
            names.update(graph.output_names)
            names.update([value.name for node in graph.nodes() for value in node.outputs])
        return names

    def fresh_name(self, hint: str) -> str:
        """Return the first of `hint`, `hint.1`, `hint.2`, ... that no value has."""
        if self._value_names is None:
            self._value_names = NamePool(self.all_names())
        return self._value_names.fresh(hint)

    def unique_node_name(self, node: Node, hint: str) -> str:
        """Return the name of `node` if no other node has it, else a fresh name.

        The fresh name derives from the old one, or if that is empty from `hint` or the operator.
        """
        if self._node_names is None:
            self._node_names = NodeNames(
                other.name for graph in self.graphs() for other in graph.nodes()
            )
        return self._node_names.unique(node.name, hint or node.op)


def check_module(module: object) -> None:
    """Raise UsageError for anything else than a module."""
    if not isinstance(module, Module):
        raise UsageError(f"{type(module).__name__} is not a Module: irc.load reads a model as one")
