"""Operators before an input that preprocess what is given: (x * scale - mean) / std.

They are inserted into the message before it is imported, as users would have exported them: the
fold map, the restored source and the comparison are about the model with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...ir.name_pool import NamePool
from ...ir.record import Record
from ...ir.tensor import Array, ArrayTensor, largest_finite, round_to
from ...ir.types import DTYPES, I64, DType
from ...support.errors import UsageError, clipped
from ...support.preprocessing import (
    LAYOUTS,
    Preprocessing,
    axis_order,
    channel_axis,
    parse_each,
)
from .codec.onnx_types import export_dtype, import_dtype
from .codec.protos import GraphProto, ModelProto, NodeProto, TypeProto, ValueInfoProto
from .codec.tensors import write_tensor
from .codec.traversal import all_graphs, all_nodes, value_names

Preprocess = str | Sequence[str]
"""The preprocessing of one input in words, or of several: `"x:uint8,nhwc,scale=1/255"`."""

FIRST_OPSET = 7
"""The first opset whose Sub and Mul broadcast as numpy does."""


def insert_preprocessing(model: ModelProto, texts: Preprocess) -> frozenset[str]:
    """Insert operators that preprocess inputs of `model`, and return the names of the nodes.

    The inputs get the types of what is given. Raises UsageError for words that do not describe a
    preprocessing of an input of the model.
    """
    graph = model.graph
    defaults = {tensor.name for tensor in graph.initializer}
    inputs = {info.name: info for info in graph.input if info.name not in defaults}
    found = parse_each(texts, list(inputs))
    opset = next((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), 1)
    if found and opset < FIRST_OPSET:
        raise UsageError(
            f"a preprocessing needs opset {FIRST_OPSET} and the model has {opset}: convert it with"
            " onnx.version_converter"
        )
    writer = _Writer(model)
    for name, wanted in found.items():
        writer.insert(inputs[name], wanted)
    return frozenset(node.name for node in writer.nodes)


class _Input(Record):
    """An input as the model has it: its element type, and the axis of its channels."""

    name: str
    dtype: DType
    rank: int | None
    axis: int


class _Writer:
    """Writes the nodes of preprocessings before all others."""

    def __init__(self, model: ModelProto) -> None:
        self.graph = model.graph
        tensors = (tensor.name for part in all_graphs(model) for tensor in part.initializer)
        self.values = NamePool([*value_names(model), *tensors])
        self.names = NamePool(node.name for node in all_nodes(model))
        self.nodes: list[NodeProto] = []

    def insert(self, info: ValueInfoProto, wanted: Preprocessing) -> None:
        """Insert the operators between an input and its readers."""
        known = _described(info, wanted)
        given = known.dtype if wanted.dtype is None else DTYPES[_DTYPE_OF[wanted.dtype]]
        _check_holds(known, given, wanted)
        if any(output.name == known.name for output in self.graph.output):
            raise UsageError(f"input {clipped(known.name)} is a result of the model, too")
        perm = None if known.rank is None else axis_order(known.rank, known.axis, wanted.layout)
        first = len(self.nodes)
        value = known.name
        if perm is not None:
            value = self._node("Transpose", [value], f"{known.name}.transposed")
            self.nodes[-1].attribute.add(name="perm", type=_INTS).ints.extend(perm)
        if given is not known.dtype:
            value = self._node("Cast", [value], f"{known.name}.cast")
            self.nodes[-1].attribute.add(name="to", type=_INT).i = export_dtype(known.dtype)
        for op, numbers in _arithmetic(wanted):
            value = self._node(
                op, [value, self._constant(numbers, known, op)], f"{known.name}.{op}"
            )
        if wanted.reverses:
            indices = self._initializer(np.arange(3)[::-1], I64, "order")
            value = self._node("Gather", [value, indices], f"{known.name}.reversed")
            self.nodes[-1].attribute.add(name="axis", type=_INT).i = known.axis
        _set_type(info.type.tensor_type, given, perm)
        if len(self.nodes) == first:
            return
        _rename_reads(self.graph, known.name, value)
        rest = list(self.graph.node)
        del self.graph.node[:]
        self.graph.node.extend([*self.nodes[first:], *rest])
        for note in self.graph.quantization_annotation:
            if note.tensor_name == known.name:
                note.tensor_name = value

    def _node(self, op: str, inputs: Sequence[str], hint: str) -> str:
        """Append a node and return the name of its result."""
        name = self.values.fresh(hint.lower())
        self.nodes.append(
            NodeProto(op_type=op, name=self.names.fresh(name), input=inputs, output=[name])
        )
        return name

    def _constant(self, numbers: Array, known: _Input, op: str) -> str:
        """Return an initializer for numbers of channels, which has the type of the data."""
        if numbers.size == 1:
            numbers = numbers.reshape(())
        elif known.rank is not None:
            numbers = numbers.reshape(-1, *[1] * (known.rank - 1 - known.axis))
        hint = "zero" if op == "Sub" else "factor"
        return self._initializer(numbers, known.dtype, f"{known.name}.{hint}")

    def _initializer(self, numbers: Array, dtype: DType, hint: str) -> str:
        name = self.values.fresh(hint)
        tensor = ArrayTensor(round_to(np.ascontiguousarray(numbers), dtype), dtype)
        write_tensor(self.graph.initializer.add(), tensor, name)
        return name


_INT, _INTS = 2, 7  # AttributeProto.INT and INTS

_DTYPE_OF = {
    "uint8": "u8",
    "int8": "i8",
    "uint16": "u16",
    "int16": "i16",
    "uint32": "u32",
    "int32": "i32",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
}


def _name_of(dtype: DType) -> str:
    """Return the name of an element type as a preprocessing states it."""
    return next((name for name, own in _DTYPE_OF.items() if own == dtype.name), dtype.name)


def _holds(into: DType, given: DType) -> bool:
    """Return whether a type has all integers of another; between floats any Cast is welcome."""
    if given.is_float:
        return into.is_float
    signed = given.kind == "int"
    bits = given.bits - signed
    if into.is_float:
        return bits <= EXACT_BITS[into.name]
    if into.kind == "int":
        return bits < into.bits
    return into.kind == "uint" and not signed and bits <= into.bits


EXACT_BITS = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}
"""All integers of so many bits are numbers of the type."""


def _described(info: ValueInfoProto, wanted: Preprocessing) -> _Input:
    """Return the input as the model has it. Raises UsageError if its channels do not fit."""
    name = info.name
    if info.type.WhichOneof("value") != "tensor_type":
        raise UsageError(f"input {clipped(name)} is not a tensor: it has no preprocessing")
    tensor = info.type.tensor_type
    extents = None
    if tensor.HasField("shape"):
        extents = [dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim]
    rank = None if extents is None else len(extents)
    if wanted.layout is not None:
        wanted_rank = LAYOUTS[wanted.layout][0]
        if rank not in (None, wanted_rank):
            raise UsageError(
                f"input {clipped(name)} has {rank} axes, and {wanted.layout} has {wanted_rank}"
            )
        rank = wanted_rank
    has_channels = wanted.channels > 1 or wanted.reverses or wanted.layout is not None
    if has_channels and rank is None:
        raise UsageError(
            f"the rank of input {clipped(name)} is unknown: write its layout, such as nchw"
        )
    axis = 0
    if has_channels and rank is not None:
        axis = channel_axis(extents or [None] * rank, wanted)
    return _Input(name, import_dtype(tensor.elem_type), rank, axis)


def _check_holds(known: _Input, given: DType, wanted: Preprocessing) -> None:
    """Raise UsageError if the model's type does not hold what is given, or its preprocessing."""
    name, into = clipped(known.name), _name_of(known.dtype)
    if wanted.is_shifted and not known.dtype.is_float:
        raise UsageError(
            f"input {name} is {into} in the model, which cannot hold (x * scale - mean) / std"
        )
    if given is not known.dtype and not _holds(known.dtype, given):
        raise UsageError(
            f"input {name} is {into} in the model, which cannot hold all numbers of"
            f" {_name_of(given)}"
        )
    for op, numbers in _arithmetic(wanted):
        if (np.abs(numbers) > largest_finite(known.dtype)).any():
            raise UsageError(f"input {name}: a number of its {op} exceeds {into}")


