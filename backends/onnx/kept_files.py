"""Files that a model reads, which no output may replace."""

from __future__ import annotations

from pathlib import Path

from ...frontends.onnx.codec.external_data import external_location
from ...frontends.onnx.codec.protos import ModelProto
from ...frontends.onnx.codec.traversal import external_tensors
from ...ir.module import Module
from ...ir.payload import FilePart
from ...support.errors import EmitError
from ...support.output_paths import entry_path, paths_read


def external_files(model: ModelProto, folder: Path) -> set[Path]:
    """Return the files of the external data of a model in `folder`."""
    return {folder / str(external_location(tensor)) for tensor in external_tensors(model)}


def check_kept(module: Module, output: str | Path, *others: str | Path | None) -> None:
    """Check that no output replaces a file that the source reads, nor one of `others` a file that
    `output` will read.

    None and `-` are no files. Raises EmitError if one does.
    """
    source = module.source
    if not isinstance(source, ModelProto) or not any(
        isinstance(part, FilePart) for part in module.payloads
    ):
        return
    kept = {place for file in external_files(source, module.base_dir) for place in paths_read(file)}
    placed = {entry_path(file) for file in external_files(source, Path(output).parent)}
    for path, taken in [(output, kept), *((other, kept | placed) for other in others)]:
        if path not in (None, "-") and entry_path(str(path)) in taken:
            raise EmitError(f"{path}: cannot be written: the model reads tensors from it")
