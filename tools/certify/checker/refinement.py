"""Types that onnx infers once shapes computed from known extents are constants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnx import ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper

from .carried import infer_carried, known_operands
from .inferred_types import SMALL
from .integers import INTEGERS, Expression, Extent, Integers, is_natural
from .movement import REDUCTIONS
from .node_types import NodeTypes
from .pools import POOLS, windows
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
    static,
)
from .recomputation import recomputed
from .reordering import extents_of, regrouped, whole

KEEPING = frozenset(("GroupNormalization", "HardSigmoid"))
"""Operators that keep extents and type of their data, unknown to onnx in some opsets."""

ROUNDS = 24
"""Most times that types are inferred; each may make more constants known."""


def load_typed(model: ModelProto) -> Program:
    """Return the program of a model with all types that follow from the extents of its inputs."""
    program = load(model)
    stated: dict[str, ValueInfoProto] = {}
    known: tuple[int, dict[str, ValueInfoProto], int] | None = None
    computed: Computed = {}
    nodes = NodeTypes(program)
    ranks: dict[str, ValueInfoProto] = {}
    for _ in range(ROUNDS):
        if all(
            value.extents is not None and not _unknown(value) for value in program.data.values()
        ):
            break
        constants, found = _looked_at(program, computed, nodes)
        stated = {name: each for name, each in {**stated, **found}.items() if name not in constants}
        ranks = {**_ranks(program), **ranks}
        if known == (len(constants), stated, known_operands(program) + len(ranks)):
            break
        known = len(constants), stated, known_operands(program) + len(ranks)
        note_types(program, infer_carried(program, constants, stated, ranks))
    return program


def _unknown(value: Datum) -> bool:
    return any(extent is None or isinstance(extent, FreeExtent) for extent in value.extents or ())


def _shape(value: Datum) -> list[Extent] | None:
    """Return the extents of a value as expressions."""
    if value.extents is None:
        return None
    made: list[Extent] = []
    for axis, extent in enumerate(value.extents):
        if isinstance(extent, int):
            made.append(extent)
        elif isinstance(extent, str):
            made.append(Expression("symbol", (extent,)))
        else:
            origin = FreeExtent(value, axis) if extent is None else extent
            made.append(Expression("extent", (origin.value.label, origin.axis)))
    return made


Computed = dict[Datum, tuple[Stored, TensorProto]]
"""Small tensors that were computed. They stay constants, however much more becomes known."""


def _looked_at(
    program: Program, computed: Computed, nodes: NodeTypes
) -> tuple[dict[str, TensorProto], dict[str, ValueInfoProto]]:
    """Return the small tensors that can be computed, and types that onnx does not infer.

    Add to those `computed`.
    """
    made: dict[str, TensorProto] = {}
    stated: dict[str, ValueInfoProto] = {}
    integers = Integers(_shape)
    main = set(program.body.operations)
    for operation in operations_of(program.body):
        if operation.outputs[0].stored is not None or operation.bodies:
            continue
        if operation.outputs[0] not in computed:
            for value, array in _constants(operation, integers):
                computed[value] = Stored(None, array), numpy_helper.from_array(array, value.label)
        for value in operation.outputs:
            if value in computed:
                value.stored, made[value.label] = computed[value]
        data, result = operation.operand(0), operation.outputs[0]
        if operation.domain or data is None or not data.kind:
            extents = None
        else:
            extents = _stated(operation, integers)
        if data is not None and extents is not None and result.stored is None:
            names: list[int | str | None] = [
                _named(each) or f"{STATED}{result.label} {axis}"
                for axis, each in enumerate(extents)
            ]
            if operation not in main:  # an extent of a value of a body may be another in each run
                names = [None if str(each).startswith(STATED) else each for each in names]
            stated[result.label] = helper.make_tensor_value_info(result.label, data.kind, names)
        if operation in main and any(
            each.extents is None or _unknown(each) for each in operation.outputs
        ):
            nodes.infer(operation, computed)
    for operation in operations_of(program.body):  # they are constants of a proof only by its steps
        for value in operation.outputs:
            value.stored = None
    return made, stated


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


def _stated(operation: Operation, integers: Integers) -> Sequence[Extent | None] | None:
    """Return extents of a result that follow from its data, if onnx knows less."""
    data, result = operation.operand(0), operation.outputs[0]
    if result.extents is not None and not _unknown(result):
        return None
    shape = None if data is None else _shape(data)
    if operation.kind == "Einsum":
        return _einsum(operation)
    if operation.kind == "PRelu":
        slope = None if operation.inputs[1] is None else _shape(operation.inputs[1])
        pairs = zip(reversed(slope or ()), reversed(shape or ()), strict=False)
        fits = shape is not None and slope is not None and len(slope) <= len(shape)
        return shape if fits and all(own in (1, extent) for own, extent in pairs) else None
    if operation.kind in ("Reshape", "Expand") and operation.version >= 5:
        return _reshaped(operation, shape, integers)
    if operation.kind in POOLS and shape is not None and result.extents is None:
        return [
            *shape[:2],
            *(windows(operation, axis, extent) for axis, extent in enumerate(shape[2:])),
        ]
    if operation.kind in ("Resize", "Upsample") and shape is not None:
        sizes = _sizes(operation, len(shape), integers)
        if sizes is not None or result.extents is None:
            return sizes or [None] * len(shape)
    return shape if operation.kind in KEEPING and result.extents is None else None


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
    keeps = operation.kind in REDUCTIONS and operation.attributes.get("keepdims", 1)
    return data.rank if data is not None and keeps else None


def _reshaped(
    operation: Operation, shape: list[Extent] | None, integers: Integers
) -> Sequence[Extent | None] | None:
    """Return the extents of a Reshape or Expand, whose data may have an unknown rank."""
    numbers, operand = integers.of(operation.operand(1)), operation.operand(1)
    if numbers is None or numbers.ndim != 1:
        length = static(None if operand is None else operand.extents)
        return [None] * length[0] if operation.kind == "Reshape" and length else None
    target = list(numbers)
    if operation.kind == "Expand":
        if shape is None:
            return None
        wide = [1] * (len(target) - len(shape)) + shape
        target = [1] * (len(wide) - len(target)) + target
        return [_broadcast(*pair) for pair in zip(wide, target, strict=True)]
    copies = not operation.attributes.get("allowzero", 0)
    if copies and shape is not None:
        target = [
            shape[i] if each == 0 and i < len(shape) else each for i, each in enumerate(target)
        ]
    try:
        if shape is not None:
            return extents_of(regrouped(whole(shape), target))
    except Unproved:
        pass
    return [each if is_natural(each) and each != 0 else None for each in target]


def _sizes(operation: Operation, rank: int, integers: Integers) -> Sequence[Extent | None] | None:
    """Return the extents that a Resize is given, None if it scales, or decides by a policy."""
    numbers = integers.of(operation.operand(3))
    if (
        numbers is None
        or numbers.shape != (rank,)
        or not operation.attributes.keys().isdisjoint(("axes", "keep_aspect_ratio_policy"))
    ):
        return None
    return [each if is_natural(each) and each != 0 else None for each in numbers]


def _einsum(operation: Operation) -> Sequence[Extent | None] | None:
    """Return the extents of an Einsum without ellipsis that broadcasts no axis."""
    given, arrow, result = (
        operation.attributes["equation"].decode().replace(" ", "").partition("->")
    )
    terms, found = given.split(","), dict[str, Extent]()
    if not arrow or "." in given or len(terms) != len(operation.inputs):
        return None
    for letters, value in zip(terms, operation.inputs, strict=True):
        shape = None if value is None else _shape(value)
        if shape is None or len(shape) != len(letters):
            return None
        if any(found.setdefault(*pair) != pair[1] for pair in zip(letters, shape, strict=True)):
            return None
    return [found[letter] for letter in result]


def _broadcast(extent: Extent, target: Extent) -> Extent | None:
    """Return the extent that both are broadcast to, None if it may be either."""
    for one, other in ((extent, target), (target, extent)):
        if one == other or one == 1:
            return other if is_natural(other) else None
        if isinstance(one, int) and one > 1:
            return one
    return None


def _named(extent: Extent | None) -> int | str | None:
    """Return an extent as onnx writes it, None if it has no name."""
    if not isinstance(extent, Expression):
        return None if extent is None else int(extent)
    if extent.head == "extent":
        return f"{STATED}{extent.parts[0]} {extent.parts[1]}"
    return str(extent.parts[0]) if extent.head == "symbol" else None
