"""What the passes leave behind for the fold map: the affines of the source, and what became of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..support.record import record

if TYPE_CHECKING:
    from .graph import Node, Origins, Value
    from .statistics import StatisticRef
    from .tensor import Array, Tensor

Scope = tuple[tuple[str, str], ...]
"""Path from the main graph: (node name, attribute) for a region, ("function", "domain::name:overload") for a body."""


@record
class Param:
    """One constant parameter of an affine: the name of the value that feeds it, and its elements if it is constant."""

    name: str
    tensor: Tensor | None


@record
class SourceAffine:
    """One affine of the source model, as it stood there.

    `kind` is batch_norm, mul, add, sub, div, neg, sum or mean, `index` the position among the nodes of its graph, and
    `axis` the channel axis counted from the left, None for a uniform affine.
    """

    origin: int
    kind: str
    scope: Scope
    name: str
    op_type: str
    index: int
    input: str
    output: str
    axis: int | None
    channels: int | None
    epsilon: float | None
    params: dict[str, Param]


@record
class FoldedAffine:
    """One affine's share in a layer: y = x * scale + shift per channel in float64, of shape [C] or [].

    `direction` is backward for an affine of the layer's result, forward for one of its data; `axis` is the channel axis
    there, and `crossed` names the operators in between.
    """

    origin: int
    direction: str
    axis: int | None
    scale: Array
    shift: Array
    crossed: tuple[str, ...] = ()


@dataclass(slots=True)
class Layer:
    """A convolution-like node that absorbed affines, and the names that it had before.

    `axis` is the channel axis of its result, `weight_axis` that of output channels in the weight, input `weight_index`.
    `factor`, float64 and broadcast against the weight, is what the weight was multiplied by; None is nothing.
    """

    node: Node
    original_name: str
    axis: int
    weight_index: int
    weight_axis: int
    weight_name: str
    bias_name: str | None
    output_names: list[str]
    folds: list[FoldedAffine] = field(default_factory=list)
    shift_add: Value | None = None
    factor: Array | None = None


@record
class LayerEdits:
    """One application of a pass that changes numbers and folds no affine of the source.

    `name` is the pass as the command line takes it. `layers` has for every layer that it touched arrays in float64, of
    shape [C] or [], by what they are: `rescale_out` is what the result was multiplied by, `rescale_in` the data,
    `absorbed` is what was taken off the result, `received` off the data, and `correction` what the bias lost.
    """

    name: str
    layers: dict[Node, dict[str, Array]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an affine stays: a reason code of the fold map, and a sentence that names what stands in the way.

    `notes` has a line for every way that was tried, with the operators that the affine would have passed.
    """

    code: str
    detail: str
    notes: tuple[str, ...] = ()


class Provenance:
    """The record of one module.

    `sources` is None until `collect_sources` has run; `layers` is keyed by the absorbing node, `refusals` by the
    affine's origin; `partial` has the origins of affines of which the shift or the scale stays, `merged` those of what
    a rule consumed other than by folding, with the rule's name. `statistics` has what BatchNormalization
    knows of values: whoever changes what a value holds changes its entry. `history` has, in order, what
    passes did to layers without folding an affine.
    """

    def __init__(self) -> None:
        self.sources: dict[int, SourceAffine] | None = None
        self.layers: dict[Node, Layer] = {}
        self.refusals: dict[int, Refusal] = {}
        self.partial: set[int] = set()
        self.merged: list[tuple[Origins, str]] = []
        self.passes: list[str] = []
        self.statistics: dict[Value, StatisticRef] = {}
        self.history: list[LayerEdits] = []

    def refuse(self, origins: Origins, refusal: Refusal) -> None:
        """Record why those `origins` stay that are affines of the source. O(origins)."""
        from .graph import flatten_origins

        sources = self.sources or {}
        self.refusals.update((origin, refusal) for origin in flatten_origins(origins) if origin in sources)

    def forget(self, value: Value) -> None:
        """Nothing is known any more of what `value` holds."""
        self.statistics.pop(value, None)

    def merged_origins(self) -> dict[int, str]:
        """The rule that first consumed each origin other than by folding it."""
        from .graph import flatten_origins

        seen: set[int] = set()
        rules: dict[int, str] = {}
        for origins, rule in self.merged:
            for origin in flatten_origins(origins, seen):
                rules.setdefault(origin, rule)
        return rules

    def folded_origins(self) -> set[int]:
        """Origins of the affines that were folded into some layer."""
        return {fold.origin for layer in self.layers.values() for fold in layer.folds}


@dataclass(slots=True)
class DebugCounter:
    """How often a rule was applied to a module, and how often it may be: a way to find the one that does harm.

    `last` names what was applied last, and where.
    """

    limit: int | None = None
    count: int = 0
    last: tuple[str, str] = ("", "")

    @property
    def exhausted(self) -> bool:
        """Whether nothing may be applied any more."""
        return self.limit is not None and self.count >= self.limit

    def note(self, rule: str, where: str) -> None:
        """A rule was applied."""
        self.count += 1
        self.last = (rule, where)
