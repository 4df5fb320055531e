"""The passes there are, known without importing them: a list of them takes less time than numpy to load."""

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
        "Write operators in the one form that later passes look for.",
        {"bias_add": True},
    ),
    "SimplifyExpr": ("simplify_expr", "Rewrite expressions into fewer operators that compute the same.", {}),
    "FoldConstant": ("fold_constant", "Compute constant regions.", {"max_bytes": 64 << 10}),
    "BiasCorrection": (
        "data_free.bias_correction",
        "Correct biases for the quantization of weights that is going to follow.",
        {"bits": 8, "per_channel": False, "symmetric": True, "padding": "ignore"},
    ),
    "CrossLayerEqualization": (
        "data_free.cross_layer_equalization",
        "Equalize the ranges of weights between layers, which keeps the function.",
        {"iterations": 1, "through": "any", "power_of_two": False},
    ),
    "DeadCodeElimination": ("eliminate_dead_code", "Remove what has no effect on the results.", {}),
    "EliminateCommonSubexpr": ("eliminate_common_subexpr", "Merge equal expressions of one graph.", {}),
    "FreezeInitializers": (
        "freeze_initializers",
        "Make constants of the initializers that a model of IR version 4 or later lists among its inputs.",
        {},
    ),
    "HighBiasAbsorption": (
        "data_free.high_bias_absorption",
        "Absorb high biases of layers into the layers after them.",
        {"sigmas": 3.0, "padding": "exact", "spread": "std"},
    ),
    "InlineFunctions": (
        "inline_functions",
        "Expand calls of model-local functions in the main graph and its bodies, calls inside functions with them.",
        {},
    ),
    "UnfuseBias": (
        "unfuse_bias",
        "Show biases as `nn.bias_add`, in the manner of Relay; the ONNX backend writes the pair as one node again.",
        {},
    ),
}
"""Of every pass the module, the first line of its docstring, and its options with their defaults."""

DEFAULT_NAMES = ("SimplifyInference", "FoldScaleAxis", "CanonicalizeOps", "SimplifyExpr", "FoldConstant")
"""The default pipeline, in its order."""


def format_option(value: object) -> str:
    """An option's value as the command line takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def check_name(name: str) -> None:
    """Raise UsageError, with the known names and the nearest, where there is no pass of that name."""
    if name not in CATALOG:
        near = nearest(name, CATALOG)
        raise UsageError(f"there is no pass {name!r}{near} (passes: {', '.join(sorted(CATALOG))})")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a question for the known name that is most like `name`, or nothing."""
    from difflib import get_close_matches

    near = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""
