"""Pages of the site that are files of the repository's root, and links to them.

Called by mkdocs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT_FILES = {"security.md": "SECURITY.md", "changelog.md": "CHANGELOG.md"}


def on_files(files: Files, *, config: Any) -> Files:
    """Add the files of the root, with links as they are in docs/."""
    root = Path(config["config_file_path"]).parent
    for page, name in ROOT_FILES.items():
        text = (root / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text.replace("](docs/", "](")))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Let links to the files of the root lead to their pages."""
    for page, name in ROOT_FILES.items():
        markdown = markdown.replace(f"](../{name}", f"]({page}")
    return markdown
