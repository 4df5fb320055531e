"""With no passes a model comes back equal: protobuf equality, byte-equal tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import harness
import irc
import onnx
import pytest
import zoo
from irc.backends.onnx.emitter import emit_model
from irc.frontends.onnx import from_model
from irc.result import Result
from irc.support.errors import ModelError
from irc.tools.cli.main import main
from onnx import ModelProto

REFUSED = {
    "odd/empty/model_of_nothing": "has no graph",
    "odd/empty/no_graph": "has no graph",
    "odd/function_sharing/function_twice": "is defined twice",
    "odd/input/listed_twice": "is defined twice",
    "odd/output/hollow": "which nothing defines",
    "odd/output/undefined": "which nothing defines",
    "odd/tensor/initializer_twice": "is initialized twice",
}
"""Models of the zoo that are no graphs at all, and what is said of each."""


def files_of_onnx() -> Iterator[tuple[str, ModelProto]]:
    for path in harness.onnx_files():
        yield f"{path.parent.name}/{path.name}", harness.load(path)


def accepted() -> Iterator[tuple[str, ModelProto]]:
    """Yield the models of the zoo that are read."""
    return ((name, model) for name, model in zoo.models() if name not in REFUSED)


CORPORA = {
    "node cases of onnx": (harness.node_models, 1500),
    "files of onnx": (files_of_onnx, 140),
    "zoo": (accepted, 900),
}
"""The models of each, and how many there are at least."""


def assert_equal(name: str, model: ModelProto) -> None:
    before = model.SerializeToString(deterministic=True)
    module = from_model(model)
    count = module.operators().total()
    emitted, *_ = emit_model(module)
    assert emitted == model, name
    assert Result(module).operators == count, name
    assert emitted.SerializeToString(deterministic=True) == before, name
    assert model.SerializeToString(deterministic=True) == before, f"{name}: the source was changed"


@pytest.mark.slow
@pytest.mark.parametrize("corpus", CORPORA)
def test_models_come_back_equal(
    corpus: str, record_property: Callable[[str, object], None]
) -> None:
    models, least = CORPORA[corpus]
    count = 0
    for name, model in models():
        assert_equal(name, model)
        count += 1
    record_property("compared", f"{corpus}: {count} models come back equal")
    assert count >= least


@pytest.mark.shared
@pytest.mark.slow
def test_shared_models_come_back_equal(record_property: Callable[[str, object], None]) -> None:
    paths = harness.shared_models()
    for path in paths:
        assert_equal(path.name, harness.load(path))
    record_property("compared", f"shared models: {len(paths)} models come back equal")
    assert len(paths) >= 90


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_graph_is_refused_with_a_reason(name: str) -> None:
    model = dict(zoo.models())[name]
    with pytest.raises(ModelError, match=REFUSED[name]):
        from_model(model)


def external_bytes(path: Path) -> dict[str, bytes]:
    """Every tensor of the model at `path` with its elements read in."""
    from irc.frontends.onnx.codec.tensors import OnnxTensor
    from irc.frontends.onnx.codec.traversal import external_tensors

    model = harness.load(path)
    return {
        f"{i}:{tensor.name}": OnnxTensor(tensor, path.parent).numpy().tobytes()
        for i, tensor in enumerate(external_tensors(model))
    }


def external_models(folder: Path) -> list[tuple[str, Path]]:
    return [
        (name, path) for name, path in zoo.external_models(folder) if not name.startswith("odd/")
    ]


def test_external_data_stays_in_place_beside_its_model(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    models = external_models(tmp_path)
    for name, path in models:
        files = {file: file.read_bytes() for file in path.parent.rglob("*") if file.is_file()}
        output = path.with_name("out.onnx")
        assert main(["compile", str(path), "-o", str(output), "--passes", "none", "-q"]) == 0
        assert harness.load(output) == harness.load(path), name
        assert external_bytes(output) == external_bytes(path)
        assert all(file.read_bytes() == data for file, data in files.items()), name
    record_property("compared", f"models with external data: {len(models)} come back equal")
    assert len(models) >= 25


def test_external_data_follows_its_model_into_another_folder(tmp_path: Path) -> None:
    for i, (name, path) in enumerate(external_models(tmp_path / "in")):
        folder = tmp_path / f"out{i}"
        folder.mkdir()
        irc.compile(path, "none").save(folder / "out.onnx")
        assert harness.load(folder / "out.onnx") == harness.load(path), name
        assert external_bytes(folder / "out.onnx") == external_bytes(path), name


def test_external_data_of_another_model_is_not_overwritten(tmp_path: Path) -> None:
    name, path = external_models(tmp_path / "in")[0]
    location = next(
        e.value for t in external_tensors_of(path) for e in t.external_data if e.key == "location"
    )
    folder = tmp_path / "out"
    (folder / location).parent.mkdir(parents=True)
    (folder / location).write_bytes(b"somebody else's")
    irc.compile(path, "none").save(folder / "out.onnx")
    assert (folder / location).read_bytes() == b"somebody else's", name
    assert external_bytes(folder / "out.onnx") == external_bytes(path)


def external_tensors_of(path: Path) -> list[onnx.TensorProto]:
    from irc.frontends.onnx.codec.traversal import external_tensors

    return list(external_tensors(harness.load(path)))


@pytest.mark.shared
@pytest.mark.slow
def test_every_origin_is_emitted_or_dropped() -> None:
    from irc.ir.graph import flatten_origins
    from irc.passes import default_pipeline

    for path in harness.shared_models():
        module = default_pipeline()(irc.load(path))
        emitted = {
            origin
            for node in module.walk()
            for origin in flatten_origins((node.origins, node.inherited))
        }
        dropped = set(flatten_origins(tuple(module.provenance.dropped)))
        assert emitted | dropped == set(range(module.next_origin)), path.name
