"""The op table: every in-house operator with its arity, type inference and evaluation.

Names are Relay's where Relay has one. An operator that is not in the table is foreign: it is kept verbatim, may do
anything, and no rewrite looks through it. Attributes are those of the ONNX operator of the same meaning; four things
are irc's own:

- `axis` on `multiply`, `add`, `subtract`, `divide` and `nn.bias_add` aligns the first axis of the second operand with
  that axis of the first, counted from the left, so that a per-channel operation needs no rank;
- their second operand, and the bias of a convolution or dense layer, may be float64 beside narrower data: the exact
  value of an affine parameter, rounded once where it is used (see `evaluate.is_wide`);
- `folded` on `multiply` marks the product of a weight and the float64 factor that was folded into it;
- `variable` is an initializer that training may change: its payload is kept, and it is no constant.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..support.record import record
from . import evaluate as ev
from . import infer, movement
from .attributes import Attribute, EmptyList
from .graph import Node, Value

DEFAULT_DOMAINS = ("", "ai.onnx")
"""The names of ONNX's own domain."""


@record
class OpInfo:
    """What is known of an operator.

    `inputs` are the least and the greatest number of inputs, `outputs` the number of outputs; `infer` gives the types
    of the outputs and `evaluate` their elements; inputs in `by_type` are needed by type only. `wide` is the input that
    may be a float64 parameter beside narrower data. The result of one that `decides_rank` has the rank that its weight
    says, whatever is declared. A `pure` operator may be erased where nobody reads its results.
    """

    name: str
    inputs: tuple[int, int]
    infer: infer.Infer
    evaluate: ev.Evaluate | None = None
    by_type: frozenset[int] = frozenset()
    outputs: int = 1
    wide: int | None = None
    pure: bool = True
    decides_rank: bool = False


MANY = 1 << 30


def _table() -> dict[str, OpInfo]:
    first, second = frozenset({0}), frozenset({1})
    rows = [
        OpInfo("constant", (0, 0), infer.constant, ev.constant),
        OpInfo("variable", (0, 0), infer.constant, pure=False),
        OpInfo("nn.conv", (2, 3), infer.conv, wide=2, decides_rank=True),
        OpInfo("nn.conv_transpose", (2, 3), infer.conv_transpose, wide=2, decides_rank=True),
        OpInfo("nn.dense", (2, 3), infer.dense, wide=2, decides_rank=True),
        OpInfo("matmul", (2, 2), infer.matmul, ev.matmul),
        OpInfo("nn.bias_add", (2, 2), infer.bias_add, ev.add, wide=1),
        OpInfo("nn.batch_norm", (5, 5), infer.same),
        OpInfo("nn.batch_norm_to_affine", (4, 4), infer.batch_norm_to_affine, ev.batch_norm_to_affine, outputs=2),
        OpInfo("nn.dropout", (1, 3), infer.same, ev.identity),
        OpInfo("nn.instance_norm", (3, 3), infer.same),
        OpInfo("nn.group_norm", (3, 3), infer.same),
        OpInfo("nn.layer_norm", (2, 3), infer.same),
        OpInfo("nn.rms_norm", (2, 2), infer.same),
        OpInfo("nn.relu", (1, 1), infer.same),
        OpInfo("nn.leaky_relu", (1, 1), infer.same),
        OpInfo("nn.prelu", (2, 2), infer.same),
        OpInfo("abs", (1, 1), infer.same, ev.absolute),
        OpInfo("clip", (1, 3), infer.same),
        OpInfo("hard_sigmoid", (1, 1), infer.same),
        OpInfo("nn.max_pool", (1, 1), movement.pool),
        OpInfo("nn.avg_pool", (1, 1), movement.pool),
        OpInfo("nn.lp_pool", (1, 1), movement.pool),
        OpInfo("nn.global_max_pool", (1, 1), movement.global_pool),
        OpInfo("nn.global_avg_pool", (1, 1), movement.global_pool),
        OpInfo("nn.global_lp_pool", (1, 1), movement.global_pool),
        OpInfo("max", (1, 2), movement.reduction, ev.reduce_max),
        OpInfo("min", (1, 2), movement.reduction, ev.reduce_min),
        OpInfo("mean", (1, 2), movement.reduction, ev.reduce_mean),
        OpInfo("sum", (1, 2), movement.reduction, ev.reduce_sum),
        OpInfo("reduce_l1", (1, 2), movement.reduction, ev.reduce_l1),
        OpInfo("reduce_l2", (1, 2), movement.reduction, ev.reduce_l2),
        OpInfo("nn.pad", (1, 4), movement.pad),
        OpInfo("image.resize", (1, 4), movement.resize),
        OpInfo("nn.upsampling", (1, 2), movement.resize),
        OpInfo("nn.depth_to_space", (1, 1), infer.dtype_only),
        OpInfo("nn.space_to_depth", (1, 1), infer.dtype_only),
        OpInfo("split", (1, 2), infer.parts),
        OpInfo("tile", (2, 3), infer.dtype_only),
        OpInfo("maximum", (1, MANY), infer.broadcast, ev.maximum),
        OpInfo("minimum", (1, MANY), infer.broadcast, ev.minimum),
        OpInfo("add_n", (1, MANY), infer.broadcast),
        OpInfo("mean_n", (1, MANY), infer.broadcast),
        OpInfo("where", (3, 3), infer.where, ev.where),
        OpInfo("multiply", (2, 2), infer.elementwise, ev.multiply, wide=1),
        OpInfo("add", (2, 2), infer.elementwise, ev.add, wide=1),
        OpInfo("subtract", (2, 2), infer.elementwise, ev.subtract),
        OpInfo("divide", (2, 2), infer.elementwise, ev.divide),
        OpInfo("negative", (1, 1), infer.same, ev.negative),
        OpInfo("sqrt", (1, 1), infer.same, ev.sqrt),
        OpInfo("reciprocal", (1, 1), infer.same, ev.reciprocal),
        OpInfo("floor", (1, 1), infer.same, ev.floor),
        OpInfo("ceil", (1, 1), infer.same, ev.ceil),
        OpInfo("power", (2, 2), infer.broadcast, ev.power),
        OpInfo("mod", (2, 2), infer.broadcast, ev.mod),
        OpInfo("equal", (2, 2), infer.comparison, ev.equal),
        OpInfo("less", (2, 2), infer.comparison, ev.less),
        OpInfo("less_equal", (2, 2), infer.comparison, ev.less_equal),
        OpInfo("greater", (2, 2), infer.comparison, ev.greater),
        OpInfo("greater_equal", (2, 2), infer.comparison, ev.greater_equal),
        OpInfo("logical_and", (2, 2), infer.comparison, ev.logical_and),
        OpInfo("logical_or", (2, 2), infer.comparison, ev.logical_or),
        OpInfo("logical_xor", (2, 2), infer.comparison, ev.logical_xor),
        OpInfo("logical_not", (1, 1), infer.same, ev.logical_not),
        OpInfo("identity", (1, 1), infer.same, ev.identity),
        OpInfo("cast", (1, 1), infer.shape_only, ev.cast),
        OpInfo("cast_like", (2, 2), infer.cast_like, ev.cast, by_type=second),
        OpInfo("reshape", (1, 2), infer.reshape, ev.reshape),
        OpInfo("expand_dims", (1, 2), movement.expand_dims, ev.expand_dims),
        OpInfo("squeeze", (1, 2), movement.squeeze, ev.squeeze),
        OpInfo("nn.batch_flatten", (1, 1), movement.flatten, ev.flatten),
        OpInfo("transpose", (1, 1), infer.transpose, ev.transpose),
        OpInfo("broadcast_to", (2, 2), movement.broadcast_to, ev.broadcast_to),
        OpInfo("full", (1, 1), movement.full, ev.full),
        OpInfo("shape_of", (1, 1), infer.shape_vector, ev.shape, by_type=first),
        OpInfo("ndarray_size", (1, 1), infer.scalar_i64, ev.ndarray_size, by_type=first),
        OpInfo("arange", (3, 3), infer.dtype_only, ev.arange),
        OpInfo("take", (2, 2), movement.take, ev.take),
        OpInfo("concatenate", (1, MANY), movement.concatenate, ev.concatenate),
        OpInfo("strided_slice", (1, 5), movement.strided_slice, ev.strided_slice),
    ]
    return {row.name: row for row in rows}


