"""Verification's own lists of operators, held against the rows of the operator table.

The lists are not made from the rows: a fault of the table must not blind verification. So each list
stands beside what the rows say, and each difference has its reason here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field

import pytest
from irc.ir.ops import OPS
from irc.ir.ops.row import OpInfo, Trait
from irc.tools.verify import numeric_traits as lists
from irc.tools.verify.integer_inputs import ANY_OPERAND, DATA_OPERANDS, ELEMENTWISE, MOVES

KNOWN = {row.onnx for row in OPS.values() if row.onnx}


def rows(holds: Callable[[OpInfo], object]) -> set[str]:
    """Return the ONNX names of the rows for which something holds."""
    return {row.onnx for row in OPS.values() if row.onnx and holds(row)}


def having(*traits: Trait) -> set[str]:
    """Return the ONNX names of the rows with one of the traits."""
    return rows(lambda row: row.traits.intersection(traits))


@dataclass(frozen=True)
class Held:
    """A list, what the rows say of it, and the operators with a row that only one of the two has."""

    listed: Set[str]
    said: Set[str]
    only_listed: Mapping[str, str] = field(default_factory=dict)
    only_said: Mapping[str, str] = field(default_factory=dict)


def why(reason: str, *names: str) -> dict[str, str]:
    return dict.fromkeys(names, reason)


HELD = {
    "SUMS_OF_PRODUCTS": Held(
        lists.SUMS_OF_PRODUCTS,
        rows(lambda row: row.terms) | having(Trait.SUM, Trait.AVERAGES),
        {
            "Mean": "a sum and one division; its row says that it combines",
            **why("a sum of one operand; SUM adds operands", "ReduceSum", "CumSum"),
            "BatchNormalization": "x * scale + shift, a sum of two products",
        },
        why(
            "an average of neighbours, of which sizes and scales are operands. What it reads has"
            " noise as large as its error, or is the same in both models",
            *("Resize", "Upsample"),
        ),
    ),
    "EXACT": Held(
        lists.EXACT,
        having(Trait.MOVES, Trait.EXTREMUM, Trait.EXACT_AT_RUNTIME),
        {
            **why("a choice among operands, or a sign", "Abs", "Clip", "Relu", "Sign"),
            **why("moves elements to places that an operand lists", "GatherElements", "GatherND"),
            **why("moves elements; some are replaced", "Pad", "ScatterElements", "ScatterND"),
            **why("moves elements; some are replaced", "TopK", "Trilu"),
            **why("integers, or constants", "ConstantOfShape", "Shape", "Size"),
            "Round": "a whole number",
            **why("rounds to a type that the model chose", "Cast", "CastLike", "QuantizeLinear"),
            "DequantizeLinear": "its scale is a constant, which has noise of its own",
        },
        why(
            "irc computes the bits of the runtime, which are rounded",
            *("Add", "Mul", "Sub", "Sqrt", "Reciprocal"),
        ),
    ),
    "EXACT_ON_INTEGERS": Held(
        lists.EXACT_ON_INTEGERS,
        having(Trait.EXACT_AT_RUNTIME) & having(Trait.BROADCASTS),
        only_said=why("in EXACT, for all numbers", "Max", "Min", "Where"),
    ),
    "ROUNDED_NEAR_ONE": Held(
        lists.ROUNDED_NEAR_ONE,
        having(Trait.SATURATES),
        why("a share among elements, not a saturating function", "Softmax", "LogSoftmax"),
        {
            **why("in EXACT", "Clip", "Max", "Min"),
            "Softsign": "a quotient, exact up to its own magnitude",
            **why("a layer with states: no formula bounds its rounding", "RNN", "GRU", "LSTM"),
        },
    ),
    "ROUNDED_ONCE": Held(
        lists.ROUNDED_ONCE,
        having(Trait.EXACT_AT_RUNTIME) & having(Trait.ELEMENTWISE),
        only_said=why("in EXACT: not rounded at all", "Ceil", "Floor", "Identity", "Neg"),
    ),
    "COMPARISONS": Held(lists.COMPARISONS, having(Trait.DECIDES) & having(Trait.BROADCASTS)),
    "POLES": Held(lists.POLES.keys(), rows(lambda row: row.pole)),
    "SINGULAR": Held(
        lists.SINGULAR,
        rows(lambda row: row.pole),
        {
            **why("NaN outside of its domain", "Acos", "Acosh", "Asin", "Sqrt"),
            **why("infinite elsewhere than at zero", "Atanh", "Tan"),
            "Mod": "NaN for a divisor of zero",
        },
    ),
    "TAKES_COMPUTED_PARAMETERS": Held(
        lists.TAKES_COMPUTED_PARAMETERS - lists.SUMS_OF_PRODUCTS,
        having(Trait.ABSORBS) - lists.SUMS_OF_PRODUCTS,
        why("an affine, or a rectifier with a slope per channel", "Mul", "Div", "PRelu"),
    ),
    "integer ELEMENTWISE": Held(
        ELEMENTWISE,
        having(Trait.ELEMENTWISE, Trait.BROADCASTS),
        {"Concat": "its operands are data of equal standing"},
        {
            **why("not listed: its operands are kept small", "Acos", "Acosh", "Asin", "Asinh"),
            **why("not listed: its operands are kept small", "Atan", "Atanh", "Celu", "Cos"),
            **why("not listed: its operands are kept small", "Cosh", "Elu", "Gelu", "HardSwish"),
            **why("not listed: its operands are kept small", "Mish", "Selu", "Shrink", "Sin"),
            **why("not listed: its operands are kept small", "Sinh", "Softsign", "Swish", "Tan"),
            **why("not listed: its operands are kept small", "ThresholdedRelu"),
            **why("in DATA_OPERANDS", "Div", "Dropout", "Pow", "Where"),
            **why("handled by itself", "Cast", "CastLike"),
            **why("makes truth values", "Equal", "Greater", "GreaterOrEqual", "Less"),
            **why("makes truth values", "LessOrEqual", "And", "Or", "Xor", "Not"),
        },
    ),
    "integer MOVES": Held(
        MOVES,
        having(Trait.RESHAPES),
        {
            **why("hands its indices on in another order", "Transpose", "Concat"),
            **why("hands its indices on", "Identity", "Cast"),
        },
    ),
}


@pytest.mark.parametrize("name", HELD)
def test_a_list_differs_from_the_rows_for_a_reason(name: str) -> None:
    held = HELD[name]
    assert held.listed & KNOWN - held.said == held.only_listed.keys()
    assert held.said - held.listed == held.only_said.keys()


BY_NAME = {row.onnx: row for row in OPS.values() if row.onnx}


def test_poles_are_those_of_the_rows() -> None:
    for name, operand in lists.POLES.items():
        row = BY_NAME[name]
        assert row.pole is not None and row.operands[row.pole] == operand


DATA = {"data", "lhs", "base", "x", "y", "updates", "constant_value"}
"""Names of operands whose elements become elements of results."""


def test_operands_that_may_take_any_integer_are_data() -> None:
    """An index, a size or a count among them would leave its range."""
    for name, operands in DATA_OPERANDS.items():
        if name in KNOWN:
            names = [BY_NAME[name].inputs[i].rstrip("?") for i in operands]
            assert DATA.issuperset(names), name


def test_lists_that_complete_each_other() -> None:
    assert lists.LONG_SUMS <= lists.SUMS_OF_PRODUCTS
    assert lists.SUMS_OF_PRODUCTS <= lists.OVERFLOWS
    assert not lists.EXACT & (lists.SUMS_OF_PRODUCTS | lists.ROUNDED_NEAR_ONE)
    assert not (ELEMENTWISE & DATA_OPERANDS.keys()) and not (ANY_OPERAND & ELEMENTWISE)
    # A layer that sums squares overflows where its data do not.
    assert having(Trait.ABSORBS) <= lists.OVERFLOWS
