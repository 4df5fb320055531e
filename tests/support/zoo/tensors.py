"""Tensors of every type and storage, sparse tensors, Constant nodes."""

import struct
from collections.abc import Iterator
from math import prod
from typing import Any

from onnx import NodeProto, SparseTensorProto, TensorProto, TypeProto, ValueInfoProto

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
    ints,
    node,
    opset,
    raw_floats,
    simple,
    tensor_type,
    true,
    typed,
    value,
)

DTYPES = [(name, number) for name, number in TensorProto.DataType.items() if number]

BITS = {
    "COMPLEX128": 128,
    **dict.fromkeys(("DOUBLE", "INT64", "UINT64", "COMPLEX64"), 64),
    **dict.fromkeys(("FLOAT", "INT32", "UINT32"), 32),
    **dict.fromkeys(("FLOAT16", "BFLOAT16", "INT16", "UINT16"), 16),
    **dict.fromkeys(("FLOAT6E2M3", "FLOAT6E3M2"), 6),
    **dict.fromkeys(("INT4", "UINT4", "FLOAT4E2M1"), 4),
    **dict.fromkeys(("INT2", "UINT2"), 2),
}
"""Bits per element; the rest take a byte, strings have none."""

FIELDS = {
    "FLOAT": "float_data",
    "COMPLEX64": "float_data",
    "DOUBLE": "double_data",
    "COMPLEX128": "double_data",
    "INT64": "int64_data",
    "UINT64": "uint64_data",
    "UINT32": "uint64_data",
    "STRING": "string_data",
}
"""Where elements go that are not raw; the rest live in `int32_data`."""

SHAPES: tuple[tuple[int, ...], ...] = (
    (),
    (0,),
    (1,),
    (5,),
    (7,),
    (2, 3),
    (2, 0, 3),
    (1, 1, 2, 1, 4),
)
NEWEST: dict[str, Any] = {"version": NEWEST_OPSET, "ir": NEWEST_IR}


def payload(count: int, boolean: bool = False) -> bytes:
    """Bytes that cover the whole range in a fixed, irregular order."""
    return bytes((index * 151 + 129) % 256 & (1 if boolean else 255) for index in range(count))


