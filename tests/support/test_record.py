"""Records and values: constructors, defaults, inheritance, copies."""

from __future__ import annotations

import copy
import pickle
from typing import ClassVar, Generic, TypeVar

import pytest
from irc.support.record import contents_of, field, record, replaced, value

T = TypeVar("T")


@record
class Point(Generic[T]):
    x: int
    y: int = 2
    kind: ClassVar[str] = "point"

    @property
    def total(self) -> int:
        return self.x + self.y


@record
class Named(Point[int]):
    names: list[str] = field(default_factory=list)


@record(slots=False)
class Open:
    x: int = 1


@value
class Key:
    name: str
    extent: int | None = None


@value
class LongKey(Key):
    last: bool = False


def test_fields_are_positional_or_named_and_have_defaults() -> None:
    assert (Point(1).total, Point(1, 5).total, Point(y=1, x=1).total, Point.kind) == (
        3,
        6,
        2,
        "point",
    )
    assert repr(Named(1)) == "Named(x=1, y=2, names=[])"
    with pytest.raises(TypeError, match="x"):
        Point()  # type: ignore[call-arg]


def test_a_default_that_is_made_anew_is_shared_by_no_two_records() -> None:
    first, second = Named(1), Named(2)
    first.names.append("a")
    assert (first.names, second.names, Named(3, names=["b"]).names) == (["a"], [], ["b"])


def test_records_are_compared_by_identity_and_have_no_other_fields() -> None:
    assert Point(1) != Point(1)
    with pytest.raises(AttributeError):
        Point(1).z = 3  # type: ignore[attr-defined]
    opened = Open()
    opened.z = 3  # type: ignore[attr-defined]
    assert (opened.x, vars(opened)) == (1, {"x": 1, "z": 3})


def test_values_are_compared_by_their_fields_and_are_keys() -> None:
    assert Key("a") == Key("a", None) != Key("a", 1)
    assert {Key("a"): 1}[Key("a")] == 1
    assert Key("a") != LongKey("a")
    match LongKey("a", 3):
        case LongKey(name, extent, last):
            assert (name, extent, last) == ("a", 3, False)


def test_values_are_frozen() -> None:
    key = LongKey("a")
    for name in ("name", "last", "other"):
        with pytest.raises(AttributeError, match="frozen"):
            setattr(key, name, 1)
    with pytest.raises(AttributeError, match="frozen"):
        del key.name


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda item: pickle.loads(pickle.dumps(item))]
)
def test_copies(copied) -> None:
    assert copied(LongKey("a", 1, True)) == LongKey("a", 1, True)
    made = copied(Named(1, 5, ["a"]))
    assert (made.x, made.y, made.names) == (1, 5, ["a"])


def test_contents_and_changed_copies() -> None:
    assert replaced(LongKey("a", 1), extent=2) == LongKey("a", 2)
    assert contents_of(Named(1, 5)) == {"x": 1, "y": 5, "names": []}
    assert replaced(Named(1, 5, ["a"]), x=2).names == ["a"]
