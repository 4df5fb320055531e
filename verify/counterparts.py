"""Which tensor of a second model stands for which of the first."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx import ModelProto, NodeProto, TensorProto

from ..backends.foldmap import FoldMap
from ..backends.foldmap.digests import tensor_digest
from ..ir.ops import DEFAULT_DOMAINS
from ..passes.foreign import RANDOM
from .graph_reads import reads
from .runner import tensors_of

NAME, MAP, STRUCTURE = "name", "map", "structure"

Key = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class Counterpart:
    """A tensor of the second model, and how it was found."""

    name: str
    by: str


def counterparts(
    first: ModelProto, base_dir: Path, second: ModelProto, other_dir: Path, fold_map: FoldMap | None = None
) -> dict[str, Counterpart]:
    """By name the tensors of the first model that the second has as well, in the first one's order: under the same
    name; as the fold map, which is that of the second, says; or as the result of the same operator, with the same
    attributes, on what are counterparts and equal constants, so that several may have one. O(nodes + bytes).

    Raises ModelError where a file cannot be read.
    """
    there = tensors_of(second)
    names = tensors_of(first)
    found = {name: Counterpart(name, NAME) for name in set(names).intersection(there)}
    for name, other in () if fold_map is None else _renamed(fold_map):
        if other in there:
            found.setdefault(name, Counterpart(other, MAP))
    if any(name not in found for name in names):
        free = {info.name for model in (first, second) for info in model.graph.input}
        found |= _by_structure(_Side(first, base_dir, free), _Side(second, other_dir, free), found)
    return {name: found[name] for name in names if name in found}


def _renamed(fold_map: FoldMap) -> Iterator[tuple[str, str]]:
    """The result of the last affine that was folded into a layer, where that is what the layer computes now, by its
    name in the source, and the layer's.
    """
    changed = {layer for applied in fold_map.data.get("history", ()) for layer in applied["layers"]}
    sources = {source["id"]: source for source in fold_map.sources}
    for layer in fold_map.layers:
        behind = [fold for fold in layer["folds"] if fold["direction"] == "backward"]
        if not behind or layer["scope"] or layer["id"] in changed or any(fold["crossed"] for fold in behind):
            continue
        source = sources[behind[-1]["source"]]
        if source["status"] == "folded" and source["layers"] == [layer["id"]] and not source["scope"]:
            yield source["output"], layer["output"]["name"]


class _Side:
    """One of the models: its nodes, and what its constants are. What is in `free` is an input of one of both."""

    def __init__(self, model: ModelProto, base_dir: Path, free: set[str]) -> None:
        self.nodes = model.graph.node
        self.names = tensors_of(model)
        self.opsets = {"" if e.domain in DEFAULT_DOMAINS else e.domain: e.version for e in model.opset_import}
        self.functions: dict[tuple[str, str], list[bytes]] = {}
        for function in model.functions:
            bodies = self.functions.setdefault((function.domain, function.name), [])
            bodies.append(function.SerializeToString(deterministic=True))
        self.constants: dict[str, Key] = {name: ("input", name) for name in free}
        for tensor in model.graph.initializer:
            if tensor.name not in free:
                self.constants[tensor.name] = _key(tensor, base_dir)
        for node in self.nodes:
            if node.op_type == "Constant" and len(node.attribute) == 1 and node.attribute[0].HasField("t"):
                self.constants[node.output[0]] = _key(node.attribute[0].t, base_dir)

    def numbers(self, numbers: dict[Key, int], known: Mapping[str, int]) -> dict[str, int]:
        """By name a number for each value, which is the same where `numbers` has the same computation; `known` are
        those that are given.
        """
        found: dict[str, int] = {}

        def number(key: Key) -> int:
            return numbers.setdefault(key, len(numbers))

        for name, key in self.constants.items():
            found[name] = number(key)
        for place, node in enumerate(self.nodes):
            inputs = reads(node)
            key = (*self._description(node, place), *(found.get(name, name) for name in inputs))
            for i, name in enumerate(node.output):
                if name in known:
                    found[name] = known[name]
                elif node.op_type == "Identity" and node.domain in DEFAULT_DOMAINS and inputs[0] in found:
                    found[name] = found[inputs[0]]
                else:
                    found.setdefault(name, number((i, *key)))
        return found

    def _description(self, node: NodeProto, place: int) -> Key:
        """What a node does, its inputs aside."""
        if node.domain in DEFAULT_DOMAINS and node.op_type in RANDOM:
            return (id(self), place)
        domain = "" if node.domain in DEFAULT_DOMAINS else node.domain
        attributes = sorted((entry.name, _bytes(entry)) for entry in node.attribute)
        functions = self.functions.get((node.domain, node.op_type), ())
        return (domain, node.op_type, self.opsets.get(domain), *attributes, *functions, len(node.input))


def _by_structure(first: _Side, second: _Side, found: Mapping[str, Counterpart]) -> dict[str, Counterpart]:
    """Counterparts of tensors that have none yet: each its own while there are enough."""
    numbers: dict[Key, int] = {}
    there = second.numbers(numbers, {})
    known = {name: there[other.name] for name, other in found.items() if other.name in there}
    here = first.numbers(numbers, known)
    named: dict[int, list[str]] = {}
    for name in second.names:
        named.setdefault(there.get(name, -1), []).append(name)
    taken = {other.name for other in found.values()}
    left = {number: deque(name for name in names if name not in taken) for number, names in named.items()}
    made: dict[str, Counterpart] = {}
    for name in first.names:
        number = here.get(name)
        if name not in found and number is not None and number in named:
            other = left[number].popleft() if left[number] else named[number][0]
            made[name] = Counterpart(other, STRUCTURE)
    return made


def _key(tensor: TensorProto, base_dir: Path) -> Key:
    return ("constant", tensor_digest(tensor, base_dir))


def _bytes(attribute: Any) -> bytes:
    found: bytes = attribute.SerializeToString(deterministic=True)
    return found
