"""Comparison of two models in one call: `irc.verify` and `irc.align`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onnx import ModelProto

from ...backends.foldmap.fold_map import FoldMap
from ...compiler import read_onnx
from ...frontends import load
from ...ir.module import Module
from ...ir.tensor import Array
from ...ir.types import DType
from ...result import emit
from ...support.errors import UsageError, VerifyError
from ...support.limits import DEFAULT_LIMITS, Limits
from ..float16.narrow_alignment import align_model, narrowed_type
from .alignment import Alignment
from .branch_outputs import expose_branch_tensors
from .comparison import Comparison
from .inputs import (
    Stimulus,
    check_feeds,
    declared_shape,
    overridable_inputs,
    read_inputs,
    required_inputs,
)
from .tolerance import Tolerance

if TYPE_CHECKING:
    from ...frontends.onnx.input_preprocessing import Preprocess
    from ...frontends.onnx.input_shapes import InputShapes

Model = str | Path | ModelProto | Module
Inputs = Mapping[str, Array] | str | Path | Sequence[str | Path]


def align(
    first: Model,
    second: Model,
    *,
    inputs: Inputs | None = None,
    fold_map: FoldMap | str | Path | None = None,
    input_shapes: InputShapes | None = None,
    preprocess: Preprocess | None = None,
    tolerance: Tolerance | None = None,
    thorough: bool = False,
    limits: Limits = DEFAULT_LIMITS,
    advance: Callable[[str], None] | None = None,
) -> Alignment:
    """Run two models on the same inputs, and compare all tensors of the first.

    `Alignment.first_divergence` is the first tensor that rounding, or the `tolerance`, does not
    explain, or None. A float16 or bfloat16 model beside a float32 one is held to the bound of its
    type, with every result rounded, and `Alignment.overflow` is its first operator to overflow.

    Args:
        first: A path, a ModelProto or a Module.
        second: The same.
        inputs: Arrays by name, a file, or several; by default generated ones.
        fold_map: The fold map of `second`, which explains tensors that it does not compute.
        input_shapes: Extents of inputs, as for `irc.load`.
        preprocess: Operators before inputs of `first`, as for `irc.load`.
        tolerance: The difference to allow, in place of the bound on rounding.
        thorough: Compare on more inputs; by default large models run on fewer.
        limits: The limits for reading a model.
        advance: Called with the name of each set of inputs.

    Raises:
        VerifyError: A model does not run.
        ModelError: A model cannot be read.
        UsageError: An input has fixed extents in `second` only, and neither inputs nor shapes are
            given.
    """
    one, base_dir = _read(first, input_shapes, limits, preprocess)
    two, other_dir = _read(second, input_shapes, limits)
    if not inputs:
        check_extents(one, two)
    comparison = compare_with(
        one,
        base_dir,
        inputs=_stimuli(inputs, one),
        tolerance=tolerance,
        thorough=thorough,
        narrow=narrowed_type(one, two),
        advance=advance,
    )
    known = FoldMap.load(fold_map) if isinstance(fold_map, str | Path) else fold_map
    return align_model(comparison, two, other_dir, known)


def verify(
    first: Model,
    second: Model,
    *,
    inputs: Inputs | None = None,
    input_shapes: InputShapes | None = None,
    preprocess: Preprocess | None = None,
    tolerance: Tolerance | None = None,
    thorough: bool = False,
) -> Alignment:
    """Compare two models as `irc.align` does, with its arguments.

    Raises:
        VerifyError: They do not agree. The message names the first tensor of `first` that rounding,
            or the `tolerance`, does not explain.
    """
    found = align(
        first,
        second,
        inputs=inputs,
        input_shapes=input_shapes,
        preprocess=preprocess,
        tolerance=tolerance,
        thorough=thorough,
    )
    if not found.agrees:
        raise VerifyError("\n".join(found.lines()))
    return found


def compare_with(
    model: ModelProto,
    base_dir: Path,
    *,
    inputs: Sequence[Stimulus] = (),
    tolerance: Tolerance | None = None,
    thorough: bool = False,
    narrow: DType | None = None,
    advance: Callable[[str], None] | None = None,
) -> Comparison:
    """Return the comparison of other models with `model`, also of values in its branches.

    They may be off by roundings to the `narrow` type.
    """
    return Comparison(
        expose_branch_tensors(model, base_dir),
        base_dir,
        inputs=inputs,
        advance=advance,
        frozen=True,
        thorough=thorough,
        tolerance=tolerance,
        narrow=narrow,
    )


def check_extents(first: ModelProto, second: ModelProto) -> None:
    """Raise UsageError for an input with open extents in `first` and fixed ones in `second`."""
    others = {info.name: declared_shape(info) for info in required_inputs(second)}
    for info in required_inputs(first):
        mine, other = declared_shape(info), others.get(info.name)
        if mine is None or other is None or len(mine) != len(other):
            continue
        pairs = list(zip(mine, other, strict=True))
        if any(a is None is not b for a, b in pairs) and all(a is None or a == b for a, b in pairs):
            shape = ",".join("?" if extent is None else str(extent) for extent in other)
            raise UsageError(
                f"input {info.name!r} has fixed extents in the second model only: give"
                f" --input-shape {info.name}={shape}"
            )


def _read(
    model: Model,
    input_shapes: InputShapes | None,
    limits: Limits,
    preprocess: Preprocess | None = None,
) -> tuple[ModelProto, Path]:
    if preprocess:
        module = load(model, limits, input_shapes=input_shapes, preprocess=preprocess)
        return emit(module).model, module.base_dir
    if isinstance(model, str | Path):
        return read_onnx(model, limits, input_shapes)
    if isinstance(model, Module):
        return emit(model).model, model.base_dir
    return model, Path()


def _stimuli(inputs: Inputs | None, model: ModelProto) -> Sequence[Stimulus]:
    if inputs is None:
        return ()
    if isinstance(inputs, str | Path):
        inputs = [inputs]
    if not isinstance(inputs, Mapping):
        return read_inputs(inputs, model)
    infos = {info.name: info for info in (*required_inputs(model), *overridable_inputs(model))}
    stimulus = Stimulus("inputs", dict(inputs))
    check_feeds(stimulus, infos)
    return (stimulus,)
