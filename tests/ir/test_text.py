"""IR text: printed modules parse to the same module, and errors point at their cause."""

import struct
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from textwrap import dedent

import harness
import numpy as np
import pytest
import zoo
from hypothesis import given, settings
from hypothesis import strategies as st
from irc.frontends.onnx import from_model, load
from irc.ir.attributes import AttributeRef, EmptyList, RegionRef, SparseTensor
from irc.ir.graph import Function, Graph, Node, Value
from irc.ir.module import Module
from irc.ir.tensor import ArrayTensor, OpaqueTensor, Tensor, numpy_dtype
from irc.ir.text.literals import format_elements, format_float, parse_float
from irc.ir.text.parser import parse
from irc.ir.text.printer import UNAVAILABLE, side_data, to_text
from irc.ir.types import (
    DTYPES,
    F32,
    UNKNOWN,
    DType,
    MapType,
    OpaqueType,
    OptionalType,
    SequenceType,
    SparseTensorType,
    TensorType,
)
from irc.ir.verifier import verify
from irc.result import emit
from irc.support.errors import ModelError, ParseError
from onnx import ModelProto

F32_4 = TensorType(F32, (4,))


def content(value: object) -> object:
    """An attribute as something that compares by bits: the type too, tensors by digest."""
    match value:
        case float():
            return "float", struct.pack("<d", value)
        case tuple():
            return "tuple", [content(item) for item in value]
        case Tensor():
            return "tensor", value.type, digest(value)
        case SparseTensor():
            return "sparse", value.shape, content(value.values), content(value.indices)
        case _:
            return type(value), value


def digest(tensor: Tensor) -> str:
    try:
        return tensor.digest()
    except (ModelError, OSError):
        return UNAVAILABLE


def assert_same_graph(a: Graph, b: Graph, twins: dict[Value, Value], exact: bool) -> None:
    """Node by node, with no help of the printer.

    `twins` maps the values of `a`, names agree but for suffixes.
    """

    def pair(x: Value, y: Value) -> None:
        assert x.type == y.type
        renamed = y.name.startswith(f"{x.name}.")
        numbered = not x.name and y.name.isdecimal()
        assert x.name == y.name or numbered or (renamed and not exact)
        twins[x] = y

    assert (a.name, a.opsets, a.output_names) == (b.name, b.opsets, b.output_names)
    for x, y in zip(a.inputs, b.inputs, strict=True):
        pair(x, y)
        assert content(a.defaults.get(x)) == content(b.defaults.get(y))
    for m, n in zip(a, b, strict=True):
        assert (m.op, m.overload, m.name) == (n.op, n.overload, n.name)
        assert [(k, content(v)) for k, v in m.attrs.items()] == [
            (k, content(v)) for k, v in n.attrs.items()
        ]
        assert [value and twins[value] for value in m.inputs] == list(n.inputs)
        for inner, other in zip(m.regions, n.regions, strict=True):
            assert_same_graph(inner, other, twins, exact)
        for x, y in zip(m.outputs, n.outputs, strict=True):
            pair(x, y)
    assert [value and twins[value] for value in a.return_.inputs] == list(b.return_.inputs)


def assert_same(a: Module, b: Module, *, exact: bool = True) -> None:
    assert a.ir_version == b.ir_version
    assert_same_graph(a.graph, b.graph, {}, exact)
    assert list(a.functions) == list(b.functions)
    for key, function in a.functions.items():
        other = b.functions[key]
        assert (function.key, function.attributes) == (other.key, other.attributes)
        assert [(k, content(v)) for k, v in function.defaults.items()] == [
            (k, content(v)) for k, v in other.defaults.items()
        ]
        assert_same_graph(function.graph, other.graph, {}, exact)


def round_trip(module: Module, *, exact: bool = True) -> Module:
    """The module that the text of `module` describes, which is the same."""
    text = to_text(module)
    parsed = parse(text)
    verify(parsed)
    assert to_text(parsed) == text
    assert_same(module, parsed, exact=exact)
    return parsed


