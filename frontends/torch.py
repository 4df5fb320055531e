"""The torch reader: modules and ExportedPrograms, by torch's own ONNX exporter, in memory.

torch is imported here and in `irc.backends.torch` only, and never required. The exporter is run
without its optimizer, which would fold BatchNormalization and lose its statistics. Large parameters
are not copied: the module shares their memory with torch, so they must not be changed before the
result is saved.
"""

from __future__ import annotations

import io
import linecache
import logging
import re
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..ir.module import Module
from ..ir.tensor import ArrayTensor, numpy_dtype
from ..ir.types import BF16
from ..support.errors import ModelError, UsageError
from ..support.extras import install
from ..support.limits import DEFAULT_LIMITS, Limits
from .onnx import from_model
from .onnx.codec.protos import ModelProto
from .onnx.codec.streaming import make_placeholder

if TYPE_CHECKING:
    from .onnx.input_preprocessing import Preprocess

SHARED_BYTES = 1 << 13
"""Parameters of at least this many bytes share their memory with torch."""

INSTALL = f"torch is not installed: {install('torch')}"

EVAL = (
    "call eval() on the model first, so that BatchNormalization uses its running statistics and"
    " Dropout does nothing"
)

DYNAMO = {"optimize": False, "verbose": False}
TORCHSCRIPT = {"do_constant_folding": False}
"""Keyword arguments of torch.onnx.export, for its two exporters."""

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)\n\s*(.*)')
_SCRIPT_FRAME = re.compile(r"^(\S+)\((\d+)\): (\w+)$", re.MULTILINE)
_MAX_REASON = 300


class SharedTensor(ArrayTensor):
    """A tensor whose elements belong to torch, as a payload that placeholders can refer to."""

    __slots__ = ("__weakref__",)


def is_torch(model: object) -> bool:
    """Return whether `model` is a torch module or an ExportedProgram, without importing torch."""
    torch: Any = sys.modules.get("torch")
    if not hasattr(torch, "nn"):
        return False
    return isinstance(model, torch.nn.Module | torch.export.ExportedProgram)


def from_torch(
    model: Any,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    export: Mapping[str, Any] | None = None,
    limits: Limits = DEFAULT_LIMITS,
    preprocess: Preprocess | None = None,
) -> Module:
    """Export a torch module or ExportedProgram to ONNX in memory, and import that.

    `args` and `kwargs` are example inputs, which an ExportedProgram does not need; `dynamic_shapes`
    goes to torch.export. `export` are other keyword arguments of torch.onnx.export, for example
    `{"dynamo": False}` for the exporter by TorchScript; `preprocess` is as in `irc.load`. Raises
    ModelError if the module is in train() mode or cannot be exported, and UsageError for arguments
    that contradict each other.
    """
    import torch

    is_program = isinstance(model, torch.export.ExportedProgram)
    options = dict(export or {})
    dynamo = options.pop("dynamo", True)
    if args is None and kwargs is None and not is_program:
        raise UsageError("a torch module needs example inputs: args=(x,)")
    if not dynamo and (is_program or dynamic_shapes is not None):
        raise UsageError(
            "the exporter by TorchScript takes modules, and export={'dynamic_axes': ...} for"
            " dynamic shapes"
        )
    if isinstance(args, torch.Tensor):
        raise UsageError("args is a tuple of inputs: args=(x,)")
    _check_inference(model, is_program=is_program)
    inputs = () if args is None else tuple(args)
    shared: list[SharedTensor] = []
    with _explaining() as doubts, torch.no_grad():
        if dynamo:
            options = {**DYNAMO, **options, "dynamic_shapes": dynamic_shapes}
            program = torch.onnx.export(model, inputs, kwargs=kwargs, dynamo=True, **options)
            proto, shared = _proto_of(program)
        else:
            # not EVAL, which would fold BatchNormalization
            options = {**TORCHSCRIPT, "training": torch.onnx.TrainingMode.PRESERVE, **options}
            file = io.BytesIO()
            torch.onnx.export(model, inputs, file, kwargs=kwargs, dynamo=False, **options)
            proto = ModelProto()
            proto.ParseFromString(file.getvalue())
    module = from_model(proto, limits=limits, preprocess=preprocess)
    module.payloads.extend(shared)
    module.warnings.extend(doubts)
    return module


def load_program(
    path: str | Path, limits: Limits = DEFAULT_LIMITS, preprocess: Preprocess | None = None
) -> Module:
    """Import an ExportedProgram that torch.export.save wrote.

    Raises ModelError if it cannot be read or exported.
    """
    try:
        import torch
    except ImportError:
        raise ModelError(f"{path}: {INSTALL}") from None
    try:
        with _quietly():
            program = torch.export.load(path)
    except FileNotFoundError:
        raise ModelError(f"{path}: there is no such file") from None
    except Exception as error:
        raise ModelError(
            f"{path}: torch cannot read this as an ExportedProgram: {_reason(error)}"
        ) from None
    try:
        return from_torch(program, limits=limits, preprocess=preprocess)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None


def load_state(path: str | Path) -> Any:
    """Return a checkpoint that torch.save wrote, with arrays for tensors.

    It has nothing but tensors, numbers, texts and their containers. Raises ModelError if the file
    cannot be read, or has anything else in it, such as a whole module.
    """
    try:
        import torch
    except ImportError:
        raise ModelError(f"{path}: {INSTALL}") from None
    try:
        with _quietly():
            return _arrays_of(torch.load(path, map_location="cpu", weights_only=True))
    except FileNotFoundError:
        raise ModelError(f"{path}: there is no such file") from None
    except Exception as error:
        if type(error).__name__ == "UnpicklingError":
            raise ModelError(
                f"{path}: it holds more than tensors: save model.state_dict()"
            ) from None
        raise ModelError(
            f"{path}: torch cannot read this as a checkpoint: {_reason(error)}"
        ) from None


