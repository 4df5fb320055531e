"""Does the checker refuse each wrong model of a compiler that lacks a condition? `make
test-certificate-mutants`.

The mutants are those of `mutations`: each lacks one condition of legality. The models are the rule
cases, those of `.irc` files, and those that the tests compile which noticed a mutant last time, by
docs/mutations.md. A run with probes says which conditions hold in which models. Each mutant
compiles the models in which its condition holds, and certifies what it makes of them. Results that
differ from those of the compiler go to processes with the package as it is:

- The result is wrong where it differs from its source in float64, or in onnxruntime without
  optimizations by more than rounding can do, or where the source is valid and the result is not.
- The checker has to refuse the certificate of a wrong result.

Models whose own compile is judged wrong, by a tolerance that does not fit them, are left out.
"""

from __future__ import annotations

import argparse
import builtins
import json
import multiprocessing
import os
import pickle
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from mutations.conditions import Condition, conditions, place, probed
from mutations.page import REPORT, as_cell, noticed_before, short
from mutations.runs import ROOT, copy_package
from onnx import ModelProto

TESTS = ROOT / "tests"
MAX_MODELS = 12
"""Most models that are taken from one test."""
MAX_BYTES = 1 << 17
TIMEOUT = 900.0
MEMORY = 8 << 30
"""Bytes that a process may take: a mutant may lack the condition that bounds them."""
PROCESSES = 2


@dataclass(frozen=True)
class Sample:
    """A model, and the pipeline that compiles it: "" is the default."""

    name: str
    passes: str
    model: bytes


@dataclass(frozen=True)
class Verdict:
    """What a result is, and whether the checker accepts its certificate.

    `wrong` says what is, None if nothing is.
    """

    name: str
    wrong: str | None
    judged: bool
    accepted: bool


# in processes of their own


