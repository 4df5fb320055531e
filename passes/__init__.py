"""The passes, and what composes and observes them."""

from __future__ import annotations

from .canonicalize_ops import CanonicalizeOps
from .fold_constant import FoldConstant
from .fold_scale_axis import FoldScaleAxis
from .freeze_initializers import FreezeInitializers
from .infra import Instrument, Pass, PassContext, Sequential
from .instruments import DumpIR, PrintIR, Timing, Verify
from .registry import DEFAULT_PIPELINE, PASSES, default_pipeline, parse_pipeline
from .simplify_expr import SimplifyExpr
from .simplify_inference import SimplifyInference
from .unfuse_bias import UnfuseBias

__all__ = [
    "DEFAULT_PIPELINE",
    "PASSES",
    "CanonicalizeOps",
    "DumpIR",
    "FoldConstant",
    "FoldScaleAxis",
    "FreezeInitializers",
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
