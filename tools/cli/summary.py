"""Summaries of a compile: the document of `--json`, and the lines on standard error."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress

from .options import document_head, json_text, warn, write_json

TYPE_CHECKING = False  # of typing, which takes longer to import than the rest
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from ...passes import Timing
    from ...result import Result
    from ..verify import VerifyNumerics
    from .inspection import SizeFacts


class Summary:
    """The document of --json. It goes to `path`: a file, `-` for standard output, or None."""

    def __init__(self, path: str | None, *, is_printed: bool = False) -> None:
        self.path = path
        self.is_printed = is_printed
        """Whether a compile prints the summary itself: last, before files come into place."""
        self.is_wanted = path is not None
        """Whether a compile makes the document."""
        self.document: Mapping[str, Any] | Sequence[Any] | None = None
        self.verify: VerifyNumerics | None = None
        """The instrument of --verify, once there is one."""
        self.is_free = path == "-"
        """Whether the model is known not to read the path, which a failure may then replace."""
        self.explanation: tuple[str, ...] = ()
        """The lines of --explain."""
        self._temporary: Path | None = None

    def enter(self, files: ExitStack) -> None:
        """Rename the file into place together with `files`.

        Raises EmitError if it cannot be written.
        """
        if self.path in (None, "-"):
            return
        from pathlib import Path

        from ...support.files import replacing

        assert self.path is not None
        self._temporary = files.enter_context(replacing(Path(self.path)))

    def write(self, document: Mapping[str, Any] | Sequence[Any]) -> None:
        """Write the document, after all other files and before any is in place.

        Raises EmitError.
        """
        self.document = document
        if self._temporary is not None:
            from ...support.files import writing

            with writing(self.path):
                self._temporary.write_text(
                    json_text(document), encoding="utf-8", errors="backslashreplace"
                )

    def print(self) -> None:
        """Print the lines for standard output. Raises EmitError if it cannot be written."""
        if self.path == "-":
            sys.stdout.write(json_text(self.document))
        else:
            sys.stdout.writelines(f"{line}\n" for line in self.explanation)
        sys.stdout.flush()

    @contextmanager
    def of_failure(self) -> Iterator[None]:
        """Write a document with the error if the block fails, except by wrong usage.

        It replaces an earlier one.
        """
        from ...support.errors import IRError, UsageError

        try:
            yield
        except UsageError:
            raise
        except IRError as error:
            self.document = describe_failure(error, self.verify)
            if self.path is not None and self.is_free:
                with suppress(IRError, OSError):  # the first error says more
                    write_json(self.path, self.document)
            raise


def describe_failure(error: Exception, verify: VerifyNumerics | None) -> dict[str, Any]:
    """Return the document of a failed compile: the error, and the results of --verify."""
    if verify is None:
        return {**document_head("compile"), "error": str(error)}
    from dataclasses import asdict

    from ..verify.difference import json_value

    failure = None if verify.failure is None else asdict(verify.failure)
    return {
        **document_head("compile"),
        "error": str(error),
        "verified": [asdict(verdict) for verdict in verify.verdicts],
        "budget": verify.budget,
        "failure": None
        if failure is None
        else {key: json_value(value) for key, value in failure.items()},
    }


def wants_table(options: argparse.Namespace) -> bool:
    """Return whether the table of --table is printed: for a person, or on demand."""
    is_read = sys.stderr.isatty() and not options.quiet
    return options.table or is_read


def describe_result(
    result: Result,
    verify: VerifyNumerics | None,
    before: int,
    seconds: float,
    sizes: Sequence[SizeFacts],
) -> dict[str, Any]:
    """Return the document of a compile; the source had `before` operators."""
    from dataclasses import asdict

    return {
        **document_head("compile"),
        "error": None,
        "operators": [before, result.operators],
        "sizes": list(sizes),
        "affines": dict(sorted(result.count().items())),
        "held_back": result.held_back,
        "seconds": round(seconds, 6),
        "preprocessing": result.preprocessing,
        "warnings": [*result.warnings, *([] if verify is None else verify.warnings())],
        "verified": [] if verify is None else [asdict(verdict) for verdict in verify.verdicts],
        "budget": None if verify is None else verify.budget,
    }


def files_text(paths: Iterable[str | Path | None]) -> str:
    """Return the files among `paths` that are there, with their sizes: `wrote a.onnx (12 kB)`."""
    from pathlib import Path

    from ...support.errors import visible
    from ...support.output_paths import path_to_text

    found = [str(path) for path in paths if path not in (None, "-") and Path(str(path)).exists()]
    sizes = {
        path: "" if Path(path).is_dir() else f" ({size_text(Path(path).stat().st_size)})"
        for path in found
    }
    return f"wrote {', '.join(visible(path_to_text(path)) + size for path, size in sizes.items())}"


def size_text(size: float) -> str:
    """Return a number of bytes in the largest unit of which there is one."""
    units = ["B", "kB", "MB", "GB"]
    while size >= 999.5 and len(units) > 1:
        size /= 1000
        del units[0]
    unit = units[0]
    return f"{size:.1f} {unit}" if size < 99.95 and unit != "B" else f"{size:.0f} {unit}"


def summarize(
    options: argparse.Namespace,
    result: Result,
    before: int,
    timing: Timing | None,
    seconds: float,
    written: Sequence[str | Path | None],
    sizes: Sequence[SizeFacts],
) -> None:
    """Print warnings, durations and the summary to standard error, as `options` say."""
    from ...backends.foldmap.status_counts import statuses
    from ...passes.narrow_weights import narrow_weights
    from ...support.errors import visible

    warn(result.warnings)
    lines: list[str] = []
    if timing is not None:
        lines.append(timing.render())
    if not options.quiet:
        parts = [
            f"{before} -> {result.operators} operators",
            f"scales and shifts: {statuses(result.count())}",
            f"{seconds:.2f} s",
        ]
        if result.held_back:
            folds = "1 fold" if result.held_back == 1 else f"{result.held_back} folds"
            parts.insert(
                2, f"{folds} held back by overridable initializers (--freeze-initializers)"
            )
        narrow = sum(1 for _ in narrow_weights(result.module))
        if narrow:
            weights = "1 weight stays" if narrow == 1 else f"{narrow} weights stay"
            parts.insert(
                2, f"{weights} in a narrower type behind a Cast (FoldConstant{{widen=true}})"
            )
        if written:
            parts.append(files_text(written))
        lines += map(visible, result.preprocessing)
        lines.append("; ".join(parts))
    if sizes and wants_table(options):
        from .size_table import size_rows, table_lines

        lines += map(visible, table_lines(size_rows(sizes, ("before", "after"))))
    sys.stderr.writelines(f"{line}\n" for line in lines)
