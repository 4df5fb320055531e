"""Units: operators that together write out one that runtimes have, such as Gelu, LayerNormalization or attention.

A runtime fuses a unit that it finds as exporters write it. A scale that leaves the unit, or enters it, costs more at
run time than it saves, so no affine goes out of a unit or into the middle of one. The product by gamma and the sum of
beta that end a normalization stay too, but take the affines after them into their constants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ...ir.evaluate import ConstantEvaluator
from ...ir.graph import Graph, Node, Value
from ...ir.ops.inference import integers_of
from ...ir.ops.views import clip_bounds
from ...ir.types import element_count, shape_of, static_shape_of
from ...support.record import record
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


@dataclass
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

    def reader(self, value: Value) -> Node | None:
        """Return the only reader of a value in the graph of the anchor."""
        node = value.sole_user()
        return node if node is not None and node.graph is self.anchor.graph else None

    def argument(self, x: Value, expected: Callable[[float], float]) -> set[Node] | None:
        """Return the operators that compute `expected` of `x` for the anchor, None where something else is computed."""
        inside: set[Node] = set()
        for at in (1.0, -2.0):
            found = self._at(self.anchor.input(0), x, at, inside)
            if found is None or not math.isclose(found, expected(at), rel_tol=TOLERANCE):
                return None
        return inside

    def _at(self, value: Value | None, x: Value, at: float, inside: set[Node]) -> float | None:
        """Return the number that `value` is where `x` is `at`; it must be computed from that and scalars alone."""
        if value is x:
            return at
        known = self.scalar(value)
        if known is not None:
            return known
        node = None if value is None else value.node
        function = None if node is None else _FUNCTIONS.get(node.op)
        if node is None or function is None or node.graph is not self.anchor.graph:
            return None
        inside.add(node)
        if len(inside) > MOST_INSIDE or len(node.inputs) > 2:
            return None
        operands = []
        for operand in node.inputs:
            number = self._at(operand, x, at, inside)
            if number is None:
                return None
            operands.append(number)
        try:
            result = function(*operands)
        except (ArithmeticError, ValueError):
            return None
        return result if isinstance(result, float) else None

    def unit(self, kind: str, ends: frozenset[Node] = frozenset()) -> Unit | None:
        """Return the unit of the nodes found, whose last one alone may be read elsewhere."""
        open_ends = [node for node in self.nodes if any(user not in self.nodes for user in node.output.users)]
        return Unit(kind, frozenset(self.nodes), ends) if len(open_ends) <= 1 else None


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
    for node in graph:
        if node.op in _ANCHORS:
            unit = _anchored(node, constants)
            found.update(dict.fromkeys(() if unit is None else unit.nodes, unit))  # type: ignore[arg-type]
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
    """Return the unit around the operator that is typical of it."""
    match = _Match(anchor, constants, {anchor})
    if anchor.op == "sqrt":
        return _normalization(match)
    if anchor.op == "matmul":
        return _of_kind(SCORES, scores_of(anchor, match.scalar, constants))
    if anchor.op in _TURNS:
        return _of_kind(ROTARY, rotary_of(anchor, constants))
    matches = (_activation(_Match(anchor, constants, {anchor}), each) for each in _ACTIVATIONS[anchor.op])
    return next((unit for unit in matches if unit is not None), None)


def _of_kind(kind: str, nodes: frozenset[Node] | None) -> Unit | None:
    return None if nodes is None else Unit(kind, nodes)


def _activation(match: _Match, form: _Activation) -> Unit | None:
    """Return the unit of an activation in any order of its factors."""
    anchor = match.anchor
    if not _is_gate(anchor, match.constants):
        return None
    value, factor, data = anchor.output, 1.0, None
    if form.one_more:
        sum_ = match.reader(value)
        if sum_ is None or sum_.op != "add" or len(sum_.inputs) != 2:
            return None
        if match.scalar(sum_.inputs[1 if sum_.inputs[0] is value else 0]) != 1.0:
            return None
        match.nodes.add(sum_)
        value = sum_.output
    alone: Unit | None = None
    for _ in range(MOST_FACTORS):
        product = match.reader(value)
        if product is None or product.op not in _PRODUCTS:
            return alone
        side = 0 if product.inputs[0] is value else 1
        other = product.operand(1 - side)
        number = match.scalar(other)
        if product.op == "divide":
            if side or not number:
                return alone
            number = 1 / number
        if number is None:
            data = _data(match, form, other, product) if data is None else None
            if data is None:
                return alone
            number = data
        factor *= number
        match.nodes.add(product)
        value = product.output
        if math.isclose(factor, form.factor, rel_tol=TOLERANCE):
            if data is not None:
                return match.unit(form.kind)
            alone = _alone(match, form) if form.alone else None
    return alone


def _is_gate(anchor: Node, constants: ConstantEvaluator) -> bool:
    """Return whether the attributes and bounds of an anchor are those of an activation."""
    if anchor.op == "clip":
        bounds = clip_bounds(anchor, constants)
        return bounds is not None and tuple(bounds.ends) == (0.0, 6.0)
    if anchor.op == "hard_sigmoid":
        alpha, beta = anchor.attrs.get("alpha", 0.2), anchor.attrs.get("beta", 0.5)
        return isinstance(alpha, float) and math.isclose(alpha, 1 / 6, rel_tol=TOLERANCE) and beta == 0.5
    return True


def _data(match: _Match, form: _Activation, value: Value, product: Node) -> float | None:
    """Return the number by which `value` multiplies the data of the activation; the operators found are added."""
    candidates: list[tuple[Value, float, set[Node]]] = [(value, 1.0, set())]
    node = value.node
    if node is not None and node.op in _PRODUCTS and value.sole_user() is product and node.graph is product.graph:
        numbers = [match.scalar(operand) for operand in node.inputs]
        if numbers[1]:
            candidates.append((node.operand(0), numbers[1] if node.op == "multiply" else 1 / numbers[1], {node}))
        elif numbers[0] and node.op == "multiply":
            candidates.append((node.operand(1), numbers[0], {node}))
    for x, factor, nodes in candidates:
        inside = _argument(match, form, x)
        if inside is not None:
            match.nodes |= inside | nodes
            return factor
    return None


def _argument(match: _Match, form: _Activation, x: Value) -> set[Node] | None:
    if form.argument is not None:
        return match.argument(x, form.argument)
    gate = match.anchor.operand()
    if gate is x:
        return set()
    node = gate.node
    is_scaled = node is not None and node.op in _PRODUCTS and x in node.inputs
    if not is_scaled or node is None or node.graph is not match.anchor.graph:
        return None
    return {node} if any(match.scalar(operand) is not None for operand in node.inputs) else None


def _alone(match: _Match, form: _Activation) -> Unit | None:
    """Return the unit of a gate that multiplies nothing."""
    assert form.alone is not None and form.argument is not None
    gate = match.anchor.operand().node
    for x in () if gate is None else gate.inputs:
        inside = None if x is None or match.constants.is_constant(x) else match.argument(x, form.argument)
        if inside:
            return _Match(match.anchor, match.constants, match.nodes | inside).unit(form.alone)
    return None


def _normalization(match: _Match) -> Unit | None:
    """Return the unit of a LayerNormalization, or RMSNormalization, around the square root of its variance."""
    square = _variance(match)
    root = None if square is None else _divided_by(match)
    if square is None or root is None:
        return None
    quotient, numerator = root
    squared, divided = _before_cast(match, square.operand()), _before_cast(match, numerator)
    mean = _centered(match, squared)
    if mean is None:
        if squared is not divided:
            return None
    elif divided is not squared and _centered(match, divided) is not mean:
        return None
    gamma = _parameter(match, quotient.output, "multiply")
    beta = None if gamma is None or mean is None else _parameter(match, gamma.output, "add")
    if gamma is None or (mean is not None and beta is None):
        return None
    ends = frozenset(node for node in (gamma, beta) if node is not None)
    return match.unit("RMSNormalization" if mean is None else "LayerNormalization", ends)


def _variance(match: _Match) -> Node | None:
    """Return the square of the data, of which the anchor is the root of the mean, with epsilon added."""
    total = match.anchor.operand().node
    if total is None or total.op != "add" or len(total.inputs) != 2:
        return None
    side = next((i for i, value in enumerate(total.inputs) if match.scalar(value) is not None), None)
    mean = None if side is None else total.operand(1 - side).node
    square = None if mean is None or not _is_mean_of_row(mean, match.constants) else mean.operand().node
    if mean is None or square is None:
        return None
    is_power = square.op == "power" and match.scalar(square.input(1)) == 2.0
    if not is_power and not (square.op == "multiply" and square.inputs[0] is square.inputs[1]):
        return None
    match.nodes |= {total, mean, square}
    return square


def _is_mean_of_row(node: Node, constants: ConstantEvaluator) -> bool:
    """Return whether a node is the mean along the last axis, which stays as an extent of 1."""
    shape = None if node.op != "mean" else shape_of(node.operand().type)
    axes = None if node.op != "mean" else integers_of(node, 1, constants)
    return (
        axes is not None
        and len(axes) == 1
        and axes[0] in (-1, len(shape or ()) - 1)
        and node.attrs.get("keepdims", 1) == 1
    )


def _divided_by(match: _Match) -> tuple[Node, Value] | None:
    """Return the operator that divides by the root, and its numerator."""
    reader, root = match.reader(match.anchor.output), match.anchor.output
    if reader is None:
        return None
    is_inverse = reader.op == "divide" and reader.inputs[1] is root and match.scalar(reader.inputs[0]) == 1.0
    if reader.op == "reciprocal" or is_inverse:
        match.nodes.add(reader)
        root = reader.output
        reader = match.reader(root)
        if reader is None or reader.op != "multiply":
            return None
        match.nodes.add(reader)
        return reader, reader.operand(1 if reader.inputs[0] is root else 0)
    if reader.op != "divide" or reader.inputs[1] is not root:
        return None
    match.nodes.add(reader)
    return reader, reader.operand(0)


def _before_cast(match: _Match, value: Value) -> Value:
    """Return the value that a Cast between the operators of a unit converts, or `value`."""
    node = value.node
    if node is None or node.op != "cast" or any(user not in match.nodes for user in value.users):
        return value
    match.nodes.add(node)
    return node.operand()


def _centered(match: _Match, value: Value) -> Value | None:
    """Return the mean that `value` is the data without, None where it is something else."""
    node = value.node
    mean = node.operand(1).node if node is not None and node.op == "subtract" else None
    if node is None or mean is None or not _is_mean_of_row(mean, match.constants):
        return None
    if mean.operand() is not node.operand(0):
        return None
    match.nodes |= {node, mean}
    return mean.output


def _parameter(match: _Match, value: Value, op: str) -> Node | None:
    """Return the operator that applies gamma or beta, a constant along the last axis, to `value`."""
    node = match.reader(value)
    if node is not None and node.op == "cast":
        cast, node = node, match.reader(node.output)
    else:
        cast = None
    if node is None or node.op != op or len(node.inputs) != 2:
        return None
    parameter = next((operand for operand in node.inputs if match.constants.is_constant(operand)), None)
    shape = None if parameter is None else static_shape_of(parameter.type)
    if parameter is None or not shape or shape[-1] != element_count(shape):
        return None
    if "axis" in node.attrs or (parameter.node is not None and parameter.node.op == "nn.batch_norm_to_affine"):
        return None
    match.nodes |= {node} if cast is None else {node, cast}
    return node


_TURNS = ("negative", "subtract")
_ANCHORS = frozenset((*_ACTIVATIONS, *_TURNS, "sqrt", "matmul"))
_INNER = frozenset((*_ARITHMETIC, *_FUNCTIONS, *_ACTIVATIONS, "sqrt", "cast", "mean", "reciprocal"))
_OF_SCORES = frozenset(("multiply", "divide", "transpose", "matmul"))
_OF_ROTARY = frozenset((*_TURNS, "multiply", "add", "concatenate"))
_SEARCHES = (_INNER, _OF_SCORES, _OF_ROTARY)
"""Operators along which the units of a node are searched: those of one unit would lead astray from another."""
