"""Readers of model formats, each of which returns an `irc.ir.Module`.

`load` chooses one by the name of the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..ir.module import Module
from ..support.errors import UsageError
from ..support.limits import DEFAULT_LIMITS, Limits
from ..support.output_paths import arrays_path, is_text
from .onnx import from_model
from .onnx import load as load_onnx
from .onnx.codec.protos import ModelProto
from .onnx.input_shapes import fix_module

if TYPE_CHECKING:
    from .onnx.input_preprocessing import Preprocess
    from .onnx.input_shapes import InputShapes


def load(
    model: str | Path | Any,
    limits: Limits = DEFAULT_LIMITS,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    export: Mapping[str, Any] | None = None,
    data: str | Path | None = None,
    input_shapes: InputShapes | None = None,
    preprocess: Preprocess | None = None,
) -> Module:
    """Read a model into a module.

    Args:
        model: A path (`.irc`: IR text, `.pt2`: a torch ExportedProgram, else ONNX; `-` is ONNX on
            standard input), a ModelProto (do not change it while the module is in use), a torch
            module, an ExportedProgram, or a Module, which is returned as it is.
        limits: The greatest sizes that are read.
        args: The example inputs of a torch module, which needs them: `args=(x,)`.
        kwargs: Its example inputs by name.
        dynamic_shapes: Open extents, as torch.export takes them.
        export: Other keyword arguments of torch.onnx.export.
        data: The file with the constants of IR text, by default the .npz file beside it.
        input_shapes: Extents of inputs that become fixed before anything else is done: `{"x": (1,
            3, 224, 224)}`, with None for one that stays. A model with one input takes the shape
            alone.
        preprocess: Operators that make the data of an input of what is given, one text for each
            input. `"x:uint8,nhwc,bgr,mean=.485:.456:.406,std=.229:.224:.225,scale=1/255"` is (x *
            scale - mean) / std, with numbers in the order of the model's channels.

    Raises:
        ModelError: The file cannot be read, is not a model or exceeds `limits`, or torch cannot
            export the model.
        ParseError: IR text does not parse.
        UsageError: Arguments do not belong to the model.
    """
    if isinstance(model, str | Path):
        if (args, kwargs, dynamic_shapes, export) != (None,) * 4:
            raise UsageError(
                "args, kwargs, dynamic_shapes and export are for torch modules, not for files"
            )
        module = _load_file(model, limits, data, input_shapes, preprocess)
        module.files = _files_of(model, data)
        return module
    if isinstance(model, Module):
        others = (args, kwargs, dynamic_shapes, export, data)
        if others != (None,) * 5 or input_shapes or preprocess:
            raise UsageError(
                "args, kwargs, dynamic_shapes, export, data, input_shapes and preprocess are for"
                " models that are read, and this is a Module"
            )
        return model
    if isinstance(model, ModelProto):
        if (args, kwargs, dynamic_shapes, export, data) != (None,) * 5:
            raise UsageError(
                "args, kwargs, dynamic_shapes, export and data do not go with a ModelProto"
            )
        return from_model(model, limits=limits, input_shapes=input_shapes, preprocess=preprocess)
    if data is not None or input_shapes:
        raise UsageError(
            "data and input_shapes are for files: export a torch module with the shapes of its args"
        )
    if isinstance(model, bytes):
        raise UsageError(
            "bytes are not a model: onnx.load_from_string makes a ModelProto of them, which is one"
        )
    # The reader of torch takes 4 ms to import, 2 % of a small compile, and reads no file of ONNX.
    from .torch import from_torch, is_torch

    if not is_torch(model):
        raise UsageError(
            f"{type(model).__name__} is not a model: give a path, a ModelProto, a Module, a torch"
            " module or an ExportedProgram"
        )
    return from_torch(
        model,
        args,
        kwargs,
        dynamic_shapes=dynamic_shapes,
        export=export,
        limits=limits,
        preprocess=preprocess,
    )


def _load_file(
    path: str | Path,
    limits: Limits,
    data: str | Path | None,
    input_shapes: InputShapes | None,
    preprocess: Preprocess | None,
) -> Module:
    if is_text(path):
        if preprocess:
            raise UsageError(
                f"{path}: a preprocessing is inserted into ONNX models, and this is IR text:"
                " compile it to ONNX first"
            )
        # The parser of IR text compiles its grammar in 4 ms, 2 % of a small compile.
        from .text import load_text

        module = load_text(path, limits, data)
        if input_shapes:
            fix_module(module, input_shapes)
        return module
    if data is not None:
        raise UsageError(f"{data}: only an .irc MODEL has a data file, and {path} is not one")
    if str(path).endswith(".pt2"):
        from .torch import load_program  # 4 ms, as above

        if input_shapes:
            raise UsageError(
                f"{path}: the input shapes of an ExportedProgram are fixed: export it with others"
            )
        return load_program(path, limits, preprocess)
    return load_onnx(path, limits, input_shapes, preprocess)


def _files_of(path: str | Path, data: str | Path | None) -> list[Path]:
    """Return the model and the constants of IR text, no file for standard input."""
    if str(path) == "-":
        return []
    if not is_text(path):
        return [Path(path)]
    return [Path(path), arrays_path(Path(path)) if data is None else Path(data)]


__all__ = ["load"]
