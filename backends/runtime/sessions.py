"""Sessions of onnxruntime, by default without graph optimizations."""

from __future__ import annotations

from collections.abc import Sequence
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
    custom_ops: Sequence[str] = (),
    providers: Sequence[str] = (),
) -> onnxruntime.InferenceSession:
    """Return a silent session of a serialized model, by default without graph optimizations.

    Raises the errors of onnxruntime. External data is below `base_dir`. `threads` 0 means one for
    each core. They do not spin while they wait: another process reads the results on the same
    cores. Without `reuse` no tensor takes the memory of another, which takes onnxruntime time
    quadratic in the number of nodes to plan. `custom_ops` are libraries of operators. Raises
    RuntimeError if one of `providers` is missing, or does not start.
    """
    known = onnxruntime.get_available_providers() if providers else []
    for provider in providers:
        if provider not in known:
            raise RuntimeError(
                f"the installed onnxruntime has no provider {provider!r}: it has {', '.join(known)}"
            )
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
    for library in custom_ops:
        try:
            options.register_custom_ops_library(library)
        except Exception as error:  # onnxruntime raises types of its own
            raise RuntimeError(f"{library}: onnxruntime cannot load it: {error}") from None
    session = onnxruntime.InferenceSession(
        model, options, providers=list(dict.fromkeys([*providers, "CPUExecutionProvider"]))
    )
    for provider in providers:
        if provider not in session.get_providers():
            raise RuntimeError(f"{provider} does not start here")
    return session
