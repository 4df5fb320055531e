"""Options and output functions that commands share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

TYPE_CHECKING = False  # of typing, which takes longer to import than the rest
if TYPE_CHECKING:
    from pathlib import Path

    from ...backends.quantizers.ranges import Range
    from ...ir.module import Module
    from ...support.limits import Limits
    from ..float16.converting import Wishes
    from ..verify.tolerance import Tolerance

Subparsers = argparse._SubParsersAction  # its only name
Arguments = argparse._ActionsContainer  # a parser, or a group of its arguments

FILE = "an ONNX file, an .irc text file, or a torch ExportedProgram (.pt2)"
COMPARED = "an ONNX file, an .irc text file, or - for ONNX on standard input"
ONNX = "an ONNX file, or - for standard input"
MODEL = (
    "an ONNX file, an .irc text file, a torch ExportedProgram (.pt2), or"
    " - for ONNX on standard input"
)
EPILOG = """\
PASSES are written A,B{option=value},...; `default` stands for the default pipeline, `none` for no
passes. `irc passes` lists all passes."""
NO_DURATIONS = "leave durations out of the report, so that equal compiles give equal pages"

GC_THRESHOLDS = (100_000, 50, 50)
"""Arguments of `gc.set_threshold`: the IR is one large live structure, costly to collect.

