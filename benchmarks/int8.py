"""int8 of two ImageNet networks: with pictures, from the fold map alone, and by other tools.

    make bench-int8        or        python benchmarks/int8.py --json RESULTS.json --plot PICTURE.svg

Weights int8 and symmetric, activations uint8, by onnxruntime's quantizer, run without graph
optimizations; the logits are not rounded. Ranges from pictures are cross-validated: each of FOLDS
parts of the pictures is judged with the ranges of the other parts. SQNR is that of the logits
against the float network.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import irc
import numpy as np
import onnx
from int8_nets import Array, Net, efficientnet_lite0, mobilenet_v2, pictures
from irc.backends.quantizers.onnxruntime import cache_of
from irc.backends.quantizers.ranges import Activation, Activations, activations
from irc.tools.int8.fidelity import SquaredError
from irc.tools.int8.preparation import CORRECTION
from irc.tools.verify.onnx_graph import tensor_names
from irc.tools.verify.runner import Runner
from onnx import ModelProto
from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
from rich.console import Console
from rich.table import Table

NOISE_SCALES = "default,CrossLayerEqualization{{objective=noise}}"
STEPS = {
    "naive": "default",
    "equalized": "default,CrossLayerEqualization,FoldConstant",
    "equalized, objective=noise": f"{NOISE_SCALES},FoldConstant",
    "+ absorption": f"{NOISE_SCALES},HighBiasAbsorption{{{{sigmas=6}}}},FoldConstant",
    "+ correction": f"{NOISE_SCALES},HighBiasAbsorption{{{{sigmas=6}}}},{CORRECTION}",
}
"""Passes that prepare a network, with the options of the rounding of weights.

The last are those of irc quantize, which rounds spatial kernels over neighbours, too.
"""
FOLDS = 4
"""Parts of the pictures, of which one is judged with the ranges of the others."""
BATCH = 10
RANDOM = 20
"""Number of random inputs, normal with the mean and deviation that the network expects: N(0, 1)."""
PICTURES, MAP, NOISE = "pictures", "map", "random"

Ranges = dict[str, tuple[float, float]]


@dataclass(frozen=True)
class Score:
    """Top-1 accuracy and agreement with the float network in %, and SQNR of the logits in dB."""

    top1: float
    agreement: float
    sqnr: float


@dataclass
class Task:
    """A network, three views of each picture, labels, the picture of each view, and logits."""

    net: Net
    inputs: Array
    labels: Array
    owners: Array
    logits: Array

    def score(self, logits: Array) -> Score:
        """Judge logits for all inputs."""
        error = SquaredError()
        error.add(self.logits, logits)
        winners = logits.argmax(1)
        agreement = 100 * float((winners == self.logits.argmax(1)).mean())
        return Score(100 * float((winners == self.labels).mean()), agreement, error.sqnr)

    @property
    def folds(self) -> list[Array]:
        """The inputs of each part, as a mask; all views of a picture are in one part."""
        return [self.owners % FOLDS == part for part in range(FOLDS)]

    @property
    def calibration(self) -> Array:
        """The pictures themselves, without their other views."""
        return self.inputs[np.unique(self.owners, return_index=True)[1]]


def run(model: ModelProto, inputs: Array) -> Array:
    """Return the logits, [N, 1000]."""
    runner = Runner(model, Path())
    (name,) = (info.name for info in model.graph.output)
    feed = model.graph.input[0].name
    batches = [
        runner.run([name], {feed: inputs[i : i + BATCH]})[0] for i in range(0, len(inputs), BATCH)
    ]
    return np.concatenate(batches)


def observed(model: ModelProto, inputs: Array) -> list[Ranges]:
    """Return the least and greatest number of every floating-point tensor, for each input."""
    runner, names = Runner(model, Path()), tensor_names(model)
    feed = model.graph.input[0].name
    found = []
    for i in range(len(inputs)):
        values = dict(zip(names, runner.run(names, {feed: inputs[i : i + 1]}), strict=True))
        arrays = {
            feed: inputs[i : i + 1],
            **{name: array for name, array in values.items() if array.dtype.kind == "f"},
        }
        found.append(
            {name: (float(array.min()), float(array.max())) for name, array in arrays.items()}
        )
    return found


def joined(ranges: Sequence[Ranges]) -> Activations:
    """Return the ranges that hold all of several inputs."""
    ends = {name: [one[name] for one in ranges] for name in ranges[0]}
    known = {
        name: Activation(
            np.array(min(low for low, _ in found)), np.array(max(high for _, high in found))
        )
        for name, found in ends.items()
    }
    return Activations(known, (), {}, {})


def quantized(model: ModelProto, ranges: Activations, *, per_channel: bool) -> ModelProto:
    """Return an int8 network by onnxruntime's quantizer."""
    with tempfile.TemporaryDirectory() as folder:
        target, cache = Path(folder) / "int8.onnx", Path(folder) / "cache.json"
        cache_of(ranges).save(cache)
        quantize_static(
            copy.deepcopy(model),  # quantize_static moves its tensors away
            target,
            None,
            quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=per_channel,
            calibration_cache_path=cache,
            extra_options={"OpTypesToExcludeOutputQuantization": ["Gemm"]},
        )
        return onnx.load(target)


