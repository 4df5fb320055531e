"""Write the page of the study: docs/study.md."""

from __future__ import annotations

import datetime
import json
import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx

import tools
from study import judge
from study.cases import SUITES, StudyCase
from study.run import METADATA, Fault, Record, Row, missed

FAILURES = ("error", "crash", "timeout", "memory")
COLUMNS = (
    *FAILURES,
    "invalid",
    "wrong",
    "imprecise",
    "undecided",
    "interface",
    "metadata",
    "missed",
)
SUITE_NAMES = {
    "rules": "rule cases",
    "structures": "structural cases",
    "light": "light models of onnx",
    "real": "real models",
    "open": "exports with open dimensions",
}
COUNTED = ("YOLO", "LSTM")
"""Networks of the open exports whose operators the page counts."""

MANIFEST = Path(__file__).parents[1] / "cleanup_models.json"
SHOWN = 4
"""Names of models that a line of a table gives."""

TEXT_LIMIT = 6000
"""Characters of a minimal model on the page."""


def page(
    rows: Sequence[Row],
    faults: Sequence[Fault],
    versions: Mapping[str, str],
    options: Any,
    left: Sequence[StudyCase] = (),
    reasons: Mapping[tuple[str, str], str] = MappingProxyType({}),
) -> str:
    """Return the page in Markdown; `reasons` are irc's for the affines that it leaves, by model."""
    names = list(versions)
    misses = {id(row): missed(row) for row in rows}
    parts = [
        head(rows, versions),
        *results(rows, names, misses),
        rules(options),
        limits(rows, options, left),
        wrong(rows, faults, names),
        grouped(
            "Crashes, timeouts, and memory",
            rows,
            names,
            lambda record: failures(record, FAILURES[1:]),
        ),
        grouped(
            "Errors",
            rows,
            names,
            lambda record: failures(record, FAILURES[:1]),
            "The tool ends with an exception. Not counted are models that onnx.checker refuses, and"
            " for onnxruntime those that it refuses without optimizations, too.",
            keep=lambda row, tool: not is_excused(row.records[tool], row, tool),
        ),
        grouped(
            "Invalid results",
            rows,
            names,
            lambda record: [record.verdict.invalid] if record.verdict.invalid else [],
            "onnx.checker (`full_check`) or onnxruntime without optimizations accepts the source"
            " and refuses the result.",
        ),
        grouped(
            "Imprecise or undecided",
            rows,
            names,
            lambda record: (
                [f"{record.verdict.numbers}: {record.verdict.detail}"]
                if record.verdict.numbers in ("imprecise", "undecided")
                else []
            ),
            f"Imprecise: beyond the bound, by less than {judge.IMPRECISE:g} of the largest"
            " element. Undecided: onnxruntime and the evaluator do not agree on the result.",
        ),
        grouped(
            "Changed interfaces",
            rows,
            names,
            lambda record: (
                [] if record.failure else [text.split(":")[0] for text in record.verdict.interface]
            ),
            "Inputs, outputs, opsets and metadata that are not those of the source. An output may"
            " have a more precise shape.",
        ),
        folds(rows, names, misses),
        own_misses(rows, misses, reasons),
        script() if faults else "",
    ]
    return "\n\n".join(wrapped(part.strip()) for part in parts if part) + "\n"


def wrapped(text: str) -> str:
    """Return text whose paragraphs and list items are filled; tables, code and headings stay."""
    lines, code = [], False
    for line in text.splitlines():
        code ^= line.startswith("```")
        plain_text = not code and line[:1] not in ("|", "#", "`", " ", "")
        kept = textwrap.wrap(
            line, 118, subsequent_indent="  " * line.startswith("- "), break_long_words=False
        )
        lines += kept if plain_text and len(line) > 118 else [line]
    return "\n".join(lines)


def script() -> str:
    """Return the section with the program that shows a wrong result."""
    text = (Path(__file__).parents[1] / "see.py").read_text()
    return f"## see.py\n\n<!-- not run: needs the tools of the study -->\n\n```python\n{text}```"


