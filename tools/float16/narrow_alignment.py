"""`irc align` for a float16 model: its roundings in float32, and the first operator to overflow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from onnx import ModelProto

from ...backends.foldmap.fold_map import FoldMap
from ...frontends.onnx import from_model
from ...frontends.onnx.codec.external_data import embed_external_data
from ...ir.tensor import Array
from ...ir.types import DType
from ...result import Result, copied
from ..verify.alignment import Alignment, align
from ..verify.branch_outputs import expose_branch_tensors
from ..verify.comparison import Comparison
from ..verify.inputs import Feeds, Stimulus
from ..verify.onnx_graph import tensor_names
from ..verify.overflow import Overflow
from ..verify.runner import IncrementalRun, Runner
from ..verify.tensor_blocks import is_finite, is_tensor
from .emulation import BITS, EXACT, SCALED, emulated, narrow_type

AT_ONCE = 64
"""Tensors that one run returns."""

NEAR = 0.25
"""Greatest distance of a value from 2^k times the source's, as a share, for k to be its scale."""


def narrowed_type(first: ModelProto, second: ModelProto) -> DType | None:
    """Return the narrow type of the second model if the first has none, else None."""
    return narrow_type(second) if narrow_type(first) is None else None


def align_model(
    comparison: Comparison, other: ModelProto, base_dir: Path, fold_map: FoldMap | None
) -> Alignment:
    """Compare every tensor of the source with its counterpart in `other`.

    If the source is held to a narrow type, `other` is emulated, and values that were scaled are
    scaled back. Raises the errors of `irc.align`.
    """
    if comparison.source.narrow is None:
        return align(comparison, expose_branch_tensors(other, base_dir), base_dir, fold_map)
    single = copied(other)
    embed_external_data(single, base_dir)
    result = Result(from_model(single))
    source, half = comparison.source.runner, Runner(emulated(result), Path())
    overflow = first_overflow(source, half, comparison.inputs)
    if fold_map is not None:
        exponents = fold_map.exponents
    else:
        exponents = found_exponents(source, half, comparison.inputs[0].feeds)
    scaled_back = expose_branch_tensors(emulated(result, exponents), Path())
    return replace(align(comparison, scaled_back, Path(), fold_map), overflow=overflow)


def first_overflow(source: Runner, half: Runner, stimuli: Sequence[Stimulus]) -> Overflow | None:
    """Return the first operator with a result that is not finite, where the source's is.

    Raises VerifyError if a model does not run.
    """
    makers = {name: node for node in half.model.graph.node for name in node.output}
    order = {name: place for place, name in enumerate(tensor_names(half.model))}
    first: Overflow | None = None
    for stimulus in stimuli:
        for name, array, own in _pairs(half, source, stimulus.feeds):
            if is_finite(array) or (own is not None and not is_finite(own)):
                continue
            if first is None or order[name] < order[first.tensor]:
                exact = name + EXACT if name + EXACT in makers else name
                (wide,) = half.run([exact], stimulus.feeds)
                maker, most = makers[exact], float(np.abs(wide).max())
                first = Overflow(maker.op_type, maker.name or name, name, most, stimulus.name)
            break
    return first


def found_exponents(source: Runner, half: Runner, feeds: Feeds) -> dict[str, int]:
    """Return the exponents k by which values are about 2^k times the source's of the same name.

    The results of a model have none, so one that is off by a factor stays off.
    """
    results = {info.name for info in source.model.graph.output}
    found = {}
    for name, array, own in _pairs(half, source, feeds):
        if own is None or own.shape != array.shape or name in results:
            continue
        exponent = exponent_between(own.astype(np.float64), array.astype(np.float64))
        if exponent:
            found[name] = exponent
    return found


def exponent_between(source: Array, scaled: Array) -> int:
    """Return k if `scaled` is about `source` times 2^k, and 0 if it is near no such product."""
    finite = np.isfinite(source) & np.isfinite(scaled)
    a, b = source[finite], scaled[finite]
    power = float(a @ a)
    ratio = float(a @ b) / power if power else 0.0
    if not 0 < ratio < np.inf:
        return 0
    exponent = round(np.log2(ratio))
    error = a - np.ldexp(b, -exponent)
    return exponent if float(error @ error) <= NEAR**2 * power else 0


def _pairs(half: Runner, source: Runner, feeds: Feeds) -> Iterator[tuple[str, Array, Array | None]]:
    """Yield the float tensors of a model, each with the source's of the same name or None."""
    names = [name for name in tensor_names(half.model) if not name.endswith((EXACT, BITS, SCALED))]
    there = set(tensor_names(source.model))
    runs = IncrementalRun(half, feeds), IncrementalRun(source, feeds)
    for start in range(0, len(names), AT_ONCE):
        group = names[start : start + AT_ONCE]
        shared = [name for name in group if name in there]
        own: Mapping[str, Array] = dict(zip(shared, runs[1].compute(shared), strict=True))
        for name, array in zip(group, runs[0].compute(group), strict=True):
            if is_tensor(array) and array.dtype.kind == "f":
                yield name, array, own.get(name)
