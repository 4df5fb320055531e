"""What `irc align` writes: the files of one run, or none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from irc.tools.cli.main import main
from irc.tools.verify.runner import first_line
from verification import text

BODY = "g (float[2,4] x) => (float[2,4] y) { a = Relu(x) b = Sin(a) y = Sigmoid(b) }"


def command(folder: Path, *options: str) -> list[str]:
    onnx.save(text(BODY), folder / "a.onnx")
    return ["align", str(folder / "a.onnx"), str(folder / "a.onnx"), "-q", *options]


def test_a_dump_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    dumped = tmp_path / "dump"
    assert main(command(tmp_path, "--dump", str(dumped))) == 0
    many = {path.name for path in dumped.iterdir()}
    np.savez(tmp_path / "mine.npz", x=np.ones((2, 4), np.float32))
    options = ["--dump", str(dumped), "--inputs", str(tmp_path / "mine.npz")]
    assert main(command(tmp_path, *options)) == 0
    index = json.loads((dumped / "index.json").read_text())
    assert {path.name for path in dumped.iterdir()} == {
        "index.json",
        *(entry["file"] for entry in index),
    }
    assert len(index) == 6 < len(many)


@pytest.mark.parametrize("name", ["notes.txt", "weights.npy", "00000.npy", "index.json"])
def test_a_folder_with_other_files_is_refused_and_kept(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump" / name).write_text("mine")
    rows = tmp_path / "rows.json"
    assert main(command(tmp_path, "--dump", str(tmp_path / "dump"), "--json", str(rows))) == 1
    assert f"{name} is not from an earlier dump" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "dump").iterdir()] == [name]
    assert not rows.exists()


def test_files_beside_a_dump_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dumped = tmp_path / "dump"
    assert main(command(tmp_path, "--dump", str(dumped))) == 0
    (dumped / "99999.npy").write_text("mine")
    before = sorted(dumped.iterdir())
    assert main(command(tmp_path, "--dump", str(dumped))) == 1
    assert "99999.npy is not from an earlier dump" in capsys.readouterr().err
    assert sorted(dumped.iterdir()) == before


def test_a_dump_that_fails_midway_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dumped, arguments, save = (
        tmp_path / "dump",
        command(tmp_path, "--dump", str(tmp_path / "dump")),
        np.save,
    )
    saved: list[object] = []

    def full(stream: Any, array: Any) -> None:
        saved.append(stream)
        if len(saved) == 3:
            raise OSError(28, "No space left on device")
        save(stream, array)

    with monkeypatch.context() as patch:
        patch.setattr(np, "save", full)
        assert main(arguments) == 1
    assert "No space left" in capsys.readouterr().err
    assert len(saved) == 3
    assert not list(dumped.iterdir())
    assert main(arguments) == 0


@pytest.mark.parametrize("lost", ["--json", "--html", "--dump"])
def test_all_files_are_written_or_none(
    lost: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where one of them cannot be."""
    (tmp_path / "file").write_text("")
    places = {option: tmp_path / option[2:] for option in ("--json", "--html", "--dump")}
    places[lost] = tmp_path / "file" / "x"
    options = [text for option, place in places.items() for text in (option, str(place))]
    assert main(command(tmp_path, *options)) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.onnx", "file"]


def test_rows_go_to_standard_output_behind_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(tmp_path, "--json", "-", "--html", str(tmp_path / "page.html"))) == 0
    assert json.loads(capsys.readouterr().out)["first_divergence"] is None
    assert main(command(tmp_path, "--json", "-", "--html", str(tmp_path / "no" / "page.html"))) == 1
    assert capsys.readouterr().out == ""


