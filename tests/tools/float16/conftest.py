"""Fixtures of the tests of float16."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from streams import DATA


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with samples for `stream`."""
    monkeypatch.chdir(tmp_path)
    np.savez("samples.npz", **DATA)
    return tmp_path
