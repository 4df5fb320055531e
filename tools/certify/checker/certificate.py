"""Certificates: the JSON document of `irc compile --certificate`, and the checker."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto, TensorProto

from .congruence import RESULT, SOURCE
from .program import MALFORMED, Operation, Program, Unproved
from .proof import Proof
from .refinement import load_typed
from .steps import Step
from .unproved import DECLARATION, OUTPUT, UNPROVED, Assumption, assumptions

FORMAT = "irc-certificate"
VERSION = 1

MARK = "irc.compiled"
"""The key in the metadata of a model that bears irc's mark, which a certificate does not see."""

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


def digest_of_model(model: ModelProto) -> str:
    """Return the SHA-256 of a model without irc's mark, external data included."""
    others = [entry for entry in model.metadata_props if entry.key != MARK]
    if len(others) < len(model.metadata_props):
        bare = ModelProto()
        bare.CopyFrom(model)
        del bare.metadata_props[:]
        bare.metadata_props.extend(others)
        model = bare
    return sha256(model.SerializeToString(deterministic=True)).hexdigest()


def digest_of_steps(document: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the rewrites and steps of a certificate."""
    content = [document.get("rewrites"), document.get("steps")]
    return sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def is_complete(model: ModelProto) -> bool:
    """Return whether a message has all elements of the model: none are in other files."""
    stack: list[Any] = [model]
    while stack:
        message = stack.pop()
        if isinstance(message, TensorProto) and message.data_location == TensorProto.EXTERNAL:
            return False
        for field, content in message.ListFields():
            if field.type == field.TYPE_MESSAGE:
                stack.extend([content] if hasattr(content, "ListFields") else content)
    return True


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


def certify(
    source: ModelProto | str | Path,
    result: ModelProto | str | Path,
    certificate: Any,
    *,
    allow_unproved: bool = False,
) -> int:
    """Return the number of steps that prove `result` equal to `source`. Raises Rejected.

    The models are paths or messages with all elements; the certificate is a path or the document.
    Equal models need no step, even if they cannot be followed. A certificate with unproved steps is
    rejected unless `allow_unproved` is true.
    """
    verdict = check(source, result, certificate)
    if verdict.unproved and not allow_unproved:
        raise Rejected("; ".join(verdict.lines()))
    return verdict.steps


def check(
    source: ModelProto | str | Path, result: ModelProto | str | Path, certificate: Any
) -> CheckedCertificate:
    """Return what a certificate proves about two models. Raises Rejected."""
    document = _document(certificate)
    models = [_model(source, "source"), _model(result, "result")]
    _check_document(document, models)
    steps = document["steps"]
    if not steps and document[SOURCE] == document[RESULT] and is_complete(models[0]):
        return CheckedCertificate(0, 0)
    replay = None
    try:
        replay = Replay(load_typed(models[0]), load_typed(models[1]), steps)
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


def _sentence(steps: Sequence[Step], replay: Replay | None, reason: str) -> str:
    place = 0 if replay is None else replay.current
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
    if document.get("format") != FORMAT or document.get("version") != VERSION:
        raise Rejected(f"it is no certificate of version {VERSION}")
    steps = document.get("steps")
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise Rejected("the certificate has no list of steps")
    rewrites = document.get("rewrites", [])
    if not isinstance(rewrites, list) or _is_deep([rewrites, steps]):
        raise Rejected("the rewrites are no list, or something is nested too deeply")
    for name, model in zip((SOURCE, RESULT), models, strict=True):
        if document.get(name) != digest_of_model(model):
            raise Rejected(f"the certificate is about another {name}")
    if document.get("seal") != digest_of_steps(document):
        raise Rejected("the rewrites or steps of the certificate were changed")
    for rewrite in rewrites:
        if not isinstance(rewrite, list) or len(rewrite) != 3 or not isinstance(rewrite[2], list):
            raise Rejected("a rewrite is no list of a rule, an operator and steps")
        if any(
            not isinstance(number, int) or not 1 <= number <= len(steps) for number in rewrite[2]
        ):
            raise Rejected(
                f"the rewrite {rewrite[0]!r} of {rewrite[1]} names a step that does not exist"
            )
    for number, step in enumerate(steps, 1):
        if step.get("step") != number:
            raise Rejected(f"step {number} has the number {step.get('step')!r}")
        if not isinstance(step.get("rules", []), list):
            raise Rejected(f"the rules of step {number} are no list")


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
