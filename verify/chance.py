"""Numbers that noise moves by more than they are apart, or by more than they are: chance decides whether they are
equal, or zero. Rounding makes them so, and noise alone hardly ever would.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnx import NodeProto, TensorProto

from ..ir.ops import DEFAULT_DOMAINS
from .graph_builder import Writer, wide
from .graph_reads import bodies

COMPARING = frozenset(["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"])
"""Operators that rounding decides where their operands are as good as equal; so does it a Cast to boolean near zero."""
POLES = {"Div": 1, "Reciprocal": 0, "Log": 0, "Pow": 0}
"""Operators that make infinities of zeros, and in which operand."""


def is_decided(node: NodeProto) -> bool:
    """Whether a node makes booleans of numbers."""
    if node.domain not in DEFAULT_DOMAINS:
        return False
    casts = node.op_type == "Cast" and any(a.name == "to" and a.i == TensorProto.BOOL for a in node.attribute)
    return casts or node.op_type in COMPARING


def is_delicate(node: NodeProto) -> bool:
    """Whether what a node, or one in its bodies, gives may be quite another thing for numbers that are nearly equal."""
    inner = (inner for body in bodies(node) for inner in body.node)
    return is_decided(node) or node.op_type in POLES or any(map(is_delicate, inner))


def decide(writer: Writer, node: NodeProto, plain: Sequence[str], elem_type: int) -> None:
    """Let chance say what a comparison gives, the last node, of which `plain` are the operands without noise."""
    if [*plain] == [*node.input]:
        return
    out = node.output[0]
    raw = node.output[0] = writer.fresh("raw")
    near, chance = _near(writer, _apart(writer, node.input, elem_type), _apart(writer, plain, elem_type), elem_type)
    kept = writer.make("And", [raw, writer.make("Not", [near])])
    writer.make("Or", [writer.make("And", [near, chance]), kept])
    writer.nodes[-1].output[0] = out


def vanishing(writer: Writer, name: str, plain: str, elem_type: int) -> str:
    """The value, or zero where chance says so, of either sign; `plain` is what it is without noise."""
    kind = wide(elem_type)
    value = writer.widened(name, elem_type)
    near, chance = _near(writer, value, writer.widened(plain, elem_type), elem_type)
    null = writer.number(0.0, kind)
    value = writer.make("Where", [writer.make("And", [near, chance]), null, value])
    flipped = writer.make("And", [writer.make("Equal", [value, null]), chance])  # x + 0 is x but for -0
    sign = writer.make("Where", [flipped, writer.number(-1.0, kind), writer.number(1.0, kind)])
    return writer.cast(writer.make("Mul", [value, sign]), kind, elem_type)  # Where of onnxruntime loses the sign of -0


def _near(writer: Writer, value: str, plain: str, elem_type: int) -> tuple[str, str]:
    """Where noise moves a value by more than it is, and what chance says: of each element, or at once of all."""
    moved = writer.make("Sub", [value, plain])
    near = writer.make("Less", [writer.make("Abs", [plain]), writer.make("Abs", [moved])])
    limit = writer.dice(writer.number(0.0, TensorProto.FLOAT), TensorProto.FLOAT, 2.0)
    return near, writer.make("Less", [writer.dice(plain, wide(elem_type)), limit])


def _apart(writer: Writer, names: Sequence[str], elem_type: int) -> str:
    """The difference of two values, or of one from zero."""
    values = [writer.widened(name, elem_type) for name in names]
    return writer.make("Sub", values) if len(values) > 1 else values[0]
