"""A proof that two models compute the same: facts about values of both, each checked when it is added.

Values have a class (`Datum.term`). An operation with the operator, attributes and classes of operands of another has
the classes of its results: congruence needs no step. All else needs a step, which names an identity and an operation:
IDENTITIES is the table. Facts are never taken back, so the order of the steps is that of the operations, the source's
before the result's.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
from onnx import helper

from .affine_operators import own_line
from .clamps import check_same_bounds, clamps
from .crossing import CROSSINGS, concatenate
from .equal_operands import equal_operand, normal_operands
from .integers import INTEGERS, Expression, Extent, Integers
from .lines import Line, along, is_rounding
from .movement import same_join, same_moves
from .parts import parts_of, rejoined
from .pools import check_padded_average, check_same_windows, zero_padding
from .program import Array, Block, Datum, FreeExtent, Operation, Program, Stored, Unproved, fault_of
from .recomputation import recomputed
from .reordering import Groups, composed, extents_of, moved, viewed, whole
from .transposition import BROADCASTING, in_order, transposed
from .weighted_layers import (
    DENSE,
    LAST_AXIS,
    SLOPES,
    SLOPES_OF,
    check_bias,
    check_dequantized,
    check_layer,
    check_rounded,
    check_scaled_parameters,
    check_slopes,
    weights_of,
)

Step = Mapping[str, Any]

SOURCE, RESULT = "source", "result"

RANDOM = frozenset(
    ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli")
)
"""Operators of which two with the same operands differ."""

TOGETHER = frozenset(("Add", "Sub", "Sum", "Mean", "Max", "Min", "Concat", "Where"))
"""Operators of which an operand that is not scaled has the line y = x."""

FREE = {"Pad": ("value",), **dict.fromkeys(SLOPES_OF, SLOPES)}
"""Attributes that follow the data."""

LAYERS_WITH_BIAS = frozenset(("Conv", "ConvTranspose", "Gemm"))

MAX_PARTS = 64
"""Most affines that one layer applies."""

GROWTH = 2.0**16
"""Most times that a shift which a certificate states may exceed the greatest of the source."""

DOWN, UP = "down", "up"
"""Directions of a relation: the result's value is a line of the source's, or the other way round."""


class Proof:
    """The facts about a source and a result. `run` goes through the operations of both."""

    def __init__(self, source: Program, result: Program) -> None:
        self.source = source
        self.result = result
        self.terms: dict[tuple[Any, ...], int] = {}
        self.known: dict[int, Datum] = {}
        self.families: dict[Datum, tuple[Datum, Line]] = {}
        self.anchors: dict[int, tuple[Datum, Line, str]] = {}
        self.cuts: dict[tuple[int, ...], int] = {}
        self.views: dict[int, tuple[int, Groups]] = {}
        self.shapes: dict[int, tuple[Extent, ...]] = {}
        self.made_up: dict[int, Datum] = {}
        self.integers = Integers(self.shape)
        self.unproven: list[Operation] = []
        self.side = SOURCE
        self._greatest: float | None = None

    def run(self) -> None:
        """Enter all operations, and prove that the results are equal. Raises Unproved."""
        self.compare_interfaces()
        self.prove()

    def prove(self) -> None:
        """Enter all operations of models with one interface, and prove that the results are equal. Raises Unproved."""
        self.side = SOURCE
        self.body(self.source.body, [self.term(("input", name)) for name, _ in self.source.interface])
        self.side = RESULT
        self.body(self.result.body, [self.term(("input", name)) for name, _ in self.result.interface])
        self.finish()

    def compare_interfaces(self) -> None:
        """Refuse models of other inputs, outputs, defaults or opsets, and a result that onnx's checker refuses."""
        source, result = self.source, self.result
        if source.interface != result.interface:
            raise Unproved("the inputs of the models differ")
        if source.results != result.results:
            raise Unproved("the outputs of the models differ")
        defaults = [{name: each.key for name, each in side.overridable.items()} for side in (source, result)]
        if defaults[0] != defaults[1]:
            raise Unproved("the defaults of the inputs differ")
        if any(result.opsets.get(domain) != version for domain, version in source.opsets.items() if not domain):
            raise Unproved("the opsets of the models differ")
        fault = fault_of(result.model)
        if fault is not None and fault_of(source.model) is None:
            raise Unproved(f"the result is no valid model: {fault}")

    def finish(self) -> None:
        """Prove that each output is equal."""
        pairs = zip(self.source.body.outputs, self.result.body.outputs, self.source.results, strict=True)
        for first, second, (name, _) in pairs:
            if self.term_of(first) != self.term_of(second):
                blocked = self.blocker(second)
                where = f"{blocked.kind} {blocked.label!r} of the result" if blocked is not None else "no operation"
                raise Unproved(f"the output {name!r} is not proved equal: {where} follows from no step")

    def blocker(self, value: Datum) -> Operation | None:
        """Return the first operation before `value` that is not proved, in the order of the result."""
        before, stack = set(), [value]
        while stack:
            producer = stack.pop().producer
            if producer is not None and producer.label not in before:
                before.add(producer.label)
                stack.extend(each for each in producer.inputs if each is not None)
        return next((each for each in self.unproven if each.label in before), None)

    # classes

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

    def note(self, value: Datum) -> None:
        """Remember the first value of the source in a class."""
        if self.side == SOURCE:
            self.known.setdefault(value.term, value)

    def give(self, value: Datum, term: int) -> None:
        """Put a value into a class."""
        value.term = term
        self.note(value)

    def body(self, body: Block, inputs: Iterable[int]) -> tuple[int, ...]:
        """Enter the operations of a body whose inputs have these classes; return the classes of its results."""
        for value, term in zip(body.inputs, inputs, strict=True):
            self.give(value, term)
        for operation in body.operations:
            self.visit(operation)
        return tuple(self.term_of(value) for value in body.outputs)

    def key(self, operation: Operation) -> tuple[Any, ...]:
        """Return the key of an operation: it has the results of every other with that key."""
        count = len(operation.outputs)  # it decides about Split, and about training before opset 14
        attributes = tuple(sorted(operation.attributes.items(), key=lambda each: each[0]))
        operands = tuple(-1 if each is None else self.term_of(each) for each in self._unexpanded(operation))
        while operands and operands[-1] == -1:
            operands = operands[:-1]
        head: tuple[Any, ...] = (operation.domain, operation.kind, operation.version, attributes, count, operands)
        if operation.domain not in ("", "ai.onnx.ml") or operation.kind in RANDOM:
            head = (*head, operation.label)  # it may have an effect, or another result each time
        if operation.attributes.get("training_mode") or (operation.kind == "Dropout" and len(operands) > 2):
            head = (*head, operation.label)
        bodies = []
        for name, body in sorted(operation.bodies.items()):
            inputs = [self.term(("parameter", *head, name, i, each.kind)) for i, each in enumerate(body.inputs)]
            bodies.append((name, self.body(body, inputs)))
        return ("operation", *head, tuple(bodies))

    def _unexpanded(self, operation: Operation) -> list[Datum | None]:
        """Return the operands of an operation, or others with which it has the same results.

        An operand that is expanded to extents that another has anyway is read before: broadcasting is associative.
        """
        found = normal_operands(operation)
        if operation.domain or operation.kind not in BROADCASTING or operation.version < 7:
            return found
        for i in range(1 if operation.kind == "PRelu" else 0, len(found)):
            value = found[i]
            value = None if value is None else self.known.get(self.term_of(value), value)
            expand = None if value is None or value.stored is not None else value.producer
            if expand is None or expand.domain or expand.kind != "Expand":
                continue
            target, data = self.integers.of(expand.operand(1)), expand.operand(0)
            others = found[:1] if operation.kind == "PRelu" else [*found[:i], *found[i + 1 :]]
            shapes = [self.shape(each) or () for each in others if each is not None]
            if target is not None and data is not None and any(_is_within(list(target.flat), each) for each in shapes):
                found[i] = data
        return found

    def visit(self, operation: Operation) -> None:
        """Enter an operation."""
        key = self.key(operation)
        if not self.bind(operation, key):
            self.enter(operation, key)

    def bind(self, operation: Operation, key: tuple[Any, ...]) -> bool:
        """Give the result of an operation its class if it is integers that are known, or a view of another value."""
        integers, data = self._integers(operation), operation.operand(0)
        if operation.kind == "Identity" and not operation.domain and data is not None:
            operation.outputs[0].stored = data.stored
            self.give(operation.outputs[0], self.term_of(data))
            return True
        if (*key, 0) in self.terms:
            self.enter(operation, key)
            return True
        term = self._view(operation) if integers is None else integers
        if term is None:
            return False
        self.terms[(*key, 0)] = term
        self.give(operation.outputs[0], term)
        return True

    def _integers(self, operation: Operation) -> int | None:
        """Return the class of a small tensor of integers whose elements are known as expressions of extents."""
        numbers, result = self.integers.enter(operation), operation.outputs[0]
        if numbers is None or not result.kind:
            return None
        dtype = INTEGERS.get(result.kind)
        if dtype is None or any(isinstance(each, Expression) for each in numbers.flat):
            return self.term(("integers", result.kind, numbers.shape, tuple(numbers.flat)))
        result.stored = Stored(None, numbers.astype(dtype))
        return self.term(result.stored.key)

    # views

    def shape(self, value: Datum) -> tuple[Extent, ...] | None:
        """Return the extents of a value as expressions, the same for all values of its class."""
        term = self.term_of(value)
        if term not in self.shapes:
            if value.extents is None:
                return None
            self.shapes[term] = tuple(self._extent(value, term, axis) for axis in range(len(value.extents)))
        return self.shapes[term]

    def _extent(self, value: Datum, term: int, axis: int) -> Extent:
        extent = (value.extents or ())[axis]
        if isinstance(extent, int):
            return extent
        if isinstance(extent, str):
            return Expression("symbol", (extent,))
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
        """Return the class of the result of an operation that only puts elements in another order."""
        data = operation.operand(0)
        found = None if data is None or data.stored is not None or operation.domain else self.view(data)
        if found is None:
            return None
        core, groups = found
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
        """Return the view of a value: one of the source, or one that is made up. Raises Unproved."""
        core, inner = self.view(value) or (-1, ())
        if core < 0:
            raise Unproved("the rank is unknown")
        term = self.view_term(core, composed(groups, inner))
        known = self.known.get(term)
        if known is None and term not in self.made_up:
            extents = [each if isinstance(each, int) else None for each in self.shapes[term]]
            self.made_up[term] = Datum(f"a view of {value.label}", None, 0, value.kind, tuple(extents), None, term)
        return known or self.made_up[term]

    def is_known(self, operation: Operation, key: tuple[Any, ...]) -> bool:
        """Return whether the source has the results of an operation with this key."""
        if (*key, 0) in self.terms:
            return True
        parts = self._parts(operation)
        return bool(parts) and all(each in self.cuts for each in parts)

    def permuted(self, value: Datum, perm: Sequence[int]) -> Datum:
        """Return the view of a value with its axes permuted. Raises Unproved."""
        groups = whole(self.shape(value) or ())
        if len(groups) != len(perm):
            raise Unproved("the rank is unknown, or another")
        return self.view_of(value, tuple(groups[axis] for axis in perm))

    def enter(self, operation: Operation, key: tuple[Any, ...]) -> None:
        """Give the results of an operation the classes of its key, or those of the same parts of a tensor."""
        parts, is_new = self._parts(operation), (*key, 0) not in self.terms
        if self.side == RESULT and not self.is_known(operation, key):
            self.unproven.append(operation)
        for i, value in enumerate(operation.outputs):
            same = self.cuts.get(parts[i]) if parts and is_new else None
            self.give(value, self.term((*key, i)) if same is None else same)
            if parts and self.side == SOURCE:
                self.cuts.setdefault(parts[i], value.term)

    def _parts(self, operation: Operation) -> list[tuple[int, ...]]:
        """Return the classes of parts of a tensor, with axis and positions, that an operation gives; else none."""
        try:
            found = parts_of(operation)
        except Unproved:
            return []
        return [(self.term_of(each.data), each.axis, each.first, each.end) for each in found]

    # relations

    def family(self, value: Datum) -> tuple[Datum, Line] | None:
        """Return the value of the source that a value of the source is a line of, and the line.

        The source's own affines are followed until an operation that is none.
        """
        value = self.known.get(self.term_of(value), value)
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

    def _viewed(self, value: Datum) -> tuple[Datum, Line] | None:
        """Return the family of a view of an affine: it is the moved affine of the same view of its root."""
        core, groups = self.views.get(self.term_of(value), (-1, ()))
        found = self._related(core)
        return None if found is None or found[0].term == core else self._along(found, groups)

    def _along(self, found: tuple[Datum, Line, str], groups: Groups) -> tuple[Datum, Line] | None:
        try:
            return self.view_of(found[0], groups), found[1].map(lambda array: moved(array, groups))
        except Unproved:
            return None

    def _rejoined(self, value: Datum) -> tuple[Datum, Line] | None:
        """Return the family of a Concat of affines of all results of a Split: it is an affine of the Split's data."""
        operation = value.producer
        if operation is None or operation.kind != "Concat" or operation.domain or not value.rank:
            return None
        found = [None if each is None else self.family(each) for each in operation.inputs]
        known = [each for each in found if each is not None]
        whole = rejoined([root for root, _ in known], int(operation.attributes.get("axis", 0)) % value.rank)
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

    def relations(self, result: Datum, source: Datum) -> dict[str, Line]:
        """Return the lines between a value of the result and one of the source, by their direction."""
        family, base = self.family(source), self.base(result)
        if family is None or base is None:
            return {}
        (root, line), (other, given, direction) = family, base
        if root.term != other.term or line.rank != given.rank:
            return {}
        up: Line | None
        down: Line | None
        if direction == UP:
            up, down = line.after(given), line.after(given).inverse()
        else:
            if given.near(line):
                same = Line.identity(line.rank)
                return {DOWN: same, UP: same}
            back, forth = line.inverse(), given.inverse()
            down = None if back is None else given.after(back)
            up = None if forth is None else line.after(forth)
        return {name: each.tidy() for name, each in ((DOWN, down), (UP, up)) if each is not None and each.is_finite}

    def upward(self, result: Datum, source: Datum) -> Line | None:
        """Return the line that a value of the source is of one of the result, None where none is known."""
        return self._line(result, source, UP)

    def downward(self, result: Datum, source: Datum) -> Line | None:
        """Return the line that a value of the result is of one of the source, None where none is known."""
        return self._line(result, source, DOWN)

    def _line(self, result: Datum, source: Datum, direction: str) -> Line | None:
        if self.term_of(result) == self.term_of(source):
            return None if source.rank is None else Line.identity(source.rank)
        return self.relations(result, source).get(direction)

    def anchor(self, result: Datum, source: Datum, line: Line, direction: str) -> None:
        """Record that a value of the result is `line` of one of the source, or the other way round."""
        family = self.family(source)
        if family is None or not line.is_finite:
            raise Unproved("the rank is unknown, or a number is not finite")
        root, own = family
        if own.rank != line.rank or not line.fits(result.extents) or not line.fits(source.extents):
            raise Unproved("the ranks differ, or the numbers do not fit the extents")
        if direction == DOWN:
            line = line.after(own)
        else:
            back = own.inverse()
            if back is None:
                raise Unproved("a scale of the source is zero")
            line = back.after(line)
        result.term = self.term(("related", result.label))
        shape = self.shape(source)
        if shape is not None:
            self.shapes[result.term] = shape
        self.anchors[result.term] = (root, line, direction)

    # steps

    def apply(self, step: Step, operation: Operation) -> None:
        """Check a step and add its facts. Raises Unproved."""
        name = step.get("identity")
        check = IDENTITIES.get(name) if isinstance(name, str) else None
        if check is None:
            raise Unproved(f"there is no identity {name!r}")
        try:
            check(self, step, operation)
        except (ValueError, IndexError, TypeError, AttributeError, ArithmeticError):
            raise Unproved("numbers or extents do not fit together") from None
        if step.get("equals") is not None:
            self.equate(operation.outputs[0], self.value_of_source(step["equals"]))

    def value_of_source(self, label: object) -> Datum:
        """Return a value of the source that was entered."""
        found = self.source.data.get(label) if isinstance(label, str) else None
        if found is None or (found.term < 0 and found.stored is None):
            raise Unproved(f"the source has no value {label!r}")
        return found

    def operation_of_source(self, label: object) -> Operation:
        """Return an operation of the source that was entered."""
        found = self.source.operations.get(label) if isinstance(label, str) else None
        if found is None or any(each.term < 0 for each in found.outputs):
            raise Unproved(f"the source has no operation {label!r}")
        return found

    def are_equal(self, result: Datum, source: Datum) -> bool:
        """Return whether two values are in one class, or one affine of one value."""
        if self.term_of(result) == self.term_of(source):
            return True
        if result.kind != source.kind:
            return False
        return any(line.is_identity for line in self.relations(result, source).values())

    def equate(self, result: Datum, source: Datum) -> None:
        """Prove that the line between two values is y = x, and put them into one class."""
        family, base = self.family(source), self.base(result)
        if family is None or base is None or family[0].term != base[0].term:
            raise Unproved(f"{result.label!r} has no relation to {source.label!r}")
        lines = self.relations(result, source)
        if not any(line.is_identity for line in lines.values()):
            raise Unproved(f"{result.label!r} is another affine of its origin than {source.label!r}")
        if result.kind != source.kind:
            raise Unproved("the element types differ")
        result.term = self.term_of(source)

    def greatest_shift(self) -> float:
        """Return the greatest magnitude that an affine or a bias of the source adds, or 1 if that is more."""
        if self._greatest is None:
            self._greatest = 1.0
            for operation in self.source.operations.values():
                own = own_line(operation)
                arrays = [] if own is None else [own[1].reach]
                bias = operation.operand(2) if operation.kind in LAYERS_WITH_BIAS else None
                arrays += [] if bias is None or bias.stored is None else [bias.stored.exact]
                self._greatest = max([self._greatest, *(float(np.abs(each).max(initial=0)) for each in arrays)])
        return self._greatest

    def channel_axis(self, step: Step, rank: int) -> int:
        """Return the axis of the numbers in `applies`. Raises Unproved."""
        axis = step.get("axis", min(1, rank - 1))
        if not isinstance(axis, int) or not 0 <= axis < rank:
            raise Unproved("the channel axis does not exist")
        return axis

    def claim(self, step: Step, rank: int, axis: int) -> Line:
        """Return the line that a step says a layer applies: the source's affines in `applies`, one after the other."""
        line = Line.identity(rank)
        parts = step.get("applies", ())
        names = [part.get("of") or part.get("value") for part in parts]
        stated = [name for name in names if name is not None]
        if len(parts) > MAX_PARTS or len(set(stated)) < len(stated):
            raise Unproved("it applies too many affines, or one twice")
        for part in parts:
            line = self._stage(part, rank, axis).after(line)
        if not line.is_finite:
            raise Unproved("a number is not finite")
        if len(stated) < len(parts) and (np.abs(line.shift) > GROWTH * self.greatest_shift()).any():
            raise Unproved("a shift is far beyond those of the source, and would drown the data")
        return Line.of(line.scale, line.shift)  # the claim is these very numbers, so nothing widens its bounds

    def _stage(self, part: Mapping[str, Any], rank: int, axis: int) -> Line:
        if "of" in part:
            operation = self.operation_of_source(part["of"])
            own = own_line(operation)
            if own is None:
                raise Unproved(f"{operation.kind} {operation.label!r} of the source is no affine")
            line = own[1]
            if part.get("only") == "scale":
                line = Line(line.scale, 0 * line.shift, 0 * line.reach)
            varying = [i for i in range(line.rank) if not line.is_uniform_along((i,))]
            if not varying:
                return line.map(lambda array: array.reshape((1,) * rank))
            vector = line.vector(varying[0])
            if vector is None:
                raise Unproved("the affine varies along several axes")
            return Line(*(along(each, axis, rank) for each in vector))
        if "value" in part:
            family = self.family(self.value_of_source(part["value"]))
            if family is None or family[1].rank != rank:
                raise Unproved("the rank of the affine is another")
            return family[1]
        scale, shift = (_numbers(part.get(name, default)) for name, default in (("scale", 1.0), ("shift", 0.0)))
        return Line.of(*(along(np.atleast_1d(each), axis, rank) for each in (scale, shift)))


