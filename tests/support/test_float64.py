from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import harness
import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import pytest
from float64 import UnsupportedOp, evaluate, evaluate_all
from float64.interpreter import Interpreter
from harness import session
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as refusals

Array = npt.NDArray[Any]
Case = tuple[str, list[Array | None], dict[str, Any]]
FLOATS = [np.dtype(dtype) for dtype in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)]
ULPS = 300
"""How many units in the last place of the largest element a reference result may be off."""

INEXACT_EXPECTATIONS = {
    "test_averagepool_2d_ceil_last_window_starts_on_pad": "written with four digits",
    "test_dynamicquantizelinear": "a tie, decided by the rounding of the scale to float32",
    "test_dynamicquantizelinear_expanded": "a tie, decided by the rounding of the scale to float32",
    "test_resize_downsample_scales_linear_align_corners": (
        "uses size * scale not rounded down; onnxruntime does not"
    ),
    "test_resize_downsample_scales_cubic_align_corners": (
        "uses size * scale not rounded down; onnxruntime does not"
    ),
}
ONNXRUNTIME_REFUSALS = (
    refusals.NotImplemented,
    refusals.InvalidGraph,
    refusals.RuntimeException,
    refusals.Fail,
)
ROUNDED_BY_ONNXRUNTIME = {"GroupNormalization", "Gelu"}
"""Their function bodies compute, or give constants, in float32 even for float64."""
UNSUPPORTED_CASES = 193
"""Those of onnx 1.22 and 1.23, which has 119 cases more."""


def tensor_type(array: Array, dtype: Any = None) -> onnx.TypeProto:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(array.dtype if dtype is None else dtype))
    return helper.make_tensor_type_proto(kind, array.shape)


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Array],
    outputs: Sequence[str],
    opset: int = 21,
    constants: Mapping[str, Array] | None = None,
    functions: Sequence[onnx.FunctionProto] = (),
    imports: Sequence[onnx.OperatorSetIdProto] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_value_info(name, tensor_type(array)) for name, array in inputs.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), *imports]
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10)


