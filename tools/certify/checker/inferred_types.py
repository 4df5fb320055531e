"""Types by onnx's shape inference, without the model's large constants and declarations."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

SMALL = 64
"""Most elements of a constant that shape inference may read."""

DISBELIEVED = frozenset(("ceil_mode", "output_shape", "keep_aspect_ratio_policy"))
"""Attributes of operators whose extents onnx may infer otherwise than runtimes compute them."""

Known = Mapping[str, ValueInfoProto]
"""Types that are known, by the label of a value: of inputs of bodies, and of results of nodes."""


@dataclass(frozen=True, slots=True)
class OpenPart:
    """The part of the main graph whose types are not known: all but the operators in `settled`.

    Both are labels; `read` has those of the values that it reads.
    """

    settled: Container[str]
    read: Container[str]


def _forget_negative(graph: GraphProto) -> None:
    """Make negative extents unknown: exporters mean that, and onnx's inference crashes on them."""
    for each in (*graph.input, *graph.output, *graph.value_info):
        for dim in each.type.tensor_type.shape.dim:
            if dim.dim_value < 0:
                dim.ClearField("dim_value")
    for node in graph.node:
        for item in node.attribute:
            if item.type == AttributeProto.GRAPH:
                _forget_negative(item.g)


def copy_of(node: NodeProto) -> NodeProto:
    """Return a copy of a node."""
    made = NodeProto()
    made.CopyFrom(node)
    return made


def _is_large(tensor: TensorProto) -> bool:
    return prod(tensor.dims) > SMALL or tensor.data_location == TensorProto.EXTERNAL


def _bare(tensor: TensorProto) -> TensorProto:
    if not _is_large(tensor):
        return tensor
    return TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)


def _clear_shapes(type_: TypeProto) -> None:
    """Remove the shapes of a type, also of the elements of sequences and optional values."""
    kind = type_.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        getattr(type_, kind).ClearField("shape")
    elif kind in ("sequence_type", "optional_type"):
        _clear_shapes(getattr(type_, kind).elem_type)


def is_disbelieved(node: NodeProto) -> bool:
    """Return whether onnx may infer other extents than runtimes, and so may not see the operator.

    It takes the elements of sequences that a Loop carries to keep their extents, counts windows of
    pools that begin behind the data, and has ways of its own with `output_shape`, aspect ratios,
    and automatic pads beside dilations. An axis of one element that Einsum or PRelu broadcasts has
    one element for it, and STFT without `onesided` both sides. A LinearClassifier has as many
    scores as intercepts for it.
    """
    if node.op_type == "Loop":
        inputs = [each for item in node.attribute for each in item.g.input]
        return any(each.type.WhichOneof("value") != "tensor_type" for each in inputs)
    if node.op_type in ("Einsum", "LinearClassifier", "PRelu", "STFT"):
        return True
    given = {item.name: item for item in node.attribute}
    is_automatic = (
        node.op_type != "Conv" and "auto_pad" in given and given["auto_pad"].s.startswith(b"SAME")
    )
    names = DISBELIEVED | ({"dilations", "output_padding"} if is_automatic else set())
    return any(name in names and (item.i or item.s or item.ints) for name, item in given.items())


def _is_exact(scales: TensorProto | Sequence[float]) -> bool:
    """Return whether extents times scales are one in all float types, or sizes instead."""
    if isinstance(scales, TensorProto) and scales.data_type == TensorProto.INT64:
        return True
    try:
        if isinstance(scales, TensorProto):
            numbers = numpy_helper.to_array(scales)
        else:
            numbers = np.array(scales)
    except ValueError:  # a large one
        return False
    numbers = 64.0 * numbers.astype(np.float64)
    return bool(((numbers == np.rint(numbers)) & (np.abs(numbers) < 2.0**12)).all())


def label_of(node: NodeProto, path: str) -> str:
    """Return an operation's label: its first result, behind the path of bodies around it."""
    return path + next(name for name in node.output if name)


def bodies_of(node: NodeProto) -> Iterator[tuple[str, GraphProto]]:
    """Yield the graphs of a node of an inferred graph with their paths."""
    label = label_of(node, "")
    yield from (
        (f"{label}/{item.name}/", item.g)
        for item in node.attribute
        if item.type == AttributeProto.GRAPH
    )


