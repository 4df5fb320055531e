"""Files that are either there in full or not at all.

A file is written under a temporary name beside its own, and renamed. It is not forced to the disk before, as no
compiler does: after a loss of power it may be empty, and can be made again.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType

from .errors import EmitError

MAX_NOTES = 1 << 16
"""Bytes of a note that are read."""


@dataclass(slots=True)
class Pending:
    """A file that is being written under the name `temporary`, and will be at `path`, which may still be changed."""

    temporary: Path
    path: Path


@contextmanager
def writing(name: object) -> Iterator[None]:
    """Errors of the system become EmitErrors that name what was written; a reader that has gone is no error of it."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise EmitError(f"{name}: cannot be written: {error.strerror or error}") from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path`, which takes its place when the block ends well and goes when it does not.

    What is no regular file, as a device, is given itself. Raises EmitError where the folder is missing or cannot be
    written.
    """
    with writing(path):
        if path.exists() and not path.is_file() and not path.is_dir():
            yield path  # a device or a pipe is written to, not replaced
            return
        with pending(path) as file:
            yield file.temporary


@contextmanager
def pending(path: Path) -> Iterator[Pending]:
    """A temporary file beside `path`, as `replacing`; those that a killed process left there are removed."""
    with writing(path):
        if path.is_dir():
            raise EmitError(f"{path}: cannot be written: this is a folder")
        clean(path)
        lock, temporary = _create(path)
        file = Pending(temporary, path)
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


class Turn:
    """The right to put files in place for `path`, which one process has at a time while the others wait.

    What it notes and does not take back stays behind, for the next one to read.
    """

    def __init__(self, path: Path) -> None:
        self.place = path.with_name(f"{_stem(path)}lock")
        self._handle: int | None = None

    def __enter__(self) -> Turn:
        """Raises OSError where the folder cannot be written, EmitError where another file has the name of the lock."""
        while True:
            handle = os.open(self.place, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
            try:
                locked = _lock(handle, wait=True)
                if locked and os.fstat(handle).st_nlink:  # the one before did not remove it
                    if _read_notes(handle) is None:
                        raise EmitError(f"{self.place}: this is in the way, and no lock that was made here: remove it")
                    self._handle = handle
                    return self
            finally:
                if self._handle is None:
                    os.close(handle)
            if locked is None:  # there are no turns here
                with suppress(OSError):
                    self.place.unlink()
                return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handle is None:
            return
        with suppress(OSError):
            if not os.fstat(self._handle).st_size:
                self.place.unlink()
        os.close(self._handle)
        self._handle = None

    def notes(self) -> list[str]:
        """What the one before noted, if it did not come to its end."""
        return [] if self._handle is None else _read_notes(self._handle) or []

    def note(self, notes: Iterable[str]) -> None:
        """Note texts for the next one. Raises OSError where they cannot be written."""
        if self._handle is None:
            return
        os.ftruncate(self._handle, 0)
        os.lseek(self._handle, 0, os.SEEK_SET)
        notes = [_mark(self._handle), *notes]
        if len(notes) > 1:
            os.write(self._handle, b"".join(os.fsencode(text) + b"\0" for text in notes))


class Together(ExitStack):
    """Files that come into place when the block ends well, those that were entered last first, while no other process
    puts files to `places`: of several that are written by two processes at once all are from the same one. None, and
    `-` for standard output, are no files.

    Where the process is killed between them, some are of the new ones, and each of those is complete.
    """

    def __init__(self, *places: str | Path | None) -> None:
        super().__init__()
        self.turns = {Path(place): Turn(Path(place)) for place in places if place not in (None, "-")}
        self.named: list[Pending] = []
        """The files of `add`."""

    def add(self, path: Path) -> Pending:
        """Enter `pending(path)`."""
        self.named.append(self.enter_context(pending(path)))
        return self.named[-1]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        with ExitStack() as taken:
            if kind is None:
                try:
                    self._take(taken)
                except BaseException:
                    super().__exit__(*sys.exc_info())
                    raise
            return bool(super().__exit__(kind, error, trace))

    def _take(self, taken: ExitStack) -> None:
        """Each process takes its turns in the same order, so that none waits for one that waits for it."""
        files = [path for path in self.turns if path.is_file() or not path.exists()]
        places = {os.path.realpath(self.turns[path].place): path for path in files}
        for _, path in sorted(places.items()):
            with writing(path):
                taken.enter_context(self.turns[path])


def _mark(handle: int) -> str:
    """What only a file that was written here begins with: a copy of it, or one that came with a model, is another."""
    return f"irc {os.fstat(handle).st_ino}"


def _read_notes(handle: int) -> list[str] | None:
    """The notes in a lock, None where it is none."""
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        return None
    os.lseek(handle, 0, os.SEEK_SET)
    mark, *notes = os.fsdecode(os.read(handle, MAX_NOTES)).split("\0")
    return notes[:-1] if mark == _mark(handle) or not status.st_size else None


def _stem(path: Path) -> str:
    return f".{path.name[:48]}."


def _create(path: Path) -> tuple[int | None, Path]:
    """A new file beside `path`, and the descriptor that keeps it locked, if files can be locked there.

    Its name has its own number in the file system, so that no file that was put there otherwise is taken for it.
    """
    for number in count():
        temporary = path.with_name(f"{_stem(path)}{os.getpid()}-{number}.tmp")
        with suppress(FileExistsError):
            handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            locked = _lock(handle)
            if locked is None:
                os.close(handle)  # some systems rename no file that is open
                return None, temporary
            status = os.fstat(handle)
            if locked and status.st_nlink:  # nobody took it for a leftover in between
                numbered = path.with_name(f"{_stem(path)}{os.getpid()}-{status.st_ino}.tmp")
                temporary.rename(numbered)
                return handle, numbered
            os.close(handle)
    raise AssertionError


def clean(path: Path) -> None:
    """Remove temporary files of `path` that no process writes any more: the lock of a process goes with it."""
    name = re.compile(re.escape(_stem(path)) + r"(?:\d+-(\d+)\.tmp|lock)")
    with suppress(OSError):  # who may not list a folder may still write there
        for match in filter(None, map(name.fullmatch, os.listdir(path.parent))):
            entry, number = match.group(), match.group(1)
            with suppress(OSError):
                handle = os.open(path.with_name(entry), os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
                try:
                    status = os.fstat(handle)
                    if (not status.st_size or number == str(status.st_ino)) and _lock(handle):
                        path.with_name(entry).unlink()
                finally:
                    os.close(handle)


def _lock(handle: int, *, wait: bool = False) -> bool | None:
    """Lock a file: False where another process has, None where files cannot be locked."""
    try:
        import fcntl
    except ImportError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
