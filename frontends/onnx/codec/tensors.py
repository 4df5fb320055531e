"""Tensors, from ONNX to payloads of the IR and back. Nothing is decoded before it is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from ....ir.payload import FilePart, Payload, byte_view
from ....ir.tensor import Array, Tensor, numpy_dtype
from ....ir.types import element_count
from ....support.errors import ModelError
from .external_data import external_part
from .onnx_types import export_dtype, import_dtype
from .protos import TensorProto
from .streaming import is_placeholder, make_placeholder, payload_of, placeholders_exist

ELEMENT_FIELDS = (
    *(
        "raw_data",
        "float_data",
        "double_data",
        "int32_data",
        "int64_data",
        "uint64_data",
        "string_data",
    ),
    "external_data",
)
"""The fields of a TensorProto that contain its elements, or their location."""

_NUMPY_LAYOUT = {
    "f16",
    "bf16",
    "f32",
    "f64",
    "i8",
    "i16",
    "i32",
    "i64",
    "u8",
    "u16",
    "u32",
    "u64",
    "bool",
}
"""Element types whose raw data has the memory layout of numpy."""

_NUMBERS = {
    "f32": "float_data",
    "f64": "double_data",
    "i32": "int32_data",
    "i64": "int64_data",
    "bool": "int32_data",
}
"""Fields that list elements as numbers of their own type, or 0 and 1."""

CACHED_BYTES = 1024
"""Tensors of up to this many bytes are decoded once: every pass reads some of them again."""

NUMPY_RANK = 64
"""Most axes of an array.

