"""Types that onnx's inference finds once the shapes that the model computes from known extents are constants."""

from __future__ import annotations

from onnx import ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper

from .program import SMALL, Datum, Operation, Program, Stored, Unproved, infer_types, load, note_types, product
from .recomputation import recomputed
from .targets import target_of

ROUNDS = 6
"""Most times that types are inferred; each time may make more extents, and so more constants, known."""


def load_typed(model: ModelProto) -> Program:
    """Return the program of a model with all types that follow from the extents of its inputs."""
    program = load(model)
    known = 0
    for _ in range(ROUNDS):
        if all(value.extents is not None for value in program.data.values()):
            break
        constants, stated = _constants(program), []
        for operation in program.body.operations:
            info = _stated(operation)
            stated += [] if info is None else [info]
        _forget(program)
        if len(constants) + len(stated) <= known:
            break
        known = len(constants) + len(stated)
        note_types(program, infer_types(program.model, constants, stated))
    return program


def _constants(program: Program) -> dict[str, TensorProto]:
    """Return the small integer tensors of the main graph that can be computed, by name."""
    made: dict[str, TensorProto] = {}
    for operation in program.body.operations:
        if operation.outputs[0].stored is not None or operation.bodies:
            continue
        try:
            found: list[Stored] = recomputed(operation)
        except Unproved:
            continue
        for value, stored in zip(operation.outputs, found, strict=False):
            if stored.array.dtype.kind in "iub" and stored.array.size <= SMALL:
                value.stored = stored
                made[value.label] = numpy_helper.from_array(stored.array, value.label)
    return made


def _forget(program: Program) -> None:
    """Take the constants back: they are constants of a proof only by its steps."""
    for operation in program.body.operations:
        for value in operation.outputs:
            value.stored = None


def _stated(operation: Operation) -> ValueInfoProto | None:
    """Return a type that onnx does not infer: of a Reshape to a target that is known but for symbols, for one."""
    if operation.domain or operation.kind not in ("Reshape", "GroupNormalization"):
        return None
    data, result = operation.operand(0), operation.outputs[0]
    if data is None or not data.kind:
        return None
    if operation.kind == "GroupNormalization":
        return None if data.extents is None else helper.make_tensor_value_info(result.label, data.kind, data.extents)
    try:
        target = target_of(operation)
    except Unproved:
        return None
    extents: list[int | str | None] = [each if isinstance(each, int | str) else None for each in target]
    if -1 in extents:
        extents[extents.index(-1)] = _rest(data, extents)
    if -1 in extents:
        return None
    return helper.make_tensor_value_info(result.label, data.kind, extents)


def _rest(data: Datum, extents: list[int | str | None]) -> int | None:
    """Return the extent that -1 stands for, None where it is unknown.

    Symbols that both sides have go out: with N on both, [N, 4, 6] to [N, -1] leaves 24.
    """
    if data.extents is None:
        return None
    left, right = list(data.extents), [each for each in extents if each != -1]
    for symbol in [each for each in right if isinstance(each, str)]:
        if symbol in left:
            left.remove(symbol)
            right.remove(symbol)
    known = [each for each in left if isinstance(each, int)]
    others = [each for each in right if isinstance(each, int)]
    if len(known) != len(left) or len(others) != len(right) or not product(others):
        return None
    return product(known) // product(others)
