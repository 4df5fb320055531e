"""Reports: one HTML page that shows the effect of a pipeline on a model; see docs/report.md."""

from __future__ import annotations

from .collect import Measure, collect, collect_alignment
from .notebook_page import show
from .page import render, write_report, writing_page, writing_report
from .recorder import Recorder

__all__ = [
    "Measure",
    "Recorder",
    "collect",
    "collect_alignment",
    "render",
    "show",
    "write_report",
    "writing_page",
    "writing_report",
]