def single(
    op_type: str, inputs: Sequence[Array | None], opset: int, outputs: int = 1, **attributes: Any
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of one node, and its inputs."""
    feeds = {f"x{index}": array for index, array in enumerate(inputs) if array is not None}
    names = ["" if array is None else f"x{index}" for index, array in enumerate(inputs)]
    results = [f"y{index}" for index in range(outputs)]
    node = helper.make_node(op_type, names, results, **attributes)
    return make_model([node], feeds, results, opset), feeds


def apply(op_type: str, *inputs: Array | None, opset: int, **attributes: Any) -> Array:
    model, feeds = single(op_type, inputs, opset, **attributes)
    return evaluate(model, feeds)["y0"]


def epsilon(dtype: np.dtype[Any]) -> float:
    limits: Any = ml_dtypes.finfo
    return float(limits(dtype).eps)


def disagreement(result: Array, expected: Array) -> str | None:
    """What is wrong with a result, cast to the type of a reference of limited precision."""
    if result.shape != expected.shape:
        return f"shape {result.shape}, expected {expected.shape}"
    if expected.dtype.kind in "OUS":
        return (
            None
            if np.array_equal(result.astype(str), expected.astype(str))
            else "different strings"
        )
    floating = expected.dtype in FLOATS
    if result.dtype != (np.float64 if floating else expected.dtype):
        return f"type {result.dtype}, expected {expected.dtype}"
    got, wanted = result.astype(expected.dtype).astype(np.float64), expected.astype(np.float64)
    largest = np.max(np.abs(wanted[np.isfinite(wanted)]), initial=0.0)
    tolerance = ULPS * epsilon(expected.dtype) * largest if floating else 0.0
    if np.allclose(got, wanted, rtol=0, atol=tolerance, equal_nan=True):
        return None
    return f"off by {np.nanmax(np.abs(got - wanted)):.3g}, tolerance {tolerance:.3g}"


def normal(*shape: int) -> Array:
    return np.random.default_rng(len(shape) + sum(shape)).standard_normal(shape)


def positive(*shape: int) -> Array:
    return np.abs(normal(*shape)) + 0.5


def integers(*values: int) -> Array:
    return np.array(values, dtype=np.int64)


def singles(*values: float) -> Array:
    """Float32 whatever the type of the rest, as for the scales of Resize."""
    return np.array(values, dtype=np.float32)


class TestOnnxNodeCases:
    """The onnx package's own cases, those that use only what the evaluator knows."""

    @staticmethod
    def decoded(value: Any) -> Any:
        return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value

    def failure(
        self, model: onnx.ModelProto, inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> str | None:
        feeds = dict(
            zip(
                [value.name for value in model.graph.input], map(self.decoded, inputs), strict=False
            )
        )
        results = Interpreter(model, None).evaluate(feeds, keep=False)
        for info, reference in zip(model.graph.output, outputs, strict=True):
            result, expected = results[info.name], self.decoded(reference)
            if isinstance(result, list):
                if len(result) != len(expected):
                    return f"{len(result)} elements, expected {len(expected)}"
                pairs = list(zip(result, expected, strict=True))
            elif result is None:
                pairs = []
            else:
                pairs = [(result, expected)]
            for got, wanted in pairs:
                if wrong := disagreement(got, np.asarray(wanted)):
                    return f"{info.name}: {wrong}"
        return None

    def test_agree_with_the_evaluator(self, record_property: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cases = harness.node_cases()
            failures, covered, unsupported = {}, 0, 0
            for case in cases:
                model = case.model
                if model is None:
                    continue
                try:
                    found = [
                        self.failure(model, inputs, outputs)
                        for inputs, outputs in case.data_sets or ()
                    ]
                except UnsupportedOp:
                    unsupported += 1
                    continue
                covered += 1
                if any(found) and case.name not in INEXACT_EXPECTATIONS:
                    failures[case.name] = found
        record_property("covered", covered)
        record_property("unsupported", unsupported)
        print(f"{covered} of {len(cases)} cases covered, {unsupported} skipped as unsupported")
        assert not failures
        assert covered + unsupported > 1700
        assert unsupported <= UNSUPPORTED_CASES


CONVOLUTIONS: list[Case] = [
    (
        "Conv",
        [normal(2, 3, 9), normal(4, 3, 3), normal(4)],
        {"pads": [2, 1], "strides": [2], "dilations": [2]},
    ),
    (
        "Conv",
        [normal(2, 4, 9, 8), normal(6, 2, 3, 2)],
        {"group": 2, "pads": [1, 0, 2, 1], "strides": [1, 2]},
    ),
    (
        "Conv",
        [normal(1, 5, 8, 9), normal(5, 1, 3, 3), normal(5)],
        {"group": 5, "pads": [1, 1, 1, 1]},
    ),
    ("Conv", [normal(1, 3, 8, 9), normal(6, 1, 3, 3)], {"group": 3, "dilations": [2, 3]}),
    (
        "Conv",
        [normal(1, 2, 5, 6, 7), normal(3, 2, 2, 3, 3)],
        {"pads": [1, 0, 1, 0, 1, 1], "strides": [2, 1, 2]},
    ),
    (
        "Conv",
        [normal(1, 2, 8, 9), normal(3, 2, 3, 4)],
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    ),
    (
        "Conv",
        [normal(1, 2, 8, 9), normal(3, 2, 3, 4)],
        {"auto_pad": "SAME_LOWER", "strides": [3, 2]},
    ),
    ("Conv", [normal(1, 2, 8, 9), normal(3, 2, 3, 4)], {"auto_pad": "VALID", "strides": [2, 1]}),
    (
        "ConvTranspose",
        [normal(2, 3, 5), normal(3, 4, 3), normal(4)],
        {"strides": [2], "pads": [1, 0]},
    ),
    (
        "ConvTranspose",
        [normal(1, 4, 5, 4), normal(4, 3, 3, 2)],
        {"group": 2, "strides": [2, 3], "pads": [1, 0, 1, 1]},
    ),
    (
        "ConvTranspose",
        [normal(1, 2, 4, 5), normal(2, 3, 3, 3), normal(3)],
        {"strides": [3, 2], "output_padding": [2, 1], "dilations": [2, 1], "pads": [1, 1, 0, 1]},
    ),
    (
        "ConvTranspose",
        [normal(1, 2, 4, 5), normal(2, 3, 3, 3)],
        {"strides": [2, 2], "output_shape": [8, 10]},
    ),
    (
        "ConvTranspose",
        [normal(1, 2, 4, 5), normal(2, 3, 3, 3)],
        {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
    ),
    (
        "ConvTranspose",
        [normal(1, 2, 4, 5), normal(2, 3, 3, 3)],
        {"strides": [2, 2], "auto_pad": "SAME_LOWER"},
    ),
    ("ConvTranspose", [normal(1, 2, 3, 4, 2), normal(2, 2, 2, 3, 2)], {"strides": [1, 2, 2]}),
]
POOLS: list[Case] = [
    (
        op,
        [normal(2, 3, 9, 10)],
        {"kernel_shape": [3, 2], "strides": [2, 3], "pads": [1, 0, 2, 1], **extra},
    )
    for op in ("MaxPool", "AveragePool")
    for extra in ({}, {"ceil_mode": 1}, {"dilations": [2, 1]})
] + [
    (
        "AveragePool",
        [normal(1, 2, 7, 8)],
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1},
    ),
    (
        "AveragePool",
        [normal(1, 2, 7)],
        {"kernel_shape": [3], "strides": [3], "ceil_mode": 1, "count_include_pad": 1},
    ),
    (
        "AveragePool",
        [normal(1, 2, 7, 8)],
        {"kernel_shape": [3, 2], "auto_pad": "SAME_LOWER", "strides": [2, 2]},
    ),
    (
        "MaxPool",
        [normal(1, 2, 7, 8)],
        {"kernel_shape": [3, 2], "auto_pad": "SAME_UPPER", "strides": [2, 2]},
    ),
    ("MaxPool", [normal(1, 2, 5, 6, 4)], {"kernel_shape": [2, 3, 2], "pads": [1, 1, 0, 0, 1, 1]}),
    ("LpPool", [normal(1, 2, 5, 6)], {"kernel_shape": [2, 3], "pads": [1, 1, 0, 1], "p": 3}),
    ("GlobalAveragePool", [normal(1, 2, 5, 6)], {}),
    ("GlobalMaxPool", [normal(1, 2, 5, 6)], {}),
]
NORMALIZATIONS: list[Case] = [
    (
        "BatchNormalization",
        [normal(2, 3, 4, 5), normal(3), normal(3), normal(3), positive(3)],
        {"epsilon": 0.01},
    ),
    ("BatchNormalization", [normal(4, 3), normal(3), normal(3), normal(3), positive(3)], {}),
    (
        "BatchNormalization",
        [normal(2, 3, 2, 2, 3), normal(3), normal(3), normal(3), positive(3)],
        {},
    ),
    ("InstanceNormalization", [normal(2, 3, 4, 5), normal(3), normal(3)], {"epsilon": 0.01}),
    ("LayerNormalization", [normal(2, 3, 4), normal(3, 4), normal(3, 4)], {"axis": 1}),
    ("LayerNormalization", [normal(2, 3, 4), normal(4)], {"epsilon": 0.01}),
    ("GroupNormalization", [normal(2, 6, 3, 4), normal(6), normal(6)], {"num_groups": 3}),
    ("LRN", [normal(1, 7, 3, 4)], {"size": 3, "alpha": 0.5, "beta": 0.6, "bias": 2.0}),
    ("LpNormalization", [normal(3, 4, 5)], {"axis": 1, "p": 1}),
    ("MeanVarianceNormalization", [normal(2, 3, 4, 5)], {}),
    ("Softmax", [normal(3, 4, 5)], {"axis": 1}),
    ("LogSoftmax", [normal(3, 4, 5)], {"axis": -2}),
    ("Hardmax", [normal(3, 4, 5)], {"axis": 1}),
]
RESIZES: list[Case] = [
    (
        "Resize",
        [normal(1, 2, 5, 6), None, singles(1, 1, *scales)],
        {"mode": mode, "coordinate_transformation_mode": how},
    )
    for mode in ("nearest", "linear", "cubic")
    for scales in ((2, 3), (0.6, 2.5))
    for how in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
] + [
    (
        "Resize",
        [normal(1, 2, 5, 6), None, None, integers(1, 2, 7, 4)],
        {"mode": "nearest", "nearest_mode": rounding},
    )
    for rounding in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
]
RECURRENT_VARIANTS: dict[str, list[dict[str, Any]]] = {
    "RNN": [{}, {"clip": 0.5}],
    "GRU": [{}, {"clip": 0.5}, {"linear_before_reset": 1}],
    "LSTM": [{}, {"clip": 0.5}, {"input_forget": 1}],
}
RECURRENT: list[Case] = [
    (
        op,
        [
            normal(5, 3, 4),
            normal(2, gates * 6, 4),
            normal(2, gates * 6, 6),
            normal(2, gates * 12),
            lengths,
            *state,
        ],
        {"hidden_size": 6, "direction": "bidirectional", **extra},
    )
    for op, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4))
    for lengths, state in ((None, ()), (np.array([5, 2, 3], dtype=np.int32), (normal(2, 3, 6),)))
    for extra in RECURRENT_VARIANTS[op]
] + [
    (
        "LSTM",
        [
            normal(4, 2, 3),
            normal(1, 20, 3),
            normal(1, 20, 5),
            normal(1, 40),
            None,
            *[normal(1, 2, 5)] * 2,
            normal(1, 15),
        ],
        {"hidden_size": 5, "direction": "reverse"},
    )
]
OTHERS: list[Case] = [
    (
        "Gemm",
        [normal(4, 3), normal(5, 4), normal(5)],
        {"transA": 1, "transB": 1, "alpha": 0.3, "beta": 0.7},
    ),
    ("Gemm", [normal(3, 4), normal(4, 5), normal(3, 1)], {}),
    ("MatMul", [normal(2, 1, 3, 4), normal(5, 4, 2)], {}),
    ("MatMul", [normal(4), normal(3, 4, 2)], {}),
    ("Einsum", [normal(2, 3, 4), normal(2, 4, 5)], {"equation": "bij,bjk->bik"}),
    ("Gelu", [normal(3, 4)], {}),
    ("Gelu", [normal(3, 4)], {"approximate": "tanh"}),
    ("PRelu", [normal(2, 3, 4), normal(3, 1)], {}),
    ("Clip", [normal(3, 4), np.array(-0.5), None], {}),
    ("Pow", [positive(3, 4), normal(4)], {}),
    ("Div", [integers(-7, 7, -7, 7), integers(2, -2, -2, 2)], {}),
    ("Mod", [integers(-7, 7, -7, 7), integers(2, -2, -3, 3)], {}),
    ("Mod", [integers(-7, 7, -7, 7), integers(2, -2, -3, 3)], {"fmod": 1}),
    ("Pad", [normal(3, 4), integers(1, 2, 3, 1), np.array(0.5)], {}),
    ("Pad", [normal(3, 4), integers(-1, 2, 3, -1), np.array(0.5)], {}),
    ("Pad", [normal(3, 4), integers(1, 2, 2, 1)], {"mode": "reflect"}),
    ("Pad", [normal(3, 4), integers(2, 1), None, integers(-1)], {"mode": "edge"}),
    (
        "Slice",
        [normal(5, 6), integers(-2, 1), integers(-100, 100), integers(0, 1), integers(-1, 2)],
        {},
    ),
    ("Gather", [normal(3, 4), np.array([[0, -1]])], {"axis": 1}),
    ("GatherND", [normal(2, 3, 4), np.array([[[1], [0]], [[2], [1]]])], {"batch_dims": 1}),
    ("GatherElements", [normal(3, 4), np.array([[0, -1], [2, 1]])], {"axis": 1}),
    ("ScatterND", [normal(4, 3), np.array([[1], [1]]), normal(2, 3)], {"reduction": "add"}),
    (
        "ScatterElements",
        [normal(3, 4), np.array([[0, -1]]), normal(1, 2)],
        {"axis": 1, "reduction": "mul"},
    ),
    ("DepthToSpace", [normal(1, 12, 2, 3)], {"blocksize": 2, "mode": "CRD"}),
    ("SpaceToDepth", [normal(1, 2, 4, 6)], {"blocksize": 2}),
    ("CumSum", [normal(3, 4), np.array(1)], {"exclusive": 1, "reverse": 1}),
    ("Trilu", [normal(3, 4), np.array(-1)], {"upper": 0}),
    ("ReduceSum", [normal(2, 3)], {"noop_with_empty_axes": 1}),
]
UNARY = """
    Abs Atan Ceil Celu Elu Erf Exp Floor HardSigmoid HardSwish LeakyRelu Mish Neg Relu Round Selu Sigmoid Sign Sin
    Softplus Softsign Tanh ThresholdedRelu
"""
REDUCTIONS = (
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd"
    " ReduceSum"
)
OTHERS.extend((name, [normal(3, 4)], {}) for name in UNARY.split())
OTHERS.extend((name, [positive(2, 3, 4), integers(0, -1)], {}) for name in REDUCTIONS.split())
AGAINST_ONNXRUNTIME = CONVOLUTIONS + POOLS + NORMALIZATIONS + RESIZES + RECURRENT + OTHERS


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes"),
    [
        pytest.param(*case, id=f"{case[0]}-{index}")
        for index, case in enumerate(AGAINST_ONNXRUNTIME)
    ],
)
def test_agrees_with_onnxruntime(
    op_type: str, inputs: list[Array | None], attributes: dict[str, Any]
) -> None:
    """In float64 where onnxruntime has the kernel, else in float32."""
    for dtype in (np.float64, np.float32)[op_type in ROUNDED_BY_ONNXRUNTIME :]:
        cast = [
            array.astype(dtype) if array is not None and array.dtype == np.float64 else array
            for array in inputs
        ]
        model, feeds = single(op_type, cast, 21, **attributes)
        try:
            (expected,) = session(model).run(None, feeds)
            break
        except ONNXRUNTIME_REFUSALS:
            if dtype == np.float32:
                raise
    result = evaluate(model, feeds)["y0"]
    assert disagreement(result, expected) is None


