"""Names, edges of the graph, initializers listed as inputs, omitted inputs and outputs."""

from collections.abc import Iterator
from itertools import pairwise

from onnx import GraphProto, ModelProto, TensorProto

from ._build import (
    IR,
    ODD,
    Item,
    floats,
    graph,
    ints,
    model,
    node,
    opset,
    relu,
    simple,
    true,
    value,
)

ACME = [opset("acme", 1)]

NAMES = {
    "unicode": "größe/重み:0",
    "emoji": "\U0001f600",
    "combining": "e\u0301",
    "right_to_left": "\u202eabc\u05d0",
    "double_quote": 'say "hi"',
    "single_quote": "it's",
    "backslash": "a\\b\\n",
    "newline": "two\nlines",
    "carriage_return": "a\r\nb",
    "tab": "a\tb",
    "nul": "a\x00b",
    "space": " ",
    "spaces": "  lead and trail  ",
    "brackets": "a[0]{1}(2)<3>",
    "percent": "%0",
    "at": "@main",
    "number": "42",
    "minus": "-1",
    "keyword": "return",
    "none": "None",
    "comment": "a // b # c /* d */",
    "slash": "/model/layer.0/Add_output_0",
    "dots": "a.b..c",
    "line_separator": "a\u2028b\x85c",
    "long": "n" * 5000,
    "escape": "\x1b[31m",
    "formfeed": "a\x0c\x0bb",
    "byte_order_mark": "\ufeffx",
}


def named_everywhere(name: str) -> ModelProto:
    """The name, suitably suffixed, for values, nodes, graphs, domains, dimensions and operators."""
    scale, middle, result = f"{name}w", f"{name}m", f"{name}y"
    custom = node(name, [middle], [f"{name}c"], name)
    custom.name = name
    add = node("Add", [name, scale], [middle])
    add.name = name
    then = graph([node("Neg", [middle], [f"{name}t"])], [], [value(f"{name}t")], name=name)
    other = graph([node("Abs", [middle], [f"{name}e"])], [], [value(f"{name}e")], name=name)
    branch = node("If", ["cond"], [result], then_branch=then, else_branch=other)
    body = graph(
        [add, custom, branch],
        [value(name, shape=[name, 4])],
        [result],
        [floats(scale), true("cond")],
        name=name,
    )
    body.value_info.append(value(middle, shape=[name, 4]))
    return model(body, imports=[opset(name, 1)])


def strange_names() -> Iterator[Item]:
    """Every untidy name in every place."""
    for label, name in NAMES.items():
        yield label, named_everywhere(name)
    close = ["a", "A", "a ", " a", "a\u0301", "á", "a_0", "a.0", "%a", '"a"']
    chain = [node("Relu", [source], [target]) for source, target in pairwise(close)]
    yield "near_twins", simple(chain, close[:1], close[-1:])


def node_names() -> Iterator[Item]:
    """Missing, empty and repeated node names, also equal to value names."""
    for label, names in (
        ("unset", [None, None, None]),
        ("empty", ["", "", ""]),
        ("same", ["n", "n", "n"]),
        ("mixed", ["n", None, ""]),
        ("as_values", ["b", "x", "y"]),
        ("as_ops", ["Relu", "Relu_0", "Relu_1"]),
    ):
        nodes = [node("Relu", ["x"], ["a"]), node("Relu", ["a"], ["b"]), node("Relu", ["b"], ["y"])]
        for item, name in zip(nodes, names, strict=True):
            if name is not None:
                item.name = name
        yield label, simple(nodes)


