"""Extents of an operator's result as expressions of those of its operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .integers import (
    Expression,
    Extent,
    Integers,
    floored,
    is_natural,
    least,
    maximum,
    minimum,
    minus,
    most,
    plus,
    quotient,
    times,
)
from .operators import BROADCASTING, ELEMENTWISE, VARIADIC
from .pools import POOLS, windows
from .program import Array, Datum, Operation, Unproved, static
from .reordering import VIEWS, extents_of, regrouped, viewed, whole

Found = Sequence[Extent | None] | None
"""The extents of a result, None where one is unknown."""

ShapeOf = Callable[[Datum], Sequence[Extent] | None]

MOST_SCALE = 1 << 12
"""The scale of a Resize from which on an extent times it is not believed to be exact."""

KEEPING = frozenset(
    (
        *("BatchNormalization", "GroupNormalization", "InstanceNormalization"),
        *("LayerNormalization", "RMSNormalization", "LpNormalization"),
        *("Softmax", "LogSoftmax", "CumSum", "Identity", "Dropout", "CastLike"),
    )
)
"""Operators whose first result has the extents of their data, beside those of one element each."""


def result_extents(value: Datum, shape_of: ShapeOf, integers: Integers) -> Found:
    """Return the extents of a value that follow from its operator, None if none do."""
    operation = value.producer
    if operation is None or operation.domain or operation.bodies:
        return None
    kind, data = operation.kind, operation.operand(0)
    if value.index and kind != "Split":
        return None
    shape = None if data is None else shape_of(data)
    try:
        if kind in ELEMENTWISE or kind in KEEPING:
            return shape
        if kind == "PRelu":
            slope = None if operation.inputs[1] is None else shape_of(operation.inputs[1])
            return _kept(shape, slope)
        if kind in BROADCASTING:
            since = 8 if kind in VARIADIC else 7
            return _broadcast_all(operation, shape_of) if operation.version >= since else None
        if kind in _OF_OPERANDS:
            return _OF_OPERANDS[kind](operation, shape_of, integers)
        if kind == "Reshape" and operation.version >= 5:
            return _reshaped(operation, shape, integers)
        if shape is None:
            return None
        if kind in VIEWS:
            groups = viewed(operation, whole(shape), lambda: ())
            return None if groups is None else extents_of(groups)
        if kind in POOLS:
            return _pooled(operation, shape, operation.attributes.get("kernel_shape"))
        if kind == "Conv":
            return _convolved(operation, shape, shape_of)
        if kind == "ConvTranspose":
            return _deconvolved(operation, shape, shape_of)
        rule = _OF_DATA.get(kind)
        return None if rule is None else rule(value, operation, list(shape), integers)
    except (Unproved, ValueError, IndexError, TypeError, KeyError):
        return None


def numbers_of(
    integers: Integers, operation: Operation, name: str, index: int
) -> list[Extent] | None:
    """Return the elements of a list of integers that is an attribute, or else an operand."""
    given = operation.attributes.get(name)
    if given is not None:
        return [int(each) for each in given]
    found: Array | None = integers.of(operation.operand(index))
    return None if found is None else list(found.reshape(-1))


def axis_of(operation: Operation, rank: int) -> int:
    """Return the axis of an operation, by default the first. Raises Unproved."""
    axis = int(operation.attributes.get("axis", 0))
    if not -rank <= axis < rank:
        raise Unproved("the axis does not exist")
    return axis % rank


def _kept(shape: Sequence[Extent] | None, slope: Sequence[Extent] | None) -> Found:
    """Return the extents of a PRelu whose slope does not enlarge the data."""
    if shape is None or slope is None or len(slope) > len(shape):
        return None
    pairs = zip(reversed(slope), reversed(shape), strict=False)
    return shape if all(own in (1, extent) for own, extent in pairs) else None


def _broadcast_all(operation: Operation, shape_of: ShapeOf) -> Found:
    shapes = [None if each is None else shape_of(each) for each in operation.inputs]
    if any(each is None for each in shapes):
        return None
    rank = max(len(each or ()) for each in shapes)
    made: list[Extent | None] = [1] * rank
    for shape in shapes:
        wide = [1] * (rank - len(shape or ())) + list(shape or ())
        made = [None if a is None else broadcast(a, b) for a, b in zip(made, wide, strict=True)]
    return made


def broadcast(extent: Extent, target: Extent) -> Extent | None:
    """Return the extent that both are broadcast to, None if it may be either."""
    for one, other in ((extent, target), (target, extent)):
        if one == other or one == 1:
            return other if is_natural(other) else None
        if isinstance(one, int):  # the other one is 1, or it
            return one
        if _is_limited(one, other):  # they are equal, or the other one is 1, and so is this one
            return other
    return None


def _is_limited(number: Extent, extent: Extent) -> bool:
    """Return whether a number is the lesser one of an extent and a constant above 1."""
    gap = minus(extent, number)
    if not isinstance(gap, Expression) or not is_natural(extent):
        return False
    atoms = [gap, *(part for part in gap.parts if isinstance(part, Expression))]
    inner = [each.parts[0] for each in atoms if each.head == "positive"]
    limits = [each for x in inner for each in (minus(extent, x), plus(extent, x))]
    return any(
        isinstance(limit, int) and limit > 1 and minimum(extent, limit) == number
        for limit in limits
    )


def _filled(operation: Operation, _shape_of: ShapeOf, integers: Integers) -> Found:
    numbers = integers.of(operation.operand(0))
    return None if numbers is None or numbers.ndim != 1 else [_natural(each) for each in numbers]


def _natural(number: Extent) -> Extent | None:
    return number if is_natural(number) else None


def _counted(operation: Operation, _shape_of: ShapeOf, integers: Integers) -> Found:
    """Return the extent of a Range of integers."""
    bounds = [integers.of(each) for each in operation.inputs]
    start, limit, delta = (
        None if each is None or each.size != 1 else each.item() for each in bounds
    )
    if start is None or limit is None or not isinstance(delta, int) or not delta:
        return None
    return [_steps(start, limit, delta)]


def _steps(start: Extent, limit: Extent, delta: int) -> Extent:
    """Return how many positions there are from a start up to, and without, a limit."""
    way = minus(limit, start) if delta > 0 else minus(start, limit)
    return maximum(floored(plus(way, abs(delta) - 1), abs(delta)), 0)


def _einsum(operation: Operation, shape_of: ShapeOf, _integers: Integers) -> Found:
    """Return the extents of an Einsum without ellipsis that broadcasts no axis."""
    given, arrow, result = (
        operation.attributes["equation"].decode().replace(" ", "").partition("->")
    )
    terms, found = given.split(","), dict[str, Extent]()
    if not arrow or "." in given or len(terms) != len(operation.inputs):
        return None
    for letters, value in zip(terms, operation.inputs, strict=True):
        shape = None if value is None else shape_of(value)
        if shape is None or len(shape) != len(letters):
            return None
        if any(found.setdefault(*pair) != pair[1] for pair in zip(letters, shape, strict=True)):
            return None
    return [found[letter] for letter in result]


def _multiplied(operation: Operation, shape_of: ShapeOf, _integers: Integers) -> Found:
    """Return the extents of a MatMul of matrices, or of batches of them."""
    shapes = [None if each is None else shape_of(each) for each in operation.inputs]
    known = [list(each) for each in shapes if each is not None]
    if len(known) < len(shapes) or min(map(len, known)) < 2:
        return None
    rank = max(map(len, known))
    first, second = ([*[1] * (rank - len(each)), *each] for each in known)
    batch = [broadcast(*pair) for pair in zip(first[:-2], second[:-2], strict=True)]
    return [*batch, first[-2], second[-1]]


def _joined(operation: Operation, shape_of: ShapeOf, _integers: Integers) -> Found:
    """Return the extents of a Concat."""
    shapes = [None if each is None else shape_of(each) for each in operation.inputs]
    known = [list(each) for each in shapes if each is not None]
    if len(known) < len(shapes) or len({len(each) for each in known}) != 1:
        return None
    axis = axis_of(operation, len(known[0]))
    made: list[Extent | None] = [
        next((each for each in row if isinstance(each, int)), row[0])
        for row in zip(*known, strict=True)
    ]
    made[axis] = plus(*(each[axis] for each in known))
    return made


def _taken(operation: Operation, shape_of: ShapeOf, _integers: Integers) -> Found:
    """Return the extents of a Gather."""
    shapes = [None if each is None else shape_of(each) for each in operation.inputs[:2]]
    if shapes[0] is None or shapes[1] is None:
        return None
    axis = axis_of(operation, len(shapes[0]))
    return [*shapes[0][:axis], *shapes[1], *shapes[0][axis + 1 :]]


def _shape(operation: Operation, shape_of: ShapeOf, _integers: Integers) -> Found:
    """Return the extent of a Shape: how many axes it tells of."""
    data = operation.operand(0)
    shape = None if data is None else shape_of(data)
    if shape is None:
        return None
    start, end = operation.attributes.get("start", 0), operation.attributes.get("end")
    return [len(range(len(shape))[int(start) : None if end is None else int(end)])]


def _reshaped(operation: Operation, shape: Sequence[Extent] | None, integers: Integers) -> Found:
    """Return the extents of a Reshape, whose data may have an unknown rank."""
    numbers, operand = integers.of(operation.operand(1)), operation.operand(1)
    if numbers is None or numbers.ndim != 1:
        length = static(None if operand is None else operand.extents)
        return [None] * length[0] if length else None
    target = list(numbers)
    if not operation.attributes.get("allowzero", 0) and shape is not None:
        target = [
            shape[i] if each == 0 and i < len(shape) else each for i, each in enumerate(target)
        ]
    try:
        if shape is not None:
            return extents_of(regrouped(whole(shape), target))
    except Unproved:
        pass
    return [each if is_natural(each) and each != 0 else None for each in target]


def _expanded(
    _value: Datum, operation: Operation, shape: list[Extent], integers: Integers
) -> Found:
    numbers = integers.of(operation.operand(1))
    if numbers is None or numbers.ndim != 1:
        return None
    target = list(numbers)
    wide = [1] * (len(target) - len(shape)) + shape
    target = [1] * (len(wide) - len(target)) + target
    return [broadcast(*pair) for pair in zip(wide, target, strict=True)]


def _weight(
    operation: Operation, shape: Sequence[Extent], shape_of: ShapeOf
) -> tuple[Extent, Extent, tuple[int, ...]]:
    """Return the extents of the weight of a convolution, those of its kernel as one.

    Raises Unproved.
    """
    operand = operation.operand(1)
    weight = None if operand is None else shape_of(operand)
    if weight is None or len(weight) != len(shape):
        raise Unproved("the extents of the weight are unknown")
    kernel = operation.attributes.get("kernel_shape", tuple(weight[2:]))
    if kernel != tuple(weight[2:]) or not all(isinstance(each, int) for each in kernel):
        raise Unproved("the weight has other extents than the layer states")
    return weight[0], weight[1], kernel


def _convolved(operation: Operation, shape: Sequence[Extent], shape_of: ShapeOf) -> Found:
    """Return the extents of a Conv."""
    channels, _, kernel = _weight(operation, shape, shape_of)
    made = _pooled(operation, shape, kernel, fits=True)
    return None if made is None else [made[0], channels, *made[2:]]


def _deconvolved(operation: Operation, shape: Sequence[Extent], shape_of: ShapeOf) -> Found:
    """Return the extents of a ConvTranspose."""
    given, count = operation.attributes, len(shape) - 2
    _, channels, kernel = _weight(operation, shape, shape_of)
    if given.get("auto_pad", b"NOTSET") != b"NOTSET" or "output_shape" in given:
        return None
    pads, added = given.get("pads", (0,) * 2 * count), given.get("output_padding", (0,) * count)
    strides, dilations = (given.get(name, (1,) * count) for name in ("strides", "dilations"))
    made: list[Extent | None] = [shape[0], times(channels, given.get("group", 1))]
    for axis, extent in enumerate(shape[2:]):
        reach = dilations[axis] * (kernel[axis] - 1) + 1 - strides[axis] + added[axis]
        cut = pads[axis] + pads[axis + count]
        made.append(_natural(plus(times(extent, strides[axis]), reach - cut)))
    return made


def _pooled(
    operation: Operation,
    shape: Sequence[Extent],
    kernel: Sequence[int] | None,
    *,
    fits: bool = False,
) -> Found:
    """Return the extents of a pool with windows of these extents, as runtimes count windows.

    An operator that `fits` refuses data that are smaller than a window.
    """
    given, count = operation.attributes, len(shape) - 2
    if given.get("ceil_mode"):
        return [
            *shape[:2],
            *(windows(operation, axis, extent) for axis, extent in enumerate(shape[2:])),
        ]
    if given.get("auto_pad", b"NOTSET") != b"NOTSET" or kernel is None or len(kernel) != count:
        return None
    pads, strides = given.get("pads", (0,) * 2 * count), given.get("strides", (1,) * count)
    made: list[Extent | None] = list(shape[:2])
    for axis, extent in enumerate(shape[2:]):
        reach = given.get("dilations", (1,) * count)[axis] * (kernel[axis] - 1) + 1
        room = plus(extent, pads[axis] + pads[axis + count] - reach)
        if strides[axis] > 1 and not fits:  # runtimes round the quotient towards 0, not down
            if least(room) < -1:
                made.append(None)
                continue
            room = maximum(room, 0)
        made.append(plus(floored(room, strides[axis]), 1))
    return made


def place_of(number: Extent, extent: Extent, low: int, high: Extent) -> Extent:
    """Return a bound of a Slice as a position within limits; negative ones count from the end.

    Raises Unproved.
    """
    if most(number) < 0:
        return maximum(plus(number, extent), low)
    if not is_natural(number):
        raise Unproved("a bound may count from the end")
    if number == low == 0:
        return 0  # no extent is less, whatever it is computed from
    return minimum(number, high)


def bounds_of(
    operation: Operation, rank: int, integers: Integers
) -> dict[int, tuple[Extent, Extent, int]]:
    """Return start, end and step of a Slice by axis. Raises Unproved."""
    starts, ends = (numbers_of(integers, operation, *each) for each in (("starts", 1), ("ends", 2)))
    axes, steps = operation.integers("axes", 3), operation.integers("steps", 4)
    for index, given in ((3, axes), (4, steps)):
        if given is None and operation.operand(index) is not None:
            raise Unproved("the axes or the steps are not constant")
    if starts is None or ends is None:
        raise Unproved("the bounds are not known")
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(axes) if steps is None else steps
    made = {
        axis % rank: (start, end, step)
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True)
        if -rank <= axis < rank
    }
    if len(made) < len(axes) or 0 in steps:
        raise Unproved("an axis does not exist, or is cut twice, or a step is 0")
    return made


def _sliced(_value: Datum, operation: Operation, shape: list[Extent], integers: Integers) -> Found:
    made: list[Extent | None] = list(shape)
    for axis, (start, end, step) in bounds_of(operation, len(shape), integers).items():
        extent = shape[axis]
        low, high = (0, extent) if step > 0 else (-1, minus(extent, 1))
        try:
            first, last = (place_of(each, extent, low, high) for each in (start, end))
            made[axis] = _steps(first, last, step)
        except Unproved:
            made[axis] = None
    return made


def _padded(_value: Datum, operation: Operation, shape: list[Extent], integers: Integers) -> Found:
    name = "pads" if operation.version > 1 else "paddings"
    pads, axes = numbers_of(integers, operation, name, 1), operation.integers("axes", 3)
    if pads is None or (axes is None and operation.operand(3) is not None):
        return None
    axes = list(range(len(shape))) if axes is None else axes
    made: list[Extent | None] = list(shape)
    for i, axis in enumerate(axes):
        made[axis] = _natural(plus(shape[axis], pads[i], pads[i + len(axes)]))
    return made if len(pads) == 2 * len(axes) else None


def _tiled(_value: Datum, operation: Operation, shape: list[Extent], integers: Integers) -> Found:
    repeats = integers.of(operation.operand(1))
    if repeats is None or repeats.shape != (len(shape),):
        return None
    return [_natural(times(*each)) for each in zip(shape, repeats, strict=True)]


def _split(value: Datum, operation: Operation, shape: list[Extent], integers: Integers) -> Found:
    axis, count = axis_of(operation, len(shape)), len(operation.outputs)
    sizes = numbers_of(integers, operation, "split", 1)
    if sizes is None and operation.operand(1) is None:
        size = quotient(shape[axis], count)
        sizes = None if size is None else [size] * count
    if sizes is None or len(sizes) != count:
        return None
    made: list[Extent | None] = list(shape)
    made[axis] = _natural(sizes[value.index])
    return made


def _resized(_value: Datum, operation: Operation, shape: list[Extent], integers: Integers) -> Found:
    """Return the sizes that a Resize is given, those of whole scales, or else the rank."""
    numbers = integers.of(operation.operand(3))
    if not operation.attributes.keys().isdisjoint(("axes", "keep_aspect_ratio_policy")):
        return [None] * len(shape)
    if numbers is not None and numbers.shape == (len(shape),):
        return [each if is_natural(each) and each != 0 else None for each in numbers]
    scales = operation.constant(2) if operation.version >= 11 else None
    if operation.operand(3) is not None or scales is None or scales.shape != (len(shape),):
        return [None] * len(shape)
    pairs = zip(shape, scales.tolist(), strict=True)
    return [
        times(extent, int(scale)) if scale in range(1, MOST_SCALE) else None
        for extent, scale in pairs
    ]


_OF_OPERANDS: dict[str, Callable[[Operation, ShapeOf, Integers], Found]] = {
    "ConstantOfShape": _filled,
    "Range": _counted,
    "Einsum": _einsum,
    "MatMul": _multiplied,
    "Concat": _joined,
    "Gather": _taken,
    "Shape": _shape,
}
"""The extents of results by their operands, by operator."""

_OF_DATA: dict[str, Callable[[Datum, Operation, list[Extent], Integers], Found]] = {
    "Expand": _expanded,
    "Slice": _sliced,
    "Pad": _padded,
    "Tile": _tiled,
    "Split": _split,
    "Resize": _resized,
    "Upsample": _resized,
}
"""The extents of results by those of the data, by operator."""


def name_of(extent: Extent | None, stated: str) -> int | str | None:
    """Return an extent as onnx writes it, None if it has no name."""
    if not isinstance(extent, Expression):
        return None if extent is None else int(extent)
    if extent.head == "extent":
        return f"{stated}{extent.parts[0]} {extent.parts[1]}"
    return str(extent.parts[0]) if extent.head == "symbol" else None
