"""The IR: an SSA graph with use lists. See `graph` for its structure, `ops` for the operators, `text` for its text.

Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..support.exports import lazy_exports

if TYPE_CHECKING:
    from . import pattern
    from .analysis import to_networkx
    from .graph import Function, Graph, Node, Value
    from .module import Module
    from .rewriter import Rewriter
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
    "pattern",
    "to_networkx",
    "to_text",
    "verify",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "": ("pattern",),
        "analysis": ("to_networkx",),
        "graph": ("Function", "Graph", "Node", "Value"),
        "module": ("Module",),
        "rewriter": ("Rewriter",),
        "text": ("to_text",),
        "types": ("DTYPES", "DType", "TensorType", "Type"),
        "verifier": ("verify",),
    },
)
