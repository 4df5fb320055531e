"""FuseHardSwish: the operators that write out a HardSwish become one, by patterns."""

from __future__ import annotations

from dataclasses import dataclass

from irc.ir import Rewriter, Value
from irc.ir.pattern import Match, const, op, rewrite, value
from irc.passes import PatternPass

X = value("x")
GATE = op("clip", op("add", X, const(3)).once(), const(0), const(6)).once()
PRODUCT = op("multiply", X, GATE).once()
SIXTH = op("divide", GATE, const(6)).once()


@rewrite(
    op("divide", PRODUCT, const(6))
    | op("multiply", PRODUCT, const(1 / 6))
    | op("multiply", X, SIXTH)
)
def hard_swish(found: Match, rewriter: Rewriter) -> Value:
    """divide(multiply(x, clip(add(x, 3), 0, 6)), 6) -> HardSwish(x)"""
    result = found.root.output
    return rewriter.make(
        "onnx::HardSwish", [found["x"]], before=found.root, type_=result.type
    ).output


@dataclass(frozen=True)
class FuseHardSwish(PatternPass):
    """Fuse the operators of a HardSwish.

    1. `x * clip(x + 3, 0, 6) / 6`, with the division, or a product with 1/6, in any place, becomes
       `HardSwish(x)`.
    2. Nothing else may read the steps between.
    """

    rewrites = (hard_swish,)
