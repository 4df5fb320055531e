"""Random graphs through the default pipeline: same numbers in float64, same interface, sound IR after every pass.

Every extent is from {1, 2, 3, 4}, so that axes collide; gammas are negative or zero half of the time; constants are
shared, and hidden behind Identity; interior values are read twice, returned, or captured by an If.

The model is in float64, and is compared at 1e-10 of the running magnitude: the greatest sum of magnitudes at the
output in question (see `graphs.absolute`), which no rounding of float64 arithmetic comes near.

`IRC_EXAMPLES=5000 pytest tests/test_random_graphs.py` makes a long run; the default is 150 examples.
"""

from __future__ import annotations

import copy
import os
from typing import Any

import numpy as np
from float64 import evaluate
from graphs import (
    F64,
    NEWEST,
    Graph,
    absolute,
    assert_accounted,
    assert_interface,
    assert_nothing_stale,
    batch_norm,
    is_valid,
    size,
    stimuli,
)
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from irc.backends.driver import compile as compile_model
from irc.passes import PassContext, Verify
from onnx import ModelProto, helper, printer

EXAMPLES = int(os.environ.get("IRC_EXAMPLES", "150"))
EXTENT = st.integers(1, 4)
Draw = Any
Slot = tuple[str, tuple[int, ...]]
"""A value and its shape."""

AFFINES = ("BatchNormalization", "BatchNormalization", "Mul", "Add", "Sub", "Div", "Neg", "rSub")
OTHERS = (
    "Relu",
    "LeakyRelu",
    "Identity",
    "Dropout",
    "Transpose",
    "Join",
    "Concat",
    "If",
    "MaxPool",
    "Cast",
    "Square",
    "Shape",
)
LAYERS = ("Conv", "Conv", "ConvTranspose", "Gemm", "MatMul")


