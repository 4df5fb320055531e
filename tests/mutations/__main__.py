"""`python tests/mutations`: drop each condition of legality in turn, write docs/mutations.md."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from mutations.conditions import STAMPS, Mutant, conditions, place
from mutations.known import Known, digest
from mutations.page import (
    REPORT,
    as_cell,
    earlier,
    is_equivalent,
    noticed_before,
    render,
    row,
    short,
    where,
)
from mutations.runs import ROOT, copy_package
from mutations.trials import Outcome, Trials


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "only", nargs="?", default="", help="those whose module, function or text contain this"
    )
    parser.add_argument("--list", action="store_true", help="print the conditions and stop")
    parser.add_argument(
        "--again", action="store_true", help="forget the outcomes of a run that was stopped"
    )
    parser.add_argument(
        "--processes", type=int, default=2, metavar="N", help="tests at a time (default: 2)"
    )
    parser.add_argument(
        "--known", type=Path, default=ROOT / "build" / "mutations.jsonl", help="the outcomes so far"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        package = copy_package(Path(name) / "listed")
        mutants: list[Mutant] = [*STAMPS, *conditions(package)]
        chosen = [mutant for mutant in mutants if options.only in place(mutant)]
        if options.list:
            for mutant in chosen:
                print(f"{mutant.module}:{mutant.line} {mutant.function}: {mutant.text}")
            return 0
        if options.again:
            options.known.unlink(missing_ok=True)
        known = Known(options.known, digest(package, ROOT / "tests"))
        return run(Trials(mutants, known, Path(name), options.processes), chosen)


def run(trials: Trials, chosen: Sequence[Mutant]) -> int:
    """Try the chosen mutants, and write the page. Return whether some test is missing.

    The others keep the outcome that they have on the page.
    """
    begun = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - begun:5.0f} s  {text}", flush=True)

    outcomes = {mutant: outcome for mutant, outcome in trials.noticed().items() if mutant in chosen}
    say(
        f"{len(chosen)} conditions and statements, {len(outcomes)} known from a run that was"
        " stopped"
    )
    failing: list[str] = []
    names = (
        {as_cell(short(test)): test for test in trials.collected()}
        if len(outcomes) < len(chosen)
        else {}
    )
    before = noticed_before(REPORT.read_text() if REPORT.exists() else "")
    last = {mutant: test for mutant in chosen if (test := names.get(before.get(where(mutant), "")))}
    passing = trials.passing([test for mutant, test in last.items() if mutant not in outcomes])
    first = {
        mutant: [test]
        for mutant, test in last.items()
        if mutant not in outcomes and test in passing
    }
    say(f"{len(first)} have a test that noticed them before; {len(names)} tests in all")
    for mutant, outcome in trials.each(first):
        if outcome.test:
            outcomes[mutant] = outcome
        say(f"{len(outcomes)} of {len(chosen)}  {row(mutant, outcome)}")
    left = [mutant for mutant in chosen if mutant not in outcomes]
    if all(is_equivalent(mutant) for mutant in left):  # the reason on the page stands for them
        outcomes.update(dict.fromkeys(left, Outcome()))
    else:
        say(f"{len(left)} have none: which tests come to them? The suite runs once")
        reached, failing = trials.reaching(say)
        useful = set(last.values())
        tests = {
            mutant: sorted(reached[mutant], key=lambda test: test not in useful) for mutant in left
        }
        for mutant, outcome in trials.each(tests):
            outcomes[mutant] = outcome
            say(f"{len(outcomes)} of {len(chosen)}  {row(mutant, outcome)}")
    others = {mutant: earlier(mutant, before) for mutant in trials.mutants}
    REPORT.write_text(render(trials.mutants, others | outcomes, failing))
    say(f"written: {REPORT.relative_to(ROOT)}")
    return int(any(_is_open(mutant, outcome) for mutant, outcome in outcomes.items()))


def _is_open(mutant: Mutant, outcome: Outcome) -> bool:
    """Return whether no test noticed a mutant that changes something, or none could say."""
    return not outcome.test and (bool(outcome.late) or not is_equivalent(mutant))


if __name__ == "__main__":
    sys.exit(main())