@pytest.mark.parametrize("opset", [7, 9, 11, 13])
def test_agrees_with_onnxruntime_in_older_opsets(opset: int) -> None:
    x = normal(2, 3, 4, 5).astype(np.float32)
    cases: list[tuple[str, list[Array], dict[str, Any]]] = [
        ("Softmax", [x], {}),
        ("LogSoftmax", [x], {"axis": 2}),
        ("ReduceSum", [x], {"axes": [1, 2]} if opset < 13 else {}),
        ("BatchNormalization", [x, *positive(4, 3).astype(np.float32)], {}),
        ("Flatten", [x], {"axis": 2}),
        ("Dropout", [x], {}),
    ]
    if opset < 11:
        cases += [
            ("Clip", [x], {"min": -0.5, "max": 0.25}),
            ("Pad", [x], {"pads": [0, 0, 1, 0, 0, 0, 0, 2], "value": 0.5}),
        ]
    if opset < 10:
        cases += [("Slice", [x], {"starts": [1, -2], "ends": [9, -1], "axes": [2, 3]})]
        cases += [("TopK", [x], {"k": 2, "axis": 1})]
    if opset == 7:
        cases += [
            ("Upsample", [x], {"scales": [1.0, 1.0, 2.0, 3.0], "mode": mode})
            for mode in ("nearest", "linear")
        ]
    if opset < 13:
        cases += [
            ("Split", [x], {"axis": 3, "split": [2, 3]}),
            ("Unsqueeze", [x], {"axes": [0, 3]}),
        ]
    for op_type, inputs, attributes in cases:
        model, feeds = single(
            op_type, inputs, opset, outputs=2 if op_type in ("TopK", "Split") else 1, **attributes
        )
        results = evaluate(model, feeds)
        for name, expected in zip(results, session(model).run(None, feeds), strict=True):
            assert disagreement(results[name], expected) is None, op_type


