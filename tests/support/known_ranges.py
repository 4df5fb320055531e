"""Ranges of a model's values, measured on inputs."""

from __future__ import annotations

import harness
import irc
from graphs import Array
from onnx import ModelProto, ValueInfoProto


def measured(source: ModelProto, x: Array, passes: str) -> dict[str, tuple[float, float]]:
    """The ranges of all floating-point values that the passes leave, so that none is a guess."""
    folded = ModelProto()
    folded.CopyFrom(irc.compile(source, passes, freeze_initializers=True).model)
    del folded.graph.output[:]
    constant = {name for node in folded.graph.node if not node.input for name in node.output}
    for node in folded.graph.node:
        folded.graph.output.extend(
            ValueInfoProto(name=name) for name in node.output if name and name not in constant
        )
    found = harness.run(folded, {"x": x})
    return {
        name: (float(array.min()), float(array.max()))
        for name, array in found.items()
        if array.dtype.kind == "f"
    }
