"""The inputs that verification makes.

Other initializers, and extents that differ where symbols do.
"""

from __future__ import annotations

from pathlib import Path

import irc
import numpy as np
import onnx
import pytest
from graphs import Graph
from irc.support.errors import SourceError, VerifyError
from irc.tools.cli.main import main
from irc.tools.verify import run_budget
from irc.tools.verify.comparison import Comparison
from irc.tools.verify.input_generation import stimuli
from irc.tools.verify.inputs import Feeds, Stimulus, read_inputs
from onnx import ModelProto, TensorProto, helper, numpy_helper
from verification import text, verdict, verified

ADD = """g (float[2] x) => (float[2] y) <float[2] k = {1, 2}, int64[1] a = {0}> {
    h = ReduceSum(x, a) t = Abs(x) y = Add(x, k) }"""


def overridable(body: str = ADD, names: str = "k") -> ModelProto:
    model = text(body)
    kinds = {"k": (TensorProto.FLOAT, [2]), "a": (TensorProto.INT64, [1])}
    model.graph.input.extend(helper.make_tensor_value_info(name, *kinds[name]) for name in names)
    return model


def test_initializers_that_callers_may_override_get_other_values() -> None:
    """A model that keeps the input, and computes with the file's value, is accused."""
    model, wrong = (
        overridable(),
        overridable(ADD.replace("int64[1] a", "float[2] o = {1, 2}, int64[1] a")),
    )
    wrong.graph.node[-1].input[1] = "o"
    names = [stimulus.name for stimulus in Comparison(model).inputs]
    assert names[-1] == "normal 2, other initializers"
    assert len(names) == 8
    assert verified(model).verdicts[-1].inputs == 8
    comparison = Comparison(model)
    rows = [row for row, _ in comparison.differences(wrong) if row.deviates]
    assert {(row.tensor, row.inputs) for row in rows} == {("y", names[-1])}


def test_numbers_that_are_no_arrays_reach_the_runtime() -> None:
    """The inverse of a bool array without axes is no array for numpy; nor are users' numbers."""
    graph = Graph()
    graph.input("x", [])
    graph.input("c", [], np.dtype(bool))
    graph.initializer(np.array(True), "c")
    graph.node("Where", ["c", "x", graph.initializer(np.array(2, np.float32))], "y")
    graph.output("y", [])
    model = graph.model()
    assert Comparison(model).inputs[-1].name.endswith("other initializers")
    assert not verdict(
        model, model, inputs=[Stimulus("number", {"x": np.float32(1), "c": np.bool_(False)})]
    )


def test_integers_keep_their_values_where_others_do_not_run() -> None:
    """There is no second axis to sum over."""
    (last,) = [
        s
        for s in Comparison(overridable(names="ka")).inputs
        if s.name.endswith("other initializers")
    ]
    assert set(last.feeds) == {"x", "k"}
    assert not np.array_equal(last.feeds["k"], [1, 2])
    assert not [
        s
        for s in Comparison(overridable(names="a")).inputs
        if s.name.endswith("other initializers")
    ]


def test_a_frozen_initializer_is_told_unless_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, frozen = overridable(), text(ADD)
    with pytest.raises(VerifyError, match="callers can no longer override the initializer 'k'"):
        verdict(model, frozen)
    assert not verdict(model, frozen, frozen=True)
    source = str(tmp_path / "in.onnx")
    onnx.save(model, source)
    output = str(tmp_path / "out.onnx")
    assert main(["compile", source, "-o", output, "--freeze-initializers", "--verify", "-q"]) == 0
    assert [info.name for info in onnx.load(output).graph.input] == ["x"]
    assert main(["align", source, output, "-q"]) == 0
    assert main(["bisect", source, "--freeze-initializers", "-q"]) == 0
    assert (
        main(
            (
                f"compile {source} -o {output} --passes FreezeInitializers,default --verify=end -q"
            ).split()
        )
        == 0
    )
    assert capsys.readouterr().err == ""


def test_before_version_four_initializers_are_no_inputs() -> None:
    model = overridable()
    model.ir_version = 3
    model.graph.input.add().CopyFrom(helper.make_tensor_value_info("a", TensorProto.INT64, [1]))
    assert len(Comparison(model).inputs) == 7
    assert irc.compile(model).model.ir_version == 3


