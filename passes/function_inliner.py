"""The machinery of InlineFunctions: copies of bodies in place of calls, and calls that stay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from ..ir.attributes import Attribute, AttributeRef
from ..ir.graph import Function, FunctionKey, Graph, Node, Origins, Source, Value, call_key
from ..ir.module import Module
from ..ir.ops import is_foreign_body, op_info
from ..ir.ops.parameters import with_operands
from ..ir.ops.row import NodeView
from ..ir.rewriter import Rewriter
from ..ir.type_inference import infer_types
from .keeping import kept_nodes
from .simplify.control import stand_in

LONGEST_HINT = 1000
"""Characters of the name prefix of nested calls, after which the function's name begins it."""


class Inliner:
    def __init__(self, module: Module) -> None:
        self.module = module
        self.rewriter = Rewriter(module)
        self.evaluator = module.constants
        self.refused: dict[FunctionKey, str] = {}
        for key, recursive in recursive_functions(module).items():
            called = f"{recursive[0]}::{recursive[1]}"
            self.refused[key] = (
                "it calls itself" if key == recursive else f"it calls {called}, which calls itself"
            )
        self.kept = kept_nodes(module).operators
        for key, function in module.functions.items():
            kept = next((node for node in function.graph.walk() if node in self.kept), None)
            if kept is not None and key not in self.refused:
                self.refused[key] = f"{kept.description} in it is kept"
        for key, function in module.functions.items():
            if key not in self.refused and (reason := self.opset_conflict(function)):
                self.refused[key] = reason
        self.read: dict[FunctionKey, frozenset[Value]] = {}
        for key, function in module.functions.items():
            if key in self.refused:
                continue
            if any(self.is_misfit(node) for node in function.graph.walk()):
                self.refused[key] = (
                    "it calls a function without an operand that is read, or with too many results"
                )
        self.refuse_callers()

    def refuse_callers(self) -> None:
        """Refuse functions with a call that stays, but whose domain the main graph lacks.

        The call would be invalid outside the function.
        """
        callers: dict[FunctionKey, list[FunctionKey]] = {}
        for key, function in self.module.functions.items():
            for node in function.graph.walk():
                callers.setdefault(call_key(node), []).append(key)
        stack = list(self.refused)
        while stack:
            called = stack.pop()
            for key in callers.get(called, ()) if called[0] not in self.module.graph.opsets else ():
                if key not in self.refused:
                    self.refused[key] = f"it calls {called[0]}::{called[1]}"
                    stack.append(key)

    def opset_conflict(self, function: Function) -> str:
        """Return why the body has another meaning in the main graph's opsets, or ""."""
        here, there = self.module.graph.opsets, function.graph.opsets
        for node in function.graph.walk():
            if node.op in ("return", "constant") or call_key(node) in self.module.functions:
                continue
            domain, _, op_type = node.op.rpartition("::")
            if here.get(domain) == there.get(domain):
                continue
            if domain or domain not in here:
                name, wanted, given = (
                    domain or "ai.onnx",
                    there.get(domain, "none"),
                    here.get(domain, "none"),
                )
                return f"it imports version {wanted} of domain {name}, the model imports {given}"
            info = op_info(node.op)
            known = op_type if info is None or info.onnx is None else info.onnx
            since = self.module.foreign.since
            if since(known, here[""]) != since(known, there.get("", 1)):
                return f"{known} has another meaning in the opset of the model"
        return ""

    def count(self) -> int:
        """Return the number of nodes in the main graph after inlining. O(nodes)."""
        own = {key: list(function.graph.walk()) for key, function in self.module.functions.items()}
        calls = {
            key: [call_key(node) for node in nodes if self.callee(node) is not None]
            for key, nodes in own.items()
        }
        total: dict[FunctionKey, int] = {}
        stack = [key for key in own if key not in self.refused]
        while stack:
            key = stack[-1]
            missing = [called for called in dict.fromkeys(calls[key]) if called not in total]
            stack.extend(missing)
            if not missing:
                total[key] = len(own[key]) + sum(total[called] for called in calls[key])
                stack.pop()
        return sum(
            1 if self.callee(node) is None else total[call_key(node)]
            for node in self.module.graph.walk()
        )

    def callee(self, node: Node) -> Function | None:
        """Return the function whose body may replace `node`, None if there is none."""
        key = call_key(node)
        stays = key in self.refused or node.regions or node in self.kept
        function = None if stays else self.module.functions.get(key)
        return None if function is None or self.is_misfit(node) else function

    def is_misfit(self, call: Node) -> bool:
        """Return whether `call` has too many results or lacks an operand that the body requires."""
        key = call_key(call)
        function = self.module.functions.get(key)
        if function is None:
            return False
        if len(call.outputs) > len(function.graph.outputs):
            return True
        if key not in self.read:
            self.read[key] = frozenset(
                value
                for node in function.graph.walk()
                for i, value in enumerate(node.inputs)
                if value is not None
                and (i < required(node) or call_key(node) in self.module.functions)
            )
        return any(
            call.input(i) is None and value in self.read[key]
            for i, value in enumerate(function.graph.inputs)
        )

    def expand(self, call: Node) -> list[Node]:
        """Replace `call` by a copy of the body, and return the nodes of the copy."""
        function = self.callee(call)
        assert function is not None and call.graph is not None
        arguments = dict(
            zip(
                function.graph.inputs,
                (*call.inputs, *[None] * len(function.graph.inputs)),
                strict=False,
            )
        )
        attributes = {**function.defaults, **call.attrs}
        copier = _Copier(self, attributes, call.origins, call.graph.opsets)
        copier.values.update(arguments)
        anchor, hint = call, call.name or (call.outputs[0].name if call.outputs else function.name)
        hint = hint if len(hint) < LONGEST_HINT else function.name
        nodes = copier.copy_nodes(function.graph, call.graph, anchor, f"{hint}/")
        self.rewriter.changed = True
        if nodes:
            # each copy carries them, so the result that takes over must not inherit them again
            call.origins = ()
        for old, result in zip(call.outputs, function.graph.outputs, strict=False):
            with self.rewriter.rewriting(call):
                stand_in(old, copier.known(result), self.rewriter, before=call)
        if call.graph is not None:
            self.rewriter.erase(call)
        return [node for node in nodes if node.graph is not None]


