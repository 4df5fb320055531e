"""`irc foldmap`: print, check and export fold maps."""

from __future__ import annotations

import argparse
import sys

from .options import (
    Subparsers,
    add_limits,
    add_ranges,
    complete_outputs,
    json_text,
    limits_of,
    map_files,
    naming,
    ranges_of,
    warn,
    writing_text,
)

FORMS = (
    "aimet",
    "aimet-encodings",
    "aimet-encodings-0.6.1",
    "ort-calibration",
    "ort-overrides",
    "nncf",
    "tensorrt",
    "ranges",
)


def add(commands: Subparsers[argparse.ArgumentParser]) -> None:
    """Add the subcommand with its arguments."""
    command = commands.add_parser(
        "foldmap",
        help="print, check, export or recover a fold map",
        description="Print, check, export or recover a fold map.",
    )
    actions = command.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = actions.add_parser(
        "show", help="print a fold map as tables", description="Print a fold map as tables."
    )
    show.add_argument("map", metavar="MAP.json", help="a fold map, or a model that embeds one")
    show.add_argument(
        "--by",
        choices=("module",),
        help=(
            "list affines, layers and statistics by the modules of the"
            " torch model that was exported"
        ),
    )
    check = actions.add_parser(
        "check",
        help="check that a fold map belongs to a model",
        description=(
            "Exit with 1, and list the differences, if MAP.json is not the fold map of MODEL."
        ),
    )
    check.add_argument("model", metavar="MODEL")
    check.add_argument("map", metavar="MAP.json")
    export = actions.add_parser(
        "export",
        help="write a fold map in the format of a quantizer",
        description="Write the content of MAP.json in the format of a quantizer.",
        epilog=(
            "aimet: gamma and beta by node name; aimet-encodings: encodings 1.0.0;"
            " aimet-encodings-0.6.1: those for Qualcomm's --quantization_overrides;"
            " ort-calibration: the cache of quantize_static; ort-overrides: TensorQuantOverrides;"
            " nncf: ranges and means by tensor; tensorrt: the calibration cache; ranges: ranges and"
            " where they come from."
        ),
    )
    export.add_argument("model", metavar="MODEL")
    export.add_argument("map", metavar="MAP.json")
    export.add_argument("--to", required=True, choices=FORMS, help="the format")
    export.add_argument(
        "-o", "--output", metavar="OUT", required=True, help="the output; - is standard output"
    )
    add_ranges(export)
    recover = actions.add_parser(
        "recover",
        help="write the fold map of a model that another tool folded",
        description=(
            "Find the BatchNormalizations that went into the layers of FOLDED.onnx, by the numbers"
            " of a checkpoint from before, and write the fold map."
        ),
        epilog=(
            "CHECKPOINT is a state_dict (.pt, .pth, .bin or .ckpt, read by torch with weights_only;"
            " .safetensors; .npz) or the unfolded model (.onnx)."
        ),
    )
    recover.add_argument("model", metavar="FOLDED.onnx")
    recover.add_argument(
        "--from", dest="checkpoint", required=True, metavar="CHECKPOINT", help="the numbers before"
    )
    recover.add_argument("-o", "--output", metavar="MAP.json", required=True, help="the fold map")
    recover.add_argument(
        "--fold-map-store",
        default="npz",
        choices=("npz", "inline"),
        help="store its arrays in MAP.npz or inline (npz)",
    )
    recover.add_argument(
        "--epsilon",
        type=float,
        metavar="E",
        help="of all BatchNormalizations; a state_dict does not have it (tried)",
    )
    recover.add_argument(
        "-q", "--quiet", action="store_true", help="do not print layers and a summary"
    )
    for action in (show, check, export):
        add_limits(action)


def run(options: argparse.Namespace) -> int:
    """Run the action."""
    return {"show": _show, "check": _check, "export": _export, "recover": _recover}[options.action](
        options
    )


