"""The command line as people type it.

Outputs by position, other files than models, misspelt options, examples.
"""

from __future__ import annotations

import json
import shlex
import zipfile
from collections.abc import Callable
from pathlib import Path

import harness
import numpy as np
import onnx
import pytest
from harness import EXAMPLE
from irc.tools.cli import COMMANDS
from irc.tools.cli.examples import EXAMPLES
from irc.tools.cli.main import main


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with `net.onnx`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.onnx").write_bytes(EXAMPLE.read_bytes())
    return tmp_path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("words", [["net.onnx", "out.onnx", "-q"], ["net.onnx", "-q", "out.onnx"]])
def test_a_new_name_after_a_model_is_its_output(words: list[str], folder: Path) -> None:
    assert main(["compile", *words]) == 0
    assert names(folder) == ["net.onnx", "out.onnx"]
    assert harness.batch_norms(onnx.load("out.onnx")) == 0
    assert (folder / "net.onnx").read_bytes() == EXAMPLE.read_bytes()


def test_a_folder_after_a_model_takes_its_output(folder: Path) -> None:
    (folder / "out").mkdir()
    assert main(["compile", "net.onnx", "out"]) == 0
    assert names(folder / "out") == ["net.irc.onnx"]


def test_the_summary_names_every_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        "--fold-map",
        "map.json",
        "--external-data",
        "--json",
        "j.json",
        "--report",
        "page.html",
    ]
    assert main(["compile", "net.onnx", "out.onnx", *options]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    written = line.rpartition("wrote ")[2].split(", ")
    assert sorted(each.partition(" (")[0] for each in written) == [
        name for name in names(folder) if name != "net.onnx"
    ]
    assert len(written) == 6


@pytest.mark.parametrize("taken", [["-o", "-"], ["--json", "-"]])
def test_explanations_leave_standard_output_to_data(
    taken: list[str], folder: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main(["compile", "net.onnx", *taken, "--explain", "-q"]) == 0
    out, err = capfdbinary.readouterr()
    assert err.startswith(b"BatchNormalization stem/bn: folded into stem/conv\n")
    if taken[0] == "-o":
        assert harness.batch_norms(onnx.load_model_from_string(out)) == 0
    else:
        assert json.loads(out)["operators"] == [27, 19]


def archive(*entries: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as file:
            for entry in entries:
                file.writestr(entry, b"")

    return write


def containing(data: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(data)

    return write


def saved_model(path: Path) -> None:
    path.mkdir()
    (path / "saved_model.pb").write_bytes(b"\x08\x01\x12\x00")


def arrays(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, a=np.ones(2))


OTHERS = {
    "pointer": (
        containing(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
        "`git lfs pull`",
    ),
    "page": (containing(b"\n<!DOCTYPE html><html></html>"), "an HTML page"),
    "tflite": (containing(b"\x1c\x00\x00\x00TFL3" + bytes(9)), "tf2onnx.convert --tflite"),
    "ort": (
        containing(b"\x1c\x00\x00\x00ORTM" + bytes(9)),
        "compile the ONNX file that it was made from",
    ),
    "keras": (containing(b"\x89HDF\r\n\x1a\n" + bytes(9)), "tf2onnx"),
    "gzip": (containing(b"\x1f\x8b\x08"), "unpack it first"),
    "pickle": (containing(b"\x80\x02}q\x00."), "torch.onnx.export"),
    "safetensors": (
        containing(b"\x02\x00\x00\x00\x00\x00\x00\x00{}" + b'{"a":1}'),
        "not an ONNX model",
    ),
    "weights": (containing(b'\x07\x00\x00\x00\x00\x00\x00\x00{"a":1}'), "safetensors"),
    "program": (archive("net/models/model.json", "net/archive_format"), "ends with .pt2"),
    "script": (archive("net/data.pkl", "net/constants.pkl"), "torch.jit.load"),
    "checkpoint": (archive("net/data.pkl", "net/data/0"), "which has no graph"),
    "arrays": (arrays, "numpy"),
    "zip": (archive("net.onnx"), "a zip archive: unpack it first"),
    "cut": (containing(b"PK\x03\x04" + bytes(40)), "a zip archive: unpack it first"),
    "map": (containing(b'{\n"format": "irc.fold_map"'), "irc foldmap show"),
    "saved": (saved_model, "tf2onnx.convert --saved-model"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_files_are_named_with_the_way_on(
    kind: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write, expected = OTHERS[kind]
    write(folder / kind)
    assert main(["compile", kind, "-o", "out.onnx"]) == 1
    message = capsys.readouterr().err
    assert message.startswith(f"irc: {kind}: this is ") and message.count("\n") == 1
    assert expected in message
    assert not (folder / "out.onnx").exists()


def test_the_file_of_a_saved_model_is_told_as_its_folder(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved_model(folder / "saved")
    assert main(["compile", "saved/saved_model.pb"]) == 1
    assert "--saved-model saved " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["compile", "net.onnx", "--explian"],
            "compile: error: unknown option --explian (did you mean --explain?)",
        ),
        (
            ["compile", "net.onnx", "--foldmap=a"],
            "compile: error: unknown option --foldmap=a (did you mean --fold-",
        ),
        (
            ["compile", "net.onnx", "--opset", "17"],
            "compile: error: unknown option --opset: irc keeps the opset; onnx.version_converter",
        ),
        (["compile", "net.onnx", "-v"], "compile: error: unknown option -v: --explain says where"),
        (
            ["foldmap", "show", "a", "--bye"],
            "foldmap show: error: unknown option --bye (did you mean --by?)",
        ),
        (["dump", "net.onnx", "b"], "dump: error: unknown argument b"),
        (
            ["foldmap", "chek", "a"],
            "foldmap: error: argument ACTION: invalid choice: 'chek' (choose from",
        ),
        (
            ["compile", "net.onnx", "--passes", ""],
            "compile: error: argument --passes: name a pass, `default`, or",
        ),
        (
            ["compile", "net.onnx", "--max-nodes", "-1"],
            "compile: error: argument --max-nodes: '-1' is not a limit: give a whole number from 1 on",
        ),
    ],
)
def test_usage_errors_name_their_command(
    words: list[str], expected: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    message = capsys.readouterr().err
    sentence, way_on = message.splitlines()
    assert sentence.startswith(f"irc {expected}")
    assert way_on == f"try irc {expected.partition(':')[0]} --help"
    assert names(folder) == ["net.onnx"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["compile", "net.onnx", "out.onnx", "extra.onnx"],
            "out.onnx: there is no such file; several models go to a folder (-o FOLDER)",
        ),
        (
            ["compile", "net.onnx", "new/out.onnx"],
            "new/out.onnx: cannot be written: there is no folder new",
        ),
        (
            ["report", "net.onnx", "-o", "new/a.html"],
            "new/a.html: cannot be written: there is no folder new",
        ),
        (
            ["quantize", "net.onnx", "-o", "q.onnx", "--input-range", "0-1"],
            "'0-1' is not a range: write NAME=LOW:HIGH",
        ),
        *(
            (
                ["align", "net.onnx", "net.onnx", "--inputs", name],
                f"{name}: there is no such file",
            )
            for name in ("gone.npz", "gone.npy", "gone.pb")
        ),
        (
            ["align", "net.onnx", "net.onnx", "--inputs", "net.onnx"],
            "neither .npz, .npy nor a TensorProto\n",
        ),
    ],
)
def test_files_and_folders_that_are_missing(
    words: list[str], expected: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) in (1, 2)
    message = capsys.readouterr().err
    assert expected in message and message.count("\n") == 1
    assert names(folder) == ["net.onnx"]


def programs() -> list[str]:
    return ["irc", *(f"irc {name}" for name in COMMANDS)]


@pytest.mark.parametrize("program", programs())
def test_every_help_ends_with_examples(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*program.split()[1:], "--help"])
    text = capsys.readouterr().out
    assert text.endswith("".join(f"  {line}\n" for line in EXAMPLES[program]))


@pytest.mark.slow
def test_the_examples_run(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("a.onnx", "b.onnx", "same.onnx"):
        (folder / name).write_bytes(EXAMPLE.read_bytes())
    images = np.random.default_rng(0).random((4, 1, 8, 8), np.float32)
    np.savez(folder / "calibration.npz", image=images)
    assert (
        main(
            shlex.split(
                "compile net.onnx -o out.onnx --fold-map map.json --certificate cert.json -q"
            )
        )
        == 0
    )
    for line in sorted(
        {line for lines in EXAMPLES.values() for line in lines if "--help" not in line}
    ):
        assert main(shlex.split(line)[1:]) == 0, (line, capfd.readouterr().err)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["compile", "net.onnx", "-o", "net.svg"],
            "net.svg: this is the name of a drawing or a page, which --report",
        ),
        (
            ["compile", "net.onnx", "-o", "net.html"],
            "net.html: this is the name of a drawing or a page, which --report",
        ),
        (
            ["align", "net.onnx", "net.onnx", "--svg", "a.html"],
            "a.html: --svg writes a drawing: give it a name that ends",
        ),
        (
            ["report", "net.onnx", "-o", "net.png"],
            "net.png: a report is a page (REPORT.html) or a drawing",
        ),
        (
            ["dump", "net.onnx", "-o", "net.txt"],
            "net.txt: -o writes IR text: give it a name that ends with .irc",
        ),
        (
            ["quantize", "net.onnx", "-o", "q.onnx", "--svg", "-"],
            "a quantized model and a drawing need a file",
        ),
    ],
)
def test_names_of_drawings(
    words: list[str], expected: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err.startswith(f"irc: {expected}")
    assert names(folder) == ["net.onnx"]


def test_a_folder_of_models_names_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "nets").mkdir()
    assert main(["compile", "nets", "-o", "out.onnx"]) == 1
    assert capsys.readouterr().err == "irc: nets: this is a folder, not an ONNX file\n"
    (folder / "net.onnx").rename(folder / "nets" / "net.onnx")
    assert main(["compile", "nets", "-o", "out.onnx"]) == 1
    said = "irc: nets: this is a folder, not an ONNX file: give nets/*.onnx\n"
    assert capsys.readouterr().err == said
