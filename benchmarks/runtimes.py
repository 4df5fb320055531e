"""Models as they come and as irc writes them, in several runtimes: operators, time, difference.

    make bench-runtimes        or        python benchmarks/runtimes.py MODEL...

Each model runs in a process of its own, on one thread, in float32. The difference is that to
onnxruntime's result for the source, relative to its greatest magnitude.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import irc
import numpy as np
import onnx
from rich.console import Console
from rich.table import Table

Arrays = dict[str, np.ndarray[Any, Any]]
Trial = tuple[int, Callable[[], list[Any]]]
"""The operators that a runtime computes, and a function that runs them."""

SECONDS = 1.0
"""How long a model is run; the least time counts."""
ROOT = Path(__file__).resolve().parent.parent
MODELS = [
    ROOT / "examples/digits_cnn.onnx",
    *(
        ROOT / "../shared/models" / name
        for name in (
            "imagenet/mobilenet_v2.onnx",
            "imagenet/efficientnet_lite0.onnx",
            "exported/timm_mobilenetv2_050.dynamo.onnx",
            "exported/misc_unet_convtranspose.legacy.onnx",
        )
    ),
]


def by_onnxruntime(path: Path, feeds: Arrays, folder: Path) -> Trial:
    """Count nodes after all graph optimizations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return len(onnx.load(folder / "optimized.onnx").graph.node), lambda: session.run(None, feeds)


def by_openvino(path: Path, feeds: Arrays, folder: Path) -> Trial:
    """Count the executable graph without constants, inputs and results."""
    import openvino

    core = openvino.Core()
    model = core.read_model(path)
    model.reshape({name: list(array.shape) for name, array in feeds.items()})
    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    compiled = core.compile_model(model, "CPU", options)
    kinds = [
        op.get_rt_info()["layerType"].astype(str) for op in compiled.get_runtime_model().get_ops()
    ]
    count = sum(kind not in ("Const", "Input", "Output") for kind in kinds)
    return count, lambda: list(compiled(feeds).values())


def by_tvm(path: Path, feeds: Arrays, folder: Path) -> Trial:
    """Count kernels of relax after its default pipeline; LLVM compiles them without tuning."""
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    shapes = {name: list(array.shape) for name, array in feeds.items()}
    module = from_onnx(onnx.load(path), shape_dict=shapes, keep_params_in_input=False)
    module = relax.get_pipeline("zero")(module)
    calls = [
        binding.value.op.name
        for block in module["main"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call) and hasattr(binding.value.op, "name")
    ]
    machine = relax.VirtualMachine(tvm.compile(module, target="llvm"), tvm.cpu())
    given = [tvm.runtime.tensor(array) for array in feeds.values()]

    def run() -> list[Any]:
        found = machine["main"](*given)
        return [found.numpy()] if hasattr(found, "numpy") else [each.numpy() for each in found]

    return calls.count("relax.call_tir"), run


def by_ncnn(path: Path, feeds: Arrays, folder: Path) -> Trial:
    """Count the layers that pnnx writes, without inputs."""
    import ncnn

    shapes = ",".join(str(list(array.shape)).replace(" ", "") for array in feeds.values())
    (folder / "net.onnx").write_bytes(path.read_bytes())
    pnnx = Path(sys.executable).parent / "pnnx"
    words = [pnnx, "net.onnx", f"inputshape={shapes}", "fp16=0"]
    subprocess.run(words, cwd=folder, check=True, capture_output=True)
    net = ncnn.Net()
    for option in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_storage"):
        setattr(net.opt, f"use_{option}", False)
    net.opt.num_threads = 1
    net.load_param(str(folder / "net.ncnn.param"))
    net.load_model(str(folder / "net.ncnn.bin"))

    def run() -> list[Any]:
        extractor = net.create_extractor()
        for i, array in enumerate(feeds.values()):
            extractor.input(f"in{i}", ncnn.Mat(array[0]))
        return [np.array(extractor.extract(name)[1]) for name in net.output_names()]

    lines = (folder / "net.ncnn.param").read_text().splitlines()[2:]
    return sum(not line.startswith("Input ") for line in lines), run


