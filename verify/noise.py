"""How far rounding can move every tensor of a model: Monte Carlo arithmetic on onnxruntime.

The model is run several times with noise in every place where a floating result is rounded, and in every constant: each
is moved at random by AMPLITUDE times what rounding could do to it. That is u * |y| for most operators, u being half the
distance from 1 to the next number of the element type, and u * (2 + sqrt(n) / 2) * sum |w| |x| where n products are
summed (Higham and Mary, "A new approach to probabilistic rounding error analysis", 2019, for the root). Narrower types
than float32 are summed in it: there this u is that of float32, and the result is rounded once, by u * |y| of its own.
How far the results spread is then what the operators behind make of it, whatever they are (Parker, "Monte Carlo
Arithmetic", 1997).
What depends on shapes and constants alone is computed as it is, and so are sums and products of whole numbers. The
bodies of If, Loop and Scan get noise as the main graph does, and those of functions, which are inlined. What operators
of other domains do is not seen: their operands get it instead.
Numbers that rounding makes equal, or zero, are so in no noise: there chance decides what is made of them.
"""

from __future__ import annotations

import platform
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import count
from math import inf, prod, sqrt

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper
from onnx.inliner import inline_local_functions

from ..ir.ops import DEFAULT_DOMAINS
from ..ir.types import TensorType
from .chance import POLES, decide, is_decided, is_delicate, vanishing
from .graph_builder import Writer, wide
from .graph_reads import bodies, reads
from .noiseless import Plain

AMPLITUDE = 16.0
"""Noise as a multiple of what one rounding can do: implementations differ, and sum in different orders."""
UNIT: dict[int, float] = {
    TensorProto.FLOAT: 2.0**-24,
    TensorProto.DOUBLE: 2.0**-53,
    TensorProto.FLOAT16: 2.0**-11,
    TensorProto.BFLOAT16: 2.0**-8,
}
"""Unit roundoff by element type."""
HALF_SUMS = platform.machine().lower() in ("aarch64", "arm64")
"""Whether kernels may sum float16 in float16: those of onnxruntime for ARM do; elsewhere they sum in float32."""

