"""The document of a certificate: rewrites as they were applied, and the steps of the proof."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ...frontends.onnx.codec.protos import ModelProto
from ...ir.module import Module
from ...ir.tensor import Array
from ...passes.affine.records.fold_records import FoldedAffine, Layer, SourceAffine, fold_records
from ...support.errors import EmitError
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
from .checker.program import MALFORMED, Program, Unproved
from .checker.proof import Proof
from .checker.refinement import load_typed
from .checker.unproved import UNPROVED, Assumption, assumptions
from .ends import ends_of
from .links import linked
from .namesakes import Namesakes
from .search import Claim, Search
from .unrounded import Exact, encoded

MAX_NAMED = 5
"""Most rules of a step, and steps that a warning names."""

MAX_ROUNDS = 6
"""Most searches that end where a proof ends first; the last one goes on everywhere."""

Log = Sequence[tuple[str, str]]
"""Rewrites: a rule, and the operator that it was applied to."""


@np.errstate(all="ignore")  # of numbers that a model may hold
def certificate_of(
    source: ModelProto,
    result: ModelProto,
    module: Module,
    layers: Mapping[str, Layer],
    exact: Exact,
) -> tuple[dict[str, Any], str | None]:
    """Return the certificate of a compile, and a warning if it has unproved steps.

    Both models have all their elements. `layers` are the records of layers by the name of their
    result, and `exact` gives the numbers that constants were rounded from. Raises EmitError for
    models that the checker does not read.
    """
    log = module.debug_counter.log or []
    digests = digest_of_model(source), digest_of_model(result)
    search, warning = None, None
    steps: list[dict[str, Any]] = []
    if digests[0] != digests[1] or not is_complete(source):
        try:
            search = _searched(source, result, module, layers, exact)
            steps, assumed = _checked(search, log)
            warning = _warning(assumed)
        except Unproved as refusal:
            raise EmitError(f"there is no certificate: {refusal}") from None
        except MALFORMED as error:
            raise EmitError(f"there is no certificate: the model is malformed: {error!r}") from None
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
    return document, warning


def _searched(
    source: ModelProto,
    result: ModelProto,
    module: Module,
    layers: Mapping[str, Layer],
    exact: Exact,
) -> Search:
    """Return a search that proved the result, with the fewest assumptions of those that were tried.

    The second one rounds constants at each operator.
    """
    sources = fold_records(module).sources or {}
    programs = load_typed(source), load_typed(result)

    def claim_of(label: str) -> Claim:
        layer = layers.get(label)
        return [] if layer is None else _claim(layer.folds, sources, programs[0])

    given = *programs, claim_of, module.debug_counter.computed, exact
    first = Search(*given)
    first.attempt()
    if first.is_proved:
        return first
    gaps = len(first.blocking())
    is_rounding = first.computes
    if is_rounding:
        second = Search(*given, is_rounding=True)
        second.attempt()
        if second.is_proved:
            return second
        is_rounding = len(second.blocking()) < gaps
    return _assuming(given, is_rounding=is_rounding)


def _assuming(given: tuple[Any, ...], *, is_rounding: bool) -> Search:
    """Return a search that goes on behind the ends of a proof, where values keep their names."""
    names = Namesakes(given[0], given[1])
    assumed: set[str] = set()
    for _ in range(MAX_ROUNDS):
        search = Search(*given, is_rounding=is_rounding, names=names, assumed=assumed)
        search.attempt()
        new = names.behind(ends_of(search)) - assumed
        if search.is_proved or not new:
            break
        assumed |= new
    else:
        assumed.update(given[1].operations)
    if not search.is_proved:
        search = Search(*given, is_rounding=is_rounding, names=names, assumed=assumed, admits=True)
        search.attempt()
    return search


class _Blind(Proof):
    """A proof by congruence alone: all else is unproved."""

    def __init__(self, source: Program, result: Program) -> None:
        super().__init__(source, result)
        self.found: list[dict[str, Any]] = []

    def admit(self, at: str, label: str, reason: str) -> None:
        self.found.append({"step": 0, "at": at, "operation": label, "identity": UNPROVED})


def _checked(search: Search, log: Log) -> tuple[list[dict[str, Any]], list[Assumption]]:
    """Return steps that the checker accepts, and those that it assumes.

    A tainted search may know more than its steps say: they are replayed.
    """
    models = search.source, search.result
    if search.is_proved:
        _complete(search.found, log)
        if not search.is_tainted:
            return search.found, assumptions(models[1], search.unproven, search.found)
        replay = Replay(*models, search.found)
        for model in models:
            model.forget()
        with suppress(Unproved):
            replay.run()
            return search.found, assumptions(models[1], replay.unproven, search.found)
    for model in models:
        model.forget()
    blind = _Blind(*models)
    blind.run()
    _complete(blind.found, log)
    return blind.found, assumptions(models[1], blind.unproven, blind.found)


def _complete(steps: Sequence[dict[str, Any]], log: Log) -> None:
    """Name in unproved steps the rules that were applied to their operators; number all steps."""
    for number, step in enumerate(steps, 1):
        step["step"] = number
        if step["identity"] == UNPROVED:
            here = [rule for rule, where in log if repr(step["operation"]) in where]
            rules = dict.fromkeys(here or [rule for rule, _ in log])
            step["rules"] = list(rules)[:MAX_NAMED]


def _warning(assumed: Sequence[Assumption]) -> str | None:
    """Return a sentence on unproved steps, or None."""
    if not assumed:
        return None
    named = [f"{', '.join(each.rules) or 'a change'} at {each.where}" for each in assumed]
    if len(named) > MAX_NAMED:
        named[MAX_NAMED:] = [f"{len(named) - MAX_NAMED} more"]
    return (
        f"no identity covers {'; '.join(named)}: irc certify needs --allow-unproved to accept the"
        " certificate"
    )


def _claim(
    folds: Sequence[FoldedAffine], sources: Mapping[int, SourceAffine], source: Program
) -> Claim:
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
