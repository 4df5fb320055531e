"""Verification by numbers.

What is right passes, ten faults are caught and blamed on the right pass and tensor.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import harness
import irc
import numpy as np
import onnx
import onnxruntime
import pytest
from graphs import F16, F32, Graph, batch_norm
from harness import EXAMPLE
from injected import (
    FAULTS,
    C,
    Fault,
    Patch,
    dropped_bias,
    network,
    relu_forgotten,
    reversed_channels,
)
from irc.frontends.onnx import from_model
from irc.passes import PassContext, parse_pipeline
from irc.support.errors import SourceError, VerifyError
from irc.tools.cli.main import main
from irc.tools.verify import Stimulus, VerifyNumerics, reference_model, run_budget
from irc.tools.verify.bisection import bisect, judge_numerically
from irc.tools.verify.comparison import Comparison
from irc.tools.verify.difference import undecided_share
from irc.tools.verify.inputs import read_inputs
from irc.tools.verify.monte_carlo import SUMS_IN_FLOAT16
from irc.tools.verify.onnx_graph import tensor_names
from irc.tools.verify.runner import IncrementalRun, Runner
from onnx import ModelProto, TensorProto, helper, numpy_helper
from verification import text, verdict, verified


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_caught_and_blamed(
    fault: Fault, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    verified(fault.model)
    fault.patch(monkeypatch)
    with pytest.raises(VerifyError) as error:
        verified(fault.model, reproducer=tmp_path / "shown")
    assert str(error.value).startswith(f"{fault.pass_}: tensor '{fault.tensor}' {fault.how} "), (
        error.value
    )
    inputs = dict(np.load(tmp_path / "shown" / "inputs.npz"))
    results = [
        onnxruntime.InferenceSession(tmp_path / "shown" / name).run(
            None, fed(tmp_path / "shown" / name, inputs)
        )[0]
        for name in ("before.onnx", "after.onnx")
    ]
    assert results[0].shape != results[1].shape or not np.allclose(*results, rtol=1e-5, atol=1e-6)


def fed(path: Path, inputs: dict[str, Any]) -> dict[str, Any]:
    return {info.name: inputs[info.name] for info in onnx.load(path).graph.input}


def test_bisect_finds_the_application(monkeypatch: pytest.MonkeyPatch) -> None:
    model, pipeline = network(), parse_pipeline("default")
    judge = judge_numerically(VerifyNumerics(), from_model(model))
    assert bisect(lambda: from_model(model), pipeline, judge) is None
    relu_forgotten(monkeypatch)
    found = bisect(lambda: from_model(model), pipeline, judge)
    assert found is not None
    assert (found.pass_, found.rule, found.where) == ("SimplifyExpr", "forget", "Relu 'relu'")
    assert 0 < found.step < found.steps
    assert found.wrong.startswith("tensor 'b1' is off by")


@pytest.mark.parametrize("pass_", ["BiasCorrection", "HighBiasAbsorption"])
def test_bisect_accuses_no_pass_that_changes_the_function(
    pass_: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["bisect", str(EXAMPLE), "--passes", f"default,{pass_},FoldConstant", "-q"]
    assert main(arguments) == 2
    assert (
        f"{pass_} changes the function by design: leave it out of --passes"
        in capsys.readouterr().err
    )
    assert main([*arguments, "--command", "test -s {}"]) == 0


@pytest.mark.slow
def test_bisect_by_a_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The first fold after which fewer than two BatchNormalizations are left."""
    onnx.save(network(), tmp_path / "in.onnx")
    command = (
        f"{sys.executable} -c 'import onnx, sys; sys.exit("
        + 'sum(n.op_type == "BatchNormalization" for n in onnx.load(sys.argv[1]).graph.node) <'
        " 1)' {}"
    )
    assert main(["bisect", str(tmp_path / "in.onnx"), "--command", command]) == 1
    assert "FoldScaleAxis, step 4 of" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("passes", "said"),
    [
        ("none", "without passes"),
        ("FoldConstant", "after FoldConstant"),
        ("default", "after the default pipeline"),
    ],
)
def test_bisect_says_behind_what_nothing_is_wrong(
    passes: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bisect", str(EXAMPLE), "--passes", passes, "--command", "test -s {}"]) == 0
    assert capsys.readouterr().out == f"{EXAMPLE}: nothing is wrong {said}\n"


@pytest.mark.parametrize(
    ("command", "status"), [("no-such-command {}", 127), ("/ {}", 126), ("(exit 127) # {}", 127)]
)
def test_a_command_that_cannot_be_run_says_nothing_of_the_model(
    command: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bisect", str(EXAMPLE), "--command", command]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == (
        "",
        f"irc: --command: {command!r} cannot be run: the shell returns status {status}\n",
    )


def test_every_pass_that_changes_something_is_verified_or_only_the_end() -> None:
    each = verified(network())
    assert [verdict.pass_ for verdict in each.verdicts] == [
        "SimplifyInference", "FoldScaleAxis", "FoldConstant", "the written model",
    ]  # fmt: skip
    end = verified(network(), when="end")
    assert len(end.verdicts) == 1
    assert 0 < end.verdicts[0].greatest < 1
    assert (
        len({stimulus.name.split()[1] for stimulus in each.comparison(irc.load(EXAMPLE)).inputs})
        == 2
    )


def test_a_pass_that_changes_the_function_is_not_accused() -> None:
    verify = verified(
        onnx.load(EXAMPLE), "default,CrossLayerEqualization,BiasCorrection,FoldConstant"
    )
    assert verify.rebased == "BiasCorrection"
    assert any("changes the function" in line for line in verify.lines())


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_at_the_end_what_stands_before_a_change_of_the_function_is_verified(
    fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault.patch(monkeypatch)
    with pytest.raises(
        VerifyError, match=f"FoldConstant: tensor '{fault.tensor}' {fault.how} "
    ) as raised:
        verified(fault.model, "default,BiasCorrection,FoldConstant", when="end")
    assert fault.pass_ in str(raised.value).partition(":")[0].split(",")


def test_at_the_end_a_verdict_names_the_passes_since_the_function_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = verified(
        onnx.load(EXAMPLE), "default,BiasCorrection,FoldConstant", when="end"
    ).verdicts
    assert (
        first.pass_ == "SimplifyInference,FoldScaleAxis,FoldConstant"
    )  # no other pass of "default" changed anything
    assert second.pass_ == "FoldConstant"
    relu_forgotten(monkeypatch)
    with pytest.raises(VerifyError, match=r"^SimplifyExpr,FoldConstant: tensor 'c1'"):
        verified(network(), "FoldScaleAxis,BiasCorrection,SimplifyExpr,FoldConstant", when="end")


@pytest.mark.shared
@pytest.mark.slow
def test_shared_models_verify() -> None:
    for path in harness.shared_models("digits"):
        assert all(verdict.greatest < 1 for verdict in verified(onnx.load(path)).verdicts), (
            path.name
        )


def test_rounding_is_told_from_faults() -> None:
    """What float32 does to a sum is within the bound.

    One part in ten thousand in one weight is not.
    """
    model = network()
    comparison = Comparison(model)
    other = onnx.ModelProto()
    other.CopyFrom(model)
    weight = numpy_helper.to_array(other.graph.initializer[0]).copy()
    weight[1, 2, 0, 1] *= np.float32(1 + 2**-23)
    other.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w0"))
    assert comparison.deviation(other)[0] is None
    weight[1, 2, 0, 1] *= np.float32(1 + 1e-4)
    other.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w0"))
    deviation, _ = comparison.deviation(other)
    assert deviation is not None
    assert deviation.difference.tensor == "c0"


def test_integers_text_and_what_rounding_decides() -> None:
    """Indices are compared exactly; those of a tie that noise decides are not."""
    graph = Graph(dtype=F32)
    x = graph.input("x", [2, 6])
    graph.output(graph.node("ArgMax", [x], "most", axis=1), dtype=np.dtype(np.int64))
    graph.output(
        graph.node("Greater", [x, graph.initializer(np.float32(0.0))], "positive"),
        dtype=np.dtype(bool),
    )
    model = graph.model()
    assert all(not row.deviates for row, _ in Comparison(model).differences(model))
    wrong = onnx.ModelProto()
    wrong.CopyFrom(model)
    wrong.graph.node[0].op_type = "ArgMin"
    assert {row.tensor for row, _ in Comparison(model).differences(wrong) if row.deviates} == {
        "most"
    }


def test_scalars_and_empty_tensors() -> None:
    graph = Graph(dtype=F32)
    x = graph.input("x", [3])
    graph.output(graph.node("ReduceSum", [graph.node("Mul", [x, x])], "sum", keepdims=0), [])
    graph.output(
        graph.node("Slice", [x, *(graph.initializer(np.array([n])) for n in (1, 1))], "none"), [0]
    )
    model = graph.model()
    rows = [row for row, _ in Comparison(model).differences(model)]
    assert {row.shape for row in rows} == {(), (0,), (3,)}
    assert not any(row.deviates for row in rows)


def test_a_model_that_does_not_run_says_so() -> None:
    graph = Graph(dtype=F32)
    graph.output(graph.node("Hide", [graph.input("x", [2])], domain="com.acme"), [2])
    with pytest.raises(
        VerifyError, match=r"runs on no generated inputs .*: onnxruntime cannot load"
    ):
        Comparison(graph.model())


@pytest.mark.parametrize("form", ["npz", "npy", "pb"])
def test_inputs_of_ones_own(form: str, tmp_path: Path) -> None:
    array = np.random.default_rng(0).standard_normal((3, C, 9, 9)).astype(np.float32)
    path = tmp_path / f"x.{form}"
    if form == "npz":
        np.savez(path, x=array)
    elif form == "npy":
        np.save(path, array)
    else:
        path.write_bytes(numpy_helper.from_array(array, "x").SerializeToString())
    (stimulus,) = read_inputs([path], network())
    assert np.array_equal(stimulus.feeds["x"], array)
    assert len(verified(network(), inputs=[stimulus]).comparison(irc.load(EXAMPLE)).inputs) == 1


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((1, C, 9, 9)), "the input 'x' is float64, but the model takes float32"),
        (np.zeros((C, 9, 9), np.float32), "the input 'x' has 3 axes, but the model takes 4"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(array: Any, message: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(VerifyError, match=message):
        read_inputs([tmp_path / "x.npy"], network())
    with pytest.raises(VerifyError, match=r"y\.npy: there is no such file"):
        read_inputs([tmp_path / "y.npy"], network())


def test_indices_stay_within_the_table() -> None:
    graph = Graph(dtype=F32)
    ids = graph.input("ids", ["N", 5], np.dtype(np.int64))
    rows = graph.node(
        "Gather", [graph.initializer(graph.random(3, C)), graph.node("Identity", [ids])]
    )
    graph.output(rows, ["N", 5, C])
    assert len(Comparison(graph.model()).inputs) == 14


def test_memory_is_bounded_by_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_model, "CHUNK_BYTES", 1 << 14)
    monkeypatch.setattr(reference_model, "CACHE_BYTES", 0)
    model = network()
    comparison = Comparison(model)
    assert len(list(comparison.source.chunks(4))) > 3
    assert comparison.deviation(irc.compile(model).model)[0] is None


def test_the_command_line_verifies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out.onnx"
    assert main(["compile", str(EXAMPLE), "-o", str(output), "--verify"]) == 0
    assert "verified FoldScaleAxis: 19 tensors, 14 inputs" in capsys.readouterr().err
    assert main(["compile", str(EXAMPLE), "-o", str(output), "--inputs", "x.npy", "-q"]) == 2
    assert "--inputs needs --verify or --float16, which run the model" in capsys.readouterr().err


def test_a_deviation_leaves_no_output(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dropped_bias(monkeypatch)
    output = tmp_path / "out.onnx"
    assert (
        main(f"compile {EXAMPLE} -o {output} --verify --fold-map {tmp_path / 'm.json'}".split())
        == 1
    )
    message = capsys.readouterr().err
    assert message.startswith("irc: FoldScaleAxis: tensor 'stem/bn:0' is off by")
    assert message.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["out.onnx.deviation"]
    shown = sorted(path.name for path in (tmp_path / "out.onnx.deviation").iterdir())
    assert shown == ["after.onnx", "before.onnx", "inputs.npz"]


def test_align_prints_dumps_and_judges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, fold_map, table = (
        str(tmp_path / name) for name in ("out.onnx", "map.json", "rows.json")
    )
    assert main(["compile", str(EXAMPLE), "-o", output, "--fold-map", fold_map, "-q"]) == 0
    command = f"align {EXAMPLE} {output} --map {fold_map} --json {table} --dump {tmp_path / 'dump'}".split()
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "19 tensors agree within their rounding bounds" in text
    assert text.startswith("19 tensors agree")
    note = "only in the first model: 8 tensors: stem/conv:0 (inside stem/conv, whose result is"
    assert text.index("max abs") < text.index(note) and text.endswith(" and 5 more\n")
    rows = json.loads(Path(table).read_text())
    assert rows["first_divergence"] is None
    assert len(rows["rows"]) == 19 * 14
    index = json.loads((tmp_path / "dump" / "index.json").read_text())
    entry = next(item for item in index if item["model"] == "b" and item["tensor"] == "stem/bn:0")
    assert list(np.load(tmp_path / "dump" / entry["file"]).shape) == entry["shape"]
    other = onnx.load(output)
    bias = next(tensor for tensor in other.graph.initializer if tensor.name == "down/conv.bias")
    bias.CopyFrom(
        numpy_helper.from_array(numpy_helper.to_array(bias) + np.float32(0.01), bias.name)
    )
    onnx.save(other, tmp_path / "other.onnx")
    drawing = tmp_path / "drawing.svg"
    assert main(["align", str(EXAMPLE), str(tmp_path / "other.onnx"), "--svg", str(drawing)]) == 1
    assert "the first to diverge is 'down/bn:0': 0.01" in capsys.readouterr().out
    texts = list(ElementTree.parse(drawing).getroot().itertext())
    assert texts[texts.index("down/bn") + 1].startswith("first to diverge: ")
    assert texts[texts.index("stem/conv") + 1] == "only in the first"


def test_align_writes_a_page(tmp_path: Path) -> None:
    output, page = str(tmp_path / "out.onnx"), tmp_path / "align.html"
    assert main(["compile", str(EXAMPLE), "-o", output, "-q"]) == 0
    assert main(["align", str(EXAMPLE), output, "--html", str(page), "-q"]) == 0
    text = page.read_text()
    assert "digits_cnn.onnx and out.onnx" in text
    assert '"tensor":"stem/bn:0"' in text


def test_a_report_of_a_verified_compile_has_the_alignment(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    command = (
        f"compile {EXAMPLE} -o {tmp_path / 'out.onnx'} --verify=end --report {page} -q"
    ).split()
    assert main(command) == 0
    assert '"tensor":"stem/bn:0"' in page.read_text()


def test_a_summary_for_machines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = f"compile {EXAMPLE} -o {tmp_path / 'out.onnx'} --verify=end --json - -q".split()
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["operators"] == [27, 19]
    assert found["affines"] == {"folded": 8}
    assert found["warnings"] == []
    assert found["verified"][0]["tensors"] == 19


def test_a_power_gets_no_noise_on_its_exponent() -> None:
    cube = text("g (float[16] x) => (float[16] y) <float k = {3.0}> { y = Pow(x, k) }")
    other = text("g (float[16] x) => (float[16] y) <float k = {3.0}> { a = Abs(x) y = Pow(a, k) }")
    assert verdict(cube, other) == {"y"}
    assert not verdict(cube, cube)


def test_results_that_no_node_makes_are_compared() -> None:
    first = text(
        "g (float[3] x) => (float[3] y, float[3] c) <float[3] k = {1,2,3}> { y = Abs(x) c = Add(k,"
        " k) }"
    )
    second = text(
        "g (float[3] x) => (float[3] y, float[3] c) { y = Abs(x) c ="
        " Constant<value_floats=[2.0,4.0,7.0]>() }"
    )
    third = text("g (float[3] x) => (float[3] y, float[3] c) <float[3] c = {2,4,9}> { y = Abs(x) }")
    assert verdict(first, second) == {"c"}
    assert verdict(first, third) == {"c"}
    assert verdict(third, second) == {"c"}


def test_sequences_are_compared_part_by_part() -> None:
    head = "g (float[3] x, float[3] z) => (seq(float[3]) y)"
    first = text(f"{head} {{ y = SequenceConstruct(x, z) }}")
    assert verdict(first, text(f"{head} {{ y = SequenceConstruct(z, z) }}")) == {"y [0]"}
    assert verdict(first, text(f"{head} {{ y = SequenceConstruct(x) }}")) == {"y [length]", "y [1]"}
    assert not verdict(first, first)


def test_booleans_are_compared_exactly_where_noise_does_not_decide() -> None:
    """Sin(pi) is noise; the others are not."""
    body = "g (float[16] x) => (bool[16] y) <float k = {{0.0}}> {{ s = Sin(x) y = {}(s, k) }}"
    x = np.array([np.pi, *np.linspace(1, 2, 15)], np.float32)
    stimulus = [Stimulus("given", {"x": x})]
    assert verdict(text(body.format("Greater")), text(body.format("Less")), inputs=stimulus) == {
        "y"
    }


def test_large_channels_hide_no_fault_in_small_ones() -> None:
    weight = np.random.default_rng(0).standard_normal((64, 16)).astype(np.float32)
    weight[:, 0] *= 1e6
    models = []
    for sign in (1, -1):
        graph = Graph(dtype=F32)
        x = graph.input("x", [8, 64])
        changed = weight.copy()
        changed[:, 5] *= sign
        graph.output(graph.node("MatMul", [x, graph.initializer(changed)], "y"))
        models.append(graph.model())
    assert verdict(*models) == {"y"}


@pytest.mark.parametrize(
    "body",
    [
        "g (int64 n) => (int64 y) { y = Identity(n) }",
        "g (bool b) => (bool y) { y = Not(b) }",
        "g (int32[4] a, int32[4] b) => (int32[4] y) { y = Div(a, b) }",
        "g (float[4] x) => (float[4] y) { a = Cast<to=16>(x) b = Identity(a) y = Cast<to=1>(b) }",
        """g (float[9] x) => (float[K] y) <float z = {0.0}> { s = Sin(x) p = Greater(s, z) a = Compress<axis=0>(x, p)
            t = Sin(x) q = Greater(t, z) b = Compress<axis=0>(x, q) y = Add(a, b) }""",
    ],
    ids=[
        "scalar integer",
        "scalar boolean",
        "division by zero",
        "bfloat16",
        "shapes that noise decides",
    ],
)
def test_what_is_right_is_not_accused(body: str) -> None:
    assert all(verdict.greatest <= 1 for verdict in verified(text(body)).verdicts)


def test_tensors_that_say_nothing_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = Graph(dtype=F32)
    x = graph.input("x", [64])
    nothing = graph.node("Sub", [graph.node("Sin", [x]), graph.node("Sin", [x])])
    graph.output(graph.node("Sqrt", [graph.node("ReduceMin", [nothing])], "y"), [1])
    onnx.save(graph.model(), tmp_path / "a.onnx")
    assert main(["align", str(tmp_path / "a.onnx"), str(tmp_path / "a.onnx")]) == 0
    assert (
        "or their rounding bounds as large as their values: 3 tensors: t_3, t_4, y\n"
        in capsys.readouterr().out
    )


def test_inputs_without_tensors_are_refused_in_one_sentence() -> None:
    model = text(
        "g (float[1] m) => (float[2] y) { y = ai.onnx.ml.DictVectorizer <int64_vocabulary = [1, 2]>"
        " (m) }"
    )
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    number = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    model.graph.input[0].type.CopyFrom(helper.make_map_type_proto(TensorProto.INT64, number))
    with pytest.raises(
        VerifyError, match="the input 'm' has no tensors: it can be neither generated nor given"
    ):
        Comparison(model)


@pytest.mark.parametrize("name", ["x.npz", "x.npy", "x.pb"])
@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x93NUMPY\x01\x00"])
def test_files_that_hold_no_inputs_are_refused(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(VerifyError, match=r"no inputs can be read from it|input .* is"):
        read_inputs([tmp_path / name], network())


def test_external_data_stand_in_the_reproducer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = tmp_path / "in.onnx"
    harness.save_external(network(), source, "in.bin")
    dropped_bias(monkeypatch)
    assert main(["compile", str(source), "-o", str(tmp_path / "out.onnx"), "--verify", "-q"]) == 1
    shown = tmp_path / "elsewhere"
    (tmp_path / "out.onnx.deviation").rename(shown)
    (tmp_path / "in.bin").unlink()
    inputs = dict(np.load(shown / "inputs.npz"))
    results = [
        onnxruntime.InferenceSession(shown / f"{name}.onnx").run(None, inputs)[0]
        for name in ("before", "after")
    ]
    assert not np.allclose(*results, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "arguments",
    [
        ["bisect", "{model}", "--command", "true"],
        ["bisect", "{model}", "--command", "true {{}}", "--inputs", "x.npy"],
        ["align", "{model}", "{model}", "--json", "{model}"],
        ["align", "{model}", "{model}", "--json", "x", "--html", "x"],
        ["align", "{model}", "{model}", "--html", "-"],
    ],
)
def test_options_that_do_not_go_together_are_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([argument.format(model=EXAMPLE) for argument in arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1


SCALED = """g (float[2,2] x) => (float[2,2] y) <float small = {{0.001}}, float large = {{1e30}}> {{
    {} r = Relu(s) y = Sigmoid(r) }}"""


def test_what_overflows_in_the_source_is_undecided() -> None:
    """Scaled first, the product stays within float32.

    Where nothing overflows, faults are seen all the same.
    """
    late = text(SCALED.format("p = Mul(x, large) s = Mul(p, small)"))
    early = text(SCALED.format("q = Mul(x, small) s = Mul(q, large)"))
    wrong = text(SCALED.format("q = Mul(x, small) t = Neg(q) s = Mul(t, large)"))
    stimulus = [Stimulus("large", {"x": np.full((2, 2), 1e9, np.float32)})]
    rows = [row for row, _ in Comparison(late, inputs=stimulus).differences(early)]
    assert {row.tensor for row in rows} == {"s", "r", "y"}
    assert all(row.is_undecided and not row.deviates for row in rows)
    assert verdict(late, wrong) == {"s", "r", "y"}
    assert verdict(early, late, inputs=stimulus) == {"s", "r"}, (
        "a compile that overflows is accused"
    )


def test_a_quotient_that_overflows_is_undecided() -> None:
    """Where the divisor has zeros, or is computed, an infinity need not be too large a number."""
    body = (
        "g (float[2] x) => (float[2] y) <float[2] d = {{1e-30, {}}}, float k = {{1e-6}}> {{ {} y ="
        " Relu(s) }}"
    )
    late, early = "q = Div(x, d) s = Mul(q, k)", "p = Mul(x, k) s = Div(p, d)"
    wrong = "p = Mul(x, k) n = Neg(p) s = Div(n, d)"
    inputs = [Stimulus("large", {"x": np.full(2, 1e12, np.float32)})]
    assert not verdict(
        text(body.format("1e-29", late)), text(body.format("1e-29", early)), inputs=inputs
    )
    assert verdict(text(body.format("1e-29", late)), text(body.format("1e-29", wrong))) == {
        "s",
        "y",
    }
    assert verdict(
        text(body.format("1e-29", early)), text(body.format("1e-29", late)), inputs=inputs
    ) == {"s", "y"}
    for zeros in (
        body.format("0", late),
        body.format("1e-29", "o = Abs(d) q = Div(x, o) s = Mul(q, k)"),
    ):
        comparison = Comparison(text(zeros), inputs=inputs)
        assert not any(row.deviates for row, _ in comparison.differences(text(zeros)))
        assert not comparison.source.overflow(inputs[0]).overflown


@pytest.mark.parametrize(("exponent", "is_overflow"), [(2.0, True), (-1.0, False)])
def test_a_power_overflows_where_its_exponents_are_positive(
    exponent: float, is_overflow: bool
) -> None:
    """Zero to the power of -1 is infinite, whatever the element type."""
    body = "g (float[2] x) => (float[2] y) <float e = {{{}}}> {{ q = Pow(x, e) y = Relu(q) }}"
    model = text(body.format(exponent))
    inputs = [Stimulus("extreme", {"x": np.array([0.0, 1e30], np.float32)})]
    comparison = Comparison(model, inputs=inputs)
    assert not any(row.deviates for row, _ in comparison.differences(model))
    assert bool(comparison.source.overflow(inputs[0]).overflown) == is_overflow


def test_infinities_that_are_no_overflow_are_compared() -> None:
    body = (
        "g (float[2] x) => (float[2] y) <float[2] m = {{0.0, 1.0}}> {{ n = {}(m) y = Add(x, n) }}"
    )
    masked, other = text(body.format("Log")), text(body.format("Identity"))
    comparison = Comparison(masked)
    assert not any(row.deviates for row, _ in comparison.differences(masked))
    assert not any(comparison.source.overflow(stimulus).overflown for stimulus in comparison.inputs)
    assert "n" in verdict(masked, other)


def test_a_walk_computes_what_the_whole_model_does() -> None:
    """A loop over an earlier part, a tensor that is read late, and one that cannot be fed."""
    model = text("""g (float[4] x, bool c) => (float[4] y) <int64 i = {0}> {
        a = Abs(x) s = SequenceConstruct(a, x) b = Neg(a)
        d = If(c) <then_branch = g () => (float[4] t) { t = Add(a, b) },
                   else_branch = g () => (float[4] e) { e = Mul(b, b) }>
        f = SequenceAt(s, i) h = Add(f, d) y = Sub(h, a) }""")
    feeds = {"x": np.arange(-2, 2, dtype=np.float32), "c": np.array(False)}
    names = tensor_names(model)
    runner = Runner(model, Path())
    walk = IncrementalRun(runner, feeds)
    found = {name: walk.compute([name])[0] for name in names}
    assert not walk.held
    for name, value in zip(names, Runner(model, Path()).run(names, feeds), strict=True):
        assert np.array_equal(found[name], value), name


def test_an_operator_runs_again_for_a_second_result() -> None:
    model = text("""g (float[6] x) => (float[2] y) <int64[3] sizes = {2, 2, 2}> {
        a, b, c = Split(x, sizes) d = Neg(a) e = Add(d, b) f = Add(e, a) y = Sub(f, c) }""")
    walk = IncrementalRun(Runner(model, Path()), {"x": np.arange(6, dtype=np.float32)})
    found = [
        value.tolist() for names in ("a", "db", "ef", "cy") for value in walk.compute([*names])
    ]
    assert found == [[0, 1], [0, -1], [2, 3], [2, 2], [2, 3], [4, 5], [-2, -2]]


def test_integers_beyond_float64_are_told_apart() -> None:
    body = "g (int64[2] x) => (int64[2] y) {{ k = Constant<value_ints=[{}, 5]>() y = Add(k, x) }}"
    stimulus = [Stimulus("zero", {"x": np.zeros(2, np.int64)})]
    assert verdict(text(body.format(2**60)), text(body.format(2**60 + 1)), inputs=stimulus) == {"y"}


def test_a_model_that_agreed_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []
    verify = VerifyNumerics(advance=runs.append)
    result = irc.compile(network(), context=PassContext([verify]))
    before = len(runs)
    verify.finish(result.module, result.model)
    assert len(runs) == before
    assert verify.verdicts[-1] == replace(verify.verdicts[-2], pass_="the written model")


@pytest.mark.parametrize("external", [False, True], ids=["whole", "external"])
def test_large_files_are_verified_with_the_tensors_that_are_left_in_them(
    external: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    harness.take_all_for_large(monkeypatch)
    source, output = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(
        network(), source, save_as_external_data=external, location="in.bin", size_threshold=0
    )
    for when in ("each", "end"):
        assert main(["compile", str(source), "-o", str(output), f"--verify={when}"]) == 0, (
            capsys.readouterr().err
        )
    assert main(["bisect", str(source), "-q"]) == 0
    assert main(["align", str(source), str(output), "-q"]) == 0
    dropped_bias(monkeypatch)
    assert main(["bisect", str(source), "-q"]) == 1
    capsys.readouterr()
    assert main(["compile", str(source), "-o", str(tmp_path / "wrong.onnx"), "--verify", "-q"]) == 1
    assert capsys.readouterr().err.startswith("irc: FoldScaleAxis: tensor 'b0' is off by")


def test_inputs_from_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    paths = [tmp_path / folder / "x.npz" for folder in "ab"]
    for seed, path in enumerate(paths):
        path.parent.mkdir()
        np.savez(
            path, x=np.random.default_rng(seed).standard_normal((1, C, 9, 9)).astype(np.float32)
        )
    inputs = read_inputs(paths, network())
    assert [stimulus.name for stimulus in inputs] == [str(path) for path in paths]
    assert verified(network(), inputs=inputs).verdicts[-1].inputs == 2
    array = np.ones((1, C, 9, 9), np.float32)
    assert verified(network(), inputs=[Stimulus("same", {"x": array * k}) for k in (1, 2)]).verdicts


PAIR = "g (float[2] x, float[2] u) => (float[2] y, float[2] z) { y = Abs(x) z = Neg(x) }"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            ("float[2] y, float[2] z", "float[2] z, float[2] y"),
            "the results are 'z', 'y', but 'y', 'z' in the source",
        ),
        (("float[2] y, float[2] z", "float[2] y"), "the result 'z' is missing"),
        (("float[2] z)", "float[2] z, float[2] u)"), "the result 'u' is not in the source"),
        (
            ("float[2] y, float[2] z", "float[2] y, float[2] z, float[2] y"),
            "the results are 'y', 'z', 'y', but 'y'",
        ),
        ((", float[2] u", ""), "the input 'u' is missing"),
        (
            ("float[2] x, float[2] u", "float[2] u, float[2] x"),
            "the inputs are 'u', 'x', but 'x', 'u' in the source",
        ),
        (("float[2] u", "double[2] u"), "the input 'u' is double, but float in the source"),
        (("float[2] u", "float[2] u, float[2] v"), "the input 'v' is not in the source"),
    ],
)
def test_another_interface_is_told(changed: tuple[str, str], message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        verdict(text(PAIR), text(PAIR.replace(*changed)))


def test_results_in_another_order_are_blamed_on_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    from irc.backends.onnx.emitter import _Emitter

    write = _Emitter.outputs

    def reverse(self: Any, graph: Any, source: Any, target: Any) -> None:
        write(self, graph, source, target)
        results = [
            onnx.ValueInfoProto.FromString(info.SerializeToString()) for info in target.output
        ]
        del target.output[:]
        target.output.extend(reversed(results))

    monkeypatch.setattr(_Emitter, "outputs", reverse)
    with pytest.raises(
        VerifyError, match="the written model: the results are 'z', 'y', but 'y', 'z' in the source"
    ):
        verified(text(PAIR))


def negated_weights(patch: pytest.MonkeyPatch) -> None:
    from irc.passes.affine.search.commit import Committer

    weight = Committer._weight
    patch.setattr(Committer, "_weight", lambda self, fold, factor: weight(self, fold, -factor))


def half_network() -> ModelProto:
    """A convolution that sums 4608 products of halves, and a BatchNormalization."""
    graph = Graph(dtype=F16)
    x = graph.input("x", ["N", 512, 8, 8])
    weight = (graph.random(C, 512, 3, 3) / np.sqrt(512 * 9)).astype(F16)
    hidden = graph.node("Conv", [x, graph.initializer(weight, "w")], "c", "conv")
    hidden = graph.batch_norm(hidden, batch_norm(C, 1), "b", "bn")
    graph.output(graph.node("Relu", [hidden], "y"))
    return graph.model()


@pytest.mark.skipif(SUMS_IN_FLOAT16, reason="float16 is summed in float16 here")
@pytest.mark.parametrize(
    "fault", [negated_weights, reversed_channels, dropped_bias], ids=lambda fault: fault.__name__
)
def test_faults_in_long_sums_of_halves_are_caught(
    fault: Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify = verified(half_network(), when="end")
    assert 0 < verify.verdicts[-1].greatest < 1
    fault(monkeypatch)
    with pytest.raises(VerifyError, match="tensor 'b' is off by"):
        verified(half_network(), when="end")


def causal(sign: int, mask: str, opset: int = 17) -> ModelProto:
    """Two layers of attention under a mask that lets each row see those before it."""
    masked = {"add": "{0} = Add({1}, mask)", "where": "{0} = Where(seen, {1}, never)"}[mask]
    model = text(
        f"""g (float[5,4] x) => (float[5,4] z) {{
        q = MatMul(x, first) {masked.format("a", "q")} p = Softmax<axis=1>(a) h = MatMul(p, x)
        r = MatMul(h, second) {masked.format("b", "r")} s = Softmax<axis=1>(b) t = MatMul(s, h) y = MatMul(t, v)
        z = Relu(y) }}""",
        opset,
    )
    rng = np.random.default_rng(0)
    above = np.triu(np.full((5, 5), -np.inf), 1)
    arrays = {
        "first": rng.standard_normal((4, 5)),
        "second": rng.standard_normal((4, 5)),
        "mask": above,
    }
    arrays |= {"v": sign * rng.standard_normal((4, 4)), "never": np.array(-np.inf)}
    tensors = [
        numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()
    ]
    model.graph.initializer.extend([*tensors, numpy_helper.from_array(above == 0, "seen")])
    return model


@pytest.mark.parametrize("mask", ["add", "where"])
def test_faults_behind_infinite_masks_are_caught(mask: str) -> None:
    rows = [row for row, _ in Comparison(causal(1, mask)).differences(causal(1, mask))]
    assert not any(row.deviates or row.is_undecided for row in rows)
    assert {row.undecided for row in rows if row.tensor in "ab"} == {10}, "those above the diagonal"
    finite = [row for row in rows if row.tensor not in "ab"]
    assert undecided_share(finite) < 0.01, "of probabilities that are nearly zero"
    assert verified(causal(1, mask)).verdicts[-1].greatest < 1
    assert verdict(causal(1, mask), causal(-1, mask)) == {"y", "z"}


def test_an_overflow_among_tensors_that_the_other_model_lacks_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reference_model, "CHUNK_BYTES", 1)
    late = text(
        """g (float[2,2] x) => (float[2,2] y) <float small = {2e-38}, float large = {1e30}> {
        p = Mul(x, large) s = Mul(p, small) y = Sigmoid(s) }"""
    )
    early = text(
        "g (float[2,2] x) => (float[2,2] y) <float small = {2e-8}> { t = Mul(x, small) y ="
        " Sigmoid(t) }"
    )
    stimulus = [Stimulus("large", {"x": np.full((2, 2), 1e9, np.float32)})]
    rows = [row for row, _ in Comparison(late, inputs=stimulus).differences(early)]
    assert [(row.tensor, row.is_undecided) for row in rows] == [("y", True)]


def test_names_with_brackets_are_names(tmp_path: Path) -> None:
    """Also one that a part of a sequence is called by."""
    graph = Graph(dtype=F32)
    x = graph.input("x", [2, C])
    hidden = graph.batch_norm(graph.node("Abs", [x], "a [0]"), batch_norm(C, 1), "b [0]", "bn")
    graph.output(graph.node("Relu", [hidden], "y [1]"), [2, C])
    model = graph.model()
    assert verified(model, reproducer=tmp_path).verdicts
    wrong = onnx.ModelProto()
    wrong.CopyFrom(model)
    wrong.graph.node[-1].op_type = "Neg"
    assert verdict(model, wrong) == {"y [1]"}
    pair = onnx.ModelProto()
    pair.CopyFrom(
        text(
            "g (float[3] x) => (seq(float[3]) s, float[3] y) { y = Neg(x) s ="
            " SequenceConstruct(x) }"
        )
    )
    pair.graph.node[0].output[0] = pair.graph.output[1].name = "s [0]"
    rows = [row for row, _ in Comparison(pair).differences(pair)]
    assert {row.key for row in rows} == {("s", "s [length]"), ("s", "s [0]"), ("s [0]", "s [0]")}


def test_inputs_that_the_source_does_not_take_are_said_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The largest set is not the one that fails."""
    graph = Graph(dtype=F32)
    x = graph.input("x", ["N", 4])
    halves = graph.node("Reshape", [graph.node("Abs", [x]), graph.initializer(np.array([8, -1]))])
    graph.output(graph.node("Relu", [halves], "y"), [8, None])
    onnx.save(graph.model(), tmp_path / "in.onnx")
    for name, size in (("right", 8), ("wrong", 3)):
        np.savez(tmp_path / f"{name}.npz", x=np.ones((size, 4), np.float32))
    inputs = [str(tmp_path / "right.npz"), "--inputs", str(tmp_path / "wrong.npz")]
    source = str(tmp_path / "in.onnx")
    for command in (
        ["compile", source, "-o", str(tmp_path / "out.onnx"), "--verify"],
        ["bisect", source],
    ):
        assert main([*command, "-q", "--inputs", *inputs]) == 1
        assert capsys.readouterr().err.startswith(
            "irc: the source model does not run on wrong.npz: onnxruntime"
        )


def test_a_compiled_model_that_does_not_run_is_no_fault_of_the_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from irc.ir.rule_driver import rule
    from irc.passes.simplify.rule_set import RULES

    @rule(affine="untouched")
    def enlarge(node: Any, rewriter: Any, evaluator: Any) -> bool:
        changed = node.attrs.get("kernel_shape") != (50, 50)
        if changed:
            rewriter.set_attr(node, "kernel_shape", (50, 50))
        return changed

    monkeypatch.setitem(RULES, "nn.max_pool", (enlarge,))
    with pytest.raises(VerifyError, match=r"SimplifyExpr: onnxruntime cannot") as error:
        verified(network())
    assert not isinstance(error.value, SourceError)
    with pytest.raises(SourceError):
        verified(text("g (float[2] x) => (float[2] y) { h = NotThere(x) y = Abs(h) }"))


def test_results_of_which_nothing_can_be_said_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = """g (float[64] x) => (float[1] y{0}) {{
        a = Sin(x) b = Sin(x) d = Sub(a, b) m = ReduceMin(d) y = Sqrt(m) {1} }}"""
    found = []
    for index, rest in enumerate([("", ""), (", float[64] z", "z = Abs(x)")]):
        source, summary = tmp_path / f"{index}.onnx", tmp_path / f"{index}.json"
        onnx.save(text(body.format(*rest)), source)
        command = (
            f"compile {source} -o {tmp_path / 'out.onnx'} --verify -q --json {summary}".split()
        )
        assert main(command) == 0
        found.append(json.loads(summary.read_text()))
        last = found[-1]["verified"][-1]
        assert (last["silent"], last["silent_results"], last["results"]) == (3, ["y"], index + 1)
    warning = "verification is inconclusive: no result of the model can be compared on these inputs"
    assert [document["warnings"] for document in found] == [[warning], []]
    assert capsys.readouterr().err == f"warning: {warning}\n"


STEPS = {
    "Cast": ("m = Mul(b, k) y = Cast<to=7>(m)", "int64[1,8,M,M]"),
    "Floor": ("m = Mul(b, k) y = Floor(m)", "float[1,8,M,M]"),
    "half": ("y = Cast<to=10>(b)", "float16[1,8,M,M]"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("step", "kind"), STEPS.values(), ids=STEPS)
@pytest.mark.parametrize(("room", "runs"), [(2 << 30, 4), (0, 2)], ids=["all", "alone"])
def test_steps_on_large_tensors_are_judged_by_more_runs(
    step: str, kind: str, room: int, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of tens of thousands of elements a few noisy runs leave some that rounding moves.

    Without room for many runs of all tensors, the one that deviates gets them alone.
    """
    monkeypatch.setattr(reference_model, "CONFIRMING_BYTES", room)
    monkeypatch.setattr(run_budget, "NOISY_RUNS", runs)
    rng = np.random.default_rng(0)
    model = text(f"""g (float[1,3,150,150] x) => ({kind} y) <float k = {{100.0}}> {{
        c = Conv<pads=[1,1,1,1]>(x, w) b = BatchNormalization(c, s, t, mean, var) {step} }}""")
    arrays = {
        "w": rng.standard_normal((8, 3, 3, 3)),
        "s": rng.standard_normal(8),
        "t": rng.standard_normal(8),
    }
    arrays |= {"mean": rng.standard_normal(8), "var": 1 + rng.random(8)}
    model.graph.initializer.extend(
        numpy_helper.from_array(a.astype(np.float32), name) for name, a in arrays.items()
    )
    compiled = irc.compile(model).model
    inputs = [
        Stimulus(
            str(seed),
            {"x": np.random.default_rng(seed).standard_normal((1, 3, 150, 150)).astype(F32)},
        )
        for seed in range(4)
    ]
    comparison = Comparison(model, inputs=inputs)
    assert any(row.deviates for row, _ in comparison.differences(compiled))
    assert comparison.deviation(compiled)[0] is None
    wrong = ModelProto()
    wrong.CopyFrom(model)
    wrong.graph.node[1].input[2] = "mean"
    deviation, _ = Comparison(model, inputs=inputs[:1]).deviation(wrong)
    assert deviation is not None
    assert deviation.difference.tensor == "b"
