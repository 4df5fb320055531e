"""All rules, each with the line that stands beside it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from irc.ir.ops import OPS
from irc.passes.affine.rules.clipping import clip_shifted
from irc.passes.affine.rules.derived_rules import derived_backward, derived_forward
from irc.passes.affine.rules.table import AFFINE_RULES
from irc.passes.affine.search.chains import affine_of
from irc.passes.branches.linear_kernels import added, composed
from irc.passes.simplify.rule_set import RULES
from irc.passes.simplify_inference import lower_batch_norm

from .domains import AFFINE, Domain
from .expressions import SIMPLIFY

AFFINES, EXPRESSIONS = "How affines pass", "SimplifyExpr"

NOT_PROVED: dict[str, str] = {
    "inline_possible_branch": "It is about runs that fail, of which no result can be compared.",
    "lower_late": "It reads an operator as the importer does: operands and attributes stay.",
    "normalize_one_sample": "It gives a definition its other name: `simplify/no_ops.irc` tests it.",
    "fold_extents": (
        "It computes elements of a shape, a calculation and no identity: `simplify/shapes.irc`"
        " tests it."
    ),
    **dict.fromkeys(
        (
            "merge_runs",
            "part_of_shape",
            "take_of_range",
            "scatter_of_range",
            "reshape_to_flatten",
            "copied_extents",
            "constant_bounds",
            "expand_of_full",
        ),
        "It compares extents, a calculation and no identity: `simplify/computed_extents.irc` tests"
        " it.",
    ),
    "inline_iteration": "The body is a graph: `simplify/loops.irc` tests it.",
    "concat_of_sequence": "A sequence is no tensor: `simplify/sequences.irc` tests it.",
    "forward_extents": (
        "It compares elements of shapes, a calculation and no identity: `simplify/shapes.irc`"
        " tests it."
    ),
}
"""Rules that have no line or no proof, with the reason."""

DERIVED = (derived_backward, derived_forward)
"""The rules made from the channel map of an operator: the line stands beside that."""


@dataclass(frozen=True)
class Entry:
    """A rule with its line, empty where it has none, and the operators that it is for."""

    group: str
    name: str
    module: str
    line: str
    operators: tuple[str, ...]

    @property
    def domain(self) -> Domain | None:
        return (AFFINE if self.group == AFFINES else SIMPLIFY).get(self.name)


def entries() -> list[Entry]:
    """Return all rules: those of the affine table by function, those of SimplifyExpr by name."""
    found: dict[tuple[str, Callable[..., Any]], list[str]] = {}
    for op, function in _ways():
        found.setdefault((AFFINES, function), []).append(op)
    for op, rules in RULES.items():
        for rule in rules:
            found.setdefault((EXPRESSIONS, rule.apply), []).append(op)
    lines = {rule.apply: rule.identity for rules in RULES.values() for rule in rules}
    lines[lower_batch_norm.apply] = lower_batch_norm.identity
    return [
        Entry(
            group,
            function.__name__,
            _file(function),
            lines.get(function) or _line(function),
            tuple(ops),
        )
        for (group, function), ops in found.items()
    ]


def _line(function: Callable[..., Any]) -> str:
    return str(getattr(function, "identity", ""))


def _ways() -> Iterator[tuple[str, Callable[..., Any]]]:
    for op, rule in AFFINE_RULES.items():
        for way in (rule.backward, rule.forward, rule.absorb_result, rule.absorb_data):
            if way is not None:
                channels = OPS[op].channels
                assert way not in DERIVED or channels is not None
                yield op, channels if way in DERIVED and channels is not None else way
    for op, info in OPS.items():
        for form in (info.affine.first, info.affine.second) if info.affine is not None else ():
            if form is not None:
                yield op, form
    yield "nn.batch_norm", lower_batch_norm.apply
    yield "multiply", affine_of
    yield "clip", clip_shifted
    yield "add", added
    yield "nn.conv", composed


def _file(function: Callable[..., Any]) -> str:
    module = inspect.getmodule(function)
    assert module is not None
    return module.__name__.removeprefix("irc.").replace(".", "/") + ".py"
