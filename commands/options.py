"""What several commands have in common."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..ir.graph import Module
    from ..ir.limits import Limits

Subparsers = argparse._SubParsersAction  # its only name

MODEL = "an ONNX file, an .irc text file, or - for ONNX on standard input"
EPILOG = """\
passes are written A,B{option=value},...; `default` stands for the default pipeline and `none` for no pass;
`irc passes` lists them."""
NO_DURATIONS = "leave durations out of the report, so that equal compiles give equal pages"


def add_passes(command: argparse.ArgumentParser, default: str = "default") -> None:
    """--passes and --freeze-initializers."""
    command.add_argument("--passes", default=default, metavar="PASSES", help=f"the passes to run (default: {default})")
    command.add_argument(
        "--freeze-initializers", action="store_true", help="make constants of initializers that are overridable inputs"
    )


def add_limits(command: argparse.ArgumentParser) -> None:
    """The limits of what is read: an option for each field of `Limits`."""
    from dataclasses import fields

    from ..ir.limits import Limits

    group = command.add_argument_group("limits", "models come from strangers: what is larger is refused, or left alone")
    for field in (field for field in fields(Limits) if field.metadata):
        group.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=_bound,
            default=field.default,
            metavar="N",
            help=f"{field.metadata['help']} (default: {field.default})",
        )


def _bound(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def limits_of(options: argparse.Namespace) -> Limits:
    """What `add_limits` described."""
    from dataclasses import fields

    from ..ir.limits import Limits

    numbers = {field.name: getattr(options, field.name) for field in fields(Limits) if field.metadata}
    return Limits(**numbers, isolate=True)


def read_module(path: str, options: argparse.Namespace) -> Module:
    """The module at `path`, within the limits; what reading it has to say goes to standard error."""
    import sys

    from ..backends.driver import read

    module = read(path, limits_of(options))
    sys.stderr.writelines(f"warning: {warning}\n" for warning in module.warnings)
    return module


def add_inputs(command: argparse.ArgumentParser) -> None:
    """--inputs."""
    command.add_argument(
        "--inputs",
        action="append",
        default=[],
        metavar="FILE",
        help="run on these: .npz by name, or .npy and TensorProto files in the order of the inputs (default: made)",
    )


def map_files(path: Path) -> tuple[Path, Path]:
    """Where a fold map and its arrays go."""
    return path, path.with_suffix(".npz")


@contextmanager
def naming(path: str) -> Iterator[None]:
    """What is wrong with a fold map is said of the model at `path`."""
    from ..ir.errors import FoldMapError

    try:
        yield
    except FoldMapError as error:
        raise FoldMapError(f"{path}: {error}") from None


def write_text(path: str, text: str) -> None:
    """Write a text file, complete or not at all; `-` is standard output. Raises EmitError."""
    import sys

    from ..backends.files import replacing

    if path == "-":
        sys.stdout.write(text)
        return
    with replacing(Path(path)) as target:
        target.write_text(text, encoding="utf-8")


def write_json(path: str, document: object) -> None:
    """`write_text` of a document."""
    import json

    write_text(path, json.dumps(document, indent=1, ensure_ascii=False) + "\n")
