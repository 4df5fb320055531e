"""Values of attributes: immutable, and enough to write every ONNX attribute as it was."""

from __future__ import annotations

from .record import ValueRecord
from .tensor import Tensor
from .types import DType, TensorType, Type, element_count


class AttributeRef(ValueRecord):
    """A reference in the body of a function to its attribute `name`.

    `kind` is the name of its type in ONNX.
    """

    name: str
    kind: str


class RegionRef(ValueRecord):
    """The value of a graph attribute: the region `index` of the node."""

    index: int


class EmptyList(ValueRecord):
    """An empty list of a `kind` (`ints`, `floats`, `strings`, ...)."""

    kind: str


class SparseTensor(ValueRecord):
    """A sparse payload: `values` [NNZ] at `indices` in a tensor of `shape`.

    The indices are [NNZ], linear, or [NNZ, rank].
    """

    values: Tensor
    indices: Tensor
    shape: tuple[int, ...]

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.values.dtype

    @property
    def type(self) -> TensorType:
        """The type of the tensor with all its elements."""
        return TensorType(self.dtype, self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of values and indices."""
        return self.values.nbytes + self.indices.nbytes

    @property
    def dense_nbytes(self) -> int:
        """Bytes of all elements."""
        return (element_count(self.shape) * self.dtype.bits + 7) // 8


Scalar = int | float | str | bytes | Tensor | SparseTensor | Type | RegionRef
Attribute = Scalar | AttributeRef | EmptyList | tuple[Scalar, ...]
"""A `str` is a UTF-8 string, `bytes` any other string. The elements of a tuple are of one kind."""
