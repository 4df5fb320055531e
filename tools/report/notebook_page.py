"""The report in a notebook."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ...compiler import compile as compile_model
from ...frontends import load
from ...frontends.onnx.codec.protos import ModelProto
from ...ir.module import Module
from ...passes.infra import Pass, PassContext, Sequential
from ...support.files import replacing
from .collect import collect
from .notebook import escape
from .page import render
from .recorder import Recorder

HEIGHT = 640
"""Pixels of the frame."""

MAX_BYTES = 8 << 20
"""Most bytes of a page that a notebook takes in."""


@dataclass(frozen=True, repr=False)
class NotebookPage:
    """A report's page. A notebook shows it in its own frame; scripts reach nothing outside."""

    name: str
    page: str

    def __repr__(self) -> str:
        return f"<report on {self.name!r}, {len(self.page):,} bytes>"

    def _repr_html_(self) -> str:
        """Return the frame, or a sentence if the page is larger than MAX_BYTES."""
        if len(self.page) > MAX_BYTES:
            return (
                f"<p>{escape(repr(self))} is too large for a notebook:"
                " save(path) writes it to a file</p>"
            )
        style = f"width:100%;height:{HEIGHT}px;border:1px solid #8884"
        return (
            f'<iframe sandbox="allow-scripts" srcdoc="{escape(self.page)}"'
            f' style="{style}"></iframe>'
        )

    def save(self, path: str | Path) -> None:
        """Write the page to a file."""
        with replacing(Path(path)) as target:
            target.write_text(self.page, encoding="utf-8")


def show(
    model: str | Path | ModelProto | Module,
    passes: str | Sequential | Iterable[Pass | type[Pass]] | None = None,
) -> NotebookPage:
    """Return the report on the effect of `passes` on a model, for a notebook to show.

    A Module is changed in place.
    """
    module = load(model)
    name = module.graph.name or "model"
    recorder = Recorder(module)
    result = compile_model(module, passes, context=PassContext([recorder]))
    return NotebookPage(name, render(collect(name, recorder, result)))
