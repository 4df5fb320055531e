"""`python tests/proofs`: prove the lines of all rules, or of some, and write docs/proofs.md."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from proofs.inventory import NOT_PROVED, entries
from proofs.prover import prove
from proofs.report import read, write


def main() -> int:
    names = sys.argv[1:]
    results = read() if names else {}
    failed = []
    for entry in entries():
        if entry.name in NOT_PROVED or (names and entry.name not in names):
            continue
        if entry.domain is None or not entry.line:
            lacks = "domain: domains.py has those of channel maps, expressions.py of SimplifyExpr"
            failed.append(f"{entry.name} has no {lacks if entry.line else 'line'}")
            continue
        start = time.perf_counter()
        proof = prove(entry.name, entry.line, entry.domain)
        seconds = time.perf_counter() - start
        failed += [f"{entry.name}: {each}" for each in proof.failed]
        failed += [f"{entry.name}: a condition is needless: {each}" for each in proof.needless]
        print(
            f"{entry.name}: proved in {proof.proved} cases, {len(proof.counterexamples)} conditions"
            f" are needed, {seconds:.1f} s",
            flush=True,
        )
        if proof.holds:
            results[entry.name] = {
                "line": proof.line, "kinds": proof.kinds, "size": proof.size, "proved": proof.proved,
                "counterexamples": proof.counterexamples,
            }  # fmt: skip
    print(*failed, sep="\n", file=sys.stderr)
    if not failed:
        write(results)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
