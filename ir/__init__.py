"""The IR: an SSA graph with use lists. See `graph` for its structure, `ops` for the operators, `text` for its text.

Names are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .analysis import to_networkx
    from .graph import Function, Graph, Module, Node, Value
    from .rewrite import Rewriter
    from .text import to_text
    from .types import DTYPES, DType, TensorType, Type
    from .verifier import verify

__all__ = [
    "DTYPES",
    "DType",
    "Function",
    "Graph",
    "Module",
    "Node",
    "Rewriter",
    "TensorType",
    "Type",
    "Value",
    "to_networkx",
    "to_text",
    "verify",
]


_HOMES = {
    "analysis": ("to_networkx",),
    "graph": ("Function", "Graph", "Module", "Node", "Value"),
    "rewrite": ("Rewriter",),
    "text": ("to_text",),
    "types": ("DTYPES", "DType", "TensorType", "Type"),
    "verifier": ("verify",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name in _HOME_OF:
        return getattr(import_module(f".{_HOME_OF[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
