"""The results of benchmarks/speed.py, as JSON, tables and plots."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from workloads import WORKLOADS

REFERENCE, OWN, COPY = "onnx", "irc", "cp"
GROWTH = 1.05
"""Target for the exponent of time over the number of blocks."""


@dataclass(frozen=True)
class Run:
    """A process: wall and processor seconds, peak bytes, kind and detail of a failure."""

    wall: float
    cpu: float
    peak: int
    failure: str = ""
    detail: str = ""


@dataclass
class Result:
    """A workload, the load average around it, and the runs of each contestant in order."""

    name: str
    title: str
    nodes: int
    bytes: int
    load: list[float]
    runs: dict[str, list[Run]]

    def good(self, contestant: str) -> list[Run]:
        """Return the runs of a contestant that did not fail."""
        return [run for run in self.runs.get(contestant, ()) if not run.failure]

    def failure(self, contestant: str) -> str:
        """Return the kind of failure of a contestant without a good run, else an empty string."""
        runs = self.runs.get(contestant)
        return runs[-1].failure if runs and not self.good(contestant) else ""

    def ratios(self, contestant: str, reference: str, measure: str) -> list[float]:
        """Return the ratios of a measure to the reference's, for rounds that succeeded."""
        pairs = zip(self.runs.get(contestant, ()), self.runs.get(reference, ()), strict=False)
        return [
            getattr(a, measure) / getattr(b, measure)
            for a, b in pairs
            if not a.failure and not b.failure
        ]

    def median(self, contestant: str, measure: str) -> float | None:
        """Return the median of a measure over the good runs of a contestant, or None."""
        values = [getattr(run, measure) for run in self.good(contestant)]
        return statistics.median(values) if values else None


@dataclass
class Session:
    """The results of all workloads, with date, machine, versions and options."""

    date: str
    machine: str
    versions: dict[str, str]
    missing: list[str]
    options: dict[str, float]
    results: list[Result]

    @property
    def contestants(self) -> list[str]:
        """The names of the contestants that were measured."""
        return list(self.results[0].runs)


