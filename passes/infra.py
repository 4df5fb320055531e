"""Base class of passes, sequences of passes, and the instruments called around them.

A pass is a frozen dataclass. Its fields are its options, also on the command line
(`FoldConstant{max_bytes=65536}`). It edits a module in place and returns whether it changed
anything. A module passes the verifier before and after every pass, but not necessarily in between.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from traceback import extract_tb
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np

from ..ir.graph import Value
from ..ir.module import Module, check_module
from ..ir.tensor import Array
from ..support.errors import EmitError, ModelError, PassError, UsageError, VerifyError
from ..support.hooks import provided
from .affine.records.source_affines import collect_sources
from .catalog import CATALOG, DEFINED, check_name, format_option
from .keeping import hidden_nodes


class Instrument(Protocol):
    """Hooks that `Pass.__call__` calls before and after each pass."""

    def before(self, pass_: Pass, module: Module) -> None:
        """Observe the module before the pass runs."""

    def after(self, pass_: Pass, module: Module, changed: bool) -> None:
        """Observe the module after the pass; `changed` is the value that the pass returned."""


class ConstantRuntime(Protocol):
    """A runtime that computes constant expressions of which the operator table has no kernels."""

    blamed: set[str]
    """Operators that crashed the runtime."""

    @property
    def installed(self) -> bool:
        """Whether there is a runtime."""

    @property
    def gave_up(self) -> bool:
        """Whether the runtime is not installed, or crashed too often."""

    def evaluate(
        self, values: Sequence[Value], feeds: Mapping[Value, Array], opset: int
    ) -> list[Array] | None:
        """Return the elements of `values`, computed from `feeds`; None if that fails.

        Raises WorkerDiedError.
        """

    def close(self) -> None:
        """End the processes of the runtime."""


class PassContext:
    """Instruments, in the order of their calls, and names of passes that `Sequential` skips.

    `warnings` collects messages of the passes for the user. `runs` is the number of runs of passes
    that are left, None without a limit. Raises UsageError for an unknown name in `disabled`.
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
        self._runtime: ConstantRuntime | None = None
        self._depth = 0

    @property
    def runtime(self) -> ConstantRuntime:
        """The evaluator, within `running`, of operators that the table cannot compute."""
        if self._runtime is None:
            self._runtime = provided("constant runtime")()
        return self._runtime

    @contextmanager
    def running(self) -> Iterator[None]:
        """End at the outermost pass or sequence the helpers that passes start for others."""
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

    A subclass is a frozen dataclass with a `name` and a `run`. Its docstring lists its rules; `irc
    passes` prints the first line.
    """

    name: ClassVar[str]
    """The name on the command line, by default the name of the class."""
    after: ClassVar[tuple[str, ...]] = ()
    """Names of passes that make room for this one; one that comes only later gives a warning."""
    prepares: ClassVar[bool] = False
    """Whether the pass is a part of reading the model, after which its affines are recorded."""
    freezes: ClassVar[bool] = False
    """Whether the pass removes inputs with a default value from the interface of the model."""
    learns: ClassVar[bool] = False
    """Whether a change of the pass alone may let it do more in the next round."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" not in cls.__dict__:
            cls.name = cls.__name__
        is_own = cls.__module__.partition(".")[0] != __name__.partition(".")[0]
        if is_own and cls.name not in CATALOG:
            DEFINED[cls.name] = f"{cls.__module__}:{cls.__qualname__}"

    @property
    def preserves(self) -> bool:
        """Whether the module computes the same results before and after, up to rounding."""
        return True

    def run(self, module: Module, ctx: PassContext) -> bool:
        """Edit `module` in place and return whether anything changed."""
        raise NotImplementedError

    def __call__(
        self, module: Module, ctx: PassContext | Iterable[Instrument] | None = None
    ) -> Module:
        """Run the pass and the instruments of the context on `module`, and return the same module.

        A module marked untouchable stays as it is, and a warning says why. Raises UsageError for
        anything else than a module.
        """
        ctx = context_of(ctx)
        check_module(module)
        module.opened = False
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
        with ctx.running(), np.errstate(all="ignore"), hidden_nodes(module):
            module.provenance.running = self.name
            module.provenance.is_foreign = self.name not in CATALOG
            module.constants.reset()
            module.opened = True
            changed = self._changed(self.run(module, ctx), ctx)
            module.constants.reset()
        module.changed |= changed
        module.opened &= changed
        module.provenance.passes.append(str(self))
        for instrument in ctx.instruments:
            instrument.after(self, module, changed)
        return module

    def _changed(self, returned: object, ctx: PassContext) -> bool:
        """Return whether the pass changed anything; None counts as a change, with a warning."""
        if isinstance(returned, bool | np.bool_):
            return bool(returned)
        note = (
            f"{self.name}.run returned {returned!r}, which is taken for a change: return True or"
            " False"
        )
        if note not in ctx.warnings:
            ctx.warnings.append(note)
        return True

    @property
    def spec(self) -> str:
        """The pass as any process can read it: one of another package with its module."""
        text = str(self)
        if self.name in CATALOG:
            return text
        return f"{type(self).__module__}:{type(self).__qualname__}{text[len(self.name) :]}"

    def __str__(self) -> str:
        """Return the pass as on the command line, without options that have their default."""
        options = [
            f"{option.name}={format_option(value)}"
            for option in fields_of(type(self))
            if (value := getattr(self, option.name)) != option.default
        ]
        return self.name + (f"{{{','.join(options)}}}" if options else "")


