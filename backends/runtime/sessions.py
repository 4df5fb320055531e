"""Sessions of onnxruntime, by default without graph optimizations."""

from __future__ import annotations

from pathlib import Path

from ...support.extras import needing

with needing("verify"):
    import onnxruntime


def new_session(
    model: bytes,
    base_dir: Path | None = None,
    *,
    threads: int = 0,
    reuse: bool = True,
    optimize: bool = False,
) -> onnxruntime.InferenceSession:
    """Return a silent session of a serialized model, by default without graph optimizations.

    Raises the errors of onnxruntime. External data is below `base_dir`. `threads` 0 means one for
    each core. They do not spin while they wait: another process reads the results on the same
    cores. Without `reuse` no tensor takes the memory of another, which takes onnxruntime time
    quadratic in the number of nodes to plan.
    """
    options = onnxruntime.SessionOptions()
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.enable_mem_reuse = reuse
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # shapes first, which frees their tensors early
    options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
    if threads:
        options.intra_op_num_threads = options.inter_op_num_threads = threads
    if base_dir is not None:
        folder = str(base_dir.resolve())
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", folder
        )
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
