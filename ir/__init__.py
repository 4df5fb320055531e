"""The IR: an SSA graph with use lists. See `graph` for its structure, `ops` for the operators, `text` for its text."""

from __future__ import annotations

from .graph import Function, Graph, Module, Node, Value
from .rewrite import Rewriter
from .text import to_text
from .types import DTYPES, DType, TensorType, Type
from .verify import verify

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


def __getattr__(name: str) -> object:
    if name == "to_networkx":  # networkx takes 0.2 s to import
        from .analysis import to_networkx

        return to_networkx
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
