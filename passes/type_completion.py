"""Completion of types by the operator table or the inference of the source format."""

from __future__ import annotations

from itertools import chain

from ..ir.extents import atoms
from ..ir.graph import Node
from ..ir.module import Module
from ..ir.type_inference import may_infer_more, merged, result_types
from ..ir.types import TensorType, Type, is_static, shape_of


def complete_types(module: Module) -> bool:
    """Complete the types of values in all graphs; return whether any changed."""
    symbols = {
        dim
        for value in module.graph.inputs
        for dim in shape_of(value.type) or ()
        if isinstance(dim, str)
    }
    nodes = [node for graph in module.graph.graphs() for node in graph.operators()]
    by_format = None if all(map(_is_complete, nodes)) else module.foreign.infer_all(module)
    changed = False
    for node in nodes:
        known = () if by_format is None else zip(node.outputs, by_format(node), strict=False)
        for value, found in chain(
            known, zip(node.outputs, result_types(node, module.constants), strict=False)
        ):  # neither knows all
            completed = _completed(value.type, found, symbols)
            if completed != value.type:
                value.type = completed
                changed = True
    return changed


def _is_complete(node: Node) -> bool:
    """Return whether the source format's inference cannot add to the operator table."""
    return not any(
        value.name and not is_static(value.type) and may_infer_more(node, value)
        for value in node.outputs
    )


def _completed(known: Type, found: Type, symbols: set[str]) -> Type:
    """Return `known` with extents of `found` that are numbers, or computed from known `symbols`.

    Inference numbers the symbols that it makes anew, so that only the symbols of the inputs mean
    the same in both.
    """
    if isinstance(found, TensorType) and found.shape is not None:
        kept = [dim if symbols.issuperset(atoms(dim)) else None for dim in found.shape]
        found = TensorType(found.dtype, tuple(kept))
    return merged(known, found)
