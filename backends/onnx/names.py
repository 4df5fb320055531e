"""The names under which values go out, so that every name that is read finds the value that is meant."""

from __future__ import annotations

from onnx import NodeProto

from ...ir.graph import Graph, Module, Value
from ...ir.tensor import Tensor


class Names:
    """Names for one emission: a value's own name, but where that would be captured or is claimed by the interface."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._renamed: dict[Value, str] = {}
        self._narrowed: dict[tuple[Graph, Value, str], str] = {}
        self._defined: dict[Graph, dict[str, Value]] = {}
        self._taken: set[str] | None = None
        tops = set(module.top_graphs())
        for graph in module.graphs():
            self._claim_outputs(graph)
        for graph in module.graphs():
            if graph.parent is not None and graph.parent.graph in tops:
                self._release_captured(graph)

    def of(self, value: Value) -> str:
        """The name of `value`."""
        return self._renamed.get(value, value.name)

    def fresh(self, hint: str) -> str:
        """A name that nothing in the module bears: the hint itself, or with a number behind it."""
        if self._taken is None:
            self._taken = {value.name for graph in self._module.graphs() for value in graph.inputs}
            self._taken.update(value.name for node in self._module.walk() for value in node.outputs)
            self._taken.update(name for graph in self._module.graphs() for name in graph.output_names)
            self._taken.add("")
        name, suffix = hint, 0
        while name in self._taken:
            suffix += 1
            name = f"{hint}.{suffix}"
        self._taken.add(name)
        return name

    def narrowed(self, graph: Graph, parameter: Value, tensor: Tensor) -> tuple[str, bool]:
        """The name of a rounded or reshaped `parameter` in `graph`, and whether it is new.

        The first form of a parameter with one reader goes out under the parameter's own name.
        """
        key = (graph, parameter, str(tensor.type))
        name = self._narrowed.get(key)
        if name is not None:
            return name, False
        sole = parameter.sole_user() is not None and parameter.node is not None and parameter.node.graph is graph
        name = parameter.name if sole and len(parameter.node.outputs) == 1 else self.fresh(parameter.name)  # type: ignore[union-attr]
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
        """Give a returned value its name to the outside, where that name is free."""
        for value, name in zip(graph.outputs, graph.output_names, strict=True):
            if value.name == name or value.node is None or value.node.graph is not graph or value in self._renamed:
                continue
            if value.name in graph.output_names or name in self._names_in(graph):
                continue
            self._renamed[value] = name

    def _release_captured(self, region: Graph) -> None:
        """Rename values of a region that hide an outer value which a pass made the region read."""
        for node in region.walk():
            for i, value in enumerate(node.inputs):
                if value is None or value.graph is node.graph:
                    continue
                source = node.source
                if isinstance(source, NodeProto) and i < len(source.input) and source.input[i] == value.name:
                    continue
                self._unhide(node.graph, value)

    def _unhide(self, graph: Graph | None, value: Value) -> None:
        for inner in () if graph is None else graph.ancestors():
            if inner is value.graph:
                return
            hider = self._names_in(inner).get(value.name)
            if hider is not None and hider.node is not None:
                self._renamed[hider] = self.fresh(hider.name)
