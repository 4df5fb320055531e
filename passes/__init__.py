"""Passes, pipelines and instruments. Names are imported when they are first used."""

# `irc passes` reads CATALOG alone, in 90 ms of processor time. To import all passes, numpy and
# onnx takes 200 ms more.

from __future__ import annotations

from typing import TYPE_CHECKING

from ..support.exports import lazy_exports
from .catalog import CATALOG

if TYPE_CHECKING:
    from .batch_norm_to_conv import BatchNormToConv as BatchNormToConv
    from .canonicalize_ops import CanonicalizeOps as CanonicalizeOps
    from .data_free.bias_correction import BiasCorrection as BiasCorrection
    from .data_free.cross_layer_equalization import CrossLayerEqualization as CrossLayerEqualization
    from .data_free.high_bias_absorption import HighBiasAbsorption as HighBiasAbsorption
    from .data_free.moments import Moments as Moments
    from .data_free.statistic_ranges import propagate as propagate
    from .eliminate_common_subexpr import EliminateCommonSubexpr as EliminateCommonSubexpr
    from .eliminate_dead_code import DeadCodeElimination as DeadCodeElimination
    from .float16.convert_to_float16 import ConvertToFloat16 as ConvertToFloat16
    from .fold_constant import FoldConstant as FoldConstant
    from .fold_scale_axis import FoldScaleAxis as FoldScaleAxis
    from .freeze_initializers import FreezeInitializers as FreezeInitializers
    from .fuse_normalizations import FuseNormalizations as FuseNormalizations
    from .infer_types import InferTypes as InferTypes
    from .infra import Instrument as Instrument
    from .infra import Pass as Pass
    from .infra import PassContext as PassContext
    from .infra import Repeat as Repeat
    from .infra import Sequential as Sequential
    from .inline_functions import InlineFunctions as InlineFunctions
    from .instruments import DiffIR as DiffIR
    from .instruments import DumpIR as DumpIR
    from .instruments import PrintIR as PrintIR
    from .instruments import Timing as Timing
    from .instruments import TraceRules as TraceRules
    from .instruments import Verify as Verify
    from .merge_branches import MergeBranches as MergeBranches
    from .merge_layers import MergeLayers as MergeLayers
    from .pattern_pass import PatternPass as PatternPass
    from .registry import DEFAULT_PIPELINE as DEFAULT_PIPELINE
    from .registry import PASSES as PASSES
    from .registry import default_pipeline as default_pipeline
    from .registry import parse_pipeline as parse_pipeline
    from .scaling.scale_by_powers_of_two import ScaleByPowersOfTwo as ScaleByPowersOfTwo
    from .simplify_expr import SimplifyExpr as SimplifyExpr
    from .simplify_inference import SimplifyInference as SimplifyInference
    from .unfuse_bias import UnfuseBias as UnfuseBias

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
__all__ = __dir__()
