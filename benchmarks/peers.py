"""Compare irc with other tools on real models: affines and operators left, numeric errors, time.

    python benchmarks/peers.py [--only TEXT] [--peers onnxsim,onnxslim] [--timeout 60] [--repeat 3] [--markdown]

The models come from `../shared/models`, and from the light models in the onnx wheel. Every tool works from file to
file in its own process, so that a crash or a timeout ends this tool only. The times exclude imports and a first run.
The tools take turns, model by model.

Errors are judged by the bound of the tests: a result may differ from the float64 evaluator by a small multiple of the
error of the source itself in onnxruntime without optimisations. BatchNormalization is counted in all graphs, bodies
and functions. An affine is any other operator in which irc finds a constant scale or shift of channels or of the whole
tensor, except the biases of MatMul.

The report ends with the models in which another tool leaves fewer BatchNormalizations, or fewer operators, than irc.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import multiprocessing
import os
import signal
import statistics
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import graphs
import harness
import irc
import onnx
from float64 import UnsupportedOp, evaluate
from onnx import ModelProto
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

OWN, FROZEN = "irc", "irc frozen"
ENOUGH = 10.0
"""Seconds of timed runs of one tool on one model, after which it is not run again."""

PATIENCE = 600.0
"""Maximum seconds to judge a model; the float64 evaluator takes most of the time."""

ILL_CONDITIONED = 2.0**-7
"""Maximum float32 error of a source on random inputs with which its results can be compared."""


# functions that run in child processes


def with_irc(source: Path, out: Path, *, freeze: bool = False) -> list[dict[str, Any]]:
    """Run the default pipeline of irc, and return the `sources` of the fold map."""
    result = irc.compile(source, freeze_initializers=freeze)
    result.save(out)
    return result.fold_map.sources


def with_onnxsim(source: Path, out: Path) -> None:
    import onnxsim

    onnx.save(onnxsim.simplify(onnx.load(source))[0], out)


def with_onnxslim(source: Path, out: Path) -> None:
    import onnxslim

    onnx.save(onnxslim.slim(onnx.load(source)), out)


def with_onnxscript(source: Path, out: Path) -> None:
    import onnxscript.optimizer

    onnx.save(onnxscript.optimizer.optimize(onnx.load(source)), out)


def with_onnxruntime(source: Path, out: Path) -> None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(out)
    options.log_severity_level = 4
    onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


def with_irc_frozen(source: Path, out: Path) -> list[dict[str, Any]]:
    return with_irc(source, out, freeze=True)


TOOLS: dict[str, tuple[str, Callable[[Path, Path], Any]]] = {
    OWN: ("irc", with_irc),
    FROZEN: ("irc", with_irc_frozen),
    "onnxsim": ("onnxsim", with_onnxsim),
    "onnxslim": ("onnxslim", with_onnxslim),
    "onnxscript": ("onnxscript", with_onnxscript),
    "onnxruntime": ("onnxruntime", with_onnxruntime),
}
"""The tools by name, each with the module that it needs and the function that compiles a file to a file."""


def work(tool: str, source: Path, out: Path, repeat: int) -> tuple[float, Any]:
    """Run a tool once, then up to `repeat` times with the clock; return the median seconds and the result."""
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
    valid: bool = False
    equal: str = ""
    """`yes`, `no: ` and the error, or in brackets the reason why the results cannot be compared."""


def judge(source: Path, result: Path, other: int) -> Verdict:
    """Count the operators of `result`, and compare its results with the results of `source`."""
    model = harness.load(result)
    nodes = list(graphs.all_nodes(model))
    return Verdict(
        Counter(node.op_type for node in nodes if node.op_type != "Constant"),
        [(node.name, node.input[1], node.output[0]) for node in nodes if node.op_type == "BatchNormalization"],
        *affines(result),
        graphs.is_valid(model) is None,
        equality(source, model, other),
    )


def affines(path: Path) -> tuple[int, int]:
    """Return the number of affines other than BatchNormalization, and the number of affines that irc folds."""
    try:
        sources = irc.compile(path, freeze_initializers=True).fold_map.sources
    except irc.IRError:
        return 0, 0
    others = sum(s["kind"] != "batch_norm" and s["reason"] != "bias_slot" for s in sources)
    return others, sum(s["status"] == "folded" for s in sources)


@lru_cache(maxsize=1)
def reference(source: Path, other: int) -> tuple[harness.Arrays, harness.Arrays, harness.Arrays | None] | str:
    """Return inputs of a model, its results in onnxruntime, and its results in float64.

    The last are None where the float64 evaluator does not support the model. Where onnxruntime cannot run it, return
    the reason as a string.
    """
    model = harness.load(source)
    try:
        inputs = harness.random_inputs(model, other=other)
    except ValueError as error:
        return str(error)
    before = harness.results(model, inputs)
    if before is None:
        return "onnxruntime does not run the source"
    try:
        return inputs, before, evaluate(model, inputs)
    except (UnsupportedOp, ValueError):
        return inputs, before, None


def equality(source: Path, model: ModelProto, other: int) -> str:
    """Compare the results of `model` with the source: the text of `Verdict.equal`."""
    given = reference(source, other)
    if isinstance(given, str):
        return f"({given})"
    inputs, before, exact = given
    after = harness.results(model, inputs)
    if after is None:
        return "no: onnxruntime does not run it"
    if set(after) != set(before) or any(after[name].shape != before[name].shape for name in after):
        return "no: other results"
    noise = 2.0**-22 if exact is None else max(harness.worst(before, exact), 2.0**-22)
    if noise > ILL_CONDITIONED:
        return f"(the source itself is off by {noise:.0e})"
    error = harness.worst(after, before if exact is None else exact)
    bound = 1e-5 if exact is None else harness.NOISE * noise
    return "yes" if error <= bound else f"no: {error / noise:.1f} times the source's own error"


def serve(connection: Connection) -> None:
    """Serve calls in a child process: receive a function and arguments, send (True, result) or (False, error)."""
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    warnings.simplefilter("ignore")
    while True:
        function, arguments = connection.recv()
        try:
            connection.send((True, function(*arguments)))
        except Exception as error:  # a tool may raise anything
            connection.send((False, f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"))


class Failure(Exception):
    """A failed call in a child process; `kind` is error, crash or timeout."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


