"""Base class of passes, sequences of passes, and the instruments called around them.

A pass is a frozen dataclass. Its fields are its options, also on the command line (`FoldConstant{max_bytes=65536}`).
It edits a module in place and returns whether it changed anything. A module passes the verifier before and after every
pass, but not necessarily in between.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Any, ClassVar, Protocol

import numpy as np

from ..ir.module import Module
from ..support.errors import EmitError, ModelError, PassError, VerifyError
from ..support.record import record
from .affine.source_affines import collect_sources
from .catalog import check_name, format_option


class Instrument(Protocol):
    """Hooks that `Pass.__call__` calls before and after each pass."""

    def before(self, pass_: Pass, module: Module) -> None:
        """Observe the module before the pass runs."""

    def after(self, pass_: Pass, module: Module, changed: bool) -> None:
        """Observe the module after the pass; `changed` is the value that the pass returned."""


@record(frozen=False)
class PassContext:
    """Instruments, in the order of their calls, and names of passes that `Sequential` skips.

    `warnings` collects messages of the passes for the user. Raises UsageError for an unknown name in `disabled`.
    """

    instruments: Sequence[Instrument] = ()
    disabled: frozenset[str] = frozenset()
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in self.disabled:
            check_name(name)


class Pass:
    """Base class of all passes.

    A subclass is a frozen dataclass with a `name` and a `run`. Its docstring lists its rules; `irc passes` prints the
    first line.
    """

    name: ClassVar[str]
    prepares: ClassVar[bool] = False
    """Whether the pass is a part of reading the model; the affines of the source are recorded after such passes."""
    preserves: ClassVar[bool] = True
    """Whether the module computes the same results before and after, up to rounding."""
    freezes: ClassVar[bool] = False
    """Whether the pass removes optional inputs, those with a default value, from the interface of the model."""

    def run(self, module: Module, ctx: PassContext) -> bool:
        """Edit `module` in place and return whether anything changed."""
        raise NotImplementedError

    def __call__(self, module: Module, ctx: PassContext | None = None) -> Module:
        """Run the pass and the instruments of the context on `module`, and return the same module.

        A module marked untouchable stays as it is, and a warning says why.
        """
        ctx = ctx or PassContext()
        if not self.prepares:  # before the first pass that may fold or move an affine
            collect_sources(module)
        if module.untouchable:
            note = f"{module.untouchable}; passes leave the model unchanged"
            if note not in ctx.warnings:
                ctx.warnings.append(note)
            return module
        for instrument in ctx.instruments:
            instrument.before(self, module)
        with np.errstate(all="ignore"):  # a model may hold any number; the passes test their results for nan and inf
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
        """Return the pass as written on the command line, without the options that have their default."""
        options = [
            f"{option.name}={format_option(value)}"
            for option in fields_of(type(self))
            if (value := getattr(self, option.name)) != option.default
        ]
        return self.name + (f"{{{','.join(options)}}}" if options else "")


def fields_of(pass_: type[Pass]) -> tuple[dataclasses.Field[Any], ...]:
    """Return the dataclass fields of a pass, which are its options."""
    return dataclasses.fields(pass_) if dataclasses.is_dataclass(pass_) else ()


class Sequential:
    """Runs passes one after another, without those that the context disables."""

    def __init__(self, passes: Iterable[Pass]) -> None:
        self.passes = tuple(passes)

    def __call__(self, module: Module, ctx: PassContext | None = None) -> Module:
        """Run every pass on `module` and return it.

        Raises PassError, which names the pass and the passes before it, where a pass fails. Raises VerifyError where an
        instrument finds a fault, ModelError where external data cannot be read, and EmitError where an instrument
        cannot write, or where an expression that a pass evaluates with onnxruntime cannot be written as ONNX.
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
