"""Models whose tensors lie in files beside them."""

from collections.abc import Callable
from hashlib import sha1
from pathlib import Path

from onnx import FunctionProto, ModelProto, TensorProto

from ._build import (
    NEWEST_IR,
    NEWEST_OPSET,
    ODD,
    OPSET,
    copy,
    entries,
    floats,
    graph,
    node,
    opset,
    raw_floats,
    simple,
    true,
    value,
)
from .tensors import DTYPES, dtype_number, raw_tensor, sparse_samples

Maker = Callable[[Path], ModelProto]


def put(folder: Path, location: str, data: bytes, gap: int = 0) -> tuple[int, int]:
    """Append the bytes to a file after `gap` filler bytes; returns offset and length."""
    path = folder / location
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(b"\xee" * gap)
        offset = file.tell()
        file.write(data)
    return offset, len(data)


def outside(tensor: TensorProto, **keys: str) -> TensorProto:
    """The tensor with external entries in place of its raw data."""
    result = copy(tensor)
    result.ClearField("raw_data")
    result.external_data.extend(entries(**keys))
    result.data_location = TensorProto.EXTERNAL
    return result


def stored(
    folder: Path, tensor: TensorProto, location: str = "weights.bin", gap: int = 0
) -> TensorProto:
    """The tensor moved to the file, with location, offset and length."""
    offset, length = put(folder, location, tensor.raw_data, gap)
    return outside(tensor, location=location, offset=str(offset), length=str(length))


def added(*tensors: TensorProto) -> ModelProto:
    """The sum of x and the tensors."""
    return simple(
        [node("Sum", ["x", *(tensor.name for tensor in tensors)], ["y"])], initializers=tensors
    )


def matrix(name: str, start: float = 0.5) -> TensorProto:
    """A raw tensor of 16 floats."""
    return raw_floats(name, [4, 4], start)


def three(folder: Path, *locations: str, gap: int = 0) -> ModelProto:
    """Three tensors in the named files, cycled."""
    named = [(f"w{index}", locations[index % len(locations)]) for index in range(3)]
    return added(
        *(stored(folder, matrix(name, index), at, gap) for index, (name, at) in enumerate(named))
    )


def whole_file(folder: Path) -> ModelProto:
    """No offset and no length."""
    put(folder, "w.bin", matrix("w").raw_data)
    return added(outside(matrix("w"), location="w.bin"))


def offset_only(folder: Path) -> ModelProto:
    """From an offset to the end of the file."""
    offset, _ = put(folder, "w.bin", matrix("w").raw_data, gap=64)
    return added(outside(matrix("w"), location="w.bin", offset=str(offset)))


def length_only(folder: Path) -> ModelProto:
    """A length from the start of a longer file."""
    _, length = put(folder, "w.bin", matrix("w").raw_data)
    put(folder, "w.bin", b"tail")
    return added(outside(matrix("w"), location="w.bin", length=str(length)))


def mixed(folder: Path) -> ModelProto:
    """Inner raw, inner typed and outer tensors in turn."""
    outer = [stored(folder, matrix(name, start), gap=3) for name, start in (("a", 1.0), ("c", 2.0))]
    return added(outer[0], matrix("b"), outer[1], floats("d", [4, 4]))


def shared_bytes(folder: Path) -> ModelProto:
    """Tensors over the same and over overlapping bytes."""
    first = stored(folder, matrix("w"))
    second, part = copy(first), copy(first)
    second.name, part.name = "v", "u"
    part.dims[:] = [4]
    part.external_data[1].value, part.external_data[2].value = "16", "16"
    return added(first, second, part)


def extra_keys(folder: Path) -> ModelProto:
    """Keys beside the three, before and after them, in another order."""
    data = matrix("w").raw_data
    offset, length = put(folder, "weights.bin", data, gap=16)
    keys = {"checksum": sha1(data).hexdigest(), "length": str(length), "location": "weights.bin"}
    return added(outside(matrix("w"), **keys, offset=str(offset)))


def unknown_keys(folder: Path) -> ModelProto:
    """Keys of other tools, an empty value, and a key given twice."""
    tensor = stored(folder, matrix("w"))
    tensor.external_data.extend(
        entries(prepacked_0="weights.bin;0;64", basepath="", note="ünïcode")
    )
    tensor.external_data.add(key="note", value="again")
    return added(tensor)