class _Skeleton:
    """Copies graphs without large constants and declared types; values in bodies have labels.

    onnx's inference needs that: it takes a value of a body for one of the main graph with its name.
    """

    def __init__(
        self,
        constants: Mapping[str, TensorProto],
        known: Known,
        part: OpenPart | None,
        *,
        may_override: bool,
    ) -> None:
        self.may_override = may_override
        self.constants = constants
        self.known = known
        self.part = part
        self.weights: dict[str, TensorProto] = {}

    def copy(self, graph: GraphProto, path: str, outer: Mapping[str, str]) -> GraphProto:
        """Return the copy of a graph.

        `outer` has the labels of the names that are visible around it.
        """
        names = {**outer, **{name: path + name for name in _defined(graph)}}
        bare = GraphProto(name=graph.name)
        for given in graph.input:
            self._take_input(bare.input.add(), given, path)
        if self.may_override and not path:
            overridable = {each.name for each in graph.input}
        else:
            overridable = set()
        part = None if path else self.part
        for tensor in graph.initializer:
            if tensor.name in overridable:
                continue  # callers may give other elements
            if part is not None and tensor.name not in part.read:
                continue
            constant = bare.initializer.add()
            constant.CopyFrom(_bare(tensor))
            constant.name = path + tensor.name
        for sparse in graph.sparse_initializer:
            values = bare.sparse_initializer.add()
            values.CopyFrom(sparse)
            values.values.name = path + sparse.values.name
        for node in graph.node:
            label = label_of(node, path)
            if part is None or (
                label in part.read if node.op_type == "Constant" else label not in part.settled
            ):
                self._take_node(bare, node, label, names)
        self._note_weights(bare)
        found = {each.name: each for each in _ranks(bare, self.weights)}
        results = (name for node in bare.node for name in node.output if name in self.known)
        found |= {name: ValueInfoProto(name=name, type=self.known[name].type) for name in results}
        computed = (tensor for tensor in bare.initializer if tensor.name in self.constants)
        found |= {
            t.name: helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in computed
        }
        for output in graph.output:
            made = bare.output.add(name=names.get(output.name, output.name))
            if not path:
                made.type.CopyFrom(output.type)
                _clear_shapes(made.type)
            if made.name in found:
                made.CopyFrom(found.pop(made.name))
        bare.value_info.extend(found.values())
        return bare

    def _take_input(self, made: ValueInfoProto, given: ValueInfoProto, path: str) -> None:
        made.CopyFrom(given)
        made.name = path + given.name
        if made.type.HasField("tensor_type"):
            for dim in made.type.tensor_type.shape.dim:
                if dim.dim_param == "?":  # exporters write it for any extent that they do not know
                    dim.ClearField("dim_param")
                if dim.dim_value < 0:
                    dim.ClearField("dim_value")
        if path:
            _clear_shapes(made.type)
        if made.name in self.known:
            made.type.CopyFrom(self.known[made.name].type)

    def _take_node(
        self, bare: GraphProto, node: NodeProto, label: str, names: Mapping[str, str]
    ) -> None:
        outputs = [names.get(name, name) for name in node.output]
        computed = [name for name in outputs if name in self.constants]
        for name in computed:
            constant = bare.initializer.add()
            constant.CopyFrom(self.constants[name])
            constant.name = name
        if computed:
            return
        inputs = [names.get(name, name) for name in node.input]
        is_other = is_disbelieved(node)
        if node.op_type in ("Resize", "Upsample"):
            self._note_weights(bare)
            scales = [
                self.weights[name] for name in inputs[2:] or inputs[1:] if name in self.weights
            ]
            numbers = [item.floats for item in node.attribute]
            is_other |= not (all(map(_is_exact, scales)) and all(map(_is_exact, numbers)))
        kind = f"other {node.op_type}" if is_other else node.op_type
        if kind == "Range":
            # The checker counts integers itself, and runtimes disagree about floats.
            inputs[1:] = ["", ""]
        made = bare.node.add(op_type=kind, domain=node.domain, input=inputs, output=outputs)
        for item in node.attribute:
            copy = made.attribute.add()
            if item.type == AttributeProto.GRAPH:
                self._note_weights(bare)
                copy.CopyFrom(AttributeProto(name=item.name, type=item.type))
                copy.g.CopyFrom(self.copy(item.g, f"{label}/{item.name}/", names))
            elif item.type == AttributeProto.TENSOR:
                copy.CopyFrom(AttributeProto(name=item.name, type=item.type))
                copy.t.CopyFrom(_bare(item.t))
            else:
                copy.CopyFrom(item)

    def _note_weights(self, bare: GraphProto) -> None:
        """Note the constants of a graph, and known extents of inputs, which callers give."""
        given = {each.name for each in bare.input}
        self.weights.update(
            (each.name, made) for each in bare.input if (made := _unread(each)) is not None
        )
        self.weights.update(
            (tensor.name, tensor) for tensor in bare.initializer if tensor.name not in given
        )
        for node in bare.node:
            if node.op_type == "Constant" and not node.domain:
                self.weights.update(
                    (node.output[0], item.t) for item in node.attribute if item.HasField("t")
                )
            elif node.op_type == "Identity" and not node.domain and node.input[0] in self.weights:
                self.weights[node.output[0]] = self.weights[node.input[0]]


