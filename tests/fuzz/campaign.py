"""Executions in child processes that are watched for signals, hangs and memory.

A child takes a range of numbers and runs the case of each; `Status`, which it shares with its
parent, says which one is in hand and what it does. A hang is ended by faulthandler, which writes
the stack; so is a signal. The child goes on behind a case that raised, the parent starts another
one behind a case that killed it.
"""

from __future__ import annotations

import ast
import faulthandler
import gc
import mmap
import os
import resource
import shutil
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from . import corpus
from .targets import TARGETS, Box

SLOW = 10.0
"""Seconds of a processor that a case may take."""
HANG = 60.0
"""Seconds after which a case is ended, on a machine that has other things to do."""
MEMORY_BASE, MEMORY_TIMES = 512 << 20, 256
"""A case may take so many bytes, and as many more for each byte of its files."""
ADDRESS_SPACE = 8 << 30
"""A child's limit: what asks for more gets a MemoryError, and does not take the machine down."""
IN_MEMORY = Path("/dev/shm")
"""Where files go that live for a millisecond."""
BATCH = 4000
"""Executions of a child; the next one begins afresh."""


@dataclass
class Report:
    """What a campaign saw.

    Outcomes by count, and findings by what they are, with the numbers of the cases.
    """

    executions: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    findings: dict[str, tuple[list[int], str]] = field(default_factory=dict)
    slowest: tuple[float, int] = (0.0, 0)
    largest: tuple[int, int] = (0, 0)

    def found(self, key: str, number: int, text: str) -> None:
        self.findings.setdefault(key, ([], text))[0].append(number)

    def lines(self, target: str) -> list[str]:
        outcomes = ", ".join(f"{count} {name}" for name, count in sorted(self.outcomes.items()))
        lines = [
            f"{target}: {self.executions} executions: {outcomes}; slowest {self.slowest[0]:.2f} s"
            f" (case {self.slowest[1]}), most memory {self.largest[0] >> 20} MiB (case"
            f" {self.largest[1]}); {len(self.findings)} findings"
        ]
        for key, (numbers, text) in self.findings.items():
            lines.append(f"--- {target} {len(numbers)} times, {numbers[:5]}: {key}\n{text}")
        return lines


