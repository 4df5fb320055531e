"""The Rewriter, through which passes edit a module. It maintains users, names and origins.

A node that is made while another is rewritten takes over its origins. The replacement of a node inherits the origins of
the node and of all operands that are erased with it; `Provenance.merged` lists them with the rule. `Provenance.dropped`
lists the origins that nothing inherits. So every imported node is an origin of an emitted node, or dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

from .attributes import Attribute, SparseTensor
from .evaluate import ConstantEvaluator
from .graph import FunctionKey, Node, Value
from .module import Module
from .ops import op_info
from .ops.inference import input_shape
from .ops.row import Trait
from .provenance import MERGED, REMOVED
from .tensor import Tensor
from .types import UNKNOWN, Shape, TensorType, Type, shape_of


def infer_types(node: Node, evaluator: ConstantEvaluator) -> None:
    """Fill in unknown dtypes, ranks and extents of a node's outputs by its row in the operator table."""
    info = op_info(node.op)
    if info is None:
        return
    decides_rank = Trait.DECIDES_RANK in info.traits
    outputs = node.outputs
    if is_known(outputs[0].type) if len(outputs) == 1 else _are_known(outputs):
        if not decides_rank or _has_rank_of_weight(node):
            return
    for output, inferred in zip(outputs, info.infer(node, evaluator), strict=False):
        known = output.type
        if known is UNKNOWN:
            output.type = inferred
        elif isinstance(known, TensorType) and isinstance(inferred, TensorType):
            shape = _merged(known.shape, inferred.shape)
            if decides_rank and inferred.rank is not None and inferred.rank != known.rank:
                shape = inferred.shape  # the declared rank is impossible
            output.type = TensorType(known.dtype or inferred.dtype, shape)


def _has_rank_of_weight(node: Node) -> bool:
    """Return whether the declared rank of a layer's output is the rank that its weight or operator gives."""
    shape, known = input_shape(node, 1), shape_of(node.output.type)
    if shape is None or known is None:
        return False
    return len(known) == (2 if node.op == "nn.dense" else len(shape))


def _are_known(values: Sequence[Value]) -> bool:
    return all(is_known(value.type) for value in values)


def is_known(type_: Type) -> bool:
    """Return whether dtype, rank and all extents are known; an extent may be a symbol."""
    if not isinstance(type_, TensorType) or type_.dtype is None or type_.shape is None:
        return False
    return None not in type_.shape


def _merged(known: Shape, inferred: Shape) -> Shape:
    """Return `known` with its unknown extents filled in from `inferred`."""
    if known is None or inferred is None or len(known) != len(inferred):
        return inferred if known is None else known
    return tuple(b if a is None else a for a, b in zip(known, inferred, strict=True))


def _is_operand(value: Value, node: Node) -> bool:
    """Return whether `node` reads `value`, itself or by one operator between, as in negative(negative(value))."""
    before = (operand.node.inputs for operand in node.inputs if operand is not None and operand.node is not None)
    return value in node.inputs or any(value in inputs for inputs in before)


_no_reason: Callable[[str], bool] = frozenset[str]().__contains__
"""Returns False, without a call of Python: rules decline at nearly every node, and traces are rare."""


class _Rewriting:
    """The context of `Rewriter.rewriting`: no generator, since it is entered for every rule at every node."""

    __slots__ = ("_outer", "_rewriter")

    def __init__(self, rewriter: Rewriter, root: Node | None) -> None:
        self._rewriter = rewriter
        self._outer = rewriter.root
        rewriter.root = root

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._rewriter.root = self._outer


