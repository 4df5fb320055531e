"""External data of a model that is about to be written."""

from __future__ import annotations

from pathlib import Path

from ...frontends.onnx.external import external_tensors
from ...frontends.onnx.protos import ModelProto
from ...frontends.onnx.tensors import check_location, external_location
from ..files import replacing


def place_external_data(model: ModelProto, base_dir: Path, target: Path) -> ModelProto:
    """Put the files that `model`, read from `base_dir` and about to be written to `target`, refers to in reach.

    A file that is already there with the same content stays; beside one with other content the data goes by the name of
    `target`, and a copy of the model that points there is returned.
    """
    folder = target.parent
    if base_dir.resolve() == folder.resolve() or next(external_tensors(model), None) is None:
        return model
    source, model = model, ModelProto()
    model.CopyFrom(source)
    moved: dict[str, str] = {}
    for tensor in external_tensors(model):
        location = external_location(tensor)
        if location not in moved:
            moved[location] = _place(check_location(tensor, base_dir), folder, location, target.stem)
        if moved[location] != location:
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = moved[location]
    return model


def _place(source: Path, folder: Path, location: str, stem: str) -> str:
    from filecmp import clear_cache, cmp
    from shutil import copyfile

    clear_cache()  # it takes files of one size and time for equal
    destination = folder / location
    if destination.exists() and not cmp(source, destination, shallow=False):
        destination = destination.with_name(f"{stem}.{destination.name}")
        location = destination.relative_to(folder).as_posix()
    if not destination.exists() or not cmp(source, destination, shallow=False):
        destination.parent.mkdir(parents=True, exist_ok=True)
        with replacing(destination) as temporary:
            copyfile(source, temporary)
    return location
