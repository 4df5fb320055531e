"""What `irc certify` does: it finds the steps of a proof by the records of a compile, and the
checker replays them.

Nothing here need be believed: the checker refuses a step that does not hold.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from .checker.affine_operators import own_line
from .checker.certificate import (
    CheckedCertificate,
    Rejected,
    are_equal,
    opened,
    replayed,
    typed,
)
from .checker.document import VERSION, digest_of_content
from .checker.program import MALFORMED, Array, Operation, Program, Unproved
from .checker.proof import Proof
from .checker.steps import decoded
from .checker.unproved import UNPROVED
from .ends import ends_of
from .namesakes import Namesakes
from .search import LAYERS, Claim, Search

MAX_NAMED = 5
"""Most rules of a step."""

MAX_ROUNDS = 6
"""Most searches that end where a proof ends first; the last one goes on everywhere."""


def certify(
    source: ModelProto | str | Path,
    result: ModelProto | str | Path,
    certificate: Any,
    *,
    allow_unproved: bool = False,
) -> int:
    """Return the number of steps that prove `result` equal to `source`.

    Equal models need no step, even if they cannot be followed.

    Args:
        source: The model before: a path, or a message with all elements.
        result: The model after.
        certificate: A path, or the document.
        allow_unproved: Accept a proof with unproved steps.

    Raises:
        Rejected: The certificate does not prove it.
    """
    verdict, _ = prove(source, result, certificate)
    if verdict.unproved and not allow_unproved:
        raise Rejected("; ".join(verdict.lines()))
    return verdict.steps


def prove(
    source: ModelProto | str | Path, result: ModelProto | str | Path, certificate: Any
) -> tuple[CheckedCertificate, dict[str, Any]]:
    """Return what a certificate proves about two models, and the document with all steps.

    Raises Rejected.
    """
    document, models = opened(source, result, certificate)
    given = document.get("steps")
    if not given and are_equal(document, models[0]):
        return CheckedCertificate(0, 0), with_steps(document, [])
    programs = typed(models)
    if given is not None:
        return replayed(programs, given), dict(document)
    try:
        return _found(programs, document)
    except Unproved as unproved:
        raise Rejected(str(unproved)) from None
    except MALFORMED as error:
        raise Rejected(f"the proof cannot be found: {error!r}") from None


def with_steps(document: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a certificate of all steps, in place of the records of a compile."""
    made = {**document, "version": VERSION, "steps": list(steps)}
    made.pop("records", None)
    made["seal"] = digest_of_content(made)
    return made


def _found(
    programs: Sequence[Program], document: Mapping[str, Any]
) -> tuple[CheckedCertificate, dict[str, Any]]:
    """Return what steps prove that are found, and the document with them.

    Where the checker refuses them, the search is no longer hasty. If it still refuses them, since
    the search knows more than they say, all that congruence does not prove is unproved.
    """
    may_assume = bool(document.get("rewrites"))
    for is_hasty in (True, False):
        steps = _searched(programs, document["records"], may_assume=may_assume, is_hasty=is_hasty)
        _forget(programs)
        if steps is not None:
            with suppress(Rejected):
                return _completed(programs, document, steps)
    _forget(programs)
    blind = _Blind(*programs)
    blind.run()
    _forget(programs)
    return _completed(programs, document, blind.found)


def _completed(
    programs: Sequence[Program], document: Mapping[str, Any], steps: Sequence[dict[str, Any]]
) -> tuple[CheckedCertificate, dict[str, Any]]:
    """Return what steps prove, and the document with them. Raises Rejected."""
    _complete(steps, document.get("rewrites", []))
    verdict = replayed(programs, steps)
    return verdict, with_steps(document, json.loads(json.dumps(steps)))


def _forget(programs: Sequence[Program]) -> None:
    for each in programs:
        each.forget()


@np.errstate(all="ignore")  # of numbers that a model may hold
def _searched(
    programs: Sequence[Program], given: Mapping[str, Any], *, may_assume: bool, is_hasty: bool
) -> list[dict[str, Any]] | None:
    """Return steps that prove the result, with the fewest assumptions of those that were tried.

    The second search rounds constants at each operator. Raises Unproved if there is no proof, but
    for assumptions, which only rewrites may need.
    """
    records = _Records(given, programs[0])
    arguments: tuple[Any, ...] = *programs, records.claim_of, records.computed, records.unrounded
    first = Search(*arguments, is_hasty=is_hasty)
    first.attempt()
    if first.is_proved:
        return first.found
    gaps = len(first.blocking())
    is_rounding = first.computes
    if is_rounding:
        second = Search(*arguments, is_rounding=True, is_hasty=is_hasty)
        second.attempt()
        if second.is_proved:
            return second.found
        is_rounding = len(second.blocking()) < gaps
    search = second if is_rounding else first
    ends = [each for each in ends_of(search) if each in search.misrounded]
    wrong = next((each for each in ends if records.decide(each)), None)
    if wrong is not None:
        raise Unproved(
            f"{wrong.kind} {wrong.label!r} of the result has other numbers than those that follow"
            " from the affines that it took"
        )
    if not may_assume:
        raise Unproved(first.refusal)
    return _assuming(arguments, is_rounding=is_rounding)


