"""FoldConstant: constant expressions are computed, and float64 parameters are rounded once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from ..ir.attributes import SparseTensor
from ..ir.evaluate import ConstantEvaluator
from ..ir.graph import Graph, Node, Value, is_constant, payload_of
from ..ir.matching import elements, known_dtype, result_of
from ..ir.module import Module
from ..ir.ops import OPS, op_info
from ..ir.ops.row import OpInfo, Trait
from ..ir.ops.views import resizes_in_doubt
from ..ir.rewriter import Rewriter
from ..ir.rule_driver import ANY, Rule, RuleDriver, Rules, rule
from ..ir.sparse import scaled_values, stored_shorter
from ..ir.tensor import Array, ArrayTensor, ScaledTensor, Tensor, rounded_in_pass, to_float64
from ..ir.types import F64, dtype_of
from .constant_regions import ConstantRegions
from .dying_constants import dying_bytes
from .infra import Pass, PassContext
from .narrow_weights import CAST_BYTES, reads_narrow

LAZY = 1 << 13
"""Bytes from which a folded weight is computed as it is written: memory holds few at a time."""

MAX_PART = 1 << 10
"""Most bytes by which the file grows for a part of an expression that stays: about those of its
operators.
"""

MAX_REGION = 64
"""Most values of such a part: each of its operators may be the end of another one."""

IN_DOUBT = "a Resize reads it, whose extents onnx and runtimes would round differently"

SPARSE_CONSTANTS = 6
"""The first version of ONNX's IR that has sparse constants."""


@dataclass(frozen=True)
class FoldConstant(Pass):
    """Compute constant expressions.

    1. A folded weight, `multiply(w, factor)` with a float64 factor, is computed in float64 and
       rounded once to the dtype of w. It keeps the name of w if nothing else reads w. The result of
       a sparse w, or of another expression of sparse constants, is written dense or sparse,
       whichever is shorter.
    2. A float64 parameter of an operator on narrower data is rounded once to the dtype of the data.
    3. Any other operator of the op table with constant operands only is computed, as part of the
       largest constant region, if the result has at most `max_bytes` bytes more than the constants
       that become unused. A larger expression stays, but parts of it are computed that have at
       most 1 KiB more than the constants that become unused by them. Operators that the op table
       cannot compute exactly stay, and so do scales of a Resize that would give an extent which
       onnx's inference and runtimes round differently. A result of a graph is written as a dense
       Constant, of `max_bytes` at most. Weights that are stored in a narrower type, behind a Cast,
       all stay if one of them does and the file gets smaller by that. With `widen` all are
       computed.
    4. Other deterministic operators of ONNX's default domain with constant operands only are
       computed by onnxruntime, all operators of a graph in one session. The same size limit holds,
       and is tested on the inferred types before; results that only constant expressions read may
       have up to 16 MiB. Random numbers, control flow, strings, sequences, optionals, other
       domains, DequantizeLinear (its result is larger than its input) and operators that
       onnxruntime cannot compute stay. onnxruntime runs in another process, within limits on time
       and memory: an operator that crashes it stays, with a warning.
    """

    name: ClassVar[str] = "FoldConstant"
    max_bytes: int = 64 << 10
    widen: bool = False

    def run(self, module: Module, ctx: PassContext) -> bool:
        rewriter = Rewriter(module)
        constants = _Constants(module, self.max_bytes, ctx, widens=self.widen)
        by_table, by_runtime = (
            RuleDriver(rewriter, rules, constants) for rules in (RULES, COMPUTED_RULES)
        )
        for graph in module.graphs():
            by_table.run(constants.candidates(graph))
            if constants.stay_with_large(graph):
                by_table.run(graph.operators())
            # after by_table, so that onnxruntime reads rounded parameters
            if constants.are_left and constants.regions.compute(graph):
                by_runtime.run(graph.operators())
                if constants.stay_with_large(graph):
                    by_runtime.run(graph.operators())
                constants.erase_computed(rewriter)
        if constants.narrow and not constants.keeps_narrow:
            postponed, constants.narrow = constants.narrow, None
            constants.staying.difference_update(postponed)
            by_table.run(postponed)
        module.opened = constants.written
        return rewriter.changed


