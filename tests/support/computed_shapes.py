"""Random models that compute shapes from the extents of inputs of open size."""

from __future__ import annotations

import random
from collections.abc import Sequence

import irc
import numpy as np
from harness import session
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as ort

FAILURES = (ort.Fail, ort.InvalidArgument, ort.RuntimeException, ort.InvalidGraph)
"""What onnxruntime raises for a model that it does not run."""

INPUTS = {"x": ("B", 4, "L"), "z": ("L", "B")}
"""The inputs of every model with their extents."""

ASSIGNMENTS = ({"B": 0, "L": 3}, {"B": 1, "L": 1}, {"B": 2, "L": 7}, {"B": 3, "L": 65})
"""The sizes of symbols at which a model is run."""

EMPTY = (*ASSIGNMENTS, {"B": 2, "L": 0})
"""The same, and an empty second symbol, at which many models fail.

Not both are 0: onnxruntime runs a Reshape to [0, -1] with allowzero=1, which ONNX calls invalid. No
model has these two as constants: as one constant, which a compile makes of them, they are refused.
"""


class Grower:
    """A model that grows: its operators, and the values to choose operands from."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.nodes: list[object] = []
        self.constants: dict[str, Sequence[int]] = {}
        self.ranks = {name: len(dims) for name, dims in INPUTS.items()}
        self.extents: list[str] = []
        self.computed: set[str] = set()
        """The numbers that may be negative."""
        for item in (-1, 0, 1, 2, 4):
            self.constant([item])
        for name in INPUTS:
            self.extents += [self.extent(name, axis) for axis in range(self.ranks[name])]

    def constant(self, items: Sequence[int]) -> str:
        name = "c" + "_".join(map(str, items)).replace("-", "m")
        self.constants[name] = items
        return name

    def add(self, op: str, inputs: Sequence[str], results: int = 1, **attrs: object) -> str:
        name = f"v{len(self.nodes)}"
        others = [f"{name}_{i}" for i in range(1, results)]
        self.nodes.append(helper.make_node(op, inputs, [name, *others], **attrs))
        return name

    def extent(self, value: str, axis: int) -> str:
        """The extent of a value, by one of the ways in which exporters read it."""
        way = self.random.randrange(3)
        if way == 0:
            return self.add("Shape", [value], start=axis, end=axis + 1)
        shape = self.add("Shape", [value])
        if way == 1:
            return self.add("Slice", [shape, self.constant([axis]), self.constant([axis + 1])])
        taken = self.add("Squeeze", [self.add("Gather", [shape, self.constant([axis])])])
        return self.add("Unsqueeze", [taken, "c0"])

    def number(self, least: int = -1) -> str:
        """A number, or one that is certainly not negative: an Expand to -1 is no valid model."""
        if least < 0:
            return self.random.choice([*self.extents, *self.extents, "c1", "c2", "c4", "c0", "cm1"])
        made = self.random.choice([*self.extents, *self.extents, "c1", "c2", "c4", "c0"])
        return self.add("Max", [made, "c0"]) if made in self.computed else made

    def grow_extent(self) -> None:
        """Add arithmetic of extents."""
        a, b = self.number(), self.number()
        op = self.random.choice(
            [
                *("Add", "Sub", "Mul", "Div", "Mod", "Min", "Max", "Neg", "Cast", "Where", "Undo"),
                *("Abs", "ReduceProd", "ReduceSum", "Size", "Clip", "Floats", "If"),
                *("Scalars", "Scalars", "Scalars"),
            ]
        )
        if op == "Clip":
            made = self.add(op, [a, *[self.add("Squeeze", [each]) for each in ("c0", "c4")]])
        elif op == "Floats":
            made = self.through_floats(a)
        elif op == "Scalars":
            made = self.through_scalars(a, b)
        elif op == "If":
            made = self.chosen(a, b)
        elif op in ("Neg", "Abs"):
            made = self.add(op, [a])
        elif op in ("ReduceProd", "ReduceSum"):
            made = self.add(op, [self.joined([a, b])])
        elif op == "Size":
            size = self.add(op, [self.random.choice(list(self.ranks))])
            made = self.add("Unsqueeze", [size, "c0"])
        elif op == "Cast":
            made = self.add(op, [self.add(op, [a], to=TensorProto.INT32)], to=TensorProto.INT64)
        elif op == "Where":
            compare = self.random.choice(["Equal", "Less", "GreaterOrEqual"])
            made = self.add(op, [self.add(compare, [a, self.number()]), "c1", b])
        elif op == "Undo":
            made = self.add("Sub", [self.add("Add", [a, b]), b])
        else:
            made = self.add(
                op, [a, self.random.choice(["c2", "c1"]) if op in ("Div", "Mod") else b]
            )
        self.extents.append(made)
        self.computed.add(made)

    def through_scalars(self, *numbers: str) -> str:
        """Arithmetic of numbers as scalars, one of which is read as one, too."""
        scalars = [self.add("Squeeze", [number]) for number in numbers]
        for _ in range(self.random.randrange(1, 4)):
            op = self.random.choice(["Add", "Mul", "Sub", "Max"])
            operands = self.random.choice(scalars), self.random.choice(scalars)
            scalars.append(self.add(op, operands))
        if self.random.random() < 0.5:
            bounds = [self.add("Squeeze", [each]) for each in ("c0", "c1")]
            real = self.add("Range", [bounds[0], self.random.choice(scalars), bounds[1]])
            self.ranks[self.add("Cast", [real], to=TensorProto.FLOAT)] = 1
        for scalar in scalars[-2:]:
            self.extents.append(self.add("Unsqueeze", [scalar, "c0"]))
            self.computed.add(self.extents[-1])
        return self.extents.pop()

    def through_floats(self, number: str) -> str:
        """A number as a float, divided or multiplied, then rounded to an integer."""
        if self.random.random() < 0.8:
            number = self.add("Min", [number, self.constant([512])])
        real = self.add("Cast", [number], to=TensorProto.FLOAT)
        other = self.add("Cast", [self.constant([self.random.randrange(2, 5)])], to=1)
        real = self.add(self.random.choice(["Div", "Mul", "Add"]), [real, other])
        if self.random.random() < 0.3:
            other = self.add("Cast", [self.constant([self.random.randrange(2, 8)])], to=1)
            real = self.add("Div", [real, other])
        if self.random.random() < 0.2:  # of its numbers nothing is known
            real = self.add("Sqrt", [self.add("Abs", [real])])
        if self.random.random() < 0.7:
            real = self.add(self.random.choice(["Floor", "Ceil"]), [real])
        return self.add("Cast", [real], to=TensorProto.INT64)

    def chosen(self, a: str, b: str) -> str:
        """One of two numbers, by an If; they may be equal."""
        condition = self.add("Squeeze", [self.add("Less", [a, b])])
        branches = []
        for number in (a, self.random.choice([a, b])):
            result = f"r{len(self.nodes)}_{len(branches)}"
            node = helper.make_node("Add", [number, "c0"], [result])
            info = helper.make_tensor_value_info(result, TensorProto.INT64, [1])
            branches.append(helper.make_graph([node], "branch", [], [info]))
        return self.add("If", [condition], then_branch=branches[0], else_branch=branches[1])

    def windows(self, extent: str, spare: int, stride: int) -> str:
        """How many windows fit into an extent with so many more elements than one of them."""
        if self.random.random() < 0.5:
            made = self.add("Add", [extent, self.constant([spare + stride])])
            return self.add("Div", [made, self.constant([stride])])
        made = self.add("Add", [extent, self.constant([spare])])
        return self.add("Add", [self.add("Div", [made, self.constant([stride])]), "c1"])

    def loop(self, value: str) -> str:
        """A Loop of no, one or two iterations, or of as many as computed."""
        name = f"l{len(self.nodes)}"
        body = helper.make_graph(
            [
                helper.make_node("Identity", [f"{name}_c"], [f"{name}_d"]),
                helper.make_node("Relu", [f"{name}_v"], [f"{name}_w"]),
            ],
            "body",
            [
                helper.make_tensor_value_info(f"{name}_i", TensorProto.INT64, []),
                helper.make_tensor_value_info(f"{name}_c", TensorProto.BOOL, []),
                helper.make_tensor_value_info(f"{name}_v", 1, [None] * self.ranks[value]),
            ],
            [
                helper.make_tensor_value_info(f"{name}_d", TensorProto.BOOL, []),
                helper.make_tensor_value_info(f"{name}_w", 1, [None] * self.ranks[value]),
            ],
        )
        count = self.add("Squeeze", [self.random.choice(["c0", "c1", "c1", "c2", self.number()])])
        return self.add("Loop", [count, "", value], body=body)

    def pads(self, begins: Sequence[str]) -> str:
        """Pads at beginnings only, or with the ends in a list that torch turns around."""
        ends = ["c0"] * len(begins)
        if self.random.random() < 0.5:
            return self.joined([*begins, *ends])
        pairs = [end for pair in zip(reversed(begins), ends, strict=True) for end in pair]
        matrix = self.add("Reshape", [self.joined(pairs), self.constant([-1, 2])])
        last = [self.constant([each]) for each in (-1, -(1 << 63), 0, -1)]
        turned = self.add("Transpose", [self.add("Slice", [matrix, *last])], perm=[1, 0])
        return self.add("Reshape", [turned, "cm1"])

    def joined(self, numbers: Sequence[str]) -> str:
        return self.add("Concat", numbers, axis=0)

    def target(self, rank: int, least: int) -> str:
        return self.joined([self.number(least) for _ in range(rank)])

    def own_target(self, value: str, least: int) -> str:
        """A target that is the shape of a value, but for a part."""
        parts = [self.extent(value, axis) for axis in range(self.ranks[value])]
        i, kind = self.random.randrange(len(parts)), self.random.randrange(6)
        if kind < 4:
            parts[i] = ["c1", "c1" if least == 0 else "cm1", "c0", self.number(least)][kind]
        elif kind == 4 and len(parts) > 1:
            i = min(i, len(parts) - 2)
            parts[i : i + 2] = [self.add("Mul", parts[i : i + 2])]
        return self.joined(parts)

    def grow_value(self) -> None:
        """Add an operator whose shape is computed, or one that keeps the shape."""
        value = self.random.choice(list(self.ranks))
        rank = self.ranks[value]
        op = self.random.choice(
            [
                *("Expand", "Reshape", "ConstantOfShape", "Slice", "Relu", "Add"),
                *("Tile", "Pad", "Range", "Split", "MaxPool", "Concat", "Flatten"),
                *("Gather", "Loop", "Fill", "Resize"),
            ]
        )
        if op in ("Expand", "Reshape"):
            least, is_own = 0 if op == "Expand" else -1, self.random.random() < 0.8
            target = self.own_target(value, least) if is_own else self.target(2, least)
            parts = self.nodes[-1].input  # type: ignore[attr-defined]
            length, is_invalid = len(parts), {"c0", "cm1"} <= set(parts)
            is_literal = op == "Reshape" and self.random.random() < 0.2 and not is_invalid
            made = self.add(op, [value, target], **({"allowzero": 1} if is_literal else {}))
            rank = max(rank, length) if op == "Expand" else length
        elif op == "ConstantOfShape":
            rank = self.random.randrange(1, 4)
            made = self.add(op, [self.target(rank, 0)])
        elif op == "Fill":
            rank = self.random.randrange(1, 4)
            scalar = self.add("Cast", [self.add("Squeeze", ["c2"])], to=TensorProto.FLOAT)
            parts = [self.number(0) for _ in range(rank)]
            if self.random.random() < 0.5:
                i = self.random.randrange(rank)
                parts[i] = self.add("Max", [self.through_floats(parts[i]), "c0"])
            made = self.add("Expand", [scalar, self.joined(parts)])
        elif op == "Slice":
            axis = self.random.randrange(rank)
            end = self.extent(value, axis) if self.random.random() < 0.5 else self.number()
            start = self.random.choice(["c0", "c0", self.number()])
            made = self.add(op, [value, start, end, self.constant([axis])])
        elif op in ("Tile", "Pad"):
            parts = ["c1" if op == "Tile" else "c0"] * rank
            parts[self.random.randrange(rank)] = self.number(0 if op == "Tile" else -1)
            made = self.add(op, [value, self.pads(parts) if op == "Pad" else self.joined(parts)])
        elif op == "Resize":
            sizes = (
                self.own_target(value, 0) if self.random.random() < 0.7 else self.target(rank, 0)
            )
            made = self.add(op, [value, "", "", sizes], mode="nearest")
        elif op == "Range":
            bounds = [self.add("Squeeze", [each]) for each in ("c0", self.number(), "c1")]
            made = self.add("Cast", [self.add(op, bounds)], to=TensorProto.FLOAT)
            rank = 1
        elif op == "Split":
            axis = self.random.randrange(rank)
            half = self.add("Div", [self.extent(value, axis), "c2"])
            sizes = [half, self.add("Sub", [self.extent(value, axis), half])]
            made = self.add(op, [value, self.joined(sizes)], axis=axis, results=2)
        elif op == "MaxPool":
            if rank < 3:
                return
            kernel, pad = self.random.randrange(2, 4), self.random.randrange(2)
            stride = self.random.randrange(1, 3)
            made = self.add(
                op,
                [value],
                kernel_shape=[kernel] * (rank - 2),
                pads=[pad] * (2 * rank - 4),
                strides=[stride] * (rank - 2),
            )
            # onnxruntime rounds the number of windows of an empty batch up where ONNX rounds down
            if stride == 1 or 2 * pad >= kernel:
                extent = self.extent(value, rank - 1)
                self.extents.append(self.windows(extent, 2 * pad - kernel, stride))
                self.computed.add(self.extents[-1])
        elif op == "Concat":
            made = self.add(op, [value, self.add("Neg", [value])], axis=self.random.randrange(rank))
        elif op == "Gather":
            axis = self.random.randrange(rank)
            end = self.extent(value, axis) if self.random.random() < 0.7 else self.number()
            numbers = [self.add("Squeeze", [each]) for each in ("c0", end, "c1")]
            made = self.add(op, [value, self.add("Range", numbers)], axis=axis)
        elif op == "Loop":
            made = self.loop(value)
        elif op == "Flatten":
            made, rank = self.add(op, [value], axis=self.random.randrange(rank)), 2
        elif op == "Add":
            other = self.random.choice(list(self.ranks))
            rank = max(rank, self.ranks[other])
            made = self.add(op, [value, other])
        else:
            made = self.add(op, [value])
        self.ranks[made] = rank
        self.extents.append(self.extent(made, self.random.randrange(rank)))

    def model(self) -> ModelProto:
        values = list(self.ranks)[-2:]
        outputs = [
            helper.make_tensor_value_info(name, 1, [None] * self.ranks[name]) for name in values
        ]
        number = self.joined(self.extents[-4:])
        outputs.append(helper.make_tensor_value_info(number, TensorProto.INT64, [4]))
        inputs = [helper.make_tensor_value_info(name, 1, dims) for name, dims in INPUTS.items()]
        constants = [
            numpy_helper.from_array(np.array(items, np.int64), name)
            for name, items in self.constants.items()
        ]
        graph = helper.make_graph(self.nodes, "g", inputs, outputs, constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def grow(seed: int) -> ModelProto:
    """The random model of a seed."""
    grower = Grower(seed)
    for _ in range(grower.random.randrange(2, 7)):
        if grower.random.random() < 0.4:
            grower.grow_extent()
        else:
            grower.grow_value()
    return grower.model()


def inputs_of(sizes: dict[str, int]) -> dict[str, np.ndarray]:
    """Numbers for the inputs at a size of each symbol."""
    found = {}
    for name, dims in INPUTS.items():
        shape = [sizes[dim] if isinstance(dim, str) else dim for dim in dims]
        count = int(np.prod(shape))
        found[name] = (np.arange(count, dtype=np.float32) - count // 2).reshape(shape)
    return found


def runs_alike(made: ModelProto, assignments: Sequence[dict[str, int]] = ASSIGNMENTS) -> int:
    """Check that a compiled model runs wherever its source runs, with the same results.

    Return the number of these runs.
    """
    try:
        before = session(made)
    except FAILURES:
        return 0
    result, after, count = irc.compile(made).model, None, 0
    for sizes in assignments:
        inputs = inputs_of(sizes)
        try:
            wanted = before.run(None, inputs)
        except FAILURES:
            continue
        after = session(result) if after is None else after
        for a, b in zip(after.run(None, inputs), wanted, strict=True):
            assert a.shape == b.shape and np.array_equal(a, b), sizes
        count += 1
    return count
