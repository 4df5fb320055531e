"""Sets of ONNX's operators that several identities are about."""

from __future__ import annotations

ELEMENTWISE = frozenset(
    (
        *("Abs", "Acos", "Asin", "Atan", "Cast", "Ceil", "Celu", "Clip", "Cos", "Elu"),
        *("Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "IsInf", "IsNaN"),
        *("LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu"),
        *("Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh"),
        "ThresholdedRelu",
    )
)
"""Operators of one operand that has axes."""

VARIADIC = frozenset(("Max", "Mean", "Min", "Sum"))
"""Operators of any number of operands, which they broadcast from opset 8 on."""

BROADCASTING = VARIADIC | frozenset(
    (
        *("Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"),
        *("Mul", "Or", "PRelu", "Pow", "Sub", "Where", "Xor"),
    )
)
"""Operators that broadcast their operands; those of two from opset 7 on."""

MOVING = frozenset(
    (
        *("Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice"),
        *("SpaceToDepth", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
    )
)
"""Operators whose results hold elements of their data, ordered by extents."""

SIMPLE_REDUCTIONS = frozenset(("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"))
"""Reductions that only move elements where the reduced axes have one element each."""

REDUCTIONS = SIMPLE_REDUCTIONS | frozenset(
    ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")
)
"""Operators that reduce axes, which are an attribute or their second operand."""
