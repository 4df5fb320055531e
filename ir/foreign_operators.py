"""Operators of the source format that the operator table does not have.

A format tells their schemas, types, constants and lowering. They belong to the format, which stands
above the IR: a module carries them from its frontend, and passes ask it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ..support.errors import nearest
from ..support.limits import Limits
from .attributes import Attribute
from .graph import Node
from .ops.row import Constants, NodeView
from .provenance import Refusal
from .record import Record
from .types import DType, Type


class Operand(Record):
    """An operand of a schema by its name.

    Operands of one `kind` have one type; `dtypes` are the element types that it may have.
    """

    name: str
    kind: str
    dtypes: frozenset[DType]


class Schema(Record):
    """An operator in one opset of its domain.

    `attributes` maps names to kinds of ONNX (`INT`, `FLOATS`, ...), `required` are those without a
    default. `least` and `greatest` bound the number of inputs; `results` is the number of outputs
    that are needed, `outputs` describes all. The last operand or output may stand for several.
    """

    attributes: Mapping[str, str]
    required: Sequence[str]
    operands: Sequence[Operand]
    least: int
    greatest: int
    results: int
    outputs: Sequence[Operand] = ()


class ForeignOperators:
    """The operators of a format. This one has none, and so allows everything."""

    def find(self, domain: str, op_type: str, opset: int) -> Schema | None:
        """Return the schema of an operator in the opset of its domain, None if it has none."""
        return None

    def first_opset(self, domain: str, op_type: str) -> int | None:
        """Return the first opset that has an operator, None if no opset has it."""
        return None

    def names(self, domain: str) -> Collection[str]:
        """Return the names of all operators of a domain; empty if its schemas are not known."""
        return ()

    def newest(self, domain: str) -> int:
        """Return the last opset of a domain whose operators are known."""
        return 0

    def why_absent(
        self, domain: str, op_type: str, opset: int, owner: str = "the model"
    ) -> str | None:
        """Return why the opset that `owner` imports has no such operator, None if it may have."""
        newest = self.newest(domain)
        if not newest or opset > newest or self.find(domain, op_type, opset) is not None:
            return None
        title, first = domain or "ONNX", self.first_opset(domain, op_type)
        if first is None:
            return f"{title} has no operator {op_type!r}{near_name(op_type, self.names(domain))}"
        since = f"has it from opset {first} on" if first > opset else "has it in older opsets only"
        return f"opset {opset} of {title}, which {owner} imports, has no {op_type}: {title} {since}"

    def since(self, op_type: str, opset: int) -> int:
        """Return the opset that introduced an operator of ONNX as it is in `opset`, else 0."""
        return 0

    def lower(self, domain: str, op_type: str, view: NodeView) -> tuple[str | None, Refusal | None]:
        """Return the in-house operator of a node, or None and, for an affine, the reason."""
        return None, None

    def constant_payload(self, form: str, value: Attribute) -> Attribute | None:
        """Return the payload of a Constant with the attribute `form`, None if `value` is wrong."""
        return None

    def infer(self, node: Node, constants: Constants, limits: Limits) -> Sequence[Type]:
        """Return the result types of a node that the table does not infer.

        Unknown parts are left open.
        """
        return ()

    def infer_all(
        self, module: Any
    ) -> Callable[[Node], Sequence[Type]] | None:  # a Module, which has its operators
        """Return a function from nodes of `module` to the types of their results.

        The result is None if inference fails.
        """
        return None


def near_name(name: str, known: Collection[str]) -> str:
    """Return a question for the end of a message with the known name nearest to `name`.

    Case does not matter. The result is empty if no name is near.
    """
    folded = {each.lower(): each for each in known}
    near = nearest(name.lower(), folded, cutoff=0.6)
    return "" if near is None else f"; did you mean {folded[near]}?"
