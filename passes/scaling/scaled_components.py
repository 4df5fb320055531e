"""The records of scaled components."""

from __future__ import annotations

from ...ir.module import Module
from ...ir.provenance import SideTable
from ...ir.record import Record


class ScaledComponent(Record):
    """Values that were multiplied by 2^exponent: the first, their number, greatest magnitude."""

    first: str
    values: int
    exponent: int
    most: float


class Scaling(SideTable):
    """The components of a module that were scaled."""

    def __init__(self) -> None:
        self.components: list[ScaledComponent] = []


def scaling(module: Module) -> list[ScaledComponent]:
    """Return the list of the components of a module that were scaled."""
    return module.provenance.table(Scaling).components
