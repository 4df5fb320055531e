"""The judge of the study of tools.

What is right is right, what is wrong is wrong, and the reducer keeps the fault.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_tools
import harness
import onnx
import pytest
from graphs import F32, F64, Graph
from onnx import ModelProto
from scale_axis.build import bn, case, chain, conv, deconv, gemm, mul, op

BENCHMARKS = harness.ROOT / "benchmarks"


@pytest.fixture(scope="module")
def study() -> Any:
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module("study.run")
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture
def model() -> ModelProto:
    """Conv, Relu, MaxPool, Conv, Relu."""
    steps = (
        conv(4, 3, 3, 3),
        op("Relu"),
        op("MaxPool", kernel_shape=[2, 2]),
        conv(3, 4),
        op("Relu"),
    )
    return case("", "", *steps).model(F32)


def record(
    study: Any, function: Any, model: ModelProto, cache: Path | None = None, **options: Any
) -> Any:
    """The record of a tool on a model."""
    made = study.Study({"tool": function}, {"tool": "1"}, study.Cache(cache), **options)
    data = model.SerializeToString(deterministic=True)
    (row,) = made.rows([study.StudyCase("rules", "case", data)])
    return row.records["tool"]


def judged(study: Any, function: Any, model: ModelProto, folder: Path) -> Any:
    """The verdict on a tool's result for a model, without processes of their own."""
    source, out = folder / "source.onnx", folder / "out.onnx"
    source.write_bytes(model.SerializeToString(deterministic=True))
    function(source, out)
    return study.judge.judge(study.judge.make_reference(source, 60.0), out)


def test_a_right_tool_is_right(study: Any, model: ModelProto, tmp_path: Path) -> None:
    for function in (fake_tools.copies, fake_tools.is_off_by_a_rounding):
        verdict = judged(study, function, model, tmp_path)
        assert (verdict.numbers, verdict.invalid, verdict.interface) == ("same", "", [])
    assert verdict.operators == {"Conv": 2, "MaxPool": 1, "Relu": 2}
    assert record(study, fake_tools.copies, model).is_right


def test_a_wrong_tool_is_wrong_and_the_input_is_named(
    study: Any, model: ModelProto, tmp_path: Path
) -> None:
    verdict = judged(study, fake_tools.is_off_by_a_hundredth, model, tmp_path)
    assert (verdict.numbers, verdict.stimulus, verdict.invalid) == ("wrong", "random", "")
    assert "expected" in verdict.detail


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "kind", "text"),
    [
        (fake_tools.aborts, "crash", "SIGABRT"),
        (fake_tools.raises, "error", "LookupError: no rule for this"),
        (fake_tools.hangs, "timeout", "no result after 1 s"),
        (fake_tools.grows, "memory", ""),
        (fake_tools.writes_nothing, "error", "no file was written"),
    ],
)
def test_a_tool_that_fails(
    study: Any, model: ModelProto, function: Any, kind: str, text: str
) -> None:
    found = record(study, function, model, timeout=1.0 if kind == "timeout" else 60.0)
    assert (found.failure, text in found.message) == (kind, True), found.message


def test_a_failure_is_of_one_model_alone(study: Any, model: ModelProto, tmp_path: Path) -> None:
    """A model on which a tool fails does not spoil the others of its group."""
    other = case("", "", gemm(4, 3), x=[2, 3]).model(F32)
    cases = [
        study.StudyCase("rules", str(i), each.SerializeToString())
        for i, each in enumerate((model, other))
    ]
    made = study.Study(
        {"tool": fake_tools.is_off_by_a_hundredth}, {"tool": "1"}, study.Cache(tmp_path)
    )
    first, second = made.rows(cases)
    assert first.records["tool"].verdict.numbers == "wrong"
    assert second.records["tool"].failure == "error"


@pytest.mark.slow
def test_a_crash_is_of_one_model_alone(study: Any) -> None:
    models = [
        case("", "", gemm(3, 3), *[op("Relu")] * count, x=[2, 3]).model(F32) for count in range(5)
    ]
    cases = [
        study.StudyCase("rules", str(i), each.SerializeToString()) for i, each in enumerate(models)
    ]
    made = study.Study({"tool": fake_tools.aborts_on_three_nodes}, {"tool": "1"}, study.Cache(None))
    assert [row.records["tool"].failure for row in made.rows(cases)] == ["", "", "crash", "", ""]


def test_an_invalid_result_is_invalid(study: Any, model: ModelProto, tmp_path: Path) -> None:
    verdict = judged(study, fake_tools.breaks, model, tmp_path)
    assert verdict.invalid.startswith("onnx.checker: ")
    assert verdict.numbers == "not compared"


