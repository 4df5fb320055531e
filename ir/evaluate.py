"""Evaluation of constant expressions by the rows of the operator table, within a budget."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from .attributes import SparseTensor
from .budget import Budget
from .graph import Node, Value
from .open_elements import partly_known
from .ops import is_wide, op_info
from .ops.evaluation import MAX_BYTES, NotEvaluable
from .ops.row import Evaluate, Inputs
from .sparse import dense
from .tensor import Array, ArrayTensor, ScaledTensor, Tensor, round_to
from .types import F64, Dim, dtype_of, static_shape_of

if TYPE_CHECKING:  # few models cast infinities to integers
    from .open_elements import PartlyKnown

SMALL = 1024
"""Bytes of a payload with which numpy takes less time than Python does to call it."""


_FLOAT64 = np.dtype(np.float64)
_UNSEEN: Any = object()
"""The mark of a value that is not evaluated yet; None marks a value that cannot be evaluated."""


_CASTS = ("cast", "cast_like")
"""Operators of which ONNX leaves elements open."""

UNREADABLE = (
    NotEvaluable,
    ValueError,
    IndexError,
    TypeError,
    OSError,
    MemoryError,
    OverflowError,
    AssertionError,
)
"""The exceptions of an evaluation that has no result."""


class ConstantEvaluator:
    """The evaluator of constant values: it computes elements on demand and caches them.

    Rewrites do not change the elements of a value. So one evaluator serves all rules of a pass
    (`Module.constants`); every pass resets it. `budget` bounds the bytes that it reads and keeps.
    """

    def __init__(
        self, max_bytes: int = MAX_BYTES, *, beside: ConstantEvaluator | None = None
    ) -> None:
        """Evaluate results of at most `max_bytes` each.

        Elements that the evaluator `beside` keeps are kept here.
        """
        self.budget = Budget(max_bytes)
        self._kept: dict[Value, Array] = {} if beside is None else beside._kept
        self._known: dict[Value, Array | None] = {}
        self._open: dict[Value, PartlyKnown] = {}
        """Values of which some elements may be any number, and which count as unknown."""

    def reset(self) -> None:
        """Clear the cache and renew the budget; elements that are kept stay."""
        self._known = {}
        self._open = {}
        self.budget.renew()

    def forget(self, value: Value) -> None:
        """Drop the elements of an erased value."""
        self._known.pop(value, None)
        self._open.pop(value, None)
        self._kept.pop(value, None)

    def array(self, value: Value | None) -> Array | None:
        """Return the elements of a constant in its own dtype, None if it cannot be evaluated."""
        found = self.exact(value)
        if found is None or value is None or found.dtype != _FLOAT64:
            return found
        dtype = dtype_of(value.type)
        return found if dtype is None or dtype is F64 else round_to(found, dtype)

    def extents(self, value: Value | None) -> tuple[Dim, ...] | None:
        """Return None: this evaluator knows all elements of a value, or none."""
        return None

    def is_constant(self, value: Value | None) -> bool:
        """Return whether the elements of `value` are known, without reading a dense payload."""
        node = None if value is None else value.node
        payload = node.attrs.get("value") if node is not None and node.op == "constant" else None
        return isinstance(payload, Tensor) or self.array(value) is not None

    def is_small(self, value: Value | None) -> bool:
        """Return whether `value` is a payload in memory, too small to be worth a call of numpy."""
        payload = None if value is None or value.node is None else value.node.attrs.get("value")
        return isinstance(payload, Tensor) and payload.in_memory and payload.nbytes <= SMALL

    def exact(self, value: Value | None) -> Array | None:
        """Return the elements as `array`, but a wide product or sum in float64 and unrounded.

        These are the nodes that are `is_wide`.
        """
        if value is None:
            return None
        found: Array | None = self._known.get(value, _UNSEEN)
        if found is not _UNSEEN:
            return found
        node = value.node
        if node is not None and node.op == "constant":
            return self._payload(value, node)
        return self._resolve(value)

    def provide(self, value: Value, array: Array, *, keep: bool = False) -> None:
        """Set the elements of a constant until the next reset, or to `keep` them its erasure.

        The float64 `array` that a constant was rounded from stands for it then, and later folds
        round that.
        """
        self._known[value] = array
        if keep:
            self._kept[value] = array

    def kept(self, value: Value) -> Array | None:
        """Return the elements that were provided to be kept, None if none were."""
        return self._kept.get(value)

    def drop_kept(self) -> None:
        """Drop the elements that were provided to be kept: nothing rewrites the module any more."""
        self._kept.clear()
        self._known = {}
        self._open = {}

    def forget_unknown(self) -> None:
        """Forget which values are not constant: a rewrite may have made them constant."""
        self._known = {value: array for value, array in self._known.items() if array is not None}
        self._open = {}

    def tensor(self, value: Value | None) -> Tensor | None:
        """Return a constant value as a tensor: the payload of its node, or computed elements."""
        if value is None:
            return None
        node = value.node
        payload = node.attrs.get("value") if node is not None and node.op == "constant" else None
        if isinstance(payload, Tensor):
            return payload
        array = self.array(value)
        if array is None:
            return None
        dtype = dtype_of(value.type)
        return ArrayTensor(array, dtype) if dtype is not None else ArrayTensor(array)

    def _resolve(self, value: Value) -> Array | None:
        stack = [value]
        while stack:
            top = stack[-1]
            missing = () if top in self._known else self._settle(top)
            if missing:
                stack.extend(missing)
            else:
                stack.pop()
        return self._known[value]

    def _settle(self, value: Value) -> Sequence[Value]:
        """Set the elements of `value`, or return the operands to evaluate first."""
        kept = self._kept.get(value)
        if kept is not None:
            self._known[value] = kept
            return ()
        node = value.node
        if node is not None and node.op == "constant":
            self._payload(value, node)
            return ()
        info = None if node is None else op_info(node.op)
        if node is None or info is None or info.evaluate is None:
            self._known[value] = None
            return ()
        needed, typed = operands_by_use(node, info.type_operands)
        missing: list[Value] = []
        for operand in needed:
            found = self._known.get(operand, _UNSEEN)
            if found is None and operand not in self._open:
                self._known[value] = None
                return ()
            if found is _UNSEEN:
                missing.append(operand)
        shaped = [operand for operand in typed if static_shape_of(operand.type) is None]
        missing += [operand for operand in shaped[:1] if operand not in self._known]
        if not missing:
            self._evaluate(node, info.evaluate, info.type_operands)
        # Payloads are read last, and only if all else is constant.
        return [v for v in missing if v.node is None or v.node.op != "constant"][:1] or missing

    def _payload(self, value: Value, node: Node) -> Array | None:
        kept = self._kept.get(value)
        if kept is not None:
            self._known[value] = kept
            return kept
        payload, found = node.attrs.get("value"), None
        is_source = node.source is not None
        if isinstance(payload, Tensor):
            try:
                found = payload.exact() if isinstance(payload, ScaledTensor) else payload.numpy()
            except UNREADABLE:
                found = None
            else:
                if is_source:
                    self.budget.add_payload(found)
        elif isinstance(payload, SparseTensor):
            with suppress(*UNREADABLE):
                sizes = payload.nbytes, payload.dense_nbytes
                if self.budget.pay_sparse(*sizes, is_source=is_source):
                    found = dense(payload)
        self._known[value] = found
        return found

    def _evaluate(self, node: Node, evaluate: Evaluate, by_type: frozenset[int]) -> None:
        wide = node.op == "nn.batch_norm_to_affine" or is_wide(node)
        arrays: list[Array | None] = []
        for i, value in enumerate(node.inputs):
            if value is None or i in by_type:
                arrays.append(None if value is None else self._known.get(value))
            else:
                arrays.append(self._known[value] if wide else self.array(value))
        self._known.update(dict.fromkeys(node.outputs))  # a mask of Dropout stays unknown
        if not self.budget.pay_evaluation(node.op, arrays):
            return
        results = self._results(node, evaluate, arrays)
        if node.op in _CASTS or self._open:
            results = self._known_throughout(node, evaluate, by_type, arrays, results)
        for output, result in zip(node.outputs, results, strict=False):
            if result is None:
                continue
            array = np.asarray(result)  # numpy returns scalars for rank 0
            self._known[output] = array if array.nbytes <= self.budget.max_bytes else None
            self.budget.pay_result(array, arrays)

    def _known_throughout(
        self,
        node: Node,
        evaluate: Evaluate,
        by_type: frozenset[int],
        arrays: Inputs,
        results: Sequence[Array | None],
    ) -> Sequence[Array | None]:
        """Return `results`, or those known whatever the elements are that ONNX leaves open.

        Open elements come from a Cast, or from an operand.
        """
        opened = [
            None if value is None or i in by_type else self._open.get(value)
            for i, value in enumerate(node.inputs)
        ]
        may_open = node.op in _CASTS and results[0] is None and arrays[0] is not None
        if not may_open and not any(opened):
            return results
        operands = [
            array if each is None else each for array, each in zip(arrays, opened, strict=True)
        ]
        try:
            found = partly_known(node, evaluate, operands)
        except UNREADABLE:
            return (None,) * len(node.outputs)
        if not found.is_open.any():
            return (found.array,)
        if found.array.nbytes <= self.budget.max_bytes:
            self._open[node.output] = found
            self.budget.pay_result(found.array, arrays)
        return (None,) * len(node.outputs)

    def affords(self, count: int) -> bool:
        """Pay for an affine of `count` numbers, and return whether the budget was sufficient."""
        return self.budget.pay_affine(count)

    def _results(self, node: Node, evaluate: Evaluate, arrays: Inputs) -> Sequence[Array | None]:
        try:
            return evaluate(node, arrays)
        except UNREADABLE:
            return (None,) * len(node.outputs)


def operands_by_use(node: Node, by_type: frozenset[int]) -> tuple[list[Value], list[Value]]:
    """Return the operands of which `node` needs the elements, and those it needs the type of.

    The latter are the operands `by_type`.
    """
    if not by_type:
        return [value for value in node.inputs if value is not None], []
    given = [(value, i in by_type) for i, value in enumerate(node.inputs) if value is not None]
    return [value for value, typed in given if not typed], [
        value for value, typed in given if typed
    ]
