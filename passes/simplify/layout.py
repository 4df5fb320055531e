"""Transposes: in a row, in front of a reduction, and around operators that do not care about the order of axes.

Exporters from channels-last frameworks put a Transpose in front of every convolution and the inverse behind it; what
stands between two such pairs (activations, additions per channel, residual sums, concatenations, pads, reductions) can
be computed in the order of axes that the convolutions have. `move_region` takes a Transpose by `perm` and collects the
largest connected region of such operators around it. If the region were computed on data transposed by `perm`

- every Transpose by `perm` of one of its values would go, and every inverse Transpose that only it reads;
- any other value that it reads would need a Transpose by `perm`, and any of its values that is read elsewhere the
  inverse one.

It is moved only where more go than come. Everything is decided before anything is changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ...ir.attributes import Attribute
from ...ir.graph import Graph, Node, Value
from ...ir.ops import has_trait, ops_with
from ...ir.ops.inference import integer_of, is_given, listed
from ...ir.ops.reshaping import permutation
from ...ir.ops.row import Trait
from ...ir.rewriter import Rewriter
from ...ir.rule_driver import Rules, rule
from ...ir.tensor import Array, ArrayTensor
from ...ir.types import TensorType, dtype_of, shape_of
from .extents import ShapeEvaluator
from .rules import MAX_BYTES, data_of

Perm = tuple[int, ...]

MAX_REGION = 1024
"""Operators in the largest region that is considered: a transpose that cannot go costs no more than that."""


@rule(affine="untouched")
def merge_transposes(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """transpose(transpose(x, p), q) -> transpose(x, p[q])"""
    outer = permutation(node)
    middle = node.inputs[0]
    assert middle is not None
    if outer is None:
        return rewriter.decline("its permutation is unknown")
    if list(outer) == sorted(outer):
        return rewriter.forward(node.output, middle)
    producer = middle.node
    if producer is None or producer.op != "transpose":
        return rewriter.decline("its data is no Transpose")
    inner, data = permutation(producer), producer.inputs[0]
    if inner is None or data is None or len(outer) != len(inner):
        return rewriter.decline("the permutation before it is unknown or has another rank")
    perm = tuple(inner[i] for i in outer)
    if list(perm) == sorted(perm):
        return rewriter.forward(node.output, data)
    if middle.sole_user() is not node:
        return rewriter.decline("the Transpose before it is read elsewhere")
    result = rewriter.make("transpose", [data], {"perm": perm}, before=node, hint=node.output.name, name=node.name)
    rewriter.replace(node.output, result.output, take_name=True)
    return True


@rule(affine="untouched")
def drop_empty_transpose(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """transpose(x, p) -> x, where p moves axes of extent 1 only and the shape stays"""
    perm, shape = permutation(node), shape_of(data_of(node).type)
    if perm is None or shape is None or not all(isinstance(dim, int) for dim in shape) or len(perm) != len(shape):
        return rewriter.decline("the shape is not static")
    long = [axis for axis in perm if shape[axis] != 1]
    same = long == sorted(long) and tuple(shape[axis] for axis in perm) == shape
    return same and rewriter.forward(node.output, data_of(node))


@rule(affine="untouched")
def reduce_transposed(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """reduce(transpose(x, p), axes) -> reduce(x, p[axes]), where the axes that remain are in order"""
    producer = data_of(node).node
    perm = None if producer is None or producer.op != "transpose" else permutation(producer)
    axes = listed(node, "axes", 1, evaluator)
    if perm is None or producer is None or not axes or integer_of(node, "keepdims", 1):
        return rewriter.decline("its data is no Transpose, or it keeps the dimensions")
    places = {axis % len(perm) for axis in axes}
    rest = [perm[i] for i in range(len(perm)) if i not in places]
    if rest != sorted(rest):
        return rewriter.decline("the axes that remain are not in order")
    _set_axes(node, sorted(perm[i] for i in places), rewriter, producer.inputs[0])
    return True


def _set_axes(node: Node, axes: list[int], rewriter: Rewriter, data: Value | None) -> None:
    if "axes" in node.attrs:
        rewriter.set_attr(node, "axes", tuple(axes))
        rewriter.set_inputs(node, [data, *node.inputs[1:]])
    else:
        rewriter.set_inputs(node, [data, _ints(axes, node, rewriter), *node.inputs[2:]])


def _ints(items: list[int], node: Node, rewriter: Rewriter) -> Value:
    payload = ArrayTensor(np.asarray(items, np.int64))
    return rewriter.constant(payload, before=node, hint=f"{node.output.name}.axes")


@rule(affine="untouched")
def move_region(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """transpose(op(transpose(x, inverse of p)), p) -> op(x)"""
    perm, seed = permutation(node), data_of(node).node
    if perm is None or seed is None or node.graph is None or seed.graph is not node.graph or seed.op == "transpose":
        return rewriter.decline("no operator before it could take it")
    region = _Region(node.graph, perm, evaluator)
    if not region.grow(seed) or not region.pays():
        return rewriter.decline("no fewer Transposes would be left")
    region.move(rewriter)
    return True


def inverse(perm: Perm) -> Perm:
    """The permutation that undoes `perm`."""
    return tuple(sorted(range(len(perm)), key=perm.__getitem__))


@dataclass(slots=True)
class _Region:
    """Operators of `graph` that may be computed on data transposed by `perm`.

    `nodes` are its members; `edits` says for each how its attributes change and which operands take part, the others
    being constants to be transposed, or scalars.
    """

    graph: Graph
    perm: Perm
    evaluator: ShapeEvaluator
    nodes: dict[Node, _Edit] = field(default_factory=dict)

    def grow(self, seed: Node) -> bool:
        """Collect the region around `seed`; False where that itself is no member."""
        stack = [seed]
        while stack:
            node = stack.pop()
            if node in self.nodes or node.graph is not self.graph or len(node.outputs) != 1:
                continue
            edit = _edit(node, self.perm, self.evaluator)
            if edit is None:
                continue
            self.nodes[node] = edit
            if len(self.nodes) > MAX_REGION:
                return False
            operands = [node.inputs[i] for i in edit.moved]
            stack.extend(value.node for value in operands if value is not None and value.node is not None)
            stack.extend(node.output.users)
        return seed in self.nodes

    def pays(self) -> bool:
        """Whether fewer transposes are left."""
        gone = sum(len(self.gone_behind(node)) for node in self.nodes)
        come = sum(bool(self.leaving(node)) for node in self.nodes)
        grown = 0
        for value in self.entering():
            source = self.untransposed(value)
            if source is None:
                come += 1
            elif all(user in self.nodes for user in value.users):
                gone += 1
        for node, edit in self.nodes.items():
            grown += sum(array.nbytes for array in edit.constants.values())
            returned = [user for user in self.gone_behind(node) if user.output.is_returned]
            if len(returned) > 1:
                return False
        return gone > come and grown <= MAX_BYTES * len(self.nodes)

    def gone_behind(self, node: Node) -> list[Node]:
        """The transposes by `perm` of the result of `node`."""
        users = node.output.users
        return [u for u in users if u.op == "transpose" and u.graph is self.graph and permutation(u) == self.perm]

    def leaving(self, node: Node) -> list[Node]:
        """The readers of the result of `node` that want it as it was."""
        gone = set(self.gone_behind(node))
        return [user for user in node.output.users if user not in self.nodes and user not in gone]

    def entering(self) -> list[Value]:
        """The values that the region reads and does not compute, each once."""
        operands = [node.inputs[i] for node, edit in self.nodes.items() for i in edit.moved]
        found = dict.fromkeys(value for value in operands if value is not None)
        return [value for value in found if value.node not in self.nodes]

    def untransposed(self, value: Value) -> Value | None:
        """The data of which `value` is the inverse transpose."""
        node = value.node
        if node is None or node.op != "transpose" or permutation(node) != inverse(self.perm):
            return None
        return node.inputs[0]

    def move(self, rewriter: Rewriter) -> None:
        """Compute the region on transposed data."""
        new: dict[Value, Value] = {}
        plans = [(node, self.gone_behind(node), self.leaving(node)) for node in self.nodes]
        entering = {value: self.untransposed(value) for value in self.entering()}
        for node, _, _ in plans:
            edit = self.nodes[node]
            inputs = list(node.inputs)
            with rewriter.rewriting(node):
                for i in edit.moved:
                    inputs[i] = self._operand(inputs[i], new, entering, rewriter)
                for i, array in edit.constants.items():
                    old = inputs[i]
                    assert old is not None
                    payload = ArrayTensor(array, dtype_of(old.type))
                    inputs[i] = rewriter.constant(payload, before=node, hint=old.name)
            for name, attribute in edit.attrs.items():
                rewriter.set_attr(node, name, attribute)
            rewriter.set_inputs(node, inputs)
        for node, gone, leaving in plans:
            self._rename(node, rewriter)
            self._hand_on(node, gone, leaving, rewriter)

    def _operand(
        self,
        value: Value | None,
        new: dict[Value, Value],
        entering: dict[Value, Value | None],
        rewriter: Rewriter,
    ) -> Value | None:
        if value is None or value not in entering:
            return value
        source = entering[value]
        if source is not None:
            return source
        if value not in new:
            own = value.node is not None and value.node.graph is self.graph
            place = value.node.next if own and value.node is not None else next(iter(self.graph))
            assert place is not None
            made = rewriter.make(
                "transpose", [value], {"perm": self.perm}, before=place, hint=f"{value.name}.transposed"
            )
            new[value] = made.output
        return new[value]

    def _rename(self, node: Node, rewriter: Rewriter) -> None:
        """The value is another one now: what the model notes on the old name does not hold for it."""
        value = node.output
        shape = shape_of(value.type)
        dims = None if shape is None else tuple(shape[axis] for axis in self.perm)
        value.type = TensorType(dtype_of(value.type), dims)
        self.nodes[node].old_name = value.name
        value.name = rewriter.module.fresh_name(f"{value.name}.transposed")

    def _hand_on(self, node: Node, gone: list[Node], leaving: list[Node], rewriter: Rewriter) -> None:
        value = node.output
        if leaving:
            following = node.next
            assert following is not None
            with rewriter.rewriting(node):
                back = rewriter.make(
                    "transpose", [value], {"perm": inverse(self.perm)}, before=following, hint=self.nodes[node].old_name
                )
            back.output.name = self.nodes[node].old_name
            for user in leaving:
                user.replace_input(value, back.output)
        for transpose in gone:
            rewriter.forward(transpose.output, value)


@dataclass(slots=True)
class _Edit:
    """How an operator changes with the order of axes: the operands that are transposed with it, constants in their new
    form, and attributes.
    """

    moved: list[int]
    constants: dict[int, Array] = field(default_factory=dict)
    attrs: dict[str, Attribute] = field(default_factory=dict)
    old_name: str = ""


def _edit(node: Node, perm: Perm, evaluator: ShapeEvaluator) -> _Edit | None:
    """How `node` is computed on data transposed by `perm`; None where it cannot be."""
    shape = shape_of(node.output.type)
    if shape is None or len(shape) != len(perm):
        return None
    if has_trait(node, Trait.ELEMENTWISE):
        first = node.inputs[0]
        return _Edit([0]) if first is not None and _has_rank(first, perm) else None
    if has_trait(node, Trait.BROADCASTS):
        return _broadcast(node, perm, evaluator)
    special: dict[str, Callable[[Node, Perm, ShapeEvaluator], _Edit | None]] = {
        "concatenate": _concatenate,
        "nn.pad": _pad,
    }
    if has_trait(node, Trait.REDUCES):
        return _reduce(node, perm, evaluator)
    return special[node.op](node, perm, evaluator) if node.op in special else None


def _has_rank(value: Value, perm: Perm) -> bool:
    shape = shape_of(value.type)
    return shape is not None and len(shape) == len(perm)


def _broadcast(node: Node, perm: Perm, evaluator: ShapeEvaluator) -> _Edit | None:
    """Operands of full rank move, constants are transposed, scalars stay."""
    if node.opset < 7:
        return None
    edit = _Edit([])
    axis = node.attrs.get("axis")
    if isinstance(axis, int):
        parameter = node.inputs[1]
        assert parameter is not None
        place = perm.index(axis % len(perm))
        shape = shape_of(parameter.type)
        raised = parameter.node is not None and parameter.node.op == "nn.batch_norm_to_affine" and place != 1
        if raised or shape is None or len(shape) != 1 or not _has_rank(data_of(node), perm):
            return None
        return _Edit([0], attrs={"axis": place})
    for i, value in enumerate(node.inputs):
        if value is None:
            return None
        shape = shape_of(value.type)
        if shape is not None and (not shape or all(dim == 1 for dim in shape)):
            continue
        array = evaluator.array(value)
        if array is not None and array.ndim <= len(perm):
            edit.constants[i] = np.transpose(array.reshape((1,) * (len(perm) - array.ndim) + array.shape), perm)
        elif _has_rank(value, perm):
            edit.moved.append(i)
        else:
            return None
    return edit if edit.moved else None


def _concatenate(node: Node, perm: Perm, evaluator: ShapeEvaluator) -> _Edit | None:
    axis = node.attrs.get("axis", 1)
    if not isinstance(axis, int) or not all(value is not None and _has_rank(value, perm) for value in node.inputs):
        return None
    edit = _Edit([], attrs={"axis": perm.index(axis % len(perm))})
    for i, value in enumerate(node.inputs):
        array = evaluator.array(value)
        if array is None:
            edit.moved.append(i)
        else:
            edit.constants[i] = np.transpose(array, perm)
    return edit if edit.moved else None


def _pad(node: Node, perm: Perm, evaluator: ShapeEvaluator) -> _Edit | None:
    pads = listed(node, "pads", 1, evaluator)
    rank = len(perm)
    if pads is None or len(pads) != 2 * rank or is_given(node, "axes", 3) or not _has_rank(data_of(node), perm):
        return None
    moved = [pads[axis] for axis in perm] + [pads[rank + axis] for axis in perm]
    if "pads" in node.attrs:
        return _Edit([0], attrs={"pads": tuple(moved)})
    return _Edit([0], constants={1: np.asarray(moved, np.int64)})


def _reduce(node: Node, perm: Perm, evaluator: ShapeEvaluator) -> _Edit | None:
    axes = listed(node, "axes", 1, evaluator)
    if not axes or not integer_of(node, "keepdims", 1) or not _has_rank(data_of(node), perm):
        return None
    moved = sorted(perm.index(axis % len(perm)) for axis in axes)
    if "axes" in node.attrs:
        return _Edit([0], attrs={"axes": tuple(moved)})
    return _Edit([0], constants={1: np.asarray(moved, np.int64)})


RULES: Rules[ShapeEvaluator] = {
    "transpose": (merge_transposes, drop_empty_transpose, move_region),
    **dict.fromkeys(ops_with(Trait.REDUCES), (reduce_transposed,)),
}
"""The rules for each operator, in the order in which they are tried."""
