"""The difference of two tensors, and whether rounding explains it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, prod, sqrt
from typing import Any

import numpy as np

from ...ir.tensor import Array
from .reference_tensor import ReferenceTensor
from .tensor_blocks import blocks, channel_view, max_magnitude, widen


@dataclass(frozen=True, slots=True)
class TensorDifference:
    """The difference of one tensor in two models, for one stimulus.

    It is infinite if shapes or element types differ. Reports in JSON have these fields.
    """

    tensor: str
    inputs: str
    """Name of the stimulus."""
    shape: tuple[int, ...]
    dtype: str
    max_abs: float = np.inf
    """The greatest difference."""
    max_rel: float = np.inf
    """The greatest difference, divided by the greatest magnitude in the source's tensor."""
    cosine: float = 0.0
    """Cosine of the angle between the tensors as vectors."""
    sqnr: float = -np.inf
    """Signal-to-noise ratio in dB: the power of the source's tensor to the difference's."""
    share: float = np.inf
    """The greatest ratio of a difference to its rounding bound. Above 1 it is not rounding."""
    bound: float = 0.0
    """The greatest rounding bound."""
    elements: int = 0
    """Number of elements whose difference exceeds their bound."""
    undecided: int = 0
    """Number of elements that cannot be compared.

    They are not finite, noise makes or unmakes them, or it moves them by the root mean square of
    their channel.
    """
    found: str = ""
    """Element type and shape in the other model, if they differ."""
    value: str = ""
    """Name of the tensor, or of the sequence or map that it is part of."""

    @property
    def key(self) -> tuple[str, str]:
        """The value and its tensor: a part of a sequence may have the name of another value."""
        return self.value, self.tensor

    @property
    def deviates(self) -> bool:
        """Whether rounding does not explain the difference."""
        return self.share > 1

    def sentence(self, limit: str) -> str:
        """Return how far the tensor is off, as a predicate; differences are held to `limit`."""
        if self.found:
            return f"is {self.found}, and {self.dtype} of shape {list(self.shape)} in the source"
        return f"is off by {self.max_abs:.3g}, {self.share:.3g} times {limit}"

    @property
    def is_undecided(self) -> bool:
        """Whether no element can be compared."""
        return not self.deviates and self.undecided >= prod(self.shape)


def json_value(value: Any) -> Any:
    """Return a value for JSON: infinities and NaN become the texts inf, -inf and nan."""
    return str(float(value)) if isinstance(value, float) and not isfinite(value) else value


def worst_by_tensor(differences: Sequence[TensorDifference]) -> list[TensorDifference]:
    """Return for every tensor the difference that is the greatest share of its bound."""
    found: dict[tuple[str, str], TensorDifference] = {}
    for one in differences:
        if one.key not in found or one.share > found[one.key].share:
            found[one.key] = one
    return list(found.values())


def undecided_tensors(differences: Sequence[TensorDifference]) -> list[str]:
    """Return the tensors that cannot be compared for any stimulus."""
    decided = {one.key for one in differences if not one.is_undecided}
    undecided = dict.fromkeys(one.key for one in differences if one.key not in decided)
    return [name for _, name in undecided]


def undecided_results(
    differences: Sequence[TensorDifference], results: Sequence[str]
) -> tuple[str, ...]:
    """Return the results of a model that cannot be compared for any stimulus."""
    decided = {one.value for one in differences if not one.is_undecided}
    return tuple(result for result in results if result not in decided)


def undecided_share(differences: Sequence[TensorDifference]) -> float:
    """Return the share of all elements, over all stimuli, that cannot be compared."""
    total = sum(prod(one.shape) for one in differences)
    return sum(one.undecided for one in differences) / total if total else 0.0


def report_rows(differences: Sequence[TensorDifference]) -> list[dict[str, Any]]:
    """Return the worst difference of every tensor; `bound` is the one at the worst element."""
    return [
        {
            "tensor": one.tensor,
            "max_abs": one.max_abs,
            "max_rel": one.max_rel,
            "sqnr": one.sqnr,
            "bound": one.max_abs / one.share if 0 < one.share < np.inf else one.bound,
        }
        for one in worst_by_tensor(differences)
    ]


def compare_parts(
    name: str, inputs: str, reference: ReferenceTensor | None, found: Any, *, similarity: bool
) -> TensorDifference:
    """Compare two tensors of which one may be missing, since sequences may differ in length."""
    if reference is None:
        return TensorDifference(name, inputs, found.shape, str(found.dtype), elements=found.size)
    if found is None:
        value, share = reference.value, np.inf if reference.has_stable_shape else 0.0
        place = (name, inputs, value.shape, str(value.dtype))
        return TensorDifference(*place, elements=value.size, share=share)
    return compare_tensors(name, inputs, reference, found, similarity=similarity)


