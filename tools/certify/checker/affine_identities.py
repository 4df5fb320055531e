"""Identities by which the result of an operation is an affine of a value of the source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import zip_longest

import numpy as np
from onnx import helper

from .affine_operators import own_line
from .clamps import Bounds, check_restored_bounds, check_same_bounds, clamps
from .constant_operands import TOGETHER, are_constants, check_padding, constant_lines
from .crossing import CROSSINGS, centred
from .equalities import Identity
from .linear_maps import DENSE, Maps, check_map
from .lines import GROWTH, NARROW, Line, is_rounding, shared_scale
from .movement import join_alike, joined
from .parts import select_alike
from .pools import check_same_windows, zero_padding
from .program import Datum, Operation, Unproved, static
from .relations import DOWN, UP, Relations
from .reordering import whole
from .slices import cut, places_of, sliced
from .steps import Step, applied, channel_axis, counterpart, permuted
from .transposition import in_order
from .weighted_layers import (
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

SAME_RANK = frozenset(("Conv", "ConvTranspose", "Gemm"))
"""Layers whose data and result have one rank."""

CENTRED = frozenset(("GroupNormalization", "InstanceNormalization", "LayerNormalization"))
"""Normalizations that subtract the mean of their data."""

FREE = {"Pad": ("value",), **dict.fromkeys(SLOPES_OF, SLOPES)}
"""Attributes that follow the data."""


def _same_operands(proof: Relations, source: Operation, result: Operation) -> bool:
    """Return whether operations have equal attributes and operands, and so equal results."""
    pairs = list(zip_longest(source.inputs, result.inputs))
    if source.attributes != result.attributes or any(
        (a is None) is not (b is None) for a, b in pairs
    ):
        return False
    return all(a is None or b is None or proof.are_equal(b, a) for a, b in pairs)


def _crosses(proof: Relations, step: Step, operation: Operation) -> None:
    """Prove that the source has the same operation, and that the operands' affine crosses it."""
    source = counterpart(proof, step, operation)
    if step.get("perm") is not None and source.kind == operation.kind:
        operation = in_order(operation, len(step["perm"]))
        if _same_operands(proof, source, operation):
            proof.give(operation.outputs[0], proof.term_of(source.outputs[0]))
            return
    if operation.kind not in CROSSINGS:
        raise Unproved(f"no affine is known to cross {operation.kind}")
    if source.kind != operation.kind:
        raise Unproved("the operators differ")
    own = [
        {k: v for k, v in each.attributes.items() if k not in FREE.get(each.kind, ())}
        for each in (source, operation)
    ]
    if own[0] != own[1]:
        check_same_windows(source, operation)
    if operation.kind == "Slice" and select_alike(source, operation, proof.integers):
        operation = replace(operation, inputs=[operation.inputs[0], *source.inputs[1:]])
    if operation.kind == "Concat" and source.outputs[0].rank:
        axis = int(source.attributes.get("axis", 0)) % source.outputs[0].rank
        if join_alike(source.outputs[0], operation.outputs[0], axis, proof.first_of):
            proof.give(operation.outputs[0], proof.term_of(source.outputs[0]))
            return
        if len(source.inputs) < len(operation.inputs):
            source = replace(source, inputs=[*joined(source.outputs[0], axis, proof.first_of)])
    counts = [len(each.inputs) for each in (source, operation)]
    has_others = counts[0] != counts[1]
    if has_others and operation.kind == "Slice":
        if _is_sliced(proof, source.outputs[0], operation):
            return
    has_others = has_others and source.kind != "Pad"
    if has_others or len(source.outputs) != len(operation.outputs):
        raise Unproved("the numbers of operands or results differ")
    claim = None
    if step.get("applies") and source.outputs[0].rank:
        rank = source.outputs[0].rank
        claim = applied(proof, step, rank, channel_axis(step, rank))
    reason = Unproved("an operand has no relation to the source's")
    for direction, lines in _choices(proof, source, operation):
        if direction == UP and claim is not None:
            continue
        try:
            found = _results(source, operation, lines, direction, claim)
        except Unproved as refusal:
            reason = refusal
            continue
        except (ValueError, IndexError, TypeError):
            reason = Unproved("the extents do not fit the affine")
            continue
        proof.give_unread(operation.outputs[len(found) :])
        for result, given, line in zip(operation.outputs, source.outputs, found, strict=False):
            if line is None:
                proof.give(result, proof.term_of(given))
            else:
                proof.relate(result, given, line, direction)
        return
    if step.get("perm") is not None or not _is_sliced(proof, source.outputs[0], operation):
        raise reason


