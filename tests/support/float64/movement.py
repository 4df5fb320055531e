"""Operators that keep the elements and change shape, order or type."""

from __future__ import annotations

from functools import reduce

import numpy as np

from .call import Call, Op
from .values import FLOATS, Tensor, carrier, is_float


def _reshape(call: Call) -> Tensor:
    """`0` keeps an extent unless allowzero; the shape is an attribute before opset 5."""
    x = call.tensor(0)
    wanted = list(call.ints("shape") or ()) if call.version < 5 else call.integers(1) or []
    if not call.integer("allowzero", 0):
        wanted = [x.shape[index] if extent == 0 else extent for index, extent in enumerate(wanted)]
    if -1 in wanted:
        unknown = wanted.index(-1)
        known = int(np.prod([extent for extent in wanted if extent != -1], dtype=np.int64))
        wanted[unknown] = x.size // known if known else 0
    return x.reshape(wanted)


def _flatten(call: Call) -> Tensor:
    x = call.tensor(0)
    axis = call.integer("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(
        int(np.prod(x.shape[:axis], dtype=np.int64)), int(np.prod(x.shape[axis:], dtype=np.int64))
    )


def _squeeze(call: Call) -> Tensor:
    x = call.tensor(0)
    axes = call.axes(x.ndim, since=13)
    return np.squeeze(x, axis=None if axes is None else tuple(axes))


def _unsqueeze(call: Call) -> Tensor:
    x = call.tensor(0)
    given = call.integers(1) if call.version >= 13 else call.ints("axes")
    return np.expand_dims(x, tuple(given or ()))


def _transpose(call: Call) -> Tensor:
    return np.transpose(call.tensor(0), call.ints("perm"))


def _expand(call: Call) -> Tensor:
    x = call.tensor(0)
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(call.integers(1) or ())))


def _tile(call: Call) -> Tensor:
    """Opset 1 repeats along one axis."""
    if call.version < 6:
        x, times, axis = call.tensors()
        return np.concatenate([x] * int(times.item()), axis=int(axis.item()))
    x, repeats = call.tensor(0), call.integers(1) or []
    if len(repeats) != x.ndim:
        raise ValueError(f"{len(repeats)} repeats of rank {x.ndim}")
    return np.tile(x, repeats)


def _concat(call: Call) -> Tensor:
    return np.concatenate(call.tensors(), axis=call.integer("axis", 1))


