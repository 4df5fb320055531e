"""The Rewriter: the only writer that passes use. It keeps users, names and origins right.

Nodes that are made while a node is rewritten have its origins. What replaces a node inherits its origins, and those of
the operands that die with it: `Provenance.merged` lists them with the rule. `Provenance.dropped` lists the origins that
go without an heir. So the origins of the emitted nodes and the dropped ones are together all imported ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Literal

from .attributes import Attribute
from .evaluate import ConstantEvaluator
from .graph import FunctionKey, Node, Value
from .module import Module
from .ops import op_info
from .ops.row import Trait
from .tensor import Tensor
from .types import UNKNOWN, Shape, TensorType, Type, shape_of


def infer_types(node: Node, evaluator: ConstantEvaluator) -> None:
    """Complete dtype, rank and extents of a node's results by its row of the operator table."""
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
                shape = inferred.shape  # what the model declares cannot be
            output.type = TensorType(known.dtype or inferred.dtype, shape)


def _has_rank_of_weight(node: Node) -> bool:
    """Whether the result of a layer has the rank that its weight, or Gemm itself, says."""
    weight = node.inputs[1]
    shape, known = None if weight is None else shape_of(weight.type), shape_of(node.output.type)
    if shape is None or known is None:
        return False
    return len(known) == (2 if node.op == "nn.dense" else len(shape))


def _are_known(values: Sequence[Value]) -> bool:
    return all(is_known(value.type) for value in values)


def is_known(type_: Type) -> bool:
    """Whether dtype, rank and all extents are known, be it as symbols."""
    if not isinstance(type_, TensorType) or type_.dtype is None or type_.shape is None:
        return False
    return None not in type_.shape


def _merged(known: Shape, inferred: Shape) -> Shape:
    """`known` with its gaps filled from `inferred`."""
    if known is None or inferred is None or len(known) != len(inferred):
        return inferred if known is None else known
    return tuple(b if a is None else a for a, b in zip(known, inferred, strict=True))


