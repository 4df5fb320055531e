"""How two tensors of one name differ, and whether rounding explains it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, prod, sqrt
from typing import Any

import numpy as np

from ..ir.tensor import Array
from .reference import Reference, channels, pieces, wide


@dataclass(frozen=True, slots=True)
class Row:
    """One tensor of both models, for one set of inputs.

    Another shape or type is an infinite difference.
    """

    tensor: str
    inputs: str
    shape: tuple[int, ...]
    dtype: str
    max_abs: float = np.inf
    """The greatest difference."""
    max_rel: float = np.inf
    """The same as a share of the greatest magnitude in the source's tensor."""
    cosine: float = 0.0
    """Between the tensors as vectors."""
    sqnr: float = -np.inf
    """The ratio of the source's tensor to the difference, of their squares, in dB."""
    share: float = np.inf
    """The greatest difference as a share of what rounding can do there: above 1 it cannot be rounding."""
    bound: float = 0.0
    """The greatest of what rounding can do."""
    elements: int = 0
    """How many are further off than rounding can explain."""
    undecided: int = 0
    """How many say nothing: they are no finite numbers, or noise makes or unmakes them, or moves them by as much as
    they are on average.
    """
    value: str = ""
    """The tensor's name, or that of the sequence or map that it is a part of."""

    @property
    def key(self) -> tuple[str, str]:
        """What tells the tensor from others: a part of a sequence may be called as another value is."""
        return self.value, self.tensor

    @property
    def deviates(self) -> bool:
        """Whether rounding does not explain the difference."""
        return self.share > 1

    @property
    def says_nothing(self) -> bool:
        """Whether there is no element to compare, or rounding leaves none."""
        return not self.deviates and self.undecided >= prod(self.shape)


def plain(value: Any) -> Any:
    """What JSON has a form for: it has no infinities and no NaN, which are the texts inf, -inf and nan."""
    return str(float(value)) if isinstance(value, float) and not isfinite(value) else value


def worst(rows: Sequence[Row]) -> list[Row]:
    """For every tensor the row of the inputs for which it is furthest from what rounding can do."""
    found: dict[tuple[str, str], Row] = {}
    for row in rows:
        if row.key not in found or row.share > found[row.key].share:
            found[row.key] = row
    return list(found.values())


def undecided(rows: Sequence[Row]) -> list[str]:
    """Tensors of which no inputs say anything."""
    telling = {row.key for row in rows if not row.says_nothing}
    return [name for _, name in dict.fromkeys(row.key for row in rows if row.key not in telling)]


def silent_results(rows: Sequence[Row], results: Sequence[str]) -> tuple[str, ...]:
    """Results of a model of which no inputs say anything."""
    telling = {row.value for row in rows if not row.says_nothing}
    return tuple(result for result in results if result not in telling)


def undecided_share(rows: Sequence[Row]) -> float:
    """Which share of all elements, for all inputs, says nothing."""
    total = sum(prod(row.shape) for row in rows)
    return sum(row.undecided for row in rows) / total if total else 0.0


