"""Writing plans into the graph.

Nothing here can fail: every question was asked when the plan was made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from ....ir.graph import Node, Value, payload_of
from ....ir.ops import has_trait, parameter_axis
from ....ir.ops.inference import integer_of
from ....ir.ops.row import Trait
from ....ir.rewriter import Rewriter
from ....ir.tensor import Array, ArrayTensor, Tensor, round_to, to_float64
from ....ir.types import DType, dtype_of
from ..algebra.affine import Affine
from ..algebra.layers import Fold
from ..algebra.stored import UnroundedConstants
from ..algebra.transfer import Transfer
from ..records.fold_records import FoldedAffine, Layer, QuantizedParts, fold_records
from ..records.statistics import statistic_refs
from .plan import Change, Plan

if TYPE_CHECKING:
    from ..algebra.quantized_constant import QuantizedConstant


class Committer:
    """Writes plans with a Rewriter, and records which affines went into which layer.

    `limited` has the results that a Max or Min limits per channel, and the last of these for each.
    """

    def __init__(self, rewriter: Rewriter) -> None:
        self.rewriter = rewriter
        self.module = rewriter.module
        self.records = fold_records(self.module)
        self.statistics = statistic_refs(self.module)
        self.limited: dict[Value, Value] = {}
        self._crossed: dict[Node, tuple[str, ...]] = {}
        self._carried: Mapping[int, Sequence[int]] = {}

    def commit(
        self,
        plan: Plan,
        tail: Node,
        first: Node,
        between: Sequence[str] = (),
        carried: Mapping[int, Sequence[int]] = MappingProxyType({}),
    ) -> set[int]:
        """Write every change of `plan` for a chain of affines from the node `first` to `tail`.

        New nodes have the origins of `tail`; `between` are the names of the results inside the
        chain. `carried` lists by the origin of an affine the folded affines of which it holds a
        part. Returns the imported nodes that went into some layer.
        """
        self._carried = carried
        recorded: set[int] = set()
        self._crossed = {
            each.node: tuple([node.label for node in each.crossed])
            for each in plan.changes
            if each.path
        }
        with self.rewriter.rewriting(tail):
            for change in plan.changes:
                if change.fold is not None and self._fold(change, change.fold, first, between):
                    recorded.update(change.fold.affine.origins)
                if change.transfer is not None:
                    self._transfer(change, change.transfer)
        return recorded

    def rename(self, value: Value) -> None:
        """Give a new name to a value with new numbers, and drop its statistics."""
        self.statistics.pop(value, None)
        if value.node is not None and not value.is_returned:
            value.rename(self.module.fresh_name(f"{value.name}.scaled"))

    def _transfer(self, change: Change, transfer: Transfer) -> None:
        node = change.node
        if transfer.constants or transfer.dropped:
            self._operands(node, transfer)
        for name, attribute in transfer.attrs:
            self.rewriter.set_attr(node, name, attribute)
        outputs = node.outputs
        if change.direction == "forward":
            outputs = tuple(node.outputs[i] for i, _ in transfer.results)
        for value in outputs:
            self.rename(value)
        for op, limit in zip(("maximum", "minimum"), transfer.limits, strict=True):
            if limit is not None:
                self._limit(node.output, op, limit)

    def _limit(self, value: Value, op: str, limit: Array) -> None:
        """Let all readers of `value` read its maximum or minimum with a constant.

        The result keeps its name, and the unlimited one gets another.
        """
        last = self.limited.get(value, value)
        assert last.node is not None and last.node.next is not None
        following = last.node.next
        constant = self.constant(limit, dtype_of(value.type), following, f"{last.name}.{op}")
        node = self.rewriter.make(
            op, [last, constant], before=following, hint=f"{last.name}.unlimited", type_=value.type
        )
        self.rewriter.interpose(node)
        self.limited[value] = node.output

    def _operands(self, node: Node, transfer: Transfer) -> None:
        """Replace operands by constants, rounded once however many folds change them.

        Those that the transfer drops are left out.
        """
        dtype = dtype_of(node.output.type)
        inputs = [None if i in transfer.dropped else value for i, value in enumerate(node.inputs)]
        for index, array in transfer.constants:
            inputs.extend([None] * (index + 1 - len(inputs)))
            old = inputs[index]
            axis = parameter_axis(node) if index == 1 else None
            if axis is not None and array.size == array.shape[axis]:
                array = array.reshape(-1)
            elif axis is not None:
                self.rewriter.drop_attr(node, "axis")
            hint = f"{node.output.name}.constant" if old is None else old.name
            inputs[index] = self.constant(array, dtype, node, hint)
        while transfer.dropped and inputs[-1] is None:
            inputs.pop()
        self.rewriter.set_inputs(node, inputs)

    def constant(self, array: Array, dtype: DType | None, before: Node, hint: str) -> Value:
        """Make a constant, rounded to `dtype` if that is known."""
        array = np.ascontiguousarray(array).reshape(array.shape)
        if dtype is None:
            return self.rewriter.constant(ArrayTensor(array), before=before, hint=hint)
        return self.rewriter.rounded(array, dtype, before=before, hint=hint)

    def _fold(self, change: Change, fold: Fold, first: Node, between: Sequence[str]) -> bool:
        layer = self._layer(fold)
        if fold.ones is not None:
            self._add_channel(fold, fold.ones)
        elif fold.factor is not None:
            self._weight(fold, fold.factor)
        if fold.factor is not None:
            if layer is not None:
                layer.factor = fold.factor if layer.factor is None else layer.factor * fold.factor
        for quantized in (fold.quantized_weight, fold.quantized_bias):
            if quantized is not None:
                self._quantized(quantized)
        if layer is not None and fold.is_quantized:
            _note_quantized(layer, fold, change.direction)
        if fold.bias is not None:
            self._bias(fold, fold.bias, first)
        writes_bias = fold.bias is not None or fold.quantized_bias is not None
        is_other_beta = fold.node.attrs.get("beta", 1.0) != fold.beta
        if writes_bias and fold.node.op == "nn.dense" and is_other_beta:
            self.rewriter.set_attr(fold.node, "beta", fold.beta)
        if fold.epsilon is not None:
            self.rewriter.set_attr(fold.node, "epsilon", fold.epsilon)
        if fold.padding is not None:
            self._pad(fold.node, *fold.padding)
        if fold.node.op == "nn.batch_norm_to_affine":
            self._renew(fold.node)
        if layer is not None:
            self._record(layer, change, fold.affine)
            layer.border = fold.border or layer.border
            if change.direction == "backward":
                layer.output_names.append(change.value.name)
                layer.output_names.extend(between if change.path is None else ())
        if fold.shift is not None:
            self._shift(change, fold, fold.shift, layer)
        elif change.direction == "backward" or change.lacks is not None:
            self.rename(change.value)
        return layer is not None

    def _weight(self, fold: Fold, factor: Array) -> None:
        """Multiply the weight by `factor`; FoldConstant computes that and rounds once."""
        node, weight = fold.node, fold.weight
        unrounded = self.module.constants.kept(weight)
        if unrounded is not None:
            made = self.rewriter.rounded(
                to_float64(unrounded) * factor, fold.dtype, before=node, hint=weight.name
            )
            self._read(node, fold.index, made)
            return
        base, product = weight, weight.node
        if product is not None and "folded" in product.attrs and weight.sole_user() is node:
            base, old = product["lhs"], payload_of(product["rhs"])
            assert isinstance(old, Tensor)
            with np.errstate(all="ignore"):
                factor = old.numpy() * factor
        exact = ArrayTensor(np.ascontiguousarray(factor))
        scale = self.rewriter.constant(exact, before=node, hint=f"{base.name}.scale")
        attrs, hint = {"folded": 1}, f"{base.name}.folded"
        product = self.rewriter.make(
            "multiply", [base, scale], attrs, before=node, hint=hint, type_=weight.type
        )
        self._read(node, fold.index, product.output)

    def _read(self, node: Node, index: int, value: Value) -> None:
        """Let a node read another value."""
        inputs = list(node.inputs)
        inputs[index] = value
        self.rewriter.set_inputs(node, inputs)

    def _add_channel(self, fold: Fold, ones: Array) -> None:
        """Multiply the weight by the factor, and let a Pad add a channel of ones with weights."""
        node, data = fold.node, fold.node.operand()
        exact = self.module.constants.exact(fold.weight)
        assert exact is not None
        weight = to_float64(exact) * (1.0 if fold.factor is None else fold.factor)
        weight = np.concatenate([weight, ones], axis=1)
        hint = f"{fold.weight.name}.folded"
        constant = self.rewriter.rounded(weight, fold.dtype, before=node, hint=hint)
        pads = np.zeros((2, ones.ndim), np.int64)
        pads[1, 1] = 1
        pad = self._padded(data, pads.reshape(-1), 1.0, node)
        self.rewriter.set_inputs(node, [pad, constant, *node.inputs[2:]])

    def _padded(self, data: Value, pads: Array, value: float, node: Node) -> Value:
        """Return the result of a new Pad before a layer."""
        constants = (
            self.rewriter.constant(ArrayTensor(pads), before=node, hint=f"{data.name}.pads"),
            self.constant(
                np.array(value), dtype_of(node.output.type), node, f"{data.name}.padding"
            ),
        )
        hint = f"{data.name}.padded"
        return self.rewriter.make("nn.pad", [data, *constants], before=node, hint=hint).output

    def _quantized(self, made: QuantizedConstant) -> None:
        """Give a DequantizeLinear the integers, scales and zero points that changed."""
        node = made.node
        evaluator, inputs = self.module.constants, list(node.inputs)
        scale = round_to(made.scale, made.scale_dtype)
        unrounded = self.module.provenance.table(UnroundedConstants).numbers
        for index, array, dtype, exact in (
            (0, made.integers, made.dtype, made.exact),
            (1, scale, made.scale_dtype, made.scale),
            (2, made.zero_point, made.dtype, None),
        ):
            old = inputs[index] if index < len(inputs) else None
            known = None if old is None else evaluator.array(old)
            if old is None or array is None or known is None:
                continue
            is_exact = exact is None or np.array_equal(exact, known.astype(np.float64))
            if not is_exact or known.shape != array.shape or known.tobytes() != array.tobytes():
                constant = self.rewriter.constant(
                    ArrayTensor(array, dtype), before=node, hint=old.name
                )
                inputs[index] = constant
                if exact is not None:
                    unrounded[constant] = exact
        self.rewriter.set_inputs(node, inputs)
        same_axis = (made.axis, made.axis - made.integers.ndim)
        if made.scale.size > 1 and integer_of(node, "axis", 1) not in same_axis:
            self.rewriter.set_attr(node, "axis", made.axis)
        for value in {node.output: None, made.value: None}:
            self.rename(value)

    def _bias(self, fold: Fold, bias: Array, first: Node) -> None:
        node, index = fold.node, fold.bias_index
        old = node.input(index)
        if old is None and first.op == "nn.bias_add":
            old = first["rhs"]
        hint = bias_name(node) if old is None else old.name
        if has_trait(node, Trait.BIASED):
            exact = ArrayTensor(np.ascontiguousarray(bias))
            constant = self.rewriter.constant(exact, before=node, hint=hint)
        else:
            constant = self.constant(bias, fold.dtype, node, hint)
        inputs = [*node.inputs, *[None] * (index + 1 - len(node.inputs))]
        inputs[index] = constant
        self.rewriter.set_inputs(node, inputs)
        if old is None:
            return
        if old.node is None or old.node.graph is None or old.sole_user() is first:
            constant.name, old.name = old.name, constant.name

    def _renew(self, node: Node) -> None:
        """Replace a node by one with the new operands: no value changes its meaning."""
        new = self.rewriter.make(
            node.op, node.inputs, node.attrs, before=node, hint=node.output.name, name=node.name
        )
        new.stand_for(node)
        for old, value in zip(node.outputs, new.outputs, strict=True):
            self.rewriter.replace(old, value)

    def _pad(self, node: Node, pads: tuple[int, ...], value: float) -> None:
        """Give the padding of a convolution to an explicit Pad with another value."""
        rank = len(pads) // 2
        whole = np.array((0, 0, *pads[:rank], 0, 0, *pads[rank:]), np.int64)
        padded = self._padded(node.operand(), whole, value, node)
        self.rewriter.set_inputs(node, [padded, *node.inputs[1:]])
        if "auto_pad" in node.attrs:
            self.rewriter.drop_attr(node, "auto_pad")
        self.rewriter.set_attr(node, "pads", (0,) * len(pads))

    def _shift(self, change: Change, fold: Fold, shift: Array, layer: Layer | None) -> None:
        """Add after a layer the shift that it cannot take, under the name of its result."""
        node, value = change.node, change.value
        following = node.next
        assert following is not None
        vector = shift.ndim == 1
        constant = self.constant(shift, None if vector else fold.dtype, following, bias_name(node))
        attrs = {"axis": fold.axis} if vector else {}
        add = self.rewriter.make(
            "add", [value, constant], attrs, before=following, hint=value.name, type_=value.type
        )
        self.rewriter.interpose(add)
        self.statistics.pop(value, None)
        if change.direction == "backward":
            self.rename(add.output)
        if layer is not None:
            layer.shift_add = add.output

    def leftover(self, op: str, affine: Affine, data: Value, tail: Node) -> Node:
        """Make the addition or product that stays of an affine, before `tail`."""
        array, suffix = (affine.shift, "shift") if op == "add" else (affine.scale, "scale")
        exact = ArrayTensor(np.ascontiguousarray(array).reshape(array.shape))
        hint = f"{tail.output.name}.{suffix}"
        constant = self.rewriter.constant(exact, before=tail, hint=hint)
        attrs = {} if affine.axis is None else {"axis": affine.axis}
        node = self.rewriter.make(op, [data, constant], attrs, before=tail, hint=tail.output.name)
        node.output.type = tail.output.type
        return node

    def _layer(self, fold: Fold) -> Layer | None:
        """Return the record of a layer, None if nothing of it changes.

        Its node gets a unique name.
        """
        node = fold.node
        if not fold.changes_layer or node.op == "nn.batch_norm_to_affine":
            return None
        layer = self.records.layers.get(node)
        if layer is None:
            bias = None if node.op in ("matmul", "nn.rms_norm") else node["bias"]
            layer = Layer(
                node,
                node.name,
                fold.axis,
                fold.index,
                fold.weight_axis,
                fold.weight.name,
                None if bias is None else bias.name,
                [],
                imported=node.message,
            )
            self.records.layers[node] = layer
            node.name = self.module.unique_node_name(node, node.output.name)
        return layer

    def _record(self, layer: Layer, change: Change, affine: Affine) -> None:
        records = self.records
        sources = records.sources or {}
        crossed = self._crossed.get(change.node, ())
        for stage in affine.stages:
            carried = [other for origin in stage.origins for other in self._carried.get(origin, ())]
            for origin in dict.fromkeys((*stage.origins, *carried)):
                self.module.provenance.refusals.pop(origin, None)
                if origin in sources:
                    axis = layer.axis if change.direction == "backward" else affine.axis
                    record = FoldedAffine(
                        origin, change.direction, axis, stage.scale, stage.shift, crossed
                    )
                    layer.folds.append(record)
                    records.folded.add(origin)


def _note_quantized(layer: Layer, fold: Fold, direction: str) -> None:
    """Record in a layer which parts took the fold that are dequantized."""
    parts = layer.quantized = layer.quantized or QuantizedParts()
    if fold.quantized_weight is not None:
        parts.weight = fold.quantized_weight.node
        signs = np.sign(fold.affine.scale)
        parts.signs = np.broadcast_to(parts.signs, (fold.channels,))
        if direction == "backward":
            parts.signs = parts.signs * signs
        else:
            parts.data_signs = parts.data_signs * signs
    if fold.quantized_bias is not None:
        parts.bias = fold.quantized_bias.node
        parts.bias_error = fold.bias_error


def bias_name(node: Node) -> str:
    """Return a name for a new bias: `conv.bias` beside `conv.weight`, else after the node."""
    weight = node.inputs[1].name if len(node.inputs) > 1 and node.inputs[1] is not None else ""
    weight = weight.removesuffix(".folded")
    if weight.endswith("weight"):
        return weight.removesuffix("weight") + "bias"
    return f"{node.name or node.output.name}.bias"
