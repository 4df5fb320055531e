"""Summaries of a compile: the document of `--json`, and the lines on standard error."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress

from .options import json_text, warn, write_json

TYPE_CHECKING = False  # of typing, which takes longer to import than the rest
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from ..backends.result import Result
    from ..ir.module import Module
    from ..passes import Timing
    from ..verify import VerifyNumerics


class Summary:
    """The document that goes to `path`, which is a file, `-` for standard output, or None where none is asked for."""

    def __init__(self, path: str | None) -> None:
        self.path = path
        self.is_wanted = path is not None
        """Whether a compile makes the document at all."""
        self.document: Mapping[str, Any] | Sequence[Any] | None = None
        self.verify: VerifyNumerics | None = None
        """The instrument that verifies the compile, once there is one."""
        self.is_free = path == "-"
        """Whether nothing that the model reads is known to stand at the path: a failure is told there then."""
        self._temporary: Path | None = None

    def enter(self, files: ExitStack) -> None:
        """Let a file come into place with the others. Raises EmitError where it cannot be written."""
        if self.path in (None, "-"):
            return
        from pathlib import Path

        from ..support.files import replacing

        assert self.path is not None
        self._temporary = files.enter_context(replacing(Path(self.path)))

    def write(self, document: Mapping[str, Any] | Sequence[Any]) -> None:
        """Write it, all else being written and nothing in place. Raises EmitError."""
        self.document = document
        if self._temporary is not None:
            from ..support.files import writing

            with writing(self.path):
                self._temporary.write_text(json_text(document), encoding="utf-8", errors="backslashreplace")

    def print(self) -> None:
        """What goes to standard output goes there last: it cannot be taken back."""
        if self.path == "-":
            sys.stdout.write(json_text(self.document))

    @contextmanager
    def of_failure(self) -> Iterator[None]:
        """Where the block fails, but for wrong usage, the document says so, in place of an earlier one."""
        from ..support.errors import IRError, UsageError

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
    """Why there is no model, and how far its verification came."""
    if verify is None:
        return {"error": str(error)}
    from dataclasses import asdict

    from ..verify.difference import json_value

    failure = None if verify.failure is None else asdict(verify.failure)
    return {
        "error": str(error),
        "verified": [asdict(verdict) for verdict in verify.verdicts],
        "failure": None if failure is None else {key: json_value(value) for key, value in failure.items()},
    }


def describe_result(result: Result, verify: VerifyNumerics | None, before: int, seconds: float) -> dict[str, Any]:
    """What became of a model that had `before` operators."""
    from dataclasses import asdict

    return {
        "error": None,
        "operators": [before, result.operators],
        "affines": dict(sorted(result.count().items())),
        "seconds": round(seconds, 6),
        "warnings": [*result.warnings, *([] if verify is None else verify.warnings())],
        "verified": [] if verify is None else [asdict(verdict) for verdict in verify.verdicts],
    }


def count_nodes(module: Module) -> int:
    """Operators of a module, its constants and returns not counted."""
    return sum(node.op not in ("constant", "variable", "return") for node in module.walk())


def summarize(options: argparse.Namespace, result: Result, before: int, timing: Timing | None, seconds: float) -> None:
    """Print warnings, times, explanations and the summary, as far as they are asked for, to standard error."""
    from ..support.errors import visible

    warn(result.warnings)
    lines: list[str] = []
    if timing is not None:
        lines.append(timing.render())
    if options.explain:
        from ..backends.foldmap.show import explain

        lines.extend(map(visible, explain(result.fold_map)))
    if not options.quiet:
        counts = ", ".join(f"{count} {status}" for status, count in sorted(result.count().items()))
        lines.append(f"{before} -> {result.operators} operators; affines: {counts or 'none'}; {seconds:.2f} s")
    sys.stderr.writelines(f"{line}\n" for line in lines)
