"""Base class of passes, sequences of passes, and the instruments called around them.

A pass is a frozen dataclass. Its fields are its options, also on the command line (`FoldConstant{max_bytes=65536}`).
It edits a module in place and returns whether it changed anything. A module passes the verifier before and after every
pass, but not necessarily in between.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from ..frontends.onnx.node_schemas import ONNX_SCHEMAS
from ..ir.module import Module
from ..support.errors import EmitError, ModelError, PassError, VerifyError
from .affine.source_affines import collect_sources
from .catalog import check_name, format_option

if TYPE_CHECKING:
    from ..backends.runtime.evaluator import RuntimeEvaluator


class Instrument(Protocol):
    """Hooks that `Pass.__call__` calls before and after each pass."""

    def before(self, pass_: Pass, module: Module) -> None:
        """Observe the module before the pass runs."""

    def after(self, pass_: Pass, module: Module, changed: bool) -> None:
        """Observe the module after the pass; `changed` is the value that the pass returned."""


class PassContext:
    """Instruments, in the order of their calls, and names of passes that `Sequential` skips.

    `warnings` collects messages of the passes for the user. `runs` is the number of runs of passes that are left, None
    without a limit. Raises UsageError for an unknown name in `disabled`.
    """

    def __init__(
        self,
        instruments: Sequence[Instrument] = (),
        disabled: frozenset[str] = frozenset(),
        warnings: list[str] | None = None,
        runs: int | None = None,
    ) -> None:
        for name in disabled:
            check_name(name)
        self.instruments = instruments
        self.disabled = disabled
        self.warnings = [] if warnings is None else warnings
        self.runs = runs
        self._runtime: RuntimeEvaluator | None = None
        self._depth = 0

    @property
    def runtime(self) -> RuntimeEvaluator:
        """The evaluator of constant expressions that the operator table cannot compute, within `running`."""
        if self._runtime is None:
            from ..backends.runtime.evaluator import RuntimeEvaluator  # most models never need it

            self._runtime = RuntimeEvaluator()
        return self._runtime

    @contextmanager
    def running(self) -> Iterator[None]:
        """End what passes start for others to use at the end of the outermost pass or sequence."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth and self._runtime is not None:
                self._runtime.close()
                self._runtime = None


class Pass:
    """Base class of all passes.

    A subclass is a frozen dataclass with a `name` and a `run`. Its docstring lists its rules; `irc passes` prints the
    first line.
    """

    name: ClassVar[str]
    prepares: ClassVar[bool] = False
    """Whether the pass is a part of reading the model; the affines of the source are recorded after such passes."""
    freezes: ClassVar[bool] = False
    """Whether the pass removes optional inputs, those with a default value, from the interface of the model."""

    @property
    def preserves(self) -> bool:
        """Whether the module computes the same results before and after, up to rounding."""
        return True

    def run(self, module: Module, ctx: PassContext) -> bool:
        """Edit `module` in place and return whether anything changed."""
        raise NotImplementedError

    def __call__(self, module: Module, ctx: PassContext | None = None) -> Module:
        """Run the pass and the instruments of the context on `module`, and return the same module.

        A module marked untouchable stays as it is, and a warning says why.
        """
        ctx = ctx or PassContext()
        module.opened = False
        module.schemas = ONNX_SCHEMAS
        if ctx.runs is not None:
            if not ctx.runs:
                return module
            ctx.runs -= 1
        if not self.prepares:  # before the first pass that may fold or move an affine
            collect_sources(module)
        if module.untouchable:
            note = f"{module.untouchable}; passes leave the model unchanged"
            if note not in ctx.warnings:
                ctx.warnings.append(note)
            return module
        for instrument in ctx.instruments:
            instrument.before(self, module)
        # a model may hold any number; the passes test their results for nan and inf
        with ctx.running(), np.errstate(all="ignore"):
            module.provenance.running = self.name
            module.constants.reset()
            module.opened = True
            changed = self.run(module, ctx)
            module.constants.reset()
        module.changed |= changed
        module.opened &= changed
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


ROUNDS = 16
"""Most rounds of a `Repeat`. Two or three are usual: one fold seldom makes room for another by way of many passes."""


class Repeat:
    """Runs passes one after another, again and again, until none of them has anything left to do.

    In a later round a pass runs only if, since it ran last, a pass opened something: changed the module in a way from
    which another rewrite may follow (`Module.opened`). So a module that needs one round takes one, and the time is that
    of at most `ROUNDS` rounds.
    """

    def __init__(self, passes: Iterable[Pass]) -> None:
        self.passes = tuple(passes)

    def __call__(self, module: Module, ctx: PassContext | None = None) -> Module:
        """Run the passes on `module` and return it. Raises the errors of `Sequential`."""
        ctx = ctx or PassContext()
        with ctx.running():
            _run(self, module, ctx, [])
        return module

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Repeat) and self.passes == other.passes

    def __hash__(self) -> int:
        return hash(self.passes)

    def __str__(self) -> str:
        return f"({','.join(map(str, self.passes))})*"


class Sequential:
    """Runs passes one after another, without those that the context disables."""

    def __init__(self, passes: Iterable[Pass | Repeat]) -> None:
        self.passes = tuple(passes)

    @property
    def flat(self) -> tuple[Pass, ...]:
        """Return the passes of the sequence, those of each `Repeat` once."""
        return tuple(pass_ for step in self.passes for pass_ in (step.passes if isinstance(step, Repeat) else (step,)))

    def __call__(self, module: Module, ctx: PassContext | None = None) -> Module:
        """Run every pass on `module` and return it.

        Raises PassError, which names the pass and the passes before it, where a pass fails. Raises VerifyError where an
        instrument finds a fault, ModelError where external data cannot be read, and EmitError where an instrument
        cannot write.
        """
        ctx = ctx or PassContext()
        done: list[str] = []
        with ctx.running():
            for step in self.passes:
                _run(step, module, ctx, done)
        return module

    def __str__(self) -> str:
        return ",".join(map(str, self.passes))


def _run(step: Pass | Repeat, module: Module, ctx: PassContext, done: list[str]) -> None:
    """Run a pass, or rounds of passes; `done` lists the passes that were run."""
    if isinstance(step, Pass):
        _run_pass(step, module, ctx, done)
        return
    passes = [pass_ for pass_ in step.passes if pass_.name not in ctx.disabled]
    waiting = dict.fromkeys(range(len(passes)), True)
    for _ in range(ROUNDS):
        for i, pass_ in enumerate(passes):
            if waiting[i]:
                waiting[i] = False
                _run_pass(pass_, module, ctx, done)
                if module.opened:
                    waiting.update((other, True) for other in waiting if other != i)
        if not any(waiting.values()):
            return


def _run_pass(pass_: Pass, module: Module, ctx: PassContext, done: list[str]) -> None:
    if pass_.name in ctx.disabled:
        return
    try:
        pass_(module, ctx)
    except (EmitError, ModelError, PassError, VerifyError):
        raise
    except Exception as error:
        before = ", ".join(done) or "no other pass"
        raise PassError(f"{pass_} failed after {before}: {type(error).__name__}: {error}") from error
    done.append(str(pass_))
