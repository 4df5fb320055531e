"""The smallest part of two models that shows a deviation."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
from onnx import ModelProto, helper
from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data

from ...ir.errors import EmitError
from ..files import replacing
from .inputs import Feeds, Stimulus
from .part import Part
from .reference import is_tensor
from .runner import Runner


def save_reproducer(
    folder: Path, before: Runner, after: Runner, tensor: str, agreeing: Collection[str], stimulus: Stimulus
) -> int:
    """Write `before.onnx` and `after.onnx`, which compute `tensor` and should agree, and their `inputs.npz`: the
    nearest tensors that agree in both, or inputs of the model. What stood in other files stands in the models.

    Returns how many operators the second has. Raises EmitError where the folder cannot be written, VerifyError where
    the source does not run.
    """
    known = set(agreeing) - {tensor}
    runners = (before, after)
    parts = [Part(runner.model, [tensor], known) for runner in runners]
    names = sorted({name for part in parts for name in part.cut})
    values = before.run(names, stimulus.feeds) if names else []
    arrays = {name: value for name, value in zip(names, values, strict=True) if is_tensor(value)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EmitError(f"{folder}: cannot be made: {error.strerror}") from None
    for name, part, runner in zip(("before.onnx", "after.onnx"), parts, runners, strict=True):
        with replacing(folder / name) as target:
            target.write_bytes(_model(part, arrays, runner.base_dir).SerializeToString(deterministic=True))
    inputs = {name for part in parts for name in part.inputs}
    feeds = {name: array for name, array in stimulus.feeds.items() if name in inputs}
    with replacing(folder / "inputs.npz") as target, target.open("wb") as file:
        np.savez_compressed(file, **{**feeds, **arrays})  # type: ignore[arg-type]
    return len(parts[1].places)


def _model(part: Part, arrays: Feeds, base_dir: Path) -> ModelProto:
    """The part with its elements in the message; `arrays` are the tensors at the cut."""
    kinds = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in arrays.items() if name in part.cut}
    model = part.model(helper.make_tensor_value_info(name, kinds[name], arrays[name].shape) for name in sorted(kinds))
    for tensor in model.graph.initializer:
        if uses_external_data(tensor):
            load_external_data_for_tensor(tensor, str(base_dir))
            tensor.ClearField("data_location")
            del tensor.external_data[:]
    return model
