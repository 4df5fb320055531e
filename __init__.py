"""irc: a small, exact compiler middle end for ONNX inference graphs.

    module = irc.load("model.onnx")            # ONNX to IR
    irc.passes.default_pipeline()(module)      # rewrite it
    result = irc.emit(module)                  # IR to ONNX: result.model, result.fold_map

`irc.compile` does all three, `irc.compile_many` for many models at once. Names are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # of typing, which takes longer to import than all that `irc --help` needs
if TYPE_CHECKING:
    from . import ir, passes
    from .backends.driver import compile  # noqa: A004
    from .backends.foldmap import FoldMap
    from .backends.jobs import Outcome, compile_many
    from .backends.onnx import Result, emit
    from .frontends import load
    from .ir.errors import EmitError, FoldMapError, IRError, ModelError, ParseError, PassError, UsageError, VerifyError
    from .ir.graph import Module
    from .ir.limits import Limits
    from .ir.parse import parse

__version__ = "0.1.0"

__all__ = [
    "EmitError",
    "FoldMap",
    "FoldMapError",
    "IRError",
    "Limits",
    "ModelError",
    "Module",
    "Outcome",
    "ParseError",
    "PassError",
    "Result",
    "UsageError",
    "VerifyError",
    "compile",
    "compile_many",
    "emit",
    "ir",
    "load",
    "parse",
    "passes",
]

_HOMES = {
    ".backends.driver": ("compile",),
    ".backends.foldmap": ("FoldMap",),
    ".backends.jobs": ("Outcome", "compile_many"),
    ".backends.onnx": ("Result", "emit"),
    ".frontends": ("load",),
    ".ir.errors": (
        "EmitError",
        "FoldMapError",
        "IRError",
        "ModelError",
        "ParseError",
        "PassError",
        "UsageError",
        "VerifyError",
    ),
    ".ir.graph": ("Module",),
    ".ir.limits": ("Limits",),
    ".ir.parse": ("parse",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name in ("ir", "passes"):
        return import_module(f".{name}", __name__)
    if name in _HOME_OF:
        return getattr(import_module(_HOME_OF[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
