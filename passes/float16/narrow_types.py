"""The types that float32 models are converted to."""

from __future__ import annotations

from ...ir.module import Module
from ...ir.types import BF16, F16, DType
from ...support.errors import ModelError, UsageError

NARROW: dict[str, DType] = {"float16": F16, "bfloat16": BF16}
"""The types by their names in options."""

NAMES = {dtype: name for name, dtype in NARROW.items()}

FIRST_BFLOAT16 = 13
"""The first opset of ONNX in which Cast makes bfloat16."""


def narrow_type_of(pass_name: str, dtype: str) -> DType:
    """Return the type of an option. Raises UsageError for an unknown one."""
    if dtype not in NARROW:
        raise UsageError(f"{pass_name}: option dtype has to be one of {', '.join(NARROW)}")
    return NARROW[dtype]


def opset_of(module: Module) -> int:
    """Return the opset of ONNX that a module imports."""
    return module.graph.opsets.get("", 1)


def check_opset(module: Module, dtype: DType) -> None:
    """Raise ModelError if ONNX has no Cast to a type in the opset of a module."""
    opset = opset_of(module)
    if dtype is BF16 and opset < FIRST_BFLOAT16:
        raise ModelError(
            f"opset {opset} has no bfloat16: convert the model to opset {FIRST_BFLOAT16} or newer,"
            " 22 for Conv and pools, or to float16"
        )
