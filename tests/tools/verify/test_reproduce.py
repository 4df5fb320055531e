"""What a deviation leaves: two models that were seen to differ, as small as they can be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from graphs import F32, Graph, batch_norm
from injected import products
from irc.support.errors import VerifyError
from irc.tools.verify.comparison import Comparison
from irc.tools.verify.difference import TensorDifference
from irc.tools.verify.inputs import Stimulus
from irc.tools.verify.reproducer import agreeing_tensors, save_reproducer
from irc.tools.verify.runner import Runner
from onnx import ModelProto, numpy_helper
from verification import text, verified

C = 8


def deep(layers: int) -> ModelProto:
    """Convolutions with BatchNormalization and Relu, and a pool.

    At its end rounding may do a lot.
    """
    graph = Graph(dtype=F32)
    hidden = graph.input("x", ["N", C, 9, 9])
    for i in range(layers):
        weight = graph.initializer(graph.random(C, C, 3, 3), f"w{i}")
        hidden = graph.node("Conv", [hidden, weight], f"c{i}", pads=[1] * 4)
        hidden = graph.batch_norm(hidden, batch_norm(C, i), f"b{i}")
        hidden = graph.node("Relu", [hidden], f"r{i}")
    graph.output(graph.node("GlobalAveragePool", [hidden], "y"))
    return graph.model()


def results(folder: Path) -> list[Any]:
    inputs = dict(np.load(folder / "inputs.npz"))
    sessions = [
        onnxruntime.InferenceSession(folder / name) for name in ("before.onnx", "after.onnx")
    ]
    return [
        s.run(None, {entry.name: inputs[entry.name] for entry in s.get_inputs()})[0]
        for s in sessions
    ]


def operators(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


@pytest.mark.parametrize("layer", [0, 17])
def test_a_small_fault_in_a_deep_network_is_found_where_it_is(
    layer: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = deep(18)
    weight = numpy_helper.to_array(
        next(t for t in model.graph.initializer if t.name == f"w{layer}")
    )

    def rounded(array: Any, product: Any) -> Any:
        same = array.shape == weight.shape and np.array_equal(array, weight)
        return (
            product + 2 * (product.astype(np.float16).astype(np.float32) - product)
            if same
            else product
        )

    products(monkeypatch, rounded)
    stimulus = Stimulus(
        "mine", {"x": np.random.default_rng(1).standard_normal((1, C, 9, 9)).astype(np.float32)}
    )
    with pytest.raises(VerifyError) as error:
        verified(model, inputs=[stimulus], when="end", reproducer=tmp_path)
    assert "has the 1 operators that show" in str(error.value), error.value
    assert f"tensor 'b{layer}' is off by" in str(error.value)
    assert operators(tmp_path / "before.onnx") == ["Conv", "BatchNormalization"]
    assert operators(tmp_path / "after.onnx") == ["Conv"]
    before, after = results(tmp_path)
    assert np.abs(before - after).max() > 1e-4 * np.abs(before).max()


AMPLIFIED = (
    "g (float[3] x) => (float[3] y) { a = Mul(x, x) b = Add(a, x) s = Sin(b) y = Sigmoid(s) }"
)
WRONG = AMPLIFIED.replace("Add(a, x)", "Add(a, a)")


def test_the_cut_is_widened_until_the_parts_differ(tmp_path: Path) -> None:
    """However many tensors are said to agree."""
    before, after = Runner(text(AMPLIFIED), Path()), Runner(text(WRONG), Path())
    stimulus = Stimulus("mine", {"x": np.array([0.5, 2.0, 3.0], np.float32)})
    found = save_reproducer(tmp_path, before, after, "y", ["a", "b", "s"], stimulus)
    assert found.difference is not None
    assert (found.difference.tensor, found.operators) == ("b", 1)
    assert operators(tmp_path / "after.onnx") == ["Add"]
    assert not np.allclose(*results(tmp_path))


def test_what_was_not_seen_is_not_claimed(tmp_path: Path) -> None:
    same = Runner(text(AMPLIFIED), Path())
    stimulus = Stimulus("mine", {"x": np.array([0.5, 2.0, 3.0], np.float32)})
    found = save_reproducer(tmp_path, same, same, "y", ["a", "b", "s"], stimulus)
    assert (found.difference, found.operators) == (None, 4)


def test_tensors_that_say_nothing_are_not_taken_to_agree() -> None:
    """A difference of numbers that rounding decides tells of no element."""
    body = (
        "g (float[4] x) => (float[4] y) <float big = {1e9}> { a = Add(x, big) b = Sub(a, big) y ="
        " Relu(b) }"
    )
    comparison = Comparison(text(body))
    rows: list[TensorDifference] = [row for row, _ in comparison.differences(text(body))]
    stimulus = comparison.inputs[0]
    assert {"b", "y"}.isdisjoint(agreeing_tensors(rows, stimulus))
    assert "a" in agreeing_tensors(rows, stimulus)
