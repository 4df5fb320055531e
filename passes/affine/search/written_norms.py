"""A number before a normalization that is written out: it goes into the constant epsilon.

The root of s^2 v + epsilon is |s| times that of v + epsilon / s^2. So norm(s x; epsilon) is norm(x;
epsilon / s^2), and negates gamma where s is negative.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ....ir.graph import Node
from ....ir.provenance import Refused
from ....ir.tensor import Array, largest_finite, smallest_normal, to_float64
from ....ir.types import F16, dtype_of
from ..algebra.affine import Affine
from ..algebra.operands import Parameters
from ..algebra.transfer import Transfer, check_no_shift
from ..rules.norm import one_number
from ..units.unit import CODE, NormParts, Unit
from .plan import Change

Constants = tuple[tuple[int, Array], ...]
"""New constants by the index of the operand."""


def into_written_norm(
    unit: Unit,
    node: Node,
    given: Mapping[int, Affine],
    params: Parameters,
    position: Callable[[Node], float],
) -> list[Change]:
    """Return the changes by which the normalization `unit` takes the affine of its data.

    `node` is an operator of it that reads the data, and `position` grows along the graph. Raises
    Refused if it cannot take the affine.
    """
    parts = unit.parts
    if parts is None or any(node.operand(i) is not parts.data for i in given):
        raise Refused(CODE, unit.obstacle(node))
    affine = next(iter(given.values()))
    check_no_shift(node, affine)
    number = one_number(node, affine)
    constants = {parts.epsilon: _epsilon(parts, number, params)}
    if number < 0:
        constants[parts.gamma] = _negated(parts, params)
    changed = sorted({*parts.changed, *constants}, key=position)
    changes = []
    for each in changed:
        results = ((0, affine),) if each in parts.changed else ()
        transfer = Transfer(results=results, constants=constants.get(each, ()))
        changes.append(Change(each, each.output, "forward", transfer=transfer))
    return changes


def _epsilon(parts: NormParts, number: float, params: Parameters) -> Constants:
    """Return the constant epsilon / number^2 of the operator that adds it."""
    add, index = parts.epsilon, parts.epsilon_index
    dtype, exact = dtype_of(add.output.type), params.evaluator.exact(add.operand(index))
    # Without a factor below 1 the data are larger, and so are their squares.
    if dtype is None or exact is None or (dtype is F16 and abs(number) < 1):
        detail = f"{add.description}: squares of its data may exceed their type"
        raise Refused("overflow", detail)
    epsilon = to_float64(exact) / number**2
    small = smallest_normal(dtype)
    if epsilon.any() and not small <= float(epsilon.max()) <= largest_finite(dtype):
        raise Refused("underflow", f"{add.description}: epsilon would be {epsilon.max():.3g}")
    return ((index, epsilon),)


def _negated(parts: NormParts, params: Parameters) -> Constants:
    """Return the constant -gamma of the operator that multiplies by gamma."""
    exact = params.evaluator.exact(parts.gamma.operand(parts.gamma_index))
    if exact is None:
        raise Refused("negative_scale", f"{parts.gamma.description}: gamma is not known")
    return ((parts.gamma_index, -to_float64(exact)),)