def _assuming(given: tuple[Any, ...], *, is_rounding: bool) -> list[dict[str, Any]] | None:
    """Return the steps of a search that goes on behind the ends of a proof, where values keep their
    names.
    """
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
    return search.found if search.is_proved else None


class _Blind(Proof):
    """A proof by congruence alone: all else is unproved."""

    def __init__(self, source: Program, result: Program) -> None:
        super().__init__(source, result)
        self.found: list[dict[str, Any]] = []

    def admit(self, at: str, label: str, reason: str) -> None:
        self.found.append({"step": 0, "at": at, "operation": label, "identity": UNPROVED})


def _complete(steps: Sequence[dict[str, Any]], rewrites: Sequence[Sequence[str]]) -> None:
    """Name in unproved steps the rules that were applied to their operators; number all steps."""
    for number, step in enumerate(steps, 1):
        step["step"] = number
        if step["identity"] == UNPROVED:
            here = [rule for rule, where, *_ in rewrites if repr(step["operation"]) in where]
            rules = dict.fromkeys(here or [rule for rule, *_ in rewrites])
            step["rules"] = list(rules)[:MAX_NAMED]


class _Records:
    """The records of a compile, by the labels of a proof: names, behind the paths of bodies."""

    def __init__(self, given: Mapping[str, Any], source: Program) -> None:
        self._layers, self._unrounded, self._computed = (
            given.get(name, {}) for name in ("layers", "unrounded", "computed")
        )
        self._edits = given.get("edits", [])
        self._source = source

    def decide(self, operation: Operation) -> bool:
        """Return whether all numbers of an operation follow from its records."""
        if operation.kind not in LAYERS or operation.domain:
            return False
        name = next((each for each in _ends(operation.label) if each in self._layers), None)
        return name is not None and name not in self._edits and self._is_scaled(operation)

    def _is_scaled(self, operation: Operation) -> bool:
        """Return whether a weight has the name and extents of one of the source, as scaled ones
        have.
        """
        for value in operation.inputs:
            first = None if value is None else self._source.data.get(value.label)
            if value is not None and first is not None and first.stored is not None:
                return value.stored is not None and value.extents == first.extents
        return False

    def claim_of(self, label: str) -> Claim:
        """Return the affines that a layer took, those of the source by reference."""
        return [self._part(each) for each in _last(self._layers, label) or ()]

    def unrounded(self, label: str) -> Array | None:
        """Return the numbers that a constant was rounded from."""
        return _decoded(_last(self._unrounded, label))

    def computed(self, label: str) -> Array | None:
        """Return the numbers of a constant that a runtime computed."""
        return _decoded(_last(self._computed, label))

    def _part(self, given: Mapping[str, Any]) -> dict[str, Any]:
        operation: Operation | None = self._source.operations.get(given["of"])
        own = None if operation is None else own_line(operation)
        numbers = {name: given[name] for name in ("scale", "shift")}
        if operation is None or own is None:
            return numbers
        scale, shift = (decoded(each) for each in numbers.values())
        if not _same(own[1].scale, scale) or (shift.any() and not _same(own[1].shift, shift)):
            return numbers
        if _same(own[1].shift, shift):
            return {"of": operation.label}
        return {"of": operation.label, "only": "scale"}


def _last(found: Mapping[str, Any], label: str) -> Any:
    """Return what is found for a label, or else for the longest end of it behind a slash."""
    for name in _ends(label):
        if name in found:
            return found[name]
    return None


def _ends(label: str) -> Iterator[str]:
    yield label
    while "/" in label:
        label = label.partition("/")[2]
        yield label


def _decoded(given: object) -> Array | None:
    return None if given is None else decoded(given)


def _same(one: Array, other: Array) -> bool:
    first, second = one.reshape(-1), other.reshape(-1)
    if first.size != second.size and 1 not in (first.size, second.size):
        return False
    return bool(np.allclose(first, second, rtol=2.0**-46, atol=0.0))
