"""The driver of rules: what it counts, traces and stops, in every pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import irc
import numpy as np
import onnx
import pytest
from graphs import Graph, batch_norm, function_model
from ir_text import Case, cases, drawn
from irc.frontends import load
from irc.ir import Module, Node, Rewriter, to_text
from irc.ir.debug_counter import DebugCounter
from irc.ir.evaluate import ConstantEvaluator
from irc.ir.matching import elements, result_of, static_shape
from irc.ir.provenance import Declined
from irc.ir.rule_driver import RuleDriver, Rules, rule
from irc.ir.text.parser import parse
from irc.passes import Pass, PassContext, Sequential, TraceRules, parse_pipeline
from irc.passes.catalog import CATALOG
from irc.passes.simplify.rule_set import CLEAN_UP, RULES
from irc.support.errors import IRError, PassError
from irc.tools.cli.main import main
from irc.tools.verify.bisection import bisect
from onnx import ModelProto

TEXT = """graph @main(%x: f32[2,3]) {
  %a = negative(%x) : f32[2,3]
  %b = negative(%a) : f32[2,3]
  %y = nn.relu(%b) : f32[2,3]
  return(%y)
}
"""


@rule(affine="merges")
def drop_double_negation(node: Node, rewriter: Rewriter, context: None) -> bool:
    """negative(negative(x)) -> x"""
    inner = result_of(node.operand(), "negative")
    return rewriter.forward(node.output, inner.operand())


@rule(affine="merges")
def turn(node: Node, rewriter: Rewriter, context: None) -> bool:
    """negative(x) -> negative(x), for ever"""
    made = rewriter.make("negative", node.inputs, before=node)
    rewriter.replace(node.output, made.output)
    return True


NEGATIONS: Rules[None] = {"negative": (drop_double_negation,)}


def test_a_rule_fires_and_is_counted() -> None:
    module = parse(TEXT)
    assert RuleDriver(Rewriter(module), NEGATIONS, None).run(module.graph)
    assert [node.op for node in module.graph] == ["nn.relu"]
    assert module.debug_counter.count == 1


def test_the_trace_says_what_was_applied_and_declined() -> None:
    module, heard = parse(TEXT), []
    module.debug_counter.trace = lambda *event: heard.append(event)
    RuleDriver(Rewriter(module), NEGATIONS, None).run(module.graph)
    assert heard == [
        ("Neg 'a'", "drop_double_negation", "its data is not the result of Neg"),
        ("Neg 'b'", "drop_double_negation", "applied"),
    ]


def test_a_rule_that_reads_an_operator_is_tried_at_its_readers_alone() -> None:
    tried = []

    @rule(affine="untouched", reads=("negative",))
    def note(node: Node, rewriter: Rewriter, context: None) -> bool:
        tried.append(node.op)
        return rewriter.decline("it only looks")

    module, heard = parse(TEXT), []
    module.debug_counter.trace = lambda *event: heard.append(event)
    RuleDriver(Rewriter(module), {"negative": (note,), "nn.relu": (note,)}, None).run(module.graph)
    assert tried == ["negative", "nn.relu"]
    assert heard[0] == ("Neg 'a'", "note", "it reads no result of Neg")


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize(
    ("dtype", "expected"), [("f32", []), ("i64", ["negative", "negative", "nn.relu"])]
)
def test_a_rule_that_skips_floats_is_tried_at_other_results_alone(
    dtype: str, expected: list[str], watched: bool
) -> None:
    tried = []

    @rule(affine="untouched", skips_floats=True)
    def note(node: Node, rewriter: Rewriter, context: None) -> bool:
        tried.append(node.op)
        return rewriter.decline("it only looks")

    module, heard = parse(TEXT.replace("f32", dtype)), []
    if watched:
        module.debug_counter.trace = lambda *event: heard.append(event)
    RuleDriver(Rewriter(module), {"negative": (note,), "nn.relu": (note,)}, None).run(module.graph)
    assert tried == expected
    reason = "it only looks" if expected else "its result is of floats"
    assert [why for _, _, why in heard[:1]] == ([reason] if watched else [])


def test_rules_that_run_in_circles_are_an_error() -> None:
    module = parse(TEXT)
    with pytest.raises(PassError, match="do not come to an end"):
        RuleDriver(Rewriter(module), {"negative": (turn,)}, None).to_fixpoint(module.graph)


def test_rules_that_a_fold_may_run_leave_affines_and_pads() -> None:
    assert {
        op: tuple(each for each in rules if each.affine == "untouched")
        for op, rules in RULES.items()
    } == CLEAN_UP
    names = {each.name for rules in CLEAN_UP.values() for each in rules}
    assert {"drop_identity", "merge_transposes", "single_operand"} <= names
    assert not names & {
        "drop_neutral",
        "merge_affines",
        "merge_constants",
        "add_to_dense",
        "pad_into_conv",
    }


def everything() -> ModelProto:
    """Return a model in which all passes but two find something to do."""
    graph = Graph()
    graph.input("x", [1, 3, 4, 4])
    weight = graph.initializer(np.linspace(-1, 1, 9, dtype=np.float32).reshape(3, 3, 1, 1))
    value = graph.node("Conv", ["x", weight, graph.initializer([1, 2, 3])])
    value = graph.batch_norm(value, batch_norm(3))
    value = graph.node("Identity", [graph.node("Relu", [value])])
    first = graph.node(
        "Conv",
        [
            value,
            graph.initializer(np.full((3, 3, 1, 1), 2, np.float32)),
            graph.initializer([9, 9, 9]),
        ],
    )
    graph.node("Sin", ["x"])
    twice = [
        graph.node("Mul", [first, graph.node("Exp", [graph.initializer([2])])]) for _ in range(2)
    ]
    graph.node(
        "Concat", [*twice, graph.node("Relu", [graph.batch_norm("x", batch_norm(3))])], "y", axis=1
    )
    graph.output("y", None)
    return graph.model()


def frozen() -> ModelProto:
    graph = Graph()
    graph.input("x", [2, 3])
    graph.input("b", [3])
    graph.initializer([1, 2, 3], "b")
    graph.node("Add", ["x", "b"], "y")
    graph.output("y", [2, 3])
    return graph.model()


def layers() -> ModelProto:
    """Return three convolutions, the first two with a BatchNormalization of known statistics."""
    graph = Graph()
    value = graph.input("x", [1, 3, 4, 4])
    for i in range(3):
        weight = graph.initializer(graph.random(3, 3, 1, 1), f"w{i}")
        value = graph.node("Conv", [value, weight], f"c{i}", f"conv{i}")
        value = (
            value if i == 2 else graph.batch_norm(value, batch_norm(3, i + 1), f"n{i}", f"bn{i}")
        )
    graph.output(value)
    return graph.model()


def branches(*, joined: bool = True) -> ModelProto:
    """Return two sums, each of two layers of one value, or two pairs of layers in a row."""
    graph = Graph()
    value = graph.input("x", [1, 3, 4, 4])
    for i in range(2):
        value = graph.node("Relu", [value])
        weights = [graph.initializer(graph.random(3, 3, 1, 1), f"w{i}{k}") for k in range(2)]
        first, second = [graph.node("Conv", [value, weight]) for weight in weights]
        if joined:
            value = graph.node("Add", [first, second])
        else:
            graph.nodes[-1].input[0], value = first, second
    graph.output(value)
    return graph.model()


def written_norms() -> ModelProto:
    """Return two LayerNormalizations in a row, written out."""
    graph = Graph(opset=17)
    value = graph.input("x", [1, 3, 4])
    for _ in range(2):
        centered = graph.node("Sub", [value, graph.node("ReduceMean", [value], axes=[-1])])
        square = graph.node("Mul", [centered, centered])
        variance = graph.node("ReduceMean", [square], axes=[-1])
        root = graph.node("Sqrt", [graph.node("Add", [variance, graph.initializer(1e-5)])])
        value = graph.node("Div", [centered, root])
        value = graph.node("Mul", [value, graph.initializer([1, 2, 3, 4])])
        value = graph.node("Add", [value, graph.initializer([4, 3, 2, 1])])
    graph.output(value)
    return graph.model()


FOLDED = "SimplifyInference,FoldScaleAxis,CanonicalizeOps,SimplifyExpr,FoldConstant"
PASSES = {
    "SimplifyInference": everything(),
    "SimplifyInference,FoldScaleAxis": everything(),
    "UnfuseBias,CanonicalizeOps": everything(),
    "SimplifyExpr": everything(),
    "FoldConstant": everything(),
    "DeadCodeElimination": everything(),
    "EliminateCommonSubexpr": everything(),
    "UnfuseBias": everything(),
    f"{FOLDED},BatchNormToConv": everything(),
    "MergeBranches": branches(),
    "MergeLayers": branches(joined=False),
    "FuseNormalizations": written_norms(),
    "InlineFunctions": function_model(),
    "FreezeInitializers": frozen(),
    f"{FOLDED},CrossLayerEqualization": layers(),
    f"{FOLDED},HighBiasAbsorption": layers(),
    f"{FOLDED},BiasCorrection": layers(),
    "ConvertToFloat16": layers(),
    "ScaleByPowersOfTwo{exponent=3}": layers(),
}


def test_every_pass_is_among_them() -> None:
    last = {passes.rpartition(",")[2].partition("{")[0] for passes in PASSES}
    assert last == set(CATALOG) - {"InferTypes"}, "which has no rules"


@pytest.mark.parametrize("passes", PASSES)
def test_every_pass_counts_its_steps_and_stops_at_the_limit(passes: str) -> None:
    *before, last = parse_pipeline(passes).passes

    def run(limit: int | None) -> tuple[Module, str]:
        module = load(PASSES[passes])
        for pass_ in before:
            pass_(module)
        module.debug_counter.limit = None if limit is None else module.debug_counter.count + limit
        text = to_text(module)
        last(module)
        return module, text

    module, text = run(None)
    assert to_text(module) != text
    steps = module.debug_counter.count
    assert steps
    stopped, untouched = run(0)
    assert to_text(stopped) == untouched
    once, _ = run(1)
    assert once.debug_counter.last[0]
    assert once.debug_counter.last[1]


@pytest.mark.parametrize("passes", PASSES)
def test_bisect_finds_a_fault_inside_every_pass(
    passes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some step of the last pass negates the first result of the model."""
    pipeline, modules = parse_pipeline(passes), []

    def again() -> Module:
        modules.append(load(PASSES[passes]))
        return modules[-1]

    module = again()
    first = Sequential(pipeline.passes[:-1])(module).debug_counter.count + 1
    last = Sequential(pipeline.passes[-1:])(module).debug_counter.count
    assert first <= last
    fault, note = (first + last + 1) // 2, DebugCounter.note

    def faulty(counter: DebugCounter, name: str, where: str) -> None:
        note(counter, name, where)
        if counter.count == fault:
            rewriter = Rewriter(modules[-1])
            result = modules[-1].graph.return_.inputs[0]
            negated = rewriter.make("negative", [result], before=modules[-1].graph.return_)
            rewriter.set_inputs(
                modules[-1].graph.return_, [negated.output, *modules[-1].graph.return_.inputs[1:]]
            )

    def judge(model: ModelProto, base_dir: Path) -> str | None:
        return "a Neg" if any(node.op_type == "Neg" for node in model.graph.node) else None

    monkeypatch.setattr(DebugCounter, "note", faulty)
    found = bisect(again, pipeline, judge)
    assert found is not None
    assert (found.pass_, found.step, found.wrong) == (str(pipeline.passes[-1]), fault, "a Neg")
    assert found.rule
    assert found.where


