"""Constants in float16 or bfloat16: each rounded once from its exact value.

A mask is a constant of finfo(float32).min, or another number that float16 does not have, which
nothing but a Softmax reads in the end. It becomes -32768: -inf times 0 would be NaN, and -65504
plus a score below -16 would be -inf, so that a row of which every element is masked would be NaN.

An epsilon that would be 0 becomes s = 2^-24, the smallest positive number, if it is added to
numbers x that are known to be at least 2^12 s. Half of the distance from x to the next number is
2 s or more, so x + s rounds to x, as x + epsilon does. Where x is less in the end, s is the error
of one rounding of it, and a sum of 0 and epsilon is not 0.
"""

from __future__ import annotations

import numpy as np

from ...ir.graph import Node, Value, is_constant
from ...ir.module import Module
from ...ir.ops import has_trait
from ...ir.ops.row import Trait
from ...ir.record import Record
from ...ir.tensor import Array, largest_finite, round_to, smallest_normal, to_float64
from ...ir.types import F16, DType
from .known_ranges import known_ranges
from .narrow_types import NAMES

MASK = -32768.0
"""The number that a mask becomes."""

LARGEST = largest_finite(F16)
"""65504, the largest finite number of float16."""

SMALLEST = smallest_normal(F16) * 2.0**-10
"""2^-24, the smallest positive number of float16."""

LEAST_BESIDE_EPSILON = SMALLEST * 2.0**12
"""Numbers from which on SMALLEST, added to them, is rounded away."""

LIMITS = ("clip", "maximum", "minimum")
"""Operators with bounds, which no float16 passes if they are above LARGEST."""

CARRIES = ("add", "subtract", "multiply", "where", "concatenate", "cast", "nn.bias_add")
"""Operators that a mask passes on its way to a Softmax, beside those that move elements."""


class RoundedConstant(Record):
    """A constant in float16, and how many of its elements become 0 or less precise.

    `refused` says why it cannot be float16, and is empty if it can. `note` is a remark for the
    report.
    """

    array: Array
    vanished: int = 0
    subnormal: int = 0
    refused: str = ""
    note: str = ""
    is_corrected: bool = False
    """Whether it takes back the mean error of a weight, and so belongs to one reader."""


def exact_elements(module: Module, value: Value) -> Array | None:
    """Return the elements of a constant in float64, before any rounding, None if unreadable."""
    found = module.constants.exact(value)
    return None if found is None else to_float64(found)


def round_constant(
    module: Module, value: Value, reader: Node, dtype: DType = F16
) -> RoundedConstant | None:
    """Return an operand of `reader` in a narrow type, None if its elements cannot be read.

    It is refused if a finite element becomes infinite, or if all elements become 0, unless it is
    added to numbers that are known to be much larger.
    """
    exact = exact_elements(module, value)
    if exact is None:
        return None
    rounded, name = round_to(exact, dtype), NAMES[dtype]
    note = ""
    is_lost = np.isfinite(exact) & ~np.isfinite(to_float64(rounded))
    if is_lost.any():
        if reader.op in LIMITS:
            rounded = np.where(is_lost, np.sign(exact) * largest_finite(dtype), exact)
            rounded, note = round_to(rounded, dtype), f"a bound that no {name} passes"
        elif (exact[is_lost] < 0).all() and only_masks(value):
            rounded, note = round_to(np.where(is_lost, MASK, exact), dtype), "a mask"
        else:
            most = float(np.abs(exact[is_lost]).max())
            return RoundedConstant(rounded, refused=f"the constant {most:.6g} exceeds {name}")
    found = to_float64(rounded)
    vanished = int(np.count_nonzero((found == 0) & (exact != 0)))
    magnitude = np.abs(exact)
    subnormal = (
        int(np.count_nonzero((magnitude < smallest_normal(dtype)) & (exact != 0))) - vanished
    )
    if vanished and not found.any():
        if dtype is F16 and (exact > 0).all() and _is_beside_larger(module, value, reader):
            rounded = round_to(np.full(exact.shape, SMALLEST), F16)
            return RoundedConstant(rounded, subnormal=exact.size, note="an epsilon, now 2^-24")
        why = f"the constant {float(magnitude.max()):.6g} is 0 in {name}"
        return RoundedConstant(rounded, vanished, refused=why)
    return RoundedConstant(rounded, vanished, subnormal, note=note)


def _is_beside_larger(module: Module, value: Value, reader: Node) -> bool:
    """Return whether a constant is added to numbers beside which SMALLEST is rounded away."""
    if reader.op != "add":
        return False
    ranges = known_ranges(module)
    others = [
        ranges.get(other) for other in reader.inputs if other is not None and other is not value
    ]
    return all(known is not None and known.least >= LEAST_BESIDE_EPSILON for known in others)


def only_masks(value: Value) -> bool:
    """Return whether nothing but Softmax reads the sums and products that a constant goes into.

    O(readers on the way).
    """
    stack, seen = [value], {value}
    while stack:
        for user in stack.pop().users:
            if user.op == "nn.softmax":
                continue
            if not (user.op in CARRIES or has_trait(user, Trait.MOVES)):
                return False
            if user.op == "multiply" and all(map(is_constant, user.inputs)):
                return False
            new = {result for result in user.outputs if result not in seen}
            seen |= new
            stack += new
    return True


def mask_floor(module: Module, value: Value) -> float:
    """Return the number below which the elements of `value` are masks, -inf if none are.

    It is half of the least mask that the value is computed of, if only Softmax reads it in the end.
    O(operators before and behind).
    """
    least, stack, seen = 0.0, [value], {value}
    while stack:
        top = stack.pop()
        if is_constant(top):
            elements = exact_elements(module, top)
            if elements is not None and elements.size:
                finite = elements[np.isfinite(elements)]
                least = min(least, float(finite.min(initial=0.0)))
            continue
        node = top.node
        if node is None or not (node.op in CARRIES or has_trait(node, Trait.MOVES)):
            continue
        new = {each for each in node.inputs if each is not None and each not in seen}
        seen |= new
        stack += new
    return least / 2 if least < -LARGEST and only_masks(value) else -np.inf
