"""Attribute values: immutable, and rich enough that an ONNX attribute can be written again from its value."""

from __future__ import annotations

from dataclasses import dataclass

from .tensor import Tensor
from .types import Type


@dataclass(frozen=True, slots=True)
class AttributeRef:
    """Inside a function body: the value of the function's attribute `name`; `kind` is ONNX's attribute type name."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class RegionRef:
    """The node's region number `index`, as the value of a graph attribute."""

    index: int


@dataclass(frozen=True, slots=True)
class EmptyList:
    """A list attribute without elements, which keeps its `kind` (`ints`, `floats`, `strings`, ...)."""

    kind: str


@dataclass(frozen=True, slots=True)
class SparseTensor:
    """A sparse payload: `values` [NNZ] at `indices` ([NNZ] linear or [NNZ, rank]) in a tensor of `shape`."""

    values: Tensor
    indices: Tensor
    shape: tuple[int, ...]


Scalar = int | float | str | bytes | Tensor | SparseTensor | Type | RegionRef
Attribute = Scalar | AttributeRef | EmptyList | tuple[Scalar, ...]
"""`str` is a UTF-8 string, `bytes` any other; tuples hold one kind of element."""