def odd_numbers(folder: Path) -> ModelProto:
    """Offsets and lengths written with leading zeros."""
    tensor = stored(folder, matrix("w"), gap=8)
    tensor.external_data[1].value, tensor.external_data[2].value = "0008", "00064"
    return added(tensor)


def trimmed(folder: Path) -> ModelProto:
    """Doc string, metadata and an explicitly empty raw_data on an external tensor."""
    tensor = stored(folder, matrix("w"))
    tensor.doc_string = "documented"
    tensor.metadata_props.extend(entries(k="v"))
    tensor.raw_data = b""
    return added(tensor)


def in_branches(folder: Path) -> ModelProto:
    """Initializers and Constants of subgraphs, two levels deep."""
    tensors = [stored(folder, matrix(f"w{index}", index)) for index in range(3)]
    deep = graph([node("Add", ["x", "w0"], ["d"])], [], ["d"], [tensors[0]], name="deep")
    other = graph(
        [node("Constant", [], ["w1"], value=tensors[1])],
        [],
        [value("w1", shape=[4, 4])],
        name="other",
    )
    inner = node("If", ["cond"], ["o"], then_branch=deep, else_branch=copy(other))
    then = graph([inner], [], ["o"], name="then")
    final = graph([node("Mul", ["x", "w2"], ["e"])], [], ["e"], [tensors[2]], name="else")
    branch = node("If", ["cond"], ["y"], then_branch=then, else_branch=final)
    return simple([branch], initializers=[true("cond")])


def in_constant(folder: Path) -> ModelProto:
    """A Constant's value."""
    constant = node("Constant", [], ["k"], value=stored(folder, matrix("k"), gap=1))
    return simple([constant, node("Add", ["x", "k"], ["y"])])


def in_attributes(folder: Path) -> ModelProto:
    """Single and listed tensor attributes of an unknown operator."""
    held = [stored(folder, matrix(name, index)) for index, name in enumerate("ab")]
    fancy = node("Fancy", ["x"], ["y"], "acme", one=held[0], many=[held[1], matrix("c"), held[0]])
    return simple([fancy], imports=[opset("acme", 1)])


def in_function(folder: Path) -> ModelProto:
    """A Constant in a function's body, and one in a branch inside it."""
    constant = node("Constant", [], ["k"], value=stored(folder, matrix("k")))
    nested = node("Constant", [], ["n"], value=stored(folder, matrix("n", 9.0)))
    then = graph([nested], [], [value("n", shape=[4, 4])], name="then")
    other = graph([node("Identity", ["k"], ["e"])], [], [value("e", shape=[4, 4])], name="else")
    cond = node("Constant", [], ["cond"], value=true("t"))
    branch = node("If", ["cond"], ["b"], then_branch=then, else_branch=other)
    body = FunctionProto(
        name="f", domain="local", input=["x"], output=["y"], opset_import=[opset("", OPSET)]
    )
    body.node.extend([constant, cond, branch, node("Sum", ["x", "k", "b"], ["y"])])
    return simple([node("f", ["x"], ["y"], "local")], imports=[opset("local", 1)], functions=[body])


def in_function_default(folder: Path) -> ModelProto:
    """The default of a function's tensor attribute."""
    constant = node("Constant", [], ["k"])
    constant.attribute.add(name="value", ref_attr_name="weight", type="TENSOR")
    body = FunctionProto(
        name="f", domain="local", input=["x"], output=["y"], opset_import=[opset("", OPSET)]
    )
    body.node.extend([constant, node("Add", ["x", "k"], ["y"])])
    body.attribute_proto.add(name="weight", type="TENSOR", t=stored(folder, matrix("k")))
    return simple([node("f", ["x"], ["y"], "local")], imports=[opset("local", 1)], functions=[body])


def every_dtype(folder: Path) -> ModelProto:
    """A tensor of every type that may be raw, each in the same file after a gap."""
    names = [name for name, _ in DTYPES if name != "STRING"]
    tensors = [stored(folder, raw_tensor(name, name, (5,)), gap=1) for name in names]
    taker = node("Take", ["x", *names], ["y"], "acme")
    return simple(
        [taker],
        initializers=tensors,
        imports=[opset("acme", 1)],
        version=NEWEST_OPSET,
        ir=NEWEST_IR,
    )


