"""Print the lowest versions that pyproject.toml allows, as constraints of pip.

They are those of irc, of the extra `verify` and of the group `test`. `make test-lowest` installs
them.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any


def lowest(pyproject: dict[str, Any]) -> dict[str, str]:
    """Return the lowest version of each package that all of its requirements allow.

    Raises ValueError if a requirement is not of the form `name>=version`.
    """
    project = pyproject["project"]
    found: dict[str, str] = {}
    for text in (
        *project["dependencies"],
        *project["optional-dependencies"]["verify"],
        *pyproject["dependency-groups"]["test"],
    ):
        match = re.fullmatch(r"([\w-]+)>=([\d.]+)", text)
        if match is None:
            raise ValueError(f"{text}: not of the form name>=version")
        name, version = match.groups()
        found[name] = max(version, found.get(name, version), key=numbers)
    return found


def numbers(version: str) -> list[int]:
    """Return the numbers of a version, which are compared one by one."""
    return [int(part) for part in version.split(".")]


if __name__ == "__main__":
    root = Path(__file__).parents[2]
    for name, version in lowest(tomllib.loads((root / "pyproject.toml").read_text())).items():
        sys.stdout.write(f"{name}=={version}\n")
