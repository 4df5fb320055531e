"""Evaluation of constant expressions with onnxruntime, in another process.

onnxruntime rather than `onnx.reference` evaluates constants, for two reasons: its kernels would
compute the expression at run time, so folding changes no number; and the reference is wrong in
places (BatchNormalization, grouped ConvTranspose). But some of its kernels crash on operands that
its checks let pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from onnx import defs

from ...ir.graph import Graph, Node, Value
from ...ir.module import Module
from ...ir.ops import op_info
from ...ir.ops.parameters import outdated
from ...ir.tensor import Array, ArrayTensor
from ...ir.types import dtype_of
from ...support.errors import EmitError
from ...support.isolation import Worker
from ..onnx.emitter import emit_model
from ..onnx.legalize import onnx_op_type
from .messages import pack, unpack

IR_VERSION = 8
"""ONNX IR version of the models built here; every supported onnxruntime reads it."""

SERVER = "irc.backends.runtime.server"
"""The module whose `main` answers."""

SECONDS = 20
"""Processor time that one evaluation may take."""

MAX_CRASHES = 8
"""Crashes after which a compile evaluates nothing more: each costs a process, or `SECONDS`."""


class RuntimeEvaluator:
    """The evaluator of a compile.

    Its process starts with the first expression, and ends by `close`. `blamed` are the operators
    that crashed it, as the passes found out. They are not tried again.
    """

    def __init__(self) -> None:
        self.installed = find_spec("onnxruntime") is not None
        self.blamed: set[str] = set()
        self._worker = Worker(SERVER)

    @property
    def gave_up(self) -> bool:
        """Whether onnxruntime is not installed, or crashed too often."""
        return not self.installed or self._worker.crashes >= MAX_CRASHES

    def evaluate(
        self, values: Sequence[Value], feeds: Mapping[Value, Array], opset: int
    ) -> list[Array] | None:
        """Return the elements of `values`, computed from `feeds` alone by operators of `opset`.

        The result is None if ONNX cannot express them, or onnxruntime cannot compute them. Raises
        WorkerDiedError if it crashes, or takes too much time or memory.
        """
        try:
            module, fed = _module(values, feeds, opset)
            model, *_ = emit_model(module)
        except EmitError:
            return None
        answer = self._worker.ask(pack(model.SerializeToString(), fed), SECONDS)
        return unpack(answer)[1] if answer else None

    def close(self) -> None:
        """End the process."""
        self._worker.close()


def _module(
    values: Sequence[Value], feeds: Mapping[Value, Array], opset: int
) -> tuple[Module, list[Array]]:
    """Return a module of the nodes between `feeds` and `values`, and the elements of its inputs.

    An operand that is an attribute in the opset is a constant of the module, all other feeds are
    inputs.
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
        all_named = _has_results_without_end(node)
        outputs = [
            (f"v{len(graph)}_{i}" if value.name or value.users or all_named else "", value.type)
            for i, value in enumerate(node.outputs)
        ]
        inputs = [None if value is None else copies[value] for value in node.inputs]
        copy = graph.append(Node(node.op, inputs, node.attrs, outputs=outputs))
        copies.update(zip(node.outputs, copy.outputs, strict=True))
    graph.set_outputs([copies[value] for value in values])
    return Module(graph, ir_version=IR_VERSION), fed


def _attribute_operands(node: Node, opset: int) -> list[Value]:
    """Return the operands of a node that are attributes in `opset`."""
    info = op_info(node.op)
    old = {} if info is None else outdated(info, opset)
    operands = [node[name] for name, parameter in old.items() if parameter.place is None]
    return [value for value in operands if value is not None]


def _has_results_without_end(node: Node) -> bool:
    """Return whether an operator has any number of results.

    onnxruntime's Split crashes if one has no name.
    """
    op_type, opset = onnx_op_type(node) or "", node.opset
    if not defs.has(op_type, opset, ""):
        return False
    results = defs.get_schema(op_type, opset, "").outputs
    return bool(results) and results[-1].option == defs.OpSchema.FormalParameterOption.Variadic


def _between(values: Sequence[Value], feeds: Mapping[Value, Array]) -> list[Node]:
    """Return the nodes that compute `values` from `feeds`, producers first."""
    order: dict[Node, None] = {}
    stack = [value.node for value in reversed(values)]
    while stack:
        node = stack[-1]
        assert node is not None
        producers = [
            value.node for value in node.inputs if value is not None and value not in feeds
        ]
        missing = [
            producer for producer in producers if producer is not None and producer not in order
        ]
        if missing and node not in order:
            stack.extend(missing)
        else:
            order.setdefault(node)
            stack.pop()
    return list(order)
