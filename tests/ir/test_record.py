"""Records and value records: frozen, compared by identity or by their fields, copied, pickled."""

from __future__ import annotations

import copy
import pickle
from functools import cached_property
from typing import Generic, TypeVar

import pytest
from irc.ir.record import Record, ValueRecord
from msgspec import field

T = TypeVar("T")


class Point(Record, Generic[T]):
    x: int
    y: int = 2


class Named(Point[int]):
    names: list[str] = field(default_factory=list)


class Square(Record, dict=True):
    side: int

    @cached_property
    def area(self) -> int:
        return self.side**2


class Key(ValueRecord):
    name: str
    extent: int | None = None


class LongKey(Key):
    last: bool = False


def test_records_are_compared_by_identity_and_are_keys() -> None:
    first, second = Named(1), Named(1)
    assert first != second
    assert {first: "a", second: "b"}[first] == "a"


def test_value_records_are_compared_by_their_fields_and_are_keys() -> None:
    assert Key("a") == Key("a", None) != Key("a", 1)
    assert {Key("a"): 1}[Key("a")] == 1
    assert Key("a") != LongKey("a")
    match LongKey("a", 3):
        case LongKey(name, extent, last):
            assert (name, extent, last) == ("a", 3, False)


@pytest.mark.parametrize("item", [Named(1), LongKey("a"), Square(2)])
def test_records_and_value_records_are_frozen_in_subclasses_too(item: Record | ValueRecord) -> None:
    for name in (*item.__struct_fields__, "other"):
        with pytest.raises(AttributeError):
            setattr(item, name, 1)


def test_a_frozen_record_caches_properties() -> None:
    square = Square(3)
    assert square.area == 9
    assert vars(square) == {"area": 9}


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda item: pickle.loads(pickle.dumps(item))]
)
def test_copies_for_worker_processes(copied) -> None:
    assert copied(LongKey("a", 1, True)) == LongKey("a", 1, True)
    made = copied(Named(1, 5, ["a"]))
    assert (made.x, made.y, made.names) == (1, 5, ["a"])
