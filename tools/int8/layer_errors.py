"""Which layer breaks a quantized model: errors of layers, alone and accumulated, and sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, helper

from ...ir.tensor import Array
from ...support.errors import SourceError, VerifyError
from ...support.progress import Advance
from ..verify.difference import json_value
from ..verify.inputs import Feeds, interface_mismatch
from ..verify.reference_model import ReferenceModel
from ..verify.runner import IncrementalRun, Runner
from ..verify.tensor_blocks import max_magnitude, widen
from .fidelity import Fidelity, SquaredError, measure
from .grid import Grid
from .quantized_layers import LayerFinder, QuantizedLayer

WEIGHTS, ROUNDING, CLIPPING = "weights", "rounding", "clipping"
PARTS = (WEIGHTS, ROUNDING, CLIPPING)
"""Sources of a layer's error: rounding of weight and bias, rounding of activations, ranges."""
ENOUGH = 30.0
"""Ratio in dB of a layer alone, from which nothing is proposed."""
PER_CHANNEL_GAIN = 6.0
"""Gain in dB from which one scale for each channel is proposed."""
MEAN_SHARE = 0.5
"""Share of the error's energy in its channel means from which a bias correction is proposed."""
UNUSED = 2.0
"""Ratio of a grid to the numbers on it, from which a narrower range is proposed."""
IMBALANCE = 8.0
"""Greatest magnitude to the channels' median from which equalization is proposed."""


@dataclass(slots=True)
class TensorUse:
    """The effect of a grid on a tensor: its range, the grid's ends, and the energy cut off."""

    name: str
    grid: Grid
    low: float = np.inf
    high: float = -np.inf
    cut: float = 0.0
    channels: Array = field(default_factory=lambda: np.zeros(0))
    """Greatest magnitude of each channel (axis 1)."""

    def add(self, array: Array) -> None:
        """Add the elements of a batch."""
        if not array.size:
            return
        self.low, self.high = min(self.low, float(array.min())), max(self.high, float(array.max()))
        self.cut += float(np.square(array - self.grid.clip(array), dtype=np.float64).sum())
        if array.ndim > 1:
            found = np.abs(array).max(axis=(0, *range(2, array.ndim)))
            known = self.channels if self.channels.shape == found.shape else np.zeros(found.shape)
            self.channels = np.maximum(known, found)

    @property
    def is_unused(self) -> bool:
        """Whether most of the grid is unused."""
        low, high = self.grid.ends
        return high - low > UNUSED * (max(self.high, 0.0) - min(self.low, 0.0))

    @property
    def is_imbalanced(self) -> bool:
        """Whether most channels use a small part of the tensor's range."""
        if not self.channels.size:
            return False
        # Channels that are zero, as of a pruned layer, lose nothing by the others.
        median = float(np.median(self.channels))
        return median > 0 and float(self.channels.max()) > IMBALANCE * median


@dataclass(frozen=True, slots=True)
class LayerError:
    """The errors of one layer as signal-to-noise ratios of its result, in dB.

    `alone` is the error with the data of the float model, `accumulated` the error in the quantized
    model. `weights`, `rounding` and `clipping` are the errors of one source each, with all else
    float. `mean_share` is the share of the energy of `alone` in the mean of each channel,
    `per_channel` would be `weights` with a scale for each channel (NaN if there is one). `repair`
    names the change that would reduce the greatest part.
    """

    layer: str
    op_type: str
    tensor: str
    alone: float
    accumulated: float
    weights: float
    rounding: float
    clipping: float
    per_channel: float
    mean_share: float
    max_abs: float
    """The greatest error in the quantized model."""
    max_rel: float
    """The same, divided by the greatest magnitude."""
    repair: str


