"""How a channel affine passes each operator: the table that FoldScaleAxis reads.

The row of an operator in `ir.ops` says how its channels move, and both directions are derived from
that. Layers, which take an affine into their weights, and operators that need a rule of their own
have one in a module that is listed here. An operator with neither stops every affine.
"""

from __future__ import annotations

from importlib import import_module

from ....ir.ops import OPS
from ....support.lazy_table import LazyTable
from .affine_rule import AffineRule
from .derived_rules import derived_backward, derived_forward, takes_several_axes

NO_RULE = AffineRule()
"""The rule of an operator that stops every affine."""

MODULES = {
    "conv": ("nn.conv", "nn.conv_transpose"),
    "dense": ("nn.dense", "matmul"),
    "norm": (
        "nn.batch_norm_to_affine",
        "nn.instance_norm",
        "nn.group_norm",
        "nn.layer_norm",
        "nn.rms_norm",
    ),
    "clipping": ("clip", "hard_sigmoid"),
    "dequantized_data": ("dequantize",),
    "broadcast": (
        *("add", "add_n", "nn.bias_add", "subtract", "multiply", "divide"),
        *("mean_n", "maximum", "minimum", "where"),
    ),
    "concatenation": ("concatenate",),
}
"""The modules of rules with the operators that they have rules for."""


_MODULE_OF = {op: module for module, ops in MODULES.items() for op in ops}
_DERIVED = [op for op, info in OPS.items() if info.channels is not None and op not in _MODULE_OF]


def _rule_of(op: str) -> AffineRule:
    module = _MODULE_OF.get(op)
    if module is None:
        return AffineRule(derived_backward, derived_forward, several_axes=takes_several_axes(op))
    rules: dict[str, AffineRule] = import_module(f".{module}", __package__).RULES
    return rules[op]


AFFINE_RULES = LazyTable([*_DERIVED, *_MODULE_OF], _rule_of)
"""The rules by operator. A module of them is imported when one of its operators is looked up."""


def affine_rule(op: str) -> AffineRule:
    """Return the rule of an operator; an operator without one stops every affine."""
    return AFFINE_RULES.get(op, NO_RULE)
