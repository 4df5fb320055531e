"""The names of values in an emitted model, chosen so that every name refers to the value that the IR reads."""

from __future__ import annotations

from collections.abc import Iterable

from ...ir.graph import Graph, Value
from ...ir.module import Module
from ...ir.name_pool import NamePool
from ...ir.tensor import Tensor


class Names:
    """The names of one emission: a value has its own name, unless another value has it, too.

    A result of a graph gets the name that the graph promises if it is free. A pass may give a value of a region the
    name of a value around the region: the former gets a fresh name then. Inputs and results of regions may be renamed,
    because ONNX identifies them by position.
    """

    def __init__(self, module: Module, nameless: Iterable[Value] = ()) -> None:
        self._module = module
        self._renamed: dict[Value, str] = {}
        self._narrowed: dict[tuple[Graph, Value, str], str] = {}
        self._defined: dict[Graph, dict[str, Value]] = {}
        self._pool: NamePool | None = None
        for graph in module.top_graphs():
            self._claim_outputs(graph)
        if module.changed:
            for graph in module.graphs():
                if graph.parent is not None:
                    self._rename_shadowing(graph)
        self._renamed.update((value, self.fresh("constant")) for value in nameless)

    def of(self, value: Value) -> str:
        """Return the name of `value`."""
        return self._renamed.get(value, value.name)

    def results(self, graph: Graph) -> list[str]:
        """Return the names of the results of `graph`: in a region those of the values, unless results share a value."""
        names: list[str] = []
        seen: set[Value] = set()
        for value, name in zip(graph.outputs, graph.output_names, strict=True):
            free = graph.parent is not None and value.graph is graph and value not in seen
            names.append(self.of(value) if free else name)
            seen.add(value)
        return names

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
        node = parameter.node
        own = node is not None and node.graph is graph and len(node.outputs) == 1 and parameter.sole_user() is not None
        name = parameter.name if own else self.fresh(parameter.name)
        self._narrowed[key] = name
        return name, True

    def _names_in(self, graph: Graph) -> dict[str, Value]:
        found = self._defined.get(graph)
        if found is None:
            found = {value.name: value for value in graph.inputs}
            found.update((value.name, value) for node in graph for value in node.outputs if value.name)
            self._defined[graph] = found
        return found

    def _claim_outputs(self, graph: Graph) -> None:
        """Give each result of `graph` the name that the graph promises, if it is free."""
        for value, name in zip(graph.outputs, graph.output_names, strict=True):
            if value.name == name or value.node is None or value.node.graph is not graph or value in self._renamed:
                continue
            if value.name in graph.output_names or name in self._names_in(graph):
                continue
            self._renamed[value] = name

    def _rename_shadowing(self, region: Graph) -> None:
        """Rename every value of `region` that has the name of a value of a graph around it."""
        around = list(region.ancestors())[1:]
        for name, value in self._names_in(region).items():
            if any(name in self._names_in(outer) for outer in around):
                self._renamed[value] = self.fresh(name)