def test_the_instrument_prints_a_tree() -> None:
    lines: list[str] = []
    parse_pipeline("SimplifyExpr")(load(everything()), PassContext([TraceRules(lines.append)]))
    assert lines[0] == "SimplifyExpr"
    at = next(i for i, line in enumerate(lines) if line.startswith("  Identity"))
    assert lines[at + 1] == "    drop_identity: applied"
    assert any(line.startswith("    merge_affines: declined: ") for line in lines)


@cases("passes/*.irc", "passes/simplify/*.irc")
def test_every_rule_that_declines_gives_a_reason(case: Case) -> None:
    lines: list[str] = []
    module = parse(drawn(case.source)[0])
    parse_pipeline(case.pipeline)(module, PassContext([TraceRules(lines.append)]))
    assert not [line for line in lines if line.rstrip().endswith(("declined", "declined:"))]


def test_a_reason_names_the_operators_that_a_rule_looks_for() -> None:
    module = parse(TEXT)
    (a, *_), value = module.graph, module.graph.inputs[0]
    with pytest.raises(Declined, match=r"^its data is not the result of Clip or Relu$"):
        result_of(a.output, "clip", "nn.relu")
    with pytest.raises(Declined, match="other readers"):
        result_of(a.output, "negative", only_for=a)
    assert result_of(a.output, "negative", only_for=a.next) is a
    assert static_shape(value) == (2, 3)
    with pytest.raises(Declined, match="not constant"):
        elements(value, module.constants)


