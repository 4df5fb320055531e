"""The writer of IR text with its constants: FILE.irc, and FILE.npz beside it."""

from __future__ import annotations

from pathlib import Path

from ..frontends.onnx.codec.tensor_archive import write_archive
from ..ir.module import Module
from ..ir.payload import FilePart
from ..ir.tensor import Tensor
from ..ir.text.printer import UNAVAILABLE, to_text
from ..support.errors import ModelError
from ..support.files import FileTransaction, replacing, writing
from ..support.output_paths import arrays_path
from .onnx.kept_files import check_kept


def save_text(
    module: Module,
    path: Path,
    files: FileTransaction,
    data_path: Path | None = None,
    *,
    in_place: bool = False,
) -> None:
    """Write the IR text of `module` to `path`, and the constants that it lacks to `data_path`.

    The text names these by digest. `data_path` is by default the .npz file beside `path`; it is not
    written if the text has all constants. Tensors that are not in memory are read in blocks, and
    both files come into place with `files`. Raises EmitError if a file cannot be written,
    ModelError if the elements of a constant cannot be read.
    """
    data: dict[str, Tensor] = {}
    text = to_text(module, data=data)
    if UNAVAILABLE in data:
        tensor = data[UNAVAILABLE]
        raise ModelError(
            f"{path}: the elements of a constant of type {tensor.type} cannot be read: is a file"
            " missing?"
        )
    place = arrays_path(path) if data_path is None else data_path
    check_kept(module, path, place, in_place=in_place)
    target = files.enter_context(replacing(path))
    with writing(path):
        target.write_text(text, encoding="utf-8")
    if data:
        write_archive(place, files.enter_context(replacing(place)), data)
    for part in module.payloads:
        if isinstance(part, FilePart):
            part.file.check_unchanged()
