"""Helpers of the tests of verification."""

from __future__ import annotations

from threading import Timer
from typing import Any

import irc
import onnx
from harness import random_inputs
from irc.backends.runtime.remote_session import RemoteSession, RuntimeFailedError, runtime
from irc.passes import PassContext
from irc.support.isolation import WorkerDiedError
from irc.tools.verify import VerifyNumerics
from irc.tools.verify.comparison import Comparison, Deviation
from irc.tools.verify.inputs import Stimulus
from onnx import ModelProto

LOADING = 10.0
"""Seconds that onnxruntime gets to load a model."""


def text(body: str, opset: int = 17) -> ModelProto:
    """Return a model from ONNX's text form."""
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {body}')


def verdict(a: ModelProto, b: ModelProto, **options: Any) -> set[str]:
    """Return the tensors of `b` that deviate from those of `a`."""
    return {row.tensor for row, _ in Comparison(a, **options).differences(b) if row.deviates}


def deviation(a: ModelProto, b: ModelProto, seed: int = 0) -> Deviation | None:
    """Return how `b` deviates from `a` on random inputs of open extents 5 to 9, or None."""
    feeds = random_inputs(a, seed, other=5 + seed % 5)
    found, _ = Comparison(a, inputs=[Stimulus(f"random {seed}", feeds)]).deviation(b)
    return found


def verified(model: ModelProto, passes: str | None = None, **options: Any) -> VerifyNumerics:
    """Compile a model, and return the instrument that verified it."""
    verify = VerifyNumerics(**options)
    result = irc.compile(model, passes, context=PassContext([verify]))
    verify.finish(result.module, result.model)
    return verify


def is_loaded(model: ModelProto) -> bool:
    """Return whether onnxruntime loads a model.

    Of some with functions its inference fails, or does not end.
    """
    watchdog = Timer(LOADING, lambda: runtime.worker.process and runtime.worker.process.kill())
    watchdog.start()
    try:
        RemoteSession(model.SerializeToString())
    except (RuntimeFailedError, WorkerDiedError):
        return False
    finally:
        watchdog.cancel()
    return True
