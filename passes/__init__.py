"""The passes, and what composes and observes them. Names are imported when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .bias_correction import BiasCorrection
    from .canonicalize_ops import CanonicalizeOps
    from .cross_layer_equalization import CrossLayerEqualization
    from .eliminate_common_subexpr import EliminateCommonSubexpr
    from .eliminate_dead_code import DeadCodeElimination
    from .fold_constant import FoldConstant
    from .fold_scale_axis import FoldScaleAxis
    from .freeze_initializers import FreezeInitializers
    from .high_bias_absorption import HighBiasAbsorption
    from .infra import Instrument, Pass, PassContext, Sequential
    from .inline_functions import InlineFunctions
    from .instruments import DiffIR, DumpIR, PrintIR, Timing, Verify
    from .moments import Moments, propagate
    from .registry import DEFAULT_PIPELINE, PASSES, default_pipeline, parse_pipeline
    from .simplify_expr import SimplifyExpr
    from .simplify_inference import SimplifyInference
    from .unfuse_bias import UnfuseBias

__all__ = [
    "DEFAULT_PIPELINE",
    "PASSES",
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
    "InlineFunctions",
    "Instrument",
    "Moments",
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
    "propagate",
]

_HOMES = {
    "infra": ("Instrument", "Pass", "PassContext", "Sequential"),
    "instruments": ("DiffIR", "DumpIR", "PrintIR", "Timing", "Verify"),
    "moments": ("Moments", "propagate"),
    "registry": ("DEFAULT_PIPELINE", "PASSES", "default_pipeline", "parse_pipeline"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name in _HOME_OF:
        return getattr(import_module(f".{_HOME_OF[name]}", __name__), name)
    from .catalog import CATALOG

    if name in CATALOG:
        return getattr(import_module(f".{CATALOG[name][0]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