def write_session(session: Session, path: Path) -> None:
    """Save a session as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(session), indent=1) + "\n")


def read_session(path: Path) -> Session:
    """Read a saved session."""
    found = json.loads(path.read_text())
    for result in found["results"]:
        result["runs"] = {
            name: [Run(**run) for run in runs] for name, runs in result["runs"].items()
        }
    return Session(**{**found, "results": [Result(**result) for result in found["results"]]})


@dataclass(frozen=True)
class Growth:
    """The exponents of time and memory over the number of blocks, up to the workload `last`."""

    time: float
    memory: float
    microseconds: float
    """Time of a block, in the workload with the most blocks."""

    last: str


def growth(session: Session, contestant: str) -> Growth | None:
    """Fit logarithms by least squares, without the 10_nodes; None with less than two points."""
    start = next((result for result in session.results if result.name == "10_nodes"), None)
    if start is None or not start.good(contestant):
        return None
    points = []
    for result in session.results:
        count = WORKLOADS[result.name].blocks
        if not count or not result.good(contestant):
            continue
        beyond = [
            result.median(contestant, key) - start.median(contestant, key)
            for key in ("cpu", "peak")
        ]
        if min(beyond) > 0:
            points.append((result.nodes / 3, *beyond, result.title))
    if len(points) < 2:
        return None
    x = np.log([point[0] for point in points])
    time, memory = (
        float(np.polyfit(x, np.log([point[i] for point in points]), 1)[0]) for i in (1, 2)
    )
    return Growth(time, memory, 1e6 * points[-1][1] / points[-1][0], points[-1][3])


def targets(session: Session) -> Iterator[tuple[str, str, float, float | None]]:
    """Yield each target: workload, measure, limit, and the value of irc (None if it failed)."""
    for result in session.results:
        workload = WORKLOADS[result.name]
        for reference, limit in ((REFERENCE, workload.ratio), (COPY, workload.copies)):
            if limit:
                ratios = result.ratios(OWN, reference, "wall")
                yield (
                    result.title,
                    f"time / {reference}",
                    limit,
                    statistics.median(ratios) if ratios else None,
                )
        if workload.megabytes:
            peak = result.median(OWN, "peak")
            yield result.title, "peak, MB", workload.megabytes, None if peak is None else peak / 1e6
    if found := growth(session, OWN):
        yield "blocks", "exponent of time", GROWTH, found.time


class Report:
    """The report: a table for each measure."""

    def __init__(self, session: Session, *, markdown: bool) -> None:
        self.session = session
        self.box = box.MARKDOWN if markdown else box.SIMPLE
        self.console = Console(
            width=None if sys.stdout.isatty() else 240,
            soft_wrap=markdown,
            markup=False,
            highlight=False,
        )

    def show(self, title: str, columns: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
        """Print a table whose first column is text."""
        table = Table(title=title, title_justify="left", box=self.box)
        for i, column in enumerate(columns):
            table.add_column(column, justify="left" if i == 0 else "right", overflow="fold")
        for line in lines:
            table.add_row(*line)
        self.console.print(table)

    def contest(self, title: str, cell: Callable[[Result, str], str]) -> None:
        """Print a table with a row for each contestant and a column for each workload."""
        results = self.session.results
        lines = [
            [name, *(result.failure(name) or cell(result, name) for result in results)]
            for name in self.session.contestants
        ]
        self.show(title, ["", *(result.title for result in results)], lines)

    def ratio(self, measure: str) -> Callable[[Result, str], str]:
        """Return a cell: seconds of the reference, else the median ratio to it and spread."""

        def cell(result: Result, name: str) -> str:
            value, ratios = result.median(name, measure), result.ratios(name, REFERENCE, measure)
            if name == REFERENCE or not ratios:
                return f"{value:.2f} s"
            spread = f" ({min(ratios):.2f}–{max(ratios):.2f})" if len(ratios) > 1 else ""
            return f"{statistics.median(ratios):.2f}{spread}"

        return cell

    def growth(self) -> None:
        """Print the exponents of growth."""
        lines = []
        for name in self.session.contestants:
            if name != COPY and (found := growth(self.session, name)):
                cells = (found.time, found.memory, found.microseconds)
                lines.append(
                    (name, *(f"{cell:.2f}" for cell in cells[:2]), f"{cells[2]:.0f}", found.last)
                )
        if lines:
            columns = [
                "",
                "exponent of processor time",
                "of memory",
                "µs a block, at most blocks",
                "up to",
            ]
            self.show("Growth with blocks, beyond 10 nodes", columns, lines)
        else:
            self.console.print("no growth: 10_nodes and two workloads of blocks are needed\n")

    def targets(self) -> None:
        """Print which targets are met."""
        lines = []
        for title, measure, limit, value in targets(self.session):
            verdict, measured = "failed", ""
            if value is not None:
                verdict, measured = "met" if value <= limit else "missed", f"{value:.2f}"
            lines.append((title, measure, f"{limit:g}", measured, verdict))
        self.show("Targets for irc", ["", "measure", "at most", "measured", ""], lines)

    def failures(self) -> None:
        """Print the failures of contestants."""
        for result in self.session.results:
            for name, runs in result.runs.items():
                for run in runs:
                    if run.failure and run.failure != "-":
                        self.console.print(
                            f"{name} on {result.title}: {run.failure}, {run.detail}", soft_wrap=True
                        )

    def show_all(self, *, check: bool) -> None:
        """Print the whole report."""
        session, say = self.session, lambda text: self.console.print(text, soft_wrap=True)
        say(f"{session.date}; {session.machine}")
        say(", ".join(f"{name} {version}" for name, version in session.versions.items()))
        loads = [load for result in session.results for load in result.load]
        how = ", ".join(
            f"{key} {value:g}" for key, value in session.options.items() if key != "small"
        )
        small = ", small workloads" if session.options["small"] else ""
        say(f"{how}{small}, load average {min(loads):.1f} to {max(loads):.1f}\n")
        for name in session.missing:
            say(f"{name}: not installed (make bench installs it)")
        self.contest(
            "Time beside onnx.load + onnx.save: median (least–most) of rounds", self.ratio("wall")
        )
        self.contest("Processor time, likewise", self.ratio("cpu"))
        self.contest(
            "Peak of memory, MB", lambda result, name: f"{result.median(name, 'peak') / 1e6:.0f}"
        )
        self.growth()
        if check:
            self.targets()
        self.failures()


# drawing

STYLE = {OWN: {"color": "black", "linewidth": 2.5}, REFERENCE: {"color": "0.5", "linewidth": 2.5}}


def plot(session: Session, path: Path) -> None:
    """Draw time over nodes and over bytes, and the ratios to the reference."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    figure, (nodes, sizes, bars) = pyplot.subplots(1, 3, figsize=(17, 6), layout="constrained")
    many = [result for result in session.results if WORKLOADS[result.name].blocks]
    large = [
        result
        for result in session.results
        if not WORKLOADS[result.name].blocks and result.name != "10_nodes"
    ]
    draw_times(nodes, session, many, "nodes", "many small layers")
    draw_times(sizes, session, large, "bytes", "few large layers")
    draw_ratios(bars, session)
    figure.legend(
        *(nodes if many else sizes).get_legend_handles_labels(), loc="outside lower left", ncols=6
    )
    figure.legend(*bars.get_legend_handles_labels(), loc="outside lower right", ncols=4)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def draw_times(
    axes: Any, session: Session, results: Sequence[Result], measure: str, title: str
) -> None:
    """Draw a line for each contestant."""
    for i, name in enumerate(session.contestants):
        points = [(getattr(r, measure), r.median(name, "wall")) for r in results if r.good(name)]
        if points:
            look = {"color": f"C{i}", **STYLE.get(name, {})}
            axes.plot(*zip(*points, strict=True), marker="o", markersize=4, label=name, **look)
    axes.set(
        xlabel=measure, ylabel="seconds, whole process", xscale="log", yscale="log", title=title
    )
    axes.grid(alpha=0.3)


def draw_ratios(axes: Any, session: Session) -> None:
    """Draw bars for irc, cp and onnxruntime, and marks for the targets."""
    results = session.results
    shown = [name for name in (OWN, COPY, "onnxruntime") if name in session.contestants]
    for i, name in enumerate(shown):
        found = [(j, result.ratios(name, REFERENCE, "wall")) for j, result in enumerate(results)]
        places = [
            j + (i - (len(shown) - 1) / 2) * 0.8 / len(shown) for j, ratios in found if ratios
        ]
        widths = [statistics.median(ratios) for _, ratios in found if ratios]
        color = STYLE.get(name, {}).get("color", f"C{session.contestants.index(name)}")
        axes.barh(places, widths, 0.8 / len(shown), label=name, color=color)
    goals = [
        (goal, j) for j, result in enumerate(results) if (goal := WORKLOADS[result.name].ratio)
    ]
    if goals:
        axes.plot(
            *zip(*goals, strict=True), "D", color="magenta", markersize=7, label="target for irc"
        )
    axes.axvline(1, color="0.5")
    axes.set_yticks(range(len(results)), [result.title for result in results])
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel="time beside onnx.load + onnx.save", title="whole processes")
