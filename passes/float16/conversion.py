"""The records of a conversion: operators that stayed float32, and constants that lost something."""

from __future__ import annotations

from ...ir.graph import Node
from ...ir.module import Module
from ...ir.provenance import SideTable
from ...ir.record import Record


class StayedFloat32(Record):
    """An operator that computes in float32, and why."""

    op_type: str
    name: str
    reason: str


class ChangedConstant(Record):
    """A constant of which elements became 0 or subnormal, or that became another number."""

    name: str
    elements: int
    vanished: int
    subnormal: int
    note: str


class Conversion(SideTable):
    """What ConvertToFloat16 did to a module."""

    def __init__(self) -> None:
        self.keep: dict[Node, str] = {}
        """Operators that have to stay float32, with the reasons that were given."""
        self.forced: set[Node] = set()
        """Operators that become float16 whatever their ranges."""
        self.stayed: list[StayedFloat32] = []
        self.constants: list[ChangedConstant] = []
        self.converted = 0
        """The number of operators that compute in float16."""
        self.casts = 0


def conversion(module: Module) -> Conversion:
    """Return the records of the conversion of a module."""
    return module.provenance.table(Conversion)
