"""The table of all rules of SimplifyExpr by the operator at which they match."""

from __future__ import annotations

from ...ir.rule_driver import Rule
from ...ir.shape_evaluator import ShapeEvaluator
from . import (
    arithmetic,
    channel_order,
    channel_shuffle,
    constant_limits,
    control,
    elementwise,
    expanded_operands,
    extents_of_one,
    joins,
    late_lowering,
    layout,
    matmul_bias,
    padding,
    recurrent,
    reductions,
    repeated_operators,
    reshaped_regions,
    sequences,
    shape_arithmetic,
    shape_readers,
    space_to_depth,
)

MODULES = (
    elementwise,
    repeated_operators,
    constant_limits,
    arithmetic,
    expanded_operands,
    matmul_bias,
    layout,
    padding,
    shape_arithmetic,
    reshaped_regions,
    shape_readers,
    joins,
    extents_of_one,
    reductions,
    channel_shuffle,
    channel_order,
    late_lowering,
    control,
    sequences,
    recurrent,
    space_to_depth,
)
"""The modules of rules, in the order of trial."""

RULES: dict[str, tuple[Rule[ShapeEvaluator], ...]] = {}
"""The rules for each operator, in the order in which they are tried."""

for _module in MODULES:
    for _op, _rules in _module.RULES.items():
        RULES[_op] = (*RULES.get(_op, ()), *_rules)

CLEAN_UP = {
    op: tuple(each for each in rules if each.affine == "untouched") for op, rules in RULES.items()
}
"""The rules that remove operators between an affine and a layer, and never an affine."""
