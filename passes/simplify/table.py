"""All rewrites of SimplifyExpr by the operator at which they match."""

from __future__ import annotations

from collections.abc import Callable

from ...ir.evaluate import ConstantEvaluator
from ...ir.graph import Node
from ...ir.rewrite import Rewriter
from . import arithmetic, control, elementwise, layout, padding, shapes
from .rules import Rules

_MODULES = (elementwise, arithmetic, layout, padding, shapes, control)


def _joined() -> Rules:
    rules: Rules = {}
    for module in _MODULES:
        for op, found in module.RULES.items():
            rules[op] = (*rules.get(op, ()), *found)
    return rules


RULES: Rules = _joined()
"""The rules for each operator, in the order in which they are tried."""

CLEAN_UP: dict[str, tuple[Callable[[Node, Rewriter, ConstantEvaluator], bool], ...]] = {
    "cast": (elementwise.drop_cast,),
    "identity": (elementwise.drop_identity,),
    "transpose": (layout.merge_transposes,),
}
"""The rules that remove what may stand in the way of a fold."""
