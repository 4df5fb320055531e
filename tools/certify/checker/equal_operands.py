"""Operators whose result is an operand: the table EQUAL_OPERANDS, each with its condition."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto

from .affine_operators import fitted
from .clamps import without_effect
from .operators import SIMPLE_REDUCTIONS
from .parts import rejoined
from .program import Array, Datum, Operation, Same, Unproved, product, static
from .result_extents import ShapeOf
from .settled import is_settled
from .slices import END

Condition = Callable[[Operation], int]
"""Returns the index of the operand that is equal to the result. Raises Unproved."""


def _refuse_unless(condition: bool, reason: str) -> int:
    if not condition:
        raise Unproved(reason)
    return 0


def _neutral(number: float, *, first: bool, negative_zero: bool | None = None) -> Condition:
    """Return the condition of x op c = x for a constant c of one number and no more axes.

    x + 0.0 is 0.0 where x is -0.0: all else is equal, and results that differ in the sign of zero
    are equal numbers.
    """

    def condition(operation: Operation) -> int:
        for index in (1, 0) if first else (1,):
            constant, data = operation.operand(index), operation.operand(1 - index)
            if (
                constant is None
                or data is None
                or constant.stored is None
                or data.stored is not None
            ):
                continue
            array = _within(operation, data, constant)
            if array is not None and (array == number).all():
                return 1 - index
        raise Unproved(f"no operand is {number:g}, or it may enlarge the result")

    return condition


def _within(operation: Operation, data: Datum, constant: Datum) -> Array | None:
    if data.extents is None:
        array = None if constant.stored is None else constant.stored.array
        columns = _columns(data) if operation.version >= 7 else 0
        fits = array is not None and (
            array.ndim == 0 or (columns and array.shape in ((1,), (columns,)))
        )
        return array if fits else None
    return None if constant.stored is None else fitted(operation, data, constant.stored.exact)


def _columns(data: Datum) -> int:
    """Return the last extent of a product with a matrix, of any rank; else 0."""
    producer = data.producer
    if (
        producer is not None
        and producer.kind == "Cast"
        and not producer.domain
        and producer.inputs[0] is not None
    ):
        return _columns(producer.inputs[0])
    if producer is None or producer.domain or producer.kind != "MatMul":
        matrix = None
    else:
        matrix = producer.operand(1)
    extents = None if matrix is None else static(matrix.extents)
    return extents[1] if extents is not None and len(extents) == 2 else 0


def trains(operation: Operation) -> bool:
    """Return whether an operation may be in training mode, and a Dropout random."""
    if operation.kind != "Dropout":
        return bool(operation.attributes.get("training_mode"))
    if operation.version < 7:
        return (
            not operation.attributes.get("is_test", 0)
            and operation.attributes.get("ratio", 0.5) != 0.0
        )
    ratio, training = operation.operand(1), operation.operand(2)
    return training is not None and not _is_zeros(training) and not _is_zeros(ratio)


def _is_zeros(value: Datum | None) -> bool:
    return value is not None and value.stored is not None and not value.stored.array.any()


def _first(_operation: Operation) -> int:
    return 0


def _dropout(operation: Operation) -> int:
    return _refuse_unless(not trains(operation), "a Dropout that may train")


def _cast(operation: Operation) -> int:
    data, other = operation.operand(0), operation.operand(1)  # a CastLike has the second one
    to = operation.attributes.get("to") if other is None else other.kind
    return _refuse_unless(
        data is not None and data.kind != 0 and data.kind == to,
        "the element type changes or is unknown",
    )


def _same_extents(operation: Operation) -> int:
    """Allow movements such as Reshape that keep extents: they keep the elements' order."""
    data, result = operation.operand(0), operation.outputs[0]
    known = None if data is None else static(data.extents)
    return _refuse_unless(
        known is not None and known == static(result.extents), "the extents change or are unknown"
    )