def omitted() -> Iterator[Item]:
    """Empty names in the middle and at the end of inputs and outputs, written and cut off."""
    bounds = [floats("low", [], -1.0), floats("high", [], 1.0)]
    for label, inputs in (
        ("clip_no_low", ["x", "", "high"]),
        ("clip_no_high", ["x", "low", ""]),
        ("clip_short", ["x", "low"]),
        ("clip_neither_written", ["x", "", ""]),
        ("clip_neither_cut", ["x"]),
    ):
        yield label, simple([node("Clip", inputs, ["y"])], initializers=bounds)
    for label, outputs in (
        ("dropout_mask_empty", ["y", ""]),
        ("dropout_mask_cut", ["y"]),
        ("dropout_mask_unread", ["y", "m"]),
    ):
        yield label, simple([node("Dropout", ["x"], outputs)])
    weights = [floats("w", [1, 8, 4]), floats("r", [1, 8, 2])]
    sequence, state = value("x", shape=[3, 1, 4]), value("y", shape=[1, 1, 2])
    for label, outputs in (
        ("lstm_middle", ["", "y", ""]),
        ("lstm_end", ["", "", "y"]),
        ("lstm_cut", ["", "y"]),
    ):
        made = node("LSTM", ["x", "w", "r", "", "", "", "", ""], outputs, hidden_size=2)
        yield label, simple([made], [sequence], [state], weights)
    for label, inputs, outputs in (
        ("all_inputs_empty", ["", ""], ["y"]),
        ("first_input_empty", ["", "x"], ["y"]),
        ("outputs_around_empty", ["x"], ["", "y", ""]),
        ("many_trailing", ["x", "", "", "", "", ""], ["y", "", "", ""]),
    ):
        yield label, simple([node("Fancy", inputs, outputs, "acme")], imports=ACME)
    yield (
        ODD + "only_empty_outputs",
        simple([node("Fancy", ["x"], ["", ""], "acme"), node("Relu", ["x"], ["y"])], imports=ACME),
    )


def arities() -> Iterator[Item]:
    """Nodes with no inputs, no outputs, neither, the same input twice, many of each."""
    keep = node("Relu", ["x"], ["y"])
    yield (
        "no_inputs",
        simple([node("Make", [], ["k"], "acme"), node("Add", ["x", "k"], ["y"])], imports=ACME),
    )
    yield "random_normal", simple([node("RandomNormal", [], ["y"], shape=[2, 4])], [])
    yield "no_outputs", simple([node("Print", ["x"], [], "acme"), keep], imports=ACME)
    yield "no_outputs_last", simple([keep, node("Print", ["y"], [], "acme")], imports=ACME)
    yield ODD + "neither", simple([keep, node("Tick", [], [], "acme")], imports=ACME)
    yield "same_input_twice", simple([node("Mul", ["x", "x"], ["y"])])
    yield "same_input_ten_times", simple([node("Sum", ["x"] * 10, ["y"])])
    spread = [f"o{index}" for index in range(50)]
    yield (
        "many_outputs",
        simple(
            [node("Spread", ["x"], spread, "acme")], ["x"], [spread[7], spread[3]], imports=ACME
        ),
    )
    yield ODD + "no_op_type", simple([node("Relu", ["x"], ["y"]), node("", ["x"], ["z"])])
    hollow = relu()
    hollow.graph.node.add()
    yield ODD + "hollow_node", hollow


def outputs() -> Iterator[Item]:
    """What a graph may return: values twice, inputs, initializers, constants, in any order."""
    first, second = node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["z"])
    weight = value("w", shape=[4])
    yield "unread_node", simple([first, second])
    yield (
        "unread_output_of_read_node",
        simple([node("Split", ["x"], ["y", "z"], axis=1, num_outputs=2)]),
    )
    yield (
        "dead_chain",
        simple([first, second, node("Abs", ["z"], ["a"]), node("Exp", ["a"], ["b"])]),
    )
    yield "listed_twice", simple([first], outputs=["y", "y"])
    yield "listed_thrice_between", simple([first, second], outputs=["y", "z", "y", "y"])
    yield (
        "listed_twice_with_other_types",
        simple([first], outputs=["y", value("y", shape=[None, 4])]),
    )
    yield "also_read", simple([first, node("Neg", ["y"], ["z"])], outputs=["y", "z"])
    yield "reverse_order", simple([first, second], outputs=["z", "y"])
    yield "graph_input", simple([first], outputs=["x", "y"])
    yield "graph_input_only", simple([], outputs=["x"])
    yield "graph_input_twice", simple([], outputs=["x", "x"])
    yield "inputs_swapped", simple([], ["a", "b"], ["b", "a"])
    yield "initializer", simple([first], outputs=["y", weight], initializers=[floats("w")])
    yield "initializer_only", simple([], [], [weight], [floats("w")])
    yield "overridable_initializer", simple([], [weight], [weight], [floats("w")])
    yield "none", simple([first], outputs=[])
    yield ODD + "undefined", simple([first], outputs=["y", "nowhere"])
    yield ODD + "untyped", simple([first], outputs=[value("y", shape=None)])
    nameless = simple([first])
    nameless.graph.output.add()
    yield ODD + "hollow", nameless


