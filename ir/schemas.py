"""Schemas of ONNX's operators, as far as the IR needs them to check and type the nodes that passes make.

The operator table knows the operators that irc works with. The schemas of all others belong to the onnx package, whose
messages stand above the IR: a frontend, or a pass that runs, gives a module its `Schemas`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ..support.errors import nearest
from ..support.limits import Limits
from ..support.record import record
from .graph import Node
from .ops.row import Constants, NodeView
from .types import DType, Type


@record
class Operand:
    """An operand of a schema: operands of one `kind` have one type; `dtypes` are the element types that it may have."""

    kind: str
    dtypes: frozenset[DType]


@record
class Schema:
    """An operator in one opset of its domain.

    `attributes` maps names to kinds of ONNX (`INT`, `FLOATS`, ...), `required` are those without a default. `least` and
    `greatest` bound the number of inputs, and `results` that of the outputs that are needed. The last operand may stand
    for several.
    """

    attributes: Mapping[str, str]
    required: Sequence[str]
    operands: Sequence[Operand]
    least: int
    greatest: int
    results: int


class Schemas:
    """A source of schemas. This one has none, and so allows everything."""

    def find(self, domain: str, op_type: str, opset: int) -> Schema | None:
        """Return the schema of an operator in the opset of its domain, None where there is none."""
        return None

    def first_opset(self, domain: str, op_type: str) -> int | None:
        """Return the first opset that has an operator, None where none has."""
        return None

    def names(self, domain: str) -> Collection[str]:
        """Return the names of all operators of a domain, none where its schemas are not known."""
        return ()

    def newest(self, domain: str) -> int:
        """Return the last opset of a domain whose operators are known."""
        return 0

    def why_absent(self, domain: str, op_type: str, opset: int, owner: str = "the model") -> str | None:
        """Return why the opset of a domain that `owner` imports has no such operator, None if it may have it."""
        newest = self.newest(domain)
        if not newest or opset > newest or self.find(domain, op_type, opset) is not None:
            return None
        title, first = domain or "ONNX", self.first_opset(domain, op_type)
        if first is None:
            return f"{title} has no operator {op_type!r}{near_name(op_type, self.names(domain))}"
        since = f"has it from opset {first} on" if first > opset else "has it in older opsets only"
        return f"opset {opset} of {title}, which {owner} imports, has no {op_type}: {title} {since}"

    def lower(self, op_type: str, view: NodeView) -> str | None:
        """Return the in-house operator that a node of ONNX's own domain is, None where it is none."""
        return None

    def infer(self, node: Node, constants: Constants, limits: Limits) -> Sequence[Type]:
        """Return the types of the results of a node that the table does not infer; unknown parts are left open."""
        return ()


def near_name(name: str, known: Collection[str]) -> str:
    """Return a question for the end of a message with the known name most similar to `name`, of letters of any case."""
    folded = {each.lower(): each for each in known}
    near = nearest(name.lower(), folded, cutoff=0.6)
    return "" if near is None else f"; did you mean {folded[near]}?"


NO_SCHEMAS = Schemas()
