"""The equations of a module, and the exponents that its ranges wish for."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ...ir.graph import Node, Value
from ...ir.module import Module
from ...ir.ops import has_trait
from ...ir.ops.row import Trait
from ...ir.tensor import Tensor, largest_finite, smallest_normal
from ...ir.types import F16
from ..float16.half_forms import is_single
from ..float16.inner_values import inner_values
from ..float16.known_ranges import known_ranges, settle_ranges
from .exponents import LARGEST_EXPONENT, Exponents, Row, Wish, choose
from .homogeneity import Homogeneity, Terms, epsilon_of, exact_product, homogeneity

COPIED_BYTES = 1 << 14
"""Bytes of a constant that may become several, where operators read it at several exponents."""

QUIET = 2.0**-10
"""What is wished of the greatest of values and of weights: below 2^-14 bits are lost."""


class ScalingPlan:
    """The equations of a module, and what its ranges wish of the exponents."""

    def __init__(self, module: Module, margin: float, *, sums_in_half: bool) -> None:
        self.module = module
        self.sums_in_half = sums_in_half
        graph = self.graph = module.graph
        self.most = largest_finite(F16) / 2**margin
        self.nodes: dict[Node, Homogeneity] = {
            node: homogeneity(node, module) for node in graph.operators()
        }
        self.ends: dict[Value, None] = {}
        """Inputs and results, which get an operator if their exponent is not 0."""
        values = [value for value in graph.inputs if is_single(value)]
        values += [
            value for node in graph.operators() for value in node.outputs if is_single(value)
        ]
        equations = [terms for each in self.nodes.values() for terms in each.equations]
        for value in values:
            if any(user.graph is not graph for user in value.users) or (
                value.node is None and value in graph.defaults
            ):
                equations.append({value: 1})
            elif value.node is None or graph.return_ in value.users:
                self.ends[value] = None
        equations += self._shared_constants()
        self.exponents = Exponents(values, equations)

    def _shared_constants(self) -> list[Terms]:
        """Return equations between the exponents at which operators read one large constant."""
        read: dict[Value, list[Terms]] = {}
        for node, each in self.nodes.items():
            for index, terms in each.constants.items():
                read.setdefault(node.operand(index), []).append(terms)
        for value in list(read):
            others = any(
                user not in self.nodes or value not in self._scaled(user) for user in value.users
            )
            if others:
                read[value].append({})
        found: list[Terms] = []
        for value, uses in read.items():
            payload = None if value.node is None else value.node.attrs.get("value")
            if not isinstance(payload, Tensor) or payload.nbytes <= COPIED_BYTES:
                continue
            found += [_difference(uses[0], other) for other in uses[1:]]
        return found

    def _scaled(self, node: Node) -> set[Value]:
        return {node.operand(index) for index in self.nodes[node].constants}

    # what the ranges wish

    def chosen(self) -> dict[int, int]:
        """Return the exponents of free components by the ranges of values; without any, none."""
        return choose(self.wishes()) if settle_ranges(self.module) else {}

    def wishes(self) -> list[Wish]:
        """Return what the ranges wish of the exponents of components and constants."""
        exponents, ranges = self.exponents, known_ranges(self.module)
        members: dict[int, list[float]] = {}
        for value in exponents.values:
            known = ranges.get(value)
            most = math.inf if known is None else known.most
            members.setdefault(exponents.component[value], []).append(most)
        found = []
        for component, magnitudes in members.items():
            row = exponents.rows.get(component, {component: 1})
            finite = [most for most in magnitudes if math.isfinite(most)]
            greatest = max(finite, default=0.0)
            room = math.floor(math.log2(self.most / greatest)) if greatest else None
            if len(finite) < len(magnitudes):  # what is not known does not grow
                room = 0 if room is None else min(room, 0)
            least = _up_to_quiet(greatest) if len(finite) == len(magnitudes) else None
            if row:
                found.append(Wish(row, room, least, len(magnitudes)))
        found += [Wish(exponents.row({value: 1}), is_operator=True) for value in self.ends]
        for node, each in self.nodes.items():
            found += self._inside(node) if self.sums_in_half else []
            rows = ((index, exponents.row(terms)) for index, terms in each.constants.items())
            found += [
                Wish(row, None, self._least(node, index), is_change=True)
                for index, row in rows
                if row
            ]
        return found

    def _inside(self, node: Node) -> list[Wish]:
        """Return what the sums inside an operator wish, of a device that adds up in float16."""
        found = []
        for inner in inner_values(node, self.module, known_ranges(self.module)):
            if 0 < inner.most < math.inf and all(
                value in self.exponents.component for value in inner.terms
            ):
                row = self.exponents.row(inner.terms)
                room = math.floor(math.log2(self.most / inner.most))
                found += [Wish(row, room)] if row else []
        return found

    def _least(self, node: Node, index: int) -> int | None:
        """Return the exponent from which a weight, or an epsilon, is a normal number of float16."""
        elements = self.module.constants.array(node.operand(index))
        if elements is None or not elements.size:
            return None
        magnitude = float(np.abs(elements).max())
        if not has_trait(node, Trait.SUM):
            return _up_to_quiet(magnitude)
        if elements.size > 1 or not 0 < magnitude < smallest_normal(F16):
            return None
        return math.ceil(math.log2(smallest_normal(F16) / magnitude))

    def is_smaller(self, chosen: Mapping[int, int]) -> bool:
        """Return whether values or weights get below QUIET that were not."""
        return any(
            wish.least is not None and wish.at(chosen) < wish.least <= 0 for wish in self.wishes()
        )

    def forced(self, exponent: int) -> dict[int, int]:
        """Return the exponent for all free components of values that operators compute."""
        frees = {free for row in self._component_rows() for free in row}
        return dict.fromkeys(sorted(frees), exponent)

    def _component_rows(self) -> list[Row]:
        exponents = self.exponents
        return [exponents.row({value: 1}) for value in exponents.values if value.node is not None]

    # what is exact

    def obstacle(self, chosen: Mapping[int, int]) -> Row | None:
        """Return the exponent of a constant that would leave the normal range, None without one."""
        for node, each in self.nodes.items():
            for index, terms in each.constants.items():
                row = self.exponents.row(terms)
                exponent = at(row, chosen)
                if exponent and not self._is_exact(node.operand(index), exponent):
                    return row
            if each.epsilon is not None:
                row = self.exponents.row(each.epsilon)
                exponent = at(row, chosen)
                epsilon = np.array(epsilon_of(node), np.float32)
                if exponent and exact_product(epsilon, exponent) is None:
                    return row
        for value in self.exponents.values:
            row = self.exponents.row({value: 1})
            if abs(at(row, chosen)) > LARGEST_EXPONENT:
                return row
        return None

    def _is_exact(self, value: Value, exponent: int) -> bool:
        elements = self.module.constants.array(value)
        if elements is None or elements.dtype.kind != "f":
            return False
        return exact_product(elements.astype(np.float32), exponent) is not None


def at(row: Row, chosen: Mapping[int, int]) -> int:
    """Return the exponent of a sum of free components."""
    return sum(factor * chosen.get(free, 0) for free, factor in row.items())


def _up_to_quiet(greatest: float) -> int | None:
    """Return the least exponent with which a number is QUIET or greater, None for 0."""
    return math.ceil(math.log2(QUIET / greatest)) if greatest > 0 else None


def _difference(first: Terms, second: Terms) -> Terms:
    found = dict(first)
    for value, factor in second.items():
        found[value] = found.get(value, 0) - factor
    return {value: factor for value, factor in found.items() if factor}