Tensors with more are kept as they are: to read their elements raises ValueError.
"""


class OnnxTensor(Tensor):
    """A reference to a TensorProto, whose elements are decoded on demand.

    External data is below `base_dir`. `payload` has the elements if the message does not contain
    them.
    """

    __slots__ = ("__weakref__", "_array", "base_dir", "dtype", "payload", "proto", "shape", "size")

    def __init__(self, proto: TensorProto, base_dir: Path) -> None:
        self.proto = proto
        self.base_dir = base_dir
        self.dtype = import_dtype(proto.data_type)
        self.shape = tuple(proto.dims[:])
        self.size = element_count(self.shape)
        self.payload: Payload | None = None
        if proto.data_location == TensorProto.EXTERNAL or placeholders_exist():
            with suppress(ModelError):  # raised when the elements are read
                self.payload = detached_payload(proto, base_dir)
        self._array: Array | None = None

    @property
    def is_decoded(self) -> bool:
        """Whether the decoded elements are cached."""
        return self._array is not None

    @property
    def in_memory(self) -> bool:
        return self.payload is None or self.payload.nbytes != self.nbytes

    def numpy(self) -> Array:
        """Return the elements as a read-only array.

        Raises ValueError if they do not fit the shape or their type is unknown, ModelError if a
        file cannot be read.
        """
        if self._array is not None:
            return self._array
        array = self._decoded()
        if array.nbytes <= CACHED_BYTES and self.payload is None:
            self._array = array
        return array

    def _decoded(self) -> Array:
        if self.dtype.kind == "unknown":
            raise ValueError(f"the element type {self.proto.data_type} is unknown")
        if self.size < 0:  # numpy would infer the extent
            raise ValueError(f"the shape {list(self.shape)} has a negative extent")
        if self.payload is None:
            # raises the error that __init__ suppressed
            self.payload = detached_payload(self.proto, self.base_dir)
        if isinstance(self.payload, Tensor):
            return self.payload.numpy()
        if self.proto.data_type == TensorProto.STRING:
            return np.array([*self.proto.string_data, None], object)[:-1].reshape(self.shape)
        if self.dtype.name in _NUMPY_LAYOUT and self.payload is not None:
            return self._array_of(b"".join(map(byte_view, self.payload.blocks())))
        if self.dtype.name in _NUMPY_LAYOUT and self.proto.HasField("raw_data"):
            return self._array_of(self.proto.raw_data)
        array = self._listed()
        array.flags.writeable = False
        return array

    def _array_of(self, raw_data: bytes) -> Array:
        return np.frombuffer(raw_data, numpy_dtype(self.dtype)).reshape(self.shape)

    def _listed(self) -> Array:
        """Return elements that the message lists as numbers, or packs below a byte."""
        field = _NUMBERS.get(self.dtype.name)
        if field is not None and self.payload is None and not self.proto.HasField("segment"):
            return np.array(getattr(self.proto, field), numpy_dtype(self.dtype)).reshape(self.shape)
        # The Python of onnx takes 40 ms to import, a fifth of a small compile. Few models list such
        # elements, or pack them.
        from onnx import numpy_helper

        array: Array = numpy_helper.to_array(self._complete())
        return array

    def blocks(self) -> Iterator[Array]:
        if isinstance(self.payload, Tensor):
            yield from self.payload.blocks()
            return
        # Only bytes that numpy reads as they are can be taken from the file row by row.
        is_plain = self.dtype.name in _NUMPY_LAYOUT and self.nbytes and self.shape
        if not isinstance(self.payload, FilePart) or self.in_memory or not is_plain:
            yield from super().blocks()
            return
        for block in self.payload.blocks(self.rows_per_block * (self.nbytes // self.shape[0])):
            yield np.frombuffer(block, numpy_dtype(self.dtype)).reshape(-1, *self.shape[1:])

    def _complete(self) -> TensorProto:
        """Return the message with its elements in it."""
        if self.payload is None:
            return self.proto
        proto = TensorProto()
        proto.CopyFrom(self.proto)
        proto.raw_data = b"".join(map(byte_view, self.payload.blocks()))
        proto.ClearField("data_location")
        return proto

    def digest(self) -> str:
        """Return the digest of the payload, or of the message if the elements cannot be decoded."""
        try:
            return super().digest()
        except ValueError:
            # hashlib loads OpenSSL in 3 ms. Digests by sha256 are needed by IR text, and here by
            # tensors that are broken.
            from hashlib import sha256

            return sha256(self._complete().SerializeToString(deterministic=True)).hexdigest()[:16]


def decode_small(tensors: Iterable[OnnxTensor]) -> None:
    """Decode and cache small tensors, all of one type and shape at once.

    numpy's overhead for each array dominates.
    """
    alike: dict[tuple[str, tuple[int, ...]], list[tuple[OnnxTensor, bytes]]] = {}
    has_placeholders = placeholders_exist()
    for tensor in tensors:
        data = tensor.proto.raw_data
        detached = tensor.payload is not None or (has_placeholders and is_placeholder(data))
        if not detached and not tensor.proto.data_location and 0 < len(data) <= CACHED_BYTES:
            alike.setdefault((tensor.dtype.name, tensor.shape), []).append((tensor, data))
    for (name, shape), found in alike.items():
        if name not in _NUMPY_LAYOUT or min(shape, default=0) < 1 or len(shape) >= NUMPY_RANK:
            continue
        dtype = found[0][0].dtype
        bits = element_count(shape) * dtype.bits
        fitting = [(tensor, data) for tensor, data in found if 8 * len(data) == bits]
        if not fitting:
            continue
        together = np.frombuffer(
            b"".join([data for _, data in fitting]), numpy_dtype(dtype)
        ).reshape(-1, *shape)
        for (tensor, _), array in zip(fitting, together, strict=True):
            tensor._array = array


def detached_payload(proto: TensorProto, base_dir: Path) -> Payload | None:
    """Return the elements of a tensor whose message does not contain them, None if it does.

    They are external data or named by a placeholder. Raises ModelError as `external_part`, or if a
    payload is gone.
    """
    if proto.data_location == TensorProto.EXTERNAL:
        return external_part(proto, base_dir)
    return (
        payload_of(proto.raw_data) if placeholders_exist() and proto.HasField("raw_data") else None
    )


def raw_elements(proto: TensorProto, base_dir: Path) -> bytes:
    """Return the elements of a tensor as ONNX's raw data, whichever field or file contains them.

    Raises ModelError if a file cannot be read, ValueError for strings and for elements that do not
    fit their shape.
    """
    payload = detached_payload(proto, base_dir)
    if payload is not None:
        return b"".join(map(byte_view, payload.blocks()))
    if proto.HasField("raw_data"):
        return proto.raw_data
    if proto.data_type == TensorProto.STRING:
        raise ValueError("strings have no raw data")
    tensor = OnnxTensor(proto, base_dir)
    array = tensor.numpy()
    if tensor.dtype.bits >= 8:
        return array.tobytes()
    return _packed(array)


def _packed(array: Array) -> bytes:
    """Return elements of less than a byte, packed as in `raw_data`."""
    # The Python of onnx takes 40 ms to import, a fifth of a small compile. Few models have such
    # elements.
    from onnx import numpy_helper

    return numpy_helper.from_array(array).raw_data


def tensor_proto(tensor: Tensor, name: str) -> TensorProto:
    """Return a TensorProto of `tensor` under `name`.

    It is the original message of an OnnxTensor of that name. Elements that are not in memory are
    represented by a placeholder, which is valid as long as `tensor` is alive.
    """
    if isinstance(tensor, OnnxTensor) and tensor.proto.name == name:
        return tensor.proto
    proto = TensorProto()
    write_tensor(proto, tensor, name)
    return proto


def write_tensor(proto: TensorProto, tensor: Tensor, name: str) -> None:
    """Write `tensor` to an empty `proto`. See `tensor_proto`."""
    if isinstance(tensor, OnnxTensor):
        proto.CopyFrom(tensor.proto)
        if tensor.proto.name != name:
            proto.name = name
        return
    proto.name, proto.data_type = name, export_dtype(tensor.dtype)
    proto.dims.extend(tensor.shape)
    if not tensor.in_memory:
        proto.raw_data = make_placeholder(tensor)
        return
    array = tensor.numpy()
    if tensor.dtype.kind == "string":
        proto.string_data.extend(
            item if isinstance(item, bytes) else str(item).encode() for item in array.ravel()
        )
    elif tensor.dtype.bits < 8:
        proto.raw_data = _packed(np.ascontiguousarray(array))
    else:
        proto.raw_data = array.tobytes()
