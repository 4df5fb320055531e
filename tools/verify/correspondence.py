"""Correspondence between the tensors of two models."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto, NodeProto

from ...backends.foldmap.digests import tensor_digest
from ...backends.foldmap.fold_map import FoldMap
from ...ir.ops import DEFAULT_DOMAINS
from ...passes.foreign import RANDOM
from .difference import TensorDifference
from .onnx_graph import constant_tensors, reads, tensor_names

NAME, MAP, STRUCTURE = "name", "map", "structure"
FADES = 8.0
"""How much a fault may fade, in shares of the rounding bounds, up to the next compared tensors."""

ValueKey = tuple[Hashable, ...]
"""Description of a computation; equal for values that are computed alike."""


@dataclass(frozen=True, slots=True)
class Counterpart:
    """The tensor of the second model that corresponds to one of the first, and how it was found."""

    name: str
    by: str
    is_certain: bool = True
    """Whether it holds the same value if the second model is right.

    A name alone does not tell: tools reuse names.
    """


def find_counterparts(
    first: ModelProto,
    base_dir: Path,
    second: ModelProto,
    other_dir: Path,
    fold_map: FoldMap | None = None,
) -> dict[str, Counterpart]:
    """Return the counterparts in the second model of the first's tensors, in its order.

    A counterpart has the same name, or `fold_map`, the one of the second model, says so, or the
    same operator with the same attributes computes it from counterparts and equal constants.
    Several tensors may then have the same. O(nodes + bytes).

    With a fold map, names come first: irc keeps a name only for the same value. Of another model
    they tell less. There a tensor computed alike from the inputs on comes before one of the same
    name, and names are uncertain, as is all that they lead to.

    Raises ModelError if a file cannot be read.
    """
    there = set(tensor_names(second))
    names = tensor_names(first)
    results = {info.name for info in first.graph.output}
    inputs = {info.name for model in (first, second) for info in model.graph.input}
    numberings = (
        _ValueNumbering(first, base_dir, inputs),
        _ValueNumbering(second, other_dir, inputs),
    )
    # Without a fold map only the names of results are certain.
    certain = names if fold_map else [name for name in names if name in results]
    found = {name: Counterpart(name, NAME) for name in certain if name in there}
    if fold_map is None:
        found |= _match_structure(*numberings, found, {})
        taken = {other.name for other in found.values()}
        for name in names:
            if name in there and name not in taken:
                found.setdefault(name, Counterpart(name, NAME, is_certain=False))
    else:
        for name, other in _renamed(fold_map):
            if other in there:
                found.setdefault(name, Counterpart(other, MAP))
    if any(name not in found for name in names):
        known = {name: other.name for name, other in found.items()}
        found |= _match_structure(*numberings, found, known, is_certain=fold_map is not None)
    return {name: found[name] for name in names if name in found}


def _renamed(fold_map: FoldMap) -> Iterator[tuple[str, str]]:
    """Yield the old and new name of each result of a layer that absorbed operators after it.

    The layer's result is then that of the last operator, unless another one stood between, or a
    later pass changed the layer.
    """
    changed = {layer for applied in fold_map.data.get("history", ()) for layer in applied["layers"]}
    sources = {source["id"]: source for source in fold_map.sources}
    for layer in fold_map.layers:
        folds = [fold for fold in layer["folds"] if fold["direction"] == "backward"]
        # Counterparts are tensors of the main graph, whose names may recur in a scope.
        if not folds or layer["scope"] or layer["id"] in changed:
            continue
        if any(fold["crossed"] for fold in folds):
            continue
        source = sources[folds[-1]["source"]]
        is_whole = source["status"] == "folded" and source["layers"] == [layer["id"]]
        if is_whole and not source["scope"]:
            yield source["output"], layer["output"]["name"]


class _ValueNumbering:
    """Value numbering of a model: equal operators on equal numbers and constants get equal numbers.

    `inputs` are names that are an input of either model: these equal no other constant, and each
    other if their initializers are equal.
    """

    def __init__(self, model: ModelProto, base_dir: Path, inputs: set[str]) -> None:
        self.nodes = model.graph.node
        self.names = tensor_names(model)
        self.opsets = {
            "" if e.domain in DEFAULT_DOMAINS else e.domain: e.version for e in model.opset_import
        }
        self.functions: dict[tuple[str, str], list[bytes]] = {}
        for function in model.functions:
            definitions = self.functions.setdefault((function.domain, function.name), [])
            definitions.append(function.SerializeToString(deterministic=True))
        self.constants: dict[str, ValueKey] = {name: ("input", name) for name in inputs}
        for name, tensor in constant_tensors(model.graph).items():
            kind = ("input", name) if name in inputs else ("constant",)
            self.constants[name] = (*kind, tensor_digest(tensor, base_dir))

    def number(self, numbers: dict[ValueKey, int], known: Mapping[str, int]) -> dict[str, int]:
        """Return the number of each value by its name.

        `numbers`, the numbers of computations in both models, is extended. `known` values have
        their numbers already.
        """
        found = {
            name: numbers.setdefault(key, len(numbers)) for name, key in self.constants.items()
        }
        for place, node in enumerate(self.nodes):
            inputs = reads(node)
            is_copy = node.op_type == "Identity" and node.domain in DEFAULT_DOMAINS
            key = (*self._node_key(node, place), *(found.get(name, name) for name in inputs))
            for i, name in enumerate(node.output):
                if name in known:
                    found[name] = known[name]
                elif is_copy and inputs[0] in found:
                    found[name] = found[inputs[0]]
                else:
                    found.setdefault(name, numbers.setdefault((i, *key), len(numbers)))
        return found

    def _node_key(self, node: NodeProto, place: int) -> ValueKey:
        """Describe a node without its inputs. A random operator equals no other."""
        if node.domain in DEFAULT_DOMAINS and node.op_type in RANDOM:
            return (id(self), place)
        domain = "" if node.domain in DEFAULT_DOMAINS else node.domain
        attributes = sorted(
            (entry.name, entry.SerializeToString(deterministic=True)) for entry in node.attribute
        )
        functions = self.functions.get((node.domain, node.op_type), ())
        operator = (domain, node.op_type, self.opsets.get(domain))
        return (*operator, *attributes, *functions, len(node.input))


def _match_structure(
    first: _ValueNumbering,
    second: _ValueNumbering,
    found: Mapping[str, Counterpart],
    known: Mapping[str, str],
    *,
    is_certain: bool = True,
) -> dict[str, Counterpart]:
    """Return counterparts of the other tensors: of the same name, or each another one.

    Values that are `known`, with their names in the second model, are taken as equal.
    """
    numbers: dict[ValueKey, int] = {}
    there = second.number(numbers, {})
    equal = {name: there[other] for name, other in known.items() if other in there}
    here = first.number(numbers, equal)
    by_number: dict[int, list[str]] = {}
    for name in second.names:
        by_number.setdefault(there.get(name, -1), []).append(name)
    there_names = set(second.names)
    wanted = [name for name in first.names if name not in found and here.get(name) in by_number]
    namesakes = {name for name in wanted if there.get(name) == here[name] and name in there_names}
    taken = {other.name for other in found.values()} | namesakes
    free = {
        number: deque(name for name in names if name not in taken)
        for number, names in by_number.items()
    }
    matched: dict[str, Counterpart] = {}
    for name in wanted:
        number = here[name]
        if name in namesakes:
            matched[name] = Counterpart(name, NAME, is_certain)
        else:
            other = free[number].popleft() if free[number] else by_number[number][0]
            matched[name] = Counterpart(other, STRUCTURE, is_certain)
    return matched


def reused_names(
    model: ModelProto,
    counterparts: Mapping[str, Counterpart],
    differences: Iterable[TensorDifference],
) -> set[str]:
    """Return the tensors whose uncertain counterparts turn out to be other tensors.

    They deviate, but tensors computed from them do not: none of the next compared tensors
    deviates, and none is off by more than 1 / FADES as much, in shares of the bounds. Tensors of
    which none of the next can be compared are not among them. O(nodes).
    """
    shares: dict[str, float] = {}
    for one in differences:
        if not one.is_undecided:
            shares[one.value] = max(shares.get(one.value, 0.0), one.share)
    found: set[str] = set()
    later: dict[str, float] = {}
    """The greatest share of the next compared tensors computed from a value, or None."""
    for node in reversed(model.graph.node):
        for name in node.output:
            share = shares.get(name)
            if share is None:
                continue
            is_suspect = share > 1 and not counterparts[name].is_certain
            has_faded = name in later and later[name] <= min(1.0, share / FADES)
            if is_suspect and has_faded:
                found.add(name)
            else:
                later[name] = share
        seen = [later[name] for name in node.output if name in later]
        for name in reads(node) if seen else ():
            later[name] = max(later.get(name, 0.0), *seen)
    return found