def with_attrs(**attrs: object) -> Module:
    graph = Graph("main", {"": 21})
    outputs = [("y", TensorType())]
    regions = [Graph("r", graph.opsets), Graph("", graph.opsets)]
    graph.append(Node("::Op", (), attrs, outputs=outputs, regions=regions))  # type: ignore[arg-type]
    return Module(graph)


SOURCES: dict[str, tuple[Callable[[], Iterable[Path | tuple[str, ModelProto]]], int]] = {
    "shared models": (harness.shared_models, 90),
    "backend": (harness.onnx_files, 140),
    "node": (harness.node_models, 1800),
    "zoo": (zoo.models, 850),
}


@pytest.mark.slow
@pytest.mark.parametrize("source", ["backend", "node", "zoo", harness.SHARED_MODELS])
def test_models_round_trip(source: str) -> None:
    make, least = SOURCES[source]
    count = renamed = 0
    for item in make():
        name = str(item) if isinstance(item, Path) else item[0]
        try:
            module = load(item) if isinstance(item, Path) else from_model(item[1])
        except ModelError:
            assert zoo.is_odd(name), name
            continue
        try:
            round_trip(module)
        except AssertionError:
            assert module.untouchable, name
            round_trip(module, exact=False)
            renamed += 1
        count += 1
    print(f"{count} models of {source} compared, values renamed in {renamed}")
    assert count >= least


@pytest.mark.filterwarnings("ignore:Ignoring unknown external data key")
def test_external_models_round_trip(tmp_path: Path) -> None:
    for name, path in zoo.external_models(tmp_path):
        try:
            module = load(path)
        except ModelError:
            assert zoo.is_odd(name)
        else:
            round_trip(module)


EXAMPLE = """\
module {ir_version=8, opsets={"": 17, "com.acme": 1}}

graph @main(%x: f32[N,3,8,8], %w_over: f32[4] = f32[4] [1.0, 2.0, 3.0, 4.0], %c: bool[]) {
  %w = constant {value=f32[4,3,3,3] #1a2b3c4d5e6f7a8b}
  %b = constant {value=f32[4] [0.5, 1.0, -2.0, nan]}
  %y = nn.conv(%x, %w, %b) {pads=[1, 1, 1, 1], strides=[1, 1]} : f32[N,4,8,8] loc("conv1")
  %t = sigmoid(%y) : f32[N,4,8,8]
  %1, _ = "com.acme::Fancy"(%t, _) {alpha=0.5, mode="abc"} : f32[N,4,8,8], ?
  "com.acme::Print":loud(%1, %w_over)
  %r = "If"(%c) {then_branch=region 0, else_branch=region 1} loc("if") {
    graph @then() {
      %t.1 = nn.relu(%1) : f32[N,4,8,8]
      return(%t.1)
    }
    graph() {
      return(%t)
    }
  }
  return(%r, %y as %out)
}

function @local::f:over(%a, %b) attributes [alpha, beta=1.0] opsets {"": 18} {
  %y = "LeakyRelu"(%a) {alpha=@alpha:FLOAT}
  return(%y)
}
"""


def test_example() -> None:
    module = parse(EXAMPLE)
    verify(module)
    assert to_text(module) == str(module) == EXAMPLE
    weight = next(iter(module.graph)).attrs["value"]
    assert isinstance(weight, OpaqueTensor)
    assert weight.digest() == "1a2b3c4d5e6f7a8b"
    assert module.next_origin == len([node for node in module.walk() if node.op != "return"])
    assert module.functions["local", "f", "over"].graph.opsets == {"": 18}
    branch = next(node for node in module.graph if node.regions)
    assert all(region.opsets is module.graph.opsets for region in branch.regions)


