"""Files that bear each other's names.

Nothing that is read, or that was just written, is written over.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import harness
import numpy as np
import onnx
import pytest
from graphs import conv_bn
from irc.support.files import remove_stale_files
from irc.tools.cli.main import main
from onnx import ModelProto, external_data_helper

Files = dict[str, bytes]


def source() -> ModelProto:
    """Conv and BatchNormalization."""
    graph, _, _ = conv_bn()
    graph.output("y", [2, 4, 4, 4])
    return graph.model()


def externally(location: str, bias: float = 0.0) -> tuple[ModelProto, bytes]:
    """A model whose weight is in another file, and what stands there; it is not folded."""
    made = source()
    del made.graph.node[1:]
    made.graph.output[0].name = made.graph.node[0].output[0]
    weight = next(
        tensor for tensor in made.graph.initializer if tensor.name == made.graph.node[0].input[1]
    )
    data = (np.frombuffer(weight.raw_data, np.float32) + np.float32(bias)).tobytes()
    weight.raw_data = data
    external_data_helper.set_external_data(weight, location)
    weight.ClearField("raw_data")
    return made, data


def put(folder: Path, name: str, location: str, bias: float = 0.0) -> bytes:
    made, data = externally(location, bias)
    (folder / location).parent.mkdir(exist_ok=True)
    (folder / location).write_bytes(data)
    (folder / name).write_bytes(made.SerializeToString())
    return data


def files(folder: Path) -> Files:
    """What stands below a folder, links by what they point at."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(folder))] = os.fsencode(os.readlink(path))
        elif path.is_file():
            found[str(path.relative_to(folder))] = path.read_bytes()
    return found


