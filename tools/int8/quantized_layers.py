"""The layers of a quantized model, each with the layer of the float model that it was made from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper

from ...ir.tensor import Array
from ..verify.onnx_graph import constant_tensors, reads
from ..verify.runner import Runner
from .coverage import LAYERS
from .grid import Grid

QUANTIZERS = (
    *("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"),
    *("QGemm", "ConvInteger", "MatMulInteger"),
)
"""Operators of quantized models, beside those whose names begin with QLinear."""
INTEGER_LAYERS = {"QLinearConv": "Conv", "QLinearMatMul": "MatMul", "QGemm": "Gemm"}
"""Layers in QOperator form, and the float layer that each is."""
DYNAMIC_LAYERS = ("ConvInteger", "DynamicQuantizeLSTM", "MatMulInteger")
"""Layers that have no grid of their own."""
FUSED = ("Relu", "Clip")
"""Activations that a quantizer leaves out if the ends of the grid do their work."""
SUFFIXES = ("_quant", "_quantized", "_QuantizeLinear_Input")
"""What onnxruntime appends to the names of nodes and tensors."""
SAME_WEIGHT = 0.99
"""Share of a weight's elements less than a step from the quantized one; others are clipped."""


@dataclass(slots=True, eq=False)
class QuantizedLayer:
    """A float layer (`node`, and the activations fused into it) and its quantized form.

    `result` is the float tensor that `observed`, a tensor of the quantized model, stands for: as
    numbers, or if `is_integer` as integers of `grid`. `operands` are the activations that the layer
    reads by their index, with their grids or None; `constants` are the other operands in the float
    model, `quantized` the same in the quantized model.
    """

    node: NodeProto
    activations: list[NodeProto]
    observed: str
    is_integer: bool
    grid: Grid | None
    operands: dict[int, Grid | None]
    constants: dict[int, Array]
    quantized: dict[int, Array]
    steps: Array
    """The scales of the weight, which broadcast to it."""

    @property
    def name(self) -> str:
        """The name of the node, or of its result."""
        return self.node.name or self.node.output[0]

    @property
    def result(self) -> str:
        """The float tensor that is compared."""
        return (self.activations or [self.node])[-1].output[0]

    @property
    def result_axis(self) -> int:
        """The axis of the output channels in the weight."""
        if self.node.op_type == "Gemm":
            return 0 if _attribute(self.node, "transB") else 1
        return {"Conv": 0, "ConvTranspose": 1}.get(self.node.op_type, -1)


def is_quantized(model: ModelProto) -> bool:
    """Return whether the main graph of a model is quantized, in QDQ or QOperator form."""
    types = {node.op_type for node in model.graph.node}
    return any(each in QUANTIZERS or each.startswith("QLinear") for each in types)


