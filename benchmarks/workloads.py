"""The models that benchmarks/speed.py times: made from a seed, and checked after they are compiled.

Random weights are written to the file in blocks, so that making a model of gigabytes takes little
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

SEED = 6
BLOCK = 1 << 22
"""Number of random elements in a block."""

EXTERNAL = 1024
"""Smallest tensor in bytes that is stored as external data, as in onnx.save."""

BATCH_NORM = ("gamma", "beta", "mean", "variance")


@dataclass
class Graph:
    """Nodes, and name, shape and deviation of each tensor; None for positive uniform elements."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    tensors: list[tuple[str, tuple[int, ...], float | None]] = field(default_factory=list)

    def node(
        self, op: str, *inputs: str, parameters: tuple[str, ...] = (), **attributes: object
    ) -> str:
        """Append a node, and return the name of its output, which is also the name of the node."""
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(op, [*inputs, *parameters], [name], name=name, **attributes)
        )
        return name

    def conv(self, x: str, inputs: int, outputs: int, kernel: int, stride: int = 1) -> str:
        """Append Conv and BatchNormalization, and return the name of the output."""
        i, pad = len(self.nodes), kernel // 2
        shape = (outputs, inputs, kernel, kernel)
        self.tensors.append((f"weight_{i}", shape, (2 / (inputs * kernel**2)) ** 0.5))
        window = {"kernel_shape": [kernel] * 2, "pads": [pad] * 4, "strides": [stride] * 2}
        x = self.node("Conv", x, f"weight_{i}", **window)
        parameters = tuple(f"{name}_{i}" for name in BATCH_NORM)
        self.tensors += [(name, (outputs,), None) for name in parameters]
        return self.node("BatchNormalization", x, parameters=parameters)


def chain(count: int, channels: int, kernel: int = 3, first: int | None = None) -> Graph:
    """Return `count` blocks of Conv, BatchNormalization and Relu in a chain."""
    graph, x = Graph(), "input"
    for i in range(count):
        x = graph.node(
            "Relu", graph.conv(x, first if first and not i else channels, channels, kernel)
        )
    return graph


def ten_nodes() -> Graph:
    """Return three blocks and a pool."""
    graph = chain(3, 8, first=3)
    graph.node("GlobalAveragePool", graph.nodes[-1].output[0])
    return graph


def resnet(width: int) -> Graph:
    """Return ResNet-50 (`width` 64), or narrower: 53 Conv with BatchNormalization, and a Gemm."""
    graph = Graph()
    x = graph.node("Relu", graph.conv("input", 3, width, 7, 2))
    x = graph.node("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])
    channels = width
    for stage, count in enumerate((3, 4, 6, 3)):
        inner, outer = width << stage, width << stage + 2
        for i in range(count):
            stride = 2 if stage and not i else 1
            y = graph.node("Relu", graph.conv(x, channels, inner, 1))
            y = graph.node("Relu", graph.conv(y, inner, inner, 3, stride))
            y = graph.conv(y, inner, outer, 1)
            x = x if i else graph.conv(x, channels, outer, 1, stride)
            x = graph.node("Relu", graph.node("Add", y, x))
            channels = outer
    x = graph.node("Flatten", graph.node("GlobalAveragePool", x))
    graph.tensors += [("classes", (channels, 1000), channels**-0.5), ("bias", (1000,), 0.1)]
    graph.node("Gemm", x, "classes", "bias")
    return graph


@dataclass(frozen=True)
class Workload:
    """A model to compile, and targets for time and memory; a missed target is not an error."""

    name: str
    title: str
    build: Callable[[], Graph]
    small: Callable[[], Graph]
    """Builds a small version for tests."""

    ratio: float | None = None
    """Target for the time relative to onnx.load and onnx.save."""

    copies: float | None = None
    """Target for the time relative to cp."""

    megabytes: float | None = None
    """Target for the peak memory."""

    external: bool = False
    blocks: int | None = None
    """Number of blocks, for the fit of growth."""


def blocks(count: int, ratio: float | None = None, megabytes: float | None = None) -> Workload:
    """Return a workload of many small layers."""
    name, title = f"blocks_{count // 1000}k", f"{count:,} blocks"
    small = count // 100
    return Workload(
        name,
        title,
        lambda: chain(count, 4, 1),
        lambda: chain(small, 4, 1),
        ratio,
        None,
        megabytes,
        blocks=count,
    )


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("10_nodes", "10 nodes", ten_nodes, ten_nodes, 1.0),
        blocks(1_000),
        blocks(5_000),
        blocks(10_000, 2.0, 300),
        blocks(50_000, 2.5),
        Workload(
            "resnet50", "ResNet-50, 100 MB", lambda: resnet(64), lambda: resnet(2), 0.6, None, 120
        ),
        Workload(
            "convs_500mb",
            "13 Conv, 500 MB",
            lambda: chain(13, 1024),
            lambda: chain(13, 8),
            0.35,
            None,
            200,
        ),
        Workload(
            "convs_1500mb",
            "10 Conv, 1.5 GB",
            lambda: chain(10, 2048),
            lambda: chain(10, 8),
            0.25,
            2.0,
            250,
        ),
        Workload(
            "external_4gb",
            "27 Conv, 4 GB external",
            lambda: chain(27, 2048),
            lambda: chain(27, 16),
            0.25,
            2.5,
            250,
            external=True,
        ),
    )
}