def _is_sliced(proof: Relations, target: Datum, operation: Operation) -> bool:
    """Relate a Slice to several of the source, with affines between, of the same positions."""
    data = operation.operand(0)
    with suppress(Unproved, ValueError, IndexError):
        own = places_of(operation)
        for value, places, line in sliced(target, proof.first_of):
            if data is None or places.keys() != own.keys():
                continue
            if not all(np.array_equal(places[axis], own[axis]) for axis in own):
                continue
            up = proof.line(data, value, UP)
            down = proof.line(data, value, DOWN)
            back = line.inverse()
            if up is not None:
                proof.relate(operation.outputs[0], target, line.after(cut(up, own)), UP)
                return True
            if down is not None and back is not None:
                proof.relate(operation.outputs[0], target, cut(down, own).after(back), DOWN)
                return True
    return False


def _choices(
    proof: Relations, source: Operation, result: Operation
) -> Iterator[tuple[str, dict[int, Line]]]:
    """Yield the lines between the operands, in each direction.

    If an operand is constant, all lines that keep the constant are the same: the scale of the other
    operands, or the one that needs no shift.
    """
    for direction, operation in ((DOWN, source), (UP, result)):
        lines = _operand_lines(proof, source, result, direction)
        if lines is None:
            continue
        yield direction, dict(lines)
        parts = {i: proof.constant_parts(operation.operand(i)) for i in lines}
        known = {i: each for i, each in parts.items() if each is not None}
        fixed = {i: each for i, each in known.items() if each.rank == lines[i].rank}
        if not fixed:
            continue
        scale = shared_scale(lines, fixed) if len(lines) > 1 else None
        if scale is not None:
            yield direction, lines | {i: lines[i].with_scale(scale, fixed[i]) for i in fixed}
        rows = [_filled(x, fixed.get(i)) or (x, x) for i, x in lines.items()]
        for row in zip(*rows, strict=True):
            yield direction, dict(zip(lines, row, strict=True))
        yield direction, lines | {i: lines[i].without_shift(fixed[i]) for i in fixed}


def _filled(line: Line, fixed: Line | None) -> tuple[Line, ...]:
    """Return equal lines whose constant parts take the scale of others, or of their channel."""
    if fixed is None or fixed.rank != line.rank:
        return ()
    axes = range(line.rank)
    return tuple(line.filled(fixed, [i for i in axes if i not in kept]) for kept in ((), (1,)))


def _results(
    source: Operation, result: Operation, lines: dict[int, Line], direction: str, claim: Line | None
) -> Sequence[Line | None]:
    """Return the lines of the results, None for one that stays the same. Raises Unproved."""
    line = next(iter(lines.values()), None)
    back = None if line is None else line.inverse()
    up, down = (line, back) if direction == UP else (back, line)
    has_border = source.attributes.get("mode", b"constant") == b"constant"
    if source.kind in SLOPES_OF and lines:
        check_slopes(source, result, up)
    elif source.kind == "Pad" and lines and has_border:
        if down is None:
            raise Unproved("a scale is zero")
        whole = check_padding(source, result, down, claim)
        if whole is not None:
            return [whole]
    elif source.kind in TOGETHER:
        given = {i: each if direction == DOWN else each.inverse() for i, each in lines.items()}
        known = {i: each for i, each in given.items() if each is not None}
        if len(known) == len(given):
            for i, each in constant_lines(source, result, known, claim).items():
                turned = each if direction == DOWN else each.inverse()
                if turned is not None:
                    lines[i] = turned
        lines = {i: lines[i] for i in sorted(lines)}
    return CROSSINGS[source.kind](source, lines)


