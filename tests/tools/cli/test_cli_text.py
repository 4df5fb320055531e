"""IR text with its constants.

`irc dump -o`, `irc compile -o OUT.irc`, and the commands that read both.
"""

from __future__ import annotations

import json
import re
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import harness
import irc
import numpy as np
import onnx
import pytest
import zoo
from graphs import F32, compiled
from harness import EXAMPLE
from irc.backends.text_output import save_text
from irc.frontends.onnx import from_model
from irc.frontends.onnx.codec.tensor_archive import TensorArchive, write_archive
from irc.ir.tensor import ArrayTensor, Tensor, numpy_dtype
from irc.ir.text.printer import side_data, to_text
from irc.ir.types import DTYPES, DType
from irc.support.errors import EmitError, ModelError, ParseError, UsageError
from irc.support.files import FileTransaction
from irc.tools.cli.main import main
from onnx import ModelProto, TensorProto, helper, numpy_helper
from random_graphs import grow


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with `net.onnx`, `net.irc` and `net.npz`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.onnx").write_bytes(EXAMPLE.read_bytes())
    assert main(["dump", "net.onnx", "-o", "net.irc"]) == 0
    return tmp_path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def elements(tensor: Tensor) -> bytes:
    array = tensor.numpy()
    return repr(array.tolist()).encode() if array.dtype == object else array.tobytes()


def corpora() -> dict[str, Iterator[tuple[str, ModelProto]]]:
    return {
        "zoo": zoo.models(),
        "files of onnx": ((path.parent.name, harness.load(path)) for path in harness.onnx_files()),
        "shared models": ((path.name, harness.load(path)) for path in harness.shared_models()),
    }


@pytest.mark.slow
@pytest.mark.parametrize("corpus", ["zoo", "files of onnx", harness.SHARED_MODELS])
def test_text_with_data_is_the_whole_module(
    corpus: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    equal, refused = 0, []
    for name, model in corpora()[corpus]:
        try:
            module = from_model(model)
            expected, data = to_text(module), side_data(module)
            with FileTransaction() as files:
                save_text(module, tmp_path / "m.irc", files)
        except ModelError:  # of tensors that contradict themselves, and models that are none
            refused.append(name)
            continue
        found = irc.load(tmp_path / "m.irc")
        assert to_text(found) == expected, name
        assert {digest: elements(tensor) for digest, tensor in side_data(found).items()} == {
            digest: elements(tensor) for digest, tensor in data.items()
        }, name
        equal += 1
        (tmp_path / "m.npz").unlink(missing_ok=True)
    record_property("compared", f"{corpus}: {equal} modules come back from text with data")
    assert all(name.startswith("odd/") for name in refused)
    assert equal >= {"zoo": 900, "files of onnx": 140, "shared models": 90}[corpus]


@pytest.mark.parametrize("seed", range(12))
def test_a_random_graph_compiles_from_text_to_the_same_numbers(seed: int, tmp_path: Path) -> None:
    model = grow(seed, F32)
    onnx.save(model, tmp_path / "m.onnx")
    text, data = str(tmp_path / "m.irc"), str(tmp_path / "other.npz")
    assert main(["dump", str(tmp_path / "m.onnx"), "-o", text, "--data", data]) == 0
    found = (
        irc.compile(irc.load(text, data=data)).model
        if Path(data).exists()
        else irc.compile(text).model
    )
    direct = compiled(model).model
    assert harness.operators(found) == harness.operators(direct)
    inputs = harness.random_inputs(model)
    results = harness.results(direct, inputs)
    if results is not None:
        again = harness.run(found, inputs)
        assert all(results[name].tobytes() == again[name].tobytes() for name in results)


@pytest.mark.parametrize(
    "dtype", [dtype for dtype in DTYPES.values() if dtype.kind != "unknown"], ids=str
)
@pytest.mark.parametrize("size", [17, 70_000])
def test_every_element_type_survives(dtype: DType, size: int, tmp_path: Path) -> None:
    if dtype.kind == "string":
        items = np.array([*(b"\xff\x00%d" % i for i in range(size)), None], object)[:-1]
        tensor = ArrayTensor(items.reshape(1, size), dtype)
    else:
        storage = numpy_dtype(dtype)
        bits = np.random.default_rng(0).integers(0, 256, size * storage.itemsize, np.uint8)
        if dtype.bits < 8:
            bits &= (1 << dtype.bits) - 1
        tensor = ArrayTensor(bits.view(storage).reshape(1, size), dtype)
    path = tmp_path / "d.npz"
    write_archive(path, path, {tensor.digest(): tensor})
    found = TensorArchive(path, is_required=True)[tensor.digest()]
    assert (found.dtype, found.shape, elements(found)) == (
        tensor.dtype,
        tensor.shape,
        elements(tensor),
    )
    assert dtype.kind == "string" or b"".join(
        block.tobytes() for block in found.blocks()
    ) == elements(tensor)
    assert found.in_memory == (tensor.nbytes < 1 << 16 or dtype.bits < 8 or dtype.kind == "string")


@pytest.mark.parametrize("name", ["INT4", "UINT4", "BFLOAT16", "FLOAT8E4M3FN", "FLOAT16"])
def test_a_model_of_narrow_constants_comes_back(name: str, tmp_path: Path) -> None:
    """Of 200 KB each: those of a byte and more stay in the data file until the model is written."""
    kind = getattr(TensorProto, name)
    numbers = (
        np.random.default_rng(0)
        .integers(0, 7, (2, 200_000))
        .astype(helper.tensor_dtype_to_np_dtype(kind))
    )
    tensor = numpy_helper.from_array(numbers, "c")
    result = helper.make_tensor_value_info("y", kind, (2, 200_000))
    graph = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["y"])], "g", [], [result], [tensor]
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10),
        tmp_path / "m.onnx",
    )
    assert main(["dump", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "m.irc")]) == 0
    out = tmp_path / "o.onnx"
    assert main(["compile", str(tmp_path / "m.irc"), "-o", str(out), "--passes", "none", "-q"]) == 0
    (found,) = onnx.load(out).graph.initializer
    assert (found.data_type, found.raw_data) == (kind, tensor.raw_data)


