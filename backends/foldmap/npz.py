"""Write arrays to an npz file one at a time, so that none waits in memory for the others."""

from __future__ import annotations

import zipfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...ir.payload import file_digest
from ...ir.tensor import Array
from ...support.errors import FoldMapError
from ...support.files import replacing, writing
from ...support.output_paths import arrays_path, path_to_text

if TYPE_CHECKING:
    from .entries import StoreEntry

COMPRESSED = 1 << 16
"""Arrays of fewer bytes are compressed.

Larger ones are residuals and weights: slow to compress, with little gain.
"""


class NpzWriter:
    """The npz file beside the document of a fold map.

    Equal arrays in equal order give equal files.
    """

    def __init__(self, document: Path, files: ExitStack) -> None:
        """Open a temporary file, which takes its place when `files` are closed.

        Raises FoldMapError if it would replace the document itself, EmitError if it cannot be
        written.
        """
        self.path = arrays_path(document)
        if self.path == document:
            raise FoldMapError(
                f"{document}: its arrays go to the .npz file of that name, choose another"
            )
        self._temporary = files.enter_context(replacing(self.path))
        with writing(self.path):
            self._archive = zipfile.ZipFile(self._temporary, "w", allowZip64=True)
        files.push(self._close)

    def add(self, name: str, array: Array) -> None:
        """Write an array under the unique `name`; bfloat16 is written as its bits in uint16."""
        member = zipfile.ZipInfo(f"{name}.npy")  # dated 1980, so that equal maps give equal files
        member.compress_type = (
            zipfile.ZIP_DEFLATED if array.nbytes < COMPRESSED else zipfile.ZIP_STORED
        )
        plain = np.ascontiguousarray(array) if array.dtype.kind != "V" else array.view(np.uint16)
        large = array.nbytes > (1 << 30)
        with writing(self.path), self._archive.open(member, "w", force_zip64=large) as stream:
            np.lib.format.write_array(stream, plain.reshape(array.shape), allow_pickle=False)

    def finish(self) -> StoreEntry:
        """Close the file, and return its entry for the document."""
        with writing(self.path):
            self._archive.close()
            return {
                "kind": "npz",
                "path": path_to_text(self.path.name),
                "digest": file_digest(self._temporary),
            }

    def _close(self, *_: object) -> None:
        # An unfinished archive is deleted, so an error of closing it means nothing.
        with suppress(OSError, ValueError):
            self._archive.close()
