"""The document of a certificate as a compile writes it: what only the compiler knows of a proof.

These are the rewrites that were applied, the affines that layers took, the numbers that constants
were rounded from, and the constants that a runtime computed. `irc certify` finds the steps of the
proof with them, and checks these.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from ...frontends.onnx.codec.protos import GraphProto, ModelProto, NodeProto
from ...ir.module import Module
from ...ir.tensor import Array
from ...passes.affine.records.fold_records import FoldedAffine, Layer, SourceAffine, fold_records
from .checker.document import FORMAT, RECORDED, digest_of_content, digest_of_model

Exact = Callable[[str], Array | None]
"""Returns the float64 numbers of a constant by its name: of the result, before it was rounded."""

MAX_STATED = 1 << 14
"""Most numbers of an array that a certificate states."""

WEIGHTED = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul"))
"""Layers whose numbers follow from the affines that they took."""


def certificate_of(
    source: ModelProto,
    result: ModelProto,
    module: Module,
    layers: Mapping[str, Layer],
    exact: Exact,
) -> dict[str, Any]:
    """Return the certificate of a compile.

    Both models have all their elements. `layers` are the records of layers by the name of their
    result, and `exact` gives the numbers that constants were rounded from.
    """
    records = fold_records(module)
    taken = {name: _affines(layer.folds, records.sources or {}) for name, layer in layers.items()}
    log = module.debug_counter.log or ()
    is_edited = any(rule == "scale" or where == "the module" for rule, where in log)
    document = {
        "format": FORMAT,
        "version": RECORDED,
        "source": digest_of_model(source),
        "result": digest_of_model(result),
        "rewrites": [list(each) for each in log],
        "records": {
            "edits": [
                name
                for name, layer in layers.items()
                if is_edited
                or layer.branches
                or any(layer.node in each.layers for each in records.history)
            ],
            "layers": {name: affines for name, affines in taken.items() if affines},
            "unrounded": dict(_unrounded(result, exact)),
            "computed": {
                name: encoded(array)
                for name, array in module.debug_counter.computed.items()
                if array.dtype.kind == "f" and array.size <= MAX_STATED
            },
        },
    }
    document["seal"] = digest_of_content(document)
    return document


def _affines(
    folds: Sequence[FoldedAffine], sources: Mapping[int, SourceAffine]
) -> list[dict[str, Any]]:
    """Return the affines that a layer took behind its result, and whose they were."""
    return [
        {
            "of": sources[fold.origin].output if fold.origin in sources else None,
            "scale": encoded(fold.scale),
            "shift": encoded(fold.shift),
        }
        for fold in folds
        if fold.direction == "backward"
    ]


def _unrounded(model: ModelProto, exact: Exact) -> Iterator[tuple[str, float | str]]:
    """Yield the constants that others than layers read, and that were rounded, with numbers."""
    for graph, nodes in _graphs(model.graph):
        read = {name for node in nodes if node.op_type not in WEIGHTED for name in node.input}
        for tensor in graph.initializer:
            if tensor.name in read and prod(tensor.dims) <= MAX_STATED:
                numbers = exact(tensor.name)
                if numbers is not None and numbers.dtype == np.float64 and numbers.size:
                    yield tensor.name, encoded(numbers)


def _graphs(graph: GraphProto) -> Iterator[tuple[GraphProto, list[NodeProto]]]:
    """Yield a graph and those in it, with the nodes of each and of those in it."""
    nodes = list(graph.node[:])
    for node in graph.node[:]:
        for item in node.attribute[:]:
            if item.HasField("g"):
                for inner, within in _graphs(item.g):
                    yield inner, within
                    nodes += within
    yield graph, nodes


def encoded(array: Array) -> float | str:
    """Return numbers as a certificate states them: one number, or float64 in base64."""
    flat = np.ascontiguousarray(array, "<f8").reshape(-1)
    if flat.size and (flat == flat[0]).all():
        return float(flat[0])
    return base64.b64encode(flat.tobytes()).decode()
