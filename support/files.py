"""Atomic writes: a file is there in full or not at all.

A file is written under a temporary name in the same folder, and renamed. It is not synchronized to
the disk before: after a loss of power it may be empty, and can be made again.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from types import TracebackType

from .errors import EmitError

MAX_JOURNAL = 1 << 16
"""Bytes of a journal that are read."""


class PendingFile:
    """A file that is written as `temporary` and renamed to `path`, which may change until then."""

    def __init__(self, temporary: Path, path: Path) -> None:
        self.temporary = temporary
        self.path = path


@contextmanager
def writing(name: object) -> Iterator[None]:
    """Turn an OSError of the block into an EmitError that begins with `name`.

    A BrokenPipeError passes.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        why = error.strerror or error
        has_no_file = isinstance(error, FileNotFoundError)
        if has_no_file and isinstance(name, Path) and not name.parent.exists():
            why = f"there is no folder {name.parent}"
        raise EmitError(f"{name}: cannot be written: {why}") from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file, and rename it to `path` when the block ends without error.

    Otherwise the file is removed. For a device or a pipe yield `path` itself. Raises EmitError if
    the file cannot be written.
    """
    with writing(path):
        if path.exists() and not path.is_file() and not path.is_dir():
            yield path
            return
        with pending(path) as file:
            yield file.temporary


@contextmanager
def pending(path: Path) -> Iterator[PendingFile]:
    """Yield a file as `replacing` does, after removing those that a killed process left."""
    with writing(path):
        if path.is_dir():
            raise EmitError(f"{path}: cannot be written: this is a folder")
        remove_stale_files(path)
        lock, temporary = _create(path)
        file = PendingFile(temporary, path)
        try:
            yield file
            file.temporary.replace(file.path)
        except BaseException:
            with suppress(OSError):
                file.temporary.unlink()
            raise
        finally:
            if lock is not None:
                os.close(lock)


def make_folder(path: Path) -> list[Path]:
    """Make a folder with those above it; return the new ones, the innermost first.

    Raises EmitError.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EmitError(f"{path}: the folder cannot be made: {error.strerror}") from None
    return missing


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove the folders that are empty, in the order given."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