def inputs() -> Iterator[Item]:
    """Unused inputs, inputs of scalars, inputs listed twice, no inputs."""
    first = node("Relu", ["x"], ["y"])
    yield "unused", simple([first], ["a", "x", "b"])
    yield (
        "all_unused",
        simple(
            [node("Constant", [], ["y"], value=floats("k"))], ["a", "b"], [value("y", shape=[4])]
        ),
    )
    yield "scalar", simple([first], [value("x", shape=[])], [value("y", shape=[])])
    yield "zero_dim", simple([first], [value("x", shape=[0, 4])], [value("y", shape=[0, 4])])
    yield ODD + "unknown_rank", simple([first], [value("x", shape=None)])
    yield (
        "unknown_dims",
        simple([first], [value("x", shape=[None, None])], [value("y", shape=[None, "M"])]),
    )
    yield (
        "empty_dim_param",
        simple([first], [value("x", shape=["", 4])], [value("y", shape=["", 4])]),
    )
    yield "negative_dim", simple([first], [value("x", shape=[-1, 4])], [value("y", shape=[-1, 4])])
    yield "expression_dim", simple([first], [value("x", shape=["2*N + floor(M/3)", 4])])
    yield ODD + "listed_twice", simple([first], ["x", "x"])


def overridable() -> Iterator[Item]:
    """Initializers listed as inputs: all (as IR 3 demands), some, in other orders, unused."""
    names = ["w", "v", "u"]
    tensors = [floats(name, [4], float(index)) for index, name in enumerate(names)]
    total = [node("Sum", ["x", *names], ["y"])]
    as_inputs = {name: value(name, shape=[4]) for name in names}
    orders = {
        "same_order": ["x", "w", "v", "u"],
        "reversed": ["u", "v", "w", "x"],
        "x_in_the_middle": ["v", "x", "u", "w"],
    }
    for label, order in orders.items():
        listed = [as_inputs.get(name, value(name)) for name in order]
        for ir in (3, 4, IR):
            yield (
                f"all_{label}_ir{ir}",
                simple(total, listed, initializers=tensors, version=9, ir=ir),
            )
    for label, order in {"one": ["v", "x"], "two": ["x", "u", "v"]}.items():
        listed = [as_inputs.get(name, value(name)) for name in order]
        for ir in (4, IR):
            yield f"{label}_ir{ir}", simple(total, listed, initializers=tensors, version=9, ir=ir)
    yield ODD + "none_ir3", simple(total, ["x"], initializers=tensors, version=9, ir=3)
    yield "unused_initializers", simple([node("Relu", ["x"], ["y"])], initializers=tensors)
    yield (
        "unused_overridable",
        simple([node("Relu", ["x"], ["y"])], ["x", *as_inputs.values()], initializers=tensors),
    )
    widened = [value("w", shape=["A"]), value("v", TensorProto.FLOAT, [None]), as_inputs["u"]]
    yield "wider_type_than_tensor", simple(total, ["x", *widened], initializers=tensors)
    other = [value("w", TensorProto.INT8, [9]), as_inputs["v"], as_inputs["u"]]
    yield ODD + "type_contradicts_tensor", simple(total, ["x", *other], initializers=tensors)
    shared = [node("Add", ["x", "w"], ["a"]), node("Mul", ["a", "w"], ["y"])]
    yield "read_twice", simple(shared, initializers=tensors[:1])
    twins = [floats("w"), floats("v")]
    yield "equal_twins", simple([node("Sum", ["x", "w", "v"], ["y"])], initializers=twins)


def emptiness() -> Iterator[Item]:
    """Empty graph, no graph, empty model, and names unset or explicitly empty."""
    yield "graph_of_a_name", model(GraphProto(name="empty"))
    yield ODD + "graph_of_nothing", model(GraphProto())
    yield ODD + "empty_graph_name", model(GraphProto(name=""))
    absent = relu()
    absent.ClearField("graph")
    yield ODD + "no_graph", absent
    yield ODD + "model_of_nothing", ModelProto()
    yield "only_initializers", simple([], [], [], [floats("w"), ints("v", [1])])
    yield "only_inputs", simple([], ["a", "b"], [])


