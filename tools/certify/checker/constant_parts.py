"""Parts of a tensor that are constant for all inputs: behind scales or weights of zero.

They are a line that the tensor is of itself: scale 0 and the constant as shift there, and scale 1
elsewhere. A line that crosses an operator gives the line that the result is of itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np

from .clamps import clamp_of
from .constant_operands import padding_value
from .crossing import CROSSINGS
from .lines import Line, along
from .program import Array, Datum, Operation, Unproved, product, static
from .weighted_layers import weights_of

ALIGNED: dict[str, Callable[..., Array]] = {
    **dict.fromkeys(("Add", "Sum"), lambda *given: sum(given)),
    "Sub": np.subtract,
    "Mean": lambda *given: sum(given) / len(given),
    "Max": lambda *given: reduce(np.maximum, given),
    "Min": lambda *given: reduce(np.minimum, given),
    "Mul": np.multiply,
}
"""Operators whose result is constant where all operands are, and how it is computed."""

MAX_BORDER = 1 << 12
"""Most numbers by which the border of a Pad is told from its data."""

LAYERS = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul"))

BEGINNING = LAYERS | {"Pad"}
"""Operators that may have constant parts where no operand has."""


def constant_results(
    operation: Operation, parts_of: Callable[[Datum | None], Line | None]
) -> list[Line]:
    """Return the line of each result over itself, none unless a part is known to be constant.

    `parts_of` gives it for an operand.
    """
    if operation.kind in LAYERS:
        return _zero_terms(operation, parts_of)
    given = [parts_of(each) for each in operation.inputs]
    lines = {i: each for i, each in enumerate(given) if each is not None}
    if operation.kind == "Pad" and operation.attributes.get("mode", b"constant") == b"constant":
        return _border(operation, given[0])
    if not lines:
        return []
    clamp, crossing = clamp_of(operation), CROSSINGS.get(operation.kind)
    if clamp is not None:
        line = parts_of(clamp[0])
        if line is None:
            return []
        shift = np.where(line.scale == 0, np.clip(line.shift, *clamp[1]), 0.0)
        return [Line(line.scale, shift, line.reach)]
    if operation.kind == "Mul" and len(lines) < len(given):
        return _zeros(operation, next(iter(lines.values())))
    if operation.kind in ALIGNED:
        return _aligned(operation, list(lines.values())) if len(lines) == len(given) else []
    if operation.kind == "Concat":
        ranks = [None if each is None else each.rank for each in operation.inputs]
        lines = {
            i: each or Line.identity(rank or 0)
            for i, (each, rank) in enumerate(zip(given, ranks, strict=True))
        }
    if crossing is None:
        return []
    try:
        found = crossing(operation, lines)
    except (Unproved, ValueError, IndexError, TypeError):
        return []
    known = [each.projection for each in found if each is not None]
    return known if len(known) == len(found) else []


def _border(pad: Operation, inner: Line | None) -> list[Line]:
    """Return the line of the result of a Pad, whose border is constant."""
    data, pads = pad.operand(0), pad.integers("pads", 1)
    rank = 0 if pads is None else len(pads) // 2
    if (
        data is None
        or data.rank != rank
        or not rank
        or pad.operand(3) is not None
        or min(pads or [-1]) < 0
    ):
        return []
    line = Line.identity(rank) if inner is None else inner
    widths = list(zip((pads or [])[:rank], (pads or [])[rank:], strict=True))
    try:
        value = float(padding_value(pad))
        whole = [
            1 if not sum(width) else extent
            for width, extent in zip(widths, data.extents or (), strict=True)
        ]
        extents = np.broadcast_shapes(
            static(tuple(whole)) or (), line.scale.shape, line.shift.shape
        )
    except (Unproved, ValueError):
        return []
    if (
        line.rank != rank
        or static(tuple(whole)) is None
        or product(extents) > MAX_BORDER
        or not np.isfinite(value)
    ):
        return []
    padded: list[Array] = []
    for each, border in ((line.scale, 0.0), (line.shift, value), (line.reach, abs(value))):
        wide = np.broadcast_to(each, extents)
        padded.append(np.pad(wide, widths, constant_values=border))
    return [Line(*padded)]


def _aligned(operation: Operation, lines: Sequence[Line]) -> list[Line]:
    """Return the line of an elementwise result whose operands all have constant parts."""
    rank, kind = operation.outputs[0].rank, operation.kind
    if operation.version < 7 or any(each.rank != rank for each in lines):
        return []
    gone = np.logical_and.reduce(np.broadcast_arrays(*(each.scale == 0 for each in lines)))
    shift = ALIGNED[kind](*(each.shift for each in lines))
    reaches = [each.reach for each in lines]
    reach = 2 * np.multiply(*reaches) if kind == "Mul" else sum(reaches[1:], reaches[0])
    return [Line(np.where(gone, 0.0, 1.0), np.where(gone, shift, 0.0), np.where(gone, reach, 0.0))]


def _zeros(product: Operation, line: Line) -> list[Line]:
    """Return the line of a product with an operand of constant parts: zeros stay zero."""
    if product.version < 7 or line.rank != product.outputs[0].rank:
        return []
    gone = (line.scale == 0.0) & (line.shift == 0.0)
    return [Line(np.where(gone, 0.0, 1.0), 0.0 * line.shift, np.where(gone, line.reach, 0.0))]


def _zero_terms(
    operation: Operation, parts_of: Callable[[Datum | None], Line | None]
) -> list[Line]:
    """Return the line of a layer of zero data, or with zero weights: outputs are the bias."""
    made, rank = weights_of(operation), operation.outputs[0].rank
    if made is None or made.addend is not None or rank is None or not 0 <= made.axis < rank:
        return []
    line = parts_of(operation.operand(made.data))
    gone = made.weight.zero_rows()
    if line is not None and not line.scale.any() and not line.shift.any():
        if np.isfinite(made.matrix).all():
            gone = np.ones_like(gone)
    if not gone.any():
        return []
    scale = along(np.where(gone, 0.0, 1.0), made.axis, rank)
    bias = np.zeros((1,) * rank) if made.bias is None else made.bias_factor * made.bias.exact
    return [Line.of(scale, np.where(scale == 0.0, bias, 0.0))]
