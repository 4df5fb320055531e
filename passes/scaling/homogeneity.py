"""How a power of two passes an operator, exactly: equations between the exponents of its values.

Let a value be x 2^e in place of x. Of each operator this module says which exponents go together:

- `relu(x) 2^e = relu(x 2^e)`: one exponent for data and result;
- `(a 2^e) (b 2^f) = (a b) 2^(e + f)`: products add exponents;
- `norm(x 2^e, epsilon 2^2e) = norm(x, epsilon)`: a normalization absorbs one;
- any other operator: exponent 0.

A constant operand takes the exponent that is left over. An equation is a mapping from values to
whole factors, of which the sum of factor times exponent is 0.

In float32 the results have the same bits, up to the exponent, as long as no number leaves the
normal range: each of these operators adds, multiplies, divides, compares or takes a square root,
and every step commutes with a power of two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from msgspec import Struct, field

from ...ir.graph import Node, Value, is_constant
from ...ir.module import Module
from ...ir.ops.normalization import DEFAULT_EPSILON
from ...ir.ops.row import text_of
from ...ir.tensor import Array
from ...ir.types import dtype_of
from ..float16.half_forms import is_single

Terms = Mapping[Value, int]
"""A sum of exponents of values, each with a factor."""


class Homogeneity(Struct, eq=False):
    """What holds at a node: equations, and the exponents of constant operands and of epsilon.

    `constants` are by the index of the operand.
    """

    equations: list[Terms] = field(default_factory=list)
    constants: dict[int, Terms] = field(default_factory=dict)
    epsilon: Terms | None = None

    def values(self) -> Iterator[Value]:
        """Yield the values that have a part in it."""
        for terms in (*self.equations, *self.constants.values(), self.epsilon or {}):
            yield from terms

    def same(self, *values: Value) -> None:
        """Let values have one exponent."""
        self.equations += [summed((values[0], 1), (other, -1)) for other in values[1:]]

    def zero(self, *values: Value) -> None:
        """Let values keep exponent 0."""
        self.equations += [{value: 1} for value in values]


def summed(*terms: tuple[Value, int]) -> Terms:
    """Return a sum of terms; those of one value are added up."""
    found: dict[Value, int] = {}
    for value, factor in terms:
        found[value] = found.get(value, 0) + factor
    return {value: factor for value, factor in found.items() if factor}


Rule = Callable[[Node, Module], "Homogeneity | None"]
"""Return what holds at a node, None if its values have exponent 0."""


def homogeneity(node: Node, module: Module) -> Homogeneity:
    """Return what holds at a node."""
    rule, found = RULES.get(node.op), None
    makes_numbers = bool(node.outputs) and is_single(node.outputs[0])
    if rule is not None and (makes_numbers or node.op in ASKING) and _has_plain_floats(node):
        found = rule(node, module)
    if found is None or not all(map(_has_exponent, found.values())):
        found = Homogeneity()
        values = dict.fromkeys((*node.inputs, *node.outputs))
        found.zero(*(value for value in values if value is not None and _has_exponent(value)))
        for index, value in enumerate(node.inputs):
            if is_constant(value) and is_single(value):
                found.constants[index] = {}
    return found


def _has_exponent(value: Value) -> bool:
    """Return whether a value may be multiplied: an invalid model may mix element types."""
    return is_single(value) and not is_constant(value)


def _has_plain_floats(node: Node) -> bool:
    """Return whether all floating-point values are float32, but for wide constants."""
    for value in (*node.inputs, *node.outputs):
        dtype = None if value is None else dtype_of(value.type)
        if value is None or is_single(value) or (dtype is not None and not dtype.is_float):
            continue
        if not is_constant(value):
            return False
    return True


def _is_float(value: Value | None) -> bool:
    dtype = None if value is None else dtype_of(value.type)
    return dtype is not None and dtype.is_float


def _same(*operands: int, rest: bool = True) -> Rule:
    """Make the rule of an operator whose data and results have one exponent.

    The data are the floating-point `operands`, by default all. Others have exponent 0.
    """

    def rule(node: Node, module: Module) -> Homogeneity | None:
        found, result = Homogeneity(), node.outputs[0]
        found.same(*(value for value in node.outputs if is_single(value)))
        for index, value in enumerate(node.inputs):
            if value is None or not _is_float(value):
                continue
            is_data = not operands or index in operands
            if is_constant(value):
                found.constants[index] = {result: 1} if is_data else {}
            elif is_data:
                found.same(result, value)
            else:
                found.zero(value)
        return found

    return rule


def _resized(node: Node, module: Module) -> Homogeneity | None:
    """Resize: a sum of elements, unless it puts a number of its own outside the data."""
    is_cropped = text_of(node, "coordinate_transformation_mode", "") == "tf_crop_and_resize"
    return None if is_cropped else _same(0)(node, module)


def _product(node: Node, module: Module) -> Homogeneity | None:
    """Mul, MatMul, Conv, Gemm: products add exponents; a bias has that of the result."""
    result, found = node.output, Homogeneity()
    factors, bias = node.inputs[:2], node.input(2)
    if len(factors) < 2 or any(value is None for value in factors):
        return None
    _solve(found, result, [(0, node.operand(0), 1), (1, node.operand(1), 1)])
    if bias is not None:
        if is_constant(bias):
            found.constants[2] = {result: 1}
        else:
            found.same(result, bias)
    return found


def _quotient(node: Node, module: Module) -> Homogeneity | None:
    """Div: exponents are subtracted."""
    found = Homogeneity()
    _solve(found, node.output, [(0, node.operand(0), 1), (1, node.operand(1), -1)])
    return found


def _solve(found: Homogeneity, result: Value, factors: list[tuple[int, Value, int]]) -> None:
    """Let the result have the sum of the factors' exponents; a constant takes what is left."""
    open_ones = [(index, sign) for index, value, sign in factors if is_constant(value)]
    known = [(value, -sign) for _, value, sign in factors if not is_constant(value)]
    if not open_ones:
        found.equations.append(summed((result, 1), *known))
        return
    index, sign = open_ones[0]
    rest = summed((result, 1), *known)
    found.constants[index] = {value: sign * factor for value, factor in rest.items()}
    for other, _ in open_ones[1:]:
        found.constants[other] = {}


