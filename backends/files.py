"""Files that are either there in full or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
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
    """A temporary file beside `path`, as `replacing`."""
    if path.is_dir():
        raise EmitError(f"{path}: cannot be written: this is a folder")
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name[:64]}.", suffix=".tmp", dir=path.parent)
        os.close(handle)
    except OSError as error:
        raise EmitError(f"{path}: cannot be written: {error.strerror}") from None
    file = Pending(Path(name), path)
    try:
        file.temporary.chmod(0o666 & ~_umask())
        yield file
        file.temporary.replace(file.path)
    except OSError as error:
        raise EmitError(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        with suppress(FileNotFoundError):
            file.temporary.unlink()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
