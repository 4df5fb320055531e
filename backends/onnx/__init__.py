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
from ...ir.graph import Module, Value
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
        self.model, self._layers, self._names = emit_model(module)

    @cached_property
    def fold_map(self) -> FoldMap:
        """What became of every affine of the source model."""
        return build_fold_map(self.module, self.model, self._layers, self._names.of)

    def _fold_map_to_write(self) -> FoldMap:
        """The fold map, which need not stay in memory where nobody has asked for it."""
        if "fold_map" in self.__dict__:
            return self.fold_map
        return build_fold_map(self.module, self.model, self._layers, self._names.of, to_write=True)

    def count(self) -> Counter[str]:
        """Affines of the source by status, as `FoldMap.count` has them, without building the fold map."""
        found = statuses(self.module, numbered_layers(self.module, self._layers))
        return count_statuses((became.status, became.reason) for became in found.values())

    @property
    def operators(self) -> int:
        """Number of nodes in the model, in all graphs and functions, Constant nodes not counted."""
        return sum(node.op_type != "Constant" for node in all_nodes(self.model))

    def name_of(self, value: Value) -> str:
        """The name under which a value of the module stands in the model."""
        return self._names.of(value)

    def save(
        self,
        path: str | Path,
        *,
        fold_map: str | Path | None = None,
        fold_map_store: str = "npz",
        embed_fold_map: bool = False,
    ) -> None:
        """Write the model, and the fold map where a path is given, with its arrays as in `FoldMap.save`;
        each file is complete or not there. `-` is standard output. With `embed_fold_map` the map stands in the model's
        metadata too.

        Raises EmitError where a file cannot be written, or the model is larger than protobuf's 2 GiB; FoldMapError as
        `FoldMap.save`; ModelError where external data of the source cannot be read.
        """
        contents = {} if fold_map is None else self._fold_map_to_write().files(Path(fold_map), fold_map_store)
        model = self.model
        if embed_fold_map:
            model = copied(model)
            self._fold_map_to_write().embed(model)
        with ExitStack() as files:
            for place, content in contents.items():
                files.enter_context(replacing(place)).write_bytes(content)
            save_model(model, path, self.module.base_dir)


def save_model(model: ModelProto, path: str | Path, base_dir: Path) -> None:
    """Write `model`, whose external data stand below `base_dir`, to a file, which is complete or not there; `-` is
    standard output.

    Raises EmitError where a file cannot be written, or the model is larger than protobuf's 2 GiB; ModelError where
    external data cannot be read.
    """
    if str(path) == "-":
        sys.stdout.buffer.write(_serialized(model, "standard output"))
        return
    with replacing(Path(path)) as target:
        target.write_bytes(_serialized(place_external_data(model, base_dir, Path(path)), str(path)))


def _serialized(model: ModelProto, name: str) -> bytes:
    try:
        return model.SerializeToString(deterministic=True)
    except EncodeError:
        raise EmitError(f"{name}: the model is larger than the 2 GiB that one ONNX file can hold") from None


def copied(model: ModelProto) -> ModelProto:
    """A copy of `model` whose fields can be changed."""
    copy = ModelProto()
    copy.CopyFrom(model)
    return copy


def emit(module: Module) -> Result:
    """Express `module` in ONNX.

    The module is not changed. Raises EmitError where it cannot be expressed.
    """
    return Result(module)


__all__ = ["Result", "emit", "save_model"]
