"""Docs, metadata, value_info, devices, training and unknown fields of models."""

from collections.abc import Iterator

from google.protobuf.message import Message
from onnx import (
    DeviceConfigurationProto,
    ModelProto,
    NodeDeviceConfigurationProto,
    ShardingSpecProto,
    TensorAnnotation,
    TensorProto,
    TrainingInfoProto,
)

from ._build import (
    NEWEST_IR,
    NEWEST_OPSET,
    ODD,
    Item,
    add_wire,
    copy,
    entries,
    floats,
    graph,
    node,
    opset,
    relu,
    simple,
    tensor_type,
    typed,
    value,
)
from .functions import call, function

DOCS = {
    "plain": "A sentence.",
    "multiline": "one\n\n  two\r\nthree\n",
    "quotes": "\"double\" 'single' `back` \\",
    "triple_quotes": '"""doc"""',
    "unicode": "naïve ☃ \u202e\U0001f600",
    "nul": "a\x00b",
    "brackets": "{ <%x> [1] (2) } // no comment",
    "long": "line of text\n" * 5000,
}


def documented(text: str) -> ModelProto:
    """A model with the text as every doc string and metadata value that fits."""
    weight = floats("w")
    made = simple(
        [node("Add", ["x", "w"], ["t"]), node("f", ["t"], ["y"], "local")],
        initializers=[weight],
        imports=[opset("local", 1), opset("acme", 1)],
        functions=[function([node("Relu", ["x"], ["y"])])],
    )
    made.graph.value_info.append(value("t"))
    described: list[Message] = [made, made.graph, made.graph.initializer[0], made.functions[0]]
    described += [*made.graph.input, *made.graph.output, *made.graph.value_info, *made.graph.node]
    for item in described:
        setattr(item, "doc_string", text)  # noqa: B010
        getattr(item, "metadata_props").add(key=text[:40], value=text)  # noqa: B009
    made.producer_name = made.producer_version = made.domain = text
    made.model_version = -1
    return made


def doc_strings() -> Iterator[Item]:
    """Every untidy text in every place that takes one."""
    for name, text in DOCS.items():
        yield name, documented(text)


def metadata() -> Iterator[Item]:
    """Metadata in unsorted order, with empty and repeated keys, without values."""
    for place in ("model", "graph", "node", "initializer", "input", "output", "value_info"):
        made = simple(
            [node("Add", ["x", "w"], ["t"]), node("Relu", ["t"], ["y"])], initializers=[floats("w")]
        )
        made.graph.value_info.append(value("t"))
        holder: Message = made if place == "model" else made.graph
        if place not in ("model", "graph"):
            holder = getattr(made.graph, place)[0]
        props = getattr(holder, "metadata_props")  # noqa: B009
        props.extend(entries(z="1", a="2", M="", é="\n"))
        yield place, copy(made)
        props.add(key="z", value="again")
        props.add(key="no value")
        props.add(value="no key")
        props.add()
        yield f"{ODD}{place}_untidy", made


