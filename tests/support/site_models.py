"""The files that a reader of a page has before its first command."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import harness
import irc
import numpy as np
import onnx
from onnx import ModelProto, numpy_helper

Names = dict[str, Any]

NET = """
<ir_version: 10, opset_import: ["": 21]>
net (float[N,3,8,8] x) => (float[N,5] logits) {
  [conv] h = Conv <pads = [1, 1, 1, 1]> (x, conv1_weight)
  [bn] n = BatchNormalization (h, bn1_weight, bn1_bias, bn1_running_mean, bn1_running_var)
  [relu] r = Relu (n)
  [conv2] h2 = Conv (r, conv2_weight)
  [bn2] n2 = BatchNormalization (h2, bn2_weight, bn2_bias, bn2_running_mean, bn2_running_var)
  [relu2] r2 = Relu (n2)
  [pool] p = GlobalAveragePool (r2)
  [flatten] f = Flatten (p)
  [fc] logits = Gemm <transB = 1> (f, fc_weight, fc_bias)
}
"""


def net() -> ModelProto:
    """Return a small network with the parameter names of torch."""
    model = onnx.parser.parse_model(NET)
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {
        "conv1_weight": (8, 3, 3, 3),
        "conv2_weight": (8, 8, 1, 1),
        "fc_weight": (5, 8),
        "fc_bias": (5,),
        **{
            f"{bn}_{part}": (8,)
            for bn in ("bn1", "bn2")
            for part in ("weight", "bias", "running_mean", "running_var")
        },
    }
    for name, shape in shapes.items():
        drawn = rng.uniform(0.5, 1.5, shape) if len(shape) == 1 else rng.standard_normal(shape) / 3
        model.graph.initializer.append(
            numpy_helper.from_array(drawn.astype(np.float32), dotted(name))
        )
    for node in model.graph.node:
        node.input[:] = [dotted(name) for name in node.input]
    onnx.checker.check_model(model, full_check=True)
    return model


def dotted(name: str) -> str:
    """Return the name that torch gives to a parameter; ONNX's text form has no dots."""
    module, _, part = name.partition("_")
    if not part:
        return name
    return f"fc.{part}" if module == "fc" else f"layer1.0.{module}.{part}"


def digits(folder: Path, names: Names) -> None:
    """Put the example of the repository where it is in a clone."""
    (folder / "examples").mkdir()
    shutil.copy(harness.ROOT / "examples" / "digits_cnn.onnx", folder / "examples")


def nets(*files: str) -> Callable[[Path, Names], None]:
    """Return a setup that writes the small network under these names."""

    def setup(folder: Path, names: Names) -> None:
        for file in files:
            (folder / file).parent.mkdir(exist_ok=True)
            onnx.save(net(), folder / file)

    return setup


def quantized() -> ModelProto:
    """Return a convolution with an int8 weight, and a BatchNormalization, of rounded data."""
    return onnx.parser.parse_model("""
<ir_version: 10, opset_import: ["": 21]>
g (float[N,2,8,8] x) => (float[N,2,8,8] y)
<int8[2,2,1,1] i = {1, 2, 3, 4}, float[2] q = {0.5, 0.25}, float a = {0.1}, uint8 z = {128},
 float[2] g = {2, 3}, float[2] b = {0, 1}, float[2] m = {0, 1}, float[2] v = {1, 4}> {
  w = DequantizeLinear <axis = 0> (i, q)
  xi = QuantizeLinear(x, a, z)
  xd = DequantizeLinear(xi, a, z)
  c = Conv(xd, w)
  n = BatchNormalization(c, g, b, m, v)
  yi = QuantizeLinear(n, a, z)
  y = DequantizeLinear(yi, a, z)
}""")


def hard_swish() -> ModelProto:
    """Return a convolution, then HardSwish as an exporter writes it out, then two negations."""
    return onnx.parser.parse_model("""
<ir_version: 10, opset_import: ["": 21]>
g (float[N,2,8,8] x) => (float[N,2,8,8] y)
<float[2,2,1,1] w = {1, 2, 3, 4}, float three = {3}, float zero = {0}, float six = {6}> {
  c = Conv(x, w)
  a = Add(c, three)
  k = Clip(a, zero, six)
  m = Mul(c, k)
  d = Div(m, six)
  e = Neg(d)
  y = Neg(e)
}""")