class _Rewriting:
    """The context of `Rewriter.rewriting`: every rule at every node runs in one, so it is no generator."""

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
    """Edits one module on behalf of one pass. `changed` tells whether anything was edited.

    Passes ask `debug_counter` before they apply a rule, and tell it when they have. `root` is the node that is being
    rewritten, from which new nodes descend, and `rule` the name under which consumed nodes are recorded.
    """

    def __init__(self, module: Module) -> None:
        self.module = module
        self.debug_counter = module.debug_counter
        self.changed = False
        self.root: Node | None = None
        self.rule = ""
        self._reason = ""

    def rewriting(self, node: Node | None) -> _Rewriting:
        """Let new nodes descend from `node`, or from none, while this context holds."""
        return _Rewriting(self, node)

    def decline(self, reason: str) -> Literal[False]:
        """Return False, as a rule does that declines, and keep the reason for the driver's trace."""
        self._reason = reason
        return False

    def take_reason(self) -> str:
        """Return the reason of the rule that declined last, empty if it gave none, and forget it."""
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
    ) -> Node:
        """Insert a new in-house node `name` in front of `before`. O(inputs).

        Types are inferred where `type_` is unknown; the results are named after `hint`.
        """
        info = op_info(op)
        assert info is not None, f"passes make in-house operators only, not {op}"
        outputs = [(self.module.fresh_name(hint or op), type_) for _ in range(info.outputs)]
        node = self._insert(Node(op, inputs, attrs, outputs=outputs, name=name), before)
        if Trait.DECIDES_RANK in info.traits or not is_known(type_):
            infer_types(node, self.module.constants)
        return node

    def constant(self, tensor: Tensor, *, before: Node, hint: str) -> Value:
        """Insert a constant in front of `before`."""
        outputs = ((self.module.fresh_name(hint or "constant"), tensor.type),)
        return self._insert(Node("constant", (), {"value": tensor}, outputs=outputs), before).output

    def replace(self, old: Value, new: Value, *, take_name: bool = False, heir: Node | None = None) -> None:
        """Let every reader of `old` read `new`, and erase the node of `old` if nothing reads it any more. O(uses).

        With `take_name` the value `new`, which a node defines, goes on under the name of `old`. What is erased leaves
        its origins to `heir`, by default the node of `new`.
        """
        for user in list(old.users):
            user.replace_input(old, new)
        if take_name:
            assert new.node is not None, "a graph input keeps its name"
            new.name = old.name
            for table in self.module.provenance.value_tables:
                table.value_replaced(old, new)
        node = old.node
        if node is not None and not node.is_read:
            self._erase(node, heir or new.node, dead=False)
        self.changed = True

    def replace_uses(self, old: Value, new: Value, *, but: Node) -> None:
        """Let every reader of `old`, `but` one, read `new`; the node of `old` stays. O(uses)."""
        for user in [user for user in old.users if user is not but]:
            user.replace_input(old, new)
        self.changed = True

    def forward(self, old: Value, new: Value) -> bool:
        """Let every reader of `old` read `new`, which is equal to it, and return True.

        Decline where the interface stands against it: a result of a graph cannot be an input, a constant, a value of an
        outer graph or a second result at once.
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
        self.replace(old, new, take_name=returned)
        return True

    def set_inputs(self, node: Node, inputs: Sequence[Value | None]) -> None:
        """Give `node` other inputs; operands that nobody reads any more are erased into its origins."""
        before = node.inputs
        node.set_inputs(inputs)
        self._erase_unread(before, node, dead=False)
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
        """Erase a node that nobody reads, and every pure operand that dies with it; `heir` inherits the origins."""
        self._erase(node, heir, dead=heir is None)
        self.changed = True

    def erase_unread(self, values: Sequence[Value | None]) -> None:
        """Erase the producers of those `values` that nobody reads, as far as they are pure. O(erased)."""
        self._erase_unread(values, None, dead=True)

    def erase_function(self, key: FunctionKey) -> None:
        """Erase a function that no call leads to."""
        for node in self.module.functions.pop(key).graph.walk():
            self._bequeath(node, None, dead=True)
        self.changed = True

    def _erase(self, node: Node, heir: Node | None, *, dead: bool) -> None:
        inputs, captured = node.inputs, self._drop_regions(node) if node.regions else ()
        self._bequeath(node, heir, dead=dead)
        assert node.graph is not None
        node.graph.remove(node)
        self._erase_unread(inputs, heir, dead=dead)
        if captured:
            self._erase_unread(captured, None, dead=True)

    def _erase_unread(self, values: Sequence[Value | None], heir: Node | None, *, dead: bool) -> None:
        stack = [value for value in reversed(values) if value is not None and not value.users]
        while stack:
            node = stack.pop().node
            if node is None or node.graph is None or (len(node.outputs) > 1 and node.is_read):
                continue
            info = op_info(node.op)
            if info is None or not info.is_erasable:
                continue
            inputs = node.inputs
            self._bequeath(node, heir, dead=dead)
            node.graph.remove(node)
            if inputs:
                stack.extend([value for value in reversed(inputs) if value is not None and not value.users])

    def _drop_regions(self, node: Node) -> list[Value | None]:
        """Record that the nodes in the regions of `node` go with it; return the values that they read."""
        captured: list[Value | None] = []
        for region in node.regions:
            for inner in region.walk():
                self._bequeath(inner, None, dead=True)
                captured.extend(inner.inputs)
        return captured

    def _bequeath(self, node: Node, heir: Node | None, *, dead: bool) -> None:
        """Hand the origins of `node`, which goes, to `heir`; the rule at work consumed it unless it was dead.

        A node that was made while `node` was rewritten shares its tuples, and already has what it would inherit.
        """
        module, origins, inherited = self.module, node.origins, node.inherited
        module.constants.forget(node.outputs)
        if node.op != "constant":
            for table in module.provenance.node_tables:
                table.node_erased(node, heir)
            if origins and not dead:
                module.provenance.consume(node, heir, self.rule)
        if heir is None:
            module.provenance.dropped.extend([rope for rope in (origins, inherited) if rope])
            return
        for rope in (origins, inherited):
            if rope and rope is not heir.origins and rope is not heir.inherited:
                heir.inherited = (heir.inherited, rope) if heir.inherited else rope
