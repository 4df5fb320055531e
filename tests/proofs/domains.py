"""The variables of the lines.

Which shapes, axes and attributes are tried, and whose elements are free.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .operators import EPSILON, Op
from .tensors import Tensor


@dataclass(frozen=True)
class Free:
    """A tensor whose elements are free: an input of the model, or a constant in it."""

    shape: tuple[int, ...]
    constant: bool = False
    truth: bool = False
    varied: bool = False
    """Whether the numbers that are drawn differ, where equal ones would be another case."""


def data(*shape: int) -> Free:
    return Free(shape)


def const(*shape: int) -> Free:
    return Free(shape, constant=True)


Instance = Mapping[str, Any]


@dataclass(frozen=True)
class Domain:
    """The instances of a rule. A line is proved for those that have all its variables.

    `fields` are the kinds of elements: reals, floats, integers, labels. `around` is the place of a
    layer that takes the affine in the models of the line: `before` or `after` the left side, or
    `none` where a layer is a part of it. There is one for each identity where they differ.
    """

    instances: tuple[Instance, ...]
    fields: tuple[str, ...] = ("reals",)
    around: str | tuple[str, ...] = "none"
    size: str = ""
    """The ranks or extents for which it is proved, empty where they do not matter."""

    def place(self, number: int) -> str:
        """Return the place of the layer in the models of one identity."""
        return self.around if isinstance(self.around, str) else self.around[number]


def every(**choices: Iterable[Any]) -> tuple[Instance, ...]:
    """Return all combinations of the choices."""
    names = list(choices)
    return tuple(
        dict(zip(names, found, strict=True)) for found in itertools.product(*choices.values())
    )


def named(*instances: Instance, **shared: Any) -> tuple[Instance, ...]:
    return tuple({**shared, **each} for each in instances)


def frees(instance: Instance) -> Iterator[tuple[str, Free]]:
    """Yield the free tensors of an instance by name.

    Constants of an operator have the name `op.0` and so on.
    """
    for name, value in instance.items():
        if isinstance(value, Free):
            yield name, value
        elif isinstance(value, Op):
            yield from (
                (f"{name}.{i}", each)
                for i, each in enumerate(value.constants)
                if isinstance(each, Free)
            )


def realized(instance: Instance, make: Callable[[str, Free], Any]) -> dict[str, Any]:
    """Return the instance with `make` of every free tensor in its place."""
    found: dict[str, Any] = {}
    for name, value in instance.items():
        if isinstance(value, Free):
            found[name] = make(name, value)
        elif isinstance(value, Op):
            constants = [
                make(f"{name}.{i}", c) if isinstance(c, Free) else c
                for i, c in enumerate(value.constants)
            ]
            found[name] = Op(value.name, *constants, **value.attrs)
        else:
            found[name] = value
    return found


# what lines may name besides operators


def along_of(s: Tensor, w: Tensor, group: int) -> Tensor:
    """Return the factor of a convolution's weight for numbers by its second axis."""
    rows, columns = w.shape[0] // group, w.shape[1]
    parts = [
        s.array[row // rows * columns + column]
        for row in range(w.shape[0])
        for column in range(columns)
    ]
    found = np.empty((w.shape[0], columns), object)
    found.ravel()[:] = parts
    return s.like(found.reshape(w.shape[0], columns, *[1] * (w.rank - 2)))


def response(t: Tensor, w: Tensor, group: int) -> Tensor:
    """Return the result of a convolution without padding for data that are t everywhere."""
    axes = list(range(1, w.rank))
    return OPS["sum"](along_of(t, w, group) * w, axes, 0)  # type: ignore[no-any-return]


def response_transposed(t: Tensor, w: Tensor, group: int) -> Tensor:
    """Return the result of a ConvTranspose with a kernel of one element for data of t."""
    products = OPS["along"](t, 0, 3) * w
    rows = w.shape[0] // group
    parts = [OPS["sum"](products[g * rows : (g + 1) * rows], [0, 2], 0).array for g in range(group)]
    return t.like(np.concatenate(parts))


def wider(w: Tensor, pads: Sequence[int], wide: Sequence[int]) -> Tensor:
    """Return a kernel along one axis with zeros, which reads the same with wider pads."""
    edges = [(0, 0), (0, 0), tuple(b - a for a, b in zip(pads, wide, strict=True))]
    return w.like(np.pad(w.array, edges, constant_values=w.field.number(0)))


def unit(w: Tensor, pads: Sequence[int]) -> Tensor:
    """Return the kernel of the data itself, with the extents of w."""
    found = np.full(w.shape, w.field.number(0), object)
    found[range(w.shape[0]), range(w.shape[0]), pads[0]] = w.field.number(1)
    return w.like(found)


def product(last: Tensor, first: Tensor) -> Tensor:
    """Return the weight of two convolutions in a row, of which one has a kernel of one element."""
    rows, columns = last.shape[0], first.shape[1]
    left = last.like(last.array.reshape(rows, -1, 1, last.shape[2]))
    right = first.like(first.array.reshape(1, -1, columns, first.shape[2]))
    return OPS["sum"](left * right, [1], 0)  # type: ignore[no-any-return]


def filled(x: Tensor, t: Tensor, axis: int) -> Tensor:
    """Return data of the shape of x that are t along an axis."""
    return t.like(np.broadcast_to(OPS["along"](t, axis, x.rank).array, x.shape))


def with_ones(x: Tensor) -> Tensor:
    """Return data with one more channel, all of which is 1."""
    edges = [(0, 0), (0, 1), *[(0, 0)] * (x.rank - 2)]
    return x.like(np.pad(x.array, edges, constant_values=x.field.number(1)))


def with_response(v: Tensor, t: Tensor, w: Tensor) -> Tensor:
    """Return the weight v with the weights of one more channel: the responses of w to data t."""
    taps = OPS["sum"](along_of(t, w, 1) * w, [1], 1)
    return v.like(np.concatenate([v.array, taps.array], axis=1))


def repeat(v: Tensor, n: int) -> Tensor:
    return v.like(np.repeat(v.array, n))


def tiles(v: Tensor, n: int) -> Tensor:
    return v.like(np.tile(v.array, n))


def one_ratio(t: Tensor, s: Tensor) -> Any:
    """Return whether t / s is the same for all channels, without dividing."""
    return t * s[:1] == t[:1] * s


def joined(v: Tensor, neutral: float, y: Tensor) -> Tensor:
    """Return the numbers of channels, and neutral ones for those of y."""
    return v.like(np.concatenate([v.array, np.full(y.shape[1], v.field.number(neutral), object)]))


def one_number(v: Tensor) -> Any:
    """Return whether all channels have the same number."""
    return v == v[[0] * len(v.array)]


def spatial(pads: tuple[int, ...]) -> list[int]:
    """Return the pads of all axes for those of the spatial ones."""
    k = len(pads) // 2
    return [0, 0, *pads[:k], 0, 0, *pads[k:]]


def block(b: int, c: int, mode: str) -> list[int]:
    from irc.ir.ops.channel_map import block_channels

    return block_channels(b * b, c, by_block=mode == "DCR").tolist()  # type: ignore[no-any-return]


def first(v: Tensor, b: int, c: int, mode: str) -> Tensor:
    """Return the number of the first part of each channel of a DepthToSpace."""
    return v[[block(b, c, mode).index(channel) for channel in range(c)]]


def averages_data_only(op: Op) -> bool:
    """Return what the code's predicate says of the operator."""
    from irc.ir.ops.pooling import averages_data_only as of_node

    from .models import node_of

    return of_node(node_of(op, (1, 2, 3)))


def _operators() -> dict[str, Any]:
    from .operators import OPERATORS

    return OPERATORS


OPS = _operators()

FUNCTIONS: dict[str, Any] = {
    **OPS,
    **{
        each.__name__: each
        for each in (
            along_of,
            response,
            response_transposed,
            wider,
            unit,
            product,
            filled,
            with_ones,
            with_response,
            repeat,
            tiles,
            one_ratio,
            one_number,
            joined,
            spatial,
            block,
            first,
            averages_data_only,
        )
    },
    "rank": lambda x: x.rank,
    "len": len,
    "list": list,
    "range": range,
    "sorted": sorted,
    "unpadded": lambda pads: not any(pads),
    "plain": lambda w, strides, pads: (
        w.shape[2:] == (1,) and tuple(strides) == (1,) and not any(pads)
    ),
    "without": lambda pads: (0,) * len(pads),
}
"""Everything that a line may name but its variables."""


def _elementwise(**more: Any) -> Instance:
    return {"x": data(), "s": const(), "t": const(), **more}


_XY = _elementwise(y=data())
_XC = _elementwise(y=const())
_CHANNELS = {"s": const(2), "t": const(2)}


def _perms(rank: int) -> list[tuple[int, ...]]:
    return list(itertools.permutations(range(rank)))


def _moved() -> dict[str, Domain]:
    """Return the domains of rules that move elements."""
    shapes = [(2, 3), (2, 1, 3), (1, 2, 2, 3)]
    transposed = tuple(
        {
            "x": data(*shape),
            "p": p,
            "k": k,
            "r": len(shape),
            "s": const(shape[p[k]]),
            "t": const(shape[p[k]]),
        }
        for shape in shapes
        for p in _perms(len(shape))
        for k in range(len(shape))
    )
    sliced = tuple(
        {
            "x": data(1, 3, 2),
            "b": b,
            "e": e,
            "a": 1,
            "d": d,
            "i": i,
            "r": 3,
            "s": const(3),
            "t": const(3),
        }
        for b, e, d in itertools.product((0, 1, -1, 2), (1, 2, 3, -1, -9), (1, 2, -1))
        if (i := np.arange(3)[slice(b, None if d < 0 and e == -9 else e, d)].tolist())
    )
    taken = every(
        x=[data(1, 3, 2)], i=[[0], [2, 0], [1, 1, 0, 2]], a=[1], r=[3], s=[const(3)], t=[const(3)]
    )
    split = tuple(
        {
            "x": data(1, 3, 2),
            "n": n,
            "a": 1,
            "k": k,
            "i": np.split(np.arange(3), np.cumsum(n)[:-1])[k].tolist(),
            "r": 3,
            "s": const(3),
            "t": const(3),
        }
        for n in ([1, 2], [2, 1], [1, 1, 1], [3])
        for k in range(len(n))
    )
    tiled = tuple(
        {
            "x": data(1, 2, 2),
            "n": n,
            "c": 2,
            "copies": n[1],
            "r": 3,
            "s": const(2 * n[1]),
            "t": const(2 * n[1]),
        }
        for n in ([1, 2, 1], [2, 3, 1], [1, 2, 2])
    )
    depth = every(x=[data(1, 4, 2, 1), data(1, 8, 1, 2)], b=[2], mode=["DCR", "CRD"], r=[4])
    depth = tuple(
        {
            **each,
            "c": each["x"].shape[1] // 4,
            "s": const(each["x"].shape[1] // 4),
            "t": const(each["x"].shape[1] // 4),
            "u": const(each["x"].shape[1]),
            "v": const(each["x"].shape[1]),
        }
        for each in depth
    )
    space = tuple(
        {
            "x": data(*shape),
            "b": 2,
            "r": 4,
            "c": shape[1],
            "s": const(4 * shape[1]),
            "t": const(4 * shape[1]),
        }
        for shape in ((1, 1, 2, 2), (1, 2, 2, 4))
    )
    padded = tuple(
        {"x": data(1, 2, 2), "p": p, "v": const(), "r": 3, "n": p[1] or p[4], **_CHANNELS}
        for p in ([0, 0, 1, 0, 0, 0], [0, 0, 2, 0, 0, 1], [1, 0, 0, 0, 0, -1])
    )
    reflected = every(
        x=[data(1, 2, 3)], p=[[0, 0, 1, 0, 0, 2]], m=["reflect", "edge"], r=[3], **_each(_CHANNELS)
    )
    resized = every(
        x=[data(1, 2, 2)], f=[2.0, 3.0, 1.5], m=["nearest", "linear"], r=[3], **_each(_CHANNELS)
    )
    cropped = every(x=[data(1, 2, 2)], size=[4], r=[3], **_each(_CHANNELS))
    expanded = tuple(
        {"x": data(*shape), "n": n, "k": k, "d": len(n) - len(shape), "r": len(n), **_CHANNELS}
        for shape, n, k in [((2, 1), [3, 2, 3], 1), ((1, 2), [2, 2], 1), ((2, 1, 1), [2, 2, 3], 0)]
    )
    reshaped = tuple(
        {
            "x": data(*before),
            "n": list(after),
            "k": k,
            "q": q,
            "i": i,
            "r": len(after),
            "s": const(before[q]),
            "t": const(before[q]),
        }
        for before, after, k, q, i in _reshapes()
    )
    small = "ranks 2 to 4, extents 1 to 4"
    return {
        "transposed_channels": Domain(transposed, around="before", size=small),
        "sliced_channels": Domain(sliced, around="after", size="rank 3, extents 1 to 3"),
        "taken_channels": Domain(taken, around="after", size="rank 3, extents 1 to 3"),
        "split_channels": Domain(split, around="after", size="rank 3, extents 1 to 3"),
        "tiled_channels": Domain(tiled, around="before", size="rank 3, 2 or 3 copies"),
        "depth_to_space_channels": Domain(
            depth, around=("before", "after"), size="blocks of 2 x 2, up to 8 channels"
        ),
        "space_to_depth_channels": Domain(
            space, around="before", size="blocks of 2 x 2, up to 8 channels"
        ),
        "padded_channels": Domain(
            padded + reflected, around=("before", "after", "before"), size="rank 3, extents 1 to 5"
        ),
        "resized_channels": Domain(
            resized + cropped, around="before", size="one axis of 2, factors 1.5 to 3"
        ),
        "expanded_channels": Domain(
            expanded, around="before", size="ranks 2 and 3, extents 1 to 3"
        ),
        "reshaped_channels": Domain(reshaped, around="before", size="ranks 1 to 4, extents 1 to 6"),
    }


def _each(variables: Instance) -> dict[str, list[Any]]:
    return {name: [value] for name, value in variables.items()}


def _reshapes() -> Iterator[tuple[tuple[int, ...], tuple[int, ...], int, int, list[int]]]:
    """Yield shapes, axes of channels, and the channel before of each channel after.

    The code's own function tells where the channels are, asked with the channels by name.
    """
    from irc.passes.affine.algebra.affine import Affine
    from irc.passes.affine.rules.reshape import through_reshape

    shapes = [
        (2, 3),
        (6,),
        (2, 3, 1),
        (1, 6),
        (3, 2),
        (2, 1, 3),
        (1, 2, 1, 3),
        (4,),
        (2, 2),
        (4, 1),
        (1, 2, 2),
    ]
    for before, after in itertools.product(shapes, shapes):
        if np.prod(before) != np.prod(after):
            continue
        for axis, extent in enumerate(before):
            names = np.arange(1.0, extent + 1)
            found = (
                through_reshape(Affine.joined(axis, names, names), before, after)
                if extent > 1
                else None
            )
            if found is not None and not found.extents and found.axis is not None:
                yield before, after, found.axis, axis, (found.scale.astype(int) - 1).tolist()


def _windows() -> dict[str, Domain]:
    """Return the domains of pools and reductions."""
    window = [
        {"kernel": [2], "strides": [1], "pads": [0, 0]},
        {"kernel": [2], "strides": [2], "pads": [1, 0]},
        {"kernel": [3], "strides": [1], "pads": [1, 1]},
    ]
    maxima = [Op("max_pool", **each) for each in window] + [Op("global_max_pool")]
    averages = [Op("avg_pool", count_include_pad=c, **each) for each in window for c in (0, 1)]
    norms = [Op("lp_pool", p=p, **each) for each in window[:2] for p in (1, 2)] + [
        Op("global_lp_pool")
    ]
    axes = [{"axes": a, "keepdims": k} for a in ([2], [-1], [1, 2]) for k in (0, 1)]
    x = {"x": data(1, 1, 3), "s": const(), "t": const()}
    size = "windows and axes of up to 3 elements"
    indices = tuple({**each, "x": data(1, 1, 3), "s": const()} for each in window)

    def of(ops: Iterable[Op]) -> tuple[Instance, ...]:
        return tuple({**x, "op": op} for op in ops)

    return {
        "max_pool_channels": Domain(of(maxima) + indices, around="before", size=size),
        "average_pool_channels": Domain(
            of([*averages, Op("global_avg_pool")]), around="before", size=size
        ),
        "norm_pool_channels": Domain(of(norms), around="before", size=size),
        "extremum_channels": Domain(
            of(Op(n, **a) for n in ("max", "min") for a in axes), around="before", size=size
        ),
        "mean_channels": Domain(of(Op("mean", **a) for a in axes), around="before", size=size),
        "sum_channels": Domain(named(*axes, **x), around=("before", "after"), size=size),
        "norm_channels": Domain(
            of(Op(n, **a) for n in ("l1", "l2") for a in axes), around="before", size=size
        ),
    }


def _layers() -> dict[str, Domain]:
    """Return the domains of layers."""
    conv = tuple(
        {
            "x": data(1, 2, 3),
            "w": const(2, 2 // g, k),
            "b": const(2),
            "g": g,
            "d": (d,),
            "p": p,
            **_CHANNELS,
        }
        for g, k, d, p in itertools.product((1, 2), (1, 2), (1, 2), ((0, 0), (1, 0), (1, 1)))
    )
    padded = tuple(
        {**{k: v for k, v in each.items() if k != "p"}, "q": each["p"]}
        for each in conv
        if any(each["p"])
    )
    transposed = tuple(
        {
            "x": data(1, 2, 2),
            "w": const(2, 2 // g, k),
            "b": const(2),
            "g": g,
            "d": (d,),
            "p": p,
            **_CHANNELS,
        }
        for g, k, d, p in itertools.product((1, 2), (1, 2), (1, 2), ((0, 0), (0, 1)))
    )
    gemm = every(
        x=[data(2, 2)],
        w=[const(2, 2)],
        c=[const(2), const(), const(1, 2)],
        alpha=[1.0, 0.5],
        beta=[1.0, 2.0],
        u=[0, 1],
        **_each(_CHANNELS),
    )
    without = every(x=[data(2, 2)], w=[const(2, 2)], alpha=[1.0, 0.5], u=[0, 1], **_each(_CHANNELS))
    no_beta = every(
        x=[data(2, 2)],
        w=[const(2, 2)],
        c0=[const(2)],
        alpha=[1.0, 0.5],
        u=[0, 1],
        **_each(_CHANNELS),
    )
    product = every(x=[data(2, 2)], w=[const(2, 2)], r=[2], **_each(_CHANNELS))
    batched = every(x=[data(1, 2, 2)], w=[const(2, 2)], r=[3], **_each(_CHANNELS))
    dynamic = every(x=[data(2, 2)], y=[data(2, 2)], s=[const()], t=[const()])
    norm = {"x": data(1, 2, 2), "g": const(2), "b": const(2)}
    batch = named({**norm, **_CHANNELS, "m": const(2), "v": const(2)})
    grouped = named(
        {"x": data(1, 4, 1), "g": const(4), "b": const(4), "n": 2, "s": const(4), "t": const(4)},
        {
            "x": data(1, 4, 1),
            "h": const(2),
            "b": const(2),
            "n": 2,
            "c": 2,
            "s": const(4),
            "t": const(4),
        },
    )
    layered = tuple(
        {"x": data(1, 2, 2), "g": const(*g), "b": const(*g), "a": a, "k": k, **_CHANNELS}
        for a, g in ((2, (2,)), (1, (2, 2)))
        for k in (1, 2)
        if k >= a
    )
    scaled = {"u": 4.0, "m": -0.5, "e": EPSILON}
    removed = (
        *named(*[{"k": k, "t": const(n)} for k, n in ((0, 1), (1, 2), (2, 2))], **norm),
        *named(
            *[
                {
                    "k": k,
                    "a": a,
                    "g": const(*[2] * (3 - a)),
                    "b": const(*[2] * (3 - a)),
                    "t": const(n),
                }
                for k, n in ((1, 2), (2, 2))
                for a in (1, 2)
            ],
            x=data(1, 2, 2),
        ),
        {**norm, **scaled, "a": 2},
        {
            "x": data(1, 4, 1),
            "g": const(4),
            "b": const(4),
            "n": 2,
            "c": 2,
            "t": const(4),
        },
    )
    size = "2 channels, 2 or 3 positions"
    return {
        "conv_result": Domain(conv, size=size),
        "conv_data": Domain(conv + padded, size=size),
        "added": Domain(_branches(), size="2 channels, 3 positions"),
        "composed": Domain(_in_a_row(), size="2 channels, 3 positions; matrices of 2 x 2"),
        "conv_transpose_result": Domain(transposed, size=size),
        "conv_transpose_data": Domain(transposed, size=size),
        "dense_result": Domain(gemm + without + no_beta, size="matrices of 2 x 2"),
        "dense_data": Domain(gemm + without + no_beta, size="matrices of 2 x 2"),
        "matmul_result": Domain(product + batched, size="matrices of 2 x 2"),
        "matmul_data": Domain(product + batched, size="matrices of 2 x 2"),
        "matmul_backward": Domain(dynamic, around="before", size="matrices of 2 x 2"),
        "matmul_forward": Domain(dynamic, around="after", size="matrices of 2 x 2"),
        "batch_norm_result": Domain(batch, size="2 channels"),
        "instance_norm_result": Domain(named({**norm, **_CHANNELS}), size="2 channels of 2"),
        "group_norm_result": Domain(grouped, size="4 channels in 2 groups"),
        "layer_norm_result": Domain(layered, size="extents of 2"),
        "rms_norm_result": Domain(
            tuple({k: v for k, v in each.items() if k != "b"} for each in layered),
            size="extents of 2",
        ),
        "norm_data": Domain(removed, size="extents of 2"),
        "lp_normalize_data": Domain(
            every(x=[data(1, 2, 2)], u=[4.0], m=[-0.5], a=[-1, 1], p=[1, 2]),
            around="after",
            size="extents of 2",
        ),
        "rms_norm_data": Domain(
            named({"x": data(1, 2, 2), "g": const(2), "a": 2, **scaled}), size="extents of 2"
        ),
    }


def _branches() -> tuple[Instance, ...]:
    """Kernels of one value whose results have equal extents, and the value beside one."""
    pairs = [
        (3, (1, 1), 1, (0, 0), (1, 1)),
        (3, (0, 2), 1, (0, 0), (0, 2)),
        (2, (1, 0), 2, (0, 1), (1, 1)),
    ]
    sums = [
        {
            "x": data(1, 2, 3), "v": const(2, 2 // g, k), "w": const(2, 2 // g, n),
            "b": const(2), "c": const(2), "g": g, "d": (d,), "p": p, "q": q, "r": r,
        }
        for k, p, n, q, r in pairs
        for g in (1, 2)
        for d in (1, 2)
    ]  # fmt: skip
    shared = {"x": data(1, 2, 3), "c": const(2), "h": (1,)}
    beside = [{"w": const(2, 2, k), "q": q} for k, q in ((3, (1, 1)), (2, (1, 0)), (1, (0, 0)))]
    return (*sums, *named(*beside, **shared))


def _in_a_row() -> tuple[Instance, ...]:
    """Convolutions in a row, of which one has a kernel of one element, and matrices."""
    convs = [
        {
            "x": data(1, 2, 3), "w": const(2, 2, k), point: const(2, 2, 1),
            "b": const(2), "c": const(2), "d": (d,), "q": q,
        }
        for point in "vu"
        for k, q in ((2, (0, 0)), (2, (1, 0)), (3, (1, 1)))
        for d in (1, 2)
    ]  # fmt: skip
    return (*convs, {"y": data(2, 2), "m": const(2, 2), "n": const(2, 2)})


def _joined_backward() -> tuple[Instance, ...]:
    parts = [
        {"x": data(1, n, 2), "y": data(1, m, 2), "n": n, "s": const(n + m), "t": const(n + m)}
        for n, m in ((1, 2), (2, 2))
    ]
    return (*parts, {"x": data(1, 2, 1), "y": data(1, 2, 2), "u": const(2), "v": const(2)})


def _joined_forward() -> tuple[Instance, ...]:
    parts = [
        {"x": data(1, n, 2), "y": data(1, m, 2), "n": n, "s": const(n), "t": const(n)}
        for n, m in ((1, 2), (2, 2))
    ]
    whole = {"x": data(1, 2, 1), "y": data(1, 2, 2), **{name: const(2) for name in "uvpq"}}
    return (*parts, whole)


_CLIP = _elementwise(a=const(), b=const())

_VARIED: Instance = {
    "x": data(1, 2, 2),
    "s": const(),
    "t": const(),
    "c": Free((2,), constant=True, varied=True),
}

AFFINE: dict[str, Domain] = {
    "same_channels": Domain((_elementwise(),), around="before"),
    "dropout_channels": Domain((_elementwise(),), around="before"),
    "rectified_channels": Domain(
        tuple(
            _elementwise(op=op)
            for op in (
                Op("relu"),
                Op("leaky_relu", alpha=0.25),
                Op("leaky_relu", alpha=-2.0),
                Op("absolute"),
                Op("prelu", const()),
            )
        ),
        around="before",
    ),
    "negated_channels": Domain((_elementwise(),), around="before"),
    **_windows(),
    **_moved(),
    **_layers(),
    "clip_backward": Domain((_CLIP, {**_CLIP, "low": const(), "high": const()}), around="before"),
    "clip_forward": Domain((_CLIP,), around="after"),
    "clip_shifted": Domain((_CLIP,)),
    "dequantize_backward": Domain(
        ({"q": data(), "d": const(), "z": 3, "s": const(), "t": const()},)
    ),
    "hard_sigmoid_forward": Domain(
        (_elementwise(alpha=0.25, beta=0.5), _elementwise(alpha=-2.0, beta=0.0)), around="after"
    ),
    "backward_sum": Domain((_XY, _XC), around="before"),
    "forward_sum": Domain((_XY, _VARIED), around="after"),
    "backward_where": Domain((_elementwise(y=data(), c=Free((), truth=True)),), around="before"),
    "backward_product": Domain((_XY,), around="before"),
    "forward_product": Domain((_XY,), around="after"),
    "backward_mean": Domain((_XY,), around="before"),
    "backward_extremum": Domain((_XY, _XC), around="before"),
    "forward_extremum": Domain((_XC,), around="after"),
    "backward_quotient": Domain((_XY, _elementwise(c=const())), around="before"),
    "forward_quotient": Domain((_XY,), around="after"),
    "concatenate_backward": Domain(
        _joined_backward(), around="before", size="rank 3, up to 4 channels"
    ),
    "concatenate_forward": Domain(
        _joined_forward(), around="after", size="rank 3, up to 4 channels"
    ),
    "affine_of": Domain((_elementwise(u=const(), v=const()),)),
    "addend": Domain((_elementwise(c=const()),)),
    "_subtrahend": Domain((_elementwise(c=const()),)),
    "_minuend": Domain((_elementwise(c=const()),)),
    "_factor": Domain((_elementwise(c=const()),)),
    "_divisor": Domain((_elementwise(c=const()),)),
    "_averaged": Domain((_elementwise(c=const()),)),
    "lower_batch_norm": Domain(
        named({"x": data(1, 2, 2), "g": const(2), "b": const(2), "m": const(2), "v": const(2)}),
        size="2 channels",
    ),
}
"""The domains of the rules for affines, by the name of the function that applies them."""
