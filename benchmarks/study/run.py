"""Run the tools of the study on models, judge and reduce the results, and remember them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
from onnx import ModelProto

import tools
from study import judge
from study.cases import StudyCase
from study.reduce import reduce_model

METADATA = (
    "opset imports added",
    "metadata_props lost",
    "metadata_props of the graph lost",
    "doc_string lost",
    "domain lost",
    "model_version lost",
)
"""Changes of the interface by which a caller's program still works."""

GROUP, GROUP_BYTES = 25, 1 << 18
"""The number and the size of models that a tool takes in one process."""

HEAVY = ("light", "real", "open")
"""Suites whose models each have a process of their own."""


@dataclass
class Record:
    """What a tool made of a model."""

    failure: str = ""
    """error, crash, timeout or memory, where there is no result."""

    message: str = ""
    seconds: float = 0.0
    verdict: judge.Verdict = field(default_factory=judge.Verdict)

    @property
    def is_right(self) -> bool:
        """Whether a result has the numbers and the interface of the source, if not metadata."""
        verdict = self.verdict
        changed = [text for text in verdict.interface if text.split(":")[0] not in METADATA]
        return not (self.failure or verdict.invalid or changed) and verdict.numbers == "same"

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Record:
        """Read a record from its JSON form."""
        return cls(**{**data, "verdict": judge.Verdict(**data["verdict"])})


@dataclass
class Fault:
    """A wrong result: the case, and the smallest model found for which the tool is wrong."""

    tool: str
    suite: str
    case: str
    text: str = ""
    """The minimal model as ONNX text, empty where it cannot be written as such."""

    operators: list[str] = field(default_factory=list)
    detail: str = ""
    stimulus: str = ""
    signature: str = ""
    """Operators with attributes, types and the kind of difference: faults of one signature may have
    one cause.
    """


@dataclass
class Row:
    """A model: what the judge says of the source, and the record of each tool."""

    suite: str
    name: str
    source: dict[str, Any]
    records: dict[str, Record]


def missed(row: Row) -> dict[str, tuple[Counter[str], str]]:
    """Return the affines that each tool leaves beyond a right result, and the tool of that."""
    right = [
        (record.verdict.affines, record.verdict.size, tool)
        for tool, record in row.records.items()
        if tool != "onnxruntime extended" and record.is_right
    ]
    found = {}
    for tool, record in row.records.items():
        own = record.verdict
        if record.failure or own.invalid or not own.operators:
            continue
        better = [item for item in right if item[0] < own.affines and item[1] <= own.size]
        if better:
            best = min(better)[2]
            more = Counter(own.operators) - Counter(row.records[best].verdict.operators)
            found[tool] = (
                Counter({kind: n for kind, n in more.items() if kind in judge.AFFINES}),
                best,
            )
    return found


class Cache:
    """Records in a file of JSON lines, by key; a later line replaces an earlier one. Without a
    folder, in memory.

    Records of a failure in `forgotten` are left out, and so is what stands for a source that could
    not be evaluated.
    """

    def __init__(self, folder: Path | None, forgotten: Sequence[str] = ()) -> None:
        self.known: dict[str, Any] = {}
        self.lock = threading.Lock()
        self.file = folder and folder / "records.jsonl"
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        if self.file is not None and self.file.exists():
            for line in self.file.read_text().splitlines():
                try:
                    key, data = json.loads(line)
                except ValueError:  # the end of an interrupted run
                    continue
                self.known[key] = data
        for key, data in list(self.known.items()):
            if (
                data.get("failure") in forgotten
                or str(data.get("excluded")).partition(":")[0] in forgotten
            ):
                del self.known[key]

    def write(self, key: str, data: Any) -> None:
        """Add a record."""
        self.known[key] = data
        if self.file is not None:
            with self.lock, self.file.open("a") as file:
                file.write(json.dumps([key, data]) + "\n")


