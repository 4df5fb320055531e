"""Layers whose weights and biases come through DequantizeLinear, beside an affine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from graphs import F32, Graph, onnx_dtype
from onnx import helper

from .build import Case, Numbers, Step, add, bn, case, chain, draw, mul, mul_add, op

INT8 = np.dtype(np.int8)
SHAPES = {"Conv": (4, 3, 2, 2), "ConvTranspose": (3, 4, 2, 2), "Gemm": (3, 4), "MatMul": (3, 4)}
OUT_AXIS = {"Conv": 0, "ConvTranspose": 1, "Gemm": 1, "MatMul": 1}
"""The axis of output channels in the weight."""


def integers(
    graph: Graph, shape: Sequence[int], dtype: np.dtype[Any], low: int | None, high: int | None
) -> np.ndarray:
    """Integers of a type, by default all that have a reflection about the zero point."""
    bits = {"int4": 4, "uint4": 4}.get(dtype.name, dtype.itemsize * 8)
    signed = not dtype.name.startswith("uint")
    least = 1 - (1 << (bits - 1)) if signed else 1
    most = (1 << (bits - 1)) - 1 if signed else (1 << bits) - 1
    drawn = graph.rng.integers(
        least if low is None else low, (most if high is None else high) + 1, shape
    )
    return np.asarray(drawn).astype(dtype)


def stored(graph: Graph, array: np.ndarray) -> str:
    """An initializer, also of the types that numpy lacks."""
    if array.dtype.kind != "V" and not array.dtype.name.startswith(("float8", "int4", "uint4")):
        return graph.initializer(array)
    name = graph.fresh("c")
    tensor = helper.make_tensor(
        name, onnx_dtype(array.dtype), array.shape, array.astype(np.float32).ravel()
    )
    graph.initializers.append(tensor)
    return name


def dequantize(
    graph: Graph, q: str, scale: np.ndarray, zero_point: np.ndarray | None, **attrs: int
) -> str:
    """A DequantizeLinear of `q`."""
    points = [] if zero_point is None else [stored(graph, zero_point)]
    return graph.node("DequantizeLinear", [q, graph.initializer(scale), *points], **attrs)


def layer(kind: str = "Conv", *, shape: Sequence[int] = (), axis: int | None = -1, dtype: Any = INT8,
          low: int | None = None, high: int | None = None, zero_point: int | None = 0, block: int = 0,
          scale: Numbers = None, bias: str = "", step: Numbers = 2.0**-10, steps: int = 1, by: str = "",
          twice: bool = False, **attrs: Any) -> Step:  # fmt: skip
    """A layer whose weight is dequantized.

    - `axis` is that of the scales: -1 for output channels, None for one scale. With `block` each
      block has one.
    - `low` and `high` bound the integers; a `zero_point` of None is an absent one.
    - `bias` is "", "float", or the type of the integers of a dequantized one, with the scale
      `step`, `steps` times.
    - `by` puts operators before DequantizeLinear: "Q" for QuantizeLinear, "QClip" for a Clip after
      it.
    - With `twice` another operator reads the dequantized weight, too.
    """

    def build(graph: Graph, x: str) -> str:
        dims = tuple(shape or SHAPES[kind])
        at = OUT_AXIS[kind] if axis == -1 else axis
        at = 1 - at if attrs.get("transB") and axis == -1 and at is not None else at
        dims = dims[::-1] if attrs.get("transB") else dims
        q = integers(graph, dims, np.dtype(dtype), low, high)
        extents: tuple[int, ...] = () if at is None else (dims[at],)
        if block and at is not None:
            extents = tuple(-(-n // block) if i == at else n for i, n in enumerate(dims))
        numbers = draw(graph, extents, "+") if scale is None else np.asarray(scale, graph.dtype)
        point = (
            None
            if zero_point is None
            else np.full(numbers.shape, zero_point).astype(np.dtype(dtype))
        )
        given: dict[str, int] = {} if at is None else {"axis": at}
        given |= {"block_size": block} if block else {}
        name = stored(graph, q)
        if by:
            view = [1] * len(dims)
            if at is not None:
                view[at] = -1
            offset = graph.rng.uniform(-0.4, 0.4, dims)
            real = (q.astype(np.float64) - (zero_point or 0) + offset) * numbers.astype(
                np.float64
            ).reshape(view)
            points = [] if point is None else [graph.initializer(point)]
            name = graph.node(
                "QuantizeLinear", [graph.initializer(real.astype(graph.dtype)), graph.initializer(numbers), *points],
                **given,
            )  # fmt: skip
        if by == "QClip":
            name = graph.node(
                "Clip", [name, graph.initializer(np.int8(-127)), graph.initializer(np.int8(127))]
            )
        weight = dequantize(graph, name, numbers, point, **given)
        if twice:
            graph.output(graph.node("Neg", [weight]))
        names = [x, weight]
        channels = 4 * int(attrs.get("group", 1)) if kind == "ConvTranspose" else 4
        if bias == "float":
            names.append(graph.initializer(draw(graph, (channels,))))
        elif bias:
            width = np.asarray(step) if steps == 1 else np.broadcast_to(np.asarray(step), (steps,))
            whole = graph.rng.integers(-100, 100, channels).astype(np.dtype(bias))
            names.append(dequantize(graph, stored(graph, whole), width.astype(graph.dtype), None,
                                    **({} if steps == 1 else {"axis": 0})))  # fmt: skip
        return graph.node(kind, names, **attrs)

    return build


def transposed(kind: str, *, per_channel: bool = True, twice: bool = False) -> Step:
    """A layer whose weight, [4, 3], is dequantized and transposed; `twice`: others read it."""

    def build(graph: Graph, x: str) -> str:
        scale = draw(graph, (4,) if per_channel else (), "+")
        q = stored(graph, integers(graph, (4, 3), INT8, None, None))
        weight = dequantize(graph, q, scale, None, **({"axis": 0} if per_channel else {}))
        if twice:
            graph.output(graph.node("Neg", [weight]))
        return graph.node(kind, [x, graph.node("Transpose", [weight], perm=[1, 0])])

    return build


POSITIVE = mul(4, 1, 1, sign="+")
FLOAT8 = (
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e4m3fnuz,
    ml_dtypes.float8_e5m2,
    ml_dtypes.float8_e5m2fnuz,
)
EXACT = [2.0, -1.0, 0.5, -4.0]
"""Scales that move no integer of a bias off its steps."""
EVEN = [4.0, -8.0, 12.0, 16.0]
ALLOW = "per_channel=allow"
FLOAT = "quantized_bias=float"
ROWS = {"x": (2, 3)}


def qdq(name: str, *steps: Step, left: str | None = "", **options: Any) -> Case:
    """A case that keeps its DequantizeLinear."""
    return case(
        "3.8 quantized weight", name, *steps, left=left, **{"has": "DequantizeLinear", **options}
    )


def per_channel(kind: str, *affine: Step, **options: Any) -> list[Case]:
    """The folds of a kind of layer: one scale or more, and a bias of either form."""
    rows: dict[str, Any] = {} if kind.startswith("Conv") else ROWS
    uniform = mul(c=-2.0)
    return [
        qdq(f"{kind}, mixed signs", layer(kind), *affine, **rows, **options),
        qdq(
            f"{kind}, uint8",
            layer(kind, dtype=np.uint8, zero_point=128),
            *affine,
            **rows,
            **options,
        ),
        qdq(f"{kind}, no zero point", layer(kind, zero_point=None), *affine, **rows, **options),
        qdq(f"{kind}, one scale, refused", layer(kind, axis=None), *affine, left="Mul", **rows),
        qdq(f"{kind}, one scale, allowed", layer(kind, axis=None), *affine, options=ALLOW, **rows),
        qdq(f"{kind}, one scale, uniform", layer(kind, axis=None), uniform, **rows),
    ]


SIGNED, COLUMNS = mul(4, 1, 1), mul(4)


def rounded(*scale: float, axis: int = 1, **attrs: Any) -> Step:
    """QuantizeLinear, then DequantizeLinear with other scales: one, or one a channel."""
    scales = np.array(scale if len(scale) > 1 else scale[0], np.float32)
    points = np.full(scales.shape, 3, np.uint8)
    return chain(
        op("QuantizeLinear", np.full(scales.shape, 0.05, np.float32), points, axis=axis),
        op("DequantizeLinear", scales, points, axis=axis, **attrs),
    )


CASES: list[Case] = [
    *per_channel("Conv", SIGNED),
    *per_channel("ConvTranspose", SIGNED),
    *per_channel("Gemm", COLUMNS),
    *per_channel("MatMul", COLUMNS),
    qdq("a barrier on request", layer(), POSITIVE, options="quantized_weights=false", left="Mul"),
    qdq("BatchNormalization", layer(bias="float"), bn(4)),
    qdq("BatchNormalization, no bias", layer(), bn(4)),
    qdq("BatchNormalization after Relu", layer(), op("Relu"), bn(4, "+", t=0.0)),
    qdq("BatchNormalization after MatMul", layer("MatMul"), bn(4), **ROWS),
    qdq("Mul and Add", layer(), mul_add(4, 1, 1)),
    qdq("zero scale", layer(), mul(4, 1, 1, c=[0, 1, -2, 3])),
    qdq("zero scale, uint8", layer(dtype=np.uint8, zero_point=7, low=1, high=13), mul(4, 1, 1, c=[0, 1, -2, 3])),
    qdq("one scale, signs and zero", layer(axis=None), mul(4, 1, 1, c=[0, 2, -2, 2])),
    qdq("Gemm, transB", layer("Gemm", transB=1), COLUMNS, **ROWS),
    qdq("Gemm, alpha and beta", layer("Gemm", bias="float", alpha=2.0, beta=0.5), mul_add(4), **ROWS),
    qdq("least int8 has no reflection", layer(low=-128, high=-128), SIGNED, left="Mul"),
    qdq("least int8, positive", layer(low=-128, high=-128), POSITIVE),
    qdq("zero of uint8 has no reflection", layer(dtype=np.uint8, zero_point=128, low=0, high=0), SIGNED, left="Mul"),
    qdq("zero point at the end", layer(dtype=np.uint8, zero_point=0, low=1), SIGNED, left="Mul"),
    qdq("one scale, opset 10", layer(axis=None), mul(1, 4, 1, 1, sign="+"), opset=10, options=ALLOW, left="Mul"),
    qdq("one scale, uniform, opset 10", layer(axis=None), mul(c=2.0), opset=10),
    qdq("along another axis", layer(axis=1), POSITIVE, left="Mul"),
    qdq("along another axis, allowed", layer(axis=1), POSITIVE, options=ALLOW, left="Mul"),
    qdq("along another axis, uniform", layer(axis=1), mul(c=2.0)),
    qdq("two readers", layer(twice=True), POSITIVE, left="Mul Neg", y=("as inferred",)),
    qdq("groups", layer(shape=(4, 1, 2, 2), group=2), SIGNED, x=(2, 2, 6, 5)),
    qdq("ConvTranspose, groups of one scale", layer("ConvTranspose", shape=(4, 4, 2, 2), group=2, axis=None),
        mul(8, 1, 1, c=[2, -2] * 4), x=(2, 4, 6, 5)),
    qdq("ConvTranspose, groups that agree", layer("ConvTranspose", shape=(4, 4, 2, 2), group=2),
        mul(8, 1, 1, c=[2, 3, 4, 5] * 2), x=(2, 4, 6, 5)),
    qdq("ConvTranspose, groups that differ", layer("ConvTranspose", shape=(4, 4, 2, 2), group=2),
        mul(8, 1, 1, sign="+"), x=(2, 4, 6, 5), left="Mul"),
    # biases
    qdq("int32 bias", layer(bias="int32"), mul(4, 1, 1, c=EXACT), options=ALLOW),
    qdq("int32 bias, one step", layer(bias="int32"), mul(4, 1, 1, c=EXACT), left="Mul"),
    qdq("int32 bias, uniform", layer(bias="int32", axis=None), mul(c=-2.0)),
    qdq("int32 bias, steps", layer(bias="int32", steps=4), mul(4, 1, 1, c=EXACT)),
    qdq("int32 bias, shift", layer(bias="int32", steps=4), mul(4, 1, 1, c=EXACT), add(4, 1, 1, c=EVEN)),
    qdq("int32 bias, shift alone", layer(bias="int32"), add(4, 1, 1, c=EVEN)),
    qdq("int32 bias, zero scale", layer(bias="int32", steps=4), mul(4, 1, 1, c=[0, 1, 2, -4]), add(4, 1, 1, c=EVEN)),
    qdq("int32 bias, overflow", layer(bias="int32", steps=4), mul(4, 1, 1, c=EXACT), add(4, 1, 1, c=2.0**30),
        left="Add"),
    qdq("int32 bias to float", layer(bias="int32", steps=4), bn(4), options=FLOAT),
    qdq("int32 bias to float, one step", layer(bias="int32"), bn(4), options=FLOAT),
    qdq("int16 bias, overflow", layer(bias="int16", steps=4), mul(4, 1, 1, c=EXACT), add(4, 1, 1, c=256.0),
        left="Add"),
    qdq("Gemm, int32 bias", layer("Gemm", bias="int32", steps=4, beta=0.5), mul(4, c=EXACT), add(4, c=EVEN), **ROWS),
    qdq("Gemm, int32 bias, beta 0", layer("Gemm", bias="int32", steps=4, beta=0.0), mul(4, c=EXACT), add(4, c=EVEN),
        **ROWS),
    qdq("Gemm, int32 bias, beta 0, overflow", layer("Gemm", bias="int32", steps=4, beta=0.0), add(4, c=2.0**30),
        left="Add", **ROWS),
    # from float weights
    qdq("quantized in the graph", layer(by="Q"), SIGNED, dtype=F32),
    qdq("quantized in the graph, one scale", layer(by="Q", axis=None), mul(c=-2.0), dtype=F32),
    qdq("quantized and clipped in the graph", layer(by="QClip"), SIGNED, dtype=F32),
    # behind a Transpose
    qdq("Gemm, Transpose", transposed("Gemm"), COLUMNS, **ROWS, has="Transpose"),
    qdq("MatMul, Transpose", transposed("MatMul"), COLUMNS, x=(2, 5, 3), has="Transpose"),
    qdq("MatMul, Transpose, one scale", transposed("MatMul", per_channel=False), COLUMNS, x=(2, 5, 3), options=ALLOW),
    qdq("MatMul, Transpose, one scale, refused", transposed("MatMul", per_channel=False), COLUMNS, x=(2, 5, 3),
        left="Mul"),
    qdq("MatMul, Transpose, two readers", transposed("MatMul", twice=True), COLUMNS, x=(2, 5, 3), left="Mul Neg"),
    # other types
    *(qdq(f"{np.dtype(kind).name}", layer(dtype=kind), SIGNED) for kind in (np.int16, ml_dtypes.int4)),
    *(qdq(f"{np.dtype(kind).name}", layer(dtype=kind, zero_point=middle), SIGNED)
      for kind, middle in ((np.uint16, 1 << 15), (ml_dtypes.uint4, 8))),
    *(qdq(f"{np.dtype(kind).name}", layer(dtype=kind, low=-15, high=15), mul(4, 1, 1, c=[0, 1.5, -1.5, -3]))
      for kind in FLOAT8),
    qdq("blocks of inputs", layer("MatMul", shape=(7, 4), axis=0, block=3), COLUMNS, x=(2, 7)),
    qdq("blocks of inputs, int4", layer("MatMul", shape=(8, 4), axis=0, block=4, dtype=ml_dtypes.int4), COLUMNS,
        x=(2, 8)),
    qdq("blocks of channels", layer("MatMul", shape=(3, 4), axis=1, block=2), mul(4, c=[2, 2, -3, -3]), **ROWS),
    qdq("blocks of channels that differ", layer("MatMul", shape=(3, 4), axis=1, block=2), COLUMNS, left="Mul", **ROWS),
    # affines of the data
    qdq("forward, uniform", mul(c=-2.0), layer()),
    qdq("forward, per channel", SIGNED, layer(shape=(3, 4, 2, 2)), x=(2, 4, 6, 5), left="Mul"),
    qdq("forward, per channel, allowed", SIGNED, layer(shape=(3, 4, 2, 2), axis=None), x=(2, 4, 6, 5), left="Mul",
        options=ALLOW),
    qdq("forward, signs", mul(4, 1, 1, c=[2, -2, 2, -2]), layer(shape=(3, 4, 2, 2)), x=(2, 4, 6, 5)),
    qdq("forward and backward, signs", mul(3, c=[2, -2, 2]), layer("Gemm"), COLUMNS, **ROWS),
    qdq("forward and backward, magnitudes", mul(3, c=[2, -3, 2]), layer("Gemm"), COLUMNS, left="Mul", **ROWS),
    qdq("forward, blocks", mul(7), layer("MatMul", shape=(7, 4), axis=0, block=1), x=(2, 7)),
    qdq("forward, shift", add(4, 1, 1, c=0.25), layer(shape=(3, 4, 2, 2)), x=(2, 4, 6, 5)),
    # scales of computed integers
    *(qdq(f"computed integers, {name}", *steps, dtype=F32, **options) for name, steps, options in (
        ("one scale", (rounded(0.02), mul(c=2.5)), {}),
        ("behind Relu", (rounded(0.02), op("Relu"), mul(c=0.3)), {}),
        ("two scales", (rounded(0.02), mul(c=2.5), op("Relu"), mul(c=0.3)), {}),
        ("channels of one scale", (rounded(0.02, 0.03, 0.04), mul(c=2.5)), {}),
        ("channels", (rounded(0.02, 0.03, 0.04), mul(3, 1, 1, sign="+")), {}),
        ("channels of another axis", (rounded(0.02, 0.03, 0.04), mul(3, sign="+")), {"x": (2, 3, 6, 3), "left": "Mul"}),
        ("last channels", (rounded(0.02, 0.03, 0.04, axis=-1), mul(3, sign="+")), {"x": (2, 5, 3)}),
        ("one scale for channels", (rounded(0.02), mul(3, 1, 1, sign="+")), {"left": "Mul", "options": ALLOW}),
        ("negative", (rounded(0.02), mul(c=-2.5)), {"left": "Mul"}),
        ("zero", (rounded(0.02, 0.03, 0.04), mul(3, 1, 1, c=[0, 1, 2])), {"left": "Mul"}),
        ("shift", (rounded(0.02), add(c=0.5)), {"left": "Add"}),
        ("BatchNormalization of one scale", (rounded(0.02), bn(3, s=2.0)), {"left": "BatchNormalization"}),
        ("underflow", (rounded(1e-30), mul(c=1e-10)), {"left": "Mul"}),
        ("overflow", (rounded(1e30), mul(c=1e6)), {"left": "Mul"}),
        ("a barrier on request", (rounded(0.02), mul(c=2.5)), {"left": "Mul", "options": "quantized_weights=false"}),
    )),
]  # fmt: skip
