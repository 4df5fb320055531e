"""Hand-made ONNX models that stress a lossless importer.

Names are `family/variant`. Those that begin with `odd/` break a rule of ONNX (`onnx.checker`
refuses them, or would if it looked) yet parse and serialize unchanged; all others pass the checker.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from onnx import ModelProto

from . import (
    annotations,
    attributes,
    control_flow,
    functions,
    opsets,
    scale,
    structure,
    tensors,
    value_types,
)
from ._build import ODD, Item
from .external import MAKERS

__all__ = ["FAMILIES", "external_models", "is_odd", "models"]

FAMILIES: dict[str, Callable[[], Iterator[Item]]] = {
    "capture": control_flow.captures,
    "nesting": control_flow.mixed_kinds,
    "shadow": control_flow.shadows,
    "body_signature": control_flow.signatures,
    "switch": control_flow.switches,
    "annotated_body": control_flow.decorated,
    "deep": control_flow.deep,
    "function_reference": functions.references,
    "function_reference_form": functions.reference_forms,
    "function_annotation": functions.annotated,
    "function_sharing": functions.sharing,
    "function_signature": functions.signatures,
    "function_imports": functions.imports,
    "function_body": functions.bodies,
    "function_in_branch": functions.from_branches,
    "dtype": tensors.every_dtype,
    "dtype_padding": tensors.dirty_padding,
    "dtype_of_value": tensors.dtype_of_values,
    "special_float": tensors.special_floats,
    "extreme_integer": tensors.extreme_integers,
    "string": tensors.strings,
    "tensor_trimming": tensors.trimmings,
    "tensor": tensors.oddities,
    "sparse": tensors.sparse_initializers,
    "sparse_role": tensors.sparse_roles,
    "constant": tensors.constants,
    "type": value_types.every_type,
    "hollow_type": value_types.hollow_types,
    "type_operator": value_types.operators,
    "name": structure.strange_names,
    "node_name": structure.node_names,
    "omitted": structure.omitted,
    "arity": structure.arities,
    "output": structure.outputs,
    "input": structure.inputs,
    "overridable": structure.overridable,
    "empty": structure.emptiness,
    "explicit_default": structure.explicit_defaults,
    "domain": structure.domains,
    "order": structure.disorder,
    "doc_string": annotations.doc_strings,
    "metadata": annotations.metadata,
    "value_info": annotations.value_infos,
    "quantization": annotations.quantization,
    "training": annotations.training,
    "device": annotations.devices,
    "unknown_field": annotations.unknown_fields,
    "header": annotations.header,
    "attribute": attributes.every_type,
    "attribute_empty": attributes.empty_lists,
    "attribute_order": attributes.orders,
    "attribute_float": attributes.float_specials,
    "attribute_bytes": attributes.byte_strings,
    "attribute_contradiction": attributes.contradictions,
    "attribute_heavy": attributes.heavy,
    "schema": opsets.every_schema,
    "typical": opsets.typical,
    "normalized_conv": opsets.normalized_convolutions,
    "ir_version": opsets.ir_versions,
    "scale": scale.chains,
    "width": scale.wide,
}


def models() -> Iterator[tuple[str, ModelProto]]:
    """Every model without external data, by a unique name, in a fixed order."""
    for family, make in FAMILIES.items():
        for variant, model in make():
            yield full_name(family, variant), model


def external_models(folder: Path) -> Iterator[tuple[str, Path]]:
    """Write every model with external data to a new folder under `folder`; yield the paths."""
    for variant, make in MAKERS.items():
        place = folder / variant.removeprefix(ODD)
        place.mkdir(parents=True)
        path = place / "model.onnx"
        path.write_bytes(make(place).SerializeToString(deterministic=True))
        yield full_name("external", variant), path


def full_name(family: str, variant: str) -> str:
    """The family and the variant, the odd mark turned into a prefix."""
    return f"{'odd/' if variant.startswith(ODD) else ''}{family}/{variant.removeprefix(ODD)}"


def is_odd(name: str) -> bool:
    """Whether the model of this name breaks a rule of ONNX."""
    return name.startswith("odd/")