def test_large_tensors_are_copied_in_blocks(tmp_path: Path) -> None:
    path, copy = tmp_path / "d.npz", tmp_path / "e.npz"
    tensor = ArrayTensor(np.random.default_rng(0).random((1 << 12, 1 << 10)))  # 32 MiB
    write_archive(path, path, {tensor.digest(): tensor})
    tracemalloc.start()
    try:
        archive = TensorArchive(path, is_required=True)
        write_archive(copy, copy, dict(archive))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert path.read_bytes() == copy.read_bytes()
    assert peak < 8 << 20


def test_every_command_reads_text_with_its_data(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert names(folder) == ["net.irc", "net.npz", "net.onnx"]
    assert main(["compile", "net.irc", "out.onnx", "--verify=end"]) == 0
    assert harness.batch_norms(onnx.load("out.onnx")) == 0
    assert "8 folded" in capsys.readouterr().err
    assert main(["align", "net.irc", "out.onnx", "-q"]) == 0
    assert main(["diff", "net.irc", "net.onnx"]) == 0
    assert main(["bisect", "net.irc", "-q"]) == 0
    assert main(["check", "net.irc"]) == 0
    assert main(["report", "net.irc", "-o", "page.html", "-q"]) == 0
    capsys.readouterr()
    found = []
    for model in ("net.irc", "net.onnx"):
        assert main(["inspect", model, "--json", "-"]) == 0
        facts = json.loads(capsys.readouterr().out)
        found.append(
            {key: facts[key] for key in facts if key not in ("model", "producer", "affines")}
        )
        for output in found[-1]["outputs"]:  # text declares none
            assert (output.pop("declared"), output.pop("status")) in (
                (None, "undeclared"),
                (output["type"], "confirmed"),
            )
    assert found[0] == found[1]


def test_compile_writes_text_that_compiles_to_the_same_model(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", "net.onnx", "out.irc", "--verify=end"]) == 0
    summary = capsys.readouterr().err
    assert re.search(r"wrote out\.irc \([\d.]+ kB\), out\.npz \([\d.]+ kB\)\n", summary)
    assert main(["compile", "net.onnx", "-o", "direct.onnx", "-q"]) == 0
    assert main(["compile", "out.irc", "-o", "again.onnx", "--passes", "none", "-q"]) == 0
    assert main(["diff", "direct.onnx", "again.onnx", "-q"]) == 0
    assert main(["align", "net.onnx", "out.irc", "-q"]) == 0
    direct, again = onnx.load("direct.onnx"), onnx.load("again.onnx")
    inputs = harness.random_inputs(direct)
    found, expected = harness.run(again, inputs), harness.run(direct, inputs)
    assert all(found[name].tobytes() == expected[name].tobytes() for name in expected)


def test_text_is_compiled_in_place(folder: Path) -> None:
    assert main(["compile", "net.irc", "-o", "net.irc", "-q"]) == 2
    assert main(["compile", "net.irc", "--in-place", "-q"]) == 0
    assert names(folder) == ["net.irc", "net.npz", "net.onnx"]
    assert main(["align", "net.onnx", "net.irc", "-q"]) == 0
    assert "nn.batch_norm" not in (folder / "net.irc").read_text()


def test_the_data_of_another_name_is_given(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "net.npz").rename("weights.npz")
    for command in (
        ["compile", "-o", "o.onnx"],
        ["inspect"],
        ["check"],
        ["bisect", "-q"],
        ["report", "-o", "p.html"],
    ):
        assert main([command[0], "net.irc", *command[1:]]) == 1
        printed = capsys.readouterr()
        assert "were not given" in printed.out + printed.err
        assert main([command[0], "net.irc", *command[1:], "--data", "weights.npz"]) == 0
    assert main(["dump", "net.irc"]) == 0  # the text alone needs no elements
    assert main(["dump", "net.irc", "-o", "copy.irc"]) == 1
    assert "copy.irc" not in names(folder)
    capsys.readouterr()


def damage(kind: str, folder: Path) -> list[str]:
    """Damage the data of net.irc in some way, and return further arguments for a compile."""
    data = folder / "net.npz"
    if kind == "missing":
        data.unlink()
        return ["--data", "net.npz"]
    if kind == "no archive":
        data.write_bytes(b"nothing")
    elif kind == "truncated":
        data.write_bytes(data.read_bytes()[:-100])
    elif kind == "of another model":
        (folder / "other.onnx").write_bytes(
            compiled(onnx.load("net.onnx")).model.SerializeToString()
        )
        assert main(["dump", "other.onnx", "-o", "other.irc"]) == 0
        return ["--data", "other.npz"]
    else:
        with np.load(data) as arrays:
            members = dict(arrays)
        name = max(members, key=lambda each: members[each].nbytes)
        if kind == "changed":
            members[name] = -members[name]
        elif kind == "another type":
            members[name] = members[name].astype(np.float64)
        elif kind == "objects":
            members[name] = np.array([{}], object)
        (np.savez_compressed if kind == "compressed" else np.savez)(data, **members)
    return []


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing", "net.npz: the data of the IR text cannot be read: No such file or directory"),
        ("no archive", "net.npz: the data of the IR text cannot be read: 'File is not a zip file'"),
        ("truncated", "net.npz: the data of the IR text cannot be read: "),
        ("of another model", "other.npz: tensor #"),
        ("changed", "has other elements than its name says"),
        ("another type", "has other elements than its name says"),
        ("objects", "its elements are object"),
        ("compressed", "it is compressed; write the file with numpy.savez"),
    ],
)
def test_data_that_does_not_fit_is_one_sentence(
    kind: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = damage(kind, folder)
    before = names(folder)
    assert main(["compile", "net.irc", "-o", "out.onnx", *more]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert names(folder) == before


def test_data_rewritten_by_numpy_is_read(folder: Path) -> None:
    with np.load("net.npz") as arrays:
        members = dict(arrays)
    np.savez("net.npz", **members)
    assert main(["compile", "net.irc", "-o", "out.onnx", "-q"]) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["dump", "net.onnx", "--data", "x.npz"],
        ["dump", "net.onnx", "-o", "x.onnx"],
        ["dump", "net.onnx", "-o", "x.irc", "--data", "x.bin"],
        ["dump", "net.onnx", "-o", "x.irc", "--diff"],
        ["dump", "net.irc", "-o", "x.irc", "--data", "net.npz"],
        ["compile", "net.onnx", "-o", "x.irc", "--fold-map", "x.json"],
        ["compile", "net.onnx", "-o", "x.irc", "--external-data"],
        ["compile", "net.onnx", "-o", "x.irc", "--embed-fold-map"],
        ["compile", "net.irc", "-o", "x.onnx", "--fold-map", "net.json"],
        ["compile", "net.irc", "-o", "x.irc", "--data", "x.npz"],
        ["compile", "net.onnx", "-o", "x.onnx", "--data", "net.npz"],
        ["compile", "net.onnx", "net.irc", "--jobs", "1", "--data", "net.npz"],
    ],
)
def test_contradictions_are_usage_errors(arguments: list[str], folder: Path) -> None:
    data = (folder / "net.npz").read_bytes()
    assert main(arguments) == 2
    assert names(folder) == ["net.irc", "net.npz", "net.onnx"]
    assert (folder / "net.npz").read_bytes() == data


