"""Which calls of model-local functions hold back a fold, so that their bodies have to stand in the graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from ..ir.graph import Function, FunctionKey, Node, Value
from ..ir.module import Module
from ..ir.ops import AFFINE_KINDS, has_trait, op_info
from ..ir.ops.row import Trait
from ..ir.rewriter import is_known
from ..ir.tensor import Tensor

SMALL = 1024
"""Bytes of constants in a body that several calls may copy."""


def call_key(node: Node) -> FunctionKey:
    """Return the key of the function that `node` calls, if the module has one under that key."""
    domain, _, name = node.op.partition("::")
    return (domain, name, node.overload)


def folding_calls(module: Module, calls: Sequence[Node]) -> list[Node]:
    """Return those of `calls` that let an affine move or a shape become known once they are inlined, in their order.

    O(nodes of the bodies) for each call.
    """
    counts = Counter(map(call_key, calls))
    bodies = {call: _Body(module, call) for call in calls}
    bodies = {call: body for call, body in bodies.items() if body.bytes <= SMALL or counts[call_key(call)] == 1}
    found = {call for call, body in bodies.items() if body.holds_back or body.opens_shapes}
    found.update([call for call, body in bodies.items() if body.has_layer and _is_beside(call, found)])
    return [call for call in calls if call in found]


def _is_beside(call: Node, affines: Collection[Node]) -> bool:
    """Return whether an affine, or one of the calls `affines`, makes an operand of `call` or reads a result."""
    producers = [value.node for value in call.inputs if value is not None and value.node is not None]
    readers = [reader for value in call.outputs for reader in value.users]
    return any(node in affines or node.op == "nn.batch_norm" or _is_affine(node) for node in (*producers, *readers))


def _is_affine(node: Node) -> bool:
    """Return whether `node` is an affine: arithmetic of data and a constant."""
    constant = [value is not None and value.node is not None and value.node.op == "constant" for value in node.inputs]
    return node.op in AFFINE_KINDS and any(constant) and not all(constant)


class _Body:
    """What stands in the body of a called function, and in the bodies of its own calls.

    An operand is constant in the body itself, or because the call gives a constant. `holds_back` tells whether an
    affine would meet a layer, of which one is what it is only with the operands of the call. `bytes` is the size of the
    constants that a copy of the body would have.
    """

    def __init__(self, module: Module, call: Node) -> None:
        self.bytes = 0
        layers: set[bool] = set()
        affines: set[bool] = set()
        works_on_shapes = given_norm = False
        stack: list[tuple[Function, Sequence[bool]]] = []
        seen: set[FunctionKey] = set()
        self._enter(module, call, [_is_constant(value) for value in call.inputs], stack, seen)
        while stack:
            function, given = stack.pop()
            own: set[Value] = set()
            constants = {value for value, is_given in zip(function.graph.inputs, given, strict=False) if is_given}
            for node in function.graph.walk():
                if node.op == "constant":
                    own.update(node.outputs)
                    payload = node.attrs.get("value")
                    self.bytes += payload.nbytes if isinstance(payload, Tensor) else 0
                inside = [value in own for value in node.inputs]
                known = [value in own or value in constants for value in node.inputs]
                if node.inputs and all(known):
                    (own if all(inside) else constants).update(node.outputs)
                info = op_info(node.op)
                works_on_shapes |= info is not None and bool(info.by_type)
                if _is_norm(node) and all(known[1:]):
                    given_norm |= not all(inside[1:])
                    affines.add(all(inside[1:]))
                elif node.op in AFFINE_KINDS and any(known) and not all(known):
                    affines.add(any(inside))
                elif info is not None and has_trait(node, Trait.ABSORBS) and any(known[1:]):
                    layers.add(any(inside[1:]))
                self._enter(module, node, known, stack, seen)
        self.has_layer = bool(layers)
        self.holds_back = given_norm or (bool(layers and affines) and not all(layers | affines))
        self.opens_shapes = (
            works_on_shapes
            and any(_is_constant(value) for value in call.inputs)
            and not all(is_known(value.type) for value in call.outputs)
        )

    def _enter(
        self,
        module: Module,
        node: Node,
        known: Iterable[bool],
        stack: list[tuple[Function, Sequence[bool]]],
        seen: set[FunctionKey],
    ) -> None:
        """Put the body of the function that `node` calls on the stack, once."""
        key = call_key(node)
        if key in module.functions and key not in seen:
            seen.add(key)
            stack.append((module.functions[key], list(known)))


def _is_norm(node: Node) -> bool:
    """Return whether `node` is a BatchNormalization, also one whose attributes are those of the function."""
    return node.op in ("nn.batch_norm", "::BatchNormalization")


def _is_constant(value: Value | None) -> bool:
    return value is not None and value.node is not None and value.node.op == "constant"
