"""Names of all passes, and their options, which are listed without importing the passes: numpy alone takes longer."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ..support.errors import UsageError

if TYPE_CHECKING:
    import ast
    from importlib.metadata import EntryPoint

CATALOG: dict[str, str] = {
    "SimplifyInference": "simplify_inference",
    "FoldScaleAxis": "fold_scale_axis",
    "CanonicalizeOps": "canonicalize_ops",
    "SimplifyExpr": "simplify_expr",
    "FoldConstant": "fold_constant",
    "BiasCorrection": "data_free.bias_correction",
    "CrossLayerEqualization": "data_free.cross_layer_equalization",
    "DeadCodeElimination": "eliminate_dead_code",
    "EliminateCommonSubexpr": "eliminate_common_subexpr",
    "FreezeInitializers": "freeze_initializers",
    "HighBiasAbsorption": "data_free.high_bias_absorption",
    "InferTypes": "infer_types",
    "InlineFunctions": "inline_functions",
    "UnfuseBias": "unfuse_bias",
}
"""The module of each pass."""

DEFINED: dict[str, str] = {}
"""The passes of other packages that have been imported: name to `module:Class`."""

DEFAULT = (
    "(InlineFunctions{calls=folding},SimplifyExpr{affines=keep},FoldConstant,InferTypes)*,"
    "(SimplifyInference,FoldScaleAxis,CanonicalizeOps,SimplifyExpr,FoldConstant,"
    "EliminateCommonSubexpr{constants=keep},DeadCodeElimination,InlineFunctions{calls=folding},InferTypes)*"
)
"""The default pipeline. What opens a fold comes before it, what a fold opens after it, and all of it again while that
opens more.
"""


def describe(name: str) -> tuple[str, dict[str, object]]:
    """Return the first line of a pass's docstring, and its options with their defaults, read from its source."""
    import ast

    source = Path(__file__).parent.joinpath(*CATALOG[name].split(".")).with_suffix(".py").read_text(encoding="utf-8")
    (body,) = (item for item in ast.parse(source).body if isinstance(item, ast.ClassDef) and item.name == name)
    fields = (item for item in body.body if isinstance(item, ast.AnnAssign) and item.value is not None)
    options = {
        field.target.id: _constant(field.value)
        for field in fields
        if isinstance(field.target, ast.Name)
        and field.value
        and not ast.unparse(field.annotation).startswith("ClassVar")
    }
    return (ast.get_docstring(body) or "").partition("\n")[0], options


def _constant(expression: ast.expr) -> object:
    """Return the value of a literal, or of a literal shifted to the left, such as `16 << 20`."""
    import ast

    match expression:
        case ast.BinOp(left=ast.Constant(value=int(number)), op=ast.LShift(), right=ast.Constant(value=int(bits))):
            return number << bits
    return ast.literal_eval(expression)


def format_option(value: object) -> str:
    """Return the value of an option as written on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


GROUP = "irc.passes"
"""The group of entry points whose names are names of passes."""


def plugin_passes() -> dict[str, EntryPoint]:
    """Return the entry points of the installed packages that have passes, by name."""
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=GROUP)}


def check_name(name: str) -> None:
    """Raise UsageError, with the known names and the nearest one, unless a pass has this name.

    The passes of other packages that are imported count, and those that an entry point names.
    """
    if name in CATALOG or name in DEFINED:
        return
    known = {*CATALOG, *DEFINED, *plugin_passes()}
    if name not in known:
        raise UsageError(f"there is no pass {name!r}{nearest(name, known)} (passes: {', '.join(sorted(known))})")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a "did you mean" question with the known name most similar to `name`, empty if none is similar."""
    from difflib import get_close_matches

    near = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""