class LayerFinder:
    """Finds the layers of a quantized model. O(nodes)."""

    def __init__(
        self, model: ModelProto, quantized: ModelProto, base_dir: Path, other_dir: Path
    ) -> None:
        self.model, self.quantized = model, quantized
        self.runners = Runner(model, base_dir), Runner(quantized, other_dir)
        self.constant = _constant_names(model), _constant_names(quantized)
        self.makers = {name: node for node in quantized.graph.node for name in node.output}
        self.tensors = constant_tensors(quantized.graph)
        self.readers = [_readers(each) for each in (model, quantized)]
        self.results = {info.name for info in model.graph.output}
        self.integers = {
            node.output[0] for node in quantized.graph.node if node.op_type == "QuantizeLinear"
        }
        self.left_out: dict[str, str] = {}
        """Layers of the quantized model that no float layer was found for, with the reason."""

    def find(self) -> list[QuantizedLayer]:
        """Return the quantized layers with their float layers, in the order of the float model."""
        found = [layer for pair in self._pairs() if (layer := self._layer(*pair)) is not None]
        order = {id(node): place for place, node in enumerate(self.model.graph.node)}
        return sorted(found, key=lambda layer: order[id(layer.node)])

    def _pairs(self) -> Iterator[tuple[NodeProto, NodeProto]]:
        """Yield float and quantized layers of one name, else of one result, else in order."""
        ours = [node for node in self.model.graph.node if node.op_type in LAYERS]
        every = [node for node in self.quantized.graph.node if _layer_type(node)]
        theirs = [node for node in every if self._is_quantized(node)]
        for node in self.quantized.graph.node:
            if node.op_type in DYNAMIC_LAYERS:
                self._leave_out(node, "its scales are found at run time")
        by_name = {node.name: node for node in ours if node.name}
        by_result = {node.output[0]: node for node in ours}
        in_order = dict(zip(map(id, every), ours, strict=True)) if len(every) == len(ours) else {}
        for node in theirs:
            names = (_stripped(node.name), node.name)
            results = (node.output[0], _stripped(node.output[0]))
            other = next((by_name[name] for name in names if name in by_name), None)
            other = other or next((by_result[name] for name in results if name in by_result), None)
            other = other or in_order.get(id(node))
            if other is None or other.op_type != _layer_type(node):
                self._leave_out(node, "the float model has no layer of its name")
            else:
                yield other, node

    def _leave_out(self, node: NodeProto, reason: str) -> None:
        self.left_out[node.name or node.output[0]] = reason

    def _is_quantized(self, node: NodeProto) -> bool:
        """Return whether a layer reads an operand that was rounded."""
        if node.op_type in INTEGER_LAYERS:
            return True
        makers = [self.makers[name] for name in node.input if name in self.makers]
        return any(maker.op_type == "DequantizeLinear" for maker in makers)

    def _layer(self, ours: NodeProto, theirs: NodeProto) -> QuantizedLayer | None:
        read = self._read_integer if theirs.op_type in INTEGER_LAYERS else self._read_dequantized
        operands, quantized, observed, grid, steps = read(theirs)
        is_integer = theirs.op_type in INTEGER_LAYERS or observed in self.integers
        names = {index: ours.input[index] for index in quantized if index < len(ours.input)}
        if not set(names.values()) <= self.constant[0] or names.keys() != quantized.keys():
            self._leave_out(theirs, "it has other operands in the float model")
            return None
        values = self.runners[0].run(list(names.values()), {}) if names else []
        constants = dict(zip(names, values, strict=True))
        if 1 in constants:
            weight = quantized[1]
            if weight.shape != constants[1].shape or not _is_rounded(constants[1], weight, steps):
                self._leave_out(theirs, "it has another weight in the float model")
                return None
        quantized = {
            index: np.asarray(array, constants[index].dtype) for index, array in quantized.items()
        }
        activations = self._fused(ours)
        return QuantizedLayer(
            ours, activations, observed, is_integer, grid, operands, constants, quantized, steps
        )

    def _read_dequantized(
        self, node: NodeProto
    ) -> tuple[dict[int, Grid | None], dict[int, Array], str, Grid | None, Array]:
        """Return operands, constants, result, its grid and the weight's steps of a QDQ layer."""
        operands: dict[int, Grid | None] = {}
        fixed = {index: name for index, name in enumerate(node.input) if name in self.constant[1]}
        for index, name in enumerate(node.input):
            if name and index not in fixed:
                made, operands[index] = self.makers.get(name), None
                if made is not None and made.op_type == "DequantizeLinear":
                    operands[index] = self._grid(made)
        values = self.runners[1].run(list(fixed.values()), {}) if fixed else []
        observed, grid = self.rounded(node.output[0])
        constants = dict(zip(fixed, values, strict=True))
        made = self.makers.get(fixed.get(1, ""))
        is_rounded = made is not None and made.op_type == "DequantizeLinear"
        steps = np.asarray(0.0)
        if made is not None and is_rounded:
            steps = np.asarray(self._grid(made).steps(constants[1]))
        return operands, constants, observed, grid, steps

    def rounded(self, name: str) -> tuple[str, Grid | None]:
        """Return the rounded tensor of a value, and its grid; the value itself if not rounded.

        The tensor has integers if an operator on integers reads them.
        """
        readers = self.readers[1].get(name, [])
        if len(readers) != 1 or readers[0].op_type != "QuantizeLinear":
            return name, None
        (rounding,) = readers
        followers = self.readers[1].get(rounding.output[0], [])
        made = (node.output[0] for node in followers if node.op_type == "DequantizeLinear")
        return next(made, "") or rounding.output[0], self._grid(rounding)

    def _read_integer(
        self, node: NodeProto
    ) -> tuple[dict[int, Grid | None], dict[int, Array], str, Grid | None, Array]:
        """Return as `_read_dequantized` for a layer in QOperator form."""
        axis = {"QLinearConv": 0, "QGemm": 0 if _attribute(node, "transB") else 1}.get(
            node.op_type, -1
        )
        first = self._grid_of(node.input[1], node.input[2], 1)
        second = self._grid_of(node.input[4], node.input[5], axis)
        operands: dict[int, Grid | None] = {}
        constants: dict[int, Array] = {}
        for index, (name, grid) in enumerate(((node.input[0], first), (node.input[3], second))):
            if name in self.constant[1]:
                constants[index] = grid.dequantize(self._constant(name))
            else:
                operands[index] = grid
        bias = {"QLinearConv": 8, "QGemm": 6}.get(node.op_type, len(node.input))
        if len(node.input) > bias and node.input[bias]:
            scale = first.scale * second.scale * (_attribute(node, "alpha") or 1.0)
            constants[2] = self._constant(node.input[bias]) * scale
        place = 7 if node.op_type == "QGemm" else 6
        ends = [name for name in node.input[place : place + 2] if name]
        result = self._grid_of(ends[0], ends[1], 1) if len(ends) == 2 else None
        steps = second.steps(constants[1]) if 1 in constants else np.float64(0.0)
        return operands, constants, node.output[0], result, np.asarray(steps)

    def _grid(self, node: NodeProto) -> Grid:
        """Return the grid of a QuantizeLinear or DequantizeLinear."""
        zero = node.input[2] if len(node.input) > 2 else ""
        return self._grid_of(node.input[1], zero, int(_attribute(node, "axis", 1)))

    def _grid_of(self, scale: str, zero: str, axis: int) -> Grid:
        scales = np.asarray(self._constant(scale), np.float64)
        zeros = self._constant(zero) if zero else np.zeros(scales.shape, np.uint8)
        scales, wide = (
            each.reshape(()) if each.size == 1 else each
            for each in (scales, zeros.astype(np.float64))
        )
        return Grid(scales, np.broadcast_to(wide, scales.shape), zeros.dtype, axis)

    def _constant(self, name: str) -> Array:
        if name in self.tensors:
            return numpy_helper.to_array(self.tensors[name], str(self.runners[1].base_dir))
        (value,) = self.runners[1].run([name], {})
        return np.asarray(value)

    def _fused(self, node: NodeProto) -> list[NodeProto]:
        """Return the activations after a float layer that the quantized model does not compute."""
        found: list[NodeProto] = []
        kept = {
            name
            for other in self.quantized.graph.node
            for name in (other.name, _stripped(other.name))
            if name
        }
        value = node.output[0]
        while value not in self.results and len(readers := self.readers[0].get(value, [])) == 1:
            (reader,) = readers
            if reader.op_type not in FUSED or reader.input[0] != value:
                break
            # The quantized model still computes it, under its name or its result's.
            if reader.name in kept:
                break
            if not reader.name and reader.output[0] in self.makers:
                break
            found.append(reader)
            value = reader.output[0]
        return found


