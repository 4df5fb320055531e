"""A count of rule applications, with a limit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class DebugCounter:
    """How often a rule was applied to a module, and how often it may be: a way to find the one that does harm.

    `last` names what was applied last, and where.
    """

    limit: int | None = None
    count: int = 0
    last: tuple[str, str] = ("", "")

    @property
    def exhausted(self) -> bool:
        """Whether nothing may be applied any more."""
        return self.limit is not None and self.count >= self.limit

    def note(self, rule: str, where: str) -> None:
        """A rule was applied."""
        self.count += 1
        self.last = (rule, where)
