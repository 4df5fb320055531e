"""The fold map: valid, complete, exact, and about the model it says."""

from __future__ import annotations

import json
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from copy import deepcopy
from pathlib import Path
from typing import Any, get_type_hints

import harness
import irc
import jsonschema
import numpy as np
import onnx
import pytest
from graphs import F32, Graph, batch_norm, conv_bn
from harness import EXAMPLE
from irc.backends.foldmap import entries
from irc.backends.foldmap.arrays import POOLED, ArrayStore, entries_of
from irc.backends.foldmap.digests import graph_digest, tensor_digest
from irc.backends.foldmap.fold_map import FoldMap
from irc.backends.foldmap.inverse import check, unfold
from irc.backends.foldmap.loading import check_document
from irc.backends.foldmap.npz import NpzWriter
from irc.backends.foldmap.serialize import FORMAT
from irc.backends.quantizers.ranges import activations
from irc.frontends.onnx.codec.traversal import all_nodes
from irc.support.errors import EmitError, FoldMapError
from irc.tools.cli.main import main
from onnx import ModelProto, TensorProto, numpy_helper
from xxhash import xxh3_128_hexdigest

NONE = f"xxh128:{'0' * 32}"
SCHEMA = json.loads((harness.ROOT / "backends" / "foldmap" / "schema.json").read_text())


def validate(fold_map: FoldMap) -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(fold_map.to_json()))


def weights(model: ModelProto) -> dict[str, np.ndarray[Any, Any]]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.shared
@pytest.mark.slow
def test_every_affine_of_every_shared_model_is_accounted_for(
    record_property: Callable[[str, object], None],
) -> None:
    statuses: Counter[str] = Counter()
    for path in harness.shared_models():
        result = irc.compile(path, freeze_initializers=True)
        validate(result.fold_map)
        sources = {source["id"]: source for source in result.fold_map.sources}
        batch_norms = sum(
            source["kind"] == "batch_norm" and not source["scope"] for source in sources.values()
        )
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
    decode_array = result.fold_map.arrays.get
    for layer in result.fold_map.layers:
        (fold,) = layer["folds"]
        params = {
            key: decode_array(entry["value"])
            for key, entry in sources[fold["source"]]["params"].items()
        }
        gamma, beta, mean, var = (
            params[key].astype(np.float64) for key in ("gamma", "beta", "mean", "var")
        )
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


@pytest.mark.parametrize(
    "name", ['"quoted"', "a\\b\n\t\x00\x1f\x7f", "Straße \U0001f600 \u2028", "{x} %s {{"]
)
def test_names_of_any_characters_are_written_as_json(name: str, tmp_path: Path) -> None:
    graph, *_ = conv_bn(name=name)
    graph.output("y")
    model = graph.model()
    for tensor in model.graph.initializer:
        tensor.name += name
    for node in model.graph.node:
        node.input[1:] = [used + name for used in node.input[1:]]
    result = irc.compile(model)
    assert [layer["node"]["name"] for layer in result.fold_map.layers] == [name]
    result.save(tmp_path / "model.onnx", fold_map=tmp_path / "map.json")
    assert FoldMap.load(tmp_path / "map.json").data == result.fold_map.data


def test_params_are_the_sources_own_bits() -> None:
    before, result = weights(onnx.load(EXAMPLE)), irc.compile(EXAMPLE)
    for source in result.fold_map.sources:
        for entry in source["params"].values():
            assert np.array_equal(result.fold_map.arrays.get(entry["value"]), before[entry["name"]])


def test_without_passes_everything_is_kept_and_says_so() -> None:
    fold_map = irc.compile(EXAMPLE, "none").fold_map
    validate(fold_map)
    assert {(source["status"], source["reason"]) for source in fold_map.sources} == {
        ("kept", "not_attempted")
    }
    assert not fold_map.layers


def test_a_module_from_text_has_a_map_too() -> None:
    from irc.ir.text.printer import side_data

    source = irc.load(EXAMPLE)
    result = irc.compile(irc.parse(str(source), data=side_data(source)))
    validate(result.fold_map)
    assert result.fold_map.data["source_model"] is None
    assert result.fold_map.count() == {"folded": 8}
    assert weights(result.model).keys() == weights(irc.compile(EXAMPLE).model).keys()


def test_text_without_its_payloads_cannot_be_emitted() -> None:
    with pytest.raises(EmitError, match=r"stem/conv\.weight': the elements of .* were not given"):
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


