"""Normalizations and Dropout."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, sqrt

import numpy as np

from ...support.errors import ModelError
from ...support.statement import states
from ..graph import Node, Value, payload_of, producer_of
from ..provenance import Refusal, Refused
from ..tensor import Array, Tensor, round_to, to_float64
from ..types import F64, TensorType, shape_of
from .bounds import extents_product, operand_bounds
from .channel_map import ChannelAxis, ChannelMap, same_channels
from .evaluation import NotEvaluable, identity, operands
from .inference import Types, input_dtype, input_shape, integer_of, same
from .interval import ZERO, Interval, added, inverted, multiplied, negated
from .row import Constants, Inputs, NodeView, OpInfo, Trait, complete_by_types, integer, real

DEFAULT_EPSILON = float(np.float32(1e-5))
"""The epsilon of a BatchNormalization that gives none: a float32, as all attributes are."""


OWN_TYPES = "own types"
"""The form of a BatchNormalization whose parameters may have other types than the data."""


@complete_by_types
def infer_batch_norm_to_affine(node: Node, constants: Constants) -> Types:
    """Infer scale and shift, f64[C]."""
    shape = input_shape(node)
    shape = None if shape is None else shape[:1]
    return (TensorType(F64, shape), TensorType(F64, shape))


def first_of_channel(array: Array) -> Array | None:
    """Return the vector [C] that an array [C, ...] repeats all over each channel, else None."""
    if array.ndim < 2:
        return array
    flat = array.reshape(array.shape[0], -1)
    return (
        np.ascontiguousarray(flat[:, 0]) if flat.shape[1] and (flat == flat[:, :1]).all() else None
    )


def evaluate_batch_norm_to_affine(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Compute scale = gamma / sqrt(var + epsilon) and shift = beta - mean * scale in float64."""
    vectors = [first_of_channel(array) for array in operands(inputs)]
    if any(vector is None for vector in vectors):
        raise NotEvaluable("parameters per element")
    epsilon = node.attrs.get("epsilon", DEFAULT_EPSILON)
    assert isinstance(epsilon, float)
    gamma, beta, mean, var = [to_float64(vector) for vector in vectors if vector is not None]
    return scale_and_shift(gamma, beta, mean, var, epsilon)


def scale_and_shift(
    gamma: Array, beta: Array, mean: Array, var: Array, epsilon: float | Array
) -> tuple[Array, Array]:
    """Return scale and shift of a BatchNormalization with these parameters, in float64.

    All have one shape.
    """
    with np.errstate(all="ignore"):
        scale = gamma / np.sqrt(var + epsilon)
        return scale, beta - mean * scale


