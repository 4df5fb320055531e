"""Random models in the idioms of exporters: a fixpoint, valid, and the same numbers.

A model of `exporter_graphs` is made from a seed. What every model is held against is cheap; one in
four also runs in onnxruntime beside its source, within the rounding bound that verification
measures.

`IRC_EXAMPLES=20000 pytest -n 2 tests/support/test_exporter_graphs.py` makes a long run,
`IRC_SEED=1000000` begins it elsewhere. `make fuzz TARGET=graph` compares the numbers of every
model.
"""

from __future__ import annotations

import os
from collections import Counter

import irc
import pytest
from exporter_graphs import export
from graphs import all_nodes, is_valid
from onnx import ModelProto, printer
from random_graphs import shrink
from verification import deviation

EXAMPLES = int(os.environ.get("IRC_EXAMPLES", "320"))
FIRST = int(os.environ.get("IRC_SEED", "0"))
BLOCKS = 16
COMPARED = 4
"""One in so many is compared in numbers."""


def hold(model: ModelProto, *, numbers: bool) -> None:
    """Compile a model, and hold the result against everything that has to be true of it."""
    result = irc.compile(model).model
    again = irc.compile(result).model
    assert again.SerializeToString(deterministic=True) == result.SerializeToString(
        deterministic=True
    ), "no fixpoint"
    assert is_valid(result) is None
    if numbers:
        found = deviation(model, result)
        assert found is None, found


def failure(model: ModelProto, *, numbers: bool) -> str | None:
    """What is wrong with the result, None where nothing is."""
    try:
        hold(model, numbers=numbers)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.slow
@pytest.mark.parametrize("block", range(BLOCKS))
def test_exporter_graphs(block: int) -> None:
    for seed in range(FIRST + block, FIRST + EXAMPLES, BLOCKS):
        model = export(seed)
        assert is_valid(model) is None, f"seed {seed}: the generator has made no valid model"
        numbers = seed // BLOCKS % COMPARED == 0
        wrong = failure(model, numbers=numbers)
        if wrong is not None:
            smallest = shrink(
                model,
                lambda candidate, n=numbers: failure(candidate, numbers=n) is not None,
                limit=100,
            )
            pytest.fail(f"seed {seed}: {wrong}\n{printer.to_text(smallest)}")


def test_a_seed_makes_one_model() -> None:
    assert [export(seed).SerializeToString() for seed in range(40)] == [
        export(seed).SerializeToString() for seed in range(40)
    ]


def test_the_grammar_reaches_what_it_is_for() -> None:
    models = [export(seed) for seed in range(400)]
    assert {
        entry.version for model in models for entry in model.opset_import if not entry.domain
    } == {*range(9, 22)}
    assert {3, 4, 8, 10} <= {model.ir_version for model in models}
    seen = Counter(node.op_type for model in models for node in all_nodes(model))
    wanted = (
        "If Loop Scan QuantizeLinear DequantizeLinear QLinearConv ConvInteger MatMulInteger LSTM"
        " GRU Resize Split "
    )
    wanted += (
        "BatchNormalization ConvTranspose Einsum Softmax Gather Shape Range Where Expand PRelu Gemm"
        " Pad Block0"
    )
    assert not [op for op in wanted.split() if not seen[op]]
    assert any(
        dim.dim_param in ("H", "T")
        for m in models
        for i in m.graph.input
        for dim in i.type.tensor_type.shape.dim
    )
    assert any(
        {t.name for t in m.graph.initializer} & {i.name for i in m.graph.input} for m in models
    )
