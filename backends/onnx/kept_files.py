"""Files that a model reads, which no output may replace."""

from __future__ import annotations

from pathlib import Path

from ...frontends.onnx.codec.external_data import external_location
from ...frontends.onnx.codec.protos import ModelProto
from ...frontends.onnx.codec.traversal import external_tensors
from ...ir.module import Module
from ...ir.payload import FilePart
from ...support.output_paths import check_apart, check_replaced


def external_files(model: ModelProto, folder: Path) -> set[Path]:
    """Return the files of the external data of a model in `folder`."""
    return {folder / str(external_location(tensor)) for tensor in external_tensors(model)}


def check_kept(
    module: Module, output: str | Path, *others: str | Path | None, in_place: bool = False
) -> None:
    """Check that no output replaces a file that the source or the new model reads.

    `output` must not replace external data of the source. The others must not replace a file that
    `output` will read either. With `in_place` the output may replace the model itself, and IR text
    its constants. None and `-` are not files. Raises UsageError.
    """
    if module.files:
        model, *constants = module.files
        check_replaced(output, model, in_place=in_place)
        check_apart(others, [model] if in_place else module.files)
        check_apart([output], constants)
    source = module.source
    if not isinstance(source, ModelProto):
        return
    if not any(isinstance(part, FilePart) for part in module.payloads):
        return
    kept = external_files(source, module.base_dir)
    placed = external_files(source, Path(output).parent)
    check_apart([output], kept)
    check_apart(others, kept | placed)
