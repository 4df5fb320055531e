"""Compile many models in one process, and check that memory and open files do not grow.

    python benchmarks/soak.py [--compiles 10000] [--models 0] [--markdown]

Each round reads, compiles and writes, with its fold map, every model of the tests' zoo, also with
external data, and the small models of the shared folder: about a thousand models, some of which irc
rejects. After each round the garbage collector runs and the allocator returns free memory; then
resident memory, live objects and open files are counted.

The first four rounds warm up. A line is fitted through the others. The exit status is 1 if compiles
leave an object or a file, or more than `--bytes` of memory each. `--models` limits a round to an
even selection. Linux only.
"""

from __future__ import annotations

import argparse
import ctypes
import filecmp
import gc
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

import harness
import irc
import numpy as np
import zoo

WARM = 4
"""Number of rounds that fill the caches of libraries and the pools of the allocator."""

LARGEST = 150_000
"""Maximum size of a shared model in bytes."""


@dataclass(frozen=True)
class Reading:
    """Resident memory in bytes, live objects and open files after a number of compiles."""

    compiles: int
    resident: int
    objects: int
    files: int


def reading(compiles: int, earlier: int) -> Reading:
    """Measure this process, without the objects of the `earlier` readings."""
    filecmp.clear_cache()  # a cache of the standard library, of a hundred entries
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    files = len(os.listdir("/proc/self/fd"))
    return Reading(
        compiles, pages * os.sysconf("SC_PAGE_SIZE"), len(gc.get_objects()) - earlier, files
    )


def place_models(folder: Path) -> list[Path]:
    """Write the models of a round to `folder`, and return the paths of all models of a round."""
    paths = [path for _, path in zoo.external_models(folder / "external")]
    for i, (_, model) in enumerate(zoo.models()):
        path = folder / f"{i:04}.onnx"
        path.write_bytes(model.SerializeToString())
        paths.append(path)
    return paths + [path for path in harness.shared_models() if path.stat().st_size <= LARGEST]


def compile_all(paths: list[Path], folder: Path) -> int:
    """Compile and save all models once, and return the number of rejected models."""
    refused = 0
    for path in paths:
        try:
            result = irc.compile(path)
            result.save(folder / "out.onnx", fold_map=folder / "map.json")
        except irc.IRError:
            refused += 1
    return refused


def rounds(count: int, models: int) -> Iterator[tuple[Reading, int]]:
    """Yield a reading and the rejected models after each round, for at least `count` compiles."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "external").mkdir()
        (folder / "out").mkdir()
        paths = place_models(folder)
        if models:
            paths = paths[:: max(1, len(paths) // models)][:models]
        for i in range(max(WARM + 3, -(-count // len(paths)))):
            refused = compile_all(paths, folder / "out")
            yield reading((i + 1) * len(paths), i), refused


def slope(readings: list[Reading], measure: str) -> float:
    """Return the growth of a measure per compile after the warm-up, by least squares."""
    steady = readings[WARM:]
    return float(
        np.polyfit([r.compiles for r in steady], [getattr(r, measure) for r in steady], 1)[0]
    )


def main() -> int:
    """Run the rounds, print the readings, and return the exit status."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--compiles", type=int, default=10_000, help="minimum number of compiles (default: 10000)"
    )
    options.add_argument(
        "--models", type=int, default=0, help="models in a round (default: 0, all)"
    )
    options.add_argument(
        "--bytes", type=float, default=100.0, help="memory that a compile may leave (default: 100)"
    )
    options.add_argument("--markdown", action="store_true", help="print the table in Markdown")
    given = options.parse_args()
    warnings.simplefilter("ignore")
    if not harness.SHARED.is_dir():
        print(f"{harness.ALONE}: its models are left out", file=sys.stderr)
    start, readings = time.perf_counter(), []
    between = " | " if given.markdown else "  "
    edge = "| " if given.markdown else ""
    print(
        edge
        + between.join(("compiles", "refused", "resident MiB", "objects", "files"))
        + edge[::-1]
    )
    if given.markdown:
        print("| ---: | ---: | ---: | ---: | ---: |")
    for found, refused in rounds(given.compiles, given.models):
        readings.append(found)
        cells = (
            found.compiles,
            refused,
            f"{found.resident / 2**20:.1f}",
            found.objects,
            found.files,
        )
        print(edge + between.join(map(str, cells)) + edge[::-1], flush=True)
    memory, objects = slope(readings, "resident"), slope(readings, "objects")
    files = readings[-1].files - readings[WARM].files
    print(f"\na compile leaves {memory:.1f} bytes, {objects:.4f} objects; {files} files; ", end="")
    print(f"{time.perf_counter() - start:.0f} s")
    return int(memory > given.bytes or abs(objects) >= 0.001 or files != 0)


if __name__ == "__main__":
    raise SystemExit(main())