def _is_within(target: Sequence[Extent], shape: Sequence[Extent]) -> bool:
    """Return whether a target of Expand has only ones and the extents that a value has on the same axes."""
    last = shape[len(shape) - len(target) :]
    return 0 < len(target) <= len(shape) and all(a in (1, b) for a, b in zip(target, last, strict=True))


def _numbers(given: object) -> np.ndarray[Any, Any]:
    """Return an array of a certificate: a number, or float64 in base64."""
    if isinstance(given, int | float):
        return np.array(float(given))
    if isinstance(given, str):
        try:
            return np.frombuffer(base64.b64decode(given, validate=True), "<f8")
        except ValueError:
            raise Unproved("an array is damaged") from None
    raise Unproved("an array is damaged")


# the identities


def _constant(proof: Proof, step: Step, operation: Operation) -> None:
    """Prove that the operation computes a constant, which the checker computes itself."""
    for value, stored in zip(operation.outputs, recomputed(operation), strict=True):
        value.stored = stored
        proof.give(value, proof.term(stored.key))


def _equal_operand(proof: Proof, step: Step, operation: Operation) -> None:
    """Prove that the result is equal to an operand."""
    operand = equal_operand(operation)
    proof.give(operation.outputs[0], proof.term_of(operand))
    operation.outputs[0].stored = operand.stored
    for i, other in enumerate(operation.outputs[1:], 1):
        proof.give(other, proof.term(("unread", proof.side, operation.label, i)))


