"""Regions of constant expressions that onnxruntime computes because the op table cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from math import prod

from ..ir.evaluate import operands_by_use
from ..ir.graph import Graph, Node, Value, is_constant
from ..ir.module import Module
from ..ir.ops import has_trait, op_info
from ..ir.ops.row import Trait
from ..ir.tensor import Array, ArrayTensor
from ..ir.types import BF16, DTYPES, F64, dtype_of, element_count, static_shape_of
from ..support.extras import install
from ..support.isolation import WorkerDiedError
from .dying_constants import dying_bytes
from .foreign import is_deterministic
from .infra import PassContext

MISSING = (
    "constant expressions stay that onnxruntime would compute, which is not installed:"
    f" {install('verify')}"
)

KEPT = ("BatchNormalization", "DequantizeLinear")
"""Never folded: training-mode BatchNormalization and DequantizeLinear.

onnxruntime may crash on the first; the result of the second is larger than its input.
"""

EXCHANGED = frozenset(
    dtype
    for dtype in DTYPES.values()
    if dtype.bits >= 8 and dtype.kind in ("float", "int", "uint", "bool")
) - {BF16}
"""Element types that numpy and onnxruntime can exchange."""

MAX_READ = 16 << 20
"""Most bytes of the operands of one operator, unless as many bytes of constants become unused.

The same bound holds for results that only constant expressions read.
"""

HEAVY = (
    *("Conv", "Deform", "Einsum", "MatMul", "QLinear", "Attention", "LSTM", "GRU", "RNN", "Gemm"),
    *("DFT", "STFT", "Det", "GridSample", "Resize", "CausalConv", "LinearAttention"),
)
"""Prefixes of foreign operators that do more work than one step for each element."""

MAX_PRODUCTS = 1 << 40
"""Bound on the work of a heavy operator: the product of the sizes of operands and result."""

MAX_DENSE = 1 << 26
"""Most multiplications of a dense layer."""

MAX_SINGLE_SESSIONS = 4096
"""Most nodes of a graph that are computed one by one after a crash."""

MAX_SESSIONS = 32
"""Most sessions for one graph.

