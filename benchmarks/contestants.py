"""The tools that benchmarks/speed.py times, each in its own process: `python contestants.py NAME
SOURCE OUT`.

Imports only the modules that the named tool needs. A model with external data is written with
external data.
"""

from __future__ import annotations

import sys


def is_external(source: str) -> bool:
    """Return whether the model has a file of external data."""
    import os

    return os.path.exists(f"{source}.data")


def save(model, source: str, out: str) -> None:
    """Call onnx.save, with external data where the source has it."""
    import onnx

    if is_external(source):
        onnx.save(model, out, save_as_external_data=True, location=f"{out.rpartition('/')[2]}.data")
    else:
        onnx.save(model, out)


def with_onnx(source: str, out: str) -> None:
    import onnx

    save(onnx.load(source), source, out)


def with_numpy(source: str, out: str) -> None:
    """Fold each BatchNormalization in float64 between load and save: a lower bound on the work.

    There is no IR, no check that the fold is legal and no fold map, so this is correct for the
    workloads here and little else. The weights are copied once more.
    """
    import numpy as np
    import onnx

    model = onnx.load(source)
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    convs = {}
    left = []
    for node in model.graph.node:
        conv = convs.pop(node.input[0], None) if node.op_type == "BatchNormalization" else None
        if conv is None:
            left.append(node)
            if node.op_type == "Conv" and len(node.input) == 2:
                convs[node.output[0]] = node
            continue
        epsilon = next(
            (attribute.f for attribute in node.attribute if attribute.name == "epsilon"), 1e-5
        )
        gamma, beta, mean, variance = (
            np.frombuffer(tensors[name].raw_data, np.float32).astype(np.float64)
            for name in node.input[1:]
        )
        scale = gamma / np.sqrt(variance + epsilon)
        weight, bias = tensors[conv.input[1]], tensors[node.input[2]]
        elements = np.frombuffer(weight.raw_data, np.float32).reshape(len(scale), -1)
        weight.raw_data = (elements * scale[:, None]).astype(np.float32).tobytes()
        bias.raw_data = (beta - mean * scale).astype(np.float32).tobytes()
        conv.input.append(bias.name)
        conv.output[0] = node.output[0]
        for name in (node.input[1], *node.input[3:]):
            del tensors[name]
    folded = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    folded.graph.name = model.graph.name
    folded.graph.input.extend(model.graph.input)
    folded.graph.node.extend(left)
    folded.graph.output.extend(model.graph.output)
    folded.graph.initializer.extend(tensors.values())
    save(folded, source, out)


def with_onnxruntime(source: str, out: str) -> None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = out
    options.log_severity_level = 4
    if is_external(source):
        name = f"{out.rpartition('/')[2]}.data"
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_file_name", name
        )
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_min_size_in_bytes", "1024"
        )
    onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def save_ir(model, source: str, out: str) -> None:
    """Call onnx_ir.save, with external data where the source has it."""
    import onnx_ir

    onnx_ir.save(
        model, out, external_data=f"{out.rpartition('/')[2]}.data" if is_external(source) else None
    )


def with_onnx_ir(source: str, out: str) -> None:
    import onnx_ir

    save_ir(onnx_ir.load(source), source, out)


def with_onnxscript_rules(source: str, out: str) -> None:
    import onnx_ir
    from onnxscript.rewriter import rewrite
    from onnxscript.rewriter.rules.common import fuse_batchnorm_into_conv_rule

    save_ir(rewrite(onnx_ir.load(source), [fuse_batchnorm_into_conv_rule]), source, out)


def with_onnxscript(source: str, out: str) -> None:
    import onnx_ir
    import onnxscript.optimizer

    save_ir(onnxscript.optimizer.optimize(onnx_ir.load(source)), source, out)


def with_onnxslim(source: str, out: str) -> None:
    import onnxslim

    onnxslim.slim(source, out, save_as_external_data=is_external(source))


def with_onnxsim(source: str, out: str) -> None:
    import onnxsim

    onnxsim.simplify(source, output_path=out)


def with_onnxoptimizer(source: str, out: str) -> None:
    import onnx
    import onnxoptimizer

    save(onnxoptimizer.optimize(onnx.load(source), ["fuse_bn_into_conv"]), source, out)


CONTESTANTS = {
    "onnx": ("onnx", with_onnx),
    "numpy": ("numpy", with_numpy),
    "onnxruntime": ("onnxruntime", with_onnxruntime),
    "onnx_ir": ("onnx_ir", with_onnx_ir),
    "onnxscript rules": ("onnxscript", with_onnxscript_rules),
    "onnxscript": ("onnxscript", with_onnxscript),
    "onnxslim": ("onnxslim", with_onnxslim),
    "onnxsim": ("onnxsim", with_onnxsim),
    "onnxoptimizer": ("onnxoptimizer", with_onnxoptimizer),
}
"""The tools by name, each with the module that it needs and the function that compiles a file to a
file.
"""

if __name__ == "__main__":
    CONTESTANTS[sys.argv[1]][1](*sys.argv[2:])