They save 3 % of the smallest compile, 5 % of 3,000 operators.
"""


def add_passes(command: Arguments, default: str = "default") -> None:
    """Add --passes and --freeze-initializers."""
    command.add_argument(
        "--passes",
        type=_pipeline,
        default=default,
        metavar="PASSES",
        help=f"the passes to run (default: {default})",
    )
    command.add_argument(
        "--freeze-initializers",
        action="store_true",
        help="turn initializers that are also inputs into constants",
    )


def _pipeline(text: str) -> str:
    """Return the text of a pipeline, which names a pass at least.

    Raises argparse.ArgumentTypeError.
    """
    if not text.strip():
        raise argparse.ArgumentTypeError("name a pass, `default`, or `none`")
    return text


LIMITS = {
    "max_nodes": (4_000_000, "nodes of a model with its functions inlined"),
    "max_nesting": (64, "nesting of graphs, types, lists and objects"),
    "max_constant_bytes": (
        256 << 20,
        "largest constant that folding may create, in bytes",
    ),
    "max_fold_map_bytes": (1 << 30, "bytes of the arrays of a fold map, unpacked"),
}
"""Default and help text for each field of `Limits`, which `irc --help` does not import."""


def add_limits(command: argparse.ArgumentParser) -> None:
    """Add an option for each field of `Limits`; its value is None if it is not given."""
    group = command.add_argument_group("limits", "bounds on models from untrusted sources")
    for name, (default, bounded) in LIMITS.items():
        option = f"--{name.replace('_', '-')}"
        group.add_argument(option, type=_bound, metavar="N", help=f"{bounded} (default: {default})")


def _bound(text: str) -> int:
    """Return a limit. Raises argparse.ArgumentTypeError."""
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a limit: give a whole number from 1 on")
    return int(text)


def limits_of(options: argparse.Namespace) -> Limits:
    """Return the limits that the options of `add_limits` give."""
    from ...support.limits import Limits

    given = {name: getattr(options, name) for name in LIMITS}
    return Limits(
        **{name: bound for name, bound in given.items() if bound is not None}, isolate=True
    )


def add_keep(command: Arguments) -> None:
    """Add --keep."""
    command.add_argument(
        "--keep",
        action="append",
        default=[],
        metavar="NODE",
        help="leave this node alone, or the one that computes this value (repeatable)",
    )


def add_module_options(command: Arguments, default: str = "default") -> None:
    """Add the options of passes, --keep, --input-shape and --preprocess."""
    add_passes(command, default)
    add_keep(command)
    add_input_shapes(command)
    add_preprocess(command)


def add_input_shapes(command: Arguments) -> None:
    """Add --input-shape."""
    command.add_argument(
        "--input-shape",
        type=_input_shape,
        action="append",
        default=[],
        metavar="NAME=1,3,...",
        help=(
            "set the dimensions of an input (? keeps one), or of a symbol, N=8, which has the same"
            " size everywhere (repeatable)"
        ),
    )


WORDS = """\
(x * scale - mean) / std, such as NAME:uint8,nhwc,bgr,mean=.5,std=.25,scale=1/255, with numbers in
the order of the model's channels, or a preset: torchvision
(scale=1/255,mean=.485:.456:.406,std=.229:.224:.225), tf (scale=1/127.5,mean=1), caffe
(bgr,mean=103.939:116.779:123.68)""".replace("\n", " ")
"""The words of --preprocess."""


def add_preprocess(command: Arguments, of_model: str = "") -> None:
    """Add --preprocess, for an input `of_model`."""
    command.add_argument(
        "--preprocess",
        action="append",
        default=[],
        metavar="NAME:uint8,nhwc,...",
        help=(
            f"insert operators that make an input {of_model}of what is given: {WORDS} (repeatable)"
        ),
    )


def add_data_preprocess(command: Arguments) -> None:
    """Add --preprocess for data."""
    command.add_argument(
        "--preprocess",
        action="append",
        default=[],
        metavar="NAME:torchvision,...",
        help=(
            f"make inputs of the data, not another model: {WORDS}. Pictures also take resize=256"
            " (the shorter side, or 240x320) and crop=224, which torchvision has (repeatable)"
        ),
    )


def _input_shape(text: str) -> tuple[str, tuple[int | None, ...]]:
    """Return name and extents. Raises argparse.ArgumentTypeError."""
    name, separator, extents = text.rpartition("=")
    words = [word.strip() for word in extents.split(",")] if extents.strip() else []
    if not separator or not all(map(_is_extent, words)):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a shape: write NAME=1,3,224,224, with ? for an extent that stays"
        )
    return name, tuple(None if word == "?" else int(word) for word in words)


def _is_extent(word: str) -> bool:
    """Return whether a word is `?` or a number of at least 1."""
    if word == "?":
        return True
    return word.isdecimal() and int(word) > 0


def input_shapes_of(options: argparse.Namespace) -> dict[str, tuple[int | None, ...]]:
    """Return the shapes of the options of `add_input_shapes`, if the command has them.

    Raises UsageError.
    """
    from ...support.errors import UsageError

    found: dict[str, tuple[int | None, ...]] = {}
    for name, shape in getattr(options, "input_shape", ()):
        if name in found:
            raise UsageError(f"--input-shape: the shape of {name!r} is given twice")
        found[name] = shape
    return found


def add_data(command: Arguments) -> None:
    """Add --data, the constants of an .irc model."""
    command.add_argument(
        "--data",
        metavar="DATA.npz",
        help="the constants of an .irc MODEL (default: the .npz file beside it)",
    )


def data_file(path: str, data: str | None = None) -> str | None:
    """Return the file with the constants of an .irc model, None for any other model."""
    from pathlib import Path

    from ...support.output_paths import arrays_path, is_text

    if not is_text(path):
        return None
    return str(arrays_path(Path(path))) if data is None else data


def module_of(path: str, options: argparse.Namespace) -> Module:
    """Return the module at `path`, read within the limits and by the options of inputs."""
    from ...frontends import load
    from ...passes.keeping import keep_nodes

    module = load(
        path,
        limits_of(options),
        input_shapes=input_shapes_of(options) or None,
        preprocess=getattr(options, "preprocess", None),
        data=getattr(options, "data", None),
    )
    keep_nodes(module, getattr(options, "keep", ()))
    return module


def read_module(path: str, options: argparse.Namespace) -> Module:
    """Read the module at `path` as `module_of`, and print its warnings."""
    module = module_of(path, options)
    warn(module.warnings)
    return module


def warn(warnings: Iterable[str]) -> None:
    """Print each warning on a line of standard error."""
    from ...support.errors import visible

    sys.stderr.writelines(f"warning: {visible(warning)}\n" for warning in warnings)


def check_once(*models: str) -> None:
    """Check that at most one model is read from standard input. Raises UsageError."""
    from ...support.errors import UsageError

    if models.count("-") > 1:
        raise UsageError("only one of the models can be standard input")


def name_of(model: str) -> str:
    """Return the name of a model in a report."""
    from pathlib import Path

    from ...support.output_paths import path_to_text

    return "standard input" if model == "-" else path_to_text(Path(model).name)


def add_ranges(command: Arguments) -> None:
    """Add --input-range, --range and --sigmas."""
    for name, text in (
        ("--input-range", "range of a graph input"),
        ("--range", "range of any other tensor"),
    ):
        command.add_argument(name, action="append", default=[], metavar="NAME=LOW:HIGH", help=text)
    command.add_argument(
        "--sigmas",
        type=float,
        default=6.0,
        metavar="N",
        help="standard deviations that a range covers (default: 6)",
    )


def ranges_of(
    options: argparse.Namespace,
) -> tuple[dict[str, Range] | Range, dict[str, Range]]:
    """Return the ranges of graph inputs and of other tensors by the options of `add_ranges`.

    A range of the only input needs no name. Raises UsageError.
    """
    if len(options.input_range) == 1 and "=" not in options.input_range[0]:
        inputs: dict[str, Range] | Range = _read_range(f"={options.input_range[0]}")[1]
    else:
        inputs = dict(map(_read_range, options.input_range))
    return inputs, dict(map(_read_range, options.range))


def _read_range(text: str) -> tuple[str, Range]:
    """Parse NAME=LOW:HIGH. Raises UsageError."""
    from ...support.errors import UsageError

    name, separator, numbers = text.rpartition("=")
    low, _, high = numbers.partition(":")
    try:
        if not separator:
            raise ValueError
        return name, (float(low), float(high))
    except ValueError:
        raise UsageError(f"{text.lstrip('=')!r} is not a range: write NAME=LOW:HIGH") from None


def add_inputs(command: Arguments) -> None:
    """Add --inputs."""
    command.add_argument(
        "--inputs",
        action="append",
        default=[],
        metavar="FILE",
        help=(
            "inputs: .npz by name, or .npy and TensorProto files in the order of the inputs"
            " (default: generated)"
        ),
    )


def add_session_options(command: Arguments) -> None:
    """Add --custom-ops and --providers."""
    command.add_argument(
        "--custom-ops",
        action="append",
        default=[],
        metavar="LIB.so",
        help="run models with a library of operators, which onnxruntime loads (repeatable)",
    )
    command.add_argument(
        "--providers",
        type=_names,
        default=[],
        metavar="NAME,...",
        help=(
            "run models by these execution providers of onnxruntime, such as CUDAExecutionProvider"
            " (default: on the processor)"
        ),
    )


def _names(text: str) -> list[str]:
    """Return the names of a list. Raises argparse.ArgumentTypeError."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of names: write A,B")
    return names


