"""The printer of IR text. `irc.ir.text.parser` reads the text; its docstring has the grammar.

The text has one node a line, indented by two spaces for each region around it. Constants of few
elements are written in full, others as type and digest; `side_data` collects the payloads that the
text leaves out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from ...support.errors import IRError
from ..attributes import Attribute, AttributeRef, EmptyList, RegionRef, SparseTensor
from ..extents import quote
from ..graph import Function, FunctionKey, Graph, Node, Value
from ..tensor import Tensor
from ..types import UNKNOWN, Type
from .literals import format_bytes, format_elements, format_float, format_name, format_word
from .printed_names import printed_names

MAX_ELEMENTS = 16
"""Constants of up to this many elements are written in full."""

DEFAULT_OPSETS = {"": 21}
"""The opsets of a text without a header."""

UNAVAILABLE = "unavailable"
"""Printed as the digest of a payload that cannot be read, such as missing external data."""


class Printable(Protocol):
    """The parts of a module that its text shows.

    The printer stands below `Module`, whose `str` it is.
    """

    graph: Graph
    functions: dict[FunctionKey, Function]
    ir_version: int

    def graphs(self) -> Iterator[Graph]:
        """Yield every graph, regions included."""

    def walk(self) -> Iterator[Node]:
        """Yield every node of every graph."""


def to_text(
    module: Printable, *, max_elements: int = MAX_ELEMENTS, data: dict[str, Tensor] | None = None
) -> str:
    """Return the text of `module`, which `parse` reads. O(nodes + uses + bytes).

    Equal modules have equal texts, in any process. The payloads that are printed as a digest are
    put into `data`, by digest; UNAVAILABLE stands for all that cannot be read.
    """
    opsets = module.graph.opsets
    printer = _Printer(max_elements, {} if data is None else data)
    printer.lines = [f"module {{ir_version={module.ir_version}, opsets={_opsets(opsets)}}}", ""]
    printer.top(module.graph, _graph_head(module.graph), opsets)
    for function in module.functions.values():
        printer.lines.append("")
        printer.top(function.graph, _function_head(function), opsets, printer.parameters(function))
    return "\n".join(printer.lines) + "\n"


def side_data(module: Printable, *, max_elements: int = MAX_ELEMENTS) -> dict[str, Tensor]:
    """Return the payloads that `to_text` prints as a digest, by digest.

    The text and these payloads are the whole module, except payloads that `to_text` prints as
    unavailable.
    """
    data: dict[str, Tensor] = {}
    to_text(module, max_elements=max_elements, data=data)
    data.pop(UNAVAILABLE, None)
    return data


class _Printer:
    def __init__(self, max_elements: int, data: dict[str, Tensor]) -> None:
        self.max_elements = max_elements
        self.data = data
        self.lines: list[str] = []
        self.names: dict[Value, str] = {}
        self.types: dict[Type, str] = {}

    def top(self, graph: Graph, head: str, opsets: Mapping[str, int], parameters: str = "") -> None:
        self.names = printed_names(graph)
        self.graph(graph, head, "", opsets, parameters)

    def graph(
        self, graph: Graph, head: str, indent: str, opsets: Mapping[str, int], parameters: str = ""
    ) -> None:
        """Print a graph, with its opsets unless they are the `opsets` of the graph around it."""
        inputs = ", ".join([self.input(graph, value) for value in graph.inputs])
        own = "" if graph.opsets == opsets else f" opsets {_opsets(graph.opsets)}"
        self.lines.append(f"{indent}{head}({inputs}){parameters}{own} {{")
        inner = indent + "  "
        for node in graph:
            self.lines.append(f"{inner}{self.node(node)}")
            if node.regions:
                self.lines[-1] += " {"
                for region in node.regions:
                    self.graph(region, _graph_head(region), inner + "  ", graph.opsets)
                self.lines.append(f"{inner}}}")
        self.lines.append(f"{inner}return({', '.join(self.results(graph))})")
        self.lines.append(f"{indent}}}")

    def input(self, graph: Graph, value: Value) -> str:
        type_ = "" if value.type == UNKNOWN else f": {self.type(value.type)}"
        default = graph.defaults.get(value)
        return (
            self.value(value) + type_ + ("" if default is None else f" = {self.attribute(default)}")
        )

    def results(self, graph: Graph) -> Iterator[str]:
        names = graph.output_names
        for i, value in enumerate(graph.return_.inputs):
            own = None if value is None else self.names.get(value, value.name)
            is_renamed = i < len(names) and own not in (None, names[i])
            yield self.value(value) + (f" as %{format_name(names[i])}" if is_renamed else "")

    def parameters(self, function: Function) -> str:
        """Return the attributes of a function, those without a default first, as in ONNX."""
        items = [format_word(name) for name in function.attributes]
        items.extend(
            f"{format_word(name)}={self.attribute(value)}"
            for name, value in function.defaults.items()
        )
        return f" attributes [{', '.join(items)}]" if items else ""

    def value(self, value: Value | None) -> str:
        return "_" if value is None else f"%{format_name(self.names.get(value, value.name))}"

    def type(self, type_: Type) -> str:
        text = self.types.get(type_)
        if text is None:
            text = self.types[type_] = str(type_)
        return text

    def node(self, node: Node) -> str:
        """Return the line of a node, without its regions."""
        names, payload = self.names, node.op in ("constant", "variable")
        results = [
            f"%{format_name(names[value])}" if value in names else "_" for value in node.outputs
        ]
        text = f"{', '.join(results)} = " if results else ""
        text += op_text(node.op) if "::" in node.op else node.op
        if node.overload:
            text += f":{format_word(node.overload)}"
        if node.inputs or not (payload and node.attrs):
            text += f"({', '.join([self.value(value) for value in node.inputs])})"
        if node.attrs:
            attrs = [f"{format_word(k)}={self.attribute(v)}" for k, v in node.attrs.items()]
            text += f" {{{', '.join(attrs)}}}"
        if results and not self.is_inferred(node, payload):
            text += f" : {', '.join([self.type(value.type) for value in node.outputs])}"
        if node.name:
            text += f" loc({quote(node.name)})"
        return text + self.metadata(node)

    def metadata(self, node: Node) -> str:
        """Return the metadata of a node if they differ from its source."""
        marks = node.own_metadata
        if not marks or marks == node.source_metadata():
            return ""
        return (
            " meta"
            f" {{{', '.join([f'{quote(key)}: {quote(mark)}' for key, mark in marks.items()])}}}"
        )

    def is_inferred(self, node: Node, payload: bool) -> bool:
        """Return whether the parser infers the types of the outputs if they are not written."""
        if payload and len(node.outputs) == 1:
            value = node.attrs.get("value")
            return isinstance(value, Tensor) and node.output.type == value.type
        return "::" in node.op and all(value.type == UNKNOWN for value in node.outputs)

    def attribute(self, value: Attribute) -> str:
        """Return the literal of an attribute value. Raises TypeError if `value` is not one."""
        match value:
            case int():
                return str(int(value))
            case float():
                return format_float(value)
            case str():
                return quote(value)
            case bytes():
                return format_bytes(value)
            case tuple():
                return f"[{', '.join([self.attribute(item) for item in value])}]"
            case Tensor():
                return (
                    f"{value.type}"
                    f" {format_elements(value, self.max_elements) or self.digest(value)}"
                )
            case SparseTensor(values, indices, shape):
                return (
                    f"sparse[{','.join(map(str, shape))}]({self.attribute(values)},"
                    f" {self.attribute(indices)})"
                )
            case Type():
                return f"type {value}"
            case RegionRef(index):
                return f"region {index}"
            case AttributeRef(name, kind):
                return f"@{format_name(name)}:{format_word(kind)}"
            case EmptyList(kind):
                return f"{kind}[]"
            case _:
                raise TypeError(f"{type(value).__name__} is not an attribute value")

    def digest(self, tensor: Tensor) -> str:
        """Return the digest of a payload, and collect the payload."""
        digest = _digest(tensor)
        self.data.setdefault(digest, tensor)
        return f"#{digest}"


def op_text(op: str) -> str:
    """Return a foreign operator `domain::OpType` in quotes.

    `::` after an empty domain is left out if nothing is lost.
    """
    return quote(op[2:] if op.startswith("::") and "::" not in op[2:] else op)


def _graph_head(graph: Graph) -> str:
    return f"graph @{format_name(graph.name)}" if graph.name else "graph"


def _function_head(function: Function) -> str:
    domain, name = function.domain, function.name
    joined = f"{domain}::{name}" if domain else name
    if joined.split("::", 1) == ([domain, name] if domain else [name]):
        head = f"function @{format_name(joined)}"
    else:
        head = f"function @{quote(domain)}::{quote(name)}"
    return f"{head}:{format_word(function.overload)}" if function.overload else head


def _opsets(opsets: Mapping[str, int]) -> str:
    return f"{{{', '.join([f'{quote(domain)}: {version}' for domain, version in opsets.items()])}}}"


def _digest(tensor: Tensor) -> str:
    try:
        return tensor.digest()
    except (OSError, ValueError, IRError):
        return UNAVAILABLE
