"""Inputs of models: open ones, files of values, and whether two models take the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, TypeProto, ValueInfoProto, helper, numpy_helper

from ...ir.tensor import Array
from ...support.errors import InputsError, VerifyError

Feeds = dict[str, Any]
"""Arrays by the names of the inputs, and lists of arrays for sequences."""
Infos = Mapping[str, ValueInfoProto]


@dataclass(frozen=True, slots=True, eq=False)
class Stimulus:
    """One set of inputs for a model, with a name for messages. Names need not be unique."""

    name: str
    feeds: Feeds


def required_inputs(model: ModelProto) -> list[ValueInfoProto]:
    """Return the inputs that a caller has to give."""
    initializers = {tensor.name for tensor in model.graph.initializer}
    initializers.update(tensor.values.name for tensor in model.graph.sparse_initializer)
    return [info for info in model.graph.input if info.name not in initializers]


def overridable_inputs(model: ModelProto) -> list[ValueInfoProto]:
    """Return the inputs that a caller may give to override an initializer.

    IR versions below 4 have none.
    """
    if model.ir_version >= 4:
        initializers = {tensor.name for tensor in model.graph.initializer}
    else:
        initializers = set()
    return [info for info in model.graph.input if info.name in initializers]


def interface_mismatch(
    source: ModelProto, other: ModelProto, *, frozen: bool = False
) -> str | None:
    """Return how the results or inputs of a model differ from its source's, or None.

    With `frozen` the model may lack overridable initializers.
    """
    required, other_required = required_inputs(source), required_inputs(other)
    pairs = (
        ("result", source.graph.output, other.graph.output),
        ("input", required, other_required),
    )
    for label, expected_infos, found_infos in pairs:
        expected = [info.name for info in expected_infos]
        found = [info.name for info in found_infos]
        missing = [name for name in expected if name not in found]
        if missing:
            return f"the {label} {missing[0]!r} is missing"
        added = [name for name in found if name not in expected]
        if added:
            return f"the {label} {added[0]!r} is not in the source"
        if expected != found:
            return (
                f"the {label}s are {', '.join(map(repr, found))}, but"
                f" {', '.join(map(repr, expected))} in the source"
            )
    optional = {info.name for info in overridable_inputs(other)}
    for info in [] if frozen else overridable_inputs(source):
        if info.name not in optional:
            return f"callers can no longer override the initializer {info.name!r}"
    for info, other_info in zip(required, other_required, strict=True):
        type_, other_type = type_name(info), type_name(other_info)
        if type_ != other_type:
            return f"the input {info.name!r} is {other_type}, but {type_} in the source"
        shape, other_shape = declared_shape(info), declared_shape(other_info)
        if shape is None or other_shape is None:
            continue
        if len(shape) != len(other_shape):
            return (
                f"the input {info.name!r} has {len(other_shape)} axes,"
                f" but {len(shape)} in the source"
            )
        for axis, (extent, other_extent) in enumerate(zip(shape, other_shape, strict=True)):
            if extent is not None is not other_extent and extent != other_extent:
                return (
                    f"axis {axis} of the input {info.name!r} is"
                    f" {other_extent}, but {extent} in the source"
                )
    return None


def tensor_type(info: ValueInfoProto) -> TypeProto.Tensor | None:
    """Return the type of the tensors of an input: itself, or in a sequence or an optional."""
    type_ = info.type
    while type_.HasField("sequence_type") or type_.HasField("optional_type"):
        type_ = getattr(type_, str(type_.WhichOneof("value"))).elem_type
    return type_.tensor_type if type_.HasField("tensor_type") else None


def arrays_of(value: Any) -> list[Array]:
    """Return the arrays of an input: itself, or the items of a sequence."""
    return value if isinstance(value, list) else [value]


def declared_shape(info: ValueInfoProto) -> list[int | None] | None:
    """Return the declared extents of an input, None for open ones; None if the rank is unknown."""
    tensor = info.type.tensor_type
    if not info.type.HasField("tensor_type") or not tensor.HasField("shape"):
        return None
    return [
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None
        for dim in tensor.shape.dim
    ]


def type_name(info: ValueInfoProto) -> str:
    """Return the element type of a tensor, or the kind of value that an input is instead."""
    if info.type.HasField("tensor_type"):
        elem_type = info.type.tensor_type.elem_type
        if not is_known_elem_type(elem_type):
            return f"of element type {elem_type}"
        return TensorProto.DataType.Name(elem_type).lower()
    return (info.type.WhichOneof("value") or "of no type").removesuffix("_type")


def is_boolean(info: ValueInfoProto) -> bool:
    """Return whether an input is a tensor of booleans."""
    return bool(info.type.tensor_type.elem_type == TensorProto.BOOL)


def is_known_elem_type(elem_type: int) -> bool:
    """Return whether onnx knows tensors of an element type."""
    return elem_type in helper.get_all_tensor_dtypes()


def read_inputs(
    paths: Sequence[str | Path],
    model: ModelProto,
    convert: Callable[[str, Array], Array] | None = None,
) -> list[Stimulus]:
    """Read a user's own inputs.

    Each `.npz` file is one stimulus. All `.npy` and `.pb` (TensorProto) files together are another
    one: a TensorProto goes to the input of its name, others in the order of the model's inputs.
    `convert` makes the array of an input of its name and what was read.

    Raises VerifyError if a file cannot be read or does not fit the model.
    """
    required: Infos = {info.name: info for info in required_inputs(model)}
    accepted: Infos = {**required, **{info.name: info for info in overridable_inputs(model)}}
    stimuli: list[Stimulus] = []
    single: Feeds = {}
    files = [Path(path) for path in paths]
    name_counts = Counter(path.name for path in files)
    for path in files:
        try:
            if path.suffix == ".npz":
                label = path.name if name_counts[path.name] == 1 else str(path)
                stimuli.append(Stimulus(label, _read_archive(path, accepted)))
                continue
            name, array = _read_tensor(path)
        except Exception as error:  # numpy, zipfile and onnx have no common exception
            if isinstance(error, FileNotFoundError):
                raise InputsError(f"{path}: there is no such file") from None
            why = (error.strerror if isinstance(error, OSError) else None) or error
            raise InputsError(f"{path}: no inputs can be read from it: {why}") from None
        unfed = (other for other in required if other not in single)
        target = name if name in accepted else next(unfed, None)
        if target is None:
            raise InputsError(
                f"{path}: the model has {len(required)} inputs, and other files give all of them"
            )
        single[target] = array
    if single:
        stimuli.append(Stimulus("given", single))
    for stimulus in stimuli:
        if convert is not None:
            stimulus.feeds.update({name: convert(name, x) for name, x in stimulus.feeds.items()})
        check_feeds(stimulus, {**required, **{name: accepted[name] for name in stimulus.feeds}})
    return stimuli


def _read_archive(path: Path, accepted: Infos) -> Feeds:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files if name in accepted}


def _read_tensor(path: Path) -> tuple[str, Array]:
    if path.suffix == ".npy":
        with path.open("rb") as file:
            array: Array = np.lib.format.read_array(file, allow_pickle=False)
        return "", array
    proto, data = TensorProto(), path.read_bytes()
    try:
        proto.ParseFromString(data)
    except Exception:
        raise ValueError("this is neither .npz, .npy nor a TensorProto") from None
    if proto.external_data or proto.data_location == TensorProto.EXTERNAL:
        raise ValueError("its elements are in another file")
    return proto.name, numpy_helper.to_array(proto)


def check_feeds(stimulus: Stimulus, infos: Infos) -> None:
    """Raise VerifyError if an input is missing, or its element type or rank is not as declared."""
    for name, info in infos.items():
        place = f"{stimulus.name}: the input {name!r}"
        array = stimulus.feeds.get(name)
        if array is None:
            raise VerifyError(f"{place} is missing")
        tensor = info.type.tensor_type
        if not is_known_elem_type(tensor.elem_type):
            raise VerifyError(f"{place} is {type_name(info)}, which is not known")
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if array.dtype != dtype:
            raise VerifyError(f"{place} is {array.dtype}, but the model takes {dtype}")
        rank = len(tensor.shape.dim)
        if tensor.HasField("shape") and rank != array.ndim:
            raise VerifyError(f"{place} has {array.ndim} axes, but the model takes {rank}")
