"""Checks and conversions for nodes that passes make.

They find operators by name, turn numbers into operands, and check attributes.

+ `Rewriter.make` and `Rewriter.set_attr` use them. Facts come from the operator table, and from the
schemas of the module for all other operators. Each error is one sentence that lists the
alternatives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..support.errors import IRError
from .attributes import Attribute, AttributeRef, EmptyList
from .foreign_operators import Schema, near_name
from .graph import Node, Value
from .module import Module
from .operand_types import Number, Operands
from .ops import BY_ONNX_NAME, OPS, canonical_domain, op_info
from .ops.row import MARKS, OpInfo, form_opset, invalid_attribute, missing_operands
from .record import Record
from .tensor import ArrayTensor, dtype_from_numpy, numpy_dtype, round_to
from .types import DType, dtype_of

OWN_ATTRIBUTES = MARKS | {"axis", "broadcast", "value"}
"""Attributes of in-house operators that are irc's own."""


class Operator(Record):
    """An operator of ONNX or of another domain, in the `opset` that the graph imports.

    `schema` is None if it is unknown.
    """

    domain: str
    op_type: str
    opset: int
    schema: Schema | None

    @property
    def op(self) -> str:
        """The name of a foreign node."""
        return f"{self.domain}::{self.op_type}"


def find_operator(op: str, module: Module, at: Node, opset: int | None) -> Operator:
    """Return the operator that `op` names in the graph of `at` and the table does not have.

    `op` is `onnx::HardSwish` (also `::HardSwish`, `HardSwish`) or `domain::OpType`. A domain that
    the graph does not import gets an import of `opset`, by default of the first opset that has the
    operator. Raises IRError if there is no such operator, or the graph imports another opset.
    """
    graph = at.graph
    assert graph is not None
    schemas, opsets = module.foreign, graph.opsets
    domain, separator, op_type = op.partition("::")
    if not separator:
        domain, op_type = "", op
        if schemas.names("") and op_type not in schemas.names(""):
            raise IRError(f"there is no operator {op!r}{near_name(op, [*OPS, *schemas.names('')])}")
    domain = "" if domain == "onnx" and domain not in opsets else canonical_domain(domain)
    if not op_type:
        raise IRError(f"{op!r} names no operator: write domain::OpType")
    title = domain or "ONNX"
    version = opsets.get(domain) or (1 if not domain else None)
    first = schemas.first_opset(domain, op_type)
    if version is None:
        version = opsets[domain] = opset or first or 1
    if opset is not None and opset != version:
        raise IRError(
            f"the model imports opset {version} of {title}, so {op_type} cannot be of opset {opset}"
        )
    if (domain, op_type, "") in module.functions:
        return Operator(domain, op_type, version, None)
    if (why := schemas.why_absent(domain, op_type, version)) is not None:
        raise IRError(why)
    return Operator(domain, op_type, version, schemas.find(domain, op_type, version))


def newest_form(info: OpInfo, module: Module, at: Node) -> Schema | None:
    """Return the schema of an operator of the table in the IR's form, None if it is unknown."""
    if info.onnx is None:
        return None
    return module.foreign.find("", info.onnx, form_opset(info, at.opset))


def schema_of(node: Node, module: Module, opset: int | None = None) -> Schema | None:
    """Return the schema of the operator of `node`, None if unknown.

    It is that of the opset of its graph, or of another `opset`.
    """
    info = op_info(node.op)
    domain, _, op_type = ("", "", info.onnx) if info is not None else node.op.partition("::")
    if op_type is None or node.graph is None:
        return None
    return module.foreign.find(domain, op_type, opset or node.graph.opsets.get(domain, 1))


def check_count(
    title: str, inputs: Operands, names: Sequence[str], least: int, greatest: int
) -> None:
    """Raise IRError unless the number of inputs is allowed, and none that is needed is absent.

    `names` are the operands.
    """
    missing = missing_operands(names, least, inputs)
    if not least <= len(inputs) <= greatest:
        wanted = f"{title} takes {_count(least, greatest)} inputs, not {len(inputs)}"
        raise IRError(f"{wanted}: it lacks {missing}" if missing else wanted)
    if missing:
        raise IRError(f"{title} lacks {missing}")


def _count(least: int, greatest: int) -> str:
    """Return a range of counts in words."""
    if least == greatest:
        return f"{least}"
    return f"{least} or more" if greatest > 99 else f"{least} to {greatest}"


def constants_for(title: str, inputs: Operands, schema: Schema | None) -> dict[int, ArrayTensor]:
    """Return the constants that the numbers among `inputs` become, by index.

    A number has the element type of the operands that share its type in the schema; without a
    schema that is the type of the first operand of known type. Raises IRError if the number does
    not fit the type.
    """
    numbers = {
        i: value
        for i, value in enumerate(inputs)
        if value is not None and not isinstance(value, Value)
    }
    found: dict[int, ArrayTensor] = {}
    for i, number in numbers.items():
        dtype = None
        if schema is None or not schema.operands:
            dtype = next(
                (each for value in inputs if (each := _known_dtype(value)) is not None), None
            )
        else:
            formal = [schema.operands[min(j, len(schema.operands) - 1)] for j in range(len(inputs))]
            peers = [
                value
                for value, each in zip(inputs, formal, strict=True)
                if each.kind == formal[i].kind
            ]
            dtype = next(
                (each for value in peers if (each := _known_dtype(value)) is not None), None
            )
            if dtype is None and len(formal[i].dtypes) == 1:
                (dtype,) = formal[i].dtypes
        found[i] = constant_of(number, dtype, title)
    return found


