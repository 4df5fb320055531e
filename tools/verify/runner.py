"""Execution of a model on onnxruntime for any of its tensors."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from signal import Signals
from typing import Any, TypeGuard

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from ...backends.runtime.remote_session import (
    OUT_OF_TIME,
    RemoteSession,
    RuntimeFailedError,
    runtime,
)
from ...frontends.onnx.codec.domains import with_canonical_domains
from ...ir.tensor import Array
from ...ir.types import MapType, OptionalType, SequenceType, SparseTensorType, TensorType, Type
from ...support.errors import VerifyError
from ...support.isolation import WorkerDiedError
from .inputs import Feeds
from .onnx_graph import NodeIndex, Subgraph, reads, without_absent_results
from .tensor_blocks import is_tensor

NUMPY_TYPES = {
    *("f16", "f32", "f64", "bool", "str"),
    *(f"{sign}{bits}" for sign in "iu" for bits in (8, 16, 32, 64)),
}
"""Element types that onnxruntime returns as numpy arrays."""
CAST_TYPES = {
    "bf16": (TensorProto.BFLOAT16, TensorProto.FLOAT),
    "f8e4m3fn": (TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT),
    "f8e4m3fnuz": (TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT),
    "f8e5m2": (TensorProto.FLOAT8E5M2, TensorProto.FLOAT),
    "f8e5m2fnuz": (TensorProto.FLOAT8E5M2FNUZ, TensorProto.FLOAT),
    "i4": (TensorProto.INT4, TensorProto.INT8),
    "u4": (TensorProto.UINT4, TensorProto.UINT8),
}
"""Element types that onnxruntime does not return, and the wider ones that results are cast to."""
FAULTS = [s for s in Signals if s.name in ("SIGSEGV", "SIGFPE", "SIGABRT", "SIGBUS", "SIGILL")]
"""Signals by which a kernel dies of its operands, as far as the system has them."""
ORT_VALUE_DTYPES = {
    helper.tensor_dtype_to_np_dtype(t)
    for t, wide in CAST_TYPES.values()
    if wide == TensorProto.FLOAT
}
"""Types that onnxruntime takes as OrtValue.

