"""`irc compile --float16 --certificate`: the float32 form, before rounding, and its certificate."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from irc.tools.cli.main import main
from irc.tools.verify.runner import Runner
from onnx import numpy_helper
from streams import DATA, feed_forward, stream

COMPILE = ["compile", "model.onnx", "-o", "half.onnx", "--float16", "--inputs", "samples.npz"]


def test_the_scaled_float32_form_is_proved(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = stream(1e5)
    onnx.save(model, "model.onnx")
    assert main([*COMPILE, "--certificate", "cert.json"]) == 0
    said = capsys.readouterr().err
    assert "scaled by 2^-" in said
    assert "cert.json" in said
    assert "cert.float32.onnx" in said
    assert main(["certify", "model.onnx", "cert.float32.onnx", "cert.json"]) == 0
    assert "proved in" in capsys.readouterr().out
    form = onnx.load("cert.float32.onnx")
    types = {tensor.data_type for tensor in form.graph.initializer}
    assert types == {onnx.TensorProto.FLOAT}
    source, scaled = (Runner(each, Path()).run(["y"], DATA)[0] for each in (model, form))
    np.testing.assert_array_equal(source, scaled)


def test_products_before_norms_keep_the_bits(folder: Path) -> None:
    model = feed_forward(1e5)
    onnx.save(model, "model.onnx")
    assert main([*COMPILE, "--certificate", "cert.json"]) == 0
    form = onnx.load("cert.float32.onnx")
    assert len(form.graph.node) == len(model.graph.node) + 1
    source, scaled = (Runner(each, Path()).run(["y"], DATA)[0] for each in (model, form))
    np.testing.assert_array_equal(source, scaled)


def test_another_exponent_is_no_proof(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(stream(1e5), "model.onnx")
    assert main([*COMPILE, "--certificate", "cert.json"]) == 0
    form = onnx.load("cert.float32.onnx")
    weight = next(each for each in form.graph.initializer if each.dims == [16, 16])
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * 2, weight.name))
    onnx.save(form, "cert.float32.onnx")
    capsys.readouterr()
    assert main(["certify", "model.onnx", "cert.float32.onnx", "cert.json"]) == 1
    assert "cert.json" in capsys.readouterr().err


def test_the_float16_model_is_not_what_it_is_about(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(stream(1e5), "model.onnx")
    assert main([*COMPILE, "--certificate", "cert.json"]) == 0
    assert main(["certify", "model.onnx", "half.onnx", "cert.json"]) == 1
    assert "another result" in capsys.readouterr().err


def test_no_file_is_there_after_an_error(folder: Path) -> None:
    onnx.save(stream(1e5), "model.onnx")
    before = sorted(folder.iterdir())
    assert main([*COMPILE, "--certificate", "cert.json", "--force", "nothing"]) == 2
    assert main([*COMPILE, "--certificate", "half.json", "--fold-map", "half.float32.onnx"]) == 2
    assert sorted(folder.iterdir()) == before
