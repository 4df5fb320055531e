"""The constants that go with an operator."""

from __future__ import annotations

from math import inf

from ..ir.attributes import SparseTensor
from ..ir.graph import Node, payload_of
from ..ir.tensor import Tensor


def dying_bytes(node: Node, most: float = inf) -> int:
    """Return the bytes of the constants that nothing reads any more once `node` is removed.

    Of a region of more than `most` values, those nearest to `node` count. O(region).
    """
    total, gone = 0, {value: value.use_count for value in node.outputs}
    stack = [node]
    while stack and len(gone) <= most:
        top = stack.pop()
        for value in top.inputs:
            if value is None or value.node is None:
                continue
            gone[value] = gone.get(value, 0) + 1
            if gone[value] < value.use_count:
                continue
            payload = payload_of(value)
            total += payload.nbytes if isinstance(payload, Tensor | SparseTensor) else 0
            stack.append(value.node)
    return total