def fields_of(pass_: type[Pass]) -> tuple[dataclasses.Field[Any], ...]:
    """Return the dataclass fields of a pass, which are its options."""
    return dataclasses.fields(pass_) if dataclasses.is_dataclass(pass_) else ()


Passes: TypeAlias = "Pass | Repeat | Sequential | type[Pass] | Iterable[Passes]"
"""Passes, classes of passes, and sequences and lists of them."""


def context_of(ctx: PassContext | Iterable[Instrument] | None) -> PassContext:
    """Return a context; a list of instruments makes one."""
    if isinstance(ctx, PassContext):
        return ctx
    if not isinstance(ctx, Iterable | None) or isinstance(ctx, str):
        raise UsageError(f"{ctx!r} is not a context: give a PassContext, or a list of instruments")
    return PassContext() if ctx is None else PassContext(tuple(ctx))


def steps_of(passes: object) -> tuple[Pass | Repeat, ...]:
    """Return the passes in an iterable, in order.

    A sequence inside counts as its passes, and a class as an instance without options. Raises
    UsageError for anything else.
    """
    if isinstance(passes, Pass | Repeat):
        return (passes,)
    if isinstance(passes, Sequential):
        return passes.passes
    if isinstance(passes, type) and issubclass(passes, Pass):
        try:
            return (passes(),)
        except TypeError as error:
            detail = f"{passes.name} needs options: give an instance of it ({error})"
            raise UsageError(detail) from None
    if isinstance(passes, str) or not isinstance(passes, Iterable):
        hint = (
            f"; irc.passes.parse_pipeline({passes!r}) reads text" if isinstance(passes, str) else ""
        )
        raise UsageError(f"{passes!r} is not a pass: give instances of irc.passes.Pass{hint}")
    return tuple(step for each in passes for step in steps_of(each))


ROUNDS = 16
"""Most rounds of a `Repeat`.

Two or three are usual: one fold seldom makes room for another by way of many passes.
"""


class Repeat:
    """Runs passes one after another, again and again, until none of them has anything left to do.

    In a later round a pass runs only if, since it ran last, a pass opened something: changed the
    module in a way from which another rewrite may follow (`Module.opened`). So a module that needs
    one round takes one, and the time is at most that of `ROUNDS` rounds.
    """

    def __init__(self, passes: Iterable[Pass | type[Pass]]) -> None:
        self.passes = Sequential(passes).flat

    def __call__(
        self, module: Module, ctx: PassContext | Iterable[Instrument] | None = None
    ) -> Module:
        """Run the passes on `module` and return it. Raises the errors of `Sequential`."""
        ctx = context_of(ctx)
        with ctx.running():
            _run(self, module, ctx, [])
        return module

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Repeat) and self.passes == other.passes

    def __hash__(self) -> int:
        return hash(self.passes)

    @property
    def spec(self) -> str:
        """The passes as any process can read them."""
        return f"({','.join(pass_.spec for pass_ in self.passes)})*"

    def __str__(self) -> str:
        return f"({','.join(map(str, self.passes))})*"


class Sequential:
    """Runs passes one after another, without those that the context disables.

    A sequence among them counts as its passes, and a class as an instance without options.
    """

    def __init__(self, passes: Passes) -> None:
        self.passes = steps_of(passes)

    def __repr__(self) -> str:
        return f"<Sequential: {self}>"

    @property
    def flat(self) -> tuple[Pass, ...]:
        """Return the passes of the sequence, each of a `Repeat` once."""
        return tuple(
            pass_
            for step in self.passes
            for pass_ in (step.passes if isinstance(step, Repeat) else (step,))
        )

    def __call__(
        self, module: Module, ctx: PassContext | Iterable[Instrument] | None = None
    ) -> Module:
        """Run every pass on `module` and return it.

        Raises PassError, which names the pass and the passes before it, if a pass fails. Raises
        VerifyError if an instrument finds a fault, ModelError if external data cannot be read, and
        EmitError if an instrument cannot write.
        """
        ctx = context_of(ctx)
        ctx.warnings.extend(note for note in self.misplaced() if note not in ctx.warnings)
        done: list[str] = []
        with ctx.running():
            for step in self.passes:
                _run(step, module, ctx, done)
        return module

    def misplaced(self) -> Iterator[str]:
        """Yield a sentence for each pass whose declared predecessors come after it only."""
        names = [pass_.name for pass_ in self.flat]
        for i, pass_ in enumerate(self.flat):
            late = [
                name for name in pass_.after if name in names[i + 1 :] and name not in names[:i]
            ]
            if late and pass_.name not in names[i + 1 :]:  # else it runs behind them, too
                yield (
                    f"{pass_.name} runs before {late[0]}, which makes room for it: put {late[0]}"
                    " first"
                )

    @property
    def spec(self) -> str:
        """The passes as any process can read them."""
        return ",".join(step.spec for step in self.passes)

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
                    waiting.update((other, True) for other in waiting if other != i or pass_.learns)
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
        when = f"after {', '.join(done)}" if done else "as the first pass"
        message = f"{pass_} failed {when}: {type(error).__name__}: {error}{_line_of(pass_, error)}"
        raise PassError(message) from error
    done.append(str(pass_))


def _line_of(pass_: Pass, error: Exception) -> str:
    """Return the place in the file of a user's pass that raised `error`, or led to it."""
    if pass_.name in CATALOG:
        return ""
    module = sys.modules.get(type(pass_).__module__)
    lines = [
        frame
        for frame in extract_tb(error.__traceback__)
        if frame.filename == getattr(module, "__file__", None)
    ]
    return f" ({lines[-1].filename}, line {lines[-1].lineno})" if lines else ""
