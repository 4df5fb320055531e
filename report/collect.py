"""Everything that a report shows, as plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from onnx import ModelProto, TensorProto

from ..backends.result import Result
from ..codec.traversal import external_tensors
from ..frontends.onnx import from_model
from .layer_rows import affines_of, layers_of, scope_of
from .model_graph import Data, GraphData, graphs_of
from .page_text import short
from .recorder import Recorder, Step, count_operators, value_types

if TYPE_CHECKING:
    from ..backends.foldmap.entries import LayerEntry, SourceEntry


class Measure(TypedDict):
    """How far one tensor of the compiled model is from the source's; `sqnr` in dB, `bound` what is allowed."""

    tensor: str
    max_abs: float | None
    max_rel: float | None
    sqnr: float | None
    bound: float | None


def collect(
    name: str,
    recorder: Recorder,
    result: Result,
    *,
    seconds: float | None = None,
    alignment: Sequence[Measure | Mapping[str, Any]] | None = None,
    durations: bool = True,
) -> Data:
    """The data of a report on the model `name`, of which `recorder` saw the passes that led to `result`.

    `seconds` is what reading and compiling took, `alignment` what a comparison with the source found, in the order of
    the model. Without `durations` equal compiles give equal data. Raises ModelError and OSError where external data
    cannot be read.
    """
    from ..support.version import __version__

    fold_map = result.fold_map
    before = graphs_of(recorder.source, recorder.types)
    after = graphs_of(result.model, value_types(result.module, result.name_of))
    _relate(fold_map.sources, fold_map.layers, before, after)
    return {
        "irc": __version__,
        "model": _model(name, recorder.source),
        "summary": {
            "operators": [recorder.operators, result.operators],
            "bytes": [_size(recorder.source), _size(result.model)],
            "affines": dict(sorted(fold_map.count().items())),
            "seconds": _seconds(seconds, durations),
            "warnings": [short(warning) for warning in result.warnings],
        },
        "passes": [_step(step, durations) for step in recorder.steps],
        "graphs": [[graph.data for graph in graphs] for graphs in (before, after)],
        "affines": affines_of(fold_map),
        "layers": layers_of(fold_map, recorder.source, result.model, recorder.base_dir),
        "alignment": None if alignment is None else [_measure(item) for item in alignment],
    }


def collect_alignment(
    names: tuple[str, str], first: ModelProto, second: ModelProto, alignment: Sequence[Measure | Mapping[str, Any]]
) -> Data:
    """The data of a report on two models, side by side, and on what a comparison of them found.

    Raises ModelError where a model breaks ONNX's rules for graphs.
    """
    from ..support.version import __version__

    modules = [from_model(model) for model in (first, second)]
    before, after = (
        graphs_of(model, value_types(module)) for model, module in zip((first, second), modules, strict=True)
    )
    _relate([], [], before, after)
    return {
        "irc": __version__,
        "model": _model(" and ".join(names), first),
        "summary": {
            "operators": [count_operators(module) for module in modules],
            "bytes": [_size(first), _size(second)],
            "affines": None,  # nothing was compiled
            "seconds": None,
            "warnings": [],
        },
        "passes": [],
        "graphs": [[graph.data for graph in graphs] for graphs in (before, after)],
        "affines": [],
        "layers": [],
        "alignment": [_measure(item) for item in alignment],
    }


def _model(name: str, source: ModelProto) -> Data:
    producer = f"{source.producer_name} {source.producer_version}".strip()
    opsets = {short(entry.domain or "ai.onnx"): entry.version for entry in source.opset_import}
    return {"name": short(name), "producer": short(producer), "ir_version": source.ir_version, "opsets": opsets}


def _step(step: Step, durations: bool) -> Data:
    return {
        "name": short(step.name),
        "seconds": _seconds(step.seconds, durations),
        "changed": step.changed,
        "operators": step.operators,
        "added": step.diff.added,
        "removed": step.diff.removed,
        "lines": step.diff.lines,
        "left_out": step.diff.left_out,
    }


def _seconds(seconds: float | None, durations: bool) -> float | None:
    return None if seconds is None or not durations else round(seconds, 6)


def _measure(item: Measure | Mapping[str, Any]) -> Data:
    numbers = {key: _finite(item.get(key)) for key in ("max_abs", "max_rel", "sqnr", "bound")}
    return {"tensor": short(str(item["tensor"])), **numbers}


