"""TensorRT's calibration cache, also for ModelOpt: a symmetric int8 scale for each tensor.

    cache = to_tensorrt_cache(model, fold_map, input_ranges={"x": (-2, 3)})
    Path("net.cache").write_text(cache.text)

The first line names the version of TensorRT and the calibrator. Each other line is `name: scale`,
the scale as a big-endian float32 in eight hexadecimal digits.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto

from ..foldmap.fold_map import FoldMap
from .ranges import SIGMAS, Range, activations

TENSORRT_VERSION = 8501
"""The version in the first line, by default: 8.5.1."""
STEPS = 127
"""Steps of symmetric int8 on each side of zero."""
SEPARATOR = ": "
BREAKS = (SEPARATOR, "\n", "\r")
"""Texts that a name may not contain: a reader could not tell its end."""


@dataclass(frozen=True, slots=True)
class TensorrtCache:
    """The content of a calibration cache (`text`), and the activations without a line (`missing`).

    The scales of `guessed` activations come from guesses: pass `ranges` if you know better.
    """

    text: str
    missing: tuple[str, ...]
    guessed: tuple[str, ...] = ()


def to_tensorrt_cache(
    model: ModelProto,
    fold_map: FoldMap,
    *,
    input_ranges: Mapping[str, Range] | Range | None = None,
    ranges: Mapping[str, Range] | None = None,
    sigmas: float = SIGMAS,
    tensorrt_version: int = TENSORRT_VERSION,
) -> TensorrtCache:
    """Return the calibration cache of all activations whose range is known.

    The scale is the greatest magnitude of the range, divided by 127. Activations of unknown range,
    and those whose name the format cannot hold, are `missing`. The other arguments are as for
    `activations`. Raises FoldMapError if the map does not describe the model, UsageError for an
    invalid range.
    """
    found = activations(model, fold_map, input_ranges=input_ranges, ranges=ranges, sigmas=sigmas)
    fits = {name: not any(text in name for text in BREAKS) for name in found.shapes}
    lines = [
        f"{name}{SEPARATOR}{_digits(*known.range)}"
        for name, known in found.known.items()
        if fits[name]
    ]
    missing = tuple(name for name in found.shapes if name not in found.known or not fits[name])
    header = f"TRT-{tensorrt_version}-EntropyCalibration2"
    return TensorrtCache("".join(f"{line}\n" for line in (header, *lines)), missing, found.guessed)


def _digits(low: float, high: float) -> str:
    """Return the scale of a range, 1 if it is zero alone."""
    scale = np.float32(max(abs(low), abs(high)) / STEPS) or np.float32(1)
    return struct.pack(">f", scale).hex()
