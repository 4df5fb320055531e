"""Running a model for any of its tensors."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import onnxruntime
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from ..backends.runtime import new_session
from ..ir.tensor import Array
from ..support.errors import VerifyError
from .graph_reads import reads
from .inputs import Feeds
from .reference import is_tensor
from .subgraph import Part

NARROW = {
    "bf16": (TensorProto.BFLOAT16, TensorProto.FLOAT),
    "f8e4m3fn": (TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT),
    "f8e4m3fnuz": (TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT),
    "f8e5m2": (TensorProto.FLOAT8E5M2, TensorProto.FLOAT),
    "f8e5m2fnuz": (TensorProto.FLOAT8E5M2FNUZ, TensorProto.FLOAT),
    "i4": (TensorProto.INT4, TensorProto.INT8),
    "u4": (TensorProto.UINT4, TensorProto.UINT8),
}
"""Element types that onnxruntime does not give to numpy, and those in which it does, which hold all their numbers."""
FED = {helper.tensor_dtype_to_np_dtype(kind) for kind, numbers in NARROW.values() if numbers == TensorProto.FLOAT}
"""Those that it takes by their ONNX type; two integers of four bits are one byte for it, and not for numpy."""
_NAMED = {f"tensor({TensorProto.DataType.Name(kind).lower()})": (kind, numbers) for kind, numbers in NARROW.values()}


LONGEST = 300
"""Characters of a message."""
PLACE = re.compile(
    r"(?:/\S+/)?\b\w+\.(?:cc|cpp|h|hpp|cu):\d+ "  # a file of onnxruntime and its line
    r"(?:[^()]*onnxruntime::[^()]*\((?:[^()]|\([^()]*\))*\)(?: const)? |\w+ )?"  # the function
)


@dataclass(frozen=True, slots=True)
class _Session:
    """A session for a part of a model that begins at tensors of some types and ranks. Results are cast to `narrow`
    types by their places.
    """

    part: Part
    begins: dict[str, tuple[np.dtype[Any], int]]
    runs: onnxruntime.InferenceSession
    narrow: dict[int, np.dtype[Any]]


class Runner:
    """Runs a model for any of its tensors, on onnxruntime without graph optimisations.

    The part that was asked for last and its session are kept: noisy runs ask for the same again and again.
    """

    def __init__(self, model: ModelProto, base_dir: Path) -> None:
        self.model = model
        self.base_dir = base_dir
        self._part: Part | None = None
        self._session: _Session | None = None

    def run(self, names: Sequence[str], feeds: Feeds) -> list[Any]:
        """The named tensors. Raises VerifyError where onnxruntime refuses what computes them, or fails."""
        return self.run_part(self.part(names, ()), feeds, {})

    def part(self, names: Sequence[str], known: Collection[str]) -> Part:
        """The part that computes the named tensors from the known ones."""
        if self._part is None or not self._part.computes(names, known):
            self._part = Part(self.model, names, known)
        return self._part

    def run_part(self, part: Part, feeds: Feeds, held: Feeds) -> list[Any]:
        """The wanted tensors of a part of the model. Raises VerifyError as `run`."""
        cut = {name: held[name] for name in sorted(part.cut)}
        begins = {name: (array.dtype, array.ndim) for name, array in cut.items()}
        if self._session is None or self._session.part is not part or self._session.begins != begins:
            self._session = None  # before the next one takes memory
            self._session = self._open(part, begins)
        session = self._session
        given = {**feeds, **cut}
        wanted = [entry.name for entry in session.runs.get_inputs() if entry.name in given]
        wanted += [entry.name for entry in session.runs.get_overridable_initializers() if entry.name in feeds]
        try:
            results: list[Any] = session.runs.run(None, {name: _fed(given[name]) for name in wanted}, _returning())
        except Exception as error:  # onnxruntime raises its own types, and RuntimeError
            raise VerifyError(f"onnxruntime cannot run the model: {first_line(error)}") from None
        return [
            value.astype(session.narrow[i]) if i in session.narrow and is_tensor(value) else value
            for i, value in enumerate(results)
        ]

    def check_loads(self) -> None:
        """Raises VerifyError where onnxruntime refuses the model as a whole."""
        self._load(self.model)

    @cached_property
    def readers(self) -> dict[str, list[int]]:
        """By name the places of the nodes that read a tensor."""
        readers: dict[str, list[int]] = {}
        for place, node in enumerate(self.model.graph.node):
            for name in reads(node):
                readers.setdefault(name, []).append(place)
        return readers

    def _open(self, part: Part, begins: dict[str, tuple[np.dtype[Any], int]]) -> _Session:
        declared = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), [None] * rank)
            for name, (dtype, rank) in begins.items()
        ]
        model, whole = part.model(declared), not part.known
        runs = self._load(model, reuse=whole)
        found = {i: _NAMED[entry.type] for i, entry in enumerate(runs.get_outputs()) if entry.type in _NAMED}
        if found:
            _cast_results(model, found)
            runs = self._load(model, reuse=whole)
        narrow = {i: helper.tensor_dtype_to_np_dtype(kind) for i, (kind, _) in found.items()}
        return _Session(part, begins, runs, narrow)

    def _load(self, model: ModelProto, *, reuse: bool = False) -> onnxruntime.InferenceSession:
        try:
            return new_session(model, self.base_dir, reuse=reuse)
        except Exception as error:  # as above
            raise VerifyError(f"onnxruntime cannot load the model: {first_line(error)}") from None


class Walk:
    """One run of a model for tensors that are asked for group by group, in the model's order: each part begins at the
    tensors that earlier ones handed out, so that nothing is computed twice but what lies between those.
    """

    def __init__(self, runner: Runner, feeds: Feeds) -> None:
        self.runner = runner
        self.feeds = feeds
        self.held: Feeds = {}
        self.done: set[int] = set()

    def take(self, names: Sequence[str], given: Feeds | None = None) -> list[Any]:
        """The next tensors; those that are `given` are not computed. Raises VerifyError as `Runner.run`."""
        known = {name: value for name, value in (given or {}).items() if can_be_fed(value)} | self.held
        part = self.runner.part(names, known.keys() - names)
        values = self.runner.run_part(part, self.feeds, known)
        self.done.update(part.places)
        self.held.update((name, value) for name, value in zip(names, values, strict=True) if can_be_fed(value))
        readers = self.runner.readers
        self.held = {
            name: value for name, value in self.held.items() if not self.done.issuperset(readers.get(name, ()))
        }
        return values


def _cast_results(model: ModelProto, kinds: Mapping[int, tuple[int, int]]) -> None:
    """Let a model give some of its results in the second type of two."""
    for i, (_, numbers) in kinds.items():
        name = f"irc.result.{i}"
        model.graph.node.append(helper.make_node("Cast", [model.graph.output[i].name], [name], to=numbers))
        model.graph.output[i].CopyFrom(ValueInfoProto(name=name))


def _returning() -> onnxruntime.RunOptions:
    """Let a session give its memory back when it has run: several wait for their next turn at once."""
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return options


def can_be_fed(value: object) -> TypeGuard[Array]:
    """Whether a part of a model can begin at a value, as an array of numpy."""
    return is_tensor(value) and (value.dtype.kind in "fiub" or value.dtype in FED)


def _fed(array: Array) -> Any:
    """What onnxruntime takes for an array."""
    if array.dtype not in FED:
        return array
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, helper.np_dtype_to_tensor_dtype(array.dtype))


def first_line(error: Exception) -> str:
    """The first line of a message of onnxruntime, without places in its source, shortened to whole words."""
    text = PLACE.sub("", str(error).strip().split("\n")[0][: 10 * LONGEST])
    return text if len(text) <= LONGEST else f"{text[:LONGEST].rsplit(' ', 1)[0]} ..."


def tensors_of(model: ModelProto) -> list[str]:
    """Names of the results of nodes of the main graph, constants left out, in the model's order, and of its results."""
    made = (name for node in model.graph.node if node.op_type != "Constant" for name in node.output if name)
    return list(dict.fromkeys((*made, *(info.name for info in model.graph.output))))
