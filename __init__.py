"""irc: a small, exact compiler middle end for ONNX inference graphs.

    module = irc.load("model.onnx")            # ONNX to IR
    irc.passes.default_pipeline()(module)      # rewrite it
    result = irc.emit(module)                  # IR to ONNX: result.model, result.fold_map

`irc.compile` does all three, `irc.compile_many` for many models at once. Names are imported when
they are first used.
"""

from __future__ import annotations

from .support.exports import lazy_exports
from .support.hooks import provide
from .support.version import __version__ as __version__

TYPE_CHECKING = False  # of typing, which takes longer to import than all that `irc --help` needs
if TYPE_CHECKING:
    from . import ir, passes
    from .backends.foldmap.fold_map import FoldMap
    from .backends.runtime.session_options import session_options
    from .compiler import compile  # noqa: A004
    from .frontends import load
    from .frontends.text import parse
    from .ir.module import Module
    from .result import Result, emit
    from .support.errors import (
        EmitError,
        FoldMapError,
        IRError,
        ModelError,
        ParseError,
        PassError,
        UsageError,
        VerifyError,
    )
    from .support.limits import Limits
    from .tools.certify.checker.certificate import Rejected
    from .tools.certify.proving import certify
    from .tools.cli.compile_many import Outcome, compile_many
    from .tools.float16.converting import to_float16
    from .tools.float16.half_model import HalfModel
    from .tools.int8.quantized_model import Quantized
    from .tools.int8.static import quantize
    from .tools.verify.both_models import align, verify
    from .tools.verify.tolerance import Tolerance

__all__ = [
    "EmitError",
    "FoldMap",
    "FoldMapError",
    "HalfModel",
    "IRError",
    "Limits",
    "ModelError",
    "Module",
    "Outcome",
    "ParseError",
    "PassError",
    "Quantized",
    "Rejected",
    "Result",
    "Tolerance",
    "UsageError",
    "VerifyError",
    "align",
    "certify",
    "compile",
    "compile_many",
    "emit",
    "ir",
    "load",
    "parse",
    "passes",
    "quantize",
    "session_options",
    "to_float16",
    "verify",
]

provide(
    {
        "foreign operators": "irc.frontends.onnx.onnx_operators:ONNX_OPERATORS",
        "emit_model": "irc.backends.onnx.emitter:emit_model",
        "constant runtime": "irc.backends.runtime.evaluator:RuntimeEvaluator",
        "from_model": "irc.frontends.onnx:from_model",
        "certificate_of": "irc.tools.certify:certificate_of",
        "VerifyNumerics": "irc.tools.verify:VerifyNumerics",
        "progress": "irc.tools.cli.terminal:progress",
        "module_html": "irc.tools.report.notebook_views:module_html",
        "result_html": "irc.tools.report.notebook_views:result_html",
        "fold_map_html": "irc.tools.report.notebook_views:fold_map_html",
        "model_drawing": "irc.tools.report.graph_boxes:model_drawing",
        "fold_drawing": "irc.tools.report.fold_drawing:fold_drawing",
    }
)

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "": ("ir", "passes"),
        "backends.runtime.session_options": ("session_options",),
        "compiler": ("compile",),
        "backends.foldmap.fold_map": ("FoldMap",),
        "result": ("Result", "emit"),
        "tools.certify.checker.certificate": ("Rejected",),
        "tools.certify.proving": ("certify",),
        "tools.cli.compile_many": ("Outcome", "compile_many"),
        "frontends": ("load",),
        "frontends.text": ("parse",),
        "ir.module": ("Module",),
        "tools.float16.converting": ("to_float16",),
        "tools.float16.half_model": ("HalfModel",),
        "tools.int8.quantized_model": ("Quantized",),
        "tools.int8.static": ("quantize",),
        "tools.verify.both_models": ("align", "verify"),
        "tools.verify.tolerance": ("Tolerance",),
        "support.errors": (
            "EmitError",
            "FoldMapError",
            "IRError",
            "ModelError",
            "ParseError",
            "PassError",
            "UsageError",
            "VerifyError",
        ),
        "support.limits": ("Limits",),
        "support.version": ("__version__",),
    },
)