def _arrays_of(loaded: Any) -> Any:
    import torch

    if isinstance(loaded, Mapping):
        return {key: _arrays_of(each) for key, each in loaded.items()}
    if not isinstance(loaded, torch.Tensor):
        return loaded
    if loaded.dtype == torch.bfloat16:
        return loaded.view(torch.uint16).numpy(force=True).view(numpy_dtype(BF16))
    try:
        return loaded.numpy(force=True)
    except TypeError:  # a type that numpy has not
        return None


def _check_inference(model: Any, *, is_program: bool) -> None:
    """Raise ModelError if a module, or an operator of a program, behaves as in training."""
    if not is_program:
        training = next((path for path, inner in model.named_modules() if inner.training), None)
        if training is not None:
            subject = f"its module {training!r}" if training else "the model"
            raise ModelError(f"{subject} is in train() mode: {EVAL}")
        return
    for node in model.graph.nodes:
        operator = str(node.target)
        at = {"aten.batch_norm.default": 5, "aten.dropout.default": 2}.get(operator)
        if at is not None and len(node.args) > at and node.args[at] is True:
            raise ModelError(
                f"the program was exported in train() mode ({operator}): {EVAL}, and export it"
                " again"
            )


def _proto_of(program: Any) -> tuple[ModelProto, list[SharedTensor]]:
    """Return the model of an ONNXProgram, and the tensors that its placeholders stand for."""
    initializers = program.model.graph.initializers
    values = dict(initializers)
    initializers.clear()  # they would be copied
    try:
        proto = ModelProto()
        proto.ParseFromString(program.model_proto.SerializeToString())
    finally:
        initializers.update(values)
    shared: list[SharedTensor] = []
    for name, value in values.items():
        tensor, made = value.const_value, proto.graph.initializer.add()
        made.name, made.data_type = name, int(tensor.dtype)
        made.dims.extend(int(extent) for extent in tensor.shape)
        if tensor.nbytes < SHARED_BYTES:
            made.raw_data = tensor.tobytes()
            continue
        shared.append(SharedTensor(tensor.numpy()))
        made.raw_data = make_placeholder(shared[-1])
    return proto, shared


@contextmanager
def _quietly() -> Iterator[list[str]]:
    """Silence log and output of torch; yield a list for its warnings that a trace may be wrong."""
    import torch

    found: list[str] = []
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    output = ExitStack()
    try:
        with output:
            caught = output.enter_context(warnings.catch_warnings(record=True))
            warnings.simplefilter("always")
            output.enter_context(
                redirect_stderr(output.enter_context(redirect_stdout(io.StringIO())))
            )
            yield found
    finally:
        logging.disable(disabled)
    found += [
        f"{w.filename}:{w.lineno}: {w.message}"
        for w in caught
        if issubclass(w.category, torch.jit.TracerWarning)
    ]


@contextmanager
def _explaining() -> Iterator[list[str]]:
    """Make a ModelError of one sentence of an error of the exporter; yield as `_quietly`."""
    try:
        with _quietly() as found:
            yield found
    except Exception as error:
        raise ModelError(
            f"torch cannot export the model{_where(error)}: {_reason(error)}"
        ) from None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _reason(error: BaseException) -> str:
    """Return the first sentence of the error that caused all others."""
    *_, first = _chain(error)
    lines = [line.strip() for line in str(first).splitlines() if line.strip()]
    line = lines[0] if lines else type(first).__name__
    return line if len(line) <= _MAX_REASON else f"{line[:_MAX_REASON]}…"


def _where(error: BaseException) -> str:
    """Return the operator that failed and the line of the user's code, as far as they are known."""
    import torch

    operator, trace = "", ""
    frames: list[tuple[str, str, str, str]] = []
    for each in _chain(error):
        for frame, _ in traceback.walk_tb(each.__traceback__):
            for value in frame.f_locals.values():
                if isinstance(value, torch.fx.Node) and value.op == "call_function":
                    operator, trace = str(value.target), value.meta.get("stack_trace") or ""
                elif isinstance(value, torch._C.Node):
                    operator, trace = value.kind(), value.sourceRange()
        frames += [
            (f.filename, str(f.lineno), f.name, f.line or "")
            for f in traceback.extract_tb(each.__traceback__)
        ]
        frames += _FRAME.findall(str(each))
    frames += [
        (*found, linecache.getline(found[0], int(found[1])))
        for found in _SCRIPT_FRAME.findall(trace)[::-1]
    ]
    frames += _FRAME.findall(trace)
    subject = f" at {operator}" if operator else ""
    own = [frame for frame in frames if _is_users(frame[0])]
    if not own:
        return subject
    file, number, function, line = own[-1]
    return f"{subject}, {file}:{number} in {function} ({line.strip()})"


def _is_users(file: str) -> bool:
    """Return whether a file belongs neither to Python and its packages nor to this module."""
    path = Path(file).absolute()
    installed = any(
        Path(place) in path.parents for place in {sys.prefix, sys.base_prefix, sys.exec_prefix}
    )
    return path.exists() and not installed and not path.samefile(__file__)
