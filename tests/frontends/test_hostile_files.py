"""Files from strangers.

Nothing outside a model's folder is read or written, and nothing is unpacked unseen.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import shutil
import zipfile
import zlib
from pathlib import Path
from typing import Any

import irc
import numpy as np
import pytest
from graphs import conv_bn
from irc.backends.foldmap.fold_map import FoldMap
from irc.frontends.onnx import from_model
from irc.ir.payload import file_digest
from irc.support.errors import EmitError, FoldMapError, IRError, ModelError
from irc.support.limits import Limits
from irc.tools.cli.main import main
from onnx import ModelProto, TensorProto, helper

SIXTEEN = np.arange(16, dtype="<f4").reshape(4, 4)


def model(**external: str) -> ModelProto:
    """x + w, the elements of w in another file."""
    tensor = TensorProto(
        name="w", data_type=TensorProto.FLOAT, dims=[4, 4], data_location=TensorProto.EXTERNAL
    )
    for key, value in external.items():
        tensor.external_data.add(key=key, value=value)
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4]) for name in "xy"]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])], "g", info[:1], info[1:], [tensor]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder `inside` with data, a link out, a FIFO and a folder; beside it a secret file."""
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "secret").write_bytes(SIXTEEN.tobytes())
    (inside / "data").write_bytes(SIXTEEN.tobytes() + bytes(64))
    (inside / "folder").mkdir()
    (inside / "link").symlink_to(tmp_path / "secret")
    (inside / "up").symlink_to(tmp_path)
    (inside / "loop").symlink_to("loop")
    (inside / "device").symlink_to("/dev/zero")
    (inside / "good").symlink_to("data")
    os.mkfifo(inside / "fifo")
    return inside


def load(place: Path, made: ModelProto) -> irc.Module:
    (place / "model.onnx").write_bytes(made.SerializeToString())
    return irc.load(place / "model.onnx")


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("../secret", "outside"),
        ("../inside/data", "outside"),
        ("folder/../data", "outside"),
        ("folder/../../secret", "outside"),
        ("/etc/hostname", "outside"),
        ("/dev/zero", "outside"),
        ("link", "outside"),
        ("up/secret", "outside"),
        ("device", "outside"),
        ("", "outside"),
        (".", "outside"),
        ("..", "outside"),
        ("folder", "not a regular file"),
        ("fifo", "not a regular file"),
        ("absent", "missing"),
        ("data/inside", "missing"),
        ("loop", "external data"),
        ("a\0b", "cannot be read"),
        ("x" * 5000, "cannot be read"),
        ("x/" * 5000, "cannot be read"),
    ],
)
def test_a_location_that_leaves_the_folder_or_is_no_file_is_refused(
    place: Path, location: str, reason: str
) -> None:
    made = model(location=location, length="64")
    with pytest.raises(ModelError, match=reason) as error:
        load(place, made)
    assert "'w'" in str(error.value)
    assert len(str(error.value)) < 1000
    with pytest.raises(ModelError, match=reason):  # a ModelProto is read by its folder
        irc.compile(from_model(made, place), "FoldConstant").save(
            place / "out.onnx", fold_map=place / "map.json"
        )
    assert not (place / "out.onnx").exists()
    assert not (place / "map.json").exists()


@pytest.mark.parametrize(
    ("numbers", "reason"),
    [
        ({"offset": "65"}, "type ask for 64"),
        ({"offset": "100", "length": "64"}, "has 128 bytes, and the tensor asks for"),
        ({"offset": "-1"}, "not a number"),
        ({"offset": "0x10"}, "not a number"),
        ({"offset": " 4"}, "not a number"),
        ({"offset": "1e1"}, "not a number"),
        ({"offset": "٣"}, "not a number"),
        ({"offset": ""}, "not a number"),
        ({"offset": "9" * 5000}, "not a number"),
        ({"length": "-64"}, "not a number"),
        ({"length": "63"}, "type ask for 64"),
        ({"length": "128"}, "type ask for 64"),
        ({"length": str(2**62)}, "has 128 bytes, and the tensor asks for"),
        ({"offset": str(2**62), "length": "64"}, "has 128 bytes, and the tensor asks for"),
        ({"offset": str(2**62)}, "has 128 bytes, and the tensor asks for"),
        ({}, "type ask for 64"),
    ],
)
def test_bytes_that_the_file_does_not_hold_are_refused(
    place: Path, numbers: dict[str, str], reason: str
) -> None:
    with pytest.raises(ModelError, match=reason):
        load(place, model(location="data", **numbers))


