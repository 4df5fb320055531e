"""How fast a quantized model is, beside the float model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from onnx import ModelProto

from ...backends.runtime.remote_session import RemoteSession, RuntimeFailedError
from ...support.isolation import WorkerDiedError
from ..verify.inputs import Feeds

SECONDS = 1.0
"""How long two models are run in turn."""
FEWEST = 3
"""Fewest runs of each."""


@dataclass(frozen=True, slots=True)
class Speed:
    """The least milliseconds of one run, by onnxruntime's optimizations on one thread."""

    before: float
    after: float

    def __str__(self) -> str:
        verdict = ", slower" if self.after > self.before else ""
        return f"{self.after:.2f} ms on one thread, float {self.before:.2f} ms{verdict}"


def measure_speed(
    source: ModelProto, quantized: ModelProto, base_dir: Path, feeds: Feeds
) -> Speed | None:
    """Run two models in turn on one batch; return None if one does not run.

    A model with external data takes it from `base_dir`.
    """
    given = {name: (array, 0) for name, array in feeds.items()}
    times: tuple[list[float], list[float]] = ([], [])
    try:
        sessions = [
            RemoteSession(model.SerializeToString(), base_dir, threads=1, optimize=True)
            for model in (source, quantized)
        ]
        start = perf_counter()
        while len(times[0]) < FEWEST or perf_counter() - start < SECONDS:
            for session, found in zip(sessions, times, strict=True):
                session.run({name: given[name] for name in session.inputs})
                found.append(session.seconds)
    except (KeyError, RuntimeFailedError, WorkerDiedError):
        return None
    before, after = (1000 * min(found) for found in times)
    return Speed(before, after)
