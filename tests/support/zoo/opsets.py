"""Every opset and IR version: all operators by their schemas, and hand-made typical nodes."""

from collections.abc import Iterator, Mapping
from itertools import groupby
from types import MappingProxyType
from typing import Any, NamedTuple

import onnx
from onnx import AttributeProto, NodeProto, TensorProto, TypeProto, ValueInfoProto

from ._build import (
    NEWEST_IR,
    NEWEST_OPSET,
    ODD,
    Item,
    floats,
    graph,
    ints,
    model,
    node,
    opset,
    simple,
    tensor_type,
    true,
    value,
)
from .attributes import sample
from .value_types import mapping, optional, sequence, sparse

Schema = onnx.defs.OpSchema


def ir_for(version: int) -> int:
    """An IR version of about the same time as the opset."""
    starts = (
        (1, 3),
        (9, 4),
        (10, 5),
        (11, 6),
        (12, 7),
        (15, 8),
        (19, 9),
        (21, 10),
        (23, 11),
        (24, 12),
        (25, 13),
    )
    return NEWEST_IR if version >= 26 else max(ir for start, ir in starts if version >= start)


def parse_type(source: str) -> TypeProto:
    """The type of a schema's type string, such as `seq(tensor(float))`."""
    outer, _, rest = source.partition("(")
    inner = rest[:-1]
    if outer == "seq":
        return sequence(parse_type(inner))
    if outer == "optional":
        return optional(parse_type(inner))
    if outer == "map":
        key, _, item = inner.partition(",")
        return mapping(dtype(key), parse_type(item.strip()))
    if outer == "sparse_tensor":
        return sparse(dtype(inner), [2, 3])
    return tensor_type(dtype(inner if outer == "tensor" else outer), ["N", 3])


def dtype(name: str) -> int:
    """The element type of a schema's spelling."""
    return int(TensorProto.DataType.Value(name.upper()))


def preferred(types: set[str]) -> TypeProto:
    """Float if the schema allows it, else its first type by name."""
    return parse_type("tensor(float)" if "tensor(float)" in types else min(types))


def schema_node(schema: Schema, full: bool, prefix: str) -> tuple[NodeProto, list[ValueInfoProto]]:
    """A node by its schema, with the least or with everything it may have, and its inputs."""
    inputs: list[ValueInfoProto] = []
    for index, parameter in enumerate(schema.inputs):
        variadic = parameter.option == Schema.FormalParameterOption.Variadic
        count = max(1, min(3, schema.max_input - index)) if variadic and full else 1
        for copy_index in range(count):
            if full or len(inputs) < schema.min_input:
                name = f"{prefix}_{parameter.name}_{copy_index}"
                inputs.append(ValueInfoProto(name=name, type=preferred(parameter.types)))
    count = len(schema.outputs) if full else max(1, schema.min_output)
    outputs = [f"{prefix}_out{index}" for index in range(count)]
    result = node(schema.name, [item.name for item in inputs], outputs, schema.domain)
    for name, attribute in sorted(schema.attributes.items(), reverse=True):
        if attribute.required or full:
            result.attribute.append(schema_attribute(name, attribute))
    if schema.name in ("Constant", "ConstantOfShape"):
        del result.attribute[:]
        result.attribute.append(AttributeProto(name="value", type="TENSOR", t=floats("held", [1])))
    return result, inputs


def schema_attribute(name: str, attribute: Any) -> AttributeProto:
    """The attribute at its default, else at a sample of its type."""
    if attribute.default_value.name:
        return AttributeProto.FromString(attribute.default_value.SerializeToString())
    return sample(AttributeProto.AttributeType.Name(int(attribute.type.value)), name)


def schemas() -> list[Schema]:
    """Every version of every operator, oldest first."""
    found = onnx.defs.get_all_schemas_with_history()
    return sorted(found, key=lambda schema: (schema.domain, schema.since_version, schema.name))


def every_schema() -> Iterator[Item]:
    """Per domain and opset its new operators, with the least and with all they may have."""
    for (domain, version), group in groupby(
        schemas(), key=lambda schema: (schema.domain, schema.since_version)
    ):
        members = list(group)
        for deprecated in (False, True):
            chosen = [schema for schema in members if schema.deprecated == deprecated]
            for full in (False, True):
                if chosen:
                    label = f"{domain or 'onnx'}_{version}_{'full' if full else 'least'}"
                    mark = f"{ODD}deprecated_" if deprecated else ""
                    yield mark + label, schema_model(chosen, domain, version, full)