def test_arrays_survive_both_stores_bit_for_bit(tmp_path: Path) -> None:
    import ml_dtypes

    arrays = {
        name: np.array([[1.5, -0.0, np.inf], [np.nan, 1e-7, 3.0]]).astype(dtype)
        for name, dtype in (
            ("a", np.float16),
            ("b", np.float32),
            ("c", np.float64),
            ("d", ml_dtypes.bfloat16),
        )
    } | {
        "scalar": np.array(2.0),
        "empty": np.zeros((0, 3), np.int8),
        "large": np.zeros((2, POOLED), np.int8),
    }
    store = ArrayStore()
    entries = json.loads(json.dumps([store.add(name, array) for name, array in arrays.items()]))
    text = ArrayStore.from_text(json.loads(json.dumps(store.to_text())), entries_of(entries))
    with ExitStack() as files:
        writer = NpzWriter(tmp_path / "a.json", files)
        store.write_npz(writer)
        writer.finish()
    for copy in (text, ArrayStore.from_npz(tmp_path / "a.npz")):
        for entry, array in zip(entries, arrays.values(), strict=True):
            decoded = copy.get(entry)
            assert (decoded.dtype, decoded.shape) == (array.dtype, array.shape)
            assert decoded.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "neither JSON nor an ONNX model"),
        ("{", "neither JSON nor an ONNX model"),
        ("garbage", "neither JSON nor an ONNX model"),
        ("[1]", "not a fold map"),
        ('{"format": "other"}', "not a fold map"),
        (f'{{"format": "{FORMAT}", "version": "7.0"}}', "version '7.0' is not supported"),
    ],
)
def test_what_is_no_fold_map_is_refused(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    path.write_text(content)
    with pytest.raises(FoldMapError, match=message) as error:
        FoldMap.load(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("store", ["npz", "inline"])
def test_saved_and_loaded_maps_are_equal(store: str, tmp_path: Path) -> None:
    result = irc.compile(EXAMPLE)
    result.save(tmp_path / "o.onnx", fold_map=tmp_path / "o.json", fold_map_store=store)
    assert (tmp_path / "o.npz").exists() == (store == "npz")
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads((tmp_path / "o.json").read_text()))
    assert FoldMap.load(tmp_path / "o.json").to_json() == result.fold_map.to_json()


def test_a_map_in_the_metadata_of_the_model_is_the_same(tmp_path: Path) -> None:
    result = irc.compile(EXAMPLE)
    result.save(tmp_path / "o.onnx", embed_fold_map=True)
    assert FoldMap.load(tmp_path / "o.onnx").to_json() == result.fold_map.to_json()
    assert graph_digest(onnx.load(tmp_path / "o.onnx")) == graph_digest(result.model)
    assert [entry.key for entry in result.model.metadata_props] == ["irc.compiled"]
    with pytest.raises(FoldMapError, match=r"digits_cnn\.onnx: the model holds no fold map"):
        FoldMap.load(EXAMPLE)


@pytest.mark.parametrize("size", [3, POOLED])
@pytest.mark.parametrize(
    "damage",
    [
        {"ref": "b"},
        {"ref": "float32"},
        {"shape": [7]},
        {"shape": [-3]},
        {"dtype": "float31"},
        {"offset": -1},
    ],
)
def test_damaged_arrays_are_refused(damage: dict[str, Any], size: int) -> None:
    store = ArrayStore()
    with pytest.raises(FoldMapError, match="cannot be read"):
        store.get({**store.add("a", np.ones(size)), **damage})


def test_small_arrays_share_a_member() -> None:
    """A member costs more than a small array: a model of many layers has few of them."""
    store = ArrayStore()
    entries = [store.add(f"a{i}", np.full(3, i, np.float32)) for i in range(100)]
    large = store.add("large", np.zeros(POOLED, np.uint8))
    assert list(store.members()) == ["float32", "large"]
    assert (entries[7]["ref"], entries[7]["offset"], large["ref"]) == ("float32", 21, "large")
    assert "offset" not in large
    for array, entry in (
        (np.full(3, -1, np.float32), entries[7]),
        (np.ones(POOLED, np.uint8), large),
    ):
        store.put(entry, array)
        np.testing.assert_array_equal(store.get(entry), array)
    assert [float(store.get(entry)[0]) for entry in entries[6:9]] == [6, -1, 8]


@pytest.mark.parametrize(
    ("store", "message"),
    [
        (
            {"kind": "npz", "path": "../o.npz", "digest": NONE},
            "'../o.npz' lies outside the fold map's folder",
        ),
        ({"kind": "npz", "path": "/o.npz", "digest": NONE}, "lies outside"),
        (
            {"kind": "npz", "path": "missing.npz", "digest": NONE},
            "'missing.npz' cannot be read: No such file",
        ),
        (
            {"kind": "npz", "path": "o.npz", "digest": NONE},
            "'o.npz' belongs to another fold map, or was changed",
        ),
        (
            {"kind": "tape"},
            r"tensor_store\.kind: Invalid enum value 'tape' \(allowed: npz, inline\)",
        ),
        ({"kind": "inline", "arrays": {}}, "an array of the fold map cannot be read"),
    ],
)
def test_arrays_that_are_not_the_maps_own_are_refused(
    store: dict[str, str], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "o.json"
    irc.compile(EXAMPLE).fold_map.save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "tensor_store": store}))
    with pytest.raises(FoldMapError, match=message) as error:
        FoldMap.load(path)
    assert str(error.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("place", "allowed"),
    [
        (("sources", 0, "status"), "folded, partial, merged, kept, dead"),
        (("sources", 0, "reason"), "activation_between, axis_mismatch, "),
        (("layers", 0, "folds", 0, "direction"), "backward, forward"),
    ],
)
def test_an_unknown_word_is_refused_with_the_known_ones(
    place: tuple[Any, ...], allowed: str, tmp_path: Path
) -> None:
    document = saved(tmp_path, place, "sideways")
    with pytest.raises(FoldMapError, match=f"Invalid enum value 'sideways' .allowed: {allowed}"):
        FoldMap.load(document)


