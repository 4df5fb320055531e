"""Model-local functions: attribute references, defaults, overloads, nesting, annotations."""

from collections.abc import Iterator

import onnx.parser
from onnx import AttributeProto, FunctionProto, NodeProto

from ._build import (
    IR,
    ODD,
    OPSET,
    Item,
    copy,
    floats,
    graph,
    node,
    opset,
    simple,
    text,
    true,
    value,
)
from .attributes import TYPES, sample

LOCAL = [opset("local", 1), opset("acme", 1)]


def function(
    nodes: list[NodeProto],
    attributes: tuple[str, ...] = (),
    defaults: tuple[AttributeProto, ...] = (),
    name: str = "f",
    version: int = OPSET,
) -> FunctionProto:
    """A function of domain `local` from x to y."""
    return FunctionProto(
        name=name,
        domain="local",
        input=["x"],
        output=["y"],
        node=nodes,
        attribute=attributes,
        attribute_proto=defaults,
        opset_import=[opset("", version), *LOCAL],
    )


def call(*attributes: AttributeProto, op: str = "f") -> NodeProto:
    """A call of the function."""
    result = node(op, ["x"], ["y"], "local")
    result.attribute.extend(attributes)
    return result


def reference(kind: str, outer: str, name: str = "a") -> AttributeProto:
    """A reference to the function's attribute."""
    return AttributeProto(name=name, ref_attr_name=outer, type=kind)


def references() -> Iterator[Item]:
    """References of every attribute type: required, with a default, with an overridden default."""
    for kind, _ in TYPES:
        body = node("Fancy", ["x"], ["y"], "acme", a=reference(kind, "outer"))
        required = function([body], attributes=("outer",))
        given = call(sample(kind, "outer"))
        yield f"required_{kind}", simple([given], imports=LOCAL, functions=[required])
        optional = function([body], defaults=(sample(kind, "outer"),))
        yield f"default_{kind}", simple([call()], imports=LOCAL, functions=[optional])
        yield f"overridden_{kind}", simple([given], imports=LOCAL, functions=[optional])


def reference_forms() -> Iterator[Item]:
    """References to real operators' attributes, from nested bodies, renamed, untyped, unused."""
    leaky = node("LeakyRelu", ["x"], ["y"], alpha=reference("FLOAT", "slope", "alpha"))
    default = AttributeProto(name="slope", type="FLOAT", f=0.25, doc_string="a documented default")
    yield (
        "leaky_relu",
        simple([call()], imports=LOCAL, functions=[function([leaky], defaults=(default,))]),
    )
    same = node("LeakyRelu", ["x"], ["y"], alpha=reference("FLOAT", "alpha", "alpha"))
    yield (
        "same_name",
        simple(
            [call(sample("FLOAT", "alpha"))],
            imports=LOCAL,
            functions=[function([same], ("alpha",))],
        ),
    )
    constant = node("Constant", [], ["k"], value_float=reference("FLOAT", "slope", "value_float"))
    nodes = [constant, node("Mul", ["x", "k"], ["y"])]
    yield (
        "constant",
        simple([call()], imports=LOCAL, functions=[function(nodes, defaults=(default,))]),
    )
    branches = [
        graph([copy(constant)], [], [value("k", shape=())], name=name) for name in ("then", "else")
    ]
    inside = node("If", ["cond"], ["y"], then_branch=branches[0], else_branch=branches[1])
    cond = node("Constant", [], ["cond"], value=true("t"))
    yield (
        "in_branches",
        simple([call()], imports=LOCAL, functions=[function([cond, inside], defaults=(default,))]),
    )
    passed = node("f", ["x"], ["y"], "local", slope=reference("FLOAT", "steepness", "slope"))
    outer = function([passed], attributes=("steepness",), name="outer")
    yield (
        "passed_down",
        simple(
            [call(sample("FLOAT", "steepness"), op="outer")],
            imports=LOCAL,
            functions=[outer, function([leaky], attributes=("slope",))],
        ),
    )
    unused = function([node("Relu", ["x"], ["y"])], attributes=("spare",), defaults=(default,))
    yield (
        "unused_attributes",
        simple([call(sample("INT", "spare"))], imports=LOCAL, functions=[unused]),
    )
    untyped = copy(leaky)
    untyped.attribute[0].ClearField("type")
    yield (
        ODD + "untyped",
        simple([call()], imports=LOCAL, functions=[function([untyped], defaults=(default,))]),
    )
    documented = copy(leaky)
    documented.attribute[0].doc_string = "a documented reference"
    yield (
        "documented",
        simple([call()], imports=LOCAL, functions=[function([documented], defaults=(default,))]),
    )


def annotated() -> Iterator[Item]:
    """Doc strings, metadata and value_info on functions and in their nodes."""
    made = function([node("Relu", ["x"], ["t"]), node("Neg", ["t"], ["y"])])
    made.doc_string = 'A function.\n"quoted" {braced} <angled>\n'
    made.metadata_props.add(key="pkg", value="acme")
    made.metadata_props.add(key="", value="")
    made.value_info.extend([value("t"), value("x", shape=None), value("y", shape=["M", None])])
    made.node[0].doc_string = "inside"
    made.node[0].name = "same"
    made.node[1].name = "same"
    made.node[1].metadata_props.add(key="k", value="v")
    yield "everything", simple([call()], imports=LOCAL, functions=[made])
    stray = copy(made)
    stray.value_info.append(value("nowhere"))
    stray.value_info.add(name="t")
    yield "stray_value_info", simple([call()], imports=LOCAL, functions=[stray])


