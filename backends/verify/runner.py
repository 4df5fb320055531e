"""Running a model for any of its tensors."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from pathlib import Path
from typing import Any

import onnxruntime
from onnx import ModelProto, ValueInfoProto, helper

from ...ir.errors import VerifyError
from ...ir.tensor import Array
from ..runtime import new_session
from .inputs import Feeds
from .noise import captured
from .part import Part
from .reference import is_tensor


class Runner:
    """Runs a model for any of its tensors, on onnxruntime without graph optimisations.

    The session of the tensors asked for last is kept.
    """

    def __init__(self, model: ModelProto, base_dir: Path) -> None:
        self.model = model
        self.base_dir = base_dir
        self._key: Hashable = None
        self._session: onnxruntime.InferenceSession | None = None
        self._known: frozenset[str] = frozenset()
        self._part: Part | None = None
        self._readers: dict[str, list[int]] | None = None

    def run(self, names: Sequence[str], feeds: Feeds) -> list[Any]:
        """The named tensors. Raises VerifyError where onnxruntime refuses the model, or fails."""
        if self._session is None or self._key != tuple(names):
            asked = ModelProto()
            asked.CopyFrom(self.model)
            del asked.graph.output[:]
            asked.graph.output.extend(ValueInfoProto(name=name) for name in names)
            self._open(asked, tuple(names))
        return self._run(feeds)

    def run_part(self, part: Part, feeds: Feeds, held: Feeds) -> list[Any]:
        """The wanted tensors of a part of the model. Raises VerifyError as `run`."""
        cut = {name: held[name] for name in sorted(part.cut)}
        key = (id(part), *(array.ndim for array in cut.values()))
        if self._session is None or self._key != key:
            self._open(part.model(_declared(name, array) for name, array in cut.items()), key, reuse=False)
        return self._run({**feeds, **cut})

    def part(self, names: Sequence[str], known: Collection[str]) -> Part:
        """The part that computes the named tensors from the known ones; the last one is kept."""
        if self._part is None or self._part.wanted != tuple(names) or self._known != known:
            self._part, self._known = Part(self.model, names, known), frozenset(known)
            self._key = None
        return self._part

    @property
    def readers(self) -> dict[str, list[int]]:
        """By name the places of the nodes that read a tensor."""
        if self._readers is None:
            self._readers = {}
            for place, node in enumerate(self.model.graph.node):
                for name in (*node.input, *captured(node)):
                    self._readers.setdefault(name, []).append(place)
        return self._readers

    def _open(self, model: ModelProto, key: Hashable, *, reuse: bool = True) -> None:
        self._session = None  # before the next one takes memory
        try:
            self._session = new_session(model, self.base_dir, reuse=reuse)
        except Exception as error:  # onnxruntime raises its own types, and RuntimeError
            raise VerifyError(f"onnxruntime cannot load the model: {first_line(error)}") from None
        self._key = key

    def _run(self, feeds: Feeds) -> list[Any]:
        assert self._session is not None
        wanted = {entry.name for entry in self._session.get_inputs()}
        try:
            results: list[Any] = self._session.run(None, {k: array for k, array in feeds.items() if k in wanted})
        except Exception as error:  # as above
            raise VerifyError(f"onnxruntime cannot run the model: {first_line(error)}") from None
        return results


class Walk:
    """One run of a model for tensors that are asked for group by group, in the model's order: each part begins at the
    tensors that earlier ones handed out, so that nothing is computed twice but what lies between those.
    """

    def __init__(self, runner: Runner, feeds: Feeds) -> None:
        self.runner = runner
        self.feeds = feeds
        self.held: Feeds = {}
        self.done: set[int] = set()

    def take(self, names: Sequence[str]) -> list[Any]:
        """The next tensors. Raises VerifyError as `Runner.run`."""
        part = self.runner.part(names, self.held.keys() - names)
        values = self.runner.run_part(part, self.feeds, self.held)
        self.done.update(part.places)
        self.held.update((name, value) for name, value in zip(names, values, strict=True) if _can_be_fed(value))
        readers = self.runner.readers
        self.held = {
            name: value for name, value in self.held.items() if not self.done.issuperset(readers.get(name, ()))
        }
        return values


def _can_be_fed(value: object) -> bool:
    return is_tensor(value) and value.dtype.kind in "fiub"


def _declared(name: str, array: Array) -> ValueInfoProto:
    """An input of that type and rank."""
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), [None] * array.ndim)


def first_line(error: Exception) -> str:
    """The first line of a message, shortened."""
    return str(error).strip().split("\n")[0][:300]


def tensors_of(model: ModelProto) -> list[str]:
    """Names of the results of nodes of the main graph, constants left out, in the model's order, and of its results."""
    made = (name for node in model.graph.node if node.op_type != "Constant" for name in node.output if name)
    return list(dict.fromkeys((*made, *(info.name for info in model.graph.output))))
