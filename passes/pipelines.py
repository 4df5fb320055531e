"""The default pipeline: its passes in order, each with a reason. It imports no pass.

The text of the pipeline, `irc passes` and the table of docs/passes.md are made of it.
"""

from __future__ import annotations

from typing import NamedTuple


class PipelineStep(NamedTuple):
    """A pass of a pipeline, with its options as they are written on the command line."""

    name: str
    options: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}{{{self.options}}}" if self.options else self.name


class PipelineStage(NamedTuple):
    """Passes that are repeated until nothing changes."""

    purpose: str
    steps: tuple[PipelineStep, ...]

    def __str__(self) -> str:
        return f"({','.join(map(str, self.steps))})*"


DEFAULT_STAGES = (
    PipelineStage(
        "prepare",
        (
            PipelineStep(
                "InlineFunctions",
                "calls=folding",
                "a call between an affine and a layer holds back their fold",
            ),
            PipelineStep(
                "SimplifyExpr", "affines=keep", "no affine is touched before the fold map knows it"
            ),
            PipelineStep(
                "FoldConstant",
                "",
                "parameters and weights that are computed of constants are known before the fold",
            ),
            PipelineStep("InferTypes", "", "so are ranks and extents"),
        ),
    ),
    PipelineStage(
        "fold and clean up",
        (
            PipelineStep(
                "SimplifyInference",
                "",
                "BatchNormalization becomes a product and a sum per channel",
            ),
            PipelineStep(
                "FoldScaleAxis", "", "these move through the graph, and into the weights of layers"
            ),
            PipelineStep("MergeBranches", "", "layers of one value that are added become one"),
            PipelineStep("CanonicalizeOps", "", "a bias that is left becomes an Add"),
            PipelineStep("SimplifyExpr", "", "the rest of a fold is shorter as another expression"),
            PipelineStep("FoldConstant", "", "expressions that a fold made constant are computed"),
            PipelineStep(
                "EliminateCommonSubexpr", "constants=keep", "equal expressions are computed once"
            ),
            PipelineStep("DeadCodeElimination", "", "operators that nothing reads go"),
            PipelineStep(
                "InlineFunctions",
                "calls=folding",
                "an affine may be left beside a call that was no obstacle before",
            ),
            PipelineStep(
                "InferTypes",
                "",
                "ranks and extents that are known by now open more in the next round",
            ),
        ),
    ),
)
"""The stages of the default pipeline.

First passes that enable folds, then the folds and the clean-up after them, until nothing changes.
"""

DEFAULT = ",".join(map(str, DEFAULT_STAGES))
"""The text of the default pipeline."""
