"""Blocks of convolutional networks on values [N, C, H, W]."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from .activations import activate
from .writer import Array, Dims, Value, Writer


def channels(x: Value) -> int:
    """The channels, which are always known."""
    assert isinstance(x.dims[1], int)
    return x.dims[1]


def halved(w: Writer, x: Value, size: int = 3, stride: int = 2, pads: int = 1) -> Dims:
    """The spatial extents behind a window."""
    return tuple(
        (d + 2 * pads - size) // stride + 1 if isinstance(d, int) else w.symbol()
        for d in x.dims[2:]
    )


def fits(x: Value, least: int = 2) -> bool:
    """Whether windows of stride 2 leave something: open extents always do."""
    return all(not isinstance(d, int) or d >= least for d in x.dims[2:])


def conv(
    w: Writer,
    x: Value,
    out: int,
    size: int = 1,
    stride: int = 1,
    group: int = 1,
    *,
    bias: bool | None = None,
) -> Value:
    """A Conv that keeps the extents unless it has a stride."""
    bias = w.one_in(2) if bias is None else bias
    weight = w.weight(out, channels(x) // group, size, size)
    inputs = [x, weight, *([w.constant(w.numbers(out))] if bias else [])]
    pads = size // 2
    attrs: dict[str, Any] = {"kernel_shape": [size] * 2, "strides": [stride] * 2, "group": group}
    if stride == 1 and size > 1 and w.one_in(5):
        attrs["auto_pad"] = w.pick(["SAME_UPPER", "SAME_LOWER"])
    elif size > 1 or w.one_in(2):
        attrs["pads"] = [pads] * 4
    if w.one_in(2):
        attrs["dilations"] = [1, 1]
    spatial = x.dims[2:] if stride == 1 else halved(w, x, size, stride, pads)
    return w.op("Conv", inputs, (x.dims[0], out, *spatial), **attrs)


def batch_norm(w: Writer, x: Value) -> Value:
    """BatchNormalization, or what is left of it in frozen TensorFlow graphs."""
    n = channels(x)
    gamma, beta, mean, var = w.numbers(n), w.numbers(n), w.numbers(n), w.positive(n)
    if w.one_in(12):
        gamma[w.upto(0, n - 1)] = 0
    if w.style == "tf" and w.one_in(3):
        scale = gamma / np.sqrt(var + np.float32(1e-3))
        scaled = w.binary("Mul", x, w.constant(scale.reshape(1, n, 1, 1)))
        return w.binary("Add", scaled, w.constant((beta - mean * scale).reshape(1, n, 1, 1)))
    parameters = [w.constant(array) for array in (gamma, beta, mean, var)]
    if w.one_in(15):  # computed by the exporter's own nodes
        parameters[0] = w.unary(w.pick(["Exp", "Sigmoid", "Softplus", "Neg"]), parameters[0])
    return w.op(
        "BatchNormalization", [x, *parameters], x.dims, epsilon=w.pick([1e-5, 1e-3]), momentum=0.9
    )


def added_bias(w: Writer, x: Value) -> Value:
    """A bias that stands behind its layer: [1, C, 1, 1] as Paddle has it, or reshaped to that."""
    n = channels(x)
    if w.one_in(3):
        bias = w.reshape(w.constant(w.numbers(n)), (1, n, 1, 1), [1, -1, 1, 1])
        return w.binary("Add", x, Value(bias.name, (1, n, 1, 1)))
    return w.binary("Add", x, w.constant(w.numbers(*w.pick([(1, n, 1, 1), (n, 1, 1)]))))


def conv_block(w: Writer, x: Value, out: int = 0, stride: int = 1) -> Value:
    """Conv, normalization, activation, in the order and spelling of an exporter."""
    out, size, n = out or w.pick([2, 4, 6, 8]), w.pick([1, 1, 3]), channels(x)
    stride = stride if fits(x) else 1
    if w.style == "tf" and w.one_in(3):
        return conv_nhwc(w, x, out, stride)
    group = n if out % n == 0 and w.one_in(3) else 1
    made = conv(w, x, out, size, stride, group)
    if w.style == "paddle" and w.one_in(2):
        made = added_bias(w, made)
    if not w.one_in(5):
        made = batch_norm(w, made)
    if w.one_in(8):
        made = instance_norm(w, made)
    return activate(w, made)


def conv_nhwc(w: Writer, x: Value, out: int, stride: int) -> Value:
    """A Conv of TensorFlow: between Transposes, with its bias in the last axis."""
    last = w.transpose(x, 0, 2, 3, 1)
    if w.one_in(2):
        last = activate(w, last)
    first = w.transpose(last, 0, 3, 1, 2)
    made = w.transpose(conv(w, first, out, 3, stride, bias=False), 0, 2, 3, 1)
    made = w.binary("Add", made, w.constant(w.numbers(out)))
    if w.one_in(2):
        made = w.binary("Mul", made, w.constant(w.numbers(1, 1, 1, out)))
    return w.transpose(activate(w, made) if w.one_in(2) else made, 0, 3, 1, 2)


def instance_norm(w: Writer, x: Value) -> Value:
    n = channels(x)
    scale, bias = w.constant(w.numbers(n)), w.constant(w.numbers(n))
    if not w.one_in(3) or n % 2:
        return w.op("InstanceNormalization", [x, scale, bias], x.dims, epsilon=1e-2)
    # group normalization of torch: reshape to [N, groups, -1], normalize, back, affine
    flat = w.op("Reshape", [x, w.ints(0, 2, -1)], (x.dims[0], 2, w.symbol()))
    ones, zeros = w.constant(np.ones(2, np.float32)), w.constant(np.zeros(2, np.float32))
    normal = w.op("InstanceNormalization", [flat, ones, zeros], flat.dims, epsilon=1e-2)
    back = w.op("Reshape", [normal, w.shape(x)], x.dims)
    scaled = w.binary("Mul", back, w.constant(w.numbers(n, 1, 1)))
    return w.binary("Add", scaled, w.constant(w.numbers(n, 1, 1)))


def residual(w: Writer, x: Value) -> Value:
    """A block of ResNet or MobileNet; the shortcut may have a convolution."""
    inside = conv_block(w, x, w.pick([2, 4, 8]))
    out = channels(x) if w.one_in(2) else w.pick([4, 6, 8])
    inside = batch_norm(w, conv(w, inside, out, w.pick([1, 3])))
    short = x if out == channels(x) else conv(w, x, out)
    if short is not x and w.one_in(2):
        short = batch_norm(w, short)
    made = w.binary("Add", *((inside, short) if w.one_in(2) else (short, inside)))
    if w.one_in(4):  # pre-activation
        made = batch_norm(w, made)
    return activate(w, made)


def depthwise(w: Writer, x: Value) -> Value:
    """Depthwise and pointwise."""
    n = channels(x)
    made = activate(w, batch_norm(w, conv(w, x, n, 3, group=n)))
    return activate(w, batch_norm(w, conv(w, made, w.pick([4, 8]))))


def pooled(w: Writer, x: Value) -> Value:
    """The mean of each channel, [N, C, 1, 1]."""
    dims: Dims = (*x.dims[:2], 1, 1)
    if w.one_in(2):
        return w.op("GlobalAveragePool", [x], dims)
    return w.reduce("ReduceMean", x, w.pick([(2, 3), (-2, -1), (3, 2)]))


def squeeze_excite(w: Writer, x: Value) -> Value:
    """Gates by pooled channels, through 1x1 convolutions or Gemms."""
    n, gate = channels(x), pooled(w, x)
    if w.one_in(2):
        gate = activate(w, conv(w, gate, 2))
        gate = conv(w, gate, n)
    else:
        flat = w.reshape(gate, (x.dims[0], n), [x.dims[0], n])
        flat = w.op(
            "Gemm", [flat, w.weight(2, n), w.constant(w.numbers(2))], (x.dims[0], 2), transB=1
        )
        flat = w.unary("Relu", flat)
        flat = w.op("MatMul", [flat, w.weight(2, n)], (x.dims[0], n))
        gate = w.unsqueeze(flat, 2, 3) if w.one_in(2) else w.unsqueeze(w.unsqueeze(flat, -1), -1)
    gate = w.unary(w.pick(["Sigmoid", "HardSigmoid"]), gate)
    if w.one_in(6):
        gate = w.op("Expand", [gate, w.shape(x)], x.dims)
    return w.binary("Mul", x, gate)


def shuffle(w: Writer, x: Value) -> Value:
    """A channel shuffle of ShuffleNet."""
    n, d = channels(x), x.dims
    if n % 2:
        return x
    batch = d[0]
    if isinstance(d[2], int) and isinstance(d[3], int):
        wide = w.reshape(x, (batch, 2, n // 2, d[2], d[3]), [batch, 2, n // 2, d[2], d[3]])
        turned = w.transpose(wide, 0, 2, 1, 3, 4)
        return w.reshape(turned, d, [batch, n, d[2], d[3]])
    extents = [w.extent(x, i) for i in (0, 2, 3)]
    target = w.concat([extents[0], w.ints(2), w.ints(n // 2), *extents[1:]], 0, 5)
    wide = w.op("Reshape", [x, target], (batch, 2, n // 2, d[2], d[3]))
    turned = w.transpose(wide, 0, 2, 1, 3, 4)
    return w.op("Reshape", [turned, w.concat([extents[0], w.ints(-1), *extents[1:]], 0, 4)], d)


def branches(w: Writer, x: Value) -> Value:
    """Split or several readers, and Concat: CSP, Inception, DenseNet."""
    n = channels(x)
    if n >= 2 and w.one_in(2):
        low = w.upto(1, n - 1)
        parts = w.split(x, 1, (low, n - low))
        if w.one_in(3):
            parts = [
                w.slice(x, 1, 0, low, low),
                w.slice(x, 1, low, w.pick([n, 2**63 - 1]), n - low),
            ]
        parts[-1] = conv_block(w, parts[-1], 4)
    else:
        parts = [
            x if w.one_in(3) else conv_block(w, x, w.pick([2, 4])) for _ in range(w.upto(2, 3))
        ]
    if w.one_in(3):
        w.random.shuffle(parts)
    joined = w.concat(parts, 1, sum(channels(part) for part in parts))
    return batch_norm(w, joined) if w.one_in(2) else joined


def down(w: Writer, x: Value) -> Value:
    """Half the extents: a pool or a stride."""
    if not fits(x, 3):
        return x
    kind = w.pick(["MaxPool", "AveragePool", "conv"])
    if kind == "conv":
        return conv_block(w, x, stride=2)
    attrs: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    if kind == "AveragePool" and w.one_in(2):
        attrs["count_include_pad"] = w.upto(0, 1)
    return w.op(kind, [x], (*x.dims[:2], *halved(w, x)), **attrs)


def context(w: Writer, x: Value) -> Value:
    """Pools of several windows side by side, as in YOLO."""
    sizes = w.pick([(3, 5), (3,), (3, 3)])
    pools = [w.op("MaxPool", [x], x.dims, kernel_shape=[k, k], pads=[k // 2] * 4) for k in sizes]
    return w.concat([x, *pools], 1, channels(x) * (1 + len(pools)))


def resized(w: Writer, x: Value, like: Value) -> Value:
    """To the extents of another value, by Resize with computed sizes or scales."""
    n = channels(x)
    dims: Dims = (x.dims[0], n, *like.dims[2:])
    if w.opset < 11:
        of = [
            w.op("Cast", [w.shape(v)], (4,), TensorProto.FLOAT, to=TensorProto.FLOAT)
            for v in (like, x)
        ]
        rate = w.slice(w.binary("Div", *of), 0, 2, 4, 2)
        scales = w.concat([w.constant(np.ones(2, np.float32)), rate], 0, 4)
        return w.op("Upsample" if w.opset < 10 else "Resize", [x, scales], dims, mode="nearest")
    spatial = w.slice(w.shape(like), 0, 2, 4, 2)
    if w.one_in(2):
        spatial = w.concat([w.extent(like, 2), w.extent(like, 3)], 0, 2)
    front = w.slice(w.shape(x), 0, 0, 2, 2)
    sizes = w.concat([front, spatial], 0, 4)
    roi: Value | str = w.constant(np.zeros(0, np.float32)) if w.opset < 13 else ""
    none: Value | str = w.constant(np.zeros(0, np.float32)) if w.opset < 13 else ""
    mode = w.pick(["nearest", "linear"])
    attrs: dict[str, Any] = {
        "mode": mode,
        "coordinate_transformation_mode": w.pick(["asymmetric", "half_pixel"]),
    }
    if mode == "nearest":
        attrs["nearest_mode"] = "floor"
    return w.op("Resize", [x, roi, none, sizes], dims, **attrs)


def doubled(w: Writer, x: Value) -> Value:
    """Twice the extents: constant scales, ConvTranspose, DepthToSpace, or repeats by Expand."""
    n = channels(x)
    spatial = tuple(2 * d if isinstance(d, int) else w.symbol() for d in x.dims[2:])
    dims: Dims = (x.dims[0], n, *spatial)
    match w.upto(0, 3):
        case 0:
            weight = w.weight(n, 4, 2, 2)
            made = w.op(
                "ConvTranspose",
                [x, weight],
                (x.dims[0], 4, *spatial),
                kernel_shape=[2, 2],
                strides=[2, 2],
            )
            return activate(w, batch_norm(w, made))
        case 1 if n % 4 == 0:
            attrs: dict[str, Any] = {"mode": w.pick(["DCR", "CRD"])} if w.opset >= 11 else {}
            return w.op("DepthToSpace", [x], (x.dims[0], n // 4, *spatial), blocksize=2, **attrs)
        case 2 if isinstance(x.dims[0], int) and all(isinstance(d, int) for d in x.dims):
            wide = w.unsqueeze(x, 3, 5)
            target = w.ints(*(int(d) for d in (*x.dims[:2], x.dims[2], 2, x.dims[3], 2)))
            grown = w.op("Expand", [wide, target], (*x.dims[:3], 2, x.dims[3], 2))
            return w.reshape(grown, dims, [int(d) for d in dims])
        case _:
            scales = w.constant(np.asarray([1, 1, 2, 2], np.float32))
            if w.opset < 11:
                return w.op(
                    "Upsample" if w.opset < 10 else "Resize", [x, scales], dims, mode="nearest"
                )
            roi: Value | str = w.constant(np.zeros(0, np.float32)) if w.opset < 13 else ""
            return w.op("Resize", [x, roi, scales], dims, mode=w.pick(["nearest", "linear"]))


def pyramid(w: Writer, x: Value) -> Value:
    """Down, a block, up to the extents of the lateral, and joined with it."""
    if not fits(x, 3):
        return conv_block(w, x)
    lower = conv_block(w, down(w, x), channels(x))
    upper = resized(w, lower, x)
    lateral = conv(w, x, channels(x)) if w.one_in(2) else x
    if w.one_in(2):
        return w.concat([upper, lateral], 1, 2 * channels(x))
    return w.binary("Add", upper, lateral)


def padded(w: Writer, x: Value) -> Value:
    """A Pad before a Conv without padding, with a constant, or computed as torch's F.pad does."""
    mode = w.pick(["constant", "constant", "reflect", "edge"]) if fits(x, 3) else "constant"
    if w.opset < 11 or w.one_in(2):
        wide = w.pad(x, [0, 0, 1, 1, 0, 0, 1, 1], mode)
    else:
        # [l, r, t, b] with zeros appended, as rows in reverse order, transposed
        given = w.concat(
            [
                w.ints(1, 1, 1, 1),
                w.op("ConstantOfShape", [w.ints(4)], (4,), TensorProto.INT64, value=zero()),
            ],
            0,
            8,
        )
        rows = w.op("Reshape", [given, w.ints(-1, 2)], (4, 2), TensorProto.INT64)
        turned = w.op(
            "Slice",
            [rows, w.ints(-1), w.ints(-(2**63) + 1), w.ints(0), w.ints(-1)],
            (4, 2),
            TensorProto.INT64,
        )
        flat = w.op("Reshape", [w.transpose(turned, 1, 0), w.ints(-1)], (8,), TensorProto.INT64)
        grown = tuple(d + 2 if isinstance(d, int) else w.symbol() for d in x.dims[2:])
        wide = w.op("Pad", [x, flat], (*x.dims[:2], *grown), mode=mode)
    weight = w.weight(4, channels(x), 3, 3)
    made = w.op("Conv", [wide, weight], (x.dims[0], 4, *x.dims[2:]), kernel_shape=[3, 3])
    return activate(w, batch_norm(w, made))


