"""The names of values in an emitted model: every name refers to the value that the IR reads."""

from __future__ import annotations

from collections.abc import Container, Iterable
from functools import cached_property

from ...ir.graph import Graph, Node, Value
from ...ir.module import Module
from ...ir.name_pool import NamePool, NodeNames
from ...ir.ops import is_foreign_body
from ...ir.tensor import Tensor


class Names:
    """The names of one emission: a value has its own name, unless another value has it, too.

    A node that passes made or changed gets a name that no other node has; one of the source keeps
    its own, or none.

    A result of a graph gets the name that the graph promises if it is free. A pass may give a value
    of a region the name of a value around the region: the former gets a fresh name then. Inputs and
    results of bodies of control flow may be renamed, because ONNX identifies them by position.
    Bodies of other operators keep these names: a value around the body that the body reads gets the
    fresh name there, and an input, which keeps its own, an alias.
    """

    def __init__(
        self, module: Module, nameless: Iterable[Value] = (), skipped: Container[Node] = ()
    ) -> None:
        self._module = module
        self._skipped = skipped
        self._renamed: dict[Value, str] = {}
        self._aliased: dict[Graph, list[Value]] = {}
        self._narrowed: dict[tuple[Graph, Value, str], str] = {}
        self._defined: dict[Graph, dict[str, Value]] = {}
        self._pool: NamePool | None = None
        for graph in module.graphs() if module.changed else module.top_graphs():
            if graph.parent is None or is_foreign_body(graph):
                self._claim_outputs(graph)
        if module.changed:
            for graph in module.graphs():
                if graph.parent is not None:
                    self._rename_shadowing(graph)
        self._renamed.update((value, self.fresh("constant")) for value in nameless)

    def of(self, value: Value) -> str:
        """Return the name of `value` for its readers."""
        return self._renamed.get(value, value.name)

    def declared(self, value: Value) -> str:
        """Return the name by which a graph declares an input."""
        return value.name if value in self._aliased.get(value.graph, ()) else self.of(value)

    def aliased(self, graph: Graph) -> list[Value]:
        """Return the inputs of `graph` that are read under another name than they are declared."""
        return self._aliased.get(graph, [])

    def results(self, graph: Graph) -> list[str]:
        """Return the names of the results of `graph`.

        In a body of control flow these are the names of the values, unless results share a value.
        """
        if graph.parent is None or is_foreign_body(graph):
            return list(graph.output_names)
        names: list[str] = []
        seen: set[Value] = set()
        for value, name in zip(graph.outputs, graph.output_names, strict=True):
            free = value.graph is graph and value not in seen
            names.append(self.of(value) if free else name)
            seen.add(value)
        return names

    @cached_property
    def nodes(self) -> NodeNames:
        """Return the names of the nodes that are written."""
        return NodeNames(node.name for node in self._module.walked() if node not in self._skipped)

    def fresh(self, hint: str) -> str:
        """Return a name that is not in the module: the hint itself, or the hint and a number."""
        if self._pool is None:
            self._pool = NamePool(self._module.all_names())
        return self._pool.fresh(hint)

    def narrowed(self, graph: Graph, parameter: Value, tensor: Tensor) -> tuple[str, bool]:
        """Return the name of a rounded or reshaped `parameter` in `graph`, and whether it is new.

        The first form of a parameter with one reader gets the name of the parameter.
        """
        key = (graph, parameter, str(tensor.type))
        name = self._narrowed.get(key)
        if name is not None:
            return name, False
        is_free = _is_only_result_in(graph, parameter) and parameter.sole_user() is not None
        name = parameter.name if is_free else self.fresh(parameter.name)
        self._narrowed[key] = name
        return name, True

    def _names_in(self, graph: Graph) -> dict[str, Value]:
        found = self._defined.get(graph)
        if found is None:
            found = {value.name: value for value in graph.inputs}
            found.update(
                (value.name, value) for node in graph for value in node.outputs if value.name
            )
            self._defined[graph] = found
        return found

    def _claim_outputs(self, graph: Graph) -> None:
        """Give each result of `graph` the name that the graph promises, if it is free."""
        for value, name in zip(graph.outputs, graph.output_names, strict=True):
            if value.name == name or value in self._renamed:
                continue
            if value.node is None or value.node.graph is not graph:
                continue
            if value.name in graph.output_names or name in self._names_in(graph):
                continue
            self._names_in(graph)[name] = value
            self._renamed[value] = name

    def _rename_shadowing(self, region: Graph) -> None:
        """Rename every value of `region` that has the name of a value of a graph around it.

        Names that the body of a foreign operator promises stay. Values around it that it reads give
        way to them.
        """
        around = list(region.ancestors())[1:]
        promised: set[str] = set()
        if is_foreign_body(region):
            promised.update((*(value.name for value in region.inputs), *region.output_names))
            for name in promised:
                for outer in around:
                    value = self._names_in(outer).get(name)
                    if value is not None and _is_read_in(region, value):
                        self._give_way(value)
        for name, value in self._names_in(region).items():
            if name not in promised and any(name in self._names_in(outer) for outer in around):
                self._renamed[value] = self.fresh(name)

    def _give_way(self, value: Value) -> None:
        graph = value.graph
        if value in self._aliased.get(graph, ()):
            return
        if value.node is None and (graph.parent is None or is_foreign_body(graph)):
            self._aliased.setdefault(graph, []).append(value)
        self._renamed[value] = self.fresh(value.name)


def _is_only_result_in(graph: Graph, value: Value) -> bool:
    """Return whether `value` is the only result of a node of `graph`."""
    node = value.node
    return node is not None and node.graph is graph and len(node.outputs) == 1


def _is_read_in(region: Graph, value: Value) -> bool:
    """Return whether `value` is read in `region`, or in a region inside it. O(uses)."""
    return any(user.graph is not None and region in user.graph.ancestors() for user in value.users)