def test_the_weights_of_the_source_are_not_replaced(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    harness.save_external(onnx.load("net.onnx"), "far.onnx", "w.npz")
    assert main(["dump", "far.onnx", "-o", "far.irc", "--data", "w.npz"]) == 2
    assert "w.npz: this output would replace a file that is read" in capsys.readouterr().err
    assert main(["compile", "far.onnx", "-o", "o.onnx", "-q"]) == 0


def test_text_and_data_from_python(folder: Path) -> None:
    result = irc.compile("net.onnx")
    result.save("result.irc")
    assert {"result.irc", "result.npz"} < set(names(folder))
    assert str(irc.load("result.irc")) == str(result.module)
    with pytest.raises(EmitError, match="belong to an ONNX file"):
        result.save("x.irc", fold_map="m.json")
    with pytest.raises(UsageError, match=r"only an \.irc MODEL has a data file"):
        irc.load("net.onnx", data="net.npz")
    with pytest.raises(ModelError, match="cannot be read"):
        irc.load("net.irc", data="nothing.npz")
    (folder / "net.irc").write_text(
        (folder / "net.irc").read_text().replace("[16,1,3,3]", "[16,1,9]", 1)
    )
    with pytest.raises(ParseError, match="the digest of a payload"):
        irc.load("net.irc")


def test_a_text_without_large_constants_has_no_data_file(tmp_path: Path) -> None:
    (tmp_path / "m.irc").write_text("graph @g(%x: f32[2]) {\n  %y = nn.relu(%x)\n  return(%y)\n}\n")
    assert main(["compile", str(tmp_path / "m.irc"), str(tmp_path / "n.irc"), "-q"]) == 0
    assert names(tmp_path) == ["m.irc", "n.irc"]


TEXT = "graph @g(%x: f32[1,2,3,3]) {{\n  {}\n  return(%y)\n}}\n"


@pytest.mark.parametrize(
    ("line", "warning"),
    [
        ("%y = nn.relu(%x)", None),
        ('%y = "HardSwish"(%x)', None),
        ('%y = "com.acme::Anything"(%x) {scale=1.0}', None),
        (
            "%y = nn.max_pool(%x) {kernel=[1, 1], kernel_shape=[1, 1]}",
            "no attribute 'kernel'; did you mean kernel_shape?",
        ),
        ('%y = "HardSwsh"(%x)', "no operator 'HardSwsh'; did you mean HardSwish?"),
        ('%y = "HardSwish"(%x) {alpha=1.0}', "no attribute 'alpha'"),
    ],
)
def test_operators_and_attributes_that_onnx_lacks_cause_a_warning(
    line: str, warning: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "m.irc").write_text(TEXT.format(line))
    assert (
        main(f"compile {tmp_path / 'm.irc'} -o {tmp_path / 'o.onnx'} --passes none -q".split()) == 0
    )
    found = [text for text in capsys.readouterr().err.splitlines() if "ONNX has no" in text]
    assert len(found) == (warning is not None)
    assert warning is None or warning in found[0]


@pytest.mark.parametrize(
    ("word", "known"), [("mul", "multiply"), ("Mul", "multiply"), ("HARDSWISH", "nn.hard_swish")]
)
def test_names_of_onnx_lead_to_those_of_the_table(word: str, known: str) -> None:
    with pytest.raises(ParseError, match=rf"\(perhaps {known}\)"):
        irc.parse(TEXT.format(f"%y = {word}(%x)"))


def test_a_folder_a_message_and_bytes(folder: Path) -> None:
    with pytest.raises(EmitError, match="this is a folder"):
        irc.compile("net.onnx").save(".")
    model = onnx.load("net.onnx")
    assert str(irc.load(model)) == str(irc.load("net.onnx"))
    with pytest.raises(UsageError, match="load_from_string"):
        irc.load(model.SerializeToString())
    with pytest.raises(UsageError, match="do not go with a ModelProto"):
        irc.load(model, data="net.npz")
    assert repr(irc.passes.default_pipeline()).startswith("<Sequential: (InlineFunctions")
    assert repr(ArrayTensor(np.zeros((2, 3), np.float32))) == "<ArrayTensor f32[2,3]>"


def test_a_pass_with_a_point_is_told_the_colon(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", "net.onnx", "-o", "o.onnx", "--passes", "mine.Fuse"]) == 2
    assert "a pass of your own is written module:Class, as mine:Fuse" in capsys.readouterr().err
