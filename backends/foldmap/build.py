"""From what the passes left behind to a fold map."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...codec.protos import ModelProto, NodeProto
from ...codec.tensors import OnnxTensor
from ...codec.traversal import value_names
from ...ir.graph import Graph, Node, Value, flatten_origins
from ...ir.module import Module
from ...ir.provenance import Refusal
from ...ir.tensor import Array, Tensor
from ...passes.affine.fold_records import FoldedAffine, Layer, LayerEdits, Scope, SourceAffine, fold_records
from ...passes.affine.source_affines import AFFINES, collect_sources, known_statistics, scopes
from ...support.record import record
from .digests import tensor_digest
from .document import FORMAT, VERSION, FoldMap, write_document
from .lines import Lines, encoded, quoted
from .npz import NpzWriter
from .readings import Readings
from .restore import INLINE, Payloads, identity, way_back

NOT_ATTEMPTED = Refusal("not_attempted", "no pass that could fold it was run")


SOURCE = (
    '{"id": "%s", "kind": "%s", "scope": %s, "node": {"name": %s, "op_type": "%s", "index": %d}, '
    '"input": %s, "output": %s, "axis": %s, "channels": %s, "epsilon": %s, "params": {%s}, '
    '"status": "%s", "reason": %s, "detail": %s, "notes": %s, "layers": %s}'
)
LAYER = (
    '{"id": "%s", "scope": %s, "node": {"name": %s, "op_type": "%s", "original_name": %s}, '
    '"weight": {"name": %s, "original_name": %s, "out_axis": %d, "group": %d, "digest": %s}, '
    '"bias": %s, "input": %s, "output": {"name": %s, "original_names": %s}, "remainder": %s, "folds": [%s]}'
)
BIAS = '{"name": %s, "original_name": %s, "created": %s, "digest": %s}'
REMAINDER = '{"op_type": "Add", "output": %s}'
FOLD = '{"source": "A%d", "direction": "%s", "axis": %s, "crossed": %s, "scale": %s, "shift": %s}'
STATISTIC = '{"tensor": %s, "scope": %s, "axis": %s, "mean": %s, "std": %s, "gamma": %s, "source": "A%d"}'
"""The entries of a fold map as JSON. There are several for every layer, and an encoder of objects takes its time."""


@record
class Status:
    """What became of one affine: the fields of that name in the fold map."""

    status: str
    reason: str | None = None
    detail: str = ""
    notes: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()


def numbered_layers(module: Module, protos: Mapping[Node, NodeProto]) -> dict[str, Layer]:
    """The layers of the provenance that were emitted, as the keys of `protos` say, by their ids in the fold map."""
    emitted = (node for node in module.walk() if node in fold_records(module).layers and node in protos)
    return {f"L{i}": fold_records(module).layers[node] for i, node in enumerate(emitted)}


def statuses(module: Module, layers: Mapping[str, Layer]) -> dict[int, Status]:
    """What became of every affine of the source, by origin. O(nodes)."""
    collect_sources(module)
    provenance, records = module.provenance, fold_records(module)
    where: dict[int, list[str]] = {}
    for number, layer in layers.items():
        for fold in layer.folds:
            where.setdefault(fold.origin, []).append(number)
    merged = provenance.merged_origins()
    sources = records.sources or {}
    alive, others = _alive(module) if not where.keys() >= sources.keys() else (set(), set())
    replaced = provenance.replaced_origins() if others else {}
    found: dict[int, Status] = {}
    for origin in sources:
        refusal = provenance.refusals.get(origin, NOT_ATTEMPTED)
        if origin in where:
            whole = origin not in records.partial
            detail = "" if whole else "its scale or its shift stays as an operator"
            found[origin] = Status("folded" if whole else "partial", detail=detail, layers=tuple(where[origin]))
        elif origin in alive:
            found[origin] = Status("kept", refusal.code, refusal.detail, refusal.notes)
        elif origin in merged or origin in others:
            rule = merged.get(origin) or replaced.get(origin, "a rewrite")
            found[origin] = Status("merged", detail=f"went into another operator by {rule}")
        else:
            found[origin] = Status("dead", detail="nothing reads its result")
    return found


def build_fold_map(
    module: Module,
    model: ModelProto,
    protos: Mapping[Node, NodeProto],
    name_of: Callable[[Value], str],
    readings: Readings,
) -> FoldMap:
    """The fold map of `module`, which was emitted as `model` with `protos` for the layers of its provenance, its values
    under the names that `name_of` says; `readings` is what is known of large tensors. O(nodes + bytes).

    Raises ModelError where a file cannot be read.
    """
    made = MapBuilder(module, model, protos, name_of, readings)
    data = {key: found.parsed() if isinstance(found, Lines) else found for key, found in made.fields()}
    return FoldMap(data, made.arrays)


class MapBuilder:
    """Makes a fold map, from what `build_fold_map` makes one of."""

    def __init__(
        self,
        module: Module,
        model: ModelProto,
        protos: Mapping[Node, NodeProto],
        name_of: Callable[[Value], str],
        readings: Readings,
    ) -> None:
        self.module = module
        self.model = model
        self.protos = protos
        self.name_of = name_of
        self.readings = readings
        self.arrays = readings.arrays
        self.layers = numbered_layers(module, protos)
        self.scope_of: dict[Graph | None, Scope] = dict(scopes(module))
        self.after = Payloads(model, module.base_dir, readings)
        self.kept: dict[str, str] = {}
        self.before: Payloads | None = None
        self.digests: dict[int, str] = {}
        """Of the tensors of the source that go out of its skeleton, by `id` of their messages."""
        if isinstance(module.source, ModelProto):
            self.before = Payloads(module.source, module.base_dir, readings)
            tensors = zip(self.before.tensors, self.before.digests, self.before.out, strict=True)
            self.digests = {id(tensor): digest for tensor, digest, is_out in tensors if is_out}

    def write(self, path: Path, npz: NpzWriter | None) -> None:
        """Write the map as `FoldMap.write` does, of which no more than an entry is in memory at a time."""
        write_document(path, self.fields(), self.arrays, npz)

    def fields(self) -> Iterator[tuple[str, Any]]:
        """The fields of the document, each to be gone through before the next; their arrays go to `arrays`."""
        from ...support.version import __version__

        module = self.module
        became = statuses(module, self.layers)
        sources = fold_records(module).sources or {}
        source, before = module.source, self.before
        yield "format", FORMAT
        yield "version", VERSION
        yield "producer", {"name": "irc", "version": __version__, "passes": list(module.provenance.passes)}
        yield "source_model", None if before is None else identity(source, before)
        yield "folded_model", identity(self.model, self.after)
        yield "sources", Lines(self.source(source, became[origin]) for origin, source in sources.items())
        yield "layers", Lines(self.layer(layer, number) for number, layer in self.layers.items())
        yield "statistics", Lines(self.statistics())
        yield "history", [self.applied(i, applied) for i, applied in enumerate(fold_records(module).history)]
        if before is None:
            yield "restore", None
        else:
            yield "restore", way_back(source, before, self.after, self.factors(), self.kept, self.readings)

    def source(self, source: SourceAffine, became: Status) -> str:
        """The entry of an affine of the source, as JSON."""
        number = f"A{source.origin}"
        params = ", ".join(
            [
                f'"{key}": {{"name": {quoted(param.name)}, "value": {self.param(param.tensor, f"{number}.{key}")}}}'
                for key, param in source.params.items()
            ]
        )
        return SOURCE % (
            number,
            source.kind,
            _scope(source.scope),
            quoted(source.name),
            source.op_type,
            source.index,
            quoted(source.input),
            quoted(source.output),
            _number(source.axis),
            _number(source.channels),
            encoded(source.epsilon),
            params,
            became.status,
            "null" if became.reason is None else f'"{became.reason}"',
            quoted(became.detail),
            encoded(became.notes) if became.notes else "[]",
            _quoted_list(became.layers),
        )

    def param(self, tensor: Tensor | None, ref: str) -> str:
        """The entry of a parameter, which is also what the source is restored from."""
        if tensor is None:
            return "null"
        entry = self.arrays.add_text(ref, tensor.numpy())
        if isinstance(tensor, OnnxTensor):
            digest = self.digests.get(id(tensor.proto))  # of one message there is one object
            if digest is None and tensor.nbytes > INLINE:  # another may have the same elements
                digest = tensor_digest(tensor.proto, tensor.base_dir)
            if digest is not None:
                self.kept[digest] = entry
        return entry

    def layer(self, layer: Layer, number: str) -> str:
        """The entry of a layer that absorbed something, as JSON."""
        proto, after = self.protos[layer.node], self.after
        group = next((attribute.i for attribute in proto.attribute if attribute.name == "group"), 1)
        names = list(proto.input)
        weight, data = names[layer.weight_index], names[1 - layer.weight_index]
        bias = names[2] if len(names) > 2 and names[2] else None
        remainder = layer.shift_add.node if layer.shift_add is not None else None
        added = None
        if remainder is not None and remainder.graph is not None and remainder is not layer.node:
            added = quoted(self.name_of(remainder.output))
        return LAYER % (
            number,
            _scope(self.scope_of.get(layer.node.graph, ())),
            quoted(proto.name),
            proto.op_type,
            quoted(layer.original_name),
            quoted(weight),
            quoted(layer.weight_name),
            layer.weight_axis,
            group,
            _quoted_or_null(after.digest_of(weight)),
            "null"
            if bias is None
            else BIAS
            % (
                quoted(bias),
                _quoted_or_null(layer.bias_name),
                "true" if layer.bias_name is None else "false",
                _quoted_or_null(after.digest_of(bias)),
            ),
            quoted(data),
            added or quoted(proto.output[0]),
            _quoted_list(layer.output_names),
            "null" if added is None else REMAINDER % added,
            ", ".join([self.fold(fold, f"{number}.{i}") for i, fold in enumerate(layer.folds)]),
        )

    def fold(self, fold: FoldedAffine, ref: str) -> str:
        """The entry of an affine's share in a layer, as JSON."""
        return FOLD % (
            fold.origin,
            fold.direction,
            _number(fold.axis),
            _quoted_list(fold.crossed),
            self.arrays.add_text(f"{ref}.scale", fold.scale),
            self.arrays.add_text(f"{ref}.shift", fold.shift),
        )

    def statistics(self) -> Iterator[str]:
        """What is known of the values that went out, in the model's order, as JSON."""
        emitted = value_names(self.model)
        number = 0
        for value, known in known_statistics(self.module).items():
            name = self.name_of(value)
            if name not in emitted:
                continue
            arrays = [
                self.arrays.add_text(f"S{number}.{key}", np.asarray(array, np.float64))
                for key, array in (("mean", known.mean), ("std", known.std), ("gamma", known.gamma))
            ]
            scope = _scope(self.scope_of.get(value.graph, ()))
            yield STATISTIC % (quoted(name), scope, _number(known.axis), *arrays, known.source)
            number += 1

    def applied(self, number: int, applied: LayerEdits) -> dict[str, Any]:
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


def _alive(module: Module) -> tuple[set[int], set[int]]:
    """Return the origins of the operators that may be affines, and of the others but constants. O(nodes)."""
    alive: set[int] = set()
    others: set[int] = set()
    for node in module.walk():
        if node.op != "constant":
            (alive if node.op in AFFINES else others).update(flatten_origins(node.origins))
    return alive, others


def _scope(scope: Scope) -> str:
    return encoded([{"function": b} if a == "function" else {"node": a, "attribute": b} for a, b in scope])


def _number(number: int | None) -> str:
    return "null" if number is None else str(number)


def _quoted_or_null(text: str | None) -> str:
    return "null" if text is None else quoted(text)


def _quoted_list(texts: Iterable[str]) -> str:
    return f"[{', '.join(map(quoted, texts))}]"
