"""Layers: S(v) = W * v + B of the source, and a result's with W', B' computing s * S + t.

The operands are related by v = p * u + q. Then s * S(v) + t = (s W p) * u + s (B + W q) + t, and
the checker computes both constants in float64 and proves that the stored ones are their roundings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import TensorProto, helper

from .affine_operators import EPSILON, fitted, own_line
from .layer_constants import Numbers, numbers_of
from .lines import FORMATS, GROWTH, Line, along, is_rounding, scaled, vanishes
from .program import Array, Datum, Operation, Stored, Unproved, static


@dataclass(frozen=True, eq=False, slots=True)
class Weights:
    """The constants of a layer in one form.

    `weight` is [outputs, inputs of a group, ...]; `bias` has the axes of the result. `data` is the
    index of the non-constant operand; `addend` is the bias if it is not constant.

    `factor` and `bias_factor` multiply them when the layer runs.
    """

    weight: Numbers
    bias: Numbers | None
    groups: int = 1
    factor: float = 1.0
    bias_factor: float = 1.0
    axis: int = 1
    data_axis: int = 1
    data: int = 0
    addend: Datum | None = None

    @property
    def matrix(self) -> Array:
        """The elements of the weight without rounding."""
        return self.weight.exact


def weights_of(operation: Operation) -> Weights | None:
    """Return the constants of a layer, None if one is not constant, or for other operators."""
    read = _READERS.get(operation.kind) if not operation.domain else None
    if read is None:
        return None
    weight, index = numbers_of(operation.operand(1)), 0
    # A * x = (x^T * A^T)^T: the rows of the result are the outputs.
    if weight is None and operation.kind in DENSE:
        weight, index = numbers_of(operation.operand(0)), 1
    bias = numbers_of(operation.operand(2))
    try:
        found = None if weight is None else read(operation, weight, bias, index)
    except ValueError:  # of extents that do not fit together
        return None
    if found is None or bias is not None:
        return found
    return replace(found, addend=operation.operand(2))


def _conv(operation: Operation, weight: Numbers, bias: Numbers | None, _: int) -> Weights | None:
    groups = int(operation.attributes.get("group", 1))
    extents = weight.extents
    if len(extents) < 3 or groups < 1 or extents[0] % groups:
        return None

    def turned(array: Array) -> Array:
        """Return [inputs, outputs of a group, ...] as [outputs, inputs of a group, ...]."""
        inputs, outputs, *rest = array.shape
        return (
            array.reshape(groups, inputs // groups, outputs, *rest)
            .swapaxes(1, 2)
            .reshape(-1, inputs // groups, *rest)
        )

    if operation.kind == "ConvTranspose":
        weight = weight.map(turned)
    vector = (1, weight.extents[0], *[1] * (len(extents) - 2))
    return Weights(
        weight, None if bias is None else bias.map(lambda array: array.reshape(vector)), groups
    )


def _gemm(
    operation: Operation, weight: Numbers, bias: Numbers | None, index: int
) -> Weights | None:
    if len(weight.extents) != 2 or (bias is not None and len(bias.extents) > 2):
        return None
    alpha, beta = (float(operation.attributes.get(name, 1.0)) for name in ("alpha", "beta"))
    if not np.isfinite([alpha, beta]).all():
        return None
    turned = bool(operation.attributes.get("transA" if index else "transB", 0)) is not bool(index)
    data_axis = int(
        bool(operation.attributes.get("transB" if index else "transA", 0)) is bool(index)
    )
    bias = None if bias is None else bias.map(np.atleast_2d)
    matrix = weight if turned else weight.map(np.transpose)
    return Weights(matrix, bias, 1, alpha, beta, 1 - index, data_axis, index)


def _matmul(
    operation: Operation, weight: Numbers, bias: Numbers | None, index: int
) -> Weights | None:
    """Return the weights of a product, the batch axes of which stand behind outputs and inputs."""
    data, result = operation.operand(index), operation.outputs[0]
    if (
        len(weight.extents) < 2
        or data is None
        or not data.rank
        or not result.rank
        or (index and data.rank < 2)
    ):
        return None
    places = (-2, -1) if index else (-1, -2)
    turned = weight.map(lambda array: np.moveaxis(array, places, (0, 1)))
    return Weights(
        turned, None, axis=result.rank - 1 - index, data_axis=data.rank - 1 - index, data=index
    )


_READERS = {"Conv": _conv, "ConvTranspose": _conv, "Gemm": _gemm, "MatMul": _matmul}


FACTORS = frozenset(("alpha", "beta", "transA", "transB"))
"""Attributes of a layer that are part of its weights."""

LAST_AXIS = frozenset(("LayerNormalization", "RMSNormalization"))
"""Normalizations whose parameters belong to the last axes."""

NORMALIZATIONS = LAST_AXIS | {"InstanceNormalization", "GroupNormalization"}

DENSE = {"Gemm", "MatMul"}
"""Two operators of one layer."""


def check_layer(
    source: Operation,
    result: Operation,
    data: Line,
    claim: Line,
    padding: Sequence[int] | None = None,
    fixed: Line | None = None,
) -> Line:
    """Return the line of the result layer's output over the source layer's. `data` gives v over u.

    With `padding` the source's layer reads v behind a Pad with those pads of zeros, and the
    result's pads itself: then `data` is the line of v over the padded u.

    Where the result layer adds no constant, the shift of the line is the one that follows. Where u
    is constant, as `fixed` says, any weights hold that make the same sum with the bias. Raises
    Unproved.
    """
    constants = [*_constants(source), *_constants(result)]
    if None in constants:
        return _checked_layer(source, result, data, claim, padding, fixed)
    lines = [None if each is None else each.key for each in (data, claim, fixed)]
    key = (source, None if padding is None else tuple(padding), *constants, *lines)
    if key not in result.checked:  # the search and the proof ask the same
        result.checked[key] = _checked_layer(source, result, data, claim, padding, fixed)
    found: Line = result.checked[key]
    return found


def _constants(layer: Operation) -> list[Stored | None]:
    """Return the constants of a layer, one None if they do not say all of its numbers."""
    given = [each for each in layer.inputs if each is not None]
    others = [each for each in given if each.stored is None]
    constants = [each.stored for each in given if each.stored is not None]
    is_plain = len(others) == 1 and numbers_of(others[0]) is None
    return [*constants] if is_plain and not any(each.is_unrounded for each in constants) else [None]


def _checked_layer(
    source: Operation,
    result: Operation,
    data: Line,
    claim: Line,
    padding: Sequence[int] | None,
    fixed: Line | None,
) -> Line:
    given, made = _alike(source, result, padding)
    _check_addends(given, made, data, claim)
    plain = np.zeros((1,) * claim.rank)
    scale = _vector(Line(claim.scale, plain, plain), made.axis, made.weight.extents[0])[0]
    wide = along(scale, made.axis, claim.rank)
    bias = Line.of(
        wide, plain if given.bias is None else wide * given.bias_factor * given.bias.exact
    )
    is_scaled = fixed is None and not data.shift.any() and bool((data.scale == 1.0).all())
    if not is_scaled or not made.weight.is_scaled(given.weight, given.factor * scale / made.factor):
        bias = _check_weights((source, result), (given, made), data, bias, claim.shift, fixed)
    if made.bias is None or not made.bias_factor:
        return Line(claim.scale, -bias.shift, bias.reach)
    made.bias.check_sum(
        (bias.shift + claim.shift) / made.bias_factor,
        (bias.reach + claim.reach) / abs(made.bias_factor),
        given.bias,
        wide * given.bias_factor / made.bias_factor,
    )
    return claim


def _alike(
    source: Operation, result: Operation, padding: Sequence[int] | None
) -> tuple[Weights, Weights]:
    """Return the constants of two layers that differ in their numbers only. Raises Unproved."""
    given, made = weights_of(source), weights_of(result)
    if (
        given is None
        or made is None
        or (source.kind != result.kind and {source.kind, result.kind} != DENSE)
    ):
        raise Unproved("the layers are not alike, or a weight is not constant")
    if padding is not None and source.kind != "Conv":
        raise Unproved("only a Conv takes a Pad")
    if given.data != made.data or (given.axis, given.data_axis) != (made.axis, made.data_axis):
        raise Unproved("the layers read their data along different axes")
    if _geometry(source, padding) != _geometry(
        result, None if padding is None else [0] * len(padding)
    ):
        raise Unproved("the layers have different attributes")
    _check_factors((given.factor, made.factor), (given.bias_factor, made.bias_factor))
    if given.weight.extents != made.weight.extents:
        raise Unproved("the weights have different extents")
    return given, made


def _check_addends(given: Weights, made: Weights, data: Line, claim: Line) -> None:
    """Refuse biases that are not constant, and would have to change."""
    if given.addend is None and made.addend is None:
        return
    addends = [
        None if each.addend is None else (each.addend.term, each.bias_factor)
        for each in (given, made)
    ]
    is_entered = given.addend is not None and given.addend.term >= 0
    if not is_entered or addends[0] != addends[1] or not claim.is_identity or data.has_shift:
        raise Unproved("a bias is not constant, and would have to change")


def _check_weights(
    layers: tuple[Operation, Operation],
    weights: tuple[Weights, Weights],
    data: Line,
    bias: Line,
    shift: Array,
    fixed: Line | None,
) -> Line:
    """Return the line of a layer with what its weights make of the shifts of its data.

    `bias` scales the results, and has the bias of the source. `shift` is added to it. Raises
    Unproved for other weights.
    """
    (source, result), (given, made) = layers, weights
    rank, scale = bias.rank, bias.scale.reshape(-1, *[1] * (len(made.weight.extents) - 1))
    inputs = made.weight.extents[1] * made.groups
    factor, offset, offset_reach = _vector(data, given.data_axis, inputs)
    matrix, along_inputs = given.matrix, tuple(range(1, scale.ndim))
    if not _are_finite(matrix):
        raise Unproved("the weights are not finite")
    weight = _by_input(matrix, factor, given.groups)
    weight = weight if given.factor == 1.0 else given.factor * weight
    exact = scaled(weight, scale / made.factor)
    total, magnitude = bias.shift, bias.reach
    if data.has_shift:
        if source.kind == "MatMul" and weight.ndim > 2:
            raise Unproved("a shift of the data is another one for each matrix of the batch")
        terms = scale * given.factor * _by_input(matrix, offset, given.groups)
        if terms.any() and _has_padding(source):
            raise Unproved("the padding of the layer has no shift")
        total = total + along(terms.sum(along_inputs), made.axis, rank)
        terms = scale * given.factor * _by_input(matrix, offset_reach, given.groups)
        magnitude = magnitude + along(np.abs(terms).sum(along_inputs), made.axis, rank)
    if fixed is not None:
        free, terms, sizes = _constant_inputs(result, made, fixed, given.data_axis)
        greatest = np.abs(given.factor * matrix).max(initial=0.0)
        most = greatest * np.abs(scale).max() / abs(made.factor)
        limit = GROWTH * max(most, np.abs(exact).max(initial=0.0))
        is_far = (np.abs(made.matrix[free]) > limit).any()
        if is_far or (sizes > GROWTH * max(1.0, magnitude.max(initial=0.0))).any():
            raise Unproved(
                "a weight of constant data is far beyond those of the"
                " source, and would drown the others"
            )
        exact = np.where(free, made.matrix, exact)
        total = total - along(terms, made.axis, rank)
        magnitude = magnitude + along(np.abs(terms), made.axis, rank)
    if made.weight.stored.dtype.name in FORMATS:
        _check_seen(weight, exact, total + shift, data, made)
    made.weight.check("weight", exact)
    return Line(bias.scale, total, magnitude)


def _constant_inputs(
    result: Operation, made: Weights, fixed: Line, axis: int
) -> tuple[Array, Array, Array]:
    """Return which weights read constant data, and the sums of their products and of magnitudes.

    Raises Unproved.
    """
    inputs = made.matrix.shape[1] * made.groups
    alive, value, _ = _vector(fixed, axis, inputs)
    free = _by_input(np.ones_like(made.matrix), np.where(alive == 0, 1.0, 0.0), made.groups) > 0
    terms = made.factor * _by_input(made.matrix, np.where(alive == 0, value, 0.0), made.groups)
    if terms.any() and (_has_padding(result) or (result.kind == "MatMul" and terms.ndim > 2)):
        raise Unproved(
            "the padding of the layer is no such constant, or a matrix of the batch has another sum"
        )
    others = tuple(range(1, terms.ndim))
    return free, terms.sum(others), np.abs(terms).sum(others)


def _check_seen(before: Array, after: Array, bias: Array, data: Line, made: Weights) -> None:
    """Refuse weights of a channel that a scale leaves without a normal number.

    That is no loss where data of 2^64 do not reach half a unit of the last place of the bias beside
    them.
    """
    dtype = made.weight.stored.dtype
    digits, _ = FORMATS[dtype.name]
    whole = [len(after) if axis == made.axis else extent for axis, extent in enumerate(bias.shape)]
    magnitudes = np.moveaxis(np.broadcast_to(np.abs(bias), whole), made.axis, 0)
    beside = magnitudes.reshape(len(after), -1).min(axis=1)
    views = [(before, after, beside)]
    if data.has_scale:
        extents = (made.groups, len(after) // made.groups, *after.shape[1:])
        old, new = (
            np.moveaxis(each.reshape(extents), 2, 1).reshape(-1, *extents[1:2], *extents[3:])
            for each in (before, after)
        )
        views.append((old, new, np.zeros(len(old))))
    for old, new, beside in views:
        left = _greatest(new)
        lost = vanishes(left, dtype)
        lost = lost & ~vanishes(_greatest(old), dtype) if lost.any() else lost
        if (lost & (left * new[0].size * 2.0**64 >= beside * 2.0 ** -(digits + 1))).any():
            raise Unproved("the weights of a channel are below the normal numbers of their type")


def _greatest(array: Array) -> Array:
    """Return the greatest magnitude for each position of the first axis."""
    axes = tuple(range(1, array.ndim))
    return np.asarray(np.maximum(array.max(axis=axes), -array.min(axis=axes)))


def _are_finite(array: Array) -> bool:
    """Return whether all elements are finite, as they are if their sum is."""
    return bool(np.isfinite(array.sum()) or np.isfinite(array).all())


def _vector(line: Line, axis: int, count: int) -> tuple[Array, Array, Array]:
    if line.rank <= axis:
        raise Unproved("the channel axis does not exist")
    found = line.vector(axis)
    if found is None or found[0].size not in (1, count):
        raise Unproved("the scales vary along an axis other than the channels of the layer")
    if found[0].size == count:
        return found
    scale, shift, reach = (np.broadcast_to(each, (count,)) for each in found)
    return scale, shift, reach


def _by_input(matrix: Array, numbers: Array, groups: int) -> Array:
    """Return the weights with each input channel multiplied by its number."""
    if (numbers == 1.0).all():
        return matrix
    outputs, inputs, *rest = matrix.shape
    grouped = matrix.reshape(groups, outputs // groups, inputs, *rest)
    return scaled(grouped, numbers.reshape(groups, 1, inputs, *[1] * len(rest))).reshape(
        matrix.shape
    )


def _check_factors(*pairs: Sequence[float]) -> None:
    """Prove that each second number is the first or 1: others move digits to a factor."""
    if any(second not in (first, 1.0) for first, second in pairs):
        raise Unproved("alpha or beta is neither that of the source nor 1")


def _geometry(operation: Operation, padding: Sequence[int] | None) -> dict[str, object]:
    """Return the attributes of a layer, with `padding` added to its pads."""
    made = {k: v for k, v in operation.attributes.items() if k not in FACTORS}
    if padding is None:
        return made
    if made.pop("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        raise Unproved("the pads of the layer are not stated")
    own = made.get("pads", (0,) * len(padding))
    if len(own) != len(padding):
        raise Unproved("the pads have another rank")
    return {**made, "pads": tuple(a + b for a, b in zip(own, padding, strict=True))}


def _has_padding(operation: Operation) -> bool:
    """Return whether windows may reach beyond the data, or results have fewer elements."""
    if operation.kind == "ConvTranspose":
        weight, plain = operation.operand(1), {"strides": {1}, "pads": {0}, "output_padding": {0}}
        known = weight is not None and weight.extents is not None and set(weight.extents[2:]) == {1}
        stated = any(
            {*operation.attributes.get(name, ())} - numbers for name, numbers in plain.items()
        )
        return (
            not known or stated or not {"auto_pad", "output_shape"}.isdisjoint(operation.attributes)
        )
    if operation.attributes.get("auto_pad", b"NOTSET") in (b"NOTSET", b"VALID"):
        return any(operation.attributes.get("pads", ()))
    weight, data = operation.operand(1), operation.operand(0)
    window = None if weight is None else static(weight.extents)
    if window is None or set(window[2:]) == {1}:
        # A window of one element covers n // s or less positions of n without padding.
        return window is None
    extents = None if data is None or data.extents is None else static(data.extents[2:])
    strides, dilations = (
        operation.attributes.get(each, (1,) * len(window[2:])) for each in ("strides", "dilations")
    )
    if extents is None:
        return True
    each = zip(extents, window[2:], strides, dilations, strict=True)
    return any((-(-extent // s) - 1) * s + (k - 1) * d + 1 > extent for extent, k, s, d in each)


def check_scaled_parameters(
    source: Operation, result: Operation, claim: Line, number: float
) -> None:
    """Prove that a normalization with other parameters computes `claim` of the source's.

    The data of the source are `number` times the result's, but for a shift that does not count:
    norm(s x; epsilon) = sign(s) norm(x; epsilon / s^2). Raises Unproved.
    """
    if source.kind not in NORMALIZATIONS:
        raise Unproved(f"{source.kind} is no layer")
    _check_epsilon(source, result, number)
    found = [parameters(operation, claim) for operation in (source, result)]
    gamma, beta = (each.astype(np.float64) for each in found[0])
    gamma = np.copysign(1.0, number) * gamma
    scale, shift, reach = claim.scale, claim.shift, claim.reach
    exact = scaled(gamma, scale), beta * scale + shift
    magnitude = np.abs(gamma * scale), np.abs(beta * scale) + reach
    if (vanishes(exact[0], found[1][0].dtype) & ~vanishes(gamma, found[1][0].dtype)).any():
        raise Unproved("a scale is below the normal numbers of its type")
    for stored, each, bound in zip(found[1], exact, magnitude, strict=True):
        if not is_rounding(stored, each, np.broadcast_to(bound, each.shape)):
            raise Unproved(
                "a parameter is not the rounded number that the scale and shift make of the"
                " source's"
            )


def _check_epsilon(source: Operation, result: Operation, number: float) -> None:
    """Prove that the epsilons differ by the square of a number, and no other attribute does.

    Raises Unproved.
    """
    own = [dict(each.attributes) for each in (source, result)]
    given, made = (np.array(each.pop("epsilon", EPSILON)) for each in own)
    exact = given / number**2
    dtype = np.float64 if source.outputs[0].kind == TensorProto.DOUBLE else np.float32
    if own[0] != own[1] or (abs(number) == 1.0 and given != made):
        raise Unproved("the layers have different attributes")
    if vanishes(exact, np.dtype(np.float32)) or not is_rounding(made.astype(dtype), exact, exact):
        raise Unproved("epsilon is not the rounded quotient of the source's")


def parameters(operation: Operation, claim: Line) -> list[Array]:
    """Return the constant scale and bias of a normalization, with the axes of its data.

    Raises Unproved.
    """
    rank = claim.rank
    gamma, beta = operation.constant(1), operation.constant(2)
    if operation.operand(2) is None and gamma is not None:
        beta = np.zeros_like(gamma)
    if gamma is None or beta is None or gamma.shape != beta.shape or gamma.ndim < 1:
        raise Unproved("scale and bias are no constants of the same extents")
    if operation.kind in LAST_AXIS:
        return [each.reshape((1,) * (rank - each.ndim) + each.shape) for each in (gamma, beta)]
    # Before opset 21 there is one number for each group.
    if operation.kind == "GroupNormalization" and operation.version < 21:
        count = max(claim.scale.shape[1], claim.shift.shape[1], gamma.size)
        gamma, beta = (np.repeat(each, count // gamma.size) for each in (gamma, beta))
    return [along(each, 1, rank) for each in (gamma, beta)]


def check_dequantized(source: Operation, result: Operation, claim: Line) -> None:
    """Prove (q - z) * (c * scale) = c * ((q - z) * scale) for a DequantizeLinear.

    The largest difference of integers times a scale must be finite, as it is in the source.
    """
    given, made = numbers_of(source.operand(1)), numbers_of(result.operand(1))
    data = source.operand(0)
    if source.attributes != result.attributes or {"output_dtype", "block_size"} & set(
        source.attributes
    ):
        raise Unproved("the attributes differ, or are not looked at")
    if (
        given is None
        or made is None
        or data is None
        or claim.has_shift
        or not (claim.scale > 0).all()
    ):
        raise Unproved("the scale is not constant, or the affine shifts or turns the data")
    axis, count = int(source.attributes.get("axis", 1)), given.exact.size
    if count > 1:
        factor = _vector(claim, axis + claim.rank if axis < 0 else axis, count)[0]
    else:
        factor = claim.scale
    exact = scaled(given.exact, factor.reshape(-1 if count > 1 else made.exact.shape))
    if vanishes(exact, made.stored.dtype).any():
        raise Unproved("a scale is below the normal numbers of its type")
    if (
        given.exact.shape != made.exact.shape
        or factor.size not in (1, count)
        or made.exact.ndim > 1
    ):
        raise Unproved("the scales have other extents than the factors")
    made.check("scale", exact, np.abs(exact))
    largest = (made.exact * 2.0 ** (33 if data.kind == TensorProto.INT32 else 17)).astype(
        made.stored.dtype
    )
    if not np.isfinite(largest.astype(np.float64)).all():
        raise Unproved("the result may overflow")


SLOPES_OF = frozenset(("HardSigmoid",))
"""Operators f(alpha * x + beta), which take an affine of their data into both."""

SLOPES = ("alpha", "beta")
HARD_SIGMOID = (float(np.float32(0.2)), 0.5)


def check_slopes(source: Operation, result: Operation, line: Line | None) -> None:
    """Prove f(alpha * (s * u + t) + beta) = f(alpha' * u + beta') for one scale s and shift t.

    Raises Unproved.
    """
    alpha, beta = (
        float(source.attributes.get(*each)) for each in zip(SLOPES, HARD_SIGMOID, strict=True)
    )
    # The attributes are rounded to the type in which the operator computes.
    is_double = source.outputs[0].kind == TensorProto.DOUBLE
    dtype = np.dtype(np.float64 if is_double else np.float32)
    stated = [result.attributes.get(*each) for each in zip(SLOPES, HARD_SIGMOID, strict=True)]
    made = [np.array([each], dtype) for each in stated]
    if line is None or line.scale.size != 1 or line.shift.size != 1:
        raise Unproved("the scale or shift is no one number, or zero")
    scale, shift = line.scale.reshape(1), line.shift.reshape(1)
    is_normal = not vanishes(np.array(alpha), dtype)
    if is_normal and vanishes(alpha * scale, dtype).any():
        raise Unproved("alpha is below the normal numbers of its type")
    if not is_rounding(made[0], alpha * scale, np.abs(alpha * scale)):
        raise Unproved("alpha is not the rounded product")
    if not is_rounding(
        made[1], alpha * shift + beta, np.abs(alpha) * line.reach.reshape(1) + abs(beta)
    ):
        raise Unproved("beta is not the rounded sum")


def check_bias(source: Operation, result: Operation, claim: Line) -> None:
    """Prove that a Gemm with the operands of the source's adds what `claim` adds.

    Raises Unproved.
    """
    attributes = [
        {k: v for k, v in each.attributes.items() if k != "beta"} for each in (source, result)
    ]
    if attributes[0] != attributes[1] or source.kind != result.kind or claim.has_scale:
        raise Unproved("the layers have different attributes or scales")
    given, made = source.operand(2), result.operand(2)
    if made is None or made.stored is None or (given is not None and given.stored is None):
        raise Unproved("a bias is not constant")
    betas = [float(each.attributes.get("beta", 1.0)) for each in (source, result)]
    if given is None or given.stored is None:
        old = np.zeros((1, 1))
    else:
        old = betas[0] * given.stored.exact
    _check_factors(betas)
    if not betas[1] or old.ndim > 2 or made.stored.array.ndim > 2:
        raise Unproved("the bias has no effect, or more axes than the result")
    exact = np.atleast_2d((old + claim.shift) / betas[1])
    reach = np.atleast_2d((np.abs(old) + claim.reach) / abs(betas[1]))
    stored = np.atleast_2d(made.stored.array)
    exact, reach, stored = np.broadcast_arrays(exact, reach, stored)
    if not is_rounding(stored, exact, reach):
        raise Unproved("the bias is not the rounded sum of the source's bias and the shifts")


NEAR = 2.0**-7
"""The relative distance at which a scale of constant data is taken for the rounding of another."""


def check_rounded(result: Operation, wanted: Line | None, fixed: Line | None = None) -> None:
    """Prove that an affine's constants are rounded from ones that make it `wanted`.

    The operation is a product or a sum with one constant, or a BatchNormalization. Where the
    operand is constant, as `fixed` says, its own scale is as good as any other. Raises Unproved.
    """
    own = own_line(result)
    if own is None or wanted is None:
        raise Unproved("the operator is no affine with constants, or a scale of the data is zero")
    if fixed is not None and fixed.rank == wanted.rank == own[1].rank:
        # A scale near the wanted one may be that one, rounded.
        is_near = np.abs(own[1].scale - wanted.scale) <= NEAR * np.abs(wanted.scale)
        if (np.abs(own[1].scale) > GROWTH * max(np.abs(wanted.scale).max(initial=0.0), 1.0)).any():
            raise Unproved(
                "a scale of constant data is far beyond those of the"
                " source, and would drown the others"
            )
        wanted = wanted.with_scale(np.where(is_near, wanted.scale, own[1].scale), fixed)
    if result.kind == "BatchNormalization":
        _check_normalization(result, wanted.tidy())
        return
    index = 1 if result.constant(1) is not None else 0
    constant = result.constant(index)
    if constant is None or result.kind not in ("Add", "Sub", "Mul", "Div"):
        raise Unproved(f"{result.kind} is not looked at")
    constant = fitted(result, own[0], constant)
    if constant is None:
        raise Unproved("the constant may make the result larger than the data")
    exact, reach = wanted.scale, np.abs(wanted.scale)
    if result.kind in ("Add", "Sub"):
        sign = -1.0 if index == 0 and result.kind == "Sub" else 1.0
        if not Line.of(exact, 0 * exact).near(Line.of(sign + 0 * exact, 0 * exact)):
            raise Unproved("a sum changes no scale")
        exact = -wanted.shift if index and result.kind == "Sub" else wanted.shift
        reach = wanted.reach
    elif wanted.has_shift:
        raise Unproved("a product has no shift of its own")
    elif result.kind == "Div":
        if index == 0 or not exact.all():
            raise Unproved("a quotient of a constant, or by zero")
        exact = 1.0 / exact
        reach = np.abs(exact)
    exact, reach, stored = np.broadcast_arrays(exact, reach, constant)
    if result.kind in ("Mul", "Div") and vanishes(exact, stored.dtype).any():
        raise Unproved("a factor is below the normal numbers of its type")
    if not is_rounding(stored, exact, reach):
        raise Unproved("the constant is not the rounded number")


def _check_normalization(result: Operation, wanted: Line) -> None:
    gamma, beta, mean, variance = (result.constant(i) for i in (1, 2, 3, 4))
    if gamma is None or beta is None or mean is None or variance is None:
        raise Unproved("the parameters are not constant")
    data = result.inputs[0]
    wide = None if data is None else helper.tensor_dtype_to_np_dtype(data.kind).name
    if wide is None or FORMATS[gamma.dtype.name][0] < FORMATS[wide][0]:
        raise Unproved("the parameters have fewer digits than the data")
    scale, shift, reach = _vector(wanted, 1, gamma.size)
    exact = scaled(
        scale, np.sqrt(variance.astype(np.float64) + result.attributes.get("epsilon", EPSILON))
    )
    if vanishes(exact, gamma.dtype).any():
        raise Unproved("a scale is below the normal numbers of its type")
    if not is_rounding(gamma, exact, np.abs(exact)):
        raise Unproved("the scale is not the rounded product")
    product = mean.astype(np.float64) * scale
    if not is_rounding(beta, shift + product, reach + np.abs(product)):
        raise Unproved("the bias is not the rounded sum")
