"""If, Loop and Scan: captures at every depth, shadowed names, sibling branches, deep nesting."""

from collections.abc import Iterator

from onnx import NodeProto, SparseTensorProto, TensorProto

from ._build import (
    IR,
    ODD,
    OPSET,
    Item,
    copy,
    floats,
    graph,
    ints,
    node,
    opset,
    simple,
    text,
    true,
    value,
)

HEADER = f'<ir_version: {IR}, opset_import: ["" : {OPSET}, "acme" : 1]>\n'
KINDS = ("If", "Loop", "Scan")
SOURCES = ("node", "input", "initializer", "overridable", "sparse", "constant", "later_unused_node")
SHAPE = value("y", TensorProto.INT64, ["R"])


def wrap(kind: str, body: list[NodeProto], result: str, level: int) -> list[NodeProto]:
    """Nodes that run `body` inside a control flow node, with an output of its own name."""
    out = f"{kind.lower()}{level}"
    inner = value(result, shape=None)
    if kind == "If":
        other = graph(
            [node("Identity", ["x"], [f"else{level}"])],
            [],
            [value(f"else{level}", shape=None)],
            name="else",
        )
        then = graph(body, [], [inner], name=f"then{level}")
        return [node("If", ["cond"], [out], then_branch=then, else_branch=other)]
    if kind == "Loop":
        cond_in, cond_out = (
            value(f"{name}{level}", TensorProto.BOOL, ()) for name in ("cond_in", "cond_out")
        )
        step = value(f"step{level}", TensorProto.INT64, ())
        keep = node("Identity", [cond_in.name], [cond_out.name])
        return [
            node(
                "Loop",
                ["trip", "cond"],
                [out],
                body=graph([keep, *body], [step, cond_in], [cond_out, inner]),
            )
        ]
    row = value(f"row{level}", shape=[4])
    return [node("Scan", ["x"], [out], body=graph(body, [row], [inner]), num_scan_inputs=1)]


def captured(source: str) -> tuple[list[NodeProto], list[TensorProto], list[SparseTensorProto]]:
    """What defines the value `c` that the innermost body reads."""
    sparse = SparseTensorProto(values=floats("c", [1]), indices=ints("c_at", [2]), dims=[4])
    return {
        "node": ([node("Relu", ["x"], ["c"])], [], []),
        "input": ([], [], []),
        "initializer": ([], [floats("c")], []),
        "overridable": ([], [floats("c")], []),
        "sparse": ([], [], [sparse]),
        "constant": ([node("Constant", [], ["c"], value=floats("held"))], [], []),
        "later_unused_node": ([node("Split", ["x"], ["c", "unread"], axis=1)], [], []),
    }[source]


def captures() -> Iterator[Item]:
    """Every kind of body reading every kind of outer value, one to three levels down."""
    for source in SOURCES:
        before, initializers, sparse = captured(source)
        inputs = ["x", "c"] if source in ("input", "overridable") else ["x"]
        for kind in KINDS:
            for depth in (1, 2, 3):
                nodes, result = [node("Neg", ["c"], ["inner"])], "inner"
                for level in range(depth, 0, -1):
                    nodes, result = wrap(kind, nodes, result, level), f"{kind.lower()}{level}"
                made = simple(
                    [*before, *nodes, node("Shape", [result], ["y"])],
                    inputs,
                    [SHAPE],
                    [true("cond"), ints("trip", [3], []), *initializers],
                )
                made.graph.sparse_initializer.extend(sparse)
                yield f"{kind}_{source}_depth{depth}", made


def mixed_kinds() -> Iterator[Item]:
    """Bodies of different kinds inside each other, each level reading all the levels around it."""
    for outer in KINDS:
        for inner in KINDS:
            deep = wrap(inner, [node("Add", ["c", "mid"], ["deep"])], "deep", 2)
            body = [node("Abs", ["c"], ["mid"]), *deep]
            nodes = [node("Relu", ["x"], ["c"]), *wrap(outer, body, f"{inner.lower()}2", 1)]
            nodes.append(node("Shape", [f"{outer.lower()}1"], ["y"]))
            yield (
                f"{outer}_around_{inner}",
                simple(nodes, ["x"], [SHAPE], [true("cond"), ints("trip", [2], [])]),
            )