Not 4-bit integers: it packs two into a byte, numpy does not.
"""
_CASTS = {
    f"tensor({TensorProto.DataType.Name(t).lower()})": (t, wide) for t, wide in CAST_TYPES.values()
}

MESSAGE_LENGTH = 300
MAX_CRASHES = 4
"""Crashes of the runtime after which a model is not tried again: each starts a process."""
SOURCE_PLACE = re.compile(
    r"(?:/\S+/)?\b\w+\.(?:cc|cpp|h|hpp|cu):\d+ "  # a file of onnxruntime and its line
    r"(?:[^()]*onnxruntime::[^()]*\((?:[^()]|\([^()]*\))*\)(?: const)? |\w+ )?"  # the function
)


@dataclass(frozen=True, slots=True)
class _Session:
    """A session for a subgraph. `cut_types` are types and ranks of the tensors at its cut.

    `narrow` has the numpy types of the results that were cast to wider ones, by their index.
    """

    subgraph: Subgraph
    cut_types: dict[str, tuple[np.dtype[Any], int]]
    session: RemoteSession
    narrow: dict[int, np.dtype[Any]]

    def fits(self, subgraph: Subgraph, cut_types: dict[str, tuple[np.dtype[Any], int]]) -> bool:
        """Return whether the session takes these types, and its process still runs."""
        is_same = self.subgraph is subgraph and self.cut_types == cut_types
        return is_same and self.session.is_open


class Runner:
    """Executor of a model on onnxruntime, by default with graph optimisations off.

    It keeps the last subgraph and its session, since noisy runs ask for the same again and again.
    More would keep their memory: a session of onnxruntime frees little of it between runs.
    """

    def __init__(self, model: ModelProto, base_dir: Path, *, optimize: bool = False) -> None:
        runtime.start()
        # onnxruntime knows no alias of a domain in bodies.
        self.model = without_absent_results(with_canonical_domains(model))
        self.base_dir, self.optimize = base_dir, optimize
        self.runs = 0.0
        """Number of runs so far; a run of a subgraph counts as its share of the operators."""
        self._subgraph: Subgraph | None = None
        self._session: _Session | None = None
        self._crashes = 0
        self._crash = ""
        """How the runtime died last."""

    def run(self, names: Sequence[str], feeds: Feeds) -> list[Any]:
        """Return the named tensors.

        Raises VerifyError if onnxruntime refuses the subgraph that computes them.
        """
        return self.run_subgraph(self.subgraph(names, ()), feeds, {})

    def shape_of(self, name: str, feeds: Feeds) -> Sequence[int] | None:
        """Return the shape of a tensor, None if onnxruntime refuses its subgraph."""
        try:
            value = feeds[name] if name in feeds else self.run([name], feeds)[0]
        except VerifyError:
            return None
        shape: tuple[int, ...] | None = value.shape if is_tensor(value) else None
        return shape

    def subgraph(self, names: Sequence[str], known: Collection[str]) -> Subgraph:
        """Return the subgraph that computes the named tensors from the known ones."""
        if self._subgraph is None or not self._subgraph.computes(names, known):
            self._subgraph = Subgraph(self.model, names, known, self.index)
        return self._subgraph

    def run_subgraph(self, subgraph: Subgraph, feeds: Feeds, known: Feeds) -> list[Any]:
        """Return the wanted tensors of a subgraph. Raises VerifyError as `run`."""
        cut = {name: known[name] for name in sorted(subgraph.cut)}
        cut_types = {name: (array.dtype, array.ndim) for name, array in cut.items()}
        given = {**feeds, **cut}
        if self._crashes >= MAX_CRASHES:
            raise VerifyError(self._crash)
        try:
            if self._session is None or not self._session.fits(subgraph, cut_types):
                self._session = None  # frees its memory before the next one takes some
                self._session = self._open(subgraph, cut_types)
            session, narrow = self._session.session, self._session.narrow
            wanted = [name for name in session.inputs if name in given]
            wanted += [name for name in session.overridable if name in feeds]
            results = session.run({name: _as_feed(given[name]) for name in wanted})
        except RuntimeFailedError as error:
            raise VerifyError(f"onnxruntime cannot run the model: {first_line(error)}") from None
        except WorkerDiedError as error:
            raise VerifyError(self._describe_crash(error, subgraph, given)) from None
        self.runs += len(subgraph.places) / max(len(self.model.graph.node), 1)
        return [
            v.astype(narrow[i]) if i in narrow and is_tensor(v) else v
            for i, v in enumerate(results)
        ]

    def _describe_crash(self, error: WorkerDiedError, subgraph: Subgraph, given: Feeds) -> str:
        """Return how the runtime died, and in which operator, which is found by runs of parts."""
        is_late = error.signal == OUT_OF_TIME > 0  # it would be again, for as long
        self._crashes, self._session = MAX_CRASHES if is_late else self._crashes + 1, None
        self._crash = f"the runtime {error}"
        low, high = 0, len(subgraph.places)
        # The first `low` operators end well, the first `high` do not.
        while error.signal in FAULTS and high - low > 1:
            middle = (low + high) // 2
            if self._crashes_in(subgraph, middle, given):
                high = middle
            else:
                low = middle
        if error.signal in FAULTS and high:
            node = self.model.graph.node[subgraph.places[high - 1]]
            label = node.name or next(filter(None, node.output), "")
            signal = Signals(error.signal).name
            self._crash = f"the runtime died by {signal} in {node.op_type} {label!r}"
        return self._crash

    def _crashes_in(self, subgraph: Subgraph, count: int, given: Feeds) -> bool:
        """Return whether the runtime crashes in the first `count` operators of a subgraph."""
        nodes = [self.model.graph.node[place] for place in subgraph.places[:count]]
        used = {name for node in nodes for name in reads(node)}
        ends = [name for node in nodes for name in node.output if name and name not in used]
        part = Subgraph(self.model, ends, subgraph.known - set(ends), self.index)
        types = {name: (given[name].dtype, given[name].ndim) for name in sorted(part.cut)}
        try:
            session = self._open(part, types).session
            session.run({name: _as_feed(given[name]) for name in session.inputs if name in given})
        except WorkerDiedError:
            return True
        except (VerifyError, RuntimeFailedError):
            return False
        return False

    def check_loads(self) -> None:
        """Raise VerifyError if onnxruntime refuses the model as a whole."""
        try:
            self._load(self.model)
        except WorkerDiedError as error:
            raise VerifyError(f"the runtime {error}") from None

    @property
    def places(self) -> list[int]:
        """The indices of the nodes of the last subgraph."""
        return [] if self._subgraph is None else self._subgraph.places

    @cached_property
    def readers(self) -> dict[str, list[int]]:
        """The indices of the nodes that read each tensor, by its name."""
        readers: dict[str, list[int]] = {}
        for place, names in enumerate(self.index.reads):
            for name in names:
                readers.setdefault(name, []).append(place)
        return readers

    @cached_property
    def index(self) -> NodeIndex:
        """The index of the main graph, which may not change."""
        return NodeIndex(self.model.graph)

    def _open(
        self, subgraph: Subgraph, cut_types: dict[str, tuple[np.dtype[Any], int]]
    ) -> _Session:
        inputs: list[ValueInfoProto] = []
        for name, (dtype, rank) in cut_types.items():
            elem_type = helper.np_dtype_to_tensor_dtype(dtype)
            inputs.append(helper.make_tensor_value_info(name, elem_type, [None] * rank))
        model, is_whole = subgraph.extract(inputs), not subgraph.known
        try:
            session = self._load(model, reuse=is_whole)
        except VerifyError:  # declarations may say more than onnxruntime infers, or be stale
            if not subgraph.declare_values(model):
                raise
            session = self._load(model, reuse=is_whole)
        types = enumerate(session.output_types)
        casts = {i: _CASTS[entry] for i, entry in types if entry in _CASTS}
        if casts:
            _cast_results(model, casts)
            session = self._load(model, reuse=is_whole)
        narrow = {i: helper.tensor_dtype_to_np_dtype(casts[i][0]) for i in casts}
        return _Session(subgraph, cut_types, session, narrow)

    def _load(self, model: ModelProto, *, reuse: bool = False) -> RemoteSession:
        try:
            return RemoteSession(
                model.SerializeToString(), self.base_dir, reuse=reuse, optimize=self.optimize
            )
        except RuntimeFailedError as error:
            raise VerifyError(f"onnxruntime cannot load the model: {first_line(error)}") from None


class IncrementalRun:
    """One run of a model whose tensors are asked for group by group, in the model's order.

    Each group is computed from the tensors that earlier groups returned, so that only nodes between
    groups run twice. `held` are the returned tensors that nodes still have to read.
    """

    def __init__(self, runner: Runner, feeds: Feeds) -> None:
        self.runner = runner
        self.feeds = feeds
        self.held: Feeds = {}
        self._executed: set[int] = set()

    def compute(self, names: Sequence[str], given: Feeds | None = None) -> list[Any]:
        """Return the next tensors; `given` ones are not computed.

        Raises VerifyError as `Runner.run`.
        """
        fed = {name: value for name, value in (given or {}).items() if can_be_fed(value)}
        known = fed | self.held
        subgraph = self.runner.subgraph(names, known.keys() - names)
        values = self.runner.run_subgraph(subgraph, self.feeds, known)
        self._executed.update(subgraph.places)
        pairs = zip(names, values, strict=True)
        self.held.update((name, value) for name, value in pairs if can_be_fed(value))
        readers = self.runner.readers
        self.held = {
            name: value
            for name, value in self.held.items()
            if not self._executed.issuperset(readers.get(name, ()))
        }
        return values


def _cast_results(model: ModelProto, casts: Mapping[int, tuple[int, int]]) -> None:
    """Cast a model's results, by index, from the first element type to the second."""
    for i, (_, wide) in casts.items():
        name, narrow = f"irc.result.{i}", model.graph.output[i].name
        model.graph.node.append(helper.make_node("Cast", [narrow], [name], to=wide))
        model.graph.output[i].CopyFrom(ValueInfoProto(name=name))


