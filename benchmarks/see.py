"""Show that a tool changes what a model computes: `python see.py TOOL CASE.txt INPUT [FIRST
OTHER]`.

TOOL is onnxsim, onnxslim, onnxscript, onnxoptimizer, onnxruntime (basic) or onnxruntime-extended;
CASE.txt is a model as ONNX text; INPUT is random, zeros, ones, negative, large, or overrides, which
gives initializers that are inputs 1.25 times their default. FIRST and OTHER are the first and the
other extents of inputs that leave them open (2 and 4).
"""

import sys
import tempfile

import numpy as np
import onnx
import onnxruntime as ort


def session(model, level="ORT_DISABLE_ALL", out=""):
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.optimized_model_filepath = out
    options.log_severity_level = 4
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def compiled(tool, model):
    if tool == "onnxsim":
        return __import__("onnxsim").simplify(model)[0]
    if tool == "onnxslim":
        return __import__("onnxslim").slim(model)
    if tool == "onnxscript":
        return __import__("onnxscript.optimizer").optimizer.optimize(model)
    if tool == "onnxoptimizer":
        return __import__("onnxoptimizer").optimize(model)
    with tempfile.NamedTemporaryFile(suffix=".onnx") as out:
        session(model, f"ORT_ENABLE_{'EXTENDED' if 'extended' in tool else 'BASIC'}", out.name)
        return onnx.load(out.name)


def feed(info, kind, rng, first, other):
    tensor = info.type.tensor_type
    shape = [dim.dim_value or (other if i else first) for i, dim in enumerate(tensor.shape.dim)]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    if dtype.kind in "iub":
        return (
            rng.integers(0, 2, shape).astype(dtype)
            if kind == "random"
            else np.full(shape, kind == "ones", dtype)
        )
    numbers = {
        "zeros": np.zeros(shape),
        "ones": np.ones(shape),
        "negative": -rng.uniform(0.5, 2, shape),
    }
    return np.asarray(
        numbers.get(kind, rng.standard_normal(shape) * (1000 if kind == "large" else 1))
    ).astype(dtype)


tool, file, kind, *extents = sys.argv[1:]
first, other = map(int, extents or (2, 4))
with open(file) as lines:
    text = lines.read()
source = onnx.parser.parse_model(text)
rng = np.random.default_rng(7)
defaults = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in source.graph.initializer}
inputs = [info for info in source.graph.input if info.name not in defaults]
feeds = {info.name: feed(info, kind, rng, first, other) for info in inputs}
if kind == "overrides":
    given = [
        info.name
        for info in source.graph.input
        if info.name in defaults and defaults[info.name].dtype.kind == "f"
    ]
    feeds |= {name: (defaults[name] * 1.25).astype(defaults[name].dtype) for name in given}
result = compiled(tool, onnx.parser.parse_model(text))
print(onnx.printer.to_text(result))
try:
    before, after = (session(model).run(None, feeds) for model in (source, result))
except Exception as error:  # float64, old opsets
    sys.exit(f"onnxruntime does not run it; the constants of the result show it. {error}")
for info, wanted, found in zip(source.graph.output, before, after, strict=True):
    print(f"{info.name} of the source, then of the result of {tool}:\n{wanted}\n{found}")
    if np.shape(wanted) == np.shape(found) and wanted.dtype.kind == "f":
        print(
            "largest difference:", np.abs(wanted.astype(float) - found.astype(float)).max(initial=0)
        )
