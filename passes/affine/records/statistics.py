"""Statistics of tensors from BatchNormalization: mean and deviation of each channel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from ....ir.graph import Value
from ....ir.module import Module
from ....ir.provenance import SideTable
from ....ir.record import Record
from ....ir.tensor import Array
from .fold_records import Branch, SourceAffine


class Statistic(Record):
    """Mean and standard deviation of a tensor per channel, along `axis`, as float64 vectors [C].

    They come from the data that a model was trained on, as its BatchNormalization (origin
    `source`) kept them: of its data, mean and sqrt(var); of its result y = gamma * (x - mean) /
    sqrt(var + epsilon) + beta, beta and |gamma| * sqrt(var / (var + epsilon)). `gamma` is the
    deviation of the result with epsilon = 0, signed: many tools take it for the deviation.
    """

    axis: int
    mean: Array
    std: Array
    gamma: Array
    source: int

    def applied(self, scale: Array | float, shift: Array | float) -> Statistic:
        """Return the statistic of scale * x + shift."""
        return replace(
            self,
            mean=self.mean * scale + shift,
            std=self.std * np.abs(scale),
            gamma=self.gamma * scale,
        )


class StatisticRef(Record):
    """The origin of the statistic of a value, which `statistics` computes when it is asked for.

    The value is the data of the BatchNormalization `source`, or its `result`, after the affines
    `steps`, each a scale and a shift of shape [C] or []. With `terms` it is their sum instead, of
    which the mean is known, and a bound of the deviation: the sum of theirs.
    """

    source: SourceAffine
    result: bool
    steps: tuple[tuple[Array | float, Array | float], ...] = ()
    terms: tuple[StatisticRef, ...] = ()

    @property
    def is_bound(self) -> bool:
        """Whether the deviation is a bound, which no BatchNormalization kept."""
        return bool(self.terms)

    def applied(self, scale: Array | float, shift: Array | float) -> StatisticRef:
        """Return the reference for scale * x + shift."""
        return replace(self, steps=(*self.steps, (scale, shift)))

    def statistic(self) -> Statistic | None:
        """Return the statistic, None if the parameters are unknown or make no affine."""
        return statistics([self])[0]


class StatisticTable(SideTable):
    """The statistics of the values of one module, from the BatchNormalizations of the source.

    A pass that changes a value must update or drop its entry. `terms` has the statistics of the
    terms of a sum that branches computed.
    """

    def __init__(self) -> None:
        self.refs: dict[Value, StatisticRef] = {}
        self.terms: dict[Branch, StatisticRef] = {}

    def value_replaced(self, old: Value, new: Value) -> None:
        known = self.refs.pop(old, None)
        self.refs.pop(new, None)
        if known is not None:
            self.refs[new] = known

    def value_forwarded(self, old: Value, new: Value) -> None:
        if old in self.refs:
            self.refs.setdefault(new, self.refs[old])


def statistic_refs(module: Module) -> dict[Value, StatisticRef]:
    """Return the module's table of statistics, by value."""
    return module.provenance.table(StatisticTable).refs


def statistics_of_terms(module: Module, branches: Sequence[Branch]) -> list[Statistic | None]:
    """Return the statistic of the term that each branch added to its sum, None if it is unknown."""
    terms = module.provenance.table(StatisticTable).terms
    known = [branch for branch in branches if branch in terms]
    found = dict(zip(known, statistics([terms[branch] for branch in known]), strict=True))
    return [found.get(branch) for branch in branches]


def statistics(references: Sequence[StatisticRef]) -> list[Statistic | None]:
    """Return the statistic of each reference, None if its parameters make no affine.

    Sources with the same number of channels are computed together: an operation on a short vector
    costs as much as one on many.
    """
    alike: dict[int, list[tuple[SourceAffine, list[Array]]]] = {}
    parts = [part for reference in references for part in reference.terms or (reference,)]
    for source in {id(part.source): part.source for part in parts}.values():
        vectors = _parameters(source)
        if vectors is not None:
            alike.setdefault(vectors[0].size, []).append((source, vectors))
    known: dict[tuple[int, bool], Statistic] = {}
    for group in alike.values():
        known.update(_together(group))
    return [
        _through(
            _total(known, reference.terms) if reference.is_bound else _own(known, reference),
            reference,
        )
        for reference in references
    ]


def _own(known: Mapping[tuple[int, bool], Statistic], reference: StatisticRef) -> Statistic | None:
    """Return the statistic of the data or the result of a BatchNormalization."""
    return known.get((id(reference.source), reference.result))


def _total(
    known: Mapping[tuple[int, bool], Statistic], terms: Sequence[StatisticRef]
) -> Statistic | None:
    """Return mean and bound of a sum, None if a term is unknown or has other channels."""
    found = [_through(_own(known, term), term) for term in terms]
    every = [each for each in found if each is not None]
    if len(every) < len(terms) or len({(each.axis, each.mean.shape) for each in every}) > 1:
        return None
    mean, bound = (
        np.sum(vectors, axis=0)
        for vectors in ([each.mean for each in every], [each.std for each in every])
    )
    return Statistic(every[0].axis, mean, bound, bound, every[0].source)


def _through(known: Statistic | None, reference: StatisticRef) -> Statistic | None:
    """Return the statistic after the affines of a reference."""
    for scale, shift in reference.steps if known is not None else ():
        assert known is not None
        if np.size(scale) not in (1, known.mean.size):
            return None  # a GroupNormalization may have a number for each group only
        known = known.applied(scale, shift)
    return known


def _together(
    group: Sequence[tuple[SourceAffine, list[Array]]],
) -> Iterator[tuple[tuple[int, bool], Statistic]]:
    """Yield the statistics of the data (False) and of the result (True) of each source."""
    with np.errstate(all="ignore"):
        gamma, beta, mean, var = (
            np.array([vectors[i] for _, vectors in group], np.float64) for i in range(4)
        )
        spread = var + np.array([[source.epsilon] for source, _ in group])
        roots, wide = np.sqrt(var), np.sqrt(spread)
        std = np.abs(gamma) * (roots / wide)
    usable = (
        np.isfinite(gamma)
        & np.isfinite(beta)
        & np.isfinite(mean)
        & np.isfinite(var)
        & (var >= 0)
        & (spread > 0)
    )
    data, results = zip(mean, roots, wide, strict=True), zip(beta, std, gamma, strict=True)
    for (source, _), x, y, is_usable in zip(
        group, data, results, usable.all(axis=1).tolist(), strict=True
    ):
        if is_usable and source.axis is not None:
            yield (id(source), False), Statistic(source.axis, *x, source.origin)
            yield (id(source), True), Statistic(source.axis, *y, source.origin)


def _parameters(source: SourceAffine) -> list[Array] | None:
    """Return gamma, beta, mean and var, None unless they are known vectors of one length."""
    if source.kind != "batch_norm" or source.epsilon is None:
        return None
    tensors = [
        source.params[key].tensor
        for key in ("gamma", "beta", "mean", "var")
        if key in source.params
    ]
    vectors = [tensor.numpy() for tensor in tensors if tensor is not None]
    if len(vectors) < 4 or vectors[0].ndim != 1:
        return None
    if any([vector.shape != vectors[0].shape for vector in vectors]):
        return None
    return vectors