If a session fails, its values are halved, to find those that cannot be computed.
"""


class ConstantRegions:
    """Computes constant expressions of foreign operators; `computed` gets the nodes that are done.

    The elements of their results are in the evaluator of the module.
    """

    def __init__(
        self, module: Module, max_bytes: int, ctx: PassContext, computed: dict[Node, None]
    ) -> None:
        self.module = module
        self.evaluator = module.constants
        self.max_bytes = max_bytes
        self.ctx = ctx
        self.computed = computed
        self.constants: set[Value] = set()
        self.sessions = 0

    def compute(self, graph: Graph) -> bool:
        """Compute the constant expressions in `graph`, and return whether there were any.

        Call it for enclosing graphs first, whose values `graph` may read. O(nodes), without the
        time of the runtime.
        """
        self.sessions = 0
        opset = graph.opsets.get("", 1)
        waiting = self.candidates(graph)
        if waiting and not self.ctx.runtime.installed and MISSING not in self.ctx.warnings:
            self.ctx.warnings.append(MISSING)
        while ready := self.ready(waiting):
            try:
                done = self.run(ready, opset)
            except WorkerDiedError:
                done = self.run_singly(ready, opset)
            if not done:
                break
            waiting = [node for node in waiting if node not in ready]
            self.evaluator.forget_unknown()
        self.leave_large()
        return bool(self.computed)

    def candidates(self, graph: Graph) -> list[Node]:
        """Return the nodes to be computed by the runtime, in order, without evaluating anything.

        These are foreign operators with constant operands only, and operators of the op table
        between them that the runtime computes exactly.
        """
        order: list[Node] = []
        found: set[Node] = set()
        foreign: set[Value] = set()
        for node in graph.operators():
            info = op_info(node.op)
            by_type = frozenset() if info is None else info.type_operands
            first = node.inputs[0] if node.inputs else None
            if first is not None and 0 not in by_type and not self.is_computed(first):
                continue  # nearly every node, at the least cost
            operands, _ = operands_by_use(node, by_type)
            if not all(map(self.is_computed, operands)):
                continue
            if self.is_for_runtime(node):
                found.add(node)
                foreign.update(node.outputs)
            elif info is None or info.evaluate is None:
                continue
            elif any(value in foreign for value in operands):
                foreign.update(node.outputs)
                is_exact = has_trait(node, Trait.EXACT_AT_RUNTIME) and "axis" not in node.attrs
                if is_exact and self.fits(node):
                    found.add(node)
            self.constants.update(node.outputs)
            order.append(node)
        for node in reversed(order):
            if not self.is_worth_it(node, node in found):
                self.constants.difference_update(node.outputs)
                found.discard(node)
        return [node for node in order if node in found]

    def is_worth_it(self, node: Node, for_runtime: bool) -> bool:
        """Return whether results of `node` may be written, or serve an expression that is.

        Asked of readers before producers. The budget of the evaluator bounds the bytes that the
        runtime makes beyond those that may be written.
        """
        made = _made(node)
        if self.may_write(node, made):
            return True
        results = [value for reader in _readers(node) for value in reader.outputs]
        if self.constants.isdisjoint(results):
            return False
        return not for_runtime or self.evaluator.budget.pay_kept(made)

    def may_write(self, node: Node, made: int) -> bool:
        """Return whether results of `node`, of `made` bytes, are not too large for constants."""
        return made <= self.max_bytes or made <= self.max_bytes + dying_bytes(node)

    def leave_large(self) -> None:
        """Take for not computed the nodes with a needed result too large to be written."""
        for node in list(reversed(self.computed)):
            if not self.may_write(node, _made(node)) and not all(map(self.is_done, _readers(node))):
                del self.computed[node]

    def is_done(self, reader: Node) -> bool:
        """Return whether `reader` is computed, by the runtime or by the operator table."""
        if reader in self.computed:
            return True
        return any(self.evaluator.array(value) is not None for value in reader.outputs)

    def is_computed(self, value: Value | None) -> bool:
        """Return whether `value` is absent, a constant, or the result of a constant expression."""
        return value is None or is_constant(value) or value in self.constants

    def is_for_runtime(self, node: Node) -> bool:
        """Return whether `node` is a deterministic ONNX operator beyond the operator table."""
        info = op_info(node.op)
        if info is None:
            is_kept = node.op.rpartition("::")[2] in KEPT
            standard = not is_kept and is_deterministic(node, self.module)
        elif info.evaluate is not None:
            dtype = dtype_of(node.output.type)
            is_float = dtype is not None and dtype.is_float
            standard = is_float and has_trait(node, Trait.EVALUATED_FOR_INTEGERS)
        else:
            parameter = None if info.wide is None else node[info.wide]
            given = None if parameter is None else dtype_of(parameter.type)
            wide = given is F64 and dtype_of(node.output.type) is not F64
            standard = info.pure and not wide and Trait.GROWS not in info.traits
        return standard and bool(node.inputs) and self.fits(node)

    def fits(self, node: Node) -> bool:
        """Return whether all types are known, static and exchangeable, and within the limits.

        No operator here has a region in ONNX: one that has is malformed.
        """
        if node.regions:
            return False
        operands = [value for value in node.inputs if value is not None]
        results = [value for value in node.outputs if value.users]
        if not all(map(_is_exchangeable, (*operands, *results))):
            return False
        if node.op == "nn.dense":
            columns = static_shape_of(node.output.type) or (1,)
            work = _elements(node.output) * _elements(node["weight"]) // max(columns[-1], 1)
            if work > MAX_DENSE:
                return False
        elif has_trait(node, Trait.HEAVY) or node.op.rpartition("::")[2].startswith(HEAVY):
            largest = 1 if node.op == "einsum" else max(map(_elements, results), default=1)
            work = prod(max(_elements(value), 1) for value in operands) * max(largest, 1)
            if work > MAX_PRODUCTS:
                return False
        made, read = _made(node), sum(map(_bytes, operands))
        if made <= max(MAX_READ, self.max_bytes) and read <= MAX_READ:
            return True
        dying = dying_bytes(node)
        return made <= dying and read <= max(2 * dying, MAX_READ)

    def ready(self, waiting: Sequence[Node]) -> dict[Node, None]:
        """Return the nodes whose operands are all known, or computed by other ready nodes."""
        ready: dict[Node, None] = {}
        array_of = self.evaluator.array
        if not waiting or self.ctx.runtime.gave_up:
            return ready
        for node in waiting:
            operands = [value for value in node.inputs if value is not None]
            if node.op in self.ctx.runtime.blamed:
                continue
            if all(value.node in ready or array_of(value) is not None for value in operands):
                ready[node] = None
        return ready

    def run(self, ready: dict[Node, None], opset: int) -> bool:
        """Compute the values that are read outside the region; return whether any succeeded."""
        outside = [
            node
            for node in ready
            if any(user not in ready for value in node.outputs for user in value.users)
        ]
        done = self.run_in_halves(outside, ready, opset)
        needed = set(done)
        for node in reversed(ready):
            if node in needed:
                needed.update(
                    v.node
                    for v in node.inputs
                    if v is not None and v.node is not None and v.node in ready
                )
        self.computed.update((node, None) for node in ready if node in needed)
        return bool(done)

    def run_in_halves(
        self, nodes: Sequence[Node], ready: dict[Node, None], opset: int
    ) -> list[Node]:
        """Compute `nodes` in one session, or in halves if that fails; return those computed."""
        done: list[Node] = []
        stack = [list(nodes)] if nodes else []
        while stack and self.sessions < MAX_SESSIONS:
            part = stack.pop()
            self.sessions += 1
            if self.run_session(part, ready, opset):
                done.extend(part)
            elif len(part) > 1:
                stack += [part[len(part) // 2 :], part[: len(part) // 2]]
        return done

    def run_singly(self, ready: dict[Node, None], opset: int) -> bool:
        """Compute each node in a session of its own after a crash; return whether any succeeded.

        The operator that crashes the runtime stays, as do all others of its type, and a warning
        names it.
        """
        runtime = self.ctx.runtime
        for node in islice(ready, MAX_SINGLE_SESSIONS):
            operands = [value for value in node.inputs if value is not None]
            if node.op in runtime.blamed:
                continue
            if any(self.evaluator.array(value) is None for value in operands):
                continue
            if runtime.gave_up:
                self.ctx.warnings.append(
                    "onnxruntime crashed too often on constant expressions: the others stay, too"
                )
                break
            try:
                if self.run_session([node], {node: None}, opset):
                    self.computed[node] = None
            except WorkerDiedError as reason:
                runtime.blamed.add(node.op)
                self.ctx.warnings.append(
                    f"{node.description} stays, though its operands are constant: onnxruntime"
                    f" {reason} on it"
                )
        return any(node in self.computed for node in ready)

    def run_session(self, nodes: Sequence[Node], ready: dict[Node, None], opset: int) -> bool:
        """Compute `nodes` in one session; return whether that gave the inferred types.

        Raises WorkerDiedError if the runtime crashes.
        """
        values = [value for node in nodes for value in node.outputs if value.users]
        feeds = self.feeds(nodes, ready)
        counter = self.module.debug_counter
        inner = [] if counter.log is None else _between(values, feeds)
        arrays = self.ctx.runtime.evaluate([*values, *inner], feeds, opset)
        if arrays is None:
            return False
        for value, array in zip((*values, *inner), arrays, strict=True):
            counter.note_computed(value.name, array)
        arrays = arrays[: len(values)]
        types = [ArrayTensor(array).type for array in arrays]
        if types != [value.type for value in values]:
            return False
        for value, array in zip(values, arrays, strict=True):
            self.evaluator.provide(value, array)
        return True

    def feeds(self, nodes: Sequence[Node], ready: dict[Node, None]) -> dict[Value, Array]:
        """Return the known values that `nodes` are computed from, through other ready nodes."""
        feeds: dict[Value, Array] = {}
        stack, seen = list(nodes), set(nodes)
        while stack:
            for value in stack.pop().inputs:
                producer = None if value is None else value.node
                if value is None or value in feeds:
                    continue
                if producer is not None and producer in ready:
                    stack.extend(() if producer in seen else (producer,))
                    seen.add(producer)
                else:
                    array = self.evaluator.array(value)
                    assert array is not None
                    feeds[value] = array
        return feeds


def _between(values: Sequence[Value], feeds: Mapping[Value, Array]) -> list[Value]:
    """Return the other values that are computed on the way from `feeds` to `values`."""
    found: dict[Value, None] = dict.fromkeys(values)
    stack = list(values)
    while stack:
        node = stack.pop().node
        operands = () if node is None else node.inputs
        new = [
            value
            for value in operands
            if value is not None and value not in feeds and value not in found
        ]
        found.update(dict.fromkeys(new))
        stack += new
    return list(found)[len(values) :]


def _is_exchangeable(value: Value) -> bool:
    """Return whether a runtime takes and gives such values, and the shape is static."""
    return dtype_of(value.type) in EXCHANGED and static_shape_of(value.type) is not None


def _elements(value: Value) -> int:
    shape = static_shape_of(value.type)
    assert shape is not None
    return element_count(shape)


def _made(node: Node) -> int:
    """Return the bytes of the results that are read, as far as they are known."""
    read = [value for value in node.outputs if value.users]
    return sum([_bytes(value) for value in read if _is_exchangeable(value)])


def _readers(node: Node) -> list[Node]:
    return [reader for value in node.outputs for reader in value.users]


def _bytes(value: Value) -> int:
    dtype = dtype_of(value.type)
    assert dtype is not None
    return _elements(value) * dtype.bits // 8