def _taken_branch(proof: Proof, step: Step, operation: Operation) -> None:
    """Prove that the results of an If are those of a branch, because the condition is a constant."""
    condition = operation.constant(0)
    if operation.kind != "If" or operation.domain or condition is None or condition.size != 1:
        raise Unproved("it is no If of a constant condition")
    branch = operation.bodies["then_branch" if condition.reshape(()) else "else_branch"]
    for result, inner in zip(operation.outputs, branch.outputs, strict=True):
        proof.give(result, proof.term_of(inner))
        result.stored = inner.stored


def _view(proof: Proof, step: Step, operation: Operation) -> None:
    """Prove that the operation puts the elements of an affine in another order: the result is a moved affine."""
    if not proof.bind(operation, proof.key(operation)):
        raise Unproved(f"{operation.kind} is no view of its data")


def _same_moves(proof: Proof, step: Step, operation: Operation) -> None:
    """Prove that the result holds the elements of a value of the source, in the same order, moved from `from`."""
    target = proof.value_of_source(step.get("source"))
    leaves = [proof.value_of_source(each) for each in step.get("from", ())]
    result = operation.outputs[0]
    same_moves(result, target, leaves)
    proof.give(result, proof.term_of(target))


def _same_join(proof: Proof, step: Step, operation: Operation) -> None:
    """Prove that the operation joins what nested Concats of the source join."""
    source = _counterpart(proof, step, operation)
    if operation.kind != "Concat":
        raise Unproved("it is no Concat")
    same_join(source.outputs[0], operation.outputs[0])
    proof.give(operation.outputs[0], proof.term_of(source.outputs[0]))


