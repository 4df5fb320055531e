"""The parser of types and attribute values in IR text."""

from __future__ import annotations

from collections.abc import Mapping

from ...support.limits import DEFAULT_LIMITS
from ..attributes import Attribute, AttributeRef, EmptyList, RegionRef, Scalar, SparseTensor
from ..extents import FUNCTIONS
from ..tensor import ArrayTensor, OpaqueTensor, Tensor
from ..types import (
    DTYPES,
    ELEMENT_COUNT_LIMIT,
    UNKNOWN,
    Dim,
    DType,
    MapType,
    OpaqueType,
    OptionalType,
    SequenceType,
    SparseTensorType,
    TensorType,
    Type,
    element_count,
)
from .lexer import Lexer, Mark, nearest
from .literals import is_element, pack_elements, parse_bytes, parse_float

_CONTAINERS = ("sparse", "seq", "optional", "map", "opaque")
_KINDS: tuple[type | tuple[type, ...], ...] = (
    int,
    float,
    (str, bytes),
    Tensor,
    SparseTensor,
    Type,
    RegionRef,
)
_LISTS = ("floats", "ints", "strings", "tensors", "graphs", "sparse_tensors", "type_protos")


def _dtype_named(name: str) -> DType | None:
    """Return the element type of that name; `onnx` and a number is one that irc does not know."""
    if name.startswith("onnx") and name.removeprefix("onnx").removeprefix("-").isdecimal():
        return DType(name, 0, "unknown")
    return DTYPES.get(name)


def _simple_type(token: str) -> TensorType:
    name, _, inside = token[:-1].partition("[")
    if inside == "*":
        return TensorType(_dtype_named(name), None)
    dims = inside.split(",") if inside else ()
    return TensorType(_dtype_named(name), tuple([_dim(dim) for dim in dims]))


def _dim(word: str) -> Dim:
    """Return an extent: a number, the name of a symbol, or None for `?`."""
    if word == "?":
        return None
    return int(word) if word.isdecimal() else word


class TypeParser(Lexer):
    """A parser of types."""

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text, name)
        self.max_nesting = DEFAULT_LIMITS.max_nesting
        self._simple_types: dict[str, TensorType] = {}
        self._open_types = 0

    def read_type(self) -> Type:
        token = self.token
        if token[-1:] == "]" != token and '"' not in token:
            self.next()
            if token not in self._simple_types:
                self._simple_types[token] = _simple_type(token)
            return self._simple_types[token]
        if token in _CONTAINERS:
            return self.container()
        dtype = self.dtype("a type")
        if dtype is None and self.token != "[":
            return UNKNOWN
        self.expect("[")
        if self.skip("*"):
            self.expect("]")
            return TensorType(dtype, None)
        return TensorType(dtype, tuple(self.listed("]", self.dim)))

    def container(self) -> Type:
        kind = self.next()
        self._open_types += 1
        if self._open_types > self.max_nesting:
            self.fail(f"at most {self.max_nesting} nested types (--max-nesting)")
        self.expect("<")
        type_ = self._container_of(kind)
        self.expect(">")
        self._open_types -= 1
        return type_

    def _container_of(self, kind: str) -> Type:
        if kind == "seq":
            return SequenceType(self.read_type())
        if kind == "optional":
            return OptionalType(self.read_type())
        if kind == "sparse":
            dense = self.tensor_type()
            return SparseTensorType(dense.dtype, dense.shape)
        if kind == "map":
            key = self.dtype("an element type")
            self.expect(",")
            return MapType(key, self.read_type())
        domain = self.string()
        self.expect(",")
        return OpaqueType(domain, self.string())

    def tensor_type(self) -> TensorType:
        at = self.mark()
        type_ = self.read_type()
        if not isinstance(type_, TensorType):
            self.fail("the type of a tensor", at)
        return type_

    def dtype(self, expected: str) -> DType | None:
        """Read an element type, None for `?`."""
        dtype = _dtype_named(self.token)
        if dtype is None and self.token != "?":
            self.fail(expected + nearest(self.token, DTYPES))
        self.next()
        return dtype

    def dim(self) -> Dim:
        token = self.token
        if self.skip("?"):
            return None
        if token[:1] == '"':
            return self.string()
        if not token.isidentifier():
            return self.extent()
        self.next()
        return self.formula(token) if self.skip("(") else token

    def formula(self, name: str) -> Dim:
        """Read the operands of a function of extents."""
        function = FUNCTIONS.get(name)
        if function is None:
            self.fail("a function of extents" + nearest(name, FUNCTIONS))
        self._open_types += 1
        if self._open_types > self.max_nesting:
            self.fail(f"at most {self.max_nesting} nested types (--max-nesting)")
        operands = self.listed(")", self.dim)
        self._open_types -= 1
        try:
            return function(*operands)
        except TypeError:
            return self.fail("two operands of this function")

    def extent(self) -> int:
        """Read an extent, which ONNX stores in 64 bits with a sign."""
        at = self.mark()
        extent = self.integer("an extent")
        if not -ELEMENT_COUNT_LIMIT <= extent < ELEMENT_COUNT_LIMIT:
            self.fail("an extent below 2**63", at)
        return extent


