"""Records and values: small objects that never change, as Structs of msgspec.

    class Window(Record): ...           # frozen, compared by identity
    class DType(ValueRecord): ...       # frozen, compared by its fields
    class Plan(Struct, eq=False): ...   # its fields change; compared by identity

A class with a `cached_property` says `dict=True`. Subclasses inherit every setting.
"""

from __future__ import annotations

from typing import dataclass_transform

from msgspec import Struct, field


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field,))
class Record(Struct, frozen=True, eq=False):
    """A frozen object that is compared by identity."""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class ValueRecord(Struct, frozen=True):
    """A frozen object that is compared by the values of its fields, and can be a key."""