def zero() -> TensorProto:
    return TensorProto(data_type=TensorProto.INT64, dims=[1], int64_data=[0])


def preprocessed(w: Writer, x: Value) -> Value:
    """Mean and deviation of images, taken off in one of the usual ways."""
    n = channels(x)
    mean: Array = w.positive(1, n, 1, 1)
    if w.one_in(2):
        return w.binary(
            "Div", w.binary("Sub", x, w.constant(mean)), w.constant(w.positive(1, n, 1, 1))
        )
    made = w.binary("Mul", x, w.scalar(1 / 255))
    return w.binary("Mul", w.binary("Sub", made, w.constant(mean)), w.constant(w.positive(n, 1, 1)))


def classifier(w: Writer, x: Value) -> Value:
    """Pooled, flattened, and a linear layer: [N, classes]."""
    n, batch = channels(x), x.dims[0]
    mean = pooled(w, x)
    match w.upto(0, 3):
        case 0:
            flat = w.op("Flatten", [mean], (batch, n), axis=1)
        case 1:
            flat = w.reshape(mean, (batch, n), [batch, n])
        case 2:
            flat = w.squeeze(mean, 2, 3)
        case _:
            flat = w.op("Reshape", [mean, w.ints(-1, n)], (batch, n))
    return linear(w, flat, w.pick([3, 5]))


