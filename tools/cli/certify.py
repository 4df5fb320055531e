"""`irc certify`: check a certificate of `irc compile`."""

from __future__ import annotations

import argparse
import sys

from .options import Subparsers


def add(commands: Subparsers[argparse.ArgumentParser]) -> None:
    """Add the subcommand with its arguments."""
    command = commands.add_parser(
        "certify",
        help="check the proof that a compiled model computes what its source does",
        description=(
            "Replay the steps of CERT.json on SOURCE and OUT with a checker that shares no code"
            " with the compiler. Exit with 0 if they prove that OUT computes what SOURCE does, and"
            " with 1 and the first step that does not hold if they do not."
        ),
    )
    command.add_argument("source", metavar="SOURCE", help="the ONNX file that was compiled")
    command.add_argument("result", metavar="OUT", help="the ONNX file that irc compile wrote")
    command.add_argument("certificate", metavar="CERT.json", help="the certificate that it wrote")
    command.add_argument(
        "-q", "--quiet", action="store_true", help="print nothing if the certificate holds"
    )


def run(options: argparse.Namespace) -> int:
    """Check the certificate and print the answer."""
    from ...support.errors import visible
    from ..certify.checker import Rejected, certify

    try:
        steps = certify(options.source, options.result, options.certificate)
    except Rejected as rejected:
        sys.stderr.write(f"irc: {visible(options.certificate)}: {visible(str(rejected))}\n")
        return 1
    if not options.quiet:
        count = "1 step" if steps == 1 else f"{steps} steps"
        sys.stdout.write(
            f"{visible(options.result)} computes what"
            f" {visible(options.source)} does: proved in {count}\n"
        )
    return 0