def test_the_command_prints_the_tree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(everything(), tmp_path / "m.onnx")
    assert (
        main(f"compile {tmp_path / 'm.onnx'} -o {tmp_path / 'o.onnx'} -q --debug-rules".split())
        == 0
    )
    printed = capsys.readouterr().err
    assert "SimplifyInference\n  BatchNormalization" in printed
    assert "lower_batch_norm: applied" in printed
    assert "fold backward: applied" in printed


def test_the_context_may_be_an_evaluator() -> None:
    @rule(affine="merges")
    def fold(node: Node, rewriter: Rewriter, evaluator: ConstantEvaluator) -> bool:
        return (
            rewriter.decline("the operand is no constant")
            if evaluator.array(node.inputs[0]) is None
            else True
        )

    module = parse(TEXT)
    assert not RuleDriver(Rewriter(module), {"negative": (fold,)}, ConstantEvaluator()).run(
        module.graph
    )


def test_the_trace_names_what_is_in_the_file() -> None:
    """Passes rename values that hold other numbers, and split operators.

    A message has the name in the file.
    """
    graph = Graph()
    value = graph.node(
        "Conv", [graph.input("x", [1, 3, 4, 4]), graph.initializer(graph.random(3, 3, 1, 1))], "c"
    )
    value = graph.node("Relu", [value], "r")
    value = graph.batch_norm(value, batch_norm(3), "n")
    graph.output(graph.node("Sigmoid", [value], "y"))
    model, lines = graph.model(), []
    known = {tensor.name for tensor in model.graph.initializer} | {"x", "c", "r", "n", "y"}
    module = parse_pipeline("default")(load(model), PassContext([TraceRules(lines.append)]))
    assert {value.name for node in module.graph for value in node.outputs} - known
    traced = {
        line.partition("'")[2].rstrip("'")
        for line in lines
        if line.startswith("  ") and line[2] != " "
    }
    assert traced
    assert traced <= known
    assert not any("%" in line or ".scaled" in line for line in lines)


