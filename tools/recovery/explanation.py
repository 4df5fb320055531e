"""Find the norm that explains a folded layer: W' = s W and b' = beta + (b - mean) s.

s = gamma / sqrt(var + epsilon). A tool that folds in float32 rounds var + epsilon, its root, the
quotient and the product: about 3.5 units of 2**-24, and a few more for the bias. ROUNDINGS bounds
all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ...ir.record import Record
from ...ir.tensor import Array, dtype_from_numpy, finfo
from ...support.errors import FoldMapError
from .checkpoint import Checkpoint, Kernel, Norm, are_equal
from .folded_layers import FoldedLayer

ROUNDINGS = 8
"""Relative error of a folded number, in units of its type: about 4 of them are needed."""

EPSILONS = (1e-5, 1e-3, 1e-4, 1e-6, 1e-2, 2e-5, 1e-7, 1e-8)
"""Values of epsilon that frameworks use, the commonest first; a state_dict does not say it."""


class Explanation(Record):
    """The `kernel` and `norm` of a folded layer: its `scale` and `shift` are float64."""

    layer: FoldedLayer
    kernel: Kernel
    norm: Norm
    epsilon: float
    scale: Array
    shift: Array


class Unexplained(Exception):
    """Raised for a layer of which no BatchNormalization was found, with the reason."""


def explain(
    layer: FoldedLayer, checkpoint: Checkpoint, epsilons: Sequence[float] = EPSILONS
) -> Explanation | None:
    """Find the norm that explains the folded weights of `layer`, None if these are unchanged.

    Kernels that metadata and names point at come first, then all of the same shape. Raises
    Unexplained unless one norm explains it.
    """
    named = [kernel for kernel in checkpoint.kernels if kernel.path in layer.hints]
    for kernels in (named, checkpoint.kernels):
        pairs = [(kernel, _proportional(layer, kernel)) for kernel in kernels]
        proportional = [(kernel, rows) for kernel, rows in pairs if rows is not None]
        if any(_is_unchanged(layer, kernel, rows) for kernel, rows in proportional):
            return None
        found: list[Explanation] = []
        for kernel, rows in proportional:
            found += _hits(layer, kernel, rows, checkpoint, epsilons)
        if found:
            return _one(layer, found)
    if proportional:
        names = ", ".join(kernel.path or "the model" for kernel, _ in proportional[:3])
        raise Unexplained(
            f"its weight is the one of {names} times a factor a channel that no"
            " BatchNormalization explains"
        )
    raise Unexplained("no weight of the checkpoint is its weight up to a factor a channel")


def explain_all(
    layers: Iterable[FoldedLayer], checkpoint: Checkpoint, epsilons: Sequence[float] = EPSILONS
) -> tuple[list[Explanation], dict[str, str], list[str]]:
    """Return explanations of layers, reasons for others by label, and labels of unchanged ones.

    Raises FoldMapError if one unfolded layer would explain several.
    """
    found: list[Explanation] = []
    refused: dict[str, str] = {}
    unchanged: list[str] = []
    for layer in layers:
        try:
            hit = explain(layer, checkpoint, epsilons)
        except Unexplained as reason:
            refused[layer.label] = str(reason)
            continue
        if hit is None:
            unchanged.append(layer.label)
        else:
            found.append(hit)
    if checkpoint.source is not None:
        taken: dict[int, str] = {}
        for hit in found:
            other = taken.setdefault(hit.kernel.order, hit.layer.label)
            if other != hit.layer.label:
                raise FoldMapError(f"{hit.kernel.path} explains both {other} and {hit.layer.label}")
    return found, refused, unchanged


def tolerance(array: Array) -> float:
    """Return the relative error that the numbers of a folded `array` may have."""
    return ROUNDINGS * float(finfo(dtype_from_numpy(array.dtype)).eps) / 2


def _proportional(layer: FoldedLayer, kernel: Kernel) -> Array | None:
    """Return the rows of a kernel in float64 if each, times a factor, is the layer's row."""
    rows = kernel.rows_for(layer)
    if rows is None or rows.shape != layer.rows.shape:
        return None
    limit = 3 * tolerance(layer.weight)
    for part in (slice(0, 1), slice(None)):  # most kernels differ in the first channel
        made, wide = layer.rows[part].astype(np.float64), rows[part].astype(np.float64)
        at = np.arange(len(wide)), np.abs(wide).argmax(axis=1)
        with np.errstate(all="ignore"):
            scale = np.where(wide[at] != 0, made[at] / wide[at], 0.0)[:, None]
        if not _near(made, scale * wide, np.abs(scale * wide), limit, layer.weight):
            return None
    return rows.astype(np.float64)