def _is_rounded(weight: Array, quantized: Array, steps: Array) -> bool:
    """Return whether a weight was rounded to the quantized one, on a grid of these steps."""
    near = np.abs(weight.astype(np.float64) - quantized) <= steps * 1.001
    return bool(np.mean(near) >= SAME_WEIGHT)


def _layer_type(node: NodeProto) -> str:
    """Return the float operator of a layer, empty for other nodes."""
    return node.op_type if node.op_type in LAYERS else INTEGER_LAYERS.get(node.op_type, "")


def _stripped(name: str) -> str:
    suffix = next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")
    return name.removesuffix(suffix)


def _attribute(node: NodeProto, name: str, default: Any = None) -> Any:
    return next(
        (helper.get_attribute_value(each) for each in node.attribute if each.name == name), default
    )


def _readers(model: ModelProto) -> dict[str, list[NodeProto]]:
    readers: dict[str, list[NodeProto]] = {}
    for node in model.graph.node:
        for name in dict.fromkeys(reads(node)):
            readers.setdefault(name, []).append(node)
    return readers


def _constant_names(model: ModelProto) -> set[str]:
    """Return the names of tensors that depend on no graph input."""
    found = {tensor.name for tensor in model.graph.initializer}
    for node in model.graph.node:
        if all(not name or name in found for name in reads(node)):
            found.update(node.output)
    return found - {info.name for info in model.graph.input}
