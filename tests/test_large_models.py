"""Large tensors stay in their files until they are written.

What comes out is what comes out where all is in memory.
"""

from __future__ import annotations

import copy
import gc
import os
import pickle
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from itertools import cycle
from pathlib import Path

import harness
import irc
import numpy as np
import onnx
import pytest
import test_round_trip
from graphs import conv_bn
from irc.backends.foldmap.digests import graph_digest
from irc.backends.foldmap.fold_map import FoldMap
from irc.backends.foldmap.inverse import unfold
from irc.frontends.onnx.codec import streaming
from irc.ir import payload
from irc.ir.payload import SourceFile
from irc.tools.cli.main import main
from onnx import ModelProto, TensorProto, helper, numpy_helper
from random_graphs import grow

EVERYTHING = 1 << 62
THRESHOLDS = (1, 25, 200, 4096)
"""Bytes from which on tensors stay in the file: every one, those larger than what stands in their
place, and few.
"""

Large = Callable[[int], None]


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> Large:
    """Take files for large, and tensors from so many bytes on."""

    def limit(threshold: int) -> None:
        monkeypatch.setattr(
            "irc.frontends.onnx.LARGE_FILE", 0 if threshold < EVERYTHING else EVERYTHING
        )
        monkeypatch.setattr("irc.frontends.onnx.LARGE_PAYLOAD", threshold)
        monkeypatch.setattr("irc.passes.fold_constant.LAZY", threshold)

    return limit


def models() -> Iterator[tuple[str, ModelProto]]:
    for corpus, _ in test_round_trip.CORPORA.values():
        yield from corpus()


def assert_same_bytes(corpus: Iterable[tuple[str, ModelProto]], large: Large, folder: Path) -> int:
    """Read every model in pieces, by one threshold after the other, and write it again.

    The bytes are those that onnx itself writes.
    """
    count = 0
    source, target = folder / "i.onnx", folder / "o.onnx"
    for (name, model), threshold in zip(corpus, cycle(THRESHOLDS), strict=False):
        expected = model.SerializeToString(deterministic=True)
        source.write_bytes(expected)
        large(threshold)
        irc.emit(irc.load(source)).save(target)
        assert target.read_bytes() == expected, (name, threshold)
        count += 1
    return count


