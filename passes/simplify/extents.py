"""Evaluation of shape vectors element by element, some of which are constants.

The result of Shape, and of the integer arithmetic on it, is an array of pieces: numbers, symbols
and extents of values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...ir.evaluate import ConstantEvaluator
from ...ir.graph import Node, Value
from ...ir.ops import has_trait, op_info
from ...ir.ops.evaluation import NotEvaluable
from ...ir.ops.inference import input_shape, integer_of
from ...ir.ops.row import Evaluate, Inputs, Trait
from ...ir.record import ValueRecord
from ...ir.tensor import Array
from ...ir.types import BOOL, DTYPES, I64, Dim, dtype_of, shape_of

_MOVES = ("identity", "take", "concatenate", "strided_slice", "expand_dims", "squeeze", "reshape")
"""Operators that move elements and do not depend on their values."""

_MAX_ELEMENTS = 64
"""Elements of the longest vector that is taken for a shape."""


class Extent(ValueRecord):
    """The extent of `value` along `axis`, where neither a number nor a symbol is known."""

    value: Value
    axis: int


Piece = int | str | Extent | None
"""One element of a shape: a number, a symbol of the model, the extent of a value, or None if
unknown.

A comparison of pieces has True, False, or None if unknown.
"""


class ShapeEvaluator(ConstantEvaluator):
    """A constant evaluator that also evaluates single elements of shapes."""

    def __init__(self, beside: ConstantEvaluator | None = None) -> None:
        super().__init__(beside=beside)
        self._pieces: dict[Value, Array | None] = {}

    def forget_unknown(self) -> None:
        super().forget_unknown()
        self._pieces = {}

    def pieces(self, value: Value | None) -> Array | None:
        """Return the pieces of an i32 or i64 scalar or vector, None if `value` is neither."""
        if value is None or not _may_be_shape(value):
            return None
        stack = [value]
        while stack:
            top = stack[-1]
            if top in self._pieces:
                stack.pop()
                continue
            missing = [v for v in self._operands(top) if v not in self._pieces]
            if missing:
                stack.extend(missing)
                continue
            self._pieces[stack.pop()] = self._compute(top)
        return self._pieces[value]

    def extents(self, value: Value | None) -> tuple[Dim, ...] | None:
        """Return the elements of a vector of which some are numbers or symbols that types have."""
        pieces = self.pieces(value)
        if pieces is None or pieces.ndim != 1:
            return None
        return tuple(_extent_of(piece) for piece in pieces)

    def _operands(self, value: Value) -> list[Value]:
        """Return the operands that determine the pieces of `value`."""
        node = value.node
        if node is None or len(node.outputs) != 1 or not _may_be_shape(value):
            return []
        if node.op in _MOVES or node.op in ("cast", "cast_like"):
            count = len(node.inputs) if node.op == "concatenate" else 1
        else:
            function = _ARITHMETIC.get(node.op) or _CHOICE.get(node.op)
            count = 0 if function is None else len(node.inputs)
        return [operand for operand in node.inputs[:count] if operand is not None]

    def _compute(self, value: Value) -> Array | None:
        node = value.node
        if node is None or not _may_be_shape(value):
            return None
        if node.op == "shape_of":
            return shape_pieces(node)
        parts = [self._pieces[operand] for operand in self._operands(value)]
        if not parts or any(part is None for part in parts):
            return self._constant_pieces(value)
        if node.op in ("cast", "cast_like"):
            return _cast(value, parts[0])
        if node.op in _ARITHMETIC:
            return _combined(node, parts[0], parts[1])
        if node.op in _CHOICE:
            return _elementwise(_CHOICE[node.op], parts)
        return self._moved_pieces(node, parts)

    def _constant_pieces(self, value: Value) -> Array | None:
        """Return the elements of a small constant, None for any other value."""
        array = self.array(value)
        is_small = array is not None and array.size <= _MAX_ELEMENTS and array.ndim <= 1
        return array.astype(object) if array is not None and is_small else None

    def _moved_pieces(self, node: Node, parts: Sequence[Array | None]) -> Array | None:
        """Return the result of an operator that moves elements, by constant operands."""
        info = op_info(node.op)
        assert info is not None and info.evaluate is not None
        others = node.inputs[len(parts) :]
        rest = [self.array(operand) for operand in others]
        if any(
            array is None and operand is not None
            for array, operand in zip(rest, others, strict=True)
        ):
            return None
        return _moved(node, info.evaluate, [*parts, *rest])


def _cast(value: Value, pieces: Array | None) -> Array | None:
    """Return `pieces` cast to the integers of `value`, None if a number would wrap."""
    dtype = dtype_of(value.type)
    if pieces is None or dtype is None or dtype.kind != "int":
        return None
    bound = 1 << (dtype.bits - 1)
    fits = all(-bound <= item < bound for item in pieces.ravel() if isinstance(item, int))
    return pieces if fits else None


def _extent_of(piece: Piece) -> Dim:
    """Return an element as the extent of a type, None for a negative one and where none has it."""
    if isinstance(piece, str):
        return piece
    return piece if isinstance(piece, int) and piece >= 0 else None


def _may_be_shape(value: Value) -> bool:
    dtype, shape = dtype_of(value.type), shape_of(value.type)
    return (dtype is I64 or dtype is BOOL or dtype is DTYPES["i32"]) and (
        shape is None or len(shape) <= 1
    )


def shape_pieces(node: Node) -> Array | None:
    """Return the elements of the result of a `shape_of`, if the rank of its data is known."""
    dims = input_shape(node)
    if dims is None:
        return None
    end = node.attrs.get("end")
    pieces = [piece_of(node.operand(), axis) for axis in range(len(dims))]
    return _objects(pieces[integer_of(node, "start", 0) : end if isinstance(end, int) else None])


def piece_of(value: Value, axis: int) -> Piece:
    """Return the extent of `value` along `axis`: a number or symbol of its type, or an Extent."""
    dims = shape_of(value.type)
    known: Dim = None if dims is None else dims[axis]
    if known is not None or dims is None:
        return known if known is not None else Extent(value, axis)
    for _ in range(_MAX_CHAIN):
        source = data_of_shape(value)
        if source is None:
            break
        value = source
    return Extent(value, axis)


_MAX_CHAIN = 32
"""Operators in a row through which an extent is followed, so that equal extents have one name."""


def data_of_shape(value: Value) -> Value | None:
    """Return an operand that a value of known rank certainly has the shape of, or None."""
    node, dims = value.node, shape_of(value.type)
    if node is None or dims is None or len(node.outputs) != 1 or not node.inputs:
        return None
    if has_trait(node, Trait.ELEMENTWISE):
        sources = list(node.inputs[:1])
    elif has_trait(node, Trait.BROADCASTS) and "axis" not in node.attrs:
        sources = [operand for operand in node.inputs if operand is None or not _is_one(operand)]
    else:
        return None
    source = sources[0] if len(sources) == 1 else None
    shape = None if source is None else shape_of(source.type)
    return source if shape is not None and len(shape) == len(dims) else None


def _is_one(value: Value) -> bool:
    """Return whether `value` has one element, and at most one axis."""
    return shape_of(value.type) in ((), (1,))


def _objects(items: list[Piece]) -> Array:
    array: Array = np.empty(len(items), object)
    array[:] = items
    return array


def _moved(node: Node, evaluate: Evaluate, inputs: Inputs) -> Array | None:
    try:
        (result,) = evaluate(node, inputs)
    except (NotEvaluable, ValueError, IndexError, TypeError):
        return None
    array = np.asarray(result, object)
    return array if array.ndim <= 1 and array.size <= _MAX_ELEMENTS else None


def _product(a: Piece, b: Piece) -> Piece:
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    return a if b == 1 else b if a == 1 else None


def _sum(a: Piece, b: Piece) -> Piece:
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return a if b == 0 else b if a == 0 else None


def _difference(a: Piece, b: Piece) -> Piece:
    if isinstance(a, int) and isinstance(b, int):
        return a - b
    return a if b == 0 else None


def _quotient(a: Piece, b: Piece) -> Piece:
    if isinstance(a, int) and isinstance(b, int):
        return a // b if a >= 0 and b > 0 else None
    return a if b == 1 else None


_ARITHMETIC = {"multiply": _product, "add": _sum, "subtract": _difference, "divide": _quotient}


def _equal(a: Piece, b: Piece) -> bool | None:
    """Compare two elements; no extent is negative."""
    if a is None or b is None:
        return None
    if a == b:
        return True
    numbers = [item for item in (a, b) if isinstance(item, int)]
    return False if len(numbers) == 2 or (numbers and numbers[0] < 0) else None


def _chosen(condition: Piece, a: Piece, b: Piece) -> Piece:
    return None if condition is None else a if condition else b


_CHOICE: dict[str, Callable[..., Piece]] = {"equal": _equal, "where": _chosen}
"""Operators by which torch replaces the -1 in the target of an Expand."""


def _elementwise(function: Callable[..., Piece], parts: Sequence[Array | None]) -> Array | None:
    """Return `function` of corresponding elements, None if the shapes do not broadcast."""
    try:
        return np.asarray(np.frompyfunc(function, len(parts), 1)(*parts), object)
    except ValueError:
        return None


def _combined(node: Node, a: Array | None, b: Array | None) -> Array | None:
    """Return the elementwise arithmetic of `node` on pieces, unless i32 may overflow."""
    assert a is not None and b is not None
    result = None if "axis" in node.attrs else _elementwise(_ARITHMETIC[node.op], [a, b])
    if result is None:
        return None
    overflows = any(isinstance(item, int) and abs(item) >= 1 << 31 for item in result.ravel())
    return None if overflows else result
