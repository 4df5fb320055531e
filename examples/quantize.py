"""Quantize a network with imbalanced channels to int8, with calibration data and from the fold map
alone.

    make demo-quantize        or        python examples/quantize.py -o FOLDER

The network is ../shared/models/digits/relu_imbalanced.onnx if that file exists, else the network of
this folder after its channels are brought out of balance. In both the imbalance is artificial: one
layer is multiplied by powers of two and the next divided by them, so that the function stays the
same, bit for bit.
"""

from __future__ import annotations

import argparse
import copy
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import irc
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from irc.backends.quantizers.onnxruntime import to_calibration_cache
from irc.backends.quantizers.ranges import activations
from onnx import ModelProto, NodeProto, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
SHARED = HERE.parent.parent / "shared" / "models" / "digits"

Array = npt.NDArray[Any]
Ranges = Mapping[str, tuple[float, float]]

FOLD = ("SimplifyInference", "FoldScaleAxis", "CanonicalizeOps", "SimplifyExpr", "FoldConstant")
STEPS = {
    "naive": (),
    "+ equalization": ("CrossLayerEqualization",),
    "+ absorption": ("CrossLayerEqualization", "HighBiasAbsorption"),
    "+ bias correction": ("CrossLayerEqualization", "HighBiasAbsorption", "BiasCorrection"),
}
"""The passes between the default passes and the FoldConstant that rounds their result."""

LAYERS = ("Conv", "ConvTranspose", "Gemm")


@dataclass(frozen=True)
class Task:
    """A network before and after its channels were brought out of balance, and the images to test
    it.
    """

    about: str
    balanced: ModelProto
    model: ModelProto
    images: Array
    labels: Array
    calibration: Array
    input_range: tuple[float, float]

    @property
    def one(self) -> float:
        """The accuracy of one image, in percentage points."""
        return 100 / len(self.labels)


def shared_task() -> Task:
    """Return the task of the shared models."""
    with np.load(SHARED / "data.npz") as data:
        images, labels, calibration = data["test_images"], data["test_labels"], data["calib_images"]
    limits = float(calibration.min()), float(calibration.max())
    models = (onnx.load(SHARED / f"{name}.onnx") for name in ("relu", "relu_imbalanced"))
    return Task(
        "shared/models/digits/relu_imbalanced.onnx", *models, images, labels, calibration, limits
    )


def example_task() -> Task:
    """Return the task of this folder: all held-out images with scikit-learn installed, else half of
    the samples.
    """
    balanced = onnx.load(HERE / "digits_cnn.onnx")
    try:
        from digits_data import load_splits
    except ImportError:
        with np.load(HERE / "digits_samples.npz") as data:
            images, labels = data["images"].astype(np.float32), data["labels"]
        parts = images[::2], labels[::2], images[1::2]
    else:
        training, held_out = load_splits()
        parts = held_out.images, held_out.labels, training.images[:256]
    return Task(
        "examples/digits_cnn.onnx, imbalanced", balanced, imbalanced(balanced), *parts, (0.0, 1.0)
    )


def imbalanced(model: ModelProto, octaves: int = 7, seed: int = 0) -> ModelProto:
    """Return a model of the same function with a factor of up to 2**octaves in each channel.

    The factor multiplies a BatchNormalization, and divides the weight of its only reader after
    operators that commute with a positive scale. It is a power of two, so nothing is rounded.
    """
    model = copy.deepcopy(model)
    rng = np.random.default_rng(seed)
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "BatchNormalization" and (reader := reading_layer(model, node)):
            gamma, beta, weight = (tensors[name] for name in (*node.input[1:3], reader.input[1]))
            factors = 2.0 ** rng.integers(-octaves, octaves, gamma.dims[0], endpoint=True).astype(
                np.float32
            )
            for tensor in (gamma, beta):
                multiply(tensor, factors, 0)
            multiply(weight, 1 / factors, data_axis(reader))
    return model