def evaluate_normalization(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Compute gamma (x - mean) / sqrt(var + epsilon) + beta in float64, and round once.

    Mean and variance are operands, or those of each channel of each sample.
    """
    dtype, epsilon = input_dtype(node), node.attrs.get("epsilon", DEFAULT_EPSILON)
    given = operands(inputs)
    if any(array.dtype.kind == "c" for array in given):
        raise NotEvaluable("complex numbers")
    data, *vectors = [to_float64(array) for array in given]
    if dtype is None or data.ndim < 2 or not data.size:
        raise NotEvaluable("data without channels or elements")
    if any(vector.shape != data.shape[1:2] for vector in vectors):
        raise NotEvaluable("parameters that do not fit the channels")
    assert isinstance(epsilon, float)
    over, view = tuple(range(2, data.ndim)), (-1, *(1,) * (data.ndim - 2))
    gamma, beta, *known = [vector.reshape(view) for vector in vectors]
    mean, var = known or (data.mean(over, keepdims=True), data.var(over, keepdims=True))
    with np.errstate(all="ignore"):
        result = (data - mean) * (gamma / np.sqrt(var + epsilon)) + beta
    return (round_to(result, dtype),)


def _payload(value: Value) -> Tensor | None:
    payload = payload_of(value)
    return payload if isinstance(payload, Tensor) else None


def _is_per_channel(value: Value | None) -> bool:
    """Return whether a parameter is a vector, or a constant that repeats along the other axes.

    Channels are the first axis.
    """
    shape = None if value is None else shape_of(value.type)
    if value is None or not shape:
        return False
    if len(shape) == 1:
        return True
    payload = _payload(value)
    try:
        return payload is not None and first_of_channel(payload.numpy()) is not None
    except (ValueError, OSError, ModelError):  # a payload that cannot be read
        return False


def is_inference_batch_norm(node: NodeView) -> Refusal | None:
    """Require fixed statistics, one value per channel.

    Training mode is encoded in four ways: opsets 1 and 6 have `is_test`, by default 0; opsets 7 to
    13 train if more than the first output is declared; from 14 on there is `training_mode`.
    `spatial=0` (opsets 1 to 8) has parameters per element; if they are per channel all the same,
    the attribute is spurious.
    """
    declared = sum(map(bool, node.outputs))
    if node.opset < 7 and not node.attrs.get("is_test", 0):
        return Refusal("training_mode", "is_test is 0, so the batch's own statistics are used")
    if node.opset < 14 and declared > 1:
        return Refusal(
            "training_mode",
            f"{declared} outputs are declared, so the batch's own statistics are used",
        )
    if node.attrs.get("training_mode", 0):
        return Refusal("training_mode", "training_mode is 1")
    if declared > 1:
        return Refusal("training_mode", f"{declared} outputs are declared")
    if node.opset < 9 and node.attrs.get("spatial", 1) == 0:
        if not all(_is_per_channel(value) for value in node.inputs[1:5]):
            return Refusal(
                "per_element", "spatial is 0: the parameters are per element, not per channel"
            )
    return None


def is_inference_dropout(node: NodeView) -> Refusal | None:
    """Require that nothing is dropped: is_test before opset 7, no training_mode from 12 on.

    Between them Dropout never drops. A ratio of 0 drops nothing either: it multiplies by 1.
    """
    training = Refusal("training_mode", "the node drops at run time")
    if node.opset < 7:
        return (
            None if node.attrs.get("is_test", 0) or node.attrs.get("ratio", 0.5) == 0 else training
        )
    ratio, mode = (*node.inputs[1:3], None, None)[:2]
    # Opsets 7 to 11 have inference only; from 12 on training is an operand, absent for inference.
    if node.opset < 12 or mode is None or _is_zero(mode) or _is_zero(ratio):
        return None
    return training


def _is_zero(value: Value | None) -> bool:
    """Return whether a value is a constant of zeros, or of false."""
    payload = None if value is None else _payload(value)
    try:
        return payload is not None and not payload.numpy().any()
    except (ValueError, OSError, ModelError):  # a payload that cannot be read
        return False


NORMALIZATIONS = ("nn.group_norm", "nn.instance_norm", "nn.layer_norm", "nn.rms_norm")
"""Operators that normalize before scale and shift.

Results then have mean 0 and deviation 1, or squares with the mean 1.
"""


def normalized_count(node: Node) -> float:
    """Return how many elements a normalization takes mean and deviation of, else infinity."""
    shape = input_shape(node)
    if shape is None:
        return inf
    if node.op in ("nn.instance_norm", "nn.group_norm"):
        groups = integer_of(node, "num_groups", 1)
        channels = (
            extents_product(node, (1,)) / groups
            if node.op == "nn.group_norm" and groups > 0
            else 1.0
        )
        return channels * extents_product(node, range(2, len(shape)))
    axis = integer_of(node, "axis", -1)
    return extents_product(node, range(axis % max(len(shape), 1), len(shape)))


def normalized_parameters(node: Node, x: Sequence[Interval]) -> tuple[Interval, Interval]:
    """Return the intervals of scale and shift of a normalization, broadcast against its data."""
    scale, shape = operand_bounds(node, x, "scale"), input_shape(node)
    shift = ZERO if node.op == "nn.rms_norm" else operand_bounds(node, x, "bias", ZERO)
    if node.op in ("nn.layer_norm", "nn.rms_norm"):
        return scale, shift
    if shape is None or len(shape) < 2:
        return scale.whole, shift.whole
    if any(each.low.size not in (1, shape[1]) for each in (scale, shift)):
        return scale.whole, shift.whole
    view = (-1, *(1,) * (len(shape) - 2))
    return tuple([each.map(lambda v: v.reshape(view)) for each in (scale, shift)])  # type: ignore[return-value]


def _normalized(node: Node, x: Sequence[Interval], constants: Constants) -> list[Interval]:
    """Bound a normalization: no number of n is above sqrt(n - 1), or sqrt(n) without a mean.

    The first holds for mean 0 and deviation 1, the second if the squares have the mean 1.
    """
    count = normalized_count(node) - (node.op != "nn.rms_norm")
    scale, shift = normalized_parameters(node, x)
    most = scale.magnitude * sqrt(max(count, 0))
    most = np.where(scale.magnitude == 0, 0.0, most)
    return [added(Interval(-most, most), shift)]


def _batch_normalized(node: Node, x: Sequence[Interval], constants: Constants) -> list[Interval]:
    """Bound BatchNormalization: gamma (x - mean) / sqrt(var + epsilon) + beta, per channel."""
    shape, epsilon = input_shape(node), node.attrs.get("epsilon", DEFAULT_EPSILON)
    assert isinstance(epsilon, float)
    view = (-1, *(1,) * (len(shape) - 2)) if shape is not None and len(shape) > 1 else None
    gamma, beta, mean, var = [
        each.whole if view is None else each.map(lambda v: v.reshape(view)) for each in x[1:5]
    ]
    wide = var.map(lambda v: np.sqrt(np.maximum(v + epsilon, 0)))
    return [added(multiplied(multiplied(added(x[0], negated(mean)), inverted(wide)), gamma), beta)]


_LAYER = frozenset({Trait.ABSORBS, Trait.STEEP})
# STEEP: it divides by a deviation that no model keeps. Some channels of some samples are far beyond
# the others.


@states("s * dropout(x) + t == dropout(s * x + t)")
def dropout_channels(node: Node, at: ChannelAxis, constants: Constants) -> ChannelMap:
    """Dropout in inference: op(x) = x; the mask, if it is read, belongs to the data."""
    if at.of_data and any(value.users for value in node.outputs[1:]):
        raise Refused("unsupported_op", f"{node.description}: its mask is read")
    return same_channels(node, at, constants)


ROWS = (
    OpInfo(
        "nn.batch_norm",
        ("data", "scale", "bias", "input_mean", "input_var"),
        same,
        evaluate_normalization,
        onnx="BatchNormalization",
        when=is_inference_batch_norm,
        forms={OWN_TYPES: 15},
        attrs={"epsilon": real, "is_test": integer, "spatial": integer, "training_mode": integer},
        bounds=_batch_normalized,
    ),
    OpInfo(
        "nn.batch_norm_to_affine",
        ("gamma", "beta", "mean", "var"),
        infer_batch_norm_to_affine,
        evaluate_batch_norm_to_affine,
        attrs={"epsilon": real},
        results=("scale", "shift"),
        traits=frozenset({Trait.ATOMIC}),
    ),
    OpInfo(
        "nn.dropout",
        ("data", "ratio?", "training_mode?"),
        same,
        identity,
        onnx="Dropout",
        when=is_inference_dropout,
        forms={"mask": 12},
        attrs={"is_test": integer},
        results=("output", "mask?"),
        traits=frozenset({Trait.ELEMENTWISE, Trait.MOVES, Trait.SEVERAL_AXES}),
        channels=dropout_channels,
    ),
    OpInfo(
        "nn.instance_norm",
        ("data", "scale", "bias"),
        same,
        evaluate_normalization,
        onnx="InstanceNormalization",
        attrs={"epsilon": real},
        traits=_LAYER,
        bounds=_normalized,
    ),
    OpInfo(
        "nn.group_norm",
        ("data", "scale", "bias"),
        same,
        onnx="GroupNormalization",
        since=18,
        attrs={"epsilon": real, "num_groups": integer, "stash_type": integer},
        traits=_LAYER,
        bounds=_normalized,
    ),
    OpInfo(
        "nn.layer_norm",
        ("data", "scale", "bias?"),
        same,
        onnx="LayerNormalization",
        since=17,
        attrs={"axis": integer, "epsilon": real, "stash_type": integer},
        traits=_LAYER,
        bounds=_normalized,
    ),
    OpInfo(
        "nn.rms_norm",
        ("data", "scale"),
        same,
        onnx="RMSNormalization",
        since=23,
        attrs={"axis": integer, "epsilon": real, "stash_type": integer},
        traits=_LAYER,
        bounds=_normalized,
    ),
)


def batch_norm_of(add: Node) -> tuple[Value, Node, Node] | None:
    """Return the data, `multiply` and `nn.batch_norm_to_affine` of which `add` is the result.

    SimplifyInference makes these three of a BatchNormalization. Returns None for any other `add`.
    """
    if add.op != "add" or len(add.inputs) != 2:
        return None
    product, shift = add["lhs"], add["rhs"]
    affine = producer_of(shift, "nn.batch_norm_to_affine")
    multiply = None if affine is None else producer_of(product, "multiply")
    # The first result is the scale, the second the shift.
    if affine is None or multiply is None or shift.index != 1 or product.sole_user() is not add:
        return None
    if multiply["rhs"] is not affine.output:
        return None
    if add.attrs.get("axis") != 1 or multiply.attrs.get("axis") != 1:
        return None
    return multiply["lhs"], multiply, affine
