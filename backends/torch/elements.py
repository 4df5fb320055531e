"""Weights and biases after the folds, bit-equal to the folded model.

They are computed from the original weight and the records of the map, as the passes computed them,
and held against the digests of the map; or they are read from the folded model.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...frontends.onnx.codec.onnx_types import export_dtype
from ...frontends.onnx.codec.protos import ModelProto, TensorProto
from ...frontends.onnx.codec.tensors import OnnxTensor
from ...ir.tensor import Array, dtype_from_numpy, round_to, scaled
from ...support.errors import FoldMapError
from ..foldmap.digests import tensor_digest
from ..foldmap.fold_map import FoldMap
from ..foldmap.inverse import OTHER_MODEL, belongs_to

if TYPE_CHECKING:
    from ..foldmap.entries import LayerEntry

NEEDS_MODEL = "its elements cannot be computed from the fold map alone: give the folded model"


class Unknown(Exception):
    """Raised for elements that cannot be told, with the reason."""


class Elements:
    """The elements of the layers of a fold map."""

    def __init__(self, fold_map: FoldMap, model: ModelProto | None) -> None:
        """Raise FoldMapError if the map belongs to another model."""
        if model is not None and not belongs_to(fold_map, model):
            raise FoldMapError(OTHER_MODEL)
        self.fold_map, self.model = fold_map, model
        restore = fold_map.data["restore"]
        self.recipes = {} if restore is None else restore["tensors"]
        self.edited = {layer for entry in fold_map.data["history"] for layer in entry["layers"]}
        graph = None if model is None else model.graph
        self.initializers = (
            {} if graph is None else {tensor.name: tensor for tensor in graph.initializer}
        )

    def of(
        self, layer: LayerEntry, weight: Array, bias: Array | None, *, group: int
    ) -> tuple[Array, Array | None]:
        """Return weight and bias after the folds, in the layout of the module.

        `weight` and `bias` are given as before the folds. Raises Unknown.
        """
        is_dense = weight.ndim == 2
        is_turned = is_dense and layer["weight"]["out_axis"] in (1, -1)
        plain = np.ascontiguousarray(weight.T) if is_turned else weight
        made = (
            self._read(layer["weight"]["name"])
            if self.model is not None
            else self._weight(layer, plain, group)
        )
        if made is None or made.shape != plain.shape or made.dtype != plain.dtype:
            raise Unknown(NEEDS_MODEL)
        new_bias = (
            self._read_bias(layer)
            if self.model is not None
            else self._bias(layer, plain, bias, group)
        )
        if new_bias is not None and new_bias.shape != (_out_channels(layer, plain, group),):
            raise Unknown("its bias is not one number a channel")
        return (np.ascontiguousarray(made.T) if is_turned else made), new_bias

    def _read(self, name: str) -> Array | None:
        tensor = self.initializers.get(name)
        return None if tensor is None else OnnxTensor(tensor, Path()).numpy()

    def _read_bias(self, layer: LayerEntry) -> Array | None:
        if layer["bias"] is not None:
            return self._read(layer["bias"]["name"])
        assert self.model is not None
        if layer["node"]["op_type"] != "MatMul":
            return None
        node = next(node for node in self.model.graph.node if node.name == layer["node"]["name"])
        readers = [other for other in self.model.graph.node if node.output[0] in other.input]
        if len(readers) == 1 and readers[0].op_type == "Add":
            constants = [self._read(name) for name in readers[0].input if name != node.output[0]]
            if constants and constants[0] is not None:
                return constants[0].reshape(-1)
        return None

    def _weight(self, layer: LayerEntry, weight: Array, group: int) -> Array | None:
        digest = layer["weight"]["digest"]
        if digest is None:
            return None
        original = _digest(weight)
        if f"xxh128:{original}" == digest:
            return weight
        recipe = self.recipes.get(original)
        dtype = dtype_from_numpy(weight.dtype)
        factors = [self._factor(layer, weight, group)]
        if recipe is not None and "factor" in recipe:
            factors.insert(0, self.fold_map.arrays.get(recipe["factor"]))
        for factor in factors:
            made = np.array(scaled(weight, np.asarray(factor, np.float64), dtype))
            if f"xxh128:{_digest(made)}" == digest:
                return made
        return None

    def _factor(self, layer: LayerEntry, weight: Array, group: int) -> Array:
        """Return the product of the scales of all folds, broadcast against the weight."""
        factor = np.ones((1,) * weight.ndim)
        for fold in layer["folds"]:
            scale = self.fold_map.arrays.get(fold["scale"])
            is_out = fold["direction"] == "backward"
            factor = factor * _along(layer, weight, scale, group, is_out=is_out)
        return factor

    def _bias(
        self, layer: LayerEntry, weight: Array, bias: Array | None, group: int
    ) -> Array | None:
        entry = layer["bias"]
        if entry is None:
            if layer["node"]["op_type"] == "MatMul":
                raise Unknown(NEEDS_MODEL)
            return None
        exact = (
            np.zeros(_out_channels(layer, weight, group))
            if bias is None
            else bias.astype(np.float64)
        )
        current = weight.astype(np.float64)
        for fold in layer["folds"]:
            scale, shift = (self.fold_map.arrays.get(fold[key]) for key in ("scale", "shift"))
            if fold["direction"] == "backward":
                exact = exact * scale + shift
                current = current * _along(layer, weight, scale, group, is_out=True)
            elif shift.any():
                if layer["node"]["op_type"] == "ConvTranspose":
                    raise Unknown(NEEDS_MODEL)
                terms = current * _along(layer, weight, shift, group, is_out=False)
                axis = layer["weight"]["out_axis"] % weight.ndim
                exact = exact + terms.sum(axis=tuple(i for i in range(weight.ndim) if i != axis))
                current = current * _along(layer, weight, scale, group, is_out=False)
            else:
                current = current * _along(layer, weight, scale, group, is_out=False)
        made = round_to(exact, dtype_from_numpy(weight.dtype))
        if layer["id"] in self.edited or f"xxh128:{_digest(made)}" != entry["digest"]:
            raise Unknown(NEEDS_MODEL)
        return made


def _out_channels(layer: LayerEntry, weight: Array, group: int) -> int:
    count = int(weight.shape[layer["weight"]["out_axis"] % weight.ndim])
    return count * group if layer["node"]["op_type"] == "ConvTranspose" else count


def _along(layer: LayerEntry, weight: Array, vector: Array, group: int, *, is_out: bool) -> Array:
    """Return numbers of channels in a shape that is broadcast against the weight.

    With `is_out` they are channels of the result, else of the data.
    """
    if vector.ndim == 0:
        return vector
    ones = (1,) * (weight.ndim - 2)
    axis = layer["weight"]["out_axis"] % weight.ndim
    if layer["node"]["op_type"] == "ConvTranspose":
        if not is_out:
            return vector.reshape(-1, 1, *ones)
        by_group = vector.reshape(group, 1, -1)
        return np.repeat(by_group, weight.shape[0] // group, axis=1).reshape(
            *weight.shape[:2], *ones
        )
    if is_out:
        return vector.reshape(tuple(-1 if i == axis else 1 for i in range(weight.ndim)))
    if group > 1:  # each group of results has data of its own
        rows = np.repeat(vector.reshape(group, -1), weight.shape[0] // group, axis=0)
        return rows.reshape(weight.shape[0], -1, *ones)
    return vector.reshape(tuple(1 if i != 1 - axis else -1 for i in range(weight.ndim)))


def _digest(array: Array) -> str:
    proto = TensorProto(data_type=export_dtype(dtype_from_numpy(array.dtype)), dims=array.shape)
    proto.raw_data = np.ascontiguousarray(array).tobytes()
    return tensor_digest(proto, Path())
