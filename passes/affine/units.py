"""Units: operators that together write out one that runtimes have, such as Gelu, LayerNormalization or attention.

A runtime fuses a unit that it finds as exporters write it. A scale that leaves the unit, or enters it, costs more at
run time than it saves, so no affine goes out of a unit or into the middle of one. The product by gamma and the sum of
beta that end a normalization stay too, but take the affines after them into their constants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress

from ...ir.evaluate import ConstantEvaluator
from ...ir.graph import Graph, Node, Value, producer_of
from ...ir.matching import other_operand, reader_of, result_of
from ...ir.ops.inference import integers_of
from ...ir.ops.views import clip_bounds
from ...ir.provenance import Declined
from ...ir.types import element_count, shape_of, static_shape_of
from ...support.record import field, record
from .attention import ROTARY, SCORES, rotary_of, scores_of

CODE = "fused_unit"
"""The reason code of an affine that stays for the sake of a unit."""

TOLERANCE = 1e-3
"""Relative deviation of a written constant from the true one: f16 and truncated decimals pass."""

MOST_INSIDE = 12
"""Operators that compute the argument of an activation from its data."""

MOST_FACTORS = 4
"""Products in a row that are searched for the factors of an activation."""

SEARCHED = 48
"""Operators around one that are searched for the unit it belongs to."""

_PRODUCTS = ("multiply", "divide")
_ARITHMETIC = ("add", "subtract", "multiply", "divide", "power")


@record
class Unit:
    """The operators `nodes` that together are the operator `kind`. The constants of `ends` may change."""

    kind: str
    nodes: frozenset[Node]
    ends: frozenset[Node] = frozenset()

    def obstacle(self, node: Node) -> str:
        """Return the reason why an affine does not move at `node`, for messages."""
        return f"{node.description} is part of a {self.kind}, which a runtime computes as one operator"


@record(frozen=False)
class _Match:
    """The operators of a unit that were found so far, and its constants."""

    anchor: Node
    constants: ConstantEvaluator
    nodes: set[Node] = field(default_factory=set)

    def scalar(self, value: Value | None) -> float | None:
        """Return the number that a constant of one element holds, None where it is something else."""
        if value is None or not self.constants.is_constant(value):
            return None
        shape = static_shape_of(value.type)
        if shape is None or element_count(shape) != 1:
            return None
        array = self.constants.array(value)
        return None if array is None or array.dtype.kind not in "fiu" else float(array.reshape(()))

    def reader(self, node: Node, *ops: str) -> Node:
        """Return the only reader of `node`, which must be one of `ops`, and add it to the nodes."""
        reader = reader_of(node, *ops)
        self.nodes.add(reader)
        return reader

    def argument(self, x: Value, expected: Callable[[float], float]) -> set[Node]:
        """Return the operators that compute `expected` of `x` for the anchor."""
        inside: set[Node] = set()
        for at in (1.0, -2.0):
            found = self._at(self.anchor.operand(), x, at, inside)
            if not math.isclose(found, expected(at), rel_tol=TOLERANCE):
                raise Declined("it computes something else")
        return inside

    def _at(self, value: Value, x: Value, at: float, inside: set[Node]) -> float:
        """Return the number that `value` is where `x` is `at`; it must be computed from that and scalars alone."""
        if value is x:
            return at
        known = self.scalar(value)
        if known is not None:
            return known
        node = result_of(value, *_FUNCTIONS)
        inside.add(node)
        if node.graph is not self.anchor.graph or len(inside) > MOST_INSIDE or len(node.inputs) > 2:
            raise Declined("it is computed in another graph, or of too much")
        operands = [self._at(node.operand(i), x, at, inside) for i in range(len(node.inputs))]
        try:
            result = _FUNCTIONS[node.op](*operands)
        except (ArithmeticError, ValueError):
            raise Declined("it is no real number") from None
        if not isinstance(result, float):
            raise Declined("it is no real number")
        return result

    def unit(self, kind: str, ends: frozenset[Node] = frozenset()) -> Unit:
        """Return the unit of the nodes found, whose last one alone may be read elsewhere."""
        open_ends = [node for node in self.nodes if any(user not in self.nodes for user in node.output.users)]
        if len(open_ends) > 1:
            raise Declined("an operator inside has other readers")
        return Unit(kind, frozenset(self.nodes), ends)


_FUNCTIONS: dict[str, Callable[..., float]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "power": math.pow,
    "exp": math.exp,
    "log": math.log,
    "nn.softplus": lambda a: math.log1p(math.exp(a)),
}
"""Operators inside an activation, as functions of numbers."""


@record
class _Activation:
    """x * gate(argument(x)) * factor, with 1 added to the gate if `one_more`; without x too if `alone` names that."""

    kind: str
    argument: Callable[[float], float] | None
    factor: float
    one_more: bool = False
    alone: str | None = None


def _softplus(x: float) -> float:
    return math.log1p(math.exp(x))


def _gelu_tanh(x: float) -> float:
    return math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)


_ACTIVATIONS: dict[str, tuple[_Activation, ...]] = {
    "erf": (_Activation("Gelu", lambda x: x / math.sqrt(2), 0.5, one_more=True),),
    "tanh": (_Activation("Gelu", _gelu_tanh, 0.5, one_more=True), _Activation("Mish", _softplus, 1.0)),
    "sigmoid": (_Activation("Swish", None, 1.0),),
    "clip": (_Activation("HardSwish", lambda x: x + 3, 1 / 6, alone="HardSigmoid"),),
    "hard_sigmoid": (_Activation("HardSwish", lambda x: x, 1.0),),
}
"""The activations by the operator of their gate, which is their anchor. Swish is SiLU, and the quick Gelu."""


def units_of(graph: Graph, constants: ConstantEvaluator) -> dict[Node, Unit]:
    """Return the unit of every node of `graph` that is part of one. O(nodes)."""
    found: dict[Node, Unit] = {}
    for node in graph.operators_of(_ANCHORS):
        unit = _anchored(node, constants)
        if unit is not None:
            found.update(dict.fromkeys(unit.nodes, unit))
    return found


def unit_of(node: Node, constants: ConstantEvaluator) -> Unit | None:
    """Return the unit that `node` is part of, None where there is none. O(1)."""
    for inner in _SEARCHES:
        for near in _around(node, inner) if node.op in inner else ():
            if near.op in _ANCHORS:
                unit = _anchored(near, constants)
                if unit is not None and node in unit.nodes:
                    return unit
    return None


def _around(node: Node, inner: frozenset[str]) -> Iterator[Node]:
    """Yield the operators around `node`, the nearest first; the search goes on from those that a unit may have."""
    queue, seen = [node], {node}
    for each in queue:
        yield each
        near = [value.node for value in each.inputs if value is not None and value.node is not None]
        values = [*each.inputs, *each.outputs]
        near += [user for value in values if value is not None and len(value.users) <= 4 for user in value.users]
        for other in near:
            if other not in seen and len(seen) < SEARCHED and other.graph is node.graph and other.op in inner:
                seen.add(other)
                queue.append(other)


def _anchored(anchor: Node, constants: ConstantEvaluator) -> Unit | None:
    """Return the unit around the operator that is typical of it, None where there is none."""
    match = _Match(anchor, constants, {anchor})
    with suppress(Declined):
        if anchor.op == "sqrt":
            return _normalization(match)
        if anchor.op == "matmul":
            return Unit(SCORES, scores_of(anchor, match.scalar, constants))
        if anchor.op in _TURNS:
            return Unit(ROTARY, rotary_of(anchor, constants))
    for form in _ACTIVATIONS.get(anchor.op, ()) if _is_gate(anchor, constants) else ():
        with suppress(Declined):
            return _activation(_Match(anchor, constants, {anchor}), form)
    return None


def _activation(match: _Match, form: _Activation) -> Unit:
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
        raise Declined("its factors are those of no activation")
    return alone


def _factor(match: _Match, form: _Activation, last: Node, has_data: bool) -> tuple[Node, float, bool]:
    """Return the next product, the number that it multiplies by, and whether it multiplies by the data, too."""
    product = reader_of(last, *_PRODUCTS)
    other = other_operand(product, last.output)
    number = match.scalar(other)
    if product.op == "divide":
        if product.inputs[1] is last.output or not number:
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
    """Return whether the attributes and bounds of an anchor are those of an activation."""
    if anchor.op == "clip":
        bounds = clip_bounds(anchor, constants)
        return bounds is not None and tuple(bounds.ends) == (0.0, 6.0)
    if anchor.op == "hard_sigmoid":
        alpha, beta = anchor.attrs.get("alpha", 0.2), anchor.attrs.get("beta", 0.5)
        return isinstance(alpha, float) and math.isclose(alpha, 1 / 6, rel_tol=TOLERANCE) and beta == 0.5
    return True


def _data(match: _Match, form: _Activation, value: Value, product: Node) -> float:
    """Return the number by which `value` multiplies the data of the activation; the operators found are added."""
    candidates: list[tuple[Value, float, set[Node]]] = [(value, 1.0, set())]
    with suppress(Declined):
        node = result_of(value, *_PRODUCTS, only_for=product)
        numbers = [match.scalar(operand) for operand in node.inputs]
        if numbers[1]:
            candidates.append((node.operand(0), numbers[1] if node.op == "multiply" else 1 / numbers[1], {node}))
        elif numbers[0] and node.op == "multiply":
            candidates.append((node.operand(1), numbers[0], {node}))
    for x, factor, nodes in candidates:
        with suppress(Declined):
            match.nodes |= _argument(match, form, x) | nodes
            return factor
    raise Declined("it does not multiply by the data")


def _argument(match: _Match, form: _Activation, x: Value) -> set[Node]:
    """Return the operators that compute the operand of the anchor from `x`."""
    if form.argument is not None:
        return match.argument(x, form.argument)
    gate = match.anchor.operand()
    if gate is x:
        return set()
    node = result_of(gate, *_PRODUCTS)
    is_scaled = x in node.inputs and any(match.scalar(operand) is not None for operand in node.inputs)
    if not is_scaled or node.graph is not match.anchor.graph:
        raise Declined("it is not the data times a number")
    return {node}


def _alone(match: _Match, form: _Activation) -> Unit | None:
    """Return the unit of a gate that multiplies nothing, None where the form has none, or the argument is another."""
    gate = match.anchor.operand().node
    for x in () if gate is None or form.alone is None else gate.inputs:
        if x is not None and form.argument is not None and not match.constants.is_constant(x):
            with suppress(Declined):
                inside = match.argument(x, form.argument)
                return _Match(match.anchor, match.constants, match.nodes | inside).unit(form.alone or form.kind)
    return None


def _normalization(match: _Match) -> Unit:
    """Return the unit of a LayerNormalization, or RMSNormalization, around the square root of its variance."""
    square = _variance(match)
    quotient, numerator = _divided_by(match)
    squared, divided = _before_cast(match, square.operand()), _before_cast(match, numerator)
    mean = _centered(match, squared)
    if divided is not squared and (mean is None or _centered(match, divided) is not mean):
        raise Declined("the data divided are not those of the variance")
    gamma = _parameter(match, quotient, "multiply")
    if mean is None:
        return match.unit("RMSNormalization", frozenset((gamma,)))
    return match.unit("LayerNormalization", frozenset((gamma, _parameter(match, gamma, "add"))))


def _variance(match: _Match) -> Node:
    """Return the square of the data, of which the anchor is the root of the mean, with epsilon added."""
    total = result_of(match.anchor.operand(), "add")
    epsilon = next((value for value in total.inputs if match.scalar(value) is not None), None)
    if epsilon is None:
        raise Declined("no epsilon is added to the variance")
    mean = result_of(other_operand(total, epsilon), "mean")
    square = result_of(mean.operand(), "power", "multiply")
    is_power = square.op == "power" and match.scalar(square.input(1)) == 2.0
    is_product = square.op == "multiply" and square.inputs[0] is square.inputs[1]
    if not (_is_mean_of_row(mean, match.constants) and (is_power or is_product)):
        raise Declined("it is not the root of a mean of squares along the last axis")
    match.nodes |= {total, mean, square}
    return square


def _is_mean_of_row(mean: Node, constants: ConstantEvaluator) -> bool:
    """Return whether a mean is along the last axis, which stays as an extent of 1."""
    last = len(shape_of(mean.operand().type) or ()) - 1
    return integers_of(mean, 1, constants) in ((-1,), (last,)) and mean.attrs.get("keepdims", 1) == 1


def _divided_by(match: _Match) -> tuple[Node, Value]:
    """Return the operator that divides by the root, and its numerator."""
    root = match.anchor.output
    reader = match.reader(match.anchor, "reciprocal", "divide")
    if reader.op == "divide" and reader.inputs[1] is not root:
        raise Declined("it divides the root")
    if reader.op == "reciprocal" or match.scalar(reader.inputs[0]) == 1.0:
        product = match.reader(reader, "multiply")
        return product, other_operand(product, reader.output)
    return reader, reader.operand(0)


def _before_cast(match: _Match, value: Value) -> Value:
    """Return the value that a Cast between the operators of a unit converts, or `value`."""
    node = producer_of(value, "cast")
    if node is None or any(user not in match.nodes for user in value.users):
        return value
    match.nodes.add(node)
    return node.operand()


def _centered(match: _Match, value: Value) -> Value | None:
    """Return the mean that `value` is the data without, None where it is something else."""
    node = producer_of(value, "subtract")
    mean = None if node is None else producer_of(node.operand(1), "mean")
    if node is None or mean is None or not _is_mean_of_row(mean, match.constants):
        return None
    if mean.operand() is not node.operand(0):
        return None
    match.nodes |= {node, mean}
    return mean.output


def _parameter(match: _Match, last: Node, op: str) -> Node:
    """Return the operator that applies gamma or beta, a constant along the last axis, to the result of `last`."""
    node = match.reader(last, "cast", op)
    if node.op == "cast":
        node = match.reader(node, op)
    parameter = next((operand for operand in node.inputs if match.constants.is_constant(operand)), None)
    shape = () if parameter is None else static_shape_of(parameter.type) or ()
    is_row = len(node.inputs) == 2 and "axis" not in node.attrs and shape[-1:] == (element_count(shape),)
    if not is_row or producer_of(parameter, "nn.batch_norm_to_affine") is not None:
        raise Declined("the parameter is no constant along the last axis")
    return node


_TURNS = ("negative", "subtract")
_ANCHORS = frozenset((*_ACTIVATIONS, *_TURNS, "sqrt", "matmul"))
_INNER = frozenset((*_ARITHMETIC, *_FUNCTIONS, *_ACTIVATIONS, "sqrt", "cast", "mean", "reciprocal"))
_OF_SCORES = frozenset(("multiply", "divide", "transpose", "matmul"))
_OF_ROTARY = frozenset((*_TURNS, "multiply", "add", "concatenate"))
_SEARCHES = (_INNER, _OF_SCORES, _OF_ROTARY)
"""Operators along which the units of a node are searched: those of one unit would lead astray from another."""