def in_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns in a forked process.

    None where it does not end, ends the process or exceeds MEMORY.
    """
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        process = context.Process(target=_write, args=(out, function, arguments))
        process.start()
        process.join(TIMEOUT)
        if process.is_alive():
            process.kill()
            process.join()
        return pickle.loads(out.read_bytes()) if out.exists() else None


def _write(out: Path, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    quiet = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(quiet, stream)
    out.with_suffix(".part").write_bytes(pickle.dumps(function(*arguments)))
    out.with_suffix(".part").rename(out)
    os._exit(0)


def use(package: Path) -> None:
    """Let this process import irc from the folder of `package`, and the helpers of the tests."""
    sys.dont_write_bytecode = True
    sys.path[:0] = [str(package.parent), str(TESTS), str(TESTS / "support")]


# models


def rule_cases(package: Path) -> list[Sample]:
    """The cases of tests/support/scale_axis, in float64 and float32, and those of `.irc` files."""
    use(package)
    import numpy as np
    from ir_text import drawn, read_cases
    from irc.ir.text.parser import parse
    from irc.result import emit
    from scale_axis import CASES

    sys.path.insert(0, str(TESTS / "passes"))
    from test_refusals import ROWS_AHEAD, ROWS_BACK

    rows = [*((case, f"scale_axis: {case.id}") for case in CASES)]
    rows += [(case, f"refusals: {case.id}") for _, case in (*ROWS_BACK, *ROWS_AHEAD)]
    found = []
    for case, name in rows:
        found.append(Sample(name, case.passes or "", case.model().SerializeToString()))
        if case.dtype == np.float64:
            found.append(
                Sample(
                    f"{name}, float32",
                    case.passes or "",
                    case.model(np.dtype(np.float32)).SerializeToString(),
                )
            )
    for file in sorted(TESTS.glob("passes/**/*.irc")):
        for case in read_cases(file):
            if not case.incomparable:
                model = emit(parse(drawn(case.source)[0], name=str(file))).model
                passes = (
                    ""
                    if "Freeze" in case.pipeline or "InlineFunctions" in case.pipeline
                    else case.pipeline
                )
                found.append(Sample(f"{file.stem}: {case.name}", passes, model.SerializeToString()))
    return found


class Listener:
    """A plugin that keeps the models that chosen tests compile."""

    def __init__(self, chosen: set[str]) -> None:
        self.chosen = chosen
        self.test = ""
        self.depth = 0
        self.found: dict[tuple[str, bytes], Sample] = {}
        self.counted: Counter[str] = Counter()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if as_cell(short(item.nodeid)) in self.chosen]

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self.test = short(item.nodeid)

    def listen(self) -> None:
        """Note the module that each pipeline is run on, unless another pipeline runs it."""
        from irc.passes.infra import Sequential
        from irc.result import emit

        run = Sequential.__call__

        def noting(sequence: Sequential, module: Any, ctx: Any = None) -> Any:
            if not self.depth and self.counted[self.test] < MAX_MODELS:
                try:
                    model = (
                        module.source
                        if isinstance(module.source, ModelProto)
                        else emit(module).model
                    )
                    self.note(model.SerializeToString(), sequence.spec)
                except Exception:  # a module that a test has broken
                    pass
            self.depth += 1
            try:
                return run(sequence, module, ctx)
            finally:
                self.depth -= 1

        Sequential.__call__ = noting  # type: ignore[method-assign]

    def note(self, model: bytes, passes: str) -> None:
        """Keep a model."""
        if (passes, model) not in self.found and len(model) <= MAX_BYTES:
            self.counted[self.test] += 1
            self.found[passes, model] = Sample(self.test, passes, model)


def models_of_tests(package: Path, chosen: set[str]) -> list[Sample]:
    """The models that tests compile, which are named by file and test."""
    use(package)
    os.chdir(ROOT)
    files = sorted(
        {str(path) for name in chosen if (path := TESTS / name.partition("::")[0]).is_file()}
    )
    listener = Listener(chosen)
    listener.listen()
    pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *files], plugins=[listener])
    return list(listener.found.values())


# compiles


def compiled(sample: Sample) -> tuple[bytes, str] | None:
    """The result of a compile and its certificate, None where there is none."""
    from irc.compiler import compile as compile_model
    from irc.frontends import load

    model = ModelProto.FromString(sample.model)
    try:
        result = compile_model(load(model), sample.passes or None, certificate=True)
        return result.model.SerializeToString(deterministic=True), json.dumps(result.certificate())
    except Exception:  # a mutant may fail in any way
        return None


def probe(
    package: Path, samples: Sequence[Sample]
) -> tuple[dict[int, list[int]], list[bytes | None]]:
    """The models in which each condition holds, and the results."""
    use(package)
    held: set[int] = set()

    def note(index: int, refused: bool, outcome: Any) -> Any:
        if bool(outcome) == refused:
            held.add(index)
        return outcome

    builtins._irc_probe_ = note  # type: ignore[attr-defined]
    reached: dict[int, list[int]] = {}
    results = []
    for i, sample in enumerate(samples):
        held.clear()
        found = compiled(sample)
        results.append(None if found is None else found[0])
        for index in held:
            reached.setdefault(index, []).append(i)
    return reached, results


def changed(
    package: Path, samples: Sequence[Sample], places: Sequence[int], results: Sequence[bytes | None]
) -> list[tuple[int, bytes, str]]:
    """The results of a mutant that differ from those of the compiler, with their certificates."""
    use(package)
    made = ((i, compiled(samples[i])) for i in places)
    return [(i, *found) for i, found in made if found is not None and found[0] != results[i]]


# judging


def fault(source: ModelProto, result: ModelProto) -> tuple[str | None, bool]:
    """What is wrong with a result, None if nothing is, and whether its numbers were compared."""
    from graphs import is_valid
    from oracle import (
        assert_same_function,
        assert_same_in_runtime,
        has_computed_divisor,
        runs_exactly,
    )

    if is_valid(source) is not None:
        return None, False
    if is_valid(result) is not None:
        return "invalid", True
    judged = False
    checks = [assert_same_function, assert_same_in_runtime]
    if has_computed_divisor(source) and not runs_exactly(source):
        checks.remove(assert_same_function)  # there is no bound on what roundings do
    for check in checks:
        try:
            check(source, result)
            judged = True
        except AssertionError:
            return (
                "other results"
                if check is assert_same_function
                else "other results in onnxruntime",
                True,
            )
        except pytest.skip.Exception:
            pass
        except Exception as error:
            if _evaluates(check, source):
                return f"fails: {type(error).__name__}", True
    return None, judged


def _evaluates(check: Callable[..., None], source: ModelProto) -> bool:
    """Whether a source can be compared with a copy of itself that is no equal message."""
    copy = ModelProto.FromString(source.SerializeToString())
    copy.producer_name += "'"
    try:
        check(source, copy)
    except (Exception, pytest.skip.Exception):
        return False
    return True


def judge(package: Path, sample: Sample, content: bytes, document: str) -> Verdict:
    """Judge a result with the package as it is."""
    source, result = ModelProto.FromString(sample.model), ModelProto.FromString(content)
    wrong, judged = fault(source, result)
    return Verdict(sample.name, wrong, judged, is_accepted(package, sample, content, document))


def is_accepted(package: Path, sample: Sample, content: bytes, document: str) -> bool:
    """Whether the checker accepts a certificate."""
    use(package)
    from irc import Rejected, certify

    try:
        certify(
            ModelProto.FromString(sample.model),
            ModelProto.FromString(content),
            json.loads(document),
        )
    except Rejected:
        return False
    return True


def is_sound(package: Path, sample: Sample, result: bytes | None) -> bool:
    """Whether a result of the compiler as it is is not judged wrong."""
    return (
        result is not None
        and fault(ModelProto.FromString(sample.model), ModelProto.FromString(result))[0] is None
    )


def all_of(
    function: Callable[..., Any], package: Path, rows: Sequence[tuple[Any, ...]]
) -> list[Any]:
    """What a function returns for each row, None for a row whose process crashes: runtimes may."""
    made = in_process(_each, function, package, rows)
    if made is not None or len(rows) <= 1:
        return made or [None] * len(rows)
    half = len(rows) // 2
    return [*all_of(function, package, rows[:half]), *all_of(function, package, rows[half:])]


def _each(
    function: Callable[..., Any], package: Path, rows: Sequence[tuple[Any, ...]]
) -> list[Any]:
    use(package)
    return [function(package, *row) for row in rows]


def main(print_: Callable[[str], None] = print) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "only", nargs="?", default="", help="conditions whose module, function or text contain this"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        plain, first, *copies = [copy_package(Path(folder) / str(i)) for i in range(PROCESSES + 2)]
        found = conditions(plain)
        chosen = [i for i, c in enumerate(found) if options.only in place(c)]
        for module in {condition.module for condition in found}:
            inside = [
                (index, condition)
                for index, condition in enumerate(found)
                if condition.module == module
            ]
            (first / module).write_text(probed((first / module).read_text(), inside))
        begun = time.monotonic()
        noticed = set(noticed_before(REPORT.read_text()).values())
        samples = [
            *(in_process(rule_cases, plain) or []),
            *(in_process(models_of_tests, plain, noticed) or []),
        ]
        samples = list({(each.passes, each.model): each for each in samples}.values())
        print_(f"{len(samples)} models; {time.monotonic() - begun:.0f} s")
        outcomes = _outcomes(samples, plain, first, copies, found, chosen, print_)
    wrong = [each for verdicts in outcomes for each in verdicts if each.wrong]
    accepted = [each for each in wrong if each.accepted]
    total = sum(map(len, outcomes))
    with_wrong = sum(any(each.wrong for each in verdicts) for verdicts in outcomes)
    print_(
        f"{len(chosen)} mutants, {len(samples)} models, {total} results that differ: {len(wrong)}"
        f" wrong, of {with_wrong} mutants, {len(accepted)} of them accepted;"
        f" {time.monotonic() - begun:.0f} s"
    )
    return 1 if accepted or not total else 0


def _outcomes(
    samples: Sequence[Sample],
    plain: Path,
    first: Path,
    copies: Sequence[Path],
    found: Sequence[Condition],
    chosen: Sequence[int],
    print_: Callable[[str], None],
) -> list[list[Verdict]]:
    probed_ = in_process(probe, first, samples)
    if probed_ is None:
        sys.exit("the models cannot be compiled")
    reached, results = probed_
    packages: SimpleQueue[Path] = SimpleQueue()
    for package in copies:
        packages.put(package)
    with ThreadPoolExecutor(len(copies)) as pool:
        rows = list(zip(samples, results, strict=True))
        parts = [rows[i : i + 200] for i in range(0, len(rows), 200)]
        fit = [
            each
            for part in pool.map(lambda part: all_of(is_sound, plain, part), parts)
            for each in part
        ]
        print_(
            f"{sum(map(bool, fit))} of them can be judged; {len(reached)} of {len(found)}"
            " conditions hold in one"
        )

        def outcome(index: int) -> list[Verdict]:
            condition, package = found[index], packages.get()
            path = package / condition.module
            source = path.read_text()
            try:
                path.write_text(condition.dropped(source))
                places = [i for i in reached.get(index, ()) if fit[i]]
                made = in_process(changed, package, samples, places, results) if places else []
            finally:
                path.write_text(source)
                packages.put(package)
            rows = [(samples[i], *rest) for i, *rest in made or ()]
            verdicts = all_of(judge, plain, rows) if rows else []
            for i, row in enumerate(rows):
                if verdicts[i] is None:
                    is_accepted_ = bool(in_process(is_accepted, plain, *row))
                    verdicts[i] = Verdict(row[0].name, "crashes", True, is_accepted_)
            return verdicts

        made = []
        for index, verdicts in zip(chosen, pool.map(outcome, chosen), strict=True):
            made.append(verdicts)
            print_(_row(found[index], len(reached.get(index, ())), verdicts))
            for each in verdicts:
                if each.wrong and each.accepted:
                    print_(f"    ACCEPTED {each.name}: {each.wrong}")
    return made


def _row(condition: Condition, held: int, verdicts: Sequence[Verdict]) -> str:
    counted = {
        "models": held,
        "differ": len(verdicts),
        "wrong": sum(each.wrong is not None for each in verdicts),
        "right and refused": sum(each.wrong is None and not each.accepted for each in verdicts),
        "not compared": sum(not each.judged for each in verdicts),
    }
    text = ", ".join(f"{number} {name}" for name, number in counted.items() if number)
    return f"{condition.module} {condition.function}: {condition.text[:80]}: {text or 'no model'}"


if __name__ == "__main__":
    sys.exit(main())