def _same_windows(proof: Proof, step: Step, operation: Operation) -> None:
    """Prove that the operation is a pool of the source with other attributes, and the same windows."""
    source = _counterpart(proof, step, operation)
    first, second = source.operand(0), operation.operand(0)
    if first is None or second is None or len(source.inputs) > 1 or len(operation.inputs) > 1:
        raise Unproved("the operands differ")
    padded = zero_padding(first)
    if proof.term_of(first) == proof.term_of(second):
        check_same_windows(source, operation)
    elif padded is not None and proof.term_of(padded[0]) == proof.term_of(second):
        check_padded_average(source, operation, padded[1])
    else:
        raise Unproved("the operands differ")
    for result, given in zip(operation.outputs, source.outputs, strict=True):
        proof.give(result, proof.term_of(given))


def _product_and_sum(proof: Proof, step: Step, operation: Operation) -> None:
    """Prove that the operation is a Gemm of a product and a sum of the source."""
    total = proof.operation_of_source(step.get("source"))
    if operation.kind != "Gemm" or total.kind != "Add" or operation.domain or total.domain or total.version < 7:
        raise Unproved("it is no Gemm, or no sum")
    given = {k: v for k, v in operation.attributes.items() if k != "beta"}
    first, second, third = (operation.operand(i) for i in range(3))
    if operation.attributes.get("beta", 1.0) != 1.0 or first is None or second is None or third is None:
        raise Unproved("an operand is absent, or multiplied")
    terms = [proof.term_of(first), proof.term_of(second), proof.term_of(third)]
    for product, addend in (total.inputs, total.inputs[::-1]):
        inner = None if product is None else proof.known.get(proof.term_of(product), product).producer
        if inner is None or inner.domain or inner.kind not in DENSE or addend is None or inner.operand(2) is not None:
            continue
        operands = [proof.term_of(each) for each in inner.inputs[:2] if each is not None]
        own = {k: v for k, v in inner.attributes.items() if k != "beta"}
        if [*operands, proof.term_of(addend)] == terms and own == given and _fits(addend, inner.outputs[0]):
            proof.give(operation.outputs[0], proof.term_of(total.outputs[0]))
            return
    raise Unproved("the sum has no product with these operands")


