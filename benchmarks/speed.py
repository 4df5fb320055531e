"""Measure irc as a whole process beside onnx.load + onnx.save, cp and other tools.

    python benchmarks/speed.py [--only 10_nodes,resnet50] [--rounds 5] [--folder /dev/shm/speed] [--check] [--markdown]

Every run is a process from file to file: irc's command line with a fold map, the others as in
contestants.py. The contestants take turns, one run each in a round. Times are compared within a
round; the report shows the median of the ratios and their spread. A run includes imports, so every
contestant runs once before the measurement to write its bytecode, as in an installed package. The
result of irc is checked on each workload.

A contestant that fails or times out on a workload is not run there again, and after a timeout not
on workloads with more blocks either. A peer is not run again once its runs took `--enough` seconds.
The exit status is 1 if a result of irc is wrong, and does not depend on times. Linux only.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import importlib.util
import multiprocessing
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from contestants import CONTESTANTS
from speed_report import (
    COPY,
    OWN,
    REFERENCE,
    Report,
    Result,
    Run,
    Session,
    plot,
    read_session,
    write_session,
)
from workloads import WORKLOADS, make, size, wrong

HERE = Path(__file__).parent
PEERS = [name for name in CONTESTANTS if name != REFERENCE]
SPARE = 1 << 30
"""Bytes of memory that runs leave free."""


def in_child(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call a function in a new process, whose end frees its memory."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments, **named).result()


def available() -> int:
    """Return the bytes of available memory, or 0 where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


def command(name: str, source: Path, out: Path) -> list[str]:
    """Return the command that runs a contestant."""
    if name == COPY:
        return ["cp", *map(str, sorted(source.parent.iterdir())), str(out.parent)]
    if name == OWN:
        files = [str(source), "-o", str(out), "--fold-map", str(out.with_name("map.json"))]
        return [sys.executable, "-m", "irc", "compile", *files, "-q"]
    return [sys.executable, str(HERE / "contestants.py"), name, str(source), str(out)]


