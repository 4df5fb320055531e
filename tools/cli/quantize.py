"""`irc quantize`: an int8 model, with ranges from BatchNormalization or from data."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from .options import (
    COMPARED,
    Subparsers,
    add_data_preprocess,
    add_in_place,
    add_keep,
    add_limits,
    add_ranges,
    add_session_options,
    complete_outputs,
    data_file,
    document_head,
    limits_of,
    ranges_of,
    warn,
    writing_json,
)
from .summary import files_text, size_text


def add(commands: Subparsers[argparse.ArgumentParser]) -> None:
    """Add the subcommand with its arguments."""
    command = commands.add_parser(
        "quantize",
        help="quantize a model to int8, without data or with",
        description=(
            "Fold and equalize MODEL, and quantize it by onnxruntime: weights int8, activations"
            " uint8. Without --data, ranges of activations come from the statistics of"
            " BatchNormalization. Products of matrices without one find their scales at run time,"
            " other operators stay float."
        ),
    )
    command.add_argument("model", metavar="MODEL", help=COMPARED)
    command.add_argument(
        "-o", "--output", metavar="INT8.onnx", required=True, help="the quantized model"
    )
    add_in_place(command)
    samples = (
        "an .npz file with samples along the first axis of each input, or a folder of .npz files,"
        " for one input also of .npy, .pb, .png, .jpg and .wav files"
    )
    command.add_argument("--data", metavar="FOLDER|NPZ", help=f"calibrate with samples: {samples}")
    command.add_argument(
        "--test-data", metavar="FOLDER|NPZ", help="samples to compare with the float model"
    )
    add_data_preprocess(command)
    add_ranges(command)
    granularity = command.add_mutually_exclusive_group()
    granularity.add_argument(
        "--per-channel",
        action="store_true",
        default=None,
        help="one scale for each output channel of a weight (default from opset 13)",
    )
    granularity.add_argument(
        "--per-tensor",
        dest="per_channel",
        action="store_false",
        help="one scale for a weight (default below opset 13)",
    )
    command.add_argument(
        "--reduce-range",
        action="store_true",
        help="weights of 7 bits, for x86 processors without VNNI, whose kernels overflow with 8",
    )
    command.add_argument(
        "--activations",
        choices=("int8", "int16"),
        default="int8",
        help=(
            "bits of activations (default: int8): QNN's HTP computes int16, onnxruntime on a CPU in"
            " float"
        ),
    )
    command.add_argument(
        "--target",
        metavar="22dB|99%",
        help=(
            "the least quality of every result: leave layers float until it is measured, those of"
            " most noise for a multiplication first; an agreement in %% needs data"
        ),
    )
    command.add_argument(
        "--float-budget",
        metavar="5%",
        help="how many of the layers' multiplications may be float",
    )
    command.add_argument(
        "--int16-budget",
        metavar="30%",
        help=(
            "how many of the rounded tensors may have 16 bits, before layers are left float:"
            " onnxruntime on a CPU computes the layers beside them in float"
        ),
    )
    command.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="NODE",
        help="leave an operator float: its name or result",
    )
    command.add_argument(
        "--passes",
        metavar="PASSES",
        help=(
            "the passes before (default: the default pipeline, CrossLayerEqualization,"
            " HighBiasAbsorption, BiasCorrection)"
        ),
    )
    add_keep(command)
    command.add_argument(
        "--float", metavar="FLOAT.onnx", help="write the folded and equalized float model, too"
    )
    command.add_argument(
        "--json", metavar="OUT.json", help="write the report as JSON; - is standard output"
    )
    command.add_argument(
        "--svg", metavar="OUT.svg", help="draw the graph: which operators are int8, and which float"
    )
    add_session_options(command)
    command.add_argument(
        "--no-time", dest="time", action="store_false", help="do not measure how long a run takes"
    )
    command.add_argument(
        "--strict",
        action="store_true",
        help="exit with 1, and write no model, if a result may be of no use, as a warning says",
    )
    command.add_argument("-q", "--quiet", action="store_true", help="do not print the report")
    add_limits(command)


def run(options: argparse.Namespace) -> int:
    """Quantize the model, write the files and print the report."""
    from contextlib import ExitStack

    from ...backends.onnx.kept_files import external_files
    from ...compiler import read_onnx
    from ...support.errors import UsageError, VerifyError, visible
    from ...support.extras import needing
    from ...support.output_paths import check_apart, check_drawing, check_replaced
    from ..report import writing_page

    with needing("quantize"):
        from ..int8.engine import check_engine
        from ..int8.static import quantize
    suffixes = {"output": ".int8.onnx", "float": ".float.onnx", "json": ".json", "svg": ".svg"}
    complete_outputs(options, options.model, **suffixes)
    if "-" in (options.output, options.float, options.svg):
        raise UsageError("a quantized model and a drawing need a file, not standard output")
    if options.svg is not None:
        check_drawing("--svg", options.svg)
    check_engine()
    if options.preprocess and options.data is None and options.test_data is None:
        raise UsageError("--preprocess changes data: give them by --data")
    inputs, ranges = ranges_of(options)
    outputs = [options.output, options.float, options.json, options.svg]
    check_replaced(options.output, options.model, in_place=options.in_place)
    check_apart(outputs[1:], [options.model])
    check_apart(outputs, [data_file(options.model), options.data, options.test_data])
    model, base_dir = read_onnx(options.model, limits_of(options))
    check_apart(outputs, external_files(model, base_dir))
    with _naming(options.model):
        found = quantize(
            model,
            base_dir=base_dir,
            data=options.data,
            test_data=options.test_data,
            preprocess=options.preprocess,
            input_ranges=inputs,
            ranges=ranges,
            sigmas=options.sigmas,
            per_channel=options.per_channel,
            reduce_range=options.reduce_range,
            activations=options.activations,
            exclude=options.exclude,
            keep=options.keep,
            passes=options.passes,
            target=options.target,
            float_budget=options.float_budget,
            int16_budget=options.int16_budget,
            time=options.time,
            limits=limits_of(options),
        )
    document = document_head("quantize") | found.to_json()
    is_refused = options.strict and bool(found.doubts)
    with ExitStack() as files:
        if options.json is not None:
            files.enter_context(writing_json(options.json, document))
        if options.svg is not None:
            files.enter_context(writing_page(options.svg, found.drawing()))
        if not is_refused:
            found.save(options.output, prepared=options.float, in_place=options.in_place)
    warn(found.warnings)
    if not options.quiet:
        sys.stderr.writelines(f"{visible(line)}\n" for line in found.lines())
    if is_refused:
        raise VerifyError(f"{options.model}: nothing is written (--strict): {found.doubts[0]}")
    if not options.quiet:
        after, before = (size_text(model.ByteSize()) for model in (found.model, found.prepared))
        sys.stderr.write(f"size: {after}, float {before}\n{files_text(outputs)}\n")
    return 0


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Begin the message of an error that concerns the model with its file."""
    from ...support.errors import EmitError, ModelError, SourceError, UsageError

    name = "standard input" if path == "-" else path
    try:
        yield
    except (EmitError, ModelError, SourceError, UsageError) as error:
        raise type(error)(f"{name}: {error}") from None
