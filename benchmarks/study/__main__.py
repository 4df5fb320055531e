"""Study what irc and other tools make of the same models: `make study`.

    python benchmarks/study [--suites rules,structures,light,real,open] [--models FOLDER]
                            [--tools irc,onnxsim] [--only TEXT] [--page docs/study.md] [--json build/study.json]

Every tool compiles every model, and a judge that uses nothing of irc compares the result with the
source: `judge.py` has the rules. The page lists crashes, invalid results, wrong results with
a minimal model each, changed interfaces, and folds that another tool does rightly.

Every call runs in a process of its own with a time and a memory limit. Records are kept in
`--cache`, by tool, version and digest of the model, so that an interrupted run goes on where it
stopped. `--only` narrows the models; the page is written of the models of this run only.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from dataclasses import asdict
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1])  # `python benchmarks/study` puts the folder itself

import tools  # noqa: E402
from study.cases import SUITES, study_cases  # noqa: E402
from study.page import page  # noqa: E402
from study.run import Cache, Study, run  # noqa: E402

MIB = 1 << 20
FAMILY = (
    "irc",
    "onnxsim",
    "onnxslim",
    "onnxscript",
    "onnxoptimizer",
    "onnxruntime",
    "onnxruntime extended",
)
"""The tools of the study, in the order of the tables."""


def main() -> None:
    """Run the study and write the page."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--suites", default=",".join(SUITES), help=f"a list from {', '.join(SUITES)} (default: all)"
    )
    parser.add_argument(
        "--tools", default=",".join(FAMILY), help=f"a list from {', '.join(FAMILY)} (default: all)"
    )
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="select models whose name contains this text"
    )
    parser.add_argument(
        "--models", type=Path, metavar="FOLDER", help="the real models (see cleanup.py --collect)"
    )
    parser.add_argument(
        "--exports", type=Path, metavar="FOLDER", help="the open exports (see open_exports.py)"
    )
    parser.add_argument(
        "--limit", type=int, default=32, metavar="MIB", help="largest real model (default: 32)"
    )
    parser.add_argument(
        "--cache", type=Path, default=home / "irc-study", metavar="FOLDER", help="known records"
    )
    parser.add_argument(
        "--retry", action="store_true", help="forget known timeouts and failures for want of memory"
    )
    parser.add_argument(
        "--timeout", type=float, default=120, metavar="S", help="seconds of a tool (default: 120)"
    )
    parser.add_argument(
        "--memory", type=int, default=8192, metavar="MIB", help="data of a tool (default: 8192)"
    )
    parser.add_argument(
        "--patience", type=float, default=60, metavar="S", help="seconds to evaluate a source"
    )
    parser.add_argument(
        "--reduce", type=float, default=120, metavar="S", help="seconds to reduce a wrong result"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=math.inf,
        metavar="M",
        help="begin no model after M minutes",
    )
    parser.add_argument(
        "--workers", type=int, default=2, metavar="N", help="models at a time (default: 2)"
    )
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the page here")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every record here")
    options = parser.parse_args()
    suites, wanted = (
        tuple(filter(None, text.split(","))) for text in (options.suites, options.tools)
    )
    for given, known, what in ((suites, SUITES, "suite"), (wanted, FAMILY, "tool")):
        if unknown := [name for name in given if name not in known]:
            parser.error(f"unknown {what} {', '.join(unknown)}: known are {', '.join(known)}")
    chosen = [tool for tool in wanted if tools.is_installed(tool)]
    for tool in wanted:
        if tool not in chosen:
            print(f"{tool}: not installed (make study installs it)", file=sys.stderr)
    folders = {"real": options.models, "open": options.exports}
    cases = [
        case
        for case in study_cases(suites, folders, options.limit * MIB)
        if options.only in case.name
    ]
    if not cases:
        parser.error(f"no model's name contains {options.only!r}")
    study = Study(
        {tool: tools.TOOLS[tool][1] for tool in chosen},
        {tool: tools.version(tool) for tool in chosen},
        Cache(options.cache, ("timeout", "memory") if options.retry else ()),
        timeout=options.timeout,
        memory=options.memory * MIB,
        patience=options.patience,
    )
    rows, faults = [], []
    for row, found in run(study, cases, options.reduce, options.minutes, options.workers):
        rows.append(row)
        faults += found
    done = {(row.suite, row.name) for row in rows}
    left = [case for case in cases if (case.suite, case.name) not in done]
    text = page(rows, faults, study.versions, options, left, study.own_reasons(rows, cases))
    if options.page is None:
        print(text)
    else:
        options.page.write_text(text)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(
            json.dumps({"rows": [asdict(row) for row in rows], "faults": list(map(asdict, faults))})
        )


if __name__ == "__main__":
    main()
