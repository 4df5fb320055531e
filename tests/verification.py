"""Helpers of the tests of verification."""

from __future__ import annotations

from typing import Any

import irc
import onnx
from irc.passes import PassContext
from irc.verify import VerifyNumerics
from irc.verify.comparison import Comparison
from onnx import ModelProto


def text(body: str, opset: int = 17) -> ModelProto:
    """Return a model from ONNX's text form."""
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {body}')


def verdict(a: ModelProto, b: ModelProto, **options: Any) -> set[str]:
    """Return the tensors of `b` that deviate from those of `a`."""
    return {row.tensor for row, _ in Comparison(a, **options).differences(b) if row.deviates}


def verified(model: ModelProto, passes: str | None = None, **options: Any) -> VerifyNumerics:
    """Compile a model, and return the instrument that verified it."""
    verify = VerifyNumerics(**options)
    result = irc.compile(model, passes, context=PassContext([verify]))
    verify.finish(result.module, result.model)
    return verify
