"""IR text: the printer. `irc.ir.text.parser` reads the text again; its docstring has the grammar.

One node a line, two spaces for each region around it. Constants of few elements are written out, others as their type
and digest; `side_data` collects what the text leaves out.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from ...support.errors import IRError
from ..attributes import Attribute, AttributeRef, EmptyList, RegionRef, SparseTensor
from ..graph import Function, FunctionKey, Graph, Node, Value
from ..tensor import Array, Tensor, numpy_dtype, round_to
from ..types import DTYPES, F64, UNKNOWN, DType, Type
from .lexer import NUMBER, name_text, printed_names, quoted, word_text

MAX_ELEMENTS = 16
"""Constants of up to this many elements are written out."""

DEFAULT_OPSETS = {"": 21}
"""The opsets of a text that names none."""

UNAVAILABLE = "unavailable"
"""Stands for the digest of a payload whose elements cannot be read, such as missing external data."""

_float = re.compile(rf"{NUMBER}|nan", re.ASCII).fullmatch
_bytes = re.compile(r'b"(?:[ !#-\[\]-~]|\\x[0-9a-f]{2})*+"').fullmatch
LARGEST_F32 = float(np.finfo(np.float32).max)


class Printable(Protocol):
    """The parts of a module that its text shows: a module prints itself, so it stands above this file."""

    graph: Graph
    functions: dict[FunctionKey, Function]
    ir_version: int

    def graphs(self) -> Iterator[Graph]:
        """Yield every graph, regions included."""

    def walk(self) -> Iterator[Node]:
        """Yield every node of every graph."""


def to_text(module: Printable, *, max_elements: int = MAX_ELEMENTS) -> str:
    """The text of `module`, which `parse` reads; equal for equal modules in any process. O(nodes + uses + bytes)."""
    opsets = module.graph.opsets
    printer = _Printer(max_elements)
    printer.lines = [f"module {{ir_version={module.ir_version}, opsets={_opsets(opsets)}}}", ""]
    printer.top(module.graph, _graph_head(module.graph), opsets)
    for function in module.functions.values():
        printer.lines.append("")
        printer.top(function.graph, _function_head(function), opsets, printer.parameters(function))
    return "\n".join(printer.lines) + "\n"


def graph_to_text(graph: Graph, *, max_elements: int = MAX_ELEMENTS) -> str:
    """The text of one graph; in a region the names are those that the whole text has."""
    printer = _Printer(max_elements)
    printer.names = printed_names(list(graph.ancestors())[-1])
    printer.graph(graph, _graph_head(graph), "", DEFAULT_OPSETS)
    return "\n".join(printer.lines) + "\n"


def side_data(module: Printable, *, max_elements: int = MAX_ELEMENTS) -> dict[str, Tensor]:
    """By digest, the payloads that `to_text` does not write out: with the text they are the whole module.

    What `to_text` calls unavailable is missing here too.
    """
    data: dict[str, Tensor] = {}
    for tensor in _payloads(module):
        if elements_text(tensor, max_elements) is None:
            data.setdefault(_digest(tensor), tensor)
    data.pop(UNAVAILABLE, None)
    return data


def _payloads(module: Printable) -> Iterator[Tensor]:
    """Every tensor in attributes and defaults."""
    pending: list[object] = [value for node in module.walk() for value in node.attrs.values()]
    pending.extend(value for graph in module.graphs() for value in graph.defaults.values())
    pending.extend(value for function in module.functions.values() for value in function.defaults.values())
    for value in pending:
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, SparseTensor):
                yield item.values
                yield item.indices
            elif isinstance(item, Tensor):
                yield item


class _Printer:
    def __init__(self, max_elements: int) -> None:
        self.max_elements = max_elements
        self.lines: list[str] = []
        self.names: dict[Value, str] = {}
        self.types: dict[Type, str] = {}

    def top(self, graph: Graph, head: str, opsets: Mapping[str, int], parameters: str = "") -> None:
        self.names = printed_names(graph)
        self.graph(graph, head, "", opsets, parameters)

    def graph(self, graph: Graph, head: str, indent: str, opsets: Mapping[str, int], parameters: str = "") -> None:
        """Print a graph; `opsets` are those around it, which need not be said again."""
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
        return self.value(value) + type_ + ("" if default is None else f" = {self.attribute(default)}")

    def results(self, graph: Graph) -> Iterator[str]:
        names = graph.output_names
        for i, value in enumerate(graph.return_.inputs):
            renamed = value is not None and i < len(names) and names[i] != self.names.get(value, value.name)
            yield self.value(value) + (f" as %{name_text(names[i])}" if renamed else "")

    def parameters(self, function: Function) -> str:
        """The attributes of a function, those without a default first, as in ONNX."""
        items = [word_text(name) for name in function.attributes]
        items.extend(f"{word_text(name)}={self.attribute(value)}" for name, value in function.defaults.items())
        return f" attributes [{', '.join(items)}]" if items else ""

    def value(self, value: Value | None) -> str:
        return "_" if value is None else f"%{name_text(self.names.get(value, value.name))}"

    def type(self, type_: Type) -> str:
        text = self.types.get(type_)
        if text is None:
            text = self.types[type_] = str(type_)
        return text

    def node(self, node: Node) -> str:
        """The line of a node, without its regions."""
        names, payload = self.names, node.op in ("constant", "variable")
        results = [f"%{name_text(names[value])}" if value in names else "_" for value in node.outputs]
        text = f"{', '.join(results)} = " if results else ""
        text += op_text(node.op) if "::" in node.op else node.op
        if node.overload:
            text += f":{word_text(node.overload)}"
        if node.inputs or not (payload and node.attrs):
            text += f"({', '.join([self.value(value) for value in node.inputs])})"
        if node.attrs:
            text += f" {{{', '.join([f'{word_text(k)}={self.attribute(v)}' for k, v in node.attrs.items()])}}}"
        if results and not self.is_inferred(node, payload):
            text += f" : {', '.join([self.type(value.type) for value in node.outputs])}"
        return f"{text} loc({quoted(node.name)})" if node.name else text

    def is_inferred(self, node: Node, payload: bool) -> bool:
        """Whether the parser finds the types of the outputs if they are not written."""
        if payload and len(node.outputs) == 1:
            value = node.attrs.get("value")
            return isinstance(value, Tensor) and node.output.type == value.type
        return "::" in node.op and all(value.type == UNKNOWN for value in node.outputs)

    def attribute(self, value: Attribute) -> str:
        """The literal of an attribute value. Raises TypeError where it is none."""
        match value:
            case int():
                return str(int(value))
            case float():
                return float_text(value)
            case str():
                return quoted(value)
            case bytes():
                return bytes_text(value)
            case tuple():
                return f"[{', '.join([self.attribute(item) for item in value])}]"
            case Tensor():
                return f"{value.type} {elements_text(value, self.max_elements) or '#' + _digest(value)}"
            case SparseTensor(values, indices, shape):
                return f"sparse[{','.join(map(str, shape))}]({self.attribute(values)}, {self.attribute(indices)})"
            case Type():
                return f"type {value}"
            case RegionRef(index):
                return f"region {index}"
            case AttributeRef(name, kind):
                return f"@{name_text(name)}:{word_text(kind)}"
            case EmptyList(kind):
                return f"{kind}[]"
            case _:
                raise TypeError(f"{type(value).__name__} is no attribute value")


def op_text(op: str) -> str:
    """A foreign operator `domain::OpType` in quotes, the empty domain left out where nothing else tells of one."""
    return quoted(op[2:] if op.startswith("::") and "::" not in op[2:] else op)


def _graph_head(graph: Graph) -> str:
    return f"graph @{name_text(graph.name)}" if graph.name else "graph"


def _function_head(function: Function) -> str:
    domain, name = function.domain, function.name
    joined = f"{domain}::{name}" if domain else name
    if joined.split("::", 1) == ([domain, name] if domain else [name]):
        head = f"function @{name_text(joined)}"
    else:
        head = f"function @{quoted(domain)}::{quoted(name)}"
    return f"{head}:{word_text(function.overload)}" if function.overload else head


def _opsets(opsets: Mapping[str, int]) -> str:
    return f"{{{', '.join([f'{quoted(domain)}: {version}' for domain, version in opsets.items()])}}}"


def float_text(value: float) -> str:
    """The shortest literal that is read as `value`.

    ONNX attributes are f32: a plain literal is rounded to f32, one that means another float64 ends in `f64`. A NaN
    other than the usual quiet one shows its bits.
    """
    if math.isnan(value):
        (bits,) = struct.unpack("<Q", struct.pack("<d", value))
        return "nan" if bits == 0x7FF8000000000000 else f"nan(0x{bits:016x})"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if abs(value) <= LARGEST_F32:
        single = np.float32(value)
        text = str(single)
        if float(single) == value and np.float32(float(text)) == single:
            return text
    return f"{float(value)!r}f64"


def float_value(literal: str, *, single: bool) -> float | None:
    """What a literal of a float means, rounded to f32 if `single` and it does not end in `f64`; None if it is none.

    Raises OverflowError where it is too large.
    """
    if _float(literal) is None:
        return None
    if literal.startswith("nan("):
        return float(np.array(int(literal[6:-1], 16), np.uint64).view(np.float64))
    value = float(literal.removesuffix("f64"))
    if math.isinf(value) and "inf" not in literal:
        raise OverflowError
    return float(struct.unpack("<f", struct.pack("<f", value))[0]) if single and literal[-3:] != "f64" else value


def bytes_text(data: bytes) -> str:
    """A literal of bytes, printable ASCII as it is."""
    chars = (f"\\x{byte:02x}" if not 32 <= byte < 127 or byte in b'"\\' else chr(byte) for byte in data)
    return f'b"{"".join(chars)}"'


def bytes_value(literal: str) -> bytes | None:
    """What a literal of bytes means, None if it is none."""
    return None if _bytes(literal) is None else literal[2:-1].encode().decode("unicode_escape").encode("latin-1")


def _string_text(item: object) -> str:
    """An element of a string tensor; ONNX has bytes there, which are UTF-8 as a rule."""
    if isinstance(item, bytes):
        try:
            return quoted(item.decode())
        except UnicodeDecodeError:
            return bytes_text(item)
    return quoted(str(item))


def _digest(tensor: Tensor) -> str:
    try:
        return tensor.digest()
    except (OSError, ValueError, IRError):
        return UNAVAILABLE


def elements_text(tensor: Tensor, max_elements: int) -> str | None:
    """The elements of `tensor` in row-major order, bare at rank 0; None where they are too many, cannot be read, or
    would not come back bit for bit (a NaN with a payload, a bool of byte 2).
    """
    if not 0 <= tensor.size <= max_elements:
        return None
    try:
        array = tensor.numpy().ravel()
    except (OSError, ValueError, IRError):
        return None
    texts, items = _elements(array, tensor.dtype)
    if tensor.dtype.kind != "string" and pack(items, tensor.dtype).tobytes() != array.tobytes():
        return None
    return f"[{', '.join(texts)}]" if tensor.shape else texts[0]


def _elements(array: Array, dtype: DType) -> tuple[list[str], Sequence[object]]:
    """The literals of the elements, and what a parser makes of them."""
    match dtype.kind:
        case "string":
            return [_string_text(item) for item in array], array.tolist()
        case "bool":
            flags = [bool(item) for item in array]
            return [str(flag).lower() for flag in flags], flags
        case "int" | "uint":
            numbers = [int(item) for item in array]
            return [str(number) for number in numbers], numbers
        case "complex":
            part = DTYPES["f32" if dtype.bits == 64 else "f64"]
            halves, _ = _elements(np.ascontiguousarray(array).view(numpy_dtype(part)), part)
            pairs = list(zip(halves[::2], halves[1::2], strict=True))
            return [f"({re}, {im})" for re, im in pairs], [(float(re), float(im)) for re, im in pairs]
        case _:
            texts = [str(item) for item in array] if dtype.name in ("f16", "f32") else [repr(float(i)) for i in array]
            return texts, [float(text) for text in texts]


def is_element(item: object, dtype: DType) -> bool:
    """Whether a parsed literal may be an element of `dtype`."""
    match dtype.kind:
        case "string":
            return isinstance(item, str | bytes)
        case "bool":
            return isinstance(item, bool)
        case "complex":
            return isinstance(item, tuple) and len(item) == 2
        case "unknown":
            return False
    if isinstance(item, bool) or not isinstance(item, int | float):
        return False
    if dtype.kind.startswith("float"):
        return True
    low, high = (-(1 << dtype.bits - 1), 1 << dtype.bits - 1) if dtype.kind == "int" else (0, 1 << dtype.bits)
    return isinstance(item, int) and low <= item < high


def pack(items: Iterable[object], dtype: DType) -> Array:
    """The array of rank 1 that parsed elements stand for: floats, ints, bools, pairs of floats, or str and bytes.

    Raises ValueError where a number is out of the range of `dtype`.
    """
    listed = list(items)
    target = numpy_dtype(dtype)
    if dtype.kind == "string":
        array: Array = np.empty(len(listed), object)
        array[:] = [_as_bytes(item) for item in listed]
        return array
    if dtype.kind in ("int", "uint", "bool"):
        wide = {"int": np.int64, "uint": np.uint64, "bool": np.bool_}[dtype.kind]
        return np.array(listed, wide).astype(target)
    if dtype.kind == "complex":
        flat = [part for pair in listed for part in pair]  # type: ignore[attr-defined]
        return pack(flat, DTYPES["f32" if dtype.bits == 64 else "f64"]).view(target)
    exact = np.array(listed, np.float64)
    rounded = exact if dtype is F64 else round_to(exact, dtype)
    if (np.isfinite(exact) & ~np.isfinite(rounded.astype(np.float64))).any():
        raise ValueError(f"a number is out of the range of {dtype}")
    return rounded


def _as_bytes(item: object) -> object:
    """An element of a string tensor as ONNX has it; a str that is no UTF-8 stays what it is."""
    try:
        return item.encode() if isinstance(item, str) else item
    except UnicodeEncodeError:
        return item
