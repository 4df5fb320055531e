"""An independent float64 evaluator of ONNX models: the numerical oracle of the tests.

Every floating tensor (f16, bf16, f32, f64) is carried as float64, converted exactly from its own type and never
rounded in between; a cast from float to float keeps the value. Integers and booleans keep their own types.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx

from .interpreter import Interpreter, tensors_only
from .values import Tensor, UnsupportedOp

__all__ = ["UnsupportedOp", "evaluate", "evaluate_all"]


def evaluate(
    model: onnx.ModelProto, inputs: Mapping[str, Tensor], *, base_dir: Path | None = None
) -> dict[str, Tensor]:
    """The outputs of the model by name; outputs that are sequences or absent optionals are left out.

    Initializers stand in for inputs that are not given. `base_dir` is where external data lies. Raises
    `UnsupportedOp` when the evaluation reaches an operator it does not know.
    """
    return tensors_only(Interpreter(model, base_dir).evaluate(inputs, keep=False))


def evaluate_all(
    model: onnx.ModelProto, inputs: Mapping[str, Tensor], *, base_dir: Path | None = None
) -> dict[str, Tensor]:
    """Every tensor of the main graph by name: inputs, initializers, intermediate values and outputs."""
    return tensors_only(Interpreter(model, base_dir).evaluate(inputs, keep=True))
