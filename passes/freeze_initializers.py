"""FreezeInitializers: initializers that are also graph inputs become constants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..ir.graph import Node
from ..ir.module import Module
from ..ir.tensor import Tensor
from .infra import Pass, PassContext


@dataclass(frozen=True)
class FreezeInitializers(Pass):
    """Turn initializers that are also graph inputs into constants, which callers cannot override.

    1. Every graph input with an initializer becomes a `constant`, and is removed from the inputs.
       In ONNX IR versions before 4 every initializer is a graph input, but the reader takes it for
       a constant already.
    """

    name: ClassVar[str] = "FreezeInitializers"
    prepares: ClassVar[bool] = True
    freezes: ClassVar[bool] = True

    def run(self, module: Module, ctx: PassContext) -> bool:
        changed = False
        for graph in module.graphs():
            frozen = {
                value: payload
                for value, payload in graph.defaults.items()
                if isinstance(payload, Tensor)
            }
            if not frozen:
                continue
            first = next(iter(graph), graph.return_)
            for value, payload in list(frozen.items()):
                if module.debug_counter.exhausted:
                    del frozen[value]
                    continue
                module.debug_counter.note("freeze", f"initializer {value.source_name!r}")
                changed = True
                del graph.defaults[value]
                node = Node(
                    "constant",
                    attrs={"value": payload},
                    outputs=[(value.name, payload.type)],
                    origins=module.new_origin(),
                )
                graph.insert_before(first, node)
                for user in list(value.users):
                    user.replace_input(value, node.output)
            graph.inputs = [value for value in graph.inputs if value not in frozen]
            for index, value in enumerate(graph.inputs):
                value.index = index
        return changed
