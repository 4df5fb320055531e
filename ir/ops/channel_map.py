"""How channels pass an operator: where they go, and which scales and shifts go with them.

The row of an operator with one data operand states it once, in a function `channels`. Passes derive
both directions: an affine of the result moves to the data, and an affine of the data to the
results.
"""

from __future__ import annotations

from enum import Enum

import numpy as np
from msgspec.structs import replace

from ...support.statement import states
from ..graph import Node, Value, is_constant
from ..provenance import Refusal, Refused
from ..record import Record
from ..tensor import Array
from ..types import Dim, Shape, dtype_of, shape_of

MAX_EXTENT = 1 << 24
"""Channels that an affine may have: more than any layer has, and little enough to compute with."""


class ChannelAxis(Record):
    """The channels that are asked for: `count` along `axis`, or None for one number in all.

    They are channels of the data if `of_data` is set, else of result number `result`. If channels
    lie on several consecutive axes, `axis` is the first.
    """

    axis: int | None
    count: int | None
    result: int = 0
    of_data: bool = False

    def on_other_side(self, axes: list[int | None], node: Node) -> int | None:
        """Return the axis of the data for one of the result, or the reverse; None if it is gone.

        `axes` has, for each axis of the result, the axis of the data that it is. Raises Refused
        if the result has no such axis, whatever its type says.
        """
        if self.of_data:
            return axes.index(self.axis) if self.axis in axes else None
        assert self.axis is not None
        if self.axis >= len(axes):
            raise unknown_shape(node)
        return axes[self.axis]


class Limit(Enum):
    """A condition on the affines that pass an operator."""

    NO_SHIFT = "no shift passes"
    NO_NEGATIVE_SCALE = "every scale must be at least zero"
    NO_ZERO_SCALE = "no scale may be zero"

    __hash__ = object.__hash__


Limits = tuple[tuple[Limit, Refusal | None], ...]
"""Conditions in the order of the checks, each with its refusal unless the general one fits."""


class ChannelMap(Record):
    """The way of channels between the data of an operator and one of its results.

    - `axis` is the axis on the other side, counted from the left.
    - `data_of_result` has the channel of the data that each channel of the result is. With
      `data_extent`, the number of channels of the data, others than these may be there, which are
      not read.
    - `result_of_data` has the channel of the result that each channel of the data is a part of.
      Without both, channel i is channel i.
    - `permutation` has, for each axis of the result, the axis of the data. `shapes` are the shapes
      of data and result, if an operator keeps all elements in row-major order. With one of the two,
      `axis` does not count.
    - `limits` are the conditions on scale and shift.
    - `factor` is the number that a shift of the data is multiplied by.
    - `fill` is the number in places without data, attribute `value` or input 2 of the node.
    - `results` is the number of results that hold channels of the data.
    """

    axis: int | None = None
    data_of_result: Array | None = None
    data_extent: int | None = None
    result_of_data: Array | None = None
    permutation: tuple[int, ...] | None = None
    shapes: tuple[tuple[Dim, ...], tuple[Dim, ...]] | None = None
    limits: Limits = ()
    factor: float | None = None
    fill: float | None = None
    results: int = 1

    def limited(self, *limits: tuple[Limit, Refusal | None]) -> ChannelMap:
        """Return the same way under other conditions."""
        return replace(self, limits=limits)


NO_SHIFT = (Limit.NO_SHIFT, None)
NO_NEGATIVE_SCALE = (Limit.NO_NEGATIVE_SCALE, None)


def unknown_shape(node: Node, value: Value | None = None, axis: int | None = None) -> Refused:
    """Return the refusal of an operator whose types do not tell where channels go.

    It names the first value of unknown rank, else the first extent that is unknown, behind the
    batch: of all operands and results, or of `value` along `axis`. An operand that is computed when
    the model runs, such as a target shape, decides it. If all is known, the channels do not fit.
    """
    values = [each for each in (*node.inputs, *node.outputs) if each is not None]
    found = values if value is None else [value]
    computed = next((each for each in node.inputs[1:] if _is_computed(each)), None)
    decisive = "" if computed is None else f"; operand {computed.source_name!r} decides it"
    for each in found:
        if shape_of(each.type) is None:
            detail = f"{node.description}: the rank of {each.source_name!r} is unknown{decisive}"
            return Refused("unknown_rank", detail)
    for each in found:
        shape = shape_of(each.type) or ()
        axes = range(1, len(shape)) if axis is None else range(axis, min(axis + 1, len(shape)))
        for at in axes:
            if not isinstance(shape[at], int):
                where = f"axis {at} of {each.source_name!r}, {each.type}"
                detail = f"{node.description}: the extent of {where}, is unknown{decisive}"
                return Refused("unknown_extent", detail)
    detail = f"{node.description}: its channels do not fit its sizes, or are too many"
    return Refused("channel_mismatch", detail)


def _is_computed(value: Value | None) -> bool:
    """Return whether a value has integers that are computed when the model runs."""
    dtype = None if value is None else dtype_of(value.type)
    return dtype is not None and dtype.kind == "int" and not is_constant(value)


def is_extent(shape: Shape, axis: int, extent: int | None) -> bool:
    """Return whether `shape` is known to have `extent` on `axis`."""
    return shape is not None and 0 <= axis < len(shape) and shape[axis] == extent


def check_first_result(node: Node, at: ChannelAxis) -> None:
    """Refuse channels of another result than the first."""
    if at.result != 0:
        name = node.outputs[at.result].source_name
        raise Refused(
            "unsupported_op",
            f"{node.description}: only its first result holds channels, and {name!r} is another",
        )


@states("s * identity(x) + t == identity(s * x + t)")
def same_channels(node: Node, at: ChannelAxis, constants: object) -> ChannelMap:
    """Identity: op(x) = x."""
    check_first_result(node, at)
    return ChannelMap(at.axis)


@states("s * op(x) + t == op(s * x + t) if s >= 0 and t == 0")
def rectified_channels(node: Node, at: ChannelAxis, constants: object) -> ChannelMap:
    """Relu, LeakyRelu, PRelu, Abs: op(s x) = s op(x) for s >= 0, whatever the slope."""
    return ChannelMap(at.axis, limits=(NO_SHIFT, NO_NEGATIVE_SCALE))


def block_channels(blocks: int, count: int, *, by_block: bool) -> Array:
    """Return the channel of each element of `blocks` blocks of `count` channels.

    The blocks follow each other, or are interleaved.
    """
    indices = np.arange(count)
    return np.tile(indices, blocks) if by_block else np.repeat(indices, blocks)
