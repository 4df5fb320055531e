"""`irc compile --external-data`.

Tensors in one aligned file beside the model, whatever field they stood in.
"""

from __future__ import annotations

from pathlib import Path

import irc
import numpy as np
import onnx
import pytest
from irc.support.errors import EmitError
from irc.tools.cli.main import main
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser


def network() -> ModelProto:
    """A convolution with raw data, a sum with typed data, one with few elements, words."""
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[N, 8, 8, 8] x) => (float[N, 8, 8, 8] y, string[300] t) {
            c = Conv<pads = [1, 1, 1, 1]>(x, w)
            b = BatchNormalization(c, gamma, beta, mean, var)
            m = Add(b, typed)
            s = Add(m, few)
            y = Relu(s)
            t = Identity(words)
        }"""
    )
    rng = np.random.default_rng(3)
    tensors = {"w": rng.standard_normal((8, 8, 3, 3)), "few": rng.standard_normal(8)}
    tensors |= {name: rng.uniform(0.5, 1.5, 8) for name in ("gamma", "beta", "mean", "var")}
    weights = model.graph.initializer
    weights.extend(
        numpy_helper.from_array(value.astype(np.float32), name) for name, value in tensors.items()
    )
    weights.append(
        helper.make_tensor("typed", TensorProto.FLOAT, (8, 8, 8), rng.standard_normal(512).tolist())
    )
    weights.append(helper.make_tensor("words", TensorProto.STRING, [300], [b"a word"] * 300))
    return model


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "i.onnx"
    onnx.save(network(), path)
    return path


def outside(path: Path) -> dict[str, TensorProto]:
    model = onnx.load(path, load_external_data=False)
    return {
        each.name: each
        for each in model.graph.initializer
        if each.data_location == TensorProto.EXTERNAL
    }


def elements(path: Path) -> dict[str, list[object]]:
    return {
        each.name: numpy_helper.to_array(each).tolist()
        for each in onnx.load(path).graph.initializer
    }


@pytest.mark.parametrize("passes", ["none", "SimplifyInference,FoldScaleAxis,FoldConstant"])
def test_tensors_that_are_not_small_go_to_one_aligned_file(
    source: Path, tmp_path: Path, passes: str
) -> None:
    choice = ["--passes", passes, "-q"]
    plain, out, table = tmp_path / "plain.onnx", tmp_path / "o.onnx", tmp_path / "o.json"
    assert main(["compile", str(source), "-o", str(plain), *choice]) == 0
    options = ["--external-data", "--verify", "--fold-map", str(table)]
    assert main(["compile", str(source), "-o", str(out), *options, *choice]) == 0
    found = outside(out)
    assert len(found) == 2
    assert not {"words", "few"} & set(found)
    entries = [
        {entry.key: entry.value for entry in tensor.external_data} for tensor in found.values()
    ]
    assert len({entry["location"] for entry in entries}) == 1
    assert all(int(entry["offset"]) % 4096 == 0 for entry in entries)
    assert not any(tensor.raw_data or tensor.float_data for tensor in found.values())
    assert elements(out) == elements(plain)
    onnx.checker.check_model(out, full_check=True)
    back = tmp_path / "back.onnx"
    assert main(["unfold", str(out), str(table), "-o", str(back)]) == 0
    assert elements(back) == elements(source)


def test_a_model_of_small_tensors_gets_no_data_file(tmp_path: Path) -> None:
    model = network()
    del model.graph.node[1:], model.graph.initializer[1:], model.graph.output[1:]
    model.graph.initializer[0].CopyFrom(
        numpy_helper.from_array(np.ones((8, 8, 1, 1), np.float32), "w")
    )
    model.graph.output[0].name = "c"
    irc.compile(model).save(tmp_path / "o.onnx", external_data=True)
    assert [path.name for path in tmp_path.iterdir()] == ["o.onnx"]
    assert not outside(tmp_path / "o.onnx")


def test_the_data_file_of_an_earlier_compile_stays_for_its_copies_and_the_new_one_is_complete(
    source: Path, tmp_path: Path
) -> None:
    for _ in range(2):
        assert (
            main(["compile", str(source), "-o", str(tmp_path / "o.onnx"), "--external-data", "-q"])
            == 0
        )
    assert len(list(tmp_path.glob("o.onnx.*.data"))) == 1
    assert main(["compile", str(source), "-o", str(tmp_path / "o.onnx"), "-q"]) == 0
    assert not outside(tmp_path / "o.onnx")


def test_standard_output_has_nothing_beside_it(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", str(source), "-o", "-", "--external-data"]) == 2
    assert "--external-data needs a file" in capsys.readouterr().err
    with pytest.raises(EmitError, match="standard output"):
        irc.compile(source).save("-", external_data=True)


def test_many_models_have_their_own_data_files(source: Path, tmp_path: Path) -> None:
    other = tmp_path / "j.onnx"
    onnx.save(network(), other)
    (tmp_path / "out").mkdir()
    assert main(f"compile {source} {other} -o {tmp_path / 'out'} --external-data -q".split()) == 0
    for name in ("i", "j"):
        assert outside(tmp_path / "out" / f"{name}.irc.onnx")
