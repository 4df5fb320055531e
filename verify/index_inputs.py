"""Which integer inputs are numbers alone: an index, a size or a count that is out of range runs nowhere, or takes all
memory.
"""

from __future__ import annotations

from onnx import ModelProto, NodeProto, TensorProto

from ..ir.ops import DEFAULT_DOMAINS
from .graph_reads import captured

INTEGERS = frozenset(getattr(TensorProto, f"{sign}INT{bits}") for sign in ("", "U") for bits in (4, 8, 16, 32, 64))
FLOATS = frozenset(
    [
        *(TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16),
        *(TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT8E5M2, TensorProto.FLOAT8E5M2FNUZ),
    ]
)

ELEMENTWISE = frozenset(
    [
        *("Add", "Sub", "Mul", "Sum", "Mean", "Max", "Min", "Clip", "Neg", "Abs", "Sign", "Relu", "Identity", "Concat"),
        *("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "PRelu", "LeakyRelu", "Floor", "Ceil", "Round"),
        *("Sqrt", "Reciprocal", "Exp", "Log", "Sigmoid", "HardSigmoid", "Tanh", "Softplus", "Erf"),
    ]
)
"""Operators whose result has what any of their operands has."""
DATA: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Split", "Expand"), (0,)),
    **dict.fromkeys(("Tile", "Gather", "GatherElements", "GatherND", "Compress", "ReverseSequence", "Trilu"), (0,)),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth", "MaxPool", "Resize", "Upsample", "TopK", "CumSum"), (0,)),
    **dict.fromkeys(("ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd", "BitShift", "Dropout"), (0,)),
    **dict.fromkeys(("Pad", "ScatterElements", "ScatterND"), (0, 2)),
    "Where": (1, 2),
    "Div": (0,),
    "Mod": (0,),
    "Pow": (0,),
}
"""Operands that the result has elements of, or is computed from, by operator. Integers that are divided by are none:
zero ends the process.
"""
OPERATORS = frozenset(["Div", "Mod", "Pow"])
"""Those of which any floating operand is such a one."""
PRODUCTS = frozenset(["MatMul", "Gemm", "Einsum", "MatMulInteger", "ConvInteger"])
"""Operators that sum products of integers: what they make of floating tensors is no size any more."""
ENDS = frozenset(
    [
        *("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Shape", "Size", "ArgMax", "ArgMin", "EyeLike"),
        *("IsNaN", "IsInf"),
    ]
)
"""Operators that take any number, and whose result is none."""
SIZES: dict[str, int] = {"Range": 0, "Resize": 1, "Upsample": 1}
"""The first floating operand by which operators compute a shape."""


def spanning(model: ModelProto) -> set[str]:
    """The integer inputs of which nothing but numbers is computed, as far as operators are known: through those, and
    through floating tensors that are made integers again, they get to no index, shape, size, count, divisor, body,
    function or operator of another domain. O(nodes).
    """
    kept = _Kept({(function.domain, function.name) for function in model.functions})
    for node in reversed(model.graph.node):
        kept.see(node)
    inputs = {info.name for info in model.graph.input if info.type.tensor_type.elem_type in INTEGERS}
    return inputs - kept.integers


class _Kept:
    """Values that have to keep small numbers, where they are integers and where they are floating, as the nodes that
    were seen take them, from the last to the first.
    """

    def __init__(self, functions: set[tuple[str, str]]) -> None:
        self.functions = functions
        self.integers: set[str] = set()
        self.floats: set[str] = set()

    def see(self, node: NodeProto) -> None:
        """Note which operands of a node have to keep small numbers."""
        self.integers.update(captured(node))
        made = node.output if node.op_type == "Split" else node.output[:1]
        integers, floats = not self.integers.isdisjoint(made), not self.floats.isdisjoint(made)
        for place, name in enumerate(node.input):
            if self._keeps_integer(node, place, integers=integers, floats=floats):
                self.integers.add(name)
            if self._keeps_float(node, place, integers=integers, floats=floats):
                self.floats.add(name)

    def _keeps_integer(self, node: NodeProto, place: int, *, integers: bool, floats: bool) -> bool:
        """Whether an operand has to, where it is an integer; `integers` and `floats` say it of the result."""
        op = node.op_type
        if (node.domain, op) in self.functions:
            return True
        if op.startswith("QLinear") and node.domain in (*DEFAULT_DOMAINS, "com.microsoft"):
            return False
        if op == "DequantizeLinear" and node.domain in (*DEFAULT_DOMAINS, "com.microsoft"):
            return floats
        if node.domain not in DEFAULT_DOMAINS:
            return True
        if op in ("Cast", "CastLike"):
            return _of_cast(node, integers=integers, floats=floats)
        if op in ELEMENTWISE or op in PRODUCTS or place in DATA.get(op, ()):
            return integers
        return op not in ENDS

    def _keeps_float(self, node: NodeProto, place: int, *, integers: bool, floats: bool) -> bool:
        """The same where the operand is floating. What other operators compute from it may be anything anyway."""
        op = node.op_type
        if node.domain not in DEFAULT_DOMAINS or (node.domain, op) in self.functions:
            return False
        if op in ("Cast", "CastLike"):
            return _of_cast(node, integers=integers, floats=floats)
        if op in ("QuantizeLinear", "DynamicQuantizeLinear"):
            return integers
        if op in ELEMENTWISE or op in OPERATORS or place in DATA.get(op, ()):
            return floats
        return op in SIZES and place >= SIZES[op]


def _of_cast(node: NodeProto, *, integers: bool, floats: bool) -> bool:
    """Whether the result of a cast has to keep small numbers: booleans and strings are none."""
    to = next((attribute.i for attribute in node.attribute if attribute.name == "to"), None)
    return (integers and (to is None or to in INTEGERS)) or (floats and (to is None or to in FLOATS))
