"""Alignment of two models: tensors with their counterparts, as data and as files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from ...backends.foldmap.fold_map import FoldMap
from ...ir.tensor import Array
from ...support.errors import EmitError, VerifyError
from ...support.files import replacing
from .comparison import Comparison
from .correspondence import Counterpart, find_counterparts, reused_names
from .difference import (
    TensorDifference,
    json_value,
    report_rows,
    undecided_share,
    undecided_tensors,
    worst_by_tensor,
)
from .onnx_graph import tensor_names
from .overflow import Overflow
from .runner import ORT_VALUE_DTYPES, IncrementalRun, Runner
from .tensor_blocks import is_tensor, widen
from .tolerance import Tolerance

INDEX = "index.json"
DUMPED_FILE = re.compile(r"\d{5,}\.npy")


@dataclass(frozen=True, slots=True)
class Alignment:
    """The differences of the tensors that two models share, and the first model's other tensors."""

    differences: tuple[TensorDifference, ...]
    """One for every shared tensor and every stimulus, in the order of the first model."""
    alone: tuple[tuple[str, str], ...]
    """The first model's other tensors, each with a note from the fold map or an empty one."""
    counterparts: Mapping[str, Counterpart]
    """The counterparts in the second model by the names in the first."""
    tolerance: Tolerance | None = None
    """The tolerance that differences were held to, None for the bound on rounding."""
    overflow: Overflow | None = None
    """The first operator of a float16 model whose result is too large."""

    @property
    def agrees(self) -> bool:
        """Whether rounding, or the tolerance, explains every difference, and nothing overflows."""
        return self.first_divergence is None and self.overflow is None

    @property
    def worst(self) -> list[TensorDifference]:
        """Of every tensor the difference that is the greatest share of its bound."""
        return worst_by_tensor(self.differences)

    def report_rows(self) -> list[dict[str, Any]]:
        """Return the worst difference of every tensor for a report."""
        return report_rows(self.differences)

    @property
    def first_divergence(self) -> TensorDifference | None:
        """The difference of the first tensor that rounding does not explain, or None."""
        return next((difference for difference in self.worst if difference.deviates), None)

    def lines(self) -> Iterator[str]:
        """Yield the verdict: whether the models agree, and the first tensor to diverge."""
        first, tolerance = self.first_divergence, self.tolerance
        if self.overflow is not None:
            yield self.overflow.sentence
        if first is None:
            share = undecided_share(self.differences)
            rest = f"; {share:.2g} of their elements are undecided" if share else ""
            within = "their rounding bounds" if tolerance is None else "the tolerance"
            agree = len(self.worst) - len(undecided_tensors(self.differences))
            yield f"{agree} tensors agree within {within}{rest}"
        else:
            limit = "its bound" if tolerance is None else "the tolerance"
            how = f"{first.max_abs:.3g}, {first.share:.3g} times {limit}"
            if first.found:
                how = f"it {first.sentence(limit)}"
            yield f"the first to diverge is {first.tensor!r}: {how}"
        if tolerance is not None:
            yield f"judged by {tolerance}: whether rounding explains a difference is not asked"

    def to_json(self) -> dict[str, Any]:
        """Return the document of `irc align --json`."""
        first = self.first_divergence
        return {
            "agrees": self.agrees,
            "tolerance": None if self.tolerance is None else asdict(self.tolerance),
            "rows": [
                {key: json_value(value) for key, value in asdict(difference).items()}
                | {"counterpart": counterpart.name, "by": counterpart.by}
                for difference in self.differences
                for counterpart in (self.counterparts[difference.value],)
            ],
            "alone": [{"tensor": name, "note": note} for name, note in self.alone],
            "first_divergence": None if first is None else first.tensor,
            "overflow": None if self.overflow is None else self.overflow.to_json(),
        }


def align(
    comparison: Comparison, other: ModelProto, base_dir: Path, fold_map: FoldMap | None = None
) -> Alignment:
    """Compare every tensor of the source with its counterpart in `other`, found with `fold_map`.

    Raises VerifyError if a model does not run, ModelError if a file cannot be read.
    """
    source = comparison.source
    order = {name: i for i, name in enumerate(tensor_names(source.model))}
    counterparts = find_counterparts(source.model, source.base_dir, other, base_dir, fold_map)
    names = {name: counterpart.name for name, counterpart in counterparts.items()}
    is_bounded = source.tolerance is None
    reused = partial(reused_names, source.model, counterparts) if is_bounded else no_names
    _, found = comparison.deviation(other, base_dir, similarity=True, names=names, reused=reused)
    notes = {} if fold_map is None else _folded_away(fold_map)
    for name in reused(found):
        notes[name] = f"{counterparts.pop(name).name} is another tensor there"
    differences = sorted(
        (difference for difference in found if difference.value in counterparts),
        key=lambda difference: order[difference.value],
    )
    alone = tuple((name, notes.get(name, "")) for name in order if name not in counterparts)
    return Alignment(tuple(differences), alone, counterparts, source.tolerance)


