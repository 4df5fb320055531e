"""`irc inspect`, `irc check`, `irc passes --json`, the pre-commit hook and the action."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import harness
import numpy as np
import onnx
import pytest
from graphs import unmarked
from harness import EXAMPLE
from irc.passes.catalog import CATALOG
from irc.passes.pipelines import DEFAULT
from irc.tools.cli.main import main
from irc.tools.verify.run_budget import PRODUCTS, work_of
from onnx import helper, numpy_helper

LAYERS = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[N,4,6,6] x) => (float[N,2] y)
    <float[8,2,3,3] w, float[8,3,2,2] t, float[K,2] v> {
        a = Conv<group = 2>(x, w)
        b = ConvTranspose(a, t)
        c = GlobalAveragePool(b)
        d = Flatten(c)
        e = Gemm(d, v)
        y = Identity(e)
    }"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder: `net.onnx` folds whole, `left.onnx` keeps a BatchNormalization."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.onnx").write_bytes(EXAMPLE.read_bytes())
    onnx.save(leaving(), tmp_path / "left.onnx")
    return tmp_path


def leaving() -> onnx.ModelProto:
    """Conv, Relu, BatchNormalization, Relu: a scale of either sign passes no Relu.

    Behind it an Add of a constant.
    """
    rng = np.random.default_rng(0)
    numbers = {
        "w": rng.normal(size=(3, 3, 1, 1)),
        "scale": [1.0, -1.0, 2.0],
        "shift": [0.5, 0.5, 0.5],
        "mean": [0.1, 0.2, 0.3],
        "var": [1.0, 2.0, 3.0],
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "conv"),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node(
            "BatchNormalization", ["b", "scale", "shift", "mean", "var"], ["c"], "odd: %name,\nbn"
        ),
        helper.make_node("Relu", ["c"], ["y"], "last"),
    ]
    ends = [helper.make_tensor_value_info(name, 1, ["N", 3, 4, 4]) for name in "xy"]
    constants = [
        numpy_helper.from_array(np.float32(array), name) for name, array in numbers.items()
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def documents(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    status = main([*words])
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return status, json.loads(out)


def test_inspect_counts_layers_by_their_formulas(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = onnx.parser.parse_model(LAYERS.replace("K", "3"))
    shapes = {"w": (8, 2, 3, 3), "t": (8, 3, 2, 2), "v": (3, 2)}
    for name, shape in shapes.items():
        model.graph.initializer.append(numpy_helper.from_array(np.ones(shape, "f"), name))
    del model.graph.input[1:]
    onnx.save(model, tmp_path / "m.onnx")
    status, found = documents(capsys, "inspect", str(tmp_path / "m.onnx"), "--json", "-")
    assert status == 0
    assert (found["format"], found["version"], found["model"]) == ("irc.inspect", 1, "m.onnx")
    conv, transposed, gemm = 8 * 4 * 4 * (2 * 3 * 3), 8 * 4 * 4 * (3 * 2 * 2), 2 * 3
    assert found["macs"] == {"counted": conv + transposed + gemm, "uncounted": {}}
    assert found["parameters"] == 8 * 2 * 9 + 8 * 3 * 4 + 6
    assert found["parameter_bytes"] == 4 * found["parameters"]
    assert found["inputs"] == [{"name": "x", "type": "f32[N,4,6,6]"}]
    assert found["operators"]["Conv"] == 1 and sum(found["operators"].values()) == 6
    assert found["opsets"] == {"ai.onnx": 17}


@pytest.mark.parametrize(("op_type", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_inspect_counts_recurrent_layers(
    op_type: str, gates: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps, batch, width, hidden = 7, 2, 3, 5
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[{steps},{batch},{width}] x) => (float[{steps},1,{batch},{hidden}] y) {{
            y = {op_type} <hidden_size = {hidden}> (x, w, r) }}""")
    for name, read in (("w", width), ("r", hidden)):
        array = np.ones((1, gates * hidden, read), np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.save(model, tmp_path / "m.onnx")
    _, found = documents(capsys, "inspect", str(tmp_path / "m.onnx"), "--json", "-")
    products = steps * batch * gates * hidden * (width + hidden)
    assert found["macs"] == {"counted": products, "uncounted": {}}
    shapes = {
        info.name: [d.dim_value for d in info.type.tensor_type.shape.dim]
        for info in (*model.graph.input, *model.graph.output)
    }
    moved = steps * batch * (width + hidden)
    assert work_of(model, shapes).data == moved + products / PRODUCTS


def test_layers_of_unknown_size_and_in_bodies_are_not_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(
        onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[N,A,B] x, float[N,B,3] z, bool c) => (float[N,A,3] y) {
            y = If (c) <
                then_branch = g1 () => (float[N,A,3] p) { p = MatMul(x, z) },
                else_branch = g2 () => (float[N,A,3] q) { q = MatMul(x, z) }>
        }"""),
        tmp_path / "m.onnx",
    )
    _, found = documents(capsys, "inspect", str(tmp_path / "m.onnx"), "--json", "-")
    assert found["macs"] == {"counted": 0, "uncounted": {"MatMul": 2}}


def test_inspect_says_what_stays_and_writes_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(folder.iterdir())
    assert main(["inspect", "left.onnx"]) == 0
    out = capsys.readouterr().out
    assert (
        "scales and shifts: 1, of which 1 stay\n  BatchNormalization odd: %name,\\u{a}bn: " in out
    )
    assert main(["inspect", "net.onnx"]) == 0
    out = capsys.readouterr().out
    assert "27 (BatchNormalization 8, Relu 7, Conv 6," in out and "; 19 after the passes" in out
    assert "scales and shifts: 8, of which 0 stay" in out
    assert sorted(folder.iterdir()) == before


def test_inspect_names_what_an_exporter_folded(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """irc's own result is no export: its mark says where it comes from."""
    assert main(["compile", "net.onnx", "out.onnx", "--fold-map", "map.json", "-q"]) == 0
    assert main(["compile", "out.onnx", "again.onnx", "--fold-map", "map.json", "-q"]) == 0
    assert main(["inspect", "out.onnx"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("out.onnx: train_digits.py; compiled by irc; IR version 8;")
    assert "folded" not in out
    assert err == ""
    onnx.save(unmarked(onnx.load("out.onnx")), "other.onnx")
    assert main(["inspect", "other.onnx"]) == 0
    assert (
        "the model has no BatchNormalization: if another tool folded it" in capsys.readouterr().out
    )


def test_check_exits_with_1_where_a_batch_normalization_stays(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "net.onnx"]) == 0
    assert capsys.readouterr().out == "net.onnx: nothing stays\n"
    assert main(["check", "net.onnx", "left.onnx"]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first == "net.onnx: nothing stays"
    reason = re.fullmatch(
        r"left\.onnx: BatchNormalization odd: %name,\\u\{a\}bn stays \((\w+)\): .+", second
    )
    assert reason is not None
    assert main(["check", "left.onnx", "--allow", reason[1]]) == 0
    assert main(["check", "net.onnx", "--passes", "none"]) == 1
    assert capsys.readouterr().out.count("(not_attempted)") == 8


def test_check_goes_on_after_a_model_that_fails(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "bad.onnx").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    status, found = documents(capsys, "check", "bad.onnx", "left.onnx", "--format", "json")
    assert status == 1
    assert (found["format"], found["version"]) == ("irc.check", 1)
    bad, left = found["models"]
    assert bad["error"].startswith("this is a Git LFS pointer") and bad["left"] == []
    assert left["error"] is None
    (affine,) = left["left"]
    assert (affine["node"], affine["status"], affine["kind"]) == (
        "odd: %name,\nbn",
        "kept",
        "batch_norm",
    )


def test_check_all_reports_other_scales(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = leaving()
    del model.graph.node[2:]
    model.graph.node.append(helper.make_node("Mul", ["b", "scale"], ["y"], "mul"))
    model.graph.initializer[1].dims[:] = [1, 3, 1, 1]
    onnx.save(model, tmp_path / "m.onnx")
    assert main(["check", str(tmp_path / "m.onnx")]) == 0
    assert main(["check", str(tmp_path / "m.onnx"), "--all"]) == 1
    assert "Mul mul stays (" in capsys.readouterr().out


def test_annotations_are_one_line_each_with_names_escaped(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "left.onnx").rename(folder / "a,b%.onnx")
    assert main(["check", "a,b%.onnx", "--format", "github"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("::warning file=a%2Cb%25.onnx,title=irc ")
    assert "BatchNormalization odd: %25name," in line


def test_sarif_has_a_rule_for_each_result(folder: Path) -> None:
    (folder / "bad.onnx").write_bytes(b"")
    assert main(["check", "left.onnx", "bad.onnx", "--format", "sarif", "-o", "log.sarif"]) == 1
    log = json.loads((folder / "log.sarif").read_text())
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    left, bad = run["results"]
    assert {left["ruleId"], bad["ruleId"]} == set(rules)
    assert (left["level"], bad["level"], bad["message"]["text"]) == (
        "warning",
        "error",
        "the file is empty",
    )
    place = left["locations"][0]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "left.onnx"
    assert place["logicalLocations"][0]["name"] == "odd: %name,\nbn"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--allow", "graph_outputs"], "did you mean graph_output?"),
        (["-o", "net.onnx"], "would replace a file that is read"),
        (["--passes", "Fold"], "there is no pass 'Fold'"),
    ],
)
def test_usage_errors(
    words: list[str], expected: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "net.onnx", *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and expected in err
    assert (folder / "net.onnx").read_bytes() == EXAMPLE.read_bytes()


def test_passes_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    status, found = documents(capsys, "passes", "--json")
    assert (status, found["format"], found["version"], found["default"]) == (
        0,
        "irc.passes",
        1,
        DEFAULT,
    )
    assert [row["name"] for row in found["passes"]] == sorted(CATALOG)
    (fold,) = (row for row in found["passes"] if row["name"] == "FoldConstant")
    assert fold["options"]["max_bytes"] == 1 << 16


def test_the_hook_runs_on_the_files_that_it_names(folder: Path) -> None:
    text = (harness.ROOT / ".pre-commit-hooks.yaml").read_text()
    hook = dict(re.findall(r"^[- ] (\w+): (.+)$", text, re.MULTILINE))
    files = [path.name for path in sorted(folder.iterdir()) if re.search(hook["files"], path.name)]
    assert files == ["left.onnx", "net.onnx"]
    program, *words = shlex.split(hook["entry"])
    assert program == "irc" and hook["language"] == "python"
    assert main([*words, "net.onnx"]) == 0
    assert main([*words, *files]) == 1


@pytest.mark.parametrize(("model", "status"), [("left.onnx", 0), ("bad.onnx", 1)])
def test_the_action_compiles_verifies_and_writes_the_summary(
    model: str, status: int, folder: Path
) -> None:
    (folder / "bad.onnx").write_bytes(b"")
    action = (harness.ROOT / "action.yml").read_text()
    steps = dict(re.findall(r"^        (\w+): \$\{\{ inputs\.(\w+) \}\}$", action, re.MULTILINE))
    assert steps == {
        "MODEL": "model",
        "OUTPUT": "output",
        "PASSES": "passes",
        "GH_TOKEN": "comment",
    }
    assert 'bash "$GITHUB_ACTION_PATH/action.sh"' in action
    env = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
        "MODEL": model,
        "OUTPUT": "out.onnx",
        "PASSES": "default",
        "GH_TOKEN": "token",
        "PULL_REQUEST": "pulls/7",
    }
    gh = folder / "bin" / "gh"
    gh.parent.mkdir()
    gh.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" > '{folder}/comment.txt'\n")
    gh.chmod(0o755)
    env["PATH"] = f"{gh.parent}{os.pathsep}{env['PATH']}"
    done = subprocess.run(
        ["bash", harness.ROOT / "action.sh"],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    kind = "warning" if status == 0 else "error"
    assert done.stdout.startswith(f"::{kind} file={model},title=irc")
    summary = (folder / "summary.md").read_text()
    assert summary.startswith(f"### irc: {model}\n")
    assert (folder / "comment.txt").read_text() == f"pr\ncomment\npulls/7\n--body\n{summary}"
    assert ("wrote out.onnx" in summary and "verified" in summary) == (status == 0)
    assert (folder / "out.onnx").exists() == (status == 0)


@pytest.mark.parametrize(("dims", "status"), [([2, 3, 4, 4], 0), ([2, 3, 4, 4, 4, 4], 1)])
def test_check_no_batchnorm_reports_scales_that_no_conv_can_compute(
    dims: list[int], status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ones = [1] * (len(dims) - 2)
    text = f"""<ir_version: 8, opset_import: ["": 17]>
        g (float{dims} x) => (float{dims} y, float{dims} z)
        <float{[3, *ones]} scale = {{{{2.0, -3.0, 0.5}}}}> {{{{
            a = Relu(x)  b = Mul(a, scale)  y = Relu(b)  z = Sigmoid(a)
        }}}}""".replace("{{", "{").replace("}}", "}")
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    assert main(["check", str(path)]) == 0
    capsys.readouterr()
    assert main(["check", str(path), "--no-batchnorm"]) == status
    out = capsys.readouterr().out
    assert (" stays (" in out) == bool(status)


def test_check_no_batchnorm_folds_what_stays_without_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "left.onnx"]) == 1
    status = main(["check", "left.onnx", "--no-batchnorm"])
    out = capsys.readouterr().out
    assert (
        main(["compile", "left.onnx", "-o", "o.onnx", "--passes", "default,BatchNormToConv"]) == 0
    )
    kinds = [node.op_type for node in onnx.load("o.onnx").graph.node]
    assert ("BatchNormalization" in kinds) == bool(status), out
