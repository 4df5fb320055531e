"""Notes of a frontend about the model that it read, for passes and for the writer."""

from __future__ import annotations

from .graph import Graph
from .types import Type


class SourceNotes:
    """Names of a source that mean something beside the graph."""

    def __init__(self) -> None:
        self.annotating: set[str] = set()
        """Constants that annotations of other values name: they stay without a reader."""
        self.unimported: set[str] = set()
        """Domains of which IR text has operators and imports no opset."""
        self.misdeclared: dict[Graph, set[str]] = {}
        """Values whose declared types are wrong.

        Once a pass has run, the model is written without these declarations.
        """
        self.declared: dict[Graph, dict[str, tuple[Type, Type]]] = {}
        """The declared and the inferred types of values of which more may become known."""