def samples(folder: Path) -> None:
    """Write samples for the small network, and labels to test it."""
    rng = np.random.default_rng(0)
    np.savez(folder / "samples.npz", x=rng.uniform(-1, 2, (8, 3, 8, 8)).astype(np.float32))
    (folder / "test").mkdir()
    np.savez(folder / "test" / "a.npz", x=rng.uniform(-1, 2, (8, 3, 8, 8)).astype(np.float32))


def contributing(folder: Path, names: Names) -> None:
    """Import the names that the module of an operator or a rule has."""
    for module, name in (
        ("evaluate", "ConstantEvaluator"),
        ("matching", "known_dtype"),
        ("ops.evaluation", "unary"),
        ("ops.inference", "same"),
        ("ops.row", "OpInfo"),
        ("rule_driver", "rule"),
    ):
        names[name] = getattr(import_module(f"irc.ir.{module}"), name)
    names.update(Node=irc.ir.Node, Rewriter=irc.ir.Rewriter, np=np)


def float16(folder: Path, names: Names) -> None:
    nets("model.onnx")(folder, names)
    samples(folder)


def readme(folder: Path, names: Names) -> None:
    digits(folder, names)
    nets("model.onnx", "a.onnx", "b.onnx")(folder, names)
    torch_net(folder, names)


def fold_map(folder: Path, names: Names) -> None:
    nets("net.onnx")(folder, names)
    irc.compile("net.onnx").save("folded.onnx")
    if find_spec("torch") is not None:
        import torch

        state = {
            tensor.name: torch.tensor(numpy_helper.to_array(tensor))
            for tensor in net().graph.initializer
        }
        torch.save(state, folder / "checkpoint.pt")


def torch_net(folder: Path, names: Names) -> None:
    """Make the small network in torch, where it is installed."""
    if find_spec("torch") is None:
        return
    import torch
    from torch import nn

    block = nn.Sequential()
    for name, module in (
        ("conv1", nn.Conv2d(3, 8, 3)),
        ("bn1", nn.BatchNorm2d(8)),
        ("relu", nn.ReLU()),
    ):
        block.add_module(name, module)
    model = nn.Sequential()
    model.add_module("layer1", nn.Sequential(block))
    names.update(torch=torch, model=model.eval(), x=torch.randn(1, 3, 8, 8))


def passes(folder: Path, names: Names) -> None:
    onnx.save(hard_swish(), folder / "model.onnx")
    module = irc.load(folder / "model.onnx")
    names.update(irc=irc, rewriter=irc.ir.Rewriter(module), graph=module.graph)


def quantizers(folder: Path, names: Names) -> None:
    nets("model.onnx", "net.onnx")(folder, names)
    irc.compile("net.onnx").save("out.onnx", fold_map="map.json")
    samples(folder)


def testing(folder: Path, names: Names) -> None:
    from scale_axis.build import case, conv, mul_add, op

    names.update(case=case, conv=conv, mul_add=mul_add, op=op)


def verification(folder: Path, names: Names) -> None:
    nets("net.onnx")(folder, names)
    samples(folder)
    check = folder / "check.sh"
    check.write_text("#!/bin/sh\ntest -s $1\n")
    check.chmod(0o755)


SETUP: dict[str, Callable[[Path, Names], None]] = {
    "README.md": readme,
    "SECURITY.md": digits,
    "api.md": digits,
    "certificates.md": digits,
    "command_line.md": digits,
    "contributing.md": contributing,
    "fold_map.md": fold_map,
    "index.md": digits,
    "float16.md": float16,
    "how_do_i.md": digits,
    "ir.md": nets("net.onnx"),
    "jobs.md": nets("models/a.onnx", "models/b.onnx"),
    "large_models.md": nets("big.onnx"),
    "passes.md": passes,
    "pytorch.md": torch_net,
    "qualcomm.md": nets("net.onnx"),
    "quantized_models.md": lambda folder, names: onnx.save(quantized(), folder / "qat.onnx"),
    "quantizers.md": quantizers,
    "report.md": nets("net.onnx"),
    "testing.md": testing,
    "glossary.md": digits,
    "troubleshooting.md": digits,
    "tutorial.md": digits,
    "verification.md": verification,
    "verification_theory.md": digits,
}
"""What a page has before its first command."""
