"""BatchNormToConv: scales and shifts that no layer absorbs become depthwise convolutions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..ir.evaluate import ConstantEvaluator
from ..ir.graph import Graph, Node, Value
from ..ir.module import Module
from ..ir.ops import AFFINE_KINDS, is_legal, sole_reader
from ..ir.rewriter import Rewriter
from ..ir.tensor import round_to
from ..ir.types import F16, F32, dtype_of, shape_of
from .affine.algebra.recognise import AffineOp, find_affine
from .affine.records.fold_records import fold_records
from .fold_scale_axis import FoldScaleAxis
from .infra import Pass, PassContext
from .simplify_expr import SimplifyExpr

RANKS = (3, 4, 5)
"""Ranks of the data of a convolution: batch, channels, and one to three spatial axes."""


@dataclass(frozen=True)
class BatchNormToConv(Pass):
    """Turn the scales and shifts per channel that are left into depthwise 1x1 Convs.

    For devices that have neither BatchNormalization nor a Mul or Add per channel. Run it last:
    `default,BatchNormToConv`.

    1. `scale * x + shift` with numbers for each channel of axis 1 becomes `nn.conv(x, scale,
       shift)` with a kernel of one element and as many groups as channels. Affines in a row become
       one Conv. FoldScaleAxis does it: the Conv begins as the identity, and absorbs them.
    2. x must have rank 3 to 5, a known number of channels, and elements of float32 or float16.
       onnxruntime has no Conv of float64.
    3. What FoldScaleAxis refuses stays, with its reason. So does an affine with the same numbers
       for all channels.

    The fold map has each Conv as a layer, with the BatchNormalization that it absorbed.
    """

    name: ClassVar[str] = "BatchNormToConv"
    after: ClassVar[tuple[str, ...]] = ("FoldScaleAxis",)

    def run(self, module: Module, ctx: PassContext) -> bool:
        changed = False
        while _round(module, ctx):  # an affine too large for one Conv may fit a second one
            changed = True
        if changed:
            FoldScaleAxis().run(module, ctx)  # affines before the new layers go into them, too
            SimplifyExpr().run(module, ctx)  # so does a Pad, or another operator beside them
        return changed


def _round(module: Module, ctx: PassContext) -> bool:
    """Put a Conv before every row of affines, and return whether one has absorbed any."""
    rewriter = Rewriter(module)
    made = [
        _identity_before(affine, rewriter)
        for graph in module.graphs()
        for affine in list(_first_affines(graph, module.constants))
    ]
    if not made:
        return False
    FoldScaleAxis(forward=False).run(module, ctx)
    layers = fold_records(module).layers
    idle = [node for node in made if node not in layers]
    for node in idle:
        with rewriter.step("drop idle Conv", node.description, is_counted=False):
            rewriter.replace(node.output, node.operand())
    return len(idle) < len(made)


def _first_affines(graph: Graph, constants: ConstantEvaluator) -> Iterator[AffineOp]:
    """Yield the first affine of each row of affines that a depthwise Conv can compute."""
    seen: set[Node] = set()
    results: set[Value] = set()
    for node in graph.operators_of(AFFINE_KINDS):
        affine = None if node in seen else find_affine(node, constants)
        if affine is None or affine.axis != 1 or not _takes_conv(affine, node):
            continue
        seen.update(affine.nodes)
        results.add(affine.result)
        if affine.data not in results or sole_reader(affine.data) is not node:
            yield affine


def _takes_conv(affine: AffineOp, at: Node) -> bool:
    """Return whether a depthwise Conv beside the node `at` is valid and has a kernel."""
    shape, dtype = shape_of(affine.data.type), dtype_of(affine.data.type)
    if shape is None or len(shape) not in RANKS:
        return False
    # The number of channels is the number of groups. A model that fails when it runs may declare
    # more channels than its parameters have numbers.
    if not isinstance(shape[1], int) or shape[1] == 0 or shape[1] != affine.scale.size:
        return False
    return dtype in (F16, F32) and is_legal("nn.conv", str(dtype), at)


def _identity_before(affine: AffineOp, rewriter: Rewriter) -> Node:
    """Insert and return a depthwise Conv that changes nothing, before `affine`."""
    first, data = affine.nodes[0], affine.data
    shape, dtype = shape_of(data.type), dtype_of(data.type)
    assert shape is not None and dtype is not None and isinstance(shape[1], int)
    ones = round_to(np.ones((shape[1], 1, *[1] * (len(shape) - 2))), dtype)
    hint = affine.result.name
    step = rewriter.step("insert Conv", first.description, is_counted=False)
    with step, rewriter.rewriting(first):
        weight = rewriter.rounded(ones, dtype, before=first, hint=f"{hint}.weight")
        conv = rewriter.make(
            "nn.conv",
            [data, weight],
            {"group": shape[1], "kernel_shape": tuple([1] * (len(shape) - 2))},
            before=first,
            hint=hint,
            type_=data.type,
        )
        inputs = [conv.output if value is data else value for value in first.inputs]
        rewriter.set_inputs(first, inputs)
    return conv
