"""The models of the study: rule and structural cases, models of onnx, real ones, open exports."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import tools  # puts tests on the path

# isort: split
import ir_text
import onnx
import scale_axis
import zoo
from graphs import F32, F64, without_foreign
from harness import ONNX_DATA
from irc.ir.text.parser import parse
from irc.result import emit
from onnx import ModelProto

LIGHT = ONNX_DATA / "light"
SUITES = ("rules", "structures", "light", "real", "open")


@dataclass(frozen=True)
class StudyCase:
    """A model and its digest."""

    suite: str
    name: str
    data: bytes

    @property
    def digest(self) -> str:
        """The digest of the file."""
        return hashlib.sha256(self.data).hexdigest()


def rule_cases() -> Iterator[tuple[str, ModelProto]]:
    """Yield the cases of the rule tables and of IR texts; float32 if only a rule matters."""
    for case in scale_axis.CASES:
        if case.x is not None:
            yield case.id, case.model(F32 if case.dtype == F64 else None)
    for file in sorted((tools.ROOT / "tests" / "passes").rglob("*.irc")):
        for text in ir_text.read_cases(file):
            if not text.incomparable:
                model = emit(parse(ir_text.drawn(text.source)[0], name=file.name)).model
                yield f"{file.stem}: {text.name}", comparable(model)


def comparable(model: ModelProto) -> ModelProto:
    """Return a model with operands of foreign operators as outputs, itself if that is not valid."""
    cut = without_foreign(model)
    if cut is model:
        return model
    for named in (*cut.graph.output, *cut.graph.input):
        for node in cut.graph.node:
            for names in (node.input, node.output):
                names[:] = [tidied(name) if name == named.name else name for name in names]
        named.name = tidied(named.name)
    try:
        inferred = onnx.shape_inference.infer_shapes(cut, data_prop=True)
        onnx.checker.check_model(inferred, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return model
    del inferred.graph.value_info[:]
    return inferred


def tidied(name: str) -> str:
    """Return a name of `without_foreign` without spaces and commas."""
    return name.replace(", ", "_").replace(" ", "_")


def structural_cases() -> Iterator[tuple[str, ModelProto]]:
    """Yield the models of tests/support/zoo that keep to the rules of ONNX."""
    return ((name, model) for name, model in zoo.models() if not zoo.is_odd(name))


def files(folder: Path, limit: int) -> Iterator[tuple[str, bytes]]:
    """Yield the models of a folder that have at most `limit` bytes, smallest first."""
    for path in sorted(folder.rglob("*.onnx"), key=lambda path: (path.stat().st_size, path.name)):
        if path.stat().st_size <= limit:
            yield path.stem, path.read_bytes()


def study_cases(
    suites: tuple[str, ...], folders: Mapping[str, Path | None], limit: int
) -> Iterator[StudyCase]:
    """Yield the cases of the suites, each model once; `folders` has those of `real` and `open`."""
    made: dict[str, Callable[[], Iterator[tuple[str, ModelProto]]]] = {
        "rules": rule_cases,
        "structures": structural_cases,
    }
    seen: set[str] = set()
    for suite in suites:
        folder = {"light": LIGHT, **folders}.get(suite)
        if suite in made:
            items = (
                (name, model.SerializeToString(deterministic=True)) for name, model in made[suite]()
            )
        else:
            items = files(folder, limit) if folder is not None else iter(())
        for name, data in items:
            case = StudyCase(suite, name, data)
            if case.digest not in seen:
                seen.add(case.digest)
                yield case