class Grower:
    """Grows a graph forward from the values that there are."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.graph = Graph(
            dtype=F64, opset=draw(st.sampled_from([13, 15, 17, NEWEST])), seed=draw(st.integers(0, 1 << 20))
        )
        self.slots: list[Slot] = []
        self.weights: dict[tuple[int, ...], list[str]] = {}
        self.captured = 0

    def one_in(self, n: int) -> bool:
        return bool(self.draw(st.integers(1, n)) == n)

    def pick(self, items: Any) -> Any:
        return self.draw(st.sampled_from(items))

    def constant(self, shape: tuple[int, ...], *, nonzero: bool = False) -> str:
        """A constant of that shape: often one that there is already, sometimes behind Identity or a Constant node."""
        known = self.weights.setdefault(shape, [])
        if known and not nonzero and self.one_in(3):
            return str(self.pick(known))
        array = self.graph.random(*shape)
        if nonzero:
            array = np.where(np.abs(array) < 0.25, 0.5, array)
        elif self.one_in(3):
            array = np.where(self.graph.random(*shape) < 0, 0.0, array)
        if self.one_in(8):
            array = array + self.graph.dtype.type(1000)
        how = self.pick(["initializer", "initializer", "initializer", "value", "identity", "identity twice"])
        name = self.graph.constant(np.asarray(array), how)
        if not nonzero:
            known.append(name)
        return name

    def affine(self, slot: Slot) -> Slot:
        name, shape = slot
        op = self.pick(AFFINES)
        if op == "BatchNormalization" and len(shape) >= 2:
            params = batch_norm(shape[1], self.draw(st.integers(0, 1000)), F64, self.pick([None, 0.0, 0.5]))
            if self.one_in(3):
                params.gamma[self.draw(st.integers(0, shape[1] - 1))] = 0.0
            how = self.pick(["initializer", "initializer", "identity", "value"])
            return self.graph.batch_norm(name, params, how=how, name=self.name()), shape
        if op == "Neg":
            return self.graph.node("Neg", [name]), shape
        sides = "rSub" if op == "rSub" else op
        const_shape = tuple(self.pick([1, n]) for n in shape) if self.one_in(4) else self.channel(shape)
        while const_shape and const_shape[0] == 1 and self.one_in(2):
            const_shape = const_shape[1:]
        constant = self.constant(const_shape, nonzero=op == "Div")
        if sides == "rSub":
            return self.graph.node("Sub", [constant, name]), shape
        left = op in ("Mul", "Add") and self.one_in(2)
        return self.graph.node(op, [constant, name] if left else [name, constant], name=self.name()), shape

    def channel(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a constant that varies along one axis, mostly axis 1, or along none."""
        if self.one_in(5) or not shape:
            return ()
        axis = 1 if len(shape) > 1 and not self.one_in(4) else self.draw(st.integers(0, len(shape) - 1))
        return tuple(n if i == axis else 1 for i, n in enumerate(shape))

    def name(self) -> str:
        """A node name: mostly none, at times one that other nodes have."""
        return str(self.pick(["", "", "layer", "conv", self.graph.fresh("n")]))

    def layer(self, slot: Slot) -> Slot | None:
        name, shape = slot
        op = self.pick(LAYERS)
        if op in ("Gemm", "MatMul"):
            return self.linear(op, name, shape)
        if not 3 <= len(shape) <= 5:
            return None
        spatial, channels = shape[2:], shape[1]
        groups = [g for g in (1, 2, 3, 4) if channels % g == 0]
        group, per_group = self.pick(groups), self.draw(st.integers(1, 2))
        kernel = tuple(self.draw(st.integers(1, min(2, n))) for n in spatial)
        if op == "ConvTranspose":
            strides = [self.draw(st.integers(1, 2)) for _ in spatial]
            out = tuple((n - 1) * s + k for n, s, k in zip(spatial, strides, kernel, strict=True))
            if max(out) > 8:
                return None
            inputs = [name, self.constant((channels, per_group, *kernel))]
            attrs: dict[str, Any] = {"group": group, "strides": strides}
        else:
            pads = [self.draw(st.integers(0, 1)) for _ in range(2 * len(spatial))]
            n = len(spatial)
            out = tuple(extent + pads[i] + pads[n + i] - kernel[i] + 1 for i, extent in enumerate(spatial))
            if max(out) > 8:
                return None
            inputs = [name, self.constant((per_group * group, channels // group, *kernel))]
            attrs = {"group": group, "pads": pads}
        if self.one_in(2):
            inputs.append(self.constant((per_group * group,)))
        elif self.one_in(4):
            inputs.append("")
        return self.graph.node(op, inputs, name=self.name(), **attrs), (shape[0], per_group * group, *out)

    def linear(self, op: str, name: str, shape: tuple[int, ...]) -> Slot | None:
        columns = self.draw(EXTENT)
        if op == "MatMul":
            if len(shape) < 2:
                return None
            if self.one_in(3):
                weight = self.constant((columns, shape[-2]))
                return self.graph.node("MatMul", [weight, name], name=self.name()), (*shape[:-2], columns, shape[-1])
            weight = self.constant((shape[-1], columns))
            return self.graph.node("MatMul", [name, weight], name=self.name()), (*shape[:-1], columns)
        if len(shape) != 2:
            return None
        trans_a, trans_b = self.draw(st.integers(0, 1)), self.draw(st.integers(0, 1))
        rows, inner = (shape[1], shape[0]) if trans_a else shape
        inputs = [name, self.constant((columns, inner) if trans_b else (inner, columns))]
        c = self.pick([None, (), (1,), (columns,), (1, columns), (rows, 1), (rows, columns)])
        if c is not None:
            inputs.append(self.constant(c))
        attrs = {
            "transA": trans_a,
            "transB": trans_b,
            "alpha": self.pick([1.0, 0.5]),
            "beta": self.pick([1.0, 0.0, -2.0]),
        }
        return self.graph.node("Gemm", inputs, name=self.name(), **attrs), (rows, columns)

    def other(self, slot: Slot) -> Slot | None:
        name, shape = slot
        op = self.pick(OTHERS)
        graph = self.graph
        if op in ("Relu", "LeakyRelu", "Identity", "Dropout"):
            return graph.node(op, [name]), shape
        if op == "Cast":
            return graph.node("Cast", [name], to=11), shape
        if op == "Square":
            return graph.node(self.pick(["Add", "Sub"]), [name, name]), shape
        if op == "Transpose":
            perm = self.draw(st.permutations(range(len(shape))))
            return graph.node("Transpose", [name], perm=list(perm)), tuple(shape[i] for i in perm)
        if op == "Join":
            fellows = [other for other, its in self.slots if its == shape]
            return graph.node(self.pick(["Add", "Mul", "Max"]), [name, self.pick(fellows)]), shape
        if op == "Concat":
            axis = self.draw(st.integers(0, len(shape) - 1))
            fellow = self.pick([other for other, its in self.slots if its == shape])
            if shape[axis] > 4:
                return None
            return graph.node("Concat", [name, fellow], axis=axis), (*shape[:axis], 2 * shape[axis], *shape[axis + 1 :])
        if op == "MaxPool" and 3 <= len(shape) <= 5:
            return graph.node("MaxPool", [name], kernel_shape=[1] * (len(shape) - 2)), shape
        if op == "Shape" and shape:
            return graph.node("Reshape", [name, graph.node("Shape", [name])]), shape
        if op == "If":
            return self.branch(name, shape), shape
        return None

    def branch(self, name: str, shape: tuple[int, ...]) -> str:
        """An If whose branches read a value of the outer graph; one of them normalizes it."""
        graph = self.graph
        if not self.captured:
            graph.input("condition", [], np.dtype(np.bool_))
        self.captured += 1
        outer, branches = graph.nodes, []
        for kind in ("then", "else"):
            graph.nodes, self.weights = [], {}  # a Constant node of a branch is not visible outside of it
            slot = (name, shape)
            for _ in range(self.draw(st.integers(0, 2))):
                slot = self.affine(slot)
            out = graph.node("Identity", [slot[0]]) if slot[0] == name else slot[0]
            info = helper.make_tensor_value_info(out, 11, list(shape))
            branches.append(helper.make_graph(graph.nodes, f"{kind}_{self.captured}", [], [info]))
        graph.nodes = outer
        self.weights = {}
        return graph.node("If", ["condition"], then_branch=branches[0], else_branch=branches[1])

    def grow(self) -> ModelProto:
        for i in range(self.draw(st.integers(1, 2))):
            shape = tuple(self.draw(st.lists(EXTENT, min_size=2, max_size=5)))
            self.slots.append((self.graph.input(f"x{i}", list(shape)), shape))
        for _ in range(self.draw(st.integers(2, 12))):
            recent = self.slots[-1] if self.one_in(2) or len(self.slots) < 2 else self.pick(self.slots)
            step = self.pick([self.affine, self.affine, self.layer, self.layer, self.other])
            made = step(recent)
            if made is not None and int(np.prod(made[1])) <= 4096:
                self.slots.append(made)
        names = {name for name, _ in self.slots[-1:]} | {name for name, _ in self.slots if self.one_in(8)}
        inputs = {info.name for info in self.graph.inputs}
        for name, shape in self.slots:
            if name in names and name not in inputs:
                self.graph.output(name, list(shape))
        if not self.graph.outputs:
            name, shape = self.slots[0]
            self.graph.output(self.graph.node("Relu", [name], "only"), list(shape))
        return self.graph.model()


@st.composite
def models(draw: Draw) -> ModelProto:
    """A random model."""
    return Grower(draw).grow()


def magnitude_share(before: ModelProto, after: ModelProto) -> float:
    """The greatest difference between the two models' results, as a share of the running magnitude."""
    worst, bounds = 0.0, (absolute(before), absolute(after))
    for inputs in stimuli(before):
        expected, found = evaluate(before, inputs), evaluate(after, inputs)
        positive = {k: v if v.dtype == np.bool_ else np.abs(v) for k, v in inputs.items()}
        first, second = (evaluate(bound, positive) for bound in bounds)
        assert set(found) == set(expected)
        for name, want in expected.items():
            assert found[name].shape == want.shape, name
            scale = max(np.abs(first[name]).max(initial=0), np.abs(second[name]).max(initial=0), 1e-30)
            worst = max(worst, float(np.abs(found[name] - want).max(initial=0) / scale))
    return worst


LONG = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=EXAMPLES <= 150,
    database=None,
    print_blob=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


@LONG
@given(models())
def test_random_graphs(model: ModelProto) -> None:
    note(printer.to_text(model))
    assert is_valid(model) is None
    given_model = copy.deepcopy(model)
    result = compile_model(given_model, context=PassContext([Verify()]))
    after = result.model
    assert given_model == model
    assert_interface(model, after)
    assert_nothing_stale(model, after)
    assert_accounted(result)
    assert is_valid(after) is None
    assert size(after) <= size(model)
    assert magnitude_share(model, after) <= 1e-10


@LONG
@given(models())
def test_compiling_a_compiled_random_graph_changes_nothing(model: ModelProto) -> None:
    note(printer.to_text(model))
    after = compile_model(copy.deepcopy(model)).model
    assert compile_model(copy.deepcopy(after)).model == after
