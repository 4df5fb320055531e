"""The table of all rules of SimplifyExpr by the operator at which they match."""

from __future__ import annotations

from importlib import import_module

from ...ir.ops import ops_with
from ...ir.ops.row import Trait
from ...ir.rule_driver import Rule, Rules
from ...support.lazy_table import LazyTable
from .extents import ShapeEvaluator

MODULES = {
    "elementwise": ("cast", "cast_like", "identity", "nn.dropout"),
    "repeated_operators": (
        *("floor", "ceil", "round", "abs", "sign", "logical_not", "negative"),
        *("logical_and", "logical_or", "maximum", "minimum", "where"),
    ),
    "constant_limits": ("clip", "nn.relu", "maximum", "minimum"),
    "arithmetic": (
        *("add", "add_n", "concatenate", "divide", "maximum", "mean_n", "minimum", "multiply"),
        *("nn.conv", "nn.conv_transpose", "power", "subtract", "where"),
    ),
    "expanded_operands": ops_with(Trait.BROADCASTS),
    "matmul_bias": ("add",),
    "layout": ("transpose", *ops_with(Trait.REDUCES)),
    "padding": ("nn.avg_pool", "nn.conv", "nn.lp_pool", "nn.max_pool"),
    "shape_arithmetic": (
        *(
            "broadcast_to",
            "cast",
            "image.resize",
            "nn.batch_flatten",
            "nn.pad",
            "nn.upsampling",
            "reshape",
            "split",
        ),
        *("tile", "take", "strided_slice", "squeeze", "expand_dims", "concatenate"),
        *("multiply", "add", "subtract", "divide", "where"),
    ),
    "reshaped_regions": ops_with(Trait.RESHAPES),
    "shape_readers": ("shape_of", "take", "strided_slice"),
    "joins": ("concatenate", "strided_slice"),
    "extents_of_one": (*ops_with(Trait.RESHAPES), "take", "transpose"),
    "reductions": ("sum", "mean", "max", "min", "prod"),
    "channel_shuffle": ("reshape", "take"),
    "late_lowering": ("::BatchNormalization", "::Dropout"),
    "control": ("::If",),
    "sequences": ("::SplitToSequence",),
    "recurrent": ("gru", "lstm", "rnn"),
    "space_to_depth": ("concatenate",),
}
"""The modules of rules with the operators of their rules, in the order of trial."""


_MODULES_OF: dict[str, list[str]] = {}
for _module, _ops in MODULES.items():
    for _op in _ops:
        _MODULES_OF.setdefault(_op, []).append(_module)


def _rules_of(op: str) -> tuple[Rule[ShapeEvaluator], ...]:
    """Return the rules for an operator, and import the modules that have them."""
    found: list[Rule[ShapeEvaluator]] = []
    for module in _MODULES_OF[op]:
        rules: Rules[ShapeEvaluator] = import_module(f".{module}", __package__).RULES
        assert op in rules, (
            f"{module} has no rule for {op}"
        )  # a KeyError would read as: there is none anywhere
        found.extend(rules[op])
    return tuple(found)


RULES = LazyTable(_MODULES_OF, _rules_of)
"""The rules for each operator, in the order in which they are tried."""

CLEAN_UP = LazyTable(
    _MODULES_OF, lambda op: tuple(each for each in _rules_of(op) if each.affine == "untouched")
)
"""The rules that remove operators between an affine and a layer, and never an affine."""
