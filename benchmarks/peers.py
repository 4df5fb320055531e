"""Compare irc with other tools on real models: affines and operators left, time.

    python benchmarks/peers.py [--only TEXT] [--peers onnxsim,onnxslim] [--timeout 60] [--repeat 3] [--markdown]

The models come from `../shared/models`, and from the light models in the onnx wheel. Every tool
works from file to file in its own process, so that a crash or a timeout ends this tool only. The
times exclude imports and a first run. The tools take turns, model by model.

BatchNormalization is counted in all graphs, bodies and functions. An affine is any other operator
in which irc finds a constant scale or shift of channels or of the whole tensor, except the biases
of MatMul.

The report ends with the models in which another tool leaves fewer BatchNormalizations, or fewer
operators, than irc. Whether the results are right is the subject of `study`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools import OWN, TOOLS, Child, Failure, is_installed, version  # puts tests on the path

# isort: split
import graphs
import harness
import irc
import onnx
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

FROZEN = "irc frozen"
ENOUGH = 10.0
"""Seconds of timed runs of one tool on one model, after which it is not run again."""

PATIENCE = 600.0
"""Maximum seconds to count the operators of a model."""


# functions that run in child processes


def work(tool: str, source: Path, out: Path, repeat: int) -> tuple[float, Any]:
    """Run a tool once, then up to `repeat` times; return the median seconds and the result."""
    run = TOOLS[tool][1]
    returned = run(source, out)
    times: list[float] = []
    while len(times) < repeat and sum(times) < ENOUGH:
        begin = time.perf_counter()
        run(source, out)
        times.append(time.perf_counter() - begin)
    return statistics.median(times) if times else 0.0, returned


@dataclass
class Verdict:
    """The properties of a model that the report compares."""

    operators: Counter[str] = field(default_factory=Counter)
    batch_norms: list[tuple[str, str, str]] = field(default_factory=list)
    """Node name, gamma and output of each; most tools keep one of these names."""

    affines: int = 0
    foldable: int = 0


def judge(result: Path) -> Verdict:
    """Count the operators of a model."""
    model = harness.load(result)
    nodes = list(graphs.all_nodes(model))
    return Verdict(
        Counter(node.op_type for node in nodes if node.op_type != "Constant"),
        [
            (node.name, node.input[1], node.output[0])
            for node in nodes
            if node.op_type == "BatchNormalization"
        ],
        *affines(result),
    )


def affines(path: Path) -> tuple[int, int]:
    """Return how many affines other than BatchNormalization there are, and how many irc folds."""
    try:
        sources = irc.compile(path, freeze_initializers=True).fold_map.sources
    except irc.IRError:
        return 0, 0
    others = sum(s["kind"] != "batch_norm" and s["reason"] != "bias_slot" for s in sources)
    return others, sum(s["status"] == "folded" for s in sources)


# the report


@dataclass
class Outcome:
    """The result of one tool on one model, or the `failure`."""

    verdict: Verdict = field(default_factory=Verdict)
    seconds: float = 0.0
    failure: Failure | None = None
    sources: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Row:
    """A model: its source, and the outcome of each tool."""

    path: Path
    source: Verdict
    outcomes: dict[str, Outcome]

    @property
    def name(self) -> str:
        """The folder and file name."""
        return f"{self.path.parent.name}/{self.path.name}"


def files(only: str) -> list[Path]:
    """Return the models whose folder/name contains `only`: shared ones, then the onnx wheel's."""
    shared = harness.shared_models()
    light = sorted((harness.ONNX_DATA / "light").glob("*.onnx"))
    return [path for path in (*shared, *light) if only in f"{path.parent.name}/{path.name}"]


def measure(
    paths: Sequence[Path], tools: Sequence[str], options: argparse.Namespace
) -> Iterator[Row]:
    """Run every tool on every model, and yield a row after each model."""
    child = Child(options.timeout)
    jury = Child(PATIENCE)
    with tempfile.TemporaryDirectory() as folder:
        for path in track(paths, "models", console=Console(stderr=True), transient=True):
            try:
                source = jury.call(judge, path)
            except Failure as failure:
                print(
                    f"{path.name} left out, its source cannot be judged: {failure.kind} {failure}",
                    file=sys.stderr,
                )
                continue
            outcomes = {}
            for tool in tools:
                out = Path(folder) / f"{tool}.onnx"
                try:
                    seconds, returned = child.call(work, tool, path, out, options.repeat)
                    verdict = jury.call(judge, out)
                    outcomes[tool] = Outcome(verdict, seconds, None, returned or [])
                except Failure as failure:
                    outcomes[tool] = Outcome(failure=failure)
                out.unlink(missing_ok=True)
            yield Row(path, source, outcomes)