def cross_validated(task: Task, make: Callable[[Array], ModelProto]) -> Array:
    """Return the logits of int8 networks, each on the pictures that it is not made of (a mask)."""
    logits = np.zeros_like(task.logits)
    owners = np.unique(task.owners)
    for part, mask in enumerate(task.folds):
        logits[mask] = run(make(owners % FOLDS != part), task.inputs[mask])
    return logits


def by_ranges(
    task: Task, model: ModelProto, free: Activations | None, per_channel: bool
) -> Iterator[tuple[str, Score]]:
    """Yield the scores of a float network with ranges from pictures, the map and random inputs."""
    seen = observed(model, task.calibration)

    def make(mask: Array) -> ModelProto:
        chosen = [ranges for ranges, is_in in zip(seen, mask, strict=True) if is_in]
        return quantized(model, joined(chosen), per_channel=per_channel)

    yield PICTURES, task.score(cross_validated(task, make))
    if free is not None:
        yield MAP, task.score(run(quantized(model, free, per_channel=per_channel), task.inputs))
    noise = joined(observed(model, random_inputs()))
    yield NOISE, task.score(run(quantized(model, noise, per_channel=per_channel), task.inputs))


def random_inputs() -> Array:
    """Return inputs N(0, 1)."""
    return np.random.default_rng(0).standard_normal((RANDOM, 3, 224, 224)).astype(np.float32)


def by_passes(task: Task, passes: str, per_channel: bool) -> Iterator[tuple[str, Score]]:
    """Yield the scores of a network that irc prepares."""
    rounding = f"per_channel={per_channel}".lower()
    result = irc.compile(copy.deepcopy(task.net.model), passes.format(rounding))
    free = activations(result.model, result.fold_map, input_ranges={"x": task.net.range})
    yield from by_ranges(task, result.model, free, per_channel)


def by_quantize(task: Task, per_channel: bool) -> Iterator[tuple[str, Score]]:
    """Yield the score of irc quantize without data."""
    found = irc.quantize(
        copy.deepcopy(task.net.model), input_ranges=task.net.range, per_channel=per_channel
    )
    yield MAP, task.score(run(found.model, task.inputs))


def by_aimet(task: Task, per_channel: bool) -> Iterator[tuple[str, Score]]:
    """Yield the scores of a network that AIMET equalizes, which replaces ReLU6 by ReLU."""
    from aimet_onnx.cross_layer_equalization import equalize_model

    model = copy.deepcopy(task.net.model)
    equalize_model(model)
    yield from by_ranges(task, model, None, per_channel)


def by_nncf(task: Task, per_channel: bool) -> Iterator[tuple[str, Score]]:
    """Yield the scores of NNCF's own quantization, with a scale for each channel of a weight."""
    import nncf

    def make(inputs: Array) -> ModelProto:
        dataset = nncf.Dataset([{"x": each[None]} for each in inputs])
        made: ModelProto = nncf.quantize(
            copy.deepcopy(task.net.model), dataset, subset_size=len(inputs)
        )
        return made

    if per_channel:
        yield PICTURES, task.score(cross_validated(task, lambda mask: make(task.calibration[mask])))
        yield NOISE, task.score(run(make(random_inputs()), task.inputs))


def by_onnxsim(task: Task, per_channel: bool) -> Iterator[tuple[str, Score]]:
    """Yield the scores of onnxsim's quantizer, on the network that it simplifies and equalizes."""
    import onnxsim

    simplified, _ = onnxsim.simplify(copy.deepcopy(task.net.model))
    equalized = onnxsim.cross_layer_equalize(simplified)

    def make(inputs: Array) -> ModelProto:
        feeds = [{"x": each[None]} for each in inputs]
        made: ModelProto = onnxsim.quantize_static(
            copy.deepcopy(equalized), feeds, per_channel=per_channel, full_graph=True
        )
        return made

    yield PICTURES, task.score(cross_validated(task, lambda mask: make(task.calibration[mask])))
    yield NOISE, task.score(run(make(random_inputs()), task.inputs))