@pytest.mark.parametrize("dims", [[2**40], [-4, -4], [2**62, 2**62], [0]])
def test_a_shape_that_lies_about_its_file_is_refused(place: Path, dims: list[int]) -> None:
    made = model(location="data", length="64")
    made.graph.initializer[0].dims[:] = dims
    with pytest.raises(ModelError, match=r"shape \["):
        load(place, made)


@pytest.mark.parametrize("location", ["data", "./data"])
def test_a_file_in_the_folder_is_read(place: Path, location: str) -> None:
    module = load(place, model(location=location, offset="0", length="64"))
    constant = next(node for node in module.walk() if node.op == "constant")
    assert (constant.attrs["value"].numpy() == SIXTEEN).all()  # type: ignore[union-attr]


def test_a_link_within_the_folder_is_read_or_refused(place: Path) -> None:
    """onnx reads no links at all."""
    made = model(location="good", offset="0", length="64")
    made.graph.initializer[0].dims[:] = [16]
    with contextlib.suppress(IRError):
        irc.compile(load(place, made)).fold_map.to_json()


def test_tensors_may_overlap(place: Path) -> None:
    made = model(location="data", offset="0", length="64")
    other = made.graph.initializer.add()
    other.CopyFrom(made.graph.initializer[0])
    other.name, other.external_data[1].value = "v", "32"
    assert load(place, made)