def undecided_value(name: str, inputs: str) -> TensorDifference:
    """Return the difference for a value that cannot be compared at all."""
    return TensorDifference(
        name, inputs, (), "", np.nan, np.nan, np.nan, np.nan, 0.0, np.inf, undecided=1, value=name
    )


def compare_tensors(
    name: str, inputs: str, reference: ReferenceTensor, found: Any, *, similarity: bool = True
) -> TensorDifference:
    """Compare a tensor with its reference; `similarity` adds cosine and SQNR."""
    want = reference.value
    place = (name, inputs, want.shape, str(want.dtype))
    if want.shape != found.shape or want.dtype != found.dtype:
        if not reference.has_stable_shape:
            return TensorDifference(*place, share=0.0, undecided=want.size)
        return TensorDifference(*place, elements=want.size, found=_type_text(found))
    undecided = reference.num_undecided
    if not reference.is_numeric:
        differs = want != found
        if reference.undecided is not None:
            differs &= ~reference.undecided
        if wrong := int(differs.sum()):
            return TensorDifference(*place, elements=wrong)
        return TensorDifference(*place, 0.0, 0.0, 1.0, np.inf, 0.0, undecided=undecided)
    with np.errstate(all="ignore"):
        max_abs, share, elements = _measure(reference, found)
        max_rel = max_abs / (max_magnitude(want) or 1.0) if max_abs else 0.0
    cosine, sqnr = _similarity(want, found) if similarity else (np.nan, np.nan)
    measures = (max_abs, max_rel, cosine, sqnr, share, reference.max_bound)
    return TensorDifference(*place, *measures, elements, undecided)


def _type_text(array: Array) -> str:
    return f"{array.dtype} of shape {list(array.shape)}"


def _measure(reference: ReferenceTensor, found: Array) -> tuple[float, float, int]:
    """Return the greatest difference, its greatest share of the bound, and the excesses."""
    a, b, bound = channel_view(reference.value), channel_view(found), channel_view(reference.bound)
    undecided = None if reference.undecided is None else channel_view(reference.undecided)
    max_abs, max_share, elements = 0.0, 0.0, 0
    for at in blocks(a.shape):
        if (a[at] == b[at]).all():
            continue
        difference = _differences(a[at], b[at])
        if undecided is not None:
            difference[undecided[at]] = 0
        max_abs = max(max_abs, float(difference.max()))
        difference /= bound[at]
        share = float(np.fmax.reduce(difference, axis=None))
        if share > 1:
            elements += int(np.count_nonzero(difference > 1))
        max_share = max(max_share, share)
    return max_abs, max_share, elements


def _differences(a: Array, b: Array) -> Array:
    """Return the magnitudes of differences.

    NaN and NaN do not differ; a finite number and one that is not differ by infinity. Unequal
    integers differ by at least 1, even if float64 cannot tell them apart.
    """
    x, y = widen(a), widen(b)
    difference = np.abs(x - y)
    if a.dtype.kind in "iub":
        return np.asarray(np.maximum(difference, a != b))
    if np.isfinite(difference.max()):
        return np.asarray(difference)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    both_finite = np.isfinite(x) & np.isfinite(y)
    return np.asarray(np.where(same, 0, np.where(both_finite, difference, np.inf)))


def _similarity(a: Array, b: Array) -> tuple[float, float]:
    """Return cosine and SQNR in dB of the elements that are finite in both tensors."""
    is_wide = a.dtype in (np.float64, np.complex128)
    # float64 holds the squares of other types.
    scale = max(max_magnitude(a), max_magnitude(b)) if is_wide else 0.0
    dtype = np.complex128 if a.dtype.kind == "c" else np.float64
    dot, signal, other, noise = 0j, 0.0, 0.0, 0.0
    first, second = channel_view(a), channel_view(b)
    with np.errstate(all="ignore"):
        for at in blocks(first.shape):
            x, y = (widen(array[at]).astype(dtype).ravel() for array in (first, second))
            finite = np.isfinite(x) & np.isfinite(y)
            if not finite.all():
                x, y = x[finite], y[finite]
            if scale:
                x, y = x / scale, y / scale
            power = _power(x)
            signal += power
            if np.array_equal(x, y):
                dot, other = dot + power, other + power
            else:
                dot = dot + _product(x, y)
                other = other + _product(y, y).real
                noise = noise + _power(x - y)
        norms = sqrt(signal) * sqrt(other)
        cosine = float(abs(dot) / norms) if norms else float(noise == 0)
        if noise == 0:
            return cosine, np.inf
        return cosine, float(10 * np.log10(signal / noise)) if signal else -np.inf


def _power(array: Array) -> float:
    return _product(array, array).real


def _product(a: Array, b: Array) -> complex:
    """Return the scalar product.

    Not by vdot, whose threads take more time than such short vectors need.
    """
    return complex(np.einsum("i,i->", np.conj(a) if a.dtype.kind == "c" else a, b))