def _fits(addend: Datum, product: Datum) -> bool:
    """Return whether a sum with `addend` has the extents of a matrix, as the third operand of a Gemm needs."""
    if product.extents is None or len(product.extents) != 2 or addend.extents is None or len(addend.extents) > 2:
        return False
    pairs = zip(reversed(addend.extents), reversed(product.extents), strict=False)
    return all(own == 1 or (own is not None and own == extent) for own, extent in pairs)


def _affine(proof: Proof, step: Step, operation: Operation) -> None:
    """Prove that the operation is an affine of its data by itself."""
    own = own_line(operation)
    base = None if own is None else proof.base(own[0])
    if own is None or base is None or base[1].rank != own[1].rank:
        raise Unproved(f"{operation.kind} is no affine of a value that is related to the source")
    root, line, direction = base
    if direction == DOWN:
        proof.anchor(operation.outputs[0], root, own[1].after(line), DOWN)
    else:
        back = own[1].inverse()
        if back is None:
            raise Unproved("a scale is zero")
        proof.anchor(operation.outputs[0], root, line.after(back), UP)


def _permuted(proof: Proof, step: Step, operation: Operation) -> Operation:
    """Return an operation of the source, or the same on data whose axes are permuted."""
    perm = step.get("perm")
    if perm is None:
        return operation
    if not isinstance(perm, list) or not all(isinstance(axis, int) for axis in perm):
        raise Unproved("the permutation is damaged")
    return transposed(operation, perm, proof.permuted)


