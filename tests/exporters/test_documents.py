"""The code for torch in README and docs/pytorch.md runs, and torch's defaults fold as said."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import irc
import onnx
import pytest
from harness import ROOT, batch_norms

torch = pytest.importorskip(
    "torch", reason="torch is not installed: make test-exporters", exc_type=ImportError
)

from exporters.architectures import conv_norm, settle  # noqa: E402 - needs torch

nn = torch.nn


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv_norm(3, 4)

    def forward(self, x: Any) -> Any:
        return torch.relu(self.bn1(self.conv1(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer1 = nn.Sequential(Block())

    def forward(self, x: Any) -> Any:
        return self.layer1(x)


def blocks(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)


def names() -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "irc": irc,
        "torch": torch,
        "model": settle(Net(), (3, 8, 8)),
        "x": torch.randn(2, 3, 8, 8),
    }


def test_the_page_on_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    known, code = names(), blocks(ROOT / "docs" / "pytorch.md")
    for block in [code[0], *code[2:], code[1]]:  # the second one changes the model
        exec(block, known)
    assert known["known"] is not None
    assert irc.FoldMap.load("net.json").count() == {"folded": 1}
    assert batch_norms(onnx.load("net.onnx")) == batch_norms(onnx.load("old.onnx")) == 1
    assert irc.FoldMap.load("regained.json").output_stats(module="layer1.0.conv1") is not None
    assert known["applied"].norms == ["layer1.0.bn1"]
    assert not known["applied"].left


def test_the_part_of_the_readme_on_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    known = names()
    (block,) = (block for block in blocks(ROOT / "README.md") if "torch" in block)
    exec(block, known)
    assert known["known"] is not None
    assert batch_norms(onnx.load("net.onnx")) == 1


@pytest.mark.parametrize("dynamo", [True, False])
def test_default_exports_are_told(dynamo: bool, tmp_path: Path) -> None:
    known = names()
    torch.onnx.export(
        known["model"], (known["x"],), tmp_path / "net.onnx", dynamo=dynamo, verbose=False
    )
    assert batch_norms(onnx.load(tmp_path / "net.onnx")) == 0
    (warning,) = irc.compile(tmp_path / "net.onnx").warnings
    assert warning.startswith("1 BatchNormalization was folded before, by torch's exporter")
    (warning,) = irc.compile(known["model"], args=(known["x"],), export={"optimize": True}).warnings
    assert "export with optimize=False" in warning
    assert not irc.compile(known["model"], args=(known["x"],)).warnings
