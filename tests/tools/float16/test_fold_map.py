"""The fold map of a float16 model: exponents of values, and the bits that were lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import irc
import onnx
import pytest
from irc.backends.foldmap.fold_map import FoldMap
from irc.tools.cli.main import main
from streams import stream


def compiled(size: float, *more: str) -> Any:
    onnx.save(stream(size), "model.onnx")
    command = ["compile", "model.onnx", "-o", "half.onnx", "--float16", "--inputs", "samples.npz"]
    assert main([*command, "--fold-map", "map.json", "-q", *more]) == 0
    return json.loads(Path("map.json").read_text("utf-8"))


def test_exponents_stand_in_a_version_that_older_readers_refuse(folder: Path) -> None:
    document = compiled(4e4)
    assert document["version"] == "3.0"
    found = {entry["tensor"]: entry["exponent"] for entry in document["exponents"]}
    assert found["first"] == -3
    assert set(found.values()) == {-3}
    assert FoldMap.load("map.json").exponents == found
    made = {name for node in onnx.load("half.onnx").graph.node for name in node.output}
    assert found.keys() <= made
    assert "y" not in found


def test_a_map_without_scales_has_the_old_version(folder: Path) -> None:
    document = compiled(1.0)
    assert document["version"] == "1.2"
    assert "exponents" not in document


def test_align_takes_the_exponents_of_the_map(folder: Path) -> None:
    compiled(4e4)
    align = ["align", "model.onnx", "half.onnx", "--inputs", "samples.npz", "--map", "map.json"]
    assert main([*align, "-q"]) == 0
    document = json.loads(Path("map.json").read_text("utf-8"))
    for entry in document["exponents"]:
        entry["exponent"] += 1
    Path("map.json").write_text(json.dumps(document), encoding="utf-8")
    assert main([*align, "-q"]) == 1


def test_unfold_needs_the_bits(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compiled(4e4)
    small = sum(path.stat().st_size for path in folder.glob("map.*"))
    assert main(["unfold", "half.onnx", "map.json", "-o", "back.onnx"]) == 1
    assert "write it with irc compile --float16 --keep-bits" in capsys.readouterr().err
    assert not Path("back.onnx").exists()
    compiled(4e4, "--keep-bits")
    assert main(["unfold", "half.onnx", "map.json", "-o", "back.onnx"]) == 0
    assert Path("back.onnx").read_bytes() == Path("model.onnx").read_bytes()
    assert sum(path.stat().st_size for path in folder.glob("map.*")) > small


def test_the_bits_need_a_map(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(stream(1.0), "model.onnx")
    command = ["compile", "model.onnx", "-o", "half.onnx", "--keep-bits"]
    assert main([*command, "--float16", "--inputs", "samples.npz"]) == 2
    assert "--keep-bits needs --fold-map" in capsys.readouterr().err
    assert main([*command, "--fold-map", "map.json"]) == 2
    assert "--keep-bits needs --float16" in capsys.readouterr().err


def test_the_pass_alone_scales_twice() -> None:
    passes = "ScaleByPowersOfTwo{exponent=-2},ScaleByPowersOfTwo{exponent=-3}"
    result = irc.compile(stream(1.0), passes)
    assert result.fold_map.exponents["first"] == -5
