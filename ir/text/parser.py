r"""IR text: the parser.

    module    = ["module" "{" ["ir_version" "=" INT] [","] ["opsets" "=" versions] "}"] graph function*
    graph     = "graph" ["@" name] inputs ["opsets" versions] body
    function  = "function" "@" name ["::" string] [":" word] inputs ["attributes" "[" {word ["=" attribute]} "]"]
                ["opsets" versions] body
    versions  = "{" {string ":" INT} "}"
    inputs    = "(" {value [":" type] ["=" payload]} ")"
    body      = "{" node* "return" "(" {value ["as" value]} ")" "}"
    node      = [{value | "_"} "="] operator [":" word] ["(" {value | "_"} ")"] ["{" {word "=" attribute} "}"]
                [":" {type}] ["loc" "(" string ")"] ["{" graph+ "}"]
    operator  = word | string                     in-house | foreign, `"domain::OpType"`, default domain left out
    value     = "%" name                          name = bare | string; word = identifier with dots | string
    type      = dtype "[" ("*" | {dim}) "]" | "?" | "sparse<" tensor ">" | "seq<" type ">" | "optional<" type ">"
              | "map<" dtype "," type ">" | "opaque<" string "," string ">"
    dim       = INT | identifier | string | "?"
    attribute = scalar | "[" {scalar} "]" | kind "[]" | "@" name ":" word
    scalar    = INT | FLOAT | string | bytes | payload | "type" type | "region" INT
    payload   = tensor | "sparse" "[" {INT} "]" "(" tensor "," tensor ")"
    tensor    = dtype "[" {INT} "]" ("#" digest | "[" {element} "]" | element)
    element   = INT | FLOAT | "true" | "false" | string | bytes | "(" FLOAT "," FLOAT ")"

`{x}` is a list with commas; `//` begins a comment. An attribute value `@a:FLOAT` is the function's attribute `a`; the
last form of a tensor is for rank 0. A dtype may be `?` in types. A float of an attribute is rounded to f32 unless it
ends in `f64`. A name is looked up among the definitions above it, in its graph first, then in the graphs around it.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...support.limits import DEFAULT_LIMITS, Limits
from ..attributes import Attribute, AttributeRef, EmptyList, RegionRef, Scalar, SparseTensor
from ..evaluate import ConstantEvaluator
from ..graph import Function, Graph, Node, Value
from ..module import Module
from ..ops import OPS, odd_attribute
from ..rewriter import infer_types
from ..tensor import ArrayTensor, OpaqueTensor, Tensor
from ..types import DTYPES, UNKNOWN, DType, TensorType, Type, element_count, is_unknown
from .lexer import Mark, Reader, dtype_named, nearest
from .printer import DEFAULT_OPSETS, bytes_value, float_value, is_element, pack

_KINDS: tuple[type | tuple[type, ...], ...] = (int, float, (str, bytes), Tensor, SparseTensor, Type, RegionRef)
_LISTS = ("floats", "ints", "strings", "tensors", "graphs", "sparse_tensors", "type_protos")


def parse(
    text: str, *, name: str = "<text>", data: Mapping[str, Tensor] | None = None, limits: Limits = DEFAULT_LIMITS
) -> Module:
    """The module that `text` describes, every node with an origin of its own. O(len(text)).

    `name` stands for the text in messages; `data` has payloads by digest (see `text.side_data`). Without a header the
    module has the default IR version and `DEFAULT_OPSETS`. Raises ParseError where the text is no module, or one
    that is larger than `limits`.
    """
    parser = _Parser(text, name, {} if data is None else data, limits)
    try:
        return parser.whole()
    except RecursionError:
        raise parser.error("less nesting") from None


class _Literals(Reader):
    """Attribute values."""

    def __init__(self, text: str, name: str, data: Mapping[str, Tensor]) -> None:
        super().__init__(text, name)
        self.data = data
        self.region_refs: list[tuple[int, Mark]] = []

    def attribute(self) -> Attribute:
        token = self.token
        if token == "[":
            self.next()
            return self.scalars()
        if token[:1] == "@":
            name = self.name_behind("@", "a name")
            self.expect(":")
            return AttributeRef(name, self.word("the kind of the attribute"))
        if token in _LISTS:
            self.next()
            self.expect("[")
            self.expect("]")
            return EmptyList(token)
        return self.scalar()

    def scalars(self) -> tuple[Scalar, ...]:
        """The inside of a list, whose elements are of one kind."""
        kinds: set[int] = set()

        def item() -> Scalar:
            at = self.mark()
            value = self.scalar()
            kinds.add(next(i for i, kind in enumerate(_KINDS) if isinstance(value, kind)))
            if len(kinds) > 1:
                self.fail("an element like those before it", at)
            return value

        return tuple(self.listed("]", item))

    def scalar(self) -> Scalar:
        token = self.token
        if token[:1] == '"':
            return self.string()
        if token[:2] == 'b"':
            return self.bytes()
        if token == "region":
            self.next()
            at = self.mark()
            self.region_refs.append((self.integer("the number of a region"), at))
            return RegionRef(self.region_refs[-1][0])
        if token == "type":
            self.next()
            return self.read_type()
        value = self.number(single=True)
        return self.payload("a value") if value is None else value

    def number(self, *, single: bool) -> int | float | None:
        """An integer or a float, the latter rounded to f32 if `single`; None where there is neither."""
        if self.at_integer():
            return self.integer()
        try:
            value = float_value(self.token, single=single)
        except OverflowError:
            self.fail(f"a number in the range of {'f32' if single else 'f64'}")
        if value is not None:
            self.next()
        return value

    def bytes(self) -> bytes:
        value = bytes_value(self.token)
        if value is None:
            self.fail(r"printable ASCII and the escape \xhh only")
        self.next()
        return value

    def payload(self, expected: str) -> Tensor | SparseTensor:
        if self.token != "sparse":
            return self.tensor(expected)
        self.next()
        self.expect("[")
        shape = tuple(self.listed("]", self.extent))
        self.expect("(")
        values = self.tensor("a tensor")
        self.expect(",")
        indices = self.tensor("a tensor")
        self.expect(")")
        return SparseTensor(values, indices, shape)

    def tensor(self, expected: str) -> Tensor:
        """A type and a digest or elements."""
        at = self.mark()
        if self.token[-1:] != "]" and dtype_named(self.token) is None:
            self.fail(expected)
        type_ = self.tensor_type()
        dtype, shape = type_.dtype, tuple([dim for dim in type_.shape or () if isinstance(dim, int)])
        if dtype is None or type_.shape != shape:
            self.fail("a known element type and shape", at)
        if self.token[:1] == "#" or dtype.kind == "unknown":
            return self.digest(dtype, shape)
        at = self.mark()
        if not shape:
            items = [self.element(dtype)]
        else:
            self.expect("[")
            items = self.listed("]", lambda: self.element(dtype))
        if len(items) != element_count(shape):
            self.fail(f"{element_count(shape)} elements", at, str(len(items)))
        try:
            return ArrayTensor(pack(items, dtype).reshape(shape), dtype)
        except (ValueError, OverflowError):
            self.fail(f"numbers in the range of {dtype}", at)

    def digest(self, dtype: DType, shape: tuple[int, ...]) -> Tensor:
        digest = self.token.removeprefix("#")
        tensor = self.data.get(digest)
        if digest in ("", self.token):
            self.fail("'#' and a digest")
        if tensor is not None and (tensor.dtype != dtype or tensor.shape != shape):
            self.fail(f"the digest of a payload of type {TensorType(dtype, shape)}")
        self.next()
        return OpaqueTensor(dtype, shape, digest) if tensor is None else tensor

    def element(self, dtype: DType) -> object:
        """An element as `pack` takes it."""
        at, token = self.mark(), self.token
        value: object
        if token in ("true", "false"):
            value = self.next() == "true"
        elif self.skip("("):
            value = tuple(self.listed(")", lambda: self.element(DTYPES["f64"])))
        elif '"' in token[:2]:
            value = self.string() if token[0] == '"' else self.bytes()
        else:
            value = self.number(single=False)
        if not is_element(value, dtype) or token.startswith("nan("):
            self.fail(f"an element of {dtype}", at)
        return value


class _Parser(_Literals):
    """Modules, graphs and nodes; `scopes` are the definitions so far, of the graph in hand last."""

    def __init__(self, text: str, name: str, data: Mapping[str, Tensor], limits: Limits) -> None:
        super().__init__(text, name, data)
        self.module = Module(Graph(), limits=limits)
        self.evaluator = ConstantEvaluator(limits.max_constant_bytes)
        self.limits = limits
        self.max_nesting = limits.max_nesting
        self.count = 0
        self.scopes: list[dict[str, Value]] = []

    def whole(self) -> Module:
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
                self.fail("a function that is not defined yet", at, f"'{function.domain}::{function.name}'")
            module.functions[function.key] = function
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
        domain = self.string("a domain in quotes")
        self.expect(":")
        return domain, self.integer("a version")

    def function(self, opsets: dict[str, int]) -> Function:
        self.expect("function")
        domain, separator, name = self.name_behind("@", "'@' and the name of a function").partition("::")
        if self.skip("::"):
            domain, name = domain + separator + name, self.string()
        elif not separator:
            domain, name = "", domain
        overload = self.word("an overload") if self.skip(":") else ""
        function = Function(domain, name, Graph(name), overload=overload)
        self.inside(function.graph, opsets, function)
        return function

    def graph(self, opsets: dict[str, int]) -> Graph:
        self.expect("graph")
        graph = Graph(self.name_behind("@", "a name") if self.token[:1] == "@" else "")
        self.inside(graph, opsets)
        return graph

    def inside(self, graph: Graph, opsets: dict[str, int], function: Function | None = None) -> None:
        """Everything behind the name; a region shares the opsets around it unless it names its own."""
        if len(self.scopes) >= self.limits.max_nesting:
            self.fail(f"at most {self.limits.max_nesting} graphs in each other (--max-nesting)")
        self.scopes.append({})
        self.expect("(")
        self.listed(")", lambda: self.input(graph))
        if function is not None and self.skip("attributes"):
            self.expect("[")
            self.listed("]", lambda: self.parameter(function))
        graph.opsets = self.versions() if self.skip("opsets") else dict(opsets) if function else opsets
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
        """A name that the graph in hand does not define yet, nor `others`."""
        at = self.mark()
        name = self.name_behind("%", "a value")
        if name in self.scopes[-1] or name in others:
            self.fail("a name that is not defined yet in this graph", at)
        return name

    def value(self) -> Value:
        at = self.mark()
        name = self.name_behind("%", "a value")
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        raise self.error("a value defined above", at)

    def operand(self) -> Value | None:
        return None if self.skip("_") else self.value()

    def result(self) -> tuple[Value, str]:
        value = self.value()
        return value, self.name_behind("%", "a value") if self.skip("as") else value.name

    def node(self, graph: Graph) -> None:
        self.count += 1
        if self.count > self.limits.max_nodes:
            self.fail(f"at most {self.limits.max_nodes} nodes (--max-nodes)")
        names = self.defined_names()
        at = self.mark()
        op = self.operator(anonymous=not names)
        overload = self.word("an overload") if self.skip(":") else ""
        inputs = self.listed(")", self.operand) if self.skip("(") else []
        info = OPS.get(op)
        if info is not None and not info.inputs[0] <= len(inputs) <= info.inputs[1]:
            bound = f"at least {info.inputs[0]}" if len(inputs) < info.inputs[0] else f"at most {info.inputs[1]}"
            self.fail(f"{bound} inputs of {op}", at, str(len(inputs)))
        origins = self.module.new_origin()
        opened = self.skip("{")
        refs: list[tuple[int, Mark]] = []
        self.region_refs = refs
        attrs: dict[str, Attribute] = {}
        if opened and self.token != "graph":
            self.listed("}", lambda: self.entry(attrs))
            opened = False
        odd = None if info is None else odd_attribute(attrs)
        if odd is not None:
            self.fail(f"another kind of value for {odd}", at, str(attrs[odd]))
        types = self.types_of(names) if not opened and self.skip(":") else None
        name = self.location() if not opened and self.skip("loc") else ""
        regions = self.regions(graph) if opened or self.skip("{") else []
        for index, place in refs:
            if not 0 <= index < len(regions):
                self.fail("the number of a region of this node", place)
        outputs = list(zip(names, types or [UNKNOWN] * len(names), strict=True))
        node = Node(op, inputs, attrs, outputs=outputs, regions=regions, name=name, overload=overload, origins=origins)
        graph.append(node)
        if types is None and info is not None and len(names) >= info.outputs:
            infer_types(node, self.evaluator)
        values = [*node.outputs, *(value for value in inputs if value is not None)]
        if info is not None and info.inputs[1] and any(is_unknown(value.type) for value in values):
            self.fail("known element types", at)
        for value in node.outputs:
            if value.name:
                self.scopes[-1][value.name] = value

    def defined_names(self) -> list[str]:
        """What stands in front of `=`; the empty name for `_`, nothing where there is no result."""
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
        """A foreign operator with its domain, or an in-house one of the table."""
        if self.token[:1] == '"':
            op = self.string()
            return op if "::" in op else f"::{op}"
        if self.token not in OPS:
            operator = f"an operator{nearest(self.token, OPS)}, in quotes if it is foreign"
            self.fail("a node or 'return'" if anonymous and not self.token[:1].isalpha() else operator)
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

    def regions(self, graph: Graph) -> list[Graph]:
        regions = [self.graph(graph.opsets)]
        while self.token == "graph":
            regions.append(self.graph(graph.opsets))
        self.expect("}")
        return regions
