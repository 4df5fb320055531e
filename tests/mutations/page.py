"""docs/mutations.md, made of the outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .conditions import Mutant
from .runs import ROOT
from .trials import Outcome

REPORT = ROOT / "docs" / "mutations.md"

EQUIVALENT: dict[tuple[str, str], str] = {
    (
        "is_inference_batch_norm",
        "node.opset < 14 and declared > 1",
    ): "the last condition refuses the same nodes in fewer words",
    (
        "composed",
        "last.kind == 'nn.conv_transpose'",
    ): "what is composed are matrices, and the Convs of MergeLayers",
    (
        "merge_affines",
        "{_GROUP.get(producer.op), _GROUP.get(node.op)} == {'add', 'multiply'}",
    ): "the last branch declines the same; this reads no constant for it",
    (
        "_Operands.floats",
        "not constant.all()",
    ): "the total would be infinite or no number, which _total refuses",
}
"""Mutants that change nothing, by function and condition, with the reason."""


def is_equivalent(mutant: Mutant) -> bool:
    """Return whether a mutant is known to change nothing."""
    return (mutant.function, mutant.text) in EQUIVALENT


def noticed_before(text: str) -> dict[tuple[str, str], str]:
    """Return the test that noticed each condition, by the first two cells, of an earlier page."""
    rows = [
        line.removeprefix("| ").removesuffix(" |").split(" | ")
        for line in text.splitlines()
        if "::" in line
    ]
    return {(cells[0], cells[1]): cells[-1].strip("`") for cells in rows if len(cells) == 3}


def earlier(mutant: Mutant, before: Mapping[tuple[str, str], str]) -> Outcome:
    """Return the outcome that a mutant has on an earlier page, undecided if it has none."""
    test = before.get(where(mutant), "").replace("\\|", "|")
    return Outcome(test, late="" if test or is_equivalent(mutant) else "not tried yet")


def row(mutant: Mutant, outcome: Outcome) -> str:
    """Return a row of the table."""
    if outcome.test:
        verdict = f"`{short(outcome.test)}`"
    elif outcome.late:
        verdict = f"**UNDECIDED** {outcome.late}"
    elif is_equivalent(mutant):
        verdict = f"equivalent: {EQUIVALENT[mutant.function, mutant.text]}"
    else:
        verdict = (
            f"**SURVIVED** {outcome.tried} tests"
            if outcome.tried
            else "**SURVIVED**: no test comes here"
        )
    return f"| {' | '.join([*where(mutant), as_cell(verdict)])} |"


def where(mutant: Mutant) -> tuple[str, str]:
    """Return the first two cells of the row of a mutant."""
    place = f"`{mutant.module}`" + (f" `{mutant.function}`" if mutant.function else "")
    return as_cell(place), as_cell(f"`{mutant.text}`")


def short(test: str) -> str:
    """Return the name of a test as it stands on the page."""
    return test.removeprefix("tests/")


def as_cell(text: str) -> str:
    """Return a text as it stands in a table."""
    return text.replace("|", "\\|").replace("\n", " ")


def render(
    mutants: Sequence[Mutant], outcomes: Mapping[Mutant, Outcome], failing: Sequence[str]
) -> str:
    """Return the page."""
    rows = [row(mutant, outcomes[mutant]) for mutant in mutants]
    counts = [
        sum(mark in line for line in rows)
        for mark in ("| equivalent: ", "| **SURVIVED**", "| **UNDECIDED**")
    ]
    equivalent, survived, undecided = counts
    text = (
        "# Conditions of legality, dropped one at a time\n\n```sh\nmake test-mutations\n```\n\n"
        "Written by `make test-mutations`"
        " (`tests/mutations`, which says how): a row for every condition that makes a fold\nbe"
        " refused or a rule decline, and for every statement that writes provenance, with a test"
        f" that fails without it.\n\n{len(rows)} conditions and statements:"
        f" {len(rows) - sum(counts)} noticed, {equivalent} equivalent, {survived} survived"
    )
    text += f", {undecided} undecided.\n" if undecided else ".\n"
    if failing:
        text += f"{len(failing)} tests failed before anything was dropped, and were left out.\n"
    return (
        text
        + "\n| where | condition | dropped, it is noticed by |\n| --- | --- | --- |\n"
        + "\n".join(rows)
        + "\n"
    )
