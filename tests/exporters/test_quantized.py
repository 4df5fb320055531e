"""Networks trained for quantization, exported with the BatchNormalizations behind their layers."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import irc
import numpy as np
import onnx
import pytest
from graphs import F32
from harness import operators, run
from onnx import ModelProto

torch = pytest.importorskip(
    "torch", reason="torch is not installed: make test-exporters", exc_type=ImportError
)

from torch import nn  # noqa: E402 - needs torch

ALLOWED = "(SimplifyInference,FoldScaleAxis{per_channel=allow},CanonicalizeOps,SimplifyExpr,FoldConstant)*"
KEPT = {
    "dynamo": {"dynamo": True, "optimize": False, "verbose": False},
    "torchscript": {
        "dynamo": False,
        "training": torch.onnx.TrainingMode.PRESERVE,
        "do_constant_folding": False,
        "opset_version": 17,
    },
}
"""Arguments of `torch.onnx.export` with which a BatchNormalization stays."""


class Quantized(nn.Module):  # type: ignore[misc]
    """A layer whose data and weight are quantized and dequantized, as by ModelOpt."""

    def __init__(self, layer: nn.Module, *, per_channel: bool) -> None:
        super().__init__()
        self.layer = layer
        self.per_channel = per_channel
        self.axis = 1 if isinstance(layer, nn.ConvTranspose2d) else 0
        weight = layer.weight.detach()
        others = [axis for axis in range(weight.dim()) if axis != self.axis]
        scale = (weight.abs().amax(others) if per_channel else weight.abs().max()) / 127
        self.register_buffer("scale", scale)
        self.register_buffer("zero_point", torch.zeros_like(scale, dtype=torch.int32))

    def forward(self, x: Any) -> Any:
        data = torch.fake_quantize_per_tensor_affine(x, 0.03, 0, 0, 255)
        given = (self.layer.weight, self.scale, self.zero_point)
        if self.per_channel:
            weight = torch.fake_quantize_per_channel_affine(*given, self.axis, -128, 127)
        else:
            weight = torch.fake_quantize_per_tensor_affine(*given, -128, 127)
        layer = self.layer
        if isinstance(layer, nn.Linear):
            return nn.functional.linear(data, weight, layer.bias)
        if isinstance(layer, nn.ConvTranspose2d):
            return nn.functional.conv_transpose2d(data, weight, layer.bias, layer.stride)
        return nn.functional.conv2d(
            data, weight, layer.bias, padding=layer.padding, groups=layer.groups
        )


class Network(nn.Module):  # type: ignore[misc]
    """Convolutions of every kind and a linear layer, each with a BatchNormalization."""

    def __init__(self, *, per_channel: bool) -> None:
        super().__init__()
        layers = [
            (nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
            (nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.BatchNorm2d(8), nn.ReLU()),
            (nn.Conv2d(8, 12, 1), nn.BatchNorm2d(12), nn.ReLU()),
            (nn.ConvTranspose2d(12, 6, 2, stride=2), nn.BatchNorm2d(6), nn.ReLU()),
            (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 10), nn.BatchNorm1d(10)),
        ]
        flat = [module for group in layers for module in group]
        linear = (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)
        self.layers = nn.Sequential(
            *(
                Quantized(module, per_channel=per_channel) if isinstance(module, linear) else module
                for module in flat
            )
        )
        for module in self.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                with torch.no_grad():
                    module.weight.uniform_(0.5, 1.5)
                    module.weight[0] *= -1
                    module.bias.normal_()
                    module.running_mean.normal_()
                    module.running_var.uniform_(0.5, 2)

    def forward(self, x: Any) -> Any:
        return self.layers(x)


def export(exporter: str, *, per_channel: bool) -> ModelProto:
    torch.manual_seed(0)
    model = Network(per_channel=per_channel).eval()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        torch.onnx.export(model, (torch.randn(2, 3, 8, 8),), path, **KEPT[exporter])
        return onnx.load(path)


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("exporter", KEPT)
def test_every_batch_normalization_folds(exporter: str, per_channel: bool) -> None:
    source = export(exporter, per_channel=per_channel)
    assert Counter(operators(source))["BatchNormalization"] == 5
    by_default, allowed = irc.compile(source), irc.compile(source, ALLOWED)
    left = Counter(operators(by_default.model))["BatchNormalization"]
    assert left == (0 if per_channel else 5), by_default.fold_map.sources
    if not per_channel:
        assert {
            entry["reason"] for entry in by_default.fold_map.sources if entry["status"] == "kept"
        } == {"quantized_weight"}
    result = allowed.model
    assert "BatchNormalization" not in operators(result)
    kinds = Counter(operators(result))
    assert kinds["DequantizeLinear"] == 10
    assert kinds["QuantizeLinear"] == 5, "the integers of the weights are constants"
    inputs = {
        source.graph.input[0].name: np.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype(F32)
    }
    (want,), (found,) = run(source, inputs).values(), run(result, inputs).values()
    # A number between two steps of the data may be rounded to either: few are, and by one step.
    assert np.abs(found - want).mean() <= 1e-2 * np.abs(want).mean()
