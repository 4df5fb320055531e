"""A count of rule applications, with a limit, and a trace of attempts: the ways to find the rule that does harm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

APPLIED = "applied"

Trace = Callable[[str, str, str], None]
"""Called with an operator, a rule, and `applied` or the reason for which the rule declined (empty if it gave none)."""


@dataclass(slots=True)
class DebugCounter:
    """How often a rule was applied to a module, and how often it may be.

    `last` names the rule that was applied last and the node, and `trace` hears of every attempt.
    """

    limit: int | None = None
    count: int = 0
    last: tuple[str, str] = ("", "")
    trace: Trace | None = None

    @property
    def exhausted(self) -> bool:
        """Whether no rule may be applied any more."""
        return self.limit is not None and self.count >= self.limit

    def note(self, rule: str, where: str) -> None:
        """Count an application of `rule`."""
        self.count += 1
        self.last = (rule, where)
        if self.trace is not None:
            self.trace(where, rule, APPLIED)

    def decline(self, rule: str, where: str, reason: str) -> None:
        """Trace that `rule` declined."""
        if self.trace is not None:
            self.trace(where, rule, reason)
