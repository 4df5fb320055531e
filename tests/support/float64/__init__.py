"""An independent float64 evaluator of ONNX models: the numerical oracle of the tests.

Every floating tensor (f16, bf16, f32, f64) is carried as float64, converted exactly from its own
type and never rounded in between; a cast from float to float keeps the value. Integers and booleans
keep their own types.

Where onnxruntime departs from the standard, this keeps to the standard: SAME padding of a dilated
pool counts the dilation, SAME padding of a ConvTranspose gives size * stride even if the stride
exceeds the kernel, and tf_crop_and_resize crops axes of scale 1 and counts the region of interest
in the output size. BatchNormalization of one output is inference even where opset 1 and 6 say
`is_test` 0. Gelu's constants are exact, not float32.
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
    """The outputs of the model by name, without sequences and absent optionals.

    Initializers stand in for inputs that are not given. `base_dir` is where external data lies.
    Raises `UnsupportedOp` when the evaluation reaches an operator it does not know.
    """
    return tensors_only(Interpreter(model, base_dir).evaluate(inputs, keep=False))


def evaluate_all(
    model: onnx.ModelProto, inputs: Mapping[str, Tensor], *, base_dir: Path | None = None
) -> dict[str, Tensor]:
    """Every tensor of the main graph by name: inputs, initializers, results and outputs."""
    return tensors_only(Interpreter(model, base_dir).evaluate(inputs, keep=True))
