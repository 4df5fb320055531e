"""What the BatchNormalizations of the source say of the values that are left."""

from __future__ import annotations

from ..ir.graph import Graph, Module, Value
from ..ir.ledger import Ledger, Scope, Source
from ..ir.statistics import Statistic, of_data, of_result
from .sources import collect_sources, scopes


def known_statistics(module: Module) -> dict[Value, Statistic]:
    """The statistics of values of the module, as far as they are known. O(nodes).

    A value that bears a name of the source model holds what it held there: so the data and the result of every
    inference BatchNormalization are known while a value has their name. The result of a layer is also known if a
    BatchNormalization of it, with nothing in between, was folded into it together with affines behind that.
    """
    ledger = module.ledger
    if ledger.statistics is not None:
        return {value: known for value, known in ledger.statistics.items() if is_alive(value)}
    collect_sources(module)
    sources = {
        source.origin: source
        for source in (ledger.sources or {}).values()
        if source.kind == "batch_norm" and not _is_training(ledger, source)
    }
    named = {(scope, value.name): value for graph, scope in scopes(module) for value in values_of(graph) if value.name}
    found: dict[Value, Statistic] = {}
    for source in sources.values():
        _note(found, named, source.scope, source.input, of_data(source))
    for source in sources.values():
        _note(found, named, source.scope, source.output, of_result(source))
    for layer in ledger.layers.values():
        result = layer.node.output if layer.shift_add is None else layer.shift_add
        known: Statistic | None = None
        for fold in layer.folds:
            if fold.direction != "backward":
                continue
            if fold.origin in sources and not fold.crossed:
                known = of_data(sources[fold.origin])
            if known is not None:  # a GroupNormalization may have a number for each group only
                fits = fold.scale.size in (1, known.mean.size)
                known = known.applied(fold.scale, fold.shift) if fits else None
        if known is not None and is_alive(result) and layer.axis == known.axis:
            found.setdefault(result, known)
    return found


def keep_statistics(module: Module) -> dict[Value, Statistic]:
    """The ledger's statistics, which the caller keeps true from now on."""
    module.ledger.statistics = known_statistics(module)
    return module.ledger.statistics


def is_alive(value: Value) -> bool:
    """Whether the value is still part of the module."""
    return value.node is None or value.node.graph is not None


def values_of(graph: Graph) -> list[Value]:
    """Every value that is defined in a graph."""
    return [*graph.inputs, *(value for node in graph for value in node.outputs)]


def _is_training(ledger: Ledger, source: Source) -> bool:
    refusal = ledger.refusals.get(source.origin)
    return refusal is not None and refusal.code == "training_mode"


def _note(
    found: dict[Value, Statistic],
    named: dict[tuple[Scope, str], Value],
    scope: Scope,
    name: str,
    known: Statistic | None,
) -> None:
    value = named.get((scope, name))
    if value is not None and known is not None:
        found[value] = known