OPS = _table()
"""The op table by name."""


INTEGER = frozenset(
    (
        *(
            "axis",
            "batch_dims",
            "block_size",
            "blocksize",
            "broadcast",
            "ceil_mode",
            "count_include_pad",
            "end",
            "fmod",
        ),
        *("group", "is_test", "keepdims", "noop_with_empty_axes", "num_groups", "num_outputs", "p", "spatial", "start"),
        *("training_mode", "transA", "transB", "allowzero", "exclude_outside", "stash_type"),
    )
)
INTEGERS = frozenset(
    ("axes", "dilations", "ends", "kernel_shape", "output_padding", "pads", "perm", "starts", "strides")
)
LEAST_INT = -(1 << 63)
POSITIVE = frozenset(("dilations", "kernel_shape", "strides"))
NUMBER = frozenset(("alpha", "beta"))
FLOAT = frozenset(("epsilon",))


_KINDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(INTEGER, int),
    **dict.fromkeys(INTEGERS, tuple),
    **dict.fromkeys(NUMBER, (int, float)),
    **dict.fromkeys(FLOAT, float),
}


def odd_attribute(attrs: Mapping[str, Attribute]) -> str | None:
    """The first attribute whose value no in-house operator takes that has it: of another kind, or not positive."""
    for name, value in attrs.items():
        kind = _KINDS.get(name)
        if kind is None:
            continue
        if not isinstance(value, kind):
            if kind is not tuple or value != EmptyList("ints"):
                return name
        elif isinstance(value, tuple):
            least = 1 if name in POSITIVE else LEAST_INT
            if not all([isinstance(item, int) and item >= least for item in value]):
                return name
    return None


BIASED = ("nn.conv", "nn.conv_transpose", "nn.dense")
"""Layers that take a bias as their third operand."""


def op_info(op: str) -> OpInfo | None:
    """The table's row for `op`, None for a foreign operator."""
    return OPS.get(op)


def reads_elements(node: Node, value: Value) -> bool:
    """Whether `node` reads the elements of `value`, and not only its shape or dtype."""
    info = op_info(node.op)
    if info is None or not info.by_type:
        return True
    return any(operand is value and i not in info.by_type for i, operand in enumerate(node.inputs))


def sole_reader(value: Value) -> Node | None:
    """The one node that reads the elements of `value`, once; None where there is no such node or more than one."""
    found: Node | None = None
    for node, count in value.users.items():
        if reads_elements(node, value):
            if found is not None or count > 1:
                return None
            found = node
    return found