def reading_layer(model: ModelProto, node: NodeProto) -> NodeProto | None:
    """Return the layer that alone reads the node's output, through activations and
    pools, or None.
    """
    while True:
        readers = [other for other in model.graph.node if node.output[0] in other.input]
        if len(readers) != 1 or readers[0].op_type not in {
            "Relu",
            "GlobalAveragePool",
            "Flatten",
            *LAYERS,
        }:
            return None
        node = readers[0]
        if node.op_type in LAYERS:
            return node


def attribute(node: NodeProto, name: str, default: int) -> int:
    """Return an integer attribute of a node."""
    return next((found.i for found in node.attribute if found.name == name), default)


def data_axis(node: NodeProto) -> int:
    """Return the axis of the input channels in the weight; for a depthwise Conv this is axis 0."""
    if node.op_type == "Conv":
        return int(attribute(node, "group", 1) == 1)
    return attribute(node, "transB", 0)


def result_axis(node: NodeProto) -> int:
    """Return the axis of the output channels in the weight."""
    return 0 if node.op_type == "Conv" or attribute(node, "transB", 0) else 1


def multiply(tensor: onnx.TensorProto, factors: Array, axis: int) -> None:
    """Multiply a tensor by one factor for each index on `axis`."""
    array = numpy_helper.to_array(tensor)
    shape = [-1 if i == axis else 1 for i in range(array.ndim)]
    tensor.CopyFrom(numpy_helper.from_array(array * factors.reshape(shape), tensor.name))


