"""Compile one model in this process."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from .options import NO_DURATIONS, add_inputs, add_limits, add_passes, limits_of, map_files, warn
from .report import check_report, recorder_of, reporting
from .summary import Summary, count_nodes, describe_result, summarize

TYPE_CHECKING = False  # of typing, which takes longer to import than the rest
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from ..codec.protos import ModelProto
    from ..ir.module import Module
    from ..passes import Instrument, Timing
    from ..passes.infra import Sequential
    from ..verify import VerifyNumerics


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of `irc compile` for one model."""
    add = command.add_argument
    add("-o", "--output", metavar="OUT", help="a file, a folder or - for standard output (default: MODEL.irc.onnx)")
    add_passes(command)
    add("--fold-map", metavar="MAP.json", help="write the fold map: where each affine went, with its parameters")
    add(
        "--fold-map-store", default="npz", choices=("npz", "inline"), help="store its arrays in MAP.npz or inline (npz)"
    )
    add("--embed-fold-map", action="store_true", help="put the fold map into the model's metadata")
    add("--external-data", action="store_true", help="store tensors of 1 KiB and more in OUT.<digest>.data")
    add("--print-after", action="append", default=[], metavar="PASS", help="print the IR after PASS, or all, to stderr")
    add("--diff", action="store_true", help="print the changes of each pass as a unified diff to stderr")
    add("--dump-ir", metavar="DIR", help="write the IR after each pass to numbered files in DIR")
    add("--time-passes", action="store_true", help="print the duration of each pass")
    add("--verify-ir", action="store_true", help="check the invariants of the IR after each pass")
    add(
        "--verify",
        nargs="?",
        const="each",
        choices=("each", "end"),
        help="compare results with the source after each pass (default) or at the end; a difference is an error",
    )
    add_inputs(command)
    add_limits(command)
    add("--explain", action="store_true", help="print for each affine where it went or why it stays")
    add("--report", metavar="REPORT.html", help="write a page that shows the changes of the passes")
    add("--no-durations", action="store_true", help=NO_DURATIONS)
    add("--json", metavar="OUT.json", help="write the summary as JSON; - is standard output")
    add("-q", "--quiet", action="store_true", help="do not print a summary")


def compile_one(options: argparse.Namespace, summary: Summary) -> None:
    """Compile `options.model` and write all output files, or none and the error to the summary.

    Raises an IRError for a model that cannot be compiled or verified, and UsageError for options that contradict each
    other.
    """
    from ..passes import parse_pipeline

    pipeline = parse_pipeline(options.passes)
    output = _place_files(options)
    others = _check_outputs(options, output)
    with summary.of_failure():
        _compile(options, pipeline, output, others, summary)


def _compile(
    options: argparse.Namespace,
    pipeline: Sequential,
    output: str,
    others: Sequence[str | Path | None],
    summary: Summary,
) -> None:
    from time import perf_counter

    from ..backends.compiler import compile as compile_model
    from ..backends.compiler import read
    from ..backends.onnx.external_output import check_kept
    from ..passes import PassContext
    from ..support.files import FileTransaction

    start = perf_counter()
    module = read(options.model, limits_of(options))
    check_kept(module, output, *others)
    summary.is_free = True
    timing = _timing() if options.time_passes else None
    recorder = recorder_of(module) if options.report is not None else None
    verify = summary.verify = _verification(options, module, output)
    instruments = [timing, recorder, *_text_instruments(options), verify]
    context = PassContext([instrument for instrument in instruments if instrument is not None])
    before = count_nodes(module) if summary.is_wanted or not options.quiet else 0
    files = FileTransaction(output, options.fold_map, options.json)
    with _showing(verify, quiet=options.quiet), ExitStack() as reports, files:
        result = compile_model(module, pipeline, freeze_initializers=options.freeze_initializers, context=context)

        def report(measures: Sequence[Mapping[str, Any]] | None = None) -> None:
            seconds = perf_counter() - start
            reports.enter_context(reporting(options.report, options, recorder, result, seconds, measures))

        def check(model: ModelProto, folder: Path) -> None:
            assert verify is not None
            verify.finish(result.module, model, folder)
            report(verify.report_rows())

        if verify is None:
            report()
        summary.enter(files)
        result.save(
            output,
            fold_map=options.fold_map,
            fold_map_store=options.fold_map_store,
            embed_fold_map=options.embed_fold_map,
            external_data=options.external_data,
            check=None if verify is None else check,
            files=files,
        )
        if summary.is_wanted:
            summary.write(describe_result(result, verify, before, perf_counter() - start))
    summarize(options, result, before, timing, perf_counter() - start)
    if verify is not None:
        _print_verification(verify, quiet=options.quiet)