def failed(outcome: Outcome) -> str:
    """Return the kind of failure for a cell of a table, or an empty string."""
    return outcome.failure.kind if outcome.failure else ""


class Report:
    """The report: a table for each measure, failures, and models of which another leaves less."""

    def __init__(self, rows: Sequence[Row], tools: Sequence[str], *, markdown: bool) -> None:
        self.rows, self.tools = rows, tools
        self.box = box.MARKDOWN if markdown else box.SIMPLE
        self.console = Console(
            width=None if sys.stdout.isatty() else 200, soft_wrap=markdown, markup=False
        )

    def show(
        self,
        title: str,
        columns: Sequence[str],
        lines: Sequence[Sequence[str]],
        *,
        total: bool = False,
    ) -> None:
        """Print a table whose first column is text; `total` sets its last line apart."""
        if not lines:
            self.console.print(f"{title}: none\n")
            return
        table = Table(title=title, title_justify="left", box=self.box, show_footer=False)
        for i, column in enumerate(columns):
            table.add_column(column, justify="left" if i == 0 else "right", overflow="fold")
        for i, line in enumerate(lines):
            if total and i == len(lines) - 1 and self.box is not box.MARKDOWN:
                table.add_section()
            table.add_row(*line)
        self.console.print(table)

    def counts(self, title: str, count: Callable[[Verdict], int]) -> None:
        """Print a count before and after each tool; a failed tool keeps the source's."""
        total = dict.fromkeys(("", *self.tools), 0)
        lines = []
        for row in self.rows:
            before = count(row.source)
            if not before:
                continue
            total[""] += before
            line = [row.name, str(before)]
            for tool in self.tools:
                outcome = row.outcomes[tool]
                after = before if outcome.failure else count(outcome.verdict)
                total[tool] += after
                line.append(failed(outcome) or str(after))
            lines.append(line)
        lines.append([f"{len(lines)} models", *map(str, total.values())])
        self.show(title, ["model", "before", *self.tools], lines, total=True)

    def times(self) -> None:
        """Print the median seconds of irc, and the times of the others as multiples of it."""
        ratios: dict[str, list[float]] = {tool: [] for tool in self.tools}
        lines = []
        for row in self.rows:
            own = row.outcomes[OWN]
            line = [row.name]
            for tool in self.tools:
                outcome = row.outcomes[tool]
                if outcome.failure or own.failure:
                    line.append(failed(outcome) or f"{outcome.seconds:.3f} s")
                    continue
                ratios[tool].append(outcome.seconds / own.seconds)
                line.append(f"{own.seconds:.3f} s" if tool == OWN else f"{ratios[tool][-1]:.2f}")
            lines.append(line)
        medians = [f"{statistics.median(found):.2f}" if found else "" for found in ratios.values()]
        lines.append(["median", *medians])
        self.show(
            "Time, from file to file: irc's, and multiples of it",
            ["model", *self.tools],
            lines,
            total=True,
        )

    def failures(self) -> None:
        """Print the models on which a tool failed."""
        lines = [
            (row.name, tool, f"{failure.kind}: {failure}")
            for row in self.rows
            for tool in self.tools
            if (failure := row.outcomes[tool].failure)
        ]
        self.show("Where a tool failed", ["model", "tool", "detail"], lines)

    def reasons(self) -> None:
        """Print the number of affines by status and reason in irc."""
        found: dict[str, Counter[tuple[str, str]]] = {tool: Counter() for tool in (OWN, FROZEN)}
        for row in self.rows:
            for tool, counter in found.items():
                for source in row.outcomes[tool].sources if tool in row.outcomes else ():
                    became = source["status"] + (
                        f": {source['reason']}" if source["reason"] else ""
                    )
                    counter[
                        became,
                        "BatchNormalization" if source["kind"] == "batch_norm" else "other affine",
                    ] += 1
        columns = [
            (tool, kind) for tool in found for kind in ("BatchNormalization", "other affine")
        ]
        became = sorted({key[0] for counter in found.values() for key in counter})
        lines = [
            [status, *(str(found[tool][status, kind]) for tool, kind in columns)]
            for status in became
        ]
        self.show(
            "What became of the affines",
            ["status", *(f"{tool}, {kind}" for tool, kind in columns)],
            lines,
        )

    def fewer_batch_norms(self) -> None:
        """Print each BatchNormalization that irc keeps and another removes, by model and reason."""
        groups: dict[tuple[str, str, str], dict[str, str]] = {}
        for row, tool, own, other in self.pairs():
            if len(other.verdict.batch_norms) >= len(own.verdict.batch_norms):
                continue
            left = {part for parts in other.verdict.batch_norms for part in parts if part}
            kept = [
                source
                for source in own.sources
                if source["status"] == "kept" and "gamma" in source["params"]
            ]
            why = {source["params"]["gamma"]["name"]: source for source in kept}
            frozen = set(row.outcomes[FROZEN].verdict.batch_norms)
            for parts in own.verdict.batch_norms:
                if left.isdisjoint(parts):
                    source = why.get(parts[1], {"reason": "", "detail": ""})
                    note = "" if parts in frozen else ", gone when frozen"
                    group = groups.setdefault((row.name, tool, source["reason"] + note), {})
                    group[parts[0] or parts[2]] = source["detail"]
        lines = []
        for (name, tool, reason), group in groups.items():
            detail = next(iter(group.values()))
            lines.append((name, tool, str(len(group)), ", ".join(group), reason, detail))
        columns = [
            "model",
            "tool",
            "number",
            "BatchNormalization",
            "irc's reason",
            "the first one's detail",
        ]
        self.show("BatchNormalization that another tool removes and irc keeps", columns, lines)

    def fewer_operators(self) -> None:
        """Print the models of which another tool leaves fewer operators, and which differ."""
        lines = []
        for row, tool, own, other in self.pairs():
            found = (other.verdict.operators.total(), own.verdict.operators.total())
            if found[0] < found[1]:
                more = own.verdict.operators - other.verdict.operators
                less = other.verdict.operators - own.verdict.operators
                text = (
                    [f"{n} {op}" for op, n in more.most_common(6)],
                    [f"{n} {op}" for op, n in less.most_common(3)],
                )
                counts = [
                    str(found[1]),
                    str(row.outcomes[FROZEN].verdict.operators.total()),
                    str(found[0]),
                ]
                lines.append((row.name, tool, *counts, ", ".join(text[0]), ", ".join(text[1])))
        columns = [
            "model",
            "tool",
            "irc's",
            "irc's frozen",
            "its",
            "only in irc's",
            "only in its",
        ]
        self.show("Models in which another tool leaves fewer operators than irc", columns, lines)

    def pairs(self) -> Iterator[tuple[Row, str, Outcome, Outcome]]:
        """Yield the outcomes of irc and of another tool for every model that both compiled."""
        for row in self.rows:
            for tool in self.tools:
                own, other = row.outcomes[OWN], row.outcomes[tool]
                if tool not in (OWN, FROZEN) and not own.failure and not other.failure:
                    yield row, tool, own, other