EDITS: dict[str, Callable[[Rewriter, Node], object]] = {
    "make": lambda rewriter, node: rewriter.make("negative", node.inputs, before=node),
    "constant": lambda rewriter, node: rewriter.constant(1.0, before=node),
    "replace": lambda rewriter, node: rewriter.replace(node.output, node.operand()),
    "forward": lambda rewriter, node: rewriter.forward(node.output, node.operand()),
    "set_inputs": lambda rewriter, node: rewriter.set_inputs(node, node.inputs),
    "set_attr": lambda rewriter, node: rewriter.set_attr(node, "axis", 1),
    "drop_attr": lambda rewriter, node: rewriter.drop_attr(node, "axis"),
    "set_metadata": lambda rewriter, node: rewriter.set_metadata(node, "acme.unit", "npu"),
    "erase": lambda rewriter, node: rewriter.erase(node),
    "changed": lambda rewriter, node: setattr(rewriter, "changed", True),
}

SOFTMAX = """graph @main(%x: f32[2,3]) {
  %a = nn.softmax(%x) {axis=0} : f32[2,3]
  %b = negative(%a) : f32[2,3]
  %y = nn.relu(%x) : f32[2,3]
  return(%y)
}
"""


@pytest.mark.parametrize("name", EDITS)
def test_edits_outside_of_a_step_are_refused_while_rewrites_are_recorded(name: str) -> None:
    module = parse(SOFTMAX)
    module.debug_counter.log = log = []
    rewriter, text = Rewriter(module), to_text(module)
    softmax, negative, *_ = module.graph
    node = negative if name == "erase" else softmax
    with pytest.raises(IRError, match="outside of a step"):
        EDITS[name](rewriter, node)
    assert to_text(module) == text and not rewriter.changed and not module.changed
    with rewriter.step("edit", node.description):
        EDITS[name](rewriter, node)
    assert rewriter.changed and [rule for rule, _ in log] == ["edit"]


def test_a_step_is_counted_if_it_edits() -> None:
    module = parse(SOFTMAX)
    module.debug_counter.log = log = []
    rewriter = Rewriter(module)
    softmax, negative, *_ = module.graph
    with rewriter.step("nothing", "no operator"):
        pass
    with pytest.raises(IRError, match="'axes'"), rewriter.step("error", "no operator"):
        rewriter.set_attr(softmax, "axes", 1)
    assert module.debug_counter.count == 0
    with rewriter.step("outer", "the graph"):
        rewriter.set_attr(softmax, "axis", 0)
        with rewriter.step("inner", negative.description):
            rewriter.erase(negative)
    assert [rule for rule, _ in log] == ["inner", "outer"] and module.debug_counter.count == 2


@dataclass(frozen=True)
class DropNegatives(Pass):
    """1. `negative(negative(x))` becomes x."""

    def run(self, module: Module, ctx: PassContext) -> bool:
        rewriter = Rewriter(module)
        for node in module.graph:
            inner = node["data"].node if node.op == "negative" else None
            if inner is not None and inner.op == "negative":
                rewriter.forward(node.output, inner["data"])
        return rewriter.changed


def test_a_pass_of_another_package_is_recorded_by_its_name() -> None:
    graph = Graph()
    graph.input("x", [2])
    graph.node("Neg", ["x"], "a")
    graph.node("Neg", ["a"], "b")
    graph.node("Sigmoid", ["b"], "y")
    graph.output("y", [2])
    model = graph.model()
    result = irc.compile(model, [DropNegatives()], certificate=True)
    document = result.certificate()
    assert [rewrite[:2] for rewrite in document["rewrites"]] == [["DropNegatives", "the module"]]
    irc.certify(model, result.model, document)
