"""Mutations of bytes, protobuf messages, tokens of text, and JSON documents."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

INTEGERS = (
    *(0, 1, -1, 2, 3, 4, 5, 7, 8, 16, 127, 128, 255, 256, 1000, 65535, 10**6, 10**9, 10**12),
    *(2**31 - 1, 2**31, -(2**31), 2**32, 2**32 + 1, 2**53 + 1, 2**62, 2**63 - 1, -(2**63), -2, -3),
)
FLOATS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    1e-30,
    1e30,
    3.4e38,
    1e-45,
    float("inf"),
    float("-inf"),
    float("nan"),
)
NOT_UTF8 = "\x01NOT-UTF8\x01"
"""Stands for bytes that are no text: python sets no such string, so that they are put into the
serialized message.
"""
STRINGS = (
    *(
        "",
        " ",
        ".",
        "..",
        "/",
        "../x",
        "/etc/passwd",
        "x",
        "y",
        "a" * 5000,
        "\x00",
        "\n",
        '"',
        "\\",
        "%",
        "::",
        "a::b",
    ),
    *(
        "é",
        "\u202e",
        "\U0001f600",
        NOT_UTF8,
        "ai.onnx",
        "ai.onnx.ml",
        "com.microsoft",
        "NOTSET",
        "SAME_UPPER",
        "0",
        "-1",
    ),
    *(
        "location",
        "offset",
        "length",
        "99999999999999999999",
        "irc.fold_map",
        "value",
        "axis",
        "to",
        "perm",
        "shape",
    ),
)
OPERATORS = (
    *(
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Neg",
        "Conv",
        "ConvTranspose",
        "Gemm",
        "MatMul",
        "BatchNormalization",
        "Relu",
        "Clip",
    ),
    *(
        "Reshape",
        "Transpose",
        "Squeeze",
        "Unsqueeze",
        "Flatten",
        "Concat",
        "Split",
        "Slice",
        "Gather",
        "Expand",
        "Tile",
    ),
    *(
        "Pad",
        "Resize",
        "Upsample",
        "Cast",
        "CastLike",
        "Shape",
        "Size",
        "Range",
        "ConstantOfShape",
        "Constant",
        "Where",
    ),
    *(
        "If",
        "Loop",
        "Scan",
        "Dropout",
        "Identity",
        "Pow",
        "Mod",
        "Sqrt",
        "Reciprocal",
        "Equal",
        "Not",
        "Max",
        "Min",
    ),
    *(
        "ReduceMean",
        "ReduceSum",
        "ReduceMax",
        "ReduceL2",
        "GlobalAveragePool",
        "AveragePool",
        "MaxPool",
        "LpPool",
    ),
    *(
        "LayerNormalization",
        "GroupNormalization",
        "InstanceNormalization",
        "RMSNormalization",
        "PRelu",
        "LeakyRelu",
    ),
    *(
        "DepthToSpace",
        "SpaceToDepth",
        "CumSum",
        "TopK",
        "NonZero",
        "OneHot",
        "ScatterND",
        "Einsum",
        "QuantizeLinear",
    ),
    *(
        "DequantizeLinear",
        "SequenceConstruct",
        "SequenceAt",
        "Optional",
        "EyeLike",
        "Trilu",
        "Sum",
        "Mean",
        "Abs",
    ),
    *(
        "LSTM",
        "GRU",
        "RandomNormal",
        "Softmax",
        "HardSigmoid",
        "Sigmoid",
        "Erf",
        "LRN",
        "Compress",
        "BlackmanWindow",
    ),
)


def mutate_bytes(data: bytes, rng: Random, other: bytes) -> bytes:
    """One to four changes of bytes, which know nothing of the format."""
    content = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(content) + 1)
        count = rng.choice((1, 1, 1, 2, 4, 8, 32, 200))
        match rng.randrange(7):
            case 0 if place < len(content):
                content[place] ^= 1 << rng.randrange(8)
            case 1 if place < len(content):
                content[place] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
            case 2:
                del content[place : place + count]
            case 3:
                content[place:place] = rng.randbytes(count)
            case 4:
                content[place:place] = content[place : place + count]
            case 5:
                start = rng.randrange(len(other) + 1)
                content[place : place + rng.choice((0, count))] = other[start : start + count]
            case _ if rng.random() < 0.3:
                del content[place:]
    return bytes(content)


def messages(root: Message) -> list[Message]:
    """Every message in `root`, with itself."""
    found, stack = [], [root]
    while stack:
        message = stack.pop()
        found.append(message)
        for field, value in message.ListFields():
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                stack.extend([value] if isinstance(value, Message) else value)
    return found


def is_repeated(field: FieldDescriptor, message: Message) -> bool:
    return not isinstance(getattr(message, field.name), (int, float, str, bytes, Message))


class Protos:
    """Mutates a model; `donor` lends it messages."""

    def __init__(self, model: ModelProto, rng: Random, donor: ModelProto) -> None:
        self.model, self.rng, self.donor = model, rng, donor
        self.all: list[Message] = []

    def run(self) -> bytes:
        rng = self.rng
        for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5))):
            self.all = messages(self.model)
            try:
                rng.choice((Protos.field,) if rng.random() < 0.5 else TRICKS)(self)
            except (ValueError, TypeError, IndexError, AttributeError, DecodeError):
                continue  # what the message cannot hold
        data = self.model.SerializeToString()
        return data.replace(NOT_UTF8.encode(), b"\xff\xfe\xc3\x28\x80\xbf\xf8\x88\x81\x00")

    def one(self, kind: type[Message]) -> Any:
        return self.rng.choice([message for message in self.all if isinstance(message, kind)])

    def name(self) -> str:
        """A name that stands in the model, or an odd one."""
        if self.rng.random() < 0.3:
            return self.rng.choice(STRINGS)
        names = [
            name
            for node in self.all
            if isinstance(node, NodeProto)
            for name in (*node.input, *node.output)
        ]
        return self.rng.choice(names)

    def value(self, field: FieldDescriptor, message: Message) -> Any:
        rng = self.rng
        if field.type == FieldDescriptor.TYPE_ENUM:
            return rng.choice(field.enum_type.values).number
        if field.type in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE):
            return rng.choice(FLOATS)
        if field.type == FieldDescriptor.TYPE_BYTES:
            return rng.choice(
                (b"", b"\x00", b"\xff\xfe", rng.randbytes(rng.choice((1, 3, 4, 8, 64))))
            )
        if field.type == FieldDescriptor.TYPE_STRING:
            return self.name() if rng.random() < 0.7 else rng.choice(OPERATORS)
        return rng.choice(INTEGERS) if rng.random() < 0.7 else rng.randint(-4, 12)

    def field(self) -> None:
        """Change any field of any message."""
        rng = self.rng
        message = rng.choice(self.all)
        fields = message.DESCRIPTOR.fields
        present = [field for field, _ in message.ListFields()]
        field = rng.choice(present if present and rng.random() < 0.75 else fields)
        held = getattr(message, field.name)
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            self.submessage(message, field, held)
        elif not is_repeated(field, message):
            if rng.random() < 0.15:
                message.ClearField(field.name)
            else:
                setattr(message, field.name, self.value(field, message))
        else:
            items = list(held)
            place = rng.randrange(len(items) + 1)
            match rng.randrange(6):
                case 0:
                    items[place : place + 1] = []
                case 1:
                    items.insert(place, self.value(field, message))
                case 2 | 3 if place < len(items):
                    items[place] = self.value(field, message)
                case 4:
                    rng.shuffle(items)
                case _:
                    items = items * rng.choice((0, 2, 3))
            message.ClearField(field.name)
            held.extend(items)

    def submessage(self, message: Message, field: FieldDescriptor, held: Any) -> None:
        rng = self.rng
        lent = messages(self.donor) if rng.random() < 0.4 else self.all
        alike = [m for m in lent if m.DESCRIPTOR is field.message_type]
        if not is_repeated(field, message):
            if rng.random() < 0.3 or not alike:
                message.ClearField(field.name)
            else:
                held.CopyFrom(copy.deepcopy(rng.choice(alike)))
            return
        place = rng.randrange(len(held) + 1)
        match rng.randrange(4):
            case 0 if place < len(held):
                del held[place]
            case 1 if held:
                held.add().CopyFrom(copy.deepcopy(held[place % len(held)]))
            case 2 if alike:
                held.add().CopyFrom(copy.deepcopy(rng.choice(alike)))
            case _:
                items = [copy.deepcopy(item) for item in held]
                rng.shuffle(items)
                del held[:]
                held.extend(items)

    # what a blind change would hardly find

    def operator(self) -> None:
        """Another operator on the same operands."""
        self.one(NodeProto).op_type = self.rng.choice(OPERATORS)

    def dims(self) -> None:
        """A tensor that lies about its shape."""
        tensor = self.one(TensorProto)
        dims = list(tensor.dims)
        if dims and self.rng.random() < 0.8:
            dims[self.rng.randrange(len(dims))] = self.rng.choice(INTEGERS)
        else:
            dims = [self.rng.choice(INTEGERS) for _ in range(self.rng.randrange(6))]
        tensor.dims[:] = dims

    def payload(self) -> None:
        """Other elements: too few, too many, NaN, infinite, of another type, in another field."""
        tensor, rng = self.one(TensorProto), self.rng
        raw = tensor.raw_data
        match rng.randrange(6):
            case 0:
                tensor.raw_data = raw[: rng.randrange(len(raw) + 1)]
            case 1:
                tensor.raw_data = raw + rng.randbytes(rng.randrange(9))
            case 2:
                tensor.raw_data = b"\x00\x00\xc0\x7f" * (len(raw) // 4)
            case 3:
                tensor.raw_data = b"\x00\x00\x80\x7f" * (len(raw) // 4)
            case 4:
                tensor.data_type = rng.choice(list(TensorProto.DataType.values()))
            case _:
                tensor.raw_data = rng.randbytes(len(raw))

    def attribute(self) -> None:
        """An attribute of another type, or another value."""
        attribute, rng = self.one(AttributeProto), self.rng
        name = attribute.name
        value = rng.choice(
            (
                rng.choice(INTEGERS),
                rng.choice(FLOATS),
                rng.choice(STRINGS[:-1]),
                [rng.choice(INTEGERS)] * 2,
                [1.5],
                ["a"],
            )
        )
        if attribute.ints and rng.random() < 0.6:
            value = [
                rng.choice(INTEGERS) if rng.random() < 0.5 else item for item in attribute.ints
            ]
        attribute.CopyFrom(helper.make_attribute(name, value))

    def version(self) -> None:
        """Opsets and IR versions, known and not."""
        if self.rng.random() < 0.3:
            self.model.ir_version = self.rng.choice((0, 1, 2, 3, 4, 7, 10, 99, -1, 2**62))
        elif self.model.opset_import:
            self.rng.choice(self.model.opset_import).version = self.rng.choice(
                (*range(-1, 30), 1000, 2**62)
            )

    def rename(self) -> None:
        """A node that reads or writes another name.

        Cycles, names defined twice, names that nothing defines.
        """
        node = self.one(NodeProto)
        names = (
            node.input
            if node.input and (not node.output or self.rng.random() < 0.6)
            else node.output
        )
        names[self.rng.randrange(len(names))] = self.name()

    def nest(self) -> None:
        """A graph around the nodes of the main graph, a few times over."""
        for _ in range(self.rng.choice((1, 2, 8, 40))):
            graph = self.model.graph
            inner = GraphProto(name="inner", node=graph.node, output=graph.output)
            condition = self.name()
            del graph.node[:]
            node = graph.node.add(
                op_type="If", input=[condition], output=[info.name for info in graph.output]
            )
            for branch in ("then_branch", "else_branch")[: self.rng.randint(1, 2)]:
                node.attribute.append(helper.make_attribute(branch, inner))
                if self.model.ByteSize() > 1 << 15:
                    return

    def function(self) -> None:
        """Functions that call themselves or each other."""
        rng = self.rng
        count = rng.choice((1, 2, 30))
        for i in range(count):
            function = self.model.functions.add(name=f"f{i}", domain="d", input=["x"], output=["y"])
            function.opset_import.add(domain="", version=17)
            function.opset_import.add(domain="d", version=1)
            called = i
            if count > 1:
                called = (i + 1) % count if rng.random() < 0.2 else max(i - 1, 0)
            callee = f"f{called}"
            function.node.add(
                op_type=callee if i or count == 1 else "Relu",
                domain="d" if i or count == 1 else "",
                input=["x"],
                output=["t"],
            )
            function.node.add(
                op_type=callee if i else "Relu", domain="d" if i else "", input=["t"], output=["y"]
            )
        self.model.opset_import.add(domain="d", version=1)
        node = self.one(NodeProto)
        node.op_type, node.domain = f"f{count - 1}", "d"

    def explode(self) -> None:
        """A constant expression that is large, read by some node."""
        rng, graph = self.rng, self.model.graph
        extents = [
            rng.choice((1, 3, 1000, 10**4, 10**6, 10**9, 2**40, 2**62))
            for _ in range(rng.randint(1, 4))
        ]
        number = len(graph.node)
        graph.initializer.append(
            helper.make_tensor(f"big{number}", TensorProto.INT64, [len(extents)], extents)
        )
        graph.initializer.append(helper.make_tensor(f"one{number}", TensorProto.FLOAT, [], [1.0]))
        graph.initializer.append(helper.make_tensor(f"i0{number}", TensorProto.INT64, [], [0]))
        graph.initializer.append(
            helper.make_tensor(f"i1{number}", TensorProto.INT64, [], [extents[0]])
        )
        step = graph.initializer.add()
        step.CopyFrom(helper.make_tensor(f"step{number}", TensorProto.INT64, [], [1]))
        made = rng.choice(
            (
                ("Expand", ["one", "big"]),
                ("ConstantOfShape", ["big"]),
                ("Tile", ["one", "big"]),
                ("Range", ["i0", "i1", "step"]),
            )
        )
        nodes = [
            helper.make_node(made[0], [f"{name}{number}" for name in made[1]], [f"huge{number}"])
        ]
        last = f"huge{number}"
        for i in range(rng.randrange(4)):
            nodes.append(
                helper.make_node(
                    rng.choice(("Neg", "Exp", "ReduceSum", "NonZero", "Add", "Shape", "Not")),
                    [last],
                    [f"{last}.{i}"],
                )
            )
            if nodes[-1].op_type == "Add":
                nodes[-1].input.append(last)
            last = f"{last}.{i}"
        reader = self.one(NodeProto)
        if reader.input:
            reader.input[rng.randrange(len(reader.input))] = last
        rest = [copy.deepcopy(node) for node in graph.node]
        del graph.node[:]
        graph.node.extend([*nodes, *rest])

    def external(self) -> None:
        """A tensor in another file, or said to be there."""
        tensor, rng = self.one(TensorProto), self.rng
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        places = (
            "data.bin",
            "absent",
            "..",
            ".",
            "../data.bin",
            "/etc/passwd",
            "",
            "a/../data.bin",
            "fifo",
            "out",
            "x" * 300,
            "\x00",
            "folder",
        )
        numbers = (
            "0",
            "4",
            "8",
            "-1",
            "x",
            "99999999999999999999",
            "1e3",
            "",
            " 4",
            "4096",
            "0x10",
            "٣",
        )
        del tensor.external_data[:]
        tensor.external_data.add(
            key="location", value=rng.choice(places) if rng.random() < 0.5 else "data.bin"
        )
        for key in ("offset", "length"):
            if rng.random() < 0.6:
                tensor.external_data.add(key=key, value=rng.choice(numbers))


TRICKS: Sequence[Callable[[Protos], None]] = (
    *(
        Protos.operator,
        Protos.dims,
        Protos.payload,
        Protos.attribute,
        Protos.version,
        Protos.rename,
        Protos.nest,
    ),
    *(Protos.function, Protos.explode, Protos.external),
)


def mutate_model(data: bytes, rng: Random, other: bytes) -> bytes:
    """A model with changed bytes, or with changed messages, which is more often."""
    if rng.random() < 0.2:
        return mutate_bytes(data, rng, other)
    return Protos(ModelProto.FromString(data), rng, ModelProto.FromString(other)).run()


TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|[%@#]?[\w.:-]+|\s+|.', re.DOTALL)
WORDS = (
    *(
        "graph",
        "function",
        "module",
        "return",
        "region 0",
        "region 9",
        "type",
        "sparse",
        "loc",
        "as",
        "opsets",
        "_",
        "?",
    ),
    *(
        "f32[3]",
        "f32[*]",
        "?[N]",
        "i64[2]",
        "f32[]",
        "str[1]",
        "i4[3]",
        "onnx99[3]",
        "seq<",
        "map<i64,",
        "optional<",
        ">",
    ),
    *(
        "{",
        "}",
        "(",
        ")",
        "[",
        "]",
        ",",
        "=",
        ":",
        '"',
        "//",
        "%x",
        "%y",
        '%"',
        "@f",
        "#0123456789abcdef",
        "nan",
        "-inf",
    ),
    *(
        "1e999",
        "nan(0x7ff0000000000001)",
        "1.5f64",
        "-0.0",
        "floats[]",
        "true",
        'b"\\x00"',
        '"\\u{110000}"',
        "@a:INT",
    ),
    *(
        "nn.conv",
        "nn.batch_norm",
        "multiply",
        "constant",
        "variable",
        "reshape",
        "full",
        "broadcast_to",
        "strided_slice",
    ),
    *(
        "transpose",
        "take",
        "concatenate",
        "matmul",
        "return",
        "nn.bias_add",
        "nn.batch_norm_to_affine",
        "cast",
        "arange",
    ),
)


def mutate_text(text: str, rng: Random, other: str) -> str:
    """IR text with other tokens, lines or characters.

    Half of the time only with what often parses.
    """
    tokens, lent = TOKEN.findall(text), TOKEN.findall(other)
    mild = rng.random() < 0.5
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        place = rng.randrange(len(tokens) + 1)
        if mild:
            kinds = (r"%[\w.]+", r"-?\d+", r"(\w+)\[", r"[a-z_]+(\.[a-z_]+)*", r'"[^"]*"')
            alike = re.compile(rng.choice(kinds))
            found = [i for i, token in enumerate(tokens) if alike.fullmatch(token)]
            if found:
                chosen = rng.choice(found)
                tokens[chosen] = tokens[rng.choice(found)]
                if tokens[chosen].isdigit() and rng.random() < 0.5:
                    tokens[chosen] = str(rng.choice(INTEGERS))
            continue
        match rng.randrange(9):
            case 0:
                del tokens[place : place + rng.choice((1, 1, 2, 5, 30))]
            case 1:
                tokens.insert(place, rng.choice(WORDS))
            case 2 | 3:
                tokens[place : place + 1] = [
                    rng.choice(WORDS) if rng.random() < 0.5 else rng.choice(tokens or [""])
                ]
            case 4:
                tokens[place : place + 1] = [str(rng.choice(INTEGERS))]
            case 5:
                tokens[place : place + 1] = [rng.choice(WORDS)] * rng.choice((2, 50, 3000))
            case 6:
                start = rng.randrange(len(lent) + 1)
                tokens[place:place] = lent[start : start + rng.choice((3, 20))]
            case 7:
                numbers = [i for i, token in enumerate(tokens) if token.lstrip("-").isdigit()]
                if numbers:
                    tokens[rng.choice(numbers)] = str(rng.choice(INTEGERS))
            case _:
                whole = "".join(tokens)
                at = rng.randrange(len(whole) + 1)
                tokens = TOKEN.findall(
                    whole[:at]
                    + rng.choice(("\x00", "\ud800", "é", '"', "\r", "\\", "\t"))
                    + whole[at:]
                )
    return "".join(tokens)


def mutate_document(document: Any, rng: Random) -> Any:
    """A JSON document with other values, in place but for the root."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        try:
            json.dumps(document)
        except RecursionError:
            return document  # deep enough
        places: list[tuple[Any, Any]] = []
        stack = [document]
        while stack:
            item = stack.pop()
            keys: Iterable[Any] = ()
            if isinstance(item, dict):
                keys = item
            elif isinstance(item, list):
                keys = range(len(item))
            places.extend((item, key) for key in keys)
            stack.extend(item[key] for key in keys)
        if not places:
            return document
        holder, key = rng.choice(places)
        match rng.randrange(7):
            case 0:
                del holder[key]
            case 1 | 2:
                holder[key] = rng.choice((None, True, [], {}, "", *INTEGERS, *FLOATS, *STRINGS))
            case 3:
                source, other = rng.choice(places)
                if rng.random() < 0.5 or source is not holder:
                    holder[key] = json.loads(json.dumps(source[other]))
            case 4 if isinstance(holder, list):
                holder.insert(key, json.loads(json.dumps(holder[key])))
            case 5:
                held = holder[key]
                for _ in range(rng.choice((1, 3, 500)) if len(places) < 5000 else 1):
                    held = [held]
                holder[key] = held
            case _ if isinstance(holder[key], str):
                holder[key] = mutate_bytes(
                    holder[key].encode("utf-8", "replace"), rng, b"L0A0"
                ).decode("utf-8", "replace")
    return document
