"""The variables of the lines of SimplifyExpr."""

from __future__ import annotations

import itertools
from math import prod
from typing import Any

from irc.passes.simplify.elementwise import LOSSLESS

from .domains import FUNCTIONS, Domain, Free, Instance, const, data, every
from .operators import Op
from .predicates import PREDICATES, has_constant_target, is_composed, is_reshape

FUNCTIONS.update({name: each for name, each in PREDICATES.items() if name != "without"})
FUNCTIONS["without"] = lambda items, *item: (
    (0,) * len(items) if not item else [each for each in items if each != item[0]]
)

TYPES = ("u8", "i8", "i16", "u16", "i32", "u32", "i64", "u64", "f16", "bf16", "f32", "f64", "bool")
"""The types of which casts are proved."""

SHAPES = [(2, 3), (1, 2), (2, 1, 3), (1, 2, 1, 3)]
MOVED = ("labels",)
SMALL = "ranks 2 to 4, extents 1 to 3"


def _perms(rank: int) -> list[tuple[int, ...]]:
    return list(itertools.permutations(range(rank)))


def _transposes(**more: Any) -> tuple[Instance, ...]:
    return tuple(
        {"x": data(*shape), "p": p, **more} for shape in SHAPES for p in _perms(len(shape))
    )


def _bounds() -> tuple[Instance, ...]:
    return ({"x": data(), **{name: const() for name in "abcd"}},)


def _neutral() -> tuple[Instance, ...]:
    return tuple(
        {"x": data(*x), "c": const(*c)} for x, c in [((2,), (2,)), ((1,), (1, 1)), ((1,), (2,))]
    )


def _reshapes() -> tuple[Instance, ...]:
    targets = [(6,), (2, 3), (3, 2), (1, 6), (2, 1, 3), (6, 1), (1, 2, 3), (-1, 3), (2, -1)]
    copies = [(0, -1), (0, 3), (1, 0, -1)]
    return tuple(
        {"x": data(*shape), "m": m, "n": n}
        for shape in [(2, 3), (1, 6), (2, 1, 3), (6,)]
        for m in targets
        for n in [*targets, *copies]
    )


def _computed_targets() -> tuple[Instance, ...]:
    """Return targets with extents of the data, for all numbers of 0 to 3."""
    data_extents = [
        ("N",),
        ("N", 2),
        (2, "N"),
        ("N", "M"),
        ("N", "N"),
        ("N", 2, 3),
        ("N", "M", 2),
        ("N", 2, "M"),
    ]
    pieces = ("N", "M", -1, 0, 1, 2, 6)
    found = []
    for e in data_extents:
        symbols = sorted({each for each in e if isinstance(each, str)})
        targets = [
            n
            for rank in (1, 2, 3)
            for n in itertools.product(pieces, repeat=rank)
            if set(symbols).issuperset(each for each in n if isinstance(each, str))
            and any(isinstance(each, str) for each in n)
            and has_constant_target(n, e)
        ]
        for numbers in itertools.product((0, 1, 2, 3), repeat=len(symbols)):
            given = dict(zip(symbols, numbers, strict=True))
            shape = [given[each] if isinstance(each, str) else each for each in e]
            found += [
                {"x": data(*shape), "n": n, "e": e} for n in targets if is_reshape(n, shape, e)
            ]
    return tuple(found)


def _windows() -> list[dict[str, Any]]:
    return [
        {"kernel": (k,), "strides": (s,), "p": p, "q": q}
        for k, s, p, q in itertools.product(
            (2, 3), (1, 2), ((1, 0), (0, 1), (1, 1)), ((0, 0), (1, 0))
        )
    ]


def _slices() -> tuple[Instance, ...]:
    found = []
    for b, e, d in itertools.product((0, 1, -2), (2, 3, -1), (1, 2)):
        for f, g, h in itertools.product((0, 1, -1), (1, 2, -1), (1, 2)):
            found += [
                {
                    "x": data(n, 2),
                    "a": 0,
                    "b": b,
                    "e": e,
                    "d": d,
                    "f": f,
                    "g": g,
                    "h": h,
                    "extent": extent,
                }
                for n in (3, 4)
                for extent in (n, None)
                if is_composed(b, e, d, f, g, h, extent)
            ]
    return tuple(found)


