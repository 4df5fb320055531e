"""Show where the time of a compile goes: by phase in microseconds a node, and by package in shares.

    python benchmarks/phases.py MODEL... [--rounds 7]

Phases are medians of processor time over the rounds in one process, after a first one. Processes
that do hardly anything are measured beside them. Shares are self times under cProfile, which counts
calls too dear, so they show an order and no more.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import os
import pstats
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import irc
import onnx
import onnx.parser

ONE_RELU = '<ir_version: 10, opset_import: ["": 21]> g (float[N] x) => (float[N] y) { y = Relu(x) }'


def process_seconds(arguments: Sequence[str], rounds: int) -> float:
    """Return the processor time of Python with these arguments, the median after a first run."""
    environment = {
        key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"
    }
    found = []
    for _ in range(rounds + 1):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], check=True, env=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(found[1:])


def starts(folder: Path, rounds: int) -> dict[str, float]:
    """Return the processor time of processes that do hardly anything."""
    model = folder / "relu.onnx"
    onnx.save(onnx.parser.parse_model(ONE_RELU), model)
    files = [str(model), "-o", str(folder / "out.onnx"), "--fold-map", str(folder / "map.json")]
    compiling = ["-m", "irc", "compile", *files, "-q"]
    return {
        **{
            f"python -c '{code}'": process_seconds(["-c", code], rounds)
            for code in ("import numpy", "import onnx")
        },
        "irc compile of one Relu": process_seconds(compiling, rounds),
    }


def phases(path: Path, folder: Path) -> dict[str, float]:
    """Compile a model once, and return the processor time of each phase."""
    found: dict[str, float] = {}

    def timed(name: str, step: Callable[[], Any]) -> Any:
        begin = time.process_time()
        result = step()
        found[name] = time.process_time() - begin
        return result

    module = timed("import", lambda: irc.load(path))
    pipeline = irc.passes.default_pipeline()
    timed("passes", lambda: pipeline(module, irc.passes.PassContext()))
    result = timed("emission", lambda: irc.emit(module))
    timed("model written", lambda: result.save(folder / "out.onnx"))
    timed("fold map", lambda: result.fold_map.save(folder / "map.json"))
    return found


def rooms(path: Path, folder: Path) -> Counter[str]:
    """Return the self time of each package under cProfile."""
    profile = cProfile.Profile()
    profile.runcall(phases, path, folder)
    found: Counter[str] = Counter()
    for (file, _, _), (_, _, own, _, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        package = Path(file.rpartition("/irc/")[2]).parent if "/irc/" in file else None
        found["Python and numpy" if package is None else str(package)] += own
    return found


def main() -> None:
    """Print both tables for each model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    gc.disable()
    with tempfile.TemporaryDirectory() as name:
        print("| process | ms |\n| --- | --: |")
        for title, seconds in starts(Path(name), options.rounds).items():
            print(f"| `{title}` | {seconds * 1e3:.0f} |")
    print("\n| model | operators | phase | ms | us an operator |\n| --- | --: | --- | --: | --: |")
    shares = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in options.models:
            count = sum(
                node.op_type != "Constant"
                for node in onnx.load(path, load_external_data=False).graph.node
            )
            phases(path, folder)
            runs = [phases(path, folder) for _ in range(options.rounds)]
            for phase in runs[0]:
                seconds = statistics.median(run[phase] for run in runs)
                print(
                    f"| {path.stem} | {count} | {phase} | {seconds * 1e3:.1f} |"
                    f" {seconds * 1e6 / count:.0f} |"
                )
            shares[path.stem] = rooms(path, folder)
    packages = sorted({package for found in shares.values() for package in found})
    print(f"\n| package | {' | '.join(shares)} |\n| --- |{' --: |' * len(shares)}")
    totals = {stem: found.total() for stem, found in shares.items()}
    for package in sorted(
        packages, key=lambda package: -sum(found[package] for found in shares.values())
    ):
        cells = [100 * found[package] / totals[stem] for stem, found in shares.items()]
        if max(cells) >= 0.5:
            print(f"| `{package}` | {' | '.join(f'{cell:.0f} %' for cell in cells)} |")


if __name__ == "__main__":
    main()
