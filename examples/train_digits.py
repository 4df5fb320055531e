"""Train the example network on scikit-learn's 8x8 digits and write it as ONNX, with every
BatchNormalization.

Needs torch, scikit-learn, onnx, onnxruntime and numpy; see README.md beside this file for the
versions used. The graph is written from the trained modules with `onnx.helper`, so every node keeps
the name of its module.
"""

from __future__ import annotations

import argparse
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from digits_data import SEED, Images, Labels, Split, load_splits
from onnx import TensorProto, helper, numpy_helper
from torch import nn

EPOCHS = 40
BATCH = 64
PEAK_LEARNING_RATE = 5e-3
SAMPLES_PER_CLASS = 6
OPSET = 17
IR_VERSION = 8


def take_samples(held_out: Split) -> Split:
    """Return the first few held-out images of every digit, in the order of the split."""
    firsts = [np.flatnonzero(held_out.labels == digit)[:SAMPLES_PER_CLASS] for digit in range(10)]
    chosen = np.sort(np.concatenate(firsts))
    return Split(held_out.images[chosen], held_out.labels[chosen])


def chain(**layers: nn.Module) -> nn.Sequential:
    """Return the layers as a chain, under their keyword names."""
    return nn.Sequential(OrderedDict(layers))


class DigitsNet(nn.Module):
    """A small residual network: [N, 1, 8, 8] images to [N, 10] logits."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = chain(
            conv=nn.Conv2d(1, 16, 3, padding=1, bias=False), bn=nn.BatchNorm2d(16), relu=nn.ReLU()
        )
        self.depthwise = chain(
            conv=nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False),
            bn=nn.BatchNorm2d(16),
            relu=nn.ReLU(),
        )
        self.pointwise = chain(conv=nn.Conv2d(16, 32, 1, bias=False), bn=nn.BatchNorm2d(32))
        self.residual = chain(
            conv1=nn.Conv2d(32, 32, 3, padding=1, bias=False),
            bn1=nn.BatchNorm2d(32),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(32, 32, 3, padding=1, bias=False),
            bn2=nn.BatchNorm2d(32),
        )
        self.down = chain(
            conv=nn.Conv2d(32, 32, 3, stride=2, padding=1, bias=True),
            bn=nn.BatchNorm2d(32),
            relu=nn.ReLU(),
        )
        self.up = chain(
            conv=nn.ConvTranspose2d(32, 24, 2, stride=2, bias=False),
            bn=nn.BatchNorm2d(24),
            relu=nn.ReLU(),
        )
        self.head = chain(
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            fc1=nn.Linear(24, 32),
            bn=nn.BatchNorm1d(32),
            relu=nn.ReLU(),
            fc2=nn.Linear(32, 10),
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        x = self.pointwise(self.depthwise(self.stem(image)))
        x = torch.relu(self.residual(x) + x)
        logits: torch.Tensor = self.head(self.up(self.down(x)))
        return logits


def train(data: Split) -> DigitsNet:
    """Train a new network and return it in eval mode."""
    torch.manual_seed(SEED)
    net = DigitsNet()
    images, labels = torch.from_numpy(data.images), torch.from_numpy(data.labels)
    batches = len(labels) // BATCH
    optimizer = torch.optim.AdamW(net.parameters(), lr=PEAK_LEARNING_RATE, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, PEAK_LEARNING_RATE, total_steps=EPOCHS * batches
    )
    for _ in range(EPOCHS):
        order = torch.randperm(len(labels))
        for step in range(batches):
            picked = order[step * BATCH : (step + 1) * BATCH]
            loss = nn.functional.cross_entropy(net(images[picked]), labels[picked])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return net.eval()


def spatial_attributes(layer: nn.Conv2d | nn.ConvTranspose2d) -> dict[str, Any]:
    """Return the ONNX attributes shared by Conv and ConvTranspose."""
    padding = [int(amount) for amount in layer.padding]
    return {
        "dilations": list(layer.dilation),
        "group": layer.groups,
        "kernel_shape": list(layer.kernel_size),
        "pads": padding + padding,
        "strides": list(layer.stride),
    }


BN_PARAMETERS = ("weight", "bias", "running_mean", "running_var")


def describe(layer: nn.Module) -> tuple[str, tuple[str, ...], dict[str, Any]]:
    """Return the ONNX operator of a layer, the tensors it reads in input order, and its
    attributes.
    """
    match layer:
        case nn.Conv2d():
            return "Conv", ("weight", "bias"), spatial_attributes(layer)
        case nn.ConvTranspose2d():
            return "ConvTranspose", ("weight", "bias"), spatial_attributes(layer)
        case nn.BatchNorm1d() | nn.BatchNorm2d():
            return (
                "BatchNormalization",
                BN_PARAMETERS,
                {"epsilon": layer.eps, "momentum": 0.9, "training_mode": 0},
            )
        case nn.Linear():
            return "Gemm", ("weight", "bias"), {"alpha": 1.0, "beta": 1.0, "transB": 1}
        case nn.ReLU():
            return "Relu", (), {}
        case nn.AdaptiveAvgPool2d():
            return "GlobalAveragePool", (), {}
        case nn.Flatten():
            return "Flatten", (), {"axis": 1}
    raise TypeError(f"no ONNX operator for {type(layer).__name__}")


@dataclass
class GraphWriter:
    """A list of nodes and initializers; the output of a node has the name of the node and `:0`."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[TensorProto] = field(default_factory=list)

    def node(
        self, name: str, op: str, inputs: list[str], output: str = "", **attributes: Any
    ) -> str:
        """Add one node and return the name of its output."""
        output = output or f"{name}:0"
        self.nodes.append(helper.make_node(op, inputs, [output], name=name, **attributes))
        return output

    def layer(self, name: str, layer: nn.Module, source: str, output: str = "") -> str:
        """Add the node of one layer with its parameters, and return the name of its output."""
        op, parameters, attributes = describe(layer)
        inputs = [source]
        for parameter in parameters:
            tensor = getattr(layer, parameter)
            if tensor is not None:
                inputs.append(f"{name}.{parameter}")
                self.initializers.append(
                    numpy_helper.from_array(tensor.detach().numpy(), inputs[-1])
                )
        return self.node(name, op, inputs, output, **attributes)

    def chain(self, prefix: str, layers: nn.Sequential, source: str, output: str = "") -> str:
        """Add a chain of layers as `prefix/<layer>`; `output` names the last value."""
        last = len(layers) - 1
        for index, (name, layer) in enumerate(layers.named_children()):
            source = self.layer(f"{prefix}/{name}", layer, source, output if index == last else "")
        return source


