"""Correspondence between the tensors of two models."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto, NodeProto

from ..backends.foldmap import FoldMap
from ..backends.foldmap.digests import tensor_digest
from ..ir.ops import DEFAULT_DOMAINS
from ..passes.foreign import RANDOM
from .onnx_graph import constant_tensors, reads, tensor_names

NAME, MAP, STRUCTURE = "name", "map", "structure"

ValueKey = tuple[Hashable, ...]
"""Description of a computation; equal for values that are computed alike."""


@dataclass(frozen=True, slots=True)
class Counterpart:
    """The tensor of the second model that corresponds to one of the first, and how it was found."""

    name: str
    by: str


def find_counterparts(
    first: ModelProto, base_dir: Path, second: ModelProto, other_dir: Path, fold_map: FoldMap | None = None
) -> dict[str, Counterpart]:
    """Return the counterparts in the second model of tensors of the first, by name, in the first one's order.

    A counterpart has the same name, or `fold_map`, the one of the second model, says so, or the same operator with the
    same attributes computes it from counterparts and equal constants. Several tensors may then have the same.
    O(nodes + bytes).

    Raises ModelError if a file cannot be read.
    """
    there = tensor_names(second)
    names = tensor_names(first)
    found = {name: Counterpart(name, NAME) for name in set(names).intersection(there)}
    for name, other in () if fold_map is None else _renamed(fold_map):
        if other in there:
            found.setdefault(name, Counterpart(other, MAP))
    if any(name not in found for name in names):
        inputs = {info.name for model in (first, second) for info in model.graph.input}
        numberings = (_ValueNumbering(first, base_dir, inputs), _ValueNumbering(second, other_dir, inputs))
        found |= _match_structure(*numberings, found)
    return {name: found[name] for name in names if name in found}


def _renamed(fold_map: FoldMap) -> Iterator[tuple[str, str]]:
    """Yield the names, before and after, of results of layers into which operators after them were folded.

    The layer's result is then that of the last operator, unless another one stood between, or a later pass changed
    the layer.
    """
    changed = {layer for applied in fold_map.data.get("history", ()) for layer in applied["layers"]}
    sources = {source["id"]: source for source in fold_map.sources}
    for layer in fold_map.layers:
        folds = [fold for fold in layer["folds"] if fold["direction"] == "backward"]
        if not folds or layer["scope"] or layer["id"] in changed or any(fold["crossed"] for fold in folds):
            continue
        source = sources[folds[-1]["source"]]
        if source["status"] == "folded" and source["layers"] == [layer["id"]] and not source["scope"]:
            yield source["output"], layer["output"]["name"]


class _ValueNumbering:
    """Value numbering of a model: values get the same number if the same operators compute them from equal constants.

    `inputs` are names that are an input of either model: these are no constants.
    """

    def __init__(self, model: ModelProto, base_dir: Path, inputs: set[str]) -> None:
        self.nodes = model.graph.node
        self.names = tensor_names(model)
        self.opsets = {"" if e.domain in DEFAULT_DOMAINS else e.domain: e.version for e in model.opset_import}
        self.functions: dict[tuple[str, str], list[bytes]] = {}
        for function in model.functions:
            definitions = self.functions.setdefault((function.domain, function.name), [])
            definitions.append(function.SerializeToString(deterministic=True))
        self.constants: dict[str, ValueKey] = {name: ("input", name) for name in inputs}
        for name, tensor in constant_tensors(model.graph).items():
            self.constants.setdefault(name, ("constant", tensor_digest(tensor, base_dir)))

    def number(self, numbers: dict[ValueKey, int], known: Mapping[str, int]) -> dict[str, int]:
        """Return the number of each value by its name.

        `numbers`, the numbers of computations in both models, is extended. `known` values have their numbers already.
        """
        found = {name: numbers.setdefault(key, len(numbers)) for name, key in self.constants.items()}
        for place, node in enumerate(self.nodes):
            inputs = reads(node)
            key = (*self._node_key(node, place), *(found.get(name, name) for name in inputs))
            for i, name in enumerate(node.output):
                if name in known:
                    found[name] = known[name]
                elif node.op_type == "Identity" and node.domain in DEFAULT_DOMAINS and inputs[0] in found:
                    found[name] = found[inputs[0]]
                else:
                    found.setdefault(name, numbers.setdefault((i, *key), len(numbers)))
        return found

    def _node_key(self, node: NodeProto, place: int) -> ValueKey:
        """Describe a node without its inputs. A random operator equals no other."""
        if node.domain in DEFAULT_DOMAINS and node.op_type in RANDOM:
            return (id(self), place)
        domain = "" if node.domain in DEFAULT_DOMAINS else node.domain
        attributes = sorted((entry.name, entry.SerializeToString(deterministic=True)) for entry in node.attribute)
        functions = self.functions.get((node.domain, node.op_type), ())
        return (domain, node.op_type, self.opsets.get(domain), *attributes, *functions, len(node.input))


def _match_structure(
    first: _ValueNumbering, second: _ValueNumbering, found: Mapping[str, Counterpart]
) -> dict[str, Counterpart]:
    """Return counterparts of tensors that have none yet: each another one while there are enough."""
    numbers: dict[ValueKey, int] = {}
    there = second.number(numbers, {})
    known = {name: there[other.name] for name, other in found.items() if other.name in there}
    here = first.number(numbers, known)
    by_number: dict[int, list[str]] = {}
    for name in second.names:
        by_number.setdefault(there.get(name, -1), []).append(name)
    taken = {other.name for other in found.values()}
    free = {number: deque(name for name in names if name not in taken) for number, names in by_number.items()}
    matched: dict[str, Counterpart] = {}
    for name in first.names:
        number = here.get(name)
        if name not in found and number is not None and number in by_number:
            other = free[number].popleft() if free[number] else by_number[number][0]
            matched[name] = Counterpart(other, STRUCTURE)
    return matched