def _timing() -> Timing:
    from ..passes import Timing

    return Timing()


@contextmanager
def _showing(verify: VerifyNumerics | None, *, quiet: bool) -> Iterator[None]:
    """Show the progress of a verification, which takes most of the time."""
    if verify is None:
        yield
        return
    from ..support.terminal import progress

    with progress("verifying", quiet=quiet) as verify.advance:
        yield


def _print_verification(verify: VerifyNumerics, *, quiet: bool) -> None:
    from ..support.errors import visible

    warn(verify.warnings())
    if not quiet:
        sys.stderr.writelines(f"{visible(line)}\n" for line in verify.lines())


def _text_instruments(options: argparse.Namespace) -> list[Instrument]:
    if not (options.print_after or options.diff or options.dump_ir or options.verify_ir):
        return []
    from ..passes import DiffIR, DumpIR, PrintIR, Verify

    def print_text(text: str) -> None:
        from ..support.terminal import write_ir

        write_ir(f"{text}\n", sys.stderr)

    def print_diff(lines: Iterable[str]) -> None:
        from ..support.terminal import write_diff

        write_diff(lines, sys.stderr)

    found: list[Instrument] = [PrintIR(name, print_text) for name in options.print_after]
    if options.diff:
        found.append(DiffIR(print_diff))
    if options.dump_ir:
        found.append(DumpIR(options.dump_ir))
    if options.verify_ir:
        found.append(Verify())
    return found


def _verification(options: argparse.Namespace, module: Module, output: str) -> VerifyNumerics | None:
    """Return the instrument of --verify, which writes a reproducer of a deviation beside the output."""
    from pathlib import Path

    from ..support.errors import UsageError

    if options.verify is None:
        if options.inputs:
            raise UsageError("--inputs needs --verify, which runs the model")
        return None
    from onnx import ModelProto

    from ..verify import VerifyNumerics
    from ..verify.inputs import read_inputs

    source = module.source if isinstance(module.source, ModelProto) else None
    if options.inputs and source is None:
        raise UsageError("--inputs needs an ONNX model")
    inputs = () if source is None else read_inputs(options.inputs, source)
    where = None if output == "-" else Path(f"{output}.deviation")
    return VerifyNumerics(inputs, when=options.verify, reproducer=where)


def _check_outputs(options: argparse.Namespace, output: str) -> list[str | Path | None]:
    """Return the outputs beside the model. Raises UsageError where one file would replace another."""
    from ..support.errors import UsageError
    from ..support.output_paths import check_apart

    if options.fold_map == "-":
        raise UsageError("--fold-map needs a file, not standard output")
    if options.fold_map is not None and options.fold_map.endswith(".npz"):
        raise UsageError(f"{options.fold_map}: the fold map's arrays go to this file: name the map MAP.json")
    if options.external_data and output == "-":
        raise UsageError("--external-data needs a file as output, not standard output")
    if options.json == "-" and output == "-":
        raise UsageError("the model and the summary cannot both go to standard output")
    check_report(options.report)
    others = [*map_files(options.fold_map), options.report, options.json]
    check_apart([output, *others], options.inputs, options.dump_ir)
    check_apart(others, [options.model], options.dump_ir)  # a model may be compiled in place
    return others


def _place_files(options: argparse.Namespace) -> str:
    """Return the path of the output, and complete options that name a folder by a file name.

    Without `--output` it is `model.irc.onnx` beside `model.onnx`, and standard output for standard input.
    """
    from ..support.output_paths import FOLD_MAP, MODEL, REPORT, beside, within

    model = options.model
    if model == "-":
        return options.output or "-"
    for name, suffix in (("fold_map", FOLD_MAP), ("report", REPORT)):
        if getattr(options, name) is not None:
            setattr(options, name, within(getattr(options, name), model, suffix))
    return within(options.output, model, MODEL) if options.output else beside(model, MODEL)