def schema_model(chosen: list[Schema], domain: str, version: int, full: bool) -> onnx.ModelProto:
    """A model with a node per schema, none of them connected."""
    nodes, inputs = [], []
    for index, schema in enumerate(chosen):
        made, needed = schema_node(schema, full, f"{schema.name}{index}")
        nodes.append(made)
        inputs.extend(needed)
    ir = max(7, ir_for(version)) if not domain else NEWEST_IR
    body = graph(nodes, inputs, [], name="schemas")
    if not domain:
        return model(body, version=version, ir=ir)
    return model(body, version=NEWEST_OPSET, ir=ir, imports=[opset(domain, version)])


class Form(NamedTuple):
    """A node of one operator at one opset; inputs after the first are initializers."""

    label: str
    version: int
    op: str
    tensors: tuple[TensorProto, ...] = ()
    attributes: Mapping[str, Any] = MappingProxyType({})
    outputs: int = 1


STATS = tuple(floats(name, [3], 1.0) for name in ("gamma", "beta", "mean", "var"))
KERNEL = (floats("w", [3, 3, 1, 1]),)
BIASED = (*KERNEL, floats("b", [3]))

BATCH_NORM = [
    Form(
        "is_test",
        1,
        "BatchNormalization",
        STATS,
        {"is_test": 1, "consumed_inputs": [0, 0, 0, 1, 1]},
    ),
    Form(
        "training",
        1,
        "BatchNormalization",
        STATS,
        {"is_test": 0, "consumed_inputs": [0, 0, 0, 1, 1]},
        5,
    ),
    Form(
        "spatial_0",
        1,
        "BatchNormalization",
        STATS,
        {"is_test": 1, "spatial": 0, "consumed_inputs": [0] * 5},
    ),
    Form("is_test", 6, "BatchNormalization", STATS, {"is_test": 1}),
    Form("default_is_training", 6, "BatchNormalization", STATS),
    Form("training", 6, "BatchNormalization", STATS, {"is_test": 0, "momentum": 0.5}, 5),
    Form("spatial_1", 6, "BatchNormalization", STATS, {"spatial": 1, "is_test": 1}),
    Form("default", 7, "BatchNormalization", STATS),
    Form("spatial_0", 7, "BatchNormalization", STATS, {"spatial": 0}),
    Form("training_by_outputs", 7, "BatchNormalization", STATS, {}, 5),
    Form("default", 9, "BatchNormalization", STATS),
    Form("epsilon_zero", 9, "BatchNormalization", STATS, {"epsilon": 0.0, "momentum": 0.0}),
    Form("training_by_outputs", 9, "BatchNormalization", STATS, {}, 5),
    Form("default", 14, "BatchNormalization", STATS),
    Form("training_mode_0", 14, "BatchNormalization", STATS, {"training_mode": 0}),
    Form("training_mode_1", 14, "BatchNormalization", STATS, {"training_mode": 1}, 3),
    Form("training_mode_1_one_output", 14, "BatchNormalization", STATS, {"training_mode": 1}),
    Form("default", 15, "BatchNormalization", STATS, {"epsilon": 1e-3}),
    Form("training_mode_1", 15, "BatchNormalization", STATS, {"training_mode": 1}, 3),
]