def value_infos() -> Iterator[Item]:
    """Entries that are stray, repeated, empty, contradictory, or about inputs and outputs."""
    chain = [node("Relu", ["x"], ["t"]), node("Neg", ["t"], ["y"])]
    rows = {
        "intermediate": [value("t")],
        "of_input_and_output": [value("x"), value("y"), value("t")],
        "reversed": [value("y"), value("t"), value("x")],
        "nowhere": [value("nowhere"), value("t")],
        "repeated": [value("t"), value("t")],
        "repeated_and_different": [value("t"), value("t", TensorProto.INT8, ["Q"])],
        "contradicts_input": [value("x", TensorProto.INT8, [1, 2, 3])],
        "contradicts_inference": [value("t", TensorProto.DOUBLE, [7])],
        "unknown_rank": [value("t", shape=None)],
        "scalar": [value("t", shape=[])],
        "partial": [value("t", shape=[None, "M", 4])],
        "wider_than_inferred": [value("t", shape=["K", "L"])],
    }
    for name, infos in rows.items():
        made = simple(chain)
        made.graph.value_info.extend(infos)
        yield name, made
    hollow = simple(chain)
    hollow.graph.value_info.add()
    hollow.graph.value_info.add(name="t")
    hollow.graph.value_info.add(name="", doc_string="of nothing")
    yield ODD + "hollow", hollow
    weighted = simple([node("Add", ["x", "w"], ["y"])], initializers=[floats("w")])
    weighted.graph.value_info.append(value("w", shape=[4]))
    yield "of_initializer", weighted
    denoted = simple(chain)
    denoted.graph.value_info.append(value("t"))
    denoted.graph.value_info[0].type.denotation = "TENSOR"
    denoted.graph.value_info[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    denoted.graph.value_info[0].type.tensor_type.shape.dim.add(denotation="alone")
    yield "denotations", denoted


def quantization() -> Iterator[Item]:
    """Annotations of values, with parameters that exist or do not, repeated and empty."""
    base = simple(
        [node("Add", ["x", "w"], ["y"])],
        initializers=[floats("w"), floats("s", [1]), floats("z", [1])],
    )
    params = entries(SCALE_TENSOR="s", ZERO_POINT_TENSOR="z")
    made = copy(base)
    for name in ("x", "w", "y", "y", "nowhere"):
        made.graph.quantization_annotation.append(
            TensorAnnotation(tensor_name=name, quant_parameter_tensor_names=params)
        )
    yield "all", made
    stray = copy(base)
    stray.graph.quantization_annotation.append(
        TensorAnnotation(tensor_name="x", quant_parameter_tensor_names=entries(SCALE_TENSOR="gone"))
    )
    stray.graph.quantization_annotation.add(tensor_name="y")
    stray.graph.quantization_annotation.add()
    yield "stray_and_hollow", stray


def training() -> Iterator[Item]:
    """Training information: full, bindings only, hollow, several."""
    made = simple([node("Mul", ["x", "w"], ["y"])], initializers=[floats("w")])
    start = graph(
        [node("RandomNormal", [], ["w_start"], shape=[4])],
        [],
        [value("w_start", shape=[4])],
        name="start",
    )
    step = graph(
        [node("Sub", ["w", "rate"], ["w_next"])],
        [],
        [value("w_next", shape=[4])],
        [floats("rate", [1])],
        name="step",
    )
    full = TrainingInfoProto(
        initialization=start,
        algorithm=step,
        initialization_binding=entries(w="w_start"),
        update_binding=entries(w="w_next"),
    )
    made.training_info.append(full)
    yield "full", made
    several = copy(made)
    several.training_info.add(update_binding=entries(w="w"))
    several.training_info.add()
    several.training_info.add().algorithm.SetInParent()
    yield ODD + "several", several


def sharding(tensor: str) -> ShardingSpecProto:
    """A specification with every field set."""
    spec = ShardingSpecProto(tensor_name=tensor, device=[0, -1, 2])
    spec.index_to_device_group_map.add(key=-1, value=[0, 1])
    by_size = spec.sharded_dim.add(axis=-1)
    by_size.simple_sharding.add(dim_value=4, num_shards=2)
    by_name = spec.sharded_dim.add(axis=0)
    by_name.simple_sharding.add(dim_param="N", num_shards=2)
    by_name.simple_sharding.add(num_shards=0)
    return spec


def devices() -> Iterator[Item]:
    """Multi-device configurations of models and nodes."""
    base = simple(
        [node("Add", ["x", "w"], ["y"])],
        initializers=[floats("w")],
        version=NEWEST_OPSET,
        ir=NEWEST_IR,
    )
    base.configuration.append(
        DeviceConfigurationProto(name="pair", num_devices=2, device=["cpu:0", "cpu:1"])
    )
    yield "model_only", copy(base)
    placed = copy(base)
    config = NodeDeviceConfigurationProto(configuration_id="pair", pipeline_stage=0)
    config.sharding_spec.extend([sharding("x"), sharding("w"), sharding("y")])
    placed.graph.node[0].device_configurations.append(config)
    yield "full", placed
    several = copy(placed)
    several.configuration.add(name="quad", num_devices=4)
    several.graph.node[0].device_configurations.add(configuration_id="quad", pipeline_stage=-1)
    yield "several", several
    stray = copy(several)
    stray.configuration.add()
    stray.graph.node[0].device_configurations.add(configuration_id="absent")
    stray.graph.node[0].device_configurations.add().sharding_spec.add()
    yield ODD + "stray", stray
    inner = copy(placed.graph.node[0])
    made = copy(base)
    made.functions.append(function([node("Relu", ["x"], ["y"])]))
    made.functions[0].node[0].device_configurations.extend(inner.device_configurations)
    made.graph.node.append(call())
    made.graph.node[1].output[0] = "z"
    made.opset_import.extend([opset("local", 1), opset("acme", 1)])
    made.functions[0].opset_import[0].version = NEWEST_OPSET
    yield "in_function", made


def unknown_fields() -> Iterator[Item]:
    """Fields no schema knows, in every kind of message, as a newer onnx might write them."""
    base = documented("text")
    base.graph.node[0].attribute.add(name="axis", type="INT", i=1)
    base.graph.node[0].domain = "acme"
    body = base.graph
    places: dict[str, Message] = {
        "model": base,
        "graph": body,
        "node": body.node[0],
        "attribute": body.node[0].attribute[0],
        "initializer": body.initializer[0],
        "input": body.input[0],
        "output": body.output[0],
        "value_info": body.value_info[0],
        "type": body.input[0].type,
        "tensor_type": body.input[0].type.tensor_type,
        "shape": body.input[0].type.tensor_type.shape,
        "dim": body.input[0].type.tensor_type.shape.dim[0],
        "function": base.functions[0],
        "opset_import": base.opset_import[0],
        "metadata": base.metadata_props[0],
        "return": body.output[0].type,
    }
    for name, message in places.items():
        before = copy(message)
        add_wire(message, 1000, b"from the future")
        message.MergeFromString(b"\xc8\x3e\x2a")
        yield name, copy(base)
        message.CopyFrom(before)
    for message in places.values():
        add_wire(message, 2000, b"")
    yield "everywhere", base
    constant = node("Constant", [], ["k"], value=floats("held"))
    add_wire(constant.attribute[0].t, 1000, b"inside a constant")
    yield "constant_tensor", simple([constant, node("Add", ["x", "k"], ["y"])])
    known = add_wire(copy(base), 1000, b"again")
    yield "repeated", add_wire(known, 1000, b"and again")


def header() -> Iterator[Item]:
    """Producer, domain and version fields of the model."""
    made = relu()
    made.producer_name, made.producer_version, made.domain = "pytorch", "2.9.1+cpu", "com.acme"
    made.model_version = 2**63 - 1
    made.doc_string = "model"
    yield "full", made
    only = relu()
    only.model_version = 7
    yield "version_only", only
    pieces = relu()
    pieces.graph.name = "main_graph"
    pieces.graph.input[0].CopyFrom(typed("x", tensor_type(TensorProto.FLOAT, ["batch", 4])))
    yield "torch_like", pieces
    for ir in (0, -1, NEWEST_IR + 1, 2**40):
        odd = relu()
        odd.ir_version = ir
        yield f"{ODD}ir_{ir}", odd
    unset = relu()
    unset.ClearField("ir_version")
    yield ODD + "ir_unset", unset