def _finite(value: Any) -> float | str | None:
    """JSON has no infinity and no NaN: they are texts."""
    if value is None:
        return None
    number = float(value)
    return float(f"{number:.4g}") if math.isfinite(number) else str(number)


def _size(model: ModelProto) -> int:
    """Bytes of a model with its external data."""
    return model.ByteSize() + sum(_external_size(tensor) for tensor in external_tensors(model))


def _external_size(tensor: TensorProto) -> int:
    lengths = [int(entry.value) for entry in tensor.external_data if entry.key == "length" and entry.value.isdigit()]
    return sum(lengths)


def _relate(
    sources: list[SourceEntry], layer_entries: list[LayerEntry], before: list[GraphData], after: list[GraphData]
) -> None:
    """Write into every operator what became of it (`to`), what it was (`from`), and its `status`.

    Places are [graph, operator]. `status` is that of an affine in the source; `layer` for what absorbed something,
    `gone` for what the result has no more, `new` for what the source does not have, `inside` for what holds a subgraph
    that changed, else `same`.
    """
    sides = ({graph.scope: graph for graph in before}, {graph.scope: graph for graph in after})
    places = {id(node): [g, n] for graphs in (before, after) for g, graph in enumerate(graphs)
              for n, node in enumerate(graph.nodes)}  # fmt: skip

    def link(old: Data, new: Data) -> None:
        for node, key, other in ((old, "to", new), (new, "from", old)):
            if places[id(other)] not in node.setdefault(key, []):
                node[key].append(places[id(other)])

    for scope in sides[0].keys() & sides[1].keys():
        for old, new in _counterparts(sides[0][scope], sides[1][scope]):
            link(old, new)
    layers: list[Data | None] = []
    for i, layer in enumerate(layer_entries):
        graph = sides[1].get(scope_of(layer))
        node = None if graph is None else graph.by_name.get(layer["node"]["name"])
        layers.append(node)
        if node is not None:
            node["layer"] = i
            for place in node.get("from", ()):
                before[place[0]].nodes[place[1]]["layer"] = i
    number_of = {layer["id"]: i for i, layer in enumerate(layer_entries)}
    for i, source in enumerate(sources):
        graph = sides[0].get(scope_of(source))
        affine = None if graph is None else graph.by_output.get(source["output"])
        if affine is None:
            continue
        affine["affine"] = i
        for number in source["layers"]:
            if (target := layers[number_of[number]]) is not None:
                link(affine, target)
    _mark(sources, before, after)


def _mark(sources: list[SourceEntry], before: list[GraphData], after: list[GraphData]) -> None:
    for graph in before:
        for node in graph.nodes:
            if "affine" in node:
                node["status"] = sources[node["affine"]]["status"]
            elif "layer" in node:
                node["status"] = "layer"
            else:
                node["status"] = "same" if "to" in node else "gone"
    for graph in after:
        for node in graph.nodes:
            origins = [before[g].nodes[n] for g, n in node.get("from", ())]
            kept = next((old for old in origins if old["status"] in ("kept", "partial")), None)
            if "layer" in node:
                node["status"] = "layer"
            elif kept is not None:
                node["status"], node["affine"] = kept["status"], kept["affine"]
            else:
                node["status"] = "same" if origins else "new"
    for graphs in (before, after):
        for graph in reversed(graphs):  # inner graphs first
            for node in graph.nodes:
                inner = (there for number in node.get("graphs", ()) for there in graphs[number].nodes)
                if node["status"] == "same" and any(there["status"] not in ("same", "kept") for there in inner):
                    node["status"] = "inside"


def _counterparts(before: GraphData, after: GraphData) -> list[tuple[Data, Data]]:
    """Operators of one kind with the same name, else what makes the value of one name."""
    found: list[tuple[Data, Data]] = []
    done: set[int] = set()
    for name, new in after.by_name.items():
        old = before.by_name.get(name)
        if old is not None and new is not None and old["op"] == new["op"]:
            found.append((old, new))
            done.update((id(old), id(new)))
    for name, new in after.by_output.items():
        old = before.by_output.get(name)
        if old is not None and id(new) not in done and id(old) not in done:
            found.append((old, new))
            done.update((id(old), id(new)))
    return found