OTHERS = [
    Form("broadcast", 1, "Add", (floats("b", [3]),), {"broadcast": 1, "axis": 1}),
    Form(
        "consumed_inputs",
        1,
        "Add",
        (floats("b", [3]),),
        {"broadcast": 1, "axis": 1, "consumed_inputs": [0, 0]},
    ),
    Form("broadcast_0", 6, "Mul", (floats("b", [3]),), {"broadcast": 0}),
    Form("negative_axis", 6, "Sub", (floats("b", [3]),), {"broadcast": 1, "axis": -1}),
    Form("numpy", 7, "Div", (floats("b", [3, 1, 1]),)),
    Form("numpy", 14, "Add", (floats("b", [3, 1, 1]),)),
    Form("is_test", 1, "Dropout", (), {"is_test": 1, "ratio": 0.3}),
    Form("training", 1, "Dropout", (), {"is_test": 0}, 2),
    Form("is_test", 6, "Dropout", (), {"is_test": 1}),
    Form("ratio", 7, "Dropout", (), {"ratio": 0.3}),
    Form("mask", 10, "Dropout", (), {"ratio": 0.3}, 2),
    Form("training_mode_input", 12, "Dropout", (floats("ratio", []), true("training"))),
    Form("ratio_input_and_seed", 13, "Dropout", (floats("ratio", []),), {"seed": 7}),
    Form("shape_attribute", 1, "Reshape", (), {"shape": [0, -1]}),
    Form("shape_input", 5, "Reshape", (ints("shape", [0, -1]),)),
    Form("allowzero", 14, "Reshape", (ints("shape", [0, -1]),), {"allowzero": 1}),
    Form("bounds", 1, "Clip", (), {"min": -1.0, "max": 1.0}),
    Form("minimum_only", 6, "Clip", (), {"min": 0.0}),
    Form("bounds", 11, "Clip", (floats("low", [], 0.0), floats("high", [], 6.0))),
    Form("attributes", 1, "Slice", (), {"starts": [0], "ends": [2], "axes": [1]}),
    Form(
        "inputs",
        10,
        "Slice",
        (ints("starts", [0]), ints("ends", [2]), ints("axes", [1]), ints("steps", [1])),
    ),
    Form("paddings", 1, "Pad", (), {"paddings": [0] * 8, "value": 0.0}),
    Form("pads", 2, "Pad", (), {"pads": [0, 0, 1, 1, 0, 0, 1, 1], "mode": "reflect"}),
    Form("pads_input", 11, "Pad", (ints("pads", [0] * 8), floats("fill", []))),
    Form("string_target", 1, "Cast", (), {"to": "FLOAT16"}),
    Form("integer_target", 6, "Cast", (), {"to": 10}),
    Form("saturate", 19, "Cast", (), {"to": 17, "saturate": 0}),
    Form("axes_attribute", 1, "Squeeze", (), {"axes": [0]}),
    Form("axes_input", 13, "Squeeze", (ints("axes", [0]),)),
    Form("axes_attribute", 1, "ReduceMean", (), {"axes": [2, 3], "keepdims": 1}),
    Form("axes_input", 18, "ReduceMean", (ints("axes", [2, 3]),), {"noop_with_empty_axes": 1}),
    Form("attribute", 1, "Split", (), {"axis": 1, "split": [1, 2]}, 2),
    Form("input", 1, "Split", (ints("split", [1, 2]),), {"axis": 1}, 2),
    Form("input", 13, "Split", (ints("split", [1, 2]),), {"axis": 1}, 2),
    Form("num_outputs", 18, "Split", (), {"axis": 1, "num_outputs": 3}, 3),
    Form("k_attribute", 1, "TopK", (), {"k": 2, "axis": -1}, 2),
    Form("k_input", 11, "TopK", (ints("k", [2]),), {"largest": 0, "sorted": 0}, 2),
    Form(
        "scales_of_width_and_height", 1, "Upsample", (), {"width_scale": 2.0, "height_scale": 2.0}
    ),
    Form("scales_attribute", 7, "Upsample", (), {"scales": [1.0, 1.0, 2.0, 2.0], "mode": "linear"}),
    Form("scales_input", 9, "Upsample", (floats("scales", [4], 1.0),)),
    Form("scales", 10, "Resize", (floats("scales", [4], 1.0),)),
    Form("axis_1", 1, "Softmax", (), {"axis": 1}),
    Form("default_axis", 13, "Softmax"),
    Form("consumed_inputs", 1, "Relu", (), {"consumed_inputs": [0]}),
    Form("consumed_inputs", 1, "LeakyRelu", (), {"alpha": 0.1, "consumed_inputs": [0]}),
    Form("default_alpha", 6, "LeakyRelu"),
    Form(
        "broadcast",
        1,
        "Gemm",
        (floats("w", [3, 3]), floats("c", [3])),
        {"broadcast": 1, "transB": 1},
    ),
    Form("no_bias", 11, "Gemm", (floats("w", [3, 3]),), {"alpha": 0.5, "beta": 2.0, "transA": 1}),
    Form(
        "explicit_defaults",
        13,
        "Gemm",
        (floats("w", [3, 3]), floats("c", [3])),
        {"alpha": 1.0, "beta": 1.0},
    ),
    Form("least", 1, "Conv", KERNEL),
    Form("bias", 11, "Conv", BIASED, {"kernel_shape": [1, 1]}),
    Form(
        "explicit_defaults",
        11,
        "Conv",
        BIASED,
        {"auto_pad": "NOTSET", "dilations": [1, 1], "group": 1},
    ),
    Form("auto_pad", 11, "Conv", KERNEL, {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    Form("newest", 22, "Conv", BIASED, {"pads": [0, 1, 2, 3]}),
    Form(
        "output_padding", 11, "ConvTranspose", BIASED, {"output_padding": [1, 1], "strides": [2, 2]}
    ),
    Form("output_shape", 1, "ConvTranspose", KERNEL, {"output_shape": [4, 4]}),
    Form("least", 9, "MatMul", (floats("w", [3, 3]),)),
    Form("indices", 8, "MaxPool", (), {"kernel_shape": [2, 2], "storage_order": 1}, 2),
    Form(
        "count_include_pad", 7, "AveragePool", (), {"kernel_shape": [2, 2], "count_include_pad": 1}
    ),
    Form("broadcast_slope", 6, "PRelu", (floats("slope", [1]),)),
    Form("epsilon", 6, "InstanceNormalization", STATS[:2], {"epsilon": 1e-2}),
    Form("stash", 21, "GroupNormalization", STATS[:2], {"num_groups": 3, "stash_type": 1}),
    Form("all_outputs", 17, "LayerNormalization", STATS[:2], {"axis": 1}, 3),
    Form("per_axis", 13, "DequantizeLinear", (floats("scale", [3]),), {"axis": 1}),
    Form("least", 1, "Identity"),
    Form("least", 1, "Transpose"),
    Form("axis", 1, "Flatten", (), {"axis": 1}),
    Form("axis", 4, "Concat", (floats("other", [1, 3, 5, 5]),), {"axis": 1}),
    Form("axis_default", 1, "Concat", (floats("other", [1, 3, 5, 5]),)),
]

REFUSED = [
    Form("two_outputs", 7, "BatchNormalization", STATS, {}, 2),
    Form("experimental", 1, "Affine", (), {"alpha": 2.0, "beta": 1.0}),
    Form("experimental", 1, "Scale", (), {"scale": 2.0}),
    Form("experimental", 1, "ImageScaler", (), {"bias": [1.0, 2.0, 3.0], "scale": 0.5}),
    Form("experimental", 1, "Crop", (), {"border": [0, 0, 0, 0]}),
    Form("experimental", 1, "ParametricSoftplus", (), {"alpha": 1.0, "beta": 1.0}),
    Form("experimental", 1, "ConstantFill", (), {"shape": [1], "value": 1.0}),
    Form("experimental", 1, "ATen", (), {"operator": "sum"}),
]


def form_model(form: Form, ir: int | None = None) -> onnx.ModelProto:
    """The node between two others, its tensors listed as inputs where the IR demands it."""
    level = ir_for(form.version) if ir is None else ir
    names = [tensor.name for tensor in form.tensors]
    results = ["t", *(f"extra{index}" for index in range(1, form.outputs))]
    middle = node(form.op, ["h", *names], results, **form.attributes)
    listed = (
        [value(tensor.name, tensor.data_type, list(tensor.dims)) for tensor in form.tensors]
        if level < 4
        else []
    )
    before, after = node("Abs", ["x"], ["h"]), node("Neg", ["t"], ["y"])
    inputs = [value("x", shape=["N", 3, 5, 5]), *listed]
    outputs = [value("y", shape=[None, None])]
    return simple(
        [before, middle, after], inputs, outputs, form.tensors, version=form.version, ir=level
    )


def typical() -> Iterator[Item]:
    """Hand-made nodes in the forms their opsets knew, BatchNormalization above all."""
    for form in (*BATCH_NORM, *OTHERS):
        yield f"{form.op}_{form.version}_{form.label}", form_model(form)
    for form in REFUSED:
        yield f"{ODD}{form.op}_{form.version}_{form.label}", form_model(form)


def normalized_convolutions() -> Iterator[Item]:
    """Conv, BatchNormalization and Relu in a row at every opset."""
    tensors = [floats("w", [3, 3, 1, 1]), floats("b", [3]), *STATS]
    for version in range(1, NEWEST_OPSET + 1):
        norm = node("BatchNormalization", ["c", *(tensor.name for tensor in STATS)], ["n"])
        if version < 7:
            norm.attribute.add(name="is_test", type="INT", i=1)
        if version < 6:
            norm.attribute.add(name="consumed_inputs", type="INTS", ints=[0, 0, 0, 1, 1])
        nodes = [node("Conv", ["x", "w", "b"], ["c"]), norm, node("Relu", ["n"], ["y"])]
        image = value("x", shape=["N", 3, 8, 8])
        ir = ir_for(version)
        listed = (
            [value(tensor.name, shape=list(tensor.dims)) for tensor in tensors] if ir < 4 else []
        )
        made = simple(
            nodes,
            [image, *listed],
            [value("y", shape=["N", 3, 8, 8])],
            tensors,
            version=version,
            ir=ir,
        )
        yield f"opset_{version}", made


def ir_versions() -> Iterator[Item]:
    """The same model at every IR version; the first knows no attribute types."""
    form = Form("broadcast", 1, "Add", (floats("b", [3]),), {"broadcast": 1, "axis": 1})
    modern = Form("numpy", 7, "Add", (floats("b", [3, 1, 1]),))
    for ir in range(1, NEWEST_IR + 1):
        made = form_model(form if ir < 4 else modern, ir)
        if ir < 3:
            made.ClearField("opset_import")
        if ir < 2:
            for attribute in made.graph.node[1].attribute:
                attribute.ClearField("type")
        yield f"{ODD if ir < 2 else ''}ir_{ir}", made
    untyped = form_model(form, 3)
    for attribute in untyped.graph.node[1].attribute:
        attribute.ClearField("type")
    yield ODD + "ir_3_without_attribute_types", untyped
    bare = form_model(modern, NEWEST_IR)
    bare.ClearField("opset_import")
    yield ODD + "no_opset_imports", bare
    yield ODD + "ir_2_with_opset_imports", form_model(form, 2)
