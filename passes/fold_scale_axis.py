"""FoldScaleAxis: channel scales and shifts move into the weights and biases around them.

Invariant, backward: for a value v and an affine A along an axis, a plan is a way to make the graph
compute A(v) wherever it computed v, with no operator for A. It exists if v has no other reader and

- v is the result of a layer whose weight and bias are constant and can take A, or
- v is the result of an operator that A passes through, and there are plans for its operands.

Forward it is a way to make all readers of A(v) compute the same from v. One table,
`passes.affine.rules.table`, has a rule for each operator that an affine meets.

Two phases. Planning asks every question that can fail, on the actual numbers at each point and on
every branch, and changes nothing. Committing cannot fail: it leaves the weight as `multiply(w,
factor)` with a float64 factor and the bias as a float64 constant, which FoldConstant, or the
backend, computes and rounds once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..ir.module import Module
from ..ir.rewriter import Rewriter
from ..support.errors import UsageError
from .affine.algebra.operands import Parameters
from .affine.algebra.stored import UnroundedConstants
from .affine.records.fold_records import fold_records
from .affine.records.source_affines import collect_opened
from .affine.search.choice import Chooser
from .affine.search.folding import ChainFolder
from .affine.search.planner import Planner
from .infra import Pass, PassContext
from .simplify_expr import clean_up

CHOICES = {
    "partial": ("never", "pays", "always"),
    "border": ("keep", "pad", "ones", "map", "cheapest"),
    "per_channel": ("refuse", "allow"),
    "quantized_bias": ("integer", "float"),
}
"""The values of the options that are words."""


@dataclass(frozen=True)
class FoldScaleAxis(Pass):
    """Fold constant per-channel affines into the layers before and after them.

    1. An affine is a `multiply`, `add`, `subtract`, `divide`, `negative` or sum or mean of two with
       a constant that varies along at most one axis and does not change the data's shape, or the
       two nodes of a lowered BatchNormalization. Consecutive affines along one axis form a chain;
       each link has no reader but the next.
    2. A chain goes backward into the layers that produce its data, through every operator that lets
       it pass (the table in `passes.affine.rules.table`). No value in between may have another
       reader, or be a result of the graph. Readers of the shape or dtype alone do not count.
    3. Else, with `forward`, it goes into the layers that read it, all of them, in the same way.
    4. Else its scale goes one way and its shift the other.
    5. Else a part of it goes: a beginning of the chain backward, an end of it forward, or the scale
       or the shift alone, the other staying as one `add` or `multiply`; with `partial=pays` only if
       operators get fewer, with `always` also if a BatchNormalization becomes an `add`, with
       `never` not at all. What then stays of a chain becomes one BatchNormalization if there is one
       in it, else one product and one sum.
    6. A fold is refused if a number is infinite or not a number, exceeds the weight's dtype, or
       a whole channel would vanish that the bias of the same results does not hide. Scales are
       never moved through an operator that needs their sign without testing every one.
    7. The number of operators never rises: a layer without a bias may leave one `add` in the place
       of an affine that scales. Constants grow by at most `max_growth` bytes in one fold. No layer
       is ever duplicated.
    8. A shift before a layer that pads with zeros stays (`border=keep`), becomes an explicit Pad if
       it is the same in all channels (`pad`), the weights of one more channel of the data, which a
       Pad fills with ones (`ones`), or a constant after the layer, as large as its result (`map`).
       `cheapest` is `pad` if it can be, else the one with fewer constants; so go the shifts that a
       preprocessing inserted.
    9. The weight of Conv, ConvTranspose, Gemm and MatMul may come through DequantizeLinear from
       constants, or from those through QuantizeLinear: its scales are multiplied, and its integers
       stay. A negative scale reflects them about the zero point, within their type. One scale for a
       tensor becomes one per channel with `per_channel=allow`. A bias that is dequantized keeps its
       type and is rounded to the nearest step, or becomes float with `quantized_bias=float`. A
       positive scale without a shift goes into that of a DequantizeLinear of computed data.
       `quantized_weights=false` leaves all of these alone.
    10. One number before a normalization divides epsilon by its square, and negates gamma if it is
        negative, also where the normalization is written out. It cancels in LpNormalization, which
        has no epsilon, but for its sign.
    11. Two sums in a row that round to whole numbers, x + 1.5 * 2**23 - 1.5 * 2**23 in float32, are
        no affines.
    12. Operators that runtimes fuse (Gelu, HardSwish, LayerNormalization, attention, ... written
        out) are units: an affine of one stays in it, and no other enters it. The constants of gamma
        and beta take the affines after them.
    13. What only stands in the way goes first, by the rules of SimplifyExpr that remove operators
        and touch no affine.
    14. What stays is recorded with the reason.
    """

    name: ClassVar[str] = "FoldScaleAxis"
    after: ClassVar[tuple[str, ...]] = ("SimplifyInference",)
    forward: bool = True
    partial: str = "pays"
    border: str = "keep"
    quantized_weights: bool = True
    per_channel: str = "refuse"
    quantized_bias: str = "integer"
    max_growth: int = 16 << 20

    def __post_init__(self) -> None:
        """Check the options. Raises UsageError for a value that an option does not take."""
        for option, known in CHOICES.items():
            if getattr(self, option) not in known:
                raise UsageError(f"{self.name}: option {option} is one of {', '.join(known)}")

    def run(self, module: Module, ctx: PassContext) -> bool:
        collect_opened(module)
        rewriter = Rewriter(module)
        evaluator = module.constants
        params = Parameters(
            evaluator,
            quantized=self.quantized_weights,
            per_channel=self.per_channel == "allow",
            float_bias=self.quantized_bias == "float",
            unrounded=module.provenance.table(UnroundedConstants).numbers,
            border=self.border,
            inserted=_inserted(module),
        )
        chooser = Chooser(
            Planner(params), forward=self.forward, partial=self.partial, max_growth=self.max_growth
        )
        folder = ChainFolder(rewriter, params, chooser)
        for graph in module.graphs():
            moved = True
            while moved:
                # Two operators may be one without the affine that stood between them.
                clean_up(graph, rewriter, evaluator)
                moved = folder.fold_round(graph)
        return rewriter.changed


def _inserted(module: Module) -> frozenset[int]:
    """Return the origins of the affines that a preprocessing inserted."""
    sources = fold_records(module).sources if module.inserted else None
    return frozenset(
        source.origin
        for source in (sources or {}).values()
        if not source.scope and source.name in module.inserted
    )
