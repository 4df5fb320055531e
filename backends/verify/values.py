"""Elements of inputs that are made, of several kinds: booleans and integers are others in each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np
from onnx import TensorProto, helper

from ...ir.tensor import Array


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


class Draw:
    """The elements of the inputs of one set, which are asked for one after the other: `turn` is its number among those
    of the same seed. That of zeros has none, so that it takes nothing from the others.
    """

    def __init__(self, kind: str, turn: int, seed: int) -> None:
        self.kind = kind
        self.turn = turn
        self.seed = seed
        self.floats = np.random.default_rng(seed)
        self.number = 0
        self.single_booleans = 0

    @classmethod
    def of(cls, kind: str, kinds: Sequence[str], seed: int) -> Draw:
        """That of one of several kinds."""
        return cls(kind, [other for other in kinds if other != "zero"].index(kind) if kind != "zero" else 0, seed)

    def next(self, elem_type: int, shape: Sequence[int], limit: int) -> Array:
        """The next input; integers stay below `limit`."""
        self.number += 1
        if elem_type == TensorProto.STRING:
            return np.full(shape, "a", object)
        dtype = helper.tensor_dtype_to_np_dtype(elem_type)
        if dtype == np.bool_:
            return np.zeros(shape, bool) if self.kind == "zero" else self.booleans(shape)
        if dtype.kind in "iu":
            most = min(limit, int(np.iinfo(dtype).max) + 1)
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

    def generator(self, turn: int) -> np.random.Generator:
        """That of the input in a turn."""
        return np.random.default_rng([self.seed, self.number, turn])
