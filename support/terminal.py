"""IR text and diffs on a terminal: in colour where there is one, as they are elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.highlighter import RegexHighlighter
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text
from rich.theme import Theme

THEME = Theme(
    {
        "ir.value": "cyan",
        "ir.op": "bold",
        "ir.foreign": "bold yellow",
        "ir.type": "green",
        "ir.attribute": "magenta",
        "ir.text": "yellow",
        "ir.comment": "dim",
        "ir.keyword": "bold blue",
    }
)
DIFF = {"+": "green", "-": "red", "@": "bold cyan"}
"""Colours of the lines of a diff by their first character."""


COLUMNS = (
    SpinnerColumn(),
    TextColumn("{task.description}"),
    TextColumn("{task.completed}", style="bold"),
    TextColumn("{task.fields[step]}", style="dim"),
    TimeElapsedColumn(),
)
"""Of a line that shows progress."""

COUNTED = (*COLUMNS[:2], BarColumn(), MofNCompleteColumn(), *COLUMNS[3:])
"""Of one whose end is known."""


class IRHighlighter(RegexHighlighter):
    """Colours IR text by its grammar (`irc.ir.text.parser`)."""

    base_style = "ir."
    highlights = [  # noqa: RUF012 - rich wants a list
        r"(?P<value>%(?:\"[^\"]*\"|[\w.:/$-]+))",
        r"= (?P<op>[a-z_][\w.]*)\b",
        r"= (?P<foreign>\"[^\"]*::[^\"]*\")",
        r"(?P<type>\b[a-z]+\d*\[[^\]]*\])",
        r"(?P<attribute>\b[A-Za-z_]\w*)=",
        r"(?P<comment>//.*$)",
        r"^ *(?P<keyword>module|graph|function|return|region)\b",
    ]


def console(stream: TextIO) -> Console:
    """A console that writes to `stream`, in colour if that is a terminal; lines are never wrapped."""
    return Console(file=stream, theme=THEME, highlight=False, soft_wrap=True)


def write_ir(text: str, stream: TextIO) -> None:
    """Write IR text. What is no terminal gets it as it is."""
    if not stream.isatty():
        stream.write(text)
        return
    highlight = IRHighlighter()
    out = console(stream)
    for line in text.splitlines():
        out.print(highlight(Text(line)))


def write_diff(lines: Iterable[str], stream: TextIO) -> None:
    """Write the lines of a unified diff."""
    if not stream.isatty():
        stream.writelines(f"{line}\n" for line in lines)
        return
    out = console(stream)
    for line in lines:
        out.print(Text(line, style=DIFF.get(line[:1], "")))


Advance = Callable[[str], None]
"""Tells that a step was done, and what it was."""


@contextmanager
def progress(what: str, total: int | None = None, *, quiet: bool = False) -> Iterator[Advance]:
    """A line on standard error that says how many steps were done, of `total`, while the block runs; nothing where that
    is no terminal, or with `quiet`.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda step: None
        return
    columns = COLUMNS if total is None else COUNTED
    with Progress(*columns, console=console(sys.stderr), transient=True) as bar:
        task = bar.add_task(what, total=total, step="")

        def advance(step: str) -> None:
            bar.update(task, advance=1, step=step)

        yield advance
