"""`irc certify`: prove a compile by its certificate."""

from __future__ import annotations

import argparse
import sys

from ...support.output_paths import check_apart
from .options import Subparsers, writing_json


def add(commands: Subparsers[argparse.ArgumentParser]) -> None:
    """Add the subcommand with its arguments."""
    command = commands.add_parser(
        "certify",
        help="prove that a compiled model computes what its source does",
        description=(
            "Find the steps of a proof that OUT computes what SOURCE does, by what CERT.json"
            " records of the compile, and replay them with a checker that shares no code with the"
            " compiler. Exit with 0 if they prove it, with 1 and the reason if they do not, and"
            " with 3 if they prove it only under unproved steps, which are listed."
        ),
    )
    command.add_argument("source", metavar="SOURCE", help="the ONNX file that was compiled")
    command.add_argument("result", metavar="OUT", help="the ONNX file that irc compile wrote")
    command.add_argument("certificate", metavar="CERT.json", help="the certificate that it wrote")
    command.add_argument(
        "--proof",
        metavar="PROOF.json",
        help="write a certificate with all steps, which irc certify replays without a search",
    )
    command.add_argument(
        "--allow-unproved",
        action="store_true",
        help="exit with 0 even if some steps are unproved, because no identity covers them",
    )
    command.add_argument(
        "-q", "--quiet", action="store_true", help="print nothing if the certificate holds"
    )


def run(options: argparse.Namespace) -> int:
    """Check the certificate and print the answer."""
    from ...support.errors import visible
    from ..certify.checker.certificate import Rejected
    from ..certify.proving import prove

    read = options.source, options.result, options.certificate
    check_apart([options.proof], read)
    try:
        verdict, proof = prove(*read)
    except Rejected as rejected:
        # A certificate that cannot be read is named by the checker.
        reason = str(rejected).removeprefix(f"{options.certificate}: ")
        sys.stderr.write(f"irc: {visible(options.certificate)}: {visible(reason)}\n")
        return 1
    if options.proof is not None:
        with writing_json(options.proof, proof):
            pass
    sys.stderr.writelines(f"irc: {visible(line)}\n" for line in verdict.lines())
    if not options.quiet:
        count = "1 step" if verdict.steps == 1 else f"{verdict.steps} steps"
        outcome = f"proved in {count}"
        if verdict.unproved:
            outcome = f"{count}, {len(verdict.unproved)} of them unproved"
        sys.stdout.write(
            f"{visible(options.result)} computes what {visible(options.source)} does: {outcome}\n"
        )
    return 3 if verdict.unproved and not options.allow_unproved else 0
