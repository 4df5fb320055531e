"""The steps of a proof that explain a rewrite: they name its operator, or a lost one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...frontends.onnx.codec.protos import GraphProto, ModelProto
from .checker.congruence import SOURCE
from .checker.program import Datum, Operation
from .search import Search, stem


def linked(
    log: Sequence[tuple[str, str]],
    steps: Sequence[Mapping[str, Any]],
    search: Search,
    models: Sequence[ModelProto],
) -> list[list[Any]]:
    """Return the rewrites of a log with their steps' numbers; congruence needs none."""
    names: dict[str, set[str]] = defaultdict(set)
    for model in models:
        for name, label in _names(model.graph, ""):
            names[name].add(label)
    kept = {value.term for value in search.result.data.values()}
    covered = {
        step["step"]: {stem(label) for label in _covered(step, search, kept)} for step in steps
    }
    operators = [_labels(where, names) for _, where in log]
    _inherit(covered, steps, search, set().union(*operators))
    numbers: dict[str, list[int]] = defaultdict(list)
    for number, labels in covered.items():
        for label in labels:
            numbers[label].append(number)
    return [
        [rule, where, sorted({each for label in named for each in numbers.get(label, ())})]
        for (rule, where), named in zip(log, operators, strict=True)
    ]


def _labels(where: str, names: Mapping[str, set[str]]) -> set[str]:
    """Return the labels in a proof that an operator of a log may have."""
    name = where.partition(" ")[2][1:-1]
    labels = names.get(name) or {
        label for each in names.values() for label in each if label.endswith(f"/{name}")
    }
    return {stem(label) for label in (name, *labels)}


def _inherit(
    covered: dict[int, set[str]],
    steps: Sequence[Mapping[str, Any]],
    search: Search,
    logged: set[str],
) -> None:
    """Let a step about an unlogged operator serve later steps: an affine came through it."""
    places = {step["operation"]: step["step"] for step in steps if step["at"] != SOURCE}
    for step in reversed(steps):
        if step["at"] != SOURCE:
            operation = search.result.operations.get(step["operation"])
        else:
            operation = None
        if operation is not None and covered[step["step"]].isdisjoint(logged):
            readers = (reader.label for value in operation.outputs for reader in value.readers)
            for label in readers:
                covered[step["step"]] |= covered.get(places.get(label, 0), set())


def _names(graph: GraphProto, path: str) -> Iterator[tuple[str, str]]:
    """Yield the name of each node with the label that its operation has in a proof."""
    for node in graph.node:
        label = path + next((name for name in node.output if name), "")
        yield from ((name, label) for name in (node.name, *node.output) if name)
        for item in node.attribute:
            if item.HasField("g"):
                yield from _names(item.g, f"{label}/{item.name}/")


def _covered(step: Mapping[str, Any], search: Search, kept: set[int]) -> Iterator[str]:
    """Yield the labels of a step: its own, and of source operators that end in it."""
    yield step["operation"]
    parts = (part.get(name) for part in step.get("applies", ()) for name in ("of", "value"))
    found = [label for label in (step.get("source"), *parts) if label is not None]
    yield from found
    if step["at"] == SOURCE:
        return
    queue = [each for label in found if (each := _operation(search, label)) is not None]
    if step["identity"] == "reshaped":  # a rewrite at the Reshape behind it
        readers = [reader for each in queue for reader in each.outputs[0].readers]
        yield from (value.label for reader in readers for value in reader.outputs)
    seen = set(queue)
    while queue:
        operation = queue.pop()
        yield from (value.label for value in operation.outputs)
        for value in operation.inputs:
            if value is None or value.stored is not None or value.term in kept:
                before = None
            else:
                before = value.producer
            if before is not None and before not in seen:
                seen.add(before)
                queue.append(before)


def _operation(search: Search, label: str) -> Operation | None:
    value: Datum | None = search.source.data.get(label)
    return search.source.operations.get(label) or (None if value is None else value.producer)
