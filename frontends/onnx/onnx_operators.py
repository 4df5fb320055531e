"""The operators of ONNX in the installed onnx package: schemas, types, constants, lowering."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence, Set
from functools import cache

from ...ir.attributes import Attribute
from ...ir.foreign_operators import ForeignOperators, Operand, Schema
from ...ir.graph import Node, payload_of
from ...ir.module import Module
from ...ir.ops import OPS
from ...ir.ops.row import Constants, NodeView, form_opset
from ...ir.provenance import Refusal
from ...ir.tensor import Tensor
from ...ir.types import DTYPES, UNKNOWN, Dim, DType, TensorType, Type, is_static, shape_of
from ...support.hooks import provided
from ...support.limits import Limits
from .codec.onnx_attributes import export_attribute
from .codec.onnx_parts import domain_schemas, get_schema, has_schema, newest_opset
from .codec.onnx_types import import_type, value_info
from .codec.protos import ModelProto
from .codec.tensors import write_tensor
from .codec.traversal import all_graphs
from .constants import constant_payload
from .lowering import lower
from .shape_inference import PAYLOAD_LIMIT, infer_shapes

_DTYPES = {
    "float": "f32", "double": "f64", "float16": "f16", "bfloat16": "bf16", "bool": "bool",
    "string": "str",
    **{f"int{bits}": f"i{bits}" for bits in (2, 4, 8, 16, 32, 64)},
    **{f"uint{bits}": f"u{bits}" for bits in (2, 4, 8, 16, 32, 64)},
    "complex64": "c64", "complex128": "c128",
}  # fmt: skip
"""Element types by their names in ONNX's schemas."""


class OnnxOperators(ForeignOperators):
    """The operators of ONNX."""

    def find(self, domain: str, op_type: str, opset: int) -> Schema | None:
        return _schema(domain, op_type, opset)

    def first_opset(self, domain: str, op_type: str) -> int | None:
        return domain_schemas(domain).get(op_type)

    def names(self, domain: str) -> Collection[str]:
        return domain_schemas(domain)

    def newest(self, domain: str) -> int:
        return newest_opset(domain)

    def since(self, op_type: str, opset: int) -> int:
        known = 0 <= opset <= newest_opset() and has_schema(op_type, opset)
        return int(get_schema(op_type, opset).since_version) if known else 0

    def lower(self, domain: str, op_type: str, view: NodeView) -> tuple[str | None, Refusal | None]:
        return lower(domain, op_type, view)

    def constant_payload(self, form: str, value: Attribute) -> Attribute | None:
        return constant_payload(form, value)

    def infer(self, node: Node, constants: Constants, limits: Limits) -> Sequence[Type]:
        if node.regions or node.graph is None:
            return ()
        model = _model_of(node)
        inferred = infer_shapes(model, isolate=limits.isolate)
        if inferred is None:
            return ()
        symbols = {
            dim for value in node.inputs if value is not None for dim in shape_of(value.type) or ()
        }
        found = {
            info.name: import_type(info.type)
            for info in (*inferred.graph.value_info, *inferred.graph.output)
        }
        types = [found.get(name, UNKNOWN) for name in model.graph.node[0].output]
        return [_with_symbols(type_, symbols) for type_ in types]

    def infer_all(self, module: Module) -> Callable[[Node], Sequence[Type]] | None:
        """Return the types by onnx's shape inference of the module as ONNX.

        It gets the types that are known: it does not evaluate the constant expressions from which
        some follow.
        """
        model, _, names = provided("emit_model")(module)
        values = [
            value
            for node in module.graph.operators()
            for value in node.outputs
            if is_static(value.type)
        ]
        known = [value_info(names.of(value), value.type) for value in values if value.name]
        inferred = infer_shapes(model, known=known, isolate=module.limits.isolate)
        if inferred is None:
            return None
        infos = (
            info for graph in all_graphs(inferred) for info in (*graph.value_info, *graph.output)
        )
        types = {info.name: import_type(info.type) for info in infos}
        return lambda node: [types.get(names.of(value), UNKNOWN) for value in node.outputs]


ONNX_OPERATORS = OnnxOperators()


@cache
def _schema(domain: str, op_type: str, opset: int) -> Schema | None:
    if opset < 1 or not has_schema(op_type, opset, domain):
        return None
    found = get_schema(op_type, opset, domain)
    if found.deprecated:
        return None
    attributes = {
        name: str(attribute.type).rpartition(".")[2] for name, attribute in found.attributes.items()
    }
    required = [name for name, attribute in found.attributes.items() if attribute.required]
    operands, outputs = (
        [Operand(each.name, each.type_str, _dtypes_of(each.types)) for each in formals]
        for formals in (found.inputs, found.outputs)
    )
    return Schema(
        attributes, required, operands, found.min_input, found.max_input, found.min_output, outputs
    )


def _dtypes_of(types: Collection[str]) -> frozenset[DType]:
    names = (
        type_.removeprefix("tensor(").removesuffix(")")
        for type_ in types
        if type_.startswith("tensor(")
    )
    return frozenset(DTYPES[_DTYPES[name]] for name in names if name in _DTYPES)


def _model_of(node: Node) -> ModelProto:
    """Return a model of `node` alone, whose small constants are initializers."""
    model = ModelProto(ir_version=10)
    row, opsets = OPS.get(node.op), {} if node.graph is None else dict(node.graph.opsets)
    if row is not None:  # in the form of the IR
        opsets[""] = form_opset(row, node.opset)
    for domain, version in opsets.items():
        model.opset_import.add(domain=domain, version=version)
    values = {
        value: f"v{i}" for i, value in enumerate(dict.fromkeys(node.inputs)) if value is not None
    }
    for value, name in values.items():
        payload = payload_of(value)
        if isinstance(payload, Tensor) and payload.nbytes <= PAYLOAD_LIMIT:
            write_tensor(model.graph.initializer.add(), payload, name)
        else:
            model.graph.input.append(value_info(name, value.type))
    domain, _, op_type = node.op.partition("::") if row is None else ("", "", row.onnx or "")
    proto = model.graph.node.add(domain=domain, op_type=op_type)
    proto.input.extend("" if value is None else values[value] for value in node.inputs)
    proto.output.extend(f"r{i}" for i in range(len(node.outputs)))
    proto.attribute.extend(export_attribute(name, value, ()) for name, value in node.attrs.items())
    return model


def _with_symbols(type_: Type, symbols: Set[Dim]) -> Type:
    """Return a type without the symbols that inference made up."""
    if not isinstance(type_, TensorType) or type_.shape is None:
        return type_
    shape = [dim if isinstance(dim, int) or dim in symbols else None for dim in type_.shape]
    return TensorType(type_.dtype, tuple(shape))
