"""Integer inputs: which ones may take any value, and how large those may be that index a table.

A generated index, size or count that is out of range would keep a model from running, or take all
memory.
"""

from __future__ import annotations

from onnx import ModelProto, NodeProto, TensorProto

from ...ir.ops import DEFAULT_DOMAINS
from .onnx_graph import body_reads

INTEGER_TYPES = frozenset(
    getattr(TensorProto, f"{sign}INT{bits}") for sign in ("", "U") for bits in (4, 8, 16, 32, 64)
)
FLOAT_TYPES = frozenset(
    [
        *(TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16),
        *(TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT8E5M2),
        *(TensorProto.FLOAT8E5M2FNUZ,),
    ]
)

ELEMENTWISE = frozenset(
    [
        *("Add", "Sub", "Mul", "Sum", "Mean", "Max", "Min", "Clip", "Neg", "Abs", "Sign", "Relu"),
        *("Identity", "Concat", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "PRelu"),
        *("LeakyRelu", "Floor", "Ceil", "Round", "Sqrt", "Reciprocal", "Exp", "Log", "Sigmoid"),
        *("HardSigmoid", "Tanh", "Softplus", "Erf"),
    ]
)
"""Operators whose result depends on the values of all operands."""
DATA_OPERANDS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(
        [
            *("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Split"),
            *("Expand", "Tile", "Gather", "GatherElements", "GatherND", "Compress", "Trilu"),
            *("ReverseSequence", "DepthToSpace", "SpaceToDepth", "MaxPool", "Resize", "Upsample"),
            *("TopK", "CumSum", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd"),
            *("BitShift", "Dropout", "Div", "Mod", "Pow"),
        ],
        (0,),
    ),
    **dict.fromkeys(("Pad", "ScatterElements", "ScatterND"), (0, 2)),
    "Where": (1, 2),
}
"""The operands whose values the result depends on, by operator.

Integer divisors are not among them: a division by zero ends the process.
"""
ALL_FLOATS_ARE_DATA = frozenset(["Div", "Mod", "Pow"])
"""Operators whose result depends on every floating-point operand, DATA_OPERANDS or not."""
PRODUCTS = frozenset(["MatMul", "Gemm", "Einsum", "MatMulInteger", "ConvInteger"])
"""Operators that sum products of integers.

Of floating-point operands they compute no sizes any more.
"""
ANY_OPERAND = frozenset(
    [
        *("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Shape", "Size", "ArgMax"),
        *("ArgMin", "EyeLike", "IsNaN", "IsInf"),
    ]
)
"""Operators that take any number, and compute no number from it."""
SHAPE_OPERANDS: dict[str, int] = {"Range": 0, "Resize": 1, "Upsample": 1}
"""The first floating-point operand that an operator computes a shape from."""
MOVES = frozenset(
    ["Cast", "Reshape", "Unsqueeze", "Squeeze", "Identity", "Transpose", "Flatten", "Concat"]
)
"""Operators that hand the indices among their operands on."""


def index_limits(model: ModelProto) -> dict[str, int]:
    """Return the length of the shortest constant table that each integer input indexes."""
    tables = {tensor.name: tensor.dims for tensor in model.graph.initializer}
    origins: dict[str, str] = {info.name: info.name for info in model.graph.input}
    limits: dict[str, int] = {}
    for node in model.graph.node:
        if node.op_type in MOVES:
            origins.update(
                (node.output[0], origins[name]) for name in node.input if name in origins
            )
        if node.op_type not in ("Gather", "GatherElements", "GatherND") or len(node.input) < 2:
            continue
        table, name = tables.get(node.input[0]), origins.get(node.input[1])
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
        if not table or name is None or not -len(table) <= axis < len(table):
            continue
        if table[axis] > 0:  # an empty table has no index at all
            limits[name] = min(limits.get(name, table[axis]), table[axis])
    return limits


def unrestricted_inputs(model: ModelProto) -> set[str]:
    """Return the integer inputs that may take any value of their type. O(nodes).

    Through known operators, and through floating-point tensors that are cast back, they reach no
    index, shape, size, count, divisor, body, function or operator of another domain.
    """
    analysis = _RestrictionAnalysis(
        {(function.domain, function.name) for function in model.functions}
    )
    for node in reversed(model.graph.node):
        analysis.visit(node)
    types = {info.name: info.type.tensor_type.elem_type for info in model.graph.input}
    return {name for name in types if types[name] in INTEGER_TYPES} - analysis.integers


class _RestrictionAnalysis:
    """A backward analysis of which values have to be small, as integers and as floats.

    Nodes are visited from the last to the first.
    """

    def __init__(self, functions: set[tuple[str, str]]) -> None:
        self.functions = functions
        self.integers: set[str] = set()
        self.floats: set[str] = set()

    def visit(self, node: NodeProto) -> None:
        """Note which operands of a node have to be small."""
        self.integers.update(body_reads(node))
        results = node.output if node.op_type == "Split" else node.output[:1]
        integers = not self.integers.isdisjoint(results)
        floats = not self.floats.isdisjoint(results)
        for place, name in enumerate(node.input):
            if self._restricts_integer(node, place, integers=integers, floats=floats):
                self.integers.add(name)
            if self._restricts_float(node, place, integers=integers, floats=floats):
                self.floats.add(name)

    def _restricts_integer(
        self, node: NodeProto, place: int, *, integers: bool, floats: bool
    ) -> bool:
        """Return whether an integer operand has to be small, from the same of the result."""
        op = node.op_type
        if (node.domain, op) in self.functions:
            return True
        if node.domain in (*DEFAULT_DOMAINS, "com.microsoft"):
            if op.startswith("QLinear"):
                return False
            if op == "DequantizeLinear":
                return floats
        if node.domain not in DEFAULT_DOMAINS:
            return True
        if op in ("Cast", "CastLike"):
            return _cast_restricts(node, integers=integers, floats=floats)
        # The result is as large as the operand.
        if op in ELEMENTWISE or op in PRODUCTS or place in DATA_OPERANDS.get(op, ()):
            return integers
        return op not in ANY_OPERAND

    def _restricts_float(
        self, node: NodeProto, place: int, *, integers: bool, floats: bool
    ) -> bool:
        """Return the same for a floating-point operand.

        Results of unknown operators may be anything anyway.
        """
        op = node.op_type
        if node.domain not in DEFAULT_DOMAINS or (node.domain, op) in self.functions:
            return False
        if op in ("Cast", "CastLike"):
            return _cast_restricts(node, integers=integers, floats=floats)
        if op in ("QuantizeLinear", "DynamicQuantizeLinear"):
            return integers
        # Unlike an integer, a float may be divided by 0.
        if op in ELEMENTWISE or op in ALL_FLOATS_ARE_DATA or place in DATA_OPERANDS.get(op, ()):
            return floats
        return op in SHAPE_OPERANDS and place >= SHAPE_OPERANDS[op]


def _cast_restricts(node: NodeProto, *, integers: bool, floats: bool) -> bool:
    """Return whether the operand of a cast has to be small, as a number of that type."""
    to = next((attribute.i for attribute in node.attribute if attribute.name == "to"), None)
    if to is None:  # CastLike
        return integers or floats
    if to in INTEGER_TYPES:
        return integers
    return floats and to in FLOAT_TYPES
