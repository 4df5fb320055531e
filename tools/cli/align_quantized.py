"""`irc align` for a quantized model."""

from __future__ import annotations

import argparse
from pathlib import Path

from onnx import ModelProto
from rich.console import Console

from ...compiler import compile as compile_model
from ...frontends.onnx import from_model
from ...frontends.onnx.codec.traversal import all_nodes
from ...support.errors import SourceError, UsageError
from ...support.files import FileTransaction
from ...support.output_paths import check_apart
from ..int8.layer_errors import align_quantized, input_ranges
from ..int8.layer_table import print_layers
from ..int8.noise_table import NoiseTable, noise_table
from ..int8.quantized_layers import is_quantized
from ..int8.samples import count_samples, generate_samples, read_samples
from ..report import collect_alignment, writing_report
from ..verify.inputs import Feeds, read_inputs
from ..verify.reference_model import ReferenceModel
from .options import document_head, limits_of, name_of, tolerance_of, writing_json
from .terminal import progress

Model = tuple[ModelProto, Path]
"""A model and the folder of its external data."""


def judges_layers(options: argparse.Namespace, first: ModelProto, second: ModelProto) -> bool:
    """Return whether the models are compared by SQNR.

    Raises UsageError for options that do not go with it.
    """
    tolerance = tolerance_of(options)
    if tolerance is not None and options.by == "sqnr":
        raise UsageError(
            "--rtol and --atol judge tensors element by element, and --by sqnr judges layers"
        )
    by_layers: bool = options.by == "sqnr"
    if options.by is None and tolerance is None:
        # A float model beside its quantized one: every tensor differs, and layers tell more.
        by_layers = is_quantized(second) and not is_quantized(first)
    if not by_layers and options.data is not None:
        raise UsageError("--data is for quantized models: give --inputs")
    if options.preprocess and options.data is None:
        raise UsageError("--preprocess changes data: give them by --data")
    if by_layers and not is_quantized(second):
        raise UsageError(
            f"{options.second}: --by sqnr needs a quantized model: no operator of the main graph is"
        )
    wrong = next(
        (name for name in ("map", "dump", "thorough") if by_layers and getattr(options, name)), None
    )
    if wrong is not None:
        raise UsageError(f"--{wrong} is not for quantized models: add --by rounding")
    return by_layers


def align_layers(options: argparse.Namespace, first: Model, second: Model, console: Console) -> int:
    """Compare the layers of a quantized model with the float model's; write the output files."""
    check_apart([options.json, options.html], [options.data])
    is_printed = not options.quiet and options.json != "-"
    model, base_dir = _folded(options, *first), first[1]
    with progress("comparing", quiet=options.quiet) as advance:
        source = ReferenceModel(model, base_dir)
        batches, samples = _batches(options, source, second)
        found = align_quantized(source, *second, batches, samples, advance)
        table = NoiseTable()
        if options.json or is_printed:  # a run for each rounding
            table = noise_table((model, base_dir), second, batches, advance)
    with FileTransaction(options.json, options.html) as files:
        if options.json:
            files.enter_context(
                writing_json(
                    options.json,
                    document_head("align_layers") | found.to_json() | table.to_json(),
                )
            )
        if options.html:
            names = (name_of(options.first), name_of(options.second))
            page = collect_alignment(names, model, second[0], found.report_rows())
            files.enter_context(writing_report(options.html, page))
    if is_printed:
        print_layers(found, table, console)
    return 0


def _folded(options: argparse.Namespace, model: ModelProto, base_dir: Path) -> ModelProto:
    """Return the float model without BatchNormalization, if it has some."""
    if all(node.op_type != "BatchNormalization" for node in all_nodes(model)):
        return model
    return compile_model(
        from_model(model, base_dir, limits_of(options)), freeze_initializers=True
    ).model


def _batches(
    options: argparse.Namespace, source: ReferenceModel, second: Model
) -> tuple[list[Feeds], str]:
    """Return the user's batches, or generated ones within the ranges of the quantized inputs."""
    if options.data is not None:
        found = read_samples(options.data, source.model, options.preprocess)
    elif options.inputs:
        found = [stimulus.feeds for stimulus in read_inputs(options.inputs, source.model)]
    else:
        found = generate_samples(source.runner, dict(input_ranges(*second)))
        return found, f"{count_samples(found)}, generated within the ranges of the inputs"
    error = next(filter(None, map(source.error_on, found[:1])), None)
    if error is not None:
        raise SourceError(error)
    return found, count_samples(found)
