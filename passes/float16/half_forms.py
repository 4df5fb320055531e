"""The float16 and bfloat16 forms of operators, by ONNX's schemas."""

from __future__ import annotations

from ...ir.evaluate import UNREADABLE
from ...ir.foreign_operators import Schema
from ...ir.graph import Node, Value, call_key
from ...ir.making import newest_form, schema_of
from ...ir.module import Module
from ...ir.ops import is_legal, op_info
from ...ir.ops.reshaping import CAST_TARGETS
from ...ir.record import Record
from ...ir.tensor import Tensor
from ...ir.types import F16, F32, F64, DType, TensorType, dtype_of
from .narrow_types import NAMES, opset_of

LATEST = 1 << 30
"""An opset beyond all: the newest schema of an operator."""

TYPED_BY_ATTRIBUTE = ("dtype", "output_dtype")
"""Attributes that name the element type of a result."""

CAST_CODES = {name: code for code, name in CAST_TARGETS.items()}
"""The numbers of element types in ONNX, by their names in IR text."""


class HalfForm(Record):
    """The float32 operands and results of a node, by index, that are float16 in its float16 form.

    A node that reads and makes no such value has none of either.
    """

    operands: frozenset[int] = frozenset()
    results: frozenset[int] = frozenset()

    @property
    def is_empty(self) -> bool:
        """Whether the node has nothing to do with floating point."""
        return not (self.operands or self.results)


def no_form(dtype: DType, place: str = "ONNX") -> str:
    """Return the reason of an operator that does not take a type, or whose types are not known."""
    return f"no {NAMES[dtype]} form in {place}"


def half_form(node: Node, module: Module, dtype: DType = F16) -> HalfForm | str:
    """Return the form of a node in a narrow type, or the reason why there is none."""
    form = _form(node, module, dtype)
    if isinstance(form, str) and not any(map(is_single, (*node.inputs, *node.outputs))):
        return HalfForm()
    return form


def _form(node: Node, module: Module, dtype: DType) -> HalfForm | str:
    domain = node.op.partition("::")[0] if "::" in node.op else ""
    if call_key(node) in module.functions:
        return "a call of a function"
    if node.is_hidden:
        return "it is to be kept"
    if domain:
        return f"an operator of {domain}"
    if node.regions:
        return "an operator with a body"
    if node.op in ("variable", "return"):
        return no_form(dtype)
    if not all(_is_plain(value) for value in (*node.inputs, *node.outputs)):
        return no_form(dtype)
    if node.op == "cast":
        return _cast_form(node)
    if node.op == "full":
        form = _filled_form(node, module, dtype)
    else:
        form = _form_by_schema(node, *_schemas(node, module), dtype)
    if isinstance(form, str) and dtype is not F16:
        newest = schema_of(node, module, LATEST)
        if newest is not None and any(dtype in formal.dtypes for formal in newest.operands):
            return no_form(dtype, f"opset {opset_of(module)}")
    return form


def _cast_form(node: Node) -> HalfForm:
    reads, makes = is_single(node.operand()), is_single(node.output)
    return HalfForm(
        frozenset((0,)) if reads else frozenset(), frozenset((0,)) if makes else frozenset()
    )


def _filled_form(node: Node, module: Module, dtype: DType) -> HalfForm | str:
    """Return the form of a ConstantOfShape, whose number is an attribute that can be read."""
    if not is_single(node.output):
        return HalfForm()
    if not is_legal("full", str(dtype), node):
        return no_form(dtype, f"opset {opset_of(module)}")
    value = node.attrs.get("value")
    try:
        is_number = value is None or (isinstance(value, Tensor) and value.numpy().size == 1)
    except UNREADABLE:
        return no_form(dtype)
    return HalfForm(results=frozenset((0,))) if is_number else no_form(dtype)


def _form_by_schema(
    node: Node, form: Schema | None, old: Schema | None, dtype: DType
) -> HalfForm | str:
    """Return the form by the newest schema of the operator, if that of its opset has it, too."""
    if form is None or old is None or not form.operands:
        return no_form(dtype)
    if any(name in form.attributes for name in TYPED_BY_ATTRIBUTE):
        return no_form(dtype)
    operands: set[int] = set()
    kinds: set[str] = set()
    for index, value in enumerate(node.inputs):
        if not (is_single(value) or _is_wide(node, index)):
            continue
        formal = form.operands[min(index, len(form.operands) - 1)]
        before = old.operands[min(index, len(old.operands) - 1)]
        if dtype in formal.dtypes and (dtype in before.dtypes or index >= len(old.operands)):
            operands.add(index)
            kinds.add(formal.kind)
    if not kinds:
        return no_form(dtype)
    if node.op == "nn.batch_norm":  # mean and variance, which may be large, have their own type
        own = form.operands[0].kind
        operands = {i for i in operands if i < 3 or form.operands[i].kind == own}
    results: set[int] = set()
    for index, result in enumerate(node.outputs):
        if is_single(result):
            formal = form.outputs[min(index, len(form.outputs) - 1)]
            if formal.kind in kinds:
                results.add(index)
    return HalfForm(frozenset(operands), frozenset(results))


def _schemas(node: Node, module: Module) -> tuple[Schema | None, Schema | None]:
    """Return the schemas of the operator in the IR's form, and in the opset of the graph."""
    info, found = op_info(node.op), schema_of(node, module)
    return (found if info is None else newest_form(info, module, node)), found


def is_single(value: Value | None) -> bool:
    """Return whether a value is a float32 tensor."""
    return value is not None and isinstance(value.type, TensorType) and dtype_of(value.type) is F32


def _is_wide(node: Node, index: int) -> bool:
    """Return whether an operand is a float64 parameter beside float32 data."""
    value, info = node.input(index), op_info(node.op)
    if value is None or info is None or info.wide is None or info.operands[info.wide] != index:
        return False
    is_exact = value.node is not None and value.node.op == "constant"
    return is_exact and dtype_of(value.type) is F64 and is_single(node.input(0))


def _is_plain(value: Value | None) -> bool:
    """Return whether a value is absent, or a tensor of known element type."""
    return value is None or dtype_of(value.type) is not None
