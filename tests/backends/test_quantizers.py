"""What quantizers are given, without the quantizers.

Which layers and values, which numbers, and what is refused.
"""

from __future__ import annotations

import copy
import importlib.util
import json
from typing import Any

import numpy as np
import pytest
from graphs import BatchNorm, Graph, compiled
from irc.backends.quantizers.aimet import layer_affines, to_aimet, to_aimet_encodings
from irc.backends.quantizers.onnxruntime import to_calibration_cache, to_tensor_quant_overrides
from irc.backends.quantizers.ranges import activations
from irc.backends.quantizers.tensorrt import to_tensorrt_cache
from irc.result import Result
from irc.support.errors import FoldMapError, UsageError

GAMMA = np.array([1, -2, 0.5, 3], np.float32)
BETA = np.array([0.5, 1, -4, 0], np.float32)
X = {"x": (-1.0, 2.0)}


def two_layers(between: str = "Relu", second: str = "Conv", **attributes: Any) -> Result:
    """Conv, BatchNormalization, an activation, a layer without, and an unknown value."""
    graph = Graph()
    graph.input("x", ("n", 4, 8, 8))
    graph.node("Conv", ["x", graph.constant(graph.random(4, 4, 1, 1))], "y", "first")
    norm = BatchNorm(GAMMA, BETA, graph.random(4), np.full(4, 3, np.float32), 1.0)
    graph.batch_norm("y", norm, "z", "bn")
    graph.node(between, ["z"], "r", "between")
    kernel = graph.random(4, 4, *attributes.get("kernel_shape", [1, 1]))
    graph.node(second, ["r", graph.constant(kernel)], "w", "second", **attributes)
    graph.node("Det", ["w"], "d", "unknown")
    graph.output("d")
    return compiled(graph.model())


def test_affines_are_those_of_the_batch_normalization() -> None:
    result = two_layers()
    found = layer_affines(result.model, result.fold_map)
    assert list(found.layers) == ["first"]
    assert (found.layers["first"].gamma == GAMMA).all()
    assert (found.layers["first"].beta == BETA).all()
    assert found.missing == ("second",)
    assert found.inexact == ()


INEXACT: dict[str, tuple[dict[str, Any], bool]] = {
    "no pads": ({"kernel_shape": [3, 3]}, False),
    "pads": ({"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, True),
    "zero pads": ({"kernel_shape": [3, 3], "pads": [0, 0, 0, 0]}, False),
    "one pad": ({"kernel_shape": [3, 3], "pads": [0, 0, 0, 1]}, True),
    "auto_pad": ({"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER"}, True),
    "auto_pad VALID": ({"kernel_shape": [3, 3], "auto_pad": "VALID"}, False),
    "behind LeakyRelu": (
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "between": "LeakyRelu"},
        True,
    ),
    "behind a pool": (
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "between": "GlobalMaxPool"},
        False,
    ),
    "transposed": ({"kernel_shape": [1, 1], "second": "ConvTranspose"}, False),
    "transposed, wide": ({"kernel_shape": [2, 2], "second": "ConvTranspose"}, True),
    "transposed, strides": (
        {"kernel_shape": [1, 1], "strides": [2, 2], "second": "ConvTranspose"},
        True,
    ),
}


@pytest.mark.parametrize("name", INEXACT)
def test_layers_are_left_out_whose_reader_makes_no_constant_of_a_constant(name: str) -> None:
    attributes, inexact = INEXACT[name]
    result = two_layers(**attributes)
    found = layer_affines(result.model, result.fold_map)
    assert found.inexact == (("first",) if inexact else ())
    assert ("first" in found.layers) != inexact
    assert "first" in layer_affines(result.model, result.fold_map, skip_zero_padded=False).layers


def test_what_was_folded_forward_is_missing() -> None:
    graph = Graph()
    graph.input("x", ("n", 4, 8, 8))
    graph.node("Conv", ["x", graph.constant(graph.random(4, 4, 1, 1))], "y", "first")
    graph.batch_norm(
        "y", BatchNorm(GAMMA, BETA, graph.random(4), np.ones(4, np.float32), None), "z", "bn"
    )
    graph.node("Conv", ["z", graph.constant(graph.random(4, 4, 1, 1))], "w", "second")
    graph.output("w")
    graph.output("y")
    result = compiled(graph.model())
    assert [fold["direction"] for layer in result.fold_map.layers for fold in layer["folds"]] == [
        "forward"
    ]
    assert result.fold_map.statistic("y") is not None
    found = layer_affines(result.model, result.fold_map, skip_zero_padded=False)
    assert found.layers == {}
    assert found.missing == ("first", "second")