def to_onnx(net: DigitsNet) -> onnx.ModelProto:
    """Return the network in its inference form, with every BatchNormalization as a node."""
    writer = GraphWriter()
    x = writer.chain("stem", net.stem, "image")
    x = writer.chain("depthwise", net.depthwise, x)
    x = writer.chain("pointwise", net.pointwise, x)
    x = writer.node("residual/add", "Add", [writer.chain("residual", net.residual, x), x])
    x = writer.node("residual/relu2", "Relu", [x])
    x = writer.chain("down", net.down, x)
    x = writer.chain("up", net.up, x)
    writer.chain("head", net.head, x, output="logits")
    graph = helper.make_graph(
        writer.nodes,
        "digits_cnn",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 10])],
        writer.initializers,
    )
    model = helper.make_model(
        graph,
        producer_name="train_digits.py",
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET)],
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def run_onnx(path: Path, images: Images) -> Images:
    """Return the logits of the file under onnxruntime with its graph optimisations off."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["logits"], {"image": images})[0], np.float32)


def correct(logits: Images, labels: Labels) -> str:
    """Return the number of labels that the logits predict, as `right/all (percent)`."""
    right = int((logits.argmax(axis=1) == labels).sum())
    return f"{right}/{len(labels)} ({100 * right / len(labels):.2f} %)"


def parse_arguments() -> argparse.Namespace:
    """Return the command line arguments."""
    parser = argparse.ArgumentParser(
        description="Train the digits example and write its model and samples."
    )
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).parent, help="folder to write to"
    )
    return parser.parse_args()


def main() -> None:
    """Train, write both files, and print the accuracy of the written model."""
    output: Path = parse_arguments().output
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    training, held_out = load_splits()
    net = train(training)

    output.mkdir(parents=True, exist_ok=True)
    model_path, samples_path = output / "digits_cnn.onnx", output / "digits_samples.npz"
    onnx.save(to_onnx(net), model_path)
    samples = take_samples(held_out)
    np.savez_compressed(samples_path, images=samples.images, labels=samples.labels)

    with torch.inference_mode():
        expected = net(torch.from_numpy(held_out.images)).numpy()
    logits = run_onnx(model_path, held_out.images)
    print(f"training set: {correct(run_onnx(model_path, training.images), training.labels)}")
    print(f"held-out set: {correct(logits, held_out.labels)}")
    print(f"samples:      {correct(run_onnx(model_path, samples.images), samples.labels)}")
    print(
        "largest difference from torch on the held-out logits:"
        f" {np.abs(logits - expected).max():.1e}"
    )


if __name__ == "__main__":
    main()
