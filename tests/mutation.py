"""Does the suite notice when a condition of legality is dropped? `make test-mutations` writes docs/mutations.md.

A condition is the test of an `if` one side of which ends by raising Refused, by returning a Refusal, or None where a
function of the affine algebra declines so, or of a conditional expression one side of which is a Refusal. Dropping it
means that the refusal never happens: the test keeps its effects, and its outcome is replaced. A function of no result
that ends by raising Refused is counted, too: its last statement is dropped. `raise Refused.of(refusal)` only hands on a
refusal, and is not counted: the condition that made the refusal is.

One run of the suite over a copy of the package, in which every condition reports when it holds, says which tests could
notice: those during which it held at least once. Only they are run against the mutant, up to the first failure: the one
that noticed it last time alone, then those that noticed others, then the fastest. A condition that never held survives
without a run. Processes are forked from one that has imported everything heavy but the package and the tests, so that a
mutant takes little more than its tests.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy  # noqa: F401
import onnx  # noqa: F401
import onnxruntime  # noqa: F401
import pytest

ROOT = Path(__file__).parent.parent
REPORT = ROOT / "docs" / "mutations.md"
MODULES = (
    "passes/affine/*.py",
    "passes/data_free/layer_pair.py",
    "passes/simplify_inference.py",
    "frontends/onnx/lowering.py",
    "ir/ops/*.py",
)
"""Where conditions are looked for, as far as it exists."""
DECLINING = tuple(f"passes/affine/{name}" for name in ("algebra", "magic", "operands", "recognise", "reshape", "zero"))
"""Modules whose functions decline by returning None."""
TESTS = (
    *("tests/passes", "tests/ir", "tests/frontends", "tests/test_regressions.py", "tests/test_round_trip.py"),
    "tests/test_hostile_regressions.py",
    *(f"tests/backends/test_{name}.py" for name in ("fold_map_cases", "statistics")),
)
"""Deterministic tests that take seconds."""
PROCESSES = 2
TIMEOUT = 600.0

EQUIVALENT: dict[tuple[str, str], str] = {
    (
        "is_inference_batch_norm",
        "node.opset < 14 and declared > 1",
    ): "the last condition refuses the same nodes in fewer words",
}
"""Mutants that change nothing, by function and condition, with the reason."""


PROVENANCE_TESTS = ("tests/test_provenance.py", "tests/test_round_trip.py", "tests/ir")
STAMPS = (
    ("node.origins, node.inherited = self.root.origins, self.root.inherited", "pass"),
    ("module.provenance.consume(node, heir, self.rule, note)", "pass"),
    ("module.provenance.dropped.extend([rope for rope in (origins, inherited) if rope])", "pass"),
    ("heir.inherited = (heir.inherited, rope) if heir.inherited else rope", "pass"),
    ("self._erase(node, heir, note)", 'self._erase(node, heir, "")'),
    ("self._erase_unread(inputs, heir, note)", 'self._erase_unread(inputs, heir, "")'),
    ('self._bequeath(inner, None, "")', "pass"),
)
"""Statements of the Rewriter that write provenance, and what each mutant has in their place."""


@dataclass(frozen=True)
class Condition:
    """The expression at a place of a module whose outcome, `refused`, leads to a refusal; or a statement that does."""

    module: str
    function: str
    text: str
    start: int
    end: int
    line: int
    refused: bool
    is_statement: bool = False

    def dropped(self, source: str) -> str:
        """The module without the refusal."""
        if self.is_statement:
            return f"{source[: self.start]}pass{source[self.end :]}"
        tail = ") and False)" if self.refused else ") or True)"
        return f"{source[: self.start]}(({source[self.start : self.end]}{tail}{source[self.end :]}"


def probed(source: str, conditions: Sequence[tuple[int, Condition]]) -> str:
    """The module with a report of each time that one of its conditions leads to the refusal."""
    insertions = []
    for index, condition in conditions:
        length = condition.end - condition.start
        if condition.is_statement:
            insertions.append((condition.start, 1, 0, f"_irc_probe_({index}, True, True); "))
            continue
        insertions.append((condition.start, 1, -length, f"_irc_probe_({index}, {condition.refused}, ("))
        insertions.append((condition.end, 0, length, "))"))
    for position, _, _, text in sorted(insertions, reverse=True):
        source = source[:position] + text + source[position:]
    return source


# finding conditions


def functions_that_refuse(trees: Sequence[ast.Module]) -> set[str]:
    """Names of functions whose annotated result is a Refusal, or the exception that carries one, and nothing else."""
    functions = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    refusals = ("Refusal", "Refused")
    return {node.name for node in functions if node.returns is not None and ast.unparse(node.returns) in refusals}


def is_refusal(expression: ast.expr | None, refusers: set[str]) -> bool:
    """Whether the value of an expression is, or holds, a Refusal or the exception that carries one."""
    match expression:
        case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
            return name in ("Refusal", "Refused") or name in refusers
        case ast.Name(id=name):
            return "refusal" in name
        case ast.Tuple(elts=items) | ast.BoolOp(values=items):
            return any(is_refusal(item, refusers) for item in items)
    return False


@dataclass
class _Finder(ast.NodeVisitor):
    module: str
    source: str
    refusers: set[str]
    found: list[Condition] = field(default_factory=list)
    stack: list[ast.FunctionDef | ast.ClassDef] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.offsets = [0]
        for line in self.source.encode().splitlines(keepends=True):
            self.offsets.append(self.offsets[-1] + len(line))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.stack.append(node)
        last = node.body[-1]
        nothing = node.returns is not None and ast.unparse(node.returns) == "None"
        if nothing and isinstance(last, ast.Raise) and is_refusal(last.exc, self.refusers):
            self.add(last, refused=True)
        self.generic_visit(node)
        self.stack.pop()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.stack.append(node)
        self.generic_visit(node)
        self.stack.pop()

    def visit_If(self, node: ast.If) -> None:
        if self.refuses(node.body[-1]):
            self.add(node.test, refused=True)
        elif node.orelse and self.refuses(node.orelse[-1]):
            self.add(node.test, refused=False)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        for side, refused in ((node.body, True), (node.orelse, False)):
            if is_refusal(side, self.refusers):
                self.add(node.test, refused=refused)
        self.generic_visit(node)

    def refuses(self, last: ast.stmt) -> bool:
        """Whether the last statement of a branch refuses."""
        result = last.value if isinstance(last, ast.Return) else None
        if isinstance(last, ast.Assign) and isinstance(last.targets[0], ast.Name):
            result = last.value
        if isinstance(last, ast.Raise):
            result = last.exc
        return is_refusal(result, self.refusers) or self.declines(last)

    def declines(self, last: ast.stmt) -> bool:
        """Whether the statement returns None from a function of the algebra, where that means that there is nothing."""
        if not (self.module.startswith(DECLINING) and isinstance(last, ast.Return) and self.stack):
            return False
        function = self.stack[-1]
        returns = ast.unparse(function.returns) if isinstance(function, ast.FunctionDef) and function.returns else ""
        nothing = last.value is None or (isinstance(last.value, ast.Constant) and last.value.value is None)
        return nothing and "None" in returns and returns != "None"

    def add(self, test: ast.expr | ast.Raise, *, refused: bool) -> None:
        start, end = (
            len(self.source.encode()[: self.offsets[line - 1] + column].decode())
            for line, column in ((test.lineno, test.col_offset), (test.end_lineno or 0, test.end_col_offset or 0))
        )
        function = ".".join(node.name for node in self.stack)
        is_statement = isinstance(test, ast.Raise)
        self.found.append(
            Condition(self.module, function, ast.unparse(test), start, end, test.lineno, refused, is_statement)
        )


def conditions(package: Path) -> list[Condition]:
    """Every condition of the modules, in the order of the text."""
    paths = sorted(path for pattern in MODULES for path in package.glob(pattern))
    sources = {path: path.read_text() for path in paths}
    trees = {path: ast.parse(source) for path, source in sources.items()}
    refusers = functions_that_refuse(list(trees.values()))
    found: list[Condition] = []
    for path in paths:
        finder = _Finder(str(path.relative_to(package)), sources[path], refusers)
        finder.visit(trees[path])
        found.extend(sorted(finder.found, key=lambda condition: condition.start))
    return found


# running tests


def copy_package(to: Path) -> Path:
    """A copy of the package that can be imported from `to`."""
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    for name in packages:
        source, target = ROOT.joinpath(*name.split(".")[1:]), to.joinpath(*name.split("."))
        target.mkdir(parents=True, exist_ok=True)
        for file in source.iterdir():
            if file.is_file() and file.suffix in (".py", ".json", ".typed"):
                shutil.copy(file, target / file.name)
    return to / "irc"


class Recorder:
    """A plugin that notes durations, failures, and the conditions that held during each test."""

    def __init__(self) -> None:
        self.durations: dict[str, float] = {}
        self.failed: list[str] = []
        self.reached: dict[int, list[str]] = {}
        self.held: set[int] = set()

    def probe(self, index: int, refused: bool, outcome: Any) -> Any:
        if bool(outcome) == refused:
            self.held.add(index)
        return outcome

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.nodeid not in self.failed:
            self.failed.append(report.nodeid)
        if report.when == "call":
            self.durations[report.nodeid] = report.duration
            for index in self.held:
                self.reached.setdefault(index, []).append(report.nodeid)
            self.held.clear()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid or "collection")


def _run(package: Path, arguments: Sequence[str], out: Path) -> None:
    """In a process of its own: run tests against the package, and write what the recorder found."""
    sink = os.open(package.parent / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    os.chdir(ROOT)
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(package.parent))
    recorder = Recorder()
    builtins._irc_probe_ = recorder.probe  # type: ignore[attr-defined]
    status = pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments], plugins=[recorder])
    if status not in (0, 1) and not recorder.failed:
        recorder.failed.append(f"exit status {int(status)}")
    out.write_text(
        json.dumps({"failed": recorder.failed, "durations": recorder.durations, "reached": recorder.reached})
    )
    os._exit(0)


def run_tests(package: Path, arguments: Sequence[str], timeout: float) -> dict[str, Any]:
    """What the recorder found in a run of the tests; a run that does not end has failed."""
    out = package.parent / "found.json"
    out.unlink(missing_ok=True)
    process = multiprocessing.get_context("fork").Process(target=_run, args=(package, arguments, out))
    process.start()
    process.join(timeout)
    if process.is_alive():
        process.kill()
        process.join()
        return {"failed": ["(timeout)"]}
    if not out.exists():
        return {"failed": ["(crash)"]}
    return json.loads(out.read_text())  # type: ignore[no-any-return]


def baseline(found: Sequence[Condition], package: Path) -> tuple[dict[int, list[str]], set[str]]:
    """The tests, fastest first, during which each condition led to a refusal; and those that fail anyway."""
    for module in {condition.module for condition in found}:
        inside = [(index, condition) for index, condition in enumerate(found) if condition.module == module]
        (package / module).write_text(probed((package / module).read_text(), inside))
    tests = [test for test in TESTS if (ROOT / test).exists()]
    seen = run_tests(package, tests, 3600)
    durations, failed = seen.get("durations", {}), set(seen["failed"])
    if not durations:
        sys.exit(f"the tests do not run: {sorted(failed)[:3]}")
    reached = {
        int(index): sorted(set(names) - failed, key=lambda name: durations[name])
        for index, names in seen["reached"].items()
    }
    return reached, failed


def try_mutant(condition: Condition, tests: Sequence[str], package: Path) -> str | None:
    """The test that fails without the condition, None where none does."""
    for part in (tests[:1], tests[1:]):  # the first alone: to collect all of them takes longer
        failed = try_source(package / condition.module, condition.dropped, part, package) if part else None
        if failed is not None:
            return failed
    return None


def try_source(path: Path, change: Callable[[str], str], tests: Sequence[str], package: Path) -> str | None:
    """Return the first of `tests` that fails with the file at `path` changed, None where none does."""
    source = path.read_text()
    path.write_text(change(source))
    arguments = package.parent / "arguments.txt"
    arguments.write_text("\n".join(tests))
    try:
        failed = run_tests(package, ["-x", f"@{arguments}"], TIMEOUT)["failed"]
    finally:
        path.write_text(source)
    return failed[0] if failed else None


def unstamped(package: Path) -> Iterator[str]:
    """Yield a row of the table for each statement that writes provenance: what notices that it is gone."""
    path = package / "ir" / "rewriter.py"
    for statement, instead in STAMPS:
        assert path.read_text().count(statement) == 1, statement
        killer = try_source(
            path, lambda source, a=statement, b=instead: source.replace(a, b), PROVENANCE_TESTS, package
        )
        verdict = f"`{killer.rpartition('/')[2]}`" if killer else "**SURVIVED**"
        yield f"| `ir/rewriter.py` | `{statement}` | {verdict} |"


def mutate(
    found: Sequence[Condition], reached: dict[int, list[str]], chosen: Sequence[int], copies: Sequence[Path]
) -> Iterator[str | None]:
    """The outcome of each chosen condition, in order; as many at a time as there are copies of the package."""
    packages: SimpleQueue[Path] = SimpleQueue()
    for package in copies:
        packages.put(package)

    def outcome(index: int) -> str | None:
        package = packages.get()
        try:
            return try_mutant(found[index], reached.get(index, []), package)
        finally:
            packages.put(package)

    with ThreadPoolExecutor(len(copies)) as pool:
        yield from pool.map(outcome, chosen)


def noticed_before(text: str) -> dict[tuple[str, str], str]:
    """The test that noticed each condition, by the first two cells of its row, in a report written before."""
    rows = [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in text.splitlines() if "::" in line]
    return {(cells[0], cells[1]): cells[-1].strip("`") for cells in rows if len(cells) == 3}


def best_first(
    found: Sequence[Condition], reached: dict[int, list[str]], noticed: dict[tuple[str, str], str]
) -> dict[int, list[str]]:
    """The tests of each condition in the order in which they are run, first the one that `noticed` it."""
    useful = set(noticed.values())

    def rank(test: str, last: str | None) -> tuple[bool, bool]:
        name = as_cell(test.rpartition("/")[2])
        return name != last, name not in useful

    return {
        index: sorted(tests, key=lambda test: rank(test, last))
        for index, tests in reached.items()
        for last in [noticed.get(where(found[index]))]
    }


# the report


def row(condition: Condition, outcome: str | None, tests: int) -> str:
    """A row of the table."""
    reason = EQUIVALENT.get((condition.function, condition.text))
    if outcome is not None:
        verdict = f"`{outcome.rpartition('/')[2]}`"
    elif reason is not None:
        verdict = f"equivalent: {reason}"
    else:
        verdict = f"**SURVIVED** {tests} tests" if tests else "**SURVIVED**: no test comes here"
    return f"| {' | '.join([*where(condition), as_cell(verdict)])} |"


def where(condition: Condition) -> tuple[str, str]:
    """The first two cells of the row of a condition."""
    return as_cell(f"`{condition.module}` `{condition.function}`"), as_cell(f"`{condition.text}`")


def as_cell(text: str) -> str:
    """A text as it stands in a table."""
    return text.replace("|", "\\|").replace("\n", " ")


def report(rows: Sequence[str], failing: set[str]) -> str:
    """The text of the document."""
    survived = sum("**SURVIVED**" in line for line in rows)
    equivalent = sum("| equivalent: " in line for line in rows)
    killed = len(rows) - survived - equivalent
    text = (
        "# Conditions of legality, dropped one at a time\n\n"
        "Written by `make test-mutations` (`tests/mutation.py`, which says how): a row for every condition that makes "
        "a fold\nbe refused, and for every statement that writes provenance, with the first test that fails without "
        "it.\n\n"
        f"{len(rows)} conditions and statements: {killed} noticed, {equivalent} equivalent, {survived} survived.\n"
    )
    if failing:
        text += f"{len(failing)} tests failed before anything was dropped, and were left out.\n"
    return text + "\n| where | condition | dropped, it is noticed by |\n| --- | --- | --- |\n" + "\n".join(rows) + "\n"


def main(print_: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="?", default="", help="conditions whose module, function or text contain this")
    parser.add_argument("--list", action="store_true", help="print the conditions and stop")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        first, *copies = [copy_package(Path(folder) / str(i)) for i in range(PROCESSES + 1)]
        found = conditions(first)
        chosen = [i for i, c in enumerate(found) if options.only in f"{c.module} {c.function} {c.text}"]
        if options.list:
            for i in chosen:
                print_(f"{found[i].module}:{found[i].line} {found[i].function}: {found[i].text}")
            return
        begun = time.monotonic()
        reached, failing = baseline(found, first) if chosen else ({}, set())
        reached = best_first(found, reached, noticed_before(REPORT.read_text() if REPORT.exists() else ""))
        print_(f"{len(found)} conditions; the suite took {time.monotonic() - begun:.0f} s, {len(failing)} tests fail")
        rows = []
        if options.only in "ir/rewriter.py":
            rows.extend(unstamped(copies[0]))
            print_("\n".join(rows))
        for index, outcome in zip(chosen, mutate(found, reached, chosen, copies), strict=True):
            rows.append(row(found[index], outcome, len(reached.get(index, []))))
            print_(rows[-1])
        print_(f"{time.monotonic() - begun:.0f} s")
    if not options.only:
        REPORT.write_text(report(rows, failing))


if __name__ == "__main__":
    main()
