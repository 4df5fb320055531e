"""The removal of files of external data that no model needs."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from google.protobuf.message import DecodeError

from ...frontends.onnx.codec.external_data import external_location
from ...frontends.onnx.codec.protos import ModelProto
from ...frontends.onnx.codec.streaming import extract_payloads
from ...frontends.onnx.codec.traversal import external_tensors
from ...ir.payload import SourceFile
from ...support.errors import ModelError
from ...support.files import FileTransaction, writing

DIGITS = 16
"""Hexadecimal digits of the digest in the name of a file of external data.

A new name never replaces an old file.
"""


class DataFileCleanup:
    """The removal of new files of external data whose model does not come into place.

    Such a file is named after the model and its own content. If the process is killed, the next
    compile to the same path removes it. Files that the old model reads stay, because copies of that
    model may read them, too.
    """

    def __init__(self, path: Path, files: FileTransaction) -> None:
        """Watch `path`.

        Create before the model enters `files`: exits run in reverse, and `_remove` must run last.
        """
        self.read: set[str] = set()
        """The locations that the new model reads."""
        self._path = path
        self._lock = files.locks[path]
        self._new: set[str] = set()
        self._candidates: set[str] = set()
        files.push(self._remove)

    def _is_ours(self, name: str) -> bool:
        """Return whether a compile to the path gives `name` to a file of external data."""
        prefix = re.escape(f"{self._path.name}.")
        return re.fullmatch(rf"{prefix}[0-9a-f]{{{DIGITS}}}\.[^/\0]+", name) is not None

    def record(self, kind: type[BaseException] | None, *_: object) -> None:
        """Note which files are new. Call when everything is written, and nothing is in place."""
        if kind is not None:
            return
        with writing(self._path):
            existing = set(filter(self._is_ours, _listed(self._path.parent)))
            self._new = set(filter(self._is_ours, self.read)) - existing
            if existing:
                old = self._locations_in_place()
                noted = set(self._lock.read_journal()) if old is not None else set()
                self._candidates = (noted - (old or set())) & existing
            self._candidates |= self._new
            self._lock.write_journal(sorted(self._candidates))

    def _remove(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._candidates:
            return
        read = self.read if kind is None else self._locations_in_place()
        with suppress(OSError):  # the next compile tries again
            for name in self._new if read is None else self._candidates - read:
                self._path.with_name(name).unlink(missing_ok=True)
            self._lock.write_journal(())

    def _locations_in_place(self) -> set[str] | None:
        """Return the locations that the model at `path` reads now, None if there is no model."""
        try:
            if not self._path.is_file():
                return None
            data, _parts = extract_payloads(SourceFile(self._path), 1 << 10)
            return set(map(external_location, external_tensors(ModelProto.FromString(data))))
        except (OSError, ModelError, DecodeError):
            return None


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
