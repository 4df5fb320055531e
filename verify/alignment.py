"""Two models tensor by tensor: what of one stands for what of the other, as JSON, and as files of all elements."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from ..backends.foldmap import FoldMap
from ..ir.tensor import Array
from ..support.errors import EmitError, VerifyError
from ..support.files import replacing
from .comparison import Comparison
from .counterparts import Counterpart, counterparts
from .difference import Row, measures, plain, worst
from .inputs import Stimulus
from .reference import is_tensor, wide
from .reference_model import ReferenceModel
from .runner import FED, Runner, Walk, tensors_of

INDEX = "index.json"
DUMPED = re.compile(r"\d{5,}\.npy")
"""Names of the files in a dump."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """What two models have in common, and what only the first has."""

    rows: tuple[Row, ...]
    """One for every tensor that both have and every set of inputs, in the order of the first model."""
    alone: tuple[tuple[str, str], ...]
    """The tensors that only the first has, with what the fold map says became of them, if anything."""
    counterparts: Mapping[str, Counterpart]
    """What the second has for tensors of the first."""

    @property
    def worst(self) -> list[Row]:
        """Of every tensor the row that is furthest from what rounding can do."""
        return worst(self.rows)

    def measures(self) -> list[dict[str, Any]]:
        """What a report plots: `measures` of the rows."""
        return measures(self.rows)

    @property
    def first_divergence(self) -> Row | None:
        """The row of the first tensor that rounding does not explain, None where there is none."""
        return next((row for row in self.worst if row.deviates), None)

    def to_json(self) -> dict[str, Any]:
        """The document of `irc align --json`."""
        first = self.first_divergence
        return {
            "agrees": first is None,
            "rows": [
                {key: plain(value) for key, value in asdict(row).items()}
                | {"counterpart": self.counterparts[row.value].name, "by": self.counterparts[row.value].by}
                for row in self.rows
            ],
            "alone": [{"tensor": name, "note": note} for name, note in self.alone],
            "first_divergence": None if first is None else first.tensor,
        }


def align(comparison: Comparison, other: ModelProto, base_dir: Path, fold_map: FoldMap | None = None) -> Alignment:
    """Compare every tensor of the source with what stands for it in `other`: what irc writes bears a name of its source
    only where it holds the same values. For others `counterparts` are looked for, with the help of the fold map.

    Raises VerifyError where a model does not run, ModelError where a file cannot be read.
    """
    source = comparison.source
    order = {name: i for i, name in enumerate(tensors_of(source.model))}
    there = counterparts(source.model, source.base_dir, other, base_dir, fold_map)
    names = {name: counterpart.name for name, counterpart in there.items()}
    _, found = comparison.deviation(other, base_dir, similarity=True, counterparts=names)
    rows = sorted(found, key=lambda row: order[row.value])
    notes = {} if fold_map is None else _gone(fold_map)
    alone = tuple((name, notes.get(name, "")) for name in order if name not in there)
    return Alignment(tuple(rows), alone, there)


def _gone(fold_map: FoldMap) -> dict[str, str]:
    """By name what became of tensors that the folded model does not have: the layer that they are inside, or the
    operator that made them and was folded.
    """
    notes: dict[str, str] = {}
    for layer in fold_map.layers:
        for name in layer["output"]["original_names"]:
            notes[name] = f"inside {layer['node']['name']}, whose result is {layer['output']['name']}"
    for source in fold_map.sources:
        if source["status"] == "folded":
            notes.setdefault(source["output"], f"{source['node']['op_type']} folded")
    return notes


def dump(folder: Path, models: Sequence[tuple[str, Runner]], comparison: Comparison) -> None:
    """Save every tensor of each model, which is labelled so, for every set of inputs that it takes, as `.npy`;
    `index.json` names them. Those of types that numpy does not have by itself are saved as float32. A folder may have
    been dumped to before: what was there then goes.

    Tensors are taken in the chunks of the comparison. Raises EmitError where the folder cannot be written, or has
    other files, VerifyError where a model does not run; then nothing is left there.
    """
    _clear(folder)
    index: list[dict[str, Any]] = []
    try:
        for label, runner in models:
            for stimulus in comparison.inputs_of(runner.model):
                for name, value in _tensors(label, runner, stimulus, comparison.source):
                    file = f"{len(index):05}.npy"
                    with replacing(folder / file) as target, target.open("wb") as stream:
                        np.save(stream, wide(value) if value.dtype in FED else value)
                    entry = {"file": file, "model": label, "tensor": name, "inputs": stimulus.name}
                    index.append({**entry, "shape": list(value.shape), "dtype": str(value.dtype)})
        with replacing(folder / INDEX) as target:
            target.write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    except BaseException:
        for entry in index:
            (folder / entry["file"]).unlink(missing_ok=True)
        raise


def check_dump(folder: Path) -> list[Path]:
    """The files of an earlier dump in `folder`, which need not be there, its index first. Raises EmitError where the
    folder has files that no index of a dump names, which are not ours to remove.
    """
    try:
        there = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    except OSError as error:
        raise EmitError(f"{folder}: cannot be written to: {error.strerror}") from None
    known = _indexed(folder / INDEX)
    other = next((name for name in there if name not in known), None)
    if other is not None:
        raise EmitError(f"{folder}: there is {other}, which is of no earlier dump: take an empty folder")
    return [folder / name for name in known if name in there]


def _indexed(index: Path) -> list[str]:
    """The index of a dump, and the files that it names; nothing where it is none."""
    try:
        entries = json.loads(index.read_bytes())
        names = [entry["file"] for entry in entries if entry["model"] and entry["tensor"]]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return []
    return [INDEX, *names] if all(isinstance(name, str) and DUMPED.fullmatch(name) for name in names) else []


def _clear(folder: Path) -> None:
    """Make the folder, without the files of an earlier dump; the index goes last, as it tells whose they are."""
    files = check_dump(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in reversed(files):
            file.unlink()
    except OSError as error:
        raise EmitError(f"{folder}: cannot be made: {error.strerror}") from None


def _tensors(label: str, runner: Runner, stimulus: Stimulus, source: ReferenceModel) -> Iterator[tuple[str, Array]]:
    """The tensors of a model that can be saved, in its order. Raises VerifyError where it does not run."""
    walk = Walk(runner, stimulus.feeds)
    for chunk in source.chunks(0, [name for name in tensors_of(runner.model) if name not in source.unreadable]):
        try:
            values = walk.take(chunk)
        except VerifyError as error:
            raise VerifyError(f"model {label}: {error} (for inputs {stimulus.name!r})") from None
        for name, value in zip(chunk, values, strict=True):
            if is_tensor(value) and value.dtype != object:
                yield name, value
