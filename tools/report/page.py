"""Write the data of a report as one HTML page, which needs no other file and may not load any."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

from ...support.files import replacing
from .page_data import ReportData

SCRIPTS = ("dom.js", "charts.js", "layout.js", "graph.js", "panel.js", "sections.js", "page.js")
"""The scripts of the page in the order in which they run; they share one scope."""
ESCAPES = str.maketrans({char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"})
_SLOT = re.compile(r"\{\{(\w+)\}\}")


def write_report(path: str | Path, data: ReportData) -> None:
    """Write the whole page of `data` to `path`; raise EmitError if it cannot be written."""
    with writing_report(path, data):
        pass


@contextmanager
def writing_report(path: str | Path, data: ReportData) -> Iterator[None]:
    """Write the page like `write_report`, but put it in place only after a block without error."""
    with writing_page(path, render(data)):
        yield


@contextmanager
def writing_page(path: str | Path, text: str) -> Iterator[None]:
    """Write a page or a drawing, but put it in place only if the block ends without an error."""
    with replacing(Path(path)) as target:
        target.write_text(text, encoding="utf-8")
        yield


def render(data: ReportData) -> str:
    """Return the page of `data`. Equal data give equal pages."""
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


def to_json(data: ReportData) -> str:
    """Return JSON that is safe in a script element; lone surrogates are replaced."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode(errors="replace").decode().translate(ESCAPES)


def _policy(scripts: list[str], style: str) -> str:
    """Return a content security policy: these scripts and this style, no requests, no HTML."""
    sources = " ".join(_hash(script) for script in scripts)
    return (
        f"default-src 'none'; script-src {sources}; style-src {_hash(style)}; img-src data:;"
        " base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types"
        " 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _without_map(script: str) -> str:
    """Return a script without the reference to its source map, which a browser would request."""
    return re.sub(r"\n//# sourceMappingURL=\S*\s*$", "\n", script)


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