@dataclass(frozen=True, slots=True)
class QuantizedAlignment:
    """The errors of the layers of a quantized model, the worst alone first, and of its results.

    `left_out` has the layers that were not compared, with the reason.
    """

    layers: tuple[LayerError, ...]
    results: tuple[Fidelity, ...]
    left_out: Mapping[str, str]
    samples: str

    def to_json(self) -> dict[str, Any]:
        """Return the document of `irc align --json` for a quantized model."""
        return {
            "layers": [_plain(layer) for layer in self.layers],
            "results": [_plain(result) for result in self.results],
            "left_out": [
                {"layer": name, "reason": reason} for name, reason in self.left_out.items()
            ],
            "samples": self.samples,
        }

    def report_rows(self) -> list[dict[str, Any]]:
        """Return the accumulated errors for a report."""
        return [
            {
                "tensor": layer.tensor,
                "max_abs": layer.max_abs,
                "max_rel": layer.max_rel,
                "sqnr": layer.accumulated,
                "bound": None,
            }
            for layer in self.layers
        ]


def _plain(record: LayerError | Fidelity) -> dict[str, Any]:
    return {key: json_value(getattr(record, key)) for key in record.__slots__}


def align_quantized(
    source: ReferenceModel,
    quantized: ModelProto,
    other_dir: Path,
    batches: Sequence[Feeds],
    samples: str,
    advance: Advance = lambda step: None,
) -> QuantizedAlignment:
    """Compare a quantized model with its float model, layer by layer, on batches of inputs.

    Tensors are computed in chunks. Raises VerifyError if a model does not run, or no layer of one
    has a counterpart in the other.
    """
    mismatch = interface_mismatch(source.model, quantized, frozen=True)
    if mismatch is not None:
        raise VerifyError(mismatch)
    finder = LayerFinder(source.model, quantized, source.base_dir, other_dir)
    meters = [_Meter(layer, source.model) for layer in finder.find()]
    if not meters:
        reason = next(iter(finder.left_out.values()), "it has no quantized layer")
        raise VerifyError(
            f"no layer has a counterpart in the float model ({reason}): compare with the float"
            " model that was quantized, which irc quantize writes with --float"
        )
    runners = Runner(source.model, source.base_dir), Runner(quantized, other_dir)
    for number, feeds in enumerate(batches, 1):
        error = source.error_on(feeds) if not source.sizes else None
        if error is not None:
            raise SourceError(error)
        _add_batch(source, runners, meters, feeds)
        advance(f"batch {number} of {len(batches)}")
    layers = sorted((meter.result() for meter in meters), key=lambda layer: layer.alone)
    names = [info.name for info in source.model.graph.output]
    results = measure(*runners, names, batches)
    return QuantizedAlignment(tuple(layers), tuple(results), finder.left_out, samples)


def _add_batch(
    source: ReferenceModel, runners: tuple[Runner, Runner], meters: Sequence[_Meter], feeds: Feeds
) -> None:
    """Add the errors of all layers on one batch, in chunks of their results."""
    runs = tuple(IncrementalRun(runner, feeds) for runner in runners)
    by_result = {meter.layer.result: meter for meter in meters}
    order = [name for name in source.names if name in by_result]
    for chunk in source.chunks(0, order):
        group = [by_result[name] for name in chunk]
        wanted = [name for meter in group for name in (*meter.data_names, meter.layer.result)]
        expected = _compute(runs[0], wanted, feeds)
        found = _compute(runs[1], [meter.layer.observed for meter in group], feeds)
        for meter in group:
            meter.add(
                [expected[name] for name in meter.data_names], expected[meter.layer.result], found
            )


def _compute(run: IncrementalRun, names: Sequence[str], feeds: Feeds) -> Feeds:
    """Return tensors of a run: inputs, those that are held, and others computed."""
    known = {name: array for name, array in {**feeds, **run.held}.items() if name in names}
    rest = [name for name in dict.fromkeys(names) if name not in known]
    return known | (dict(zip(rest, run.compute(rest), strict=True)) if rest else {})


