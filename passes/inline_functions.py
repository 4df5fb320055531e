"""InlineFunctions: calls of model-local functions are replaced by the bodies of the functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..ir.module import Module
from ..support.errors import UsageError
from .eliminate_dead_code import drop_unused_functions
from .folding_calls import folding_calls
from .function_inliner import Inliner
from .infra import Pass, PassContext
from .type_completion import complete_types


@dataclass(frozen=True)
class InlineFunctions(Pass):
    """Replace calls of model-local functions by the bodies of the functions.

    1. A call in the main graph, in its subgraphs or in an inlined body becomes a copy of the body
       of the function, with new unique names. The results keep the names of the call.
    2. A reference to an attribute of the function becomes the attribute of the call, or the default
       of the function; without either the attribute is removed. Operators that become known by that
       are lowered as in the main graph.
    3. A function stays, with a warning, if it calls itself, directly or through others, or if one
       of its operators has another meaning in the opsets of the main graph. All functions stay if
       the model would exceed the limit of nodes. A call stays if it omits an operand that the
       function has to read, or has more results than the function.
    4. Functions that are no longer called are removed.
    5. With `calls=folding` only those calls are inlined that let an affine move or a shape become
       known: an affine would meet a layer, and the parameters or the weight of one of them are
       operands of the call, or the affine stands beside the call, or the call alone says the rank
       of the data of a MatMul; or the call stands between a layer and an affine that FoldScaleAxis
       has left, or has one of them, and lets affines pass; or the body works on shapes, the call
       gives it a constant, and the types of the results are not known. A body with more than 1 KiB
       of constants other than parameters of affines and biases is not copied for several calls.
    """

    name: ClassVar[str] = "InlineFunctions"
    prepares: ClassVar[bool] = True
    learns: ClassVar[bool] = True
    calls: str = "all"

    def __post_init__(self) -> None:
        """Check the option. Raises UsageError for a value that it does not take."""
        if self.calls not in ("all", "folding"):
            raise UsageError(f"{self.name}: option calls is one of all, folding")

    def run(self, module: Module, ctx: PassContext) -> bool:
        if not module.functions:
            return False
        inliner = Inliner(module)
        waiting = [node for node in module.graph.walk() if inliner.callee(node) is not None]
        if self.calls == "folding":
            waiting = folding_calls(module, waiting)
            if not waiting:
                return False
        for key in inliner.refused if self.calls == "all" else ():
            ctx.warnings.append(
                f"function {key[0]}::{key[1]} is not inlined: {inliner.refused[key]}"
            )
        if inliner.count() > module.limits.max_nodes:
            ctx.warnings.append(
                f"{module.limits.too_many_nodes('the model with its functions inlined')}: no"
                " function is inlined"
            )
            return False
        while waiting:
            call = waiting.pop()
            if inliner.rewriter.debug_counter.exhausted:
                break
            with inliner.rewriter.step("expand", call.description):
                made = inliner.expand(call)
            waiting.extend(node for node in made if inliner.callee(node) is not None)
        if inliner.rewriter.changed:
            drop_unused_functions(inliner.rewriter)
            complete_types(module)
        return inliner.rewriter.changed
