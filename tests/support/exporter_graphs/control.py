"""Control flow and functions around blocks, whose bodies read what stands outside."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper

from .writer import Value, Writer

Block = Callable[[Writer, Value], Value]


def alike(w: Writer, x: Value, block: Block) -> Value:
    """A block whose result has the extents of what it reads, else what it reads."""
    before = len(w.nodes), len(w.initializers)
    made = block(w, x)
    if made.dims == x.dims and made.name != x.name:
        return made
    del w.nodes[before[0] :], w.initializers[before[1] :]
    return w.unary("Identity", x)


def condition(w: Writer, x: Value) -> Value:
    """A bool of rank 0: a constant, a question about an extent, or about the data."""
    match w.upto(0, 3):
        case 0:
            return w.constant(np.asarray(w.one_in(2)))
        case 1:
            extent = w.op(
                "Gather",
                [w.shape(x), w.constant(np.asarray(1, np.int64))],
                (),
                TensorProto.INT64,
                axis=0,
            )
            want = x.dims[1] if isinstance(x.dims[1], int) and w.one_in(2) else 3
            wanted = w.constant(np.asarray(want, np.int64))
            if w.opset >= 11:
                return w.op("Equal", [extent, wanted], (), TensorProto.BOOL)
            return w.op(
                "Not", [w.op("Equal", [extent, wanted], (), TensorProto.BOOL)], (), TensorProto.BOOL
            )
        case 2:
            rank = w.op("Size", [w.shape(x)], (), TensorProto.INT64)
            return w.op(
                "Greater", [rank, w.constant(np.asarray(2, np.int64))], (), TensorProto.BOOL
            )
        case _:
            top = w.op("ReduceMax", [x], (), keepdims=0)
            return w.op("Greater", [top, w.constant(np.float32(0.5))], (), TensorProto.BOOL)


def choice(w: Writer, x: Value, block: Block) -> Value:
    """An If, whose branches read `x` from outside; one may pass it on."""
    decided = condition(w, x)
    outside = w.unary("Relu", x) if w.one_in(3) else x
    bodies = []
    for i in range(2):
        inner = w.inner()
        made = (
            alike(inner, outside, block) if not (i and w.one_in(3)) else inner.unary("Identity", x)
        )
        if w.one_in(3):
            made = inner.binary("Add", made, x)
        bodies.append(inner.graph(w.name("branch"), [made], declare=lambda _: not w.one_in(3)))
    if w.one_in(2):
        bodies.reverse()
    return w.op("If", [decided], x.dims, then_branch=bodies[0], else_branch=bodies[1])


def loop(w: Writer, x: Value, block: Block) -> Value:
    """A Loop of constant trips with a carried value; its body captures `x` and a constant."""
    outside = w.constant(np.asarray(0.5, np.float32))
    trips, keep = w.constant(np.asarray(w.upto(0, 3), np.int64)), w.constant(np.asarray(True))
    inner = w.inner()
    inner.input(w.name("i"), (), TensorProto.INT64)
    going = inner.input(w.name("cond"), (), TensorProto.BOOL)
    carried = inner.input(w.name("carried"), x.dims)
    made = alike(inner, carried, block)
    made = inner.binary("Mul", made, outside)
    if w.one_in(2):
        made = inner.binary("Add", made, x)
    results = [inner.op("Identity", [going], (), TensorProto.BOOL), made]
    collects = w.one_in(3)
    if collects:
        results.append(inner.op("ReduceMax", [made], (), keepdims=0))
    body = inner.graph(w.name("body"), results)
    names = w.emit("Loop", [trips, keep, x], 1 + collects, body=body)
    found = Value(names[0], x.dims)
    if not collects:
        return found
    top = w.reduce("ReduceSum", Value(names[1], (w.symbol(),)), [0], keep=False)
    return w.binary("Add", found, w.binary("Mul", top, w.scalar(0.125)))


def scan(w: Writer, x: Value, block: Block) -> Value:
    """A Scan along the first axis, with a state and a captured constant."""
    del block  # its blocks want a batch
    rest = x.dims[1:]
    if not all(isinstance(d, int) for d in rest):
        return x
    zeros = w.constant(np.zeros([int(d) for d in rest], np.float32))
    outside = w.constant(w.positive(int(rest[-1])))
    inner = w.inner()
    state, part = inner.input(w.name("state"), rest), inner.input(w.name("part"), rest)
    summed = inner.binary("Add", inner.binary("Mul", state, inner.constant(np.float32(0.5))), part)
    scaled = inner.binary("Mul", summed, outside)
    body = inner.graph(
        w.name("body"),
        [summed, inner.binary("Add", scaled, inner.constant(w.numbers(int(rest[-1]))))],
    )
    names = w.emit("Scan", [zeros, x], 2, body=body, num_scan_inputs=1)
    return Value(names[1], x.dims)


def call(w: Writer, x: Value, block: Block) -> Value:
    """A call of a model-local function around a block; some are called more than once."""
    if w.opset < 15 or w.in_function or w.outer is not None:
        return alike(w, x, block)
    functions = w.shared.functions
    kind = f"Block{len(functions)}"
    inner = Writer(w.shared, in_function=True)
    given, scale = Value("x", x.dims), Value("scale", ())
    made = inner.binary("Mul", alike(inner, given, block), scale)
    imports = [helper.make_opsetid("", w.opset)]
    functions[kind] = helper.make_function(
        "local", kind, ["x", "scale"], [made.name], inner.nodes, imports
    )
    for _ in range(w.upto(1, 2)):
        x = w.op(
            kind, [x, w.constant(np.float32(w.pick([0.5, 1.0, -2.0])))], x.dims, domain="local"
        )
    return x


def functions_of(w: Writer) -> list[onnx.FunctionProto]:
    """The functions that were written on the way."""
    return list(w.shared.functions.values())


WRAPPERS: tuple[Callable[[Writer, Value, Block], Value], ...] = (
    choice,
    choice,
    loop,
    scan,
    call,
    call,
)
