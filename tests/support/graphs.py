"""Models for the tests of passes, and what has to hold of every compiled model.

`Graph` grows a model node by node; `check` compiles it and holds the result against the invariants
of the package: same interface, same numbers in float64, no operator more, nothing stale, every
affine accounted for, idempotent.

The numerical bound. Both models are evaluated in float64, so what remains of their difference is
the one rounding of each folded constant: with unit roundoff u of its dtype, |fl(c) - c| <= u
|fl(c)| / (1 - u). A layer y = sum W'x + b' is therefore off by at most u (sum |W'||x| + |b'|), and
k layers in a row by k times that. `absolute` makes of the compiled model one with the absolute
value of every constant, which, given magnitudes as inputs, has those sums as outputs; float64
arithmetic itself adds 1e-12 of them.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from float64 import evaluate
from harness import operators as operators
from irc.compiler import compile as compile_model
from irc.result import Result
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

Array = np.ndarray[Any, np.dtype[Any]]
Shape = Sequence[int | str | None] | None

F16, F32, F64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
BF16 = np.dtype(ml_dtypes.bfloat16)
ROUNDOFF = {F16: 2.0**-11, BF16: 2.0**-8, F32: 2.0**-24, F64: 0.0}
"""Half the distance between 1 and the next number; folding in float64 rounds no more than
arithmetic does.
"""
ARITHMETIC = 1e-12
NEWEST = int(onnx.defs.onnx_opset_version())
INFERRED = ("as inferred",)
TUNABLE = ("Conv", "ConvTranspose", "Gemm", "MatMul")


def onnx_dtype(dtype: np.dtype[Any]) -> int:
    """The ONNX element type of a numpy dtype."""
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


@dataclass
class Graph:
    """A model in the making. Values are known by name; `rng` makes its constants."""

    opset: int = 21
    ir: int = 10
    dtype: np.dtype[Any] = F32
    seed: int = 0
    nodes: list[NodeProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    outputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    initializers: list[TensorProto] = field(default_factory=list)
    functions: list[onnx.FunctionProto] = field(default_factory=list)
    domains: dict[str, int] = field(default_factory=dict)
    count: int = 0

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def fresh(self, stem: str) -> str:
        """A name not given out before."""
        self.count += 1
        return f"{stem}_{self.count}"

    def random(self, *shape: int) -> Array:
        """Standard normal numbers in the dtype of the graph."""
        return np.asarray(self.rng.standard_normal(shape)).astype(self.dtype)

    def positive(self, *shape: int) -> Array:
        """Numbers between 0.5 and 2 in the dtype of the graph."""
        return np.asarray(self.rng.uniform(0.5, 2, shape)).astype(self.dtype)

    def input(self, name: str, shape: Shape, dtype: np.dtype[Any] | None = None) -> str:
        """A graph input."""
        self.inputs.append(
            helper.make_tensor_value_info(name, onnx_dtype(dtype or self.dtype), shape)
        )
        return name

    def output(self, name: str, shape: Shape = INFERRED, dtype: np.dtype[Any] | None = None) -> str:
        """A graph output, by default of the shape that onnx infers; None is an unknown rank."""
        self.outputs.append(
            helper.make_tensor_value_info(name, onnx_dtype(dtype or self.dtype), shape)
        )
        return name

    def initializer(self, array: Any, name: str = "") -> str:
        """An initializer; lists become arrays of the graph's dtype."""
        array = (
            np.asarray(array)
            if isinstance(array, np.ndarray | np.generic)
            else np.asarray(array).astype(self.dtype)
        )
        name = name or self.fresh("c")
        self.initializers.append(
            numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
        )
        return name

    def constant(self, array: Any, how: str = "initializer", name: str = "") -> str:
        """A constant in one of the disguises of `DISGUISES`, or as an initializer."""
        return (
            self.initializer(array, name)
            if how == "initializer"
            else DISGUISES[how](self, np.asarray(array), name)
        )

    def node(
        self,
        op: str,
        inputs: Sequence[str],
        out: str | Sequence[str] = "",
        name: str = "",
        domain: str = "",
        **attrs: Any,
    ) -> str:
        """Append a node and return its first output; a node is nameless unless `name` is given."""
        outputs = [out] if isinstance(out, str) else list(out)
        outputs[0] = outputs[0] or self.fresh("t")
        self.nodes.append(
            helper.make_node(op, list(inputs), outputs, name=name, domain=domain, **attrs)
        )
        return outputs[0]

    def batch_norm(
        self,
        x: str,
        params: BatchNorm,
        out: str | Sequence[str] = "",
        name: str = "",
        how: str = "initializer",
        names: Sequence[str] = (),
        **attrs: Any,
    ) -> str:
        """A BatchNormalization in inference mode, whatever the opset takes for that."""
        names = names or [self.constant(array, how) for array in params.arrays]
        if params.epsilon is not None:
            attrs = {"epsilon": params.epsilon, **attrs}
        if self.opset < 7:
            attrs = {"is_test": 1, **attrs}
        if self.opset < 6:
            attrs = {"consumed_inputs": [0, 0, 0, 1, 1], **attrs}
        return self.node(
            "BatchNormalization",
            [x, *names],
            out,
            name,
            **{k: v for k, v in attrs.items() if v is not None},
        )

    def model(self) -> ModelProto:
        """The model; below IR version 4 the initializers are listed among the inputs."""
        listed = []
        if self.ir < 4:
            listed = [
                helper.make_tensor_value_info(t.name, t.data_type, list(t.dims))
                for t in self.initializers
            ]
        graph = helper.make_graph(
            copy.deepcopy(self.nodes),
            "main",
            [*self.inputs, *listed],
            self.outputs,
            copy.deepcopy(self.initializers),
        )
        imports = [
            helper.make_opsetid(domain, version)
            for domain, version in {"": self.opset, **self.domains}.items()
        ]
        model = helper.make_model(
            graph, opset_imports=imports, ir_version=self.ir, functions=self.functions
        )
        open_ = [
            i
            for i in model.graph.output
            if [d.dim_param for d in i.type.tensor_type.shape.dim] == list(INFERRED)
        ]
        if open_:
            for info in open_:
                info.type.tensor_type.ClearField("shape")
            inferred = {
                info.name: info for info in onnx.shape_inference.infer_shapes(model).graph.output
            }
            for info in open_:
                info.CopyFrom(inferred[info.name])
        return model