def _counterpart(proof: Proof, step: Step, operation: Operation) -> Operation:
    """Return the operation of the source that does the same with other operands."""
    source = _permuted(proof, step, proof.operation_of_source(step.get("source")))
    if (source.domain, source.version) != (operation.domain, operation.version) or (
        source.kind != operation.kind and {source.kind, operation.kind} != DENSE
    ):
        raise Unproved(f"{source.kind} of the source is another operator than {operation.kind} of the result")
    if source.domain or source.bodies:
        raise Unproved(f"{source.kind} is no operator whose identities are known")
    return source


def _same_operands(proof: Proof, source: Operation, result: Operation) -> bool:
    """Return whether two operations have the same attributes and equal operands, and so equal results."""
    pairs = list(zip_longest(source.inputs, result.inputs))
    if source.attributes != result.attributes or any((a is None) is not (b is None) for a, b in pairs):
        return False
    return all(a is None or b is None or proof.are_equal(b, a) for a, b in pairs)


def _crosses(proof: Proof, step: Step, operation: Operation) -> None:
    """Prove that the operation has a counterpart in the source, and the affine of the operands crosses it."""
    source = _counterpart(proof, step, operation)
    if step.get("perm") is not None and source.kind == operation.kind:
        operation = in_order(operation, len(step["perm"]))
        if _same_operands(proof, source, operation):
            proof.give(operation.outputs[0], proof.term_of(source.outputs[0]))
            return
    crossing = CROSSINGS.get(operation.kind)
    if crossing is None:
        raise Unproved(f"no affine is known to cross {operation.kind}")
    if source.kind != operation.kind:
        raise Unproved("the operators differ")
    own = [
        {k: v for k, v in each.attributes.items() if k not in FREE.get(each.kind, ())} for each in (source, operation)
    ]
    if own[0] != own[1]:
        check_same_windows(source, operation)
    counts = [len(each.inputs) for each in (source, operation)]
    if (counts[0] != counts[1] and source.kind != "Pad") or len(source.outputs) != len(operation.outputs):
        raise Unproved("the numbers of operands or results differ")
    reason = Unproved("an operand has no relation to the source's")
    for direction in (DOWN, UP):
        lines = _operand_lines(proof, source, operation, direction)
        if lines is None:
            continue
        try:
            if lines:
                _check_constants(source, operation, lines, direction)
            found = crossing(source, lines)
        except Unproved as refusal:
            reason = refusal
            continue
        except (ValueError, IndexError, TypeError):
            reason = Unproved("the extents do not fit the affine")
            continue
        for i, result in enumerate(operation.outputs[len(found) :]):
            proof.give(result, proof.term(("unread", proof.side, operation.label, i)))
        for result, given, line in zip(operation.outputs, source.outputs, found, strict=False):
            if line is None:
                proof.give(result, proof.term_of(given))
            else:
                proof.anchor(result, given, line, direction)
        return
    raise reason


