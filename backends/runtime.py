"""Running models with onnxruntime: sessions, and the evaluation of constant expressions.

onnxruntime rather than `onnx.reference` evaluates constants, for two reasons: its kernels would compute the expression
at run time, so folding changes no number; and the reference is wrong in places (BatchNormalization, grouped
ConvTranspose).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnxruntime
from onnx import ModelProto

from ..ir.graph import Graph, Node, Value
from ..ir.module import Module
from ..ir.ops import op_info
from ..ir.ops.parameters import outdated
from ..ir.tensor import Array, ArrayTensor
from ..ir.types import dtype_of
from .onnx.emitter import emit_model

IR_VERSION = 8
"""ONNX IR version of the models built here; every supported onnxruntime reads it."""


def evaluate(values: Sequence[Value], feeds: Mapping[Value, Array], opset: int) -> list[Array]:
    """Return the elements of `values`, computed from `feeds` alone by operators of opset `opset`.

    The session has one thread and no graph optimizations. Raises the errors of onnxruntime.
    """
    module, fed = _module(values, feeds, opset)
    model, *_ = emit_model(module)
    session = new_session(model, threads=1)
    inputs = dict(zip((entry.name for entry in model.graph.input), map(_contiguous, fed), strict=True))
    results: list[Array] = session.run(None, inputs)
    return results


def new_session(
    model: ModelProto, base_dir: Path | None = None, *, threads: int = 0, reuse: bool = True
) -> onnxruntime.InferenceSession:
    """Return a silent session without graph optimizations. Raises the errors of onnxruntime.

    External data is below `base_dir`. `threads` 0 means one for each core. Without `reuse` no tensor takes the memory
    of another, which takes onnxruntime time quadratic in the number of nodes to plan.
    """
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.enable_mem_reuse = reuse
    options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED  # shapes first, which frees their tensors early
    if threads:
        options.intra_op_num_threads = options.inter_op_num_threads = threads
    if base_dir is not None:
        folder = str(base_dir.resolve())
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _contiguous(array: Array) -> Array:
    return np.require(array, requirements="C")


def _module(values: Sequence[Value], feeds: Mapping[Value, Array], opset: int) -> tuple[Module, list[Array]]:
    """Return a module of the nodes between `feeds` and `values`, and the elements of its inputs.

    An operand that is an attribute in the opset is a constant of the module, all other feeds are inputs.
    """
    graph = Graph("constants", {"": opset})
    nodes = _between(values, feeds)
    stated = {value for node in nodes for value in _attribute_operands(node, opset)}
    copies: dict[Value, Value] = {}
    fed: list[Array] = []
    for i, (value, array) in enumerate(feeds.items()):
        tensor = ArrayTensor(array, dtype_of(value.type))
        if value in stated:
            constant = Node("constant", (), {"value": tensor}, outputs=[(f"feed_{i}", tensor.type)])
            copies[value] = graph.append(constant).output
        else:
            copies[value] = graph.add_input(f"feed_{i}", tensor.type)
            fed.append(array)
    for node in nodes:
        outputs = [(f"v{len(graph)}_{i}", value.type) for i, value in enumerate(node.outputs)]
        named = [
            (name if value.users else "", type_) for (name, type_), value in zip(outputs, node.outputs, strict=True)
        ]
        inputs = [None if value is None else copies[value] for value in node.inputs]
        copy = graph.append(Node(node.op, inputs, node.attrs, outputs=named))
        copies.update(zip(node.outputs, copy.outputs, strict=True))
    graph.set_outputs([copies[value] for value in values])
    return Module(graph, ir_version=IR_VERSION), fed


def _attribute_operands(node: Node, opset: int) -> list[Value]:
    """Return the operands of a node that are attributes in `opset`."""
    info = op_info(node.op)
    old = {} if info is None else outdated(info, opset)
    operands = [node.input(parameter.index) for parameter in old.values() if parameter.place is None]
    return [value for value in operands if value is not None]


def _between(values: Sequence[Value], feeds: Mapping[Value, Array]) -> list[Node]:
    """Return the nodes that compute `values` from `feeds`, producers first."""
    order: dict[Node, None] = {}
    stack = [value.node for value in reversed(values)]
    while stack:
        node = stack[-1]
        assert node is not None
        producers = [value.node for value in node.inputs if value is not None and value not in feeds]
        missing = [producer for producer in producers if producer is not None and producer not in order]
        if missing and node not in order:
            stack.extend(missing)
        else:
            order.setdefault(node)
            stack.pop()
    return list(order)
