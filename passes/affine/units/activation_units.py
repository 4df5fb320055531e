"""The units of activations: Gelu, Mish, Swish, HardSwish and HardSigmoid, written out."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress

from ....ir.evaluate import ConstantEvaluator
from ....ir.graph import Node, Value
from ....ir.matching import other_operand, reader_of, result_of
from ....ir.ops.views import clip_bounds
from ....ir.provenance import Declined
from ....ir.record import Record
from .unit import TOLERANCE, Unit, UnitMatch

MOST_INSIDE = 12
"""Operators that compute the argument of an activation from its data."""

MOST_FACTORS = 4
"""Products in a row that are searched for the factors of an activation."""

_PRODUCTS = ("multiply", "divide")


def _softplus(x: float) -> float:
    return math.log1p(math.exp(x))


_FUNCTIONS: dict[str, Callable[..., float]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "power": math.pow,
    "exp": math.exp,
    "log": math.log,
    "nn.softplus": _softplus,
}
"""Operators inside an activation, as functions of numbers."""


class _Activation(Record):
    """x * gate(argument(x)) * factor; `one_more` adds 1 to the gate, `alone` is without x."""

    kind: str
    argument: Callable[[float], float] | None
    factor: float
    one_more: bool = False
    alone: str | None = None


def _gelu_tanh(x: float) -> float:
    return math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)


_FORMS: dict[str, tuple[_Activation, ...]] = {
    "erf": (_Activation("Gelu", lambda x: x / math.sqrt(2), 0.5, one_more=True),),
    "tanh": (
        _Activation("Gelu", _gelu_tanh, 0.5, one_more=True),
        _Activation("Mish", _softplus, 1.0),
    ),
    "sigmoid": (_Activation("Swish", None, 1.0),),
    "clip": (_Activation("HardSwish", lambda x: x + 3, 1 / 6, alone="HardSigmoid"),),
    "hard_sigmoid": (_Activation("HardSwish", lambda x: x, 1.0),),
}
"""The activations by the operator of their gate, which is their anchor.

