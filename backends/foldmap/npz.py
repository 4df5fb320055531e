"""Arrays to an npz file, one after the other: none has to wait for the others in memory."""

from __future__ import annotations

import zipfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np

from ...ir.payload import file_digest
from ...ir.tensor import Array
from ...support.errors import FoldMapError
from ...support.files import replacing, writing
from ...support.output_paths import arrays_path, path_to_text

COMPRESSED = 1 << 16
"""Arrays of fewer bytes are compressed: larger ones are residuals and weights, which hardly shrink, and take long."""


class NpzWriter:
    """Writes the npz file beside the document of a fold map, equal for equal arrays in the same order."""

    def __init__(self, document: Path, files: ExitStack) -> None:
        """The file is there when `files` are closed.

        Raises FoldMapError where it would be the document itself, EmitError where it cannot be written.
        """
        self.path = arrays_path(document)
        if self.path == document:
            raise FoldMapError(f"{document}: the arrays of the fold map go to the npz file of that name")
        self._temporary = files.enter_context(replacing(self.path))
        with writing(self.path):
            self._archive = zipfile.ZipFile(self._temporary, "w", allowZip64=True)
        files.push(self._close)

    def add(self, name: str, array: Array) -> None:
        """Write an array under `name`, which no other has; bfloat16 as its bits in uint16."""
        member = zipfile.ZipInfo(f"{name}.npy")  # of 1980: a time would make every file another one
        member.compress_type = zipfile.ZIP_DEFLATED if array.nbytes < COMPRESSED else zipfile.ZIP_STORED
        plain = np.ascontiguousarray(array) if array.dtype.kind != "V" else array.view(np.uint16)
        large = array.nbytes > (1 << 30)
        with writing(self.path), self._archive.open(member, "w", force_zip64=large) as stream:
            np.lib.format.write_array(stream, plain.reshape(array.shape), allow_pickle=False)

    def finish(self) -> dict[str, Any]:
        """Close the file; what a document says of it."""
        with writing(self.path):
            self._archive.close()
            return {"kind": "npz", "path": path_to_text(self.path.name), "digest": file_digest(self._temporary)}

    def _close(self, *_: object) -> None:
        """Of an archive that was not finished nothing is left, nor is what it has to say of any use."""
        with suppress(OSError, ValueError):
            self._archive.close()
