"""Limits on models from untrusted sources."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds with safe defaults; each is also an option of the command line, such as `--max-nodes`.

    - `max_nodes`: nodes of a model with all its graphs and functions, also after inlining.
    - `max_nesting`: depth of graphs, types and attributes inside each other.
    - `max_constant_bytes`: bytes of the result of a constant expression. All expressions of a model together may read
      16 times as many. Expressions beyond that are left to the runtime.
    - `max_fold_map_bytes`: bytes of the arrays of a fold map, unpacked.
    - `isolate`: run onnx's shape inference in a forked process, as the command line does. Some models crash it or make
      it loop; their types stay unknown. A program with threads may not want to fork.
    """

    max_nodes: int = 4_000_000
    max_nesting: int = 64
    max_constant_bytes: int = 256 << 20
    max_fold_map_bytes: int = 1 << 30
    isolate: bool = False

    def too_many_nodes(self, where: str = "the model") -> str:
        """Return the message for more than `max_nodes` nodes."""
        return f"{where} has more than {self.max_nodes} nodes, which is the limit (--max-nodes)"

    def too_deep(self, what: str = "graphs") -> str:
        """Return the message for more than `max_nesting` levels."""
        return f"{what} are nested more than {self.max_nesting} deep, which is the limit (--max-nesting)"


DEFAULT_LIMITS = Limits()