RESHAPED = (
    "g (float[N,4] x) => (float[A,B] y) <int64[2] s = {%s}> { a = Relu(x) y = Reshape(a, s) }"
)
UNKNOWN = "g (float[N,4] x) => (float[A,B] y) { y = NotThere(x) }"
OTHER = "g (float[N,4] z) => (float[A,B] y) { y = Relu(z) }"


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (RESHAPED % "3,-1", "b.onnx: onnxruntime cannot run the model: "),
        (UNKNOWN, "b.onnx: onnxruntime cannot load the model: "),
        (OTHER, "b.onnx: the input 'x' is missing"),
    ],
)
def test_a_second_model_that_does_not_run_is_named(
    second: str,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(text(RESHAPED % "2,-1"), "a.onnx")
    onnx.save(text(second), "b.onnx")
    assert main(["align", "a.onnx", "b.onnx"]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"irc: {expected}")
    assert "onnxruntime_src" not in err and "::" not in err
    if "run the model" in expected:
        assert "Input shape:{2,4}, requested " in err
        assert err.endswith(" (for inputs 'normal 2x4')\n")


def test_a_first_model_that_does_not_run_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(text(UNKNOWN), "a.onnx")
    onnx.save(text(OTHER), "b.onnx")
    assert main(["align", "a.onnx", "b.onnx"]) == 1
    assert capsys.readouterr().err.startswith(
        "irc: a.onnx: the source model runs on no generated inputs"
    )


def test_what_only_the_dump_runs_is_named_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(text("g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }"), "a.onnx")
    body = (
        "g (float[N,4] x) => (float[N,4] y) <int64[2] s = {3,-1}> { y = Relu(x) r = Reshape(x, s) }"
    )
    onnx.save(text(body), "b.onnx")
    assert main(["align", "a.onnx", "b.onnx", "--dump", "dump", "-q"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("irc: model b: onnxruntime cannot run the model: ")
    assert err.endswith("(for inputs 'normal 2x4')\n")


PLACES = {
    "Status Message: /o/core/tensor/squeeze.h:53 static onnxruntime::Shape onnxruntime::Base::Of(const onnxruntime::A&, std::function<void(int)>) const axis == 1 was false. Dimension": (
        "Status Message: axis == 1 was false. Dimension"
    ),
    "Status Message: matmul_helper.h:59 Compute MatMul dimension mismatch": (
        "Status Message: MatMul dimension mismatch"
    ),
    "a Gather node. Name:'/a/b.h/c' Status Message: idx=9": (
        "a Gather node. Name:'/a/b.h/c' Status Message: idx=9"
    ),
    "word " * 90: "word " * 60 + "...",
}


@pytest.mark.parametrize(("message", "expected"), PLACES.items())
def test_messages_of_onnxruntime_are_whole_words_without_places_in_its_source(
    message: str, expected: str
) -> None:
    assert first_line(RuntimeError(message)) == expected


def test_the_document_has_a_verdict_and_texts_for_what_is_no_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = (
        "g (float[1,1,4,4] x) => (float[1,1,A,B] y) {{ p = MaxPool<kernel_shape = [{}]>(x) y ="
        " Sin(p) }}"
    )
    for name, kernel in (("a.onnx", "2,2"), ("b.onnx", "1,1")):
        onnx.save(text(body.format(kernel)), tmp_path / name)

    def refused(constant: str) -> float:
        raise ValueError(constant)

    found = {}
    for second, status in (("a.onnx", 0), ("b.onnx", 1)):
        command = ["align", str(tmp_path / "a.onnx"), str(tmp_path / second), "--json", "-"]
        assert main(command) == status
        found[second] = json.loads(capsys.readouterr().out, parse_constant=refused)
    same, other = found["a.onnx"], found["b.onnx"]
    assert (same["agrees"], same["first_divergence"]) == (True, None)
    assert {(row["share"], row["max_abs"], row["sqnr"]) for row in same["rows"]} == {
        (0.0, 0.0, "inf")
    }
    assert (other["agrees"], other["first_divergence"]) == (False, "p")
    assert {
        tuple(row[key] for key in ("share", "max_abs", "max_rel", "sqnr")) for row in other["rows"]
    } == {("inf", "inf", "inf", "-inf")}