def test_what_the_printer_leaves_out_may_be_left_out() -> None:
    module = parse(
        """// a comment
        graph(%x: f32[ N , 4 ], %i: ?[3], %o: seq< optional<?> >) { // another
          %w = constant {value = i4[2] [ -8, 7]}  %y = nn.relu(%x)
          %s = "a // b"(%y)%z = add(%y, %x) : f32[N,4]
          return(%s,%z)}"""
    )
    assert module.graph.opsets == {"": 21}
    assert to_text(module) == dedent("""\
        module {ir_version=10, opsets={"": 21}}

        graph(%x: f32[N,4], %i: ?[3], %o: seq<optional<?>>) {
          %w = constant {value=i4[2] [-8, 7]}
          %y = nn.relu(%x) : f32[N,4]
          %s = "a // b"(%y)
          %z = add(%y, %x) : f32[N,4]
          return(%s, %z)
        }
        """)


def test_names_are_kept_unless_they_would_mislead() -> None:
    graph = Graph("main", {"": 21})
    module = Module(graph)
    x, cond = graph.add_input("x", F32_4), graph.add_input("c", TensorType(DTYPES["bool"], ()))
    first = graph.append(
        Node("nn.relu", (x,), outputs=[("y", F32_4)])
    ).output  # the name of a result, not its value
    anonymous = graph.append(Node("nn.relu", (first,), outputs=[("", F32_4)])).output
    region = Graph("r", graph.opsets)
    hider = region.append(
        Node("nn.relu", (x,), outputs=[("x", F32_4)])
    ).output  # may hide x, but not below
    twin = region.append(Node("nn.relu", (hider,), outputs=[("x", F32_4)])).output
    reader = region.append(
        Node("add", (x, twin), outputs=[("c", F32_4)])
    ).output  # hides c, which nobody reads
    region.set_outputs([reader])
    graph.append(
        Node(
            "::If",
            (cond,),
            {"then_branch": RegionRef(0)},
            outputs=[("z", F32_4), ("", UNKNOWN)],
            regions=[region],
        )
    )
    result = graph.append(Node("nn.relu", (anonymous,), outputs=[("y", F32_4)])).output
    graph.set_outputs([result, x, first], ["y", "x", "0"])
    round_trip(module, exact=False)
    assert to_text(module).split("\n\n")[1] == dedent("""\
        graph @main(%x: f32[4], %c: bool[]) {
          %y.1 = nn.relu(%x) : f32[4]
          %1 = nn.relu(%y.1) : f32[4]
          %z, _ = "If"(%c) {then_branch=region 0} : f32[4], ? {
            graph @r() {
              %x.2 = nn.relu(%x) : f32[4]
              %x.1 = nn.relu(%x.2) : f32[4]
              %c = add(%x, %x.1) : f32[4]
              return(%c)
            }
          }
          %y = nn.relu(%1) : f32[4]
          return(%y, %x, %y.1 as %0)
        }
        """)


