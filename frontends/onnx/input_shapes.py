"""Fixed extents of the inputs of a model.

Symbols have the same extent everywhere in the main graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ...ir.extents import atoms
from ...ir.module import Module
from ...ir.type_inference import infer_types
from ...ir.types import UNKNOWN, Dim, Shape, TensorType, Type, shape_of
from ...support.errors import UsageError, clipped, did_you_mean
from .codec.protos import GraphProto, ModelProto, ValueInfoProto

InputShapes = Mapping[str, Sequence[int | None] | int] | Sequence[int | None]
"""Extents by the name of the input, of one input the extents alone. None leaves an extent as it is.
One extent may stand by its symbol, which fixes it wherever an input has it.
"""


def fix_model(model: ModelProto, shapes: InputShapes) -> None:
    """Give the inputs of `model`, which is changed, the extents of `shapes`, before it is imported.

    Raises UsageError for a name that is no input and no symbol of one, and for extents that
    contradict the model or each other.
    """
    graph = model.graph
    defaults = {tensor.name for tensor in graph.initializer}
    named = _named(shapes, [info.name for info in graph.input if info.name not in defaults])
    infos = {info.name: info for info in graph.input}
    tensors = (info for info in graph.input if info.type.WhichOneof("value") == "tensor_type")
    declared = {info.name: _declared_shape(info) for info in tensors}
    for tensor in graph.initializer:
        if tensor.name in declared:
            declared[tensor.name] = tuple(tensor.dims)  # of the default value
    fixed, symbols = _resolved(_checked(named, list(infos), declared), declared)
    for name, shape in fixed.items():
        message = infos[name].type.tensor_type.shape
        message.SetInParent()
        while len(message.dim) < len(shape):
            message.dim.add()
        for dim, extent in zip(message.dim, shape, strict=True):
            if isinstance(extent, int):
                dim.dim_value = extent
    for each in _graphs(graph):
        for info in (*each.input, *each.output, *each.value_info):
            if info.type.HasField("tensor_type"):
                for dim in info.type.tensor_type.shape.dim:
                    if dim.dim_param in symbols:
                        dim.dim_value = symbols[dim.dim_param]


def complete_declarations(module: Module) -> None:
    """Declare the extents of outputs and values that follow from the fixed inputs.

    Extents that the model states stay.
    """
    model = module.source
    assert isinstance(model, ModelProto)
    types = {value.name: value.type for node in module.graph for value in node.outputs}
    types |= {
        name: value.type
        for name, value in zip(module.graph.output_names, module.graph.outputs, strict=True)
    }
    for info in (*model.graph.output, *model.graph.value_info):
        shape = shape_of(types.get(info.name, UNKNOWN))
        if shape is None or not info.type.HasField("tensor_type"):
            continue
        message = info.type.tensor_type.shape
        if len(shape) != len(message.dim):
            continue
        for dim, extent in zip(message.dim, shape, strict=True):
            is_declared = _is_static(dim.dim_value, has_value=dim.HasField("dim_value"))
            if isinstance(extent, int) and not is_declared:
                dim.dim_value = extent


def fix_module(module: Module, shapes: InputShapes) -> None:
    """Give the inputs of a module from IR text the extents of `shapes`, as `fix_model` does."""
    values = {value.name: value for value in module.graph.inputs}
    defaults = module.graph.defaults
    named = _named(shapes, [name for name, value in values.items() if value not in defaults])
    declared = {
        name: defaults[value].shape if value in defaults else value.type.shape
        for name, value in values.items()
        if isinstance(value.type, TensorType)
    }
    fixed, symbols = _resolved(_checked(named, list(values), declared), declared)
    for name, shape in fixed.items():
        type_ = values[name].type
        assert isinstance(type_, TensorType)
        values[name].type = TensorType(type_.dtype, shape)
    for graph in module.graph.graphs():
        for value in graph.inputs:
            value.type = _replaced(value.type, symbols)
        for node in graph:
            for value in node.outputs:
                value.type = _replaced(value.type, symbols)
            infer_types(node, module.constants)


def _replaced(type_: Type, symbols: Mapping[str, int]) -> Type:
    """Return a type with numbers for symbols; inference finds the values of expressions again."""
    shape = shape_of(type_)
    if not isinstance(type_, TensorType) or shape is None:
        return type_
    return TensorType(type_.dtype, tuple([_number_for(dim, symbols) for dim in shape]))


def _number_for(dim: Dim, symbols: Mapping[str, int]) -> Dim:
    if isinstance(dim, str):
        return symbols.get(dim, dim)
    return dim if symbols.keys().isdisjoint(atoms(dim)) else None


NamedShapes = Mapping[str, Sequence[int | None] | int]


def _named(shapes: InputShapes, required: Sequence[str]) -> NamedShapes:
    """Return shapes by name. Raises UsageError for one shape, unless there is one input."""
    if isinstance(shapes, Mapping):
        return shapes
    if len(required) != 1 or isinstance(shapes, str):
        name = next(iter(required), "x")
        raise UsageError(
            f"input_shapes are given by name: write {{{name!r}: (1, 3, 224, 224)}} (inputs:"
            f" {', '.join(required) or 'none'})"
        )
    return {required[0]: shapes}


def _checked(
    shapes: NamedShapes, inputs: Sequence[str], declared: Mapping[str, Shape]
) -> dict[str, Sequence[int | None]]:
    """Return the shapes of inputs, and the one extent of each symbol.

    `declared` has the shapes of the inputs that are tensors. Raises UsageError for an unknown name,
    and for anything that is not a shape.
    """
    dims = [dim for shape in declared.values() for dim in shape or ()]
    symbols = list(dict.fromkeys(dim for dim in dims if isinstance(dim, str)))
    given = {name: (shape,) if isinstance(shape, int) else shape for name, shape in shapes.items()}
    for name, shape in given.items():
        kind = "input" if name in inputs else "symbol"
        if kind == "symbol" and name not in symbols:
            raise _unknown_input(name, inputs, symbols)
        if kind == "input" and name not in declared:
            raise UsageError(f"input {clipped(name)} is not a tensor: it has no shape to be fixed")
        if isinstance(shape, str) or not all(isinstance(extent, int | None) for extent in shape):
            raise UsageError(
                f"{shape!r} is not a shape of {kind} {clipped(name)}: write (1, 3, 224, 224)"
            )
        if kind == "symbol" and len(shape) != 1:
            raise UsageError(f"{clipped(name)} is one extent, and {len(shape)} are given")
        if any(extent is not None and extent < 1 for extent in shape):
            raise UsageError(f"an extent of {kind} {clipped(name)} is less than 1")
    return given


def _unknown_input(name: str, inputs: Sequence[str], symbols: Sequence[str]) -> UsageError:
    known = f"inputs: {', '.join(inputs) or 'none'}"
    if symbols:
        known += f"; symbols: {', '.join(symbols)}"
    hint = did_you_mean(name, [*inputs, *symbols]) or f" ({known})"
    return UsageError(f"the model has no input {clipped(name)}{hint}")


def _declared_shape(info: ValueInfoProto) -> Shape:
    tensor = info.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple(
        dim.dim_value
        if _is_static(dim.dim_value, has_value=dim.HasField("dim_value"))
        else dim.dim_param or None
        for dim in tensor.shape.dim
    )


def _is_static(extent: int, *, has_value: bool) -> bool:
    """Return whether a dimension states an extent.

    Exporters write negative numbers for unknown ones.
    """
    return has_value and extent >= 0


def _resolved(
    shapes: Mapping[str, Sequence[int | None]], declared: Mapping[str, Shape]
) -> tuple[dict[str, tuple[Dim, ...]], dict[str, int]]:
    """Return the shapes of the inputs in `shapes`, and the extents of the symbols of the model.

    Names that are not in `declared` are symbols. Raises UsageError.
    """
    fixed: dict[str, tuple[Dim, ...]] = {}
    given = {name: shape[0] for name, shape in shapes.items() if name not in declared}
    symbols = {name: extent for name, extent in given.items() if extent is not None}
    sources: dict[str, str] = {}
    for name, wanted in shapes.items():
        if name not in declared:
            continue
        known = declared[name]
        if known is None:
            fixed[name] = tuple(wanted)
            continue
        if len(known) != len(wanted):
            raise UsageError(
                f"input {clipped(name)} has {len(known)} axes, and {len(wanted)} extents are given"
            )
        for axis, (was, extent) in enumerate(zip(known, wanted, strict=True)):
            if extent is None:
                continue
            if isinstance(was, int) and was != extent:
                raise UsageError(
                    f"axis {axis} of input {clipped(name)} is {was} in the model, and {extent} is"
                    " given"
                )
            if isinstance(was, str) and symbols.setdefault(was, extent) != extent:
                source = f" by input {clipped(sources[was])}" if was in sources else ""
                raise UsageError(
                    f"{clipped(was)} is {symbols[was]}{source}, and {extent} by input"
                    f" {clipped(name)}"
                )
            if isinstance(was, str):
                sources.setdefault(was, name)
        fixed[name] = tuple(
            was if extent is None else extent for was, extent in zip(known, wanted, strict=True)
        )
    return fixed, symbols


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """Yield a graph and all graphs inside it."""
    pending = [graph]
    while pending:
        pending += _inner(graph := pending.pop())
        yield graph


def _inner(graph: GraphProto) -> Iterator[GraphProto]:
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield attribute.g
            yield from attribute.graphs