def _shuffles() -> tuple[Instance, ...]:
    shapes = [((1, 4, 2), (1, 2, 2, 2)), ((1, 6, 1), (1, 2, 3, 1)), ((1, 6, 1), (1, 3, 2, 1))]
    rests = [[1, 2, 2], [2, 2, 1], [4], [2, 2], [1, 2], [2], [3], [3, 1], [1, 6], [2, 3]]
    return tuple(
        {"x": data(*shape), "m": m, "p": p, "w": w, "i": 1}
        for shape, m in shapes
        for p in _perms(4)
        for w in rests
        if m[p[0]] > 1 and prod(w) == prod(m) // m[p[0]]
    )


def _focus() -> tuple[Instance, ...]:
    x = {"x": data(1, 2, 4, 2), "b": 2}
    places = [(0, 0), (0, 1), (1, 0), (1, 1)]
    return (x, *[{**x, "o": list(o)} for o in itertools.permutations(places)])


def _axes() -> tuple[Instance, ...]:
    shapes = [(1, 2, 1), (2, 1, 1, 3), (1, 3)]
    lists = [[0], [1], [2], [-1], [0, 2], [1, 2], [0, -1], [-2]]
    return tuple({"x": data(*s), "a": a, "b": b} for s in shapes for a in lists for b in lists)


def _regions() -> tuple[Instance, ...]:
    found: list[Instance] = []
    for shape in [(2, 3), (2, 1, 3), (1, 2, 2, 3)]:
        for p in _perms(len(shape)):
            found.append({"x": data(*shape), "p": p})
            found.append({"x": data(*shape), "y": data(*shape), "p": p, "a": 1})
            found.append({"x": data(*shape), "p": p, "a": len(shape) - 1})
            found.append({"x": data(*shape), "p": p, "n": [*range(len(shape)), *[1] * len(shape)]})
            found.append(
                {"x": data(*shape), "p": p, "c": const(*[shape[axis] for axis in _inverse(p)])}
            )
    return tuple(found)


def _inverse(p: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(p)), key=p.__getitem__))


def _beside(shape: tuple[int, ...]) -> list[dict[str, Any]]:
    """Return the second operands of a sum of data of a shape: others, and constants."""
    others = [{"y": data(*y)} for y in [(6,), (2, 3), (1, 6), (2, 1, 3)]]
    return [{}, *others, *({"c": const(*c)} for c in [(), (1,), (3,), (6,), (1, 3), (2, 1)])]


WHOLE = ("floor", "ceil", "round")
SETTLED = (("absolute", "absolute"), ("sign", "sign"))
REDUCTIONS = (
    *((name, [(2, 3), (2, 1, 3), (2, 2, 2)]) for name in ("sum", "mean", "max", "min")),
    ("product_of", [(2, 2), (2, 1, 2)]),
)

_REALS_AND_INTEGERS = ("reals", "integers")
_X = {"x": data()}
_TWO = {"x": data(), "a": const(), "b": const()}

