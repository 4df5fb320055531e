"""The code blocks of a page, and a session that runs them in order, as a reader would type them.

| block | how it is run |
| --- | --- |
| `python` | in one namespace for each page; a first line `# name.py` also writes that file |
| `console` | lines after `$ `; those that follow must be printed, `...` stands for others |
| `sh` | each line; `make` runs dry |
| `onnx` | a model in ONNX's text form: checked, and written to `example.txt` and `example.onnx` |
| `ir` | IR text, or a case of `ir_text.py`: read, verified, and printed again; a case is run |

`text`, `json` and `yaml` are no code of irc. A comment `<!-- not run: reason -->` above a block
keeps it from running.
"""

from __future__ import annotations

import glob
import io
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

import harness
import onnx
from ir_text import check_case, read_cases
from irc.ir.text.parser import parse
from irc.ir.text.printer import to_text
from irc.ir.verifier import verify
from irc.tools.cli.main import main

RUN = ("python", "console", "sh", "onnx", "ir")
SHOWN = ("text", "json", "yaml")
SECONDS = re.compile(r"\b\d+\.\d+ s\b|\(\d+(\.\d+)? [kMG]?B\)")
"""Durations, and sizes of files."""

_fence = re.compile(
    r"^(?P<indent> *)```(?P<language>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_marker = re.compile(r"<!-- not run: (.+?) -->\n+\Z")


@dataclass(frozen=True)
class Snippet:
    """A code block, the line on which it begins, and why it is not run."""

    page: Path
    line: int
    language: str
    text: str
    not_run: str = ""

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(harness.ROOT)}:{self.line}"


def snippets(page: Path) -> list[Snippet]:
    """Return the code blocks of a page."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _fence.finditer(text):
        marker = _marker.search(text[: match.start()])
        line = text.count("\n", 0, match.start()) + 2
        code = re.sub(rf"^{match['indent']}", "", match["text"], flags=re.MULTILINE)
        found.append(Snippet(page, line, match["language"], code, marker[1] if marker else ""))
    return found


def indented(page: Path) -> Iterator[int]:
    """Yield the lines on which indented code blocks begin: without language they do not run."""
    text = _fence.sub(lambda match: "\n" * match[0].count("\n"), page.read_text(encoding="utf-8"))
    lines = text.splitlines()
    for number, line in enumerate(lines[1:], start=1):
        if line.startswith("    ") and not lines[number - 1].strip():
            yield number + 1


@dataclass
class Session:
    """Runs the blocks of a page in a folder, one after the other.

    `# exit status 1: reason` after a command of `sh` says that it ends so.
    """

    folder: Path
    names: dict[str, Any] = field(default_factory=dict)

    def run(self, snippet: Snippet) -> None:
        """Run a block. Fails with its place where it does not do as the page says."""
        try:
            with catch_warnings():
                if snippet.not_run:  # a package of another project, with warnings of its own
                    simplefilter("ignore")
                getattr(self, f"_{snippet.language}")(snippet)
        except Exception as error:
            raise AssertionError(f"{snippet.place}: {error}") from error

    def _python(self, snippet: Snippet) -> None:
        name = re.match(r"# (\w+\.py)\n", snippet.text)
        if name:
            (self.folder / name[1]).write_text(snippet.text, encoding="utf-8")
        self.names["__name__"] = "__main__"
        code = compile(
            "\n" * (snippet.line - 1) + snippet.text, snippet.page, "exec", dont_inherit=True
        )
        with redirect_stdout(io.StringIO()):
            exec(code, self.names)

    def _sh(self, snippet: Snippet) -> None:
        for line in snippet.text.replace("\\\n", " ").splitlines():
            if words := shlex.split(line, comments=True):
                ends = re.search(r"# exit status (\d): ", line)
                self._type(words, int(ends[1]) if ends else 0)

    def _console(self, snippet: Snippet) -> None:
        printed: set[str] = set()
        for line in snippet.text.splitlines():
            if line.startswith("$ "):
                printed = {
                    SECONDS.sub("S", each)
                    for each in self._type(shlex.split(line[2:])).splitlines()
                }
            elif line != "...":
                assert SECONDS.sub("S", line) in printed, f"{line!r} is not among {sorted(printed)}"

    def _type(self, words: list[str], expected: int = 0) -> str:
        """Run a command and return what it prints. Fails if its exit status is another."""
        words = [
            name for word in words for name in (sorted(glob.glob(word)) if "*" in word else [word])
        ]
        if words[0] == "make":
            subprocess.run([*words, "--dry-run"], cwd=harness.ROOT, check=True, capture_output=True)
            return ""
        assert words[0] == "irc", f"no way to run {words[0]}"
        printed = io.StringIO()
        with redirect_stdout(printed), redirect_stderr(printed):
            try:
                status = main(words[1:])
            except SystemExit as exit_:
                status = int(exit_.code or 0)
        assert status == expected, (
            f"{shlex.join(words)}: exit status {status}\n{printed.getvalue()}"
        )
        return printed.getvalue()

    def _onnx(self, snippet: Snippet) -> None:
        model = onnx.parser.parse_model(snippet.text)
        if all(
            opset.domain == "" for opset in model.opset_import
        ):  # onnx has no schemas of other domains
            onnx.checker.check_model(model, full_check=True)
        (self.folder / "example.txt").write_text(snippet.text, encoding="utf-8")
        onnx.save(model, self.folder / "example.onnx")

    def _ir(self, snippet: Snippet) -> None:
        if "// CASE" in snippet.text:
            file = self.folder / "case.irc"
            file.write_text(snippet.text, encoding="utf-8")
            for case in read_cases(file):
                check_case(case)
            return
        module = parse(snippet.text)
        verify(module)
        assert to_text(module) == snippet.text, "irc prints it otherwise"
