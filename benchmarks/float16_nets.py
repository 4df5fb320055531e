"""Nets for float16: residual streams, GroupNorms, masks, sums and quiet tokens, by hand.

`whisper` is the encoder of Whisper tiny, as a CTranslate2 file of a package has it, which is not a
part of this repository.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

Array = np.ndarray[Any, np.dtype[Any]]
Feeds = dict[str, Array]

LARGE = 1e5
"""About the size of the values that overflow."""


class Maker:
    """A maker of a model, operator by operator, with random weights of its own."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, *shape: int | None) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        return name

    def constant(self, array: Any) -> str:
        array = np.asarray(array)
        if array.dtype.kind == "f":
            array = array.astype(np.float32)
        name = f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def normal(self, *shape: int, size: float = 1.0, around: float = 0.0) -> str:
        return self.constant(around + size * self.rng.standard_normal(shape))

    def weight(self, *shape: int, size: float = 1.0) -> str:
        """Return a weight by which normal data stay about normal, times `size`."""
        terms = shape[0] if len(shape) == 2 else int(np.prod(shape[1:]))
        return self.normal(*shape, size=size / np.sqrt(terms))

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op_type}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], name, **attributes))
        return name

    def dense(self, x: str, rows: int, columns: int, *, size: float = 1.0) -> str:
        product = self.op("MatMul", x, self.weight(rows, columns, size=size))
        return self.op("Add", product, self.normal(columns, size=size / 10))

    def model(self, result: str, rank: int) -> ModelProto:
        output = helper.make_tensor_value_info(result, TensorProto.FLOAT, [None] * rank)
        graph = helper.make_graph(self.nodes, "net", self.inputs, [output], self.initializers)
        opsets = [helper.make_opsetid("", 17)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        return onnx.shape_inference.infer_shapes(model)


Norm = Callable[[Maker, str, int], str]


def layer_norm(maker: Maker, x: str, width: int) -> str:
    gamma, beta = maker.normal(width, size=0.1, around=1), maker.normal(width, size=0.1)
    return maker.op("LayerNormalization", x, gamma, beta, axis=-1, epsilon=1e-5)


def written_norm(maker: Maker, x: str, width: int) -> str:
    shifted = maker.op("Sub", x, maker.op("ReduceMean", x, axes=[-1]))
    square = maker.op("ReduceMean", maker.op("Pow", shifted, maker.constant(2.0)), axes=[-1])
    root = maker.op("Sqrt", maker.op("Add", square, maker.constant(1e-12)))
    normal = maker.op("Div", shifted, root)
    scaled = maker.op("Mul", normal, maker.normal(width, size=0.1, around=1))
    return maker.op("Add", scaled, maker.normal(width, size=0.1))


def rms_norm(maker: Maker, x: str, width: int) -> str:
    square = maker.op("ReduceMean", maker.op("Pow", x, maker.constant(2.0)), axes=[-1])
    root = maker.op("Sqrt", maker.op("Add", square, maker.constant(1e-6)))
    return maker.op("Mul", maker.op("Div", x, root), maker.normal(width, size=0.1, around=1))


def attention(maker: Maker, x: str, width: int, mask: str = "") -> str:
    heads = 4
    split, merge = maker.constant([0, -1, heads, width // heads]), maker.constant([0, -1, width])
    q, k, v = (
        maker.op(
            "Transpose",
            maker.op("Reshape", maker.dense(x, width, width), split),
            perm=[0, 2, 3, 1] if i == 1 else [0, 2, 1, 3],
        )
        for i in range(3)
    )
    scores = maker.op("Mul", maker.op("MatMul", q, k), maker.constant((width // heads) ** -0.5))
    if mask:
        scores = maker.op("Add", scores, mask)
    mixed = maker.op("MatMul", maker.op("Softmax", scores, axis=-1), v)
    return maker.op("Reshape", maker.op("Transpose", mixed, perm=[0, 2, 1, 3]), merge)


def gelu(maker: Maker, x: str) -> str:
    erf = maker.op("Erf", maker.op("Div", x, maker.constant(2**0.5)))
    return maker.op(
        "Mul", maker.op("Mul", x, maker.op("Add", erf, maker.constant(1.0))), maker.constant(0.5)
    )


def silu(maker: Maker, x: str) -> str:
    return maker.op("Mul", x, maker.op("Sigmoid", x))


def transformer(
    norm: Norm, *, size: float = LARGE, masked: bool = False, gated: bool = False
) -> ModelProto:
    """Return three pre-norm blocks with a residual stream of about `size`."""
    maker, width = Maker(1), 64
    x, mask = maker.input("x", None, 16, width), ""
    if masked:
        absent = maker.op("Sub", maker.constant(1.0), maker.input("m", None, 1, 1, 16))
        mask = maker.op("Mul", absent, maker.constant(np.finfo(np.float32).min))
    x = maker.dense(x, width, width, size=size)
    for _ in range(3):
        y = attention(maker, norm(maker, x, width), width, mask)
        x = maker.op("Add", x, maker.dense(y, width, width, size=size))
        y = norm(maker, x, width)
        if gated:
            gate = silu(maker, maker.dense(y, width, 256))
            y = maker.op("Mul", gate, maker.dense(y, width, 256, size=20))
        else:
            y = gelu(maker, maker.dense(y, width, 256))
        x = maker.op("Add", x, maker.dense(y, 256, width, size=size))
    return maker.model(maker.dense(norm(maker, x, width), width, 10), 3)


def group_norms() -> ModelProto:
    """Return three blocks of GroupNorm, Silu and Conv, as in the decoder of SDXL."""
    maker, width = Maker(2), 16

    def norm(x: str) -> str:
        split, merge = maker.constant([0, 4, -1]), maker.constant([0, width, 16, 16])
        ones, zeros = maker.constant(np.ones(4)), maker.constant(np.zeros(4))
        groups = maker.op("Reshape", x, split)
        normal = maker.op("InstanceNormalization", groups, ones, zeros, epsilon=1e-6)
        scaled = maker.op(
            "Mul", maker.op("Reshape", normal, merge), maker.normal(width, 1, 1, size=0.1, around=1)
        )
        return maker.op("Add", scaled, maker.normal(width, 1, 1, size=0.1))

    def conv(x: str, channels: int, size: float = 1.0) -> str:
        weight, bias = (
            maker.weight(width, channels, 3, 3, size=size),
            maker.normal(width, size=size / 10),
        )
        return maker.op("Conv", x, weight, bias, pads=[1] * 4)

    x = conv(maker.input("x", None, 3, 16, 16), 3, LARGE)
    for _ in range(3):
        y = conv(silu(maker, norm(x)), width)
        x = maker.op("Add", x, conv(silu(maker, norm(y)), width, LARGE))
    return maker.model(maker.op("Conv", norm(x), maker.weight(3, width, 1, 1)), 4)


def growing_convs() -> ModelProto:
    """Return five layers of Conv and Relu whose values grow to LARGE."""
    maker, x, channels = Maker(3), "x", 3
    maker.input("x", None, 3, 16, 16)
    for _ in range(5):
        x = maker.op(
            "Relu", maker.op("Conv", x, maker.normal(16, channels, 3, 3, size=1.2), pads=[1] * 4)
        )
        channels = 16
    flat = maker.op("Flatten", maker.op("GlobalAveragePool", x))
    return maker.model(maker.op("Gemm", flat, maker.normal(16, 10, size=1e-5)), 2)


def large_sum() -> ModelProto:
    """Return a ReduceSum over a plane, and a small weight behind it."""
    maker = Maker(4)
    conv = maker.op(
        "Conv", maker.input("x", None, 3, 64, 64), maker.weight(8, 3, 3, 3, size=100), pads=[1] * 4
    )
    total = maker.op("ReduceSum", maker.op("Relu", conv), maker.constant([2, 3]), keepdims=0)
    return maker.model(maker.op("Gemm", total, maker.normal(8, 4, size=1e-6)), 2)


def quiet_tokens() -> ModelProto:
    """Return a norm of tokens of which some are 1000 times smaller than others."""
    maker, width = Maker(5), 32
    loudness = maker.constant(10 ** maker.rng.uniform(-3, 0, (16, 1)))
    x = maker.op("Mul", maker.input("x", None, 16, width), loudness)
    x = maker.dense(x, width, width, size=LARGE)
    return maker.model(maker.dense(written_norm(maker, x, width), width, 8), 3)


def t5() -> ModelProto:
    """Return three blocks as those of T5, whose feed-forward layers give values of 3e5."""
    maker, width = Maker(7), 64
    x = maker.input("x", None, 16, width)
    places = maker.normal(1, 4, 16, 16)
    for _ in range(3):
        y = attention(maker, rms_norm(maker, x, width), width, places)
        x = maker.op("Add", x, maker.op("MatMul", y, maker.weight(width, width)))
        y = maker.op("MatMul", rms_norm(maker, x, width), maker.weight(width, 256, size=300))
        y = maker.op("MatMul", maker.op("Relu", y), maker.weight(256, width, size=300))
        x = maker.op("Add", x, y)
    return maker.model(rms_norm(maker, x, width), 3)


NETS: dict[str, Callable[[], ModelProto]] = {
    "pre-norm, LayerNormalization": lambda: transformer(layer_norm),
    "pre-norm, written out, epsilon 1e-12": lambda: transformer(written_norm),
    "RMS norm, gated": lambda: transformer(rms_norm, gated=True),
    "feed-forward of T5": t5,
    "attention with a mask of finfo.min": lambda: transformer(layer_norm, size=1, masked=True),
    "GroupNorm blocks": group_norms,
    "growing Convs": growing_convs,
    "ReduceSum over a plane": large_sum,
    "quiet tokens": quiet_tokens,
}
"""Nets that overflow float16, or nearly, by name."""


def samples(model: ModelProto, count: int = 12) -> Feeds:
    """Return normal inputs, and masks."""
    rng, found = np.random.default_rng(9), {}
    for info in model.graph.input:
        dims = [dim.dim_value for dim in info.type.tensor_type.shape.dim][1:]
        found[info.name] = rng.standard_normal((count, *dims)).astype(np.float32)
        if info.name == "m":
            found["m"] = np.broadcast_to(np.arange(16) < 10, (count, *dims)).astype(np.float32)
    return found


# Whisper tiny


def read_ctranslate2(path: Path) -> dict[str, Array]:
    """Return the float16 tensors of a CTranslate2 model of version 6, in float32."""
    found: dict[str, Array] = {}
    with path.open("rb") as file:

        def number(form: str) -> int:
            return int(struct.unpack(form, file.read(struct.calcsize(form)))[0])

        def text() -> str:
            return file.read(number("<H"))[:-1].decode()

        number("<I"), text(), number("<I")
        for _ in range(number("<I")):
            name, shape = text(), [number("<I") for _ in range(number("<B"))]
            kind, size = number("<B"), number("<I")
            data = file.read(size)
            if kind == 4:
                found[name] = np.frombuffer(data, np.float16).reshape(shape).astype(np.float32)
    return found


def whisper(weights: dict[str, Array], exponent: int = 0, frames: int = 600) -> ModelProto:
    """Return Whisper tiny's encoder, with a residual stream times 2^exponent."""
    maker, factor, width = Maker(6), np.float32(2.0**exponent), 384

    def dense(x: str, name: str, part: slice = slice(None), scale: Any = 1.0) -> str:
        weight, bias = (weights[f"{name}/{each}"][part] for each in ("weight", "bias"))
        product = maker.op("MatMul", x, maker.constant(weight.T * scale))
        return maker.op("Add", product, maker.constant(bias * scale))

    def norm(x: str, name: str) -> str:
        gamma, beta = (maker.constant(weights[f"{name}/{each}"]) for each in ("gamma", "beta"))
        epsilon = float(np.float32(1e-5) * factor * factor)
        return maker.op("LayerNormalization", x, gamma, beta, axis=-1, epsilon=epsilon)

    x = maker.input("mel", 1, 80, frames)
    for i in (1, 2):
        weight, bias = (
            maker.constant(weights[f"encoder/conv{i}/{each}"]) for each in ("weight", "bias")
        )
        x = gelu(maker, maker.op("Conv", x, weight, bias, pads=[1, 1], strides=[i]))
    x = maker.op("Mul", maker.op("Transpose", x, perm=[0, 2, 1]), maker.constant(factor))
    places = weights["encoder/position_encodings/encodings"][: frames // 2]
    x = maker.op("Add", x, maker.constant(places * factor))
    split, merge = maker.constant([0, 0, 6, 64]), maker.constant([0, 0, width])
    for i in range(4):
        name = f"encoder/layer_{i}/self_attention"
        y = norm(x, f"{name}/layer_norm")
        q, k, v = (
            maker.op(
                "Transpose",
                maker.op(
                    "Reshape",
                    dense(y, f"{name}/linear_0", slice(width * j, width * (j + 1))),
                    split,
                ),
                perm=[0, 2, 3, 1] if j == 1 else [0, 2, 1, 3],
            )
            for j in range(3)
        )
        scores = maker.op("Mul", maker.op("MatMul", q, k), maker.constant(0.125))
        mixed = maker.op("MatMul", maker.op("Softmax", scores, axis=-1), v)
        y = maker.op("Reshape", maker.op("Transpose", mixed, perm=[0, 2, 1, 3]), merge)
        x = maker.op("Add", x, dense(y, f"{name}/linear_1", scale=factor))
        name = f"encoder/layer_{i}/ffn"
        y = gelu(maker, dense(norm(x, f"{name}/layer_norm"), f"{name}/linear_0"))
        x = maker.op("Add", x, dense(y, f"{name}/linear_1", scale=factor))
    return maker.model(norm(x, "encoder/layer_norm"), 3)


def mels(count: int = 10, frames: int = 600) -> Feeds:
    """Return log-mel spectra of made-up voices: harmonics under three formants, with pauses."""
    rng, rate = np.random.default_rng(0), 16000

    def mel(hertz: Any) -> Any:
        return 2595 * np.log10(1 + hertz / 700)

    hertz = 700 * (10 ** (np.linspace(0, mel(8000), 82) / 2595) - 1)
    bins = np.linspace(0, 8000, 201)
    rising = (bins - hertz[:-2, None]) / np.diff(hertz)[:-1, None]
    falling = (hertz[2:, None] - bins) / np.diff(hertz)[1:, None]
    filters = np.maximum(0, np.minimum(rising, falling)) * (2 / (hertz[2:] - hertz[:-2]))[:, None]
    found = []
    for _ in range(count):
        sound = rng.standard_normal(frames * 160 + 240) * 1e-3
        start = 0
        while start < len(sound):
            length = min(int(rng.uniform(0.05, 0.35) * rate), len(sound) - start)
            if rng.random() < 0.75:
                pitch, formants = (
                    rng.uniform(90, 260),
                    rng.uniform([300, 900, 2200], [900, 2200, 3500]),
                )
                time = np.arange(length) / rate
                for harmonic in range(1, 30):
                    strength = np.exp(-(((pitch * harmonic - formants) / 150) ** 2)).sum() + 0.02
                    wave = np.sin(2 * np.pi * pitch * harmonic * time) * np.hanning(length)
                    sound[start : start + length] += strength * wave * rng.uniform(0.05, 0.3)
            start += length
        window = np.hanning(401)[:-1]
        parts = np.stack([sound[160 * i : 160 * i + 400] * window for i in range(frames)])
        power = np.abs(np.fft.rfft(parts, 400)) ** 2
        log = np.log10(np.maximum(power @ filters.T, 1e-10)).T
        found.append((np.maximum(log, log.max() - 8) + 4) / 4)
    return {"mel": np.stack(found).astype(np.float32)}
