"""Inputs that excite faults: seeded, of several kinds, open dimensions at more than one size; or the user's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, TensorShapeProto, ValueInfoProto, helper, numpy_helper

from ..ir.tensor import Array
from ..support.errors import SourceError, VerifyError
from .index_inputs import spanning
from .input_values import KINDS, MOST_INDEX, Draw

Feeds = dict[str, Array]
Shapes = tuple[tuple[int, ...], ...]
"""Those of all inputs."""

SIZES = ((2, 32), (1, 48), (1, 64), (1, 224), (1, 16), (1, 128), (1, 8), (1, 4), (1, 1))
"""What open dimensions are tried at: the first one, and all others, or the first symbol among these."""

MOST_ELEMENTS = 1 << 30
"""Of an input that is made."""

MOST_OVERRIDDEN = 256 << 20
"""Bytes, at eight for an element, of the initializers for which others are made."""


@dataclass(frozen=True, slots=True, eq=False)
class Stimulus:
    """Inputs by name, and what they are called; others may be called the same."""

    name: str
    feeds: Feeds


def required_inputs(model: ModelProto) -> list[ValueInfoProto]:
    """The inputs that a caller has to give."""
    given = {tensor.name for tensor in model.graph.initializer}
    given.update(tensor.values.name for tensor in model.graph.sparse_initializer)
    return [info for info in model.graph.input if info.name not in given]


def overridable_inputs(model: ModelProto) -> list[ValueInfoProto]:
    """The inputs that a caller may give in place of an initializer: there are such since IR version 4."""
    given = {tensor.name for tensor in model.graph.initializer} if model.ir_version >= 4 else set()
    return [info for info in model.graph.input if info.name in given]


def interface_fault(source: ModelProto, other: ModelProto, *, frozen: bool = False) -> str | None:
    """In what the results of a model, or its inputs, differ from those of its source: callers know them by name or by
    place. None where they do not. With `frozen` it may lack inputs that callers need not give.
    """
    given, taken = required_inputs(source), required_inputs(other)
    for what, want, have in (("result", source.graph.output, other.graph.output), ("input", given, taken)):
        names, found = [info.name for info in want], [info.name for info in have]
        missing = [name for name in names if name not in found]
        if missing:
            return f"the {what} {missing[0]!r} is missing"
        added = [name for name in found if name not in names]
        if added:
            return f"the {what} {added[0]!r} is none of the source's"
        if names != found:
            return f"the {what}s are {', '.join(map(repr, found))}, and {', '.join(map(repr, names))} in the source"
    optional = {info.name for info in overridable_inputs(other)}
    for info in [] if frozen else overridable_inputs(source):
        if info.name not in optional:
            return f"the initializer {info.name!r} cannot be overridden any more"
    for info, other_info in zip(given, taken, strict=True):
        kind, other_kind = _kind(info), _kind(other_info)
        if kind != other_kind:
            return f"the input {info.name!r} is {other_kind}, and {kind} in the source"
    return None


def _kind(info: ValueInfoProto) -> str:
    """The element type of a tensor, or what it is instead."""
    if info.type.HasField("tensor_type"):
        kind = info.type.tensor_type.elem_type
        return TensorProto.DataType.Name(kind).lower() if _is_known(kind) else f"of element type {kind}"
    return (info.type.WhichOneof("value") or "of no type").removesuffix("_type")


def _is_known(elem_type: int) -> bool:
    """Whether there are tensors of an element type, as far as onnx knows."""
    return elem_type in helper.get_all_tensor_dtypes()


def stimuli(
    model: ModelProto,
    fault: Callable[[Feeds], str | None],
    *,
    seed: int = 0,
    kinds: Sequence[str] = tuple(KINDS),
    sizes: int = 2,
) -> Iterator[Stimulus]:
    """Inputs of every kind on which the model runs, at up to `sizes` sizes of the open dimensions: with another extent
    for each symbol, or else, where it does not run at these, with one for all; `fault` says why it does not. Integers
    that are numbers alone take those of their type where the model runs so.

    Raises SourceError where it runs at none.
    """
    infos = required_inputs(model)
    small: dict[str, int | None] = {**{info.name: MOST_INDEX for info in infos}, **index_limits(model)}
    limits = {**small, **dict.fromkeys(spanning(model))}
    found, reason = 0, ""
    tried: set[Shapes] = set()
    for size in SIZES:
        for shapes in shapes_at(infos, *size):
            if shapes in tried:
                continue
            tried.add(shapes)
            text = ",".join("x".join(map(str, shape)) or "scalar" for shape in shapes)
            runs = False
            for kind in kinds:
                draw = Draw.of(kind, kinds, seed)
                feeds = _feeds(infos, shapes, draw, limits)
                why = fault(feeds)
                if why is not None and draw.ranges and limits != small:
                    feeds = _feeds(infos, shapes, Draw.of(kind, kinds, seed), small)
                    if fault(feeds) is None:
                        limits, why = small, None
                reason = reason or why or ""
                if why is None:
                    runs = True
                    yield Stimulus(f"{kind} {text}", feeds)
            if runs:
                found += 1
                break
        if found == sizes:
            return
    if not found:
        raise SourceError(f"the source model runs on no inputs that were tried (give some with --inputs): {reason}")


def overriding(
    model: ModelProto, base_dir: Path, first: Stimulus, fault: Callable[[Feeds], str | None], *, seed: int = 0
) -> Iterator[Stimulus]:
    """The first set of inputs with other initializers where callers may give them, of all kinds, or else of floating
    ones alone, if the model runs on those; nothing where the user gave some, or all together are too large.
    """
    names = {info.name for info in overridable_inputs(model)}
    tensors = [tensor for tensor in model.graph.initializer if tensor.name in names]
    size = sum(prod(tensor.dims) * 8 for tensor in tensors)
    if not tensors or not names.isdisjoint(first.feeds) or size > MOST_OVERRIDDEN:
        return
    rng = np.random.default_rng(seed)
    arrays = {tensor.name: numpy_helper.to_array(tensor, str(base_dir)) for tensor in tensors}
    changed = {name: _changed(rng, array) for name, array in arrays.items()}
    floating = {name: array for name, array in changed.items() if array.dtype.kind in "fV"}
    for others in (changed, floating):
        feeds = {**first.feeds, **others}
        if others and fault(feeds) is None:
            yield Stimulus(f"{first.name}, other initializers", feeds)
            return


def _changed(rng: np.random.Generator, array: Array) -> Array:
    """Values of the same signs and about the same magnitudes, so that a variance stays one; zeros become small."""
    if array.dtype.kind == "b":
        return ~array
    if array.dtype.kind in "iu":
        return np.asarray(array + 1, array.dtype)
    if array.dtype.kind not in "fV":
        return array
    values = array.astype(np.float64)
    values = np.where(values == 0, rng.uniform(0, 0.125, array.shape), values * rng.uniform(0.5, 1.5, array.shape))
    return np.asarray(values).astype(array.dtype)


def shapes_at(infos: Sequence[ValueInfoProto], first: int, other: int) -> list[Shapes]:
    """The shapes of inputs with their open dimensions filled in. The first of each input is `first`. Symbols behind it,
    and what has none by its axis, are `other`, twice that, and so on, so that height and width cannot be mixed up; or
    all are `other`.

    Raises SourceError where an input is no tensor, or of no known element type, or too large.
    """
    for info in infos:
        if not info.type.HasField("tensor_type"):
            raise SourceError(f"the input {info.name!r} is no tensor: none can be made, nor given")
        if not _is_known(info.type.tensor_type.elem_type):
            raise SourceError(
                f"the input {info.name!r} is {_kind(info)}, which is not known: none can be made, nor given"
            )
    equal = tuple(_shape(info, {}, first, other) for info in infos)
    for info, shape in zip(infos, equal, strict=True):
        if prod(shape) > MOST_ELEMENTS:
            raise SourceError(f"the input {info.name!r} has more than {MOST_ELEMENTS} elements: none is made")
    extents = _extents(infos, first, other)
    apart = tuple(_shape(info, extents, first, other) for info in infos)
    return [equal] if any(prod(shape) > MOST_ELEMENTS for shape in apart) else [apart, equal]


def _extents(infos: Sequence[ValueInfoProto], first: int, other: int) -> dict[str | int, int]:
    """Those of open dimensions by symbol, or by axis."""
    extents: dict[str | int, int] = {}
    multiples = count(1)
    for info in infos:
        for i, dim in enumerate(info.type.tensor_type.shape.dim):
            if _is_open(dim) and (dim.dim_param or i) not in extents:
                extents[dim.dim_param or i] = other * next(multiples) if i else first
    return extents


def _is_open(dim: TensorShapeProto.Dimension) -> bool:
    """Whether callers choose the extent: zero is one, as that of a cache that is empty at first."""
    return not dim.HasField("dim_value") or dim.dim_value < 0


def _shape(info: ValueInfoProto, extents: Mapping[str | int, int], first: int, other: int) -> tuple[int, ...]:
    return tuple(
        extents.get(dim.dim_param or i, other if i else first) if _is_open(dim) else dim.dim_value
        for i, dim in enumerate(info.type.tensor_type.shape.dim)
    )


def _feeds(
    infos: Sequence[ValueInfoProto], shapes: Sequence[Sequence[int]], draw: Draw, limits: Mapping[str, int | None]
) -> Feeds:
    return {
        info.name: draw.next(info.type.tensor_type.elem_type, shape, limits[info.name])
        for info, shape in zip(infos, shapes, strict=True)
    }


def index_limits(model: ModelProto) -> dict[str, int]:
    """For integer inputs that index a constant table, through operators that move them, how long the table is."""
    tables = {tensor.name: tensor.dims for tensor in model.graph.initializer}
    comes_from: dict[str, str] = {info.name: info.name for info in model.graph.input}
    limits: dict[str, int] = {}
    for node in model.graph.node:
        if node.op_type in ("Gather", "GatherElements", "GatherND") and len(node.input) > 1:
            table, name = tables.get(node.input[0]), comes_from.get(node.input[1])
            axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
            if table and name is not None and -len(table) <= axis < len(table) and table[axis] > 0:
                limits[name] = min(limits.get(name, table[axis]), table[axis])
        elif node.op_type in ("Cast", "Reshape", "Unsqueeze", "Squeeze", "Identity", "Transpose", "Flatten", "Concat"):
            for name in node.input:
                if name in comes_from:
                    comes_from[node.output[0]] = comes_from[name]
    return limits


def read_inputs(paths: Sequence[str | Path], model: ModelProto) -> list[Stimulus]:
    """The user's own inputs: each `.npz` is one set by name; all `.npy` and `.pb` (TensorProto) files together are one,
    in the order of the model's inputs, or by name where a TensorProto bears one.

    Raises VerifyError where a file cannot be read or does not fit the model.
    """
    infos = {info.name: info for info in required_inputs(model)}
    taken = infos | {info.name: info for info in overridable_inputs(model)}
    sets: list[Stimulus] = []
    loose: Feeds = {}
    files = [Path(path) for path in paths]
    called = Counter(path.name for path in files)
    for path in files:
        try:
            if path.suffix == ".npz":
                with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                    feeds = {name: archive[name] for name in archive.files if name in taken}
                sets.append(Stimulus(path.name if called[path.name] == 1 else str(path), feeds))
                continue
            name, array = _read_tensor(path)
        except Exception as error:  # numpy, zipfile and onnx have no error in common
            raise VerifyError(f"{path}: no inputs can be read from it: {error}") from None
        free = next((other for other in infos if other not in loose), None)
        target = name if name in taken else free
        if target is None:
            raise VerifyError(f"{path}: the model has {len(infos)} inputs, and each is given already")
        loose[target] = array
    if loose:
        sets.append(Stimulus("given", loose))
    for stimulus in sets:
        check_feeds(stimulus, infos | {name: taken[name] for name in stimulus.feeds})
    return sets


def _read_tensor(path: Path) -> tuple[str, Array]:
    if path.suffix == ".npy":
        with path.open("rb") as file:
            array: Array = np.lib.format.read_array(file, allow_pickle=False)
        return "", array
    proto = TensorProto()
    try:
        proto.ParseFromString(path.read_bytes())
    except Exception as error:
        raise ValueError(f"this is neither .npz, .npy nor a TensorProto: {error}") from None
    if proto.external_data or proto.data_location == TensorProto.EXTERNAL:
        raise ValueError("its elements stand in another file")
    return proto.name, numpy_helper.to_array(proto)


def check_feeds(stimulus: Stimulus, infos: Mapping[str, Any]) -> None:
    """Raises VerifyError where an input is missing or has another type or rank than the model declares."""
    for name, info in infos.items():
        array = stimulus.feeds.get(name)
        if array is None:
            raise VerifyError(f"{stimulus.name}: the input {name!r} is missing")
        tensor = info.type.tensor_type
        if not _is_known(tensor.elem_type):
            raise VerifyError(f"{stimulus.name}: the input {name!r} is {_kind(info)}, which is not known")
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if array.dtype != dtype:
            raise VerifyError(f"{stimulus.name}: the input {name!r} is {array.dtype}, and {dtype} is needed")
        if tensor.HasField("shape") and len(tensor.shape.dim) != array.ndim:
            raise VerifyError(
                f"{stimulus.name}: the input {name!r} has {array.ndim} axes, and {len(tensor.shape.dim)} are needed"
            )