def _operand_lines(
    proof: Relations, source: Operation, result: Operation, direction: str
) -> dict[int, Line] | None:
    lines: dict[int, Line] = {}
    given = [each for each in source.inputs if each is not None]
    has_data = any(each.is_float and each.stored is None for each in given)
    for i, (first, second) in enumerate(zip_longest(source.inputs, result.inputs)):
        if result.kind == "Pad" and i == 2:
            continue  # its value follows the data
        if first is None or second is None:
            if first is not second:
                return None
            continue
        if has_data and are_constants(source, first, second):
            continue  # they follow the data, too
        if proof.term_of(first) == proof.term_of(second):
            is_condition = result.kind == "Where" and i == 0
            if result.kind in TOGETHER and first.rank is not None and not is_condition:
                lines[i] = Line.identity(first.rank)
            continue
        found = proof.relations(second, first).get(direction)
        if found is None:
            return None
        lines[i] = found
    return lines


def _same_bounds(proof: Relations, step: Step, operation: Operation) -> None:
    """Prove that clamps in a row bound an affine by the affine of the source's bounds."""
    source, result = proof.value_of_source(step.get("source")), operation.outputs[0]
    if source.producer is not None and not source.index:
        source = permuted(proof, step, source.producer).outputs[0]
    reason = Unproved("it is no clamp of a value that is related to the source")
    if source.kind != result.kind:
        raise Unproved("the element types differ")
    for data, after, bounds in clamps(result, proof.first_of):
        for inner, line, given in clamps(source, proof.first_of):
            try:
                _check_clamps(proof, (result, data, after, bounds), (source, inner, line, given))
            except Unproved as refusal:
                reason = refusal
            else:
                return
    raise reason


_Clamp = tuple[Datum, Datum, Line, Bounds]
"""A value, another of which it is a clamp of an affine, the line and the bounds."""


def _check_clamps(proof: Relations, result: _Clamp, source: _Clamp) -> None:
    """Relate two clamps of affines of related values. Raises Unproved."""
    (made, data, after, bounds), (given, inner, line, limits) = result, source
    reason = Unproved("the data have no relation to the source's")
    dtype = helper.tensor_dtype_to_np_dtype(made.kind)
    for direction, check, origin in (
        (DOWN, check_same_bounds, inner),
        (UP, check_restored_bounds, data),
    ):
        between = proof.line(data, inner, direction)
        first, last = (line, after) if direction == DOWN else (after, line)
        back = first.inverse()
        if between is None or back is None or not between.rank == first.rank == last.rank:
            continue
        for each in (*_filled(between, proof.constant_parts(origin)), between):
            try:
                found = check(last.after(each).after(back).tidy(), limits, bounds, dtype)
            except Unproved as refusal:
                reason = refusal
                continue
            proof.relate(made, given, found, direction)
            return
    raise reason


def _layer(proof: Relations, step: Step, operation: Operation) -> None:
    """Prove that the operation is a layer of the source with other weights."""
    source = counterpart(proof, step, operation)
    first, second, result = source.operand(0), operation.operand(0), source.outputs[0]
    if first is None or second is None or result.rank is None:
        raise Unproved("the ranks are unknown")
    if operation.outputs[0].rank != result.rank:
        raise Unproved("the ranks are unknown")
    weights = weights_of(source)
    if operation.kind in LAST_AXIS:
        axis = result.rank - 1
    else:
        axis = 1 if weights is None else weights.axis
    if weights is not None and weights.data:
        first, second = source.operand(weights.data), operation.operand(weights.data)
    if first is None or second is None:
        raise Unproved("an operand is absent")
    claim = applied(proof, step, result.rank, axis)
    if operation.kind == "Gemm" and weights_of(operation) is None:
        terms = _terms(proof, source, (0, 1))
        if None in terms or terms != _terms(proof, operation, (0, 1)):
            raise Unproved("the operands differ")
        check_bias(source, operation, claim)
    elif operation.kind == "DequantizeLinear":
        if _terms(proof, source, (0, 2)) != _terms(proof, operation, (0, 2)):
            raise Unproved("the integers or zero points differ")
        check_dequantized(source, operation, claim)
    elif operation.kind.endswith("Normalization"):
        check_scaled_parameters(source, operation, claim, _number(proof, source, first, second))
    else:
        claim = _weighted(proof, source, operation, first, second, claim)
    proof.relate(operation.outputs[0], result, claim, DOWN)


