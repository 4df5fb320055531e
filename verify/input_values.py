"""Elements of inputs that are made, of several kinds: booleans and integers are others in each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from ..ir.tensor import Array


def _border(rng: np.random.Generator, shape: Sequence[int]) -> Array:
    """Ones where an index is the first or last of an axis behind the channels, zeros elsewhere."""
    array = np.zeros(shape)
    for axis in range(2, len(shape)):
        for end in (slice(0, 1), slice(-1, None)):
            array[(slice(None),) * axis + (end,)] = 1.0
    return array if len(shape) > 2 else np.ones(shape)


KINDS: dict[str, Callable[[np.random.Generator, Sequence[int]], Array]] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "wide": lambda rng, shape: rng.standard_normal(shape) * 10.0 ** rng.uniform(-3, 2, shape),
    "equal": lambda rng, shape: np.ones(shape),
    "zero": lambda rng, shape: np.zeros(shape),
    "negative": lambda rng, shape: -np.abs(rng.standard_normal(shape)) - 0.1,
    "positive": lambda rng, shape: np.abs(rng.standard_normal(shape)) + 1.1,
    "border": _border,
}
"""Kinds of floating inputs, the most telling first."""

MOST_INDEX = 8
"""Integers below this are taken where nothing says what an index may be."""

MOST_NUMBER = 40_000
"""The greatest magnitude of integers of more than eight bits that are no index: it is beyond int16, its square is none
beyond int32, and float16 has it.
"""


class Draw:
    """The elements of the inputs of one set, which are asked for one after the other: `turn` is its number among those
    of the same seed. That of zeros has none, so that it takes nothing from the others.
    """

    def __init__(self, kind: str, turn: int, seed: int) -> None:
        self.kind = kind
        self.turn = turn
        self.seed = seed
        self.ranges = kind in ("wide", "negative")
        """Whether integers that are numbers alone take any of their type."""
        self.floats = np.random.default_rng(seed)
        self.number = 0
        self.single_booleans = 0

    @classmethod
    def of(cls, kind: str, kinds: Sequence[str], seed: int) -> Draw:
        """That of one of several kinds."""
        draw = cls(kind, [other for other in kinds if other != "zero"].index(kind) if kind != "zero" else 0, seed)
        draw.ranges |= kind == "normal" and "wide" not in kinds
        return draw

    def next(self, elem_type: int, shape: Sequence[int], limit: int | None) -> Array:
        """The next input; integers are at least zero and stay below `limit`, or are numbers alone where it is None."""
        self.number += 1
        if elem_type == TensorProto.STRING:
            return np.full(shape, "a", object)
        dtype = helper.tensor_dtype_to_np_dtype(elem_type)
        if dtype == np.bool_:
            return np.zeros(shape, bool) if self.kind == "zero" else self.booleans(shape)
        if dtype.kind in "iu":
            if limit is None and self.ranges:
                return self.numbers(shape, dtype)
            most = min(limit or MOST_INDEX, int(np.iinfo(dtype).max) + 1)
            return self.integers(shape, most).astype(dtype)
        return np.asarray(KINDS[self.kind](self.floats, shape)).astype(dtype)

    def booleans(self, shape: Sequence[int]) -> Array:
        """Every second turn takes the reverse of the one before, so that each element takes both values. Single ones
        are counted through: two of them take all four pairs of values in four turns.
        """
        pair, odd = divmod(self.turn, 2)
        if prod(shape) == 1:
            self.single_booleans += 1
            return np.full(shape, bool(odd) == (pair == self.single_booleans))
        return np.asarray(self.generator(pair).integers(0, 2, shape) != odd)

    def integers(self, shape: Sequence[int], most: int) -> Array:
        """Those of at least zero below `most`; single ones are another one every turn."""
        if self.kind in ("zero", "equal"):
            return np.full(shape, self.kind == "equal")
        if prod(shape) == 1:
            return np.asarray((self.generator(0).integers(0, most, shape) + self.turn) % most)
        return np.asarray(self.generator(self.turn).integers(0, most, shape))

    def numbers(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """Those of the whole range of eight bits; of wider types magnitudes over several decades. Both ends are among
        several, and signed ones are all negative where that is the kind.
        """
        rng, info = self.generator(self.turn), np.iinfo(dtype)
        low, high = max(int(info.min), -MOST_NUMBER), min(int(info.max), MOST_NUMBER)
        high = -1 if self.kind == "negative" and low < 0 else high
        if dtype.itemsize == 1:
            array = np.asarray(rng.integers(low, high + 1, shape))
        else:
            magnitudes = np.asarray(float(max(-low, high)) ** rng.uniform(0, 1, shape)) - (high > 0)
            signs = rng.choice([sign for sign, has in ((-1, low < 0), (1, high > 0)) if has], shape)
            array = np.asarray(np.clip(np.trunc(magnitudes) * signs, low, high))
        if array.size > 1:
            array.flat[0], array.flat[-1] = low, high
        return array.astype(dtype)

    def generator(self, turn: int) -> np.random.Generator:
        """That of the input in a turn."""
        return np.random.default_rng([self.seed, self.number, turn])
