"""Reports: one HTML page that shows what a pipeline did to a model; see docs/report.md."""

from __future__ import annotations

from .collect import Measure, collect
from .page import render, write_report, writing_report
from .recorder import Recorder

__all__ = ["Measure", "Recorder", "collect", "render", "write_report", "writing_report"]
