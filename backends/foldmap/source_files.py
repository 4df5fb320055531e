"""External data of a restored source, written beside the model with the old names and offsets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...frontends.onnx.codec.external_data import is_location_allowed
from ...frontends.onnx.codec.protos import ModelProto, TensorProto
from ...frontends.onnx.codec.tensors import ELEMENT_FIELDS, raw_elements
from ...ir.record import Record
from ...support.errors import EmitError, clipped
from ...support.files import FileTransaction, replacing, writing
from ...support.output_paths import entry_path
from ..onnx.saving import save_model
from .fold_map import FoldMap
from .inverse import restore_source
from .restore import StoredOutside

LARGEST_GAP = 1 << 20
"""Bytes between two tensors of a file.

Beyond, the file held other data, and its tensors stay in the model.
"""


class _Part(Record):
    """A tensor of the source that was in another file, its place there, and its elements."""

    stored: StoredOutside
    offset: int
    elements: bytes


def save_source(model: ModelProto, fold_map: FoldMap, path: str | Path, base_dir: Path) -> None:
    """Restore the source of `model`, and write it to `path` with its files of external data.

    These keep their names, below the folder of `path`. A file that is there with the same elements
    stays. Bytes between tensors are zeros. If a file cannot be restored (standard output, offsets
    far apart or that overlap), its tensors go into the model. All files come into place together.
    Raises the errors of `unfold`, and EmitError if a file cannot be written, has other content, or
    lies outside the folder.
    """
    source, stored = restore_source(model, fold_map, base_dir)
    if not stored:
        save_model(source, path, base_dir)
        return
    if str(path) == "-":
        for each in stored:
            _put_inside(each.tensor, raw_elements(each.tensor, base_dir))
        save_model(source, path, base_dir)
        return
    path = Path(path)
    with FileTransaction(path) as files:
        for group in _by_file(stored, path.parent).values():
            parts = [
                _Part(each, each.offset, raw_elements(each.tensor, base_dir)) for each in group
            ]
            parts.sort(key=lambda part: (part.offset, len(part.elements)))
            if not _is_dense(parts):
                for part in parts:
                    _put_inside(part.stored.tensor, part.elements)
                continue
            _write(parts, path, files)
            for part in parts:
                part.stored.put_outside()
        save_model(source, path, path.parent, files)


def _by_file(stored: Sequence[StoredOutside], folder: Path) -> dict[str, list[StoredOutside]]:
    """Return the tensors by the file below `folder` that has their elements.

    Raises EmitError for a place elsewhere.
    """
    found: dict[str, list[StoredOutside]] = {}
    for each in stored:
        if not is_location_allowed(each.location, folder):
            raise EmitError(
                f"{clipped(each.location)}: cannot be written: it lies outside the folder of the"
                " model"
            )
        found.setdefault(entry_path(folder / each.location), []).append(each)
    return found


def _is_dense(parts: Sequence[_Part]) -> bool:
    """Return whether sorted tensors of one file neither overlap nor lie far apart.

    The same tensor may come twice.
    """
    end, last = 0, None
    for part in parts:
        if last is not None and (part.offset, part.elements) == (last.offset, last.elements):
            continue
        if not end <= part.offset <= end + LARGEST_GAP:
            return False
        end, last = part.offset + len(part.elements), part
    return True


def _write(parts: Sequence[_Part], target: Path, files: FileTransaction) -> None:
    """Write a file of external data that comes into place with `files`, unless it is there."""
    destination = target.parent / parts[0].stored.location
    if entry_path(destination) == entry_path(target):
        raise EmitError(f"{target}: cannot be written: the model reads tensors from it")
    with writing(destination):
        if destination.exists():
            if not _has(destination, parts):
                raise EmitError(
                    f"{destination}: cannot be written: a file of other content is there: remove it"
                )
            return
        destination.parent.mkdir(parents=True, exist_ok=True)
        temporary = files.enter_context(replacing(destination))
        with temporary.open("wb") as stream:
            for part in parts:
                stream.write(bytes(max(part.offset - stream.tell(), 0)))
                stream.seek(part.offset)
                stream.write(part.elements)


def _has(file: Path, parts: Sequence[_Part]) -> bool:
    """Return whether a file has the elements of all parts.

    If one has no length, nothing may follow.
    """
    if not file.is_file():
        return False
    end = max(part.offset + len(part.elements) for part in parts)
    if any(part.stored.length is None for part in parts) and file.stat().st_size != end:
        return False
    with file.open("rb") as stream:
        for part in parts:
            stream.seek(part.offset)
            if stream.read(len(part.elements)) != part.elements:
                return False
    return True


def _put_inside(tensor: TensorProto, elements: bytes) -> None:
    for field in (*ELEMENT_FIELDS, "data_location"):
        tensor.ClearField(field)
    tensor.raw_data = elements
