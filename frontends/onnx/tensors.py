"""ONNX tensors as payloads, and payloads as ONNX tensors."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from onnx import TensorProto, external_data_helper, numpy_helper

from ...ir.errors import ModelError
from ...ir.tensor import Array, Tensor
from .dtypes import export_dtype, import_dtype

_PLAIN = {"f32": "<f4", "f64": "<f8", "f16": "<f2", "i64": "<i8", "i32": "<i4"}
"""Element types whose raw data is numpy's own layout, for which the general decoder is not needed."""


KEPT = 1024
"""Elements of so many bytes stay decoded: every pass asks for those of a BatchNormalization."""


class OnnxTensor(Tensor):
    """A TensorProto held by reference; elements are decoded when asked for, external ones read from `base_dir`."""

    __slots__ = ("_array", "base_dir", "dtype", "proto", "shape")

    def __init__(self, proto: TensorProto, base_dir: Path) -> None:
        self.proto = proto
        self.base_dir = base_dir
        self.dtype = import_dtype(proto.data_type)
        self.shape = tuple(proto.dims)
        self._array: Array | None = None

    @property
    def is_external(self) -> bool:
        """Whether the elements stand in a file of their own."""
        return external_data_helper.uses_external_data(self.proto)

    def numpy(self) -> Array:
        """Raises ValueError where the elements do not fit the shape or their type is not known, OSError and ModelError
        where external data cannot be read. What is small is decoded once.
        """
        if self._array is not None:
            return self._array
        array = self._decoded()
        if array.nbytes <= KEPT and not self.is_external:
            self._array = array
        return array

    def _decoded(self) -> Array:
        if self.dtype.kind == "unknown":
            raise ValueError(f"element type {self.proto.data_type} is not known")
        if self.proto.data_type == TensorProto.STRING:
            return np.array([*self.proto.string_data, None], object)[:-1].reshape(self.shape)
        if self.proto.HasField("raw_data") and not self.is_external and self.dtype.name in _PLAIN:
            return np.frombuffer(self.proto.raw_data, _PLAIN[self.dtype.name]).reshape(self.shape)
        if self.is_external:
            check_location(self.proto, self.base_dir)
        array: Array = numpy_helper.to_array(self.proto, str(self.base_dir))
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

    Raises ModelError where it is missing or lies outside the model's folder.
    """
    location = external_location(proto)
    path = base_dir / location
    root = base_dir.resolve()
    if not location or Path(location).is_absolute() or root not in path.resolve().parents:
        raise ModelError(f"tensor {proto.name!r}: external data {location!r} lies outside the model's folder")
    if not path.is_file():
        raise ModelError(f"tensor {proto.name!r}: external data {location!r} is missing")
    return path


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
