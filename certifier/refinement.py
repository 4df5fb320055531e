"""Types that onnx's inference finds once the shapes that the model computes from known extents are constants."""

from __future__ import annotations

from onnx import ModelProto, TensorProto, numpy_helper

from .program import SMALL, Program, Stored, Unproved, infer_types, load, note_types
from .recomputation import recomputed

ROUNDS = 4
"""Most times that types are inferred; each time may make more extents, and so more constants, known."""


def load_typed(model: ModelProto) -> Program:
    """Return the program of a model with all types that follow from the extents of its inputs."""
    program = load(model)
    known = 0
    for _ in range(ROUNDS):
        if all(value.extents is not None for value in program.data.values()):
            break
        constants = _constants(program)
        if len(constants) <= known:
            break
        known = len(constants)
        note_types(program, infer_types(program.model, constants))
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
    for operation in program.body.operations:  # they are constants of the proof only by their steps
        for value in operation.outputs:
            value.stored = None
    return made
