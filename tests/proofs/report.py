"""docs/proofs.md, made of the rules and of what was found about them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .inventory import AFFINES, EXPRESSIONS, NOT_PROVED, Entry, entries
from .models import decoded
from .operators import Op
from .statement import Statement, statements

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_name("results.json")
REPORT = ROOT / "docs" / "proofs.md"

HEAD = """# The identities of the rules, proved

```sh
make proofs                              # all rules
make proofs LINES="rectified_channels"   # one
```

Written by `make proofs` (`tests/proofs`): the identity that each rule applies, as it stands in one line beside the
rule, and its proof by [z3](https://github.com/Z3Prover/z3) for all values of its variables.

Beside `rectified_channels`, the rule of Relu, LeakyRelu, PRelu and Abs, stands

`@states("s * op(x) + t == op(s * x + t) if s >= 0 and t == 0")`

- A line is a Python expression. It is evaluated three times: on terms of z3, which proves it; on numbers; and on values
  of an ONNX model, on which the rule is tried.
- *Proved*: wherever the left side has a value and the conditions hold, the right side has the same value.
- *Wrong without*: numbers for which all other conditions hold, and the two sides differ. A test gives irc the left side
  with these numbers as a model, and sees that the rule leaves it alone (`tests/proofs/test_proofs.py`).
- *Elements*: reals; floats are IEEE 754 of 16 bits with NaN, infinities and rounding, where 0 and -0 are equal;
  integers have 8 bits and wrap; labels stand for elements of any type that are only moved.
- Casts: what a cast makes of a number depends on the number alone. So the cast of a widened number is taken of the
  narrow one: an integer of b bits is exact in b significant bits, and a float in a format with as many significant bits
  and exponents. The rest, rounding, truncation and wrapping, is z3's.
- A line is proved for the ranks and extents that its row names, and for all numbers. Lines on single elements hold for
  elements of tensors of any rank.

Not part of the lines: a folded constant is rounded once to its type, and is refused where it overflows, cancels or
leaves the normal range (`passes/affine/rules/checks.py`); who else reads a value; and whether a shape is known.
"""


def render(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page."""
    rules = entries()
    proved = [each for each in rules if is_proved(each, results)]
    found = sum(len(results[each.name]["counterexamples"]) for each in proved)
    lines = [HEAD, f"**{len(proved)} of {len(rules)} rules proved, {found} counterexamples.**", ""]
    for group in (AFFINES, EXPRESSIONS):
        lines += [
            f"## {group}",
            "",
            "| rule | identity | proved for | wrong without |",
            "| --- | --- | --- | --- |",
        ]
        lines += [row(each, results[each.name]) for each in proved if each.group == group]
        lines.append("")
    missing = [each for each in rules if each not in proved]
    if missing:
        lines += ["## Not proved", "", "| rule | reason |", "| --- | --- |"]
        lines += [
            f"| `{each.name}` | {NOT_PROVED.get(each.name, 'no proof was found')} |"
            for each in missing
        ]
        lines.append("")
    return "\n".join(lines)


def is_proved(entry: Entry, results: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether the line of a rule, as it is now, was proved."""
    found = results.get(entry.name)
    return (
        bool(entry.line)
        and found is not None
        and found["line"] == entry.line
        and entry.name not in NOT_PROVED
    )


def row(entry: Entry, found: Mapping[str, Any]) -> str:
    """Return the row of a rule."""
    lines = statements(entry.line)
    cases = [
        f"{code(each['dropped'])}: {example(each, lines[each['line']])}"
        for each in found["counterexamples"]
    ]
    number, identities = found["proved"], "<br>".join(code(str(each)) for each in lines)
    scope = f"{', '.join(found['kinds'])}; {number} {'case' if number == 1 else 'cases'}"
    scope += f": {found['size']}" if found["size"] else ""
    return (
        f"| `{entry.name}`<br>{entry.module} | {identities} | {scope} |"
        f" {'<br>'.join(cases) or '–'} |"
    )


def code(text: str) -> str:
    """Return a code span that a table may hold."""
    return f"`{text}`".replace("|", "\\|")


def example(found: Mapping[str, Any], statement: Statement) -> str:
    """Return the values of a counterexample."""
    instance, numbers = decoded(found)
    shown = {name: short(value) for name, value in numbers.items()}
    shown |= {
        name: str(value)
        for name, value in instance.items()
        if isinstance(value, int | list | str | float)
    }
    shown |= {
        name: str(value)
        for name, value in instance.items()
        if isinstance(value, Op) and not value.constants
    }
    return ", ".join(
        f"{name} = {shown[name]}" for name in sorted(shown) if name in statement.variables
    )


def short(value: Any) -> str:
    """Return numbers with few digits."""
    if isinstance(value, list):
        return f"[{', '.join(map(short, value))}]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def read() -> dict[str, Any]:
    """Return what was found the last time."""
    return json.loads(RESULTS.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def write(results: Mapping[str, Any]) -> None:
    """Write what was found, and the page."""
    rows = [
        f"{json.dumps(name)}: {json.dumps(results[name], sort_keys=True)}"
        for name in sorted(results)
    ]
    RESULTS.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
    REPORT.write_text(render(read()), encoding="utf-8")
