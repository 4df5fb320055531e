"""Result types by the operator table: inference, its limits, and comparison with declarations."""

from __future__ import annotations

from collections.abc import Container, Sequence

from .evaluate import ConstantEvaluator
from .extents import is_same, least
from .graph import Graph, Node, Value, is_constant
from .loops import LOOPS, Carried, carried_values, listed_results, runs_of
from .ops import op_info, ops_with
from .ops.inference import input_shape
from .ops.row import OpInfo, Trait, text_of
from .shape_evaluator import ShapeEvaluator
from .types import UNKNOWN, Dim, Shape, TensorType, Type, shape_of, static_dims

_DECIDE_RANK = frozenset(ops_with(Trait.DECIDES_RANK))

MAX_ROUNDS = 4
"""Most times that the body of a loop is visited until the types assumed of its inputs hold."""

MAX_NESTING = 3
"""Loops inside each other of which the types of carried values are found."""


def infer_types(node: Node, evaluator: ConstantEvaluator, *, again: bool = False) -> None:
    """Fill in unknown dtypes, ranks and extents of a node's results by the operator table.

    If `again`, extents that are known may become plainer: the operands have changed.
    """
    outputs, decides_rank = node.outputs, node.op in _DECIDE_RANK
    are_known = is_known(outputs[0].type) if len(outputs) == 1 else _are_known(outputs)
    if are_known and not again:
        if not decides_rank or _has_rank_of_weight(node):
            return
    for output, inferred in zip(outputs, result_types(node, evaluator), strict=False):
        known = output.type
        if known is UNKNOWN:
            output.type = inferred
        elif isinstance(known, TensorType) and isinstance(inferred, TensorType):
            output.type = merged(known, inferred)
            if decides_rank and inferred.rank is not None and inferred.rank != known.rank:
                # no value has the known type
                output.type = TensorType(known.dtype or inferred.dtype, inferred.shape)


def result_types(node: Node, evaluator: ConstantEvaluator) -> Sequence[Type]:
    """Return the types of a node's results, as far as its operator or its bodies tell them."""
    info = op_info(node.op)
    if info is not None:
        return info.infer(node, evaluator)
    if node.op == "::If" and len(node.regions) == 2:
        branches = [[value.type for value in region.outputs] for region in node.regions]
        return [_common(*types) for types in zip(*branches, strict=False)]
    if node.op not in LOOPS:
        return ()
    carried = carried_values(node)
    types = _carried_types(node, carried) or [UNKNOWN] * len(carried)
    runs = runs_of(node, evaluator)
    if (least(runs) or 0) < 1:  # the ranks of lists of no results are those that a runtime infers
        return types
    return [*types, *[_stacked(value.type, runs) for value, _ in listed_results(node)]]


def _stacked(type_: Type, count: Dim) -> Type:
    """Return the type of the list of `count` results of a body."""
    if not isinstance(type_, TensorType) or type_.shape is None:
        return UNKNOWN
    return TensorType(type_.dtype, (count, *type_.shape))


def _carried_types(node: Node, carried: Sequence[Carried]) -> Sequence[Type]:
    """Return the types of the carried results of a Loop or Scan, and set the types in its body.

    They are found by induction. The first run reads operands whose types are known. If the results
    of a body have the types of its inputs whenever its inputs have them, they have them in every
    run. Assumed types that do not hold are widened.
    """
    if not carried or _nesting(node) > MAX_NESTING:
        return ()
    body = node.regions[0]
    assumed = [UNKNOWN if each.start is None else each.start.type for each in carried]
    before = _types_in(body)
    for _ in range(MAX_ROUNDS):
        if all(shape_of(type_) is None for type_ in assumed):
            break
        for each, type_ in zip(carried, assumed, strict=True):
            each.inside.type = merged(each.inside.type, type_)
        # Nothing may be remembered that is computed from types which may not hold.
        _infer_inside(body, ShapeEvaluator())
        held = [_common(type_, each.end.type) for type_, each in zip(assumed, carried, strict=True)]
        if held == assumed:
            return held
        for value, type_ in before.items():
            value.type = type_
        assumed = held
    return ()


def _nesting(node: Node) -> int:
    """Return how many loops `node` is in, itself included."""
    owners = [] if node.graph is None else [graph.parent for graph in node.graph.ancestors()]
    return 1 + sum(owner is not None and owner.op in LOOPS for owner in owners)


def _types_in(body: Graph) -> dict[Value, Type]:
    """Return the types of all values that are computed in a body, and of its inputs."""
    return {
        value: value.type
        for graph in body.graphs()
        for values in (graph.inputs, *[node.outputs for node in graph.operators()])
        for value in values
    }


