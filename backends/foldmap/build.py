"""Build a fold map from the provenance that the passes left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from ...frontends.onnx.codec.module_paths import module_path
from ...frontends.onnx.codec.protos import ModelProto, NodeProto
from ...frontends.onnx.codec.tensors import OnnxTensor
from ...frontends.onnx.codec.traversal import value_names
from ...ir.graph import Graph, Node, Value, flatten_origins
from ...ir.module import Module
from ...ir.ops.inference import integer_of
from ...ir.provenance import MERGED, Refusal
from ...ir.record import Record
from ...ir.tensor import Array, Tensor
from ...passes.affine.records.fold_records import (
    Branch,
    FoldedAffine,
    Layer,
    LayerEdits,
    QuantizedParts,
    Scope,
    SourceAffine,
    fold_records,
)
from ...passes.affine.records.source_affines import AFFINES, collect_sources, each_statistic, scopes
from ...passes.affine.records.statistics import Statistic, statistic_refs, statistics_of_terms
from ...support.version import __version__
from .digests import tensor_digest
from .fold_map import FoldMap
from .npz import NpzWriter
from .observer import PayloadObserver
from .restore import KEPT_BYTES, TensorIndex, build_restore, describe_model
from .serialize import FORMAT, VERSION, WITH_BRANCHES, WITHOUT_BRANCHES, write_document

if TYPE_CHECKING:
    from .entries import (
        AffineKind,
        ArrayEntry,
        BiasEntry,
        BranchEntry,
        Document,
        EditName,
        ExponentEntry,
        FoldDirection,
        FoldEntry,
        HistoryEntry,
        LayerEntry,
        LayerId,
        LayerOperator,
        ParameterEntry,
        ParameterName,
        QuantizedEntry,
        ReasonCode,
        ScopeStep,
        SourceEntry,
        StatisticEntry,
        StatusName,
        StoredIntegersEntry,
        SumEntry,
    )

NOT_ATTEMPTED = Refusal("not_attempted", "no pass that could fold it was run")


class AffineStatus(Record):
    """The fate of one affine; the fields have the names of the fold map."""

    status: StatusName
    reason: str | None = None
    detail: str = ""
    notes: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()


def number_layers(module: Module, protos: Mapping[Node, NodeProto]) -> dict[LayerId, Layer]:
    """Return the layers that were emitted by id in the fold map, in the module's order.

    These are the keys of `protos`.
    """
    layers = fold_records(module).layers
    emitted = (node for node in module.walked() if node in layers and node in protos)
    return {f"L{i}": layers[node] for i, node in enumerate(emitted)}


def affine_statuses(module: Module, layers: Mapping[LayerId, Layer]) -> dict[int, AffineStatus]:
    """Return the status of every affine of the source, by origin. O(nodes)."""
    collect_sources(module)
    provenance, records = module.provenance, fold_records(module)
    where: dict[int, list[str]] = {}
    for number, layer in layers.items():
        for fold in layer.all_folds:
            where.setdefault(fold.origin, []).append(number)
    sources = records.sources or {}
    all_folded = where.keys() >= sources.keys()
    merged = {} if all_folded else provenance.merged_origins()
    alive, others = (set(), set()) if all_folded else _alive(module)
    replaced = provenance.replaced_origins() if others else {}
    found: dict[int, AffineStatus] = {}
    for origin in sources:
        refusal = provenance.refusals.get(origin, NOT_ATTEMPTED)
        if origin in where:
            whole = origin not in records.partial
            detail = "" if whole else "its scale or its shift stays as an operator"
            found[origin] = AffineStatus(
                "folded" if whole else "partial", detail=detail, layers=tuple(where[origin])
            )
        elif origin in alive:
            found[origin] = AffineStatus("kept", refusal.code, refusal.detail, refusal.notes)
        elif origin in merged or origin in others:
            detail = merged.get(origin) or replaced.get(origin, f"{MERGED} a rewrite")
            found[origin] = AffineStatus("merged", detail=detail)
        else:
            found[origin] = AffineStatus("dead", detail="nothing reads its result")
    return found


class MapBuilder:
    """The entries of a fold map, made one at a time.

    So a map that is only written never stands in memory.
    """

    def __init__(
        self,
        module: Module,
        model: ModelProto,
        protos: Mapping[Node, NodeProto],
        name_of: Callable[[Value], str],
        observer: PayloadObserver,
    ) -> None:
        """Prepare the map of `module`, which was emitted as `model`.

        O(bytes that `observer` has not seen). `protos` has the emitted node of each layer,
        `name_of` returns the emitted name of a value. Raises ModelError if a file of tensors cannot
        be read.
        """
        self.module = module
        self.model = model
        self.protos = protos
        self.name_of = name_of
        self.observer = observer
        self.arrays = observer.arrays
        self.layers = number_layers(module, protos)
        self.scope_of: dict[Graph | None, list[ScopeStep]] = {
            graph: _steps(scope) for graph, scope in scopes(module)
        }
        self.after = TensorIndex(model, module.base_dir, observer)
        self.paths: dict[int, str | None] = {}
        """Module paths of the affines of the source that have been written, by origin."""
        self.stored: dict[str, ArrayEntry] = {}
        """Entries of arrays with the elements of a tensor of the source, by the tensor's digest."""
        self.before: TensorIndex | None = None
        self.digests: dict[int, str] = {}
        """Digests of the tensors that are extracted from the source, by `id` of their messages."""
        if isinstance(module.source, ModelProto):
            self.before = TensorIndex(module.source, module.base_dir, observer)
            tensors = zip(
                self.before.tensors, self.before.digests, self.before.is_extracted, strict=True
            )
            self.digests = {
                id(tensor): digest for tensor, digest, is_extracted in tensors if is_extracted
            }

    def build(self) -> FoldMap:
        """Return the fold map. O(nodes)."""
        data = {
            key: list(value) if isinstance(value, Iterator) else value
            for key, value in self.fields()
        }
        return FoldMap(cast("Document", data), self.arrays)

    def write(self, path: Path, npz: NpzWriter | None) -> None:
        """Write the map like `FoldMap.save`, with no more than one entry in memory at a time."""
        write_document(path, self.fields(), self.arrays, npz)

    def fields(self) -> Iterator[tuple[str, object]]:
        """Yield the fields of the document.

        Each list is an iterator, to be exhausted before the next field. The order of fields and
        entries is the order of arrays in the store.
        """
        module = self.module
        statuses = affine_statuses(module, self.layers)
        records = fold_records(module)
        sources = records.sources or {}
        source, before = module.source, self.before
        yield "format", FORMAT
        exponents = self.exponent_entries()
        version = WITHOUT_BRANCHES
        if exponents:
            version = VERSION
        elif any(layer.branches for layer in self.layers.values()):
            version = WITH_BRANCHES
        yield "version", version
        yield (
            "producer",
            {"name": "irc", "version": __version__, "passes": list(module.provenance.passes)},
        )
        yield "source_model", None if before is None else describe_model(source, before)
        yield "folded_model", describe_model(self.model, self.after)
        yield (
            "sources",
            (self.source_entry(source, statuses[origin]) for origin, source in sources.items()),
        )
        yield "layers", (self.layer_entry(layer, number) for number, layer in self.layers.items())
        yield "statistics", self.statistic_entries()
        yield "history", [self.history_entry(i, edits) for i, edits in enumerate(records.history)]
        if exponents:
            yield "exponents", exponents
        restore = None
        if before is not None and records.keeps_source:
            restore = build_restore(
                source, before, self.after, self.weight_factors(), self.stored, self.observer
            )
        yield "restore", restore

    def source_entry(self, source: SourceAffine, status: AffineStatus) -> SourceEntry:
        """Return the entry of an affine of the source."""
        number = f"A{source.origin}"
        params: dict[ParameterName, ParameterEntry] = {
            key: {"name": param.name, "value": self.parameter(param.tensor, f"{number}.{key}")}  # type: ignore[misc]
            for key, param in source.params.items()  # whose keys are the names of ParameterName
        }
        return {
            "id": number,
            "kind": cast("AffineKind", source.kind),
            "scope": _steps(source.scope) if source.scope else [],
            "module": self.module_of(source),
            "node": {"name": source.name, "op_type": source.op_type, "index": source.index},
            "input": source.input,
            "output": source.output,
            "axis": source.axis,
            "channels": source.channels,
            "epsilon": source.epsilon,
            "params": params,
            "status": status.status,
            "reason": cast("ReasonCode | None", status.reason),
            "detail": status.detail,
            "notes": list(status.notes),
            "layers": list(status.layers),
        }

    def module_of(self, source: SourceAffine) -> str | None:
        """Return the module path of an affine, and keep it for the statistics."""
        path = self.paths[source.origin] = _path(source.imported)
        return path

    def parameter(self, tensor: Tensor | None, ref: str) -> ArrayEntry | None:
        """Store the elements of a parameter, and note that the source can be restored from them."""
        if tensor is None:
            return None
        entry = self.arrays.add(ref, tensor.numpy())
        if isinstance(tensor, OnnxTensor):
            digest = self.digests.get(id(tensor.proto))
            if digest is None and self.digests and tensor.nbytes > KEPT_BYTES:
                # an extracted tensor of the source may have the same elements
                digest = tensor_digest(tensor.proto, tensor.base_dir)
            if digest is not None:
                self.stored[digest] = entry
        return entry

    def layer_entry(self, layer: Layer, number: LayerId) -> LayerEntry:
        """Return the entry of a layer into which affines were folded."""
        proto, after = self.protos[layer.node], self.after
        names = proto.input[:]
        weight, data = names[layer.weight_index], names[1 - layer.weight_index]
        added = None if layer.shift_add is None else layer.shift_add.node
        remainder = None
        if added is not None and added.graph is not None and added is not layer.node:
            remainder = self.name_of(added.output)
        group = layer.node.attrs.get("group", 1)
        assert isinstance(group, int), layer.node.op
        entry: LayerEntry = {
            "id": number,
            "scope": self.scope_of.get(layer.node.graph, []),
            "module": _path(layer.imported),
            "node": {
                "name": proto.name,
                "op_type": cast("LayerOperator", proto.op_type),
                "original_name": layer.original_name,
            },
            "weight": {
                "name": weight,
                "original_name": layer.weight_name,
                "out_axis": layer.weight_axis,
                "group": group,
                "digest": after.digest_of(weight),
            },
            "bias": self._bias(layer, names[2]) if len(names) > 2 and names[2] else None,
            "input": data,
            "output": {
                "name": remainder or proto.output[0],
                "original_names": list(layer.output_names),
            },
            "remainder": None if remainder is None else {"op_type": "Add", "output": remainder},
            "quantized": self._quantized(layer.quantized, integer_of(layer.node, "group", 1)),
            "folds": [self.fold_entry(fold, f"{number}.{i}") for i, fold in enumerate(layer.folds)],
        }
        if layer.branches:
            known = statistics_of_terms(self.module, layer.branches)
            pairs = zip(layer.branches, known, strict=True)
            entry["branches"] = [
                self.branch_entry(branch, statistic, f"{number}.B{i}")
                for i, (branch, statistic) in enumerate(pairs)
            ]
            result = layer.node.output
            if remainder is not None and layer.shift_add is not None:
                result = layer.shift_add
            entry["sum"] = self.sum_entry(layer, result, known, number)
        return entry

    def branch_entry(self, branch: Branch, known: Statistic | None, ref: str) -> BranchEntry:
        """Return the entry of a branch that became a part of a layer."""
        return {
            "node": {"name": branch.name, "op_type": branch.op_type},
            "module": _path(branch.imported),
            "weight": branch.weight or None,
            "bias": branch.bias or None,
            "output": branch.output,
            "folds": [self.fold_entry(fold, f"{ref}.{i}") for i, fold in enumerate(branch.folds)],
            "mean": None if known is None else self.arrays.add(f"{ref}.mean", known.mean),
            "std": None if known is None else self.arrays.add(f"{ref}.std", known.std),
        }

    def sum_entry(
        self, layer: Layer, result: Value, known: Sequence[Statistic | None], ref: str
    ) -> SumEntry | None:
        """Return the statistic of a sum of branches: its mean, and a bound of its deviation."""
        every = [each for each in known if each is not None]
        if not layer.sum_name or len(every) < len(known):
            return None
        entry: SumEntry = {
            "output": layer.sum_name,
            "origin": "bound",
            "mean": self.arrays.add(f"{ref}.mean", np.sum([each.mean for each in every], axis=0)),
            "bound": self.arrays.add(f"{ref}.bound", np.sum([each.std for each in every], axis=0)),
        }
        reference = statistic_refs(self.module).get(result)
        if reference is not None and reference.is_bound:
            own = reference.statistic()
            if own is not None:
                entry["result"] = {
                    "axis": own.axis,
                    "mean": self.arrays.add(f"{ref}.result.mean", own.mean),
                    "bound": self.arrays.add(f"{ref}.result.bound", own.std),
                    "source": f"A{own.source}",
                }
        return entry

    def _bias(self, layer: Layer, name: str) -> BiasEntry:
        return {
            "name": name,
            "original_name": layer.bias_name,
            "created": layer.bias_name is None,
            "digest": self.after.digest_of(name),
        }

    def _quantized(self, parts: QuantizedParts | None, group: int) -> QuantizedEntry | None:
        if parts is None:
            return None
        reflected, zeroed = parts.channels(group)
        return {
            "weight": self._stored(parts.weight),
            "bias": self._stored(parts.bias),
            "reflected": reflected,
            "zeroed": zeroed,
            "bias_error": parts.bias_error,
        }

    def _stored(self, node: Node | None) -> StoredIntegersEntry | None:
        if node is None or node.graph is None:
            return None
        zero_point = node["zero_point"]
        return {
            "integers": self.name_of(node["data"]),
            "scale": self.name_of(node["scale"]),
            "zero_point": None if zero_point is None else self.name_of(zero_point),
        }

    def fold_entry(self, fold: FoldedAffine, ref: str) -> FoldEntry:
        """Return the entry of an affine's share in a layer."""
        return {
            "source": f"A{fold.origin}",
            "direction": cast("FoldDirection", fold.direction),
            "axis": fold.axis,
            "crossed": list(fold.crossed),
            "scale": self.arrays.add(f"{ref}.scale", fold.scale),
            "shift": self.arrays.add(f"{ref}.shift", fold.shift),
        }

    def statistic_entries(self) -> Iterator[StatisticEntry]:
        """Yield the statistics of values that were emitted, in the model's order."""
        emitted = value_names(self.model)
        number = 0
        for value, known in each_statistic(self.module):
            name = self.name_of(value)
            if name not in emitted:
                continue
            yield {
                "tensor": name,
                "scope": self.scope_of.get(value.graph, []),
                "module": self.paths.get(known.source),
                "axis": known.axis,
                "mean": self.arrays.add(f"S{number}.mean", np.asarray(known.mean, np.float64)),
                "std": self.arrays.add(f"S{number}.std", np.asarray(known.std, np.float64)),
                "gamma": self.arrays.add(f"S{number}.gamma", np.asarray(known.gamma, np.float64)),
                "source": f"A{known.source}",
            }
            number += 1

    def exponent_entries(self) -> list[ExponentEntry]:
        """Return the exponents of scaled values of the main graph that were emitted, by name."""
        emitted, graph = value_names(self.model), self.module.graph
        found = {
            self.name_of(value): exponent
            for value, exponent in fold_records(self.module).exponents.items()
            if value.graph is graph and exponent
        }
        return [
            {"tensor": name, "exponent": found[name]} for name in sorted(found.keys() & emitted)
        ]

    def history_entry(self, number: int, edits: LayerEdits) -> HistoryEntry:
        """Return the entry of a pass that changed weights without folding an affine."""
        ids = {layer.node: key for key, layer in self.layers.items()}
        layers = {
            ids[node]: {
                cast("EditName", key): self.arrays.add(f"H{number}.{ids[node]}.{key}", array)
                for key, array in arrays.items()
            }
            for node, arrays in edits.layers.items()
            if node in ids
        }
        return {"pass": edits.name, "layers": layers}

    def weight_factors(self) -> dict[str, tuple[str, Array]]:
        """Return the weight made from each weight of the source, and the factor between them.

        The keys are names of the source.
        """
        found: dict[str, tuple[str, Array]] = {}
        for layer in self.layers.values():
            if layer.factor is not None:
                found.setdefault(
                    layer.weight_name,
                    (self.protos[layer.node].input[layer.weight_index], layer.factor),
                )
        return found


def _alive(module: Module) -> tuple[set[int], set[int]]:
    """Return the origins of the operators that may be affines, and of the others but constants.

    O(nodes).
    """
    alive: set[int] = set()
    others: set[int] = set()
    foreign = module.provenance.foreign
    for node in module.walked():
        if node.op != "constant":
            (alive if node.op in AFFINES and node not in foreign else others).update(
                flatten_origins(node.origins)
            )
    return alive, others


def _path(imported: object) -> str | None:
    return module_path(imported) if isinstance(imported, NodeProto) else None


def _steps(scope: Scope) -> list[ScopeStep]:
    return [{"function": b} if a == "function" else {"node": a, "attribute": b} for a, b in scope]
