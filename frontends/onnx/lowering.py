"""Which ONNX operators become in-house ones, and under which conditions.

A node becomes an in-house operator only where that operator means exactly what the node means in its opset; anything
else stays foreign. No input, output or attribute changes on the way, so that the backend can write the node as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...ir.attributes import Attribute, AttributeRef
from ...ir.evaluate import first_of_channel
from ...ir.graph import Value
from ...ir.ops import DEFAULT_DOMAINS, MANY, OPS, odd_attribute
from ...ir.provenance import Refusal
from ...ir.tensor import Tensor
from ...ir.types import shape_of
from ...support.errors import ModelError
from ...support.record import record


@dataclass(slots=True)
class NodeView:
    """What a condition may ask about a node that is being imported."""

    opset: int
    attrs: Mapping[str, Attribute]
    inputs: tuple[Value | None, ...]
    outputs: tuple[str, ...]


Condition = Callable[[NodeView], Refusal | None]


def always(node: NodeView) -> Refusal | None:
    """The operator means the same in every opset."""
    return None


def no_legacy_axis(node: NodeView) -> Refusal | None:
    """`axis` has no meaning but in the limited broadcast of opsets below 7, where `broadcast=1` switches it on."""
    if "axis" not in node.attrs or (node.opset < 7 and node.attrs.get("broadcast") == 1):
        return None
    return Refusal("unsupported_attr", "axis without limited broadcast")


def numpy_broadcast(node: NodeView) -> Refusal | None:
    """Before opset 7 operands were broadcast as attributes told."""
    return None if node.opset >= 7 else Refusal("unsupported_attr", "limited broadcast")


def text_cast(node: NodeView) -> Refusal | None:
    """Before opset 6 `to` was a name."""
    return None if isinstance(node.attrs.get("to"), int) else Refusal("unsupported_attr", "the target type is a name")


def inference_dropout(node: NodeView) -> Refusal | None:
    """Dropout does nothing: is_test below opset 7, always from 7 to 11, training_mode absent or false from 12 on."""
    training = Refusal("training_mode", "the node drops at run time")
    if node.opset < 7:
        return None if node.attrs.get("is_test", 0) else training
    mode = node.inputs[2] if len(node.inputs) > 2 else None
    if node.opset < 12 or mode is None:
        return None
    payload = _payload(mode)
    try:
        return training if payload is None or payload.numpy().any() else None
    except (ValueError, OSError, ModelError):  # a payload that cannot be read
        return training


def _payload(value: Value) -> Tensor | None:
    if value.node is None or value.node.op != "constant":
        return None
    payload = value.node.attrs.get("value")
    return payload if isinstance(payload, Tensor) else None


def _is_per_channel(value: Value | None) -> bool:
    """Whether a parameter is a vector, or a constant that is the same all over each channel, its first axis."""
    shape = None if value is None else shape_of(value.type)
    if value is None or shape is None or not shape:
        return False
    if len(shape) == 1:
        return True
    payload = _payload(value)
    try:
        return payload is not None and first_of_channel(payload.numpy()) is not None
    except (ValueError, OSError, ModelError):  # a payload that cannot be read
        return False


def inference_batch_norm(node: NodeView) -> Refusal | None:
    """BatchNormalization with fixed statistics, one value per channel.

    Training mode is encoded in four ways: opsets 1 and 6 have `is_test`, by default 0; opsets 7 to 13 train where more
    than the first output is declared; from 14 on there is `training_mode`. `spatial=0` (opsets 1 to 8) has parameters
    per element; where they are per channel all the same, the attribute is spurious.
    """
    declared = sum(map(bool, node.outputs))
    if node.opset < 7 and not node.attrs.get("is_test", 0):
        return Refusal("training_mode", "is_test is 0, so the batch's own statistics are used")
    if node.opset < 14 and declared > 1:
        return Refusal("training_mode", f"{declared} outputs are declared, so the batch's own statistics are used")
    if node.attrs.get("training_mode", 0):
        return Refusal("training_mode", "training_mode is 1")
    if declared > 1:
        return Refusal("training_mode", f"{declared} outputs are declared")
    if node.opset < 9 and node.attrs.get("spatial", 1) == 0:
        if not all(_is_per_channel(value) for value in node.inputs[1:5]):
            return Refusal("per_element", "spatial is 0: the parameters are per element, not per channel")
    return None


@record
class Lowering:
    """An in-house operator and the condition under which an ONNX operator becomes it."""

    op: str
    condition: Condition = always


LOWERINGS: dict[str, Lowering] = {
    "Abs": Lowering("abs"),
    "Add": Lowering("add", no_legacy_axis),
    "And": Lowering("logical_and", numpy_broadcast),
    "AveragePool": Lowering("nn.avg_pool"),
    "BatchNormalization": Lowering("nn.batch_norm", inference_batch_norm),
    "Cast": Lowering("cast", text_cast),
    "CastLike": Lowering("cast_like"),
    "Ceil": Lowering("ceil"),
    "Clip": Lowering("clip"),
    "Concat": Lowering("concatenate"),
    "ConstantOfShape": Lowering("full"),
    "Conv": Lowering("nn.conv"),
    "ConvTranspose": Lowering("nn.conv_transpose"),
    "DepthToSpace": Lowering("nn.depth_to_space"),
    "Div": Lowering("divide", no_legacy_axis),
    "Dropout": Lowering("nn.dropout", inference_dropout),
    "Equal": Lowering("equal", numpy_broadcast),
    "Expand": Lowering("broadcast_to"),
    "Flatten": Lowering("nn.batch_flatten"),
    "Floor": Lowering("floor"),
    "Gather": Lowering("take"),
    "Gemm": Lowering("nn.dense"),
    "GlobalAveragePool": Lowering("nn.global_avg_pool"),
    "GlobalLpPool": Lowering("nn.global_lp_pool"),
    "GlobalMaxPool": Lowering("nn.global_max_pool"),
    "Greater": Lowering("greater", numpy_broadcast),
    "GreaterOrEqual": Lowering("greater_equal"),
    "GroupNormalization": Lowering("nn.group_norm"),
    "HardSigmoid": Lowering("hard_sigmoid"),
    "Identity": Lowering("identity"),
    "InstanceNormalization": Lowering("nn.instance_norm"),
    "LayerNormalization": Lowering("nn.layer_norm"),
    "LeakyRelu": Lowering("nn.leaky_relu"),
    "Less": Lowering("less", numpy_broadcast),
    "LessOrEqual": Lowering("less_equal"),
    "LpPool": Lowering("nn.lp_pool"),
    "MatMul": Lowering("matmul"),
    "Max": Lowering("maximum"),
    "MaxPool": Lowering("nn.max_pool"),
    "Mean": Lowering("mean_n"),
    "Min": Lowering("minimum"),
    "Mod": Lowering("mod"),
    "Mul": Lowering("multiply", no_legacy_axis),
    "Neg": Lowering("negative"),
    "Not": Lowering("logical_not"),
    "Or": Lowering("logical_or", numpy_broadcast),
    "PRelu": Lowering("nn.prelu"),
    "Pad": Lowering("nn.pad"),
    "Pow": Lowering("power", numpy_broadcast),
    "RMSNormalization": Lowering("nn.rms_norm"),
    "Range": Lowering("arange"),
    "Reciprocal": Lowering("reciprocal"),
    "ReduceL1": Lowering("reduce_l1"),
    "ReduceL2": Lowering("reduce_l2"),
    "ReduceMax": Lowering("max"),
    "ReduceMean": Lowering("mean"),
    "ReduceMin": Lowering("min"),
    "ReduceSum": Lowering("sum"),
    "Relu": Lowering("nn.relu"),
    "Reshape": Lowering("reshape"),
    "Resize": Lowering("image.resize"),
    "Shape": Lowering("shape_of"),
    "Size": Lowering("ndarray_size"),
    "Slice": Lowering("strided_slice"),
    "SpaceToDepth": Lowering("nn.space_to_depth"),
    "Split": Lowering("split"),
    "Sqrt": Lowering("sqrt"),
    "Squeeze": Lowering("squeeze"),
    "Sub": Lowering("subtract", no_legacy_axis),
    "Sum": Lowering("add_n"),
    "Tile": Lowering("tile"),
    "Transpose": Lowering("transpose"),
    "Unsqueeze": Lowering("expand_dims"),
    "Upsample": Lowering("nn.upsampling"),
    "Where": Lowering("where"),
    "Xor": Lowering("logical_xor", numpy_broadcast),
}
"""The in-house operators by the name they have in ONNX's default domain."""