def test_a_whole_number_may_be_written_as_a_float(tmp_path: Path) -> None:
    """The schema says integer, which 4.0 is."""
    channels = irc.compile(EXAMPLE).fold_map.sources[0]["channels"]
    assert isinstance(channels, int)
    whole = FoldMap.load(saved(tmp_path, ("sources", 0, "channels"), float(channels))).sources[0][
        "channels"
    ]
    assert (whole, type(whole)) == (channels, int)
    with pytest.raises(
        FoldMapError, match=r"sources\[0\]\.channels: Expected `int | null`, got `float`"
    ):
        FoldMap.load(saved(tmp_path, ("sources", 0, "channels"), channels + 0.5))


def saved(folder: Path, place: tuple[Any, ...], value: object) -> Path:
    """Write the fold map of the example with another value at one place."""
    path = folder / "o.json"
    irc.compile(EXAMPLE).fold_map.save(path)
    document = at = json.loads(path.read_text())
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    path.write_text(json.dumps(document))
    return path


def mutations(document: Any) -> Iterator[tuple[str, Any]]:
    """Copies of a document in which one key is missing or one value is of another kind."""
    places: list[tuple[Any, ...]] = []
    stack: list[tuple[Any, tuple[Any, ...]]] = [(document, ())]
    while stack:
        item, path = stack.pop()
        pairs: Iterable[tuple[Any, Any]] = ()
        if isinstance(item, dict):
            pairs = item.items()
        elif isinstance(item, list):
            pairs = enumerate(item[:2])
        for key, value in pairs:
            places.append((*path, key))
            stack.append((value, (*path, key)))
    for path in places:
        for new in ("missing", None, 5, "", "[/red]", [1], {}, 2**70, float("nan")):
            changed = deepcopy(document)
            inner = changed
            for key in path[:-1]:
                inner = inner[key]
            if new == "missing":
                del inner[path[-1]]
            else:
                inner[path[-1]] = new
            yield f"{'/'.join(map(str, path))} {new!r}", changed


