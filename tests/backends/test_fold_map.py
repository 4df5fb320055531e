"""The fold map: valid, complete, exact, and about the model it says."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import irc
import jsonschema
import numpy as np
import onnx
import pytest
from irc.backends.foldmap import FORMAT, FoldMap, decode_array, encode_array, graph_digest
from irc.frontends.onnx.external import all_nodes
from irc.ir.errors import EmitError, FoldMapError
from onnx import ModelProto, numpy_helper

EXAMPLE = harness.ROOT / "examples" / "digits_cnn.onnx"
SCHEMA = json.loads((harness.ROOT / "backends" / "fold_map.schema.json").read_text())


def validate(fold_map: FoldMap) -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(fold_map.to_json()))


def weights(model: ModelProto) -> dict[str, np.ndarray[Any, Any]]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_every_affine_of_every_shared_model_is_accounted_for(record_property: Callable[[str, object], None]) -> None:
    statuses: Counter[str] = Counter()
    for path in harness.shared_models():
        result = irc.compile(path, freeze_initializers=True)
        validate(result.fold_map)
        sources = {source["id"]: source for source in result.fold_map.sources}
        batch_norms = sum(source["kind"] == "batch_norm" and not source["scope"] for source in sources.values())
        assert batch_norms == harness.batch_norms(harness.load(path)), path.name
        names = Counter(node.name for node in all_nodes(result.model))
        for layer in result.fold_map.layers:
            assert names[layer["node"]["name"]] == 1, path.name
            assert all(layer["id"] in sources[fold["source"]]["layers"] for fold in layer["folds"])
        statuses.update(source["status"] for source in sources.values())
    record_property("compared", f"affines of the shared models: {dict(statuses)}")
    assert statuses["folded"] > 1000


def test_the_map_rebuilds_every_folded_weight_and_bias() -> None:
    before, result = weights(onnx.load(EXAMPLE)), irc.compile(EXAMPLE)
    after = weights(result.model)
    sources = {source["id"]: source for source in result.fold_map.sources}
    for layer in result.fold_map.layers:
        (fold,) = layer["folds"]
        params = {key: decode_array(entry["value"]) for key, entry in sources[fold["source"]]["params"].items()}
        gamma, beta, mean, var = (params[key].astype(np.float64) for key in ("gamma", "beta", "mean", "var"))
        scale = gamma / np.sqrt(var + sources[fold["source"]]["epsilon"])
        assert np.array_equal(scale, decode_array(fold["scale"]))
        assert np.array_equal(beta - mean * scale, decode_array(fold["shift"]))
        weight = before[layer["weight"]["original_name"]].astype(np.float64)
        shape = [1] * weight.ndim
        shape[layer["weight"]["out_axis"]] = -1
        expected = (weight * scale.reshape(shape)).astype(np.float32)
        assert np.array_equal(after[layer["weight"]["name"]], expected)
        bias = layer["bias"]
        old = 0.0 if bias["created"] else before[bias["original_name"]].astype(np.float64)
        assert np.array_equal(after[bias["name"]], ((old - mean) * scale + beta).astype(np.float32))


def test_params_are_the_sources_own_bits() -> None:
    before, result = weights(onnx.load(EXAMPLE)), irc.compile(EXAMPLE)
    for source in result.fold_map.sources:
        for entry in source["params"].values():
            assert np.array_equal(decode_array(entry["value"]), before[entry["name"]])


def test_without_passes_everything_is_kept_and_says_so() -> None:
    fold_map = irc.compile(EXAMPLE, "none").fold_map
    validate(fold_map)
    assert {(source["status"], source["reason"]) for source in fold_map.sources} == {("kept", "not_attempted")}
    assert not fold_map.layers


def test_a_module_from_text_has_a_map_too() -> None:
    from irc.ir.text import side_data

    source = irc.load(EXAMPLE)
    result = irc.compile(irc.parse(str(source), data=side_data(source)))
    validate(result.fold_map)
    assert result.fold_map.data["source_model"] is None
    assert result.fold_map.count() == {"folded": 8}
    assert weights(result.model).keys() == weights(irc.compile(EXAMPLE).model).keys()


def test_text_without_its_payloads_cannot_be_emitted() -> None:
    with pytest.raises(EmitError, match=r"stem/conv\.weight: the elements of .* were not given"):
        irc.compile(irc.parse(str(irc.load(EXAMPLE))), "none")


def test_digests_tell_models_apart_and_storage_does_not_matter() -> None:
    model = onnx.load(EXAMPLE)
    digest = graph_digest(model)
    other = ModelProto()
    other.CopyFrom(model)
    for tensor in other.graph.initializer:
        array = numpy_helper.to_array(tensor)
        tensor.ClearField("raw_data")
        tensor.float_data.extend(array.ravel().tolist())
    other.graph.initializer.reverse()
    other.graph.doc_string = "something else"
    assert graph_digest(other) == digest
    other.graph.initializer[0].float_data[0] += 1
    assert graph_digest(other) != digest
    assert irc.compile(EXAMPLE).fold_map.data["source_model"]["digest"] == digest


def test_arrays_survive_json_bit_for_bit() -> None:
    import ml_dtypes

    for dtype in (np.float16, np.float32, np.float64, ml_dtypes.bfloat16):
        array = np.array([[1.5, -0.0, np.inf], [np.nan, 1e-7, 3.0]]).astype(dtype)
        decoded = decode_array(json.loads(json.dumps(encode_array(array))))
        assert decoded.dtype == array.dtype
        assert decoded.tobytes() == array.tobytes()
    assert decode_array(encode_array(np.array(2.0))).shape == ()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not JSON"),
        ("[1]", "not a fold map"),
        ('{"format": "other"}', "not a fold map"),
        (f'{{"format": "{FORMAT}", "version": "7.0"}}', "version '7.0' is not known"),
    ],
)
def test_what_is_no_fold_map_is_refused(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    path.write_text(content)
    with pytest.raises(FoldMapError, match=message) as error:
        FoldMap.load(path)
    assert str(path) in str(error.value)


def test_saved_and_loaded_maps_are_equal(tmp_path: Path) -> None:
    result = irc.compile(EXAMPLE)
    result.save(tmp_path / "o.onnx", fold_map=tmp_path / "o.json")
    assert FoldMap.load(tmp_path / "o.json").data == json.loads(result.fold_map.to_json())


@pytest.mark.parametrize("damage", [{"data": "!"}, {"shape": [7]}, {"dtype": "float31"}])
def test_damaged_arrays_are_refused(damage: dict[str, Any]) -> None:
    with pytest.raises(FoldMapError, match="cannot be read"):
        decode_array({**encode_array(np.ones(3)), **damage})
