"""Tell a caller which passes are done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from ..ir.module import Module
from .infra import Instrument, Pass, PassContext


class PassCounter:
    """An instrument that calls a function with the name of each pass that is done."""

    def __init__(self, advance: Callable[[str], None]) -> None:
        self._advance = advance

    def before(self, pass_: Pass, module: Module) -> None:
        """Do nothing."""

    def after(self, pass_: Pass, module: Module, changed: bool) -> None:
        """Tell the name of the pass."""
        self._advance(pass_.name)


@contextmanager
def instrumented(ctx: PassContext, *instruments: Instrument) -> Iterator[None]:
    """Add instruments to a context within the block."""
    before = ctx.instruments
    ctx.instruments = (*before, *instruments)
    try:
        yield
    finally:
        ctx.instruments = before


def counting_passes(
    ctx: PassContext, advance: Callable[[str], None]
) -> AbstractContextManager[None]:
    """Call `advance` with the name of each pass that ends within the block."""
    return instrumented(ctx, PassCounter(advance))
