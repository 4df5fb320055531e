"""ONNX tensors as payloads, and payloads as ONNX tensors."""

from __future__ import annotations

import hashlib
from math import prod
from pathlib import Path

import numpy as np
from onnx import TensorProto, external_data_helper, numpy_helper
from onnx.checker import ValidationError

from ...ir.errors import ModelError, clipped
from ...ir.tensor import Array, Tensor
from .dtypes import export_dtype, import_dtype

_PLAIN = {"f32": "<f4", "f64": "<f8", "f16": "<f2", "i64": "<i8", "i32": "<i4"}
"""Element types whose raw data is numpy's own layout, for which the general decoder is not needed."""


class OnnxTensor(Tensor):
    """A TensorProto held by reference; elements are decoded when asked for, external ones read from `base_dir`."""

    __slots__ = ("base_dir", "dtype", "proto", "shape")

    def __init__(self, proto: TensorProto, base_dir: Path) -> None:
        self.proto = proto
        self.base_dir = base_dir
        self.dtype = import_dtype(proto.data_type)
        self.shape = tuple(proto.dims)

    @property
    def is_external(self) -> bool:
        """Whether the elements stand in a file of their own."""
        return external_data_helper.uses_external_data(self.proto)

    def numpy(self) -> Array:
        """Raises ValueError where the elements do not fit the shape or their type is not known, OSError and ModelError
        where external data cannot be read.
        """
        if self.dtype.kind == "unknown":
            raise ValueError(f"element type {self.proto.data_type} is not known")
        if self.proto.data_type == TensorProto.STRING:
            return np.array([*self.proto.string_data, None], object)[:-1].reshape(self.shape)
        if self.proto.HasField("raw_data") and not self.is_external and self.dtype.name in _PLAIN:
            return np.frombuffer(self.proto.raw_data, _PLAIN[self.dtype.name]).reshape(self.shape)
        if self.is_external:
            check_location(self.proto, self.base_dir)
        try:
            array: Array = numpy_helper.to_array(self.proto, str(self.base_dir))
        except ValidationError as error:  # as of a link, of which onnx reads none
            raise ModelError(f"tensor {clipped(self.proto.name)}: {str(error).splitlines()[0]}") from None
        array.flags.writeable = False
        return array

    def digest(self) -> str:
        """As for any payload; elements that cannot be decoded are named by the message."""
        try:
            return super().digest()
        except ValueError:
            return hashlib.sha256(self.proto.SerializeToString(deterministic=True)).hexdigest()[:16]


def external_location(proto: TensorProto) -> str:
    """The location key of an external tensor."""
    return next((entry.value for entry in proto.external_data if entry.key == "location"), "")


def check_location(proto: TensorProto, base_dir: Path) -> Path:
    """The file of an external tensor.

    Raises ModelError where it is missing, is no regular file or lies outside the model's folder, and where it does not
    hold the elements at the place that is given.
    """
    location = external_location(proto)
    who = f"tensor {clipped(proto.name)}: external data {clipped(location)}"
    try:
        path = base_dir / location
        inside = base_dir.resolve() in path.resolve().parents and ".." not in Path(location).parts
        if not location or Path(location).is_absolute() or not inside:
            raise ModelError(f"{who} lies outside the model's folder")
        if not path.is_file():
            raise ModelError(f"{who} is {'no regular file' if path.exists() else 'missing'}")
        size = path.stat().st_size
    except (OSError, ValueError, RuntimeError) as error:  # the last of links in a circle, before python 3.13
        raise ModelError(f"{who} cannot be read: {error.strerror if isinstance(error, OSError) else error}") from None
    if (fault := _out_of_range(proto, size)) is not None:
        raise ModelError(f"{who}: {fault}")
    return path


def _out_of_range(proto: TensorProto, size: int) -> str | None:
    """Why a file of `size` bytes does not hold the elements of `proto` where it says."""
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
    wanted = (prod(proto.dims) * dtype.bits + 7) // 8
    if dtype.bits and (length != wanted or any(dim < 0 for dim in proto.dims)):
        return f"its {length} bytes are not the {wanted} of the shape {list(proto.dims)[:8]}"
    return None


def tensor_proto(tensor: Tensor, name: str) -> TensorProto:
    """A TensorProto of `tensor` under `name`; one that came from ONNX goes out as it came."""
    if isinstance(tensor, OnnxTensor):
        if tensor.proto.name == name:
            return tensor.proto
        proto = TensorProto()
        proto.CopyFrom(tensor.proto)
        proto.name = name
        return proto
    array = tensor.numpy()
    proto = TensorProto(name=name, dims=tensor.shape, data_type=export_dtype(tensor.dtype))
    if tensor.dtype.kind == "string":
        proto.string_data.extend(item if isinstance(item, bytes) else str(item).encode() for item in array.ravel())
    elif tensor.dtype.bits < 8:
        proto.raw_data = numpy_helper.from_array(np.ascontiguousarray(array)).raw_data
    else:
        proto.raw_data = np.ascontiguousarray(array).tobytes()
    return proto