LIGHT_MODELS = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["bvlc_alexnet", "densenet121", "inception_v1", "resnet50", "shufflenet", "squeezenet"]
)
def test_agrees_with_onnxruntime_on_whole_models(name: str) -> None:
    model = onnx.load(LIGHT_MODELS / f"light_{name}.onnx")
    constants = {initializer.name for initializer in model.graph.initializer}
    (data,) = (value.name for value in model.graph.input if value.name not in constants)
    feeds = {data: normal(1, 3, 224, 224).astype(np.float32)}
    (expected,) = session(model).run(None, feeds)
    (result,) = evaluate(model, feeds).values()
    assert disagreement(result, expected) is None


class TestLegacyForms:
    """Forms that onnxruntime no longer runs, against their definition."""

    @pytest.mark.parametrize("axis", [1, -2])
    def test_broadcast_axis(self, axis: int) -> None:
        x, y = normal(2, 3, 4), normal(3)
        result = apply("Add", x, y, opset=6, broadcast=1, axis=axis)
        np.testing.assert_array_equal(result, x + y[:, None])

    def test_broadcast_without_axis_matches_the_last_axes(self) -> None:
        x, y = normal(2, 3, 4), normal(3, 4)
        np.testing.assert_array_equal(apply("Mul", x, y, opset=1, broadcast=1), x * y)

    def test_gemm_broadcast(self) -> None:
        a, b, c = normal(2, 3), normal(3, 4), normal(4)
        np.testing.assert_allclose(
            apply("Gemm", a, b, c, opset=6, broadcast=1), a @ b + c, rtol=1e-14
        )

    def test_prelu_slope_is_per_channel_before_opset_7(self) -> None:
        x, slope = normal(2, 3, 3), normal(3)
        np.testing.assert_array_equal(
            apply("PRelu", x, slope, opset=6), np.where(x < 0, x * slope[:, None], x)
        )
        np.testing.assert_array_equal(
            apply("PRelu", x, slope, opset=7), np.where(x < 0, x * slope, x)
        )

    def test_reshape_by_attribute(self) -> None:
        assert apply("Reshape", normal(2, 3, 4), opset=1, shape=[0, -1]).shape == (2, 12)

    def test_cast_by_type_name(self) -> None:
        np.testing.assert_array_equal(
            apply("Cast", np.array([1.5, -1.5]), opset=1, to="INT32"), [1, -1]
        )


