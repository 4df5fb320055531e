"""Bytes that stand in files, read when they are needed: positions in files that are held open."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NoReturn, Protocol

import numpy as np

from ..support.errors import ModelError

BLOCK = 1 << 20
"""Bytes that are read, computed or written at a time: few enough to stay in a processor's cache."""

Block = np.ndarray[Any, np.dtype[Any]]
"""An array of any element type, for its bytes."""


_SCRATCH = range(64 << 10, BLOCK + 1)
"""Sizes that are worth using again: the system takes larger ones back and has to clear them anew, page by page."""

_SPARE = 8
"""Buffers that wait for their next use at most."""

_spare: list[bytearray] = []


def scratch(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Block:
    """An array with any elements, like `np.empty`, if possible in memory that nobody uses any more.

    It is used again once the last array that is a view of this one is gone.
    """
    size = prod(shape) * dtype.itemsize
    if size not in _SCRATCH:
        return np.empty(shape, dtype)
    memory = _spare.pop() if _spare else bytearray(BLOCK)
    array = np.frombuffer(memory, dtype, prod(shape))  # what is a view of it keeps it, and not only `memory`
    weakref.finalize(array, _give_back, memory).atexit = False
    return array.reshape(shape)


def _give_back(memory: bytearray) -> None:
    if len(_spare) < _SPARE:
        _spare.append(memory)


class Payload(Protocol):
    """Bytes that somebody can go through once more, whenever he likes."""

    @property
    def nbytes(self) -> int:
        """How many bytes all blocks have together."""

    def blocks(self) -> Iterator[Block]:
        """The bytes in order, in pieces of about BLOCK bytes."""


class SourceFile:
    """A file that is read by position, and stays the one that was opened whatever becomes of its name.

    Nothing is mapped, so a file that shrinks is an error and not the end of the process.
    """

    __slots__ = ("__weakref__", "_fd", "path", "size", "stamp")

    def __init__(self, path: Path) -> None:
        """Raises OSError where the file cannot be opened."""
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
        weakref.finalize(self, os.close, self._fd)
        self.stamp = _stamp(self._fd)
        self.size = os.fstat(self._fd).st_size

    @classmethod
    def at(cls, path: Path) -> SourceFile:
        """The file that is at `path` now; one that is open already is not opened twice.

        Raises OSError where it cannot be opened.
        """
        file = cls(path)
        return _files.setdefault((os.fspath(path), file.stamp), file)

    def __deepcopy__(self, memo: object) -> SourceFile:
        return self  # there is one descriptor, which goes with its owner

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self.path} is open: what reads it cannot be pickled")

    def fileno(self) -> int:
        """The descriptor, to be read by position only."""
        return self._fd

    def read(self, offset: int, size: int) -> bytes:
        """Exactly `size` bytes from `offset`. Raises ModelError where the file has no such bytes (any more)."""
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
                raise ModelError(f"{self.path}: the file ends before byte {offset + len(buffer)}: it is truncated")
            done += count

    def check_unchanged(self) -> None:
        """Raises ModelError where somebody wrote to the file since it was opened."""
        if _stamp(self._fd) != self.stamp:
            raise ModelError(f"{self.path}: the file was changed while it was in use")

    def check_in_place(self) -> None:
        """Raises ModelError where another file has its name now."""
        try:
            same = os.path.samestat(os.stat(self.path), os.fstat(self._fd))
        except OSError:
            same = False
        if not same:
            raise ModelError(f"{self.path}: the file was replaced while it was in use")


@dataclass(frozen=True, slots=True, weakref_slot=True)
class FilePart:
    """`nbytes` bytes of a file from `offset`."""

    file: SourceFile
    offset: int
    nbytes: int

    def __deepcopy__(self, memo: object) -> FilePart:
        return self  # what stands for it names this one

    def read(self) -> bytes:
        """All of it. Raises ModelError where the file does not have it any more."""
        return self.file.read(self.offset, self.nbytes)

    def blocks(self, size: int = BLOCK) -> Iterator[Block]:
        """In pieces of `size` bytes. Raises ModelError as `read`."""
        for start in range(0, self.nbytes, size):
            block = scratch((min(size, self.nbytes - start),), np.dtype(np.uint8))
            self.file.read_into(self.offset + start, block.data)
            yield block


_files: weakref.WeakValueDictionary[tuple[str, tuple[int, ...]], SourceFile] = weakref.WeakValueDictionary()


def file_digest(path: Path) -> str:
    """Return the digest of a file as fold maps state it. Raises OSError if the file cannot be read."""
    from xxhash import xxh3_128

    file, hasher = SourceFile(path), xxh3_128()
    for block in FilePart(file, 0, file.size).blocks():
        hasher.update(raw(block))
    return f"xxh128:{hasher.hexdigest()}"


def raw(array: Block) -> memoryview:
    """The bytes of an array in C order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _stamp(fd: int) -> tuple[int, ...]:
    status = os.fstat(fd)
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _read_at(fd: int, buffer: memoryview, offset: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(fd, [buffer], offset)
    os.lseek(fd, offset, os.SEEK_SET)  # systems without positioned reads
    data = os.read(fd, len(buffer))
    buffer[: len(data)] = data
    return len(data)