def whole_document() -> dict[str, Any]:
    """A document in which every kind of entry stands.

    Subgraphs, a remainder, history and every kind of recipe.
    """
    graph = Graph(dtype=F32)
    graph.input("x", [2, 3, 5, 5])
    inner = Graph(dtype=F32)
    hidden = inner.node("Conv", ["x", inner.initializer(inner.random(64, 3, 3, 3))])
    inner.output(inner.batch_norm(hidden, batch_norm(64), "b"), [2, 64, 3, 3])
    body = inner.model().graph
    condition = graph.input("c", [], np.dtype(bool))
    graph.output(
        graph.node("If", [condition], "y", "if", then_branch=body, else_branch=body), [2, 64, 3, 3]
    )
    nested = json.loads(irc.compile(graph.model()).fold_map.to_json())
    document = json.loads(
        irc.compile(EXAMPLE, "default,CrossLayerEqualization,FoldConstant").fold_map.to_json()
    )
    document["sources"] = document["sources"][:2]
    document["layers"] = document["layers"][:2]
    document["layers"][1]["remainder"] = {"op_type": "Add", "output": "z"}
    document["statistics"] = [*document["statistics"][:1], *nested["statistics"][:1]]
    array = document["layers"][0]["folds"][0]["scale"]
    tensors = document["restore"]["tensors"]
    scaled = {"base": "0" * 32, "factor": array, "residual": array}
    plain = next(iter(tensors))
    document["restore"]["tensors"] = {plain: {"data": array}, "1" * 32: scaled}
    document["restore"]["tensors"]["2" * 32] = {**scaled, "exceptions": array, "values": array}
    for source in document["sources"]:
        source["notes"] = ["tried"]
    document["sources"][1].update(
        status="kept", reason="not_attempted", detail="no pass", layers=[]
    )
    assert document["history"][0]["layers"] and document["statistics"][1]["scope"]
    return document


@pytest.mark.slow
def test_types_and_schema_accept_the_same_documents() -> None:
    """But for integers of more than 64 bits, and references to layers: no schema follows these."""
    validator = jsonschema.Draft202012Validator(SCHEMA)
    document = whole_document()
    validator.validate(document)
    check_document(document)
    verdicts: Counter[bool] = Counter()
    for what, changed in mutations(document):
        reason = refusal(changed)
        if str(2**70) not in what and "a layer that is not in the map" not in reason:
            assert validator.is_valid(changed) == (not reason), (what, reason)
            verdicts[not reason] += 1
    assert verdicts[True] > 200
    assert verdicts[False] > 1000


def refusal(document: Any) -> str:
    """Why a document is refused, nothing if it is not."""
    try:
        check_document(document)
    except FoldMapError as error:
        return str(error)
    return ""


def test_types_and_schema_name_the_same_keys_and_choices() -> None:
    hints, names = get_type_hints(entries.StoredDocument), set()
    pending: list[Any] = list(hints.values())
    keys = set(hints)
    while pending:
        hint = pending.pop()
        if typing.get_origin(hint) is typing.Literal:
            names.update(typing.get_args(hint))
        elif typing.is_typeddict(hint):
            inner = get_type_hints(hint)
            keys.update(inner)
            pending.extend(inner.values())
        else:
            pending.extend(typing.get_args(hint))
    found_keys: set[str] = set()
    found_names: set[str] = set()
    stack: list[Any] = [SCHEMA]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            found_keys.update(item.get("properties", {}) if "if" not in item else ())
            found_names.update(item.get("enum", ()))
            found_names.update([item["const"]] if "const" in item else ())
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
    assert keys == found_keys
    assert names == found_names


