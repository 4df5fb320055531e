"""Monte Carlo arithmetic: a model with random noise wherever it rounds measures rounding.

The noisy model runs several times, each time with other noise. How far its tensors spread is how
far rounding can move them, whatever operators lie between (Parker, "Monte Carlo Arithmetic", 1997).
With u the unit roundoff, each result and each constant moves by a random share of AMPLITUDE times
the error of one rounding:

- u * |y| for most operators;
- u * (|y| + |x|) for operators of one operand but roots and reciprocals, u * (|y| + 1) for sigmoids
  and the like;
- u * (2 + sqrt(n) / 2) * sum |w| |x| for a sum of n products: the probabilistic bound of Higham and
  Mary, "A New Approach to Probabilistic Rounding Error Analysis", 2019, which grows with sqrt(n)
  instead of n.

A bias of 32-bit integers behind DequantizeLinear is the nearest of its steps to a number, and may
be rounded to another scale: it moves by a random share of one step.

Kernels sum float16 and bfloat16 in float32. For these, u is the one of float32, and the rounding of
the result adds u * |y| of the narrow type. A float32 model whose results shall be rounded to a
narrow type gets the noise of that type: NARROWED times u * |y|, and the step of its least numbers.

Values that depend on shapes and constants alone get no noise, nor do sums and products of integers.
Bodies of If, Loop and Scan get noise like the main graph; functions are inlined before. Operators
of other domains are not looked into: their operands get noise instead.
"""

from __future__ import annotations

import platform
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import count
from math import inf, prod, sqrt

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper
from onnx.inliner import inline_local_functions

from ...frontends.onnx.codec.onnx_types import TO_ONNX
from ...ir.ops import DEFAULT_DOMAINS
from ...ir.tensor import smallest_normal
from ...ir.types import DType, TensorType
from .graph_builder import GraphBuilder, noise_type
from .numeric_traits import (
    EXACT,
    EXACT_ON_INTEGERS,
    FIRST_OPERAND_IS_DATA,
    LONG_SUMS,
    POLES,
    ROUNDED_NEAR_ONE,
    ROUNDED_ONCE,
    SHAPE_FROM_OPERANDS,
    SUMS_OF_PRODUCTS,
    TAKES_COMPUTED_PARAMETERS,
)
from .onnx_graph import bodies, reads
from .ties import NoiseFreeCopies, draw_comparison, draw_zero, is_comparison, may_tie

ITSELF, ONE = "itself", "one"
"""Magnitudes of rounding errors that need no node: of the value that is rounded, and 1."""
AMPLITUDE = 16.0
"""Noise as a multiple of one rounding error: implementations sum in different orders."""
UNIT_ROUNDOFF: dict[int, float] = {
    TensorProto.FLOAT: 2.0**-24,
    TensorProto.DOUBLE: 2.0**-53,
    TensorProto.FLOAT16: 2.0**-11,
    TensorProto.BFLOAT16: 2.0**-8,
}
"""Half the distance from 1 to the next number, by element type."""
NARROWED = 0.25
"""Noise of a result that is rounded to a narrow type, in roundings and AMPLITUDE: there is one
rounding, in whatever order an implementation sums."""
SUMS_IN_FLOAT16 = platform.machine().lower() in ("aarch64", "arm64")
"""Whether onnxruntime may sum float16 in float16: its kernels for ARM do."""

Types = Mapping[str, TensorType]
"""Types of values by name, those in bodies included."""


def inline_functions(model: ModelProto) -> ModelProto:
    """Return the model with its functions inlined, or `model` itself if onnx cannot.

    The names of its graphs are kept.
    """
    try:
        return inline_local_functions(model) if model.functions else model
    except Exception:  # onnx's inliner has no exception of its own
        return model