class _Copier:
    """Copies the body of a function for one call; `values` maps values to their copies."""

    def __init__(
        self,
        inliner: Inliner,
        attributes: Mapping[str, Attribute],
        origins: Origins,
        opsets: dict[str, int],
    ) -> None:
        self.module = inliner.module
        self.evaluator = inliner.evaluator
        self.attributes = attributes
        self.origins = origins
        self.opsets = opsets
        self.values: dict[Value, Value | None] = {}

    def copy_nodes(self, source: Graph, target: Graph, anchor: Node, prefix: str) -> list[Node]:
        """Copy the nodes of `source` before `anchor`; return all copies, with inner ones."""
        made: list[Node] = []
        for node in source:
            regions = []
            for region in node.regions:
                copy, inner = self.copy_graph(region, prefix, keeps_names=is_foreign_body(region))
                regions.append(copy)
                made += inner
            copied = self.copy_node(node, regions, prefix, partial(target.insert_before, anchor))
            target.insert_before(anchor, copied)
            infer_types(copied, self.evaluator)
            self.values.update(zip(node.outputs, copied.outputs, strict=True))
            made.append(copied)
        return made

    def copy_graph(
        self, region: Graph, prefix: str, *, keeps_names: bool
    ) -> tuple[Graph, list[Node]]:
        """Return a copy of a region, with new names, but for inputs and results if asked."""
        copy = Graph(region.name, self.opsets, source=region.source)
        for value in region.inputs:
            name = value.name if keeps_names else self.module.fresh_name(prefix + value.name)
            self.values[value] = copy.add_input(name, value.type)
        copy.defaults = {self.known(value): payload for value, payload in region.defaults.items()}
        made = self.copy_nodes(region, copy, copy.return_, prefix)
        results = [self.known(value) for value in region.outputs]
        copy.set_outputs(results, region.output_names if keeps_names else None)
        return copy, made

    def known(self, value: Value) -> Value:
        found = self.values[value]
        assert found is not None
        return found

    def copy_node(
        self, node: Node, regions: list[Graph], prefix: str, insert: Callable[[Node], Node]
    ) -> Node:
        """Return a copy of `node`; `insert` places the constants that it reads."""
        inputs = tuple([None if value is None else self.values[value] for value in node.inputs])
        resolved = attrs = self.resolve_references(node.attrs)
        outputs = [
            (self.module.fresh_name(prefix + v.name) if v.name else "", v.type)
            for v in node.outputs
        ]
        origins = (*self.module.new_origin(), node.origins, self.origins)
        op = node.op
        if op_info(op) is None and not regions:
            op, attrs = self.lowered(node, op, attrs, inputs, origins[0])
            info = op_info(op)
            if info is not None and info.parameters:
                attrs, inputs = with_operands(info, attrs, inputs, insert, self.opsets.get("", 1))
        copied = Node(
            op,
            inputs,
            attrs,
            outputs=outputs,
            regions=regions,
            name=prefix + node.name if node.name else "",
            overload=node.overload,
            origins=origins,
            source=None if node.source is None else _source_of_copy(node.source, resolved, attrs),
        )
        copied.own_metadata = None if node.own_metadata is None else dict(node.own_metadata)
        return copied

    def lowered(
        self,
        node: Node,
        op: str,
        attrs: dict[str, Attribute],
        inputs: tuple[Value | None, ...],
        origin: object,
    ) -> tuple[str, dict[str, Attribute]]:
        """Return operator and attributes after lowering, unchanged if it stays foreign."""
        domain, _, op_type = op.partition("::")
        if any(isinstance(value, AttributeRef) for value in attrs.values()) or node.overload:
            return op, attrs
        if op == "::Constant" and len(attrs) == 1:
            form, value = next(iter(attrs.items()))
            payload = self.module.foreign.constant_payload(form, value)
            return (
                (op, attrs) if payload is None else ("constant", {"value": payload, "form": form})
            )
        names = tuple(value.name for value in node.outputs)
        view = NodeView(self.opsets.get("", 1), attrs, inputs, names)
        lowered, refusal = self.module.foreign.lower(domain, op_type, view)
        if refusal is not None and isinstance(origin, int):
            self.module.provenance.refusals[origin] = refusal
        return lowered or op, attrs

    def resolve_references(self, attrs: Mapping[str, Attribute]) -> dict[str, Attribute]:
        """Return the attributes with values for references to the function's attributes."""
        found: dict[str, Attribute] = {}
        for name, value in attrs.items():
            if not isinstance(value, AttributeRef):
                found[name] = value
            elif value.name in self.attributes:
                found[name] = self.attributes[value.name]
        return found