def linear(w: Writer, x: Value, out: int) -> Value:
    """Gemm, or MatMul and Add, on [N, D]."""
    assert isinstance(x.dims[-1], int)
    dims: Dims = (*x.dims[:-1], out)
    if len(x.dims) == 2 and w.one_in(2):
        turned = w.one_in(2)
        weight = w.weight(out, x.dims[-1]) if turned else w.weight(x.dims[-1], out)
        bias = [w.constant(w.numbers(out))] if w.opset < 11 or not w.one_in(4) else []
        return w.op("Gemm", [x, weight, *bias], dims, transB=int(turned))
    if w.one_in(5):
        weight = w.transpose(w.weight(out, x.dims[-1]), 1, 0)
    else:
        weight = w.weight(x.dims[-1], out)
    made = w.op("MatMul", [x, weight], dims)
    bias_value = w.constant(w.numbers(out))
    return w.binary("Add", *((made, bias_value) if w.one_in(2) else (bias_value, made)))


def detection(w: Writer, x: Value) -> Value:
    """A head of a detector: [N, C, H, W] to [N, H W A, K], decoded by slices."""
    anchors, fields, batch = 2, 5, x.dims[0]
    made = conv(w, x, anchors * fields)
    height, width = x.dims[2:]
    cells: int | str = (
        height * width if isinstance(height, int) and isinstance(width, int) else w.symbol()
    )
    wide = w.op("Reshape", [made, w.concat([w.extent(x, 0), w.ints(anchors, fields), w.ints(-1)], 0, 4)],
                (batch, anchors, fields, cells))  # fmt: skip
    turned = w.transpose(wide, 0, 1, 3, 2)
    score = w.unary("Sigmoid", turned)
    xy = w.slice(score, 3, 0, 2, 2)
    xy = w.binary("Sub", w.binary("Mul", xy, w.scalar(2.0)), w.scalar(0.5))
    wh = w.slice(score, 3, 2, 4, 2)
    wh = w.op("Pow", [w.binary("Mul", wh, w.scalar(2.0)), w.scalar(2.0)], wh.dims)
    wh = w.binary("Mul", wh, w.constant(w.positive(1, anchors, 1, 2)))
    joined = w.concat([xy, wh, w.slice(score, 3, 4, w.pick([5, 2**31 - 1]), 1)], 3, fields)
    return w.op("Reshape", [joined, w.ints(0, -1, fields)], (batch, w.symbol(), fields))


def tokens(w: Writer, x: Value) -> Value:
    """[N, C, H, W] to [N, H W, C], as vision transformers do."""
    n, (batch, _, height, width) = channels(x), x.dims
    cells: int | str = (
        height * width if isinstance(height, int) and isinstance(width, int) else w.symbol()
    )
    if w.one_in(2):
        flat = w.op("Reshape", [x, w.ints(0, 0, -1)], (batch, n, cells))
    else:
        target = w.concat([w.slice(w.shape(x), 0, 0, 2, 2), w.ints(-1)], 0, 3)
        flat = w.op("Reshape", [x, target], (batch, n, cells))
    return w.transpose(flat, 0, 2, 1)


BLOCKS = (
    *(
        conv_block,
        conv_block,
        conv_block,
        residual,
        residual,
        depthwise,
        squeeze_excite,
        squeeze_excite,
        shuffle,
    ),
    *(
        branches,
        branches,
        down,
        context,
        pyramid,
        padded,
        doubled,
        activate,
        batch_norm,
        added_bias,
        instance_norm,
    ),
)
