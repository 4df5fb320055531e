"""`irc unfold` gives files back byte for byte: the field of each tensor, and external data."""

from __future__ import annotations

import json
from pathlib import Path

import harness
import irc
import numpy as np
import onnx
import pytest
from graphs import conv_bn
from irc.backends.foldmap import storage
from irc.backends.foldmap.fold_map import FoldMap
from irc.backends.foldmap.inverse import unfold
from irc.tools.cli.main import main
from onnx import ModelProto, TensorProto, helper, numpy_helper

NAMES = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?", "c8", "c16")
DTYPES = [helper.np_dtype_to_tensor_dtype(np.dtype(name)) for name in NAMES]
DTYPES += [TensorProto.BFLOAT16, TensorProto.FLOAT8E4M3FN]


def network(*, typed: bool = False) -> ModelProto:
    """Conv and BatchNormalization.

    With `typed` the weight is in `float_data`, and so is a NaN with a payload.
    """
    graph, *_ = conv_bn()
    graph.output("y")
    model = graph.model()
    if typed:
        odd = np.arange(64, dtype=np.float32)
        odd.view(np.uint32)[3] = 0x7FA00001
        model.graph.initializer.append(numpy_helper.from_array(odd, "odd"))
        for tensor in model.graph.initializer:
            raw = tensor.raw_data
            tensor.ClearField("raw_data")
            storage.put_elements(tensor, "float_data", raw)
    return model


def there_and_back(folder: Path, *, passes: str = "default", options: tuple[str, ...] = ()) -> Path:
    """Compile i.onnx, unfold what was written into another folder, and return that folder."""
    out, back = folder / "out", folder / "back"
    out.mkdir()
    back.mkdir()
    command = f"compile {folder / 'i.onnx'} -o {out / 'o.onnx'} --fold-map {out / 'o.json'}".split()
    assert main([*command, "--passes", passes, "-q", *options]) == 0
    assert (
        main(["unfold", str(out / "o.onnx"), str(out / "o.json"), "-o", str(back / "i.onnx")]) == 0
    )
    return back


@pytest.mark.parametrize("options", [(), ("--external-data",)], ids=["inside", "outside"])
@pytest.mark.parametrize("passes", ["none", "default"])
@pytest.mark.parametrize("place", ["raw", "typed", "external", "both"])
def test_files_come_back_byte_for_byte(
    place: str, passes: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    model = network(typed=place in ("typed", "both"))
    if place in ("external", "both"):
        if place == "both":
            weight = next(t for t in model.graph.initializer if len(t.dims) == 4)
            weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight), weight.name))
        harness.save_external(model, tmp_path / "i.onnx", "i.bin", 100)
    else:
        onnx.save(model, tmp_path / "i.onnx")
    back = there_and_back(tmp_path, passes=passes, options=options)
    names = sorted(path.name for path in tmp_path.iterdir() if path.is_file())
    assert names == (["i.bin", "i.onnx"] if place in ("external", "both") else ["i.onnx"])
    assert sorted(path.name for path in back.iterdir()) == names
    for name in names:
        assert (back / name).read_bytes() == (tmp_path / name).read_bytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_goes_back_into_its_field(dtype: int) -> None:
    elements = (
        np.arange(32, dtype=np.uint8) % 2
        if dtype == TensorProto.BOOL
        else np.arange(32, dtype=np.uint8)
    )
    width = numpy_helper.to_array(
        TensorProto(data_type=dtype, dims=[0], raw_data=b"")
    ).dtype.itemsize
    tensor = TensorProto(data_type=dtype, dims=[32 // width])
    storage.put_elements(tensor, helper.tensor_dtype_to_field(dtype), elements.tobytes())
    assert not tensor.raw_data
    assert storage.typed_field(tensor) == helper.tensor_dtype_to_field(dtype)
    raw = numpy_helper.from_array(numpy_helper.to_array(tensor)).raw_data
    assert raw == elements.tobytes()
    assert storage.is_restored(tensor, helper.tensor_dtype_to_field(dtype), raw)
    assert not storage.is_restored(tensor, helper.tensor_dtype_to_field(dtype), raw[::-1])


def external(tmp_path: Path) -> tuple[str, str, Path]:
    harness.save_external(network(), tmp_path / "i.onnx", "i.bin", 100)
    there_and_back(tmp_path)
    return str(tmp_path / "out" / "o.onnx"), str(tmp_path / "out" / "o.json"), tmp_path


def test_a_file_that_is_there_stays_if_it_is_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, fold_map, folder = external(tmp_path)
    data, back = folder / "back" / "i.bin", folder / "back" / "j.onnx"
    data.write_bytes(data.read_bytes() + b"of another model")
    assert main(["unfold", model, fold_map, "-o", str(back)]) == 0
    assert data.read_bytes().endswith(b"of another model")
    data.write_bytes(data.read_bytes()[::-1])
    back.unlink()
    assert main(["unfold", model, fold_map, "-o", str(back)]) == 1
    assert "a file of other content is there: remove it" in capsys.readouterr().err
    assert not back.exists()


@pytest.mark.parametrize(
    "location", ["../i.bin", "/tmp/irc-i.bin", "a/../i.bin", "x.foldmap.npz", "b.onnx"]
)
def test_places_outside_the_folder_are_refused(
    location: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, path, folder = external(tmp_path)
    fold_map = FoldMap.load(path)
    entry = fold_map.data["restore"]["skeleton"]
    skeleton = ModelProto.FromString(fold_map.arrays.get(entry).tobytes())
    for tensor in skeleton.graph.initializer:
        for item in tensor.external_data:
            if item.key == "location":
                item.value = location
    text = np.frombuffer(skeleton.SerializeToString(deterministic=True), np.uint8)
    fold_map.data["restore"]["skeleton"] = fold_map.arrays.add("changed", text)
    fold_map.save(folder / "changed.json", store="inline")
    place = folder / "new"
    place.mkdir()
    assert main(["unfold", model, str(folder / "changed.json"), "-o", str(place / "b.onnx")]) == 1
    assert "cannot be written" in capsys.readouterr().err
    assert not list(place.iterdir())


def test_standard_output_has_external_data_in_the_model(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    model, fold_map, _ = external(tmp_path)
    capfdbinary.readouterr()
    assert main(["unfold", model, fold_map, "-o", "-"]) == 0
    back = ModelProto.FromString(capfdbinary.readouterr().out)
    assert back == network()


def test_a_map_of_version_1_0_is_read() -> None:
    model = network()
    result = irc.compile(model)
    data = json.loads(json.dumps(result.fold_map.data))
    data["version"] = "1.0"
    assert unfold(result.model, FoldMap(data, result.fold_map.arrays)) == model


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.parametrize("folder", ["digits", "legacy_bn"])
def test_shared_models_come_back_byte_for_byte(folder: str, tmp_path: Path) -> None:
    for path in harness.shared_models(folder):
        place = tmp_path / path.stem
        place.mkdir()
        (place / "i.onnx").write_bytes(path.read_bytes())
        assert (there_and_back(place) / "i.onnx").read_bytes() == path.read_bytes(), path.name
