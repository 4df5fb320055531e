"""BatchNormalization in quantized models: operators left by irc and others, and run as integers.

    python benchmarks/quantized.py [MODEL.onnx ...]

Without models, one of each form in which exporters write a quantized layer with a
BatchNormalization behind it. The columns of the tools count the BatchNormalizations that are left.
`integer` counts the operators on integers that onnxruntime makes of the source, and of irc's
result, with all of its optimisations.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import tools  # puts tests on the path

# isort: split
import irc
import numpy as np
import onnx
import onnxruntime
from graphs import F32, Graph
from onnx import ModelProto
from scale_axis.build import Step, add, binary, bn, chain, mul, op
from scale_axis.quantized import layer

ALLOWED = (
    "(SimplifyInference,FoldScaleAxis{per_channel=allow},CanonicalizeOps,SimplifyExpr,"
    "FoldConstant)*"
)
INTEGER = ("QLinearConv", "QLinearMatMul", "QGemm", "MatMulIntegerToFloat")


def quantized(scale: float, point: int) -> Step:
    """Return QuantizeLinear and DequantizeLinear."""
    return chain(
        *(
            op(kind, np.float32(scale), np.uint8(point))
            for kind in ("QuantizeLinear", "DequantizeLinear")
        )
    )


def forms() -> Iterator[tuple[str, ModelProto]]:
    """Yield one model of each form: layer, weight, bias and affine."""
    weights = {
        "int8, DQ": {},
        "int8, DQ, one scale": {"axis": None},
        "float, Q, DQ": {"by": "Q"},
        "float, Q, Clip, DQ": {"by": "QClip"},
    }
    decomposed = chain(
        binary("Sub", 4, 1, 1), binary("Div", 4, 1, 1, sign="+"), mul(4, 1, 1), add(4, 1, 1)
    )
    rows: list[tuple[str, Step, Step]] = []
    for name, form in weights.items():
        one = form.get("axis", -1) is None
        scale = np.float32(0.01) if one else np.linspace(0.01, 0.02, 4, dtype=np.float32)
        for bias in ("float", "int32"):
            made = layer(
                bias=bias, steps=1 if one else 4, step=np.float32(0.02) * scale, scale=scale, **form
            )  # type: ignore[arg-type]
            for sign, affine in (("gamma > 0", bn(4, "+")), ("mixed gamma", bn(4))):
                rows.append((f"Conv, {name}, {bias} bias, {sign}", made, affine))
    scale = np.linspace(0.01, 0.02, 4, dtype=np.float32)
    rows += [
        ("Conv, int8, DQ, no bias", layer(scale=scale), bn(4)),
        ("Conv, uint8, DQ", layer(dtype=np.uint8, zero_point=128, scale=scale), bn(4)),
        ("Conv, int8, DQ, Sub Div Mul Add", layer(scale=scale), decomposed),
        ("ConvTranspose, int8, DQ", layer("ConvTranspose", scale=scale), bn(4)),
    ]
    for name, made, affine in rows:
        yield name, model(made, affine, [2, 3, 6, 6])
    dense = {"steps": 4, "step": np.float32(0.02) * scale, "scale": scale}
    yield "Gemm, int8, DQ, int32 bias", model(layer("Gemm", bias="int32", **dense), bn(4), [2, 3])  # type: ignore[arg-type]
    yield "Gemm, int8, DQ, no bias", model(layer("Gemm", scale=scale), bn(4), [2, 3])
    yield "MatMul, int8, DQ", model(layer("MatMul", scale=scale), bn(4), [2, 3])


def model(made: Step, affine: Step, shape: list[int]) -> ModelProto:
    """Return a layer between quantized data, with an affine and Relu behind it."""
    graph = Graph(dtype=F32, opset=17, ir=8)
    steps = chain(quantized(0.02, 128), made, affine, op("Relu"), quantized(0.05, 0))
    graph.output(steps(graph, graph.input("x", shape)))
    return graph.model()


def affines(path: Path) -> int:
    """Count BatchNormalization, or what it was decomposed into."""
    kinds = Counter(node.op_type for node in onnx.load(path, load_external_data=False).graph.node)
    return sum(kinds[kind] for kind in ("BatchNormalization", "Sub", "Div", "Mul", "Add"))


def integers(path: Path, folder: Path) -> int:
    """Count the operators on integers that onnxruntime makes of a model."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.log_severity_level = 4
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    nodes = onnx.load(folder / "optimized.onnx", load_external_data=False).graph.node
    return sum(node.op_type in INTEGER for node in nodes)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", type=Path)
    given: list[Path] = parser.parse_args().models
    names = ("onnxsim", "onnxslim", "onnxscript", "onnxruntime")
    peers = [name for name in names if tools.is_installed(name)]
    print(
        "| form | source | "
        + " | ".join(["irc", "irc, per_channel=allow", *peers, "integer"])
        + " |"
    )
    print("| --- |" + " --: |" * (len(peers) + 4))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        source = folder / "in.onnx"
        found = (
            ((path.stem, path) for path in given)
            if given
            else ((name, made) for name, made in forms())
        )
        for name, item in found:
            if isinstance(item, Path):
                source = item
            else:
                onnx.save(item, source)
            cells = [str(affines(source))]
            for i, passes in enumerate((None, ALLOWED)):
                irc.compile(source, passes, freeze_initializers=True).save(folder / f"{i}.onnx")
                cells.append(str(affines(folder / f"{i}.onnx")))
            for tool in peers:
                try:
                    tools.TOOLS[tool][1](source, folder / "peer.onnx")
                    cells.append(str(affines(folder / "peer.onnx")))
                except Exception as error:
                    cells.append(type(error).__name__)
            counts = [
                str(integers(path, folder))
                for path in (source, folder / "0.onnx", folder / "1.onnx")
            ]
            print(f"| {name} | " + " | ".join([*cells, " -> ".join(counts)]) + " |", flush=True)


if __name__ == "__main__":
    main()
