"""Compute digests and restore recipes of large tensors while their elements are being written."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from xxhash import xxh3_128

from ...frontends.onnx.codec.protos import TensorProto
from ...frontends.onnx.codec.tensors import OnnxTensor
from ...ir.payload import Block, Payload, byte_view
from ...ir.tensor import ScaledTensor
from .arrays import ArrayStore
from .residual import ResidualEncoder

if TYPE_CHECKING:
    from .entries import RecipeEntry


class PayloadObserver:
    """Digests of the payloads that were read, and recipes to restore weights that were multiplied.

    `recipes` has the recipes by digest of the original weight, `arrays` the arrays that they refer
    to.
    """

    def __init__(self, arrays: ArrayStore | None = None) -> None:
        self.arrays = arrays if arrays is not None else ArrayStore()
        self.recipes: dict[str, RecipeEntry] = {}
        self._hashers: dict[Payload, xxh3_128] = {}

    def observe(self, payload: Payload) -> Iterator[Block]:
        """Yield the blocks of `payload`; each block is read after the caller has used it."""
        if payload in self._hashers:
            yield from payload.blocks()
        elif isinstance(payload, ScaledTensor) and isinstance(payload.base, OnnxTensor):
            yield from self._observe_scaled(payload, payload.base)
        else:
            hasher = xxh3_128()
            for block in payload.blocks():
                yield block
                hasher.update(byte_view(block))
            self._hashers[payload] = hasher

    def _observe_scaled(self, payload: ScaledTensor, base: OnnxTensor) -> Iterator[Block]:
        before, after = xxh3_128(), xxh3_128()
        encoder = ResidualEncoder(payload.dtype, len(payload.shape), payload.factor)
        for original, made in payload.pairs():
            yield made
            before.update(byte_view(original))
            after.update(byte_view(made))
            encoder.add(original, made)
        self._hashers[payload] = after
        if base.payload is not None:
            self._hashers[base.payload] = before
        name, made_name = (finish_digest(hasher, base.proto) for hasher in (before, after))
        arrays = encoder.arrays() if name not in self.recipes else None
        if arrays is not None:
            entries = {
                key: self.arrays.add(f"restore.{name}.{key}", array)
                for key, array in arrays.items()
            }
            self.recipes[name] = cast("RecipeEntry", {"base": made_name, **entries})

    def measure(self, payload: Payload) -> None:
        """Read `payload` unless it was read before."""
        if payload not in self._hashers:
            for _ in self.observe(payload):
                pass

    def digest(self, payload: Payload, proto: TensorProto) -> str:
        """Return the digest of the tensor `proto`, whose elements are `payload`."""
        self.measure(payload)
        return finish_digest(self._hashers[payload], proto)


def finish_digest(hasher: xxh3_128, proto: TensorProto) -> str:
    """Return the digest of a tensor whose elements `hasher` has seen.

    Element type and shape come last.
    """
    whole = hasher.copy()
    whole.update(type_bytes(proto.data_type, tuple(proto.dims[:])))
    return whole.hexdigest()


@lru_cache(1024)
def type_bytes(data_type: int, dims: tuple[int, ...]) -> bytes:
    """Return element type and shape in the form in which they enter a digest."""
    return f"{data_type}{dims}".encode()
