"""SimplifyExpr: algebraic clean-up, to a fixpoint. The rewrites stand in the folder `simplify`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..ir.evaluate import ConstantEvaluator
from ..ir.graph import Graph
from ..ir.module import Module
from ..ir.rewriter import Rewriter, infer_types
from ..ir.rule_driver import RuleDriver, Rules
from .infra import Pass, PassContext
from .simplify.extents import ShapeEvaluator
from .simplify.rule_set import CLEAN_UP, RULES


@dataclass(frozen=True)
class SimplifyExpr(Pass):
    """Rewrite expressions into fewer operators that compute the same.

    1. What does nothing goes: `identity`, a `cast` to the type that x has, `multiply` by ones, `add` of zeros and the
       like, `power` of one, and a `transpose`, reshape, slice, pad, resize, tile, expand, concatenation, split or sum
       that leaves x as it is, where x may stand in the interface in their place and its shape stays, rank included.
    2. `x * 0` and `x - x` become 0 for integers, never for floats.
    3. Two casts become one where the type between holds every value; two bounds in a row (`clip`, `nn.relu`) become
       one, unless one is the wrong way round; two transposes become one, or none; two reshapes (also flatten, squeeze
       and unsqueeze) become one, where the target can be said without the shape between.
    4. Two additions of constants in a row, and two multiplications, become one: the first must have no other reader,
       the result must be finite in the data's dtype, and the constants must not cancel (additions) or leave the normal
       range (multiplications). Integers wrap. The constant may grow to 64 KiB, or to the sum of the two.
    5. Transposes move through elementwise operators, concatenations, pads and reductions where fewer of them are left.
    6. A constant pad of zeros goes into the pads of the convolution or average pool that alone reads it, one of -inf,
       or of 0 around what is not negative, into those of a max pool.
    7. `add(matmul(x, w), b)` becomes `nn.dense(x, w, b)` where both operands have rank 2 and b is a constant per
       column. A bias of zeros that is computed at run time goes.
    8. `where` and `if` of a constant become what they choose.
    9. An extent that is static is a constant, also where others of the same shape are not; the target of a reshape
       that is put together from extents of x and constants becomes a constant.
    10. An operator of the op table whose results nobody reads goes.
    """

    name: ClassVar[str] = "SimplifyExpr"

    def run(self, module: Module, ctx: PassContext) -> bool:
        rewriter = Rewriter(module)
        driver = simplifier(rewriter, ShapeEvaluator(), RULES)
        for graph in module.graphs():
            driver.to_fixpoint(graph)
        return rewriter.changed


def simplifier(
    rewriter: Rewriter, evaluator: ShapeEvaluator, rules: Rules[ShapeEvaluator]
) -> RuleDriver[ShapeEvaluator]:
    """Return a driver of `rules` that completes types on the way and erases what nobody reads."""
    return RuleDriver(
        rewriter,
        rules,
        evaluator,
        erase_dead=True,
        before_node=lambda node: infer_types(node, evaluator),
        before_round=evaluator.forget_unknown,
    )


def clean_up(graph: Graph, rewriter: Rewriter, evaluator: ConstantEvaluator) -> None:
    """Apply the rules that remove what stands in the way of a fold.

    `evaluator` forgets what was no constant before, as it may be one now.
    """
    simplifier(rewriter, ShapeEvaluator(), CLEAN_UP).to_fixpoint(graph)
    evaluator.forget_unknown()