@contextmanager
def session_options_of(options: argparse.Namespace) -> Iterator[None]:
    """Run models in the block by the options of `add_session_options`, if the command has them.

    Raises UsageError.
    """
    custom_ops, providers = (getattr(options, key, []) for key in ("custom_ops", "providers"))
    if not custom_ops and not providers:
        yield
        return
    from ...backends.runtime.session_options import session_options

    with session_options(custom_ops=custom_ops, providers=providers):
        yield


def add_thorough(command: argparse.ArgumentParser) -> None:
    """Add --thorough."""
    command.add_argument(
        "--thorough",
        action="store_true",
        help=(
            "compare on more inputs: by default large models run on fewer, in the"
            " time of about 40 inferences"
        ),
    )


def add_tolerance(command: Arguments) -> None:
    """Add --rtol and --atol."""
    for name, text in (
        ("--rtol", "differences up to X times the source's value (numpy.allclose)"),
        ("--atol", "differences up to X"),
    ):
        command.add_argument(
            name,
            type=_tolerance,
            metavar="X",
            help=f"accept {text} instead of the bound on rounding (default: 0)",
        )


def _tolerance(text: str) -> float:
    """Return a tolerance. Raises argparse.ArgumentTypeError."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a tolerance: give a number of at least 0, such as 1e-5"
        )
    return number


def tolerance_of(options: argparse.Namespace) -> Tolerance | None:
    """Return the tolerance that the options of `add_tolerance` give, None without them."""
    if options.rtol is None and options.atol is None:
        return None
    from ..verify.tolerance import Tolerance

    return Tolerance(rtol=options.rtol or 0.0, atol=options.atol or 0.0)


def add_in_place(command: Arguments, model: str = "MODEL") -> None:
    """Add --in-place."""
    command.add_argument(
        "--in-place",
        action="store_true",
        help=f"let the output replace {model}, if both are one file",
    )


def complete_outputs(options: argparse.Namespace, model: str, **suffixes: str) -> None:
    """Complete the outputs that are folders by the name of a file for `model`.

    Each of `suffixes` ends the name for one option. A folder whose name ends with `/` is made, and
    removed at the end if nothing is written to it. Raises UsageError, and EmitError if it cannot be
    made.
    """
    from pathlib import Path

    from ...support.errors import UsageError
    from ...support.files import make_folder
    from ...support.output_paths import is_folder, within

    for name, suffix in suffixes.items():
        path = getattr(options, name)
        if path in (None, "-") or not is_folder(path):
            continue
        if model == "-":
            raise UsageError(f"{path}: standard input has no name: name a file in this folder")
        made = make_folder(Path(path))
        options.made_folders = [*getattr(options, "made_folders", ()), *made]
        setattr(options, name, within(path, model, suffix))


def map_files(fold_map: str | None) -> list[str | Path | None]:
    """Return the paths of a fold map and its arrays, if there is one."""
    from pathlib import Path

    from ...support.output_paths import arrays_path

    return [] if fold_map is None else [fold_map, arrays_path(Path(fold_map))]


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Begin the message of a FoldMapError with the model at `path`."""
    from ...support.errors import FoldMapError

    try:
        yield
    except FoldMapError as error:
        raise FoldMapError(f"{path}: {error}") from None