def _reciprocal(node: Node, module: Module) -> Homogeneity | None:
    found = Homogeneity()
    found.equations.append(summed((node.output, 1), (node.operand(), 1)))
    return found


def _root(node: Node, module: Module) -> Homogeneity | None:
    """Sqrt: half of the exponent of its data, which is even."""
    found = Homogeneity()
    found.equations.append(summed((node.output, 2), (node.operand(), -1)))
    return found


def _power(node: Node, module: Module) -> Homogeneity | None:
    """Pow by 2 or 3, which runtimes multiply out: others are rounded as the runtime likes."""
    exponents = module.constants.array(node["exponent"])
    if exponents is None or exponents.size != 1 or is_constant(node["base"]):
        return None
    power = float(exponents.ravel()[0])
    if power not in (2.0, 3.0):
        return None
    found = Homogeneity()
    found.equations.append(summed((node.output, 1), (node.operand(), -int(power))))
    found.constants[1] = {}
    return found


def _norm(node: Node, module: Module) -> Homogeneity | None:
    """LayerNormalization and its like: epsilon has twice the exponent of the data.

    Scale and bias have the exponent of the result.
    """
    if any(value.users for value in node.outputs[1:]):
        return None
    data, result, found = node.operand(), node.output, Homogeneity()
    if is_constant(data):
        return None
    found.epsilon = summed((data, 2))
    for index, value in enumerate(node.inputs[1:], 1):
        if is_constant(value):
            found.constants[index] = {result: 1}
        elif value is not None:
            found.same(result, value)
    return found