def test_initializers_of_ones_own(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.ones(2, np.float32), k=np.array([5, 6], np.float32))
    (stimulus,) = read_inputs([tmp_path / "x.npz"], overridable())
    assert set(stimulus.feeds) == {"x", "k"}
    assert [s.name for s in Comparison(overridable(), inputs=[stimulus]).inputs] == ["x.npz"]
    given = Stimulus("given", {"x": np.ones(2, np.float32)})
    assert len(Comparison(overridable(), inputs=[given]).inputs) == 2
    np.savez(tmp_path / "y.npz", x=np.ones(2, np.float32), k=np.array([5, 6]))
    with pytest.raises(VerifyError, match="the input 'k' is int64, but the model takes float32"):
        read_inputs([tmp_path / "y.npz"], overridable())


BRANCHES = """g ({}) => (float[A,B] y) <float k = {{{}}}> {{
    y = If(c) <then_branch = a () => (float[A,B] t) {{ {} }}, else_branch = b () => (float[A,B] u) {{ {} }}> }}"""


@pytest.mark.parametrize("inputs", ["bool c, float[N,3] x", "float[N,3] x, bool c"])
@pytest.mark.parametrize(
    "bodies", [("t = Mul(x, k)", "u = Neg(x)"), ("t = Neg(x)", "u = Mul(x, k)")]
)
def test_both_branches_run_on_inputs_that_tell(inputs: str, bodies: tuple[str, str]) -> None:
    model, wrong = (text(BRANCHES.format(inputs, k, *bodies)) for k in (2, 3))
    kinds = {
        row.inputs.split()[0] for row, _ in Comparison(model).differences(wrong) if row.deviates
    }
    assert kinds & {"normal", "wide", "positive"}


def test_booleans_and_single_integers_take_several_values() -> None:
    model = text(
        """g (bool a, float[2] x, bool[1] b, bool[2,3] m, int64 i, int64[1] j) => (bool[M] y, int64[1] z) {
        y = And(a, b) n = Not(m) w = Neg(x) z = Add(i, j) }"""
    )
    sets = {s.name.split()[0]: s.feeds for s in Comparison(model).inputs}
    zero = sets.pop("zero")
    assert not any(zero[name].any() for name in "abm")
    assert {(bool(feeds["a"]), bool(feeds["b"])) for feeds in sets.values()} == {
        (p, q) for p in (0, 1) for q in (0, 1)
    }
    masks = np.array([feeds["m"] for feeds in sets.values()])
    assert masks.any(axis=0).all()
    assert not masks.all(axis=0).any()
    assert len({mask.tobytes() for mask in masks}) > 2
    assert all(len({int(feeds[name].item()) for feeds in sets.values()}) > 3 for name in "ij")


def test_large_models_run_on_both_values_of_a_boolean(monkeypatch: pytest.MonkeyPatch) -> None:
    model = text(BRANCHES.format("float[N,3] x, bool c", 2, "t = Neg(x)", "u = Mul(x, k)"))
    for name in ("LARGE_BYTES", "HUGE_BYTES", "SLACK"):
        monkeypatch.setattr(run_budget, name, 0)
        for thorough in (False, True):
            inputs = Comparison(model, thorough=thorough).inputs
            assert {bool(stimulus.feeds["c"]) for stimulus in inputs} == {True, False}


@pytest.mark.parametrize("op", ["Log", "Sqrt", "Acosh"])
def test_faults_behind_operators_that_take_positive_numbers_alone_are_caught(op: str) -> None:
    """Of normal inputs all sums behind them are NaN, and of ones some are zero."""
    body = (
        "g (float[N,16] x) => (float[N,16] y) <float k = {{{}}}> {{ h = {}(x) s = MatMul(h, w) y ="
        " Mul(s, k) }}"
    )
    model, wrong = text(body.format(1, op)), text(body.format(1.5, op))
    weight = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
    for made in (model, wrong):
        made.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    rows = [row for row, _ in Comparison(model).differences(wrong) if row.tensor == "y"]
    assert {row.inputs.split()[0] for row in rows if row.deviates} >= {"positive"}
    assert {row.inputs.split()[0] for row in rows if row.is_undecided} >= {"normal", "negative"}


