"""Proofs of lines with z3: that the conditions suffice, and that none of them can be dropped."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import z3

from .domains import FUNCTIONS, Domain, Free, Instance, frees, realized
from .models import agree, drawn, encoded, holds, result, tensors
from .statement import Statement, meaning, statements
from .tensors import Claim, Field, Tensor, Undefined
from .terms import Booleans, Floats, Integers, Reals, Typed

TIMEOUT = 60_000
"""Milliseconds for one question to z3."""


@dataclass
class Proof:
    """What was found about one line.

    Instances that were proved, and a counterexample for each condition dropped.
    """

    rule: str
    line: str
    kinds: tuple[str, ...]
    size: str
    proved: int = 0
    failed: list[str] = field(default_factory=list)
    counterexamples: list[dict[str, Any]] = field(default_factory=list)
    needless: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return self.proved > 0 and not self.failed and not self.needless


def prove(rule: str, line: str, domain: Domain) -> Proof:
    """Prove a line on all instances of its domain, and refute it without each condition."""
    proof = Proof(rule, line, domain.fields, domain.size)
    for number, statement in enumerate(statements(line)):
        instances = [each for each in domain.instances if _has(each, statement)]
        if not instances:
            proof.failed.append(
                f"no instance of {statement}: a name is none of the domain's variables, of"
                " operators.py or predicates.py"
            )
        before = proof.proved
        for kind in domain.fields:
            for instance in instances:
                _prove(proof, statement, instance, kind)
        if instances and proof.proved == before:
            proof.failed.append(f"no instance of {statement} is defined")
        for dropped in range(len(statement.conditions)):
            _refute(proof, number, dropped, instances, domain.fields)
    return proof


def _has(instance: Instance, statement: Statement) -> bool:
    return statement.variables <= {*instance, *FUNCTIONS}


@dataclass
class Question:
    """One instance of a statement in terms.

    Whether the sides are defined, whether they agree, and the conditions.
    """

    left: Any
    same: Any
    conditions: list[Any]
    given: list[Any]
    variables: dict[str, Any]
    field: Any


def _field(kind: str, instance: Instance) -> Any:
    if kind == "types":
        return Typed(instance["source"])
    if kind == "labels":
        return Field(np.int64)
    return {"reals": Reals, "floats": Floats, "integers": Integers}[kind]()


def _question(statement: Statement, instance: Instance, kind: str) -> Question | None:
    """Return an instance in terms, None if its left side never has a value."""
    of = _field(kind, instance)
    labels = iter(range(1, 10_000))
    truths = Booleans()

    def make(name: str, free: Free) -> Tensor:
        elements = np.empty(free.shape, object)
        for index in np.ndindex(*free.shape):
            term = "_".join([name, *map(str, index)])
            if kind == "labels":
                elements[index] = np.int64(next(labels))
            else:
                elements[index] = (truths if free.truth else of).variable(term)
        return Tensor(of, elements, constant=free.constant)

    variables = {**FUNCTIONS, **realized(instance, make)}
    conditions = []
    for each in statement.conditions:
        of.defined = []
        try:
            found = meaning(each, variables)
        except Undefined:
            return None
        found = found.value if isinstance(found, Claim) else found
        conditions.append(z3.And(*of.defined, found))
    of.defined = []
    try:
        left = meaning(statement.left, variables)
    except Undefined:
        return None
    defined = z3.And(*of.defined)
    of.defined = []
    same: Any = z3.BoolVal(False)
    try:
        right = meaning(statement.right, variables)
        if right.shape == left.shape:
            pairs = zip(left.array.ravel(), right.array.ravel(), strict=True)
            same = z3.And(*of.defined, *[left.field.same(a, b) for a, b in pairs])
    except Undefined:
        pass
    return Question(defined, same, conditions, of.given, variables, of)


def _prove(proof: Proof, statement: Statement, instance: Instance, kind: str) -> None:
    question = _question(statement, instance, kind)
    if question is None:
        return
    solver = z3.Solver()
    solver.set("timeout", TIMEOUT)
    solver.add(question.left, *question.given, *question.conditions)
    if solver.check() == z3.unsat:
        return
    solver.add(z3.Not(question.same))
    answer = solver.check()
    if answer == z3.unsat:
        proof.proved += 1
    else:
        shown = f": {solver.model()}" if answer == z3.sat else ""
        proof.failed.append(f"{statement} for {kind} {_discrete(instance)}: {answer}{shown}")


def _discrete(instance: Instance) -> dict[str, Any]:
    return {
        name: value.shape if isinstance(value, Free) else value for name, value in instance.items()
    }


def _refute(
    proof: Proof, number: int, dropped: int, instances: Sequence[Instance], kinds: Sequence[str]
) -> None:
    """Find numbers for which the line without one condition is wrong."""
    statement = statements(proof.line)[number]
    alike = [
        each for each in statements(proof.line) if each.left == statement.left and each != statement
    ]
    for avoided in (alike, []):  # numbers that no other identity serves, if there are any
        for kind, instance in itertools.product(kinds, instances):
            fitting = [each for each in avoided if _has(instance, each)]
            numbers = _numbers(statement, dropped, instance, kind, fitting)
            if numbers is not None:
                proof.counterexamples.append(
                    {
                        "rule": proof.rule,
                        "line": number,
                        "dropped": statement.conditions[dropped],
                        "kind": kind,
                        **encoded(instance, numbers),
                    }
                )
                return
    proof.needless.append(f"{statement.conditions[dropped]} in {statement}")


def _numbers(
    statement: Statement, dropped: int, instance: Instance, kind: str, alike: Sequence[Statement]
) -> Mapping[str, Any] | None:
    """Return numbers that refute: drawn ones that are simple, else those that z3 finds."""
    rng = np.random.default_rng(0)
    names = Statement("0", "0", (statement.conditions[dropped],)).variables
    constants = [name for name, free in frees(instance) if free.constant and name not in names]
    for _ in range(200):
        numbers = drawn(instance, rng, kind)
        if not any(_is_plain(numbers[name]) for name in constants) and refutes(
            statement, dropped, instance, numbers, kind, alike
        ):
            return numbers
    question = _question(statement, instance, kind)
    if question is None:
        return None
    others = [each for i, each in enumerate(question.conditions) if i != dropped]
    for numbers in _models(
        question, [*others, z3.Not(question.conditions[dropped])], instance, kind, names
    ):
        if refutes(statement, dropped, instance, numbers, kind, alike):
            return numbers
    return None


def _is_plain(numbers: Any) -> bool:
    """Return whether all numbers are 0 or all are 1: such operators go for other reasons."""
    flat = np.ravel(np.asarray(numbers, float))
    return flat.size > 0 and bool((flat == 0).all() or (flat == 1).all())


def _models(
    question: Question, claims: Sequence[Any], instance: Instance, kind: str, names: Collection[str]
) -> Iterator[dict[str, Any]]:
    """Yield numbers that z3 finds: first with constants that are neither 0 nor 1."""
    terms = [
        (question.variables[name] if "." not in name else None, free)
        for name, free in frees(instance)
        if free.constant and name not in names
    ]
    plain = [
        z3.And(e != question.field.number(0), e != question.field.number(1))
        for tensor, free in terms
        if tensor is not None and not free.truth and kind != "labels"
        for e in tensor.array.ravel()
    ]
    for preferred in (plain, []):
        solver = z3.Solver()
        solver.set("timeout", TIMEOUT)
        solver.add(question.left, *question.given, *claims, z3.Not(question.same), *preferred)
        if solver.check() == z3.sat:
            model = solver.model()
            yield {
                name: _values(name, free, question, model, kind) for name, free in frees(instance)
            }


def _values(name: str, free: Free, question: Question, model: Any, kind: str) -> Any:
    stem, _, index = name.partition(".")
    found = question.variables[stem]
    tensor = found.constants[int(index)] if index else found
    of = Booleans() if free.truth else question.field
    if kind == "labels":
        return np.asarray(tensor.array.tolist()).reshape(free.shape).tolist()
    return (
        np.asarray([of.value(model, e) for e in tensor.array.ravel()]).reshape(free.shape).tolist()
    )


def refutes(
    statement: Statement,
    dropped: int,
    instance: Instance,
    numbers: Mapping[str, Any],
    kind: str,
    alike: Sequence[Statement] = (),
) -> bool:
    """Return whether only this condition fails on the numbers, and the sides differ.

    No identity of `alike`, which has the same left side, may be for these numbers.
    """
    variables = tensors(instance, numbers, kind)
    try:
        truths = [holds(each, variables) for each in statement.conditions]
        served = any(all(holds(each, variables) for each in other.conditions) for other in alike)
    except Undefined:
        return False
    left = result(statement.left, variables)
    if (
        left is None
        or served
        or truths[dropped]
        or not all(t for i, t in enumerate(truths) if i != dropped)
    ):
        return False
    return not agree(left, result(statement.right, variables))
