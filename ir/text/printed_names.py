"""The names under which values are printed.

A value is printed under its own name. It gets another (`name.1`, `name.2`, ...) only if the text
would otherwise be read differently: its graph defines the name twice, or the value is in a region
and hides an outer value of the same name that is read after it. The name of an input or a result of
a graph is never given to another value of that graph, so the main graph keeps its interface. A
value without a name is numbered if it has a reader.
"""

from __future__ import annotations

from ..graph import Graph, Value


def printed_names(top: Graph) -> dict[Value, str]:
    """Return the printed names of values with a name or a reader in `top`. O(nodes + uses).

    Regions are included. `top` must not be a region.
    """
    resolver = _Resolver(top)
    resolver.graph(top)
    return resolver.names


class _Resolver:
    """A walk over the graph in the order of the text.

    `scopes` holds the definitions so far, innermost last.
    """

    def __init__(self, top: Graph) -> None:
        self.top = top
        self.names: dict[Value, str] = {}
        self.scopes: list[dict[str, Value]] = []
        self.suffixes: dict[str, int] = {}
        self.taken: set[str] | None = None

    def graph(self, graph: Graph) -> None:
        scope: dict[str, Value] = {}
        self.scopes.append(scope)
        reserved = _reserved_names(graph)
        nested = len(self.scopes) > 1
        for value in graph.inputs:
            self.define(value, scope, reserved)
        for node in graph:
            if nested:
                self.read(node.inputs, scope)
            for region in node.regions:
                self.graph(region)
            for value in node.outputs:
                if value.name or value.users:
                    self.define(value, scope, reserved)
        if nested:
            self.read(graph.return_.inputs, scope)
        self.scopes.pop()

    def define(self, value: Value, scope: dict[str, Value], reserved: dict[str, Value]) -> None:
        name = value.name
        if not name and value.node is not None:
            name = self.number()
        elif name in scope or reserved.get(name, value) is not value:
            name = self.fresh(name)
        scope[name] = value
        self.names[value] = name

    def read(self, values: tuple[Value | None, ...], scope: dict[str, Value]) -> None:
        """Rename each value of an inner scope that hides one of `values` from their reader."""
        for value in values:
            if value is None:
                continue
            name = self.names.get(value)
            if name is None or scope.get(name) is value:
                continue
            depth = next(
                (i for i, outer in enumerate(self.scopes) if outer.get(name) is value), None
            )
            for inner in () if depth is None else self.scopes[depth + 1 :]:
                hider = inner.pop(name, None)
                if hider is not None:
                    self.names[hider] = fresh = self.fresh(name)
                    inner[fresh] = hider

    def number(self) -> str:
        """Return the next number that is not a name yet."""
        self._collect()
        assert self.taken is not None
        number = self.suffixes.get("", 0)
        while str(number) in self.taken:
            number += 1
        self.suffixes[""] = number + 1
        self.taken.add(str(number))
        return str(number)

    def fresh(self, hint: str) -> str:
        """Return the first of `hint.1`, `hint.2`, ... that is not a name yet."""
        self._collect()
        assert self.taken is not None
        suffix = self.suffixes.get(f".{hint}", 1)
        while f"{hint}.{suffix}" in self.taken:
            suffix += 1
        self.suffixes[f".{hint}"] = suffix + 1
        self.taken.add(f"{hint}.{suffix}")
        return f"{hint}.{suffix}"

    def _collect(self) -> None:
        if self.taken is None:
            self.taken = {value.name for node in self.top.walk() for value in node.outputs}
            for graph in self.top.graphs():
                self.taken.update(value.name for value in graph.inputs)
                self.taken.update(graph.output_names)


def _reserved_names(graph: Graph) -> dict[str, Value]:
    """Return the names of inputs and results of `graph`, which no other value of it may take."""
    reserved: dict[str, Value] = {}
    for value in graph.inputs:
        reserved.setdefault(value.name, value)
    for result, name in zip(graph.return_.inputs, graph.output_names, strict=False):
        if result is None or result.name != name:
            continue
        if result.node is not None and result.node.graph is graph:
            reserved.setdefault(name, result)
    return reserved
