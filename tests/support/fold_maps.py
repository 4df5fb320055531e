"""What has to be true of every fold map."""

from __future__ import annotations

import json
from typing import Any

import harness
import jsonschema
import numpy as np
from graphs import stimuli
from irc.backends.foldmap.inverse import check, unfold
from irc.result import Result
from onnx import ModelProto
from oracle import Interpreter, tensors_only

SCHEMA = jsonschema.Draft202012Validator(
    json.loads((harness.ROOT / "backends" / "foldmap" / "schema.json").read_text())
)


def assert_map(model: ModelProto, result: Result) -> None:
    """Valid, fresh, and the source comes back."""
    fold_map = result.fold_map
    SCHEMA.validate(json.loads(fold_map.to_json()))
    fresh = check(result.model, fold_map)
    assert (fresh.same, fresh.layers, fresh.tensors) == (True, (), ())
    assert unfold(result.model, fold_map).SerializeToString(
        deterministic=True
    ) == model.SerializeToString(deterministic=True)
    ids = {layer["id"]: layer for layer in fold_map.layers}
    for source in fold_map.sources:
        assert all(
            source["id"] in {fold["source"] for fold in fold_map.folds_of(ids[layer])}
            for layer in source["layers"]
        )


def values(model: ModelProto, inputs: dict[str, Any]) -> dict[str, Any]:
    """Every result of a node, but of constants, in float64."""
    found = tensors_only(Interpreter(model, None).evaluate(inputs, keep=True))
    computed = {
        name for node in model.graph.node if node.op_type != "Constant" for name in node.output
    }
    return {name: array for name, array in found.items() if name in computed}


def assert_true(model: ModelProto, result: Result, seed: int = 0) -> int:
    """Every statistic, on the numbers themselves; how many there are.

    What a BatchNormalization knows stays true under any affine t = a x + b of its data x, so that
    (t - mean) / gamma is (x - mean) / sqrt(var + epsilon) in every element.
    """
    fold_map, checked = result.fold_map, 0
    sources = {source["id"]: source for source in fold_map.sources}
    for inputs in stimuli(model, kinds=("random",)):
        before, after = values(model, inputs), values(result.model, inputs)
        before.update(inputs)
        after.update(inputs)
        for item in fold_map.statistics:
            source, known = sources[item["source"]], fold_map.statistic(item["tensor"])
            if known is None or source["input"] not in before or (known.gamma == 0).any():
                continue
            params = {
                key: fold_map.arrays.get(source["params"][key]["value"]) for key in ("mean", "var")
            }
            mean, var = (array.astype(np.float64) for array in params.values())
            spread = np.sqrt(var + source["epsilon"])
            x, t = before[source["input"]], after[item["tensor"]]
            (shape,) = ([-1 if i == axis else 1 for i in range(t.ndim)] for axis in [known.axis])
            np.testing.assert_allclose(
                known.std, np.abs(known.gamma) * np.sqrt(var) / spread, rtol=1e-12
            )
            want = (
                np.moveaxis(x, source["axis"], known.axis) - mean.reshape(shape)
            ) / spread.reshape(shape)
            found = (t - known.mean.reshape(shape)) / known.gamma.reshape(shape)
            bound = 1e-9 * max(1.0, float(np.abs(want).max(initial=0)))
            assert np.abs(found - want).max(initial=0) <= bound, (seed, item["tensor"])
            checked += 1
    return checked
