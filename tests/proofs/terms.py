"""Elements that are terms of z3: real numbers, IEEE 754 floats and integers that wrap."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import z3

from .tensors import Field, type_of


class Reals(Field):
    """Real numbers. A quotient is defined where the divisor is not zero."""

    sort: Any = z3.RealSort()

    def __init__(self) -> None:
        super().__init__()
        self._roots: dict[str, Any] = {}

    def variable(self, name: str) -> Any:
        return z3.Const(name, self.sort)

    def number(self, value: Any) -> Any:
        if isinstance(value, z3.ExprRef):
            return value
        return z3.RealVal(Fraction(float(value)) if np.isfinite(float(value)) else value)

    def add(self, a: Any, b: Any) -> Any:
        return a + b

    def subtract(self, a: Any, b: Any) -> Any:
        return a - b

    def multiply(self, a: Any, b: Any) -> Any:
        return a * b

    def divide(self, a: Any, b: Any) -> Any:
        self.defined.append(b != 0)
        return a / b

    def negate(self, a: Any) -> Any:
        return -a

    def root(self, a: Any) -> Any:
        """Return the number at least 0 whose square is `a`: a sum of squares always has one."""
        a = z3.simplify(a, som=True)
        key = a.sexpr()
        if key not in self._roots:
            found = z3.Real(f"root{len(self._roots)}")
            self.given += [found >= 0, found * found == a]
            self._roots[key] = found
        return self._roots[key]

    def less(self, a: Any, b: Any) -> Any:
        return a < b

    def less_equal(self, a: Any, b: Any) -> Any:
        return a <= b

    def equal(self, a: Any, b: Any) -> Any:
        return a == b

    def is_nan(self, a: Any) -> Any:
        return z3.BoolVal(False)

    def choose(self, condition: Any, a: Any, b: Any) -> Any:
        if isinstance(condition, z3.ExprRef):
            return z3.If(condition, a, b)
        return a if condition else b

    def every(self, claims: Iterable[Any]) -> Any:
        return z3.And(*claims)

    def either(self, a: Any, b: Any) -> Any:
        return z3.Or(a, b)

    def opposite(self, a: Any) -> Any:
        return z3.Not(a)

    def same(self, a: Any, b: Any) -> Any:
        if z3.is_arith(a) and z3.is_true(z3.simplify(a - b == 0, som=True)):
            return z3.BoolVal(True)
        return a == b

    def value(self, model: Any, term: Any) -> Any:
        """Return the number that a term has in a model."""
        found = model.eval(term, model_completion=True)
        if z3.is_algebraic_value(found):
            found = found.approx(20)
        return float(found.as_fraction())


class Floats(Reals):
    """IEEE 754 floats, rounded to nearest. NaN is the same as NaN, and 0 the same as -0."""

    def __init__(self, sort: Any = None) -> None:
        super().__init__()
        self.sort = z3.Float16() if sort is None else sort
        self.dtype = np.dtype(np.float16)

    def number(self, value: Any) -> Any:
        return value if isinstance(value, z3.ExprRef) else z3.FPVal(float(value), self.sort)

    def add(self, a: Any, b: Any) -> Any:
        return z3.fpAdd(z3.RNE(), a, b)

    def subtract(self, a: Any, b: Any) -> Any:
        return z3.fpSub(z3.RNE(), a, b)

    def multiply(self, a: Any, b: Any) -> Any:
        return z3.fpMul(z3.RNE(), a, b)

    def divide(self, a: Any, b: Any) -> Any:
        return z3.fpDiv(z3.RNE(), a, b)

    def negate(self, a: Any) -> Any:
        return z3.fpNeg(a)

    def root(self, a: Any) -> Any:
        return z3.fpSqrt(z3.RNE(), a)

    def whole(self, a: Any, toward: str) -> Any:
        mode = {"down": z3.RTN, "up": z3.RTP, "nearest": z3.RNE}[toward]
        return z3.fpRoundToIntegral(mode(), a)

    def less(self, a: Any, b: Any) -> Any:
        return z3.fpLT(a, b)

    def less_equal(self, a: Any, b: Any) -> Any:
        return z3.fpLEQ(a, b)

    def equal(self, a: Any, b: Any) -> Any:
        return z3.fpEQ(a, b)

    def is_nan(self, a: Any) -> Any:
        return z3.fpIsNaN(a)

    def same(self, a: Any, b: Any) -> Any:
        return (
            z3.BoolVal(True)
            if a.eq(b)
            else z3.Or(z3.fpEQ(a, b), z3.And(z3.fpIsNaN(a), z3.fpIsNaN(b)))
        )

    def value(self, model: Any, term: Any) -> Any:
        found = model.eval(term, model_completion=True)
        if z3.is_true(z3.simplify(z3.fpIsNaN(found))):
            return float("nan")
        if z3.is_true(z3.simplify(z3.fpIsInf(found))):
            return (
                float("-inf") if z3.is_true(z3.simplify(z3.fpIsNegative(found))) else float("inf")
            )
        real = z3.simplify(z3.fpToReal(found))
        return float(real.as_fraction())


class Integers(Reals):
    """Signed integers of 8 bits, which wrap; division rounds towards zero."""

    exact = True

    def __init__(self) -> None:
        super().__init__()
        self.sort = z3.BitVecSort(8)
        self.dtype = np.dtype(np.int8)
        self.exact = True

    def number(self, value: Any) -> Any:
        return value if isinstance(value, z3.ExprRef) else z3.BitVecVal(int(value), 8)

    def same(self, a: Any, b: Any) -> Any:
        return a == b

    def value(self, model: Any, term: Any) -> Any:
        return model.eval(term, model_completion=True).as_signed_long()


class Booleans(Reals):
    """Truth values."""

    def __init__(self) -> None:
        super().__init__()
        self.sort = z3.BoolSort()
        self.dtype = np.dtype(np.bool_)

    def value(self, model: Any, term: Any) -> Any:
        return z3.is_true(model.eval(term, model_completion=True))


class Typed(Reals):
    """Elements of one type of irc, for casts.

    A float beyond the range of an integer type becomes some integer, which depends on its value
    alone.
    """

    SORTS: ClassVar[dict[str, Any]] = {
        "f16": (5, 11),
        "bf16": (8, 8),
        "f32": (8, 24),
        "f64": (11, 53),
    }

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.dtype = type_of(kind)
        self.exact = kind not in self.SORTS
        self.bits = int(kind.strip("uif")) if self.exact and kind != "bool" else 0
        self.signed = kind.startswith("i")
        if not self.exact:
            self.sort = z3.FPSort(*self.SORTS[kind])
        else:
            self.sort = z3.BitVecSort(self.bits) if self.bits else z3.BoolSort()

    def of(self, kind: str) -> Typed:
        return Typed(kind)

    def is_nan(self, a: Any) -> Any:
        return z3.fpIsNaN(a) if z3.is_fp(a) else super().is_nan(a)

    def number(self, value: Any) -> Any:
        if isinstance(value, z3.ExprRef):
            return value
        if not self.exact:
            return z3.FPVal(float(value), self.sort)
        return z3.BitVecVal(int(value), self.bits) if self.bits else z3.BoolVal(bool(value))

    def converted(self, element: Any, field: Field) -> Any:
        assert isinstance(field, Typed)
        if self.kind == "bool":
            element, bits, signed = z3.If(element, z3.BitVecVal(1, 8), z3.BitVecVal(0, 8)), 8, False
        else:
            bits, signed = self.bits, self.signed
        if field.kind == "bool":
            value, _ = _unwidened(element, signed=signed)
            return z3.Not(z3.fpIsZero(value)) if z3.is_fp(value) else value != 0
        if not field.exact:
            value, signed = _unwidened(element, signed=signed)
            if z3.is_fp(value):
                return (
                    value if value.sort() == field.sort else z3.fpToFP(z3.RNE(), value, field.sort)
                )
            return (z3.fpSignedToFP if signed else z3.fpUnsignedToFP)(z3.RNE(), value, field.sort)
        if not self.exact:
            return _to_integer(element, field)
        if field.bits <= bits:
            return z3.Extract(field.bits - 1, 0, element)
        return (z3.SignExt if signed else z3.ZeroExt)(field.bits - bits, element)

    def same(self, a: Any, b: Any) -> Any:
        if a.sort() != b.sort():
            return z3.BoolVal(False)
        return z3.Or(z3.fpEQ(a, b), z3.And(z3.fpIsNaN(a), z3.fpIsNaN(b))) if z3.is_fp(a) else a == b

    def value(self, model: Any, term: Any) -> Any:
        found = model.eval(term, model_completion=True)
        if z3.is_fp(found):
            return Floats(self.sort).value(model, term)
        if z3.is_bool(found):
            return z3.is_true(found)
        return found.as_signed_long() if self.signed else found.as_long()


WIDENING = {
    z3.Z3_OP_SIGN_EXT: True,
    z3.Z3_OP_ZERO_EXT: False,
    z3.Z3_OP_FPA_TO_FP: True,
    z3.Z3_OP_FPA_TO_FP_UNSIGNED: False,
}
"""Operators that may have widened an element, and whether they read a signed one."""


def _unwidened(element: Any, *, signed: bool) -> tuple[Any, bool]:
    """Return the element of which another is a wider copy, and whether it is signed.

    An integer is the same number in a float type with as many significant bits, and a float in one
    with as many significant bits and as many of the exponent. What a cast makes of a number depends
    on the number alone, so that it is taken of the narrow one.
    """
    kind = element.decl().kind()
    if kind not in WIDENING or (z3.is_bv(element) and WIDENING[kind] and not signed):
        return element, signed
    inner = element.arg(element.num_args() - 1)
    if z3.is_fp(element) and z3.is_bv(inner):
        exact = inner.size() <= element.sbits()
    elif z3.is_fp(element):
        exact = (
            z3.is_fp(inner)
            and inner.sbits() <= element.sbits()
            and inner.ebits() <= element.ebits()
        )
    else:
        exact = True
    return _unwidened(inner, signed=WIDENING[kind]) if exact else (element, signed)


def _to_integer(element: Any, field: Typed) -> Any:
    """Return a float rounded towards 0, and a function of its value where that is out of range."""
    wide = z3.fpToFP(z3.RNE(), element, z3.Float64())
    beyond = z3.Function(f"beyond_{field.kind}", z3.Float64(), field.sort)
    whole, signed = _unwidened(element, signed=True)
    if z3.is_bv(whole):
        value = (z3.SignExt if signed else z3.ZeroExt)(WIDEST - whole.size(), whole)
        low, high = (
            -(2 ** (field.bits - 1)) if field.signed else 0,
            2 ** (field.bits - field.signed),
        )
        return z3.If(
            z3.And(value >= low, value < high), z3.Extract(field.bits - 1, 0, value), beyond(wide)
        )
    low, high = (
        -(2.0 ** (field.bits - 1)) if field.signed else 0.0,
        2.0 ** (field.bits - field.signed),
    )
    inside = z3.And(wide > low - 1 if field.bits < 53 else wide >= low, wide < high)
    convert = z3.fpToSBV if field.signed else z3.fpToUBV
    return z3.If(inside, convert(z3.RTZ(), wide, field.sort), beyond(wide))


WIDEST = 66
"""Bits in which the bounds of every integer type are signed integers."""
