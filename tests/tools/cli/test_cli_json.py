"""`irc compile --json`: the document is there in full with the model, or says why there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from harness import EXAMPLE
from irc.tools.cli.main import main


def irc(
    *arguments: str | Path, cwd: Path, stdout: str | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run irc, with standard output going to the file `stdout` where one is given."""
    out = None if stdout is None else os.open(stdout, os.O_WRONLY)
    return subprocess.run(
        [sys.executable, "-m", "irc", *map(str, arguments)],
        stdout=subprocess.PIPE if out is None else out,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        check=False,
    )


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


OTHERS = {
    "alone": [],
    "all": ["--fold-map", "m.json", "--report", "r.html"],
    "verified": ["--verify=end"],
}


@pytest.mark.slow
@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("place", ["no/j.json", "/dev/full"])
def test_a_document_that_cannot_be_written_leaves_no_output(
    place: str, others: list[str], tmp_path: Path
) -> None:
    done = irc("compile", EXAMPLE, "-o", "o.onnx", "--json", place, "-q", *others, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"irc: {place}: cannot be written: ")
    assert done.stderr.count("\n") == 1
    assert names(tmp_path) == []


@pytest.mark.parametrize("lost", ["-o", "--fold-map", "--report"])
def test_an_output_that_cannot_be_written_leaves_the_error_alone(lost: str, tmp_path: Path) -> None:
    places = {"-o": "o.onnx", "--fold-map": "m.json", "--report": "r.html", lost: "no/x"}
    arguments = [text for option in places.items() for text in option]
    assert irc("compile", EXAMPLE, *arguments, "--json", "j.json", cwd=tmp_path).returncode == 1
    assert names(tmp_path) == ["j.json"]
    found = json.loads((tmp_path / "j.json").read_text())
    assert found.keys() == {"format", "version", "error"}
    assert found["error"].startswith("no/x: cannot be written: ")


def test_all_files_of_a_compile_are_there_and_nothing_else(tmp_path: Path) -> None:
    others = ["--fold-map", "m.json", "--report", "r.html", "--json", "j.json", "--verify=end"]
    assert irc("compile", EXAMPLE, "-o", "o.onnx", *others, cwd=tmp_path).returncode == 0
    assert names(tmp_path) == ["j.json", "m.json", "m.npz", "o.onnx", "r.html"]
    assert json.loads((tmp_path / "j.json").read_text())["operators"] == [27, 19]


