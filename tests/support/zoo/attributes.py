"""Attributes of every type: set, empty, special, untyped, documented, unordered."""

import struct
from collections.abc import Callable, Iterator

from onnx import AttributeProto, NodeProto, SparseTensorProto, TensorProto, TypeProto

from ._build import (
    ODD,
    Item,
    add_wire,
    copy,
    floats,
    graph,
    ints,
    node,
    opset,
    simple,
    tensor_type,
    value,
)

TYPES = [item for item in AttributeProto.AttributeType.items() if item[0] != "UNDEFINED"]
ACME = [opset("acme", 1)]


def sample_graph() -> AttributeProto:
    """A body that needs nothing from outside."""
    body = graph(
        [node("Constant", [], ["k"], value=floats("held", [1]))],
        [],
        [value("k", shape=[1])],
        name="body",
    )
    return AttributeProto(g=body)


def sample_sparse(name: str = "") -> SparseTensorProto:
    """Two values in a vector of six."""
    return SparseTensorProto(
        values=floats(name or "sparse", [2]), indices=ints("at", [1, 4]), dims=[6]
    )


def sample_type() -> TypeProto:
    """A sequence of matrices with a symbolic dimension."""
    result = TypeProto()
    result.sequence_type.elem_type.CopyFrom(tensor_type(TensorProto.FLOAT16, ["N", 3, None]))
    return result


SAMPLES: dict[str, Callable[[], AttributeProto]] = {
    "FLOAT": lambda: AttributeProto(f=0.1),
    "INT": lambda: AttributeProto(i=-(2**63)),
    "STRING": lambda: AttributeProto(s="naïve ☃".encode()),
    "TENSOR": lambda: AttributeProto(t=floats("held", [2, 2])),
    "GRAPH": sample_graph,
    "SPARSE_TENSOR": lambda: AttributeProto(sparse_tensor=sample_sparse()),
    "TYPE_PROTO": lambda: AttributeProto(tp=sample_type()),
    "FLOATS": lambda: AttributeProto(floats=[0.1, -0.0, 1e-45, 3.4e38]),
    "INTS": lambda: AttributeProto(ints=[2**63 - 1, 0, -1]),
    "STRINGS": lambda: AttributeProto(strings=[b"", b"a", "ß".encode()]),
    "TENSORS": lambda: AttributeProto(tensors=[floats("one", [1]), ints("two", [1, 2])]),
    "GRAPHS": lambda: AttributeProto(graphs=[sample_graph().g, sample_graph().g]),
    "SPARSE_TENSORS": lambda: AttributeProto(
        sparse_tensors=[sample_sparse(), sample_sparse("other")]
    ),
    "TYPE_PROTOS": lambda: AttributeProto(
        type_protos=[sample_type(), tensor_type(TensorProto.INT8, [])]
    ),
}


def sample(kind: str, name: str = "a") -> AttributeProto:
    """A filled attribute of the type."""
    result = SAMPLES[kind]()
    result.name = name
    result.type = getattr(AttributeProto, kind)
    return result


def fancy(*attributes: AttributeProto) -> NodeProto:
    """A node of an unknown domain."""
    result = node("Fancy", ["x"], ["y"], "acme")
    result.attribute.extend(attributes)
    return result


def every_type() -> Iterator[Item]:
    """Each type set, documented, and without its `type` field as IR 1 files have it."""
    for kind, _ in TYPES:
        plain = sample(kind)
        yield f"set_{kind}", simple([fancy(plain)], imports=ACME)
        untyped = copy(plain)
        untyped.ClearField("type")
        yield f"{ODD}no_type_{kind}", simple([fancy(untyped)], imports=ACME)
    documented = [sample(kind, f"a{number}") for kind, number in TYPES]
    for attribute in documented:
        attribute.doc_string = f"about {attribute.name}"
    yield "all_documented", simple([fancy(*documented)], imports=ACME)


def empty_lists() -> Iterator[Item]:
    """List attributes of no items; scalar ones that hold no value or an explicit default."""
    for kind, number in TYPES:
        hollow = AttributeProto(name="a", type=AttributeProto.AttributeType.Name(number))
        yield (
            f"{'' if kind.endswith('S') else ODD}empty_{kind}",
            simple([fancy(hollow)], imports=ACME),
        )
    zeros = [
        AttributeProto(name="f", type="FLOAT", f=0.0),
        AttributeProto(name="i", type="INT", i=0),
        AttributeProto(name="s", type="STRING", s=b""),
    ]
    yield "explicit_zeros", simple([fancy(*zeros)], imports=ACME)
    hollow_messages = [
        AttributeProto(name="t", type="TENSOR", t=TensorProto()),
        AttributeProto(name="tp", type="TYPE_PROTO", tp=TypeProto()),
        AttributeProto(name="ts", type="TENSORS", tensors=[TensorProto(), TensorProto()]),
        AttributeProto(name="sp", type="SPARSE_TENSOR", sparse_tensor=SparseTensorProto()),
    ]
    for attribute in hollow_messages:
        yield f"{ODD}hollow_message_{attribute.name}", simple([fancy(attribute)], imports=ACME)