def can_be_fed(value: object) -> TypeGuard[Array]:
    """Return whether a value is an array that a session takes as an input."""
    if not is_tensor(value):
        return False
    return value.dtype.kind in "fiub" or value.dtype in ORT_VALUE_DTYPES


def _as_feed(array: Any) -> tuple[Any, int]:
    """Return an input, and its element type in ONNX if numpy does not have it."""
    if isinstance(array, list) or array.dtype not in ORT_VALUE_DTYPES:
        return array, 0
    return array.view(f"u{array.dtype.itemsize}"), helper.np_dtype_to_tensor_dtype(array.dtype)


def is_readable(type_: Type, *, in_container: bool = False) -> bool:
    """Return whether a Runner returns values of a type.

    Sequences and maps return no element types that need a cast.
    """
    if isinstance(type_, SequenceType | OptionalType):
        return is_readable(type_.element, in_container=True)
    if isinstance(type_, MapType):
        return is_readable(type_.value, in_container=True)
    if isinstance(type_, TensorType) and type_.dtype is not None:
        name = str(type_.dtype)
        if name in CAST_TYPES:
            return not in_container
        return name in NUMPY_TYPES
    return not isinstance(type_, SparseTensorType)


def first_line(error: Exception) -> str:
    """Return the first line of onnxruntime's message, without source places, cut."""
    text = SOURCE_PLACE.sub("", str(error).strip().split("\n")[0][: 10 * MESSAGE_LENGTH])
    return text if len(text) <= MESSAGE_LENGTH else f"{text[:MESSAGE_LENGTH].rsplit(' ', 1)[0]} ..."
