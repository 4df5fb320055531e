"""`python tests/fuzz`: a campaign, or one case of it."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from fuzz.campaign import execute, run
from fuzz.targets import TARGETS


def main() -> int:
    grammar = argparse.ArgumentParser(
        prog="tests/fuzz", description="Mutate what irc reads, and see what comes of it."
    )
    grammar.add_argument("--target", default="all", choices=(*TARGETS, "all"))
    grammar.add_argument("--executions", type=int, default=10_000, help="in sum over the targets")
    grammar.add_argument(
        "--minutes", type=float, default=1e6, help="stop after so many, in sum, whatever is left"
    )
    grammar.add_argument(
        "--seed", type=int, default=0, help="the number of the first case of each target"
    )
    grammar.add_argument(
        "--only", type=int, metavar="NUMBER", help="run this case alone, in this process"
    )
    grammar.add_argument("--save", metavar="DIR", help="with --only: write its files there")
    options = grammar.parse_args()
    targets = list(TARGETS) if options.target == "all" else [options.target]
    if options.only is not None:
        return one(targets[0], options.only, options.save)
    failed = 0
    share = options.executions // len(targets)
    for target in targets:
        numbers = range(options.seed, options.seed + share)
        report = run(target, numbers, seconds=options.minutes * 60 / len(targets), quiet=False)
        sys.stderr.write("\r" + " " * 100 + "\r")
        print("\n".join(report.lines(target)), flush=True)
        failed += len(report.findings)
    return 1 if failed else 0


def one(target: str, number: int, save: str | None) -> int:
    with tempfile.TemporaryDirectory() as place:
        box = None
        try:
            outcome, box = execute(target, number, Path(place))
            print(f"{target} {number}: {outcome}")
            return 0
        except BaseException as error:
            box = error.__dict__.get("box")
            raise
        finally:
            if save is not None and box is not None:
                Path(save).mkdir(parents=True, exist_ok=True)
                for name, content in box.keep.items():
                    (Path(save) / name).write_bytes(content)


if __name__ == "__main__":
    raise SystemExit(main())