def raw_tensor(name: str, dtype: str, dims: tuple[int, ...]) -> TensorProto:
    """A tensor in `raw_data`, its padding bits zero."""
    bits = BITS.get(dtype, 8) * prod(dims)
    data = bytearray(payload((bits + 7) // 8, dtype == "BOOL"))
    if bits % 8:
        data[-1] &= (1 << bits % 8) - 1
    return TensorProto(name=name, data_type=dtype_number(dtype), dims=dims, raw_data=bytes(data))


def field_tensor(name: str, dtype: str, dims: tuple[int, ...]) -> TensorProto:
    """A tensor in its typed field."""
    result = TensorProto(name=name, data_type=dtype_number(dtype), dims=dims)
    field = FIELDS.get(dtype, "int32_data")
    bits, count = BITS.get(dtype, 8), prod(dims)
    if field == "string_data":
        result.string_data.extend(f"item {index}".encode() for index in range(count))
    elif field in ("float_data", "double_data"):
        parts = count * (2 if dtype.startswith("COMPLEX") else 1)
        getattr(result, field).extend((-1) ** index * index / 8 for index in range(parts))
    elif bits in (2, 4):
        result.int32_data.extend(raw_tensor(name, dtype, dims).raw_data)
    else:
        signed = dtype.startswith("INT")
        span = min(bits, 8) if dtype != "BOOL" else 1
        numbers = (byte % 2**span for byte in payload(count))
        getattr(result, field).extend(
            number - 2 ** (span - 1) if signed else number for number in numbers
        )
    return result


def dtype_number(dtype: str) -> int:
    """The number of the named type."""
    return int(TensorProto.DataType.Value(dtype))


def holding(*tensors: TensorProto, **options: Any) -> Item:
    """A model whose initializers are read by nothing but an unknown node, named after the first."""
    names = [tensor.name for tensor in tensors if tensor.name]
    reader = node("Take", ["x", *names], ["y"], "acme")
    return tensors[0].name, simple(
        [reader], initializers=tensors, imports=[opset("acme", 1)], **options
    )


def every_dtype() -> Iterator[Item]:
    """Each element type as raw and as typed initializers of many shapes."""
    for dtype, _ in DTYPES:
        for form, make in (("raw", raw_tensor), ("field", field_tensor)):
            if (dtype, form) == ("STRING", "raw"):
                continue
            tensors = [make(f"t{index}", dtype, dims) for index, dims in enumerate(SHAPES)]
            yield f"{form}_{dtype}", holding(*tensors, **NEWEST)[1]


def dirty_padding() -> Iterator[Item]:
    """Sub-byte tensors of odd counts whose unused bits are set."""
    for dtype in ("INT4", "UINT4", "FLOAT4E2M1", "INT2", "UINT2", "FLOAT6E2M3", "FLOAT6E3M2"):
        if dtype not in dict(DTYPES):  # onnx 1.22 knows no 6-bit floats
            continue
        size = (BITS[dtype] * 5 + 7) // 8
        raw = TensorProto(
            name="raw", data_type=dtype_number(dtype), dims=[5], raw_data=b"\xff" * size
        )
        wide = TensorProto(name="wide", data_type=dtype_number(dtype), dims=[1], int32_data=[-1])
        mark = ODD if dtype.startswith("FLOAT6") else ""
        yield mark + dtype, holding(raw, wide, **NEWEST)[1]


def dtype_of_values() -> Iterator[Item]:
    """Each element type as input, value_info, output, Constant, sequence and optional."""
    for dtype, number in DTYPES:
        plain, sequence, optional = tensor_type(number, ["N", 2]), TypeProto(), TypeProto()
        sequence.sequence_type.elem_type.CopyFrom(plain)
        optional.optional_type.elem_type.CopyFrom(plain)
        held = field_tensor("held", dtype, (3,))
        nodes = [
            node("Identity", ["x"], ["t"]),
            node("Identity", ["t"], ["y"]),
            node("Constant", [], ["k"], value=held),
        ]
        made = simple(
            nodes, [typed("x", plain), typed("s", sequence), typed("o", optional)], [], **NEWEST
        )
        made.graph.output.extend([typed("y", plain), value("k", number, [3])])
        made.graph.value_info.append(typed("t", plain))
        yield dtype, made


def bits_of(name: str, dtype: str, code: str, *words: int) -> TensorProto:
    """A raw tensor of the given bit patterns."""
    data = struct.pack(f"<{len(words)}{code}", *words)
    return TensorProto(name=name, data_type=dtype_number(dtype), dims=[len(words)], raw_data=data)


def special_floats() -> Iterator[Item]:
    """NaN payloads, signed zeros, infinities and denormals in every float storage."""
    single = (0x7F800001, 0xFFC12345, 0x7FC00000, 0x80000000, 0x00000001, 0xFF800000, 0x7F7FFFFF)
    double = (0x7FF0000000000001, 0xFFF8000000001234, 1 << 63, 1, 0x7FF0000000000000)
    half = (0x7C01, 0xFE12, 0x8000, 0x0001, 0xFC00, 0x7BFF)
    brain = (0x7F81, 0xFFC1, 0x8000, 0x0001, 0xFF80)
    yield "raw_float", holding(bits_of("float", "FLOAT", "I", *single))[1]
    yield "raw_double", holding(bits_of("double", "DOUBLE", "Q", *double))[1]
    yield "raw_half", holding(bits_of("half", "FLOAT16", "H", *half))[1]
    yield "raw_bfloat16", holding(bits_of("brain", "BFLOAT16", "H", *brain))[1]
    for dtype, words in (("FLOAT16", half), ("BFLOAT16", brain)):
        listed = TensorProto(
            name="t", data_type=dtype_number(dtype), dims=[len(words)], int32_data=words
        )
        yield f"int32_data_{dtype}", holding(listed)[1]
    for dtype, dims in (("FLOAT", [7]), ("COMPLEX64", [3])):
        count = 7 if dtype == "FLOAT" else 6
        listed = TensorProto(name="t", data_type=dtype_number(dtype), dims=dims)
        add_wire(listed, 4, struct.pack(f"<{count}I", *single[:count]))
        yield f"float_data_{dtype}", holding(listed)[1]
    for dtype, dims in (("DOUBLE", [5]), ("COMPLEX128", [2])):
        count = 5 if dtype == "DOUBLE" else 4
        listed = TensorProto(name="t", data_type=dtype_number(dtype), dims=dims)
        add_wire(listed, 10, struct.pack(f"<{count}Q", *double[:count]))
        yield f"double_data_{dtype}", holding(listed)[1]
    zeros = TensorProto(name="t", data_type=TensorProto.FLOAT, dims=[4], float_data=[-0.0] * 4)
    yield "added_minus_zero", simple([node("Add", ["x", "t"], ["y"])], initializers=[zeros])


def extreme_integers() -> Iterator[Item]:
    """Ends of the ranges, and int32_data entries a narrow type cannot hold."""
    rows: tuple[tuple[str, str, list[int]], ...] = (
        ("INT64", "int64_data", [-(2**63), 2**63 - 1, 0]),
        ("UINT64", "uint64_data", [2**64 - 1, 0, 2**63]),
        ("UINT32", "uint64_data", [2**32 - 1, 0, 2**40]),
        ("INT32", "int32_data", [-(2**31), 2**31 - 1, 0]),
        ("UINT16", "int32_data", [65535, 65536, -1]),
        ("INT8", "int32_data", [-128, 255, 300]),
        ("UINT8", "int32_data", [255, -1, 256]),
        ("BOOL", "int32_data", [2, -1, 0]),
        ("FLOAT16", "int32_data", [0x13C00, -1, 0xFFFF]),
        ("INT4", "int32_data", [0x1FF, -8]),
    )
    for dtype, field, numbers in rows:
        tensor = TensorProto(name="t", data_type=dtype_number(dtype), dims=[3])
        getattr(tensor, field).extend(numbers)
        yield dtype, holding(tensor)[1]
    raw_bools = TensorProto(
        name="t", data_type=TensorProto.BOOL, dims=[3], raw_data=b"\x02\xff\x00"
    )
    yield "BOOL_raw", holding(raw_bools)[1]


def strings() -> Iterator[Item]:
    """String tensors of empty, binary, long and untidy items."""
    items = [b"", b"\x00", b"\xff\xfe", "日本".encode(), b'"quoted"\n', b"x" * 70000, b" "]
    for name, dims in (
        ("vector", [7]),
        ("matrix", [7, 1]),
        ("rank_9", [1, 1, 1, 7, 1, 1, 1, 1, 1]),
    ):
        yield (
            name,
            holding(
                TensorProto(name="t", data_type=TensorProto.STRING, dims=dims, string_data=items)
            )[1],
        )
    for name, shape in (("scalar", []), ("one", [1])):
        yield (
            name,
            holding(
                TensorProto(name="t", data_type=TensorProto.STRING, dims=shape, string_data=[b"s"])
            )[1],
        )


def trimmings() -> Iterator[Item]:
    """Doc strings, metadata, explicit defaults and empty names on tensors."""
    full = floats("t")
    full.doc_string = 'A "tensor"\nof two lines'
    full.metadata_props.extend(entries(b="2", a="1", empty=""))
    yield "doc_and_metadata", holding(full)[1]
    explicit = floats("t")
    explicit.data_location = TensorProto.DEFAULT
    explicit.doc_string = ""
    yield "explicit_default_location", holding(explicit)[1]
    stray = floats("t")
    stray.external_data.extend(entries(location="never.bin"))
    yield "stray_external_entries", holding(stray)[1]
    hollow = TensorProto(name="t", data_type=TensorProto.FLOAT, dims=[0], raw_data=b"")
    yield "explicit_empty_raw", holding(hollow)[1]
    no_dims = TensorProto(name="t", data_type=TensorProto.INT64, int64_data=[7])
    yield "scalar", holding(no_dims)[1]
    rank_12 = floats("t", [1] * 12)
    yield "rank_12", holding(rank_12)[1]
    huge_zero = TensorProto(name="t", data_type=TensorProto.FLOAT, dims=[2**40, 0, 3])
    yield "huge_zero_size", holding(huge_zero)[1]
    constant = node("Constant", [], ["k"], value=full)
    unnamed = copy(full)
    unnamed.ClearField("name")
    nodes = [
        constant,
        node("Constant", [], ["l"], value=unnamed),
        node("Sum", ["x", "k", "l"], ["y"]),
    ]
    yield "constants_named_and_unnamed", simple(nodes)


def oddities() -> Iterator[Item]:
    """Segments and tensors whose fields disagree with each other."""
    segment = floats("t")
    segment.segment.begin, segment.segment.end = 0, 4
    empty_segment = floats("t")
    empty_segment.segment.SetInParent()
    both = floats("t", [2])
    both.raw_data = b"\0" * 8
    two = floats("t", [2])
    two.int64_data.extend([1, 2])
    short = raw_floats("t", [3])
    short.raw_data = short.raw_data[:5]
    long = raw_floats("t", [3])
    long.raw_data += b"\x01\x02"
    named = {
        "segment": segment,
        "empty_segment": empty_segment,
        "raw_and_field": both,
        "two_fields": two,
        "short_raw": short,
        "long_raw": long,
        "wrong_field": TensorProto(
            name="t", data_type=TensorProto.FLOAT, dims=[2], int64_data=[1, 2]
        ),
        "no_data": TensorProto(name="t", data_type=TensorProto.FLOAT, dims=[2]),
        "too_few_items": TensorProto(
            name="t", data_type=TensorProto.INT64, dims=[3], int64_data=[1]
        ),
        "no_type": TensorProto(name="t", dims=[1], float_data=[1.0]),
        "undefined_type": TensorProto(name="t", data_type=0, dims=[1], float_data=[1.0]),
        "unknown_type": TensorProto(name="t", data_type=999, dims=[1], raw_data=b"\x01"),
        "negative_dim": TensorProto(
            name="t", data_type=TensorProto.FLOAT, dims=[-1], float_data=[1.0]
        ),
        "string_raw": TensorProto(
            name="t", data_type=TensorProto.STRING, dims=[1], raw_data=b"abc"
        ),
        "nothing_but_a_name": TensorProto(name="t"),
    }
    for name, tensor in named.items():
        yield ODD + name, holding(tensor)[1]
    nameless = floats("t")
    nameless.ClearField("name")
    yield (
        ODD + "nameless_initializer",
        simple([node("Relu", ["x"], ["y"])], initializers=[nameless]),
    )
    yield (
        ODD + "empty_initializer",
        simple([node("Relu", ["x"], ["y"])], initializers=[TensorProto()]),
    )
    yield (
        ODD + "initializer_twice",
        simple(
            [node("Add", ["x", "w"], ["y"])],
            initializers=[floats("w", [4], 1.0), floats("w", [4], 2.0)],
        ),
    )


def sparse(
    name: str, indices: TensorProto, dims: list[int], values: TensorProto | None = None
) -> SparseTensorProto:
    """A sparse tensor; its name is that of its values."""
    held = floats(name, [indices.dims[0]]) if values is None else values
    return SparseTensorProto(values=held, indices=indices, dims=dims)


def sparse_samples() -> dict[str, SparseTensorProto]:
    """One sparse tensor per form, each named `w`."""
    trimmed = sparse("w", ints("at", [0, 3]), [4])
    trimmed.values.doc_string = "values"
    trimmed.values.metadata_props.add(key="k", value="v")
    trimmed.indices.doc_string = "indices"
    halves = TensorProto(
        name="w", data_type=TensorProto.FLOAT16, dims=[2], raw_data=b"\x00\x3c\x00\x80"
    )
    texts = TensorProto(
        name="w", data_type=TensorProto.STRING, dims=[2], string_data=[b"a", b"\xff"]
    )
    complexes = TensorProto(
        name="w", data_type=TensorProto.COMPLEX64, dims=[2], float_data=[1.0, -0.0, 0.0, 2.0]
    )
    raw_at = TensorProto(
        name="at", data_type=TensorProto.INT64, dims=[2], raw_data=struct.pack("<2q", 1, 5)
    )
    return {
        "linear": sparse("w", ints("at", [1, 7, 11]), [3, 4]),
        "coordinates": sparse("w", ints("at", [0, 1, 2, 3], [2, 2]), [3, 4]),
        "coordinates_rank_1": sparse("w", ints("at", [0, 3], [2, 1]), [4]),
        "coordinates_rank_3": sparse("w", ints("at", [0, 0, 1, 1, 1, 1], [2, 3]), [2, 2, 2]),
        "nothing_stored": sparse("w", ints("at", [], [0]), [3, 4]),
        "raw_values": sparse("w", ints("at", [1, 2]), [4], raw_floats("w", [2])),
        "raw_indices": sparse("w", raw_at, [3, 4]),
        "half": sparse("w", ints("at", [1, 2]), [4], halves),
        "string": sparse("w", ints("at", [1, 2]), [4], texts),
        "complex": sparse("w", ints("at", [1, 2]), [4], complexes),
        "trimmings": trimmed,
        "unnamed_indices": sparse(
            "w", TensorProto(data_type=TensorProto.INT64, dims=[1], int64_data=[2]), [4]
        ),
    }


def sparse_initializers() -> Iterator[Item]:
    """Each sparse form as an initializer of the graph and of a branch, and as a Constant."""
    for name, tensor in sparse_samples().items():
        add = node("Add", ["x", "w"], ["y"])
        main = simple([add])
        main.graph.sparse_initializer.append(tensor)
        yield f"graph_{name}", main
        then = graph([add], [], ["y"], name="then")
        then.sparse_initializer.append(tensor)
        other = graph([node("Abs", ["x"], ["z"])], [], ["z"], name="else")
        branch = node("If", ["cond"], ["y"], then_branch=then, else_branch=other)
        yield f"branch_{name}", simple([branch], initializers=[true("cond")])
        yield f"constant_{name}", simple([node("Constant", [], ["w"], sparse_value=tensor), add])


def sparse_roles() -> Iterator[Item]:
    """Sparse initializers that are unused, returned, overridable, or mixed with dense ones."""
    first, second = sparse("w", ints("at", [1]), [4]), sparse("v", ints("at", [2]), [4])
    mixed = simple([node("Sum", ["x", "d", "w", "v"], ["y"])], initializers=[floats("d")])
    mixed.graph.sparse_initializer.extend([first, second])
    yield "mixed_with_dense", mixed
    unused = simple([node("Relu", ["x"], ["y"])])
    unused.graph.sparse_initializer.extend([second, first])
    yield "unused", unused
    returned = simple([node("Relu", ["x"], ["y"])], ["x"], ["y", value("w", shape=[4])])
    returned.graph.sparse_initializer.append(first)
    yield "returned", returned
    overridable = simple([node("Add", ["x", "w"], ["y"])], ["x", value("w", shape=[4])])
    overridable.graph.sparse_initializer.append(first)
    yield "overridable", overridable
    holders = node("Fancy", ["x"], ["y"], "acme", one=first, many=[first, second])
    yield "attributes", simple([holders], imports=[opset("acme", 1)])
    hollow = simple([node("Relu", ["x"], ["y"])])
    hollow.graph.sparse_initializer.add()
    yield ODD + "hollow", hollow
    unsorted = simple([node("Add", ["x", "w"], ["y"])])
    unsorted.graph.sparse_initializer.append(sparse("w", ints("at", [9, 1, 1]), [3, 4]))
    yield ODD + "unsorted_indices", unsorted


def constant_nodes() -> dict[str, NodeProto]:
    """A Constant named `k` of every attribute form."""
    forms: dict[str, Any] = {
        "value": floats("held", [2, 2]),
        "value_float": -0.0,
        "value_floats": [1.5, float("inf")],
        "value_int": -(2**63),
        "value_ints": [1, -2, 2**40],
        "value_string": b"\xffbytes",
        "value_strings": ["a", "", "ß"],
        "sparse_value": sparse("", ints("", [1]), [4]),
    }
    result = {name: node("Constant", [], ["k"], **{name: item}) for name, item in forms.items()}
    for kind in ("FLOATS", "INTS", "STRINGS"):
        form = f"value_{kind.lower()}"
        result[f"empty_{form}"] = node("Constant", [], ["k"])
        result[f"empty_{form}"].attribute.add(name=form, type=kind)
    result["nan"] = node("Constant", [], ["k"], value_float=float("nan"))
    return result


def constants() -> Iterator[Item]:
    """Each form read, unread, returned, and with trimmings of its own."""
    for name, constant in constant_nodes().items():
        taker = node("Take", ["x", "k"], ["y"], "acme")
        yield name, simple([constant, taker], imports=[opset("acme", 1)])
    yield (
        "unread",
        simple([node("Constant", [], ["k"], value_float=1.0), node("Relu", ["x"], ["y"])]),
    )
    out = ValueInfoProto(name="k", type=tensor_type(TensorProto.FLOAT, []))
    yield "returned", simple([node("Constant", [], ["k"], value_float=1.0)], [], [out])
    named = node("Constant", [], ["y"], value=floats("other_name"))
    named.name, named.doc_string = "a named constant", "documented"
    named.metadata_props.add(key="k", value="v")
    named.attribute[0].doc_string = "documented too"
    yield "trimmings", simple([named], [], [value("y", shape=[4])])
    late = [
        node("Relu", ["x"], ["a"]),
        node("Constant", [], ["k"], value_float=1.0),
        node("Add", ["a", "k"], ["y"]),
    ]
    yield "between_others", simple(late)
    twins = [node("Constant", [], [name], value_float=1.0) for name in ("k", "l")]
    yield "equal_twins", simple([*twins, node("Sum", ["x", "k", "l"], ["y"])])
    unused_outputs = node("Constant", [], ["k"], value_float=1.0, value_int=1)
    yield ODD + "two_forms", simple([unused_outputs, node("Relu", ["x"], ["y"])])
    yield ODD + "no_form", simple([node("Constant", [], ["k"]), node("Relu", ["x"], ["y"])])
    old = node("Constant", [], ["k"], value=floats("held"))
    yield "opset_1", simple([old, node("Add", ["x", "k"], ["y"], broadcast=1)], version=1, ir=3)
