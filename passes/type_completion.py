"""Completion of the types of a module, by the operator table or by onnx's shape inference."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from functools import partial
from itertools import chain

from ..frontends.onnx.codec.onnx_types import import_type, value_info
from ..frontends.onnx.codec.traversal import all_graphs
from ..ir.evaluate import ConstantEvaluator
from ..ir.graph import Node
from ..ir.module import Module
from ..ir.ops import op_info
from ..ir.type_inference import may_infer_more
from ..ir.types import UNKNOWN, Shape, TensorType, Type, is_static, shape_of


def complete_types(module: Module) -> bool:
    """Complete the types of values of the main graph and its subgraphs, and return whether any changed."""
    symbols = {dim for value in module.graph.inputs for dim in shape_of(value.type) or () if isinstance(dim, str)}
    nodes = [node for graph in module.graph.graphs() for node in graph.operators()]
    by_table = partial(_by_table, module.constants)
    by_onnx = None if all(map(_is_complete, nodes)) else _by_onnx(module)
    changed = False
    for node in nodes:
        known = () if by_onnx is None else zip(node.outputs, by_onnx(node), strict=False)
        for value, found in chain(known, zip(node.outputs, by_table(node), strict=False)):  # neither knows all
            completed = _completed(value.type, found, symbols)
            if completed != value.type:
                value.type = completed
                changed = True
    return changed


def _is_complete(node: Node) -> bool:
    """Return whether onnx's shape inference may not know more of the results than the operator table."""
    return not any(value.name and not is_static(value.type) and may_infer_more(node, value) for value in node.outputs)


def _by_table(constants: ConstantEvaluator, node: Node) -> Sequence[Type]:
    """Return the types of the results by the row of the operator, which it has unless they are known."""
    info = op_info(node.op)
    return () if info is None else info.infer(node, constants)


def _by_onnx(module: Module) -> Callable[[Node], Sequence[Type]] | None:
    """Return a function that returns the types of results by onnx's shape inference, None where that fails.

    Inference gets the types that are known: it does not evaluate the constant expressions from which some follow.
    """
    from ..backends.onnx.emitter import emit_model
    from ..frontends.onnx.shape_inference import infer_shapes

    model, _, names = emit_model(module)
    values = [value for node in module.graph.operators() for value in node.outputs if is_static(value.type)]
    known = [value_info(names.of(value), value.type) for value in values if value.name]
    inferred = infer_shapes(model, known=known, isolate=module.limits.isolate)
    if inferred is None:
        return None
    infos = (info for graph in all_graphs(inferred) for info in (*graph.value_info, *graph.output))
    types = {info.name: import_type(info.type) for info in infos}
    return lambda node: [types.get(names.of(value), UNKNOWN) for value in node.outputs]


def _completed(known: Type, found: Type, symbols: Set[str]) -> Type:
    """Return `known` with the extents of `found` where those are numbers, or symbols in `symbols` for unknown ones.

    Inference numbers the symbols that it makes anew, so that only those of the inputs mean the same in both.
    """
    if isinstance(found, TensorType) and found.shape is not None:
        kept = [dim if isinstance(dim, int) or dim in symbols else None for dim in found.shape]
        found = TensorType(found.dtype, tuple(kept))
    if known == UNKNOWN:
        return found
    if not (isinstance(known, TensorType) and isinstance(found, TensorType)):
        return known
    return TensorType(known.dtype or found.dtype, _completed_shape(known.shape, found.shape))


def _completed_shape(known: Shape, found: Shape) -> Shape:
    """Return `known` with the extents of `found` that say more, where both have the same rank."""
    if known is None or found is None:
        return found if known is None else known
    if len(known) != len(found):
        return known
    return tuple(
        b if a is None or (isinstance(a, str) and isinstance(b, int)) else a for a, b in zip(known, found, strict=True)
    )