class TestBatchNormalization:
    x = normal(2, 3, 4)
    parameters = (normal(3), normal(3) + 1, normal(3), positive(3))

    def run(
        self, opset: int, outputs: int, *parameters: Array, **attributes: Any
    ) -> dict[str, Array]:
        model, feeds = single(
            "BatchNormalization", [self.x, *parameters], opset, outputs, **attributes
        )
        return evaluate(model, feeds)

    def affine(self, mean: Array, variance: Array, epsilon: float = 1e-5) -> Array:
        scale, bias = (parameter[:, None] for parameter in self.parameters[:2])
        deviation = np.sqrt(variance[:, None] + float(np.float32(epsilon)))
        return np.asarray((self.x - mean[:, None]) / deviation * scale + bias)

    @pytest.mark.parametrize(
        ("opset", "outputs", "attributes"),
        [
            (1, 1, {"consumed_inputs": [0, 0, 0, 1, 1]}),
            (6, 1, {}),
            (6, 1, {"is_test": 0}),
            (6, 5, {"is_test": 1}),
            (7, 1, {}),
            (8, 1, {"spatial": 0}),
            (9, 1, {}),
            (14, 1, {"training_mode": 0}),
            (15, 1, {}),
        ],
    )
    def test_inference(self, opset: int, outputs: int, attributes: dict[str, Any]) -> None:
        results = self.run(opset, outputs, *self.parameters, **attributes)
        np.testing.assert_allclose(results["y0"], self.affine(*self.parameters[2:]), rtol=1e-12)

    @pytest.mark.parametrize(
        ("opset", "outputs", "attributes"),
        [
            (6, 5, {}),
            (7, 5, {}),
            (9, 5, {}),
            (14, 3, {"training_mode": 1}),
            (15, 1, {"training_mode": 1}),
        ],
    )
    def test_training(self, opset: int, outputs: int, attributes: dict[str, Any]) -> None:
        results = self.run(opset, outputs, *self.parameters, momentum=0.75, **attributes)
        mean, variance = self.x.mean(axis=(0, 2)), self.x.var(axis=(0, 2))
        np.testing.assert_allclose(results["y0"], self.affine(mean, variance), rtol=1e-12)
        if outputs > 1:
            np.testing.assert_allclose(
                results["y1"], 0.75 * self.parameters[2] + 0.25 * mean, rtol=1e-12
            )
            np.testing.assert_allclose(
                results["y2"], 0.75 * self.parameters[3] + 0.25 * variance, rtol=1e-12
            )

    def test_parameters_must_fit(self) -> None:
        with pytest.raises(ValueError, match="1 means"):
            self.run(9, 1, *(np.ones(1),) * 4)

    def test_outputs_may_overwrite_parameters(self) -> None:
        names = ["x", "s", "b", "m", "v"]
        feeds = dict(zip(names, (self.x, *self.parameters), strict=True))
        node = helper.make_node("BatchNormalization", names, ["y", "m", "v"], momentum=0.75)
        results = evaluate(make_model([node], feeds, ["y", "m", "v"], opset=12), feeds)
        np.testing.assert_allclose(
            results["m"], 0.75 * self.parameters[2] + 0.25 * self.x.mean(axis=(0, 2)), rtol=1e-12
        )

    def test_parameters_per_element(self) -> None:
        scale, bias, mean, variance = normal(3, 4), normal(3, 4) + 1, normal(3, 4), positive(3, 4)
        expected = (self.x - mean) / np.sqrt(variance + float(np.float32(1e-5))) * scale + bias
        results = self.run(7, 1, scale, bias, mean, variance, spatial=0)
        np.testing.assert_allclose(results["y0"], expected, rtol=1e-12)


