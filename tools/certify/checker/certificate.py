"""Certificates: the JSON document of `irc compile --certificate`, and the checker."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto

from .congruence import RESULT, SOURCE
from .document import FORMAT, RECORDED, VERSION, digest_of_content, digest_of_model, is_complete
from .program import MALFORMED, Operation, Program, Unproved
from .proof import Proof
from .refinement import load_typed
from .steps import Step
from .unproved import DECLARATION, OUTPUT, UNPROVED, Assumption, assumptions

MAX_DEPTH = 16
"""How deep lists and objects of a certificate may be nested."""


class Rejected(Exception):
    """Raised for a certificate that proves nothing; its sentence has the step and the reason."""


class Replay(Proof):
    """A proof by the steps of a certificate, in their order.

    `place` counts the steps that were taken, and `current` is the number of the one that is being
    looked at, or 0.
    """

    def __init__(self, source: Program, result: Program, steps: Sequence[Step]) -> None:
        super().__init__(source, result)
        self.steps = steps
        self.place = 0
        self.current = 0

    def visit(self, operation: Operation) -> None:
        """Enter an operation, by its step if it has one."""
        # The key enters constant operands, and takes the steps of bodies, which come first.
        key = self.key(operation)
        step = self._next(self.side, operation.label)
        if step is not None:
            self.apply(step, operation)
        elif not self.bind(operation, key):
            self.enter(operation, key)

    def _next(self, at: str, label: str) -> Step | None:
        """Return the next step if it is about this place, and take it."""
        if self.place >= len(self.steps):
            return None
        step = self.steps[self.place]
        if step.get("at") != at or step.get("operation") != label:
            return None
        self.place += 1
        self.current = self.place
        return step

    def finish(self) -> None:
        step = self.steps[self.place] if self.place < len(self.steps) else None
        if step is not None and step.get("at") not in (OUTPUT, DECLARATION):
            self._refuse_next("operation")
        self.current = 0
        super().finish()
        if self.place < len(self.steps):
            self._refuse_next("unproved place")

    def _refuse_next(self, title: str) -> None:
        step = self.steps[self.place]
        self.current = self.place + 1
        raise Unproved(
            f"there is no {title} {step.get('operation')!r} in the"
            f" {step.get('at')!r} after the step before"
        )

    def admit(self, at: str, label: str, reason: str) -> None:
        step = self._next(at, label)
        if step is None:
            self.current = 0
        if step is None or step.get("identity") != UNPROVED:
            raise Unproved(reason)


@dataclass(frozen=True, slots=True)
class CheckedCertificate:
    """What a certificate proves of a result with so many operators, and what it assumes."""

    steps: int
    operators: int
    unproved: Sequence[Assumption] = ()

    def lines(self) -> list[str]:
        """Return a line for each unproved step."""
        return [
            f"step {each.step} at {each.where} is unproved ({', '.join(each.rules) or 'no rule'}):"
            f" {each.operators} of {self.operators} operators rest on it, and the outputs"
            f" {', '.join(map(repr, each.outputs)) or '(none)'}"
            for each in self.unproved
        ]


def check(
    source: ModelProto | str | Path, result: ModelProto | str | Path, certificate: Any
) -> CheckedCertificate:
    """Return what the steps of a certificate prove about two models. Raises Rejected.

    The models are paths or messages with all elements; the certificate is a path or the document.
    Equal models need no step, even if they cannot be followed.
    """
    document, models = opened(source, result, certificate)
    if "steps" not in document:
        raise Rejected("the certificate has no list of steps")
    if not document["steps"] and are_equal(document, models[0]):
        return CheckedCertificate(0, 0)
    return replayed(typed(models), document["steps"])


def opened(
    source: ModelProto | str | Path, result: ModelProto | str | Path, certificate: Any
) -> tuple[Mapping[str, Any], list[ModelProto]]:
    """Return a certificate that is about these models, and the models. Raises Rejected."""
    document = _document(certificate)
    models = [_model(source, "source"), _model(result, "result")]
    _check_document(document, models)
    return document, models


def are_equal(document: Mapping[str, Any], source: ModelProto) -> bool:
    """Return whether a certificate is about two models of one message, with all elements."""
    return document[SOURCE] == document[RESULT] and is_complete(source)


def typed(models: Sequence[ModelProto]) -> list[Program]:
    """Return the programs of models with the types that follow. Raises Rejected."""
    try:
        return [load_typed(each) for each in models]
    except Unproved as unproved:
        raise Rejected(str(unproved)) from None
    except MALFORMED as error:
        raise Rejected(f"a model is malformed: {error!r}") from None


def replayed(programs: Sequence[Program], steps: Sequence[Step]) -> CheckedCertificate:
    """Return what steps prove about a source and a result. Raises Rejected."""
    replay = Replay(programs[0], programs[1], steps)
    try:
        replay.run()
        return CheckedCertificate(
            len(steps),
            len(replay.result.operations),
            assumptions(replay.result, replay.unproven, steps),
        )
    except Unproved as unproved:
        raise Rejected(_sentence(steps, replay, str(unproved))) from None
    except MALFORMED as error:
        raise Rejected(_sentence(steps, replay, f"it cannot be followed: {error!r}")) from None


def _sentence(steps: Sequence[Step], replay: Replay, reason: str) -> str:
    place = replay.current
    if not place:
        return reason
    step = steps[place - 1]
    return (
        f"step {place} ({step.get('identity')}) at {step.get('operation')!r} of the"
        f" {step.get('at')}: {reason}"
    )


def _document(certificate: Any) -> Mapping[str, Any]:
    if isinstance(certificate, Mapping):
        return certificate
    try:
        found = json.loads(Path(certificate).read_text(encoding="utf-8"))
    except OSError as error:
        raise Rejected(f"{certificate}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise Rejected(f"{certificate}: this is not JSON") from None
    if not isinstance(found, dict):
        raise Rejected(f"{certificate}: this is not a certificate")
    return found


def _model(model: ModelProto | str | Path, title: str) -> ModelProto:
    if isinstance(model, ModelProto):
        return model
    try:
        return onnx.load(str(model))
    except Exception as error:  # protobuf and files have errors of their own
        raise Rejected(
            f"the {title} {model} cannot be read as ONNX: {type(error).__name__}"
        ) from None


def _check_document(document: Mapping[str, Any], models: Sequence[ModelProto]) -> None:
    is_recorded = document.get("version") == RECORDED
    if document.get("format") != FORMAT or document.get("version") not in (VERSION, RECORDED):
        raise Rejected(f"it is no certificate of version {VERSION} or {RECORDED}")
    steps, records = document.get("steps", []), document.get("records", {})
    if not is_recorded and ("steps" not in document or "records" in document):
        raise Rejected("the certificate has no list of steps")
    if is_recorded and ("records" not in document or "steps" in document):
        raise Rejected("the certificate has no records")
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise Rejected("the certificate has no list of steps")
    rewrites = document.get("rewrites", [])
    if not isinstance(rewrites, list) or _is_deep([rewrites, steps, records]):
        raise Rejected("the rewrites are no list, or something is nested too deeply")
    for name, model in zip((SOURCE, RESULT), models, strict=True):
        if document.get(name) != digest_of_model(model):
            raise Rejected(f"the certificate is about another {name}")
    if document.get("seal") != digest_of_content(document):
        raise Rejected("the rewrites, steps or records of the certificate were changed")
    if not all(isinstance(each, list) and _is_rewrite(each[:2]) for each in rewrites):
        raise Rejected("a rewrite is no list of a rule and an operator")
    for number, step in enumerate(steps, 1):
        if step.get("step") != number:
            raise Rejected(f"step {number} has the number {step.get('step')!r}")
        if not isinstance(step.get("rules", []), list):
            raise Rejected(f"the rules of step {number} are no list")


def _is_rewrite(given: list[Any]) -> bool:
    return len(given) == 2 and all(isinstance(each, str) for each in given)


def _is_deep(content: object) -> bool:
    """Return whether lists and objects are nested deeper than in a certificate."""
    level = [content]
    for _ in range(MAX_DEPTH):
        inner = [
            each.values() if isinstance(each, dict) else each
            for each in level
            if isinstance(each, list | dict)
        ]
        level = [each for values in inner for each in values]
    return bool(level)
