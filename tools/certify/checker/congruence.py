"""Classes of values of two models: values of one class are equal.

An operation with the operator, attributes and classes of operands of another has the classes of its
results. So have integers that are one expression of extents, views of one value, and parts of one
tensor. None of these needs a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from .affine_operators import compressed, fitted
from .equal_operands import normal_operands, trains
from .inferred_types import SMALL
from .integers import INTEGERS, Expression, Extent, Integers, float_of, times
from .known_runs import chosen, single_run
from .open_constants import OpenConstant
from .operators import BROADCASTING, MOVING, VARIADIC
from .parts import Places, parts_of
from .program import (
    FLOATS,
    STANDARD,
    Array,
    Block,
    Datum,
    FreeExtent,
    Operation,
    Program,
    Stored,
    Unproved,
    product,
)
from .recomputation import cast
from .reordering import Groups, composed, extents_of, viewed, whole
from .result_extents import result_extents

SOURCE, RESULT = "source", "result"

RANDOM = frozenset(
    (
        *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
        *("Multinomial", "Bernoulli"),
    )
)
"""Operators of which two with the same operands differ."""

OPERANDS = 6
"""The place of the classes of operands in the key of an operation."""

Cut = tuple[int, tuple[tuple[int, tuple[Extent, Extent]], ...]]
"""A class, and positions by axis between which a part of it is."""


class Congruence:
    """The classes of values (`Datum.term`), by the keys of the operations that make them."""

    def __init__(self, source: Program, result: Program) -> None:
        self.source = source
        self.result = result
        self.terms: dict[tuple[Any, ...], int] = {}
        self.known: dict[int, Datum] = {}
        self.cuts: dict[Cut, int] = {}
        self.parts: dict[int, Cut] = {}
        self.sums: dict[int, tuple[int, Array]] = {}
        self.views: dict[int, tuple[int, Groups]] = {}
        self.shapes: dict[int, tuple[Extent, ...]] = {}
        self.shapeless: set[Datum] = set()
        """Values from whose operators no extents follow."""
        self.made_up: dict[int, Datum] = {}
        self.reshaped: set[tuple[int, tuple[Extent | None, ...]]] = set()
        """Data of Reshapes in the source, and the extents of their results."""
        self.integers = Integers(self.shape)
        self.arrays: dict[int, Array] = {}
        self.fulls: dict[int, Array] = {}
        self.constants: dict[tuple[Any, ...], Stored] = {}
        self.open: dict[Datum, OpenConstant] = {}
        self.unproven: list[Operation] = []
        self.side = SOURCE
        self.enclosing: tuple[Any, ...] = ()

    def term(self, key: tuple[Any, ...]) -> int:
        """Return the class with this key."""
        return self.terms.setdefault(key, len(self.terms))

    def term_of(self, value: Datum) -> int:
        """Return the class of a value, which is entered if it is a constant."""
        if value.term < 0:
            if value.stored is None:
                raise Unproved(f"the value {value.label!r} has no class")
            value.term = self.term(value.stored.key)
            self.note(value)
        return value.term

    def first_of(self, value: Datum) -> Datum:
        """Return the first value of the source that is equal to a value, or this one."""
        return value if value.term < 0 else self.known.get(value.term, value)

    def note(self, value: Datum) -> None:
        """Remember the first value of the source in a class."""
        if self.side == SOURCE:
            self.known.setdefault(value.term, value)

    def give(self, value: Datum, term: int) -> None:
        """Put a value into a class."""
        value.term = term
        self.note(value)
        numbers = self.arrays.get(term)
        if numbers is not None:
            self.integers.found.setdefault(value, numbers)
        shape = self.shape(value)
        if not self.enclosing:
            self.integers.note_extents(shape or ())

    def give_unread(self, values: Iterable[Datum]) -> None:
        """Give results of which nothing is known classes of their own."""
        for value in values:
            self.give(value, self.term(("unread", self.side, value.label)))

    def body(self, body: Block, inputs: Iterable[int]) -> tuple[int, ...]:
        """Enter a body whose inputs have these classes; return the classes of its results."""
        for value, term in zip(body.inputs, inputs, strict=True):
            self.give(value, term)
        for operation in body.operations:
            self.visit(operation)
        return tuple(self.term_of(value) for value in body.outputs)

    def key(self, operation: Operation) -> tuple[Any, ...]:
        """Return the key of an operation: it has the results of every other with that key."""
        operation = self.rows(self._filled(operation))
        operands = tuple(
            -1 if each is None else self.term_of(each) for each in self.unexpanded(operation)
        )
        if operation.kind == "Concat" and not operation.domain:
            operands = self._rejoined_operands(operation, operands)
        if operation.kind in ("Max", "Min") and not operation.domain:
            operands = tuple(dict.fromkeys(operands))  # max(x, x) is x
        while operands and operands[-1] == -1:
            operands = operands[:-1]
        head = (*_head(operation), operands)
        if operation.domain not in STANDARD or operation.kind in RANDOM or trains(operation):
            # It may have an effect, or another result each time.
            head = (*head, self.enclosing, operation.label)
        bodies = []
        for name, body in sorted(operation.bodies.items()):
            # A body inside another has parameters of its own, and so has one whose values have
            # other extents.
            place = (*head, name, self.enclosing)
            inputs = [
                self.term(("parameter", *place, i, each.kind, self._extents(each, -1)))
                for i, each in enumerate(body.inputs)
            ]
            for i, first in enumerate(single_run(operation, self.integers) or ()):
                inputs[i] = inputs[i] if first is None else self.term_of(first)
            outside = self.enclosing
            self.enclosing = (*self.enclosing, (operation.kind, name, *inputs))
            bodies.append((name, self.body(body, inputs)))
            self.enclosing = outside
        return ("operation", *head, tuple(bodies))

    def _rejoined_operands(self, operation: Operation, terms: tuple[int, ...]) -> tuple[int, ...]:
        """Return the classes of the operands of a Concat, with parts in a row as one part."""
        rank, axis = operation.outputs[0].rank, int(operation.attributes.get("axis", 0))
        if rank is None or not -rank <= axis < rank:
            return terms
        found: list[int] = []
        for term in terms:
            before = self.parts.get(found[-1]) if found else None
            joined = None
            if before is not None:
                joined = self._joined(before, self.parts.get(term), axis % rank)
            if joined is None:
                found.append(term)
            else:
                found[-1] = joined
        return tuple(found)

    def _joined(self, first: Cut, second: Cut | None, axis: int) -> int | None:
        """Return the class of two parts of one tensor if they are in a row along an axis."""
        if second is None or first[0] != second[0]:
            return None
        one, other = dict(first[1]), dict(second[1])
        start, between = one.pop(axis, None), other.pop(axis, None)
        if start is None or between is None or one != other or start[1] != between[0]:
            return None
        shape = self.shapes.get(first[0])
        if shape is None:
            return None
        places = {**one, axis: (start[0], between[1])}
        others = (each for each in sorted(places.items()) if each[1] != (0, shape[each[0]]))
        cut = first[0], tuple(others)
        term = self._part(cut)
        if term is None:
            term = self.term(("part", cut))
            self.parts.setdefault(term, cut)
        return term

    def _filled(self, operation: Operation) -> Operation:
        """Return the ConstantOfShape that makes the result of another's Cast, or the operation."""
        data = operation.operand(0)
        full = None if data is None or operation.domain else self.first_of(data).producer
        if (
            full is None
            or full.domain
            or full.kind != "ConstantOfShape"
            or operation.kind not in ("Cast", "CastLike")
        ):
            return operation
        other = operation.operand(1)
        if set(operation.attributes) - {"to"}:
            return operation
        try:
            made = cast(
                int(operation.attributes["to"]) if other is None else other.kind, _fill(full)
            )
        except (Unproved, ValueError, TypeError, KeyError):
            return operation
        attributes = {"value": Stored(None, made.array.reshape(-1))}
        return replace(full, attributes=attributes, outputs=operation.outputs)

    def rows(self, operation: Operation) -> Operation:
        """Return the Gather of rows that a GatherND is, or the operation."""
        data, places = operation.operand(0), operation.operand(1)
        if operation.domain or operation.kind != "GatherND" or data is None or places is None:
            return operation
        if operation.attributes.get("batch_dims", 0):
            return operation
        if places.stored is not None and places.stored.array.shape[-1:] == (1,):
            rows = Stored(None, places.stored.array[..., 0])
            taken = Datum(places.label, None, 0, places.kind, rows.array.shape, rows)
        else:
            core, groups = self.view(places) or (-1, ())
            if not groups or groups[-1]:
                return operation
            taken = Datum(places.label, kind=places.kind, term=self.view_term(core, groups[:-1]))
        return replace(operation, kind="Gather", attributes={}, inputs=[data, taken])

    def agree(self, operation: Operation, stored: Stored) -> None:
        """Refuse a constant that another operation with equal operands computed otherwise.

        Raises Unproved.
        """
        if self.constants.setdefault(self.key(operation), stored) != stored:
            raise Unproved("the same operation of the same constants has another result")

    def unexpanded(self, operation: Operation) -> list[Datum | None]:
        """Return the operands of an operation, or others with which it has the same results.

        An operand that is expanded to extents that another has anyway is read before: broadcasting
        is associative. So is a small constant whose elements are one.
        """
        found = normal_operands(operation)
        if operation.kind in ("Reshape", "Expand") and not operation.domain:
            if operation.version >= 5 and len(found) > 1:
                found[1] = self._target_of(operation)
        since = 8 if operation.kind in VARIADIC else 7
        if operation.domain or operation.kind not in BROADCASTING or operation.version < since:
            return found
        for i in range(1 if operation.kind == "PRelu" else 0, len(found)):
            value = found[i]
            value = None if value is None else self.known.get(self.term_of(value), value)
            target, data = (None, None) if value is None else self._expanded(value)
            if target is None or data is None:
                continue
            others = found[:1] if operation.kind == "PRelu" else [*found[:i], *found[i + 1 :]]
            shapes = [self.shape(each) or () for each in others if each is not None]
            if any(_is_within(target, each) for each in shapes):
                found[i] = data
        return found

    def _target_of(self, operation: Operation) -> Datum | None:
        """Return the target of a Reshape or Expand in one form.

        That is the shape of the result. Of a Reshape that has one extent which is no number, that
        is -1: it is what the others leave. In the result of a compile this needs a proof, since a
        Reshape to another number of elements fails.
        """
        data, target = operation.inputs[:2]
        numbers = self.integers.of(target)
        if target is None or data is None or numbers is None or numbers.ndim != 1:
            return target
        extents: list[Extent | None] = list(numbers)
        if operation.kind == "Expand":
            found = result_extents(operation.outputs[0], self.shape, self.integers)
            extents = list(found or (None,))
        else:
            shape = self.shape(data)
            if shape is not None and not operation.attributes.get("allowzero", 0):
                if 0 not in extents[len(shape) :]:
                    extents = list(self._target(operation, shape))
            unknown = [i for i, each in enumerate(extents) if isinstance(each, Expression)]
            others = [each for each in extents if not isinstance(each, Expression)]
            if len(unknown) == 1 and all(isinstance(each, int) and each > 0 for each in others):
                if self._holds(data, extents):
                    extents[unknown[0]] = -1
        known = [each for each in extents if each is not None]
        if len(known) < len(extents) or known == list(numbers):
            return target
        return Datum(target.label, None, 0, target.kind, (len(known),), None, self._row(known))

    def _holds(self, data: Datum, extents: list[Extent | None]) -> bool:
        """Return whether a Reshape of data to these extents runs wherever the source runs."""
        reshaped = self.term_of(data), tuple(extents)
        if self.side == SOURCE:
            self.reshaped.add(reshaped)
            return True
        shape, known = self.shape(data), [each for each in extents if each is not None]
        is_whole = shape is not None and len(known) == len(extents)
        return reshaped in self.reshaped or (is_whole and times(*shape or ()) == times(*known))

    def _row(self, numbers: Sequence[Extent]) -> int:
        """Return the class of integers in a row."""
        if any(isinstance(each, Expression) for each in numbers):
            return self.term(("integers", TensorProto.INT64, (len(numbers),), tuple(numbers)))
        return self.term(Stored(None, np.array(numbers, np.int64)).key)

    def _expanded(self, value: Datum) -> tuple[list[Extent] | None, Datum | None]:
        """Return the extents to which a value was expanded, and the value before."""
        stored, expand = value.stored, value.producer
        if stored is not None and 0 < product(stored.array.shape) <= SMALL:
            first = stored.array.reshape(-1)[:1]
            if stored.array.tobytes() != first.tobytes() * stored.array.size:
                return None, None
            return list(stored.array.shape), self._number(value, first)
        if stored is not None or expand is None or expand.domain:
            return None, None
        expand = self._filled(expand)
        target = None
        if expand.kind in ("Expand", "ConstantOfShape"):
            target = self.integers.of(expand.inputs[-1])
        if target is None or expand.kind == "Expand":
            return None if target is None else list(target.flat), expand.operand(0)
        return list(target.flat), self._number(value, _fill(expand).array)

    def _number(self, value: Datum, array: Array) -> Datum:
        """Return a constant of one element in place of a value."""
        one = Stored(None, array.reshape(()))
        return Datum(value.label, None, 0, value.kind, (), one, self.term(one.key))

    def visit(self, operation: Operation) -> None:
        """Enter an operation."""
        key = self.key(operation)
        if not self.bind(operation, key):
            self.enter(operation, key)

    def bind(self, operation: Operation, key: tuple[Any, ...]) -> bool:
        """Classify the result of an operation if it is known integers, or a view of a value."""
        integers, data = self._integers(operation), operation.operand(0)
        if operation.kind == "Identity" and not operation.domain and data is not None:
            operation.outputs[0].stored = data.stored
            self.give(operation.outputs[0], self.term_of(data))
            return True
        if operation.bodies and self._choose(operation, key):
            return True
        if (*key, 0) in self.terms:
            self.enter(operation, key)
            for value in operation.outputs:
                first = self.first_of(value).stored
                if value.stored is None and first is not None and not first.is_unrounded:
                    value.stored = first
            return True
        term = self._view(operation) if integers is None else integers
        term = self._picked(operation) if term is None else term
        term = self._full(operation) if term is None else term
        term = self._one_sample(operation, key) if term is None else term
        if operation.kind == "Concat" and not operation.domain and len(key[OPERANDS]) == 1:
            term = key[OPERANDS][0]
            if len(operation.inputs) == 1 and data is not None:
                operation.outputs[0].stored = data.stored
        term = self._sum(operation) if term is None else term
        if term is None:
            return False
        self.terms[(*key, 0)] = term
        self.give(operation.outputs[0], term)
        return True

    def _choose(self, operation: Operation, key: tuple[Any, ...]) -> bool:
        """Classify results that are those of a body; return whether one is."""
        program = self.source if self.side == SOURCE else self.result
        found = chosen(operation, self.integers, program)
        for i, (result, value) in enumerate(zip(operation.outputs, found, strict=True)):
            if value is None:
                self.give(result, self.term((*key, i)))
            else:
                result.stored = value.stored
                self.give(result, self.term_of(value))
        return any(each is not None for each in found)

    def _picked(self, operation: Operation) -> int | None:
        """Return the class of a Gather at one position: one that keeps the axis, without it."""
        data, place = operation.operand(0), operation.operand(1)
        if operation.kind != "Gather" or operation.domain or data is None or place is None:
            return None
        if data.stored is not None or place.stored is None or place.stored.array.ndim:
            return None
        shape = self.shape(data)
        if shape is None:
            return None
        axis = int(operation.attributes.get("axis", 0)) % max(1, len(shape))
        kept = Stored(None, place.stored.array.reshape(1))
        places = Datum(place.label, None, 0, place.kind, (1,), kept)
        row = replace(operation, inputs=[data, places])
        core, wide = self.term((*self.key(row), 0)), (*shape[:axis], 1, *shape[axis + 1 :])
        self.shapes.setdefault(core, wide)
        groups = whole(wide)
        return self.view_term(core, (*groups[:axis], *groups[axis + 1 :]))

    def _one_sample(self, operation: Operation, key: tuple[Any, ...]) -> int | None:
        """Return the class of a BatchNormalization that trains on one sample.

        That is an InstanceNormalization.
        """
        data = operation.operand(0)
        is_training = operation.version >= 14 and operation.attributes.get("training_mode")
        if operation.kind != "BatchNormalization" or operation.domain or not is_training:
            return None
        shape = None if data is None else self.shape(data)
        if shape is None or len(shape) < 3 or shape[0] != 1:
            return None
        for i, other in enumerate(operation.outputs[1:], 1):
            self.give(other, self.term((*key, i)))
        given = {k: v for k, v in operation.attributes.items() if k == "epsilon"}
        same = replace(
            operation,
            kind="InstanceNormalization",
            attributes=given,
            inputs=operation.inputs[:3],
            outputs=operation.outputs[:1],
        )
        return self.term((*self.key(same), 0))

    def _full(self, operation: Operation) -> int | None:
        """Return the class of a result of unknown extents whose elements are one number."""
        operation = self._filled(operation)
        data = operation.operand(0)
        if operation.domain or len(operation.outputs) != 1 or data is None:
            return None
        number = None
        if operation.kind == "ConstantOfShape":
            number = _fill(operation).array.reshape(())
        elif operation.kind in MOVING and operation.kind != "Concat":
            number = self.fulls.get(self.term_of(data))
            if number is None and data.stored is not None and product(data.stored.array.shape) == 1:
                number = data.stored.array.reshape(())
        shape = None
        if number is not None:
            shape = result_extents(operation.outputs[0], self.shape, self.integers)
        if number is None or shape is None or None in shape:
            return None
        if all(isinstance(each, int) for each in shape):  # it is a constant
            return None
        kind = helper.np_dtype_to_tensor_dtype(number.dtype)
        term = self.term(("full", kind, number.tobytes(), tuple(shape)))
        self.fulls[term] = number
        return term

    def _sum(self, operation: Operation) -> int | None:
        """Return the class of integers and a constant that is added: types wrap all sums alike."""
        if operation.domain or operation.kind not in ("Add", "Sub"):
            return None
        first, second = operation.operand(0), operation.operand(1)
        if operation.kind == "Add" and second is not None and second.stored is None:
            first, second = second, first
        if first is None or first.stored is not None or first in self.open or first.rank is None:
            return None
        if second is None or second.stored is None:
            return None
        number = fitted(operation, first, second.stored.array)
        if number is None or number.dtype.kind not in "iu":
            return None
        term = self.term_of(first)
        root, added = self.sums.get(term, (term, np.zeros_like(number)))
        total = compressed(added + number if operation.kind == "Add" else added - number)
        if not total.any():
            return root
        term = self.term(("sum", root, Stored(None, total).key))
        self.sums[term] = root, total
        return term

    def _integers(self, operation: Operation) -> int | None:
        """Return the class of small integers that are known as expressions of extents."""
        numbers, result = self.integers.enter(operation), operation.outputs[0]
        if numbers is None or not result.kind:
            return None
        dtype = INTEGERS.get(result.kind)
        floats = [float_of(each) for each in numbers.flat] if result.kind in FLOATS else [None]
        if None not in floats:
            made = np.array(floats, np.float64).reshape(numbers.shape)
            result.stored = Stored(None, made.astype(helper.tensor_dtype_to_np_dtype(result.kind)))
        elif dtype is None or any(isinstance(each, Expression) for each in numbers.flat):
            term = self.term(("integers", result.kind, numbers.shape, tuple(numbers.flat)))
            self.arrays.setdefault(term, numbers)
            return term
        else:
            result.stored = Stored(None, numbers.astype(dtype))
        return self.term(result.stored.key)

    def enter(self, operation: Operation, key: tuple[Any, ...]) -> None:
        """Classify the results of an operation by its key, or as parts of a tensor."""
        parts, is_new = self._parts(operation), (*key, 0) not in self.terms
        if self.side == RESULT and not self.is_known(operation, key):
            self.unproven.append(operation)
        for i, value in enumerate(operation.outputs):
            same = self._part(parts[i]) if parts and is_new else None
            self.give(value, self.term((*key, i)) if same is None else same)
            if parts:
                self.parts.setdefault(value.term, parts[i])
                if self.side == SOURCE:
                    self.cuts.setdefault(parts[i], value.term)

    def _parts(self, operation: Operation) -> list[Cut]:
        """Return the parts that an operation gives, by the classes of what they are cut of."""
        try:
            found = parts_of(operation, self.integers)
        except Unproved:
            return []
        return [self._cut(each.data, each.places) for each in found]

    def _cut(self, data: Datum, places: Places) -> Cut:
        """Return a part by its class, without the axes of which it has all."""
        shape = self.shape(data) or ()
        cut = [each for each in sorted(places.items()) if each[1] != (0, shape[each[0]])]
        return self.term_of(data), tuple(cut)

    def _part(self, part: Cut) -> int | None:
        """Return the class of a part that has one; all of a value is the value."""
        data, places = part
        return self.cuts.get(part) if places else data

    def is_known(self, operation: Operation, key: tuple[Any, ...]) -> bool:
        """Return whether the source has the results of an operation with this key."""
        if (*key, 0) in self.terms:
            return True
        parts = self._parts(operation)
        return bool(parts) and all(self._part(each) is not None for each in parts)

    # views

    def shape(self, value: Datum) -> tuple[Extent, ...] | None:
        """Return the extents of a value as expressions, the same for all values of its class."""
        term = self.term_of(value)
        if term not in self.shapes and value not in self.shapeless:
            shape = self._extents(value, term)
            if shape is None:
                self.shapeless.add(value)
            else:
                self.shapes[term] = shape
        return self.shapes.get(term)

    def own_shape(self, value: Datum) -> tuple[Extent, ...] | None:
        """Return the extents of a value that may have no class yet; an unshared one equals none."""
        return self._extents(value, value.term)

    def _extents(self, value: Datum, term: int) -> tuple[Extent, ...] | None:
        known = value.extents or ()
        if value.extents is not None and all(isinstance(each, int) for each in known):
            return tuple(each for each in known if isinstance(each, int))
        found = result_extents(value, self.shape, self.integers)
        if value.extents is None:
            made = tuple(each for each in found or () if each is not None)
            return made if found is not None and len(made) == len(found) else None
        if found is None or len(found) != len(known):
            found = [None] * len(known)
        return tuple(self._extent(value, term, i, each) for i, each in enumerate(found))

    def _extent(self, value: Datum, term: int, axis: int, derived: Extent | None) -> Extent:
        extent = (value.extents or ())[axis]
        if isinstance(extent, int):
            return extent
        if isinstance(extent, str):
            return Expression("symbol", (extent,))
        if derived is not None:
            return derived
        if isinstance(extent, FreeExtent) and extent.value is not value and extent.value.term >= 0:
            shape = self.shape(extent.value)
            if shape is not None and extent.axis < len(shape):
                return shape[extent.axis]
        return Expression("extent", (term, axis))

    def view(self, value: Datum) -> tuple[int, Groups] | None:
        """Return the value that another is a view of, by its class, and the view."""
        found = self.views.get(self.term_of(value))
        if found is not None:
            return found
        shape = self.shape(value)
        return None if shape is None else (value.term, whole(shape))

    def view_term(self, core: int, groups: Groups) -> int:
        """Return the class of a view."""
        if groups == whole(self.shapes[core]):
            return core
        term = self.term(("view", core, groups))
        self.views[term] = core, groups
        self.shapes.setdefault(term, extents_of(groups))
        return term

    def _view(self, operation: Operation) -> int | None:
        """Return the class of the result of an operation that only reorders elements."""
        data = operation.operand(0)
        if data is None or data.stored is not None or operation.domain:
            found = None
        else:
            found = self.view(data)
        if found is None:
            return None
        core, groups = found
        if operation.kind == "Expand":
            target = self.integers.of(operation.operand(1))
            is_whole = target is not None and _is_within(list(target.flat), extents_of(groups))
            return self.term_of(data) if is_whole and data is not None else None
        if operation.kind == "Resize":
            shape = result_extents(operation.outputs[0], self.shape, self.integers)
            is_kept = shape is not None and tuple(shape) == extents_of(groups)
            is_moved = operation.attributes.get("coordinate_transformation_mode", b"")[:3] == b"tf_"
            return self.term_of(data) if is_kept and not is_moved and data is not None else None
        try:
            made = viewed(operation, groups, lambda: self._target(operation, extents_of(groups)))
        except (Unproved, IndexError, ValueError, TypeError):
            return None
        return None if made is None else self.view_term(core, made)

    def _target(self, operation: Operation, shape: tuple[Extent, ...]) -> list[Extent]:
        numbers = self.integers.of(operation.operand(1))
        if operation.version < 5:
            numbers = np.array(operation.attributes.get("shape", ()), object)
        if numbers is None or numbers.ndim != 1:
            raise Unproved("the target is not known")
        copies = not operation.attributes.get("allowzero", 0)
        return [shape[i] if copies and each == 0 else each for i, each in enumerate(numbers)]

    def view_of(self, value: Datum, groups: Groups) -> Datum:
        """Return the view of a value: one of the source, or one that is made up.

        Raises Unproved.
        """
        core, inner = self.view(value) or (-1, ())
        if core < 0:
            raise Unproved("the rank is unknown")
        term = self.view_term(core, composed(groups, inner))
        known = self.known.get(term)
        if known is None and term not in self.made_up:
            extents = [each if isinstance(each, int) else None for each in self.shapes[term]]
            self.made_up[term] = Datum(
                f"a view of {value.label}", None, 0, value.kind, tuple(extents), None, term
            )
        return known or self.made_up[term]

    def permuted(self, value: Datum, perm: Sequence[int]) -> Datum:
        """Return the view of a value with its axes permuted. Raises Unproved."""
        groups = whole(self.shape(value) or ())
        if len(groups) != len(perm):
            raise Unproved("the rank is unknown, or another")
        return self.view_of(value, tuple(groups[axis] for axis in perm))


def _head(operation: Operation) -> tuple[Any, ...]:
    """Return the parts of the key of an operation besides operands and bodies."""
    if not operation.head:
        given = sorted(operation.attributes.items(), key=lambda each: each[0])
        # As texts, 1 and 1.0 differ.
        attributes = tuple((k, v if isinstance(v, Stored) else repr(v)) for k, v in given)
        count = len(operation.outputs)  # it decides about Split, and about training before opset 14
        kind = operation.domain, operation.kind, operation.version
        operation.head = (*kind, attributes, count)
    return operation.head


def _fill(operation: Operation) -> Stored:
    """Return the element of a ConstantOfShape."""
    found = operation.attributes.get("value", Stored(None, np.zeros(1, np.float32)))
    assert isinstance(found, Stored)
    return found


def _is_within(target: Sequence[Extent], shape: Sequence[Extent]) -> bool:
    """Return whether a target of Expand has only ones and the extents of a value."""
    last = shape[len(shape) - len(target) :]
    return 0 < len(target) <= len(shape) and all(
        a in (1, b) for a, b in zip(target, last, strict=True)
    )
