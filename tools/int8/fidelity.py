"""How near the results of a quantized model are to the float model's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ...ir.tensor import Array
from ..verify.inputs import Feeds
from ..verify.tensor_blocks import blocks, channel_view, is_tensor, widen

APART = 3.0
"""Difference in dB from which two ratios are both said."""
MOST = 1 << 28
"""Bytes of results that are kept to compare with."""
CEILING = 50.0
"""Ratio in dB above which differences are those of the float parts of a model."""


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Signal-to-noise ratio of one result over all samples, in dB: power of signal to error.

    It is NaN if the shapes differ, or an element is not finite. `agreement` is the share of samples
    in which both models have the same greatest element. It is None if a result has not one row of
    scores for each sample. `unoptimized` is the ratio without onnxruntime's graph optimizations,
    None if `sqnr` is so.
    """

    name: str
    sqnr: float
    agreement: float | None
    unoptimized: float | None = None

    @property
    def lost(self) -> float:
        """The dB that graph optimizations cost; 0 if these, or the noise, do not count."""
        if self.unoptimized is None:
            return 0.0
        ends = (self.unoptimized, self.sqnr)
        before, after = (-np.inf if np.isnan(end) else min(end, CEILING) for end in ends)
        return 0.0 if abs(before - after) <= APART or before == after else float(before - after)

    def ratio_text(self, unit: str) -> str:
        """Return the ratio, and the one without graph optimizations if they are apart."""
        text = f"{self.sqnr:.1f} {unit}"
        if not self.lost:
            return text
        return f"{text}, {self.unoptimized:.1f} dB without onnxruntime's graph optimizations"

    def agreed_text(self) -> str:
        """Return the agreement as the end of a sentence, empty if it is None."""
        return "" if self.agreement is None else f", agreement {100 * self.agreement:.1f} %"


class SquaredError:
    """Sums of squares over tensors: of a reference and of its difference to another tensor."""

    def __init__(self) -> None:
        self.signal = 0.0
        self.noise = 0.0

    def add(self, expected: Array, found: Array) -> None:
        """Add one pair of tensors of one shape."""
        a, b = channel_view(expected), channel_view(found)
        with np.errstate(invalid="ignore", over="ignore"):
            for at in blocks(a.shape):
                wide, other = a[at].astype(np.float64), b[at].astype(np.float64)
                self.signal += float(np.square(wide).sum())
                self.noise += float(np.square(np.where(wide == other, 0.0, other - wide)).sum())

    @property
    def sqnr(self) -> float:
        """Their ratio in dB: infinite without error, -inf without a signal, or NaN."""
        if not (np.isfinite(self.signal) and np.isfinite(self.noise)):
            return float("nan")
        with np.errstate(divide="ignore"):
            if self.noise:
                return float(10 * np.log10(np.float64(self.signal) / self.noise))
            return np.inf


class Runs(Protocol):
    """What computes named tensors."""

    def run(self, names: Sequence[str], feeds: Feeds) -> list[Any]:
        """Return the named tensors."""


class Remembered:
    """The results of a model, computed once for each batch as far as MOST bytes hold them."""

    def __init__(self, model: Runs, results: Sequence[str]) -> None:
        self.model, self.results = model, list(results)
        self._found: dict[int, list[Any]] = {}
        self._bytes = 0

    def run(self, names: Sequence[str], feeds: Feeds) -> list[Any]:
        """Return the named tensors. The batches of all calls live as long as this."""
        if list(names) != self.results:
            return self.model.run(names, feeds)
        if id(feeds) in self._found:
            return self._found[id(feeds)]
        found = self.model.run(names, feeds)
        self._bytes += sum(each.nbytes for each in found if is_tensor(each))
        if self._bytes <= MOST:
            self._found[id(feeds)] = found
        return found


def measure(
    source: Runs, quantized: Runs, names: Sequence[str], batches: Sequence[Feeds]
) -> list[Fidelity]:
    """Compare the named results on `batches`, those of floating-point numbers.

    Raises VerifyError if a model does not run.
    """
    errors = {name: SquaredError() for name in names}
    votes: dict[str, list[bool] | None] = {name: [] for name in names}
    measured: set[str] = set()
    for feeds in batches:
        pairs = source.run(names, feeds), quantized.run(names, feeds)
        for name, expected, found in zip(names, *pairs, strict=True):
            # Sequences, maps and integers, such as classes, have no ratio of signal to noise.
            if not (is_tensor(expected) and is_tensor(found) and widen(expected).dtype.kind == "f"):
                continue
            measured.add(name)
            if expected.shape != found.shape:  # as of the boxes that a detector keeps
                errors[name].noise, votes[name] = np.nan, None
                continue
            errors[name].add(expected, found)
            rows, said = _winners(expected), votes[name]
            if rows is None or said is None:
                votes[name] = None
            else:
                said.extend((rows == _winners(found)).tolist())
    agreements = {name: float(np.mean(said)) if said else None for name, said in votes.items()}
    return [Fidelity(n, errors[n].sqnr, agreements[n]) for n in names if n in measured]


def least(found: Sequence[Fidelity]) -> float:
    """Return the ratio of the worst result in dB, -inf for one that cannot be compared."""
    return min((-np.inf if np.isnan(one.sqnr) else one.sqnr for one in found), default=-np.inf)


def _winners(scores: Array) -> Array | None:
    """Return each sample's index of the greatest element, if a sample is a row of scores."""
    extents = [extent for extent in scores.shape[1:] if extent > 1]
    is_row = len(extents) == 1 and scores.size > 0
    return scores.reshape(len(scores), -1).argmax(1) if is_row else None
