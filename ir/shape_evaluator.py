"""Evaluation of shape vectors element by element, some of which are constants.

The result of Shape, and of the integer arithmetic on it, is an array of pieces: ir/extents.py has
their normal form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from .evaluate import ConstantEvaluator
from .extents import (
    Extent,
    Formula,
    Piece,
    are_equal,
    atoms,
    difference,
    is_less,
    least,
    maximum,
    minimum,
    product,
    remainder,
    total,
    truncated_quotient,
)
from .float_ratios import FUNCTIONS, Ratio, bits_of, ratio_of, ratio_of_float, truncated
from .graph import Graph, Node, Value
from .loops import counter_operands, runs_of
from .ops import has_trait, is_legal, op_info
from .ops.evaluation import MAX_BYTES, NotEvaluable
from .ops.inference import input_shape, integer_of
from .ops.row import Evaluate, Inputs, Trait
from .ops.weighted import transposed_extents
from .tensor import Array
from .types import BOOL, DTYPES, I64, Dim, TensorType, dtype_of, shape_of

_MOVES = (
    *("identity", "take", "concatenate", "strided_slice", "expand_dims", "squeeze", "reshape"),
    *("broadcast_to", "transpose"),
)
"""Operators that move elements and do not depend on their values."""

MAX_FLOATS = 8
"""Operators on floats between two Casts."""

_MAX_ELEMENTS = 64
"""Elements of the longest vector that is taken for a shape."""

_MAX_RANK = 2
"""Axes of an array that is taken for a shape: torch turns the pads of a Pad around in a matrix."""


class ShapeEvaluator(ConstantEvaluator):
    """A constant evaluator that also evaluates single elements of shapes."""

    def __init__(
        self, max_bytes: int = MAX_BYTES, *, beside: ConstantEvaluator | None = None
    ) -> None:
        super().__init__(max_bytes, beside=beside)
        self._pieces: dict[Value, Array | None] = {}
        self._graph_extents: dict[Graph, set[Formula]] = {}
        """The formulas among the extents of the values of a graph, as far as it was typed."""
        self.has_computed_pad_axes: bool = (
            isinstance(beside, ShapeEvaluator) and beside.has_computed_pad_axes
        )
        """Whether a Pad computes its axes. onnx gives its result no axes, and refuses a model that
        reads a part of its Shape by start and end."""

    def reset(self) -> None:
        super().reset()
        self._pieces = {}
        self._graph_extents = {}

    def forget(self, value: Value) -> None:
        super().forget(value)
        self._pieces.pop(value, None)

    def forget_unknown(self) -> None:
        super().forget_unknown()
        self._pieces = {}
        self._graph_extents = {}

    def forget_pieces(self, value: Value) -> None:
        """Forget what is known of a value that has another shape now."""
        self._pieces.pop(value, None)

    def may_read_parts(self, node: Node) -> bool:
        """Return whether a Shape with start and end may be written beside `node`."""
        return is_legal("shape_of", "part", node) and not self.has_computed_pad_axes

    def pieces(self, value: Value | None) -> Array | None:
        """Return the pieces of an i32 or i64 array of rank 2 at most, None of any other value."""
        if value is None:
            return None
        known = self._pieces
        if value in known:
            return known[value]
        if not _may_be_shape(value):
            return None
        stack = [value]
        while stack:
            top = stack[-1]
            if top in known:
                stack.pop()
                continue
            if not _may_be_shape(top):
                known[stack.pop()] = None
                continue
            operands = self._operands(top)
            missing = [v for v in operands if v not in known]
            if missing:
                stack.extend(missing)
                continue
            known[stack.pop()] = self._compute(top, operands)
        return known[value]

    def extents(self, value: Value | None) -> tuple[Dim, ...] | None:
        """Return the elements of a scalar or vector as far as types can have them."""
        pieces = self.pieces(value)
        if pieces is None or pieces.ndim > 1:
            return None
        return tuple(None if _is_of_value(piece) else piece for piece in pieces.ravel())

    def _operands(self, value: Value) -> list[Value]:
        """Return the operands that determine the pieces of `value`, which may be a shape."""
        node = value.node
        if node is not None and node.op == "::Loop":
            return counter_operands(value)
        if node is None or len(node.outputs) != 1:
            return []
        if node.op not in _MOVES and len(shape_of(value.type) or ()) > 1:
            return []  # nothing is computed of the elements of a matrix
        if node.op == "::If":
            return [branch.outputs[0] for branch in node.regions if len(branch.outputs) == 1]
        if node.op in _FIRST:
            count = 1
        else:
            count = len(node.inputs) if node.op in _ELEMENTWISE or node.op == "concatenate" else 0
        return [operand for operand in node.inputs[:count] if operand is not None]

    def _compute(self, value: Value, operands: Sequence[Value]) -> Array | None:
        """Return the pieces of `value`, which may be a shape; those of `operands` are known."""
        node = value.node
        if node is None:
            return None
        if node.op == "shape_of":
            return shape_pieces(node)
        if node.op == "ndarray_size":
            return _size(node)
        parts = [self._pieces[operand] for operand in operands]
        if node.op in ("cast", "cast_like") and bits_of(node.operand()):
            ratios = self._ratios(node.operand(), MAX_FLOATS)
            found = None if ratios is None else _elementwise(truncated, [ratios])
        elif not parts or any(part is None for part in parts):
            return self._constant_pieces(value)
        else:
            found = self._evaluated(node, parts)
        return found if found is not None and self._fits(found, value) else None

    def _fits(self, pieces: Array, value: Value) -> bool:
        """Return whether `pieces` are elements of `value` that did not wrap."""
        dtype = dtype_of(value.type)
        if dtype is None or dtype.kind not in ("int", "bool"):
            return False
        kinds = {True: bool, False: int}
        limit = 1 << (dtype.bits - 1)
        for piece in pieces.ravel():
            if isinstance(piece, int):
                if not isinstance(piece, kinds[dtype is BOOL]):
                    return False
                if dtype is not BOOL and not -limit <= piece < limit:
                    return False
            elif isinstance(piece, Formula) and dtype is not I64 and not isinstance(piece, Extent):
                low = least(piece)
                if low is None or low < -limit or not self._is_below_extent(piece, value.graph):
                    return False
        return True

    def _is_below_extent(self, piece: Piece, graph: Graph) -> bool:
        """Return whether a value of a graph has an extent that a number never exceeds.

        Where the number would be 2^31, that extent would be, too, and no run has such a value.
        """
        if graph not in self._graph_extents:
            results = (result for node in graph.operators() for result in node.outputs)
            extents = (extent for result in results for extent in extents_of(result))
            self._graph_extents[graph] = {each for each in extents if isinstance(each, Formula)}
        gaps = (least(difference(extent, piece)) for extent in self._graph_extents[graph])
        return any(gap is not None and gap >= 0 for gap in gaps)

    def _evaluated(self, node: Node, parts: list[Array | None]) -> Array | None:
        if node.op in ("cast", "cast_like"):
            return parts[0]
        if node.op == "::If":
            return _common(parts, node)
        if node.op == "::Loop":
            return self._counted(node, *parts)
        if node.op in _ELEMENTWISE:
            if "axis" in node.attrs or (node.op == "clip" and node["min"] is None):
                return None
            return _elementwise(_ELEMENTWISE[node.op], parts)
        if node.op in _REDUCTIONS:
            return self._reduced(node, parts[0])
        return self._moved_pieces(node, parts)

    def _counted(
        self, node: Node, start: Array | None, step: Array | None, *_: Array | None
    ) -> Array | None:
        """Return the number that a counter starts with and the steps of all runs of a Loop."""
        if start is None or step is None:
            return None
        if any(_is_inside(atom, node) for piece in step.flat for atom in atoms(piece)):
            return None
        runs = runs_of(node, self)
        found = _elementwise(lambda first, each: total(first, product(runs, each)), [start, step])
        # The first step may add axes, which the counter has not if the Loop never runs.
        return found if found is not None and found.shape == start.shape else None

    def _reduced(self, node: Node, pieces: Array | None) -> Array | None:
        """Return the sum or product of all elements of a vector."""
        if pieces is None or pieces.ndim != 1 or node.attrs.get("noop_with_empty_axes"):
            return None
        if not pieces.size:  # ONNX defines reductions of nothing only from opset 13 on
            return None
        if node.input(1) is not None and self.array(node.input(1)) is None:
            return None
        found = np.empty((1,) if integer_of(node, "keepdims", 1) else (), object)
        found[...] = reduce(_REDUCTIONS[node.op], pieces.tolist())
        return found

    def _ratios(self, value: Value, depth: int) -> Array | None:
        """Return the elements of a float scalar or vector that is computed of extents."""
        node, bits, shape = value.node, bits_of(value), shape_of(value.type)
        if node is None or not bits or depth == 0 or shape is None or len(shape) > 1:
            return None
        array = self.array(value)
        if array is not None:
            return _elementwise(ratio_of_float, [array]) if array.size <= _MAX_ELEMENTS else None
        if node.op == "cast":
            function, parts = ratio_of, [self.pieces(node.operand())]
        elif node.op in FUNCTIONS and "axis" not in node.attrs:
            function = FUNCTIONS[node.op]
            parts = [self._ratios(operand, depth - 1) for operand in node.inputs if operand]
        else:
            return None
        if any(part is None for part in parts):
            return None

        def rounded(*items: Any) -> Ratio | None:
            found = None if None in items else function(*items)
            return None if found is None else found.within(bits)

        return _elementwise(rounded, parts)

    def _constant_pieces(self, value: Value) -> Array | None:
        """Return the elements of a small constant, None for any other value."""
        array = self.array(value)
        is_small = array is not None and array.size <= _MAX_ELEMENTS and array.ndim <= _MAX_RANK
        return array.astype(object) if array is not None and is_small else None

    def _moved_pieces(self, node: Node, parts: Sequence[Array | None]) -> Array | None:
        """Return the result of an operator that moves elements, by constant operands."""
        info = op_info(node.op)
        assert info is not None and info.evaluate is not None
        others = node.inputs[len(parts) :]
        rest = [self.array(operand) for operand in others]
        # Absent operands stay absent, and the others have to be constant.
        if [array is None for array in rest] != [operand is None for operand in others]:
            return None
        return _moved(node, info.evaluate, [*parts, *rest])


def _common(parts: Sequence[Array | None], node: Node) -> Array | None:
    """Return the elements that both branches of an If give, None for those that differ."""
    if len(parts) != 2 or parts[0] is None or parts[1] is None or parts[0].shape != parts[1].shape:
        return None
    found = parts[0].copy()
    for i, (a, b) in enumerate(zip(parts[0].flat, parts[1].flat, strict=True)):
        if a != b or any(_is_inside(atom, node) for atom in atoms(a)):
            found.flat[i] = None
    return found


def _is_inside(atom: object, node: Node) -> bool:
    """Return whether an atom is the extent of a value in a body of `node`."""
    inside = isinstance(atom, Extent) and isinstance(atom.value, Value)
    return inside and atom.value.graph is not node.graph  # type: ignore[attr-defined]


def _is_of_value(piece: Piece) -> bool:
    """Return whether a piece is computed from an extent that has no name in a type."""
    return any(isinstance(atom, Extent) for atom in atoms(piece))


def _may_be_shape(value: Value) -> bool:
    type_ = value.type
    if not isinstance(type_, TensorType):
        return False
    dtype, shape = type_.dtype, type_.shape
    if dtype is not I64 and dtype is not BOOL and dtype is not DTYPES["i32"]:
        return False
    return not shape or len(shape) <= _MAX_RANK


def shape_pieces(node: Node) -> Array | None:
    """Return the elements of the result of a `shape_of`, if the rank of its data is known."""
    if input_shape(node) is None:
        return None
    return _objects(extents_of(node.operand())[read_axes(node)])


def read_axes(node: Node) -> slice:
    """Return the slice of the axes whose extents a `shape_of` reads."""
    end = node.attrs.get("end")
    return slice(integer_of(node, "start", 0), end if isinstance(end, int) else None)


def _size(node: Node) -> Array | None:
    """Return the element of the result of a Size, if the rank of its data is known."""
    if input_shape(node) is None:
        return None
    found = np.empty((), object)
    found[()] = product(*extents_of(node.operand()))
    return found


def extents_of(value: Value) -> list[Piece]:
    """Return the extents of a value of known rank, as `piece_of` does."""
    return [
        piece_of(value, axis) if dim is None else dim
        for axis, dim in enumerate(shape_of(value.type) or ())
    ]


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
    return _transposed_piece(value, axis) or Extent(value, axis)


def _transposed_piece(value: Value, axis: int) -> Piece:
    """Return the extent of a result of ConvTranspose by its data's, None of any other value."""
    node = value.node
    if node is None or node.op != "nn.conv_transpose" or axis < 2:
        return None
    weight, data = input_shape(node, "weight"), input_shape(node)
    if weight is None or data is None or len(weight) != len(data):
        return None
    extent, kernel = transposed_extents(node, len(weight) - 2), weight[axis]
    if extent is None or not isinstance(kernel, int):
        return None
    return extent(axis - 2, piece_of(node.operand(), axis), kernel)