@pytest.mark.skipif(
    importlib.util.find_spec("aimet_onnx") is not None, reason="aimet_onnx is installed"
)
def test_aimet_has_to_be_there() -> None:
    result = two_layers()
    with pytest.raises(
        UsageError, match="to_aimet needs aimet_onnx, which cannot be imported: No module named"
    ):
        to_aimet(result.model, result.fold_map)


def test_ranges() -> None:
    result = two_layers()
    found = activations(
        result.model, result.fold_map, input_ranges=X, ranges={"w": (-7, 8)}, sigmas=4
    )
    deviation = np.abs(GAMMA) * np.sqrt(3 / 4)
    np.testing.assert_allclose(found.known["z"].low, BETA - 4 * deviation, rtol=1e-12)
    np.testing.assert_allclose(found.known["z"].high, BETA + 4 * deviation, rtol=1e-12)
    assert found.known["r"].range == (0, found.known["z"].range[1])
    assert found.known["x"].range == (-1, 2)
    assert found.known["w"].range == (-7, 8)
    assert found.known["w"].mean is not None
    assert found.missing == ("d",)


def test_a_model_that_was_changed_is_refused() -> None:
    result = two_layers()
    model = copy.deepcopy(result.model)
    model.graph.node[0].name = "renamed"
    for adapter in (
        layer_affines,
        to_aimet,
        to_aimet_encodings,
        to_calibration_cache,
        to_tensor_quant_overrides,
    ):
        with pytest.raises(
            FoldMapError, match="belongs to another model, or the model was changed since"
        ):
            adapter(model, result.fold_map)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ({"nowhere": (0, 1)}, "'nowhere' is not a floating-point value of the model's main graph"),
        ({"z": (1, 0)}, r"\(1, 0\) is not a valid range for 'z'"),
        ({"z": (0, np.inf)}, r"\(0, inf\) is not a valid range for 'z'"),
        ({"z": (np.nan, 1)}, r"\(nan, 1\) is not a valid range for 'z'"),
    ],
)
def test_what_is_no_range_is_refused(ranges: dict[str, tuple[float, float]], message: str) -> None:
    result = two_layers()
    with pytest.raises(UsageError, match=message):
        activations(result.model, result.fold_map, ranges=ranges)
    with pytest.raises(UsageError, match="'z' is not a floating-point graph input"):
        activations(result.model, result.fold_map, input_ranges={"z": (0, 1)})


def test_encodings_cover_their_range_and_hold_zero() -> None:
    result = two_layers()
    ranges = {"z": (0.5, 2.0), "w": (-1.0, 3.0), "r": (0.0, 0.0)}
    encodings = to_aimet_encodings(
        result.model, result.fold_map, input_ranges={"x": (-2, -1)}, ranges=ranges
    )
    assert encodings.missing == ("d",)
    assert json.loads(json.dumps(encodings.document)) == encodings.document
    entries = {entry["name"]: entry for entry in encodings.document["activation_encodings"]}
    for name, (low, high) in {"z": (0, 2), "w": (-1, 3), "x": (-2, 0), "r": (0, 0)}.items():
        (scale,), (offset,) = entries[name]["scale"], entries[name]["offset"]
        assert -255 <= offset <= 0 < scale
        if low < high:
            np.testing.assert_allclose(
                [offset * scale, (offset + 255) * scale], [low, high], atol=scale / 2
            )
    chosen = to_aimet_encodings(result.model, result.fold_map, tensors=["z", "x"])
    assert [entry["name"] for entry in chosen.document["activation_encodings"]] == ["z"]
    assert chosen.missing == ("x",)


