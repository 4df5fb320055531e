"""`irc unfold`: restore the source model."""

from __future__ import annotations

import argparse

from .options import (
    Subparsers,
    add_in_place,
    add_limits,
    complete_outputs,
    limits_of,
    map_files,
    naming,
)


def add(commands: Subparsers[argparse.ArgumentParser]) -> None:
    """Add the subcommand with its arguments."""
    command = commands.add_parser(
        "unfold",
        help="restore the source model",
        description=(
            "Restore the source of MODEL from its fold map, with every field of the message, every"
            " bit of its tensors, and its files of external data beside BACK. Files that torch or"
            " onnx.save wrote come back byte for byte. A file of"
            " external data gets the bytes of its tensors back; bytes between tensors become zeros,"
            " and bytes after the last tensor are lost. To standard output, the model is written"
            " with its external data inside."
        ),
    )
    command.add_argument(
        "model",
        metavar="MODEL",
        help="an ONNX file that irc compile wrote, or - for standard input",
    )
    command.add_argument(
        "map", metavar="MAP.json", help="its fold map, or the model itself if it embeds one"
    )
    command.add_argument(
        "-o",
        "--output",
        metavar="BACK",
        required=True,
        help="the source model; - is standard output",
    )
    add_in_place(command)
    add_limits(command)


def run(options: argparse.Namespace) -> int:
    """Restore the source model and write it."""
    from ...backends.foldmap.fold_map import FoldMap
    from ...backends.foldmap.source_files import save_source
    from ...frontends.onnx import read_model
    from ...support.output_paths import check_apart, check_replaced

    complete_outputs(options, options.model, output=".onnx")
    check_replaced(options.output, options.model, in_place=options.in_place)
    is_embedded = options.in_place and options.map == options.model
    check_apart([options.output], [] if is_embedded else map_files(options.map))
    fold_map = FoldMap.load(options.map, limits_of(options))
    model, base_dir = read_model(options.model)
    with naming(options.model):
        save_source(model, fold_map, options.output, base_dir)
    return 0
