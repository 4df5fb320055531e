"""Compile a model in one call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .frontends import load
from .frontends.onnx import from_model, read_model
from .frontends.onnx.codec.protos import ModelProto
from .frontends.onnx.folded_before import folded_before
from .frontends.onnx.input_shapes import fix_model
from .ir.module import Module
from .passes import FreezeInitializers
from .passes.affine.records.fold_records import fold_records
from .passes.infra import Instrument, PassContext, Passes, Sequential, context_of
from .passes.keeping import keep_nodes, kept_nodes
from .passes.registry import pipeline_of
from .passes.watching import counting_passes, instrumented
from .result import Result
from .support.hooks import provided
from .support.limits import DEFAULT_LIMITS, Limits
from .support.output_paths import is_text
from .support.progress import shown_progress

if TYPE_CHECKING:
    from .frontends.onnx.input_preprocessing import Preprocess
    from .frontends.onnx.input_shapes import InputShapes


def compile(  # noqa: A001 - users look for irc.compile
    model: str | Path | ModelProto | Module | Any,
    passes: str | Passes | None = None,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    export: Mapping[str, Any] | None = None,
    freeze_initializers: bool = False,
    keep: Iterable[str] = (),
    certificate: bool = False,
    input_shapes: InputShapes | None = None,
    preprocess: Preprocess | None = None,
    context: PassContext | Iterable[Instrument] | None = None,
    verify: bool = False,
    progress: bool = False,
    limits: Limits = DEFAULT_LIMITS,
) -> Result:
    """Run `passes` on a model and return the ONNX model with its fold map.

    Args:
        model: A path, a ModelProto (do not change it while the result is in use), a Module (changed
            in place), a torch module or a torch ExportedProgram.
        passes: A Sequential, a list of passes or their text; None is the default pipeline.
        args: The example inputs of a torch module.
        kwargs: Its example inputs by name.
        dynamic_shapes: Open extents, as torch.export takes them.
        export: Other keyword arguments of torch.onnx.export.
        freeze_initializers: Make initializers that are graph inputs constants first.
        keep: Names of nodes that the passes leave alone, and of values whose nodes they leave
            alone.
        certificate: Log the rewrites for `Result.certificate`, which proves the result.
        input_shapes: Extents of inputs that become fixed, as for `irc.load`.
        preprocess: Operators before inputs, as for `irc.load`; the source of the result has both.
        context: A PassContext or a list of instruments.
        verify: Compare the result of each pass, and the model that is made, with the source on
            generated inputs. `Result.verdicts` has the outcomes. It needs onnxruntime.
        progress: Show the passes that are done on standard error, if that is a terminal or a
            notebook.
        limits: The limits for reading a model.

    Raises:
        ModelError: As `irc.load`.
        PassError: A pass is unknown, or fails.
        EmitError: The result has no ONNX form.
        UsageError: `keep` has a name that the model does not have.
        VerifyError: A pass changed a tensor; the message says which of both.
    """
    module = load(
        model,
        limits,
        input_shapes=input_shapes,
        preprocess=preprocess,
        args=args,
        kwargs=kwargs,
        dynamic_shapes=dynamic_shapes,
        export=export,
    )
    keep_nodes(module, keep)
    ctx = context_of(context)
    pipeline = pipeline_of(passes)
    if certificate:
        module.debug_counter.log = []
    checks = [provided("VerifyNumerics")()] if verify else []
    with shown_progress("compiling", wanted=progress) as advance, counting_passes(ctx, advance):
        with instrumented(ctx, *checks):
            result = _run(module, pipeline, ctx, freeze_initializers=freeze_initializers)
        for check in checks:
            check.finish(module, result.model, module.base_dir)
            result.warnings.extend(check.warnings())
            result.verdicts = check.verdicts
    return result


def _run(
    module: Module, pipeline: Sequential, ctx: PassContext, *, freeze_initializers: bool
) -> Result:
    """Run a pipeline on a module, and return the result with its warnings."""
    ctx.warnings.extend(warning for warning in module.warnings if warning not in ctx.warnings)
    lost = folded_before(module.source) if isinstance(module.source, ModelProto) else None
    if lost is not None and lost not in ctx.warnings:
        ctx.warnings.append(lost)
    if freeze_initializers:
        FreezeInitializers()(module, ctx)
    pipeline(module, ctx)
    held = held_back(module, pipeline)
    if held:
        folds = "1 fold is" if held == 1 else f"{held} folds are"
        ctx.warnings.append(
            f"{folds} held back because initializers are graph inputs that callers may override; "
            "--freeze-initializers makes them constants"
        )
    result = Result(module, ctx.warnings, held)
    result.warn_of_inserted()
    return result


def held_back(module: Module, pipeline: Sequential) -> int:
    """Count the affines that `pipeline` would fold in addition if the initializers of `module` were
    frozen.

    `pipeline` has run on `module`. It runs once more, on the frozen source, but only if a refusal
    names its initializers.
    """
    refusals = module.provenance.refusals.values()
    if not isinstance(module.source, ModelProto) or all(
        r.code != "overridable_initializer" for r in refusals
    ):
        return 0
    frozen = read_again(module)
    Sequential([FreezeInitializers(), *pipeline.passes])(frozen)
    return len(fold_records(frozen).folded_origins() - fold_records(module).folded_origins())


def read_again(module: Module) -> Module:
    """Return the module as it was read from its ONNX model, with the same nodes to be
    left alone.
    """
    again = from_model(module.source, module.base_dir, module.limits)
    again.payloads.extend(module.payloads)
    again.files, again.inserted = module.files, module.inserted
    keep_nodes(again, kept_nodes(module).names)
    return again


def read_onnx(
    path: str | Path, limits: Limits = DEFAULT_LIMITS, input_shapes: InputShapes | None = None
) -> tuple[ModelProto, Path]:
    """Return the ONNX model at `path` and the folder of its external data; of IR text the model
    that it stands for.

    Its inputs get the extents of `input_shapes`. Raises ModelError, ParseError, EmitError and
    UsageError.
    """
    if is_text(path):
        return Result(load(path, limits, input_shapes=input_shapes)).model, Path(path).parent
    model, base_dir = read_model(path)
    if input_shapes:
        fix_model(model, input_shapes)
    return model, base_dir
