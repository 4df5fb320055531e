"""Instruments: time passes, print or dump the IR, verify it, and trace rules."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from time import perf_counter

from ..ir.debug_counter import APPLIED
from ..ir.module import Module
from ..ir.structural_diff import diff_lines
from ..ir.text.printer import to_text
from ..ir.verifier import verify
from ..support.errors import PassError, VerifyError
from ..support.files import replacing
from .catalog import check_name
from .infra import Pass


def _to_stderr(text: str) -> None:
    sys.stderr.write(text + "\n")


class Timing:
    """Measures the wall-clock time of every pass, in seconds; `render` returns a table."""

    def __init__(self) -> None:
        self.seconds: list[tuple[str, float]] = []
        self._start = 0.0

    def before(self, pass_: Pass, module: Module) -> None:
        """Start the clock."""
        self._start = perf_counter()

    def after(self, pass_: Pass, module: Module, changed: bool) -> None:
        """Stop the clock."""
        self.seconds.append((str(pass_), perf_counter() - self._start))

    def render(self) -> str:
        """Return a table with the milliseconds of each pass and their sum."""
        total = sum(seconds for _, seconds in self.seconds)
        width = max((len(name) for name, _ in self.seconds), default=5)
        rows = [f"{name:<{width}}  {seconds * 1e3:9.2f} ms" for name, seconds in self.seconds]
        return "\n".join([*rows, f"{'total':<{width}}  {total * 1e3:9.2f} ms"])


class PrintIR:
    """Prints the IR after the named passes, or with `all` after every pass that changed it."""

    def __init__(self, name: str = "all", write: Callable[[str], object] = _to_stderr) -> None:
        """Check the name. Raises UsageError if `name` is neither a pass nor `all`."""
        if name != "all":
            check_name(name)
        self._name = name
        self._write = write

    def before(self, pass_: Pass, module: Module) -> None:
        """Do nothing."""

    def after(self, pass_: Pass, module: Module, changed: bool) -> None:
        """Print the module if the pass was asked for."""
        if self._name == pass_.name or (self._name == "all" and changed):
            note = "" if changed else " (unchanged)"
            self._write(f"// IR after {pass_}{note}\n{to_text(module)}")


class DiffIR:
    """Writes a unified diff of the IR text after every pass that changed something."""

    def __init__(self, write: Callable[[Iterable[str]], object]) -> None:
        self._write = write
        self._text = ""
        self._name = "source"

    def before(self, pass_: Pass, module: Module) -> None:
        """Keep the text of the source before the first pass."""
        self._text = self._text or to_text(module)

    def after(self, pass_: Pass, module: Module, changed: bool) -> None:
        """Write the diff from the text after the previous pass that changed something."""
        if changed:
            text = to_text(module)
            self._write(diff_lines(self._text, text, (self._name, str(pass_))))
            self._text, self._name = text, str(pass_)


class DumpIR:
    """Writes `00-source.irc`, `01-SimplifyInference.irc`, ... into a folder, created if needed."""

    def __init__(self, folder: str | Path) -> None:
        """Create the folder. Raises PassError if that fails."""
        self._folder = Path(folder)
        self._count = 0
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            detail = f"{folder}: the folder for IR dumps cannot be created: {error.strerror}"
            raise PassError(detail) from None

    def before(self, pass_: Pass, module: Module) -> None:
        """Write the source before the first pass."""
        if not self._count:
            self._write("source", module)

    def after(self, pass_: Pass, module: Module, changed: bool) -> None:
        """Write the module after the pass."""
        self._write(pass_.name, module)

    def _write(self, name: str, module: Module) -> None:
        with replacing(self._folder / f"{self._count:02}-{name}.irc") as target:
            target.write_text(to_text(module), encoding="utf-8")
        self._count += 1


class Verify:
    """Verifies the IR after every pass, and that a pass which reports no change made none."""

    def __init__(self) -> None:
        self._text = ""

    def before(self, pass_: Pass, module: Module) -> None:
        """Keep the text of the module."""
        self._text = to_text(module)

    def after(self, pass_: Pass, module: Module, changed: bool) -> None:
        """Verify the module. Raises PassError, which names the pass, if a check fails."""
        try:
            verify(module)
        except VerifyError as error:
            raise PassError(f"{pass_} broke the IR:\n{error}") from None
        if not changed and to_text(module) != self._text:
            raise PassError(f"{pass_} changed the IR but reported no change")


class TraceRules:
    """Prints a tree of passes, operators and the rules that were tried, and why they declined."""

    def __init__(self, write: Callable[[str], object] = _to_stderr) -> None:
        self._write = write
        self._where = ""

    def before(self, pass_: Pass, module: Module) -> None:
        """Print the name of the pass and start to record its rules."""
        self._write(str(pass_))
        self._where = ""
        module.debug_counter.trace = self._record

    def after(self, pass_: Pass, module: Module, changed: bool) -> None:
        """Stop recording rules."""
        module.debug_counter.trace = None

    def _record(self, where: str, rule: str, outcome: str) -> None:
        if where != self._where:
            self._write(f"  {where}")
            self._where = where
        declined = f"declined: {outcome}" if outcome else "declined"
        self._write(f"    {rule}: {outcome if outcome == APPLIED else declined}")
