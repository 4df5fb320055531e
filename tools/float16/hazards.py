"""What float16 or bfloat16 would lose, and what `irc compile` does about it: `irc check`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ...ir.graph import Node, Value
from ...ir.record import Record
from ...passes.float16.convert_to_float16 import check_layers
from ...passes.float16.known_ranges import KnownRange, known_ranges
from ...passes.float16.narrow_types import NAMES, check_opset
from ...passes.float16.selection import Selection
from ...result import Result
from ..verify.difference import json_value
from .converting import Calibration, Wishes

CONSTANT, SUM = "the constant ", "a sum"
"""Beginnings of the reasons of constants, and of sums inside operators."""


class Hazard(Record):
    """A value, constant or sum that a plain conversion to a narrow `dtype` would lose.

    `origin` says how `most`, the greatest magnitude, is known; both are empty of constants and
    sums. `remedy` is what `irc compile --float16`, or `--bfloat16`, does.
    """

    dtype: str
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
        names = (name for name in self.__struct_fields__ if name != "dtype")
        return {name: json_value(getattr(self, name)) for name in names}


HEADINGS = ("tensor", "operator", "greatest", "known from", "reason")
"""The headings of a table of hazards; that of the remedy is the command."""


def hazards(result: Result, folder: Path, wishes: Wishes) -> list[Hazard]:
    """Return what a plain conversion of a compiled module would lose, in the module's order.

    The module is scaled on the way. Raises the errors of `irc.to_float16`.
    """
    known = Calibration(result, folder, wishes)
    module = known.result.module
    check_opset(module, wishes.dtype)
    before = wishes.selection(module)
    check_layers(before)
    ranges = dict(known_ranges(module))
    found = [(value, value.name, hazard) for value, hazard in _found(known.result, before, ranges)]
    wishes.preparation(module)
    after, scaled = wishes.selection(module), known_ranges(module)
    by_name = {value.name: value for node in module.graph.nodes() for value in node.outputs}

    def remedy_of(value: Value, name: str, most: float | None) -> str:
        is_gone = value.node is not None and value.node.graph is None
        now = by_name.get(name) if is_gone else value
        if now is None:
            return "computed inside one operator"
        reason = None if now.node is None else after.reasons.get(now.node)
        if reason is not None:
            return f"stays float32: {reason}"
        if most is not None and scaled[now].most < most:
            return f"scaled by 2^{round(math.log2(scaled[now].most / most))}"
        return "scaled"

    return [replace(each, remedy=remedy_of(value, name, each.most)) for value, name, each in found]


def _found(
    result: Result, selection: Selection, ranges: Mapping[Value, KnownRange]
) -> Iterator[tuple[Value, Hazard]]:
    """Yield what would be lost, and the value that it is about, without the remedies."""
    dtype = NAMES[selection.dtype]

    def of_value(value: Value) -> Iterator[tuple[Value, Hazard]]:
        each = ranges.get(value)
        if each is not None and each.most > selection.most:
            node, name = value.node, result.name_of(value)
            what = dtype, _op_type(node), name if node is None else node.name or name, name
            yield value, Hazard(*what, each.most, each.origin, selection.excess(each), "")

    for value in result.module.graph.inputs:
        yield from of_value(value)
    for node in result.module.graph.operators():
        for value in node.outputs:
            yield from of_value(value)
        reason = selection.reasons.get(node, "")
        if reason.startswith((CONSTANT, SUM)):
            name = node.outputs[0].source_name
            what = dtype, _op_type(node), node.name or name, name
            yield node.outputs[0], Hazard(*what, None, "", reason, "")


def _op_type(node: Node | None) -> str:
    return "input" if node is None else node.description.partition(" ")[0]