def noisy_model(model: ModelProto, types: Types, narrow: DType | None = None) -> ModelProto:
    """Return a copy of `model` with noise in its graphs, another one in every run.

    Values keep their names. With a `narrow` type float32 results get the noise of that type.
    """
    copy = ModelProto()
    copy.CopyFrom(model)
    copy.ir_version = max(copy.ir_version, 4)  # from then on an initializer need not be an input
    opsets = (entry.version for entry in copy.opset_import if entry.domain in DEFAULT_DOMAINS)
    opset = next(opsets, 1)
    initializers = {tensor.name for tensor in copy.graph.initializer}
    data = {info.name for info in copy.graph.input if info.name not in initializers}
    units = dict(UNIT_ROUNDOFF)
    step = 0.0
    if narrow is not None:
        units[TensorProto.FLOAT] = NARROWED * UNIT_ROUNDOFF[TO_ONNX[narrow]]
        step = NARROWED * UNIT_ROUNDOFF[TO_ONNX[narrow]] * smallest_normal(narrow)
    _NoiseInserter(copy.graph, types, opset, data, (units, step)).run()
    return copy


class _NoiseInserter(GraphBuilder):
    """Inserts noise into one graph.

    `data` are the values that depend on the graph's inputs, at first the inputs themselves. `outer`
    belongs to the graph around a body. Constants that a body reads get their noise there, so that
    it is the same in every iteration. `rounding` has the unit roundoff by element type, and the
    error of float32 results that does not depend on their size.
    """

    def __init__(
        self,
        graph: GraphProto,
        types: Types,
        opset: int,
        data: set[str],
        rounding: tuple[Mapping[int, float], float],
        outer: _NoiseInserter | None = None,
    ) -> None:
        super().__init__(graph, count(1) if outer is None else outer.numbers, opset)
        self.rounding = rounding
        self.units, self.step = rounding
        self.types = types
        self.data = data
        self.outer = outer
        self.defined = {tensor.name for tensor in graph.initializer}
        self.defined.update(info.name for info in graph.input)
        self.defined.update(name for node in graph.node for name in node.output)
        constants = {
            t.name: t for t in graph.initializer if t.data_type in UNIT_ROUNDOFF and all(t.dims)
        }
        self.constants: ChainMap[str, TensorProto]
        self.constants = ChainMap(constants, *(() if outer is None else outer.constants.maps))
        self.noisy_constants: dict[tuple[str, bool], str] = {}
        self.noise_free = set(data) if outer is None else set()
        """Values that depend on the inputs, but carry no noise."""
        self.originals: dict[str, str] = {} if outer is None else outer.originals
        """Names in the source by the names of values that noise was added to."""
        self.keeps_integers: set[str] = set() if outer is None else outer.keeps_integers
        """Noisy constants whose integers got no noise."""
        self.has_ties: bool = any(map(may_tie, graph.node)) if outer is None else outer.has_ties
        self.steps = {
            node.output[0]: node.input[1] for node in graph.node if self.is_integer_bias(node)
        }
        """The scales of biases of 32-bit integers by the name of the dequantized bias."""
        copies = None if outer is None else outer.copies
        self.copies: NoiseFreeCopies = NoiseFreeCopies(self.nodes, copies)

    def run(self) -> None:
        """Replace the nodes of the graph by nodes with noise."""
        for node in list(self.graph.node):
            if node.op_type in ("Shape", "Size") or not any(map(self.is_data, reads(node))):
                self.nodes.append(node)
            else:
                self.data.update(node.output)
                self.add_noisy(node)
        del self.graph.node[:]
        self.graph.node.extend(self.nodes)

    def add_noisy(self, node: NodeProto) -> None:
        """Add a node with noise in its bodies, its constants and its results."""
        if self.has_ties:
            self.copies.record(node)
        operands = list(node.input)
        for body in bodies(node):
            # The first input of Loop's body is the iteration number.
            state = body.input[node.op_type == "Loop" :]
            names = {info.name for info in state}
            _NoiseInserter(body, self.types, self.opset, names, self.rounding, self).run()
        self.perturb_constants(node)
        self.perturb_pole(node, operands)
        self.add_result(node)
        # The draw takes a difference, and Sub broadcasts as comparisons do from opset 7 on.
        if is_comparison(node) and self.opset >= 7 and self.are_floating(operands):
            exact = list(map(self.copies.value, operands))
            draw_comparison(self, node, exact, self.elem_type(operands[0]) or 0)

    def perturb_constants(self, node: NodeProto) -> None:
        """Let a node read its constants with noise, or all operands if its domain is unknown."""
        is_known = node.domain in DEFAULT_DOMAINS
        if is_known and node.op_type in SHAPE_FROM_OPERANDS:
            return
        operands = list(node.input)
        if is_known and node.op_type in FIRST_OPERAND_IS_DATA:
            operands = operands[:1]
        keep_integers = is_known and self.is_exact_on_integers(node)
        for i, name in enumerate(operands):
            is_computed = node.op_type in TAKES_COMPUTED_PARAMETERS and not self.is_data(name)
            is_noisy = name in self.constants or is_computed or not is_known
            if is_noisy and self.elem_type(name) is not None:
                node.input[i] = self.perturbed(name, keep_integers=keep_integers)

    def perturb_pole(self, node: NodeProto, operands: Sequence[str]) -> None:
        """Let an operand that may be zero be zero at random if the node has a pole there."""
        place = POLES.get(node.op_type)
        if place is None or self.opset < 9:
            return
        if not self.is_data(operands[place]) or not self.are_floating(operands):
            return
        name, exact = node.input[place], self.copies.value(operands[place])
        if exact != name:
            node.input[place] = draw_zero(self, name, exact, self.elem_type(name) or 0)
            self.originals[node.input[place]] = name

    def is_integer_bias(self, node: NodeProto) -> bool:
        """Return whether a node dequantizes a vector of 32-bit integers, as a bias is."""
        if node.op_type != "DequantizeLinear" or node.domain not in DEFAULT_DOMAINS:
            return False
        type_ = self.types.get(node.input[0])
        if len(node.output) != 1 or not isinstance(type_, TensorType):
            return False
        return str(type_.dtype) == "i32" and len(type_.shape or ()) == 1

    def is_data(self, name: str) -> bool:
        """Return whether a value depends on the inputs of the model."""
        if name in self.data:
            return True
        return self.outer is not None and self.outer.is_data(name)

    def is_exact_on_integers(self, node: NodeProto) -> bool:
        """Return whether integers among floats have exact results, and can be told from others.

        The test is an Equal of floats, which opset 11 has brought.
        """
        return node.op_type in EXACT_ON_INTEGERS and self.opset >= 11

    def is_noise_free(self, name: str) -> bool:
        """Return whether a value carries no noise, or none on integers."""
        if name in self.originals:
            return name in self.keeps_integers
        if not self.is_data(name) or name in self.noise_free:
            return True
        if self.outer is None or name in self.defined:
            return False
        return self.outer.is_noise_free(name)

    def add_result(self, node: NodeProto) -> None:
        """Add the node; its floating-point results get noise under their old names."""
        exact = all(map(self.is_noise_free, reads(node))) and not bodies(node)
        if node.op_type in EXACT or node.domain not in DEFAULT_DOMAINS:
            self.noise_free.update(node.output if exact else ())
            self.nodes.append(node)
            return
        named = [(i, name) for i, name in enumerate(node.output) if name]
        results = [(i, name) for i, name in named if self.elem_type(name) is not None]
        integers = exact and self.is_exact_on_integers(node)
        if integers or (exact and not results):
            self.noise_free.update(node.output)
        for i, _ in results:
            node.output[i] = self.fresh("raw")
        self.nodes.append(node)
        is_sum = node.op_type in SUMS_OF_PRODUCTS and [i for i, _ in results] == [0]
        for i, name in results:
            elem_type = self.elem_type(name) or 0
            value = self.widen(node.output[i], elem_type)
            errors = self.rounding_errors(node, name, elem_type, is_sum=is_sum)
            if integers:
                errors = self.zero_on_integers(errors, [*node.input], value, elem_type)
            elif self.step and elem_type == TensorProto.FLOAT:
                errors = [*errors, (ONE, self.step)]
            self.add_noise(value, elem_type, errors, name)

    def rounding_errors(
        self, node: NodeProto, result: str, elem_type: int, *, is_sum: bool
    ) -> list[tuple[str, float]]:
        """Return the error of one rounding of a result: magnitudes, each with its factor.

        Beside the names of values, a magnitude is ITSELF or ONE.
        """
        unit, wide = self.units[elem_type], noise_type(elem_type)
        is_narrow = self.step > 0 and elem_type == TensorProto.FLOAT
        total = self.sum_of_magnitudes(node, wide) if is_sum else None
        if total is None:
            others = [] if is_narrow else self.other_magnitudes(node, result, wide)
            return [(magnitude, unit) for magnitude in (ITSELF, *others)]
        growth = 2 + sqrt(self.num_terms(node)) / 2
        is_summed_so = SUMS_IN_FLOAT16 and wide != elem_type
        errors = [(total, (unit if is_summed_so else UNIT_ROUNDOFF[wide]) * growth)]
        return [*errors, (ITSELF, unit)] if is_narrow or wide != elem_type else errors

    def zero_on_integers(
        self,
        errors: Sequence[tuple[str, float]],
        operands: Sequence[str],
        value: str,
        elem_type: int,
    ) -> list[tuple[str, float]]:
        """Return the errors, zero if operands and result are integers below 1 / u, hence exact."""
        wide = noise_type(elem_type)
        own = self.op("Abs", [value])
        below = self.op("Less", [own, self.scalar(1 / self.units[elem_type], wide)])
        tests = [below, *(self.is_integer(self.operand_magnitude(name, wide)) for name in operands)]
        return [
            (self.zero_where(tests, own if magnitude == ITSELF else magnitude, wide), factor)
            for magnitude, factor in errors
        ]

    def is_integer(self, magnitude: str) -> str:
        """Return which elements are integers."""
        return self.op("Equal", [magnitude, self.op("Floor", [magnitude])])

    def zero_where(self, tests: Sequence[str], magnitude: str, wide: int) -> str:
        """Return the magnitude, with zeros if all tests are true."""
        every = reduce(lambda one, other: self.op("And", [one, other]), tests)
        return self.op("Where", [every, self.scalar(0.0, wide), magnitude])

    def other_magnitudes(self, node: NodeProto, result: str, wide: int) -> list[str]:
        """Return the magnitudes, beside its own, to which a result's error is proportional."""
        if node.op_type in ROUNDED_NEAR_ONE:
            return [ONE]
        if node.op_type in ROUNDED_ONCE:
            return []
        operand, type_ = self.types.get(node.input[0]), self.types.get(result)
        # Only of an elementwise function the operand's magnitudes have the shape of the result.
        if len(node.input) > 1 or operand is None or operand != type_ or operand.shape is None:
            return []
        return [self.zero_unless_finite(self.operand_magnitude(node.input[0], wide), wide)]

    def sum_of_magnitudes(self, node: NodeProto, wide: int) -> str | None:
        """Return the result of the same operator on magnitudes, in a wide element type.

        Return None if an operand is not floating-point.
        """
        if any(name and self.elem_type(name) is None for name in node.input):
            return None
        copy = NodeProto()
        copy.CopyFrom(node)
        copy.name = ""
        if node.op_type == "Sub":
            copy.op_type = "Add"
        for attribute in copy.attribute:
            if attribute.name in ("alpha", "beta"):
                attribute.f = abs(attribute.f)
        copy.input[:] = [self.operand_magnitude(name, wide) if name else "" for name in node.input]
        if node.op_type == "BatchNormalization":  # x - mean becomes |x| + |mean|
            copy.input[3] = self.op("Neg", [copy.input[3]])
        copy.output[0] = self.fresh("sum")
        self.nodes.append(copy)
        return copy.output[0]

    def operand_magnitude(self, name: str, wide: int) -> str:
        """Return the magnitudes of an operand in a wide element type."""
        return self.cast(self.op("Abs", [name]), self.elem_type(name) or wide, wide)

    def num_terms(self, node: NodeProto) -> int:
        """Return how many products make one element, as far as the second operand's shape tells."""
        shape = self.shape(node.input[1]) if len(node.input) > 1 else None
        if shape is None or node.op_type not in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
            return 64 if node.op_type in LONG_SUMS else 2
        return max(prod(shape) // max(min(shape[:2], default=1), 1), 1)

    def shape(self, name: str) -> list[int] | None:
        """Return the shape of a value; None if it is not known."""
        name = self.originals.get(name, name)
        if name in self.constants:
            return list(self.constants[name].dims)
        shape = self.types[name].shape if name in self.types else None
        dims = [dim for dim in shape or () if isinstance(dim, int)]
        return dims if shape is not None and len(dims) == len(shape) else None

    def perturbed(self, name: str, *, keep_integers: bool) -> str:
        """Return a constant with noise, computed in the graph that defines the constant."""
        if self.outer is not None and name not in self.defined:
            return self.outer.perturbed(name, keep_integers=keep_integers)
        if (name, keep_integers) not in self.noisy_constants:
            elem_type = self.elem_type(name) or 0
            noisy = self.noisy_constants[name, keep_integers] = self.fresh("weight")
            self.originals[noisy] = name
            value, magnitude = self.widen(name, elem_type), ITSELF
            if keep_integers:
                self.keeps_integers.add(noisy)
                own = self.op("Abs", [value])
                magnitude = self.zero_where([self.is_integer(own)], own, noise_type(elem_type))
            errors = [(magnitude, self.units[elem_type])]
            if name in self.steps:
                step = self.operand_magnitude(self.steps[name], noise_type(elem_type))
                errors.append((step, 1 / AMPLITUDE))
            self.add_noise(value, elem_type, errors, noisy)
        return self.noisy_constants[name, keep_integers]

    def add_noise(
        self, value: str, elem_type: int, errors: Iterable[tuple[str, float]], out: str
    ) -> None:
        """Compute out = value + sum of AMPLITUDE * factor * magnitude * uniform(-1, 1).

        The magnitude ITSELF is a product, value * (1 + noise), which takes fewer nodes and keeps
        infinities. Value and magnitudes are in the element type of noise, `out` is in `elem_type`.
        """
        wide = noise_type(elem_type)
        for magnitude, factor in errors:
            size = AMPLITUDE * factor
            # Attributes are float, in which 1 + size is 1.
            if magnitude == ITSELF and wide == TensorProto.DOUBLE:
                magnitude = self.op("Abs", [value])
            if magnitude == ITSELF:
                factors = self.random_uniform(value, wide, 1 - size, 1 + size)
                value = self.op("Mul", [value, factors])
                continue
            noise = self.random_uniform(value, wide, -size, size)
            if magnitude != ONE:
                noise = self.op("Mul", [self.finite(magnitude, wide), noise])
            value = self.op("Add", [value, noise])
        if wide == elem_type:
            self.nodes[-1].output[0] = out
        else:
            self.nodes.append(helper.make_node("Cast", [value], [out], to=elem_type))

    def finite(self, magnitude: str, wide: int) -> str:
        """Return the magnitude, at most the greatest number: infinity and noise may give NaN."""
        if self.opset < 8:
            return magnitude
        greatest = np.finfo(helper.tensor_dtype_to_np_dtype(wide)).max
        return self.op("Min", [magnitude, self.scalar(float(greatest), wide)])

    def zero_unless_finite(self, magnitude: str, wide: int) -> str:
        """Return the magnitude, with zeros for infinity."""
        if self.opset < 9:
            return magnitude
        finite = self.op("Less", [magnitude, self.scalar(inf, wide)])
        return self.op("Where", [finite, magnitude, self.scalar(0.0, wide)])

    def are_floating(self, names: Iterable[str]) -> bool:
        """Return whether all values are floating-point tensors that noise can be added to."""
        return all(self.elem_type(name) is not None for name in names)

    def elem_type(self, name: str) -> int | None:
        """Return the element type of a floating-point tensor, and None for other values."""
        if name in self.constants:
            return self.constants[name].data_type
        if name in self.originals:
            return self.elem_type(self.originals[name])
        type_ = self.types.get(name)
        if not isinstance(type_, TensorType) or type_.dtype is None:
            return None
        elem_type = TO_ONNX.get(type_.dtype)
        return elem_type if elem_type in UNIT_ROUNDOFF else None
