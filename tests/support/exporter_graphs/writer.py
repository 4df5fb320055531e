"""Write ONNX as exporters do: one model, its scopes, and the spelling of an operator in each opset.

A `Value` carries its extents; an int is known, a string is a symbol, and equal symbols are equal
extents.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

Array = np.ndarray[Any, np.dtype[Any]]
Dims = tuple[int | str, ...]
Item = TypeVar("Item")

OPSETS = (9, 10, 11, 11, 12, 13, 13, 14, 15, 16, 17, 17, 18, 19, 20, 21)
STYLES = ("torch", "torch", "tf", "paddle", "listed", "mixed")
"""How constants and names look: `listed` is an exporter that lists every initializer among the
inputs.
"""


@dataclass(frozen=True)
class Value:
    """A tensor by name, with its extents and element type."""

    name: str
    dims: Dims
    dtype: int = TensorProto.FLOAT


@dataclass
class Shared:
    """What all scopes of a model have in common."""

    random: Random
    opset: int
    style: str
    numbers: Any = field(default_factory=itertools.count)
    symbols: Any = field(default_factory=itertools.count)
    functions: dict[str, onnx.FunctionProto] = field(default_factory=dict)
    operators: set[str] = field(default_factory=set)


class Writer:
    """A graph, or the body of an operator or function, in the making."""

    def __init__(
        self, shared: Shared, *, outer: Writer | None = None, in_function: bool = False
    ) -> None:
        self.shared, self.random, self.opset, self.style = (
            shared,
            shared.random,
            shared.opset,
            shared.style,
        )
        self.outer, self.in_function = outer, in_function
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.inputs: list[ValueInfoProto] = []
        self.array_seed = self.random.getrandbits(30)
        self.arrays = np.random.default_rng(self.array_seed)

    # choices

    def one_in(self, n: int) -> bool:
        return self.random.randrange(n) == 0

    def pick(self, items: Sequence[Item]) -> Item:
        return items[self.random.randrange(len(items))]

    def upto(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    # names

    def name(self, op: str) -> str:
        """A name for the result of an operator, in the manner of the exporter."""
        number = next(self.shared.numbers)
        match self.style:
            case "torch":
                return f"/layer.{number}/{op}_output_0"
            case "tf":
                return f"model/block_{number}/{op}:0"
            case "paddle":
                return f"{op.lower()}_{number}.tmp_0"
            case _:
                return str(number)

    def symbol(self, stem: str = "d") -> str:
        """An extent of which nothing is known."""
        return f"{stem}{next(self.shared.symbols)}"

    # constants

    def numbers(self, *shape: int, scale: float = 1.0) -> Array:
        """Normal float32 numbers."""
        return (self.arrays.standard_normal(shape) * scale).astype(np.float32)

    def positive(self, *shape: int) -> Array:
        """Float32 numbers from 0.5 to 2."""
        return self.arrays.uniform(0.5, 2, shape).astype(np.float32)

    def weight(self, *shape: int) -> Value:
        """A parameter whose layer neither grows nor shrinks what it reads."""
        fan = max(int(np.prod(shape[1:])), 1)
        return self.constant(self.numbers(*shape, scale=fan**-0.5))

    def constant(self, array: Any, how: str = "") -> Value:
        """A constant as an initializer or a Constant node, at times behind Identity."""
        array = np.asarray(array)
        large = array.size > 8
        if not how:
            nodes = {
                "torch": not large,
                "paddle": not self.one_in(4),
                "tf": False,
                "listed": self.one_in(6),
            }
            how = "node" if nodes.get(self.style, self.one_in(2)) else "initializer"
        if self.in_function or (self.outer is not None and self.style == "listed"):
            how = "node"  # initializers of bodies are no inputs of them
        dtype = int(helper.np_dtype_to_tensor_dtype(array.dtype))
        name = self.name("const")
        tensor = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
        value = Value(name, array.shape, dtype)
        if how == "node":
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        else:
            self.initializers.append(tensor)
        if array.dtype == np.float32 and self.one_in(
            40
        ):  # onnx infers wrong shapes from integers behind Identity
            return self.op("Identity", [value], value.dims)
        return value

    def scalar(self, number: float) -> Value:
        """A float32 of rank 0, or of one element."""
        return self.constant(np.asarray(number if self.style != "paddle" else [number], np.float32))

    def ints(self, *items: int) -> Value:
        return self.constant(np.asarray(items, np.int64))

    # nodes

    def emit(
        self,
        op: str,
        inputs: Sequence[Value | str],
        outputs: int = 1,
        domain: str = "",
        **attrs: Any,
    ) -> list[str]:
        """Append a node, and return the names of its results."""
        self.shared.operators.add(op)
        names = [item if isinstance(item, str) else item.name for item in inputs]
        while names and not names[-1]:
            names.pop()
        results = [self.name(op) for _ in range(outputs)]
        label = "" if self.one_in(4) else results[0].rpartition("_output")[0] or results[0]
        self.nodes.append(helper.make_node(op, names, results, label, domain=domain, **attrs))
        return results

    def op(
        self,
        op: str,
        inputs: Sequence[Value | str],
        dims: Dims,
        dtype: int = TensorProto.FLOAT,
        **attrs: Any,
    ) -> Value:
        """A node with one result."""
        return Value(self.emit(op, inputs, **attrs)[0], dims, dtype)

    def unary(self, op: str, x: Value, **attrs: Any) -> Value:
        return self.op(op, [x], x.dims, x.dtype, **attrs)

    def binary(self, op: str, a: Value, b: Value) -> Value:
        """An elementwise operator, whose operands may be broadcast."""
        rank = max(len(a.dims), len(b.dims))
        wide = [(1,) * (rank - len(v.dims)) + v.dims for v in (a, b)]
        dims = tuple(n if m == 1 else m for m, n in zip(*wide, strict=True))
        return self.op(op, [a, b], dims, a.dtype)

    # spellings

    def clip(self, x: Value, low: float | None, high: float | None) -> Value:
        if self.opset < 11:
            return self.unary(
                "Clip", x, **{k: v for k, v in (("min", low), ("max", high)) if v is not None}
            )
        bounds = [
            "" if bound is None else self.constant(np.float32(bound)) for bound in (low, high)
        ]
        return self.op("Clip", [x, *bounds], x.dims)

    def with_axes(
        self, op: str, x: Value, axes: Sequence[int], dims: Dims, since: int, **attrs: Any
    ) -> Value:
        """An operator whose axes are an attribute before an opset, and an operand from there on."""
        if self.opset < since:
            return self.op(op, [x], dims, x.dtype, axes=list(axes), **attrs)
        return self.op(op, [x, self.ints(*axes)], dims, x.dtype, **attrs)

    def unsqueeze(self, x: Value, *axes: int) -> Value:
        rest, rank = iter(x.dims), len(x.dims) + len(axes)
        places = {axis % rank for axis in axes}
        dims = tuple(1 if i in places else next(rest) for i in range(rank))
        if self.opset < 11:
            axes = tuple(sorted(places))
        return self.with_axes("Unsqueeze", x, axes, dims, 13)

    def squeeze(self, x: Value, *axes: int) -> Value:
        places = {axis % len(x.dims) for axis in axes}
        if self.opset < 11:
            axes = tuple(sorted(places))
        return self.with_axes(
            "Squeeze", x, axes, tuple(d for i, d in enumerate(x.dims) if i not in places), 13
        )

    def reduce(self, op: str, x: Value, axes: Sequence[int], keep: bool = True) -> Value:
        places = {axis % len(x.dims) for axis in axes}
        dims = tuple(
            1 if i in places else d for i, d in enumerate(x.dims) if keep or i not in places
        )
        if self.opset < 11:
            axes = sorted(places)
        since = 13 if op == "ReduceSum" else 18
        return self.with_axes(op, x, axes, dims, since, keepdims=int(keep))

    def slice(self, x: Value, axis: int, start: int, end: int, extent: int | str) -> Value:
        """The elements from `start` to `end` of an axis, of which there are `extent`."""
        dims = tuple(extent if i == axis % len(x.dims) else d for i, d in enumerate(x.dims))
        if self.opset < 10:
            return self.op(
                "Slice", [x], dims, x.dtype, starts=[start], ends=[end], axes=[axis % len(x.dims)]
            )
        axis = axis % len(x.dims) if self.opset < 11 else axis
        rest = [self.ints(1)] if self.one_in(2) else []
        return self.op(
            "Slice", [x, self.ints(start), self.ints(end), self.ints(axis), *rest], dims, x.dtype
        )

    def split(self, x: Value, axis: int, sizes: Sequence[int]) -> list[Value]:
        equal = len(set(sizes)) == 1 and self.one_in(2)
        axis %= len(x.dims)
        inputs: list[Value | str] = [x]
        attrs: dict[str, Any] = {"axis": axis}
        if self.opset < 13:
            attrs |= {} if equal else {"split": list(sizes)}
        elif not equal:
            inputs.append(self.ints(*sizes))
        elif self.opset >= 18:
            attrs["num_outputs"] = len(sizes)
        names = self.emit("Split", inputs, len(sizes), **attrs)
        return [
            Value(name, tuple(size if i == axis else d for i, d in enumerate(x.dims)), x.dtype)
            for name, size in zip(names, sizes, strict=True)
        ]

    def concat(self, values: Sequence[Value], axis: int, extent: int | str) -> Value:
        dims = tuple(
            extent if i == axis % len(values[0].dims) else d for i, d in enumerate(values[0].dims)
        )
        return self.op(
            "Concat",
            values,
            dims,
            values[0].dtype,
            axis=axis if self.opset >= 11 else axis % len(dims),
        )

    def transpose(self, x: Value, *perm: int) -> Value:
        return self.op("Transpose", [x], tuple(x.dims[i] for i in perm), x.dtype, perm=list(perm))

    def softmax(self, x: Value, op: str = "Softmax") -> Value:
        """Along the last axis; before opset 13 this is what a flattening along it is."""
        return self.unary(op, x, axis=len(x.dims) - 1 if self.opset < 13 or self.one_in(2) else -1)

    def pad(self, x: Value, pads: Sequence[int], mode: str = "constant") -> Value:
        rank = len(x.dims)
        dims: list[int | str] = []
        for i, d in enumerate(x.dims):
            more = pads[i] + pads[rank + i]
            if more:
                d = d + more if isinstance(d, int) else self.symbol()
            dims.append(d)
        if self.opset < 11:
            return self.op("Pad", [x], tuple(dims), pads=list(pads), mode=mode)
        value = [self.scalar_of_pad()] if mode == "constant" and self.one_in(2) else []
        return self.op("Pad", [x, self.ints(*pads), *value], tuple(dims), mode=mode)

    def scalar_of_pad(self) -> Value:
        return self.constant(np.float32(0 if self.one_in(2) else -1.5))

    # shapes

    def shape(self, x: Value) -> Value:
        return self.op("Shape", [x], (len(x.dims),), TensorProto.INT64)

    def extent(self, x: Value, axis: int, shape: Value | None = None) -> Value:
        """An extent as a vector of one element: by Gather and Unsqueeze, or by Slice."""
        if self.opset >= 15 and self.one_in(6):
            return self.op("Shape", [x], (1,), TensorProto.INT64, start=axis, end=axis + 1)
        shape = shape if shape is not None and self.one_in(2) else self.shape(x)
        if self.one_in(3):
            return self.slice(shape, 0, axis, axis + 1, 1)
        one = self.op(
            "Gather",
            [shape, self.constant(np.asarray(axis, np.int64))],
            (),
            TensorProto.INT64,
            axis=0,
        )
        if self.one_in(4):
            one = self.op("Cast", [one], (), TensorProto.FLOAT, to=TensorProto.FLOAT)
            one = self.op("Cast", [one], (), TensorProto.INT64, to=TensorProto.INT64)
        return self.unsqueeze(one, 0)

    def reshape(self, x: Value, dims: Dims, target: Sequence[int | str | Value]) -> Value:
        """A Reshape to a target of numbers, symbols of `x`, or computed extents.

        The target is a constant with 0 and -1 where it can be, or a Concat of gathered extents.
        """
        numbers: list[int] = []
        for i, item in enumerate(target):
            if isinstance(item, int):
                numbers.append(item)
            elif isinstance(item, str) and i < len(x.dims) and x.dims[i] == item:
                numbers.append(0)
            else:
                numbers.append(-1)
        if (
            numbers.count(-1) <= 1
            and self.one_in(2)
            and not any(isinstance(item, Value) for item in target)
        ):
            return self.op("Reshape", [x, self.ints(*numbers)], dims, x.dtype)
        shape = self.shape(x)
        parts: list[Value] = []
        for item in target:
            if isinstance(item, Value):
                parts.append(item)
            elif isinstance(item, str):
                parts.append(self.extent(x, x.dims.index(item), shape))
            elif self.one_in(3):
                parts.append(self.unsqueeze(self.constant(np.asarray(item, np.int64)), 0))
            else:
                parts.append(self.ints(item))
        return self.op("Reshape", [x, self.concat(parts, 0, len(parts))], dims, x.dtype)

    # scopes

    def inner(self) -> Writer:
        """A body inside this graph: it may read what stands before it."""
        return Writer(self.shared, outer=self, in_function=self.in_function)

    def input(self, name: str, dims: Dims, dtype: int = TensorProto.FLOAT) -> Value:
        self.inputs.append(helper.make_tensor_value_info(name, dtype, dims))
        return Value(name, dims, dtype)

    def graph(
        self, name: str, outputs: Sequence[Value], *, declare: Callable[[Value], bool] = bool
    ) -> onnx.GraphProto:
        """The graph with these results; those that `declare` admits have their extents."""
        infos = []
        for value in outputs:
            dims = value.dims if declare(value) else [None] * len(value.dims)
            infos.append(helper.make_tensor_value_info(value.name, value.dtype, dims))
        return helper.make_graph(self.nodes, name, self.inputs, infos, self.initializers)
