"""Paths of output files, and checks that no file replaces another one.

Without a folder, the files of a model stand beside it. In a folder they stand as the models do
below their common parent: models of one folder lie side by side, and two files of external data
with the same name never meet.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from .errors import UsageError

MODEL, FOLD_MAP, REPORT, DUMP = ".irc.onnx", ".foldmap.json", ".html", ".irc"
"""Suffixes of the files made for a model, in place of its own.

Files of these names are not read as external data (`external_path`).
"""

MODELS = (".onnx", DUMP, ".pt2")
"""Suffixes of models that are read."""


class OutputPaths:
    """Paths of one model and its outputs; `dump_ir` is the folder of its IR dumps."""

    def __init__(
        self,
        model: str,
        output: str,
        fold_map: str | None = None,
        report: str | None = None,
        dump_ir: str | None = None,
    ) -> None:
        self.model = model
        self.output = output
        self.fold_map = fold_map
        self.report = report
        self.dump_ir = dump_ir

    def files(self, folder: str) -> Iterator[Path]:
        """Yield the real path of each output, relative ones below `folder`."""
        found = [self.output, self.fold_map, self.report, self.dump_ir]
        if self.fold_map is not None:
            found.append(str(arrays_path(Path(self.fold_map))))
        return (Path(os.path.realpath(Path(folder, path))) for path in found if path is not None)


def path_to_text(path: str | Path) -> str:
    """Return a path as UTF-8 text, the same in every locale.

    Other bytes become surrogate escapes.
    """
    return os.fsencode(path).decode(errors="surrogateescape")


def path_from_text(text: str) -> Path:
    """Return the path that `path_to_text` made `text` of. Raises ValueError for other text."""
    return Path(os.fsdecode(text.encode(errors="surrogateescape")))


def arrays_path(document: Path) -> Path:
    """Return the path of the npz file with arrays: of a fold map, or the constants of IR text."""
    return document.with_suffix(".npz")


def is_text(path: str | Path) -> bool:
    """Return whether the name of a file says that it is IR text."""
    return str(path).endswith(DUMP)


def is_drawing(path: str | Path) -> bool:
    """Return whether the name of a file says that it is a drawing."""
    return str(path).endswith(".svg")


def check_drawing(option: str, path: str) -> None:
    """Raise UsageError unless the name of a file says that it is a drawing."""
    if not is_drawing(path):
        raise UsageError(f"{path}: {option} writes a drawing: give it a name that ends with .svg")


def entry_path(path: str | Path) -> str:
    """Return the absolute path that a write to `path` replaces: a link itself, not its target."""
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(folder), name)


def paths_read(path: str | Path) -> set[str]:
    """Return the paths that reading `path` needs: the file, and the link to it if there is one."""
    return {entry_path(path), os.path.realpath(path)}


def check_apart(
    writes: Iterable[str | Path | None],
    reads: Iterable[str | Path | None] = (),
    dump: str | None = None,
) -> None:
    """Check that no file of `writes` replaces another one, or one of `reads`.

    None may be an IR dump in the folder `dump` either. None and `-` are ignored. Raises UsageError.
    """
    inputs = {found for path in reads if path not in (None, "-") for found in paths_read(str(path))}
    outputs: set[str] = set()
    for path in writes:
        if path in (None, "-"):
            continue
        if str(path).endswith(os.sep):
            raise UsageError(f"{path}: name a file in this folder")
        entry = entry_path(str(path))
        if not inputs.isdisjoint(paths_read(str(path))):
            raise UsageError(f"{path}: this output would replace a file that is read")
        if entry in outputs:
            raise UsageError(f"{path}: two outputs cannot be one file")
        outputs.add(entry)
    folder = None if dump is None else os.path.realpath(dump)
    for entry in {*outputs, *inputs}:
        if os.path.dirname(entry) == folder and entry.endswith(DUMP):
            raise UsageError(f"{entry}: an IR dump could replace it")


def check_replaced(output: str | Path | None, model: str | Path, *, in_place: bool) -> None:
    """Raise UsageError if `output` would replace `model`, by its name or a link.

    With `in_place` it may.
    """
    if in_place or output in (None, "-") or str(model) == "-":
        return
    if not paths_read(str(output)).isdisjoint(paths_read(model)):
        raise UsageError(
            f"{output}: this output would replace the model that is read: --in-place (in Python"
            " in_place=True) allows it"
        )


def is_folder(path: str) -> bool:
    """Return whether an output is a folder: it is there, or its name ends as a folder's."""
    return path.endswith(os.sep) or Path(path).is_dir()


