"""`irc bisect`: find the rule application that makes the compiled model wrong."""

from __future__ import annotations

import argparse
import sys

from .options import (
    FILE,
    Subparsers,
    add_data,
    add_inputs,
    add_limits,
    add_module_options,
    add_session_options,
    add_thorough,
    module_of,
)


def add(commands: Subparsers[argparse.ArgumentParser]) -> None:
    """Add the subcommand with its arguments."""
    command = commands.add_parser(
        "bisect",
        help="find the pass and the rule application that make a model wrong",
        description=(
            "Find the first application of a rule after which the compiled MODEL differs from its"
            " source, or COMMAND fails. Exit with 1 if there is one. Passes that change the"
            " function by design need COMMAND."
        ),
    )
    command.add_argument("model", metavar="MODEL", help=FILE)
    add_data(command)
    add_module_options(command)
    command.add_argument(
        "--command",
        dest="judge",
        metavar="COMMAND",
        help=(
            "a shell command that fails if a compiled model is wrong;"
            " {} is replaced by the path of the model"
        ),
    )
    command.add_argument(
        "-o", "--output", metavar="DIR", help="save the smallest models that reproduce the fault"
    )
    add_inputs(command)
    add_thorough(command)
    add_session_options(command)
    command.add_argument("-q", "--quiet", action="store_true", help="do not show progress")
    add_limits(command)


def run(options: argparse.Namespace) -> int:
    """Find the first wrong application of a rule and print it."""
    from pathlib import Path

    from ...passes import FreezeInitializers, parse_pipeline
    from ...passes.infra import Sequential
    from ...result import Result
    from ...support.errors import UsageError, visible
    from ..verify import VerifyNumerics
    from ..verify.bisection import bisect, judge_by_command, judge_numerically
    from ..verify.inputs import read_inputs
    from .terminal import progress

    if options.judge is not None:
        # The command runs the model itself, on inputs and with a verdict of its own.
        ours = options.inputs or options.output or options.thorough
        if ours or "{}" not in options.judge:
            raise UsageError(
                "--command needs {} in place of the model, and allows neither"
                " --inputs, --thorough nor -o"
            )
    if options.model == "-":
        raise UsageError(
            "bisect needs a file, not standard input: it reads the model again for each compile"
        )
    pipeline = parse_pipeline(options.passes)
    changing = next((pass_ for pass_ in pipeline.flat if not pass_.preserves), None)
    if changing is not None and options.judge is None:
        raise UsageError(
            f"{changing} changes the function by design: leave it out of"
            " --passes, or give a --command"
        )
    if options.freeze_initializers:
        pipeline = Sequential([FreezeInitializers(), *pipeline.passes])
    first = module_of(options.model, options)
    reproducer = None if options.output is None else Path(options.output)
    if options.judge is None:
        frozen = any(pass_.freezes for pass_ in pipeline.flat)
        inputs = read_inputs(options.inputs, Result(first).model) if options.inputs else ()
        verify = VerifyNumerics(
            inputs, reproducer=reproducer, frozen=frozen, thorough=options.thorough
        )
        judge = judge_numerically(verify, first)
    else:
        judge = judge_by_command(options.judge)
    with progress("trying", quiet=options.quiet) as advance:
        found = bisect(lambda: module_of(options.model, options), pipeline, judge, advance)
    if found is None:
        name = "the default pipeline" if options.passes == "default" else str(pipeline)
        after = f"after {name}" if pipeline.passes else "without passes"
        sys.stdout.write(visible(f"{options.model}: nothing is wrong {after}") + "\n")
        return 0
    sys.stdout.write(visible(str(found), keep="\n") + "\n")
    return 1
