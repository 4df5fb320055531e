"""Rules for RNN, GRU and LSTM."""

from __future__ import annotations

from ...ir.graph import Node, Value, is_constant
from ...ir.ops import has_trait
from ...ir.ops.row import Trait
from ...ir.rewriter import Rewriter
from ...ir.rule_driver import Rules, rule
from ...ir.shape_evaluator import ShapeEvaluator
from ...ir.tensor import Tensor

FIRST_STATE, LAST_STATE = 5, 6
"""The operands initial_h and initial_c."""

MAX_VALUES = 32
"""Values that zeros are followed through."""


@rule(affine="untouched", identity="rnn(x, w, u, h) == rnn(x, w, u, None) if h == 0")
def drop_zero_state(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """lstm(x, w, r, b, n, 0, 0) -> lstm(x, w, r, b, n), if the zeros are computed"""
    # An initial state that is absent is 0. Its shape follows from the other operands.
    inputs = list(node.inputs)
    for i in (FIRST_STATE, LAST_STATE):
        value = node.input(i)
        if value is not None and not is_constant(value) and _is_zero(value, evaluator):
            inputs[i] = None
    if inputs == list(node.inputs):
        return rewriter.decline("it has no initial state of computed zeros")
    while inputs and inputs[-1] is None:
        inputs.pop()
    rewriter.set_inputs(node, inputs)
    return True


def _is_zero(value: Value, evaluator: ShapeEvaluator) -> bool:
    """Return whether all elements are 0: of ConstantOfShapes, or parts and copies of them."""
    seen, stack = {value}, [value]
    while stack and len(seen) <= MAX_VALUES:
        sources = _sources_of_zeros(stack.pop(), evaluator)
        if sources is None:
            return False
        stack += [source for source in sources if source not in seen]
        seen.update(sources)
    return not stack


def _sources_of_zeros(value: Value, evaluator: ShapeEvaluator) -> list[Value] | None:
    """Return the values that make `value` 0 if all are 0, [] if it is always 0, else None."""
    node = value.node
    if node is None:
        return None
    if node.op == "full":
        payload = node.attrs.get("value")
        is_zero = payload is None or (isinstance(payload, Tensor) and not payload.numpy().any())
        return [] if is_zero else None
    if node.op == "concatenate" or has_trait(node, Trait.MOVES):
        sources = node.inputs if node.op == "concatenate" else node.inputs[:1]
        return [source for source in sources if source is not None]
    array = evaluator.array(value)
    return [] if array is not None and not array.any() else None


RULES: Rules[ShapeEvaluator] = dict.fromkeys(("gru", "lstm", "rnn"), (drop_zero_state,))
"""The rule for each operator."""
