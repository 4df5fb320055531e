"""The ranges of values that passes are told: what they may take for granted of the data."""

from __future__ import annotations

from collections.abc import Mapping

from ...ir.graph import Value
from ...ir.module import Module
from ...ir.provenance import SideTable
from ...ir.record import Record
from ..affine.records.source_affines import known_bounds, known_statistics
from ..data_free.value_ranges import Origin, value_ranges

SIGMAS = 6.0
"""Deviations on each side of the mean that the range of a statistic covers."""

UNKNOWN_RANGE = "unknown"
"""The origin of the range of a value that may be anything."""


class KnownRange(Record):
    """The greatest magnitude of a value, the origin of that number in words, and the least one."""

    most: float
    origin: str
    least: float = 0.0

    def scaled(self, exponent: int) -> KnownRange:
        """Return the range of the value times 2^exponent."""
        factor = 2.0**exponent
        return KnownRange(self.most * factor, self.origin, self.least * factor)


class KnownRanges(SideTable):
    """The ranges of the values of a module."""

    def __init__(self) -> None:
        self.ranges: dict[Value, KnownRange] = {}

    def value_replaced(self, old: Value, new: Value) -> None:
        if old in self.ranges:
            self.ranges[new] = self.ranges[old]


def known_ranges(module: Module) -> dict[Value, KnownRange]:
    """Return the ranges that are known of a module's values; empty if nobody gave any."""
    return module.provenance.table(KnownRanges).ranges


def settle_ranges(module: Module) -> dict[Value, KnownRange]:
    """Return the ranges that were given, or else those that follow from statistics.

    Without given ranges nothing is known of inputs, nor of what follows from them alone, and
    guesses do not count. Of branches that became one layer the statistics bound the sum.
    """
    ranges = known_ranges(module)
    if ranges:
        return ranges
    statistics, bounds = known_statistics(module), known_bounds(module)
    if not statistics and not bounds:
        return ranges
    found = value_ranges(module, statistics, {}, sigmas=SIGMAS, bounds=bounds)
    for value, each in found.items():
        if each.origin is not Origin.GUESS:
            low, high = each.moments.range
            ranges[value] = KnownRange(max(abs(low), abs(high)), each.origin.value)
    return ranges


def give_ranges(module: Module, ranges: Mapping[Value, KnownRange]) -> None:
    """Let the passes know ranges of values."""
    known_ranges(module).update(ranges)