def _unread(given: ValueInfoProto) -> TensorProto | None:
    """Return a tensor of the type of an input without elements, None where an extent is unknown."""
    type_ = given.type.tensor_type
    if not type_.HasField("shape") or any(
        dim.WhichOneof("value") != "dim_value" for dim in type_.shape.dim
    ):
        return None
    return TensorProto(data_type=type_.elem_type, dims=[dim.dim_value for dim in type_.shape.dim])


def _defined(graph: GraphProto) -> set[str]:
    found = {each.name for each in graph.input} | {tensor.name for tensor in graph.initializer}
    found |= {each.values.name for each in graph.sparse_initializer}
    return found | {name for node in graph.node for name in node.output if name}


def _ranks(graph: GraphProto, weights: Mapping[str, TensorProto]) -> Iterator[ValueInfoProto]:
    """Yield the types of convolutions and Gemm, as onnx defines them, by the weight's rank.

    onnx's inference needs the rank of the data, which bodies do not state.
    """
    for node in graph.node:
        is_gemm = node.op_type == "Gemm"
        is_layer = not node.domain and (is_gemm or node.op_type in ("Conv", "ConvTranspose"))
        weight = weights.get(node.input[1]) if is_layer else None
        if weight is None or (len(weight.dims) != 2 if is_gemm else len(weight.dims) < 3):
            continue
        extents: list[int | None] = [None] * len(weight.dims)
        if node.op_type == "Conv":
            extents[1] = weight.dims[0]
        if is_gemm:
            is_turned = any(item.name == "transB" and item.i for item in node.attribute)
            extents[1] = weight.dims[0 if is_turned else 1]
        yield helper.make_tensor_value_info(node.output[0], weight.data_type, extents)


def fault_of(model: ModelProto) -> str | None:
    """Return why onnx's checker refuses a model, None if it does not.

    Large initializers stand as inputs.
    """
    bare = ModelProto(ir_version=max(model.ir_version, 4), opset_import=model.opset_import)
    graph = bare.graph
    graph.CopyFrom(
        GraphProto(
            name=model.graph.name or "main", node=model.graph.node, output=model.graph.output
        )
    )
    graph.sparse_initializer.extend(model.graph.sparse_initializer)
    large = {tensor.name: tensor for tensor in model.graph.initializer if _is_large(tensor)}
    graph.input.extend(each for each in model.graph.input if each.name not in large)
    graph.initializer.extend(each for each in model.graph.initializer if each.name not in large)
    graph.input.extend(
        helper.make_tensor_value_info(*each)
        for each in ((name, t.data_type, t.dims) for name, t in large.items())
    )
    _forget_negative(graph)
    try:
        onnx.checker.check_model(bare, full_check=True)
    except Exception as error:  # of the checker, or of inference
        return str(error).strip().splitlines()[0] if str(error) else type(error).__name__
    return None


def infer_types(
    model: ModelProto,
    constants: Mapping[str, TensorProto],
    stated: Sequence[ValueInfoProto] = (),
    known: Known | None = None,
    part: OpenPart | None = None,
) -> GraphProto:
    """Return the graph with onnx's types, as far as it comes, and labels in bodies.

    `constants` are values that are known, by label, `stated` values of the main graph whose types
    are, in place of those that onnx infers, and `known` types that it may not infer. Of the graph
    only a `part` is looked at, if one is given.
    """
    bare = ModelProto(ir_version=max(model.ir_version, 4), opset_import=model.opset_import)
    skeleton = _Skeleton(constants, known or {}, part, may_override=model.ir_version >= 4)
    bare.graph.CopyFrom(skeleton.copy(model.graph, "", {}))
    if model.ir_version < 4:
        defaults = {tensor.name for tensor in model.graph.initializer}
        free = [each for each in bare.graph.input if each.name not in defaults]
        del bare.graph.input[:]
        bare.graph.input.extend(free)
    if stated:
        gone = {each.name: each for each in stated}
        for output in bare.graph.output:
            output.CopyFrom(gone.get(output.name, output))
        nodes = [copy_of(node) for node in bare.graph.node if gone.keys().isdisjoint(node.output)]
        bare.graph.input.extend(stated)
        del bare.graph.node[:]
        bare.graph.node.extend(nodes)
    try:
        return onnx.shape_inference.infer_shapes(bare).graph
    except Exception:  # the checker refuses where it needs a type that it does not know
        return bare.graph
