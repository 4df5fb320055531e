"""Raising the opset of a model whose operators mean the same in the newer one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import numpy as np

from ...ir.name_pool import NamePool
from ...ir.ops import DEFAULT_DOMAINS
from ...ir.ops.parameters import tensor_of
from ...ir.tensor import Array, ArrayTensor
from ...ir.types import F32, F64, DType, dtype_of
from . import from_model
from .codec.onnx_attributes import import_attribute
from .codec.onnx_parts import get_schema, has_schema
from .codec.protos import AttributeProto, GraphProto, ModelProto, NodeProto
from .codec.tensors import write_tensor
from .codec.traversal import all_graphs, all_tensors, nodes_in, value_names
from .opsets import opset_versions

if TYPE_CHECKING:
    from onnx.defs import OpSchema

    FormalParameter = OpSchema.FormalParameter

CHANGED = {
    "GridSample": 20,
    "GroupNormalization": 21,
    "Hardmax": 13,
    "LogSoftmax": 13,
    "OneHot": 11,  # negative indices count from the end
    "PRelu": 7,
    "Resize": 11,
    "RoiAlign": 16,  # half a pixel
    "Softmax": 13,
}
"""Operators that compute something else since an opset, though their schemas look alike."""
RENAMED = {"k": "K", "value": "constant_value"}
"""Attributes that became operands of another name, with that name."""


class _Form(NamedTuple):
    """What changes of a node in a newer opset.

    `operands` come by their index in place of the attributes in `gone`; `parts` is the number of
    results that a Split has to state.
    """

    operands: Mapping[int, Array] = {}
    gone: Sequence[str] = ()
    parts: int = 0


def raise_opset(model: ModelProto, opset: int) -> str | None:
    """Let a model import a newer opset, in place. Return why it cannot, None if it does.

    An operator of a graph or body means the same if its schema is the same, or has more types,
    optional operands or attributes with a default only. An attribute that became an operand becomes
    an initializer; one that is absent is stated if it has a default. The model is not changed if
    an operator means something else. Operators of functions keep their form. O(nodes).
    """
    raising = _Raising(model, opset)
    functions = (node for each in model.functions for node in nodes_in(each))
    for node in functions:
        if raising.form(node) != _Form():
            return raising.obstacle(node)
    found: list[tuple[GraphProto, NodeProto, _Form]] = []
    for graph in all_graphs(model):
        for node in graph.node:
            form = raising.form(node)
            if form is None:
                return raising.obstacle(node)
            found.append((graph, node, form))
    for graph, node, form in found:
        raising.apply(graph, node, form)
    for entry in model.opset_import:
        if entry.domain in DEFAULT_DOMAINS:
            entry.version = opset
    return None


class _Raising:
    """One model on its way to a newer opset."""

    def __init__(self, model: ModelProto, opset: int) -> None:
        self.model = model
        self.own = opset_versions(model.opset_import)[""]
        self.opset = opset
        tensors = (tensor.name for tensor in all_tensors(model))
        inputs = (info.name for graph in all_graphs(model) for info in graph.input)
        self.names = NamePool([*value_names(model), *tensors, *inputs])

    def obstacle(self, node: NodeProto) -> str:
        label = node.name or next(filter(None, node.output), "")
        return (
            f"{node.op_type} {label!r} means something else in opset {self.opset} than in opset"
            f" {self.own}"
        )

    def form(self, node: NodeProto) -> _Form | None:
        """Return the form of a node in the newer opset, None if none means the same."""
        name = node.op_type
        if node.domain not in DEFAULT_DOMAINS:
            return _Form()
        if self.own < CHANGED.get(name, 0) <= self.opset:
            return None
        if not (has_schema(name, self.own) and has_schema(name, self.opset)):
            return None
        before, after = get_schema(name, self.own), get_schema(name, self.opset)
        if name == "AveragePool" and any(a.name == "ceil_mode" and a.i for a in node.attribute):
            return None
        if before.since_version == after.since_version:
            return _Form()
        if after.deprecated or _has_lost_result(node, before, after):
            return None
        moved = _moved(before, after)
        if not _are_kept(before, after, moved) or not _only_more(before, after, moved):
            return None
        operands: dict[int, Array] = {}
        for attribute, index in moved.items():
            proto = next((each for each in node.attribute if each.name == attribute), None)
            old = before.attributes[attribute]
            if proto is None and old.default_value.type:
                proto = AttributeProto.FromString(old.default_value.SerializeToString())
            if proto is not None:
                array = self._operand(node, proto, after.inputs[index], after)
                if array is None:
                    return None
                operands[index] = array
            elif old.required:
                return None
        is_even = name == "Split" and len(node.input) < 2 and not operands
        parts = len(node.output) if is_even and "num_outputs" not in before.attributes else 0
        return _Form(operands, tuple(moved), parts if "num_outputs" in after.attributes else 0)

    def _operand(
        self, node: NodeProto, proto: AttributeProto, formal: FormalParameter, after: OpSchema
    ) -> Array | None:
        """Return the operand that states an attribute, None if it does not exactly."""
        value = import_attribute(proto, Path(), _no_region)
        if isinstance(value, int):
            return np.array([value] if formal.name == RENAMED["k"] else value, np.int64)
        tensor = tensor_of(value)
        if tensor is None:  # an empty list, which runtimes read differently, or a reference
            return None
        array = tensor.numpy()
        if formal.type_str == after.inputs[0].type_str:
            kinds = self._dtypes.get(node.input[0])
            # An attribute is a float32, which float64 has, too.
            if kinds == {F64}:
                return array.astype(np.float64)
            return array if kinds == {F32} else None
        return array

    @cached_property
    def _dtypes(self) -> dict[str, set[DType | None]]:
        """The element types of the values of each name, which bodies may have in common."""
        found: dict[str, set[DType | None]] = {}
        for graph in from_model(self.model).graphs():
            results = chain.from_iterable(node.outputs for node in graph.walk())
            for value in (*graph.inputs, *results):
                found.setdefault(value.name, set()).add(dtype_of(value.type))
        return found

    def apply(self, graph: GraphProto, node: NodeProto, form: _Form) -> None:
        """Give a node of a graph its new form."""
        for i in reversed(range(len(node.attribute))):
            if node.attribute[i].name in form.gone:
                del node.attribute[i]
        for index, array in form.operands.items():
            node.input.extend([""] * (index + 1 - len(node.input)))
            node.input[index] = self.names.fresh(f"{node.output[0]}.operand")
            write_tensor(graph.initializer.add(), ArrayTensor(array), node.input[index])
        if form.parts:
            node.attribute.add(name="num_outputs", type=AttributeProto.INT, i=form.parts)


def _moved(before: OpSchema, after: OpSchema) -> dict[str, int]:
    """Return the attributes that became operands behind those of before, with their index."""
    places = {each.name: i for i, each in enumerate(after.inputs) if i >= len(before.inputs)}
    gone = before.attributes.keys() - after.attributes.keys()
    names = {name: RENAMED.get(name, name) for name in gone}
    return {name: places[new] for name, new in names.items() if new in places}


def _are_kept(before: OpSchema, after: OpSchema, moved: Mapping[str, int]) -> bool:
    """Return whether attributes are as before or `moved`, and new ones may be absent."""
    for name, attribute in after.attributes.items():
        old = before.attributes.get(name)
        if old is None and attribute.required:
            return False
        if old is not None and (
            old.type != attribute.type
            or old.required != attribute.required
            or old.default_value != attribute.default_value
        ):
            return False
    return before.attributes.keys() <= after.attributes.keys() | moved.keys()


def _only_more(before: OpSchema, after: OpSchema, moved: Mapping[str, int]) -> bool:
    """Return whether operands are as before, and new ones may be absent or are `moved`."""
    had, has = (
        [str(each.option).endswith("Single") for each in schema.inputs]
        for schema in (before, after)
    )
    new = [i for i in range(len(had), len(has)) if has[i] and i not in moved.values()]
    if len(has) < len(had) or new:
        return False
    # An operand that had to be given, and no longer has to, changes nothing.
    return all(was or not now for was, now in zip(had, has, strict=False))


def _has_lost_result(node: NodeProto, before: OpSchema, after: OpSchema) -> bool:
    """Return whether a result is gone, or has none of its types of before."""
    if len(node.output) > after.max_output:
        return True
    pairs = zip(node.output, before.outputs, after.outputs, strict=False)
    return any(name and set(a.types).isdisjoint(b.types) for name, a, b in pairs)


def _no_region(graph: GraphProto) -> NoReturn:
    raise AssertionError(graph.name)