def sharing() -> Iterator[Item]:
    """Overloads, equal names in other domains, several calls, nesting, order, no call at all."""
    base = function([node("Relu", ["x"], ["y"])])
    overloads = [copy(base) for _ in range(3)]
    overloads[1].overload = "second"
    overloads[1].node[0].op_type = "Neg"
    overloads[2].overload = "third"
    overloads[2].domain = "acme"
    calls = [
        node("f", ["x"], ["p"], "local"),
        node("f", ["p"], ["q"], "local"),
        node("f", ["q"], ["y"], "acme"),
    ]
    calls[1].overload = "second"
    calls[2].overload = "third"
    yield "overloads", simple(calls, imports=LOCAL, functions=overloads)
    yield "overloads_reversed", simple(calls, imports=LOCAL, functions=overloads[::-1])
    unused = function([node("Abs", ["x"], ["y"])], name="unused")
    yield "unused_function", simple([call()], imports=LOCAL, functions=[unused, base])
    yield (
        "only_unused_functions",
        simple([node("Relu", ["x"], ["y"])], imports=LOCAL, functions=[unused, base]),
    )
    repeated = [
        node("f", ["x"], ["p"], "local"),
        node("f", ["p"], ["y"], "local"),
        node("f", ["x"], ["r"], "local"),
    ]
    yield "called_thrice", simple(repeated, imports=LOCAL, functions=[base])
    chain = [function([call(op=f"f{level + 1}")], name=f"f{level}") for level in range(6)]
    chain.append(function([node("Relu", ["x"], ["y"])], name="f6"))
    yield "calls_6_deep_callers_first", simple([call(op="f0")], imports=LOCAL, functions=chain)
    yield (
        "calls_6_deep_callees_first",
        simple([call(op="f0")], imports=LOCAL, functions=chain[::-1]),
    )
    yield ODD + "function_twice", simple([call()], imports=LOCAL, functions=[base, base])
    knot = function([call()])
    yield ODD + "calls_itself", simple([call()], imports=LOCAL, functions=[knot])
    fake = copy(base)
    fake.domain, fake.name = "", "Relu"
    fake.node[0].op_type = "Neg"
    yield (
        ODD + "overrides_standard_op",
        simple([node("Relu", ["x"], ["y"])], imports=LOCAL, functions=[fake]),
    )
    undeclared = call()
    undeclared.overload = "absent"
    yield ODD + "absent_overload", simple([undeclared], imports=LOCAL, functions=[base])


def signatures() -> Iterator[Item]:
    """Functions of odd arities: none, omitted, trailing, returned inputs, repeated outputs."""
    none = FunctionProto(name="f", domain="local", opset_import=[opset("", OPSET)])
    yield (
        ODD + "nothing",
        simple(
            [node("f", [], [], "local"), node("Relu", ["x"], ["y"])],
            imports=LOCAL,
            functions=[none],
        ),
    )
    source = function([node("Constant", [], ["y"], value=floats("k"))])
    source.ClearField("input")
    yield "no_inputs", simple([node("f", [], ["y"], "local")], imports=LOCAL, functions=[source])
    through = FunctionProto(
        name="f",
        domain="local",
        input=["x", "z"],
        output=["z", "x"],
        opset_import=[opset("", OPSET)],
    )
    yield (
        ODD + "returns_its_inputs",
        simple(
            [node("f", ["x", "x"], ["y", "unread"], "local")], imports=LOCAL, functions=[through]
        ),
    )
    clip = FunctionProto(
        name="f",
        domain="local",
        input=["x", "low", "high"],
        output=["y", "spare"],
        node=[node("Clip", ["x", "low", "high"], ["y"]), node("Shape", ["x"], ["spare"])],
        opset_import=[opset("", OPSET)],
    )
    for name, inputs, outputs in (
        ("all", ["x", "x", "x"], ["y", "s"]),
        ("omitted_middle", ["x", "", "x"], ["y", ""]),
        ("omitted_end", ["x", "", ""], ["y"]),
        ("short", ["x"], ["y"]),
        ("first_output_omitted", ["x"], ["", "y"]),
    ):
        yield (
            f"arity_{name}",
            simple([node("f", inputs, outputs, "local")], imports=LOCAL, functions=[clip]),
        )
    twice = function([node("Relu", ["x"], ["y"])])
    twice.output.append("y")
    yield (
        ODD + "output_twice",
        simple([node("f", ["x"], ["y", "z"], "local")], imports=LOCAL, functions=[twice]),
    )
    dead = function(
        [node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["dead"]), node("Split", ["x"], ["", "p"])]
    )
    yield "dead_nodes", simple([call()], imports=LOCAL, functions=[dead])