def _slice(operation: Operation) -> int:
    starts, ends = operation.integers("starts", 1), operation.integers("ends", 2)
    steps = operation.integers("steps", 4)
    whole = (
        starts is not None
        and ends is not None
        and not any(starts)
        and min(ends, default=END) >= END
        and (
            operation.operand(4) is None or (steps is not None and all(step == 1 for step in steps))
        )
    )
    if whole:
        return 0
    forward = operation.operand(4) is None or (
        steps is not None and all(step > 0 for step in steps)
    )
    return _same_extents(operation) if forward else _refuse_unless(False, "a slice backward")


def _pad(operation: Operation) -> int:
    pads = operation.integers("pads" if operation.version > 1 else "paddings", 1)
    return _refuse_unless(pads is not None and not any(pads), "something is padded")


def _expand(operation: Operation) -> int:
    shape = operation.constant(1)
    data = operation.operand(0)
    if shape is not None and data is not None and data.rank is not None and shape.size <= data.rank:
        if (shape == 1).all():
            return 0
    return _same_extents(operation)


def _single(operation: Operation) -> int:
    return _refuse_unless(len(operation.inputs) == 1, "there are several operands")


def _tile(operation: Operation) -> int:
    repeats = operation.constant(1)
    return _refuse_unless(
        repeats is not None and bool((repeats == 1).all()), "something is repeated"
    )


def _gather(operation: Operation) -> int:
    """Gather of all positions of an axis, in their order."""
    data, indices = operation.operand(0), operation.constant(1)
    axis = int(operation.attributes.get("axis", 0))
    extent = None if data is None or data.extents is None else data.extents[axis]
    if (
        not isinstance(extent, int)
        or indices is None
        or indices.ndim != 1
        or indices.size != extent
    ):
        raise Unproved("it takes another number of positions, or an unknown one")
    places = np.where(indices < 0, indices + extent, indices)
    return _refuse_unless(np.array_equal(places, np.arange(extent)), "it takes other positions")


def _resize(operation: Operation) -> int:
    """Allow a Resize by factors of one, by which every position is its own."""
    data, result = operation.operand(0), operation.outputs[0]
    if operation.attributes.get("coordinate_transformation_mode", b"").startswith(b"tf_"):
        raise Unproved("positions are moved, or have a value of their own outside")
    if operation.kind == "Upsample" and operation.version < 9:
        return _refuse_unless(
            set(operation.attributes.get("scales", ())) == {1.0}, "a factor is not 1"
        )
    given = operation.operand(2 if operation.version >= 11 and operation.kind == "Resize" else 1)
    if given is not None and given.extents != (0,):
        return _refuse_unless(
            given.stored is not None and bool((given.stored.array == 1).all()), "a factor is not 1"
        )
    known = None if data is None else static(data.extents)
    return _refuse_unless(
        known is not None and known == static(result.extents), "the extents change or are unknown"
    )


def _split(operation: Operation) -> int:
    data = operation.operand(0)
    sizes, extents = operation.integers("split", 1), None if data is None else data.extents
    axis = int(operation.attributes.get("axis", 0))
    whole = sizes is None or (extents is not None and sizes == [extents[axis]])
    return _refuse_unless(len(operation.outputs) == 1 and whole, "it cuts the data")


def _where(operation: Operation) -> int:
    """Allow a condition of ones if the operand taken has the result's extents."""
    condition, result = operation.constant(0), operation.outputs[0]
    if condition is None or not condition.size or condition.any() != condition.all():
        raise Unproved("the condition is not constant, or differs")
    taken = 1 if condition.all() else 2
    data = operation.operand(taken)
    if (
        data is None
        or data.extents is None
        or result.extents is None
        or len(data.extents) != len(result.extents)
    ):
        raise Unproved("the extents are unknown")
    pairs = zip(data.extents, result.extents, strict=True)
    _refuse_unless(
        all(a is not None and a == b for a, b in pairs), "the result is larger than the operand"
    )
    return taken


def is_zero(value: Datum | None, depth: int = 0) -> bool:
    """Return whether all elements of a value are zero, whatever its extents are."""
    if value is None or depth > 8:
        return False
    if value.stored is not None:
        return value.is_float and not value.stored.array.any()
    operation = value.producer
    if operation is None or operation.domain:
        return False
    if operation.kind == "ConstantOfShape":
        filled = operation.attributes.get("value")
        return filled is None or not filled.array.any()
    moves = (
        *("Identity", "Expand", "Reshape", "Tile", "Slice", "Gather"),
        *("Unsqueeze", "Squeeze", "Transpose", "Cast"),
    )
    if operation.kind == "Concat":
        return all(is_zero(each, depth + 1) for each in operation.inputs)
    return operation.kind in moves and is_zero(operation.operand(0), depth + 1)