def test_the_output_does_not_take_the_place_of_the_weights(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load(place, model(location="data", offset="0", length="64"))
    before = (place / "data").read_bytes()
    assert main(["compile", str(place / "model.onnx"), "-o", str(place / "data")]) == 2
    assert "this output would replace a file that is read" in capsys.readouterr().err
    assert (place / "data").read_bytes() == before


def test_weights_do_not_take_the_place_of_the_output(place: Path, tmp_path: Path) -> None:
    load(place, model(location="data", offset="0", length="64"))
    there = tmp_path / "there"
    there.mkdir()
    assert not main(["compile", str(place / "model.onnx"), "-o", str(there / "data")])
    assert irc.load(there / "data").graph.inputs[0].name == "x"


def test_nothing_is_written_through_a_link_out_of_the_folder_of_the_output(
    place: Path, tmp_path: Path
) -> None:
    (place / "sub").mkdir()
    shutil.copy(place / "data", place / "sub" / "data")
    module = load(place, model(location="sub/data", offset="0", length="64"))
    there, elsewhere = tmp_path / "there", tmp_path / "elsewhere"
    there.mkdir()
    elsewhere.mkdir()
    (there / "sub").symlink_to(elsewhere)
    with pytest.raises(EmitError, match="outside the folder"):
        irc.compile(module).save(there / "out.onnx")
    assert not list(elsewhere.iterdir())
    assert not (there / "out.onnx").exists()


# fold maps


@pytest.fixture
def mapped(tmp_path: Path) -> Path:
    """A folder with a compiled model and its fold map."""
    irc.compile(conv_bn()[0].model()).save(tmp_path / "out.onnx", fold_map=tmp_path / "map.json")
    return tmp_path


def rewritten(folder: Path, **store: Any) -> Path:
    document = json.loads((folder / "map.json").read_text())
    document["tensor_store"].update(store)
    (folder / "map.json").write_text(json.dumps(document))
    return folder / "map.json"


@pytest.mark.parametrize(
    "path",
    [
        "../map.npz",
        "/etc/passwd",
        "..",
        ".",
        "",
        "a/../map.npz",
        "link",
        "fifo",
        "sub",
        "a\0b",
        "x" * 5000,
        None,
        7,
    ],
)
def test_the_arrays_of_a_fold_map_are_a_file_beside_it(mapped: Path, path: object) -> None:
    (mapped / "link").symlink_to("/etc/hostname")
    (mapped / "sub").mkdir()
    os.mkfifo(mapped / "fifo")
    with pytest.raises(FoldMapError) as error:
        FoldMap.load(rewritten(mapped, path=path))
    assert "belongs to another" not in str(error.value)  # it was not even read
    assert len(str(error.value)) < 1000


def with_npz(folder: Path, content: bytes) -> Path:
    (folder / "map.npz").write_bytes(content)
    return rewritten(folder, digest=file_digest(folder / "map.npz"))


def bomb(size: int) -> bytes:
    stream = io.BytesIO()
    with (
        zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("a.npy", "w") as member,
    ):
        np.lib.format.write_array_header_1_0(
            member, {"descr": "|u1", "fortran_order": False, "shape": (size,)}
        )
        for _ in range(size >> 20):
            member.write(bytes(1 << 20))
    return stream.getvalue()


def test_a_bomb_of_arrays_is_not_unpacked(mapped: Path) -> None:
    path = with_npz(mapped, bomb(256 << 20))
    with pytest.raises(
        FoldMapError, match=r"more than the limit of 100000000 \(--max-fold-map-bytes\)"
    ):
        FoldMap.load(path, Limits(max_fold_map_bytes=100_000_000))


@pytest.mark.parametrize(
    "shape", ["(1000000000000,)", "(1000000, 1000000)", "(-1,)", "('a',)", "()"]
)
def test_an_array_that_lies_about_its_size_is_not_made(mapped: Path, shape: str) -> None:
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(
            "a.npy",
            b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + bytes(16),
        )
    with pytest.raises(FoldMapError, match="cannot be read"):
        FoldMap.load(with_npz(mapped, stream.getvalue()))


def test_a_pickle_among_the_arrays_is_not_run(mapped: Path) -> None:
    stream = io.BytesIO()
    np.savez(stream, a=np.array([object()], object), allow_pickle=True)
    with pytest.raises(FoldMapError, match="cannot be read"):
        FoldMap.load(with_npz(mapped, stream.getvalue()))


def inline(folder: Path) -> dict[str, Any]:
    fold_map = FoldMap.load(folder / "map.json")
    document: dict[str, Any] = json.loads(fold_map.to_json())
    return document


def test_inline_arrays_are_held_to_the_limit_before_they_are_unpacked(mapped: Path) -> None:
    document = inline(mapped)
    entry = document["restore"]["skeleton"]
    entry["shape"] = [200_000_000]
    document["tensor_store"]["arrays"][entry["ref"]] = base64.b64encode(
        zlib.compress(bytes(200_000_000), 1)
    ).decode()
    (mapped / "inline.json").write_text(json.dumps(document))
    with pytest.raises(FoldMapError, match="--max-fold-map-bytes"):
        FoldMap.load(mapped / "inline.json", Limits(max_fold_map_bytes=1_000_000))


def test_one_array_that_many_entries_name_is_unpacked_once(mapped: Path) -> None:
    document = inline(mapped)
    document["extra"] = [{**document["restore"]["skeleton"]} for _ in range(20_000)]
    (mapped / "inline.json").write_text(json.dumps(document))
    assert FoldMap.load(mapped / "inline.json", Limits(max_fold_map_bytes=1_000_000))


def test_a_document_nested_deeper_than_the_limit_is_refused(mapped: Path) -> None:
    for depth, reason in ((100, "--max-nesting"), (100_000, "JSON")):
        text = (mapped / "map.json").read_text()
        (mapped / "deep.json").write_text(
            text.rstrip()[:-1] + ', "extra": ' + "[" * depth + "]" * depth + "}"
        )
        with pytest.raises(FoldMapError, match=reason):
            FoldMap.load(mapped / "deep.json")


def test_a_fold_map_in_a_model_is_held_to_the_limit(mapped: Path) -> None:
    made = ModelProto.FromString((mapped / "out.onnx").read_bytes())
    packed = base64.b64encode(zlib.compress(b"{" + b" " * 50_000_000)).decode()
    made.metadata_props.add(key="irc.fold_map", value=packed)
    (mapped / "bomb.onnx").write_bytes(made.SerializeToString())
    with pytest.raises(FoldMapError, match="--max-fold-map-bytes"):
        FoldMap.load(mapped / "bomb.onnx", Limits(max_fold_map_bytes=1_000_000))


# folders


HOSTILE = (
    "../../escaped",
    "/tmp/escaped",
    "a/b/c",
    "..",
    "nul\0",
    "x" * 5000,
    "con",
    "-rf",
    "\u202etxt",
)


def test_hostile_node_names_do_not_become_paths(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Neg", ["x" if not i else HOSTILE[i - 1]], [name], name=name)
        for i, name in enumerate(HOSTILE)
    ]
    nodes.append(helper.make_node("Exp", [HOSTILE[-1]], ["y"], name="../y"))
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    made = helper.make_model(
        helper.make_graph(nodes, "../g", info[:1], info[1:]),
        ir_version=9,
        opset_imports=[helper.make_opsetid("", 17)],
    )
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "m.onnx").write_bytes(made.SerializeToString())
    words = f"compile {folder / 'm.onnx'} -o {folder / 'o.onnx'} --dump-ir {folder / 'ir'}".split()
    assert not main(
        [*words, "--fold-map", str(folder / "map.json"), "--report", str(folder / "r.html")]
    )
    assert not main(
        f"align {folder / 'm.onnx'} {folder / 'm.onnx'} --dump {folder / 'tensors'} -q".split()
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["work"]
    assert sorted(path.name for path in folder.iterdir()) == [
        "ir",
        "m.onnx",
        "map.json",
        "map.npz",
        "o.onnx",
        "r.html",
        "tensors",
    ]
    assert all(path.name[:2].isdigit() for path in (folder / "ir").iterdir())
    assert all(
        path.stem.isdigit() or path.stem == "index" for path in (folder / "tensors").iterdir()
    )
    index = json.loads((folder / "tensors" / "index.json").read_text())
    assert {entry["tensor"] for entry in index} > {*HOSTILE}


def test_inputs_do_not_name_other_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "secret").write_bytes(bytes(8))
    tensor = TensorProto(
        name="x", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL
    )
    tensor.external_data.add(key="location", value="secret")
    (tmp_path / "x.pb").write_bytes(tensor.SerializeToString())
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    made = helper.make_model(
        helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", info[:1], info[1:])
    )
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    assert (
        main(["compile", str(tmp_path / "m.onnx"), "--verify", "--inputs", str(tmp_path / "x.pb")])
        == 1
    )
    assert "its elements are in another file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "option", ["--max-nodes", "--max-nesting", "--max-constant-bytes", "--max-fold-map-bytes"]
)
@pytest.mark.parametrize("number", ["0", "-1", "many", "1e9"])
def test_a_limit_is_a_positive_number(option: str, number: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["compile", "m.onnx", option, number])
    assert stop.value.code == 2


def test_limits_are_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.onnx").write_bytes(conv_bn()[0].model().SerializeToString())
    for command in (
        ["compile"],
        ["dump"],
        ["report", "-o", str(tmp_path / "r.html")],
        ["diff", str(tmp_path / "m.onnx")],
    ):
        assert main([*command, str(tmp_path / "m.onnx"), "--max-nodes", "1"]) == 1
        assert "--max-nodes" in capsys.readouterr().err
    assert not main(
        ["compile", str(tmp_path / "m.onnx"), "--fold-map", str(tmp_path / "map.json"), "-q"]
    )
    assert main(["foldmap", "show", str(tmp_path / "map.json"), "--max-fold-map-bytes", "1"]) == 1
    assert "--max-fold-map-bytes" in capsys.readouterr().err
