"""Legalization: the decisions how IR is written that ONNX cannot express as it is.

All decisions are made before any node is written.

A backward walk over the module decides for each node whether it is written as it is, or

- restored: `multiply` by the scale and `add` of the shift of one `nn.batch_norm_to_affine`, with
  nothing in between, are the BatchNormalization that they came from, which is written instead of
  the three;
- computed: a float64 affine of a constant is a constant;
- narrowed: a float64 parameter of narrower data is rounded to the dtype of the data and shaped for
  the broadcast;
- fused: an `nn.bias_add`, or an `add` made of one, after a convolution or dense layer without bias
  is its bias;
- dated: an operand that is an attribute in the opset of the graph, or another operand, is written
  as such.

Producers that lose their last reader this way are skipped. The module is not changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
from msgspec import Struct, field

from ...frontends.onnx.codec.protos import AttributeProto
from ...ir.evaluate import ConstantEvaluator
from ...ir.graph import Graph, Node, Value
from ...ir.module import Module
from ...ir.ops import has_trait, is_legal, is_wide, op_info, parameter_axis
from ...ir.ops.evaluation import NotEvaluable, align
from ...ir.ops.normalization import batch_norm_of
from ...ir.ops.parameters import (
    attribute_name,
    attribute_of,
    is_exact_attribute,
    legacy_count,
    outdated,
)
from ...ir.ops.row import NUMPY_BROADCAST, OpInfo, Parameter, Trait
from ...ir.record import Record
from ...ir.tensor import Array, ArrayTensor, Tensor, round_to
from ...ir.types import F64, DType, dtype_of, shape_of
from ...support.errors import EmitError, clipped


class Legalization(Struct, eq=False):
    """The decisions for one module.

    `skipped` nodes are not written. `restored` maps an `add` to the data and the
    `nn.batch_norm_to_affine` of its BatchNormalization. `computed` maps values to the constants
    that replace them, `narrowed` a node and the index of an input to the constant that replaces it,
    `fused` a layer to the `nn.bias_add` that is written as its bias, `dated` a node to its form in
    an older opset. `nameless` are constants without a name that are written all the same.
    """

    skipped: set[Node] = field(default_factory=set)
    restored: dict[Node, tuple[Value, Node]] = field(default_factory=dict)
    computed: dict[Value, Tensor] = field(default_factory=dict)
    narrowed: dict[tuple[Node, int], Tensor] = field(default_factory=dict)
    fused: dict[Node, Node] = field(default_factory=dict)
    dated: dict[Node, OldForm] = field(default_factory=dict)
    nameless: list[Value] = field(default_factory=list)


class OldForm(Record):
    """Inputs and attributes of a node in an opset whose parameters have another form.

    An attribute that no pass changed is the object that it was imported from; None stands for one
    that is absent.
    """

    inputs: tuple[Value | None, ...]
    attrs: dict[str, object]


FLOAT64_EXPANSION = 16
"""How much larger a weight of 4 bits is in float64, in which it is multiplied by its factor."""


def onnx_op_type(node: Node) -> str | None:
    """Return the ONNX operator that `node` is written as, None if there is none."""
    info = op_info(node.op)
    if info is not None and info.onnx is not None:
        return info.onnx
    return node.op.split("::", 1)[1] if "::" in node.op else None


def describe(node: Node) -> str:
    """Return `node` as messages name it: name or first result in the model, and ONNX operator."""
    name = node.name or (node.outputs[0].name if node.outputs else "")
    return f"node {clipped(name)} ({onnx_op_type(node) or node.op})"


def legalize(module: Module) -> Legalization:
    """Decide for every node of `module`. O(nodes).

    Raises EmitError if a float64 parameter cannot be computed or shaped.
    """
    legalizer = _Legalizer(module)
    for graph in module.top_graphs():
        for node in reversed(graph.walked()):
            legalizer.visit(node)
    return legalizer.result


class _Legalizer:
    def __init__(self, module: Module) -> None:
        self.module = module
        self.result = Legalization()
        self.dropped: dict[Value, int] = {}
        """The number of reads of a value that are not written."""

    @cached_property
    def evaluator(self) -> ConstantEvaluator:
        """The evaluator of float64 parameters, which only the largest payload limits in size."""
        payloads = (
            node.attrs.get("value") for node in self.module.walked() if node.op == "constant"
        )
        largest = max(
            (payload.nbytes for payload in payloads if isinstance(payload, Tensor)), default=0
        )
        max_bytes = max(self.module.limits.max_constant_bytes, FLOAT64_EXPANSION * largest)
        return ConstantEvaluator(max_bytes, beside=self.module.constants)

    def visit(self, node: Node) -> None:
        result = self.result
        if node in result.skipped:
            return
        if self.is_dead(node):
            result.skipped.add(node)
            self.drop_reads(node, *node.inputs)
            return
        if node.op == "constant":
            if not node.output.name and node.output.users:
                result.nameless.append(node.output)
            return
        info = op_info(node.op)
        if info is not None and info.parameters and (old := outdated(info, self.opset(node.graph))):
            result.dated[node] = self.old_form(node, info, old)
        if node.op == "add" and (found := batch_norm_of(node)) is not None:
            data, multiply, affine = found
            result.restored[node] = (data, affine)
            result.skipped.add(multiply)
            self.drop_affine(affine)
        elif has_trait(node, Trait.ALIGNED):
            self.visit_affine(node)
        elif has_trait(node, Trait.BIASED):
            self.visit_layer(node)

    def is_dead(self, node: Node) -> bool:
        """Return whether the results of the node had readers, and all of them are dropped."""
        if not self.dropped or not any(value in self.dropped for value in node.outputs):
            return False
        if op_info(node.op) is None:  # it may have an effect
            return False
        return all(self.dropped.get(value, 0) == value.use_count for value in node.outputs)

    def drop_reads(self, node: Node, *values: Value | None) -> None:
        for value in values:
            if value is not None:
                self.dropped[value] = self.dropped.get(value, 0) + 1

    def old_form(self, node: Node, info: OpInfo, parameters: Mapping[str, Parameter]) -> OldForm:
        """Return the form of a node in an opset with other `parameters`.

        There they are attributes, or operands at other places.
        """
        count, moved, attrs = legacy_count(info, parameters), {}, dict[str, object]()
        opset = self.opset(node.graph)
        rest = {i: value for i, value in enumerate(node.inputs) if value is not None}
        for name, parameter in parameters.items():
            value = rest.pop(info.operands[name], None)
            stated = attribute_name(name, parameter, opset)
            if parameter.place is not None and value is not None:
                moved[parameter.place] = value
            elif value is not None:
                attrs[stated] = self.attribute(node, stated, value)
                self.drop_reads(node, value)
            elif parameter.place is None:
                attrs[stated] = None
        rest.update(moved)
        if len(rest) and max(rest) >= count:
            raise EmitError(f"{describe(node)}: opset {opset} has no input {max(rest)} of it")
        return OldForm(tuple(rest.get(i) for i in range(max(rest, default=-1) + 1)), attrs)

    def attribute(self, node: Node, name: str, value: Value) -> object:
        producer = value.node
        message = None if producer is None else producer.unchanged_message
        if isinstance(message, AttributeProto) and message.name == name:
            return message
        array = self.evaluator.array(value)
        if array is not None and is_exact_attribute(array):
            return attribute_of(array)
        obstacle = "so it must be constant" if array is None else "and no float32 has its value"
        raise EmitError(
            f"{describe(node)}: {name} is an attribute in opset {self.opset(node.graph)},"
            f" {obstacle}"
        )

    def drop_affine(self, affine: Node) -> None:
        """Drop one read of scale and shift.

        BatchNormalization still reads the parameters of a skipped `affine`.
        """
        for value in affine.outputs:
            self.dropped[value] = self.dropped.get(value, 0) + 1
        if all(self.dropped[value] == value.use_count for value in affine.outputs):
            self.result.skipped.add(affine)

    def visit_affine(self, node: Node) -> None:
        wide = is_wide(node)
        legacy = not is_legal(node.op, NUMPY_BROADCAST, node)
        # ONNX has it as it is: without an axis, or with the axis of an older opset's Add and Mul.
        has_form = "axis" not in node.attrs or (node.op != "nn.bias_add" and legacy)
        if has_form and not wide:
            return
        data, parameter = node.inputs
        assert data is not None and parameter is not None
        if is_from_source(node, parameter):
            return
        if wide and (array := self.evaluator.array(node.output)) is not None:
            self.result.computed[node.output] = ArrayTensor(array)
            self.drop_reads(node, data, parameter)
            return
        is_made_bias = node.source is None and node.op in ("add", "nn.bias_add")
        if is_made_bias and self.fuse(node, data, parameter):
            return
        axis = parameter_axis(node)
        shape = shape_of(data.type)
        if axis is None or legacy:
            self.narrow(node, 1, parameter, dtype_of(data.type))
            return
        if shape is None:
            raise EmitError(
                f"{describe(node)}: the rank of its data is unknown, so its parameter cannot be"
                " shaped"
            )
        self.narrow(node, 1, parameter, dtype_of(data.type), axis, len(shape))

    def opset(self, graph: Graph | None) -> int:
        assert graph is not None
        return graph.opsets.get("", 1)

    def fuse(self, node: Node, data: Value, bias: Value) -> bool:
        """Write `nn.bias_add` as the bias of the layer before it, if possible.

        The node may also be an `add` that a pass made of one.
        """
        layer = data.node
        if layer is None or not has_trait(layer, Trait.BIASED):
            return False
        # other readers of `data` read it without the bias
        if layer.graph is not node.graph or data.sole_user() is not node:
            return False
        if layer["bias"] is not None or parameter_axis(node) != 1:
            return False
        # alpha * (a @ b) + beta * bias
        if layer.op == "nn.dense" and layer.attrs.get("beta", 1.0) != 1.0:
            return False
        # a bias has one number for each channel: it must not broadcast from [1]
        shape, data_shape = shape_of(bias.type), shape_of(data.type)
        if shape is None or data_shape is None or len(data_shape) < 2:
            return False
        if shape != (data_shape[1],):
            return False
        self.result.fused[layer] = node
        self.result.skipped.add(node)
        dtype = dtype_of(data.type)
        if dtype_of(bias.type) is F64 and dtype not in (F64, None):
            self.narrow(layer, 2, bias, dtype)
        return True

    def visit_layer(self, node: Node) -> None:
        bias = node["bias"]
        if bias is None or dtype_of(bias.type) is not F64 or is_from_source(node, bias):
            return
        dtype = dtype_of(node.output.type)
        if dtype is not F64 and dtype is not None:
            self.narrow(node, 2, bias, dtype)

    def narrow(
        self,
        node: Node,
        index: int,
        parameter: Value,
        dtype: DType | None,
        axis: int | None = None,
        rank: int | None = None,
    ) -> None:
        array = self.evaluator.array(parameter)
        if array is None or dtype is None or dtype.kind == "unknown":
            raise EmitError(
                f"{describe(node)}: the parameter {clipped(parameter.name)} cannot be computed"
            )
        if array.dtype == np.float64:
            array = round_to(array, dtype)
        try:
            self.result.narrowed[node, index] = ArrayTensor(_aligned(array, axis, rank), dtype)
        except NotEvaluable as error:
            raise EmitError(f"{describe(node)}: {error}") from None
        self.drop_reads(node, parameter)


def is_from_source(node: Node, parameter: Value) -> bool:
    """Return whether a node of the source model reads the same parameter as in the source model."""
    if node.source is None:
        return False
    producer = parameter.node
    if producer is None:
        return True
    return producer.source is not None and producer.op != "nn.batch_norm_to_affine"


def _aligned(array: Array, axis: int | None, rank: int | None) -> Array:
    if axis is None or rank is None:
        return array
    return align(array, axis, rank)
