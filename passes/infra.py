"""Passes, their composition, and the hooks around them.

A pass is a frozen dataclass: its fields are its options, on the command line too (`FoldConstant{max_bytes=65536}`). It
edits a module in place and says whether it changed anything. A module verifies before and after a pass, not during.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np

from ..ir.module import Module
from ..support.errors import EmitError, ModelError, PassError, VerifyError
from .affine.source_affines import collect_sources
from .catalog import check_name, format_option


class Instrument(Protocol):
    """What stands around every pass of a pipeline."""

    def before(self, pass_: Pass, module: Module) -> None:
        """Called with the module that the pass is going to see."""

    def after(self, pass_: Pass, module: Module, changed: bool) -> None:
        """Called with what the pass left; `changed` is what it said of itself."""


@dataclass(slots=True)
class PassContext:
    """Instruments, in the order in which they are called, and names of passes that `Sequential` leaves out.

    `warnings` collects what passes have to tell the user. Raises UsageError for an unknown name in `disabled`.
    """

    instruments: Sequence[Instrument] = ()
    disabled: frozenset[str] = frozenset()
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in self.disabled:
            check_name(name)


class Pass:
    """Base of all passes. A subclass is a frozen dataclass with a `name` and a `run`; its docstring states its
    rules.
    """

    name: ClassVar[str]
    prepares: ClassVar[bool] = False
    """Whether the pass belongs to the reading of the model: the affines of the source are recorded after it."""
    preserves: ClassVar[bool] = True
    """Whether the module computes the same before and after, up to rounding."""
    freezes: ClassVar[bool] = False
    """Whether callers may afterwards not give what they need not give."""

    def run(self, module: Module, ctx: PassContext) -> bool:
        """Edit `module` in place and tell whether anything changed."""
        raise NotImplementedError

    def __call__(self, module: Module, ctx: PassContext | None = None) -> Module:
        """Run on `module`, with the context's instruments around it, and return the same module."""
        ctx = ctx or PassContext()
        if not self.prepares:
            collect_sources(module)
        if module.untouchable:
            note = f"{module.untouchable}, and is left as it is"
            if note not in ctx.warnings:
                ctx.warnings.append(note)
            return module
        for instrument in ctx.instruments:
            instrument.before(self, module)
        with np.errstate(all="ignore"):  # of numbers that a model may hold; results are judged as they are
            module.provenance.running = self.name
            module.constants.reset()
            changed = self.run(module, ctx)
            module.constants.reset()
        module.changed |= changed
        module.provenance.passes.append(str(self))
        for instrument in ctx.instruments:
            instrument.after(self, module, changed)
        return module

    def __str__(self) -> str:
        """The pass as the command line takes it, options that have their default left out."""
        options = [
            f"{option.name}={format_option(value)}"
            for option in fields_of(type(self))
            if (value := getattr(self, option.name)) != option.default
        ]
        return self.name + (f"{{{','.join(options)}}}" if options else "")


def fields_of(pass_: type[Pass]) -> tuple[dataclasses.Field[Any], ...]:
    """The options of a pass."""
    return dataclasses.fields(pass_) if dataclasses.is_dataclass(pass_) else ()


class Sequential:
    """Passes run one after the other; those that the context disables are left out."""

    def __init__(self, passes: Iterable[Pass]) -> None:
        self.passes = tuple(passes)

    def __call__(self, module: Module, ctx: PassContext | None = None) -> Module:
        """Run every pass on `module` and return it.

        Raises PassError, naming the pass and those before it, where a pass fails; VerifyError where an instrument does;
        ModelError where external data cannot be read, EmitError where an instrument cannot write, or where what a pass
        asks the runtime for is no ONNX.
        """
        ctx = ctx or PassContext()
        done: list[str] = []
        for pass_ in self.passes:
            if pass_.name in ctx.disabled:
                continue
            try:
                pass_(module, ctx)
            except (EmitError, ModelError, PassError, VerifyError):
                raise
            except Exception as error:
                before = ", ".join(done) or "no other pass"
                raise PassError(f"{pass_} failed after {before}: {type(error).__name__}: {error}") from error
            done.append(str(pass_))
        return module

    def __str__(self) -> str:
        return ",".join(map(str, self.passes))