class _Meter:
    """Measures the errors of one layer, batch by batch."""

    def __init__(self, layer: QuantizedLayer, model: ModelProto) -> None:
        self.layer = layer
        self.data_names = [layer.node.input[index] for index in layer.operands]
        self.errors = {
            key: SquaredError() for key in (*PARTS, "alone", "accumulated", "per_channel")
        }
        self.uses = [
            TensorUse(layer.node.input[index], grid)
            for index, grid in layer.operands.items()
            if grid is not None
        ]
        if layer.grid is not None:
            self.uses.append(TensorUse(layer.result, layer.grid))
        self.means = np.zeros(0)
        self.count = 0
        self.max_abs = self.magnitude = 0.0
        self._model = _single_layer(layer, model)
        self._per_channel = self._round_per_channel()

    def add(self, data: Sequence[Array], expected: Array, quantized: Feeds) -> None:
        """Add one batch: the float layer's data and result, and quantized tensors."""
        layer = self.layer
        observed = quantized[layer.observed]
        if layer.is_integer and layer.grid is not None:
            observed = layer.grid.dequantize(observed)
        self._note("accumulated", expected, observed)
        difference = np.abs(widen(observed) - widen(expected))
        self.max_abs = max(self.max_abs, float(difference.max(initial=0)))
        self.magnitude = max(self.magnitude, max_magnitude(expected))
        arrays = dict(zip(layer.operands, map(widen, data), strict=True))
        runner = Runner(self._model, Path())
        for key, constants in ((WEIGHTS, layer.quantized), ("per_channel", self._per_channel)):
            if constants:
                self._note(key, expected, self._run(runner, arrays, constants))
        for key in (ROUNDING, CLIPPING):
            step = Grid.round if key == ROUNDING else Grid.clip
            self._note(
                key,
                expected,
                self._apply(step, self._run(runner, self._each(step, arrays), layer.constants)),
            )
        alone = self._apply(
            Grid.quantize, self._run(runner, self._each(Grid.quantize, arrays), layer.quantized)
        )
        self._note("alone", expected, alone)
        self._add_means(alone - widen(expected))
        for use in self.uses:
            index = next((i for i in layer.operands if layer.node.input[i] == use.name), None)
            use.add(arrays[index] if index is not None else widen(expected))

    def _note(self, key: str, expected: Array, found: Array) -> None:
        self.errors[key].add(expected, found)

    def _each(self, step: Any, arrays: Mapping[int, Array]) -> dict[int, Array]:
        """Apply a step of the grid to every operand that has one."""
        grids = self.layer.operands
        return {
            i: array if (grid := grids[i]) is None else step(grid, array)
            for i, array in arrays.items()
        }

    def _apply(self, step: Any, result: Array) -> Array:
        grid = self.layer.grid
        return result if grid is None else np.asarray(step(grid, result))

    def _run(
        self, runner: Runner, data: Mapping[int, Array], constants: Mapping[int, Array]
    ) -> Array:
        """Return the result of the layer alone."""
        if self.layer.constants:
            dtype = next(iter(self.layer.constants.values())).dtype
        else:
            dtype = np.dtype(np.float32)
        feeds = {f"irc.{i}": np.asarray(array, dtype) for i, array in {**data, **constants}.items()}
        (found,) = runner.run([self.layer.result], feeds)
        return widen(found)

    def _round_per_channel(self) -> dict[int, Array]:
        """Return constants with a weight rounded by channel to 8 bits, none if it is so."""
        weight = self.layer.constants.get(1)
        if weight is None or self.layer.steps.size != 1:
            return {}
        others = tuple(i for i in range(weight.ndim) if i != self.layer.result_axis % weight.ndim)
        scale = np.abs(weight.astype(np.float64)).max(axis=others, keepdims=True) / 127
        scale = np.where(scale > 0, scale, 1.0)
        return {
            **self.layer.quantized,
            1: np.asarray(np.rint(weight / scale) * scale, weight.dtype),
        }

    def _add_means(self, difference: Array) -> None:
        if difference.ndim > 1:
            axes = (0, *range(2, difference.ndim))
            sums = difference.sum(axis=axes, dtype=np.float64)
            self.means = self.means + sums if self.means.shape == sums.shape else sums
            self.count += difference.size // max(len(sums), 1)

    def result(self) -> LayerError:
        """Return the measurements of the layer."""
        errors = self.errors
        noise = errors["alone"].noise
        mean_share = 0.0
        if noise and self.count:
            mean_share = float(np.square(self.means).sum() / self.count / noise)
        per_channel = errors["per_channel"].sqnr if self._per_channel else np.nan
        rel = self.max_abs / self.magnitude if self.magnitude else 0.0
        ratios = {key: errors[key].sqnr for key in (*PARTS, "alone", "accumulated")}
        return LayerError(
            layer=self.layer.name,
            op_type=self.layer.node.op_type,
            tensor=self.layer.result,
            per_channel=per_channel,
            mean_share=min(mean_share, 1.0),
            max_abs=self.max_abs,
            max_rel=rel,
            repair=self._repair(per_channel, mean_share),
            **ratios,
        )

    def _repair(self, per_channel: float, mean_share: float) -> str:
        """Return the change that would reduce the greatest part of the error."""
        worst = max(PARTS, key=lambda part: self.errors[part].noise)
        if self.errors["alone"].sqnr > ENOUGH or not self.errors[worst].noise:
            return ""
        if worst == WEIGHTS:
            if per_channel > self.errors[WEIGHTS].sqnr + PER_CHANNEL_GAIN:
                return f"per channel ({per_channel:.0f} dB) or equalize"
            if _is_imbalanced(self.layer.constants[1]):
                return "equalize"
            return "correct the bias" if mean_share > MEAN_SHARE else "leave float, or more bits"
        if worst == CLIPPING:
            use = max(self.uses, key=lambda use: use.cut)
            return f"wider range: {_range(use)}"
        unused = next((use for use in self.uses if use.is_unused), None)
        if unused is not None:
            return f"narrower range: {_range(unused)}"
        imbalanced = any(use.is_imbalanced for use in self.uses)
        return "equalize" if imbalanced else "leave float, or more bits"