class PathLock:
    """A lock file beside `path`: one process at a time renames files to `path`, the others wait.

    The file holds a journal. A process that is killed leaves it for the next one to read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(f"{_prefix(path)}lock")
        self._handle: int | None = None

    def __enter__(self) -> PathLock:
        """Wait for the lock.

        Raises OSError if the folder cannot be written, EmitError for another file of its name.
        """
        while self._handle is None:
            handle = os.open(
                self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666
            )
            try:
                locked = _lock(handle, wait=True)
                # the process before may have removed it: then make a new one
                if locked and os.fstat(handle).st_nlink:
                    if _read_journal(handle) is None:
                        raise EmitError(
                            f"{self.path}: this file is not a lock of irc, but has its name:"
                            " remove it"
                        )
                    self._handle = handle
            finally:
                if self._handle is None:
                    os.close(handle)
            if locked is None:  # files cannot be locked here
                with suppress(OSError):
                    self.path.unlink()
                break
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._handle is None:
            return
        with suppress(OSError):
            if not os.fstat(self._handle).st_size:
                self.path.unlink()
        os.close(self._handle)
        self._handle = None

    def read_journal(self) -> list[str]:
        """Return the entries that a killed process left."""
        return [] if self._handle is None else _read_journal(self._handle) or []

    def write_journal(self, entries: Iterable[str]) -> None:
        """Replace all entries. Raises OSError."""
        if self._handle is None:
            return
        os.ftruncate(self._handle, 0)
        os.lseek(self._handle, 0, os.SEEK_SET)
        entries = [_mark(self._handle), *entries]
        if len(entries) > 1:
            os.write(self._handle, b"".join(os.fsencode(entry) + b"\0" for entry in entries))


class FileTransaction(ExitStack):
    """Files that are renamed into place together when the block ends without error.

    The last one entered is renamed first. Meanwhile no other process renames files to `paths`: if
    two processes write the same files at once, all come from one of them. None and `-` (standard
    output) are ignored. A process that is killed between two renames leaves some new files and some
    old ones, each of them complete.
    """

    def __init__(self, *paths: str | Path | None) -> None:
        super().__init__()
        self.locks = {Path(path): PathLock(Path(path)) for path in paths if path not in (None, "-")}
        self.added: list[PendingFile] = []

    def add(self, path: Path) -> PendingFile:
        """Enter `pending(path)`."""
        self.added.append(self.enter_context(pending(path)))
        return self.added[-1]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        with ExitStack() as locked:
            if kind is None:
                try:
                    self._lock_all(locked)
                except BaseException:
                    super().__exit__(*sys.exc_info())
                    raise
            return bool(super().__exit__(kind, error, trace))

    def _lock_all(self, locked: ExitStack) -> None:
        # Every process takes its locks in the same order, so that no two wait for each other. Files
        # whose long names begin alike have one lock, which is taken once: a second time a process
        # would wait for itself.
        files = [path for path in self.locks if path.is_file() or not path.exists()]
        by_lock = {os.path.realpath(self.locks[path].path): path for path in files}
        for _, path in sorted(by_lock.items()):
            with writing(path):
                locked.enter_context(self.locks[path])


def remove_stale_files(path: Path) -> None:
    """Remove temporary files and locks for `path` of processes that have ended.

    The end of a process ended its locks on them.
    """
    prefix = _prefix(path)
    with suppress(OSError):  # a folder that cannot be listed may still be written
        for entry in [each for each in os.listdir(path.parent) if each.startswith(prefix)]:
            match = re.fullmatch(r"(?:\d+-(\d+)\.tmp|lock)", entry[len(prefix) :])
            if match is None:
                continue
            number = match[1]
            with suppress(OSError):
                handle = os.open(path.with_name(entry), os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
                try:
                    status = os.fstat(handle)
                    if (not status.st_size or number == str(status.st_ino)) and _lock(handle):
                        path.with_name(entry).unlink()
                finally:
                    os.close(handle)


def _prefix(path: Path) -> str:
    return f".{path.name[:48]}."


def _create(path: Path) -> tuple[int | None, Path]:
    """Return a lock and a new file beside `path`; the lock is None if files cannot be locked.

    The lock is an open handle of the file. Its name has its inode number: a file that came there
    otherwise has another one, and is not taken for stale.
    """
    for number in count():
        temporary = path.with_name(f"{_prefix(path)}{os.getpid()}-{number}.tmp")
        with suppress(FileExistsError):
            handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            locked = _lock(handle)
            if locked is None:
                os.close(handle)  # some systems rename no file that is open
                return None, temporary
            status = os.fstat(handle)
            # another process may have taken it for stale before it was locked
            if locked and status.st_nlink:
                numbered = path.with_name(f"{_prefix(path)}{os.getpid()}-{status.st_ino}.tmp")
                temporary.rename(numbered)
                return handle, numbered
            os.close(handle)
    raise AssertionError


def _mark(handle: int) -> str:
    # A copy of a lock, or one that came with a model, has another inode number.
    return f"irc {os.fstat(handle).st_ino}"


def _read_journal(handle: int) -> list[str] | None:
    """Return the entries, or None if the file is not a lock that irc made."""
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        return None
    os.lseek(handle, 0, os.SEEK_SET)
    mark, *entries = os.fsdecode(os.read(handle, MAX_JOURNAL)).split("\0")
    return entries[:-1] if mark == _mark(handle) or not status.st_size else None


def _lock(handle: int, *, wait: bool = False) -> bool | None:
    """Lock a file; return False if another process holds it, None if files cannot be locked."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return None
    return True
