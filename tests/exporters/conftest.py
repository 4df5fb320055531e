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
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for each in FILTERS:
                item.add_marker(pytest.mark.filterwarnings(each))
