"""The noise of each rounding of a quantized model alone, as `irc quantize --target` works by it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from ...frontends.onnx.codec.external_data import embed_external_data
from ...ir.tensor import Array
from ...result import copied
from ...support.errors import VerifyError
from ...support.progress import Advance
from ..verify.difference import json_value
from ..verify.inputs import Feeds
from ..verify.runner import Runner
from .dynamic import PRODUCTS, can_be_dynamic
from .fidelity import least, measure
from .lone_roundings import lone_noise
from .samples import size_of
from .switchboard import Switchboard

ENOUGH = 4
"""Samples on which a rounding is measured alone."""
SAME = 20.0
"""Ratio in dB of a model's noise to the difference of its switchboard from it."""


@dataclass(frozen=True, slots=True)
class Noise:
    """The ratio in dB of the worst result with one rounding alone; `kind` is weight or tensor."""

    name: str
    kind: str
    alone: float


@dataclass(frozen=True, slots=True)
class NoiseTable:
    """The noise of each rounding alone, the most first, and the ratio in dB by their sum.

    `lacking` is why there is none, "" if there is one.
    """

    noises: tuple[Noise, ...] = ()
    predicted: float = np.inf
    lacking: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the table as `irc align --json` has it."""
        return {"roundings": roundings_json(self.noises), "predicted": json_value(self.predicted)}


def roundings_json(noises: Sequence[Noise]) -> list[dict[str, Any]]:
    """Return the roundings as documents have them."""
    return [{key: json_value(value) for key, value in asdict(one).items()} for one in noises]


def noise_table(
    model: tuple[ModelProto, Path],
    quantized: tuple[ModelProto, Path],
    batches: Sequence[Feeds],
    advance: Advance = lambda step: None,
) -> NoiseTable:
    """Return the noise of the roundings of a quantized model, on the first samples of `batches`.

    Both models have the folder of their external data. There is no table if the float model with
    all roundings is not the quantized model.
    """
    base, other = (copied(each) for each, _ in (model, quantized))
    for proto, (_, folder) in zip((base, other), (model, quantized), strict=True):
        embed_external_data(proto, folder)
    for node in base.graph.node:
        node.name = node.name or next(filter(None, node.output), node.op_type)
    dynamic = list(_dynamic(base, other))
    some = list(first_samples(batches))
    names = [info.name for info in base.graph.output]
    exact, found = (Runner(each, Path()) for each in (base, other))
    for per_channel in (True, False) if dynamic else (True,):
        try:
            board = Switchboard(base, other, Path(), set(), dynamic, per_channel=per_channel)
            count = len(board.roundings)
            apart = least(measure(found, board.running(range(count)), names, some))
            if not count or apart < least(measure(exact, found, names, some)) + SAME:
                continue
            results = [one.name for one in measure(exact, exact, names, some)]
            powers = measured_noise(board, results, some, advance)
        except VerifyError:
            continue
        return NoiseTable(noises_of(board, powers), ratio_of(powers.sum(axis=0).max(initial=0.0)))
    return NoiseTable(lacking="its operators are not the float model's with roundings between them")


def _dynamic(base: ModelProto, quantized: ModelProto) -> Iterator[str]:
    """Yield the layers whose scales are found at run time."""
    left = {node.name for node in quantized.graph.node if node.op_type in PRODUCTS}
    tensors = {tensor.name: tensor for tensor in base.graph.initializer}
    if all(node.op_type != "MatMulInteger" for node in quantized.graph.node):
        return
    for node in base.graph.node:
        if node.op_type in PRODUCTS and node.name not in left and can_be_dynamic(node, tensors):
            yield node.name


def first_samples(batches: Sequence[Feeds]) -> Iterator[Feeds]:
    """Yield batches until they have ENOUGH samples."""
    count = 0
    for feeds in batches:
        if count >= ENOUGH:
            return
        yield feeds
        count += size_of(feeds)


def measured_noise(
    board: Switchboard, results: Sequence[str], batches: Sequence[Feeds], advance: Advance
) -> Array:
    """Return the noise of each rounding alone, relative to each result [roundings, results]."""
    found = np.zeros((len(board.roundings), len(results)))
    for i, noise in enumerate(lone_noise(board.runner, len(found), results, batches)):
        found[i] = noise
        advance(f"noise of {board.roundings[i].name}")
    return found


def noises_of(board: Switchboard, powers: Array) -> tuple[Noise, ...]:
    """Return the roundings with their noise in the worst result, the most first."""
    worst = powers.max(axis=1, initial=0.0)
    noises = (
        Noise(one.name, "weight" if one.owner else "tensor", ratio_of(power))
        for one, power in zip(board.roundings, worst, strict=True)
    )
    return tuple(sorted(noises, key=lambda noise: noise.alone))


def power_of(ratio: float) -> float:
    """Return the noise, relative to the signal, of a ratio in dB."""
    return float(10 ** (-ratio / 10))


def ratio_of(power: float) -> float:
    """Return the ratio in dB of a noise relative to the signal."""
    return float(-10 * np.log10(power)) if power > 0 else np.inf