def test_a_legal_fold_is_right_in_every_opset(study: Any, tmp_path: Path) -> None:
    """Also where onnx.reference is wrong: BatchNormalization of opsets 7 to 13."""
    for opset in (7, 9, 13, 14, 21):
        model = case("", "", conv(4, 3, 3, 3), bn(4), opset=opset).model(F32)
        verdict = judged(study, fake_tools.folds, model, tmp_path)
        assert (verdict.numbers, verdict.invalid, verdict.interface) == ("same", "", []), opset
        assert verdict.operators == {"Conv": 1}


def test_grouped_transposed_convolutions_are_judged(study: Any, tmp_path: Path) -> None:
    model = case("", "", deconv(4, 4, 3, 3, group=2), conv(3, 4), x=[2, 4, 6, 5]).model(F32)
    assert judged(study, fake_tools.is_off_by_a_rounding, model, tmp_path).numbers == "same"
    assert judged(study, fake_tools.is_off_by_a_hundredth, model, tmp_path).numbers == "wrong"


def test_a_float64_model_rounded_to_float32_is_imprecise(study: Any, tmp_path: Path) -> None:
    model = case("", "", gemm(4, 3), x=[2, 3]).model(F64)
    assert judged(study, fake_tools.narrows, model, tmp_path).numbers == "imprecise"


def overridable() -> ModelProto:
    """A product with a constant that a caller may override."""
    graph = Graph()
    scale = graph.initializer(graph.positive(3), "scale")
    graph.output(graph.node("Mul", [graph.input("x", [2, 3]), scale], "y"))
    graph.input("scale", [3])
    made = graph.model()
    made.metadata_props.add(key="author", value="somebody")
    return made


def test_changes_of_the_interface_are_named(study: Any, tmp_path: Path) -> None:
    verdict = judged(study, fake_tools.freezes, overridable(), tmp_path)
    assert verdict.interface == ["overridable initializer lost: scale"]
    assert verdict.numbers == "same"
    verdict = judged(study, fake_tools.renames, overridable(), tmp_path)
    assert verdict.interface == [
        "output lost: y",
        "output added: renamed",
        "opset changed: ai.onnx 21 to 22",
        "metadata_props lost: author",
    ]


def test_an_output_that_is_listed_twice_with_two_types_is_unchanged(
    study: Any, tmp_path: Path
) -> None:
    graph = Graph()
    graph.output(graph.node("Relu", [graph.input("x", ["N", 3])], "y"))
    listed = graph.model()
    del listed.graph.output[:]
    listed.graph.output.extend(
        onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, extents)
        for extents in (["N", 3], [None, 3])
    )
    assert judged(study, fake_tools.copies, listed, tmp_path).interface == []


def test_a_model_without_outputs_may_lose_its_operators(study: Any, tmp_path: Path) -> None:
    graph = Graph()
    graph.node("Relu", [graph.input("x", [2, 3])], "y")
    verdict = judged(study, fake_tools.empties, graph.model(), tmp_path)
    assert (verdict.invalid, verdict.numbers) == ("", "not compared")


def test_a_default_that_is_baked_in_is_wrong_once_it_is_overridden(
    study: Any, tmp_path: Path
) -> None:
    verdict = judged(study, fake_tools.bakes_in, overridable(), tmp_path)
    assert (verdict.numbers, verdict.stimulus, verdict.interface) == ("wrong", "overrides", [])
    assert judged(study, fake_tools.copies, overridable(), tmp_path).numbers == "same"


def test_random_models_are_not_compared(study: Any, tmp_path: Path) -> None:
    graph = Graph()
    noise = graph.node("RandomNormalLike", [graph.input("x", [2, 3])])
    graph.output(graph.node("Add", ["x", noise], "y"), [2, 3])
    assert (
        judged(study, fake_tools.copies, graph.model(), tmp_path).numbers == "same"
    )  # the file is the source
    verdict = judged(study, fake_tools.renames, graph.model(), tmp_path)
    assert (verdict.numbers, verdict.detail) == (
        "not compared",
        "RandomNormalLike draws random numbers",
    )


