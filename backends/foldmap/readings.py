"""What a fold map has to know of large tensors, found out while their elements go by."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from xxhash import xxh3_128

from ...codec.protos import TensorProto
from ...codec.tensors import OnnxTensor
from ...ir.payload import Block, Payload, raw
from ...ir.tensor import ScaledTensor
from .arrays import Arrays
from .residual import Residual


class Readings:
    """Digests of the payloads that were gone through, and the way back from weights that were multiplied.

    `arrays` gets what the way back needs; `recipes` has it by digest of the original.
    """

    def __init__(self, arrays: Arrays | None = None) -> None:
        self.arrays = arrays if arrays is not None else Arrays()
        self.recipes: dict[str, dict[str, Any]] = {}
        self._known: dict[Payload, xxh3_128] = {}

    def through(self, payload: Payload) -> Iterator[Block]:
        """The blocks of `payload`, which are looked at when they were used."""
        if payload in self._known:
            yield from payload.blocks()
        elif isinstance(payload, ScaledTensor) and isinstance(payload.base, OnnxTensor):
            yield from self._scaled(payload, payload.base)
        else:
            hasher = xxh3_128()
            for block in payload.blocks():
                yield block
                hasher.update(raw(block))
            self._known[payload] = hasher

    def _scaled(self, payload: ScaledTensor, base: OnnxTensor) -> Iterator[Block]:
        before, after = xxh3_128(), xxh3_128()
        residual = Residual(payload.dtype, len(payload.shape), payload.factor)
        for original, made in payload.pairs():
            yield made
            before.update(raw(original))
            after.update(raw(made))
            residual.add(original, made)
        self._known[payload] = after
        if base.payload is not None:
            self._known[base.payload] = before
        name, made_name = (finished(hasher, base.proto) for hasher in (before, after))
        arrays = residual.arrays() if name not in self.recipes else None
        if arrays is not None:
            entries = {key: self.arrays.add(f"restore.{name}.{key}", array) for key, array in arrays.items()}
            self.recipes[name] = {"base": made_name, **entries}

    def measure(self, payload: Payload) -> None:
        """Go through `payload`, if that was not done yet."""
        if payload not in self._known:
            for _ in self.through(payload):
                pass

    def digest(self, payload: Payload, proto: TensorProto) -> str:
        """The digest of a tensor whose elements are `payload`."""
        self.measure(payload)
        return finished(self._known[payload], proto)


def finished(hasher: xxh3_128, proto: TensorProto) -> str:
    """The digest of a tensor, whose elements `hasher` has seen: its element type and shape come last."""
    whole = hasher.copy()
    whole.update(type_text(proto.data_type, tuple(proto.dims)))
    return whole.hexdigest()


@lru_cache(1024)
def type_text(data_type: int, dims: tuple[int, ...]) -> bytes:
    """Element type and shape as they count in a digest."""
    return f"{data_type}{dims}".encode()