class Status:
    """Shared memory: the number in hand, and the phase it is in."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 4096)

    def begin(self, number: int) -> None:
        self.memory[:8] = struct.pack("<q", number)
        self.phase("start")

    def phase(self, name: str) -> None:
        self.memory[8:40] = name.encode()[:32].ljust(32)

    def read(self) -> tuple[int, str]:
        return struct.unpack("<q", self.memory[:8])[0], self.memory[8:40].decode().strip()


def peak() -> int:
    """The most resident bytes since `forget_peak`."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def forget_peak() -> None:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def execute(
    target: str, number: int, folder: Path, status: Status | None = None
) -> tuple[str, Box]:
    """One case; raises what it raises."""
    box = Box(
        Random(f"{target}/{number}"),
        folder,
        status.phase if status is not None else lambda name: None,
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return TARGETS[target](box), box
    except BaseException as error:
        error.__dict__["box"] = box
        raise


def key_of(error: BaseException) -> str:
    """What tells findings apart: the type, and the innermost place in irc."""
    while error.__cause__ is not None:
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    inner = [
        frame
        for frame in frames
        if "/tests/" not in frame.filename and "/.venv/" not in frame.filename
    ]
    place = (inner or frames)[-1] if frames else None
    where = "" if place is None else f" in {Path(place.filename).name}:{place.lineno} {place.name}"
    what = str(error).split(":")[0][:60] if type(error).__name__ == "Finding" else ""
    return f"{type(error).__name__} {what}{where}"


def child(
    target: str, numbers: range, status: Status, folder: Path, out: Path, deadline: float
) -> None:
    """Run the cases; a line for each in `out`."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    stack = open(out.with_suffix(".stack"), "w")  # noqa: SIM115
    faulthandler.enable(stack)
    gc.set_threshold(100_000, 50, 50)
    gc.freeze()
    with open(out, "a") as log:
        for number in numbers:
            if time.monotonic() > deadline:
                break
            status.begin(number)
            forget_peak()
            before = peak()
            faulthandler.dump_traceback_later(HANG, exit=True, file=stack)
            start = time.process_time()
            try:
                outcome, box = execute(target, number, folder, status)
            except BaseException as error:
                outcome, box = "finding", error.__dict__["box"]
                text = traceback.format_exc()[-6000:]
                log.write(f"F\t{number}\t{key_of(error)!r}\t{text!r}\n")
            faulthandler.cancel_dump_traceback_later()
            seconds, grown = time.process_time() - start, peak() - before
            if seconds > SLOW:
                text = f"{seconds:.1f} s for {box.size} bytes, in phase {status.read()[1]}"
                log.write(f"F\t{number}\t{'slow'!r}\t{text!r}\n")
            if grown > MEMORY_BASE + MEMORY_TIMES * box.size:
                text = f"{grown >> 20} MiB for {box.size} bytes, in phase {status.read()[1]}"
                log.write(f"F\t{number}\t{'memory'!r}\t{text!r}\n")
            log.write(f"E\t{number}\t{outcome}\t{seconds:.3f}\t{grown}\n")
            log.flush()
    os._exit(0)


def run(target: str, numbers: range, *, seconds: float = 1e9, quiet: bool = True) -> Report:
    """Run the cases of a target, one child after the other, for so many seconds at most."""
    report = Report()
    corpus.models()
    if target not in ("importer", "text", "graph", "shapes"):
        for index in range(len(corpus.foldable())):
            corpus.folded(index)
    deadline = time.monotonic() + seconds
    status = Status()
    place = Path(tempfile.mkdtemp(prefix="fuzz-", dir=IN_MEMORY if IN_MEMORY.is_dir() else None))
    try:
        next_ = numbers.start
        while next_ < numbers.stop and time.monotonic() < deadline:
            next_ = batch(
                target,
                range(next_, min(next_ + BATCH, numbers.stop)),
                status,
                place,
                report,
                deadline,
            )
            if not quiet:
                sys.stderr.write(
                    f"\r{target} {next_} {dict(report.outcomes)} {len(report.findings)} findings "
                )
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return report


def batch(
    target: str, numbers: range, status: Status, place: Path, report: Report, deadline: float
) -> int:
    """Run one child; the number behind the last that it took in hand."""
    out, folder = place / "log", place / "files"
    out.write_text("")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    status.begin(numbers.start)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if not pid:
        try:
            child(target, numbers, status, folder, out, deadline)
        finally:
            os._exit(3)
    _, ended = os.waitpid(pid, 0)
    last = numbers.start - 1
    for line in out.read_text().splitlines():
        kind, number, *rest = line.split("\t")
        if kind == "F":
            report.found(ast.literal_eval(rest[0]), int(number), ast.literal_eval(rest[1]))
        else:
            last = int(number)
            report.executions += 1
            report.outcomes[rest[0]] += 1
            report.slowest = max(report.slowest, (float(rest[1]), last))
            report.largest = max(report.largest, (int(rest[2]), last))
    if ended:
        number, phase = status.read()
        report.executions += 1
        stack = out.with_suffix(".stack").read_text()[-5000:]
        signalled = "hang" if "Timeout" in stack else f"exit {ended}"
        if os.WIFSIGNALED(ended):
            signalled = f"signal {os.WTERMSIG(ended)}"
        if phase == "source in runtime":
            report.outcomes[f"runtime: {signalled}"] += 1
        else:
            report.outcomes[signalled] += 1
            report.found(f"{signalled} in {phase}", number, stack)
        return number + 1
    return numbers.stop if last < numbers.stop - 1 and time.monotonic() > deadline else last + 1
