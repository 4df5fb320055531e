"""InferTypes: types that became known since import, by the operator table or onnx's shape inference."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence, Set
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import ClassVar

from ..codec.onnx_types import import_type
from ..codec.traversal import all_graphs
from ..ir.evaluate import ConstantEvaluator
from ..ir.graph import Node, Value
from ..ir.module import Module
from ..ir.ops import DEFAULT_DOMAINS, op_info
from ..ir.type_inference import is_known, may_infer_more
from ..ir.types import UNKNOWN, Shape, TensorType, Type, shape_of
from .infra import Pass, PassContext


@dataclass(frozen=True)
class InferTypes(Pass):
    """Infer types that became known since the model was read.

    1. Unknown types and extents are filled in, and symbols replaced by numbers, where they are known in the model as it
       is now. The types of graph inputs stay.
    2. The operator table infers them if onnx's shape inference of the whole model would know no more.
    3. Inference runs only if an operator of ONNX whose result types are not all numbers has got an operand of another
       type, or a constant one.
    """

    name: ClassVar[str] = "InferTypes"

    def run(self, module: Module, ctx: PassContext) -> bool:
        if _is_by_types(module) and (module.types_follow or not module.changed):
            module.types_follow = True
            return False
        module.types_follow = False
        before = module.type_operands
        module.type_operands = after = _open_operands(module)
        if not module.changed or not any(_may_learn(node, before.get(node), found) for node, found in after.items()):
            return False
        changed = complete_types(module)
        if changed:
            module.type_operands = _open_operands(module)
        return changed


Operands = tuple[Hashable, ...]


def _may_learn(node: Node, before: Operands | None, after: Operands) -> bool:
    """Return whether inference may learn more about `node` than from the operands that it had `before`."""
    if before is None:  # a pass has made it, and the op table inferred what it can
        return not all(is_known(value.type) for value in node.outputs if value.name)
    return before[: len(after)] != after[: len(before)]  # one more is a bias


def _is_by_types(module: Module) -> bool:
    """Return whether every type follows from those of the inputs, by the operator table.

    If that holds of the module as it was read, no rewrite adds to the types while it holds.
    """
    ops = {node.op for graph in module.graphs() for node in graph.operators()}
    return all((info := op_info(op)) is not None and info.infers_by_types for op in ops)


def complete_types(module: Module) -> bool:
    """Complete the types of values of the main graph and its subgraphs, and return whether any changed."""
    symbols = {dim for value in module.graph.inputs for dim in shape_of(value.type) or () if isinstance(dim, str)}
    nodes = [node for graph in module.graph.graphs() for node in graph.operators()]
    infer = partial(_by_table, module.constants) if all(map(_is_complete, nodes)) else _by_onnx(module)
    if infer is None:
        return False
    changed = False
    for node in nodes:
        for value, found in zip(node.outputs, infer(node), strict=False):
            completed = _completed(value.type, found, symbols)
            if completed != value.type:
                value.type = completed
                changed = True
    return changed


def _is_complete(node: Node) -> bool:
    """Return whether onnx's shape inference may not know more of the results than the operator table."""
    return not any(value.name and not _is_static(value.type) and may_infer_more(node, value) for value in node.outputs)


def _by_table(constants: ConstantEvaluator, node: Node) -> Sequence[Type]:
    """Return the types of the results by the row of the operator, which it has unless they are known."""
    info = op_info(node.op)
    return () if info is None else info.infer(node, constants)


def _by_onnx(module: Module) -> Callable[[Node], Sequence[Type]] | None:
    """Return a function that returns the types of results by onnx's shape inference, None where that fails."""
    from ..backends.onnx.emitter import emit_model
    from ..frontends.onnx.shape_inference import infer_shapes

    model, _, names = emit_model(module)
    inferred = infer_shapes(model, isolate=module.limits.isolate)
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


def _open_operands(module: Module) -> dict[Node, Operands]:
    """Return the operands of the operators of ONNX of whose results inference may learn more.

    Not all extents of these results are numbers.
    """
    found: dict[Node, Operands] = {}
    for node in chain.from_iterable([graph.operators() for graph in module.graphs()]):
        for value in node.outputs:
            if value.name and not _is_static(value.type):
                if op_info(node.op) is not None or node.op.partition("::")[0] in DEFAULT_DOMAINS:
                    found[node] = _operands(node)
                break
    return found


_NUMBERS = frozenset((int,))


def _is_static(type_: Type) -> bool:
    """Return whether a type is that of a tensor whose extents are all numbers."""
    shape = type_.shape if isinstance(type_, TensorType) else None
    return shape is not None and _NUMBERS.issuperset(map(type, shape))


def _operands(node: Node) -> Operands:
    """Return the facts on which inference of the results depends: types of operands, and which are constants."""
    values: Sequence[Value | None] = node.inputs
    if node.regions:
        values = [*values, *[value for region in node.regions for value in region.outputs]]
    # As `is_constant`, without a call: it is asked of every operand.
    return tuple(
        [None if v is None else (v.type,) if v.node is not None and v.node.op == "constant" else v.type for v in values]
    )
