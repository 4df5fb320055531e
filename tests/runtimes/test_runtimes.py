"""Other runtimes compute the same with a model that irc wrote: TVM, OpenVINO, ncnn and MNN.

`make test-tvm` runs this, in an environment of its own.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import harness
import irc
import onnx
import pytest

PACKAGES = {"tvm": "tvm", "openvino": "openvino", "ncnn": "ncnn", "mnn": "MNN"}
RESIDUAL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1,3,12,12] x) => (float[1,4,6,6] y)
    <float[4] one = {1, 2, 0.5, 3}, float[4] zero = {0.5, -1, 0, 2}, float[4,3,3,3] w, float[4,4,1,1] v> {
    c = Conv<pads=[1,1,1,1], strides=[2,2]>(x, w)
    b = BatchNormalization(c, one, zero, zero, one) r = Relu(b)
    d = Conv(r, v) e = BatchNormalization(d, one, zero, zero, one)
    s = Add(e, r) y = Relu(s) }"""


@pytest.fixture(scope="module")
def runtimes() -> ModuleType:
    return harness.script(harness.ROOT / "benchmarks" / "runtimes.py")


def residual(path: Path) -> Path:
    """Save a net with a residual connection, whose weights are normal numbers."""
    model = onnx.parser.parse_model(RESIDUAL.replace(", float[4,3,3,3] w, float[4,4,1,1] v", ""))
    random = harness.np.random.default_rng(1)
    for name, shape in (("w", (4, 3, 3, 3)), ("v", (4, 4, 1, 1))):
        array = random.standard_normal(shape, "f")
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("net", ["digits", "residual"])
@pytest.mark.parametrize("runtime", PACKAGES)
def test_a_runtime_computes_what_onnxruntime_does(
    runtime: str, net: str, runtimes: ModuleType, tmp_path: Path
) -> None:
    if find_spec(PACKAGES[runtime]) is None:
        pytest.skip(f"{runtime} is missing: make test-tvm has it in its environment")
    source = harness.EXAMPLE if net == "digits" else residual(tmp_path / "net.onnx")
    after = tmp_path / "after.onnx"
    irc.compile(source).save(after)
    expected = runtimes.tried("onnxruntime", source, 0)[2]
    before_count, _, before = runtimes.tried(runtime, source, 0)
    after_count, _, found = runtimes.tried(runtime, after, 0)
    assert runtimes.difference(before, expected) < 1e-5
    assert runtimes.difference(found, expected) < 1e-5
    assert after_count <= before_count


def test_a_wrong_model_is_far_off(runtimes: ModuleType, tmp_path: Path) -> None:
    source, wrong = residual(tmp_path / "net.onnx"), tmp_path / "wrong.onnx"
    model = irc.compile(source).model
    weight = model.graph.initializer[0]
    scaled = onnx.numpy_helper.from_array(1.01 * onnx.numpy_helper.to_array(weight), weight.name)
    weight.CopyFrom(scaled)
    onnx.save(model, wrong)
    expected = runtimes.tried("onnxruntime", source, 0)[2]
    assert runtimes.difference(runtimes.tried("onnxruntime", wrong, 0)[2], expected) > 1e-4
    assert sys.modules.get("tvm") is None  # each model runs in a process of its own
