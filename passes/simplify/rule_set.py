"""All rewrites of SimplifyExpr by the operator at which they match."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType

from . import arithmetic, control, elementwise, layout, padding
from . import shape_arithmetic as shapes
from .rules import Rules

_REMOVALS = (arithmetic.single_operand, arithmetic.where_constant)


def _joined(modules: Iterable[ModuleType]) -> Rules:
    rules: Rules = {}
    for module in modules:
        for op, found in module.RULES.items():
            rules[op] = (*rules.get(op, ()), *found)
    return rules


RULES: Rules = _joined((elementwise, arithmetic, layout, padding, shapes, control))
"""The rules for each operator, in the order in which they are tried."""

CLEAN_UP: Rules = {
    op: tuple(rule for rule in rules if rule.__module__ != arithmetic.__name__ or rule in _REMOVALS)
    for op, rules in _joined((elementwise, arithmetic, layout, shapes, control)).items()
}
"""The rules that remove what may stand in the way of a fold: no affine is touched, and no pad, which a fold can use."""
