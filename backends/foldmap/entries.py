"""The types of a fold map's JSON document.

`schema.json` describes the same document for readers in other languages; a test holds the two
equal. This module is imported at run time only to check a document that is read (`loading`):
msgspec is not needed to build one.
"""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from msgspec import Meta

ModelDigest = Annotated[str, Meta(pattern="^xxh128:[0-9a-f]{32}$")]
"""Digest of a model, a file, or (in an entry of a layer) a tensor."""
TensorKey = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
"""Digest of a tensor, as `restore` refers to it."""
SourceId = Annotated[str, Meta(pattern="^A[0-9]+$")]
LayerId = Annotated[str, Meta(pattern="^L[0-9]+$")]
Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]

ElementType = Literal[
    "float16", "bfloat16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64"
]
AffineKind = Literal["batch_norm", "mul", "add", "sub", "div", "neg", "sum", "mean"]
ParameterName = Literal["gamma", "beta", "mean", "var", "scale", "shift"]
EditName = Literal["rescale_out", "rescale_in", "absorbed", "received", "correction"]
FoldDirection = Literal["backward", "forward"]
StatusName = Literal["folded", "partial", "merged", "kept", "dead"]
LayerOperator = Literal[
    "Conv",
    "ConvTranspose",
    "Gemm",
    "MatMul",
    "InstanceNormalization",
    "GroupNormalization",
    "LayerNormalization",
    "RMSNormalization",
]
ReasonCode = Literal[
    "activation_between",
    "axis_mismatch",
    "bias_slot",
    "channel_mismatch",
    "constant_growth",
    "dtype_mismatch",
    "dynamic_bias",
    "dynamic_weight",
    "fused_unit",
    "graph_output",
    "kept_by_user",
    "multi_consumer",
    "negative_scale",
    "no_foldable_neighbour",
    "non_constant_params",
    "non_positive_variance",
    "nonfinite",
    "nonzero_padding",
    "not_attempted",
    "overflow",
    "overridable_initializer",
    "per_element",
    "quantized_between",
    "quantized_weight",
    "subgraph_boundary",
    "training_mode",
    "underflow",
    "unknown_extent",
    "unknown_rank",
    "unsupported_attr",
    "unsupported_op",
    "zero_scale",
]


class ArrayEntry(TypedDict):
    """An array of the store.

    `ref` names its member of the store. Without `offset` the array is the whole member. With
    `offset`, several arrays share the member, which is named like their `dtype`, and `offset`
    counts the elements before this one.
    """

    dtype: ElementType
    shape: list[Natural]
    ref: str
    offset: NotRequired[Natural]


class ScopeStep(TypedDict, total=False):
    """One step of the path from the main graph: `node` and `attribute`, or `function` alone."""

    node: str
    attribute: str
    function: str


class ModelEntry(TypedDict):
    """A model that the map belongs to."""

    digest: ModelDigest
    ir_version: int
    opset: dict[str, int]


class ProducerEntry(TypedDict):
    """The program that wrote the map, and the passes that it ran."""

    name: str
    version: str
    passes: list[str]


class SourceNode(TypedDict):
    """The node of an affine in the source model."""

    name: str
    op_type: str
    index: Natural


class ParameterEntry(TypedDict):
    """A parameter of an affine; `value` is None if it is computed at run time."""

    name: str
    value: ArrayEntry | None


class SourceEntry(TypedDict):
    """An affine of the source model, and its status after the passes."""

    id: SourceId
    kind: AffineKind
    scope: list[ScopeStep]
    module: NotRequired[str | None]
    node: SourceNode
    input: str
    output: str
    axis: int | None
    channels: int | None
    epsilon: float | None
    params: dict[ParameterName, ParameterEntry]
    status: StatusName
    reason: ReasonCode | None
    detail: str
    notes: list[str]
    layers: list[LayerId]


class LayerNode(TypedDict):
    """The node of a layer in the folded model."""

    name: Annotated[str, Meta(min_length=1)]
    op_type: LayerOperator
    original_name: str


class WeightEntry(TypedDict):
    """The weight of a layer."""

    name: str
    original_name: str
    out_axis: int
    group: Positive
    digest: ModelDigest | None


class BiasEntry(TypedDict):
    """The bias of a layer; `created` if the source had none."""

    name: str
    original_name: str | None
    created: bool
    digest: ModelDigest | None


class OutputEntry(TypedDict):
    """The result of a layer after all folds, and the names that are gone."""

    name: str
    original_names: list[str]


class RemainderEntry(TypedDict):
    """The Add that a shift needs after a layer without a bias."""

    op_type: Literal["Add"]
    output: str


