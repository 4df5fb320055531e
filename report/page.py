"""The data of a report as one HTML page that needs nothing else, and may load nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..support.files import replacing

SCRIPTS = ("dom.js", "charts.js", "layout.js", "graph.js", "panel.js", "sections.js", "page.js")
"""The page's own scripts, which share one scope, in the order in which they are run."""
ESCAPES = str.maketrans({char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"})
_SLOT = re.compile(r"\{\{(\w+)\}\}")


def write_report(path: str | Path, data: Mapping[str, Any]) -> None:
    """Write what `collect` found as a page; the file is complete or not there.

    Raises EmitError where it cannot be written.
    """
    with writing_report(path, data):
        pass


@contextmanager
def writing_report(path: str | Path, data: Mapping[str, Any]) -> Iterator[None]:
    """`write_report`, with the page taking its place when the block ends well, so that other files may go with it."""
    page = render(data).encode()
    with replacing(Path(path)) as target:
        target.write_bytes(page)
        yield


def render(data: Mapping[str, Any]) -> str:
    """The page of what `collect` found. Equal data give equal pages."""
    layout = f"/*\n{_read('vendor/dagre.LICENSE')}*/\n{_without_map(_read('vendor/dagre.min.js'))}"
    script = '"use strict";\n' + "\n".join(_read(name) for name in SCRIPTS)
    style = _read("page.css")
    slots = {
        "policy": _policy([layout, script], style),
        "style": style,
        "data": to_json(data),
        "layout": layout,
        "script": script,
    }
    return _SLOT.sub(lambda match: slots[match[1]], _read("page.html"))


def to_json(data: Mapping[str, Any]) -> str:
    """JSON that may stand in a script element, whatever text is in it; half of a surrogate pair is replaced."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode(errors="replace").decode().translate(ESCAPES)


def _policy(scripts: list[str], style: str) -> str:
    """Only these very scripts and this style run, nothing is fetched from anywhere, and no text becomes markup."""
    sources = " ".join(_hash(script) for script in scripts)
    return (
        f"default-src 'none'; script-src {sources}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _without_map(script: str) -> str:
    """A script without the reference to its source map, which a browser would look for."""
    return re.sub(r"\n//# sourceMappingURL=\S*\s*$", "\n", script)


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