SHADOWS = {
    "branch_output_named_as_node_output": """
        y = If (b) <then_branch = t () => (float[N] y) { y = Neg (x) },
            else_branch = e () => (float[N] y) { y = Abs (x) }>
    """,
    "siblings_share_names": """
        y = If (b) <
            then_branch = t () => (float[N] o) <float[1] w = {1.0}> { s = Neg (x) o = Add (s, w) },
            else_branch = e () => (float[N] o) <float[1] w = {2.0}> { s = Abs (x) o = Mul (s, w) }>
    """,
    "two_ifs_share_names": """
        p = If (b) <then_branch = t () => (float[N] o) { o = Neg (x) },
            else_branch = e () => (float[N] q) { q = Abs (x) }>
        y = If (b) <then_branch = t () => (float[N] o) { o = Neg (p) },
            else_branch = e () => (float[N] q) { q = Abs (p) }>
    """,
    "inner_name_reused_outside_later": """
        p = If (b) <then_branch = t () => (float[N] o) { o = Neg (x) },
            else_branch = e () => (float[N] q) { q = Abs (x) }>
        o = Relu (p)
        q = Relu (o)
        y = Add (o, q)
    """,
    "same_graph_name_everywhere": """
        y = If (b) <then_branch = main () => (float[N] o) { o = Neg (x) },
                    else_branch = main () => (float[N] q) { q = Abs (x) }>
    """,
    "branch_returns_own_initializer": """
        y = If (b) <then_branch = t () => (float[2] w) <float[2] w = {1.0, 2.0}> { },
                    else_branch = e () => (float[2] v) <float[2] v = {3.0, 4.0}> { }>
    """,
    "branch_returns_value_twice": """
        y, z = If (b) <then_branch = t () => (float[N] o, float[N] o) { o = Neg (x) },
                       else_branch = e () => (float[N] q, float[N] r) { q = Abs (x) r = Abs (q) }>
    """,
    "branch_with_unused_nodes": """
        y = If (b) <then_branch = t () => (float[N] o) { dead = Neg (x) o = Neg (x) deader = Add (dead, o) },
                    else_branch = e () => (float[N] q) <float[1] unused = {1.0}, float[N] nowhere> { q = Abs (x) }>
    """,
    "captured_only_in_innermost_of_two_branches": """
        r = Relu (x)
        s = Abs (x)
        y = If (b) <
            then_branch = t () => (float[N] o) {
                o = If (b) <then_branch = tt () => (float[N] a) { a = Neg (r) },
                    else_branch = te () => (float[N] c) { c = Neg (s) }>
            },
            else_branch = e () => (float[N] q) {
                q = If (b) <then_branch = et () => (float[N] d) { d = Exp (s) },
                    else_branch = ee () => (float[N] f) { f = Exp (r) }>
            }>
    """,
    "condition_computed_inside": """
        y = If (b) <
            then_branch = t () => (float[N] o) {
                nb = Not (b)
                o = If (nb) <then_branch = tt () => (float[N] a) { a = Neg (x) },
                    else_branch = te () => (float[N] c) { c = Abs (x) }>
            },
            else_branch = e () => (float[N] q) { q = Abs (x) }>
    """,
    "unread_if": """
        unread = If (b) <then_branch = t () => (float[N] o) { o = Neg (x) },
            else_branch = e () => (float[N] q) { q = Abs (x) }>
        y = Relu (x)
    """,
    "loop_carried_and_scanned": """
        n = Constant <value_int = 3> ()
        y, ys = Loop (n, b, x) <body = l (int64 i, bool c, float[N] v) => (bool c2, float[N] v2, float[N] s) {
            c2 = Identity (c) v2 = Add (v, x) s = Neg (v) }>
    """,
    "loop_without_trip_count": """
        y = Loop ("", b, x)
            <body = l (int64 i, bool c, float[N] v) => (bool c2, float[N] v2) { c2 = Not (c) v2 = Add (v, x) }>
    """,
    "loop_body_returns_its_inputs": """
        n = Constant <value_int = 3> ()
        y = Loop (n, b, x) <body = l (int64 i, bool c, float[N] v) => (bool c, float[N] v) { }>
    """,
    "if_inside_loop_reads_loop_state": """
        n = Constant <value_int = 3> ()
        y = Loop (n, b, x) <body = l (int64 i, bool c, float[N] v) => (bool c2, float[N] v2) {
            c2 = Identity (c)
            v2 = If (c) <then_branch = t () => (float[N] o) { o = Add (v, x) },
                else_branch = e () => (float[N] q) { q = Sub (v, x) }>
        }>
    """,
}