Swish is SiLU, and the quick Gelu.
"""


def activation_at(anchor: Node, constants: ConstantEvaluator) -> Unit | None:
    """Return the activation whose gate `anchor` is, or None."""
    for form in _FORMS[anchor.op] if _is_gate(anchor, constants) else ():
        with suppress(Declined):
            return _activation(UnitMatch(anchor, constants, {anchor}), form)
    return None


def _activation(match: UnitMatch, form: _Activation) -> Unit:
    """Return the unit of an activation in any order of its factors."""
    last = match.anchor
    if form.one_more:
        sum_ = match.reader(last, "add")
        if match.scalar(other_operand(sum_, last.output)) != 1.0:
            raise Declined("it adds something other than 1")
        last = sum_
    product, has_data = 1.0, False
    alone: Unit | None = None
    for _ in range(MOST_FACTORS):
        try:
            last, factor, is_data = _factor(match, form, last, has_data)
        except Declined:
            break
        product, has_data = product * factor, has_data or is_data
        if math.isclose(product, form.factor, rel_tol=TOLERANCE):
            if has_data:
                return match.unit(form.kind)
            alone = _alone(match, form)
    if alone is None:
        raise Declined("no activation has its factors")
    return alone


def _factor(
    match: UnitMatch, form: _Activation, last: Node, has_data: bool
) -> tuple[Node, float, bool]:
    """Return the next product, its number, and whether it multiplies by the data, too."""
    product = reader_of(last, *_PRODUCTS)
    other = other_operand(product, last.output)
    number = match.scalar(other)
    if product.op == "divide":
        if product["rhs"] is last.output or not number:
            raise Declined("it divides by something other than a number")
        number = 1 / number
    is_data = number is None
    if number is None:
        if has_data:
            raise Declined("it multiplies by more than the data")
        number = _data(match, form, other, product)
    match.nodes.add(product)
    return product, number, is_data


def _is_gate(anchor: Node, constants: ConstantEvaluator) -> bool:
    """Return whether an anchor has the attributes and bounds of an activation."""
    if anchor.op == "clip":
        bounds = clip_bounds(anchor, constants)
        return bounds is not None and tuple(bounds.ends) == (0.0, 6.0)
    if anchor.op == "hard_sigmoid":
        alpha, beta = anchor.attrs.get("alpha", 0.2), anchor.attrs.get("beta", 0.5)
        is_sixth = isinstance(alpha, float) and math.isclose(alpha, 1 / 6, rel_tol=TOLERANCE)
        return is_sixth and beta == 0.5
    return True


def _data(match: UnitMatch, form: _Activation, value: Value, product: Node) -> float:
    """Return the number by which `value` multiplies the data; add the operators found."""
    candidates: list[tuple[Value, float, set[Node]]] = [(value, 1.0, set())]
    with suppress(Declined):
        node = result_of(value, *_PRODUCTS, only_for=product)
        numbers = [match.scalar(operand) for operand in node.inputs]
        if numbers[1]:
            factor = numbers[1] if node.op == "multiply" else 1 / numbers[1]
            candidates.append((node["lhs"], factor, {node}))
        elif numbers[0] and node.op == "multiply":
            candidates.append((node["rhs"], numbers[0], {node}))
    for x, factor, nodes in candidates:
        with suppress(Declined):
            match.nodes |= _argument(match, form, x) | nodes
            return factor
    raise Declined("it does not multiply by the data")


def _computing(match: UnitMatch, x: Value, expected: Callable[[float], float]) -> set[Node]:
    """Return the operators that compute `expected` of `x` for the anchor."""
    inside: set[Node] = set()
    for at in (1.0, -2.0):
        found = _at(match, match.anchor.operand(), x, at, inside)
        if not math.isclose(found, expected(at), rel_tol=TOLERANCE):
            raise Declined("it computes something else")
    return inside


def _at(match: UnitMatch, value: Value, x: Value, at: float, inside: set[Node]) -> float:
    """Return the number of `value` if `x` is `at`, computed from that and scalars alone."""
    if value is x:
        return at
    known = match.scalar(value)
    if known is not None:
        return known
    node = result_of(value, *_FUNCTIONS)
    inside.add(node)
    if node.graph is not match.anchor.graph or len(inside) > MOST_INSIDE or len(node.inputs) > 2:
        raise Declined("it is computed in another graph, or of too much")
    operands = [_at(match, node.operand(i), x, at, inside) for i in range(len(node.inputs))]
    try:
        result = _FUNCTIONS[node.op](*operands)
    except (ArithmeticError, ValueError):
        raise Declined("it is not a real number") from None
    if not isinstance(result, float):
        raise Declined("it is not a real number")
    return result


def _argument(match: UnitMatch, form: _Activation, x: Value) -> set[Node]:
    """Return the operators that compute the operand of the anchor from `x`."""
    if form.argument is not None:
        return _computing(match, x, form.argument)
    gate = match.anchor.operand()
    if gate is x:
        return set()
    node = result_of(gate, *_PRODUCTS)
    has_number = any(match.scalar(operand) is not None for operand in node.inputs)
    if x not in node.inputs or not has_number or node.graph is not match.anchor.graph:
        raise Declined("it is not the data times a number")
    return {node}


def _alone(match: UnitMatch, form: _Activation) -> Unit | None:
    """Return the unit of a gate that multiplies nothing, if the form has one."""
    gate = match.anchor.operand().node
    for x in () if gate is None or form.alone is None else gate.inputs:
        if x is not None and form.argument is not None and not match.constants.is_constant(x):
            with suppress(Declined):
                inside = _computing(match, x, form.argument)
                return UnitMatch(match.anchor, match.constants, match.nodes | inside).unit(
                    form.alone or form.kind
                )
    return None
