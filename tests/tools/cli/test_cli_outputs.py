"""Where outputs go: one rule for what they replace, folders, and commands that run twice."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import harness
import irc
import numpy as np
import onnx
import pytest
from harness import EXAMPLE
from irc.tools.cli.main import main
from onnx import helper, numpy_helper

RANGE = ["--input-range", "image=0:1"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder: the example as `net.onnx`, its weights in a file, and as text."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(EXAMPLE, "net.onnx")
    harness.save_external(onnx.load(EXAMPLE), "far.onnx", "far.bin")
    Path("link.onnx").symlink_to("net.onnx")
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


def without_norms(path: str) -> bool:
    return harness.batch_norms(onnx.load(path)) == 0


@pytest.mark.parametrize("words", [["out.onnx"], ["-o", "out.onnx"], ["out/"], ["-o", "out/"]])
def test_every_compile_runs_twice(words: list[str], folder: Path) -> None:
    assert main(["compile", "net.onnx", *words, "-q"]) == 0
    first = contents(folder)
    assert main(["compile", "net.onnx", *words, "-q"]) == 0
    assert contents(folder) == first
    assert without_norms("out/net.irc.onnx" if "/" in words[-1] else "out.onnx")


def test_a_result_of_which_nothing_was_changed_is_replaced_too(folder: Path) -> None:
    for name in ("same.onnx", "again.onnx"):
        for _ in range(2):
            assert main(["compile", "net.onnx", name, "--passes", "none", "-q"]) == 0
        assert Path(name).read_bytes() == EXAMPLE.read_bytes()


@pytest.mark.parametrize(
    ("name", "text"),
    [("new.onnx", None), ("new", None), ("empty.onnx", b""), ("notes.txt", b"notes\n")],
)
def test_a_second_name_that_is_no_model_is_the_output(
    name: str, text: bytes | None, folder: Path
) -> None:
    if text is not None:
        Path(name).write_bytes(text)
    assert main(["compile", "net.onnx", name, "-q"]) == 0
    assert without_norms(name) and not Path("net.irc.onnx").exists()


def test_a_second_name_that_may_be_a_model_needs_an_option(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(changed(), "b.onnx")
    shutil.copy("b.onnx", "model.bin")
    Path("pointer.onnx").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    assert main(["dump", "net.onnx", "-o", "b.irc"]) == 0
    before = contents(folder)
    for name in ("b.onnx", "model.bin", "pointer.onnx", "b.irc", "far.onnx"):
        assert main(["compile", "net.onnx", name]) == 2
        message = capsys.readouterr().err
        assert message == (
            f"irc: {name} exists, and does not come from irc: give `-o {name}` to replace it by the"
            " result, or `--jobs 1` to compile both models\n"
        )
    assert contents(folder) == before
    assert main(["compile", "net.onnx", "b.onnx", "--jobs", "1", "-q"]) == 0
    assert {"net.irc.onnx", "b.irc.onnx"} < set(contents(folder))
    assert main(["compile", "net.onnx", "-o", "b.irc", "-q"]) == 0
    assert main(["compile", "net.onnx", "-o", "b.onnx", "-q"]) == 0
    assert without_norms("b.onnx")


def changed() -> onnx.ModelProto:
    model = onnx.load(EXAMPLE)
    model.doc_string = "another model"
    return model


@pytest.mark.parametrize(
    "words",
    [
        ["compile", "net.onnx", "-o", "net.onnx"],
        ["compile", "net.onnx", "net.onnx"],
        ["compile", "net.onnx", "-o", "link.onnx"],
        ["compile", "link.onnx", "-o", "net.onnx"],
        ["compile", "far.onnx", "-o", "far.onnx"],
        ["compile", "far.onnx", "-o", "far.bin"],
        ["compile", "far.onnx", "-o", "far.bin", "--in-place"],
        ["compile", "far.onnx", "-o", "o.onnx", "--fold-map", "far.bin"],
        ["compile", "net.onnx", "--in-place", "--fold-map", "net.onnx"],
        ["compile", "net.onnx", "--in-place", "--certificate", "c.json"],
        ["compile", "-", "--in-place"],
        ["compile", "net.onnx", "-o", "o.pt2"],
        ["quantize", "net.onnx", "-o", "net.onnx", *RANGE],
        ["quantize", "net.onnx", "-o", "link.onnx", *RANGE],
        ["quantize", "far.onnx", "-o", "far.bin", "--in-place", *RANGE],
        ["quantize", "net.onnx", "-o", "o.onnx", "--float", "net.onnx", *RANGE],
        ["report", "net.onnx", "-o", "link.onnx"],
        ["inspect", "net.onnx", "--json", "net.onnx"],
        ["inspect", "far.onnx", "--json", "far.bin"],
        ["check", "net.onnx", "-o", "link.onnx"],
        ["align", "net.onnx", "far.onnx", "--json", "far.onnx"],
    ],
)
def test_no_output_replaces_what_is_read(
    words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(folder)
    assert main(words) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert contents(folder) == before


@pytest.mark.parametrize("words", [["--in-place"], ["--in-place", "-o", "net.onnx"]])
def test_models_are_compiled_in_place(words: list[str], folder: Path) -> None:
    assert main(["compile", "net.onnx", *words, "--verify=end", "-q"]) == 0
    assert sorted(contents(folder)) == ["far.bin", "far.onnx", "link.onnx", "net.onnx"]
    assert without_norms("net.onnx")


def test_several_models_are_compiled_in_place(folder: Path) -> None:
    assert main(["compile", "net.onnx", "far.onnx", "--in-place", "--fold-map", "maps", "-q"]) == 0
    assert without_norms("net.onnx") and without_norms("far.onnx")
    assert not list(folder.glob("*.irc.onnx"))
    assert main(["unfold", "net.onnx", "maps/net.foldmap.json", "-o", "net.onnx"]) == 2
    assert (
        main(["unfold", "net.onnx", "maps/net.foldmap.json", "-o", "net.onnx", "--in-place"]) == 0
    )
    assert Path("net.onnx").read_bytes() == EXAMPLE.read_bytes()


FOLDERS = {
    ("compile", "net.onnx", "-o", "new/"): ["net.irc.onnx"],
    ("compile", "net.onnx", "new/deep/"): ["deep/net.irc.onnx"],
    ("compile", "net.onnx", "-o", "o.onnx", "--fold-map", "new/"): [
        "net.foldmap.json",
        "net.foldmap.npz",
    ],
    ("compile", "net.onnx", "new/", "--json", "new/", "--certificate", "new/"): [
        "net.certificate.json",
        "net.irc.onnx",
        "net.json",
    ],
    ("report", "net.onnx", "-o", "new/"): ["net.html"],
    ("inspect", "net.onnx", "--json", "new/"): ["net.json"],
    ("check", "net.onnx", "--format", "sarif", "-o", "new/"): ["net.sarif"],
    ("dump", "net.onnx", "-o", "new/"): ["net.irc", "net.npz"],
    ("align", "net.onnx", "far.onnx", "--svg", "new/", "--html", "new/"): ["far.html", "far.svg"],
    ("quantize", "net.onnx", "-o", "new/", "--float", "new/", *RANGE): [
        "net.float.onnx",
        "net.int8.onnx",
    ],
}


@pytest.mark.parametrize("words", FOLDERS, ids=" ".join)
def test_a_folder_that_is_named_is_made(words: tuple[str, ...], folder: Path) -> None:
    for _ in range(2):
        assert main(list(words)) == 0
        assert sorted(contents(folder / "new")) == FOLDERS[words]


def test_fold_maps_go_to_folders_too(folder: Path) -> None:
    assert main(["compile", "net.onnx", "o.onnx", "--fold-map", "m.json", "-q"]) == 0
    assert main(["unfold", "o.onnx", "m.json", "-o", "back/"]) == 0
    assert (folder / "back" / "o.onnx").read_bytes() == EXAMPLE.read_bytes()
    assert (
        main(["foldmap", "export", "o.onnx", "m.json", "--to", "ranges", "-o", "forms/", *RANGE])
        == 0
    )
    assert main(["foldmap", "recover", "o.onnx", "--from", "net.onnx", "-o", "forms/", "-q"]) == 0
    assert {"o.ranges.json", "o.foldmap.json"} < set(contents(folder / "forms"))


@pytest.mark.parametrize(
    "words",
    [
        ["compile", "gone.onnx", "-o", "new/deep/"],
        ["compile", "gone.onnx", "none.onnx", "-o", "new/deep", "-q"],
        ["quantize", "net.onnx", "-o", "new/"],
        ["compile", "-", "-o", "new/"],
        ["compile", "net.onnx", "-o", "new/", "--passes", "Nothing"],
    ],
)
def test_a_failure_leaves_no_folder(words: list[str], folder: Path) -> None:
    assert main(words) in (1, 2)
    assert not (folder / "new").exists()


def test_python_has_the_same_rule(folder: Path) -> None:
    source = contents(folder)
    result = irc.compile("net.onnx")
    for path in ("net.onnx", "link.onnx"):
        with pytest.raises(irc.UsageError, match="in_place=True"):
            result.save(path)
    with pytest.raises(irc.UsageError, match="a file that is read"):
        result.save("o.onnx", fold_map="net.onnx")
    with pytest.raises(irc.UsageError, match="a file that is read"):
        irc.compile("far.onnx").save("far.bin")
    module = irc.load("net.onnx")
    with pytest.raises(irc.UsageError, match="in_place=True"):
        irc.emit(module).save("net.onnx")
    quantized = irc.quantize("far.onnx", input_ranges={"image": (0, 1)})
    for path in ("far.onnx", "far.bin"):
        with pytest.raises(irc.UsageError, match="would replace"):
            quantized.save(path)
    assert contents(folder) == source
    quantized.save("q.onnx")
    quantized.save("far.onnx", in_place=True)
    assert Path("far.onnx").read_bytes() == Path("q.onnx").read_bytes()
    result.save("o.onnx")
    result.save("o.onnx")
    result.save("net.onnx", in_place=True)
    assert Path("net.onnx").read_bytes() == Path("o.onnx").read_bytes()
    outcomes = irc.compile_many(["net.onnx"], in_place=True)
    assert [outcome.output for outcome in outcomes] == ["net.onnx"]
    assert without_norms("net.onnx")


def said(text: str) -> dict[str, str]:
    """The files that a command says it wrote, with their sizes."""
    listed = text.rpartition("wrote ")[2].splitlines()[0]
    return dict(re.findall(r"(\S+) \(([\d.]+ k?M?B)\)(?:, |$)", listed))


def kept() -> str:
    """A model with external data of which the default pipeline changes nothing."""
    tensor = numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    info = [helper.make_tensor_value_info(name, 1, [64, 64]) for name in "xy"]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    model = helper.make_model(helper.make_graph([node], "g", info[:1], info[1:], [tensor]))
    Path("source").mkdir()
    onnx.save(model, "source/kept.onnx", save_as_external_data=True, location="kept.bin")
    return "source/kept.onnx"


@pytest.mark.parametrize(
    "words",
    [
        ["compile", "net.onnx", "new/o.onnx", "--fold-map", "new/m.json", "--json", "new/j.json"],
        [
            "compile",
            "far.onnx",
            "new/o.onnx",
            "--certificate",
            "new/c.json",
            "--report",
            "new/r.svg",
        ],
        ["compile", "far.onnx", "new/o.irc"],
        ["compile", "KEPT", "-o", "new/", "--external-data"],
        ["compile", "KEPT", "-o", "new/"],
        [
            "quantize",
            "net.onnx",
            "-o",
            "new/q.onnx",
            "--float",
            "new/f.onnx",
            "--svg",
            "new/q.svg",
            *RANGE,
        ],
    ],
)
def test_every_file_that_is_written_is_said_with_its_size(
    words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = kept()
    (folder / "new").mkdir()
    assert main([source if word == "KEPT" else word for word in words]) == 0
    found = said(capsys.readouterr().err)
    assert sorted(found) == sorted(f"new/{name}" for name in contents(folder / "new"))
    for name, size in found.items():
        number, unit = size.split()
        exact = Path(name).stat().st_size
        assert abs(float(number) * {"B": 1, "kB": 1e3, "MB": 1e6}[unit] / exact - 1) < 0.05


def test_data_that_is_there_is_not_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = kept()
    for expected in (["new/kept.bin", "new/kept.irc.onnx"], ["new/kept.irc.onnx"]):
        assert main(["compile", source, "-o", "new/"]) == 0
        assert sorted(said(capsys.readouterr().err)) == expected
    (folder / "new" / "kept.bin").write_bytes(b"other")
    assert main(["compile", source, "-o", "new/"]) == 0
    (data,) = said(capsys.readouterr().err).keys() - {"new/kept.irc.onnx"}
    assert re.fullmatch(r"new/kept\.irc\.onnx\.[0-9a-f]{16}\.data", data)
    assert (folder / "new" / "kept.bin").read_bytes() == b"other"


def test_a_failure_leaves_no_copy_of_the_data(folder: Path) -> None:
    source = kept()
    assert (
        main(
            f"compile {source} -o new/ --rtol 0 --verify --passes default --fold-map gone/m.json".split()
        )
        == 1
    )
    assert not (folder / "new").exists()


@pytest.mark.parametrize("more", [["--explain"], ["--json", "-"]])
@pytest.mark.parametrize("is_closed", [False, True])
def test_what_cannot_be_printed_leaves_no_file(
    more: list[str], is_closed: bool, folder: Path
) -> None:
    """A full disk, and a pipe whose reader has gone."""
    before = contents(folder)
    command = [sys.executable, "-m", "irc", "compile", "far.onnx", "o.onnx", "--fold-map", "m.json"]
    reader, writer = os.pipe()
    os.close(reader)
    with open("/dev/full", "wb") as full, os.fdopen(writer, "wb") as closed:
        done = subprocess.run(
            [*command, *more],
            stdout=closed if is_closed else full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    expected = (
        "" if is_closed else "irc: standard output: cannot be written: No space left on device\n"
    )
    assert done.stderr.endswith(expected) and "Traceback" not in done.stderr
    assert contents(folder) == before