def beside(model: str, suffix: str) -> str:
    """Return the path of an output beside `model`."""
    return str(Path(model).with_suffix(suffix))


def within(path: str, model: str, suffix: str) -> str:
    """Return `path`, or a path in it if it is a folder or ends as folders do.

    The file in the folder has the name of `model` with `suffix`.
    """
    return str(Path(path) / Path(model).with_suffix(suffix).name) if is_folder(path) else path


def assign_output_paths(
    models: Sequence[str],
    outputs: str | None = None,
    fold_maps: str | None = None,
    reports: str | None = None,
    dumps: str | None = None,
    *,
    in_place: bool = False,
) -> list[OutputPaths]:
    """Return the paths of the outputs of several models; the arguments are folders.

    They need not exist. With `in_place` and without a folder `outputs`, each output is its model.
    Raises UsageError if two models would write one file, or an output would replace a model.
    """
    sources = [Path(os.path.abspath(model)) for model in models]
    common = os.path.commonpath([path.parent for path in sources]) if sources else ""

    def place(folder: str | None, source: Path, suffix: str) -> str | None:
        return (
            None
            if folder is None
            else beside(str(Path(folder) / source.relative_to(common)), suffix)
        )

    found = [
        OutputPaths(
            model,
            place(outputs, source, MODEL) or (model if in_place else beside(model, MODEL)),
            place(fold_maps, source, FOLD_MAP),
            place(reports, source, REPORT),
            place(dumps, source, ""),
        )
        for model, source in zip(models, sources, strict=True)
    ]
    for folder in (outputs, fold_maps, reports, dumps):
        if folder is not None:
            _check_folder(folder)
    _check_models_apart(found, in_place=in_place)
    return found


def _check_folder(folder: str) -> None:
    if folder == "-":
        raise UsageError("several models go to a folder, not to standard output")
    existing = next(
        path for path in (Path(folder), *Path(folder).absolute().parents) if path.exists()
    )
    if not existing.is_dir():
        raise UsageError(f"{folder}: several models go to a folder, and {existing} is a file")
    if existing != Path(folder) and Path(folder).suffix in (".onnx", ".json", ".html", ".irc"):
        raise UsageError(f"{folder}: several models go to a folder, and this is the name of a file")


def _check_models_apart(found: Sequence[OutputPaths], *, in_place: bool) -> None:
    sources: dict[Path, str] = {}
    for paths in found:
        source = Path(os.path.realpath(paths.model))
        if source in sources:
            raise UsageError(f"{paths.model}: the model is given twice")
        sources[source] = paths.model
    writers: dict[Path, str] = {}
    for paths in found:
        replaced = Path(os.path.realpath(paths.output)) if in_place else None
        for file in paths.files(os.getcwd()):
            is_own = file == replaced and sources.get(file) == paths.model
            if file in sources and not is_own:
                raise UsageError(f"{paths.model}: its output would replace {sources[file]}")
            if file in writers:
                raise UsageError(
                    f"{writers[file]} and {paths.model}: both would be written to {file}"
                )
            writers[file] = paths.model
        if Path(paths.output).is_dir():
            raise UsageError(
                f"{paths.output}: the output of {paths.model} cannot be written: this is a folder"
            )