@dataclass(frozen=True)
class BatchNorm:
    """The parameters of a BatchNormalization; `epsilon` is None where the attribute is left out."""

    gamma: Array
    beta: Array
    mean: Array
    var: Array
    epsilon: float | None = None

    @property
    def arrays(self) -> tuple[Array, Array, Array, Array]:
        """The parameters in the order of the inputs."""
        return self.gamma, self.beta, self.mean, self.var

    @property
    def scale(self) -> Array:
        """gamma / sqrt(var + epsilon) in float64; epsilon is the attribute's float32."""
        epsilon = float(np.float32(1e-5 if self.epsilon is None else self.epsilon))
        return np.asarray(wide(self.gamma) / np.sqrt(wide(self.var) + epsilon))

    def bias(self, bias: Array | float = 0.0) -> Array:
        """(bias - mean) * scale + beta in float64."""
        return np.asarray((wide(np.asarray(bias)) - wide(self.mean)) * self.scale + wide(self.beta))

    def astype(self, first: np.dtype[Any], second: np.dtype[Any]) -> BatchNorm:
        """Gamma and beta in one dtype, mean and variance in another."""
        return BatchNorm(
            self.gamma.astype(first), self.beta.astype(first), self.mean.astype(second), self.var.astype(second),
            self.epsilon,
        )  # fmt: skip


def batch_norm(
    channels: int, seed: int = 1, dtype: np.dtype[Any] = F32, epsilon: float | None = None
) -> BatchNorm:
    """Parameters with gammas of both signs."""
    rng = np.random.default_rng(seed)
    gamma, beta, mean = (rng.standard_normal(channels).astype(dtype) for _ in range(3))
    gamma = np.where(np.abs(gamma) < 0.25, gamma + gamma.dtype.type(0.5), gamma).astype(dtype)
    return BatchNorm(gamma, beta, mean, rng.uniform(0.5, 2, channels).astype(dtype), epsilon)


def wide(array: Array) -> Array:
    """The same numbers in float64."""
    return np.asarray(array).astype(np.float64)


def rounded(array: Array, dtype: np.dtype[Any]) -> Array:
    """Float64 numbers correctly rounded, ties to even, to `dtype`."""
    with np.errstate(over="ignore"):
        if dtype != BF16:
            return np.asarray(array, np.float64).astype(dtype)
        exponent = np.maximum(np.frexp(np.asarray(array, np.float64))[1], -125)
        unit = np.ldexp(1.0, exponent - 8)
        return (np.rint(array / unit) * unit).astype(np.float32).astype(BF16)


