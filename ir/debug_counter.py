"""A counter of rule applications with a limit, to bisect a wrong rewrite, and a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct, field

from .tensor import Array

APPLIED = "applied"

Trace = Callable[[str, str, str], None]
"""Called with a node, a rule, and `applied` or why the rule declined, which may be empty."""


class Described(Protocol):
    """A node, as messages to users name it."""

    @property
    def description(self) -> str: ...


class DebugCounter(Struct, eq=False):
    """The number of rule applications in a module, and their limit.

    `last` holds the rule that was applied last, and its node. `trace` is called at every attempt.
    `log`, if it is a list, takes every application with its node, and `computed` the constants that
    a runtime computed, by the names of their values.
    """

    limit: int | None = None
    count: int = 0
    last: tuple[str, str] = ("", "")
    trace: Trace | None = None
    log: list[tuple[str, str]] | None = None
    computed: dict[str, Array] = field(default_factory=dict)

    @property
    def exhausted(self) -> bool:
        """Whether the limit is reached."""
        return self.limit is not None and self.count >= self.limit

    @property
    def is_watched(self) -> bool:
        """Whether anybody reads the labels of nodes, or there is a limit."""
        return not (self.trace is None and self.limit is None and self.log is None)

    def label(self, node: Described) -> str:
        """Return the description of `node` for `note` and `decline`, empty if nobody reads it."""
        return node.description if self.is_watched else ""

    def note(self, rule: str, where: str) -> None:
        """Count an application of `rule` at the node called `where`."""
        self.count += 1
        self.last = rule, where
        if self.log is not None:
            self.log.append((rule, where))
        if self.trace is not None:
            self.trace(where, rule, APPLIED)

    def record(self, rule: str, where: str) -> None:
        """Log an edit, if there is a log, that is no application of its own."""
        if self.log is not None:
            self.log.append((rule, where))

    def note_computed(self, name: str, array: Array) -> None:
        """Keep the elements of a constant that a runtime computed, if there is a log."""
        if self.log is not None:
            self.computed[name] = array

    def decline(self, rule: str, where: str, reason: str) -> None:
        """Trace that `rule` declined at the node called `where`."""
        if self.trace is not None:
            self.trace(where, rule, reason)
