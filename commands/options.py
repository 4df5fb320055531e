"""What several commands have in common."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

TYPE_CHECKING = False  # of typing, which takes longer to import than the rest
if TYPE_CHECKING:
    from pathlib import Path

    from ..ir.module import Module
    from ..support.limits import Limits

Subparsers = argparse._SubParsersAction  # its only name

ONNX = "an ONNX file, or - for standard input"
MODEL = "an ONNX file, an .irc text file, or - for ONNX on standard input"
EPILOG = """\
passes are written A,B{option=value},...; `default` stands for the default pipeline and `none` for no pass;
`irc passes` lists them."""
NO_DURATIONS = "leave durations out of the report, so that equal compiles give equal pages"

GC_THRESHOLDS = (100_000, 50, 50)
"""Of `gc.set_threshold`: the IR is one large live structure, and collecting often would be most of the cost."""


def add_passes(command: argparse.ArgumentParser, default: str = "default") -> None:
    """--passes and --freeze-initializers."""
    command.add_argument("--passes", default=default, metavar="PASSES", help=f"the passes to run (default: {default})")
    command.add_argument(
        "--freeze-initializers", action="store_true", help="make constants of initializers that are overridable inputs"
    )


LIMITS = {
    "max_nodes": (4_000_000, "nodes of a model, its functions inlined"),
    "max_nesting": (64, "graphs, types, lists and objects in each other"),
    "max_constant_bytes": (
        256 << 20,
        "what a constant expression makes; all together read 16 times that, and the runtime does the rest",
    ),
    "max_fold_map_bytes": (1 << 30, "the arrays of a fold map, unpacked"),
}
"""The fields of `Limits` with their defaults, which take too long to import for `irc --help`, and what they bound."""


def add_limits(command: argparse.ArgumentParser) -> None:
    """The limits of what is read: an option for each field of `Limits`, None where it is not given."""
    group = command.add_argument_group("limits", "models come from strangers: what is larger is refused, or left alone")
    for name, (default, bounded) in LIMITS.items():
        option = f"--{name.replace('_', '-')}"
        group.add_argument(option, type=_bound, metavar="N", help=f"{bounded} (default: {default})")


def _bound(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def limits_of(options: argparse.Namespace) -> Limits:
    """What the options of `add_limits` say."""
    from ..support.limits import Limits

    given = {name: getattr(options, name) for name in LIMITS}
    return Limits(**{name: bound for name, bound in given.items() if bound is not None}, isolate=True)


def read_module(path: str, options: argparse.Namespace) -> Module:
    """The module at `path`, within the limits; what reading it has to say goes to standard error."""
    from ..backends.compiler import read

    module = read(path, limits_of(options))
    warn(module.warnings)
    return module


def warn(warnings: Iterable[str]) -> None:
    """Print each on a line of standard error."""
    from ..support.errors import visible

    sys.stderr.writelines(f"warning: {visible(warning)}\n" for warning in warnings)


def check_once(*models: str) -> None:
    """Raises UsageError where two models are to come from standard input."""
    from ..support.errors import UsageError

    if models.count("-") > 1:
        raise UsageError("only one of the models can be standard input")


def name_of(model: str) -> str:
    """What a report calls a model."""
    from pathlib import Path

    from ..support.output_paths import path_to_text

    return "standard input" if model == "-" else path_to_text(Path(model).name)


def add_inputs(command: argparse.ArgumentParser) -> None:
    """--inputs."""
    command.add_argument(
        "--inputs",
        action="append",
        default=[],
        metavar="FILE",
        help="run on these: .npz by name, or .npy and TensorProto files in the order of the inputs (default: made)",
    )


def map_files(fold_map: str | None) -> list[str | Path | None]:
    """Where a fold map and its arrays are, if there is one."""
    from pathlib import Path

    from ..support.output_paths import arrays_path

    return [] if fold_map is None else [fold_map, arrays_path(Path(fold_map))]


@contextmanager
def naming(path: str) -> Iterator[None]:
    """What is wrong with a fold map is said of the model at `path`."""
    from ..support.errors import FoldMapError

    try:
        yield
    except FoldMapError as error:
        raise FoldMapError(f"{path}: {error}") from None


def write_text(path: str, text: str) -> None:
    r"""Write a text file, complete or not at all, what is no character as `\udcff`; `-` is standard output.

    Raises EmitError.
    """
    with writing_text(path, text):
        pass


@contextmanager
def writing_text(path: str, text: str) -> Iterator[None]:
    """`write_text`, with the file taking its place when the block ends well, so that other files may go with it."""
    from pathlib import Path

    from ..support.files import replacing

    if path == "-":
        yield
        sys.stdout.write(text)
        return
    with replacing(Path(path)) as target:
        target.write_text(text, encoding="utf-8", errors="backslashreplace")
        yield


def write_json(path: str, document: object) -> None:
    """`write_text` of a document."""
    with writing_json(path, document):
        pass


def writing_json(path: str, document: object) -> AbstractContextManager[None]:
    """`writing_text` of a document."""
    return writing_text(path, json_text(document))


def json_text(document: object) -> str:
    """A document as it stands in a file."""
    import json

    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"
