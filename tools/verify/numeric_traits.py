"""Numeric traits of ONNX operators: rounding, overflow, and operands that become shapes.

They are not taken from irc's own operator table: verification also runs operators that are foreign
there, and a fault in that table must not blind it. A test holds them against the table, and gives
the reason of each difference.
"""

from __future__ import annotations

SUMS_OF_PRODUCTS = frozenset(
    [
        *("Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "Add", "Sub", "Sum", "Mean"),
        *("AveragePool", "GlobalAveragePool", "ReduceMean", "ReduceSum", "BatchNormalization"),
        *("CumSum", "ConvInteger"),
    ]
)
"""Operators that sum products. Their rounding errors grow with the same sum over magnitudes."""

LONG_SUMS = frozenset(["MatMul", "Gemm", "Einsum", "ReduceMean", "ReduceSum", "GlobalAveragePool"])
"""Operators that are assumed to sum 64 products if no shape says how many."""

EXACT = frozenset(
    [
        *("Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Concat", "Split"),
        *("Slice", "Gather", "GatherElements", "GatherND", "Expand", "Tile", "Pad", "DepthToSpace"),
        *("SpaceToDepth", "Relu", "MaxPool", "GlobalMaxPool", "ReduceMax", "ReduceMin", "Max"),
        *("Min", "Neg", "Abs", "Clip", "Where", "Dropout", "Floor", "Ceil", "Round", "Sign"),
        *("TopK", "ScatterND", "ScatterElements", "If", "Loop", "Scan", "Optional"),
        *("SequenceConstruct", "SequenceAt", "SplitToSequence", "Compress", "ReverseSequence"),
        *("Trilu", "EyeLike", "DequantizeLinear", "QuantizeLinear", "Cast", "CastLike", "Shape"),
        *("Size", "Constant", "ConstantOfShape"),
    ]
)
"""Operators whose results are not rounded, or not tensors."""

EXACT_ON_INTEGERS = frozenset(["Add", "Sub", "Mul"])
"""Operators that round nothing if operands and result are representable integers.

Attention masks are computed as (1 - x) * -1e9: one rounding of 1 - x would be as large as all that
is masked.
"""

ROUNDED_NEAR_ONE = frozenset(
    ["Sigmoid", "HardSigmoid", "Softmax", "LogSoftmax", "Erf", "Tanh", "Cos", "Sin"]
)
"""Operators whose absolute error is a unit roundoff: kernels are rational functions."""

ROUNDED_ONCE = frozenset(["Sqrt", "Reciprocal"])
"""Operators of one operand x with an error of u |y|, however large x is.

IEEE 754 has the nearest number to a root and to a quotient. Other functions of one operand reduce
it first, as Exp does, and may so have an error of u |x|.
"""

SHAPE_FROM_OPERANDS = frozenset(
    [
        *("Resize", "Upsample", "Range", "OneHot", "ConstantOfShape", "NonMaxSuppression"),
        "QuantizeLinear",
    ]
)
"""Operators that compute shapes or steps from constants. Their constants get no noise."""

FIRST_OPERAND_IS_DATA = frozenset(["Pow", "Mod", "Clip"])
"""Operators whose other operands get no noise: x ** 2.0000001 is NaN for x < 0."""

TAKES_COMPUTED_PARAMETERS = SUMS_OF_PRODUCTS | {
    *("Mul", "Div", "PRelu", "InstanceNormalization", "LayerNormalization", "GroupNormalization"),
    "RMSNormalization",
}
"""Operators whose parameters get noise even if they are computed from constants."""

COMPARISONS = frozenset(["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"])
"""Operators whose result depends on rounding if their operands are nearly equal."""

POLES = {"Div": 1, "Reciprocal": 0, "Log": 0, "Pow": 0}
"""Operators that return infinity for zero, and the operand that must be zero for it."""

OVERFLOWS = SUMS_OF_PRODUCTS | {
    *("Mul", "Pow", "Exp", "Cast", "PRelu", "LRN", "ReduceProd", "ReduceL1", "ReduceL2"),
    *("ReduceSumSquare", "InstanceNormalization", "LayerNormalization", "GroupNormalization"),
    *("RMSNormalization", "LpPool", "GlobalLpPool", "Sinh", "Cosh"),
}
"""Operators that return infinity for finite operands only if the result is too large.

Div by a constant without zeros is another one. Pow is one with constant exponents from 0 on.
"""

SINGULAR = frozenset(
    ["Log", "Sqrt", "Div", "Pow", "Reciprocal", "Mod", "Tan", "Acos", "Asin", "Acosh", "Atanh"]
)
"""Operators that return infinity or NaN for small operands too."""
