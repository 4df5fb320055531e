"""Sequences, optionals, maps, sparse and opaque types, and the operators on them."""

from collections.abc import Iterator
from typing import Any

from onnx import TensorProto, TypeProto

from ._build import (
    NEWEST_IR,
    NEWEST_OPSET,
    ODD,
    OPSET,
    Item,
    graph,
    ints,
    node,
    opset,
    simple,
    tensor_type,
    text,
    true,
    typed,
    value,
)

NEWEST: dict[str, Any] = {"version": NEWEST_OPSET, "ir": NEWEST_IR}
ML = [opset("ai.onnx.ml", 3)]


def sequence(inner: TypeProto) -> TypeProto:
    """A sequence of the type."""
    result = TypeProto()
    result.sequence_type.elem_type.CopyFrom(inner)
    return result


def optional(inner: TypeProto) -> TypeProto:
    """An optional of the type."""
    result = TypeProto()
    result.optional_type.elem_type.CopyFrom(inner)
    return result


def mapping(key: int, inner: TypeProto) -> TypeProto:
    """A map from the key type to the type."""
    result = TypeProto()
    result.map_type.key_type = key
    result.map_type.value_type.CopyFrom(inner)
    return result


def sparse(dtype: int, dims: list[int | str]) -> TypeProto:
    """A sparse tensor type."""
    result = TypeProto()
    result.sparse_tensor_type.elem_type = dtype
    result.sparse_tensor_type.shape.CopyFrom(tensor_type(dtype, dims).tensor_type.shape)
    return result


def opaque(domain: str = "", name: str = "") -> TypeProto:
    """An opaque type; empty parts stay unset."""
    result = TypeProto()
    result.opaque_type.SetInParent()
    if domain:
        result.opaque_type.domain = domain
    if name:
        result.opaque_type.name = name
    return result


def types() -> dict[str, TypeProto]:
    """One type per form."""
    plain = tensor_type(TensorProto.FLOAT, ["N", 4])
    denoted = tensor_type(TensorProto.FLOAT, ["N", 3, "H", None])
    denoted.denotation = "IMAGE"
    for dim, denotation in zip(
        denoted.tensor_type.shape.dim, ("DATA_BATCH", "DATA_CHANNEL", "", "w"), strict=True
    ):
        dim.denotation = denotation
    nested = plain
    for _ in range(10):
        nested = sequence(optional(nested))
    return {
        "sequence": sequence(plain),
        "sequence_of_strings": sequence(tensor_type(TensorProto.STRING, None)),
        "sequence_of_sequences": sequence(sequence(plain)),
        "sequence_of_maps": sequence(
            mapping(TensorProto.INT64, tensor_type(TensorProto.FLOAT, []))
        ),
        "map_string": mapping(TensorProto.STRING, tensor_type(TensorProto.INT64, [])),
        "map_to_sequence": mapping(TensorProto.INT64, sequence(plain)),
        "optional": optional(plain),
        "optional_sequence": optional(sequence(plain)),
        "sparse": sparse(TensorProto.FLOAT, ["N", 100]),
        "sparse_half": sparse(TensorProto.FLOAT16, []),
        "opaque": opaque("acme.types", "Handle"),
        "opaque_of_model_domain": opaque(name="Handle"),
        ODD + "opaque_bare": opaque(),
        "denoted": denoted,
        "deep": nested,
    }


def every_type() -> Iterator[Item]:
    """Each type as input, intermediate and output of an unknown operator."""
    for name, type_ in types().items():
        nodes = [node("Pass", ["x"], ["t"], "acme"), node("Pass", ["t"], ["y"], "acme")]
        made = simple(
            nodes, [typed("x", type_)], [typed("y", type_)], imports=[opset("acme", 1)], **NEWEST
        )
        made.graph.value_info.append(typed("t", type_))
        yield name, made


def hollow_types() -> Iterator[Item]:
    """Types with parts missing, in value_info and on graph inputs."""
    forms = {
        "nothing": TypeProto(),
        "denotation_only": TypeProto(denotation="IMAGE"),
        "tensor_of_nothing": TypeProto(tensor_type=TypeProto.Tensor()),
        "tensor_without_elem_type": TypeProto(),
        "tensor_of_undefined": tensor_type(0, [1]),
        "tensor_of_unknown": tensor_type(999, [1]),
        "sequence_of_nothing": TypeProto(sequence_type=TypeProto.Sequence()),
        "sequence_of_empty": sequence(TypeProto()),
        "optional_of_nothing": TypeProto(optional_type=TypeProto.Optional()),
        "map_of_nothing": TypeProto(map_type=TypeProto.Map()),
        "map_without_key": TypeProto(),
        "sparse_of_nothing": TypeProto(sparse_tensor_type=TypeProto.SparseTensor()),
    }
    forms["tensor_without_elem_type"].tensor_type.shape.dim.add(dim_value=3)
    forms["map_without_key"].map_type.value_type.CopyFrom(tensor_type())
    for name, type_ in forms.items():
        made = simple([node("Relu", ["x"], ["y"])])
        made.graph.value_info.append(typed("nowhere", type_))
        yield ODD + name, made
        unused = simple([node("Relu", ["x"], ["y"])], ["x", typed("unused", type_)])
        yield f"{ODD}input_{name}", unused