def scores(model: ModelProto, images: Array) -> Array:
    """Return logits [N, 10], by onnxruntime without graph optimisations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run(None, {session.get_inputs()[0].name: images})[0])


@dataclass(frozen=True)
class Score:
    """The score of a network on the test images: accuracy in %, and signal-to-noise ratio of the
    logits in dB.
    """

    accuracy: float
    sqnr: float

    @property
    def cells(self) -> tuple[str, str]:
        """Both numbers as text, with their significant decimals."""
        return f"{self.accuracy:.2f}", f"{self.sqnr:.1f}"


def score(task: Task, model: ModelProto) -> Score:
    """Compare a model with the labels, and with the logits in float32."""
    expected, found = (scores(each, task.images).astype(np.float64) for each in (task.model, model))
    noise = np.square(found - expected).sum()
    signal = np.square(expected).sum()
    accuracy = 100 * float((found.argmax(1) == task.labels).mean())
    return Score(accuracy, float(10 * np.log10(signal / noise)) if noise else np.inf)


def compiled(model: ModelProto, passes: Sequence[str] = ()) -> irc.Result:
    """Fold, then prepare the model by the named passes."""
    return irc.compile(copy.deepcopy(model), ",".join([*FOLD, *passes, "FoldConstant"]))


class Batches(CalibrationDataReader):
    """A data reader with all calibration images in one batch."""

    def __init__(self, name: str, images: Array) -> None:
        self._batches: Iterator[dict[str, Array]] = iter([{name: images}])

    def get_next(self) -> Any:
        """Return the next batch, or None after the last."""
        return next(self._batches, None)


def quantized(
    task: Task, result: irc.Result, *, data: bool, ranges: Ranges | None = None
) -> ModelProto:
    """Return an int8 model; activation ranges come from the images with `data`, else from `ranges`
    and the fold map.
    """
    name = result.model.graph.input[0].name
    with tempfile.TemporaryDirectory() as folder:
        target, cache = Path(folder) / "int8.onnx", Path(folder) / "cache.json"
        if not data:
            inputs = {name: task.input_range}
            to_calibration_cache(
                result.model, result.fold_map, input_ranges=inputs, ranges=ranges
            ).save(cache)
        quantize_static(
            copy.deepcopy(result.model),  # quantize_static moves its tensors away
            target,
            Batches(name, task.calibration) if data else None,
            quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,  # symmetric
            per_channel=False,
            calibration_cache_path=None if data else cache,
        )
        return onnx.load(target)


def stale_ranges(task: Task, before: irc.Result, after: irc.Result) -> Ranges:
    """Return the ranges of `before`, under the names that the same values have in `after`."""
    inputs = {before.model.graph.input[0].name: task.input_range}
    known = activations(before.model, before.fold_map, input_ranges=inputs).known
    pairs = zip(before.model.graph.node, after.model.graph.node, strict=True)
    return {new.output[0]: known[old.output[0]].range for old, new in pairs}


@dataclass(frozen=True)
class Row:
    """A way to quantize, with the scores for ranges from data (None if not measured) and from the
    fold map.
    """

    name: str
    data: Score | None
    free: Score


def measure(task: Task) -> tuple[Score, list[Row]]:
    """Return the score of float32, and rows for int8.

    The rows are the balanced network, the imbalanced network after each step, and last the
    equalized network with ranges that were not rescaled.
    """
    cases = [("before the imbalance", compiled(task.balanced))]
    cases += [(name, compiled(task.model, passes)) for name, passes in STEPS.items()]
    rows = [
        Row(name, *(score(task, quantized(task, result, data=data)) for data in (True, False)))
        for name, result in cases
    ]
    naive, equalized = cases[1][1], cases[2][1]
    stale = quantized(task, equalized, data=False, ranges=stale_ranges(task, naive, equalized))
    rows.append(Row("equalized, map not rescaled", None, score(task, stale)))
    return score(task, task.model), rows


def report(task: Task, float32: Score, rows: Sequence[Row]) -> Table:
    """Return a table of accuracies and signal-to-noise ratios, with data and without."""
    caption = (
        f"Accuracy in %, and signal-to-noise ratio of the logits in dB. {len(task.labels)} test"
        f" images: one is {task.one:.2f} %, and differences of a few are noise. Data:"
        f" {len(task.calibration)} other images."
    )
    table = Table(title=task.about, caption=caption, caption_justify="left")
    table.add_column("weights and activations")
    for column in ("data\n%", "data\ndB", "fold map\n%", "fold map\ndB"):
        table.add_column(column, justify="right")
    table.add_row("FP32", f"{float32.accuracy:.2f}", end_section=True)
    for row in rows:
        cells = [
            cell for each in (row.data, row.free) for cell in (each.cells if each else ("", ""))
        ]
        table.add_row(
            f"int8 per tensor, {row.name}", *cells, end_section=row in (rows[0], rows[-2])
        )
    return table


@dataclass(frozen=True)
class Layer:
    """The maximum |weight| of each output channel of a layer, relative to the maximum
    of the layer.
    """

    label: str
    shares: Array


def layers(model: ModelProto) -> list[Layer]:
    """Return the layers in the order of the graph."""
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    found = []
    for node in model.graph.node:
        if node.op_type in LAYERS:
            weight = np.abs(tensors[node.input[1]])
            axis = result_axis(node)
            ranges = weight.max(axis=tuple(i for i in range(weight.ndim) if i != axis))
            kernel = "×".join(map(str, weight.shape[2:])) or "dense"
            kind = {"ConvTranspose": " up"}.get(
                node.op_type, " dw" if attribute(node, "group", 1) > 1 else ""
            )
            found.append(Layer(kernel + kind, ranges / ranges.max()))
    return found


LOST = 1 / 254
"""Half a step of symmetric int8, relative to the maximum weight: a channel below it becomes all
zeros.
"""


def picture(before: Sequence[Layer], after: Sequence[Layer], folder: Path) -> list[Path]:
    """Draw the channel ranges of each layer before and after equalization; return the paths of a
    PNG and an SVG.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 5.6), layout="constrained", facecolor="white")
    upper, lower = figure.subplots(2, 1, sharex=True, sharey=True)
    strip(upper, before, "#c2410c", "Folded: int8 per tensor rounds {} of {} channels to zero")
    strip(lower, after, "#0f5e9c", "Folded, then equalized across layers: {} of {} channels")
    octaves = np.arange(0, np.log2(min(layer.shares.min() for layer in (*before, *after))) - 4, -4)
    upper.set_yticks(2.0**octaves)
    upper.set_ylim(2.0 ** octaves[-1], 2)
    lower.text(
        -0.45,
        LOST / 1.6,
        "below half a step of int8: rounded to zero",
        va="top",
        color="#57534e",
        fontsize=9,
    )
    lower.set_xticks(
        range(len(after)), [layer.label for layer in after], rotation=45, ha="right", fontsize=9
    )
    lower.set_xlabel(
        "layers in the order of the graph, each dot an output channel (dw: depthwise, up:"
        " transposed)"
    )
    figure.supylabel("greatest |weight| of a channel, relative to its layer", fontsize="medium")
    paths = [folder / f"channel_ranges.{ending}" for ending in ("png", "svg")]
    with rc_context({"svg.hashsalt": "irc"}):
        figure.savefig(paths[0], dpi=130)
        figure.savefig(paths[1], metadata={"Date": None})
    return paths