def no_names(differences: Iterable[TensorDifference]) -> set[str]:
    """Return no name: with a tolerance, tensors say nothing about ones computed from them."""
    return set()


def _folded_away(fold_map: FoldMap) -> dict[str, str]:
    """Return notes on the source's lost tensors: the layer they are in, or the folded operator."""
    notes: dict[str, str] = {}
    for layer in fold_map.layers:
        output = layer["output"]
        for name in output["original_names"]:
            notes[name] = f"inside {layer['node']['name']}, whose result is {output['name']}"
    for source in fold_map.sources:
        if source["status"] == "folded":
            notes.setdefault(source["output"], f"{source['node']['op_type']} folded")
    return notes


def dump(folder: Path, models: Sequence[tuple[str, Runner]], comparison: Comparison) -> None:
    """Save tensors of each labelled model and stimulus as `.npy`, listed in `index.json`.

    Types that numpy does not have are saved as float32. An earlier dump in the folder is removed.

    Raises EmitError if the folder cannot be written or has other files, VerifyError if a model does
    not run. Then no file is left.
    """
    _clear(folder)
    index: list[dict[str, Any]] = []
    try:
        for entry, value in _tensors(models, comparison):
            file = f"{len(index):05}.npy"
            with replacing(folder / file) as target, target.open("wb") as stream:
                np.save(stream, widen(value) if value.dtype in ORT_VALUE_DTYPES else value)
            index.append(
                {"file": file, **entry, "shape": list(value.shape), "dtype": str(value.dtype)}
            )
        with replacing(folder / INDEX) as target:
            target.write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    except BaseException:
        for entry in index:
            (folder / entry["file"]).unlink(missing_ok=True)
        raise


def check_dump(folder: Path) -> list[Path]:
    """Return the files of an earlier dump in `folder`, its index first; the folder need not exist.

    Raises EmitError if the folder has files that no index of a dump lists: these are not ours to
    remove.
    """
    try:
        present = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    except OSError as error:
        raise EmitError(f"{folder}: cannot be written to: {error.strerror}") from None
    listed = _read_index(folder / INDEX)
    other = next((name for name in present if name not in listed), None)
    if other is not None:
        raise EmitError(f"{folder}: {other} is not from an earlier dump: choose an empty folder")
    return [folder / name for name in listed if name in present]


def _read_index(index: Path) -> list[str]:
    """Return the index of a dump and its files, or nothing if the file is not such an index."""
    try:
        entries = json.loads(index.read_bytes())
        names = [entry["file"] for entry in entries if entry["model"] and entry["tensor"]]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return []
    is_ours = all(isinstance(name, str) and DUMPED_FILE.fullmatch(name) for name in names)
    return [INDEX, *names] if is_ours else []


def _clear(folder: Path) -> None:
    """Make the folder, and remove an earlier dump: its index last, since it lists our files."""
    files = check_dump(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in reversed(files):
            file.unlink()
    except OSError as error:
        raise EmitError(f"{folder}: cannot be made: {error.strerror}") from None


def _tensors(
    models: Sequence[tuple[str, Runner]], comparison: Comparison
) -> Iterator[tuple[dict[str, str], Array]]:
    """Yield each tensor that can be saved, with its entry in the index.

    Raises VerifyError if a model does not run.
    """
    source = comparison.source
    runs = [(*model, one) for model in models for one in comparison.inputs_of(model[1].model)]
    for label, runner, stimulus in runs:
        run = IncrementalRun(runner, stimulus.feeds)
        names = [name for name in tensor_names(runner.model) if name not in source.unreadable]
        for chunk in source.chunks(0, names):
            try:
                values = run.compute(chunk)
            except VerifyError as error:
                message = f"model {label}: {error} (for inputs {stimulus.name!r})"
                raise VerifyError(message) from None
            for name, value in zip(chunk, values, strict=True):
                if is_tensor(value) and value.dtype != object:
                    yield {"model": label, "tensor": name, "inputs": stimulus.name}, value