def irc(*arguments: str) -> int:
    """The status, also where the parser leaves."""
    try:
        return main(list(arguments))
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 1


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, with two models, one of them compiled with its map."""
    monkeypatch.chdir(tmp_path)
    for name in ("m.onnx", "n.onnx"):
        onnx.save(source(), name)
    assert irc("compile", "m.onnx", "-o", "o.onnx", "--fold-map", "map.json", "-q") == 0
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        "compile m.onnx -o p.onnx --fold-map m.onnx",
        "compile m.onnx --json m.onnx",
        "compile m.onnx --report m.onnx",
        "compile m.onnx -o p.onnx --json p.onnx",
        "compile m.onnx -o p.onnx --report ./p.onnx",
        "compile m.onnx -o p.onnx --json q.json --fold-map q.json",
        "compile m.onnx -o p.onnx --json q.npz --fold-map q.json",
        "compile m.onnx -o p.onnx --report q.npz --fold-map q.json",
        "compile m.onnx -o p.onnx --report q.html --json q.html",
        "compile m.onnx -o dumps/00-source.irc --dump-ir dumps",
        "compile m.onnx -o p.onnx --json dumps/01-SimplifyInference.irc --dump-ir ./dumps",
        "compile m.onnx -o x.npz --verify --inputs x.npz",
        "compile m.onnx n.onnx -o out --json n.onnx",
        "compile m.onnx n.onnx -o out --json out/m.irc.onnx",
        "compile m.onnx n.onnx -o out --fold-map out --json out/n.foldmap.npz",
        "report m.onnx -o m.onnx",
        "unfold o.onnx map.json -o map.json",
        "unfold o.onnx map.json -o map.npz",
        "foldmap export o.onnx map.json --to aimet -o map.npz",
        "foldmap export o.onnx map.json --to aimet -o o.onnx",
        "align m.onnx o.onnx --map map.json --json map.json",
        "align m.onnx o.onnx --map map.json --html map.npz",
        "align m.onnx o.onnx --json a.html --html a.html",
    ],
)
def test_no_output_takes_the_place_of_another_or_of_what_is_read(command: str, place: Path) -> None:
    before = files(place)
    assert irc(*command.split(), "-q") == 2
    assert files(place) == before


def test_a_link_to_the_model_is_the_model(place: Path) -> None:
    (place / "link.onnx").symlink_to("m.onnx")
    before = files(place)
    assert irc("compile", "link.onnx", "-o", "p.onnx", "--fold-map", "m.onnx", "-q") == 2
    assert irc("compile", "link.onnx", "-o", "p.onnx", "--json", "link.onnx", "-q") == 2
    assert irc("compile", "link.onnx", "-o", "m.onnx", "-q") == 2
    assert files(place) == before
    assert irc("compile", "link.onnx", "-o", "m.onnx", "--in-place", "-q") == 0


@pytest.mark.parametrize(
    "location",
    [
        ".m.irc.onnx.1-1.tmp",
        ".m.irc.onnx.lock",
        ".map.json.7-7.tmp",
        "m.irc.onnx",
        "M.IRC.ONNX",
        "m.foldmap.json",
        "m.foldmap.npz",
        "m.html",
        "ir/00-source.irc",
    ],
)
@pytest.mark.parametrize("folder", [".", "out"])
def test_no_external_data_is_read_from_files_with_names_of_ours(
    location: str,
    folder: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    put(tmp_path, "m.onnx", location)
    (tmp_path / "out").mkdir()
    before = files(tmp_path)
    options = [
        "--fold-map",
        f"{folder}/m.foldmap.json",
        "--report",
        f"{folder}/m.html",
        "--dump-ir",
        f"{folder}/ir",
    ]
    assert irc("compile", "m.onnx", "-o", f"{folder}/m.irc.onnx", *options, "-q") == 1
    assert "a name that irc gives to its own files" in capsys.readouterr().err
    assert files(tmp_path) == before


@pytest.mark.parametrize("other", [".b.irc.onnx.3-3.tmp", ".b.irc.onnx.lock"])
def test_files_that_only_look_like_temporary_ones_stay(other: str, place: Path) -> None:
    (place / other).write_bytes(b"irc 1\0b.irc.onnx.0123456789abcdef.data\0")
    (place / "b.irc.onnx.0123456789abcdef.data").write_bytes(b"weights")
    before = files(place)
    assert irc("compile", "m.onnx", "-o", "b.irc.onnx", "-q") == (
        1 if other.endswith("lock") else 0
    )
    after = files(place)
    assert {name: after[name] for name in before} == before


def test_temporary_files_that_were_left_go(tmp_path: Path) -> None:
    left = tmp_path / "left"
    left.write_bytes(b"half a model")
    numbered = tmp_path / f".o.onnx.77-{left.stat().st_ino}.tmp"
    left.rename(numbered)
    (tmp_path / ".o.onnx.78-0.tmp").touch()
    remove_stale_files(tmp_path / "o.onnx")
    assert files(tmp_path) == {}


@pytest.mark.parametrize(
    "options",
    [
        ["--fold-map", "map.json"],
        ["--report", "map.npz"],
        ["--json", "map.npz"],
    ],
)
@pytest.mark.parametrize("folder", [".", "out"])
def test_no_output_takes_the_place_of_external_data(
    options: list[str], folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    put(tmp_path, "m.onnx", "map.npz")
    (tmp_path / "out").mkdir()
    before = files(tmp_path)
    option, name = options
    assert irc("compile", "m.onnx", "-o", f"{folder}/o.onnx", option, f"{folder}/{name}", "-q") == 2
    assert irc("compile", "m.onnx", "-o", "map.npz", "-q") == 2
    assert irc("report", "m.onnx", "-o", "map.npz", "-q") == 2
    assert irc("align", "m.onnx", "m.onnx", "--json", "map.npz", "-q") == 2
    assert files(tmp_path) == before
    assert (
        irc("compile", "m.onnx", "-o", f"{folder}/o.onnx", option, f"{folder}/other.json", "-q")
        == 0
    )


def test_data_that_is_folded_away_is_kept_for_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    harness.save_external(source(), "m.onnx", "w.bin")
    before = files(tmp_path)
    assert irc("compile", "m.onnx", "-o", "w.bin", "-q") == 2
    assert files(tmp_path) == before


@pytest.mark.parametrize("first", ["a", "c"])
def test_models_that_are_compiled_together_leave_each_others_weights(
    first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    put(tmp_path, f"{first}.onnx", "b.irc.onnx")
    onnx.save(source(), "b.onnx")
    assert irc("compile", f"{first}.onnx", "b.onnx", "-o", "out", "-q") == 1
    assert sorted(files(tmp_path / "out")) == ["b.irc.onnx"]
    onnx.checker.check_model(str(tmp_path / "out" / "b.irc.onnx"))


@pytest.mark.parametrize(
    "command",
    [
        "compile m.onnx -o p.onnx --fold-map loop",
        "compile m.onnx -o p.onnx --report loop",
        "compile loop -o p.onnx",
        "compile m.onnx -o loop/p.onnx",
        "compile m.onnx n.onnx -o loop",
        "compile m.onnx n.onnx -o loop/x",
        "compile loop n.onnx -o out",
        "report m.onnx -o loop/x.html",
        "align m.onnx o.onnx --json loop",
        "foldmap export o.onnx map.json --to aimet -o loop",
        "foldmap show looped.json",
        "foldmap check o.onnx looped.json",
        "unfold o.onnx looped.json -o back.onnx",
    ],
)
def test_links_in_a_circle(command: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "loop").symlink_to("loop")
    (place / "loop.npz").symlink_to("loop.npz")
    (place / "looped.json").write_text(
        (place / "map.json").read_text().replace('"map.npz"', '"loop.npz"')
    )
    status = irc(
        *command.split(), *([] if command.startswith("foldmap") or "unfold" in command else ["-q"])
    )
    said = capsys.readouterr().err
    assert status in (0, 1, 2)
    assert "Traceback" not in said
    assert status == 0 or said.startswith("irc: ") or "loop" in said


def test_dumps_replace_links_and_are_whole(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "dumps").mkdir()
    (place / "victim").write_bytes(b"mine")
    (place / "dumps" / "00-source.irc").symlink_to(place / "victim")
    (place / "dumps" / "01-FoldConstant.irc").mkdir()
    assert (
        irc(
            "compile",
            "m.onnx",
            "-o",
            "p.onnx",
            "--passes",
            "FoldConstant",
            "--dump-ir",
            "dumps",
            "-q",
        )
        == 1
    )
    said = capsys.readouterr().err
    assert said == "irc: dumps/01-FoldConstant.irc: cannot be written: this is a folder\n"
    assert (place / "victim").read_bytes() == b"mine"
    assert stat.S_ISREG((place / "dumps" / "00-source.irc").lstat().st_mode)
