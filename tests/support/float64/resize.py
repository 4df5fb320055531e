"""Resize and Upsample by axes: nearest by index, linear and cubic by an interpolation matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .call import Call, Op
from .values import Tensor, is_float


@dataclass(frozen=True, slots=True)
class Axis:
    """One resized axis.

    The scale is the fraction `up / down`, exact when it comes from two sizes.
    """

    index: int
    size: int
    output: int
    up: float
    down: float
    start: float
    end: float

    @property
    def scale(self) -> float:
        return self.up / self.down


@dataclass(frozen=True, slots=True)
class Rule:
    mode: str
    coordinates: str
    nearest: str
    cubic: float
    antialias: bool
    exclude_outside: bool
    extrapolation: float


def _positions(axis: Axis, mode: str) -> Tensor:
    """Where each output element lies on the input axis."""
    i: Tensor = np.arange(axis.output, dtype=np.float64)
    match mode:
        case "align_corners":
            return i * (axis.size - 1) / (axis.output - 1) if axis.output > 1 else i * 0
        case "asymmetric":
            return i * axis.down / axis.up
        case "pytorch_half_pixel" if axis.output <= 1:
            return i * 0
        case "half_pixel" | "pytorch_half_pixel":
            return (i + 0.5) * axis.down / axis.up - 0.5
        case "half_pixel_symmetric":
            offset = axis.size / 2 * (1 - axis.output / (axis.scale * axis.size))
            return offset + (i + 0.5) * axis.down / axis.up - 0.5
        case "tf_half_pixel_for_nn":
            return (i + 0.5) * axis.down / axis.up
        case "tf_crop_and_resize":
            if axis.output <= 1:
                return i * 0 + 0.5 * (axis.start + axis.end) * (axis.size - 1)
            span = (axis.end - axis.start) * (axis.size - 1) / (axis.output - 1)
            return axis.start * (axis.size - 1) + i * span
    raise ValueError(f"Resize: unknown coordinate_transformation_mode {mode}")


def _nearest(position: Tensor, axis: Axis, mode: str) -> Tensor:
    """`simple` is opset 10: up towards the origin, down away from it."""
    match mode:
        case "round_prefer_floor":
            index = np.ceil(position - 0.5)
        case "round_prefer_ceil":
            index = np.floor(position + 0.5)
        case "ceil":
            index = np.ceil(position)
        case "simple" if axis.scale < 1:
            index = np.ceil(position)
        case _:
            index = np.floor(position)
    return np.asarray(np.clip(index, 0, axis.size - 1), dtype=np.int64)


def _triangle(distance: Tensor) -> Tensor:
    return np.asarray(np.maximum(1 - np.abs(distance), 0))


def _keys(distance: Tensor, a: float) -> Tensor:
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _matrix(position: Tensor, axis: Axis, rule: Rule) -> Tensor:
    """[output, input] weights; the border repeats, or with exclude_outside drops out."""
    stretch = min(axis.scale, 1.0) if rule.antialias else 1.0
    support = 2 if rule.mode == "cubic" else 1
    reach = math.ceil(support / stretch) + 1
    places = np.floor(position)[:, None] + np.arange(-reach, reach + 1)
    distance = (places - position[:, None]) * stretch
    weights = _keys(distance, rule.cubic) if rule.mode == "cubic" else _triangle(distance)
    if rule.exclude_outside:
        weights = np.where((places >= 0) & (places < axis.size), weights, 0.0)
    if rule.exclude_outside or rule.antialias:
        weights = weights / weights.sum(axis=1, keepdims=True)
    matrix = np.zeros((axis.output, axis.size))
    columns = np.clip(places, 0, axis.size - 1).astype(np.int64)
    np.add.at(matrix, (np.arange(axis.output)[:, None], columns), weights)
    return matrix


def _interpolated(x: Tensor, axes: list[Axis], rule: Rule) -> Tensor:
    result = x
    outside = np.zeros((1,) * x.ndim, dtype=np.bool_)
    for axis in axes:
        position = _positions(axis, rule.coordinates)
        if rule.coordinates == "tf_crop_and_resize":
            beyond = (position < 0) | (position > axis.size - 1)
            outside = outside | np.expand_dims(
                beyond, tuple(d for d in range(x.ndim) if d != axis.index)
            )
        if rule.mode == "nearest":
            result = np.take(result, _nearest(position, axis, rule.nearest), axis=axis.index)
        elif (
            axis.output != axis.size or axis.scale != 1 or rule.coordinates == "tf_crop_and_resize"
        ):
            matrix = _matrix(position, axis, rule)
            result = np.moveaxis(np.tensordot(matrix, result, axes=(1, axis.index)), 0, axis.index)
    if outside.any():
        result = np.where(outside, rule.extrapolation, result)
    return result if is_float(x) else result.astype(x.dtype)


def _scaled(x: Tensor, scales: list[float]) -> list[Axis]:
    """Upsample, and Resize of opset 10."""
    return [
        Axis(index, size, _scaled_size(size, scale), scale, 1.0, 0.0, 1.0)
        for index, (size, scale) in enumerate(zip(x.shape, scales, strict=True))
    ]


def _scaled_size(size: int, scale: float, span: float = 1.0) -> int:
    """ONNX computes it in float32."""
    return int(np.floor(np.float32(size) * np.float32(span) * np.float32(scale)))


def _upsample(call: Call) -> Tensor:
    """Scales are named attributes in opset 1, a list in 7 and an input from 9 on."""
    x = call.tensor(0)
    if call.version >= 9:
        scales = [float(scale) for scale in call.tensor(1)]
    elif call.version >= 7:
        scales = list(call.floats("scales") or ())
    else:
        scales = [1.0, 1.0, call.real("height_scale", 1.0), call.real("width_scale", 1.0)]
    mode = call.string("mode", "nearest")
    rule = Rule(
        "linear" if mode == "bilinear" else mode, "asymmetric", "simple", 0.0, False, False, 0.0
    )
    return _interpolated(x, _scaled(x, scales), rule)


def _resize(call: Call) -> Tensor:
    if call.version < 11:
        return _upsample(call)
    rule = Rule(
        call.string("mode", "nearest"),
        call.string("coordinate_transformation_mode", "half_pixel"),
        call.string("nearest_mode", "round_prefer_floor"),
        call.real("cubic_coeff_a", -0.75),
        bool(call.integer("antialias", 0)),
        bool(call.integer("exclude_outside", 0)),
        call.real("extrapolation_value", 0.0),
    )
    return _interpolated(call.tensor(0), _resize_axes(call), rule)


def _resize_axes(call: Call) -> list[Axis]:
    x = call.tensor(0)
    chosen = [axis % x.ndim for axis in call.ints("axes") or range(x.ndim)]
    sizes = [x.shape[axis] for axis in chosen]
    roi = call.optional(1)
    if (
        roi is None
        or not roi.size
        or call.string("coordinate_transformation_mode", "") != "tf_crop_and_resize"
    ):
        roi = np.repeat([0.0, 1.0], len(chosen))
    starts, ends = roi[: len(chosen)].tolist(), roi[len(chosen) :].tolist()
    scales, wanted = call.optional(2), call.integers(3)
    if wanted:
        fractions = _fractions(sizes, wanted, call.string("keep_aspect_ratio_policy", "stretch"))
    else:
        fractions = [
            (_scaled_size(size, float(scale), end - start), float(scale), 1.0)
            for size, scale, start, end in zip(
                sizes, () if scales is None else scales, starts, ends, strict=True
            )
        ]
    return [
        Axis(axis, size, output, up, down, start, end)
        for axis, size, (output, up, down), start, end in zip(
            chosen, sizes, fractions, starts, ends, strict=True
        )
    ]


def _fractions(sizes: list[int], wanted: list[int], policy: str) -> list[tuple[int, float, float]]:
    """Output size and scale of each axis; policies other than `stretch` use one scale for all."""
    pairs = list(zip(wanted, sizes, strict=True))
    if policy == "stretch":
        return [(output, output, size) for output, size in pairs]
    choose = min if policy == "not_larger" else max
    up, down = choose(pairs, key=lambda pair: pair[0] / pair[1])
    return [(math.floor(size * up / down + 0.5), up, down) for size in sizes]


OPS: dict[str, Op] = {"Resize": _resize, "Upsample": _upsample}