def _arithmetic(wanted: Preprocessing) -> Iterator[tuple[str, Array]]:
    """Yield the operators of (x - mean / scale) * (scale / std), with their float64 numbers.

    They act on what is given, whose channels may have the reverse order. The number that stands for
    zero comes first: where it is the same in all channels, so it is when it is rounded.
    """
    step = -1 if wanted.reverses else 1
    zero = np.array(wanted.mean) / wanted.scale
    factor = wanted.scale / np.array(wanted.std)
    for op, numbers, neutral in (("Sub", zero, 0.0), ("Mul", factor, 1.0)):
        if (numbers == numbers[0]).all():
            numbers = numbers[:1]
        if (numbers != neutral).any():
            yield op, numbers[::step]


def _set_type(tensor: TypeProto.Tensor, given: DType, perm: Sequence[int] | None) -> None:
    """Give an input the type of what is given, whose axes `perm` brings into the model's order."""
    tensor.elem_type = export_dtype(given)
    if perm is None or not tensor.HasField("shape"):
        return
    dims = list(tensor.shape.dim)
    del tensor.shape.dim[:]
    tensor.shape.dim.extend([dims[perm.index(axis)] for axis in range(len(perm))])


def _rename_reads(graph: GraphProto, old: str, new: str) -> None:
    """Let all operators that read the graph input `old` read `new`, also those in bodies."""
    pending = [graph]
    while pending:
        part = pending.pop()
        for node in part.node:
            for index, name in enumerate(node.input):
                if name == old:
                    node.input[index] = new
            for attribute in node.attribute:
                bodies = [attribute.g] if attribute.HasField("g") else list(attribute.graphs)
                pending += [body for body in bodies if not _defines(body, old)]
        if part is not graph:
            for output in part.output:
                if output.name == old:
                    output.name = new


def _defines(graph: GraphProto, name: str) -> bool:
    """Return whether a body has a value of its own with a name."""
    names = {info.name for info in graph.input} | {tensor.name for tensor in graph.initializer}
    return name in names.union(*(node.output for node in graph.node))
