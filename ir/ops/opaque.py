"""Operators of which irc knows little: recurrent layers, quantization, gathering, ordering.

onnx's shape inference finds most of their types. If nobody reads them they stay as they came, like
operators without a row, and count as readers of their data; DeadCodeElimination removes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

import numpy as np

from ..graph import Node
from ..tensor import Array
from ..types import BOOL, DTYPES, I64, Dim, TensorType
from .bounds import always, dtype_bounds, of_operands, operand_bounds, up_to_extent
from .evaluation import NotEvaluable, check_size, operand
from .inference import Types, input_dtype, input_shape, same, unknown
from .interval import UNBOUNDED, ZERO, Interval, added, interval, multiplied, negated
from .row import (
    Bounds,
    Constants,
    Infer,
    Inputs,
    OpInfo,
    Terms,
    Trait,
    complete_by_types,
    integer,
    text_of,
)


def _row(
    name: str,
    onnx: str,
    inputs: tuple[str, ...],
    *traits: Trait,
    since: int = 1,
    results: tuple[str, ...] = ("output",),
    integers: tuple[str, ...] = (),
    forms: Mapping[str, int] | None = None,
    infer: Infer = unknown,
    bounds: Bounds | None = None,
    terms: Terms | None = None,
) -> OpInfo:
    return OpInfo(
        name,
        inputs,
        infer,
        onnx=onnx,
        since=since,
        results=results,
        forms=forms or {},
        attrs=dict.fromkeys(integers, integer),
        bounds=bounds,
        terms=terms,
        traits=frozenset({Trait.KEPT_UNREAD, *traits}),
    )


@complete_by_types
def infer_quantize(node: Node, constants: Constants) -> Types:
    """Infer the shape of the data in the dtype of the zero point.

    Without one it is u8, or as `output_dtype` says.
    """
    dtype = input_dtype(node, "zero_point")
    if node["zero_point"] is None:
        dtype = None if "output_dtype" in node.attrs else DTYPES["u8"]
    return (TensorType(dtype, input_shape(node)),)


@complete_by_types
def infer_dequantize(node: Node, constants: Constants) -> Types:
    """Infer the shape of the integers in the dtype of the scale, or as `output_dtype` says."""
    return (
        TensorType(
            None if "output_dtype" in node.attrs else input_dtype(node, "scale"), input_shape(node)
        ),
    )


@complete_by_types
def infer_test(node: Node, constants: Constants) -> Types:
    """Infer a truth value for each element."""
    return (TensorType(BOOL, input_shape(node)),)


@complete_by_types
def infer_gather_elements(node: Node, constants: Constants) -> Types:
    """Infer an element of the data for each index."""
    return (TensorType(input_dtype(node), input_shape(node, "indices")),)


def infer_recurrent(node: Node, constants: Constants) -> Types:
    """Infer states and last states of RNN, GRU and LSTM: [length, directions, batch, hidden]."""
    data = input_shape(node)
    weights, recurrence = input_shape(node, "weight"), input_shape(node, "recurrence")
    dtype = input_dtype(node)
    directions = weights[0] if weights is not None and len(weights) == 3 else None
    hidden = recurrence[2] if recurrence is not None and len(recurrence) == 3 else None
    batch_first = node.attrs.get("layout", 0) != 0
    first, second = data[:2] if data is not None and len(data) == 3 else (None, None)
    if batch_first:
        states, last = (first, second, directions, hidden), (first, directions, hidden)
    else:
        states, last = (first, directions, second, hidden), (directions, second, hidden)
    return tuple(TensorType(dtype, last if i else states) for i in range(len(node.outputs)))


def infer_nonzero(node: Node, constants: Constants) -> Types:
    """Infer i64[rank, ?]."""
    shape = input_shape(node)
    return (TensorType(I64, (None if shape is None else len(shape), None)),)


def evaluate_nonzero(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Compute NonZero: the indices of elements that are not 0, a row for each axis."""
    data = operand(inputs)
    if not data.ndim or data.dtype.kind not in "iufb":
        raise NotEvaluable("a scalar, on which runtimes disagree, or elements that are not numbers")
    check_size(data.ndim * data.size, data)
    return (np.array(np.nonzero(data), np.int64),)


def _recurrent(node: Node, x: Sequence[Interval], constants: Constants) -> list[Interval]:
    """Bound the states of RNN, GRU and LSTM: results of Tanh, or averages with the first state.

    The cell of an LSTM grows by less than 1 with each element of the sequence. The gates must be
    results of Sigmoid.
    """
    names, kinds = node.attrs.get("activations", ()), _ACTIVATIONS[node.op]
    if not isinstance(names, tuple):
        return [UNBOUNDED]
    if any(_text(name) not in kinds[i % len(kinds)] for i, name in enumerate(names)):
        return [UNBOUNDED]
    data = input_shape(node)
    steps: Dim = None
    if data is not None and len(data) == 3:
        steps = data[1] if node.attrs.get("layout", 0) else data[0]
    state = interval(-1, 1)
    if node.op == "gru":
        state = state.hull(operand_bounds(node, x, "initial_h", ZERO).whole)
    length = float(steps) if isinstance(steps, int) else inf
    cell = interval(-length, length)
    if node.op == "lstm":
        cell = added(cell, operand_bounds(node, x, "initial_c", ZERO).whole.hull(ZERO))
    return [state, state, cell]