def judge_version() -> str:
    """Return a digest of the judge, of the evaluator, and of the packages that they use."""
    digest = hashlib.sha256(f"{onnx.__version__} {onnxruntime.__version__}".encode())
    for file in (
        Path(judge.__file__),
        *sorted((tools.ROOT / "tests" / "support" / "float64").glob("*.py")),
    ):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


UNJUDGED = judge.Verdict(numbers="not compared", detail="the source could not be evaluated")


def verdict_of(result: Any) -> judge.Verdict:
    """Return the verdict of the judge, whose crash is a crash of onnxruntime on the result."""
    if not isinstance(result, tools.Failure):
        return judge.Verdict(**result)
    text = f"{result.kind} of the process that runs the result: {result}"
    if result.kind == "crash":
        return judge.Verdict(invalid=f"onnxruntime: {text}", numbers="not compared")
    return judge.Verdict(numbers="not compared", detail=text)


def timed(function: tools.Tool, source: Path, out: Path) -> float:
    """Return the seconds that a tool takes to compile a file to a file."""
    begin = time.perf_counter()
    function(source, out)
    return time.perf_counter() - begin


class Study:
    """The tools, the judge, and the records so far."""

    def __init__(
        self,
        compilers: Mapping[str, tools.Tool],
        versions: Mapping[str, str],
        cache: Cache,
        *,
        timeout: float = 120.0,
        memory: int = 8 << 30,
        patience: float = 60.0,
    ) -> None:
        self.compilers, self.versions, self.cache = compilers, versions, cache
        self.child = tools.Child(timeout, memory)
        self.jury = tools.Child(max(600.0, 10 * patience), memory)
        self.patience = patience
        self.judge = judge_version()

    def key(self, tool: str, digest: str) -> str:
        """Return the key of a record."""
        return f"{tool or 'source'} {self.versions.get(tool, '')} {self.judge} {digest}"

    def rows(self, cases: Sequence[StudyCase]) -> list[Row]:
        """Return the records of models, computed where the cache does not know them."""
        missing = [case for case in cases if not self.is_known(case)]
        with tempfile.TemporaryDirectory() as folder:
            for case, (facts, records) in zip(
                missing, self.examine(missing, Path(folder)), strict=True
            ):
                for tool, record in records.items():
                    self.cache.write(self.key(tool, case.digest), asdict(record))
                self.cache.write(self.key("", case.digest), facts)
        return [self.read(case) for case in cases]

    def is_known(self, case: StudyCase) -> bool:
        """Return whether the cache has all records of a model."""
        return all(
            self.key(tool, case.digest) in self.cache.known for tool in ("", *self.compilers)
        )

    def read(self, case: StudyCase) -> Row:
        """Return the records of a model that the cache knows."""
        found = {
            tool: Record.read(self.cache.known[self.key(tool, case.digest)])
            for tool in self.compilers
        }
        return Row(case.suite, case.name, self.cache.known[self.key("", case.digest)], found)

    def examine(
        self, cases: Sequence[StudyCase], folder: Path
    ) -> list[tuple[dict[str, Any], dict[str, Record]]]:
        """Run the tools that have no record yet on models, and judge the results.

        A tool takes all models in one process. A model that fails there is given to it again,
        alone.
        """
        sources, references = (
            [folder / f"{i}.{kind}" for i in range(len(cases))] for kind in ("onnx", "reference")
        )
        for case, path in zip(cases, sources, strict=True):
            path.write_bytes(case.data)
        facts = self.jury.each(judge.write_reference, [
            (source, reference, self.patience) for source, reference in zip(sources, references, strict=True)
        ])  # fmt: skip
        records: list[dict[str, Record]] = [{} for _ in cases]
        outs: list[dict[str, Path]] = [{} for _ in cases]
        for number, (tool, function) in enumerate(self.compilers.items()):
            todo = [
                i
                for i, case in enumerate(cases)
                if self.key(tool, case.digest) not in self.cache.known
            ]
            paths = {i: folder / f"{i}.{number}.onnx" for i in todo}
            done = self.child.each(timed, [(function, sources[i], paths[i]) for i in todo])
            for i, result in zip(todo, done, strict=True):
                if isinstance(result, tools.Failure):
                    records[i][tool] = Record(result.kind, str(result))
                elif not paths[i].exists():
                    records[i][tool] = Record("error", "no file was written", result)
                else:
                    records[i][tool] = Record(seconds=result)
                    outs[i][tool] = paths[i]
        calls = [
            (references[i], tool, out)
            for i, found in enumerate(outs)
            for tool, out in found.items()
            if not isinstance(facts[i], tools.Failure)
        ]
        verdicts = iter(self.jury.each(judge.judge_file, calls))
        for i, found in enumerate(outs):
            for tool in found:
                missing = isinstance(facts[i], tools.Failure)
                records[i][tool].verdict = UNJUDGED if missing else verdict_of(next(verdicts))
        return [
            (
                {"excluded": f"{fact.kind}: {fact}", "stimuli": []}
                if isinstance(fact, tools.Failure)
                else fact,
                record,
            )
            for fact, record in zip(facts, records, strict=True)
        ]

    def own_reasons(
        self, rows: Sequence[Row], cases: Sequence[StudyCase]
    ) -> dict[tuple[str, str], str]:
        """Return irc's reasons for affines that it leaves and another tool does not, by model."""
        data = {(case.suite, case.name): case.data for case in cases}
        chosen = [(row.suite, row.name) for row in rows if tools.OWN in missed(row)]
        found = self.child.each(own_reasons, [(data[name],) for name in chosen])
        return {
            name: reasons
            for name, reasons in zip(chosen, found, strict=True)
            if not isinstance(reasons, tools.Failure)
        }

    def fault(self, row: Row, tool: str, data: bytes, seconds: float) -> Fault:
        """Return the smallest model found for which a tool is wrong, maybe from the cache."""
        key = f"fault {self.key(tool, hashlib.sha256(data).hexdigest())}"
        if key not in self.cache.known:
            self.cache.write(key, asdict(self.reduced(row, tool, data, seconds)))
        known = self.cache.known[key]
        return Fault(**{**known, "suite": row.suite, "case": row.name})

    def reduced(self, row: Row, tool: str, data: bytes, seconds: float) -> Fault:
        """Reduce a model for which a tool is wrong, unless a smaller one ends the process."""
        verdict = row.records[tool].verdict
        for budget in (seconds, 0.0):
            with contextlib.suppress(tools.Failure):
                fields = self.jury.call(reduce_fault, self.compilers[tool], data, budget)
                found = Fault(tool, row.suite, row.name, *fields)
                return (
                    found
                    if found.detail
                    else replace(found, detail=verdict.detail, stimulus=verdict.stimulus)
                )
        return Fault(tool, row.suite, row.name, detail=verdict.detail, stimulus=verdict.stimulus)