class Rewriter:
    """The editor of one module for one pass. `changed` tells whether it edited anything.

    Passes ask `debug_counter` before they apply a rule, and notify it afterwards. `root` is the node that is being
    rewritten, whose origins new nodes take over. `rule` is the name under which erased nodes are recorded.
    """

    def __init__(self, module: Module) -> None:
        self.module = module
        self.debug_counter = module.debug_counter
        self.changed = False
        self.root: Node | None = None
        self.rule = ""
        self._reason = ""
        self.decline: Callable[[str], bool] = _no_reason if self.debug_counter.trace is None else self._keep_reason
        """Keep the reason why a rule declines, for the driver's trace, and return False for the rule to return."""

    def rewriting(self, node: Node | None) -> _Rewriting:
        """Give new nodes the origins of `node`, or none, within this context."""
        return _Rewriting(self, node)

    def _keep_reason(self, reason: str) -> bool:
        self._reason = reason
        return False

    def take_reason(self) -> str:
        """Return and clear the reason of the rule that declined last; empty if it gave none."""
        reason, self._reason = self._reason, ""
        return reason

    def _insert(self, node: Node, before: Node) -> Node:
        if self.root is not None:
            node.origins, node.inherited = self.root.origins, self.root.inherited
        assert before.graph is not None
        before.graph.insert_before(before, node)
        self.changed = True
        return node

    def make(
        self,
        op: str,
        inputs: Sequence[Value | None],
        attrs: Mapping[str, Attribute] | None = None,
        *,
        before: Node,
        hint: str = "",
        name: str = "",
        type_: Type = UNKNOWN,
        results: int | None = None,
    ) -> Node:
        """Insert and return a new node, an `op` of the operator table, before the node `before`. O(inputs).

        It has `results` outputs, by default as many as the row of `op` says. They have the type `type_`, or inferred
        types where it is unknown, and fresh names made from `hint`.
        """
        info = op_info(op)
        assert info is not None, f"{op} is not in the operator table"
        outputs = [(self.module.fresh_name(hint or op), type_) for _ in range(results or info.outputs)]
        node = self._insert(Node(op, inputs, attrs, outputs=outputs, name=name), before)
        root = self.root
        if root is not None and root.outputs:
            for output in node.outputs:
                output.made_for(root.output)
        if Trait.DECIDES_RANK in info.traits or not is_known(type_):
            infer_types(node, self.module.constants)
        return node

    def constant(self, tensor: Tensor | SparseTensor, *, before: Node, hint: str) -> Value:
        """Insert a constant before the node `before`, and return its value."""
        outputs = ((self.module.fresh_name(hint or "constant"), tensor.type),)
        return self._insert(Node("constant", (), {"value": tensor}, outputs=outputs), before).output

    def replace(self, old: Value, new: Value, *, take_name: bool = False, heir: Node | None = None) -> None:
        """Replace `old` by `new` in all users, and erase the node of `old` if it then has no users. O(uses).

        With `take_name`, `new` takes the name of `old`; a node must define it. `heir`, by default the node of `new`,
        inherits the origins of erased nodes.
        """
        self._replace(old, new, take_name, heir or new.node, MERGED)

    def _replace(self, old: Value, new: Value, take_name: bool, heir: Node | None, note: str) -> None:
        for user in list(old.users):
            user.replace_input(old, new)
        if take_name:
            assert new.node is not None, "a graph input keeps its name"
            new.take_name(old)
            for table in self.module.provenance.value_tables:
                table.value_replaced(old, new)
        node = old.node
        if node is not None and not node.is_read:
            self._erase(node, heir, note)
        self.changed = True

    def interpose(self, node: Node) -> None:
        """Let all readers of the first operand of `node` read the result of `node` in its place. O(uses).

        The result takes the name of the operand, which takes the fresh name of the result.
        """
        old, new = node.operand(), node.output
        for user in [user for user in old.users if user is not node]:
            user.replace_input(old, new)
        fresh = new.name
        new.take_name(old)
        old.rename(fresh)
        self.changed = True

    def forward(self, old: Value, new: Value) -> bool:
        """Replace `old` in all users by `new`, an equal value, and return True.

        Decline where the replacement would change the interface: an output of a graph cannot become an input, a
        constant, a value of an outer graph or another output of the same graph.
        """
        returned = old.is_returned
        if returned:
            producer = new.node
            if producer is None or old.node is None or producer.graph is not old.node.graph:
                return self.decline("a result of the graph may not be an input or a value of an outer graph")
            if producer.op in ("constant", "variable") or new.is_returned:
                return self.decline("a result of the graph may not be a constant or another result")
        if not returned:
            for table in self.module.provenance.value_tables:
                table.value_forwarded(old, new)
        removes = old.node is not None and _is_operand(new, old.node)
        self._replace(old, new, returned, new.node, REMOVED if removes else MERGED)
        return True

    def set_inputs(self, node: Node, inputs: Sequence[Value | None]) -> None:
        """Replace the inputs of `node`, erase old operands without users, and let `node` inherit their origins."""
        before = node.inputs
        node.set_inputs(inputs)
        self._erase_unread(before, node, MERGED)
        self.changed = True

    def set_attr(self, node: Node, name: str, value: Attribute) -> None:
        """Set one attribute."""
        node.attrs = {**node.attrs, name: value}
        node.rewritten = True
        self.changed = True

    def drop_attr(self, node: Node, name: str) -> None:
        """Remove one attribute."""
        node.attrs = {key: value for key, value in node.attrs.items() if key != name}
        node.rewritten = True
        self.changed = True

    def erase(self, node: Node, *, heir: Node | None = None) -> None:
        """Erase a node without users, and the pure operands that only it read; `heir` inherits their origins."""
        self._erase(node, heir, MERGED if heir else "")
        self.changed = True

    def erase_function(self, key: FunctionKey) -> None:
        """Erase a function that is never called."""
        for node in self.module.functions.pop(key).graph.walk():
            self._bequeath(node, None, "")
        self.changed = True

    def _erase(self, node: Node, heir: Node | None, note: str) -> None:
        inputs, captured = node.inputs, self._drop_regions(node) if node.regions else ()
        self._bequeath(node, heir, note)
        assert node.graph is not None
        node.graph.remove(node)
        self._erase_unread(inputs, heir, note)
        if captured:
            self._erase_unread(captured, None, "")

    def _erase_unread(self, values: Sequence[Value | None], heir: Node | None, note: str) -> None:
        stack = [value for value in reversed(values) if value is not None and not value.users]
        while stack:
            node = stack.pop().node
            if node is None or node.graph is None or (len(node.outputs) > 1 and node.is_read):
                continue
            info = op_info(node.op)
            if info is None or not info.is_erasable:
                continue
            inputs = node.inputs
            self._bequeath(node, heir, note)
            node.graph.remove(node)
            if inputs:
                stack.extend([value for value in reversed(inputs) if value is not None and not value.users])

    def _drop_regions(self, node: Node) -> list[Value | None]:
        """Record the nodes in the regions of `node` as erased, and return the values that they read."""
        captured: list[Value | None] = []
        for region in node.regions:
            for inner in region.walk():
                self._bequeath(inner, None, "")
                captured.extend(inner.inputs)
        return captured

    def _bequeath(self, node: Node, heir: Node | None, note: str) -> None:
        """Pass the origins of `node`, which is being erased, to `heir`; record the rule at work with `note`, if any.

        A node that was made while `node` was rewritten shares its tuples, so it has these origins already.
        """
        module, origins, inherited = self.module, node.origins, node.inherited
        module.constants.forget(node.outputs)
        if node.op != "constant":
            for table in module.provenance.node_tables:
                table.node_erased(node, heir)
            if origins and note:
                module.provenance.consume(node, heir, self.rule, note)
        if heir is None:
            module.provenance.dropped.extend([rope for rope in (origins, inherited) if rope])
            return
        for rope in (origins, inherited):
            if rope and rope is not heir.origins and rope is not heir.inherited:
                heir.inherited = (heir.inherited, rope) if heir.inherited else rope
