"""int8 of nets from packages: by irc without and with data, and by onnxruntime's quantizers.

    make bench-int8        or        python benchmarks/int8_packages.py --photographs FOLDER

Each model is compared with the float net on samples that no quantizer has seen. SQNR is that of all
results together with onnxruntime's graph optimizations off; the time is that of the processor for
one batch on one thread with the optimizations on, the least of RUNS.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import irc
import numpy as np
import onnx
import onnxruntime
from onnx import ModelProto
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process
from packaged_nets import Array, Results, Trained, nets
from rich.console import Console
from rich.table import Table

RUNS = 7
MOST = 100
"""Most samples of the test."""
SURE = (0.2, 0.4, 0.6)
"""Scores of the float net between which agreement is said apart."""
Made = tuple[ModelProto, dict[str, Any]]


def session(model: ModelProto, *, optimize: bool) -> onnxruntime.InferenceSession:
    """Return a session of one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def batches(samples: Array, size: int) -> list[Array]:
    """Return samples in whole batches."""
    return [samples[i : i + size] for i in range(0, len(samples) - size + 1, size)]


def results(model: ModelProto, net: Trained) -> Results:
    """Return the results of a model for the samples of the test."""
    found, name = session(model, optimize=False), net.model.graph.input[0].name
    runs = [found.run(None, {name: batch}) for batch in batches(net.test[:MOST], net.batch)]
    return [np.concatenate(each) for each in zip(*runs, strict=True)]


def milliseconds(model: ModelProto, net: Trained) -> float:
    """Return the least time of the processor for one batch."""
    found, name = session(model, optimize=True), net.model.graph.input[0].name
    times = []
    for _ in range(RUNS):
        start = time.thread_time()
        found.run(None, {name: net.test[: net.batch]})
        times.append(1000 * (time.thread_time() - start))
    return min(times)


def by_irc(net: Trained, **options: Any) -> Made:
    """Return the model of `irc quantize`, and what its report says."""
    name = net.model.graph.input[0].name
    if "data" in options:
        options["data"] = {name: options["data"]}
    elif net.samples.dtype.kind == "f":
        options["input_ranges"] = {name: net.range}
    start = time.process_time()
    found = irc.quantize(copy.deepcopy(net.model), **options)
    # The ratio without graph optimizations is beside that as run if they are apart.
    ratios = [one.sqnr if one.unoptimized is None else one.unoptimized for one in found.fidelity]
    said = {
        "predicted": min(ratios, default=None),
        "sum": None if found.reached is None else found.reached.predicted,
        "share": found.int8_share,
        "doubts": len(found.doubts),
        "seconds": time.process_time() - start,
    }
    return found.model, said


class Reader(CalibrationDataReader):  # type: ignore[misc]
    """The samples to calibrate with."""

    def __init__(self, net: Trained) -> None:
        name = net.model.graph.input[0].name
        self.left: Iterator[dict[str, Array]] = iter(
            [{name: batch} for batch in batches(net.calibration, net.batch)]
        )

    def get_next(self) -> dict[str, Array] | None:
        return next(self.left, None)


