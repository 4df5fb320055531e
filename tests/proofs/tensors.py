"""Tensors whose elements are numbers or terms, and values of a model that is being built."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from float64.call import Call
from float64.interpreter import OPS
from graphs import NEWEST, Array, Graph


class Undefined(Exception):
    """An expression has no value: shapes that do not fit, or an axis that is not there."""


class Field:
    """Elements and their arithmetic; here numbers of a numpy dtype.

    `defined` collects the conditions under which the last results exist, `given` facts about
    elements that were made.
    """

    exact = False
    """Whether equal means the same: no rounding is allowed for."""

    def __init__(self, dtype: Any = np.float64) -> None:
        self.dtype = np.dtype(dtype)
        self.defined: list[Any] = []
        self.given: list[Any] = []
        self.exact = self.dtype.kind in "iub"

    def of(self, kind: str) -> Field:
        """Return the numbers of an element type of irc."""
        return Field(type_of(kind))

    def converted(self, element: Any, field: Field) -> Any:
        """Return an element in another type.

        A float beyond the integers of the type becomes the nearest of them.
        """
        if self.dtype == field.dtype or field.dtype.kind not in "iu" or self.dtype.kind in "iub":
            with np.errstate(all="ignore"):
                return np.asarray(element).astype(field.dtype)[()]
        limits = np.iinfo(field.dtype)
        number = float(element)
        if number != number:
            return field.dtype.type(0)
        return field.dtype.type(
            min(max(int(max(min(number, 1e30), -1e30)), limits.min), limits.max)
        )

    def number(self, value: Any) -> Any:
        """Return a number as an element."""
        return value if isinstance(value, np.generic) else self.dtype.type(value)

    def add(self, a: Any, b: Any) -> Any:
        with np.errstate(all="ignore"):
            return a + b

    def subtract(self, a: Any, b: Any) -> Any:
        with np.errstate(all="ignore"):
            return a - b

    def multiply(self, a: Any, b: Any) -> Any:
        with np.errstate(all="ignore"):
            return a * b

    def divide(self, a: Any, b: Any) -> Any:
        if self.exact or self.dtype == np.float64:
            self.defined.append(b != 0)
        with np.errstate(all="ignore"):
            return a // b if self.exact else a / b

    def negate(self, a: Any) -> Any:
        with np.errstate(all="ignore"):
            return -a

    def root(self, a: Any) -> Any:
        """Return the root of a sum of squares."""
        with np.errstate(all="ignore"):
            return np.sqrt(a)

    def whole(self, a: Any, toward: str) -> Any:
        """Return a float rounded to a whole number.

        `down`, `up`, or to the nearest, of two the even one.
        """
        return {"down": np.floor, "up": np.ceil, "nearest": np.rint}[toward](a)

    def less(self, a: Any, b: Any) -> Any:
        return bool(a < b)

    def less_equal(self, a: Any, b: Any) -> Any:
        return bool(a <= b)

    def equal(self, a: Any, b: Any) -> Any:
        return bool(a == b)

    def is_nan(self, a: Any) -> Any:
        return bool(a != a)

    def choose(self, condition: Any, a: Any, b: Any) -> Any:
        return a if condition else b

    def every(self, claims: Iterable[Any]) -> Any:
        """Return the conjunction."""
        return all([bool(each) for each in claims])

    def either(self, a: Any, b: Any) -> Any:
        return bool(a) or bool(b)

    def opposite(self, a: Any) -> Any:
        return not a

    def same(self, a: Any, b: Any) -> Any:
        """Return whether two results are the same.

        Equal, or both NaN; floats up to their rounding.
        """
        if self.exact:
            return bool(a == b)
        with np.errstate(all="ignore"):
            return bool(
                np.isclose(np.float64(a), np.float64(b), rtol=1e-6, atol=1e-9, equal_nan=True)
            )


def type_of(kind: str) -> np.dtype[Any]:
    """Return the numpy dtype of an element type of irc."""
    from irc.ir.tensor import numpy_dtype
    from irc.ir.types import DTYPES

    return numpy_dtype(DTYPES[kind])


class Claim:
    """A truth value of a field, for conditions."""

    def __init__(self, field: Field, value: Any) -> None:
        self.field = field
        self.value = value

    def __or__(self, other: Any) -> Claim:
        return Claim(
            self.field,
            self.field.either(self.value, other.value if isinstance(other, Claim) else other),
        )

    __ror__ = __or__


class Tensor:
    """An array of elements of a field. Operators broadcast as numpy does."""

    __array_priority__ = 1000

    def __init__(self, field: Field, array: Any, *, constant: bool = False) -> None:
        self.field = field
        self.array: Array = array if isinstance(array, np.ndarray) else _scalar(array)
        self.constant = constant

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def rank(self) -> int:
        return self.array.ndim

    def like(self, array: Any) -> Tensor:
        return Tensor(self.field, array, constant=self.constant)

    def node(self, kind: str, *operands: Any, **attrs: Any) -> Tensor:
        """Return the result of an operator that moves elements, whatever these are."""
        return self.nodes(kind, *operands, results=1, **attrs)[0]

    def nodes(self, kind: str, *operands: Any, results: int, **attrs: Any) -> list[Tensor]:
        """Return the results of an operator that moves elements."""
        arrays = tuple(self.operand(each) for each in operands)
        attributes = {k: tuple(v) if isinstance(v, list) else v for k, v in attrs.items()}
        call = Call(kind, "", NEWEST, arrays, ("y",) * results, attributes, _no_body)
        try:
            found = OPS[kind](call)
        except (ValueError, IndexError) as error:
            raise Undefined(str(error)) from None
        return [self.like(each) for each in (found if isinstance(found, tuple) else (found,))]

    def operand(self, operand: Any) -> Array:
        """Return the elements of an operand; integers stand for themselves."""
        if isinstance(operand, Tensor):
            return operand.array
        if isinstance(operand, int | float):
            return _scalar(self.field.number(operand))
        return operand if isinstance(operand, np.ndarray) else np.asarray(operand, np.int64)

    def join(self, other: Any, function: Callable[[Any, Any], Any]) -> Tensor:
        """Combine elements with those of another tensor, or with a number."""
        array = other.array if isinstance(other, Tensor) else _scalar(self.field.number(other))
        try:
            with np.errstate(all="ignore"):
                found = np.frompyfunc(function, 2, 1)(self.array, array)
        except ValueError as error:
            raise Undefined(str(error)) from None
        return Tensor(
            self.field, found, constant=self.constant and getattr(other, "constant", True)
        )

    def claim(self, other: Any, function: Callable[[Any, Any], Any]) -> Claim:
        joined = self.join(other, function)
        return Claim(self.field, self.field.every(joined.array.ravel()))

    def __add__(self, other: Any) -> Any:
        return NotImplemented if isinstance(other, Value) else self.join(other, self.field.add)

    def __radd__(self, other: Any) -> Any:
        return _lifted(self, other) + self

    def __sub__(self, other: Any) -> Any:
        return NotImplemented if isinstance(other, Value) else self.join(other, self.field.subtract)

    def __rsub__(self, other: Any) -> Any:
        return _lifted(self, other) - self

    def __mul__(self, other: Any) -> Any:
        return NotImplemented if isinstance(other, Value) else self.join(other, self.field.multiply)

    def __rmul__(self, other: Any) -> Any:
        return _lifted(self, other) * self

    def __truediv__(self, other: Any) -> Any:
        return NotImplemented if isinstance(other, Value) else self.join(other, self.field.divide)

    def __rtruediv__(self, other: Any) -> Any:
        return _lifted(self, other) / self

    def __neg__(self) -> Tensor:
        return self.like(np.frompyfunc(self.field.negate, 1, 1)(self.array))

    def __matmul__(self, other: Any) -> Any:
        if isinstance(other, Value):
            return NotImplemented
        if self.rank < 1 or other.rank < 1 or self.shape[-1] != other.shape[max(other.rank - 2, 0)]:
            raise Undefined("the extents do not fit")
        right = other.array if other.rank > 1 else other.array[:, None]
        products = np.frompyfunc(self.field.multiply, 2, 1)(
            self.array[..., :, None], right[..., None, :, :]
        )
        found = total(self.field, products, (products.ndim - 2,))
        return self.like(found if other.rank > 1 else found[..., 0])

    def __getitem__(self, index: Any) -> Tensor:
        try:
            return self.like(
                np.asarray(
                    self.array[np.asarray(index) if isinstance(index, list) else index], object
                )
            )
        except IndexError as error:
            raise Undefined(str(error)) from None

    def __ge__(self, other: Any) -> Claim:
        return self.claim(other, lambda a, b: self.field.less_equal(b, a))

    def __gt__(self, other: Any) -> Claim:
        return self.claim(other, lambda a, b: self.field.less(b, a))

    def __le__(self, other: Any) -> Claim:
        return self.claim(other, self.field.less_equal)

    def __lt__(self, other: Any) -> Claim:
        return self.claim(other, self.field.less)

    def __eq__(self, other: object) -> Any:
        if isinstance(other, Tensor) and other.shape != self.shape and self.rank and other.rank:
            return Claim(self.field, False)
        return self.claim(other, self.field.equal)

    def __ne__(self, other: object) -> Any:
        return self.claim(other, lambda a, b: self.field.opposite(self.field.equal(a, b)))

    __hash__ = None  # type: ignore[assignment]


def _no_body(*_: Any) -> Any:
    raise AssertionError("an operator that moves elements has no body")


def _lifted(tensor: Tensor, number: Any) -> Tensor:
    return Tensor(tensor.field, tensor.field.number(number), constant=True)


def _scalar(element: Any) -> Array:
    found = np.empty((), object)
    found[()] = element
    return found


def total(field: Field, array: Array, axes: Sequence[int], *, keepdims: bool = False) -> Array:
    """Return the sum of elements over axes, in order."""
    return folded(array, axes, field.add, field.number(0), keepdims=keepdims)


def folded(
    array: Array,
    axes: Sequence[int],
    function: Callable[[Any, Any], Any],
    empty: Any = None,
    *,
    keepdims: bool = False,
) -> Array:
    """Return elements combined over axes, in order."""
    last = [axis for axis in range(array.ndim) if axis in axes]
    rest = [axis for axis in range(array.ndim) if axis not in axes]
    flat = array.transpose([*rest, *last]).reshape([*[array.shape[a] for a in rest], -1])
    if flat.shape[-1] == 0:
        if empty is None:
            raise Undefined("no elements")
        found = np.full(flat.shape[:-1], empty, object)
    else:
        found = flat[..., 0]
        for i in range(1, flat.shape[-1]):
            found = np.frompyfunc(function, 2, 1)(found, flat[..., i])
    found = np.asarray(found, object)
    if not keepdims:
        return found
    return found.reshape([1 if a in axes else n for a, n in enumerate(array.shape)])


class Value:
    """A value of a model that is being built, by name."""

    __array_priority__ = 2000

    def __init__(self, graph: Graph, name: str) -> None:
        self.graph = graph
        self.name = name

    def node(self, kind: str, *operands: Any, **attrs: Any) -> Value:
        return self.nodes(kind, *operands, results=1, **attrs)[0]

    def nodes(self, kind: str, *operands: Any, results: int, **attrs: Any) -> list[Value]:
        outputs = [self.graph.fresh(kind.lower()) for _ in range(results)]
        self.graph.node(kind, [named(self.graph, each) for each in operands], outputs, **attrs)
        return [Value(self.graph, name) for name in outputs]

    def __add__(self, other: Any) -> Value:
        return self.node("Add", self, other)

    def __radd__(self, other: Any) -> Value:
        return self.node("Add", other, self)

    def __sub__(self, other: Any) -> Value:
        return self.node("Sub", self, other)

    def __rsub__(self, other: Any) -> Value:
        return self.node("Sub", other, self)

    def __mul__(self, other: Any) -> Value:
        return self.node("Mul", self, other)

    def __rmul__(self, other: Any) -> Value:
        return self.node("Mul", other, self)

    def __truediv__(self, other: Any) -> Value:
        return self.node("Div", self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return self.node("Div", other, self)

    def __neg__(self) -> Value:
        return self.node("Neg", self)

    def __matmul__(self, other: Any) -> Value:
        return self.node("MatMul", self, other)

    def __rmatmul__(self, other: Any) -> Value:
        return self.node("MatMul", other, self)


def named(graph: Graph, operand: Any) -> str:
    """Return the name of an operand: a value, a constant, integers, or none."""
    if operand is None:
        return ""
    if isinstance(operand, Value | str):
        return operand if isinstance(operand, str) else operand.name
    if isinstance(operand, Tensor):
        return graph.initializer(
            np.array(operand.array.tolist(), operand.field.dtype).reshape(operand.shape)
        )
    if isinstance(operand, int | float) and not isinstance(operand, bool):
        return graph.initializer(np.asarray(operand, graph.dtype))
    if isinstance(operand, np.ndarray):
        return graph.initializer(operand)
    return graph.initializer(np.asarray(operand, bool if isinstance(operand, bool) else np.int64))