def table(
    columns: Sequence[str], lines: Iterable[Sequence[Any]], *, numbers: Sequence[str] = ()
) -> str:
    """Return a table in Markdown; the columns of `numbers` are to the right."""
    rule = ["---:" if column in numbers else "---" for column in columns]
    rows = [columns, rule, *([cell(item) for item in line] for line in lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def cell(item: Any) -> str:
    """Return the text of a cell."""
    return str(item).replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def today() -> str:
    """Return the date."""
    return datetime.date.today().isoformat()


def head(rows: Sequence[Row], versions: Mapping[str, str]) -> str:
    """Return the head of the page."""
    packages = {tool.split(" ")[0]: version.split("+")[0] for tool, version in versions.items()}
    listed = ", ".join(f"{name} {version}" for name, version in packages.items())
    return f"""\
---
hide: [toc] # its tables are wide
---

# Study of the tools

What irc and other tools make of {len(rows)} models: crashes, invalid and wrong results, changed interfaces, and
missed folds.

```sh
make study
```

Written by this command on {today()}. {listed}; judged with onnx {onnx.__version__} and numpy {np.__version__}. Every
finding below is one of a version, on a model, and where numbers are concerned on an input. None says more than that.
The tools have options and other uses that were not looked at: each ran with its defaults."""


# the results


def counts(record: Record, row: Row, misses: Mapping[str, Any], tool: str) -> list[str]:
    """Return the columns in which a record counts."""
    verdict = record.verdict
    if record.failure:
        return [] if is_excused(record, row, tool) else [record.failure]
    found = ["invalid"] if verdict.invalid else []
    found += [verdict.numbers] if verdict.numbers in COLUMNS else []
    kinds = {text.split(":")[0] in METADATA for text in verdict.interface}
    found += [("interface", "metadata")[kind] for kind in sorted(kinds)]
    found += ["missed"] if tool in misses else []
    return found


def is_excused(record: Record, row: Row, tool: str) -> bool:
    """Return whether an error is no fault: an invalid source, or no kernel of onnxruntime."""
    lacks = tool.startswith("onnxruntime") and not row.source.get("loads")
    return record.failure == "error" and (lacks or not row.source.get("valid"))


def results(
    rows: Sequence[Row], names: Sequence[str], misses: Mapping[int, Mapping[str, Any]]
) -> list[str]:
    """Return the tables of results, one a suite."""
    parts = ["## Results"]
    for suite in SUITES:
        chosen = [row for row in rows if row.suite == suite]
        if not chosen:
            continue
        tally = {tool: Counter[str]() for tool in names}
        for row in chosen:
            for tool in names:
                tally[tool].update(counts(row.records[tool], row, misses[id(row)], tool))
                verdict = row.records[tool].verdict
                compared = not row.records[tool].failure and verdict.numbers != "not compared"
                tally[tool]["compared"] += compared
        columns = ("compared", *COLUMNS)
        lines = [(tool, *(tally[tool][column] or "0" for column in columns)) for tool in names]
        parts.append(f"{len(chosen)} {SUITE_NAMES[suite]}:")
        parts.append(table(("tool", *columns), lines, numbers=columns))
        if suite == "open":
            parts += open_operators(chosen, names)
    parts.append("""\
- A model counts once in a column, and may count in several. The sections below list them.
- *Compared* includes results that are the source itself. [Errors](#errors) has the errors that are not counted.
- *Metadata*: metadata_props or doc strings lost, opset imports added. *Interface*: [what else](#changed-interfaces)
  changed for a caller.""")
    return parts


def open_operators(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """Return the table of operators that the tools leave in exports with open dimensions."""
    chosen = [row for row in rows if row.name.split(",")[0] in COUNTED]
    lines = [
        (row.name, *(operators_left(row.records[tool]) for tool in names))
        for row in sorted(chosen, key=lambda row: row.name)
    ]
    text = "Operators left, without Constant ([all exports](benchmarks.md#exports-with-open-dimensions)):"
    return [text, table(("network", *names), lines, numbers=names)] if lines else []


def operators_left(record: Record) -> str:
    """Return the number of operators of a result, or the failure."""
    return record.failure or str(record.verdict.size)


def rules(options: Any) -> str:
    """Return the section on the judge."""
    return f"""\
## The judge

`benchmarks/study/judge.py` uses numpy, onnx, onnxruntime and the float64 evaluator of `tests/support`, not irc.

- The reference is the source in float64. Rounding is measured there, element by element: the source is evaluated
  {judge.SAMPLES} times more, with every float input, constant and intermediate result moved by a random part of
  the unit roundoff of the model's narrowest float type. An element may be off by {judge.MARGIN:g} times the
  largest move, or the typical move of its tensor, and by {judge.MARGIN:g} roundoffs of its own.
- Models with step functions (rounding, comparisons, casts, ...) are also moved by {judge.STEP_NOISE:g} roundoffs;
  there an element may be off by {judge.STEP_MARGIN:g} times that move.
- onnxruntime without optimizations runs every source and every result twice, on one thread. A source whose runs differ
  in a bit is not compared, and a result whose runs differ is *undecided*.
- onnxruntime without optimizations runs the source. Where it is not within the bound itself, nothing is judged;
  otherwise twice its own error is added to the bound.
- *Wrong*: onnxruntime without optimizations computes the result beyond the bound, and so does the float64 evaluator.
  Where only one of them can run the result, the text says so. A result of another shape, or infinite where the source
  is finite, is wrong, too.
- A source that onnxruntime refuses is judged by the evaluator alone if all that is missing is a kernel, else not at
  all.
- A result that states a lower accuracy itself (MatMulNBits with accuracy_level 4, which computes with int8) is
  *imprecise*, however far off it is.
- Inputs: {", ".join(judge.KINDS)}; where extents are open, several; where a caller may override initializers,
  other values of them. Elements that are not finite in the source are not compared.
- *Missed*: the result of another tool is right, has fewer affine operators ({", ".join(sorted(judge.AFFINES))})
  and no more operators in all. onnxruntime's extended level does not count as another tool: it fuses into operators
  that are not ONNX's.
- Each call ran in a process of its own, with {options.timeout:g} s and {options.memory} MiB of data; small models in
  groups, and alone again where one failed."""


def limits(rows: Sequence[Row], options: Any, left: Sequence[StudyCase]) -> str:
    """Return the section on what the study does not cover."""
    reasons = Counter[str]()
    examples: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        if row.source["excluded"]:
            reason = plain(row.source["excluded"])
            reasons[reason] += 1
            examples[reason].append(row.name)
    lone = sum(not row.source.get("witness", True) for row in rows if not row.source["excluded"])
    lines = [(count, reason, named(examples[reason])) for reason, count in reasons.most_common()]
    text = f"""\
## Not covered

- The rule cases come from the tests of irc, so that irc was developed with them, and the other tools were not. They
  ask for folds of scales and shifts more than for anything else.
- Options of the tools, other execution providers, training, models above {options.limit} MiB, external data.
- {lone} models run in the float64 evaluator only, since onnxruntime has no kernel for them.
- Some wrong results may stay unseen: inputs are few, and the bound is {judge.MARGIN:g} roundings wide."""
    if not any(row.suite == "real" for row in rows):
        text += "\n- Real models: none ran in this study."
    elif options.models is not None:
        at_hand = {path.stem: path.stat().st_size for path in options.models.rglob("*.onnx")}
        manifest = [entry["name"] for entry in json.loads(MANIFEST.read_text())]
        absent = [name for name in manifest if name not in at_hand]
        large = [name for name in manifest if at_hand.get(name, 0) > options.limit << 20]
        text += (
            f"\n- Of the {len(manifest)} real models of `{MANIFEST.name}`, {len(absent)} could not"
            " be fetched: "
        )
        text += f"{named(absent) or 'none'}. Too large are {len(large)}: {named(large) or 'none'}."
    for suite in SUITES:
        if names := [case.name for case in left if case.suite == suite]:
            text += (
                f"\n- {len(names)} {SUITE_NAMES[suite]} were not run for lack of time:"
                f" {named(names)}."
            )
    return f"{text}\n\nNumbers were not compared for:\n\n" + table(
        ("models", "reason", "such as"), lines, numbers=("models",)
    )


# the findings


def plain(text: str) -> str:
    """Return a message without paths, names and numbers, by which messages are grouped."""
    text = re.sub(r"/\S+/\S+", "FILE", text)
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "'...'", text)
    text = re.sub(r"\([^()]*node name: [^()]*\)", "", text)
    return re.sub(r"-?\d[\d.e+-]*", "N", text)[:140].strip()


def named(names: Sequence[str]) -> str:
    """Return the first names of a list."""
    more = len(names) - SHOWN
    return "; ".join(names[:SHOWN]) + (f"; {more} more" if more > 0 else "")


def failures(record: Record, kinds: Sequence[str]) -> list[str]:
    """Return the failure of a record, if it is of these kinds."""
    return [f"{record.failure}: {record.message}"] if record.failure in kinds else []


def grouped(
    title: str,
    rows: Sequence[Row],
    names: Sequence[str],
    findings: Callable[[Record], Sequence[str]],
    text: str = "",
    keep: Callable[[Row, str], bool] = lambda row, tool: True,
) -> str:
    """Return a section with a table of findings by tool and message."""
    groups: dict[tuple[str, str], tuple[str, list[str]]] = {}
    for row in rows:
        for tool in names:
            for finding in dict.fromkeys(findings(row.records[tool]) if keep(row, tool) else ()):
                groups.setdefault((tool, plain(finding)), (finding, []))[1].append(row.name)
    lines = [
        (tool, len(cases), re.sub(r"/tmp/\S+/", "", first)[:200], named(cases))
        for (tool, _), (first, cases) in sorted(
            groups.items(), key=lambda item: (names.index(item[0][0]), -len(item[1][1]))
        )
    ]
    found = table(
        ("tool", "models", "the first one's message", "models such as"), lines, numbers=("models",)
    )
    return f"## {title}\n\n{text}\n\n{found if lines else 'None.'}".replace("\n\n\n", "\n")


def wrong(rows: Sequence[Row], faults: Sequence[Fault], names: Sequence[str]) -> str:
    """Return the section of wrong results, with a minimal model for each tool."""
    groups: dict[tuple[str, str], list[Fault]] = {}
    for fault in faults:
        groups.setdefault((fault.tool, fault.signature), []).append(fault)
    clean = [tool for tool in names if not any(fault.tool == tool for fault in faults)]
    parts = [
        "## Wrong results",
        (
            "Each model below was reduced from a case: operators, attributes and digits were"
            " dropped while the tool stayed wrong. Cases that reduce to the same operators,"
            " attributes and types stand together: one cause may stand in several places, and two"
            " causes in one."
        ),
    ]
    if clean:
        parts.append(
            f"Not wrong on any model of this study: {', '.join(clean)}. This says nothing of other"
            " models."
        )
    if not groups:
        return "\n\n".join(parts)
    parts.append(
        "To see one, write it to `case.txt`, save [see.py](#seepy) beside it, and run the command"
        " above the model. The command needs the tool, onnx, numpy and onnxruntime."
    )
    number = 0
    for tool in names:
        chosen = sorted(
            (key for key in groups if key[0] == tool), key=lambda key: (-len(groups[key]), key[1])
        )
        if chosen:
            parts.append(
                f"### {tool}: {len([fault for fault in faults if fault.tool == tool])} models"
            )
        for key in chosen:
            number += 1
            parts += case_text(number, groups[key])
    return "\n\n".join(parts)


def case_text(number: int, faults: Sequence[Fault]) -> list[str]:
    """Return the text of a minimal model, and how to see it."""
    fault = min(faults, key=lambda fault: (not fault.text, len(fault.text)))
    kind, _, extents_text = fault.stimulus.partition(",")
    extents = re.findall(r"\d+", extents_text)
    title = f"#### {number}. {' '.join(dict.fromkeys(fault.operators)) or 'no operator'}"
    cases = cell(named([fault.case for fault in faults]))
    text = (
        f"From {len(faults)} model{'s' * (len(faults) > 1)}: {cases}. Inputs {fault.stimulus}:"
        f" {cell(fault.detail)}."
    )
    if not fault.text:
        return [title, f"{text} The model is another one once it is ONNX text."]
    if len(fault.text) > TEXT_LIMIT:
        return [title, f"{text} Too large for this page; `--json` has it."]
    command = (
        f"python see.py {fault.tool.replace(' ', '-')} case.txt {kind} {' '.join(extents)}".rstrip()
    )
    return [title, text, f"```text\n{command}\n```", f"```onnx\n{fault.text.strip()}\n```"]


# missed folds


def folds(
    rows: Sequence[Row], names: Sequence[str], misses: Mapping[int, Mapping[str, Any]]
) -> str:
    """Return the section of missed folds."""
    left = {tool: Counter[str]() for tool in names}
    by = {tool: Counter[str]() for tool in names}
    cases: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in rows:
        for tool, (kinds, best) in misses[id(row)].items():
            left[tool].update(kinds)
            by[tool][best] += 1
            cases[tool, best].append(row.name)
    kinds = sorted(judge.AFFINES, key=lambda kind: -sum(left[tool][kind] for tool in names))
    kinds = [kind for kind in kinds if any(left[tool][kind] for tool in names)]
    parts = [
        "## Missed folds",
        (
            "Operators that a tool leaves, and that a right result of another tool lacks; the best"
            " right result counts."
        ),
        table(
            ("tool", *kinds),
            [(tool, *(left[tool][kind] for kind in kinds)) for tool in names],
            numbers=kinds,
        ),
        "Whose result is better, in how many models:",
        table(
            ("tool", "models", "the better result is of", "such as"),
            [
                (tool, count, best, named(cases[tool, best]))
                for tool in names
                for best, count in by[tool].most_common()
            ],
            numbers=("models",),
        ),
    ]
    return "\n\n".join(parts)


def own_misses(
    rows: Sequence[Row],
    misses: Mapping[int, Mapping[str, Any]],
    reasons: Mapping[tuple[str, str], str],
) -> str:
    """Return the section of the folds that irc misses, by the reasons of its fold map."""
    groups: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for row in rows:
        if tools.OWN in misses[id(row)]:
            kinds, best = misses[id(row)][tools.OWN]
            left = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
            groups[best, left, reasons.get((row.suite, row.name), "")].append(row.name)
    if not groups:
        return ""
    lines = [
        (len(names), left, reason or "it names no affine", best, "; ".join(names))
        for (best, left, reason), names in sorted(
            groups.items(), key=lambda item: (-len(item[1]), item[0])
        )
    ]
    return (
        "### What irc leaves\n\nThe reasons are those of its fold map: [the codes](reasons.md)."
        " Where it names no affine, the operators that are left are no scale and shift of a layer,"
        " or another tool writes several operators as one.\n\n"
        + table(
            ("models", "operators", "reasons", "the better result is of", "all models"),
            lines,
            numbers=("models",),
        )
    )