def explicit_defaults() -> Iterator[Item]:
    """Optional fields set to the value they default to, which proto2 tells from unset."""
    made = relu()
    for field in ("producer_name", "producer_version", "domain", "doc_string"):
        setattr(made, field, "")
    made.model_version = 0
    made.opset_import[0].domain = ""
    made.graph.doc_string = ""
    for item in made.graph.node:
        item.name = item.domain = item.overload = item.doc_string = ""
    for item_info in (*made.graph.input, *made.graph.output):
        item_info.doc_string = ""
        item_info.type.denotation = ""
        item_info.type.tensor_type.shape.dim[1].denotation = ""
    made.metadata_props.add(key="", value="")
    made.graph.metadata_props.add()
    yield "everywhere", made
    half = simple([node("Relu", ["x"], ["a"]), node("Relu", ["a"], ["y"])])
    half.graph.node[0].domain = ""
    half.graph.node[1].doc_string = ""
    yield "on_some_nodes", half


def domains() -> Iterator[Item]:
    """Opset imports: order, foreign, unused, twice, missing, and both default domains."""
    base, custom = node("Relu", ["x"], ["a"]), node("Fancy", ["a"], ["y"], "acme")
    last = simple([base, custom])
    last.ClearField("opset_import")
    last.opset_import.extend([opset("acme", 3), opset("ai.onnx.ml", 3), opset("", 21)])
    yield "default_last", last
    for label, on_import, on_node, fits in (
        ("imported_ai_onnx_used_empty", "ai.onnx", "", True),
        ("imported_empty_used_ai_onnx", "", "ai.onnx", False),
        ("ai_onnx_both", "ai.onnx", "ai.onnx", False),
    ):
        made = simple([node("Relu", ["x"], ["y"], on_node)])
        made.opset_import[0].domain = on_import
        yield ("" if fits else ODD) + label, made
    both = simple(
        [node("Relu", ["x"], ["a"]), node("Relu", ["a"], ["y"], "ai.onnx")],
        imports=[opset("ai.onnx", 21)],
    )
    yield ODD + "both_names", both
    yield (
        "unused_foreign",
        simple([node("Relu", ["x"], ["y"])], imports=[opset("z", 1), opset("b", 2), opset("a", 3)]),
    )
    yield ODD + "same_twice", simple([node("Relu", ["x"], ["y"])], imports=[opset("", 21)])
    yield (
        ODD + "two_versions",
        simple([node("Relu", ["x"], ["y"])], imports=[opset("", 13), opset("", 9)]),
    )
    yield ODD + "domain_not_imported", simple([base, custom])
    only_foreign = simple([node("Fancy", ["x"], ["y"], "acme")])
    only_foreign.ClearField("opset_import")
    only_foreign.opset_import.append(opset("acme", 1))
    yield "no_default_import", only_foreign
    for label, version in (("zero", 0), ("negative", -1), ("from_the_future", 999)):
        yield (
            f"{ODD}version_{label}",
            simple([node("Fancy", ["x"], ["y"], "acme")], version=version, imports=ACME),
        )
    unversioned = simple([node("Fancy", ["x"], ["y"], "acme")])
    unversioned.opset_import.add(domain="acme")
    yield ODD + "version_unset", unversioned
    lookalike = simple(
        [node("Conv", ["x"], ["y"], "acme"), node("BatchNormalization", ["y"], ["z"], "acme")]
    )
    lookalike.opset_import.extend(ACME)
    yield "standard_names_in_foreign_domain", lookalike
    fused = node("FusedConv", ["x", "w"], ["y"], "com.microsoft", activation="Relu")
    contrib = simple([fused], initializers=[floats("w")])
    contrib.opset_import.extend([opset("com.microsoft", 1), opset("com.microsoft.nchwc", 1)])
    yield "onnxruntime_contrib", contrib
    yield ODD + "unknown_op_of_default_domain", simple([node("NoSuchOp", ["x"], ["y"])])


def disorder() -> Iterator[Item]:
    """Independent nodes in unusual but valid orders."""
    nodes = [node("Relu", ["x"], [name]) for name in ("c", "a", "b")]
    yield "names_not_sorted", simple([*nodes, node("Sum", ["b", "c", "a"], ["y"])])
    ladder = [node("Relu", ["x"], ["l0"]), node("Neg", ["x"], ["r0"])]
    for level in range(5):
        ladder.append(node("Add", [f"r{level}", f"l{level}"], [f"l{level + 1}"]))
        ladder.append(node("Mul", [f"l{level}", f"r{level}"], [f"r{level + 1}"]))
    yield "ladder", simple(ladder, outputs=["r5", "l5"])
