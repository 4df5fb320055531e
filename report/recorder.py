"""The instrument that keeps, for a report, what a model was and what every pass changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from time import perf_counter

from onnx import ModelProto

from ..backends.onnx.emitter import emit_model
from ..ir.graph import Value
from ..ir.module import Module
from ..ir.text.printer import to_text
from ..passes.affine.fold_records import Scope
from ..passes.affine.source_affines import scopes
from ..passes.infra import Pass
from .text_diff import Diff, diff

Types = dict[Scope, dict[str, str]]
"""The types of a model's values as text, by graph and name."""


@dataclass(frozen=True, slots=True)
class Step:
    """One pass that was run: how long it took in seconds, what it said of itself, and what it did to the IR."""

    name: str
    seconds: float
    changed: bool
    operators: int
    diff: Diff


class Recorder:
    """Records `module` as it is, and then every pass that runs with it in the context's instruments. O(text)."""

    def __init__(self, module: Module) -> None:
        """Raises EmitError where a module that came from IR text cannot be expressed in ONNX."""
        self.source = module.source if isinstance(module.source, ModelProto) else emit_model(module)[0]
        self.base_dir = module.base_dir
        self.operators = count_operators(module)
        self.types = value_types(module)
        self.steps: list[Step] = []
        self._text = to_text(module).splitlines()
        self._start = 0.0

    def before(self, pass_: Pass, module: Module) -> None:
        """Start the clock."""
        self._start = perf_counter()

    def after(self, pass_: Pass, module: Module, changed: bool) -> None:
        """Stop the clock, and compare."""
        seconds = perf_counter() - self._start
        text = to_text(module).splitlines() if changed else self._text
        step = Step(str(pass_), seconds, changed, count_operators(module), diff(self._text, text))
        self.steps.append(step)
        self._text = text


def count_operators(module: Module) -> int:
    """Nodes of every graph, without constants and what returns results."""
    return sum(node.op not in ("constant", "variable", "return") for node in module.walk())


def value_types(module: Module, name_of: Callable[[Value], str] = attrgetter("name")) -> Types:
    """What is known of every value that has a name."""
    found: Types = {}
    for graph, scope in scopes(module):
        values = [*graph.inputs, *(value for node in graph for value in node.outputs)]
        named = ((name_of(value), str(value.type)) for value in values)
        found[scope] = {name: text for name, text in named if name and text != "?"}
    return found