def own_reasons(data: bytes) -> str:
    """Return the reasons that the fold map of irc gives for the affines that it leaves."""
    import irc

    sources = irc.compile(onnx.load_from_string(data)).fold_map.sources
    return ", ".join(
        sorted(
            {
                f"{entry['node']['op_type']} {entry['reason']}"
                for entry in sources
                if entry["reason"]
            }
        )
    )


def reduce_fault(
    function: tools.Tool, data: bytes, seconds: float
) -> tuple[str, list[str], str, str, str]:
    """Reduce a model for which a tool is wrong, in a child: return a Fault from `text` on."""

    def verdict(model: ModelProto) -> judge.Verdict:
        source, out = Path(folder) / "source.onnx", Path(folder) / "out.onnx"
        source.write_bytes(model.SerializeToString(deterministic=True))
        reference = judge.make_reference(source, 10.0)
        if not reference.excluded:
            try:
                function(source, out)
                return judge.judge(reference, out)
            except Exception:  # a tool may raise anything
                pass
        return judge.Verdict(numbers="not compared")

    def is_wrong(model: ModelProto) -> bool:
        return verdict(model).numbers == "wrong"

    with tempfile.TemporaryDirectory() as folder:
        found = tidied(reduce_model(onnx.ModelProto.FromString(data), is_wrong, seconds=seconds))
        text = printed(found, is_wrong)
        last = verdict(onnx.parser.parse_model(text) if text else found)
        operators = [node.op_type for node in judge.all_nodes(found) if node.op_type != "Constant"]
        return text, operators, last.detail, last.stimulus, signature(found, last.detail)


