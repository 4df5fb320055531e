"""Where the files of several models go.

Without a folder they stand beside their models. In a folder they stand as the models do below the folder that all of
them have in common, so that models of one folder lie side by side, and external data of equal names never meet.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import UsageError

MODEL, FOLD_MAP, REPORT, DUMP = ".irc.onnx", ".foldmap.json", ".html", ".irc"
"""What the names of files that are made for a model end in, instead of the model's own suffix. No external data is read
from files of such names (`frontends.onnx.tensors.check_location`).
"""


@dataclass(frozen=True, slots=True)
class Places:
    """The files of one model, and the folder that its IR is dumped to."""

    model: str
    output: str
    fold_map: str | None = None
    report: str | None = None
    dump: str | None = None

    def files(self, folder: str) -> Iterator[Path]:
        """All that may be written, where paths start from `folder`; paths are equal where the files are."""
        found = [Path(place) for place in (self.output, self.fold_map, self.report, self.dump) if place is not None]
        if self.fold_map is not None:
            found.append(arrays_of(Path(self.fold_map)))
        return (Path(os.path.realpath(Path(folder, path))) for path in found)


def text_of(path: str | Path) -> str:
    """A path as text, the same in every locale: UTF-8, with an escape for each byte that is none."""
    return os.fsencode(path).decode(errors="surrogateescape")


def path_of(text: str) -> Path:
    """The path that `text_of` made text of. Raises ValueError where it made none of this."""
    return Path(os.fsdecode(text.encode(errors="surrogateescape")))


def arrays_of(fold_map: Path) -> Path:
    """Where the arrays of a fold map go."""
    return fold_map.with_suffix(".npz")


def replaced(path: str | Path) -> str:
    """What a file that is written to `path` takes the place of: a link itself, not what it points at."""
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(folder), name)


def read_at(path: str | Path) -> set[str]:
    """What must stay for `path` to be read: the file, and a link to it."""
    return {replaced(path), os.path.realpath(path)}


def check_apart(
    writes: Iterable[str | Path | None], reads: Iterable[str | Path | None] = (), dump: str | None = None
) -> None:
    """Raises UsageError where one of the files `writes` would take the place of another, or of one of `reads`, or of
    what is dumped to the folder `dump`. What is None or `-` counts for nothing.
    """
    taken = {place for path in reads if path not in (None, "-") for place in read_at(str(path))}
    made: set[str] = set()
    for path in writes:
        if path in (None, "-"):
            continue
        place = replaced(str(path))
        if place in taken:
            raise UsageError(f"{path}: it would take the place of what is read")
        if place in made:
            raise UsageError(f"{path}: two outputs cannot be one file")
        made.add(place)
    folder = None if dump is None else os.path.realpath(dump)
    for place in {*made, *taken}:
        if os.path.dirname(place) == folder and place.endswith(DUMP):
            raise UsageError(f"{place}: an IR dump could take its place")


def beside(model: str, suffix: str) -> str:
    """The name of what is made for `model`, beside it."""
    return str(Path(model).with_suffix(suffix))


def within(place: str, model: str, suffix: str) -> str:
    """`place`, or where it is a folder, the name there of what is made for `model`."""
    return str(Path(place) / Path(model).with_suffix(suffix).name) if Path(place).is_dir() else place


def places_of(
    models: Sequence[str],
    outputs: str | None = None,
    fold_maps: str | None = None,
    reports: str | None = None,
    dumps: str | None = None,
) -> list[Places]:
    """The places of several models; what is given are folders, which need not exist.

    Raises UsageError where two models would write one file, or one would write over another.
    """
    below = _below_common(models) if models else []

    def place(folder: str | None, index: int, suffix: str) -> str | None:
        return None if folder is None else beside(str(Path(folder) / below[index]), suffix)

    found = [
        Places(
            model,
            place(outputs, i, MODEL) or beside(model, MODEL),
            place(fold_maps, i, FOLD_MAP),
            place(reports, i, REPORT),
            place(dumps, i, ""),
        )
        for i, model in enumerate(models)
    ]
    _check_folders(folder for folder in (outputs, fold_maps, reports, dumps) if folder is not None)
    _check_apart(found)
    return found


def _below_common(models: Sequence[str]) -> list[Path]:
    """The paths of `models`, links as they are named, below the folder that all have in common."""
    paths = [Path(os.path.abspath(model)) for model in models]
    common = os.path.commonpath([path.parent for path in paths])
    return [path.relative_to(common) for path in paths]


def _check_folders(folders: Iterable[str]) -> None:
    for folder in folders:
        if folder == "-":
            raise UsageError("several models go to a folder, not to standard output")
        existing = next(path for path in (Path(folder), *Path(folder).absolute().parents) if path.exists())
        if not existing.is_dir():
            raise UsageError(f"{folder}: several models go to a folder, and {existing} is a file")
        if existing != Path(folder) and Path(folder).suffix in (".onnx", ".json", ".html", ".irc"):
            raise UsageError(f"{folder}: several models go to a folder, and this is the name of a file")


def _check_apart(found: Iterable[Places]) -> None:
    found = list(found)
    sources: dict[Path, str] = {}
    for places in found:
        path = Path(os.path.realpath(places.model))
        if path in sources:
            raise UsageError(f"{places.model}: the model is given twice")
        sources[path] = places.model
    writers: dict[Path, str] = {}
    for places in found:
        for file in places.files(os.getcwd()):
            if file in sources:
                raise UsageError(f"{places.model}: its output would take the place of {sources[file]}")
            if file in writers:
                raise UsageError(f"{writers[file]} and {places.model}: both would be written to {file}")
            writers[file] = places.model
        if Path(places.output).is_dir():
            raise UsageError(f"{places.output}: the output of {places.model} cannot be written: this is a folder")