def _check_constants(source: Operation, result: Operation, lines: dict[int, Line], direction: str) -> None:
    """Prove that constants beside the data are those that the line of the data makes of the source's."""
    line = next(iter(lines.values()))
    up, down = (line if direction == each else line.inverse() for each in (UP, DOWN))
    if source.kind in SLOPES_OF:
        check_slopes(source, result, up)
    elif source.kind == "Pad" and source.attributes.get("mode", b"constant") == b"constant":
        old, new = _padding_value(source), _padding_value(result)
        if down is None or old.dtype != new.dtype:
            raise Unproved("a scale is zero, or the values of the padding have different types")
        exact = down.scale * float(old) + down.shift
        if not is_rounding(np.broadcast_to(new, exact.shape), exact, np.abs(down.scale * float(old)) + down.reach):
            raise Unproved("the value of the padding is not the rounded one that the scale and shift make")


def _padding_value(pad: Operation) -> Array:
    """Return the value of a Pad, which is zero where it is absent."""
    data, operand = pad.operand(0), pad.operand(2)
    if pad.version >= 11 and operand is not None and operand.stored is not None:
        return operand.stored.array.reshape(())
    if (pad.version >= 11 and operand is not None) or data is None or not data.is_float:
        raise Unproved("the value of the padding is not constant")
    return np.array(pad.attributes.get("value", 0.0), helper.tensor_dtype_to_np_dtype(data.kind))


def _operand_lines(proof: Proof, source: Operation, result: Operation, direction: str) -> dict[int, Line] | None:
    lines: dict[int, Line] = {}
    for i, (first, second) in enumerate(zip_longest(source.inputs, result.inputs)):
        if result.kind == "Pad" and i == 2:
            continue  # its value follows the data
        if first is None or second is None:
            if first is not second:
                return None
            continue
        if proof.term_of(first) == proof.term_of(second):
            if result.kind in TOGETHER and first.rank is not None and not (result.kind == "Where" and i == 0):
                lines[i] = Line.identity(first.rank)
            continue
        found = proof.relations(second, first).get(direction)
        if found is None:
            return None
        lines[i] = found
    return lines


def _same_bounds(proof: Proof, step: Step, operation: Operation) -> None:
    """Prove that clamps in a row limit an affine of a value to the affine of the bounds of a value of the source."""
    source, result = proof.value_of_source(step.get("source")), operation.outputs[0]
    if source.producer is not None and not source.index:
        source = _permuted(proof, step, source.producer).outputs[0]
    reason = Unproved("it is no clamp of a value that is related to the source")
    if source.kind != result.kind:
        raise Unproved("the element types differ")
    for data, bounds in clamps(result):
        for inner, given in clamps(source):
            line = proof.downward(data, inner)
            if line is None:
                continue
            try:
                check_same_bounds(line, given, bounds, helper.tensor_dtype_to_np_dtype(result.kind))
            except Unproved as refusal:
                reason = refusal
                continue
            proof.anchor(result, source, line, DOWN)
            return
    raise reason


