"""From what the passes left behind to a fold map."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...frontends.onnx.external import value_names
from ...frontends.onnx.protos import ModelProto, NodeProto
from ...frontends.onnx.tensors import OnnxTensor
from ...ir.graph import Graph, Module, Node, Value, flatten_origins
from ...ir.ledger import Applied, Layer, Refusal, Scope, Source
from ...ir.statistics import Statistic
from ...ir.tensor import Array, Tensor
from ...passes.sources import collect_sources, scopes
from ...passes.statistics import known_statistics
from .arrays import Entry
from .document import FORMAT, VERSION, FoldMap, Lines
from .identity import tensor_digest
from .readings import Readings
from .restore import Payloads, identity, record

NOT_ATTEMPTED = Refusal("not_attempted", "no pass that could fold it was run")


@dataclass(frozen=True, slots=True)
class Status:
    """What became of one affine: the fields of that name in the fold map."""

    status: str
    reason: str | None = None
    detail: str = ""
    notes: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()


def numbered_layers(module: Module, protos: Mapping[Node, NodeProto]) -> dict[str, Layer]:
    """The layers of the ledger that were emitted, as the keys of `protos` say, by their ids in the fold map."""
    emitted = (node for node in module.walk() if node in module.ledger.layers and node in protos)
    return {f"L{i}": module.ledger.layers[node] for i, node in enumerate(emitted)}


def statuses(module: Module, layers: Mapping[str, Layer]) -> dict[int, Status]:
    """What became of every affine of the source, by origin. O(nodes)."""
    collect_sources(module)
    ledger = module.ledger
    where: dict[int, list[str]] = {}
    for number, layer in layers.items():
        for fold in layer.folds:
            where.setdefault(fold.origin, []).append(number)
    merged = ledger.merged_origins()
    sources = ledger.sources or {}
    alive = _alive(module, set(sources) - set(where) - set(merged))
    found: dict[int, Status] = {}
    for origin in sources:
        refusal = ledger.refusals.get(origin, NOT_ATTEMPTED)
        if origin in where:
            whole = origin not in ledger.partial
            detail = "" if whole else "its scale or its shift stays as an operator"
            found[origin] = Status("folded" if whole else "partial", detail=detail, layers=tuple(where[origin]))
        elif origin in merged:
            found[origin] = Status("merged", detail=f"went into another operator by {merged[origin]}")
        elif origin in alive:
            found[origin] = Status("kept", refusal.code, refusal.detail, refusal.notes)
        else:
            found[origin] = Status("dead", detail="nothing reads its result")
    return found


def build_fold_map(
    module: Module,
    model: ModelProto,
    protos: Mapping[Node, NodeProto],
    name_of: Callable[[Value], str],
    readings: Readings | None = None,
    *,
    to_write: bool = False,
) -> FoldMap:
    """The fold map of `module`, which was emitted as `model` with `protos` for the layers of its ledger, its values
    under the names that `name_of` says; `readings` is what is known of large tensors. One that is made `to_write`
    can do nothing else. O(nodes + bytes).

    Raises ModelError where a file cannot be read.
    """
    collect = Lines.of if to_write else list
    return _Builder(module, model, protos, name_of, readings or Readings(), collect).run()


class _Builder:
    def __init__(
        self,
        module: Module,
        model: ModelProto,
        protos: Mapping[Node, NodeProto],
        name_of: Callable[[Value], str],
        readings: Readings,
        collect: Callable[[Iterable[dict[str, Any]]], list[Any]],
    ) -> None:
        """Build the fold map of `module`; `collect` makes lists of the entries."""
        self.collect = collect
        self.module = module
        self.model = model
        self.protos = protos
        self.name_of = name_of
        self.readings = readings
        self.arrays = readings.arrays
        self.layers = numbered_layers(module, protos)
        self.scope_of: dict[Graph | None, Scope] = dict(scopes(module))
        self.after = Payloads(model, module.base_dir, readings)
        self.kept: dict[str, Entry] = {}
        self.before: Payloads | None = None
        self.digests: dict[int, str] = {}
        if isinstance(module.source, ModelProto):
            self.before = Payloads(module.source, module.base_dir, readings)
            self.digests = dict(zip(map(id, self.before.tensors), self.before.digests, strict=True))

    def run(self) -> FoldMap:
        from ... import __version__

        module = self.module
        became = statuses(module, self.layers)
        sources = module.ledger.sources or {}
        source, before = module.source, self.before
        data = {
            "format": FORMAT,
            "version": VERSION,
            "producer": {"name": "irc", "version": __version__, "passes": list(module.ledger.passes)},
            "source_model": None if before is None else identity(source, before),
            "folded_model": identity(self.model, self.after),
            "sources": self.collect(self.source(source, became[origin]) for origin, source in sources.items()),
            "layers": self.collect(self.layer(layer, number) for number, layer in self.layers.items()),
            "statistics": self.collect(self.statistics()),
            "history": [self.applied(i, applied) for i, applied in enumerate(module.ledger.history)],
            "restore": None
            if before is None
            else record(source, before, self.after, self.factors(), self.kept, self.readings),
        }
        return FoldMap(data, self.arrays)

    def source(self, source: Source, became: Status) -> dict[str, Any]:
        number = f"A{source.origin}"
        return {
            "id": number,
            "kind": source.kind,
            "scope": _scope(source.scope),
            "node": {"name": source.name, "op_type": source.op_type, "index": source.index},
            "input": source.input,
            "output": source.output,
            "axis": source.axis,
            "channels": source.channels,
            "epsilon": source.epsilon,
            "params": {
                key: {"name": param.name, "value": self.param(param.tensor, f"{number}.{key}")}
                for key, param in source.params.items()
            },
            "status": became.status,
            "reason": became.reason,
            "detail": became.detail,
            "notes": list(became.notes),
            "layers": list(became.layers),
        }

    def param(self, tensor: Tensor | None, ref: str) -> Entry | None:
        """The entry of a parameter, which is also what the source is restored from."""
        if tensor is None:
            return None
        entry = self.arrays.add(ref, tensor.numpy())
        if isinstance(tensor, OnnxTensor):
            known = self.digests.get(id(tensor.proto))  # of one message there is one object
            self.kept[known or tensor_digest(tensor.proto, tensor.base_dir)] = entry
        return entry

    def layer(self, layer: Layer, number: str) -> dict[str, Any]:
        proto = self.protos[layer.node]
        attributes = {attribute.name: attribute.i for attribute in proto.attribute}
        weight = layer.weight_index
        bias = proto.input[2] if len(proto.input) > 2 and proto.input[2] else None
        remainder = layer.shift_add.node if layer.shift_add is not None else None
        added = remainder is not None and remainder.graph is not None and remainder is not layer.node
        return {
            "id": number,
            "scope": _scope(self.scope_of.get(layer.node.graph, ())),
            "node": {"name": proto.name, "op_type": proto.op_type, "original_name": layer.original_name},
            "weight": {
                "name": proto.input[weight],
                "original_name": layer.weight_name,
                "out_axis": layer.weight_axis,
                "group": attributes.get("group", 1),
                "digest": self.after.digest_of(proto.input[weight]),
            },
            "bias": None
            if bias is None
            else {
                "name": bias,
                "original_name": layer.bias_name,
                "created": layer.bias_name is None,
                "digest": self.after.digest_of(bias),
            },
            "input": proto.input[1 - weight],
            "output": {
                "name": self.name_of(remainder.output) if added and remainder is not None else proto.output[0],
                "original_names": layer.output_names,
            },
            "remainder": {"op_type": "Add", "output": self.name_of(remainder.output)}
            if added and remainder is not None
            else None,
            "folds": [
                {
                    "source": f"A{fold.origin}",
                    "direction": fold.direction,
                    "axis": fold.axis,
                    "crossed": list(fold.crossed),
                    "scale": self.arrays.add(f"{number}.{i}.scale", fold.scale),
                    "shift": self.arrays.add(f"{number}.{i}.shift", fold.shift),
                }
                for i, fold in enumerate(layer.folds)
            ],
        }

    def statistics(self) -> Iterator[dict[str, Any]]:
        """What is known of the values that went out, in the model's order."""
        emitted = value_names(self.model)
        known = known_statistics(self.module)
        names = {value: self.name_of(value) for value in known}
        for i, value in enumerate(value for value in known if names[value] in emitted):
            yield self.statistic(f"S{i}", names[value], self.scope_of.get(value.graph, ()), known[value])

    def statistic(self, number: str, name: str, scope: Scope, known: Statistic) -> dict[str, Any]:
        arrays: dict[str, Entry] = {
            key: self.arrays.add(f"{number}.{key}", np.asarray(getattr(known, key), np.float64))
            for key in ("mean", "std", "gamma")
        }
        return {"tensor": name, "scope": _scope(scope), "axis": known.axis, **arrays, "source": f"A{known.source}"}

    def applied(self, number: int, applied: Applied) -> dict[str, Any]:
        ids = {layer.node: key for key, layer in self.layers.items()}
        layers = {
            ids[node]: {key: self.arrays.add(f"H{number}.{ids[node]}.{key}", array) for key, array in arrays.items()}
            for node, arrays in applied.layers.items()
            if node in ids
        }
        return {"pass": applied.name, "layers": layers}

    def factors(self) -> dict[str, tuple[str, Array]]:
        """By name of the weight of the source, what became of it and by which factor."""
        found: dict[str, tuple[str, Array]] = {}
        for layer in self.layers.values():
            if layer.factor is not None:
                found.setdefault(layer.weight_name, (self.protos[layer.node].input[layer.weight_index], layer.factor))
        return found


def _alive(module: Module, wanted: set[int]) -> set[int]:
    """Those of the `wanted` origins that some node of the module still comes from."""
    if not wanted:
        return set()
    seen: set[int] = set()
    return wanted.intersection(origin for node in module.walk() for origin in flatten_origins(node.origins, seen))


def _scope(scope: Scope) -> list[dict[str, str]]:
    return [{"function": b} if a == "function" else {"node": a, "attribute": b} for a, b in scope]
