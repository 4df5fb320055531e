"""The records of the affines of a source model, from which the fold map is written."""

from __future__ import annotations

import numpy as np
from msgspec import Struct, field

from ....ir.graph import Node, Value
from ....ir.module import Module
from ....ir.provenance import SideTable
from ....ir.record import Record
from ....ir.tensor import Array, Tensor

Scope = tuple[tuple[str, str], ...]
"""Path from the main graph to a region or to the body of a function.

Steps are (node name, attribute) for a region, ("function", "domain::name:overload") for a body.
"""


class Param(Record):
    """A constant parameter of an affine: the value that feeds it, and its elements if constant."""

    name: str
    tensor: Tensor | None


class SourceAffine(Record):
    """One affine of the source model, as it stood there.

    `kind` is batch_norm, mul, add, sub, div, neg, sum or mean, `index` the position among the nodes
    of its graph, and `axis` the channel axis counted from the left, None for a uniform affine.
    `imported` is the node that the frontend read.
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
    imported: object = None


Candidate = tuple[Node, Scope, int, tuple[str, ...]]
"""An operator of the source with its scope, its position there, and the names of its operands."""


class FoldedAffine(Record):
    """One affine's share in a layer: y = x * scale + shift, float64 of shape [C] or [].

    `direction` is backward for an affine of the layer's result, forward for one of its data; `axis`
    is the channel axis there, and `crossed` names the operators in between.
    """

    origin: int
    direction: str
    axis: int | None
    scale: Array
    shift: Array
    crossed: tuple[str, ...] = ()


class QuantizedParts(Struct, eq=False):
    """The DequantizeLinear nodes of weight and bias that took affines.

    `signs` are the signs of all factors of result channels, [C], and `data_signs` of factors of
    data channels, [C] or []. The bias is off by `bias_error` at most, because its integers
    were rounded.
    """

    weight: Node | None = None
    bias: Node | None = None
    signs: Array = field(default_factory=lambda: np.ones(()))
    data_signs: Array = field(default_factory=lambda: np.ones(()))
    bias_error: float = 0.0

    def channels(self, group: int) -> tuple[int, int]:
        """Return how many channels have reflected integers, and how many only zero points."""
        result, data = (
            each.reshape(group if each.size > 1 else 1, -1)
            for each in (self.signs, self.data_signs)
        )
        signs = result[:, :, None] * data[:, None, :]
        return int((signs < 0).any(axis=2).sum()), int((signs == 0).all(axis=2).sum())


class Branch(Record):
    """A branch of the source that became a part of a layer, under the names that it had there.

    `name` and `op_type` are its layer's, `weight` and `bias` the names of the operands of that; all
    are empty for the value itself. `output` is the last value of the branch, and `folds` are its
    affines.
    """

    name: str
    op_type: str
    weight: str
    bias: str
    output: str
    folds: list[FoldedAffine]
    imported: object = None


class Layer(Struct, eq=False):
    """A convolution-like node that absorbed affines, and the names that it had before.

    `axis` is the channel axis of its result. `weight_axis` is the axis of output channels in the
    weight, which is input `weight_index`. `factor`, float64 and broadcast against the weight, is
    the factor of the weight, None for no factor. `imported` is the node that the frontend read.
    `branches` are those that it is the sum of; `folds` then came after the sum, which was the value
    `sum_name` of the source, if that is not empty. `border` is the word of FoldScaleAxis by which a
    shift passed the layer's zero padding, if one did.
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
    imported: object = None
    quantized: QuantizedParts | None = None
    branches: list[Branch] = field(default_factory=list)
    sum_name: str = ""
    border: str = ""

    @property
    def all_folds(self) -> list[FoldedAffine]:
        """The affines in the layer, first of its branches."""
        return [*[fold for branch in self.branches for fold in branch.folds], *self.folds]


class LayerEdits(Record):
    """One application of a pass that changes numbers and folds no affine of the source.

    `name` is the pass as the command line takes it. `layers` has arrays in float64, of shape [C] or
    [], for every layer that it changed: `rescale_out` is the factor of the result and `rescale_in`
    the factor of the data; `absorbed` was subtracted from the result, `received` from the data, and
    `correction` from the bias.
    """

    name: str
    layers: dict[Node, dict[str, Array]] = field(default_factory=dict)


class FoldRecords(SideTable):
    """The records of one module.

    `sources` has the affines of the source by origin, None until `collect_sources` has run, and
    `candidates` the operators that would be affines if an operand were constant. `layers` is keyed
    by the absorbing node. `folded` has the origins of affines that went into some layer, and
    `partial` of those of which the shift or the scale stays. `history` has, in order, the edits of
    passes that change numbers and fold no affine.
    """

    def __init__(self) -> None:
        self.sources: dict[int, SourceAffine] | None = None
        self.candidates: list[Candidate] = []
        self.layers: dict[Node, Layer] = {}
        self.folded: set[int] = set()
        self.partial: set[int] = set()
        self.history: list[LayerEdits] = []
        self.exponents: dict[Value, int] = {}
        """Values that are those of the source times 2^exponent."""
        self.keeps_source = True
        """Whether the fold map shall give the source back."""

    def value_replaced(self, old: Value, new: Value) -> None:
        if old in self.exponents:
            self.exponents[new] = self.exponents[old]

    def folded_origins(self) -> set[int]:
        """Return the origins of the affines that were folded into some layer."""
        return {fold.origin for layer in self.layers.values() for fold in layer.all_folds}

    def node_erased(self, node: Node, heir: Node | None) -> None:
        layer = self.layers.pop(node, None)
        if layer is not None and heir is not None and heir not in self.layers:
            layer.node = heir
            self.layers[heir] = layer
            heir.name = heir.name or node.name or node.output.name  # the fold map names layers


def fold_records(module: Module) -> FoldRecords:
    """Return the records of `module`."""
    return module.provenance.table(FoldRecords)
