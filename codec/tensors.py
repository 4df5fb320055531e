"""ONNX tensors as payloads, and payloads as ONNX tensors."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from ..ir.payload import FilePart, Payload, SourceFile, raw
from ..ir.tensor import Array, Tensor, numpy_dtype
from ..ir.types import element_count
from ..support.errors import ModelError, clipped
from .dtypes import export_dtype, import_dtype
from .placeholders import any_held, held, is_placeholder, placeholder
from .protos import TensorProto

_PLAIN = {"f16", "bf16", "f32", "f64", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"}
"""Element types whose raw data is numpy's own layout, for which the general decoder is not needed."""


_OWN = re.compile(
    r"\..*\.(?:\d+-\d+\.tmp|lock)|.*\.(?:irc\.onnx|foldmap\.json|foldmap\.npz|html|irc)", re.DOTALL | re.IGNORECASE
)
"""Names that irc gives to files of its own (`support.files`, `support.output_paths`)."""

KEPT = 1024
"""Elements of so many bytes stay decoded: every pass asks for those of a BatchNormalization."""


class OnnxTensor(Tensor):
    """A TensorProto held by reference; elements are decoded when asked for, external ones read from `base_dir`.

    `part` has the elements, if they are not in the message.
    """

    __slots__ = ("__weakref__", "_array", "base_dir", "dtype", "part", "proto", "shape")

    def __init__(self, proto: TensorProto, base_dir: Path) -> None:
        self.proto = proto
        self.base_dir = base_dir
        self.dtype = import_dtype(proto.data_type)
        self.shape = tuple(proto.dims)
        self.part: Payload | None = None
        if proto.data_location == TensorProto.EXTERNAL or any_held():
            with suppress(ModelError):  # who reads the elements is told
                self.part = elsewhere(proto, base_dir)
        self._array: Array | None = None

    @property
    def is_decoded(self) -> bool:
        """Whether the elements were decoded and kept, which they are if they are few."""
        return self._array is not None

    @property
    def in_memory(self) -> bool:
        return self.part is None or self.part.nbytes != self.nbytes

    def numpy(self) -> Array:
        """Raises ValueError where the elements do not fit the shape or their type is not known, ModelError where a
        file cannot be read. What is small is decoded once.
        """
        if self._array is not None:
            return self._array
        array = self._decoded()
        if array.nbytes <= KEPT and self.part is None:
            self._array = array
        return array

    def _decoded(self) -> Array:
        if self.dtype.kind == "unknown":
            raise ValueError(f"element type {self.proto.data_type} is not known")
        if self.part is None:
            elsewhere(self.proto, self.base_dir)
        if self.proto.data_type == TensorProto.STRING:
            return np.array([*self.proto.string_data, None], object)[:-1].reshape(self.shape)
        if self.dtype.name in _PLAIN and (self.part is not None or self.proto.HasField("raw_data")):
            data = b"".join(map(raw, self.part.blocks())) if self.part is not None else self.proto.raw_data
            return np.frombuffer(data, numpy_dtype(self.dtype)).reshape(self.shape)
        from onnx import numpy_helper

        array: Array = numpy_helper.to_array(self._complete())
        array.flags.writeable = False
        return array

    def blocks(self) -> Iterator[Array]:
        if isinstance(self.part, Tensor):
            yield from self.part.blocks()
            return
        plain = self.dtype.name in _PLAIN and self.nbytes
        if not isinstance(self.part, FilePart) or self.in_memory or not self.shape or not plain:
            yield from super().blocks()
            return
        for block in self.part.blocks(self.rows_per_block * (self.nbytes // self.shape[0])):
            yield np.frombuffer(block, numpy_dtype(self.dtype)).reshape(-1, *self.shape[1:])

    def _complete(self) -> TensorProto:
        """The message with its elements in it."""
        if self.part is None:
            return self.proto
        proto = TensorProto()
        proto.CopyFrom(self.proto)
        proto.raw_data = b"".join(map(raw, self.part.blocks()))
        proto.ClearField("data_location")
        return proto

    def digest(self) -> str:
        """As for any payload; elements that cannot be decoded are named by the message."""
        try:
            return super().digest()
        except ValueError:
            from hashlib import sha256

            return sha256(self._complete().SerializeToString(deterministic=True)).hexdigest()[:16]


def decode_small(tensors: Iterable[OnnxTensor]) -> None:
    """Decode the tensors of few elements, all of one type at once: an array for each of many is what costs."""
    alike: dict[tuple[str, tuple[int, ...]], list[tuple[OnnxTensor, bytes]]] = {}
    some_held = any_held()
    for tensor in tensors:
        data = tensor.proto.raw_data
        plain = tensor.part is None and not tensor.proto.data_location and not (some_held and is_placeholder(data))
        if plain and 0 < len(data) <= KEPT:
            alike.setdefault((tensor.dtype.name, tensor.shape), []).append((tensor, data))
    for (name, shape), found in alike.items():
        if name not in _PLAIN or min(shape, default=0) < 1:
            continue
        dtype = found[0][0].dtype
        fitting = [(tensor, data) for tensor, data in found if 8 * len(data) == element_count(shape) * dtype.bits]
        if not fitting:
            continue
        together = np.frombuffer(b"".join([data for _, data in fitting]), numpy_dtype(dtype)).reshape(-1, *shape)
        for (tensor, _), array in zip(fitting, together, strict=True):
            tensor._array = array


def elsewhere(proto: TensorProto, base_dir: Path) -> Payload | None:
    """The elements of a tensor that are not in its message, None where they are.

    Raises ModelError where external data is missing, lies outside `base_dir` or ends too early.
    """
    if proto.data_location == TensorProto.EXTERNAL:
        return external_part(proto, base_dir)
    return held(proto.raw_data) if any_held() and proto.HasField("raw_data") else None


def external_part(proto: TensorProto, base_dir: Path) -> FilePart:
    """Where the elements of an external tensor stand: `length` bytes, or all that are left, from `offset`.

    Raises ModelError as `check_location`, and where the file does not hold the elements there.
    """
    path = check_location(proto, base_dir)
    try:
        file = SourceFile.at(path)
    except OSError as error:
        raise ModelError(f"{_external(proto)} cannot be read: {error.strerror}") from None
    found = _range(proto, file.size)
    if isinstance(found, str):
        raise ModelError(f"{_external(proto)}: {found}")
    return FilePart(file, *found)


def _external(proto: TensorProto) -> str:
    return f"tensor {clipped(proto.name)}: external data {clipped(external_location(proto))}"


def external_location(proto: TensorProto) -> str:
    """The location key of an external tensor."""
    return next((entry.value for entry in proto.external_data if entry.key == "location"), "")


def check_location(proto: TensorProto, base_dir: Path) -> Path:
    """The file of an external tensor.

    Raises ModelError where it is missing, is no regular file or lies outside the model's folder.
    """
    location = external_location(proto)
    if not isinstance(location, str):  # protobuf gives bytes where a string is not UTF-8
        raise ModelError(f"{_external(proto)} is not UTF-8 text")
    try:
        path = base_dir / location
        inside = (
            Path(os.path.realpath(base_dir)) in Path(os.path.realpath(path)).parents
            and ".." not in Path(location).parts
        )
        if not location or Path(location).is_absolute() or not inside:
            raise ModelError(f"{_external(proto)} lies outside the model's folder")
        if _OWN.fullmatch(path.name):
            raise ModelError(f"{_external(proto)} has a name that irc gives to files of its own")
        if not path.is_file():
            raise ModelError(f"{_external(proto)} is {'no regular file' if path.exists() else 'missing'}")
    except (OSError, ValueError, RuntimeError) as error:  # the last of links in a circle, before python 3.13
        why = error.strerror if isinstance(error, OSError) else error
        raise ModelError(f"{_external(proto)} cannot be read: {why}") from None
    return path


def _range(proto: TensorProto, size: int) -> tuple[int, int] | str:
    """Offset and length of the elements of `proto` in a file of `size` bytes, or why it does not hold them there."""
    numbers = {"offset": "0"}
    numbers.update((entry.key, entry.value) for entry in proto.external_data if entry.key in ("offset", "length"))
    for key, text in numbers.items():
        if not (isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 20):
            return f"{key} {clipped(text)} is no number of bytes"
    offset = int(numbers["offset"])
    length = int(numbers.get("length", max(size - offset, 0)))
    if offset + length > size:
        return f"{length} bytes from {offset} on are not in its {size} bytes"
    dtype = import_dtype(proto.data_type)
    wanted = (element_count(proto.dims) * dtype.bits + 7) // 8
    if dtype.bits and (length != wanted or any(dim < 0 for dim in proto.dims)):
        return f"its {length} bytes are not the {wanted} of the shape {list(proto.dims)[:8]}"
    return offset, length


def tensor_proto(tensor: Tensor, name: str) -> TensorProto:
    """A TensorProto of `tensor` under `name`; one that came from ONNX goes out as it came.

    For elements that are not in memory a placeholder stands in it, as long as somebody holds `tensor`.
    """
    if isinstance(tensor, OnnxTensor) and tensor.proto.name == name:
        return tensor.proto
    proto = TensorProto()
    write_tensor(proto, tensor, name)
    return proto


def write_tensor(proto: TensorProto, tensor: Tensor, name: str) -> None:
    """Write `tensor` to an empty `proto`, as `tensor_proto` has it."""
    if isinstance(tensor, OnnxTensor):
        proto.CopyFrom(tensor.proto)
        if tensor.proto.name != name:
            proto.name = name
        return
    proto.name, proto.data_type = name, export_dtype(tensor.dtype)
    proto.dims.extend(tensor.shape)
    if not tensor.in_memory:
        proto.raw_data = placeholder(tensor)
        return
    array = tensor.numpy()
    if tensor.dtype.kind == "string":
        proto.string_data.extend(item if isinstance(item, bytes) else str(item).encode() for item in array.ravel())
    elif tensor.dtype.bits < 8:
        from onnx import numpy_helper

        proto.raw_data = numpy_helper.from_array(np.ascontiguousarray(array)).raw_data
    else:
        proto.raw_data = array.tobytes()
