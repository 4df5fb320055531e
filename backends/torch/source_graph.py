"""The exported model before the passes, as a fold map keeps it.

It tells which module each node calls, and the operators that a fold moved past.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...frontends.onnx.codec.module_paths import module_path
from ...frontends.onnx.codec.protos import ModelProto, NodeProto
from ...support.errors import FoldMapError
from ..foldmap.fold_map import FoldMap

if TYPE_CHECKING:
    from ..foldmap.entries import HistoryEntry

LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
BOUNDS = ("Clip", "Min", "Max", "Pad")
"""Operators whose constants a fold, or an equalization, may change."""
SHAPED = frozenset(
    ("Reshape", "Expand", "Slice", "Resize", "Upsample", "Squeeze", "Unsqueeze", "Split", "Tile")
)
SHAPED |= {
    "Transpose",
    "Flatten",
    "ReduceMean",
    "ReduceSum",
    "Relu",
    "LeakyRelu",
    "PRelu",
    "Identity",
    "Dropout",
}
"""Operators whose constant operands, if they have any, no fold changes."""


class Misplaced(Exception):
    """Raised for a step that has no place in the module, with the reason."""


class SourceGraph:
    """The nodes of the exported model by name, and the values that depend on its inputs."""

    def __init__(self, model: ModelProto) -> None:
        self.nodes = {node.name: node for node in model.graph.node}
        self.readers: dict[str, list[NodeProto]] = {}
        for node in model.graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        self.layers = [node for node in model.graph.node if node.op_type in LAYERS]
        self.has_bounds = any(node.op_type in BOUNDS for node in model.graph.node)
        constants = {tensor.name for tensor in model.graph.initializer}
        self.running = {info.name for info in model.graph.input} - constants
        for node in model.graph.node:
            if any(name in self.running for name in node.input):
                self.running.update(node.output)

    @classmethod
    def of(cls, fold_map: FoldMap) -> SourceGraph:
        """Return the source of a map. Raises FoldMapError if it holds none."""
        restore = fold_map.data["restore"]
        if restore is None:
            raise FoldMapError("the fold map holds no source model")
        model = ModelProto()
        model.ParseFromString(fold_map.arrays.get(restore["skeleton"]).tobytes())
        return cls(model)

    def calls(self, identities: Mapping[str, int]) -> Counter[int]:
        """Count the layers of the source by the identity of their module."""
        paths = (module_path(node) for node in self.layers)
        return Counter(
            identities[path] for path in paths if path is not None and path in identities
        )

    def readers_of(self, name: str) -> list[NodeProto]:
        """Return the nodes that read a constant, directly or its transpose."""
        found: list[NodeProto] = []
        for node in self.readers.get(name, ()):
            moved = node.op_type in ("Transpose", "Identity")
            found.extend(self.readers_of(node.output[0]) if moved else [node])
        return found

    def check_crossed(self, crossed: str, module: str | None) -> None:
        """Raise Misplaced if an operator that a fold moved past may have got another constant."""
        node = self.nodes.get(crossed.partition(" ")[2])
        if node is None:
            raise Misplaced(f"it moved past {crossed}, which the source does not name")
        has_constants = any(name and name not in self.running for name in node.input)
        is_harmless = node.op_type in SHAPED or _is_bias(node, module)
        if node.op_type in BOUNDS or (has_constants and not is_harmless):
            raise Misplaced(
                f"it moved past {node.op_type} {node.name!r}, which is code of forward with a"
                " constant"
            )

    def check_history(self, history: Sequence[HistoryEntry], layer: str) -> None:
        """Raise Misplaced if a pass that changed `layer` may have put bounds into the model."""
        for entry in history:
            if not self.has_bounds or layer not in entry["layers"]:
                continue
            may_bound = entry["pass"].startswith(("CrossLayerEqualization", "HighBiasAbsorption"))
            if may_bound and "clip=keep" not in entry["pass"]:
                raise Misplaced(
                    f"{entry['pass']} may limit each channel, for which the module has no place:"
                    " clip=keep"
                )


def _is_bias(node: NodeProto, module: str | None) -> bool:
    """Return whether an Add is the bias of the Linear `module`."""
    return node.op_type == "Add" and module is not None and module_path(node) == module