def main() -> None:
    """Run the tools and print the report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    peers = [tool for tool in TOOLS if tool not in (OWN, FROZEN)]
    parser.add_argument(
        "--only",
        default="",
        metavar="TEXT",
        help="select models whose folder/name contains this text",
    )
    parser.add_argument(
        "--peers",
        default=",".join(peers),
        help=f"tools, a list from {', '.join(peers)} (default: all)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=60,
        metavar="S",
        help="maximum seconds of a tool on a model (default: 60)",
    )
    parser.add_argument(
        "--repeat",
        type=int,
        default=3,
        metavar="N",
        help="timed runs; the median counts (default: 3)",
    )
    parser.add_argument("--markdown", action="store_true", help="print tables in Markdown")
    options = parser.parse_args()
    wanted = [name for name in options.peers.split(",") if name]
    unknown = [name for name in wanted if name not in peers]
    if unknown:
        parser.error(f"unknown peer {', '.join(unknown)}: known are {', '.join(peers)}")
    missing = [name for name in wanted if not is_installed(name)]
    tools = [OWN, FROZEN, *(name for name in wanted if name not in missing)]
    print(", ".join([f"irc {irc.__version__}", *(f"{t} {version(t)}" for t in tools[2:])]))
    for name in missing:
        print(f"{name}: not installed (make bench-peers installs it)")
    if not harness.SHARED.is_dir():
        print(f"{harness.ALONE}: only the models of onnx {onnx.__version__} are measured")
    paths = files(options.only)
    if not paths:
        parser.error(f"no model's folder/name contains {options.only!r}")
    report = Report(list(measure(paths, tools, options)), tools, markdown=options.markdown)
    report.counts("BatchNormalization", lambda verdict: len(verdict.batch_norms))
    report.counts("Other affines", lambda verdict: verdict.affines)
    report.counts(
        "Affines of any kind that irc folds in the result", lambda verdict: verdict.foldable
    )
    report.counts("Operators", lambda verdict: verdict.operators.total())
    report.times()
    report.failures()
    report.reasons()
    report.fewer_batch_norms()
    report.fewer_operators()


if __name__ == "__main__":
    main()
