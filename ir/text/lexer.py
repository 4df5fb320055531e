"""Tokens, names and types in IR text: how they are read, and under which name each value is printed.

A value is printed under its own name. It is renamed (`name.1`, `name.2`, ...) only where the text would otherwise be
read differently: where its graph defines the name twice, or where it stands in a region and hides an outer value that
is read behind it. A name that a graph's input or result bears is never given up for that of another value in the same
graph, so the main graph keeps its interface. A value without a name is numbered where somebody reads it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import NoReturn, TypeVar

from ...support.errors import LONGEST_NAME, ParseError
from ...support.limits import DEFAULT_LIMITS
from ..graph import Graph, Value
from ..types import (
    COUNTLESS,
    DTYPES,
    UNKNOWN,
    Dim,
    DType,
    MapType,
    OpaqueType,
    OptionalType,
    SequenceType,
    SparseTensorType,
    TensorType,
    Type,
    quote,
)

T = TypeVar("T")
Mark = tuple[int, int]
"""A place in a text: the line, and the number of the token in it."""

BARE = r"(?:[A-Za-z0-9_.$-]|/(?!/)|::(?=[A-Za-z0-9_]))+"
"""What may follow `%` and `@` without quotes; `//` begins a comment."""

WORD = r"[A-Za-z_][A-Za-z0-9_.]*"
"""Keywords, in-house operators, and names of attributes and overloads that need no quotes."""

NUMBER = r"-?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?(?:f64)?|inf(?![\w.]))|nan\(0x[0-9a-f]{16}\)"
_STRING = r'"(?:[^"\\]|\\.)*+"'
_CONTAINERS = ("sparse", "seq", "optional", "map", "opaque")
_DIM = r"(?:\d{1,18}|[A-Za-z_]\w*|\?)"
SIMPLE_TYPE = rf"(?:{'|'.join(DTYPES)}|onnx-?\d+|\?)\[(?:\*|{_DIM}(?:,{_DIM})*)?\]"
"""A tensor type as it is printed, unless a symbol is odd: one token, because types are most of a text."""

_TOKEN = re.compile(
    rf"""(?:\s+|//.*)*+ ( [%@](?:{BARE}|{_STRING}?) | :: | [,:=(){{}}\[\]<>] | {SIMPLE_TYPE}
    | {NUMBER} | b?{_STRING}? | onnx-\d+ | {WORD} | \#\w+ | . | $ )""",
    re.ASCII | re.VERBOSE,
)
_bare = re.compile(BARE, re.ASCII).fullmatch
_word = re.compile(WORD, re.ASCII).fullmatch
_integer = re.compile(r"-?\d{1,4000}", re.ASCII).fullmatch
_plain = re.compile(r"[ !#-\[\]-~]*").fullmatch
_literal = re.compile(r'"(?:[^"\\]|\\(?:["\\]|u\{[0-9a-fA-F]{1,6}\}))*+"').fullmatch
_terminated = re.compile(rf"b?{_STRING}").fullmatch
_ESCAPE = re.compile(r"\\(?:u\{([0-9a-fA-F]+)\}|(.))")
_RESERVED = ("graph", "_")


def quoted(text: str) -> str:
    """A double-quoted literal: `types.quote`, and faster where nothing needs an escape."""
    return f'"{text}"' if _plain(text) else quote(text)


def unquote(literal: str) -> str:
    """The text of a double-quoted literal.

    Raises ValueError where it does not end, or holds an escape other than backslash, double quote and `u{hex}`.
    """
    if _literal(literal) is None:
        raise ValueError("no string, or a bad escape in it")
    body = literal[1:-1]
    if "\\" not in body:
        return body
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)) if match[1] else match[2], body)


def name_text(name: str) -> str:
    """A name behind `%` or `@`."""
    return name if _bare(name) else quoted(name)