def _infer_inside(body: Graph, evaluator: ConstantEvaluator) -> None:
    for node in body.operators():
        if node.op not in LOOPS:
            for region in node.regions:
                _infer_inside(region, evaluator)
        infer_types(node, evaluator)


def _common(a: Type, b: Type) -> Type:
    """Return the type that holds of every value of either type."""
    if a == b:
        return a
    if not isinstance(a, TensorType) or not isinstance(b, TensorType):
        return UNKNOWN
    dtype = a.dtype if a.dtype == b.dtype else None
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return TensorType(dtype)
    same = [
        one if is_same(one, other) else None for one, other in zip(a.shape, b.shape, strict=True)
    ]
    return TensorType(dtype, tuple(same))


def may_infer_more(node: Node, result: Value) -> bool:
    """Return whether onnx may know more of the type of a result than the operator table.

    It may if the rank of the data is known but not the rank of the result, or if an extent is open
    although everything that it depends on is known.
    """
    info, type_ = op_info(node.op), result.type
    if info is None or not info.infers_all:
        return True
    if not isinstance(type_, TensorType) or type_.dtype is None:
        return True
    data = input_shape(node)
    if type_.shape is None or data is None:
        return data is not None
    if _counts_otherwise(node, info):
        return any(
            extent is None and isinstance(dim, int)
            for extent, dim in zip(type_.shape, data, strict=False)
        )
    if static_dims(data) is None:
        return False
    return all([value is None or is_constant(value) for value in node.inputs[1:]])


def _counts_otherwise(node: Node, info: OpInfo) -> bool:
    """Return whether onnx may count extents that the table leaves open for data of known extents.

    It counts windows that are larger than the data, and windows of every `auto_pad`.
    """
    if "strides" in info.attrs:
        return True
    return text_of(node, "coordinate_transformation_mode", "") == "tf_crop_and_resize"


def _has_rank_of_weight(node: Node) -> bool:
    """Return whether the declared rank of a layer's result is the one that its weight gives."""
    shape, known = input_shape(node, "weight"), shape_of(node.output.type)
    if shape is None or known is None:
        return False
    return len(known) == (2 if node.op == "nn.dense" else len(shape))


def _are_known(values: Sequence[Value]) -> bool:
    return all(is_known(value.type) for value in values)


def is_known(type_: Type) -> bool:
    """Return whether dtype, rank and all extents are known; an extent may be a symbol."""
    if not isinstance(type_, TensorType) or type_.dtype is None or type_.shape is None:
        return False
    return None not in type_.shape


def merged(known: Type, found: Type) -> Type:
    """Return `known`, completed by `found`."""
    if known == UNKNOWN:
        return found
    if not (isinstance(known, TensorType) and isinstance(found, TensorType)):
        return known
    return TensorType(known.dtype or found.dtype, _merged_shape(known.shape, found.shape))


def _merged_shape(known: Shape, inferred: Shape) -> Shape:
    """Return `known` with the extents of `inferred` that say more."""
    if known is None or inferred is None or len(known) != len(inferred):
        return inferred if known is None else known
    return tuple(map(_merged_extent, known, inferred))


def _merged_extent(known: Dim, inferred: Dim) -> Dim:
    """Return the more exact extent: a number, then a symbol, then an expression."""
    if known is None or isinstance(known, int) or inferred is None:
        return inferred if known is None else known
    is_plainer = isinstance(inferred, int) or not isinstance(known, str)
    return inferred if is_plainer else known


def contradicts(declared: Type, found: Type, symbols: Container[str]) -> bool:
    """Return whether a declared tensor type excludes an inferred one.

    An extent of a model's input that is one of `symbols` may be any number, so that no number is
    right for it.
    """
    if not isinstance(declared, TensorType) or not isinstance(found, TensorType):
        return False
    if declared.dtype is not None is not found.dtype and declared.dtype != found.dtype:
        return True
    if declared.shape is None or found.shape is None:
        return False
    if len(declared.shape) != len(found.shape):
        return True
    for said, is_ in zip(declared.shape, found.shape, strict=True):
        if not isinstance(said, int) or said < 0:
            continue
        if said != is_ if isinstance(is_, int) else is_ in symbols:
            return True
    return False


def confirms(declared: Type, found: Type, symbols: Container[str]) -> bool:
    """Return whether an inferred type implies a declared one.

    A symbol says nothing of an extent unless it is one of `symbols`, the symbols of the model's
    inputs.
    """
    if declared == found:
        return True
    if not isinstance(declared, TensorType) or not isinstance(found, TensorType):
        return False
    if declared.dtype not in (None, found.dtype):
        return False
    if declared.shape is None or found.shape is None or len(declared.shape) != len(found.shape):
        return declared.shape is None
    return all(
        said == is_ or (said < 0 if isinstance(said, int) else said not in symbols)
        for said, is_ in zip(declared.shape, found.shape, strict=True)
    )
