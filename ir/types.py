"""Types of values: element types, tensor shapes, and the containers of ONNX."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from .extents import Formula, quote, symbol_text
from .record import ValueRecord

Dim = int | str | Formula | None
"""An extent: a number, a symbol, a formula of symbols, or None if it is unknown.

A symbol is the same number wherever it occurs.
"""

Shape = tuple[Dim, ...] | None
"""Extents from the outermost axis on, None if the rank is unknown."""

ELEMENT_COUNT_LIMIT = 1 << 63
"""No tensor has this many elements: ONNX stores extents in 64 bits with a sign."""

MAX_RANK = 64
"""The greatest rank of a numpy array."""


class DType(ValueRecord):
    """An element type: `name` as in IR text (`f32`), `bits` per element and a `kind`.

    Kinds are `float`, `int` and the like.
    """

    name: str
    bits: int
    kind: str

    def __str__(self) -> str:
        return self.name

    @property
    def is_float(self) -> bool:
        """Whether affines can be folded in this type: f16, bf16, f32 or f64."""
        return self.name in ("f16", "bf16", "f32", "f64")


def _dtypes() -> dict[str, DType]:
    rows = [
        ("float", "f16 16, bf16 16, f32 32, f64 64"),
        (
            "float8",
            (
                "f8e4m3fn 8, f8e4m3fnuz 8, f8e5m2 8, f8e5m2fnuz 8, f8e8m0 8, f4e2m1 4, f6e2m3 6,"
                " f6e3m2 6"
            ),
        ),
        ("int", "i2 2, i4 4, i8 8, i16 16, i32 32, i64 64"),
        ("uint", "u2 2, u4 4, u8 8, u16 16, u32 32, u64 64"),
        ("complex", "c64 64, c128 128"),
        ("bool", "bool 8"),
        ("string", "str 0"),
    ]
    table: dict[str, DType] = {}
    for kind, names in rows:
        for item in names.split(", "):
            name, bits = item.split()
            table[name] = DType(name, int(bits), kind)
    return table


DTYPES = _dtypes()
"""Every element type by its name in IR text."""

F16, BF16, F32, F64 = (DTYPES[name] for name in ("f16", "bf16", "f32", "f64"))
I64, BOOL = DTYPES["i64"], DTYPES["bool"]


class Type(ValueRecord):
    """Base of all value types; an instance of it is the unknown type (`?` in text)."""

    def __str__(self) -> str:
        return "?"


UNKNOWN = Type()


def dim_text(dim: Dim) -> str:
    """Return an extent as IR text: `8`, `N`, `"odd symbol"`, `add(N,1)` or `?`."""
    if dim is None:
        return "?"
    return symbol_text(dim) if isinstance(dim, str) else str(dim)


class TensorType(Type):
    """A dense tensor: `f32[N,3,8]`; `f32[*]` has unknown rank, `?[3]` an unknown element type."""

    dtype: DType | None = None
    shape: Shape = None

    def __str__(self) -> str:
        dims = "*" if self.shape is None else ",".join(map(dim_text, self.shape))
        return f"{self.dtype or '?'}[{dims}]"

    @property
    def rank(self) -> int | None:
        """Number of axes, None if it is unknown."""
        return None if self.shape is None else len(self.shape)


class SparseTensorType(Type):
    """A sparse tensor: `sparse<f32[3,4]>`."""

    dtype: DType | None = None
    shape: Shape = None

    def __str__(self) -> str:
        return f"sparse<{TensorType(self.dtype, self.shape)}>"


class SequenceType(Type):
    """A sequence: `seq<f32[*]>`."""

    element: Type = UNKNOWN

    def __str__(self) -> str:
        return f"seq<{self.element}>"


class OptionalType(Type):
    """An optional: `optional<f32[*]>`."""

    element: Type = UNKNOWN

    def __str__(self) -> str:
        return f"optional<{self.element}>"


class MapType(Type):
    """A map from integers or strings: `map<i64,f32[*]>`."""

    key: DType | None = None
    value: Type = UNKNOWN

    def __str__(self) -> str:
        return f"map<{self.key or '?'},{self.value}>"


class OpaqueType(Type):
    """A type of which only the name is known: `opaque<"domain","name">`."""

    domain: str = ""
    name: str = ""

    def __str__(self) -> str:
        return f"opaque<{quote(self.domain)},{quote(self.name)}>"


def element_count(extents: Iterable[int]) -> int:
    """Return the product of extents, at most ELEMENT_COUNT_LIMIT.

    It is computed in bounded time and memory for any list of extents that a hostile model declares.
    """
    dims = tuple(extents)
    if len(dims) <= MAX_RANK:
        return min(prod(dims), ELEMENT_COUNT_LIMIT)
    if 0 in dims:
        return 0
    count = 1
    for dim in dims:
        count *= dim
        if abs(count) >= ELEMENT_COUNT_LIMIT:
            return ELEMENT_COUNT_LIMIT
    return count


def dtype_of(type_: Type) -> DType | None:
    """Return the element type of a tensor type, None for other types."""
    return type_.dtype if isinstance(type_, TensorType) else None


def have_unknown_dtype(types: Iterable[Type]) -> bool:
    """Return whether one of `types` is a tensor with an element type that irc does not know."""
    for type_ in types:
        dtype = type_.dtype if isinstance(type_, TensorType) else None
        if dtype is not None and dtype.kind == "unknown":
            return True
    return False


def shape_of(type_: Type) -> Shape:
    """Return the shape of a tensor type, None for other types and for unknown ranks.

    A rank above MAX_RANK counts as unknown.
    """
    shape = type_.shape if isinstance(type_, TensorType) else None
    return shape if shape is None or len(shape) <= MAX_RANK else None


def static_dims(dims: Shape) -> tuple[int, ...] | None:
    """Return extents that are all numbers, else None."""
    if dims is None:
        return None
    numbers = tuple([dim for dim in dims if isinstance(dim, int)])
    return numbers if len(numbers) == len(dims) else None


def static_shape_of(type_: Type) -> tuple[int, ...] | None:
    """Return the shape of a tensor type, None unless all extents are numbers."""
    return static_dims(shape_of(type_))


_ONLY_NUMBERS = frozenset((int,))
"""The types of the extents of a shape that are all numbers."""


def is_static(type_: Type) -> bool:
    """Return whether a type is a tensor whose extents are all numbers."""
    shape = type_.shape if isinstance(type_, TensorType) else None
    return shape is not None and _ONLY_NUMBERS.issuperset(map(type, shape))


def without_shapes(type_: Type) -> Type:
    """Return `type_` with the shapes of all tensors in it unknown."""
    match type_:
        case TensorType(dtype, _):
            return TensorType(dtype, None)
        case SparseTensorType(dtype, _):
            return SparseTensorType(dtype, None)
        case SequenceType(element):
            return SequenceType(without_shapes(element))
        case OptionalType(element):
            return OptionalType(without_shapes(element))
        case MapType(key, value):
            return MapType(key, without_shapes(value))
    return type_
