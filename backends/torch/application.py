"""A fold map applied to a torch module: folded weights and biases, Identity for BatchNorm.

Weights and biases are bit-equal to the folded model. A fold is applied as a whole or not at all.
Layers and affines that belong together (a BatchNormalization that went into two layers, layers that
were equalized together, calls of one module) form a group; a group with one step that has no place
in the module stays as it is, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ...frontends.onnx.codec.module_paths import module_path
from ...frontends.onnx.codec.protos import ModelProto
from ...ir.record import Record
from ...ir.tensor import Array, numpy_dtype
from ...ir.types import BF16
from ..foldmap.fold_map import FoldMap
from .elements import Elements, Unknown
from .source_graph import Misplaced, SourceGraph

if TYPE_CHECKING:
    from ..foldmap.entries import LayerEntry, ParameterName, SourceEntry

PARAMETERS: dict[ParameterName, str] = {
    "gamma": "weight",
    "beta": "bias",
    "mean": "running_mean",
    "var": "running_var",
}


class Applied(Record):
    """The result of `apply`, by module path.

    `layers` have new weights and biases, `norms` became Identity. `left` are the steps of the fold
    map that have no place in the module, each with its reason.
    """

    layers: list[str]
    norms: list[str]
    left: dict[str, str]


class NewLayer(Record):
    """A layer of the module with its weight and bias after all folds."""

    path: str
    module: Any
    weight: Array
    bias: Array | None


def apply(fold_map: FoldMap, module: Any, model: ModelProto | None = None) -> Applied:
    """Fold the affines of `fold_map` in `module`, in place, and return the changes.

    `module` is the module that was exported. `model` is the folded model of the map, for elements
    that cannot be computed from the map alone: results of CrossLayerEqualization,
    HighBiasAbsorption and BiasCorrection, and maps that were recovered. Raises FoldMapError if the
    map holds no source model, or belongs to another `model`.
    """
    return _Application(fold_map, module, model).run()


class _Application:
    def __init__(self, fold_map: FoldMap, module: Any, model: ModelProto | None) -> None:
        self.fold_map, self.module = fold_map, module
        self.source = SourceGraph.of(fold_map)
        self.elements = Elements(fold_map, model)
        self.modules: dict[str, Any] = dict(module.named_modules(remove_duplicate=False))
        self.groups = _Groups()
        self.reasons: dict[str, str] = {}
        self.made: dict[str, NewLayer] = {}

    def run(self) -> Applied:
        sources = [source for source in self.fold_map.sources if source["layers"]]
        self.connect(sources)
        for source in sources:
            self.attempt(source["id"], self.check_source, source)
        for layer in self.fold_map.layers:
            self.attempt(layer["id"], self.make_layer, layer)
        self.check_calls()
        failed: dict[str, str] = {}
        for key, reason in self.reasons.items():
            failed.setdefault(self.groups.root(key), reason)
        layers = {key: new for key, new in self.made.items() if self.groups.root(key) not in failed}
        for new in layers.values():
            _write(new)
        norms = [s for s in sources if self.groups.root(s["id"]) not in failed]
        for source in norms:
            self.replace(self.module_of(source))
        left: dict[str, str] = {}
        entries: list[SourceEntry | LayerEntry] = [*self.fold_map.layers, *sources]
        for entry in entries:
            root = self.groups.root(entry["id"])
            if root in failed:
                together = f"it belongs together with another: {failed[root]}"
                left[_label(entry)] = self.reasons.get(entry["id"], together)
        return Applied(
            list(dict.fromkeys(new.path for new in layers.values())),
            list(dict.fromkeys(source.get("module") or "" for source in norms)),
            left,
        )

    def attempt(self, key: str, check: Any, entry: Any) -> None:
        try:
            check(entry)
        except (Misplaced, Unknown) as reason:
            self.reasons[key] = str(reason)

    def connect(self, sources: Iterable[SourceEntry]) -> None:
        """Join the groups of affines and layers that must be applied together."""
        for source in sources:
            for layer in source["layers"]:
                self.groups.join(source["id"], layer)
        for edits in self.fold_map.data["history"]:
            first, *others = edits["layers"] or [""]
            for other in others:
                self.groups.join(first, other)
        seen: dict[int, str] = {}
        entries: list[SourceEntry | LayerEntry] = [*self.fold_map.layers]
        for entry in (*entries, *(source for source in sources if source["kind"] == "batch_norm")):
            found = self.modules.get(entry.get("module") or "")
            if found is not None and found is not self.module:
                self.groups.join(entry["id"], seen.setdefault(id(found), entry["id"]))

    def module_of(self, entry: SourceEntry | LayerEntry) -> Any:
        path = entry.get("module")
        if path is None:
            raise Misplaced("the fold map does not name its module")
        if path not in self.modules:
            raise Misplaced(f"the module has no {path!r}")
        if entry["scope"]:
            raise Misplaced("it is in a subgraph")
        return self.modules[path]

    def check_source(self, source: SourceEntry) -> None:
        """Raise Misplaced unless an affine is a BatchNorm module with the parameters of the map."""
        from torch.nn.modules.batchnorm import _BatchNorm

        if source["kind"] != "batch_norm":
            raise Misplaced(f"{source['node']['op_type']} is code of forward, not a module")
        found = self.module_of(source)
        if not isinstance(found, _BatchNorm) or found is self.module:
            raise Misplaced(
                f"{source.get('module')!r} is {type(found).__name__}, not a BatchNorm inside the"
                " module"
            )
        if source["status"] != "folded":
            raise Misplaced("its shift or its scale stays as an operator")
        for key, name in PARAMETERS.items():
            entry, tensor = source["params"][key]["value"], getattr(found, name, None)
            # a BatchNorm may lack the tensor of a parameter, as with affine=False
            is_same = tensor is None or entry is None
            if entry is not None and tensor is not None:
                is_same = np.array_equal(self.fold_map.arrays.get(entry), _numpy(tensor))
            if entry is None or not is_same:
                raise Misplaced("its parameters differ from the fold map's")

    def make_layer(self, layer: LayerEntry) -> None:
        """Compute weight and bias of a layer. Raises Misplaced or Unknown."""
        from torch import nn

        found = self.module_of(layer)
        if layer.get("branches"):
            raise Misplaced(
                "it is the sum of several modules, which forward adds: disable MergeBranches"
            )
        kinds = (
            nn.Conv1d,
            nn.Conv2d,
            nn.Conv3d,
            nn.ConvTranspose1d,
            nn.ConvTranspose2d,
            nn.ConvTranspose3d,
            nn.Linear,
        )
        if type(found) not in kinds:
            raise Misplaced(
                f"{layer['node']['op_type']} {layer.get('module')!r} is {type(found).__name__}"
            )
        self.check_parameters(layer, found)
        for fold in layer["folds"]:
            for crossed in fold["crossed"]:
                self.source.check_crossed(crossed, layer.get("module"))
            # a shift of the data is not zero in the padding
            is_shifted = self.fold_map.arrays.get(fold["shift"]).any()
            is_padded = any(np.atleast_1d(getattr(found, "padding", 0)) != 0)
            if fold["direction"] == "forward" and is_shifted and is_padded:
                raise Misplaced("the folded model pads explicitly, by the shift")
        self.source.check_history(self.fold_map.data["history"], layer["id"])
        weight = _numpy(found.weight)
        bias = None if found.bias is None else _numpy(found.bias)
        new = self.elements.of(layer, weight, bias, group=getattr(found, "groups", 1))
        self.made[layer["id"]] = NewLayer(layer.get("module") or "", found, *new)

    def check_parameters(self, layer: LayerEntry, found: Any) -> None:
        """Raise Misplaced unless weight and bias are parameters that no code of forward reads."""
        for name, entry in (("weight", layer["weight"]), ("bias", layer["bias"])):
            tensor = getattr(found, name)
            if tensor is None:
                continue
            if name not in found._parameters:
                detail = (
                    f"the {name} of {layer.get('module')!r} is computed in a hook (weight_norm,"
                    " spectral_norm, pruning)"
                )
                raise Misplaced(f"{detail}: make it permanent before the export")
            original = None if entry is None else entry["original_name"]
            readers = [] if original is None else self.source.readers_of(original)
            for reader in readers if len(readers) > 1 else ():
                owner = self.modules.get(module_path(reader) or "")
                if owner is None or not _owns(owner, tensor):
                    raise Misplaced(
                        f"{reader.op_type} {reader.name!r}, which is code of forward, reads its"
                        f" {name}, too"
                    )

    def check_calls(self) -> None:
        """Note modules whose calls disagree: each call of a layer or BatchNorm must be folded."""
        by_module: dict[int, list[tuple[str, NewLayer]]] = {}
        for key, new in self.made.items():
            by_module.setdefault(id(new.module), []).append((key, new))
        calls = self.source.calls({path: id(found) for path, found in self.modules.items()})
        for identity, found in by_module.items():
            first = found[0][1]
            alike = all(_are_alike(new, first) for _, new in found)
            if not alike or calls.get(identity, len(found)) != len(found):
                for key, _ in found:
                    self.reasons[key] = (
                        "the module is called more than once, and the calls have different"
                        " weights now"
                    )
        kept = {
            id(self.modules[path])
            for source in self.fold_map.sources
            if not source["layers"] and (path := source.get("module")) and path in self.modules
        }
        for source in self.fold_map.sources:
            if source["layers"] and id(self.modules.get(source.get("module") or "")) in kept:
                self.reasons.setdefault(
                    source["id"], "the module is called more than once, and one call keeps it"
                )

    def replace(self, norm: Any) -> None:
        """Put Identity wherever a BatchNorm stands."""
        from torch import nn

        for path, found in self.modules.items():
            if found is norm and path:
                parent, _, name = path.rpartition(".")
                self.modules[parent]._modules[name] = nn.Identity()


class _Groups:
    """Disjoint sets of ids."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}

    def root(self, key: str) -> str:
        while (parent := self._parent.get(key, key)) != key:
            self._parent[key] = self._parent.get(parent, parent)
            key = parent
        return key

    def join(self, first: str, second: str) -> None:
        self._parent[self.root(first)] = self.root(second)


