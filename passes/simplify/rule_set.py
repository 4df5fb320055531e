"""The table of all rules of SimplifyExpr by the operator at which they match."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType

from ...ir.rule_driver import Rule, Rules, only
from . import (
    arithmetic,
    channel_shuffle,
    control,
    elementwise,
    expanded_operands,
    extents_of_one,
    joins,
    layout,
    matmul_bias,
    padding,
    recurrent,
    sequences,
    space_to_depth,
)
from . import shape_arithmetic as shapes
from .extents import ShapeEvaluator


def _joined(modules: Iterable[ModuleType]) -> Rules[ShapeEvaluator]:
    rules: dict[str, tuple[Rule[ShapeEvaluator], ...]] = {}
    for module in modules:
        for op, found in module.RULES.items():
            rules[op] = (*rules.get(op, ()), *found)
    return rules


MODULES = (
    elementwise,
    arithmetic,
    expanded_operands,
    matmul_bias,
    layout,
    padding,
    shapes,
    joins,
    extents_of_one,
    channel_shuffle,
    control,
    sequences,
    recurrent,
    space_to_depth,
)

RULES: Rules[ShapeEvaluator] = _joined(MODULES)
"""The rules for each operator, in the order in which they are tried."""

CLEAN_UP = only(RULES, "untouched")
"""The rules that remove operators between an affine and a layer, and never an affine."""
