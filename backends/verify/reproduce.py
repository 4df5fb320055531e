"""The smallest part of two models that shows a deviation."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, helper
from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data

from ...frontends.onnx.messages import copy_fields
from ...ir.errors import EmitError
from ..files import replacing
from .inputs import Feeds, Stimulus
from .noise import captured
from .reference import is_tensor
from .runner import Runner


def save_reproducer(
    folder: Path, before: Runner, after: ModelProto, tensor: str, agreeing: Collection[str], stimulus: Stimulus
) -> int:
    """Write `before.onnx` and `after.onnx`, which compute `tensor` and should agree, and their `inputs.npz`: the
    nearest tensors that agree in both, or inputs of the model. What stood in other files stands in the models.

    Returns how many operators the second has. Raises EmitError where the folder cannot be written, VerifyError where
    the source does not run.
    """
    cuts = [_Cut(model, tensor, agreeing) for model in (before.model, after)]
    names = sorted({name for cut in cuts for name in cut.cut})
    values = before.run(names, stimulus.feeds) if names else []
    arrays = {name: value for name, value in zip(names, values, strict=True) if is_tensor(value)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EmitError(f"{folder}: cannot be made: {error.strerror}") from None
    for name, cut in zip(("before.onnx", "after.onnx"), cuts, strict=True):
        with replacing(folder / name) as target:
            target.write_bytes(cut.model(arrays, before.base_dir).SerializeToString(deterministic=True))
    inputs = {name for cut in cuts for name in cut.inputs}
    feeds = {name: array for name, array in stimulus.feeds.items() if name in inputs}
    with replacing(folder / "inputs.npz") as target, target.open("wb") as file:
        np.savez_compressed(file, **{**feeds, **arrays})  # type: ignore[arg-type]
    return len(cuts[1].nodes)


class _Cut:
    """The nodes that compute a tensor from the `agreeing` tensors nearest to it, the `cut`, and from `inputs`."""

    def __init__(self, model: ModelProto, tensor: str, agreeing: Collection[str]) -> None:
        self.source = model
        self.tensor = tensor
        places = {name: i for i, node in enumerate(model.graph.node) for name in node.output if name}
        wanted, self.used, self.cut = [tensor], set[str](), set[str]()
        kept: set[int] = set()
        while wanted:
            name = wanted.pop()
            if not name or name in self.used:
                continue
            self.used.add(name)
            place = places.get(name)
            if name in agreeing and name != tensor:
                self.cut.add(name)
            elif place is not None and place not in kept:
                kept.add(place)
                node = model.graph.node[place]
                wanted.extend((*node.input, *captured(node)))
        self.nodes = [model.graph.node[place] for place in sorted(kept)]
        self.inputs = {info.name for info in model.graph.input} & (self.used - self.cut)

    def model(self, arrays: Feeds, base_dir: Path) -> ModelProto:
        """The part as a model; `arrays` are the tensors at the cut."""
        graph, part = self.source.graph, ModelProto()
        copy_fields(self.source, part, ("graph",))
        part.graph.name = graph.name or "part"
        part.graph.node.extend(self.nodes)
        for tensor in graph.initializer:
            if tensor.name in self.used - self.cut:
                part.graph.initializer.append(_inside(tensor, base_dir))
        part.graph.sparse_initializer.extend(t for t in graph.sparse_initializer if t.values.name in self.used)
        part.graph.input.extend(info for info in graph.input if info.name in self.inputs)
        for name in sorted(self.cut & arrays.keys()):
            kind = helper.np_dtype_to_tensor_dtype(arrays[name].dtype)
            part.graph.input.append(helper.make_tensor_value_info(name, kind, list(arrays[name].shape)))
        part.graph.output.add(name=self.tensor)
        return part


def _inside(tensor: TensorProto, base_dir: Path) -> TensorProto:
    """The tensor with its elements in the message."""
    if not uses_external_data(tensor):
        return tensor
    copy = TensorProto()
    copy.CopyFrom(tensor)
    load_external_data_for_tensor(copy, str(base_dir))
    copy.ClearField("data_location")
    del copy.external_data[:]
    return copy