@pytest.mark.parametrize("place", ["no/j.json", "folder"])
def test_of_several_models_none_is_compiled_where_the_list_cannot_be_written(
    place: str, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("a.onnx", "b.onnx"):
        (tmp_path / name).write_bytes(EXAMPLE.read_bytes())
    done = irc("compile", "a.onnx", "b.onnx", "-j1", "--json", place, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"irc: {place}: cannot be written: ")
    assert names(tmp_path) == ["a.onnx", "b.onnx", "folder"]


def test_the_list_may_stand_in_the_folder_of_the_outputs(tmp_path: Path) -> None:
    for name in ("a.onnx", "b.onnx"):
        (tmp_path / name).write_bytes(EXAMPLE.read_bytes())
    done = irc("compile", "a.onnx", "b.onnx", "-o", "out", "--json", "out/all.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert names(tmp_path / "out") == ["a.irc.onnx", "all.json", "b.irc.onnx"]
    assert len(json.loads((tmp_path / "out" / "all.json").read_text())) == 2


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_standard_output_is_one_sentence(unbuffered: str, tmp_path: Path) -> None:
    arguments = ["compile", EXAMPLE, "-o", "o.onnx", "--json", "-", "-q"]
    done = irc(*arguments, cwd=tmp_path, stdout="/dev/full", env={"PYTHONUNBUFFERED": unbuffered})
    assert done.returncode == 1
    assert done.stderr == "irc: standard output: cannot be written: No space left on device\n"


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folds forget the bias."""
    from irc.passes.affine.search.commit import Committer

    monkeypatch.setattr(Committer, "_bias", lambda self, fold, bias, first: None)


@pytest.mark.usefixtures("fault")
@pytest.mark.parametrize("place", ["j.json", "-"])
def test_a_deviation_is_told_to_machines(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("j.json").write_text("of an earlier compile")
    others = ["--fold-map", "m.json", "--report", "r.html"]
    assert (
        main(["compile", str(EXAMPLE), "-o", "o.onnx", "--verify", "--json", place, *others]) == 1
    )
    out, err = capsys.readouterr()
    found = json.loads(out if place == "-" else Path("j.json").read_text())
    assert err == f"irc: {found['error']}\n"
    assert [verdict["pass_"] for verdict in found["verified"]] == ["SimplifyInference"]
    failure = found["failure"]
    assert (failure["pass_"], failure["tensor"]) == ("FoldScaleAxis", "stem/bn:0")
    assert (failure["reproducer"], failure["message"]) == (
        "o.onnx.deviation",
        found["error"].split(": ", 1)[1],
    )
    assert failure["share"] > 1 and failure["max_abs"] > 0 and failure["elements"] > 0
    assert f"for inputs {failure['inputs']!r}" in err
    assert names(tmp_path) == ["j.json", "o.onnx.deviation"]


def test_differences_without_end_are_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from irc.ir.rule_driver import rule
    from irc.passes.simplify.rule_set import RULES

    @rule(affine="untouched")
    def wider(node: Any, rewriter: Any, evaluator: Any) -> bool:
        changed = node.attrs.get("kernel_shape") == (2, 2)
        if changed:
            rewriter.set_attr(node, "kernel_shape", (1, 1))
        return changed

    monkeypatch.setitem(RULES, "nn.max_pool", (wider,))
    onnx.save(
        onnx.parser.parse_model(
            """<ir_version: 8, opset_import: ["" : 17]>
        g (float[1,1,4,4] x) => (float[1,1,A,B] y) { p = MaxPool<kernel_shape = [2,2]>(x) y = Sin(p) }"""
        ),
        tmp_path / "in.onnx",
    )
    output = str(tmp_path / "o.onnx")
    assert (
        main(["compile", str(tmp_path / "in.onnx"), "-o", output, "--verify", "--json", "-"]) == 1
    )
    failure = json.loads(capsys.readouterr().out)["failure"]
    assert (failure["tensor"], failure["share"], failure["max_abs"]) == ("p", "inf", "inf")


@pytest.mark.parametrize("verify", [[], ["--verify"]])
def test_other_errors_are_told_to_machines(verify: list[str], tmp_path: Path) -> None:
    (tmp_path / "in.onnx").write_text("no model")
    done = irc("compile", "in.onnx", "--json", "-", *verify, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == f"irc: {json.loads(done.stdout)['error']}\n"
    assert names(tmp_path) == ["in.onnx"]


def test_the_document_and_the_report_have_the_folds_that_overridable_initializers_hold_back(
    tmp_path: Path,
) -> None:
    model = onnx.load(EXAMPLE)
    for tensor in model.graph.initializer:
        model.graph.input.append(
            onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        )
    onnx.save(model, tmp_path / "net.onnx")
    for source, options, folds in (
        ("net.onnx", [], 8),
        ("net.onnx", ["--freeze-initializers"], 0),
        (EXAMPLE, [], 0),
    ):
        command = [*f"compile {source} -o o.onnx --json j.json --report r.html".split(), *options]
        done = irc(*command, cwd=tmp_path)
        assert json.loads((tmp_path / "j.json").read_text())["held_back"] == folds
        assert f'"held_back":{folds},' in (tmp_path / "r.html").read_text()
        assert ("held back" in done.stderr) == bool(folds)


def test_wrong_usage_writes_no_summary(tmp_path: Path) -> None:
    done = irc("compile", EXAMPLE, "--json", "j.json", "--passes", "Nothing", cwd=tmp_path)
    assert done.returncode == 2
    assert names(tmp_path) == []


def test_one_of_several_models_that_fails_says_how_far_it_came(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(EXAMPLE.read_bytes())
    unknown = (
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y ='
        " NotThere(x) }"
    )
    onnx.save(onnx.parser.parse_model(unknown), tmp_path / "b.onnx")
    done = irc(
        "compile", "a.onnx", "b.onnx", "-j1", "--verify=end", "--json", "-", "-q", cwd=tmp_path
    )
    assert done.returncode == 1
    a, b = json.loads(done.stdout)
    assert (a["error"], len(a["verified"])) == (None, 1)
    assert b["error"].startswith("the source model runs on no generated inputs")
    assert (b["output"], b["verified"], b["failure"]) == (None, [], None)


def test_what_standard_output_does_not_take_hides_no_error(tmp_path: Path) -> None:
    done = irc("compile", "gone.onnx", "--json", "-", cwd=tmp_path, stdout="/dev/full")
    assert done.returncode == 1
    assert done.stderr == "irc: gone.onnx: there is no such file\n"


def test_an_error_takes_the_place_of_nothing_that_a_model_may_read(tmp_path: Path) -> None:
    (tmp_path / "in.onnx").write_text("no model")
    (tmp_path / "weights.bin").write_text("mine")
    assert irc("compile", "in.onnx", "--json", "weights.bin", cwd=tmp_path).returncode == 1
    assert (tmp_path / "weights.bin").read_text() == "mine"