def _via(op: str, **attrs: Any) -> Callable[[Graph, Array, str], str]:
    def build(graph: Graph, array: Array, name: str) -> str:
        return graph.node(op, [graph.initializer(array)], name, **attrs)

    return build


def _value(graph: Graph, array: Array, name: str) -> str:
    return graph.node("Constant", [], name, value=numpy_helper.from_array(array))


def _value_floats(graph: Graph, array: Array, name: str) -> str:
    if array.ndim != 1:
        flat = graph.node("Constant", [], value_floats=wide(array).ravel().tolist())
        return graph.node("Reshape", [flat, _ints(graph, array.shape)], name)
    return graph.node("Constant", [], name, value_floats=wide(array).tolist())


def _ints(graph: Graph, items: Sequence[int]) -> str:
    return graph.node("Constant", [], value_ints=list(items))


def _reshape(graph: Graph, array: Array, name: str) -> str:
    return graph.node(
        "Reshape", [graph.initializer(array.reshape(1, -1)), _ints(graph, array.shape)], name
    )


def _unsqueeze(graph: Graph, array: Array, name: str) -> str:
    assert array.shape[0] > 1 or array.ndim == 1
    wider = graph.node("Unsqueeze", [graph.initializer(array), _ints(graph, [0])])
    return graph.node("Squeeze", [wider, _ints(graph, [0])], name)


def _cast(graph: Graph, array: Array, name: str) -> str:
    return graph.node("Cast", [graph.initializer(wide(array))], name, to=onnx_dtype(array.dtype))


def _cast_like(graph: Graph, array: Array, name: str) -> str:
    like = graph.initializer(np.zeros(1, array.dtype))
    return graph.node("CastLike", [graph.initializer(wide(array)), like], name)


def _transpose(graph: Graph, array: Array, name: str) -> str:
    perm = list(range(array.ndim))[::-1]
    return graph.node(
        "Transpose", [graph.initializer(np.ascontiguousarray(array.T))], name, perm=perm
    )


def _expand(graph: Graph, array: Array, name: str) -> str:
    return graph.node("Expand", [graph.initializer(array), _ints(graph, array.shape)], name)


def _twice(graph: Graph, array: Array, name: str) -> str:
    return graph.node("Identity", [graph.node("Identity", [graph.initializer(array)])], name)


def _concat(graph: Graph, array: Array, name: str) -> str:
    parts = [graph.initializer(part) for part in (array[:1], array[1:])]
    return graph.node("Concat", parts, name, axis=0)


def _slice(graph: Graph, array: Array, name: str) -> str:
    longer = graph.initializer(np.concatenate([array, array]))
    return graph.node("Slice", [longer, _ints(graph, [0]), _ints(graph, array.shape[:1])], name)


def _gather(graph: Graph, array: Array, name: str) -> str:
    return graph.node(
        "Gather",
        [graph.initializer(array[::-1]), _ints(graph, range(len(array))[::-1])],
        name,
        axis=0,
    )


DISGUISES: dict[str, Callable[[Graph, Array, str], str]] = {
    "value": _value,
    "value_floats": _value_floats,
    "identity": _via("Identity"),
    "identity twice": _twice,
    "reshape": _reshape,
    "unsqueeze, squeeze": _unsqueeze,
    "cast": _cast,
    "cast like": _cast_like,
    "transpose": _transpose,
    "expand": _expand,
    "concat": _concat,
    "slice": _slice,
    "gather": _gather,
}
"""Ways in which exporters hide a constant of rank 1 or more, of more than one element."""


# what a model says


def all_graphs(model: ModelProto) -> Iterator[GraphProto]:
    """The main graph and every body inside, those of functions left out."""
    stack = [model.graph]
    while stack:
        graph = stack.pop()
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                stack.extend([attribute.g] if attribute.HasField("g") else attribute.graphs)


def all_nodes(model: ModelProto) -> Iterator[NodeProto]:
    """Every node of every graph and function."""
    stack: list[Any] = [model.graph, *model.functions]
    while stack:
        for node in stack.pop().node:
            yield node
            for attribute in node.attribute:
                stack.extend([attribute.g] if attribute.HasField("g") else attribute.graphs)


