"""Outcomes in a file, so that a run that was stopped goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def digest(package: Path, tests: Path) -> str:
    """Return a digest of the package, and of all tests with their data.

    An outcome is one of these files.
    """
    found = hashlib.sha256()
    for file in _files(package, tests):
        found.update(f"{file.name}\0".encode() + file.read_bytes())
    return found.hexdigest()[:16]


def _files(*folders: Path) -> Iterator[Path]:
    own = [file for file in Path(__file__).parent.iterdir() if file.name != "conditions.py"]
    for folder in folders:
        for file in sorted(folder.rglob("*")):
            if file.is_file() and file.suffix != ".pyc" and file not in own:
                yield file


class Known:
    """Values by key, in a file of JSON lines that begins with a digest of the files."""

    def __init__(self, file: Path, of: str) -> None:
        self.file = file
        self.values: dict[str, Any] = {}
        lines = file.read_text().splitlines() if file.exists() else []
        if not lines or lines[0] != json.dumps(of):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(of) + "\n")
            lines = []
        for line in lines[1:]:
            try:
                key, value = json.loads(line)
            except ValueError:  # the end of a run that was stopped
                continue
            self.values[key] = value

    def write(self, key: str, value: Any) -> None:
        """Add a value."""
        self.values[key] = value
        with self.file.open("a") as file:
            file.write(json.dumps([key, value]) + "\n")