def split_points(extent: int, sizes: list[int] | tuple[int, ...] | None, parts: int) -> list[int]:
    """Where to cut an axis: after given sizes, or into equal parts but for the last."""
    if sizes is None:
        size = -(-extent // parts)
        sizes = [size] * parts
    return [int(point) for point in np.cumsum(sizes)[:-1]]


def _split(call: Call) -> tuple[Tensor, ...]:
    x = call.tensor(0)
    axis = call.integer("axis", 0)
    sizes = call.ints("split") or call.integers(1)
    if sizes is not None and sum(sizes) != x.shape[axis]:
        raise ValueError(f"parts of {sizes} do not fit {x.shape[axis]} elements")
    points = split_points(x.shape[axis], sizes, call.integer("num_outputs", len(call.outputs)))
    return tuple(np.split(x, points, axis=axis))


def _shape(call: Call) -> Tensor:
    shape = call.tensor(0).shape
    end = call.integer("end", len(shape))
    return np.array(shape[call.integer("start", 0) : end], dtype=np.int64)


def _depth_to_space(call: Call) -> Tensor:
    x = call.tensor(0)
    n, c, h, w = x.shape
    b = call.integer("blocksize", 1)
    if call.string("mode", "DCR") == "DCR":
        blocks = x.reshape(n, b, b, c // b**2, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        blocks = x.reshape(n, c // b**2, b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
    return blocks.reshape(n, c // b**2, h * b, w * b)


def _space_to_depth(call: Call) -> Tensor:
    x = call.tensor(0)
    n, c, h, w = x.shape
    b = call.integer("blocksize", 1)
    blocks = x.reshape(n, c, h // b, b, w // b, b)
    order = (0, 3, 5, 1, 2, 4) if call.string("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return blocks.transpose(order).reshape(n, c * b**2, h // b, w // b)


def _pad_arguments(call: Call) -> tuple[list[int], Tensor | float]:
    """The pads of all axes and the fill: `paddings`, then `pads`, then inputs."""
    x = call.tensor(0)
    if call.version < 11:
        return list(call.ints("paddings" if call.version < 2 else "pads") or ()), call.real(
            "value", 0.0
        )
    pads = call.integers(1) or []
    fill = call.optional(2)
    axes = call.integers(3)
    if axes is not None:
        full = [0] * (2 * x.ndim)
        for index, axis in enumerate(axes):
            full[axis % x.ndim] = pads[index]
            full[axis % x.ndim + x.ndim] = pads[index + len(axes)]
        pads = full
    return pads, 0.0 if fill is None or not fill.size else fill.reshape(())


def _pad(call: Call) -> Tensor:
    """Negative pads crop."""
    x = call.tensor(0)
    pads, fill = _pad_arguments(call)
    begin, end = pads[: x.ndim], pads[x.ndim :]
    if any(n + b + e < 0 for n, b, e in zip(x.shape, begin, end, strict=True)):
        raise ValueError(f"pads {pads} crop more than {x.shape} has")
    x = x[
        tuple(
            slice(max(-b, 0), n - max(-e, 0)) for b, e, n in zip(begin, end, x.shape, strict=True)
        )
    ]
    widths = [(max(b, 0), max(e, 0)) for b, e in zip(begin, end, strict=True)]
    match call.string("mode", "constant"):
        case "constant":
            return np.pad(x, widths, constant_values=np.asarray(fill, dtype=x.dtype))
        case "reflect":
            return np.pad(x, widths, mode="reflect")
        case "edge":
            return np.pad(x, widths, mode="edge")
        case "wrap":
            return np.pad(x, widths, mode="wrap")
        case mode:
            raise call.unsupported(f"mode {mode}")


def _cast_to(call: Call, x: Tensor, element_type: int) -> Tensor:
    if element_type in FLOATS and is_float(x):
        return x
    target = carrier(element_type)
    if target is None:
        raise call.unsupported(f"element type {element_type}")
    return x.astype(target)


def _cast(call: Call) -> Tensor:
    """Before opset 6 the type is given by name."""
    target = call.attributes["to"]
    if isinstance(target, str):
        named = np.dtype(np.bool_ if target == "BOOL" else target.lower())
        return call.tensor(0).astype(np.float64 if named.kind == "f" else named)
    return _cast_to(call, call.tensor(0), call.integer("to", 0))


def _cast_like(call: Call) -> Tensor:
    target = call.tensor(1).dtype
    if target != np.float64 and target.kind not in "iub":
        raise call.unsupported(f"to {target}")
    return call.tensor(0).astype(target)


def _dropout(call: Call) -> tuple[Tensor, ...]:
    """Inference; the mask is of the input's type before opset 10."""
    x = call.tensor(0)
    training = call.optional(2)
    ratio = call.optional(1)
    if training is not None and training and (ratio is None or ratio != 0):
        raise call.unsupported("training mode is random")
    return x, np.ones(x.shape, np.bool_ if call.version >= 10 else x.dtype)


def _reverse_sequence(call: Call) -> Tensor:
    x = call.tensor(0)
    time, batch = call.integer("time_axis", 0), call.integer("batch_axis", 1)
    lengths = call.tensor(1)
    rows = np.arange(x.shape[time]).reshape(-1, 1)
    order = np.where(rows < lengths, lengths - 1 - rows, rows)
    moved = np.moveaxis(x, (time, batch), (0, 1))
    return np.moveaxis(moved[order, np.arange(len(lengths))], (0, 1), (time, batch))


def _trilu(call: Call) -> Tensor:
    diagonal = call.optional(1)
    k = 0 if diagonal is None else int(diagonal.item())
    return np.triu(call.tensor(0), k) if call.integer("upper", 1) else np.tril(call.tensor(0), k)


def _col2im(call: Call) -> Tensor:
    x = call.tensor(0)
    image, block = call.integers(1) or [], call.integers(2) or []
    rank = len(image)
    strides, dilations = call.ints("strides") or (1,) * rank, call.ints("dilations") or (1,) * rank
    pads = call.ints("pads") or (0,) * (2 * rank)
    padded = [n + pads[i] + pads[i + rank] for i, n in enumerate(image)]
    steps = [
        (p - (k - 1) * d - 1) // s + 1
        for p, k, d, s in zip(padded, block, dilations, strides, strict=True)
    ]
    taps = x.reshape(x.shape[0], -1, *block, *steps)
    result = np.zeros((x.shape[0], taps.shape[1], *padded), x.dtype)
    for tap in np.ndindex(*block):
        starts = [t * d for t, d in zip(tap, dilations, strict=True)]
        index = tuple(
            slice(b, b + (n - 1) * s + 1, s) for b, n, s in zip(starts, steps, strides, strict=True)
        )
        result[:, :, *index] += taps[:, :, *tap]
    return result[:, :, *(slice(pads[i], pads[i] + n) for i, n in enumerate(image))]


def _bits(call: Call) -> Tensor:
    if is_float(call.tensor(0)) or call.integer("to", 0) in FLOATS:
        raise call.unsupported("the bits of a float")
    target = carrier(call.integer("to", 0))
    if target is None:
        raise call.unsupported(f"element type {call.integer('to', 0)}")
    return call.tensor(0).view(target)


def _string_concat(call: Call) -> Tensor:
    return np.asarray(reduce(np.add, call.tensors()), dtype=object)


OPS: dict[str, Op] = {
    "BitCast": _bits,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Col2Im": _col2im,
    "Concat": _concat,
    "DepthToSpace": _depth_to_space,
    "Dropout": _dropout,
    "Expand": _expand,
    "Flatten": _flatten,
    "Identity": lambda call: (call.value(0),),
    "Pad": _pad,
    "Reshape": _reshape,
    "ReverseSequence": _reverse_sequence,
    "Shape": _shape,
    "Size": lambda call: np.array(call.tensor(0).size, dtype=np.int64),
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "StringConcat": _string_concat,
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
}
