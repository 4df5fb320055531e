"""InferTypes: types that became known since import, by the table or onnx's inference."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

from ..ir.graph import Node, Value, call_key
from ..ir.module import Module
from ..ir.ops import op_info
from ..ir.provenance import SideTable
from ..ir.type_inference import is_known
from ..ir.types import Type, is_static
from .infra import Pass, PassContext
from .type_completion import complete_types

Operands = tuple[Hashable, ...]


class InferenceState(SideTable):
    """The types that inference knew when it ran last."""

    def __init__(self) -> None:
        self.follows = False
        """Whether the types of the inputs gave all others, as read and the last time."""
        self.operands: dict[Node, Operands] = {}
        """For each node whose types are not complete the facts on which inference depended."""


@dataclass(frozen=True)
class InferTypes(Pass):
    """Infer types that became known since the model was read.

    1. Unknown types and extents are filled in, and symbols replaced by numbers, if they are known
       in the model as it is now. The types of graph inputs stay.
    2. The operator table infers them if onnx's shape inference of the whole model would know no
       more.
    3. Inference runs only if an operator of ONNX, or a call of a function, whose result types are
       not all numbers has got an operand of another type, or a constant one.
    """

    name: ClassVar[str] = "InferTypes"

    def run(self, module: Module, ctx: PassContext) -> bool:
        state = module.provenance.table(InferenceState)
        if _is_by_types(module) and (state.follows or not module.changed):
            state.follows = True
            return False
        state.follows = False
        before = state.operands
        state.operands = after = _open_operands(module)
        if not module.changed:
            return False
        if not any(_may_learn(node, before.get(node), found) for node, found in after.items()):
            return False
        changed = complete_types(module)
        if changed:
            state.operands = _open_operands(module)
        return changed


def _may_learn(node: Node, before: Operands | None, after: Operands) -> bool:
    """Return whether inference may learn more about `node` than from the operands `before`."""
    if before is None:  # made by a pass: the op table has inferred its types
        return not all(is_known(value.type) for value in node.outputs if value.name)
    return before[: len(after)] != after[: len(before)]  # one more is a bias


def _is_by_types(module: Module) -> bool:
    """Return whether every type follows from the types of the inputs, by the operator table.

    If that holds of the module as it was read, no rewrite adds to the types while it holds.
    """
    ops = {node.op for graph in module.graphs() for node in graph.operators()}
    return all((info := op_info(op)) is not None and info.infers_by_types for op in ops)


def _open_operands(module: Module) -> dict[Node, Operands]:
    """Return the operands of operators and calls whose results inference may learn more of.

    Not all extents of these results are numbers.
    """
    functions = module.functions
    found: dict[Node, Operands] = {}
    for node in chain.from_iterable([graph.operators() for graph in module.graphs()]):
        for value in node.outputs:
            if value.name and not is_static(value.type):
                is_onnx = op_info(node.op) is not None or node.op.startswith("::")
                if is_onnx or call_key(node) in functions:
                    found[node] = _operands(node)
                break
    return found


def _operands(node: Node) -> Operands:
    """Return the facts that inference depends on: types of operands, and constants."""
    values: Sequence[Value | None] = node.inputs
    if node.regions:
        values = [*values, *[value for region in node.regions for value in region.outputs]]
    return tuple([None if value is None else _fact(value) for value in values])


def _fact(value: Value) -> Type | tuple[Type]:
    """Return the type of a value, in a tuple if it is a constant."""
    # As `is_constant`, without a call: it is asked of every operand.
    node = value.node
    return (value.type,) if node is not None and node.op == "constant" else value.type