def size(model: ModelProto) -> int:
    """Operators that do something at run time."""
    return sum(node.op_type != "Constant" for node in all_nodes(model))


def the(model: ModelProto, op: str, index: int = 0) -> NodeProto:
    """The node of that operator in the main graph."""
    return [node for node in model.graph.node if node.op_type == op][index]


def constants(model: ModelProto) -> dict[str, Array]:
    """Initializers and Constant values of the main graph."""
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            found[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    return found


def operand(model: ModelProto, node: NodeProto, index: int) -> Array:
    """The constant that a node reads."""
    return constants(model)[node.input[index]]


def unmarked(model: ModelProto) -> ModelProto:
    """Return a copy of `model` without the mark of irc's own results."""
    bare = copy.deepcopy(model)
    del bare.metadata_props[:]
    bare.metadata_props.extend(
        entry for entry in model.metadata_props if entry.key != "irc.compiled"
    )
    return bare


def same_bits(found: Array, expected: Array) -> bool:
    """Equal in dtype, shape and every bit."""
    return (
        found.dtype == expected.dtype
        and found.shape == expected.shape
        and found.tobytes() == expected.tobytes()
    )


def reasons(result: Result) -> dict[str, str]:
    """Status of every affine by its output, with the reason where it is kept."""
    return {
        source["output"]: source["status"]
        if source["reason"] is None
        else f"{source['status']}: {source['reason']}"
        for source in result.fold_map.sources
    }


def attribute(node: NodeProto, name: str, default: Any = None) -> Any:
    """The value of an attribute."""
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


# what holds of every result


def is_valid(model: ModelProto) -> str | None:
    """None if onnx's checker accepts the model with strict shape inference, else its words."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return str(error)
    return None


KINDS: dict[str, Callable[[np.random.Generator, list[int]], Array]] = {
    "random": lambda rng, dims: np.asarray(rng.standard_normal(dims)),
    "zeros": lambda rng, dims: np.zeros(dims),
    "ones": lambda rng, dims: np.ones(dims),
    "large": lambda rng, dims: np.asarray(rng.standard_normal(dims) * 1e4),
    "negative": lambda rng, dims: np.asarray(-rng.uniform(0.5, 2, dims)),
}
"""What inputs are made of; all ones brings out what happens at borders."""


def stimuli(
    model: ModelProto,
    batch: int = 2,
    other: int = 4,
    rank: int = 2,
    kinds: Sequence[str] = ("random", "zeros", "ones"),
) -> Iterator[dict[str, Array]]:
    """Inputs of several kinds.

    Open extents are `batch` in front and `other` elsewhere; an unknown rank is `rank`.
    """
    initialized = {tensor.name for tensor in model.graph.initializer}
    rng = np.random.default_rng(5)
    for kind in kinds:
        arrays: dict[str, Array] = {}
        for info in model.graph.input:
            if info.name in initialized:
                continue
            tensor = info.type.tensor_type
            dims = [
                dim.dim_value if dim.HasField("dim_value") else (batch if i == 0 else other)
                for i, dim in enumerate(tensor.shape.dim)
            ]
            dims = dims if tensor.HasField("shape") else [batch, *[other] * (rank - 1)]
            dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            numbers = KINDS[kind](rng, dims)
            arrays[info.name] = (
                np.asarray(numbers > 0) if dtype == np.bool_ else np.asarray(numbers).astype(dtype)
            )
        yield arrays


MAJORANTS = {"Neg": "Identity", "Sub": "Add", "Min": "Max", "ReduceMin": "ReduceMax"}
"""Operators whose results have magnitudes that another one bounds."""
ABSOLUTE_ATTRIBUTES = {
    "Gemm": ("alpha", "beta"),
    "Constant": ("value_float", "value_floats"),
    "LeakyRelu": ("alpha",),
    "Pad": ("value",),
    "Resize": ("extrapolation_value",),
    "HardSigmoid": ("alpha", "beta"),
}


SATURATING = (
    *(
        "Sigmoid",
        "Tanh",
        "HardSigmoid",
        "Softmax",
        "LogSoftmax",
        "Sin",
        "Erf",
        "Softsign",
        "Softplus",
        "Selu",
        "Elu",
    ),
    *("Celu", "Gelu", "HardSwish", "Mish", "Floor", "Sign", "ReduceLogSumExp"),
)
"""Operators whose results are at most twice their operand plus two, and whose slopes are no more
than two.
"""
NORMS = ("InstanceNormalization", "GroupNormalization", "LayerNormalization", "RMSNormalization")


def _majorant(node: NodeProto) -> list[NodeProto]:
    """Nodes that bound magnitudes at the result of `node`, and the error from its operand."""
    out, stem = node.output[0], f"{node.output[0]}/bound"
    names = [f"{stem}{i}" for i in range(6)]

    def number(value: float, name: str) -> NodeProto:
        return helper.make_node(
            "Constant", [], [name], value=numpy_helper.from_array(np.asarray(value), name)
        )

    def make(op: str, inputs: Sequence[str], result: str, **attrs: Any) -> NodeProto:
        return helper.make_node(op, list(inputs), [result], **attrs)

    if node.op_type == "Clip":
        bounds = [attribute(node, name) for name in ("min", "max")]
        made = [number(abs(bound or 0.0), name) for bound, name in zip(bounds, names, strict=False)]
        return [*made, make("Max", [*filter(None, node.input), *names[:2]], out)]
    if node.op_type == "BatchNormalization":
        mean, node.input[3] = node.input[3], names[0]
        return [make("Neg", [mean], names[0]), node]
    if node.op_type == "DequantizeLinear":
        out, node.output[0] = node.output[0], names[0]
        return [node, make("Abs", names[:1], out)]
    if node.op_type == "LeakyRelu" and abs(attribute(node, "alpha", 0.01)) > 1:
        return [
            number(abs(attribute(node, "alpha")), names[0]),
            make("Mul", [*node.input, names[0]], out),
        ]
    if node.op_type == "Where":
        return [make("Max", node.input[1:], out)]
    if node.op_type == "PRelu":
        return [make("Mul", node.input, names[0]), make("Add", [node.input[0], names[0]], out)]
    if node.op_type in SATURATING:
        node.op_type = "Identity" if not node.op_type.startswith("Reduce") else node.op_type
        operand, node.output[0] = node.output[0], names[0]
        return [node, number(2.0, names[1]), make("Mul", [*names[:1], names[1]], names[2]),
                make("Add", [names[2], names[1]], operand)]  # fmt: skip
    cubic = node.op_type == "Resize" and attribute(node, "mode", b"nearest") == b"cubic"
    if cubic or node.op_type in NORMS:
        steepest = 2.0 if cubic else 2 / np.sqrt(attribute(node, "epsilon", 1e-5))
        parameters = [] if cubic else node.input[1:]
        node.output[0] = names[0]
        made = [
            node,
            number(0.0, names[1]),
            make("Mul", names[:2], names[2]),
            make("ReduceMax", [node.input[0]], names[3]),
            number(steepest, names[4]),
            make("Mul", names[3:5], f"{stem}/0"),
        ]
        for i, parameter in enumerate(parameters):
            made += [make("ReduceMax", [parameter], f"{stem}p{i}", keepdims=0)]
            made += [make("Add" if i else "Mul", [f"{stem}/{i}", f"{stem}p{i}"], f"{stem}/{i + 1}")]
        return [*made, make("Add", [names[2], f"{stem}/{len(parameters)}"], out)]
    node.op_type = MAJORANTS.get(node.op_type, node.op_type)
    return [node]


def absolute(model: ModelProto) -> ModelProto:
    """The model that bounds the sum of magnitudes at every point, given magnitudes as inputs."""
    bound = copy.deepcopy(model)

    def flip(tensor: TensorProto) -> None:
        array = numpy_helper.to_array(tensor)
        if array.dtype in ROUNDOFF:
            tensor.CopyFrom(numpy_helper.from_array(np.asarray(np.abs(array)), tensor.name))

    for node in all_nodes(bound):
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            flip(node.attribute[0].t)
        if node.op_type == "Constant" and node.attribute[0].name == "sparse_value":
            flip(node.attribute[0].sparse_tensor.values)
        for item in node.attribute:
            if item.name in ABSOLUTE_ATTRIBUTES.get(node.op_type, ()):
                item.f = abs(item.f)
                item.floats[:] = [abs(number) for number in item.floats]
    for graph in chain(
        all_graphs(bound), bound.functions
    ):  # bodies are met in the nodes that replace their owners
        nodes = [made for node in graph.node for made in _majorant(copy.deepcopy(node))]
        del graph.node[:]
        graph.node.extend(nodes)
    for graph in all_graphs(bound):
        for tensor in chain(
            graph.initializer, (sparse.values for sparse in graph.sparse_initializer)
        ):
            flip(tensor)
    return bound


def tolerance(model: ModelProto) -> float:
    """The share of the magnitudes by which one rounding of folded constants moves a result."""
    dtypes = {
        helper.tensor_dtype_to_np_dtype(t.data_type)
        for graph in all_graphs(model)
        for t in graph.initializer
    }
    dtypes |= {
        helper.tensor_dtype_to_np_dtype(n.attribute[0].t.data_type)
        for n in all_nodes(model)
        if n.op_type == "Constant" and n.attribute[0].name == "value"
    }
    dtypes |= {
        helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type) for i in model.graph.input
    }
    depth = sum(node.op_type in (*TUNABLE, "Mul", "Add") for node in all_nodes(model))
    unit = max((ROUNDOFF.get(np.dtype(dtype), 0.0) for dtype in dtypes), default=0.0)
    return max(depth, 1) * unit * (1 + 4 * unit) + ARITHMETIC


SIZES = ((2, 4), (1, 1), (3, 3), (5, 5), (2, 1), (2, 4, 4), (2, 3, 4))
"""Arguments of `stimuli` that are tried where extents are open."""


def assert_equivalent(
    before: ModelProto, after: ModelProto, sizes: Sequence[tuple[int, ...]] = SIZES[:1]
) -> None:
    """Equal in float64 but for one rounding of the folded constants (see the module's docstring).

    Where there are several `sizes`, those count with which the source can be evaluated.
    """
    before, after = without_foreign(before), without_foreign(after)
    share = tolerance(after)
    bound = absolute(after)
    fitting = 0
    for inputs in chain.from_iterable(stimuli(before, *size) for size in sizes):
        try:
            expected = evaluate(before, inputs)
        except ValueError:
            if len(sizes) == 1:
                raise
            continue
        found = evaluate(after, inputs)
        fitting += 1
        limits = evaluate(
            bound, {k: v if v.dtype == np.bool_ else np.abs(v) for k, v in inputs.items()}
        )
        assert set(found) == set(expected)
        for name, want in expected.items():
            assert found[name].shape == want.shape, name
            assert found[name].dtype == want.dtype, name
            if want.size:
                with np.errstate(invalid="ignore"):  # inf - inf
                    excess = (
                        np.abs(wide(found[name]) - wide(want))
                        - share * np.abs(wide(limits[name]))
                        - 1e-300
                    )
                worst = np.where(same_numbers(found[name], want), 0, excess).max()
                assert worst <= 0, f"{name} is off by {worst} more than the bound"
    assert fitting


def same_numbers(found: Array, want: Array) -> Array:
    """Where two arrays are equal, NaN being equal to itself."""
    return np.asarray((wide(found) == wide(want)) | (np.isnan(wide(found)) & np.isnan(wide(want))))


def without_foreign(model: ModelProto) -> ModelProto:
    """The model with operands of foreign operators as outputs, and their results as inputs."""
    known = {"", "ai.onnx", "ai.onnx.ml", *(function.domain for function in model.functions)}
    foreign = [node for node in model.graph.node if node.domain not in known]
    if not foreign:
        return model
    cut = copy.deepcopy(model)
    results = {name for node in foreign for name in node.output}
    outputs = [info for info in cut.graph.output if info.name not in results]
    nodes = [node for node in cut.graph.node if node.domain in known]
    read = {name for node in nodes for name in node.input} & results
    for i, node in enumerate(foreign):
        for j, name in enumerate(node.input):
            nodes.append(helper.make_node("Identity", [name], [f"foreign {i}, {j}"]))
            outputs.append(helper.make_empty_tensor_value_info(nodes[-1].output[0]))
    for repeated, made in ((cut.graph.output, outputs), (cut.graph.node, nodes)):
        del repeated[:]  # type: ignore[operator]
        repeated.extend(made)  # type: ignore[arg-type]
    cut.graph.input.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in sorted(read)
    )
    return cut


def assert_interface(before: ModelProto, after: ModelProto, *, refined: bool = False) -> None:
    """Inputs and outputs keep name, order and type; initializers count if overridable.

    With `refined`, more may be known of the shapes of outputs than before.
    """

    def required(model: ModelProto) -> list[onnx.ValueInfoProto]:
        optional = {t.name for t in model.graph.initializer} if model.ir_version < 4 else set()
        return [info for info in model.graph.input if info.name not in optional]

    assert required(after) == required(before)
    for new, old in zip(after.graph.output, before.graph.output, strict=True):
        assert is_refined(new, old) if refined else new == old, (new, old)
    assert after.opset_import == before.opset_import
    assert after.ir_version == before.ir_version


def is_refined(new: onnx.ValueInfoProto, old: onnx.ValueInfoProto) -> bool:
    """Whether all that was known of a value is still said of it."""
    known = copy.deepcopy(new)
    shape = known.type.tensor_type.shape
    if not old.type.tensor_type.HasField("shape"):
        known.type.tensor_type.ClearField("shape")
    for dim, was in zip(shape.dim, old.type.tensor_type.shape.dim, strict=False):
        if not was.WhichOneof("value"):
            dim.Clear()
    return known == old


def unread(model: ModelProto) -> set[str]:
    """Initializers that nothing reads."""
    read = {name for node in all_nodes(model) for name in node.input}
    for graph in all_graphs(model):
        read.update(info.name for info in graph.output)
        read.update(
            e.value for q in graph.quantization_annotation for e in q.quant_parameter_tensor_names
        )
    found = {tensor.name for graph in all_graphs(model) for tensor in graph.initializer}
    found |= {
        sparse.values.name for graph in all_graphs(model) for sparse in graph.sparse_initializer
    }
    return found - read


def assert_nothing_stale(before: ModelProto, after: ModelProto) -> None:
    """No initializer without a reader and no note on a lost value, unless before; unique names.

    From IR version 4 on, an initializer that is an input stays: it is one that callers may give.
    """
    listed = {info.name for info in after.graph.input} if after.ir_version >= 4 else set()
    assert unread(after) - listed <= unread(before)
    assert dangling(after) <= dangling(before)
    for graph in all_graphs(after):
        defined = [info.name for info in graph.input]
        tensors = [*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)]
        defined += [tensor.name for tensor in tensors if tensor.name not in defined]
        defined += [name for node in graph.node for name in node.output if name]
        assert len(set(defined)) == len(defined), [
            name for name, n in Counter(defined).items() if n > 1
        ]


def dangling(model: ModelProto) -> set[str]:
    """Names in value_info and quantization_annotation that nothing defines."""
    found: set[str] = set()
    for graph in all_graphs(model):
        defined = {info.name for info in graph.input} | {
            tensor.name for tensor in graph.initializer
        }
        defined |= {name for node in graph.node for name in node.output}
        found |= {info.name for info in graph.value_info} - defined
        found |= {note.tensor_name for note in graph.quantization_annotation} - defined
    return found


def assert_named(before: ModelProto, after: ModelProto) -> None:
    """Every node that is not in the source as it is has a name of its own."""
    kept = {node.SerializeToString(deterministic=True) for node in all_nodes(before)}
    names = Counter(node.name for node in all_nodes(after))
    for node in all_nodes(after):
        if node.SerializeToString(deterministic=True) not in kept:
            assert node.name and names[node.name] == 1, f"{node.op_type} has the name {node.name!r}"


def assert_accounted(result: Result) -> None:
    """Every affine that stays has a reason and a detail; every layer a name that is its own."""
    for source in result.fold_map.sources:
        if source["status"] == "kept":
            assert source["reason"], source
            assert source["detail"], source
        else:
            assert source["status"] in ("folded", "partial", "merged", "dead"), source
    names = Counter(node.name for node in all_nodes(result.model))
    for layer in result.fold_map.layers:
        assert layer["node"]["name"]
        assert names[layer["node"]["name"]] == 1, layer["node"]


def compiled(model: ModelProto, passes: Any = None, **options: Any) -> Result:
    """Compile a copy of `model`, and see that the model given to the compiler stays as it was."""
    given = copy.deepcopy(model)
    result = compile_model(given, passes, **options)
    result.fold_map  # noqa: B018 - it must be possible to build
    assert given == model, "the compiler changed its input"
    return result


def check(
    model: ModelProto, expected: Sequence[str] | None = None, passes: Any = None, **options: Any
) -> Result:
    """Compile, and hold the result against every invariant; `expected` operators are left."""
    result = compiled(model, passes, **options)
    after = result.model
    if expected is not None:
        assert operators(after) == list(expected), reasons(result)
    assert_outcome(model, result, frozen=bool(options.get("freeze_initializers")))
    if after != model:
        again = compiled(after, passes)
        assert again.model == after, "compiling the compiled model changes it"
    return result


def assert_outcome(
    model: ModelProto,
    result: Result,
    *,
    frozen: bool = False,
    refined: bool = False,
    inlined: bool = False,
    sizes: Sequence[tuple[int, ...]] = SIZES[:1],
) -> None:
    """Hold a result against every invariant of it.

    The interface may change where initializers are `frozen`, more may be known of outputs where
    types are `refined`, and operators may become more where calls are `inlined`.
    """
    after = result.model
    if not frozen:
        assert_interface(model, after, refined=refined)
    assert inlined or size(after) <= size(model)
    assert_nothing_stale(model, after)
    assert_named(model, after)
    assert_accounted(result)
    if is_valid(model) is None:
        assert is_valid(after) is None
    if unmarked(after) != unmarked(model):
        assert_equivalent(model, after, sizes)


def check_unchanged(
    model: ModelProto, reason: str | None = None, passes: Any = None, **options: Any
) -> Result:
    """The model comes back as it was; every affine is kept, for `reason` if given."""
    result = check(model, passes=passes, **options)
    assert result.model == model, operators(result.model)
    assert result.model.SerializeToString(deterministic=True) == model.SerializeToString(
        deterministic=True
    )
    if reason is not None:
        assert set(reasons(result).values()) == {f"kept: {reason}"}, reasons(result)
    return result


def simple(op: str, x: Mapping[str, Any] | None = None, **options: Any) -> Graph:
    """A graph with input `x` of shape [2, 3, 4, 4], for models of one layer."""
    graph = Graph(**options)
    graph.input("x", (x or {}).get("shape", [2, 3, 4, 4]))
    return graph


def conv_bn(
    *,
    name: str = "conv",
    bias: str | None = None,
    how: str = "initializer",
    channels: int = 4,
    **options: Any,
) -> tuple[Graph, Array, BatchNorm]:
    """x -> Conv -> BatchNormalization -> y with these parameters; the graph stays open."""
    graph = Graph(**options)
    graph.input("x", [2, 3, 4, 4])
    weight = graph.random(channels, 3, 3, 3)
    params = batch_norm(channels, dtype=graph.dtype)
    inputs = ["x", graph.initializer(weight, "w"), *([bias] if bias is not None else [])]
    hidden = graph.node("Conv", inputs, "h", name, pads=[1, 1, 1, 1])
    graph.batch_norm(hidden, params, "y", "bn", how)
    return graph, weight, params


def function_model(
    *, reference: str | None = None, constants_inside: bool = True, times: int = 1
) -> ModelProto:
    """A model whose main graph calls a function with Conv and BatchNormalization in it."""
    graph = Graph(opset=18, domains={"local": 1})
    graph.input("x", [2, 4, 4, 4])
    arrays = {
        "w": graph.random(4, 4, 1, 1),
        **dict(zip(("g", "b", "m", "v"), batch_norm(4).arrays, strict=True)),
    }
    nodes, attrs = [], []
    inputs = ["x"]
    for name, array in arrays.items():
        if constants_inside:
            nodes.append(
                helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(array))
            )
        else:
            graph.initializer(array, name)
            inputs.append(name)
    nodes.append(helper.make_node("Conv", ["x", "w"], ["h"], name="conv"))
    norm = helper.make_node("BatchNormalization", ["h", "g", "b", "m", "v"], ["y"], name="bn")
    if reference is not None:
        attribute = onnx.AttributeProto(
            name=reference, ref_attr_name="given", type=onnx.AttributeProto.FLOAT
        )
        if reference == "training_mode":
            attribute.type = onnx.AttributeProto.INT
        norm.attribute.append(attribute)
        attrs.append("given")
    nodes.append(norm)
    function = helper.make_function(
        "local", "Block", inputs, ["y"], nodes, [helper.make_opsetid("", 18)], attrs
    )
    graph.functions.append(function)
    hidden = "x"
    given: dict[str, Any] = {}
    if reference is not None:
        given["given"] = 0 if reference == "training_mode" else 0.5
    for i in range(times):
        out = "y" if i == times - 1 else f"t{i}"
        hidden = graph.node(
            "Block", [hidden, *inputs[1:]], out, f"call{i}", domain="local", **given
        )
    graph.output("y", [2, 4, 4, 4])
    return graph.model()
