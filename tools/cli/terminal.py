"""Print IR text, diffs and progress: in colour on a terminal, plain elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.highlighter import RegexHighlighter
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text
from rich.theme import Theme

from ...support.errors import visible
from ...support.progress import Advance

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
"""Columns of a progress line without a known end."""

COUNTED = (*COLUMNS[:2], BarColumn(), MofNCompleteColumn(), *COLUMNS[3:])
"""Columns of a progress line with a known end."""


class IRHighlighter(RegexHighlighter):
    """A highlighter for IR text, after its grammar (`irc.ir.text.parser`)."""

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
    """Return a console for `stream`, which never wraps lines; in colour on a terminal."""
    return Console(file=stream, theme=THEME, highlight=False, soft_wrap=True)


def write_ir(text: str, stream: TextIO) -> None:
    """Write IR text, in colour if `stream` is a terminal."""
    if not stream.isatty():
        stream.write(text)
        return
    highlight = IRHighlighter()
    out = console(stream)
    for line in text.splitlines():
        out.print(highlight(Text(line)))


def write_diff(lines: Iterable[str], stream: TextIO) -> None:
    """Write the lines of a unified diff, in colour if `stream` is a terminal."""
    if not stream.isatty():
        stream.writelines(f"{line}\n" for line in lines)
        return
    out = console(stream)
    for line in lines:
        out.print(Text(line, style=DIFF.get(line[:1], "")))


@contextmanager
def progress(title: str, total: int | None = None, *, quiet: bool = False) -> Iterator[Advance]:
    """Show on standard error how many steps, of `total`, are done while the block runs.

    Shows nothing with `quiet`, or if standard error is neither a terminal nor a notebook's.
    """
    if not quiet and in_notebook():
        yield from _line(title, total)
        return
    if quiet or not sys.stderr.isatty():
        yield lambda step: None
        return
    columns = COLUMNS if total is None else COUNTED
    with Progress(*columns, console=console(sys.stderr), transient=True) as bar:
        task = bar.add_task(title, total=total, step="")

        def advance(step: str) -> None:
            bar.update(task, advance=1, step=step)

        yield advance


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def _line(title: str, total: int | None) -> Iterator[Advance]:
    """Write the steps that are done as one line; in a notebook it replaces the one before."""
    done, width = 0, 0

    def write(text: str) -> None:
        nonlocal width
        sys.stderr.write(f"\r{text:<{width}}")
        sys.stderr.flush()
        width = len(text)

    def advance(step: str) -> None:
        nonlocal done
        done += 1
        share = "" if total is None else f" |{'#' * (20 * done // total):<20}|"
        write(
            f"{title}{share} {done}{'' if total is None else f' of {total}'} {visible(step)[:40]}"
        )

    yield advance
    write("")
    sys.stderr.write("\r")
