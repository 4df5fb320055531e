"""Passes, pipelines and instruments. Names are imported when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..support.exports import lazy_exports
from .catalog import CATALOG

if TYPE_CHECKING:
    from .batch_norm_to_conv import BatchNormToConv
    from .canonicalize_ops import CanonicalizeOps
    from .data_free.bias_correction import BiasCorrection
    from .data_free.cross_layer_equalization import CrossLayerEqualization
    from .data_free.high_bias_absorption import HighBiasAbsorption
    from .data_free.moments import Moments
    from .data_free.statistic_ranges import propagate
    from .eliminate_common_subexpr import EliminateCommonSubexpr
    from .eliminate_dead_code import DeadCodeElimination
    from .fold_constant import FoldConstant
    from .fold_scale_axis import FoldScaleAxis
    from .freeze_initializers import FreezeInitializers
    from .infer_types import InferTypes
    from .infra import Instrument, Pass, PassContext, Repeat, Sequential
    from .inline_functions import InlineFunctions
    from .instruments import DiffIR, DumpIR, PrintIR, Timing, TraceRules, Verify
    from .merge_branches import MergeBranches
    from .merge_layers import MergeLayers
    from .pattern_pass import PatternPass
    from .registry import DEFAULT_PIPELINE, PASSES, default_pipeline, parse_pipeline
    from .simplify_expr import SimplifyExpr
    from .simplify_inference import SimplifyInference
    from .unfuse_bias import UnfuseBias

__all__ = [
    "DEFAULT_PIPELINE",
    "PASSES",
    "BatchNormToConv",
    "BiasCorrection",
    "CanonicalizeOps",
    "CrossLayerEqualization",
    "DeadCodeElimination",
    "DiffIR",
    "DumpIR",
    "EliminateCommonSubexpr",
    "FoldConstant",
    "FoldScaleAxis",
    "FreezeInitializers",
    "HighBiasAbsorption",
    "InferTypes",
    "InlineFunctions",
    "Instrument",
    "MergeBranches",
    "MergeLayers",
    "Moments",
    "Pass",
    "PassContext",
    "PatternPass",
    "PrintIR",
    "Repeat",
    "Sequential",
    "SimplifyExpr",
    "SimplifyInference",
    "Timing",
    "TraceRules",
    "UnfuseBias",
    "Verify",
    "default_pipeline",
    "parse_pipeline",
    "propagate",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "data_free.moments": ("Moments",),
        "data_free.statistic_ranges": ("propagate",),
        "infra": ("Instrument", "Pass", "PassContext", "Repeat", "Sequential"),
        "instruments": ("DiffIR", "DumpIR", "PrintIR", "Timing", "TraceRules", "Verify"),
        "pattern_pass": ("PatternPass",),
        "registry": ("DEFAULT_PIPELINE", "PASSES", "default_pipeline", "parse_pipeline"),
        **{module: (name,) for name, module in CATALOG.items()},
    },
)
