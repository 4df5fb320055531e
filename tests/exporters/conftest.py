"""Warnings of torch and its exporters, which are no errors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

FILTERS = (
    "ignore::DeprecationWarning",
    "ignore::FutureWarning",
    "ignore::UserWarning",
    "ignore::torch.jit.TracerWarning",
)


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Ignore them in the tests of this folder: the hook gets those of all folders."""
    folder = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(folder):
            for each in FILTERS:
                item.add_marker(pytest.mark.filterwarnings(each))