_MAX_CHAIN = 32
"""Operators in a row through which an extent is followed, so that equal extents have one name."""


def data_of_shape(value: Value) -> Value | None:
    """Return an operand that a value of known rank certainly has the shape of, or None."""
    node, dims = value.node, shape_of(value.type)
    # Of several results the shapes differ, as of a Split.
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
    return array if array.ndim <= _MAX_RANK and array.size <= _MAX_ELEMENTS else None


def _chosen(condition: Piece, a: Piece, b: Piece) -> Piece:
    if a is not None and a == b:
        return a
    if condition is None:
        return None
    return a if condition else b


def _either(a: Piece, b: Piece) -> Piece:
    if True in (a, b):
        return True
    return None if None in (a, b) else False


def _opposite(a: Piece) -> Piece:
    return None if a is None else not a


def _absolute(a: Piece) -> Piece:
    return maximum(a, product(-1, a))


def _clipped(a: Piece, low: Piece, *high: Piece) -> Piece:
    return reduce(minimum, high, maximum(a, low))


_ELEMENTWISE: dict[str, Callable[..., Piece]] = {
    "multiply": product,
    "add": total,
    "subtract": difference,
    "divide": truncated_quotient,
    "mod": remainder,
    "negative": lambda a: product(-1, a),
    "abs": _absolute,
    "maximum": lambda *pieces: reduce(maximum, pieces),
    "minimum": lambda *pieces: reduce(minimum, pieces),
    "equal": are_equal,
    "less": is_less,
    "greater": lambda a, b: is_less(b, a),
    "less_equal": lambda a, b: _opposite(is_less(b, a)),
    "greater_equal": lambda a, b: _opposite(is_less(a, b)),
    "logical_not": _opposite,
    "logical_or": _either,
    "logical_and": lambda a, b: _opposite(_either(_opposite(a), _opposite(b))),
    "where": _chosen,
    "clip": _clipped,
}
"""Functions of pieces, by the operators that work element by element."""

_REDUCTIONS = {"sum": total, "prod": product}

_FIRST = {*_MOVES, "cast", "cast_like", *_REDUCTIONS} - {"concatenate"}
"""Operators of whose operands the first one has pieces."""


def _elementwise(function: Callable[..., Any], parts: Sequence[Array | None]) -> Array | None:
    """Return `function` of corresponding elements, None if the shapes do not broadcast."""
    try:
        return np.asarray(np.frompyfunc(function, len(parts), 1)(*parts), object)
    except ValueError:
        return None