# writing


def payload(
    rng: np.random.Generator, shape: tuple[int, ...], deviation: float | None
) -> Iterator[NDArray[np.float32]]:
    """Yield random elements of a tensor in blocks: normal, uniform and positive if no deviation.

    All blocks share one buffer.
    """
    left = int(np.prod(shape))
    if deviation is None:
        yield rng.uniform(0.5, 1.5, left).astype("<f4")
        return
    buffer = np.empty(min(left, BLOCK), np.float32)
    while left:
        block = buffer[: min(left, BLOCK)]
        rng.standard_normal(out=block, dtype=np.float32)
        block *= np.float32(deviation)
        yield block.astype("<f4", copy=False)
        left -= len(block)


def varint(number: int) -> bytes:
    """Encode a number in base 128 as protobuf does."""
    digits = bytearray()
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    return bytes((*digits, number))


def prefix(key: int, length: int) -> bytes:
    """Encode the key and length of a protobuf field of `length` bytes."""
    return varint(key << 3 | 2) + varint(length)


def write(graph: Graph, path: Path, *, external: bool = False, seed: int = SEED) -> None:
    """Write a graph as a model; with `external`, large tensors go to `path` + .data."""
    rng = np.random.default_rng(seed)
    value = helper.make_tensor_value_info
    head = onnx.ModelProto(ir_version=8, producer_name="benchmark")
    tail = onnx.ModelProto(opset_import=[helper.make_opsetid("", 17)])
    result = [
        "batch",
        *([1000] if graph.nodes[-1].op_type == "Gemm" else [graph.tensors[-1][1][0], None, None]),
    ]
    first = onnx.GraphProto(node=graph.nodes, name="graph").SerializeToString()
    ends = onnx.GraphProto(
        input=[value("input", onnx.TensorProto.FLOAT, ["batch", graph.tensors[0][1][1], 8, 8])],
        output=[value(graph.nodes[-1].output[0], onnx.TensorProto.FLOAT, result)],
    ).SerializeToString()
    beside, offset, headers = path.with_name(path.name + ".data"), 0, []
    for name, shape, _ in graph.tensors:
        size = 4 * int(np.prod(shape))
        proto = onnx.TensorProto(name=name, data_type=onnx.TensorProto.FLOAT, dims=shape)
        inside = not external or size < EXTERNAL
        if not inside:
            proto.data_location = onnx.TensorProto.EXTERNAL
            for key, entry in (("location", beside.name), ("offset", offset), ("length", size)):
                proto.external_data.add(key=key, value=str(entry))
            offset += size
        own = proto.SerializeToString() + (prefix(9, size) if inside else b"")
        headers.append((prefix(5, len(own) + size * inside) + own, size * inside))
    total = len(first) + len(ends) + sum(len(header) + size for header, size in headers)
    with path.open("wb") as file, beside.open("wb") if external else path.open("rb") as data:
        file.write(head.SerializeToString() + prefix(7, total) + first)
        for (header, size), (_, shape, deviation) in zip(headers, graph.tensors, strict=True):
            file.write(header)
            draw(file if size else data, payload(rng, shape, deviation))
        file.write(ends + tail.SerializeToString())


