"""The operator table: one row for each in-house operator, which holds all that irc knows of it.

Names are Relay's if Relay has one. An operator that is not in the table is foreign: it is kept
verbatim, may do anything, and no rewrite looks through it. Attributes are as in the ONNX operator
of the same meaning. Four things are irc's own:

- `axis` on `multiply`, `add`, `subtract`, `divide` and `nn.bias_add` aligns the first axis of the
  second operand with that axis of the first, counted from the left, so that a per-channel operation
  needs no rank;
- their second operand, and the bias of a convolution or dense layer, may be float64 beside narrower
  data: the exact value of an affine parameter, rounded once when it is used (see `is_wide`);
- `folded` on `multiply` marks the product of a weight and the float64 factor that was folded into
  it;
- `variable` is an initializer that training may change: its payload is kept, but not constant.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

from ..graph import ONNX_NAMES, OPERANDS, Graph, Node, Value
from . import (
    indexing,
    logic,
    nonlinear,
    normalization,
    numeric,
    opaque,
    pooling,
    reduction,
    reshaping,
    sources,
    weighted,
)
from .evaluation import has_wide_parameter
from .row import Function, OpInfo, Trait

FAMILIES = (
    sources, weighted, normalization, nonlinear, pooling, reduction, numeric, logic, reshaping,
    indexing, opaque,
)  # fmt: skip

OPS: dict[str, OpInfo] = {
    row.name: row for row in chain.from_iterable(family.ROWS for family in FAMILIES)
}
"""The operator table by name."""

ONNX_NAMES.update((row.name, row.onnx) for row in OPS.values() if row.onnx is not None)
ONNX_NAMES["nn.batch_norm_to_affine"] = "BatchNormalization"

OPERANDS.update((row.name, row.operands) for row in OPS.values())

BY_ONNX_NAME: dict[str, OpInfo] = {
    row.onnx: row
    for row in OPS.values()
    if row.onnx is not None and Trait.MADE_BY_PASSES not in row.traits
}
"""The rows by the name that the operator has in ONNX's default domain."""

AFFINE_KINDS: dict[str, str] = {
    row.name: row.affine.kind for row in OPS.values() if row.affine is not None
}
"""The kind of affine that an operator is if its other operands are constant."""

DEFAULT_DOMAINS = ("", "ai.onnx")
"""The names of ONNX's own domain in models."""


def canonical_domain(domain: str) -> str:
    """Return the name of a domain in the IR: "" for ONNX's own."""
    return "" if domain in DEFAULT_DOMAINS else domain


CONTROL_FLOW = frozenset(("If", "Loop", "Scan", "SequenceMap"))
"""The operators of ONNX's own domain with bodies. They give and take values by position."""

op_info: Callable[[str], OpInfo | None] = OPS.get
"""Return the table's row for an operator, None for a foreign one.

As a bound method it costs no call of its own.
"""


def is_legal(op: str, form: str, at: Node) -> bool:
    """Return whether an `op` beside the node `at` may have `form` in the opset of the graph.

    It is the one place where a rewrite asks the target. The row of the operator lists its forms;
    one that it does not list is as old as the operator.
    """
    return at.opset >= OPS[op].forms.get(form, 1)


def is_in_opset(op: str, at: Node) -> bool:
    """Return whether the opset of the graph of the node `at` has the operator `op`."""
    return at.opset >= OPS[op].since


def takes_operand(op: str, name: str, at: Node) -> bool:
    """Return whether an `op` beside the node `at` has the parameter `name` as an operand.

    An operand may have any dtype. Otherwise the backend writes a constant operand as an attribute,
    which is float32.
    """
    return at.opset >= OPS[op].parameters[name].since


def ops_with(trait: Trait) -> tuple[str, ...]:
    """Return the names of the operators that have `trait`, for tables of rules."""
    return tuple(name for name, row in OPS.items() if trait in row.traits)


def has_trait(node: Node, trait: Trait) -> bool:
    """Return whether the operator of `node` has `trait`; a foreign operator has none."""
    info = OPS.get(node.op)
    return info is not None and trait in info.traits


def parameter_axis(node: Node) -> int | None:
    """Return the axis at which a second operand is aligned, None if there is no such axis."""
    axis = node.attrs.get("axis", 1 if node.op == "nn.bias_add" else None)
    return axis if isinstance(axis, int) and has_trait(node, Trait.ALIGNED) else None


def function_of(node: Node) -> Function | None:
    """Return the function that `node` computes on each element, None if irc knows none."""
    info = OPS.get(node.op)
    return None if info is None or info.function is None else info.function(node)


def terms_of(node: Node) -> float | None:
    """Return how many products an element of the result sums, None if it sums none.

    It is infinity if the shapes do not say it.
    """
    info = OPS.get(node.op)
    return None if info is None or info.terms is None else info.terms(node)


def is_wide(node: Node) -> bool:
    """Return whether a node combines narrow data with a float64 affine parameter.

    It is a `multiply`, `add` or `nn.bias_add`.
    """
    info = OPS.get(node.op)
    return info is not None and info.wide == "rhs" and has_wide_parameter(node)


def is_foreign_body(region: Graph) -> bool:
    """Return whether the operator of a body may identify its inputs and results by name."""
    if region.parent is None:
        return False
    domain, _, op_type = region.parent.op.partition("::")
    return domain != "" or op_type not in CONTROL_FLOW


def reads_elements(node: Node, value: Value) -> bool:
    """Return whether `node` reads the elements of `value`, and not only its shape or dtype."""
    info = OPS.get(node.op)
    if info is None or not info.by_type:
        return True
    return any(
        operand is value and i not in info.type_operands for i, operand in enumerate(node.inputs)
    )


def sole_reader(value: Value) -> Node | None:
    """Return the node that alone reads the elements of `value`, once, else None."""
    found: Node | None = None
    for node, count in value.users.items():
        if reads_elements(node, value):
            if found is not None or count > 1:
                return None
            found = node
    return found