_WIDER: dict[int, tuple[int, ...]] = {
    TensorProto.BOOL: (2, 3, 4, 5, 6, 7, 12, 13, 10, 16, 1, 11),
    TensorProto.UINT8: (4, 5, 6, 7, 12, 13, 10, 16, 1, 11),
    TensorProto.INT8: (5, 6, 7, 10, 16, 1, 11),
    TensorProto.UINT16: (6, 7, 12, 13, 1, 11),
    TensorProto.INT16: (6, 7, 1, 11),
    TensorProto.UINT32: (7, 13, 11),
    TensorProto.INT32: (7, 11),
    TensorProto.FLOAT16: (1, 11),
    TensorProto.BFLOAT16: (1, 11),
    TensorProto.FLOAT: (11,),
}
"""The types that have every number of a type."""

_NUMBERS = {*_WIDER, *(each for wider in _WIDER.values() for each in wider)}


ZEROS = {
    "RNN": (5,),
    "GRU": (5,),
    "LSTM": (5, 6),
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm"), (2,)),
}
"""The operands that are zeros where they are absent: states to begin with, and biases."""


def normal_operands(operation: Operation) -> list[Datum | None]:
    """Return the operands of an operation, or others with which it has the same results.

    A state or bias of zeros is absent. A Cast to numbers reads the value before Casts to types that
    have every number of it.
    """
    found = list(operation.inputs)
    if operation.domain:
        return found
    for i in ZEROS.get(operation.kind, ()):
        if is_zero(operation.operand(i)) and np.isfinite(operation.attributes.get("beta", 1.0)):
            found[i] = None
    if (
        operation.kind == "Cast"
        and set(operation.attributes) == {"to"}
        and operation.attributes["to"] in _NUMBERS
    ):
        found[0] = _origin(found[0], operation.attributes["to"])
    return found


def _origin(data: Datum | None, to: int) -> Datum | None:
    """Return the value before Casts.

    A float beyond the integers of a type has no Cast to it that ONNX defines.
    """
    for _ in range(16):
        before = None if data is None else data.producer
        inner = None if before is None else before.operand(0)
        if (
            data is None
            or before is None
            or inner is None
            or before.kind != "Cast"
            or before.domain
        ):
            break
        if data.kind not in _WIDER.get(inner.kind, ()) or set(before.attributes) != {"to"}:
            break
        if (
            data.is_float
            and not inner.is_float
            and to != inner.kind
            and to not in _WIDER[inner.kind]
        ):
            break
        data = inner
    return data


EQUAL_OPERANDS: dict[str, Condition] = {
    "Dropout": _dropout,
    **dict.fromkeys(("Cast", "CastLike"), _cast),
    "Expand": _expand,
    "Slice": _slice,
    "Split": _split,
    "Where": _where,
    "Pad": _pad,
    "Tile": _tile,
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    "Gather": _gather,
    **dict.fromkeys(("Concat", "Sum", "Max", "Min", "Mean"), _single),
    "Add": _neutral(0.0, first=True),
    "Sub": _neutral(0.0, first=False),
    "Mul": _neutral(1.0, first=True),
    "Div": _neutral(1.0, first=False),
    "Pow": _neutral(1.0, first=False),
}
"""The condition by ONNX operator of the default domain."""


REPEATED = frozenset(("And", "Or", "Max", "Min"))
"""Operators that leave a value as it is of which all operands are this value."""

MAX_MASK = 1 << 20
"""Most elements of a mask."""

INVOLUTIONS = frozenset(("Not", "Neg"))