def _layer(proof: Proof, step: Step, operation: Operation) -> None:
    """Prove that the operation is a layer of the source with other weights."""
    source = _counterpart(proof, step, operation)
    first, second, result = source.operand(0), operation.operand(0), source.outputs[0]
    if first is None or second is None or result.rank is None or operation.outputs[0].rank != result.rank:
        raise Unproved("the ranks are unknown")
    weights = weights_of(source)
    axis = result.rank - 1 if operation.kind in LAST_AXIS else 1 if weights is None else weights.axis
    if weights is not None and weights.data:
        first, second = source.operand(weights.data), operation.operand(weights.data)
    if first is None or second is None:
        raise Unproved("an operand is absent")
    claim = proof.claim(step, result.rank, axis)
    if operation.kind == "Gemm" and weights_of(operation) is None:
        operands = [(each.operand(0), each.operand(1)) for each in (source, operation)]
        if any(a is None or b is None or proof.term_of(a) != proof.term_of(b) for a, b in zip(*operands, strict=True)):
            raise Unproved("the operands differ")
        check_bias(source, operation, claim)
        proof.anchor(operation.outputs[0], result, claim, DOWN)
        return
    if operation.kind == "DequantizeLinear":
        pairs = [
            [None if each is None else proof.term_of(each) for each in (x.operand(0), x.operand(2))]
            for x in (source, operation)
        ]
        if pairs[0] != pairs[1]:
            raise Unproved("the integers or zero points differ")
        check_dequantized(source, operation, claim)
        proof.anchor(operation.outputs[0], result, claim, DOWN)
        return
    if operation.kind.endswith("Normalization"):
        if proof.term_of(first) != proof.term_of(second):
            raise Unproved("the data differ")
        check_scaled_parameters(source, operation, claim)
        proof.anchor(operation.outputs[0], result, claim, DOWN)
        return
    data, padding = proof.upward(second, first), None
    if data is None and operation.kind in ("Conv", "ConvTranspose") and proof.term_of(first) == proof.term_of(second):
        data = Line.identity(result.rank)  # data and result of a convolution have one rank
    padded = zero_padding(first) if data is None else None
    if padded is not None:
        data, padding = proof.upward(second, padded[0]), padded[1]
    if data is None:
        raise Unproved("the data have no relation to the source's")
    proof.anchor(operation.outputs[0], result, check_layer(source, operation, data, claim, padding), DOWN)


def _rounded(proof: Proof, step: Step, operation: Operation) -> None:
    """Prove that the operation is an affine whose rounded constants make it `applies` of a value."""
    target = proof.value_of_source(step.get("source"))
    family = proof.family(target)
    operands = [each for each in operation.inputs[: 1 if operation.kind == "BatchNormalization" else 2] if each]
    data = next((each for each in operands if each.stored is None), None)
    base = None if data is None else proof.base(data)
    if family is None or base is None or base[2] != DOWN or base[0].term != family[0].term:
        raise Unproved("the data have no relation to the value")
    rank = family[1].rank
    if base[1].rank != rank:
        raise Unproved("the ranks differ")
    claim = family[1]
    if step.get("only") in ("scale", "shift"):
        back = base[1].inverse()
        if back is None:
            raise Unproved("a scale of the data is zero")
        factor = claim.scale * back.scale
        if step["only"] == "scale":
            claim = Line(claim.scale, factor * base[1].shift, np.abs(factor) * base[1].reach)
        elif factor.all():
            claim = Line(base[1].scale, claim.shift / factor, claim.reach / np.abs(factor))
        else:
            raise Unproved("a scale is zero")
    if step.get("applies"):
        claim = proof.claim(step, rank, proof.channel_axis(step, rank)).after(claim)
    proof.anchor(operation.outputs[0], family[0], check_rounded(operation, base[1], claim), DOWN)


IDENTITIES: dict[str, Callable[[Proof, Step, Operation], None]] = {
    "constant": _constant,
    "equal operand": _equal_operand,
    "taken branch": _taken_branch,
    "view": _view,
    "same elements": _same_moves,
    "same join": _same_join,
    "same windows": _same_windows,
    "product and sum": _product_and_sum,
    "affine": _affine,
    "crosses": _crosses,
    "same bounds": _same_bounds,
    "layer": _layer,
    "rounded affine": _rounded,
}
"""The identities by the name that steps have for them."""