def imports() -> Iterator[Item]:
    """Opset imports of functions: another version or order, missing, foreign, empty."""
    relu = [node("Relu", ["x"], ["y"])]
    yield "other_version", simple([call()], imports=LOCAL, functions=[function(relu, version=14)])
    squeeze = function(
        [node("Unsqueeze", ["x"], ["u"], axes=[0]), node("Squeeze", ["u"], ["y"], axes=[0])],
        version=11,
    )
    yield ODD + "incompatible_version", simple([call()], imports=LOCAL, functions=[squeeze])
    reordered = function(relu)
    reordered.ClearField("opset_import")
    reordered.opset_import.extend([*LOCAL, opset("", OPSET), opset("never.used", 7)])
    yield "default_domain_last", simple([call()], imports=LOCAL, functions=[reordered])
    spelled = function([node("Relu", ["x"], ["y"], "ai.onnx")])
    spelled.opset_import[0].domain = "ai.onnx"
    yield ODD + "ai_onnx_spelled_out", simple([call()], imports=LOCAL, functions=[spelled])
    explicit = function(relu)
    explicit.opset_import[0].domain = ""
    yield "explicit_empty_domain", simple([call()], imports=LOCAL, functions=[explicit])
    none = function(relu)
    none.ClearField("opset_import")
    yield ODD + "no_imports", simple([call()], imports=LOCAL, functions=[none])
    foreign = function([node("Scaler", ["x"], ["y"], "ai.onnx.ml", scale=[1.0])])
    foreign.opset_import.append(opset("ai.onnx.ml", 3))
    yield "ml_only_in_function", simple([call()], imports=LOCAL, functions=[foreign])


BODIES = {
    "if_capturing_function_input": (
        """f (c, x) => (y) {
        r = Relu (x)
        y = If (c) <then_branch = t () => (float[N] a) { a = Neg (x) },
            else_branch = e () => (float[N] d) { d = Abs (r) }>
    }"""
    ),
    "loop_with_reference": (
        """f <n>(c, x) => (y) {
        k = Constant <value_int: int = @n> ()
        y = Loop (k, c, x)
            <body = l (int64 i, bool p, float[N] v) => (bool q, float[N] w) { q = Identity (p) w = Add (v, x) }>
    }"""
    ),
    "two_levels_sharing_names": (
        """f (c, x) => (y) {
        y = If (c) <
            then_branch = t () => (float[N] y) {
                y = If (c) <then_branch = tt () => (float[N] a) { a = Neg (x) },
                    else_branch = te () => (float[N] b) { b = Abs (x) }>
            },
            else_branch = e () => (float[N] a) { a = Exp (x) }>
    }"""
    ),
    "same_names_as_main_graph": (
        """f (b, main_x) => (r) { x = Not (b) y = Cast <to = 1> (x) r = Add (y, main_x) }"""
    ),
    "defaults_of_mixed_types": (
        """f <n, alpha: float = 0.5, names: strings = ["a", "b"]>(c, x) => (y) {
        t = LeakyRelu <alpha: float = @alpha> (x)
        y = acme.Fancy <labels: strings = @names, n: int = @n> (t, c)
    }"""
    ),
    "call_inside_branch": (
        """f <n>(c, x) => (y) {
        y = If (c) <then_branch = t () => (float[N] a) { a = local.g <n: int = @n> (x) },
            else_branch = e () => (float[N] d) { d = Abs (x) }>
    }"""
    ),
}

TEXT = """<ir_version: {ir}, opset_import: ["" : {opset}, "local" : 1, "acme" : 1]>
main (bool b, float[N] x) => (float[N] y) {{ r = Relu (x) y = local.f {attributes} (b, r) }}
<domain: "local", opset_import: ["" : {opset}, "local" : 1, "acme" : 1]> {body}
<domain: "local", opset_import: ["" : {opset}]> g <n>(x) => (y) {{ y = Gelu (x) }}
"""


def bodies() -> Iterator[Item]:
    """Functions that hold control flow, written in onnx's text syntax."""
    for name, body in BODIES.items():
        attributes = "<n = 2>" if "f <n" in body else ""
        yield name, text(TEXT.format(ir=IR, opset=OPSET, attributes=attributes, body=body))


def from_branches() -> Iterator[Item]:
    """Calls from inside the main graph's branches, one of them the only call."""
    base = onnx.parser.parse_function(
        '<domain: "local", opset_import: ["" : 21]> f (x) => (y) { y = Relu (x) }'
    )
    branches = [
        graph([node("f", ["x"], [name], "local")], [], [value(name)], name=name)
        for name in ("then", "else")
    ]
    branch = node("If", ["cond"], ["y"], then_branch=branches[0], else_branch=branches[1])
    yield (
        "only_in_branches",
        simple([branch], ["x"], ["y"], [true("cond")], imports=LOCAL, functions=[base]),
    )
    yield (
        "everywhere",
        simple(
            [branch, node("f", ["y"], ["z"], "local")],
            ["x"],
            ["z"],
            [true("cond")],
            imports=LOCAL,
            functions=[base],
        ),
    )