CASES = r"""
  %y = nn.relu(^%q) | a value defined above, found '%q'
  ^%x = nn.relu(%x) | a name that is not defined yet in this graph, found '%x'
  %a, ^%a = "F"(%x) | a name that is not defined yet in this graph, found '%a'
  %y = ^nn.dropouts(%x) | an operator (perhaps nn.dropout), in quotes if it is foreign, found 'nn.dropouts'
  ^Relu(%x) | an operator (perhaps nn.relu), in quotes if it is foreign, found 'Relu'
  %y = ^nn.conv(%x) | at least 2 inputs of nn.conv, found 1
  %y = ^nn.relu(%x, %x) | at most 1 inputs of nn.relu, found 2
  %y = ^nn.conv(%x, %x) {group=1, strides="2"} | another kind of value for strides, found 2
  %y = nn.relu(%x) ^! f32 | a node or 'return', found '!'
  %y = nn.relu(%x ^%x) | ',' or ')', found '%x'
  %y ^nn.relu(%x) | '=', found 'nn.relu'
  %y = ^"Foo(%x) | a string, found an unterminated string
  %y = nn.relu(^%"q) | a value, found an unterminated string
  "F"(%x) {a=^b"q} | printable ASCII and the escape \xhh only, found an unterminated string
  %y = ^"a\q"(%x) | the escapes \\, \" and \u{hex} only, found '"a\q"'
  %y = ^"\u{110000}"(%x) | the escapes \\, \" and \u{hex} only, found '"\u{110000}"'
  %y = nn.relu(%x) : ^f32[4], f32[4] | 1 type, found 2
  %y, %z = "F"(%x) : ^f32[4] | 2 types, found 1
  %y = nn.relu(%x) : ^f33[4] | a type (perhaps f32), found 'f33'
  %y = nn.relu(%x) : f32[4^; 5] | ',' or ']', found ';'
  %y = nn.relu(%x) : f32[4, ^%x] | an extent, found '%x'
  %y = nn.relu(%x) : ^"abc] | a type, found an unterminated string
  %y = nn.relu(%x) : sparse<^seq<?>> | the type of a tensor, found 'seq'
	"F"(%x) {a=^} | a value, found '}'
  "F"(%x) {a^: 1} | '=', found ':'
  "F"(%x) {^1=1} | the name of an attribute, found '1'
  "F"(%x) {a=1, ^a=2} | an attribute that is not set yet, found 'a'
  "F"(%x) {a=[1, ^2.0]} | an element like those before it, found '2.0'
  "F"(%x) {a=^1e39} | a number in the range of f32, found '1e39'
  "F"(%x) {a=region ^1} { graph() { return() } } | the number of a region of this node, found '1'
  constant {value=^f32[N] [1.0]} | a known element type and shape, found 'f32[N]'
  constant {value=f32[2] ^[1.0]} | 2 elements, found 1
  constant {value=i8[2] [1, ^300]} | an element of i8, found '300'
  constant {value=bool[] ^1} | an element of bool, found '1'
  constant {value=f16[1] ^[1e6]} | numbers in the range of f16, found '['
  constant {value=f64[1] [^1e999]} | a number in the range of f64, found '1e999'
  constant {value=f64[] ^nan(0x7ff8000000000001)} | an element of f64, found 'nan(0x7ff8000000000001)'
  constant {value=onnx99[0] ^[]} | '#' and a digest, found '['
^} | a node or 'return', found '}'
  return(^_) | a value, found '_'
  return(%x as ^y) | a value, found 'y'
  return(%x)} ^foo | 'function', found 'foo'
  return(%x)} function @f() { return() } ^function @f() { return() } | a function that is not defined yet, found '::f'
  return(%x)^ | '}', found end of text
  %y = nn.relu(^ | a value, found end of text
  %y = nn.relu(%x) // comment^ | a node or 'return', found end of text
"""


@pytest.mark.parametrize("case", CASES.strip("\n").splitlines())
def test_errors_point_at_their_cause(case: str) -> None:
    marked, _, problem = case.rpartition(" | ")
    column = marked.index("^")
    line = marked.replace("^", "", 1)
    caret = "".join("\t" if char == "\t" else " " for char in line[:column])
    with pytest.raises(ParseError) as error:
        parse(f"graph @main(%x: f32[4]) {{\n{line}\n", name="file.irc")
    assert str(error.value) == f"file.irc:2:{column + 1}: expected {problem}\n{line}\n{caret}^"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "<text>:1:1: expected 'graph', found end of text\n\n^"),
        ("modul {}", "<text>:1:1: expected 'graph', found 'modul'\nmodul {}\n^"),
        (
            "module {ir=3}",
            "<text>:1:9: expected 'ir_version' or 'opsets', found 'ir'\nmodule {ir=3}\n        ^",
        ),
        (
            'graph @"x(',
            '<text>:1:7: expected a name, found an unterminated string\ngraph @"x(\n      ^',
        ),
        (
            "graph(%x,\r\n %x)",
            (
                "<text>:2:2: expected a name that is not defined yet in this graph, found '%x'\n"
                " %x)\n ^"
            ),
        ),
    ],
)
def test_errors_outside_of_nodes(text: str, message: str) -> None:
    with pytest.raises(ParseError) as error:
        parse(text)
    assert str(error.value) == message


