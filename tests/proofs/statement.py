"""The notation of a line.

`left == right if condition and condition`, several of them separated by `;`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Statement:
    """One identity and its conditions, as Python expressions."""

    left: str
    right: str
    conditions: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.left} == {self.right}" + (
            f" if {' and '.join(self.conditions)}" if self.conditions else ""
        )

    @property
    def variables(self) -> frozenset[str]:
        """The names that the line uses, those of functions included."""
        tree = ast.parse(" , ".join([self.left, self.right, *self.conditions]), mode="eval")
        names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
        return frozenset(
            {n.id for n in names} - {n.id for n in names if isinstance(n.ctx, ast.Store)}
        )


def statements(line: str) -> tuple[Statement, ...]:
    """Read a line."""
    return tuple(_statement(part.strip()) for part in line.split(";"))


def _statement(text: str) -> Statement:
    identity, _, condition = text.partition(" if ")
    compare = ast.parse(identity, mode="eval").body
    if (
        not isinstance(compare, ast.Compare)
        or len(compare.ops) != 1
        or not isinstance(compare.ops[0], ast.Eq)
    ):
        raise ValueError(f"no identity: {text}")
    conditions: list[ast.expr] = []
    if condition:
        tree = ast.parse(condition, mode="eval").body
        conditions = (
            tree.values if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And) else [tree]
        )
    sides = (ast.unparse(compare.left), ast.unparse(compare.comparators[0]))
    return Statement(*sides, tuple(ast.unparse(each) for each in conditions))


def meaning(expression: str, variables: Mapping[str, Any]) -> Any:
    """Return the value of an expression."""
    return eval(expression, {"__builtins__": {}, **variables})
