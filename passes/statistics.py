"""What the BatchNormalizations of the source say of the values that are left."""

from __future__ import annotations

import numpy as np

from ..ir.graph import Graph, Module, Value
from ..ir.statistics import Statistic, statistics
from .affine.source_affines import collect_sources


@np.errstate(all="ignore")  # of numbers that a model may hold
def known_statistics(module: Module) -> dict[Value, Statistic]:
    """The statistics of values of the module, as far as they are known, in the module's order. O(nodes).

    The data and the result of every inference BatchNormalization are known, and what affines make of them. Passes
    that change what a value holds change what is known of it (`Provenance.statistics`).
    """
    collect_sources(module)
    clues = module.provenance.statistics
    values = [value for graph in module.graphs() for value in values_of(graph) if value in clues]
    found = zip(values, statistics([clues[value] for value in values]), strict=True)
    return {value: known for value, known in found if known is not None}


def values_of(graph: Graph) -> list[Value]:
    """Every value that is defined in a graph."""
    return [*graph.inputs, *(value for node in graph.nodes() for value in node.outputs)]