def launch(arguments: Sequence[str], folder: Path, timeout: float, limit: int) -> Run:
    """Run a command by launch.py, so that the peak memory is due to the command alone."""
    log = folder / "log"
    environment = {
        key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"
    }
    launcher = [
        sys.executable,
        "-I",
        "-S",
        str(HERE / "launch.py"),
        str(timeout),
        str(limit),
        str(log),
    ]
    done = subprocess.run(
        [*launcher, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    wall, cpu, peak, code, stopped = map(float, done.stdout.split())
    output = " ".join(log.read_text(errors="replace").split()) if log.exists() else ""
    log.unlink(missing_ok=True)
    if stopped:
        return Run(wall, cpu, int(peak), "timeout", f"stopped after {timeout:g} s")
    if not code:
        return Run(wall, cpu, int(peak))
    short_of_memory = any(sign in output for sign in ("MemoryError", "bad_alloc", "annot allocate"))
    failure = "crash" if code < 0 else "error"
    if short_of_memory:
        failure = "memory"
    return Run(wall, cpu, int(peak), failure, f"exit status {code:.0f}: {output[-160:]}")


def run(
    name: str, source: Path, folder: Path, options: argparse.Namespace, *, check: bool = False
) -> Run:
    """Run a contestant once on a workload, optionally check its result, and delete it."""
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    limit = int(options.memory * 1e9)
    if not limit and (free := available()):
        limit = max(
            SPARE, free - sum(file.stat().st_size for file in source.parent.iterdir()) - SPARE
        )
    try:
        found = launch(command(name, source, out / source.name), folder, options.timeout, limit)
        if check and not found.failure and (fault := in_child(wrong, source, out / source.name)):
            return Run(found.wall, found.cpu, found.peak, "wrong", fault)
    finally:
        shutil.rmtree(out)
    return found


def measure(
    name: str, contestants: Sequence[str], late: set[str], folder: Path, options: argparse.Namespace
) -> Result:
    """Run all rounds of a workload; `late` collects contestants that time out on blocks."""
    workload, place = WORKLOADS[name], folder / "source"
    place.mkdir()
    source = place / "model.onnx"
    nodes, size = in_child(make, name, source, small=options.small)
    result = Result(name, workload.title, nodes, size, [os.getloadavg()[0]], {})
    for turn in range(options.rounds):
        for contestant in contestants:
            runs = result.runs.setdefault(contestant, [])
            if contestant in late and workload.blocks:
                runs[:] = [Run(0, 0, 0, "-", "not run: it timed out on fewer blocks")]
            elif not any(r.failure for r in runs) and not (
                contestant in PEERS and sum(r.wall for r in runs) >= options.enough
            ):
                tell(f"{name}, round {turn + 1}: {contestant}")
                runs.append(
                    run(contestant, source, folder, options, check=contestant == OWN and not turn)
                )
    tell("")
    late.update(
        c
        for c, runs in result.runs.items()
        if workload.blocks and any(r.failure == "timeout" for r in runs)
    )
    result.load.append(os.getloadavg()[0])
    shutil.rmtree(place)
    return result


def warm_up(contestants: Sequence[str], folder: Path, options: argparse.Namespace) -> None:
    """Run every contestant once on the smallest workload: bytecode, and the page cache."""
    (folder / "source").mkdir()
    source = folder / "source" / "model.onnx"
    in_child(make, "10_nodes", source, small=options.small)
    for name in contestants:
        run(name, source, folder, options)
    shutil.rmtree(folder / "source")


def tell(message: str) -> None:
    """Show a progress message on a terminal."""
    if sys.stderr.isatty():
        print(f"\r{message:60}\r", end="", file=sys.stderr, flush=True)


def machine() -> str:
    """Return the processor, cores, memory and system as a line of text."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(
            line.partition(":")[2].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):
        model = platform.machine()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return (
        f"{model}, {os.cpu_count()} cores, {memory:.0f} GB, {platform.system()}"
        f" {platform.release()}"
    )


def versions(contestants: Sequence[str]) -> dict[str, str]:
    """Return the versions of Python, irc, numpy and the contestants."""
    found = {"Python": platform.python_version(), "irc": importlib.metadata.version("irc-compiler")}
    found["numpy"] = np.__version__
    modules = dict.fromkeys(CONTESTANTS[name][0] for name in contestants if name in CONTESTANTS)
    for module in modules:
        found[module] = importlib.metadata.version(module)
    return found


def named(
    parser: argparse.ArgumentParser, given: str, known: Sequence[str], kind: str
) -> list[str]:
    """Return the names of a comma-separated list in the order of `known`; exit at another."""
    wanted = [name for name in given.split(",") if name]
    if unknown := [name for name in wanted if name not in known]:
        parser.error(f"unknown {kind} {', '.join(unknown)}: known are {', '.join(known)}")
    return [name for name in known if name in wanted]


def need_space(
    parser: argparse.ArgumentParser, names: Sequence[str], folder: Path, *, small: bool
) -> None:
    """End the program unless the folder has space for the largest workload and its result."""
    largest = max(names, key=lambda name: size(name, small=small))
    needed, free = 2.1 * size(largest, small=small) + 5e7, shutil.disk_usage(folder).free
    if free < needed:
        parser.error(
            f"{largest} needs {needed / 1e9:.1f} GB, but {folder} has {free / 1e9:.1f} GB: see"
            " --folder, --only"
        )


def arguments() -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """Parse the command line; return the parser and the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    every, peers = ",".join(WORKLOADS), ",".join(PEERS)
    parser.add_argument(
        "--only",
        default=every,
        metavar="NAMES",
        help=f"workloads, a list from {every} (default: all)",
    )
    parser.add_argument(
        "--peers", default=peers, metavar="NAMES", help=f"peers, a list from {peers} (default: all)"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=5,
        metavar="N",
        help="rounds, one run of each contestant (default: 5)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=120,
        metavar="S",
        help="maximum seconds of a run (default: 120)",
    )
    parser.add_argument(
        "--enough",
        type=float,
        default=120,
        metavar="S",
        help="seconds of runs after which a peer stops (default: 120)",
    )
    parser.add_argument(
        "--memory",
        type=float,
        default=0,
        metavar="GB",
        help="memory of a run (default: free memory less 1 GB)",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="folder for models, best in memory (default: temporary)",
    )
    parser.add_argument("--small", action="store_true", help="tiny workloads, for tests")
    parser.add_argument("--check", action="store_true", help="report which targets are met")
    parser.add_argument("--markdown", action="store_true", help="print tables in Markdown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the results")
    parser.add_argument(
        "--load", type=Path, metavar="FILE", help="report saved results, without a measurement"
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the results as .svg or .png"
    )
    return parser, parser.parse_args()


def measured(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Session:
    """Measure all workloads, saving the results after each."""
    names = named(parser, options.only, list(WORKLOADS), "workload")
    wanted = named(parser, options.peers, PEERS, "peer")
    if not names:
        parser.error("--only names no workload")
    if options.rounds < 1:
        parser.error("--rounds has to be 1 or more")
    missing = [name for name in wanted if importlib.util.find_spec(CONTESTANTS[name][0]) is None]
    contestants = [REFERENCE, OWN, COPY, *(name for name in wanted if name not in missing)]
    if options.folder:
        options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="speed-") as scratch:
        folder, late = Path(scratch), set[str]()
        need_space(parser, names, folder, small=options.small)
        date = datetime.datetime.now().astimezone().isoformat(" ", "minutes")
        how = {key: getattr(options, key) for key in ("rounds", "timeout", "enough", "small")}
        session = Session(date, machine(), versions(contestants), missing, how, [])
        warm_up(contestants, folder, options)
        for name in names:
            session.results.append(measure(name, contestants, late, folder, options))
            if options.json:
                write_session(session, options.json)
    return session


def main() -> int:
    """Measure or load results, report and draw them, and return the exit status."""
    parser, options = arguments()
    warnings.simplefilter("ignore")
    session = read_session(options.load) if options.load else measured(parser, options)
    report = Report(session, markdown=options.markdown)
    report.show_all(check=options.check)
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        print("no plot: matplotlib is not installed (make bench installs it)")
    elif options.plot:
        plot(session, options.plot)
    return int(any(r.failure == "wrong" for result in session.results for r in result.runs[OWN]))


if __name__ == "__main__":
    raise SystemExit(main())