class _Constants:
    """Constant expressions of a module, computed by the op table or by a runtime."""

    def __init__(self, module: Module, max_bytes: int, ctx: PassContext, *, widens: bool) -> None:
        self.evaluator = module.constants
        self.max_bytes = max_bytes
        self.ctx = ctx
        self.module = module
        self.written = False
        """Whether an expression became a constant.

        The rounding of a parameter opens no other rewrite.
        """

        self.maybe_constant: set[Node] = set()
        """Operators that may be constant expressions, by their first operands."""

        self.staying: set[Node] = set()
        """Constant expressions that are not folded: too large, or read by such ones only."""

        self.widens = widens
        self.narrow: dict[Node, None] | None = None if widens else {}
        """Weights behind a Cast from a narrower type that wait until all of the model are known.

        None: none waits.
        """

        self.keeps_narrow = False
        """Whether one of these weights is too large to be computed, so that all of them stay."""

        self.computed: dict[Node, None] = {}
        """Operators that a runtime computed."""

    @cached_property
    def regions(self) -> ConstantRegions:
        """Return the constant expressions that a runtime computes. Most models have none."""
        return ConstantRegions(self.module, self.max_bytes, self.ctx, self.computed)

    @property
    def are_left(self) -> bool:
        """Whether an operator may be a constant expression that the op table did not compute."""
        return any(node.graph is not None for node in self.maybe_constant)

    @cached_property
    def has_sparse(self) -> bool:
        """Return whether the module has sparse constants, and may get others."""
        if self.module.ir_version < SPARSE_CONSTANTS:
            return False
        return any(isinstance(node.attrs.get("value"), SparseTensor) for node in self.module.walk())

    def sparse_operand(self, node: Node) -> Node | None:
        """Return a sparse constant that constant expression `node` reads, None if there is none.

        O(region).
        """
        if not self.has_sparse:
            return None
        stack, seen = [node], {node}
        while stack:
            top = stack.pop()
            if isinstance(payload_of(top.output), SparseTensor):
                return top
            new = {v.node for v in top.inputs if v is not None and v.node is not None} - seen
            stack += new
            seen |= new
        return None

    def candidates(self, graph: Graph) -> Iterator[Node]:
        """Yield the operators of `graph` that a rule by the op table may change, in order.

        Their first operand is constant, or they need it by type only, or they have a float64
        parameter.
        """
        is_watched, found = self.module.debug_counter.is_watched, self.maybe_constant
        for node in graph.operators():
            first = node.inputs[0] if node.inputs else None
            producer = None if first is None else first.node
            is_found = producer is not None and (producer.op == "constant" or producer in found)
            if first is None or is_found:
                found.add(node)
                yield node
                continue
            info = op_info(node.op)
            if info is None or 0 in info.type_operands:
                found.add(node)
                yield node
            elif is_watched or (info.wide is not None and _is_float64(node[info.wide])):
                yield node

    def erase_computed(self, rewriter: Rewriter) -> None:
        """Erase the operators computed by a runtime whose results nothing reads any more."""
        for node in reversed(self.computed):
            if node.graph is not None and not node.is_read:
                with rewriter.step("write_computed", node.description, is_counted=False):
                    rewriter.erase(node)
        self.computed.clear()

    def holds(self, node: Node) -> bool:
        """Return whether every result of `node` is constant and may be written as a constant."""
        if node in self.computed:
            return True
        info = op_info(node.op)
        if info is None or info.evaluate is None or Trait.ATOMIC in info.traits:
            return False
        for value in node.outputs:  # noqa: SIM110 - tried at every operator; a generator takes twice as long
            if self.evaluator.array(value) is None:
                return False
        return True

    def stay_with_large(self, graph: Graph) -> bool:
        """Add to `staying` the operators that these alone read; return whether any do. O(nodes)."""
        if not self.staying:
            return False
        for node in reversed(list(graph.operators())):
            readers = [reader for value in node.outputs for reader in value.users]
            if self.staying.isdisjoint(readers):
                continue
            if self.holds(node) and not self.is_frontier(node):
                self.staying.add(node)
        return True

    def is_frontier(self, node: Node) -> bool:
        """Return whether `node` is constant and has a reader for which it is written.

        That is one that is not constant, as the return of a graph, or, if `node` is a small part,
        one that stays.
        """
        if not node.is_read or not self.holds(node) or _names_constant(node):
            return False
        readers = [reader for value in node.outputs for reader in value.users]
        if any(not self.holds(reader) for reader in readers):
            return True
        return not self.staying.isdisjoint(readers) and self.is_part(node)

    def replaced_bytes(self, node: Node) -> int:
        """Return the bytes of constants that go for `node`; none for a result of the graph.

        That is an attribute of a Constant, which no data file holds.
        """
        return 0 if node.output.is_returned else dying_bytes(node)

    def has_room(self, node: Node, tensor: Tensor) -> bool:
        """Return whether `tensor`, the result of `node`, is small enough, or a widened weight."""
        if tensor.nbytes <= self.max_bytes:
            return True
        if tensor.nbytes <= self.max_bytes + self.replaced_bytes(node):
            return True
        is_narrow = reads_narrow(node)
        self.keeps_narrow |= is_narrow
        return is_narrow and self.widens

    def postpones(self, node: Node, tensor: Tensor) -> bool:
        """Return whether `node` waits: it casts a narrow weight to a larger `tensor`."""
        if self.narrow is None or tensor.nbytes <= CAST_BYTES or not reads_narrow(node):
            return False
        if tensor.nbytes - self.replaced_bytes(node) <= CAST_BYTES:
            return False
        self.narrow[node] = None
        return True

    def is_part(self, node: Node) -> bool:
        """Return whether the results of `node` are small enough for an expression that stays."""
        tensors = [self.evaluator.tensor(value) for value in node.outputs]
        made = sum(tensor.nbytes for tensor in tensors if tensor is not None)
        most = min(MAX_PART, self.max_bytes)
        return made <= most or made <= most + dying_bytes(node, MAX_REGION)