SUMS = frozenset(
    [
        *("Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "Add", "Sub", "Sum", "Mean", "AveragePool"),
        *("GlobalAveragePool", "ReduceMean", "ReduceSum", "BatchNormalization", "CumSum", "ConvInteger"),
    ]
)
"""Operators that sum products: what rounding can do is measured by the same sum over magnitudes."""
EXACT = frozenset(
    [
        *("Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Concat", "Split", "Slice", "Gather"),
        *("GatherElements", "GatherND", "Expand", "Tile", "Pad", "DepthToSpace", "SpaceToDepth", "Relu", "MaxPool"),
        *("GlobalMaxPool", "ReduceMax", "ReduceMin", "Max", "Min", "Neg", "Abs", "Clip", "Where", "Dropout", "Floor"),
        *("Ceil", "Round", "Sign", "TopK", "ScatterND", "ScatterElements", "If", "Loop", "Scan", "Optional"),
        *("SequenceConstruct", "SequenceAt", "SplitToSequence", "Compress", "ReverseSequence", "Trilu", "EyeLike"),
        *("DequantizeLinear", "QuantizeLinear", "Cast", "CastLike", "Shape", "Size", "Constant", "ConstantOfShape"),
    ]
)
"""Operators that round nothing, or whose results are no tensors."""
BY_SHAPE = frozenset(
    ["Resize", "Upsample", "Range", "OneHot", "ConstantOfShape", "NonMaxSuppression", "QuantizeLinear"]
)
"""Operators that take constants by which shapes or steps are computed: these are left as they are."""
SHAPED = ("Pow", "Mod", "Clip")
"""Operators of which only the first operand is data: a power of 2.0000001 has no value below zero."""
LONG_SUMS = ("MatMul", "Gemm", "Einsum", "ReduceMean", "ReduceSum", "GlobalAveragePool")
"""Operators that are taken to sum 64 products where the shape does not tell."""
WHOLE = frozenset(["Add", "Sub", "Mul"])
"""Operators that round nothing where operands and result are whole numbers that the element type has all of: a mask is
made of 1 - x so, and a rounding of it, times -1e9, would be as large as all that is masked.
"""
ABSOLUTE = frozenset(["Sigmoid", "HardSigmoid", "Softmax", "LogSoftmax", "Erf", "Tanh", "Cos", "Sin"])
"""Operators whose results are rounded as numbers near 1 are, however small they are: kernels are rational functions."""
PARAMETRIC = SUMS | {"Mul", "Div", "PRelu", "InstanceNormalization", "LayerNormalization", "GroupNormalization"}
"""Operators whose constants may also be computed from others when the model runs."""
Types = Mapping[str, TensorType]
"""Types of values by name, those in bodies among them."""


def inlined(model: ModelProto) -> ModelProto:
    """The model without functions, all names of its graphs kept; itself where it has none, or onnx cannot inline."""
    try:
        return inline_local_functions(model) if model.functions else model
    except Exception:  # onnx's inliner has no error of its own
        return model


def noisy(model: ModelProto, types: Types) -> ModelProto:
    """A copy of `model` with noise in its graphs, under the same names; every run makes other noise."""
    made = ModelProto()
    made.CopyFrom(model)
    made.ir_version = max(made.ir_version, 4)  # an initializer need not be an input
    opset = next((entry.version for entry in made.opset_import if entry.domain in DEFAULT_DOMAINS), 1)
    given = {tensor.name for tensor in made.graph.initializer}
    data = {info.name for info in made.graph.input if info.name not in given}
    _Noise(made.graph, types, opset, data).run()
    return made


class _Noise(Writer):
    """Puts noise into one graph. `data` are those of its inputs that are no constants; `outer` is the graph that a body
    stands in, and gives the constants that the body reads their noise: it is the same in every run of the body.
    """

    def __init__(
        self, graph: GraphProto, types: Types, opset: int, data: set[str], outer: _Noise | None = None
    ) -> None:
        super().__init__(graph, count(1) if outer is None else outer.numbers)
        self.types = types
        self.opset = opset
        self.data = data
        self.outer = outer
        self.defined = {tensor.name for tensor in graph.initializer} | {info.name for info in graph.input}
        self.defined.update(name for node in graph.node for name in node.output)
        weights = {t.name: t for t in graph.initializer if t.data_type in UNIT and all(t.dims)}
        self.weights: ChainMap[str, TensorProto] = ChainMap(weights, *(() if outer is None else outer.weights.maps))
        self.moved: dict[tuple[str, bool], str] = {}
        self.exact = set(data) if outer is None else set()
        """What depends on what the model is given, and carries no noise."""
        self.originals: dict[str, str] = {} if outer is None else outer.originals
        self.whole_constants: set[str] = set() if outer is None else outer.whole_constants
        self.named: dict[int, str] = {}
        self.is_delicate: bool = any(map(is_delicate, graph.node)) if outer is None else outer.is_delicate
        self.plain: Plain = Plain(self.nodes, None if outer is None else outer.plain)

    def run(self) -> None:
        nodes = list(self.graph.node)
        for node in nodes:
            if node.op_type in ("Shape", "Size") or not any(map(self.is_data, reads(node))):
                self.nodes.append(node)
                continue
            self.data.update(node.output)
            if self.is_delicate:
                self.plain.keep(node)
            operands = list(node.input)
            for body in bodies(node):
                carried = {info.name for info in body.input[node.op_type == "Loop" :]}  # the number of the run is none
                _Noise(body, self.types, self.opset, carried, self).run()
            if node.domain not in DEFAULT_DOMAINS:
                for i, name in enumerate(node.input):
                    if name and self.unit(name) is not None:
                        node.input[i] = self.weight(name)
            elif node.op_type not in BY_SHAPE:
                for i, name in enumerate(node.input[:1] if node.op_type in SHAPED else node.input):
                    computed = node.op_type in PARAMETRIC and not self.is_data(name) and self.unit(name) is not None
                    if name in self.weights or computed:
                        node.input[i] = self.weight(name, whole=self.opset >= 11 and node.op_type in WHOLE)
            self.meet_zero(node, operands)
            self.result(node)
            if is_decided(node) and self.opset >= 7 and self.all_float(operands):
                decide(self, node, list(map(self.plain.value, operands)), self.elem_type(operands[0]))
        del self.graph.node[:]
        self.graph.node.extend(self.nodes)

    def meet_zero(self, node: NodeProto, operands: Sequence[str]) -> None:
        """Let an operand that is as good as zero be zero where a node makes infinities of zeros."""
        place = POLES.get(node.op_type)
        if place is None or self.opset < 9 or not self.is_data(operands[place]) or not self.all_float(operands):
            return
        name = node.input[place]
        plain = self.plain.value(operands[place])
        if plain != name:
            node.input[place] = vanishing(self, name, plain, self.elem_type(name))
            self.originals[node.input[place]] = name

    def is_data(self, name: str) -> bool:
        """Whether a value depends on what the model is given."""
        return name in self.data or (self.outer is not None and self.outer.is_data(name))

    def is_exact(self, name: str) -> bool:
        """Whether a value carries no noise, or may be whole numbers, which carry none."""
        if name in self.originals:
            return name in self.whole_constants
        if not self.is_data(name):
            return True
        return name in self.exact or (self.outer is not None and name not in self.defined and self.outer.is_exact(name))

    def result(self, node: NodeProto) -> None:
        """The node, with noise on its floating results under their names."""
        exact = all(map(self.is_exact, reads(node))) and not bodies(node)
        if node.op_type in EXACT or node.domain not in DEFAULT_DOMAINS:
            self.exact.update(node.output if exact else ())
            self.nodes.append(node)
            return
        places = [i for i, name in enumerate(node.output) if name and self.unit(name) is not None]
        names = self.named = {i: node.output[i] for i in places}
        whole = exact and node.op_type in WHOLE and self.opset >= 11
        self.exact.update(node.output if exact and (whole or not places) else ())
        inputs = list(node.input)
        for i in places:
            node.output[i] = self.fresh("raw")
        self.nodes.append(node)
        for i in places:
            elem_type, unit = self.unit(names[i]) or (0, 0.0)
            value, kind = self.widened(node.output[i], elem_type), wide(elem_type)
            found = self.roundings(node, i, inputs, value, elem_type)
            if whole:
                small = self.make("Less", [self.make("Abs", [value]), self.number(1 / unit, kind)])
                tests = [small, *(self.is_whole(self.operand(name, kind)) for name in inputs)]
                found = [(self.unless(tests, size, kind), unit) for size, unit in found]
            self.spread(value, elem_type, found, names[i])

    def roundings(
        self, node: NodeProto, index: int, inputs: list[str], value: str, elem_type: int
    ) -> list[tuple[str, float]]:
        """What a result of the node, `value` when widened, is rounded in proportion to, and by which units."""
        unit, kind = UNIT[elem_type], wide(elem_type)
        total = None
        if node.op_type in SUMS and [*self.named] == [0]:
            total = self.sum_of_magnitudes(node, inputs, kind)
        if total is None:
            return [(self.magnitude(node, index, inputs, value, kind), unit)]
        growth = 2 + sqrt(self.terms(node)) / 2
        found = [(total, (unit if HALF_SUMS else UNIT[kind]) * growth)]
        return found if kind == elem_type else [*found, (self.make("Abs", [value]), unit)]

    def is_whole(self, size: str) -> str:
        """Which elements are whole numbers."""
        return self.make("Equal", [size, self.make("Floor", [size])])

    def unless(self, tests: list[str], magnitude: str, kind: int) -> str:
        """The magnitude, zeros where all tests hold."""
        every = reduce(lambda one, other: self.make("And", [one, other]), tests)
        return self.make("Where", [every, self.number(0.0, kind), magnitude])

    def magnitude(self, node: NodeProto, index: int, inputs: list[str], value: str, kind: int) -> str:
        """What a result is rounded in proportion to: its own magnitude, and that of a single operand."""
        own = self.make("Abs", [value])
        if node.op_type in ABSOLUTE:
            return self.make("Add", [own, self.number(1.0, kind)])
        operand, result = self.types.get(inputs[0]), self.types.get(self.named[index])
        same = operand is not None and operand == result and operand.shape is not None
        if len(inputs) > 1 or not same:
            return own
        other = self.operand(inputs[0], kind)
        return self.make("Add", [own, self.where_finite(other, other, kind)])

    def sum_of_magnitudes(self, node: NodeProto, inputs: Iterable[str], kind: int) -> str | None:
        """The same operator on magnitudes, in another element type; None where an operand is not floating."""
        if any(name and self.unit(name) is None for name in inputs):
            return None
        copy = NodeProto()
        copy.CopyFrom(node)
        copy.name = ""
        if node.op_type == "Sub":
            copy.op_type = "Add"
        for attribute in copy.attribute:
            if attribute.name in ("alpha", "beta"):
                attribute.f = abs(attribute.f)
        del copy.input[:]
        copy.input.extend(self.operand(name, kind) if name else "" for name in inputs)
        if node.op_type == "BatchNormalization":
            copy.input[3] = self.make("Neg", [copy.input[3]])
        copy.output[0] = self.fresh("sum")
        self.nodes.append(copy)
        return copy.output[0]

    def operand(self, name: str, kind: int) -> str:
        """The magnitude of an operand."""
        elem_type, _ = self.unit(name) or (kind, 0.0)
        return self.cast(self.make("Abs", [name]), elem_type, kind)

    def terms(self, node: NodeProto) -> int:
        """How many products are summed for one element, as far as the shape of the second operand tells."""
        dims = self.extents(node.input[1]) if len(node.input) > 1 else None
        if dims is None or node.op_type not in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
            return 64 if node.op_type in LONG_SUMS else 2
        return max(prod(dims) // max(min(dims[:2], default=1), 1), 1)

    def extents(self, name: str) -> list[int] | None:
        """The shape of a value, None where it is not known."""
        name = self.origin(name)
        if name in self.weights:
            return list(self.weights[name].dims)
        shape = self.types[name].shape if name in self.types else None
        dims = [dim for dim in shape or () if isinstance(dim, int)]
        return dims if shape is not None and len(dims) == len(shape) else None

    def origin(self, name: str) -> str:
        return self.originals.get(name, name)

    def weight(self, name: str, *, whole: bool = False) -> str:
        """The name of a constant with noise, which is made in the graph that the constant stands in; with `whole` there
        is none on whole numbers.
        """
        if self.outer is not None and name not in self.defined:
            return self.outer.weight(name, whole=whole)
        if (name, whole) not in self.moved:
            elem_type, unit = self.unit(name) or (0, 0.0)
            moved = self.moved[name, whole] = self.fresh("weight")
            self.originals[moved] = name
            value = self.widened(name, elem_type)
            size = self.make("Abs", [value])
            if whole:
                self.whole_constants.add(moved)
                size = self.unless([self.is_whole(size)], size, wide(elem_type))
            self.spread(value, elem_type, [(size, unit)], moved)
        return self.moved[name, whole]

    def spread(self, value: str, elem_type: int, magnitudes: Iterable[tuple[str, float]], out: str) -> None:
        """Out = value + AMPLITUDE * unit * magnitude * uniform(-1, 1) for every magnitude and its unit: these and the
        value are `widened`, `out` is of the element type. Infinities stay what they are.
        """
        kind = wide(elem_type)
        size = self.make("Abs", [value])
        for magnitude, unit in magnitudes:
            moved = self.where_finite(size, magnitude, kind)
            scaled = self.make("Mul", [moved, self.number(AMPLITUDE * unit, kind)])
            dice = self.cast(self.dice(scaled, kind), TensorProto.FLOAT, kind)
            value = self.make("Add", [value, self.make("Mul", [scaled, dice])])
        if kind == elem_type:
            self.nodes[-1].output[0] = out
        else:
            self.nodes.append(helper.make_node("Cast", [value], [out], to=elem_type))

    def where_finite(self, size: str, magnitude: str, kind: int) -> str:
        """The magnitude where another one is finite, zeros elsewhere: noise would make NaN of an infinity."""
        if self.opset < 9:
            return magnitude
        finite = self.make("Less", [size, self.number(inf, kind)])
        return self.make("Where", [finite, magnitude, self.number(0.0, kind)])

    def all_float(self, names: Iterable[str]) -> bool:
        return all(self.unit(name) is not None for name in names)

    def elem_type(self, name: str) -> int:
        """The element type of a floating tensor."""
        return (self.unit(name) or (0, 0.0))[0]

    def unit(self, name: str) -> tuple[int, float] | None:
        """Element type and unit roundoff of a floating tensor."""
        if name in self.weights:
            elem_type = self.weights[name].data_type
            return elem_type, UNIT[elem_type]
        moved = self.origin(name)
        if moved != name:
            return self.unit(moved)
        type_ = self.types.get(name)
        if not isinstance(type_, TensorType) or type_.dtype is None:
            return None
        elem_type = ELEM_TYPES.get(str(type_.dtype), 0)
        return (elem_type, UNIT[elem_type]) if elem_type in UNIT else None


ELEM_TYPES: dict[str, int] = {
    "f32": TensorProto.FLOAT,
    "f64": TensorProto.DOUBLE,
    "f16": TensorProto.FLOAT16,
    "bf16": TensorProto.BFLOAT16,
}
