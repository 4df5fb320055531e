"""Record a compile for a report: the source model, and the effect of every pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from time import perf_counter

from onnx import ModelProto

from ...backends.onnx.emitter import emit_model
from ...ir.graph import Value
from ...ir.module import Module
from ...ir.text.printer import to_text
from ...passes.affine.records.fold_records import Scope
from ...passes.affine.records.source_affines import scopes
from ...passes.infra import Pass
from .text_diff import Diff, diff

Types = dict[Scope, dict[str, str]]
"""The types of values as text, by scope of their graph and by name."""


@dataclass(frozen=True, slots=True)
class PassRun:
    """One run of a pass: its text, seconds, whether it says it changed anything, and the diff."""

    name: str
    seconds: float
    changed: bool
    operators: int
    diff: Diff


class Recorder:
    """An instrument that records `module` before the first pass, and then every pass.

    O(IR text) each.
    """

    def __init__(self, module: Module) -> None:
        """Record the source; raise EmitError if a module of IR text has no ONNX form."""
        if isinstance(module.source, ModelProto):
            self.source = module.source
        else:
            self.source = emit_model(module)[0]
        self.base_dir = module.base_dir
        self.operators = module.operators().total()
        self.types = value_types(module)
        self.runs: list[PassRun] = []
        self._text = to_text(module).splitlines()
        self._start = 0.0

    def before(self, pass_: Pass, module: Module) -> None:
        """Start the clock."""
        self._start = perf_counter()

    def after(self, pass_: Pass, module: Module, changed: bool) -> None:
        """Stop the clock, and compare the IR text with the text before the pass."""
        seconds = perf_counter() - self._start
        text = to_text(module).splitlines() if changed else self._text
        self.runs.append(
            PassRun(
                str(pass_), seconds, changed, module.operators().total(), diff(self._text, text)
            )
        )
        self._text = text


def value_types(module: Module, name_of: Callable[[Value], str] = attrgetter("name")) -> Types:
    """Return the type of every value that has a name and a known type."""
    found: Types = {}
    for graph, scope in scopes(module):
        values = [*graph.inputs, *(value for node in graph for value in node.outputs)]
        named = ((name_of(value), str(value.type)) for value in values)
        found[scope] = {name: text for name, text in named if name and text != "?"}
    return found
