"""The IR: an SSA graph with use lists.

See `graph` for its structure, `ops` for the operators, `text` for its text.
"""

from __future__ import annotations

from . import pattern
from .analysis import to_networkx
from .graph import Function, Graph, Node, Value
from .module import Module
from .rewriter import Rewriter
from .text.printer import to_text
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
