"""Collect the data of a report from a compile or from an alignment."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypedDict

from onnx import ModelProto, TensorProto

from ...frontends.onnx import from_model
from ...frontends.onnx.codec.traversal import external_tensors
from ...result import Result
from ...support.version import __version__
from .layer_rows import affine_rows, layer_rows
from .model_graph import graphs_of
from .page_data import MeasureRow, ModelFacts, PassRow, ReportData
from .page_text import short
from .recorder import PassRun, Recorder, value_types
from .relate import relate


class Measure(TypedDict):
    """The error of one tensor of the compiled model: `sqnr` is in dB, `bound` limits `max_abs`."""

    tensor: str
    max_abs: float | None
    max_rel: float | None
    sqnr: float | None
    bound: float | None


def collect(
    name: str,
    recorder: Recorder,
    result: Result,
    *,
    seconds: float | None = None,
    alignment: Sequence[Measure | Mapping[str, object]] | None = None,
    durations: bool = True,
) -> ReportData:
    """Return the data of a report on the model `name`; `recorder` saw its passes.

    `seconds` is the time of reading and compiling, `alignment` the errors of tensors in the order
    of the model. Without `durations`, equal compiles give equal data. Raises ModelError and OSError
    if external data cannot be read.
    """
    fold_map = result.fold_map
    before = graphs_of(recorder.source, recorder.types)
    after = graphs_of(result.model, value_types(result.module, result.name_of))
    relate(fold_map.sources, fold_map.layers, before, after)
    return {
        "irc": __version__,
        "model": _model_facts(name, recorder.source),
        "summary": {
            "operators": [recorder.operators, result.operators],
            "bytes": [_size(recorder.source), _size(result.model)],
            "affines": dict(sorted(fold_map.count().items())),
            "held_back": result.held_back,
            "seconds": _seconds(seconds, durations),
            "warnings": [short(warning) for warning in result.warnings],
        },
        "passes": [_pass_row(run, durations) for run in recorder.runs],
        "graphs": [[graph.data for graph in graphs] for graphs in (before, after)],
        "affines": affine_rows(fold_map),
        "layers": layer_rows(fold_map, recorder.source, result.model, recorder.base_dir),
        "alignment": None if alignment is None else [_measure_row(item) for item in alignment],
    }


def collect_alignment(
    names: tuple[str, str],
    first: ModelProto,
    second: ModelProto,
    alignment: Sequence[Measure | Mapping[str, object]],
) -> ReportData:
    """Return the data of a report on two models side by side, with their differences.

    Raises ModelError if a model breaks ONNX's rules for graphs.
    """
    modules = [from_model(model) for model in (first, second)]
    before = graphs_of(first, value_types(modules[0]))
    after = graphs_of(second, value_types(modules[1]))
    relate([], [], before, after)
    return {
        "irc": __version__,
        "model": _model_facts(" and ".join(names), first),
        "summary": {
            "operators": [module.operators().total() for module in modules],
            "bytes": [_size(first), _size(second)],
            "affines": None,  # nothing was compiled
            "held_back": 0,
            "seconds": None,
            "warnings": [],
        },
        "passes": [],
        "graphs": [[graph.data for graph in graphs] for graphs in (before, after)],
        "affines": [],
        "layers": [],
        "alignment": [_measure_row(item) for item in alignment],
    }


def _model_facts(name: str, source: ModelProto) -> ModelFacts:
    producer = f"{source.producer_name} {source.producer_version}".strip()
    opsets = {short(entry.domain or "ai.onnx"): entry.version for entry in source.opset_import}
    return {
        "name": short(name),
        "producer": short(producer),
        "ir_version": source.ir_version,
        "opsets": opsets,
    }


def _pass_row(run: PassRun, durations: bool) -> PassRow:
    return {
        "name": short(run.name),
        "seconds": _seconds(run.seconds, durations),
        "changed": run.changed,
        "operators": run.operators,
        "added": run.diff.added,
        "removed": run.diff.removed,
        "lines": run.diff.lines,
        "left_out": run.diff.left_out,
    }


def _seconds(seconds: float | None, durations: bool) -> float | None:
    return None if seconds is None or not durations else round(seconds, 6)


def _measure_row(item: Measure | Mapping[str, object]) -> MeasureRow:
    return {
        "tensor": short(str(item["tensor"])),
        "max_abs": _finite(item.get("max_abs")),
        "max_rel": _finite(item.get("max_rel")),
        "sqnr": _finite(item.get("sqnr")),
        "bound": _finite(item.get("bound")),
    }


def _finite(value: object) -> float | str | None:
    """Return a number with four digits; infinity and NaN as text, because JSON has neither."""
    if value is None:
        return None
    number = float(value)  # type: ignore[arg-type]  # a number of Python or of NumPy
    return float(f"{number:.4g}") if math.isfinite(number) else str(number)


def _size(model: ModelProto) -> int:
    """Return the bytes of a model with its external data."""
    return model.ByteSize() + sum(_external_size(tensor) for tensor in external_tensors(model))


def _external_size(tensor: TensorProto) -> int:
    lengths = [entry.value for entry in tensor.external_data if entry.key == "length"]
    return sum(int(length) for length in lengths if length.isdigit())
