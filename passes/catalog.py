"""Table of all passes, which can be listed without importing them: numpy alone takes longer to load than the table."""

from __future__ import annotations

from collections.abc import Iterable

from ..support.errors import UsageError

CATALOG: dict[str, tuple[str, str, dict[str, object]]] = {
    "SimplifyInference": (
        "simplify_inference",
        "Turn inference-mode BatchNormalization into arithmetic, and drop Dropout.",
        {},
    ),
    "FoldScaleAxis": (
        "fold_scale_axis",
        "Fold constant per-channel affines into the layers before and after them.",
        {"forward": True, "partial": "pays", "border": "keep", "quantized_weights": False, "max_growth": 16 << 20},
    ),
    "CanonicalizeOps": (
        "canonicalize_ops",
        "Rewrite operators to the one form that later passes match.",
        {"bias_add": True},
    ),
    "SimplifyExpr": ("simplify_expr", "Rewrite expressions into fewer operators that compute the same.", {}),
    "FoldConstant": ("fold_constant", "Compute constant expressions.", {"max_bytes": 64 << 10}),
    "BiasCorrection": (
        "data_free.bias_correction",
        "Correct biases in advance for the mean error of the weight quantization to come.",
        {"bits": 8, "per_channel": False, "symmetric": True, "padding": "ignore"},
    ),
    "CrossLayerEqualization": (
        "data_free.cross_layer_equalization",
        "Equalize the ranges of weights between layers without changing the function.",
        {"iterations": 1, "through": "any", "power_of_two": False},
    ),
    "DeadCodeElimination": (
        "eliminate_dead_code",
        "Remove operators, constants and functions that no result needs.",
        {},
    ),
    "EliminateCommonSubexpr": ("eliminate_common_subexpr", "Merge equal expressions in one graph.", {}),
    "FreezeInitializers": (
        "freeze_initializers",
        "Turn initializers that are also graph inputs into constants, so that callers can no longer override them.",
        {},
    ),
    "HighBiasAbsorption": (
        "data_free.high_bias_absorption",
        "Absorb high biases of layers into the layers after them.",
        {"sigmas": 3.0, "padding": "exact", "spread": "std"},
    ),
    "InlineFunctions": (
        "inline_functions",
        "Replace calls of model-local functions by the bodies of the functions.",
        {},
    ),
    "UnfuseBias": (
        "unfuse_bias",
        "Split the bias of a layer off as `nn.bias_add`, as in Relay; the ONNX backend joins the two again.",
        {},
    ),
}
"""For each pass its module, the first line of its docstring, and its options with their defaults.

A test holds the entries equal to the classes.
"""

DEFAULT_NAMES = ("SimplifyInference", "FoldScaleAxis", "CanonicalizeOps", "SimplifyExpr", "FoldConstant")
"""Names of the passes in the default pipeline, in order."""


def format_option(value: object) -> str:
    """Return the value of an option as written on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def check_name(name: str) -> None:
    """Raise UsageError, with the known names and the nearest one, unless a pass has this name."""
    if name not in CATALOG:
        near = nearest(name, CATALOG)
        raise UsageError(f"there is no pass {name!r}{near} (passes: {', '.join(sorted(CATALOG))})")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a "did you mean" question with the known name most similar to `name`, empty if none is similar."""
    from difflib import get_close_matches

    near = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""
