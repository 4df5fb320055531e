"""The budget of a verification: which generated inputs, and how many noisy runs, a model gets.

By default they cost at most INFERENCES runs of the source, and SLACK more for models that run fast.
The cost is counted from the shapes of tensors, never measured in seconds: the inputs do not
depend on the machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from onnx import ModelProto, NodeProto

from ...ir.multiplications import layer_products
from ...ir.ops import DEFAULT_DOMAINS
from .input_generation import KINDS
from .onnx_graph import constant_tensors

INFERENCES = 40
"""Limit on the cost of a comparison, in runs of the source."""
SLACK = 3e8
"""What a comparison may cost beyond that, in the unit of `Work`: about a third of a second."""
COST_OF_INPUTS = 14
"""Cost of a set of inputs without noise, in runs of the source.

The source runs once to check that it does, and both models run for all tensors, which are measured
and compared.
"""
COST_OF_NOISE = 10
"""Cost of a noisy run, in runs of the source: double sums, and random numbers for most tensors."""
NODES_OF_NOISE = 12
"""Number of operators of the noisy model for one of the source."""
COST_OF_NODE = 4_000
"""Cost of starting an operator."""
PRODUCTS = 16
"""Number of products whose sum costs as much as moving one number."""
LARGE_BYTES = 32 << 20
"""Size of all tensors above which a thorough comparison has three kinds of inputs at one size."""
HUGE_BYTES = 256 << 20
"""Size of all tensors above which it has two kinds, and half the noisy runs."""
NOISY_RUNS = 4
"""Number of noisy runs of a set of inputs, of a model that is not too large."""

Shape = Sequence[int]


@dataclass(frozen=True, slots=True)
class RunBudget:
    """The kinds of inputs generated, the sizes of open dimensions, and noisy runs of each set."""

    kinds: tuple[str, ...]
    sizes: int
    noisy_runs: int
    thorough: bool = False

    def left_out(self, *, is_open: bool) -> tuple[str, ...]:
        """Return the inputs left out: kinds, and a second size if dimensions are open."""
        kinds = tuple(kind for kind in KINDS if kind not in self.kinds)
        return (*kinds, "a second size") if is_open and self.sizes == 1 else kinds


DEFAULT = (
    RunBudget(tuple(KINDS), 2, NOISY_RUNS),
    RunBudget(tuple(KINDS), 1, NOISY_RUNS),
    RunBudget(("normal", "wide", "equal"), 1, NOISY_RUNS),
    RunBudget(("normal", "equal"), 1, NOISY_RUNS // 2),
    RunBudget(("normal",), 1, NOISY_RUNS // 2),
)
"""Budgets from the most to the least: the first that is affordable is taken, or the last."""
THOROUGH = (
    RunBudget(tuple(KINDS), 2, NOISY_RUNS, thorough=True),
    RunBudget(("normal", "wide", "equal"), 1, NOISY_RUNS, thorough=True),
    RunBudget(("normal", "equal"), 1, NOISY_RUNS // 2, thorough=True),
)


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one run of a model, in the time that moving a number takes: about a nanosecond.

    `data` is for numbers that are moved and summed, `nodes` for starting the operators.
    """

    data: float
    nodes: float

    def cost(self, num_inputs: int, noisy_runs: int) -> float:
        """Return the cost of comparing another model on so many sets of inputs."""
        noise = COST_OF_NOISE * self.data + NODES_OF_NOISE * self.nodes
        return num_inputs * (COST_OF_INPUTS * (self.data + self.nodes) + noisy_runs * noise)

    @property
    def limit(self) -> float:
        """The cost that a comparison may have."""
        return INFERENCES * (self.data + self.nodes) + SLACK


def choose(
    work: Work, *, is_open: bool, overrides: bool = False, has_booleans: bool = False
) -> RunBudget:
    """Return the most that is affordable.

    `is_open` tells whether the model has open dimensions, `overrides` whether one more set is
    needed for overridable initializers. Where two sets are needed at least, for these or for both
    values of booleans, each of a large model gets a single noisy run.
    """
    for budget in DEFAULT[:-1]:
        sizes = budget.sizes if is_open else 1
        if work.cost(len(budget.kinds) * sizes + overrides, budget.noisy_runs) <= work.limit:
            return budget
    if overrides:
        return RunBudget(("normal",), 1, 1)
    return RunBudget(("normal", "equal"), 1, 1) if has_booleans else DEFAULT[-1]


def choose_thorough(size: int) -> RunBudget:
    """Return the budget of a thorough comparison of a model whose tensors take `size` bytes."""
    return THOROUGH[(size > LARGE_BYTES) + (size > HUGE_BYTES)]


def affordable_runs(work: Work, num_inputs: int) -> int:
    """Return how many noisy runs each of the user's own sets of inputs gets."""
    return NOISY_RUNS if work.cost(num_inputs, NOISY_RUNS) <= work.limit else NOISY_RUNS // 2


def work_of(model: ModelProto, shapes: Mapping[str, Shape]) -> Work:
    """Return the work of one run, for tensors of the given shapes. Bodies count as one operator."""
    constants = constant_tensors(model.graph)
    known: dict[str, Shape] = {name: tuple(tensor.dims) for name, tensor in constants.items()}
    known.update(shapes)
    moved = sum(prod(shape) for shape in shapes.values())
    summed = sum(_products(node, known) for node in model.graph.node)
    return Work(moved + summed / PRODUCTS, COST_OF_NODE * len(model.graph.node))


def _products(node: NodeProto, shapes: Mapping[str, Shape]) -> int:
    """Return the multiplications of a node, 0 if their number is not known."""
    if node.domain not in DEFAULT_DOMAINS or not node.output:
        return 0
    op_type = node.op_type.removeprefix("QLinear").removesuffix("Integer")
    # A quantized layer has the scale and the zero point of its data before its weight.
    step = 3 if node.op_type.startswith("QLinear") else 1
    operands = [shapes.get(name) for name in node.input[::step]]
    return layer_products(op_type, operands, shapes.get(node.output[0])) or 0
