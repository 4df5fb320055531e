"""The noise of each rounding of a model alone: an input of the model switches each on.

Errors of roundings are about independent, so that the noise of all is the sum of the noise of each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
from onnx import GraphProto, TensorProto, helper

from ...ir.tensor import Array
from ..verify.inputs import Feeds
from ..verify.runner import Runner
from .fidelity import Remembered, measure

SWITCH = "irc.switch."
"""What the names of switches begin with; their numbers follow."""


def add_switches(graph: GraphProto, count: int) -> None:
    """Let a graph have an input for each rounding, a boolean scalar."""
    for index in range(count):
        graph.input.append(helper.make_tensor_value_info(f"{SWITCH}{index}", TensorProto.BOOL, []))


class Switched:
    """A model with some of its `count` roundings, which runs as a Runner does."""

    def __init__(self, runner: Runner, on: Collection[int], count: int) -> None:
        self.runner = runner
        self.switches = {f"{SWITCH}{i}": np.array(i in on) for i in range(count)}

    def run(self, names: Sequence[str], feeds: Feeds) -> list[Any]:
        """Return the named tensors. Raises VerifyError if onnxruntime fails."""
        return self.runner.run(names, {**feeds, **self.switches})


def lone_noise(
    runner: Runner, count: int, names: Sequence[str], batches: Sequence[Feeds]
) -> Iterator[Array]:
    """Yield the noise of each rounding alone, as a share of the power of each result [results].

    Results are those of `names` that are floating-point. Raises VerifyError if it does not run.
    """
    exact = Remembered(Switched(runner, (), count), names)
    for index in range(count):
        found = measure(exact, Switched(runner, (index,), count), names, batches)
        ratios = np.array([one.sqnr for one in found])
        # A result that is not a number, or without a signal, is as wrong as can be.
        yield np.where(np.isnan(ratios), 1.0, np.minimum(10 ** (-ratios / 10), 1.0))
