"""The table of all rules of SimplifyExpr by the operator at which they match."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from importlib import import_module

from ...ir.ops import ops_with
from ...ir.ops.row import Trait
from ...ir.rule_driver import AffineEffect, Rule, Rules
from .extents import ShapeEvaluator

MODULES = {
    "elementwise": ("cast", "cast_like", "clip", "identity", "nn.dropout", "nn.relu"),
    "arithmetic": (
        *("add", "add_n", "concatenate", "divide", "maximum", "mean_n", "minimum", "multiply"),
        *("nn.conv", "nn.conv_transpose", "power", "subtract", "where"),
    ),
    "expanded_operands": ops_with(Trait.BROADCASTS),
    "matmul_bias": ("add",),
    "layout": ("transpose", *ops_with(Trait.REDUCES)),
    "padding": ("nn.avg_pool", "nn.conv", "nn.lp_pool", "nn.max_pool"),
    "shape_arithmetic": (
        *("broadcast_to", "cast", "image.resize", "nn.batch_flatten", "nn.pad", "nn.upsampling", "reshape", "split"),
        *("tile", "take", "strided_slice", "squeeze", "expand_dims", "concatenate"),
        *("multiply", "add", "subtract", "divide", "where"),
    ),
    "joins": ("concatenate", "strided_slice"),
    "extents_of_one": (*ops_with(Trait.RESHAPES), "sum", "mean", "max", "min", "take", "transpose"),
    "channel_shuffle": ("reshape", "take"),
    "control": ("::If", "ai.onnx::If"),
    "sequences": ("::SplitToSequence", "ai.onnx::SplitToSequence"),
    "recurrent": ("gru", "lstm", "rnn"),
    "space_to_depth": ("concatenate",),
}
"""The modules of rules with the operators that they have rules for, in the order in which the rules are tried."""


class RuleSet(MutableMapping[str, "tuple[Rule[ShapeEvaluator], ...]"]):
    """The rules of all `MODULES` by operator, or those with the given `effect` on affines.

    A module is imported when one of its operators is looked up: a model has operators of a few of them.
    """

    def __init__(self, effect: AffineEffect | None = None) -> None:
        self._effect = effect
        self._modules: dict[str, list[str]] = {}
        for module, ops in MODULES.items():
            for op in ops:
                self._modules.setdefault(op, []).append(module)
        self._rules: dict[str, tuple[Rule[ShapeEvaluator], ...]] = {}

    def __getitem__(self, op: str) -> tuple[Rule[ShapeEvaluator], ...]:
        found = self._rules.get(op)
        if found is None:
            every = [each for module in self._modules[op] for each in _rules_of(module, op)]
            found = tuple(each for each in every if self._effect in (None, each.affine))
            self._rules[op] = found
        return found

    def __setitem__(self, op: str, rules: tuple[Rule[ShapeEvaluator], ...]) -> None:
        self._modules.setdefault(op, [])
        self._rules[op] = rules

    def __delitem__(self, op: str) -> None:
        del self._modules[op]
        self._rules.pop(op, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


def _rules_of(module: str, op: str) -> Sequence[Rule[ShapeEvaluator]]:
    rules: Rules[ShapeEvaluator] = import_module(f".{module}", __package__).RULES
    assert op in rules, f"{module} has no rule for {op}"  # a KeyError would read as: there is none anywhere
    return rules[op]


RULES = RuleSet()
"""All rules."""

CLEAN_UP = RuleSet("untouched")
"""The rules that remove operators between an affine and a layer, and never an affine."""
