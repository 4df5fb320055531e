"""Trials: which test notices that a condition is dropped.

The test that noticed it last time is tried first, alone: on a page that is nearly current, a trial
is one test. What is left is tried with the tests that could notice it: those during which the
condition led to a refusal at least once, in a run of the suite over a copy of the package in which
every condition reports when it does. First come the tests that notice others, then the fastest.

A test notices a mutant if it fails with it and passes without it. One that fails for want of time,
and a run that does not end or ends abruptly, count for nothing: the mutant is undecided, and is
tried again in the next run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from .conditions import Condition, Mutant, Stamp, place, probed
from .known import Known
from .runs import ROOT, Found, copy_package, run_tests

TESTS = (
    *(
        "tests/passes",
        "tests/support/scale_axis",
        "tests/ir",
        "tests/frontends",
        "tests/test_regressions.py",
        "tests/test_round_trip.py",
    ),
    "tests/frontends/test_hostile_regressions.py",
    *(f"tests/backends/test_{name}.py" for name in ("fold_map_cases", "statistics")),
)
"""Deterministic tests that take seconds."""

PROVENANCE_TESTS = ("tests/ir/test_provenance.py", "tests/test_round_trip.py", "tests/ir")
"""Tests that could notice a statement that writes provenance."""

LONG = 7200.0
"""Seconds for a file of tests on the package as it is."""


@dataclass(frozen=True)
class Outcome:
    """The test that noticed a mutant.

    Else the number of tests that did not, and why some said nothing.
    """

    test: str = ""
    tried: int = 0
    late: str = ""


class Trials:
    """Copies of the package, and the outcomes so far."""

    def __init__(
        self, mutants: Sequence[Mutant], known: Known, folder: Path, processes: int
    ) -> None:
        self.mutants, self.known = mutants, known
        self.plain, *copies = [copy_package(folder / str(i)) for i in range(processes + 1)]
        self.copies: SimpleQueue[Path] = SimpleQueue()
        for copy in copies:
            self.copies.put(copy)
        self.pool = ThreadPoolExecutor(processes)
        self.keys = dict(zip(mutants, _keys(mutants), strict=True))

    def files(self) -> list[str]:
        """Return the files of all tests that are tried."""
        paths = [ROOT / name for name in dict.fromkeys((*TESTS, *PROVENANCE_TESTS))]
        found = (
            file
            for path in paths
            for file in ([path] if path.is_file() else sorted(path.rglob("test_*.py")))
        )
        return list(dict.fromkeys(str(file.relative_to(ROOT)) for file in found))

    def collected(self) -> list[str]:
        """Return the names of all tests."""
        found = run_tests(self.plain, self.files(), "--collect-only", timeout=LONG)
        if not found.collected:
            raise SystemExit(f"the tests do not run: {[*found.failed, *found.late][:3]}")
        return found.collected

    def passing(self, tests: Iterable[str]) -> set[str]:
        """Return the tests that pass on the package as it is."""
        todo = [test for test in dict.fromkeys(tests) if f"passes {test}" not in self.known.values]
        groups = [group for i in range(2) if (group := todo[i::2])]
        for group, found in self._in_parallel(
            groups, lambda group: run_tests(self.plain, group, timeout=LONG)
        ):
            for test in group:
                if test in found.durations or test in found.failed:
                    self.known.write(f"passes {test}", test not in (*found.failed, *found.late))
        return {test for test in tests if self.known.values.get(f"passes {test}")}

    def each(self, tests: Mapping[Mutant, Sequence[str]]) -> Iterator[tuple[Mutant, Outcome]]:
        """Yield the outcome of each mutant with its tests, as soon as it is there."""
        for mutant, outcome in self._in_parallel(
            list(tests), lambda mutant: self._tried(mutant, tests[mutant])
        ):
            if outcome.test:
                self.known.write(self.keys[mutant], asdict(outcome))
            yield mutant, outcome

    def noticed(self) -> dict[Mutant, Outcome]:
        """Return the mutants of which it is known that a test noticed them."""
        values = self.known.values
        return {
            mutant: Outcome(**values[key]) for mutant, key in self.keys.items() if key in values
        }

    def reaching(self, say: Callable[[str], None]) -> tuple[dict[Mutant, list[str]], list[str]]:
        """Return the tests that could notice each mutant, fastest first, and failing ones."""
        conditions = [
            (i, mutant) for i, mutant in enumerate(self.mutants) if isinstance(mutant, Condition)
        ]
        package = copy_package(self.plain.parent.parent / "probed")
        for module in {condition.module for _, condition in conditions}:
            file = package / module
            file.write_text(
                probed(file.read_text(), [each for each in conditions if each[1].module == module])
            )
        files = self.files()
        todo = [file for file in files if f"reaches {file}" not in self.known.values]
        for done, (file, found) in enumerate(
            self._in_parallel(todo, lambda file: run_tests(package, [file], timeout=LONG)), 1
        ):
            if not found.durations and not found.failed and found.late:
                raise SystemExit(f"{file} does not run: {found.late[0]}")
            self.known.write(f"reaches {file}", asdict(found))
            say(
                f"{done} of {len(todo)} files of tests: {file},"
                f" {sum(found.durations.values()):.0f} s"
            )
        suite = [Found.read(self.known.values[f"reaches {file}"]) for file in files]
        failing = [test for found in suite for test in (*found.failed, *found.late)]
        seconds = {
            test: time
            for found in suite
            for test, time in found.durations.items()
            if test not in failing
        }
        reached: dict[Mutant, list[str]] = {}
        for number, mutant in enumerate(self.mutants):
            if isinstance(mutant, Stamp):
                tests = [test for test in seconds if test.startswith(PROVENANCE_TESTS)]
            else:
                tests = [
                    test
                    for found in suite
                    for test in found.reached.get(number, [])
                    if test in seconds
                ]
            reached[mutant] = sorted(tests, key=lambda test: seconds[test])
        return reached, failing

    def _tried(self, mutant: Mutant, tests: Sequence[str]) -> Outcome:
        """Return the outcome of a mutant.

        The first test alone, then the others, up to the first that fails.
        """
        package, late = self.copies.get(), ""
        file = package / mutant.module
        source = file.read_text()
        file.write_text(mutant.dropped(source))
        try:
            for part in (tests[:1], tests[1:]):  # to collect all of them takes longer
                found = run_tests(package, part, first=True) if part else Found()
                if found.failed:
                    return Outcome(found.failed[0], len(tests))
                late = late or ", ".join(found.late)
        finally:
            file.write_text(source)
            self.copies.put(package)
        return Outcome("", len(tests), late)

    def _in_parallel(
        self, items: Sequence[Any], function: Callable[[Any], Any]
    ) -> Iterator[tuple[Any, Any]]:
        """Yield each item with its result, as they come.

        What has not begun is dropped when the caller stops.
        """
        futures = {self.pool.submit(function, item): item for item in items}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            for future in futures:
                future.cancel()


def _keys(mutants: Sequence[Mutant]) -> Iterator[str]:
    """Yield a key for each mutant; equal conditions of a function are numbered."""
    seen: dict[str, int] = {}
    for mutant in mutants:
        text = place(mutant)
        seen[text] = seen.get(text, 0) + 1
        yield f"{text} {seen[text]}"
