"""Operands that older opsets state as attributes.

Frontends make them operands, the backend makes attributes of them.

+ The IR has the form of the newest opset, whatever opset the model has. So no rule asks for the
opset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..attributes import Attribute, EmptyList
from ..graph import Node, Source, Value
from ..provenance import Refusal
from ..tensor import Array, ArrayTensor, Tensor
from .row import NodeView, OpInfo, Parameter

Inputs = tuple[Value | None, ...]


def outdated(info: OpInfo, opset: int) -> dict[str, Parameter]:
    """Return the parameters that `opset` states in another form than the IR, by operand."""
    return {name: p for name, p in info.parameters.items() if opset < p.since}


def attribute_name(name: str, parameter: Parameter, opset: int) -> str:
    """Return the name that the attribute for the operand `name` has in `opset`."""
    return (parameter.first if opset == 1 else "") or parameter.attribute or name


def legacy_count(info: OpInfo, parameters: Mapping[str, Parameter]) -> int:
    """Return how many operands a node can have if `parameters` are not in their places."""
    return min(
        info.operands[name] if p.place is None else p.place + 1 for name, p in parameters.items()
    )


def mixed_forms(info: OpInfo, node: NodeView) -> Refusal | None:
    """Refuse a node with a parameter in the form of another opset, or an empty list.

    Runtimes read an empty list differently.
    """
    old = outdated(info, node.opset)
    if old and len(node.inputs) > legacy_count(info, old):
        return Refusal("unsupported_op", f"{len(node.inputs)} inputs")
    for name, parameter in info.parameters.items():
        right = attribute_name(name, parameter, node.opset) if name in old else ""
        names = (attribute_name(name, parameter, 0), parameter.first)
        for stated in filter(node.attrs.__contains__, names):
            if stated != right or parameter.place is not None:
                return Refusal("unsupported_attr", f"{stated} is an attribute in another opset")
            if tensor_of(node.attrs[stated]) is None:
                return Refusal("unsupported_attr", f"{stated} is empty or of another kind")
    return None


def with_operands(
    info: OpInfo,
    attrs: Mapping[str, Attribute],
    inputs: Inputs,
    insert: Callable[[Node], Node],
    opset: int | None = None,
    sources: Callable[[str], object] = lambda name: None,
) -> tuple[dict[str, Attribute], Inputs]:
    """Return attributes and inputs in the form of the newest opset.

    An attribute becomes a constant without a name, which `insert` places; `sources` returns the
    object that it was imported from. Without an `opset` all attributes that state a parameter are
    taken, and no operand is moved.
    """
    rest, operands = dict(attrs), list(inputs)
    for name, parameter in info.parameters.items():
        given: Value | None = None
        if parameter.place is not None:
            if opset is None or opset >= parameter.since or len(operands) <= parameter.place:
                continue
            given = operands.pop(parameter.place)
        else:
            attribute = attribute_name(name, parameter, opset or 0)
            tensor = tensor_of(rest.get(attribute))
            if tensor is None:
                continue
            del rest[attribute]
            value: dict[str, Attribute] = {"value": tensor}
            message = sources(attribute)
            source = None if message is None else Source(message, value)
            given = insert(
                Node("constant", (), value, outputs=(("", tensor.type),), source=source)
            ).output
        index = info.operands[name]
        operands.extend([None] * (index + 1 - len(operands)))
        operands[index] = given
    return rest, tuple(operands)


def tensor_of(value: Attribute | None) -> Tensor | None:
    """Return the operand that a numeric attribute states: i64 or f32, lists as vectors."""
    items = value if isinstance(value, tuple) else (value,)
    if not items or not all(isinstance(item, int | float) for item in items):
        return None
    dtype = (
        np.int64
        if isinstance(value, tuple) and all(isinstance(item, int) for item in items)
        else np.float32
    )
    return ArrayTensor(np.array(items if isinstance(value, tuple) else value, dtype))


def is_exact_attribute(array: Array) -> bool:
    """Return whether an attribute can state an operand exactly.

    It can if the numbers are integers of a list, or float32 has them.
    """
    if array.ndim and array.dtype.kind in "iu":
        return True
    wide = array.astype(np.float64)
    with np.errstate(over="ignore"):
        return bool(np.array_equal(wide, wide.astype(np.float32), equal_nan=True))


def attribute_of(array: Array) -> Attribute:
    """Return the attribute that states an operand that fits one, the inverse of `tensor_of`."""
    if array.ndim == 0 or array.dtype.kind not in "iu":
        items: list[float] = [float(item) for item in array.ravel()]
        return items[0] if array.ndim == 0 else tuple(items) or EmptyList("floats")
    return tuple(int(item) for item in array.ravel()) or EmptyList("ints")