def document_head(name: str) -> dict[str, str | int]:
    """Return the first fields of a document, the definition `irc.<name>` of schema.json."""
    return {"format": f"irc.{name}", "version": 1}


def write_json(path: str, document: object) -> None:
    """Write a JSON file, complete or not at all; `-` is standard output. Raises EmitError."""
    with writing_json(path, document):
        pass


@contextmanager
def writing_json(path: str, document: object) -> Iterator[None]:
    """Write a JSON file as `write_json`, renamed into place when the block ends well."""
    with writing_text(path, json_text(document)):
        yield


@contextmanager
def writing_text(path: str, text: str) -> Iterator[None]:
    """Write a file, renamed into place when the block ends well; `-` is standard output.

    Raises EmitError.
    """
    from pathlib import Path

    from ...support.files import replacing

    if path == "-":
        yield
        sys.stdout.write(text)
        return
    with replacing(Path(path)) as target:
        target.write_text(text, encoding="utf-8", errors="backslashreplace")
        yield


def json_text(document: object) -> str:
    """Return the text of a JSON file."""
    import json

    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def add_compile_options(command: argparse.ArgumentParser) -> None:
    """Add the options of `irc compile` for one model, in groups by purpose."""
    group = command.add_argument_group("model and passes")
    add_data(group)
    add_input_shapes(group)
    add_preprocess(group)
    add_passes(group)
    add_keep(group)
    add = command.add_argument_group("output files").add_argument
    add(
        "-o",
        "--output",
        metavar="OUT",
        help=(
            "a file, a folder or - for standard output (default: MODEL.irc.onnx); OUT.irc gets IR"
            " text, with the constants in OUT.npz"
        ),
    )
    add(
        "--in-place",
        action="store_true",
        help="let OUT replace MODEL, if both are one file; without -o OUT is MODEL",
    )
    add(
        "--external-data",
        action="store_true",
        help="store tensors of 1 KiB and more in OUT.<digest>.data",
    )
    add(
        "--fold-map",
        metavar="MAP.json",
        help="write the fold map: where each affine went, with its parameters",
    )
    add(
        "--fold-map-store",
        default="npz",
        choices=("npz", "inline"),
        help="store its arrays in MAP.npz or inline (npz)",
    )
    add("--embed-fold-map", action="store_true", help="put the fold map into the model's metadata")
    add(
        "--certificate",
        metavar="CERT.json",
        help=(
            "write what irc certify needs to prove that OUT computes what MODEL does: the rewrites"
            " and their numbers; with --float16 of its float32 form, CERT.float32.onnx"
        ),
    )
    group = command.add_argument_group(
        "verification", "compares the compiled model with MODEL on inputs"
    )
    group.add_argument(
        "--verify",
        nargs="?",
        const="each",
        choices=("each", "end", "thorough"),
        help=(
            "compare results with the source after each pass (default), or at the end; a difference"
            " is an error. thorough: after each pass, on all inputs that large"
            " models leave out to save time"
        ),
    )
    add_inputs(group)
    add_tolerance(group)
    add_session_options(group)
    add_float16(command)
    add = command.add_argument_group("summary and report").add_argument
    add(
        "--explain",
        action="store_true",
        help="print for each affine where it went or why it stays, to standard output",
    )
    add(
        "--report",
        metavar="REPORT.html",
        help=(
            "write a page that shows the changes of the passes, or"
            " (REPORT.svg) a drawing of both graphs"
        ),
    )
    add(
        "--table",
        action="store_true",
        help="print operators, parameters and multiplications before and after (default on a"
        " terminal, but for -q)",
    )
    add("--no-durations", action="store_true", help=NO_DURATIONS)
    add("--json", metavar="OUT.json", help="write the summary as JSON; - is standard output")
    add("-q", "--quiet", action="store_true", help="do not print a summary")
    add = command.add_argument_group("debugging", "of irc, and of passes of your own").add_argument
    add(
        "--print-after",
        action="append",
        default=[],
        metavar="PASS",
        help="print the IR after PASS, or all, to stderr",
    )
    add(
        "--diff",
        action="store_true",
        help="print the changes of each pass as a unified diff to stderr",
    )
    add("--dump-ir", metavar="DIR", help="write the IR after each pass to numbered files in DIR")
    add("--time-passes", action="store_true", help="print the duration of each pass")
    add("--verify-ir", action="store_true", help="check the invariants of the IR after each pass")
    add(
        "--debug-rules",
        action="store_true",
        help="print the rules that are applied or declined at each operator",
    )
    add_limits(command)


