"""Elements that are terms of z3: real numbers, IEEE 754 floats and integers that wrap."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import numpy as np
import z3

from .tensors import Field


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
        return z3.If(condition, a, b) if isinstance(condition, z3.ExprRef) else a if condition else b

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

    def less(self, a: Any, b: Any) -> Any:
        return z3.fpLT(a, b)

    def less_equal(self, a: Any, b: Any) -> Any:
        return z3.fpLEQ(a, b)

    def equal(self, a: Any, b: Any) -> Any:
        return z3.fpEQ(a, b)

    def is_nan(self, a: Any) -> Any:
        return z3.fpIsNaN(a)

    def same(self, a: Any, b: Any) -> Any:
        return z3.Or(z3.fpEQ(a, b), z3.And(z3.fpIsNaN(a), z3.fpIsNaN(b)))

    def value(self, model: Any, term: Any) -> Any:
        found = model.eval(term, model_completion=True)
        if z3.is_true(z3.simplify(z3.fpIsNaN(found))):
            return float("nan")
        if z3.is_true(z3.simplify(z3.fpIsInf(found))):
            return float("-inf") if z3.is_true(z3.simplify(z3.fpIsNegative(found))) else float("inf")
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
