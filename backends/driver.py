"""From a model to a result in one call."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..frontends import load
from ..ir.graph import Module
from ..passes.freeze_initializers import FreezeInitializers
from ..passes.infra import PassContext, Sequential
from ..passes.registry import default_pipeline, parse_pipeline
from .onnx import Result

if TYPE_CHECKING:
    from onnx import ModelProto


def compile(  # noqa: A001 - irc.compile is what a user looks for
    model: str | Path | ModelProto | Module,
    passes: str | Sequential | None = None,
    *,
    freeze_initializers: bool = False,
    context: PassContext | None = None,
) -> Result:
    """Run `passes` (a Sequential or its text; by default the default pipeline) on a model and express it in ONNX.

    `model` is a path, a ModelProto, which must not be changed meanwhile, or a Module, which is changed in place. With
    `freeze_initializers`, initializers that callers could override become constants first. Raises ModelError, PassError
    and EmitError.
    """
    module, base_dir = read(model)
    ctx = context or PassContext()
    if freeze_initializers:
        FreezeInitializers()(module, ctx)
    pipeline = parse_pipeline(passes) if isinstance(passes, str) else passes or default_pipeline()
    pipeline(module, ctx)
    held = sum(refusal.code == "overridable_initializer" for refusal in module.ledger.refusals.values())
    if held:
        ctx.warnings.append(
            f"{held} folds are held back because initializers are graph inputs that callers may override; "
            "--freeze-initializers makes them constants"
        )
    return Result(module, base_dir, ctx.warnings)


def read(model: str | Path | ModelProto | Module) -> tuple[Module, Path]:
    """The module of a model, and the folder of its external data."""
    if isinstance(model, Module):
        return model, Path()
    if isinstance(model, str | Path):
        return load(model), Path() if str(model) == "-" else Path(model).parent
    from ..frontends.onnx import from_model

    return from_model(model), Path()
