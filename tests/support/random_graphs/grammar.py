"""Random models, grown forward from slots: values whose shapes are known.

Every extent is from {1, 2, 3, 4}, so that axes collide; scales are negative or zero half of the
time; constants are shared, and hidden behind Identity; values are read twice, returned, or captured
by an If. A seed makes one model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil, prod
from random import Random
from typing import Any

import numpy as np
from graphs import F64, NEWEST, Graph, batch_norm, onnx_dtype
from onnx import ModelProto, helper

Shape = tuple[int, ...]
Slot = tuple[str, Shape]
"""A value and its shape."""

LARGEST = 1024
"""No value has more elements."""


def grow(seed: int, dtype: np.dtype[Any] = F64, steps: int = 10) -> ModelProto:
    """The random model of that seed, with at most that many steps of growth."""
    return _Grower(Random(seed), dtype).grow(steps)


@dataclass
class _Grower:
    random: Random
    dtype: np.dtype[Any]
    slots: list[Slot] = field(default_factory=list)
    constants: dict[Shape, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        opset = self.random.choice([13, 15, 17, 18, 21, min(NEWEST, 23)])
        self.graph = Graph(opset=opset, dtype=self.dtype, seed=self.random.getrandbits(30))

    # choices

    def one_in(self, n: int) -> bool:
        return self.random.randrange(n) == 0

    def pick(self, items: Sequence[Any]) -> Any:
        return self.random.choice(items)

    def upto(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def fellow(self, shape: Shape, fits: Callable[[Shape, Shape], bool]) -> Slot:
        """A slot that fits that shape; the caller's own always does."""
        return self.pick([slot for slot in self.slots if fits(shape, slot[1])])  # type: ignore[no-any-return]

    # constants

    def constant(self, shape: Shape, *, nonzero: bool = False) -> str:
        """A constant of that shape: often a known one, sometimes behind an Identity."""
        known = self.constants.setdefault(shape, [])
        if known and not nonzero and self.one_in(3):
            return str(self.pick(known))
        array = self.graph.random(*shape)
        if self.one_in(2):
            array = np.abs(array)
        if nonzero:
            array = np.where(np.abs(array) < 0.25, self.dtype.type(0.5), array)
        elif self.one_in(8):
            array = np.where(self.graph.random(*shape) < 0, self.dtype.type(0), array)
        if self.one_in(24):
            array = array + self.dtype.type(100)
        how = self.pick(["initializer"] * 5 + ["value", "identity", "identity twice"])
        name = self.graph.constant(np.asarray(array, self.dtype), how)
        if not nonzero:
            known.append(name)
        return name

    def ints(self, items: Sequence[int]) -> str:
        return self.graph.initializer(np.asarray(items, np.int64))

    def channel(self, shape: Shape) -> Shape:
        """The shape of a constant that varies along one axis, mostly axis 1, or along none."""
        if not shape or self.one_in(6):
            return ()
        axis = 1 if len(shape) > 1 and not self.one_in(4) else self.upto(0, len(shape) - 1)
        return tuple(n if i == axis else 1 for i, n in enumerate(shape))

    def name(self) -> str:
        """A node name: mostly none, at times one that other nodes have."""
        return str(self.pick(["", "", "layer", "conv", self.graph.fresh("n")]))

    # affines

    def affine(self, slot: Slot) -> Slot:
        name, shape = slot
        kind = self.pick(
            ["BatchNormalization"] * 3 + ["Mul", "Mul", "Add", "Add", "Sub", "Div", "rSub", "Neg"]
        )
        if kind == "BatchNormalization" and len(shape) >= 2:
            return self.batch_norm(name, shape), shape
        if kind in ("BatchNormalization", "Neg"):
            return self.graph.node("Neg", [name]), shape
        varying = tuple(self.pick([1, n]) for n in shape) if self.one_in(5) else self.channel(shape)
        while varying and varying[0] == 1 and self.one_in(2):
            varying = varying[1:]
        constant = self.constant(varying, nonzero=kind == "Div")
        if kind == "rSub":
            return self.graph.node("Sub", [constant, name]), shape
        left = kind in ("Mul", "Add") and self.one_in(3)
        return self.graph.node(
            kind, [constant, name] if left else [name, constant], name=self.name()
        ), shape

    def batch_norm(self, name: str, shape: Shape) -> str:
        params = batch_norm(shape[1], self.upto(0, 1000), self.dtype, self.pick([None, 0.0, 0.5]))
        if self.random.random() < 0.6:
            np.abs(params.gamma, out=params.gamma)
        if self.one_in(6):
            params.gamma[self.upto(0, shape[1] - 1)] = 0.0
        if self.one_in(4):
            params.beta[:] = 0.0
            params.mean[:] = 0.0
        how = self.pick(["initializer"] * 3 + ["identity", "value"])
        return self.graph.batch_norm(name, params, how=how, name=self.name())

    # layers

    def layer(self, slot: Slot) -> Slot | None:
        name, shape = slot
        if 3 <= len(shape) <= 5:
            return self.conv_transpose(name, shape) if self.one_in(4) else self.conv(name, shape)
        return self.linear(name, shape)

    def conv(self, name: str, shape: Shape) -> Slot | None:
        spatial, channels = shape[2:], shape[1]
        group = self.pick([g for g in (1, 1, 2, 3, 4) if channels % g == 0])
        out_channels = group * self.upto(1, 2)
        kernel = [self.upto(1, min(2, n)) for n in spatial]
        rank, attrs = len(spatial), {"group": group} if group > 1 or self.one_in(3) else {}
        pads, strides = [0] * (2 * rank), [1] * rank
        form = self.pick(["none", "none", "pads", "pads", "SAME_UPPER", "SAME_LOWER", "VALID"])
        if form == "pads":
            pads = [self.upto(0, 1) for _ in pads]
            attrs["pads"] = pads
        elif form != "none":
            attrs["auto_pad"] = form
        if self.one_in(3):
            strides = [self.upto(1, 2) for _ in strides]
            attrs["strides"] = strides
        out = tuple(
            ceil(n / s) if form.startswith("SAME") else (n + pads[i] + pads[rank + i] - k) // s + 1
            for i, (n, k, s) in enumerate(zip(spatial, kernel, strides, strict=True))
        )
        weight = self.constant((out_channels, channels // group, *kernel))
        inputs = [name, weight, *self.bias(out_channels)]
        return self.graph.node("Conv", inputs, name=self.name(), **attrs), (
            shape[0],
            out_channels,
            *out,
        )

    def conv_transpose(self, name: str, shape: Shape) -> Slot | None:
        spatial, channels = shape[2:], shape[1]
        group, per_group = (
            self.pick([g for g in (1, 2, 3, 4) if channels % g == 0]),
            self.upto(1, 2),
        )
        kernel = [self.upto(1, 2) for _ in spatial]
        strides = [self.upto(1, 2) for _ in spatial]
        out = tuple((n - 1) * s + k for n, s, k in zip(spatial, strides, kernel, strict=True))
        inputs = [
            name,
            self.constant((channels, per_group, *kernel)),
            *self.bias(per_group * group),
        ]
        made = self.graph.node(
            "ConvTranspose", inputs, name=self.name(), group=group, strides=strides
        )
        return made, (shape[0], per_group * group, *out)

    def bias(self, channels: int) -> list[str]:
        if self.one_in(2):
            return [self.constant((channels,))]
        return [""] if self.one_in(4) else []

    def linear(self, name: str, shape: Shape) -> Slot | None:
        columns = self.upto(1, 4)
        if len(shape) < 2:
            return None
        if len(shape) != 2 or self.one_in(2):
            if self.one_in(3):
                weight = self.constant((columns, shape[-2]))
                return self.graph.node("MatMul", [weight, name], name=self.name()), (
                    *shape[:-2],
                    columns,
                    shape[-1],
                )
            weight = self.constant((shape[-1], columns))
            return self.graph.node("MatMul", [name, weight], name=self.name()), (
                *shape[:-1],
                columns,
            )
        trans_a, trans_b = self.upto(0, 1), self.upto(0, 1)
        rows, inner = (shape[1], shape[0]) if trans_a else shape
        inputs = [name, self.constant((columns, inner) if trans_b else (inner, columns))]
        c = self.pick([None, (), (1,), (columns,), (1, columns), (rows, 1), (rows, columns)])
        inputs += [] if c is None else [self.constant(c)]
        attrs = {"alpha": self.pick([1.0, 0.5]), "beta": self.pick([1.0, 0.0, -2.0])}
        made = self.graph.node(
            "Gemm", inputs, name=self.name(), transA=trans_a, transB=trans_b, **attrs
        )
        return made, (rows, columns)

    # carriers

    def unary(self, slot: Slot) -> Slot | None:
        name, shape = slot
        kind = self.pick(
            ["Relu"] * 4
            + [
                "LeakyRelu",
                "PRelu",
                "Abs",
                "Clip",
                "Clip",
                "Identity",
                "Dropout",
                "Sigmoid",
                "HardSigmoid",
            ]
        )
        if kind == "PRelu":
            return self.graph.node(kind, [name, self.constant(self.channel(shape))]), shape
        if kind == "Clip":
            low, high = sorted(self.random.uniform(-2, 2) for _ in range(2))
            bounds = [self.graph.initializer(bound) for bound in (low, high)]
            if self.one_in(3):
                bounds[self.upto(0, 1)] = ""
            return self.graph.node(kind, [name, *bounds]), shape
        return self.graph.node(kind, [name]), shape

    def pool(self, slot: Slot) -> Slot | None:
        name, shape = slot
        if not 3 <= len(shape) <= 5:
            return None
        kind = self.pick(
            [
                "MaxPool",
                "AveragePool",
                "LpPool",
                "GlobalMaxPool",
                "GlobalAveragePool",
                "GlobalLpPool",
            ]
        )
        if kind.startswith("Global"):
            return self.graph.node(kind, [name]), (*shape[:2], *[1] * len(shape[2:]))
        rank, spatial = len(shape) - 2, shape[2:]
        kernel = [self.upto(1, min(2, n)) for n in spatial]
        pads = [self.upto(0, k - 1) for k in kernel * 2] if self.one_in(2) else [0] * (2 * rank)
        strides = [self.upto(1, 2) for _ in spatial]
        ceiling = kind != "LpPool" and self.one_in(3)
        attrs: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "pads": pads}
        if ceiling:
            attrs["ceil_mode"] = 1
        if kind == "AveragePool" and self.one_in(2):
            attrs["count_include_pad"] = 1
        out = []
        for i, (n, k, s) in enumerate(zip(spatial, kernel, strides, strict=True)):
            span = n + pads[i] + pads[rank + i] - k
            if ceiling and span % s:
                return None  # runtimes disagree on windows that begin in the padding
            out.append(span // s + 1)
        return self.graph.node(kind, [name], **attrs), (*shape[:2], *out)

    def reduction(self, slot: Slot) -> Slot | None:
        name, shape = slot
        kind = self.pick(
            [
                "ReduceMean",
                "ReduceMean",
                "ReduceMax",
                "ReduceMin",
                "ReduceSum",
                "ReduceL1",
                "ReduceL2",
            ]
        )
        axes = (
            sorted(self.random.sample(range(len(shape)), self.upto(1, len(shape)))) if shape else []
        )
        if len(axes) > 1 and self.one_in(2):
            axes = [axis for axis in axes if axis != 1] or axes
        keep = not self.one_in(3)
        out = tuple(1 if i in axes else n for i, n in enumerate(shape) if keep or i not in axes)
        if not axes:
            return None
        if kind == "ReduceSum" or self.graph.opset >= 18:
            return self.graph.node(kind, [name, self.ints(axes)], keepdims=int(keep)), out
        return self.graph.node(kind, [name], axes=axes, keepdims=int(keep)), out

    def pad(self, slot: Slot) -> Slot | None:
        name, shape = slot
        if not shape:
            return None
        mode = self.pick(
            ["constant", "constant", "edge", "reflect"]
            + (["wrap"] if self.graph.opset >= 19 else [])
        )
        fixed = 0 if self.one_in(4) else 2
        # Those that reflect or wrap take elements of the data.
        most = [min(1, n - 1) if mode in ("reflect", "wrap") else 1 for n in shape]
        most[:fixed] = [0] * len(most[:fixed])
        pads = [self.upto(0, n) for n in most * 2]
        inputs = [name, self.ints(pads)]
        if mode == "constant" and self.one_in(2):
            inputs.append(self.graph.initializer(self.pick([0.0, 1.0, -2.5])))
        out = tuple(n + pads[i] + pads[len(shape) + i] for i, n in enumerate(shape))
        return self.graph.node("Pad", inputs, mode=mode), out

    def resize(self, slot: Slot) -> Slot | None:
        name, shape = slot
        if len(shape) != 4:
            return None
        sizes = (*shape[:2], *(n * self.upto(1, 2) for n in shape[2:]))
        attrs = {"mode": self.pick(["nearest", "linear", "cubic"])}
        if self.one_in(3):
            attrs["coordinate_transformation_mode"] = self.pick(["asymmetric", "align_corners"])
        if self.one_in(2):
            scales = self.graph.initializer(
                np.asarray([b / a for a, b in zip(shape, sizes, strict=True)], np.float32)
            )
            return self.graph.node("Resize", [name, "", scales], **attrs), sizes
        return self.graph.node("Resize", [name, "", "", self.ints(sizes)], **attrs), sizes

    def norm(self, slot: Slot) -> Slot | None:
        name, shape = slot
        if len(shape) < 3:
            return None
        kind = self.pick(["InstanceNormalization", "LayerNormalization", "GroupNormalization"])
        if kind == "LayerNormalization":
            if self.graph.opset < 17:
                return None
            axis = self.upto(1, len(shape) - 1)
            inputs = [self.constant(shape[axis:]) for _ in range(self.upto(1, 2))]
            return self.graph.node(kind, [name, *inputs], axis=axis, epsilon=0.5), shape
        attrs: dict[str, Any] = {
            "epsilon": 0.5
        }  # less would make the norm steep where its data hardly vary
        if kind == "GroupNormalization":
            if self.graph.opset < 21:
                return None
            attrs["num_groups"] = self.pick([g for g in (1, 2, 3, 4) if shape[1] % g == 0])
        inputs = [self.constant((shape[1],)) for _ in range(2)]
        return self.graph.node(kind, [name, *inputs], **attrs), shape

    # several operands, several results

    def join(self, slot: Slot) -> Slot | None:
        name, shape = slot

        def fits(a: Shape, b: Shape) -> bool:
            return len(a) == len(b) and all(
                m == n or 1 in (m, n) for m, n in zip(a, b, strict=True)
            )

        other, its = self.fellow(shape, fits)
        out = tuple(max(m, n) for m, n in zip(shape, its, strict=True))
        kind = self.pick(
            ["Add", "Add", "Add", "Sub", "Mul", "Mul", "Max", "Min", "Sum", "Where", "Div"]
        )
        if kind == "Where":
            return self.graph.node(kind, [self.condition(), name, other]), out
        if kind == "Div":
            bounds = [self.graph.initializer(bound) for bound in (0.5, 2.0)]
            other = self.graph.node("Clip", [other, *bounds])
        names = [name, other]
        self.random.shuffle(names)
        return self.graph.node(kind, [name, other] if kind == "Div" else names), out

    def residual(self, slot: Slot) -> Slot | None:
        """Two layers over one value, perhaps gated, and an operator over both."""
        name, shape = slot
        if not 3 <= len(shape) <= 5:
            return None
        made = []
        for _ in range(2):
            channels = shape[1] if self.random.random() < 0.9 else 1
            weight = self.constant((channels, shape[1], *[1] * (len(shape) - 2)))
            branch = (
                self.graph.node("Conv", [name, weight, *self.bias(channels)]),
                (shape[0], channels, *shape[2:]),
            )
            for action in self.random.sample([self.unary, self.affine], self.upto(0, 2)):
                branch = action(branch) or branch
            made.append(branch)
        kind = self.pick(["Add", "Add", "Sub", "Mul", "Max", "Min", "Sum", "Concat"])
        if kind == "Concat":
            total = made[0][1][1] + made[1][1][1]
            return self.graph.node(kind, [made[0][0], made[1][0]], axis=1), (
                shape[0],
                total,
                *shape[2:],
            )
        channels = max(made[0][1][1], made[1][1][1])
        return self.graph.node(kind, [made[0][0], made[1][0]]), (shape[0], channels, *shape[2:])

    def condition(self) -> str:
        if "condition" not in [info.name for info in self.graph.inputs]:
            self.graph.input("condition", [], np.dtype(np.bool_))
        return "condition"

    def concat(self, slot: Slot) -> Slot | None:
        name, shape = slot
        if not shape:
            return None
        axis = 1 if len(shape) > 1 and not self.one_in(3) else self.upto(0, len(shape) - 1)

        def fits(a: Shape, b: Shape) -> bool:
            return len(a) == len(b) and all(
                m == n or i == axis for i, (m, n) in enumerate(zip(a, b, strict=True))
            )

        other, its = self.fellow(shape, fits)
        if shape[axis] + its[axis] > 8:
            return None
        out = (*shape[:axis], shape[axis] + its[axis], *shape[axis + 1 :])
        return self.graph.node("Concat", [name, other], axis=axis), out

    def split(self, slot: Slot) -> Slot | None:
        name, shape = slot
        axes = [i for i, n in enumerate(shape) if n > 1]
        if not axes:
            return None
        axis = 1 if 1 in axes and not self.one_in(3) else self.pick(axes)
        first = self.upto(1, shape[axis] - 1)
        names = [self.graph.fresh("part") for _ in range(2)]
        self.graph.node("Split", [name, self.ints([first, shape[axis] - first])], names, axis=axis)
        made = [(part, (*shape[:axis], n, *shape[axis + 1 :])) for part, n in zip(
            names, (first, shape[axis] - first), strict=True)]  # fmt: skip
        if self.one_in(2):
            made = [self.affine(part) for part in made]
        self.slots.append(made[0])
        return made[1]

    def part(self, slot: Slot) -> Slot | None:
        name, shape = slot
        if not shape:
            return None
        axis = 1 if len(shape) > 1 and not self.one_in(3) else self.upto(0, len(shape) - 1)
        n = shape[axis]
        if self.one_in(2):
            index = [self.upto(-n, n - 1) for _ in range(self.upto(1, 4))]
            out = (*shape[:axis], len(index), *shape[axis + 1 :])
            return self.graph.node("Gather", [name, self.ints(index)], axis=axis), out
        start, step = self.upto(0, n - 1), self.pick([1, 1, 2, -1])
        stop = n if step > 0 else -n - 1
        out = (
            *shape[:axis],
            len(range(start, n, step)) if step > 0 else start + 1,
            *shape[axis + 1 :],
        )
        return self.graph.node(
            "Slice", [name, *(self.ints([v]) for v in (start, stop, axis, step))]
        ), out

    def stretch(self, slot: Slot) -> Slot | None:
        name, shape = slot
        times = [self.upto(1, 2) if i != 1 or self.one_in(4) else 1 for i in range(len(shape))]
        if not shape or prod(shape) * prod(times) > LARGEST:
            return None
        if self.one_in(2):
            return self.graph.node("Tile", [name, self.ints(times)]), tuple(
                map(int.__mul__, shape, times)
            )
        out = tuple(self.upto(1, 3) if n == 1 else n for n in shape)
        return self.graph.node("Expand", [name, self.ints(out)]), out

    # shapes

    def transpose(self, slot: Slot) -> Slot | None:
        name, shape = slot
        if not shape:
            return None
        perm = self.random.sample(range(len(shape)), len(shape))
        return self.graph.node("Transpose", [name], perm=perm), tuple(shape[i] for i in perm)

    def reshape(self, slot: Slot) -> Slot | None:
        name, shape = slot
        kind = self.pick(["Reshape", "Reshape", "Flatten", "Squeeze", "Unsqueeze"])
        if kind == "Flatten" and shape:
            axis = self.pick([1, 1, self.upto(0, len(shape))])
            return self.graph.node("Flatten", [name], axis=axis), (
                prod(shape[:axis]),
                prod(shape[axis:]),
            )
        if kind == "Squeeze" and 1 in shape:
            axes = [i for i, n in enumerate(shape) if n == 1 and (i > 1 or self.one_in(2))]
            out = tuple(n for i, n in enumerate(shape) if i not in axes)
            return (self.graph.node("Squeeze", [name, self.ints(axes)]), out) if axes else None
        if kind == "Unsqueeze":
            if len(shape) > 4:
                return None
            axis = self.upto(0, len(shape))
            return self.graph.node("Unsqueeze", [name, self.ints([axis])]), (
                *shape[:axis],
                1,
                *shape[axis:],
            )
        if len(shape) < 2:
            return None
        out_dims = list(shape)
        if self.one_in(2):
            at = self.upto(0, len(shape) - 2)
            out_dims[at : at + 2] = [shape[at] * shape[at + 1]]
        else:
            at = self.upto(0, len(shape) - 1)
            factor = self.pick([f for f in (1, 2, 3, 4) if shape[at] % f == 0])
            out_dims[at : at + 1] = [factor, shape[at] // factor]
        if len(out_dims) > 5:
            return None
        written = list(out_dims)
        if self.one_in(3):
            written[self.upto(0, len(written) - 1)] = -1
        if written[0] == shape[0] and self.one_in(2):
            written[0] = 0
        return self.graph.node("Reshape", [name, self.ints(written)]), tuple(out_dims)

    def blocks(self, slot: Slot) -> Slot | None:
        name, shape = slot
        if len(shape) != 4:
            return None
        n, c, h, w = shape
        if c % 4 == 0:
            mode = self.pick(["DCR", "CRD"])
            return self.graph.node("DepthToSpace", [name], blocksize=2, mode=mode), (
                n,
                c // 4,
                2 * h,
                2 * w,
            )
        if h % 2 == 0 and w % 2 == 0 and c <= 2:
            return self.graph.node("SpaceToDepth", [name], blocksize=2), (n, 4 * c, h // 2, w // 2)
        return None

    def branch(self, slot: Slot) -> Slot | None:
        """An If whose branches read a value of the outer graph; one of them normalizes it."""
        name, shape = slot
        graph, condition = self.graph, self.condition()
        outer, known, branches = graph.nodes, self.constants, []
        for kind in ("then", "else"):
            graph.nodes, self.constants = (
                [],
                {},
            )  # a Constant node of a branch is not visible outside of it
            inner = slot
            for _ in range(self.upto(0, 2)):
                inner = self.affine(inner)
            out = graph.node("Identity", [inner[0]]) if inner[0] == name else inner[0]
            info = helper.make_tensor_value_info(out, onnx_dtype(self.dtype), list(shape))
            branches.append(helper.make_graph(graph.nodes, graph.fresh(kind), [], [info]))
        graph.nodes, self.constants = outer, known
        return graph.node(
            "If", [condition], then_branch=branches[0], else_branch=branches[1]
        ), shape

    # growth

    def grow(self, steps: int) -> ModelProto:
        """At most `steps` steps from one or two inputs, then outputs."""
        table: list[tuple[int, Callable[[Slot], Slot | None]]] = [
            (12, self.affine), (10, self.layer), (6, self.unary), (3, self.pool), (2, self.reduction), (2, self.pad),
            (1, self.resize), (1, self.norm), (2, self.join), (4, self.residual), (1, self.concat),
            (1, self.split), (2, self.part),
            (1, self.stretch), (2, self.transpose), (2, self.reshape), (1, self.blocks), (1, self.branch),
        ]  # fmt: skip
        weights, kinds = zip(*table, strict=True)
        for i in range(self.upto(1, 2)):
            rank = self.pick([2, 3, 4, 4, 4, 4, 5])
            shape = tuple(self.upto(1, 4) for _ in range(rank))
            self.slots.append((self.graph.input(f"x{i}", list(shape)), shape))
        actions = [*self.random.choices(kinds, weights, k=self.upto(2, steps))]
        if self.random.random() < 0.7:
            actions.insert(0, self.layer)
        if self.random.random() < 0.7:
            actions.append(self.random.choice([self.layer, self.affine]))
        for action in actions:
            slot = self.slots[-1] if self.random.random() < 0.88 else self.pick(self.slots)
            made = action(slot) if prod(slot[1]) <= LARGEST else None
            if made is not None:
                self.slots.append(made)
        return self.finish()

    def finish(self) -> ModelProto:
        """Return the last value, every value that nobody reads, and now and then another one."""
        read = {name for node in self.graph.nodes for name in node.input}
        inputs = {info.name for info in self.graph.inputs}
        for i, (name, shape) in enumerate(self.slots):
            last = i == len(self.slots) - 1
            if name not in inputs and (last or name not in read or self.one_in(16)):
                self.graph.output(name, list(shape))
        if not self.graph.outputs:
            name, shape = self.slots[0]
            self.graph.output(self.graph.node("Relu", [name], "only"), list(shape))
        return self.graph.model()
