"""Inputs of a model made of what is given: arrays, pictures and sounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from onnx import ValueInfoProto, helper

from ...ir.tensor import Array
from ...support.errors import UsageError, VerifyError
from ...support.preprocessing import (
    LAYOUTS,
    Preprocessing,
    axis_order,
    channel_axis,
    parse_each,
)
from ..verify.inputs import Infos, declared_shape, is_known_elem_type
from .media import MODES, PICTURES, read_picture, read_sound


class DataPreparation:
    """Makes arrays for the inputs `infos` by the preprocessings in words."""

    def __init__(self, infos: Infos, preprocess: str | Sequence[str] = ()) -> None:
        """Read the words. Raises UsageError if they describe no preprocessing of an input."""
        self.infos = infos
        self.wanted = parse_each(preprocess, list(infos), pictures=True)

    def converted(self, name: str, array: Array) -> Array:
        """Return (x * scale - mean) / std in the layout and type of an input."""
        wanted = self.wanted.get(name)
        return array if wanted is None else self._converted(wanted, self.infos[name], array)

    def read(self, path: Path, name: str) -> Array:
        """Return the picture or the sound at `path` as one sample of an input.

        Raises VerifyError if the file cannot be read or does not fit, and UsageError if no
        preprocessing says how a picture becomes an input.
        """
        if path.suffix.lower() in PICTURES:
            return self._picture(path, name)
        return self._sound(path, name)

    def _converted(self, wanted: Preprocessing, info: ValueInfoProto, array: Array) -> Array:
        shape = declared_shape(info) or [None] * array.ndim
        rank = len(shape)
        if array.ndim != rank or (wanted.layout and LAYOUTS[wanted.layout][0] != rank):
            expected = f", and {wanted.layout}" if wanted.layout else ""
            raise VerifyError(
                f"the input {info.name!r} has {rank} axes, and the data {array.ndim}{expected}"
            )
        axis = 0
        if wanted.channels > 1 or wanted.reverses or wanted.layout:
            axis = channel_axis(shape, wanted)
        perm = axis_order(rank, axis, wanted.layout)
        if perm is not None:
            array = array.transpose(perm)
        if wanted.reverses:
            array = np.flip(array, axis)
        if not is_known_elem_type(info.type.tensor_type.elem_type):
            return array
        dtype = helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
        if wanted.is_shifted:
            array = self._shifted(wanted, array, axis, dtype)
        return np.ascontiguousarray(array.astype(dtype))

    def _shifted(
        self, wanted: Preprocessing, array: Array, axis: int, dtype: np.dtype[np.generic]
    ) -> Array:
        if dtype.kind in "iub":
            raise UsageError(
                f"input {wanted.name!r} is {dtype} in the model, which cannot hold (x * scale -"
                " mean) / std"
            )
        channels = {len(numbers) for numbers in (wanted.mean, wanted.std)} - {1}
        if channels and array.shape[axis] not in channels:
            raise VerifyError(
                f"the data of the input {wanted.name!r} have {array.shape[axis]} channels, and"
                f" there are numbers for {wanted.channels}"
            )
        ones = [1] * (array.ndim - 1 - axis)
        mean, std = (np.array(numbers).reshape(-1, *ones) for numbers in (wanted.mean, wanted.std))
        shifted: Array = (array.astype(np.float64) * wanted.scale - mean) / std
        return shifted

    def _picture(self, path: Path, name: str) -> Array:
        wanted, info = self.wanted.get(name), self.infos[name]
        if wanted is None:
            raise UsageError(
                f"{path}: a picture needs --preprocess, which says how it becomes an input:"
                " torchvision, tf, caffe, or scale=1/255"
            )
        shape = declared_shape(info)
        if shape is None or len(shape) not in (3, 4):
            raise VerifyError(f"{path}: the input {name!r} is not one for pictures")
        layout = "nhwc" if len(shape) == 4 else "hwc"
        wanted = replace(wanted, layout=layout)
        axis = channel_axis(shape, wanted)
        channels = shape[axis] or (3 if wanted.reverses or wanted.channels == 3 else None)
        if channels not in MODES:
            raise VerifyError(f"{path}: the input {name!r} has {channels or 'unknown'} channels")
        spatial = [extent for i, extent in enumerate(shape) if i != axis][len(shape) - 3 :]
        known = tuple(extent for extent in spatial if extent)
        sizes = wanted.resize
        if not sizes and not wanted.crop and len(known) == 2:
            sizes = known
        array = read_picture(path, channels, sizes, wanted.crop)
        for found, extent in zip(array.shape, spatial, strict=False):
            if extent is not None and found != extent:
                raise VerifyError(
                    f"{path}: the picture is {array.shape[0]} x {array.shape[1]}, and the model"
                    f" takes {spatial[0]} x {spatial[1]}: write crop={extent}"
                )
        return self._converted(wanted, info, array if layout == "hwc" else array[None])

    def _sound(self, path: Path, name: str) -> Array:
        """Return a sound of the length that the model takes: cut, or followed by zeros."""
        info = self.infos[name]
        shape, sound = declared_shape(info), read_sound(path)
        if shape is None or not 1 <= len(shape) <= 3:
            raise VerifyError(f"{path}: the input {name!r} is not one for sounds")
        channels = shape[1] if len(shape) == 3 else 1
        if channels == 1:
            sound = sound.mean(axis=0, keepdims=True)
        if channels not in (None, len(sound)):
            raise VerifyError(
                f"{path}: the sound has {len(sound)} channels, and the input {name!r} {channels}"
            )
        if shape[-1]:
            sound = sound[:, : shape[-1]]
            sound = np.pad(sound, ((0, 0), (0, shape[-1] - sound.shape[1])))
        array = sound[0] if len(shape) == 1 else sound
        array = array[None] if len(shape) == 3 else array
        dtype = helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
        if dtype.kind in "iub":
            raise VerifyError(f"{path}: the input {name!r} is {dtype}, and sounds are floats")
        wanted = self.wanted.get(name, Preprocessing(name))
        return self._converted(wanted, info, array)
