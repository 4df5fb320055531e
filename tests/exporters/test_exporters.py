"""Networks through both of torch's exporters, unoptimised.

What has to stay stays, for its reason; all else goes.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from typing import Any

import harness
import irc
import onnx
import pytest
from graphs import size, stimuli
from irc.passes import PassContext
from irc.tools.verify import VerifyNumerics
from onnx import ModelProto, NodeProto

torch = pytest.importorskip(
    "torch", reason="torch is not installed: make test-exporters", exc_type=ImportError
)

from exporters.architectures import ARCHITECTURES, settle  # noqa: E402 - needs torch


def torchscript(model: Any, sample: Any, opset: int, dynamic: bool) -> ModelProto:
    """By the exporter to TorchScript, BatchNormalization and constants left as they are."""
    file = io.BytesIO()
    torch.onnx.export(
        model,
        (sample,),
        file,
        dynamo=False,
        do_constant_folding=False,
        training=torch.onnx.TrainingMode.PRESERVE,
        opset_version=opset,
        input_names=["x"],
        dynamic_axes={"x": {0: "batch"}} if dynamic else None,
    )
    return onnx.load_from_string(file.getvalue())


def dynamo(model: Any, sample: Any, opset: int, dynamic: bool) -> ModelProto:
    """By the exporter that is built on torch.export, without its optimiser."""
    shapes = ({0: torch.export.Dim("batch")},) if dynamic else None
    options = {
        "opset_version": opset,
        "input_names": ["x"],
        "dynamic_shapes": shapes,
        "verbose": False,
    }
    return torch.onnx.export(model, (sample,), dynamo=True, optimize=False, **options).model_proto


EXPORTERS: dict[str, tuple[Callable[[Any, Any, int, bool], ModelProto], int]] = {
    "torchscript-13": (torchscript, 13),
    "torchscript-17": (torchscript, 17),
    "dynamo-20": (dynamo, 20),
}


@functools.cache
def export(name: str, exporter: str, dynamic: bool) -> ModelProto:
    """The architecture, with the same numbers each time."""
    architecture = ARCHITECTURES[name]
    torch.manual_seed(0)
    model = settle(architecture.build(), architecture.shape)
    function, opset = EXPORTERS[exporter]
    with torch.no_grad():
        return function(model, torch.randn(2, *architecture.shape), opset, dynamic)


def path(node: NodeProto) -> str:
    """The path of the module of a BatchNormalization, which is in the name of its gamma."""
    return node.input[1].rpartition(".")[0]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_exported_architecture(name: str, exporter: str, dynamic: bool) -> None:
    architecture = ARCHITECTURES[name]
    model = export(name, exporter, dynamic)
    expected = {p: k for p, k in architecture.kept.items() if exporter.split("-")[0] in k.exporters}
    paths = {
        node.name: path(node) for node in model.graph.node if node.op_type == "BatchNormalization"
    }
    assert set(expected) <= set(paths.values())
    result = irc.compile(model)
    left = [
        paths[node.name] for node in result.model.graph.node if node.op_type == "BatchNormalization"
    ]
    reasons = {
        paths[source["node"]["name"]]: source["reason"]
        for source in result.fold_map.sources
        if source["kind"] == "batch_norm" and source["status"] == "kept"
    }
    assert sorted(left) == sorted(expected), reasons
    assert set(reasons) == set(expected)
    for module, reason in reasons.items():
        assert reason in (expected[module].behind, expected[module].ahead), f"{module}: {reason}"


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_exported_architecture_computes_the_same(name: str, exporter: str, dynamic: bool) -> None:
    model = export(name, exporter, dynamic)
    compiled = irc.compile(model).model
    assert size(compiled) <= size(model)
    for inputs in stimuli(model):
        harness.assert_computes_the_same(model, compiled, inputs)


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_exported_architecture_verifies(
    name: str, exporter: str, record_property: Callable[[str, object], None]
) -> None:
    verify = VerifyNumerics()
    result = irc.compile(export(name, exporter, True), context=PassContext([verify]))
    verify.finish(result.module, result.model)
    record_property(
        "compared",
        f"{name} {exporter}: {max(verdict.greatest for verdict in verify.verdicts):.3f} of the"
        " bound",
    )
