"""Writing a kernel as a layer of the graph."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...ir.attributes import Attribute
from ...ir.graph import Node, Value
from ...ir.rewriter import Rewriter
from ...ir.tensor import ArrayTensor
from ...ir.types import shape_of
from .linear_kernels import LinearKernel, end_pads, turned, weight_of


def write_layer(
    rewriter: Rewriter,
    kernel: LinearKernel,
    op: str,
    data: Value,
    base: Node,
    before: Node,
    hint: str,
) -> tuple[Node, Value]:
    """Make the layer `op` of `data` that computes a kernel, like the layer `base`.

    Returns its node and its result. A MatMul with a bias has the result of an `add` after it.
    """
    assert kernel.dtype is not None
    stem = weight_of(base).name.removesuffix(".folded")
    weight, attrs = kernel.weight, dict(base.attrs)
    if kernel.kind == "matmul":
        weight, attrs = weight.T, {}
    else:
        if op == "nn.conv_transpose":
            weight = turned(weight, kernel.group)
        attrs.pop("auto_pad", None)
        attrs |= {"kernel_shape": kernel.weight.shape[2:], **_given(kernel, attrs)}
    with rewriter.rewriting(base):
        constant = rewriter.rounded(weight, kernel.dtype, before=before, hint=f"{stem}.merged")
        inputs = [data, constant]
        has_bias = bool(kernel.bias.any())
        if has_bias and op != "matmul":
            inputs.append(_bias(rewriter, kernel, before, stem))
        layer = rewriter.make(
            op, inputs, attrs, before=before, hint=hint, name=base.name, type_=base.output.type
        )
    if not has_bias or op != "matmul":
        return layer, layer.output
    shape = shape_of(layer.output.type)
    assert shape is not None
    with rewriter.rewriting(before):
        bias, axis = _bias(rewriter, kernel, before, stem), {"axis": len(shape) - 1}
        add = rewriter.make(
            "add", [layer.output, bias], axis, before=before, hint=hint, type_=layer.output.type
        )
    return layer, add.output


def _bias(rewriter: Rewriter, kernel: LinearKernel, before: Node, stem: str) -> Value:
    exact = ArrayTensor(np.ascontiguousarray(kernel.bias))
    return rewriter.constant(exact, before=before, hint=f"{stem}.merged_bias")


def _given(kernel: LinearKernel, attrs: Mapping[str, object]) -> dict[str, Attribute]:
    """Return the attributes of a layer that are not the default ones, or that `attrs` has."""
    pads = (*[axis.start for axis in kernel.axes], *end_pads(kernel))
    numbers: dict[str, tuple[tuple[int, ...], int]] = {
        "pads": (pads, 0),
        "strides": (tuple([axis.stride for axis in kernel.axes]), 1),
        "dilations": (tuple([axis.dilation for axis in kernel.axes]), 1),
    }
    found: dict[str, Attribute] = {
        name: given
        for name, (given, default) in numbers.items()
        if set(given) != {default} or name in attrs
    }
    if kernel.group > 1 or "group" in attrs:
        found["group"] = kernel.group
    return found