SIMPLIFY: dict[str, Domain] = {
    "drop_identity": Domain((_X,), ("floats",)),
    "drop_dropout": Domain((_X,), ("floats",)),
    "drop_cast": Domain(
        every(x=[data()], source=TYPES, kind=TYPES), ("types",), size="all 13 types of numbers"
    ),
    "merge_casts": Domain(
        every(x=[data()], source=[t for t in TYPES if t in LOSSLESS], via=TYPES, kind=TYPES),
        ("types",),
        size="all 13 types of numbers",
    ),
    "merge_extrema": Domain(_bounds(), ("floats", "integers")),
    "drop_settled": Domain(
        (
            {"x": data()},
            *every(x=[data()], op=list(map(Op, WHOLE)), settled=list(map(Op, WHOLE))),
            *({"x": data(), "op": Op(a), "settled": Op(b)} for a, b in SETTLED),
        ),
        ("floats",),
    ),
    "drop_involution": Domain(
        (
            *(
                {"x": data(), "source": each, "op": Op("negative")}
                for each in TYPES
                if each[0] not in "ub"
            ),
            {"x": data(), "source": "bool", "op": Op("negation")},
        ),
        ("types",),
    ),
    "drop_repeated_operand": Domain(
        (
            *every(
                x=[data()],
                y=[data()],
                source=["i32", "u8", "f16", "f32"],
                op=[Op("maximum"), Op("minimum")],
            ),
            *({"x": data(), "source": "bool", "op": Op(name)} for name in ("both", "either")),
        ),
        ("types",),
    ),
    "drop_choice": Domain(
        tuple(
            {"c": Free(c, truth=True), "x": data(*x)}
            for c in [(), (2,), (1, 2), (2, 1)]
            for x in [(2,), (1,), (1, 2)]
        ),
        ("floats",),
        size="ranks 0 to 2",
    ),
    "cast_of_full": Domain(
        every(v=[const()], s=[[2], [1, 2]], source=TYPES, kind=TYPES),
        ("types",),
        size="all 13 types of numbers",
    ),
    "constant_mask": Domain((_X,)),
    "merge_reductions": Domain(
        tuple(
            {
                "x": data(*s),
                "a": a,
                "b": b,
                "keeping": Op(n, keepdims=1),
                "dropping": Op(n, keepdims=0),
            }
            for n, shapes in REDUCTIONS
            for s in shapes
            for a in ([0], [1], [-1], [0, 1])
            for b in ([0], [1], [-1], [0, -1])
        ),
        size="ranks 2 and 3, extents 1 to 3",
    ),
    "compute_unshaped": Domain(
        tuple(
            {"x": data(*x), "m": m, "n": n, **more}
            for x in [(6,), (2, 3), (1, 6), (2, 1, 3)]
            for m in [(6,), (2, 3), (3, 2), (1, 2, 3), (-1, 3)]
            for n in [(6,), (2, 3), (-1, 3), (1, 6), (2, 1, 3)]
            for more in _beside(x)
        )
        + tuple(
            {"x": data(2, 3), "m": m, "n": n, "k": const(*k)}
            for m in [(6,), (3, 2), (1, 2, 3)]
            for n in [(2, 3), (6,)]
            for k in (m, (3, 1))
        ),
        MOVED,
        size="ranks 1 to 3",
    ),
    "shape_of_same": Domain(
        tuple(
            {"x": data(*x), "y": data(*y)}
            for x in [(2,), (2, 3), (1, 1)]
            for y in [(), (1,), (3,), (2, 3)]
        ),
        MOVED,
        size="ranks 0 to 2",
    ),
    "shape_of_transpose": Domain(_transposes(), MOVED, size=SMALL),
    "merge_takes": Domain(
        every(
            x=[data(3, 2), data(2, 3)],
            i=[[0, 1, 1], [-1, 0]],
            j=[0, [1, 0], [[-1], [1]], [2]],
            a=[0, 1, -1],
        ),
        MOVED,
        size="rank 2",
    ),
    "slice_of_take": Domain(
        every(x=[data(3)], i=[[2, 0, -1, 1], [1]], b=[0, 1, -2], e=[1, 9, -1], d=[1, 2]),
        MOVED,
        size="rank 1",
    ),
    "drop_neutral": Domain(_neutral(), ("floats", "integers"), size="ranks 1 and 2"),
    "drop_power_of_one": Domain(_neutral(), ("floats",), size="ranks 1 and 2"),
    "integer_zero": Domain(({"x": data(2), "c": const()},), ("integers", "floats")),
    "merge_affines": Domain((_TWO,)),
    "merge_constants": Domain((_TWO,), _REALS_AND_INTEGERS),
    "add_to_dense": Domain(
        tuple(
            {"x": data(*x), "w": const(2, 2), "b": data(*b)}
            for x in [(2, 2), (1, 2), (1, 2, 2)]
            for b in [(2,), (1, 2), (2, 2), (1,)]
        ),
        size="matrices of 2 x 2",
    ),
    "single_operand": Domain(
        (
            *({"x": data(), "op": Op(name)} for name in ("add_n", "mean_n", "maximum", "minimum")),
            {"x": data(2, 2), "a": 1},
        ),
        ("floats",),
    ),
    "where_constant": Domain(
        tuple(
            {"c": Free(c, constant=True, truth=True), "x": data(*x), "y": data(*y)}
            for c in [(), (2,), (1, 2)]
            for x in [(2,), (1,)]
            for y in [(2,), (1,)]
        ),
        ("floats",),
        size="ranks 0 to 2",
    ),
    "take_of_transpose": Domain(
        tuple(
            {**each, "i": i, "a": a}
            for each in _transposes()
            for i in (0, -1, [0])
            for a in range(len(each["p"]))
        ),
        MOVED,
        size=SMALL,
    ),
    "take_of_shuffle": Domain(_shuffles(), MOVED, size="rank 4, up to 8 elements"),
    "inline_branch": Domain(
        ({"c": Free((), constant=True, truth=True), "x": data(), "y": data()},), ("floats",)
    ),
    "drop_expansion": Domain(
        tuple(
            {"x": data(*x), "y": data(*y), "n": n}
            for x in [(2, 3), (2, 1)]
            for y in [(1,), (3,), (2, 1), (1, 1)]
            for n in [[3], [2, 3], [1, 1], [2, 1], [1, 2, 3], [1]]
        ),
        ("floats",),
        size="ranks 1 to 3, extents 1 to 3",
    ),
    "reshape_of_transpose": Domain(
        tuple(
            {**each, "n": n} for each in _transposes() for n in [(6,), (2, 3), (3, 2), (1, 6), (2,)]
        ),
        MOVED,
        size=SMALL,
    ),
    "transpose_of_reshape": Domain(
        tuple(
            {"x": data(*x), "n": n, "p": p}
            for x in [(6,), (2, 3)]
            for n in [(2, 3), (1, 6), (2, 1, 3), (1, 2, 1, 3)]
            for p in _perms(len(n))
        ),
        MOVED,
        size=SMALL,
    ),
    "unsqueeze_of_take": Domain(
        tuple(
            {"x": data(*s), "i": i, "a": a}
            for s in [(2, 3), (3, 2), (3,)]
            for i in (0, -1, [0, 1])
            for a in range(-len(s), len(s))
        ),
        MOVED,
        size="ranks 1 and 2",
    ),
    "constant_repeats": Domain(
        every(
            x=[data(2, 3), data(1, 2), data(2), data(1, 0)],
            n=[[3], [2, 3], [1, 1], [2], [2, 1], [1, 1, 2], [3, 2], [2, 0], [4, 2, 3]],
        ),
        MOVED,
        size="ranks 1 to 3, extents 0 to 4",
    ),
    "gather_rows": Domain(
        every(x=[data(3), data(3, 2), data(2, 3, 2)], i=[[1, 0], [0, 1, 1], [-1]]),
        MOVED,
        size="ranks 1 to 3",
    ),
    "take_all": Domain(
        tuple(
            {"x": data(*s), "i": i, "a": a}
            for s in SHAPES
            for i in (0, -1)
            for a in range(-len(s), len(s))
        ),
        MOVED,
        size=SMALL,
    ),
    "drop_inverse": Domain(_axes(), MOVED, size=SMALL),
    "merge_axes": Domain(_axes(), MOVED, size=SMALL),
    "drop_reduction": Domain(
        tuple(
            {
                "x": data(*s),
                "axes": a,
                "keeping": Op(n, axes=a, keepdims=1),
                "dropping": Op(n, axes=a, keepdims=0),
            }
            for s in [(1, 2), (2, 1, 1), (1, 2, 1)]
            for n in ("sum", "mean", "max", "min")
            for a in ([0], [1], [-1])
        ),
        ("floats",),
        size="ranks 2 and 3, extents 1 and 2",
    ),
    "merge_concatenations": Domain(
        every(
            x=[data(1, 2)],
            y=[data(1, 2)],
            z=[data(1, 4), data(2, 2), data(2, 4)],
            a=[0, 1, -1],
            b=[0, 1, -1],
        ),
        MOVED,
        size="rank 2",
    ),
    "concat_of_split": Domain(
        every(
            x=[data(2, 2), data(2, 4)],
            y=[data(2, 2), data(1, 2)],
            n=[[1, 1], [2]],
            a=[0, 1, -2],
            b=[0, 1, -1],
        ),
        MOVED,
        size="rank 2",
    ),
    "merge_slices": Domain(
        _slices(), MOVED, size="extents 3 and 4, known and unknown; the bounds that the rule takes"
    ),
    "merge_transposes": Domain(
        tuple({**each, "q": q} for each in _transposes() for q in _perms(len(each["p"])))
        + tuple({"x": each["x"], "o": each["p"]} for each in _transposes()),
        MOVED,
        size=SMALL,
    ),
    "drop_empty_transpose": Domain(
        _transposes()
        + tuple({"x": data(*s), "p": p} for s in [(1, 1, 2), (2, 2)] for p in _perms(len(s))),
        MOVED,
        size=SMALL,
    ),
    "reduce_transposed": Domain(
        tuple(
            {**each, "a": a}
            for each in _transposes()
            for a in ([0], [1], [0, 1])
            if max(a) < len(each["p"])
        ),
        size=SMALL,
    ),
    "move_region": Domain(_regions(), size=SMALL),
    "pad_into_conv": Domain(
        tuple(
            {
                "x": data(1, 1, 3),
                "w": const(1, 1, each["kernel"][0]),
                "b": const(1),
                "v": const(),
                "d": each["strides"],
                "p": each["p"],
                "q": each["q"],
            }
            for each in _windows()
        ),
        size="one axis of 3, kernels of 2 and 3",
    ),
    "order_into_conv": Domain(
        every(
            x=[data(1, 2, 2), data(1, 3, 2)],
            i=[[1, 0], [1, 1], [2, 0, 1]],
            w=[const(1, 2, 2), const(1, 3, 1)],
            b=[const(1)],
            d=[(1,)],
            p=[(0, 0), (1, 0)],
        )
        + every(
            x=[data(1, 2, 2), data(1, 2, 3)],
            i=[[1, 0], [1, 1], [2, 0, 1]],
            w=[const(1, 2, 2), const(1, 3, 1)],
            b=[const(1)],
            d=[(1,)],
            p=[(0, 0)],
            q=[(0, 2, 1)],
        ),
        size="2 or 3 channels of 2",
    ),
    "pad_into_average_pool": Domain(
        tuple(
            {"x": data(1, 1, 3), "v": const(), "c": c, **each}
            for each in _windows()
            for c in (0, 1)
        ),
        size="one axis of 3, kernels of 2 and 3",
    ),
    "pad_into_max_pool": Domain(
        tuple({"x": data(1, 1, 3), "v": const(), **each} for each in _windows()),
        ("integers",),
        size="one axis of 3, kernels of 2 and 3",
    ),
    "drop_ceil_mode": Domain(
        tuple(
            {"x": data(1, 1, n), "kernel": (k,), "strides": (s,), "p": p}
            for n, k, s, p in itertools.product((3, 4), (2, 3), (2, 3), ((0, 0), (1, 0), (0, 1)))
        ),
        ("floats",),
        size="one axis of 3 or 4, kernels of 2 and 3",
    ),
    "drop_zero_state": Domain(({"x": data(), "w": const(), "u": const(), "h": const()},)),
    "sequence_to_split": Domain(
        tuple(
            {"x": data(*s), "n": n, "a": 0, "k": k}
            for s in [(3,), (4, 1), (2, 2)]
            for n in (1, 2, 3)
            for k in range(-(-s[0] // n))
        ),
        MOVED,
        size="ranks 1 and 2, up to 4 parts",
    ),
    "focus": Domain(_focus(), MOVED, size="blocks of 2 x 2, all orders"),
    "drop_reshape": Domain(
        tuple({"x": i["x"], "n": i["n"]} for i in _reshapes()), MOVED, size="ranks 1 to 3"
    ),
    "merge_reshapes": Domain(_reshapes(), MOVED, size="ranks 1 to 3"),
    "constant_target": Domain(
        _computed_targets(), MOVED, size="ranks 1 to 3, extents 0 to 3, allowzero = 0"
    ),
    "drop_expand": Domain(
        every(
            x=[data(2, 3), data(1, 2), data(2)],
            n=[[3], [2, 3], [1, 1], [2], [2, 1], [1, 1, 2], [3, 2]],
        ),
        MOVED,
        size="ranks 1 to 3, extents 1 to 3",
    ),
    "drop_slice": Domain(
        every(x=[data(3, 2)], b=[0, 1, -3, -9], e=[3, 2, 9, -1], a=[0, 1, -1], d=[1, 2]),
        MOVED,
        size="rank 2",
    ),
    "drop_pad": Domain(
        every(x=[data(2, 2)], p=[[0, 0, 0, 0], [0, 1, 0, 0], [0, -1, 0, 1]]), MOVED, size="rank 2"
    ),
    "drop_tile": Domain(every(x=[data(2, 2)], n=[[1, 1], [1, 2], [3, 1]]), MOVED, size="rank 2"),
    "drop_split": Domain(every(x=[data(2, 2)], n=[[2], [1, 1]], a=[0, 1]), MOVED, size="rank 2"),
    "drop_resize": Domain(
        every(
            x=[data(1, 1, 3), data(1, 1, 1)],
            f=[1.0, 2.0],
            m=["nearest", "linear"],
            at=[
                "half_pixel",
                "pytorch_half_pixel",
                "half_pixel_symmetric",
                "asymmetric",
                "align_corners",
                "tf_half_pixel_for_nn",
            ],
        ),
        ("floats",),
        size="one axis of 1 or 3",
    ),
}
"""The domains of the rules of SimplifyExpr, by name."""
