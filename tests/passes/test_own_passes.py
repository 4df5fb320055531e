"""Passes of other packages.

Found by module or entry point, composed, and told in the fold map as irc's own.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import irc
import numpy as np
import onnx
import pytest
from harness import ROOT, session
from irc.frontends.onnx import from_model
from irc.ir import Module, Rewriter, pattern, to_networkx, verify
from irc.passes import (
    FoldScaleAxis,
    Pass,
    PassContext,
    PrintIR,
    Repeat,
    Sequential,
    SimplifyInference,
    Timing,
    Verify,
    default_pipeline,
    parse_pipeline,
)
from irc.support.errors import IRError, PassError, UsageError
from irc.tools.cli.main import main
from onnx import TensorProto, helper, numpy_helper

SOURCE = '''
from dataclasses import dataclass
from irc.ir.pattern import const, op, rewrite, value
from irc.passes import PatternPass

X = value("x")

@rewrite(op("divide", op("multiply", X, op("clip", op("add", X, const(3)), const(0), const(6))), const(6)))
def hard_swish(found, rewriter):
    """x * clip(x + 3, 0, 6) / 6 -> HardSwish(x)"""
    return rewriter.make("onnx::HardSwish", [found["x"]], before=found.root).output

@dataclass(frozen=True)
class FuseOwnHardSwish(PatternPass):
    """Fuse a HardSwish."""

    x: int = 0
    rewrites = (hard_swish,)

class Nothing:
    pass
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "own_passes_here.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "own_passes_here"
    sys.modules.pop("own_passes_here", None)


def hard_swish_model(path: Path) -> onnx.ModelProto:
    """Conv, then x * clip(x + 3, 0, 6) / 6 as its operators."""
    rng = np.random.default_rng(1)
    constants = {"w": rng.normal(size=(4, 3, 1, 1)), "three": 3.0, "zero": 0.0, "six": 6.0}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("Add", ["c", "three"], ["a"], name="/Add"),
        helper.make_node("Clip", ["a", "zero", "six"], ["k"], name="/Clip"),
        helper.make_node("Mul", ["c", "k"], ["m"], name="/Mul"),
        helper.make_node("Div", ["m", "six"], ["y"], name="/Div"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4, 4, 4])],
        [
            numpy_helper.from_array(np.asarray(array, np.float32), name)
            for name, array in constants.items()
        ],
    )
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, path)
    return model


def test_the_command_line_runs_a_pass_of_another_module(
    package: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = hard_swish_model(tmp_path / "m.onnx")
    out, map_ = tmp_path / "out.onnx", tmp_path / "map.json"
    passes = f"SimplifyInference,{package}:FuseOwnHardSwish{{x=1}}"
    arguments = (
        f"compile {tmp_path / 'm.onnx'} -o {out} --passes {passes} --fold-map {map_}".split()
    )
    assert main([*arguments, "--verify", "--verify-ir"]) == 0
    compiled = onnx.load(out)
    assert [node.op_type for node in compiled.graph.node] == ["Conv", "HardSwish"]
    onnx.checker.check_model(compiled, full_check=True)
    x = np.random.default_rng(0).normal(scale=4, size=(2, 3, 4, 4)).astype(np.float32)
    before, after = (session(model).run(None, {"x": x})[0] for model in (source, compiled))
    np.testing.assert_allclose(before, after, rtol=1e-5, atol=1e-5)
    statuses = {entry["node"]["name"]: entry["status"] for entry in irc.FoldMap.load(map_).sources}
    assert statuses == {"/Add": "merged", "/Div": "merged"}
    assert json.loads(map_.read_text())["producer"]["passes"] == [
        "SimplifyInference",
        "FuseOwnHardSwish{x=1}",
    ]


def test_bisect_finds_the_application_of_an_own_pass(
    package: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hard_swish_model(tmp_path / "m.onnx")
    script = tmp_path / "right.py"
    script.write_text(
        "import onnx, sys\nsys.exit(any(n.op_type == 'HardSwish' for n in"
        " onnx.load(sys.argv[1]).graph.node))\n"
    )
    command = f"{sys.executable} {script} {{}}"
    passes = f"SimplifyInference,{package}:FuseOwnHardSwish"
    main(["bisect", str(tmp_path / "m.onnx"), "--passes", passes, "--command", command])
    printed = capsys.readouterr()
    assert "FuseOwnHardSwish" in printed.out + printed.err
    assert "hard_swish" in printed.out + printed.err


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("no_such_module:Fuse", "there is no module 'no_such_module'"),
        (
            "{}:Nothing",
            r"Nothing is not a subclass of irc.passes.Pass \(it has: FuseOwnHardSwish\)",
        ),
        ("{}:Missing", "Missing is not a subclass"),
        ("{}:FuseOwnHardSwish{{y=1}}", "FuseOwnHardSwish has no option 'y'"),
        ("FoldScaleAxes", "there is no pass 'FoldScaleAxes'; did you mean FoldScaleAxis"),
    ],
)
def test_a_pass_that_cannot_be_found_is_told(package: str, spec: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_pipeline(spec.format(package))


def test_the_text_of_a_pipeline_finds_its_own_passes_again(package: str) -> None:
    pipeline = parse_pipeline(f"default,({package}:FuseOwnHardSwish{{x=2}})*")
    assert pipeline.spec.endswith(f",({package}:FuseOwnHardSwish{{x=2}})*")
    assert parse_pipeline(pipeline.spec).flat == pipeline.flat


def test_an_own_pass_is_disabled_and_printed_by_its_name(package: str) -> None:
    pipeline = parse_pipeline(f"{package}:FuseOwnHardSwish")
    printed: list[str] = []
    module = irc.parse("graph(%x: f32[2]) {\n  %y = nn.relu(%x)\n  return(%y)\n}")
    pipeline(module, PassContext([PrintIR("FuseOwnHardSwish", write=printed.append)]))
    assert printed
    pipeline(module, PassContext(disabled=frozenset({"FuseOwnHardSwish"})))
    assert module.provenance.passes == ["FuseOwnHardSwish"]


class WriteOut(Pass):
    """Makes a HardSwish of other operators, or with `swap` a product of the division."""

    def __init__(self, swap: bool) -> None:
        self.swap = swap

    def run(self, module: Module, ctx: PassContext) -> bool:
        rewriter = Rewriter(module)
        (division,) = [node for node in module.graph.operators() if node.op == "divide"]
        with rewriter.rewriting(division):
            x = division.operand()
            if not self.swap:
                (conv,) = [node for node in module.graph.operators() if node.op == "nn.conv"]
                x = conv.output
                gate = rewriter.make(
                    "onnx::HardSigmoid", [x], {"alpha": 1 / 6}, before=division
                ).output
                factor = rewriter.make(
                    "add",
                    [rewriter.make("add", [gate, 1], before=division).output, -1],
                    before=division,
                )
                made = rewriter.make("multiply", [x, factor.output], before=division)
            else:
                made = rewriter.make("multiply", [x, 1 / 6], before=division)
        return rewriter.forward(division.output, made.output)


@pytest.mark.parametrize(
    ("swap", "expected"),
    [(False, {"/Add": "merged", "/Div": "merged"}), (True, {"/Add": "kept", "/Div": "kept"})],
    ids=["taken in", "in its place"],
)
def test_an_affine_is_kept_only_if_a_node_that_computes_it_is_there(
    swap: bool, expected: dict[str, str], tmp_path: Path
) -> None:
    hard_swish_model(tmp_path / "m.onnx")
    result = irc.compile(tmp_path / "m.onnx", [WriteOut(swap)])
    assert {entry["node"]["name"]: entry["status"] for entry in result.fold_map.sources} == expected


class Silent(Pass):
    """Returns None."""

    def run(self, module: Module, ctx: PassContext) -> bool:
        return None  # type: ignore[return-value]


@dataclass(frozen=True)
class Required(Pass):
    """Has an option without a default."""

    size: int
    name: ClassVar[str] = "Required"


def relu() -> Module:
    return irc.parse("graph(%x: f32[2]) {\n  %y = nn.relu(%x)\n  return(%y)\n}")


def test_composing_takes_sequences_classes_and_lists() -> None:
    inner = Sequential([SimplifyInference(), FoldScaleAxis()])
    flat = Sequential([inner, SimplifyInference, [FoldScaleAxis]])
    assert [pass_.name for pass_ in flat.flat] == ["SimplifyInference", "FoldScaleAxis"] * 2
    assert str(Repeat([inner, Silent])) == "(SimplifyInference,FoldScaleAxis,Silent)*"
    timing = Timing()
    default_pipeline()(relu(), [timing])
    assert (
        irc.compile(relu(), [SimplifyInference(), FoldScaleAxis]).model.graph.node[0].op_type
        == "Relu"
    )


@pytest.mark.parametrize(
    ("passes", "message"),
    [
        (["SimplifyInference"], r"'SimplifyInference' is not a pass.*parse_pipeline"),
        ([3], "3 is not a pass"),
        ([Required], "Required needs options: give an instance"),
    ],
)
def test_composing_tells_what_is_no_pass(passes: list[object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Sequential(passes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda module: irc.emit("net.onnx"), "str is not a Module: irc.load reads a model as one"),
        (lambda module: Silent()(module.graph), "Graph is not a Module"),
        (lambda module: verify(module.graph), "Graph is not a Module"),
        (lambda module: Rewriter(module.graph), "Graph is not a Module"),
        (lambda module: to_networkx("net.onnx"), "str is not a Module"),
        (
            lambda module: pattern.op("Relu").match(module.graph),
            "a pattern matches at a Node or a Value, and Graph is neither",
        ),
    ],
)
def test_another_object_than_is_asked_for_is_named(
    call: Callable[[Module], object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        call(relu())


def test_a_pass_that_returns_none_counts_as_a_change_with_a_warning() -> None:
    context = PassContext([Verify()])
    Silent()(relu(), context)
    assert context.warnings == [
        "Silent.run returned None, which is taken for a change: return True or False"
    ]


def test_a_wrong_order_is_warned_of_and_a_right_one_is_not() -> None:
    context = PassContext()
    Sequential([FoldScaleAxis(), SimplifyInference()])(relu(), context)
    assert context.warnings == [
        "FoldScaleAxis runs before SimplifyInference, which makes room for it: put"
        " SimplifyInference first"
    ]
    assert list(default_pipeline().misplaced()) == []
    assert list(Sequential([FoldScaleAxis()]).misplaced()) == []
    again = Sequential([FoldScaleAxis(), SimplifyInference(), FoldScaleAxis()])
    assert list(again.misplaced()) == []


class Marks(Pass):
    """Marks every Relu."""

    def run(self, module: Module, ctx: PassContext) -> bool:
        rewriter = Rewriter(module)
        for node in module.graph.operators():
            rewriter.set_metadata(node, "acme.unit", node.metadata.get("acme.unit", "") + "a")
        return rewriter.changed


def test_metadata_go_to_the_model_and_back() -> None:
    node = helper.make_node("Relu", ["x"], ["y"], name="r")
    node.metadata_props.add(key="left", value="alone")
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    model = helper.make_model(
        helper.make_graph([node], "g", info[:1], info[1:]),
        ir_version=10,
        opset_imports=[helper.make_opsetid("", 17)],
    )
    for expected in ("a", "aa"):
        module = from_model(model)
        Sequential([Marks])(module, [Verify()])
        assert irc.parse(str(module)).graph.return_.operand().node.metadata == {
            "left": "alone",
            "acme.unit": expected,
        }  # type: ignore[union-attr]
        model = irc.emit(module).model
        found = {entry.key: entry.value for entry in model.graph.node[0].metadata_props}
        assert found == {"left": "alone", "acme.unit": expected}


def test_metadata_are_text() -> None:
    module = relu()
    with pytest.raises(IRError, match=r"the metadata .acme\.cost.: 3 are not text"):
        Rewriter(module).set_metadata(next(iter(module.graph.operators())), "acme.cost", 3)  # type: ignore[arg-type]


def test_a_failure_names_the_pass() -> None:
    class Wrong(Pass):
        def run(self, module: Module, ctx: PassContext) -> bool:
            Rewriter(module).make("HardSwsh", [module.graph.inputs[0]], before=module.graph.return_)
            return True

    with pytest.raises(
        PassError,
        match=(
            r"Wrong failed as the first pass: .*did you mean HardSwish.* \(.*test_own_passes\.py,"
            r" line \d+\)"
        ),
    ):
        Sequential([Wrong])(relu())


def test_the_pass_of_the_documentation_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = re.findall(
        r"```python\n(# my_passes\.py\n.*?)```",
        (ROOT / "docs" / "passes.md").read_text(),
        flags=re.S,
    )
    (source,) = blocks
    (tmp_path / "my_passes.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    hard_swish_model(tmp_path / "m.onnx")
    out = tmp_path / "out.onnx"
    passes = "my_passes:FuseHardSwish"
    assert (
        main(["compile", str(tmp_path / "m.onnx"), "-o", str(out), "--passes", passes, "--verify"])
        == 0
    )
    assert [node.op_type for node in onnx.load(out).graph.node] == ["Conv", "HardSwish"]


def test_the_pass_by_hand_of_the_documentation_works() -> None:
    text = (ROOT / "docs" / "passes.md").read_text()
    (source,) = re.findall(
        r"```python\n((?:(?!```).)*class DropNegativePairs.*?)```", text, flags=re.S
    )
    scope: dict[str, object] = {"__name__": "documented"}
    exec(compile(source, "docs/passes.md", "exec", dont_inherit=True), scope)
    module = irc.parse(
        "graph(%x: f32[2]) {\n  %a = negative(%x)\n  %b = negative(%a)\n  %y = nn.relu(%b)\n "
        " return(%y)\n}"
    )
    pass_ = scope["DropNegativePairs"]
    assert isinstance(pass_, type)
    pass_()(module, [Verify()])
    assert [node.op for node in module.graph.operators()] == ["nn.relu"]


SILENT = """
from dataclasses import dataclass
from irc.ir import Module
from irc.passes import Pass, PassContext