def strip(axes: Any, found: Sequence[Layer], colour: str, title: str) -> None:
    """Draw a column of dots for each layer, one for each channel in ascending order."""
    lost, channels = (sum(counts) for counts in zip(*map(counted, found), strict=True))
    axes.set_title(title.format(lost, channels), loc="left", fontsize=11)
    axes.set_yscale("log", base=2)
    axes.set_xlim(-0.6, len(found) - 0.4)
    axes.axhspan(0, LOST, color="#e7e5e4", zorder=0)
    axes.grid(axis="y", color="#d6d3d1", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    for position, layer in enumerate(found):
        across = position + np.linspace(-0.33, 0.33, len(layer.shares))
        axes.plot(across, np.sort(layer.shares), ".", color=colour, markersize=4, markeredgewidth=0)


def counted(layer: Layer) -> tuple[int, int]:
    """Return the number of channels that a single int8 scale rounds to zero, and the number of all
    channels.
    """
    return int((layer.shares < LOST).sum()), len(layer.shares)


def main() -> None:
    """Measure the task, print the table and draw the picture."""
    parser = argparse.ArgumentParser(
        description="Quantize a network with imbalanced channels, with and without data."
    )
    parser.add_argument(
        "-o", "--output", type=Path, help="folder for the picture (default: temporary)"
    )
    parser.add_argument(
        "--example",
        action="store_true",
        help="use the network of this folder even if the shared models exist",
    )
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # quantize_static asks for a preprocessing that irc has done
    console = Console(width=110)
    task = example_task() if arguments.example or not SHARED.is_dir() else shared_task()
    if not np.array_equal(scores(task.balanced, task.images), scores(task.model, task.images)):
        raise SystemExit("the imbalance changed the function")
    console.print(
        "The channels were brought out of balance on purpose: in float32 the logits are the same,"
        " bit for bit."
    )

    float32, rows = measure(task)
    console.print(report(task, float32, rows))
    naive, equalized = rows[1:3]
    for way in ("data", "free"):
        lost, left = (float32.accuracy - getattr(row, way).accuracy for row in (naive, equalized))
        if lost < 10 or left > max(1.0, task.one):
            raise SystemExit(
                f"not as expected ({way}): int8 loses {lost:.2f} points as it is, {left:.2f}"
                " equalized"
            )

    folder = arguments.output or Path(tempfile.mkdtemp(prefix="irc-quantize-"))
    folder.mkdir(parents=True, exist_ok=True)
    before, after = (
        layers(compiled(task.model, STEPS[step]).model) for step in ("naive", "+ equalization")
    )
    try:
        console.print("ranges of channels:", *picture(before, after, folder), soft_wrap=True)
    except ImportError:
        console.print("no picture of the ranges: matplotlib is not installed")


if __name__ == "__main__":
    main()
