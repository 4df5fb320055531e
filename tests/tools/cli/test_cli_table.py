"""The table of operators, parameters and multiplications: of one model, several, and two."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from harness import EXAMPLE
from irc.tools.cli.main import main
from onnx import numpy_helper


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with `net.onnx`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.onnx").write_bytes(EXAMPLE.read_bytes())
    return tmp_path


def rows(text: str) -> dict[str, list[int]]:
    """The numbers of a table by the first words of its lines."""
    lines = [line.rsplit(None, 2) for line in text.splitlines() if line and line[-1].isdigit()]
    return {
        name.strip(): [int(number.replace(",", "")) for number in numbers]
        for name, *numbers in lines
    }


def count(path: str, op_type: str) -> int:
    return sum(node.op_type == op_type for node in onnx.load(path).graph.node)


def test_a_compile_shows_what_it_changed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "net.onnx", "o.onnx", "--table", "--json", "j.json"]) == 0
    found = rows(capsys.readouterr().err)
    for op_type in ("BatchNormalization", "Conv", "Relu"):
        assert found[op_type] == [count("net.onnx", op_type), count("o.onnx", op_type)]
    assert found["all operators"] == [27, 19]
    assert found["parameters"] == [33546, 32834]
    before, after = json.loads(Path("j.json").read_text())["sizes"]
    assert before["operators"]["BatchNormalization"] == 8
    assert "BatchNormalization" not in after["operators"]
    assert [before["parameters"], after["parameters"]] == found["parameters"]
    assert [before["parameter_bytes"], after["parameter_bytes"]] == found["bytes of parameters"]
    assert [before["macs"]["counted"], after["macs"]["counted"]] == found["multiplications"]


def test_no_table_is_printed_to_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "net.onnx", "o.onnx"]) == 0
    assert capsys.readouterr().err.count("\n") == 1


def test_a_terminal_sees_the_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(["compile", "net.onnx", "o.onnx"]) == 0
    assert rows(capsys.readouterr().err)["all operators"] == [27, 19]
    assert main(["compile", "net.onnx", "o.onnx", "-q"]) == 0
    assert not rows(capsys.readouterr().err)


def test_several_models_have_a_row_each_and_a_total(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "net.onnx", "o.onnx", "-q"]) == 0
    assert main(["compile", "net.onnx", "o.onnx", "gone.onnx", "-o", "all", "--table"]) == 1
    text = capsys.readouterr().err
    found = {line.split("  ")[0]: line.split()[1:] for line in text.splitlines() if "  " in line}
    assert found["net.onnx"][:2] == ["27", "19"]
    assert found["o.onnx"][:2] == ["19", "19"]
    total = next(line for line in text.splitlines() if line.startswith("all models"))
    assert total.split()[2:4] == ["46", "38"]
    assert "gone.onnx" not in found


def test_two_models_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "net.onnx", "o.onnx", "-q"]) == 0
    assert main(["inspect", "net.onnx", "o.onnx"]) == 0
    text = capsys.readouterr().out
    assert text.split()[:3] == ["operator", "net.onnx", "o.onnx"]
    found = rows(text)
    assert found["BatchNormalization"] == [8, 0] and found["parameters"] == [33546, 32834]
    assert main(["inspect", "net.onnx", "o.onnx", "--json", "-"]) == 2


def test_two_models_are_verified(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "net.onnx", "o.onnx", "-q"]) == 0
    assert main(["verify", "net.onnx", "o.onnx"]) == 0
    assert capsys.readouterr().out == "19 tensors agree within their rounding bounds\n"
    other = onnx.load("o.onnx")
    bias = next(tensor for tensor in other.graph.initializer if tensor.name == "down/conv.bias")
    bias.CopyFrom(
        numpy_helper.from_array(numpy_helper.to_array(bias) + np.float32(0.01), bias.name)
    )
    onnx.save(other, "wrong.onnx")
    assert main(["verify", "net.onnx", "wrong.onnx"]) == 1
    assert capsys.readouterr().out.startswith("the first to diverge is 'down/bn:0': 0.01")
    assert main(["verify", "net.onnx", "wrong.onnx", "--atol", "1000", "-q"]) == 0
    assert capsys.readouterr().out == ""
    np.save("x.npy", np.zeros((1, 1, 8, 8), np.float32))
    assert main(["verify", "net.onnx", "o.onnx", "--inputs", "x.npy"]) == 0
    assert main(["verify", "net.onnx", "gone.onnx"]) == 1
