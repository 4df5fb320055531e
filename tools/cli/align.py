"""`irc align`: compare two models tensor by tensor."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from .options import (
    COMPARED,
    Subparsers,
    add_data_preprocess,
    add_input_shapes,
    add_inputs,
    add_limits,
    add_session_options,
    add_thorough,
    add_tolerance,
    check_once,
    complete_outputs,
    data_file,
    document_head,
    input_shapes_of,
    limits_of,
    map_files,
    name_of,
    tolerance_of,
    warn,
    writing_json,
)

WIDE = 200
"""Columns of the table if the output is not a terminal."""


def add(commands: Subparsers[argparse.ArgumentParser]) -> None:
    """Add the subcommand with its arguments."""
    command = commands.add_parser(
        "align",
        help="compare two models tensor by tensor",
        description=(
            "Run A and B on the same inputs, and compare every tensor of A with its counterpart in"
            " B, found by name, by the fold map or by structure. Exit with 1 if a difference is"
            " larger than rounding explains. A quantized B is judged by the signal-to-noise ratio"
            " (SQNR) of its layers instead, and the exit status is 0. Every result of a float16 or"
            " bfloat16 B is rounded in float32 arithmetic and held to the bound of its type, and"
            " the first operator that overflows is named."
        ),
    )
    command.add_argument("first", metavar="A", help=COMPARED)
    command.add_argument(
        "second", metavar="B", help="an ONNX file, for example the output of irc compile for A"
    )
    command.add_argument(
        "--map",
        metavar="MAP.json",
        help="the fold map of B, to compare tensors of A that B does not compute",
    )
    add_inputs(command)
    add_input_shapes(command)
    add_thorough(command)
    add_tolerance(command)
    add_session_options(command)
    command.add_argument(
        "--data",
        metavar="FOLDER|NPZ",
        help=(
            "samples to judge a quantized model B by: a folder or an .npz file,"
            " samples along the first axis"
        ),
    )
    add_data_preprocess(command)
    command.add_argument(
        "--by",
        choices=("rounding", "sqnr"),
        help=(
            "the judgement: whether rounding explains a difference, or the SQNR of each quantized"
            " layer (default: sqnr if B is quantized and A is not)"
        ),
    )
    command.add_argument(
        "--json", metavar="OUT.json", help="write all rows as JSON; - is standard output"
    )
    command.add_argument(
        "--html", metavar="OUT.html", help="write a page with both graphs and the differences"
    )
    command.add_argument(
        "--svg", metavar="OUT.svg", help="draw the graph of A with the difference of every result"
    )
    command.add_argument(
        "--dump",
        metavar="DIR",
        help="save every tensor of both as .npy with an index; replaces an earlier dump",
    )
    command.add_argument("-q", "--quiet", action="store_true", help="do not print the table")
    add_limits(command)


def run(options: argparse.Namespace) -> int:
    """Compare, print the table and write the output files."""
    from pathlib import Path

    from rich.console import Console

    from ...backends.foldmap.fold_map import FoldMap
    from ...backends.onnx.kept_files import external_files
    from ...compiler import read_onnx
    from ...support.errors import UsageError
    from ...support.files import FileTransaction
    from ...support.output_paths import check_apart, check_drawing
    from ..float16.narrow_alignment import align_model, narrowed_type
    from ..report import collect_alignment, writing_page, writing_report
    from ..verify.align_table import print_alignment
    from ..verify.alignment import check_dump, dump
    from ..verify.alignment_drawing import alignment_drawing
    from ..verify.both_models import check_extents, compare_with
    from ..verify.branch_outputs import expose_branch_tensors
    from ..verify.inputs import read_inputs
    from ..verify.runner import Runner
    from .align_quantized import align_layers, judges_layers
    from .terminal import progress

    complete_outputs(options, options.second, json=".json", html=".html", svg=".svg")
    if "-" in (options.html, options.svg):
        raise UsageError("--html and --svg need a file, not standard output")
    if options.svg is not None:
        check_drawing("--svg", options.svg)
    check_once(options.first, options.second)
    limits = limits_of(options)
    shapes = input_shapes_of(options)
    first, base_dir = read_onnx(options.first, limits, shapes)
    second, other_dir = read_onnx(options.second, limits, shapes)
    reads = [options.first, options.second, *map_files(options.map), *options.inputs]
    reads += [data_file(options.first), data_file(options.second)]
    external = external_files(first, base_dir) | external_files(second, other_dir)
    check_apart([options.json, options.html, options.svg], [*reads, *external])
    console = Console() if sys.stdout.isatty() else Console(width=WIDE)
    if not options.inputs:
        check_extents(first, second)
    if judges_layers(options, first, second):
        with blaming(options):
            return align_layers(options, (first, base_dir), (second, other_dir), console)
    if options.dump:
        check_dump(Path(options.dump))
    fold_map = None if options.map is None else FoldMap.load(options.map, limits)
    dtype = narrowed_type(first, second)
    with progress("comparing", quiet=options.quiet) as advance:
        inputs = read_inputs(options.inputs, first)
        with blaming(options):
            comparison = compare_with(
                first,
                base_dir,
                inputs=inputs,
                advance=advance,
                thorough=options.thorough,
                tolerance=tolerance_of(options),
                narrow=dtype,
            )
            found = align_model(comparison, second, other_dir, fold_map)
    warnings = comparison.warnings(found.differences, first)
    warn(warnings)
    with FileTransaction(options.json, options.html, options.svg) as files:
        if options.json:
            files.enter_context(
                writing_json(
                    options.json,
                    document_head("align")
                    | found.to_json()
                    | {"budget": comparison.budget, "warnings": warnings},
                )
            )
        if options.html:
            names = (name_of(options.first), name_of(options.second))
            page = collect_alignment(names, first, second, found.report_rows())
            files.enter_context(writing_report(options.html, page))
        if options.svg:
            files.enter_context(writing_page(options.svg, alignment_drawing(first, found)))
        if options.dump:
            dump(
                Path(options.dump),
                (
                    ("a", comparison.source.runner),
                    ("b", Runner(expose_branch_tensors(second, other_dir), other_dir)),
                ),
                comparison,
            )
    if not options.quiet and options.json != "-":
        print_alignment(found, console)
        if comparison.left_out:
            sys.stdout.write(f"not run on: {', '.join(comparison.left_out)} (--thorough does)\n")
    return int(not found.agrees)


@contextmanager
def blaming(options: argparse.Namespace) -> Iterator[None]:
    """Begin the message of a VerifyError with the file of the model that causes it."""
    from ...support.errors import InputsError, SourceError, VerifyError

    def of(path: str) -> str:
        return "standard input" if path == "-" else path

    try:
        yield
    except InputsError:
        raise
    except SourceError as error:
        raise SourceError(f"{of(options.first)}: {error}") from None
    except VerifyError as error:
        raise VerifyError(f"{of(options.second)}: {error}") from None