_GATE, _STATE = ("sigmoid",), ("sigmoid", "tanh")
_ACTIVATIONS = {"rnn": (_STATE,), "gru": (_GATE, _STATE), "lstm": (_GATE, _STATE, _STATE)}
"""The activations of gates and states that keep the states of each operator within bounds."""


def _text(name: object) -> str:
    return (name.decode(errors="replace") if isinstance(name, bytes) else str(name)).lower()


def _unscaled(node: Node, x: Sequence[Interval], constants: Constants) -> list[Interval]:
    return [dtype_bounds(node.output)]


def _rescaled(node: Node, x: Sequence[Interval], constants: Constants) -> list[Interval]:
    """Bound DequantizeLinear: (q - zero_point) * scale."""
    zero = operand_bounds(node, x, "zero_point", ZERO).whole
    scale = operand_bounds(node, x, "scale").whole
    return [multiplied(added(x[0].whole, negated(zero)), scale)]


def _scattered(node: Node, x: Sequence[Interval], constants: Constants) -> Sequence[Interval]:
    """Bound ScatterND and ScatterElements: elements of data and updates.

    They have no bounds if the updates are added or multiplied.
    """
    if text_of(node, "reduction", "none") in ("none", "max", "min"):
        return of_operands("data", "updates")(node, x, constants)
    return [UNBOUNDED]


_RECURRENT = ("data", "weight", "recurrence", "bias?", "sequence_lens?", "initial_h?")
_STATES = ("output", "output_h?")
_ARG = ("axis", "keepdims", "select_last_index")

ROWS = (
    _row(
        "rnn",
        "RNN",
        _RECURRENT,
        Trait.HEAVY,
        Trait.SATURATES,
        results=_STATES,
        infer=infer_recurrent,
        bounds=_recurrent,
    ),
    _row(
        "gru",
        "GRU",
        _RECURRENT,
        Trait.HEAVY,
        Trait.SATURATES,
        results=_STATES,
        infer=infer_recurrent,
        bounds=_recurrent,
    ),
    _row(
        "lstm",
        "LSTM",
        (*_RECURRENT, "initial_c?", "peepholes?"),
        Trait.HEAVY,
        Trait.SATURATES,
        results=(*_STATES, "output_c?"),
        infer=infer_recurrent,
        bounds=_recurrent,
    ),
    _row(
        "einsum",
        "Einsum",
        ("inputs*",),
        Trait.HEAVY,
        Trait.STEEP,
        since=12,
        terms=lambda node: inf,
    ),
    _row(
        "quantize",
        "QuantizeLinear",
        ("data", "scale", "zero_point?"),
        since=10,
        integers=("axis", "block_size"),
        infer=infer_quantize,
        bounds=_unscaled,
    ),
    _row(
        "dequantize",
        "DequantizeLinear",
        ("data", "scale", "zero_point?"),
        Trait.GROWS,
        since=10,
        integers=("axis", "block_size"),
        forms={"axis": 13},
        infer=infer_dequantize,
        bounds=_rescaled,
    ),
    _row(
        "topk",
        "TopK",
        ("data", "k?"),
        Trait.DECIDES,
        results=("values", "indices?"),
        integers=("axis", "largest", "sorted"),
        bounds=lambda node, x, constants: [x[0].whole, *up_to_extent(node, x, constants)],
    ),
    _row("argmax", "ArgMax", ("data",), Trait.DECIDES, integers=_ARG, bounds=up_to_extent),
    _row("argmin", "ArgMin", ("data",), Trait.DECIDES, integers=_ARG, bounds=up_to_extent),
    _row(
        "one_hot",
        "OneHot",
        ("indices", "depth", "values"),
        since=9,
        integers=("axis",),
        bounds=of_operands("values"),
    ),
    _row(
        "gather",
        "GatherElements",
        ("data", "indices"),
        since=11,
        integers=("axis",),
        infer=infer_gather_elements,
        bounds=of_operands("data"),
    ),
    _row(
        "gather_nd",
        "GatherND",
        ("data", "indices"),
        since=11,
        integers=("batch_dims",),
        bounds=of_operands("data"),
    ),
    _row(
        "scatter_elements",
        "ScatterElements",
        ("data", "indices", "updates"),
        since=11,
        integers=("axis",),
        infer=same,
        bounds=_scattered,
    ),
    _row(
        "scatter_nd",
        "ScatterND",
        ("data", "indices", "updates"),
        since=11,
        infer=same,
        bounds=_scattered,
    ),
    _row("isnan", "IsNaN", ("data",), since=9, infer=infer_test, bounds=always(0, 1)),
    _row("isinf", "IsInf", ("data",), since=10, infer=infer_test, bounds=always(0, 1)),
    OpInfo("nonzero", ("data",), infer_nonzero, evaluate_nonzero, onnx="NonZero", since=9),
)