class TestPrecision:
    @pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
    def test_floats_are_converted_exactly_and_never_rounded(self, dtype: Any) -> None:
        constant = np.array([0.1, 3.0], dtype=dtype)
        x = np.array([1e-30, 1e30])
        model = make_model(
            [helper.make_node("Add", ["x", "c"], ["y"])], {"x": x}, ["y"], constants={"c": constant}
        )
        np.testing.assert_array_equal(
            evaluate(model, {"x": x})["y"], x + constant.astype(np.float64)
        )

    def test_cast_between_floats_keeps_the_value(self) -> None:
        x = np.array([0.1, 1e30])
        np.testing.assert_array_equal(apply("Cast", x, opset=13, to=TensorProto.FLOAT16), x)

    def test_attributes_have_float32_defaults(self) -> None:
        np.testing.assert_array_equal(
            apply("LeakyRelu", np.array([-1.0]), opset=6), [-float(np.float32(0.01))]
        )

    def test_integers_keep_their_type_and_wrap(self) -> None:
        x = np.array([250], dtype=np.uint8)
        result = apply("Add", x, x, opset=14)
        assert result.dtype == np.uint8
        assert result.tolist() == [244]


class TestModels:
    x = normal(2, 3)

    def test_unknown_operator_is_named(self) -> None:
        node = helper.make_node("Fancy", ["x"], ["y"], domain="com.acme")
        model = make_model(
            [node], {"x": self.x}, ["y"], imports=[helper.make_opsetid("com.acme", 1)]
        )
        with pytest.raises(UnsupportedOp, match=r"com\.acme::Fancy") as caught:
            evaluate(model, {"x": self.x})
        assert (caught.value.op_type, caught.value.domain) == ("Fancy", "com.acme")

    def test_every_value_is_kept_by_evaluate_all(self) -> None:
        nodes = [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Abs", ["a"], ["y"])]
        model = make_model(nodes, {"x": self.x}, ["y"], constants={"unused": np.ones(2)})
        assert list(evaluate(model, {"x": self.x})) == ["y"]
        assert set(evaluate_all(model, {"x": self.x})) == {"x", "a", "y", "unused"}

    def test_nodes_may_be_unsorted(self) -> None:
        nodes = [helper.make_node("Abs", ["a"], ["y"]), helper.make_node("Neg", ["x"], ["a"])]
        np.testing.assert_array_equal(
            evaluate(make_model(nodes, {"x": self.x}, ["y"]), {"x": self.x})["y"], np.abs(self.x)
        )

    def test_long_chains(self) -> None:
        count = 20_000
        nodes = [
            helper.make_node("Neg", [f"v{index}"], [f"v{index + 1}"]) for index in range(count)
        ]
        model = make_model(nodes, {"v0": self.x}, [f"v{count}"])
        np.testing.assert_array_equal(evaluate(model, {"v0": self.x})[f"v{count}"], self.x)

    def test_initializers_stand_in_for_inputs_and_give_way_to_them(self) -> None:
        node = helper.make_node("Identity", ["w"], ["y"])
        model = make_model([node], {"w": self.x}, ["y"], constants={"w": np.zeros((2, 3))})
        assert not evaluate(model, {})["y"].any()
        np.testing.assert_array_equal(evaluate(model, {"w": self.x})["y"], self.x)

    def test_inputs_are_checked(self) -> None:
        model = make_model([helper.make_node("Neg", ["x"], ["y"])], {"x": self.x}, ["y"])
        with pytest.raises(ValueError, match="missing graph input: x"):
            evaluate(model, {})
        with pytest.raises(ValueError, match="no such graph input: z"):
            evaluate(model, {"x": self.x, "z": self.x})

    def test_external_data(self, tmp_path: Path) -> None:
        node = helper.make_node("Add", ["x", "w"], ["y"])
        model = make_model([node], {"x": self.x}, ["y"], constants={"w": self.x})
        harness.save_external(model, tmp_path / "m.onnx", "w.bin")
        loaded = onnx.load(tmp_path / "m.onnx", load_external_data=False)
        np.testing.assert_array_equal(
            evaluate(loaded, {"x": self.x}, base_dir=tmp_path)["y"], 2 * self.x
        )
        with pytest.raises(ValueError, match="base_dir"):
            evaluate(loaded, {"x": self.x})

    @pytest.mark.parametrize("condition", [True, False])
    def test_branches_read_outer_values(self, condition: bool) -> None:
        branches: dict[str, Any] = {
            f"{branch}_branch": helper.make_graph(
                [helper.make_node(op_type, ["x", "a"], [branch])],
                branch,
                [],
                [helper.make_empty_tensor_value_info(branch)],
            )
            for branch, op_type in (("then", "Add"), ("else", "Mul"))
        }
        nodes = [
            helper.make_node("Neg", ["x"], ["a"]),
            helper.make_node("If", ["c"], ["y"], **branches),
        ]
        feeds = {"x": self.x, "c": np.array(condition)}
        expected = self.x - self.x if condition else -self.x * self.x
        np.testing.assert_array_equal(
            evaluate(make_model(nodes, feeds, ["y"]), feeds)["y"], expected
        )

    def test_loops_carry_capture_and_collect(self) -> None:
        body = helper.make_graph(
            [
                helper.make_node("Add", ["s", "x"], ["t"]),
                helper.make_node("Identity", ["c"], ["d"]),
                helper.make_node("Identity", ["t"], ["row"]),
            ],
            "body",
            [helper.make_empty_tensor_value_info(name) for name in ("i", "c", "s")],
            [helper.make_empty_tensor_value_info(name) for name in ("d", "t", "row")],
        )
        node = helper.make_node("Loop", ["n", "", "x"], ["last", "rows"], body=body)
        feeds = {"x": self.x, "n": np.array(3)}
        results = evaluate(make_model([node], feeds, ["last", "rows"]), feeds)
        np.testing.assert_allclose(results["last"], 4 * self.x, rtol=1e-15)
        assert results["rows"].shape == (3, 2, 3)


class TestFunctions:
    x = normal(2, 3)
    domain = helper.make_opsetid("local", 1)

    def scaled(self, overload: str = "", op_type: str = "LeakyRelu") -> onnx.FunctionProto:
        """One node whose alpha is an attribute of the function, 0.5 by default."""
        node = helper.make_node(op_type, ["a"], ["b"])
        reference = onnx.AttributeProto(
            name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT
        )
        node.attribute.append(reference)
        return helper.make_function(
            "local",
            "Scaled",
            ["a"],
            ["b"],
            [node],
            [helper.make_opsetid("", 16)],
            attribute_protos=[helper.make_attribute("slope", 0.5)],
            overload=overload,
        )

    def run(self, nodes: Sequence[onnx.NodeProto], *functions: onnx.FunctionProto) -> Array:
        model = make_model(nodes, {"x": self.x}, ["y"], functions=functions, imports=[self.domain])
        return evaluate(model, {"x": self.x})["y"]

    def test_attribute_default_and_reference(self) -> None:
        given = helper.make_node("Scaled", ["x"], ["y"], domain="local", slope=0.25)
        default = helper.make_node("Scaled", ["x"], ["y"], domain="local")
        np.testing.assert_array_equal(
            self.run([given], self.scaled()), np.where(self.x < 0, 0.25 * self.x, self.x)
        )
        np.testing.assert_array_equal(
            self.run([default], self.scaled()), np.where(self.x < 0, 0.5 * self.x, self.x)
        )

    def test_nested_call_passes_the_attribute_on(self) -> None:
        inner = helper.make_node("Scaled", ["a"], ["b"], domain="local")
        inner.attribute.append(
            onnx.AttributeProto(name="slope", ref_attr_name="outer", type=onnx.AttributeProto.FLOAT)
        )
        outer = helper.make_function(
            "local",
            "Outer",
            ["a"],
            ["b"],
            [inner],
            [helper.make_opsetid("", 16), self.domain],
            attributes=["outer"],
        )
        node = helper.make_node("Outer", ["x"], ["y"], domain="local", outer=0.125)
        result = self.run([node], self.scaled(), outer)
        np.testing.assert_array_equal(result, np.where(self.x < 0, 0.125 * self.x, self.x))

    def test_overloads(self) -> None:
        node = helper.make_node("Scaled", ["x"], ["y"], domain="local", overload="elu")
        result = self.run([node], self.scaled(), self.scaled("elu", "Elu"))
        np.testing.assert_array_equal(result, np.where(self.x < 0, 0.5 * np.expm1(self.x), self.x))

    def test_a_branch_in_a_function_sees_its_attributes(self) -> None:
        leaky = helper.make_node("LeakyRelu", ["a"], ["r"])
        leaky.attribute.append(
            onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
        )
        branch = helper.make_graph(
            [leaky], "branch", [], [helper.make_empty_tensor_value_info("r")]
        )
        body = [
            helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.array(True))),
            helper.make_node("If", ["c"], ["b"], then_branch=branch, else_branch=branch),
        ]
        function = helper.make_function(
            "local",
            "Branching",
            ["a"],
            ["b"],
            body,
            [helper.make_opsetid("", 16)],
            attributes=["slope"],
        )
        node = helper.make_node("Branching", ["x"], ["y"], domain="local", slope=0.25)
        np.testing.assert_array_equal(
            self.run([node], function), np.where(self.x < 0, 0.25 * self.x, self.x)
        )