class Child:
    """A child process for one call after another, restarted after a crash or timeout."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.process: Any = None
        self.connection: Any = None

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return `function(*arguments)`, computed in the child. Raises Failure."""
        if self.process is None:
            context = multiprocessing.get_context("spawn")
            self.connection, theirs = context.Pipe()
            self.process = context.Process(target=serve, args=(theirs,), daemon=True)
            self.process.start()
            theirs.close()
        try:
            self.connection.send((function, arguments))
            if not self.connection.poll(self.timeout):
                self.end()
                raise Failure("timeout", f"no result after {self.timeout:g} s")
            done, result = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode
            self.end()
            name = signal.Signals(-code).name if code < 0 else f"exit status {code}"
            raise Failure("crash", name) from None
        if not done:
            raise Failure("error", result)
        return result

    def end(self) -> None:
        """Stop the process if it is running."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.connection.close()
        self.process = None


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
    """Return the models whose folder/name contains `only`: shared models first, then models of the onnx wheel."""
    shared = sorted(harness.SHARED.glob("*/*.onnx")) if harness.SHARED.is_dir() else []
    light = sorted((harness.ONNX_DATA / "light").glob("*.onnx"))
    return [path for path in (*shared, *light) if only in f"{path.parent.name}/{path.name}"]


def measure(paths: Sequence[Path], tools: Sequence[str], options: argparse.Namespace) -> Iterator[Row]:
    """Run every tool on every model, and yield a row after each model."""
    children = {tool: Child(options.timeout) for tool in tools}
    jury = Child(PATIENCE)
    with tempfile.TemporaryDirectory() as folder:
        for path in track(paths, "models", console=Console(stderr=True), transient=True):
            try:
                source = jury.call(judge, path, path, options.other)
            except Failure as failure:
                print(f"{path.name} left out, its source cannot be judged: {failure.kind} {failure}", file=sys.stderr)
                continue
            outcomes = {}
            for tool in tools:
                out = Path(folder) / f"{tool}.onnx"
                try:
                    seconds, returned = children[tool].call(work, tool, path, out, options.repeat)
                    verdict = jury.call(judge, path, out, options.other)
                    outcomes[tool] = Outcome(verdict, seconds, None, returned or [])
                except Failure as failure:
                    outcomes[tool] = Outcome(failure=failure)
                out.unlink(missing_ok=True)
            yield Row(path, source, outcomes)
    for child in (*children.values(), jury):
        child.end()


def failed(outcome: Outcome) -> str:
    """Return the kind of failure for a cell of a table, or an empty string."""
    return outcome.failure.kind if outcome.failure else ""


class Report:
    """The report: a table for each measure, then lists of failures and of models where another tool leaves less."""

    def __init__(self, rows: Sequence[Row], tools: Sequence[str], *, markdown: bool) -> None:
        self.rows, self.tools = rows, tools
        self.box = box.MARKDOWN if markdown else box.SIMPLE
        self.console = Console(width=None if sys.stdout.isatty() else 200, soft_wrap=markdown, markup=False)

    def show(self, title: str, columns: Sequence[str], lines: Sequence[Sequence[str]], *, total: bool = False) -> None:
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
        """Print a count before and after each tool; a tool that fails keeps the count of the source."""
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
        self.show("Time, from file to file: irc's, and multiples of it", ["model", *self.tools], lines, total=True)

    def soundness(self) -> None:
        """Print how often each tool failed, made a valid model invalid, or changed its results."""
        tally = {tool: Counter[str]() for tool in self.tools}
        details = []
        for row in self.rows:
            for tool in self.tools:
                outcome = row.outcomes[tool]
                if outcome.failure:
                    tally[tool][outcome.failure.kind] += 1
                    details.append((row.name, tool, f"{outcome.failure.kind}: {outcome.failure}"))
                    continue
                tally[tool]["a model"] += 1
                if row.source.valid and not outcome.verdict.valid:
                    tally[tool]["not valid"] += 1
                    details.append((row.name, tool, "onnx.checker refuses the result"))
                equal = outcome.verdict.equal.split(":")[0]
                tally[tool][{"yes": "equal", "no": "not equal"}.get(equal, "not compared")] += 1
                if equal == "no":
                    details.append((row.name, tool, outcome.verdict.equal))
        kinds = ["a model", "error", "crash", "timeout", "not valid", "equal", "not equal", "not compared"]
        lines = [[tool, *(str(tally[tool][kind]) for kind in kinds)] for tool in self.tools]
        self.show("What came out", ["tool", *kinds], lines)
        self.show("Where something went wrong", ["model", "tool", "detail"], details)

    def reasons(self) -> None:
        """Print the number of affines by status and reason in irc."""
        found: dict[str, Counter[tuple[str, str]]] = {tool: Counter() for tool in (OWN, FROZEN)}
        for row in self.rows:
            for tool, counter in found.items():
                for source in row.outcomes[tool].sources if tool in row.outcomes else ():
                    became = source["status"] + (f": {source['reason']}" if source["reason"] else "")
                    counter[became, "BatchNormalization" if source["kind"] == "batch_norm" else "other affine"] += 1
        columns = [(tool, kind) for tool in found for kind in ("BatchNormalization", "other affine")]
        became = sorted({key[0] for counter in found.values() for key in counter})
        lines = [[status, *(str(found[tool][status, kind]) for tool, kind in columns)] for status in became]
        self.show("What became of the affines", ["status", *(f"{tool}, {kind}" for tool, kind in columns)], lines)

    def fewer_batch_norms(self) -> None:
        """Print each BatchNormalization that irc keeps and another tool removes, grouped by model, tool and reason."""
        groups: dict[tuple[str, str, str], dict[str, tuple[str, str]]] = {}
        for row, tool, own, other in self.pairs():
            if len(other.verdict.batch_norms) >= len(own.verdict.batch_norms):
                continue
            left = {part for parts in other.verdict.batch_norms for part in parts if part}
            kept = [source for source in own.sources if source["status"] == "kept" and "gamma" in source["params"]]
            why = {source["params"]["gamma"]["name"]: source for source in kept}
            frozen = set(row.outcomes[FROZEN].verdict.batch_norms)
            for parts in own.verdict.batch_norms:
                if left.isdisjoint(parts):
                    source = why.get(parts[1], {"reason": "", "detail": ""})
                    note = "" if parts in frozen else ", gone when frozen"
                    group = groups.setdefault((row.name, tool, source["reason"] + note), {})
                    group[parts[0] or parts[2]] = source["detail"], other.verdict.equal
        lines = []
        for (name, tool, reason), group in groups.items():
            detail, equal = next(iter(group.values()))
            lines.append((name, tool, str(len(group)), ", ".join(group), reason, detail, equal))
        columns = ["model", "tool", "number", "BatchNormalization", "irc's reason", "the first one's detail", "equal"]
        self.show("BatchNormalization that another tool removes and irc keeps", columns, lines)

    def fewer_operators(self) -> None:
        """Print the models in which another tool leaves fewer operators, and the operators that differ."""
        lines = []
        for row, tool, own, other in self.pairs():
            found = (other.verdict.operators.total(), own.verdict.operators.total())
            if found[0] < found[1]:
                more = own.verdict.operators - other.verdict.operators
                less = other.verdict.operators - own.verdict.operators
                text = [f"{n} {op}" for op, n in more.most_common(6)], [f"{n} {op}" for op, n in less.most_common(3)]
                counts = [str(found[1]), str(row.outcomes[FROZEN].verdict.operators.total()), str(found[0])]
                lines.append((row.name, tool, *counts, ", ".join(text[0]), ", ".join(text[1]), other.verdict.equal))
        columns = [
            "model",
            "tool",
            "irc's",
            "irc's frozen",
            "its",
            "only in irc's",
            "only in its",
            "its result is equal",
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    peers = [tool for tool in TOOLS if tool not in (OWN, FROZEN)]
    parser.add_argument("--only", default="", metavar="TEXT", help="select models whose folder/name contains this text")
    parser.add_argument(
        "--peers", default=",".join(peers), help=f"tools, a list from {', '.join(peers)} (default: all)"
    )
    parser.add_argument(
        "--timeout", type=float, default=60, metavar="S", help="maximum seconds of a tool on a model (default: 60)"
    )
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="timed runs; the median counts (default: 3)")
    parser.add_argument(
        "--other", type=int, default=32, metavar="N", help="extent of symbolic dimensions except the first"
    )
    parser.add_argument("--markdown", action="store_true", help="print tables in Markdown")
    options = parser.parse_args()
    wanted = [name for name in options.peers.split(",") if name]
    unknown = [name for name in wanted if name not in peers]
    if unknown:
        parser.error(f"unknown peer {', '.join(unknown)}: known are {', '.join(peers)}")
    missing = [name for name in wanted if importlib.util.find_spec(TOOLS[name][0]) is None]
    tools = [OWN, FROZEN, *(name for name in wanted if name not in missing)]
    print(", ".join([f"irc {irc.__version__}", *(f"{t} {importlib.metadata.version(t)}" for t in tools[2:])]))
    for name in missing:
        print(f"{name}: not installed (make bench-peers installs it)")
    if not harness.SHARED.is_dir():
        print(
            f"no folder ../shared/models beside the checkout: only the models of onnx {onnx.__version__} are measured"
        )
    paths = files(options.only)
    if not paths:
        parser.error(f"no model's folder/name contains {options.only!r}")
    report = Report(list(measure(paths, tools, options)), tools, markdown=options.markdown)
    report.counts("BatchNormalization", lambda verdict: len(verdict.batch_norms))
    report.counts("Other affines", lambda verdict: verdict.affines)
    report.counts("Affines of any kind that irc folds in the result", lambda verdict: verdict.foldable)
    report.counts("Operators", lambda verdict: verdict.operators.total())
    report.times()
    report.soundness()
    report.reasons()
    report.fewer_batch_norms()
    report.fewer_operators()


if __name__ == "__main__":
    main()
