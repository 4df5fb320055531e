"""`irc verify`: whether two models compute the same."""

from __future__ import annotations

import argparse
import sys

from .options import (
    COMPARED,
    Subparsers,
    add_input_shapes,
    add_inputs,
    add_limits,
    add_preprocess,
    add_session_options,
    add_thorough,
    add_tolerance,
    check_once,
    input_shapes_of,
    limits_of,
    tolerance_of,
)


def add(commands: Subparsers[argparse.ArgumentParser]) -> None:
    """Add the subcommand with its arguments."""
    command = commands.add_parser(
        "verify",
        help="check that two models compute the same, up to rounding",
        description=(
            "Run A and B on the same inputs. Exit with 1, and name the first tensor, if a"
            " difference is larger than rounding explains. `irc align` has a table of all tensors,"
            " and `irc compile --verify` compares a model with its result."
        ),
    )
    command.add_argument("first", metavar="A", help=COMPARED)
    command.add_argument("second", metavar="B")
    add_inputs(command)
    add_input_shapes(command)
    add_preprocess(command, "of A ")
    add_thorough(command)
    add_tolerance(command)
    add_session_options(command)
    command.add_argument("-q", "--quiet", action="store_true", help="print nothing")
    add_limits(command)


def run(options: argparse.Namespace) -> int:
    """Compare the models and print the verdict."""
    from ...support.errors import visible
    from ..verify.both_models import align
    from .align import blaming
    from .terminal import progress

    check_once(options.first, options.second)
    with progress("comparing", quiet=options.quiet) as advance, blaming(options):
        found = align(
            options.first,
            options.second,
            inputs=options.inputs or None,
            input_shapes=input_shapes_of(options) or None,
            preprocess=options.preprocess,
            tolerance=tolerance_of(options),
            thorough=options.thorough,
            limits=limits_of(options),
            advance=advance,
        )
    if not options.quiet:
        sys.stdout.writelines(f"{visible(line)}\n" for line in found.lines())
    return 1 if found.first_divergence is not None else 0
