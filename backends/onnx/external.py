"""External data of a model that is about to be written."""

from __future__ import annotations

import filecmp
import shutil
from pathlib import Path

from onnx import ModelProto

from ...frontends.onnx.external import external_tensors
from ...frontends.onnx.tensors import check_location, external_location
from ...ir.errors import EmitError
from ..files import replacing


def place_external_data(model: ModelProto, base_dir: Path, target: Path) -> ModelProto:
    """Put the files that `model`, read from `base_dir` and about to be written to `target`, refers to in reach.

    A file that is already there with the same content stays; beside one with other content the data goes by the name of
    `target`, and a copy of the model that points there is returned.
    """
    folder = target.parent
    locations = {external_location(tensor) for tensor in external_tensors(model)}
    if any((base_dir / location).resolve() == target.resolve() for location in locations):
        raise EmitError(f"{target}: cannot be written: the model reads tensors from it")
    if base_dir.resolve() == folder.resolve() or not locations:
        return model
    source, model = model, ModelProto()
    model.CopyFrom(source)
    moved: dict[str, str] = {}
    for tensor in external_tensors(model):
        location = external_location(tensor)
        if location not in moved:
            moved[location] = _place(check_location(tensor, base_dir), target, location)
        if moved[location] != location:
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = moved[location]
    return model


def _place(source: Path, target: Path, location: str) -> str:
    folder = target.parent
    destination = folder / location
    if folder.resolve() not in destination.resolve().parents:
        raise EmitError(f"{destination}: cannot be written: it lies outside the folder of {target.name}")
    taken = destination.exists() and not (destination.is_file() and filecmp.cmp(source, destination, shallow=False))
    if taken or destination.resolve() == target.resolve():
        destination = destination.with_name(f"{target.stem}.{destination.name}")
        location = destination.relative_to(folder).as_posix()
    if not destination.exists() or not filecmp.cmp(source, destination, shallow=False):
        try:
            destination.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EmitError(f"{destination.parent}: cannot be made: {error.strerror}") from None
        with replacing(destination) as temporary:
            shutil.copyfile(source, temporary)
    return location
