"""Conditions that the planner asks for every operator, so that no rule has to."""

from __future__ import annotations

from itertools import islice

import numpy as np

from ....ir.graph import Node, Value, producer_of
from ....ir.ops import sole_reader
from ....ir.provenance import Refused
from ....ir.tensor import round_to, to_float64
from ....ir.types import UNKNOWN, TensorType, dtype_of, shape_of
from ..algebra.affine import MAX_EXTENT, Affine
from ..algebra.layers import Fold
from ..algebra.transfer import Transfer
from .table import NO_RULE, affine_rule


def _described(value: Value) -> str:
    if value.node is None:
        return f"input {value.source_name!r}"
    return f"the result of {value.node.description}"


def check_sole_reader(value: Value, reader: Node) -> None:
    """Refuse to change `value` for `reader` if anything else sees it."""
    if value.is_returned:
        raise Refused("graph_output", f"{value.source_name!r} is an output of the graph")
    if sole_reader(value) is None:
        # A value may have any number of readers, each of which may ask: a few of them make a good
        # enough sentence.
        some = list(islice(value.users, 16))
        inner = next((user for user in some if user.graph is not reader.graph), None)
        if inner is not None:
            detail = f"{_described(value)} is read inside a subgraph by {inner.description}"
            raise Refused("subgraph_boundary", detail)
        raise Refused(
            "multi_consumer",
            f"{_described(value)} is read by {', '.join(user.description for user in some[:3])}",
        )
    if value.graph is not reader.graph:
        detail = f"{_described(value)} is computed outside the subgraph that reads it"
        raise Refused("subgraph_boundary", detail)


def check_reader(value: Value, source: Value, node: Node) -> None:
    """Refuse a reader of `value` that must not change; the affine goes from `source`."""
    if node.op == "return":
        raise Refused("graph_output", f"{value.source_name!r} is an output of the graph")
    if node.graph is not source.graph:
        detail = f"{_described(value)} is read inside a subgraph by {node.description}"
        raise Refused("subgraph_boundary", detail)
    rule = affine_rule(node.op)
    if rule.forward is None and rule.absorb_data is None:
        check_not_kept(node, "after")
        detail = f"{node.description} after it cannot absorb an affine"
        raise Refused("no_foldable_neighbour", detail)
    if batch_norm_parameters(node) is not None:
        detail = f"{node.description} after it is a BatchNormalization that stays"
        raise Refused("no_foldable_neighbour", detail)


def check_not_kept(node: Node, place: str) -> None:
    """Refuse a node that the user keeps, which stands `before` or `after` the affine."""
    if node.is_hidden:
        raise Refused("kept_by_user", f"{node.description} {place} it is to be kept")


def batch_norm_parameters(node: Node) -> Node | None:
    """Return the `nn.batch_norm_to_affine` that `node` reads, if any."""
    for value in node.inputs[:2]:
        parameters = producer_of(value, "nn.batch_norm_to_affine")
        if parameters is not None:
            return parameters
    return None


def check_axis_exists(value: Value | None, affine: Affine) -> None:
    """Refuse an axis beyond the declared type of a value."""
    shape = None if value is None else shape_of(value.type)
    if value is None or shape is None or affine.axis is None:
        return
    if affine.axis + max(len(affine.extents), 1) > len(shape):
        detail = f"{_described(value)} has the type {value.type}, which has no such channels"
        raise Refused("channel_mismatch", detail)


def check_extents(node: Node) -> None:
    """Refuse an operator with a huge axis: an affine along it might not fit into the memory."""
    for value in (*node.inputs, *node.outputs):
        type_ = UNKNOWN if value is None else value.type
        for dim in type_.shape or () if isinstance(type_, TensorType) else ():
            if isinstance(dim, int) and dim > MAX_EXTENT:
                detail = f"{node.description} has an axis of more than {MAX_EXTENT} elements"
                raise Refused("no_foldable_neighbour", detail)


def check_one_axis(node: Node, affine: Affine) -> None:
    """Refuse channels that lie on several axes if the operator cannot take them."""
    rule = affine_rule(node.op)
    if not affine.extents or rule.several_axes or rule is NO_RULE:
        return
    detail = f"{node.description}: the channels lie on several axes before it"
    raise Refused("axis_mismatch", detail)


def check_constants(node: Node, transfer: Transfer) -> None:
    """Refuse constants of a transfer that do not fit the dtype of the node.

    A number that is lost to zero beside others is lost in a sum anyway, but not in a product.
    """
    dtype = dtype_of(node.output.type)
    limits = [limit for limit in transfer.limits if limit is not None]
    for array in (*(array for _, array in transfer.constants), *limits):
        rounded = array if dtype is None else to_float64(round_to(array, dtype))
        if (np.isnan(rounded) | (np.isinf(rounded) & np.isfinite(array))).any():
            raise Refused("overflow", f"{node.description}: a constant would exceed {dtype}")
        if node.op in ("multiply", "divide") and ((rounded == 0) & (array != 0)).any():
            raise Refused("underflow", f"{node.description}: a constant would vanish in {dtype}")


def check_stays_integer(fold: Fold, result: Value) -> None:
    """Refuse the first float bias of an integer product, unless `result` is quantized.

    Runtimes compute such a product in integers: onnxruntime by QGemm and MatMulIntegerToFloat. They
    do not if a float bias follows it, except between QuantizeLinear and DequantizeLinear, between
    which they quantize the bias.
    """
    node = fold.node
    if node.op not in ("nn.dense", "matmul") or (fold.bias is None and fold.shift is None):
        return
    if any(producer_of(value, "dequantize") is None for value in node.inputs[:2]):
        return
    if node.op == "nn.dense" and node["bias"] is not None:
        return
    while (reader := sole_reader(result)) is not None and reader.op in ("nn.relu", "clip"):
        result = reader.output
    if result.is_returned or any(reader.op != "quantize" for reader in result.users):
        detail = "multiplies dequantized matrices, and its result is not quantized"
        effect = "a float bias would make a float product of it"
        raise Refused("quantized_weight", f"{node.description} {detail}: {effect}")


INTEGER_OPERATORS = (
    "QLinear",
    "ConvInteger",
    "MatMulInteger",
    "DynamicQuantizeLinear",
    "QGemm",
    "QAttention",
)
"""Prefixes of the names of foreign operators that round to integers, or read them."""


def check_not_the_scale(data: Value) -> None:
    """Refuse to part a constant from the scale that DynamicQuantizeLinear computes.

    Runtimes look for their product behind MatMulInteger: without it onnxruntime makes no
    DynamicQuantizeMatMul.
    """
    node = data.node
    if node is not None and node.op.rpartition("::")[2] == "DynamicQuantizeLinear":
        detail = f"{node.description} computes the scale, which stays beside its constant"
        raise Refused("quantized_between", detail)


def check_no_integers(node: Node) -> None:
    """Refuse to pass integers: the affine would act before the rounding, not after."""
    name = node.op.rpartition("::")[2]
    dtype = dtype_of(node.operand().type) if node.op == "cast" and node.inputs else None
    casts_integers = dtype is not None and not dtype.is_float
    if name.startswith(INTEGER_OPERATORS) or node.op == "quantize" or casts_integers:
        detail = f"{node.description} computes with integers, which take no affine"
        raise Refused("quantized_between", detail)
