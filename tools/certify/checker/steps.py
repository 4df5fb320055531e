"""Steps of a certificate, and their parts: a source operation, and applied affines."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from .affine_operators import own_line
from .lines import Line, along
from .program import Operation, Unproved
from .relations import Relations
from .transposition import transposed
from .weighted_layers import DENSE

Step = Mapping[str, Any]

MAX_PARTS = 64
"""Most affines that one layer applies."""


def permuted(proof: Relations, step: Step, operation: Operation) -> Operation:
    """Return an operation of the source, or the same on data whose axes are permuted."""
    perm = step.get("perm")
    if perm is None:
        return operation
    if not isinstance(perm, list) or not all(isinstance(axis, int) for axis in perm):
        raise Unproved("the permutation is damaged")
    return transposed(operation, perm, proof.permuted)


def counterpart(proof: Relations, step: Step, operation: Operation) -> Operation:
    """Return the operation of the source that does the same with other operands."""
    source = permuted(proof, step, proof.operation_of_source(step.get("source")))
    if operation.kind == "Gather" and source.kind == "Unsqueeze":
        source = _with_axis(proof, source, operation)
    if (source.domain, source.version) != (operation.domain, operation.version) or (
        source.kind != operation.kind and {source.kind, operation.kind} != DENSE
    ):
        raise Unproved(
            f"{source.kind} of the source is another operator than {operation.kind} of the result"
        )
    if source.domain or source.bodies:
        raise Unproved(f"{source.kind} is no operator whose identities are known")
    return source


def _with_axis(proof: Relations, source: Operation, operation: Operation) -> Operation:
    """Return the Gather that keeps its axis which an Unsqueeze of the source's Gather is.

    Raises Unproved unless it has the class of that Unsqueeze.
    """
    data = source.operand(0)
    inner = None if data is None else proof.first_of(data).producer
    if inner is None or inner.kind != "Gather":
        raise Unproved("it is no Gather of one position")
    inputs = [inner.inputs[0], *operation.inputs[1:]]
    made = replace(operation, inputs=inputs, outputs=source.outputs)
    if proof.terms.get((*proof.key(made), 0)) != proof.term_of(source.outputs[0]):
        raise Unproved("it is a Gather of other positions")
    return made


def channel_axis(step: Step, rank: int) -> int:
    """Return the axis of the numbers in `applies`. Raises Unproved."""
    axis = step.get("axis", min(1, rank - 1))
    if rank and (not isinstance(axis, int) or not 0 <= axis < rank):
        raise Unproved("the channel axis does not exist")
    return int(axis)


def applied(proof: Relations, step: Step, rank: int, axis: int) -> Line:
    """Return the line that a layer applies: the affines in `applies` in a row."""
    line = Line.identity(rank)
    parts = step.get("applies", ())
    names = [part.get("of") or part.get("value") for part in parts]
    stated = [name for name in names if name is not None]
    if len(parts) > MAX_PARTS or len(set(stated)) < len(stated):
        raise Unproved("it applies too many affines, or one twice")
    for part in parts:
        line = _stage(proof, part, rank, axis).after(line)
    if not line.is_finite:
        raise Unproved("a number is not finite")
    # The claim is these very numbers, so nothing widens its bounds.
    return Line.of(line.scale, line.shift)


def _stage(proof: Relations, part: Mapping[str, Any], rank: int, axis: int) -> Line:
    if "of" in part:
        operation = proof.operation_of_source(part["of"])
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
        family = proof.family(proof.value_of_source(part["value"]))
        if family is None or family[1].rank != rank:
            raise Unproved("the rank of the affine is another")
        return family[1]
    scale, shift = (
        decoded(part.get(name, default)) for name, default in (("scale", 1.0), ("shift", 0.0))
    )
    extents = part.get("extents")
    if extents is None:
        return Line.of(*(along(np.atleast_1d(each), axis, rank) for each in (scale, shift)))
    if not isinstance(extents, list) or len(extents) != rank:
        raise Unproved("the numbers have another rank")
    return Line.of(
        *(each.reshape(extents if each.size > 1 else [1] * rank) for each in (scale, shift))
    )


def decoded(given: object) -> np.ndarray[Any, Any]:
    """Return an array of a certificate: a number, or float64 in base64. Raises Unproved."""
    if isinstance(given, int | float):
        return np.array(float(given))
    if isinstance(given, str):
        try:
            return np.frombuffer(base64.b64decode(given, validate=True), "<f8")
        except ValueError:
            raise Unproved("an array is damaged") from None
    raise Unproved("an array is damaged")
