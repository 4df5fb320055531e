"""Torch's files where torch is not installed."""

from __future__ import annotations

import sys
from pathlib import Path

import irc
import pytest
from irc.tools.cli.main import main


def test_a_program_needs_torch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["compile", str(tmp_path / "net.pt2")]) == 1
    assert (
        capsys.readouterr().err
        == f"irc: {tmp_path / 'net.pt2'}: torch is not installed: pip install"
        ' "irc-compiler[torch]"\n'
    )


def test_no_model_at_all() -> None:
    with pytest.raises(irc.UsageError, match="list is not a model"):
        irc.compile([])