@dataclass(frozen=True)
class Silent(Pass):
    \"\"\"Do nothing, and say so.\"\"\"
    note: str = ""

    def run(self, module: Module, ctx: PassContext) -> bool:
        ctx.warnings.append(f"silent {self.note}")
        return False
"""


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("place", ["silent_here", "./silent_here.py", "FOLDER/silent_here.py"])
def test_a_file_of_passes_is_named(
    place: str,
    jobs: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "silent_here", raising=False)
    (tmp_path / "silent_here.py").write_text(SILENT)
    names = [f"{number}.onnx" for number in range(jobs)]
    for name in names:
        (tmp_path / name).write_bytes((ROOT / "examples" / "digits_cnn.onnx").read_bytes())
    pipeline = f"default,{place.replace('FOLDER', str(tmp_path))}:Silent{{note=here}}"
    assert main(["compile", *names, "-o", "out/", "--passes", pipeline]) == 0
    assert capsys.readouterr().err.count("warning: silent here") == jobs
    assert str(tmp_path) not in sys.path


def test_a_file_of_passes_that_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(irc.UsageError, match=r"there is no file 'gone\.py'"):
        irc.passes.parse_pipeline("./gone.py:Silent")
    (tmp_path / "broken.py").write_text("1 / 0")
    with pytest.raises(irc.PassError, match=r"broken\.py fails: ZeroDivisionError"):
        irc.passes.parse_pipeline(f"{tmp_path}/broken.py:Silent")