def word_text(name: str) -> str:
    """A name that stands alone: of an attribute or an overload."""
    return name if _word(name) and name not in _RESERVED else quoted(name)


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint at what `word` may have meant."""
    close = get_close_matches(word, known)
    return f" (perhaps {' or '.join(close)})" if close else ""


def dtype_named(name: str) -> DType | None:
    """The element type of that name; `onnx` and a number is one that ONNX has and irc does not know."""
    if name.startswith("onnx") and name.removeprefix("onnx").removeprefix("-").isdecimal():
        return DType(name, 0, "unknown")
    return DTYPES.get(name)


def _simple_type(token: str) -> TensorType:
    name, _, inside = token[:-1].partition("[")
    dims = [None if dim == "?" else int(dim) if dim.isdecimal() else dim for dim in inside.split(",")] if inside else []
    return TensorType(dtype_named(name), None if inside == "*" else tuple(dims))


class Reader:
    """Reads tokens, names and types; `token` is the current token, empty at the end of the text.

    Lines are split into tokens one by one; no token goes beyond its line.
    """

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.lines = text.split("\n")
        self.line = -1
        self.index = 0
        self.tokens: list[str] = []
        self.token = ""
        self.types: dict[str, TensorType] = {}
        self.max_nesting = DEFAULT_LIMITS.max_nesting
        self.open_types = 0
        self._fill()

    def _fill(self) -> None:
        """Go on to the next line that holds a token."""
        while self.line + 1 < len(self.lines):
            self.line += 1
            self.tokens = _TOKEN.findall(self.lines[self.line])
            if self.tokens[0]:
                self.index, self.token = 0, self.tokens[0]
                return
        self.index, self.token = -1, ""

    def next(self) -> str:
        """The current token, which is left behind. It must not be the end of the text."""
        token = self.token
        self.index += 1
        self.token = self.tokens[self.index]
        if not self.token:
            self._fill()
        return token

    def skip(self, token: str) -> bool:
        """Leave `token` behind, if it is the current one."""
        found = self.token == token
        if found:
            self.next()
        return found

    def expect(self, token: str) -> None:
        if self.token != token:
            self.fail(f"'{token}'")
        self.next()

    def listed(self, close: str, item: Callable[[], T]) -> list[T]:
        """Items with commas between them, up to and with `close`; the opening bracket is behind us."""
        items: list[T] = []
        if self.token != close:
            items.append(item())
            while self.token == ",":
                self.next()
                items.append(item())
        if self.token != close:
            self.fail(f"',' or '{close}'")
        self.next()
        return items

    def mark(self) -> Mark:
        return self.line, self.index

    def fail(self, expected: str, at: Mark | None = None, found: str | None = None) -> NoReturn:
        raise self.error(expected, at, found)

    def error(self, expected: str, at: Mark | None = None, found: str | None = None) -> ParseError:
        """What was expected at a place, by default that of the current token, and what stands there."""
        if not self.token and at in (None, self.mark()):
            number = max((i for i, line in enumerate(self.lines) if line.strip()), default=0)
            column, token = len(self.lines[number].rstrip()), ""
        else:
            number, index = self.mark() if at is None else at
            match = [*_TOKEN.finditer(self.lines[number])][index]
            column, token = match.start(1), match[1]
        line = self.lines[number].rstrip("\r")
        if found is None:
            shown = token if len(token) <= LONGEST_NAME else f"{token[:LONGEST_NAME]}..."
            found = "an unterminated string" if _is_unterminated(token) else f"'{shown}'" if token else "end of text"
        start = max(column - LONGEST_NAME // 2, 0) if len(line) > LONGEST_NAME else 0
        line, before = line[start : start + LONGEST_NAME], line[start:column]
        caret = re.sub(r"[^\t]", " ", before) + "^"
        return ParseError(f"{self.name}:{number + 1}:{column + 1}: expected {expected}, found {found}\n{line}\n{caret}")

    def string(self, expected: str = "a string") -> str:
        if self.token[:1] != '"':
            self.fail(expected)
        return self.unquoted(self.token, expected)

    def unquoted(self, literal: str, expected: str) -> str:
        """The text of the quoted part of the current token, which is left behind."""
        try:
            text = unquote(literal)
        except ValueError:
            self.fail(expected if _is_unterminated(literal) else r"the escapes \\, \" and \u{hex} only")
        self.next()
        return text

    def name_behind(self, sigil: str, expected: str) -> str:
        token = self.token
        if token[:1] != sigil or len(token) == 1:
            self.fail(expected)
        if token[1] == '"':
            return self.unquoted(token[1:], expected)
        self.next()
        return token[1:]

    def word(self, expected: str) -> str:
        if self.token[:1] == '"':
            return self.string(expected)
        if _word(self.token) is None:
            self.fail(expected)
        return self.next()

    def at_integer(self) -> bool:
        return _integer(self.token) is not None

    def integer(self, expected: str = "an integer") -> int:
        if not self.at_integer():
            self.fail(expected)
        return int(self.next())

    def read_type(self) -> Type:
        token = self.token
        if token[-1:] == "]" != token and '"' not in token:
            self.next()
            if token not in self.types:
                self.types[token] = _simple_type(token)
            return self.types[token]
        if token in _CONTAINERS:
            self.next()
            self.open_types += 1
            if self.open_types > self.max_nesting:
                self.fail(f"at most {self.max_nesting} types in each other (--max-nesting)")
            self.expect("<")
            type_ = self.container(token)
            self.expect(">")
            self.open_types -= 1
            return type_
        dtype = self.dtype("a type")
        if dtype is None and self.token != "[":
            return UNKNOWN
        self.expect("[")
        if self.skip("*"):
            self.expect("]")
            return TensorType(dtype, None)
        return TensorType(dtype, tuple(self.listed("]", self.dim)))

    def container(self, kind: str) -> Type:
        if kind == "seq":
            return SequenceType(self.read_type())
        if kind == "optional":
            return OptionalType(self.read_type())
        if kind == "sparse":
            dense = self.tensor_type()
            return SparseTensorType(dense.dtype, dense.shape)
        if kind == "map":
            key = self.dtype("an element type")
            self.expect(",")
            return MapType(key, self.read_type())
        domain = self.string()
        self.expect(",")
        return OpaqueType(domain, self.string())

    def tensor_type(self) -> TensorType:
        at = self.mark()
        type_ = self.read_type()
        if not isinstance(type_, TensorType):
            self.fail("the type of a tensor", at)
        return type_

    def dtype(self, expected: str) -> DType | None:
        """An element type, None for `?`."""
        dtype = dtype_named(self.token)
        if dtype is None and self.token != "?":
            self.fail(expected + nearest(self.token, DTYPES))
        self.next()
        return dtype

    def dim(self) -> Dim:
        token = self.token
        if self.skip("?"):
            return None
        if token[:1] == '"':
            return self.string()
        return self.next() if token.isidentifier() else self.extent()

    def extent(self) -> int:
        """A number that ONNX can give as an extent."""
        at = self.mark()
        extent = self.integer("an extent")
        if not -COUNTLESS <= extent < COUNTLESS:
            self.fail("an extent below 2**63", at)
        return extent


def _is_unterminated(token: str) -> bool:
    """Whether a token that begins like a literal of a string or of bytes has no end."""
    return '"' in token[:2] and _terminated(token.lstrip("%@")) is None


def printed_names(top: Graph) -> dict[Value, str]:
    """The printed name of every value of `top` and the regions inside, but those that have no name and no reader.

    O(nodes + uses); `top` is no region.
    """
    resolver = _Resolver(top)
    resolver.graph(top)
    return resolver.names


class _Resolver:
    """Goes through the text in its order, as a reader would, with the definitions seen so far in `scopes`."""

    def __init__(self, top: Graph) -> None:
        self.top = top
        self.names: dict[Value, str] = {}
        self.scopes: list[dict[str, Value]] = []
        self.suffixes: dict[str, int] = {}
        self.taken: set[str] | None = None

    def graph(self, graph: Graph) -> None:
        scope: dict[str, Value] = {}
        self.scopes.append(scope)
        claims = _claims(graph)
        nested = len(self.scopes) > 1
        for value in graph.inputs:
            self.define(value, scope, claims)
        for node in graph:
            if nested:
                self.read(node.inputs, scope)
            for region in node.regions:
                self.graph(region)
            for value in node.outputs:
                if value.name or value.users:
                    self.define(value, scope, claims)
        if nested:
            self.read(graph.return_.inputs, scope)
        self.scopes.pop()

    def define(self, value: Value, scope: dict[str, Value], claims: dict[str, Value]) -> None:
        name = value.name
        if not name and value.node is not None:
            name = self.number()
        elif name in scope or claims.get(name, value) is not value:
            name = self.fresh(name)
        scope[name] = value
        self.names[value] = name

    def read(self, values: tuple[Value | None, ...], scope: dict[str, Value]) -> None:
        """Rename whatever stands between a reader and the values that it reads from graphs around its own."""
        for value in values:
            if value is None:
                continue
            name = self.names.get(value)
            if name is None or scope.get(name) is value:
                continue
            depth = next((i for i, outer in enumerate(self.scopes) if outer.get(name) is value), None)
            for inner in () if depth is None else self.scopes[depth + 1 :]:
                hider = inner.pop(name, None)
                if hider is not None:
                    self.names[hider] = fresh = self.fresh(name)
                    inner[fresh] = hider

    def number(self) -> str:
        """The next number that is no name yet."""
        self._collect()
        assert self.taken is not None
        number = self.suffixes.get("", 0)
        while str(number) in self.taken:
            number += 1
        self.suffixes[""] = number + 1
        self.taken.add(str(number))
        return str(number)

    def fresh(self, hint: str) -> str:
        """`hint.1`, `hint.2`, ...: the first of them that nothing bears."""
        self._collect()
        assert self.taken is not None
        suffix = self.suffixes.get(f".{hint}", 1)
        while f"{hint}.{suffix}" in self.taken:
            suffix += 1
        self.suffixes[f".{hint}"] = suffix + 1
        self.taken.add(f"{hint}.{suffix}")
        return f"{hint}.{suffix}"

    def _collect(self) -> None:
        if self.taken is None:
            self.taken = {value.name for node in self.top.walk() for value in node.outputs}
            for graph in self.top.graphs():
                self.taken.update(value.name for value in graph.inputs)
                self.taken.update(graph.output_names)


def _claims(graph: Graph) -> dict[str, Value]:
    """The names that belong to inputs and results of `graph`, which other values of the graph may not take."""
    claims: dict[str, Value] = {}
    for value in graph.inputs:
        claims.setdefault(value.name, value)
    for result, name in zip(graph.return_.inputs, graph.output_names, strict=False):
        if result is not None and result.name == name and result.node is not None and result.node.graph is graph:
            claims.setdefault(name, result)
    return claims