ODD_SHADOWS = {
    "branch_returns_outer_value": (
        """
        r = Relu (x)
        y = If (b) <then_branch = t () => (float[N] r) { }, else_branch = e () => (float[N] x) { }>
    """
    ),
    "node_output_shadows_node_output": (
        """
        r = Relu (x)
        s = If (b) <then_branch = t () => (float[N] r) { r = Neg (x) },
            else_branch = e () => (float[N] q) { q = Abs (r) }>
        y = Add (r, s)
    """
    ),
    "node_output_shadows_graph_input": (
        """
        s = If (b) <then_branch = t () => (float[N] x) { x = acme.Make () },
            else_branch = e () => (float[N] q) { q = Abs (x) }>
        y = Add (x, s)
    """
    ),
    "read_outer_then_shadow_it": (
        """
        r = Relu (x)
        s = If (b) <then_branch = t () => (float[N] r) { a = Neg (r) r = Exp (a) },
            else_branch = e () => (float[N] r) { r = Abs (r) }>
        y = Add (r, s)
    """
    ),
    "initializer_shadows_node_output": (
        """
        r = Relu (x)
        s = If (b) <then_branch = t () => (float[N] o) <float[1] r = {7.0}> { o = Neg (r) },
            else_branch = e () => (float[N] q) { q = Abs (r) }>
        y = Add (r, s)
    """
    ),
    "loop_state_shadows_graph_input": (
        """
        n = Constant <value_int = 3> ()
        z = Loop (n, b, x)
            <body = l (int64 n, bool b, float[N] x) => (bool b2, float[N] x2) { b2 = Identity (b) x2 = Neg (x) }>
        y = Add (z, x)
    """
    ),
    "shadow_two_levels_down_only": (
        """
        r = Relu (x)
        s = If (b) <
            then_branch = t () => (float[N] o) {
                a = Neg (r)
                d = If (b) <then_branch = tt () => (float[N] r) { r = Exp (a) },
                    else_branch = te () => (float[N] c) { c = Abs (r) }>
                o = Add (d, r)
            },
            else_branch = e () => (float[N] q) { q = Abs (r) }>
        y = Add (r, s)
    """
    ),
    "same_name_at_three_levels": (
        """
        v = Relu (x)
        s = If (b) <
            then_branch = t () => (float[N] o) {
                v = Neg (x)
                d = If (b) <then_branch = tt () => (float[N] v) { v = Exp (x) },
                    else_branch = te () => (float[N] c) { c = Abs (v) }>
                o = Add (d, v)
            },
            else_branch = e () => (float[N] q) { q = Abs (v) }>
        y = Add (v, s)
    """
    ),
}


def shadows() -> Iterator[Item]:
    """Bodies around a bool `b` and a float `x`: legal reuse of names, then true shadowing."""
    marked = [*SHADOWS.items(), *((ODD + name, body) for name, body in ODD_SHADOWS.items())]
    for name, body in marked:
        outputs = "float[N] y, float[N] z" if "y, z =" in body else "float[N] y"
        yield name, text(f"{HEADER} main (bool b, float[N] x) => ({outputs}) {{ {body} }}")


