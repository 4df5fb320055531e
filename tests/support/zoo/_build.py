"""Short constructors the families of the zoo share."""

import struct
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import onnx
import onnx.parser
from google.protobuf.message import Message
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    StringStringEntryProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    helper,
)

Item = tuple[str, ModelProto]
Shape = Sequence[str | int | None] | None
Proto = TypeVar("Proto", bound=Message)

ODD = "~"
"""Leading mark of a variant that `onnx.checker` refuses or need not accept."""

OPSET = 21
IR = 10
NEWEST_OPSET = onnx.defs.onnx_opset_version()
NEWEST_IR = int(onnx.IR_VERSION)


def value(name: str, dtype: int = TensorProto.FLOAT, shape: Shape = ("N", 4)) -> ValueInfoProto:
    """A tensor-typed value; `shape=None` leaves the rank unknown."""
    result = ValueInfoProto(name=name)
    result.type.CopyFrom(tensor_type(dtype, shape))
    return result


def tensor_type(dtype: int = TensorProto.FLOAT, shape: Shape = ("N", 4)) -> TypeProto:
    """A tensor type whose `shape` field is set only if a shape is given."""
    result = TypeProto()
    result.tensor_type.elem_type = dtype
    if shape is not None:
        result.CopyFrom(helper.make_tensor_type_proto(dtype, shape))
        result.tensor_type.shape.SetInParent()
    return result


def typed(name: str, type_: TypeProto) -> ValueInfoProto:
    """A value of any type."""
    return ValueInfoProto(name=name, type=type_)


def values(items: Iterable[str | ValueInfoProto]) -> list[ValueInfoProto]:
    """Names become float values of shape [N, 4]."""
    return [value(item) if isinstance(item, str) else item for item in items]


def node(
    op: str, inputs: Sequence[str], outputs: Sequence[str], domain: str = "", **attributes: Any
) -> NodeProto:
    """A node without the presence noise of `helper.make_node`: unset means unset."""
    result = NodeProto(op_type=op, input=inputs, output=outputs)
    if domain:
        result.domain = domain
    for name, item in attributes.items():
        result.attribute.append(
            item if isinstance(item, AttributeProto) else helper.make_attribute(name, item)
        )
    return result


def floats(name: str, dims: Sequence[int] = (4,), start: float = 0.5) -> TensorProto:
    """A float tensor with its values in `float_data`."""
    count = 1
    for dim in dims:
        count *= dim
    return TensorProto(
        name=name,
        data_type=TensorProto.FLOAT,
        dims=dims,
        float_data=[start + index for index in range(count)],
    )


def raw_floats(name: str, dims: Sequence[int], start: float = 0.5) -> TensorProto:
    """A float tensor with its values in `raw_data`."""
    result = floats(name, dims, start)
    data = struct.pack(f"<{len(result.float_data)}f", *result.float_data)
    result.ClearField("float_data")
    result.raw_data = data
    return result


def ints(name: str, items: Sequence[int], dims: Sequence[int] | None = None) -> TensorProto:
    """An int64 tensor with its values in `int64_data`."""
    shape = [len(items)] if dims is None else dims
    return TensorProto(name=name, data_type=TensorProto.INT64, dims=shape, int64_data=items)


def true(name: str) -> TensorProto:
    """A true boolean scalar."""
    return TensorProto(name=name, data_type=TensorProto.BOOL, int32_data=[1])


def graph(
    nodes: Iterable[NodeProto],
    inputs: Iterable[str | ValueInfoProto],
    outputs: Iterable[str | ValueInfoProto],
    initializers: Iterable[TensorProto] = (),
    name: str = "g",
) -> GraphProto:
    """A graph of the given parts."""
    return GraphProto(
        name=name,
        node=nodes,
        input=values(inputs),
        output=values(outputs),
        initializer=initializers,
    )


def opset(domain: str, version: int) -> OperatorSetIdProto:
    """An import of the default domain has its domain unset."""
    return (
        OperatorSetIdProto(domain=domain, version=version)
        if domain
        else OperatorSetIdProto(version=version)
    )


def model(
    body: GraphProto,
    version: int = OPSET,
    ir: int = IR,
    imports: Sequence[OperatorSetIdProto] = (),
    functions: Iterable[FunctionProto] = (),
) -> ModelProto:
    """A model of the graph; `imports` come after the default domain's."""
    return ModelProto(
        ir_version=ir, graph=body, opset_import=[opset("", version), *imports], functions=functions
    )


def simple(
    nodes: Iterable[NodeProto],
    inputs: Iterable[str | ValueInfoProto] = ("x",),
    outputs: Iterable[str | ValueInfoProto] = ("y",),
    initializers: Iterable[TensorProto] = (),
    **options: Any,
) -> ModelProto:
    """A model of one graph of the given parts."""
    return model(graph(nodes, inputs, outputs, initializers), **options)


def relu() -> ModelProto:
    """The plainest model: y = Relu(x)."""
    return simple([node("Relu", ["x"], ["y"])])


def text(source: str) -> ModelProto:
    """The model of a text in onnx's own syntax."""
    return onnx.parser.parse_model(source)


def entries(**items: str) -> list[StringStringEntryProto]:
    """Key-value entries in the given order."""
    return [StringStringEntryProto(key=key, value=item) for key, item in items.items()]


def varint(number: int) -> bytes:
    """The protobuf encoding of an unsigned integer."""
    result = bytearray()
    while number > 0x7F:
        result.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*result, number])


def add_wire(message: Proto, field: int, payload: bytes) -> Proto:
    """Merge a length-delimited field straight from bytes, known to the schema or not."""
    message.MergeFromString(varint(field << 3 | 2) + varint(len(payload)) + payload)
    return message


def copy(message: Proto) -> Proto:
    """A deep copy."""
    result = type(message)()
    result.CopyFrom(message)
    return result
