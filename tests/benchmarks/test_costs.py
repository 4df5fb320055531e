"""What a compile of many small layers may cost, counted.

Operations and objects for each layer, never seconds.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import harness
import irc
import numpy as np
import pytest
from graphs import F64, Graph, batch_norm
from irc.frontends.onnx import from_model, importer
from irc.ir.evaluate import ConstantEvaluator
from irc.ir.graph import Node
from irc.ir.module import Module
from irc.ir.text.printer import to_text
from irc.passes import default_pipeline
from onnx import ModelProto
from random_graphs import grow


def blocks(count: int) -> ModelProto:
    """Conv, BatchNormalization, Relu, again and again."""
    graph = Graph()
    value = graph.input("x", [2, 4, 8, 8])
    for i in range(count):
        value = graph.node(
            "Conv", [value, graph.initializer(graph.random(4, 4, 1, 1), f"w{i}")], f"c{i}"
        )
        graph.batch_norm(value, batch_norm(4), f"b{i}", f"bn{i}")
        value = graph.node("Relu", [f"b{i}"], f"r{i}")
    graph.output(value)
    return graph.model()


@contextmanager
def counted(patch: pytest.MonkeyPatch, home: Any, name: str) -> Iterator[list[int]]:
    """Count the calls of a function or method."""
    original, calls = getattr(home, name), [0]

    def counting(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        return original(*arguments, **options)

    with patch.context() as inner:
        inner.setattr(home, name, counting)
        yield calls


def test_every_layer_is_recognised_and_evaluated_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from irc.passes.affine.search import chains

    found = []
    for count in (20, 40):
        module = from_model(blocks(count))
        with (
            counted(monkeypatch, chains, "recognise") as recognised,
            counted(monkeypatch, chains, "find_affine") as looked_for,
            counted(monkeypatch, ConstantEvaluator, "_results") as evaluated,
            counted(monkeypatch, Node, "__init__") as made,
        ):
            default_pipeline()(module)
        found.append((recognised[0] + looked_for[0], evaluated[0], made[0]))
    grown = [b - a for a, b in zip(*found, strict=True)]
    assert all(growth <= 20 * most for growth, most in zip(grown, (5, 1, 8), strict=True)), grown


def test_numbers_of_layers_of_one_kind_are_computed_together(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from irc.frontends.onnx.codec import tensors
    from irc.passes import simplify_inference
    from irc.passes.affine.algebra import affine as algebra
    from irc.passes.affine.algebra import operands
    from irc.passes.affine.records import statistics

    homes = (
        (tensors.np, "frombuffer"),
        (simplify_inference, "scale_and_shift"),
        (algebra, "_together"),
        (operands, "_magnitude"),
        (statistics, "_together"),
    )
    found = []
    for count in (20, 40):
        with ExitStack() as stack:
            calls = [stack.enter_context(counted(monkeypatch, *home)) for home in homes]
            module = from_model(blocks(count))
            default_pipeline()(module)
            irc.emit(module).save(tmp_path / "o.onnx", fold_map=tmp_path / "m.json")
        found.append([each[0] for each in calls])
    assert found[0] == found[1]


def test_numbers_of_a_batch_are_computed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    from irc.passes.affine.algebra import operands
    from irc.passes.affine.search import chains

    monkeypatch.setattr(chains, "BATCH", 10)
    with counted(monkeypatch, operands, "_magnitude") as found:
        default_pipeline()(from_model(blocks(40)))
    assert found == [4]


def calls(count: int, folder: Path) -> int:
    """Return how many functions are called from the message to the files."""
    model = blocks(count)

    def compile_and_save() -> None:
        module = from_model(model)
        default_pipeline()(module)
        irc.emit(module).save(folder / "o.onnx", fold_map=folder / "m.json")

    return harness.calls_of(compile_and_save)


def test_a_layer_takes_a_bounded_number_of_calls(tmp_path: Path) -> None:
    """In a process of its own.

    Large tensors that another test holds make every look at a tensor longer.
    """
    code = (
        "import sys; from pathlib import Path; from test_costs import calls; folder ="
        " Path(sys.argv[1]);"
        "calls(2, folder);"  # imports, and what is computed once
        "print(calls(60, folder) - calls(20, folder))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONPATH": str(harness.ROOT / "tests" / "support")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) <= 40 * 2200


@pytest.mark.slow
def test_a_fold_map_that_is_written_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    def peak(count: int) -> int:
        module = from_model(blocks(count))
        default_pipeline()(module)
        result = irc.emit(module)
        gc.collect()
        tracemalloc.start()
        try:
            result.save(tmp_path / "o.onnx", fold_map=tmp_path / "m.json")
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(250)  # blocks that take turns stay
    small, large = peak(50), peak(250)
    document = (tmp_path / "m.json").stat().st_size
    assert large - small < 200 / 250 * 2 * document


@pytest.mark.slow
def test_chains_that_were_folded_are_let_go_with_their_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from irc.passes.affine.algebra.recognise import AffineOp
    from irc.passes.affine.search import chains, folding

    held = []
    commit = folding.ChainFolder._commit

    def counting(*arguments: Any) -> Any:
        held.append(sum(type(item) is AffineOp for item in gc.get_objects()))
        return commit(*arguments)

    monkeypatch.setattr(chains, "BATCH", 4)
    monkeypatch.setattr(folding.ChainFolder, "_commit", counting)
    default_pipeline()(from_model(blocks(20)))
    assert len(held) == 20 and max(held) == 4


def test_small_graphs_fold_alike_in_batches_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """In large ones the order of folds may differ, and with it names of constants.

    A chain may have become another.
    """
    from irc.passes.affine.search import chains

    for seed in range(40):
        model, found = grow(seed, F64), []
        for batch in (1, 1 << 10):
            monkeypatch.setattr(chains, "BATCH", batch)
            module = default_pipeline()(from_model(model))
            sources = irc.emit(module).fold_map.sources
            found.append(
                (
                    to_text(module),
                    [(each["id"], each["status"], each["reason"]) for each in sources],
                )
            )
        assert found[0] == found[1], seed


def test_shape_inference_does_not_run_where_it_can_add_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = blocks(3)
    with counted(monkeypatch, importer, "infer_shapes") as runs:
        alone = from_model(model)
    with monkeypatch.context() as patch:
        patch.setattr(importer, "_may_skip_inference", lambda model: False)
        assert to_text(from_model(model)) == to_text(alone)
    assert runs == [0]
    for change in ("Softplus", "Gelu", "ArgMax"):
        foreign = blocks(1)
        foreign.graph.node[-1].op_type = change
        with counted(monkeypatch, importer, "infer_shapes") as runs:
            from_model(foreign)
        assert runs == [change == "ArgMax"]


def test_what_the_model_declares_of_results_needs_no_inference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A declared symbol for an extent that the op table calls by another name is a hint."""
    model = blocks(1)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    model.graph.output[0].type.CopyFrom(model.graph.input[0].type)
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    with counted(monkeypatch, importer, "infer_shapes") as runs:
        module = from_model(model)
    assert runs == [0]
    assert str(module.graph.outputs[0].type).startswith("f32[n,")


def test_nothing_holds_what_was_erased() -> None:
    """Without a collection: a compile by itself runs none."""
    model = blocks(20)
    gc.collect()
    gc.disable()
    try:
        before = count_nodes()
        module = from_model(model)
        default_pipeline()(module)
        assert count_nodes() - before <= alive(module) + 5
    finally:
        gc.enable()


def count_nodes() -> int:
    return sum(type(item) is Node for item in gc.get_objects())


def alive(module: Module) -> int:
    return sum(1 for _ in module.walk())


def test_a_fold_map_has_few_members_and_a_line_for_each_entry(tmp_path: Path) -> None:
    fold_map = irc.compile(blocks(50)).fold_map
    fold_map.save(tmp_path / "map.json")
    with zipfile.ZipFile(tmp_path / "map.npz") as archive:
        names = archive.namelist()
    assert len(names) <= 4
    lines = fold_map.to_json().splitlines()
    assert sum(line.startswith(' {"id": "L') for line in lines) == 50
    first = fold_map.layers[0]["folds"][0]
    np.testing.assert_array_equal(fold_map.arrays.get(first["scale"]).shape, (4,))