def add_float16(command: argparse.ArgumentParser) -> None:
    """Add --float16, and the options that it alone reads."""
    group = command.add_argument_group(
        "float16", "measures or predicts the range of every value, so that none overflows"
    )
    kinds = group.add_mutually_exclusive_group()
    kinds.add_argument(
        "--float16",
        action="store_true",
        help="convert the model to float16; --inputs, or --input-range without any, gives ranges",
    )
    kinds.add_argument(
        "--bfloat16",
        action="store_true",
        help="convert the model to bfloat16, which has the range of float32, and 8 bits of it"
        " where float16 has 11",
    )
    group.add_argument(
        "--io",
        choices=("float32", "float16", "bfloat16"),
        default="float32",
        help="the element type of inputs and outputs (default: float32)",
    )
    group.add_argument(
        "--keep-float32",
        action="append",
        default=[],
        metavar="NODE",
        help="leave operators float32: by name, by result, by type, or a region A..B, all on the"
        " ways from A to B (repeatable)",
    )
    group.add_argument(
        "--force",
        action="append",
        default=[],
        metavar="NODE",
        help="let operators be float16 whatever their ranges: named alike (repeatable)",
    )
    group.add_argument(
        "--target",
        type=_decibels,
        default=60.0,
        metavar="60dB",
        help="leave up to 5 %% of the operators float32, those that cost most, if results are then"
        " as near as this on --inputs; 0dB for none (default: 60dB)",
    )
    group.add_argument(
        "--keep-bits",
        action="store_true",
        help="let the fold map hold the bits that are lost, as many as MODEL has, for irc unfold",
    )
    add_overflow(group)


def _decibels(text: str) -> float:
    """Return a ratio in dB. Raises argparse.ArgumentTypeError."""
    try:
        return float(text.strip().removesuffix("dB"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a ratio: write 60dB") from None


def add_overflow(group: Arguments) -> None:
    """Add --margin, --accumulate, and the options of ranges."""
    group.add_argument(
        "--margin",
        type=float,
        metavar="BITS",
        help="bits between the greatest magnitude of a value and 65504 (default: 1)",
    )
    group.add_argument(
        "--accumulate",
        choices=("float32", "float16"),
        default="float32",
        help="the type that the device adds up in, inside operators (default: float32)",
    )
    add_ranges(group)


def check_lone_float16(options: argparse.Namespace) -> None:
    """Raise UsageError for an option that needs --float16, which is not given."""
    from ...support.errors import UsageError

    given = {
        "--io": getattr(options, "io", "float32") != "float32",
        "--accumulate": options.accumulate != "float32",
        "--keep-float32": getattr(options, "keep_float32", ()),
        "--force": getattr(options, "force", ()),
        "--keep-bits": getattr(options, "keep_bits", False),
        "--input-range": options.input_range,
        "--range": options.range,
    }
    lone = next((name for name, is_given in given.items() if is_given), None)
    if lone is not None and not (options.float16 or options.bfloat16):
        raise UsageError(f"{lone} needs --float16")


def wishes_of(options: argparse.Namespace, dtype: str) -> Wishes:
    """Return what the options ask of a conversion to `float16` or `bfloat16`. Raises UsageError."""
    from ..float16.converting import MARGIN, Wishes

    ranges = ranges_of(options)
    return Wishes(
        inputs=options.inputs,
        input_ranges=ranges[0],
        ranges=ranges[1],
        sigmas=options.sigmas,
        io=getattr(options, "io", "float32"),
        keep_float32=getattr(options, "keep_float32", ()),
        force=getattr(options, "force", ()),
        target=getattr(options, "target", 0.0),
        margin=MARGIN if options.margin is None else options.margin,
        accumulate=options.accumulate,
        keep_bits=getattr(options, "keep_bits", False),
        dtype=dtype,
    )


def default_compile_options() -> argparse.Namespace:
    """Return the values of `add_compile_options` for an empty command line."""
    parser = argparse.ArgumentParser()
    add_compile_options(parser)
    return parser.parse_args([])