class AttributeParser(TypeParser):
    """A parser of attribute values; `data` holds payloads by digest."""

    def __init__(self, text: str, name: str, data: Mapping[str, Tensor]) -> None:
        super().__init__(text, name)
        self.data = data
        self.region_refs: list[tuple[int, Mark]] = []

    def attribute(self) -> Attribute:
        token = self.token
        if token == "[":
            self.next()
            return self.scalars()
        if token[:1] == "@":
            name = self.name_after("@", "a name")
            self.expect(":")
            return AttributeRef(name, self.word("the kind of the attribute"))
        if token in _LISTS:
            self.next()
            self.expect("[")
            self.expect("]")
            return EmptyList(token)
        return self.scalar()

    def scalars(self) -> tuple[Scalar, ...]:
        """Read a list after its opening bracket. All elements are of one kind."""
        kinds: set[int] = set()

        def item() -> Scalar:
            at = self.mark()
            value = self.scalar()
            kinds.add(next(i for i, kind in enumerate(_KINDS) if isinstance(value, kind)))
            if len(kinds) > 1:
                self.fail("an element like those before it", at)
            return value

        return tuple(self.listed("]", item))

    def scalar(self) -> Scalar:
        token = self.token
        if token[:1] == '"':
            return self.string()
        if token[:2] == 'b"':
            return self.bytes()
        if token == "region":
            self.next()
            at = self.mark()
            self.region_refs.append((self.integer("the number of a region"), at))
            return RegionRef(self.region_refs[-1][0])
        if token == "type":
            self.next()
            return self.read_type()
        value = self.number(single=True)
        return self.payload("a value") if value is None else value

    def number(self, *, single: bool) -> int | float | None:
        """Read an integer or a float, which is rounded to f32 if `single`.

        Return None if there is neither.
        """
        if self.at_integer():
            return self.integer()
        try:
            value = parse_float(self.token, single=single)
        except OverflowError:
            self.fail(f"a number in the range of {'f32' if single else 'f64'}")
        if value is not None:
            self.next()
        return value

    def bytes(self) -> bytes:
        value = parse_bytes(self.token)
        if value is None:
            self.fail(r"printable ASCII and the escape \xhh only")
        self.next()
        return value

    def payload(self, expected: str) -> Tensor | SparseTensor:
        if self.token != "sparse":
            return self.tensor(expected)
        self.next()
        self.expect("[")
        shape = tuple(self.listed("]", self.extent))
        self.expect("(")
        values = self.tensor("a tensor")
        self.expect(",")
        indices = self.tensor("a tensor")
        self.expect(")")
        return SparseTensor(values, indices, shape)

    def tensor(self, expected: str) -> Tensor:
        """Read a dense payload: a type, and a digest or elements."""
        at = self.mark()
        if self.token[-1:] != "]" and _dtype_named(self.token) is None:
            self.fail(expected)
        type_ = self.tensor_type()
        dtype, shape = (
            type_.dtype,
            tuple([dim for dim in type_.shape or () if isinstance(dim, int)]),
        )
        if dtype is None or type_.shape != shape:
            self.fail("a known element type and shape", at)
        if self.token[:1] == "#" or dtype.kind == "unknown":
            return self.digest(dtype, shape)
        at = self.mark()
        if not shape:
            items = [self.element(dtype)]
        else:
            self.expect("[")
            items = self.listed("]", lambda: self.element(dtype))
        if len(items) != element_count(shape):
            self.fail(f"{element_count(shape)} elements", at, str(len(items)))
        try:
            return ArrayTensor(pack_elements(items, dtype).reshape(shape), dtype)
        except (ValueError, OverflowError):
            self.fail(f"numbers in the range of {dtype}", at)

    def digest(self, dtype: DType, shape: tuple[int, ...]) -> Tensor:
        digest = self.token.removeprefix("#")
        tensor = self.data.get(digest)
        if digest in ("", self.token):
            self.fail("'#' and a digest")
        if tensor is not None and (tensor.dtype != dtype or tensor.shape != shape):
            self.fail(f"the digest of a payload of type {TensorType(dtype, shape)}")
        self.next()
        return OpaqueTensor(dtype, shape, digest) if tensor is None else tensor

    def element(self, dtype: DType) -> object:
        """Read an element, in the form that `pack_elements` takes."""
        at, token = self.mark(), self.token
        value: object
        if token in ("true", "false"):
            value = self.next() == "true"
        elif self.skip("("):
            value = tuple(self.listed(")", lambda: self.element(DTYPES["f64"])))
        elif '"' in token[:2]:
            value = self.string() if token[0] == '"' else self.bytes()
        else:
            value = self.number(single=False)
        if not is_element(value, dtype) or token.startswith("nan("):
            self.fail(f"an element of {dtype}", at)
        return value
