"""The Rewriter, through which passes edit a module. It maintains users, names and origins.

A node that is made while another is rewritten takes over its origins. The replacement of a node
inherits the origins of the node and of all operands that are erased with it; `Provenance.merged`
lists them with the rule. `Provenance.dropped` lists the origins that nothing inherits. So every
imported node is an origin of an emitted node, or dropped.

Speed: rules are tried at nearly every node, and nearly all decline. So `Rewriter.decline` calls
nothing of Python unless there is a trace, and `rewriting` is a class, not a generator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

import numpy as np

from ..support.errors import IRError
from .attributes import Attribute, SparseTensor
from .graph import FunctionKey, Node, Value
from .making import (
    check_count,
    check_required,
    checked_attributes,
    constant_of,
    constants_for,
    find_operator,
    newest_form,
    table_row,
)
from .module import Module, check_module
from .operand_types import Number, Operands
from .ops import op_info
from .ops.inference import unknown
from .ops.parameters import with_operands
from .ops.row import NodeView, OpInfo, Trait, need_schema, plain_attributes
from .provenance import MERGED, REMOVED
from .tensor import Array, ArrayTensor, Tensor, rounded_in_pass
from .type_inference import infer_types, is_known
from .types import F64, UNKNOWN, DType, Type


class Rewriter:
    """The editor of one module for one pass. `changed` tells whether it edited anything.

        y = rewriter.make("add", [x, 1.0], before=node).output    # a node, and a constant for 1.0
        rewriter.replace(node.output, y)                          # erases `node`

    `root` is the node that is being rewritten, whose origins new nodes take over. `rule` is the
    name under which erased nodes are recorded. Passes ask `debug_counter` before they apply a rule.
    They edit within a `step`, which counts the rule, or in a rule of a RuleDriver, which counts it
    itself. While the rewrites of the module are recorded, for a certificate, all other edits are
    refused: every rewrite is in the record. Passes of other packages are recorded by their names.
    """

    def __init__(self, module: Module) -> None:
        check_module(module)
        self.module = module
        self.debug_counter = module.debug_counter
        self._changed = False
        self.root: Node | None = None
        self.rule = ""
        self._step = ""
        self._has_edited = False
        self._is_recorded = module.debug_counter.log is not None
        self._reason = ""
        self.decline: Callable[[str], bool] = (
            _no_reason if self.debug_counter.trace is None else self._keep_reason
        )
        """Keep the reason why a rule declines, for a trace; return False for the rule to return."""

    @property
    def changed(self) -> bool:
        return self._changed

    @changed.setter
    def changed(self, value: bool) -> None:
        if value:
            self._begin_edit()
        self._changed = value

    def step(self, rule: str, where: str, *, is_counted: bool = True) -> _Step:
        """Edit within this context by `rule` at the operator called `where`.

        At its end the rule is counted, unless nothing was edited, or an error was raised. Edits
        that other applications entail are recorded, but not counted.
        """
        return _Step(self, rule, where, is_counted=is_counted)

    def _begin_edit(self) -> None:
        """Note that the module changes. Raises IRError outside of a step that is recorded."""
        if self._is_recorded and not (self.rule or self._step):
            self._record_foreign()
        self._changed = self._has_edited = self.module.changed = True

    def _record_foreign(self) -> None:
        provenance, counter = self.module.provenance, self.debug_counter
        if not provenance.is_foreign:
            raise IRError(
                f"{provenance.running} edits the module outside of a step, so no certificate would"
                " name the rewrite: open one by Rewriter.step, or apply a rule by a RuleDriver"
            )
        entry = (provenance.running, "the module")
        if entry not in (counter.log or ())[-1:]:
            counter.record(*entry)

    # new nodes

    def make(
        self,
        op: str,
        inputs: Operands,
        attrs: Mapping[str, object] | None = None,
        *,
        before: Node,
        hint: str = "",
        name: str = "",
        type_: Type = UNKNOWN,
        results: int | None = None,
        opset: int | None = None,
    ) -> Node:
        """Insert and return a new node before the node `before`. O(inputs).

        `op` is an operator of the operator table (`nn.conv`), one of ONNX (`onnx::HardSwish`), or
        one of another domain (`com.acme::Foo`), which the graph then imports in `opset` if it does
        not yet. A number or an array among the `inputs` becomes a constant of the element type of
        the other operands.

        The node has `results` outputs, by default as many as `op` needs. They have the type
        `type_`, or inferred types if it is unknown, and fresh names made from `hint`. Raises
        IRError for an unknown operator or attribute, for an attribute of another kind, and for too
        many or too few inputs.
        """
        info = op_info(op)
        if info is None:
            made, values, checked, needed = self._foreign(op, inputs, attrs or {}, before, opset)
            info = op_info(made)
        else:
            plain = plain_attributes(info, attrs) if attrs else {}
            if plain is None or not info.arity[0] <= len(inputs) <= info.arity[1]:
                plain = self._checked(info, inputs, attrs or {}, before)
            made, checked, needed = op, plain, info.result_counts[0]
            values = self._values(inputs, before, info)
        stem = hint or made.rpartition("::")[2]
        outputs = [(self.module.fresh_name(stem), type_) for _ in range(results or needed)]
        node = self._insert(Node(made, values, checked, outputs=outputs, name=name), before)
        root = self.root
        if root is not None and root.outputs:
            for output in node.outputs:
                output.made_for(root.output)
        if info is None or info.infer is unknown:
            if not is_known(type_):
                self._infer_by_schema(node)
        elif Trait.DECIDES_RANK in info.traits or not is_known(type_):
            infer_types(node, self.module.constants)
        return node

    def constant(
        self, tensor: Tensor | SparseTensor | Number, *, before: Node, hint: str = ""
    ) -> Value:
        """Insert a constant before the node `before`, and return its value.

        A number or an array keeps its dtype.
        """
        if isinstance(tensor, Tensor | SparseTensor):
            payload = tensor
        else:
            payload = constant_of(tensor, None, "a constant")
        outputs = ((self.module.fresh_name(hint or "constant"), payload.type),)
        return self._insert(
            Node("constant", (), {"value": payload}, outputs=outputs), before
        ).output

    def rounded(self, array: Array, dtype: DType, *, before: Node, hint: str = "") -> Value:
        """Insert a constant that is `array` rounded to `dtype`.

        A later rewrite that reads `ConstantEvaluator.exact` gets a float64 array as it was before.
        So a number is rounded once, however many rewrites change it.
        """
        made = self.constant(
            ArrayTensor(rounded_in_pass(array, dtype), dtype), before=before, hint=hint
        )
        if array.dtype == np.float64 and dtype is not F64:
            self.module.constants.provide(made, array, keep=True)
        return made

    # other values in place of the old

    def replace(
        self, old: Value, new: Value, *, take_name: bool = False, heir: Node | None = None
    ) -> None:
        """Replace `old` by `new` in all users, and erase the node of `old` if unread. O(uses).

        With `take_name`, `new` takes the name of `old`; a node must define it. `heir`, by default
        the node of `new`, inherits the origins of erased nodes.
        """
        self._replace(old, new, take_name, heir or new.node, MERGED)

    def forward(self, old: Value, new: Value) -> bool:
        """Replace `old` in all users by `new`, an equal value, and return True.

        Decline if the replacement would change the interface: an output of a graph cannot become
        an input, a constant, a value of an outer graph or another output of the same graph.
        """
        returned = old.is_returned
        if returned:
            producer = new.node
            if producer is None or old.node is None or producer.graph is not old.node.graph:
                return self.decline(
                    "a result of the graph may not be an input or a value of an outer graph"
                )
            if producer.op in ("constant", "variable") or new.is_returned:
                return self.decline("a result of the graph may not be a constant or another result")
            if producer.is_hidden:
                return self.decline(
                    f"{producer.description} is kept, and so is the name of its result"
                )
        if not returned:
            for table in self.module.provenance.value_tables:
                table.value_forwarded(old, new)
        removes = old.node is not None and _is_operand(new, old.node)
        self._replace(old, new, returned, new.node, REMOVED if removes else MERGED)
        return True

    def interpose(self, node: Node) -> None:
        """Let readers of the first operand of `node` read its result instead. O(uses).

        The result takes the name of the operand, which takes the fresh name of the result.
        """
        self._begin_edit()
        old, new = node.operand(), node.output
        for user in [user for user in old.users if user is not node]:
            user.replace_input(old, new)
        fresh = new.name
        new.take_name(old)
        old.rename(fresh)

    # changes of a node

    def set_inputs(self, node: Node, inputs: Sequence[Value | None]) -> None:
        """Replace the inputs of `node`, which inherits the origins of operands that are erased.

        Old operands without users are erased.
        """
        self._begin_edit()
        before = node.inputs
        node.set_inputs(inputs)
        self._erase_unread(before, node, MERGED)

    def set_attr(self, node: Node, name: str, value: object) -> None:
        """Set one attribute. Raises IRError for an unknown one, or one of another kind."""
        info = op_info(node.op)
        plain = None if info is None else plain_attributes(info, {name: value})
        if plain is None:
            plain = self._checked_attribute(node, info, name, value)
        self._begin_edit()
        node.attrs = {**node.attrs, **plain}

    def drop_attr(self, node: Node, name: str) -> None:
        """Remove one attribute."""
        self._begin_edit()
        node.attrs = {key: value for key, value in node.attrs.items() if key != name}

    def set_metadata(self, node: Node, key: str, value: str) -> None:
        """Set one entry of the metadata of a node.

        Raises IRError unless key and value are text, as ONNX has them.
        """
        if not (isinstance(key, str) and isinstance(value, str)):
            raise IRError(f"{node.description}: the metadata {key!r}: {value!r} are not text")
        self._begin_edit()
        node.metadata[key] = value

    # fewer nodes

    def erase(self, node: Node, *, heir: Node | None = None) -> None:
        """Erase a node without users, and the pure operands that only it read.

        `heir` inherits their origins.
        """
        self._begin_edit()
        self._erase(node, heir, MERGED if heir else "")

    def erase_function(self, key: FunctionKey) -> None:
        """Erase a function that is never called."""
        self._begin_edit()
        for node in self.module.functions.pop(key).graph.walk():
            self._bequeath(node, None, "")

    # for rules

    def rewriting(self, node: Node | None) -> _Rewriting:
        """Give new nodes the origins of `node`, or none, within this context."""
        return _Rewriting(self, node)

    def take_reason(self) -> str:
        """Return and clear the reason of the rule that declined last; empty if it gave none."""
        reason, self._reason = self._reason, ""
        return reason

    def _keep_reason(self, reason: str) -> bool:
        self._reason = reason
        return False

    # making a node

    def _insert(self, node: Node, before: Node) -> Node:
        self._begin_edit()
        if self.root is not None:
            node.origins, node.inherited = self.root.origins, self.root.inherited
            if node.name and node.name == self.root.name:
                node.take_marks(self.root)
        assert before.graph is not None
        before.graph.insert_before(before, node)
        if self.module.provenance.is_foreign:
            self.module.provenance.foreign.add(node)
        return node

    def _checked(
        self, info: OpInfo, inputs: Operands, attrs: Mapping[str, object], before: Node
    ) -> dict[str, Attribute]:
        """Return the attributes of an operator of the table.

        Raises IRError for a wrong one, and for too many or too few inputs.
        """
        title = info.onnx or info.name
        schema = newest_form(info, self.module, before) if need_schema(info, attrs) else None
        checked = checked_attributes(title, attrs, info, schema)
        if not info.arity[0] <= len(inputs) <= info.arity[1]:
            check_count(title, inputs, info.inputs, *info.arity)
        return checked

    def _values(self, inputs: Operands, before: Node, info: OpInfo) -> Sequence[Value | None]:
        """Return the inputs of an operator of the table; numbers become constants."""
        for value in inputs:
            if value is not None and value.__class__ is not Value:
                break
        else:
            return inputs  # type: ignore[return-value]  # as the loop says
        tensors = constants_for(
            info.onnx or info.name, inputs, newest_form(info, self.module, before)
        )
        return self._with_constants(inputs, tensors, before)

    def _with_constants(
        self, inputs: Operands, tensors: Mapping[int, Tensor], before: Node
    ) -> tuple[Value | None, ...]:
        values: list[Value | None] = []
        for i, value in enumerate(inputs):
            if i in tensors:
                values.append(self.constant(tensors[i], before=before, hint="constant"))
            else:
                assert value is None or isinstance(value, Value)
                values.append(value)
        return tuple(values)

    def _foreign(
        self,
        op: str,
        inputs: Operands,
        attrs: Mapping[str, object],
        before: Node,
        opset: int | None,
    ) -> tuple[str, Sequence[Value | None], dict[str, Attribute], int]:
        """Return operator, inputs, attributes and number of results of an operator by ONNX name.

        If the operator table has the operator, it is that one.
        """
        module, operator = self.module, find_operator(op, self.module, before, opset)
        row, schema, version = table_row(operator), operator.schema, operator.opset
        if row is not None and schema is not None and len(inputs) > schema.greatest:
            # the form of the IR, in a model of an older opset
            schema = newest_form(row, module, before) or schema
            version = max(version, *[parameter.since for parameter in row.parameters.values()], 1)
        title = operator.op_type
        if schema is not None:
            names = [each.name for each in schema.operands]
            check_count(title, inputs, names, schema.least, schema.greatest)
        checked = checked_attributes(title, attrs, None, schema)
        check_required(title, checked, schema)
        tensors = constants_for(title, inputs, schema)
        needed = max(1, 1 if schema is None else schema.results)
        values = self._with_constants(inputs, tensors, before)
        if row is not None and (operator.domain, operator.op_type, "") not in module.functions:
            lowered = module.foreign.lower(
                "", title, NodeView(version, checked, values, ("result",) * needed)
            )[0]
            if lowered is not None:
                with_parameters, all_values = with_operands(
                    row, checked, values, lambda node: self._insert(node, before), version
                )
                return lowered, all_values, with_parameters, row.result_counts[0]
        return operator.op, values, checked, needed

    def _infer_by_schema(self, node: Node) -> None:
        """Fill in the types of a node that the operator table does not infer."""
        module = self.module
        types = module.foreign.infer(node, module.constants, module.limits)
        for output, inferred in zip(node.outputs, types, strict=False):
            if output.type is UNKNOWN:
                output.type = inferred

    def _checked_attribute(
        self, node: Node, info: OpInfo | None, name: str, value: object
    ) -> dict[str, Attribute]:
        schema = None
        if info is None:
            domain, _, op_type = node.op.partition("::")
            is_call = (domain, op_type, node.overload) in self.module.functions
            if node.graph is not None and not is_call:
                schema = self.module.foreign.find(domain, op_type, node.graph.opsets.get(domain, 0))
        elif need_schema(info, (name,)):
            schema = newest_form(info, self.module, node)
        return checked_attributes(node.description, {name: value}, info, schema)

    # erasing nodes, whose origins go to an heir

    def _replace(
        self, old: Value, new: Value, take_name: bool, heir: Node | None, note: str
    ) -> None:
        self._begin_edit()
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

    def _erase(self, node: Node, heir: Node | None, note: str) -> None:
        inputs, captured = node.inputs, self._drop_regions(node) if node.regions else ()
        self._bequeath(node, heir, note)
        assert node.graph is not None
        node.graph.remove(node)
        self._erase_unread(inputs, heir, note)
        if captured:
            self._erase_unread(captured, None, "")

    def _erase_unread(self, values: Sequence[Value | None], heir: Node | None, note: str) -> None:
        stack = [*reversed(values)]
        while stack:
            value = stack.pop()
            node = None if value is None or value.users else value.node
            if node is None or node.graph is None:
                continue
            if node.op != "constant":  # which may always go
                info = op_info(node.op)
                if info is None or not info.is_erasable:
                    continue
                # The value has no reader, but another result of its node may have one.
                if len(node.outputs) > 1 and node.is_read:
                    continue
            inputs = node.inputs
            self._bequeath(node, heir, note)
            node.graph.remove(node)
            if inputs:
                stack += reversed(inputs)

    def _drop_regions(self, node: Node) -> list[Value | None]:
        """Record the nodes in the regions of `node` as erased; return the values they read."""
        captured: list[Value | None] = []
        for region in node.regions:
            for inner in region.walk():
                self._bequeath(inner, None, "")
                captured.extend(inner.inputs)
        return captured

    def _bequeath(self, node: Node, heir: Node | None, note: str) -> None:
        """Pass the origins of `node`, which is being erased, to `heir`.

        The rule at work is recorded with the `note`, if there is one.

        A node that was made while `node` was rewritten has these origins already: the same tuples.
        """
        module, origins, inherited = self.module, node.origins, node.inherited
        for value in node.outputs:
            module.constants.forget(value)
        if node.op != "constant":
            for table in module.provenance.node_tables:
                table.node_erased(node, heir)
            if origins and note:
                module.provenance.consume(node, heir, self.rule, note)
            if heir is not None and note == MERGED and _may_have_marks(node):
                heir.take_marks(node)
        elif not (origins or inherited):
            return
        if heir is None:
            module.provenance.dropped.extend([rope for rope in (origins, inherited) if rope])
            return
        for rope in (origins, inherited):
            if rope and rope is not heir.origins and rope is not heir.inherited:
                heir.inherited = (heir.inherited, rope) if heir.inherited else rope


_no_reason: Callable[[str], bool] = frozenset[str]().__contains__
"""Returns False."""


def _may_have_marks(node: Node) -> bool:
    return node.source is not None or bool(node.merged) or bool(node.own_metadata)


class _Rewriting:
    """The context of `Rewriter.rewriting`."""

    __slots__ = ("_outer", "_rewriter")

    def __init__(self, rewriter: Rewriter, root: Node | None) -> None:
        self._rewriter = rewriter
        self._outer = rewriter.root
        rewriter.root = root

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._rewriter.root = self._outer


class _Step:
    """The context of `Rewriter.step`."""

    __slots__ = ("_had_edited", "_is_counted", "_outer", "_rewriter", "_rule", "_where")

    def __init__(self, rewriter: Rewriter, rule: str, where: str, *, is_counted: bool) -> None:
        self._rewriter = rewriter
        self._rule = rule
        self._where = where
        self._is_counted = is_counted
        self._outer = rewriter._step
        self._had_edited = rewriter._has_edited

    def __enter__(self) -> None:
        self._rewriter._step, self._rewriter._has_edited = self._rule, False

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        rewriter, counter = self._rewriter, self._rewriter.debug_counter
        if kind is None and rewriter._has_edited:
            (counter.note if self._is_counted else counter.record)(self._rule, self._where)
        rewriter._step = self._outer
        rewriter._has_edited |= self._had_edited


def _is_operand(value: Value, node: Node) -> bool:
    """Return whether `node` reads `value`, itself or by one operator: negative(negative(value))."""
    before = (
        operand.node.inputs
        for operand in node.inputs
        if operand is not None and operand.node is not None
    )
    return value in node.inputs or any(value in inputs for inputs in before)