def measure(task: Task, cache: dict[str, Any], save: Callable[[], None], console: Console) -> None:
    """Measure all rows that are not in the cache."""
    ways: dict[str, Callable[[bool], Iterator[tuple[str, Score]]]] = {
        name: lambda per_channel, passes=passes: by_passes(task, passes, per_channel)
        for name, passes in STEPS.items()
    }
    ways |= {
        "irc quantize": lambda per_channel: by_quantize(task, per_channel),
        "AIMET equalize_model": lambda per_channel: by_aimet(task, per_channel),
        "NNCF": lambda per_channel: by_nncf(task, per_channel),
        "onnxsim": lambda per_channel: by_onnxsim(task, per_channel),
    }
    for per_channel in (False, True):
        for name, way in ways.items():
            key = f"{task.net.name}|{'per channel' if per_channel else 'per tensor'}|{name}"
            if key not in cache:
                cache[key] = {kind: asdict(score) for kind, score in way(per_channel)}
                save()
                console.print(key, cache[key], highlight=False)


def tables(cache: dict[str, Any], nets: Sequence[str]) -> Iterator[Table]:
    """Yield a table for each network."""
    for net in nets:
        score = cache[f"{net}|float"]
        table = Table(title=f"{net}, float: top-1 {score['top1']:.1f} %")
        for column in (
            "",
            "",
            *(
                f"{kind}\n{what}"
                for kind in (PICTURES, MAP, NOISE)
                for what in ("%", "agree", "dB")
            ),
        ):
            table.add_column(column, justify="right" if column else "left")
        for key, row in cache.items():
            name, *place = key.split("|")
            if name == net and len(place) == 2 and row:
                scores = [row.get(kind) for kind in (PICTURES, MAP, NOISE)]
                cells = [
                    f"{one[what]:.1f}" if one else ""
                    for one in scores
                    for what in ("top1", "agreement", "sqnr")
                ]
                table.add_row(*place, *cells)
        yield table


def layer_ratios(net: Net, inputs: Array, passes: str) -> list[float]:
    """Return the accumulated SQNR of the layers of an int8 network from the map alone, in order."""
    from irc.tools.int8.layer_errors import align_quantized
    from irc.tools.verify.reference_model import ReferenceModel

    result = irc.compile(copy.deepcopy(net.model), passes.format("per_channel=false"))
    free = activations(result.model, result.fold_map, input_ranges={"x": net.range})
    int8 = quantized(result.model, free, per_channel=False)
    found = align_quantized(ReferenceModel(result.model, Path()), int8, Path(), [{"x": inputs}], "")
    by_tensor = {layer.tensor: layer.accumulated for layer in found.layers}
    return [by_tensor[name] for name in tensor_names(result.model) if name in by_tensor]


def picture(tasks: Sequence[Task], path: Path) -> None:
    """Draw the SQNR of every layer, naive and as irc prepares it, both from the map alone."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 3.6), layout="constrained", facecolor="white")
    for axes, task in zip(
        figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0], tasks, strict=True
    ):
        sample = task.calibration[:BATCH]
        for label, passes, colour in (
            ("naive", STEPS["naive"], "#c2410c"),
            ("equalized, absorbed, corrected", STEPS["+ correction"], "#0f5e9c"),
        ):
            axes.plot(
                layer_ratios(task.net, sample, passes), ".-", color=colour, label=label, linewidth=1
            )
        axes.set_title(task.net.name, loc="left", fontsize=11)
        axes.set_xlabel("layers in the order of the graph")
        axes.grid(axis="y", color="#d6d3d1", linewidth=0.5)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("SQNR of the layer in the int8 network, dB")
    figure.axes[0].legend(frameon=False, fontsize=9)
    with rc_context({"svg.hashsalt": "irc"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> None:
    """Measure both networks, print the tables and draw the picture."""
    parser = argparse.ArgumentParser(
        description="int8 of two networks trained on ImageNet, with and without data."
    )
    parser.add_argument(
        "--json", type=Path, default=Path("build/int8.json"), help="results; those in it are kept"
    )
    parser.add_argument("--plot", type=Path, help="draw the SQNR of the layers")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # quantize_static asks for a preprocessing that irc has done
    console = Console(width=140)
    cache: dict[str, Any] = (
        json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
    )

    def save() -> None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(cache, indent=1) + "\n")

    images, labels, owners = pictures()
    tasks = []
    for net in (mobilenet_v2(), efficientnet_lite0()):
        inputs = net.inputs(images)
        task = Task(net, inputs, labels, owners, run(net.model, inputs))
        cache[f"{net.name}|float"] = asdict(task.score(task.logits))
        tasks.append(task)
        measure(task, cache, save, console)
    for table in tables(cache, [task.net.name for task in tasks]):
        console.print(table)
    if arguments.plot:
        picture(tasks, arguments.plot)


if __name__ == "__main__":
    main()
