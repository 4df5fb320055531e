"""Types of the values that Loop and Scan carry between runs of their body, by induction.

The first run reads operands whose types are known. If the results of a body have the types of its
inputs whenever its inputs have them, they have them in every run, and the results of the operator
have them, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from onnx import GraphProto, TensorProto, TypeProto, ValueInfoProto, helper

from .inferred_types import OpenPart, bodies_of, infer_types
from .program import MADE_UP, Datum, Operation, Program, unsettled

Extents = tuple["int | str | None", ...]

MAX_ROUNDS = 6
"""Most times that types are inferred until the assumed ones hold."""


def known_operands(program: Program) -> int:
    """Return how many extents are known of the operands of loops, and how many ranks."""
    loops = (each for each in program.operations.values() if each.bodies)
    found = (each.extents for operation in loops for each in operation.inputs if each is not None)
    return sum(
        1 + sum(isinstance(extent, int | str) for extent in extents)
        for extents in found
        if extents is not None
    )


def infer_carried(
    program: Program,
    constants: Mapping[str, TensorProto],
    stated: Mapping[str, ValueInfoProto],
    ranks: Mapping[str, ValueInfoProto],
) -> GraphProto:
    """Return the graph with the types that onnx infers, carried values included.

    `stated` are types in place of those that onnx infers, `ranks` types of which it may infer more.
    Operators are left out whose types are known, or whose results are constants that nothing reads.
    """
    main = {each.label for operation in program.body.operations for each in operation.outputs}
    part, given = _open_part(program, constants)
    given = [each for each in given if each.name not in stated]
    given += [each for label, each in stated.items() if label in main]
    known = {**ranks, **{label: each for label, each in stated.items() if label not in main}}
    places = list(_carried(program))
    assumed = {
        inside.label: tuple(unsettled(first, axis) for axis in range(len(first.extents)))
        for first, inside, _, _ in places
        if first.extents is not None and first.kind
    }
    for _ in range(MAX_ROUNDS):
        made = dict(known)
        for first, inside, _, result in places:
            if inside.label in assumed:
                type_ = helper.make_tensor_value_info("", first.kind, assumed[inside.label])
                made.update({inside.label: type_, result.label: type_})
        typed = infer_types(program.model, constants, given, made, part)
        found = dict(_results(typed))
        holding = {
            inside.label: kept
            for _, inside, last, _ in places
            if inside.label in assumed
            and (kept := _common(assumed[inside.label], found.get(last))) is not None
        }
        if holding == assumed:
            return typed
        assumed = holding
    return infer_types(program.model, constants, given, known, part)


def _open_part(
    program: Program, constants: Mapping[str, TensorProto]
) -> tuple[OpenPart, list[ValueInfoProto]]:
    """Return the part of the main graph of which types are unknown, and types that it reads."""
    closed = {
        operation.label: operation
        for operation in program.body.operations
        if not operation.bodies
        and operation.kind != "Identity"  # it may hand on a constant
        and _is_settled(operation)
    }
    others = [each for each in program.operations.values() if each.label not in closed]
    bodies = [program.body, *(body for each in others for body in each.bodies.values())]
    read = {each.label for operation in others for each in operation.inputs if each is not None}
    read |= {each.label for body in bodies for each in body.outputs}
    for operation in list(closed.values()):
        if any(each.label in read and each.label in constants for each in operation.outputs):
            del closed[operation.label]
    types = [
        helper.make_tensor_value_info(
            each.label, each.kind, [unsettled(each, axis) for axis in range(each.rank or 0)]
        )
        for operation in closed.values()
        for each in operation.outputs
        if each.label in read
    ]
    return OpenPart(closed, read), types


def _is_settled(operation: Operation) -> bool:
    """Return whether no inference can tell more of the types of an operation's results."""
    return all(
        each.kind
        and each.extents is not None
        and all(isinstance(extent, int | str) for extent in each.extents)
        for each in operation.outputs
    )


def _carried(program: Program) -> Iterator[tuple[Datum, Datum, tuple[str, int], Datum]]:
    """Yield operand, body input, body result by path and place, and result of carried values."""
    for operation in program.operations.values():
        if (
            operation.domain
            or operation.kind not in ("Loop", "Scan")
            or "body" not in operation.bodies
        ):
            continue
        body, path = operation.bodies["body"], f"{operation.label}/body/"
        skipped = 2 if operation.kind == "Loop" else 0  # the number of a run and the condition
        count = len(operation.inputs) - skipped
        if operation.kind == "Scan":
            count -= int(operation.attributes.get("num_scan_inputs", 0))
            if operation.version < 9:  # it has a batch axis
                continue
        for i in range(min(count, len(operation.outputs))):
            first = operation.operand(i + skipped)
            if first is not None:
                place = i + (1 if operation.kind == "Loop" else 0)
                yield first, body.inputs[i + skipped], (path, place), operation.outputs[i]


def _results(graph: GraphProto) -> Iterator[tuple[tuple[str, int], TypeProto]]:
    """Yield the types of the results of bodies, by their path and place."""
    for node in graph.node:
        for path, body in bodies_of(node):
            yield from (((path, i), each.type) for i, each in enumerate(body.output))
            yield from _results(body)


def _common(assumed: Extents, found: TypeProto | None) -> Extents | None:
    """Return the extents that a type has, too, None if its rank is another or unknown."""
    if (
        found is None
        or not found.tensor_type.HasField("shape")
        or len(found.tensor_type.shape.dim) != len(assumed)
    ):
        return None
    own = [
        each.dim_value if each.HasField("dim_value") else each.dim_param
        for each in found.tensor_type.shape.dim
    ]
    same = zip(assumed, own, strict=True)
    return tuple(a if a == b and not str(b).startswith(MADE_UP) else None for a, b in same)