def test_both_layouts_of_encodings_are_one_grid() -> None:
    result = two_layers()
    ranges = {"z": (0.5, 2.0), "w": (-1.0, 3.0), "r": (0.0, 0.0)}
    new, old = (
        to_aimet_encodings(
            result.model, result.fold_map, input_ranges=X, ranges=ranges, version=version
        )
        for version in ("1.0.0", "0.6.1")
    )
    assert json.loads(json.dumps(old.document)) == old.document
    assert (old.document["version"], old.document["param_encodings"], old.missing) == (
        "0.6.1",
        {},
        new.missing,
    )
    entries = {entry["name"]: entry for entry in new.document["activation_encodings"]}
    assert entries.keys() == old.document["activation_encodings"].keys()
    for name, (found,) in old.document["activation_encodings"].items():
        expected = entries[name]
        assert (found["bitwidth"], found["dtype"], found["is_symmetric"]) == (8, "int", "False")
        assert ([found["scale"]], [found["offset"]]) == (expected["scale"], expected["offset"])
        assert found["min"] == pytest.approx(found["offset"] * found["scale"])
        assert found["max"] - found["min"] == pytest.approx(255 * found["scale"])
    with pytest.raises(
        UsageError, match=r"encodings have no version '2.0.0': choose from 0.6.1, 1.0.0"
    ):
        to_aimet_encodings(result.model, result.fold_map, version="2.0.0")


def read_tensorrt_cache(text: str) -> dict[str, float]:
    """The scales of a calibration cache, as ModelOpt reads them: the first line is skipped."""
    pairs = [line.split(": ") for line in text.split("\n")[1:] if line]
    return {name: float(np.frombuffer(bytes.fromhex(digits), ">f4")[0]) for name, digits in pairs}


def test_a_tensorrt_cache_has_the_scale_of_symmetric_int8() -> None:
    result = two_layers()
    ranges = {"z": (0.5, 2.0), "w": (-3.0, 1.0), "r": (0.0, 0.0)}
    cache = to_tensorrt_cache(
        result.model, result.fold_map, input_ranges={"x": (-1, 0.5)}, ranges=ranges
    )
    assert cache.text.split("\n")[0] == "TRT-8501-EntropyCalibration2"
    assert cache.text.endswith("\n")
    scales = read_tensorrt_cache(cache.text)
    assert cache.missing == ("d",)
    assert "d" not in scales
    for name, magnitude in {"x": 1.0, "z": 2.0, "w": 3.0}.items():
        assert scales[name] == np.float32(magnitude / 127)
    assert scales["r"] == 1.0
    assert "x: 3c010204\n" in cache.text  # 1 / 127 in float32
    known = activations(
        result.model, result.fold_map, input_ranges={"x": (-1, 0.5)}, ranges=ranges
    ).known
    assert scales.keys() == known.keys()
    other = to_tensorrt_cache(result.model, result.fold_map, tensorrt_version=8203)
    assert other.text.startswith("TRT-8203-EntropyCalibration2\n")


@pytest.mark.parametrize("name", ["a: b", "a\nb", "a\rb"])
def test_a_name_that_breaks_a_line_is_not_in_the_cache(name: str) -> None:
    graph = Graph()
    graph.input(name, [1, 3])
    graph.node("Relu", [name], "y")
    graph.output("y", [1, 3])
    result = compiled(graph.model())
    cache = to_tensorrt_cache(result.model, result.fold_map, input_ranges={name: (0, 127)})
    assert cache.missing == (name,)
    assert read_tensorrt_cache(cache.text) == {"y": 1.0}


def test_onnxruntime_is_given_what_it_asks_for_or_nothing() -> None:
    result = two_layers()
    for adapter in (to_calibration_cache, to_tensor_quant_overrides):
        with pytest.raises(
            UsageError, match=r"give the range of input 'x'.*: --input-range x=LOW:HIGH"
        ):
            adapter(result.model, result.fold_map)
        with pytest.raises(UsageError, match="give the range of value 'd'"):
            adapter(result.model, result.fold_map, input_ranges=X, op_types=["Conv", "Det"])
        assert adapter(result.model, result.fold_map, input_ranges=X).missing == ("d",)
    overrides = to_tensor_quant_overrides(result.model, result.fold_map, input_ranges=X)
    assert overrides.tensors["x"] == [{"rmin": np.float32(-1), "rmax": np.float32(2)}]
    assert all(
        type(end) is np.float32 for (entry,) in overrides.tensors.values() for end in entry.values()
    )