def empty_tensors(folder: Path) -> ModelProto:
    """Zero elements at the start, in the middle and at the end of a file, and a scalar."""
    kinds = [
        ("start", (0,)),
        ("scalar", ()),
        ("middle", (2, 0, 3)),
        ("full", (4, 4)),
        ("end", (0,)),
    ]
    return added(*(stored(folder, raw_floats(name, dims)) for name, dims in kinds))


def page_aligned(folder: Path) -> ModelProto:
    """Offsets at multiples of 4096."""
    return added(
        *(
            stored(folder, matrix(name), gap=gap)
            for name, gap in (("a", 0), ("b", 4096 - 64), ("c", 4096 - 64))
        )
    )


def large(folder: Path) -> ModelProto:
    """A mebibyte, in the middle of its file."""
    return added(stored(folder, raw_floats("w", [512, 512]), gap=12), stored(folder, matrix("v")))


def overridable(folder: Path) -> ModelProto:
    """An external initializer that is a graph input too, and a graph output."""
    tensor = stored(folder, matrix("w"))
    info = value("w", shape=[4, 4])
    return simple([node("Add", ["x", "w"], ["y"])], ["x", info], ["y", info], [tensor])


def sparse_values(folder: Path) -> ModelProto:
    """The values of a sparse initializer."""
    made = simple([node("Add", ["x", "w"], ["y"])])
    tensor = sparse_samples()["raw_indices"]
    tensor.values.CopyFrom(stored(folder, raw_floats("w", [2])))
    made.graph.sparse_initializer.append(tensor)
    return made


def sparse_indices(folder: Path) -> ModelProto:
    """The values and the indices of a sparse initializer, which the checker cannot read."""
    made = sparse_values(folder)
    indices = made.graph.sparse_initializer[0].indices
    indices.CopyFrom(stored(folder, indices))
    return made


def negative_zero_and_nans(folder: Path) -> ModelProto:
    """Bit patterns that arithmetic would not keep."""
    data = b"\x01\x00\x80\x7f\x45\x23\xc1\xff\x00\x00\x00\x80\x01\x00\x00\x00"
    tensor = TensorProto(name="w", data_type=dtype_number("FLOAT"), dims=[4], raw_data=data)
    return added(stored(folder, tensor, gap=2))


def missing_file(_: Path) -> ModelProto:
    """A location that does not exist, for a tensor nobody reads."""
    made = simple([node("Relu", ["x"], ["y"])])
    made.graph.initializer.append(
        outside(matrix("w"), location="absent.bin", offset="0", length="64")
    )
    return made


def no_location(_: Path) -> ModelProto:
    """An external tensor without any entry, for a tensor nobody reads."""
    made = simple([node("Relu", ["x"], ["y"])])
    made.graph.initializer.append(outside(matrix("w")))
    return made


MAKERS: dict[str, Maker] = {
    "one_file": lambda folder: three(folder, "weights.bin"),
    "file_per_tensor": lambda folder: three(folder, "w0", "w1", "w2"),
    "two_files_interleaved": lambda folder: three(folder, "even.data", "odd.data"),
    "subfolder": lambda folder: three(folder, "data/deep/weights.bin"),
    "subfolder_and_beside": lambda folder: three(folder, "data/weights.bin", "weights.bin"),
    "dotted_location": lambda folder: three(folder, "./weights.bin"),
    "untidy_location": lambda folder: three(folder, "weights of größe ☃.bin"),
    "unaligned_offsets": lambda folder: three(folder, "weights.bin", gap=3),
    "whole_file": whole_file,
    "offset_only": offset_only,
    "length_only": length_only,
    "mixed_internal_external": mixed,
    "shared_bytes": shared_bytes,
    "checksum_and_key_order": extra_keys,
    ODD + "unknown_keys": unknown_keys,
    "leading_zeros": odd_numbers,
    "trimmed_tensor": trimmed,
    "subgraph_initializers": in_branches,
    "constant_attribute": in_constant,
    "tensor_attributes": in_attributes,
    "function_constant": in_function,
    "function_default": in_function_default,
    "every_dtype": every_dtype,
    "empty_tensors": empty_tensors,
    "page_aligned": page_aligned,
    "large": large,
    "overridable": overridable,
    "sparse_values": sparse_values,
    ODD + "sparse_indices": sparse_indices,
    "nan_payloads": negative_zero_and_nans,
    ODD + "missing_file": missing_file,
    ODD + "no_location": no_location,
}
