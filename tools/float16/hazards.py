"""What would overflow in float16, and what `irc compile --float16` does about it: `irc check`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...ir.graph import Node, Value
from ...ir.record import Record
from ...passes.float16.known_ranges import known_ranges
from ...passes.infra import Sequential
from ...result import Result
from ..verify.difference import json_value
from .converting import Calibration, Wishes

CONSTANT, SUM = "the constant ", "a sum"
"""Beginnings of the reasons of constants, and of sums inside operators."""


class Hazard(Record):
    """A value, constant or sum that a plain conversion to float16 would lose.

    `origin` says how `most`, the greatest magnitude, is known; both are empty of constants and
    sums. `remedy` is what `irc compile --float16` does.
    """

    op_type: str
    node: str
    tensor: str
    most: float | None
    origin: str
    reason: str
    remedy: str

    def row(self) -> tuple[str, ...]:
        """Return the hazard as a row of a table."""
        most = "" if self.most is None else f"{self.most:.6g}"
        return self.tensor, self.op_type, most, self.origin, self.reason, self.remedy

    @property
    def sentence(self) -> str:
        """The hazard as a sentence."""
        return f"{self.op_type} {self.node}: {self.reason} ({self.tensor}): {self.remedy}"

    def to_json(self) -> dict[str, Any]:
        """Return the hazard as a JSON object."""
        return {name: json_value(getattr(self, name)) for name in self.__struct_fields__}


HEADINGS = ("tensor", "operator", "greatest", "known from", "reason", "irc compile --float16")


def hazards(result: Result, folder: Path, wishes: Wishes) -> list[Hazard]:
    """Return what a plain conversion of a compiled module would lose, in the module's order.

    The module is scaled on the way. Raises the errors of `irc.to_float16`.
    """
    known = Calibration(result, folder, wishes)
    module = known.result.module
    before = wishes.selection(module)
    ranges = dict(known_ranges(module))
    names = {value: known.result.name_of(value) for value in ranges}
    Sequential([wishes.scaler])(module)
    after = wishes.selection(module)
    scaled = known_ranges(module)

    def remedy_of(node: Node | None) -> str:
        reason = None if node is None else after.reasons.get(node)
        return "scaled" if reason is None else f"stays float32: {reason}"

    def of_values() -> Iterator[tuple[Value, Hazard]]:
        for value, each in ranges.items():
            if not each.most > wishes.most:
                continue
            node = value.node
            name = names[value]
            remedy = remedy_of(node)
            if remedy == "scaled" and scaled[value].most < each.most:
                remedy = f"scaled by 2^{round(math.log2(scaled[value].most / each.most))}"
            yield (
                value,
                Hazard(
                    _op_type(node),
                    name if node is None else node.name or name,
                    name,
                    each.most,
                    each.origin,
                    before.excess(each),
                    remedy,
                ),
            )

    by_value = dict(of_values())
    found = [by_value[value] for value in module.graph.inputs if value in by_value]
    for node in module.graph.operators():
        found += [by_value[value] for value in node.outputs if value in by_value]
        reason = before.reasons.get(node, "")
        if reason.startswith((CONSTANT, SUM)):
            name = node.outputs[0].source_name
            found.append(
                Hazard(_op_type(node), node.name or name, name, None, "", reason, remedy_of(node))
            )
    return found


def _op_type(node: Node | None) -> str:
    return "input" if node is None else node.description.partition(" ")[0]
