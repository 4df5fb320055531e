"""Compile every model of the shared folder and verify its numerics, each model in its own process.

    python benchmarks/verified_models.py [--only TEXT] [--each] [--thorough] [--costs] [--largest BYTES]
                                         [--timeout SECONDS] [--json FILE]

prints the number of verified models, the largest differences as shares of the rounding bound, the
shares of undecided elements, the number of models that were not verified, and the reasons. No model
should be accused.

With --costs, `irc align` compares the models too, and onnxruntime has one thread. A table has the
processor time of one inference of the source, of a compile with --verify=end and of align, both
from the start of the process, and the inferences that they take beyond 2 seconds: at most 40 by
default. Runs are counted: of the source, the noisy source and the other model.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

import harness
import irc
from irc.backends.runtime.remote_session import RemoteSession, runtime
from irc.backends.runtime.sessions import new_session
from irc.frontends.onnx import read_model
from irc.passes import PassContext
from irc.support.errors import SourceError, VerifyError
from irc.tools.verify import VerifyNumerics, runner
from irc.tools.verify.alignment import align
from irc.tools.verify.comparison import Comparison


def processor_time() -> float:
    """Return the processor time of this process and the one that runs models."""
    process = runtime.worker.process
    if process is None:
        return process_time()
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return process_time() + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def runtime_megabytes() -> int:
    """Return the greatest memory of the process that runs models, 0 if there is none."""
    process = runtime.worker.process
    if process is None:
        return 0
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) >> 10


def verify(path: Path, when: str, *, thorough: bool, costs: bool) -> dict[str, Any]:
    """Verify one model, and return its outcome, time and memory."""
    warnings.simplefilter("ignore")
    started, startup = perf_counter(), processor_time()
    instrument = VerifyNumerics(when=when, thorough=thorough)
    try:
        result = irc.compile(path, context=PassContext([instrument]))
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / path.name
            result.save(output, check=partial(instrument.finish, result.module))
            taken = costs_of(path, output, instrument, startup, thorough=thorough) if costs else {}
        verdicts = instrument.verdicts
        found: dict[str, Any] = {
            "outcome": "verified",
            "share": max(verdict.greatest for verdict in verdicts),
        }
        found |= {"tensors": verdicts[-1].tensors, "silent": verdicts[-1].silent}
        found["undecided"] = round(verdicts[-1].undecided, 5)
        found |= taken
    except SourceError as error:
        found = {"outcome": "not run", "why": str(error)}
    except VerifyError as error:
        found = {"outcome": "accused", "why": str(error)}
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10) + runtime_megabytes()
    return {**found, "seconds": round(perf_counter() - started, 1), "megabytes": memory}


def costs_of(
    path: Path, output: Path, instrument: VerifyNumerics, startup: float, *, thorough: bool
) -> dict[str, Any]:
    """Align the compiled model; return the cost of the verification and the alignment."""
    verified = processor_time()
    (source, base_dir), (other, _) = read_model(path), read_model(output)
    comparison = Comparison(source, base_dir, frozen=True, thorough=thorough)
    accused = align(comparison, other, output.parent).first_divergence is not None
    aligned = startup + processor_time() - verified
    session = new_session(source.SerializeToString(), base_dir, threads=1)
    names = {entry.name for entry in session.get_inputs()}
    feeds = {name: array for name, array in comparison.inputs[0].feeds.items() if name in names}
    times = []
    for _ in range(5):
        begin = process_time()
        session.run(None, feeds)
        times.append(process_time() - begin)
    inference = min(times)
    return {
        "accused_by_align": accused,
        "inference": inference,
        "verify": verified,
        "align": aligned,
        "beyond": [max(seconds - 2, 0) / inference for seconds in (verified, aligned)],
        "runs": [round(count, 1) for count in (*comparison.source.runs, comparison.runs_of_others)],
        "budget": [len(comparison.inputs), comparison.source.noisy_runs],
    }


def apart(path: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Verify one model in another process, which isolates crashes of onnxruntime."""
    timeout = options.timeout
    try:
        flags = [f"--{name}" for name in ("each", "thorough", "costs") if getattr(options, name)]
        command = [sys.executable, __file__, "--one", str(path), *flags]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return {"outcome": "failed", "why": f"took longer than {timeout:g} s"}
    if done.returncode:
        return {
            "outcome": "failed",
            "why": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1],
        }
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    """Verify the selected models and print the report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="select models whose path contains this text")
    parser.add_argument(
        "--each", action="store_true", help="verify after every pass instead of only at the end"
    )
    parser.add_argument("--thorough", action="store_true", help="run large models on more inputs")
    parser.add_argument(
        "--costs", action="store_true", help="measure costs in inferences, those of irc align too"
    )
    parser.add_argument("--largest", type=int, help="skip files of more bytes")
    parser.add_argument(
        "--timeout", type=float, default=600, help="maximum seconds of one model (default: 600)"
    )
    parser.add_argument("--json", type=Path, help="write the outcome of every model to this file")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    when = "each" if options.each else "end"
    if options.one:
        if options.costs:
            runner.RemoteSession = partial(
                RemoteSession, threads=1
            )  # threads that wait take processor time too
        print(json.dumps(verify(options.one, when, thorough=options.thorough, costs=options.costs)))
        return
    if not harness.SHARED.is_dir():
        parser.error(f"{harness.ALONE}: there is nothing to verify")
    files = [path for path in harness.shared_models() if options.only in str(path)]
    found: dict[str, dict[str, Any]] = {}
    for path in files:
        if options.largest is None or path.stat().st_size <= options.largest:
            name = f"{path.parent.name}/{path.name}"
            found[name] = apart(path, options)
            print(name, json.dumps(found[name]), file=sys.stderr, flush=True)
            if options.json:
                options.json.write_text(json.dumps(found, indent=1) + "\n")
    report(found)


def report(found: dict[str, dict[str, Any]]) -> None:
    """Print counts, the largest shares, and the reasons why models were not verified."""
    outcomes = Counter(entry["outcome"] for entry in found.values())
    print(
        f"{len(found)} models:"
        f" {', '.join(f'{count} {outcome}' for outcome, count in outcomes.most_common())}"
    )
    verified = [
        (entry["share"], name) for name, entry in found.items() if entry["outcome"] == "verified"
    ]
    print("largest shares of the rounding bound:")
    for share, name in sorted(verified, reverse=True)[:5]:
        print(f"  {share:6.3f}  {name}")
    for share, name in sorted(
        ((entry.get("undecided", 0), name) for name, entry in found.items()), reverse=True
    )[:5]:
        print(f"  {share:7.2%} of the elements of {name} are undecided")
    for name, entry in found.items():
        if entry.get("silent"):
            print(f"{entry['silent']} of {entry['tensors']} tensors of {name} are undecided")
    reasons = Counter(
        f"{entry['outcome']}: {re.sub('[0-9]+', 'N', entry['why'])}"
        for entry in found.values()
        if "why" in entry
    )
    for reason, count in reasons.most_common():
        print(f"  {count:4}  {reason}")
    costs = {name: entry for name, entry in found.items() if "beyond" in entry}
    if costs:
        report_costs(costs)


def report_costs(found: dict[str, dict[str, Any]]) -> None:
    """Print the models that take most, in inferences beyond 2 seconds."""
    print(f"irc align accuses {sum(entry['accused_by_align'] for entry in found.values())} models")
    print(
        "inference   verify    align  inferences beyond 2 s  runs: source, noisy, other  inputs x"
        " noisy  model"
    )
    for name, entry in sorted(found.items(), key=lambda item: max(item[1]["beyond"]), reverse=True)[
        :10
    ]:
        beyond, runs = (", ".join(f"{one:.1f}" for one in entry[key]) for key in ("beyond", "runs"))
        times = f"{entry['inference']:8.4f} s {entry['verify']:6.2f} s {entry['align']:6.2f} s"
        print(
            f"{times}  {beyond:>21}  {runs:>26}  {'x'.join(map(str, entry['budget'])):>14}  {name}"
        )


if __name__ == "__main__":
    main()
