"""Matrix products."""

from __future__ import annotations

import numpy as np

from .call import Call, Op
from .values import Tensor


def _gemm(call: Call) -> Tensor:
    a = call.tensor(0).T if call.integer("transA", 0) else call.tensor(0)
    b = call.tensor(1).T if call.integer("transB", 0) else call.tensor(1)
    result = call.real("alpha", 1.0) * (a @ b)
    c = call.optional(2)
    if c is not None:
        result = result + call.real("beta", 1.0) * c
    return np.asarray(result, dtype=a.dtype)


def _einsum(call: Call) -> Tensor:
    return np.asarray(np.einsum(call.string("equation", ""), *call.tensors(), optimize=True))


OPS: dict[str, Op] = {
    "Det": lambda call: np.asarray(np.linalg.det(call.tensor(0))),
    "Einsum": _einsum,
    "Gemm": _gemm,
    "MatMul": lambda call: np.asarray(np.matmul(call.tensor(0), call.tensor(1))),
}