def _show(options: argparse.Namespace) -> int:
    from rich.console import Console

    from ...backends.foldmap.fold_map import FoldMap
    from ...backends.foldmap.show import show

    console = Console() if sys.stdout.isatty() else Console(width=200)
    fold_map = FoldMap.load(options.map, limits_of(options))
    with naming(options.map):
        show(fold_map, console, by_module=options.by == "module")
    return 0


def _check(options: argparse.Namespace) -> int:
    from ...backends.foldmap.fold_map import FoldMap
    from ...backends.foldmap.inverse import check
    from ...backends.foldmap.show import mismatch_lines
    from ...frontends.onnx import read_model
    from ...support.errors import FoldMapError, visible

    fold_map = FoldMap.load(options.map, limits_of(options))
    model, base_dir = read_model(options.model)
    found = check(model, fold_map, base_dir)
    if found.same:
        sys.stdout.write(f"{options.map} is the fold map of {options.model}\n")
        return 0
    sys.stdout.writelines(f"{visible(line)}\n" for line in mismatch_lines(found))
    raise FoldMapError(
        f"{options.model}: the fold map {options.map} belongs to another"
        " model, or it was changed since"
    )


def _recover(options: argparse.Namespace) -> int:
    from ...backends.onnx.kept_files import external_files
    from ...frontends.onnx import read_model
    from ...support.errors import UsageError, visible
    from ...support.output_paths import FOLD_MAP, check_apart
    from ..recovery import read_checkpoint, recover
    from ..recovery.explanation import EPSILONS

    complete_outputs(options, options.model, output=FOLD_MAP)
    if options.output == "-":
        raise UsageError("recover needs a file, not standard output")
    model, base_dir = read_model(options.model)
    reads = [options.model, options.checkpoint, *external_files(model, base_dir)]
    check_apart(map_files(options.output), reads)
    checkpoint = read_checkpoint(options.checkpoint)
    with naming(options.model):
        found = recover(
            model, checkpoint, base_dir, EPSILONS if options.epsilon is None else (options.epsilon,)
        )
    found.fold_map.save(options.output, store=options.fold_map_store)
    if options.quiet:
        return 0
    for hit in found.explanations:
        sys.stdout.write(
            visible(f"{hit.layer.label}: {hit.norm.path}, epsilon {hit.epsilon:.4g}") + "\n"
        )
    for label, reason in found.refused.items():
        sys.stdout.write(visible(f"{label}: not recovered: {reason}") + "\n")
    for path in found.missing:
        sys.stdout.write(
            visible(f"BatchNormalization {path}: in no layer of the main graph") + "\n"
        )
    sys.stderr.write(
        f"{len(found.explanations)} BatchNormalizations recovered; layers: {len(found.refused)} not"
        f" recovered, {len(found.unchanged)} unchanged\n"
    )
    return 0


def _export(options: argparse.Namespace) -> int:
    from ...backends.foldmap.fold_map import FoldMap
    from ...backends.onnx.kept_files import external_files
    from ...backends.quantizers.export import EXPORTERS
    from ...frontends.onnx import read_model
    from ...frontends.onnx.codec.external_data import embed_external_data
    from ...support.output_paths import check_apart

    complete_outputs(options, options.model, output=f".{options.to}.json")
    inputs, ranges = ranges_of(options)
    fold_map = FoldMap.load(options.map, limits_of(options))
    model, base_dir = read_model(options.model)
    reads = [options.model, *map_files(options.map), *external_files(model, base_dir)]
    check_apart([options.output], reads)
    with naming(options.model):
        embed_external_data(model, base_dir)
        found = EXPORTERS[options.to](model, fold_map, inputs, ranges, options.sigmas)
    document = found.document
    with writing_text(
        options.output, document if isinstance(document, str) else json_text(document)
    ):
        pass
    if found.missing:
        warn([f"nothing is written for {', '.join(found.missing)}"])
    if found.guessed:
        names = ", ".join(found.guessed)
        warn(
            [
                f"{len(found.guessed)} ranges are guesses; if you know better, give --range"
                f" NAME=LOW:HIGH: {names}"
            ]
        )
    return 0
