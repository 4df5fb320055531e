"""Running a model for any of its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnxruntime
from onnx import ModelProto, ValueInfoProto

from ...ir.errors import VerifyError
from ..runtime import new_session
from .inputs import Feeds


class Runner:
    """Runs a model for any of its tensors, on onnxruntime without graph optimisations.

    The session of the tensors asked for last is kept.
    """

    def __init__(self, model: ModelProto, base_dir: Path) -> None:
        self.model = model
        self.base_dir = base_dir
        self._names: tuple[str, ...] = ()
        self._session: onnxruntime.InferenceSession | None = None

    def run(self, names: Sequence[str], feeds: Feeds) -> list[Any]:
        """The named tensors. Raises VerifyError where onnxruntime refuses the model, or fails."""
        if self._session is None or self._names != tuple(names):
            asked = ModelProto()
            asked.CopyFrom(self.model)
            del asked.graph.output[:]
            asked.graph.output.extend(ValueInfoProto(name=name) for name in names)
            try:
                session = new_session(asked, self.base_dir)
            except Exception as error:  # onnxruntime raises its own types, and RuntimeError
                raise VerifyError(f"onnxruntime cannot load the model: {first_line(error)}") from None
            self._names, self._session = tuple(names), session
        wanted = {entry.name for entry in self._session.get_inputs()}
        try:
            results: list[Any] = self._session.run(None, {k: array for k, array in feeds.items() if k in wanted})
        except Exception as error:  # as above
            raise VerifyError(f"onnxruntime cannot run the model: {first_line(error)}") from None
        return results


def first_line(error: Exception) -> str:
    """The first line of a message, shortened."""
    return str(error).strip().split("\n")[0][:300]


def tensors_of(model: ModelProto) -> list[str]:
    """Names of the results of nodes of the main graph, constants left out, in the model's order, and of its results."""
    made = (name for node in model.graph.node if node.op_type != "Constant" for name in node.output if name)
    return list(dict.fromkeys((*made, *(info.name for info in model.graph.output))))