def _label(entry: SourceEntry | LayerEntry) -> str:
    output = entry["output"]
    name = entry["node"]["name"] or (output if isinstance(output, str) else output["name"])
    return f"{entry['id']} {entry['node']['op_type']} {name!r}"


def _owns(module: Any, tensor: Any) -> bool:
    """Return whether a parameter of `module` has the elements of `tensor`."""
    owned = [each for each in module._parameters.values() if each is not None]
    return any(np.array_equal(_numpy(each), _numpy(tensor)) for each in owned)


def _are_alike(one: NewLayer, other: NewLayer) -> bool:
    if not np.array_equal(one.weight, other.weight):
        return False
    return np.array_equal(_or_empty(one.bias), _or_empty(other.bias))


def _write(new: NewLayer) -> None:
    import torch

    old = new.module.weight
    for name, array in (("weight", new.weight), ("bias", new.bias)):
        if array is not None:
            tensor = torch.from_numpy(
                np.array(array.view(np.uint16) if array.dtype.kind == "V" else array)
            )
            tensor = tensor.view(torch.bfloat16) if array.dtype.kind == "V" else tensor
            parameter = torch.nn.Parameter(tensor.to(old.device), requires_grad=old.requires_grad)
            setattr(new.module, name, parameter)


def _numpy(tensor: Any) -> Array:
    import torch

    if tensor.dtype == torch.bfloat16:
        return np.asarray(tensor.view(torch.uint16).numpy(force=True).view(numpy_dtype(BF16)))
    return np.asarray(tensor.numpy(force=True))


def _or_empty(array: Array | None) -> Array:
    return np.zeros(0) if array is None else array
