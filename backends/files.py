"""Files that are either there in full or not at all."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from ..ir.errors import EmitError


@dataclass(slots=True)
class Pending:
    """A file that is being written under the name `temporary`, and will be at `path`, which may still be changed."""

    temporary: Path
    path: Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path`, which takes its place when the block ends well and goes when it does not.

    What is no regular file, as a device, is given itself. Raises EmitError where the folder is missing or cannot be
    written.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        yield path  # a device or a pipe is written to, not replaced
        return
    with pending(path) as file:
        yield file.temporary


@contextmanager
def pending(path: Path) -> Iterator[Pending]:
    """A temporary file beside `path`, as `replacing`; those that a killed process left there are removed."""
    if path.is_dir():
        raise EmitError(f"{path}: cannot be written: this is a folder")
    try:
        _clean(path)
        lock, temporary = _create(path)
    except OSError as error:
        raise EmitError(f"{path}: cannot be written: {error.strerror}") from None
    file = Pending(temporary, path)
    try:
        yield file
        file.temporary.replace(file.path)
    except OSError as error:
        raise EmitError(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        with suppress(FileNotFoundError):
            file.temporary.unlink()
        os.close(lock)


def _stem(path: Path) -> str:
    return f".{path.name[:48]}."


def _create(path: Path) -> tuple[int, Path]:
    """A new file beside `path`, and the descriptor that keeps it locked."""
    for number in count():
        temporary = path.with_name(f"{_stem(path)}{os.getpid()}-{number}.tmp")
        with suppress(FileExistsError):
            handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            if _locked(handle) and os.fstat(handle).st_nlink:  # nobody took it for a leftover in between
                return handle, temporary
            os.close(handle)
    raise AssertionError


def _clean(path: Path) -> None:
    """Remove temporary files of `path` that no process writes any more: the lock of a process goes with it."""
    name = re.compile(re.escape(_stem(path)) + r"\d+-\d+\.tmp")
    for entry in os.listdir(path.parent):
        if name.fullmatch(entry):
            with suppress(OSError):
                handle = os.open(path.with_name(entry), os.O_RDWR)
                if _locked(handle):
                    path.with_name(entry).unlink()
                os.close(handle)


def _locked(handle: int) -> bool:
    """Lock a file, if nobody else has; True where files cannot be locked, but then none is a leftover."""
    try:
        import fcntl
    except ImportError:
        return os.fstat(handle).st_size == 0
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
