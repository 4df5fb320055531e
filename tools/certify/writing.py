"""The document of a certificate: rewrites as they were applied, and the steps of the proof."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...frontends.onnx.codec.protos import ModelProto
from ...ir.module import Module
from ...ir.tensor import Array
from ...passes.affine.records.fold_records import FoldedAffine, Layer, SourceAffine, fold_records
from ...result import Gap
from .checker.affine_operators import own_line
from .checker.certificate import (
    FORMAT,
    VERSION,
    Replay,
    digest_of_model,
    digest_of_steps,
    is_complete,
)
from .checker.congruence import RESULT, SOURCE
from .checker.program import MALFORMED, Datum, Program, Unproved
from .checker.refinement import load_typed
from .checker.steps import Step
from .ends import ends_of
from .followers import encoded
from .links import linked
from .search import Search

MAX_NAMED = 5
"""Most rules that a warning names."""


@np.errstate(all="ignore")  # of numbers that a model may hold
def certificate_of(
    source: ModelProto, result: ModelProto, module: Module, layers: Mapping[str, Layer]
) -> tuple[dict[str, Any], Gap | None]:
    """Return the certificate of a compile, and the gap of its proof if that has one.

    Both models have all their elements. `layers` are the records of layers by the name of their
    result.
    """
    log = module.debug_counter.log or []
    steps: list[dict[str, Any]] = []
    search, gap = None, None
    digests = digest_of_model(source), digest_of_model(result)
    try:
        if digests[0] != digests[1] or not is_complete(source):
            search = _searched(source, result, module, layers)
    except Unproved as refusal:
        steps, gap = [_gap("", log)], Gap(f"the certificate proves nothing: {refusal}")
    except MALFORMED as error:
        steps = [_gap("", log)]
        gap = Gap(f"the certificate proves nothing: the model is malformed: {error!r}")
    if search is not None:
        steps = needed(search) if search.is_proved else [*search.found, _first_gap(search, log)]
        gap = _refused(source, result, steps) if search.is_proved else _gap_of(search, steps[-1])
        if search.is_proved and gap is not None:
            steps = [*steps, _gap("", log)]
    for number, step in enumerate(steps, 1):
        step["step"] = number
    document = {
        "format": FORMAT,
        "version": VERSION,
        SOURCE: digests[0],
        RESULT: digests[1],
        "rewrites": [[*each, []] for each in log]
        if search is None
        else linked(log, steps, search, (source, result)),
        "steps": steps,
    }
    document["seal"] = digest_of_steps(document)
    return document, gap


def _searched(
    source: ModelProto, result: ModelProto, module: Module, layers: Mapping[str, Layer]
) -> Search:
    """Return a search that proved the result, or else the first one.

    The second one rounds constants at each operator.
    """
    sources = fold_records(module).sources or {}
    first: Search | None = None
    for is_rounding in (False, True):
        programs = load_typed(source), load_typed(result)
        claims = {
            name: [_claim(layer.folds, sources, programs[0])] for name, layer in layers.items()
        }
        search = Search(*programs, claims, module.debug_counter.computed, is_rounding=is_rounding)
        search.attempt()
        first = first or search
        if search.is_proved or not search.computes:
            return search if search.is_proved else first
    assert first is not None
    return first


def _claim(
    folds: Sequence[FoldedAffine], sources: Mapping[int, SourceAffine], source: Program
) -> list[dict[str, Any]]:
    """Return the affines that a layer applies, its own by reference to the source."""
    parts = []
    for fold in folds:
        if fold.direction == "backward":
            affine = sources.get(fold.origin)
            parts.append(
                _part(fold, source.operations.get(affine.output) if affine is not None else None)
            )
    return parts


def _part(fold: FoldedAffine, operation: Any) -> dict[str, Any]:
    own = None if operation is None else own_line(operation)
    if own is not None:
        line = own[1]
        if _same(line.scale, fold.scale):
            if _same(line.shift, fold.shift):
                return {"of": operation.label}
            if not fold.shift.any():
                return {"of": operation.label, "only": "scale"}
    return {"scale": encoded(fold.scale), "shift": encoded(fold.shift)}


def _same(one: Array, other: Array) -> bool:
    first, second = one.reshape(-1), other.reshape(-1)
    if first.size != second.size and 1 not in (first.size, second.size):
        return False
    return bool(np.allclose(first, second, rtol=2.0**-46, atol=0.0))


def _gap(label: str, log: Sequence[tuple[str, str]]) -> dict[str, Any]:
    here = [rule for rule, where in log if label and repr(label) in where]
    rules = list(dict.fromkeys(here or [rule for rule, _ in log]))
    return {"step": 0, "at": RESULT, "operation": label, "identity": None, "rules": rules}


def _first_gap(search: Search, log: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return a step without an identity for the first operator that is not proved."""
    blocked = next((each for each in search.gaps if each in search.blocking()), None)
    return _gap("" if blocked is None else blocked.label, log)


def _gap_of(search: Search, step: Mapping[str, Any]) -> Gap:
    blocked = search.result.operations.get(step["operation"])
    rules = ", ".join(step["rules"][:MAX_NAMED]) or "a change"
    if blocked is None:
        reason = search.refusal
    else:
        reason = f"no identity covers {rules} at {blocked.kind} {blocked.label!r}"
    labels = [each.label for each in ends_of(search)] or (
        [] if blocked is None else [blocked.label]
    )
    return Gap(f"the certificate is incomplete: {reason}", tuple(labels))


def _refused(source: ModelProto, result: ModelProto, steps: Sequence[Step]) -> Gap | None:
    """Return the gap of the steps that a search kept, or None: it may use facts of others."""
    replay = Replay(source, result, steps)
    try:
        replay.run()
    except (Unproved, *MALFORMED) as refusal:
        labels = [each.label for each in ends_of(replay)]
        return Gap(f"the certificate is incomplete: {refusal}", tuple(labels))
    return None


def needed(search: Search) -> list[dict[str, Any]]:
    """Return the steps that the proof of the outputs rests on."""
    used: set[int] = set()
    seen: set[Datum] = set()
    first = {
        value.term: value
        for value in reversed(list(search.source.data.values()))
        if value.term >= 0
    }
    stack: list[Datum] = [*search.source.body.outputs, *search.result.body.outputs]
    while stack:
        value = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        if value.step:
            used.add(value.step)
            step = search.found[value.step - 1]
            for label in (step.get("source"), *step.get("from", ())):
                if label is not None:
                    operation = search.source.operations.get(label)
                    stack.extend(operation.outputs if operation is not None else ())
                    if label in search.source.data:
                        stack.append(search.source.data[label])
            for part in step.get("applies", ()):
                stack.extend(
                    search.source.data[part[name]] for name in ("value", "of") if name in part
                )
        if value.term in first:
            stack.append(first[value.term])
        if value.producer is not None:
            stack.extend(each for each in value.producer.inputs if each is not None)
            for body in value.producer.bodies.values():
                stack.extend(body.outputs)
    return [step for i, step in enumerate(search.found, 1) if i in used]
