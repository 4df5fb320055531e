"""The ONNX backend: `emit` and its `Result`."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path

from google.protobuf.message import EncodeError
from onnx import ModelProto

from ...frontends.onnx.external import all_nodes
from ...ir.errors import EmitError
from ...ir.graph import Module
from ..files import replacing
from ..foldmap import FoldMap, build_fold_map, count_statuses, numbered_layers, statuses
from .emitter import emit_model
from .external import place_external_data


class Result:
    """What a compile leaves: `model`, and `fold_map`, which is built when first asked for.

    `warnings` has what the passes had to say. The model may share messages with the source; do not change it in place.
    """

    def __init__(self, module: Module, warnings: list[str] | None = None) -> None:
        self.module = module
        self.warnings = warnings if warnings is not None else []
        self.model, self._layers = emit_model(module)

    @cached_property
    def fold_map(self) -> FoldMap:
        """What became of every affine of the source model."""
        return build_fold_map(self.module, self.model, self._layers)

    def count(self) -> Counter[str]:
        """Affines of the source by status, as `FoldMap.count` has them, without building the fold map."""
        found = statuses(self.module, numbered_layers(self.module, self._layers))
        return count_statuses((became.status, became.reason) for became in found.values())

    @property
    def operators(self) -> int:
        """Number of nodes in the model, in all graphs and functions, Constant nodes not counted."""
        return sum(node.op_type != "Constant" for node in all_nodes(self.model))

    def save(self, path: str | Path, *, fold_map: str | Path | None = None) -> None:
        """Write the model, and the fold map where a path is given; each file is complete or not there. `-` is standard
        output.

        Raises EmitError where a file cannot be written, or the model is larger than protobuf's 2 GiB.
        """
        map_data = b"" if fold_map is None else self.fold_map.to_json().encode()
        with ExitStack() as files:
            if fold_map is not None:
                files.enter_context(replacing(Path(fold_map))).write_bytes(map_data)
            if str(path) == "-":
                sys.stdout.buffer.write(self.serialized(self.model, "standard output"))
                return
            target = files.enter_context(replacing(Path(path)))
            model = place_external_data(self.model, self.module.base_dir, Path(path))
            target.write_bytes(self.serialized(model, str(path)))

    @staticmethod
    def serialized(model: ModelProto, name: str) -> bytes:
        """The bytes of `model`; raises EmitError, with the file's `name`, where it is too large for protobuf."""
        try:
            return model.SerializeToString(deterministic=True)
        except EncodeError:
            raise EmitError(f"{name}: the model is larger than the 2 GiB that one ONNX file can hold") from None


def emit(module: Module) -> Result:
    """Express `module` in ONNX.

    The module is not changed. Raises EmitError where it cannot be expressed.
    """
    return Result(module)


__all__ = ["Result", "emit"]
