"""Many compiles in one process: do memory and file descriptors stay what they were?

    python benchmarks/soak.py [--compiles 10000] [--models 0] [--markdown]

A round reads, compiles and writes, with its fold map, every model of the tests' zoo, with external data too, and the
small models of the shared folder: a thousand kinds, those that are refused among them. Between rounds the collector
runs, the allocator gives back what is free, and resident memory, live objects and open files are counted. The first
four rounds warm up; through the others a line is fitted. Exit status 1 if compiles leave an object or a file, or more
than `--bytes` of memory each. `--models` is a number of models to which the round is cut, evenly. Linux only.
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

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import harness
import irc
import numpy as np
import zoo

WARM = 4
"""Rounds that warm up: caches of libraries, and the allocator's pools."""

LARGEST = 150_000
"""Bytes of the largest shared model that takes part."""


@dataclass(frozen=True)
class Reading:
    """The process after a number of compiles."""

    compiles: int
    resident: int
    objects: int
    files: int


def reading(compiles: int, earlier: int) -> Reading:
    """Read the process; `earlier` readings are no objects that compiles left."""
    filecmp.clear_cache()  # the standard library's, of a hundred entries
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    files = len(os.listdir("/proc/self/fd"))
    return Reading(compiles, pages * os.sysconf("SC_PAGE_SIZE"), len(gc.get_objects()) - earlier, files)


def place_models(folder: Path) -> list[Path]:
    """Write the models of a round."""
    paths = [path for _, path in zoo.external_models(folder / "external")]
    for i, (_, model) in enumerate(zoo.models()):
        path = folder / f"{i:04}.onnx"
        path.write_bytes(model.SerializeToString())
        paths.append(path)
    shared = sorted(harness.SHARED.glob("*/*.onnx")) if harness.SHARED.is_dir() else []
    return paths + [path for path in shared if path.stat().st_size <= LARGEST]


def compile_all(paths: list[Path], folder: Path) -> int:
    """One round; how many models were refused."""
    refused = 0
    for path in paths:
        try:
            result = irc.compile(path)
            result.save(folder / "out.onnx", fold_map=folder / "map.json")
        except irc.IRError:
            refused += 1
    return refused


def rounds(count: int, models: int) -> Iterator[tuple[Reading, int]]:
    """A reading after each of as many rounds as `count` compiles need, and how many models it refused."""
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


def slope(readings: list[Reading], what: str) -> float:
    """Growth per compile after the warm-up, by least squares."""
    steady = readings[WARM:]
    return float(np.polyfit([r.compiles for r in steady], [getattr(r, what) for r in steady], 1)[0])


def main() -> int:
    """Run, print, judge."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--compiles", type=int, default=10_000)
    options.add_argument("--models", type=int, default=0)
    options.add_argument("--bytes", type=float, default=100.0, help="memory that a compile may leave (default: 100)")
    options.add_argument("--markdown", action="store_true")
    given = options.parse_args()
    warnings.simplefilter("ignore")
    start, readings = time.perf_counter(), []
    between = " | " if given.markdown else "  "
    edge = "| " if given.markdown else ""
    print(edge + between.join(("compiles", "refused", "resident MiB", "objects", "files")) + edge[::-1])
    if given.markdown:
        print("| ---: | ---: | ---: | ---: | ---: |")
    for found, refused in rounds(given.compiles, given.models):
        readings.append(found)
        cells = (found.compiles, refused, f"{found.resident / 2**20:.1f}", found.objects, found.files)
        print(edge + between.join(map(str, cells)) + edge[::-1], flush=True)
    memory, objects = slope(readings, "resident"), slope(readings, "objects")
    files = readings[-1].files - readings[WARM].files
    print(f"\na compile leaves {memory:.1f} bytes, {objects:.4f} objects; {files} files; ", end="")
    print(f"{time.perf_counter() - start:.0f} s")
    return int(memory > given.bytes or abs(objects) >= 0.001 or files != 0)


if __name__ == "__main__":
    raise SystemExit(main())
