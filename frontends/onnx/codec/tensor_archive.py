"""The data file of IR text: an .npz file with the tensors that the text names by digest.

A member is `DIGEST.npy`, or `DIGEST.TYPE.npy` if numpy's format lacks the element type. The bits of
bf16, f8e4m3fn, i4 and the like are unsigned integers, one an element. Strings are their lengths and
bytes. Members are not compressed: large tensors stay in the file.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Mapping
from functools import cached_property
from math import prod
from pathlib import Path

import numpy as np

from ....ir.payload import FilePart, SourceFile, byte_view
from ....ir.tensor import Array, ArrayTensor, Tensor, dtype_from_numpy, numpy_dtype
from ....ir.types import DTYPES, DType, element_count
from ....support.errors import ModelError, clipped
from ....support.files import writing

LARGE = 1 << 16
"""Tensors of at least this many bytes stay in the file."""

MAX_HEADER = 1 << 14
"""Most bytes of the header of a member: NumPy itself refuses headers of more than 10,000 bytes."""

LOCAL_HEADER = 30
"""Bytes of the fixed part of a member's header in the archive.

The name and an extra field follow.
"""


class FileTensor(Tensor):
    """A payload in a part of a file, in the memory layout of numpy."""

    __slots__ = ("__weakref__", "dtype", "part", "shape", "size")

    def __init__(self, part: FilePart, dtype: DType, shape: tuple[int, ...]) -> None:
        self.part, self.dtype, self.shape, self.size = part, dtype, shape, element_count(shape)

    @property
    def in_memory(self) -> bool:
        return False

    def numpy(self) -> Array:
        """Return the elements as a read-only array.

        Raises ModelError if the file does not have them any more.
        """
        return np.frombuffer(self.part.read(), numpy_dtype(self.dtype)).reshape(self.shape)

    def blocks(self) -> Iterator[Array]:
        storage = numpy_dtype(self.dtype)
        if not self.shape or not self.nbytes:
            yield from super().blocks()
            return
        for block in self.part.blocks(self.rows_per_block * (self.nbytes // self.shape[0])):
            yield np.frombuffer(block, storage).reshape(-1, *self.shape[1:])


class TensorArchive(Mapping[str, Tensor]):
    """The tensors of a data file by digest, of which large ones are read on demand.

    The file is opened when a tensor is first asked for. Unless it `is_required`, a missing file
    counts as empty, and a missing digest raises KeyError. `parts` are the parts of the file that
    tensors refer to.
    """

    def __init__(self, path: Path, *, is_required: bool) -> None:
        self.path = path
        self.is_required = is_required
        self.parts: list[FilePart] = []

    @cached_property
    def _members(self) -> dict[str, tuple[zipfile.ZipInfo, str]]:
        """Return each member by its digest, with the name of its type if numpy lacks it."""
        if not self.is_required and not self.path.exists():
            return {}
        try:
            with zipfile.ZipFile(self.path) as archive:
                members = archive.infolist()
        except OSError as error:
            raise ModelError(
                f"{self.path}: the data of the IR text cannot be read: {error.strerror}"
            ) from None
        except Exception as error:  # zipfile raises many kinds for files that are damaged
            reason = clipped(str(error))
            raise ModelError(
                f"{self.path}: the data of the IR text cannot be read: {reason}"
            ) from None
        found = {}
        for member in members:
            digest, _, type_name = member.filename.removesuffix(".npy").partition(".")
            found[digest] = (member, type_name)
        return found

    @cached_property
    def _file(self) -> SourceFile:
        return SourceFile.at(self.path)

    def __getitem__(self, digest: str) -> Tensor:
        """Return a tensor, whose elements were compared with the digest.

        Raises KeyError if the file lacks it and is not required, ModelError if it is damaged.
        """
        if digest not in self._members:
            if not self.is_required:
                raise KeyError(digest)
            raise ModelError(
                f"{self.path}: tensor #{digest} is not in it: is it the data of another text?"
            )
        member, type_name = self._members[digest]
        try:
            tensor = self._tensor(member, type_name)
        except OSError as error:
            raise ModelError(f"{self.path}: cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise ModelError(
                f"{self.path}: {member.filename} cannot be read: {clipped(str(error))}"
            ) from None
        if tensor.digest() != digest:
            raise ModelError(
                f"{self.path}: {member.filename} has other elements than its name says; to change"
                " elements, give irc.parse the arrays as data"
            )
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def _tensor(self, member: zipfile.ZipInfo, type_name: str) -> Tensor:
        """Return the tensor of a member.

        Raises ValueError, OSError or ModelError if it is damaged.
        """
        if member.compress_type != zipfile.ZIP_STORED:
            raise ValueError("it is compressed; write the file with numpy.savez")
        file = self._file
        local = file.read(member.header_offset, LOCAL_HEADER)
        start = (
            LOCAL_HEADER
            + int.from_bytes(local[26:28], "little")
            + int.from_bytes(local[28:30], "little")
        )
        offset = member.header_offset + start
        head = io.BytesIO(file.read(offset, min(member.file_size, MAX_HEADER)))
        reader = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        version = np.lib.format.read_magic(head)
        if version not in reader:
            raise ValueError(f"its format is {version}")
        shape, is_fortran, stored = reader[version](head)
        if stored.hasobject or not stored.isnative:
            raise ValueError(f"its elements are {stored}")
        if is_fortran and len(shape) > 1:
            raise ValueError(
                "its elements are in Fortran's order; write numpy.ascontiguousarray of it"
            )
        part = FilePart(file, offset + head.tell(), prod(shape) * stored.itemsize)
        if member.file_size != head.tell() + part.nbytes:
            raise ValueError(f"its size does not fit the shape {list(shape)}")
        if type_name == "str":
            return ArrayTensor(_unpack_strings(part.read()), DTYPES["str"])
        dtype = _dtype_of(stored, type_name)
        if part.nbytes < LARGE or dtype.bits < 8:
            return ArrayTensor(np.frombuffer(part.read(), numpy_dtype(dtype)).reshape(shape), dtype)
        self.parts.append(part)
        return FileTensor(part, dtype, shape)


def write_archive(path: Path, target: Path, data: Mapping[str, Tensor]) -> None:
    """Write `data` by digest to the file `target`, which will be `path`.

    Equal data give equal files. Tensors that are not in memory are read in blocks. Raises EmitError
    if the file cannot be written, and ModelError if elements cannot be read or do not fit their
    shape.
    """
    with writing(path), zipfile.ZipFile(target, "w", allowZip64=True) as archive:
        for digest, tensor in data.items():
            try:
                _write_member(archive, digest, tensor)
            except ValueError as error:
                raise ModelError(
                    f"{path}: tensor #{digest} cannot be written: {clipped(str(error))}"
                ) from None


def _write_member(archive: zipfile.ZipFile, digest: str, tensor: Tensor) -> None:
    if tensor.dtype.kind == "unknown":
        raise ValueError("its element type is unknown")
    if min(tensor.shape, default=0) < 0:
        raise ValueError(f"it has the shape {list(tensor.shape)}")
    name, storage, shape = digest, numpy_dtype(tensor.dtype), tensor.shape
    if tensor.dtype.kind == "string":
        packed = _pack_strings(tensor.numpy())
        name, storage, shape = f"{digest}.str", packed.dtype, packed.shape
        tensor = ArrayTensor(packed)
    elif storage.isbuiltin != 1:
        name, storage = f"{digest}.{tensor.dtype}", np.dtype(f"u{storage.itemsize}")
    member = zipfile.ZipInfo(f"{name}.npy")  # dated 1980, so that equal data give equal files
    header = {
        "descr": np.lib.format.dtype_to_descr(storage),
        "fortran_order": False,
        "shape": shape,
    }
    large = tensor.size * storage.itemsize > (1 << 30)
    with archive.open(member, "w", force_zip64=large) as stream:
        np.lib.format.write_array_header_1_0(stream, header)
        for block in tensor.blocks():
            stream.write(byte_view(block))


def _dtype_of(stored: np.dtype[np.generic], type_name: str) -> DType:
    """Return the element type of a member.

    Raises ValueError if its name states none that it can hold.
    """
    try:
        if not type_name:
            return dtype_from_numpy(stored)
        dtype = DTYPES[type_name]
        fits = stored.kind == "u" and stored.itemsize == numpy_dtype(dtype).itemsize
    except KeyError:
        fits = False
    if not fits:
        raise ValueError(f"its elements are {stored}")
    return dtype


def _pack_strings(array: Array) -> Array:
    """Return strings as one array of bytes.

    It has rank, extents and the length of each string as int64, then the bytes of all strings.
    """
    items = [
        item if isinstance(item, bytes) else str(item).encode("utf-8", "surrogatepass")
        for item in array.ravel()
    ]
    numbers = np.array([array.ndim, *array.shape, *map(len, items)], "<i8")
    return np.frombuffer(numbers.tobytes() + b"".join(items), np.uint8)


def _unpack_strings(data: bytes) -> Array:
    """Return the strings of `_pack_strings`. Raises ValueError for other bytes."""
    numbers = np.frombuffer(data, "<i8", len(data) // 8)
    rank = int(numbers[0]) if len(numbers) else -1
    shape = tuple(map(int, numbers[1 : 1 + rank])) if 0 <= rank < len(numbers) else (-1,)
    count = prod(shape)
    if min(shape, default=0) < 0 or count > len(numbers) - 1 - rank:
        raise ValueError("it is not a list of strings")
    ends = np.cumsum(numbers[1 + rank : 1 + rank + count], dtype=np.int64) + 8 * (1 + rank + count)
    starts = [8 * (1 + rank + count), *ends[:-1].tolist()] if count else []
    if count and (numbers[1 + rank : 1 + rank + count].min() < 0 or int(ends[-1]) != len(data)):
        raise ValueError("it is not a list of strings")
    items = [data[start:end] for start, end in zip(starts, ends.tolist(), strict=True)]
    return np.array([*items, None], object)[:-1].reshape(shape)