def _is_imbalanced(weight: Array) -> bool:
    """Return whether most channels of a weight, along a first axis, use little of its range."""
    for axis in range(min(weight.ndim, 2)):
        ranges = np.abs(weight).max(axis=tuple(i for i in range(weight.ndim) if i != axis))
        if ranges.max() > IMBALANCE * np.median(ranges):
            return True
    return False


def _range(use: TensorUse) -> str:
    low, high = use.grid.ends
    return f"{use.name}={use.low:.4g}:{use.high:.4g}, not {low:.4g}:{high:.4g}"


def _single_layer(layer: QuantizedLayer, model: ModelProto) -> ModelProto:
    """Return a model of one float layer and its activations; operands are inputs `irc.<index>`."""
    nodes = [
        type(layer.node).FromString(node.SerializeToString())
        for node in (layer.node, *layer.activations)
    ]
    elem_types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    elem_type = elem_types.get(layer.node.input[1], 1)
    inputs = []
    for index, name in enumerate(layer.node.input):
        if name:
            nodes[0].input[index] = f"irc.{index}"
            inputs.append(helper.make_tensor_value_info(f"irc.{index}", elem_type, None))
    result = helper.make_tensor_value_info(layer.result, elem_type, None)
    bounds = {name for node in layer.activations for name in node.input[1:]}
    constants = [tensor for tensor in model.graph.initializer if tensor.name in bounds]
    made = [
        node for node in model.graph.node if node.op_type == "Constant" and node.output[0] in bounds
    ]
    graph = helper.make_graph([*made, *nodes], "layer", inputs, [result], constants)
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def input_ranges(
    quantized: ModelProto, other_dir: Path
) -> Iterator[tuple[str, tuple[float, float]]]:
    """Yield the graph inputs that are rounded first, with the ends of their grids."""
    finder = LayerFinder(quantized, quantized, other_dir, other_dir)
    for info in quantized.graph.input:
        _, grid = finder.rounded(info.name)
        if grid is not None:
            yield info.name, grid.ends
