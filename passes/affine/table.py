"""How a channel affine passes each operator: the table that FoldScaleAxis reads.

The row of an operator in `ir.ops` says how its channels move, and both directions are derived from that. Layers, which
take an affine into their weights, and operators that need a rule of their own have one in a module that is listed here.
An operator with neither stops every affine.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module

from ...ir.ops import OPS
from .affine_rule import AffineRule
from .derived_rules import derived_backward, derived_forward, takes_several_axes

NO_RULE = AffineRule()
"""The rule of an operator that stops every affine."""

MODULES = {
    "conv": ("nn.conv", "nn.conv_transpose"),
    "dense": ("nn.dense", "matmul"),
    "norm": ("nn.batch_norm_to_affine", "nn.instance_norm", "nn.group_norm", "nn.layer_norm", "nn.rms_norm"),
    "clipping": ("clip", "hard_sigmoid"),
    "dequantized_data": ("dequantize",),
    "broadcast": (
        *("add", "add_n", "nn.bias_add", "subtract", "multiply", "divide"),
        *("mean_n", "maximum", "minimum", "where"),
    ),
    "concatenation": ("concatenate",),
}
"""The modules of rules with the operators that they have rules for."""


class AffineRules(MutableMapping[str, AffineRule]):
    """The rules by operator. A module of them is imported when one of its operators is looked up."""

    def __init__(self) -> None:
        self._modules = {op: module for module, ops in MODULES.items() for op in ops}
        self._rules: dict[str, AffineRule | None] = {
            op: AffineRule(derived_backward, derived_forward, several_axes=takes_several_axes(op))
            for op, info in OPS.items()
            if info.channels is not None
        } | dict.fromkeys(self._modules)

    def of(self, op: str) -> AffineRule:
        """Return the rule of an operator; an operator without one stops every affine."""
        found = self._rules.get(op, NO_RULE)
        return self[op] if found is None else found

    def __getitem__(self, op: str) -> AffineRule:
        found = self._rules[op]
        if found is None:
            found = self._rules[op] = _rules_of(self._modules[op])[op]
        return found

    def __setitem__(self, op: str, rule: AffineRule) -> None:
        self._rules[op] = rule

    def __delitem__(self, op: str) -> None:
        del self._rules[op]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rules)

    def __len__(self) -> int:
        return len(self._rules)


def _rules_of(module: str) -> dict[str, AffineRule]:
    rules: dict[str, AffineRule] = import_module(f".{module}", __package__).RULES
    return rules


AFFINE_RULES = AffineRules()
"""The rules by operator."""

affine_rule = AFFINE_RULES.of
"""Return the rule of an operator: as a bound method, without a call of its own."""
