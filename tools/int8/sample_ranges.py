"""The ranges of activations in samples."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, helper

from ...backends.quantizers.ranges import Activation, Activations, Range
from ...ir.types import F16, F32
from ...result import copied
from ..verify.inputs import Feeds
from ..verify.runner import Runner
from .free_names import numbered

ENDS = ("ReduceMin", "ReduceMax")
"""The operators that compute the ends of a range."""


def in_samples(
    model: ModelProto, known: Activations, samples: Sequence[Feeds], given: Mapping[str, Range]
) -> Activations:
    """Return the activations with their ranges in the samples, and with the given ranges.

    Values without elements, or with none but NaN, are missing. The samples run where all models do:
    in another process, with own operators and providers. Raises VerifyError if the model does not
    run.
    """
    wanted = {name for name, dtype in known.dtypes.items() if dtype in (F16, F32)}
    reduced, values, ends = _with_ends(model, wanted)
    runner = Runner(reduced, Path())
    lows, highs = np.full(len(values), np.nan), np.full(len(values), np.nan)
    for feeds in samples:
        found = [end.item() if end.size else np.nan for end in runner.run(ends, feeds)]
        lows, highs = np.fmin(lows, found[::2]), np.fmax(highs, found[1::2])
    ranges = {
        name: (low, high)
        for name, low, high in zip(values, lows, highs, strict=True)
        if not np.isnan(low)
    }
    pairs = {**ranges, **given}.items()
    measured = {name: Activation(np.asarray(low), np.asarray(high)) for name, (low, high) in pairs}
    missing = tuple(name for name in values if name not in measured)
    return replace(known, known=measured, missing=missing)


def _with_ends(
    model: ModelProto, wanted: Collection[str]
) -> tuple[ModelProto, list[str], list[str]]:
    """Return a copy that also computes the ends of wanted values, their names, and the ends' names.

    Each value is reduced behind the node that computes it, so that the runtime can free it.
    """
    model = copied(model)
    graph = model.graph
    taken = {name for node in graph.node for name in (*node.input, *node.output, node.name)}
    nodes: list[NodeProto] = []
    values: list[str] = []
    ends: list[str] = []

    def reduce(names: Collection[str]) -> None:
        for name in (each for each in names if each in wanted):
            values.append(name)
            for op in ENDS:
                ends.append(numbered(f"{name}_{op}", taken))
                taken.add(ends[-1])
                nodes.append(helper.make_node(op, [name], [ends[-1]], ends[-1]))

    reduce([info.name for info in graph.input])
    for node in graph.node:
        nodes.append(node)
        reduce(node.output)
    del graph.node[:]
    graph.node.extend(nodes)
    return model, values, ends