def of_type(elem_type: int) -> ModelProto:
    model = text("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    model.graph.input[0].type.tensor_type.elem_type = elem_type
    return model


REFUSED = {
    "axis": (
        text(
            "g (int64[2] i) => (float[A,B] y) <float[2] w = {1, 2}> { y = Gather<axis = 5>(w, i) }"
        ),
        "onnxruntime",
    ),
    "empty": (
        text("g (int64[N] i) => (float[N] y) <float[0] w = {}> { y = Gather(w, i) }"),
        "onnxruntime",
    ),
    "none": (of_type(0), "the input 'x' is of element type 0, which is not known"),
    "unknown": (of_type(99), "the input 'x' is of element type 99, which is not known"),
}


@pytest.mark.parametrize("command", ["compile", "compile at the end", "align", "bisect"])
@pytest.mark.parametrize(("model", "message"), REFUSED.values(), ids=REFUSED)
def test_a_source_that_cannot_run_is_refused_in_one_sentence(
    model: ModelProto,
    message: str,
    command: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, output = str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx")
    onnx.save(model, source)
    arguments = {"align": [source], "bisect": [], "compile": ["-o", output, "--verify"]}
    rest = arguments.get(command, ["-o", output, "--verify=end"])
    assert main([command.split()[0], source, *rest, "-q"]) == 1
    (line,) = [
        line for line in capsys.readouterr().err.splitlines() if not line.startswith("warning: ")
    ]
    assert message in line
    assert "failed after" not in line
    assert not Path(output).exists()


def test_other_models_and_inputs_of_an_unknown_type_are_refused(tmp_path: Path) -> None:
    known = text("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    with pytest.raises(
        VerifyError, match="the input 'x' is of element type 99, but float in the source"
    ):
        verdict(known, of_type(99))
    np.savez(tmp_path / "x.npz", x=np.ones(2, np.float32))
    with pytest.raises(
        VerifyError, match="the input 'x' is of element type 99, which is not known"
    ):
        read_inputs([tmp_path / "x.npz"], of_type(99))


def test_indices_stay_within_tables_counted_from_the_last_axis() -> None:
    model = text("g (int64[40] i) => (float[A,B] y) { y = Gather<axis = -1>(w, i) }")
    model.graph.initializer.append(numpy_helper.from_array(np.ones((9, 3), np.float32), "w"))
    assert {int(stimulus.feeds["i"].max()) for stimulus in Comparison(model).inputs} == {0, 1, 2}


def sets_of(model: ModelProto) -> list[str]:
    """The shapes that are tried."""
    return list(dict.fromkeys(stimulus.name.split()[1] for stimulus in Comparison(model).inputs))


def test_an_extent_of_zero_is_fixed() -> None:
    """A cache is empty at the first step."""
    model = text(
        """g (float[1,2,0,4] past, float[1,2,T,4] x) => (float[A,B,C,D] y) <float s = {2}> {
        k = Concat<axis = 2>(past, x) y = Mul(k, s) }"""
    )
    assert sets_of(model) == ["1x2x0x4,1x2x32x4", "1x2x0x4,1x2x48x4"]
    wrong = text(
        """g (float[1,2,0,4] past, float[1,2,T,4] x) => (float[A,B,C,D] y) <float s = {3}> {
        k = Concat<axis = 2>(past, x) y = Mul(k, s) }"""
    )
    assert verdict(model, wrong) == {"y"}
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = -1
    assert sets_of(model)[0] == "1x2x32x4,1x2x64x4"


def test_height_and_width_cannot_be_mixed_up() -> None:
    """Of squares both orders are alike, and a reshape looks as if it did nothing."""
    body = """g (float[N,H,W] x) => (float[A,B,C] y)
        <int64 zero = {{0}}, int64 one = {{1}}, int64 two = {{2}}, int64[1] a = {{0}}> {{
        s = Shape(x) n = Gather(s, zero) h = Gather(s, one) w = Gather(s, two) u = Unsqueeze(n, a) v = Unsqueeze({}, a)
        t = Unsqueeze({}, a) r = Concat<axis = 0>(u, v, t) y = Reshape(x, r) }}"""
    model = text(body.format("w", "h"))
    assert not verdict(model, model)
    assert verdict(model, text(body.format("h", "w"))) >= {"y"}
    assert sets_of(model) == ["2x32x64", "1x48x96"]


@pytest.mark.parametrize(
    ("inputs", "body", "shapes"),
    [
        (
            "float[N,H,W] x, float[N,W] u",
            "v = Unsqueeze(u, o) y = Add(x, v)",
            ["2x32x64,2x64", "1x48x96,1x96"],
        ),
        ("float[N,H,W] x", "y = MatMul(x, x)", ["2x32x32", "1x48x48"]),
        (
            "float[N,3,H,W] x, float[N,1,H,V] u",
            "y = Add(x, u)",
            ["2x3x32x32,2x1x32x32", "1x3x48x48,1x1x48x48"],
        ),
        (
            "float[S,N] x, float[N,S] u",
            "t = Transpose(u) y = Add(x, t)",
            ["2x32,32x2", "1x48,48x1"],
        ),
        ("float[4,4] x", "y = MatMul(x, x)", ["4x4"]),
    ],
    ids=["one symbol twice", "square", "symbols that are equal", "across inputs", "none"],
)
def test_extents_differ_where_the_source_runs_so(inputs: str, body: str, shapes: list[str]) -> None:
    assert (
        sets_of(text(f"g ({inputs}) => (float[M] y) <int64[1] o = {{1}}> {{ {body} }}")) == shapes
    )


def test_dimensions_without_a_symbol_differ_by_axis() -> None:
    model = text("g (float[N,H,W] x, float[N,H,W] u) => (float[A,B,C] y) { y = Add(x, u) }")
    for info in model.graph.input:
        for dim in info.type.tensor_type.shape.dim:
            dim.Clear()
    assert sets_of(model) == ["2x32x64,2x32x64", "1x48x96,1x48x96"]


@pytest.mark.parametrize(
    ("dims", "most"),
    [
        (["N", "C", "H", "W"], 1 << 22),
        (["N", 3, 1024, 2048], 2 * 3 * 1024 * 2048),
        (["N", 3], 3 << 20),
    ],
)
def test_extents_are_left_out_with_which_inputs_are_very_large(
    dims: list[int | str], most: int
) -> None:
    """A small model with open axes got 67 million elements: it ran on no smaller ones."""
    tried: list[int] = []

    def error_on(feeds: Feeds) -> str:
        tried.append(sum(array.size for array in feeds.values()))
        return "it runs on none"

    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Relu", ["x"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        )
    )
    with pytest.raises(SourceError, match="it runs on none"):
        list(stimuli(model, error_on, lambda *_: None))
    assert most // 2 <= max(tried) <= most


SEQUENCES = {
    "a sequence": (
        "g (seq(float[N,4]) s, int64 i) => (float[A,B] y) { h = SequenceAt(s, i) y = {step}(h) }"
    ),
    "its length": (
        "g (seq(float[N,4]) s) => (int64 n, float[A,B] y) {"
        " n = SequenceLength(s) h = ConcatFromSequence<axis = 0>(s) y = {step}(h) }"
    ),
    "an optional tensor": (
        "g (optional(float[N,4]) s) => (float[A,B] y) { h = OptionalGetElement(s) y = {step}(h) }"
    ),
    "an optional sequence": (
        "g (optional(seq(float[2,4])) s) => (float[A,B] y) {"
        " t = OptionalGetElement(s) h = ConcatFromSequence<axis = 1>(t) y = {step}(h) }"
    ),
}


@pytest.mark.parametrize("body", SEQUENCES.values(), ids=SEQUENCES)
def test_sequences_and_optional_inputs_are_generated(body: str, tmp_path: Path) -> None:
    right, wrong = (text(body.replace("{step}", step), 18) for step in ("Tanh", "Erf"))
    assert not verdict(right, right)
    assert "y" in verdict(right, wrong)
    assert verified(right).verdicts[-1].tensors
    onnx.save(right, tmp_path / "a.onnx")
    assert (
        main(
            f"align {tmp_path / 'a.onnx'} {tmp_path / 'a.onnx'} -q --json {tmp_path / 'a.json'}".split()
        )
        == 0
    )
