"""The reader of IR text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..ir.module import Module
from ..ir.tensor import Tensor
from ..ir.text import parser
from ..ir.verifier import verify
from ..support.errors import ModelError, VerifyError
from ..support.limits import DEFAULT_LIMITS, Limits
from ..support.output_paths import arrays_path
from .onnx.codec.tensor_archive import TensorArchive
from .onnx.onnx_operators import ONNX_OPERATORS
from .text_doubts import doubts


def parse(
    text: str,
    *,
    name: str = "<text>",
    data: Mapping[str, Tensor] | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Module:
    """Return the module that IR text describes. O(len(text)).

    Args:
        text: The text of a module.
        name: The name of the text in messages.
        data: The payloads that the text leaves out, by digest.
        limits: The greatest sizes that are read.

    Raises:
        ParseError: The text is not a module, or exceeds `limits`.
    """
    module = parser.parse(text, name=name, data=data, limits=limits)
    module.foreign = ONNX_OPERATORS
    return module


def load_text(
    path: str | Path, limits: Limits = DEFAULT_LIMITS, data: str | Path | None = None
) -> Module:
    """Parse the IR text in the file at `path`.

    The payloads that the text leaves out come from the file `data`, by default from the .npz file
    beside it, if there is one. Raises ModelError if a file cannot be read, exceeds `limits` or is
    not valid IR, or if `data` is given and lacks a payload; ParseError if the text does not parse.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ModelError(
            f"{path}: this is not IR text; the name of an ONNX file must not end with .irc"
        ) from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
    archive = TensorArchive(
        arrays_path(Path(path)) if data is None else Path(data), is_required=data is not None
    )
    module = parse(text, name=str(path), data=archive, limits=limits)
    module.payloads.extend(archive.parts)
    try:
        verify(module)
    except VerifyError as error:
        raise ModelError(f"{path}: {str(error).splitlines()[0]}") from None
    module.warnings.extend(f"{path}: {sentence}" for sentence in doubts(module))
    return module