def _batch_norm(node: Node, module: Module) -> Homogeneity | None:
    """BatchNormalization: mean as the data, scale by what is left, bias as the result."""
    data, result = node.operand(), node.output
    if is_constant(data) or not all(map(is_constant, node.inputs[1:])):
        return None
    terms: list[Terms] = [summed((result, 1), (data, -1)), {result: 1}, {data: 1}, {}]
    return Homogeneity(constants=dict(enumerate(terms, 1)))


def _compared(node: Node, module: Module) -> Homogeneity | None:
    """Less, Equal: both operands have one exponent."""
    found = Homogeneity()
    values = [(i, value) for i, value in enumerate(node.inputs) if is_single(value)]
    data = [value for _, value in values if value is not None and not is_constant(value)]
    if not data:
        return None
    found.same(*data)
    found.constants.update((i, {data[0]: 1}) for i, value in values if is_constant(value))
    return found


def _order(node: Node, module: Module) -> Homogeneity | None:
    """Shape, Size, ArgMax, ArgMin: the same for any exponent."""
    return None if is_constant(node.operand()) else Homogeneity()


def _sign(node: Node, module: Module) -> Homogeneity | None:
    found = Homogeneity()
    found.zero(node.output)
    return found


COMPARISONS = ("equal", "less", "less_equal", "greater", "greater_equal")
ORDERS = ("shape_of", "ndarray_size", "argmax", "argmin")
ASKING = (*COMPARISONS, *ORDERS)
"""Operators that read numbers, and make none."""

RULES: dict[str, Rule] = {
    **dict.fromkeys(
        (
            *("nn.relu", "nn.leaky_relu", "abs", "negative", "identity"),
            *("nn.avg_pool", "nn.global_max_pool", "nn.global_avg_pool"),
            *("concatenate", "add", "subtract", "add_n", "mean_n", "nn.bias_add"),
            *("maximum", "minimum", "clip", "where"),
            *("reshape", "expand_dims", "squeeze", "nn.batch_flatten", "transpose"),
            *("broadcast_to", "strided_slice", "split", "take", "gather", "gather_nd", "tile"),
            *("nn.pad", "max", "min", "mean", "sum", "reduce_l1", "reduce_l2", "cumsum", "trilu"),
            *("nn.depth_to_space", "nn.space_to_depth", "nn.max_pool", "topk"),
        ),
        _same(),
    ),
    **dict.fromkeys(("nn.prelu", "nn.upsampling", "nn.dropout"), _same(0)),
    "image.resize": _resized,
    **dict.fromkeys(("multiply", "matmul", "nn.conv", "nn.conv_transpose", "nn.dense"), _product),
    "divide": _quotient,
    "reciprocal": _reciprocal,
    "sqrt": _root,
    "power": _power,
    **dict.fromkeys(("nn.layer_norm", "nn.rms_norm", "nn.instance_norm", "nn.group_norm"), _norm),
    "nn.batch_norm": _batch_norm,
    **dict.fromkeys(COMPARISONS, _compared),
    **dict.fromkeys(ORDERS, _order),
    "sign": _sign,
}
"""The operators that an exponent passes."""


def epsilon_of(node: Node) -> float:
    """Return the epsilon of a normalization."""
    found = node.attrs.get("epsilon", DEFAULT_EPSILON)
    assert isinstance(found, float)
    return found


def exact_product(array: Array, exponent: int) -> Array | None:
    """Return float32 numbers times 2^exponent, None if a number would leave the normal range."""
    with np.errstate(all="ignore"):
        scaled = np.ldexp(array, exponent)
        magnitude = np.abs(scaled)
    normal = (magnitude >= np.finfo(np.float32).tiny) & np.isfinite(scaled)
    return scaled if bool((normal | (array == 0) | ~np.isfinite(array)).all()) else None