@pytest.mark.slow
def test_models_read_in_pieces_come_back_byte_for_byte(
    large: Large, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    count = assert_same_bytes(models(), large, tmp_path)
    record_property("compared", f"read in pieces: {count} models, {len(THRESHOLDS)} thresholds")
    assert count > 2900


@pytest.mark.shared
@pytest.mark.slow
def test_shared_models_read_in_pieces_come_back_byte_for_byte(large: Large, tmp_path: Path) -> None:
    paths = [path for path in harness.shared_models() if path.stat().st_size < 4 << 20]
    assert (
        assert_same_bytes(((path.name, harness.load(path)) for path in paths), large, tmp_path) > 60
    )


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_compiles_of_shared_models_leave_the_same_files(
    large: Large, threshold: int, tmp_path: Path
) -> None:
    for path in harness.shared_models("exported"):
        large(EVERYTHING)
        irc.compile(path).save(tmp_path / "expected.onnx")
        large(threshold)
        irc.compile(path).save(tmp_path / "found.onnx", fold_map=tmp_path / "map.json")
        assert (tmp_path / "found.onnx").read_bytes() == (
            tmp_path / "expected.onnx"
        ).read_bytes(), path.name
        back = unfold(onnx.load(tmp_path / "found.onnx"), FoldMap.load(tmp_path / "map.json"))
        assert back == harness.load(path), path.name


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_compiles_of_random_graphs_leave_the_same_files(
    large: Large, dtype: type, tmp_path: Path
) -> None:
    for seed in range(40):
        model = grow(seed, np.dtype(dtype))
        onnx.save(model, tmp_path / "i.onnx")
        large(EVERYTHING)
        irc.compile(tmp_path / "i.onnx").save(tmp_path / "expected.onnx")
        large(1)
        result = irc.compile(tmp_path / "i.onnx")
        result.save(tmp_path / "o.onnx", fold_map=tmp_path / "o.json")
        assert (tmp_path / "o.onnx").read_bytes() == (tmp_path / "expected.onnx").read_bytes(), seed
        assert (
            result.model.SerializeToString(deterministic=True) == (tmp_path / "o.onnx").read_bytes()
        ), seed
        assert unfold(onnx.load(tmp_path / "o.onnx"), FoldMap.load(tmp_path / "o.json")) == model, (
            seed
        )


def test_every_field_that_may_hold_a_tensor_is_known() -> None:
    """The table of the scanner is that of the installed onnx."""
    for name, known in streaming.MESSAGE_FIELDS.items():
        fields = getattr(onnx, name).DESCRIPTOR.fields
        kinds = {
            field.number: field.message_type.name
            for field in fields
            if field.message_type is not None
        }
        expected = {
            number: kind for number, kind in kinds.items() if kind in streaming.MESSAGE_FIELDS
        }
        raw = {
            field.number: streaming.RAW_DATA
            for field in fields
            if name == "TensorProto" and field.name == "raw_data"
        }
        assert known == expected | raw, name


def test_damaged_files_are_refused_alike(large: Large, tmp_path: Path) -> None:
    """A file in pieces is a model, and the same one, exactly where it is one as a whole."""
    data = conv_bn()[0].model().SerializeToString()
    rng = np.random.default_rng(0)
    damaged = [data[:end] for end in range(0, len(data), 7)]
    for _ in range(400):
        copy = bytearray(data)
        copy[rng.integers(len(copy))] = rng.integers(256)
        damaged.append(bytes(copy))
    for content in damaged:
        (tmp_path / "i.onnx").write_bytes(content)
        answers = []
        for threshold in (EVERYTHING, 1):
            large(threshold)
            try:
                answers.append(
                    irc.emit(irc.load(tmp_path / "i.onnx")).model.SerializeToString(
                        deterministic=True
                    )
                )
            except irc.ModelError as error:
                answers.append(str(error).encode())
        assert answers[0] == answers[1]


def network(layers: int = 3, channels: int = 32) -> ModelProto:
    """Convolutions of 36 kB, each with a BatchNormalization and a Relu."""
    rng = np.random.default_rng(7)
    nodes, tensors, value = [], [], "x"
    for i in range(layers):
        weight = rng.standard_normal((channels, channels, 3, 3)).astype(np.float32)
        tensors.append(numpy_helper.from_array(weight, f"w{i}"))
        names = [f"{name}{i}" for name in ("gamma", "beta", "mean", "var")]
        tensors += [
            numpy_helper.from_array(rng.uniform(0.5, 1.5, channels).astype(np.float32), name)
            for name in names
        ]
        nodes.append(helper.make_node("Conv", [value, f"w{i}"], [f"c{i}"], name=f"conv{i}"))
        nodes.append(
            helper.make_node("BatchNormalization", [f"c{i}", *names], [f"b{i}"], name=f"bn{i}")
        )
        nodes.append(helper.make_node("Relu", [f"b{i}"], [f"r{i}"], name=f"relu{i}"))
        value = f"r{i}"
    shapes = ([None, channels, 16, 16], [None, channels, None, None])
    infos = [
        helper.make_tensor_value_info(n, 1, shape)
        for n, shape in zip(("x", value), shapes, strict=True)
    ]
    graph = helper.make_graph(nodes, "net", infos[:1], infos[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "i.onnx"
    onnx.save(network(), path)
    return path


def external_files(path: Path) -> set[str]:
    model = onnx.load(path, load_external_data=False)
    return {
        e.value for t in model.graph.initializer for e in t.external_data if e.key == "location"
    }


def arrays(path: Path) -> dict[str, bytes]:
    return {
        tensor.name: numpy_helper.to_array(tensor).tobytes()
        for tensor in onnx.load(path).graph.initializer
    }


def test_folded_external_data_goes_to_one_aligned_file(large: Large, tmp_path: Path) -> None:
    large(1024)
    (tmp_path / "out").mkdir()
    onnx.save(network(), tmp_path / "inner.onnx")
    place = tmp_path / "i.onnx"
    harness.save_external(network(), place, "i.bin", 1024)
    irc.compile(tmp_path / "inner.onnx").save(tmp_path / "expected.onnx")
    for folder in (tmp_path, tmp_path / "out"):
        target = folder / "o.onnx"
        irc.compile(place).save(target, fold_map=folder / "o.json")
        (name,) = external_files(target)
        assert name.startswith("o.onnx.") and name.endswith(".data")
        assert arrays(target) == arrays(tmp_path / "expected.onnx")
        model = onnx.load(target, load_external_data=False)
        offsets = [
            int(e.value)
            for t in model.graph.initializer
            for e in t.external_data
            if e.key == "offset"
        ]
        assert len(offsets) == 3
        assert all(offset % 4096 == 0 for offset in offsets)
        back = unfold(model, FoldMap.load(folder / "o.json"), folder)
        assert {
            t.name: numpy_helper.to_array(t).tobytes() for t in back.graph.initializer
        } == arrays(place)
    assert sorted(
        p.name for p in (tmp_path / "out").iterdir() if p.suffix not in (".json", ".npz")
    ) == [
        "o.onnx",
        external_files(tmp_path / "out" / "o.onnx").pop(),
    ]


def test_data_that_a_copy_of_the_old_model_reads_stays(large: Large, tmp_path: Path) -> None:
    large(1024)
    harness.save_external(network(), tmp_path / "a.onnx", "a.bin", 1024)
    harness.save_external(network(2), tmp_path / "b.onnx", "b.bin", 1024)
    target = tmp_path / "o.onnx"
    names = []
    for name in ("a", "a", "b"):
        irc.compile(tmp_path / f"{name}.onnx").save(target)
        names.append(external_files(target).pop())
        if not (tmp_path / "copy.onnx").exists():
            (tmp_path / "copy.onnx").write_bytes(target.read_bytes())
            expected = arrays(target)
    assert names[0] == names[1] != names[2]
    assert arrays(tmp_path / "copy.onnx") == expected != arrays(target)


def test_what_is_too_large_for_one_file_gets_a_data_file(
    large: Large, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large(1024)
    irc.compile(source).save(tmp_path / "expected.onnx")
    monkeypatch.setattr("irc.backends.onnx.saving.MAX_FILE", 64 << 10)
    irc.compile(source).save(tmp_path / "o.onnx")
    assert len(external_files(tmp_path / "o.onnx")) == 1
    assert (tmp_path / "o.onnx").stat().st_size < 64 << 10
    assert arrays(tmp_path / "o.onnx") == arrays(tmp_path / "expected.onnx")


@pytest.mark.parametrize("store", ["npz", "inline"])
def test_a_model_can_be_written_over_itself(
    large: Large, source: Path, tmp_path: Path, store: str
) -> None:
    large(1024)
    irc.compile(source).save(tmp_path / "expected.onnx")
    result = irc.compile(source)
    result.save(source, fold_map=tmp_path / "m.json", fold_map_store=store, in_place=True)
    assert source.read_bytes() == (tmp_path / "expected.onnx").read_bytes()
    result.save(tmp_path / "again.onnx")  # from the file that has no name any more
    assert (tmp_path / "again.onnx").read_bytes() == source.read_bytes()


def cut_short(path: Path) -> None:
    os.truncate(path, 50_000)


def written_to(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(70_000)
        file.write(b"other")
    os.utime(path, (1, 1))


@pytest.mark.parametrize(
    ("harm", "message"), [(cut_short, "it is truncated"), (written_to, "was changed")]
)
def test_a_file_that_changes_while_it_is_in_use_is_an_error(
    large: Large, source: Path, tmp_path: Path, harm: Callable[[Path], None], message: str
) -> None:
    large(1024)
    (tmp_path / "out").mkdir()
    target = tmp_path / "out" / "o.onnx"
    target.write_bytes(b"old")
    module = irc.load(source)
    harm(source)
    with pytest.raises(irc.IRError, match=message):
        irc.compile(module).save(target, fold_map=tmp_path / "out" / "m.json")
    assert [path.name for path in target.parent.iterdir()] == ["o.onnx"]
    assert target.read_bytes() == b"old"


def test_a_file_that_is_replaced_while_it_is_in_use_does_not_matter(
    large: Large, source: Path, tmp_path: Path
) -> None:
    large(1024)
    irc.compile(source).save(tmp_path / "expected.onnx")
    module = irc.load(source)
    onnx.save(network(2), tmp_path / "other.onnx")
    os.replace(tmp_path / "other.onnx", source)
    irc.compile(module).save(tmp_path / "o.onnx")
    assert (tmp_path / "o.onnx").read_bytes() == (tmp_path / "expected.onnx").read_bytes()
    assert len(irc.compile(source).model.graph.node) == 4


def peak_of_compile(folder: Path) -> int:
    """Bytes that Python holds at most while i.onnx is compiled to o.onnx, with a fold map."""
    tracemalloc.start()
    try:
        irc.compile(folder / "i.onnx").save(folder / "o.onnx", fold_map=folder / "o.json")
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_is_that_of_a_block_and_bytes_are_read_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Growth guard: a compile with fold map reads folded weights twice."""
    onnx.save(network(6, 640), tmp_path / "i.onnx")
    size = (tmp_path / "i.onnx").stat().st_size
    assert size > 80 << 20
    read = [0]
    original = SourceFile.read_into

    def counted(self: SourceFile, offset: int, buffer: memoryview) -> None:
        read[0] += len(buffer)
        original(self, offset, buffer)

    monkeypatch.setattr(SourceFile, "read_into", counted)
    peak = peak_of_compile(tmp_path)
    assert peak < 24 * payload.BLOCK, f"{peak / 2**20:.1f} MiB"
    assert read[0] < 2.1 * size + (tmp_path / "o.npz").stat().st_size


def test_memory_is_not_that_of_many_weights_of_middling_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("irc.frontends.onnx.LARGE_FILE", 0)
    onnx.save(network(200, 40), tmp_path / "i.onnx")
    size = (tmp_path / "i.onnx").stat().st_size
    peak = peak_of_compile(tmp_path)
    assert peak < 1.5 * size, f"{peak / size:.2f} times the model"


def test_unchanged_tensors_are_not_read_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(network(4, 640), tmp_path / "i.onnx")
    read = [0]
    original = SourceFile.read_into

    def counted(self: SourceFile, offset: int, buffer: memoryview) -> None:
        read[0] += len(buffer)
        original(self, offset, buffer)

    monkeypatch.setattr(SourceFile, "read_into", counted)
    assert (
        main(f"compile {tmp_path / 'i.onnx'} -o {tmp_path / 'o.onnx'} --passes none -q".split())
        == 0
    )
    assert (tmp_path / "o.onnx").read_bytes() == network(4, 640).SerializeToString(
        deterministic=True
    )
    if hasattr(os, "copy_file_range"):
        assert read[0] < 1 << 20


def test_a_system_that_cannot_copy_ranges_is_none_the_worse(
    large: Large, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large(1024)

    def refuse(*arguments: object) -> int:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "copy_file_range", refuse, raising=False)
    irc.compile(source, "none").save(tmp_path / "o.onnx")
    assert (tmp_path / "o.onnx").read_bytes() == network().SerializeToString(deterministic=True)


def test_a_model_cannot_bring_a_placeholder_of_its_own(large: Large, tmp_path: Path) -> None:
    """What stands in a file is elements, whatever it looks like."""
    from irc.frontends.onnx.codec.streaming import PLACEHOLDER_LENGTH, TOKEN

    large(1)
    tensor = TensorProto(
        name="w", data_type=TensorProto.UINT8, dims=[PLACEHOLDER_LENGTH], raw_data=TOKEN + bytes(8)
    )
    graph = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["y"])],
        "g",
        [],
        [helper.make_tensor_value_info("y", 2, [PLACEHOLDER_LENGTH])],
        [tensor],
    )
    model = helper.make_model(graph)
    onnx.save(model, tmp_path / "i.onnx")
    irc.compile(tmp_path / "i.onnx", "none").save(tmp_path / "o.onnx")
    assert (tmp_path / "o.onnx").read_bytes() == model.SerializeToString(deterministic=True)


def placed_everywhere() -> ModelProto:
    """A model with a tensor wherever ONNX has room for one."""
    model = network(1)
    constant = numpy_helper.from_array(np.arange(50, dtype=np.float32), "k")
    training = model.training_info.add()
    training.algorithm.name = "step"
    training.algorithm.initializer.append(constant)
    function = model.functions.add(domain="d", name="F", output=["y"])
    function.opset_import.add(domain="", version=17)
    function.attribute_proto.add(name="k", type=onnx.AttributeProto.TENSOR).t.CopyFrom(constant)
    function.node.append(helper.make_node("Constant", [], ["y"], value=constant))
    odd = helper.make_node("Odd", ["x"], ["odd"], domain="com.acme")
    odd.attribute.add(name="t", type=onnx.AttributeProto.FLOAT, f=1.0).t.CopyFrom(constant)
    stale = helper.make_node("Odd", ["x"], ["stale"], domain="com.acme")
    stale.attribute.add(name="t", type=onnx.AttributeProto.TENSOR).t.CopyFrom(constant)
    stale.attribute[0].t.external_data.add(key="location", value="gone.bin")
    model.graph.node.extend([odd, stale])
    model.graph.initializer[1].external_data.add(key="comment", value="not read")
    model.opset_import.add(domain="com.acme", version=1)
    return model


@pytest.mark.parametrize("threshold", [1, 60])
def test_tensors_in_training_functions_and_odd_attributes_come_back(
    large: Large, threshold: int, tmp_path: Path
) -> None:
    model = placed_everywhere()
    (tmp_path / "i.onnx").write_bytes(model.SerializeToString(deterministic=True))
    large(threshold)
    result = irc.compile(tmp_path / "i.onnx")
    result.save(tmp_path / "o.onnx", fold_map=tmp_path / "o.json")
    assert result.model.SerializeToString(deterministic=True) == (tmp_path / "o.onnx").read_bytes()
    folded = ModelProto.FromString((tmp_path / "o.onnx").read_bytes())
    assert unfold(folded, FoldMap.load(tmp_path / "o.json")) == model
    large(EVERYTHING)
    irc.compile(tmp_path / "i.onnx").save(tmp_path / "whole.onnx")
    assert (tmp_path / "whole.onnx").read_bytes() == (tmp_path / "o.onnx").read_bytes()


def test_external_data_in_attributes_and_branches_goes_along(large: Large, tmp_path: Path) -> None:
    large(1024)
    model = network(2)
    inner = numpy_helper.from_array(np.ones((32, 1, 1), np.float32), "inner")
    branch = helper.make_graph(
        [helper.make_node("Add", ["x", "inner"], ["s"])],
        "b",
        [],
        [helper.make_tensor_value_info("s", 1, None)],
        [inner],
    )
    model.graph.node.insert(
        0, helper.make_node("If", ["yes"], ["chosen"], then_branch=branch, else_branch=branch)
    )
    model.graph.node[1].input[0] = "chosen"
    model.graph.node.append(helper.make_node("Constant", [], ["k"], value=inner))
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    model.graph.output.append(helper.make_tensor_value_info("k", 1, None))
    place = tmp_path / "in" / "i.onnx"
    place.parent.mkdir()
    onnx.save(
        model,
        place,
        save_as_external_data=True,
        location="i.bin",
        size_threshold=64,
        convert_attribute=True,
    )
    (tmp_path / "out").mkdir()
    irc.compile(place).save(tmp_path / "out" / "o.onnx", fold_map=tmp_path / "out" / "o.json")
    onnx.load(tmp_path / "out" / "o.onnx")
    assert (
        main(
            ["foldmap", "check", str(tmp_path / "out" / "o.onnx"), str(tmp_path / "out" / "o.json")]
        )
        == 0
    )
    back = str(tmp_path / "out" / "back.onnx")
    assert (
        main(
            f"unfold {tmp_path / 'out' / 'o.onnx'} {tmp_path / 'out' / 'o.json'} -o {back}".split()
        )
        == 0
    )
    assert graph_digest(onnx.load(back)) == graph_digest(onnx.load(place))


def test_weights_that_are_scaled_twice_stay_outside(large: Large, tmp_path: Path) -> None:
    large(1024)
    harness.save_external(network(), tmp_path / "i.onnx", "i.bin", 1024)
    irc.compile(tmp_path / "i.onnx", "default,CrossLayerEqualization,FoldConstant").save(
        tmp_path / "o.onnx"
    )
    assert len(external_files(tmp_path / "o.onnx")) == 1


def test_a_copied_module_reads_the_same_file(large: Large, source: Path, tmp_path: Path) -> None:
    large(1024)
    irc.compile(source).save(tmp_path / "expected.onnx")
    module = irc.load(source)
    copied = copy.deepcopy(module)
    del module
    gc.collect()
    irc.compile(copied).save(tmp_path / "o.onnx")
    assert (tmp_path / "o.onnx").read_bytes() == (tmp_path / "expected.onnx").read_bytes()
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(copied.payloads)


def test_a_message_that_outlives_its_module_is_an_error(large: Large, source: Path) -> None:
    large(1024)
    message = irc.load(source).source
    gc.collect()
    with pytest.raises(irc.ModelError, match="the module that these elements belong to is gone"):
        irc.compile(message)


@pytest.mark.parametrize("wanted", ["model", "fold_map"])
def test_results_in_memory_are_not_made_of_a_file_that_changed(
    large: Large, source: Path, wanted: str
) -> None:
    large(1024)
    result = irc.compile(source)
    written_to(source)
    with pytest.raises(irc.ModelError, match="was changed"):
        getattr(result, wanted)
