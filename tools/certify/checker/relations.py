"""Relations between values of both models: one is y = scale * x + shift of the source's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import helper

from .affine_operators import own_line
from .clamps import GREATEST
from .congruence import RESULT, SOURCE, Congruence
from .constant_parts import BEGINNING, constant_results
from .crossing import concatenate
from .lines import Line
from .parts import rejoined
from .program import Array, Datum, Operation, Program, Unproved, before
from .reordering import Groups, moved_line

DOWN, UP = "down", "up"
"""Directions of a relation: the result is a line of the source, or the reverse."""

MAX_BETWEEN = 16
"""Most affines in a row that are composed one by one."""

LAYERS_WITH_BIAS = frozenset(("Conv", "ConvTranspose", "Gemm"))

SQUARING = frozenset(("GroupNormalization",))
"""Operators that compute E[x^2] - E[x]^2 in runtimes, so that shifts drown the data."""


class Relations(Congruence):
    """The values of a source and a result, with their classes and the lines between them."""

    def __init__(self, source: Program, result: Program) -> None:
        super().__init__(source, result)
        self.families: dict[Datum, tuple[Datum, Line]] = {}
        self.anchors: dict[int, tuple[Datum, Line, str]] = {}
        self.fixed: dict[int, Line] = {}
        self.may_be_fixed = False
        self.spreads: dict[Datum, tuple[float, float]] = {}
        self.members: dict[int, list[Datum]] = defaultdict(list)
        self._new: list[Datum] = []

    # values that are one affine of one value

    def note(self, value: Datum) -> None:
        if (
            self.side == SOURCE
            and value.term not in self.known
            and value.is_float
            and value.rank is not None
        ):
            self._new.append(value)
        super().note(value)

    def members_of(self, root: Datum) -> list[Datum]:
        """Return a value of each class of the source that is an affine of `root`."""
        while self._new:
            value = self._new.pop(0)
            found = self.family(value)
            if found is not None:
                self.members[found[0].term].append(value)
        return self.members[root.term]

    def same(self, kind: int, relation: tuple[Datum, Line, str]) -> int | None:
        """Return the class of the source with this type and relation to a family's root."""
        root, line, direction = relation
        fixed = self._projection(root)
        for value in (root, *self.members_of(root)):
            found = self.family(value)
            if value.kind != kind or found is None or found[1].rank != line.rank:
                continue
            if direction == UP:
                back = found[1].after(line)
                is_same = back.tidy().is_identity and not back.drowns(found[1])
            else:
                is_same = (
                    line.near(found[1])
                    or (fixed is not None and line.after(fixed).near(found[1].after(fixed)))
                ) and not line.drowns(found[1])
            if is_same:
                return value.term
        return None

    def bind(self, operation: Operation, key: tuple[Any, ...]) -> bool:
        """Bind also an affine of its data, and a view that equals another value's affine."""
        result = operation.outputs[0]
        is_bound = super().bind(operation, key)
        if is_bound and (result.term in self.known or result.stored is not None):
            return True
        relation = self.base(result) if is_bound else self._own(operation)
        if relation is None:
            return is_bound
        term = self.same(result.kind, relation)
        if term is not None:
            self.terms[(*key, 0)] = term
            self.give(result, term)
            return True
        if not is_bound and self.side == RESULT:
            self.anchor(result, *relation)
            return True
        return is_bound

    def _own(self, operation: Operation) -> tuple[Datum, Line, str] | None:
        """Return the relation of the result of an operation that is an affine by itself."""
        own = own_line(operation)
        base = None if own is None else self.base(own[0])
        if own is None or base is None or base[1].rank != own[1].rank:
            return None
        self.may_be_fixed |= not own[1].scale.all()
        root, line, direction = base
        if direction == DOWN:
            return root, own[1].after(line), DOWN
        back = own[1].inverse()
        return None if back is None else (root, line.after(back), UP)

    def value_of_source(self, label: object) -> Datum:
        """Return a value of the source that was entered."""
        found = self.source.data.get(label) if isinstance(label, str) else None
        if found is None:
            raise Unproved(f"the source has no value {label!r}")
        self.term_of(found)
        return found

    def operation_of_source(self, label: object) -> Operation:
        """Return an operation of the source that was entered."""
        found = self.source.operations.get(label) if isinstance(label, str) else None
        if found is None or any(each.term < 0 for each in found.outputs):
            raise Unproved(f"the source has no operation {label!r}")
        return found

    def family(self, value: Datum) -> tuple[Datum, Line] | None:
        """Return the value of the source that a value of the source is a line of, and the line.

        The source's own affines are followed up to the first other operation.
        """
        value = self.known.get(self.term_of(value), value)
        found = self.families.get(value)
        if found is not None:
            return found
        chain: list[tuple[Datum, Line]] = []
        while value not in self.families:
            own = None if value.producer is None or value.index else own_line(value.producer)
            if own is None or len(chain) > 10_000:
                if value.rank is None:
                    return None
                found = self._viewed(value) or self._rejoined(value)
                self.families[value] = found or (value, Line.identity(value.rank))
                break
            chain.append((value, own[1]))
            value = self.known.get(self.term_of(own[0]), own[0])
        root, line = self.families[value]
        for each, own_part in reversed(chain):
            if own_part.rank != line.rank:
                return None
            line = own_part.after(line)
            self.families[each] = (root, line)
        return root, line

    def _projection(self, root: Datum) -> Line | None:
        """Return the line of a family's root over itself, None if no part is constant."""
        core, groups = self.views.get(root.term, (root.term, None))
        fixed = self.fixed.get(core)
        try:
            return fixed if fixed is None or groups is None else moved_line(fixed, groups)
        except Unproved:
            return None

    def constant_parts(self, value: Datum | None) -> Line | None:
        """Return the line of a value over itself, None if no part is known to be constant."""
        if not self.may_be_fixed:
            return None
        found = None if value is None or value.stored is not None else self.base(value)
        if value is not None and found is None:
            return self.fixed.get(value.term)
        if found is None or found[2] != DOWN:
            return None
        fixed = self._projection(found[0])
        line = found[1] if fixed is None else found[1].after(fixed)
        return None if line.scale.all() else line.projection

    def enter(self, operation: Operation, key: tuple[Any, ...]) -> None:
        """Enter an operation, and note parts of results that zeros make constant."""
        super().enter(operation, key)
        for value, fixed in self.constants_of(operation):
            self.fixed.setdefault(value.term, fixed)
            self.may_be_fixed = True

    def constants_of(self, operation: Operation) -> list[tuple[Datum, Line]]:
        """Return the results with constant parts, and their lines over themselves.

        Data behind zeros are finite as far as the source's are: those of the result are related to
        them, or constants.
        """
        own = own_line(operation)
        if operation.domain or not any(each.is_float for each in operation.outputs):
            return []
        if own is None and not self.may_be_fixed and operation.kind not in BEGINNING:
            return []
        if own is not None and self.constant_parts(own[0]) is None and own[1].scale.all():
            return []
        for value in operation.inputs if self.side == RESULT else ():
            if (
                value is not None
                and value.is_float
                and value.stored is None
                and self.base(value) is None
            ):
                fixed = self.fixed.get(value.term)
                if fixed is None or fixed.scale.any():
                    return []
        if own is not None:
            fixed = self.constant_parts(own[0])
            found = [
                (
                    own[1] if fixed is None or fixed.rank != own[1].rank else own[1].after(fixed)
                ).projection
            ]
        else:
            found = constant_results(operation, self.constant_parts)
        pairs = zip(operation.outputs, found, strict=False)
        return [
            (value, x)
            for value, x in pairs
            if value.rank == x.rank and not x.scale.all() and x.fits(value.extents)
        ]

    def _viewed(self, value: Datum) -> tuple[Datum, Line] | None:
        """Return the family of a view of an affine: the moved affine of its root's view."""
        core, groups = self.views.get(self.term_of(value), (-1, ()))
        found = self._related(core)
        return None if found is None or found[0].term == core else self._along(found, groups)

    def _along(self, found: tuple[Datum, Line, str], groups: Groups) -> tuple[Datum, Line] | None:
        try:
            return self.view_of(found[0], groups), moved_line(found[1], groups)
        except Unproved:
            return None

    def _rejoined(self, value: Datum) -> tuple[Datum, Line] | None:
        """Return the family of a Concat of affines of a Split: an affine of its data."""
        operation = value.producer
        if operation is None or operation.kind != "Concat" or operation.domain or not value.rank:
            return None
        found = [None if each is None else self.family(each) for each in operation.inputs]
        known = [each for each in found if each is not None]
        whole = rejoined(
            [root for root, _ in known], int(operation.attributes.get("axis", 0)) % value.rank
        )
        further = self.family(whole[0]) if len(whole) == 1 < len(known) == len(found) else None
        if further is None:
            return None
        try:
            (line,) = concatenate(operation, {i: line for i, (_, line) in enumerate(known)})
        except (Unproved, ValueError):
            return None
        return further[0], line.after(further[1])

    def _related(self, term: int) -> tuple[Datum, Line, str] | None:
        """Return the relation of a class to the root of a family of the source."""
        if term in self.known:
            found = self.family(self.known[term])
            return None if found is None else (*found, DOWN)
        if term in self.anchors:
            return self.anchors[term]
        core, groups = self.views.get(term, (-1, ()))
        inner = None if core < 0 else self._related(core)
        if inner is None:
            return None
        made = self._along(inner, groups)
        return None if made is None else (*made, inner[2])

    def base(self, value: Datum) -> tuple[Datum, Line, str] | None:
        """Return the relation of a value of the result to the root of a family of the source."""
        return self._related(self.term_of(value))

    def origin(self, value: Datum) -> tuple[Datum, Line] | None:
        """Return a value of the source that is a line of a value of the result, and the line."""
        known = self.known.get(self.term_of(value))
        if known is not None and known.rank is not None:
            return known, Line.identity(known.rank)
        base = self.base(value)
        if base is None:
            return None
        root, line, direction = base
        up = line if direction == UP else line.inverse()
        return None if up is None else (root, up)

    def relations(self, result: Datum, source: Datum) -> dict[str, Line]:
        """Return the lines between a value of the result and the source, by direction."""
        family, base = self.family(source), self.base(result)
        if family is None or base is None:
            return {}
        (root, line), (other, given, direction) = family, base
        if line.rank != given.rank:
            return {}
        if root.term != other.term:
            fixed = self.constant_parts(result)  # a constant is an affine of every value
            is_one = (
                fixed is not None
                and not fixed.scale.any()
                and self.shape(result) == self.shape(source)
            )
            return {DOWN: fixed} if fixed is not None and is_one else {}
        up: Line | None
        down: Line | None
        if direction == UP:
            up, down = line.after(given), line.after(given).inverse()
        else:
            if given.near(line):
                if given.drowns(line):
                    return {}
                same = Line.identity(line.rank)
                return {DOWN: same, UP: same}
            down, up = self.between(root, given, line), self.between(root, line, given)
        # A scale is zero: the operators between may say more than the two lines.
        if not line.scale.all() or not given.scale.all():
            whole = self.composed(result, source), self.composed(source, result)
            down = whole[0] or _restored(whole[1]) or down
            up = whole[1] or _restored(whole[0]) or up
        lines = {DOWN: down, UP: up}
        known = {k: each for k, each in lines.items() if each is not None and each.is_finite}
        return {name: each.tidy() for name, each in known.items() if not each.drowns(line)}

    def between(self, root: Datum, outer: Line, inner: Line) -> Line | None:
        """Return the line from `inner` to `outer` of a family's root, or None."""
        found, fixed = outer.over(inner), self._projection(root)
        if found is None and fixed is not None:
            return outer.after(fixed).over(inner.after(fixed))
        return found

    def composed(self, value: Datum, below: Datum) -> Line | None:
        """Return the line of the affines from a value `below` to another, or None."""
        line = Line.identity(value.rank or 0)
        for _ in range(MAX_BETWEEN):
            value = self.known.get(self.term_of(value), value)
            own = None if value.producer is None or value.index else own_line(value.producer)
            if own is None or own[1].rank != line.rank:
                return None
            value, line = own[0], line.after(own[1])
            if self.term_of(value) == below.term:
                return line
        return None

    def upward(self, result: Datum, source: Datum) -> Line | None:
        """Return the line from the result to a value of the source, None if unknown."""
        return self.line(result, source, UP)

    def line(self, result: Datum, source: Datum, direction: str) -> Line | None:
        """Return the line between the models' values in a direction, None if unknown."""
        if self.term_of(result) == self.term_of(source):
            return None if source.rank is None else Line.identity(source.rank)
        return self.relations(result, source).get(direction)

    def relate(self, result: Datum, source: Datum, line: Line, direction: str) -> None:
        """Record a `line` between the models' values in a direction. Raises Unproved.

        Where a value of the source is this affine, the result is equal to it.
        """
        family = self.family(source)
        if family is None or not line.is_finite:
            raise Unproved("the rank is unknown, or a number is not finite")
        root, own = family
        if own.rank != line.rank or not line.fits(result.extents) or not line.fits(source.extents):
            raise Unproved("the ranks differ, or the numbers do not fit the extents")
        if result.kind != source.kind:  # where a scale decides about the type of a result
            raise Unproved("the element types differ")
        if direction == DOWN:
            line = line.after(own)
        else:
            fixed = self._projection(root)
            back = own.inverse() or (None if fixed is None else fixed.over(own.after(fixed)))
            if back is None:
                raise Unproved("a scale of the source is zero")
            line = back.after(line)
        same = self.same(result.kind, (root, line, direction))
        if same is not None:
            self.give(result, same)
        else:
            self.anchor(result, root, line, direction)

    def anchor(self, result: Datum, root: Datum, line: Line, direction: str) -> None:
        """Give a value of the result its own class, with its relation to a root."""
        result.term = self.term(("related", result.label))
        shape = self.shape(root)
        if shape is not None:
            self.shapes[result.term] = shape
        self.may_be_fixed |= not line.scale.all()
        self.anchors[result.term] = (root, line, direction)

    def are_equal(self, result: Datum, source: Datum) -> bool:
        """Return whether two values are in one class, or one affine of one value."""
        if self.term_of(result) == self.term_of(source):
            return True
        if result.kind != source.kind:
            return False
        line = self.upward(result, source)
        return line is not None and line.is_identity

    def spread(self, output: Datum, narrow: Mapping[int, float]) -> Array:
        """Return the greatest `Line.spread` of an output's operands, and biases of layers.

        `narrow` multiplies the spreads of values of some types.
        """
        found = [(1.0, 1.0)]
        for value in before(output):
            if value.producer is None and value.stored is not None:
                continue
            if value not in self.spreads:
                factor, (scale, shift) = narrow.get(value.kind, 1.0), self._spread(value)
                if any(each.kind in SQUARING and each.inputs[0] is value for each in value.readers):
                    shift = max(shift, shift**2)
                self.spreads[value] = factor * scale, factor * shift
            found.append(self.spreads[value])
        return np.asarray(np.array(found).max(axis=0))

    def _spread(self, value: Datum) -> tuple[float, float]:
        operation = value.producer
        bias = None
        if operation is not None and operation.kind in LAYERS_WITH_BIAS:
            bias = operation.constant(2)
        own = None if operation is None else own_line(operation)
        added = 0.0
        if own is not None:
            added = float(own[1].reach.max(initial=0.0))
        elif bias is not None:
            added = float(np.abs(bias.astype(np.float64)).max(initial=0.0))
        related = None
        if value.is_float and value.stored is None and value.term >= 0:
            related = self.base(value)
        if related is None:
            return 0.0, added
        root, line, direction = related
        fixed = self._projection(root)
        if fixed is None and line is Line.identity(line.rank):
            return 1.0, added
        line = line if direction == DOWN else line.restored
        line = line if fixed is None else line.after(fixed)
        if (np.abs(line.shift) > GREATEST[helper.tensor_dtype_to_np_dtype(value.kind).name]).any():
            return np.inf, np.inf  # it overflows, whatever the data are
        scale, shift = np.maximum((0.0, added), line.spread)
        return float(scale), float(shift)


def _restored(line: Line | None) -> Line | None:
    return None if line is None else line.inverse()