def measures(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The worst row of every tensor, as a report takes it: `bound` is what rounding can do where that is least met."""
    return [
        {
            "tensor": row.tensor,
            "max_abs": row.max_abs,
            "max_rel": row.max_rel,
            "sqnr": row.sqnr,
            "bound": row.max_abs / row.share if 0 < row.share < np.inf else row.bound,
        }
        for row in worst(rows)
    ]


def pair(name: str, inputs: str, reference: Reference | None, found: Any, *, similarity: bool) -> Row:
    """The row of one tensor, which one of the models may lack: sequences may be of other lengths."""
    if reference is None:
        return Row(name, inputs, found.shape, str(found.dtype), elements=found.size)
    if found is None:
        shape, dtype = reference.value.shape, str(reference.value.dtype)
        return Row(name, inputs, shape, dtype, elements=reference.value.size, share=np.inf if reference.steady else 0.0)
    return compare(name, inputs, reference, found, similarity=similarity)


def nothing_said(name: str, inputs: str) -> Row:
    """The row of a value that nothing can be compared of."""
    return Row(name, inputs, (), "", np.nan, np.nan, np.nan, np.nan, 0.0, np.inf, undecided=1, value=name)


def compare(name: str, inputs: str, reference: Reference, found: Any, *, similarity: bool = True) -> Row:
    """The row of one tensor."""
    want = reference.value
    shape, dtype = want.shape, str(want.dtype)
    if want.shape != found.shape or want.dtype != found.dtype:
        if not reference.steady:
            return Row(name, inputs, shape, dtype, share=0.0, undecided=want.size)
        return Row(name, inputs, shape, dtype, elements=want.size)
    if not reference.is_number:
        differs = want != found
        wrong = int((differs if reference.undecided is None else differs & ~reference.undecided).sum())
        if wrong:
            return Row(name, inputs, shape, dtype, elements=wrong)
        return Row(name, inputs, shape, dtype, 0.0, 0.0, 1.0, np.inf, 0.0, undecided=reference.silent)
    difference = _Difference()
    with np.errstate(all="ignore"):
        difference.measure(reference, found)
        relative = difference.most / (_greatest(want) or 1.0) if difference.most else 0.0
    cosine, sqnr = _similarity(want, found) if similarity else (np.nan, np.nan)
    return Row(
        name,
        inputs,
        shape,
        dtype,
        difference.most,
        relative,
        cosine,
        sqnr,
        difference.share,
        reference.greatest,
        difference.elements,
        reference.silent,
    )


@dataclass(slots=True)
class _Difference:
    """The greatest difference and share of the bound, and how many elements are beyond it."""

    most: float = 0.0
    share: float = 0.0
    elements: int = 0

    def measure(self, reference: Reference, found: Array) -> None:
        """Go through a tensor; pieces that are equal take one look."""
        a, b, bound = channels(reference.value), channels(found), channels(reference.bound)
        undecided = None if reference.undecided is None else channels(reference.undecided)
        for at in pieces(a.shape):
            if (a[at] == b[at]).all():
                continue
            difference = _differences(a[at], b[at])
            if undecided is not None:
                difference[undecided[at]] = 0
            self.most = max(self.most, float(difference.max()))
            difference /= bound[at]
            share = float(np.fmax.reduce(difference, axis=None))
            if share > 1:
                self.elements += int(np.count_nonzero(difference > 1))
            self.share = max(self.share, share)


def _differences(a: Array, b: Array) -> Array:
    """Magnitudes of the differences: none between NaNs, infinite from numbers to what is none, at least 1 between
    integers, which may be too large for float64.
    """
    x, y = wide(a), wide(b)
    difference = np.abs(x - y)
    if a.dtype.kind in "iub":
        return np.asarray(np.maximum(difference, a != b))
    if np.isfinite(difference.max()):
        return np.asarray(difference)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    return np.asarray(np.where(same, 0, np.where(np.isfinite(x) & np.isfinite(y), difference, np.inf)))


def _finite(array: Array) -> Array:
    """The numbers, zeros for what is none."""
    return array if np.isfinite(array).all() else np.where(np.isfinite(array), array, 0)


def _greatest(array: Array) -> float:
    """The greatest magnitude of a number."""
    view = channels(array)
    return max((float(np.abs(_finite(wide(view[at]))).max()) for at in pieces(view.shape)), default=0.0)


def _similarity(a: Array, b: Array) -> tuple[float, float]:
    """Cosine and SQNR, in dB, of what is finite in both."""
    scale = max(_greatest(a), _greatest(b)) if a.dtype in (np.float64, np.complex128) else 0.0  # squares of others fit
    dot, signal, other, noise = 0j, 0.0, 0.0, 0.0
    first, second = channels(a), channels(b)
    with np.errstate(all="ignore"):
        for at in pieces(first.shape):
            kind = np.complex128 if a.dtype.kind == "c" else np.float64
            x, y = (wide(array[at]).astype(kind).ravel() for array in (first, second))
            finite = np.isfinite(x) & np.isfinite(y)
            if not finite.all():
                x, y = x[finite], y[finite]
            if scale:
                x, y = x / scale, y / scale
            dot += complex(np.vdot(x, y))
            signal, other, noise = signal + _power(x), other + _power(y), noise + _power(x - y)
        unit = sqrt(signal) * sqrt(other)
        cosine = float(abs(dot) / unit) if unit else float(noise == 0)
        if noise == 0:
            return cosine, np.inf
        return cosine, float(10 * np.log10(signal / noise)) if signal else -np.inf


def _power(array: Array) -> float:
    return float(np.vdot(array, array).real)
