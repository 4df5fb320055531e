"""The part of a model that computes some of its tensors from others."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from onnx import ModelProto, ValueInfoProto

from ..codec.protos import copy_fields
from .graph_reads import reads


class Part:
    """The nodes, by their `places` in the main graph, that compute `wanted` from the nearest of the `known` tensors,
    the `cut`, and from `inputs` of the model.
    """

    def __init__(self, model: ModelProto, wanted: Sequence[str], known: Collection[str]) -> None:
        self.source = model
        self.wanted = tuple(wanted)
        self.known = frozenset(known)
        producers = {name: i for i, node in enumerate(model.graph.node) for name in node.output if name}
        self.cut: set[str] = set()
        used: set[str] = set()
        kept: set[int] = set()
        stack = [*wanted]
        while stack:
            name = stack.pop()
            if not name or name in used:
                continue
            used.add(name)
            place = producers.get(name)
            if name in known:
                self.cut.add(name)
            elif place is not None and place not in kept:
                kept.add(place)
                node = model.graph.node[place]
                stack.extend(reads(node))
        self.used = used - self.cut
        self.places = sorted(kept)
        self.inputs = {info.name for info in model.graph.input} & self.used

    def computes(self, wanted: Sequence[str], known: Collection[str]) -> bool:
        """Whether this is the part for those tensors."""
        return self.wanted == tuple(wanted) and self.known == frozenset(known)

    def model(self, cut: Iterable[ValueInfoProto]) -> ModelProto:
        """The part as a model, whose inputs are those of the source and `cut`."""
        graph, part = self.source.graph, ModelProto()
        copy_fields(self.source, part, ("graph",))
        part.graph.name = graph.name or "part"
        part.graph.node.extend(graph.node[place] for place in self.places)
        part.graph.initializer.extend(tensor for tensor in graph.initializer if tensor.name in self.used)
        part.graph.sparse_initializer.extend(t for t in graph.sparse_initializer if t.values.name in self.used)
        part.graph.input.extend(info for info in graph.input if info.name in self.inputs)
        part.graph.input.extend(cut)
        part.graph.output.extend(ValueInfoProto(name=name) for name in self.wanted)
        return part
