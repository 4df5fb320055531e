"""Put parts of a model into functions, whose bodies have attributes by reference.

Any run of nodes can become a call: of a graph, of a branch or a loop, or of the body of another
function, which then passes its own attributes on. Runs of the same operators and wiring share a
function and give it different values. An attribute of the body is written out, or is a reference:
to an attribute that the call gives, to one whose default the call takes or overrides, or to one
that neither call nor default gives, where the node had none.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    defs,
    helper,
    numpy_helper,
)

DOMAIN = "local"
KINDS = AttributeProto
BY_VALUE = (
    KINDS.FLOAT,
    KINDS.INT,
    KINDS.STRING,
    KINDS.TENSOR,
    KINDS.FLOATS,
    KINDS.INTS,
    KINDS.STRINGS,
)
"""Kinds of attributes that a call can give."""
SMALL = 256
"""An initializer of more bytes stays an operand of the call."""


def with_functions(model: ModelProto, seed: int, steps: int = 6) -> ModelProto:
    """Return the model with some runs of nodes replaced by calls: `steps`, or more if large."""
    return _Outliner(Random(seed), copy.deepcopy(model)).outline(steps)


def without_overloads(model: ModelProto) -> ModelProto:
    """Return the model with unique names of functions: onnxruntime looks calls up by name."""
    made = copy.deepcopy(model)
    for node in _walk(
        [*made.graph.node, *(node for function in made.functions for node in function.node)]
    ):
        if node.overload:
            node.op_type, node.overload = f"{node.op_type} {node.overload}", ""
    for function in made.functions:
        if function.overload:
            function.name, function.overload = f"{function.name} {function.overload}", ""
    return made


@dataclass
class _Slot:
    """A reference in a body: the attribute of a node, and what the call gives for it."""

    holder: NodeProto
    name: str
    kind: int
    given: AttributeProto | None
    parameter: str = ""

    def reference(self) -> AttributeProto:
        return AttributeProto(name=self.name, ref_attr_name=self.parameter, type=self.kind)  # type: ignore[arg-type]

    def agrees(self, given: AttributeProto | None) -> bool:
        return _unnamed(self.given) == _unnamed(given)


@dataclass
class _Known:
    """A function, the parameter of each slot, and the kind of each parameter."""

    proto: FunctionProto
    parameters: list[str]
    kinds: dict[str, int]


@dataclass
class _Outliner:
    random: Random
    model: ModelProto
    known: dict[bytes, list[_Known]] = field(default_factory=dict)
    seen: dict[tuple[str, int], list[AttributeProto]] = field(default_factory=dict)
    """Values of an attribute, by name and kind."""

    def __post_init__(self) -> None:
        self.opset = next(entry.version for entry in self.model.opset_import if not entry.domain)
        self.salt = self.random.getrandbits(30)
        self.resizes = any(node.op_type == "Resize" for node in _walk(self.model.graph.node))
        """Whether Constants stay where they are: onnx infers wrong sizes for Resize from a Slice
        with such bounds.
        """

    def one_in(self, n: int) -> bool:
        return self.random.randrange(n) == 0

    def outline(self, steps: int) -> ModelProto:
        self.model.ir_version = max(self.model.ir_version, 10)  # the first with overloads
        for part in (self.model, *self.model.functions):
            if DOMAIN not in {entry.domain for entry in part.opset_import}:
                part.opset_import.append(helper.make_opsetid(DOMAIN, 1))
        for _ in range(self.random.randint(1, steps + len(self.model.graph.node) // 8)):
            bodies = [body for body in self.bodies() if body[0].node]
            bodies += [body for body in bodies if body[1] is not None]
            self.run(*self.random.choice(bodies))
        read = set(_names_read(self.model.graph.node)) | {
            info.name for info in self.model.graph.output
        }
        listed = {info.name for info in self.model.graph.input}
        kept = [t for t in self.model.graph.initializer if t.name in read or t.name in listed]
        del self.model.graph.initializer[:]
        self.model.graph.initializer.extend(kept)
        return self.model

    def bodies(self) -> Iterator[tuple[Any, FunctionProto | None]]:
        """Yield every graph and function body, with the function that it stands in."""
        stack: list[tuple[Any, FunctionProto | None]] = [(self.model.graph, None)]
        stack += [(function, function) for function in self.model.functions]
        while stack:
            body, function = stack.pop()
            yield body, function
            stack.extend((graph, function) for node in body.node for graph in _subgraphs(node))

    def run(self, body: Any, function: FunctionProto | None) -> None:
        """Replace some nodes in a row by a call."""
        start = self.random.randrange(len(body.node))
        if body.node[start].op_type == "Constant":  # there are many
            start = self.random.randrange(len(body.node))
        owners = [i for i, node in enumerate(body.node) if _subgraphs(node)]
        if owners and self.one_in(4):
            start = self.random.choice(owners)
        stop = min(start + self.random.choice([1, 1, 2, 2, 3, 5, 8]), len(body.node))
        if function is not None and stop - start == len(body.node):
            return
        nodes = list(body.node[start:stop])
        after = {
            *_names_read(body.node[stop:]),
            *(getattr(out, "name", out) for out in body.output),
        }
        made = [name for node in nodes for name in node.output if name]
        results = [name for name in made if name in after]
        if not results or (self.resizes and any(node.op_type == "Constant" for node in nodes)):
            return
        call = self.call(nodes, results, function)
        del body.node[start:stop]
        body.node.insert(start, call)
        types = [info for info in body.value_info if info.name not in made or info.name in results]
        del body.value_info[:]
        body.value_info.extend(types)

    def call(
        self, nodes: Sequence[NodeProto], results: list[str], function: FunctionProto | None
    ) -> NodeProto:
        """Return a call of a function that does what the nodes do, known or new."""
        inside = copy.deepcopy(list(nodes))
        deep = list(_walk(inside))
        style = Random(
            f"{self.salt} {[node.op_type for node in deep]}"
        )  # runs that are alike become alike
        made = [name for node in inside for name in node.output if name]
        operands = list(dict.fromkeys(name for name in _names_read(inside) if name not in made))
        constants = [self.small(name) if function is None else None for name in operands]
        taken = {name for graph in _graphs(inside) for name in _defined(graph)}
        stem = style.choice(["x", "t_", "c_", "inner"])
        fresh = (name for name in (f"{stem}{i}" for i in range(1000)) if name not in taken)
        within = style.random() < 0.4
        copied = [
            (name, constant)
            for name, constant in zip(operands, constants, strict=True)
            if constant and within
        ]
        operands = [name for name in operands if name not in dict(copied)]
        renamed = {name: next(fresh) for name in [*operands, *dict(copied), *made]}
        _rename(inside, renamed)
        values = [
            helper.make_node("Constant", [], [renamed[name]], value=constant)
            for name, constant in copied
        ]
        inside, deep = values + inside, values + deep
        inputs = [renamed[name] for name in operands]
        if (
            style.random() < 0.3
        ):  # an operand that is absent in the body becomes one that is absent in the call
            for node in inside:
                for i, name in enumerate(node.input):
                    if not name:
                        node.input[i] = next(fresh)
                        inputs.append(node.input[i])
                        operands.append("")
        slots = [slot for node in deep for slot in self.slots(node, style)]
        key = (
            _key(inside, inputs, [renamed[name] for name in results])
            + str([s.name for s in slots]).encode()
        )
        found = next(
            (one for one in self.known.get(key, []) if self.fits(one, slots, function)), None
        )
        if found is None:
            found = self.define(
                inside, inputs, [renamed[name] for name in results], slots, function
            )
            self.known.setdefault(key, []).append(found)
        return self.caller(found, operands, results, slots)

    def small(self, name: str) -> TensorProto | None:
        """Return a small initializer of the main graph that nobody may override."""
        if any(info.name == name for info in self.model.graph.input):
            return None
        found = next(
            (tensor for tensor in self.model.graph.initializer if tensor.name == name), None
        )
        if found is None or numpy_helper.to_array(found).nbytes > SMALL:
            return None
        bare = copy.deepcopy(found)
        bare.ClearField("name")
        return bare

    # references

    def slots(self, node: NodeProto, style: Random) -> list[_Slot]:
        """Take attributes out of a node that become references, absent ones among them."""
        given = {item.name: item for item in node.attribute}
        kinds = {name: item.type for name, item in given.items()}
        if node.domain == "" and node.op_type != "Constant":
            kinds |= {
                n: a.type.value
                for n, a in defs.get_schema(node.op_type, self.opset).attributes.items()
            }  # type: ignore[attr-defined]
        found = []
        for name, kind in sorted(kinds.items()):
            by_reference = style.random() < 0.6
            item = given.get(name)
            if kind in BY_VALUE and (by_reference or (item is not None and item.ref_attr_name)):
                found.append(_Slot(node, name, kind, copy.deepcopy(item)))
                if item is not None and not item.ref_attr_name:
                    self.seen.setdefault((name, kind), []).append(copy.deepcopy(item))
        for i in reversed(
            range(len(node.attribute))
        ):  # in place: the nodes of bodies stay the same objects
            if node.attribute[i].name in {slot.name for slot in found}:
                del node.attribute[i]
        return found

    def is_given(self, slot: _Slot, function: FunctionProto | None) -> bool:
        """Whether every call gives the attribute: a reference may be to one that is absent."""
        if slot.given is None or not slot.given.ref_attr_name:
            return slot.given is not None
        assert function is not None
        return slot.given.ref_attr_name in {item.name for item in function.attribute_proto}

    def fits(self, known: _Known, slots: Sequence[_Slot], function: FunctionProto | None) -> bool:
        """Whether a call of the function can give these values."""
        if function is not None and known.proto in [function, *self.callers(function)]:
            return False
        defaults = {item.name for item in known.proto.attribute_proto}
        values: dict[str, _Slot] = {}
        for slot, parameter in zip(slots, known.parameters, strict=True):
            if parameter in defaults and not self.is_given(slot, function):
                return False
            if not values.setdefault(parameter, slot).agrees(slot.given):
                return False
        return True

    def callers(self, function: FunctionProto) -> list[FunctionProto]:
        """Return the functions that call this one, directly or through others."""
        found = [function]
        for one in found:
            for other in self.model.functions:
                calls = {
                    (node.op_type, node.overload)
                    for node in _walk(other.node)
                    if node.domain == DOMAIN
                }
                if (one.name, one.overload) in calls and other not in found:
                    found.append(other)
        return found[1:]

    def define(
        self,
        inside: list[NodeProto],
        inputs: list[str],
        outputs: list[str],
        slots: list[_Slot],
        function: FunctionProto | None,
    ) -> _Known:
        """Write a function, with a parameter for each slot or for several of one value."""
        parameters: dict[str, _Slot] = {}
        for slot in slots:
            like = [
                p for p, s in parameters.items() if s.kind == slot.kind and s.agrees(slot.given)
            ]
            if like and self.one_in(2):
                slot.parameter = like[0]
                continue
            plain = slot.name not in parameters and not self.one_in(4)
            slot.parameter = slot.name if plain else f"{slot.name}_{len(parameters)}"
            parameters[slot.parameter] = slot
        if self.one_in(3):  # alpha = @beta, beta = @alpha
            mixed = dict(
                zip(parameters, self.random.sample(list(parameters), len(parameters)), strict=True)
            )
            for slot in slots:
                slot.parameter = mixed[slot.parameter]
            parameters = {mixed[name]: slot for name, slot in parameters.items()}
        for slot in slots:
            slot.holder.attribute.append(slot.reference())
        defaults = {}
        for name, slot in parameters.items():
            if self.is_given(slot, function) and self.one_in(3):
                item = copy.deepcopy(
                    self.random.choice(self.seen.get((slot.name, slot.kind), [slot.given]))
                )
                if item.ref_attr_name:
                    continue
                item.name = name
                defaults[name] = item
        proto = helper.make_function(
            DOMAIN,
            f"F{len(self.model.functions)}",
            inputs,
            outputs,
            inside,
            self.imports(inside),
            [name for name in parameters if name not in defaults],
            list(defaults.values()),
        )
        if self.model.functions and self.one_in(5):
            proto.name, proto.overload = (
                self.random.choice(self.model.functions).name,
                f"like {proto.name}",
            )
        self.model.functions.append(proto)
        return _Known(
            self.model.functions[-1],
            [slot.parameter for slot in slots],
            {name: slot.kind for name, slot in parameters.items()},
        )

    def imports(self, inside: Sequence[NodeProto]) -> list[Any]:
        """Return the imports of the model, or an older opset with the same operators."""
        opset = self.opset
        names = [node.op_type for node in _walk(inside) if node.domain == ""]
        if self.one_in(4):
            while opset > 9 and all(
                _version(op, opset - 1) == _version(op, self.opset) for op in names
            ):
                opset -= 1
        return [
            helper.make_opsetid(entry.domain, entry.version if entry.domain else opset)
            for entry in self.model.opset_import
        ]

    def caller(
        self, known: _Known, operands: Sequence[str], results: Sequence[str], slots: list[_Slot]
    ) -> NodeProto:
        """Return the call without absent operands at its end, perhaps without defaults."""
        given = list(operands)
        while given and not given[-1]:
            given.pop()
        made = helper.make_node(
            known.proto.name, given, list(results), domain=DOMAIN, overload=known.proto.overload
        )
        if self.one_in(3):
            made.name = f"call_{len(self.known)}_{self.random.randrange(1000)}"
        defaults = {item.name: item for item in known.proto.attribute_proto}
        for parameter, slot in dict(zip(known.parameters, slots, strict=True)).items():
            if slot.given is None or (slot.agrees(defaults.get(parameter)) and self.one_in(2)):
                continue
            item = copy.deepcopy(slot.given)
            item.name = parameter
            made.attribute.append(item)
        return made


def _unnamed(item: AttributeProto | None) -> bytes:
    if item is None:
        return b""
    bare = copy.deepcopy(item)
    bare.name = ""
    return bare.SerializeToString(deterministic=True)


def _version(op: str, opset: int) -> int:
    return int(defs.get_schema(op, opset).since_version) if defs.has(op, opset) else 0


def _subgraphs(node: NodeProto) -> list[GraphProto]:
    return [
        graph
        for item in node.attribute
        for graph in ([item.g] if item.HasField("g") else item.graphs)
    ]


def _walk(nodes: Any) -> Iterator[NodeProto]:
    """Yield nodes and those of their bodies."""
    for node in nodes:
        yield node
        for graph in _subgraphs(node):
            yield from _walk(graph.node)


def _graphs(nodes: Any) -> Iterator[GraphProto]:
    for node in _walk(nodes):
        yield from _subgraphs(node)


def _defined(graph: GraphProto) -> set[str]:
    made = {name for node in graph.node for name in node.output}
    return made | {info.name for info in [*graph.input, *graph.initializer]}


def _names_read(nodes: Any) -> Iterator[str]:
    """Yield what nodes read, and what their bodies read from outside."""
    for node in nodes:
        yield from filter(None, node.input)
        for graph in _subgraphs(node):
            own = _defined(graph)
            read = [*_names_read(graph.node), *(info.name for info in graph.output)]
            yield from (name for name in read if name not in own)


def _rename(nodes: Any, names: dict[str, str]) -> None:
    for node in _walk(nodes):
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for graph in _subgraphs(node):
            for info in graph.output:
                info.name = names.get(info.name, info.name)


def _key(inside: Sequence[NodeProto], inputs: list[str], outputs: list[str]) -> bytes:
    """Return the common part of two bodies that differ in names of nodes and in references."""
    nodes = copy.deepcopy(list(inside))
    for node in _walk(nodes):
        node.name = ""
    return helper.make_function("", "", inputs, outputs, nodes, []).SerializeToString(
        deterministic=True
    )
