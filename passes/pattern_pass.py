"""PatternPass: a pass of one's own that is a list of rewrites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ..ir.module import Module
from ..ir.pattern import Rewrite, rule_table
from ..ir.rewriter import Rewriter
from ..ir.rule_driver import RuleDriver
from .infra import Pass, PassContext


class PatternPass(Pass):
    """Applies rewrites until none applies, in every graph. A subclass lists them in `rewrites`.

    `irc bisect` counts each application. `--debug-rules` prints which pattern matched where, and
    why others did not.
    """

    rewrites: ClassVar[Sequence[Rewrite]] = ()

    def run(self, module: Module, ctx: PassContext) -> bool:
        """Rewrite every graph to a fixpoint."""
        rewriter = Rewriter(module)
        driver = RuleDriver(rewriter, rule_table(self.rewrites), None)
        for graph in list(module.graphs()):
            driver.to_fixpoint(graph)
        return rewriter.changed
