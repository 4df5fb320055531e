"""The line beside a rule that states which identity it applies, and under which conditions.

The line is text, and nothing reads it in a compile. `tests/proofs` evaluates it: on terms of a
theorem prover, on numbers, and as the model on which the rule is tried.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])


def states(identity: str) -> Callable[[F], F]:
    """Write the identity of a rule beside it: `left == right if condition and condition`.

    Several are separated by `;`.
    """

    def mark(function: F) -> F:
        function.__dict__["identity"] = identity
        return function

    return mark
