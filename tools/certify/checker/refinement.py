"""Types that onnx infers once shapes computed from known extents are constants."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from onnx import ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper

from .carried import infer_carried, known_operands
from .inferred_types import SMALL
from .integers import INTEGERS, Expression, Extent, Integers
from .node_types import NodeTypes
from .operators import SIMPLE_REDUCTIONS
from .pools import POOLS
from .program import (
    STATED,
    Array,
    Block,
    Datum,
    FreeExtent,
    Operation,
    Program,
    Stored,
    Unproved,
    load,
    note_types,
    operations_of,
    unsettled,
)
from .recomputation import recomputed
from .result_extents import name_of, result_extents

SAME_TYPE = frozenset(
    (
        *("GroupNormalization", "HardSigmoid", "Einsum", "PRelu"),
        *("Reshape", "Expand", "Resize", "Upsample", *POOLS),
    )
)
"""Operators whose result has the type of their data, where onnx does not infer it."""

COMPUTED: Mapping[str, Sequence[int]] = {"Pad": (1,), "Slice": (1, 2)}
"""The operands of which some elements may be numbers though others are computed."""

ROUNDS = 24
"""Most times that types are inferred; each may make more constants known."""


def load_typed(model: ModelProto) -> Program:
    """Return the program of a model with all types that follow from the extents of its inputs."""
    program = load(model)
    stated: dict[str, ValueInfoProto] = {}
    known: tuple[int, dict[str, ValueInfoProto], int] | None = None
    looks = _Looks(program)
    ranks: dict[str, ValueInfoProto] = {}
    for _ in range(ROUNDS):
        if all(
            value.extents is not None and not _unknown(value) for value in program.data.values()
        ):
            break
        constants, found = looks.look()
        stated = {name: each for name, each in {**stated, **found}.items() if name not in constants}
        ranks = {**_ranks(program), **ranks}
        if known == (len(constants), stated, known_operands(program) + len(ranks)):
            break
        known = len(constants), stated, known_operands(program) + len(ranks)
        note_types(program, infer_carried(program, constants, stated, ranks))
    program.settled = {value: stored for value, (stored, _) in looks.computed.items()}
    _note_numbers(program)
    return program


def _note_numbers(program: Program) -> None:
    """Note which elements of computed operands are numbers, whatever the extents of inputs are."""
    operations = list(operations_of(program.body))
    given = [each.operand(i) for each in operations for i in COMPUTED.get(each.kind, ())]
    found = [each for each in given if each is not None and each.stored is None]
    integers = _Shapes().integers
    for operation in operations if found else ():
        settled = program.settled.get(operation.outputs[0])
        if settled is None:
            integers.enter(operation)
        elif settled.array.dtype.kind in "iub":
            integers.found[operation.outputs[0]] = settled.array.astype(object)
    for each in found:
        elements = integers.of(each)
        if elements is not None:
            numbers = elements.reshape(-1).tolist()
            each.numbers = [number if isinstance(number, int) else None for number in numbers]


def _unknown(value: Datum) -> bool:
    return any(extent is None or isinstance(extent, FreeExtent) for extent in value.extents or ())


class _Shapes:
    """The extents of the values of a program as expressions, and its small integers."""

    def __init__(self) -> None:
        self.integers = Integers(self.of)
        self._found: dict[Datum, list[Extent] | None] = {}

    def of(self, value: Datum) -> list[Extent] | None:
        """Return the extents of a value, None if its rank is unknown."""
        if value not in self._found:
            self._found[value] = None  # until they are known
            self._found[value] = self._extents(value)
        return self._found[value]

    def forget(self, value: Datum) -> None:
        """Forget the extents of a value, of which more may be known now."""
        self._found.pop(value, None)

    def _extents(self, value: Datum) -> list[Extent] | None:
        if value.extents is None:
            found = self.derived(value)
            known = [each for each in found or () if each is not None]
            return known if found is not None and len(known) == len(found) else None
        if all(isinstance(each, int) for each in value.extents):
            return [each for each in value.extents if isinstance(each, int)]
        found = self.derived(value) if _unknown(value) else None
        if found is None or len(found) != len(value.extents):
            found = [None] * len(value.extents)
        return [self._extent(value, axis, each) for axis, each in enumerate(found)]

    def _extent(self, value: Datum, axis: int, derived: Extent | None) -> Extent:
        extent = (value.extents or ())[axis]
        if isinstance(extent, int):
            return extent
        if isinstance(extent, str):
            return Expression("symbol", (extent,))
        if derived is not None:
            return derived
        origin = FreeExtent(value, axis) if extent is None else extent
        shape = None if origin.value is value else self.of(origin.value)
        if shape is not None and origin.axis < len(shape):
            return shape[origin.axis]
        return Expression("extent", (origin.value.label, origin.axis))

    def derived(self, value: Datum) -> Sequence[Extent | None] | None:
        """Return the extents that follow from an operator, None if none do."""
        return result_extents(value, self.of, self.integers)


class _Looks:
    """Looks at the operations of a program again and again, as more types become known.

    `computed` are small tensors. They stay constants, however much more becomes known. A later look
    leaves out operations about whose operands and results nothing new is known.
    """

    def __init__(self, program: Program) -> None:
        self.computed: dict[Datum, tuple[Stored, TensorProto]] = {}
        self._program = program
        self._main = set(program.body.operations)
        self._nodes = NodeTypes(program)
        self._shapes = _Shapes()
        self._seen: dict[Datum, tuple[Any, ...]] = {}
        self._further: set[Datum] = set()

    def look(self) -> tuple[dict[str, TensorProto], dict[str, ValueInfoProto]]:
        """Return the small tensors that can be computed, and types that onnx does not infer.

        The types are those that were not found before.
        """
        operations = list(operations_of(self._program.body))
        stated: dict[str, ValueInfoProto] = {}
        new: set[Datum] = set()
        self._further.clear()
        given = (each for each in self._program.data.values() if each.producer is None)
        self._compare((each for each in given if each.stored is None), new)
        for operation in operations:
            if self._is_open(operation, new):
                self._look_at(operation, stated)
                self._compare(operation.outputs, new)
                for value in operation.outputs if operation in self._main else ():
                    self._shapes.integers.note_extents(self._shapes.of(value) or ())
            for value in operation.outputs:
                if value in self.computed:
                    value.stored = self.computed[value][0]
        for operation in operations:  # they are constants of a proof only by its steps
            for value in operation.outputs:
                value.stored = None
        return {value.label: made for value, (_, made) in self.computed.items()}, stated

    def _is_open(self, operation: Operation, new: Collection[Datum]) -> bool:
        """Return whether something is known of an operation that was not at the look before."""
        for value in operation.outputs:
            seen = self._seen.get(value)
            if seen is None or seen[0] != value.kind or seen[1] != value.extents:
                return True
            for extent in value.extents or ():
                if isinstance(extent, FreeExtent) and extent.value in new:
                    return True
        return any(value in new for value in operation.inputs)

    def _compare(self, values: Iterable[Datum], new: set[Datum]) -> None:
        """Add values to `new` of which more is known than before."""
        for value in values:
            self._shapes.forget(value)
            shape, numbers = self._shapes.of(value), self._shapes.integers.found.get(value)
            array = None if numbers is None else (numbers.shape, *numbers.flat)
            made = value.kind, value.extents, shape, array, value in self.computed
            if self._seen.get(value) != made:
                self._seen[value] = made
                new.add(value)

    def _look_at(self, operation: Operation, stated: dict[str, ValueInfoProto]) -> None:
        """Add the constants and types of the results of an operation."""
        result, is_main = operation.outputs[0], operation in self._main
        if operation.bodies:
            return
        for value in operation.outputs:
            self._shapes.forget(value)
        if result not in self.computed:
            self._shapes.integers.found.pop(result, None)
            for value, array in _constants(operation, self._shapes.integers):
                made = numpy_helper.from_array(array, value.label)
                self.computed[value] = Stored(None, array), made
                self._further.add(value)
        for value in operation.outputs:
            if value in self.computed:
                value.stored = self.computed[value][0]
        if result.stored is None and not operation.domain:
            type_ = _stated(operation, self._shapes, in_body=not is_main)
            if type_ is not None:
                stated[result.label] = type_
        if is_main and self._may_tell_more(operation):
            before = [(each.kind, each.extents) for each in operation.outputs]
            self._nodes.infer(operation, self.computed)
            after = [(each.kind, each.extents) for each in operation.outputs]
            pairs = zip(operation.outputs, before, after, strict=True)
            self._further.update(value for value, old, new in pairs if old != new)

    def _may_tell_more(self, operation: Operation) -> bool:
        """Return whether inference of one node may tell more than that of the whole model.

        That one has names for all extents, if it does not fail, and knows all of first results but
        what follows from this look.
        """
        if all(each.extents is not None and not _unknown(each) for each in operation.outputs):
            return False
        return (
            len(operation.outputs) > 1
            or not operation.outputs[0].kind
            or any(
                each is not None and (each in self._further or _unknown(each))
                for each in operation.inputs
            )
        )


def _constants(operation: Operation, integers: Integers) -> list[tuple[Datum, Array]]:
    """Return the results of an operation that are small constants."""
    numbers = integers.enter(operation)
    dtype = INTEGERS.get(operation.outputs[0].kind)
    if (
        numbers is not None
        and dtype is not None
        and not any(isinstance(each, Expression) for each in numbers.flat)
    ):
        return [(operation.outputs[0], numbers.astype(dtype))]
    try:
        found = recomputed(operation)
    except Unproved:
        return []
    pairs = zip(operation.outputs, found, strict=False)
    return [
        (value, stored.array)
        for value, stored in pairs
        if stored.array.size <= SMALL and _is_exact(stored)
    ]


def _is_exact(stored: Stored) -> bool:
    """Return whether a constant was computed without rounding, so that runtimes have it, too."""
    return stored.array.dtype.kind in "iub" or (
        stored.array.dtype.kind == "f" and bool((stored.exact == stored.array).all())
    )


def _stated(operation: Operation, shapes: _Shapes, *, in_body: bool) -> ValueInfoProto | None:
    """Return the type of a result that follows from its operator, None if onnx knows as much."""
    data, result = operation.operand(0), operation.outputs[0]
    if result.extents is not None and not _unknown(result):
        return None
    kind = result.kind
    if not kind and data is not None and operation.kind in SAME_TYPE:
        kind = data.kind
    found = shapes.derived(result) if kind else None
    if found is None or (result.extents is not None and len(result.extents) != len(found)):
        return None
    names: list[int | str | None] = []
    is_new = result.extents is None
    for axis, extent in enumerate(found):
        known = None if result.extents is None else result.extents[axis]
        own = f"{STATED}{result.label} {axis}"
        name = known if isinstance(known, int | str) else name_of(extent, STATED)
        is_new |= name not in (None, known, own) and name != unsettled(result, axis)
        name = own if name is None else name
        # An extent of a value of a body may be another in each run.
        names.append(None if in_body and str(name).startswith(STATED) else name)
    return helper.make_tensor_value_info(result.label, kind, names) if is_new else None


def _ranks(program: Program) -> dict[str, ValueInfoProto]:
    """Return the types of values of which only the rank follows, and onnx does not infer it.

    It follows from the operands of an operation, and from the axes that a Transpose of the value
    permutes in the same body: a branch may not run.
    """
    found: dict[str, ValueInfoProto] = {}
    for body in _bodies(program.body):
        own = {*body.inputs, *(each for operation in body.operations for each in operation.outputs)}
        for operation in body.operations:
            data, perm = operation.operand(0), operation.attributes.get("perm", ())
            is_transpose = operation.kind == "Transpose" and not operation.domain and perm
            pairs = [
                (operation.outputs[0], _rank(operation)),
                (data, len(perm) if is_transpose else None),
            ]
            for value, rank in pairs:
                if value in own and rank is not None and value.extents is None and value.kind:
                    found[value.label] = helper.make_tensor_value_info(
                        value.label, value.kind, [None] * rank
                    )
    return found


def _bodies(body: Block) -> Iterator[Block]:
    yield body
    for operation in body.operations:
        for inner in operation.bodies.values():
            yield from _bodies(inner)


def _rank(operation: Operation) -> int | None:
    if operation.domain:
        return None
    if operation.kind == "Flatten":
        return 2
    if operation.kind == "Concat":  # its operands have one rank
        return next(
            (each.rank for each in operation.inputs if each is not None and each.rank is not None),
            None,
        )
    data = operation.operand(0)
    keeps = operation.kind in SIMPLE_REDUCTIONS and operation.attributes.get("keepdims", 1)
    return data.rank if data is not None and keeps else None