def _known_dtype(value: Value | Number | None) -> DType | None:
    return dtype_of(value.type) if isinstance(value, Value) else None


def constant_of(number: Number, dtype: DType | None, title: str) -> ArrayTensor:
    """Return a constant of `dtype`, or by default of f32, i64, bool or the dtype of the array.

    Raises IRError unless `dtype` has the number: a float is rounded to a float, other changes are
    refused.
    """
    array = np.array(number)
    if array.dtype.kind not in "biufcV":
        kind = type(number).__name__
        raise IRError(
            f"{title}: {kind} is not an operand: give a value of the graph, a number or an array"
        )
    if dtype is None:
        if not isinstance(number, np.ndarray | np.generic) and array.dtype.kind == "f":
            array = array.astype(np.float32)
        return ArrayTensor(array, dtype_from_numpy(array.dtype))
    storage = numpy_dtype(dtype)
    if array.dtype == storage:
        return ArrayTensor(array, dtype)
    with np.errstate(all="ignore"):
        if dtype.is_float and array.dtype.kind != "c":
            wide = array.astype(np.float64)
            converted = round_to(wide, dtype)
            fits = np.array_equal(np.isfinite(converted.astype(np.float64)), np.isfinite(wide))
        else:
            converted = array.astype(storage)
            fits = np.array_equal(converted.astype(array.dtype), array)
    if not fits:
        shown = repr(number) if array.ndim == 0 else f"an array of {array.dtype}"
        raise IRError(
            f"{title}: {shown} cannot be an operand of type {dtype}, the type of the other operands"
        )
    return ArrayTensor(converted, dtype)


def checked_attributes(
    title: str, attrs: Mapping[str, object], info: OpInfo | None, schema: Schema | None
) -> dict[str, Attribute]:
    """Return attributes in the form of the IR.

    Raises IRError for an unknown one, or one of another kind.
    """
    result: dict[str, Attribute] = {}
    for name, value in attrs.items():
        kind = None if schema is None else schema.attributes.get(name)
        is_own = info is not None and (name in info.attrs or name in OWN_ATTRIBUTES)
        if schema is not None and kind is None and not is_own:
            known = sorted(schema.attributes)
            raise IRError(
                f"{title} has no attribute {name!r}{near_name(name, known)} (attributes:"
                f" {', '.join(known) or 'none'}); a marker goes into the metadata of the node"
            )
        result[name] = _attribute(title, name, value, kind)
    invalid = None if info is None else invalid_attribute(info, result)
    if invalid is not None:
        raise IRError(f"{title}: {result[invalid]!r} is not a value of the attribute {invalid}")
    return result


def _attribute(title: str, name: str, value: object, kind: str | None) -> Attribute:
    """Return an attribute of the `kind` that the schema states.

    Numbers and lists of Python and numpy are taken.
    """
    if kind is None and (value.__class__ is int or value.__class__ is float):
        return value
    if isinstance(value, AttributeRef | EmptyList):
        return value
    if isinstance(value, np.ndarray) and kind in (None, "TENSOR"):
        return ArrayTensor(np.array(value), dtype_from_numpy(value.dtype))
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    plural = isinstance(value, list | tuple)
    given: Sequence[Any] = value if isinstance(value, list | tuple) else (value,)
    items = [int(item) if isinstance(item, bool) else item for item in given]
    if kind in ("FLOAT", "FLOATS"):
        items = [float(item) if isinstance(item, int) else item for item in items]
    wanted = _PYTHON_TYPES.get((kind or "").removesuffix("S"))
    are_items = wanted is None or all(isinstance(item, wanted) for item in items)
    if kind is not None and not (are_items and plural == kind.endswith("S")):
        raise IRError(f"{title}: attribute {name} is of kind {kind.lower()}, and {value!r} is not")
    if plural:
        return tuple(items) or EmptyList((kind or "INTS").lower())
    return items[0]


_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "INT": (int,),
    "FLOAT": (float,),
    "STRING": (str, bytes),
}
"""The Python types of the items of an attribute, by its kind in ONNX."""


def check_required(title: str, attrs: Mapping[str, Attribute], schema: Schema | None) -> None:
    """Raise IRError if an attribute without a default is absent."""
    missing = [name for name in schema.required if name not in attrs] if schema is not None else []
    if missing:
        raise IRError(f"{title} needs the attribute {missing[0]}")


def table_row(operator: Operator) -> OpInfo | None:
    """Return the row that an operator of ONNX's own domain has in the operator table."""
    return None if operator.domain else BY_ONNX_NAME.get(operator.op_type)
