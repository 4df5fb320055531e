"""Operators that keep some numbers: Floor of integers, Abs of positive ones, Sign of signs.

Rounding keeps whole numbers, infinities and NaN, and so does Sign NaN, as far as signs of zeros are
not compared.
"""

from __future__ import annotations

from collections.abc import Callable

from onnx import TensorProto

from .program import FLOATS, Datum, Operation

WHOLE, SIGN, POSITIVE = "whole", "sign", "positive"
"""What is known of all elements besides NaN: whole or infinite; -1, 0 or 1; not below zero."""

SETTLED = {"Floor": WHOLE, "Ceil": WHOLE, "Round": WHOLE, "Abs": POSITIVE, "Sign": SIGN}
"""The operators with the kind of numbers that they leave as they are."""

_ALL = frozenset((WHOLE, SIGN, POSITIVE))
_KEPT = {
    **dict.fromkeys(("Floor", "Ceil", "Round", "Relu", "Identity"), _ALL),
    **dict.fromkeys(("Abs", "Neg", "Sign"), _ALL - {POSITIVE}),
}
"""What is known of a result where it is known of the data.

Abs keeps the least integer, of which Sign makes -1.
"""

_MADE = {
    **dict.fromkeys(("Floor", "Ceil", "Round"), frozenset((WHOLE,))),
    "Sign": frozenset((WHOLE, SIGN)),
    "Abs": frozenset((POSITIVE,)),
}
"""What an operator makes of all numbers."""

_UNSIGNED = frozenset(
    (TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64)
)
_SIGNED = frozenset((TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64))

MAX_ROW = 32
"""Most operators in a row."""


def is_settled(operation: Operation, same: Callable[[Datum], Datum]) -> bool:
    """Return whether an operation of the table leaves its data as they are."""
    data, needed = operation.operand(0), SETTLED.get(operation.kind)
    return data is not None and needed is not None and needed in _known_of(data, same)


def _known_of(value: Datum, same: Callable[[Datum], Datum]) -> frozenset[str]:
    row: list[Operation] = []
    for _ in range(MAX_ROW):
        value = same(value)
        producer = value.producer
        data = None if producer is None or producer.domain else producer.operand(0)
        if producer is None or data is None or producer.kind not in _KEPT:
            break
        row.append(producer)
        value = data
    found = frozenset((POSITIVE,)) if value.kind in _UNSIGNED else frozenset[str]()
    if value.producer is not None and not value.producer.domain:
        found |= _made(value.producer)
    for each in reversed(row):
        found = (found & _KEPT[each.kind]) | _made(each)
    return found


def _made(operation: Operation) -> frozenset[str]:
    data, result = operation.operand(0), operation.outputs[0]
    if operation.kind == "Cast" and data is not None:
        if result.kind not in FLOATS | _SIGNED | _UNSIGNED:
            return frozenset()
        if data.kind == TensorProto.BOOL:
            return _ALL
        return frozenset((WHOLE,)) if data.kind in _SIGNED | _UNSIGNED else frozenset()
    return _MADE.get(operation.kind, frozenset())