@pytest.mark.slow
@pytest.mark.parametrize("store", ["npz", "inline"])
def test_no_document_brings_a_command_down(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever stands in a fold map: it is read, or refused in one sentence."""
    model, fold_map, output = (str(tmp_path / name) for name in ("o.onnx", "m.json", "out"))
    graph, *_ = conv_bn()
    graph.output("y")
    onnx.save(graph.model(), model)
    in_place = ["compile", model, "--in-place", "-q", "--fold-map", fold_map]
    assert main([*in_place, "--fold-map-store", store]) == 0
    commands = (
        ["foldmap", "show", fold_map],
        ["foldmap", "check", model, fold_map],
        ["unfold", model, fold_map, "-o", output],
        ["foldmap", "export", model, fold_map, "--to", "nncf", "-o", output],
    )
    tried = 0
    for what, document in mutations(json.loads(Path(fold_map).read_text())):
        Path(fold_map).write_text(json.dumps(document))
        for command in commands if tried % 5 == 0 else commands[:1]:
            status = main(command)
            assert status in (0, 1), (what, command)
            error = capsys.readouterr().err
            assert status == 0 or error.count("\n") == 1, (what, error)
        tried += 1
    assert tried > 500


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x05\x06" + b"\0" * 18,
        np.lib.format.magic(1, 0) + b"\x10\x00",
        pytest.param(b"\x80\x04K\x01.", id="pickle"),
    ],
)
def test_arrays_that_are_none_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "o.json"
    irc.compile(EXAMPLE).fold_map.save(path)
    (tmp_path / "o.npz").write_bytes(content)
    document = json.loads(path.read_text())
    document["tensor_store"]["digest"] = f"xxh128:{xxh3_128_hexdigest(content)}"
    path.write_text(json.dumps(document))
    with pytest.raises(
        FoldMapError,
        match=r"o\.json: the arrays cannot be read|an array of the fold map cannot be read",
    ):
        FoldMap.load(path).arrays.get(document["layers"][0]["folds"][0]["scale"])


def test_a_model_compiled_again_does_not_carry_the_map_of_another(tmp_path: Path) -> None:
    first, second = tmp_path / "a.onnx", tmp_path / "b.onnx"
    irc.compile(EXAMPLE, "SimplifyInference").save(first, embed_fold_map=True)
    irc.compile(first).save(second)
    assert [entry.key for entry in onnx.load(second).metadata_props] == ["irc.compiled"]
    irc.compile(first, "none").save(second)
    assert onnx.load(second) == onnx.load(first)


def test_a_rescaled_map_is_adopted_by_the_model_it_is_true_of() -> None:
    """Another tool halves the result of the first convolution."""
    result = irc.compile(EXAMPLE)
    model, fold_map = (
        deepcopy(result.model),
        FoldMap(deepcopy(result.fold_map.data), result.fold_map.arrays),
    )
    changed = weights(model)
    for tensor in model.graph.initializer:
        if tensor.name in ("stem/conv.weight", "stem/conv.bias"):
            tensor.CopyFrom(
                numpy_helper.from_array(changed[tensor.name] / np.float32(2), tensor.name)
            )
    before = fold_map.output_stats("stem/conv")
    with pytest.raises(FoldMapError, match="belongs to another model"):
        activations(model, fold_map)
    fold_map.rescale("stem/conv", 0.5)
    fold_map.adopt(model)
    after = fold_map.output_stats("stem/conv")
    assert before is not None
    assert after is not None
    assert np.array_equal(after.std, before.std / 2)
    assert activations(model, fold_map).known
    assert check(model, fold_map).same
    with pytest.raises(FoldMapError, match="holds no source model"):
        unfold(model, fold_map)


@pytest.mark.parametrize("scale", [0.0, np.nan, np.ones(3), np.ones((16, 1)), None, "x"])
def test_scales_that_are_none_are_refused(scale: Any) -> None:
    with pytest.raises(FoldMapError, match=r"channels|not finite|numbers"):
        irc.compile(EXAMPLE).fold_map.rescale("stem/conv", scale)


def test_affines_of_subgraphs_stand_in_the_models_order() -> None:
    graph = Graph(dtype=F32)
    graph.input("x", [2, 3, 5, 5])
    condition = graph.input("c", [], np.dtype(bool))
    for i in range(3):
        branches = {}
        for branch in ("then_branch", "else_branch"):
            inner = Graph(dtype=F32)
            hidden = inner.node("Conv", ["x", inner.initializer(inner.random(4, 3, 1, 1))])
            inner.output(inner.batch_norm(hidden, batch_norm(4), f"{branch}{i}"), [2, 4, 5, 5])
            branches[branch] = inner.model().graph
        graph.output(graph.node("If", [condition], f"y{i}", f"if{i}", **branches), [2, 4, 5, 5])
    result = irc.compile(graph.model())
    fold_map = result.fold_map
    outputs = [source["output"] for source in fold_map.sources]
    assert outputs == [
        f"{attribute.name}{i}"
        for i, node in enumerate(result.model.graph.node)
        for attribute in node.attribute
    ]
    assert [layer["output"]["name"] for layer in fold_map.layers] == outputs


@pytest.mark.parametrize("dims", [(2**62, 0), (0, 2**63 - 1, 4), (-1, -2)])
def test_a_tensor_of_a_shape_that_no_array_has_is_known_by_its_message(
    dims: tuple[int, ...],
) -> None:
    tensor = TensorProto(
        dims=dims, data_type=TensorProto.FLOAT, float_data=[1, 2] if min(dims) < 0 else []
    )
    assert tensor_digest(tensor, Path()) == xxh3_128_hexdigest(
        tensor.SerializeToString(deterministic=True)
    )
