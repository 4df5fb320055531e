"""Names and options of all passes, listed without importing the passes or numpy."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NotRequired, TypedDict

from ..support.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

CATALOG: dict[str, str] = {
    "SimplifyInference": "simplify_inference",
    "FoldScaleAxis": "fold_scale_axis",
    "CanonicalizeOps": "canonicalize_ops",
    "SimplifyExpr": "simplify_expr",
    "FoldConstant": "fold_constant",
    "BatchNormToConv": "batch_norm_to_conv",
    "BiasCorrection": "data_free.bias_correction",
    "ConvertToFloat16": "float16.convert_to_float16",
    "CrossLayerEqualization": "data_free.cross_layer_equalization",
    "DeadCodeElimination": "eliminate_dead_code",
    "EliminateCommonSubexpr": "eliminate_common_subexpr",
    "FreezeInitializers": "freeze_initializers",
    "FuseNormalizations": "fuse_normalizations",
    "HighBiasAbsorption": "data_free.high_bias_absorption",
    "InferTypes": "infer_types",
    "InlineFunctions": "inline_functions",
    "MergeBranches": "merge_branches",
    "MergeLayers": "merge_layers",
    "ScaleByPowersOfTwo": "scaling.scale_by_powers_of_two",
    "UnfuseBias": "unfuse_bias",
}
"""The module of each pass."""

DEFINED: dict[str, str] = {}
"""The passes of other packages that have been imported: name to `module:Class`."""


class Description(TypedDict):
    """The first line of a pass's docstring, its options with defaults, and its package."""

    summary: str
    options: dict[str, object]
    package: NotRequired[str]


def describe(name: str) -> Description:
    """Return the description of one of irc's passes, read from its source."""
    path = Path(__file__).parent.joinpath(*CATALOG[name].split(".")).with_suffix(".py")
    found = _described(path, name)
    assert found is not None
    return found


def describe_entry_point(point: EntryPoint) -> Description:
    """Return the description of a pass of another package, read from its source, which is not run.

    If the source does not have the class the summary says so, and there are no options.
    """
    found = None
    try:
        spec = find_spec(point.module)
        if spec is not None and spec.origin is not None:
            found = _described(Path(spec.origin), point.attr)
    except Exception:  # the package of the module is imported, and may do anything
        found = None
    if not found:
        unread = "its source cannot be read: its package has its options"
        found = {"summary": unread, "options": {}}
    return {**found, "package": point.value}


def _described(path: Path, name: str) -> Description | None:
    """Return the description of a class in a file, None if the file does not define it.

    Options are its fields.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    body = next(
        (item for item in tree.body if isinstance(item, ast.ClassDef) and item.name == name), None
    )
    if body is None:
        return None
    fields = (
        item for item in body.body if isinstance(item, ast.AnnAssign) and item.value is not None
    )
    options = {
        field.target.id: _constant(field.value)
        for field in fields
        if isinstance(field.target, ast.Name)
        and field.value
        and not ast.unparse(field.annotation).startswith("ClassVar")
    }
    return {"summary": (ast.get_docstring(body) or "").partition("\n")[0], "options": options}


def _constant(expression: ast.expr) -> object:
    """Return the value of a literal, or of a literal shifted to the left, such as `16 << 20`."""
    match expression:
        case ast.BinOp(
            left=ast.Constant(value=int(number)),
            op=ast.LShift(),
            right=ast.Constant(value=int(bits)),
        ):
            return number << bits
    try:
        return ast.literal_eval(expression)
    except ValueError:
        return ast.unparse(expression)  # a default that is computed


def format_option(value: object) -> str:
    """Return the value of an option as written on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


GROUP = "irc.passes"
"""The group of entry points whose names are names of passes."""


def plugin_passes() -> dict[str, EntryPoint]:
    """Return the entry points of the installed packages that have passes, by name."""
    # importlib.metadata takes 15 ms to import, a tenth of a small compile, which asks for no pass
    # of another package.
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
        module, _, title = name.rpartition(".")
        own = f"; a pass of your own is written module:Class, as {module}:{title}"
        if title == "onnx":
            own = f"; to write a result: irc.compile(model).save({name!r})"
        hint = own if module else did_you_mean(name, known)
        raise UsageError(f"there is no pass {name!r}{hint} (passes: {', '.join(sorted(known))})")
