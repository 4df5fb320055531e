"""`--keep` and `irc.compile(keep=...)`.

Passes leave these nodes and the values that they compute alone.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path

import harness
import irc
import onnx
import pytest
from graphs import F64, conv_bn, function_model, is_valid
from harness import EXAMPLE
from irc.passes import PassContext, Verify
from irc.tools.cli.main import main
from onnx import ModelProto, helper
from oracle import EXACT, difference
from random_graphs import grow

LAYER = """\
  %w = constant {value=f32[2,2,1,1] [1.0, 2.0, 3.0, 4.0]}
  %g = constant {value=f32[2] [2.0, 3.0]}
  %b = constant {value=f32[2] [0.5, -0.5]}
  %m = constant {value=f32[2] [0.25, 1.0]}
  %v = constant {value=f32[2] [1.0, 4.0]}
"""
BATCH_NORM = 'nn.batch_norm(%{}, %g, %b, %m, %v) {{epsilon=0.0}} loc("bn")'
CASES = {
    "a layer before": (
        LAYER + '%c = nn.conv(%x, %w) loc("conv")\n%y = ' + BATCH_NORM.format("c"),
        ["Conv"],
        {"conv": ["Conv", "BatchNormalization"], "%c": ["Conv", "BatchNormalization"]},
    ),
    "a BatchNormalization": (
        LAYER + '%c = nn.conv(%x, %w) loc("conv")\n%y = ' + BATCH_NORM.format("c"),
        ["Conv"],
        {"bn": ["Conv", "BatchNormalization"], "%y": ["Conv", "BatchNormalization"]},
    ),
    "its parameters": (
        LAYER + '%c = nn.conv(%x, %w) loc("conv")\n%y = ' + BATCH_NORM.format("c"),
        ["Conv"],
        {"%g": ["Conv", "BatchNormalization"], "%w": ["Conv", "BatchNormalization"]},
    ),
    "a layer after": (
        LAYER + '%s = ' + BATCH_NORM.format("x") + '\n%y = nn.conv(%s, %w) loc("conv")',
        ["Conv"],
        {"conv": ["BatchNormalization", "Conv"]},
    ),
    "an operator between": (
        LAYER + '%c = nn.conv(%x, %w)\n%r = nn.max_pool(%c) {kernel_shape=[1, 1]} loc("pool")\n%y = '
        + BATCH_NORM.format("r"),
        ["Conv", "MaxPool"],
        {"pool": ["Conv", "MaxPool", "BatchNormalization"]},
    ),
    "a chain": (
        '%n = negative(%x) loc("a")\n%y = negative(%n) loc("b")',
        ["Identity"],
        {"a": ["Neg", "Neg"], "b": ["Neg", "Neg"]},
    ),
    "a copy": (
        '%r = nn.relu(%x)\n%s = identity(%r) loc("i")\n%y = sigmoid(%s)',
        ["Relu", "Sigmoid"],
        {"i": ["Relu", "Identity", "Sigmoid"]},
    ),
    "equal operators": (
        '%r = sigmoid(%x) loc("a")\n%s = sigmoid(%x) loc("b")\n%y = multiply(%r, %s)',
        ["Sigmoid", "Mul"],
        {"a": ["Sigmoid", "Sigmoid", "Mul"], "b": ["Sigmoid", "Sigmoid", "Mul"]},
    ),
    "an operator that nobody reads": (
        '%d = sigmoid(%x) loc("dead")\n%y = nn.relu(%x)',
        ["Relu"],
        {"dead": ["Sigmoid", "Relu"], "%d": ["Sigmoid", "Relu"]},
    ),
    "an operator of constants": (
        '%k = constant {value=f32[] 2.0}\n%e = exp(%k) loc("e")\n%y = multiply(%x, %e)',
        ["Mul"],
        {"e": ["Exp", "Mul"]},
    ),
    "an operator of constants that the runtime computes": (
        '%q = constant {value=f32[2,2] [1.0, 2.0, 3.0, 5.0]}\n%e = "Det"(%q) : f32[] loc("e")\n%y = multiply(%x, %e)',
        ["Mul"],
        {"e": ["Det", "Mul"]},
    ),
    "a neutral operator": (
        '%k = constant {value=f32[] 1.0}\n%r = sigmoid(%x)\n%s = multiply(%r, %k) loc("one")\n%y = nn.relu(%s)',
        ["Sigmoid", "Relu"],
        {"one": ["Sigmoid", "Mul", "Relu"]},
    ),
    "a branch that is always taken": (
        '%k = constant {value=bool[] true}\n'
        '%y = "If"(%k) {then_branch=region 0, else_branch=region 1} : f32[N,2,3,3] loc("if") {\n'
        'graph @a() {\n%i = sigmoid(%x) loc("inner")\nreturn(%i)\n}\ngraph @b() {\n%j = nn.relu(%x)\nreturn(%j)\n}\n}',
        ["Sigmoid"],
        {"if": ["If"], "inner": ["If"], "%i": ["If"]},
    ),
}  # fmt: skip


def model_of(body: str) -> ModelProto:
    text = f"graph @g(%x: f32[N,2,3,3]) {{\n{body}\nreturn(%y)\n}}\n"
    return irc.emit(irc.parse(text)).model


def operators(model: ModelProto) -> list[str]:
    return [op for op in harness.operators(model) if op != "Constant"]


@pytest.mark.parametrize(
    ("case", "name"),
    [(case, name) for case, (_, _, kept) in CASES.items() for name in (None, *kept)],
)
def test_each_pass_leaves_kept_nodes_alone(case: str, name: str | None) -> None:
    body, folded, kept = CASES[case]
    model = model_of(body)
    keep = [] if name is None else [name.removeprefix("%")]
    result = irc.compile(copy.deepcopy(model), keep=keep, context=PassContext([Verify()]))
    assert operators(result.model) == (folded if name is None else kept[name])
    assert is_valid(result.model) is None
    inputs = harness.random_inputs(model)
    harness.assert_computes_the_same(model, result.model, inputs)
    if name is not None and not name.startswith("%"):
        (before,) = [node for node in nodes(model) if node.name == name]
        (after,) = [node for node in nodes(result.model) if node.name == name]
        assert (after.op_type, after.output, after.attribute[:0]) == (
            before.op_type,
            before.output,
            [],
        )
    if name is not None:  # compiled again it is the same
        again = irc.compile(copy.deepcopy(result.model), keep=keep)
        assert again.model == result.model


def nodes(model: ModelProto) -> list[onnx.NodeProto]:
    found = list(model.graph.node)
    for node in found:
        for attribute in node.attribute:
            found.extend(attribute.g.node)
    return found


@pytest.mark.parametrize(
    ("name", "detail"),
    [
        ("bn", "BatchNormalization 'bn' is to be kept"),
        ("conv", "Conv 'conv' before it is to be kept"),
        ("w", "Conv 'conv': the weight 'w' is to be kept"),
        ("g", "'g' is to be kept"),
    ],
)
def test_what_stays_for_it_says_so(name: str, detail: str) -> None:
    result = irc.compile(model_of(CASES["a layer before"][0]), keep=[name])
    (source,) = result.fold_map.sources
    assert (source["status"], source["reason"], source["detail"]) == (
        "kept",
        "kept_by_user",
        detail,
    )


def test_an_affine_before_a_kept_layer_says_so() -> None:
    result = irc.compile(model_of(CASES["a layer after"][0]), keep=["conv"])
    (source,) = result.fold_map.sources
    assert (source["reason"], source["detail"]) == (
        "kept_by_user",
        "Conv 'conv' after it is to be kept",
    )


def test_the_name_of_a_kept_value_stays_where_a_copy_of_it_is_the_output() -> None:
    body = '%r = sigmoid(%x) loc("a")\n%y = identity(%r)'
    model = model_of(body)
    assert [list(node.output) for node in irc.compile(copy.deepcopy(model)).model.graph.node] == [
        ["y"]
    ]
    kept = irc.compile(model, keep=["r"]).model
    assert [list(node.output) for node in kept.graph.node] == [["r"], ["y"]]


def test_calls_and_bodies_of_functions() -> None:
    model = function_model()
    assert not irc.compile(copy.deepcopy(model), "InlineFunctions,default").model.functions
    (key,) = {(function.domain, function.name) for function in model.functions}
    call = next(node for node in model.graph.node if (node.domain, node.op_type) == key)
    kept = irc.compile(copy.deepcopy(model), "InlineFunctions,default", keep=[call.output[0]])
    assert [node for node in kept.model.graph.node if (node.domain, node.op_type) == key]
    inner = model.functions[0].node[0].output[0]
    kept = irc.compile(copy.deepcopy(model), "InlineFunctions,default", keep=[inner])
    assert [node for node in kept.model.graph.node if (node.domain, node.op_type) == key]
    assert inner in [name for node in kept.model.functions[0].node for name in node.output]
    assert any(f"{key[0]}::{key[1]} is not inlined" in warning for warning in kept.warnings)


@pytest.mark.parametrize("seed", range(24))
def test_kept_values_of_random_graphs_have_the_same_numbers(seed: int) -> None:
    """One in three values is kept; all of them are computed as before, under their names."""
    model = grow(seed, F64)
    names = [name for node in model.graph.node for name in node.output if name][seed % 3 :: 3]
    result = irc.compile(copy.deepcopy(model), keep=names, context=PassContext([Verify()]))
    before = {name: node for node in model.graph.node for name in node.output}
    after = {name: node for node in result.model.graph.node for name in node.output}
    assert set(names) <= set(after)
    for name in names:
        assert (before[name].op_type, len(before[name].output)) == (
            after[name].op_type,
            len(after[name].output),
        )
        assert list(before[name].attribute) == list(after[name].attribute)
    assert difference(model, result.model) <= EXACT
    seen = {info.name for info in model.graph.output}
    for each in (model, result.model):
        each.graph.output.extend(
            helper.make_empty_tensor_value_info(name) for name in names if name not in seen
        )
    assert difference(model, result.model) <= EXACT


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.onnx"
    assert (
        main(f"compile {EXAMPLE} -o {out} --keep stem/bn --keep head/fc1:0 --verify".split()) == 0
    )
    assert "6 folded, 2 kept" in capsys.readouterr().err
    assert {"stem/bn", "head/bn"} <= {node.name for node in onnx.load(out).graph.node}
    assert main(["check", str(EXAMPLE), "--keep", "stem/bn", "--format", "json"]) == 1
    (left,) = json.loads(capsys.readouterr().out)["models"][0]["left"]
    assert (left["node"], left["reason"]) == ("stem/bn", "kept_by_user")
    assert main(["check", str(EXAMPLE), "--keep", "stem/bn", "--allow", "kept_by_user"]) == 0
    assert main(["inspect", str(EXAMPLE), "--keep", "stem/bn"]) == 0
    assert "kept_by_user: BatchNormalization 'stem/bn' is to be kept" in capsys.readouterr().out
    assert main(["bisect", str(EXAMPLE), "--keep", "stem/bn", "-q"]) == 0
    assert main(["dump", str(EXAMPLE), "--keep", "stem/bn", "--passes", "default"]) == 0
    assert "nn.batch_norm" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["compile", "check", "inspect", "bisect", "dump"])
def test_an_unknown_name_is_a_usage_error_with_the_nearest(
    command: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([command, str(EXAMPLE), "--keep", "stem/bm"]) == 2
    message = capsys.readouterr().err
    assert "the model has no node or value 'stem/bm' to keep; did you mean stem/bn?" in message
    assert not list(tmp_path.iterdir())


def test_inputs_may_be_named_and_stay() -> None:
    assert (
        irc.compile(EXAMPLE, keep=["image", "logits"]).operators == irc.compile(EXAMPLE).operators
    )


def test_folds_held_back_are_counted_without_kept_nodes() -> None:
    graph, *_ = conv_bn()
    graph.output("y", [2, 4, 4, 4])
    model = graph.model()
    model.graph.input.extend(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in model.graph.initializer
    )
    assert irc.compile(copy.deepcopy(model)).held_back == 1
    assert irc.compile(copy.deepcopy(model), keep=["conv"]).held_back == 0