def _is_float64(value: Value | None) -> bool:
    return value is not None and dtype_of(value.type) is F64


def _names_constant(node: Node) -> bool:
    """Return whether `node` is an Identity that names a constant result: no work to save."""
    return node.op == "identity" and node.output.is_returned and is_constant(node.operand())


@rule(affine="merges")
def write_computed(node: Node, rewriter: Rewriter, constants: _Constants) -> bool:
    """op(c) -> the constant that a runtime computed"""
    evaluator = constants.evaluator
    if node not in constants.computed or not constants.is_frontier(node):
        return rewriter.decline(
            "onnxruntime did not compute it, or only constant expressions read it"
        )
    read = [
        (value, array)
        for value in node.outputs
        if value.users and (array := evaluator.array(value)) is not None
    ]
    if any(resizes_in_doubt(value, array) for value, array in read):
        return rewriter.decline(IN_DOUBT)
    if any(value.is_returned and array.nbytes > constants.max_bytes for value, array in read):
        return rewriter.decline("it is a result of the graph, and larger than max_bytes")
    for value, array in read:
        _write(node, ArrayTensor(array), rewriter, value, constants.sparse_operand(node))
    constants.written |= bool(read)
    return bool(read) or rewriter.decline("none of its results is constant")


@rule(affine="merges")
def compute(node: Node, rewriter: Rewriter, constants: _Constants) -> bool:
    """op(c) -> the constant that the op table computes"""
    info = op_info(node.op)
    if info is None or info.evaluate is None or Trait.ATOMIC in info.traits:
        return rewriter.decline("the op table cannot compute it")
    if len(node.outputs) != 1:
        return rewriter.decline("the op table cannot compute it")
    if node in constants.computed or not constants.is_frontier(node):
        return rewriter.decline("it is not constant, or only constant expressions read it")
    tensor = constants.evaluator.tensor(node.output)
    if tensor is None or not constants.has_room(node, tensor):
        constants.staying.add(node)
        return rewriter.decline(
            "the result is larger than the constants that it replaces by more than max_bytes"
        )
    if constants.postpones(node, tensor):
        constants.staying.add(node)
        return rewriter.decline(
            "it casts a weight, and all weights of a model that are stored narrow go or stay"
        )
    result = ArrayTensor(tensor.numpy(), tensor.dtype)
    if resizes_in_doubt(node.output, result.numpy()):
        return rewriter.decline(IN_DOUBT)
    _write(node, result, rewriter, node.output, constants.sparse_operand(node))
    constants.written = True
    return True


