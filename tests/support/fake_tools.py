"""Tools of known vices, for the tests of the study.

They run in processes of their own, which import this module.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper


def edit(source: Path, out: Path, change: Callable[[ModelProto], object]) -> None:
    """Write the source with a change."""
    model = onnx.load(source)
    change(model)
    onnx.save(model, out)


def set_initializer(
    model: ModelProto, index: int, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]
) -> None:
    """Give an initializer other elements."""
    tensor = model.graph.initializer[index]
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def scaled(model: ModelProto, factor: float) -> None:
    """Multiply the weight of the first Conv."""
    conv = next(node for node in model.graph.node if node.op_type == "Conv")
    index = [tensor.name for tensor in model.graph.initializer].index(conv.input[1])
    array = numpy_helper.to_array(model.graph.initializer[index])
    set_initializer(model, index, (array.astype(np.float64) * factor).astype(array.dtype))


def copies(source: Path, out: Path) -> None:
    edit(source, out, lambda model: None)


def empties(source: Path, out: Path) -> None:
    """Remove every operator."""
    edit(source, out, lambda model: model.graph.ClearField("node"))


def is_off_by_a_hundredth(source: Path, out: Path) -> None:
    edit(source, out, lambda model: scaled(model, 1.01))


def is_off_by_a_rounding(source: Path, out: Path) -> None:
    edit(source, out, lambda model: scaled(model, 1 + 2.0**-23))


def with_noise(model: ModelProto) -> None:
    """Add random numbers to the first output."""
    name = model.graph.output[0].name
    for node in model.graph.node:
        node.output[:] = ["quiet" if output == name else output for output in node.output]
    model.graph.node.append(onnx.helper.make_node("RandomNormalLike", ["quiet"], ["noise"]))
    model.graph.node.append(onnx.helper.make_node("Add", ["quiet", "noise"], [name]))


def adds_noise(source: Path, out: Path) -> None:
    edit(source, out, with_noise)


def folds(source: Path, out: Path) -> None:
    """Fold a BatchNormalization behind the first Conv in float64."""
    model = onnx.load(source)
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    node, norm = model.graph.node[0], model.graph.node[1]
    gamma, beta, mean, variance = (arrays[name].astype(np.float64) for name in norm.input[1:5])
    scale = gamma / np.sqrt(variance + 1e-5)
    weight = arrays[node.input[1]]
    shape = [-1, *[1] * (weight.ndim - 1)]
    bias = arrays[node.input[2]].astype(np.float64) if len(node.input) > 2 else 0.0
    made = {
        node.input[1]: (weight * scale.reshape(shape)).astype(weight.dtype),
        "bias": ((bias - mean) * scale + beta).astype(weight.dtype),
    }
    node.input[:] = [*node.input[:2], "bias"]
    node.output[0] = norm.output[0]
    del model.graph.node[1]
    del model.graph.initializer[:]
    model.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in made.items()
    )
    onnx.save(model, out)


def narrows(source: Path, out: Path) -> None:
    """Round a float64 weight to float32."""
    array = numpy_helper.to_array(onnx.load(source).graph.initializer[0])
    edit(
        source,
        out,
        lambda model: set_initializer(model, 0, array.astype(np.float32).astype(array.dtype)),
    )


def aborts(source: Path, out: Path) -> None:
    os.abort()


def aborts_on_three_nodes(source: Path, out: Path) -> None:
    if len(onnx.load(source).graph.node) == 3:
        os.abort()
    copies(source, out)


def raises(source: Path, out: Path) -> None:
    raise LookupError("no rule for this")


def hangs(source: Path, out: Path) -> None:
    time.sleep(600)


def grows(source: Path, out: Path) -> None:
    np.ones((1 << 40,), np.uint8)


def writes_nothing(source: Path, out: Path) -> None:
    pass


def breaks(source: Path, out: Path) -> None:
    """Leave a node that reads a value that is not there."""
    edit(source, out, lambda model: model.graph.node[0].input.__setitem__(0, "nowhere"))


def freezes(source: Path, out: Path) -> None:
    """Make constants of the initializers that a caller may override."""

    def change(model: ModelProto) -> None:
        defaults = {tensor.name for tensor in model.graph.initializer}
        kept = [copy.deepcopy(info) for info in model.graph.input if info.name not in defaults]
        del model.graph.input[:]
        model.graph.input.extend(kept)

    edit(source, out, change)


def bakes_in(source: Path, out: Path) -> None:
    """Compute with the default of an initializer that a caller may override, and keep the input."""

    def change(model: ModelProto) -> None:
        tensor = model.graph.initializer[0]
        model.graph.initializer.append(
            numpy_helper.from_array(numpy_helper.to_array(tensor), "baked")
        )
        for node in model.graph.node:
            node.input[:] = ["baked" if name == tensor.name else name for name in node.input]

    edit(source, out, change)


def renames(source: Path, out: Path) -> None:
    """Give the output another name, drop the metadata, and state another opset."""

    def change(model: ModelProto) -> None:
        model.graph.node[-1].output[0] = model.graph.output[0].name = "renamed"
        del model.metadata_props[:]
        model.opset_import[0].version += 1

    edit(source, out, change)