def _source_of_copy(
    source: Source, resolved: Mapping[str, Attribute], attrs: Mapping[str, Attribute]
) -> Source:
    """Return the source of a copy with `attrs`, some of which became operands as `resolved`.

    An attribute counts as read only if neither a reference nor a pass has replaced it.
    """
    replaced = {
        name: value for name, value in source.attrs.items() if resolved.get(name) is not value
    }
    as_read = {
        name: value for name, value in attrs.items() if name not in resolved or name in source.attrs
    }
    return Source(source.message, {**as_read, **replaced})


def required(node: Node) -> int:
    """Return how many operands `node` requires, 0 for an unknown operator."""
    info = op_info(node.op)
    if node.op == "return":
        return len(node.inputs)
    return 0 if info is None else info.arity[0]


def recursive_functions(module: Module) -> dict[FunctionKey, FunctionKey]:
    """Return the functions that never end, each with a recursive one that it is or calls.

    O(nodes in functions).
    """
    calls = {key: _called(function, module) for key, function in module.functions.items()}
    endless = _endless(calls)
    if not endless:
        return {}
    from networkx import DiGraph, nodes_with_selfloops, strongly_connected_components  # 0.2 s

    graph: DiGraph[FunctionKey] = DiGraph()
    graph.add_edges_from((key, called) for key, callees in calls.items() for called in callees)
    recursive = set(nodes_with_selfloops(graph))
    for members in strongly_connected_components(graph):
        recursive |= members if len(members) > 1 else set()
    found = {key: key for key in recursive}
    for key in endless:
        path, called = [], key
        while called not in found:
            path.append(called)
            called = next(callee for callee in calls[called] if callee in endless)
        found.update(dict.fromkeys(path, found[called]))
    return {key: found[key] for key in endless}


def _called(function: Function, module: Module) -> list[FunctionKey]:
    """Return the functions of the module that a function calls, each once."""
    keys = dict.fromkeys(call_key(node) for node in function.graph.walk())
    return [key for key in keys if key in module.functions]


def _endless(calls: Mapping[FunctionKey, Sequence[FunctionKey]]) -> dict[FunctionKey, None]:
    """Return the functions left after removing, again and again, those that call none left."""
    callers: dict[FunctionKey, list[FunctionKey]] = {key: [] for key in calls}
    for key, callees in calls.items():
        for callee in callees:
            callers[callee].append(key)
    waiting = {key: len(callees) for key, callees in calls.items()}
    ending = [key for key, count in waiting.items() if not count]
    while ending:
        for key in callers[ending.pop()]:
            waiting[key] -= 1
            if not waiting[key]:
                ending.append(key)
    return dict.fromkeys(key for key in calls if waiting[key])