@rule(affine="merges")
def scale_weight(node: Node, rewriter: Rewriter, constants: _Constants) -> bool:
    """multiply(w, factor){folded} -> the product, computed in float64 and rounded once"""
    if not is_folded_weight(node):
        return rewriter.decline("no fold made it to scale a weight")
    weight, scale = node["lhs"], elements(node["rhs"], constants.evaluator)
    data = constants.evaluator.tensor(weight)
    if data is None:
        return rewriter.decline("the weight is not constant")
    sparse = None if weight.node is None else weight.node.attrs.get("value")
    sparse = sparse if isinstance(sparse, SparseTensor) and constants.has_sparse else None
    exact = None
    result: Tensor | SparseTensor
    if sparse is not None:
        result = scaled_values(sparse, scale)
    elif data.nbytes < LAZY:
        exact = product(_exact(weight, data, constants.evaluator), scale)
        result = ArrayTensor(rounded_in_pass(exact, data.dtype), data.dtype)
    else:
        result = data.scaled(scale) if isinstance(data, ScaledTensor) else ScaledTensor(data, scale)
    constant = _write(node, result, rewriter, node.output, None if sparse is None else weight.node)
    if exact is not None and data.dtype is not F64:
        constants.evaluator.provide(constant, exact, keep=True)
    if weight.node is not None and weight.node.graph is None:
        constant.name = weight.name
    return True


def product(weight: Array, factor: Array) -> Array:
    """Return the product of a weight and a factor in float64.

    A pass ignores numpy's warnings of large numbers.
    """
    return np.asarray(to_float64(weight) * factor)


def _exact(weight: Value, data: Tensor, evaluator: ConstantEvaluator) -> Array:
    """Return the elements of `weight` before an earlier fold rounded them to `data`."""
    found = evaluator.exact(weight)
    return data.numpy() if found is None else found


def _write(
    node: Node,
    tensor: Tensor | SparseTensor,
    rewriter: Rewriter,
    result: Value,
    sparse: Node | None = None,
) -> Value:
    """Replace a result of `node` by the constant `tensor`, and return the constant.

    The constant leaves out zeros if it is made of the constant `sparse` and is shorter so. It is a
    Constant node if that was one: the shape inference of onnx does not know the types of sparse
    initializers. A result of a graph is a dense Constant node: an initializer could be an input,
    too, whose value a caller may give.
    """
    is_returned = result.is_returned
    if is_returned:
        sparse = None  # a sparse initializer would be a result of another type
    if sparse is not None and isinstance(tensor, Tensor):
        tensor = stored_shorter(tensor)
    constant = rewriter.constant(tensor, before=node, hint=result.name)
    is_node = sparse is not None and "form" in sparse.attrs and isinstance(tensor, SparseTensor)
    if sparse is not None and is_node and constant.node is not None:
        rewriter.set_attr(constant.node, "form", sparse.attrs["form"])
    if is_returned and constant.node is not None:
        rewriter.set_attr(constant.node, "form", "value")
    rewriter.replace(result, constant, take_name=True)
    return constant


@rule(affine="untouched")
def round_parameter(node: Node, rewriter: Rewriter, constants: _Constants) -> bool:
    """op(x: T, c: f64) -> op(x, c rounded to T)"""
    info = op_info(node.op)
    parameter = None if info is None or info.wide is None else node[info.wide]
    if info is None or info.wide is None or parameter is None or not _is_float64(parameter):
        return rewriter.decline("it has no float64 parameter")
    dtype = known_dtype(node.output)
    if not dtype.is_float or dtype is F64:
        return rewriter.decline("its result is float64, or no float")
    if info.evaluate is not None and constants.is_frontier(node):
        return rewriter.decline("it is a constant expression, too large to be computed")
    producer = result_of(parameter, "constant")
    wide = elements(parameter, constants.evaluator)
    rounded = rewriter.rounded(wide, dtype, before=node, hint=parameter.name)
    inputs: list[Value | None] = list(node.inputs)
    inputs[info.operands[info.wide]] = rounded
    rewriter.set_inputs(node, inputs)
    if producer.graph is None:
        rounded.name = parameter.name
    return True


def is_folded_weight(node: Node) -> bool:
    """Return whether FoldScaleAxis made `node` to scale the weight of a layer."""
    return node.op == "multiply" and "folded" in node.attrs


def _rules_of(info: OpInfo) -> Iterator[Rule[_Constants]]:
    """Yield the rules that may apply to an operator of the op table."""
    if info.name == "multiply":
        yield scale_weight
    if info.evaluate is not None:
        yield compute
    if info.wide is not None:
        yield round_parameter


RULES: Rules[_Constants] = {op: tuple(_rules_of(info)) for op, info in OPS.items()}
"""The rules for each operator, in the order in which they are tried."""

COMPUTED_RULES: Rules[_Constants] = {
    ANY: (write_computed,),
    **{op: (write_computed, *rules) for op, rules in RULES.items()},
}
"""The rules by operator after a runtime has computed expressions beyond the op table."""
