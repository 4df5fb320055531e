"""ScaleByPowersOfTwo: values that are too large for float16 become smaller, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...ir.module import Module
from ...support.errors import UsageError
from ..float16.inner_values import check_accumulator
from ..infra import Pass, PassContext
from .exponents import LARGEST_EXPONENT
from .norm_factors import NormFactors
from .scaling_commit import ScalingCommit
from .scaling_plan import ScalingPlan


@dataclass(frozen=True)
class ScaleByPowersOfTwo(Pass):
    """Multiply values by powers of two, so that they fit into float16, without a rounding.

    1. Values that have to share an exponent are a component: residual streams between norms, chains
       of Relu, MaxPool, Concat, Add, Transpose. Products add exponents. Normalizations absorb one:
       epsilon is multiplied by its square, also where the normalization is written out. Operands
       and results of all other operators, such as Softmax, Sigmoid, Gelu and Tanh, keep exponent 0.
    2. Weights, biases, constants of Add, Where, Clip and compares take the exponents on. An input
       of the model is multiplied where it is read, a result where it leaves.
    3. The exponents are chosen for all components together: a value whose range is known, see
       `irc compile --float16`, does not exceed 65504 / 2^`margin`, if that can be had; constants
       such as epsilon, and components of small values, are not subnormal, if that can be had; few
       constants change. Nothing changes if no value is too large or too small. With
       `accumulate=float16` sums inside operators do not exceed it either.
    4. If weights or values became small for the sake of the square in a normalization that is
       written out, its data are multiplied before it.
    5. With an `exponent` all free components get it, whatever their range.
    6. In float32 every result has the bits that it had, while no number leaves the normal range. A
       component stays as it is if a constant would leave it.
    """

    name: ClassVar[str] = "ScaleByPowersOfTwo"
    after: ClassVar[tuple[str, ...]] = ("FoldScaleAxis", "FoldConstant")
    margin: float = 0.0
    exponent: int = 0
    accumulate: str = "float32"

    def __post_init__(self) -> None:
        """Check the options. Raises UsageError for an exponent beyond float32."""
        check_accumulator(self.name, self.accumulate)
        if abs(self.exponent) > LARGEST_EXPONENT:
            raise UsageError(
                f"{self.name}: option exponent has to be between -{LARGEST_EXPONENT} and"
                f" {LARGEST_EXPONENT}"
            )

    def run(self, module: Module, ctx: PassContext) -> bool:
        plan, chosen = self._solved(module)
        if not chosen or module.debug_counter.exhausted:
            return False
        factors = NormFactors(module)
        if not self.exponent and plan.is_smaller(chosen) and factors.insert(plan.most):
            plan, chosen = self._solved(module)
        commit = ScalingCommit(plan, chosen, str(self))
        with commit.rewriter.step("scale", f"graph {module.graph.name!r}"):
            commit.run()
        factors.drop_ones()
        return commit.rewriter.changed

    def _solved(self, module: Module) -> tuple[ScalingPlan, dict[int, int]]:
        """Return the equations, and exponents with which no number leaves the normal range."""
        plan = ScalingPlan(module, self.margin, sums_in_half=self.accumulate == "float16")
        while True:
            chosen = plan.forced(self.exponent) if self.exponent else plan.chosen()
            row = plan.obstacle(chosen)
            if row is None:
                return plan, chosen
            plan.exponents.freeze(row)