def signatures() -> Iterator[Item]:
    """Scan attributes, Scan of opset 8 and bodies with odd signatures."""
    row, state = value("row", shape=[4]), value("state", shape=[4])
    body = graph(
        [node("Add", ["state", "row"], ["sum"])],
        [state, row],
        [value("sum", shape=[4])],
        name="body",
    )
    body.output.append(value("sum", shape=[4]))
    seed = [floats("seed")]
    scan = node("Scan", ["seed", "x"], ["last", "y"], num_scan_inputs=1, body=body)
    yield "scan_state_returned_twice", simple([scan], ["x"], ["y"], seed)
    directed = node(
        "Scan",
        ["seed", "x"],
        ["last", "y"],
        body=body,
        scan_input_directions=[1],
        num_scan_inputs=1,
    )
    directed.attribute.add(name="scan_output_axes", type="INTS", ints=[-1])
    directed.attribute.add(name="scan_input_axes", type="INTS", ints=[0])
    directed.attribute.add(name="scan_output_directions", type="INTS", ints=[1])
    yield "scan_all_attributes", simple([directed], ["x"], ["y", "last"], seed)
    old = node(
        "Scan", ["", "seed", "x"], ["last", "y"], body=body, num_scan_inputs=1, directions=[0]
    )
    yield "scan_8_with_omitted_lengths", simple([old], ["x"], ["y"], seed, version=8, ir=4)
    infer = graph(
        [node("Identity", ["v"], ["w"])],
        [value("v", shape=None)],
        [value("w", shape=None)],
        name="map",
    )
    printing = graph([node("Print", ["x"], [], "acme")], [], [], name="silent")
    silent = node("Log", ["cond"], [], "acme", body=printing)
    yield (
        "body_without_outputs",
        simple(
            [silent, node("Relu", ["x"], ["y"])],
            initializers=[true("cond")],
            imports=[opset("acme", 1)],
        ),
    )
    listed, mapped = (
        node("SequenceConstruct", ["x", "x"], ["s"]),
        node("SequenceMap", ["s"], ["m"], body=infer),
    )
    yield "sequence_map", simple([listed, mapped, node("ConcatFromSequence", ["m"], ["y"], axis=0)])


def decorated() -> Iterator[Item]:
    """A body with doc strings, metadata, value_info and quantization annotations of its own."""
    body = graph([node("Neg", ["x"], ["o"])], [], [value("o")], [floats("unused")], name="then")
    body.doc_string = "a documented branch"
    body.metadata_props.add(key="where", value="then")
    body.value_info.append(value("x"))
    body.quantization_annotation.add(tensor_name="o").quant_parameter_tensor_names.add(
        key="SCALE_TENSOR", value="s"
    )
    body.node[0].doc_string = "inner node"
    body.node[0].metadata_props.add(key="where", value="inside")
    other = graph([node("Abs", ["x"], ["q"])], [], ["q"], name="else")
    branch = node("If", ["cond"], ["y"], else_branch=other, then_branch=body)
    yield "annotated_body", simple([branch], ["x"], ["y"], [true("cond"), floats("s", [1])])
    nameless = copy(branch)
    nameless.attribute[0].g.ClearField("name")
    nameless.attribute[1].g.name = ""
    yield (
        ODD + "nameless_bodies",
        simple([nameless], ["x"], ["y"], [true("cond"), floats("s", [1])]),
    )


def switches() -> Iterator[Item]:
    """Unknown operators with one graph and with a list of graphs that share their names."""
    first = graph([node("Neg", ["x"], ["o"])], [], ["o"], name="case")
    second = graph([node("Abs", ["x"], ["o"])], [], ["o"], name="case")
    switch = node("Switch", ["cond"], ["y"], "acme", cases=[first, second], otherwise=first)
    yield "graph_list", simple([switch], initializers=[true("cond")], imports=[opset("acme", 1)])
    inner = graph([switch], [], ["y"], name="outer_case")
    outer = node("Switch", ["cond"], ["z"], "acme", cases=[inner, first, inner])
    yield (
        "graph_lists_nested",
        simple([outer], ["x"], ["z"], [true("cond")], imports=[opset("acme", 1)]),
    )


def nested_ifs(depth: int) -> Item:
    """Ifs inside the then-branches of each other, the innermost reading the main graph's input."""
    nodes, result = [node("Neg", ["x"], ["inner"])], "inner"
    for level in range(depth, 0, -1):
        nodes, result = wrap("If", nodes, result, level), f"if{level}"
    return f"if_{depth}_deep", simple(nodes, ["x"], [value(result)], [true("cond")])


def deep() -> Iterator[Item]:
    """Nesting up to near protobuf's limit of 100 message levels."""
    yield nested_ifs(8)
    yield nested_ifs(25)
    yield nested_ifs(31)
