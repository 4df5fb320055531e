"""The graph's own invariants.

Use lists, order, removal while iterating, regions, verification, size.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from irc.ir import (
    Graph,
    Module,
    Node,
    Rewriter,
    TensorType,
    to_networkx,
    to_text,
    verify,
)
from irc.ir.tensor import ArrayTensor
from irc.ir.text.parser import parse
from irc.ir.types import DTYPES
from irc.passes import default_pipeline
from irc.support.errors import VerifyError

F32 = TensorType(DTYPES["f32"], (2, 3))

TEXT = """\
module {ir_version=10, opsets={"": 17}}

graph @main(%c: bool[], %x: f32[2,3]) {
  %a = nn.relu(%x) : f32[2,3]
  %y = "If"(%c) {then_branch=region 0, else_branch=region 1} : f32[2,3] {
    graph @then() {
      %t = add(%a, %x) : f32[2,3]
      return(%t)
    }
    graph @else() {
      %e = nn.relu(%a) : f32[2,3]
      return(%e)
    }
  }
  return(%y)
}
"""


def chain(length: int) -> Module:
    graph = Graph("chain", {"": 17})
    value = graph.add_input("x", F32)
    for i in range(length):
        value = graph.append(Node("nn.relu", [value], outputs=[(f"v{i}", F32)])).output
    graph.set_outputs([value], ["y"])
    return Module(graph)


def test_users_count_every_edge() -> None:
    graph = Graph()
    x = graph.add_input("x", F32)
    node = graph.append(Node("add", [x, x], outputs=[("y", F32)]))
    graph.set_outputs([node.output, x])
    assert x.users == {node: 2, graph.return_: 1}
    assert x.use_count == 3
    assert x.sole_user() is None
    node.set_inputs([x])
    assert x.users == {graph.return_: 1, node: 1}


def test_captures_are_users_of_the_outer_value() -> None:
    module = parse(TEXT)
    relu = next(iter(module.graph))
    assert sorted(user.op for user in relu.output.users) == ["add", "nn.relu"]
    assert all(user.graph is not module.graph for user in relu.output.users)


def test_iteration_survives_removal_of_any_node() -> None:
    module = chain(6)
    graph = module.graph
    graph.set_outputs([graph.inputs[0]])
    seen = []
    for node in graph:
        seen.append(node.output.name)
        if node.output.name == "v1":
            for name in ("v5", "v4", "v3", "v2", "v1"):
                graph.remove(next(n for n in graph if n.output.name == name))
    assert seen == ["v0", "v1"]
    assert len(graph) == 1


def test_operators_are_the_nodes_that_are_not_constants() -> None:
    """However nodes and constants are inserted, moved and removed."""
    rng = np.random.default_rng(0)
    graph = Graph("g")
    for _ in range(2000):
        nodes = list(graph)
        if nodes and rng.random() < 0.45:
            graph.remove(nodes[rng.integers(len(nodes))])
        else:
            anchor = [*nodes, graph.return_][
                rng.integers(len(nodes) + 1) if rng.random() < 0.7 else 0
            ]
            graph.insert_before(anchor, Node("constant" if rng.random() < 0.7 else "nn.relu"))
        assert list(graph.operators()) == [node for node in graph if node.op != "constant"]


def test_a_node_that_is_read_cannot_be_removed() -> None:
    graph = chain(2).graph
    with pytest.raises(AssertionError, match="still read"):
        graph.remove(next(iter(graph)))


def test_removing_a_node_frees_what_its_regions_read() -> None:
    module = parse(TEXT)
    relu, branch = list(module.graph)
    module.graph.set_outputs([module.graph.inputs[1]])
    inner = list(branch.regions[0])
    module.graph.remove(branch)
    assert not relu.output.users
    assert inner and all(node.graph is None for node in inner)
    verify(module)


def test_rewriter_keeps_names_origins_and_the_dead() -> None:
    module = parse(TEXT.replace("nn.relu(%x)", "identity(%x)"))
    rewriter = Rewriter(module)
    node = next(iter(module.graph))
    assert rewriter.forward(node.output, module.graph.inputs[1])
    assert len(module.graph) == 1
    assert module.provenance.dropped == [node.origins]
    verify(module)


BREAKAGES: dict[str, tuple[Callable[[Module], object], str]] = {
    "users": (lambda m: m.graph.inputs[1].users.clear(), "the users of %x"),
    "order": (lambda m: m.graph.inputs[1].users.clear() or swap(m), "before its definition"),
    "arity": (lambda m: first(m).set_inputs([]), "has 0 inputs, 1 to 1 are allowed"),
    "absent": (lambda m: first(m).set_inputs([None]), "nn.relu %a lacks its input data"),
    "payload": (lambda m: first(m).__setattr__("op", "constant"), "has no payload"),
    "names": (lambda m: m.graph.__setattr__("output_names", ()), "returns 1 values under 0 names"),
    "region": (
        lambda m: list(m.graph)[1].regions[0].__setattr__("parent", None),
        "does not know its node",
    ),
    "input": (lambda m: m.graph.inputs.reverse(), "input 0 of graph 'main' is not its own"),
    "output": (
        lambda m: first(m).output.__setattr__("index", 3),
        "output 0 of nn.relu %a is not its own",
    ),
    "origin": (lambda m: first(m).__setattr__("origins", (99,)), "an origin that does not exist"),
    "links": (lambda m: first(m).__setattr__("prev", first(m)), "is broken before"),
    "function": (lambda m: m.functions.update({("a", "b", ""): function()}), "is registered as"),
    "scope": (lambda m: escape(m), "outside its scope"),
    "width": (lambda m: widen(m), "that is not a parameter"),
}


def first(module: Module) -> Node:
    return next(iter(module.graph))


def swap(module: Module) -> None:
    relu, branch = list(module.graph)
    relu.prev, relu.next, branch.prev, branch.next = branch, module.graph.return_, None, relu
    module.graph._first, module.graph.return_.prev = branch, relu


def function() -> object:
    from irc.ir import Function

    return Function("x", "y", Graph())


def escape(module: Module) -> None:
    inner = next(iter(list(module.graph)[1].regions[0]))
    module.graph.set_outputs([inner.output], ["y"])


def widen(module: Module) -> None:
    wide = module.graph.add_input("w", TensorType(DTYPES["f64"], (3,)))
    node = Node("add", [module.graph.inputs[1], wide], outputs=[("s", F32)])
    module.graph.append(node)


@pytest.mark.parametrize("kind", BREAKAGES)
def test_verify_names_what_is_broken(kind: str) -> None:
    module = parse(TEXT)
    verify(module)
    break_it, message = BREAKAGES[kind]
    break_it(module)
    with pytest.raises(VerifyError) as error:
        verify(module)
    assert message in str(error.value)


def test_a_hundred_thousand_nodes_need_no_recursion() -> None:
    module = chain(100_000)
    verify(module)
    rewriter = Rewriter(module)
    for node in list(module.graph):
        if int(node.output.name[1:]) % 2:
            rewriter.forward(node.output, node.inputs[0])  # type: ignore[arg-type]
    verify(module)
    assert len(module.graph) == 50_000
    assert to_text(module).count("\n") > 50_000
    default_pipeline()(module)
    verify(module)


@pytest.mark.slow
def test_node_visits_grow_linearly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule applications and recognitions are proportional to the size of the graph."""
    from irc.passes.affine.algebra import recognise
    from irc.passes.affine.records import source_affines
    from irc.passes.affine.search import chains

    counts: list[int] = []
    calls = 0
    original = recognise.recognise

    def counting(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        return original(*arguments)  # type: ignore[arg-type]

    for home in (recognise, chains, source_affines):
        monkeypatch.setattr(home, "recognise", counting)
    for length in (200, 400):
        calls = 0
        default_pipeline()(affine_chain(length))
        counts.append(calls)
    assert counts[1] <= 2.1 * counts[0]


def affine_chain(length: int) -> Module:
    graph = Graph("affines", {"": 17})
    value = graph.add_input("x", F32)
    for i in range(length):
        payload = ArrayTensor(np.full(3, 1 + i % 3, np.float32))
        constant = graph.append(
            Node("constant", attrs={"value": payload}, outputs=[(f"c{i}", payload.type)])
        ).output
        op = "add" if i % 2 else "multiply"
        value = graph.append(Node(op, [value, constant], outputs=[(f"v{i}", F32)])).output
        if i % 10 == 9:
            value = graph.append(Node("nn.relu", [value], outputs=[(f"r{i}", F32)])).output
    graph.set_outputs([value])
    return Module(graph)


def test_networkx_sees_captures_as_uses_by_the_holder() -> None:
    module = parse(TEXT)
    relu, branch = list(module.graph)
    graph = to_networkx(module)
    assert graph.edges == to_networkx(module.graph).edges
    assert graph.number_of_edges(relu, branch) == 2
    assert set(graph.successors(branch)) == {module.graph.return_}