def _number(proof: Relations, source: Operation, first: Datum, second: Datum) -> float:
    """Return the number that multiplies the data of the source's normalization. Raises Unproved."""
    if proof.term_of(first) == proof.term_of(second):
        return 1.0
    line = proof.upward(second, first)
    if line is None:
        raise Unproved("the data differ")
    number = float(line.scale.flat[0]) if line.has_scale else 1.0
    if line.has_scale and (line.scale != number).any():
        raise Unproved("a scale does not pass the operator")
    if not 1.0 / GROWTH <= abs(number) <= GROWTH or (second.kind in NARROW and abs(number) < 1.0):
        raise Unproved("squares of the data would be far from those of the source")
    if line.has_shift and source.kind not in CENTRED:
        raise Unproved("a shift does not pass the operator")
    one = np.ones_like(line.scale)
    if line.has_shift:
        centred(source, {0: Line(one, line.shift / number, line.reach / abs(number))})
    return number


def _terms(proof: Relations, operation: Operation, places: Sequence[int]) -> list[int | None]:
    """Return the classes of some operands, None for absent ones."""
    operands = [operation.operand(place) for place in places]
    return [None if each is None else proof.term_of(each) for each in operands]


def _weighted(
    proof: Relations,
    source: Operation,
    operation: Operation,
    first: Datum,
    second: Datum,
    claim: Line,
) -> Line:
    """Return the line of a layer with weights over the source's layer. Raises Unproved."""
    rank = source.outputs[0].rank or 0
    data, padding = proof.upward(second, first), None
    is_same = proof.term_of(first) == proof.term_of(second)
    if data is None and is_same and operation.kind in SAME_RANK:
        data = Line.identity(rank)
    family = proof.family(first) if data is None else None
    padded = None if family is None else _zero_padded(proof, family[0])
    if family is not None and padded is not None:
        line, padding = proof.upward(second, padded[0]), padded[1]
        # A scale passes a Pad of zeros.
        if line is not None and not line.has_shift and line.rank == family[1].rank:
            data = family[1].after(line)
    if data is None:
        raise Unproved("the data have no relation to the source's")
    fixed = proof.constant_parts(second)
    try:
        return check_layer(source, operation, data, claim, padding)
    except Unproved:
        if fixed is None or fixed.rank != data.rank:
            raise
        return _layer_of_constants(source, operation, data, claim, padding, fixed)


def _zero_padded(proof: Relations, value: Datum) -> tuple[Datum, list[int]] | None:
    """Return data and pads of the Pad of zeros that a value is, or that it permutes the axes of.

    Raises Unproved.
    """
    core, groups = proof.views.get(value.term, (-1, ()))
    pad = proof.known.get(core)
    if pad is None:
        return zero_padding(value)
    places = whole(proof.shape(pad) or ())
    if len(set(places)) < len(places) or set(groups) != set(places):
        return None
    perm = [places.index(each) for each in groups]
    found = zero_padding(pad, perm)
    return None if found is None else (proof.permuted(found[0], perm), found[1])


def _layer_of_constants(
    source: Operation,
    result: Operation,
    data: Line,
    claim: Line,
    padding: Sequence[int] | None,
    fixed: Line,
) -> Line:
    """Return the line of a layer whose data are constant where `fixed` says so. Raises Unproved."""
    weights = weights_of(source)
    axes = [axis for axis in range(data.rank) if weights is None or axis != weights.data_axis]
    free = data.with_scale(0.0 * data.scale, fixed)  # the weights of these data
    for line, constants in ((data.filled(fixed, axes), None), (free, fixed)):
        with suppress(Unproved):
            return check_layer(source, result, line, claim, padding, constants)
    return check_layer(source, result, free.without_shift(fixed), claim, padding)


