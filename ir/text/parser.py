r"""The parser of IR text. The grammar:

    module    = ["module" "{" ["ir_version" "=" INT] [","] ["opsets" "=" versions] "}"]
                graph function*
    graph     = "graph" ["@" name] inputs ["opsets" versions] body
    function  = "function" "@" name ["::" string] [":" word] inputs
                ["attributes" "[" {word ["=" attribute]} "]"] ["opsets" versions] body
    versions  = "{" {string ":" INT} "}"
    inputs    = "(" {value [":" type] ["=" payload]} ")"
    body      = "{" node* "return" "(" {value ["as" value]} ")" "}"
    node      = [{value | "_"} "="] operator [":" word] ["(" {value | "_"} ")"]
                ["{" {word "=" attribute} "}"] [":" {type}] ["loc" "(" string ")"]
                ["meta" "{" {string ":" string} "}"] ["{" graph+ "}"]
    operator  = word | string             in-house | foreign, `"domain::OpType"`
    value     = "%" name                  name = bare | string; word = dotted identifier | string
    type      = dtype "[" ("*" | {dim}) "]" | "?" | "sparse<" tensor ">" | "seq<" type ">"
              | "optional<" type ">" | "map<" dtype "," type ">" | "opaque<" string "," string ">"
    dim       = INT | identifier | string | "?" | ("add" | "mul" | "floordiv" | "max") "(" {dim} ")"
    attribute = scalar | "[" {scalar} "]" | kind "[]" | "@" name ":" word
    scalar    = INT | FLOAT | string | bytes | payload | "type" type | "region" INT
    payload   = tensor | "sparse" "[" {INT} "]" "(" tensor "," tensor ")"
    tensor    = dtype "[" {INT} "]" ("#" digest | "[" {element} "]" | element)
    element   = INT | FLOAT | "true" | "false" | string | bytes | "(" FLOAT "," FLOAT ")"

`{x}` is a list with commas; `//` begins a comment. An attribute value `@a:FLOAT` refers to the
attribute `a` of the function. The last form of a tensor is for rank 0. A dtype may be `?` in types.
A float of an attribute is rounded to f32 unless it ends in `f64`. A name refers to a definition
above it, in its own graph first, then in the graphs around it.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...support.errors import clipped
from ...support.limits import DEFAULT_LIMITS, Limits
from ..attributes import Attribute
from ..graph import Function, Graph, Node, Value
from ..module import Module
from ..ops import BY_ONNX_NAME, OPS, canonical_domain
from ..ops.parameters import with_operands
from ..ops.row import OpInfo, invalid_attribute
from ..tensor import Tensor
from ..type_inference import infer_types
from ..types import UNKNOWN, Type, have_unknown_dtype
from .attribute_parser import AttributeParser
from .lexer import Mark, nearest
from .printer import DEFAULT_OPSETS


def parse(
    text: str,
    *,
    name: str = "<text>",
    data: Mapping[str, Tensor] | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Module:
    """Return the module that `text` describes; every node gets an origin of its own. O(len(text)).

    `name` is the name of the text in messages; `data` holds payloads by digest (see
    `printer.side_data`). Without a header the module has the default IR version and
    `DEFAULT_OPSETS`. Raises ParseError if the text is not a module, or exceeds `limits`.
    """
    parser = _Parser(text, name, {} if data is None else data, limits)
    try:
        return parser.parse()
    except RecursionError:
        raise parser.error("less nesting") from None


class _Parser(AttributeParser):
    """A parser of modules, graphs and nodes.

    `scopes` holds the definitions so far, innermost graph last.
    """

    def __init__(self, text: str, name: str, data: Mapping[str, Tensor], limits: Limits) -> None:
        super().__init__(text, name, data)
        self.module = Module(Graph(), limits=limits)
        self.limits = limits
        self.max_nesting = limits.max_nesting
        self.count = 0
        self.scopes: list[dict[str, Value]] = []

    def parse(self) -> Module:
        module = self.module
        opsets = dict(DEFAULT_OPSETS)
        if self.skip("module"):
            self.expect("{")
            self.listed("}", lambda: self.header(opsets))
        module.graph = self.graph(opsets)
        while self.token:
            at = self.mark()
            function = self.function(module.graph.opsets)
            if function.key in module.functions:
                self.fail(
                    "a function that is not defined yet",
                    at,
                    f"'{function.domain}::{function.name}'",
                )
            module.functions[function.key] = function
        if module.notes.unimported:
            domains = ", ".join(map(clipped, sorted(module.notes.unimported)))
            module.warnings.append(
                f"{self.name}: it has operators of {domains}, and its header imports no opset of it"
            )
        return module

    def header(self, opsets: dict[str, int]) -> None:
        entry = self.token
        if entry not in ("ir_version", "opsets"):
            self.fail("'ir_version' or 'opsets'")
        self.next()
        self.expect("=")
        if entry == "opsets":
            opsets.clear()
            opsets.update(self.versions())
        else:
            self.module.ir_version = self.integer()

    def versions(self) -> dict[str, int]:
        self.expect("{")
        return dict(self.listed("}", self.version))

    def version(self) -> tuple[str, int]:
        domain = canonical_domain(self.string("a domain in quotes"))
        self.expect(":")
        return domain, self.integer("a version")

    def function(self, opsets: dict[str, int]) -> Function:
        self.expect("function")
        domain, separator, name = self.name_after("@", "'@' and the name of a function").partition(
            "::"
        )
        if self.skip("::"):
            domain, name = domain + separator + name, self.string()
        elif not separator:
            domain, name = "", domain
        overload = self.word("an overload") if self.skip(":") else ""
        function = Function(canonical_domain(domain), name, Graph(name), overload=overload)
        self.graph_body(function.graph, opsets, function)
        return function

    def graph(self, opsets: dict[str, int]) -> Graph:
        self.expect("graph")
        graph = Graph(self.name_after("@", "a name") if self.token[:1] == "@" else "")
        self.graph_body(graph, opsets)
        return graph

    def graph_body(
        self, graph: Graph, opsets: dict[str, int], function: Function | None = None
    ) -> None:
        """Read everything after the name of a graph.

        A region without opsets shares the opsets of the outer graph.
        """
        if len(self.scopes) >= self.limits.max_nesting:
            self.fail(f"at most {self.limits.max_nesting} nested graphs (--max-nesting)")
        self.scopes.append({})
        self.expect("(")
        self.listed(")", lambda: self.input(graph))
        if function is not None and self.skip("attributes"):
            self.expect("[")
            self.listed("]", lambda: self.parameter(function))
        if self.skip("opsets"):
            graph.opsets = self.versions()
        else:
            graph.opsets = dict(opsets) if function else opsets
        self.expect("{")
        while self.token != "return":
            self.node(graph)
        self.next()
        self.expect("(")
        results = self.listed(")", self.result)
        graph.set_outputs([value for value, _ in results], [name for _, name in results])
        self.expect("}")
        self.scopes.pop()

    def input(self, graph: Graph) -> None:
        value = graph.add_input(self.defined_name(set()), UNKNOWN)
        self.scopes[-1][value.name] = value
        if self.skip(":"):
            value.type = self.read_type()
        if self.skip("="):
            graph.defaults[value] = self.payload("a tensor")

    def parameter(self, function: Function) -> None:
        name = self.word("the name of an attribute")
        if self.skip("="):
            function.defaults[name] = self.attribute()
        else:
            function.attributes += (name,)

    def defined_name(self, others: set[str]) -> str:
        """Read a name that neither the current graph nor `others` define."""
        at = self.mark()
        name = self.name_after("%", "a value")
        if name in self.scopes[-1] or name in others:
            self.fail("a name that is not defined yet in this graph", at)
        return name

    def value(self) -> Value:
        at = self.mark()
        name = self.name_after("%", "a value")
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        raise self.error("a value defined above", at)

    def operand(self) -> Value | None:
        return None if self.skip("_") else self.value()

    def result(self) -> tuple[Value, str]:
        value = self.value()
        return value, self.name_after("%", "a value") if self.skip("as") else value.name

    def node(self, graph: Graph) -> None:
        self.count += 1
        if self.count > self.limits.max_nodes:
            self.fail(f"at most {self.limits.max_nodes} nodes (--max-nodes)")
        names = self.defined_names()
        at = self.mark()
        op = self.operator(anonymous=not names)
        overload = self.word("an overload") if self.skip(":") else ""
        inputs = tuple(self.listed(")", self.operand)) if self.skip("(") else ()
        info = OPS.get(op)
        if info is not None:
            self.check_arity(op, len(inputs), info, at)
        origins = self.module.new_origin()
        refs: list[tuple[int, Mark]] = []
        self.region_refs = refs
        attrs, opened = self.attributes(info, at)
        types = self.types_of(names) if not opened and self.skip(":") else None
        name = self.location() if not opened and self.skip("loc") else ""
        marks = dict(self.marks()) if not opened and self.skip("meta") else None
        regions = self.regions(graph) if opened or self.skip("{") else []
        for index, position in refs:
            if not 0 <= index < len(regions):
                self.fail("the number of a region of this node", position)
        if info is not None and info.parameters:
            attrs, inputs = with_operands(info, attrs, inputs, graph.append)
        outputs = list(zip(names, types or [UNKNOWN] * len(names), strict=True))
        node = Node(
            op,
            inputs,
            attrs,
            outputs=outputs,
            regions=regions,
            name=name,
            overload=overload,
            origins=origins,
        )
        node.own_metadata = marks
        graph.append(node)
        if info is not None:
            if types is None and len(names) >= info.result_counts[0]:
                infer_types(node, self.module.constants)
            self.check_dtypes(node, info, at)
        self.scopes[-1].update((value.name, value) for value in node.outputs if value.name)
        if info is None:
            domain = op.partition("::")[0]
            if domain and domain not in graph.opsets:
                self.module.notes.unimported.add(domain)

    def attributes(self, info: OpInfo | None, at: Mark) -> tuple[dict[str, Attribute], bool]:
        """Read the attributes of a node, or the opening brace of its regions.

        The second result says that it was the brace.
        """
        attrs: dict[str, Attribute] = {}
        opened = self.skip("{")
        if opened and self.token != "graph":
            self.listed("}", lambda: self.entry(attrs))
            opened = False
        invalid = None if info is None else invalid_attribute(info, attrs)
        if invalid is not None:
            self.fail(f"another kind of value for {invalid}", at, str(attrs[invalid]))
        return attrs, opened

    def check_arity(self, op: str, count: int, info: OpInfo, at: Mark) -> None:
        low, high = info.arity
        if not low <= count <= high:
            self.fail(
                f"at {f'least {low}' if count < low else f'most {high}'} inputs of {op}",
                at,
                str(count),
            )

    def check_dtypes(self, node: Node, info: OpInfo, at: Mark) -> None:
        """Reject an in-house operator on elements of a type that irc does not know."""
        types = [value.type for value in (*node.outputs, *node.inputs) if value is not None]
        if info.inputs and have_unknown_dtype(types):
            self.fail("known element types", at)

    def defined_names(self) -> list[str]:
        """Read the results before `=`: `_` is the empty name; a node may have no results."""
        names: list[str] = []
        seen: set[str] = set()
        while names or self.token[:1] == "%" or self.token == "_":
            names.append("" if self.skip("_") else self.defined_name(seen))
            seen.add(names[-1])
            if not self.skip(","):
                self.expect("=")
                break
        return names

    def operator(self, *, anonymous: bool) -> str:
        """Read an operator: a foreign one with its domain, or an in-house one of the table."""
        if self.token[:1] == '"':
            domain, separator, op_type = self.string().partition("::")
            return f"{canonical_domain(domain)}::{op_type}" if separator else f"::{domain}"
        if self.token not in OPS:
            known = next(
                (row for name, row in BY_ONNX_NAME.items() if name.lower() == self.token.lower()),
                None,
            )
            hint = nearest(self.token, OPS) if known is None else f" (perhaps {known.name})"
            operator = f"an operator{hint}, in quotes if it is foreign"
            self.fail(
                "a node or 'return'" if anonymous and not self.token[:1].isalpha() else operator
            )
        return self.next()

    def entry(self, attrs: dict[str, Attribute]) -> None:
        at = self.mark()
        name = self.word("the name of an attribute")
        if name in attrs:
            self.fail("an attribute that is not set yet", at)
        self.expect("=")
        attrs[name] = self.attribute()

    def types_of(self, names: list[str]) -> list[Type]:
        at = self.mark()
        types = [self.read_type()]
        while self.skip(","):
            types.append(self.read_type())
        if len(types) != len(names):
            self.fail(f"{len(names)} type{'s' * (len(names) != 1)}", at, str(len(types)))
        return types

    def location(self) -> str:
        self.expect("(")
        name = self.string()
        self.expect(")")
        return name

    def marks(self) -> list[tuple[str, str]]:
        """Read the metadata of a node."""
        self.expect("{")
        return self.listed("}", self.mark_entry)

    def mark_entry(self) -> tuple[str, str]:
        key = self.string("a key in quotes")
        self.expect(":")
        return key, self.string("a value in quotes")

    def regions(self, graph: Graph) -> list[Graph]:
        regions = [self.graph(graph.opsets)]
        while self.token == "graph":
            regions.append(self.graph(graph.opsets))
        self.expect("}")
        return regions
