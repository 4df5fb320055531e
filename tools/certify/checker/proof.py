"""A proof that two models compute the same: facts about values, checked as they are added.

Congruence needs no step. All else needs one, which names an identity and an operation: IDENTITIES
is the table. Facts are never taken back, so the order of the steps is that of the operations, the
source's before the result's.
"""

from __future__ import annotations

import numpy as np

from .affine_identities import AFFINES
from .congruence import RESULT, SOURCE
from .equalities import EQUALITIES
from .inferred_types import fault_of
from .lines import GROWTH, NARROW
from .program import Datum, Operation, Unproved, declared
from .relations import Relations
from .steps import Step
from .unproved import DECLARATION, OUTPUT, UNPROVED, assume

IDENTITIES = {**EQUALITIES, **AFFINES}
"""The identities by the name that steps have for them."""


class Proof(Relations):
    """The facts about a source and a result. `run` goes through the operations of both."""

    def run(self) -> None:
        """Enter all operations, and prove that the results are equal. Raises Unproved."""
        self.compare_interfaces()
        self.prove()

    @np.errstate(all="ignore")  # infinity and NaN are refused where they arise
    def prove(self) -> None:
        """Enter all operations of models with one interface, and prove that the results are equal.

        Raises Unproved.
        """
        self.side = SOURCE
        self.body(
            self.source.body, [self.term(("input", name)) for name, _ in self.source.interface]
        )
        self.side = RESULT
        self.body(
            self.result.body, [self.term(("input", name)) for name, _ in self.result.interface]
        )
        self.finish()

    def compare_interfaces(self) -> None:
        """Refuse other inputs, outputs, defaults or opsets, and a result that onnx refuses."""
        source, result = self.source, self.result
        if source.interface != result.interface:
            raise Unproved("the inputs of the models differ")
        if source.results != result.results:
            raise Unproved("the outputs of the models differ")
        defaults = [
            {name: each.key for name, each in side.overridable.items()} for side in (source, result)
        ]
        if defaults[0] != defaults[1]:
            raise Unproved("the defaults of the inputs differ")
        if any(
            result.opsets.get(domain) != version
            for domain, version in source.opsets.items()
            if not domain
        ):
            raise Unproved("the opsets of the models differ")
        fault = fault_of(result.model)
        if fault is not None and fault_of(source.model) is None:
            raise Unproved(f"the result is no valid model: {fault}")

    def finish(self) -> None:
        """Prove that each output is equal, and each extent that the result declares."""
        pairs = zip(
            self.source.body.outputs, self.result.body.outputs, self.source.results, strict=True
        )
        for first, second, (name, _) in pairs:
            if self.term_of(first) != self.term_of(second):
                blocked = self.blocker(second)
                where = "no operation"
                if blocked is not None:
                    where = f"{blocked.kind} {blocked.label!r} of the result"
                reason = f"the output {name!r} is not proved equal: {where} follows from no step"
                self.admit(OUTPUT, name, reason)
            elif self.grows(first, second):
                reason = f"scales or shifts before the output {name!r} are far beyond the source's"
                self.admit(OUTPUT, name, reason)
        self.compare_declared()

    def admit(self, at: str, label: str, reason: str) -> None:
        """Go on where an output or a declaration has no proof, or raise Unproved."""
        raise Unproved(reason)

    def grows(self, first: Datum, second: Datum) -> bool:
        """Return whether numbers before an output of the result far exceed the source's."""
        return not (self.spread(second, NARROW) / GROWTH <= self.spread(first, {})).all()

    def compare_declared(self) -> None:
        """Refuse a result that declares an extent which does not follow: runtimes believe it."""
        given = dict(declared(self.source.model.graph))
        for label, extents in declared(self.result.model.graph):
            value, first = self.result.data.get(label), self.source.data.get(label)
            if value is None or extents is None:
                continue
            if value.extents is not None and len(value.extents) == len(extents):
                own = value.extents
            else:
                own = (None,) * len(extents)
            if all(not isinstance(a, int) or a == b for a, b in zip(extents, own, strict=True)):
                continue
            is_given = first is not None and given.get(label) == extents
            if first is None or not is_given or not self._have_one_shape(first, value):
                reason = f"the result declares extents of {label!r} that do not follow"
                self.admit(DECLARATION, label, reason)

    def _have_one_shape(self, first: Datum, second: Datum) -> bool:
        shape = self.shape(first)
        return self.term_of(first) == self.term_of(second) or (
            shape is not None and shape == self.shape(second)
        )

    def blocker(self, value: Datum) -> Operation | None:
        """Return the first operation before `value`, in order, that is not proved."""
        before, stack = set(), [value]
        while stack:
            producer = stack.pop().producer
            if producer is not None and producer.label not in before:
                before.add(producer.label)
                stack.extend(each for each in producer.inputs if each is not None)
        return next((each for each in self.unproven if each.label in before), None)

    def apply(self, step: Step, operation: Operation) -> None:
        """Check a step and add its facts. Raises Unproved."""
        name = step.get("identity")
        check = IDENTITIES.get(name) if isinstance(name, str) else None
        check = assume if name == UNPROVED else check
        if check is None:
            raise Unproved(f"there is no identity {name!r}")
        try:
            check(self, step, operation)
        except (ValueError, IndexError, TypeError, AttributeError, ArithmeticError):
            raise Unproved("numbers or extents do not fit together") from None