def test_every_truncated_text_is_refused() -> None:
    main = EXAMPLE.index("\nfunction")
    complete = {main - 1, main, main + 1, len(EXAMPLE) - 1}
    for end in sorted({*range(len(EXAMPLE))} - complete):
        with pytest.raises(ParseError):
            parse(EXAMPLE[:end])


def test_deep_nesting_is_an_error_not_a_crash() -> None:
    deep = 'graph() { "F"() { ' * 2000
    with pytest.raises(ParseError, match="at most 64 nested graphs"):
        parse(deep)


any_text = st.text(st.characters())
dtypes = st.sampled_from(
    [*DTYPES.values(), DType("onnx999", 0, "unknown"), DType("onnx-1", 0, "unknown")]
)
dims = st.one_of(st.none(), st.integers(0, 2**63 - 1), any_text.filter(bool))
shapes = st.one_of(st.none(), st.lists(dims, max_size=3).map(tuple))
tensor_types = st.builds(TensorType, st.none() | dtypes, shapes)
types = st.recursive(
    st.one_of(st.just(UNKNOWN), tensor_types, st.builds(SparseTensorType, dtypes, shapes)),
    lambda inner: st.one_of(
        st.builds(SequenceType, inner),
        st.builds(OptionalType, inner),
        st.builds(MapType, st.none() | dtypes, inner),
        st.builds(OpaqueType, any_text, any_text),
    ),
    max_leaves=3,
)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Payloads of random bits; strings are text and bytes."""
    dtype = draw(dtypes)
    shape = draw(st.lists(st.integers(0, 4), max_size=2).map(tuple))
    count = int(np.prod(shape))
    if dtype.kind == "unknown":
        return OpaqueTensor(dtype, shape, f"{dtype}x{shape}".encode().hex())
    if dtype.kind == "string":
        items = np.empty(count, object)
        items[:] = draw(st.lists(any_text | st.binary(), min_size=count, max_size=count))
        return ArrayTensor(items.reshape(shape), dtype)
    storage = numpy_dtype(dtype)
    data = draw(st.binary(min_size=count * storage.itemsize, max_size=count * storage.itemsize))
    return ArrayTensor(np.frombuffer(data, storage).reshape(shape), dtype)


sparse = st.builds(
    SparseTensor, tensors(), tensors(), st.lists(st.integers(0, 9), max_size=3).map(tuple)
)
kinds = [
    st.integers(),
    st.floats(),
    any_text | st.binary(),
    tensors(),
    sparse,
    types,
    st.builds(RegionRef, st.integers(0, 1)),
]
attributes = st.one_of(
    *kinds,
    *(st.lists(kind, max_size=3).map(tuple) for kind in kinds),
    st.builds(AttributeRef, any_text, st.sampled_from(["FLOAT", "SPARSE_TENSOR"]) | any_text),
    st.sampled_from(
        ["floats", "ints", "strings", "tensors", "graphs", "sparse_tensors", "type_protos"]
    ).map(EmptyList),
)


@settings(deadline=None)
@given(st.dictionaries(any_text, attributes, max_size=4))
def test_attributes_round_trip(attrs: dict[str, object]) -> None:
    module = with_attrs(**attrs)
    data = side_data(module)
    parsed = parse(to_text(module), data=data)
    assert to_text(parsed) == to_text(module)
    assert_same(module, parsed)
    assert all(
        isinstance(tensor, OpaqueTensor) for tensor in side_data(parse(to_text(module))).values()
    )


@settings(deadline=None)
@given(
    st.lists(any_text, min_size=6, max_size=6, unique=True),
    st.lists(any_text, min_size=6, max_size=6),
    types,
)
def test_names_round_trip(values: list[str], names: list[str], type_: object) -> None:
    graph = Graph(names[0], {names[1]: -1, "": 21})
    module = Module(graph)
    inputs = [graph.add_input(name, type_) for name in values[:2]]  # type: ignore[arg-type]
    op = f"{names[2]}::{names[3]}"
    node = graph.append(
        Node(
            op,
            [*inputs, None],
            outputs=[(v, UNKNOWN) for v in values[2:4]],
            name=names[4],
            overload=names[5],
        )
    )
    graph.set_outputs([node.outputs[0], inputs[0], inputs[1]], [values[4], values[0], values[5]])
    body = Graph(names[3], dict(graph.opsets))
    body.set_outputs([body.add_input(name, UNKNOWN) for name in values])
    function = Function(names[2], names[3], body, overload=names[5])
    function.attributes = (names[0],)
    module.functions[function.key] = function
    round_trip(module, exact="" not in values[2:4])


@st.composite
def scopes(draw: st.DrawFn) -> Module:
    """Nested graphs whose few names collide, whose nodes read any value that they may."""
    names = st.sampled_from(["a", "b", "c", "a.1", "0", ""])

    def fill(graph: Graph, outer: list[Value], depth: int) -> None:
        visible = list(outer)
        unique = draw(st.lists(names, unique=graph.parent is None, max_size=2))
        visible.extend(graph.add_input(name, UNKNOWN) for name in unique)
        for _ in range(draw(st.integers(0, 4))):
            reads = draw(st.lists(st.sampled_from([None, *visible]), max_size=2))
            regions = [
                Graph("r", graph.opsets) for _ in range(draw(st.integers(0, 2)) if depth else 0)
            ]
            outputs = [(name, UNKNOWN) for name in draw(st.lists(names, max_size=2))]
            node = graph.append(Node("::F", reads, outputs=outputs, regions=regions))
            for region in regions:
                fill(region, visible, depth - 1)
            visible.extend(node.outputs)
        results = draw(st.lists(st.sampled_from(visible), max_size=2)) if visible else []
        graph.set_outputs(results, [draw(st.just(value.name) | names) for value in results])

    graph = Graph("main", {"": 21})
    fill(graph, [], 2)
    return Module(graph)


@settings(deadline=None)
@given(scopes())
def test_scopes_round_trip(module: Module) -> None:
    parsed = round_trip(module, exact=False)
    assert [value.name for value in parsed.graph.inputs] == [
        value.name for value in module.graph.inputs
    ]


@settings(deadline=None, max_examples=300)
@given(
    st.integers(0, len(EXAMPLE)),
    st.integers(0, 6),
    st.text('%@_x1.,:=(){}[]<>#"\\/ f32region', max_size=4),
)
def test_a_damaged_text_is_parsed_or_refused(place: int, removed: int, added: str) -> None:
    text = EXAMPLE[:place] + added + EXAMPLE[place + removed :]
    try:
        module = parse(text)
    except ParseError:
        return
    assert to_text(parse(to_text(module))) == to_text(module)


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_every_half_is_written_shortly_and_exactly(name: str) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(numpy_dtype(DTYPES[name]))
    texts = [format_elements(ArrayTensor(halves[i : i + 1]), 1) for i in range(1 << 16)]
    odd = np.array([text is None for text in texts])
    assert odd.sum() == np.isnan(halves.astype(np.float32)).sum() - 1  # the usual NaN has a name
    literals = ", ".join(text[1:-1] if text else "nan" for text in texts)
    node = next(
        iter(parse(f"graph() {{ constant {{value={name}[65536] [{literals}]}} return() }}").graph)
    )
    payload = node.attrs["value"]
    assert isinstance(payload, Tensor)
    assert (odd | (payload.numpy().view(np.uint16) == halves.view(np.uint16))).all()


@given(st.floats(width=32) | st.floats())
def test_floats_of_attributes(value: float) -> None:
    text = format_float(value)
    assert content(parse_float(text, single=True)) == content(value)
    assert any(mark in text for mark in (".", "e", "inf", "nan"))
    with np.errstate(over="ignore"):
        assert text.endswith("f64") == (np.isfinite(value) and float(np.float32(value)) != value)


def test_digests_are_bound_to_side_data() -> None:
    weight = ArrayTensor(np.arange(20, dtype=np.float32))
    graph = Graph("main", {"": 21})
    graph.append(Node("constant", attrs={"value": weight}, outputs=[("w", weight.type)]))
    module = Module(graph)
    assert list(side_data(module)) == [weight.digest()]
    assert side_data(module, max_elements=20) == {}
    assert f"#{weight.digest()}" in to_text(module)
    assert " 19.0]" in to_text(module, max_elements=20)
    bound = next(iter(parse(to_text(module), data=side_data(module)).graph))
    assert bound.attrs["value"] is weight
    with pytest.raises(ParseError, match=r"expected the digest of a payload of type f32\[21\]"):
        parse(to_text(module).replace("f32[20]", "f32[21]"), data=side_data(module))


def chain(length: int) -> Module:
    """Convolutions, activations and their constants, in one chain."""
    graph = Graph("main", {"": 21})
    module, image = Module(graph), TensorType(F32, ("N", 4, 8, 8))
    value, payload = graph.add_input("x", image), ArrayTensor(np.arange(4, dtype=np.float32))
    for i in range(0, length, 4):
        kernel = OpaqueTensor(F32, (4, 4, 3, 3), f"{i:016x}")
        weight = Node("constant", attrs={"value": kernel}, outputs=[(f"w{i}", kernel.type)])
        bias = Node("constant", attrs={"value": payload}, outputs=[(f"b{i}", payload.type)])
        inputs = [value, graph.append(weight).output, graph.append(bias).output]
        conv = Node(
            "nn.conv", inputs, {"pads": (1, 1, 1, 1)}, outputs=[(f"c{i}", image)], name=f"/conv{i}"
        )
        value = graph.append(
            Node("::Sigmoid", [graph.append(conv).output], outputs=[(f"/s{i}", image)])
        ).output
    graph.set_outputs([value])
    return module


def test_work_is_linear_in_nodes() -> None:
    modules = [chain(1000), chain(4000)]
    texts = [to_text(module) for module in modules]
    small, large = (harness.calls_of(partial(to_text, module)) for module in modules)
    assert large < 4.1 * small
    small, large = (harness.calls_of(partial(parse, text)) for text in texts)
    assert large < 4.1 * small


def test_a_chain_of_20k_nodes() -> None:
    """Twenty times as many as Python calls can be nested. Other tests hold what a node costs."""
    module = chain(20_000)
    text = to_text(module)
    parsed = parse(text)
    assert len(parsed.graph) == 20_000
    assert to_text(parsed) == text


def test_an_operator_in_quotes_is_foreign_whatever_its_name() -> None:
    """The printer quotes an operator that is not lowered, so the parser must not lower it."""
    header = 'module {ir_version=10, opsets={"": 21}}'
    text = (
        header + '\n\ngraph @main(%x: f32[2]) {\n  %y = "Sigmoid"(%x) : f32[2]\n  return(%y)\n}\n'
    )
    module = parse(text)
    (node,) = module.graph
    assert node.op == "::Sigmoid"
    assert to_text(module) == text
    model = emit(module).model
    assert [(node.op_type, node.domain) for node in model.graph.node] == [("Sigmoid", "")]
    assert [node.op for node in from_model(model).graph] == ["sigmoid"]