def _hits(
    layer: FoldedLayer,
    kernel: Kernel,
    rows: Array,
    checkpoint: Checkpoint,
    epsilons: Sequence[float],
) -> list[Explanation]:
    norms = checkpoint.norms
    if kernel.layer is not None:
        norms = [] if kernel.norm is None else [kernel.norm]
    found: list[Explanation] = []
    for norm in norms:
        if norm.channels != len(rows):
            continue
        for epsilon in epsilons if norm.epsilon is None else (norm.epsilon,):
            hit = _hit(layer, kernel, rows, norm, epsilon)
            if hit is not None:
                found.append(hit)
                break
    return found


def _hit(
    layer: FoldedLayer, kernel: Kernel, rows: Array, norm: Norm, epsilon: float
) -> Explanation | None:
    gamma, beta, mean, var = (np.asarray(param).astype(np.float64) for param in norm.params)
    limit = tolerance(layer.weight)
    with np.errstate(all="ignore"):
        scale = gamma / np.sqrt(var + epsilon)
    if not np.isfinite(scale).all() or not (var + epsilon > 0).all():
        return None
    # The greatest number of each row first: most norms differ there.
    at = np.arange(len(rows)), np.abs(rows).argmax(axis=1)
    greatest = scale * rows[at]
    stored = layer.rows[at].astype(np.float64)
    if not _near(stored, greatest, np.abs(greatest), limit, layer.weight):
        return None
    bias = np.zeros_like(mean) if kernel.bias is None else kernel.bias.astype(np.float64)
    made = np.zeros_like(mean) if layer.bias is None else layer.bias.astype(np.float64)
    if bias.shape != mean.shape:
        return None
    shift = beta - mean * scale
    size = (np.abs(bias) + np.abs(mean)) * np.abs(scale) + np.abs(beta)
    if not _near(made, beta + (bias - mean) * scale, size, limit, layer.weight):
        return None
    wide = scale[:, None] * rows
    if not _near(layer.rows.astype(np.float64), wide, np.abs(wide), limit, layer.weight):
        return None
    return Explanation(layer, kernel, norm, epsilon, scale, shift)


def _near(made: Array, expected: Array, size: Array, limit: float, stored: Array) -> bool:
    tiny = 2 * float(finfo(dtype_from_numpy(stored.dtype)).smallest_subnormal)
    return bool((np.abs(made - expected) <= limit * size + tiny).all())


def _is_unchanged(layer: FoldedLayer, kernel: Kernel, rows: Array) -> bool:
    zeros = np.zeros(len(rows))
    bias = zeros if kernel.bias is None else kernel.bias
    made = zeros if layer.bias is None else layer.bias
    return np.array_equal(layer.rows, rows) and np.array_equal(made, bias)


def _one(layer: FoldedLayer, found: list[Explanation]) -> Explanation:
    """Return the explanation that names decide for, or one of those that mean the same.

    Raises Unexplained.
    """
    named = [hit for hit in found if hit.norm.path in layer.hints]
    if len(named) == 1:
        return named[0]
    found = named or found
    if len(found) == 1:
        return found[0]
    following = [hit for hit in found if _follows(hit, found)]
    if len(following) == 1:
        return following[0]
    paths = ", ".join(sorted({hit.norm.path for hit in found}))
    raise Unexplained(f"several BatchNormalizations explain it: {paths}")


def _follows(hit: Explanation, found: list[Explanation]) -> bool:
    """Return whether the norm is the next one after the weight, of those with equal numbers."""
    for each in found:
        if each.kernel is not hit.kernel or not are_equal(each.norm.params, hit.norm.params):
            return False
    after = [each.norm.order for each in found if each.norm.order > hit.kernel.order]
    return bool(after) and hit.norm.order == min(after)
