"""SimplifyExpr: algebraic simplification to a fixpoint. The folder `simplify` holds the rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..ir.evaluate import ConstantEvaluator
from ..ir.graph import Graph
from ..ir.module import Module
from ..ir.rewriter import Rewriter
from ..ir.rule_driver import RuleDriver, Rules
from ..ir.shape_evaluator import ShapeEvaluator
from ..ir.type_inference import infer_types
from ..support.errors import UsageError
from .infra import Pass, PassContext
from .simplify.rule_set import CLEAN_UP, RULES


@dataclass(frozen=True)
class SimplifyExpr(Pass):
    """Rewrite expressions into fewer operators that compute the same.

    1. Operators that leave x as it is are removed: `identity`, a `cast` to the type of x,
       `multiply` by ones, `add` of zeros and the like, `power` of one, and a `transpose`, reshape,
       slice, pad, resize, tile, expand, concatenation, split or sum without effect. x has to keep
       its shape, rank included, and be allowed in their place in the interface.
    2. `x * 0` and `x - x` become 0 for integers, never for floats, as x may be infinite or NaN.
    3. Two casts become one if the type between holds every value. Two bounds in a row (`clip`,
       `nn.relu`) become one, unless the lower bound of one is above its upper bound. Max and Min
       with constants join them: a row becomes a `clip`, a Max, a Min, or one of each. Two
       transposes become one, or none. Two reshapes (also flatten, squeeze and unsqueeze) become one
       if the target can be written without the shape between.
    4. Two additions of constants in a row, and two multiplications, become one: the first must have
       no other reader, the result must be finite in the data's dtype, and the constants must not
       cancel (additions) or leave the normal range (multiplications). Integers wrap. The constant
       may grow to 64 KiB, or to the sum of the two.
    5. Transposes move through elementwise operators, concatenations, pads and reductions if fewer
       of them remain.
    6. A constant pad of zeros moves into the pads of the convolution or average pool that is its
       only reader, and a pad of the least integer into those of a max pool of integers. No padded
       extent of a pool may be 0.
    7. `add(matmul(x, w), b)` becomes `nn.dense(x, w, b)` if both operands of the product have rank
       2 and b, constant or not, broadcasts into the product.
    8. `where` and `if` with a constant condition become the chosen operand or branch.
    9. A static extent becomes a constant, even if other extents of the same shape are symbolic. The
       target of a reshape that is built from extents of x and constants becomes a constant, with a
       number for a -1 if one is known. An Expand, a ConstantOfShape and a Reshape have the extents
       that their targets give, if some of these are numbers or symbols.
    10. A Concat of Concats, and a Slice of a Slice, become one. A Concat of all parts of a Split
        becomes the data of the Split. A SplitToSequence whose parts are read one by one becomes a
        Split. A Concat of all slices in steps of b along rows and columns becomes a SpaceToDepth,
        with a Gather of channels if they are in another order.
    11. A Transpose that moves axes of extent 1 only goes into a Reshape before or after it. A
        Gather of the only index of an axis, and a reduction of such axes, go or become a Squeeze.
        Squeezes and Unsqueezes in a row become one, or none. A Gather of one index, also of
        shuffled channels, reads the data before a Transpose.
    12. An operand that is expanded to the shape of another operand is broadcast instead.
    13. An initial state of a recurrent layer that is computed as zeros goes. A branch of an If goes
        if every run fails that takes it, as its result reaches a recurrent layer with a rank that
        this refuses.
    14. An operator of the op table whose results are never read is removed.
    15. Two reductions of one kind become one over the axes of both: sums, products, maxima, minima,
        and means of floats but f16. They round less often. One of no axes goes.
    16. Floor, Ceil and Round of whole numbers, Abs of numbers that are not negative, and Sign of
        signs go, and so do two Nots or Negs in a row, and operands that And, Or, Max, Min or a
        `where` have twice.
    17. Elementwise operators between a reshape and its inverse compute in the shape of the data
        before it.
    18. A Shape reads the value before operators that keep the shape, or before a transpose, if
        nothing else reads their result; Gathers and Slices of the extents become one Gather, or a
        Shape with start and end.
    19. A cast of a ConstantOfShape is a ConstantOfShape. The mask of a Dropout in inference is
        constant. A ScatterND that writes all rows in order is what it writes.
    20. With `affines=keep` only the rules run that leave every affine in its place, which makes
        room for folds.
    """

    name: ClassVar[str] = "SimplifyExpr"
    affines: str = "simplify"

    def __post_init__(self) -> None:
        """Check the option. Raises UsageError for a value that it does not take."""
        if self.affines not in ("simplify", "keep"):
            raise UsageError(f"{self.name}: option affines is one of simplify, keep")

    def run(self, module: Module, ctx: PassContext) -> bool:
        rewriter, evaluator = Rewriter(module), ShapeEvaluator(beside=module.constants)
        rules = CLEAN_UP if self.affines == "keep" else RULES
        driver = simplifier(rewriter, evaluator, rules)
        for graph in module.graphs():
            _learn_types(graph, evaluator)
            driver.to_fixpoint(graph)
        module.constants.has_computed_pad_axes = evaluator.has_computed_pad_axes
        return rewriter.changed


_BY_EXTENTS = frozenset(
    {
        *("arange", "broadcast_to", "full", "image.resize", "nn.pad", "reshape"),
        *("split", "strided_slice", "tile"),
    }
)
"""Operators whose result has a shape that an operand decides, of which a part may be known."""


def _learn_types(graph: Graph, evaluator: ShapeEvaluator) -> None:
    """Infer the types that follow from shapes which are known in part."""
    learned = False
    for node in graph.operators():
        if node.op == "nn.pad" and node["axes"] is not None:
            evaluator.has_computed_pad_axes |= evaluator.array(node["axes"]) is None
        if learned or node.op in _BY_EXTENTS:
            before = [value.type for value in node.outputs]
            infer_types(node, evaluator)
            learned = learned or [value.type for value in node.outputs] != before


def simplifier(
    rewriter: Rewriter, evaluator: ShapeEvaluator, rules: Rules[ShapeEvaluator]
) -> RuleDriver[ShapeEvaluator]:
    """Return a driver of `rules` that infers missing types and erases unread operators."""
    return RuleDriver(
        rewriter,
        rules,
        evaluator,
        erase_dead=True,
        before_node=infer_types,
        before_round=evaluator.forget_unknown,
    )


def clean_up(graph: Graph, rewriter: Rewriter, evaluator: ConstantEvaluator) -> None:
    """Apply the rules that remove obstacles to folds.

    `evaluator` forgets which values were not constant, because they may be constant now.
    """
    simplifier(rewriter, ShapeEvaluator(beside=evaluator), CLEAN_UP).to_fixpoint(graph)
    evaluator.forget_unknown()
