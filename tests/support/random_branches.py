"""Random sums of branches of one value: layers, pools, affines, the value, and neighbours."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

DTYPES = {
    TensorProto.FLOAT16: np.float16,
    TensorProto.FLOAT: np.float32,
    TensorProto.DOUBLE: np.float64,
}

WIDE = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)


class Branches:
    """A graph that grows one branch at a time, from `seed`."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.dtype = self.pick(*WIDE)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[TensorProto] = []
        self.outputs: list[str] = []

    def pick(self, *choices: object) -> object:
        return choices[int(self.rng.integers(len(choices)))]

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def constant(self, *shape: int, low: float = -1.0) -> str:
        array = self.rng.uniform(low, 1.0, shape).astype(DTYPES[self.dtype])
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def node(self, op: str, inputs: list[str], **attrs: object) -> str:
        name = f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attrs))
        if self.chance(0.04):
            self.outputs.append(name)  # another reader
        return name

    def model(self, result: str, shape: list[object]) -> ModelProto:
        outputs, rank = dict.fromkeys([result, *self.outputs]), len(shape)
        graph = helper.make_graph(
            self.nodes,
            "branches",
            [helper.make_tensor_value_info("x", self.dtype, shape)],
            [
                helper.make_tensor_value_info(
                    name, self.dtype, [f"{name}_{i}" for i in range(rank)]
                )
                for name in outputs
            ],
            self.constants,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
        onnx.checker.check_model(model, full_check=True)
        return model

    def affine(self, x: str, channels: int, rank: int, axis: int = 1) -> str:
        """Return an affine of a value, per channel or the same for all."""
        shape = (channels, *[1] * (rank - 1 - axis)) if self.chance(0.7) else (1,)
        kind = self.pick("Mul", "Add", "Sub", "Div", "BatchNormalization", "Neg")
        if kind == "BatchNormalization" and axis == 1:
            params = [self.constant(channels, low=-1.0) for _ in range(3)]
            return self.node(kind, [x, *params, self.constant(channels, low=0.25)])
        if kind in ("BatchNormalization", "Neg"):
            return self.node("Neg", [x])
        if kind == "Div":
            return self.node(kind, [x, self.constant(*shape, low=0.5)])
        values = [x, self.constant(*shape)]
        return self.node(str(kind), values[::-1] if kind == "Sub" and self.chance(0.3) else values)

    def joined(self, values: list[str], wrap: object) -> str:
        """Return a sum of values in random order and form, parts of it behind an affine."""
        self.rng.shuffle(values)
        if len(values) > 2 and self.chance(0.2):
            return self.node("Sum", values)
        total = values[0]
        for value in values[1:]:
            both = [total, value] if self.chance(0.5) else [value, total]
            total = self.node("Sub" if self.chance(0.25) else "Add", both)
            if self.chance(0.15):
                total = wrap(total)  # type: ignore[operator]
        return total


def convolutions(seed: int) -> ModelProto:
    """Return a model with a sum of convolutions of one value, mostly of like geometry."""
    g = Branches(seed)
    rng, axes = g.rng, int(g.pick(1, 2, 2, 2, 3))  # type: ignore[call-overload]
    channels = int(g.pick(1, 2, 4, 6))  # type: ignore[call-overload]
    results = channels if g.chance(0.75) else int(g.pick(2, 4))  # type: ignore[call-overload]
    both = np.gcd(channels, results)
    groups = [group for group in range(1, int(both) + 1) if both % group == 0]
    group = int(g.pick(*groups))  # type: ignore[call-overload]
    stride = [int(g.pick(1, 1, 1, 2)) for _ in range(axes)]  # type: ignore[call-overload]
    grid = [int(g.pick(1, 1, 1, 2)) for _ in range(axes)]  # type: ignore[call-overload]
    transposed, is_open = g.chance(0.2), g.chance(0.5)
    x = g.node("Relu", ["x"]) if g.chance(0.7) else "x"
    if g.chance(0.15):
        x = g.affine(x, channels, axes + 2)

    def layer() -> str:
        own = group if g.chance(0.8) else int(g.pick(*groups))  # type: ignore[call-overload]
        kernel = [int(g.pick(1, 3, 3, 2)) for _ in range(axes)]  # type: ignore[call-overload]
        if g.chance(0.3):
            kernel = [1] * axes
        dilation = [d if g.chance(0.9) else 3 - d for d in grid]
        begins, ends = [], []
        for k, d in zip(kernel, dilation, strict=True):
            total = d * (k - 1)
            begin = total // 2 if g.chance(0.85) else int(rng.integers(0, total + 1))
            begins.append(begin)
            ends.append(total - begin + int(not is_open and g.chance(0.05)))
        attrs: dict[str, object] = {
            "kernel_shape": kernel, "strides": stride, "dilations": dilation,
            "pads": [*begins, *ends],
        }  # fmt: skip
        if not transposed and own == channels == results and g.chance(0.1):
            return g.node("AveragePool", [x], count_include_pad=1, **attrs)
        if not transposed and g.chance(0.08) and set(dilation) == {1}:
            del attrs["pads"]
            attrs["auto_pad"] = g.pick("SAME_UPPER", "SAME_LOWER")
        rows = (channels, results // own) if transposed else (results, channels // own)
        inputs = [x, g.constant(*rows, *kernel)]
        if g.chance(0.5):
            inputs.append(g.constant(results))
        return g.node("ConvTranspose" if transposed else "Conv", inputs, group=own, **attrs)

    values = []
    for _ in range(int(rng.integers(2, 6))):
        if set(stride) == {1} and channels == results and g.chance(0.25):
            values.append(x if g.chance(0.4) else g.affine(x, channels, axes + 2))
            continue
        value = layer()
        values.append(g.affine(value, results, axes + 2) if g.chance(0.4) else value)
    total = g.joined(values, lambda value: g.affine(value, results, axes + 2))
    extents = [f"d{i}" if is_open else int(rng.integers(3, 8)) for i in range(axes)]
    shape: list[object] = ["N", channels, *extents]
    try:
        return g.model(g.node("Relu", [total]), shape)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return convolutions(seed + (1 << 32))


def products(seed: int) -> ModelProto:
    """Return a model with a sum of matrix products of one value, adapters of low rank among them."""
    g = Branches(seed)
    width = int(g.pick(3, 4, 6))  # type: ignore[call-overload]
    results = width if g.chance(0.7) else int(g.pick(2, 5))  # type: ignore[call-overload]
    rank = int(g.pick(2, 3))  # type: ignore[call-overload]

    def layer(x: str, inputs: int, outputs: int) -> str:
        if rank == 2 and g.chance(0.5):
            turned = int(g.chance(0.5))
            weight = g.constant(*((outputs, inputs) if turned else (inputs, outputs)))
            operands = [x, weight, *([g.constant(outputs)] if g.chance(0.5) else [])]
            factors = {"alpha": 0.5, "beta": 2.0} if g.chance(0.3) else {}
            return g.node("Gemm", operands, transB=turned, **factors)
        return g.node("MatMul", [x, g.constant(inputs, outputs)])

    x, values = g.node("Relu", ["x"]), []
    for _ in range(int(g.rng.integers(2, 5))):
        if width == results and g.chance(0.2):
            value = x
        elif g.chance(0.3):
            low = int(g.pick(1, 2, 4))  # type: ignore[call-overload]
            value = layer(layer(x, width, low), low, results)
        else:
            value = layer(x, width, results)
        values.append(g.affine(value, results, rank, rank - 1) if g.chance(0.4) else value)
    total = g.joined(values, lambda value: g.affine(value, results, rank, rank - 1))
    return g.model(g.node("Relu", [total]), ["N", *["T"] * (rank - 2), width])