def orders() -> Iterator[Item]:
    """Attributes neither in alphabetical nor in schema order, twice the same name, no name."""
    conv = node(
        "Conv",
        ["x", "w"],
        ["y"],
        strides=[1, 1],
        auto_pad="NOTSET",
        pads=[0] * 4,
        group=1,
        dilations=[1, 1],
    )
    boxes = {"inputs": [value("x", shape=[1, 1, 5, 5])], "outputs": [value("y", shape=None)]}
    boxes["outputs"] = [value("y", shape=[1, 1, 4, 4])]
    yield "not_alphabetical", simple([conv], initializers=[floats("w", [1, 1, 2, 2])], **boxes)
    names = ["zeta", "Alpha", "alpha", "_", "ALPHA", "1", "ünïcode", "a b", 'q"uote', "new\nline"]
    yield "strange_names", simple([fancy(*(sample("INT", name) for name in names))], imports=ACME)
    twice = [sample("INT", "same"), sample("FLOAT", "same"), sample("INT", "same")]
    yield ODD + "same_name_thrice", simple([fancy(*twice)], imports=ACME)
    nameless = sample("INT")
    nameless.ClearField("name")
    yield ODD + "nameless", simple([fancy(nameless)], imports=ACME)
    yield ODD + "empty_name", simple([fancy(sample("INT", ""))], imports=ACME)
    on_known = node("Relu", ["x"], ["y"], unexpected=1)
    yield ODD + "unknown_attribute_of_known_op", simple([on_known])


def float_specials() -> Iterator[Item]:
    """Infinities, NaN, signed zero and denormals, one by one and in a list."""
    specials = {
        "inf": float("inf"),
        "minus_inf": float("-inf"),
        "nan": float("nan"),
        "minus_zero": -0.0,
        "denormal": 1e-45,
        "max": 3.4028234663852886e38,
    }
    for name, number in specials.items():
        yield name, simple([fancy(AttributeProto(name="f", type="FLOAT", f=number))], imports=ACME)
        yield f"leaky_relu_{name}", simple([node("LeakyRelu", ["x"], ["y"], alpha=number)])
    yield (
        "list",
        simple(
            [fancy(AttributeProto(name="f", type="FLOATS", floats=specials.values()))], imports=ACME
        ),
    )
    payloads = struct.pack("<4I", 0x7F800001, 0xFFC12345, 0x7FBFFFFF, 0xFF800001)
    listed = add_wire(AttributeProto(name="f", type="FLOATS"), 7, payloads)
    yield "list_of_nan_payloads", simple([fancy(listed)], imports=ACME)
    signalling = AttributeProto(name="f", type="FLOAT")
    signalling.MergeFromString(b"\x15" + payloads[:4])
    yield "signalling_nan", simple([fancy(signalling)], imports=ACME)


def byte_strings() -> Iterator[Item]:
    """Strings that are not UTF-8 text, or text that a printer has to escape."""
    samples = [
        b"\xff\xfe\x00",
        b"\xed\xa0\x80",
        b"\x00",
        b'"\\\n\r\t',
        b"{[(<%@>)]}",
        "\u2028\U0001f600".encode(),
        b" ",
    ]
    for index, item in enumerate(samples):
        yield (
            f"string_{index}",
            simple([fancy(AttributeProto(name="s", type="STRING", s=item))], imports=ACME),
        )
    yield (
        "strings",
        simple([fancy(AttributeProto(name="s", type="STRINGS", strings=samples))], imports=ACME),
    )
    yield (
        "long_string",
        simple([fancy(AttributeProto(name="s", type="STRING", s=b"ab\n" * 20000))], imports=ACME),
    )


def contradictions() -> Iterator[Item]:
    """A type that does not match its field, two fields at once, types no enum knows."""
    wrong = AttributeProto(name="a", type="INT", f=1.5)
    both = AttributeProto(name="a", type="INT", f=1.5, i=3, ints=[1], t=floats("held"))
    undefined = AttributeProto(name="a", type="UNDEFINED", i=3)
    unknown = AttributeProto(name="a", i=3)
    unknown.MergeFromString(b"\xa0\x01\x63")
    reference = AttributeProto(name="a", type="INT", ref_attr_name="outer")
    shadowed = AttributeProto(name="a", type="INT", ref_attr_name="outer", i=3)
    named = {
        "type_mismatch": wrong,
        "many_fields": both,
        "type_undefined": undefined,
        "type_unknown_to_enum": unknown,
        "reference_in_main_graph": reference,
        "reference_with_value": shadowed,
        "no_value_no_type": AttributeProto(name="a"),
        "empty_reference": AttributeProto(name="a", type="INT", i=1, ref_attr_name=""),
    }
    for name, attribute in named.items():
        yield ODD + name, simple([fancy(attribute)], imports=ACME)


def heavy() -> Iterator[Item]:
    """Tensors and graphs with trimmings inside attributes."""
    tensor = floats("t", [2])
    tensor.doc_string = "documented"
    tensor.metadata_props.add(key="k", value="v")
    raw = TensorProto(
        data_type=TensorProto.BFLOAT16, dims=[3], raw_data=b"\x80\x3f\xc0\x7f\x00\x80"
    )
    yield (
        "tensor_trimmings",
        simple(
            [fancy(AttributeProto(name="ts", type="TENSORS", tensors=[tensor, raw]))], imports=ACME
        ),
    )
    body = sample_graph().g
    body.doc_string = "body\nof two lines"
    body.initializer.append(floats("w"))
    body.node.append(node("Add", ["k", "x"], ["unread"]))
    body.metadata_props.add(key="k", value="v")
    yield (
        "graph_trimmings",
        simple([fancy(AttributeProto(name="g", type="GRAPH", g=body))], imports=ACME),
    )
    inner = fancy(AttributeProto(name="g", type="GRAPH", g=body))
    inner.output[0] = "z"
    outer = graph([inner], [], ["z"], name="outer")
    yield (
        "graph_in_graph",
        simple([fancy(AttributeProto(name="g", type="GRAPH", g=outer))], imports=ACME),
    )
