"""Blocks of transformers and recurrent networks on values [N, T, D]."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from .activations import activate
from .vision import linear
from .writer import Array, Dims, Value, Writer


def width(x: Value) -> int:
    """The features, which are always known."""
    assert isinstance(x.dims[-1], int)
    return x.dims[-1]


def layer_norm(w: Writer, x: Value) -> Value:
    """LayerNormalization, as an operator or written out by ReduceMean; at times RMSNorm."""
    n = width(x)
    if w.opset >= 17 and w.one_in(3):
        parameters = [
            w.constant(w.numbers(n)),
            *([w.constant(w.numbers(n))] if w.one_in(2) else []),
        ]
        return w.op("LayerNormalization", [x, *parameters], x.dims, axis=-1, epsilon=1e-2)
    if w.one_in(4):
        square = w.op("Pow", [x, w.scalar(2.0)], x.dims)
        root = w.unary(
            "Sqrt", w.binary("Add", w.reduce("ReduceMean", square, [-1]), w.scalar(1e-2))
        )
        normal = (
            w.binary("Mul", x, w.unary("Reciprocal", root))
            if w.one_in(2)
            else w.binary("Div", x, root)
        )
        return w.binary("Mul", w.constant(w.numbers(n)), normal)
    centred = w.binary("Sub", x, w.reduce("ReduceMean", x, [-1]))
    if w.one_in(3):
        square = w.binary("Mul", centred, centred)
    else:
        square = w.op("Pow", [centred, w.scalar(2.0)], x.dims)
    variance = w.binary("Add", w.reduce("ReduceMean", square, [-1]), w.scalar(1e-2))
    normal = w.binary("Div", centred, w.unary("Sqrt", variance))
    return w.binary(
        "Add", w.binary("Mul", normal, w.constant(w.numbers(n))), w.constant(w.numbers(n))
    )


def heads(w: Writer, x: Value, count: int, *, turned: bool = False) -> Value:
    """[N, T, D] to [N, heads, T, D / heads], or its last two axes the other way round."""
    batch, time, n = x.dims[0], x.dims[1], width(x)
    wide = w.reshape(x, (batch, time, count, n // count), [batch, time, count, n // count])
    return w.transpose(wide, *((0, 2, 3, 1) if turned else (0, 2, 1, 3)))


def rotary(w: Writer, x: Value) -> Value:
    """Rotate the halves of the last axis by constant angles."""
    n = width(x)
    if n % 2:
        return x
    low = w.slice(x, -1, 0, n // 2, n // 2)
    high = w.slice(x, -1, n // 2, w.pick([n, 2**63 - 1]), n // 2)
    turned = w.concat([w.unary("Neg", high), low], -1, n)
    angle: Array = w.numbers(n)
    cos, sin = w.constant(np.cos(angle)), w.constant(np.sin(angle))
    return w.binary("Add", w.binary("Mul", x, cos), w.binary("Mul", turned, sin))


def attention(w: Writer, x: Value) -> Value:
    """Self-attention of one or more heads; the scale stands where an exporter puts it."""
    batch, time, n = x.dims[0], x.dims[1], width(x)
    count = w.pick([h for h in (1, 2, 4) if n % h == 0])
    if w.one_in(3):
        joined = linear(w, x, 3 * n)
        parts = w.split(joined, -1, (n, n, n))
    else:
        parts = [linear(w, x, n) for _ in range(3)]
    scale = w.scalar(float(np.sqrt(n // count)))
    where = w.pick(["query", "scores", "root"])
    query, value = heads(w, parts[0], count), heads(w, parts[2], count)
    rotate = w.one_in(3)
    key = heads(w, parts[1], count, turned=not rotate)
    if rotate:
        query = rotary(w, query)
        key = w.transpose(rotary(w, key), 0, 1, 3, 2)
    if where == "query":
        query = w.binary("Div", query, scale)
    if where == "root":
        half = w.scalar(float((n // count) ** -0.25))
        query, key = w.binary("Mul", query, half), w.binary("Mul", key, half)
    scores = w.op("MatMul", [query, key], (batch, count, time, time))
    if where == "scores":
        scores = w.binary("Div", scores, scale)
    if w.one_in(4):
        scores = masked(w, scores, x)
    share = w.softmax(scores)
    mixed = w.op("MatMul", [share, value], (batch, count, time, n // count))
    back = w.transpose(mixed, 0, 2, 1, 3)
    flat = w.reshape(back, (batch, time, n), [batch, time, n])
    return linear(w, flat, n)


def masked(w: Writer, scores: Value, x: Value) -> Value:
    """A causal mask from Range and Less, or by Where over a constant."""
    if w.opset >= 11:
        one = w.op(
            "Gather",
            [w.shape(x), w.constant(np.asarray(1, np.int64))],
            (),
            TensorProto.INT64,
            axis=0,
        )
        bounds = [w.constant(np.asarray(0, np.int64)), one, w.constant(np.asarray(1, np.int64))]
        steps = w.op("Range", bounds, (x.dims[1],), TensorProto.INT64)
        rows, columns = w.unsqueeze(steps, 1), w.unsqueeze(steps, 0)
        later = w.op("Less", [rows, columns], (x.dims[1], x.dims[1]), TensorProto.BOOL)
        return w.op("Where", [later, w.scalar(-1e4), scores], scores.dims)
    return w.binary("Add", scores, w.scalar(0.0))


def feed_forward(w: Writer, x: Value) -> Value:
    """Two linear layers with an activation between."""
    return linear(w, activate(w, linear(w, x, 2 * width(x))), width(x))


def residual_norm(w: Writer, x: Value) -> Value:
    """A sublayer with its shortcut, the norm before or behind."""
    block = w.pick([attention, attention, feed_forward])
    if w.one_in(2):
        return w.binary("Add", x, block(w, layer_norm(w, x)))
    return layer_norm(w, w.binary("Add", x, block(w, x)))


def positions(w: Writer, x: Value) -> Value:
    """Position embeddings: the first rows of a table, by a Slice to the length."""
    n, time = width(x), x.dims[1]
    table = w.constant(w.numbers(64, n))
    if w.opset < 10:
        return w.binary("Add", x, w.constant(w.numbers(n)))
    rows = w.op("Slice", [table, w.ints(0), w.extent(x, 1), w.ints(0)], (time, n))
    return w.binary("Add", x, w.unsqueeze(rows, 0) if w.one_in(2) else rows)


def class_token(w: Writer, x: Value) -> Value:
    """A learned token in front, expanded to the batch by Where over Equal, as torch does."""
    batch, time, n = x.dims[0], x.dims[1], width(x)
    token = w.constant(w.numbers(1, 1, n))
    target = w.concat([w.extent(x, 0), w.ints(-1, -1)], 0, 3)
    ones = w.op("ConstantOfShape", [w.ints(3)], (3,), TensorProto.INT64, value=one())
    minus = w.op("Mul", [ones, w.ints(-1)], (3,), TensorProto.INT64)
    equal = w.op("Equal", [target, minus], (3,), TensorProto.BOOL)
    target = w.op("Where", [equal, ones, target], (3,), TensorProto.INT64)
    grown = w.op("Expand", [token, target], (batch, 1, n))
    longer = time + 1 if isinstance(time, int) else w.symbol()
    return w.concat([grown, x], 1, longer)


def one() -> TensorProto:
    return TensorProto(data_type=TensorProto.INT64, dims=[1], int64_data=[1])


def conv_1d(w: Writer, x: Value) -> Value:
    """A Conv over time between two Transposes, with BatchNormalization."""
    batch, time, n = x.dims[0], x.dims[1], width(x)
    turned = w.transpose(x, 0, 2, 1)
    made = w.op(
        "Conv", [turned, w.weight(n, n, 3)], (batch, n, time), kernel_shape=[3], pads=[1, 1]
    )
    arrays = (w.numbers(n), w.numbers(n), w.numbers(n), w.positive(n))
    made = w.op("BatchNormalization", [made, *(w.constant(a) for a in arrays)], made.dims)
    return w.transpose(activate(w, made), 0, 2, 1)


def recurrent(w: Writer, x: Value) -> Value:
    """An LSTM or GRU over time, one or both directions."""
    time, n, ways = x.dims[1], width(x), w.upto(1, 2)
    hidden, gates = 2, 0
    op = w.pick(["LSTM", "GRU"])
    gates = 4 if op == "LSTM" else 3
    turned = w.transpose(x, 1, 0, 2)
    weights = [w.weight(ways, gates * hidden, n), w.weight(ways, gates * hidden, hidden)]
    bias: list[Value | str] = (
        [w.constant(w.numbers(ways, 2 * gates * hidden))] if w.one_in(2) else []
    )
    attrs: dict[str, Any] = {
        "hidden_size": hidden,
        "direction": "forward" if ways == 1 else "bidirectional",
    }
    if op == "GRU":
        attrs["linear_before_reset"] = w.upto(0, 1)
    batch = x.dims[0]
    states: list[Value | str] = []
    if w.one_in(2):
        target = w.concat([w.ints(ways), w.extent(turned, 1), w.ints(hidden)], 0, 3)
        state = w.op("ConstantOfShape", [target], (ways, batch, hidden))
        states = [*(bias or [""]), "", state, *([state] if op == "LSTM" else [])]
        bias = []
    made = w.op(op, [turned, *weights, *bias, *states], (time, ways, batch, hidden), **attrs)
    if ways == 1:
        return w.transpose(w.squeeze(made, 1), 1, 0, 2)
    swapped = w.transpose(made, 0, 2, 1, 3)
    flat = w.op("Reshape", [swapped, w.ints(0, 0, -1)], (time, batch, ways * hidden))
    return w.transpose(flat, 1, 0, 2)


def embedded(w: Writer, ids: Value) -> Value:
    """Rows of a table by ids [N, T]."""
    n = w.pick([4, 8])
    table = w.constant(
        w.numbers(2 + w.upto(0, 6), n), "initializer" if not w.in_function else "node"
    )
    return w.op("Gather", [table, ids], (*ids.dims, n))


def last_step(w: Writer, x: Value) -> Value:
    """[N, T, D] to [N, D]: the mean, the first token by Gather, or the last one by Slice."""
    batch, n = x.dims[0], width(x)
    dims: Dims = (batch, n)
    match w.upto(0, 2):
        case 0:
            return w.reduce("ReduceMean", x, [1], keep=False)
        case 1:
            return w.op("Gather", [x, w.constant(np.asarray(0, np.int64))], dims, axis=1)
        case _:
            return w.squeeze(w.slice(x, 1, -1, 2**63 - 1, 1), 1)


def einsum(w: Writer, x: Value) -> Value:
    """A linear layer as Einsum, or as Reshape to rows, Gemm, and back."""
    batch, time, n = x.dims[0], x.dims[1], width(x)
    if w.opset >= 12 and w.one_in(2):
        return w.op("Einsum", [x, w.weight(n, n)], x.dims, equation="bti,ij->btj")
    rows = w.op("Reshape", [x, w.ints(-1, n)], (w.symbol(), n))
    made = linear(w, rows, n)
    if isinstance(time, int):
        return w.op("Reshape", [made, w.ints(-1, time, n)], (batch, time, n))
    return w.op(
        "Reshape", [made, w.concat([w.slice(w.shape(x), 0, 0, 2, 2), w.ints(n)], 0, 3)], x.dims
    )


BLOCKS = (
    *(
        residual_norm,
        residual_norm,
        residual_norm,
        layer_norm,
        attention,
        feed_forward,
        conv_1d,
        einsum,
        positions,
    ),
    *(class_token, recurrent, activate),
)
