"""Networks to quantize.

The shared digits, and a small one whose statistics are those of its own data.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import harness
import numpy as np
import onnx
from irc.compiler import compile as compile_model
from irc.result import Result
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

Array = np.ndarray[Any, np.dtype[Any]]

SIZE = 12


@dataclass
class Chain:
    """Convolutions, each with BatchNormalization and Relu, on noise.

    Statistics are measured as layers are added.
    """

    data: Array = field(
        default_factory=lambda: np.random.default_rng(0).normal(size=(64, 4, SIZE, SIZE))
    )
    nodes: list[NodeProto] = field(default_factory=list)
    initializers: list[TensorProto] = field(default_factory=list)
    result: str = "x"

    def __post_init__(self) -> None:
        self.inputs = self.data.astype(np.float32)
        self.current = self.inputs

    def layer(
        self,
        name: str,
        channels: int,
        kernel: int = 1,
        pad: int = 0,
        group: int = 1,
        high: float = 0.0,
    ) -> None:
        """Add a layer; every third channel has a shift of `high` times its scale."""
        rng = np.random.default_rng(len(self.nodes) + 1)
        weight = rng.normal(size=(channels, self.current.shape[1] // group, kernel, kernel)).astype(
            np.float32
        )
        attributes = {"kernel_shape": [kernel, kernel], "pads": [pad] * 4, "group": group}
        self._add("Conv", name, {"weight": weight}, **attributes)
        gamma = rng.lognormal(sigma=0.5, size=channels).astype(np.float32)
        beta = np.where(np.arange(channels) % 3 == 0, high * gamma, 0.2 * gamma).astype(np.float32)
        axes = (0, 2, 3)
        mean, var = self.current.mean(axes), self.current.var(axes)
        self._add(
            "BatchNormalization",
            f"{name}.bn",
            {"gamma": gamma, "beta": beta, "mean": mean, "var": var},
        )
        self._add("Relu", f"{name}.relu", {})

    def _add(self, op: str, name: str, constants: dict[str, Array], **attributes: Any) -> None:
        names = [f"{name}.{key}" for key in constants]
        self.initializers.extend(map(numpy_helper.from_array, constants.values(), names))
        self.nodes.append(
            helper.make_node(op, [self.result, *names], [f"{name}.out"], name=name, **attributes)
        )
        self.result = f"{name}.out"
        self.current = harness.run(self.model(), {"x": self.inputs})[self.result]

    def model(self) -> ModelProto:
        """The network so far."""
        source = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4, SIZE, SIZE])
        result = helper.make_tensor_value_info(self.result, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "chain", [source], [result], self.initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return onnx.shape_inference.infer_shapes(model)


def high_biases(pad: int) -> Chain:
    """A network with high biases before convolutions, the second with zero padding if `pad`."""
    chain = Chain()
    chain.layer("a", 6, high=6.0)
    chain.layer("b", 9, kernel=3, pad=pad, high=6.0)
    chain.layer("c", 6, high=6.0)
    chain.layer("d", 5)
    return chain


@dataclass(frozen=True)
class Digits:
    """A trained network and its data."""

    source: ModelProto
    result: Result
    images: Array
    labels: Array
    calibration: Array

    @property
    def input_ranges(self) -> dict[str, tuple[float, float]]:
        return {"x": (float(self.calibration.min()), float(self.calibration.max()))}

    def accuracy(self, model: ModelProto) -> float:
        (scores,) = harness.run(model, {"x": self.images}).values()
        return self.score(scores)

    def score(self, scores: Array) -> float:
        return float((scores.argmax(1) == self.labels).mean())


EQUALIZED = "SimplifyInference,FoldScaleAxis,CanonicalizeOps,SimplifyExpr,FoldConstant,CrossLayerEqualization"


@functools.cache
def digits(name: str, passes: str | None = None) -> Digits:
    folder = harness.SHARED / "digits"
    with np.load(folder / "data.npz") as data:
        images, labels, calibration = data["test_images"], data["test_labels"], data["calib_images"]
    source = onnx.load(folder / f"{name}.onnx")
    return Digits(source, compile_model(source, passes), images, labels, calibration)


def initializers(model: ModelProto) -> dict[str, Array]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
