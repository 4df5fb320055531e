"""The passes, and what composes and observes them."""

from __future__ import annotations

from .canonicalize_ops import CanonicalizeOps
from .eliminate_common_subexpr import EliminateCommonSubexpr
from .eliminate_dead_code import DeadCodeElimination
from .fold_constant import FoldConstant
from .fold_scale_axis import FoldScaleAxis
from .freeze_initializers import FreezeInitializers
from .infra import Instrument, Pass, PassContext, Sequential
from .inline_functions import InlineFunctions
from .instruments import DumpIR, PrintIR, Timing, Verify
from .registry import DEFAULT_PIPELINE, PASSES, default_pipeline, parse_pipeline
from .simplify_expr import SimplifyExpr
from .simplify_inference import SimplifyInference
from .unfuse_bias import UnfuseBias

__all__ = [
    "DEFAULT_PIPELINE",
    "PASSES",
    "CanonicalizeOps",
    "DeadCodeElimination",
    "DumpIR",
    "EliminateCommonSubexpr",
    "FoldConstant",
    "FoldScaleAxis",
    "FreezeInitializers",
    "InlineFunctions",
    "Instrument",
    "Pass",
    "PassContext",
    "PrintIR",
    "Sequential",
    "SimplifyExpr",
    "SimplifyInference",
    "Timing",
    "UnfuseBias",
    "Verify",
    "default_pipeline",
    "parse_pipeline",
]
