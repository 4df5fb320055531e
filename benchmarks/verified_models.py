"""Compile every model of the shared folder and verify its numerics, each model in its own process.

    python benchmarks/verified_models.py [--only TEXT] [--each] [--largest BYTES] [--timeout SECONDS] [--json FILE]

prints the number of verified models, the largest differences as shares of the rounding bound, the shares of undecided
elements, the number of models that were not verified, and the reasons. No model should be accused.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import harness
import irc
from irc.passes import PassContext
from irc.support.errors import SourceError, VerifyError
from irc.verify import VerifyNumerics


def verify(path: Path, when: str) -> dict[str, Any]:
    """Verify one model, and return its outcome, time and memory."""
    warnings.simplefilter("ignore")
    started = perf_counter()
    instrument = VerifyNumerics(when=when)
    try:
        result = irc.compile(path, context=PassContext([instrument]))
        with tempfile.TemporaryDirectory() as folder:
            result.save(Path(folder) / path.name, check=partial(instrument.finish, result.module))
        verdicts = instrument.verdicts
        found: dict[str, Any] = {"outcome": "verified", "share": max(verdict.greatest for verdict in verdicts)}
        found |= {"tensors": verdicts[-1].tensors, "silent": verdicts[-1].silent}
        found["undecided"] = round(verdicts[-1].undecided, 5)
    except SourceError as error:
        found = {"outcome": "not run", "why": str(error)}
    except VerifyError as error:
        found = {"outcome": "accused", "why": str(error)}
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return {**found, "seconds": round(perf_counter() - started, 1), "megabytes": memory}


def apart(path: Path, when: str, timeout: float) -> dict[str, Any]:
    """Verify one model in another process, which isolates crashes of onnxruntime."""
    try:
        command = [sys.executable, __file__, "--one", str(path), *(["--each"] if when == "each" else [])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return {"outcome": "failed", "why": f"took longer than {timeout:g} s"}
    if done.returncode:
        return {"outcome": "failed", "why": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    """Verify the selected models and print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="select models whose path contains this text")
    parser.add_argument("--each", action="store_true", help="verify after every pass instead of only at the end")
    parser.add_argument("--largest", type=int, help="skip files of more bytes")
    parser.add_argument("--timeout", type=float, default=600, help="maximum seconds of one model (default: 600)")
    parser.add_argument("--json", type=Path, help="write the outcome of every model to this file")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    when = "each" if options.each else "end"
    if options.one:
        print(json.dumps(verify(options.one, when)))
        return
    files = [path for path in sorted(harness.SHARED.glob("*/*.onnx")) if options.only in str(path)]
    found: dict[str, dict[str, Any]] = {}
    for path in files:
        if options.largest is None or path.stat().st_size <= options.largest:
            name = f"{path.parent.name}/{path.name}"
            found[name] = apart(path, when, options.timeout)
            print(name, json.dumps(found[name]), file=sys.stderr, flush=True)
            if options.json:
                options.json.write_text(json.dumps(found, indent=1) + "\n")
    report(found)


def report(found: dict[str, dict[str, Any]]) -> None:
    """Print counts, the largest shares, and the reasons why models were not verified."""
    outcomes = Counter(entry["outcome"] for entry in found.values())
    print(f"{len(found)} models: {', '.join(f'{count} {outcome}' for outcome, count in outcomes.most_common())}")
    verified = [(entry["share"], name) for name, entry in found.items() if entry["outcome"] == "verified"]
    print("largest shares of the rounding bound:")
    for share, name in sorted(verified, reverse=True)[:5]:
        print(f"  {share:6.3f}  {name}")
    for share, name in sorted(((entry.get("undecided", 0), name) for name, entry in found.items()), reverse=True)[:5]:
        print(f"  {share:7.2%} of the elements of {name} are undecided")
    for name, entry in found.items():
        if entry.get("silent"):
            print(f"{entry['silent']} of {entry['tensors']} tensors of {name} are undecided")
    reasons = Counter(
        f"{entry['outcome']}: {re.sub('[0-9]+', 'N', entry['why'])}" for entry in found.values() if "why" in entry
    )
    for reason, count in reasons.most_common():
        print(f"  {count:4}  {reason}")


if __name__ == "__main__":
    main()
