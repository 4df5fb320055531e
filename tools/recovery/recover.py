"""Build the fold map of a model that another tool folded, from a checkpoint with its norms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from ...backends.foldmap.build import MapBuilder
from ...backends.foldmap.fold_map import FoldMap
from ...backends.foldmap.observer import PayloadObserver
from ...frontends.onnx import from_model
from ...frontends.onnx.codec.protos import ModelProto, NodeProto
from ...frontends.onnx.opsets import opset_versions
from ...ir.graph import Node, Value
from ...ir.module import Module
from ...ir.record import Record
from ...ir.tensor import Array
from ...passes.affine.records.fold_records import FoldedAffine, Layer, fold_records
from ...passes.affine.records.source_affines import collect_sources
from ...support.errors import FoldMapError
from .checkpoint import Checkpoint, are_equal
from .explanation import EPSILONS, Explanation, explain_all
from .folded_layers import constants_of, layers_of
from .unfolded import unfolded_model

OLDEST_OPSET = 7
"""The first opset whose BatchNormalization is in inference mode without an attribute."""

NAMELESS = "it has no name of its own, by which a fold map could refer to it"
GONE = "another tool folded or removed it, and it was not recovered"


class Recovered(Record):
    """The `fold_map`, the `explanations` it was made of, and the layers without.

    `refused` has the reasons by layer, and `unchanged` the layers that are in the checkpoint as
    they are. Of the other BatchNormalizations of the checkpoint, `kept` has the paths of those that
    the model still has, `missing` the rest.
    """

    fold_map: FoldMap
    explanations: list[Explanation]
    refused: dict[str, str]
    unchanged: list[str]
    kept: list[str]
    missing: list[str]


def recover(
    model: ModelProto,
    checkpoint: Checkpoint,
    base_dir: Path | None = None,
    epsilons: Sequence[float] = EPSILONS,
) -> Recovered:
    """Find the norms that were folded into the layers of `model`, and return its fold map.

    `base_dir` is the folder of external data; `epsilons` are tried if the checkpoint does not
    say it. Raises FoldMapError if nothing is found, and ModelError if a file cannot be read.
    """
    opset = opset_versions(model.opset_import)[""]
    if opset < OLDEST_OPSET:
        raise FoldMapError(
            f"the model has opset {opset}: convert it to {OLDEST_OPSET} or newer first"
        )
    folder = base_dir or Path()
    constants = constants_of(model, folder)
    layers = list(layers_of(model, constants))
    found, refused, unchanged = explain_all(layers, checkpoint, epsilons)
    counts = Counter(node.name for node in model.graph.node)
    for hit in list(found):
        if not hit.layer.node.name or counts[hit.layer.node.name] > 1:
            found.remove(hit)
            refused[hit.layer.label] = NAMELESS
    known = {hit.norm.order for hit in found}
    others = [norm for norm in checkpoint.norms if norm.order not in known]
    present = _norms_in(model, constants)
    kept = [
        norm.path for norm in others if any(are_equal(norm.params, params) for params in present)
    ]
    if not found:
        raise FoldMapError(
            "no layer of the main graph took a BatchNormalization of the"
            f" checkpoint{_why(refused, kept)}"
        )
    missing = [norm.path for norm in others if norm.path not in kept]
    fold_map = _map_of(model, checkpoint, found, folder)
    return Recovered(fold_map, found, refused, unchanged, kept, missing)


def _why(refused: Mapping[str, str], kept: Sequence[str]) -> str:
    if refused:
        label, reason = next(iter(refused.items()))
        return f": {label}: {reason}"
    return f": {len(kept)} are still in the model, which irc compile folds" if kept else ""


def _norms_in(model: ModelProto, constants: Mapping[str, Array]) -> list[list[Array]]:
    """Return the parameters of the BatchNormalizations that the model has."""
    nodes = [node for node in model.graph.node if node.op_type == "BatchNormalization"]
    return [[constants[name] for name in node.input[1:5] if name in constants] for node in nodes]


def _map_of(
    model: ModelProto, checkpoint: Checkpoint, found: Sequence[Explanation], folder: Path
) -> FoldMap:
    if checkpoint.source is None:
        source = unfolded_model(model, found)
        before = {node.output[0]: i for i, node in enumerate(source.graph.node) if node.output}
        norms = [source.graph.node[before[hit.layer.node.output[0]]] for hit in found]
        pairs = [(source.graph.node[before[norm.input[0]]], norm) for norm in norms]
    else:
        source = checkpoint.source
        at = {node.output[0]: node for node in source.graph.node if node.output}
        layers = [hit.kernel.layer.node.output[0] for hit in found if hit.kernel.layer]
        pairs = [(at[name], at[hit.norm.result]) for name, hit in zip(layers, found, strict=True)]
    module = from_model(source, folder)
    module.provenance.passes.append("recover")
    protos = _record_folds(module, found, pairs)
    names = _names_in(found, pairs, checkpoint)
    fold_map = MapBuilder(module, model, protos, names, PayloadObserver()).build()
    if checkpoint.source is not None:
        _mark_gone(fold_map, model)
    return fold_map


def _record_folds(
    module: Module, found: Sequence[Explanation], pairs: Sequence[tuple[NodeProto, NodeProto]]
) -> dict[Node, NodeProto]:
    """Record the folds as passes do; return the folded layer of each node that took one."""
    collect_sources(module)
    records = fold_records(module)
    sources = {each.output: each for each in (records.sources or {}).values() if not each.scope}
    nodes = {node.output.name: node for node in module.graph.nodes() if node.outputs}
    protos: dict[Node, NodeProto] = {}
    for hit, (conv, norm) in zip(found, pairs, strict=True):
        node, source, layer = nodes[conv.output[0]], sources[norm.output[0]], hit.layer
        fold = FoldedAffine(source.origin, "backward", 1, hit.scale, hit.shift)
        _, weight, bias = (*conv.input, "")[:3]
        place = (node, conv.name, 1, 1, layer.weight_axis)
        parameters = (weight, bias or None)
        factor = np.asarray(layer.factor_of(hit.scale), np.float64)
        records.layers[node] = Layer(
            *place, *parameters, [conv.output[0]], [fold], factor=factor, imported=conv
        )
        protos[node] = layer.node
    return protos


def _names_in(
    found: Sequence[Explanation],
    pairs: Sequence[tuple[NodeProto, NodeProto]],
    checkpoint: Checkpoint,
) -> Callable[[Value], str]:
    """Return the function from a source value to its name in the folded model, or ""."""
    if checkpoint.source is None:
        return lambda value: value.name
    # A name of the source may mean another value in the folded model: only results of the norms
    # that were found are the same.
    results = [norm.output[0] for _, norm in pairs]
    names = dict(zip(results, (hit.layer.node.output[0] for hit in found), strict=True))
    return lambda value: names.get(value.name, "")


def _mark_gone(fold_map: FoldMap, model: ModelProto) -> None:
    """Say that affines are gone which the folded model lacks, and which were not found."""
    present = {(node.op_type, node.output[0]) for node in model.graph.node if node.output}
    for source in fold_map.sources:
        is_present = (source["node"]["op_type"], source["output"]) in present
        if source["status"] == "kept" and not is_present:
            source["status"] = "merged"
            source["reason"] = None
            source["detail"] = GONE
            source["notes"] = []