def by_mnn(path: Path, feeds: Arrays, folder: Path) -> Trial:
    """Count operators of the converted model, without constants and inputs."""
    import _tools  # MNN's converter
    from MNN import expr, nn

    target, text = folder / "net.mnn", folder / "net.json"
    head = ["MNNConvert", "--modelFile"]
    _tools.mnnconvert([*head, str(path), "-f", "ONNX", "--MNNModel", str(target), "--bizCode", "x"])
    _tools.mnnconvert([*head, str(target), "-f", "MNN", "--JsonFile", str(text)])
    names = [info.name for info in onnx.load(path).graph.output]
    manager = nn.create_runtime_manager(({"backend": "CPU", "numThread": 1, "precision": "high"},))
    net = nn.load_module_from_file(str(target), list(feeds), names, runtime_manager=manager)

    def run() -> list[Any]:
        given = []
        for array in feeds.values():
            value = expr.placeholder(list(array.shape), expr.NCHW)
            value.write(array)
            given.append(value)
        return [np.array(expr.convert(found, expr.NCHW).read()) for found in net.forward(given)]

    operators = json.loads(text.read_text())["oplists"]
    return sum(each.get("type") not in ("Const", "Input") for each in operators), run


RUNTIMES: dict[str, Callable[[Path, Arrays, Path], Trial]] = {
    "onnxruntime": by_onnxruntime,
    "openvino": by_openvino,
    "tvm": by_tvm,
    "ncnn": by_ncnn,
    "mnn": by_mnn,
}


def inputs_of(model: onnx.ModelProto) -> Arrays:
    """Return normal numbers for the inputs; open extents are 1."""
    random = np.random.default_rng(0)
    defaults = {tensor.name for tensor in model.graph.initializer}
    found = {}
    for info in model.graph.input:
        if info.name not in defaults:
            shape = [dim.dim_value or 1 for dim in info.type.tensor_type.shape.dim]
            found[info.name] = random.standard_normal(shape, np.float32)
    return found


def alone(runtime: str, path: Path, folder: Path, seconds: float) -> None:
    """Run a model in this process; write its results, operators and milliseconds to the folder."""
    feeds = inputs_of(onnx.load(path))
    operators, run = RUNTIMES[runtime](path, feeds, folder)
    results = run()
    times = []
    start = perf_counter()
    while not times or perf_counter() - start < seconds:
        before = perf_counter()
        run()
        times.append(perf_counter() - before)
    np.savez(folder / "results.npz", *results)
    said = {"operators": operators, "milliseconds": 1000 * min(times)}
    (folder / "said.json").write_text(json.dumps(said))


def tried(runtime: str, path: Path, seconds: float = SECONDS) -> tuple[int, float, list[Any]]:
    """Return operators, milliseconds and results of a model.

    Raises RuntimeError with the end of what the runtime printed.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = [sys.executable, __file__, "--alone", runtime, path.resolve(), folder, seconds]
        environment = {**os.environ, "TVM_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [str(word) for word in words], capture_output=True, text=True, env=environment
        )
        if done.returncode:
            raise RuntimeError(f"{runtime}: {done.stdout[-300:]}{done.stderr[-600:]}")
        said = json.loads((folder / "said.json").read_text())
        with np.load(folder / "results.npz") as arrays:
            return said["operators"], said["milliseconds"], [arrays[key] for key in arrays.files]


def difference(found: list[Any], expected: list[Any]) -> float:
    """Return the greatest difference, relative to the greatest magnitude of each result."""
    pairs = zip(found, expected, strict=True)
    return max(float(np.abs(a.reshape(b.shape) - b).max() / np.abs(b).max()) for a, b in pairs)


def main(paths: list[Path]) -> None:
    """Print a line for each model and runtime."""
    table = Table("model", "runtime", "operators", "milliseconds", "difference", title="runtimes")
    with tempfile.TemporaryDirectory() as folder:
        for path in paths:
            after = Path(folder, "after.onnx")
            irc.compile(path).save(after)
            expected = tried("onnxruntime", path, 0)[2]
            for runtime in RUNTIMES:
                cells = []
                for model in (path, after):
                    try:
                        operators, time, results = tried(runtime, model)
                        off = difference(results, expected)
                        cells.append((str(operators), f"{time:.3g}", f"{off:.1e}"))
                    except (RuntimeError, ValueError) as error:
                        print(f"{path.stem}: {error}", file=sys.stderr)
                        cells.append(("-", "-", "-"))
                pairs = (f"{a}, {b}" for a, b in zip(*cells, strict=True))
                table.add_row(path.stem, runtime, *pairs)
    Console(width=120).print(table)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--alone"]:
        alone(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]), float(sys.argv[5]))
    else:
        main([Path(name) for name in sys.argv[1:]] or [path for path in MODELS if path.exists()])
