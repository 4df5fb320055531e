"""Bytes that are read on demand: parts of files that are kept open, and buffers to read into."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NoReturn, Protocol

import numpy as np
from xxhash import xxh3_128

from ..support.errors import ModelError

BLOCK = 1 << 20
"""Bytes that are read, computed or written at a time: few enough for the cache of a processor."""

Block = np.ndarray[Any, np.dtype[Any]]
"""An array of any element type, used for its bytes."""


_SCRATCH = range(64 << 10, BLOCK + 1)
"""Sizes of buffers that are reused.

A new buffer of such a size is cleared by the system, page by page.
"""

_SPARE = 8
"""The greatest number of buffers that wait to be reused."""

_spare: list[bytearray] = []


def scratch(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Block:
    """Return an uninitialized array, like `np.empty`, in a reused buffer if one is free.

    The buffer is free again once the array and all its views are gone.
    """
    size = prod(shape) * dtype.itemsize
    if size not in _SCRATCH:
        return np.empty(shape, dtype)
    memory = _spare.pop() if _spare else bytearray(BLOCK)
    array = np.frombuffer(memory, dtype, prod(shape))  # views of it keep it alive
    weakref.finalize(array, _give_back, memory).atexit = False
    return array.reshape(shape)


def _give_back(memory: bytearray) -> None:
    if len(_spare) < _SPARE:
        _spare.append(memory)


class Payload(Protocol):
    """Bytes that can be read repeatedly."""

    @property
    def nbytes(self) -> int:
        """Sum of the bytes of all blocks."""

    def blocks(self) -> Iterator[Block]:
        """Yield the bytes in order, in blocks of about BLOCK bytes."""


class SourceFile:
    """A file that is open and read by position, even if another file gets its name.

    It is not mapped into memory, so a file that shrinks causes an error and not the end of the
    process.
    """

    __slots__ = ("__weakref__", "_fd", "path", "size", "stamp")

    def __init__(self, path: Path) -> None:
        """Open the file. Raises OSError if that fails."""
        self.path = path
        self._fd = os.open(
            path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
        )
        weakref.finalize(self, os.close, self._fd)
        self.stamp = _stamp(self._fd)
        self.size = os.fstat(self._fd).st_size

    @classmethod
    def at(cls, path: Path) -> SourceFile:
        """Return the file that is at `path` now. A file that is open already is shared.

        Raises OSError if it cannot be opened.
        """
        file = cls(path)
        return _files.setdefault((os.fspath(path), file.stamp), file)

    def __deepcopy__(self, memo: object) -> SourceFile:
        return self  # a copy would close the descriptor twice

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self.path} is open: objects that read it cannot be pickled")

    def fileno(self) -> int:
        """Return the descriptor, to be read by position only."""
        return self._fd

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes from `offset`.

        Raises ModelError if the file does not have them any more.
        """
        data = bytearray(size)
        self.read_into(offset, memoryview(data))
        return bytes(data)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` from `offset`. Raises ModelError as `read`."""
        done = 0
        while done < len(buffer):
            try:
                count = _read_at(self._fd, buffer[done:], offset + done)
            except OSError as error:
                raise ModelError(f"{self.path}: cannot be read: {error.strerror}") from None
            if not count:
                raise ModelError(
                    f"{self.path}: the file ends before byte {offset + len(buffer)}: it is"
                    " truncated"
                )
            done += count

    def check_unchanged(self) -> None:
        """Raise ModelError if the file was written to since it was opened."""
        if _stamp(self._fd) != self.stamp:
            raise ModelError(f"{self.path}: the file was changed while it was in use")

    def check_in_place(self) -> None:
        """Raise ModelError if another file has its name now."""
        try:
            same = os.path.samestat(os.stat(self.path), os.fstat(self._fd))
        except OSError:
            same = False
        if not same:
            raise ModelError(f"{self.path}: the file was replaced while it was in use")


@dataclass(frozen=True, slots=True, weakref_slot=True)
class FilePart:
    """A part of a file: `nbytes` bytes from `offset`."""

    file: SourceFile
    offset: int
    nbytes: int

    def __deepcopy__(self, memo: object) -> FilePart:
        return self  # a placeholder refers to this object

    def read(self) -> bytes:
        """Return all bytes. Raises ModelError if the file does not have them any more."""
        return self.file.read(self.offset, self.nbytes)

    def blocks(self, size: int = BLOCK) -> Iterator[Block]:
        """Yield blocks of `size` bytes. Raises ModelError as `read`."""
        for start in range(0, self.nbytes, size):
            block = scratch((min(size, self.nbytes - start),), np.dtype(np.uint8))
            self.file.read_into(self.offset + start, block.data)
            yield block


_files: weakref.WeakValueDictionary[tuple[str, tuple[int, ...]], SourceFile] = (
    weakref.WeakValueDictionary()
)


def file_digest(path: Path) -> str:
    """Return the digest of a file as fold maps state it.

    Raises OSError if the file cannot be read.
    """
    file, hasher = SourceFile(path), xxh3_128()
    for block in FilePart(file, 0, file.size).blocks():
        hasher.update(byte_view(block))
    return f"xxh128:{hasher.hexdigest()}"


def byte_view(array: Block) -> memoryview:
    """Return the bytes of an array in C order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _stamp(fd: int) -> tuple[int, ...]:
    status = os.fstat(fd)
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _read_at(fd: int, buffer: memoryview, offset: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(fd, [buffer], offset)
    os.lseek(fd, offset, os.SEEK_SET)  # a system without positioned reads
    data = os.read(fd, len(buffer))
    buffer[: len(data)] = data
    return len(data)
