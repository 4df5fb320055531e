"""Pooling over windows and over all spatial axes."""

from __future__ import annotations

from ..graph import Node
from ..types import Dim, TensorType
from .inference import Types, input_dtype, input_shape, listed
from .row import Constants, OpInfo, Trait, integer, integers, positive_integers
from .views import window_of

_WINDOW = {
    "ceil_mode": integer,
    "dilations": positive_integers,
    "kernel_shape": positive_integers,
    "pads": integers,
    "strides": positive_integers,
}


def infer_pool(node: Node, constants: Constants) -> Types:
    """Infer [N, C, spatial...]; an extent is known where the window is given in numbers and nothing is rounded up."""
    dtype, shape = input_dtype(node), input_shape(node)
    kernel = listed(node, "kernel_shape", 9, constants)
    if shape is None or kernel is None or len(shape) != len(kernel) + 2:
        return (TensorType(dtype, None),)
    window = window_of(node, len(kernel))
    dims: list[Dim] = []
    for i, dim in enumerate(shape[2:]):
        known = window is not None and isinstance(dim, int) and not node.attrs.get("ceil_mode")
        dims.append(window.count(i, dim, kernel[i]) if known else None)  # type: ignore[arg-type, union-attr]
    return (TensorType(dtype, (*shape[:2], *dims)),)


def infer_global_pool(node: Node, constants: Constants) -> Types:
    """Infer [N, C, 1, ...]."""
    dtype, shape = input_dtype(node), input_shape(node)
    return (TensorType(dtype, None if shape is None else (*shape[:2], *(1,) * (len(shape) - 2))),)


_AVERAGE = frozenset({Trait.AVERAGES})
_EXTREMUM = frozenset({Trait.EXTREMUM})

ROWS = (
    OpInfo("nn.max_pool", (1, 1), infer_pool, onnx="MaxPool", attrs=_WINDOW, traits=_EXTREMUM),
    OpInfo(
        "nn.avg_pool",
        (1, 1),
        infer_pool,
        onnx="AveragePool",
        attrs={**_WINDOW, "count_include_pad": integer},
        traits=_AVERAGE,
    ),
    OpInfo("nn.lp_pool", (1, 1), infer_pool, onnx="LpPool", attrs={**_WINDOW, "p": integer}),
    OpInfo("nn.global_max_pool", (1, 1), infer_global_pool, onnx="GlobalMaxPool", traits=_EXTREMUM),
    OpInfo("nn.global_avg_pool", (1, 1), infer_global_pool, onnx="GlobalAveragePool", traits=_AVERAGE),
    OpInfo("nn.global_lp_pool", (1, 1), infer_global_pool, onnx="GlobalLpPool", attrs={"p": integer}),
)
