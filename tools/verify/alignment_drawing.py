"""A drawing of the first of two compared models: how near the second comes at each operator."""

from __future__ import annotations

from onnx import ModelProto, NodeProto

from ..report.graph_boxes import model_drawing
from .alignment import Alignment


def alignment_drawing(model: ModelProto, alignment: Alignment) -> str:
    """Return the main graph as SVG.

    Each operator has the greatest difference of its results as a share of the bound, or of the
    tolerance. Operators whose results deviate are marked, and so are those whose results only this
    model has.
    """
    worst = {difference.value: difference for difference in reversed(alignment.worst)}
    first = alignment.first_divergence
    limit = "the bound" if alignment.tolerance is None else "the tolerance"

    def mark(node: NodeProto) -> tuple[str, str]:
        found = [worst[name] for name in node.output if name in worst]
        if not found:
            return "removed", "only in the first"
        difference = max(found, key=lambda one: one.share)
        share = f"{difference.share:.3f}" if difference.share < 10 else f"{difference.share:.3g}"
        note = f"{share} of {limit}"
        if not difference.deviates:
            return "changed", note
        return "kept", f"first to diverge: {note}" if first in found else note

    return model_drawing(model, mark)
