"""The calls of functions that hold back a fold, so that their bodies must be inlined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from ..ir.graph import (
    Function,
    FunctionKey,
    Node,
    Value,
    call_key,
    flatten_origins,
    is_constant,
    payload_of,
)
from ..ir.module import Module
from ..ir.ops import AFFINE_KINDS, has_trait, op_info
from ..ir.ops.row import Trait
from ..ir.tensor import Tensor
from ..ir.type_inference import is_known
from ..ir.types import shape_of
from .affine.rules.table import AFFINE_RULES

SMALL = 1024
"""Bytes of constants in a body that several calls may copy."""

AFFINE, LAYER = 1, 2
"""The parts that an affine may meet on its way along the edges of a graph."""


def folding_calls(module: Module, calls: Sequence[Node]) -> list[Node]:
    """Return the `calls` that free an affine or a shape once inlined, in their order.

    O(nodes of the bodies) for each call.
    """
    counts = Counter(map(call_key, calls))
    bodies = {call: _Body(module, call, counts[call_key(call)]) for call in calls}
    bodies = {
        call: body
        for call, body in bodies.items()
        if body.bytes <= SMALL or counts[call_key(call)] == 1
    }
    found = {call for call, body in bodies.items() if body.holds_back or body.opens_shapes}
    found.update(
        [call for call, body in bodies.items() if body.ends & LAYER and _is_beside(call, found)]
    )
    found |= _between(module, bodies)
    return [call for call in calls if call in found]


def _is_beside(call: Node, affines: Collection[Node]) -> bool:
    """Return whether an affine, or a call in `affines`, is next to `call`."""
    around = [*_producers(call), *(reader for value in call.outputs for reader in value.users)]
    return any(node in affines or node.op == "nn.batch_norm" or _is_affine(node) for node in around)


def _is_affine(node: Node) -> bool:
    """Return whether `node` is an affine: arithmetic of data and a constant."""
    constant = [is_constant(value) for value in node.inputs]
    return node.op in AFFINE_KINDS and any(constant) and not all(constant)


def _between(module: Module, bodies: Mapping[Node, _Body]) -> set[Node]:
    """Return the calls that part an affine from a layer, or have one of them. O(edges)."""
    nodes = list(module.graph.walk())
    ends = {node: bodies[node].ends if node in bodies else _ends(module, node) for node in nodes}
    passed = {
        node
        for node in nodes
        if (bodies[node].passes if node in bodies else node.op in AFFINE_RULES)
    }
    before, after = dict.fromkeys(nodes, 0), dict.fromkeys(nodes, 0)

    def met(node: Node, beyond: Mapping[Node, int]) -> int:
        """Return the ends that an affine meets at `node`, and beyond it if it passes."""
        return ends[node] | (beyond[node] if node in passed and not ends[node] & LAYER else 0)

    for node in nodes:
        for producer in _producers(node):
            before[node] |= met(producer, before)
    for node in reversed(nodes):
        for producer in _producers(node):
            after[producer] |= met(node, after)
    return {call for call, body in bodies.items() if body.parts(before[call], after[call])}


def _producers(node: Node) -> list[Node]:
    """Return the nodes that compute the operands of `node`."""
    return [value.node for value in node.inputs if value is not None and value.node is not None]


def _ends(module: Module, node: Node) -> int:
    """Return AFFINE for an affine that is left, LAYER for a layer with a constant weight."""
    if has_trait(node, Trait.ABSORBS) and any(map(is_constant, node.inputs[1:])):
        return LAYER
    return AFFINE if node.op in AFFINE_KINDS and _is_left(module, node) else 0


def _is_left(module: Module, node: Node) -> bool:
    """Return whether FoldScaleAxis found no place for an affine that `node` computes.

    It gives no origin to an affine that it wrote in a new place.
    """
    refusals, origins = module.provenance.refusals, flatten_origins(node.origins)
    return not origins or any(origin in refusals for origin in origins)


class _Body:
    """The parts of the body of a called function, and of the bodies of its own calls.

    An operand is constant in the body itself, or because the call gives a constant. `holds_back`
    tells whether an affine would meet a layer, one of which is an affine or a layer only with the
    operands of the call: constants, or data whose rank says where the channels of a MatMul are.
    `bytes` is the size of the constants that a copy of the body would have, without parameters and
    biases: a fold in the body takes away some of these. `ends` tells whether the body has an affine
    that FoldScaleAxis has left, or a layer. `passes` tells whether all its operators may let an
    affine pass, and the copies for all `calls` of the function do not have more operators than the
    calls and the body.
    """

    def __init__(self, module: Module, call: Node, calls: int) -> None:
        self.module = module
        self._operators = 0
        self.bytes = 0
        self._layers: set[bool] = set()
        self._affines: set[bool] = set()
        self._calls = self._left = False
        self.passes = True
        self._given_norm = self._works_on_shapes = False
        self._given_ranks = all(
            value is None or shape_of(value.type) is not None for value in call.inputs
        )
        self._stack: list[tuple[Function, Sequence[bool]]] = []
        self._seen: set[FunctionKey] = set()
        self._enter(call, [is_constant(value) for value in call.inputs])
        while self._stack:
            self._read(*self._stack.pop())
        self.passes &= (calls - 1) * (self._operators - 1) <= 1
        layers, affines = self._layers, self._affines
        self.ends = AFFINE * self._left | LAYER * bool(layers)
        has_pair = bool(layers and affines) and not all(layers | affines)
        self.holds_back = self._given_norm or has_pair
        has_constant = any(is_constant(value) for value in call.inputs)
        has_open_type = not all(is_known(value.type) for value in call.outputs)
        self.opens_shapes = self._works_on_shapes and has_constant and has_open_type

    def parts(self, before: int, after: int) -> bool:
        """Return whether an affine and a layer could meet across the call or in its body."""
        around = before | after
        is_affine_apart = self.ends & AFFINE and around & LAYER
        is_layer_apart = self.ends & LAYER and around & AFFINE
        if is_affine_apart or is_layer_apart:
            return True
        if self.ends == AFFINE | LAYER:
            return self._calls
        if before & AFFINE and after & LAYER:
            return self.passes
        return self.passes and bool(before & LAYER and after & AFFINE)

    def _enter(self, node: Node, known: Sequence[bool]) -> None:
        """Put the body of the function that `node` calls on the stack, once."""
        key = call_key(node)
        if key in self.module.functions and key not in self._seen:
            self._calls |= bool(self._seen)
            self._seen.add(key)
            self._stack.append((self.module.functions[key], known))

    def _read(self, function: Function, given: Sequence[bool]) -> None:
        """Note the operators of a body whose inputs are constant if `given` says so."""
        own: set[Value] = set()
        constants = {
            value for value, is_given in zip(function.graph.inputs, given, strict=False) if is_given
        }
        for node in function.graph.walk():
            if node.op == "constant":
                own.update(node.outputs)
                payload = payload_of(node.output)
                if isinstance(payload, Tensor) and not _is_parameter(node.output, payload):
                    self.bytes += payload.nbytes
            inside = [value in own for value in node.inputs]
            known = [value in own or value in constants for value in node.inputs]
            if node.inputs and all(known):
                (own if all(inside) else constants).update(node.outputs)
            self._note(node, inside, known)
            self._enter(node, known)
            self._operators += node.op not in ("constant", "return")
            if node.inputs and not all(known):
                has_rule = node.op in AFFINE_RULES or node.op == "return"
                self.passes &= has_rule or call_key(node) in self.module.functions

    def _note(self, node: Node, inside: Sequence[bool], known: Sequence[bool]) -> None:
        """Note an affine or a layer, and whether its parameters are constant in the body itself."""
        info = op_info(node.op)
        self._left |= node.op in AFFINE_KINDS and _is_left(self.module, node)
        self._works_on_shapes |= info is not None and bool(info.by_type)
        if _is_norm(node) and all(known[1:]):
            self._given_norm |= not all(inside[1:])
            self._affines.add(all(inside[1:]))
        elif node.op in AFFINE_KINDS and any(known) and not all(known):
            self._affines.add(any(inside))
        elif has_trait(node, Trait.ABSORBS) and any(known[1:]):
            learns_rank = (
                self._given_ranks and node.op == "matmul" and shape_of(node.output.type) is None
            )
            self._layers.add(any(inside[1:]) and not learns_rank)


def _is_parameter(value: Value, payload: Tensor) -> bool:
    """Return whether a constant is a vector at most, for affines and biases alone."""
    if sum(extent > 1 for extent in payload.shape) > 1:
        return False
    return all(_takes_parameter(reader, value) for reader in value.users)


def _takes_parameter(reader: Node, value: Value) -> bool:
    """Return whether `reader` is an affine, or a layer with `value` as its bias."""
    if _is_norm(reader) or reader.op in AFFINE_KINDS:
        return True
    return has_trait(reader, Trait.BIASED) and reader["bias"] is value


def _is_norm(node: Node) -> bool:
    """Return whether `node` is a BatchNormalization, even with attributes of the function."""
    return node.op in ("nn.batch_norm", "::BatchNormalization")