HEADER = f'<ir_version: 10, opset_import: ["" : {OPSET}, "ai.onnx.ml" : 3]> main '

TEXTS = {
    "sequence_ops": (
        """(float[N] x, float[N] z) => (float[M] y, int64 n) {
        e = SequenceEmpty <dtype: int = 1> ()
        s = SequenceConstruct (x, z)
        t = SequenceInsert (s, x)
        zero = Constant <value_int = 0> ()
        u = SequenceErase (t, zero)
        a = SequenceAt (u, zero)
        n = SequenceLength (u)
        c = ConcatFromSequence <axis = 0, new_axis = 0> (u)
        y = Add (a, c)
    }"""
    ),
    "sequence_in_and_out": """(seq(float[N]) s) => (seq(float[N]) r) { r = Identity (s) }""",
    "split_to_sequence": (
        """(float[N, 4] x) => (seq(float[M, 4]) y) {
        y = SplitToSequence <axis = 0, keepdims = 0> (x)
    }"""
    ),
    "optional_ops": (
        """(float[N] x, optional(float[N]) o) => (float[N] y, bool has) {
        w = Optional (x)
        has = OptionalHasElement (o)
        g = OptionalGetElement (w)
        h = OptionalGetElement (o)
        y = Add (g, h)
    }"""
    ),
    "optional_branches": (
        """(optional(float[N]) o) => (float[M] y) {
        has = OptionalHasElement (o)
        y = If (has) <then_branch = t () => (float[M] a) { a = OptionalGetElement (o) },
                      else_branch = e () => (float[M] d) <float[1] d = {0.0}> { }>
    }"""
    ),
    "sequence_loop_state": (
        """(float[N] x, int64 n, bool c) => (seq(float[N]) y) {
        e = SequenceEmpty ()
        y = Loop (n, c, e) <body = l (int64 i, bool p, seq(float[N]) s) => (bool q, seq(float[N]) r) {
            q = Identity (p) r = SequenceInsert (s, x) }>
    }"""
    ),
    "zip_map": (
        """(float[N, 3] x) => (seq(map(int64, float)) y) {
        y = ai.onnx.ml.ZipMap <classlabels_int64s: ints = [1, 2, 3]> (x)
    }"""
    ),
    "dict_vectorizer": (
        """(map(string, float) x) => (float[1, 2] y) {
        y = ai.onnx.ml.DictVectorizer <string_vocabulary: strings = ["b", "a"]> (x)
    }"""
    ),
    "cast_map": (
        """(map(int64, float) x) => (float[1, D] y) {
        y = ai.onnx.ml.CastMap <cast_to: string = "TO_FLOAT", map_form: string = "SPARSE", max_map: int = 9> (x)
    }"""
    ),
    "classifier_and_zip_map": (
        """(float[N, 2] x) => (int64[N] label, seq(map(int64, float)) p) {
        label, scores = ai.onnx.ml.LinearClassifier
            <coefficients: floats = [0.5, -0.5, 1.0, 2.0], classlabels_ints: ints = [0, 1]> (x)
        p = ai.onnx.ml.ZipMap <classlabels_int64s: ints = [0, 1]> (scores)
    }"""
    ),
}


def operators() -> Iterator[Item]:
    """Operators that make, take apart and carry values that are not tensors."""
    for name, source in TEXTS.items():
        yield name, text(HEADER + source)
    empty = node("Optional", [], ["o"], type=tensor_type(TensorProto.FLOAT, ["N"]))
    has = node("OptionalHasElement", ["o"], ["y"])
    yield "optional_of_nothing", simple([empty, has], [], [value("y", TensorProto.BOOL, ())])
    absent = node("OptionalHasElement", [], ["y"])
    yield "has_element_of_nothing", simple([absent], [], [value("y", TensorProto.BOOL, ())])
    listed = graph(
        [node("SequenceConstruct", ["x"], ["s"])],
        [],
        [typed("s", sequence(tensor_type()))],
        name="then",
    )
    other = graph(
        [node("SequenceEmpty", [], ["e"])], [], [typed("e", sequence(tensor_type()))], name="else"
    )
    branch = node("If", ["cond"], ["r"], then_branch=listed, else_branch=other)
    at = node("SequenceAt", ["r", "zero"], ["y"])
    yield (
        "sequence_out_of_if",
        simple([branch, at], initializers=[true("cond"), ints("zero", [0], [])]),
    )
