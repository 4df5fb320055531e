"""External data of a model that is about to be written, copied for the model to read it."""

from __future__ import annotations

import os
from filecmp import clear_cache, cmp
from functools import partial
from pathlib import Path
from shutil import copyfile

from ...frontends.onnx.codec.external_data import external_location, external_path
from ...frontends.onnx.codec.protos import ModelProto
from ...frontends.onnx.codec.traversal import external_tensors
from ...ir.payload import file_digest
from ...support.errors import EmitError
from ...support.files import FileTransaction, PathLock, make_folder, remove_empty, writing
from ...support.output_paths import entry_path, paths_read
from .data_file_cleanup import DIGITS


def place_external_data(
    model: ModelProto, base_dir: Path, target: Path, files: FileTransaction
) -> ModelProto:
    """Copy the external data of `model` from below `base_dir` to beside `target`, its new place.

    A file that is there with the same content stays. Where a file of other content has the name,
    the data gets a name made of `target` and its digest. The copies come into place with `files`.
    Returns a model that refers to the new names.
    """
    folder = target.parent
    locations = {external_location(tensor) for tensor in external_tensors(model)}
    if any(entry_path(target) in paths_read(base_dir / location) for location in locations):
        raise EmitError(f"{target}: cannot be written: the model reads tensors from it")
    if os.path.realpath(base_dir) == os.path.realpath(folder) or not locations:
        return model
    source, model = model, ModelProto()
    model.CopyFrom(source)
    moved: dict[str, str] = {}
    for tensor in external_tensors(model):
        location = external_location(tensor)
        if location not in moved:
            moved[location] = _place(external_path(tensor, base_dir), location, target, files)
        for entry in tensor.external_data:
            if entry.key == "location" and moved[location] != location:
                entry.value = moved[location]
    return model


def _place(source: Path, location: str, target: Path, files: FileTransaction) -> str:
    """Copy `source` to `location`, or to another name if that is taken, and return the location.

    Raises EmitError if `location` is outside the folder of `target`.
    """
    clear_cache()  # its cache takes files of the same size and time for equal
    folder = target.parent
    destination = folder / location
    if Path(os.path.realpath(folder)) not in Path(os.path.realpath(destination)).parents:
        raise EmitError(
            f"{destination}: cannot be written: it lies outside the folder of {target.name}"
        )
    with writing(destination):
        made = make_folder(destination.parent)
        files.push(lambda kind, *_: None if kind is None else remove_empty(made))
        if os.path.realpath(destination) == os.path.realpath(target) or destination.exists():
            if destination.is_file() and cmp(source, destination, shallow=False):
                return location
            digits = file_digest(source).rpartition(":")[2][:DIGITS]
            destination = destination.with_name(f"{target.name}.{digits}.data")
            location = destination.relative_to(folder).as_posix()
            file = files.add(target)  # named after it, so that its next compile removes it
        else:
            files.locks.setdefault(destination, PathLock(destination))
            file = files.add(destination)
        files.push(partial(_check_free, destination, source))
        copyfile(source, file.temporary)
        file.path = destination
    return location


def _check_free(
    destination: Path, source: Path, kind: type[BaseException] | None, *_: object
) -> None:
    """Raise EmitError if another compile wrote other data to `destination` in the meantime."""
    if kind is None and destination.exists() and not cmp(source, destination, shallow=False):
        raise EmitError(
            f"{destination}: cannot be written: another compile has written other data to it"
        )


def point_to_temporary(model: ModelProto, folder: Path, files: FileTransaction) -> None:
    """Make `model` read, for the time being, the temporary files that are not in place yet.

    Its external data is below `folder`.
    """
    now = {file.path: file.temporary for file in files.added}
    for tensor in external_tensors(model):
        temporary = now.get(folder / external_location(tensor))
        for entry in tensor.external_data:
            if entry.key == "location" and temporary is not None:
                entry.value = temporary.relative_to(folder).as_posix()
