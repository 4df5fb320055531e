"""Rules for Transpose: in a row, before reductions, around operators that take any order.

Exporters from channels-last frameworks write a Transpose before every convolution and the inverse
after it. The operators between two such pairs (activations, additions per channel, residual sums,
concatenations, pads, reductions) can be computed in the order of axes that the convolutions have.
`move_region` takes a Transpose by `perm` and collects the largest connected region of such
operators around it. If the region is computed on data transposed by `perm`

- every Transpose by `perm` of one of its values goes, and every inverse Transpose that only it
  reads;
- any other value that it reads needs a Transpose by `perm`, and any of its values that is read
  elsewhere the inverse.

It is moved only if more Transposes go than come. Everything is decided before anything is changed.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from ...ir.graph import Graph, Node, Value, producer_of
from ...ir.matching import integers, result_of, static_shape
from ...ir.ops import ops_with
from ...ir.ops.inference import integer_of
from ...ir.ops.reshaping import permutation
from ...ir.ops.row import Trait
from ...ir.provenance import Declined
from ...ir.rewriter import Rewriter
from ...ir.rule_driver import Rules, rule
from ...ir.shape_evaluator import ShapeEvaluator
from ...ir.tensor import ArrayTensor
from ...ir.types import TensorType, dtype_of, shape_of
from .rules import MAX_BYTES, int_vector, substitute
from .transposed_form import Perm, TransposedForm, transposed_form

MAX_REGION = 1024
"""Operators in the largest region: it bounds the time spent on a Transpose that must stay."""


@rule(
    affine="untouched",
    identity=(
        "transpose(transpose(x, p), q) == transpose(x, permuted(p, q)); transpose(x, o) == x if"
        " in_order(o)"
    ),
)
def merge_transposes(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """transpose(transpose(x, p), q) -> transpose(x, p[q])"""
    outer, middle = _permutation(node), node.operand()
    if _is_identity(outer):
        return rewriter.forward(node.output, middle)
    producer = result_of(middle, "transpose")
    inner, data = _permutation(producer), producer.operand()
    if len(outer) != len(inner):
        return rewriter.decline("the permutation of the Transpose before it has another rank")
    perm = tuple(inner[i] for i in outer)
    if _is_identity(perm):
        return rewriter.forward(node.output, data)
    if middle.sole_user() is not node:
        return rewriter.decline("the Transpose before it has other readers")
    return substitute(node, rewriter, "transpose", [data], {"perm": perm})


def _permutation(node: Node) -> Perm:
    perm = permutation(node)
    if perm is None:
        raise Declined("the permutation of a Transpose is unknown")
    return perm


def _is_identity(perm: Sequence[int]) -> bool:
    return list(perm) == sorted(perm)


@rule(
    affine="untouched",
    identity=(
        "transpose(x, p) == x if keeps_order(p, x.shape) and permuted(x.shape, p) == list(x.shape)"
    ),
)
def drop_empty_transpose(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """transpose(x, p) -> x, if p moves axes of extent 1 only and the shape stays"""
    perm, shape = _permutation(node), static_shape(node.operand())
    # The order of the elements depends on the axes of extent other than 1 alone.
    if len(perm) != len(shape) or not _is_identity([axis for axis in perm if shape[axis] != 1]):
        return rewriter.decline("it moves axes of an extent other than 1")
    if tuple(shape[axis] for axis in perm) != shape:
        return rewriter.decline("it changes the shape")
    return rewriter.forward(node.output, node.operand())


@rule(
    affine="untouched",
    reads=("transpose",),
    identity=(
        "sum(transpose(x, p), a, 0) == sum(x, permuted(p, a), 0) if in_order(permuted(p, others(a,"
        " len(p)))); max(transpose(x, p), a, 0) == max(x, permuted(p, a), 0) if"
        " in_order(permuted(p, others(a, len(p))))"
    ),
)
def reduce_transposed(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """reduce(transpose(x, p), axes) -> reduce(x, p[axes]), if the other axes are in order"""
    producer = result_of(node.operand(), "transpose")
    perm, axes = _permutation(producer), integers(node, "axes", evaluator)
    if not axes or integer_of(node, "keepdims", 1):
        return rewriter.decline("it reduces all axes, or keepdims is 1")
    reduced = {axis % len(perm) for axis in axes}
    if not _is_identity([perm[i] for i in range(len(perm)) if i not in reduced]):
        return rewriter.decline("the Transpose changes the order of the axes that remain")
    moved = int_vector(sorted(perm[i] for i in reduced), node, rewriter, "axes")
    rewriter.set_inputs(node, [producer.operand(), moved, *node.inputs[2:]])
    return True


@rule(
    affine="untouched",
    identity=(
        "transpose(relu(transpose(x, inverse(p))), p) == relu(x); transpose(transpose(x,"
        " inverse(p)) + transpose(y, inverse(p)), p) == x + y; transpose(transpose(x, inverse(p)) +"
        " c, p) == x + transpose(c, p); transpose(concat([transpose(x, inverse(p)), transpose(y,"
        " inverse(p))], a), p) == concat([x, y], p.index(a)); transpose(sum(transpose(x,"
        " inverse(p)), [a], 1), p) == sum(x, [p.index(a)], 1); transpose(pad(transpose(x,"
        " inverse(p)), n), p) == pad(x, moved_pads(n, p))"
    ),
)
def move_region(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """transpose(op(transpose(x, inverse of p)), p) -> op(x)"""
    perm, seed = _permutation(node), node.operand().node
    # Two Transposes in a row are another rule's.
    if seed is None or node.graph is None or seed.graph is not node.graph or seed.op == "transpose":
        return rewriter.decline(
            "its data is an input, or the result of another Transpose or of an outer graph"
        )
    region = _Region(node.graph, perm, evaluator)
    if not region.grow(seed) or not region.pays():
        return rewriter.decline("moving it would not leave fewer Transposes")
    region.move(rewriter)
    return True


def inverse(perm: Perm) -> Perm:
    """Return the inverse permutation of `perm`."""
    return tuple(sorted(range(len(perm)), key=perm.__getitem__))


class _Region(Struct, eq=False):
    """A connected set of operators of `graph` that can be computed on data transposed by `perm`.

    `nodes` maps each of them to its form on transposed data. Each commutes with the Transpose, so
    if all operands are transposed, every value of the region is its old value transposed.
    """

    graph: Graph
    perm: Perm
    evaluator: ShapeEvaluator
    nodes: dict[Node, TransposedForm] = field(default_factory=dict)

    def grow(self, seed: Node) -> bool:
        """Collect the region around `seed`.

        Return False if `seed` is not a member, or the region is too large.
        """
        stack = [seed]
        while stack:
            node = stack.pop()
            if node in self.nodes or node.graph is not self.graph or len(node.outputs) != 1:
                continue
            form = transposed_form(node, self.perm, self.evaluator)
            if form is None:
                continue
            self.nodes[node] = form
            if len(self.nodes) > MAX_REGION:
                return False
            operands = [node.inputs[i] for i in form.moved]
            stack.extend(
                value.node for value in operands if value is not None and value.node is not None
            )
            stack.extend(node.output.users)
        return seed in self.nodes

    def pays(self) -> bool:
        """Whether fewer Transposes are left, and the new constants are small."""
        removed = sum(len(self.removed_after(node)) for node in self.nodes)
        added = sum(bool(self.outside_readers(node)) for node in self.nodes)
        grown = 0
        for value in self.outside_operands():
            source = self.untransposed(value)
            if source is None:
                added += 1
            elif all(user in self.nodes for user in value.users):
                removed += 1
        for node, form in self.nodes.items():
            grown += sum(array.nbytes for array in form.constants.values())
            # One value cannot be two outputs of a graph.
            if sum(user.output.is_returned for user in self.removed_after(node)) > 1:
                return False
        return removed > added and grown <= MAX_BYTES * len(self.nodes)

    def removed_after(self, node: Node) -> list[Node]:
        """Return the Transposes by `perm` of the result of `node`."""
        users = node.output.users
        return [
            u
            for u in users
            if u.op == "transpose" and u.graph is self.graph and permutation(u) == self.perm
        ]

    def outside_readers(self, node: Node) -> list[Node]:
        """Return the readers of the result of `node` that need it in its old order of axes."""
        removed = set(self.removed_after(node))
        return [
            user for user in node.output.users if user not in self.nodes and user not in removed
        ]

    def outside_operands(self) -> list[Value]:
        """Return the values that the region reads and does not compute, each once."""
        operands = [node.inputs[i] for node, form in self.nodes.items() for i in form.moved]
        found = dict.fromkeys(value for value in operands if value is not None)
        return [value for value in found if value.node not in self.nodes]

    def untransposed(self, value: Value) -> Value | None:
        """Return x if `value` is transpose(x, inverse of `perm`), else None."""
        node = producer_of(value, "transpose")
        if node is None or permutation(node) != inverse(self.perm):
            return None
        return node["data"]

    def move(self, rewriter: Rewriter) -> None:
        """Compute the region on transposed data."""
        # Looked up before the first change, as each change adds and removes readers.
        plans = [
            (node, self.removed_after(node), self.outside_readers(node)) for node in self.nodes
        ]
        sources = {value: self.untransposed(value) for value in self.outside_operands()}
        transposed: dict[Value, Value] = {}
        for node, _, _ in plans:
            form = self.nodes[node]
            inputs = list(node.inputs)
            with rewriter.rewriting(node):
                for i in form.moved:
                    inputs[i] = self._operand(inputs[i], transposed, sources, rewriter)
                for i, array in form.constants.items():
                    old = node.operand(i)
                    payload = ArrayTensor(array, dtype_of(old.type))
                    inputs[i] = rewriter.constant(payload, before=node, hint=old.name)
            for name, attribute in form.attrs.items():
                rewriter.set_attr(node, name, attribute)
            rewriter.set_inputs(node, inputs)
        for node, removed, outside_readers in plans:
            self._rename(node, rewriter)
            self._redirect_readers(node, removed, outside_readers, rewriter)

    def _operand(
        self,
        value: Value | None,
        transposed: dict[Value, Value],
        sources: dict[Value, Value | None],
        rewriter: Rewriter,
    ) -> Value | None:
        if value is None or value not in sources:
            return value
        source = sources[value]
        if source is not None:
            return source
        if value not in transposed:
            # Right after the node that computes it, so before every reader; an input is known from
            # the first node on.
            local = value.node is not None and value.node.graph is self.graph
            before = value.node.next if local and value.node is not None else next(iter(self.graph))
            assert before is not None
            made = rewriter.make(
                "transpose",
                [value],
                {"perm": self.perm},
                before=before,
                hint=f"{value.name}.transposed",
            )
            transposed[value] = made.output
        return transposed[value]

    def _rename(self, node: Node, rewriter: Rewriter) -> None:
        """Give the result of `node` its new shape and a new name."""
        # Statements of the model about the old name, as in quantization_annotation, do not hold for
        # the new value.
        value = node.output
        shape = shape_of(value.type)
        dims = None if shape is None else tuple(shape[axis] for axis in self.perm)
        value.type = TensorType(dtype_of(value.type), dims)
        self.nodes[node].old_name = value.name
        value.rename(rewriter.module.fresh_name(f"{value.name}.transposed"))

    def _redirect_readers(
        self, node: Node, removed: list[Node], outside_readers: list[Node], rewriter: Rewriter
    ) -> None:
        value = node.output
        if outside_readers:
            following = node.next
            assert following is not None
            with rewriter.rewriting(node):
                back = rewriter.make(
                    "transpose",
                    [value],
                    {"perm": inverse(self.perm)},
                    before=following,
                    hint=self.nodes[node].old_name,
                )
            back.output.name = self.nodes[node].old_name
            for user in outside_readers:
                user.replace_input(value, back.output)
        for transpose in removed:
            rewriter.forward(transpose.output, value)


RULES: Rules[ShapeEvaluator] = {
    "transpose": (merge_transposes, drop_empty_transpose, move_region),
    **dict.fromkeys(ops_with(Trait.REDUCES), (reduce_transposed,)),
}
"""The rules for each operator, in the order in which they are tried."""
