"""The smallest part of two models that shows a deviation."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, helper

from ...frontends.onnx.messages import copy_fields
from ...ir.errors import EmitError
from ...ir.tensor import Array
from ..files import replacing
from .noise import captured


def part_of(model: ModelProto, tensor: str, known: Mapping[str, Array]) -> ModelProto:
    """The nodes that compute `tensor` from the `known` tensors nearest to it, which become inputs.

    What is not known is computed as far back as the inputs of the model. External data stay where they are.
    """
    producers = {name: node for node in model.graph.node for name in node.output if name}
    wanted, used = [tensor], set[str]()
    kept: set[int] = set()
    cut: list[str] = []
    while wanted:
        name = wanted.pop()
        if not name or name in used:
            continue
        used.add(name)
        node = producers.get(name)
        if name in known and name != tensor:
            cut.append(name)
        elif node is not None and id(node) not in kept:
            kept.add(id(node))
            wanted.extend((*node.input, *captured(node)))
    part = ModelProto()
    copy_fields(model, part, ("graph",))
    part.graph.name = model.graph.name or "part"
    part.graph.node.extend(node for node in producers_in_order(model, producers) if id(node) in kept)
    part.graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name in used)
    part.graph.sparse_initializer.extend(
        tensor for tensor in model.graph.sparse_initializer if tensor.values.name in used
    )
    given = {entry.name for entry in part.graph.initializer}
    part.graph.input.extend(info for info in model.graph.input if info.name in used and info.name not in cut)
    for name in sorted(cut):
        if name not in given:
            kind = helper.np_dtype_to_tensor_dtype(known[name].dtype)
            part.graph.input.append(helper.make_tensor_value_info(name, kind, list(known[name].shape)))
    part.graph.output.add(name=tensor)
    return part


def producers_in_order(model: ModelProto, producers: Mapping[str, NodeProto]) -> list[NodeProto]:
    """The nodes that make something, in the model's order, as the very objects of `producers`."""
    return list({id(node): node for node in producers.values()}.values())


def save_reproducer(
    folder: Path, before: ModelProto, after: ModelProto, tensor: str, known: Mapping[str, Any], feeds: Mapping[str, Any]
) -> Collection[str]:
    """Write `before.onnx` and `after.onnx`, which compute `tensor` and should agree, and their `inputs.npz`.

    `known` are tensors that agree in both models. Returns the names of the operators of the second. Raises EmitError
    where the folder cannot be written.
    """
    arrays = {name: value for name, value in known.items() if isinstance(value, np.ndarray) and value.dtype != object}
    parts = [part_of(model, tensor, arrays) for model in (before, after)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EmitError(f"{folder}: cannot be made: {error.strerror}") from None
    inputs = {info.name for part in parts for info in part.graph.input}
    values = {name: array for name, array in {**feeds, **arrays}.items() if name in inputs}
    for name, part in zip(("before.onnx", "after.onnx"), parts, strict=True):
        with replacing(folder / name) as target:
            target.write_bytes(part.SerializeToString(deterministic=True))
    with replacing(folder / "inputs.npz") as target, target.open("wb") as file:
        np.savez_compressed(file, **values)
    return [node.name or node.output[0] for node in parts[1].graph.node]
