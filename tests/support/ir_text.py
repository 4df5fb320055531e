"""Tests of passes as IR text: `.irc` files, whose format is in docs/testing.md.

A case is run from its text. The text that comes out has to be the expected one; the ONNX models of
both are held against the invariants of `graphs`, and are evaluated in float64.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import unified_diff
from pathlib import Path

import numpy as np
import pytest
from graphs import SIZES, assert_outcome, compiled, unmarked, without_foreign
from irc.frontends.onnx import from_model
from irc.ir.debug_counter import APPLIED
from irc.ir.module import Module
from irc.ir.text.parser import parse
from irc.ir.text.printer import to_text
from irc.ir.verifier import verify
from irc.passes.registry import parse_pipeline
from irc.result import Result, emit
from onnx import ModelProto

TESTS = Path(__file__).parents[1]
HEADER = 'module {ir_version=10, opsets={"": 21}}\n\n'
"""The header of a module that the text leaves out."""
CASE, RUN, RULE, NUMBERS = "// CASE: ", "// RUN: ", "// RULE: ", "// NUMBERS: "
AFTER, UNCHANGED = "// AFTER", "// UNCHANGED"
NOT_TRIED = ("it reads no result of ", "its result is of floats")
"""Beginnings of the reasons of rules that are not tried at an operator."""
SAME = "in ONNX the same model"
"""Stands among the statuses where the module changes and its ONNX model does not."""
UPDATE = os.environ.get("IRC_UPDATE", "")
"""`1` rewrites the expected texts; `source` also the sources, as the importer reads their ONNX
models.
"""

_drawn = re.compile(r"(\w+)\[([\d,]*)\] \[(\+?)\.\.\.\]")
_constant = re.compile(r"(?<=value=)(\w+\[[\d,]*\]) (?:#\w+|(?=[^]]*\.\d{3})\[[^]]{80,}\])")


@dataclass(frozen=True)
class Case:
    """A module, a pipeline, and the text afterwards with the status of every affine.

    `rules` are the rules that apply, in the order of their first application. If the module stays
    as it is, `expected` is None, and `rules` are some that decline. `incomparable` says why the
    numbers are not compared.
    """

    file: Path
    line: int
    name: str
    pipeline: str
    source: str
    expected: str | None
    statuses: tuple[str, ...]
    rules: tuple[str, ...] = ()
    incomparable: str = ""

    def outcome(self) -> str:
        """Return the part of the file that says what comes out, without the rules."""
        text = f"{UNCHANGED}\n" if self.expected is None else f"{AFTER}\n{self.expected}"
        return text + "".join(f"// {status}\n" for status in self.statuses)


def cases(*patterns: str) -> pytest.MarkDecorator:
    """Parametrize a test by the cases of all files that match `patterns`, relative to the tests."""
    files = [file for pattern in patterns for file in sorted(TESTS.glob(pattern))]
    assert files, patterns
    found = [case for file in files for case in read_cases(file)]
    ids = [f"{case.file.stem}: {case.name}" for case in found]
    assert len(set(ids)) == len(ids), "two cases of one name"
    return pytest.mark.parametrize("case", found, ids=ids)


def read_cases(file: Path) -> Iterator[Case]:
    """Yield the cases of a file."""
    head, *blocks = re.split(
        rf"^(?={re.escape(CASE)})", file.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    line = 1 + head.count("\n")
    for block in blocks:
        title, body = block.split("\n", 1)
        source, marker, outcome = re.split(
            rf"^({AFTER}|{UNCHANGED})\n", body, maxsplit=1, flags=re.MULTILINE
        )
        assert not directive(RUN, outcome), (
            f"{file}:{line}: RUN stands in the head of the file or after CASE"
        )
        expected = "".join(each for each in outcome.splitlines(True) if not each.startswith("//"))
        yield Case(
            file, line, title.removeprefix(CASE), directive(RUN, source) or directive(RUN, head),
            "".join(each for each in source.splitlines(True) if not each.startswith((RUN, RULE, NUMBERS))).strip() + "\n",
            None if marker == UNCHANGED else f"{expected.strip()}\n",
            tuple(each.removeprefix("// ") for each in outcome.splitlines() if each.startswith("// ")),
            tuple(directive(RULE, source).split(", ")) if RULE in source else (),
            directive(NUMBERS, source) or directive(NUMBERS, head),
        )  # fmt: skip
        line += block.count("\n")


def directive(prefix: str, text: str) -> str:
    return next(
        (line.removeprefix(prefix) for line in text.splitlines() if line.startswith(prefix)), ""
    )


def check_case(case: Case) -> None:
    """Run a case.

    With `IRC_UPDATE` set, what comes out is written to the file instead of compared.
    """
    module = parse(drawn(case.source)[0], name=str(case.file))
    before = to_text(module, max_elements=64)
    source = None if case.incomparable else emit(module).model
    run = parse_pipeline(case.pipeline)
    attempts: list[tuple[str, str]] = []
    module.debug_counter.trace = lambda _, rule, reason: attempts.append((rule, reason))
    module.debug_counter.log = []  # so edits outside of a step are errors
    run(module)
    module.debug_counter.trace = None
    verify(module)
    after = to_text(module, max_elements=64)
    result = None if case.incomparable else emit(module)
    statuses = refusals(module) if result is None else fates(result)
    if result is not None and after != before and unmarked(result.model) == source:
        statuses.insert(0, SAME)
    expected = None if after == before else elided(after).removeprefix(header(case.source))
    rules = named_rules(case, attempts, is_changed=expected is not None)
    compare(case, replace(case, expected=expected, statuses=tuple(statuses), rules=rules))
    if result is not None and source is not None:
        assert_outcome(
            source,
            result,
            frozen="FreezeInitializers" in case.pipeline,
            refined=True,
            inlined="InlineFunctions" in case.pipeline,
            sizes=SIZES if is_open(without_foreign(source)) else SIZES[:1],
        )
        assert compiled(result.model, run).model == result.model, "a second run finds something"


def named_rules(
    case: Case, attempts: list[tuple[str, str]], *, is_changed: bool
) -> tuple[str, ...]:
    """Return the rules that `case` should name.

    Those that apply stand in the order of their first application. If the module stays as it is,
    the case names one or more that decline.
    """
    applied = tuple(dict.fromkeys(rule for rule, reason in attempts if reason == APPLIED))
    if applied or is_changed:
        return applied
    declined = {rule for rule, reason in attempts if not reason.startswith(NOT_TRIED)}
    named = tuple(rule for rule in case.rules if rule in declined)
    return named or tuple(sorted(declined))


def compare(case: Case, found: Case) -> None:
    """Fail with the difference to the expected text, or write the found one to the file."""
    if UPDATE:
        assert "PYTEST_XDIST_WORKER" not in os.environ, "IRC_UPDATE writes files: run it without -n"
        source = as_imported(case) if UPDATE == "source" and not case.incomparable else case.source
        rewrite(case, replace(found, source=source))
    elif (found.outcome(), found.rules) != (case.outcome(), case.rules):
        lines = [
            [f"{RULE}{', '.join(each.rules)}", *each.outcome().splitlines()]
            for each in (case, found)
        ]
        names = f"{os.path.relpath(case.file, TESTS.parent)}:{case.line} expected", "found"
        diff = unified_diff(*lines, *names, lineterm="", n=100)
        pytest.fail(
            "\n".join([case.name, *diff, "(IRC_UPDATE=1 writes it into the file)"]), pytrace=False
        )


def fates(result: Result) -> list[str]:
    """Return what the fold map says of every affine."""
    return [
        f"%{each['output']}: {each['status']}"
        + (f" ({each['reason']})" if each["reason"] not in (None, "not_attempted") else "")
        for each in result.fold_map.sources
    ]


def refusals(module: Module) -> list[str]:
    """Return the recorded reasons, each once, with the notes on the ways that were tried."""
    lines: dict[str, None] = {}
    for refusal in module.provenance.refusals.values():
        lines[f"refused ({refusal.code}): {refusal.detail}"] = None
        lines |= dict.fromkeys(f"  {note}" for note in refusal.notes)
    return list(lines)


def is_open(model: ModelProto) -> bool:
    """Whether an extent of an input is not known."""
    types = [info.type.tensor_type for info in model.graph.input]
    dims = [dim for each in types for dim in each.shape.dim]
    return not all(each.HasField("shape") for each in types) or not all(
        dim.HasField("dim_value") for dim in dims
    )


def header(text: str) -> str:
    """Return the header of a module with the empty line after it, or nothing."""
    return "".join(text.partition("\n\n")[:2]) if text.startswith("module ") else ""


def elided(text: str) -> str:
    """Return the text without the usual header, and `[...]` for long constants."""
    return _constant.sub(r"\1 [...]", text.removeprefix(HEADER))


def drawn(text: str) -> tuple[str, dict[str, str]]:
    """Return the text with numbers for `[...]` and positive ones for `[+...]`; and the numbers.

    The numbers are between 0.5 and 2 in magnitude, and exact in every floating type.
    """
    rng = np.random.default_rng(0)
    put: dict[str, str] = {}

    def numbers(match: re.Match[str]) -> str:
        dtype, dims, positive = match.groups()
        size = int(np.prod([int(dim) for dim in dims.split(",") if dim]))
        found = (
            rng.integers(8, 32, size)
            / 16
            * (1 if positive else np.where(np.arange(size) % 2, 1, -1))
        )
        literal = f"{dtype}[{dims}] {found.tolist()}"
        put[literal] = match.group()
        return literal

    return _drawn.sub(numbers, text), put


def as_imported(case: Case) -> str:
    """Return the source as the importer reads its ONNX model, unless ONNX has other operators."""
    text, put = drawn(case.source)
    text = to_text(from_model(emit(parse(text)).model), max_elements=1 << 20).removeprefix(HEADER)
    for literal, short in put.items():
        text = text.replace(literal, short)
    return text if text.count(" = ") == case.source.count(" = ") else case.source


def rewrite(case: Case, found: Case) -> None:
    """Put what was found in place of the case in its file."""
    text = case.file.read_text(encoding="utf-8")
    begin = text.index(f"{CASE}{case.name}\n")
    end = text.find(f"\n{CASE}", begin)
    end = len(text) if end < 0 else end
    block = text[begin:end]
    block = block.replace(case.source.strip(), found.source.strip(), 1)
    block = re.sub(rf"^{RULE}.*\n", "", block, flags=re.MULTILINE)
    if found.rules:
        title = f"{CASE}{case.name}\n"
        block = block.replace(title, f"{title}{RULE}{', '.join(found.rules)}\n", 1)
    marker = re.search(rf"^({AFTER}|{UNCHANGED})\n", block, flags=re.MULTILINE)
    assert marker is not None
    case.file.write_text(
        text[:begin] + block[: marker.start()] + found.outcome() + text[end:], encoding="utf-8"
    )
