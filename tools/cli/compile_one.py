"""Compile one model in this process."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ...backends.onnx.kept_files import check_kept
from ...compiler import compile as compile_model
from ...frontends.onnx.codec.protos import ModelProto
from ...frontends.onnx.folded_before import folded_before
from ...ir.module import Module
from ...passes import PassContext, parse_pipeline
from ...passes.infra import Instrument, Sequential
from ...result import Result
from ...support.errors import EmitError, UsageError, visible
from ...support.files import FileTransaction
from ...support.output_paths import (
    FOLD_MAP,
    MODEL,
    REPORT,
    arrays_path,
    beside,
    check_apart,
    check_replaced,
    is_drawing,
    is_text,
)
from .inspection import result_size, source_size
from .options import (
    check_lone_float16,
    complete_outputs,
    data_file,
    map_files,
    module_of,
    name_of,
    tolerance_of,
    warn,
    wishes_of,
    writing_json,
)
from .summary import Summary, describe_result, summarize, wants_table

if TYPE_CHECKING:
    from ...passes import Timing
    from ..float16.half_model import HalfModel
    from ..report import Recorder
    from ..verify import VerifyNumerics


def compile_one(options: argparse.Namespace, summary: Summary, *, is_saved: bool = True) -> None:
    """Compile `options.model` and write all output files, or none and the error to the summary.

    Without `is_saved` the model is not written, only the other files. Raises an IRError for
    a model that cannot be compiled or verified, and UsageError for options that contradict each
    other.
    """
    pipeline = parse_pipeline(options.passes)
    placed = _place_files(options)
    summary.path = options.json
    output = placed if is_saved else None
    others = _check_outputs(options, output)
    with summary.of_failure():
        _compile(options, pipeline, output, others, summary)


def _compile(
    options: argparse.Namespace,
    pipeline: Sequential,
    output: str | None,
    others: Sequence[str | Path | None],
    summary: Summary,
) -> None:
    """Compile, and write all files: all but a certificate if a model's external data are lost.

    Raises EmitError for that one when the others are in place.
    """
    start = perf_counter()
    module = module_of(options.model, options)
    check_kept(module, output or "-", *others, in_place=options.in_place)
    summary.is_free = True
    timing = _timing() if options.time_passes else None
    has_page = options.report is not None and not is_drawing(options.report)
    recorder = _recorder(module) if has_page else None
    verify = summary.verify = _verification(options, module, output)
    instruments = [timing, recorder, *_text_instruments(options), verify]
    context = PassContext([instrument for instrument in instruments if instrument is not None])
    before = module.operators().total() if summary.is_wanted or not options.quiet else 0
    has_sizes = summary.is_wanted or wants_table(options)
    sizes = [source_size(module)] if has_sizes else []
    form = float32_form(options)
    files = FileTransaction(
        output, text_data(output), options.fold_map, options.json, options.certificate, form
    )
    with _showing(verify, quiet=options.quiet), ExitStack() as reports, files:
        result = compile_model(
            module,
            pipeline,
            freeze_initializers=options.freeze_initializers,
            certificate=options.certificate is not None,
            context=context,
        )

        refusals: list[EmitError] = []

        def certify(certified: Result, model: ModelProto, folder: Path) -> None:
            try:
                document = certified.certificate(model, folder)
            except EmitError as refusal:
                refusals.append(refusal)
            else:
                files.enter_context(writing_json(options.certificate, document))

        def write_form(single: Result) -> None:
            if form is not None:
                single.save(form, check=partial(certify, single), files=files)

        half = None
        if options.float16 or options.bfloat16:
            half = _to_float16(options, module, result, write_form)
            result = half.result
        if options.certificate is None:
            result.module.constants.drop_kept()
        sizes += [result_size(result)] if has_sizes else []
        source = module.source if isinstance(module.source, ModelProto) else None
        has_map = options.fold_map is not None or options.embed_fold_map
        guessed = folded_before(source, guess=True) if has_map and source is not None else None
        if guessed is not None and guessed not in result.warnings:
            result.warnings.append(guessed)

        def report(measures: Sequence[Mapping[str, Any]] | None = None) -> None:
            if options.report is not None:
                reports.enter_context(
                    _reporting(options, recorder, result, perf_counter() - start, measures)
                )

        def check(model: ModelProto, folder: Path) -> None:
            if options.certificate is not None and form is None:
                certify(result, model, folder)
            if verify is not None:
                verify.finish(result.module, model, folder)
                report(verify.report_rows())

        if verify is None:
            report()
        summary.enter(files)
        if output is not None:
            result.save(
                output,
                fold_map=options.fold_map,
                fold_map_store=options.fold_map_store,
                embed_fold_map=options.embed_fold_map,
                external_data=options.external_data,
                in_place=options.in_place,
                check=None if verify is None and options.certificate is None else check,
                files=files,
            )
        if summary.is_wanted:
            document = describe_result(result, verify, before, perf_counter() - start, sizes)
            summary.write(document | ({} if half is None else {"float16": half.to_json()}))
        if options.explain:
            _explain(options, result, output, summary)
        if summary.is_printed:
            summary.print()
    written = _written_files(options, output, files)
    summarize(options, result, before, timing, perf_counter() - start, written, sizes)
    if half is not None and not options.quiet:
        sys.stderr.writelines(f"{visible(line)}\n" for line in half.lines())
    if verify is not None:
        warn(verify.warnings())
        if not options.quiet:
            sys.stderr.writelines(f"{visible(line)}\n" for line in verify.lines())
    if refusals:
        raise EmitError(f"{options.certificate}: {refusals[0]}; {output} is written without it")


def float32_form(options: argparse.Namespace) -> Path | None:
    """Return the file of the float32 form of --float16 that --certificate is about, or None."""
    if options.certificate is None or not (options.float16 or options.bfloat16):
        return None
    return Path(options.certificate).with_suffix(".float32.onnx")


def _to_float16(
    options: argparse.Namespace,
    module: Module,
    result: Result,
    write_form: Callable[[Result], None],
) -> HalfModel:
    """Convert a compiled model, by the options of --float16. Raises the errors of `convert`."""
    from ...support.extras import needing

    with needing("verify"):
        from ..float16.converting import convert
    wishes = wishes_of(options, "bfloat16" if options.bfloat16 else "float16")
    source = module.source if isinstance(module.source, ModelProto) else result.model
    return convert(result, source, module.base_dir, wishes, write_form)


def _written_files(
    options: argparse.Namespace, output: str | None, files: FileTransaction
) -> list[str | Path | None]:
    """Return the paths that may have been written, as the user writes them."""
    maps = map_files(options.fold_map)
    beside_model = [file.path for file in files.added if file.path not in maps]
    others = [options.certificate, float32_form(options), options.report, options.json]
    others += [options.dump_ir]
    return [output, text_data(output), *beside_model, *maps, *others]


def _explain(
    options: argparse.Namespace, result: Result, output: str | None, summary: Summary
) -> None:
    """Give the lines of --explain to the summary, or print them where the output is not."""
    from ...backends.foldmap.show import explain

    lines = tuple(map(visible, explain(result.fold_map)))
    if output == "-" or options.json == "-":
        sys.stderr.writelines(f"{line}\n" for line in lines)
    else:
        summary.explanation = lines


@contextmanager
def _showing(verify: VerifyNumerics | None, *, quiet: bool) -> Iterator[None]:
    """Show the progress of a verification, which takes most of the time."""
    if verify is None:
        yield
        return
    from .terminal import progress

    with progress("verifying", quiet=quiet) as verify.advance:
        yield


@contextmanager
def _reporting(
    options: argparse.Namespace,
    recorder: Recorder | None,
    result: Result,
    seconds: float,
    alignment: Sequence[Mapping[str, Any]] | None,
) -> Iterator[None]:
    """Write the report, a page or a drawing, when the block ends well."""
    from ..report import collect, writing_page, writing_report

    if recorder is None:
        with writing_page(options.report, result.drawing()):
            yield
        return
    durations = not options.no_durations
    data = collect(
        name_of(options.model),
        recorder,
        result,
        seconds=seconds,
        durations=durations,
        alignment=alignment,
    )
    with writing_report(options.report, data):
        yield


def _timing() -> Timing:
    from ...passes import Timing

    return Timing()


def _recorder(module: Module) -> Recorder:
    from ..report import Recorder

    return Recorder(module)


def _text_instruments(options: argparse.Namespace) -> list[Instrument]:
    prints = options.print_after or options.diff or options.dump_ir
    if not prints and not options.verify_ir and not options.debug_rules:
        return []
    from ...passes import DiffIR, DumpIR, PrintIR, TraceRules, Verify
    from .terminal import write_diff, write_ir

    def print_text(text: str) -> None:
        write_ir(f"{text}\n", sys.stderr)

    def print_line(line: str) -> None:
        from ...support.errors import visible

        sys.stderr.write(f"{visible(line)}\n")

    def print_diff(lines: Iterable[str]) -> None:
        write_diff(lines, sys.stderr)

    found: list[Instrument] = [PrintIR(name, print_text) for name in options.print_after]
    if options.diff:
        found.append(DiffIR(print_diff))
    if options.dump_ir:
        found.append(DumpIR(options.dump_ir))
    if options.verify_ir:
        found.append(Verify())
    if options.debug_rules:
        found.append(TraceRules(print_line))
    return found


def _verification(
    options: argparse.Namespace, module: Module, output: str | None
) -> VerifyNumerics | None:
    """Return the instrument of --verify, which writes a reproducer beside the output."""
    if options.verify is None:
        is_narrow = options.float16 or options.bfloat16
        if options.inputs and not is_narrow:
            raise UsageError("--inputs needs --verify or --float16, which run the model")
        if tolerance_of(options) is not None:
            raise UsageError("--rtol and --atol need --verify, whose judgement they replace")
        if not is_narrow and (options.custom_ops or options.providers):
            raise UsageError(
                "--custom-ops and --providers need --verify or --float16, which run the model"
            )
        return None
    from ..verify import VerifyNumerics
    from ..verify.inputs import read_inputs

    source = module.source if isinstance(module.source, ModelProto) else None
    if options.inputs and source is None:
        source = Result(module).model
    inputs = () if source is None else read_inputs(options.inputs, source)
    where = None if output in (None, "-") else Path(f"{output}.deviation")
    thorough = options.verify == "thorough"
    return VerifyNumerics(
        inputs,
        when="each" if thorough else options.verify,
        reproducer=where,
        thorough=thorough,
        tolerance=tolerance_of(options),
    )


def _check_outputs(options: argparse.Namespace, output: str | None) -> list[str | Path | None]:
    """Return the outputs beside the model.

    Raises UsageError if one file would replace another.
    """
    if options.fold_map == "-":
        raise UsageError("--fold-map needs a file, not standard output")
    if options.fold_map is not None and options.fold_map.endswith(".npz"):
        raise UsageError(
            f"{options.fold_map}: the fold map's arrays go to this file: name the map MAP.json"
        )
    if options.external_data and output == "-":
        raise UsageError("--external-data needs a file as output, not standard output")
    if options.json == "-" and output == "-":
        raise UsageError("the model and the summary cannot both go to standard output")
    if options.report == "-":
        raise UsageError("a report needs a file, not standard output")
    if (options.report or "").lower().endswith((".png", ".jpg", ".jpeg", ".pdf")):
        raise UsageError(
            f"{options.report}: a report is a page (REPORT.html) or a drawing (REPORT.svg)"
        )
    if output is not None and output.endswith(".pt2"):
        raise UsageError(f"{output}: this is the name of an ExportedProgram, and irc writes ONNX")
    if output is not None and output.endswith((".svg", ".html")):
        raise UsageError(
            f"{output}: this is the name of a drawing or a page, which --report writes, and no"
            " model's"
        )
    has_map = options.fold_map is not None or options.embed_fold_map
    if is_text(output or "") and (has_map or options.external_data):
        raise UsageError(
            f"{output}: a fold map and external data belong to an ONNX file, and this is IR text"
        )
    if options.certificate is not None:
        _check_certificate(options, output)
    _check_float16(options)
    others = [*map_files(options.fold_map), options.certificate, options.report, options.json]
    others += [] if (form := float32_form(options)) is None else [form]
    made, constants = text_data(output), data_file(options.model, options.data)
    check_apart([output, made, *others], options.inputs, options.dump_ir)
    check_apart(others, [options.model, constants], options.dump_ir)
    check_replaced(output, options.model, in_place=options.in_place)
    check_apart([made], [options.model, None if options.in_place else constants])
    check_apart([output], [constants])
    return others


def text_data(output: str | None) -> str | None:
    """Return the file with the constants of IR text that is written to `output`, or None."""
    return str(arrays_path(Path(output))) if output is not None and is_text(output) else None


def _check_float16(options: argparse.Namespace) -> None:
    """Raise UsageError for options that contradict --float16, or need it."""
    if (options.float16 or options.bfloat16) and options.verify is not None:
        raise UsageError("--float16 compares the result itself, and --verify would find roundings")
    check_lone_float16(options)
    if options.keep_bits and options.fold_map is None and not options.embed_fold_map:
        raise UsageError("--keep-bits needs --fold-map or --embed-fold-map, which hold the bits")


def _check_certificate(options: argparse.Namespace, output: str | None) -> None:
    """Raise UsageError if a certificate would prove nothing about the files given."""
    if options.certificate == "-" or output in (None, "-"):
        raise UsageError("--certificate needs files, not standard output")
    if is_text(output) or is_text(options.model):
        raise UsageError("--certificate is about two ONNX files, not IR text")
    if options.freeze_initializers:
        raise UsageError(
            "--certificate compares with MODEL, and --freeze-initializers changes its inputs first"
        )
    if options.in_place:
        raise UsageError("--certificate compares with MODEL, which --in-place replaces")
    if options.input_shape:
        raise UsageError(
            "--certificate compares with MODEL, and --input-shape changes its inputs first"
        )
    if options.preprocess:
        raise UsageError(
            "--certificate compares with MODEL, and --preprocess changes its inputs first: write"
            " the model with its operators by --passes none, and compile that"
        )


def _place_files(options: argparse.Namespace) -> str:
    """Return the path of the output, and complete options that name a folder by a file name.

    Without `--output` it is `model.irc.onnx` beside `model.onnx`, with `--in-place` the model, and
    standard output for standard input.
    """
    model = options.model
    complete_outputs(
        options,
        model,
        output=MODEL,
        fold_map=FOLD_MAP,
        report=REPORT,
        json=".json",
        certificate=".certificate.json",
    )
    if model != "-":
        return options.output or (model if options.in_place else beside(model, MODEL))
    if options.in_place:
        raise UsageError("--in-place: standard input is not a file that could be replaced")
    return options.output or "-"
