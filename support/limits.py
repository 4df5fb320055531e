"""How much a model may ask for: models come from strangers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds with safe defaults; each is an option of the command line too (`--max-nodes`).

    `max_nodes` bounds the nodes of a model with everything in it, also once functions are inlined; `max_nesting` how
    deep graphs, types and attributes stand in each other; `max_constant_bytes` what a constant expression makes and, 16
    times as much, what all of them read, which is left to the runtime beyond it; `max_fold_map_bytes` the arrays of a
    fold map, unpacked. With `isolate`, as on the command line, onnx's shape inference runs in a process of its own,
    because there are models that crash it or never let it end; their types stay unknown. The process is forked, which a
    program with threads may not want.
    """

    max_nodes: int = 4_000_000
    max_nesting: int = 64
    max_constant_bytes: int = 256 << 20
    max_fold_map_bytes: int = 1 << 30
    isolate: bool = False

    def too_many_nodes(self, where: str = "the model") -> str:
        """The sentence for more than `max_nodes`."""
        return f"{where} has more than {self.max_nodes} nodes, which is the limit (--max-nodes)"

    def too_deep(self, what: str = "graphs") -> str:
        """The sentence for more than `max_nesting`."""
        return f"{what} stand in each other more than {self.max_nesting} deep, which is the limit (--max-nesting)"


DEFAULT_LIMITS = Limits()