def test_two_runs_that_differ_are_not_compared(
    study: Any, model: ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = judged(study, fake_tools.adds_noise, model, tmp_path)
    assert (verdict.numbers, verdict.detail) == (
        "undecided",
        "two runs of the result with the same inputs differ",
    )
    source = tmp_path / "noisy.onnx"
    fake_tools.edit(tmp_path / "source.onnx", source, fake_tools.with_noise)
    monkeypatch.setattr(study.judge, "RANDOM", frozenset())
    found = study.judge.make_reference(source, 60.0)
    assert found.excluded == "two runs of the source with the same inputs differ"


def test_the_reducer_keeps_the_fault(study: Any, model: ModelProto, tmp_path: Path) -> None:
    data = model.SerializeToString(deterministic=True)
    text, operators, detail, stimulus, _ = study.reduce_fault(
        fake_tools.is_off_by_a_hundredth, data, 20.0
    )
    assert operators == ["Conv"]
    assert "expected" in detail
    assert stimulus == "random"
    reduced = onnx.parser.parse_model(text)
    assert [node.op_type for node in reduced.graph.node] == ["Conv"]
    assert judged(study, fake_tools.is_off_by_a_hundredth, reduced, tmp_path).numbers == "wrong"


def test_the_reasons_of_irc_are_those_of_its_fold_map(study: Any) -> None:
    left = case("", "", op("Relu"), mul(3, 1, 1), op("Sigmoid")).model(F32).SerializeToString()
    assert study.own_reasons(left) == "Mul negative_scale"
    folded = case("", "", conv(4, 3, 3, 3), mul(4, 1, 1)).model(F32).SerializeToString()
    assert study.own_reasons(folded) == ""


def test_a_second_run_asks_no_tool(study: Any, model: ModelProto, tmp_path: Path) -> None:
    first = record(study, fake_tools.is_off_by_a_hundredth, model, tmp_path)
    with (tmp_path / "records.jsonl").open("a") as file:
        file.write('["an interrupted li')
    assert record(study, fake_tools.aborts, model, tmp_path) == first


@pytest.mark.slow
def test_the_page_tells_what_was_found(study: Any) -> None:
    """One tool folds, one leaves the fold, one is wrong, one crashes."""
    model = case("", "", conv(4, 3, 3, 3), bn(4)).model(F32)
    functions = {
        "irc": fake_tools.folds,
        "onnxsim": fake_tools.copies,
        "onnxslim": fake_tools.is_off_by_a_hundredth,
        "onnxscript": fake_tools.aborts,
    }
    made = study.Study(functions, dict.fromkeys(functions, "1.0"), study.Cache(None))
    ((row, faults),) = study.run(
        made, [study.StudyCase("rules", "a case", model.SerializeToString())], 10.0
    )
    options = SimpleNamespace(timeout=1, memory=1, limit=1)
    text = importlib.import_module("study.page").page([row], faults, made.versions, options)
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    columns = next(line for line in lines if line[0] == "tool")
    found = {
        line[0]: dict(zip(columns, line, strict=False))
        for line in reversed(lines)
        if line[0] in functions
    }
    nonzero = {
        tool: [name for name in columns[2:] if row.get(name) == "1"] for tool, row in found.items()
    }
    assert nonzero == {
        "irc": [],
        "onnxsim": ["missed"],
        "onnxslim": ["wrong", "missed"],
        "onnxscript": ["crash"],
    }
    assert "python see.py onnxslim case.txt random" in text
    assert "Conv (x, " in text


def test_the_page_counts_the_operators_of_open_exports(study: Any, tmp_path: Path) -> None:
    """One tool copies the export, one crashes; a network that is not counted has no row."""
    model = case("", "", conv(4, 3, 3, 3), bn(4)).model(F32)
    for name in ("LSTM, dynamo", "BERT, dynamo"):
        model.graph.name = name
        onnx.save(model, tmp_path / f"{name}.onnx")
    functions = {"irc": fake_tools.copies, "onnxsim": fake_tools.aborts}
    made = study.Study(functions, dict.fromkeys(functions, "1.0"), study.Cache(None))
    cases = importlib.import_module("study.cases").study_cases(("open",), {"open": tmp_path}, 9**9)
    rows = [row for row, _ in study.run(made, list(cases), 10.0)]
    options = SimpleNamespace(timeout=1, memory=1, limit=1, models=None)
    text = importlib.import_module("study.page").page(rows, [], made.versions, options)
    assert "2 exports with open dimensions:" in text
    assert "| LSTM, dynamo | 2 | crash |" in text
    assert "| BERT, dynamo |" not in text


def test_the_script_of_the_page_runs(tmp_path: Path) -> None:
    model = case("", "", conv(4, 3), chain(mul(4, 1, 1))).model(F32)
    (tmp_path / "case.txt").write_text(onnx.printer.to_text(model))
    command = [
        sys.executable,
        BENCHMARKS / "see.py",
        "onnxruntime",
        tmp_path / "case.txt",
        "random",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.rsplit("largest difference: ")[-1]) < 1e-5


def test_the_judge_uses_nothing_of_irc() -> None:
    code = (
        "import sys, study.judge; sys.exit(any(name.split('.')[0] == 'irc' for name in"
        " sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(BENCHMARKS)}
    )
    assert done.returncode == 0


def test_an_unknown_tool_is_an_error_that_names_the_known_ones() -> None:
    command = [sys.executable, BENCHMARKS / "study", "--tools", "nothing"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "unknown tool nothing: known are irc, onnxsim" in done.stderr