def _same_map(proof: Relations, step: Step, operation: Operation) -> None:
    """Prove that the operation is a layer that computes layers of the source, in a row or added."""
    source, data = proof.value_of_source(step.get("source")), operation.operand(0)
    origin = None if data is None else proof.origin(data)
    if origin is None:
        raise Unproved("the data have no relation to the source")
    exact = Maps(proof, *origin, is_dense=operation.kind in DENSE).of(source)
    proof.relate(operation.outputs[0], source, check_map(exact, operation), DOWN)


def _same_constant(proof: Relations, step: Step, operation: Operation) -> None:
    """Prove that the result is a constant: the rounding of one that a value of the source is."""
    source, result = proof.value_of_source(step.get("source")), operation.outputs[0]
    given, found = proof.constant_parts(source), proof.constants_of(operation)
    extents = static(result.extents)
    if len(operation.outputs) > 1 or not found or given is None:
        raise Unproved("one of the values is no constant")
    if given.scale.any() or found[0][1].scale.any():
        raise Unproved("one of the values is no constant")
    if source.kind != result.kind or extents is None or extents != static(source.extents):
        raise Unproved("the types differ, or are unknown")
    made, dtype = found[0][1], helper.tensor_dtype_to_np_dtype(result.kind)
    if made.drowns(given):
        raise Unproved("the constant is lost in numbers far beyond those of the source")
    stored, exact, reach = np.broadcast_arrays(made.shift, given.shift, given.reach)
    if not is_rounding(stored.astype(dtype), exact, reach):
        raise Unproved("the constant is not the rounding of the source's")
    proof.give(result, proof.term_of(source))


def _rounded(proof: Relations, step: Step, operation: Operation) -> None:
    """Prove that the operation is an affine whose constants are `applies`, rounded."""
    target = proof.value_of_source(step.get("source"))
    family = proof.family(target)
    count = 1 if operation.kind == "BatchNormalization" else 2
    operands = [each for each in operation.inputs[:count] if each]
    data = next((each for each in operands if each.stored is None), None)
    base = None if data is None else proof.base(data)
    if data is None or family is None or base is None:
        raise Unproved("the data have no relation to the value")
    if base[2] != DOWN or base[0].term != family[0].term:
        raise Unproved("the data have no relation to the value")
    rank = family[1].rank
    if base[1].rank != rank:
        raise Unproved("the ranks differ")
    claim = family[1]
    if step.get("only") in ("scale", "shift"):
        back = base[1].inverse()
        if back is None:
            raise Unproved("a scale of the data is zero")
        is_turned = operation.kind == "Sub" and data is operation.operand(1)
        factor = (-1.0 if is_turned else 1.0) * claim.scale * back.scale
        if step["only"] == "scale":
            claim = Line(claim.scale, factor * base[1].shift, np.abs(factor) * base[1].reach)
        elif factor.all():
            sign = -1.0 if is_turned else 1.0
            claim = Line(sign * base[1].scale, claim.shift / factor, claim.reach / np.abs(factor))
        else:
            raise Unproved("a scale is zero")
    if step.get("applies"):
        claim = applied(proof, step, rank, channel_axis(step, rank)).after(claim)
    between = None if claim is not family[1] else proof.composed(target, data)
    between = between or proof.between(family[0], claim, base[1])
    own = own_line(operation)
    if own is not None and own[1].rank == rank and own[1].after(base[1]).drowns(claim):
        raise Unproved("the data are lost in shifts far beyond those of the source")
    check_rounded(operation, between, proof.constant_parts(data))
    proof.relate(operation.outputs[0], family[0], claim, DOWN)


AFFINES: dict[str, Identity] = {
    "crosses": _crosses,
    "same bounds": _same_bounds,
    "layer": _layer,
    "same map": _same_map,
    "rounded affine": _rounded,
    "same constant": _same_constant,
}
"""The identities by the name that steps have for them."""
