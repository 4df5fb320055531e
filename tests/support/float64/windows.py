"""Geometry of sliding windows, shared by convolutions and pools."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from .call import Call
from .values import Tensor

Index = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """A window sliding over spatial axes padded by `begin` and `end`, giving `output` positions."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    output: tuple[int, ...]

    def taps(self) -> Iterator[tuple[tuple[int, ...], Index]]:
        """Each kernel position with the padded elements that it meets over all outputs."""
        for tap in product(*map(range, self.kernel)):
            yield (
                tap,
                (
                    ...,
                    *(
                        slice(k * d, k * d + (o - 1) * s + 1, s)
                        for k, d, s, o in zip(
                            tap, self.dilations, self.strides, self.output, strict=True
                        )
                    ),
                ),
            )

    def padded(self, x: Tensor, fill: Any) -> Tensor:
        """The input with its padding, and as much more as the last window of ceil_mode needs."""
        size = x.shape[-len(self.kernel) :]
        reach = tuple(
            (o - 1) * s + (k - 1) * d + 1
            for o, s, k, d in zip(
                self.output, self.strides, self.kernel, self.dilations, strict=True
            )
        )
        after = tuple(
            max(r - b - n, e, 0)
            for r, b, n, e in zip(reach, self.begin, size, self.end, strict=True)
        )
        if not any(self.begin) and not any(after):
            return x
        widths = [(0, 0)] * (x.ndim - len(size)) + list(zip(self.begin, after, strict=True))
        return np.pad(x, widths, constant_values=fill)


def make_window(
    call: Call, size: Sequence[int], kernel: Sequence[int], ceil_mode: bool = False
) -> Window:
    """The window of a Conv or pool over spatial axes of this size."""
    rank = len(kernel)
    strides = call.ints("strides") or (1,) * rank
    dilations = call.ints("dilations") or (1,) * rank
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    auto_pad = call.string("auto_pad", "NOTSET")
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        output = tuple(-(-n // s) for n, s in zip(size, strides, strict=True))
        totals = [
            max((o - 1) * s + e - n, 0)
            for o, s, e, n in zip(output, strides, extents, size, strict=True)
        ]
        begin, end = split_padding(totals, upper=auto_pad == "SAME_UPPER")
        return Window(tuple(kernel), strides, dilations, begin, end, output)
    pads = (0,) * (2 * rank) if auto_pad == "VALID" else call.ints("pads") or (0,) * (2 * rank)
    begin, end = pads[:rank], pads[rank:]
    output = tuple(
        _positions(n, b, e, extent, s, ceil_mode)
        for n, b, e, extent, s in zip(size, begin, end, extents, strides, strict=True)
    )
    return Window(tuple(kernel), strides, dilations, begin, end, output)


def split_padding(totals: Sequence[int], upper: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Padding in two halves, the odd element at the end if `upper`."""
    small = tuple(total // 2 for total in totals)
    large = tuple(total - half for total, half in zip(totals, small, strict=True))
    return (small, large) if upper else (large, small)


def _positions(size: int, begin: int, end: int, extent: int, stride: int, ceil_mode: bool) -> int:
    """With ceil_mode the last window must still start inside the input or the padding before it."""
    span = size + begin + end - extent
    if not ceil_mode:
        return span // stride + 1
    count = math.ceil(span / stride) + 1
    return count - 1 if (count - 1) * stride >= size + begin else count