class FoldEntry(TypedDict):
    """The share of one affine in a layer: y = x * scale + shift, per channel of the layer."""

    source: SourceId
    direction: FoldDirection
    axis: int | None
    crossed: list[str]
    scale: ArrayEntry
    shift: ArrayEntry


class StoredIntegersEntry(TypedDict):
    """The operands of the DequantizeLinear of a layer's weight or bias, by name."""

    integers: str
    scale: str
    zero_point: str | None


class QuantizedEntry(TypedDict):
    """The parts of a layer that are dequantized and took affines.

    Integers of `reflected` channels of the result were reflected about the zero point; integers of
    `zeroed` channels became the zero point. The bias is off by `bias_error` at most.
    """

    weight: StoredIntegersEntry | None
    bias: StoredIntegersEntry | None
    reflected: Natural
    zeroed: Natural
    bias_error: float


class BranchNode(TypedDict):
    """The layer of a branch in the source model; both are empty for the value itself."""

    name: str
    op_type: str


class BranchEntry(TypedDict):
    """A branch of a sum that became a part of a layer, with its affines.

    `mean` and `std` are the statistics of its value in the sum, as BatchNormalization kept them.
    """

    node: BranchNode
    module: str | None
    weight: str | None
    bias: str | None
    output: str
    folds: list[FoldEntry]
    mean: ArrayEntry | None
    std: ArrayEntry | None


class SumResultEntry(TypedDict):
    """Mean and bound of the deviation of the result of a layer of the folded model.

    `source` is the BatchNormalization of the first branch.
    """

    axis: Natural
    mean: ArrayEntry
    bound: ArrayEntry
    source: SourceId


class SumEntry(TypedDict):
    """The sum of the branches in the source model: its mean, and a bound of its deviation.

    `result` has those of the layer's result, which an equalization may have scaled.
    """

    output: str
    origin: Literal["bound"]
    mean: ArrayEntry
    bound: ArrayEntry
    result: NotRequired[SumResultEntry]


class LayerEntry(TypedDict):
    """A layer of the folded model into which affines were folded."""

    id: LayerId
    scope: list[ScopeStep]
    module: NotRequired[str | None]
    node: LayerNode
    weight: WeightEntry
    bias: BiasEntry | None
    input: str
    output: OutputEntry
    remainder: RemainderEntry | None
    quantized: NotRequired[QuantizedEntry | None]
    folds: list[FoldEntry]
    branches: NotRequired[list[BranchEntry]]
    sum: NotRequired[SumEntry | None]


class ExponentEntry(TypedDict):
    """A tensor of the folded model that is the source's times 2^exponent."""

    tensor: str
    exponent: int


class StatisticEntry(TypedDict):
    """Mean and deviation per channel of a tensor of the folded model, from a BatchNormalization."""

    tensor: str
    scope: list[ScopeStep]
    module: NotRequired[str | None]
    axis: Natural
    mean: ArrayEntry
    std: ArrayEntry
    gamma: ArrayEntry
    source: SourceId


HistoryEntry = TypedDict(
    "HistoryEntry", {"pass": str, "layers": dict[LayerId, dict[EditName, ArrayEntry]]}
)
"""A pass that changed weights without folding an affine, and the edits of each layer."""


class RecipeEntry(TypedDict, total=False):
    """A recipe for a tensor of the source (see `restore`).

    It is `data`, or `base`, `factor` and `residual`.
    """

    data: ArrayEntry
    base: TensorKey
    factor: ArrayEntry
    residual: ArrayEntry
    exceptions: ArrayEntry
    values: ArrayEntry


class RestoreEntry(TypedDict):
    """The source model without elements, and recipes for tensors that the folded model lacks."""

    skeleton: ArrayEntry
    tensors: dict[TensorKey, RecipeEntry]


class StoreEntry(TypedDict):
    """The place of the arrays: a file with its digest, or the document itself."""

    kind: Literal["npz", "inline"]
    path: NotRequired[str]
    digest: NotRequired[ModelDigest]
    arrays: NotRequired[dict[str, str]]


class Document(TypedDict):
    """A fold map, without its `tensor_store`."""

    format: Literal["irc.fold_map"]
    version: Annotated[str, Meta(pattern="^[123]\\.[0-9]+$")]
    producer: ProducerEntry
    source_model: ModelEntry | None
    folded_model: ModelEntry
    sources: list[SourceEntry]
    layers: list[LayerEntry]
    statistics: list[StatisticEntry]
    history: list[HistoryEntry]
    exponents: NotRequired[list[ExponentEntry]]
    restore: RestoreEntry | None


class StoredDocument(Document):
    """A fold map as it is written to a file."""

    tensor_store: StoreEntry