def tidied(model: ModelProto) -> ModelProto:
    """Drop what only lengthens the text of a model."""
    model.ClearField("producer_name")
    model.ClearField("producer_version")
    for node in judge.all_nodes(model):
        node.ClearField("name")
    return model


def signature(model: ModelProto, detail: str) -> str:
    """Return the operators of a model with attributes and types, and the kind of difference."""
    parts = [
        f"{node.op_type}({','.join(sorted(attribute.name for attribute in node.attribute))}){len(node.output)}"
        for node in judge.all_nodes(model)
        if node.op_type != "Constant"
    ]
    types = {info.type.tensor_type.elem_type for info in (*model.graph.input, *model.graph.output)}
    kind = next(
        (text for text in ("has the shape", "is nan", "is inf", "is -inf") if text in detail), ""
    )
    return f"{' '.join(parts)} {sorted(types)} {kind}"


def printed(model: ModelProto, holds: Callable[[ModelProto], bool]) -> str:
    """Return a model as ONNX text, or an empty string where the text is not the model any more."""
    try:
        text = onnx.printer.to_text(model)
        return text if holds(onnx.parser.parse_model(text)) else ""
    except Exception:  # the printer and the parser raise types of their own
        return ""


def chunks(cases: Sequence[StudyCase]) -> Iterator[list[StudyCase]]:
    """Yield the cases, small ones in groups."""
    group: list[StudyCase] = []
    for case in cases:
        alone = (
            case.suite in HEAVY
            or sum(len(each.data) for each in group) + len(case.data) > GROUP_BYTES
        )
        if group and (len(group) == GROUP or alone or group[-1].suite in HEAVY):
            yield group
            group = []
        group.append(case)
    if group:
        yield group


class _Queue:
    """Groups of models that wait: every second worker begins with suites of large models."""

    def __init__(self, groups: Iterable[list[StudyCase]]) -> None:
        self.waiting: tuple[deque[list[StudyCase]], ...] = (deque(), deque())
        self.lock = threading.Lock()
        for group in groups:
            self.waiting[group[0].suite in HEAVY].append(group)

    def take(self, worker: int) -> list[StudyCase]:
        """Return the next group for a worker, empty where there is none."""
        with self.lock:
            queues = self.waiting[worker % 2], self.waiting[1 - worker % 2]
            return next((queue.popleft() for queue in queues if queue), [])


def run(
    study: Study,
    cases: Sequence[StudyCase],
    seconds: float,
    minutes: float = math.inf,
    workers: int = 1,
) -> Iterator[tuple[Row, list[Fault]]]:
    """Yield the row of each case, and its faults reduced; begin no model after `minutes`."""
    begin = time.monotonic()
    queue = _Queue(chunks(cases))
    rows: dict[str, Row] = {}

    def work(worker: int) -> None:
        while group := queue.take(worker):
            late = time.monotonic() - begin > 60 * minutes
            chosen = [case for case in group if not late or study.is_known(case)]
            rows.update(zip((case.digest for case in chosen), study.rows(chosen), strict=True))
            say(f"{len(rows)} of {len(cases)} models, {group[-1].suite} {group[-1].name}")

    def faults(case: StudyCase) -> list[Fault]:
        row = rows[case.digest]
        wrong = [tool for tool, record in row.records.items() if record.verdict.numbers == "wrong"]
        found = [study.fault(row, tool, case.data, seconds) for tool in wrong]
        if wrong:
            say(f"{case.name}: {', '.join(wrong)} reduced")
        return found

    def say(text: str) -> None:
        print(f"{time.monotonic() - begin:.0f} s: {text}", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, range(workers)))
        done = [case for case in cases if case.digest in rows]
        for case, found in zip(done, pool.map(faults, done), strict=True):
            yield rows[case.digest], found
