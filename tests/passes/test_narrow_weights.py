"""Weights that are stored narrow, behind Casts.

All of a model are computed, or all stay in the smaller file.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import irc
import numpy as np
import onnx
import pytest
from graphs import Graph, batch_norm, check, compiled, operators
from irc.tools.cli.main import main
from onnx import ModelProto


def layers(*channels: int, stored: Any = np.float16, norm: bool = False) -> ModelProto:
    """Convolutions in a row with Sigmoids between; weights and biases of another type."""
    graph = Graph()
    value = graph.input("x", [1, channels[0], 8, 8])
    for before, after in pairwise(channels):
        arrays = (graph.random(after, before, 3, 3) * 8, graph.random(after) * 8)
        weight, bias = (
            graph.node("Cast", [graph.initializer(each.astype(stored))], to=1) for each in arrays
        )
        value = graph.node("Conv", [value, weight, bias], pads=[1, 1, 1, 1])
        if norm:
            value = graph.batch_norm(value, batch_norm(after), f"{value}n")
        value = graph.node("Sigmoid", [value])
    graph.output(value, [1, channels[-1], 8, 8])
    return graph.model()


@pytest.mark.parametrize("stored", [np.float16, np.int8])
def test_small_weights_stay_beside_one_that_is_too_large(stored: Any) -> None:
    source = layers(3, 64, 64, 40, stored=stored)
    result = check(source).model
    assert operators(result).count("Cast") == 6
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(stored))
    assert {tensor.data_type for tensor in result.graph.initializer} == {kind}


def test_weights_that_are_all_small_are_computed() -> None:
    assert "Cast" not in operators(check(layers(3, 16, 16, 8)).model)


def test_a_cast_that_takes_more_bytes_than_it_saves_is_computed() -> None:
    assert operators(check(layers(3, 64, 64, 8)).model).count("Cast") == 5, (
        "all but the bias of 8 numbers"
    )


def test_large_weights_that_layers_take_keep_no_small_ones() -> None:
    """A fold computes the large weight, so that none is too large any more.

    Compiling the result changes nothing.
    """
    assert operators(check(layers(3, 64, 64, 8, norm=True)).model) == ["Conv", "Sigmoid"] * 3


@pytest.mark.parametrize("option", ["max_bytes=1000000", "widen=true"])
def test_an_option_computes_all_of_them(option: str) -> None:
    result = compiled(layers(3, 64, 64, 40), f"default,FoldConstant{{{option}}}").model
    assert "Cast" not in operators(result)


def test_quantize_computes_all_of_them() -> None:
    """A quantizer takes the result of a Cast for an activation with one scale."""
    result = irc.quantize(layers(3, 64, 64, 40), input_ranges={"x": (-1, 1)})
    assert "Cast" not in operators(result.model)


def test_the_summary_says_how_many_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(layers(3, 64, 64, 40), path)
    assert main(["compile", str(path), "-o", str(tmp_path / "out.onnx")]) == 0
    assert "; 6 weights stay in a narrower type behind a Cast (FoldConstant{widen=true});" in (
        capsys.readouterr().err
    )