OP_TYPES: dict[str, str] = {lowering.op: op_type for op_type, lowering in LOWERINGS.items()}
"""The ONNX name of every in-house operator that has one."""

SURE_RESULTS = {"Split": 1 << 31, "Dropout": 2}
"""Results that operators may have in every opset, where it is more than one; for others the onnx package is asked."""


def has_too_many_results(op_type: str, node: NodeView) -> bool:
    """Whether a node has more results than its operator."""
    if node.opset > 0 and len(node.outputs) <= SURE_RESULTS.get(op_type, 1):
        return False
    from onnx import defs  # which takes longer to import than a small compile

    known = node.opset > 0 and defs.has(op_type, node.opset, "")
    return not known or len(node.outputs) > int(defs.get_schema(op_type, node.opset, "").max_output)


def lower(domain: str, op_type: str, node: NodeView) -> tuple[str | None, Refusal | None]:
    """The in-house operator of a node, or None and, for an affine, why it has none."""
    lowering = LOWERINGS.get(op_type)
    if lowering is None or domain not in DEFAULT_DOMAINS:
        return None, None
    for value in node.attrs.values():
        if isinstance(value, AttributeRef):
            return None, Refusal("unsupported_attr", "an attribute is a parameter of the function")
    refusal = lowering.condition(node)
    low, high = OPS[lowering.op].inputs
    needed = node.inputs if high == MANY else node.inputs[:low]
    if not low <= len(node.inputs) <= high or None in needed:
        refusal = refusal or Refusal("unsupported_op", f"{len(node.inputs)} inputs")
    if len(node.outputs) > 1 and has_too_many_results(op_type, node):
        refusal = refusal or Refusal("unsupported_op", f"{len(node.outputs)} results")
    if (name := odd_attribute(node.attrs)) is not None:
        refusal = refusal or Refusal("unsupported_attr", f"{name} is of another kind or range")
    if not node.outputs or not node.outputs[0]:
        refusal = refusal or Refusal("unsupported_op", "its first result has no name")
    return (None, refusal) if refusal else (lowering.op, None)