def _by_operands(operation: Operation, same: Same, shape_of: ShapeOf) -> Datum | None:
    """Return the value that the result is, by equal operands or the operators behind them."""
    data = operation.operand(0)
    if operation.domain or data is None:
        return None
    if operation.kind in REPEATED and all(
        each is not None and same(each) is same(data) for each in operation.inputs
    ):
        return data
    if operation.kind == "Where":
        chosen, other = operation.operand(1), operation.operand(2)
        extents = operation.outputs[0].extents
        is_whole = (
            extents is not None
            and None not in extents
            and chosen is not None
            and chosen.extents == extents
        )
        if is_whole and other is not None and chosen is not None and same(chosen) is same(other):
            return chosen
        return None
    if operation.kind == "ScatterND":
        return _all_rows(operation, same, shape_of)
    if operation.kind in INVOLUTIONS:
        before = same(data).producer
        if before is not None and (before.kind, before.domain) == (operation.kind, ""):
            return before.operand(0)
        return None
    return data if is_settled(operation, same) or _reduces_nothing(operation) else None


def _all_rows(operation: Operation, same: Same, shape_of: ShapeOf) -> Datum | None:
    """Return what a ScatterND writes if it writes every row of its data, each in its place."""
    data, places = operation.operand(0), operation.operand(1)
    if operation.attributes.get("reduction", b"none") != b"none" or data is None or places is None:
        return None
    rows, listed = shape_of(data), shape_of(places)
    if not rows or listed is None or tuple(listed) != (rows[0], 1):
        return None
    given = operation.constant(1)
    if given is not None:
        is_whole = np.array_equal(given.reshape(-1), np.arange(len(given)))
        return operation.operand(2) if is_whole else None
    row = same(places).producer
    numbers = row.operand(0) if row is not None and row.kind == "Unsqueeze" else None
    counted = None if numbers is None else same(numbers).producer
    if counted is None or counted.domain or counted.kind != "Range":
        return None
    start, step = counted.constant(0), counted.constant(2)
    is_whole = start is not None and step is not None and start == 0 and step == 1
    return operation.operand(2) if is_whole else None


def _reduces_nothing(operation: Operation) -> bool:
    """Return whether a reduction has no axes, and none stands for no one."""
    keeps = operation.kind in SIMPLE_REDUCTIONS and operation.attributes.get("noop_with_empty_axes")
    if not keeps:
        return False
    axes = operation.integers("axes", 1)
    return not axes and (axes is not None or operation.operand(1) is None)


def constant_mask(operation: Operation) -> Array | None:
    """Return the mask of a Dropout that drops nothing, None if unknown or before opset 12."""
    data = operation.operand(0)
    extents = None if data is None else static(data.extents)
    if (
        operation.kind != "Dropout"
        or operation.domain
        or operation.version < 12
        or trains(operation)
    ):
        return None
    return None if extents is None or product(extents) > MAX_MASK else np.ones(extents, np.bool_)


def equal_operand(operation: Operation, same: Same, shape_of: ShapeOf) -> Datum:
    """Return the operand that the first result equals; others are unread. Raises Unproved.

    `same` may give another value that is equal, and `shape_of` the extents of one as expressions.
    """
    found = _by_operands(operation, same, shape_of)
    if found is not None:
        return found
    if (
        operation.kind == "Concat"
        and not operation.domain
        and operation.outputs[0].rank
        and len(operation.inputs) > 1
    ):
        axis = int(operation.attributes.get("axis", 0)) % operation.outputs[0].rank
        whole = rejoined([each for each in operation.inputs if each is not None], axis)
        if len(whole) == 1:
            return whole[0]
    if operation.kind == "Cast" and not operation.domain:
        origin = normal_operands(operation)[0]
        if origin is not None and origin.kind and origin.kind == operation.attributes.get("to"):
            return origin
    condition = EQUAL_OPERANDS.get(operation.kind) if not operation.domain else None
    if operation.kind in ("Relu", "Clip") and without_effect(operation, same):
        condition = _first
    if condition is None:
        raise Unproved(f"no identity makes {operation.kind} equal to an operand")
    if any(each.readers for each in operation.outputs[1:]) and constant_mask(operation) is None:
        raise Unproved("another result is read")
    found = operation.operand(condition(operation))
    if found is None:
        raise Unproved("the operand is absent")
    return found