def draw(file: BinaryIO, blocks: Iterator[NDArray[np.float32]]) -> None:
    """Write blocks of elements to a file."""
    for block in blocks:
        file.write(block.data)


def make(name: str, path: Path, *, small: bool) -> tuple[int, int]:
    """Write a workload, and return its numbers of nodes and bytes."""
    workload = WORKLOADS[name]
    graph = workload.small() if small else workload.build()
    write(graph, path, external=workload.external)
    return len(graph.nodes), sum(file.stat().st_size for file in path.parent.iterdir())


def size(name: str, *, small: bool) -> int:
    """Return the bytes of a workload's tensors, or 0 for blocks, which take only megabytes."""
    workload = WORKLOADS[name]
    if small or workload.blocks:
        return 0
    return sum(4 * int(np.prod(shape)) for _, shape, _ in workload.build().tensors)


# checking


def tensors(path: Path, names: Callable[[onnx.GraphProto], list[str]]) -> list[NDArray[np.float64]]:
    """Return the initializers that `names` selects, in float64; no other external data is read."""
    graph = onnx.load(path, load_external_data=False).graph
    found = {tensor.name: tensor for tensor in graph.initializer}
    read = onnx.numpy_helper.to_array
    return [read(found[name], str(path.parent)).astype(np.float64) for name in names(graph)]


def wrong(source: Path, result: Path) -> str | None:
    """Return an error message for a wrongly compiled workload, or None.

    No BatchNormalization may be left, and the parameters of the first, middle and last Conv must
    agree with float64 arithmetic within one unit in the last place.
    """
    try:
        onnx.checker.check_model(str(result))
    except onnx.checker.ValidationError as error:
        return " ".join(str(error).split())
    layers: list[str] = []

    def parameters(graph: onnx.GraphProto) -> list[str]:
        norms = {node.input[0]: node for node in graph.node if node.op_type == "BatchNormalization"}
        convs = [node for node in graph.node if node.op_type == "Conv"]
        names = []
        for conv in (convs[0], convs[len(convs) // 2], convs[-1]):
            layers.append(conv.name)
            names += [conv.input[1], *norms[conv.output[0]].input[1:]]
        return names

    def folded(graph: onnx.GraphProto) -> list[str]:
        assert all(node.op_type != "BatchNormalization" for node in graph.node), (
            "a BatchNormalization is left"
        )
        convs = {node.name: node for node in graph.node if node.op_type == "Conv"}
        return [name for layer in layers for name in convs[layer].input[1:]]

    before = tensors(source, parameters)
    try:
        after = tensors(result, folded)
    except (AssertionError, KeyError) as error:
        return str(error)
    for i, layer in enumerate(layers):
        weight, gamma, beta, mean, variance = before[5 * i : 5 * i + 5]
        scale = gamma / np.sqrt(variance + np.float32(1e-5))
        expected = (weight * scale[:, None, None, None], beta - mean * scale)
        for exact, given in zip(expected, after[2 * i : 2 * i + 2], strict=True):
            if exact.shape != given.shape or np.any(
                abs(given - exact) > np.spacing(abs(exact).astype(np.float32))
            ):
                return f"{layer} differs from float64"
    return None