def by_onnxruntime(net: Trained, *, dynamic: bool) -> Made:
    """Return the model of onnxruntime's quantizer, one scale for each channel of a weight."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "float.onnx"), Path(folder, "int8.onnx")
        onnx.save(net.model, source)
        if dynamic:
            quantize_dynamic(source, target, per_channel=True, weight_type=QuantType.QInt8)
        else:
            prepared = Path(folder, "prepared.onnx")
            quant_pre_process(source, prepared, skip_symbolic_shape=True)
            quantize_static(
                prepared,
                target,
                Reader(net),
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
            )
        return onnx.load(target), {}


WAYS: dict[str, Callable[[Trained], Made]] = {
    "irc": lambda net: by_irc(net),
    "irc --target 22dB": lambda net: by_irc(net, target="22dB"),
    "irc --data": lambda net: by_irc(net, data=net.calibration),
    "onnxruntime static": lambda net: by_onnxruntime(net, dynamic=False),
    "onnxruntime dynamic": lambda net: by_onnxruntime(net, dynamic=True),
}
"""Quantizers: without data, with data (CALIBRATION samples), and with scales found at run time."""


def ratio(expected: Results, found: Results) -> float:
    """Return the ratio of signal to noise of the worst result in dB."""
    pairs = [
        (a.astype(np.float64), b.astype(np.float64)) for a, b in zip(expected, found, strict=True)
    ]
    powers = [(np.square(a).sum(), np.square(a - b).sum()) for a, b in pairs]
    return float(
        min(10 * np.log10(signal / noise) if noise else np.inf for signal, noise in powers)
    )


def by_sureness(net: Trained, expected: Results, found: Results) -> list[list[float]]:
    """Return agreement and number of samples, by how sure the float classifier is."""
    logits = expected[0] - expected[0].max(-1, keepdims=True)
    sure = (np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)).max(-1)
    same = expected[0].argmax(-1) == found[0].argmax(-1)
    parts = np.digitize(sure, SURE)
    return [
        [float(same[parts == i].mean()) if (parts == i).any() else 0.0, int((parts == i).sum())]
        for i in range(len(SURE) + 1)
    ]


def row(net: Trained, way: Callable[[Trained], Made], expected: Results) -> dict[str, Any]:
    """Return all that is measured of one way, or the error by which it ends."""
    try:
        model, said = way(net)
        found = results(model, net)
        said["dB"] = ratio(expected, found)
        said["agreement"] = None if net.agree is None else 100 * net.agree(expected, found)
        if expected[0].ndim == 2 and expected[0].shape[1] == 1000:
            said["by sureness"] = by_sureness(net, expected, found)
        said |= {"ms": milliseconds(model, net), "bytes": model.ByteSize()}
    except Exception as error:  # of every kind: a tool that fails has a row that says so
        lines = str(error).strip().splitlines()
        said = {"error": f"{type(error).__name__}: {lines[0][:200] if lines else ''}"}
    return said


def table(cache: dict[str, dict[str, Any]], names: Sequence[str]) -> Table:
    """Return the table of all rows."""
    columns = ("net", "by", "agree %", "dB", "predicted", "int8 %", "doubts", "ms", "KB", "seconds")
    found = Table()
    for column in columns:
        found.add_column(column, justify="left" if column in columns[:2] else "right")
    for name in names:
        for way in ("float", *WAYS):
            said = cache.get(f"{name}|{way}")
            if said is None:
                continue
            if "error" in said:
                found.add_row(name, way, said["error"][:60])
                continue
            share = said.get("share")
            numbers = [said.get(key) for key in ("agreement", "dB", "predicted")]
            numbers.append(None if share is None else 100 * share)
            cells = ["" if each is None else f"{each:.1f}" for each in numbers]
            kilobytes = said["bytes"] // 1000
            last = [said.get("doubts"), f"{said['ms']:.2f}", kilobytes, said.get("seconds")]
            last[3] = None if last[3] is None else f"{last[3]:.0f}"
            found.add_row(name, way, *cells, *("" if each is None else str(each) for each in last))
    return found


def main() -> None:
    """Measure all rows that the file of results does not have, and print the table."""
    parser = argparse.ArgumentParser(description="int8 of trained nets from packages.")
    parser.add_argument("--json", type=Path, default=Path("build/int8_packages.json"))
    parser.add_argument("--photographs", type=Path, help="a folder of .png files")
    parser.add_argument("--only", action="append", help="part of a name")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    console = Console(width=150)
    cache: dict[str, dict[str, Any]] = (
        json.loads(options.json.read_text()) if options.json.exists() else {}
    )
    chosen = nets(options.photographs)
    for name, make in chosen.items():
        missing = [way for way in WAYS if f"{name}|{way}" not in cache]
        if not missing or (options.only and not any(each in name for each in options.only)):
            continue
        net = make()
        expected = results(net.model, net)
        exact = {"ms": milliseconds(net.model, net), "bytes": net.model.ByteSize()}
        cache[f"{name}|float"] = exact
        for way in missing:
            cache[f"{name}|{way}"] = row(net, WAYS[way], expected)
            console.print(name, way, cache[f"{name}|{way}"], highlight=False)
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(cache, indent=1) + "\n")
    console.print(table(cache, list(chosen)))


if __name__ == "__main__":
    main()
