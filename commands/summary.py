"""What `irc compile --json` says."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field

from .options import json_text

TYPE_CHECKING = False  # of typing, which takes longer to import than the rest
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from ..backends.onnx import Result
    from ..backends.verify import VerifyNumerics


@dataclass(slots=True)
class Summary:
    """The document that goes to `path`, which is a file, `-` for standard output, or None where none is asked for."""

    path: str | None
    _temporary: Path | None = field(default=None, init=False)
    _text: str = field(default="", init=False)

    def enter(self, files: ExitStack) -> None:
        """Let a file come into place with the others. Raises EmitError where it cannot be written."""
        if self.path in (None, "-"):
            return
        from pathlib import Path

        from ..backends.files import replacing

        assert self.path is not None
        self._temporary = files.enter_context(replacing(Path(self.path)))

    def write(self, document: object) -> None:
        """Write it, all else being written and nothing in place. Raises EmitError."""
        if self.path is None:
            return
        self._text = json_text(document)
        if self._temporary is not None:
            from ..backends.files import writing

            with writing(self.path):
                self._temporary.write_text(self._text, encoding="utf-8", errors="backslashreplace")

    def print(self) -> None:
        """What goes to standard output goes there last: it cannot be taken back."""
        if self.path == "-":
            sys.stdout.write(self._text)


def of_result(result: Result, verify: VerifyNumerics | None, before: int, seconds: float) -> dict[str, Any]:
    """What became of a model that had `before` operators."""
    return {
        "operators": [before, result.operators],
        "affines": dict(sorted(result.count().items())),
        "seconds": round(seconds, 6),
        "warnings": [*result.warnings, *([] if verify is None else verify.warnings())],
        "verified": [] if verify is None else [asdict(verdict) for verdict in verify.verdicts],
    }
